"""Conduct of a module besides computing outputs from its float tensors, found by two training steps on a copy of it.

A module may count its steps in an integer buffer or an attribute, draw numbers, or need several samples in a batch. The
learners must know before the first round, because none of this is visible in the module's parameters. Modules made only
of layers that do none of this are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor, nn

from p2pfl.learning.local_state import LocalState, Slot, Step, encoded, kind_of
from p2pfl.learning.modules import generator_states, seeded

Place = tuple[str, bool, tuple[Step, ...]]
"""Name of a submodule, whether the value is in its class, and the steps to it."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Loss of a batch from outputs and targets, a scalar."""

PLAIN = frozenset(
    getattr(nn, name)
    for name in [
        "Sequential",
        "ModuleList",
        "Identity",
        "Flatten",
        "Unflatten",
        "Linear",
        "Bilinear",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "ConvTranspose3d",
        "ReLU",
        "ReLU6",
        "LeakyReLU",
        "PReLU",
        "ELU",
        "SELU",
        "CELU",
        "GELU",
        "SiLU",
        "Mish",
        "Tanh",
        "Sigmoid",
        "Hardtanh",
        "Hardswish",
        "Hardsigmoid",
        "Softplus",
        "Softsign",
        "LogSigmoid",
        "Tanhshrink",
        "Softshrink",
        "Hardshrink",
        "Threshold",
        "GLU",
        "Softmax",
        "LogSoftmax",
        "MaxPool1d",
        "MaxPool2d",
        "MaxPool3d",
        "AvgPool1d",
        "AvgPool2d",
        "AvgPool3d",
        "AdaptiveAvgPool1d",
        "AdaptiveAvgPool2d",
        "AdaptiveMaxPool1d",
        "AdaptiveMaxPool2d",
        "LayerNorm",
        "GroupNorm",
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "AlphaDropout",
    ]
)
"""Layers without state besides their parameters, which take any batch, and draw numbers in training at most."""

INTERNAL = frozenset(vars(nn.Module()))
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
COUNTERS = (int, float, list, dict, np.ndarray)
"""Types of variables outside of a function that may be state."""

WORDS = {"item": "[{!r}]", "cell": " variable {}", "global": " global {}", "hook": "{0[0]}[{0[1]}]"}
DEEPEST = 6  # attributes of attributes
NOT_STATE = (nn.Parameter, type, MethodType, BuiltinFunctionType, ModuleType, ReferenceType, torch.dtype)


@dataclass(frozen=True)
class Conduct:
    """Conduct of a module besides computing outputs from its float tensors.

    Attributes:
        state: the state that a node's vector carries.
        changed: names of all buffers, parameters and attributes that a forward pass in training changes.
        uncarried: those of them that a vector cannot carry.
        unsaved: those of them that files of the model lack: attributes, and buffers that are not persistent.
        drawn: names of constants that a module draws when it is made, and that files of the model lack as well.
        others: the libraries besides torch from whose global generator the module draws: "NumPy", "Python".
        draws_in_evaluation: whether it draws numbers in evaluation, from any generator.
        least: the fewest samples of a batch in training.
        least_evaluated: the fewest samples in an evaluation.
    """

    state: LocalState = field(default_factory=LocalState)
    changed: tuple[str, ...] = ()
    uncarried: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    draws_in_evaluation: bool = False
    least: int = 1
    least_evaluated: int = 1


def is_plain(module: nn.Module) -> bool:
    """Return whether a module consists of PLAIN layers that nobody has changed."""
    return all(
        type(part) in PLAIN
        and "forward" not in vars(part)
        and not (part._forward_hooks or part._forward_pre_hooks or part._buffers)  # noqa: SLF001
        for part in module.modules()
    )


def structure(module: nn.Module) -> tuple[Any, ...]:
    """Return a key that modules of one definition share: types, plain attributes and shapes of their submodules."""
    return tuple(
        (
            name,
            type(part),
            len(part._forward_hooks) + len(part._forward_pre_hooks),  # noqa: SLF001
            tuple((key, _short(value)) for key, value in vars(part).items() if key not in INTERNAL or key == "training"),
            tuple((key, None if b is None else (b.dtype, b.shape)) for key, b in part._buffers.items()),  # noqa: SLF001
        )
        for name, part in module.named_modules()
    )


def _short(value: Any) -> Any:
    """Return a plain value itself, and of others only the kind."""
    if isinstance(value, str | int | float | bool | None):
        return type(value), value
    return type(value), kind_of(value)


