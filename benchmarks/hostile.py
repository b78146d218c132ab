"""Measure the slowdown of three honest nodes while a member or strangers attack one of them, on loopback.

The nodes are processes that train, exchange models with each other and write checkpoints, as in production. Another
process attacks one of them:

    connections   500 connections of strangers that send nothing, half of them with TLS; and a member that reads nothing
    half-frames   a member that begins frames of the maximum size on many links, and completes none
    tarpit        a member that answers pings and no request
    ping, hello, score, get, probe, signatures, junk, flap
                  a member that sends this kind of frame as fast as the node accepts it

Intervals without attack, of control and of attack alternate. In the control the same process sends the same frames to a
port that discards them. Its share of the processor therefore does not count as the nodes' loss. The figure is the
median of the ratios of an attack's speed to that of the preceding control. The nodes wait for each other in every
round, so all have the same speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.attackers import ATTACKS, attacking
from benchmarks.processes import Federation, memory, open_files

NAMES = ("alice", "bob", "carol")
MEMBER = "mallory"
TOML = 'rounds = 1000000\ndeadline = 5.0\nmembers = 3\ntask = {name = "digits"}\n'
WARM = 3.0  # seconds until an attack reaches its full rate


def measure(kind: str, spells: int, seconds: float) -> dict[str, Any]:
    """Return rounds per second without attack, in the control and under attack, and data on the attack, by interval."""
    with tempfile.TemporaryDirectory(prefix="p2pfl-hostile-") as root:
        role = "participant" if kind == "tarpit" else "observer"
        federation = Federation(Path(root), NAMES, TOML, hostile={MEMBER: role})
        victim, folder = NAMES[0], str(federation.folders[MEMBER])
        nodes = {name: federation.addresses[name] for name in NAMES}
        with federation.running(), attacking("sink") as discarding:
            assert discarding.stdout is not None
            port = int(discarding.stdout.readline())
            federation.wait(lambda: federation.round(victim) >= 3, "the nodes learn")
            pid = federation.processes[victim].pid
            peace, beside, war, files, most = [], [], [], [], []
            for _ in range(spells):
                peace.append(federation.rounds_per_second(victim, seconds))
                with attacking("control", kind=kind, folder=folder, address=f"127.0.0.1:{port}"):
                    time.sleep(min(WARM, seconds))
                    beside.append(federation.rounds_per_second(victim, seconds))
                with attacking("attack", kind=kind, folder=folder, nodes=nodes):
                    time.sleep(min(WARM, seconds))
                    war.append(federation.rounds_per_second(victim, seconds))
                    files.append(open_files(pid))
                    most.append(memory(pid))
                time.sleep(min(1.0, seconds))
            states = {name: federation.state(name) for name in NAMES}
        offences = next((peer["offences"] for peer in states[victim]["peers"] if peer["name"] == MEMBER), {})
        return {
            "rounds/s in peace": peace,
            "rounds/s in the control": beside,
            "rounds/s under attack": war,
            "attack to control": statistics.median(now / before for before, now in zip(beside, war, strict=True)),
            "files open": max(files),
            "memory, MiB": max(most),
            "rejected": states[victim]["rejected"],
            "offences": offences,
            "suspected": {
                name: [peer["name"] for peer in state["peers"] if peer["state"] != "connected" and peer["name"] != MEMBER]
                for name, state in states.items()
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--attack", choices=(*ATTACKS, "all"), default="connections", help="attack to measure (default: connections)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="one short period of each kind, to check that the benchmark works"
    )
    parser.add_argument(
        "--spells",
        type=int,
        default=5,
        metavar="N",
        help="number of periods without load, with control load, and with the attack (default: 5)",
    )
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="length of a period in seconds (default: 6)")
    options = parser.parse_args()
    figures, spells, seconds = {}, options.spells, options.seconds
    if options.quick:
        spells, seconds = 1, 2.0
    for kind in ATTACKS if options.attack == "all" else [options.attack]:
        figures[kind] = found = measure(kind, spells, seconds)
        speeds = ", ".join(f"{key} {statistics.median(found[key]):.2f}" for key in found if key.startswith("rounds/s"))
        print(f"{kind}: attack to control {found['attack to control']:.2f}; {speeds}")
        for key in ("files open", "memory, MiB", "rejected", "offences", "suspected"):
            print(f"  {key}: {found[key]:.0f}" if isinstance(found[key], float) else f"  {key}: {found[key]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
