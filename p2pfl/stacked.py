"""Many nodes' training as one tensor program, with the results of training them one by one.

Rows of a stack are nodes. Nodes whose next batch has the same size take their step together; so nothing is padded and no
sample is masked, and each node sees the batches that it would see alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.kernels import kernel_for
from p2pfl.memory import Company
from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.policy import Split
from p2pfl.rules import Rule, Scalarised, kind
from p2pfl.slopes import Slopes
from p2pfl.tally import Tally
from p2pfl.task import Learner, evaluate, slopes, tally, train
from p2pfl.torch_learner import TorchLearner, orders
from p2pfl.torch_rules import follow, plan, resting, shared_values

if TYPE_CHECKING:
    from p2pfl.torch_task import TorchTask

CHUNK = 2**18  # values of inputs evaluated at once: 1 MiB, which stays in the cache
MOST_CONVOLUTION = 500_000  # FLOP per sample from which on torch's grouped convolutions lose against a loop over nodes
LARGEST_MIX = 2**26  # values of models that are averaged together: 256 MiB if none occurs twice


class TrainJob(msgspec.Struct, frozen=True, gc=False):
    """A call of `Learner.train` at one node."""

    node: int
    params: Parameters
    round: int
    epochs: int = 1
    proximal: tuple[float, Parameters] | None = None
    purpose: str = "train"
    rule: Rule | None = None


class MeanJob(msgspec.Struct, frozen=True, gc=False):
    """A weighted mean of models, for one node; see `p2pfl.parameters.weighted_mean`."""

    node: int
    models: Sequence[Parameters]
    weights: Sequence[float]


class LossJob(msgspec.Struct, frozen=True, gc=False):
    """A call of `Learner.loss` at one node."""

    node: int
    stack: Sequence[Parameters]
    split: Split = "validation"


class EvaluateJob(msgspec.Struct, frozen=True, gc=False):
    """A call of `Learner.evaluate` at one node."""

    node: int
    stack: Sequence[Parameters]
    splits: Sequence[Split]
    memory: Company | None = None


class TallyJob(msgspec.Struct, frozen=True, gc=False):
    """A call of `Grouped.tally` at one node."""

    node: int
    params: Parameters


class SlopesJob(msgspec.Struct, frozen=True, gc=False):
    """A call of `Sloped.slopes` at one node."""

    node: int
    params: Parameters


class OneByOne:
    """Any learners, each asked in turn; by the place of their node."""

    def __init__(self, learners: Sequence[Learner] | Mapping[int, Learner]) -> None:
        self._learners = learners

    def train(self, jobs: Sequence[TrainJob]) -> list[Parameters]:
        return [
            train(
                self._learners[job.node],
                job.params,
                round=job.round,
                epochs=job.epochs,
                proximal=job.proximal,
                purpose=job.purpose,
                rule=job.rule,
            )
            for job in jobs
        ]

    def mean(self, jobs: Sequence[MeanJob]) -> list[Parameters]:
        return [weighted_mean(job.models, job.weights) for job in jobs]

    def loss(self, jobs: Sequence[LossJob]) -> list[np.ndarray]:
        return [self._learners[job.node].loss(job.stack, split=job.split) for job in jobs]

    def evaluate(self, jobs: Sequence[EvaluateJob]) -> list[list[dict[str, float]]]:
        return [evaluate(self._learners[job.node], job.stack, job.splits, job.memory) for job in jobs]

    def tally(self, jobs: Sequence[TallyJob]) -> list[Tally]:
        return [tally(self._learners[job.node], job.params) for job in jobs]

    def slopes(self, jobs: Sequence[SlopesJob]) -> list[Slopes]:
        return [slopes(self._learners[job.node], job.params) for job in jobs]


class Stacked:
    """TorchLearners of one architecture, computed together.

    Raises:
        ConfigurationError: the learners' tasks differ in more than their data, or their module cannot be stacked, or would
            be slower so.
    """

    def __init__(self, learners: Sequence[TorchLearner], dense: bool = True) -> None:
        self._task = _common_task(learners)
        self._learners = learners
        if learners[0].device.type == "cpu" and convolution_flops(self._task) > MOST_CONVOLUTION:
            raise ConfigurationError("large convolutions are faster one by one on a CPU")
        self._draws = [learner.draws for learner in learners]
        self._device = learners[0].device
        own = [learner.task.weights(self._device) for learner in learners]
        self._weights = None if self._task.objectives is None else torch.stack([w for w in own if w is not None])
        self._kernel = kernel_for(self._task, dense)
        self._shared = shared_values(self._task.layout, self._device)
        splits = dict.fromkeys(split for learner in learners for split in learner.data)
        self._data = {split: _Shelf([learner.data.get(split) for learner in learners]) for split in splits}
        self._trained = self._means = _Block(np.empty((0, 0), np.float32))
        self._equal_counts = len(set(self._data["train"].counts.tolist())) == 1

    def train(self, jobs: Sequence[TrainJob]) -> list[Parameters]:
        """Return what `train` at each job's node returns, to about 1e-6 relative (sums run in another order)."""
        results: list[Parameters] = [np.empty(0, np.float32)] * len(jobs)
        groups = defaultdict(list)
        for k, job in enumerate(jobs):
            groups[job.epochs, job.proximal is None, kind(job.rule)].append(k)
        counts = self._data["train"].counts
        for ks in groups.values():
            if not self._equal_counts:  # those with more samples first: who has a full batch left is then at the front
                ks.sort(key=lambda k: (-counts[jobs[k].node], jobs[k].node))
            for k, row in zip(ks, self._train([jobs[k] for k in ks]), strict=True):
                results[k] = row
        return results

    def mean(self, jobs: Sequence[MeanJob]) -> Sequence[Parameters]:
        """Return the means, as rows of one array where the models are small enough to be put side by side."""
        models = [model for job in jobs for model in job.models]
        if len(jobs) == 1 or len(models) * self._task.layout.size > LARGEST_MIX:
            return [weighted_mean(job.models, job.weights) for job in jobs]
        array, rows = self._trained.select(models)
        weights = np.array([weight for job in jobs for weight in job.weights], np.float32)
        starts = np.array([0, *accumulate([len(job.models) for job in jobs])])
        mean = functional.embedding_bag(
            torch.from_numpy(np.array(rows)),
            torch.from_numpy(array),
            torch.from_numpy(starts),
            mode="sum",
            per_sample_weights=torch.from_numpy(weights),
            include_last_offset=True,
        )
        self._means = _Block(mean.numpy())
        return self._means.rows

    def loss(self, jobs: Sequence[LossJob]) -> list[np.ndarray]:
        results = [np.full(len(job.stack), np.nan) for job in jobs]
        for split in {job.split for job in jobs} & self._data.keys():
            rows = [(k, j, job.node) for k, job in enumerate(jobs) if job.split == split for j in range(len(job.stack))]
            params = [jobs[k].stack[j] for k, j, _ in rows]
            for row, figures in self._evaluate(params, [node for *_, node in rows], split):
                k, j, _ = rows[row]
                results[k][j] = figures["loss"]
        return results

    def evaluate(self, jobs: Sequence[EvaluateJob]) -> list[list[dict[str, float]]]:
        results: list[list[dict[str, float]]] = [[{} for _ in job.stack] for job in jobs]
        for k, job in enumerate(jobs):
            if job.memory is not None:  # nobody shares a memory: each on its own
                results[k] = evaluate(self._learners[job.node], job.stack, job.splits, job.memory)
        asked = dict.fromkeys(
            split for job in jobs if job.memory is None for split in job.splits
        )  # in order: that of the columns that users see
        for split in [split for split in asked if split in self._data]:
            mine = [(k, job) for k, job in enumerate(jobs) if split in job.splits and job.memory is None]
            rows = [(k, j, job.node) for k, job in mine for j in range(len(job.stack))]
            params = [jobs[k].stack[j] for k, j, _ in rows]
            for row, figures in self._evaluate(params, [node for *_, node in rows], split):
                k, j, _ = rows[row]
                results[k][j] |= {f"{split}_{name}": value for name, value in figures.items()}
        return results

    def tally(self, jobs: Sequence[TallyJob]) -> list[Tally]:
        """Return the tallies, made one by one: each is one pass without gradients."""
        return [tally(self._learners[job.node], job.params) for job in jobs]

    def slopes(self, jobs: Sequence[SlopesJob]) -> list[Slopes]:
        """Return the slopes, made one by one: each is of all samples at once."""
        return [slopes(self._learners[job.node], job.params) for job in jobs]

    @torch.no_grad()
    def _train(self, jobs: Sequence[TrainJob]) -> list[Parameters]:
        nodes = [job.node for job in jobs]
        flat = torch.from_numpy(self._means.stack([job.params for job in jobs])).to(self._device)
        new = torch.empty_like(flat)
        fresh = True  # nothing is in `new` yet
        anchors = None
        if jobs[0].proximal is not None:
            anchors = torch.from_numpy(np.array([job.proximal[1] for job in jobs if job.proximal])).to(self._device)
            mu = torch.tensor([job.proximal[0] for job in jobs if job.proximal], device=self._device).unsqueeze(1)
            if self._shared is not None:
                mu = mu * self._shared
        weights = None if self._weights is None else self._weights[nodes]
        if scalarised := [job.rule.weights for job in jobs if isinstance(job.rule, Scalarised)]:
            weights = torch.tensor(np.array(scalarised), dtype=torch.float32, device=self._device)
        n, shelf = self._task.layout.n_trained, self._data["train"]
        counts = shelf.counts[nodes]  # in descending order
        most = int(counts[0])
        optimizer, batch_size, epochs = plan(jobs[0].rule, self._task.optimizer, self._task.batch_size, jobs[0].epochs, most)
        steps = epochs * -(-most // batch_size)
        state = optimizer.start(flat[:, :n], steps)
        following = follow([job.rule for job in jobs], flat[:, :n], optimizer, steps, self._shared)
        still = resting(jobs[0].rule, self._shared)
        rest = None if still is None else flat[:, still]

        def hold(values: Tensor, rows: slice | Tensor) -> None:
            """Give back to values [k, P] what the rule leaves as it is."""
            if still is not None and rest is not None:
                values[:, still] = rest[rows]

        def step(rows: slice | Tensor, x: Tensor, y: Tensor) -> None:
            nonlocal fresh
            whole = len(x) == len(jobs)
            if fresh and not (whole and n == flat.shape[1]):
                new.copy_(flat)
                fresh = False
            part = flat if fresh else new[rows]
            own = None if weights is None else weights[rows]

            def slope(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
                return self._kernel.gradient(torch.cat([point, part[:, n:]], 1) if n < part.shape[1] else point, x, y, own)

            if following is None:
                gradient = self._kernel.gradient(part, x, y, own)
            else:
                gradient = following(slope, part[:, :n], x, y, rows)
            if anchors is not None:
                gradient.add_(mu[rows] * (part[:, :n] - anchors[rows, :n]))
            states = {name: tensor[rows] for name, tensor in state.items()}
            if whole:
                optimizer.step(part[:, :n], gradient, states, new[:, :n])
                hold(new, rows)
                fresh = False
                return
            optimizer.step(part[:, :n], gradient, states, part[:, :n])
            hold(part, rows)
            if not isinstance(rows, slice):  # then `part` and `states` are copies
                new[rows] = part
                for name, tensor in states.items():
                    state[name][rows] = tensor

        permutations = self._orders(jobs, counts.tolist(), batch_size, epochs)
        for epoch in range(epochs):
            order = [p[epoch] for p in permutations]
            for s in range(counts[0] // batch_size):
                k = int(np.count_nonzero(counts >= (s + 1) * batch_size))  # nodes with a full batch left: the first k
                step(slice(k), *shelf.batch(nodes[:k], order[:k], [s * batch_size] * k, batch_size))
            for size, rows in _by_value(counts % batch_size):
                picked = rows.tolist()
                where = slice(None) if len(picked) == len(jobs) else torch.from_numpy(rows)
                starts = (counts[rows] - size).tolist()
                batch = shelf.batch([nodes[r] for r in picked], [order[r] for r in picked], starts, size)
                step(where, *batch)
        finite = new.sum(1).isfinite()
        if not finite.all():
            job = jobs[int((~finite).nonzero()[0])]
            raise DivergenceError(self._draws[job.node].name, job.round)
        self._trained = _Block(new.cpu().numpy())
        return self._trained.rows

    def _orders(
        self, jobs: Sequence[TrainJob], counts: Sequence[int], batch_size: int, epochs: int
    ) -> list[list[np.ndarray] | list[None]]:
        """Return the order of each job's samples in each epoch."""
        if counts[0] <= batch_size:  # no node has more than one batch
            return [[None] * epochs] * len(jobs)
        return [
            orders(self._draws[job.node], job.round, job.purpose, count, batch_size, epochs)
            for job, count in zip(jobs, counts, strict=True)
        ]

    @torch.no_grad()
    def _evaluate(
        self, params: Sequence[Parameters], nodes: Sequence[int], split: Split
    ) -> Iterable[tuple[int, dict[str, float]]]:
        """Yield (row, figures by name) of each model on its node's data."""
        shelf = self._data[split]
        for count, rows in _by_value(shelf.counts[list(nodes)]):
            rows = rows[np.argsort(shelf.offsets[[nodes[r] for r in rows]], kind="stable")]  # equal data side by side
            per_chunk = max(2, CHUNK // (count * shelf.width))
            for chunk in np.array_split(rows, -(-len(rows) // per_chunk)):
                picked = chunk.tolist()
                flat = torch.from_numpy(self._trained.stack([params[r] for r in picked])).to(self._device)
                x, y = shelf.whole([nodes[r] for r in picked], count)
                figures = self._figures([nodes[r] for r in picked], self._kernel.outputs(flat, x), y)
                for row, *values in zip(picked, *(column.tolist() for column in figures.values()), strict=True):
                    yield row, dict(zip(figures, values, strict=True))

    def _figures(self, nodes: Sequence[int], outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return what is reported of outputs and targets of [K, n, ...], by name: [K] each."""
        if self._weights is not None:
            return vmap(self._task.figures)(outputs, y, self._weights[list(nodes)])
        shape, outputs, y = outputs.shape[:2], outputs.flatten(0, 1), y.flatten(0, 1)
        losses, measures = self._task.loss(outputs, y), self._task.measure(outputs, y)
        return {"loss": losses.view(shape).mean(1), self._task.metric: measures.view(shape).mean(1)}


class _Block:
    """Models that were made as the rows of one array, so that they need not be copied to be used together again."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.rows: list[Parameters] = list(array)

    def stack(self, models: Sequence[Parameters]) -> np.ndarray:
        """Return models as the rows of an array, [K, P], not to be written."""
        if len(models) == len(self.rows) and all(a is b for a, b in zip(models, self.rows, strict=True)):
            return self.array
        return np.array(models)

    def select(self, models: Sequence[Parameters]) -> tuple[np.ndarray, list[int]]:
        """Return an array that has all models as rows, and the row of each."""
        places = {id(row): k for k, row in enumerate(self.rows)}
        try:
            return self.array, [places[id(model)] for model in models]
        except KeyError:
            others = {id(model): model for model in models}
            places = {key: k for k, key in enumerate(others)}
            return np.array(list(others.values())), [places[id(model)] for model in models]


class _Shelf:
    """The nodes' samples of one split, end to end; data that several nodes share stands there once."""

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor] | None]) -> None:
        starts: dict[tuple[int, int], int] = {}
        kept: list[tuple[Tensor, Tensor]] = []
        total, offsets = 0, []
        for part in parts:
            if part is None:
                raise ConfigurationError("some nodes lack a split that others have")
            key = id(part[0]), id(part[1])
            if key not in starts:
                starts[key] = total
                kept.append(part)
                total += len(part[0])
            offsets.append(starts[key])
        self.counts = np.array([len(part[0]) for part in parts if part is not None])
        self.offsets = np.array(offsets)
        self._x = torch.cat([x for x, _ in kept])
        self._y = torch.cat([y for _, y in kept])
        self.width = max(1, int(np.prod(self._x.shape[1:])))
        self._last: tuple[list[int], int, tuple[Tensor, Tensor]] | None = None

    def whole(self, nodes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        """Return all `count` samples of each node: x and y of [K, count, ...]. Copies only what does not lie together."""
        if self._last is None or self._last[:2] != (nodes, count):  # mostly the same nodes ask for the same again
            self._last = list(nodes), count, self._whole(nodes, count)
        return self._last[2]

    def _whole(self, nodes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        starts = self.offsets[list(nodes)]
        gaps = set(np.diff(starts).tolist())
        if gaps <= {0}:
            samples = slice(starts[0], starts[0] + count)
            x, y = self._x[samples], self._y[samples]
            return x.expand(len(nodes), *x.shape), y.expand(len(nodes), *y.shape)
        if gaps == {count}:
            samples = slice(starts[0], starts[-1] + count)
            x, y = self._x[samples], self._y[samples]
            return x.view(-1, count, *x.shape[1:]), y.view(-1, count, *y.shape[1:])
        return self._pick(starts[:, None] + np.arange(count))

    def batch(
        self, nodes: Sequence[int], order: Sequence[np.ndarray | None], starts: Sequence[int], size: int
    ) -> tuple[Tensor, Tensor]:
        """Return samples start..start+size of each node in its order (None: as they lie): x and y of [K, size, ...]."""
        if all(o is None for o in order):
            return self.whole(nodes, size)
        picks = [np.arange(s, s + size) if o is None else o[s : s + size] for o, s in zip(order, starts, strict=True)]
        return self._pick(self.offsets[list(nodes), None] + np.array(picks))

    def _pick(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(index).to(self._x.device)
        return self._x[chosen], self._y[chosen]


def _common_task(learners: Sequence[TorchLearner]) -> TorchTask:
    """Return one of the learners' tasks after checking that all are the same but for their data."""
    first = learners[0].task
    for learner in learners[1:]:
        task = learner.task
        for what, same in (
            ("layout", task.layout == first.layout),
            ("module", repr(task.template) == repr(first.template)),
            ("loss", task.loss == first.loss and task.measure == first.measure),
            ("objectives", task.objectives == first.objectives),
            ("optimizer", task.optimizer == first.optimizer),
            ("batch size", task.batch_size == first.batch_size),
        ):
            if not same:
                raise ConfigurationError(f"nodes cannot be stacked: their tasks differ in {what}")
    return first


def convolution_flops(task: TorchTask) -> int:
    """Return how many FLOP a task's module spends on convolutions for one sample."""
    if not any(isinstance(part, nn.modules.conv._ConvNd) for part in task.template.modules()):
        return 0
    from torch.utils.flop_counter import FlopCounterMode

    module = deepcopy(task.template).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(task.data["train"].x[:1])
    return int(counter.get_flop_counts()["Global"].get(torch.ops.aten.convolution, 0))


def _by_value(values: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
    """Yield (value, positions that have it) for every value but 0, the greatest first."""
    for value in sorted(set(values.tolist()) - {0}, reverse=True):
        yield value, np.flatnonzero(values == value)
