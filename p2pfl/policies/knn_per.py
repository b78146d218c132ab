"""kNN-Per: a shared model whose predictions are mixed with those of each node's own samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.prediction_mixing import KnnDatastore


@dataclass
class KnnPer(CoordinatedFedAvg):
    """kNN-Per (Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local Memorization", ICML 2022),
    with the shared model by FedAvg through the elected coordinator.

    A node predicts with `weight * p_kNN + (1 - weight) * p_model`. The prediction p_kNN is made of the labels of the k
    nearest training samples of the node, by the features that the shared model gives them. Each counts exp(-d^2 / (scale
    D)), where d is the Euclidean distance and D the number of features (as in the authors' program). Features are what the
    module's last linear layer gets. At weight 0 it is FedAvg.

    The parameters stay those of the shared model: they are what travels, is averaged and exported. Mixed predictions are
    what is evaluated and judged, of the snapshot `trained` too. Only classifications by cross-entropy can have them.

    Simplified: the memory holds all training samples, the search is exact, and `weight` is the same at all nodes (as with
    Kharrat et al.), where the paper tunes it on each node's validation data.

    Attributes:
        epochs, ft: as of `fedavg`.
        neighbours: k.
        weight: lambda, from 0 to 1.
        scale: sigma.
    """

    neighbours: int = 10
    weight: float = 0.5
    scale: float = 1.0

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
