"""Episodes of faults, the invariants that are checked, and one run with real processes."""

import os
import shutil
import subprocess
import sys
import time
from math import nan
from types import SimpleNamespace

import pytest

from p2pfl.node.folder import config, incarnation
from p2pfl.sim.chaos.schedule import Fault, Schedule, read_schedule, write_schedule
from tests.chaos.__main__ import main
from tests.chaos.faults import BROKER, KINDS, MEMBERSHIP, NETWORK, NODE, draw_episode
from tests.chaos.federation import FAKETIME, ROOT, Federation
from tests.chaos.invariants import Incarnations, Violated, check, check_status
from tests.support import without_torch
from tests.support.depth import deep
from tests.support.namespaces import PATH, why_not

NAMES = ("node-1", "node-2", "node-3")


def test_episode_depends_on_seed_and_number_only():
    assert draw_episode(1, 2, NAMES) == draw_episode(1, 2, NAMES)
    assert draw_episode(1, 2, NAMES) != draw_episode(1, 3, NAMES) != draw_episode(2, 3, NAMES)


def test_episodes_have_every_kind_of_fault():
    episodes = [draw_episode(0, number, NAMES) for number in range(100)]
    assert {fault.kind for faults in episodes for fault in faults} == set(KINDS)
    for faults in episodes:
        assert 1 <= len(faults) <= 3
        nodes = [fault.node for fault in faults if fault.kind in (*NODE, "readmission")]
        assert len(nodes) == len(set(nodes))
        assert all(sum(fault.kind in kinds for fault in faults) <= 1 for kinds in (NETWORK, BROKER, MEMBERSHIP))
        if any(fault.kind in MEMBERSHIP for fault in faults):
            assert NAMES[0] not in nodes  # it has the admission key


def test_episode_is_read_back_from_its_file(tmp_path):
    for number in range(30):
        schedule = Schedule("processes", 5, draw_episode(5, number, NAMES))
        write_schedule(tmp_path / "episode.toml", schedule, "scripts/chaos --replay")
        assert read_schedule(tmp_path / "episode.toml", KINDS) == schedule


def test_replay_refuses_unknown_node_and_simulated_fault(tmp_path, monkeypatch, capsys):
    path = tmp_path / "faults.toml"
    monkeypatch.setattr(sys, "argv", ["scripts/chaos", "--replay", str(path)])
    write_schedule(path, Schedule("processes", 1, (Fault(at=1.0, kind="crash", node="node-9"),)), "")
    with pytest.raises(SystemExit):
        main()
    assert "names node-9; the nodes are node-1, node-2, node-3, node-4 and guest" in capsys.readouterr().err
    write_schedule(path, Schedule("processes", 1, (Fault(at=1.0, kind="power-failure", node="node-1"),)), "")
    with pytest.raises(SystemExit):
        main()
    assert "fault 1: kind must be one of crash, restart, " in capsys.readouterr().err


def test_faults_proofs_and_nan_are_violations():
    row = {"round": 1, "test": 0.5, "stages": {}}
    check_status("a", {"history": [row], "faults": {}, "proofs": 0})
    with pytest.raises(Violated, match="holds 1 proofs"):
        check_status("a", {"history": [], "proofs": 1})
    with pytest.raises(Violated, match="not finite"):
        check_status("a", {"history": [row | {"test": nan}]})
    with pytest.raises(Violated, match="a round of -93598"):
        check_status("a", {"history": [row | {"seconds": -93598}]})
    with pytest.raises(Violated, match=r"counts faults: \{'broker': 1\}; error in broker: OSError$"):
        check_status("a", {"history": [], "faults": {"broker": 1}}, "round 1\nerror in broker: OSError\nround 2")


def test_process_that_ended_is_a_violation():
    with pytest.raises(Violated, match="a ended with 1"):
        check(SimpleNamespace(processes={"a": SimpleNamespace(poll=lambda: 1)}))


def test_repeated_incarnation_is_a_violation(tmp_path):
    path, starts = tmp_path / config.INCARNATION, {"a": 3}
    for _ in range(3):
        incarnation.count_start(path)
    incarnations = Incarnations(SimpleNamespace(names=["a"], folders={"a": tmp_path}, starts=starts))
    starts["a"] += 1
    with pytest.raises(Violated, match="a is in incarnation 3 after 3"):
        incarnations.check()
    incarnation.count_start(path)
    incarnations.check()


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
def test_wrong_clock_changes_wall_clock_only(tmp_path):
    federation = Federation(None, tmp_path, NAMES)
    federation.set_clock("node-2", "-55y")
    code = "import time; print(time.time(), time.monotonic())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=federation.environment("node-2"), capture_output=True, text=True, check=True
    )
    wall, monotonic = map(float, done.stdout.split())
    assert time.time() - wall == pytest.approx(55 * 365.25 * 86400, rel=0.01)
    assert monotonic <= time.monotonic()
    assert monotonic == pytest.approx(time.monotonic(), abs=3600)


@deep
@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "possible")
@pytest.mark.skipif(shutil.which("mosquitto", path=PATH) is None, reason="Mosquitto is not installed")
def test_processes_learn_again_after_an_episode():
    rights = "-m" if os.geteuid() == 0 else "-Urm"
    command = ["unshare", rights, sys.executable, "-m", "tests.chaos", "--minutes", "0", "--seed", "3", "--nodes", "3"]
    environment = os.environ | {"PATH": PATH, "PYTHONPATH": without_torch.PYTHONPATH}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 episodes, no violation; replay: scripts/chaos --seed 3" in done.stdout
