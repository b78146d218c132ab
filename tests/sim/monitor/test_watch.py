"""Monitor of runs in progress: its output in the terminal and on a page, without any effect on results."""

import base64
import io
import json
import socket
import subprocess
import threading
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from p2pfl._util.http_server import in_thread
from p2pfl.sim.cli.main import main
from p2pfl.sim.execution import runner as engine
from p2pfl.sim.execution import snapshots
from p2pfl.sim.execution.run_order import Listener
from p2pfl.sim.execution.snapshots import Snapshot, SnapshotCollector, of_result
from p2pfl.sim.monitor import monitor
from p2pfl.sim.monitor import monitor as watch_terminal
from p2pfl.sim.monitor.run_monitor import RunMonitor, page_of
from p2pfl.sim.results.learning_curves import reported
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from tests.support import forked
from tests.support.browser import PHONE, browser, needs_chromium
from tests.support.browser import page as new_page

TIMEOUT = 60_000  # milliseconds after which something has gone wrong
HOSTILE = "<img src=x onerror=alert(1)>[bold]"
TOML = """
nodes = 12
rounds = 6
[task]
name = "concept-shift"
[policy]
name = "random"
neighbours = 4
[budget]
models = 4
[[run]]
name = "random"
[[run]]
name = "dac"
policy = { name = "dac", neighbours = 3 }
"""


def scenario(toml=TOML, *changes, seeds=(0, 1)):
    file = resolve(tomllib.loads(toml), list(changes), "watched", ".")
    return type(file)(**{field: getattr(file, field) for field in file.__struct_fields__} | {"seeds": seeds})


def plain(result):
    """Return a result without its times."""
    summary = {key: value for key, value in result.summary.items() if key != "time"}
    tables = [{name: column.tolist() for name, column in table.items()} for table in (result.rounds, result.edges)]
    return json.dumps([summary, tables, result.notes])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["local", "process"])
def test_watched_run_equals_unwatched_run(monkeypatch, how):
    monkeypatch.setattr(snapshots, "EVERY", 0.0)  # in this process; worker processes take one after the first round
    file, seen = scenario(), []
    engine.check_all(file)
    alone = engine.run_all(file, "local")
    listener = Listener(watched=lambda number, snapshot: seen.append((number, snapshot)))
    watched = engine.run_all(file, how, listener=listener)
    assert [plain(result) for result in watched] == [plain(result) for result in alone]
    for number in range(4):
        begun, *later = [snapshot for k, snapshot in seen if k == number]
        assert begun is None
        assert later
        counts = [snapshot.node_rounds for snapshot in later]
        assert counts == sorted(counts)
        assert counts[0] >= 12


def test_last_snapshot_equals_result():
    job = scenario().runs[1]
    simulation = Simulation(job)
    photographer = SnapshotCollector(simulation)
    result = result_of(simulation.run())
    last, final = photographer.take(), of_result(result)
    assert last.node_rounds == final.node_rounds == 72
    assert last.rounds == final.rounds == [1, 2, 3, 4, 5, 6]
    assert last.values == pytest.approx(final.values)
    assert result.summary["reported_stage"] == "auto"
    of_last_round = reported(result.rounds, "auto", "test_mse")[result.rounds["round"] == 6]
    assert last.values[-1] == pytest.approx(of_last_round.mean())
    assert last.bytes == final.bytes == result.summary["traffic"]["bytes"]
    assert last.most_models == final.most_models == 3
    assert last.limit == final.limit == (4, 4)
    assert last.groups == final.groups == [("0", 4), ("1", 4), ("2", 4)]
    assert last.weights == pytest.approx(final.weights)
    assert last.virtual_s == final.virtual_s
    assert (last.metric, last.higher_is_better) == (final.metric, final.higher_is_better) == ("mse", False)


def test_snapshot_of_running_run_is_prefix_of_result(monkeypatch):
    monkeypatch.setattr(snapshots, "EVERY", 0.0)
    seen = []
    listener = Listener(watched=lambda number, snapshot: seen.append(snapshot))
    (result,) = engine.run_all(scenario(seeds=(0,)).only("dac"), listener=listener)
    final = of_result(result)
    for snapshot in seen[1:]:
        assert snapshot.values == pytest.approx(final.values[: len(snapshot.values)])
        assert (snapshot.weights.sum(axis=1) <= 1 + 1e-6).all()
        assert (snapshot.weights.diagonal() == 0).all()
    assert len(seen) == 7


