"""State of a module besides its float tensors: integer buffers, and attributes that its `forward` changes.

It stays on the node, and is the last part of the node's flat vector (see p2pfl.parameters.Layout). So checkpoints, the
best model, worker processes and files carry it like a private layer. Each 16 bits of the state are one float32 from 0 to
65,535 in the vector, which is exact and finite.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters

Step = tuple[str, Any]
"""One step to a value: ("attribute", name), ("item", key), ("cell", number) or ("global", name) of a function, or
("hook", (attribute, number)) of a module."""

TYPES = (type(None), bool, int, float)
"""Types of an attribute that is a number; an attribute may change between them."""

INT_LIMIT = 2**63


@dataclass(frozen=True)
class Slot:
    """Place of one value of the state.

    Attributes:
        name: the name in the layout, such as "1.num_batches_tracked".
        part: the name of the submodule; "" is the module itself.
        steps: the way from the submodule to the value.
        kind: what the value is, with what its encoding depends on; see `kind_of`.
        in_class: whether the way begins at the submodule's class.
    """

    name: str
    part: str
    steps: tuple[Step, ...]
    kind: tuple[Any, ...]
    in_class: bool = False

    @property
    def width(self) -> int:
        """Number of float32 values of the encoding."""
        return -(-_bytes(self.kind) // 2)

    def read(self, module: nn.Module) -> bytes:
        """Return the value in bytes.

        Raises:
            ConfigurationError: the value is no longer of this kind.
        """
        value = self._owner(module)
        for step in self.steps:
            value = _follow(value, step)
        if kind_of(value) != self.kind:
            raise ConfigurationError(
                f"module {type(module).__name__}: {self.name} has become a {type(value).__name__} in training, but a node"
                " carries a number, or a tensor or an array of one shape and type; keep one of these there"
            )
        return encoded(value)

    def write(self, module: nn.Module, data: bytes) -> None:
        """Set the value from bytes."""
        owner = self._owner(module)
        for step in self.steps[:-1]:
            owner = _follow(owner, step)
        how, key = self.steps[-1]
        before = _follow(owner, self.steps[-1])
        if (value := _decode(data, self.kind, before)) is before:
            return
        if how == "item":
            owner[key] = value
        elif how == "cell":
            owner.__closure__[key].cell_contents = value
        elif how == "global":
            owner.__globals__[key] = value
        else:
            setattr(owner, key, value)

    def _owner(self, module: nn.Module) -> Any:
        part = module.get_submodule(self.part)
        return type(part) if self.in_class else part


class LocalState:
    """Reader and writer of the local state of a module, as float32 values that a node's vector can carry."""

    def __init__(self, slots: Sequence[Slot] = ()) -> None:
        self.slots = tuple(slots)
        self.shapes = tuple((slot.name, (slot.width,)) for slot in slots)
        self.names = tuple(slot.name for slot in slots)
        self.size = sum(slot.width for slot in slots)

    def take(self, module: nn.Module) -> Parameters:
        """Return the state of a module, float32 [size].

        Raises:
            ConfigurationError: a value has changed its type or its shape.
        """
        parts = [slot.read(module) for slot in self.slots]
        limbs = b"".join(data + b"\0" * (len(data) % 2) for data in parts)
        return np.frombuffer(limbs, np.uint16).astype(np.float32)

    def put(self, module: nn.Module, values: np.ndarray) -> None:
        """Set the state of a module from `values`, float32 [size]."""
        data, start = values.astype(np.uint16).tobytes(), 0
        for slot in self.slots:
            slot.write(module, data[start : start + _bytes(slot.kind)])
            start += 2 * slot.width


def kind_of(value: Any) -> tuple[Any, ...] | None:
    """Return what kind of state a value is; None if it cannot be carried."""
    if type(value) in TYPES:
        return None if isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT else ("number",)
    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and not value.is_quantized
        return ("tensor", value.dtype, tuple(value.shape)) if plain else None
    if isinstance(value, np.ndarray | np.generic):
        return (type(value), value.dtype.str, value.shape) if value.dtype.kind in "biufc" else None
    if isinstance(value, torch.Generator):
        return "generator", len(value.get_state())
    if isinstance(value, np.random.Generator):
        return ("numpy generator",) if isinstance(value.bit_generator, np.random.PCG64) else None
    return ("python generator",) if type(value) is random.Random else None


def _bytes(kind: tuple[Any, ...]) -> int:
    size: int
    if kind[0] == "tensor":
        size = prod(kind[2]) * kind[1].itemsize
    elif isinstance(kind[0], type):
        size = prod(kind[2]) * np.dtype(kind[1]).itemsize
    else:
        size = {"number": 9, "generator": kind[-1], "numpy generator": 37, "python generator": 4 * 625 + 9}[kind[0]]
    return size


def encoded(value: Any) -> bytes:
    """Return a value of a kind that can be carried in bytes."""
    kind = kind_of(value)
    assert kind is not None
    if kind[0] == "number":
        return _number(value)
    if kind[0] == "numpy generator":
        state = value.bit_generator.state
        words: bytes = state["state"]["state"].to_bytes(16, "little") + state["state"]["inc"].to_bytes(16, "little")
        return words + struct.pack("<BI", state["has_uint32"], state["uinteger"])
    if kind[0] == "python generator":
        _, numbers, gauss = value.getstate()
        return struct.pack("<625I", *numbers) + _number(gauss)
    array: np.ndarray | np.generic = value
    if kind[0] == "tensor":
        array = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif kind[0] == "generator":
        array = value.get_state().numpy()
    return array.tobytes()


def _decode(data: bytes, kind: tuple[Any, ...], before: Any) -> Any:
    """Return the value of `data`: `before` itself if it could be set in place."""
    if kind[0] == "number":
        return _of_number(data)
    if kind[0] == "tensor":
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        value = flat.view(kind[1]).reshape(kind[2])
        if kind_of(before) != kind:
            return value
        with torch.no_grad():
            return before.copy_(value) if not before.requires_grad else before.detach().copy_(value)
    if isinstance(kind[0], type):
        array = np.frombuffer(data, kind[1]).reshape(kind[2]).copy()
        return array if kind[0] is np.ndarray else array[()]
    if kind[0] == "generator":
        before.set_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    elif kind[0] == "numpy generator":
        words = {"state": int.from_bytes(data[:16], "little"), "inc": int.from_bytes(data[16:32], "little")}
        has, integer = struct.unpack("<BI", data[32:])
        state = {"bit_generator": "PCG64", "state": words, "has_uint32": has, "uinteger": integer}
        before.bit_generator.state = state
    else:
        before.setstate((random.Random.VERSION, struct.unpack("<625I", data[:2500]), _of_number(data[2500:])))
    return before


def _number(value: float | None) -> bytes:
    body = struct.pack("<d", value) if isinstance(value, float) else struct.pack("<q", value or 0)
    return bytes([TYPES.index(type(value))]) + body


def _of_number(data: bytes) -> float | None:
    kind = TYPES[data[0]]
    if kind is type(None):
        return None
    (value,) = struct.unpack("<d" if kind is float else "<q", data[1:])
    return cast(Callable[[Any], float], kind)(value)


def _follow(value: Any, step: Step) -> Any:
    how, key = step
    if how == "item":
        return value[key]
    if how == "cell":
        return value.__closure__[key].cell_contents
    if how == "global":
        return value.__globals__[key]
    if how == "hook":
        return list(getattr(value, key[0]).values())[key[1]]
    return getattr(value, key)
