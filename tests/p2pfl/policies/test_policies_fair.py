"""LFT+FedAvg, LFT+Ensemble, FedFB, FairFed and AgnosticFair: weights and steps by hand, and the data they send."""

import json

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.algorithms.group_statistics import (
    CountGroups,
    GroupCounts,
    agnostic_step,
    disparity,
    even,
    fedfb_step,
    from_extras,
    to_extras,
    total,
)
from p2pfl.errors import ConfigurationError
from p2pfl.fairness import fair_task
from p2pfl.fairness.metrics import covariance_loss, mix_logits, tally_of
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.parameters import Layout
from p2pfl.policies import make_policy
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.fairfed import FairFed, gaps_of
from p2pfl.policies.fedfb import AgnosticFair, FedFB
from p2pfl.policies.lft import LftEnsemble, LftFedAvg
from p2pfl.policies.local import Local
from p2pfl.policy import Coordinated, Submission
from p2pfl.prediction_mixing import ModelEnsemble
from p2pfl.queries import Evaluate, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory
from p2pfl.update_rules import Weighted
from tests.support.restarted import Restarted
from tests.support.simulated import run

FLAT = Layout((("w", (2,)),), 2)
TABLE = {"data": "synthetic", "rows": 400, "kind": "covariance", "share": 0.0, "normalise": False, "hidden": [4]}
TABLE |= {"preference": [1.0, 0.0], "against": "mean", "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.01}}
NAMES = ["node-0", "node-1", "node-2"]
TASKS = {name: make_task("fairness", TABLE, Part(k, 3), 0) for k, name in enumerate(NAMES)}
COORDINATED = {
    "lft-fedavg": lambda **options: LftFedAvg(**{"epochs": 2, "alpha": 0.5, "updates": 2} | options),
    "fedfb": lambda **options: FedFB(**{"alpha": 0.5} | options),
    "fairfed": lambda **options: FairFed(**{"alpha": 0.5, "beta": 2.0} | options),
    "agnostic-fair": lambda **options: AgnosticFair(**{"rate": 0.5} | options),
}
MADE = COORDINATED | {"lft-ensemble": lambda **options: LftEnsemble(**{"alpha": 0.5} | options)}
EXTRAS = {
    "lft-fedavg": set(),
    "fedfb": {"counts", "losses"},
    "fairfed": {"counts", "positive"},
    "agnostic-fair": {"counts", "losses"},
}


def play(make, tasks=TASKS, rounds=3, **options):
    policies = {name: make() for name in tasks}
    return policies, *run_in_memory(policies, tasks, rounds, **options)


def tally(counts, positive=None, losses=None):
    counts = np.array(counts, np.int64)
    none = np.zeros_like(counts)
    return GroupCounts(
        counts, none if positive is None else np.array(positive), np.array(none if losses is None else losses, float)
    )


def submission(id, seen, names, trained=(0, 0), previous=None, round=1):
    samples = int(seen.counts.sum())
    return Submission(id, round, np.array(trained, np.float32), samples, to_extras(seen, *names), previous or {})


# Tallies


def test_tally_by_hand():
    """Five people of two groups: labels 1 0 0 1 1, groups 0 0 1 1 1, probabilities 3/4 1/4 3/4 1/4 3/4."""
    third = np.log(3)  # the logit of 3/4
    logits = torch.tensor([third, -third, third, -third, third], dtype=torch.float64)
    found = tally_of(logits, torch.tensor([1.0, 0, 0, 1, 1]).double(), torch.tensor([0, 0, 1, 1, 1]), 2)
    assert found.counts.tolist() == [[1, 1], [1, 2]]
    assert found.positive.tolist() == [[0, 1], [1, 1]]
    right, wrong = -np.log(3 / 4), -np.log(1 / 4)
    assert found.losses == pytest.approx(np.array([[right, wrong], [right, wrong + right]]))
    assert found.right == 3
    assert disparity(found) == pytest.approx(1 / 10)  # 1/2 and 2/3 compared with 3/5
    both = total([found, found])
    assert both.counts.tolist() == [[2, 2], [2, 4]]
    assert both.right == 6


def test_tally_stacked_equals_one_by_one():
    learners = [TASKS[name].learner(RandomStreams(0, name)) for name in NAMES]
    jobs = [NodeQuery(k, CountGroups(TASKS[name].initial(k))) for k, name in enumerate(NAMES)]
    for one, other, task in zip(
        SequentialLearner(learners).compute(jobs), BatchedLearner(learners).compute(jobs), TASKS.values(), strict=True
    ):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
        assert one.counts.sum() == task.n_samples
        assert 0 < one.losses.sum() / task.n_samples < 3


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({}, "has no tally"),
        ({"counts": np.array([[1.0], [2.0]])}, "has no tally"),
        ({"counts": np.array([[1, 2, 3]])}, "the sum of 6 samples"),
        ({"counts": np.array([[7], [-1]])}, "the sum of 6 samples"),
        ({"counts": np.array([[2**62], [2**62]])}, "the sum of 6 samples"),
        ({"counts": np.array([[1], [2]])}, "the sum of 6 samples"),
        ({"counts": np.zeros((2, 0), np.int64)}, "has no tally"),
        ({"counts": np.array([[2], [4]]), "positive": np.array([[3], [0]])}, "more positive decisions than samples"),
        ({"counts": np.array([[2], [4]]), "positive": np.array([[1, 1], [0, 0]])}, "more positive decisions than samples"),
        ({"counts": np.array([[2], [4]]), "losses": np.array([[-1.0], [0.0]])}, "finite, 0 or more"),
        ({"counts": np.array([[2], [4]]), "losses": np.array([[np.inf], [0.0]])}, "finite, 0 or more"),
        ({"counts": np.array([[2], [4]]), "losses": np.array([[np.nan], [0.0]])}, "finite, 0 or more"),
        ({"counts": np.array([[2], [4]]), "losses": np.array([[1e308], [0.0]])}, "finite, 0 or more"),
        ({"counts": np.array([[6], [0]]), "losses": np.array([[1.0], [1.0]])}, "0 where there are no samples"),
    ],
)
def test_from_extras_refuses_invalid_tally(extras, message):
    with pytest.raises(ValueError, match=message):
        from_extras(extras, 6)