def probe(module: nn.Module, x: Tensor, y: Tensor, loss: Loss, batch_size: int) -> Conduct:
    """Return what a module does in a training step on samples, [n, ...]; if it cannot do one, what its buffers show.

    Args:
        module: a module of its own, which is changed.
        loss: the loss of a batch.
    """
    count = min(batch_size, len(x))
    whole = (x[:count], y[:count]) if count > 1 else (_twice(x), _twice(y))
    with seeded(0):
        module.train()
        seen, generators, finite = [_values(module)], generator_states(), True
        try:
            for _ in range(2):
                finite = _step(module, *whole, loss) and finite
                seen.append(_values(module))
        except Exception:  # of the user's module; the training reports it
            return _conduct_of(module, seen[:1])
        drawn = _differences(generators)
        least = 1 if not finite or _works(lambda: _step(module, x[:1], y[:1], loss)) else 2
        module.eval()
        generators = generator_states()
        with torch.no_grad():
            works = _works(lambda: _evaluates(module, _twice(x)))
            drawn_alone = _differences(generators)
            least_alone = 1 if not works or _works(lambda: _evaluates(module, x[:1])) else 2
    others = tuple(name for name in ("NumPy", "Python") if name in {*drawn, *drawn_alone})
    return replace(
        _conduct_of(module, seen),
        others=others,
        draws_in_evaluation=bool(drawn_alone),
        least=least,
        least_evaluated=least_alone,
    )


def drawn_constants(module: nn.Module, other: nn.Module) -> tuple[str, ...]:
    """Return the names of numbers, arrays and buffers that two modules of one definition do not have in common.

    What their `state_dict` contains does not count, nor do tensors in attributes, which hooks compute from parameters.

    Args:
        module, other: new modules, made with other seeds.
    """
    one, two, persistent = _values(module), _values(other), set(module.state_dict())
    buffers = dict(module.named_buffers())
    names = []
    for place, (kind, content) in one.items():
        own = not _is_of_torch(module.get_submodule(place[0]))
        constant = _name(place) in buffers or (own and kind is not None and kind[0] != "tensor" and len(place[2]) == 1)
        if constant and two.get(place) != (kind, content) and _name(place) not in persistent:
            names.append(_name(place))
    return tuple(names)


def _conduct_of(module: nn.Module, seen: Sequence[Mapping[Place, Any]]) -> Conduct:
    """Return the state of a module, and what has changed, from its values at several times."""
    known = dict(module.named_parameters()).keys() | {n for n, b in module.named_buffers() if b.is_floating_point()}
    persistent = set(module.state_dict())
    slots: list[Slot] = []
    stateful = any(values.get(place) != seen[0].get(place) for values in seen for place in values)
    changed, uncarried, unsaved = dict[str, None](), dict[str, None](), dict[str, None]()
    for place in dict.fromkeys(place for values in seen for place in values):
        part, in_class, steps = place
        name, whole = _name(place), _name((part, in_class, steps[:1]))
        moved = any(values.get(place) != seen[0].get(place) for values in seen)
        if moved:
            changed[whole] = None
            if name not in persistent:
                unsaved[whole] = None
        if name in known:
            continue
        kinds = {values.get(place, (None, None))[0] for values in seen}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None and (moved or _may_change(module, place, kind, stateful)):
            slots.append(Slot(name, part, steps, kind, in_class))
        elif moved:
            uncarried[whole] = None
    return Conduct(LocalState(slots), tuple(changed), tuple(uncarried), tuple(unsaved))


