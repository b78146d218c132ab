"""Timer that can be restarted and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


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
