"""Cohorts: the same run, bit for bit, as that of single nodes."""

import dataclasses
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2pfl.algorithms import ggc, selection
from p2pfl.algorithms.selection import fedavg
from p2pfl.cohort import GeneratorsOfEach, IdsOfEach, WeightsOfEach
from p2pfl.errors import BudgetExceededError, ConfigurationError
from p2pfl.policies import POLICIES, make_policy
from p2pfl.policies.random import Random
from p2pfl.policy import Merge, SupportsPreselection, merge, runs_as_cohort, samples
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.final_state import LIMITS
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import Part, make_task
from p2pfl.topologies import SCHEDULES
from tests.support.depth import many, spread

SMALL = {"nodes": 9, "rounds": 4, "task": {"name": "digits", "samples": 24}, "policy": {"name": "random", "neighbours": 3}}
HERE = __name__


def uneven(part: Part, seed: int, lr: float = 0.05):
    """Return the task digits with another number of training samples at each node."""
    made: Any = make_task("digits", {"samples": 40, "batch_size": 8, "lr": lr}, part, seed)
    x, y = made.data["train"]
    kept = 40 - 5 * (part.index % 7)
    return dataclasses.replace(made, data={**made.data, "train": type(made.data["train"])(x[:kept], y[:kept])})


def simulation(singly="", **changes):
    return Simulation(resolve(SMALL | changes, [], "test", ".").runs[0], singly=singly)


class Everyone:
    """The policy of the README, with a form for cohorts."""

    cohort: ClassVar[bool] = True
    reported_stage = "merged"

    async def prepare(self, me, peers):
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me, peers):
        trained = await me.train()
        await peers.publish(trained)
        updates = await peers.models(peers.ids)
        return await merge(me, trained, updates, fedavg(samples(me, updates)))

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state):
        pass


class Greedy(Everyone):
    """Policy that inherits the procedures, and not that they have a form for cohorts."""


class Waits(Everyone):
    cohort: ClassVar[bool] = True

    async def round(self, me, peers):
        import asyncio

        await asyncio.sleep(0)


def facts(made):
    """Run a simulation, and return all that must not depend on whether its nodes run at once.

    Nodes of DPFL that have no candidate do not wait for the decisions of the others, so that they are in other batches.
    """
    run = made.run()
    result = result_of(run)
    left_out = {"time", "computed"} | ({"batches"} if made.plan.scenario.policy["name"] == "dpfl" else set())
    summary = {key: value for key, value in result.summary.items() if key not in left_out}
    state = run.state
    limits = {kind: state.limits[kind] for kind in LIMITS}  # nodes with limits of other kinds are no cohort
    limited = np.any(list(limits.values()), axis=0)  # single nodes without a limit do not count these
    counts = state.counts | {name: np.where(limited, state.counts[name], 0) for name in ("most_held", "round_bytes")}
    columns = {
        (kind, name): (column.dtype, column.tobytes())
        for kind, each in (("counts", counts), ("trained", state.trained), ("limits", limits))
        for name, column in each.items()
    }
    models = [[model.tobytes() for model in each] for each in (state.models, state.last)]
    chosen = [each.preselection() for each in state.policies if isinstance(each, SupportsPreselection)]
    tables = {
        (kind, name): (column.dtype, column.tobytes())
        for kind, table in (("rounds", result.rounds), ("edges", result.edges))
        for name, column in table.items()
    }
    found = {"summary": repr(summary), "columns": columns, "models": models, "chosen": chosen, "judged": state.judged}
    return found | {"tables": tables, "seconds": run.virtual_s}


def check_equal(changes):
    together, singly = simulation(**changes), simulation(singly="test", **changes)
    assert together.singly == ""
    found, expected = facts(together), facts(singly)
    for key, value in expected.items():
        assert found[key] == value, key


