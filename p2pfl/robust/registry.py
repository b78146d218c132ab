"""Robust rules by name, as the key `robust` of a federation or a scenario names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from p2pfl._util.binding import build, split_name
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.robust.candidates import MergeRule
from p2pfl.robust.clipping import CsHe, CsPlus, Gts, ScClip
from p2pfl.robust.coordinate_wise import Median, Rfa, Trimmed
from p2pfl.robust.selection import ClipLoss, Ios, Krum, LossWeighted, Nna, Ubar

Robust = str | dict[str, Any]
"""Value of the key `robust`: the name of a rule, or a table with its `name` and options."""

NONE, MEDIAN_CLIP, CLIP_LOSS = "none", "median-clip", "clip-loss"

CLIPPING = MEDIAN_CLIP, CLIP_LOSS
"""Names of the rules that clip models on reception; see p2pfl.robust.clipping."""

RULES: dict[str, Callable[..., MergeRule]] = {
    "scclip": ScClip,
    "cs+": CsPlus,
    "cs-he": CsHe,
    "gts": Gts,
    "nna": Nna,
    "ios": Ios,
    "rfa": Rfa,
    "ubar": Ubar,
    "loss": LossWeighted,
    CLIP_LOSS: ClipLoss,
    "krum": Krum,
    "median": Median,
    "trimmed": Trimmed,
}
"""Rules that change a merge. `none` and `median-clip` (p2pfl.robust.clipping) leave merges to the policy."""


def split_robust(robust: Robust) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a value of the key `robust`.

    Raises:
        ConfigurationError: the name is missing, or is not a string.
    """
    return (robust, {}) if isinstance(robust, str) else split_name("robust", robust)


def make_rule(robust: Robust) -> MergeRule | None:
    """Return the rule that changes merges, the same object for equal values; None for `none` and `median-clip`.

    Raises:
        ConfigurationError: the name is unknown, or the rule does not take an option.
    """
    name, options = split_robust(robust)
    return _make_rule(name, json.dumps(options, sort_keys=True, default=str))


def coordinator_rule(robust: Robust) -> MergeRule | None:
    """Return the rule that a coordinator applies to submissions; None for rules with which it clips them.

    Raises:
        ConfigurationError: the rule needs the data of each node, or see `make_rule`.
    """
    rule = make_rule(robust)
    if isinstance(rule, ClipLoss):
        return None
    if rule is not None and rule.needs_losses:
        raise ConfigurationError(f"a coordinated policy cannot use the robust rule {robust!r}, which needs losses")
    return rule


@lru_cache(maxsize=64)
def _make_rule(name: str, described: str) -> MergeRule | None:
    options = json.loads(described)
    if name in (NONE, MEDIAN_CLIP):
        if options:
            raise ConfigurationError(f"robust: {name} has no options, got {', '.join(options)}")
        return None
    if name not in RULES:
        raise unknown("robust rule", name, [NONE, MEDIAN_CLIP, *RULES])
    rule: MergeRule = build("robust", RULES[name], options)
    return rule


def describe_robust(robust: Robust) -> str:
    """Return the rule as text that both ends of a link compare: its name, then its options as JSON if it has any."""
    name, options = split_robust(robust)
    return f"{name} {json.dumps(options, sort_keys=True)}" if options else name
