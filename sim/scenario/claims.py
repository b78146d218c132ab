"""Claims of a scenario about its rows: one is better than another, or than a number; [[claim]] in its file.

[[claim]]
run = ["dpfl", "dpfl/.2N"]
above = "fedavg"           # or a list of rows, or a number; or `below`
by = 0.1                   # the minimum difference
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from p2pfl.config.binding import bind
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.sim.formatting import number

MEAN = "mean"


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One claim of a scenario file.

    Attributes:
        run: the row, or several rows; the claim applies to each.
        above: a row, several rows (all of them), or a number that the figure exceeds.
        below: the same, but greater than the figure; each claim has either `above` or `below`.
        by: the minimum difference.
        figure: the compared figure; by default the scenario's `figure`.
        holds: false marks a claim, for example of a paper, that was measured not to hold here.
    """

    run: str | list[str]
    above: str | list[str] | float | None = None
    below: str | list[str] | float | None = None
    by: float = 0.0
    figure: str = ""
    holds: bool = True

    def __str__(self) -> str:
        """Return a sentence like "a, b above c by 0.1"."""
        others = [other if isinstance(other, str) else f"{other:g}" for other in self.others]
        side = "above" if self.above is not None else "below"
        by = f" by {self.by:g}" if self.by else ""
        between = "; " if any(", " in name for name in (*self.runs, *others)) else ", "  # names of sweeps have commas
        said = f"{_of(self.figure)}{between.join(self.runs)} {side} {between.join(others)}{by}"
        return said if self.holds else f"measured not to hold: {said}"

    @property
    def runs(self) -> list[str]:
        return [self.run] if isinstance(self.run, str) else self.run

    @property
    def others(self) -> list[str | float]:
        than = self.above if self.above is not None else self.below
        return [*than] if isinstance(than, list) else [] if than is None else [than]


@dataclass(frozen=True)
class Checked:
    """Measured comparison of one row with another, or with a number.

    Attributes:
        text: the claim, with both figures.
        held: whether the claim is true.
        stated: whether that agrees with the scenario.
    """

    text: str
    held: bool
    stated: bool

    def __str__(self) -> str:
        said = "" if self.stated else ", but the scenario states the opposite"
        return f"{self.text}: {'held' if self.held else 'not held'}{said}"


def claims_of(where: str, entries: Sequence[Mapping[str, Any]], rows: Sequence[str]) -> tuple[Claim, ...]:
    """Read the [[claim]] tables of a scenario with these rows.

    Raises:
        ConfigurationError: a claim has an unknown key or row, or does not compare.
    """
    claims = tuple(bind(f"{where}: claim", entry, Claim) for entry in entries)
    for claim in claims:
        if (claim.above is None) == (claim.below is None) or not claim.runs or not claim.others:
            raise ConfigurationError(f"{where}: the claim of {claim.run!r} must have either `above` or `below`")
        for name in (*claim.runs, *claim.others):
            if isinstance(name, str) and name not in rows:
                raise ConfigurationError(f"{where}: claim: {unknown('run', name, rows)}")
        if not isfinite(claim.by) or claim.by < 0:
            raise ConfigurationError(f"{where}: claim: by must be 0 or more, got {claim.by}")
    return claims


def check(claims: Sequence[Claim], figure: str, table: Sequence[Mapping[str, Any]]) -> list[Checked]:
    """Check claims against the rows of a summary's table, except rows that the table lacks.

    Raises:
        ConfigurationError: a row has no such figure.
    """
    rows = {row["name"]: row for row in table}
    found = []
    for claim in claims:
        compared = claim.figure or figure
        for name in claim.runs:
            for other in claim.others:
                if name in rows and (isinstance(other, float | int) or other in rows):
                    than = (other, float(other) if isinstance(other, float | int) else figure_of(rows[other], compared))
                    found.append(_compare(claim, compared, (name, figure_of(rows[name], compared)), than))
    return found


def _compare(claim: Claim, figure: str, row: tuple[str, float], against: tuple[str | float, float]) -> Checked:
    """Compare the figure of a row with that of another row, or with a number."""
    (name, value), (other, than) = row, against
    above = claim.above is not None
    held = value - than >= claim.by if above else than - value >= claim.by
    margin = f" {'+' if above else '-'} {claim.by:g}" if claim.by else ""
    compared = f"{other} {number(than)}" if isinstance(other, str) else number(than)
    text = f"{_of(figure)}{name} {number(value)} {'>=' if above else '<='} {compared}{margin}"
    return Checked(text, held, held == claim.holds)


def _of(figure: str) -> str:
    named = figure.removeprefix("extra_metrics.").replace(".", " ").replace("_", " ")
    return "" if figure in ("", MEAN) else f"{named} of "


def figure_of(row: Mapping[str, Any], figure: str) -> float:
    """Return a figure of a row of a summary's table, such as "mean" or "objectives.hypervolume".

    Raises:
        ConfigurationError: the row has no figure of that name.
    """
    value: Any = row
    for key in figure.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"row {row['name']!r} has no figure {figure!r}")
    return float(value)
