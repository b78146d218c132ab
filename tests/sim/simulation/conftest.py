"""Invariant of every simulation in these tests."""

import pytest

from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.simulation.simulation import Simulation


@pytest.fixture(autouse=True)
def _each_request_is_served_once(monkeypatch):
    """After each run, assert that no more models were served than requested, and none received that was not served."""
    run = Simulation.run

    def run_and_check(self, *given):
        result = run(self, *given)
        traffic = {name: node.exchange.traffic for name, node in self.nodes.items()}
        assert sum(each.received_get for each in traffic.values()) <= sum(each.sent_get for each in traffic.values())
        assert sum(each.received_update for each in traffic.values()) <= sum(each.sent_update for each in traffic.values())
        for name, each in traffic.items():
            if not each.sent_submit + each.sent_assigned:  # submissions and assignments are models, too
                assert each.sent_models * OVERHEAD <= each.received_get, f"{name} has served a request twice"
        return result

    monkeypatch.setattr(Simulation, "run", run_and_check)
