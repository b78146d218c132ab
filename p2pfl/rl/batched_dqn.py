"""DQN of many nodes as one stack of networks, with the random draws of single learners.

Rows of a stack are nodes. A training makes the steps of stable-baselines3's DQN in the same order: it differs from
`MorlLearner` only in the order of sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.learning.batched_learner import SequentialLearner
from p2pfl.parameters import Layout, Parameters
from p2pfl.queries import NodeQuery, R, Train
from p2pfl.rl.morl_learner import TRANSITIONS, MorlLearner, ObservationGrid, exploration_rate, grid_of
from p2pfl.rl.morl_settings import DQN


class BatchedDqn:
    """DQN learners that differ only in their preferences and draws. Trainings are computed together.

    The transitions of all nodes become rows of one array; each learner's buffer is a view of its row.

    Raises:
        ConfigurationError: the learners' environments, settings or `targets` differ, or are not those of a DQN.
    """

    def __init__(self, learners: Sequence[MorlLearner]) -> None:
        first = learners[0].task
        if not isinstance(first.settings, DQN):
            raise ConfigurationError("only DQN can be stacked")
        kind = first.environment.id, first.settings, first.targets
        if any((each.task.environment.id, each.task.settings, each.task.targets) != kind for each in learners):
            raise ConfigurationError("nodes cannot be stacked: their environments or settings differ")
        self._learners = learners
        self._settings = first.settings
        self._transitions = {name: _share_rows([each.buffer for each in learners], name) for name in TRANSITIONS}
        self._sequential = SequentialLearner(learners)

    def compute(self, jobs: Sequence[NodeQuery[R]]) -> Sequence[R]:
        """Return the answers to queries of one name. All but trainings are computed one by one."""
        if jobs[0].query.name != Train.name:
            return self._sequential.compute(jobs)
        results: list[Any] = [None] * len(jobs)
        groups = defaultdict(list)
        for k, job in enumerate(jobs):
            query = cast(Train, job.query)
            learner = self._learners[job.node]
            key = (
                query.round,
                query.epochs * learner.task.steps,
                learner.task.rounds,
                query.proximal is None,
                *learner.counters,
            )
            groups[key].append(k)
        for (round, steps, rounds, *_), ks in groups.items():
            nodes = [jobs[k].node for k in ks]
            queries = [cast(Train, jobs[k].query) for k in ks]
            training = _Training(self._settings, [self._learners[node] for node in nodes], nodes, self._transitions, queries)
            for k, trained in zip(ks, training.run(round, steps, rounds), strict=True):
                results[k] = trained
        return results


def _share_rows(buffers: Sequence[Any], name: str) -> np.ndarray:
    """Move a field of all buffers into one array [N, capacity, ...], and make the buffers views of it."""
    whole = np.stack([getattr(buffer, name) for buffer in buffers])
    for buffer, row in zip(buffers, whole, strict=True):
        setattr(buffer, name, row)
    return whole[:, :, 0]  # the axis of a buffer's environments, of which it has one


class _Training:
    """Networks of n nodes with equal counters, trained step by step as one batch.

    Args:
        learners: those of the nodes.
        rows: their rows in `transitions`.
        transitions: by field, [N, capacity, ...].
        queries: one for each node.
    """

    def __init__(
        self,
        settings: DQN,
        learners: Sequence[MorlLearner],
        rows: Sequence[int],
        transitions: dict[str, np.ndarray],
        queries: Sequence[Train],
    ) -> None:
        self._settings = settings
        self._learners = learners
        self._rows = np.array(rows, np.intp)[:, None]
        self._transitions = transitions
        first = learners[0]
        device = first.device
        layout = self._layout = first.layout
        self.online = _unstack(layout, [query.params for query in queries], device)
        self._anchors = None
        if proximal := [query.proximal for query in queries if query.proximal is not None]:  # of all, or of none
            mu = torch.tensor([mu for mu, _ in proximal], device=device)
            self._anchors = mu, _unstack(layout, [anchor for _, anchor in proximal], device)
        kept = first.task.targets == "kept" and first.counters[0] > 0
        self.target = _unstack(layout, [each.target() for each in learners], device) if kept else _copies(self.online)
        self._optimizer = torch.optim.Adam(self.online, lr=settings.learning_rate, fused=device.type == "cpu")
        self._load_moments()
        seeds = [
            each.streams.torch_seed(query.round, query.purpose) % 2**32
            for each, query in zip(learners, queries, strict=True)
        ]
        self._draws = [np.random.RandomState(seed) for seed in seeds]  # the same numbers as np.random, seeded globally
        for learner, seed in zip(learners, seeds, strict=True):
            learner.environment.action_space.seed(seed)
        self._seen = np.stack(
            [learner.environment.reset(seed=seed)[0] for learner, seed in zip(learners, seeds, strict=True)]
        )
        self._queries = queries
        space = first.environment.observation_space
        self._values: _EachObservation = _EachObservation()
        if (grid := grid_of(space)) is not None:
            self._values = _AllObservations(grid, len(learners), device)

    def run(self, round: int, steps: int, rounds: int) -> list[Parameters]:
        """Return the networks after these steps.

        Args:
            rounds: total number of rounds of the run, for the schedule of exploration.
        """
        settings, interval = self._settings, max(self._settings.target_update_interval, 1)
        begun, updates, calls = self._learners[0].counters
        taken = 0
        while taken < steps:
            for _ in range(settings.train_freq):
                chance = exploration_rate(settings, rounds, round, min(taken / steps, 1.0))
                self._act(chance if begun + taken >= settings.learning_starts else None)
                taken += 1
                calls += 1
                if calls % interval == 0:
                    self.target = _copies(self.online)
                    self._values.forget_target()
            if begun + taken > settings.learning_starts:
                count = settings.train_freq if settings.gradient_steps < 0 else settings.gradient_steps
                for _ in range(count):
                    self._learn()
                updates += count
                self._values.forget_online()
        return self._finish((begun + taken, updates, calls))

    def _act(self, chance: float | None) -> None:
        """Take a step in each environment and keep the transitions.

        Args:
            chance: probability of a random action; None for random actions that draw no such number.
        """
        explores = [chance is None or draws.rand() < chance for draws in self._draws]
        best = None if all(explores) else self._values.greedy(self.online, self._seen)
        buffers = [learner.buffer for learner in self._learners]
        place = buffers[0].pos
        for k, learner in enumerate(self._learners):
            environment = learner.environment
            action = environment.action_space.sample() if best is None or explores[k] else best[k]
            seen, reward, ended, cut, _ = environment.step(action)
            buffer = buffers[k]
            buffer.observations[place] = self._seen[k]
            buffer.next_observations[place] = seen
            buffer.actions[place] = action
            buffer.rewards[place] = reward
            buffer.dones[place] = ended or cut
            buffer.timeouts[place] = cut and not ended
            buffer.pos = place + 1
            if buffer.pos == buffer.buffer_size:
                buffer.full, buffer.pos = True, 0
            self._seen[k] = environment.reset()[0] if ended or cut else seen

    def _learn(self) -> None:
        """Make one gradient step of each node."""
        settings, buffer = self._settings, self._learners[0].buffer
        filled = buffer.buffer_size if buffer.full else buffer.pos
        places = np.stack([draws.randint(0, filled, size=settings.batch_size) for draws in self._draws])
        picked = {name: array[self._rows, places] for name, array in self._transitions.items()}
        device = self.online[0].device
        inputs, which = self._values.distinct(picked["observations"], device)
        following = self._values.best_values(self.target, picked["next_observations"], device)
        goes_on = 1 - picked["dones"] * (1 - picked["timeouts"])
        goal = (
            torch.from_numpy(picked["rewards"]).to(device)
            + torch.from_numpy(goes_on * np.float32(settings.gamma)).to(device) * following
        )
        actions = torch.from_numpy(picked["actions"][..., 0]).to(device)
        layers = forward(self.online, inputs)
        outputs = layers[-1]
        chosen = which * outputs.shape[2] + actions
        error = outputs.flatten(1).gather(1, chosen) - goal
        pull = torch.zeros_like(outputs).flatten(1).scatter_add_(1, chosen, error.clamp_(-1, 1) / error.shape[1])
        gradients = backward(self.online, layers, pull.view_as(outputs))
        norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]).norm(dim=0)
        limit = (self._learners[0].max_grad_norm / (norms + 1e-6)).clamp(max=1)
        for k, (tensor, gradient) in enumerate(zip(self.online, gradients, strict=True)):
            gradient.mul_(_over(limit, gradient))
            if self._anchors is not None:
                mu, anchors = self._anchors
                gradient.add_(_over(mu, gradient) * (tensor - anchors[k]))
            tensor.grad = gradient
        self._optimizer.step()

    def _load_moments(self) -> None:
        for k, tensor in enumerate(self.online):
            kept = [learner.moments(k) for learner in self._learners]
            if kept[0]:
                self._optimizer.state[tensor] = {
                    name: kept[0][name].clone() if name == "step" else torch.stack([each[name] for each in kept])
                    for name in kept[0]
                }

    def _finish(self, counters: tuple[int, int, int]) -> list[Parameters]:
        """Return the trained networks, and hand the rest of the state to the learners."""
        trained, targets = _stack(self._layout, self.online), _stack(self._layout, self.target)
        for row, (learner, query) in enumerate(zip(self._learners, self._queries, strict=True)):
            if not np.isfinite(trained[row]).all():
                raise DivergenceError(learner.streams.name, query.round)
            moments = [
                {
                    name: value.clone() if name == "step" else value[row].clone()
                    for name, value in self._optimizer.state[tensor].items()
                }
                for tensor in self.online
            ]
            learner.adopt(counters, targets[row], moments)
        return trained


class _EachObservation:
    """Values of observations that are computed as they come."""

    def greedy(self, net: Sequence[Tensor], seen: np.ndarray) -> list[int]:
        """Return the best action of each of n nodes in its observation, [n, d]."""
        inputs = torch.from_numpy(seen[:, None].astype(np.float32)).to(net[0].device)
        best: list[int] = forward(net, inputs)[-1][:, 0].argmax(1).tolist()
        return best

    def best_values(self, net: Sequence[Tensor], seen: np.ndarray, device: torch.device) -> Tensor:
        """Return the value of the best action in observations [n, B, d]; shape [n, B]."""
        return forward(net, torch.from_numpy(seen.astype(np.float32)).to(device))[-1].amax(2)

    def distinct(self, seen: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs [n, U, d] and the place in them of each observation, [n, B]."""
        places = torch.arange(seen.shape[1], device=device).expand(seen.shape[:2])
        return torch.from_numpy(seen.astype(np.float32)).to(device), places

    def forget_online(self) -> None:
        """Forget values of the networks that are trained; they have changed."""

    def forget_target(self) -> None:
        """Forget values of the target networks; they have changed."""


