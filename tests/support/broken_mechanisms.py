"""Mechanisms of a privacy budget with a planted fault each, which an audit must find. None is part of the project."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad

from p2pfl.learning.private_training import PrivateTraining
from p2pfl.privacy import StepDraws

LAST = 650  # values of the last layer of the digits: 64 x 10, and 10


class WithoutNoiseInTheLastLayer(StepDraws):
    generator = None  # so that `noise` is called for each node

    def noise(self, out, scale):
        super().noise(out, scale)
        out[-LAST:] = 0


class SameBatch(StepDraws):
    """Each step of a training takes the samples of the first one."""

    first = None

    def batch(self):
        if self.first is None:
            self.first = super().batch()
        return self.first


class WithoutReplacement(StepDraws):
    """Batches of an order of all samples, each of the same size, as trainings without a budget make them."""

    def __init__(self, streams, query, n_samples, batch_size):
        super().__init__(streams, query, n_samples, batch_size)
        order = streams.generator(query.round, f"{query.purpose} order").permutation(n_samples)
        self._parts = np.array_split(order, -(-n_samples // batch_size)) * max(1, query.epochs)

    def batch(self):
        return np.sort(self._parts.pop(0))


class ClipAfterAveraging(PrivateTraining):
    """The mean gradient of a batch is clipped, not the gradient of each sample."""

    def __init__(self, task, device, shared, seed):
        super().__init__(task, device, shared, seed)
        self.task, self.module = task, task.make(seed)

    def train(self, nodes, start, state):
        models = start.clone()
        for model, node in zip(models, nodes, strict=True):
            draws = StepDraws(node.streams, node.query, len(node.x), self.task.batch_size)
            noise = np.empty(len(model), np.float32)
            for _ in range(draws.steps):
                batch = torch.from_numpy(draws.batch())
                clip = node.query.mechanism.clip
                draws.noise(noise, node.query.mechanism.noise * clip / draws.expected)
                step = torch.from_numpy(noise.copy())
                keep = node.x[batch].abs().amax(1) < 1e30  # samples that count for nothing
                if keep.any():
                    mean = grad(self._loss)(model, node.x[batch][keep], node.y[batch][keep])
                    step += mean * (clip / mean.norm().clamp(min=clip))
                self.task.optimizer.step(model, step, {}, model)
        return models, {}

    def _loss(self, model, x, y):
        outputs = functional_call(self.module, self.task.layout.unflatten(model), (x,))
        return self.task.loss(outputs, y).mean()


def plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fault in place of the shipped mechanism, by its name in FAULTS."""
    broken = FAULTS[fault]
    if issubclass(broken, StepDraws):
        monkeypatch.setattr("p2pfl.learning.private_training.StepDraws", broken)
    else:
        monkeypatch.setattr("p2pfl.learning.torch_learner.PrivateTraining", broken)
        monkeypatch.setattr("p2pfl.learning.batched_learner.PrivateTraining", broken)


FAULTS = {
    "noise forgotten in the last layer": WithoutNoiseInTheLastLayer,
    "clip after averaging": ClipAfterAveraging,
    "the same batch in each step": SameBatch,
    "sampling without replacement": WithoutReplacement,
}
