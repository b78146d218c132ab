"""Parts of a stack: the data of many nodes as tensors, models as rows of one array, and the steps of their training."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from operator import is_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.errors import ConfigurationError
from p2pfl.learning.kernels.batched_gradient import BatchedGradient, values_at_once
from p2pfl.learning.optimizers import Optimizer, State
from p2pfl.learning.row_randomness import RowGenerators
from p2pfl.learning.rule_gradients import Rows, follow, resting
from p2pfl.parameters import Parameters
from p2pfl.queries import Train

Orders = np.ndarray | Sequence[np.ndarray | None]
"""The order of each node's samples: int64 [K, n] for nodes with equally many, or one by one; None: as stored."""
GATHERED = 2**10  # nodes whose samples are put together at once
LARGEST_COPY = 2**20  # values of inputs that are put in order at once: 4 MiB


class StackedTraining:
    """Training of K models. A step trains the models that have a batch of one size left.

    Args:
        queries: one for each model. All or none have a `proximal`, and all rules have the same `batch_key`.
        start: the initial models, [K, P]; not modified.
        models: memory for the trained models, [K, P].
        n_trained: number of trained values of a model, from the start of the vector.
        kernel: computes the gradients.
        optimizer: the common optimiser, for at most `steps` steps.
        weights: weights of each model's objectives, [K, m]; None without objectives.
        shared: see p2pfl.learning.rule_gradients.shared_values.
        generators: those of the models, if the kernel draws random numbers.
        state: the state of the optimiser at the start, [K, n] or [K, 1]; changed in place. By default a new one.
        other_state: see p2pfl.learning.rule_gradients.follow.

    Attributes:
        state: the state of the optimiser after the steps so far.
        models: the models after the steps so far, [K, P]; undefined before the first step.
    """

    def __init__(
        self,
        queries: Sequence[Train],
        start: Tensor,
        models: Tensor,
        *,
        n_trained: int,
        kernel: BatchedGradient,
        optimizer: Optimizer,
        steps: int,
        weights: Tensor | None,
        shared: Tensor | None,
        generators: RowGenerators | None = None,
        state: State | None = None,
        other_state: State | None = None,
    ) -> None:
        rules, device = [query.rule for query in queries], start.device
        self.models = models
        self._start = start
        self._fresh = True  # `models` is still empty
        self._n = n_trained
        self._kernel = kernel
        self._generators = generators
        self._optimizer = optimizer
        self._weights = weights
        self.state = optimizer.start(start[:, :n_trained], steps) if state is None else state
        self._following = follow(rules, start[:, :n_trained], optimizer, steps, shared, other_state=other_state)
        self._still = resting(rules[0], shared)
        self._rest = None if self._still is None else start[:, self._still]
        self._anchors: Tensor | None = None
        if pairs := [query.proximal for query in queries if query.proximal is not None]:
            self._anchors = torch.from_numpy(np.array([anchor for _, anchor in pairs])).to(device)[:, :n_trained]
            mu = torch.tensor([mu for mu, _ in pairs], device=device).unsqueeze(1)
            self._mu = mu if shared is None else mu * shared

    def step(self, rows: Rows, x: Tensor, y: Tensor) -> None:
        """Train the models of k rows on one batch each: x and y of [k, b, ...]."""
        n, start = self._n, self._start
        whole = x.shape[0] == start.shape[0]  # `len` of a tensor takes microseconds
        if self._fresh and not (whole and n == start.shape[1]):
            self.models.copy_(start)
            self._fresh = False
        part = start if self._fresh else self.models[rows]
        if self._generators is None:
            gradient = self._gradient(part, rows, x, y)
        else:
            places = range(len(start))[rows] if isinstance(rows, slice) else rows.tolist()
            with self._generators.drawing(places):
                gradient = self._gradient(part, rows, x, y)
        states = {name: tensor[rows] for name, tensor in self.state.items()}
        if whole:
            self._optimizer.step(part[:, :n], gradient, states, self.models[:, :n])
            self._hold(self.models, rows)
            self._fresh = False
            return
        self._optimizer.step(part[:, :n], gradient, states, part[:, :n])
        self._hold(part, rows)
        if not isinstance(rows, slice):  # `part` and `states` are copies in this case
            self.models[rows] = part
            for name, tensor in states.items():
                self.state[name][rows] = tensor

    def _gradient(self, part: Tensor, rows: Rows, x: Tensor, y: Tensor) -> Tensor:
        n, own = self._n, None if self._weights is None else self._weights[rows]

        def slope(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self._kernel.gradient(torch.cat([point, part[:, n:]], 1) if n < part.shape[1] else point, x, y, own)

        if self._following is None:
            gradient = self._kernel.gradient(part, x, y, own)
        else:
            gradient = self._following(slope, part[:, :n], x, y, rows)
        if self._anchors is not None:
            gradient.add_(self._mu[rows] * (part[:, :n] - self._anchors[rows]))
        return gradient

    def _hold(self, models: Tensor, rows: Rows) -> None:
        """Restore the values of models [k, P] that the rule does not change."""
        if self._still is not None and self._rest is not None:
            models[:, self._still] = self._rest[rows]


class RowCache:
    """Models that are rows of one array. They can be stacked again without a copy.

    Args:
        models: the models, [K, P], on any device.

    Attributes:
        tensor: the models on their device.
        array: the models on the CPU; on a CPU the memory of `tensor`.
        rows: the rows of `array`.
    """

    def __init__(self, models: Tensor) -> None:
        self.tensor = models
        self.array = _on_cpu(models)
        self._places: dict[int, int] = {}  # of the rows, by their ids; filled at the first use

    @cached_property
    def rows(self) -> list[Parameters]:
        return list(self.array)

    def stack(self, models: Sequence[Parameters]) -> Tensor:
        """Return models as the rows of a tensor on the device, [K, P], which must not be modified."""
        if len(models) == len(self.rows) and all(map(is_, models, self.rows)):
            return self.tensor
        return torch.from_numpy(np.array(models)).to(self.tensor.device)

    def places(self, models: Sequence[Parameters]) -> list[int] | None:
        """Return the row of each model; None if one of them is no row of the array."""
        if not self._places:
            self._places = {id(row): k for k, row in enumerate(self.rows)}
        rows = [self._places.get(id(model), -1) for model in models]
        if -1 in rows:  # a budget gives each receiver its own view of a row
            rows = [self._row_under(model) if row < 0 else row for row, model in zip(rows, models, strict=True)]
        return None if -1 in rows else rows

    def select(self, models: Sequence[Parameters]) -> tuple[np.ndarray, list[int]]:
        """Return an array that contains all models as rows, and the row of each."""
        rows = self.places(models)
        if rows is not None:
            return self.array, rows
        others = {id(model): model for model in models}
        places = {key: k for k, key in enumerate(others)}
        return np.array(list(others.values())), [places[id(model)] for model in models]

    def _row_under(self, model: Parameters) -> int:
        """Return the row of which a model is a view; -1 if there is none."""
        if model.base is not self.array or model.shape != self.array.shape[1:] or model.strides != self.array.strides[1:]:
            return -1
        row, rest = divmod(_address(model) - _address(self.array), self.array.strides[0])
        return -1 if rest else row


def _on_cpu(models: Tensor) -> np.ndarray:
    """Return models as an array; from a GPU through memory that is locked, which is an order of magnitude faster."""
    if models.device.type != "cuda":
        return models.cpu().numpy()
    host = torch.empty(models.shape, dtype=models.dtype, pin_memory=True)  # torch keeps and reuses this memory
    return host.copy_(models).numpy()


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class StackedData:
    """Concatenated samples of the nodes in one split; data that several nodes share are stored once.

    Attributes:
        counts: number of samples of each node.
        offsets: place of each node's first sample.
        shared: whether several nodes have the same samples.
        width: number of values of an input.
    """

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)
        self.offsets: NDArray[np.int64] = np.empty(0, np.int64)
        self.shared = False
        self._total = 0
        self._places: list[tuple[int, int]] = []  # count and offset of each node, until all are there
        self._piles = _Pile(), _Pile()  # of inputs and of targets, until all are there
        self._known: dict[tuple[int, int], tuple[int, Tensor]] = {}  # offset of the samples that still exist, by their ids
        self._index: NDArray[np.int64] | None = None
        self._last: tuple[list[int], int, tuple[Tensor, Tensor]] | None = None

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor] | None]) -> StackedData:
        """Return the data of all nodes, which must have the split."""
        data = cls()
        for part in parts:
            if part is None:
                raise ConfigurationError("some nodes lack a split that others have")
            data.add(*part)
        return data.closed()

    @classmethod
    def of_rows(
        cls,
        x: Tensor,
        y: Tensor,
        counts: NDArray[np.int64],
        offsets: NDArray[np.int64],
        index: NDArray[np.int64] | None = None,
    ) -> StackedData:
        """Return data whose arrays exist already; several nodes may have the same samples.

        Args:
            x, y: inputs and targets, [S, ...].
            counts: number of samples of each node, [N].
            offsets: place of the first of them in `x`, or in `index`, [N].
            index: the samples by their rows of `x`, [I]; by default all in order.
        """
        data = cls()
        data.counts, data.offsets, data._x, data._y, data._index = counts, offsets, x, y, index
        data.shared = len(np.unique(offsets)) < len(offsets)
        data.width = max(1, int(np.prod(x.shape[1:])))
        return data

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add the samples of the next node. They are copied soon, and need not be kept."""
        key = id(x), id(y)
        if key in self._known:
            self.shared = True
        else:
            self._known[key] = self._total, y
            weakref.finalize(x, self._known.pop, key, None).atexit = False
            self._total += len(x)
            for pile, part in zip(self._piles, (x, y), strict=True):
                pile.add(part)
        self._places.append((len(x), self._known[key][0]))

    def closed(self) -> StackedData:
        """Return this object after the last node."""
        self.counts, self.offsets = np.array(self._places, np.int64).T.copy()
        self._x, self._y = (pile.joined() for pile in self._piles)
        self.width = max(1, int(np.prod(self._x.shape[1:])))
        del self._places, self._piles, self._known
        return self

    def to(self, device: torch.device) -> StackedData:
        """Return these data on a device."""
        moved = copy(self)
        moved._x, moved._y = self._x.to(device), self._y.to(device)  # noqa: SLF001
        return moved

    @property
    def copies(self) -> bool:
        """Whether `samples` copies them."""
        return self._index is not None

    def samples(self, node: int) -> tuple[Tensor, Tensor]:
        """Return the samples of one node: x and y of [n, ...], which are views unless there is an index."""
        part = slice(self.offsets[node], self.offsets[node] + self.counts[node])
        if self._index is not None:
            return self._pick(np.arange(part.start, part.stop))
        return self._x[part], self._y[part]

    def whole(self, nodes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        """Return all `count` samples of each node: x and y of [K, count, ...]. Copy only if they are not adjacent."""
        last = self._last
        if last is None or last[:2] != (nodes, count):  # consecutive requests are usually equal
            self._last = last = list(nodes), count, self._whole(nodes, count)
        return last[2]

    def _whole(self, nodes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        starts = self.offsets[list(nodes)]
        if self._index is not None:
            return self._pick(starts[:, None] + np.arange(count))
        gaps = starts[1:] - starts[:-1]
        if not gaps.any():
            samples = slice(starts[0], starts[0] + count)
            x, y = self._x[samples], self._y[samples]
            return x.expand(len(nodes), *x.shape), y.expand(len(nodes), *y.shape)
        if (gaps == count).all():
            samples = slice(starts[0], starts[-1] + count)
            x, y = self._x[samples], self._y[samples]
            return x.view(-1, count, *x.shape[1:]), y.view(-1, count, *y.shape[1:])
        return self._pick(starts[:, None] + np.arange(count))

    def batches(self, nodes: Sequence[int], order: Orders, size: int) -> tuple[Tensor, Tensor] | None:
        """Return all whole batches of nodes with equally many samples, each in its order: [batches, K, size, ...].

        None if the samples have no order, or are too many to be copied at once.
        """
        orders = order if isinstance(order, np.ndarray) else [one for one in order if one is not None]
        if not len(orders) or len(orders) * len(orders[0]) * self.width > values_at_once(LARGEST_COPY, self._x.device):
            return None
        count = len(orders[0]) // size
        index = self.offsets[list(nodes), None] + np.array(orders)
        return self._pick(index[:, : count * size].reshape(len(index), count, size).swapaxes(0, 1).copy())

    def batch(self, nodes: Sequence[int], order: Orders, starts: Sequence[int], size: int) -> tuple[Tensor, Tensor]:
        """Return samples start..start+size of each node in its order (None: as stored): x and y of [K, size, ...]."""
        if isinstance(order, np.ndarray):  # nodes with equally many samples, which start at the same one
            return self._pick(self.offsets[list(nodes), None] + order[:, starts[0] : starts[0] + size])
        if all(o is None for o in order):
            return self.whole(nodes, size)
        picks = [np.arange(s, s + size) if o is None else o[s : s + size] for o, s in zip(order, starts, strict=True)]
        return self._pick(self.offsets[list(nodes), None] + np.array(picks))

    def _pick(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(index if self._index is None else self._index[index]).to(self._x.device)
        flat, shape = chosen.flatten(), chosen.shape
        x, y = (part.index_select(0, flat).view(*shape, *part.shape[1:]) for part in (self._x, self._y))
        return x, y


class _Pile:
    """Tensors that are put together as they come, so that a million small ones need no objects."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._loose: list[Tensor] = []

    def add(self, part: Tensor) -> None:
        self._loose.append(part)
        if len(self._loose) == GATHERED:
            self._gather()

    def _gather(self) -> None:
        if self._loose:
            self._blocks.append(torch.cat(self._loose))
            self._loose.clear()

    def joined(self) -> Tensor:
        """Return all as one tensor. Each block is freed once it is copied, so that little of the data exists twice."""
        self._gather()
        blocks = self._blocks
        if len({(block.dtype, block.shape[1:]) for block in blocks}) > 1:
            return torch.cat(blocks)  # which promotes types, or raises an error
        if len(blocks) == 1:
            return blocks.pop()
        end = sum(map(len, blocks))
        joined = torch.empty((end, *blocks[0].shape[1:]), dtype=blocks[0].dtype, device=blocks[0].device)
        while blocks:
            block = blocks.pop()
            joined[end - len(block) : end] = block
            end -= len(block)
        return joined
