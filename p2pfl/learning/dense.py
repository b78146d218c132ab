"""Dense networks without PyTorch: the network, its gradients, the task and the learner, for small nodes.

Batches, steps and initial values equal those of TorchLearner, except for rounding. The order of the samples comes from the
same function (`orders`). Initial values are those of `torch.nn.Linear`: PyTorch's generator for CPUs is MT19937 with the
seeding of Matsumoto and Nishimura (2002), which NumPy has as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, NoReturn

import numpy as np

from p2pfl._util.machine import check_module_size
from p2pfl.algorithms.group_statistics import CountGroups
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError, DivergenceError, MissingRequirementError
from p2pfl.learner import Learner, answers
from p2pfl.learning.measures import Measure, accuracy
from p2pfl.learning.optimizers import SGD, at_round, check_batch_size
from p2pfl.multiobjective.scalarisation import DifferentiateObjectives
from p2pfl.parameters import Layout, Parameters
from p2pfl.prediction_mixing import PredictionMixer
from p2pfl.privacy import StepDraws, check_rule, clip_factors
from p2pfl.queries import Evaluate, Loss, Query, Split, Train
from p2pfl.random_streams import RandomStreams, federation_streams
from p2pfl.task import Task
from p2pfl.update_rules import Descent, Mechanism, Mixture, Rule, Steps, TrainSubset

KNOWN_RULES = (Descent, Steps, TrainSubset)
LossWithGradient = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(outputs [n, k], targets [n, ...]) -> the loss of each sample [n], and its gradient by the outputs [n, k]."""
_BITS = 24  # of a draw that become a float32


