"""Canaries in one run: the shipped mechanism stays below the promised epsilon, and a missing noise does not."""

import pytest

from p2pfl.sim.audit.canaries import attack_by_canaries
from p2pfl.sim.audit.releases import Watch, observe
from p2pfl.sim.scenario.scenario import resolve
from tests.support.broken_mechanisms import plant
from tests.support.depth import spread

DIGITS = {
    "nodes": 4,
    "rounds": 2,
    "task": {"name": "digits", "samples": 64, "shared": True, "batch_size": 16, "lr": 0.5, "momentum": 0.0},
    "policy": {"name": "fedavg"},
    "privacy": {"epsilon": 2},
}

MORE = (  # of each epsilon: the settings above, momentum and more samples, a ring and another clip, whole batches and sums
    {},
    {"task": DIGITS["task"] | {"samples": 128, "lr": 0.1, "momentum": 0.9}},
    {"policy": {"name": "random", "neighbours": 2}, "topology": {"name": "ring"}, "rounds": 6, "clip": 0.2},
    {
        "policy": {"name": "coordinated-fedavg"},
        "rounds": 4,
        "task": DIGITS["task"] | {"samples": 48, "batch_size": 48, "lr": 1.0, "hidden": 16},
    },
)
TWENTY = [(epsilon, more) for epsilon in (0.5, 1, 2, 4, 8) for more in MORE]


def attack(**changes):
    job = resolve(DIGITS | changes, [], "test", ".").runs[0]
    watch = Watch(job.nodes)
    made = observe(job, None, watch)
    return attack_by_canaries(job, None, made.plan.privacy, watch.tasks)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "more"), spread(TWENTY, 9))
def test_guesses_do_not_refute_the_shipped_mechanism(epsilon, more):
    clip = more.get("clip", 1.0)
    found = attack(
        **{key: value for key, value in more.items() if key != "clip"}, privacy={"epsilon": epsilon, "clip": clip}
    )
    assert found["canaries"] > 1000
    assert found["promised"] == pytest.approx(epsilon, rel=0.02)
    assert max(found["at_least"], found["by_curve"]) < found["promised"]
    if epsilon >= 4:
        assert found["by_curve"] > found["at_least"] > 0.05 * epsilon  # the attack sees what the budget allows


@pytest.mark.slow
def test_guesses_refute_a_mechanism_that_forgets_the_noise_of_a_layer(monkeypatch):
    plant("noise forgotten in the last layer", monkeypatch)
    found = attack()
    assert found["at_least"] > found["promised"]
    assert found["tensor"] == "2.weight"
