"""Reports about members, passed from those who find them to those who act on them."""

from __future__ import annotations

from typing import Protocol


class DiscoveryEvents(Protocol):
    """Receiver of reports. They are hints: a member proves its key when it is dialled."""

    def found(self, key: bytes, address: str, source: str) -> None:
        """Note an address where the member with a key may be.

        Args:
            source: of the report, such as "mdns" or "broker".
        """

    def hinted(self, key: bytes) -> None:
        """Note that the member with a key may be gone."""

    def broker_changed(self, problem: str) -> None:
        """Note the current problem of the broker; "" while it delivers."""


class Discovery:
    """Passes each report on to all subscribers.

    It exists before both sides: a transport that reports members is a part of the peer manager that receives the reports.
    """

    def __init__(self) -> None:
        self._subscribers: list[DiscoveryEvents] = []

    def subscribe(self, subscriber: DiscoveryEvents) -> None:
        """Pass reports to `subscriber`, too, from now on."""
        self._subscribers.append(subscriber)

    def found(self, key: bytes, address: str, source: str) -> None:
        """Report an address where the member with a key may be."""
        for subscriber in self._subscribers:
            subscriber.found(key, address, source)

    def hinted(self, key: bytes) -> None:
        """Report that the member with a key may be gone."""
        for subscriber in self._subscribers:
            subscriber.hinted(key)

    def broker_changed(self, problem: str) -> None:
        """Report the current problem of the broker; "" while it delivers."""
        for subscriber in self._subscribers:
            subscriber.broker_changed(problem)
