"""Event loops of nodes, for tests."""

import asyncio
from contextlib import suppress

LOOPS = {"asyncio": asyncio.new_event_loop}
with suppress(ImportError):  # not on Windows
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


def run_on(loop, work):
    """Run a coroutine on a new loop of one of the names in LOOPS."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(work)
