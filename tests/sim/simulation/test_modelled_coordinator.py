"""Coordinated policies in the simulator: same results as on dictionaries, also with late or lost nodes."""

from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.node.coordination.coordinator import StepResult
from p2pfl.policies import make_policy
from p2pfl.policy import Submission
from p2pfl.protocols.election import Term
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.protocols.wire.payload import encode_assignment, encode_submission
from p2pfl.sim.scenario.network import Network
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.modelled_coordinator import Leader, ModelledSum
from p2pfl.sim.simulation.plan import plan
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory
from tests.support.depth import pairs, spread
from tests.support.simulated import run

NAMES = [f"node-{k}" for k in range(6)]
TASKS = {name: make_task("concept-shift", {}, Part(k, 6), 0) for k, name in enumerate(NAMES)}
POLICIES = {
    "coordinated-fedavg": {},
    "coordinated-fedprox": {},
    "cfl": {"epsilon_1": 0.7, "epsilon_2": 0.3, "relative": True},
    "matfl": {"neighbours": 2},
    "fedpref": {"epsilon": 0.7, "relative": True, "patience": 1},
}
SMALL = {"nodes": 6, "rounds": 6, "task": {"name": "concept-shift"}, "trainer": "one-by-one", "deadline": 8.0}


def scenario(policy="fedpref", **changes):
    return resolve(SMALL | {"policy": {"name": policy, **POLICIES.get(policy, {})}} | changes, [], "test", ".").runs[0]


def on_dictionaries(policy="fedpref", rounds=6, **options):
    cast, _ = run_in_memory(
        {name: make_policy(policy, POLICIES.get(policy, {})) for name in NAMES}, TASKS, rounds, **options
    )
    return {name: actor.params.tobytes() for name, actor in cast.items()}


def params(nodes):
    return {name: node.me.params.tobytes() for name, node in nodes.items()}


def coordination_of(simulation):
    return simulation.nodes["node-0"].exchange.participant.coordination


WORLDS = {
    "instant": {},
    "latency": {"network": {"latency": [0.01, 0.3]}},
    "slow nodes, bandwidth": {
        "network": {"latency": 0.03, "bandwidth": 5000.0, "jitter": 0.1},
        "compute": {"slowdown": [1.0, 3.0]},
    },
    "a ring, which does not matter": {"topology": {"name": "ring"}},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "world"), dict.fromkeys([*pairs(POLICIES, WORLDS), *(("fedpref", world) for world in WORLDS)])
)
def test_coordinated_simulation_equals_run_in_memory(policy, world):
    result = run(scenario(policy, **WORLDS[world]))
    assert params(result.nodes) == on_dictionaries(policy)
    assert result.expired == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_coordinated_modelled_equals_wire_in_models_and_bytes(policy):
    modelled, wire = (run(scenario(policy, fidelity=fidelity)) for fidelity in ("modelled", "wire"))
    assert params(modelled.nodes) == params(wire.nodes)
    assert modelled.expired == wire.expired == 0
    for kind in ("models", "submit", "assigned"):
        sent, received = (
            [
                sum(node.exchange.traffic.as_dict()[way][kind] for node in result.nodes.values())
                for result in (modelled, wire)
            ]
            for way in ("sent", "received")
        )
        assert sent[0] == sent[1] == received[0] == received[1] > 0  # in total: different nodes coordinate
    assert not any(node.exchange.rejected for node in wire.nodes.values())
    (elections,) = wire.recorder.elections().values()
    assert len(elections["time"]) == 6
    assert {len(set(elections[column])) for column in ("membership_version", "term", "coordinator")} == {1}
    assert modelled.recorder.elections() == {}


SUMS = {"secure_sums": True, "deadline": 16.0}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["coordinated-fedavg", "ditto"])
def test_secure_sums_modelled_equal_wire_in_models_and_bytes(policy):
    modelled, wire = (run(scenario(policy, fidelity=fidelity, **SUMS)) for fidelity in ("modelled", "wire"))
    assert params(modelled.nodes) == params(wire.nodes)
    for kind in ("models", "submit", "assigned"):
        sent, received = (
            [
                sum(node.exchange.traffic.as_dict()[way][kind] for node in result.nodes.values())
                for result in (modelled, wire)
            ]
            for way in ("sent", "received")
        )
        assert sent[0] == sent[1] == received[0] == received[1] > 0
    assert not any(node.exchange.rejected for node in wire.nodes.values())


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["coordinated-fedprox", "apfl", "per-fedavg"])
def test_secure_sums_change_models_by_rounding_only(policy):
    secure, plain = (run(scenario(policy, **changes)) for changes in (SUMS, {}))
    for name in NAMES:
        np.testing.assert_allclose(secure.nodes[name].me.params, plain.nodes[name].me.params, rtol=0, atol=1e-5)
    assert params(secure.nodes) != params(plain.nodes)


