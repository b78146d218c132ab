"""Trial of a broker with the packets of a node, without a node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from p2pfl.protocols.mqtt.broker_client import Bus, Message
from p2pfl.protocols.mqtt.connection import BrokerConnection
from p2pfl.protocols.mqtt.delivery import DeliveryMonitor, ProblemReport
from p2pfl.protocols.mqtt.packets import ECHO_PACKET


async def try_broker(bus: Bus, topic: str, first: float, all_sizes: float) -> str:
    """Return what is wrong with a broker: one sentence, with the remedy after "; " if one is known; "" if it works.

    Args:
        topic: a topic that the client may publish to and subscribe to.
        first: seconds to wait for the first message.
        all_sizes: seconds to wait for the end of the trial.

    Raises:
        TimeoutError: the broker delivers messages, but large ones have not arrived in time.
    """
    trial = _Trial(bus, topic, first)
    try:
        async with asyncio.timeout(all_sizes):
            await trial.over.wait()
    finally:
        await trial.close()
    return trial.problem.text or await bus.explain()


class _Trial:
    """Trial of one broker; listener of its connections.

    Attributes:
        over: set when a problem is known, or when the broker works.
    """

    def __init__(self, bus: Bus, topic: str, first: float) -> None:
        self.over = asyncio.Event()
        self.problem = ProblemReport(lambda text: self.over.set())
        self._topic = topic
        self._delivery = DeliveryMonitor(bus, topic, self.problem, first)
        # Nodes ignore an empty message: the last will of this client must not tell them that a node is gone.
        self._connection = BrokerConnection(bus, Message(topic, b""), [topic], self.problem, random.uniform)
        self._connection.start(self, self._delivery.stop, _once)

    async def close(self) -> None:
        self._delivery.stop()
        await self._connection.close()

    def connected(self) -> None:
        self._connection.opened()
        self._delivery.start(lambda: None)

    def came(self, topic: str, content: bytes) -> None:
        if content[:1] == bytes([ECHO_PACKET]) and self._delivery.echo_came(content[1:]):
            self.problem.set(self._delivery.complaint)
            if self._delivery.sizes.complete:
                self.over.set()

    def writable(self) -> None: ...


async def _once(work: Callable[[], Awaitable[None]]) -> None:
    await work()
