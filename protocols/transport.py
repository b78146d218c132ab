"""Interface of transports, with the guarantees of every implementation.

A transport carries whole frames over links. A frame that arrives is the frame that was sent: never altered, split or
joined. It may not arrive at all. Frames of one link arrive in the order in which they were sent.

Between machines a link exists only after both sides have proven their keys to each other. Only members get one: an
`AccessControl` decides which nodes are members. Addresses are plain strings, "tcp://192.168.1.5:4100", "mqtt:", or
"memory:alice"; only the transport interprets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

Part = bytes | bytearray | memoryview
NO_SESSION = bytes(16)


class Link(Protocol):
    """Connection with one other transport, in both directions.

    Attributes:
        remote: description of the other side for messages to people, not an identity.
        key: the proven public key of the other side; None within one process, because keys are not proven there.
        session: 16 bytes, different for every link and equal at both ends. All messages contain it, so that a
            message from one link is refused on every other.
        version: wire version of the frames in both directions, on which both ends have agreed: the greatest that both know
            (see p2pfl.protocols.wire.envelope). A link without a proven key has version 6.
        dialled: whether this side dialled the link.
        direct: whether the link does not go through a broker.
        joining: whether the other side is a newcomer, which may only send a request to join.
        payload_digest: while a frame is handled, BLAKE3 of its bytes after the first p2pfl.protocols.wire.envelope.OVERHEAD
            ones, if the transport has computed it while they arrived; b"" otherwise.
        backlog: bytes that were sent and that the other side, or the network, has not accepted yet.
        progress: a number that grows whenever data arrives that only the other side can have sent, or the other side
            accepts sent data. It is a sign of life during the slow transfer of a large frame.
    """

    remote: str
    key: bytes | None
    session: bytes
    version: int
    dialled: bool
    direct: bool
    joining: bool

    @property
    def payload_digest(self) -> bytes: ...

    @property
    def backlog(self) -> int: ...

    @property
    def progress(self) -> int: ...

    def send(self, parts: Sequence[Part]) -> None:
        """Send the frame that results from joining `parts`, without waiting. The parts must not change afterwards.

        Raises:
            TransportError: the link is closed, or the other side does not read the previous data.
        """

    def trust(self) -> None:
        """Allow frames of full size from the other side, and keep the link. It was introduced as a member."""

    def close(self) -> None:
        """Close the link; frames in transit may be lost. Closing twice does nothing."""


class Handler(Protocol):
    """User of a transport."""

    def received(self, link: Link, frame: memoryview) -> None:
        """Handle a received frame. `frame` may be kept: its memory is not reused."""

    def drained(self, link: Link) -> None:
        """Report that the backlog of a link has become small."""

    def lost(self, link: Link, reason: str) -> None:
        """Report that a link has ended which this side did not close."""

    def refused(self, cause: str, detail: str) -> None:
        """Report a connection refused before it became a link, from a stranger, a forger or another federation."""


class AccessControl(Protocol):
    """Decision on the keys that may have a link.

    Attributes:
        federation: the federation's id, 16 bytes.
        membership_version: number of the newest entry of the membership log that is known here.
        stored: number of the entries that are here without a gap from the first on; less than `membership_version` for a
            newcomer that has begun without the log.
        invites: whether newcomers may ask to become members here.
        fork: two entries that prove that the admission key has signed two histories; None as long as none were seen.
    """

    @property
    def federation(self) -> bytes: ...

    @property
    def invites(self) -> bool: ...

    @property
    def membership_version(self) -> int: ...

    @property
    def stored(self) -> int: ...

    @property
    def fork(self) -> tuple[bytes, bytes] | None: ...

    def refusal(self, key: bytes) -> str:
        """Return the reason why a key is refused, for example "stranger" or "revoked"; "" for a permitted key."""

    def after(self, membership_version: int, limit: int) -> bytes:
        """Return the entries of the membership log after `membership_version`, as many as fit into `limit` bytes."""

    def extend(self, entries: bytes) -> int:
        """Add entries of the membership log from another node; return the number of new ones.

        Raises:
            ProtocolError: the entries are malformed, or not signed by the federation's admission key.
        """

    def revocation(self, key: bytes) -> bytes:
        """Return the proof that the membership of a key was revoked (see p2pfl.protocols.membership); b"" for none."""

    def accept_revocation(self, key: bytes, proof: bytes) -> bool:
        """Record that the membership of a key was revoked, if the proof holds; return whether it was revoked."""


class Transport(Protocol):
    """Factory of links to other nodes.

    Attributes:
        address: the address at which others can dial; known after `listen`.
    """

    @property
    def address(self) -> str: ...

    async def listen(self, handler: Handler) -> None:
        """Start to accept links.

        Raises:
            TransportError: the address is in use or cannot be bound.
        """

    async def dial(self, address: str, key: bytes, joining: bool = False) -> Link:
        """Open a link with the owner of `key`. If keys are proven, this happens before any message is sent.

        Raises:
            TransportError: there is no answer, another node answers, or the node refuses the link. The text gives the
                reason.
        """

    def expel(self, key: bytes) -> None:
        """Close all links with the owner of `key`, because it is excluded or no longer a member."""

    async def close(self) -> None:
        """Stop listening and close every link."""


class Timer:
    """Timer with at most one pending callback of the running event loop."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> bool:
        """Return whether the callback is pending."""
        return self._handle is not None

    def start(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call `callback` after `seconds`, in place of a pending callback."""
        self.start_at(asyncio.get_running_loop().time() + seconds, callback)

    def start_at(self, when: float, callback: Callable[[], object]) -> None:
        """Call `callback` at a time of the event loop, in place of a pending callback."""
        self.cancel()
        self._handle = asyncio.get_running_loop().call_at(when, self._fire, callback)

    def cancel(self) -> None:
        """Cancel the pending callback, if there is one."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None

    def _fire(self, callback: Callable[[], object]) -> None:
        self._handle = None
        callback()
