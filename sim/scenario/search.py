"""The `[search]` table of a scenario: options of `p2pfl-sim pareto` for its search for a front (MOFL/D)."""

from __future__ import annotations

from p2pfl.multiobjective.annealing import Schedule


class Search(Schedule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a search.

    Attributes:
        warm_start: each training starts from the model of the nearest preference that an earlier iteration has solved,
            and not from the initial model.
    """

    warm_start: bool = False
