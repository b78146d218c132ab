"""What every way of carrying frames promises.

A transport carries whole frames over links. A frame that arrives is the frame that was sent: never altered, split or
joined. It may not arrive at all. Frames of one link arrive in the order in which they were sent.

Addresses are plain strings, "tcp://127.0.0.1:4100" or "memory:alice"; only the transport reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Part = bytes | bytearray | memoryview


class Link(Protocol):
    """A connection with one other transport, in both directions."""

    remote: str  # for messages to people, not an identity

    def send(self, parts: Sequence[Part]) -> None:
        """Send the frame that `parts` make when joined. Does not wait.

        Raises:
            TransportError: the link is closed, or the other side does not read what was sent before.
        """

    def trust(self) -> None:
        """Let the other side send frames of full size, and keep the link: it was introduced as a member."""

    def close(self) -> None:
        """Close the link; frames on their way may be lost. Closing twice does nothing."""


class Handler(Protocol):
    """Who uses a transport."""

    def received(self, link: Link, frame: memoryview) -> None:
        """A frame came. `frame` may be kept: its memory is not used again."""

    def lost(self, link: Link, reason: str) -> None:
        """A link ended that was not closed from this side."""


class Transport(Protocol):
    address: str  # where others can dial; known after `listen`

    async def listen(self, handler: Handler) -> None:
        """Begin to accept links.

        Raises:
            TransportError: the address is in use or cannot be listened on.
        """

    async def dial(self, address: str) -> Link:
        """Open a link.

        Raises:
            TransportError: nobody answers there.
        """

    async def close(self) -> None:
        """Stop listening and close every link."""
