"""Shipped scenarios of DPFL on digits, of FedPref and of topologies: their claims hold.

`p2pfl-sim reproduce --smoke`, which .ci/run runs, verifies that all scenarios run and have a report.
"""

import json

import pytest

from p2pfl.sim import reproduction
from tests.support.depth import deep
from tests.support.pages import DOCS, line
from tests.support.readme import bash
from tests.support.reproductions import outcome, whole_tables

TEXT = (DOCS / "measurements.md").read_text(encoding="utf-8")
FREE, FOUR = "{}, budget.models=0", "{}, budget.models=4"  # rows of topology-study


def run_dpfl_tables(folder):
    """Run the commands of docs/reproduced.md for DPFL; return the table and all runs by scenario."""
    read = run_documented_command(folder, "dpfl", "dpfl-two-groups-short", "dpfl-budgets-short")
    return {each["scenario"]: ({row["name"]: row for row in each["table"]}, each["runs"]) for each in read}


def run_documented_command(folder, name, *scenarios):
    """Run the command of docs/reproduced.md that writes to this folder; return the summaries, checked for their rows."""
    said = bash(line("reproduced.md", f"runs/{name}"), folder, timeout=800)
    assert "otherwise" not in said  # as for claims that do not hold
    found = [json.loads((folder / "runs" / name / each / "summary.json").read_text()) for each in scenarios]
    for summary, (scenario, _, form) in zip(found, (each.rpartition("-") for each in scenarios), strict=True):
        recorded = reproduction.load_measured(reproduction.FILE)[scenario][form].figures
        assert recorded.keys() == {row["name"] for row in summary["table"]}
    return found


def assert_groups_are_found(table, runs):
    for name in ("dpfl", "dpfl/.2N"):
        assert table[name]["mean"] >= table["local"]["mean"] + 0.05
        assert table[name]["mean"] >= table["fedavg"]["mean"] + 0.10
        assert table[name]["mean"] >= table["random graph/.2N"]["mean"] + 0.15
        assert max(run["collaboration"]["late_share"]["0"]["1"] for run in runs if run["name"] == name) <= 0.05
    assert {run["traffic"]["max_models_in_round"] for run in runs if run["name"] == "dpfl/.2N"} == {6}


def assert_budget_tradeoff(table):
    assert table["dpfl"]["mean"] >= table["local"]["mean"] + 0.05
    assert table["dpfl"]["mean"] >= table["fedavg"]["mean"] + 0.10
    for name in ("dpfl/.1N", "dpfl/int8"):
        told = table[name]["against"]
        assert told["name"] == "dpfl"
        assert told["difference"] == pytest.approx(table[name]["mean"] - table["dpfl"]["mean"])
        assert told["times_bytes"] < 0.35


