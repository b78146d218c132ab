"""Costs of membership: founding, joins, departures and revocations of many members, on virtual time.

    benchmarks/members.py 100                      # complete graph of 100 members
    benchmarks/members.py 100 1000 --degree 8      # each with 8 neighbours; fails if a cost grows faster than log N
    benchmarks/members.py 100 300 1000 --degree 6 --rounds 8    # rounds of learning instead of events of membership

Each member has its own peers, membership log and gossip as on a machine, with real frames and signatures, over links of
20 ms in one process. Nothing is learned. For each event the program prints the frames and bytes that all members sent,
those of them with entries of the log, the processor time, and the virtual time until the event's effect is complete: all
members are connected to their neighbours, or know the newest entry. The same seed gives the same frames.

In the last event, a share of the members withhold entries: they receive them, confirm them, and pass none on.

With `--rounds`, the members learn: the random policy with three neighbours on a model of eleven values, so that nearly all
of the processor time is that of messages. The program prints the processor time of a member and a round, introductions
included and without garbage collection, and fails if it is above 5 ms or more than 1.3 times that of the smallest
federation.

With `--committee 7` the program measures coordinators, with the links that a coordinated policy needs: until all members
know one, 10 s with one, and its end without a word until all know the successor. It prints the frames of elections.

    benchmarks/members.py 100 1000 --committee 7

With `--start` the program writes the files of a member of a federation of that size to a temporary folder, and measures how
a start and each command read them: the processor time, and the memory that the log takes.

    benchmarks/members.py 1000 10000 --start
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, get_args

import networkx as nx

from p2pfl._util.event_log import EventLogger
from p2pfl.node.coordination.election_runner import ElectionRunner, MemoryVotes, VoteSigner
from p2pfl.node.federation.membership_file import MEMBERSHIP, load_federation, write_federation
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import DialLimits, Guard, PeeringConfig, PeeringOptions
from p2pfl.node.peering.peers import Peer, Traffic, Way
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.transport import Link
from p2pfl.protocols.transports.handshake import ENTRIES_LIMIT
from p2pfl.protocols.transports.in_process import InProcessNetwork, MemoryTransport
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Opened, Payload
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.clock import run
from p2pfl.sim.simulation.simulation import Simulation

LATENCY = 0.02  # seconds
JOINS = 49  # newcomers within a minute, fewer in a small federation
LEAVING = 0.3  # share of the members that leave and return
WITHHOLDING = 0.5  # share of the members that pass no entries on
SLACK = 1.5  # factor by which a cost per member may grow faster than log N
MOST_MS, FLAT = 5.0, 1.3  # of a member and a round: processor time in ms, and its growth with the number of members
KINDS = [kind.__name__ for kind in (*get_args(m.ElectionMessage), *get_args(m.CommitteeMessage))]
QUIET = EventLogger(logging.getLogger("members"))


class _Latency:
    def arrival(self, source: str, target: str, size: int, now: float) -> float:
        return now + LATENCY


class _NoLearning:
    """Receiver of a peer manager's events that learns nothing, and may take part in elections."""

    election: ElectionRunner | None = None

    def handle(self, peer: Peer, opened: Opened) -> None:
        message = opened.message
        if self.election is None:
            return
        if isinstance(message, m.CommitteeMessage):
            self.election.receive_of_committee(peer.name, message, bytes(opened.payload))
        elif isinstance(message, m.ElectionMessage):
            self.election.receive(peer.name, message)

    def may_return(self, peer: Peer) -> bool:
        return True

    def late(self, peer: Peer) -> None: ...

    def drained(self, peer: Peer) -> None: ...

    def peers_changed(self) -> None: ...


class Costs:
    """Counts of what all members send.

    Attributes:
        frames, bytes: by kind of message.
    """

    def __init__(self) -> None:
        self.frames: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()


class _CountedTraffic(Traffic):
    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self._costs = costs

    def count_message(self, way: Way, message: m.Message, size: int) -> None:
        super().count_message(way, message, size)
        if way == "sent":
            self._costs.frames[type(message).__name__] += 1
            self._costs.bytes[type(message).__name__] += size


