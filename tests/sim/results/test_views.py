"""Results in a notebook and as data: frames, curves and HTML."""

import sys

import numpy as np
import pytest
import torch

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.sim.monitor.monitor import line_of
from p2pfl.sim.results.learning_curves import draw_curves
from p2pfl.sim.results.results import Result

matplotlib = pytest.importorskip("matplotlib", reason="needs the extra notebook")
pandas = pytest.importorskip("pandas", reason="needs the extra notebook")
polars = pytest.importorskip("polars", reason="needs the extra polars")

matplotlib.use("Agg")

TABLES = {
    "name": "study",
    "nodes": 4,
    "rounds": 3,
    "task": "concept-shift",
    "run": [{"name": "alone", "policy": "local"}, {"name": "with <peers>", "policy": "random"}],
}


@pytest.fixture(scope="module")
def results():
    return p2pfl.simulate(TABLES, seeds=2)


def test_frame_has_all_runs_and_seeds(results):
    frame = results.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns[:3]) == ["run", "seed", "round"]
    assert len(frame) == 2 * 2 * 4 * 3
    last = frame[(frame["run"] == "alone") & (frame["seed"] == 1)]["merged_test_loss"]
    assert np.array_equal(last, results[1].rounds["merged_test_loss"], equal_nan=True)
    assert len(results[3].frame()) == 4 * 3


def test_frame_of_nodes_has_results_and_groups(results):
    frame = results.frame(table="nodes")
    assert list(frame.columns) == ["run", "seed", "node", "mse", "group"]
    means = frame.groupby(["run", "seed"])["mse"].mean()
    assert means["with <peers>", 1] == pytest.approx(results[3].summary["test"]["mean"])


def test_polars_frame_equals_pandas_frame(results):
    for table in ("rounds", "edges", "nodes"):
        other = results.frame("polars", table=table)
        assert isinstance(other, polars.DataFrame)
        plain = results.frame(table=table)
        assert other.columns == list(plain.columns)
        assert other["run"].to_list() == plain["run"].tolist()


def test_frame_names_unknown_tables_and_libraries(results, monkeypatch):
    with pytest.raises(ConfigurationError, match="unknown table 'round'; did you mean 'rounds'"):
        results.frame(table="round")
    with pytest.raises(
        ConfigurationError, match="library must be one of pandas, polars, got 'panda'; did you mean 'pandas'"
    ):
        results.frame("panda")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigurationError, match=r"frame\(\) needs polars: pip install 'p2pfl-node\[polars\]'"):
        results.frame("polars")


@pytest.mark.slow
def test_plot_draws_a_line_for_each_run(results, monkeypatch):
    ax = results.plot()
    assert ax.get_ylabel() == "test mse, mean over nodes"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["alone", "with <peers>"]
    assert [list(line.get_xdata()) for line in ax.get_lines()] == [[1, 2, 3]] * 2
    again = results[0].plot("loss", split="validation", ax=ax)
    assert again is ax
    assert len(ax.get_lines()) == 3
    with pytest.raises(ConfigurationError, match=r"the metric 'f1' on test data in its rounds; known: .*mse"):
        results.plot("f1")
    matplotlib.pyplot.close("all")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"plot\(\) needs matplotlib: pip install 'p2pfl-node\[notebook\]'"):
        results.plot()


def test_curve_is_the_mean_and_its_band_the_deviation():
    ax = draw_curves({"a": [np.array([[np.nan, np.nan], [1.0, 3.0]]), np.array([[np.nan, np.nan], [4.0, 4.0]])]}, "accuracy")
    (line,), (band,) = ax.get_lines(), ax.collections
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([2], [3.0])
    heights = {*band.get_paths()[0].vertices[:, 1]}  # of the means 2 and 4 over two seeds, as in reports and tables
    assert sorted(heights) == pytest.approx([3.0 - 2.0**0.5, 3.0 + 2.0**0.5])
    matplotlib.pyplot.close("all")


def test_slice_and_only_are_results_of_some_runs(results, tmp_path):
    assert isinstance(results[0], Result)
    alone, seed_1 = results.only("alone"), results[1::2]
    assert repr(alone) == "Results('study': 1 run, 2 seeds)"
    assert repr(seed_1) == "Results('study': 2 runs, 1 seed)"
    assert [row["name"] for row in alone.summary["table"]] == ["alone"]
    assert [row["mean"] for row in seed_1.summary["table"]] == [results[k].summary["test"]["mean"] for k in (1, 3)]
    assert {*seed_1.frame()["seed"]} == {1}
    seed_1.to_dir(tmp_path / "part")
    assert repr(p2pfl.load(tmp_path / "part")) == repr(seed_1)
    assert "run" in results[:0]._repr_html_()
    with pytest.raises(ConfigurationError, match="no run of study has 'none' in its name; its runs: "):
        results.only("none")