def test_matrix_of_many_nodes_is_averaged_by_group(monkeypatch):
    (whole,) = engine.run_all(scenario(seeds=(0,)).only("dac"))
    fine = of_result(whole).weights
    monkeypatch.setattr(snapshots, "CELLS", 3)
    coarse = of_result(whole).weights
    assert coarse.shape == (3, 3)
    by_group = fine.reshape(3, 4, 3, 4).sum(axis=3).mean(axis=1)
    assert coarse == pytest.approx(by_group)


def test_thin_rounds_keeps_the_last_point(monkeypatch):
    monkeypatch.setattr(snapshots, "POINTS", 4)
    assert snapshots.thin_rounds(list(range(1, 5))) == [1, 2, 3, 4]
    assert snapshots.thin_rounds(list(range(1, 11))) == [1, 4, 7, 10]
    assert snapshots.thin_rounds([]) == []


# The monitor


def snapshot(node_rounds=24, virtual_s=2.0, **more):
    return Snapshot(node_rounds, virtual_s, 0.5, "mse", False, **more)


def overview(status_observer):
    return json.loads(status_observer.state())


def test_monitor_tracks_state_of_each_run():
    file = scenario()
    (kept,) = engine.run_all(scenario(seeds=(0,)).only("random"))
    status_observer = RunMonitor(file, {0: kept})
    assert [row.state for row in status_observer.rows] == ["kept", "waiting", "waiting", "waiting"]
    assert status_observer.pace() == (0.0, None)
    status_observer.saw(1, None)
    status_observer.saw(2, None)
    status_observer.saw(2, snapshot(rounds=[1, 2], values=[5.0, float("nan")], limit=(1, 4)))
    shown = overview(status_observer)
    assert [run["state"] for run in shown["runs"]] == ["kept", "running", "running", "waiting"]
    assert [run["round"] for run in shown["runs"]] == [6, 0, 2, 0]
    assert shown["runs"][2]["values"] == [5.0, None]
    assert shown["runs"][2]["limit"] == [1, 4]
    assert shown["runs"][0]["result"] == kept.summary["test"]["mean"]
    assert shown["left"] / (3 * 72 - 24) == pytest.approx(1 / shown["node_rounds_per_s"])
    assert shown["end"] == ""
    status_observer.diverged(2)
    shown = overview(status_observer)
    assert shown["runs"][2]["state"] == "stopped"
    assert shown["left"] / (2 * 72) == pytest.approx(1 / shown["node_rounds_per_s"])  # it will do no more rounds
    assert not status_observer.end_received.is_set()
    status_observer.ended("results: here")
    assert overview(status_observer)["end"] == "results: here"
    assert status_observer.end_received.is_set()


def test_monitor_returns_matrix_of_each_run():
    status_observer = RunMonitor(scenario())
    assert overview(status_observer)["matrix"] == {"run": 0, "cells": 0}
    weights = np.arange(4, dtype=np.float32).reshape(2, 2) / 4
    status_observer.saw(0, snapshot(weights=weights, groups=[("a", 6), ("b", 6)]))
    shown = json.loads(status_observer.state(0))["matrix"]
    assert (shown["cells"], shown["nodes"], shown["groups"]) == (2, 12, [["a", 6], ["b", 6]])
    assert np.frombuffer(base64.b64decode(shown["weights"]), "<f4").tolist() == weights.ravel().tolist()
    assert json.loads(status_observer.state(1))["matrix"] == {"run": 1, "cells": 0}


def test_monitor_default_matrix_is_of_first_active_run():
    status_observer = RunMonitor(scenario())
    status_observer.saw(1, snapshot())
    assert overview(status_observer)["matrix"]["run"] == 1
    status_observer.saw(0, snapshot())
    assert overview(status_observer)["matrix"]["run"] == 0
    status_observer.ended("results: here")
    assert overview(status_observer)["matrix"]["run"] == 1


# In the terminal


def written(status_observer, height=30, width=120):
    console = Console(file=io.StringIO(), width=width, height=height, markup=False, highlight=False)
    console.print(watch_terminal.table(status_observer, console))
    return console.file.getvalue()


def test_terminal_table_shows_every_run():
    status_observer = RunMonitor(scenario(TOML.replace('name = "dac"\n', f"name = '{HOSTILE}'\n")))
    status_observer.saw(0, snapshot(rounds=[2], values=[1.25], bytes=12_345, most_models=3, limit=(4, 4)))
    text = written(status_observer)
    assert HOSTILE in text
    lines = [line.split() for line in text.splitlines()]
    going = next(line for line in lines if "running" in line)
    assert " ".join(going) == "random 0 running 2 of 6 1.250 12.3 kB 3 of 4 2 s 48"
    assert sum("waiting" in line for line in lines) == 3
    assert "0 of 4 runs finished, about" in text


