"""Election and loss of a coordinator, with real messages on virtual time and injected faults."""

import asyncio
import tomllib
from math import inf

import msgspec
import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.coordination.election_runner import UNKNOWN, ElectionRunner, FileVotes, MemoryVotes, electorate, timing_of
from p2pfl.node.federation import loading, membership_changes
from p2pfl.node.federation.agreement import terms
from p2pfl.node.federation.membership_file import MembershipFile
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.folder import config
from p2pfl.node.settings import Settings
from p2pfl.node.status import endpoints as metrics
from p2pfl.node.status.text import describe
from p2pfl.parameters import Layout
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.fedpref import FedPref
from p2pfl.policy import Merge
from p2pfl.protocols.election import LAST, TIMING, Ballot, Electorate, Term
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Member
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Payload
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.clock import run as clock_run
from tests.support.federation import LATENCY, play
from tests.support.logs import log_to
from tests.support.processes import federate
from tests.support.simulated import run

NAMES = ("a", "b", "c", "d", "e")
# Seconds until a coordinator is elected without losses: a wait of one to two times the patience, and answers.
FIRST = 3 * TIMING.patience
HEALED_WITHIN = 10.0


class Preferring(FedPref):
    """FedPref that splits clusters early."""

    def __init__(self):
        super().__init__(epsilon=0.7, relative=True, patience=1)


def settings(**changes):
    return Settings(**({"rounds": 6, "deadline": 20.0} | changes))


def known_coordinators(federation, *names):
    """Return the coordinators that the given nodes know."""
    return {federation.nodes[name].exchange.election.coordinator for name in names or federation.names}


async def wait_for_coordinator(federation, *names, but=None):
    """Wait until the given nodes agree on a coordinator other than `but`, and return it."""
    while len(found := known_coordinators(federation, *names)) > 1 or found & {None, but}:
        await asyncio.sleep(0.05)
    (name,) = found
    return name


async def to_the_end(federation):
    federation.start()
    await federation.done()


def params(federation):
    return {name: node.me.params.tobytes() for name, node in federation.nodes.items()}


def joint_rounds(federation, name):
    """Return the rounds in which a node continued from an assigned model that includes other nodes."""
    return [round for round, weights in federation.watch[name].weights.items() if len(weights) > 1]


