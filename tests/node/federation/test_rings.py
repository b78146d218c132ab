"""Federations with rings: members that come and go on virtual time, links by round, guests, and what is refused."""

import asyncio
from contextlib import ExitStack
from hashlib import sha256
from math import sqrt
from pathlib import Path
from types import SimpleNamespace

import pytest

from p2pfl._util.shared_dict import SharedDict
from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.connectivity import Supervisor
from p2pfl.node.exchange.base import NeighbourRoles
from p2pfl.node.exchange.message_exchange import message_exchange
from p2pfl.node.federation import agreement, loading
from p2pfl.node.federation.agreement import MANY, check_topology
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.federation.rule_links import GUEST_SECONDS, GUESTS, RECENT, LinkKeeper, RuleLinks
from p2pfl.node.folder import config
from p2pfl.node.node import Node
from p2pfl.node.peering.peering_config import DialLimits, Guard, PeeringOptions
from p2pfl.node.runtime.assembly import Assembly, LogFetch
from p2pfl.node.settings import Settings
from p2pfl.policies.dac import Dac
from p2pfl.policies.random import Random
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint
from p2pfl.protocols.membership.federation_file import Federation as FederationFile
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.transports.handshake import ENTRIES_LIMIT
from p2pfl.protocols.transports.in_process import MemoryTransport
from p2pfl.protocols.wire import messages as m
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.simulation.clock import run
from p2pfl.topologies.rings import RingRule
from tests.support.federation import Federation, Watch
from tests.support.logs import log_to

