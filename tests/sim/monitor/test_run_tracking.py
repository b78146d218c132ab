"""Figures of simulations for trackers, from Python and from the command."""

import asyncio

import numpy as np
import pytest

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.sim.monitor.run_monitor import figures_by_round
from tests.support.trackers import FailingTracker, MemoryTracker

SMALL = {"nodes": 4, "rounds": 2, "task": "concept-shift", "policy": "random"}


@pytest.fixture
def trackers(monkeypatch):
    found = []
    monkeypatch.setattr(MemoryTracker, "made", found)
    return found


@pytest.mark.slow
def test_simulate_gives_each_run_to_the_tracker(trackers, tmp_path):
    results = p2pfl.simulate(SMALL, seeds=2, track=MemoryTracker, out=tmp_path / "run")
    assert [tracker.run.name.rpartition("/")[2] for tracker in trackers] == ["seed-0", "seed-1"]
    for tracker, result in zip(trackers, results, strict=True):
        assert tracker.folder == tmp_path / "run" / "track" / "MemoryTracker"
        assert {key: tracker.run.config[key] for key in ("nodes", "policy.name", "task.name")} == {
            "nodes": 4,
            "policy.name": "random",
            "task.name": "concept-shift",
        }
        assert tracker.run.config["seed"] == result.summary["seed"]
        last = result.rounds["round"] == 2
        assert tracker.curve("merged/test_mse")[2] == pytest.approx(result.rounds["merged_test_mse"][last].mean())
        assert tracker.curve("traffic/bytes")[2] == result.rounds["bytes_out"][last].sum()
        assert tracker.result["result/test_mse"] == result.summary["test"]["mean"]


@pytest.mark.slow
def test_tracker_receives_rounds_of_a_run_in_progress(trackers, monkeypatch):
    monkeypatch.setattr("p2pfl.sim.execution.snapshots.EVERY", 0.0)  # a snapshot after each node's round
    p2pfl.simulate(SMALL | {"rounds": 4}, track=MemoryTracker)
    (tracker,) = trackers
    final, live = tracker.curve("merged/test_mse"), tracker.curve("live/test_mse")
    assert list(live) == [1, 2, 3]  # the last round is evaluated after the last snapshot
    assert set(live) < set(final)
    logged = [(step, name) for step, figures in tracker.steps for name in figures if name.startswith("live/")]
    assert len(logged) == len(set(logged))


@pytest.mark.slow
def test_tracking_in_an_event_loop_gives_equal_figures(trackers):
    async def cell():
        return p2pfl.simulate(SMALL, track=MemoryTracker)

    asyncio.run(cell())
    p2pfl.simulate(SMALL, track=MemoryTracker)
    assert trackers[0].result == trackers[1].result


@pytest.mark.slow
def test_tracker_receives_runs_of_worker_processes(trackers):
    p2pfl.simulate(SMALL, seeds=2, workers=2, track=MemoryTracker)
    assert {tracker.run.config["seed"]: len(tracker.curve("traffic/bytes")) for tracker in trackers} == {0: 2, 1: 2}
    assert all(tracker.result for tracker in trackers)


@pytest.mark.slow
def test_tracking_changes_no_result(trackers):
    plain, tracked = p2pfl.simulate(SMALL), p2pfl.simulate(SMALL, track=MemoryTracker)
    assert plain[0].summary["trace"] == tracked[0].summary["trace"]


@pytest.mark.slow
def test_means_leave_out_nodes_without_an_evaluation():
    (result,) = p2pfl.simulate(SMALL)
    result.rounds["merged_test_mse"][:3] = [1.0, np.nan, 3.0]
    result.rounds["round"][:] = [1, 1, 1, 2, 2, 2, 2, 2]
    result.rounds["merged_test_mse"][3:] = np.nan
    found = dict(figures_by_round(result))
    assert found[1]["merged/test_mse"] == 2.0
    assert np.isnan(found[2]["merged/test_mse"])


@pytest.mark.slow
def test_failing_tracker_ends_no_simulation(trackers):
    with pytest.warns(UserWarning, match="the tracker FailingTracker has failed: server refuses; the run continues"):
        results = p2pfl.simulate(SMALL, seeds=2, track=[FailingTracker, MemoryTracker])
    assert len(results) == 2
    assert [type(tracker).__name__ for tracker in trackers if tracker.result] == ["MemoryTracker"] * 2


def test_unknown_tracker_is_refused_before_the_runs():
    with pytest.raises(ConfigurationError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        p2pfl.simulate(SMALL, track="tensorbord", progress=lambda done, total: pytest.fail("it runs"))


def command(*options, tmp_path):
    (tmp_path / "small.toml").write_text(
        'nodes = 4\nrounds = 2\ntask = { name = "concept-shift" }\npolicy = { name = "random" }\n'
    )
    return main(
        ["run", str(tmp_path / "small.toml"), "--engine", "local", "--no-report", "--out", str(tmp_path / "run"), *options]
    )


@pytest.mark.slow
def test_run_command_gives_runs_to_trackers(trackers, tmp_path, capsys):
    options = [f"--track=tests.support.trackers:{name}" for name in ("FailingTracker", "MemoryTracker")]
    assert command(*options, "--seeds", "0:2", tmp_path=tmp_path) == 0
    assert [tracker.run.project for tracker in trackers if type(tracker) is MemoryTracker] == ["small", "small"]
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warnings == [
        "warning: the tracker tests.support.trackers:FailingTracker has failed: server refuses; the run continues without it"
    ]


def test_run_command_refuses_unknown_tracker(tmp_path, capsys):
    assert command("--track", "tensorbord", tmp_path=tmp_path) == 2
    assert "unknown tracker 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err
