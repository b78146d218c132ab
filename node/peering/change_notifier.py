"""Waiting for conditions on the state of peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class ChangeNotifier:
    """Notifier that wakes waiting tasks at each change on which their condition may depend.

    Args:
        on_change: called at each change.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._progress: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Report a change."""
        self._on_change()
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a change makes `condition` true. Return False if that took longer than `seconds`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None if seconds == inf else seconds):
                while not condition():
                    if self._progress is None or self._progress.done():
                        self._progress = loop.create_future()
                    await asyncio.shield(self._progress)
        except TimeoutError:
            return False
        return True