def test_low_terminal_shows_running_runs_first():
    status_observer = RunMonitor(scenario(seeds=range(40)))
    for number in range(30, 33):
        status_observer.saw(number, snapshot())
    text = written(status_observer, height=10)
    assert len(text.splitlines()) <= 10
    assert text.count("running") == 3
    assert "and 74 more" in text


def test_terminal_shows_long_virtual_time_in_full():
    status_observer = RunMonitor(scenario())
    status_observer.saw(0, snapshot(virtual_s=123_456.7))
    assert "123,457 s" in written(status_observer)


def test_terminal_with_long_names_keeps_progress_line():
    long = TOML.replace('name = "dac"\n', 'name = "policy.strength=5, policy.neighbours=2, budget.models=10"\n')
    status_observer = RunMonitor(scenario(long, seeds=range(10)))
    for number in range(10, 13):
        status_observer.saw(number, snapshot())
    text = written(status_observer, height=14, width=90)
    assert len(text.splitlines()) < 14
    assert text.count("running") == 3
    assert "0 of 20 runs finished, about" in text


def test_narrow_terminal_omits_columns():
    status_observer = RunMonitor(scenario())
    status_observer.saw(0, snapshot(rounds=[2], values=[1.25]))
    head, first, *_ = written(status_observer, width=54).splitlines()
    assert head.split() == ["run", "seed", "state", "round", "mse", "sent"]
    assert first.split()[:3] == ["random", "0", "running"]
    assert "…" not in written(status_observer, width=40)


def test_view_without_terminal_prints_lines_periodically(monkeypatch):
    status_observer, stream = RunMonitor(scenario()), io.StringIO()
    with watch_terminal.view(status_observer, stream) as view:
        status_observer.saw(0, None)
        view.show(0)
        status_observer.saw(0, snapshot(rounds=[2], values=[1.25], bytes=12_345))
        view.show(0)
        assert stream.getvalue() == ""
        monkeypatch.setattr(watch_terminal, "PAUSE", 0.0)
        view.show(0)
    assert stream.getvalue().startswith(
        "random, seed 0: round 2 of 6, mse 1.250, 12.3 kB sent, 2 s virtual, 48 node-rounds/s; 0 of 4 runs finished, about"
    )


# As a command


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(TOML)
    return "small.toml"


def address_in(text):
    (line,) = [line for line in text.splitlines() if line.startswith("watch the runs at ")]
    return line.removeprefix("watch the runs at ")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["run"], ["sweep", "--vary", "policy.neighbours=2,3"]])
