"""Background tasks of a node, which run in parallel to its rounds."""

from __future__ import annotations

from asyncio import Task, TaskGroup
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """Tasks that end with the node. An error in one of them ends the task group, and therefore the node."""

    def __init__(self) -> None:
        self._group: TaskGroup
        self._running: set[Task[None]] = set()

    def start(self, group: TaskGroup) -> None:
        """Set the group in which tasks run. Call this before the first `spawn`."""
        self._group = group

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task[None]:
        """Run a coroutine as a task."""
        task = self._group.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def fail(self, error: Exception, name: str) -> None:
        """End the node with an error."""
        self.spawn(_raise(error), name)

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in list(self._running):
            task.cancel()


async def _raise(error: Exception) -> None:
    raise error
