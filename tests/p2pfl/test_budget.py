"""Budgets: a node enforces the limits of its policy in every case."""

import asyncio
import json

import msgspec
import numpy as np
import pytest

from p2pfl.budget import BudgetTracker
from p2pfl.errors import BudgetExceededError, ConfigurationError
from p2pfl.node.federation import agreement
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.settings import Settings
from p2pfl.node.status.observer import StatusObserver
from p2pfl.node.status.text import describe
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.random import Random
from p2pfl.policy import Budget, Merge, Update
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.results import summary_metrics
from p2pfl.sim.scenario.network import Budgets
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory
from tests.support.federation import play
from tests.support.logs import log_to
from tests.support.simulated import run

NAMES = ("a", "b", "c", "d")


def models(*names, size=100):
    return [Update(name, 1, "trained", np.ones(25, np.float32), 10, size=size) for name in names]


def in_a_round(budget, **options):
    tracker = BudgetTracker(budget, **options)
    tracker.begin_round()
    return tracker


def receive(tracker, *names, size=100):
    places = tracker.reserve(names, lambda name: size)
    updates = models(*places.ids, size=size)
    tracker.release(places)
    return tracker.take(updates)


# The tracker


def test_tracker_counts_models_over_a_round():
    tracker = in_a_round(Budget(models=3))
    receive(tracker, "a", "b")
    receive(tracker, "c")
    with pytest.raises(BudgetExceededError, match="4 models in a round, but the budget is 3"):
        receive(tracker, "d")
    tracker.begin_round()
    receive(tracker, "d", "e", "f")
    assert (tracker.models, tracker.round_models) == (3, 6)


def test_tracker_in_preparation_limits_each_step():
    tracker = BudgetTracker(Budget(models=2, bytes=250))
    for _ in range(5):
        receive(tracker, "a", "b")
    with pytest.raises(BudgetExceededError, match="3 models in a preparation step, but the budget is 2"):
        receive(tracker, "a", "b", "c")
    assert (tracker.preparation_models, tracker.models, tracker.round_models) == (10, 0, 0)
    tracker.begin_round()
    receive(tracker, "a", "b")
    assert (tracker.preparation_models, tracker.models) == (10, 2)


@pytest.mark.parametrize("preparing", [True, False])
def test_tracker_counts_reserved_models(preparing):
    tracker = BudgetTracker(Budget(models=3)) if preparing else in_a_round(Budget(models=3))
    places = tracker.reserve(["a", "b"], len)
    with pytest.raises(BudgetExceededError, match="4 models"):
        tracker.reserve(["c", "d"], len)
    tracker.release(places)  # they did not arrive
    assert tracker.reserve(["d", "c"], len).ids == ["c", "d"]


def test_tracker_counts_held_models_while_array_is_alive():
    tracker = in_a_round(Budget(held=2))
    first = receive(tracker, "a", "b")
    assert (tracker.held, tracker.most_held) == (2, 2)
    kept = first[1].params
    del first
    assert tracker.held == 1
    second = receive(tracker, "c")
    with pytest.raises(BudgetExceededError, match="3 models held at once, but the budget is 2"):
        receive(tracker, "d")
    del second, kept
    assert tracker.held == 0
    receive(tracker, "d", "e")
    assert tracker.most_held == 2


def test_tracker_counts_shared_array_at_each_node():
    (update,) = models("a")
    trackers = [in_a_round(Budget(models=9)) for _ in range(2)]
    taken = [tracker.take([update])[0] for tracker in trackers]
    assert [tracker.held for tracker in trackers] == [1, 1]
    assert all(np.shares_memory(copy.params, update.params) for copy in taken)
    del taken[0]
    assert [tracker.held for tracker in trackers] == [0, 1]


def test_tracker_counts_received_and_estimated_bytes():
    tracker = in_a_round(Budget(bytes=1000))
    receive(tracker, "a", "b", size=400)
    with pytest.raises(BudgetExceededError, match="1 more model after 800 bytes, but the budget is 1000 bytes in a round"):
        receive(tracker, "c", size=400)
    tracker.begin_round()
    receive(tracker, "c", "d", size=500)
    assert (tracker.bytes, tracker.round_bytes) == (1000, 1800)


