"""Limits on the size of a model, checked before memory is taken for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from p2pfl.errors import ConfigurationError
from p2pfl.system.available_memory import amount

# Copies of all values. A node that trains holds parameters, gradients, two moments, the round's two models, a checkpoint and
# one that arrives. A command that only looks at a model holds the parameters and one more.
TRAINING, READING = 8, 2
_limit: ContextVar[tuple[int, int] | None] = ContextVar("memory, and copies of a model's values", default=None)


def check_size(what: str, values: int, memory: int | None, copies: int = TRAINING) -> None:
    """Raise ConfigurationError if a node with `memory` bytes to spare has no room for a model of so many float32 values.

    Args:
        what: names the model, for the error.
        memory: None where it is not known; then every size is right.
        copies: how often the values are held.
    """
    needed = 4 * copies * values
    if memory is not None and needed > memory:
        raise ConfigurationError(
            f"{what} has {values:,} values: a node needs about {amount(needed)} of memory for it, {amount(memory)} are free"
        )


@contextmanager
def within(memory: int | None, copies: int = TRAINING) -> Iterator[None]:
    """Have `check_module_size` refuse models in this block that a node with so many bytes has no room for."""
    token = _limit.set(None if memory is None else (memory, copies))
    try:
        yield
    finally:
        _limit.reset(token)


def is_limited() -> bool:
    """Return whether the size of a model is to be known before it is made."""
    return _limit.get() is not None


def check_module_size(values: int) -> None:
    """Raise ConfigurationError if a task's model is larger than `within` allows."""
    if (limit := _limit.get()) is not None:
        check_size("the task's model", values, *limit)
