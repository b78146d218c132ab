"""Interface of attacks, the models of honest nodes as attackers see them, and the policy of an attacker.

An attacker runs the policy of the other nodes, and publishes forged models in place of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from p2pfl.fragments import Fragments
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import (
    Assignment,
    Coordinated,
    Extras,
    Fragment,
    Me,
    Merge,
    Peers,
    Policy,
    Stage,
    Submission,
    Update,
    asks_scores,
    fetches_fragments,
)
from p2pfl.prediction_mixing import PredictionMixer

LARGEST = 1000.0  # times the norm of an honest model
AFTER = 1e-6  # seconds by which an attacker publishes later than the honest nodes, to see their models


class Moments(NamedTuple):
    """Mean and standard deviation of each coordinate, float32 [P] each."""

    mean: Parameters
    std: Parameters


class HonestView:
    """Models of all honest nodes, which only a simulator can show to attackers.

    Args:
        attackers: names of the attackers.
        neighbours: for each node, the names of the nodes that it may fetch from.

    Attributes:
        models: the newest published model of each honest node, by name.
        starts: the model with which each honest node began its round, by name.
    """

    def __init__(self, attackers: Sequence[str], neighbours: Mapping[str, Sequence[str]]) -> None:
        self.attackers = tuple(attackers)
        self.neighbours = neighbours
        self.models: dict[str, Parameters] = {}
        self.starts: dict[str, Parameters] = {}
        self.forged: dict[tuple[str, int], Parameters] = {}  # models that all attackers send, until a model changes

    def published(self, id: str, params: Parameters) -> None:
        """Note a model that an honest node has published."""
        self.models[id] = params
        self._forget()

    def merged(self, id: str, params: Parameters) -> None:
        """Note the model with which an honest node ends a round."""
        self.starts[id] = params
        self._forget()

    def _forget(self) -> None:
        self.forged.clear()
        for key in ("stack", "moments", "start"):
            self.__dict__.pop(key, None)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return the place of each node in the order of the names."""
        return {id: place for place, id in enumerate(sorted(self.neighbours))}

    @cached_property
    def stack(self) -> np.ndarray:
        """Return the honest models in the order of their names, float32 [H, P]."""
        return np.array([self.models[id] for id in sorted(self.models)])

    @cached_property
    def moments(self) -> Moments:
        """Return mean and sample standard deviation of the honest models."""
        stack = self.stack
        std = stack.std(axis=0, ddof=1 if len(stack) > 1 else 0)
        std[(stack == stack[0]).all(axis=0)] = 0  # rounding leaves some, which a search for a long step would enlarge
        return Moments(stack.mean(axis=0), std)

    @cached_property
    def start(self) -> Parameters | None:
        """Return the mean of the models with which the honest nodes began the round; None in the first round."""
        return np.array([self.starts[id] for id in sorted(self.starts)]).mean(axis=0) if self.starts else None


def as_accepted(forged: Parameters, honest: Parameters) -> Parameters:
    """Return a forged model that nodes accept: finite, with at most 1000 times the norm of an honest model.

    Live nodes refuse other models. A model with values that are not finite is replaced by the honest one.
    """
    norm, limit = (float(np.linalg.norm(model.astype(np.float64))) for model in (forged, honest))
    limit = LARGEST * (1 + limit)
    if norm <= limit:
        return forged
    return np.float32(limit / norm) * forged if np.isfinite(norm) else honest


class Scene(NamedTuple):
    """Knowledge of an attacker when it publishes a model.

    Attributes:
        me: the attacker's node; `me.params` is the model with which it began the round.
        own: the model that it has trained honestly.
        view: the models of all honest nodes. At least one has published a model.
    """

    me: Me
    own: Parameters
    view: HonestView

    @property
    def start(self) -> Parameters:
        """The honest nodes' mean model at the beginning of the round."""
        start = self.view.start
        return self.me.initial if start is None else start


@dataclass(frozen=True)
class Attack:
    """Base of attacks; this one publishes honest models.

    Attributes:
        flips_labels: whether the attacker trains on flipped labels.
        targeted: whether each victim gets another model, by `forge_for`.
        trains: whether the attacker trains; false for targeted attacks that do not need its own model.
    """

    flips_labels: ClassVar[bool] = False
    targeted: ClassVar[bool] = False
    trains: ClassVar[bool] = True

    async def forge(self, scene: Scene) -> Parameters:
        """Return the model to publish in place of the own one."""
        return scene.own

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        """Return the model that a victim receives, of an attack that is targeted.

        Args:
            sent: the published model.
        """
        return sent

    def forge_extras(self, extras: Extras, scene: Scene) -> Extras:
        """Return the extras to publish."""
        return extras


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

    @property
    def weights(self) -> Mapping[str, float] | None:
        return self._peers.weights

    @property
    def askers(self) -> tuple[str, ...]:
        return self._peers.askers

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

    def common_rng(self, purpose: str) -> np.random.Generator:
        return self._peers.common_rng(purpose)

    async def fragments(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments, stage: Stage = "trained", *, wait: bool = True
    ) -> list[Fragment]:
        return await self._peers.fragments(wanted, fragments, stage, wait=wait)

    def fragments_within_budget(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments
    ) -> Mapping[str, Sequence[str]]:
        return self._peers.fragments_within_budget(wanted, fragments)

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
        self.fetches_fragments = fetches_fragments(policy)
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