@pytest.mark.slow
def test_secure_sums_take_the_time_of_their_messages():
    """Each of the four steps takes a round trip."""
    fast, slow = (run(scenario("coordinated-fedavg", network={"latency": far}, **SUMS)) for far in (0.0, 0.1))
    assert params(fast.nodes) == params(slow.nodes)
    plain = run(scenario("coordinated-fedavg", network={"latency": 0.1}, deadline=16.0))
    assert slow.virtual_s - plain.virtual_s == pytest.approx(6 * 4 * 2 * 0.1)


@pytest.mark.slow
def test_members_whose_messages_are_lost_drop_out_of_a_secure_sum():
    """Each mean is of all members or of those that are left, but never of fewer than the threshold."""
    network = {"latency": 0.01, "loss": 0.03}
    result = run(scenario("coordinated-fedavg", network=network, rounds=12, **SUMS | {"secure_threshold": 4}))
    edges = result.recorder.edges_table()
    rounds_of_nodes = np.unique(np.stack([edges["round"], edges["dst"]]), axis=1, return_counts=True)[1] + 1
    assert set(rounds_of_nodes.tolist()) <= {4, 5, 6}
    assert len(set(rounds_of_nodes.tolist())) > 1
    assert all(node.round == 12 for node in result.nodes.values())


def test_members_without_samples_do_not_count_for_the_threshold():
    """Three of four have to come; of these two have samples."""
    network = SimpleNamespace(settings=SimpleNamespace(secure_threshold=0), peers=range(4))
    owner = SimpleNamespace(network=network, encoder=SimpleNamespace(layout=SimpleNamespace(size=2)))
    samples, results = {"a": 5, "b": 5, "c": 0, "d": 0}, []
    submissions = [Submission(name, 1, np.zeros(2, np.float32), count) for name, count in samples.items()]
    ModelledSum(owner, submissions, results.append).begin()
    assert results == [StepResult({}, {}, {})]


def test_scenario_refuses_secure_sums_with_policy_that_compares():
    with pytest.raises(ConfigurationError, match="the policy FedPref compares the models that are submitted"):
        run(scenario("fedpref", **SUMS))
    with pytest.raises(ConfigurationError, match="secure sums hide the models"):
        scenario("coordinated-fedavg", robust="median", **SUMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "trainer", "task"),
    [
        ("fedavg", "one-by-one", {"name": "digits", "labels": 3}),  # of unequal numbers of samples
        ("fedavg", "stacked", {"name": "digits", "labels": 3}),
        ("fedprox", "one-by-one", {"name": "concept-shift"}),
        ("fedprox", "stacked", {"name": "concept-shift"}),
    ],
)
def test_coordinated_mean_equals_mean_on_complete_graph(policy, trainer, task):
    """Equality for equal and unequal sample counts: bit for bit, except means computed in one stack.

    Some processors round stacked sums differently from the sum of a single mean.
    """
    one, other = (run(scenario(name, trainer=trainer, task=task)) for name in (policy, f"coordinated-{policy}"))
    for name in NAMES:
        for values in (lambda node: node.me.params, lambda node: node.early_stopping.best):
            mine, theirs = values(one.nodes[name]), values(other.nodes[name])
            if trainer == "stacked":
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
            else:
                assert mine.tobytes() == theirs.tobytes()


@pytest.mark.slow
def test_coordinated_trace_ignores_order_of_nodes():
    digests = {
        run(scenario(network={"latency": [0.01, 0.3]}), order=order).recorder.trace.digest()
        for order in (None, [3, 1, 0, 5, 4, 2])
    }
    assert len(digests) == 1


