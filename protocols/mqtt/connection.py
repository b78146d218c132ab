"""Connection of a node with its broker, which is opened again whenever it ends, and the check that messages arrive over it.

A broker may acknowledge packets that its rules or limits then block. A node therefore publishes packets to itself: a
small one periodically, and on a connection one of the size in use. Brokers discard packets above a limit without
notice, or close the connection. If a packet does not arrive, smaller ones follow, from the smallest, until one does not
arrive either. Each size counts as lost only when two packets of it were lost, because a broker may also lose one, or go
away, by chance.

A broker delivers the packets of a topic in their order. So after each packet of a size a small one follows, and if only
that one arrives, the broker has dropped the other, however slow the network is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any

from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.mqtt.broker_client import ADVISED, Bus, Listener, Message, describe_size
from p2pfl.protocols.mqtt.packets import ECHO_PACKET
from p2pfl.protocols.mqtt.reliable_stream import LARGEST_PACKET
from p2pfl.protocols.transport import Timer

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between attempts to connect
STOOD = 5.0  # seconds after which a connection counts as stable, and the next attempt follows soon
CLOSING = 6.0  # seconds to wait for a connection, or an attempt to connect, to end
UNKNOWN = "see its log: each node may need its own account (use_username_as_clientid), or a higher limit of connections"
Keep = Callable[[Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]
SIZES = 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, LARGEST_PACKET  # bytes
LOSSES = 2  # lost packets of a size after which the broker counts as not delivering it
AGAIN, LATER = 60.0, 600.0  # seconds until a size that was lost, and the size in use after it has passed, is tried again
ECHO_EVERY, ECHO_WAIT = 20.0, 10.0  # seconds between packets to this node itself, and to wait for one of them
_ID = 16  # bytes


class BrokerConnection:
    """Loop that keeps a node connected with its broker, with pauses between attempts.

    Args:
        will, subscriptions: see p2pfl.protocols.mqtt.broker_client.Bus.run.
        uniform: draws a number between two others, for the pauses between attempts to connect.

    Attributes:
        failure: why there is no connection; "" if there is one, or no attempt has been made yet.
    """

    def __init__(
        self,
        bus: Bus,
        will: Message,
        subscriptions: Sequence[str],
        problem: ProblemReport,
        uniform: Callable[[float, float], float],
    ) -> None:
        self.failure = ""
        self._bus = bus
        self._will = will
        self._subscriptions = subscriptions
        self._problem = problem
        self._uniform = uniform
        self._task: asyncio.Task[None] | None = None
        self._using = False  # the bus is connecting or connected
        self._up = asyncio.Event()
        self._since = inf  # time at which the connection was opened
        self._brief = 0  # short connections in a row

    def start(self, listener: Listener, on_end: Callable[[], str | None], keep: Keep) -> None:
        """Start to connect.

        Args:
            listener: its `connected` must call `opened`.
            on_end: called when a connection has ended or could not be opened; returns why the broker closes connections,
                "" if that is unknown, and None if it may be known after further connections.
            keep: runs the work, and may run it again after an error.
        """

        async def work() -> None:
            await self._stay_connected(listener, on_end)

        self._task = asyncio.ensure_future(keep(work))
        self._task.add_done_callback(_raise)

    async def close(self) -> None:
        await self._bus.close()
        if self._task is not None:
            if self._using:
                await asyncio.wait([self._task], timeout=CLOSING)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait(self) -> None:
        """Wait for a connection.

        Raises:
            TransportError: the last attempt has failed.
        """
        if self.failure:
            raise TransportError(self.failure)
        await self._up.wait()

    def opened(self) -> None:
        """Record that the connection is open."""
        self._since, self.failure = asyncio.get_running_loop().time(), ""
        self._up.set()

    def confirm(self) -> bool:
        """Record that the broker delivers messages; return whether its connections are stable."""
        if asyncio.get_running_loop().time() - self._since >= STOOD:
            self._brief = 0
        return self._brief < 2

    async def _stay_connected(self, listener: Listener, on_end: Callable[[], str | None]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                self._using = True
                await self._bus.run(self._will, self._subscriptions, listener)
                return
            except TransportError as error:
                self._using = False
                if await self._record_end(str(error), on_end):
                    pause = FIRST_PAUSE
            except Exception as error:
                self._using = False
                failure = f"the connection to the broker at {self._bus.name} failed: {type(error).__name__}"
                await self._record_end(failure, on_end)
                raise
            await asyncio.sleep(pause * self._uniform(0.75, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _record_end(self, reason: str, on_end: Callable[[], str | None]) -> bool:
        """Record why there is no connection; return whether the last one was stable."""
        stood = asyncio.get_running_loop().time() - self._since >= STOOD
        made = self._since < inf
        self._since, self.failure = inf, reason
        self._up.clear()
        known = on_end()
        self._brief = self._brief + 1 if made and not stood else 0
        if self._brief > 1:
            if known is not None:
                self._problem.set(known or await self._bus.explain() or f"{reason}, repeatedly; {UNKNOWN}")
        elif not made:
            self._problem.set(reason)
        return stood


def _raise(task: asyncio.Task[None]) -> None:
    """Pass an error of an unawaited task to the event loop, which ends the program or reports the error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the links through the broker ended", "exception": error})


