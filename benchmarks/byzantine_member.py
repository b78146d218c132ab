"""Policy of an own module: FedAvg, or an attacker that follows the protocol and publishes a harmful model.

A node attacks if its folder has a file `attack` with the name of an attack of p2pfl.attacks that needs no training. The
attackers answer only after they have fetched the models of the honest members, whose names do not begin with "attacker".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2pfl.attacks.attack import HonestView, Scene
from p2pfl.attacks.registry import make_attack
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policy import Me, Merge, Peers

ORDER = Path(__file__).with_name("attack")  # in the folder of a node, which holds a copy of this module


@dataclass
class Member(FedAvg):
    async def round(self, me: Me, peers: Peers) -> Merge:
        if not ORDER.exists():
            return await super().round(me, peers)
        view, mean = HonestView((me.id,), {}), me.params
        view.merged(me.id, me.params)  # the attackers begin a round with the mean of the honest models
        for update in await peers.models([id for id in peers.ids if not id.startswith("attacker")]):
            view.published(update.sender, update.params)
        if view.models:
            mean = view.moments.mean
            await peers.publish(await make_attack(ORDER.read_text(), {}).forge(Scene(me, mean, view)))
        return Merge(mean, {me.id: 1.0})