# Weights of samples


def test_fedfb_weight_step_by_hand():
    """Group 0 has 4 samples, losses .8 and 1.2, 2 of label 1: rate (.8 - 1.2 + 2) / 4 = .4.

    Group 1 has (1.5 - .1 + 1) / 6 = .4. With .7 instead of .1 it has .3: the first group has .1 more, the second .1 less.
    """
    same = tally([[2, 5], [2, 1]], losses=[[0.8, 1.5], [1.2, 0.1]])
    assert fedfb_step(even(2), same, 1.0) == pytest.approx(np.ones((2, 2)))
    found = fedfb_step(even(2), tally([[2, 5], [2, 1]], losses=[[0.8, 1.5], [1.2, 0.7]]), 0.6)
    first, second = 0.6 * 0.1 * 10 / 4, -0.6 * 0.1 * 10 / 6
    assert found == pytest.approx(np.array([[1 + first, 1 + second], [1 - first, 1 - second]]))


def test_fedfb_weight_step_of_several_groups_by_hand():
    seen = tally([[0, 2, 2, 2], [0, 2, 2, 2]], losses=[[0, 1, 2, 1], [0, 1, 1, 2]])  # rates 1/2, 3/4, 1/4
    found = fedfb_step(even(4), seen, 0.1)
    assert found[0] == pytest.approx([1, 1 - 0, 1 + 0.1 * 0.25 * 3, 1 - 0.1 * 0.25 * 3])
    seen = tally([[0, 2, 2, 2], [0, 2, 2, 2]], losses=[[0, 1, 2, 2], [0, 1, 1, 1]])
    assert fedfb_step(even(4), seen, 0.1)[0] == pytest.approx([1, 1 - 0.1 * 0.5 * 3, 1 + 0.1 * 0.25 * 3, 1 + 0.1 * 0.25 * 3])