@pytest.mark.parametrize("limit", [{"models": 3}, {"held": 3}, {"bytes": 399}])
def test_refusing_tracker_admits_first_ids_that_fit(limit):
    tracker = in_a_round(Budget(**limit), refuse=True)
    updates = receive(tracker, "d", "b", "a", "c")
    assert [update.sender for update in updates] == ["a", "b", "c"]
    assert tracker.refused == 1
    assert "the budget is" in tracker.refusal
    assert receive(tracker, "e") == []
    assert tracker.refused == 2


def test_tracker_without_limits_returns_same_updates():
    tracker = in_a_round(Budget())
    updates = models("a", "b")
    tracker.release(tracker.reserve(("b", "a"), len))
    assert tracker.take(updates) is updates
    assert (tracker.models, tracker.most_held) == (2, 0)


def test_tracker_reserves_models_of_different_sizes_in_order():
    sizes = {"a": 300, "b": 500, "c": 400, "d": 100}
    tracker = in_a_round(Budget(bytes=900), refuse=True)
    assert tracker.reserve(["d", "c", "b", "a"], sizes.__getitem__).ids == ["a", "b"]
    assert tracker.reserve(["d"], sizes.__getitem__).ids == ["d"]  # in addition to the 800 reserved bytes


def test_tracker_leaves_out_oversized_models():
    tracker = in_a_round(Budget(bytes=1000), refuse=True)
    tracker.release(tracker.reserve(["a", "b", "c"], lambda name: 300))
    (small,), (large,) = models("a", size=400), models("b", size=1_000_000)
    updates = tracker.take([small, large])
    assert [update.sender for update in updates] == ["a"]
    assert tracker.bytes == 400
    assert tracker.refused == 1
    assert tracker.oversized == {"b": 1}
    assert "a model of 1000000 bytes from b" in tracker.refusal


def test_tracker_adds_the_bytes_of_received_and_assigned_models():
    tracker = in_a_round(Budget(bytes=1000), refuse=True)
    receive(tracker, "a", "b")
    receive(tracker, "c", size=150)
    for size in (200, 50, 0):  # this node coordinates itself the last time
        tracker.charge(size)
    assert (tracker.models, tracker.round_models, tracker.bytes, tracker.round_bytes) == (5, 5, 600, 600)
    assert tracker.admits(400)
    assert not tracker.admits(401)
    assert tracker.refused == 1
    tracker.begin_round()
    receive(tracker, "d")
    assert (tracker.models, tracker.round_models, tracker.bytes, tracker.round_bytes) == (1, 6, 100, 700)


def test_tracker_adds_reservations():
    tracker, held = in_a_round(Budget(bytes=1000)), in_a_round(Budget(held=3))
    places = [tracker.reserve([name], lambda name: 400) for name in "ab"]
    with pytest.raises(BudgetExceededError, match="after 800 bytes"):
        tracker.reserve(["c"], lambda name: 400)
    for each in places:
        tracker.release(each)
    tracker.reserve(["c", "d"], lambda name: 500)
    alive = receive(held, "a")
    held.reserve(["b"], len)
    with pytest.raises(BudgetExceededError, match="4 models held at once, but the budget is 3"):
        held.reserve(["c", "d"], len)
    assert len(alive) == 1


def test_tracker_leaves_out_the_largest_of_several_that_do_not_fit():
    tracker = in_a_round(Budget(bytes=300), refuse=True)
    updates = [each for name, size in (("a", 100), ("b", 150), ("c", 120)) for each in models(name, size=size)]
    assert [update.sender for update in tracker.take(updates)] == ["a", "c"]
    assert "a model of 150 bytes from b, but only 80 bytes were left" in tracker.refusal


def test_tracker_selects_only_if_not_all_fit_into_the_rest():
    def draw(purpose):
        raise AssertionError("all fit")

    rng = np.random.default_rng(0)
    tracker = in_a_round(Budget(models=6, bytes=1000))
    receive(tracker, "a", "b", size=150)
    tracker.reserve(["c"], lambda name: 300)
    ids = ["d", "e", "f"]
    assert tracker.within_budget(draw, ids[:2], lambda name: 200) is not None
    assert len(tracker.within_budget(lambda purpose: rng, ids, lambda name: 201)) == 1
    assert len(tracker.within_budget(lambda purpose: rng, [*ids, "g"], lambda name: 1)) == 3
    assert tracker.within_budget(draw, ids, lambda name: 1) == ids


