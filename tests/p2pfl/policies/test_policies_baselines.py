"""Ditto, APFL, Per-FedAvg, pFedMe, FedALA, pFedGraph and kNN-Per: rules by hand, limit cases, and restarts."""

import dataclasses
import itertools
from functools import cache

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import classification, regression
from p2pfl.parameters import Layout
from p2pfl.policies import make_policy
from p2pfl.policies.apfl import Apfl
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.ditto import Ditto
from p2pfl.policies.fedala import FedAla
from p2pfl.policies.knn_per import KnnPer
from p2pfl.policies.local import Local
from p2pfl.policies.per_fedavg import PerFedAvg
from p2pfl.policies.pfedgraph import PFedGraph, graph
from p2pfl.policies.pfedme import PFedMe
from p2pfl.policy import Coordinated, Submission
from p2pfl.prediction_mixing import KnnDatastore, knn_mixed_logits
from p2pfl.queries import Evaluate, NodeQuery
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.results.results import result_of
from p2pfl.sim.results.summary_metrics import traffic
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory
from p2pfl.update_rules import Aligned, Descent, Envelope, Lookahead
from tests.support.depth import pairs
from tests.support.restarted import Restarted
from tests.support.simulated import run

LR = 0.1
NAMES = [f"node-{k}" for k in range(6)]
TASKS = {name: make_task("concept-shift", {}, Part(k, 6), 0) for k, name in enumerate(NAMES)}
MADE = {
    "ditto": lambda: Ditto(weight=0.01),
    "apfl": lambda: Apfl(alpha_lr=1e-5),
    "per-fedavg": lambda: PerFedAvg(lr=0.001),
    "pfedgraph": lambda: PFedGraph(weight=0.5),
    "knn-per": lambda: KnnPer(ft="from-best"),
    "pfedme": lambda: PFedMe(weight=1.0, inner_lr=0.01),
    "fedala": lambda: FedAla(lr=0.01, first_epochs=3),
}


def number(*targets):
    """Task with one weight w and the loss mean (w - y)^2: its gradient is 2 (w - mean of y)."""
    ones = np.ones((len(targets), 1), np.float32)
    y = np.array(targets, np.float32)[:, None]
    return regression(lambda: nn.Linear(1, 1, bias=False), (ones, y), optimizer=SGD(LR))


def play(make, tasks=TASKS, rounds=3, **options):
    policies = {name: make() for name in tasks}
    return policies, *run_in_memory(policies, tasks, rounds, **options)


def down(w, y):
    return 2 * (w - y)


# Ditto


def test_ditto_two_rounds_by_hand():
    targets, pull = {"a": 0.0, "b": 3.0}, 0.5
    policies, cast, _ = play(lambda: Ditto(weight=pull), {id: number(y) for id, y in targets.items()}, rounds=2)
    shared = float(cast["a"].initial[0])
    own = dict.fromkeys(targets, shared)
    for _ in range(2):
        own = {id: v - LR * (down(v, targets[id]) + pull * (v - shared)) for id, v in own.items()}
        shared = np.mean([shared - LR * down(shared, y) for y in targets.values()])
    for id, policy in policies.items():
        assert cast[id].params[0] == pytest.approx(own[id])
        assert policy.shared[0] == pytest.approx(shared)
    assert abs(cast["a"].params[0] - cast["b"].params[0]) > 0.5


@pytest.mark.slow
def test_ditto_without_pull_equals_local_and_shares_fedavg():
    policies, cast, history = play(lambda: Ditto(weight=0.0, epochs=2))
    _, alone, _ = play(lambda: Local(epochs=2))
    _, together, averages = play(lambda: CoordinatedFedAvg(epochs=2))
    for name in NAMES:
        assert cast[name].params.tobytes() == alone[name].params.tobytes()
        assert policies[name].shared.tobytes() == together[name].params.tobytes()
        assert history[-1][name].weights == averages[-1][name].weights


