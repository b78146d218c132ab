"""Training and evaluation of many nodes as one tensor program: the same computations as one node after another, but faster.

**What is stacked.** Nodes whose tasks differ in nothing but their data have models of one layout, so that K of them are the
rows of one array, [K, P]. A kernel (p2pfl.learning.kernels) computes the gradients of all rows with few large products, and
the optimiser steps on the whole array. Tasks that differ, or a module that couples the samples of a batch or that torch
cannot map over rows, are refused; the simulator then notes the reason and uses a SequentialLearner.

**When.** The simulator collects the queries that nodes ask at one instant, and hands over those of one name together.
Trainings are grouped: equal epochs, rule, learning rate, and presence of a proximal term. Within a group, nodes with more
full batches come first. Nodes whose next batch has the same size make their step together. Therefore nothing is padded and
no sample is masked: each node uses the same batches as when it trains alone.

**Which bits are equal.** The order of the samples and the seeds of random layers are those of a TorchLearner, because each
row has the generators of its own node. Sums over a batch are taken in another order, so that trained models agree within
about 1e-6 relative. The same stack gives the same bits in each run. Smaller stacks would change the last bits: a stack is
never divided among processes, and in one process only at multiples of the kernel's `alignment`.

**Copies.** The trained and the averaged models of a round stay rows of one array (`RowCache`), so that the next query stacks
them again without a copy. Parts of a stack fit into the cache of the processor (`PART`, `CHUNK`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from p2pfl.cohort import IdsOfEach
from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.learner import Learner
from p2pfl.learning.batched_training import Orders, RowCache, StackedData, StackedTraining
from p2pfl.learning.dense import occasion, orders
from p2pfl.learning.kernels.batched_gradient import ON_GPU, values_at_once
from p2pfl.learning.kernels.kernel import VmapKernel, kernel_for
from p2pfl.learning.losses import of_each
from p2pfl.learning.modules import computes_alike
from p2pfl.learning.optimizers import LastingState, at_round, lasting
from p2pfl.learning.private_training import Node, PrivateTraining
from p2pfl.learning.row_randomness import RowGenerators
from p2pfl.learning.rule_gradients import most_steps, plan, shared_values
from p2pfl.learning.torch_learner import TorchLearner, batch_sizes, check_batches, evaluation_seed, least_batch, module_seed
from p2pfl.learning.torch_problem import TorchProblem
from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.privacy import steps_of
from p2pfl.queries import Clip, Combine, Evaluate, Loss, Losses, Mean, NodeQuery, R, Split, Train
from p2pfl.random_streams import RandomStreams, StreamsOfEach, permutations
from p2pfl.robust.batches import Rows, clip_together, combine_together
from p2pfl.robust.candidates import Combined
from p2pfl.update_rules import Mixture, Scalarised

PRIVATE_PART = 2**19  # values of models trained at once with private steps, which need more memory
MOST_VIEWS = 2**12  # nodes whose samples are kept as tensors of their own
PART = 2**20  # values of models trained at once: 4 MiB, which fit into the cache
CHUNK = 2**19  # values of inputs on which candidates are evaluated at once: 2 MiB
LARGEST_MIX = 2**26  # values of different models that are copied to be averaged together, 256 MiB


class SequentialLearner:
    """Learners of any kind, by the index of their node, called one after another.

    Robust merges are computed together. Clippings are not, because the last bits of their distances depend on the others.
    """

    def __init__(self, learners: Sequence[Learner] | Mapping[int, Learner]) -> None:
        self._learners = learners

    def compute(self, jobs: Sequence[NodeQuery[R]]) -> list[R]:
        if jobs[0].query.name == Combine.name:
            return combine_all(jobs)
        return [self._learners[job.node].compute(job.query) for job in jobs]


class _Together(NamedTuple):
    """Learners of a BatchedLearner that answer one query each; see p2pfl.queries.AnsweringTogether."""

    nodes: list[int]
    select: Callable[[Sequence[Parameters]], tuple[np.ndarray, Sequence[int]]]
    parts_of: Callable[[list[int]], Iterator[tuple[list[int], Losses | None]]]

    def parts(self) -> Iterator[tuple[list[int], Losses | None]]:
        return self.parts_of(self.nodes)


class BatchedLearner:
    """TorchLearners of one architecture that are computed together.

    Args:
        by_hand: whether chains of layers may use the hand-written gradients.
        lenient: whether to return models with values that are not finite, instead of raising DivergenceError.
        data, streams: those of the learners, if they exist already; the learners' tasks are then known to be alike.

    Attributes:
        kernel: computes their gradients; see p2pfl.learning.kernels.

    Raises:
        ConfigurationError: the learners' tasks differ in more than their data, or their module cannot be stacked or
            would be slower when stacked.
    """

    def __init__(
        self,
        learners: Sequence[TorchLearner],
        by_hand: bool = True,
        lenient: bool = False,
        data: Mapping[Split, StackedData] | None = None,
        streams: Sequence[RandomStreams] | None = None,
    ) -> None:
        self._lenient = lenient
        self._task = _common_task(learners) if data is None else learners[0].task
        self._learners = learners
        self._streams = streams or [learner.streams for learner in learners]
        self._device = learners[0].device
        goals = self._task.objectives is not None
        own = [learner.task.weights(self._device) for learner in learners] if goals else []
        self._weights = None if self._task.objectives is None else torch.stack([w for w in own if w is not None])
        self.kernel = kernel_for(self._task, self._device, by_hand, self._streams[0].seed)
        self._shared = shared_values(self._task.layout, self._device)
        if data is None:
            splits = dict.fromkeys(split for learner in learners for split in learner.data)
            self._data = {split: StackedData.of([learner.data.get(split) for learner in learners]) for split in splits}
        else:
            self._data = {split: each.to(self._device) for split, each in data.items()}
        self._trained = self._means = RowCache(torch.empty(0, 0, device=self._device))
        self._equal_counts = len(set(self._data["train"].counts.tolist())) == 1
        self._lasting = LastingState(len(learners), self._task.layout.n_trained, self._device)
        self._views: dict[int, tuple[Tensor, Tensor]] = {}
        self._alone = SequentialLearner(learners)
        self._together: dict[str, Callable[[list[int], list[Any]], Sequence[Any]]] = {
            Train.name: lambda nodes, queries: self._train(nodes, queries, self._means.stack([q.params for q in queries])),
            Mean.name: self._mean,
            Loss.name: self._losses,
            Evaluate.name: self._evaluate,
            Combine.name: self._combine,
            Clip.name: lambda _, queries: clip_together(queries, self._trained.select),
        }

    def compute(self, jobs: Sequence[NodeQuery[R]]) -> Sequence[R]:
        """Return the answers to queries of one name.

        This class answers six names together. Others answer themselves (`p2pfl.queries.Query.answer_together`), or are
        answered one by one.
        """
        nodes, queries = [job.node for job in jobs], [job.query for job in jobs]
        if together := self._together.get(queries[0].name):
            return together(nodes, queries)
        answers = queries[0].answer_together(queries, _Together(nodes, self._trained.select, self._parts))
        return self._alone.compute(jobs) if answers is None else answers

    # For all nodes at once; see p2pfl.cohort

    def train_each(self, query: Train, nodes: np.ndarray | None = None) -> np.ndarray:
        """Return the trained models of K nodes, float32 [K, P].

        Args:
            query: its models are of all nodes, [N, P].
            nodes: the numbers of those to train, ascending; None for all.
        """
        start = self._means.tensor if query.params is self._means.array else self._on_device(query.params)
        picked = [*range(len(start))] if nodes is None else nodes.tolist()
        if nodes is not None:
            start = start[picked]
        queries = [query] * len(picked)
        if query.proximal is not None:
            mu, anchors = query.proximal
            queries = [replace(query, proximal=(mu, anchors[k])) for k in picked]
        self._trained = RowCache(torch.empty(0, 0, device=self._device))  # the last trained models make room for new ones
        if self._equal_counts and _is_plain(query, query):
            self._train_alike(picked, queries, start)
            return self._trained.array
        return np.array(self._train(picked, queries, start))

    def mean_each(
        self,
        models: np.ndarray,
        rows: np.ndarray,
        weights: np.ndarray,
        starts: np.ndarray,
        *,
        alone: Sequence[int] = (),
        fresh: bool = False,
    ) -> np.ndarray:
        """Return weighted means, float32 [K, P].

        Args:
            models: float32 [M, P].
            rows, weights: row and weight of each model in a mean, one mean after another; [E].
            starts: place of the first model of each mean, [K].
            alone: means that single nodes would have asked for in a batch of one, which is summed in another order.
            fresh: whether the models are copies of those of the last training.
        """
        counts = np.diff(starts, append=len(rows))

        def single(k: int) -> Parameters:
            part = slice(starts[k], starts[k] + counts[k])
            return weighted_mean(list(models[rows[part]]), weights[part].tolist())

        if not (fresh or models is self._trained.array) and min(len(rows), len(models)) * models.shape[1] > LARGEST_MIX:
            return np.array([single(k) for k in range(len(starts))])
        self._means_of(Rows(models, rows, weights, starts, counts, starts))
        for k in alone:
            self._means.array[k] = single(k)
            self._means.tensor[k] = torch.from_numpy(self._means.array[k])  # on a CPU the same memory
        return self._means.array

    def losses_each(self, models: np.ndarray, ids: IdsOfEach, split: Split) -> np.ndarray:
        """Return the mean loss of each node's peers' models on the node's data, float64 [E].

        Args:
            models: of all nodes, float32 [N, P].
        """
        unknown = np.full(len(ids.peers), np.nan)
        if split not in self._data:
            return unknown

        def stack(rows: np.ndarray) -> Tensor:
            return torch.from_numpy(models[ids.peers[rows]]).to(self._device)

        return self._columns(stack, ids.rows, split, self._loss_of).get("loss", unknown)

    def evaluate_each(
        self, models: Sequence[np.ndarray], splits: Sequence[Split], nodes: np.ndarray
    ) -> list[dict[str, np.ma.MaskedArray]]:
        """Return the figures of several models of some nodes: [N] each, masked for others and for nodes without samples.

        Args:
            models: of all nodes, float32 [N, P] each.
            nodes: the numbers of those whose models are evaluated, ascending.
        """
        owners = np.tile(nodes, len(models))

        def stack(rows: np.ndarray) -> Tensor:
            which, k = divmod(rows, len(nodes))
            k = nodes[k]
            first = int(which[0])
            if (which == first).all() and (np.diff(k) == 1).all():  # no copy
                return self._on_device(models[first][k[0] : k[-1] + 1])
            flat = np.empty((len(rows), models[0].shape[1]), np.float32)
            for j in np.unique(which).tolist():
                flat[which == j] = models[j][k[which == j]]
            return self._on_device(flat)

        found: list[dict[str, np.ma.MaskedArray]] = [{} for _ in models]
        for split in [split for split in splits if split in self._data]:
            absent = np.ones(len(self._learners), bool)
            absent[nodes] = self._data[split].counts[nodes] == 0
            for name, column in self._columns(stack, owners, split, self._figures_of).items():
                for each, values in zip(found, column.reshape(len(models), len(nodes)), strict=True):
                    whole = np.full(len(absent), np.nan)
                    whole[nodes] = values
                    each[f"{split}_{name}"] = np.ma.MaskedArray(whole, absent.copy())
        return found

    def _on_device(self, models: np.ndarray) -> Tensor:
        """Return models, [K, P], on the device; those of the last training need no copy."""
        trained = self._trained
        if models.base is trained.array and len(models) == len(trained.array):
            return trained.tensor
        return torch.from_numpy(models if models.flags.writeable else models.copy()).to(self._device)

    def _train(self, nodes: list[int], queries: list[Train], start: Tensor) -> list[Parameters]:
        """Return the trained models, within about 1e-6 relative of single learners (sums have another order).

        Args:
            start: the models to train, in place of those of the queries; [K, P].
        """
        first = queries[0]
        if self._equal_counts and all(_is_plain(query, first) for query in queries):
            self._train_alike(nodes, queries, start)
            return self._trained.rows
        results: list[Parameters] = [np.empty(0, np.float32)] * len(queries)
        groups = defaultdict(list)
        keeps = lasting(self._task.optimizer)  # each purpose has its own state
        counts = self._data["train"].counts
        for k, query in enumerate(queries):
            key = None if query.rule is None else query.rule.batch_key
            together = occasion(query) if keeps else query.proximal is None
            steps = -1 if query.mechanism is None else steps_of(query, int(counts[nodes[k]]), self._task.batch_size)
            groups[query.epochs, together, key, self._rate(query.round), steps].append(k)
        for ks in groups.values():
            if not self._equal_counts:  # most batches first: the nodes with a full batch left are then at the front
                full = self._full_batches(counts, queries[ks[0]])
                ks.sort(key=lambda k: (-full[nodes[k]], -counts[nodes[k]], nodes[k]))
            self._train_alike([nodes[k] for k in ks], [queries[k] for k in ks], start[ks])
            for k, row in zip(ks, self._trained.rows, strict=True):
                results[k] = row
        return results

    @torch.no_grad()
    def _train_alike(self, nodes: list[int], queries: list[Train], start: Tensor) -> None:
        """Train models whose queries agree in epochs, kind of rule, presence of a proximal term, and learning rate.

        With a lasting optimiser, they agree in their purpose, too.

        Args:
            nodes: the node of each query; those with more full batches first, and among these those with more samples.
            queries, start: one for each model.
        """
        new = torch.empty_like(start)
        size = len(nodes)
        if queries[0].mechanism is not None:
            self._train_privately(nodes, queries, start, new)
            self._trained = RowCache(new)
            return
        least = self.kernel.alignment
        if self._device.type == "cpu" and least and self._equal_counts:
            size = max(least, PART // start.shape[1] // least * least)
        for first, end in pairwise([*range(0, max(1, len(nodes) - max(least, 1) + 1), size), len(nodes)]):
            self._train_part(nodes[first:end], queries[first:end], start[first:end], new[first:end])
        self._trained = RowCache(new)

    def _train_privately(self, nodes: list[int], queries: list[Train], start: Tensor, new: Tensor) -> None:
        """Train models as `_train_part` does, with private steps; they agree in the number of steps, too."""
        planned, purpose = at_round(self._task.optimizer, queries[0].round), occasion(queries[0])
        size = max(1, PRIVATE_PART // start.shape[1])
        for part in (slice(first, first + size) for first in range(0, len(nodes), size)):
            asked = [
                Node(query, self._streams[k], *self._samples_of(k), partial(module_seed, self._streams[k], query))
                for k, query in zip(nodes[part], queries[part], strict=True)
            ]
            new[part], state = self._private.train(asked, start[part], self._lasting.start(planned, purpose, nodes[part]))
            self._lasting.keep(purpose, nodes[part], planned, state)
        self._check_finite(nodes, queries, new)

    def _samples_of(self, node: int) -> tuple[Tensor, Tensor]:
        """Return the training samples of one node: the same tensors each time, if they are views."""
        found = self._views.get(node)
        if found is None:
            found = self._data["train"].samples(node)
            if not self._data["train"].copies and len(self._views) < MOST_VIEWS:
                self._views[node] = found
        return found

    @cached_property
    def _private(self) -> PrivateTraining:
        return PrivateTraining(self._task, self._device, self._shared, self._streams[0].seed)

    def _check_finite(self, nodes: list[int], queries: list[Train], new: Tensor) -> None:
        """Raise DivergenceError for the first model with values that are not finite."""
        finite = new.sum(1).isfinite()
        if not (self._lenient or finite.all()):
            first = int((~finite).nonzero()[0])
            raise DivergenceError(self._streams[nodes[first]].name, queries[first].round)

    def _train_part(self, nodes: list[int], queries: list[Train], start: Tensor, new: Tensor) -> None:
        """Train the models `start`, [K, P], as `_train_alike` does; the results are written into `new`, [K, P]."""
        data, task = self._data["train"], self._task
        counts = data.counts[nodes]
        most = int(counts.max())
        planned = at_round(task.optimizer, queries[0].round)
        optimizer, batch_size, epochs = plan(queries[0].rule, planned, task.batch_size, queries[0].epochs, most)
        steps = most_steps(queries[0].rule, epochs * -(-most // batch_size))
        mixed = isinstance(queries[0].rule, Mixture)
        least = least_batch(task, queries[0].rule)
        full, last = batch_sizes(counts, batch_size, least)  # full batches are in descending order
        if least > 1:
            fewest = int(counts.argmin())
            check_batches(task, self._streams[nodes[fewest]].name, int(counts[fewest]), batch_size, least)
        training = StackedTraining(
            queries,
            start,
            new,
            n_trained=task.layout.n_trained,
            kernel=self.kernel,
            optimizer=optimizer,
            steps=steps,
            weights=self._weights_of(nodes, queries),
            shared=self._shared,
            generators=self._generators_of(nodes, queries) if self.kernel.random else None,
            state=self._lasting.start(optimizer, occasion(queries[0]), nodes),
            other_state=self._lasting.start(optimizer, queries[0].purpose, nodes) if mixed else None,
        )
        for order in self._orders(nodes, queries, batch_size, epochs):
            # one copy of all samples costs less than one for each batch
            whole = data.batches(nodes, order, batch_size) if self._equal_counts else None
            for s in range(min(full[0], steps)):
                if whole is not None:
                    training.step(slice(None), whole[0][s], whole[1][s])
                    continue
                k = int(np.count_nonzero(full > s))  # nodes with a full batch left: the first k
                training.step(slice(k), *data.batch(nodes[:k], order[:k], [s * batch_size] * k, batch_size))
            for size, rows in _by_value(np.where(full < steps, last, 0)):
                picked = rows.tolist()
                where = slice(None) if len(picked) == len(nodes) else torch.from_numpy(rows)
                starts = (counts[rows] - size).tolist()
                some = order[rows] if isinstance(order, np.ndarray) else [order[r] for r in picked]
                training.step(where, *data.batch([nodes[r] for r in picked], some, starts, size))
        if isinstance(self.kernel, VmapKernel):
            self.kernel.check_unchanged()
        self._lasting.keep(occasion(queries[0]), nodes, optimizer, training.state)
        self._check_finite(nodes, queries, new)

    def _orders(self, nodes: list[int], queries: list[Train], batch_size: int, epochs: int) -> Iterator[Orders]:
        """Yield the order of the samples of each node for each epoch; int64 [K, n] if all have equally many."""
        counts, first = self._data["train"].counts[nodes].tolist(), queries[0]
        given = self._streams
        streams = given.of(nodes) if isinstance(given, StreamsOfEach) else [given[node] for node in nodes]
        alike = all(query is first or (query.round, query.purpose) == (first.round, first.purpose) for query in queries)
        if self._equal_counts and alike:
            if counts[0] > batch_size:
                yield from permutations(streams, first.round, first.purpose, counts[0], epochs).swapaxes(0, 1)
            else:
                yield from ([None] * len(nodes) for _ in range(epochs))
            return
        each = [
            orders(stream, query.round, query.purpose, n=count, batch_size=batch_size, epochs=epochs)
            for stream, query, count in zip(streams, queries, counts, strict=True)
        ]
        for epoch in range(epochs):
            yield [of[epoch] for of in each]

    def _full_batches(self, counts: np.ndarray, query: Train) -> np.ndarray:
        """Return the number of full batches of each node in a training."""
        _, batch_size, _ = plan(query.rule, self._task.optimizer, self._task.batch_size, query.epochs, int(counts.max()))
        return batch_sizes(counts, batch_size, least_batch(self._task, query.rule))[0]

    def _rate(self, round: int) -> float | None:
        """Return the learning rate in a round; None if it is the same in all rounds."""
        optimizer = at_round(self._task.optimizer, round)
        return None if optimizer is self._task.optimizer else getattr(optimizer, "lr", None)

    def _weights_of(self, nodes: list[int], queries: list[Train]) -> Tensor | None:
        """Return the weights of the objectives in each training, float32 [K, m]; None without objectives."""
        if isinstance(queries[0].rule, Scalarised):
            scalarised = [query.rule.weights for query in queries if isinstance(query.rule, Scalarised)]
            return torch.tensor(np.array(scalarised), dtype=torch.float32, device=self._device)
        return None if self._weights is None else self._weights[nodes]

    def _generators_of(self, nodes: Sequence[int], queries: Sequence[Train]) -> RowGenerators:
        """Return generators that draw the numbers of single trainings."""
        pairs = zip(nodes, queries, strict=True)
        return RowGenerators([module_seed(self._streams[node], query) for node, query in pairs], self._device)

    def _mean(self, nodes: list[int], queries: list[Mean]) -> Sequence[Parameters]:
        """Return the means; they are rows of one array if the models are small enough to be stacked."""
        models = list(chain.from_iterable([query.models for query in queries]))
        size = self._task.layout.size
        array, rows = self._trained.array, self._trained.places(models) if len(queries) > 1 else None
        if rows is None:
            large = len(models) * size > LARGEST_MIX and len({*map(id, models)}) * size > LARGEST_MIX
            if large or len(queries) == 1:
                return [weighted_mean(query.models, query.weights) for query in queries]
            array, rows = self._trained.select(models)
        weights = np.fromiter(chain.from_iterable([query.weights for query in queries]), np.float64, len(models))
        counts = np.array([len(query.models) for query in queries])
        starts = np.cumsum(counts) - counts
        return self._means_of(Rows(array, np.array(rows), weights, starts, counts, starts)).rows

    def _means_of(self, rows: Rows) -> RowCache:
        """Return the means of merges."""
        trained = self._trained
        device = self._device if self._device.type == "cuda" else torch.device("cpu")  # others lack the operation
        mean = functional.embedding_bag(
            torch.from_numpy(rows.rows).to(device),
            trained.tensor.to(device) if rows.array is trained.array else torch.from_numpy(rows.array).to(device),
            torch.from_numpy(rows.starts).to(device),
            mode="sum",
            per_sample_weights=torch.from_numpy(rows.weights.astype(np.float32)).to(device),
        )
        self._means = RowCache(mean.to(self._device))
        return self._means

    def _combine(self, nodes: list[int], queries: list[Combine]) -> list[Combined]:
        return combine_together(queries, self._trained.select, lambda rows: self._means_of(rows).rows)

    def _losses(self, nodes: list[int], queries: list[Loss]) -> list[np.ndarray]:
        results = [np.full(len(query.stack), np.nan) for query in queries]
        for split in {query.split for query in queries} & self._data.keys():
            rows = [(k, j) for k, query in enumerate(queries) if query.split == split for j in range(len(query.stack))]
            params = [queries[k].stack[j] for k, j in rows]
            found = self._figures(params, [nodes[k] for k, _ in rows], split, self._loss_of)
            for (k, j), figures in zip(rows, found, strict=True):
                results[k][j] = figures.get(f"{split}_loss", np.nan)
        return results

    def _parts(self, nodes: list[int]) -> Iterator[tuple[list[int], Losses | None]]:
        """Yield parts of queries whose nodes have equal numbers of validation samples, and the function of their losses."""
        data = self._data.get("validation")
        if data is None:
            yield [*range(len(nodes))], None
            return
        counts = data.counts[nodes]
        for count in sorted(set(counts.tolist())):
            ks = np.flatnonzero(counts == count).tolist()
            size = max(1, values_at_once(CHUNK, self._device) // (2 * max(count, 1) * data.width))
            for part in (ks[start : start + size] for start in range(0, len(ks), size)):
                yield part, partial(self._losses_of, [nodes[k] for k in part], count) if count else None

    @torch.no_grad()
    def _losses_of(self, nodes: list[int], count: int, places: Sequence[int], models: np.ndarray) -> list[float]:
        """Return the losses of models, [R, P], each on the `count` validation samples of the node at a place."""
        owners = [nodes[k] for k in places]
        x, y = self._data["validation"].whole(owners, count)
        outputs = self._outputs(owners, torch.from_numpy(models).to(self._device), x)
        losses: list[float] = self._loss_of(owners, outputs, y)["loss"].tolist()
        return losses

    def _evaluate(self, nodes: list[int], queries: list[Evaluate]) -> list[list[dict[str, float]]]:
        results: list[list[dict[str, float]]] = [[{} for _ in query.stack] for query in queries]
        for k, query in enumerate(queries):
            if query.memory is not None:  # memories differ between nodes
                results[k] = self._learners[nodes[k]].compute(query)
        plain = [(k, query) for k, query in enumerate(queries) if query.memory is None]
        asked = dict.fromkeys(split for _, query in plain for split in query.splits)  # keeps the order of table columns
        for split in [split for split in asked if split in self._data]:
            rows = [(k, j) for k, query in plain if split in query.splits for j in range(len(query.stack))]
            rows.sort(key=itemgetter(1))  # consecutive nodes, whose samples need no copy
            params = [queries[k].stack[j] for k, j in rows]
            found = self._figures(params, [nodes[k] for k, _ in rows], split, self._figures_of)
            for (k, j), figures in zip(rows, found, strict=True):
                results[k][j] |= figures
        return results

    def _figures(
        self,
        params: Sequence[Parameters],
        nodes: Sequence[int],
        split: Split,
        of: Callable[[Sequence[int], Tensor, Tensor], dict[str, Tensor]],
    ) -> list[dict[str, float]]:
        """Return the figures of each model on its node's data, by split and name; none without samples.

        Args:
            of: see `_columns`.
        """
        owners = np.array(nodes, np.intp)
        found = self._columns(lambda rows: self._trained.stack([params[r] for r in rows.tolist()]), owners, split, of)
        names, columns = [f"{split}_{name}" for name in found], [column.tolist() for column in found.values()]
        results: list[dict[str, float]] = [{} for _ in params]
        for row in np.flatnonzero(self._data[split].counts[owners]).tolist():
            results[row] = {name: column[row] for name, column in zip(names, columns, strict=True)}
        return results

    @torch.no_grad()
    def _columns(
        self,
        stack: Callable[[np.ndarray], Tensor],
        nodes: np.ndarray,
        split: Split,
        of: Callable[[Sequence[int], Tensor, Tensor], dict[str, Tensor]],
    ) -> dict[str, np.ndarray]:
        """Return the figures of K models, each on the data of its node, by name: float64 [K], NaN without samples.

        Args:
            stack: returns the models with given numbers, [k], on the device: [k, P].
            nodes: node of each model, [K].
            of: computes figures from the nodes of k models, their outputs and their targets, [k, n, ...].
        """
        shelf = self._data[split]
        results: dict[str, np.ndarray] = {}
        order = np.arange(len(nodes))
        if shelf.shared:  # evaluate models on the same samples together
            order = np.argsort(shelf.offsets[nodes], kind="stable")
        for count, places in _by_value(shelf.counts[nodes][order]):
            rows = order[places]
            per_chunk = max(2, values_at_once(self.kernel.chunk, self._device) // (count * shelf.width))
            if self._device.type != "cpu":
                per_chunk = min(per_chunk, max(2, ON_GPU // self._task.layout.size))
            for picked in [rows] if len(rows) <= per_chunk else np.array_split(rows, -(-len(rows) // per_chunk)):
                owners = nodes[picked].tolist()
                x, y = shelf.whole(owners, count)
                for name, values in of(owners, self._outputs(owners, stack(picked), x), y).items():
                    if name not in results:
                        results[name] = np.full(len(nodes), np.nan)
                    results[name][picked] = values.cpu().numpy()
        return results

    def _outputs(self, nodes: Sequence[int], flat: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of models [K, P] of these nodes for inputs [K, n, ...]."""
        if not isinstance(self.kernel, VmapKernel) or not self.kernel.random_outputs:
            return self.kernel.outputs(flat, x)
        with self.kernel.drawing([evaluation_seed(self._streams[node]) for node in nodes], self._device):
            return self.kernel.outputs(flat, x)

    def _figures_of(self, nodes: Sequence[int], outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the reported figures for outputs and targets of [K, n, ...], by name: [K] each."""
        if self._weights is not None:
            return vmap(self._task.figures)(outputs, y, self._weights[list(nodes)])
        figures = self._loss_of(nodes, outputs, y)
        for metric in self._task.measures:
            is_loss = metric.per_sample and metric.function is self._task.loss
            figures[metric.name] = figures["loss"] if is_loss else metric.of_each(outputs, y)
        return figures

    def _loss_of(self, nodes: Sequence[int], outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return only the loss among the reported figures."""
        if self._weights is not None:
            return self._figures_of(nodes, outputs, y)
        return {"loss": of_each(self._task.loss, outputs, y).mean(1)}


def _is_plain(query: Train, first: Train) -> bool:
    """Return whether a training has no rule and no proximal term, and otherwise the options of `first`."""
    plain = query.rule is None and query.proximal is None and query.mechanism is None
    return plain and (query.round, query.epochs, query.purpose) == (first.round, first.epochs, first.purpose)


def combine_all(jobs: Sequence[NodeQuery[Any]]) -> list[Any]:
    """Return the robust merges of many nodes; see p2pfl.robust.batches."""
    return combine_together([cast(Combine, job.query) for job in jobs])


def _common_task(learners: Sequence[TorchLearner]) -> TorchProblem:
    """Return one of the learners' tasks, after checking that all are equal except for their data."""
    first = learners[0].task
    for learner in learners[1:]:
        task = learner.task
        for what, same in (
            ("layout", task.layout == first.layout),
            ("module", task.template is first.template or computes_alike(task.template, first.template)),
            ("loss", task.loss == first.loss and task.measure == first.measure),
            ("metrics", tuple(task.metrics) == tuple(first.metrics)),
            ("objectives", task.objectives == first.objectives),
            ("optimizer", task.optimizer == first.optimizer),
            ("batch size", task.batch_size == first.batch_size),
        ):
            if not same:
                raise ConfigurationError(f"nodes cannot be stacked: their tasks differ in {what}")
    return first


def _by_value(values: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
    """Yield (value, its positions) for every value except 0, the greatest first."""
    for value in sorted(set(values.tolist()) - {0}, reverse=True):
        yield value, np.flatnonzero(values == value)
