"""Policies on plain dictionaries: no loop, no clock, no messages."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2pfl import policies
from p2pfl.algorithms.selection import fedavg
from p2pfl.algorithms.similarity import short_id
from p2pfl.errors import ConfigurationError
from p2pfl.learning.torch_learner import TorchLearner
from p2pfl.policies import POLICIES, make_policy
from p2pfl.policies.dac import Dac, similarity_extras
from p2pfl.policies.local import Local
from p2pfl.policies.random import Oracle, Random
from p2pfl.policy import Budget, Merge, Update, merge, samples
from p2pfl.queries import Loss
from p2pfl.task import Part, make_task
from p2pfl.testing import InMemoryNode, run_in_memory

NAMES = [f"node-{k}" for k in range(6)]
TASKS = {name: make_task("concept-shift", {}, Part(k, 6), 0) for k, name in enumerate(NAMES)}


def play(make, rounds=2, **options):
    return run_in_memory({name: make() for name in NAMES}, TASKS, rounds, **options)


def test_local_requests_no_models():
    cast, history = play(Local)
    assert all(not actor.asked for actor in cast.values())
    assert history[-1]["node-3"].weights == {"node-3": 1.0}


def test_random_averages_with_given_number_of_peers():
    cast, history = play(lambda: Random(neighbours=2))
    for name, actor in cast.items():
        assert all(len(asked) == 2 for asked in actor.asked.values())
        merged = history[-1][name]
        assert set(merged.weights) == {name, *actor.asked[2]}
        assert list(merged.weights.values()) == pytest.approx([1 / 3] * 3)
        models = [cast[id].published[2, "trained"].params for id in sorted(merged.weights)]
        assert np.allclose(merged.params, np.mean(models, axis=0), rtol=1e-5)


def test_random_with_few_peers_takes_all():
    cast, _ = play(lambda: Random(neighbours=50))
    assert sorted(cast["node-0"].asked[1]) == NAMES[1:]


def test_policies_keep_within_the_budget():
    for make in (lambda: Random(neighbours=5), lambda: Dac(neighbours=5), lambda: Oracle(neighbours=5)):
        cast, _ = play(make, budget=Budget(models=1))
        assert all(len(asked) == 1 for actor in cast.values() for asked in actor.asked.values())


def test_oracle_refuses_task_without_groups():
    tasks = {name: make_task("digits", {}, Part(k, 2), 0) for k, name in enumerate("ab")}
    with pytest.raises(ConfigurationError, match="the policy oracle needs a task with groups of nodes"):
        run_in_memory({name: Oracle() for name in tasks}, tasks, 1)


def test_oracle_requests_only_its_group():
    cast, _ = play(lambda: Oracle(neighbours=3))
    assert cast["node-2"].asked == {1: ["node-3"], 2: ["node-3"]}


def test_sequential_nodes_use_merged_models_of_predecessors():
    cast, history = play(lambda: Random(neighbours=5, schedule="sequential"), rounds=1)
    order = cast["node-0"].round_order(1)
    names = sorted(NAMES, key=order.get)
    models = {name: cast[name].published[1, "trained"].params for name in NAMES}
    for name in names:  # by hand: each in turn, from the newest models
        models[name] = np.mean(list(models.values()), axis=0)
        assert np.allclose(history[0][name].params, models[name], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", ["cosine-weights", "cosine-gradients", "l2", "inverse-loss"])
@pytest.mark.parametrize("score_on", ["own", "peer"])
def test_dac_finds_its_cluster(similarity, score_on):
    cast, _ = play(lambda: Dac(neighbours=1, similarity=similarity, score_on=score_on), rounds=12)
    late = [(name, asked) for name, actor in cast.items() for round, asked in actor.asked.items() if round > 8]
    partner = dict(zip(NAMES, ["node-1", "node-0", "node-3", "node-2", "node-5", "node-4"], strict=True))
    assert np.mean([asked == [partner[name]] for name, asked in late]) > 0.7


def test_dac_aggregation_weights_by_samples_or_similarity():
    for aggregation in ("fedavg", "fedsim"):
        policies = {name: Dac(neighbours=2, aggregation=aggregation, similarity="l2") for name in NAMES}
        cast, history = run_in_memory(policies, TASKS, 1)
        weights = history[0]["node-0"].weights
        met = policies["node-0"].known.measured
        assert set(met) == set(cast["node-0"].asked[1])
        if aggregation == "fedavg":
            assert list(weights.values()) == pytest.approx([1 / 3] * 3)
        else:
            total = sum(met.values()) + max(met.values())
            expected = {id: value / total for id, value in met.items()} | {"node-0": max(met.values()) / total}
            assert weights == pytest.approx(expected)


def test_dac_probability_weights_are_uniform_at_first():
    policies = {name: Dac(neighbours=2, weights="probability", similarity="l2") for name in NAMES}
    _, history = run_in_memory(policies, TASKS, 1)
    assert list(history[0]["node-0"].weights.values()) == pytest.approx([1 / 3] * 3)  # nothing was known: all are equal


def test_dac_borrows_similarities_of_sampled_peer():
    borrower = Dac()
    borrower.known.measure({"b": 0.7, "d": 0.1})
    lent = similarity_extras({"c": 0.5, "me": 0.9, "d": -0.25, "stranger": 1.0})
    update = Update("b", 1, "trained", np.zeros(1, np.float32), 1, lent)
    borrower.estimate(("b", "c", "d", "e"), [update])
    assert borrower.known.borrowed == {"c": 0.5}  # "d" was met, "e" is unknown to both, the others are not peers


def test_dac_without_two_hop_borrows_nothing():
    policies = {name: Dac(neighbours=2, two_hop="none") for name in NAMES}
    run_in_memory(policies, TASKS, 3)
    assert all(not policy.known.borrowed for policy in policies.values())


@pytest.mark.parametrize(("lender", "expected"), [("most", {"x": 0.5, "y": 0.1}), ("least", {"x": -0.4, "y": 0.1})])
def test_dac_borrows_from_most_or_least_similar_peer(lender, expected):
    policy = Dac(two_hop=lender)
    policy.known.measure({"a": 0.9, "b": 0.2})
    lent = {"a": {"x": 0.5, "y": 0.1}, "b": {"x": -0.4}}
    updates = [Update(id, 1, "trained", np.zeros(1, np.float32), 1, similarity_extras(lent[id])) for id in lent]
    for order in (updates, updates[::-1]):
        policy.estimate(("a", "b", "w", "x", "y"), order)
        assert policy.known.borrowed == pytest.approx(expected)


def test_dac_limits_borrowed_similarities_under_a_robust_rule():
    policy = Dac(neighbours=0)
    policy.known.measure({"a": 0.5, "b": -0.2})
    lent = {"a": {"x": 0.9, "y": -0.5, "z": 0.3}, "b": {"w": 0.8}}
    updates = [Update(id, 1, "trained", np.zeros(1, np.float32), 1, similarity_extras(lent[id])) for id in lent]
    policy.estimate(("a", "b", "w", "x", "y", "z"), updates, "median")
    assert policy.known.borrowed == pytest.approx({"x": 0.5, "z": 0.3})  # the others would be 0, as unknown


@pytest.mark.parametrize("schedule", ["synchronous", "sequential"])
def test_dac_publishes_the_similarities_that_it_has_measured(schedule):
    cast, _ = play(lambda: Dac(neighbours=2, schedule=schedule))
    for actor in cast.values():
        first, second = (sorted(map(short_id, actor.asked[round])) for round in (1, 2))
        assert sorted(actor.published[2, "trained"].extras["peers"]) == first
        if schedule == "sequential":
            assert sorted(actor.published[2, "merged"].extras["peers"]) == sorted({*first, *second})


def first_round_of_dac(**options):
    """Return the nodes after one round, and what node-0 has measured of each peer."""
    policies = {name: Dac(neighbours=2, **options) for name in NAMES}
    cast, _ = run_in_memory(policies, TASKS, 1)
    return cast, policies["node-0"].known.measured


@pytest.mark.parametrize("score_on", ["own", "peer"])
def test_dac_measures_the_loss_on_own_or_peers_data(score_on):
    cast, measured = first_round_of_dac(similarity="inverse-loss", score_on=score_on)
    assert measured
    for id, value in measured.items():
        model, judge = (id, "node-0") if score_on == "own" else ("node-0", id)
        (loss,) = cast[judge].learner.loss([cast[model].published[1, "trained"].params], split="train")
        assert value == pytest.approx(1 / (loss + 1e-6), rel=1e-4)


def test_dac_compares_gradients_from_the_initial_model():
    cast, measured = first_round_of_dac(similarity="cosine-gradients")
    steps = {id: cast[id].published[1, "trained"].params - cast[id].initial for id in ("node-0", *measured)}
    own = steps["node-0"]
    for id, value in measured.items():
        assert value == pytest.approx(own @ steps[id] / np.linalg.norm(own) / np.linalg.norm(steps[id]), abs=1e-4)


@pytest.mark.parametrize("robust", ["none", "median"])
def test_dac_believes_no_loss_below_its_own_under_a_robust_rule(monkeypatch, robust):
    class Guarded(Dac):
        async def round(self, me, peers):
            me.robust = robust
            return await super().round(me, peers)

    async def lie(self, ids, params):
        return dict.fromkeys(sorted(ids)[1:], 0.0)  # and one does not answer

    monkeypatch.setattr(InMemoryNode, "remote_losses", lie)
    policies = {name: Guarded(neighbours=3, similarity="inverse-loss", score_on="peer") for name in NAMES}
    cast, history = run_in_memory(policies, TASKS, 1)
    own, (silent, *liars) = cast["node-0"], sorted(cast["node-0"].asked[1])
    (loss,) = own.learner.loss([own.published[1, "trained"].params], split="train")
    expected = 1 / (loss + 1e-6) if robust == "median" else 1e6
    assert policies["node-0"].known.measured == pytest.approx(dict.fromkeys(liars, expected), rel=1e-4)
    assert history[0]["node-0"].weights.get(silent, 0.0) == 0.0


@pytest.mark.parametrize("score_on", ["own", "peer"])
@pytest.mark.parametrize("loss", [np.nan, np.inf, -1e-6])
def test_dac_treats_peer_with_invalid_loss_as_unknown(monkeypatch, loss, score_on):
    compute = TorchLearner.compute

    def improper(self, query):
        return np.full(len(query.stack), loss) if isinstance(query, Loss) else compute(self, query)

    monkeypatch.setattr(TorchLearner, "compute", improper)
    policies = {name: Dac(neighbours=2, similarity="inverse-loss", score_on=score_on) for name in NAMES}
    _, history = run_in_memory(policies, TASKS, 3)
    assert all(set(policy.known.measured.values()) == {0.0} for policy in policies.values())
    assert history[-1]["node-0"].weights["node-0"] == 1.0


@pytest.mark.parametrize(
    "extras",
    [
        {},
        {"peers": np.array([1], np.uint64)},
        {"peers": np.array([1], np.int64), "similarities": np.array([1], np.float32)},
        {"peers": np.array([1, 2], np.uint64), "similarities": np.array([1], np.float32)},
        {"peers": np.array([[1]], np.uint64), "similarities": np.array([[1]], np.float32)},
        {"peers": np.array([short_id("b")], np.uint64), "similarities": np.array([np.nan], np.float32)},
    ],
)
def test_dac_ignores_invalid_borrowed_similarities(extras):
    policy = Dac()
    policy.estimate(("b",), [Update("a", 1, "trained", np.zeros(1, np.float32), 1, extras)])
    assert policy.known.borrowed == {}


def test_dac_restored_from_state_is_equal():
    half = {name: Dac(neighbours=2) for name in NAMES}
    run_in_memory(half, TASKS, 2)
    restored = Dac(neighbours=2)
    restored.restore(half["node-0"].state())
    assert restored.state() == half["node-0"].state()


def test_every_mark_of_built_in_gives_one_policy_its_name():
    """Marks are found in the sources; the parser of Python finds the same ones."""
    marked = [
        (mark.args[0].value, f"p2pfl.policies.{file.stem}:{node.name}")
        for file in Path(policies.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        for mark in node.decorator_list
        if isinstance(mark, ast.Call) and mark.func.id == "built_in"
    ]
    assert sorted(marked) == sorted(policies.POLICIES.items())
    assert all(policies.make_policy(name, {}).reported_stage for name in policies.POLICIES)


PARTED = ("fedrep", "dfedpgp")  # they need a private part
FAIR = ("lft-fedavg", "lft-ensemble", "agnostic-fair", "fairfed", "fedfb")  # they need sensitive groups


@pytest.mark.slow
def test_every_policy_trains_without_peers():
    headed = replace(TASKS["node-0"], private=["bias"])
    grouped = make_task("fairness", {"data": "synthetic", "hidden": []}, Part(0, 30), 0)
    normalised = make_task("images", {"model": {"name": "mlp", "norm": "batch"}, "private": "norm"}, Part(0, 30), 0)
    for name in POLICIES:
        task = grouped if name in (*FAIR, "fedcmoo") else headed if name in PARTED else TASKS["node-0"]
        task = normalised if name == "fedbn" else task
        options = {"fragments": 4} if name in ("mosaic", "divshare") else {}  # the model has 11 values
        cast, history = run_in_memory({"a": make_policy(name, options)}, {"a": task}, 3)
        assert history[-1]["a"].weights == {"a": 1.0}
        assert (cast["a"].params != cast["a"].initial).any()


def test_run_in_memory_detects_deadlock():
    class Waiting(Local):
        async def round(self, me, peers):
            await peers.models(peers.ids)

    with pytest.raises(RuntimeError, match="no node will publish"):
        play(Waiting)


def test_merge_weights_by_samples():
    cast, _ = play(Local, rounds=1)
    me = cast["node-3"]
    updates = [Update(id, 1, "trained", np.full(11, k, np.float32), 10 * k) for k, id in ((5, "node-5"), (1, "node-1"))]
    part = merge(me, me.params, updates, fedavg(samples(me, updates)))
    with pytest.raises(StopIteration) as done:
        part.send(None)
    merged = done.value.value
    assert isinstance(merged, Merge)
    assert merged.weights == {"node-3": 50 / 110, "node-5": 50 / 110, "node-1": 10 / 110}
    assert np.allclose(merged.params, (50 * me.params + 50 * 5 + 10 * 1) / 110, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dax", {}, "did you mean 'dac'"),
        ("dac", {"tua": 3.0}, "did you mean 'policy.tau'"),
        ("dac", {"tau": "hot"}, "policy.tau must be a number, got 'hot'"),
        ("dac", {"tau": -1.0}, "tau must be 0 or more"),
        ("dac", {"tau": float("nan")}, "tau must be 0 or more, and finite, got nan"),
        ("dac", {"tau": float("inf")}, "tau must be 0 or more, and finite, got inf"),
        ("dac", {"neighbours": -1}, "neighbours must be 0 or more"),
        ("random", {"neighbours": -1}, "neighbours must be 0 or more"),
        (
            "dac",
            {"similarity": "cosine"},
            "policy.similarity must be one of cosine-weights, .*; did you mean 'cosine-weights'",
        ),
        ("nowhere:Policy", {}, "cannot be imported: .*; its file nowhere.py must be in the folder of the scenario"),
        ("p2pfl:Mee", {}, "has no attribute 'Mee'; did you mean p2pfl:Me?"),
        ("mine.py:Policy", {}, "'mine.py:Policy': write mine:Policy, without .py"),
        ("nowhere:", {}, "policy 'nowhere:' is not of the form package.module:factory"),
        ("p2pfl:RandomStreams", {"seed": 0, "name": ""}, "not a valid policy: it lacks prepare, round, state, restore"),
    ],
)
def test_make_policy_refuses_invalid_policies(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_policy(name, options)


def test_make_policy_checks_class_before_instantiation(tmp_path, monkeypatch):
    (tmp_path / "careless.py").write_text("class Thing:\n    def __init__(self):\n        raise SystemExit('made')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="is not a valid policy: it lacks prepare, round, state, restore"):
        make_policy("careless:Thing", {})


def test_make_policy_accepts_whole_number_for_float():
    assert make_policy("dac", {"tau": 3}).tau == 3.0


def test_negative_budget_is_refused():
    with pytest.raises(ValueError, match="negative"):
        Budget(models=-1)
