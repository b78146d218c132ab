"""Factors of runs: their levels, the heat maps, colours and short labels that are made from them."""

from contextlib import ExitStack

import pytest

from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import factors, gather, grid, labels, styles
from p2pfl.sim.report.write import report
from tests.support.report_folders import edges_of, entry, leave, rounds_of
from tests.support.report_pages import Tables, figures, payload, texts

BUDGETS = (4, 0, 1)


def study(path, seeds=(0,), target=None, names=("ring", "complete"), each=None):
    """Write a folder with topologies and budgets; the accuracy is .5 and more, the bytes are ten times each other."""
    runs = [{"name": name, "topology": {"name": name}, "each": each or {"budget.models": [*BUDGETS]}} for name in names]
    made = []
    for k, name in enumerate(names):
        for j, budget in enumerate(BUDGETS):
            for seed in seeds:
                test = {"mean": 0.5 + 0.1 * k + 0.01 * j + 0.001 * seed}
                more = {"test": test, "topology": name, "traffic": {"bytes": 1000 * 10**j}}
                summary = entry(f"{name}, budget.models={budget}", seed, 2, 1, **more)
                made.append((summary, rounds_of(2, 1, trained_test_accuracy=0.5 if j else 0.1), edges_of((1, 0, 1))))
    return leave(path, made, {"run": runs} | ({} if target is None else {"target": target}))


@pytest.fixture
def series_of():
    """Function that returns the runs of folders."""
    with ExitStack() as stack:
        yield lambda *paths: gather([stack.enter_context(Folder(path)) for path in paths])


@pytest.mark.slow
def test_factors_are_topology_and_budget_with_none_last(tmp_path, series_of):
    found = factors(series_of(study(tmp_path / "run")))
    assert [(factor.key, factor.texts) for factor in found] == [
        ("topology", ("ring", "complete")),
        ("budget.models", ("1", "4", "none")),
    ]
    assert found[1].level["ring, budget.models=0"] == 2
    assert grid(found) == tuple(found)


@pytest.mark.slow
def test_setting_determined_by_another_one_is_no_factor(tmp_path, series_of):
    runs = [{"name": name, "topology": {"name": name}, "rounds": k} for k, name in enumerate(("ring", "star", "torus"), 1)]
    made = [(entry(run["name"], 0, 2, run["rounds"]), rounds_of(2, run["rounds"]), edges_of()) for run in runs]
    found = factors(series_of(leave(tmp_path / "run", made, {"run": runs})))
    assert [factor.key for factor in found] == ["topology"]
    assert grid(found) is None


@pytest.mark.slow
def test_folder_is_a_factor_of_equal_scenarios(tmp_path, series_of):
    found = factors(series_of(study(tmp_path / "a"), study(tmp_path / "b")))
    assert [(factor.key, factor.texts) for factor in found][2:] == [("folder", ("a", "b"))]


@pytest.mark.slow
def test_styles_have_hue_by_first_and_tint_by_second_factor(tmp_path, series_of):
    series = series_of(study(tmp_path / "run"))
    looks = dict(zip([one.name for one in series], styles(series, factors(series)), strict=True))
    assert [looks[f"ring, budget.models={k}"] for k in (1, 4, 0)] == [(0, 0, 0, 0), (0, 3, 1, 1), (0, 6, 2, 2)]
    assert [looks[f"complete, budget.models={k}"][0] for k in (1, 4, 0)] == [1, 1, 1]
    assert styles(series, factors(series)[:1]) is None


@pytest.mark.slow
def test_sentences_name_runs_in_words(tmp_path):
    folders = [study(tmp_path / name, seeds=(0, 1), target=0.4) for name in ("one", "two")]
    text = report(folders)
    target = "; ".join(f"{folder}: {name}, models=4" for name in ("ring", "complete") for folder in ("one", "two"))
    assert texts(text)["target"][-1] == f"Runs that never reach a mean test accuracy of 0.400: {target}."
    assert "Most accurate: one: complete, models=1 (" in text  # the other folder has the same events