POLICIES_WITH_COHORTS = [
    {"name": "local"},
    {"name": "random", "neighbours": 3},
    {"name": "random", "neighbours": 2, "graph": "fixed", "reported_stage": "merged"},
    {"name": "fedavg"},
    {"name": "fedavg", "ft": "replace-last"},
    {"name": "fedprox", "mu": 0.3},
    {"name": "dsgd"},
    {"name": "dsgd", "weights": "uniform", "mixing": 0.7, "momentum": 0.5},
    {"name": "dsgd", "steps": 2},
    {"name": "dac", "neighbours": 3},
    {"name": "dac", "neighbours": 2, "similarity": "l2", "two_hop": "least"},
    {"name": "dac", "neighbours": 3, "similarity": "cosine-gradients", "weights": "probability"},
    {"name": "dac", "neighbours": 3, "similarity": "inverse-loss", "aggregation": "fedavg"},
    {"name": "dac", "neighbours": 2, "two_hop": "none"},
    {"name": "dpfl", "epochs": 1, "initial_epochs": 1},
    {"name": "dpfl", "epochs": 1, "initial_epochs": 2, "period": 2, "snapshot": "trained"},
    {"name": "dpfl", "epochs": 1, "initial_epochs": 1, "period": 2, "between": "train"},
    {"name": "dpfl", "epochs": 1, "initial_epochs": 1, "select": "none"},
    {"name": f"{HERE}:Everyone"},
]
TOPOLOGIES = [
    {"name": "complete"},
    {"name": "ring"},
    {"name": "small-world", "degree": 4},
    {"name": "star"},
    {"name": "random-directed", "degree": 3},
    {"name": "base-k", "degree": 2},
    {"name": "one-peer-exponential"},
    {"name": "random-matching"},
    {"name": "ou-equidyn"},
    {"name": "epidemic", "degree": 2},
]
BY_ROUND = [{"name": name} for name in SCHEDULES if name != "hypercube"]
BUDGETS = [{}, {"models": 2}, {"models": [1, 4]}, {"held": 3}, {"bytes": 70_000}, {"models": 3, "bytes": 50_000}]
TASKS = [
    {"name": "digits", "samples": 24},
    {"name": f"{HERE}:uneven"},
    {"name": "digits", "labels": 3},
    {"name": "digits", "samples": 24, "shared": True},
    {"name": "concept-shift"},
    {"name": f"{HERE}:uneven", "lr": 0.8},
]
"""Equal and unequal numbers of samples, test data of its own or common to all, images and regression."""

RESTLESS, RING = {"name": f"{HERE}:uneven", "lr": 0.8}, {"name": "ring"}
"""The validation losses do not fall in every round."""


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES_WITH_COHORTS, ids=lambda policy: "-".join(map(str, policy.values())))
def test_cohort_equals_single_nodes(policy):
    check_equal({"policy": policy})


@pytest.mark.slow
@pytest.mark.parametrize("policy", spread(POLICIES_WITH_COHORTS, 3), ids=lambda policy: "-".join(map(str, policy.values())))
def test_cohort_whose_nodes_stop_early_equals_single_nodes(policy):
    changes = {"policy": policy, "patience": 1, "rounds": 9, "task": RESTLESS, "topology": RING}
    assert len({*simulation(**changes).run().state.counts["rounds"].tolist()}) > 1
    check_equal(changes)


@pytest.mark.slow
@pytest.mark.parametrize("topology", BY_ROUND, ids=lambda topology: topology["name"])
def test_cohort_equals_single_nodes_on_graphs_by_round(topology):
    check_equal({"policy": {"name": "dsgd"}, "topology": topology, "budget": {"models": [1, 3]}})


@pytest.mark.slow
def test_search_of_many_large_models_equals_that_of_single_nodes(monkeypatch):
    monkeypatch.setattr(ggc, "MOST_WEIGHTED", 0)  # so that models are not multiplied by their weights once for all nodes
    check_equal({"policy": {"name": "dpfl", "epochs": 1, "initial_epochs": 1}, "task": RESTLESS, "budget": {"models": 3}})


@pytest.mark.slow
def test_cohort_equals_single_nodes_if_some_are_left_alone_in_a_round():
    check_equal({"policy": {"name": "dac", "neighbours": 1}, "topology": {"name": "base-k"}})


