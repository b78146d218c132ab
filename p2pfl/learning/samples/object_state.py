"""Attributes of a user's dataset, to recognise cheaply that a task function has changed it for the next node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

MOST_ELEMENTS = 64  # of a container whose elements are looked at
DEEPEST = 4  # levels of attributes: a subset, its dataset, its transform, the parts of the transform
Generator = np.random.Generator | np.random.RandomState | torch.Generator | Random
PLAIN = bool | int | float | complex | str | bytes | None
WHOLE = type | FunctionType | BuiltinFunctionType | ModuleType | np.ndarray | torch.Tensor | Generator


def attributes_of(data: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the attributes of a dataset and of the objects that it holds: plain values, and identities of others.

    Also return these objects. While they are kept, no other object gets their identity.
    """
    held = _held_by(data)
    return tuple([value if isinstance(value, PLAIN) else id(value) for value in held]), held


def put_back(data: Any) -> Callable[[], None]:
    """Return a function that puts the random generators that a dataset holds back into their present state."""
    steps = [_step_back(value) for value in _held_by(data) if isinstance(value, Generator)]

    def back() -> None:
        for step in steps:
            step()

    return back


def _held_by(data: Any) -> list[Any]:
    """Return the objects that a dataset holds: its attributes, their elements, and their attributes."""
    found: dict[int, Any] = {}
    level = [data]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for value in level:
            if id(value) not in found:
                found[id(value)] = value
                inner += _parts(value)
        level = inner
    return [*found.values()]


def _step_back(generator: Generator) -> Callable[[], object]:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if isinstance(generator, Random):
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())  # type: ignore[arg-type]


def _parts(value: Any) -> list[Any]:
    if isinstance(value, PLAIN | WHOLE):
        return []
    if isinstance(value, list | tuple | Mapping):
        return [] if len(value) > MOST_ELEMENTS else [*(value.values() if isinstance(value, Mapping) else value)]
    return [*vars(value).values()] if hasattr(value, "__dict__") else []
