"""Pools: runs whose solutions form one front, one row of the table, and one mark in the report."""

from __future__ import annotations

import json
from math import nan

import msgspec
import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.multiobjective.preferences import dirichlet
from p2pfl.sim.cli.main import main
from p2pfl.sim.execution.runner import check_all
from p2pfl.sim.report.write import report, write_report
from p2pfl.sim.results.objectives import collapses, over_seeds, own_fronts, pool_results, with_distances
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.scenario.sweep import parse, sweep
from p2pfl.task import Part, make_task
from tests.support.browser import browser, needs_chromium, opened_report
from tests.support.report_folders import edges_of, entry, leave, rounds_of
from tests.support.report_pages import figures, payload, rows

WEIGHTS = [[0.2, 0.8], [0.5, 0.5], [0.8, 0.2]]
SYNTHETIC = {"name": "fairness", "data": "synthetic", "rows": 300, "preferences": {"name": "dirichlet"}}
TOML = {
    "nodes": 2,
    "rounds": 1,
    "task": SYNTHETIC,
    "figure": "objectives.hypervolume",
    "run": [
        {
            "name": "same",
            "policy": {"name": "fedavg"},
            "each": {"task.preference": WEIGHTS},
            "pool": {"of": "means"},
            "paper": 0.75,
        },
        {"name": "own", "each": {"task.preferences.number": [0, 1]}, "pool": {}, "policy": {"name": "local"}},
    ],
}


def make_one(*changes, **more):
    return resolve(TOML | more, changes, "study", ".")


# Runs of an entry


def test_each_makes_one_run_per_value_in_one_row():
    file = make_one()
    names = ["same, task.preference=[0.2, 0.8]", "same, task.preference=[0.5, 0.5]", "same, task.preference=[0.8, 0.2]"]
    assert [run.name for run in file.runs] == [*names, "own, task.preferences.number=0", "own, task.preferences.number=1"]
    assert [run.task.get("preference") for run in file.runs] == [*WEIGHTS, None, None]
    assert {name: len(runs) for name, runs in file.rows().items()} == {"same": 3, "own": 2}
    assert [run.pool.of for run in file.runs] == ["means"] * 3 + ["nodes"] * 2
    again = resolve(file.to_toml(), [], "study", ".")
    assert again.runs == file.runs


def test_each_with_several_keys_makes_all_combinations():
    each = {"task.rows": [100, 200], "policy.epochs": [1, 2]}
    file = make_one(run=[{"name": "a", "policy": {"name": "fedavg"}, "each": each}])
    assert [(run.task["rows"], run.policy["epochs"]) for run in file.runs] == [(100, 1), (100, 2), (200, 1), (200, 2)]
    assert list(file.rows()) == [run.name for run in file.runs]  # without a pool each run has its own row


def test_runs_made_equal_by_a_change_are_run_once():
    file = make_one("task.preference=[0.3, 0.7]")
    assert {name: len(runs) for name, runs in file.rows().items()} == {"same": 1, "own": 2}
    assert file.notes[0].startswith(
        "left out, because the changes make them equal to other runs: same, task.preference=[0.5, 0.5]"
    )


def test_selected_runs_of_a_pool_stay_in_it():
    assert [run.row for run in make_one().only("number=1").runs] == ["own"]


def test_sweep_makes_a_pool_for_each_value():
    file = sweep(make_one(run=TOML["run"][:1]), parse(["policy.epochs=1,2"]))
    assert {name: len(runs) for name, runs in file.rows().items()} == {
        "same, policy.epochs=1": 3,
        "same, policy.epochs=2": 3,
    }


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"each": {"task.rows": 5}}, "each must be a table of lists"),
        ({"each": {"task.rows": []}}, "each must be a table of lists"),
        ({"each": {"task.rows": list(range(200)), "seed": list(range(200))}}, "more than 10,000 combinations"),
        ({"pool": {"of": "median"}}, "pool"),
        ({"pool": "a"}, "pool"),
    ],
)
def test_invalid_each_or_pool_is_refused(run, words):
    with pytest.raises(ConfigurationError, match=words):
        make_one(run=[{"name": "a"} | run])