@pytest.mark.slow
def test_ditto_strong_pull_holds_model_near_shared_one():
    far = []
    for pull in (0.0, 1 / LR):  # with a pull of 1 / LR a step starts from the shared model
        policies, cast, _ = play(lambda: Ditto(weight=pull), {"a": number(0), "b": number(3)}, rounds=30)  # noqa: B023
        far.append(abs(float(cast["a"].params[0] - policies["a"].shared[0])))
    assert far[0] == pytest.approx(1.5, abs=0.01)
    assert far[1] == pytest.approx(1.5 - 1.5 / 1.2, abs=0.01)  # the solution of v = 1.5 - 2 LR v


# APFL


@pytest.mark.parametrize("alpha_lr", [0.0, 0.05])
def test_apfl_three_rounds_by_hand(alpha_lr):
    targets = {"a": 0.0, "b": 3.0}
    policies, cast, _ = play(
        lambda: Apfl(epochs=2, alpha=0.25, alpha_lr=alpha_lr), {id: number(y) for id, y in targets.items()}
    )
    shared = float(cast["a"].initial[0])
    own, alpha = dict.fromkeys(targets, shared), dict.fromkeys(targets, 0.25)
    for _ in range(3):
        sent = {}
        for id, y in targets.items():
            v, w = own[id], shared
            alpha[id] -= alpha_lr * down(alpha[id] * v + (1 - alpha[id]) * w, y) * (v - w)
            alpha[id] = min(max(alpha[id], 0.0), 1.0)
            for _ in range(2):
                mixture = alpha[id] * v + (1 - alpha[id]) * w
                v, w = v - LR * alpha[id] * down(mixture, y), w - LR * down(w, y)
            own[id], sent[id] = v, w
        shared = np.mean(list(sent.values()))
    for id, policy in policies.items():
        assert policy.mixed == pytest.approx(alpha[id], rel=1e-3)
        assert policy.own[0] == pytest.approx(own[id], rel=1e-3)
        assert cast[id].params[0] == pytest.approx(alpha[id] * own[id] + (1 - alpha[id]) * shared, rel=1e-3)
    assert (policies["a"].mixed == 0.25) == (alpha_lr == 0)


@pytest.mark.slow
def test_apfl_equals_local_at_alpha_1_and_fedavg_at_alpha_0():
    _, alone, _ = play(Local)
    _, together, _ = play(CoordinatedFedAvg)
    for alpha, like in ((1.0, alone), (0.0, together)):
        policies, cast, _ = play(lambda: Apfl(alpha=alpha, alpha_lr=0.0))  # noqa: B023
        for name in NAMES:
            assert cast[name].params == pytest.approx(like[name].params, rel=1e-6)
            assert policies[name].shared.tobytes() == together[name].params.tobytes()


def test_apfl_alpha_stays_between_0_and_1():
    policies, *_ = play(lambda: Apfl(alpha=0.5, alpha_lr=100.0), {"a": number(0), "b": number(3)}, rounds=5)
    assert {policy.mixed for policy in policies.values()} <= {0.0, 1.0}


# Per-FedAvg


def test_per_fedavg_one_round_by_hand():
    samples, ahead = {"a": (0.0, 1.0, 5.0), "b": (3.0, 3.0)}, 0.2  # the middle one of three samples is in both halves
    policies, cast, _ = play(lambda: PerFedAvg(lr=ahead), {id: number(*y) for id, y in samples.items()}, rounds=1)
    w = float(cast["a"].initial[0])
    halves = {"a": (0.5, 3.0), "b": (3.0, 3.0)}
    sent = {id: w - LR * down(w - ahead * down(w, first), second) for id, (first, second) in halves.items()}
    shared = (3 * sent["a"] + 2 * sent["b"]) / 5
    for id, y in samples.items():
        assert policies[id].shared[0] == pytest.approx(shared)
        assert cast[id].published == {}  # only submissions leave the node
        assert cast[id].params[0] == pytest.approx(shared - ahead * down(shared, np.mean(y)))


