"""Malicious member of a federation on virtual time."""

import asyncio

from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Payload


class Liar:
    """A member that is introduced to all others and follows their rounds; their requests go to `on`.

    Args:
        on: called with this liar, the peer, its message and the payload; by default it does not answer.
        n_samples: the claimed number of samples; by default the real one.
    """

    def __init__(self, federation, name, on=lambda liar, peer, message, payload: None, n_samples=None):
        self.name, self.federation, self._on = name, federation, on
        self.exchange = federation.make(name).exchange
        self.peering = self.exchange.peering
        self.exchange.handle = self._handle
        self.exchange.may_return = lambda peer: True
        self.n_samples = federation.tasks[name].n_samples if n_samples is None else n_samples
        self.peering.public_info["n_samples"] = self.n_samples
        self.follows = True

    def _handle(self, peer, opened):
        self._on(self, peer, opened.message, opened.payload)

    async def __aenter__(self):
        self._tasks = await asyncio.TaskGroup().__aenter__()
        await self.peering.start(self._tasks)
        await self.peering.until(self._introduced, 30.0)
        self.peering.begin(self._follow(), "follows")
        return self

    async def __aexit__(self, *exc):
        await self.peering.close()
        await self._tasks.__aexit__(None, None, None)

    def _introduced(self):
        return all(peer.introduced for peer in self.exchange.peers.values() if peer.name in self.federation.running)

    async def _follow(self):
        def newest():
            return max((peer.round for peer in self.peering.introduced_peers()), default=0)

        while True:
            await self.peering.until(lambda: self.follows and newest() > self.peering.round, 1e9)
            self.claim(newest())

    def send(self, peer, message, *payload):
        if peer.introduced:
            self.peering.send(peer, message, Payload.of(*payload))

    def claim(self, round):
        """Claim to be in a round."""
        self.peering.round = round
        for peer in self.exchange.peers.values():
            self.peering.tell(peer, m.RoundReached(round))

    async def come_back(self, round):
        """Drop all links, and introduce itself again in another round."""
        self.follows = False
        self.peering.round = round
        for peer in self.exchange.peers.values():
            if peer.link is not None:
                peer.link.close()
                self.peering.lost(peer.link, "dropped")
        await self.peering.until(self._introduced, 30.0)