def test_inconsistent_pools_are_refused():
    two = [{"name": "a", "pool": {"name": "p", "of": "means"}}, {"name": "b", "pool": {"name": "p"}}]
    with pytest.raises(ConfigurationError, match="pool 'p' must have the same `of`"):
        make_one(run=two)
    with pytest.raises(ConfigurationError, match="a run and a pool have the name 'b'"):
        make_one(run=[{"name": "a", "pool": {"name": "b"}}, {"name": "b"}])
    with pytest.raises(ConfigurationError, match="target cannot be combined with pools"):
        make_one(target=0.5)
    with pytest.raises(ConfigurationError, match="pool: the task must have several objectives"):
        check_all(make_one(task={"name": "digits"}, run=[{"name": "a", "pool": {}}]))
    with pytest.raises(ConfigurationError, match="pool of fronts: the task must report error and disparity"):
        check_all(make_one(run=[{"name": "a", "pool": {"of": "fronts"}}]))
    other = {"name": "b", "pool": {"name": "a"}, "task": {"measure": "equal-opportunity"}}
    with pytest.raises(ConfigurationError, match="must have the same objectives"):
        check_all(make_one(run=[{"name": "a", "pool": {}}, other]))


def test_preference_number_selects_the_draw():
    rng = np.random.default_rng
    part = Part(0, 2)
    first, third = dirichlet(part, rng(1), 2), dirichlet(part, rng(1), 2, number=2)
    assert (dirichlet(part, rng(1), 2, number=0) == first).all()
    again = rng(1)
    assert (third == [again.dirichlet([1, 1]) for _ in range(3)][2]).all()
    options = {key: value for key, value in SYNTHETIC.items() if key != "name"}
    with pytest.raises(ConfigurationError, match="number must be from 0"):
        make_task("fairness", options | {"preferences": {"name": "dirichlet", "number": -1}}, part, 0)


# Measures of pools by hand: two runs of two nodes

GOALS = {"gain": True, "cost": False}


def describe(name, seed, nodes, **more):
    mean = np.mean(nodes, axis=0).tolist()
    known = {"higher_is_better": GOALS, "nodes": nodes, "mean": mean, "reference": [0.0, 10.0]}
    return {"name": name, "seed": seed, "objectives": known | more}


PART = [describe("a, w=1", 0, [[1, 8], [3, 6]]), describe("a, w=2", 0, [[4, 8], [4, 4]])]  # means (2, 7) and (4, 6)


def test_pool_of_means_has_one_solution_per_run():
    (found,) = pool_results("a", "means", PART)
    assert (found["name"], found["seed"], found["labels"]) == ("a", 0, ["w=1", "w=2"])
    figures = found["objectives"]
    assert figures["nodes"] == [[2, 7], [4, 6]]
    assert (figures["hypervolume"], figures["cardinality"]) == (4 * 4, 1)  # (4, 6) is better in both


def test_pool_of_nodes_has_all_models():
    (found,) = pool_results("a", "nodes", PART)
    assert found["labels"] == ["w=1, node 0", "w=1, node 1", "w=2, node 0", "w=2, node 1"]
    assert found["objectives"]["nodes"] == [[1, 8], [3, 6], [4, 8], [4, 4]]
    assert found["objectives"]["hypervolume"] == 4 * 6


def test_pool_leaves_out_models_that_have_not_converged():
    runs = [PART[0] | {"objectives": PART[0]["objectives"] | {"left_out": [1]}}, PART[1]]
    runs[1] = describe("a, w=2", 0, [[4, 8], [4, 4]], left_out=[1], mean_left_out=True)
    (means,), (nodes,) = pool_results("a", "means", runs), pool_results("a", "nodes", runs)
    assert (means["objectives"]["left_out"], means["objectives"]["hypervolume"]) == ([1], 2 * 3)
    assert (nodes["objectives"]["left_out"], nodes["objectives"]["hypervolume"]) == ([1, 3], 4 * 2)


def test_row_without_counted_solutions_names_the_cure():
    runs = [describe("a", 0, [[1, 8], [3, 6]], left_out=[0, 1], hypervolume=0.0, constant=12.0)]
    row = {"name": "a", "objectives": over_seeds(runs)}
    assert row["objectives"] == {"hypervolume": 0, "constant": 12, "left_out": 2, "solutions": 2}
    (line,) = collapses([row, {"name": "b", "objectives": {"left_out": 1.0, "solutions": 2.0}}, {"name": "c"}])
    assert line.startswith("none of the 2 solutions of 'a' counts")
    assert "task.preference" in line


