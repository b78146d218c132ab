"""Table of a run in a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from p2pfl.sim.formatting import PARETO_OPTIMAL, difference, number, of_paper

# Measures that fit a terminal of 100 columns; summary.json and the report have the others.
MEASURES = ("hypervolume", "igd")
CLUSTERS = ("best ARI", "true groups", "final ARI")


if TYPE_CHECKING:
    from rich.table import Table


def print_table(summary: Mapping[str, Any]) -> None:
    """Print the table of a summary.

    It has the bytes sent where codecs or runs are compared, and the cost of reaching the target. It also has the means
    of the nodes' groups or, without groups, the front of several objectives; the clusters; and a paper's figures.
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
    sent = any("bytes" in row for row in rows)
    reference = next((row["against"]["name"] for row in rows if "against" in row), "")
    headings = [*(["MB sent"] if sent else []), *([f"vs {reference}"] if reference else [])]
    # None if the reference sends nothing
    times = any(row["against"]["times_bytes"] is not None for row in rows if "against" in row)
    headings += ["x bytes"] if times else []
    headings += [f"rounds to {number(summary['target'])}", "virtual s", "MB"] if "target" in summary else []
    front = any(row.get("front") for row in rows)
    clustered = any("clusters" in row for row in rows)
    also = list(dict.fromkeys(name for row in rows for name in row.get("extra_metrics", {})))
    headings += [*(name.replace("_", " ") for name in also)]
    headings += [*(f"group {group}" for group in groups), *measures, *(CLUSTERS if clustered else [])]
    headings += [*([of_paper(summary.get("figure", ""))] if papers else []), *(["front"] if front else [])]
    first = ["run"] if any(names) else []
    for name in (*first, *varied, metric, "+- over seeds", *headings):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    for row, run in zip(rows, names, strict=True):
        paper = number(row["paper"]) if "paper" in row else ""
        deviation = number(row["std"]) if seeds > 1 else ""
        compared = [f"{row['bytes'] / 1e6:.2f}"] if sent else []
        of_groups = [number(row["per_group"][group]) if group in row.get("per_group", {}) else "" for group in groups]
        if reference:
            compared += _against(row["against"])[: 1 + times]
        if "target" in summary:
            compared += _format_target(row["reached"], row["seeds"])
        compared += [number(row.get("extra_metrics", {}).get(name)) for name in also]
        compared += of_groups + [number(row.get("objectives", {}).get(name)) for name in measures]
        compared += _clusters(row.get("clusters"), row["seeds"]) if clustered else []
        more = [*compared, *([paper] if papers else []), *(["*" * row["front"]] if front else [])]
        values = [_value(row["varied"][key]) if key in row["varied"] else "" for key in varied]
        table.add_row(*([run] if first else []), *values, number(row["mean"]), deviation, *more)
    of = "nodes, runs" if any("pool" in row for row in rows) else "nodes"
    print(f"{summary['scenario']}: test {metric}, mean over {of} and {seeds} seed{'s' * (seeds > 1)}")
    print_whole(table)
    if front:
        print(f"* {PARETO_OPTIMAL}")


def print_whole(table: Table) -> None:
    """Print a table; the terminal wraps lines that are too wide, so that nothing is cut off."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    wide = console.options.update(max_width=10_000)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


def _clusters(figures: Mapping[str, Any] | None, seeds: int) -> list[str]:
    """Return the agreement of the clusters with the true groups."""
    if figures is None:
        return [""] * len(CLUSTERS)
    return [f"{figures['best']:.2f}", f"{figures['reached']} of {seeds}", f"{figures['final']:.2f}"]


def _name(row: Mapping[str, Any]) -> str:
    """Return the name of a row in a table that has its own columns for the varied values."""
    key = next(iter(row.get("varied", ())), None)
    return str(row["name"]) if key is None else str(row["name"]).partition(f"{key}=")[0].removesuffix(", ")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _against(compared: Mapping[str, Any]) -> list[str]:
    times = compared["times_bytes"]
    return [difference(compared["difference"]), "" if times is None else f"{times:.2f}"]


def _format_target(costs: Mapping[str, Any] | None, seeds: int) -> list[str]:
    """Return the cost of reaching the target if all seeds reached it, else the number of seeds that did."""
    if costs is None or costs["seeds"] < seeds:
        return [f"by {costs['seeds']} of {seeds}" if costs else "never", "", ""]
    return [f"{costs['round']:.1f}", f"{costs['virtual_s']:.1f}", f"{costs['bytes'] / 1e6:.2f}"]