# In memory


class Greedy(Random):
    """Policy that requests all models at once and ignores the budget."""

    async def round(self, me, peers):
        await peers.publish(await me.train())
        updates = await peers.models(peers.ids)
        return Merge(me.params, {update.sender: 1.0 for update in updates} | {me.id: 1.0})


class Hoarder(Random):
    """Policy that keeps the arrays of all models that it receives."""

    def __post_init__(self):
        self.hoard = []

    async def round(self, me, peers):
        await peers.publish(await me.train())
        for id in peers.ids:
            self.hoard += [update.params for update in await peers.models([id])]
        return Merge(me.params, {me.id: 1.0})


TASKS = {name: make_task("concept-shift", {}, Part(k, 4), 0) for k, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(models=2), "3 models in a round, but the budget is 2"),
        (Budget(held=2), "3 models held at once, but the budget is 2"),
        (Budget(bytes=100), "3 more models after 0 bytes, but the budget is 100 bytes in a round"),
    ],
)
def test_run_in_memory_beyond_budget_raises(budget, message):
    with pytest.raises(BudgetExceededError, match=message):
        run_in_memory({name: Greedy() for name in NAMES}, TASKS, 1, budget=budget)
    run_in_memory({name: Greedy() for name in NAMES}, TASKS, 1, budget=Budget(models=3, held=3, bytes=1000))


def test_run_in_memory_applies_budget_of_each_node():
    cast, _ = run_in_memory({n: Random(5) for n in NAMES}, TASKS, 3, budget={"a": Budget(models=1), "b": Budget(held=2)})
    assert [[len(cast[name].asked[round]) for round in (1, 2, 3)] for name in NAMES] == [[1] * 3, [2] * 3, [3] * 3, [3] * 3]


# In the simulator, modelled and with messages

SMALL = {"nodes": 6, "rounds": 3, "task": {"name": "concept-shift"}}


def scenario(**changes):
    return resolve(SMALL | changes, [], "test", ".").runs[0]


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
@pytest.mark.parametrize(
    ("policy", "budget", "message"),
    [
        ("Greedy", {"models": 4}, "5 models in a round, but the budget is 4"),
        ("Greedy", {"bytes": 1000}, "5 more models after 0 bytes"),
        ("Hoarder", {"held": 8}, "9 models held at once, but the budget is 8"),
    ],
)
def test_simulation_beyond_budget_raises(fidelity, policy, budget, message):
    with pytest.raises(BudgetExceededError, match=message):
        run(scenario(fidelity=fidelity, policy={"name": f"tests.p2pfl.test_budget:{policy}"}, budget=budget))


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_node_without_room_for_assignment_learns_alone(fidelity):
    budget = {"bytes": 100}
    result = run(scenario(fidelity=fidelity, policy={"name": "coordinated-fedavg"}, budget=budget))
    alone = run(scenario(policy={"name": "local"}))
    for name, node in result.nodes.items():
        assert node.me.params.tobytes() == alone.nodes[name].me.params.tobytes()
        assert (node.peers.budget_tracker.refused, node.peers.budget_tracker.round_bytes) == (3, 0)
    with pytest.raises(BudgetExceededError, match="1 more model after 0 bytes"):
        run_in_memory({name: CoordinatedFedAvg() for name in NAMES}, TASKS, 1, budget=Budget(bytes=5))


def dpfl(**changes):
    options = {"policy": {"name": "dpfl", "initial_epochs": 1, "epochs": 1}, "nodes": 10, "rounds": 4}
    return scenario(**options | changes)


