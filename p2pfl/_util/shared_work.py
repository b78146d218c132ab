"""Results that many tasks share, so that 10,000 nodes with one architecture and one test set check them once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_results: ContextVar[dict[Hashable, Any] | None] = ContextVar("results by key", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Make `once` keep its results in this block. The results end with the block."""
    token = _results.set({})
    try:
        yield
    finally:
        _results.reset(token)


def once(key: tuple[Any, ...], compute: Callable[[], T], of: Any = None) -> T:
    """Return `compute()`. Within `sharing`, call it only once for equal keys.

    Args:
        key: everything that the result depends on. Functions, modules and tensors are equal only if they are the same
            object. A key that cannot be hashed is equal to no other.
        of: object that the result depends on, too. The result ends with it, and does not keep it alive: a result that was
            computed from the samples of one node is of no use once the node's samples are gone.
    """
    found = _results.get()
    if found is None or not all(isinstance(part, Hashable) for part in key):
        return compute()
    if of is not None:
        key = (id(of), *key)
        if key not in found:
            weakref.finalize(of, found.pop, key, None).atexit = False
    if key not in found:  # the entry keeps the parts alive, so that no other object gets their identity
        found[key] = compute()
    result: T = found[key]
    return result