def test_per_fedavg_with_zero_rate_shares_one_model():
    _, cast, _ = play(lambda: PerFedAvg(lr=0.0))
    assert len({cast[name].params.tobytes() for name in NAMES}) == 1


def test_descent_rule_takes_one_step_on_all_samples():
    learner = TASKS["node-1"].learner(RandomStreams(0, "a"), "cpu")
    start = TASKS["node-1"].initial(0)
    slope = [
        (learner.loss([start + far, start - far], split="train") @ [1, -1]) / 0.02
        for far in 0.01 * np.eye(len(start), dtype=np.float32)
    ]
    stepped = learner.train(start, round=1, epochs=7, rule=Descent(0.001))
    assert stepped - start == pytest.approx(-0.001 * np.array(slope), rel=1e-2, abs=1e-3)


# pFedMe


def test_pfedme_two_rounds_by_hand():
    targets, pull, rate = {"a": 0.0, "b": 3.0}, 2.0, 0.1
    make = lambda: PFedMe(weight=pull, inner_steps=3, inner_lr=rate, beta=0.5)  # noqa: E731
    policies, cast, _ = play(make, {id: number(y) for id, y in targets.items()}, rounds=2)
    shared = float(cast["a"].initial[0])
    for _ in range(2):
        sent = {}
        for id, y in targets.items():
            near = shared
            for _ in range(3):
                near -= rate * (down(near, y) + pull * (near - shared))
            sent[id] = shared - LR * pull * (shared - near)
        shared = (shared + np.mean(list(sent.values()))) / 2
    for id, y in targets.items():
        assert policies[id].shared[0] == pytest.approx(shared)
        assert cast[id].params[0] == pytest.approx(shared - LR * down(shared, y))  # at the start the pull is 0


def test_envelope_rule_leaves_private_values_to_their_gradient():
    ones, zero = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    task = regression(lambda: nn.Linear(1, 1), (ones, zero), optimizer=SGD(LR), private=["bias"])
    start = np.array([1.0, 0.5], np.float32)  # the output is 1.5, and both gradients are 3
    found = task.learner(RandomStreams(0, "a")).train(start, round=1, rule=Envelope(1.0, 0.01, 1))
    assert found == pytest.approx([1.0 - LR * 0.01 * 3, 0.5 - LR * 3])


# FedALA


def test_fedala_two_rounds_by_hand():
    targets, rate = {"a": 0.0, "b": 3.0}, 0.05
    make = lambda: FedAla(lr=rate, first_epochs=2)  # noqa: E731
    policies, cast, _ = play(make, {id: number(y) for id, y in targets.items()}, rounds=2)
    start = dict.fromkeys(targets, float(cast["a"].initial[0]))
    weight = dict.fromkeys(targets, 1.0)
    for round in range(2):
        own = {id: v - LR * down(v, targets[id]) for id, v in start.items()}
        shared = np.mean(list(own.values()))
        for id, y in targets.items():
            apart = shared - own[id]
            for _ in range(2 if round == 0 else 1):
                slope = down(own[id] + weight[id] * apart, y) * apart
                weight[id] = min(max(weight[id] - rate * slope, 0.0), 1.0)
            start[id] = own[id] + weight[id] * apart
    for id, policy in policies.items():
        assert policy.weights[0] == pytest.approx(weight[id], rel=1e-3)
        assert cast[id].params[0] == pytest.approx(start[id], rel=1e-4)
        assert 0 < weight[id] < 1


def test_fedala_takes_lower_layers_from_the_shared_model():
    policies, cast, _ = play(lambda: FedAla(lr=0.5), {f"node-{k}": blobs(k) for k in range(3)}, rounds=3)
    layout = cast["node-0"].layout
    for id, policy in policies.items():
        mine, shared = layout.unflatten(cast[id].params), layout.unflatten(policy.shared)
        assert all((mine[name] == shared[name]).all() for name in ("0.weight", "0.bias"))
        assert any((mine[name] != shared[name]).any() for name in ("2.weight", "2.bias"))


