"""kNN-Per: a shared model whose predictions are mixed with those of the nearest own samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policy import built_in, refused_under_privacy
from p2pfl.prediction_mixing import KnnDatastore


@built_in("knn-per")
@dataclass
class KnnPer(CoordinatedFedAvg):
    """kNN-Per (Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local Memorization", ICML
    2022). FedAvg with the elected coordinator trains the shared model.

    A node predicts with `weight * p_kNN + (1 - weight) * p_model`. The prediction p_kNN comes from the labels of the
    node's k nearest training samples, in the feature space of the shared model. Each sample has the weight
    exp(-d^2 / (scale D)), where d is the Euclidean distance and D the number of features (as in the authors' program).
    Features are the inputs of the module's last linear layer. With weight 0 it is FedAvg.

    The parameters remain those of the shared model: they are sent, averaged and exported. The mixed predictions are
    evaluated and reported, also at the stage `trained`. The task must be a classification with cross-entropy loss.

    Simplified: the memory holds all training samples and the search is exact. `weight` is the same on all nodes (as in
    Kharrat et al.); the paper tunes it on each node's validation data.

    Attributes:
        epochs, ft: see `fedavg`.
        neighbours: k, the number of nearest samples.
        weight: lambda, the weight of the nearest samples, from 0 to 1.
        scale: sigma, the scale of the distances.
    """

    neighbours: int = 10
    weight: float = 0.5
    scale: float = 1.0

    under_privacy = refused_under_privacy("its predictions look up training samples")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours < 1:
            raise ValueError(f"neighbours must be 1 or more, got {self.neighbours}")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight must be from 0 to 1, got {self.weight}")
        if not 0 < self.scale < inf:
            raise ValueError(f"scale must be above 0, and finite, got {self.scale}")

    @property
    def memory(self) -> KnnDatastore:
        return KnnDatastore(self.neighbours, self.weight, self.scale)