def assert_as_printed(summaries):
    """Compare with docs/measurements.md; other machines may differ in the last digit of a mean."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
    steady = ("fedavg+ft", "apfl", "ditto", "fedrep", "pfedgraph")  # the others differ between seeds by a tenth and more
    printed = [row for row in rows if len(row) == 5 and (row[0] in steady or row[0].startswith("dpfl"))]
    assert len(printed) == 11
    for name, *figures in printed:
        for (table, _), mean, sent in zip(summaries.values(), figures[::2], figures[1::2], strict=True):
            if mean:
                assert table[name]["mean"] == pytest.approx(float(mean), abs=0.03)
                assert table[name]["against"]["times_bytes"] == pytest.approx(float(sent), abs=0.05)


@pytest.mark.slow
@whole_tables
@pytest.mark.timeout(900)  # a minute or two, but longer than others where several tests share the cores
def test_dpfl_full_tables_reproduce(tmp_path):
    """One test, so that parallel workers do not compute the tables more than once."""
    summaries = run_dpfl_tables(tmp_path)
    assert_groups_are_found(*summaries["dpfl-two-groups"])
    assert_budget_tradeoff(summaries["dpfl-budgets"][0])
    assert_as_printed(summaries)


def assert_preference_tables(summaries):
    """Check both acceptance criteria and docs/measurements.md; other machines may differ in the last digit."""
    dst, teachers = ({row["name"]: row for row in summary["table"]} for summary in summaries)
    assert dst["fedpref"]["clusters"]["reached"] >= 4
    for name in ("fedavg", "fedprox"):
        assert dst["fedpref"]["mean"] >= dst[name]["mean"] + 0.6
    assert teachers["fedpref"]["mean"] >= teachers["fedavg"]["mean"] + 0.15
    assert teachers["fedpref/min_progress"]["clusters"]["final"] >= 0.5
    assert teachers["fedpref/weighting only"]["clusters"]["best"] == 0.0  # nothing was split
    assert teachers["fedpref/clustering only"]["mean"] != teachers["fedpref"]["mean"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
    printed = {name: figures for name, *figures in rows if len(figures) == 7 and name in teachers}
    assert printed.keys() == teachers.keys() >= dst.keys()
    for name, figures in printed.items():
        for table, (reward, best, last) in ((dst, figures[:3]), (teachers, figures[4:])):
            assert (name in table) == bool(reward)
            if reward:
                row, told = table[name], [float(figure) for figure in reward.split(" +- ")]
                assert [row["mean"], row["std"]] == pytest.approx(told, abs=0.05)
                assert ("clusters" in row) == bool(best) == bool(last)
            if best:
                assert [row["clusters"]["best"], row["clusters"]["final"]] == pytest.approx(
                    [float(best), float(last)], abs=0.1
                )
        if figures[3]:
            assert dst[name]["objectives"]["hypervolume"] == pytest.approx(float(figures[3]), abs=15)


@pytest.mark.slow
@whole_tables
@pytest.mark.timeout(900)
def test_fedpref_full_tables_reproduce(tmp_path):
    assert_preference_tables(run_documented_command(tmp_path, "preferences", "fedpref-dst-full", "fedpref-teachers-full"))


@pytest.mark.slow
@whole_tables
@pytest.mark.timeout(900)
def test_topology_study_full_table_reproduces(tmp_path):
    said = bash(line("runs/topology"), tmp_path)
    summary = json.loads((tmp_path / "runs" / "topology" / "topology-study-short" / "summary.json").read_text())
    table = {row["name"]: row for row in summary["table"]}
    runs = {name: [run for run in summary["runs"] if run["name"] == name] for name in table}
    assert (
        "Best with at most 4 models a round: not decided, because a single seed has no spread; first complete, models=4"
        in said
    )
    reached = {name: row["reached"] for name, row in table.items() if name.endswith("=0")}
    assert min(reached, key=lambda name: reached[name]["round"]) == FREE.format("complete")
    assert max(reached, key=lambda name: reached[name]["bytes"]) == FREE.format("complete")
    for ring in ("ring", "torus", "k-regular"):  # no node has more than four neighbours
        assert runs[FREE.format(ring)][0]["trace"] == runs[FOUR.format(ring)][0]["trace"]
    assert {run["traffic"]["max_models_in_round"] for name in runs if name.endswith("=4") for run in runs[name]} <= {2, 4}
    free, bound = (runs[name.format("complete")][0]["traffic"]["bytes"] for name in (FREE, FOUR))
    assert bound < 0.12 * free
    assert runs[FREE.format("torus")][0]["labels"] == runs[FREE.format("geant")][0]["labels"]


# With one seed, and only the rows that a test needs


def documented_means(*scenarios):
    """Return by row the means in docs/measurements.md for these scenarios, None where there is none."""
    tables = TEXT.split("\n\n")
    (table,) = [each.splitlines() for each in tables if all(f"| `{scenario}` |" in each for scenario in scenarios)]
    heading, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    columns = [heading.index(f"`{scenario}`") for scenario in scenarios]
    means = [[row[column].partition(" ")[0] for column in columns] for row in rows]
    return {row[0]: [float(mean) if mean else None for mean in some] for row, some in zip(rows, means, strict=True)}


@pytest.mark.parametrize(
    ("scenarios", "form", "digits"),
    [(("dpfl-two-groups", "dpfl-budgets"), "short", 3), (("fedpref-dst", "fedpref-teachers"), "full", 2)],
)
def test_documented_means_match_measurements(scenarios, form, digits):
    for name, means in documented_means(*scenarios).items():
        for scenario, mean in zip(scenarios, means, strict=True):
            figure = reproduction.load_measured(reproduction.FILE)[scenario][form].figures.get(name)
            assert (figure is None) == (mean is None)
            assert mean == pytest.approx(figure, abs=0.51 * 10**-digits)


@pytest.mark.slow
def test_dpfl_finds_its_group_with_one_seed():
    table, runs = outcome("dpfl-two-groups", ["local", "fedavg", "random graph/.2N", "dpfl", "dpfl/.2N"], "short")
    assert_groups_are_found(table, list(runs.values()))
    assert table["dpfl/.2N"]["against"]["times_bytes"] == pytest.approx(0.50, abs=0.05)  # as docs/measurements.md has it


@pytest.mark.slow
@deep
def test_dpfl_budget_saves_bytes_with_one_seed():
    table, _ = outcome("dpfl-budgets", ["local", "fedavg", "dpfl", "dpfl/.1N", "dpfl/int8"], "short")
    assert_budget_tradeoff(table)


@pytest.mark.slow
def test_fedpref_clusters_by_preferences_with_one_seed():
    dst, _ = outcome("fedpref-dst", ["fedavg", "fedprox", "fedpref"])
    assert dst["fedpref"]["clusters"]["best"] > 0.8  # the groups themselves are found with other seeds
    assert dst["fedpref"]["mean"] > dst["fedavg"]["mean"] + 1.5
    rows = ["fedavg", "fedpref", *(f"fedpref/{part}" for part in ("min_progress", "clustering only", "weighting only"))]
    teachers, _ = outcome("fedpref-teachers", rows)
    assert teachers["fedpref/weighting only"]["clusters"]["best"] == 0.0  # nothing was split
    assert teachers["fedpref/clustering only"]["mean"] != teachers["fedpref"]["mean"]


@pytest.mark.slow
@deep
def test_complete_graph_needs_fewest_rounds_and_most_bytes():
    names = [name.format(topology) for topology in ("complete", "ring") for name in (FREE, FOUR)]
    table, runs = outcome("topology-study", [*names, FREE.format("geant")], "short")
    reached = {name: row["reached"] for name, row in table.items() if name.endswith("=0")}
    assert min(reached, key=lambda name: reached[name]["round"]) == FREE.format("complete")
    assert max(reached, key=lambda name: reached[name]["bytes"]) == FREE.format("complete")
    assert runs[FREE.format("ring")]["trace"] == runs[FOUR.format("ring")]["trace"]  # no node has more than four neighbours
    assert {runs[name]["traffic"]["max_models_in_round"] for name in names if name.endswith("=4")} <= {2, 4}
    assert runs[FOUR.format("complete")]["traffic"]["bytes"] < 0.12 * runs[FREE.format("complete")]["traffic"]["bytes"]
    assert runs[FREE.format("ring")]["labels"] == runs[FREE.format("geant")]["labels"]


@pytest.mark.slow
def test_ggc_excludes_nodes_with_flipped_labels():
    ggc = ["all run GGC", "flipped do not run GGC/.2N"]
    table, runs = outcome("dpfl-label-flip", ["local", "random graph/.2N", *ggc], "short")
    for name in ggc:
        assert table[name]["per_group"]["0"] >= table["local"]["per_group"]["0"] + 0.05
        assert table[name]["per_group"]["0"] >= table["random graph/.2N"]["per_group"]["0"] + 0.15
        assert runs[name]["collaboration"]["late_share"]["0"]["1"] <= 0.05
