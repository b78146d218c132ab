"""Tables in a terminal: of a run, and of robust rules under attack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from p2pfl.sim.formatting import (
    EPSILON,
    EQUAL,
    PARETO_OPTIMAL,
    R2,
    STAGES,
    STAGES_APART,
    as_printed,
    column,
    decimals,
    difference,
    measures_at,
    number,
    of_paper,
    setting,
    spread_meaning,
    target_meaning,
)
from p2pfl.sim.report.attacks import FIGURES, MEAN, NO_ATTACK, AttackStudy, attack_rows, attack_studies, title
from p2pfl.sim.report.series import Run, places_of
from p2pfl.sim.scenario.questions import base_of

if TYPE_CHECKING:
    from rich.table import Table


# Measures that fit a terminal; summary.json and the report have the others.
MEASURES = ("hypervolume", "constant", "left_out", "igd")
NARROWEST = 12  # columns of the names of runs
CLUSTERS = ("best ARI", "true groups", "final ARI")


def print_table(summary: Mapping[str, Any]) -> None:
    """Print the table of a summary.

    It has the bytes sent where codecs or runs are compared, the cost of reaching the target, and the metric at equal time,
    bytes and trainings where asynchronous runs are compared. With devices it has trainings and joules of all nodes, with
    privacy budgets the greatest epsilon that a node has spent. It also has the means of the nodes' groups or, without
    groups, the front of several objectives; the clusters; and a paper's figures.
    """
    from rich.table import Table

    rows = summary["table"]
    metric = summary["runs"][0]["metric"]
    seeds = len(summary["seeds"])
    varied = list(summary.get("varied", ()))
    names = [_name(row) for row in rows]
    table = Table()
    papers = any("paper" in row for row in rows)
    measures = [name for name in MEASURES if any(name in row.get("objectives", {}) for row in rows)]
    groups = [] if measures else list(dict.fromkeys(group for row in rows for group in row.get("per_group", {})))
    stages = [stage for stage in STAGES if any(stage in row.get("stages", {}) for row in rows)]
    sent, costs = any("bytes" in row for row in rows), any("joules" in row.get("cost", {}) for row in rows)
    versus = _against(rows)
    private = any("epsilon" in row for row in rows)
    headings = [*stages, *(["epsilon"] if private else []), *(["MB sent"] if sent else [])]
    headings += [*(["trainings", "joules"] if costs else []), *versus]
    headings += [f"rounds to {number(summary['target'])}", "virtual s", "MB"] if "target" in summary else []
    headings += (equal := measures_at(summary.get("equal", {}))).values()
    front = any(row.get("front") for row in rows)
    clustered = any("clusters" in row for row in rows)
    also = list(dict.fromkeys(name for row in rows for name in row.get("extra_metrics", {})))
    headings += [
        *(name.replace("_", " ") for name in also),
        *(f"group {group}" for group in groups),
        *(name.replace("_", " ") for name in measures),
        *(CLUSTERS if clustered else []),
    ]
    headings += [*([of_paper(summary.get("figure", ""))] if papers else []), *(["front"] if front else [])]
    first = ["run"] if any(names) else []
    spread = ["+- over seeds"] if seeds > 1 else []
    for name in (*first, *(key.removesuffix(".name") for key in varied), metric, *spread, *headings):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    places = decimals((row["mean"] for row in rows), (row["std"] for row in rows))
    of_metric = partial(number, places=places)
    papers_of = as_printed(row.get("paper") for row in rows)
    of_also = {name: column(row.get("extra_metrics", {}).get(name) for row in rows) for name in also}
    of_measures = {name: _measures(rows, name) for name in measures}
    for k, (row, run) in enumerate(zip(rows, names, strict=True)):
        deviation = [of_metric(row["std"])] if seeds > 1 else []
        cells = [of_metric(row["stages"].get(stage)) for stage in stages]
        cells += [*([number(row.get("epsilon"), places=2)] if private else [])]
        cells += [*([f"{row['bytes'] / 1e6:.2f}"] if sent else []), *(_costs(row) if costs else [])]
        of_groups = [of_metric(row["per_group"][group]) if group in row.get("per_group", {}) else "" for group in groups]
        cells += [own[k] for own in versus.values()]
        if "target" in summary:
            cells += _format_target(row["reached"], row["seeds"])
        cells += [*(of_metric(row["equal"][axis]) for axis in equal), *(of_also[name][k] for name in also)]
        cells += of_groups + [of_measures[name][k] for name in measures]
        cells += _clusters(row.get("clusters"), row["seeds"]) if clustered else []
        more = [*cells, *([papers_of[k]] if papers else []), *(["*" * row.get("front", False)] if front else [])]
        table.add_row(*([run] if first else []), *_varied(row, varied), of_metric(row["mean"]), *deviation, *more)
    of = "nodes, runs" if any("pool" in row for row in rows) else "nodes"
    model = "" if stages else _model_of({run.get("selected_by", "") for run in summary["runs"]})
    print(f"{summary['scenario']}: test {metric}, mean over {of} and {seeds} seed{'s' * (seeds > 1)}{model}")
    print_whole(table)
    for line in _meanings(summary, stages, [*measures, *also], front, [head for head in versus if head.startswith("+-")]):
        print(line)


def _costs(row: Mapping[str, Any]) -> list[str]:
    """Return the trainings of all nodes and their joules, mean over the seeds."""
    cost = row.get("cost", {})
    return [f"{cost.get('trainings', 0):,.0f}", number(cost.get("joules"))]


def _varied(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Return the values of a row for the varied keys."""
    return [setting(key, row["varied"][key]) if key in row["varied"] else "" for key in keys]


