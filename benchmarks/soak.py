"""Run node processes for an hour under churn or attacks, and monitor what must not grow and what must not fall.

    churn     six of twelve nodes come and go: they are killed, ended and stopped, by faults drawn from a seed as for
              scripts/chaos, and return after some seconds
    attacks   four nodes have two hostile members and a hostile broker: one member poisons in a different way every
              minute, claims rounds that are far ahead or behind, and drops its links; the other one floods, in a
              different way every minute; the broker ends connections at every stage, and sends nonsense

At intervals a line shows the memory, the open files, the log and the folder of the nodes that run from the beginning to
the end: the mean over them, and the largest. The verdict says whether no process ended by itself, and compares the last
quarter of the time with the second one. The line before it shows the growth in an hour, without the first quarter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.attackers import POISONS, attacking
from benchmarks.processes import Federation, memory, open_files
from p2pfl.node.federation.membership_file import MEMBERSHIP
from p2pfl.sim.chaos.schedule import Kind, draw_schedule
from tests.chaos.faults import Faults
from tests.chaos.invariants import size

STABLE = tuple(f"stable-{k}" for k in range(1, 7))
GUESTS = tuple(f"guest-{k}" for k in range(1, 7))
HONEST = ("alice", "bob", "carol", "dave")
HOSTILE = {"mallory": "participant", "trudy": "observer"}
DEPARTURES: tuple[Kind, ...] = ("crash", "restart", "freeze")
UNIT = 10.0  # seconds for which a schedule has a deadline, and in which one node goes
LOOK = 60.0  # seconds between two lines
PACES = {"churn": 1.0, "attacks": 0.0}  # seconds that a node waits in each round, besides its training
LOSSES = 0.1  # maximum loss of accuracy against the best
GROWTH = {  # largest allowed ratio of last to first
    "churn": {"memory": 1.03, "files": 1.1, "folder": 1.05, "membership": 1.0},
    "attacks": {"memory": 1.15, "files": 1.15},
}
TOML = """rounds = 1000000
deadline = 5.0
members = {members}
status_port = 0
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "paced:Paced", seconds = {pace}}}
{more}"""
PACED = Path(__file__).with_name("paced.py")


class Churn:
    """Departures and returns of the guests, by one schedule after the other.

    Attributes:
        counts: number of departures of each kind.
    """

    def __init__(self, federation: Federation, seed: int) -> None:
        self.counts = dict.fromkeys(DEPARTURES, 0)
        self._federation, self._seed = federation, seed
        self._number = -1
        self._faults = Faults(federation, ())

    def step(self) -> None:
        if self._faults.over:
            self._number += 1
            drawn = draw_schedule(f"{self._seed} {self._number}", GUESTS, (), UNIT, kinds=DEPARTURES, count=(9, 9))
            self._faults, self._begun = Faults(self._federation, drawn), time.monotonic()
            for fault in drawn:
                self.counts[fault.kind] += 1
        self._faults.step(time.monotonic() - self._begun)


def look(federation: Federation, name: str) -> dict[str, float]:
    """Return what is visible of a node: its round, accuracy, and use of memory (MiB), files and disk (KiB)."""
    state, folder, pid = federation.state(name), federation.folders[name], federation.processes[name].pid
    accuracy = next((row["test"] for row in reversed(state["history"]) if row.get("test") is not None), float("nan"))
    return {
        "round": state["round"],
        "test": accuracy,
        "memory": memory(pid),
        "files": open_files(pid),
        "log": federation.log(name).stat().st_size / 1024,
        "folder": size(folder) / 1024,
        "membership": (folder / MEMBERSHIP).stat().st_size / 1024,
    }


def means(rows: list[dict[str, Any]], what: str) -> list[float]:
    """Return the mean of a figure over the nodes, for each row."""
    return [statistics.mean(figures[what] for figures in row["nodes"].values()) for row in rows]


def slope(rows: list[dict[str, Any]], what: str) -> float:
    """Return the growth of a figure in one hour, by least squares."""
    return statistics.linear_regression([row["seconds"] / 3600 for row in rows], means(rows, what)).slope


def judge(rows: list[dict[str, Any]], growth: dict[str, float], ended: dict[str, int]) -> list[str]:
    """Return the faults found at the end."""
    wrong = [f"{name} ended with {code}" for name, code in ended.items()]
    early, late = rows[len(rows) // 4 : len(rows) // 2], rows[3 * len(rows) // 4 :]
    for what, limit in growth.items():
        first, last = statistics.median(means(early, what)), statistics.median(means(late, what))
        if last > limit * first:
            wrong.append(f"{what} grows: {first:.1f} to {last:.1f}")
    for name in rows[0]["nodes"]:
        rounds, tests = ([row["nodes"][name][what] for row in rows] for what in ("round", "test"))
        if not rounds[-1] > rounds[len(rows) // 2] > rounds[0]:
            wrong.append(f"{name} makes no progress: rounds {rounds[0]}, {rounds[len(rows) // 2]}, {rounds[-1]}")
        if not statistics.mean(tests[-4:]) > max(tests) - LOSSES:
            wrong.append(f"accuracy of {name} fell: {max(tests):.3f} to {statistics.mean(tests[-4:]):.3f}")
    return wrong


def describe(row: dict[str, Any]) -> str:
    said = [f"{row['seconds']:.0f} s"]
    for what, unit in (("round", ""), ("test", ""), ("memory", " MiB"), ("files", ""), ("log", " KiB"), ("folder", " KiB")):
        values = [figures[what] for figures in row["nodes"].values()]
        said.append(f"{what} {statistics.mean(values):.5g}{unit} (at most {max(values):.5g})")
    return ", ".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=GROWTH, help="what happens to the nodes")
    parser.add_argument("--minutes", type=float, default=60.0, help="duration in minutes (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the departures (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every minute to this file, as JSON")
    options = parser.parse_args()
    churns = options.load == "churn"
    names, hostile = ((*STABLE, *GUESTS), {}) if churns else (HONEST, HOSTILE)
    watched, port = STABLE if churns else HONEST, Federation.port()
    broker = "" if churns else f'broker = "mqtt://127.0.0.1:{port}"\n'
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="p2pfl-soak-") as root, ExitStack() as stack:
        toml = TOML.format(members=len(names), pace=PACES[options.load], more=broker)
        federation = Federation(Path(root), names, toml, hostile=hostile, modules=(PACED,))
        if not churns:
            stack.enter_context(attacking("broker", port=port))
        stack.enter_context(federation.running())
        federation.wait(lambda: min(map(federation.round, watched)) >= 3, "the nodes learn")
        churn, begun = Churn(federation, options.seed), time.monotonic()
        if not churns:
            nodes = {name: federation.addresses[name] for name in HONEST}
            poisoner, flooder = (str(federation.folders[name]) for name in HOSTILE)
            stack.enter_context(attacking("poison", kinds=POISONS, folder=poisoner, nodes=nodes, lies=True))
            stack.enter_context(attacking("attack_in_turn", folder=flooder, nodes=nodes))
        while (seconds := time.monotonic() - begun) < 60 * options.minutes:
            if seconds >= len(rows) * min(LOOK, 60 * options.minutes / 8):
                rows.append({"seconds": seconds, "nodes": {name: look(federation, name) for name in watched}})
                print(describe(rows[-1]), flush=True)
            if churns:
                churn.step()
            time.sleep(0.2)
        state = federation.state(watched[0])
        wrong = judge(rows, GROWTH[options.load], federation.ended())
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "departures": churn.counts}, indent=1) + "\n")
    if churns:
        print(f"departures: {churn.counts}")
    else:
        print(f"{watched[0]}: rejected {state['rejected']}, suspicious {state.get('suspicious')}")
    late = rows[len(rows) // 4 :]
    print("growth in an hour: " + ", ".join(f"{what} {slope(late, what):+.2f}" for what in (*GROWTH["churn"], "log")))
    print("\n".join(wrong) or "no figure grows, all nodes learn, and no process ended by itself")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
