"""Supervision of the parts of a node that communicate with the outside: an error in one of them ends no other part."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import PurePath
from traceback import extract_tb
from typing import Any

from p2pfl.errors import first_error
from p2pfl.node.log import LOG
from p2pfl.system.event_log import EventLogger
from p2pfl.system.printable import printable

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a part starts again; doubled each time
STRAY = "callbacks"  # name of the part for errors of unawaited tasks and callbacks


class Supervisor:
    """Supervisor that restarts failed parts and counts their errors.

    Args:
        log: receives the first error of each kind.

    Attributes:
        faults: number of errors that escaped a part, by the part's name.
    """

    def __init__(self, log: EventLogger = LOG) -> None:
        self.faults: Counter[str] = Counter()
        self._log = log
        self._logged: set[tuple[str, str]] = set()

    async def run(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run the work of a part, and run it again after a growing pause as long as it ends with an error.

        The pauses start again when the part has worked for longer than the longest of them. Time is that of the event
        loop.
        """
        clock = asyncio.get_running_loop().time
        pause = FIRST_PAUSE
        while True:
            begun = clock()
            try:
                await work()
                return
            except Exception as error:
                self.fault(part, error)
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # the clean-up has failed
                    raise asyncio.CancelledError from None
            if clock() - begun > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def clean_up(self, part: str, work: Awaitable[None]) -> None:
        """Run the final work of a part; an error in it is counted and hides no other error."""
        try:
            await work
        except Exception as error:
            self.fault(part, error)

    def fault(self, part: str, error: BaseException, origin: str = "") -> None:
        """Count an error that escaped a part; log it if it is the first of its kind.

        Args:
            origin: describes where the error was found, if that is not its place in the code.
        """
        self.faults[part] += 1
        error = first_error(error)
        kind = type(error).__name__
        if (part, kind) not in self._logged:
            self._logged.add((part, kind))
            found = f"; {printable(origin)}" if origin else ""
            event = f"error in {part}, the node continues: {kind}: {printable(str(error))}{_place(error)}{found}"
            self._log.error(event, kind="fault", part=part, error=kind)

    def stray(self, loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count an error that the event loop would only log (see asyncio's set_exception_handler)."""
        origin = context["message"]
        if (pending := context.get("task") or context.get("future")) is not None:
            origin += f": {pending!r}"
        self.fault(STRAY, context.get("exception") or RuntimeError("an error without exception"), origin)


def _place(error: BaseException) -> str:
    """Return the file and line that raised an error."""
    frames = extract_tb(error.__traceback__)
    return f" ({PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
