"""Costs of membership: founding, joins, departures and revocations of many members, on virtual time.

    benchmarks/members.py 100                      # complete graph of 100 members
    benchmarks/members.py 100 1000 --degree 8      # rings of degree 8; fails if a cost grows faster than log N
    benchmarks/members.py 100 300 1000 --degree 6 --rounds 8    # rounds of learning instead of events of membership

Each member has its own peers, membership log and gossip as on a machine, with real frames and signatures, over links of
20 ms in one process. Nothing is learned. For each event the program prints the frames and bytes that all members sent,
those of them with entries of the log, the processor time, and the virtual time until the event's effect is complete: all
members are connected to their neighbours, or know the newest entry. The same seed gives the same frames.

Then one member is revoked in three more federations, each with its own trouble. The program prints the virtual time until
99 % of the honest, running members know the revocation, also in hops of 20 ms. It fails above 2 log2(N) hops.

- Churn: within a minute, 30 % of the members end and start again, at times drawn from the seed.
- Withholding: half of the members receive entries, confirm them, and pass none on.
- Lying: 30 % of the members besides send their peers forged entries and false membership versions, time and again.

Honest members whose ways to the first one all lead through others are cut off; they are counted, and do not count.

At last the federation breaks into two halves for a minute, in which one half gains the news; it prints the time until all
members know them and are connected again. `--events` selects some of all this:

    benchmarks/members.py 10000 --degree 8 --events churn withholding

What members with equal logs would each hold once more is there once: the bytes of the log, the tables of members and keys,
and the places on the rings, which the first member with a new entry computes for all. So the memory of a member here is not
that on a machine (`--start` measures the log's), and the processor time lacks the places, below 0.1 ms for an entry. Each
member verifies each entry itself. The garbage collector visits only what is new, and nothing that the founding has made: on
machines its passes visit one member, and here they would take half of the processor time.

Above 3,000 members, signatures are not computed: a signature is a hash, which costs less, and each frame has the same size.

With `--rounds`, the members learn: the random policy with three neighbours on a model of eleven values, so that nearly all
of the processor time is that of messages. The program prints the processor time of a member and a round, introductions
included and without garbage collection, and fails if it is above 5 ms or more than 1.3 times that of the smallest
federation.

With `--committee 7` the program measures coordinators, with the links that a coordinated policy needs: until all members
know one, 10 s with one, and its end without a word until all know the successor. It prints the frames of elections.

    benchmarks/members.py 100 1000 --committee 7

With `--start` the program writes the files of a member of a federation of that size to a temporary folder, and measures how
a start and each command read them: the processor time, and the memory that the log takes. It also prints what a newcomer
receives before it can begin, and the processor time in which the node that admits it signs that.

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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from hashlib import sha256, sha512
from itertools import pairwise
from math import log, log2
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, get_args

import msgspec

from p2pfl._util.event_log import EventLogger
from p2pfl.node.coordination.election_runner import ElectionRunner, MemoryVotes, VoteSigner
from p2pfl.node.federation.membership_file import MEMBERSHIP, load_federation, write_federation
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.federation.rule_links import LinkKeeper
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import DialLimits, Guard, PeeringConfig, PeeringOptions
from p2pfl.node.peering.peers import Peer, Traffic, Way
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.identity import Identity, Verifier
from p2pfl.protocols.membership import checkpoint
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Entry, Membership, Signed, signature_label
from p2pfl.protocols.transport import Link
from p2pfl.protocols.transports.handshake import ENTRIES_LIMIT
from p2pfl.protocols.transports.in_process import InProcessNetwork, MemoryTransport
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Opened, Payload
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.clock import run
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.topologies.rings import RingRule, Rings

LATENCY = 0.02  # seconds
JOINS = 49  # newcomers within a minute, fewer in a small federation
LEAVING = 0.3  # share of the members that leave and return
WITHHOLDING = 0.5  # share of the members that pass no entries on
LYING = 0.3  # share of the members that send false entries
LIES = 1.0  # seconds between lies of a member
MOST_SIGNED = 3000  # members with real signatures
REACHED = 0.99  # share of the honest members that a revocation reaches
HOPS = 2.0  # times log2(N), at most, until it does
APART = 60.0  # seconds for which the halves are apart
PASSES = 100_000, 20, 1_000_000  # of the garbage collector: objects, and younger passes, between two
SLACK = 1.5  # factor by which a cost per member may grow faster than log N
MOST_MS, FLAT = 5.0, 1.3  # of a member and a round: processor time in ms, and its growth with the number of members
QUIET_EVENTS, TROUBLES = ("newcomers", "absence", "revocation"), ("churn", "withholding", "lying")
EVENTS = (*QUIET_EVENTS, *TROUBLES, "halves")
KINDS = [kind.__name__ for kind in (*get_args(m.ElectionMessage), *get_args(m.CommitteeMessage))]
Hostile = Literal["", "withholds", "lies"]
QUIET = EventLogger(logging.getLogger("members"))


class _Latency:
    """Network in which a frame takes LATENCY. Between members that are apart none arrives.

    Attributes:
        half: names of the members of one half; empty if the network is whole.
    """

    half: frozenset[str] = frozenset()

    def apart(self, one: str, other: str) -> bool:
        return (one in self.half) != (other in self.half) if self.half else False

    def arrival(self, source: str, target: str, size: int, now: float) -> float | None:
        return None if self.apart(source, target) else now + LATENCY


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
        if self._bed.links.apart(self.name, address.removeprefix("memory:")):
            raise TransportError(f"no way to {address}")
        link = await super().dial(address, key, joining)
        own, other = self._bed.members[self.name].log, self._bed.members[address.removeprefix("memory:")].log
        if other.refusal(self._bed.identities[self.name].public) == "stranger":
            other.extend(own.after(other.membership_version, ENTRIES_LIMIT))
        return link


class _SharedRule(RingRule):
    """Rule of a member that computes the places on the rings only if no member with an equal log has done so."""

    def __init__(self, bed: Bed, log: Membership) -> None:
        super().__init__(bed.seed, changing=False, degree=bed.topology["degree"])
        self._bed, self._log = bed, log

    def change(self, tokens: Mapping[str, bytes], names: Collection[str] | None = None) -> None:
        known = self._bed.places.get(self._log.last)
        if known is None:
            known = self._rings = copy(self._rings)
            super().change(tokens, names)
            self._bed.places[self._log.last] = known
        self._rings = known


class BenchMember:
    """One member, without learning.

    Args:
        log: its copy of the membership log.
        start: number of its starts.
        hostile: what it does with entries of the log: "" passes them on, "withholds", or "lies".
    """

    def __init__(self, bed: Bed, name: str, log: Membership, start: int = 1, hostile: Hostile = "") -> None:
        self.name, self.log, self.start_number, self.hostile = name, log, start, hostile
        own = self._identity = bed.identities[name]
        ready: Any = SimpleNamespace(
            membership=log,
            agreement=SimpleNamespace(edges="all", topology=bed.topology, seed=bed.seed),
            config=SimpleNamespace(name=name, addresses=bed.addresses),
            folder=Path("nowhere"),
        )
        rule = _SharedRule(bed, log) if bed.topology else None
        neighbourhood = Neighbourhood(ready, (), coordinated=bed.committee > 0, rule=rule)
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
        if hostile:
            self.peering.gossip.spread = lambda urgent=False: None  # type: ignore[method-assign]
            self.peering.gossip.send = lambda peer, pause=0.0: None  # type: ignore[method-assign]
        self.sync = MembershipSync(ready, own.public, neighbourhood, self.peering, log=QUIET)
        if neighbourhood.links is not None:
            follow = self.sync.follow
            LinkKeeper(neighbourhood.links, self.peering, name_of=log.name_of, follow=follow, deadline=10.0)

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

    async def lie(self) -> None:
        """Send all peers a forged entry for the next place of the log, and a false membership version, without end."""
        own = self._identity
        while True:
            newest = self.log.membership_version
            (last,) = msgspec.msgpack.decode(self.log.after(newest - 1, ENTRIES_LIMIT), type=list[msgspec.Raw])
            before = sha256(last).digest()
            forged = Entry(self.log.federation, newest + 1, before, "remove", self.name, own.public, "participant")
            content = msgspec.msgpack.encode(forged)
            news = msgspec.msgpack.encode([Signed(content, own.sign(signature_label(forged) + content))])
            for peer in self.peering.introduced_peers():
                self.peering.tell(peer, m.Entries(newest + 1000), Payload.of(news))
            await asyncio.sleep(LIES)

    @property
    def connected(self) -> bool:
        return all(peer.introduced for peer in self.peering.peers.values() if peer.dialled)


class Bed:
    """Federation of members on one event loop.

    Args:
        count: number of names; each is a member once it has joined.
        degree: maximum number of neighbours of each, on rings; None for a complete graph.
        committee: members of a committee that elects a coordinator; 0 for none.
    """

    def __init__(self, count: int, degree: int | None, seed: int = 0, committee: int = 0) -> None:
        self.seed, self.committee = seed, committee
        self.names = [f"n{k:05}" for k in range(count)]
        streams = RandomStreams(seed, "members")
        self.identities = {name: Identity.from_seed(streams.digest(k, "key")) for k, name in enumerate(self.names)}
        self.addresses: dict[str, str] = {name: f"memory:{name}" for name in self.names}
        self.topology: dict[str, Any] = {} if degree is None else {"name": "rings", "degree": degree}
        self.places: dict[bytes, Rings[str]] = {}  # by the hash of the newest entry
        self.admission = Identity.from_seed(streams.digest(0, "admission"))
        tables = {"name": "bed", "rounds": 10, "committee": committee}  # with a nonce of its own, places would be others
        self.file = Federation.sign(tables | {"nonce": "the same in each run"}, self.admission)
        self.links = _Latency()
        self.network = InProcessNetwork(self.links, {name: each.public for name, each in self.identities.items()})
        self.costs = Costs()
        self.members: dict[str, BenchMember] = {}
        self.running: set[str] = set()
        self.tasks = asyncio.TaskGroup()

    async def found(self, names: Collection[str], hostile: Mapping[str, Hostile] = MappingProxyType({})) -> None:
        """Start members that all know each other."""
        log = Membership(self.file)
        for name in names:
            log.append(self.admission, "add", name, self.identities[name].public)
        for name in names:
            await self.start(BenchMember(self, name, log.copy(), hostile=hostile.get(name, "")))
        gc.collect()
        gc.freeze()

    async def start(self, member: BenchMember) -> None:
        self.members[member.name] = member
        self.running.add(member.name)
        await member.peering.start(self.tasks)
        if member.election is not None:
            member.peering.begin(member.election.run(), f"{member.name}: elections")
        if member.hostile == "lies":
            member.peering.begin(member.lie(), f"{member.name}: lies")

    async def leave(self, name: str) -> None:
        """Stop a member."""
        await self.members[name].peering.close()
        self.running.discard(name)

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

    def reachable(self, honest: Collection[str]) -> set[str]:
        """Return the honest members to which links of honest members lead from the first one."""
        found, new = {self.names[0]}, [self.names[0]]
        while new:
            peers = self.members[new.pop()].peering.introduced_peers()
            near = {peer.name for peer in peers}.intersection(honest) - found
            found |= near
            new += near
        return found

    async def close(self) -> None:
        for member in self.members.values():
            await member.peering.close()
        gc.unfreeze()


async def until(condition: Callable[[], bool], most: float = 120.0) -> float:
    """Wait until a condition holds; return the seconds, or inf after `most` seconds."""
    begun = asyncio.get_running_loop().time()
    while not condition():
        if asyncio.get_running_loop().time() - begun > most:
            return float("inf")
        await asyncio.sleep(LATENCY / 2)
    return asyncio.get_running_loop().time() - begun


async def measure(count: int, degree: int | None, seed: int, events: Collection[str]) -> list[dict[str, Any]]:
    """Return a row for each event, in a federation of `count` members."""
    bed = Bed(count, degree, seed)
    rows: list[dict[str, Any]] = []
    late = min(JOINS, count // 2 - 1) * ("newcomers" in events)
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
            await bed.leave(name)
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
        steps = [
            ("newcomers", f"{late} newcomers within a minute", joins),
            ("absence", f"{len(leaving)} leave; a minute without them", leave),
            ("absence", "they return", come_back),
            ("revocation", "one is revoked", revocation),
        ]
        for _, what, work in filter(lambda step: step[0] in events, steps):
            await event(what, work)
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


async def disturbed(count: int, degree: int | None, seed: int, trouble: str) -> dict[str, Any]:
    """Return the time until a revocation reaches the honest members that run, in a federation with some trouble.

    Args:
        trouble: "churn", "withholding" or "lying".
    """
    bed = Bed(count, degree, seed)
    draws = RandomStreams(seed, "members").generator(0, trouble)
    share = {"churn": LEAVING, "withholding": WITHHOLDING, "lying": LYING}[trouble]
    drawn = [bed.names[k] for k in draws.choice(count - 2, int(share * count), replace=False) + 1]  # not first or last
    kind: Hostile = "withholds" if trouble == "withholding" else "lies"
    hostile: dict[str, Hostile] = {} if trouble == "churn" else dict.fromkeys(drawn, kind)
    honest = dict.fromkeys(name for name in bed.names[:-1] if name not in hostile)

    async def restart(name: str, leaves: float, stays: float) -> None:
        await asyncio.sleep(leaves)
        await bed.leave(name)
        await asyncio.sleep(stays)
        await bed.return_(name)

    def reached() -> bool:
        newest = bed.members[bed.names[0]].log.membership_version
        there = [bed.members[name].log.membership_version == newest for name in reachable if name in bed.running]
        return sum(there) >= REACHED * len(there)

    async with bed.tasks:
        await bed.found(bed.names, hostile)
        await until(lambda: all(bed.members[name].connected for name in honest))
        restarts = []
        if trouble == "churn":
            for name in drawn:
                leaves, stays = float(draws.uniform(0, 60)), float(draws.uniform(5, 30))
                restarts.append(bed.tasks.create_task(restart(name, leaves, stays), name=f"{name}: restart"))
        await asyncio.sleep(30.0)  # half of those that leave have left; liars have lied
        before = bed.costs.frames.copy()
        reachable = bed.reachable(honest) if hostile else set(honest)
        bed.revoke(bed.names[-1])
        seconds = await until(reached)
        frames = (bed.costs.frames - before).total()
        for task in restarts:
            task.cancel()
        forged = sum(member.log.membership_version > count + 1 for member in bed.members.values())
        refused = sum(bed.members[name].peering.rejected["membership"] for name in honest)
        await bed.close()
    hops, allowed = seconds / LATENCY, HOPS * log2(count)
    row = {"members": count, "trouble": trouble, "virtual_s": round(seconds, 2), "hops": round(hops, 1)}
    row |= {"refused": refused, "forged": forged, "cut_off": len(honest) - len(reachable)}
    print(
        f"{count:6} a revocation, {share:.0%} {trouble + ':':12} {REACHED:.0%} of the honest know it after {seconds:.2f}"
        f" virtual s, {hops:.1f} hops (at most {allowed:.1f}); {frames:,} frames; {row['cut_off']} cut off;"
        f" {refused:,} forged entries refused, {forged} accepted",
        flush=True,
    )
    return row


async def halves(count: int, degree: int | None, seed: int) -> dict[str, Any]:
    """Return the time until members know all news and are connected again, after a minute in two halves."""
    bed = Bed(count, degree, seed)
    async with bed.tasks:
        await bed.found(bed.names)
        await until(bed.all_connected)
        bed.links.half = frozenset(bed.names[::2])
        await asyncio.sleep(APART / 2)
        bed.revoke(bed.names[-1])
        await asyncio.sleep(APART / 2)
        ignorant = sum(member.log.membership_version == count for member in bed.members.values())
        bed.links.half = frozenset()
        known = await until(lambda: bed.all_know(bed.names[:-1]))
        connected = known + await until(lambda: all(bed.members[name].connected for name in bed.names[:-1]))
        await bed.close()
    row = {"members": count, "trouble": "halves", "ignorant": ignorant, "known_s": round(known, 2)}
    print(
        f"{count:6} two halves for {APART:.0f} s: {ignorant} do not know the revocation; together again, all know it after"
        f" {known:.2f} virtual s, and all are connected after {connected:.2f}",
        flush=True,
    )
    return row | {"connected_s": round(connected, 2)}


def late(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each revocation that took too long, and for each forged entry that was accepted."""
    found = []
    for row in rows:
        if row.get("hops", 0) > HOPS * log2(row["members"]):
            found.append(f"{row['members']} members, {row['trouble']}: a revocation took {row['hops']} hops")
        if row.get("forged"):
            found.append(f"{row['members']} members, {row['trouble']}: {row['forged']} accepted a forged entry")
    return found