class _ProvingTransport(MemoryTransport):
    """Transport whose dialler shows a member that does not know it the entries of its log, as it does within TLS."""

    def __init__(self, bed: Bed, name: str) -> None:
        super().__init__(bed.network, name)
        self._bed = bed

    async def dial(self, address: str, key: bytes, joining: bool = False) -> Link:
        link = await super().dial(address, key, joining)
        own, other = self._bed.members[self.name].log, self._bed.members[address.removeprefix("memory:")].log
        if other.refusal(self._bed.identities[self.name].public) == "stranger":
            other.extend(own.after(other.membership_version, ENTRIES_LIMIT))
        return link


class BenchMember:
    """One member, without learning.

    Args:
        log: its copy of the membership log.
        start: number of its starts.
        withholds: whether it passes no entries on.
    """

    def __init__(self, bed: Bed, name: str, log: Membership, start: int = 1, withholds: bool = False) -> None:
        self.name, self.log, self.start_number = name, log, start
        own = bed.identities[name]
        ready: Any = SimpleNamespace(
            membership=log,
            agreement=SimpleNamespace(edges=bed.edges, topology=None, seed=bed.seed),
            config=SimpleNamespace(name=name, addresses=bed.addresses),
            folder=Path("nowhere"),
        )
        neighbourhood = Neighbourhood(ready, (), coordinated=bed.committee > 0)
        around = neighbourhood.members()
        guard = Guard(log, asyncio.get_running_loop().time)
        config = PeeringConfig(
            name=name,
            key=own.public,
            neighbours=around,
            transport=_ProvingTransport(bed, name),
            signer=FrameSigner(own, bed.file.id, bytes(16), start),
            verifier=FrameVerifier({k: each.key for k, each in around.items()}, own.public, bed.file.id, 1 << 20),
            agreed={},
            public_info={"n_samples": 1},
            seed=bed.seed,
            options=PeeringOptions(access=guard, guard=guard, period=1.0, dialling=DialLimits(), log=QUIET),
        )
        events = _NoLearning()
        self.peering = PeerManager(config, events)
        if bed.committee:
            events.election = self._take_part(own, neighbourhood, bed)
        self.election = events.election
        self.peering.traffic = _CountedTraffic(bed.costs)
        if withholds:
            self.peering.gossip.spread = lambda urgent=False: None  # type: ignore[method-assign]
            self.peering.gossip.send = lambda peer, pause=0.0: None  # type: ignore[method-assign]
        self.sync = MembershipSync(ready, own.public, neighbourhood, self.peering, log=QUIET)

    def _take_part(self, own: Identity, neighbourhood: Neighbourhood, bed: Bed) -> ElectionRunner:
        """Return this member's part in elections."""
        runner = ElectionRunner(
            self.name,
            neighbourhood.electorate(),
            MemoryVotes(),
            incarnation=self.start_number,
            seed=bed.seed,
            clock=asyncio.get_running_loop().time,
            log=QUIET,
            signer=VoteSigner(own, bed.file.id),
        )

        def send(name: str, message: m.Message, payload: bytes = b"") -> None:
            peer = self.peering.peers.get(name)
            if peer is not None and peer.introduced:
                self.peering.tell(peer, message, Payload.of(payload))

        runner.connect(send, lambda elected: None, lambda: [peer.name for peer in self.peering.introduced_peers()])
        return runner

    @property
    def connected(self) -> bool:
        return all(peer.introduced for peer in self.peering.peers.values())


