"""Errors that a run can end with, each with a sentence for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigurationError(Exception):
    """Something the user wrote is wrong: its text says what, where, and what would be right, in one line."""


class BudgetExceeded(Exception):
    """A policy asked for more than its node's budget allows."""


class Diverged(Exception):
    """Training has made a parameter that is not finite."""

    def __init__(self, name: str, round: int) -> None:
        super().__init__(f"the training of {name} diverged in round {round}; a lower learning rate may help")


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """Return the error for a `name` that is none of the `known` ones, with the nearest of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return ConfigurationError(f"unknown {what} {name!r}; {hint}")
