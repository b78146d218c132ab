"""Recommendations from a sweep, one sentence each: the fastest run, the cheapest, the most accurate, the best in a budget.

A sentence compares the best run with the next one. Its margin is the mean of their differences over the seeds, and the
spread is the standard deviation of these differences. A margin within the spread decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2pfl.sim.formatting import number, size
from p2pfl.sim.report.series import Series
from p2pfl.sim.scenario.sweep import MODELS, label

Run = Mapping[str, Any]  # an entry of `runs` in summary.json
Value = Callable[[Run], float | None]


@dataclass(frozen=True)
class _Question:
    """A question to a sweep.

    Attributes:
        words: its answer without the run, such as "Fastest".
        value: the compared figure of a run.
        unit: the words for a value.
        higher: whether more is better.
    """

    words: str
    value: Value
    unit: Callable[[float], str]
    higher: bool = False


def recommendations(summary: Mapping[str, Any]) -> list[str]:
    """Return the recommendations from a sweep; [] for other scenarios, and for runs of different tasks.

    Args:
        summary: contents of summary.json.
    """
    runs = summary["runs"]
    if not summary.get("varied") or not any("front" in row for row in summary["table"]):  # runs of one task have a front
        return []
    metric, higher = str(runs[0]["metric"]), bool(runs[0].get("higher_is_better", True))
    best = "Most accurate" if metric == "accuracy" else f"Best test {metric}"
    questions = []
    if summary.get("target") is not None:
        goal = f"to a mean test {metric} of {number(summary['target'])}"
        questions = [
            _Question(f"Fastest {goal}", lambda run: _reached(run, "virtual_s"), _seconds),
            _Question(f"Fewest bytes {goal}", lambda run: _reached(run, "bytes"), size),
        ]
    questions.append(_Question(best, _mean, number, higher))
    for most in sorted(limit for limit in summary["varied"].get(MODELS, ()) if type(limit) is int and limit > 0):
        words = f"Best with at most {most} model{'s' * (most > 1)} a round"
        questions.append(_Question(words, _within(most), number, higher))
    return [sentence for question in questions if (sentence := _answer(question, summary))]


def _mean(run: Run) -> float | None:
    mean = run["test"]["mean"]
    return None if mean is None else float(mean)


def _reached(run: Run, cost: str) -> float | None:
    return None if run.get("reached") is None else float(run["reached"][cost])


def _seconds(value: float) -> str:
    return f"{value:,.3g} virtual s" if value < 1000 else f"{value:,.0f} virtual s"


def _within(most: int) -> Value:
    """Return a function for the mean of a run if no node received more models in a round."""

    def value(run: Run) -> float | None:
        received = run["traffic"].get("max_models_in_round")
        return _mean(run) if received is not None and received <= most else None

    return value


def _answer(question: _Question, summary: Mapping[str, Any]) -> str:
    """Return the sentence; "" if no run has the figure with every seed."""
    values = _values(question, summary)
    if not values:
        return ""
    sign = -1 if question.higher else 1
    first, *others = sorted(values, key=lambda name: sign * float(values[name].mean()))
    varied = {run["name"]: run.get("varied", {}) for run in summary["runs"]}
    said = {name: f"{label(name, varied[name])} ({question.unit(float(values[name].mean()))})" for name in values}
    if not others:
        return f"{question.words}: {said[first]}, the only result."
    margins = {name: sign * (values[name] - values[first]) for name in others}
    if len(summary["seeds"]) < 2:
        rest = f"first {said[first]}, next {said[others[0]]}"
        return f"{question.words}: not decided, because a single seed has no spread; {rest}."
    spreads = {name: float(margin.std(ddof=1)) for name, margin in margins.items()}
    close = [name for name in others if margins[name].mean() <= spreads[name]]
    rival = (close or others)[0]
    margin, spread = question.unit(float(margins[rival].mean())), question.unit(spreads[rival])
    if close:
        more = f" and {len(close) - 1} more" if len(close) > 1 else ""
        rivals = f"{said[first]} and {said[rival]}" if not more else f"{said[first]}, {said[rival]}{more}"
        within = f"the margin of {margin} is within its standard deviation over seeds, {spread}"
        return f"{question.words}: not decided between {rivals}; {within}."
    above = f"the margin of {margin} over {said[rival]} exceeds its standard deviation over seeds, {spread}"
    return f"{question.words}: {said[first]}; {above}."


def _values(question: _Question, summary: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the figure of each run that has it with every seed; of runs with equal events, only the first."""
    values: dict[str, np.ndarray] = {}
    traces = set()
    for name in dict.fromkeys(run["name"] for run in summary["runs"]):
        mine = {run["seed"]: run for run in summary["runs"] if run["name"] == name}
        found = [question.value(mine[seed]) if seed in mine else None for seed in summary["seeds"]]
        trace = tuple(mine[seed].get("trace") or name for seed in mine)
        if trace not in traces and all(value is not None and np.isfinite(value) for value in found):
            values[name] = np.array(found, float)
            traces.add(trace)
    return values


def in_words(one: Series) -> str:
    """Return the name of a run in a report for sentences, such as "topo: ring, no budget"."""
    return one.name.removesuffix(one.row) + label(one.row, one.shown.varied)