class Bed:
    """Federation of members on one event loop.

    Args:
        count: number of names; each is a member once it has joined.
        degree: number of neighbours of each; None for all.
        committee: members of a committee that elects a coordinator; 0 for none.
    """

    def __init__(self, count: int, degree: int | None, seed: int = 0, committee: int = 0) -> None:
        self.seed, self.committee = seed, committee
        self.names = [f"n{k:05}" for k in range(count)]
        streams = RandomStreams(seed, "members")
        self.identities = {name: Identity.from_seed(streams.digest(k, "key")) for k, name in enumerate(self.names)}
        self.addresses: dict[str, str] = {name: f"memory:{name}" for name in self.names}
        self.edges: Any = "all"
        if degree is not None:
            graph = nx.random_regular_graph(degree, count, seed=seed)
            self.edges = tuple((self.names[a], self.names[b]) for a, b in graph.edges)
        self.admission = Identity.from_seed(streams.digest(0, "admission"))
        self.file = Federation.sign({"name": "bed", "rounds": 10, "committee": committee}, self.admission)
        self.network = InProcessNetwork(_Latency(), {name: each.public for name, each in self.identities.items()})
        self.costs = Costs()
        self.members: dict[str, BenchMember] = {}
        self.tasks = asyncio.TaskGroup()

    async def found(self, names: Collection[str], withholding: Collection[str] = ()) -> None:
        """Start members that all know each other."""
        log = Membership(self.file)
        for name in names:
            log.append(self.admission, "add", name, self.identities[name].public)
        for name in names:
            await self.start(BenchMember(self, name, log.copy(), withholds=name in withholding))

    async def start(self, member: BenchMember) -> None:
        self.members[member.name] = member
        await member.peering.start(self.tasks)
        if member.election is not None:
            member.peering.begin(member.election.run(), f"{member.name}: elections")

    def admit(self, name: str, key: bytes) -> Membership:
        """Admit a newcomer at the first member; return its log."""
        log = self.members[self.names[0]].log
        log.append(self.admission, "add", name, key)
        return log

    async def join(self, name: str) -> None:
        """Admit and start a newcomer."""
        log = self.admit(name, self.identities[name].public)
        await self.start(BenchMember(self, name, log.copy()))

    def revoke(self, name: str) -> None:
        """End a membership at the first member."""
        self.members[self.names[0]].log.append(self.admission, "remove", name, self.identities[name].public)

    async def return_(self, name: str) -> None:
        """Start a member that has left."""
        before = self.members[name]
        await self.start(BenchMember(self, name, before.log.copy(), before.start_number + 1))

    def all_connected(self) -> bool:
        return all(member.connected for member in self.members.values())

    def all_know(self, names: Collection[str]) -> bool:
        """Return whether the logs of members are as long as that of the first one."""
        newest = self.members[self.names[0]].log.membership_version
        return all(self.members[name].log.membership_version == newest for name in names)

    def coordinators(self) -> set[str | None]:
        """Return the coordinators that the members know."""
        return {each.election.coordinator for each in self.members.values() if each.election is not None}

    async def close(self) -> None:
        for member in self.members.values():
            await member.peering.close()


async def until(condition: Callable[[], bool], most: float = 120.0) -> float:
    """Wait until a condition holds; return the seconds, or inf after `most` seconds."""
    begun = asyncio.get_running_loop().time()
    while not condition():
        if asyncio.get_running_loop().time() - begun > most:
            return float("inf")
        await asyncio.sleep(LATENCY / 2)
    return asyncio.get_running_loop().time() - begun


