"""Answer of a scenario's question, from summary.json: each compared figure, its margin and its spread, or what is missing.

The scenario states its question and the rows that answer it (p2pfl.sim.scenario.questions). A margin is the mean over the
seeds of the differences of two rows, and its spread is the standard deviation of these differences. A margin within its
spread is not decided; neither is the margin of a single seed, which has no spread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from p2pfl.sim.formatting import count, decimals, difference, number, size, some
from p2pfl.sim.report.budgets import BudgetTable, budget_tables
from p2pfl.sim.report.findings import best, parentheses
from p2pfl.sim.report.folder import Row, Summary
from p2pfl.sim.scenario.claims import MEAN
from p2pfl.sim.scenario.questions import NAME, Answer, Pair, missing_rows, pairs_of, split

MOST_LISTED = 12  # comparisons that a sentence lists; more are counted
MOST_PLACES = 8  # sentences of an answer, one for each place
SIDES = ("above", "below", "equal", "not decided")
UNDECIDED = "Not decided. "
ATTACK, NO_ATTACK = "attack", "no attack"  # the name in braces, and the part of a row's name, that are said in other words
WORDS = {
    "weight_within_group": "weight on the own group",
    "clusters.best": "adjusted Rand index of the clusters in their best round",
    "against.times_bytes": "bytes sent, as a share of those of {against}",
    "reached.round": "rounds to the target",
    "reached.virtual_s": "virtual seconds to the target",
    "reached.bytes": "bytes to the target",
    "bytes": "bytes sent",
    "cost.trainings": "trainings of all nodes",
    "cost.joules": "joules of all nodes",
    "equal.seconds": "{metric} at equal time",
    "equal.bytes": "{metric} at equal bytes",
    "equal.trainings": "{metric} at equal trainings",
}


class Question(NamedTuple):
    """Question of a scenario, and the sentences that answer it; "" and none if it asks nothing.

    Attributes:
        missing: what the answer lacks; for the end of the output.
        tables: the best rows within budgets, for an answer with `within`.
    """

    asked: str = ""
    answers: Sequence[str] = ()
    missing: Sequence[str] = ()
    tables: Sequence[BudgetTable] = ()

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        said = [*self.answers, *(line for each in self.tables for line in each.lines())]
        return [f"question: {self.asked}", *(f"answer: {each}" for each in said)] if said else []

    def last_lines(self) -> list[str]:
        """Return the lines for the end of the output in a terminal: those on what the answer lacks."""
        asked = [f"question: {self.asked}"] if self.missing and not (self.answers or self.tables) else []
        return [*asked, *(f"answer: {each}" for each in self.missing)]


@dataclass(frozen=True)
class _Compared:
    """A row compared with another, or with a number. The margins are by seed."""

    row: str
    other: str
    place: str
    value: float
    than: float
    margins: np.ndarray

    @property
    def margin(self) -> float:
        return float(self.margins.mean())

    @property
    def spread(self) -> float | None:
        return float(self.margins.std(ddof=1)) if len(self.margins) > 1 else None

    @property
    def side(self) -> str:
        """Return the side of the other on which the row is, one of SIDES."""
        if self.spread is None or (self.margins.any() and abs(self.margin) <= self.spread):
            return "not decided"
        return "above" if self.margin > 0 else "below" if self.margin < 0 else "equal"


def question_of(summary: Summary) -> Question:
    """Return the question of a summary's scenario, with its answer."""
    if not summary.question:
        return Question()
    rows = {row.name: row for row in summary.table}
    varied = {row.name: row.varied for row in summary.table}
    said: list[str] = []
    without: dict[str, list[str]] = {}  # rows that are not among the results, and the figures that need them
    lacking: list[str] = []
    compared = False
    tables = budget_tables(summary)
    for answer in summary.answers:
        if answer.within:
            if not pairs_of(answer, varied):
                without.setdefault(_rows_needed(answer, rows), []).append("figures within budgets")
            continue
        figure = answer.figure or summary.figure or MEAN
        pairs = pairs_of(answer, varied)
        known = [pair for pair in pairs if not _lacking(pair, rows, figure)]
        words = _words(figure, summary)
        if known and answer.against is None:
            said += _ranked(answer, known, rows, figure, words)
        elif known:
            said += _sentences(answer, [_compared(pair, rows, figure) for pair in known], figure, words)
            compared = True
        if not pairs:
            without.setdefault(_rows_needed(answer, rows), []).append(words)
        else:
            lacking += _missing(pairs, known, rows, words)
    seeds = max((row.seeds for row in rows.values()), default=0)
    if compared and seeds > 1:
        said.append(parentheses(seeds))
    elif compared:
        said.append("Missing: a spread. These runs have a single seed, so no margin is decided; `--seeds 0:3` runs three.")
    lacking += [f"Missing: {summary.unanswered}"] if summary.unanswered else []
    if without:
        needed = (f"{each}, for the {some(dict.fromkeys(figures))}" for each, figures in without.items())
        lacking.append(f"Not among these results: {some(needed)}.")
    if not said and not lacking and not tables:
        lacking.append("Missing: the scenario does not state which rows answer it.")
    return Question(summary.question, said, lacking, tables)


