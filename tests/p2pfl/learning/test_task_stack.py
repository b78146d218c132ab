"""Tasks of which only the differences are kept."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from p2pfl.learning.task_stack import TaskStack, each, groups_of, samples_of, tasks_of
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.plan import plan_tasks
from p2pfl.sim.simulation.sharding import task_of
from p2pfl.task import Part, make_task

HERE = __name__


def uneven(part: Part, seed: int):
    """Return the task digits with another number of training samples at each node."""
    made: Any = make_task("digits", {"samples": 20}, part, seed)
    x, y = made.data["train"]
    kept = 20 - part.index
    return dataclasses.replace(made, data={**made.data, "train": type(made.data["train"])(x[:kept], y[:kept])})


def other_rates(part: Part, seed: int):
    return make_task("digits", {"lr": 0.1 * (1 + part.index)}, part, seed)


@pytest.mark.parametrize(
    ("task", "nodes"),
    [
        ({"name": "concept-shift", "test": 9}, 7),
        ({"name": "concept-shift", "samples": 9, "clusters": 9, "dimensions": 3, "test": 9}, 4),
        ({"name": "digits", "samples": 16, "shared": True}, 9),
        ({"name": "digits", "labels": 3}, 9),
        ({"name": f"{HERE}:uneven"}, 5),
    ],
)
def test_tasks_of_a_stack_are_those_of_single_nodes(task, nodes):
    (scenario,) = resolve({"nodes": nodes, "rounds": 1, "task": task, "policy": "local"}, [], "test", ".").runs
    single = [task_of(scenario, k) for k in range(nodes)]
    gathered = tasks_of(partial(task_of, scenario), nodes)
    for stack in (gathered, plan_tasks(scenario)):
        assert isinstance(stack, TaskStack)
        assert samples_of(stack).tolist() == [one.n_samples for one in single]
        assert each(stack, "public_info") == each(single, "public_info")
        assert groups_of(stack) == groups_of(single)
        for found, expected in zip(stack, single, strict=True):
            assert found.public_info == expected.public_info
            assert list(found.data) == list(expected.data)
            for split, samples in expected.data.items():
                assert all(map(torch.equal, found.data[split], samples))
        for split, data in stack.data.items():  # which nodes are evaluated together, and in which order
            assert data.shared == gathered.data[split].shared
            orders = [np.argsort(each.offsets, kind="stable").tolist() for each in (data, gathered.data[split])]
            assert orders[0] == orders[1]


def test_tasks_that_differ_in_more_are_kept_as_they_are():
    (scenario,) = resolve(
        {"nodes": 4, "rounds": 1, "task": {"name": f"{HERE}:other_rates"}, "policy": "local"}, [], "test", "."
    ).runs
    tasks = tasks_of(partial(task_of, scenario), 4)
    assert [round(task.optimizer.lr, 6) for task in tasks] == [0.1, 0.2, 0.3, 0.4]
    assert all(len(task.data["test"].x) for task in tasks)
