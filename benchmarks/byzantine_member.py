"""Policy of an own module: FedAvg, or an attacker that follows the protocol and publishes a harmful model.

A node attacks if its folder has a file `attack` with the name of an attack. The attackers answer only after they have
fetched the models of the honest members, whose names do not begin with "attacker".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policy import Me, Merge, Peers

ATTACKS = ("sign-flip", "scale", "alie", "ipm")
ORDER = Path(__file__).with_name("attack")  # in the folder of a node, which holds a copy of this module


def harm(attack: str, start: Parameters, honest: np.ndarray) -> Parameters:
    """Return the model to publish instead of the mean of the honest ones, float32 [H, P]."""
    mean = honest.mean(axis=0)
    match attack:
        case "scale":
            return np.float32(100.0) * mean
        case "alie":
            return mean + np.float32(1.5) * honest.std(axis=0, ddof=1)
        case "ipm":
            return start - np.float32(2.0) * (mean - start)
        case _:
            return start - (mean - start)


@dataclass
class Member(FedAvg):
    async def round(self, me: Me, peers: Peers) -> Merge:
        if not ORDER.exists():
            return await super().round(me, peers)
        honest = [id for id in peers.ids if not id.startswith("attacker")]
        models = np.array([update.params for update in await peers.models(honest)] or [me.params])
        await peers.publish(harm(ORDER.read_text(), me.params, models))
        return Merge(models.mean(axis=0), {me.id: 1.0})
