"""Dialling of peers that are not connected, or connected through a broker only."""

from __future__ import annotations

import asyncio
from asyncio import Task
from itertools import count
from math import inf

from p2pfl.node.peering.background_tasks import BackgroundTasks
from p2pfl.node.peering.links.introducer import Introducer
from p2pfl.node.peering.messenger import Messenger
from p2pfl.node.peering.peer import MOST_ADDRESSES, Peer
from p2pfl.node.peering.peer_table import PeerTable
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import Link
from p2pfl.random_streams import RandomStreams

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 4.0  # seconds between attempts to reach a silent peer
GRACE = 1.0  # seconds that the node with the greater key leaves the dialling to the other one
INTRODUCTION = 5.0  # seconds for the answer to a hello
UPGRADE = 15.0  # seconds between attempts to reach a peer without the broker
HINT_RATE, HINT_BURST = 1.0, MOST_ADDRESSES  # addresses a second of one peer that are dialled on the word of others


class Dialler:
    """Keeps in touch with each peer: dials it until it is introduced, and again when its link ends."""

    def __init__(
        self,
        config: PeeringConfig,
        table: PeerTable,
        messenger: Messenger,
        introducer: Introducer,
        tasks: BackgroundTasks,
    ) -> None:
        self._config = config
        self._table = table
        self._messenger = messenger
        self._introducer = introducer
        self._tasks = tasks
        self._draws = RandomStreams(config.seed, config.name)
        self._directly = config.transport.address != "mqtt:"
        self._hints = TokenBucket(HINT_RATE, HINT_BURST)
        self._keeping: dict[str, Task[None]] = {}

    def keep(self, peer: Peer) -> None:
        """Keep in touch with a peer from now on."""
        name = f"{self._config.name} keeps in touch with {peer.name}"
        self._keeping[peer.name] = self._tasks.spawn(self._keep_in_touch(peer), name)

    def forget(self, peer: Peer) -> None:
        """Dial a peer no longer."""
        if (task := self._keeping.pop(peer.name, None)) is not None:
            task.cancel()

    def found(self, peer: Peer, address: str, source: str) -> None:
        """Note where a peer may be. It proves its key when it is dialled."""
        is_new = peer.hint(address, source)
        if not is_direct(address) and peer.link is None:  # it has just said itself that it is there
            peer.untried = True
        if is_new and (peer.link is None or not peer.link.direct) and self._has_untried(peer):
            peer.trouble.set()
        self._table.changes.notify()

    async def _keep_in_touch(self, peer: Peer) -> None:
        """Dial a peer that is not there, and probe one that is silent; for ever, but less and less often."""
        table, guard, period = self._table, self._config.options.guard, self._config.options.period
        pause = FIRST_PAUSE
        if peer.key < self._config.key and period < inf:  # so that not both dial at once
            await table.changes.until(lambda: peer.introduced, GRACE)
        for attempt in count():
            if peer.problem or (peer.introduced and not table.is_suspected(peer)):
                pause = FIRST_PAUSE
                peer.trouble.clear()
                await self._wait_for_trouble(peer)
            if guard is not None and (seconds := guard.seconds_left(peer.key)):
                await table.changes.until(lambda: False, seconds)
            if peer.introduced and (table.is_suspected(peer) or not self._could_be_direct(peer)):
                peer.unanswered += 1
                self._messenger.ping(peer)
                table.changes.notify()
            else:
                await self._dial(peer)
            jitter = self._draws.generator(attempt, f"probe {peer.name}").uniform(0.75, 1.25)
            await table.changes.until(lambda: self._is_urgent(peer), pause * jitter)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _is_urgent(self, peer: Peer) -> bool:
        """Return whether there is no reason to wait before a peer is dialled or probed again."""
        if peer.link is None:
            return self._has_untried(peer)
        return not self._table.is_suspected(peer)

    def _has_untried(self, peer: Peer) -> bool:
        """Return whether a peer has an address that was not dialled yet and may be dialled now."""
        return peer.untried and self._hints.remaining(peer.key, asyncio.get_running_loop().time()) >= 1

    async def _wait_for_trouble(self, peer: Peer) -> None:
        """Wait for trouble with a peer; or, where it is reached through a broker, until another way may be tried."""
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
        """Try the addresses of a peer at once; where none answers, the broker."""
        before, peer.untried = peer.link, False
        link = await self._first_of(peer, self._to_dial(peer) if self._directly else [])
        if link is None and before is None:
            link = await self._first_of(peer, [address for address in peer.addresses if not is_direct(address)])
        if not peer.addresses:
            self._note(peer, "no address of it is known yet")
        if link is None:
            return
        if peer.link is not before:  # it was quicker
            link.close()
            return
        try:
            self._introducer.greet(link, peer)
        except TransportError as error:
            self._note(peer, str(error))
            return
        if not await self._table.changes.until(lambda: peer.link is not before or bool(peer.problem), INTRODUCTION):
            link.close()

    def _to_dial(self, peer: Peer) -> list[str]:
        """Return the addresses to be dialled now; of hints as many as are allowed, the one dialled last at the end."""
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
        """Return a link over the first of some addresses that answers, or None; the others are given up."""
        attempts = [asyncio.ensure_future(self._reach(peer, address)) for address in addresses]
        found: Link | None = None
        try:
            for attempt in asyncio.as_completed(attempts):
                try:
                    found = await attempt
                    break
                except TransportError as error:
                    self._note(peer, str(error))
        finally:
            for attempt in attempts:
                if attempt.cancel():
                    continue
                if not attempt.cancelled() and attempt.exception() is None and attempt.result() is not found:
                    attempt.result().close()
        return found

    def _note(self, peer: Peer, reason: str) -> None:
        """Replace the reason for which a peer is suspected."""
        if self._table.is_suspected(peer):
            self._table.suspect(peer, reason)


def is_direct(address: str) -> bool:
    """Return whether an address is reached without a broker."""
    return not address.startswith("mqtt:")
