"""What p2pfl reproduces: each shipped scenario with its paper, its rows, the printed figures, and those measured last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from p2pfl.errors import unknown
from p2pfl.sim.execution.forecast import duration
from p2pfl.sim.formatting import number
from p2pfl.sim.reproduction.measured import Book, Measured
from p2pfl.sim.scenario.claims import MEAN, Claim, check
from p2pfl.sim.scenario.scenario import ScenarioFile, load, shipped_scenarios

FORMS = ("full", "short")
HEADS = ("paper, table, scenario and row", "printed", "measured", "short form")


@dataclass(frozen=True)
class Entry:
    """A scenario, and what was measured of it by form."""

    file: ScenarioFile
    measured: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, float | None]:
        """The rows of its table, each with the figure that its paper has printed."""
        return {name: runs[0].paper for name, runs in self.file.rows().items()}

    @property
    def title(self) -> str:
        """ "Listo Zec et al., table 3"; p2pfl's own where it is of no paper."""
        return ", ".join(part for part in (self.file.source or "p2pfl's own", self.file.table) if part)

    def figures(self, row: str) -> dict[str, float]:
        """What was measured of a row, by form."""
        return {form: told.figures[row] for form in FORMS if (told := self.measured.get(form)) and row in told.figures}


def entries(names: Sequence[str], book: Book) -> list[Entry]:
    """Return the scenarios of these names, or all that are shipped, in the order of their papers.

    Raises:
        ConfigurationError: there is no such scenario.
    """
    known = shipped_scenarios()
    for name in names:
        if name not in known:
            raise unknown("scenario", name, known)
    found = [Entry(load(name), book.get(name, {})) for name in (names or known)]
    return found if names else sorted(found, key=lambda entry: (not entry.file.source, entry.file.source, entry.file.name))


def to_dict(entry: Entry) -> dict[str, Any]:
    """Return an entry in plain values."""
    forms = {form: {"seconds": of.seconds, "cores": of.cores, "seeds": of.seeds} for form, of in entry.measured.items()}
    return {
        "scenario": entry.file.name,
        "paper": entry.file.source,
        "table": entry.file.table,
        "figure": entry.file.figure,
        "forms": forms,
        "rows": [{"name": row, "paper": paper, "measured": entry.figures(row)} for row, paper in entry.rows.items()],
        "claims": [str(claim) for claim in entry.file.claims],
    }


def lines(entry: Entry) -> list[tuple[str, str, str, str]]:
    """Return the lines of the table that are of a scenario, as HEADS: what it is of, its rows, and what it claims of them,
    with whether the figures measured say so.

    Rows that were not run are one line.
    """
    of = "" if entry.file.figure == MEAN else f", {entry.file.figure.rpartition('.')[2]}"
    head = f"**{entry.title}: `{entry.file.name}`**{of}"
    full, short = (entry.measured.get(form) for form in FORMS)
    found = [(head, "", _about(full), _about(short))]
    missing = []
    for row, paper in entry.rows.items():
        figures = entry.figures(row)
        if figures:
            found.append((row, number(paper), number(figures.get("full")), number(figures.get("short"))))
        else:
            missing.append(row if paper is None else f"{row} {number(paper)}")
    if missing:
        found.append((f"not run: {', '.join(missing)}", "", "", ""))
    claimed = [(claim, [_verdict(entry, claim, form) for form in FORMS]) for claim in entry.file.claims]
    return found + [(f"*{claim}*", "", whole, short) for claim, (whole, short) in claimed]


def _verdict(entry: Entry, claim: Claim, form: str) -> str:
    """Say whether a claim is borne out by what was measured of a form; nothing of a figure or a row that was not kept."""
    measured = entry.measured.get(form)
    if measured is None or claim.figure not in ("", entry.file.figure):
        return ""
    table = [{"name": row, MEAN: figure} for row, figure in measured.figures.items()]
    found = check([replace(claim, figure="")], MEAN, table)
    if not all(checked.held for checked in found):
        return "not held"
    return "held" if len(found) == len(claim.runs) * len(claim.others) else ""


def _about(measured: Measured | None) -> str:
    if measured is None:
        return ""
    time = "" if measured.seconds is None else duration(measured.seconds)
    if not measured.figures:
        return f"not run, about {time}"
    seeds = f"{len(measured.seeds)} seed{'s' * (len(measured.seeds) != 1)}"
    return f"{seeds}, {time}" if time else seeds


def markdown(found: Sequence[Entry]) -> str:
    """Return the table as it stands in the README."""
    rows = [HEADS, ("---", "---:", "---:", "---:"), *(line for entry in found for line in lines(entry))]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def print_listing(found: Sequence[Entry]) -> None:
    """Print the table on a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for head in HEADS:
        table.add_column(head, justify="left" if head == HEADS[0] else "right")
    for entry in found:
        for first, *figures in lines(entry):
            table.add_row(first.replace("**", "").strip("*"), *figures)
        table.add_section()
    Console(highlight=False, markup=False).print(table)
