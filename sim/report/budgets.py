"""Which row is best within which budget: the table and the drawings of an [[answer]] with `within`.

A row of the table is a budget, and a column a text of the answer's `by`, such as a kind of devices. A cell names the best
row, with its margin over the nearest other one and the standard deviation of this margin over the seeds; or the rows among
which it is not decided. The drawings show the same figure over all budgets: the test metric against the bytes that a node
has sent, and against time, a line for each row, with a panel for each text of `by`.

The figures within the budgets come from summary.json, and the lines from the tables of the rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from p2pfl.sim.formatting import count, decimals, difference, number, size
from p2pfl.sim.report.figures import MOMENTS, lines, reported_curve
from p2pfl.sim.report.findings import Ranking, apart, ranking
from p2pfl.sim.report.folder import Entry, Row, Summary
from p2pfl.sim.report.series import MOST_DASHES, MOST_HUES, TINTS, Figure, Section, Series
from p2pfl.sim.results.learning_curves import mean
from p2pfl.sim.scenario.questions import Answer, brief_names, pairs_of

MOST_TIED = 3  # rows that a cell names if it is not decided which is best
VIEWS = ("bytes sent", "virtual time")  # of the drawings, by their labels


class BudgetTable(NamedTuple):
    """Best rows within budgets, as heads and rows of cells.

    Attributes:
        heads: of the columns: the budget, and for each text of `by` the best row and its margin.
        cells: texts, a list for each budget.
        meaning: what the cells say, in a few sentences.
    """

    heads: list[str]
    cells: list[list[str]]
    meaning: str

    def lines(self) -> list[str]:
        """Return a sentence for each budget, for a terminal."""
        said = []
        for budget, *cells in self.cells:
            places = zip(self.heads[1::2], cells[::2], cells[1::2], strict=True)
            each = (f"{place}: {best}{f' ({margin})' if margin else ''}" for place, best, margin in places)
            said.append(f"At most {budget}: {'; '.join(each)}.")
        return said


def budget_tables(summary: Summary) -> list[BudgetTable]:
    """Return the table of each answer with budgets whose rows have figures."""
    return [made for answer in summary.answers if answer.within and (made := _table(answer, summary)) is not None]


def _table(answer: Answer, summary: Summary) -> BudgetTable | None:
    rows = {row.name: row for row in summary.table}
    places = _places(answer, {name: row.varied for name, row in rows.items()})
    higher = summary.runs[0].higher_is_better
    found: dict[str, list[Ranking | None]] = {}
    for kind, limits in answer.within.items():
        for most in limits:
            figure = f"within.{kind}.{most}"
            each = [_ranking(rows, names, figure, higher) for names in places.values()]
            if any(each):
                found[_budget(kind, most)] = each
    if not found:
        return None
    known = [one for each in found.values() for one in each if one is not None]
    spreads = [_deviation(one.margins) for one in known]
    write = decimals([one.value for one in known], [each for each in spreads if each is not None])
    heads = ["at most"]
    for place in places:
        heads += [place or "best", "margin"]
    cells = [[budget, *(text for one in each for text in _cell(one, write))] for budget, each in found.items()]
    return BudgetTable(heads, cells, _meaning(summary, max((row.seeds for row in rows.values()), default=1)))


def _places(answer: Answer, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the rows that are ranked together, each with a brief name, by words for what they share.

    Args:
        rows: the varied keys of each row with their values.
    """
    found: dict[str, list[str]] = {}
    for pair in pairs_of(answer, rows):
        words = ", ".join(filter(None, (f"{answer.by} {pair.place}" if pair.place else "", pair.level)))
        found.setdefault(words, []).append(pair.row)
    return {words: brief_names(answer, {row: rows[row] for row in own}) for words, own in found.items()}


def _ranking(rows: Mapping[str, Row], names: Mapping[str, str], figure: str, higher: bool) -> Ranking | None:
    """Return the ranking of the rows in `names` by a figure; None if no row has it with every seed."""
    ranked = []
    for row, name in names.items():
        values = rows[row].by_seed.get(figure, [])
        there = [value for value in values if value is not None]
        if there and len(there) == len(values):
            ranked.append((name, dict(enumerate(there))))
    return ranking(ranked, higher) if ranked else None


def _cell(one: Ranking | None, places: int) -> tuple[str, str]:
    """Return the best row with its figure, and its margin; or the rows among which it is not decided."""
    if one is None:
        return "no row", ""
    write = partial(number, places=places)
    first = f"{one.name} {write(one.value)}"
    if not one.rivals:
        return first, "the only row"
    ahead, spread = float(np.mean(one.margins)), _deviation(one.margins)
    margin = difference(ahead, places) if spread is None else "+{} ± {}".format(*apart(number, places, ahead, spread))
    if one.decided:
        return first, f"{margin} over {one.rivals[0][0]} {write(one.rivals[0][1])}"
    tied = [first, *(f"{name} {write(value)}" for name, value in one.rivals)]
    more = f" and {len(tied) - MOST_TIED} more" if len(tied) > MOST_TIED else ""
    return f"not decided: {', '.join(tied[:MOST_TIED])}{more}", margin