def test_preparation_without_budget_may_hold_all_models():
    found = summary_metrics.traffic(run(dpfl(rounds=1)))
    assert found["max_models_in_round"] < 9
    assert found["max_models_held"] == 1 + 9


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_dpfl_stays_within_budget_of_each_node(fidelity):
    result = run(dpfl(fidelity=fidelity, budget={"models": [1, 5], "held": 5}, trainer="one-by-one"))
    limits = {name: node.me.budget.models for name, node in result.nodes.items()}
    assert len(set(limits.values())) > 2
    rounds = result.recorder.rounds_table()
    for k, (name, node) in enumerate(result.nodes.items()):
        assert len(node.policy.omega) <= limits[name]
        assert rounds["models_in"][rounds["node"] == k].tolist() == [len(node.policy.omega)] * 4
        assert node.peers.budget_tracker.most_held == limits[name]  # a full batch of the preparation
        assert node.peers.budget_tracker.held == 0  # nothing is kept after the end
        assert 9 <= node.peers.budget_tracker.preparation_models <= 18
    found = summary_metrics.traffic(result)
    assert found["budget"]["models"]["least"] == min(limits.values())
    assert found["budget"]["models"]["greatest"] == max(limits.values())
    assert found["max_models_held"] == 1 + max(limits.values())
    assert found["max_models_in_round"] == rounds["models_in"].max()
    assert found["models"] == rounds["models_in"].sum()
    assert found["bytes"] == rounds["bytes_out"].sum() == rounds["bytes_in"].sum()
    prepared = [node.peers.budget_tracker.preparation_models for node in result.nodes.values()]
    assert found["preparation"]["models"] == sum(prepared)
    a_model = found["bytes"] / found["models"]  # including its request
    assert found["preparation"]["bytes"] == pytest.approx(sum(prepared) * a_model)


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
@pytest.mark.parametrize("codec", [{"name": "int8"}, {"name": "top-k", "share": 0.2}], ids=["int8", "top-k"])
@pytest.mark.parametrize(
    "policy", [{"name": "dpfl", "initial_epochs": 1, "epochs": 1}, {"name": "fedavg"}], ids=["dpfl", "fedavg"]
)
def test_byte_budget_holds_in_every_round_and_step(monkeypatch, fidelity, codec, policy):
    steps = []

    def take(tracker, updates):
        steps.append((tracker.preparing, sum(update.size for update in updates)))
        return taken(tracker, updates)

    taken = BudgetTracker.take
    monkeypatch.setattr(BudgetTracker, "take", take)
    limit = 2000
    result = run(scenario(nodes=10, rounds=4, policy=policy, fidelity=fidelity, codec=codec, budget={"bytes": limit}))
    assert max(size for _, size in steps) <= limit
    if policy["name"] == "dpfl":
        assert max(size for preparing, size in steps if preparing) > limit / 2
    received = [node.peers.budget_tracker.round_models for node in result.nodes.values()]
    assert 0 < max(received) < 9 * 4


def test_byte_budget_below_one_model_adds_a_note():
    size = OVERHEAD + 4 * 11
    limits = (size - 5, size + 5)
    small = [Budgets(bytes=limits).of(0, f"node-{k}", 6).bytes < size for k in range(6)]
    assert 0 < sum(small) < 6
    (note,) = run(scenario(policy={"name": "fedavg"}, budget={"bytes": limits})).notes
    assert note == f"budget.bytes of {sum(small)} of 6 nodes is less than the size of a model, {size} bytes"
    assert not run(scenario(policy={"name": "fedavg"}, budget={"bytes": size})).notes


def test_summary_reports_mean_use_of_budget():
    result = run(scenario(policy={"name": "random", "neighbours": 2}, budget={"models": 4, "bytes": 10_000, "held": 3}))
    found = summary_metrics.traffic(result)["budget"]
    size = result.nodes["node-0"].exchange.expected_bytes("node-1", 3)
    assert found["models"] == {"least": 4, "greatest": 4, "used": pytest.approx(0.5)}
    assert found["held"] == {"least": 3, "greatest": 3, "used": pytest.approx(2 / 3)}
    assert found["bytes"] == {"least": 10_000, "greatest": 10_000, "used": pytest.approx(2 * size / 10_000)}


@pytest.mark.slow
def test_searches_of_all_nodes_are_batched():
    result = run(dpfl(nodes=24))
    count, jobs = result.batches["greedy"]
    assert jobs / count > 12
    assert count <= 12 + 4  # the batches of the preparation and the rounds, not one call for each candidate