@given(st.integers(1, 4), st.integers(0, 2**31), st.floats(0, 1e6))
def test_fedfb_weights_are_not_negative_and_sum_to_2(groups, seed, step):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, (2, groups))
    counts[0, 0] += 1
    found = fedfb_step(even(groups), tally(counts, losses=rng.random((2, groups)) * counts), step)
    assert found.min() >= 0
    assert found.sum(0) == pytest.approx(np.full(groups, 2.0))


def test_agnostic_weight_step_by_hand():
    seen = tally([[1, 0], [1, 2]], losses=[[0.1, 0], [0.3, 0.4]])  # means .1, .3, .2
    found = agnostic_step(even(2), seen, 2.0)
    raised = np.exp([0.2, 0.6, 0.4])
    assert found == pytest.approx(
        np.array([[raised[0], 0], [raised[1], raised[2]]]) * 4 / (raised @ [1, 1, 2]) + [[0, 1], [0, 0]]
    )
    assert (found * seen.counts).sum() == pytest.approx(4)
    assert agnostic_step(found, seen, 0.0) == pytest.approx(found)


def by_hand(task, params, weights, rate):
    """One step of gradient descent on all samples, by torch."""
    vector = torch.tensor(params, requires_grad=True)
    x, y = task.data["train"]
    parts = task.layout.unflatten(vector)
    logits = torch.relu(x @ parts["0.weight"].T + parts["0.bias"]) @ parts["2.weight"].T + parts["2.bias"]
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y[:, 0], reduction="none")
    own = torch.tensor(weights, dtype=torch.float32)[y[:, 0].long(), y[:, 1].long()]
    (own * each).mean().backward()
    return params - rate * vector.grad.numpy()


def test_weighted_rule_equals_step_on_weighted_loss():
    sgd = {"batch_size": 1000, "optimizer": {"name": "sgd", "lr": 0.5}}
    task = make_task("fairness", TABLE | sgd, Part(0, 3), 0)
    start, weights = task.initial(0), np.array([[0.5, 1.5], [1.5, 0.25]])
    found = task.learner(RandomStreams(0, "a")).train(start, round=1, rule=Weighted(weights))
    assert found == pytest.approx(by_hand(task, start, weights, 0.5), abs=1e-6)
    plain = task.learner(RandomStreams(0, "a")).train(start, round=1)
    assert task.learner(RandomStreams(0, "a")).train(start, round=1, rule=Weighted(even(2))).tobytes() == plain.tobytes()
    assert np.abs(found - plain).max() > 1e-3


@pytest.mark.parametrize("dense", [True, False])
def test_weighted_rule_stacked_equals_one_by_one(dense):
    rng = np.random.default_rng(0)
    tasks = [
        make_task("fairness", TABLE | {"partition": {"name": "dirichlet", "alpha": 1.0}}, Part(k, 4), 0) for k in range(4)
    ]
    assert len({task.n_samples for task in tasks}) > 1
    learners = [task.learner(RandomStreams(0, f"node-{k}")) for k, task in enumerate(tasks)]
    jobs = [NodeQuery(k, Train(t.initial(k), 1, 2, rule=Weighted(rng.random((2, 2)) * 2))) for k, t in enumerate(tasks)]
    for one, other in zip(
        SequentialLearner(learners).compute(jobs), BatchedLearner(learners, dense).compute(jobs), strict=True
    ):
        assert np.abs(one - other).max() < 1e-5 * np.abs(one).max()


def test_group_queries_refuse_task_without_groups():
    task = make_task("concept-shift", {}, Part(0, 3), 0)
    learner = task.learner(RandomStreams(0, "a"))
    for ask in (
        lambda: learner.compute(CountGroups(task.initial(0))),
        lambda: learner.train(task.initial(0), round=1, rule=Weighted(even(2))),
        lambda: learner.evaluate([task.initial(0)], ("test",), ModelEnsemble([task.initial(1)], [0.5])),
    ):
        with pytest.raises(ConfigurationError, match="whose samples have labels and groups"):
            ask()