def _deviation(margins: Sequence[float]) -> float | None:
    return float(np.std(margins, ddof=1)) if len(margins) > 1 else None


def _budget(kind: str, most: int) -> str:
    words = {
        "models": f"{count(most, 'model')} a round",
        "bytes": f"{size(most)} sent by a node",
        "seconds": f"{most:,} s",
        "trainings": f"{count(most, 'training')} of a node",
        "joules": f"{most:,} J of a node",
    }
    return words[kind]


def _meaning(summary: Summary, seeds: int) -> str:
    metric = f"test {summary.runs[0].metric}"
    said = (
        f"Best row within each budget by the mean {metric} of the nodes' current models when the budget was spent, or at the"
        " end of the run if it never was. Within models a round, rows whose nodes received at most so many are ranked at the"
        " end. Bytes, trainings and joules are means over the nodes."
    )
    if seeds < 2:
        return f"{said} A single seed has no spread, so nothing is decided."
    return (
        f"{said} Margin: mean ± standard deviation over {count(seeds, 'seed')} of the difference from the nearest other row;"
        " where the margin over some row is within its standard deviation, it is not decided which is best."
    )


# Drawings


def budgets_section(series: Sequence[Series]) -> Section | None:
    """Return the section with the lines of each answer with budgets; None without one."""
    figures: list[Figure] = []
    for panels in _panels(series):
        for label in VIEWS:
            for place, names in panels.items():
                figure = _panel(names, place, label, f"budgets-{len(figures)}")
                figures += [figure] if figure["y"] else []
    return {"id": "budgets", "title": "Within a budget", "text": [], "figures": figures} if figures else None


def _panels(series: Sequence[Series]) -> list[dict[str, list[tuple[Series, str]]]]:
    """Return for each answer with budgets the runs that are ranked together, each with a brief name, by words."""
    found = []
    for folder in dict.fromkeys(one.folder for one in series):
        own = {one.row: one for one in series if one.folder is folder}
        varied = {row: one.shown.varied for row, one in own.items()}
        for answer in (each for each in folder.summary.answers if each.within):
            places = _places(answer, varied)
            found.append({words: [(own[row], name) for row, name in rows.items()] for words, rows in places.items()})
    return found


def _panel(runs: Sequence[tuple[Series, str]], place: str, label: str, id: str) -> Figure:
    metric, by_bytes = runs[0][0].metric, label == VIEWS[0]
    title = f"Test {metric} by {label}{' by a node' * by_bytes}{f', {place}' if place else ''}"
    series = [one for one, _ in runs]
    note = "Mean over the nodes of their current models."
    figure = lines(series, _curve, id=id, title=title, y_label=f"test {metric}", note=note, unfiltered=True)
    (view,) = [each for each in figure["views"] if each["label"] == label]
    if by_bytes:
        nodes = {one.name: one.shown.nodes for one in series}
        x = {name: values / nodes[name] for name, values in view["x"].items()}
        view = view | {"label": f"{label} by a node", "x": x}
    names = {one.name: name for one, name in runs}
    return figure | {"views": [view], "names": names, "note": figure["note"].replace(f" {MOMENTS}", "")}


def _curve(series: Series, entry: Entry) -> np.ndarray:
    return mean(reported_curve(series, entry))


def budget_styles(series: Sequence[Series]) -> list[tuple[int, int, int, int]] | None:
    """Return the hue, the tint, the dash and the mark of each run: runs of the same brief name look alike in all panels.

    Returns:
        None if not all runs are in a panel, if there are more names or panels than looks, or several folders.
    """
    looks: dict[str, tuple[int, int, int, int]] = {}
    if len({one.folder.path for one in series}) > 1:
        return None
    for panels in _panels(series):
        order = list(dict.fromkeys(name for runs in panels.values() for _, name in runs))
        if len(order) > MOST_HUES * MOST_DASHES or len(panels) > TINTS:
            return None
        for k, runs in enumerate(panels.values()):
            tint = round(k * (TINTS - 1) / max(1, len(panels) - 1))
            for one, name in runs:
                mark = order.index(name)
                looks[one.name] = (mark % MOST_HUES, tint, mark // MOST_HUES, mark)
    return [looks[one.name] for one in series] if looks and all(one.name in looks for one in series) else None
