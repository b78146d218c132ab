"""Write the report: collect folders of runs, make the sections, and render one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from p2pfl.errors import ConfigurationError
from p2pfl.sim.markup import bullets
from p2pfl.sim.report import tables
from p2pfl.sim.report.attacks import attacks_section
from p2pfl.sim.report.collaboration import collaboration_section
from p2pfl.sim.report.comparison import comparison_section, differences
from p2pfl.sim.report.coordination import clusters_section, elections_section
from p2pfl.sim.report.figures import worth_showing
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.objectives import answers_section, measure_tables, objectives_section, search_section, search_table
from p2pfl.sim.report.outcome import learning_section, results_section, traffic_section
from p2pfl.sim.report.page import render
from p2pfl.sim.report.sentences import findings_of_folders
from p2pfl.sim.report.series import MOST_RUNS, Section, Series, caption, factors, folder_names, gather, labels, styles
from p2pfl.sim.report.sweep import grid_section, sweep_section, target_section
from p2pfl.sim.results.artifacts import REPORT
from p2pfl.system.atomic_files import reason, replace_file

SECTIONS: tuple[Callable[[Sequence[Series]], Section | None], ...] = (
    comparison_section,
    grid_section,
    attacks_section,
    results_section,
    objectives_section,
    answers_section,
    sweep_section,
    target_section,
    learning_section,
    clusters_section,
    collaboration_section,
    traffic_section,
    elections_section,
)
OF_SEARCH: tuple[Callable[[Sequence[Series]], Section | None], ...] = (objectives_section, search_section)


def write_report(paths: Sequence[Path], out: Path | None = None, seed: int | None = None) -> Path:
    """Write the report of one or several finished runs, and return its path.

    Args:
        out: a file; by default report.html in the folder of the run, or for several runs in the current folder.
        seed: seed for figures that show a single seed; by default the first of each run.

    Raises:
        ConfigurationError: a folder has no finished run, or lacks the seed; a file is damaged, or cannot be written.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigurationError("a folder is named twice; name different folders to compare")
    target = out or (paths[0] / REPORT if len(paths) == 1 else Path(REPORT))
    if target.is_dir():
        target = target / REPORT
    page = report(paths, seed)
    try:
        replace_file(target, [page.encode()])
    except OSError as error:
        raise ConfigurationError(f"cannot write {target}: {reason(error)}") from error
    return target


def try_write_report(folder: Path) -> tuple[Path | None, str]:
    """Write the report of a finished run, and return its path; or None and the reason. The run does not fail."""
    try:
        return write_report([folder]), ""
    except ConfigurationError as error:
        return None, f"report.html was not made: {error}"
    except Exception as error:  # an error in the report does not affect the finished run
        return None, f"report.html was not made: {type(error).__name__}: {error}"


def report(paths: Sequence[Path], seed: int | None = None) -> str:
    """Return the page; see write_report."""
    with ExitStack() as stack:
        folders = [stack.enter_context(Folder(path)) for path in paths]
        if len({folder.summary.search for folder in folders}) > 1:
            raise ConfigurationError("searches by p2pfl-sim pareto cannot be compared with runs; name folders of one kind")
        searched = folders[0].summary.search
        series = gather(folders, seed)
        names = folder_names(paths)
        title = " and ".join(dict.fromkeys(folder.summary.scenario for folder in folders))
        parts = {
            "facts": tables.facts(folders, series),
            "findings": "" if searched else bullets(findings_of_folders(folders, series)),
            "table": (search_table if searched else tables.results_table)(folders, series) + measure_tables(series),
            "differences": differences(folders, names) if len(folders) > 1 else "",
            "scenario": tables.scenario(folders),
            "versions": tables.versions(folders, series),
        }
        return render(title, payload(series, OF_SEARCH if searched else SECTIONS), parts)


def payload(
    series: Sequence[Series], of: Sequence[Callable[[Sequence[Series]], Section | None]] = SECTIONS
) -> dict[str, Any]:
    """Return the data of the figures."""
    made = [section(series) for section in of]
    sections = [each for each in made if each is not None and (each["figures"] or each["text"])]
    names = [one.name for one in series]
    return {
        "runs": names,
        **_appearance(series),
        **({"shown": _shown_runs(series, sections)} if len(names) > MOST_RUNS else {}),
        "sections": sections,
    }


def _appearance(series: Sequence[Series]) -> dict[str, Any]:
    """Return the short labels of runs with a caption, and their colours, if they come from factors."""
    found: dict[str, Any] = {}
    if short := labels(series):
        found |= {"labels": short, "caption": caption(series)}
    if colours := styles(series, factors(series)):
        found["styles"] = colours
    return found


def _shown_runs(series: Sequence[Series], sections: Sequence[Section]) -> list[str]:
    """Return the runs shown at first if there are many: the best, and at least one in each figure."""
    shown = set(worth_showing(series))
    names = [one.name for one in series]
    for figure in (figure for section in sections for figure in section["figures"]):
        there = {run for key in ("y", "runs", "frames") for run in figure.get(key, ())}
        if there and not shown & there:
            shown.add(next(name for name in names if name in there))
    return [name for name in names if name in shown]
