"""Dialling of peers that are not connected or are connected through a broker only.

Theory of operation. Each peer has one task (`_keep_in_touch`), which dials it until it is introduced, pings it while it is
suspected, and sleeps while all is well. Both ends of a missing link would dial it; the one with the greater key first
leaves this to the other for a moment. All peers of a node are often missing at the same time: at the founding of a
federation, after an outage, and as long as most members are switched off. What a dial costs is then multiplied by their
number, on both sides, and on cores that have other work. On real machines (DialLimits) four rules keep this cost bounded:

1. Few dials at once. A handshake needs milliseconds of both cores. Hundreds at once delay each other until all of them
   run into a limit of time half-way, and are repeated. So a dial needs one of a few slots (p2pfl.protocols.rate_limit).
   A dial that takes long loses its slot and not its work, and its transport gives it up only when it makes no progress. A
   tarpit therefore holds a slot for HOLD seconds. Through a broker there are still fewer slots: waiting is not free there,
   because both sides repeat their packets. Peers with the fewest failures since they were connected come first, so absent
   ones do not delay those that are there. The order among the others is random, and each node waits for a random part of
   a moment before its first dials, so that not all nodes dial the same peer first.
2. Few dials per second. The pauses after a failure double up to LONGEST_PAUSE. They become longer for two reasons, up
   to a minute: the peer has been away for long (an eighth of that time), or so many peers are away that together they
   would be dialled more often than `rate` times a second. So a node with few absent peers finds one that returns within
   seconds, and one with hundreds does not work for them.
3. Any sign of life ends a pause, and the next ones are shorter: a connection from the peer, its announcement on the
   local network or at the broker, a new address. Reports prove nothing, so their number is limited: a peer is dialled for
   repeated reports once in LONGEST_PAUSE seconds.
4. A change of one peer wakes the task of that peer only (`peer.news`), and a reason that is the same as before wakes
   nobody. Otherwise each failure with one of n absent peers would wake n tasks.

Nodes in one process have no such limits: their dials cost nothing, and their time is virtual.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from math import inf

from p2pfl._util.printable import key_name, printable
from p2pfl.node.peering.control_messages import Introducer
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.node.peering.peers import MOST_ADDRESSES, Peer, PeerTable
from p2pfl.protocols.errors import RefusedError, TransportError
from p2pfl.protocols.rate_limit import Slots, TokenBucket
from p2pfl.protocols.transport import Link
from p2pfl.random_streams import RandomStreams

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 4.0  # seconds between attempts to reach a silent peer
PATIENT = 8  # a peer is dialled at least once in an eighth of the time for which it has been away
HOLD = 10.0  # seconds for which a dial keeps its slot; the patience of the transports with one message of a handshake
SPREAD = 0.02  # seconds per peer over which the first dials of a node begin
LONGEST_SPREAD = 2.0
GRACE = 1.0  # seconds for which the node with the greater key leaves the dialling to the other one
INTRODUCTION, LONG_INTRODUCTION = 5.0, 15.0  # seconds to wait for the answer to a hello; the longer one on real machines
UPGRADE = 15.0  # seconds between attempts to replace a link through the broker by a direct one
HINT_RATE, HINT_BURST = 1.0, MOST_ADDRESSES  # addresses of one peer, reported by others, that are dialled per second


class Dialler:
    """Dialling of each peer until it is introduced, and again when its link ends or a direct link becomes possible."""

    def __init__(
        self,
        config: PeeringConfig,
        table: PeerTable,
        introducer: Introducer,
    ) -> None:
        self._config = config
        self._table = table
        self._introducer = introducer
        self._streams = RandomStreams(config.seed, config.name)
        self._directly = config.transport.address != "mqtt:"
        self._hints = TokenBucket(HINT_RATE, HINT_BURST)
        self._signs = TokenBucket(1 / LONGEST_PAUSE, 1)
        self._limits = config.options.dialling
        self._patience = INTRODUCTION if self._limits is None else LONG_INTRODUCTION
        self._slots = None if self._limits is None else Slots(self._limits.at_once, HOLD)
        self._broker_slots = None if self._limits is None else Slots(self._limits.through_broker, HOLD)
        self._away: dict[str, float] = {}  # peers that could not be dialled, and the times since when
        self._keeping: dict[str, Task[None]] = {}

    def keep(self, peer: Peer) -> None:
        """Start to keep a peer connected."""
        name = f"{self._config.name}: connection to {peer.name}"
        self._keeping[peer.name] = self._table.begin(self._keep_in_touch(peer), name)

    def forget(self, peer: Peer) -> None:
        """Stop dialling a peer."""
        self._away.pop(peer.name, None)
        if (task := self._keeping.pop(peer.name, None)) is not None:
            task.cancel()

    def found(self, peer: Peer, address: str, source: str) -> None:
        """Record an address at which a peer may be reachable. The peer proves its key when it is dialled."""
        is_new = peer.hint(address, source)
        if not is_direct(address) and peer.link is None:  # it has just announced itself
            peer.untried = True
        if is_new and (peer.link is None or not peer.link.direct) and self._has_untried(peer):
            peer.trouble.set()
        if peer.link is None and self._limits is not None and self._signs.take(peer.key, asyncio.get_running_loop().time()):
            peer.sighted = True
        peer.news.set()

    async def _keep_in_touch(self, peer: Peer) -> None:
        """Dial a peer that is not connected and probe one that is silent, without end but less and less often."""
        table, guard = self._table, self._config.options.guard
        pause, failures = FIRST_PAUSE, 0
        if seconds := self._head_start(peer):
            await self._until(peer, lambda: peer.introduced, seconds)
        for attempt in count():
            if peer.problem or (peer.introduced and not table.is_suspected(peer)):
                pause, failures = FIRST_PAUSE, 0
                self._away.pop(peer.name, None)
                peer.trouble.clear()
                await self._wait_for_trouble(peer)
            if not (peer.dialled or peer.introduced):
                await self._until(peer, lambda: peer.dialled or peer.introduced, None)
                continue
            if guard is not None and (seconds := guard.seconds_left(peer.key)):
                await asyncio.sleep(seconds)
            if peer.introduced and (table.is_suspected(peer) or not self._could_be_direct(peer)):
                peer.unanswered += 1
                self._table.ping(peer)
                table.notify()
            else:
                before = peer.link
                async with self._slot(peer, failures):
                    if peer.link is before:  # otherwise it has connected while its turn came
                        await self._dial(peer)
                failures += 1
                peer.sighted = False
            longest = self._longest_pause(peer)
            seconds = pause * jitter(self._streams, peer.name, attempt)
            if peer.untried:  # a new address that must wait, because there were too many
                seconds = min(seconds, 1.25 * LONGEST_PAUSE)
            if await self._until(peer, lambda: self._is_urgent(peer), seconds):
                longest = LONGEST_PAUSE
            pause = min(2 * pause, longest)

    def _head_start(self, peer: Peer) -> float:
        """Return the seconds for which to leave the first dial to the peer, or to chance."""
        options = self._config.options
        seconds = 0.0
        if peer.key < self._config.key and options.period < inf:  # so that not both nodes dial at the same time
            seconds = GRACE
        if self._limits is not None:
            longest = min(SPREAD * len(self._table.peers), LONGEST_SPREAD)
            seconds += longest * float(self._streams.generator(0, f"first dial {peer.name}").random())
        return seconds

    def _slot(self, peer: Peer, failures: int) -> AbstractAsyncContextManager[None]:
        """Return a context that waits for the peer's turn."""
        direct = self._directly and any(map(is_direct, peer.addresses))
        slots = self._slots if direct or not peer.addresses else self._broker_slots
        if slots is None:
            return nullcontext()
        return slots.slot(failures + float(self._streams.generator(failures, f"turn {peer.name}").random()))

    def _longest_pause(self, peer: Peer) -> float:
        """Return the maximum pause after an attempt to reach a peer, in seconds."""
        if self._limits is None or peer.introduced:
            self._away.pop(peer.name, None)
            return LONGEST_PAUSE
        now = asyncio.get_running_loop().time()
        since = self._away.setdefault(peer.name, now)
        return min(self._limits.longest, max(LONGEST_PAUSE, (now - since) / PATIENT, len(self._away) / self._limits.rate))

    async def _until(self, peer: Peer, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until news of a peer make `condition` true. Return False if that took longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    peer.news.clear()
                    await peer.news.wait()
        except TimeoutError:
            return False
        return True

    def _is_urgent(self, peer: Peer) -> bool:
        """Return whether to dial or probe a peer again without a pause."""
        if peer.link is None:
            return peer.sighted or self._has_untried(peer)
        return not self._table.is_suspected(peer)

    def _has_untried(self, peer: Peer) -> bool:
        """Return whether a peer has an address that has not been dialled yet and may be dialled now."""
        return peer.untried and self._hints.remaining(peer.key, asyncio.get_running_loop().time()) >= 1

    async def _wait_for_trouble(self, peer: Peer) -> None:
        """Wait for trouble with a peer or, if it is reached through a broker, for the next attempt at a direct link."""
        while True:
            if self._could_be_direct(peer) and self._has_untried(peer):
                return
            seconds = UPGRADE if self._could_be_direct(peer) else None
            try:
                async with asyncio.timeout(seconds):
                    await peer.trouble.wait()
                return
            except TimeoutError:
                if self._could_be_direct(peer):
                    return

    def _could_be_direct(self, peer: Peer) -> bool:
        return (
            self._directly
            and peer.link is not None
            and not peer.link.direct
            and any(is_direct(address) for address in peer.addresses)
        )

    async def _dial(self, peer: Peer) -> None:
        """Dial all addresses of a peer at the same time; if none answers, connect through the broker."""
        before, peer.untried = peer.link, False
        link = await self._first_of(peer, self._to_dial(peer) if self._directly else [])
        if link is None and before is None:  # a link through the broker in use is kept, and not replaced by another one
            link = await self._first_of(peer, [address for address in peer.addresses if not is_direct(address)])
        if not peer.addresses:
            self._note(peer, "no address known yet")
        if link is None:
            return
        if peer.link is not before:  # the peer connected first
            link.close()
            return
        try:
            self._introducer.greet(link, peer)
        except TransportError as error:
            self._note(peer, str(error))
            return
        if not await self._until(peer, lambda: peer.link is not before or bool(peer.problem), self._patience):
            link.close()
            where = "answers" if link.direct else "is announced at the broker"
            self._note(peer, f"{key_name(peer.key)} {where}, but its messages do not arrive")

    def _to_dial(self, peer: Peer) -> list[str]:
        """Return the addresses to dial now, with the last dialled address at the end.

        Addresses from hints are included only as far as their rate limit permits.
        """
        now = asyncio.get_running_loop().time()
        direct = [address for address in peer.addresses if is_direct(address)]
        hints = [address for address in direct if peer.is_hint(address)]
        later = {address for address in hints if not self._hints.take(peer.key, now)}
        for address in hints:
            if address not in later:
                peer.addresses[address] = peer.addresses.pop(address)
        return [address for address in direct if address not in later]

    async def _reach(self, peer: Peer, address: str) -> Link:
        link = await self._config.transport.dial(address, peer.key)
        if address in peer.addresses:
            peer.record_proof(address)
        return link

    async def _first_of(self, peer: Peer, addresses: list[str]) -> Link | None:
        """Return a link over the first address that answers, or None; cancel the other attempts."""
        attempts = [asyncio.create_task(self._reach(peer, address)) for address in addresses]
        found: Link | None = None
        try:
            for attempt in asyncio.as_completed(attempts):
                try:
                    found = await attempt
                    break
                except RefusedError as error:
                    self._note_refusal(peer, error)
                except TransportError as error:
                    self._note(peer, str(error))
        finally:
            for task in attempts:
                if task.cancel():
                    continue
                if not task.cancelled() and task.exception() is None and task.result() is not found:
                    task.result().close()
        return found

    def _note_refusal(self, peer: Peer, error: RefusedError) -> None:
        """Record that a peer refuses this node. A former member stays one, so its next dials need not be noted.

        A proven revocation ends the node, as one that a peer sends does (see MembershipSync).
        """
        access = self._config.options.access
        if error.proof and access is not None and access.accept_revocation(self._config.key, error.proof):
            return
        if error.cause != "revoked":
            self._note(peer, str(error))
        elif not peer.revoked:
            self._note(peer, "refuses this node, because its membership was revoked")
            peer.revoked = True
            self._table.view.notify()

    def _note(self, peer: Peer, reason: str) -> None:
        """Record why a peer could not be dialled, also as the reason for its suspicion."""
        if peer.revoked:
            return
        peer.dial_problem = printable(reason)
        if self._table.is_suspected(peer):
            self._table.suspect(peer, reason)


def jitter(streams: RandomStreams, name: str, attempt: int) -> float:
    """Return the random factor of the pause after an attempt to reach a peer."""
    return float(streams.generator(attempt, f"probe {name}").uniform(0.75, 1.25))


def is_direct(address: str) -> bool:
    """Return whether an address can be reached without a broker."""
    return not address.startswith("mqtt:")
