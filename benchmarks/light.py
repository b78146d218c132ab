"""Costs of a light node: its start, its memory, and its idle time, with eight neighbours on loopback.

    benchmarks/light.py                         # probe periods of 10, 30 and 120 s, each idle for a minute
    benchmarks/light.py --neighbours 3 --seconds 20 --periods 10

Nine processes are a complete federation, each of them without PyTorch, discovery and broker. The first one starts alone:
its processor time until it listens is the column `start`. All nodes then learn some rounds, and serve their peers for two
probe periods before the measurement begins. The other columns are means over the nodes:

- private: memory that no other process shares (smaps_rollup, Private_Clean and Private_Dirty). The nodes of one machine
  share the code of libraries; a node that is alone on its machine has that in addition, see the column `alone`.
- wake-ups: voluntary switches of all its threads (/proc/PID/task/*/status).
- sent: bytes on loopback (/proc/net/dev), with the headers of TLS, TCP and IP. As much is received.
- processor: time of its threads.

Everything runs in a network namespace of its own, so that only these processes use its loopback. It needs Linux, with
`unshare` and `ip`, and without root the permission to make user namespaces.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import psutil

from benchmarks import processes

TOML = """
rounds = {rounds}
members = {members}
probe_period = {period}

[task]
name = "concept-shift"

[policy]
name = "random"
neighbours = 3
"""
ROUNDS = 10
INSIDE = "P2PFL_LIGHT_INSIDE"  # set in the network namespace
MIB = 2**20


class Use(NamedTuple):
    """Figures of what the processes have used so far.

    Attributes:
        wake_ups: voluntary switches of all threads.
        sent: bytes on loopback.
        processor: seconds.
    """

    wake_ups: int
    sent: int
    processor: float


class Row(NamedTuple):
    """Figures of one node.

    Attributes:
        start: seconds of processor time until it listens.
        alone: private MiB of a node without other nodes, when it listens.
        private: private MiB when it is idle.
        wake_ups, sent: in a second; bytes.
        processor: milliseconds in a second.
    """

    start: float
    alone: float
    private: float
    wake_ups: float
    sent: float
    processor: float


def used(pids: Sequence[int]) -> Use:
    """Return what the processes have used, and the bytes of the loopback of this namespace."""
    wake_ups = sum(
        int(line.split()[1])
        for pid in pids
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )
    loopback = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return Use(wake_ups, int(loopback.split(":")[1].split()[0]), sum(map(processor, pids)))


def processor(pid: int) -> float:
    """Return the seconds of processor time of a process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def private(pid: int) -> float:
    """Return the MiB of a process that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / MIB


def measure(neighbours: int, period: float, seconds: float) -> Row:
    """Return the figures of a node with a probe period."""
    names = [f"node-{k}" for k in range(1 + neighbours)]
    with tempfile.TemporaryDirectory() as root:
        toml = TOML.format(rounds=ROUNDS, members=len(names), period=period)
        federation = processes.Federation(Path(root), names, toml, torch=False)
        with federation.running(start=False):
            federation.start(names[0])
            first = federation.processes[names[0]].pid
            federation.wait(lambda: "network" in federation.state(names[0]), "the first node listens")
            start, alone = processor(first), private(first)
            federation.start()
            federation.wait(
                lambda: all(federation.state(name)["state"] == "serving" for name in names), "all rounds are done"
            )
            time.sleep(2 * period)
            pids = [process.pid for process in federation.processes.values()]
            before, began = used(pids), time.monotonic()
            time.sleep(seconds)
            after, taken = used(pids), time.monotonic() - began
            each = taken * len(names)
            return Row(
                start,
                alone,
                fmean(map(private, pids)),
                (after.wake_ups - before.wake_ups) / each,
                (after.sent - before.sent) / each,
                1000 * (after.processor - before.processor) / each,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, default=8, metavar="N", help="of each node (default: 8)")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each idle time (default: 60)")
    parser.add_argument("--periods", type=float, nargs="+", default=[10.0, 30.0, 120.0], help="probe periods in seconds")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        rights = "-n" if os.geteuid() == 0 else "-Urn"
        command = 'ip link set lo up && exec "$@"'
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        if missing := [program for program in ("unshare", "ip") if shutil.which(program, path=path) is None]:
            parser.error(f"it needs {' and '.join(missing)}, which are programs of Linux")
        environment = os.environ | {INSIDE: "1", "PATH": path}
        again = ["unshare", rights, "sh", "-c", command, "sh", sys.executable, *sys.orig_argv[1:]]
        return subprocess.run(again, env=environment).returncode
    print("| probe period | start | alone | private | wake-ups | sent, and received | processor |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for period in options.periods:
        row = measure(options.neighbours, period, options.seconds)
        print(
            f"| {period:g} s | {row.start:.2f} s | {row.alone:.1f} MiB | {row.private:.1f} MiB | {row.wake_ups:.2f}/s"
            f" | {row.sent:.0f} B/s | {row.processor:.2f} ms/s |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
