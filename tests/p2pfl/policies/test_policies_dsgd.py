"""Decentralised SGD: its weights, its momentum, and a restart."""

import numpy as np
import pytest
from torch import nn

from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import regression
from p2pfl.policies.dsgd import Dsgd, mixing_weights
from p2pfl.policy import Update
from p2pfl.testing import run_in_memory

LR = 0.1


def number(*targets):
    """Task with one weight w and the loss mean (w - y)^2: its gradient is 2 (w - mean of y)."""
    y = np.array(targets, np.float32)[:, None]
    return regression(lambda: nn.Linear(1, 1, bias=False), (np.ones_like(y), y), optimizer=SGD(LR), batch_size=1)


def update(sender, **extras):
    return Update(sender, 1, "trained", np.zeros(1, np.float32), 1, extras)


def play(rounds=3, **options):
    """Return the nodes after rounds on the complete graph of three nodes with the targets 0, 3 and 9."""
    tasks = {id: number(y) for id, y in {"a": 0.0, "b": 3.0, "c": 9.0}.items()}
    policies = {id: Dsgd(**options) for id in tasks}
    cast, _ = run_in_memory(policies, tasks, rounds)
    return policies, {id: float(me.params[0]) for id, me in cast.items()}, float(cast["a"].initial[0])


def test_dsgd_weights_are_those_of_metropolis():
    policy = Dsgd(mixing=0.5)
    known = [update("b", degree=np.array([9], np.uint64)), update("c", degree=np.array([1], np.uint64))]
    assert mixing_weights(known, "a", "bcde", policy) == pytest.approx({"a": 0.85, "b": 0.05, "c": 0.1})
    known = [update("b"), update("c", degree=np.array([9.0, 9.0]))]  # without a valid report: the own degree
    assert mixing_weights(known, "a", "bcde", policy) == pytest.approx({"a": 0.8, "b": 0.1, "c": 0.1})


def test_dsgd_momentum_continues_the_movement():
    _, nodes, start = play(rounds=2, momentum=0.5)
    mean, velocity = start, {}
    for _ in range(2):
        step = {id: -LR * 2 * (mean - y) for id, y in {"a": 0.0, "b": 3.0, "c": 9.0}.items()}
        velocity = {id: 0.5 * velocity.get(id, 0.0) + step[id] for id in step}
        mean += np.mean(list(velocity.values()))
    assert list(nodes.values()) == pytest.approx([mean] * 3, rel=1e-5)


def test_dsgd_start_noise_differs_between_nodes():
    _, plain, start = play(rounds=0)
    _, noisy, _ = play(rounds=0, start_noise=6.0)
    _, double, _ = play(rounds=0, start_noise=12.0)
    assert [*plain.values()] == [start] * 3
    noise = {id: value - start for id, value in noisy.items()}
    assert len(set(noise.values())) == 3
    assert [value - start for value in double.values()] == pytest.approx([2 * each for each in noise.values()], rel=1e-5)


def test_dsgd_restores_its_velocity():
    policies, _, _ = play(rounds=1, momentum=0.5)
    again = Dsgd(momentum=0.5)
    again.restore(policies["a"].state())
    assert again.velocity == policies["a"].velocity


def test_dsgd_makes_the_given_number_of_steps():
    task = number(0.0, 0.0, 0.0)
    moved = []
    for steps in (1, 2, 0):
        cast, _ = run_in_memory({"a": Dsgd(steps=steps)}, {"a": task}, 1)
        moved.append(float(cast["a"].params[0] / cast["a"].initial[0]))
    assert moved == pytest.approx([0.8, 0.8**2, 0.8**3])


@pytest.mark.parametrize(
    "options", [{"steps": -1}, {"momentum": 1.0}, {"mixing": 0.0}, {"start_noise": -1.0}, {"epochs": 0}]
)
def test_dsgd_refuses_invalid_options(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        Dsgd(**options)
