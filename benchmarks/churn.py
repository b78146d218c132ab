"""Run twelve node processes for an hour while half of them come and go, and monitor what must not grow.

Every ten seconds one of six members is killed, ended or stopped, and returns after some seconds. The other six run
from the beginning to the end. Every minute a line shows the memory, the open files, the log and the folder of these
six: the mean over the nodes, and the largest. The verdict compares the last quarter of the time with the second one,
and the last line but one shows the growth in an hour, without the first quarter.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import Federation, memory, open_files

from p2pfl.node.federation.membership_file import MEMBERSHIP

STABLE = tuple(f"stable-{k}" for k in range(1, 7))
GUESTS = tuple(f"guest-{k}" for k in range(1, 7))
PACE = 1.0  # seconds that a node waits in each round, besides its training
STEP = 10.0  # seconds between two departures
AWAY = (2.0, 25.0)  # seconds until a node is back
LOOK = 60.0  # seconds between two lines
GROWTH = {"memory": 1.03, "files": 1.1, "folder": 1.05, "membership": 1.0}  # largest allowed ratio of last to first
TOML = """rounds = 1000000
deadline = 5.0
members = 12
status_port = 0
task = {name = "digits", judged_on = "all"}
policy = {name = "paced:Paced", seconds = %s}
"""
PACED = Path(__file__).with_name("paced.py")


class Churn:
    """Departures and returns of the guests, drawn from a seed.

    Attributes:
        counts: number of departures of each kind.
    """

    def __init__(self, federation: Federation, seed: int) -> None:
        self.counts = {"killed": 0, "ended": 0, "stopped": 0}
        self._federation, self._rng = federation, random.Random(seed)
        self._back: dict[str, tuple[float, str]] = {}  # guests that are away: when they return, and how they went
        self._next = time.monotonic() + STEP

    def step(self) -> None:
        """Let those return whose time has come, and one go every `STEP` seconds."""
        now = time.monotonic()
        for name in [name for name, (when, _) in self._back.items() if when <= now]:
            if self._back.pop(name)[1] == "stopped":
                self._federation.processes[name].send_signal(signal.SIGCONT)
            else:
                self._federation.start(name)
        present = [name for name in GUESTS if name not in self._back]
        if now >= self._next and present:
            self._next = now + STEP
            name, how = self._rng.choice(present), self._rng.choice(list(self.counts))
            self._leave(self._federation.processes[name], how)
            self.counts[how] += 1
            self._back[name] = now + self._rng.uniform(*AWAY), how

    def _leave(self, process: subprocess.Popen[bytes], how: str) -> None:
        signals = {"killed": signal.SIGKILL, "ended": signal.SIGTERM, "stopped": signal.SIGSTOP}
        process.send_signal(signals[how])
        if how != "stopped":
            process.wait()

    def absent(self) -> set[str]:
        return set(self._back)


def size(folder: Path) -> int:
    """Return the bytes of the files in a node's folder, without its output."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and path.name != "output" else 0
        except FileNotFoundError:  # replaced meanwhile
            continue
    return total


def look(federation: Federation, name: str) -> dict[str, float]:
    """Return what is visible of a node: its round, accuracy, and use of memory (MiB), files and disk (KiB)."""
    state, folder, pid = federation.state(name), federation.folders[name], federation.processes[name].pid
    accuracy = next((row["test"] for row in reversed(state["history"]) if row.get("test") is not None), float("nan"))
    return {
        "round": state["round"],
        "test": accuracy,
        "memory": memory(pid),
        "files": open_files(pid),
        "log": (folder / "output").stat().st_size / 1024,
        "folder": size(folder) / 1024,
        "membership": (folder / MEMBERSHIP).stat().st_size / 1024,
    }


def means(rows: list[dict[str, Any]], what: str) -> list[float]:
    """Return the mean of a figure over the stable nodes, for each row."""
    return [statistics.mean(row["nodes"][name][what] for name in STABLE) for row in rows]


def slope(rows: list[dict[str, Any]], what: str) -> float:
    """Return the growth of a figure in one hour, by least squares."""
    return statistics.linear_regression([row["seconds"] / 3600 for row in rows], means(rows, what)).slope


def judge(rows: list[dict[str, Any]], ended: dict[str, int]) -> list[str]:
    """Return the faults found at the end."""
    wrong = [f"{name} ended with {code}" for name, code in ended.items()]
    early, late = rows[len(rows) // 4 : len(rows) // 2], rows[3 * len(rows) // 4 :]
    for what, limit in GROWTH.items():
        first, last = statistics.median(means(early, what)), statistics.median(means(late, what))
        if last > limit * first:
            wrong.append(f"{what} grows: {first:.1f} to {last:.1f}")
    rounds = means(rows, "round")
    if not rounds[-1] > rounds[len(rows) // 2] > rounds[0]:
        wrong.append(f"no progress: rounds {rounds[0]:.0f}, {rounds[len(rows) // 2]:.0f}, {rounds[-1]:.0f}")
    return wrong


def describe(row: dict[str, Any]) -> str:
    said = [f"{row['seconds']:.0f} s"]
    for what, unit in (("round", ""), ("test", ""), ("memory", " MiB"), ("files", ""), ("log", " KiB"), ("folder", " KiB")):
        values = [row["nodes"][name][what] for name in STABLE]
        said.append(f"{what} {statistics.mean(values):.5g}{unit} (at most {max(values):.5g})")
    return ", ".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="duration in minutes (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the departures (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every minute to this file, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2pfl-churn-") as root:
        federation = Federation(Path(root), (*STABLE, *GUESTS), TOML % PACE)
        for folder in federation.folders.values():
            shutil.copy(PACED, folder)
        with federation.running():
            federation.wait(lambda: min(map(federation.round, STABLE)) >= 3, "the nodes learn")
            churn, rows, begun = Churn(federation, options.seed), [], time.monotonic()
            while time.monotonic() - begun < 60 * options.minutes:
                seconds = time.monotonic() - begun
                if seconds >= len(rows) * min(LOOK, 60 * options.minutes / 8):
                    rows.append({"seconds": seconds, "nodes": {name: look(federation, name) for name in STABLE}})
                    print(describe(rows[-1]), flush=True)
                churn.step()
                time.sleep(0.2)
            ended = {name: code for name, code in federation.ended().items() if name not in churn.absent()}
            wrong = judge(rows, ended)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "departures": churn.counts}, indent=1) + "\n")
    print(f"departures: {churn.counts}")
    late = rows[len(rows) // 4 :]
    print("growth in an hour: " + ", ".join(f"{what} {slope(late, what):+.2f}" for what in (*GROWTH, "log")))
    print("\n".join(wrong) or "nothing grows, and no process ended by itself")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
