"""Named points at which a test can end the process as if it were killed.

P2PFL_FAILPOINT=published ends it before it announces its first model, P2PFL_FAILPOINT=published:3 before the third.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

VARIABLE = "P2PFL_FAILPOINT"
POINTS = {
    "incarnation-counted": "the incarnation counter is on the disk, and nothing was sent",
    "checkpoint-written": "a checkpoint is on the disk under its temporary name",
    "checkpoint-shifted": "the checkpoints before it have moved, and it is not in its place yet",
    "checkpoint-saved": "it is in its place, and no peer was notified",
    "ledger-written": "a ledger that counts the next private training is on the disk under its temporary name",
    "ledger-saved": "it is in its place, and the training has not begun",
    "trained": "a private training has ended, and its model is nowhere but in memory",
    "published": "a model is in the checkpoint, and no peer can get it yet",
    "membership-saved": "new entries of the membership log are on the disk, and no newcomer has its answer",
    "invitation-used": "a token is marked as used, and its node is no member yet",
    "vote-saved": "this node's vote in an election is on the disk, and no peer was notified",
    "sum-shared": "it has given shares of its secrets in a secure sum, and its masked model was not sent",
    "sum-submitted": "its masked model has arrived, and it has not signed the survivors",
    "round-saved": "the state after a round is in the checkpoint, and no peer was notified",
}


def parse(text: str) -> tuple[str, int]:
    """Parse "point" or "point:3" to the name of the point and the count; "" gives no point.

    Raises:
        ValueError: the point does not exist, or the count is invalid.
    """
    name, _, times = text.partition(":")
    if text and (name not in POINTS or (":" in text and not times.isdecimal()) or times == "0"):
        raise ValueError(
            f"{VARIABLE} is {text!r}; it must be one of {', '.join(POINTS)}, optionally with :N for the N-th time"
        )
    return name, int(times or 1)


_wanted, _left = parse(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
    """End the process here if the environment variable selects this point."""
    global _left
    if name != _wanted:
        return
    _left -= 1
    if _left == 0:
        _end()


def _end() -> NoReturn:
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(137)  # Windows has no SIGKILL
