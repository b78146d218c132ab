"""Text parts of a report: facts, tables, notes, the scenario and versions, with all text escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from p2pfl.sim.formatting import PARETO_OPTIMAL, difference, number, of_paper, size, some
from p2pfl.sim.markup import bullets, table, terms
from p2pfl.sim.report.comparison import comparisons
from p2pfl.sim.report.folder import Folder, Row
from p2pfl.sim.report.series import Series, caption, labels
from p2pfl.sim.scenario.sweep import label


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
        "Run time": f"{sum(entry.time.wall_s or 0 for entry in entries):,.1f} s",
    }
    descriptions = dict.fromkeys(str(folder.scenario.get("description", "")).strip() for folder in folders)
    words = "".join(f'<p class="description">{escape(" ".join(each.split()))}</p>\n' for each in descriptions if each)
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
    seeds = max(len(one.seeds) for one in series)
    metrics = list(dict.fromkeys(one.metric for one in series))
    groups = list(dict.fromkeys(group for one in series for entry in one.entries for group in entry.test.per_group))
    groups = groups if 1 < len(groups) <= 6 else []
    reference = next((row.against.name for row in rows.values() if row.against is not None), None)
    papers = any(row.paper is not None for row in rows.values())
    short, meaning = labels(series), caption(series) or "run"
    heads = [meaning[0].upper() + meaning[1:], " / ".join(metrics)]
    heads += ["± over seeds"] if seeds > 1 else []
    heads += [f"vs {reference}"] if reference is not None else []
    times = any(row.against.times_bytes is not None for row in rows.values() if row.against is not None)
    heads += ["bytes ratio"] if times else []  # None if the reference sends nothing
    also = list(dict.fromkeys(name for row in rows.values() for name in row.extra_metrics if name != "worst_tenth"))
    heads += [name.replace("_", " ") for name in also]
    heads += ["worst tenth", "± over nodes", *(f"group {group}" for group in groups)]
    heads += ["bytes sent", "max models per round", "virtual time"]
    heads += ["rounds to target", "time to target", "bytes to target"] if folder.summary.target is not None else []
    heads += [of_paper(folder.summary.figure)] if papers else []
    front = any(row.front for row in rows.values())
    heads += ["front"] if front else []
    cells = []
    for one in series:
        row = rows.get(one.row, Row(one.row))
        words = short.get(one.name, one.name)[len(one.name) - len(one.row) :]  # without the folder, if there is one
        line = [words, number(one.mean(entry.test.mean for entry in one.entries))]
        line += [number(row.std) if len(one.seeds) > 1 else ""] if seeds > 1 else []
        line += _against(row)[: 1 + times] if reference is not None else []
        line += [number(row.extra_metrics.get(name)) for name in also]
        line += [number(one.mean(getattr(entry.test, what) for entry in one.entries)) for what in ("worst_decile", "std")]
        line += [number(one.mean(entry.test.per_group.get(group) for entry in one.entries)) for group in groups]
        most = [models for entry in one.entries if (models := entry.traffic.max_models_in_round) is not None]
        line += [size(one.mean(entry.sent for entry in one.entries)), str(max(most)) if most else ""]
        line += [_seconds(one.mean(entry.time.virtual_s for entry in one.entries))]
        line += _format_target(row, len(one.entries)) if folder.summary.target is not None else []
        line += [number(row.paper)] if papers else []
        line += ["*" if row.front else ""] if front else []
        cells.append(line)
    return table(heads, cells) + f'<p class="meaning">{escape(_meaning(folder))}</p>\n'


def _meaning(folder: Folder) -> str:
    words = (
        "Test metric, mean over nodes and seeds. Worst tenth: mean of the worst tenth of the nodes. ± over nodes: standard"
        " deviation over the nodes of a seed. Bytes sent: total of all nodes, including the preparation."
    )
    front = f" * {PARETO_OPTIMAL}"
    return words + (front if any(row.front for row in folder.summary.table) else "")


def _against(row: Row) -> list[str]:
    if row.against is None:
        return ["", ""]
    times = row.against.times_bytes
    return [difference(row.against.difference), "" if times is None else f"{times:.2f}"]


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
            deviation = [number(row.std) if len(found.seeds) > 1 else ""] if several else []
            mean = found.mean(entry.test.mean for entry in found.entries)
            line += [number(mean), *deviation, size(found.mean(entry.sent for entry in found.entries))]
        if len(folders) == 2:
            each = compared.get((name, metric))
            line += ["", ""] if each is None else [difference(each.mean), number(each.spread)]
        rows.append(line)
    metrics = ", ".join(dict.fromkeys(metric for _, metric in shared))
    words = f"Test {metrics}, mean over nodes and seeds."
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
            [entry.name, str(entry.seed), _seconds(entry.time.wall_s), entry.trace]
            for one in series
            if one.folder is folder
            for entry in one.entries
        ]
        html += table(["Run", "seed", "run time", "digest of the trace"], rows)
    return html