def _words(figure: str, summary: Summary) -> str:
    metric = f"test {summary.runs[0].metric}"
    kind, _, name = figure.partition(".")
    reference = next((row.against.name for row in summary.table if row.against is not None), "")
    known = {MEAN: metric, "per_group": f"{metric} of group {name}", "objectives": name, "extra_metrics": name}
    known |= {"extra_metrics": f"{metric} of the mean model"} if name == "mean_model" else {}
    words = WORDS.get(figure, "").replace("{against}", reference).replace("{metric}", metric) or known.get(
        kind, figure.replace(".", " ")
    )
    return words.replace("_", " ")


def _format(figure: str, values: Sequence[float], spreads: Sequence[float | None]) -> tuple[Callable[..., str], ...]:
    """Return how a figure, a margin and a spread are written."""
    if figure.rpartition(".")[2] == "bytes" and not figure.startswith("equal."):
        return size, lambda value: f"{'+' if value >= 0 else '-'}{size(abs(value))}", size
    places = decimals(values, spreads)
    return (
        (lambda value: number(value, places)),
        (lambda value: difference(value, places)),
        lambda value: number(value, places),
    )


def _lacking(pair: Pair, rows: Mapping[str, Row], figure: str) -> bool:
    names = [pair.row, *([pair.other] if isinstance(pair.other, str) else [])]
    each = [rows[name].by_seed.get(figure) for name in names]
    return not all(values and all(value is not None and isfinite(value) for value in values) for values in each) or (
        len({len(values) for values in each if values}) > 1
    )


def _compared(pair: Pair, rows: Mapping[str, Row], figure: str) -> _Compared:
    values = np.array(rows[pair.row].by_seed[figure], float)
    if isinstance(pair.other, str):
        others = np.array(rows[pair.other].by_seed[figure], float)
    else:
        others = np.full(len(values), float(pair.other or 0))
    other = rows[pair.other].words if isinstance(pair.other, str) else f"{pair.other:g}"
    return _Compared(rows[pair.row].words, other, pair.place, float(values.mean()), float(others.mean()), values - others)


def _sentences(answer: Answer, found: Sequence[_Compared], figure: str, words: str) -> list[str]:
    """Return a sentence for each row or number that is compared with, or for each place if there are many."""
    write = _format(figure, [v for each in found for v in (each.value, each.than)], [each.spread for each in found])
    subject = words[0].upper() + words[1:]
    groups: dict[str, list[_Compared]] = {}
    for each in found:
        groups.setdefault(each.place if answer.by else each.other, []).append(each)
    if not answer.by and len(groups) > 1 and (len(groups) > MOST_PLACES or len(groups) == len(found)):
        groups = {"": list(found)}
    said = []
    for place, group in list(groups.items())[:MOST_PLACES]:
        verdict = _verdict(answer.yes, group)
        start = f"{verdict}{subject}{f', {answer.by} {place}' if answer.by else ''}"
        said.append(f"{start}{_counted(group, write) if len(group) > MOST_LISTED else _listed(group, write, verdict)}")
    if len(groups) > MOST_PLACES:
        said.append(f"{len(groups) - MOST_PLACES} more are in the table.")
    return said