# Local fair training


def test_lft_fedavg_updates_weights_from_group_losses():
    policies, *_ = play(lambda: LftFedAvg(epochs=2, alpha=0.5, updates=2), rounds=1)
    for name, task in TASKS.items():
        learner, start = task.learner(RandomStreams(0, name)), task.initial(0)
        first = fedfb_step(even(2), learner.compute(CountGroups(start)), 0.5)
        half = learner.train(start, round=1, rule=Weighted(first))
        second = fedfb_step(first, learner.compute(CountGroups(half)), 0.5 / np.sqrt(2))
        assert policies[name].weights == pytest.approx(second)
        assert policies[name].moves == 2


@pytest.mark.parametrize("name", ["lft-fedavg", "fedfb", "fairfed", "agnostic-fair"])
def test_fair_policies_with_neutral_options_equal_fedavg(name):
    plain = {
        "lft-fedavg": {"alpha": 0.0, "updates": 1, "epochs": 1},
        "fedfb": {"alpha": 0.0},
        "agnostic-fair": {"rate": 0.0},
    }
    plain["fairfed"] = {"alpha": 0.0, "beta": 0.0}
    _, one, _ = play(CoordinatedFedAvg)
    _, other, _ = play(lambda: COORDINATED[name](**plain[name]))
    for id in NAMES:
        assert one[id].params == pytest.approx(other[id].params, abs=1e-6)


def test_lft_ensemble_trains_alone_and_predicts_jointly():
    policies, cast, history = play(lambda: LftEnsemble(alpha=0.0), rounds=2)
    _, alone, _ = play(Local, rounds=2)
    shares = np.array([task.n_samples for task in TASKS.values()]) / sum(task.n_samples for task in TASKS.values())
    learner = TASKS["node-0"].learner(RandomStreams(0, "node-0"))
    for id in NAMES:
        assert cast[id].params.tobytes() == alone[id].params.tobytes()
        assert history[-1][id].weights == {id: 1.0}
    x, y = TASKS["node-0"].data["test"]
    with torch.no_grad():
        means = [share * torch.sigmoid(learner.outputs(cast[id].params, x)) for id, share in zip(NAMES, shares, strict=True)]
    right = ((sum(means)[:, 0] > 0.5) == (y[:, 0] == 1)).double().mean().item()
    (found,) = learner.evaluate([cast["node-0"].params], ("test",), policies["node-0"].memory)
    assert found["test_accuracy"] == pytest.approx(right)
    (own,) = learner.evaluate([cast["node-0"].params], ("test",), None)
    assert found["test_loss"] != pytest.approx(own["test_loss"])
    job = NodeQuery(0, Evaluate([cast["node-0"].params], ("test",), policies["node-0"].memory))
    assert BatchedLearner([learner]).compute([job]) == [[pytest.approx(found)]]


def test_mix_logits_averages_probabilities():
    logits = [torch.tensor([[0.0], [100.0]]), torch.tensor([[float(np.log(3))], [-100.0]])]
    assert torch.sigmoid(mix_logits(logits, [0.25, 0.75])).flatten().tolist() == pytest.approx([0.125 + 0.5625, 0.25])


# The baseline classifier of PraFFL

SINGLE = {"data": "synthetic", "rows": 400, "model": "single", "batch_size": 32}


def test_fair_classifier_loss_by_hand():
    logits, targets = torch.tensor([[0.0], [np.log(3)], [0.0]]).double(), torch.tensor([[1.0, 0], [1, 0], [0, 1]]).double()
    each = -np.log([1 / 2, 3 / 4, 1 / 2])
    assert fair_task.Loss(2)(logits, targets).tolist() == pytest.approx([each.mean()])
    own = torch.tensor([[0.5], [1.5], [2.0]]).double()
    weighted = (each * [0.5, 1.5, 2.0]).mean()
    assert fair_task.Loss(2)(logits, torch.cat([targets, own], 1)).tolist() == pytest.approx([weighted])
    penalty = covariance_loss(torch.sigmoid(logits[:, 0]), targets[:, 1], 2).item()
    found = fair_task.Loss(2, 7.0)(logits, torch.cat([targets, own], 1)).tolist()
    assert found == pytest.approx([weighted + 7 * penalty])
    assert penalty > 0


