"""Check that the broker delivers messages, because it may acknowledge packets that its access rules then block."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from p2pfl.protocols.mqtt.broker_client import Bus
from p2pfl.protocols.mqtt.packets import ECHO_PACKET, Topics
from p2pfl.protocols.timer import Timer

ECHO_EVERY, ECHO_WAIT = 20.0, 10.0  # seconds between packets to this node itself, and to wait for one of them


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

    Attributes:
        denied: why the broker appears not to deliver to others; "" if it appears to deliver.
        awaited: topics with a message of this node that has not arrived yet.
    """

    def __init__(self, bus: Bus, topics: Topics, problem: ProblemReport) -> None:
        self.denied = ""
        self.awaited: set[str] = set()
        self._bus = bus
        self._topics = topics
        self._problem = problem
        self._expected = b""
        self._asked = False  # a published message has not arrived yet
        self._next, self._deadline = Timer(), Timer()

    def start(self, refresh: Callable[[], None]) -> None:
        """Publish a packet to this node now and periodically; `refresh` is called before each."""
        refresh()
        self._expected = os.urandom(16)
        self._asked = True
        self.awaited.add(self._topics.echo)
        self._bus.publish(self._topics.echo, bytes([ECHO_PACKET]) + self._expected)
        self._deadline.start(ECHO_WAIT, self._report)
        self._next.start(ECHO_EVERY, partial(self.start, refresh))

    def stop(self) -> None:
        self.awaited.clear()
        self.denied = ""
        self._asked = False
        self._next.cancel()
        self._deadline.cancel()

    def is_newest(self, echo: bytes) -> bool:
        """Return whether the content of a packet to this node is that of the newest one."""
        return echo == self._expected

    def record_arrival(self, topic: str) -> bool:
        """Record the arrival of a message on a topic; return whether all messages have arrived."""
        self.awaited.discard(topic)
        if self.awaited or not self._asked:
            return False
        self._asked = False
        self._deadline.cancel()
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

    def _report(self) -> None:
        self._problem.set(
            f"the broker at {self._bus.name} does not deliver to topic {min(self.awaited)}: "
            "check its access rules for publishing and subscribing"
        )
