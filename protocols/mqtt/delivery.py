"""Check that the broker delivers messages, because it may acknowledge packets that its rules or limits then block.

A node publishes packets to itself: a small one periodically, and on a connection the sizes that nodes use (see
p2pfl.protocols.mqtt.packet_sizes). A broker delivers the packets of a topic in their order. So after each large packet a
small one follows, and if only that one arrives, the broker has dropped the other, however slow the network is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial

from p2pfl.protocols.mqtt.broker_client import Bus
from p2pfl.protocols.mqtt.packet_sizes import SizeSearch
from p2pfl.protocols.mqtt.packets import ECHO_PACKET
from p2pfl.protocols.timer import Timer

ECHO_EVERY, ECHO_WAIT = 20.0, 10.0  # seconds between packets to this node itself, and to wait for one of them
_ID = 16  # bytes


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
        """What the broker does not deliver, in one sentence; "" if it appears to deliver everything."""
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