def test_fedala_trains_its_weights_first_when_a_shared_model_arrives():
    """A node without an assignment has nothing to mix: it starts from its own model, and the first training is to come."""
    targets, weights = {"a": 0.0, "b": 3.0, "c": 7.0}, []
    for absent in ({1: ["c"]}, {}):
        tasks = {id: number(y) for id, y in targets.items()}
        policies, cast, _ = play(lambda: FedAla(lr=0.05, first_epochs=2), tasks, rounds=1, absent=absent)
        assert [me.training.trainings for me in cast.values()] == [2, 2, 1 if absent else 2]
        weights.append(policies["c"].weights)
    assert weights[0] is None
    assert 0 < weights[1][0] < 1


def test_fedala_with_all_weights_of_the_shared_model_is_fedavg():
    _, together, _ = play(CoordinatedFedAvg)
    _, cast, _ = play(lambda: FedAla(lr=1e-12))  # the weights stay at 1
    for name in NAMES:
        assert cast[name].params == pytest.approx(together[name].params, rel=1e-5)


# pFedGraph


def test_pfedgraph_weights_by_hand():
    alike = np.array([[1.0, -0.2], [-0.2, 1.0]])
    weights = graph(alike, np.array([0.5, 0.5]), 0.8)  # the nearest of (.5 + 1 / 1.6, .5 - .2 / 1.6) = (1.125, .375)
    assert weights == pytest.approx(np.array([[0.875, 0.125], [0.125, 0.875]]))
    assert graph(alike, np.array([0.5, 0.5]), 0.1) == pytest.approx(np.eye(2))


def test_pfedgraph_weights_equal_updates_by_samples():
    there = [Submission(id, 1, np.array([2.0, 1.0], np.float32), n, start=np.zeros(2, np.float32)) for id, n in
             (("a", 1), ("b", 3), ("c", 6))]  # fmt: skip
    assignments, _ = PFedGraph().step(there, {}, Layout((("w", (2,)),), 2))
    assert all(a.weights == pytest.approx({"a": 0.1, "b": 0.3, "c": 0.6}) for a in assignments.values())
    nearly = np.array([[1.0, 0.91], [0.91, 1.0]])  # counts as equal, as in the authors' program
    assert graph(nearly, np.array([0.5, 0.5]), 0.8) == pytest.approx(np.full((2, 2), 0.5))


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
       st.floats(0.05, 5))  # fmt: skip
def test_pfedgraph_weights_are_optimal(alike, samples, alpha):
    similar = np.clip(np.array(alike), -1, 0.9)
    shares = np.array(samples) / sum(samples)

    def cost(a):
        return alpha * ((a - shares) ** 2).sum(-1) - a @ similar

    (found,) = graph(np.array([similar]), shares, alpha)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    grid = np.array([(i, j, 50 - i - j) for i, j in itertools.product(range(51), repeat=2) if i + j <= 50]) / 50
    assert cost(found) <= cost(grid).min() + 1e-9


def test_pfedgraph_with_tiny_alpha_uses_most_similar_only():
    alike = np.array([[1.0, 0.5, 0.2], [0.5, 1.0, 0.2], [0.2, 0.2, 1.0]])
    assert graph(alike, np.full(3, 1 / 3), 1e-20) == pytest.approx(np.eye(3))


def test_pfedgraph_successor_needs_the_initial_model_once():
    layout = Layout((("w", (2,)),), 2)
    rng = np.random.default_rng(0)
    there = [Submission(id, 1, rng.normal(size=2).astype(np.float32), 1, start=np.ones(2, np.float32)) for id in "abc"]
    first, state = PFedGraph().step(there, {}, layout)
    again, _ = PFedGraph().step([msgspec.structs.replace(s, start=None) for s in there], state, layout)
    assert all(first[id].params.tobytes() == again[id].params.tobytes() for id in "abc")
    with pytest.raises(ValueError, match="no submission has the common initial model"):
        PFedGraph().step([msgspec.structs.replace(s, start=None) for s in there], {}, layout)