@pytest.mark.slow
def test_submissions_and_assignments_count_as_models():
    result = run(scenario("matfl"))
    size = OVERHEAD + 4 * TASKS["node-0"].layout.size
    weights = len(encode_assignment(dict.fromkeys(NAMES, 1.0), {}))
    for name, node in result.nodes.items():
        traffic = node.exchange.traffic
        to_and_from = (0, 5 * 6) if name == "node-0" else (6, 0)  # submissions: sent, received
        assert (traffic.sent["submit"], traffic.received["submit"]) == tuple(n * size for n in to_and_from)
        assert (traffic.received["assigned"], traffic.sent["assigned"]) == tuple(n * (size + weights) for n in to_and_from)
        assert traffic.sent["models"] == traffic.received["models"] == sum(to_and_from)
        assert traffic.sent_in_rounds == traffic.sent["submit"] + traffic.sent["assigned"]
        assert node.peers.budget_tracker.round_models == to_and_from[0]
    table = result.recorder.rounds_table()
    assert table["bytes_in"].sum() == table["bytes_out"].sum() == 5 * 6 * (2 * size + weights)


@pytest.mark.slow
def test_submission_contains_start_once_and_previous_extras():
    result = run(scenario("fedpref"))
    node = result.nodes["node-1"]
    model = 4 * node.me.layout.size
    sent = [OVERHEAD + 2 * model]  # the first submission, with its start model
    extras = {"cluster": np.zeros(0, np.int64), "figures": np.zeros(4)}
    least = OVERHEAD + model + len(encode_submission({}, extras))
    splits = (node.exchange.traffic.sent["submit"] - sum(sent) - 5 * least) / 8  # 8 bytes for each part of a cluster's name
    assert splits == int(splits) > 0


def test_coordinated_edges_show_contributions_without_bytes():
    result = run(scenario("coordinated-fedavg", rounds=2))
    edges = result.recorder.edges_table()
    assert len(edges["src"]) == 2 * 6 * 5
    assert (edges["src"] != edges["dst"]).all()
    assert edges["weight"] == pytest.approx(1 / 6)
    assert not edges["bytes"].any()  # they arrived mixed into one model


# Deadlines


def delayed(simulation, name, round, seconds):
    """Delay one node's submission of a round, or drop it (None)."""
    exchange = simulation.nodes[name].exchange
    submit = exchange.submit

    async def late(submission: Submission):
        if submission.round == round:
            if seconds is None:
                exchange.peer.reach(round)
                exchange.participant.assigned_in = None
                return None
            future = simulation.loop.create_future()
            simulation.loop.call_later(seconds, future.set_result, None)
            await future
        return await submit(submission)

    exchange.submit = late


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "name"),
    [*((policy, "node-4") for policy in POLICIES), *((policy, "node-0") for policy in spread(POLICIES, 2))],
)
def test_late_participant_is_left_out_and_informed(policy, name):
    simulation = Simulation(scenario(policy))
    delayed(simulation, name, 2, 4.5)  # the coordinator waits for 4 seconds, participants for 8
    result = simulation.run()
    assert result.expired == 0  # it was informed, and all others got their assignments in time
    assert params(result.nodes) == on_dictionaries(policy, absent={2: [name]})


@pytest.mark.slow
def test_coordinator_waits_for_submission_before_deadline():
    simulation = Simulation(scenario())
    delayed(simulation, "node-4", 2, 3.9)
    assert params(simulation.run().nodes) == on_dictionaries()


@pytest.mark.slow
def test_coordinator_does_not_wait_for_node_a_round_ahead():
    simulation = Simulation(scenario("cfl"))
    delayed(simulation, "node-4", 2, None)
    result = simulation.run()
    assert result.virtual_s < 6 + 2  # a second of training each round, and no deadline
    assert params(result.nodes) == on_dictionaries("cfl", absent={2: ["node-4"]})


@pytest.mark.slow
def test_coordinator_waits_only_once_for_missing_node():
    simulation = Simulation(scenario(rounds=6))
    exchange = simulation.nodes["node-4"].exchange
    submit = exchange.submit

    async def silent(submission):
        if submission.round > 1:
            exchange.peer.reach(submission.round)
            await simulation.loop.create_future()
        return await submit(submission)

    exchange.submit = silent
    others = [simulation.nodes[name] for name in NAMES if name != "node-4"]
    ended = []
    for node in others:
        finish = node.exchange.finish
        node.exchange.finish = lambda finish=finish: (ended.append(simulation.loop.now), finish())
    with pytest.raises(BaseException, match="node-4"):  # it never ends
        simulation.run()
    assert ended == [6 + 4.0] * 5  # six rounds of a second, and one deadline of the coordinator
    assert {node.round for node in others} == {6}


