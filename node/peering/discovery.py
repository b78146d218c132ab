"""Reports about members, passed from transports and discovery services to the parts that use them."""

from __future__ import annotations

from typing import Protocol


class DiscoveryEvents(Protocol):
    """Receiver of reports. Reports are only hints: a member proves its key when it is dialled."""

    def found(self, key: bytes, address: str, source: str) -> None:
        """Record an address at which the member with a key may be reachable.

        Args:
            source: source of the report, for example "mdns" or "broker".
        """

    def hinted(self, key: bytes) -> None:
        """Record that the member with a key may be gone."""

    def broker_changed(self, problem: str) -> None:
        """Record the current problem of the broker; "" while it works."""


class Discovery:
    """Distributor that passes each report to all subscribers.

    It is created before both sides, because a transport that reports members is part of the peer manager that receives
    the reports.
    """

    def __init__(self) -> None:
        self._subscribers: list[DiscoveryEvents] = []

    def subscribe(self, subscriber: DiscoveryEvents) -> None:
        """Pass all future reports to `subscriber` as well."""
        self._subscribers.append(subscriber)

    def found(self, key: bytes, address: str, source: str) -> None:
        """Report an address at which the member with a key may be reachable."""
        for subscriber in self._subscribers:
            subscriber.found(key, address, source)

    def hinted(self, key: bytes) -> None:
        """Report that the member with a key may be gone."""
        for subscriber in self._subscribers:
            subscriber.hinted(key)

    def broker_changed(self, problem: str) -> None:
        """Report the current problem of the broker; "" while it works."""
        for subscriber in self._subscribers:
            subscriber.broker_changed(problem)
