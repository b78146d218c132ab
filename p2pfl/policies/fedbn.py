"""FedBN: the normalisation layers stay on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from p2pfl.errors import ConfigurationError
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policy import Me, Merge, Peers, built_in, refused_under_privacy

RUNNING = "running_mean"  # the tensor by whose name a layer is known as batch normalisation


@built_in("fedbn")
@dataclass
class FedBn(CoordinatedFedAvg):
    """FedBN (Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization", ICLR 2021, algorithm 1), run by the elected coordinator.

    It is FedAvg of all layers but the batch normalisation, whose weights, biases, running means and variances stay on the
    node. They follow the node's own features, such as the contrast of its scanner. The task keeps them: `private = "norm"`
    of the task `images`, or the names of the layers with an own module. A task that keeps no layer with running means,
    or shares a tensor of one, is refused; FedAvg that keeps other layers is `coordinated-fedavg` with such a task.

    Attributes:
        epochs, ft: see `fedavg`.
    """

    only_mean: ClassVar[bool] = True

    under_privacy = refused_under_privacy("batch normalisation mixes the samples of a batch, so that no clip limits one")

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        named = [name.rpartition(".") for name in (*me.kept, *(name for name, _ in me.layout.shapes))]
        layers = {layer for layer, _, tensor in named if tensor == RUNNING}
        shared = [name for name, _ in me.layout.shapes if name.rpartition(".")[0] in layers]
        if shared or not layers:
            kept = f"shares {shared[0]}" if shared else "keeps no batch normalisation"
            raise ConfigurationError(
                f"the policy fedbn needs a task that keeps all batch normalisation on the node, but this one {kept}: set"
                ' task.private = "norm", with a model that has such layers; to keep other layers, use coordinated-fedavg'
            )
        return await super().prepare(me, peers)
