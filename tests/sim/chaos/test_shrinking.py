"""Short schedules by delta debugging."""

from p2pfl.sim.chaos.schedule import Fault, shrink

FAULTS = [Fault(at=float(k), kind="crash", node=f"node-{k}", seconds=10.0) for k in range(12)]


def test_shrink_keeps_only_needed_faults():
    runs = []

    def breaks(faults):
        runs.append(faults)
        return {"node-2", "node-9"} <= {fault.node for fault in faults}

    assert [fault.node for fault in shrink(FAULTS, breaks)] == ["node-2", "node-9"]
    assert len(runs) < 60


def test_shrink_shortens_durations_as_far_as_possible():
    def breaks(faults):
        return any(fault.node == "node-3" and fault.seconds >= 4 for fault in faults)

    (left,) = shrink(FAULTS, breaks)
    assert left.seconds == 5.0


def test_shrink_without_any_needed_fault_returns_nothing():
    assert shrink(FAULTS, lambda faults: True) == ()


def test_shrink_ends_after_the_maximum_number_of_runs():
    runs = []
    shrink(FAULTS, lambda faults: bool(runs.append(faults)) or len(faults) == 12, most=5)
    assert len(runs) == 5
