"""Time in which many node processes connect, and the cost of members that are away.

    benchmarks/founding.py 100              # all start at the same time, directly on loopback
    benchmarks/founding.py 100 --broker     # only through a Mosquitto, which must be installed
    benchmarks/founding.py 1 --absent 800   # one process whose other members are off: its cost while it waits for them

The graph is complete. The program prints when all processes listen, when all are connected, the processor time until
then, the connections that were refused by cause, and the errors that the nodes have survived. It exits with 1 if not all
are connected within 60 s after all listen, or if 100 connections or more were refused. PyTorch is hidden from the nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks import processes
from p2pfl.node.federation.membership_file import MembershipFile, member_of
from p2pfl.protocols.identity import Identity
from tests.support import brokers

ROOT = Path(__file__).parents[1]
TOML = """
rounds = 2
members = {members}
deadline = 60.0
{more}

[task]
name = "concept-shift"

[policy]
name = "random"
neighbours = 3
"""
LONGEST = 60.0  # seconds to connect, once all listen
REFUSED = 100  # permitted refused connections
WAITING, MEASURED = 60.0, 30.0  # seconds before and during the measurement of a node without its members


class Federation(processes.Federation):
    def launch(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT / "tests/support/no_torch"), str(ROOT)])
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}, **options)

    def states(self) -> list[dict[str, Any]]:
        return [self.state(name) for name in self.names]

    def cpu(self) -> float:
        """Return the seconds of processor time of all processes."""
        times = [psutil.Process(process.pid).cpu_times() for process in self.processes.values()]
        return float(sum(each.user + each.system for each in times))


def connect(federation: Federation, limit: float) -> dict[str, Any]:
    """Start all processes; return the figures of their founding."""
    begun, count = time.monotonic(), len(federation.names)
    listening = 0.0
    federation.start()
    while True:
        states, now = federation.states(), time.monotonic() - begun
        if not listening and all(state["state"] != "starting" for state in states):
            listening = now
        links = sum(state.get("peer_counts", {}).get("linked", 0) for state in states)
        if links == count * (count - 1) or now > limit:
            break
        time.sleep(1.0)
    refused: Counter[str] = Counter()
    for state in federation.states():
        refused.update(state.get("rejected", {}))
    return {
        "members": count,
        "links": links,
        "listening_s": round(listening, 1),
        "connected_s": round(now, 1) if links == count * (count - 1) else None,
        "cpu_s": round(federation.cpu(), 1),
        "refused": dict(refused),
        "faults": sum(sum(state.get("faults", {}).values()) for state in states),
    }


def wait_alone(federation: Federation, absent: int) -> dict[str, Any]:
    """Run one process whose other members are off; return its cost after a while."""
    (name,) = federation.names
    folder = federation.folders[name]
    log, admission = member_of(folder), Identity.load(folder / "admission.pem")
    for k in range(absent):
        log.append(admission, "add", f"absent-{k}", Identity.from_seed((k + 1).to_bytes(32, "big")).public)
    MembershipFile(folder).save(log)
    port = federation.port()  # of nobody: connections are refused at once
    config = folder / "node.toml"
    config.write_text(config.read_text() + "".join(f'absent-{k} = "127.0.0.1:{port}"\n' for k in range(absent)))
    federation.start()
    federation.wait(lambda: federation.state(name)["state"] == "serving", "it has done its rounds")
    time.sleep(WAITING)
    cpu, begun = federation.cpu(), time.monotonic()
    time.sleep(MEASURED)
    share = (federation.cpu() - cpu) / (time.monotonic() - begun)
    return {"absent": absent, "core": round(share, 4), "status_bytes": (folder / "status.json").stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", type=int)
    parser.add_argument("--broker", action="store_true", help="connect through a broker only")
    parser.add_argument("--absent", type=int, default=0, help="further members that are off")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which to give up")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    with ExitStack() as close:
        root = Path(close.enter_context(tempfile.TemporaryDirectory()))
        more = ""
        if given.broker:
            broker = close.enter_context(brokers.mosquitto(["allow_anonymous true", "max_queued_messages 0"]))
            more = f'direct = false\nbroker = "mqtt://127.0.0.1:{broker.port}"'
        names = [f"node-{k:03}" for k in range(given.members)]
        toml = TOML.format(members=given.members, more=more)
        federation = Federation(root, names, toml)
        with federation.running():
            figures = wait_alone(federation, given.absent) if given.absent else connect(federation, given.limit)
    print(json.dumps(figures))
    if given.json:
        given.json.write_text(json.dumps(figures) + "\n")
    if not given.absent:
        late = figures["connected_s"] is None or figures["connected_s"] - figures["listening_s"] > LONGEST
        sys.exit(late or sum(figures["refused"].values()) >= REFUSED)


if __name__ == "__main__":
    main()