class DenseLearner(Learner):
    """Learner of a DenseTask. It supports the update rules Descent, Steps and TrainSubset.

    Raises:
        MissingRequirementError: the device is not the CPU.
    """

    def __init__(self, task: DenseProblem, streams: RandomStreams, device: str = "cpu") -> None:
        if device not in ("cpu", "auto"):
            raise MissingRequirementError(f"device {device!r} needs PyTorch: pip install 'p2pfl-node[torch]'")
        self.task = task
        self.streams = streams
        self._velocities: dict[str, np.ndarray] = {}  # of a lasting optimiser, by the occasion of the training

    @answers(Train, Rule, Mechanism)
    def _train(self, query: Train) -> Parameters:
        rule = query.rule
        if query.mechanism is not None:
            check_rule(rule)
        if rule is not None and not isinstance(rule, KNOWN_RULES):
            _refuse(f"the policy's update rule {type(rule).__name__}")
        x, _ = self.task.data["train"]
        optimizer, batch_size, epochs = at_round(self.task.optimizer, query.round), self.task.batch_size, query.epochs
        assert isinstance(optimizer, SGD)
        if isinstance(rule, Descent):
            optimizer, batch_size, epochs = SGD(rule.lr), len(x), 1
        elif isinstance(rule, Steps):
            epochs = 1
        params = query.params.copy()
        moves = self._moved_by(rule)
        velocity = self._first_velocity(optimizer, occasion(query))
        if query.mechanism is None:
            steps = self._gradients(params, query, batch_size=batch_size, epochs=epochs)
        else:
            steps = self._private_gradients(params, query, query.mechanism)
        for step in steps:
            if query.proximal is not None:
                mu, anchor = query.proximal
                step += np.float32(mu) * ((params - anchor) * self._shared)
            if optimizer.weight_decay:
                step += np.float32(optimizer.weight_decay) * params
            if velocity is not None:
                velocity *= np.float32(optimizer.momentum)
                velocity += step
                step = velocity
            params -= np.float32(optimizer.lr) * step * moves
        if not np.isfinite(params.sum()):
            raise DivergenceError(self.streams.name, query.round)
        if optimizer.lasting and velocity is not None and np.isfinite(velocity.sum()):
            self._velocities[occasion(query)] = velocity
        return params

    def _gradients(self, params: Parameters, query: Train, *, batch_size: int, epochs: int) -> Iterator[Parameters]:
        """Yield the gradient of each step at `params`, which the steps change in place."""
        (x, y), rule = self.task.data["train"], query.rule
        order = orders(self.streams, query.round, query.purpose, n=len(x), batch_size=batch_size, epochs=epochs)
        for index in islice(_batches(order, batch_size), rule.steps if isinstance(rule, Steps) else None):
            yield self.task.network.gradient(params, x[index], y[index], self.task.loss)

    def _private_gradients(self, params: Parameters, query: Train, mechanism: Mechanism) -> Iterator[Parameters]:
        """Yield the noisy gradient of each step of a private training; see p2pfl.privacy."""
        x, y = self.task.data["train"]
        draws = StepDraws(self.streams, query, len(x), self.task.batch_size)
        noise = np.empty_like(params)
        for _ in range(draws.steps):
            index = draws.batch()
            total = self.task.network.clipped_sum(params, x[index], y[index], self.task.loss, mechanism.clip)
            draws.noise(noise, mechanism.noise * mechanism.clip)
            total += noise
            total /= np.float32(draws.expected)
            yield total

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of what lasts from one training to the next: the velocity of SGD with `lasting`."""
        return {f"{purpose}/velocity": velocity.copy() for purpose, velocity in self._velocities.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state that `state` returned; see p2pfl.task.StatefulLearner."""
        for key, array in state.items():
            purpose, _, name = key.rpartition("/")
            if name != "velocity" or array.shape != (self.task.layout.size,):
                raise ConfigurationError(f"the optimiser's state {key!r} in the checkpoint belongs to another model")
            self._velocities[purpose] = array.astype(np.float32)

    @answers(Loss)
    def _losses(self, query: Loss) -> np.ndarray:
        split = query.split
        return np.array([self._figures_of(params, split).get(f"{split}_loss", np.nan) for params in query.stack])

    @answers(Evaluate)
    def _figures(self, query: Evaluate) -> list[dict[str, float]]:
        results: list[dict[str, float]] = []
        for params in query.stack:
            result: dict[str, float] = {}
            for split in query.splits:
                result |= self._figures_of(params, split)
            results.append(result)
        return results

    @answers(PredictionMixer, CountGroups, DifferentiateObjectives)
    def _unsupported(self, query: Query[object]) -> NoReturn:
        _refuse(f"the policy's query {type(query).__name__}")

    def _figures_of(self, params: Parameters, split: Split) -> dict[str, float]:
        if split not in self.task.data or not len(self.task.data[split][0]):
            return {}
        x, y = self.task.data[split]
        outputs = self.task.network.outputs(params, x)
        losses, _ = self.task.loss(outputs, y)
        found = {name: measure(outputs, y) for name, measure in self.task.measures.items()}
        return {f"{split}_{name}": value for name, value in {"loss": float(losses.mean()), **found}.items()}

    @cached_property
    def _shared(self) -> np.ndarray:
        """1 for each shared value and 0 for each private one; float32 [P]."""
        values = np.zeros(self.task.layout.size, np.float32)
        for part in self.task.layout.shared_slices:
            values[part] = 1
        return values

    def _moved_by(self, rule: Rule | None) -> np.ndarray | np.float32:
        """Return 1 for each value that a rule changes, and 0 for the others.

        Raises:
            ConfigurationError: the rule trains one part alone, but the model does not have both parts.
        """
        if not isinstance(rule, TrainSubset):
            return np.float32(1)
        if not self.task.layout.private:
            raise ConfigurationError(
                'the policy needs a model with a private and a shared part; for the task digits, set task.private = "head"'
                " to keep the last layer private"
            )
        return self._shared if rule.part == "shared" else 1 - self._shared

    def _first_velocity(self, optimizer: SGD, purpose: str) -> np.ndarray | None:
        if not optimizer.momentum:
            return None
        kept = self._velocities.get(purpose) if optimizer.lasting else None
        return np.zeros(self.task.layout.size, np.float32) if kept is None else kept.copy()


def _batches(order: list[np.ndarray] | list[None], batch_size: int) -> Iterator[slice | np.ndarray]:
    """Yield the indices of each step's samples from an order for each epoch; see `orders`."""
    for permutation in order:
        if permutation is None:
            yield slice(None)
        else:
            yield from (permutation[start : start + batch_size] for start in range(0, len(permutation), batch_size))


def _refuse(what: str) -> NoReturn:
    raise MissingRequirementError(f"{what} needs PyTorch: pip install 'p2pfl-node[torch]'")


