"""Test metric of the mean of the honest nodes' models."""

import numpy as np
import pytest
from torch import nn

from p2pfl.learning.torch_task import classification
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.results.results import Results, result_of
from p2pfl.sim.scenario.scenario import resolve
from tests.support.simulated import run

TABLE = {
    "nodes": 6,
    "rounds": 2,
    "seeds": [0, 1],
    "mean_model": True,
    "task": {"name": "images", "data": "digits", "samples": 40, "test_classes": "all", "validation": 0, "test": 100},
    "policy": {"name": "dsgd"},
    "topology": {"name": "clusters", "groups": 2},
    "attack": {"name": "gaussian", "nodes": [5]},
}
SHIFT = {"name": "label-groups", "groups": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]}


@pytest.mark.slow
def test_mean_model_is_that_of_honest_nodes_and_of_each_group():
    file = resolve(TABLE | {"task": TABLE["task"] | {"shift": SHIFT}}, [], "test", ".")
    done = run(file.runs[0])
    nodes = list(done.nodes.values())
    mean = np.array([node.result for node in nodes[3:5]]).mean(axis=0)
    learners = [node.task.learner(RandomStreams(0, "another"), "cpu") for node in nodes[3:5]]
    result = result_of(done)
    figures = {name: figure["mean"] for name, figure in result.summary["extra_metrics"].items()}
    alone = [learner.evaluate([mean], ["test"])[0]["test_accuracy"] for learner in learners]
    assert figures["mean_model_1"] == pytest.approx(np.mean(alone))
    assert set(figures) == {"mean_model", "mean_model_0", "mean_model_1"}
    row = Results([result], file.part([file.runs[0].name], [0])).summary["table"][0]
    assert {name: figure for name, figure in row["extra_metrics"].items() if name != "worst_tenth"} == figures


def with_own_head(part, seed):
    rng = np.random.default_rng(part.index)
    x, y = rng.standard_normal((20, 4), np.float32), rng.integers(0, 2 + part.index, 20)
    head = 2 + part.index
    module = lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, head))  # noqa: E731
    return classification(module, (x, y), None, (x, y), private=("2",))


def test_private_parts_are_not_averaged_in_a_mean_model():
    table = {"nodes": 3, "rounds": 1, "mean_model": True, "task": {"name": f"{__name__}:with_own_head"}}
    done = run(resolve(table | {"policy": "fedavg"}, [], "test", ".").runs[0])
    nodes = list(done.nodes.values())
    mean = np.mean([node.task.layout.shared_of(node.result) for node in nodes], axis=0)
    each = [
        node.task.learner(RandomStreams(0, "a"), "cpu").evaluate(
            [node.task.layout.with_private(mean, node.result)], ["test"]
        )
        for node in nodes
    ]
    expected = np.mean([figures["test_accuracy"] for (figures,) in each])
    assert result_of(done).summary["extra_metrics"]["mean_model"]["mean"] == pytest.approx(expected)


@pytest.mark.slow
def test_test_samples_of_all_classes_are_common_to_all_nodes():
    tasks = {"own": {}, "all": {"test_classes": "all"}}
    found = {}
    for name, options in tasks.items():
        table = TABLE | {"task": {"name": "images", "data": "digits", "test": 50, "shift": SHIFT} | options}
        nodes = run(resolve(table | {"rounds": 1}, [], "test", ".").runs[0]).nodes
        found[name] = [set(node.task.data["test"].y.tolist()) for node in nodes.values()]
    assert found["own"] == [{0, 1, 2, 3, 4}] * 3 + [{5, 6, 7, 8, 9}] * 3
    assert found["all"] == [set(range(10))] * 6
