"""Tests of the mechanism of a privacy budget: what they find of planted faults, and nothing of the shipped mechanism."""

import pytest

from p2pfl.sim.audit.mechanism import examine
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.plan import plan
from tests.support.broken_mechanisms import FAULTS, plant

DIGITS = {
    "nodes": 2,
    "rounds": 3,
    "task": {"name": "digits", "samples": 60, "shared": True, "batch_size": 12},
    "policy": {"name": "fedavg"},
    "privacy": {"epsilon": 4},
}
EXPECTED = {
    "noise forgotten in the last layer": "noise",
    "clip after averaging": "sensitivity",
    "the same batch in each step": "sampling",
    "sampling without replacement": "sampling",
}


def examined(**changes):
    made = plan(resolve(DIGITS | changes, [], "test", ".").runs[0])
    return examine(made.tasks[0], made.privacy[0], 0)


def test_shipped_mechanism_is_as_planned():
    found = examined()
    assert found["contradictions"] == []
    assert found["noise"]["least"] == pytest.approx(1, abs=0.25)
    assert found["sensitivity"]["times_clip"] == pytest.approx(1, abs=1e-3)
    assert found["sampling"]["rate"] == pytest.approx(0.2, abs=0.02)
    assert found["sampling"]["samples"] == 60


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found_and_named(fault, monkeypatch):
    plant(fault, monkeypatch)
    found = examined()["contradictions"]
    assert {each["test"] for each in found} == {EXPECTED[fault]}, found
