"""Interface of attacks, and the models of honest nodes as attackers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.policy import Extras, Me

LARGEST = 1000.0  # times the norm of an honest model


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
        return Moments(stack.mean(axis=0), stack.std(axis=0, ddof=1 if len(stack) > 1 else 0))

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