@pytest.mark.parametrize("option", ["--watch", "--watch-port=0"])
def test_watch_option_prints_address_and_completes_run(capfd, file, command, option):
    assert main([*command, file, "--only", "random", "--engine", "local", option, "--out", "out", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["table"]
    address = address_in(err)
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{address}runs.json", timeout=60)
    assert Path("out", "summary.json").exists()


@pytest.mark.slow
def test_watch_port_in_use_reports_one_line(capsys, file):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for given, message in (
            (port, f"cannot serve the page at 127.0.0.1:{port}: address already in use"),
            (70000, "--watch-port must be from 0 to 65535, got 70000"),
        ):
            assert main(["run", file, "--watch-port", str(given), "--out", "out"]) == 2
            assert capsys.readouterr().err == f"{message}\n"
            assert not Path("out").exists()


def test_watch_end_waits_only_for_open_pages(monkeypatch):
    monkeypatch.setattr(monitor, "FAREWELL", 60.0)
    status_observer = RunMonitor(scenario())
    monitor.Watch(status_observer, []).ended("written")  # no page is open
    assert not status_observer.end_received.is_set()
    status_observer = RunMonitor(scenario())
    status_observer.state()
    asker = threading.Timer(0.05, status_observer.state)
    asker.start()
    monitor.Watch(status_observer, []).ended("written")
    assert status_observer.end_received.is_set()
    asker.join()


# In a browser


@pytest.fixture
def chromium():
    """Browser for one test only: while it is open, its event loop runs, and other tests here need their own loop."""
    with browser() as opened:
        yield opened


def going():
    """Monitor of runs in progress whose names contain markup."""
    status_observer = RunMonitor(scenario(TOML.replace('name = "dac"\n', f"name = '{HOSTILE}'\n")))
    weights = np.full((12, 12), 0.1, np.float32)
    groups = [(HOSTILE, 4), ("1", 4), ("2", 4)]
    for number in (0, 2):
        status_observer.saw(
            number, snapshot(rounds=[1, 2], values=[5.0, 4.0], weights=weights, groups=groups, limit=(4, 4), bytes=10**6)
        )
    return status_observer


@needs_chromium
@pytest.mark.parametrize("size", [(1280, 900), PHONE])
def test_page_shows_runs_and_location_of_results(chromium, size):
    status_observer = going()
    with in_thread(page_of(status_observer, 0)) as address, new_page(chromium, size) as (opened, seen):
        opened.on("dialog", lambda dialog: pytest.fail(f"the page ran a name: {dialog.message}"))
        opened.goto(address)
        opened.locator("tr[data-run]").first.wait_for(timeout=TIMEOUT)
        states = [line.get_attribute("data-state") for line in opened.locator("tr[data-run]").all()]
        assert states == ["running", "waiting", "running", "waiting"]
        assert HOSTILE in opened.locator("#runs").inner_text()
        assert opened.locator("#chips").inner_text().count(HOSTILE) == 1  # only of started runs
        opened.locator("#weights canvas").wait_for(timeout=TIMEOUT)
        assert opened.locator("#learning svg[role=img] path.line").count() == 2
        opened.locator("#chips button").first.click()
        assert opened.locator("#learning svg[role=img] path.line").count() == 1
        assert opened.evaluate("document.documentElement.scrollWidth") <= size[0]

        status_observer.saw(1, snapshot(72, rounds=[1, 2, 3], values=[5.0, 4.0, 3.0]))
        opened.locator('tr[data-run="1"][data-state="running"]').wait_for(timeout=TIMEOUT)
        status_observer.ended("results: runs/here")
        opened.get_by_text("results: runs/here").wait_for(timeout=TIMEOUT)
        states = [line.get_attribute("data-state") for line in opened.locator("tr[data-run]").all()]
        assert states == ["stopped", "stopped", "stopped", "waiting"]
        assert opened.locator("#link").inner_text() == "ended"
        assert opened.locator("img, [onerror]").count() == 0
        assert seen.problems == []
        assert all(asked.startswith(address) for asked in seen.requests)


@needs_chromium
def test_page_draws_latest_runs_until_a_selection(chromium):
    status_observer = RunMonitor(scenario(seeds=range(30)))
    for number in range(40):
        status_observer.saw(number, snapshot(rounds=[1, 2], values=[5.0, 4.0]))
    with in_thread(page_of(status_observer, 0)) as address, new_page(chromium) as (opened, _):
        opened.goto(address)
        chips, pressed = opened.locator("#chips button"), opened.locator('#chips [aria-pressed="true"]')
        chips.first.wait_for(timeout=TIMEOUT)
        assert (chips.count(), pressed.count()) == (40, 12)
        status_observer.saw(40, snapshot(rounds=[1], values=[5.0]))
        opened.locator('#chips [data-run="40"][aria-pressed="true"]').wait_for(timeout=TIMEOUT)
        assert pressed.count() == opened.locator("#learning svg[role=img] path.line").count() == 12
        chips.first.dblclick()
        assert pressed.count() == opened.locator("#learning svg[role=img] path.line").count() == 1
        chips.nth(1).click()
        status_observer.saw(41, snapshot(rounds=[1], values=[5.0]))
        opened.locator('#chips [data-run="41"]').wait_for(timeout=TIMEOUT)
        assert pressed.count() == 2


@pytest.mark.slow
@needs_chromium
def test_page_follows_real_run_to_its_end(tmp_path, chromium):
    (tmp_path / "small.toml").write_text(TOML)
    command = ["-m", "p2pfl.sim", "run", "small.toml", "--set", "rounds=60", "--watch", "--workers", "1", "--out", "out"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    with (
        subprocess.Popen(
            [forked.executable(), *command],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        new_page(chromium) as (opened, seen),
    ):
        try:
            address = address_in(process.stderr.readline())
            opened.goto(address)
            opened.locator('tr[data-run][data-state="running"]').first.wait_for(timeout=TIMEOUT)
            opened.get_by_text("2 of 2 runs finished; results: out").wait_for(timeout=TIMEOUT)
            assert opened.locator('tr[data-run][data-state="finished"]').count() == 2
            assert opened.locator("#learning svg[role=img] path.line").count() == 2
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "results: out" in out
    assert err.count("\n") >= 2
    assert seen.problems == []
    assert (tmp_path / "out" / "summary.json").exists()
