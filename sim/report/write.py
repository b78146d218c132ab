"""Write the report: collect folders of runs, make the sections and the tables, and render one page.

The figures are data that the page draws; facts, sentences, tables, the scenario and the versions are HTML, with all text
escaped, which is readable without JavaScript.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from html import escape
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl._util.atomic_files import reason, replace_file
from p2pfl.errors import ConfigurationError
from p2pfl.sim.formatting import (
    EPSILON,
    EQUAL,
    PARETO_OPTIMAL,
    R2,
    as_printed,
    bullets,
    column,
    decimals,
    difference,
    inline,
    measures_at,
    number,
    of_paper,
    size,
    some,
    spread_meaning,
    table,
    target_meaning,
    terms,
)
from p2pfl.sim.report.answers import question_of
from p2pfl.sim.report.attacks import attacks_section
from p2pfl.sim.report.budgets import budget_styles, budgets_section
from p2pfl.sim.report.collaboration import collaboration_section
from p2pfl.sim.report.comparison import comparison_section, comparisons, differences
from p2pfl.sim.report.coordination import clusters_section, elections_section
from p2pfl.sim.report.figures import reported_curve, worth_showing
from p2pfl.sim.report.findings import findings_of_folders
from p2pfl.sim.report.folder import Against, Entry, Folder, Row
from p2pfl.sim.report.node_results import learning_section, results_section, traffic_section
from p2pfl.sim.report.objectives import answers_section, measure_tables, objectives_section, search_section, search_table
from p2pfl.sim.report.page import render
from p2pfl.sim.report.series import (
    LAST_MODEL,
    MOST_RUNS,
    Section,
    Series,
    by_key,
    factors,
    folder_names,
    gather,
    labels,
    places_of,
    reported_model,
    styles,
)
from p2pfl.sim.report.sweep import grid_section, sweep_section, target_section
from p2pfl.sim.results.learning_curves import mean
from p2pfl.sim.results.tables import REPORT
from p2pfl.sim.scenario.questions import label

SECTIONS: tuple[Callable[[Sequence[Series]], Section | None], ...] = (
    comparison_section,
    budgets_section,
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
LAST_ROUND, OWN_GROUP, TRAININGS = "last round", "weight on own group", "trainings"  # columns of the table
DECIDED = (
    "A margin is decided if it exceeds its standard deviation over the seeds: this is the size of an effect and no test of"
    " significance, because a paired t-test may give p = 0.39 with 2 seeds, 0.23 with 3, 0.09 with 5 and 0.012 with 10."
)
MOST_GROUPS = 6  # with a column each
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
            "facts": facts(folders, series),
            "findings": answers(folders) + ("" if searched else findings(folders, series)),
            "table": (search_table if searched else results_table)(folders, series) + measure_tables(series),
            "differences": differences(folders, names) if len(folders) > 1 else "",
            "scenario": scenario(folders),
            "versions": versions(folders, series),
        }
        return render(title, payload(series, OF_SEARCH if searched else SECTIONS), parts)


def payload(
    series: Sequence[Series], of: Sequence[Callable[[Sequence[Series]], Section | None]] = SECTIONS
) -> dict[str, Any]:
    """Return the data of the figures."""
    made = [section(series) for section in of]
    sections = [each for each in made if each is not None and (each["figures"] or each["text"])]
    names = [one.name for one in series]
    short = labels(series)
    colours = budget_styles(series) or styles(series, factors(series))  # only if they come from budgets or factors
    return {
        "runs": names,
        **({"labels": short} if short else {}),
        **({"styles": colours} if colours else {}),
        **({"shown": _shown_runs(series, sections)} if len(names) > MOST_RUNS else {}),
        "sections": sections,
    }


def _shown_runs(series: Sequence[Series], sections: Sequence[Section]) -> list[str]:
    """Return the runs shown at first if there are many: the best, and at least one in each figure."""
    shown = set(worth_showing(series))
    names = [one.name for one in series]
    for figure in (figure for section in sections for figure in section["figures"]):
        there = {run for key in ("y", "runs", "frames") for run in figure.get(key, ())}
        if there and not shown & there:
            shown.add(next(name for name in names if name in there))
    return [name for name in names if name in shown]


def answers(folders: Sequence[Folder]) -> str:
    """Return the question of each folder's scenario, with its answer."""
    html = ""
    for folder, name in zip(folders, folder_names([folder.path for folder in folders]), strict=True):
        found = question_of(folder.summary)
        if found.asked:
            where = f"{name}: " if len(folders) > 1 else ""
            html += f'<p class="question">{inline(where + found.asked)}</p>\n'
            if said := bullets([*found.answers, *found.missing]):
                html += f'<div class="answer">{said}</div>\n'
            for each in found.tables:
                html += f'<div class="budgets">{table(each.heads, each.cells)}</div>\n'
                html += f'<p class="meaning">{escape(each.meaning)}</p>\n'
    return html


