"""Links of newcomers, which are not members yet and may send one request to join."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from weakref import WeakSet

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transport import Link


class JoinReply(NamedTuple):
    """Answer to a newcomer.

    Attributes:
        frame: the frame to send.
        cause: cause of a refusal, for the counters; "" for none.
        detail: explanation of a refusal, for people.
    """

    frame: bytes
    cause: str = ""
    detail: str = ""


AnswerJoin = Callable[[bytes, bytes, str], Awaitable[JoinReply]]
"""Function of a newcomer's public key, its request, and its host ("broker" if the host is unknown)."""


class Newcomers:
    """Dispatcher of the first frame on each link of a newcomer.

    Args:
        answer: answers the frame; None if this node does not admit newcomers.
    """

    def __init__(self, answer: AnswerJoin | None) -> None:
        self._answer = answer
        self._asked: WeakSet[Link] = WeakSet()

    def ask(self, link: Link, frame: memoryview) -> Awaitable[JoinReply]:
        """Return an awaitable of the answer. A second frame closes the link.

        Raises:
            ProtocolError: it is the second frame, or this node does not admit newcomers.
        """
        if link in self._asked:
            link.close()
            raise ProtocolError("malformed", "a second message over the link of a newcomer")
        self._asked.add(link)
        if self._answer is None or link.key is None:
            raise ProtocolError("not inviting")
        host = link.remote.rpartition(":")[0].strip("[]") if link.direct else "broker"
        return self._answer(link.key, bytes(frame), host)
