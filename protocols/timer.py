"""A timer that can be set again and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """At most one pending callback of the running event loop."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> bool:
        """Return whether the callback is still to be called."""
        return self._handle is not None

    def start(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call `callback` in so many seconds, instead of what was pending."""
        self.start_at(asyncio.get_running_loop().time() + seconds, callback)

    def start_at(self, when: float, callback: Callable[[], object]) -> None:
        """Call `callback` at a time of the event loop, instead of what was pending."""
        self.cancel()
        self._handle = asyncio.get_running_loop().call_at(when, self._fire, callback)

    def cancel(self) -> None:
        """Drop what is pending. Without anything pending this does nothing."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None

    def _fire(self, callback: Callable[[], object]) -> None:
        self._handle = None
        callback()