@pytest.mark.slow
@settings(max_examples=many(10, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_cohort_equals_single_nodes_in_random_scenarios(data):
    draw = data.draw
    task = draw(st.sampled_from(TASKS))
    changes = {
        "policy": draw(st.sampled_from(POLICIES_WITH_COHORTS)),
        "topology": draw(st.sampled_from([each for each in TOPOLOGIES if each["name"] != "random-directed"])),
        "budget": draw(st.sampled_from(BUDGETS)),
        "task": task,
        "nodes": draw(st.integers(5, 14)),
        "rounds": draw(st.integers(1, 7)),
        "patience": draw(st.integers(0, 3)),
        "seeds": [draw(st.integers(0, 3))],
        "evaluate_every": draw(st.sampled_from([0, 1, 2])),
        "best_by": draw(st.sampled_from(["loss", "metric"])),
        "compute": {"seconds": draw(st.sampled_from([0.1, 1.0, 7.3]))},
        "mean_model": draw(st.booleans()),
    }
    if selects_once(changes["policy"]) and changes["topology"]["name"] in SCHEDULES:
        changes["topology"] = {"name": "ring"}
    if changes["policy"]["name"] == f"{HERE}:Everyone":
        changes["budget"] = {}  # it asks for more than a budget admits
    check_equal(changes)


def selects_once(policy):
    return policy["name"] == "dpfl" or policy.get("graph") == "fixed"


@pytest.mark.slow
def test_oracle_runs_as_cohort():
    check_equal({"policy": {"name": "oracle", "neighbours": 2}, "task": {"name": "concept-shift"}, "nodes": 12})


def test_all_policies_that_declare_cohorts_are_compared():
    compared = {policy["name"] for policy in POLICIES_WITH_COHORTS} | {"oracle"}
    declared = {name for name in POLICIES if runs_as_cohort(make_policy(name, {}))}
    assert declared == {name for name in compared if ":" not in name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fidelity": "wire"}, "messages are sent"),
        ({"mode": "asynchronous"}, "nodes are asynchronous"),
        ({"network": {"latency": 0.1}}, "links take time"),
        ({"compute": {"slowdown": [1.0, 2.0]}}, "nodes differ in speed"),
        ({"compute": {"seconds": 0.0}}, "training takes no time"),
        ({"attack": {"name": "sign-flip", "nodes": [1]}}, "nodes attack"),
        ({"robust": "clip-loss"}, "nodes protect themselves"),
        ({"codec": {"name": "float16"}}, "models are compressed"),
        ({"nodes": 1}, "there is one node"),
        ({"trainer": "one-by-one"}, "nodes are trained one by one"),
        ({"policy": {"name": "random", "schedule": "sequential"}}, "the policy has no form for cohorts"),
        ({"policy": {"name": f"{HERE}:Greedy"}}, "the policy has no form for cohorts"),
        ({"policy": {"name": "coordinated-fedavg"}}, "a coordinator takes part"),
    ],
)
def test_reason_why_nodes_run_singly_is_in_the_summary(changes, reason):
    made = simulation(**changes)
    assert made.singly == reason
    assert result_of(made.run()).summary["computed"] == f"node by node: {reason}"


@pytest.mark.slow
def test_summary_says_that_nodes_ran_as_cohort():
    assert result_of(simulation().run()).summary["computed"] == "all nodes at once"


@pytest.mark.parametrize("budget", [{"models": 2}, {"held": 2}, {"bytes": 40_000}])
def test_policy_beyond_its_budget_is_refused_alike(budget):
    reasons = []
    for singly in ("", "test"):
        made = simulation(singly, policy={"name": f"{HERE}:Everyone"}, budget=budget)
        with pytest.raises(BudgetExceededError) as caught:
            made.run()
        reasons.append(str(caught.value))
    assert reasons[0] == reasons[1]


def test_policy_that_waits_for_something_else_is_refused():
    with pytest.raises(ConfigurationError, match="awaits something else"):
        simulation(policy={"name": f"{HERE}:Waits"}).run()


# The helpers of policies, on rows of any lengths


@st.composite
def ragged(draw):
    """Ids of each of several nodes, in rows of different lengths, and the streams of the nodes."""
    count = draw(st.integers(2, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = rng.integers(0, count, count)
    peers = [np.sort(rng.choice(np.delete(np.arange(count), k), n, replace=False)) for k, n in enumerate(counts)]
    ids = IdsOfEach.of_counts(counts, np.concatenate([np.empty(0, np.int64), *peers]))
    return ids, [RandomStreams(draw(st.integers(0, 99)), f"node-{k}") for k in range(count)], rng


def names_of(ids, node):
    return [f"{k:02d}" for k in ids.of(node).tolist()]


@given(ragged(), st.integers(0, 9), st.booleans())
def test_uniform_draws_of_each_are_those_of_single_nodes(of, most, own):
    ids, streams, rng = of
    m = rng.integers(0, 9, len(streams)) if own else most
    drawn = selection.uniform(GeneratorsOfEach(streams, 3, "peers"), ids, m)
    for k, stream in enumerate(streams):
        single = selection.uniform(stream.generator(3, "peers"), names_of(ids, k), int(np.broadcast_to(m, len(streams))[k]))
        assert names_of(drawn, k) == single


@given(ragged(), st.integers(0, 9), st.sampled_from([0.0, 3.0, 140.0]))
def test_softmax_draws_of_each_are_those_of_single_nodes(of, most, tau):
    ids, streams, rng = of
    values = rng.normal(size=len(ids.peers)) * rng.integers(0, 2, len(ids.peers))
    p = selection.probabilities(WeightsOfEach(ids, values, np.zeros(len(streams))), tau)
    drawn = selection.sample(GeneratorsOfEach(streams, 3, "peers"), ids, p, most)
    for k, stream in enumerate(streams):
        row = slice(ids.starts[k], ids.starts[k + 1])
        single = selection.probabilities(values[row], tau) if ids.counts[k] else np.empty(0)
        assert p.others[row].tolist() == single.tolist()
        assert names_of(drawn, k) == selection.sample(stream.generator(3, "peers"), names_of(ids, k), single, most)


def test_sums_of_long_rows_of_probabilities_round_as_those_of_single_nodes():
    """NumPy adds more than 128 values by parts."""
    rng, counts = np.random.default_rng(0), np.array([900, 0, 129, 7, 400, 0])
    values = rng.normal(size=counts.sum()) * rng.integers(0, 2, counts.sum())
    ids = IdsOfEach.of_counts(counts, rng.integers(0, len(counts), counts.sum()))
    p = selection.probabilities(WeightsOfEach(ids, values, np.zeros(len(counts))), 3.0)
    single = [selection.probabilities(values[a:b], 3.0) for a, b in pairwise(ids.starts)]
    assert p.others.tolist() == np.concatenate(single).tolist()


@given(ragged())
def test_weights_of_each_are_those_of_single_nodes(of):
    ids, streams, rng = of
    counts, own = rng.integers(0, 3, len(ids.peers)), rng.integers(0, 2, len(streams))
    values = rng.normal(size=len(ids.peers))
    by_samples = selection.fedavg(WeightsOfEach(ids, counts, own))
    by_similarity = selection.fedsim("own", WeightsOfEach(ids, values, np.zeros(len(streams))))
    for k in range(len(streams)):
        row, known = slice(ids.starts[k], ids.starts[k + 1]), names_of(ids, k)
        single = selection.fedavg({"own": int(own[k])} | dict(zip(known, counts[row].tolist(), strict=True)))
        assert [by_samples.own[k], *by_samples.others[row]] == list(single.values())
        single = selection.fedsim("own", dict(zip(known, values[row].tolist(), strict=True)))
        assert [by_similarity.own[k], *by_similarity.others[row]] == list(single.values())


@given(ragged())
def test_pairs_are_found_in_any_graph(of):
    ids, streams, _ = of
    count = len(streams)
    nodes, peers = np.divmod(np.arange(count * count), count)
    places = ids.find(nodes, peers)
    expected = {(int(a), int(b)): k for k, (a, b) in enumerate(zip(ids.rows, ids.peers, strict=True))}
    assert places.tolist() == [expected.get((a, b), -1) for a, b in zip(nodes.tolist(), peers.tolist(), strict=True)]


def test_subclass_declares_cohorts_itself():
    class Sub(Random):
        pass

    assert runs_as_cohort(Random())
    assert not runs_as_cohort(Sub())