def findings(folders: Sequence[Folder], series: Sequence[Series]) -> str:
    """Return the sentences on the runs and, if margins can be decided, what that means."""
    html = bullets(findings_of_folders(folders, series))
    several = any(len(one.seeds) > 1 for one in series) and len(series) > 1
    return html + (f'<p class="meaning">{DECIDED}</p>\n' if html and several else "")


def facts(folders: Sequence[Folder], series: Sequence[Series]) -> str:
    """Return the head: the scenarios, their size, and their descriptions."""
    entries = [entry for one in series for entry in one.entries]
    metrics = {entry.metric: entry.higher_is_better for entry in entries}
    seeds = sorted({entry.seed for entry in entries})
    pairs = {
        "Scenario": ", ".join(dict.fromkeys(folder.summary.scenario for folder in folders)),
        "Runs": str(sum(len({entry.name for entry in one.entries}) for one in series)),
        "Nodes": _range([entry.nodes for entry in entries]),
        "Rounds": _range([entry.rounds for entry in entries]),
        "Seed" if len(seeds) == 1 else "Seeds": _seeds(seeds),
        "Topology": some(dict.fromkeys(entry.topology for entry in entries if entry.topology), 8),
        "Metric": "; ".join(f"{metric}, {'higher' if up else 'lower'} is better" for metric, up in metrics.items()),
        "Run time": f"{sum(entry.time.wall_s for entry in entries):,.1f} s",
    }
    descriptions = dict.fromkeys(str(folder.scenario.get("description", "")).strip() for folder in folders)
    words = "".join(f'<p class="description">{inline(" ".join(each.split()))}</p>\n' for each in descriptions if each)
    rows = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>"
        for key, value in pairs.items()
        if value not in ("", "0.0 s")
    )
    return f'{words}<dl class="facts">{rows}</dl>\n'


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,}" + (f" to {max(values):,}" if max(values) > min(values) else "")


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return some((str(seed) for seed in seeds), 8)


def results_table(folders: Sequence[Folder], series: Sequence[Series]) -> str:
    """Return the table of results, one for each folder, with the notes of its runs."""
    html = side_by_side(folders, series) if len(folders) > 1 else ""
    for folder in folders:
        own = [one for one in series if one.folder is folder]
        html += f"<h3>{escape(str(folder.path))}</h3>\n" if len(folders) > 1 else ""
        html += of_folder(folder, own)
        html += bullets([f"Note: {note}" for note in folder.summary.notes])
    return html


def of_folder(folder: Folder, series: Sequence[Series]) -> str:
    """Return the table of a folder's runs.

    It has means and deviations over seeds, the worst tenth, groups, traffic, and a paper's figures.
    """
    rows = {row.name: row for row in folder.summary.table}
    own = [rows.get(one.row, Row(one.row)) for one in series]
    several = any(len(one.seeds) > 1 for one in series)
    metrics = list(dict.fromkeys(one.metric for one in series))
    places = places_of(series)
    means = [_mean_of(one, lambda entry: entry.test.mean) for one in series]
    last = [one.mean(_last(one, entry) for entry in one.entries) for one in series]

    def of_metric(values: Iterable[float | None]) -> list[str]:
        return [number(value, places[one.metric]) for one, value in zip(series, values, strict=True)]

    found: dict[str, list[str]] = {"Run": [label(one.row, one.shown.varied) for one in series]}
    found[" / ".join(metrics)] = of_metric(means)
    if several:
        found["± over seeds"] = of_metric(
            row.std if len(one.seeds) > 1 else None for one, row in zip(series, own, strict=True)
        )
    if any(map(_differ, means, last)):
        found[LAST_ROUND] = of_metric(last)
    found |= _against(own, series, means)
    for name in dict.fromkeys(name for row in own for name in row.extra_metrics if name != "worst_tenth"):
        found[name.replace("_", " ")] = column(row.extra_metrics.get(name) for row in own)
    if any(row.weight_within_group is not None for row in own):
        found[OWN_GROUP] = column(row.weight_within_group for row in own)
    found["worst tenth"] = of_metric(_mean_of(one, lambda entry: entry.test.worst_decile) for one in series)
    found["± over nodes"] = of_metric(_mean_of(one, lambda entry: entry.test.std) for one in series)
    groups = list(dict.fromkeys(group for one in series for entry in one.entries for group in entry.test.per_group))
    for group in groups if 1 < len(groups) <= MOST_GROUPS else ():
        found[f"group {group}"] = of_metric(_of_group(one, group) for one in series)
    if any(row.epsilon is not None for row in own):
        found["epsilon"] = [number(row.epsilon, places=2) for row in own]
    found |= _costs(folder, series, own)
    for axis, head in measures_at(folder.summary.equal).items():
        found[head] = of_metric(row.equal.get(axis) for row in own)
    if any(row.paper is not None for row in own):
        found[of_paper(folder.summary.figure)] = as_printed(row.paper for row in own)
    if any(row.front for row in own):
        found["front"] = ["*" * row.front for row in own]
    html = table(list(found), zip(*found.values(), strict=True))
    return f'{html}<p class="meaning">{escape(_meaning(series, found))}</p>\n'


