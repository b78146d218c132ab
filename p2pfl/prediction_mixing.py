"""Mixtures of a model's predictions with a k-nearest-neighbours classifier, or with an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec.structs import replace

from p2pfl.parameters import Parameters

if TYPE_CHECKING:
    from torch import Tensor


class PredictionMixer(msgspec.Struct, frozen=True, gc=False):
    """Base of what a model's predictions are mixed with."""

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        """Return it with its models completed from [S] to [P] by `whole`."""
        return self


class KnnDatastore(PredictionMixer, frozen=True, gc=False):
    """How a model's predictions are mixed with those of the k nearest training samples of the node.

    Attributes:
        neighbours: k; all samples where there are fewer.
        weight: lambda, how much the neighbours count; the model counts 1 - lambda.
        scale: sigma of the kernel exp(-||f - f_i||^2 / (sigma * D)), D being the length of the features f.
    """

    neighbours: int
    weight: float
    scale: float


class ModelEnsemble(PredictionMixer, frozen=True, gc=False):
    """Other models that predict together with a model: the mean of all probabilities, each with its share.

    Attributes:
        models: float32, [P] each.
        shares: of each of them; the model itself has what they leave of 1.
    """

    models: Sequence[Parameters]
    shares: Sequence[float]

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        return replace(self, models=[whole(model) for model in self.models])


def knn_mixed_logits(memory: KnnDatastore, outputs: Tensor, features: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """Return the logarithms of the mixed probabilities, [n, classes]; they are logits, too.

    Args:
        outputs: the model's logits, [n, classes].
        features: of the same samples, [n, D].
        known: features of the training samples, [m, D], m at least 1.
        labels: their class numbers, [m].
    """
    import torch

    if not memory.weight:
        return outputs
    distances = torch.cdist(features, known, compute_mode="donot_use_mm_for_euclid_dist").square()
    order = distances.argsort(dim=1, stable=True)[:, : memory.neighbours]  # of equals, the sample that comes first
    nearest = distances.gather(1, order)
    nearness = torch.exp((nearest[:, :1] - nearest) / (memory.scale * features.shape[1]))  # the nearest has 1: no underflow
    votes = torch.zeros_like(outputs).scatter_add_(1, labels[order], nearness)
    mixed = torch.lerp(outputs.softmax(1), votes / nearness.sum(1, keepdim=True), memory.weight)
    return mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log()