async def measure(count: int, degree: int | None, seed: int) -> list[dict[str, Any]]:
    """Return a row for each event, in a federation of `count` members."""
    bed = Bed(count, degree, seed)
    rows: list[dict[str, Any]] = []
    late = min(JOINS, count // 2 - 1)
    first, newcomers = bed.names[: count - late], bed.names[count - late :]

    async def event(what: str, work: Callable[[], Awaitable[float]]) -> None:
        frames, sizes, begun = bed.costs.frames.copy(), bed.costs.bytes.copy(), time.process_time()
        seconds = await work()
        taken = time.process_time() - begun
        new = bed.costs.frames - frames
        row: dict[str, Any] = {"members": count, "event": what, "virtual_s": round(seconds, 2), "cpu_s": round(taken, 2)}
        row |= {"frames": new.total(), "entries": new["Entries"], "bytes": (bed.costs.bytes - sizes).total()}
        rows.append(row)
        print(
            f"{count:6} {what:34} {row['frames']:9,} frames {row['entries']:9,} with entries {row['bytes'] / 1e6:9.2f} MB"
            f" {taken:8.1f} s of a core {seconds:8.2f} virtual s",
            flush=True,
        )

    async def founding() -> float:
        await bed.found(first)
        return await until(bed.all_connected)

    async def idle() -> float:
        await asyncio.sleep(10.0)
        return 10.0

    async def joins() -> float:
        for name in newcomers:
            await bed.join(name)
            await asyncio.sleep(60.0 / len(newcomers))
        return await until(lambda: bed.all_know(bed.names) and bed.all_connected())

    leaving = bed.names[1 : 1 + int(LEAVING * count)]

    async def leave() -> float:
        for name in leaving:
            await bed.members[name].peering.close()
        await asyncio.sleep(60.0)
        return 60.0

    async def come_back() -> float:
        for name in leaving:
            await bed.return_(name)
        return await until(bed.all_connected)

    async def revocation() -> float:
        bed.revoke(bed.names[-1])
        return await until(lambda: bed.all_know(bed.names[:-1]))

    async with bed.tasks:
        await event(f"founding of {len(first)}", founding)
        await event("10 s without events", idle)
        await event(f"{late} newcomers within a minute", joins)
        await event(f"{len(leaving)} leave; a minute without them", leave)
        await event("they return", come_back)
        await event("one is revoked", revocation)
        await bed.close()
    return rows


async def elect(count: int, committee: int, seed: int) -> list[dict[str, Any]]:
    """Return a row for each event of a coordinator's life, in a federation of `count` members with a committee."""
    bed = Bed(count, None, seed, committee)
    rows: list[dict[str, Any]] = []

    async def event(what: str, work: Callable[[], Awaitable[float]]) -> None:
        frames, sizes, begun = bed.costs.frames.copy(), bed.costs.bytes.copy(), time.process_time()
        seconds = await work()
        taken, new = time.process_time() - begun, bed.costs.frames - frames
        total = sum(new[kind] for kind in KINDS)
        row = {"members": count, "event": what, "virtual_s": round(seconds, 2), "cpu_s": round(taken, 2), "frames": total}
        rows.append(row | {"bytes": sum((bed.costs.bytes - sizes)[kind] for kind in KINDS)})
        kinds = ", ".join(f"{new[kind]:,} {kind}" for kind in KINDS if new[kind])
        print(
            f"{count:6} {what:26} {total:7,} frames {seconds:6.2f} virtual s {taken:6.1f} s of a core; {kinds}", flush=True
        )

    def agreed(but: str | None = None) -> bool:
        found = bed.coordinators()
        return len(found) == 1 and not found & {None, but}

    async def election() -> float:
        await bed.found(bed.names)
        return await until(agreed)

    async def quiet() -> float:
        await asyncio.sleep(10.0)
        return 10.0

    async def end() -> float:
        (first,) = bed.coordinators()
        assert first is not None
        gone = bed.members.pop(first)
        gone.peering.introduced_peers = list  # type: ignore[method-assign]  # it says goodbye to nobody
        await gone.peering.close()
        return await until(lambda: agreed(first))

    async with bed.tasks:
        await event("all know a coordinator", election)
        await event("10 s with a coordinator", quiet)
        await event("the coordinator's end", end)
        await bed.close()
    return rows


async def withheld(count: int, degree: int | None, seed: int) -> float:
    """Return the virtual seconds until all members know a revocation that half of them pass on to nobody."""
    bed = Bed(count, degree, seed)
    draws = RandomStreams(seed, "members").generator(0, "withholding")
    hostile = draws.choice(count - 2, int(WITHHOLDING * count), replace=False) + 1  # neither the first nor the last
    async with bed.tasks:
        await bed.found(bed.names, [bed.names[k] for k in hostile])
        await until(bed.all_connected)
        bed.revoke(bed.names[-1])
        seconds = await until(lambda: bed.all_know(bed.names[:-1]))
        await bed.close()
    return seconds


def learn(count: int, degree: int | None, rounds: int, seed: int) -> dict[str, Any]:
    """Return the costs of rounds of learning with real frames and signatures."""
    topology = {"name": "complete"} if degree is None else {"name": "k-regular", "degree": degree}
    given = {"nodes": count, "fidelity": "wire", "rounds": rounds, "seed": seed, "evaluate_every": 0}
    given |= {"robust": "median-clip", "task": {"name": "concept-shift"}, "topology": topology}
    given |= {"policy": {"name": "random", "neighbours": 3}}
    simulation = Simulation(resolve(given, [], "members", ".").runs[0])
    gc.disable()  # a pass of the collector visits the objects of all members, which are in processes of their own in truth
    begun = time.process_time()
    result = simulation.run()
    taken = time.process_time() - begun
    gc.enable()
    traffic = [node.exchange.traffic for node in result.nodes.values()]
    row: dict[str, Any] = {"members": count, "rounds": rounds, "ms": round(1000 * taken / count / rounds, 2)}
    row |= {kind: sum(each.sent[kind] for each in traffic) // count for kind in ("control", "get", "update")}
    print(
        f"{count:6} members, {rounds} rounds: {row['ms']:6.2f} ms of a core for a member and a round;"
        f" sent by each: {row['control']:,} bytes of control, {row['get']:,} of requests, {row['update']:,} of models",
        flush=True,
    )
    return row


def start(count: int) -> dict[str, Any]:
    """Return the costs of loading the membership of a federation from the disk of a member."""
    streams = RandomStreams(0, "members")
    admission = Identity.from_seed(streams.digest(0, "admission"))
    log = Membership(Federation.sign({"name": "bed", "rounds": 10}, admission))
    for k in range(count):
        log.append(admission, "add", f"n{k:05}", Identity.from_seed(streams.digest(k, "key")).public)
    with TemporaryDirectory() as folder:
        write_federation(Path(folder), log)
        gc.collect()  # of what other sizes have left
        begun = time.process_time()
        loaded = load_federation(Path(folder))
        taken = time.process_time() - begun
        tracemalloc.start()
        kept = load_federation(Path(folder))
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        size = (Path(folder) / MEMBERSHIP).stat().st_size
    assert loaded is not None
    assert kept is not None
    assert len(loaded.members) == len(kept.members) == count
    row = {"members": count, "start_s": round(taken, 3), "bytes": size, "memory": memory}
    print(
        f"{count:6} members: {taken:6.3f} s of a core to load the log, {size / 1e6:.2f} MB on disk,"
        f" {memory / count:,.0f} bytes of memory for each",
        flush=True,
    )
    return row


def slow(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each federation in which a round costs a member too much."""
    least = min(rows, key=lambda row: row["members"])["ms"]
    bound = min(MOST_MS, FLAT * least)
    return [
        f"{row['members']} members: {row['ms']:.2f} ms for a member and a round, at most {bound:.2f} are allowed"
        for row in rows
        if row["ms"] > bound
    ]


def grown(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each cost per member that grows faster than log N between two sizes."""
    found = []
    for before, after in pairwise(sorted({row["members"] for row in rows})):
        allowed = SLACK * log(after) / log(before)
        events = {k: [row for row in rows if row["members"] == k] for k in (before, after)}
        for small, large in zip(events[before], events[after], strict=True):
            for cost in ("frames", "bytes"):
                factor = (large[cost] / after) / max(1.0, small[cost] / before)
                if factor > allowed:
                    found.append(
                        f"{large['event']}: {cost} per member grow {factor:.2f} times from {before} to {after} members,"
                        f" at most {allowed:.2f} are allowed"
                    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", type=int, nargs="+", help="sizes of the federation")
    parser.add_argument("--degree", type=int, help="neighbours of each member; all by default")
    parser.add_argument("--rounds", type=int, help="learn so many rounds instead")
    parser.add_argument("--committee", type=int, metavar="K", help="measure coordinators that a committee of K elects")
    parser.add_argument("--start", action="store_true", help="measure how a start loads the log of so many members")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows = []
    if given.start:
        rows = [start(count) for count in given.members]
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
        return
    if given.rounds is not None:
        rows = [learn(count, given.degree, given.rounds, given.seed) for count in given.members]
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
        if given.degree is not None and (faults := slow(rows)):
            sys.exit("\n".join(faults))
        return
    for count in given.members:
        if given.committee:
            rows += run(elect(count, given.committee, given.seed))
            continue
        rows += run(measure(count, given.degree, given.seed))
        seconds = run(withheld(count, given.degree, given.seed))
        print(f"{count:6} a revocation that {WITHHOLDING:.0%} withhold reaches all others after {seconds:.2f} virtual s")
        rows[-1]["withheld_s"] = round(seconds, 2)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    if (given.degree or given.committee) and (faults := grown(rows)):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
