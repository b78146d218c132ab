"""Figures of a node for trackers."""

import asyncio

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.folder import config
from p2pfl.node.settings import Settings
from p2pfl.node.status.observer import TrackingObserver
from p2pfl.node.status.reader import current
from p2pfl.tracking.tracker import Tracking, factories
from tests.support.federation import play
from tests.support.trackers import MemoryTracker


@pytest.fixture
def trackers(monkeypatch):
    found = []
    monkeypatch.setattr(MemoryTracker, "made", found)
    return found


def run_node(folder, *options):
    return main(["run", str(folder), "--set", "rounds=3", "--set", "mdns=false", *options])


@pytest.fixture
def alice(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["a,b,kind", *(f"{k * 7 % 40},{k % 5},{k % 2}" for k in range(40))]))
    config.create(tmp_path / "alice", "alice", task="classification", policy="local", data=str(path))
    return tmp_path / "alice"


@pytest.mark.slow
def test_node_gives_each_round_to_the_tracker(alice, trackers, capsys):
    assert run_node(alice, "--track", "tests.support.trackers:MemoryTracker") == 0
    printed = "".join(capsys.readouterr())
    assert printed.count("own.csv: CSV separated by ',', 40 samples; 2 numbers; label kind") == 1
    (tracker,) = trackers
    assert (tracker.run.name, tracker.run.project) == ("alice", "p2pfl")
    assert tracker.folder.parent == alice / "track"
    assert tracker.run.config["task.name"] == "classification"
    assert not any("own.csv" in str(value) for value in tracker.run.config.values())
    assert [*tracker.curve("traffic/bytes_in")] == [1, 2, 3]
    found = {row["round"]: row["test"] for row in current(alice)["history"]}
    assert tracker.curve("merged/test_accuracy") == pytest.approx(found, abs=1e-4)
    assert "result/test_accuracy" in tracker.result


def test_tracker_gets_rounds_of_an_extension(tmp_path, trackers):
    own = config.NodeConfig(name="a", listen=":0")
    tracking = Tracking(factories(MemoryTracker), tmp_path, pytest.fail)

    async def test(federation):
        observer = TrackingObserver(tracking, own)
        node = federation.make("a", observer=observer)
        observer.begin(node)
        ends = [lambda: node.extend(4), lambda: None]

        async def linger():
            ends.pop(0)()

        federation.running["a"] = asyncio.create_task(node.run(linger))
        await federation.done("a")
        observer.end()

    play(test, ("a",), Settings(rounds=2))
    tracking.close()
    (tracker,) = trackers
    assert [*tracker.curve("traffic/models")] == [1, 2, 3, 4]
    (name,) = (name for name in tracker.result if name.startswith("result/test_") and "loss" not in name)
    assert [*tracker.curve(name)] == [2, 4]


@pytest.mark.slow
def test_failing_tracker_ends_no_node(alice, trackers, capsys):
    text = (alice / "node.toml").read_text()
    tools = '["tests.support.trackers:FailingTracker", "tests.support.trackers:broken"]'
    (alice / "node.toml").write_text(text.replace("tools = []", f"tools = {tools}"))
    assert run_node(alice) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if " warning " in line]
    assert len(warnings) == 2
    assert all("the run continues without it" in line for line in warnings)
    assert current(alice)["state"] == "finished"


def test_unknown_tracker_of_a_node_is_refused(alice, capsys):
    text = (alice / "node.toml").read_text()
    (alice / "node.toml").write_text(text.replace("tools = []", 'tools = ["tensorbord"]'))
    assert run_node(alice) == 2
    assert "unknown tracker 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err


@pytest.mark.slow
def test_tracker_may_be_a_module_of_the_nodes_folder(alice, capsys):
    (alice / "owntracker.py").write_text(
        "class Lines:\n"
        "    def __init__(self, run, folder):\n"
        "        self.path = folder.parents[1] / 'lines.txt'\n"
        "    def log(self, step, figures):\n"
        "        with self.path.open('a') as file:\n"
        "            print(step, *figures, file=file)\n"
        "    def finish(self, figures):\n"
        "        pass\n"
    )
    assert run_node(alice, "--track", "owntracker:Lines") == 0
    assert "3 time/round_s traffic/models" in (alice / "lines.txt").read_text()


def test_unknown_key_of_track_is_refused(alice):
    with pytest.raises(ConfigurationError, match=r"unknown key 'track\.tool'; did you mean 'track\.tools'"):
        config.load(alice, ["track.tool=['wandb']"])