def test_aligned_rule_pulls_model_towards_the_assigned_one():
    """The cosine alone makes the step, as in torch: the loss of inputs and targets of 0 has no gradient."""
    task = regression(lambda: nn.Linear(3, 1, bias=False), (np.zeros((2, 3)), np.zeros((2, 1))), optimizer=SGD(LR))
    start, anchor = np.array([1.0, 2.0, -1.0], np.float32), np.array([0.5, -1.0, 3.0], np.float32)
    w = torch.tensor(start, requires_grad=True)
    (1 - nn.functional.cosine_similarity(w, torch.tensor(anchor), dim=0)).backward()
    stepped = task.learner(RandomStreams(0, "a")).train(start, round=1, rule=Aligned(0.7, anchor))
    assert stepped == pytest.approx(start - LR * 0.7 * w.grad.numpy(), rel=1e-5)
    still = task.learner(RandomStreams(0, "a")).train(start, round=1, rule=Aligned(0.7, np.zeros(3, np.float32)))
    assert (still == start).all()


@pytest.mark.slow
def test_pfedgraph_pull_starts_in_the_second_round():
    _, free, _ = play(lambda: PFedGraph(weight=0.0), rounds=1)
    _, held, _ = play(lambda: PFedGraph(weight=50.0), rounds=1)
    assert all(free[name].params.tobytes() == held[name].params.tobytes() for name in NAMES)
    _, free, _ = play(lambda: PFedGraph(weight=0.0), rounds=2)
    _, held, _ = play(lambda: PFedGraph(weight=50.0), rounds=2)
    assert any(free[name].params.tobytes() != held[name].params.tobytes() for name in NAMES)


def test_pfedgraph_gives_partner_the_greatest_weight():
    _, _, history = play(PFedGraph, rounds=5)
    for k, name in enumerate(NAMES):
        partner = NAMES[k ^ 1]
        others = [history[-1][name].weights[other] for other in NAMES if other not in (name, partner)]
        assert history[-1][name].weights[partner] > max(others)


# kNN-Per


def test_knn_mixed_logits_weight_votes_by_distance():
    known, labels = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0], [50.0, 50.0]]), torch.tensor([0, 1, 1, 2])
    features, outputs = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0]])
    near = np.exp([0, -4 / 4, -9 / 4])  # squared distances over scale 2 times 2 features
    votes = np.array([near[0], near[1] + near[2], 0.0]) / near.sum()
    mixed = knn_mixed_logits(KnnDatastore(3, 0.6, 2.0), outputs, features, known, labels).exp()
    assert mixed[0].numpy() == pytest.approx(0.6 * votes + 0.4 / 3)
    (only,) = knn_mixed_logits(KnnDatastore(1, 1.0, 2.0), outputs, features, known, labels).softmax(1)
    assert only.numpy() == pytest.approx([1.0, 0.0, 0.0])
    assert knn_mixed_logits(KnnDatastore(9, 0.6, 2.0), outputs, features, known, labels).isfinite().all()


def blobs(seed, n=20):
    rng = np.random.default_rng(seed)

    def data(size):
        y = rng.integers(0, 3, size)
        return (rng.normal(size=(size, 4)) + np.eye(3, 4)[y]).astype(np.float32), y

    def module():
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    return classification(module, data(n), data(9), data(11))


