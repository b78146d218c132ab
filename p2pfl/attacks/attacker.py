"""Policies of attackers: the policy of the other nodes, with forged models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from p2pfl.attacks.attack import Attack, HonestView, Scene, as_accepted
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import Assignment, Coordinated, Extras, Me, Merge, Peers, Policy, Stage, Submission, Update, asks_scores
from p2pfl.prediction_mixing import PredictionMixer

AFTER = 1e-6  # seconds by which an attacker publishes later than the honest nodes, to see their models


class AttackerPeers(Peers):
    """Peers of an attacker: what it publishes or submits is forged."""

    def __init__(self, me: Me, peers: Peers, attack: Attack, view: HonestView) -> None:
        self._me = me
        self._peers = peers
        self._attack = attack
        self._view = view

    @property
    def ids(self) -> tuple[str, ...]:
        return self._peers.ids

    def public_info(self, id: str) -> Mapping[str, Any]:
        return self._peers.public_info(id)

    def round_order(self, round: int) -> Mapping[str, int]:
        return self._peers.round_order(round)

    async def publish(self, params: Parameters, extras: Extras | None = None, stage: Stage = "trained") -> None:
        forged, added = await self._forge(params, extras or {})
        await self._peers.publish(forged, added, stage)

    async def models(self, ids: Sequence[str], stage: Stage | Mapping[str, Stage] = "trained") -> list[Update]:
        return await self._peers.models(ids, stage)

    def within_budget(self, ids: Sequence[str]) -> Sequence[str]:
        return self._peers.within_budget(ids)

    async def remote_losses(self, ids: Sequence[str], params: Parameters) -> dict[str, float]:
        return await self._peers.remote_losses(ids, params)

    async def submit(
        self,
        params: Parameters,
        *,
        extras: Extras | None = None,
        previous: Extras | None = None,
        start: Parameters | None = None,
    ) -> Assignment | None:
        forged, added = await self._forge(params, extras or {})
        return await self._peers.submit(forged, extras=added, previous=previous, start=start)

    async def _forge(self, params: Parameters, extras: Extras) -> tuple[Parameters, Extras]:
        await asyncio.sleep(AFTER)
        if not self._view.models:
            return params, extras
        scene = Scene(self._me, params, self._view)
        with np.errstate(over="ignore", invalid="ignore"):
            forged = await self._attack.forge(scene)
        return as_accepted(forged, params), self._attack.forge_extras(extras, scene)


class IdleNode:
    """View of a node that does not train: for attackers whose own model nobody receives."""

    def __init__(self, me: Me) -> None:
        self._me = me

    def __getattr__(self, name: str) -> Any:
        return getattr(self._me, name)

    async def train(self, params: Parameters | None = None, **options: Any) -> Parameters:
        return self._me.params if params is None else params


class Attacker(Policy):
    """Policy of an attacker. It trains and merges as another policy does, and publishes forged models.

    Args:
        policy: the policy of the honest nodes.
        attack: forges the models.
        view: the models of the honest nodes.
    """

    def __init__(self, policy: Policy, attack: Attack, view: HonestView) -> None:
        self.policy = policy
        self.reported_stage = policy.reported_stage
        self.asks_scores = asks_scores(policy)
        self._attack = attack
        self._view = view

    @property
    def memory(self) -> PredictionMixer | None:
        memory: PredictionMixer | None = getattr(self.policy, "memory", None)
        return memory

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return await self.policy.prepare(self._as_seen(me), AttackerPeers(me, peers, self._attack, self._view))

    async def round(self, me: Me, peers: Peers) -> Merge:
        return await self.policy.round(self._as_seen(me), AttackerPeers(me, peers, self._attack, self._view))

    def _as_seen(self, me: Me) -> Me:
        """Return the node as the policy sees it; it only trains if the attack needs its model."""
        return me if self._attack.trains else cast(Me, IdleNode(me))

    def state(self) -> dict[str, Any]:
        return self.policy.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.policy.restore(state)


class CoordinatedAttacker(Attacker):
    """Attacker with a coordinated policy. An attacker that coordinates makes honest steps."""

    policy: Coordinated

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        return self.policy.step(submissions, state, layout)


def attacker(policy: Policy, attack: Attack, view: HonestView) -> Attacker:
    """Return the policy of an attacker."""
    return (CoordinatedAttacker if isinstance(policy, Coordinated) else Attacker)(policy, attack, view)
