"""Run four honest nodes among two hostile members and a hostile broker, and monitor their health.

One hostile member poisons: it answers requests with a different poison every minute, claims rounds that are far ahead
or behind, and drops its links occasionally. The other one floods, with a different flood every minute. The broker
closes connections at every stage of the protocol, sends nonsense, and at times behaves correctly.

Every half minute a line shows the round, the accuracy, the memory and the open files of each honest node. The final
verdict says whether all nodes are alive, have continued to learn, and have stayed within bounds of memory and files.
The first quarter of the time does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from adversary import FLOODS, Adversary, flood_member, hold_frames, say_nothing
from poison import KINDS, MOST, VALUES, poison
from processes import Federation, memory, open_files

from p2pfl.node.exchange.factory import max_frame
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m

HONEST = ("alice", "bob", "carol", "dave")
POISONER, FLOODER = "mallory", "trudy"
SPELL = 60.0  # seconds of one attack
LOOK = 30.0  # seconds between two lines
LOSSES = 0.1  # maximum loss of accuracy of the honest nodes against their best
GROWTH = 1.15  # maximum growth of memory
TOML = """rounds = 1000000
deadline = 5.0
members = 4
broker = "mqtt://127.0.0.1:{port}"
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "random"}}
"""


# Hostile members


async def poison_all(folder: Path, nodes: dict[str, str]) -> None:
    """Poison, claim false rounds, and leave and return."""
    rng, adversary = random.Random(0), Adversary(folder, MOST)

    async def answer(name: str, link: Link, get: m.Get) -> None:
        payload = await adversary.ask(link, get.round, get.stage)
        if payload is None:
            return
        kind = KINDS[1:][int(time.monotonic() / SPELL) % (len(KINDS) - 1)]
        params = poison(kind, np.frombuffer(payload[: 4 * VALUES], "<f4"), np.random.default_rng(get.round))
        said = m.ModelUpdate(get.request, get.round, get.stage, adversary.n_samples, False, 0.0)
        adversary.send(link, said, params.tobytes())

    async def lie() -> None:
        while True:
            await asyncio.sleep(rng.uniform(5, 20))
            adversary.claim(rng.choice([MOST, 0, adversary.round + 3, adversary.round + 1000]))
            await asyncio.sleep(rng.uniform(1, 5))
            adversary.round = 0
            for link in list(adversary.links.values()):
                if rng.random() < 0.3:
                    link.close()
                    adversary.lost(link, "dropped")

    adversary.serve = answer
    await asyncio.gather(lie(), *(adversary.stay(name, address) for name, address in nodes.items()))


async def flood_all(folder: Path, nodes: dict[str, str]) -> None:
    """Start a different attack against a different node in every interval."""
    attacks = ["half-frames", "tarpit", *FLOODS]
    names = list(nodes)
    for n in range(1_000_000):
        kind, name = attacks[n % len(attacks)], names[n % len(names)]
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(SPELL):
                if kind == "half-frames":
                    await hold_frames(folder, name, nodes[name], max_frame(VALUES))
                elif kind == "tarpit":
                    await say_nothing(folder, nodes)
                else:
                    await flood_member(kind, folder, name, nodes[name])


# A hostile broker


async def broker(port: int) -> None:
    """Run a broker that ends connections at every stage, and sends nonsense."""
    rng = random.Random(1)
    nonsense = [
        b"",
        b"\x00\x00",
        b"\x30\xff\xff\xff\xff\xff\x01",
        b"\x30\x00",
        b"\x30\x05\x00\x01#xx",
        b"\x30\x05\x00\x03a\x00b",
        b"\xe0\x00",
        b"\x20\x02\x00\x05",
        b"\x90\x03\x00\x63\x80",
        b"\xf0\x00",
        b"\x82\x06\x00\x01\x00\x01a\x00",
    ]

    async def packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
        kind, size, shift = (await reader.readexactly(1))[0], 0, 0
        while True:
            byte = (await reader.readexactly(1))[0]
            size |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return kind >> 4, await reader.readexactly(size)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        patience = rng.choice([0, 1, 2, 3, 50, 500])  # packets until it turns hostile
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                kind, body = await packet(reader)
                if patience == 0:
                    writer.write(
                        rng.choice([b"", b"\x20\x02\x00\x00"]) + rng.choice(nonsense) + os.urandom(rng.choice([0, 9]))
                    )
                    break
                patience -= 1
                if kind == 1:
                    writer.write(b"\x20\x02\x00\x00")
                elif kind == 8:
                    writer.write(b"\x90" + bytes([2 + 3]) + body[:2] + b"\0\0\0")
                elif kind == 12:
                    writer.write(b"\xd0\x00")
        with suppress(OSError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


def act(orders: dict[str, Any]) -> None:
    if orders["do"] == "broker":
        asyncio.run(broker(orders["port"]))
    elif orders["do"] == "poison":
        asyncio.run(poison_all(Path(orders["folder"]), orders["nodes"]))
    else:
        asyncio.run(flood_all(Path(orders["folder"]), orders["nodes"]))


@contextmanager
def acting(**orders: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, __file__, "--act", json.dumps(orders)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# Monitoring


def look(federation: Federation) -> dict[str, dict[str, float]]:
    """Return the visible state of each honest node."""
    seen = {}
    for name in HONEST:
        state, pid = federation.state(name), federation.processes[name].pid
        accuracy = next((row["test"] for row in reversed(state["history"]) if row.get("test") is not None), float("nan"))
        seen[name] = {"round": state["round"], "test": accuracy, "memory": memory(pid), "files": open_files(pid)}
    return seen


def describe(row: dict[str, float]) -> str:
    return f"round {row['round']:.0f}, {row['test']:.3f}, {row['memory']:.0f} MiB, {row['files']:.0f} files"


def stopping(rows: list[dict[str, dict[str, float]]], federation: Federation) -> list[str]:
    """Return the faults found at the end."""
    wrong = [f"{name} ended with {code}" for name, code in federation.ended().items()]
    late = rows[len(rows) // 4 :]
    for name in HONEST:
        rounds = [row[name]["round"] for row in rows]
        if not rounds[-1] > rounds[len(rounds) // 2] > rounds[0]:
            wrong.append(
                f"{name} makes no progress: rounds {rounds[0]:.0f}, {rounds[len(rounds) // 2]:.0f}, {rounds[-1]:.0f}"
            )
        accuracies = [row[name]["test"] for row in rows]
        if not statistics.mean(accuracies[-4:]) > max(accuracies) - LOSSES:
            wrong.append(f"accuracy of {name} fell: {max(accuracies):.3f} to {statistics.mean(accuracies[-4:]):.3f}")
        for what in ("memory", "files"):
            first, last = (statistics.median(row[name][what] for row in part) for part in (late[:4], late[-4:]))
            if last > GROWTH * first + 4:
                wrong.append(f"{what} of {name} grows: {first:.0f} to {last:.0f}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="duration in minutes (default: 30)")
    parser.add_argument("--act", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.act is not None:
        act(options.act)
        return 0
    with tempfile.TemporaryDirectory(prefix="p2pfl-soak-") as root:
        port = Federation.port()
        federation = Federation(Path(root), HONEST, TOML.format(port=port), {POISONER: "participant", FLOODER: "observer"})
        nodes = {name: federation.addresses[name] for name in HONEST}
        folders = federation.folders
        rows: list[dict[str, dict[str, float]]] = []
        with acting(do="broker", port=port), federation.running():
            federation.wait(lambda: federation.round(HONEST[0]) >= 3, "the nodes learn")
            with (
                acting(do="poison", folder=str(folders[POISONER]), nodes=nodes),
                acting(do="flood", folder=str(folders[FLOODER]), nodes=nodes),
            ):
                begun = time.monotonic()
                while time.monotonic() - begun < 60 * options.minutes:
                    time.sleep(LOOK)
                    rows.append(look(federation))
                    said = "; ".join(f"{name} {describe(row)}" for name, row in rows[-1].items())
                    print(f"{time.monotonic() - begun:.0f} s: {said}", flush=True)
            state = federation.state(HONEST[0])
            print(f"{HONEST[0]}: rejected {state['rejected']}, suspicious {state.get('suspicious')}")
            wrong = stopping(rows, federation)
    print("\n".join(wrong) or "all nodes run, learn, and stay within the limits")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
