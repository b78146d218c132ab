"""FedCMOO with preferences: its weights and its step by hand, and runs with tasks of several objectives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.torch_learner import TorchLearner
from p2pfl.multiobjective.mgda import balancing, least, sketch, weigh
from p2pfl.multiobjective.scalarisation import DifferentiateObjectives
from p2pfl.parameters import Layout
from p2pfl.policies import make_policy
from p2pfl.policies.fedcmoo import FedCmoo
from p2pfl.policy import Submission
from p2pfl.protocols.wire.payload import encode_submission
from p2pfl.queries import NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.api import simulate
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory
from p2pfl.update_rules import Scalarised

FLAT = Layout((("w", (2,)),), 2)
DIAGONAL = np.diag([4.0, 1.0])
FAIR = {"data": "synthetic", "rows": 400, "optimizer": {"name": "adam", "lr": 0.01}}


def vector(*values):
    return np.array(values, np.float64)


# Weights


def test_least_combination_of_two_gradients_by_hand():
    assert least(DIAGONAL, vector(0, 0)) == pytest.approx([0.2, 0.8])  # 4 w^2 + (1 - w)^2
    assert least(np.array([[4.0, 2.0], [2.0, 1.0]]), vector(0, 0)) == pytest.approx([0, 1])  # parallel gradients
    assert least(np.zeros((3, 3)), vector(0, 0, 0)) == pytest.approx([1 / 3] * 3)


def test_least_combination_worsens_no_objective():
    rng = np.random.default_rng(0)
    for _ in range(20):
        gradients = rng.normal(size=(3, 5))
        direction = least(gradients @ gradients.T, np.zeros(3)) @ gradients
        assert (gradients @ direction >= direction @ direction - 1e-3).all()


def test_balancing_by_hand():
    """Parts of 2/3 and 1/3: KL = 2/3 log 4/3 + 1/3 log 2/3; the first is above it, the second below."""
    uneven, blame = balancing(vector(2, 1), vector(0.5, 0.5))
    assert uneven == pytest.approx(2 / 3 * np.log(4 / 3) + 1 / 3 * np.log(2 / 3))
    assert blame == pytest.approx([1 / 3, -2 / 3])  # log 4/3 - KL = log 2 / 3, log 2/3 - KL = -2 log 2 / 3
    assert balancing(vector(1, 4), vector(0.8, 0.2)) == (pytest.approx(0, abs=1e-12), pytest.approx([0, 0], abs=1))
    assert balancing(vector(0, 0), vector(0.5, 0.5))[0] == 0


def test_weigh_favours_excessive_objective_or_balances():
    plain = np.eye(2)
    assert weigh(vector(2, 1), plain, vector(0.5, 0.5), 0.01, 0.0) == pytest.approx([1, 0])
    assert weigh(vector(2, 1), plain, vector(0.5, 0.5), 0.01, 0.2) == pytest.approx([0.9, 0.1])
    assert weigh(vector(1, 4), DIAGONAL, vector(0.8, 0.2), 0.01, 0.0) == pytest.approx([0.2, 0.8])
    assert weigh(vector(1, 4), plain, vector(0.0, 1.0), 0.01, 0.2) == pytest.approx([0.1, 0.9])


def test_sketch_is_linear_and_keeps_inner_products():
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, 3, 5000)).astype(np.float32)
    made = [sketch(each, 1024, np.random.default_rng(7)) for each in (one, other, one + other)]
    assert made[0] + made[1] == pytest.approx(made[2], abs=1e-4)
    assert made[0] @ made[0].T == pytest.approx(one @ one.T, abs=5000 * 4 / np.sqrt(1024))


# The step


def submission(id, model, losses=(1.0, 2.0), gradients=((1.0, 0.0), (0.0, 1.0)), start=(0, 0), n=1):
    extras = {"losses": np.array(losses), "gradients": np.array(gradients)}
    return Submission(id, 1, np.array(model, np.float32), n, extras, {}, np.array(start, np.float32))


def test_fedcmoo_step_by_hand():
    there = [submission("b", [4, 0], (3.0, 2.0), ((1.0, 0.0), (0.0, 3.0)), n=3), submission("a", [0, 4], n=1)]
    assignments, state = FedCmoo(global_lr=2.0).step(there, {}, FLAT)
    assert list(assignments) == ["a", "b"]
    for assignment in assignments.values():
        assert assignment.params.tolist() == [6, 2]  # twice the mean (3, 1)
        assert assignment.weights == {"a": 0.25, "b": 0.75}
        assert assignment.extras["losses"].tolist() == [2.5, 2]
        assert assignment.extras["gram"].tolist() == [[1, 0], [0, 6.25]]  # from the mean gradients (1, 0) and (0, 2.5)
    again, _ = FedCmoo(global_lr=2.0).step(there, state, FLAT)
    assert again["a"].params.tolist() == [0, 0]  # from (6, 2) twice the way to (3, 1)
    one, _ = FedCmoo().step(there, state, FLAT)
    assert one["a"].params.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"losses": (1.0, 2.0, 3.0)}, "other objectives"),
        ({"gradients": ((1.0,), (2.0,))}, "gradients of another size"),
        ({"losses": (-1.0, 2.0)}, "out of range"),
        ({"gradients": ((np.nan, 0.0), (0.0, 1.0))}, "out of range"),
        ({"losses": (np.inf, 2.0)}, "out of range"),
        ({"gradients": ((1e200, 0.0), (0.0, 1.0))}, "out of range"),  # its inner products are not finite
        ({"gradients": (1.0, 2.0)}, "lacks its losses and gradients"),
    ],
)
def test_fedcmoo_step_refuses_invalid_submission(other, words):
    with pytest.raises(ValueError, match=words):
        FedCmoo().step([submission("a", [0, 0]), submission("b", [0, 0], **other)], {}, FLAT)


@pytest.mark.parametrize("options", [{"global_lr": 0.0}, {"size": 0}, {"tolerance": -1.0}, {"floor": 1.5}])
def test_fedcmoo_refuses_invalid_options(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        make_policy("fedcmoo", options)


@pytest.mark.parametrize(
    ("losses", "gram"),
    [
        ((1.0, 2.0, 3.0), ((1.0, 0.0), (0.0, 1.0))),
        ((1.0, 2.0), ((1.0,), (0.0,))),
        ((np.nan, 2.0), ((1.0, 0.0), (0.0, 1.0))),
        ((1.0, 2.0), ((np.inf, 0.0), (0.0, 1.0))),
        ((1.0, 2.0), ((-1e100, 0.0), (0.0, 1e-300))),
    ],
)
def test_fedcmoo_node_tolerates_invalid_assignment(losses, gram):
    def lying():
        policy = FedCmoo(size=16)
        honest, extras = policy.step, {"losses": np.array(losses), "gram": np.array(gram)}
        policy.step = lambda *given: (
            {id: replace(assignment, extras=extras) for id, assignment in honest(*given)[0].items()},
            {},
        )
        return policy

    tasks = {id: fair(k) for k, id in enumerate("abc")}
    policies = {id: lying() for id in tasks}
    cast, _ = run_in_memory(policies, tasks, rounds=2)
    assert all(np.isfinite(actor.params).all() for actor in cast.values())
    assert all(policy.previous == {} for policy in policies.values())


# With a task


def fair(k=0, nodes=3, **options):
    return make_task("fairness", FAIR | options, Part(k, nodes), 0)


def test_objective_gradients_equal_torch():
    task = fair(preference=[0.3, 0.7])
    start = task.initial(0)
    found = task.learner(RandomStreams(0, "a")).compute(DifferentiateObjectives(start))
    module = task.module()
    nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), module.parameters())
    losses = task.objectives.losses(module(task.data["train"].x), task.data["train"].y)
    assert found.losses == pytest.approx(losses.tolist())
    assert found.preference == pytest.approx([0.3, 0.7])
    for gradient, loss in zip(found.gradients, losses, strict=True):
        parts = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        assert gradient == pytest.approx(torch.cat([part.flatten() for part in parts]).numpy(), abs=1e-6)


@pytest.mark.slow
def test_scalarised_rule_replaces_preference_in_all_learners():
    tasks = [fair(k) for k in range(3)]
    learners = [task.learner(RandomStreams(0, f"n{k}")) for k, task in enumerate(tasks)]
    start = tasks[0].initial(0)
    weights = [vector(1 - w, w) for w in (0.0, 0.5, 0.9)]
    jobs = [NodeQuery(k, Train(start, 1, rule=Scalarised(weights[k]))) for k in range(3)]
    alone, together = SequentialLearner(learners), BatchedLearner(learners)
    models = alone.compute(jobs)
    assert models[1] == pytest.approx(together.compute(jobs)[1], rel=1e-3, abs=1e-5)
    own = fair(1, preference=[0.5, 0.5]).learner(RandomStreams(0, "n1")).train(start, round=1)
    assert (models[1] == own).all()
    asked = [NodeQuery(k, DifferentiateObjectives(start)) for k in range(3)]
    assert (alone.compute(asked)[2].gradients == together.compute(asked)[2].gradients).all()


@pytest.mark.slow
def test_fedcmoo_preference_moves_the_common_model():
    def trained(weight):
        task = {"name": "fairness"} | FAIR | {"rows": 1200, "preference": [weight, 1 - weight]}
        (run,) = simulate({"nodes": 3, "rounds": 5, "task": task, "policy": {"name": "fedcmoo"}})
        return np.mean(run.summary["objectives"]["nodes"], axis=0)

    accurate, evenly = trained(0.9), trained(0.2)
    assert accurate[0] > evenly[0] + 0.1
    assert evenly[1] > accurate[1] + 0.2


def test_fedcmoo_submissions_do_not_reveal_the_preference(monkeypatch):
    sent = []
    step = FedCmoo.step

    def watched(self, submissions, state, layout):
        sent.append({s.sender: encode_submission(s.extras, s.previous) for s in submissions})
        return step(self, submissions, state, layout)

    monkeypatch.setattr(FedCmoo, "step", watched)
    for weights in ([0.123456, 0.876544], [0.7, 0.3]):
        tasks = {f"n{k}": fair(k, preference=weights) for k in range(3)}
        policies = {name: FedCmoo() for name in tasks}
        run_in_memory(policies, tasks, 3)
        assert policies["n0"].state()["previous"]["gram"][1] == [2, 2]
    first, other = sent[0], sent[3]
    assert first == other  # for the first model all nodes send the same, with any preference
    assert all(np.float64(0.123456).tobytes() not in data for each in sent for data in each.values())


def test_fine_tuning_of_fedcmoo_keeps_the_weights(monkeypatch):
    queries, compute = [], TorchLearner.compute

    def watched(self, query):
        queries.append(query)
        return compute(self, query)

    monkeypatch.setattr(TorchLearner, "compute", watched)
    tasks = {f"n{k}": fair(k) for k in range(2)}
    run_in_memory({name: FedCmoo(ft="from-best") for name in tasks}, tasks, 2)
    assert {type(query.rule) for query in queries if getattr(query, "purpose", "") == "fine tuning"} == {Scalarised}


def test_fedcmoo_refuses_single_objective_task():
    task = make_task("concept-shift", {}, Part(0, 1), 0)
    with pytest.raises(ConfigurationError, match="a task of several objectives"):
        run_in_memory({"a": FedCmoo()}, {"a": task}, 1)
