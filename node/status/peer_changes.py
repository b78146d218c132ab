"""Events about peers that disappear and come back.

Each change is logged at once. For a peer that keeps changing, periodic summaries follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from p2pfl.node.conduct.conduct import Conduct
from p2pfl.system.event_log import EventLogger
from p2pfl.system.printable import plural, printable

PAUSE, LONGEST = 1.0, 60.0  # seconds between two lines about a peer: at first, and at most if it keeps changing


@dataclass
class _Lately:
    """State of a peer about which an event was logged recently.

    Attributes:
        reason: why it is missing; None if it is connected.
        changes: number of changes since the last event.
        pause: seconds until the next event.
    """

    reason: str | None
    changes: int = 0
    pause: float = PAUSE


class PeerChanges:
    """Log of the changes of peers.

    Args:
        log: receives the events.
        later: calls a function after a number of seconds; by default on the running event loop.
    """

    def __init__(
        self,
        log: EventLogger,
        later: Callable[[float, Callable[[], None]], Any] = lambda seconds, do: asyncio.get_running_loop().call_later(
            seconds, do
        ),
    ) -> None:
        self._log = log
        self._later = later
        self._lately: dict[str, _Lately] = {}
        self._unmet: set[str] = set()

    def expect(self, name: str) -> None:
        """Note a new member, which is neither missing nor connected yet. Its connection will be logged."""
        self._unmet.add(name)

    def left(self, name: str, reason: str, met: bool = True) -> None:
        """Report that a peer is missing.

        Args:
            met: whether it has been connected before.
        """
        if not met:
            self._unmet.add(name)
        self._note_change(name, reason)

    def back(self, name: str) -> None:
        """Report that a missing peer is connected."""
        self._note_change(name, None)

    def _note_change(self, name: str, reason: str | None) -> None:
        if (lately := self._lately.get(name)) is not None:
            lately.reason = reason
            lately.changes += 1
            return
        self._report(name, reason)
        self._lately[name] = _Lately(reason)
        self._later(PAUSE, lambda: self._look(name))

    def _look(self, name: str) -> None:
        """Log the changes of a peer since the last event about it."""
        lately = self._lately[name]
        if not lately.changes:
            del self._lately[name]
            return
        if lately.changes == 1:
            self._report(name, lately.reason)
        else:
            now = "connected" if lately.reason is None else f"missing: {lately.reason}"
            times = plural(lately.changes // 2, "time")
            log = self._log.info if lately.reason is None else self._log.warning
            log(f"{name} left and came back {times} in {lately.pause:.0f} s; now {now}", kind="peer-flaps", peer=name)
        lately.changes = 0
        lately.pause = min(2 * lately.pause, LONGEST)
        self._later(lately.pause, lambda: self._look(name))

    def _report(self, name: str, reason: str | None) -> None:
        unmet = name in self._unmet
        if reason is None:
            self._unmet.discard(name)
            self._log.info(f"{name} is {'connected' if unmet else 'back'}", kind="peer-back", peer=name)
        elif unmet:
            self._log.warning(f"{name} is not connected: {reason}", kind="peer-missing", peer=name, reason=reason)
        else:
            self._log.warning(f"{name} is missing: {reason}", kind="peer-missing", peer=name, reason=reason)


def log_penalty(log: EventLogger, conduct: Conduct, name: str, kind: str, detail: str) -> None:
    """Log the first penalty of each kind of a peer, and the first one after which it is left out.

    Args:
        detail: describes the penalty; may come from the peer.
    """
    if conduct.penalties[name][kind] == 1:
        text = f"{name} has a penalty: {kind}" + (f" ({printable(detail)})" if detail else "")
        log.warning(text, kind="penalty", peer=name, penalty=kind, score=conduct.score(name))
    if conduct.is_distrusted(name) and name not in conduct.left_out:
        log.warning(f"{name} is left out: its score is {conduct.score(name)}", kind="left-out", peer=name)
