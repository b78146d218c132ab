"""Probe of a machine: a hash of training steps, which shows whether its CPU and torch compute the same bits."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import torch
from torch import nn

from p2pfl._version import __version__
from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_learner import TorchLearner
from p2pfl.learning.torch_task import classification
from p2pfl.queries import Evaluate, NodeQuery, Train
from p2pfl.random_streams import RandomStreams

_CLASSES, _SIDE, _SAMPLES = 10, 12, 40


@dataclass(frozen=True)
class ProbeResult:
    """Identity of a machine's computations.

    Attributes:
        digest: SHA-256 of the models and metrics of the steps, in hexadecimal.
        machine: host name.
        program: version of p2pfl.
        processor: instruction set that torch uses, such as AVX2, or the name of the GPU.
    """

    digest: str
    machine: str
    program: str
    torch: str
    processor: str

    def __str__(self) -> str:
        return f"{self.machine} (torch {self.torch}, {self.processor})"


@cache
def probe(device: str = "cpu") -> ProbeResult:
    """Return the probe of this process: one epoch of a network with convolutions, and of a stack of MLPs.

    Args:
        device: device of torch, as a scenario names it.
    """
    digest = sha256()
    (image,) = _learners(_convolutions, (1, _SIDE, _SIDE), 1, device)
    digest.update(image.compute(Train(image.task.initial(0), 1)).tobytes())
    learners = _learners(_layers, (_SIDE,), 3, device)
    start = learners[0].task.initial(0)
    stack = BatchedLearner(learners)
    for model in stack.compute([NodeQuery(k, Train(start, 1)) for k in range(len(learners))]):
        digest.update(model.tobytes())
    evaluated = stack.compute([NodeQuery(k, Evaluate([start], ("train",))) for k in range(len(learners))])
    digest.update(repr(evaluated).encode())
    used = learners[0].device
    name = torch.cuda.get_device_name(used) if used.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return ProbeResult(digest.hexdigest(), platform.node(), __version__, str(torch.__version__), name)


def _learners(network: Callable[[], nn.Module], shape: tuple[int, ...], count: int, device: str) -> list[TorchLearner]:
    """Return learners of nodes with noise for samples."""
    learners = []
    for k in range(count):
        streams = RandomStreams(0, f"probe {k}")
        rng = streams.generator(0, "samples")
        samples = rng.standard_normal((_SAMPLES, *shape), "f4"), rng.integers(0, _CLASSES, _SAMPLES)
        task = classification(network, samples, optimizer=SGD(0.05, 0.9), batch_size=16)
        learners.append(task.learner(streams, device))
    return learners


def _convolutions() -> nn.Module:
    features = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*features, nn.Linear(8 * (_SIDE // 2) ** 2, _CLASSES))


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(_SIDE, 33), nn.ReLU(), nn.Linear(33, _CLASSES))
