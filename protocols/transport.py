"""Interface of transports: what every way of carrying frames promises.

A transport carries whole frames over links. A frame that arrives is the frame that was sent: never altered, split or
joined. It may not arrive at all. Frames of one link arrive in the order in which they were sent.

Between machines a link stands only after both sides have proven their keys to each other. Only members get one: an
`AccessControl` decides who is a member. Addresses are plain strings, "tcp://192.168.1.5:4100", "mqtt:", or "memory:alice";
only the transport reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Part = bytes | bytearray | memoryview

NO_SESSION = bytes(16)


class Link(Protocol):
    """A connection with one other transport, in both directions.

    Attributes:
        remote: for messages to people, not an identity.
        key: the public key that the other side has proven to have; None within one process, where nothing is proven.
        session: 16 bytes, other ones for every link and the same at both ends. Signed messages name them, so that what was
            said over one link is refused on every other.
        dialled: from this side.
        direct: not through a broker.
        joining: the other side is no member and may ask for one thing only, to become one.
        backlog: bytes that were sent and that the other side, or the network, has not taken yet.
        progress: grows whenever something came that only the other side can have sent, or it took some of what it was sent:
            a sign of life while a large frame is on its way, of a slow one too.
    """

    remote: str
    key: bytes | None
    session: bytes
    dialled: bool
    direct: bool
    joining: bool

    @property
    def backlog(self) -> int: ...

    @property
    def progress(self) -> int: ...

    def send(self, parts: Sequence[Part]) -> None:
        """Send the frame that `parts` make when joined. Does not wait. The parts must not change afterwards.

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

    def drained(self, link: Link) -> None:
        """The backlog of a link has become small."""

    def lost(self, link: Link, reason: str) -> None:
        """A link ended that was not closed from this side."""

    def refused(self, cause: str, detail: str) -> None:
        """Somebody was kept out before there was a link: a stranger, a forger, a member of another federation."""


class AccessControl(Protocol):
    """Who may have a link.

    Attributes:
        federation: 16 bytes, by which it is known.
        membership_version: the number of the newest entry of the membership log that is known here.
        invites: whether those who are no members may ask to become one here.
    """

    @property
    def federation(self) -> bytes: ...

    @property
    def invites(self) -> bool: ...

    @property
    def membership_version(self) -> int: ...

    def refusal(self, key: bytes) -> str:
        """Return why a key is kept out, such as "stranger" or "revoked"; "" for one that is let in."""

    def after(self, membership_version: int, limit: int) -> bytes:
        """Return the entries of the membership log that follow `membership_version`, as many as fit into `limit` bytes."""

    def extend(self, entries: bytes) -> int:
        """Take in entries of the membership log that another node knows; return how many were new.

        Raises:
            ProtocolError: they are malformed, or not signed by the federation's admission key.
        """


class Transport(Protocol):
    """Attributes:
    address: where others can dial; known after `listen`.
    """

    @property
    def address(self) -> str: ...

    async def listen(self, handler: Handler) -> None:
        """Begin to accept links.

        Raises:
            TransportError: the address is in use or cannot be listened on.
        """

    async def dial(self, address: str, key: bytes, joining: bool = False) -> Link:
        """Open a link with the one who has `key`; where it is proven, before anything is said to it.

        Raises:
            TransportError: nobody answers there, or somebody else, or it keeps this node out. The text says which.
        """

    def expel(self, key: bytes) -> None:
        """Close all links with one who has `key`: it is no member any more, or is kept out."""

    async def close(self) -> None:
        """Stop listening and close every link."""