# Elections


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_members_elect_one_coordinator(count):
    async def test(federation):
        federation.start()
        await federation.round("a", 1)
        assert asyncio.get_running_loop().time() < FIRST
        assert len(known_coordinators(federation)) == 1
        await federation.done()

    federation = play(test, NAMES[:count], settings(), policy=CoordinatedFedAvg)
    for name in federation.names:
        assert sorted(federation.watch[name].weights) == [1, 2, 3, 4, 5, 6]
        assert all(len(weights) == count for weights in federation.watch[name].weights.values())
        assert not federation.nodes[name].exchange.rejected
        (found,) = {(seen.coordinator, seen.term) for _, seen in federation.watch[name].elected_at if seen.coordinator}
        assert found[1] == Term(1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_half_of_members_without_coordinator_learn_alone(count):
    alone = count // 2
    names = NAMES[:count]
    few = names[:alone]

    async def test(federation):
        federation.start()
        await wait_for_coordinator(federation)
        await federation.round("a", 2)
        federation.cable.sides = dict.fromkeys(few, "few")
        while known_coordinators(federation, *few) != {None}:
            await asyncio.sleep(0.05)
        lost = federation.nodes["a"].round
        await federation.round("a", lost + 3)
        problem = federation.nodes["a"].exchange.election.seen.problem
        assert problem == f"no coordinator: {alone} of {count} members reachable, {count // 2 + 1} needed"
        if count % 2:
            await wait_for_coordinator(federation, *set(names) - set(few))
        federation.cable.sides = {}
        healed = asyncio.get_running_loop().time()
        await wait_for_coordinator(federation)
        assert asyncio.get_running_loop().time() < healed + HEALED_WITHIN
        back = max(node.round for node in federation.nodes.values())
        await federation.round("a", back + 8)
        assert set(federation.watch["a"].weights[back + 8]) == set(names)
        for task in federation.running.values():
            task.cancel()

    federation = play(test, names, settings(rounds=500), policy=CoordinatedFedAvg, period=1.0)
    assert any(weights == {"a": 1.0} for weights in federation.watch["a"].weights.values())
    for name in few:  # no problem is reported twice
        said = [seen.problem for _, seen in federation.watch[name].elected_at if "reachable" in seen.problem]
        assert len(said) == len(set(said)) > 0


def test_electorate_follows_roles():
    def members(**roles):
        return [Member(name, b"", role.replace("_", "-")) for name, role in roles.items()]

    everyone = electorate(3, members(b="participant", a="participant", o="observer"))
    assert everyone == Electorate(3, frozenset("ab"), ("a", "b"))
    some = electorate(4, members(a="participant", c="coordinator_eligible", b="coordinator_eligible", o="observer"))
    assert some == Electorate(4, frozenset("abc"), ("b", "c"))


class RecordingPeerManager:
    """Peer manager that only records its peers."""

    def __init__(self, names):
        self.peers = names
        self.gone = []
        self.gossip = self

    def remove(self, name, reason):
        self.gone.append(name)

    def spread(self, urgent): ...

    def forget_released(self): ...


def test_coordinated_node_contacts_all_members_and_follows_log(tmp_path):
    for name in "abc":
        config.create(tmp_path / name, name, task="concept-shift", policy="coordinated-fedavg")
    federate(tmp_path, ["a", "b", "c"], [["a", "b"]])
    ready, key = loading.load(tmp_path / "a"), Identity.load(tmp_path / "a" / config.KEY).public
    neighbourhood = Neighbourhood(ready, (), coordinated=True)
    around = neighbourhood.members()
    assert set(around) == {"b", "c"}
    assert neighbourhood.sources(around) == {"b"}
    assert neighbourhood.askers() == {"b"}
    assert set(Neighbourhood(ready, ()).members()) == {"b"}  # without a coordinator
    election = ElectionRunner("a", neighbourhood.electorate(), MemoryVotes(), incarnation=1, seed=0)
    peering = RecordingPeerManager(around)
    MembershipSync(ready, key, neighbourhood, peering, election)
    assert election.votes("c")
    membership_changes.revoke(tmp_path / "a", "c")
    MembershipFile(tmp_path / "a").merge(ready.membership)
    assert peering.gone == ["c"]
    assert not election.votes("c")
    assert neighbourhood.electorate() == Electorate(4, frozenset("ab"), ("a", "b"))


@pytest.mark.slow
def test_only_eligible_member_coordinates_without_observer():
    async def test(federation):
        federation.start()
        assert await wait_for_coordinator(federation, "a", "b", "c", "d") == "c"
        await federation.done()

    roles = {"c": "coordinator-eligible", "e": "observer"}
    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg, roles=roles)
    for name in "abcd":
        assert all(set(weights) == set("abcd") for weights in federation.watch[name].weights.values())
    assert joint_rounds(federation, "e") == []
    assert "this node has no vote" in federation.nodes["e"].exchange.election.seen.problem


@pytest.mark.slow
def test_observers_running_ahead_do_not_move_voters():
    roles, speeds = dict.fromkeys("cde", "observer"), dict.fromkeys("cde", 0.5)
    federation = play(to_the_end, NAMES, settings(rounds=30), policy=CoordinatedFedAvg, roles=roles, speeds=speeds)
    for name in "ab":
        assert joint_rounds(federation, name) == list(range(1, 31))


def test_terms_include_election_timing():
    layout, own = Layout((("w", (2,)),), 2), Settings(rounds=1)
    without, with_one = terms(layout, own, ""), terms(layout, own, "", timing=TIMING)
    assert without["coordinator"] == "none"
    assert with_one["coordinator"] == (
        "elected by a majority of the members; beats every 0.4 s, a lease of 1.6 s, patience of 2 s"
    )
    assert without.keys() == with_one.keys()


def test_election_timing_slows_down_for_large_models():
    assert timing_of(1, 30.0) == timing_of(60_000, 30.0) == timing_of(10**9, 3.0) == TIMING
    assert timing_of(10_000_000, 100.0).lease == 50.0
    slow = timing_of(10_000_000, inf)  # 40 MB
    assert slow.patience == 320.0
    assert slow.beat < slow.lease < slow.patience
    assert slow.lease / slow.patience == pytest.approx(TIMING.lease / TIMING.patience)


