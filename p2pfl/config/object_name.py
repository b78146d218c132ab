"""Names of factories that a Python program gives as objects, in place of a "package.module:factory"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PREFIX = "object:"


class ObjectName(str):
    """Name that carries the factory it stands for, so that tables with names can hold objects.

    In a file only the text remains, and nothing resolves it. Worker processes of the simulator get a copy of the factory;
    see p2pfl.sim.simulation.workers.

    Args:
        text: name of the factory, for messages.
        factory: object that is called to make a task or a policy.
    """

    factory: Callable[..., Any]

    def __new__(cls, text: str, factory: Callable[..., Any]) -> ObjectName:
        name = super().__new__(cls, PREFIX + text)
        name.factory = factory
        return name

    def __copy__(self) -> ObjectName:
        return self

    def __deepcopy__(self, memo: object) -> ObjectName:
        return self  # a factory may hold large data
