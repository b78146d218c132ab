"""Invariant of every simulation in these tests."""

import pytest

from p2pfl.protocols.wire.envelope import OVERHEAD


@pytest.fixture(autouse=True)
def _each_request_is_served_once(monkeypatch):
    """After each run, assert that no more models were served than requested, and none received that was not served."""
    from p2pfl.sim.simulation.simulation import Simulation  # here, so that tests skip without torch

    run = Simulation.run

    def run_and_check(self, *given):
        result = run(self, *given)
        traffic = {name: node.exchange.traffic for name, node in self.nodes.items()}
        assert sum(each.received["get"] for each in traffic.values()) <= sum(each.sent["get"] for each in traffic.values())
        assert sum(each.received["update"] for each in traffic.values()) <= sum(
            each.sent["update"] for each in traffic.values()
        )
        for name, each in traffic.items():
            if not each.sent["submit"] + each.sent["assigned"]:  # submissions and assignments are models, too
                assert each.sent["models"] * OVERHEAD <= each.received["get"], f"{name} has served a request twice"
        return result

    monkeypatch.setattr(Simulation, "run", run_and_check)
