"""Policy of an own module: random gossip that waits in each round, so that hours of many processes cost little."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from p2pfl.policies.random import Random
from p2pfl.policy import Me, Merge, Peers


@dataclass
class Paced(Random):
    """
    Attributes:
        seconds: time to wait before each round.
    """

    seconds: float = 1.0

    async def round(self, me: Me, peers: Peers) -> Merge:
        await asyncio.sleep(self.seconds)
        return await super().round(me, peers)
