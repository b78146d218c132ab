"""Search for the largest packet that a broker delivers. No I/O.

Brokers discard packets above a limit without notice, or close the connection. A node therefore publishes a packet of the
size in use to itself. If it does not arrive, smaller ones follow, from the smallest, until one does not arrive either.
Each size counts as lost only when two packets of it were lost, because a broker may also lose one, or go away, by chance.
"""

from __future__ import annotations

from math import inf

from p2pfl.protocols.mqtt.reliable_stream import LARGEST_PACKET
from p2pfl.system.printable import plural

SIZES = 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, LARGEST_PACKET  # bytes
ADVISED = 300 << 10  # bytes; the limit to set at the broker, with room for topics and headers
LOSSES = 2  # lost packets of a size after which the broker counts as not delivering it
AGAIN, LATER = 60.0, 600.0  # seconds until a size that was lost, and the size in use after it has passed, is tried again


class SizeSearch:
    """Search for the sizes that pass. At most one packet is on its way.

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


def describe_size(size: int) -> str:
    """Return the size of a packet in words: in bytes, or in whole KiB."""
    return plural(size, "byte") if size < 1 << 10 else f"{size >> 10} KiB"
