"""Mix a model's predictions with those of a k-nearest-neighbours classifier, or of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec.structs import replace

from p2pfl.parameters import Parameters

if TYPE_CHECKING:
    from torch import Tensor


class PredictionMixer(msgspec.Struct, frozen=True, gc=False):
    """Base of the classifiers and ensembles that predictions are mixed with."""

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        """Return the mixer with its models completed from [S] to [P] by `whole`."""
        return self


class KnnDatastore(PredictionMixer, frozen=True, gc=False):
    """Mixture of a model's predictions with the k nearest training samples of the node.

    Attributes:
        neighbours: k; all samples if there are fewer.
        weight: lambda, the weight of the neighbours; the model has the weight 1 - lambda.
        scale: sigma of the kernel exp(-||f - f_i||^2 / (sigma * D)); D is the length of the features f.
    """

    neighbours: int
    weight: float
    scale: float


class ModelEnsemble(PredictionMixer, frozen=True, gc=False):
    """Mixture of a model's predictions with those of other models: the weighted mean of all probabilities.

    Attributes:
        models: float32, [P] each.
        shares: the weight of each of them; the model itself has the rest of 1.
    """

    models: Sequence[Parameters]
    shares: Sequence[float]

    def complete(self, whole: Callable[[Parameters], Parameters]) -> Self:
        return replace(self, models=[whole(model) for model in self.models])


def knn_mixed_logits(memory: KnnDatastore, outputs: Tensor, features: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """Return the logarithms of the mixed probabilities, [n, classes], which are valid logits.

    Args:
        outputs: the model's logits, [n, classes].
        features: the features of the same samples, [n, D].
        known: features of the training samples, [m, D], m at least 1.
        labels: their class numbers, [m].
    """
    import torch

    if not memory.weight:
        return outputs
    distances = torch.cdist(features, known, compute_mode="donot_use_mm_for_euclid_dist").square()
    order = distances.argsort(dim=1, stable=True)[:, : memory.neighbours]  # on a tie, the earlier sample
    nearest = distances.gather(1, order)
    nearness = torch.exp((nearest[:, :1] - nearest) / (memory.scale * features.shape[1]))  # nearest is 1: no underflow
    votes = torch.zeros_like(outputs).scatter_add_(1, labels[order], nearness)
    mixed = torch.lerp(outputs.softmax(1), votes / nearness.sum(1, keepdim=True), memory.weight)
    return mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log()