LARGE = """
rounds = 3
nodes = 4
trainer = "one-by-one"
deadline = 100.0
fidelity = "wire"
network = { bandwidth = 1_000_000.0, latency = 0.01 }
[task]
name = "digits"
hidden = 5_000
[policy]
name = "coordinated-fedavg"
"""


@pytest.mark.slow
def test_large_models_that_delay_beats_do_not_depose_coordinator():
    """A model of 1.5 MB takes 1.5 s to transfer, and three submissions of two models at one receiver take 9 s."""
    result = run(resolve(tomllib.loads(LARGE), [], "large", ".").runs[0])
    elections = result.recorder.elections()["elections"]
    assert len(elections["time"]) == 4
    assert result.expired == 0
    assert not any(node.exchange.rejected for node in result.nodes.values())


def test_status_shows_coordinator_or_reason_for_none():
    state = {"name": "a", "state": "running", "round": 3, "rounds": 9, "history": []}
    led = state | {"election": {"coordinator": "b", "term": "5.2", "problem": ""}}
    assert describe(led)[1:] == ["  coordinator  b, in term 5.2"]
    problem = "no coordinator: 2 of 5 members reachable, 3 needed"
    alone = state | {"election": {"coordinator": None, "term": "5.2", "problem": problem}}
    assert describe(alone)[1:] == [f"  degraded  {problem}; until there is one, this node learns alone"]
    assert describe(led | {"state": "serving"})[1:] == ["  coordinator  b, in term 5.2"]
    for state_of, over in [(alone, "serving"), (alone, "finished"), (led, "stopped"), (led, "gone")]:  # it no longer learns
        assert len(describe(state_of | {"state": over})) == 1
    shown = metrics.text(led).decode()
    assert 'p2pfl_coordinator{name="b"} 1.0' in shown
    assert "p2pfl_coordinator_problem 0.0" in shown
    assert "p2pfl_election_term 2.0" in shown
    assert "p2pfl_coordinator_problem 1.0" in metrics.text(alone).decode()
    assert "p2pfl_coordinator_problem 0.0" in metrics.text(alone | {"state": "serving"}).decode()
    assert "coordinator" not in metrics.text(state).decode()


def test_federation_without_coordinator_has_no_elections():
    async def test(federation):
        federation.start()
        await federation.round("a", 1)
        peering = federation.nodes["b"].exchange.peering
        peering.tell(peering.peers["a"], m.Vote(1, 1, False))
        await federation.done()

    federation = play(test, ("a", "b"), settings())
    assert federation.nodes["a"].exchange.rejected == {"election": 1}
    assert federation.watch["a"].elected_at == []


# Loss of the coordinator


@pytest.mark.slow
def test_lost_coordinator_costs_others_no_round():
    async def test(federation):
        federation.start()
        first = await wait_for_coordinator(federation)
        await federation.round(first, 2)
        await asyncio.sleep(0.5)  # in the middle of the training of round 3
        await federation.kill(first)
        others = [name for name in NAMES if name != first]
        second = await wait_for_coordinator(federation, *others, but=first)
        await federation.round(second, 4)
        federation.start(first)
        await federation.done()
        federation.first = first

    federation = play(test, NAMES, settings(rounds=12), policy=Preferring, period=1.0)
    for name in NAMES:
        if name != federation.first:
            history = federation.watch[name].weights
            assert sorted(history) == list(range(1, 13))
            assert federation.nodes[name].exchange.expired == 0
            assert federation.nodes[name].policy.previous
            assert federation.watch[name].times[3] - federation.watch[name].times[2] < 20.0
    assert federation.nodes[federation.first].round == 12


@pytest.mark.slow
def test_successor_rebuilds_policy_state_bit_for_bit():
    """Each change of the membership selects another coordinator; the previous one remains a participant."""

    async def changing(federation):
        federation.start()
        leaders = []
        for membership_version, round in ((2, 2), (3, 4)):
            await federation.round("a", round)
            leaders.append(await wait_for_coordinator(federation))
            may = tuple(name for name in NAMES if name not in leaders)
            for node in federation.nodes.values():
                node.exchange.election.change(Electorate(membership_version, frozenset(NAMES), may))
        await federation.done()
        federation.leaders = [*leaders, known_coordinators(federation, "a").pop()]

    undisturbed = play(to_the_end, NAMES, settings(rounds=8), policy=Preferring)
    changed = play(changing, NAMES, settings(rounds=8), policy=Preferring)
    assert len({*changed.leaders}) == 3
    assert params(changed) == params(undisturbed)
    clusters = {name: node.policy.previous["cluster"].tolist() for name, node in changed.nodes.items()}
    assert len({str(cluster) for cluster in clusters.values()}) > 1
    for name in NAMES:
        assert [len(w) for w in changed.watch[name].weights.values()] == [
            len(w) for w in undisturbed.watch[name].weights.values()
        ]