@pytest.mark.slow
@pytest.mark.parametrize("dense", [True, False])
def test_knn_evaluation_stacked_equals_one_by_one(dense):
    learners = [blobs(k, n).learner(RandomStreams(0, f"node-{k}")) for k, n in enumerate((20, 3, 12))]
    models = [[blobs(k).initial(k), blobs(k).initial(k + 9)] for k in range(3)]
    memory = KnnDatastore(5, 0.5, 1.0)
    jobs = [NodeQuery(k, Evaluate(models[k], ("validation", "test"), None if k == 1 else memory)) for k in range(3)]
    expected, found = SequentialLearner(learners).compute(jobs), BatchedLearner(learners, dense).compute(jobs)
    plain = SequentialLearner(learners).compute(
        [NodeQuery(k, Evaluate(models[k], ("validation", "test"))) for k in range(3)]
    )
    for k in range(3):
        for one, other, without in zip(expected[k], found[k], plain[k], strict=True):
            assert one == pytest.approx(other, rel=1e-5)
            assert one.keys() == {"validation_loss", "validation_accuracy", "test_loss", "test_accuracy"}
            assert (one["test_loss"] == without["test_loss"]) == (k == 1)


def digits(policy, **changes):
    scenario = {"nodes": 5, "rounds": 3, "seed": 1, "task": {"name": "digits"}, "policy": policy, **changes}
    done = run(resolve(scenario, [], "test", ".").runs[0])
    return result_of(done).summary["test"]["mean"], done


@pytest.mark.slow
def test_knn_per_weight_changes_metrics_but_not_models():
    plain, fedavg = digits({"name": "coordinated-fedavg"})
    nothing, forgetful = digits({"name": "knn-per", "weight": 0.0})
    assert nothing == pytest.approx(plain)
    mixed, remembering = digits({"name": "knn-per", "weight": 0.5})
    assert mixed != pytest.approx(plain)
    for name, node in fedavg.nodes.items():
        for other in (forgetful, remembering):
            assert node.me.params.tobytes() == other.nodes[name].me.params.tobytes()


@cache
def accuracy_of_digits(policy, task, trainer):
    return digits({"name": policy}, task={"name": task}, trainer=trainer)[0]


def with_lasting_momentum(part, seed):
    return dataclasses.replace(make_task("digits", {}, part, seed), optimizer=SGD(0.05, 0.9, lasting=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "task"), pairs(["stacked", "one-by-one"], [f"{__name__}:with_lasting_momentum", "digits"])
)
@pytest.mark.parametrize(
    ("policy", "like"),
    [
        ({"name": "ditto", "weight": 0.0}, {"name": "local"}),
        ({"name": "apfl", "alpha": 1.0, "alpha_lr": 0.0}, {"name": "local"}),
        ({"name": "apfl", "alpha": 0.0, "alpha_lr": 0.0}, {"name": "coordinated-fedavg"}),
    ],
)
def test_personal_model_is_evaluated(policy, like, task, trainer):
    changes = {"task": {"name": task}, "trainer": trainer}
    found, personal = digits(policy, **changes)
    assert found == pytest.approx(accuracy_of_digits(like["name"], task, trainer))
    assert traffic(personal)["bytes"] > 0


# All policies


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_baseline_run_after_restart_is_identical(name):
    absent = {2: ["node-3"]}
    _, through, _ = play(MADE[name], absent=absent, rounds=4)
    _, again, _ = play(lambda: Restarted(MADE[name]), absent=absent, rounds=4)
    assert all(through[id].params.tobytes() == again[id].params.tobytes() for id in NAMES)


@pytest.mark.parametrize("name", MADE)
def test_absent_node_keeps_its_trained_model(name):
    _, cast, history = play(MADE[name], absent={1: ["node-0"], 2: ["node-3"]})
    assert isinstance(make_policy(name, {}), Coordinated)
    assert history[1]["node-3"].weights == {"node-3": 1.0}
    assert "node-3" not in history[1]["node-1"].weights
    assert "node-3" in history[2]["node-1"].weights
    assert all(np.isfinite(actor.params).all() for actor in cast.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_baselines_modelled_equals_wire_bit_for_bit(name):
    """The messages also suffice for the step of pFedGraph, which needs the common initial model."""
    options = {
        "pfedgraph": {"weight": 0.5},
        "ditto": {"weight": 0.01},
        "apfl": {"alpha_lr": 1e-5},
        "pfedme": {"weight": 1.0},
    }
    policy = {"name": name, **options.get(name, {})}
    small = {"nodes": 4, "rounds": 4, "task": {"name": "digits"}, "policy": policy, "trainer": "one-by-one"}
    if name != "knn-per":
        small["task"] = {"name": "concept-shift"}
    runs = [run(resolve({**small, "fidelity": kind}, [], "test", ".").runs[0]) for kind in ("modelled", "wire")]
    params = [{id: node.me.params.tobytes() for id, node in done.nodes.items()} for done in runs]
    assert params[0] == params[1]
    assert runs[1].expired == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "apfl", "per-fedavg", "pfedme"])