TASK = 'task = {name = "concept-shift"}\npolicy = {name = "random"}\n'
ADMISSION = Identity.from_seed(bytes(32))
FILE = FederationFile.sign({"name": "test", "rounds": 6, "nonce": "the same places in each run"}, ADMISSION)
KEYS = [Identity.from_seed(bytes([k % 256, k // 256]) + bytes(30)).public for k in range(1, 1200)]


def log_of(names, file=FILE):
    log = Membership(file)
    for k, name in enumerate(names):
        log.append(ADMISSION, "add", name, KEYS[k])
    return log


# Members on virtual time


class ProvingTransport(MemoryTransport):
    """Transport whose dialler shows a member that does not know it the entries of its log, as it does within TLS."""

    def __init__(self, federation, name):
        super().__init__(federation.network, name)
        self.federation = federation

    async def dial(self, address, key, joining=False):
        link = await super().dial(address, key, joining)
        own, other = (self.federation.logs[name] for name in (self.name, address.removeprefix("memory:")))
        if other.refusal(self.federation.keys[self.name].public) == "stranger":
            other.extend(own.after(other.membership_version, ENTRIES_LIMIT))
        return link


class Ringed(Federation):
    """Federation whose members each have a copy of the log, and the peers that their rule gives them."""

    def __init__(self, names, topology, later=(), reported=False, **options):
        super().__init__(names, period=1.0, proven=True, **options)
        self.topology, self.reported = topology, reported
        self.log = Membership(FILE)
        for name in self.names:
            if name not in later:
                self.log.append(ADMISSION, "add", name, self.keys[name].public)
        self.logs, self.around, self.graphs, self.syncs = {}, {}, {}, {}

    def exchange(self, name, task=None, agreed=None):
        self.incarnations[name] += 1
        self.policies[name] = self.policy()
        log = self.logs[name] = self.log_of(name)
        ready = SimpleNamespace(
            membership=log,
            agreement=SimpleNamespace(edges="all", topology=self.topology, seed=self.settings.seed),
            config=SimpleNamespace(
                name=name, addresses={} if self.reported else {other: f"memory:{other}" for other in self.names}
            ),
            folder=Path("nowhere"),
        )
        around = self.around[name] = Neighbourhood(ready, ())
        guard, members = Guard(log, asyncio.get_running_loop().time), around.members()
        exchange = message_exchange(
            name,
            NeighbourRoles(
                members=members,
                sources=sorted(around.sources(members)),
                sparse=around.sparse,
                known=around.known,
                has_log=around.has_log,
                around=around.around if around.knows_graph else None,
            ),
            identity=self.keys[name],
            transport=ProvingTransport(self, name),
            incarnation=self.incarnations[name],
            generation=self.incarnations[name],
            federation=FILE.id,
            task=self.tasks[name],
            trainer=self.trainers[name],
            settings=self.settings,
            agreed={},
            topology=self.topology,
            options=PeeringOptions(
                access=guard, guard=guard, period=1.0, dialling=DialLimits(), log=log_to(self.said[name])
            ),
        )
        if around.needs_log:
            exchange.peering.gossip.fetching = True
        sync = MembershipSync(ready, self.keys[name].public, around, exchange.peering, log=log_to(self.said[name]))
        self.syncs[name] = sync
        keeper = LinkKeeper(
            around.links,
            exchange.peering,
            name_of=log.name_of,
            follow=sync.follow,
            deadline=self.settings.deadline,
        )
        for other in self.names if self.reported else ():
            exchange.peering.found(self.keys[other].public, f"memory:{other}", "mdns")
        self.graphs[name] = keeper if around.links.rule.changing else None
        return exchange

    def log_of(self, name):
        """Return the log with which a member starts."""
        return self.log.copy()

    def make(self, name, **options):
        exchange = self.exchange(name)
        return Node(
            name,
            self.names,
            task=self.tasks[name],
            policy=self.policies[name],
            trainer=self.trainers[name],
            exchange=exchange,
            settings=self.settings,
            observers=[self.watch[name], LogFetch(exchange.peering.gossip)],
            rounds=self.graphs[name],
        )

    def connected(self, name):
        return {peer.name for peer in self.nodes[name].exchange.peering.introduced_peers()}

    def neighbours(self, name):
        return self.around[name].links.neighbours()

    async def until(self, condition):
        while not condition():
            await asyncio.sleep(0.1)


def ringed(test, names, topology, later=(), **options):
    """Run `test(federation)` on virtual time."""

    async def main():
        federation = Ringed(names, topology, later, **options)
        async with asyncio.timeout(2000):  # virtual seconds
            await test(federation)

    run(main())


def expected(federation, name):
    """Return a member's neighbours by its own log."""
    rule = RingRule(federation.settings.seed, False, 8)
    rule.change(federation.logs[name].added)
    return rule.neighbours(name, 1)


NAMES = [f"n{k:03d}" for k in range(64)]


@pytest.mark.slow
def test_members_form_learn_take_a_newcomer_and_drop_a_revoked_one():
    settings = Settings(rounds=12, deadline=20.0, members=60)
    new, gone = NAMES[-1], NAMES[7]

    async def test(federation):
        present = NAMES[:-1]
        federation.start(*present)
        await federation.until(lambda: all(federation.neighbours(name) <= federation.connected(name) for name in present))
        await federation.round(NAMES[0], 2)
        federation.log = federation.logs[NAMES[0]]
        federation.log.append(ADMISSION, "add", new, federation.keys[new].public)
        federation.start(new)
        newcomer = federation.neighbours(new)
        assert 2 <= len(newcomer) <= 8
        await federation.until(lambda: newcomer <= federation.connected(new))
        await federation.until(lambda: all(new in federation.connected(name) for name in newcomer))
        await federation.round(new, federation.nodes[NAMES[0]].round + 2)
        federation.logs[NAMES[0]].append(ADMISSION, "remove", gone, federation.keys[gone].public)
        rest = [name for name in NAMES if name != gone]
        await federation.until(lambda: all(gone not in federation.nodes[name].exchange.peers for name in rest))
        await federation.kill(gone)
        await federation.done(*rest)
        for name in rest:
            assert len(federation.nodes[name].exchange.peers) <= 8 + GUESTS
            assert federation.neighbours(name) == expected(federation, name)
            assert gone not in federation.neighbours(name)
            assert any(federation.partners(name, round) for round in federation.watch[name].weights)
        assert federation.partners(new, max(federation.watch[new].weights)) <= federation.neighbours(new)

    ringed(test, NAMES, {"name": "rings", "degree": 8}, later=[new], settings=settings, policy=Random)


def test_entry_makes_no_member_visit_all_others(monkeypatch):
    """Each looks for the members in the entry only, in its log and on its rings, whether it is their neighbour or not."""
    settings = Settings(rounds=3, deadline=20.0, members=30)
    new, gone, visits = NAMES[29], NAMES[7], []

    async def test(federation):
        present = NAMES[:29]
        federation.start(*present)
        await federation.until(lambda: all(federation.neighbours(name) <= federation.connected(name) for name in present))
        sorts, iterates = Membership.members.fget, SharedDict.__iter__
        monkeypatch.setattr(Membership, "members", property(lambda log: visits.append("members") or sorts(log)))
        monkeypatch.setattr(SharedDict, "__iter__", lambda made: visits.append("table") or iterates(made))
        first = federation.logs[NAMES[0]]
        first.append(ADMISSION, "add", new, federation.keys[new].public)
        first.append(ADMISSION, "remove", gone, federation.keys[gone].public)
        rest = [name for name in present if name != gone]
        await federation.until(lambda: all(federation.logs[name].membership_version == 31 for name in rest))
        assert visits == []
        monkeypatch.undo()
        assert all(federation.neighbours(name) == expected(federation, name) for name in rest)
        assert new in federation.neighbours(rest[0]) | set().union(*map(federation.neighbours, rest))
        for name in present:
            await federation.kill(name)

    ringed(test, NAMES[:30], {"name": "rings", "degree": 8}, later=[new], settings=settings, policy=Random)


class Beginning(Ringed):
    """Federation whose newcomers begin with a checkpoint."""

    def log_of(self, name):
        if name != NAMES[-1]:
            return super().log_of(name)
        told = self.around[NAMES[0]].told(name)
        log = Membership(FILE)
        log.begin(checkpoint.read(checkpoint.make(self.log, ADMISSION, [name, *told]), FILE))
        return log


@pytest.mark.slow
def test_newcomer_that_begins_with_a_checkpoint_learns_with_its_neighbours_before_it_has_the_log(monkeypatch):
    monkeypatch.setattr(m.MissingEntries, "LIMIT", 2000)  # eleven entries
    settings = Settings(rounds=40, deadline=20.0, members=60)
    new, gone = NAMES[-1], NAMES[9]

    async def main():
        federation = Beginning(NAMES, {"name": "rings", "degree": 8}, [new], settings=settings, policy=Random)
        present = NAMES[:-1]
        federation.start(*present)
        await federation.round(NAMES[0], 2)
        first = federation.logs[NAMES[0]]
        first.append(ADMISSION, "add", new, federation.keys[new].public)
        federation.log = first
        federation.start(new)
        log, near = federation.logs[new], federation.around[NAMES[0]].around(new)
        assert not log.is_complete
        assert federation.neighbours(new) == near
        assert near <= log.members.keys()
        assert len(log.members) <= 10
        await federation.until(lambda: federation.watch[new].weights)  # it has learned
        assert not log.is_complete
        assert log.stored < 40
        first.append(ADMISSION, "remove", gone, federation.keys[gone].public)
        await federation.until(lambda: federation.logs[new].refusal(federation.keys[gone].public) == "revoked")
        assert not log.is_complete
        await federation.until(lambda: log.is_complete)
        assert log.encode() == first.encode()
        assert federation.neighbours(new) <= {*NAMES} - {gone, new}
        assert any("the membership log is complete: 63 members" in line for line in federation.said[new])
        await federation.kill(gone)
        await federation.done(*(name for name in NAMES if name != gone))
        assert not any("is a new member" in line for line in federation.said[new])

    async def limited():
        async with asyncio.timeout(2000):
            await main()

    run(limited())


class Changing(Watch):
    """Record of the neighbours by the rule in each round of a node."""

    def __init__(self, federation, name):
        super().__init__()
        self.federation, self.name, self.near = federation, name, {}

    def merged(self, node, merge):
        super().merged(node, merge)
        self.near[node.round] = self.federation.around[self.name].links.rule.neighbours(self.name, node.round)


@pytest.mark.slow
@pytest.mark.parametrize("deadline", [60.0, 5.0])
def test_newcomer_to_changing_rings_waits_for_the_log_and_has_the_same_neighbours_as_others_say(monkeypatch, deadline):
    monkeypatch.setattr(m.MissingEntries, "LIMIT", 600)  # three entries
    monkeypatch.setattr(checkpoint, "MOST_MEMBERS", 8)
    settings = Settings(rounds=40, deadline=deadline, members=16)
    new, present = NAMES[-1], NAMES[:17]

    async def limited():
        federation = Beginning([*present, new], {"name": "changing-rings", "degree": 4}, [new], settings=settings,
                               policy=Everyone)  # fmt: skip
        federation.watch[new] = watch = Changing(federation, new)
        async with asyncio.timeout(2000):
            federation.start(*present)
            await federation.round(NAMES[0], 2)
            federation.log = first = federation.logs[NAMES[0]]
            first.append(ADMISSION, "add", new, federation.keys[new].public)
            federation.start(new)
            log = federation.logs[new]
            assert (log.stored, log.is_complete) == (0, False)
            await federation.until(lambda: federation.nodes[new].exchange.start_wait.over)
            late = [line for line in federation.said[new] if "has not arrived within the deadline of 5 s" in line]
            if deadline < 10:  # the log takes six pieces, one in about 3 s
                assert len(late) == 1
                assert not log.is_complete
            else:
                assert not late
                assert log.is_complete
            await federation.done()
        assert log.encode() == first.encode()
        rule = federation.around[NAMES[0]].links.rule
        same = [watch.near[round] == rule.neighbours(new, round) for round in sorted(watch.near)]
        assert all(same) is (deadline > 10)
        assert all(same[-10:])
        if deadline > 10:
            met = [federation.partners(new, round) for round in sorted(watch.weights)]
            assert all(partners <= watch.near[round] for partners, round in zip(met, sorted(watch.weights), strict=True))
            assert sum(map(len, met)) > 0.9 * sum(map(len, watch.near.values()))

    run(limited())


class Receiving(Watch):
    """Record of the bytes of all but learning that a node had received when its first round ended."""

    control = None

    def merged(self, node, merge):
        super().merged(node, merge)
        if self.control is None:
            self.control = node.exchange.traffic.received["control"]


@pytest.mark.slow
def test_newcomer_among_many_receives_little_before_its_first_round_has_ended():
    """It waits for a member that is off, for long enough to fetch the log of 2,000 members several times."""
    settings = Settings(rounds=60, deadline=20.0, members=1)
    new, many = "new", [f"m{k:04d}" for k in range(2000)]
    log = Membership(FILE)
    for name in (*many, new):
        log.append(ADMISSION, "add", name, Identity.from_seed(RandomStreams(0, name).digest(0, "key")).public)
    rule = RingRule(settings.seed, False, 8)
    rule.change(log.added)
    near = sorted(rule.neighbours(new, 1))
    begun = checkpoint.make(log, ADMISSION, [new, *near])

    class Few(Ringed):
        """The newcomer and its neighbours run, all but one."""

        def log_of(self, name):
            if name != new:
                return log.copy()
            own = Membership(FILE)
            own.begin(checkpoint.read(begun, FILE))
            return own

    async def limited():
        federation = Few([new, *near], {"name": "rings", "degree": 8}, [new, *near], settings=settings, policy=Random)
        federation.watch[new] = watch = Receiving()
        async with asyncio.timeout(2000):
            federation.start(new, *near[1:])
            await federation.until(lambda: watch.control is not None)
            assert asyncio.get_running_loop().time() > settings.deadline
            assert federation.logs[new].stored == 0
            assert len(FILE.data) + len(begun) + watch.control <= 64 << 10
            await federation.until(lambda: federation.logs[new].is_complete)
            assert federation.logs[new].encode() == log.encode()
            await federation.done()

    assert len(log.encode()) > 5 * (64 << 10)
    run(limited())


@pytest.mark.slow
def test_links_of_changing_rings_are_made_for_a_round_and_let_go():
    """Each member learns with its neighbours of the round, and never holds the links of more than a few rounds."""
    settings = Settings(rounds=10, deadline=20.0, members=40)

    async def test(federation):
        federation.start()
        most = 0
        while not all(task.done() for task in federation.running.values()):
            most = max(most, *(len(node.exchange.peers) for node in federation.nodes.values()))
            await asyncio.sleep(0.25)
        await federation.done()
        assert most <= 5 * 4 + GUESTS  # rounds t - 2 to t + 1, and one of members ahead
        served = whole = 0
        for name in federation.names:
            met = set()
            for round in range(1, 11):
                allowed = federation.around[name].links.rule.neighbours(name, round)
                partners = federation.partners(name, round)
                assert partners <= allowed
                met |= partners
                served, whole = served + len(partners), whole + len(allowed)
            assert len(met) > 12
            rejected = federation.nodes[name].exchange.rejected
            assert not rejected["not a neighbour"]
        assert served > 0.95 * whole

    ringed(test, NAMES[:40], {"name": "changing-rings", "degree": 4}, settings=settings, policy=Everyone)


class Everyone(Random):
    """Policy that fetches from all neighbours of the round."""

    def __init__(self):
        super().__init__(neighbours=64)


@pytest.mark.slow
def test_addresses_and_conduct_of_members_are_kept_while_they_are_no_peers():
    """All addresses are reported once, at the start, when most members are no peers."""
    settings = Settings(rounds=24, deadline=20.0, members=10)

    async def test(federation):
        federation.start()
        await federation.round("n000", 2)
        exchange = federation.nodes["n000"].exchange
        bad = min(federation.neighbours("n000"))
        exchange.conduct.distrust = 1
        exchange.conduct.penalise(bad, "refused models")
        assert bad in exchange.view.left_out
        await federation.until(lambda: bad not in exchange.peers)
        await federation.until(lambda: bad in exchange.peers)
        assert bad in exchange.view.left_out
        assert bad not in exchange.view.neighbours
        assert exchange.conduct.score(bad) == 1
        await federation.until(lambda: bad not in exchange.peers)
        assert bad in exchange.peering.released
        federation.logs["n000"].append(ADMISSION, "remove", bad, federation.keys[bad].public)
        assert bad not in {*exchange.peering.released, *exchange.view.left_out}
        await federation.kill(bad)
        rest = [name for name in federation.names if name != bad]
        await federation.done(*rest)
        for name in rest:  # all links were made to addresses that were reported before
            assert all(federation.partners(name, round) for round in range(2, settings.rounds + 1))
        assert bad not in set().union(*(federation.partners("n000", round) for round in range(4, settings.rounds + 1)))

    ringed(test, NAMES[:16], {"name": "changing-rings", "degree": 2}, reported=True, settings=settings, policy=Everyone)


@pytest.mark.slow
def test_member_that_returns_after_rounds_is_a_guest_and_catches_up():
    settings = Settings(rounds=30, deadline=10.0, members=10)

    async def test(federation):
        federation.start()
        await federation.round("n003", 3)
        await federation.kill("n003")
        await federation.round("n000", 14)
        federation.start("n003")  # it has lost its disk, and begins with the links of round 1
        await federation.done()
        assert federation.watch["n003"].skips[0][1] > 10
        rounds = federation.watch["n003"].weights
        assert any(federation.partners("n003", round) for round in rounds if round > 14)

    ringed(test, NAMES[:20], {"name": "changing-rings", "degree": 4}, settings=settings, policy=Random)


@pytest.mark.slow
def test_member_that_is_no_neighbour_is_a_guest_for_a_time():
    """It may come because it knows another log. It is no source, and learns the entries that it lacks."""
    settings = Settings(rounds=60, deadline=10.0, members=10)

    async def test(federation):
        federation.start()
        names = federation.names
        await federation.until(lambda: all(federation.neighbours(name) == federation.connected(name) for name in names))
        host = "n000"
        guest = next(name for name in names[1:] if name not in federation.neighbours(host))
        peering = federation.nodes[guest].exchange.peering
        now = asyncio.get_running_loop().time()
        federation.around[guest].links.receive(host, now)
        federation.syncs[guest].follow()
        peering.set_way(host, dialled=True, source=False)
        await federation.until(lambda: host in federation.connected(guest) and guest in federation.connected(host))
        assert guest not in federation.nodes[host].exchange.view.neighbours
        peering.release(host)  # otherwise it would come again and again
        await federation.until(lambda: guest not in federation.nodes[host].exchange.peers)
        assert 19 < asyncio.get_running_loop().time() - now < 25
        assert federation.connected(host) == federation.neighbours(host)
        await federation.done()

    ringed(test, NAMES[:10], {"name": "rings", "degree": 2}, settings=settings, policy=Random)


@pytest.mark.slow
def test_dac_selects_among_the_candidates_of_the_round():
    settings = Settings(rounds=6, deadline=20.0, members=20)

    async def test(federation):
        federation.start()
        await federation.done()
        for name in federation.names:
            for round in range(1, 7):
                assert federation.partners(name, round) <= federation.around[name].links.rule.neighbours(name, round)

    ringed(test, NAMES[:20], {"name": "changing-rings", "degree": 6}, settings=settings, policy=Dac)


# Links of a member


def links(changing=True, count=200, degree=8):
    rule = RingRule(0, changing, degree)
    rule.change({f"m{k:03d}": sha256(b"%d" % k).digest() for k in range(count)})
    return RuleLinks(rule, "m007")


def test_links_are_those_of_this_round_the_next_one_and_two_before():
    found = links()
    for round in range(2, 6):
        found.enter(round)
    around = {round: found.rule.neighbours("m007", round) for round in range(1, 8)}
    assert found.dialled() == around[5] | around[6]
    assert found.names(0.0) == around[3] | around[4] | around[5] | around[6]
    found.enter(40)
    assert found.names(0.0) == found.dialled()


def test_links_of_recent_rounds_are_few():
    found = links(degree=64, count=3000)
    for round in range(2, 6):
        found.enter(round)
    assert len(found.sources()) <= len(found.dialled()) + RECENT
    assert len(found.sources()) > 128


def test_links_of_rings_that_stay_do_not_follow_the_round():
    found = links(changing=False)
    before = found.names(0.0)
    found.enter(9)
    assert found.names(0.0) == before == found.dialled() == found.neighbours()


def test_guests_are_few_and_leave():
    found = links()
    strangers = [f"m{k:03d}" for k in range(100, 200) if f"m{k:03d}" not in found.dialled()]
    assert [found.receive(name, 0.0) for name in strangers[: GUESTS + 2]] == [True] * GUESTS + [False] * 2
    assert found.receive(strangers[0], 0.0)  # it is there
    assert set(strangers[:GUESTS]) <= found.names(GUEST_SECONDS - 1)
    assert not found.sources() & set(strangers[:GUESTS])
    assert not found.names(GUEST_SECONDS + 1) & set(strangers[:GUESTS])
    assert found.receive(strangers[GUESTS], GUEST_SECONDS + 1)


# The log


def test_place_comes_with_the_admission_and_stays_with_a_new_key():
    log = log_of(["a", "b", "c"])
    before = dict(log.added)
    assert sorted(before) == ["a", "b", "c"]
    assert len(set(before.values())) == 3
    log.append(ADMISSION, "replace", "b", KEYS[10])
    assert log.added == before
    log.append(ADMISSION, "remove", "b", KEYS[10])
    assert sorted(log.added) == ["a", "c"]
    log.append(ADMISSION, "add", "b", KEYS[11])
    assert log.added["b"] != before["b"]
    assert Membership(FILE, log.encode()).added == log.copy().added == log.added


def test_member_that_tries_a_thousand_keys_gets_neighbours_by_chance():
    """Mallory is admitted and revoked with key after key, and hopes to be a neighbour of n000, as k of n - 1 members are."""
    log = log_of(NAMES[:60])
    rule, hits = RingRule(0, False, 8), 0
    for k in range(1000):
        log.append(ADMISSION, "add", "mallory", KEYS[100 + k])
        rule.change(log.added)
        hits += "n000" in rule.neighbours("mallory", 1)
        log.append(ADMISSION, "remove", "mallory", KEYS[100 + k])
    chance = 8 / 60
    assert 0 < hits < 1000 * chance + 4 * sqrt(1000 * chance)


def test_newcomer_cannot_compute_its_place_before_it_is_admitted():
    """The token covers the signature of the admission key, so two keys sign the same entry to other places."""
    other = Identity.from_seed(bytes([9]) * 32)
    tokens = []
    for admission in (ADMISSION, other):
        log = Membership(FederationFile.sign({"name": "test", "rounds": 6}, admission))
        log.append(admission, "add", "a", KEYS[0])
        tokens.append(log.added["a"])
    assert tokens[0] != tokens[1]


# Agreement


@pytest.fixture
def alice(tmp_path):
    """The folder of a node without a federation."""
    folder = tmp_path / "alice"
    config.create(folder, "alice", "127.0.0.1:0")
    (folder / config.CONFIG).write_text(f'name = "alice"\nlisten = "127.0.0.1:0"\n{TASK}')
    return folder


@pytest.mark.slow
def test_command_creates_a_federation_with_rings(alice, capsys, tmp_path):
    create = ["federation", "create", str(alice), "--backup", str(tmp_path / "key")]
    for arguments, words in (
        (["--topology", "rings", "--set", "topology.degree=7"], "degree must be an even number from 2 to 64"),
        (["--topology", "rings", "--edge", "alice-bob"], "a topology or edges, not both"),
        (["--topology", "rings", "--set", "topology.k=2"], "topology.degree"),
        (["--topology", "rings", "--set", "topology.seed=2"], "topology.seed"),
        (["--topology", "rings", "--set", 'policy={name="coordinated-fedavg"}'], "leave the topology out"),
        (["--topology", "changing-rings", "--set", 'policy={name="dpfl"}'], "needs a topology that never changes"),
    ):
        assert main([*create, *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert main([*create, "--topology", "rings", "--set", "topology.degree=6", "--set", "members=90"]) == 0
    assert "note" not in capsys.readouterr().out
    ready = loading.load(alice)
    assert ready.agreement.topology == {"name": "rings", "degree": 6}
    layout = loading.task_of(ready).layout
    terms = agreement.terms(layout, ready.config, "", topology=ready.agreement.topology)
    assert terms["system topology"] == "no server; neighbours by rule: rings (degree = 6)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "admits", "at_once"),
    [
        (["--topology", "rings"], False, False),
        (["--edge", "alice-bob"], False, False),
        (["--topology", "rings"], True, True),
        (["--topology", "changing-rings"], False, True),
        ([], False, True),
    ],
)
def test_newcomer_fetches_the_log_after_its_first_round_unless_it_needs_it_before(
    alice, capsys, tmp_path, topology, admits, at_once
):
    assert main(["federation", "create", str(alice), "--backup", str(tmp_path / "key"), *topology]) == 0
    if not admits:
        (alice / "admission.pem").unlink()

    async def made():
        with ExitStack() as close:
            node, exchange, *_ = Assembly(loading.load(alice), log_to([]), close, Supervisor(log_to([]))).parts()
            gossip = exchange.peering.gossip
            assert gossip.fetching is at_once
            (waiting,) = [each for each in node.me.observers if isinstance(each, LogFetch)]
            waiting.restored(node)
            assert gossip.fetching is at_once  # it has done no round
            node.me.round = 1
            waiting.restored(node)
            assert gossip.fetching

    asyncio.run(made())


@pytest.mark.slow
def test_complete_federation_of_many_members_is_told_what_to_choose(alice, capsys, tmp_path):
    create = ["federation", "create", str(alice), "--backup", str(tmp_path / "key")]
    assert main([*create, "--set", f"members={MANY + 1}"]) == 0
    assert "for up to about 50; for more, create the federation with --topology rings" in capsys.readouterr().out
    tables = {"edges": "all"}
    assert agreement.many_note(tables, MANY) == ""
    assert "each of 51 members has links with all others" in agreement.many_note(tables, MANY + 1)
    for bounded in ({"topology": {"name": "changing-rings"}}, {"committee": 7}, {"edges": [["a", "b"]]}):
        assert agreement.many_note(tables | bounded, 1000) == ""
    assert agreement.many_note(tables | {"topology": {"name": "base-k"}}, 1000)  # it has links with all


@pytest.mark.slow
def test_invitation_beyond_few_members_says_what_to_choose(alice, capsys, tmp_path, monkeypatch):
    assert main(["federation", "create", str(alice), "--backup", str(tmp_path / "key")]) == 0
    capsys.readouterr()
    invite = ["invite", str(alice), "bob", "--address", "127.0.0.1:4101"]
    assert main(invite) == 0
    assert "note" not in capsys.readouterr().err
    monkeypatch.setattr(agreement, "MANY", 1)
    assert main(invite) == 0
    assert capsys.readouterr().err.count("note: each of 2 members has links with all others") == 1


def test_rings_are_among_the_names_of_a_refusal():
    with pytest.raises(ConfigurationError, match="did you mean 'rings'"):
        check_topology({"name": "ringz"})
