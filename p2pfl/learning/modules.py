"""Torch modules as flat vectors: size, layout, values, and the generators from which they draw.

A module draws from torch's generator, and may draw from the global ones of NumPy and Python. These are shared by everything
in a process: a block that seeds them (`seeded`) restores them at its end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from types import FunctionType, MethodType
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch import nn

from p2pfl._util import machine
from p2pfl.errors import ConfigurationError
from p2pfl.learning.local_state import LocalState, encoded, kind_of
from p2pfl.parameters import Layout, Parameters

NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
)

STATELESS = LocalState()
CPU = torch.device("cpu")


def make_module(factory: Callable[[], nn.Module]) -> nn.Module:
    """Make a module. If the size is limited, its values are counted before memory is allocated for them.

    Raises:
        ConfigurationError: it has more values than the limit allows (see p2pfl._util.machine).
    """
    if machine.is_limited():
        machine.check_module_size(count_values(factory))
    return factory()


def new_module(factory: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return a new module. What it draws comes from `seed`; the generators of the process are left as they were.

    Raises:
        ConfigurationError: it is too large (see `make_module`), a layer is lazy, or a part cannot take other weights.
    """
    with seeded(seed):
        module = make_module(factory)
    check_parts(module)
    return module


def check_parts(module: nn.Module) -> None:
    """Raise ConfigurationError if a layer has no shape yet, or torch cannot use other weights than a part's own."""
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule | nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ConfigurationError(
                f"module {type(module).__name__} contains a {type(part).__name__}, with which torch cannot use the weights"
                " of a node; return the plain module, neither scripted, traced nor parallel"
            )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, nn.parameter.UninitializedParameter | nn.parameter.UninitializedBuffer):
            raise ConfigurationError(
                f"module {type(module).__name__}: {name} has no shape yet (a lazy layer); specify its sizes"
            )


def count_values(factory: Callable[[], nn.Module]) -> int:
    """Return the number of values of a module; 0 if it cannot be made without allocating memory."""
    try:
        with torch.device("meta"), seeded(0):
            module = factory()
        return sum(tensor.numel() for tensor in [*module.parameters(), *module.buffers()])
    except Exception:  # of the user's module; a real fault occurs again when the module is made
        return 0


def layout_of(module: nn.Module, private: Sequence[str] = (), state: LocalState = STATELESS) -> Layout:
    """Return the layout of a module: trained parameters, then frozen ones and float buffers, then its other state.

    Args:
        private: names of tensors or of submodules that are not shared.
        state: the state that stays on the node; by default none.

    Raises:
        ConfigurationError: a tensor is not supported, or a private part does not exist; the text names it.
    """
    check_parts(module)
    name = type(module).__name__
    trained: list[tuple[str, tuple[int, ...]]] = []
    rest: list[tuple[str, tuple[int, ...]]] = []
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, nn.Parameter):
            if tensor.dtype != torch.float32 or tensor.layout != torch.strided:
                raise ConfigurationError(
                    f"module {name}: parameter {key} is {tensor.dtype}, but only dense float32 is supported"
                )
            (trained if tensor.requires_grad else rest).append((key, tuple(tensor.shape)))
        elif tensor.is_floating_point() or tensor.is_complex():
            if tensor.dtype != torch.float32:
                raise ConfigurationError(f"module {name}: buffer {key} is {tensor.dtype}, but only float32 is supported")
            rest.append((key, tuple(tensor.shape)))
    if not trained:
        raise ConfigurationError(f"module {name} has no trainable parameters")
    n_trained = sum(prod(shape) for _, shape in trained)
    kept = _select_tensors([key for key, _ in trained + rest], private)
    return Layout((*trained, *rest, *state.shapes), n_trained, kept, state.names)


def _select_tensors(tensors: Sequence[str], parts: Sequence[str]) -> tuple[str, ...]:
    """Return the tensors that names of tensors or submodules select, in their order."""
    found = {part: [key for key in tensors if key == part or key.startswith(f"{part}.")] for part in parts}
    for part, keys in found.items():
        if not keys:
            raise ConfigurationError(f"no tensor {part!r} to keep private; the tensors are: {', '.join(tensors)}")
    return tuple(key for key in tensors if any(key in keys for keys in found.values()))


