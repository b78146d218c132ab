"""Budgets of simulated nodes: equal for all nodes, or drawn for each from a range."""

from __future__ import annotations

import msgspec

from p2pfl.errors import ConfigurationError
from p2pfl.policy import Budget
from p2pfl.random_streams import RandomStreams

Limit = int | tuple[int, int]


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on what each node may receive (see p2pfl.policy.Budget); 0 means no limit.

    Attributes:
        models: received in one round: a number for all nodes, a pair [low, high] from which each node's is drawn, both
            ends included, or a share of all nodes, above 0 and below 1: rounded, and at least one.
        held: received models held at once: a number for all nodes, or such a pair.
        bytes: of models received in one round: a number for all nodes, or such a pair.
    """

    models: Limit | float = 0
    held: Limit = 0
    bytes: Limit = 0

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        for key in self.__struct_fields__:
            limit = getattr(self, key)
            if isinstance(limit, float):
                if not 0 < limit < 1:
                    raise ConfigurationError(
                        f"budget.{key} must be a share of the nodes above 0 and below 1, or a whole number, got {limit}"
                    )
            elif isinstance(limit, int):
                if limit < 0:
                    raise ConfigurationError(f"budget.{key} must be 0 (no limit) or more, got {limit}")
            elif not 1 <= limit[0] <= limit[1]:
                raise ConfigurationError(
                    f"budget.{key} must be a number, or a pair [low, high] with 1 <= low <= high, got {list(limit)}"
                )

    def of(self, seed: int, name: str, nodes: int) -> Budget:
        """Return the budget of one node; `nodes` is the number of all nodes."""
        limits = {key: _draw(getattr(self, key), seed, name, f"budget {key}", nodes) for key in self.__struct_fields__}
        return Budget(**limits)


def _draw(limit: Limit | float, seed: int, name: str, purpose: str, nodes: int) -> int:
    if isinstance(limit, int):
        return limit
    if isinstance(limit, float):
        return max(1, round(limit * nodes))
    return int(RandomStreams(seed, name).generator(0, purpose).integers(limit[0], limit[1], endpoint=True))