@pytest.mark.slow
def test_isolated_coordinator_assigns_nothing():
    """It holds the submissions of the others when it is cut off. Its lease ends before its own training does."""

    async def test(federation):
        federation.start()
        first = await wait_for_coordinator(federation)
        others = [name for name in NAMES if name != first]
        await federation.round(first, 2)
        await asyncio.sleep(2)
        federation.cable.cut.add(first)
        federation.second = await wait_for_coordinator(federation, *others, but=first)
        await federation.round(federation.second, 4)
        await federation.round(first, 3)
        federation.cable.cut.discard(first)
        await federation.done()
        federation.first = first

    roles = dict.fromkeys("ab", "coordinator-eligible")
    speeds = dict.fromkeys("ab", 5.0)
    federation = play(test, NAMES, settings(rounds=5), policy=CoordinatedFedAvg, period=1.0, roles=roles, speeds=speeds)
    first = federation.first
    assert {first, federation.second} == {"a", "b"}
    assert federation.watch[first].weights[3] == {first: 1.0}
    for name in set(NAMES) - {first}:
        assert set(federation.watch[name].weights[3]) == set(NAMES) - {first}
        assert sorted(federation.watch[name].weights) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_messages_of_lower_term_are_rejected_and_counted():
    async def test(federation):
        federation.start()
        await federation.round("a", 1)
        for node in federation.nodes.values():
            node.exchange.election.change(Electorate(2, frozenset(NAMES), ("b",)))
        while known_coordinators(federation) != {"b"}:
            await asyncio.sleep(0.05)
        size = federation.tasks["a"].layout.size
        model = Payload.of(np.zeros(size, np.float32).data.cast("B"))
        peering = federation.nodes["c"].exchange.peering
        peering.send(peering.peers["b"], m.Submit(1, 2, 1, 1, 50, start=False), model)
        peering.send(peering.peers["a"], m.Assigned(1, 2, 1, 1, given=False))
        peering.send(peering.peers["a"], m.Submit(1, 2, 2, 1, 50, start=False), model)
        await federation.done()

    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg)
    assert federation.nodes["b"].exchange.rejected == {"lower term": 1}
    assert federation.nodes["a"].exchange.rejected == {"lower term": 1, "not the coordinator": 1}
    assert all(len(weights) == 5 for weights in federation.watch["a"].weights.values())


def test_unsolicited_assignment_is_rejected():
    async def test(federation):
        federation.start()
        coordinator = await wait_for_coordinator(federation)
        one, other = (name for name in ("a", "b", "c") if name != coordinator)
        await federation.round(one, 1)
        exchange = federation.nodes[one].exchange
        while exchange.coordination.client.pending is None:
            await asyncio.sleep(LATENCY / 4)
        peering = federation.nodes[other].exchange.peering
        asked = exchange.coordination.client.pending
        peering.send(peering.peers[one], m.Assigned(asked.number, asked.round, *asked.term, given=False))
        await federation.done()
        federation.one = one

    federation = play(test, ("a", "b", "c"), settings(), policy=CoordinatedFedAvg)
    assert federation.nodes[federation.one].exchange.rejected == {"not asked for": 1}
    assert all(len(weights) == 3 for weights in federation.watch[federation.one].weights.values())


# Invalid submissions


class SendsBadSubmissions(Preferring):
    """Policy in which node e sends invalid submissions from the third round on."""

    def __init__(self, said=None, factor=1.0):
        super().__init__()
        self.said, self.factor = said, factor

    async def aggregate(self, me, peers, trained):
        if me.id != "e" or me.round < 3:
            return await super().aggregate(me, peers, trained)
        assert await peers.submit(trained * np.float32(self.factor), previous=self.said or {}, start=me.params) is None
        self.previous = {}
        return alone(me, trained)