@pytest.mark.slow
def test_labels_have_the_last_part_of_each_varied_key(tmp_path, series_of):
    assert labels(series_of(study(tmp_path / "run")))["ring, budget.models=0"] == "ring, models=none"
    text = payload(report([tmp_path / "run"]))
    assert text["labels"]["complete, budget.models=4"] == "complete, models=4"
    assert text["styles"][0] == [0, 3, 1, 1]
    heads, *rows = Tables(report([tmp_path / "run"])).tables[0]
    assert (heads[0], rows[1][0]) == ("Run", "ring, models=none")


@pytest.mark.slow
def test_heat_maps_show_metric_and_costs(tmp_path):
    found = figures(report([study(tmp_path / "run", seeds=(0, 2), target=0.5)]))
    heat = found["grid-metric"]
    assert (heat["rows"], heat["columns"], heat["x_label"]) == (
        ["ring", "complete"],
        ["1", "4", "none"],
        "budget (models a round)",
    )
    cell = heat["cells"]["complete, budget.models=1"]
    assert cell == {
        "row": 1,
        "column": 0,
        "value": pytest.approx(0.621),
        "dev": pytest.approx(0.001414, rel=1e-3),
        "best": True,
    }
    assert [run for run, cell in heat["cells"].items() if cell["best"]] == ["complete, budget.models=1"]
    assert found["grid-bytes"]["log"]
    assert found["grid-target-time"]["cells"]["ring, budget.models=4"]["missing"] == "never"
    assert found["grid-target-time"]["cells"]["ring, budget.models=4"]["value"] is None
    assert found["grid-target-bytes"]["cells"]["ring, budget.models=0"]["value"] == 20
    assert "grid-time" not in found


@pytest.mark.slow
def test_heat_maps_frame_the_best_of_each_learning_problem(tmp_path):
    losses = {0.0: (0.9, 0.8), 0.2: (0.5, 0.6)}
    runs = [{"name": n, "policy": {"name": n}, "each": {"network.loss": [*losses]}} for n in ("random", "fedavg")]
    made = [
        (
            entry(f"{n}, network.loss={loss}", 0, 2, 1, policy={"name": n}, test={"mean": means[k]}),
            rounds_of(2, 1),
            edges_of(),
        )
        for loss, means in losses.items()
        for k, n in enumerate(("random", "fedavg"))
    ]
    heat = figures(report([leave(tmp_path / "run", made, {"deadline": 5.0, "run": runs})]))["grid-metric"]
    assert {run for run, cell in heat["cells"].items() if cell["best"]} == {
        "random, network.loss=0.0",
        "fedavg, network.loss=0.2",
    }
    assert heat["note"].endswith("The best value of each learning problem has a frame.")


@pytest.mark.slow
def test_sparse_combinations_have_no_heat_map(tmp_path, series_of):
    runs = [{"name": name, "policy": {"name": name}} for name in ("local", "random", "dac", "fedavg")]
    runs += [{"name": f"random/{k}", "policy": {"name": "random"}, "budget": {"models": k}} for k in (1, 2)]
    made = [(entry(run["name"], 0, 2, 1), rounds_of(2, 1), edges_of()) for run in runs]
    found = factors(series_of(leave(tmp_path / "run", made, {"run": runs})))
    assert [factor.key for factor in found] == ["policy", "budget.models"]
    assert grid(found) is None
    assert styles(series_of(tmp_path / "run"), found) is None


@pytest.mark.slow
def test_equal_costs_have_no_heat_map(tmp_path):
    assert "grid-time" not in figures(report([study(tmp_path / "run")]))  # all take one virtual second


@pytest.mark.slow
def test_runs_of_one_factor_have_no_heat_map(tmp_path):
    assert "grid-metric" not in figures(report([study(tmp_path / "run", names=("ring",))]))


@pytest.mark.slow
def test_budget_of_zero_is_drawn_as_none(tmp_path):
    points = figures(report([study(tmp_path / "run")]))["against-budget-models"]["points"]
    assert {(point["label"], point["x"], point.get("no_limit")) for point in points if point["label"] == "ring"} == {
        ("ring", 4, None),
        ("ring", None, True),
        ("ring", 1, None),
    }
