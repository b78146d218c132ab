"""Custom queries: they reach the learner in every runtime, and no layer between knows them."""

import asyncio
import os
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from p2pfl import ConfigurationError, Merge, Part, RandomStreams, run_in_memory
from p2pfl.algorithms.group_statistics import CountGroups
from p2pfl.learner import Learner, answers
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.losses import squared_error
from p2pfl.learning.torch_learner import TorchLearner
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.multiobjective.scalarisation import DifferentiateObjectives
from p2pfl.node.trainer import ThreadTrainer
from p2pfl.parameters import Parameters, PrivateParameters, weighted_mean
from p2pfl.policies.local import Local
from p2pfl.prediction_mixing import KnnDatastore
from p2pfl.queries import Evaluate, Loss, Mean, NodeQuery, Query, Train
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import make_task
from p2pfl.update_rules import Descent, Mixture, Rule

NODES = 4
MODEL = np.zeros(3, np.float32)


class Inspect(Query[tuple[int, int, float]], frozen=True, gc=False):
    """Return the process, the number of values of the model, and their sum with that of the node's inputs."""

    name: ClassVar[str] = "probe"
    params: Parameters

    def complete(self, private: PrivateParameters) -> Self:
        return replace(self, params=private.whole(self.params))


class ProbingLearner(TorchLearner):
    @answers(Inspect)
    def probe(self, query):
        return os.getpid(), len(query.params), float(query.params.sum()) + float(self.data["train"][0].sum())


@dataclass
class ProbingTask(TorchTask):
    def learner(self, streams, device="cpu"):
        return ProbingLearner(self, streams, device)


def plain(part, seed, kind=TorchTask, private=()):
    x = torch.from_numpy(RandomStreams(seed, str(part.index)).generator(0, "data").standard_normal((5, 2), "f4"))
    return kind(
        lambda: nn.Linear(2, 1),
        {"train": Samples(x, x[:, :1])},
        loss=squared_error,
        measure=squared_error,
        metric="mse",
        higher_is_better=False,
        private=private,
    )


def probing(part, seed, private=()):
    return plain(part, seed, ProbingTask, private)


class Asking(Local):
    async def round(self, me, peers):
        self.found = await me.compute(Inspect(me.params))
        return Merge(me.params, {me.id: 1.0})


def scenario(task="probing", trainer="one-by-one", fidelity="modelled", **options):
    names = {
        "task": {"name": f"tests.p2pfl.test_queries:{task}", **options},
        "policy": {"name": "tests.p2pfl.test_queries:Asking"},
    }
    return resolve({"nodes": NODES, "rounds": 1, "trainer": trainer, "fidelity": fidelity, **names}, [], "study", ".")


def expected(seed=0):
    tasks = [probing(Part(k, NODES), seed) for k in range(NODES)]
    return [(3, float(task.initial(seed).sum()) + float(task.data["train"].x.sum())) for task in tasks]


@pytest.mark.parametrize("private", [(), ("bias",)])
def test_query_of_policy_in_memory_gets_the_answer(private):
    tasks = {f"n{k}": probing(Part(k, NODES), 0, private) for k in range(NODES)}
    policies = {name: Asking() for name in tasks}
    run_in_memory(policies, tasks, 1)
    assert [policy.found[1:] for policy in policies.values()] == expected()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "workers", "fidelity", "private"),
    [("stacked", 1, "modelled", []), ("one-by-one", 1, "wire", ["bias"]), ("one-by-one", 3, "modelled", ["bias"])],
)
def test_query_of_policy_in_simulation_gets_the_answer(trainer, workers, private, fidelity):
    (run,) = scenario(trainer=trainer, fidelity=fidelity, private=private).runs
    simulation = Simulation(run, workers=workers)
    finished = simulation.run()
    found = [node.policy.found for node in simulation.nodes.values()]
    assert [answer[1:] for answer in found] == expected()
    assert len({pid for pid, *_ in found}) == workers
    assert finished.batches["probe"] == (1, NODES)


