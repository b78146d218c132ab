"""Limits on the size of a node's own model, checked before its memory is allocated, when a task makes its first model.

The size of a received model is limited by the length of the own one; see p2pfl.protocols.wire.envelope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from p2pfl._util.machine import amount
from p2pfl.errors import ConfigurationError

# Copies of all values. A node in training holds parameters, gradients, two moments, the round's two models, a
# checkpoint and one incoming model. A command that only reads a model holds the parameters and one more.
TRAINING, READING = 8, 2
_limit: ContextVar[tuple[int, int] | None] = ContextVar("memory, and copies of a model's values", default=None)


def check_size(what: str, values: int, memory: int | None, copies: int = TRAINING) -> None:
    """Raise ConfigurationError if a model of `values` float32 values does not fit into `memory` bytes.

    Args:
        what: name of the model, for the error.
        memory: None if unknown; every size is then accepted.
        copies: number of copies of the values in memory.
    """
    needed = 4 * copies * values
    if memory is not None and needed > memory:
        raise ConfigurationError(
            f"{what} has {values:,} values: a node needs about {amount(needed)} of memory for it, but"
            f" only {amount(memory)} is free"
        )


@contextmanager
def within(memory: int | None, copies: int = TRAINING) -> Iterator[None]:
    """Make `check_module_size` refuse models in this block that do not fit into `memory` bytes."""
    token = _limit.set(None if memory is None else (memory, copies))
    try:
        yield
    finally:
        _limit.reset(token)


def is_limited() -> bool:
    """Return whether a limit applies, so that the size of a model must be known before it is made."""
    return _limit.get() is not None


def check_module_size(values: int) -> None:
    """Raise ConfigurationError if a task's model is larger than `within` allows."""
    if (limit := _limit.get()) is not None:
        check_size("the task's model", values, *limit)