def alone(me, trained):
    return Merge(trained, {me.id: 1.0})


NONSENSE = {
    "submission": lambda: SendsBadSubmissions({"cluster": np.array([7]), "figures": np.zeros(4)}),
    "not finite": lambda: SendsBadSubmissions(factor=np.nan),
    "too large": lambda: SendsBadSubmissions(factor=1e30),
}


@pytest.mark.slow
@pytest.mark.parametrize("cause", NONSENSE)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_bad_submission_does_not_affect_others(cause):
    async def test(federation):
        federation.electorate = lambda: Electorate(1, frozenset(NAMES), ("a",))
        federation.start()
        await federation.done()

    federation = play(test, NAMES, settings(), policy=NONSENSE[cause])
    assert federation.nodes["a"].exchange.rejected[cause] == 4
    for name in "abcd":
        watch = federation.watch[name]
        assert federation.nodes[name].exchange.expired == 0
        assert watch.times[6] - watch.times[2] < 4 * 1.1
        assert all(set(watch.weights[round]) <= set("abcd") for round in (3, 4, 5, 6))
        assert len(federation.nodes[name].policy.previous) == 2
        assert np.isfinite(federation.nodes[name].me.params).all()


class Broken(CoordinatedFedAvg):
    def step(self, submissions, state, layout):
        raise RuntimeError("this policy has a fault")


def test_error_in_policy_step_ends_node():
    with pytest.raises(RuntimeError, match="this policy has a fault"):
        play(to_the_end, ("a",), settings(), policy=Broken)


def test_submit_is_only_for_coordinated_policies():
    class Alone:
        reported_stage = "merged"

        async def prepare(self, me, peers):
            return alone(me, me.params)

        async def round(self, me, peers):
            await peers.submit(me.params)

        def state(self):
            return {}

        def restore(self, state): ...

    with pytest.raises(ConfigurationError, match=r"`peers\.submit` needs a coordinated policy"):
        play(to_the_end, ("a",), settings(), policy=Alone)


@pytest.mark.parametrize(
    ("changes", "said"), [({"mode": "asynchronous"}, "synchronous"), ({"codec": {"name": "int8"}}, "float32")]
)
def test_coordinated_policy_refuses_async_mode_and_codec(tmp_path, changes, said):
    config.create(tmp_path / "a", "a", task="concept-shift", policy="fedpref")
    with pytest.raises(ConfigurationError, match=said):
        own = msgspec.structs.replace(config.load(tmp_path / "a"), **changes)
        loading.policy_of(loading.LoadedNode(tmp_path / "a", own, None, None))


# The vote


@pytest.mark.slow
def test_vote_is_saved_and_survives_restart(tmp_path):
    votes = FileVotes(tmp_path / "vote")
    assert votes.load(1) == Ballot()

    async def test(federation):
        federation.start()
        first = await wait_for_coordinator(federation)
        kept = {name: federation.ballots(name).load(1) for name in NAMES}
        assert {ballot.term for ballot in kept.values()} == {Term(1, 1)}
        assert list({ballot.vote for ballot in kept.values()} - {""}) == [first]
        voter = next(name for name in NAMES if kept[name].vote and name != first)
        await federation.kill(voter)
        federation.start(voter)
        await federation.round(voter, 2)
        assert federation.nodes[voter].exchange.election.term == Term(1, 1)  # it did not start a new term
        assert federation.ballots(voter).load(1) == kept[voter]
        for task in federation.running.values():
            task.cancel()

    play(test, NAMES, settings(rounds=50), policy=CoordinatedFedAvg, folder=tmp_path, period=1.0)


def test_vote_is_saved_before_dependent_messages_are_sent():
    log = []

    class Written(MemoryVotes):
        def save(self, ballot):
            super().save(ballot)
            log.append(ballot)

    async def main():
        clock = asyncio.get_running_loop().time
        election = ElectionRunner(
            "a", Electorate(1, frozenset("abc"), ("a", "b", "c")), Written(), incarnation=1, seed=0, clock=clock
        )
        election.connect(lambda name, message: log.append((name, message)), lambda elected: None)
        task = asyncio.create_task(election.run())
        while not log:
            await asyncio.sleep(0.1)
        assert log[:2] == [("b", m.Vote(1, 1, True)), ("c", m.Vote(1, 1, True))]  # a pre-vote is not binding
        log.clear()
        election.receive("b", m.Voted(1, 1, True, True))
        assert log == [Ballot(Term(1, 1), "a"), ("b", m.Vote(1, 1, False)), ("c", m.Vote(1, 1, False))]
        log.clear()
        election.receive("c", m.Vote(1, 7, False))
        assert log == [Ballot(Term(1, 7), "c"), ("c", m.Voted(1, 7, False, True))]
        task.cancel()

    clock_run(main())