def test_query_in_a_thread_gets_the_answer():
    task = probing(Part(0, NODES), 0)
    trainer = ThreadTrainer(task.learner(RandomStreams(0, "a")))

    async def ask():
        return await trainer.submit(Inspect(task.initial(0)))

    try:
        assert asyncio.run(ask())[1:] == expected()[0]
    finally:
        trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_unanswered_query_names_learner_and_query(workers):
    with pytest.raises(ConfigurationError, match="TorchLearner does not support Inspect"):
        run_all(scenario("plain"), "process", workers=workers)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (Train(MODEL, 1, rule=Descent(0.1)), "Train with a Rule; the policy needs a task that is trained along gradients"),
        (
            Evaluate([], (), KnnDatastore(1, 0.5, 1.0)),
            "Evaluate with a PredictionMixer; the policy needs a task whose models have",
        ),
        (CountGroups(MODEL), "CountGroups; the policy needs a task whose samples have labels and groups"),
        (DifferentiateObjectives(MODEL), "DifferentiateObjectives; the policy needs a task of several objectives"),
    ],
)
def test_unanswered_query_variant_names_the_requirement(query, text):
    task = make_task("deep-sea-treasure", {}, Part(0, 1), 0)
    with pytest.raises(ConfigurationError, match=f"^QLearner does not support {text}"):
        task.learner(RandomStreams(0, "a"), "cpu").compute(query)


def test_learner_inherits_answers_and_may_override_them():
    class First(Learner):
        @answers(Train, Rule)
        def _train(self, query):
            return query.params

        @answers(Loss)
        def _losses(self, query):
            return np.zeros(len(query.stack))

    class Second(First):
        def _losses(self, query):
            return np.ones(len(query.stack))

        @answers(Inspect)
        def _probe(self, query):
            return 1, 2, 3.0

    model = np.arange(3, dtype=np.float32)
    assert Second().train(model, round=1, rule=Descent(0.1)) is model
    assert Second().loss([model, model]).tolist() == [1, 1]
    assert First().loss([model]).tolist() == [0]
    assert Second().compute(Inspect(model)) == (1, 2, 3.0)
    assert (First().compute(Mean([model, model], [0.5, 0.25])) == weighted_mean([model, model], [0.5, 0.25])).all()
    with pytest.raises(ConfigurationError, match="First does not support Inspect"):
        First().compute(Inspect(model))


def test_query_complete_fills_private_part_of_every_model():
    task = plain(Part(0, 1), 0, private=("bias",))
    whole = np.array([1, 2, 3], np.float32)
    private_parameters = PrivateParameters(task.layout, whole)
    shared, other = np.array([5, 6], np.float32), np.array([7, 8], np.float32)
    query = Train(shared, 1, proximal=(0.1, other), rule=Mixture(0.5, other)).complete(private_parameters)
    assert query.params.tolist() == [5, 6, 3]
    assert query.proximal[1].tolist() == query.rule.shared.tolist() == [7, 8, 3]
    assert [model.tolist() for model in Loss([shared, other]).complete(private_parameters).stack] == [[5, 6, 3], [7, 8, 3]]
    assert query.restrict(np.array([5, 6, 9], np.float32), private_parameters).tolist() == [5, 6]
    assert private_parameters.whole(shared).tolist() == [5, 6, 9]


def test_stacked_learners_answer_other_queries_one_by_one():
    tasks = [probing(Part(k, NODES), 0) for k in range(NODES)]
    learners = [task.learner(RandomStreams(0, str(k))) for k, task in enumerate(tasks)]
    jobs = [NodeQuery(k, Inspect(task.initial(k))) for k, task in enumerate(tasks)]
    assert BatchedLearner(learners).compute(jobs) == SequentialLearner(learners).compute(jobs)