@pytest.mark.slow
def test_budget_of_a_pair_is_drawn_per_node_from_seed():
    def draw(**changes):
        return [node.me.budget for node in run(dpfl(budget={"models": [2, 4]}, **changes)).nodes.values()]

    first = draw()
    assert {budget.models for budget in first} == {2, 3, 4}
    assert first == draw(fidelity="wire")
    assert first != draw(seed=1)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            {"models": [3, 2]},
            "budget.models must be a number, or a pair \\[low, high\\] with 1 <= low <= high, got \\[3, 2\\]",
        ),
        ({"held": [0, 2]}, "budget.held must be a number, or a pair \\[low, high\\] with 1 <= low <= high, got \\[0, 2\\]"),
        ({"bytes": -1}, "budget.bytes must be 0 \\(no limit\\) or more, got -1"),
        ({"models": [1, 2, 3]}, "Expected `array` of length 2"),
        ({"models": 1.5}, "budget.models must be a share of the nodes above 0 and below 1, or a whole number, got 1.5"),
        ({"modles": 1}, "unknown key 'budget.modles'; did you mean 'budget.models'"),
    ],
)
def test_invalid_budget_is_refused(budget, message):
    with pytest.raises(ConfigurationError, match=message):
        scenario(budget=budget)


# On real nodes


async def to_the_end(federation):
    federation.start()
    await federation.done()


@pytest.mark.slow
def test_real_node_receives_models_within_budget():
    settings = Settings(rounds=3, deadline=10.0)
    federation = play(to_the_end, NAMES, settings, policy=Greedy, budget=Budget(models=2), lenient=True)
    assert federation.partners("a", 3) == {"b", "c"}
    assert federation.partners("d", 3) == {"a", "b"}
    for node in federation.nodes.values():
        assert node.round == 3
        assert node.peers.budget_tracker.refused == 3
        assert node.exchange.traffic.received["models"] == 6


def test_real_node_logs_models_refused_by_budget(tmp_path):
    logged = []

    async def test(federation):
        federation.start("b", "c", "d")
        exchange = federation.exchange("a")
        status_observer = StatusObserver(tmp_path / "status.json", exchange, log_to(logged))
        node = federation.make("a", exchange=exchange, observer=status_observer)
        status_observer.begin(node)
        federation.running["a"] = asyncio.create_task(node.run(node.exchange.others_done))
        await federation.done()

    play(test, NAMES, Settings(rounds=2, deadline=10.0), policy=Greedy, budget=Budget(models=1), lenient=True)
    assert logged.count("budget: left out 2 models: 3 models in a round, but the budget is 1") == 2
    state = json.loads((tmp_path / "status.json").read_text())
    assert state["refused_by_budget"] == 4
    assert "budget 4 models left out" in [" ".join(line.split()) for line in describe(state)]


def test_budget_is_not_part_of_the_agreement():
    ours, theirs = (NodeConfig(name=name, listen=":0", budget=Budget(models=k)) for k, name in enumerate(("a", "b"), 2))
    agreed = msgspec.convert(agreement.draft("f", ours, TASKS["a"]), agreement.Agreement)
    assert agreement.apply_agreement(theirs, agreed).budget == Budget(models=3)
    layout = TASKS["a"].layout
    assert agreement.terms(layout, ours, "") == agreement.terms(layout, theirs, "")


# Options for a group


def test_policy_by_group_changes_options_of_group():
    entry = scenario(
        policy={"name": "dpfl", "initial_epochs": 1, "epochs": 1}, policy_by_group={"1": {"select": "none", "epochs": 2}}
    )
    result = run(entry)
    for node in result.nodes.values():
        other = node.task.public_info["group"] == 1
        assert (node.policy.select, node.policy.epochs) == (("none", 2) if other else ("ggc", 1))
        assert not (other and node.policy.omega)
    edges = result.recorder.edges_table()
    groups = np.array([node.task.public_info["group"] for node in result.nodes.values()])
    assert 1 in groups
    assert 1 not in groups[edges["dst"]]
    assert set(groups[edges["dst"]]) == {0, 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"9": {"epochs": 2}}, "policy_by_group: unknown group '9'; the groups are: 0, 1, 2"),
        ({"1": {"name": "local"}}, "policy_by_group.1 may change options only; all nodes have the policy random"),
        ({"1": {"epoch": 2}}, "unknown key 'policy.epoch'; did you mean 'policy.epochs'"),
    ],
)
def test_invalid_policy_by_group_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        run(scenario(policy={"name": "random"}, policy_by_group=changes))
