"""The shipped scenarios: all can be run, and those of DPFL on digits show what they are there to show."""

import os
from math import isfinite

import pytest
from msgspec.structs import replace

from sim.engine import check_all, run_all
from sim.results import summarise
from sim.scenario import load, shipped

FILES = {name for name in shipped() if any(run.task.get("data", "digits") != "digits" for run in load(name).runs)}


def outcome(name, *changes, only=None):
    """The table and the runs of a scenario, each by name."""
    file = load(name, changes)
    if only is not None:
        file = replace(file, runs=tuple(run for run in file.runs if run.name in only))
    check_all(file)
    summary = summarise(file, run_all(file, "process", workers=2))
    runs = {}
    for run in summary["runs"]:
        runs.setdefault(run["name"], []).append(run)
    return {row["name"]: row for row in summary["table"]}, runs


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_the_smoke_form_of_a_shipped_scenario_runs(name):
    if name in FILES and any(run.task.get("data", "digits") != "digits" for run in load(name, ["form=smoke"]).runs):
        if "P2PFL_DATA" not in os.environ:
            pytest.skip("P2PFL_DATA names no folder with data sets")
        if name == "dac-cifar100":
            pytest.skip("CIFAR-100 and trained weights are for users to bring")
    file = load(name, ["form=smoke"])
    table, runs = outcome(name, "form=smoke", "seed=0")
    assert set(table) == {run.name for run in file.runs}
    assert all(isfinite(row["mean"]) for row in table.values())
    assert all(run["deadlines_expired"] == 0 for same in runs.values() for run in same)


@pytest.mark.slow
def test_two_groups_find_each_other():
    table, runs = outcome("dpfl-two-groups", "form=short")
    dpfl = [table[name]["mean"] for name in ("dpfl", "dpfl/.2N")]
    assert min(dpfl) >= table["local"]["mean"] + 0.05
    assert min(dpfl) >= table["fedavg"]["mean"] + 0.10
    assert min(dpfl) >= table["random graph/.2N"]["mean"] + 0.15
    late = [run["collaboration"]["late_share"]["0"]["1"] for name in ("dpfl", "dpfl/.2N") for run in runs[name]]
    assert max(late) <= 0.05
    assert {run["traffic"]["max_models_in_round"] for run in runs["dpfl/.2N"]} == {6}


@pytest.mark.slow
def test_nodes_with_flipped_labels_are_left_alone_whether_they_choose_or_not():
    table, runs = outcome("dpfl-label-flip", "form=short")
    rows = [f"{who} GGC{budget}" for who in ("all run", "flipped do not run") for budget in ("", "/.2N")]
    for name in rows:
        assert table[name]["per_group"]["0"] >= table["local"]["per_group"]["0"] + 0.05
        assert table[name]["per_group"]["0"] >= table["random graph/.2N"]["per_group"]["0"] + 0.15
        assert max(run["collaboration"]["late_share"]["0"]["1"] for run in runs[name]) <= 0.05


@pytest.mark.slow
def test_what_a_budget_costs_and_what_it_saves():
    table, _ = outcome("dpfl-budgets", "form=short", only=("local", "fedavg", "dpfl", "dpfl/.1N", "dpfl/int8"))
    assert table["dpfl"]["mean"] >= table["local"]["mean"] + 0.05
    assert table["dpfl"]["mean"] >= table["fedavg"]["mean"] + 0.10
    for name in ("dpfl/.1N", "dpfl/int8"):
        told = table[name]["against"]
        assert told["name"] == "dpfl"
        assert told["difference"] == pytest.approx(table[name]["mean"] - table["dpfl"]["mean"])
        assert told["times_bytes"] < 0.35
