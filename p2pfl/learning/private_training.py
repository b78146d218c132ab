"""Private trainings of one node or of many as one tensor program: clipped gradients of single samples, and noise.

The mechanism is that of p2pfl.privacy. A TorchLearner and a BatchedLearner train through the same object, so that a node has
the same bits alone and in a stack:

- Draws: each node has its own generators of samples and of noise (`StepDraws`).
- Chains of linear layers: the gradient of a sample in a layer is the product of its slope and its input, so that its norm
  follows from theirs, and the sum of the clipped gradients is one product with scaled slopes (Goodfellow 2015). Nodes whose
  steps have equally many samples, rounded up to a multiple of WIDTH, are computed together; the missing samples have the
  factor 0. The place in a stack must not change a bit: each matrix of a product begins at a line of the cache; a single
  product, which threads may divide, is computed as one of two; exponentials are computed in whole vectors; and no operation
  multiplies and adds in one.
- Any other module: `torch.func` maps the gradient over the samples of one node, each as a batch of one, and the nodes of a
  stack train one after another. A module therefore cannot mix samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.linalg import vector_norm
from torch.nn import functional

from p2pfl.errors import ConfigurationError
from p2pfl.learning.kernels.kernel import dense_chain
from p2pfl.learning.losses import cross_entropy
from p2pfl.learning.modules import seeded
from p2pfl.learning.optimizers import Optimizer, State, at_round
from p2pfl.learning.rule_gradients import resting
from p2pfl.learning.torch_problem import TorchProblem
from p2pfl.privacy import StepDraws, check_rule, draw_noise
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Mechanism

VECTOR = 64  # values: a multiple of what a processor computes at once
LINE = 16  # values of a line of the cache, 64 bytes
WIDTH = 16  # samples: steps are padded to a multiple
GRADIENTS = 2**22  # values of gradients of single samples that are held at once: 16 MiB
LARGEST_COPY = 2**20  # values of inputs that are copied to be picked together: 4 MiB
MIXING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_private(task: TorchProblem) -> None:
    """Check that the gradients of a task's single samples can be clipped.

    Raises:
        ConfigurationError: they cannot; the text names the layer and the remedy.
    """
    module, conduct = task.template, task.conduct
    name = type(module).__name__
    if task.objectives is not None:
        raise ConfigurationError(
            "a privacy budget needs a task of one loss per sample; one of several objectives is refused", "privacy", "task"
        )
    for key, part in module.named_modules():
        if isinstance(part, MIXING):
            raise ConfigurationError(
                f"layer {key or 'itself'} ({type(part).__name__}) of module {name} mixes the samples of a batch, so that a"
                " privacy budget cannot limit the effect of one; use GroupNorm or LayerNorm",
                "privacy",
                "task",
            )
    if conduct.changed or conduct.uncarried:
        what = ", ".join([*conduct.changed, *conduct.uncarried][:3])
        raise ConfigurationError(
            f"module {name} changes {what} in training, which no clip limits; under a privacy budget a module may change its"
            " parameters only",
            "privacy",
            "task",
        )
    if conduct.others:
        raise ConfigurationError(
            f"module {name} draws numbers from the generator of {' and '.join(conduct.others)}; under a privacy budget use"
            " torch's",
            "privacy",
            "task",
        )


class Node(NamedTuple):
    """Parts of a private training of one node: its query, its streams, its samples, and the seed of random layers."""

    query: Train
    streams: RandomStreams
    x: Tensor
    y: Tensor
    seed: Callable[[], int]


class PrivateTraining:
    """Private trainings of models of one task.

    Args:
        shared: see p2pfl.learning.rule_gradients.shared_values.
        seed: the federation's; a module may draw constants from it.
    """

    def __init__(self, task: TorchProblem, device: torch.device, shared: Tensor | None, seed: int) -> None:
        check_private(task)
        self._task, self._device, self._shared, self._seed = task, device, shared, seed
        layers = dense_chain(task)
        self._layers = None if layers is None or any(layer.dropout for layer in layers) else layers
        self._n = task.layout.n_trained
        self._samples = _Samples([])

    def train(self, nodes: Sequence[Node], start: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return trained models, [K, P], and the state of the optimiser after the training.

        Args:
            nodes: one for each model. Their queries agree in round, rule, presence of a proximal term, and number of steps.
            start: the models before the training, [K, P]; not modified.
            state: the state of the optimiser, [K, n] or [K, 1]; changed in place. By default a new one.
        """
        optimizer = at_round(self._task.optimizer, nodes[0].query.round)
        check_rule(nodes[0].query.rule)
        draws = [StepDraws(each.streams, each.query, len(each.x), self._task.batch_size) for each in nodes]
        if state is None:
            state = optimizer.start(start[:, : self._n], draws[0].steps)
        models = start.clone()
        if self._layers is not None:
            self._run(nodes, draws, models, state, optimizer)
            return models, state
        for k, node in enumerate(nodes):  # torch's generator is that of one node at a time
            row = slice(k, k + 1)
            with seeded(node.seed(), self._device, beyond_torch=False):
                self._run([node], draws[row], models[row], {name: rows[row] for name, rows in state.items()}, optimizer)
        return models, state

    @cached_property
    def _module(self) -> nn.Module:
        return self._task.make(self._seed).to(self._device).train()

    def _run(
        self, nodes: Sequence[Node], draws: Sequence[StepDraws], models: Tensor, state: State, optimizer: Optimizer
    ) -> None:
        """Train models, [K, P], in place."""
        weights, device = models[:, : self._n], self._device
        mechanisms = [mechanism_of(node.query) for node in nodes]
        clips = torch.tensor([each.clip for each in mechanisms], device=device).unsqueeze(1)
        shares = 1 / torch.tensor([each.expected for each in draws], device=device).unsqueeze(1)
        scales = [each.noise * each.clip / drawn.expected for each, drawn in zip(mechanisms, draws, strict=True)]
        if not self._samples.of(nodes):
            self._samples = _Samples(nodes)
        samples = self._samples
        pairs = [node.query.proximal for node in nodes if node.query.proximal is not None]
        anchors = torch.from_numpy(np.array([anchor for _, anchor in pairs])).to(device)[:, : self._n] if pairs else None
        mu = torch.tensor([mu for mu, _ in pairs], device=device).unsqueeze(1)
        still = resting(nodes[0].query.rule, self._shared)
        rest = None if still is None else weights[:, still].clone()
        for _ in range(draws[0].steps):
            noise = np.empty((len(draws), self._n), np.float32)
            draw_noise(draws, noise, scales)
            total = torch.from_numpy(noise).to(device)
            self._add_sums(total, samples, models, [each.batch() for each in draws], (clips, shares))
            if anchors is not None:
                away = weights - anchors
                total.add_(mu * (away if self._shared is None else away * self._shared))
            optimizer.step(weights, total, state, weights)
            if still is not None and rest is not None:
                weights[:, still] = rest

    def _add_sums(
        self, total: Tensor, samples: _Samples, models: Tensor, batches: Sequence[np.ndarray], limits: tuple[Tensor, Tensor]
    ) -> None:
        """Add the sums of the clipped gradients of the samples of a step, times the shares, to `total`, [K, n].

        Args:
            batches: the places of each node's samples, int64 [b].
            limits: greatest norms, and shares; [K, 1] each.
        """
        clips, shares = limits
        if self._layers is None:
            x, y = samples.pick([0], batches[0][None])
            total.add_(self._sum_by_vmap(models[0], x[0], y[0], clips[0])[None] * shares)
            return
        sizes = np.array([len(batch) for batch in batches])
        widths = np.maximum(1, -(-sizes // WIDTH)) * WIDTH
        for width in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == width)
            there = np.arange(width) < sizes[rows, None]
            index = np.zeros(there.shape, np.int64)
            index[there] = np.concatenate([batches[k] for k in rows.tolist()])
            x, y = samples.pick(rows.tolist(), index)
            which, counted = torch.from_numpy(rows).to(self._device), torch.from_numpy(there).to(self._device)
            self._add_sums_of_chain((total, models, which), (x.flatten(2), y, counted), clips[which], shares[which])

    def _add_sums_of_chain(
        self, place: tuple[Tensor, Tensor, Tensor], samples: tuple[Tensor, Tensor, Tensor], clips: Tensor, shares: Tensor
    ) -> None:
        """Add the sums of clipped gradients of a chain of linear layers, times the shares, for k of the models.

        Args:
            place: the sums and the models, [K, n] and [K, P], and the k rows of both, int64 [k].
            samples: their inputs and targets, [k, b, ...], and which of them count, bool [k, b].
            clips, shares: [k, 1].
        """
        total, flat, rows = place
        layers, (x, y, there) = self._layers, samples
        assert layers is not None
        picked = [flat[:, slice(*layer.weight)].index_select(0, rows) for layer in layers]  # faster than an index
        weights = [part.view(-1, *layer.shape) for layer, part in zip(layers, picked, strict=True)]
        inputs = [x]
        for layer, weight in zip(layers, weights, strict=True):
            z = _products(inputs[-1], weight.mT)
            if layer.bias is not None:
                z.add_(flat[:, slice(*layer.bias)].index_select(0, rows).unsqueeze(1))
            if layer.activation:
                z = z.relu_() if layer.activation == "relu" else _by_vectors(torch.tanh, z)
            inputs.append(z)
        slope = self._slope(inputs[-1], y)
        slopes = [slope]
        for depth in reversed(range(1, len(layers))):
            slope, z = _products(slope, weights[depth]), inputs[depth]
            if layers[depth - 1].activation == "relu":
                slope = torch.ops.aten.threshold_backward(slope, z, 0)
            else:
                slope.mul_(1 - z.square())
            slopes.insert(0, slope)
        squares = torch.zeros(x.shape[:2], device=x.device)
        for layer, each, z in zip(layers, slopes, inputs, strict=False):
            of_slopes, of_inputs = (vector_norm(values, dim=2).square_() for values in (each, z))
            squares.add_(of_slopes.mul_(of_inputs.add_(layer.bias is not None)))
        norms = squares.sqrt_()
        finite = norms.isfinite()
        factors = torch.where(there & finite, (clips / norms.maximum(clips)).mul_(shares), 0.0).unsqueeze(2)
        wild = None if finite.all() else finite.unsqueeze(2)
        for layer, each, z in zip(layers, slopes, inputs, strict=False):
            scaled = each.mul_(factors)
            if wild is not None:  # 0 times infinity is not 0
                scaled, z = torch.where(wild, scaled, 0.0), torch.where(wild, z, 0.0)
            _add_to_rows(total[:, slice(*layer.weight)], rows, _products(scaled.mT, z).flatten(1))
            if layer.bias is not None:
                _add_to_rows(total[:, slice(*layer.bias)], rows, scaled.sum(1))

    def _slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of the loss of each sample by its outputs, [K, b, outputs]."""
        if self._task.loss is not cross_entropy:  # then it is the squared error; see dense_chain
            return (outputs - y).mul_(2 / outputs.shape[2])
        slope = _by_vectors(torch.exp, outputs - outputs.amax(2, keepdim=True))
        slope.div_(slope.sum(2, keepdim=True))
        return slope.scatter_add_(2, y.unsqueeze(2), torch.full((), -1.0, device=y.device).expand(*y.shape, 1))

    def _sum_by_vmap(self, model: Tensor, x: Tensor, y: Tensor, clip: Tensor) -> Tensor:
        """Return the sum of the clipped gradients of one model of any module, [n]."""
        layout = self._task.layout
        tensors = layout.unflatten(model)
        trained = {name: tensors[name] for name, _, stop, _ in layout.places if stop <= self._n}
        rest = {name: tensor for name, tensor in tensors.items() if name not in trained and name not in layout.local}
        total = torch.zeros(self._n, device=self._device)
        if not len(x):
            return total

        module = self._module  # made here: in the mapped function, its initial weights would be drawn for each sample

        def loss(trained: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(module, trained | rest, (x.unsqueeze(0),))
            return self._task.batch_loss(outputs, y.unsqueeze(0), None)

        each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        size = max(1, GRADIENTS // self._n)
        for some_x, some_y in zip(torch.split(x, size), torch.split(y, size), strict=True):
            try:
                found = each(trained, some_x, some_y)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                reason = str(error).strip().splitlines()[0].partition(". ")[0]
                raise ConfigurationError(
                    f"module {type(self._task.template).__name__} has no gradients of single samples, which a privacy budget"
                    f" needs: {reason}",
                    "privacy",
                    "task",
                ) from error
            rows = torch.cat([found[name].reshape(len(some_x), -1) for name in trained], 1)
            norms = rows.square().sum(1).sqrt().unsqueeze(1)
            total.add_(torch.where(norms.isfinite(), rows * (clip / norms.maximum(clip)), 0.0).sum(0))
        return total


class _Samples:
    """Samples of some nodes; small ones are put together, to be picked at once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        if not nodes:
            return
        self._starts = np.cumsum([0, *(len(node.x) for node in nodes[:-1])])
        together = len(nodes) > 1 and sum(node.x.numel() for node in nodes) <= LARGEST_COPY
        self._all = (torch.cat([node.x for node in nodes]), torch.cat([node.y for node in nodes])) if together else None

    def of(self, nodes: Sequence[Node]) -> bool:
        """Return whether these are the samples of the same nodes, with the same tensors."""
        pairs = zip(nodes, self._nodes, strict=False)
        return len(nodes) == len(self._nodes) and all(one.x is other.x and one.y is other.y for one, other in pairs)

    def pick(self, nodes: Sequence[int], index: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, [k, b, ...], of the samples of k nodes at int64 [k, b]."""
        if self._all is not None:
            x, y = self._all
            places = torch.from_numpy((self._starts[nodes][:, None] + index).ravel()).to(x.device)
            picked = x.index_select(0, places), y.index_select(0, places)
            return picked[0].view(*index.shape, *x.shape[1:]), picked[1].view(*index.shape, *y.shape[1:])
        picks = torch.from_numpy(index).to(self._nodes[0].x.device)
        pairs = [(self._nodes[k].x[pick], self._nodes[k].y[pick]) for k, pick in zip(nodes, picks, strict=True)]
        return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def mechanism_of(query: Train) -> Mechanism:
    """Return the mechanism of a private training."""
    assert query.mechanism is not None
    return query.mechanism


def _add_to_rows(total: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add values, [k, n], to different rows of [K, n]: Tensor.index_add_ adds them one by one, in twice the time."""
    if len(rows) == len(total):
        total.add_(values)
    else:
        total.index_copy_(0, rows, values.add_(total.index_select(0, rows)))


def _by_vectors(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return a function of each value, [K, ...], with the same bits for each K.

    torch computes exponentials of the last values of a tensor one by one, and rounds them otherwise than in vectors.
    """
    rows = values.flatten(1)
    size = rows.shape[1]
    missing = -size % VECTOR
    found = function(functional.pad(rows, (0, missing)) if missing else rows)
    return found[:, :size].reshape(values.shape)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return K products, [K, m, n] of [K, m, c] and [K, c, n], with the same bits for each K."""
    (_, rows, shared), columns = left.shape, right.shape[2]
    if rows * shared % LINE:  # a matrix that begins within a line of the cache is added in another order
        left, right = functional.pad(left, (0, -shared % LINE)), functional.pad(right, (0, 0, 0, -shared % LINE))
    if columns * rows % LINE or columns * right.shape[1] % LINE:
        right = functional.pad(right, (0, -columns % LINE))
    return _divided_alike(left, right)[:, :, :columns]


def _divided_alike(left: Tensor, right: Tensor) -> Tensor:
    """Return K products; one alone as one of two, because threads divide a single one and change the order of its sums."""
    if len(left) == 1 and torch.get_num_threads() > 1:
        return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
    return torch.bmm(left, right)