def cross_entropy(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of logits [n, classes] with class numbers [n], and its gradient; see Loss."""
    rows = np.arange(len(outputs))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    gradient = np.exp(shifted)
    total = gradient.sum(axis=1, keepdims=True)
    gradient /= total
    gradient[rows, targets] -= 1
    return np.log(total[:, 0]) - shifted[rows, targets], gradient


@dataclass
class DenseProblem(Task):
    """A dense network, its data and its training settings: a DenseTask without its learner.

    A TorchTask with the same network, loss and options has the same initial model and the same batches; both can be in
    one federation.

    Attributes:
        network: the network.
        data: (inputs float32 [n, ...], targets [n, ...]) by split; `train` is required.
        loss: the loss; see p2pfl.learning.dense.
        measures: reported figures by name; the first is the metric.
        higher_is_better: whether a higher metric is better.
        optimizer: SGD; its state is discarded after each round, unless it is `lasting`.
        batch_size: samples in a step; the last batch of an epoch may be smaller.
        public_info: public facts that are sent to peers.
        derived_options: options taken from the data that all nodes must share.
        data_facts, data_notes, data_label, row_encoding, held_out: what the readers of the data understood, and how they
            encode it; see p2pfl.task.Task.

    Raises:
        ConfigurationError: there is no training data, a value is not finite, or the network is too large for the memory.
        MissingRequirementError: the optimiser is another one than SGD.
    """

    network: DenseNetwork
    data: Mapping[Split, tuple[np.ndarray, np.ndarray]]
    loss: LossWithGradient = cross_entropy
    measures: Mapping[str, Measure] = field(default_factory=lambda: {"accuracy": accuracy})
    higher_is_better: bool = True
    optimizer: SGD = field(default_factory=SGD)
    batch_size: int = 16
    public_info: Mapping[str, Any] = field(default_factory=dict)
    derived_options: Mapping[str, Any] = field(default_factory=dict)
    data_facts: Sequence[DataFacts] = ()
    data_notes: Sequence[str] = ()
    data_label: str = ""
    row_encoding: Mapping[str, Any] = field(default_factory=dict)
    held_out: Sequence[Split] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, SGD):
            kind = type(self.optimizer).__name__
            raise MissingRequirementError(f"the optimizer {kind} needs PyTorch: pip install 'p2pfl-node[torch]'")
        check_batch_size(self.batch_size)
        if "train" not in self.data or not len(self.data["train"][0]):
            raise ConfigurationError("the task has no training samples")
        for split, (x, y) in self.data.items():
            if not (np.isfinite(x).all() and np.isfinite(y).all()):
                raise ConfigurationError(f"{split} data: a value is not finite (NaN or infinite)")
        check_module_size(self.layout.size)

    @property
    def layout(self) -> Layout:
        return self.network.layout

    @property
    def n_samples(self) -> int:
        return len(self.data["train"][0])

    @property
    def metric(self) -> str:
        return next(iter(self.measures))

    @property
    def extra_metrics(self) -> tuple[str, ...]:
        return tuple(self.measures)[1:]

    def initial(self, seed: int) -> Parameters:
        return self.network.initial(seed)


@dataclass
class DenseTask(DenseProblem):
    """A task of a linear model or MLP that NumPy trains; for its attributes see DenseProblem."""

    def learner(self, streams: RandomStreams, device: str = "cpu") -> DenseLearner:
        return DenseLearner(self, streams, device)

    def check_private(self) -> None:
        if type(self).learner is not DenseTask.learner:
            super().check_private()


@dataclass(frozen=True)
class DenseNetwork:
    """Linear layers with ReLU between them, as `torch.nn.Sequential(Linear, ReLU, ..., Linear)`; float32.

    Attributes:
        sizes: numbers of inputs, of the units of each hidden layer, and of outputs; without hidden layers the network is
            linear.
        alone: whether the tensors have the names of a single `torch.nn.Linear`, which is in no Sequential.
        private: layers that stay on their node, by their place in the Sequential, such as "2".
    """

    sizes: tuple[int, ...]
    alone: bool = False
    private: Sequence[str] = ()

    @cached_property
    def layout(self) -> Layout:
        shapes: list[tuple[str, tuple[int, ...]]] = []
        private: list[str] = []
        for k, (before, after) in enumerate(pairwise(self.sizes)):
            layer = str(2 * k)
            names = [name if self.alone else f"{layer}.{name}" for name in ("weight", "bias")]
            shapes += zip(names, ((after, before), (after,)), strict=True)
            private += names if layer in self.private else ()
        return Layout(tuple(shapes), sum(after * (before + 1) for before, after in pairwise(self.sizes)), tuple(private))

    def initial(self, seed: int) -> Parameters:
        """Return the common initial model of a federation: the same bits as torch's."""
        draws = TorchGenerator(federation_streams(seed).torch_seed(0, "initial model"))
        tensors = [tensor for before, after in pairwise(self.sizes) for tensor in draws.linear(before, after)]
        return self.layout.flatten(dict(zip([name for name, _ in self.layout.shapes], tensors, strict=True)))

    def outputs(self, params: Parameters, x: np.ndarray) -> np.ndarray:
        """Return the outputs [n, k] of a model [P] for inputs [n, ...]."""
        return self._forward(self._layers(params), x)[-1]

    def gradient(self, params: Parameters, x: np.ndarray, y: np.ndarray, loss: LossWithGradient) -> Parameters:
        """Return the gradient of the mean loss of a batch at a model, [P]."""
        layers = self._layers(params)
        activations = self._forward(layers, x)
        _, slope = loss(activations.pop(), y)
        slope /= np.float32(len(x))
        gradient = np.empty_like(params)
        own = self._layers(gradient)
        for k in reversed(range(len(layers))):
            np.matmul(slope.T, activations[k], out=own[k][0])
            slope.sum(axis=0, out=own[k][1])
            if k:
                slope = slope @ layers[k][0]
                slope *= activations[k] > 0
        return gradient

    def clipped_sum(
        self, params: Parameters, x: np.ndarray, y: np.ndarray, loss: LossWithGradient, clip: float
    ) -> Parameters:
        """Return the sum of the gradients of single samples at a model, each scaled to a norm of at most `clip`; [P].

        The gradient of a sample in a layer is the product of its slope and its input, so that norms need no gradients
        (Goodfellow 2015).
        """
        total = np.zeros_like(params)
        if not len(x):
            return total
        layers, own = self._layers(params), self._layers(total)
        inputs = self._forward(layers, x)
        _, slope = loss(inputs.pop(), y)
        slopes = [slope]
        for k in reversed(range(1, len(layers))):
            slope = slope @ layers[k][0]
            slope *= inputs[k] > 0
            slopes.insert(0, slope)
        squares = np.zeros(len(x), np.float32)
        for slope, each in zip(slopes, inputs, strict=True):
            squares += np.square(slope).sum(axis=1) * (np.square(each).sum(axis=1) + np.float32(1))
        factors = clip_factors(np.sqrt(squares), clip)[:, None]
        for k, (slope, each) in enumerate(zip(slopes, inputs, strict=True)):
            scaled, kept = np.where(factors > 0, slope * factors, 0), np.where(factors > 0, each, 0)  # not 0 times infinity
            np.matmul(scaled.T, kept, out=own[k][0])
            scaled.sum(axis=0, out=own[k][1])
        return total

    def _layers(self, params: Parameters) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return views of the weight and the bias of each layer."""
        tensors = list(self.layout.unflatten(params).values())
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def _forward(self, layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> list[np.ndarray]:
        """Return the inputs of each layer, and the outputs of the last one."""
        found = [x.reshape(len(x), -1)]
        for k, (weight, bias) in enumerate(layers):
            if k:
                np.maximum(found[-1], 0, out=found[-1])
            found.append(found[-1] @ weight.T + bias)
        return found


def squared_error(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared error, averaged over the outputs of a sample, and its gradient; see Loss."""
    away = outputs - targets.reshape(outputs.shape)
    return np.square(away).mean(axis=1), away * np.float32(2 / outputs.shape[1])


class TorchGenerator:
    """Draws of torch's generator on a CPU after `torch.manual_seed(seed)`.

    Args:
        seed: from 0 to 2**64 - 1; the generator uses its lower 32 bits.
    """

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed & 0xFFFFFFFF)

    def linear(self, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the initial weight [outputs, inputs] and bias [outputs] of `torch.nn.Linear(inputs, outputs)`; float32."""
        deviation = math.sqrt(2.0 / (1 + math.sqrt(5) ** 2)) / math.sqrt(inputs)  # kaiming_uniform_ with a = sqrt(5)
        weight = self._uniform(outputs * inputs, math.sqrt(3.0) * deviation).reshape(outputs, inputs)
        return weight, self._uniform(outputs, 1 / math.sqrt(inputs))

    def _uniform(self, n: int, bound: float) -> np.ndarray:
        """Return n values from -bound to bound, float32."""
        low, high = np.float32(-bound), np.float32(bound)
        draws = (self._twister.randint(0, 2**32, n, np.uint32) & np.uint32(2**_BITS - 1)) * 2.0**-_BITS
        # float64 holds the product exactly, as the fused multiply-add in torch's kernel does: only the sum is rounded.
        values: np.ndarray = (draws * float(high - low) + float(low)).astype(np.float32)
        return values


def orders(
    streams: RandomStreams, round: int, purpose: str, *, n: int, batch_size: int, epochs: int
) -> list[np.ndarray] | list[None]:
    """Return a permutation of n samples for each epoch, or None for each if all samples fit into one batch.

    A single batch has no order, so none is drawn.
    """
    if n <= batch_size:
        return [None] * epochs
    rng = streams.generator(round, purpose)
    return [rng.permutation(n) for _ in range(epochs)]


def occasion(query: Train) -> str:
    """Return the name under which the state of a lasting optimiser is kept after a training.

    Trainings of one purpose with and without a proximal term, or the rule `Mixture`, are of different models, as in
    Ditto and APFL.
    """
    if isinstance(query.rule, Mixture):
        return f"{query.purpose}, mixture"
    return query.purpose if query.proximal is None else f"{query.purpose}, proximal"
