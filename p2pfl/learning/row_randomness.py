"""Random operations of a stack of models, with each row drawn from the generator of its own node.

A single training seeds torch's generator, and its module's random layers draw from it. Here a random operation on a
stack, such as the mask of a dropout layer, is computed row by row with torch's generator in the state of that row's
node. So a stacked training draws the same numbers as single ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from p2pfl.errors import ConfigurationError


class RowGenerators:
    """Generators of torch, one for each row of a stack.

    Args:
        seeds: seed of each row, as for torch.manual_seed.
        device: device of the stacks; a GPU draws other numbers than a CPU.

    Attributes:
        used: whether a random operation was computed.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._default = _default_generator(device)
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.used = False

    @contextmanager
    def drawing(self, rows: Sequence[int]) -> Iterator[None]:
        """Compute random operations on stacks [K, ...] in this block with the generators of K rows.

        Raises:
            ConfigurationError: an operation cannot be divided into rows.
        """
        before = self._default.get_state()
        try:
            with _Mode(self, rows):
                yield
        finally:
            self._default.set_state(before)

    def compute(self, operation: Any, rows: Sequence[int], args: Sequence[Any], options: Any) -> list[Any]:
        """Return the results of an operation of torch for each row of its arguments."""
        self.used = True
        results = []
        arguments = operation._schema.arguments  # noqa: SLF001
        takes_generator = options.get("generator") is None and any(each.name == "generator" for each in arguments)
        for k, row in enumerate(rows):
            generator, own = self._generators[row], [_of_row(arg, k, len(rows)) for arg in args]
            if takes_generator:
                results.append(operation(*own, **options | {"generator": generator}))
            else:
                self._default.set_state(generator.get_state())
                results.append(operation(*own, **options))
                generator.set_state(self._default.get_state())
        return results


def _default_generator(device: torch.device) -> torch.Generator:
    """Return the generator from which modules draw on a device."""
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Interception of the random operations that torch.func.vmap computes on stacks."""

    def __init__(self, generators: RowGenerators, rows: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators = generators
        self._rows = rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _drops_nothing(func, args, options):
            return func(*args, **options)
        if not any(_is_stack(arg, len(self._rows)) for arg in args):
            raise ConfigurationError(f"torch cannot draw {func.overloadpacket.__name__} for each node of a stack")
        found = self._generators.compute(func, self._rows, args, options)
        if func.overloadpacket.__name__.endswith("_"):  # in place
            return args[0]
        if isinstance(found[0], tuple):
            return tuple(torch.stack(column) for column in zip(*found, strict=True))
        return torch.stack(found)


def _drops_nothing(operation: Any, args: Sequence[Any], options: Any) -> bool:
    """Return whether an operation is an attention without dropout, which draws no numbers."""
    for place, each in enumerate(operation._schema.arguments):  # noqa: SLF001
        if each.name == "dropout_p":
            value = args[place] if place < len(args) else options.get("dropout_p", each.default_value)
            return bool(value == 0)
    return False


def _is_stack(arg: Any, count: int) -> bool:
    """Return whether an argument is a tensor, or the shape of one, with a row for each model."""
    shape = arg.shape if isinstance(arg, Tensor) else arg if isinstance(arg, list | tuple) else ()
    return len(shape) > 0 and bool(shape[0] == count)


def _of_row(arg: Any, k: int, count: int) -> Any:
    if not _is_stack(arg, count):
        return arg
    return arg[k] if isinstance(arg, Tensor) else arg[1:]