def test_personal_models_stay_on_their_nodes(name):
    travelled = set()

    def watched():
        policy = MADE[name]()
        step = policy.step

        def watching(there, state, layout):
            travelled.update(submission.params.tobytes() for submission in there)
            return step(there, state, layout)

        policy.step = watching
        return policy

    _, cast, history = play(watched)
    assert len(travelled) == 3 * len(NAMES)
    assert not travelled & {merges[id].params.tobytes() for merges in history for id in NAMES}
    assert not any(actor.published for actor in cast.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_baselines_reduce_the_loss(name):
    _, cast, _ = play(MADE[name], rounds=8)
    before, after = np.transpose([actor.learner.loss([actor.initial, actor.params]) for actor in cast.values()])
    assert after.mean() < before.mean()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ditto", {"weight": -1.0}, "weight must be 0 or more, and finite, got -1.0"),
        ("ditto", {"epochs": 0}, "epochs must be 1 or more, got 0"),
        ("apfl", {"alpha": 1.5}, "alpha must be from 0 to 1, got 1.5"),
        ("apfl", {"alpha_lr": -0.1}, "alpha_lr must be 0 or more, and finite, got -0.1"),
        ("per-fedavg", {"lr": -0.1}, "lr must be 0 or more, and finite, got -0.1"),
        ("pfedgraph", {"alpha": 0.0}, "alpha must be above 0, and finite, got 0.0"),
        ("pfedgraph", {"weight": -1.0}, "weight must be 0 or more, and finite, got -1.0"),
        ("knn-per", {"neighbours": 0}, "neighbours must be 1 or more, got 0"),
        ("knn-per", {"weight": 1.1}, "weight must be from 0 to 1, got 1.1"),
        ("knn-per", {"scale": 0.0}, "scale must be above 0, and finite, got 0.0"),
        ("ditto", {"shared": 1}, "unknown key 'policy.shared'"),
    ],
)
def test_baselines_refuse_invalid_options(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_policy(name, options)


def test_baselines_refuse_task_without_gradients_or_features():
    table = make_task("deep-sea-treasure", {"preference": [0.5, 0.5]}, Part(0, 1), 0)
    with pytest.raises(ConfigurationError, match="needs a task that is trained along gradients"):
        run_in_memory({"a": Apfl(alpha_lr=0.0)}, {"a": table}, 1)
    with pytest.raises(ConfigurationError, match="needs a task whose models have features and logits"):
        table.learner(RandomStreams(0, "a"), "cpu").evaluate([table.initial(0)], ("test",), KnnPer().memory)
    linear = TASKS["node-0"]
    with pytest.raises(ConfigurationError, match="needs a classification task with cross-entropy"):
        linear.learner(RandomStreams(0, "a"), "cpu").evaluate([linear.initial(0)], ("test",), KnnPer().memory)
    run_in_memory({"a": PFedGraph(weight=0.0)}, {"a": table}, 2)  # without the cosine it only averages


def test_lookahead_with_one_sample_uses_it_twice():
    learner, w = number(3.0).learner(RandomStreams(0, "a")), np.array([1.0], np.float32)
    stepped = learner.train(w, round=1, rule=Lookahead(0.2))
    assert stepped[0] == pytest.approx(1 - LR * down(1 - 0.2 * down(1, 3), 3))
