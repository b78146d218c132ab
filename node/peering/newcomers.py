"""Links of newcomers, which are no members yet and may ask one question: to become one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from weakref import WeakSet

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transport import Link


class JoinReply(NamedTuple):
    """Answer to a newcomer.

    Attributes:
        frame: is sent to it.
        cause: of a refusal, by which it is counted; "" for none.
        detail: of a refusal, for people.
    """

    frame: bytes
    cause: str = ""
    detail: str = ""


AnswerJoin = Callable[[bytes, bytes, str], Awaitable[JoinReply]]
"""Function of a newcomer's public key, its question, and its host ("broker" if that is unknown)."""


class Newcomers:
    """Passes on the first frame of each link of a newcomer.

    Args:
        answer: answers it; None where this node invites nobody.
    """

    def __init__(self, answer: AnswerJoin | None) -> None:
        self._answer = answer
        self._asked: WeakSet[Link] = WeakSet()

    def ask(self, link: Link, frame: memoryview) -> Awaitable[JoinReply]:
        """Return what the answer can be awaited from. A second frame closes the link.

        Raises:
            ProtocolError: it is the second frame, or this node invites nobody.
        """
        if link in self._asked:
            link.close()
            raise ProtocolError("malformed", "more than one question over a link of one who wants to join")
        self._asked.add(link)
        if self._answer is None or link.key is None:
            raise ProtocolError("not inviting")
        host = link.remote.rpartition(":")[0].strip("[]") if link.direct else "broker"
        return self._answer(link.key, bytes(frame), host)