def _mean_of(one: Series, value: Callable[[Entry], float | None]) -> float | None:
    return one.mean(map(value, one.entries))


def _of_group(one: Series, group: str) -> float | None:
    return _mean_of(one, lambda entry: entry.test.per_group.get(group))


def _costs(folder: Folder, series: Sequence[Series], rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the columns of traffic and time, and the costs of the target."""
    found = {
        "bytes sent": [size(_mean_of(one, lambda entry: entry.sent)) for one in series],
        "max models per round": [str(max(entry.traffic.max_models_in_round for entry in one.entries)) for one in series],
        "virtual time": [_seconds(_mean_of(one, lambda entry: entry.time.virtual_s)) for one in series],
    }
    if any(entry.joules for one in series for entry in one.entries):
        found[TRAININGS] = [number(_mean_of(one, lambda entry: entry.effort.trainings.total), 0) for one in series]
        found["computing"] = [_seconds(_mean_of(one, lambda entry: entry.effort.train_s.total)) for one in series]
        found["joules"] = column(_mean_of(one, lambda entry: entry.joules) for one in series)
    if folder.summary.target is not None:
        reached = [_format_target(row, len(one.entries)) for one, row in zip(series, rows, strict=True)]
        heads = ("rounds to target", "time to target", "bytes to target")
        found |= {head: list(cells) for head, cells in zip(heads, zip(*reached, strict=True), strict=True)}
    return found


def _last(one: Series, entry: Entry) -> float | None:
    """Return the mean over the nodes of the test metric in the last round: the end of the learning curve."""
    if one.asynchronous:  # its drawn curve ends where the first of its seeds does
        return entry.test.last_round
    curve = mean(reported_curve(one, entry))
    there = curve[np.isfinite(curve)]
    return float(there[-1]) if len(there) else None


def _differ(first: float | None, second: float | None) -> bool:
    return first is not None and second is not None and not isclose(first, second, rel_tol=1e-6, abs_tol=1e-9)


def _meaning(series: Sequence[Series], heads: Collection[str]) -> str:
    words = f"Test metric: of {reported_model(series)}; mean over the nodes, then over the seeds."
    if "± over seeds" in heads:
        words += " ± over seeds: standard deviation of these means."
    for head in (head for head in heads if head.startswith("± vs ")):
        words += f" {spread_meaning(head)}."
    if LAST_ROUND in heads:
        words += " Last round: the same mean for each node's model of the last round, where the learning curves end."
    if OWN_GROUP in heads:
        words += " Weight on own group: share of the weight of other nodes' models that models of the own group had, in the"
        words += " last half of the rounds."
    words += (
        " Worst tenth: mean of the worst tenth of the nodes. ± over nodes: standard deviation over the nodes of a seed."
        " Bytes sent: total of all nodes, including the preparation."
    )
    if TRAININGS in heads:
        words += " Trainings, seconds of computing and joules: totals of all nodes; joules with idle time and radio."
    if "r2" in heads:
        words += f" {R2[0].upper()}{R2[1:]}."
    target = next((one.folder.summary.target for one in series if one.folder.summary.target is not None), None)
    if target is not None and reported_model(series) != LAST_MODEL:
        moments = any(one.shown.mode for one in series)  # earlier versions looked at rounds in all runs
        words += f" T{target_meaning(series[0].metric, number(target), moments)[1:]}."
    if any(one.folder.summary.equal for one in series):
        words += f" {EQUAL[0].upper()}{EQUAL[1:]}."
    words += f" {EPSILON[0].upper()}{EPSILON[1:]}." if "epsilon" in heads else ""
    return words + (f" * {PARETO_OPTIMAL}" if "front" in heads else "")


def _against(rows: Sequence[Row], series: Sequence[Series], means: Sequence[float | None]) -> dict[str, list[str]]:
    """Return the columns of the comparison with a row; none without one."""
    reference = next((row.against.name for row in rows if row.against is not None), None)
    if reference is None:
        return {}
    each = [row.against or Against(reference) for row in rows]
    of_metric = by_key(zip(series, means, each, strict=True), lambda row: row[0].metric)
    places = {m: decimals((mean for _, mean, _ in own), (one.std for *_, one in own)) for m, own in of_metric.items()}
    here = [places[one.metric] for one in series]
    found = {f"vs {reference}": [difference(one.difference, of) for one, of in zip(each, here, strict=True)]}
    spreads = [number(one.std, of) for one, of in zip(each, here, strict=True)]
    found |= {f"± vs {reference}": spreads} if any(spreads) else {}
    times = [one.times_bytes for one in each]
    return found | ({"bytes ratio": column(times)} if any(one is not None for one in times) else {})


def _format_target(row: Row, seeds: int) -> list[str]:
    costs = row.reached
    if costs is None or costs.seeds < seeds:
        return [f"by {costs.seeds} of {seeds}" if costs else "never", "", ""]
    return [f"{costs.round:.1f}", _seconds(costs.virtual_s), size(costs.bytes)]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} s"


def side_by_side(folders: Sequence[Folder], series: Sequence[Series]) -> str:
    """Return a table of runs with the same metric in several folders; "" if there are none.

    It has the difference if there are two folders.
    """
    times = Counter((one.row, one.metric) for one in series)
    shared = [key for key, count in times.items() if count > 1]
    if not shared:
        return ""
    heads, several = ["Run"], any(len(one.seeds) > 1 for one in series)
    for folder in folders:
        heads += [str(folder.path), *(["± over seeds"] if several else []), "bytes sent"]
    heads += ["difference", "± of the difference"] if len(folders) == 2 else []
    compared = {(each.first.row, each.first.metric): each for each in comparisons(series)}
    places = places_of(series)
    rows = []
    for name, metric in shared:
        alike = {one.folder: one for one in series if (one.row, one.metric) == (name, metric)}
        line = [label(name, next(iter(alike.values())).shown.varied)]
        for folder in folders:
            found = alike.get(folder)
            row = next((row for row in folder.summary.table if row.name == name), Row(name))
            if found is None:
                line += [""] * (2 + several)
                continue
            deviation = [number(row.std, places[metric]) if len(found.seeds) > 1 else ""] if several else []
            overall = found.mean(entry.test.mean for entry in found.entries)
            line += [number(overall, places[metric]), *deviation, size(found.mean(entry.sent for entry in found.entries))]
        if len(folders) == 2:
            each = compared.get((name, metric))
            line += (
                ["", ""] if each is None else [difference(each.mean, places[metric]), number(each.spread, places[metric])]
            )
        rows.append(line)
    metrics = ", ".join(dict.fromkeys(metric for _, metric in shared))
    words = f"Test {metrics} of {reported_model(series)}; mean over the nodes, then over the seeds."
    if len(folders) == 2:
        words += " Difference: second folder minus first folder; its mean and ± are those of the seeds that both have."
    return table(heads, rows) + f'<p class="meaning">{escape(words)}</p>\n'


def scenario(folders: Sequence[Folder]) -> str:
    """Return the resolved scenarios as text."""
    html = ""
    for folder in folders:
        html += f"<h3>{escape(str(folder.path))}</h3>\n" if len(folders) > 1 and folder.text else ""
        html += f"<pre>{escape(folder.text)}</pre>\n" if folder.text else ""
    return html


def versions(folders: Sequence[Folder], series: Sequence[Series]) -> str:
    """Return the versions of the software that computed the runs, and the digest of each run's events.

    Equal digests show that two runs had the same events.
    """
    html = ""
    for folder in folders:
        html += f"<h3>{escape(str(folder.path))}</h3>\n" if len(folders) > 1 else ""
        html += terms(folder.summary.versions or {"p2pfl": folder.summary.version or "unknown"})
        rows = [
            [label(entry.name, entry.varied), str(entry.seed), _seconds(entry.time.wall_s), entry.trace]
            for one in series
            if one.folder is folder
            for entry in one.entries
        ]
        html += table(["Run", "seed", "run time", "digest of the trace"], rows)
    return html
