"""How much slower three honest nodes get while they are attacked, on loopback.

The nodes are processes that train, exchange models with each other and write checkpoints, as they do in the field. Another
process attacks one of them, at intervals:

    silent    connections that are opened, and say nothing
    half      connections on which TLS has begun, and nothing is proven
    deaf      a member that asks for every model and reads none of them

A connection that the node ends is opened again a second later. Spells without and with the attack alternate, and each is
compared with the one before it; the figure is the median of these ratios. The nodes wait for each other in every round, so
that one speed is that of all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from node import admission, agreement, config, joining, setup, status
from node.wiring import max_frame
from protocols import messages as m
from protocols.addresses import split_address
from protocols.certificates import client_context
from protocols.envelope import Door, Payload, Sealer
from protocols.errors import TransportError
from protocols.identity import Identity
from protocols.tls import TlsLink, TlsTransport
from protocols.transport import Link

NAMES = ("alice", "bob", "carol")
DEAF = "mallory"
CONNECTIONS = 500  # of which half begin TLS
AGAIN = 1.0  # seconds until a connection that was ended is opened again
ASKING = 0.02  # seconds between what the deaf member asks for
TOML = """
name = "{name}"
listen = "{listen}"
part = "{part}"
mdns = false
rounds = 1000000
deadline = 5.0
members = 3
task = {{name = "digits"}}
[addresses]
{addresses}
"""


# The honest nodes


def federate(root: Path) -> dict[str, Path]:
    """Make the folders of a federation of the honest nodes and the deaf one, which is an observer."""
    ports = free_ports(len(NAMES))
    addresses = "".join(f'{name} = "127.0.0.1:{port}"\n' for name, port in ports.items())
    folders = {name: root / name for name in (*NAMES, DEAF)}
    for k, (name, folder) in enumerate(folders.items()):
        listen, part = f"127.0.0.1:{ports.get(name, 0)}", f"{k % len(NAMES)}/{len(NAMES)}"
        config.create(folder, name, listen)
        (folder / config.CONFIG).write_text(TOML.format(name=name, listen=listen, part=part, addresses=addresses))
    first = folders[NAMES[0]]
    ready = setup.load(first)
    admission.create_federation(first, agreement.draft("hostile", ready.config, setup.task_of(ready)), root / "backup.pem")
    for name in (*NAMES[1:], DEAF):
        role, told = "observer" if name == DEAF else "participant", root / f"{name}.admission"
        admission.admit(first, admission.request(folders[name]), role, told)
        joining.join(folders[name], told.read_text())
    for name in NAMES[1:]:
        (folders[name] / admission.MEMBERSHIP).write_bytes((first / admission.MEMBERSHIP).read_bytes())
    return folders


def free_ports(count: int) -> dict[str, int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return {name: each.getsockname()[1] for name, each in zip(NAMES, sockets, strict=True)}


@contextmanager
def running(folders: dict[str, Path]) -> Iterator[dict[str, int]]:
    """Run the honest nodes; yield the numbers of their processes."""
    with ExitStack() as stack:
        processes = {}
        for name in NAMES:
            command = [sys.executable, "-m", "node", "run", str(folders[name])]
            output = stack.enter_context((folders[name] / "output").open("wb"))
            processes[name] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(processes[name].wait)
            stack.callback(processes[name].kill)
        yield {name: process.pid for name, process in processes.items()}


def state_of(folder: Path) -> dict[str, Any]:
    state = status.read(folder / config.STATUS) or {"round": 0}
    if state.get("state") in ("failed", "gone"):
        raise RuntimeError(f"{folder.name} {state['state']}: {(folder / 'output').read_text()}")
    return state


def open_files(pid: int) -> int:
    """Return how many files and connections a process has open; 0 where that is not told."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


# The attack


class Attack:
    """
    Args:
        address: of the node that is attacked.
    """

    def __init__(self, address: str, victim: Path, own: Path) -> None:
        self.host, self.port = split_address(address)
        self.opened = 0
        self._context = client_context()
        self._victim, self._key = victim, Identity.load(victim / config.KEY).public
        self._identity = Identity.load(own / config.KEY)
        self._boot = 0
        membership = admission.load_federation(own)
        assert membership is not None
        self._membership = membership
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        work = [self._connect(tls=k % 2 == 0) for k in range(CONNECTIONS)]
        self._tasks = [asyncio.get_running_loop().create_task(each) for each in (*work, self._be_deaf())]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, tls: bool) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self._context if tls else None)
                self.opened += 1
                try:
                    while await reader.read(1 << 16):
                        pass
                finally:
                    writer.transport.abort()
            await asyncio.sleep(AGAIN)

    async def _be_deaf(self) -> None:
        while True:
            with suppress(TransportError):
                await self._ask_for_all()
            await asyncio.sleep(AGAIN)

    async def _ask_for_all(self) -> None:
        self._boot += 1
        transport = TlsTransport("127.0.0.1:0", self._identity, self._membership, max_frame(1 << 20))
        sealer = Sealer(self._identity, self._membership.federation, bytes(16), int(time.time()))
        ear = Ear(Door({"victim": self._key}, self._identity.public, self._membership.federation, 1 << 22))
        transport.use(ear)
        try:
            link = await transport.dial(f"{self.host}:{self.port}", self._key)

            def say(message: m.Message, payload: bytes = b"") -> None:
                link.send(sealer.seal(message, self._key, Payload.of(payload), link.session))

            say(m.Hello(), m.Terms({}, {}, 0, False).encode())
            terms = await ear.terms
            say(m.Hello(), m.Terms(terms.agreed, {"n_samples": 1}, terms.round, True, terms.epoch).encode())
            stop_reading(link)
            for number in range(1, 1 << 31):
                for round in range(2):
                    say(m.Get(2 * number + round, state_of(self._victim)["round"] + round, "trained"))
                await asyncio.sleep(ASKING)
        finally:
            await transport.close()