def test_kept_option_selects_validation_loss():
    found = {}
    for kept in ("loss", "hypervolume"):
        task = make_task("praffl", SINGLE | {"kept": kept}, Part(0, 3), 0)
        (found[kept],) = task.learner(RandomStreams(0, "a")).evaluate([task.initial(0)], ("validation",))
    assert found["hypervolume"]["validation_loss"] == pytest.approx(1 - found["loss"]["validation_hypervolume"])
    assert found["loss"]["validation_loss"] != pytest.approx(found["hypervolume"]["validation_loss"])


@pytest.mark.parametrize("name", MADE)
def test_fair_policies_train_the_single_classifier(name):
    tasks = {id: make_task("praffl", SINGLE | {"penalty": 1.0}, Part(k, 3), 0) for k, id in enumerate(NAMES)}
    policies, cast, _ = play(MADE[name], tasks, rounds=2)
    for id, task in tasks.items():
        learner = task.learner(RandomStreams(0, id))
        (before,), (after,) = (learner.evaluate([p], ("train",), None) for p in (cast[id].initial, cast[id].params))
        assert after["train_loss"] < before["train_loss"]
        (together,) = learner.evaluate([cast[id].params], ("test",), getattr(policies[id], "memory", None))
        assert 0 <= together["test_hypervolume"] <= 1
        assert learner.compute(CountGroups(cast[id].params)).counts.sum() == task.n_samples
    with pytest.raises(ConfigurationError, match="penalty must be 0 or more"):
        make_task("praffl", SINGLE | {"penalty": -1.0}, Part(0, 3), 0)


# The coordinator's steps


def test_fedfb_step_by_hand():
    one = tally([[2, 1], [2, 0]], losses=[[0.8, 0.5], [1.2, 0.0]])
    other = tally([[0, 4], [0, 1]], losses=[[0.0, 1.0], [0.0, 0.7]])
    there = [submission("b", other, ["losses"], (3, 0)), submission("a", one, ["losses"], (0, 0))]
    assignments, state = FedFB(alpha=0.6).step(there, {}, FLAT)
    weights = fedfb_step(even(2), total([one, other]), 0.6)  # as in test_fedfb_weight_step_by_hand
    assert state == {"number": 1, "weights": pytest.approx(weights)}
    for assignment in assignments.values():
        assert assignment.weights == {"a": 0.5, "b": 0.5}
        assert assignment.params.tolist() == [1.5, 0]
        assert assignment.extras["weights"] == pytest.approx(weights)
    previous = assignments["a"].extras
    there = [msgspec.structs.replace(s, previous=previous, round=2) for s in there]
    after, state = FedFB(alpha=0.6).step(there, state, FLAT)
    sizes = {"a": (weights * one.counts).sum(), "b": (weights * other.counts).sum()}
    assert after["a"].weights == pytest.approx({id: size / sum(sizes.values()) for id, size in sizes.items()})
    assert sizes["a"] != pytest.approx(sizes["b"])
    assert state["weights"] == pytest.approx(fedfb_step(weights, total([one, other]), 0.6 / np.sqrt(2)))


def test_agnostic_fair_step_by_hand():
    one, other = tally([[2], [2]], losses=[[0.2], [2.0]]), tally([[4], [0]], losses=[[1.0], [0.0]])
    there = [submission("a", one, ["losses"]), submission("b", other, ["losses"], (8, 0))]
    assignments, _ = AgnosticFair(rate=1.0).step(there, {}, FLAT)
    raised = np.exp([[1.2 / 6], [1.0]])
    assert assignments["a"].extras["weights"] == pytest.approx(raised * 8 / (6 * raised[0, 0] + 2 * raised[1, 0]))
    assert assignments["b"].params.tolist() == [4, 0]