def _step(module: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> bool:
    """Do a training step without the optimiser's, and return whether it gives finite losses of all samples."""
    outputs = module(x)
    value = loss(outputs, y)
    moving = [parameter for parameter in module.parameters() if parameter.requires_grad]
    torch.autograd.grad(value, moving, allow_unused=True)
    return bool(value.isfinite()) and len(outputs) == len(x)


def _evaluates(module: nn.Module, x: Tensor) -> bool:
    outputs = module(x)
    return bool(outputs.isfinite().all()) and len(outputs) == len(x)


def _works(attempt: Callable[[], bool]) -> bool:
    """Return the result of an attempt; False if it raises an exception."""
    try:
        return attempt()
    except Exception:  # of the user's module
        return False


def _twice(samples: Tensor) -> Tensor:
    """Return two samples; if there is only one, twice the same."""
    return samples[:2] if len(samples) > 1 else samples.repeat(2, *[1] * (samples.ndim - 1))


def _differences(before: Mapping[str, bytes]) -> list[str]:
    return [name for name, state in generator_states().items() if state != before[name]]


def _name(place: Place) -> str:
    """Return the name of a value in messages and in the layout, such as "1.num_batches_tracked"."""
    part, in_class, steps = place
    way = "".join(WORDS.get(how, ".{}").format(key) for how, key in steps).removeprefix(".").removeprefix(" ")
    return f"{part}.{way}" if part else f"class {way}" if in_class else way


def _may_change(module: nn.Module, place: Place, kind: tuple[Any, ...], stateful: bool) -> bool:
    """Return whether a value may change later even if two steps have not changed it.

    It may if it is a buffer of one number, or a number in an attribute of a user's class whose module has other state: a
    phase, for example, that changes after many steps.
    """
    name, in_class, steps = place
    part = module.get_submodule(name)
    if in_class or len(steps) != 1:
        return False
    if steps[0][1] in part._buffers:  # noqa: SLF001
        return kind[0] == "tensor" and not kind[2]
    return stateful and kind[0] == "number" and not _is_of_torch(part)


def _is_of_torch(part: nn.Module) -> bool:
    return type(part).__module__.startswith("torch.")


def _values(module: nn.Module) -> dict[Place, Any]:
    """Return the kinds and the contents of everything that a module has, by place; see `_frozen`."""
    found: dict[Place, Any] = {}
    for name, part in module.named_modules():
        for key, tensor in [*part._parameters.items(), *part._buffers.items()]:  # noqa: SLF001
            found[name, False, (("attribute", key),)] = _frozen(tensor)
        entered = {id(part)}
        for steps, value in _attributes(vars(part), (), entered):
            found[name, False, steps] = value
        for attribute in HOOKS:
            for k, hook in enumerate(getattr(part, attribute).values()):
                for steps, value in _leaves(hook, (("hook", (attribute, k)),), entered):
                    found[name, False, steps] = value
        if not _is_of_torch(part):
            own = {key: value for key, value in vars(type(part)).items() if not key.startswith("__")}
            for steps, value in _attributes(own, (), entered):
                found[name, True, steps] = value
    return found


def _attributes(values: Mapping[str, Any], steps: tuple[Step, ...], entered: set[int]) -> Iterator[tuple[Any, Any]]:
    for key, value in values.items():
        if key not in INTERNAL:
            yield from _leaves(value, (*steps, ("attribute", key)), entered)


def _leaves(value: Any, steps: tuple[Step, ...], entered: set[int]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Yield the steps to each value inside a value, with its kind and content."""
    if isinstance(value, NOT_STATE) or id(value) in entered or len(steps) > DEEPEST:
        return
    inside = _inside(value) if kind_of(value) is None else None
    if inside is None:
        yield steps, _frozen(value)
        return
    entered.add(id(value))
    if isinstance(value, list | dict):
        yield (*steps, ("length", None)), (None, list(map(str, value)) if isinstance(value, dict) else len(value))
    for more, item in inside:
        if more[-1][0] != "attribute" or more[-1][1] not in INTERNAL:
            yield from _leaves(item, (*steps, *more), entered)


def _inside(value: Any) -> list[tuple[tuple[Step, ...], Any]] | None:
    """Return the values inside a value, with the steps to them; None if it is compared as a whole."""
    if isinstance(value, dict):
        return [((("item", key),), item) for key, item in value.items()]
    if isinstance(value, list):
        return [((("item", key),), item) for key, item in enumerate(value)]
    if isinstance(value, FunctionType):  # a method or a hook, which may count in a variable outside
        cells = [(("cell", k), _content(cell)) for k, cell in enumerate(value.__closure__ or ())]
        names = [name for name in value.__code__.co_names if name in value.__globals__]
        outside = [(("global", name), value.__globals__[name]) for name in names]
        return [((step,), item) for step, item in [*cells, *outside] if isinstance(item, COUNTERS)]
    if isinstance(value, nn.Module):  # one that is no registered submodule
        found: list[tuple[tuple[Step, ...], Any]] = []
        for name, part in value.named_modules():
            way = tuple(("attribute", key) for key in name.split(".") if name)
            found += [((*way, ("attribute", key)), each) for key, each in {**vars(part), **part._buffers}.items()]  # noqa: SLF001
        return found
    if hasattr(value, "__dict__") and not callable(value):
        return [((("attribute", key),), item) for key, item in vars(value).items()]
    return None


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return None


def _frozen(value: Any) -> tuple[Any, Any]:
    """Return the kind of a value, None if it cannot be carried, and something that shows whether it has changed."""
    kind = kind_of(value)
    if kind is not None:
        return kind, encoded(value)
    if isinstance(value, tuple | set | frozenset):
        return None, [_frozen(item) for item in value]
    try:
        return None, repr(value)
    except Exception:  # of a user's class
        return None, None
