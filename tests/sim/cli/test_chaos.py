"""The command p2pfl-sim chaos: figures, files of violations, exit codes, and interrupts."""

import json

import pytest

from p2pfl.sim.chaos import run
from p2pfl.sim.chaos.invariants import Violation
from p2pfl.sim.chaos.schedule import Fault, read_schedule
from p2pfl.sim.cli.main import main
from p2pfl.sim.cli.options import parse_seeds, seed_ranges

BROKEN = Violation("round lost", 3.5, "node-1", "starts with nothing")


def found(seed, violation=None):
    faults = (Fault(at=1.0, kind="crash", node="node-1", seconds=2.0),)
    return run.Found(
        seed=seed,
        run="gossip",
        violation=violation,
        drawn=7,
        faults=faults if violation else (),
        cpu=0.25,
        healed_in=8.0,
    )


@pytest.fixture
def results(monkeypatch):
    """Replace the search by given results; an exception is raised in its turn."""
    given = []

    def give(file, seeds, workers, received, shrinks=True):
        for each in given:
            if isinstance(each, BaseException):
                raise each
            received(each)

    monkeypatch.setattr(run, "search", give)
    return given


def test_chaos_without_violation_exits_with_0(results, capsys):
    results += [found(0), found(1)]
    assert main(["chaos", "chaos", "--seeds", "0:2", "-q"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, 0 violations; 0.25 s of processor time each")


def test_chaos_of_one_seed_is_in_the_singular(results, capsys):
    results += [found(0)]
    assert main(["chaos", "chaos", "--seeds", "0:1", "-q"]) == 0
    assert capsys.readouterr().out.startswith("1 seed, 0 violations; ")


def test_chaos_writes_schedule_of_violation_and_exits_with_1(results, tmp_path, capsys):
    results += [found(0), found(1, BROKEN)]
    assert main(["chaos", "chaos", "--seeds", "0:2", "--out", str(tmp_path), "-q"]) == 1
    printed = capsys.readouterr().out
    assert "seed 1 (gossip): round lost: node-1 at 3.500 s: starts with nothing\n  1 of 7 faults are enough" in printed
    schedule = read_schedule(tmp_path / "seed-1.toml")
    assert (schedule.run, schedule.seed, schedule.violation) == ("gossip", 1, str(BROKEN))


def test_chaos_prints_line_for_each_tenth_of_the_seeds(results, capsys):
    results += [found(seed) for seed in range(40)]
    assert main(["chaos", "chaos", "--seeds", "0:40"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{4 * k} of 40 seeds, 0 with violations" for k in range(1, 11)]


def test_chaos_json_is_one_object(results, tmp_path, capsys):
    results += [found(1, BROKEN), found(0)]
    assert main(["chaos", "chaos", "--seeds", "0:2", "--out", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["seeds"] == 2
    assert answer["violations"][0] | {"file": ""} == {
        "seed": 1,
        "run": "gossip",
        "invariant": "round lost",
        "at": 3.5,
        "node": "node-1",
        "text": "starts with nothing",
        "faults": 1,
        "drawn": 7,
        "file": "",
    }
    assert answer["unfinished"] == ""


def test_interrupted_chaos_names_seeds_to_continue_with(results, capsys):
    results += [found(0), found(1), KeyboardInterrupt()]
    assert main(["chaos", "chaos", "--seeds", "0:1000", "-q"]) == 130
    assert "continue with --seeds 2:1000" in capsys.readouterr().err


@pytest.mark.slow
def test_chaos_of_too_few_nodes_is_refused(capsys):
    assert main(["chaos", "chaos", "--set", "nodes=2", "--seeds", "0:1", "--workers", "1", "-q"]) == 2
    assert "chaos needs at least 3 nodes, got 2" in capsys.readouterr().err


@pytest.mark.slow
def test_replay_prints_trace_and_exits_with_0(tmp_path, capsys):
    path = tmp_path / "faults.toml"
    path.write_text('run = "gossip"\nseed = 1\n[[fault]]\nat = 2.0\nkind = "crash"\nnode = "node-1"\nseconds = 1.0\n')
    assert main(["chaos", "chaos", "--set", "deadline=2", "--set", "compute.seconds=0.9", "--replay", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "2.000 node-1: FAULT crash node-1 for 1 s\n2.000 node-1: killed\n" in printed
    assert "3.000 node-1: start 2" in printed
    assert "all invariants held" in printed


@pytest.mark.parametrize(
    ("seeds", "text"), [([], ""), ([4], "4"), ([0, 1, 2], "0:3"), ([3, 7, 8, 9], "3,7:10"), ([1, 3, 5, 6], "1,3,5:7")]
)
def test_ranges_of_seeds_are_read_back(seeds, text):
    assert seed_ranges(seeds) == text
    assert not seeds or parse_seeds(text) == seeds