def _listed(group: Sequence[_Compared], write: Sequence[Callable[..., str]], verdict: str) -> str:
    """Return each comparison of a few, by the side on which its row is. What they share is named once.

    Args:
        verdict: what stands before them; it says already if none is decided.
    """
    value, margin, spread = write
    rows, others = ({getattr(each, name) for each in group} for name in ("row", "other"))
    one_row, one_other = len(rows) == 1 < len(group), len(others) == 1
    first = group[0]
    sided = first.spread is not None and verdict != UNDECIDED
    start = f", {first.row} ({value(first.value)}) against" if one_row else ""
    if one_other:
        start += f", against {first.other}" + (f" ({value(first.than)})" if first.other != f"{first.than:g}" else "")
    parts = []
    for side in SIDES:
        items = []
        for each in (one for one in group if one.side == side):
            names = [] if one_row else [f"{each.row} {value(each.value)}"]
            names += [] if one_other else [f"{each.other} {value(each.than)}"]
            doubt = f" ± {spread(each.spread)}" if each.spread is not None else ""
            items.append(f"{' against '.join(names)} ({margin(each.margin)}{doubt})")
        head = f"{side}{' ' if one_row else ': '}" if sided else ""
        parts += [head + "; ".join(items)] if items else []
    return f"{start}: {'. '.join(part[0].upper() + part[1:] if sided else part for part in parts)}."


def _counted(group: Sequence[_Compared], write: Sequence[Callable[..., str]]) -> str:
    """Return how many of many comparisons are on each side, and the least and the greatest margin."""
    value, margin, _ = write
    sides = [(side, sum(each.side == side for each in group)) for side in SIDES]
    said = ", ".join(f"{number} {side}" for side, number in sides if number)
    ends = [
        f"{margin(each.margin)} ({each.row} {value(each.value)} against {each.other} {value(each.than)})"
        for each in (min(group, key=lambda one: one.margin), max(group, key=lambda one: one.margin))
    ]
    return f": of {len(group)} comparisons {said}; from {ends[0]} to {ends[1]}."


def _verdict(yes: str, group: Sequence[_Compared]) -> str:
    """Return "Yes. ", "No. ", "Not decided. " or in how many comparisons it is yes; "" if a number is asked for."""
    if not yes:
        return ""
    sides = [each.side for each in group]
    held, open_ = sides.count(yes), sides.count("not decided")
    if held == len(sides):
        return "Yes. "
    if held:
        return f"Yes in {held} of {len(sides)}. "
    return "No. " if open_ < len(sides) else UNDECIDED


def _ranked(answer: Answer, pairs: Sequence[Pair], rows: Mapping[str, Row], figure: str, words: str) -> list[str]:
    """Return the best row of each place."""
    said, places = [], dict.fromkeys((pair.place, pair.level) for pair in pairs)
    for place, level in list(places)[:MOST_PLACES]:
        mine = [pair.row for pair in pairs if (pair.place, pair.level) == (place, level)]
        ranked = [(rows[row].words, dict(enumerate(map(float, rows[row].by_seed[figure])))) for row in mine]  # type: ignore[arg-type]
        side = "Lowest" if answer.yes == "below" else "Highest"
        where = f"{f', {answer.by} {place}' if place else ''}{f', {level}' if level else ''}"
        said.append(str(best(f"{side} {words}{where}", ranked, higher=answer.yes != "below")))
    if len(places) > MOST_PLACES:
        said.append(f"{len(places) - MOST_PLACES} more are in the table.")
    return said


def _rows_needed(answer: Answer, rows: Mapping[str, Row]) -> str:
    """Return which rows an answer needs and these results lack."""
    if patterns := missing_rows(answer, {name: row.varied for name, row in rows.items()}):
        return " or ".join(map(_pattern_in_words, patterns))
    return "both rows of a comparison"


def _pattern_in_words(pattern: str) -> str:
    """Return which rows follow a pattern, such as "a row robust=none under each attack, for each policy and share"."""
    parts = [part for part in split(pattern) if not NAME.fullmatch(part.rpartition("=")[2])]
    said = " ".join(["a row", ", ".join(NAME.sub("…", part) for part in parts if part != NO_ATTACK)]).strip()
    said += " without attack" if NO_ATTACK in parts else ""
    names = list(dict.fromkeys(NAME.findall(pattern)))
    if ATTACK in names:
        names.remove(ATTACK)
        said += " under each attack"
    if not names:
        return said
    each = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{said}{',' if ATTACK in NAME.findall(pattern) else ''} for each {each}"


def _missing(pairs: Sequence[Pair], known: Sequence[Pair], rows: Mapping[str, Row], words: str) -> list[str]:
    """Return the figures of rows that an answer needs and these results lack."""
    lacking = [rows[pair.row].words for pair in pairs if pair not in known]
    if not lacking:
        return []
    named = "; ".join(list(dict.fromkeys(lacking))[:3])
    return [f"Missing: the {words} of {len(lacking)} of {count(len(pairs), 'comparison')}, such as {named}."]