def test_fairfed_step_by_hand():
    """Node a decides 3 of 4 and 1 of 4 positive: disparity 1/4; b 2 of 4 each: 0; both 5 of 8 and 3 of 8: 1/8."""
    a = tally([[2, 2], [2, 2]], positive=[[1, 0], [2, 1]])
    b = tally([[2, 2], [2, 2]], positive=[[1, 1], [1, 1]])
    assert gaps_of([a, b]) == pytest.approx([1 / 8, 1 / 8])
    c = tally([[4, 0], [4, 0]], positive=[[4, 0], [0, 0]])  # one group, all decided wrongly
    everyone = total([a, b, c])  # positive 9 of 16 and 3 of 8, in total 12 of 24; correct 6 + 4 + 0 of 24
    assert disparity(everyone) == pytest.approx(1 / 8)
    gaps = np.array([1 / 8, 1 / 8, 10 / 24])
    assert gaps_of([a, b, c]) == pytest.approx(gaps)
    there = [submission(id, seen, ["positive"], (k, 0)) for k, (id, seen) in enumerate(zip("abc", (a, b, c), strict=True))]
    assignments, state = FairFed(beta=0.6).step(there, {}, FLAT)
    moved = 1 / 3 - 0.6 * (gaps - gaps.mean())
    assert assignments["a"].weights == pytest.approx(dict(zip("abc", moved, strict=True)))
    assert assignments["b"].params[0] == pytest.approx(moved[1] + 2 * moved[2])
    assert {id: float(each.extras["weight"][0]) for id, each in assignments.items()} == pytest.approx(state)
    again, _ = FairFed(beta=0.6).step(there, state, FLAT)
    assert again["a"].weights == pytest.approx(dict(zip("abc", moved - 0.6 * (gaps - gaps.mean()), strict=True)))
    lost, _ = FairFed(beta=100.0).step(there, {}, FLAT)
    assert lost["c"].weights == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})


@pytest.mark.parametrize("name", ["fedfb", "agnostic-fair", "fairfed"])
def test_successor_rebuilds_state_from_submissions(name):
    """From the extras that participants send back, in any order, and without side effects."""
    rng, policy, previous, state = np.random.default_rng(1), COORDINATED[name](), {id: {} for id in "abc"}, {}
    for round in range(1, 5):
        seen = [tally(c := rng.integers(1, 9, (2, 3)), rng.integers(0, c + 1), rng.random((2, 3))) for _ in "abc"]
        there = [
            submission(id, each, EXTRAS[name] - {"counts"}, rng.normal(size=2), previous[id], round)
            for id, each in zip("abc", seen, strict=True)
        ]
        before = repr(state), repr(policy)
        rebuilt, _ = policy.step([there[2], there[0], there[1]], {}, FLAT)
        made, after = policy.step(there, state, FLAT)
        assert (repr(state), repr(policy)) == before
        for id in "abc":
            assert rebuilt[id].params == pytest.approx(made[id].params, abs=1e-12)
            assert all((rebuilt[id].extras[key] == array).all() for key, array in made[id].extras.items())
        previous, state = {id: each.extras for id, each in made.items()}, after


