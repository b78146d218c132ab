"""Format of numbers and lists in tables and sentences, in a terminal and in the HTML of a report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import floor, isfinite, log10
from typing import Any

STAGES = ("trained", "merged")  # whose figures a table shows, if a run reports the better of both
PARETO_OPTIMAL = "Pareto-optimal: no other row is at least as good in both metric and bytes, and better in one."
STAGES_APART = (
    "trained and merged: each of its own best rounds, so their difference is not the effect of aggregation in a round, which"
    " the report shows"
)
R2 = (
    "r2: mean over the nodes of their own r2, which a few test rows of a node determine badly; r2 pooled: over the test rows"
    " of all nodes together"
)
BUDGETS = tuple(f"budget.{kind}" for kind in ("models", "held", "bytes", "trainings", "joules"))
LIMITS = (*BUDGETS, "network.bandwidth")  # keys for which 0 means no limit
MOST_DECIMALS = 6
ROUNDING = 1e-9  # share of the greatest value below which a spread is that of the arithmetic
TINY = 1e-4  # share of the greatest spread of a column below which a spread does not count
CODE = re.compile(r"`([^`]+)`")
PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def decimals(values: Iterable[float | None], spreads: Iterable[float | None] = ()) -> int:
    """Return the number of decimals for all numbers of a column, a drawing or a sentence.

    The values set a limit: 3 decimals if all are below 2, 2 if half of them are below 1000, else none; one great value,
    such as the loss of a run that diverged, thus hides no digit of the others. A spread, such as a standard deviation over
    seeds, lowers it to two significant digits of the least spread; the first digit of that spread is always shown.
    """
    there = sorted(abs(value) for value in values if value is not None and isfinite(value))
    most = there[-1] if there else 0.0
    limit = 3 if most < 2 else 2 if there[(len(there) - 1) // 2] < 1000 else 0
    known = [each for each in spreads if each is not None and isfinite(each) and each > ROUNDING * most]
    if not known:
        return limit
    first = -floor(log10(min(each for each in known if each >= TINY * max(known))))
    return min(max(min(first + 1, limit), first, 0), MOST_DECIMALS)


EPSILON = "epsilon: what the released models of a node may tell about one training sample, the greatest of a node in a run"


def number(value: float | None, places: int | None = None) -> str:
    """Format a number; "" if it is not a number.

    Args:
        places: decimals of the column that the number is in; None if it stands alone. See `decimals`.
    """
    if value is None or value != value:
        return ""
    return f"{value:,.{decimals([value]) if places is None else places}f}"


def difference(value: float | None, places: int | None = None) -> str:
    """Format a difference with its sign; a difference that rounds to zero has a plus."""
    if value is None or value != value:
        return ""
    places = decimals([value]) if places is None else places
    return f"{round(value, places) + 0.0:+,.{places}f}"


def column(values: Iterable[float | None], spreads: Iterable[float | None] = ()) -> list[str]:
    """Format the numbers of a column alike."""
    there = list(values)
    places = decimals(there, spreads)
    return [number(value, places) for value in there]


def as_printed(values: Iterable[float | None]) -> list[str]:
    """Format a column of a paper's figures with the decimals that the paper prints, whatever the spread of our own."""
    there = list(values)
    places = max((len(f"{value!r}".partition(".")[2].removesuffix("0")) for value in there if value is not None), default=0)
    return [number(value, places) for value in there]


def inline(text: str) -> str:
    """Return a text as HTML, with words between backticks as code."""
    return CODE.sub(r"<code>\1</code>", escape(text))


def of_paper(figure: str) -> str:
    """Return the heading of a paper's figures, such as "paper, hypervolume"; the mean is not named."""
    return "paper" if figure in ("", "mean") else f"paper, {figure.rpartition('.')[2]}"


def size(count: float | None) -> str:
    """Format a number of bytes with a decimal prefix, such as 1.5 MB."""
    if count is None:
        return ""
    prefix, factor = next((each for each in PREFIXES if abs(count) >= 0.9995 * each[1]), ("", 1.0))
    return f"{count / factor:.3g} {prefix}B" if factor > 1 else f"{count:.0f} B"


def count(things: int, noun: str) -> str:
    """Return a number with its noun, such as "1 seed" or "3 seeds"."""
    return f"{things:,} {noun}{'s' * (things != 1)}"


def setting(key: str, value: Any) -> str:
    """Format the value of a scenario's key; a limit of 0 is "none", and a table is its name with its options."""
    if key in LIMITS and value in (0, "0"):
        return "none"
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        options = (f"{option}={setting('', each)}" for option, each in value.items() if option != "name")
        return " ".join([value["name"], *options])
    return value if isinstance(value, str) else json.dumps(value, default=str)


def spread_meaning(heading: str) -> str:
    """Return what the column of this heading shows: the spreads of differences from a row."""
    return f"{heading}: standard deviation over the seeds of this difference; a difference within it is not decided"


def target_meaning(metric: str, target: str, asynchronous: bool = False) -> str:
    """Return how the costs until a target differ from the metric of the table.

    Args:
        asynchronous: whether the table has an asynchronous run.
    """
    moment = " (of an asynchronous run: at one moment)" if asynchronous else ""
    return (
        f"to {target}: until the mean over all nodes in one round{moment} reached it, else never; {metric} has each node's"
        " own best round, so it may reach a target that no round does"
    )


def measures_at(equal: Mapping[str, float]) -> dict[str, str]:
    """Return the heading of the metric at each of some measures, such as "at 60 s"; see AXES of learning_curves."""
    words = {
        "seconds": lambda most: f"at {most:,.4g} s",
        "bytes": lambda most: f"at {size(most)}",
        "trainings": lambda most: f"at {most:,.4g} trainings",
    }
    return {axis: words[axis](most) for axis, most in equal.items() if axis in words}


EQUAL = (
    "at: mean over the nodes' current models when a run had taken this virtual time, when all its nodes had sent these"
    " bytes, or when a node had trained this often on average"
)


def some(words: Iterable[str], most: int = 3, sign: str = ", ") -> str:
    """List words; if there are more than `most`, end with the number of the others.

    Args:
        sign: what separates the words; "; " for names of runs, which have commas.
    """
    listed = list(words)
    return sign.join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column names its rows."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join(f"<tr>{_row(*row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'


def _row(name: str, *cells: str) -> str:
    return f'<th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(each)}</td>" for each in cells)


def paragraphs(sentences: Sequence[str]) -> str:
    return "".join(f"<p>{inline(sentence)}</p>\n" for sentence in sentences)


def bullets(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{inline(sentence)}</li>\n" for sentence in sentences)
    return f"<ul>\n{items}</ul>\n" if sentences else ""


def terms(pairs: Mapping[str, str]) -> str:
    """Return a list of terms and their descriptions."""
    return "<dl>" + "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs.items()) + "</dl>\n"
