"""A model as one flat float32 vector, and the layout that turns the vector into layers.

A layout may keep a part private: peers see the shared part, the node's learner sees the whole (`PrivateParameters`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import isfinite, prod, sqrt
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError

_BLOCK = 1 << 16  # values
Parameters = NDArray[np.float32]


"""float32, shape [P]. A value: it is replaced, never written in place, because peers hold references to it."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors in a flat vector, in order: first the trained tensors, then the rest.

    The rest are frozen parameters and float buffers (for example batch norm's running mean). They are averaged with
    those of the peers; the optimiser never changes them.

    Attributes:
        shapes: (name, shape) of every tensor, in the order of the vector.
        n_trained: number of values, from the start of the vector, that the optimiser updates.
        private: names of the tensors that stay on the node. Peers see the vector of the other tensors, float32 [S],
            whose layout is `shared`.
        local: names of the tensors at the end of the vector that also stay on the node: the encoded state of a module
            besides its float tensors, such as batch norm's count of batches; see p2pfl.learning.local_state.

    Raises:
        ConfigurationError: a private tensor does not exist, or no tensor would be shared.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    n_trained: int
    private: tuple[str, ...] = ()
    local: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.shapes if name not in self.local]
        for name in self.private:
            if name not in names:
                raise ConfigurationError(f"no tensor {name!r} to keep private; the tensors are: {', '.join(names)}")
        if self.private and set(names) <= set(self.private):
            raise ConfigurationError("all tensors are private; at least one must be shared")

    @cached_property
    def size(self) -> int:
        """P, the number of values."""
        return sum(prod(shape) for _, shape in self.shapes)

    @cached_property
    def places(self) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
        """(name, start, stop, shape) of every tensor."""
        places, start = [], 0
        for name, shape in self.shapes:
            stop = start + prod(shape)
            places.append((name, start, stop, shape))
            start = stop
        return tuple(places)

    @cached_property
    def unshared(self) -> tuple[str, ...]:
        """Names of the tensors that stay on the node: private ones and local state."""
        return self.private + self.local

    @cached_property
    def local_size(self) -> int:
        """Number of values of the local state, which are the last ones of the vector."""
        return sum(prod(shape) for name, shape in self.shapes if name in self.local)

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes that differ if names, shapes, order, the trained part or the private part differ.

        Local state does not count: it concerns no peer.
        """
        described = (f"{name} {list(shape)}" for name, shape in self.shapes if name not in self.local)
        text = f"p2pfl layout 1\n{self.n_trained}\n" + "\n".join(described)
        if self.private:
            text += f"\nprivate {sorted(self.private)}"
        return hashlib.sha256(text.encode()).digest()[:16]

    @cached_property
    def shared(self) -> Layout:
        """Layout of the shared values; this layout itself if everything is shared."""
        if not self.unshared:
            return self
        trained = sum(stop - start for name, start, stop, _ in self._shared_places if stop <= self.n_trained)
        return Layout(tuple((name, shape) for name, _, _, shape in self._shared_places), trained)

    @property
    def _shared_places(self) -> list[tuple[str, int, int, tuple[int, ...]]]:
        return [place for place in self.places if place[0] not in self.unshared]

    @cached_property
    def shared_slices(self) -> tuple[slice, ...]:
        """Slices of the shared values in the vector of all values, as few as possible, in order."""
        slices: list[slice] = []
        for _, start, stop, _ in self._shared_places:
            if slices and slices[-1].stop == start:
                slices[-1] = slice(slices[-1].start, stop)
            else:
                slices.append(slice(start, stop))
        return tuple(slices)

    def shared_of(self, params: Parameters) -> Parameters:
        """Return the shared values [S] of all values [P]; the same array or a view of it if they are contiguous."""
        if not self.unshared:
            return params
        slices = self.shared_slices
        return params[slices[0]] if len(slices) == 1 else np.concatenate([params[part] for part in slices])

    def with_private(self, shared: Parameters, params: Parameters) -> Parameters:
        """Return all values [P]: the shared ones [S] and the others of `params` [P]; inverse of `shared_of`."""
        if not self.unshared:
            return shared
        whole, start = params.copy(), 0
        for part in self.shared_slices:
            whole[part] = shared[start : start + part.stop - part.start]
            start += part.stop - part.start
        return whole

    def with_local(self, params: Parameters, initial: Callable[[], Parameters]) -> Parameters:
        """Return all values [P]: those of an earlier version, which had no local state, get that of `initial`.

        Raises:
            ConfigurationError: `params` has another size.
        """
        if len(params) == self.size:
            return params
        if len(params) != self.size - self.local_size:
            raise ConfigurationError(
                f"a model of the checkpoint has {len(params)} values, but the task's has {self.size}; its module now has"
                " another state: restore its definition, or move the checkpoint away to start from round 0"
            )
        return np.concatenate([params, initial()[len(params) :]])

    def unflatten(self, vector: Any) -> dict[str, Any]:
        """Return views of a vector of shape [..., P] (NumPy or torch) by name, each of shape `[..., *shape]`."""
        lead = tuple(vector.shape[:-1])
        return {name: vector[..., start:stop].reshape(lead + shape) for name, start, stop, shape in self.places}

    def flatten(self, tensors: Mapping[str, np.ndarray]) -> Parameters:
        """Return the flat vector of named arrays; the inverse of `unflatten`."""
        return np.concatenate([np.asarray(tensors[name], np.float32).reshape(-1) for name, _ in self.shapes])


def detached(params: Parameters) -> Parameters:
    """Return the parameters; if they are a view of a larger array, return a copy, so that the array can be freed."""
    return params if params.base is None else params.copy()


def problem(params: np.ndarray, size: int) -> str | None:
    """Return a short reason why `params` is not a valid model of `size` values, or None if it is."""
    if params.dtype != np.float32 or params.shape != (size,):
        return f"{params.dtype} of shape {list(params.shape)}, expected float32 of shape [{size}]"
    if not np.isfinite(params).all():
        return "a value is not finite"
    return None


def norm(params: Parameters) -> float:
    """Return the Euclidean norm of a model, float32 [P]. It is finite if, and only if, all values are."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(params, params))
        if not isfinite(square):  # large values may be the reason; in blocks, because float64 takes twice the memory
            blocks = (params[start : start + _BLOCK].astype(np.float64) for start in range(0, len(params), _BLOCK))
            square = plain_sum(float(np.dot(block, block)) for block in blocks)
    return sqrt(square)


