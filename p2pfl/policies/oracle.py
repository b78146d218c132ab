"""Oracle: random gossip among the peers of the own group, which a real node does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2pfl.errors import ConfigurationError
from p2pfl.policies.random import Random
from p2pfl.policy import Me, Merge, Peers


@dataclass
class Oracle(Random):
    """Average with peers drawn uniformly from those whose task reports the own group.

    The upper bound of peer selection ("Oracle" of Listo Zec et al.). Raises ConfigurationError if the task has no
    groups, because the policy would then be plain random gossip.
    """

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        if "group" not in peers.public_info(me.id):
            raise ConfigurationError("the policy oracle needs a task with groups of nodes, but this task has none")
        return await super().prepare(me, peers)

    def candidates(self, me: Me, peers: Peers) -> Sequence[str]:
        group = peers.public_info(me.id).get("group")
        return [id for id in peers.ids if peers.public_info(id).get("group") == group]
