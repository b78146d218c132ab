"""No collaboration: the baseline that every other policy must beat."""

from __future__ import annotations

from typing import Any

from p2pfl.policy import Me, Merge, Peers, Stage


class Local:
    """Train alone."""

    judged: Stage = "trained"

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        return Merge(await me.train(), {me.id: 1.0})

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