class ProblemReport:
    """Current problem with the broker, as text for the user.

    Args:
        on_change: called with `text` when it has changed.

    Attributes:
        text: one sentence; "" if no problem is known.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self.text = ""
        self._on_change = on_change

    def set(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self._on_change(text)


class SizeSearch:
    """Search for the sizes of packets that a broker delivers. At most one packet is on its way.

    Attributes:
        awaited: size of the packet on its way; 0 for none.
    """

    def __init__(self) -> None:
        self.awaited = 0
        self._passing = -1  # index of the largest size that has arrived
        self._failing = len(SIZES)  # index of the smallest size that counts as lost
        self._losses = 0  # of the size that was tried last
        self._closes = False  # whether the connection has ended with the last lost packet
        self._next = -inf  # time from which a completed search is repeated

    @property
    def complete(self) -> bool:
        """Return whether the search is over."""
        return self._failing - self._passing == 1

    @property
    def limited(self) -> bool:
        """Return whether the search is over, and packets of the size in use do not arrive."""
        return self.complete and self._failing < len(SIZES)

    def next_size(self, now: float, connected: bool) -> int:
        """Return the size of the packet to publish now; 0 for none.

        Args:
            now: the time in seconds, of any clock that never goes back.
            connected: whether the connection is new. Only then may a completed search cost much, or end the connection.
        """
        if self.awaited:
            return 0
        if not self.complete:
            self.awaited = SIZES[-1 if self._failing == len(SIZES) else self._passing + 1]
        elif now >= self._next and (connected or (self.limited and not self._closes)):
            self._next = now + AGAIN
            if not self.limited:
                self._passing = -1
            self.awaited = SIZES[min(self._failing, len(SIZES) - 1)]
        return self.awaited

    def arrived(self, now: float) -> None:
        """Record that the awaited packet has arrived."""
        index = SIZES.index(self.awaited)
        self.awaited = self._losses = 0
        if index >= self._failing:  # the limit was raised
            self._failing = len(SIZES)
        self._passing = max(self._passing, index)
        if self.complete and not self.limited:
            self._next = now + LATER

    def lost(self, now: float, closed: bool = False) -> None:
        """Record that the awaited packet does not arrive.

        Args:
            closed: whether the connection has ended instead.
        """
        index, self.awaited = SIZES.index(self.awaited), 0
        if self.limited:
            return
        self._losses += 1
        if self._losses < LOSSES:
            return
        self._losses, self._closes = 0, closed
        self._failing, self._passing = index, min(self._passing, index - 1)
        self._next = now + AGAIN

    @property
    def limit(self) -> str:
        """The limit and its remedy, as the predicate of a sentence about the broker; "" if no limit is known."""
        if not self.limited:
            return ""
        passing = f"it passes {describe_size(SIZES[self._passing])}" if self._passing >= 0 else "it passes a few bytes"
        fate = "closes the connection at" if self._closes else "drops"
        smallest = describe_size(SIZES[self._failing])
        return (
            f"drops packets of {describe_size(SIZES[-1])}, which nodes use: {passing}, and {fate} {smallest}"
            f"{' or more' if self._failing < len(SIZES) - 1 else ''};"
            f" raise message_size_limit and max_packet_size of the broker to {ADVISED} bytes"
        )


class DeliveryMonitor:
    """Monitor that sends packets to this node itself and reports when they do not arrive.

    Args:
        topic: topic to which this node may publish, and which it has subscribed to.
        wait: seconds to wait for a small packet.

    Attributes:
        denied: why the broker appears not to deliver to others; "" if it appears to deliver.
        awaited: topics with a message of this node that has not arrived yet.
        sizes: the sizes of packets that the broker delivers.
    """

    def __init__(self, bus: Bus, topic: str, problem: ProblemReport, wait: float | None = None) -> None:
        self.denied = ""
        self.awaited: set[str] = set()
        self.sizes = SizeSearch()
        self._bus = bus
        self._topic = topic
        self._problem = problem
        self._wait = ECHO_WAIT if wait is None else wait
        self._expected = b""
        self._sized = self._after = b""  # ids of the packet of the awaited size, and of the small one after it
        self._asked = False  # a published message has not arrived yet
        self._new = False  # whether no size has been tried on this connection
        self._next, self._deadline = Timer(), Timer()

    @property
    def complaint(self) -> str:
        """Sentence that names what the broker does not deliver; "" if it appears to deliver everything."""
        return f"the broker at {self._bus.name} {self.sizes.limit}" if self.sizes.limit else self.denied

    def start(self, refresh: Callable[[], None], connected: bool = True) -> None:
        """Publish a packet to this node now and periodically; `refresh` is called before each.

        Args:
            connected: whether the connection with the broker is new.
        """
        refresh()
        self._expected = os.urandom(_ID)
        self._asked = True
        self.awaited.add(self._topic)
        self._bus.publish(self._topic, bytes([ECHO_PACKET]) + self._expected)
        self._deadline.start(self._wait, self._give_up)
        self._next.start(ECHO_EVERY, partial(self.start, refresh, connected=False))
        self._new |= connected

    def stop(self) -> str | None:
        """Record that the connection has ended.

        Returns:
            Why the broker closes connections, in one sentence: "" if that is unknown, None if it may be known soon.
        """
        searching = bool(self.sizes.awaited)
        if searching:
            self.sizes.lost(_now(), closed=True)
        self._sized = self._after = b""
        self._new = False
        self.awaited.clear()
        self.denied = ""
        self._asked = False
        self._next.cancel()
        self._deadline.cancel()
        return None if searching and not self.sizes.complete else self.complaint

    def echo_came(self, content: bytes) -> bool:
        """Process a packet to this node itself; return whether all messages have arrived or have been dropped.

        Args:
            content: the packet without its first byte.
        """
        id = content[:_ID]
        if id == self._expected and len(content) == _ID:
            return self.record_arrival(self._topic)
        if id == self._sized and len(content) == self.sizes.awaited - 1:
            self.sizes.arrived(_now())
        elif id == self._after and self.sizes.awaited:
            self.sizes.lost(_now())
        else:
            return False
        self._try_size()
        return not (self._asked or self.sizes.awaited)

    def record_arrival(self, topic: str) -> bool:
        """Record the arrival of a message on a topic; return whether all messages have arrived."""
        self.awaited.discard(topic)
        if self.awaited or not self._asked:
            return False
        self._asked = False
        self._deadline.cancel()
        self._try_size()
        return True

    def deny(self, reason: str) -> None:
        """Report that a member that is online does not answer."""
        self.denied = reason
        self._problem.set(reason)

    def permit(self) -> None:
        """Withdraw the report of `deny`, because a member has answered."""
        if self.denied and self._problem.text == self.denied:
            self._problem.set("")
        self.denied = ""

    def _try_size(self) -> None:
        """Publish a packet of the size to try now, if there is one, and a small one after it.

        Sizes are tried after the small messages, so that a connection that ends then has ended because of a size.
        """
        waiting, size = self.sizes.awaited, self.sizes.next_size(_now(), self._new)
        self._new = False
        if size:
            self._sized, self._after = os.urandom(_ID), os.urandom(_ID)
            head = bytes([ECHO_PACKET]) + self._sized
            self._bus.publish(self._topic, head + bytes(size - len(head)))
        elif not waiting:  # otherwise the small one has not arrived either, and is sent again
            return
        self._bus.publish(self._topic, bytes([ECHO_PACKET]) + self._after, last=True)

    def _give_up(self) -> None:
        """Report that a message has not arrived; first try sizes if its own may be the reason."""
        if self.sizes.complete or self.sizes.awaited:
            self._report()
        else:
            self._try_size()
            self._deadline.start(self._wait / 2, self._report)

    def _report(self) -> None:
        self._problem.set(
            self.complaint
            or f"the broker at {self._bus.name} does not deliver to topic {min(self.awaited)};"
            " check its access rules for publishing and subscribing"
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
