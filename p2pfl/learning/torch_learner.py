"""Training of one node with PyTorch's autograd: the reference on real machines, which the stacked form must match.

A model is one flat vector, [P]; its layout says which tensor is where. The module computes with views of the vector in place
of its own tensors, and the optimiser steps on the trained values as a whole. What a module must keep from one training to
the next (integer buffers, attributes that `forward` changes) is the last part of the vector.

Every draw of a training comes from (seed, node, round, purpose): the order of the samples from `orders`, and the numbers of
random layers from torch's generator, which is seeded for the training and restored after it. The same query therefore gives
the same bits, whatever was computed before it, on a machine or in a simulation. The exceptions are an optimiser that is
`lasting`, and state that a vector cannot carry (p2pfl.learning.module_probe.Conduct).

A batch has `batch_size` samples, and the last one of an epoch the rest. Some modules need several samples in a batch: with
one, batch norm has no variance, and torch refuses it or a module's own code divides by 0. A last batch that is too small for
the module joins the batch before (`batch_sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from p2pfl.algorithms.group_statistics import CountGroups, GroupCounts
from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.learner import Learner, answers
from p2pfl.learning.dense import occasion, orders
from p2pfl.learning.kernels.kernel import convolution_kernel
from p2pfl.learning.losses import cross_entropy
from p2pfl.learning.module_probe import is_plain
from p2pfl.learning.modules import seeded
from p2pfl.learning.optimizers import LastingState, Optimizer, State, at_round
from p2pfl.learning.private_training import Node, PrivateTraining
from p2pfl.learning.rule_gradients import follow, most_steps, plan, resting, shared_values
from p2pfl.learning.torch_problem import TorchProblem
from p2pfl.multiobjective.preferences import Preference
from p2pfl.multiobjective.scalarisation import DifferentiateObjectives, ObjectiveGradients, Objectives
from p2pfl.parameters import Parameters, plain_sum
from p2pfl.prediction_mixing import KnnDatastore, ModelEnsemble, PredictionMixer, knn_mixed_logits
from p2pfl.queries import Evaluate, Loss, Split, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Lookahead, Mechanism, Mixture, Rule, Scalarised, TrainSubset, Weighted

Place = tuple[str, int, int, tuple[int, ...]]  # name, start, stop and shape of a tensor in the flat vector


class TorchLearner(Learner):
    """Learner of a TorchTask on one device.

    Raises:
        ConfigurationError: the device is not available, or the node has too few samples for its module.
    """

    def __init__(self, task: TorchProblem, streams: RandomStreams, device: str = "cpu") -> None:
        self.task = task
        self.streams = streams
        self.device = choose_device(device)
        self.data = {split: (x.to(self.device), y.to(self.device)) for split, (x, y) in task.data.items()}
        self._weights = task.weights(self.device)
        cpu = self.device.type == "cpu"
        self._kernel = convolution_kernel(task, self.device) if cpu else None  # faster than torch's convolutions
        self._lasting = LastingState(1, task.layout.n_trained, self.device)
        self._size = task.layout.size
        check_sizes(task, streams.name)

    # Made at the first training, because a learner in a stack (see BatchedLearner) computes almost nothing itself.

    @cached_property
    def _module(self) -> nn.Module:
        return self.task.make(self.streams.seed).to(self.device)

    @cached_property
    def _plain(self) -> bool:
        """Certainty that an evaluation draws no numbers."""
        return is_plain(self._module)

    @cached_property
    def _trained(self) -> list[Place]:
        layout = self.task.layout
        return [place for place in layout.places if place[2] <= layout.n_trained]

    @cached_property
    def _rest(self) -> list[Place]:
        layout = self.task.layout
        return [place for place in layout.places if place[2] > layout.n_trained and place[0] not in layout.local]

    @cached_property
    def _shared(self) -> Tensor | None:
        return shared_values(self.task.layout, self.device)

    @cached_property
    def _private(self) -> PrivateTraining:
        return PrivateTraining(self.task, self.device, self._shared, self.streams.seed)

    @answers(Mechanism)
    @torch.no_grad()
    def _train_privately(self, query: Train) -> Parameters:
        node = Node(query, self.streams, *self.data["train"], partial(module_seed, self.streams, query))
        planned, purpose = at_round(self.task.optimizer, query.round), occasion(query)
        start = torch.tensor(query.params, device=self.device).unsqueeze(0)
        models, state = self._private.train([node], start, self._lasting.start(planned, purpose, [0]))
        if not models.sum().isfinite():
            raise DivergenceError(self.streams.name, query.round)
        self._lasting.keep(purpose, [0], planned, state)
        trained: Parameters = models[0].cpu().numpy()
        return trained

    @answers(Train, Rule)
    def _train(self, query: Train) -> Parameters:
        rule, proximal = query.rule, query.proximal
        own = self._weights_of(rule)
        vector = torch.tensor(query.params, device=self.device)
        n = self.task.layout.n_trained
        weights = vector[:n]
        anchor = None if proximal is None else torch.tensor(proximal[1], device=self.device)[:n]
        x, y = self.data["train"]
        planned = at_round(self.task.optimizer, query.round)
        optimizer, batch_size, epochs = plan(rule, planned, self.task.batch_size, query.epochs, len(x))
        steps = most_steps(rule, epochs * -(-len(x) // batch_size))
        before = self._lasting.start(optimizer, occasion(query), [0])
        state = optimizer.start(weights, steps) if before is None else {name: rows[0] for name, rows in before.items()}
        mixed = self._lasting.start(optimizer, query.purpose, [0]) if isinstance(rule, Mixture) else None
        other_state = None if mixed is None else {name: rows[0] for name, rows in mixed.items()}
        gradient = self._gradient_by(rule, vector, own, optimizer, steps, other_state=other_state)
        still = resting(rule, self._shared)
        rest = None if still is None else weights[still]
        least = least_batch(self.task, rule)
        check_batches(self.task, self.streams.name, len(x), batch_size, least)
        state_of, module = self.task.conduct.state, self._module
        state_of.put(module, query.params[self._size - state_of.size :])
        module.train()
        with seeded(module_seed(self.streams, query), self.device, beyond_torch=bool(self.task.conduct.others)):
            order = orders(self.streams, query.round, query.purpose, n=len(x), batch_size=batch_size, epochs=epochs)
            for index in islice(batches(order, batch_size, least), steps):
                grad = gradient(x[index], y[index])
                if proximal is not None and anchor is not None:
                    away = weights - anchor
                    grad.add_(away if self._shared is None else away * self._shared, alpha=proximal[0])
                optimizer.step(weights, grad, state, weights)
                if still is not None and rest is not None:
                    weights[still] = rest
        if not vector.sum().isfinite():
            raise DivergenceError(self.streams.name, query.round)
        self._lasting.keep(occasion(query), [0], optimizer, {name: tensor[None] for name, tensor in state.items()})
        trained: Parameters = vector.cpu().numpy()
        if state_of.size:
            trained[self._size - state_of.size :] = state_of.take(module)
        return trained

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of what lasts from one training to the next: the state of an optimiser with `lasting`."""
        return self._lasting.arrays(0)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state that `state` returned; see p2pfl.task.StatefulLearner."""
        self._lasting.restore(0, state)

    def _weights_of(self, rule: Rule | None) -> Tensor | None:
        """Return the weights of the objectives in a training with a rule, float32 [m]; None without objectives."""
        if isinstance(rule, Weighted):
            self._of_groups("tally")
        if not isinstance(rule, Scalarised):
            return self._weights
        self._objectives()
        return torch.tensor(rule.weights, dtype=torch.float32, device=self.device)

    def _gradient_by(
        self,
        rule: Rule | None,
        vector: Tensor,
        own: Tensor | None,
        optimizer: Optimizer,
        steps: int,
        *,
        other_state: State | None,
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the function from a batch (inputs, targets) to the direction of a rule's step from `vector`, [n].

        Args:
            vector: the model that is trained in place, [P].
            own: the weights of the objectives.
            steps: maximum number of steps.
            other_state: see p2pfl.learning.rule_gradients.follow.
        """
        weights, rest = vector[: self.task.layout.n_trained], self._views(vector, self._rest)
        following = follow([rule], weights, optimizer, steps, self._shared, other_state=other_state)
        if self._kernel is not None and not isinstance(rule, TrainSubset):
            kernel = self._kernel

            def of_kernel(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
                return kernel.gradient(point[None], x[None], y[None])[0]

            if following is None:
                return lambda x, y: of_kernel(weights, x, y)
            return lambda x, y: following(of_kernel, weights, x, y, slice(None))
        # Leaves share their memory with a vector: with `weights`, which the optimiser changes between steps, or with a
        # vector for the point at which a rule evaluates the gradient. (With a single leaf, autograd would fill a vector
        # of zeros for each of its parts.)
        place = weights if following is None else torch.empty_like(weights)
        # Values that a rule does not change need no gradient. For a private head this saves the body's backward pass.
        parts = self._views(place, self._trained)
        leaves = {name: view.detach().requires_grad_(self._moves(rule, name)) for name, view in parts.items()}
        buffers = {name: view.detach() for name, view in rest.items()}
        homes = parts | rest if self.task.conduct.changed else {}

        def here(x: Tensor, y: Tensor) -> Tensor:
            gradient = self._gradient(leaves, buffers, (x, y), own)
            for name, home in homes.items():
                _return(leaves if name in leaves else buffers, name, home)
            return gradient

        if following is None:
            return here

        def slope(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
            place.copy_(point)
            return here(x, y)

        return lambda x, y: following(slope, weights, x, y, slice(None))

    @answers(Loss)
    def _losses(self, query: Loss) -> np.ndarray:
        split = query.split
        if split not in self.data:
            return np.full(len(query.stack), np.nan)
        return np.array([self._evaluate(params, split).get(f"{split}_loss", np.nan) for params in query.stack])

    @answers(Evaluate)
    def _figures(self, query: Evaluate) -> list[dict[str, float]]:
        results: list[dict[str, float]] = []
        for params in query.stack:
            result: dict[str, float] = {}
            for split in query.splits:
                if split in self.data:
                    result |= self._evaluate(params, split)
            results.append(result)
        return results

    @answers(PredictionMixer)
    @torch.no_grad()
    def _mixed_figures(self, query: Evaluate) -> list[dict[str, float]]:
        """Evaluate mixed predictions. Features are the inputs of the module's last linear layer.

        Raises:
            ConfigurationError: with a kNN memory, the task is not a classification with cross-entropy, or its module
                has no linear layer; with an ensemble, its samples have no groups.
        """
        assert query.memory is not None
        results: list[dict[str, float]] = []
        for params in query.stack:
            mixed = self._mixing(params, query.memory)
            result: dict[str, float] = {}
            for split in query.splits:
                if split in self.data and len(self.data[split][0]):
                    figures = self.task.figures(mixed(split), self.data[split][1], self._weights)
                    result |= {f"{split}_{name}": value.item() for name, value in figures.items()}
            results.append(result)
        return results

    @answers(CountGroups)
    @torch.no_grad()
    def _count_groups(self, query: CountGroups) -> GroupCounts:
        """Count the decisions on the training samples by label and group.

        Raises:
            ConfigurationError: the samples have no groups.
        """
        x, y = self.data["train"]
        found: GroupCounts = self._of_groups("tally")(self.outputs(query.params, x), y)
        return found

    def _of_groups(self, method: str) -> Any:
        """Return a method of the task that only tasks with groups have."""
        found = getattr(self.task, method, None)
        if found is None:
            raise ConfigurationError(f"the policy needs {CountGroups.hint}")
        return found

    def _mixing(self, params: Parameters, company: PredictionMixer) -> Callable[[Split], Tensor]:
        """Return the function that computes the mixed outputs of a model for a split."""

        if isinstance(company, ModelEnsemble):
            mixed, shares = self._of_groups("mix_logits"), [1 - plain_sum(company.shares), *company.shares]
            models = [params, *company.models]
            return lambda split: mixed([self.outputs(model, self.data[split][0]) for model in models], shares)
        assert isinstance(company, KnnDatastore)
        if self.task.objectives is not None or self.task.loss is not cross_entropy:
            raise ConfigurationError("a memory of samples needs a classification task with cross-entropy loss")
        _, known = self._outputs_and_features(params, "train")
        labels = self.data["train"][1]
        return lambda split: knn_mixed_logits(company, *self._outputs_and_features(params, split), known, labels)

    @torch.no_grad()
    def _outputs_and_features(self, params: Parameters, split: Split) -> tuple[Tensor, Tensor]:
        linear = [part for part in self._module.modules() if isinstance(part, nn.Linear)]
        if not linear:
            raise ConfigurationError("a memory of samples needs a module whose last layer is torch.nn.Linear")
        features: list[Tensor] = []
        hook = linear[-1].register_forward_pre_hook(lambda _, given: features.append(given[0].flatten(1)))
        try:
            outputs = self.outputs(params, self.data[split][0], by_hand=False)
        finally:
            hook.remove()
        return outputs, features[-1]

    @answers(DifferentiateObjectives)
    def _differentiate(self, query: DifferentiateObjectives) -> ObjectiveGradients:
        """Differentiate the losses on all training samples at once.

        Raises:
            ConfigurationError: the task does not have several objectives.
        """
        objectives, preference = self._objectives()
        vector = torch.tensor(query.params, device=self.device)
        leaves = {name: view.detach().requires_grad_() for name, view in self._views(vector, self._trained).items()}
        x, y = self.data["train"]
        with self._evaluating(query.params) as module:
            outputs = functional_call(module, leaves | self._views(vector, self._rest), (x,))
        losses = objectives.losses(outputs, y)
        gradients = np.zeros((len(losses), len(query.params)), np.float32)
        for row, loss in zip(gradients, losses, strict=True):
            parts = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, materialize_grads=True)
            row[: self.task.layout.n_trained] = torch.cat([part.flatten() for part in parts]).cpu().numpy()
        return ObjectiveGradients(preference, losses.detach().cpu().numpy().astype(np.float64), gradients)

    def _objectives(self) -> tuple[Objectives, Preference]:
        if self.task.objectives is None or self.task.preference is None:
            raise ConfigurationError("the policy needs a task of several objectives")
        return self.task.objectives, self.task.preference

    def _gradient(
        self, leaves: dict[str, Tensor], buffers: dict[str, Tensor], batch: tuple[Tensor, Tensor], weights: Tensor | None
    ) -> Tensor:
        x, y = batch
        tensors = leaves | buffers
        outputs = functional_call(self._module, tensors, (x,))
        buffers.update((name, tensors[name]) for name in buffers)  # the module may have put other tensors in their places
        loss = self.task.batch_loss(outputs, y, weights)
        moving = [leaf for leaf in leaves.values() if leaf.requires_grad]
        grads = iter(torch.autograd.grad(loss, moving, materialize_grads=True))  # 0 for unused leaves
        return torch.cat(
            [(_dense(next(grads)) if leaf.requires_grad else torch.zeros_like(leaf)).flatten() for leaf in leaves.values()]
        )

    def _moves(self, rule: Rule | None, name: str) -> bool:
        return not isinstance(rule, TrainSubset) or (name in self.task.layout.private) == (rule.part == "private")

    @torch.no_grad()
    def _evaluate(self, params: Parameters, split: Split) -> dict[str, float]:
        x, y = self.data[split]
        if not len(x):
            return {}
        figures = self.task.figures(self.outputs(params, x), y, self._weights)
        return {f"{split}_{name}": value.item() for name, value in figures.items()}

    def outputs(self, params: Parameters, x: Tensor, by_hand: bool = True) -> Tensor:
        """Return the outputs of a model, float32 [P], for inputs `x`, [n, ...].

        Args:
            by_hand: whether convolutions may be computed without the module.
        """
        vector = torch.tensor(params, device=self.device)
        if by_hand and self._kernel is not None and len(x):
            return self._kernel.outputs(vector[None], x[None])[0]
        tensors = self._views(vector, self._trained) | self._views(vector, self._rest)
        with self._evaluating(params) as module:
            outputs: Tensor = functional_call(module, tensors, (x,))
        return outputs

    @contextmanager
    def _evaluating(self, params: Parameters) -> Iterator[nn.Module]:
        """Return the module in evaluation mode, with the state of a model, and with its generators seeded.

        Every evaluation of a node draws the same numbers, so that they make no difference between models.
        """
        conduct, module = self.task.conduct, self._module
        if conduct.uncarried:  # an evaluation must leave this state as it was
            module = deepcopy(module)
        conduct.state.put(module, params[self._size - conduct.state.size :])
        module.eval()
        if self._plain:
            yield module
            return
        with seeded(evaluation_seed(self.streams), self.device, beyond_torch=bool(conduct.others)):
            yield module

    @staticmethod
    def _views(vector: Tensor, places: list[Place]) -> dict[str, Tensor]:
        return {name: vector[start:stop].view(shape) for name, start, stop, shape in places}


def module_seed(streams: RandomStreams, query: Train) -> int:
    """Return the seed of the numbers that a module's random layers draw in a training."""
    return streams.torch_seed(query.round, f"{query.purpose} module")


def evaluation_seed(streams: RandomStreams) -> int:
    """Return the seed of the numbers that a module draws in an evaluation."""
    return streams.torch_seed(0, "evaluation module")


def _return(tensors: dict[str, Tensor], name: str, home: Tensor) -> None:
    """Copy a tensor to its place in the vector if the module has replaced it or its memory, and restore the tensor."""
    tensor = tensors[name]
    if tensor.data_ptr() != home.data_ptr():
        home.copy_(tensor.detach())
        if tensor.is_leaf and tensor.requires_grad:
            tensor.data = home
        else:
            tensors[name] = home.detach()


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.layout != torch.strided else gradient


def batches(order: list[np.ndarray] | list[None], batch_size: int, least: int = 1) -> Iterator[slice | Tensor]:
    """Yield the indices of each step's samples from an order for each epoch; see `orders` and `batch_sizes`."""
    for permutation in order:
        if permutation is None:
            yield slice(None)
        else:
            full, last = map(int, batch_sizes(np.array(len(permutation)), batch_size, least))
            yield from torch.split(torch.from_numpy(permutation), [batch_size] * full + [last] * (last > 0))


def choose_device(name: str) -> torch.device:
    """Return the torch device for `auto`, `cpu`, `cuda` or `mps`; `auto` selects the best available one.

    Raises:
        ConfigurationError: the name is unknown or malformed, or this machine lacks the device.
    """
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    present = {"cuda": cards, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        return torch.device(next(kind for kind, count in present.items() if count))
    kind = name.partition(":")[0]
    if kind not in present:
        raise ConfigurationError(f"unknown device {name!r}; known: auto, cpu, cuda, mps")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or str(device) != name:  # torch silently changes a large number to another one
        raise ConfigurationError(f"device {name!r} is not of the form {kind} or {kind}:0")
    if (device.index or 0) >= present[kind]:
        raise ConfigurationError(f"device {name!r} is not available on this machine; auto selects the best available device")
    return device


def batch_sizes(counts: np.ndarray, batch_size: int, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of full batches of some nodes, and the sizes of the last batches after them, which may be 0.

    Args:
        counts: number of samples of each node.
        least: fewest samples of a batch; a smaller last one joins the batch before.
    """
    full, last = np.divmod(counts, batch_size)
    joined = (full > 0) & (last > 0) & (last < least)
    return full - joined, last + batch_size * joined


def least_batch(task: TorchProblem, rule: Rule | None) -> int:
    """Return the fewest samples of a batch that a task's module needs in a training."""
    least = task.conduct.least
    return 2 * least - 1 if isinstance(rule, Lookahead) else least  # which takes two gradients, on half a batch each


def check_sizes(task: TorchProblem, node: str) -> None:
    """Raise ConfigurationError if a node has too few samples, or too small batches, for its module."""
    conduct, name = task.conduct, type(task.template).__name__
    check_batches(task, node, task.n_samples, task.batch_size, conduct.least)
    for split, (x, _) in task.data.items():
        if 0 < len(x) < conduct.least_evaluated:
            raise ConfigurationError(
                f"{node} has {len(x)} sample in its {split} data, but module {name} evaluates at least"
                f" {conduct.least_evaluated} together; give the node more samples, or use GroupNorm, LayerNorm, or batch"
                " norm with running statistics"
            )


def check_batches(task: TorchProblem, node: str, n: int, batch_size: int, least: int) -> None:
    """Raise ConfigurationError if batches of n samples of a node are smaller than `least`."""
    if least > 1 and min(n, batch_size) < least:
        name = type(task.template).__name__
        few, remedy = (
            (f"{n} training sample{'s' * (n > 1)}", "give the node more samples")
            if n < least
            else (f"batch_size = {batch_size}", f"set batch_size to at least {least}")
        )
        raise ConfigurationError(
            f"{node} has {few}, but module {name} needs batches of at least {least}, as batch norm does; {remedy}, or use"
            " GroupNorm or LayerNorm"
        )