def hash_instead_of_signing() -> None:
    """Replace signatures by hashes of the same size, for federations so large that signing would take hours."""

    def sign(self: Identity, data: bytes) -> bytes:
        return sha512(self.public + data).digest()

    def remember(self: Verifier, public: bytes) -> None:
        self.public = public  # type: ignore[attr-defined]

    def valid(self: Verifier, signature: bytes, data: bytes) -> bool:
        return signature == sha512(self.public + data).digest()  # type: ignore[attr-defined]

    Identity.sign, Verifier.__init__, Verifier.valid = sign, remember, valid  # type: ignore[method-assign]


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
    begun = time.process_time()
    first = checkpoint.make(log, admission, [*log.members][: checkpoint.MOST_MEMBERS])
    signing = time.process_time() - begun
    checkpoint.read(first, log.file)
    assert loaded is not None
    assert kept is not None
    assert len(loaded.members) == len(kept.members) == count
    row = {"members": count, "start_s": round(taken, 3), "bytes": size, "memory": memory}
    row |= {"newcomer_bytes": len(log.file.data) + len(first), "signing_s": round(signing, 3)}
    print(
        f"{count:6} members: {taken:6.3f} s of a core to load the log, {size / 1e6:.2f} MB on disk,"
        f" {memory / count:,.0f} bytes of memory for each; a newcomer begins with {row['newcomer_bytes']:,} bytes, signed in"
        f" {signing:.3f} s",
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


def disturb(
    sizes: Sequence[int], degree: int | None, seed: int, events: Collection[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of all events in federations of some sizes, and a sentence for each cost that is too high."""
    rows, attacked = [], []
    for count in sizes:
        if count > MOST_SIGNED:
            print(f"{count:6} members: signatures are hashes from here on", flush=True)
            hash_instead_of_signing()
        if {*events} & {*QUIET_EVENTS}:
            rows += run(measure(count, degree, seed, events))
        attacked += [run(disturbed(count, degree, seed, what)) for what in TROUBLES if what in events]
        if "halves" in events:
            attacked.append(run(halves(count, degree, seed)))
    return rows + attacked, late(attacked) + (grown(rows) if degree else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", type=int, nargs="+", help="sizes of the federation")
    parser.add_argument("--degree", type=int, help="neighbours of each member, an even number; all by default")
    parser.add_argument("--rounds", type=int, help="learn so many rounds instead")
    parser.add_argument("--committee", type=int, metavar="K", help="measure coordinators that a committee of K elects")
    parser.add_argument("--start", action="store_true", help="measure how a start loads the log of so many members")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=EVENTS, help="events to measure; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    gc.set_threshold(*PASSES)
    if given.start:
        rows, faults = [start(count) for count in given.members], []
    elif given.rounds is not None:
        rows = [learn(count, given.degree, given.rounds, given.seed) for count in given.members]
        faults = slow(rows) if given.degree is not None else []
    elif given.committee:
        rows = [row for count in given.members for row in run(elect(count, given.committee, given.seed))]
        faults = grown(rows)
    else:
        rows, faults = disturb(given.members, given.degree, given.seed, given.events)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
