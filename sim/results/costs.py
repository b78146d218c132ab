"""Cost of a run for its devices: trainings, samples, seconds of computing, and joules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.parameters import plain_sum
from p2pfl.sim.columns import Table
from p2pfl.sim.scenario.devices import Speed
from p2pfl.sim.simulation.simulation import Run

COSTS = ("trainings", "samples", "train_s", "joules")  # columns of the rounds, in the order of tables


def with_joules(run: Run, rounds: Table) -> Table:
    """Return the table of rounds with the column `joules`, if the nodes have devices: see `parts`."""
    if not _measured(run.plan.speeds):
        return rounds
    joules = sum(_parts_of(run, rounds).values())
    table: Table = {}
    for name, column in rounds.items():
        table[name] = column
        if name == "train_s":
            table["joules"] = np.asarray(joules)
    return table


def _parts_of(run: Run, rounds: Table) -> dict[str, np.ndarray]:
    plan, radio = run.plan, run.scenario.compute.radio
    if (presence := plan.presence(run.scenario.seed)) is None:
        return parts(rounds, plan.speeds, radio)
    return parts(rounds, plan.speeds, radio, lambda node, begin, end: presence.seconds(plan.names[node], begin, end))


def parts(
    rounds: Table,
    speeds: Sequence[Speed],
    radio: float,
    present: Callable[[int, float, float], float] | None = None,
) -> dict[str, np.ndarray]:
    """Return for each row of the rounds the joules of trainings, of the time without training, and of the radio.

    A round of a node lasts from the end of its last one to its own end. Time in which the node is away costs nothing: it is
    off, or does something else.

    Args:
        radio: joules of a byte.
        present: returns for how many seconds a node is present between two times; None if nodes always are.
    """
    node, order = rounds["node"], np.argsort(rounds["node"], kind="stable")
    ends, begins = rounds["virtual_time"][order], np.diff(node[order], prepend=-1) != 0
    lasts = np.empty(len(node))
    lasts[order] = np.where(begins, ends, np.diff(ends, prepend=0.0))
    if present is not None:
        spans = zip(node.tolist(), rounds["virtual_time"].tolist(), lasts.tolist(), strict=True)
        lasts = np.array([present(k, end - length, end) for k, end, length in spans])
    watts, idle = (np.array([getattr(speed, name) for speed in speeds])[node] for name in ("watts", "idle"))
    return {
        "training": watts * rounds["train_s"],
        "idle": idle * np.maximum(lasts - rounds["train_s"], 0.0),
        "radio": radio * (rounds["bytes_in"] + rounds["bytes_out"]),
    }


def of_run(run: Run, rounds: Table) -> dict[str, Any]:
    """Return the key `cost` of a run in summary.json: by kind the `total` over all nodes, and the `mean` of a node.

    It is the cost of the rounds that nodes have ended; what the end of a run cuts off is dropped with its model. With
    devices, it has `joules` and their parts, see `parts`, and the number of nodes of each device, `devices`.
    """
    count = len(run.tasks)

    def of(total: float) -> dict[str, float]:
        return {"total": total, "mean": total / count}

    counted = rounds if len(rounds["round"]) else run.state.trained  # without rounds, only the preparation trains
    found: dict[str, Any] = {name: of(counted[name].sum().item()) for name in ("trainings", "samples", "train_s")}
    if run.state.trained["refused"].any():
        found["refused"] = of(run.state.trained["refused"].sum().item())
    if _measured(run.plan.speeds):
        of_parts = {name: float(values.sum()) for name, values in _parts_of(run, rounds).items()}
        found["joules"] = of(plain_sum(of_parts.values()))
        found["joules_by"] = of_parts
        names = sorted({speed.device for speed in run.plan.speeds})
        found["devices"] = {name: sum(speed.device == name for speed in run.plan.speeds) for name in names}
    return found


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the totals of a row of the table: means over its runs, of entries of `runs` in summary.json.

    Folders of versions without this key have none.
    """
    costs = [run.get("cost", {}) for run in runs]
    kinds = [kind for kind in COSTS if costs and all(kind in cost for cost in costs)]
    return {kind: float(np.mean([cost[kind]["total"] for cost in costs])) for kind in kinds}


def _measured(speeds: Sequence[Speed]) -> bool:
    return any(speed.device for speed in speeds)