def stop_reading(link: TlsLink) -> None:
    assert link._tls is not None
    link._tls.pause_reading()  # type: ignore[attr-defined]


class Ear:
    """Hears what the victim has its peers agree to."""

    def __init__(self, door: Door) -> None:
        self.terms: asyncio.Future[m.Terms] = asyncio.get_running_loop().create_future()
        self._door = door

    def received(self, link: Link, frame: memoryview) -> None:
        opened = self._door.open(frame, link.session, link.key)
        if isinstance(opened.message, m.Welcome) and not self.terms.done():
            self.terms.set_result(m.decode_terms(opened.payload))

    def drained(self, link: Link) -> None: ...

    def lost(self, link: Link, reason: str) -> None: ...

    def refused(self, cause: str, detail: str) -> None: ...


def attack(orders: Connection, address: str, victim: Path, own: Path) -> None:
    """Begin and end the attack as ordered, and tell how many connections were opened."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        made = Attack(address, victim, own)
        while (order := await loop.run_in_executor(None, orders.recv)) != "leave":
            if order == "begin":
                made.begin()
            else:
                await made.end()
            orders.send(made.opened)

    asyncio.run(main())


# Measuring


def measure(spells: int, seconds: float) -> dict[str, Any]:
    """Return rounds per second in peace and under attack, by spell, and what was seen of the attack."""
    with tempfile.TemporaryDirectory(prefix="p2pfl-hostile-") as root, ExitStack() as stack:
        folders = federate(Path(root))
        pids = stack.enter_context(running(folders))
        victim = folders[NAMES[0]]
        orders = attacker(stack, victim, folders[DEAF])
        wait_for_round(victim, 3)
        peace, war, files, opened = [], [], [], 0
        for _ in range(spells):
            peace.append(rounds_per_second(victim, seconds))
            opened = order(orders, "begin")
            rounds_per_second(victim, min(1.0, seconds))  # until it is in full swing
            war.append(rounds_per_second(victim, seconds))
            files.append(open_files(pids[NAMES[0]]))
            opened = order(orders, "end")
            time.sleep(min(1.0, seconds))
        states = {name: state_of(folders[name]) for name in NAMES}
        return {
            "rounds/s in peace": peace,
            "rounds/s under attack": war,
            "ratio of round times": statistics.median(before / now for before, now in zip(peace, war, strict=True)),
            "connections opened": opened,
            "files open": max(files),
            "rejected": states[NAMES[0]]["rejected"],
            "suspected": {
                name: [peer["name"] for peer in state["peers"] if peer["state"] != "connected" and peer["name"] != DEAF]
                for name, state in states.items()
            },
        }


def attacker(stack: ExitStack, victim: Path, own: Path) -> Connection:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    address = config.load(victim).listen
    process = context.Process(target=attack, args=(theirs, address, victim, own), daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(process.kill)
    return ours


def order(orders: Connection, word: str) -> int:
    orders.send(word)
    opened: int = orders.recv()
    return opened


def wait_for_round(folder: Path, round: int) -> None:
    until = time.monotonic() + 120
    while state_of(folder)["round"] < round:
        if time.monotonic() > until:
            raise RuntimeError(f"{folder.name} does not get to round {round}")
        time.sleep(0.05)


def rounds_per_second(folder: Path, seconds: float) -> float:
    """Return the speed over so many seconds or a little more: from the end of a round to that of another."""
    first, began = next_round(folder)
    time.sleep(seconds)
    last, ended = next_round(folder)
    return (last - first) / (ended - began)


def next_round(folder: Path) -> tuple[int, float]:
    """Wait for the end of a round; return its number, and the time."""
    before = state_of(folder)["round"]
    while (now := state_of(folder)["round"]) == before:
        time.sleep(0.002)
    return now, time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    parser.add_argument("--quick", action="store_true", help="one short spell of each, to see that it works")
    parser.add_argument("--spells", type=int, default=20, metavar="N", help="of peace, and as many of attack (20)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="that a spell lasts (4)")
    options = parser.parse_args()
    figures = measure(1, 2.0) if options.quick else measure(options.spells, options.seconds)
    for key in ("rounds/s in peace", "rounds/s under attack"):
        speeds = figures[key]
        print(f"{key}: {statistics.median(speeds):.2f} ({min(speeds):.2f} to {max(speeds):.2f})")
    for key in ("ratio of round times", "connections opened", "files open", "rejected", "suspected"):
        print(f"{key}: {figures[key]:.2f}" if isinstance(figures[key], float) else f"{key}: {figures[key]}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
