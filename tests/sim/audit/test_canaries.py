"""Canaries in one run: the shipped mechanism stays below the promised epsilon, and a missing noise does not."""

import pytest

from p2pfl.sim.audit.canaries import attack_by_canaries
from p2pfl.sim.audit.releases import Watch, observe
from p2pfl.sim.scenario.scenario import resolve
from tests.support.broken_mechanisms import plant

DIGITS = {
    "nodes": 4,
    "rounds": 2,
    "task": {"name": "digits", "samples": 64, "shared": True, "batch_size": 16, "lr": 0.5, "momentum": 0.0},
    "policy": {"name": "fedavg"},
    "privacy": {"epsilon": 2},
}


def attack(**changes):
    job = resolve(DIGITS | changes, [], "test", ".").runs[0]
    watch = Watch(job.nodes)
    made = observe(job, None, watch)
    return attack_by_canaries(job, None, made.plan.privacy, watch.tasks)


def test_guesses_do_not_refute_the_shipped_mechanism():
    found = attack()
    assert found["canaries"] == 1024
    assert found["promised"] == pytest.approx(2, rel=5e-3)
    assert 0 < found["at_least"] < found["promised"]


def test_guesses_refute_a_mechanism_that_forgets_the_noise_of_a_layer(monkeypatch):
    plant("noise forgotten in the last layer", monkeypatch)
    found = attack()
    assert found["at_least"] > found["promised"]
    assert found["tensor"] == "2.weight"
