"""Facts of what a reader understood of its source, for the user to compare with what they meant.

A task whose data come from files has them in `data_facts` (see p2pfl.task.Task). `p2pfl-sim data check` shows them,
`p2pfl-sim run` writes them to `summary.json` and prints their line, and a node logs the line when it starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["feature", "label", "sensitive", "ignored"]
MOST_NAMED = 6  # columns or values that a line names
MOST_COLUMNS = 64  # of one source in JSON
MOST_SOURCES = 16  # of one run in JSON: each node may have its own


@dataclass(frozen=True)
class ColumnFacts:
    """One column of a table, one array of an archive, or one field of a sample.

    Attributes:
        name: its name; "" if it has none.
        kind: how its values were read, in the singular, for example "number" or "category".
        role: use of the column.
        values: number of different values, missing ones excluded; None if unknown.
        range: least and greatest number; None for a column without numbers.
        missing: number of missing values.
    """

    name: str
    kind: str
    role: Role = "feature"
    values: int | None = None
    range: tuple[float, float] | None = None
    missing: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the facts that are known, by name."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind, "role": self.role, "missing": self.missing}
        found |= {} if self.values is None else {"values": self.values}
        return found | ({} if self.range is None else {"range": list(self.range)})


@dataclass(frozen=True)
class DataFacts:
    """Facts of one source, as a reader understood it.

    Attributes:
        source: the file or folder as the user has named it, or a name for an object.
        format: kind of the format with its dialect, for example "CSV separated by ','".
        samples: number of samples (rows) that were read.
        columns: the columns of a table; empty for other data.
        dropped: number of lines, files or samples that were left out, by kind in the singular ("empty line").
        notes: sentences about what the user should check; each names the source.
        details: further facts for the line, for example "10 classes" or "28 x 28 pixels".
    """

    source: str
    format: str
    samples: int
    columns: tuple[ColumnFacts, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The facts in one line, without the notes."""
        parts = [f"{self.format}, {_count(self.samples, 'sample')}", *self.details]
        kinds = Counter(column.kind for column in self.columns if column.role in ("feature", "sensitive"))
        parts += [_count(count, kind) for kind, count in kinds.items()]
        for role in ("sensitive", "label", "ignored"):
            if chosen := [column for column in self.columns if column.role == role]:
                parts.append(f"{role} {_names(chosen)}")
        if gaps := [column for column in self.columns if column.missing]:
            parts.append(f"{_count(sum(column.missing for column in gaps), 'missing value')} in {_names(gaps)}")
        parts += [f"{_count(count, kind)} left out" for kind, count in self.dropped.items() if count]
        return f"{self.source}: {'; '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values. Of more than 64 columns, only the first are listed, and the rest counted."""
        left_out = len(self.columns) - MOST_COLUMNS
        return {
            "source": self.source,
            "line": self.line,
            "format": self.format,
            "samples": self.samples,
            "details": list(self.details),
            "columns": [column.to_json() for column in self.columns[:MOST_COLUMNS]],
            **({"columns_not_listed": left_out} if left_out > 0 else {}),
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
        }


def distinct(found: Iterable[DataFacts]) -> list[DataFacts]:
    """Return different facts in their order; 10,000 nodes usually share one object."""
    kept: list[DataFacts] = []
    for facts in {id(each): each for each in found}.values():
        if facts not in kept:
            kept.append(facts)
            if len(kept) == MOST_SOURCES:
                break
    return kept


def _count(number: int, what: str) -> str:
    plural = {"category": "categories"}.get(what, f"{what}s")
    return f"{number:,} {what if number == 1 else plural}"


def _names(columns: list[ColumnFacts]) -> str:
    shown = [column.name or "(no name)" for column in columns[:MOST_NAMED]]
    more = len(columns) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