def plain_sum(values: Iterable[float]) -> float:
    """Return the sum of numbers, added one after another. `sum` of floats rounds in another way since Python 3.12."""
    return reduce(add, values, 0)


def weighted_mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """Return the sum of weights[k] * models[k].

    Args:
        models: K vectors of shape [P], in an order that does not depend on their arrival.
        weights: K weights. They are not normalised, so they should sum to 1.

    Returns:
        float32, shape [P], a new array.
    """
    result: Parameters = np.array(weights, np.float32) @ np.array(models)
    return result


@dataclass(slots=True, eq=False)
class PrivateParameters:
    """The private part of a node's model. Policies and peers only see the vector [S] of the shared values.

    Each training continues with the private part of the last one. If nothing is private, all vectors pass unchanged. The
    private part includes local state; see p2pfl.parameters.Layout.

    Attributes:
        layout: the layout of all values.
        latest: the model with the newest private part, at first the node's initial model; float32, shape [P].
    """

    layout: Layout
    latest: Parameters

    def whole(self, shared: Parameters) -> Parameters:
        """Return any node's model [S], completed to [P] with the private part of this node."""
        return self.layout.with_private(shared, self.latest) if self.layout.unshared else shared

    def keep(self, trained: Parameters) -> Parameters:
        """Store the private part of a trained model [P], and return its shared part [S]."""
        if self.layout.unshared:
            self.latest = trained
        return self.layout.shared_of(trained)