@pytest.mark.parametrize(
    ("name", "previous", "message"),
    [
        ("fedfb", {"weights": np.ones((2, 3)), "number": np.array([1])}, "has no weights"),
        ("fedfb", {"number": np.array([1])}, "has no weights"),
        ("fedfb", {"weights": -np.ones((2, 2)), "number": np.array([1])}, "from 0 to 1e"),
        ("fedfb", {"weights": np.full((2, 2), 1e300), "number": np.array([1])}, "from 0 to 1e"),
        ("fedfb", {"weights": np.full((2, 2), np.nan), "number": np.array([1])}, "from 0 to 1e"),
        ("fedfb", {"weights": np.ones((2, 2)), "number": np.array([0])}, "no valid number"),
        ("fedfb", {"weights": np.ones((2, 2)), "number": np.array([4])}, "no valid number"),
        ("fairfed", {"weight": np.array([2e9])}, "no weight from 0 to 1e"),
        ("fairfed", {"weight": np.array([np.nan])}, "no weight from 0 to 1e"),
        ("fairfed", {"other": np.array([0.5])}, "no weight from 0 to 1e"),
    ],
)
def test_invalid_previous_extras_are_refused_and_never_sent(name, previous, message):
    there = [submission("a", tally([[1, 1], [1, 1]]), EXTRAS[name] - {"counts"}, previous=previous, round=4)]
    with pytest.raises(ValueError, match=message):
        COORDINATED[name]().step(there, {}, FLAT)

    def lying():
        policy = COORDINATED[name]()
        honest = policy.step
        policy.step = lambda *given: (
            {id: msgspec.structs.replace(each, extras=previous) for id, each in honest(*given)[0].items()},
            {},
        )
        return policy

    policies, *_ = play(lying, rounds=2)
    assert all(policy.previous == {} for policy in policies.values())


@pytest.mark.parametrize("name", COORDINATED)
def test_extras_with_other_names_are_never_sent(name):
    def lying():
        policy = COORDINATED[name]()
        honest = policy.step

        def step(*given):
            assignments, state = honest(*given)
            junk = {"junk": np.zeros(4)}
            return {id: msgspec.structs.replace(a, extras=a.extras | junk) for id, a in assignments.items()}, state

        policy.step = step
        return policy

    policies, *_ = play(lying, rounds=2)
    assert all(policy.previous == {} for policy in policies.values())


@pytest.mark.parametrize("name", ["fedfb", "agnostic-fair"])
def test_node_that_goes_back_forgets_later_extras(name):
    policies, *_ = play(COORDINATED[name], rounds=4)
    run_in_memory(policies, TASKS, 2)
    assert all(int(policy.previous["number"][0]) <= 2 for policy in policies.values())


def test_fairfed_weight_above_1_reaches_the_successor():
    """The step of FairFed leaves a sum above 1 if it holds a weight at 0."""
    fair, unfair = tally([[2, 2], [2, 2]], [[1, 1], [1, 1]]), tally([[2, 2], [2, 2]], [[2, 0], [2, 0]])
    policy, seen, state = FairFed(beta=5.0), dict(zip("abc", (fair, unfair, unfair), strict=True)), {}
    previous = {id: {} for id in seen}
    for round in range(1, 5):
        there = [submission(id, each, ["positive"], previous=previous[id], round=round) for id, each in seen.items()]
        assert policy.step(there, {}, FLAT)[0]["a"].weights == policy.step(there, state, FLAT)[0]["a"].weights
        made, state = policy.step(there, state, FLAT)
        previous = {id: each.extras for id, each in made.items()}
    assert max(state.values()) > 1


def test_submissions_of_different_groups_are_refused():
    there = [submission("a", tally([[1, 1], [1, 1]]), ["losses"]), submission("b", tally([[1], [1]]), ["losses"])]
    with pytest.raises(ValueError, match="different groups"):
        FedFB().step(there, {}, FLAT)
    there = [submission("a", tally([[1, 1], [1, 1]]), ["positive"]), submission("b", tally([[1], [1]]), ["positive"])]
    with pytest.raises(ValueError, match="different groups"):
        FairFed().step(there, {}, FLAT)


# All policies