@pytest.mark.parametrize(("of", "volume"), [("means", 2 * 5), ("nodes", 3 * 4 + 1 * 2)])
def test_pool_has_hypervolume_of_its_constant_models(of, volume):
    runs = [describe(f"a, w={k}", 0, [[1, 8], [3, 6]], constants=[[1, 4], [3, 6]]) for k in (1, 2)]
    (found,) = pool_results("a", of, runs)
    assert found["objectives"]["constant"] == volume  # the mean is (2, 5); the reference is (0, 10)


def test_pool_of_fronts_has_one_front_per_node():
    """Node 0 has (0.2, 0.5) and (0.6, 0.1): 0.8 * 0.5 + 0.4 * 0.4 = 0.56. Node 1 has (0.5, 0.5) twice: 0.25."""
    runs = [
        {
            "name": name,
            "seed": seed,
            "extra_metrics": {"smallest_error": {"nodes": errors}, "smallest_disparity": {"nodes": apart}},
        }
        for name, seed, errors, apart in (("a", 0, [0.2, 0.5], [0.5, 0.5]), ("b", 0, [0.6, 0.5], [0.1, 0.5]))
    ]
    assert own_fronts(runs) == pytest.approx([(0.56 + 0.25) / 2])
    alone = [run | {"seed": seed} for seed, run in enumerate(runs)]
    assert own_fronts(alone) == pytest.approx([(0.4 + 0.25) / 2, (0.36 + 0.25) / 2])
    attacked = [run | {"extra_metrics": {name: {"nodes": [0.5, nan]} for name in run["extra_metrics"]}} for run in runs]
    assert own_fronts(attacked) == pytest.approx([0.25])


