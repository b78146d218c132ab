"""Memory and time of sending one large model between two processes over TLS on loopback.

Each process is a node without learning (see benchmarks/nodes.py): it publishes a model, or fetches it. The figures are the
peak of resident memory of each process above that before the model, as a multiple of the model's size; the seconds of the
transfer; and the seconds of processor time of both processes.

With --codec, the model is sent in another codec; `--codec sparse` sends a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from nodes import BenchNode

from p2pfl.compression.codecs import make_codec
from p2pfl.node.exchange.base import Detached

MB = 1_000_000
SERVER, CLIENT = 1, 2


def resident(key: str) -> int:
    """Return a figure of /proc/self/status in bytes: VmRSS, or VmHWM, the peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def model_of(size: int, round: int) -> np.ndarray:
    """Return a model of `size` bytes. All values change from round to round, some much more than others."""
    model = np.zeros(size // 4, np.float32)
    model[:: max(1, len(model) // 1000)] = round
    return model


async def serve(pipe: Connection, size: int, codec: str) -> dict[str, Any]:
    node = BenchNode(SERVER, {CLIENT: ""}, size, codec=make_codec(codec, {}))
    async with asyncio.TaskGroup() as tasks:
        await node.exchange.peering.start(tasks)
        pipe.send(node.transport.address)
        before, spent = resident("VmRSS"), time.process_time()
        await node.exchange.publish(1, "trained", model_of(size, 1), {})
        pipe.send("published")
        await asyncio.to_thread(pipe.recv)
        result = {"peak": resident("VmHWM") - before, "cpu": time.process_time() - spent}
        await node.exchange.close()
    return result


async def fetch(pipe: Connection, size: int, codec: str) -> dict[str, Any]:
    address = pipe.recv()
    node = BenchNode(CLIENT, {SERVER: address}, size, codec=make_codec(codec, {}))
    async with asyncio.TaskGroup() as tasks:
        await node.exchange.start(tasks, Detached())
        await asyncio.to_thread(pipe.recv)
        before, spent, begun = resident("VmRSS"), time.process_time(), time.perf_counter()
        (update,) = await node.exchange.fetch([*node.exchange.peers], 1, "trained")
        result = {
            "peak": resident("VmHWM") - before,
            "cpu": time.process_time() - spent,
            "seconds": time.perf_counter() - begun,
            "bytes": update.size,
            "equal": bool((update.params == model_of(size, 1)).all()),
        }
        await node.exchange.close()
    return result


def run(role: Any, pipe: Connection, results: Connection, size: int, codec: str) -> None:
    results.send(asyncio.run(role(pipe, size, codec)))


def measure(size: int, codec: str) -> dict[str, Any]:
    """Return the figures of one transfer."""
    context = multiprocessing.get_context("spawn")
    ends = [(context.Pipe(), context.Pipe(duplex=False)) for _ in (serve, fetch)]
    processes = [
        context.Process(target=run, args=(role, pipe[1], results[1], size, codec))
        for role, (pipe, results) in zip((serve, fetch), ends, strict=True)
    ]
    for process in processes:
        process.start()
    ((server, _), (served, _)), ((client, _), (fetched, _)) = ends
    client.send(server.recv())  # the address
    client.send(server.recv())  # published
    received = fetched.recv()
    server.send("done")
    sent = served.recv()
    for process in processes:
        process.join()
    return {
        "codec": codec,
        "size": size,
        "bytes": received["bytes"],
        "equal": received["equal"],
        "seconds": round(received["seconds"], 2),
        "cpu": round(received["cpu"] + sent["cpu"], 2),
        "sender": round(sent["peak"] / size, 2),
        "receiver": round(received["peak"] / size, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=2000.0, help="MB (1e6 bytes) of the model as float32; default 2000")
    parser.add_argument("--codec", default="float32", help="codec of the models; default float32")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    args = parser.parse_args()
    figures = json.dumps(measure(int(args.size * MB) // 4 * 4, args.codec), indent=1)
    print(figures)
    if args.json is not None:
        args.json.write_text(figures)


if __name__ == "__main__":
    main()
