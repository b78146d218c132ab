"""Question of a scenario, and what answers it: `question`, and [[answer]] in its file.

question = "Do nodes find the group whose labels agree with theirs?"

[[answer]]
run = ["dpfl", "dpfl/{budget}"]    # rows that answer it
against = "random graph/.2N"       # row, rows or a number to compare them with; without it the rows are ranked
figure = "weight_within_group"     # of a row in summary.json; by default the scenario's `figure`
yes = "above"                      # side of `against` that means yes; without it the answer is a number

A name in braces stands for any text. It has the same text in `run` and in `against`, so that "{data}/dpfl" is compared
with "{data}/local" of the same data. A name that only `against` has stands for each row. `by = "data"` collects the
comparisons of each text of that name.

Here are the comparisons that a file asks for. `p2pfl.sim.report.answers` makes sentences of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from p2pfl.errors import ConfigurationError

NAME = re.compile(r"\{(\w+)\}")


class Answer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Comparison that answers the question of a scenario.

    Attributes:
        run: rows, by their names or by patterns with names in braces.
        against: rows to compare each with, or a number; None ranks the rows.
        figure: the compared figure of a row in summary.json; by default the scenario's `figure`.
        yes: side of `against` on which a row answers the question with yes; "" if it asks for a number. Without `against`,
            "below" ranks the least figure first.
        by: name in braces; its texts separate comparisons and rankings.
    """

    run: str | list[str]
    against: str | list[str] | float | None = None
    figure: str = ""
    yes: Literal["", "above", "below"] = ""
    by: str = ""

    @property
    def runs(self) -> list[str]:
        return [self.run] if isinstance(self.run, str) else self.run

    @property
    def others(self) -> list[str]:
        """Return the patterns of `against`; [] for a number, and for a ranking."""
        return [self.against] if isinstance(self.against, str) else self.against if isinstance(self.against, list) else []


class Pair(NamedTuple):
    """A row, and the row or the number that it is compared with; None in a ranking. `place` is the text of `by`."""

    row: str
    other: str | float | None
    place: str


def check_answers(answers: Sequence[Answer]) -> None:
    """Raise ConfigurationError for an answer that compares nothing, whatever the rows are."""
    for answer in answers:
        if not answer.runs or answer.against == []:
            raise ConfigurationError(f"the answer of {answer.run!r} must name one or more rows", "answer")
        names = {name for pattern in answer.runs for name in NAME.findall(pattern)}
        if answer.by and not all(answer.by in NAME.findall(pattern) for pattern in answer.runs):
            known = f"its names in braces are {', '.join(sorted(names))}" if names else "it has no name in braces"
            raise ConfigurationError(f"answer: by = {answer.by!r} is not in every pattern of `run`; {known}", "answer")


def pairs_of(answer: Answer, rows: Sequence[str]) -> list[Pair]:
    """Return the comparisons of an answer among these rows, in the order of the rows."""
    patterns = [compiled(pattern) for pattern in answer.runs]
    known, found = dict.fromkeys(rows), dict[Pair, None]()
    for row in rows:
        match = next((match for pattern in patterns if (match := pattern.fullmatch(row))), None)
        if match is None:
            continue
        texts = match.groupdict()
        others = [other for pattern in answer.others for other in _rows_of(pattern, texts, known)]
        for other in others if answer.others else [answer.against]:
            if other != row:
                found[Pair(row, other, texts.get(answer.by, ""))] = None  # type: ignore[arg-type]
    return list(found)


def missing_rows(answer: Answer, rows: Sequence[str]) -> list[str]:
    """Return the patterns of an answer that no row has."""
    return [pattern for pattern in (*answer.runs, *answer.others) if not any(matches(pattern, row) for row in rows)]


def matches(pattern: str, row: str) -> bool:
    """Return whether the name of a row follows a pattern."""
    return compiled(pattern).fullmatch(row) is not None


def _rows_of(pattern: str, texts: Mapping[str, str], rows: Mapping[str, None]) -> list[str]:
    """Return the rows that follow a pattern, with these texts for its names."""
    given = NAME.sub(lambda name: texts.get(name[1], name[0]), pattern)
    if NAME.search(given) is None:
        return [given] if given in rows else []
    asked = compiled(given)
    return [row for row in rows if asked.fullmatch(row)]


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression."""
    parts, seen = [], set[str]()
    for k, part in enumerate(NAME.split(pattern)):
        if k % 2 == 0:
            parts.append(re.escape(part))
        else:
            parts.append(f"(?P={part})" if part in seen else f"(?P<{part}>.+?)")
            seen.add(part)
    return re.compile("".join(parts))
