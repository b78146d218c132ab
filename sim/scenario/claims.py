"""Claims of a scenario about its rows: one is better than another, or than a number; [[claim]] in its file.

[[claim]]
run = ["dpfl", "dpfl/.2N"]
above = "fedavg"           # or a list of rows, or a number; or `below`
by = 0.1                   # the minimum difference
paper = true               # the paper claims it; by default the project does

While a scenario is resolved, `check_claims` refuses claims that compare nothing. After its runs, `check` compares the rows
of the summary. Claims only show what was measured: a claim that is not held changes no result.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import stdev
from typing import Any

import msgspec

from p2pfl.errors import ConfigurationError, unknown
from p2pfl.sim.formatting import number
from p2pfl.sim.scenario.questions import Answer

MEAN = "mean"
ERRORS = 2.0  # standard errors of a difference over seeds that the difference must reach


class Claim(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Statement about rows of a table, which the measured figures confirm or contradict.

    Attributes:
        run: the row, or several rows; the claim applies to each.
        above: a row, several rows (all of them), or a number that the figure exceeds; an equal figure does not.
        below: the same, but greater than the figure; each claim has either `above` or `below`.
        by: the minimum difference. With several seeds, the difference must also be at least two of its standard errors.
        figure: the compared figure; by default the scenario's `figure`.
        holds: false marks a claim, for example of a paper, that was expected not to hold here.
        paper: whether the paper makes the claim; its printed figures agree with it. Otherwise it is the project's own.
        reason: why a claim does not hold here, in one line; with `holds = false` only, and then required.
    """

    run: str | list[str]
    above: str | list[str] | float | None = None
    below: str | list[str] | float | None = None
    by: float = 0.0
    figure: str = ""
    holds: bool = True
    paper: bool = False
    reason: str = ""

    def __str__(self) -> str:
        """Return a sentence like "a, b above c by 0.1"."""
        runs, others = _combined(self.runs), _combined([o if isinstance(o, str) else f"{o:g}" for o in self.others])
        side = "above" if self.above is not None else "below"
        by = f" by {self.by:g}" if self.by else ""
        between = "; " if any(", " in name for name in (*runs, *others)) else ", "  # names of sweeps have commas
        said = f"{_of(self.figure)}{between.join(runs)} {side} {between.join(others)}{by}"
        because = f" ({self.reason})" if self.reason else ""
        return said if self.holds else f"expected not to hold: {said}{because}"

    @property
    def whose(self) -> str:
        """Return "paper" for a claim of the paper, and "ours" for one of the project."""
        return "paper" if self.paper else "ours"

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
        text: the claim, with both figures, and whose it is if it is the paper's.
        held: whether the claim is true.
        stated: whether that agrees with the scenario.
        decided: whether the difference from what is claimed exceeds two of its standard errors; a claim that is held is
            decided.
        missing: whether a row has no such figure; then the claim is neither held nor as stated.
    """

    text: str
    held: bool
    stated: bool
    decided: bool = True
    missing: bool = False

    @property
    def verdict(self) -> str:
        """Return "held", "not held" or "not decided"; "" if a figure is missing."""
        return "" if self.missing else "held" if self.held else "not held" if self.decided else "not decided"

    def __str__(self) -> str:
        if self.missing:
            return self.text
        said = "" if self.stated or not self.decided else ", but the scenario states the opposite"
        return f"{self.text}: {self.verdict}{said}"


def check_claims(claims: Sequence[Claim], rows: Sequence[str]) -> None:
    """Check the claims of a scenario with these rows.

    Raises:
        ConfigurationError: a claim has an unknown row, or does not compare.
    """
    for claim in claims:
        if (claim.above is None) == (claim.below is None) or not claim.runs or not claim.others:
            raise ConfigurationError(f"the claim of {claim.run!r} must have either `above` or `below`")
        for name in (*claim.runs, *claim.others):
            if isinstance(name, str) and name not in rows:
                raise ConfigurationError(f"claim: {unknown('run', name, rows)}")
        if not isfinite(claim.by) or claim.by < 0:
            raise ConfigurationError(f"claim: by must be 0 or more, got {claim.by}")
        if claim.holds == bool(claim.reason):
            said = "needs a `reason`" if not claim.holds else "has a `reason`, which is for claims with `holds = false`"
            raise ConfigurationError(f"the claim of {claim.run!r} {said}")


def among(claims: Sequence[Claim], rows: Container[str]) -> list[Claim]:
    """Return the claims with only these rows; a claim that compares nothing of them is left out."""

    def present(names: Sequence[str | float]) -> list[Any]:
        return [name for name in names if not isinstance(name, str) or name in rows]

    found = []
    for claim in claims:
        runs, others = present(claim.runs), present(claim.others)
        if runs and others:
            side = {"above" if claim.above is not None else "below": others if len(others) > 1 else others[0]}
            found.append(msgspec.structs.replace(claim, run=runs, **side))
    return found


def check(claims: Sequence[Claim], figure: str, table: Sequence[Mapping[str, Any]]) -> list[Checked]:
    """Check claims against the rows of a summary's table, except rows that the table lacks.

    If both rows have `by_seed`, a difference is the mean over the seeds of the differences between the rows, and must be
    at least two of its standard errors. A row without the figure is named, and does not hold the claim; so is a row that
    has it with some seeds only, such as the rounds to a target that the others miss, because its mean is one of these seeds.
    """
    rows = {row["name"]: row for row in table}
    found = []
    for claim in claims:
        compared = claim.figure or figure
        for name in claim.runs:
            for other in claim.others:
                if name in rows and (isinstance(other, float | int) or other in rows):
                    pair = [name, *([other] if isinstance(other, str) else [])]
                    if lacking := [row for row in pair if not _with_every_seed(rows[row], compared)]:
                        seeds = " with every seed" if all(has_figure(rows[row], compared) for row in lacking) else ""
                        text = f"no figure {compared}{seeds} for {'; '.join(lacking)}"
                        found.append(Checked(text, False, False, missing=True))
                        continue
                    than = (other, float(other) if isinstance(other, float | int) else figure_of(rows[other], compared))
                    error = _standard_error(rows[name], rows.get(str(other)), compared)
                    found.append(_compare(claim, compared, (name, figure_of(rows[name], compared)), than, error))
    return found


def figures_in(figure: str, printed: Iterable[str], compared: Sequence[Claim | Answer]) -> list[str]:
    """Return the figures of a row that a scenario compares: the mean, its `figure`, `printed` ones, and others."""
    others = (each.figures if isinstance(each, Answer) else [each.figure] for each in compared)
    return list(dict.fromkeys([MEAN, figure, *printed, *(each for found in others for each in found if each)]))


def _with_every_seed(row: Mapping[str, Any], figure: str) -> bool:
    """Return whether a row has a figure, and with each seed; a row without `by_seed` does not say the latter."""
    of_seeds: Container[str] = row.get("by_seed", (figure,))
    return has_figure(row, figure) and figure in of_seeds


def _standard_error(row: Mapping[str, Any], other: Mapping[str, Any] | None, figure: str) -> float:
    """Return the standard error over the seeds of the difference between two rows; 0 if it is unknown.

    Args:
        other: None compares with a number.
    """
    values: Sequence[float] = row.get("by_seed", {}).get(figure, ())
    others: Sequence[float] = [0.0] * len(values) if other is None else other.get("by_seed", {}).get(figure, ())
    if len(values) < 2 or len(values) != len(others):
        return 0.0
    return stdev(a - b for a, b in zip(values, others, strict=True)) / sqrt(len(values))


def _compare(claim: Claim, figure: str, row: tuple[str, float], against: tuple[str | float, float], error: float) -> Checked:
    """Compare the figure of a row with that of another row, or with a number.

    Args:
        error: standard error of the difference.
    """
    (name, value), (other, than) = row, against
    above = claim.above is not None
    by = max(claim.by, ERRORS * error)
    difference = value - than if above else than - value
    held = difference >= by and difference > 0
    margin = f" {'+' if above else '-'} {by:.3g}" if by else ""
    compared = f"{other} {number(than)}" if isinstance(other, str) else number(than)
    sign = (">" if above else "<") + "=" * bool(by)
    text = f"{_of(figure)}{name} {number(value)} {sign} {compared}{margin}"
    decided = held or difference + ERRORS * error < claim.by or not error
    return Checked(f"{text} (paper)" if claim.paper else text, held, held == claim.holds, decided)


def _combined(names: Sequence[str]) -> list[str]:
    """Return one name like "a, rate=(1, 2)" for names of a sweep that differ in one setting; other names unchanged."""
    parts = [name.split(", ") for name in names]
    if len(parts) < 2 or len({len(part) for part in parts}) > 1:
        return [*names]
    varied = [k for k, values in enumerate(zip(*parts, strict=True)) if len({*values}) > 1]
    settings = [part[varied[0]].partition("=") for part in parts] if len(varied) == 1 else []
    if len({key for key, _, _ in settings}) != 1 or not all(equals for _, equals, _ in settings):
        return [*names]
    parts[0][varied[0]] = f"{settings[0][0]}=({', '.join(value for _, _, value in settings)})"
    return [", ".join(parts[0])]


def _of(figure: str) -> str:
    named = figure.removeprefix("extra_metrics.").replace(".", " ").replace("_", " ")
    return "" if figure in ("", MEAN) else f"{named} of "


def figure_of(row: Mapping[str, Any], figure: str) -> float:
    """Return a figure of a row of a summary's table, such as "mean" or "objectives.hypervolume".

    Raises:
        ConfigurationError: the row has no figure of that name.
    """
    value = _find(row, figure)
    if value is None:
        raise ConfigurationError(f"row {row['name']!r} has no figure {figure!r}")
    return value


def has_figure(row: Mapping[str, Any], figure: str) -> bool:
    """Return whether a row of a summary's table has a figure, which is a finite number."""
    return _find(row, figure) is not None


def _find(row: Mapping[str, Any], figure: str) -> float | None:
    value: Any = row
    for key in figure.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if known else None