def test_member_that_claims_later_terms_too_often_is_refused():
    written = []

    class Written(MemoryVotes):
        def save(self, ballot):
            super().save(ballot)
            written.append(ballot)

    async def main():
        clock = asyncio.get_running_loop().time
        electorate = Electorate(1, frozenset("abc"), ("a", "b", "c"))
        election = ElectionRunner("a", electorate, Written(), incarnation=1, seed=0, clock=clock)
        election.connect(lambda name, message: None, lambda elected: None)
        election.begin()
        refused = 0
        for term in range(1, 101):
            try:
                election.receive("b", m.Leading(1, term, 1))
            except ProtocolError:
                refused += 1
        assert len(written) + refused == 100
        assert refused >= 85
        election.receive("c", m.Leading(1, election.term.number + 1, 1))
        assert election.obeys("c", election.term)
        election.receive("c", m.Leading(1, election.term.number, 2))  # of the same term

    clock_run(main())


def test_damaged_vote_prevents_votes_in_its_membership_version(tmp_path):
    said = []
    votes = FileVotes(tmp_path / "vote", log_to(said))
    votes.save(Ballot(Term(3, 7), "b"))
    content = bytearray((tmp_path / "vote").read_bytes())
    content[-1] ^= 1
    (tmp_path / "vote").write_bytes(content)
    assert votes.load(3) == Ballot(Term(3, LAST))
    assert len(said) == 1
    assert (
        "vote is damaged: renamed it to vote.damaged; this node takes no part in elections until the membership changes"
        in said[0]
    )
    assert votes.load(3) == Ballot(Term(3, LAST))
    assert (tmp_path / "vote.damaged").read_bytes() == content
    assert len(said) == 1


@pytest.mark.slow
def test_node_with_damaged_vote_returns_in_next_version(tmp_path):
    (tmp_path / "a.election").mkdir()
    (tmp_path / "a.election" / "vote").write_bytes(b"nonsense")

    async def test(federation):
        federation.start()
        assert await wait_for_coordinator(federation, "b", "c") in ("b", "c")
        await federation.round("b", 2)
        assert known_coordinators(federation, "a") == {None}
        for node in federation.nodes.values():
            node.exchange.election.change(Electorate(2, frozenset("abc"), ("a",)))
        while known_coordinators(federation) != {"a"}:
            await asyncio.sleep(0.05)
        back = max(node.round for node in federation.nodes.values()) + 2
        await federation.round("a", back)
        assert set(federation.watch["a"].weights[back]) == set("abc")
        for task in federation.running.values():
            task.cancel()

    federation = play(test, ("a", "b", "c"), settings(rounds=500), policy=CoordinatedFedAvg, folder=tmp_path)
    assert len(federation.said["a"]) == 1


@pytest.mark.slow
def test_vote_that_cannot_be_saved_is_not_given(tmp_path):
    class Full(FileVotes):
        def save(self, ballot):
            raise OSError(28, "No space left on device")

    async def test(federation):
        kept, full = federation.ballots, Full(tmp_path / "b.election" / "vote")
        federation.ballots = lambda name: full if name == "b" else kept(name)
        federation.start()
        await asyncio.sleep(20)
        assert known_coordinators(federation) == {None}  # a's own vote is not enough
        for task in federation.running.values():
            task.cancel()

    federation = play(test, ("a", "b"), settings(rounds=1000), policy=CoordinatedFedAvg, folder=tmp_path)
    assert "cannot write this node's vote: No space left on device" in federation.said["b"][0]
    assert not (tmp_path / "b.election" / "vote").exists()
    assert federation.watch["a"].elected_at == []
    assert federation.nodes["a"].exchange.election.seen.problem == UNKNOWN