def test_text_of_results_is_their_table(results):
    heads, *rows = str(results).splitlines()
    assert heads.startswith("run")
    assert "test mse" in heads
    assert [row.rpartition("peers>")[1] for row in rows] == ["", "peers>"]
    assert len({*map(len, (heads, *rows))}) == 1
    assert str(results[:0]) == "run"


def test_repr_is_short_and_html_is_escaped(results):
    assert repr(results) == "Results('study': 2 runs, 2 seeds)"
    assert repr(results[3]).startswith("Result('with <peers>', seed 1: mse ")
    for html in (results._repr_html_(), results[3]._repr_html_()):
        assert "with &lt;peers&gt;" in html
        assert "<peers>" not in html


@pytest.mark.slow
def test_result_without_metric_names_the_reason():
    rng = np.random.default_rng(3)
    tasks = []
    for part in (0.1, 0):
        samples = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
        tasks.append(p2pfl.classification(lambda: torch.nn.Linear(4, 2), train=samples, validation=0.2, test=part))
    results = p2pfl.simulate({"nodes": 2, "rounds": 1, "policy": "random", "task": tasks})
    (found,) = results
    reason = "1 of 2 nodes has no test data"
    assert repr(found) == f"Result('scenario', seed 0: accuracy not computed, because {reason})"
    note = f"scenario: accuracy not computed, because {reason}"
    assert note in found.notes
    assert str(results).splitlines()[-1] == note
    assert f"<p>{note}</p>" in results._repr_html_()
    assert line_of(found.file)(found).startswith("scenario, seed 0: not computed (")


@pytest.mark.slow
def test_views_show_further_metrics():
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
    task = p2pfl.classification(lambda: torch.nn.Linear(4, 2), train=samples, test=samples, metrics=["f1"])
    found = p2pfl.simulate({"nodes": 2, "rounds": 1, "policy": "random", "task": lambda part, seed: task})
    figure = f"{found.summary['table'][0]['extra_metrics']['f1']:.3f}"
    heads, row = str(found).splitlines()
    assert heads.split()[-1] == "f1"
    assert row.split()[-1] == figure
    assert f"<td>{figure}</td>" in found[0]._repr_html_()


@pytest.mark.slow
def test_frames_of_a_sweep_have_a_column_for_each_varied_key():
    file = {
        "nodes": 2,
        "rounds": 1,
        "task": {"name": "concept-shift"},
        "run": [
            {"name": "alone", "policy": "local"},
            {"name": "some", "policy": "random", "each": {"policy.neighbours": [1], "topology.name": ["ring", "complete"]}},
        ],
    }
    results = p2pfl.simulate(file, progress=False)
    for table in ("rounds", "edges", "nodes"):
        frame = results.frame(table=table)
        assert list(frame)[:4] == ["run", "seed", "policy.neighbours", "topology.name"]
        assert set(frame.loc[frame["run"] != "alone", "topology.name"]) == {"ring", "complete"}
    assert results.frame().query("run == 'alone'")["policy.neighbours"].isna().all()
    assert list(results[1].frame()["policy.neighbours"].unique()) == [1]


@pytest.mark.slow
def test_plot_of_many_runs_repeats_no_look_and_keeps_its_legend_outside():
    curves = {f"run {k}": [np.full((2, 3), k / 30)] for k in range(30)}
    ax = draw_curves(curves, "test accuracy")
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.get_lines()}) == 30
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


@pytest.mark.slow
def test_figure_of_a_report_becomes_a_file(results, tmp_path, capsys):
    results.to_dir(tmp_path / "run")
    assert main(["plot", str(tmp_path / "run")]) == 0
    assert "learning: Test mse\n" in capsys.readouterr().out
    for ending, start in ((".pdf", b"%PDF"), (".svg", b"<?xml"), (".png", b"\x89PNG")):
        file = tmp_path / f"figure{ending}"
        assert main(["plot", str(tmp_path / "run"), "--figure", "learning", "--view", "bytes sent", "--out", str(file)]) == 0
        assert file.read_bytes().startswith(start)
    assert main(["plot", str(tmp_path / "run"), "--figure", "nothing"]) == 2
    assert "unknown figure 'nothing'; known: " in capsys.readouterr().err
    assert main(["plot", str(tmp_path / "run"), "--figure", "learning", "--only", "=r", "--out", str(file)]) == 2
    assert "no run is selected by --only =r; the runs: " in capsys.readouterr().err