def _model_of(selected_by: Collection[str]) -> str:
    """Return which model of a node the table shows, if it is the same in all runs."""
    by = next(iter(selected_by), "") if len(selected_by) == 1 else ""
    round = by if by == "last round" else f"best round by {by}"
    return f", each node's model of its {round}" if by else ""


def _meanings(
    summary: Mapping[str, Any], stages: Sequence[str], measures: Sequence[str], front: bool, spreads: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each column of the table that needs an explanation."""
    metric, rows = summary["runs"][0]["metric"], summary["table"]
    if stages:
        text = f"{metric}: of each node's model that is best on validation, {' or '.join(stages)}"
        several = [row for row in rows if len(row.get("stages", {})) > 1]
        for stage in stages:
            rows_of = [row for row in several if row.get("reported_stage") == stage]
            fixed = dict.fromkeys(base_of(row["name"], row.get("varied", {})) or row["name"] for row in rows_of)
            text += f"; in {', '.join(fixed)} only {stage}" if fixed else ""
        yield text
        if len(stages) > 1:
            yield STAGES_APART
    yield from map(spread_meaning, spreads)
    if "constant" in measures:
        yield "constant: hypervolume of the model that gives all samples the more frequent answer"
    if "r2" in measures:
        yield R2
    if "target" in summary and any(run.get("selected_by") != "last round" for run in summary["runs"]):
        yield target_meaning(metric, number(summary["target"]), any("mode" in run for run in summary["runs"]))
    if any("epsilon" in row for row in rows):
        yield EPSILON
    if "equal" in summary:
        yield EQUAL
    if front:
        yield f"* {PARETO_OPTIMAL}"


def _measures(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return the column of a measure of solutions; the number left out is "4 of 5"."""
    each = [row.get("objectives", {}) for row in rows]
    if name != "left_out":
        return column(found.get(name) for found in each)
    return [f"{found[name]:g} of {found['solutions']:g}" if name in found else "" for found in each]


def print_whole(table: Table) -> None:
    """Print a table in the first layout that fits the terminal, so that nothing is cut off.

    These are: with lines; with gaps of two columns and headings of two lines; with gaps of one column; with the names of
    runs wrapped. A table that is still too wide is wrapped by the terminal.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False, markup=False)
    wide = console.options.update(max_width=10_000)
    for gap in (2, 1):
        if Measurement.get(console, wide, table).maximum > console.width:
            _compact(table, gap)
    if (excess := Measurement.get(console, wide, table).maximum - console.width) > 0:
        _wrap_names(table, excess)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


def _compact(table: Table, gap: int) -> None:
    """Remove the vertical lines of a table, and divide its headings into two lines."""
    from rich.box import SIMPLE_HEAD

    table.box, table.pad_edge, table.padding = SIMPLE_HEAD, False, (0, gap - 1, 0, 0)
    for each in table.columns:
        each.header = _in_two_lines(str(each.header))


def _wrap_names(table: Table, excess: int) -> None:
    """Make the column of the names of runs narrower, if there is one."""
    first = table.columns[0]
    if first.justify == "left":
        first.max_width = max(NARROWEST, max(len(str(cell)) for cell in first.cells) - excess)
        first.no_wrap, first.overflow = False, "fold"


def _in_two_lines(heading: str) -> str:
    """Divide a heading at the blank, or else behind the dot, that leaves the shortest lines."""
    if "\n" in heading:
        return heading
    places = [k for k, sign in enumerate(heading) if sign == " "] or [k + 1 for k, sign in enumerate(heading) if sign == "."]
    if not places:
        return heading
    place = min(places, key=lambda k: max(k, len(heading) - k))
    return f"{heading[:place]}\n{heading[place:].lstrip()}"


def _clusters(figures: Mapping[str, Any] | None, seeds: int) -> list[str]:
    """Return the agreement of the clusters with the true groups."""
    if figures is None:
        return [""] * len(CLUSTERS)
    return [f"{figures['best']:.2f}", f"{figures['reached']} of {seeds}", f"{figures['final']:.2f}"]


def _name(row: Mapping[str, Any]) -> str:
    """Return the name of a row in a table that has its own columns for the varied values."""
    key = next(iter(row.get("varied", ())), None)
    return str(row["name"]) if key is None else str(row["name"]).partition(f"{key}=")[0].removesuffix(", ")


def _against(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the columns of the comparison with a row, by their headings; none without one."""
    if "against" not in rows[0]:
        return {}
    each = [row["against"] for row in rows]
    deviations = [one.get("std") for one in each]  # which summaries of older versions lack
    places = decimals((row["mean"] for row in rows), deviations)
    spreads = [number(deviation, places) for deviation in deviations]
    found = {f"vs {each[0]['name']}": [difference(one["difference"], places) for one in each]}
    found |= {f"+- vs {each[0]['name']}": spreads} if any(spreads) else {}
    times = ["" if one["times_bytes"] is None else f"{one['times_bytes']:.2f}" for one in each]
    return found | ({"x bytes": times} if any(times) else {})  # none if the reference sends nothing


def _format_target(costs: Mapping[str, Any] | None, seeds: int) -> list[str]:
    """Return the cost of reaching the target if all seeds reached it, else the number of seeds that did."""
    if costs is None or costs["seeds"] < seeds:
        return [f"by {costs['seeds']} of {seeds}" if costs else "never", "", ""]
    return [f"{costs['round']:.1f}", f"{costs['virtual_s']:.1f}", f"{costs['bytes'] / 1e6:.2f}"]


def print_attack_table(runs: Sequence[Run]) -> None:
    """Print the worst attack on each rule; nothing unless the runs differ in their rule and in their attack."""
    from rich.table import Table

    studies = attack_studies(attack_rows(runs))
    if not studies:
        return
    higher, places = runs[0].shown.higher_is_better, places_of(runs)[runs[0].metric]
    clean = any(NO_ATTACK in study.attacks for study in studies)
    table = Table()
    named = any(title(study, studies) for study in studies)
    for head in ("settings", "rule") if named else ("rule",):
        table.add_column(head, no_wrap=True)
    for head in ([NO_ATTACK] if clean else []) + ["worst attack", "mean", "worst tenth"]:
        table.add_column(head, justify="left" if head == "worst attack" else "right", no_wrap=True)
    for study in studies:
        for k, rule in enumerate(study.rules):
            first = ["" if k else title(study, studies)] if named else []
            table.add_row(*first, rule, *_figures(study, rule, higher, clean, places))
        table.add_section()
    print(f"robust rules: test {runs[0].metric} of the honest nodes under the attack with the worst mean")
    print_whole(table)


def _figures(study: AttackStudy, rule: str, higher: bool, clean: bool, places: int) -> list[str]:
    """Return the mean and the worst tenth without attack; the attack with the worst mean; and the worst of both."""
    found = [study.worst(rule, figure, higher) for figure in FIGURES]
    alone = " / ".join(number(study.clean(rule, figure), places) for figure in FIGURES) if clean else ""
    attack = next((each[1] for figure, each in zip(FIGURES, found, strict=True) if figure == MEAN and each), "")
    return [
        *([alone.strip(" /")] if clean else []),
        attack,
        *("" if each is None else number(each[0], places) for each in found),
    ]