@pytest.mark.parametrize("name", MADE)
def test_fair_policy_run_after_restart_is_identical(name):
    options = {} if name == "lft-ensemble" else {"absent": {2: ["node-1"]}}
    policies, through, _ = play(MADE[name], rounds=4, **options)
    others, again, _ = play(lambda: Restarted(MADE[name]), rounds=4, **options)
    assert all(through[id].params.tobytes() == again[id].params.tobytes() for id in NAMES)
    if name == "lft-ensemble":
        assert policies["node-1"].memory.shares == others["node-1"].inner.memory.shares
        for one, other in zip(policies["node-1"].others, others["node-1"].inner.others, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", COORDINATED)
def test_absent_node_keeps_its_trained_model(name):
    assert isinstance(make_policy(name, {}), Coordinated)
    _, cast, history = play(COORDINATED[name], rounds=4, absent={1: ["node-0"], 2: ["node-2"]})
    assert history[1]["node-2"].weights == {"node-2": 1.0}
    assert "node-2" not in history[1]["node-1"].weights
    assert "node-2" in history[2]["node-1"].weights
    assert all(np.isfinite(actor.params).all() for actor in cast.values())


@pytest.mark.parametrize("name", COORDINATED)
def test_submissions_contain_only_the_documented_tally(name):
    """Models travel with counts by label and group and the sums listed in docs/security.md, or with nothing."""
    seen = []

    def watched():
        policy = COORDINATED[name]()
        step = policy.step

        def watching(there, state, layout):
            seen.extend(there)
            return step(there, state, layout)

        policy.step = watching
        return policy

    _, cast, _ = play(watched, rounds=3)
    assert len(seen) == 9
    returned = {"fairfed": {"weight"}, "lft-fedavg": set()}.get(name, {"weights", "number"})
    for each in seen:
        assert set(each.extras) == EXTRAS[name]
        assert set(each.previous) == (returned if each.round > 1 else set())
        assert all(array.shape == (2, 2) for array in each.extras.values())
        assert each.start is None
    assert not any(actor.published for actor in cast.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_fair_policies_modelled_equal_wire_bit_for_bit(name, monkeypatch):
    from p2pfl.protocols.wire import payload as wire

    written = []
    encode = wire.encode_submission

    def watching(extras, previous):
        written.append((set(extras), len(encode(extras, previous))))
        return encode(extras, previous)

    monkeypatch.setattr("p2pfl.node.coordination.submissions.encode_submission", watching)
    small = {
        "nodes": 3,
        "rounds": 3,
        "task": {"name": "fairness", **TABLE},
        "policy": {"name": name},
        "trainer": "one-by-one",
    }
    runs = [run(resolve({**small, "fidelity": kind}, [], "test", ".").runs[0]) for kind in ("modelled", "wire")]
    params = [{id: node.me.params.tobytes() for id, node in done.nodes.items()} for done in runs]
    assert params[0] == params[1]
    assert runs[1].expired == 0
    assert all(names == EXTRAS[name] and size < 400 for names, size in written)
    assert bool(written) == (name != "lft-ensemble")


@pytest.mark.parametrize("name", MADE)
def test_fair_policies_refuse_task_without_groups(name):
    task = {id: make_task("concept-shift", {}, Part(k, 2), 0) for k, id in enumerate("ab")}
    with pytest.raises(ConfigurationError, match="whose samples have labels and groups"):
        play(MADE[name], task)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lft-fedavg", {"alpha": -1.0}, "alpha must be 0 or more, and finite, got -1.0"),
        ("lft-ensemble", {"epochs": 5, "updates": 2}, "updates must be 1 or more, and divide epochs, got 2 of 5"),
        ("lft-ensemble", {"updates": 0}, "updates must be 1 or more, and divide epochs, got 0 of 1"),
        ("fairfed", {"beta": float("inf")}, "beta must be 0 or more, and finite, got inf"),
        ("fedfb", {"alpha": float("nan")}, "alpha must be 0 or more, and finite, got nan"),
        ("agnostic-fair", {"rate": -0.5}, "rate must be 0 or more, and finite, got -0.5"),
    ],
)
def test_fair_policies_refuse_invalid_options(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_policy(name, options)


def test_fedfb_state_survives_json():
    policies, *_ = play(COORDINATED["fedfb"], rounds=2)
    stored = json.loads(json.dumps(policies["node-1"].state() | {"best": ""})) | {"best": b""}
    again = FedFB()
    again.restore(stored)
    assert again.previous["weights"].tobytes() == policies["node-1"].previous["weights"].tobytes()