@pytest.mark.slow
def test_coordinator_does_not_wait_for_stopped_nodes():
    result = run(scenario("coordinated-fedavg", rounds=40, patience=2, network={"latency": 0.01}))
    rounds = {node.round for node in result.nodes.values()}
    assert len(rounds) > 1
    assert result.expired == 0
    assert result.virtual_s < 1.03 * max(rounds) + 1  # a second and two latencies for each round, and no deadline of 4


@pytest.mark.slow
def test_coordinated_run_with_lost_frames_completes():
    result = run(scenario("fedpref", rounds=12, network={"latency": 0.01, "loss": 0.1}))
    assert result.expired > 0
    assert all(node.round == 12 for node in result.nodes.values())
    assert all(np.isfinite(node.me.params).all() for node in result.nodes.values())


# A change of coordinator


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_successor_continues_from_participants_extras(policy):
    simulation = Simulation(scenario(policy))
    coordination = coordination_of(simulation)
    terms = [
        Leader(Term(1, 1), "node-0"),
        Leader(Term(1, 2), "node-3"),
        Leader(Term(1, 3), "node-0"),
    ]  # the last coordinator knows an older state
    coordination.leader = lambda: terms[min(2, (coordination.network.fastest - 1) // 2)]
    assert params(simulation.run().nodes) == on_dictionaries(policy)


@pytest.mark.slow
def test_coordinated_nodes_without_coordinator_train_alone():
    simulation = Simulation(scenario("coordinated-fedavg"))
    coordination_of(simulation).leader = lambda: None
    alone = run(scenario("local"))
    assert params(simulation.run().nodes) == params(alone.nodes)


@pytest.mark.slow
def test_submission_of_older_term_is_refused():
    simulation = Simulation(scenario(network={"latency": 0.5}))
    coordination = coordination_of(simulation)
    # The term ends while the submissions of round 2 are on their way.
    coordination.leader = lambda: (
        Leader(Term(1, 1), "node-0") if simulation.loop.now < 3.25 else Leader(Term(1, 2), "node-1")
    )
    result = simulation.run()
    assert result.expired == 0
    assert params(result.nodes) == on_dictionaries(absent={2: NAMES})


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "asynchronous"}, 'needs mode = "synchronous"'),
        ({"codec": {"name": "float16"}}, 'needs codec.name = "float32"'),
        ({"policy_by_group": {"0": {"epochs": 2}}}, "policy_by_group cannot be used"),
    ],
)
def test_coordinated_policy_refuses_unsupported_options(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        Simulation(scenario(**changes))


@pytest.mark.slow
@pytest.mark.parametrize(("bandwidth", "enough"), [(40_000.0, False), (100_000.0, True)])
def test_note_names_lines_that_are_too_slow_for_elections(bandwidth, enough):
    """Messages show whether the coordinator keeps its lease: if not, nodes submit again, and more models are sent."""
    changes = {"nodes": 5, "rounds": 3, "deadline": 20.0, "network": {"latency": 0.05, "bandwidth": bandwidth}}
    slow = scenario("coordinated-fedavg", task={"name": "digits", "samples": 20}, **changes)
    notes = [note for note in plan(slow).notes if "coordinator's line" in note]
    assert len(notes) == (0 if enough else 1)
    modelled, messages = (
        sum(node.exchange.traffic.sent["models"] for node in run(replace(slow, fidelity=how)).nodes.values())
        for how in ("modelled", "wire")
    )
    assert modelled == 2 * 4 * 3
    assert (messages == modelled) is enough


def test_note_on_elections_names_the_bandwidth_that_suffices():
    slow = scenario("coordinated-fedavg", network={"bandwidth": 50.0})
    (note,) = [note for note in plan(slow).notes if "coordinator's line" in note]
    needed = float(note.split("network.bandwidth to ")[1].split(" ")[0].replace(",", ""))
    assert plan(replace(slow, network=Network(bandwidth=needed))).notes == plan(scenario()).notes
    for other in (replace(slow, fidelity="wire"), replace(slow, policy={"name": "random"})):
        assert note not in plan(other).notes
