"""p2pfl-sim list: a table of the shipped scenarios, and the details of one scenario."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from p2pfl._util.console import add_command, add_output
from p2pfl._util.printable import to_json
from p2pfl.sim.formatting import number

if TYPE_CHECKING:
    from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile

WIDEST = 100  # columns of a terminal that the output uses, at most
HEADS = ("scenario", "shows", "paper", "needs", "time")
UNKNOWN = "-"
GAP = "  "  # between columns
DAY = 86_400  # seconds
MOST_HOURS = 48  # longer times are in days


def add_commands(commands: Any) -> None:
    """Add `list` to the commands of p2pfl-sim."""
    listing = add_command(
        commands,
        "list",
        "list the shipped scenarios, or describe one",
        "p2pfl-sim list",
        "p2pfl-sim list dac-synthetic",
    )
    listing.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="name of a shipped scenario, or a TOML file (default: list all)"
    )
    add_output(listing)
    listing.set_defaults(do=_list)


def _list(options: argparse.Namespace) -> int:
    from p2pfl.sim.scenario.scenario import load, shipped_scenarios

    if options.scenario is not None:
        forms = forms_of(options.scenario)
        print(to_json(to_dict(forms)) if options.json else "\n".join(details(options.scenario, forms, _width())))
        return 0
    files = [load(name) for name in shipped_scenarios()]
    if options.json:
        print(to_json({file.name: _summary(file) for file in files}))
    else:
        asked = sys.stdout.isatty() or "COLUMNS" in os.environ
        print(*table(files, _width() if asked else None), sep="\n")
        print("\ntime: rough run time of the full form on two cores\ndetails of a scenario: p2pfl-sim list NAME")
    return 0


def table(files: Sequence[ScenarioFile], width: int | None) -> list[str]:
    """Return the lines of a table of scenarios.

    Args:
        width: maximum number of columns; None puts each scenario on one line, for other programs.
    """
    rows = [HEADS, *((file.name, file.title, _paper(file), file.needs or UNKNOWN, _time(file)) for file in files)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    first, *_, last = widths
    if width is not None:
        paper, needs = (20, 14) if width >= WIDEST else (14, 10)
        title = width - first - paper - needs - last - len(GAP) * (len(HEADS) - 1)
        widths = [first, max(len(HEADS[1]), title), paper, needs, last]
    lines = []
    for row in rows:
        cells = [wrap(cell, columns) or [""] for cell, columns in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            *left, right = (part.ljust(columns) for part, columns in zip(parts, widths, strict=True))
            lines.append(GAP.join([*left, right.strip().rjust(last)]).rstrip())
    return lines


def forms_of(name: str) -> dict[str, ScenarioFile]:
    """Return each form of a scenario by name, the full one first.

    Raises:
        ConfigurationError: the scenario does not exist, or is invalid.
    """
    from p2pfl.sim.scenario.scenario import load

    full = load(name, ["form=full"], trust=True)  # no module is imported here
    return {"full": full} | {form: load(name, [f"form={form}"], trust=True) for form in full.forms}


def to_dict(forms: dict[str, ScenarioFile]) -> dict[str, Any]:
    """Return a scenario as plain values."""
    file = forms["full"]
    return {
        "name": file.name,
        **_summary(file),
        "figure": file.figure,
        "differences": list(file.differences),
        "forms": {form: _size(each) for form, each in forms.items()},
        "rows": [{"name": row, "paper": runs[0].paper} for row, runs in file.rows().items()],
        "claims": [str(claim) for claim in file.claims],
    }


def _summary(file: ScenarioFile) -> dict[str, Any]:
    return {
        "title": file.title,
        "question": file.question,
        "description": " ".join(file.description.split()),
        "paper": file.source,
        "table": file.table,
        "needs": file.needs,
        "duration": file.duration,
        "runs": len(file.runs),
    }


def _size(file: ScenarioFile) -> dict[str, Any]:
    """Return the size of one form; nodes and rounds are the least and the greatest of its runs."""
    nodes, rounds = [run.nodes for run in file.runs], [run.rounds for run in file.runs]
    return {
        "runs": len(file.runs),
        "nodes": [min(nodes), max(nodes)],
        "rounds": [min(rounds), max(rounds)],
        "seeds": list(file.seeds),
        "duration": file.duration,
    }


def details(name: str, forms: dict[str, ScenarioFile], width: int) -> list[str]:
    """Return the lines that describe a scenario, at most `width` columns wide where their words allow it.

    Args:
        name: its name or file, for the command line that runs it.
    """
    file = forms["full"]
    lines = [f"{file.name}: {file.title}" if file.title else file.name]
    for text in filter(None, (file.question, file.description)):
        lines += ["", *_wrapped(text, width)]
    lines += ["", f"paper:   {_paper(file)}", f"needs:   {file.needs or 'nothing'}"]
    lines += [f"figure:  {file.figure}"] if file.figure != "mean" else []
    lines += [f"command: p2pfl-sim {'run' if file.runs[0].search is None else 'pareto'} {name}"]
    if file.differences:
        lines += ["", "differences from the paper:"]
        lines += [line for each in file.differences for line in _wrapped(each, width, "  - ", "    ")]
    lines += ["", *_forms(forms)]
    papers = any(runs[0].paper is not None for runs in file.rows().values())
    lines += ["", "rows, with the paper's figures:" if papers else "rows:"]
    widest = max(map(len, file.rows()))
    lines += [f"  {row.ljust(widest)}  {number(runs[0].paper)}".rstrip() for row, runs in file.rows().items()]
    if file.claims:
        lines += ["", "claims:"]
        lines += [line for claim in file.claims for line in _wrapped(str(claim), width, "  - ", "    ")]
    return lines


def _forms(forms: dict[str, ScenarioFile]) -> list[str]:
    """Return an aligned table of the forms."""
    from p2pfl.sim.execution.forecast import span

    rows = [["form", "runs", "nodes", "rounds", "seeds", "time on two cores"]]
    for form, file in forms.items():
        size = _size(file)
        rounds = f"{span(size['rounds'])}{_describe_search(file.runs[0])}"
        rows.append([form, str(size["runs"]), span(size["nodes"]), rounds, _seeds(size["seeds"]), _time(file)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _describe_search(run: Scenario) -> str:
    """Return a note for a run that is meant for the command `pareto`; "" for other runs."""
    return "" if run.search is None else f", for each of {run.search.iterations * run.search.samples} candidates"


def _paper(file: ScenarioFile) -> str:
    return ", ".join(part for part in (file.source, file.table) if part) or UNKNOWN


def _time(file: ScenarioFile) -> str:
    from p2pfl.sim.execution.forecast import duration

    if file.duration is None:
        return UNKNOWN
    days = file.duration / DAY
    return f"{days:.0f} days" if days > MOST_HOURS / 24 else duration(file.duration)


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds)) if len(seeds) <= 3 else f"{len(seeds)} seeds"


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    return wrap(" ".join(text.split()), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size().columns)