@pytest.mark.slow
def test_pool_of_fronts_run_has_hypervolume_and_report(tmp_path):
    task = {"name": "praffl", "data": "synthetic", "rows": 300, "model": "single"}
    row = {"name": "front", "each": {"policy.alpha": [0.1, 1.0]}, "pool": {"of": "fronts"}}
    table = {"nodes": 2, "rounds": 1, "seeds": [0, 1], "task": task, "policy": {"name": "fedfb"}, "run": [row]}
    (tmp_path / "study.toml").write_bytes(msgspec.toml.encode(table))
    assert main(["run", str(tmp_path / "study.toml"), "--engine", "local", "--out", str(tmp_path / "out"), "--json"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (found,) = summary["table"]
    assert found["pool"] == {"runs": 2, "of": "fronts"}
    assert found["extra_metrics"]["own_fronts"] == pytest.approx(np.mean(own_fronts(summary["runs"])))
    assert found["extra_metrics"]["own_fronts"] >= found["mean"] - 1e-6  # the mean is computed in float32
    assert "pools" not in summary
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_pools_separate_seeds_and_have_own_distances():
    other = [describe("b, w=1", 0, [[9, 9], [9, 9]])]
    seeds = [*PART, describe("a, w=1", 1, [[1, 1], [1, 1]])]
    assert [pool["seed"] for pool in pool_results("a", "means", seeds)] == [0, 1]
    pools = [*pool_results("a", "means", PART), *pool_results("b", "means", other)]
    first, second, run = with_distances([*pools, PART[0]], {})
    # The front of both pools is (4, 6) and (9, 9).
    assert first["objectives"]["igd"] == pytest.approx(np.hypot(5, 3) / 2)
    assert second["objectives"]["igd"] == pytest.approx(np.hypot(5, 3) / 2)
    assert run["objectives"]["igd"] == 0


def test_pools_of_nodes_have_distances_apart_from_runs():
    (pool,) = pool_results("a", "nodes", PART)
    found, _ = with_distances([pool, describe("b, w=1", 0, [[9, 9], [9, 9]])], {})
    assert found["objectives"]["igd"] == 0


def test_runs_in_other_surroundings_have_distances_apart():
    runs = [describe("a", 0, [[1, 1]]), describe("b", 0, [[4, 5]])]
    together, apart = (with_distances(runs, levels) for levels in ({}, {"a": "loss=0", "b": "loss=0.1"}))
    assert [run["objectives"]["igd"] for run in together] == [2.5, 2.5]
    assert [run["objectives"]["igd"] for run in apart] == [0, 0]


# A complete run


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("pools")
    (out / "study.toml").write_bytes(msgspec.toml.encode(TOML))
    assert main(["run", str(out / "study.toml"), "--out", str(out / "run"), "--engine", "local", "--seeds", "0:2"]) == 0
    return out / "run"


@pytest.mark.slow
def test_table_has_a_row_for_each_pool(ran):
    summary = json.loads((ran / "summary.json").read_text())
    assert len(summary["runs"]) == 10
    assert [pool["name"] for pool in summary["pools"]] == ["same", "same", "own", "own"]
    same, own = summary["table"]
    assert (same["name"], same["pool"], same["seeds"], same["paper"]) == ("same", {"runs": 3, "of": "means"}, 2, 0.75)
    assert own["pool"] == {"runs": 2, "of": "nodes"}
    measured = [pool["objectives"]["hypervolume"] for pool in summary["pools"] if pool["name"] == "same"]
    assert same["objectives"]["hypervolume"] == pytest.approx(np.mean(measured))
    of_seed = [
        [run["test"]["mean"] for run in summary["runs"] if run["seed"] == k and run["pool"] == "same"] for k in (0, 1)
    ]
    assert same["mean"] == pytest.approx(np.mean(of_seed))
    assert same["std"] == pytest.approx(np.std(np.mean(of_seed, axis=1), ddof=1))
    one = next(run for run in summary["runs"] if run["pool"] == "same")
    (mean,) = [nodes for pool in summary["pools"][:1] for nodes in pool["objectives"]["nodes"][:1]]
    assert mean == pytest.approx(np.mean(one["objectives"]["nodes"], axis=0))


@pytest.mark.slow
def test_report_shows_front_of_each_pool(ran):
    text = report([ran])
    assert payload(text)["runs"] == ["same", "own"]
    found = figures(text)
    means, nodes = found["fronts"], found["fronts-1"]
    assert {point["run"] for point in means["points"]} == {"same"}
    assert sum(point["size"] for point in means["points"]) == 3
    assert "task.preference=[0.2, 0.8]" in means["points"][0]["label"]
    assert "Mean objectives of each run, and the front of each pool" in means["title"]
    assert sum(point["size"] for point in nodes["points"]) == 4
    summary = json.loads((ran / "summary.json").read_text())
    row = rows(text, 1)["same"]
    assert row["hypervolume"] == f"{summary['table'][0]['objectives']['hypervolume']:.3f}"
    assert row["paper"] == "0.750"
    assert rows(text, 0)["same"]["± over seeds"] == f"{summary['table'][0]['std']:.3f}"


@pytest.mark.slow
def test_report_marks_solutions_left_out_by_the_task(tmp_path):
    objectives = {
        "higher_is_better": {"a": True, "b": True},
        "nodes": [[1, 1], [9, 9]],
        "left_out": [1],
        "reference": [0, 0],
    }
    made = [(entry("one", 0, 2, 1, objectives=objectives | {"igd": 0.0}), rounds_of(2, 1), edges_of())]
    text = report([leave(tmp_path / "run", made)])
    assert rows(text, 1)["one"]["hypervolume"] == "1.000"
    assert text.count("Models that the task does not count are excluded") == 1
    left = {point["x"]: (point["label"], point["on_front"]) for point in figures(text)["fronts"]["points"]}
    assert left == {1: ("node 0", True), 9: ("node 1 (excluded: not converged)", False)}


@pytest.mark.slow
@needs_chromium
def test_report_of_many_pools_draws_all_fronts(tmp_path):
    """The page initially shows few of many runs, but all fronts of the same problem."""
    made = []
    for k in range(20):
        goals = dict.fromkeys(("accuracy", f"parity_{k // 5}"), True)
        points = [[0.5 + k / 100, 0.5], [0.4, 0.6 + k / 100]]
        objectives = {"higher_is_better": goals, "nodes": points, "mean": points[0], "reference": [0, 0]}
        made.append((entry(f"row {k}", 0, 2, 1, objectives=objectives, pool=f"row {k}"), rounds_of(2, 1), edges_of()))
    scenario = {"run": [{"name": f"row {k}", "pool": {"name": f"row {k}"}} for k in range(20)]}
    path = write_report([leave(tmp_path / "run", made, scenario)], tmp_path / "report.html")
    assert len(payload(path.read_text())["shown"]) < 20
    with browser() as chromium:
        found = opened_report(chromium, path)
    assert path.read_text().count("IGD: mean distance") == 1  # below the last of four tables
    drawn = {figure["id"]: figure for figure in found.figures}
    for id in ("fronts", "fronts-1", "fronts-2", "fronts-3"):
        assert not drawn[id]["empty"]
        assert drawn[id]["drawn"] > 10
    assert found.problems == []