class _AllObservations(_EachObservation):
    """Values of an environment with few observations: those of all are computed at once, and repeated ones only once.

    Args:
        grid: the observations.
        count: n, the number of nodes.
    """

    def __init__(self, grid: ObservationGrid, count: int, device: torch.device) -> None:
        self._grid = grid
        self._inputs = torch.from_numpy(grid.all).to(device).expand(count, -1, -1)
        self._rows = np.arange(count)[:, None]
        self._actions: list[list[int]] | None = None
        self._best: Tensor | None = None

    def greedy(self, net: Sequence[Tensor], seen: np.ndarray) -> list[int]:
        if self._actions is None:
            self._actions = forward(net, self._inputs)[-1].argmax(2).tolist()
        return [row[code] for row, code in zip(self._actions, self._grid.indices(seen).tolist(), strict=True)]

    def best_values(self, net: Sequence[Tensor], seen: np.ndarray, device: torch.device) -> Tensor:
        if self._best is None:
            self._best = forward(net, self._inputs)[-1].amax(2)
        return self._best.gather(1, torch.from_numpy(self._grid.indices(seen)).to(device))

    def distinct(self, seen: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        codes = self._grid.indices(seen)
        present = np.zeros((len(codes), len(self._grid.all)), np.bool_)
        present[self._rows, codes] = True
        most = int(present.sum(1).max())
        kept = np.argsort(~present, axis=1, kind="stable")[:, :most]  # of nodes with fewer, some that are not present
        places = np.take_along_axis(present.cumsum(1) - 1, codes, 1)
        return torch.from_numpy(self._grid.all[kept]).to(device), torch.from_numpy(places).to(device)

    def forget_online(self) -> None:
        self._actions = None

    def forget_target(self) -> None:
        self._best = None


def forward(net: Sequence[Tensor], inputs: Tensor) -> list[Tensor]:
    """Return the inputs [n, B, d], the outputs of each hidden layer, and those of the last, [n, B, actions].

    Args:
        net: weight [n, out, in] and bias [n, out] of each layer in turn.
    """
    layers = [inputs]
    for k in range(0, len(net), 2):
        outputs = torch.baddbmm(net[k + 1].unsqueeze(1), layers[-1], net[k].transpose(1, 2))
        layers.append(outputs.relu_() if k + 2 < len(net) else outputs)
    return layers


def backward(net: Sequence[Tensor], layers: Sequence[Tensor], pull: Tensor) -> list[Tensor]:
    """Return the gradients of `net`, from those of its outputs, `pull`, of the shape of layers[-1]."""
    gradients: list[Tensor] = []
    for k in range(len(net) - 2, -1, -2):
        before = layers[k // 2]
        gradients[:0] = [torch.bmm(pull.transpose(1, 2), before), pull.sum(1)]
        if k:
            pull = torch.ops.aten.threshold_backward(torch.bmm(pull, net[k]), before, 0)
    return gradients


def _unstack(layout: Layout, models: Sequence[Parameters], device: torch.device) -> list[Tensor]:
    """Return the tensors of n models, each of shape [n, ...], in the order of the layout."""
    whole = torch.from_numpy(np.array(models)).to(device)
    return [whole[:, start:stop].reshape(len(models), *shape).clone() for _, start, stop, shape in layout.places]


def _stack(layout: Layout, tensors: Sequence[Tensor]) -> list[Parameters]:
    """Return n models from their tensors."""
    return list(torch.cat([tensor.flatten(1) for tensor in tensors], 1).cpu().numpy())


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def _over(values: Tensor, like: Tensor) -> Tensor:
    """Return values [n] in a shape that multiplies `like`, [n, ...]."""
    return values.view(-1, *[1] * (like.dim() - 1))
