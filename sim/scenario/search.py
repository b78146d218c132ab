"""The `[search]` table of a scenario: how `p2pfl-sim pareto` looks for a front (MOFL/D)."""

from __future__ import annotations

from p2pfl.multiobjective.annealing import Schedule


class Search(Schedule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        warm_start: each training starts from the model of the nearest preference that an iteration before has solved, and
            not from the initial one.
    """

    warm_start: bool = False