def last_layer(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters of the last layer."""
    names = [name for name, _ in module.named_parameters()]
    layer = names[-1].rpartition(".")[0]
    return tuple(name for name in names if name.rpartition(".")[0] == layer)


def norm_layers(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the float tensors of the normalisation layers, running means and variances included.

    Raises:
        ConfigurationError: the module has no such layer.
    """
    found = [
        f"{name}.{key}"
        for name, layer in module.named_modules()
        if isinstance(layer, NORMS)
        for key, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        if tensor.is_floating_point()
    ]
    if not found:
        raise ConfigurationError(f"module {type(module).__name__} has no normalisation layer to keep private")
    return tuple(found)


def computes_alike(first: nn.Module, second: nn.Module) -> bool:
    """Return whether two modules with the same values in their layout have the same outputs.

    They do if their submodules agree in type, attributes and integer buffers. Objects that cannot be compared count as
    different.
    """
    parts, others = dict(first.named_modules()), dict(second.named_modules())
    known = _names_of(first) | _names_of(second)
    try:
        return list(parts) == list(others) and all(
            _equal(_settings(parts[name]), _settings(others[name]), known) for name in parts
        )
    except (RecursionError, ValueError):  # attributes that contain themselves, or a function with an unset variable
        return False


def _names_of(module: nn.Module) -> dict[int, str]:
    """Return the names of a module's submodules and of its parameters, which are in the layout, by their ids."""
    parameters = {id(parameter): f"parameter {name}" for name, parameter in module.named_parameters()}
    return parameters | {id(part): f"module {name}" for name, part in module.named_modules()}


def _settings(part: nn.Module) -> dict[str, object]:
    """Return what determines the outputs of a module, apart from its submodules and the tensors of its layout."""
    values = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_buffers", "_modules")}
    local = {key: b for key, b in part.named_buffers(recurse=False) if not b.is_floating_point()}
    return {"type": type(part), "attributes": values, "buffers": local}


def _equal(a: object, b: object, known: Mapping[int, str]) -> bool:
    """Return whether two attributes are equal.

    Args:
        known: the names of objects that are compared elsewhere, by their ids.
    """

    def equal(a: object, b: object) -> bool:
        return _equal(a, b, known)

    if a is b:
        return True
    if id(a) in known or id(b) in known:
        return known.get(id(a)) == known.get(id(b))
    if type(a) is not type(b):
        return False
    if (parts := _parts_of(a)) is not None:
        return equal(parts, _parts_of(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if (kind := kind_of(a)) is not None:
        return kind == kind_of(b) and encoded(a) == encoded(b)
    try:
        return bool(a == b)
    except Exception:  # of a user's class
        return False


def _parts_of(value: object) -> list[object] | None:
    """Return what a function, a method, a partial function or a reference consists of; None for other objects."""
    if isinstance(value, FunctionType):  # such as a lambda in a constructor
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    return [value()] if isinstance(value, ReferenceType) else None


def flatten(module: nn.Module, layout: Layout, state: LocalState = STATELESS) -> Parameters:
    """Return a module's tensors and its state as one flat vector."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    values = [tensors[name].detach().numpy().reshape(-1) for name, _ in layout.shapes if name not in layout.local]
    return np.concatenate([*values, state.take(module)])


def load(module: nn.Module, params: Parameters, layout: Layout, state: LocalState) -> None:
    """Set a module's tensors and its state from a flat vector; the inverse of `flatten`."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())  # a state_dict lacks some buffers
    with torch.no_grad():
        for name, array in layout.unflatten(params).items():
            if name not in layout.local:
                tensors[name].copy_(torch.from_numpy(array.copy()))
    state.put(module, params[layout.size - state.size :])


@contextmanager
def seeded(seed: int, device: torch.device = CPU, *, beyond_torch: bool = True) -> Iterator[None]:
    """Seed the generators in this block, and restore them afterwards.

    A generator of a GPU is seeded too, but not restored.

    Args:
        seed: from 0 to 2**63 - 1.
        device: device from whose generator torch draws.
        beyond_torch: whether to seed the generators of NumPy and Python as well, which takes some 50 us.
    """
    before = torch.default_generator.get_state()
    others = (np.random.get_state(), random.getstate()) if beyond_torch else None
    try:
        if device.type == "cpu":  # torch.manual_seed formats the caller's stack for each kind of accelerator, which is slow
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        if others is not None:
            np.random.seed(np.frombuffer(seed.to_bytes(8, "little"), np.uint32))
            random.seed(seed)
        yield
    finally:
        torch.default_generator.set_state(before)
        if others is not None:
            np.random.set_state(others[0])
            random.setstate(others[1])


def generator_states() -> dict[str, bytes]:
    """Return the states of the generators by the name of their library, to compare them."""
    numbers: Any = np.random.get_state()
    return {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "NumPy": numbers[1].tobytes() + repr(numbers[2:]).encode(),
        "Python": repr(random.getstate()).encode(),
    }
