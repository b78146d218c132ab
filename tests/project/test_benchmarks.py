"""Benchmarks: they run and write their figures."""

import json
import os
import re
import subprocess
import sys
from math import isfinite
from pathlib import Path

import pytest

from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.robust.registry import RULES
from tests.support import forked, namespaces
from tests.support.depth import deep

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"  (\w+) +([\d,]+) +([\d.]+) x loop \(([\d.]+) to ([\d.]+)\)(?:, +([\d.]+) x stacked)?(?:; time .*)?")


def printed(text):
    """Parse the output: by workload and system, the speed and its ratios to the loop and the stacked program."""
    found = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+): node-rounds per second", line):
            found[match[1]] = rows = {}
        elif match := ROW.fullmatch(line):
            rows[match[1]] = [float(match[2].replace(",", "")), *(float(part) for part in match.groups()[2:] if part)]
    return found


def benchmark(folder, *options, program="sim_speed.py"):
    done = subprocess.run(
        [forked.executable(), str(ROOT / "benchmarks" / program), *options, "--json", "figures.json"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "figures.json").read_text())


@pytest.mark.slow
def test_start_of_members_is_measured(tmp_path):
    out, figures = benchmark(tmp_path, "30", "40", "--start", program="members.py")
    assert [row["members"] for row in figures] == [30, 40]
    assert all(row["bytes"] > 180 * row["members"] for row in figures)
    assert out.count("to load the log") == 2


@pytest.mark.slow
def test_chosen_events_of_members_are_measured(tmp_path):
    events = ["newcomers", "revocation", "withholding"]
    out, figures = benchmark(tmp_path, "16", "--degree", "4", "--events", *events, program="members.py")
    *steps, last = figures
    assert [row["event"].split()[-1] for row in steps] == ["9", "events", "minute", "revoked"]
    assert all(row["frames"] > 0 and isfinite(row["virtual_s"]) for row in steps)
    assert (last["trouble"], last["forged"]) == ("withholding", 0)
    assert "leave" not in out


@pytest.mark.slow
def test_light_node_is_measured():
    if missing := namespaces.why_not():
        pytest.skip(missing)
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/light.py"), "--neighbours", "1", "--seconds", "1", "--periods", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    period, *figures = (cell.split()[0] for cell in done.stdout.splitlines()[2].strip("| ").split("|"))
    assert period == "1"
    assert len(figures) == 6
    assert all(float(figure.removesuffix("/s")) > 0 for figure in figures[:4])  # a second may be without a ping


@pytest.mark.slow
def test_operations_and_transfers_of_a_round_are_counted(tmp_path):
    _, figures = benchmark(tmp_path, "--launches", "--nodes", "100")
    gossip, evaluated, dac = (figures["launches"][system] for system in ("gossip", "gossip, evaluated", "dac"))
    assert 10 < gossip["operations"] < 40  # of two layers forward and backward, the optimiser and the mean; not of each node
    assert gossip["to the device"] <= 5
    assert gossip["from the device"] <= 5
    assert dac == gossip  # similarities are computed by NumPy
    assert evaluated["operations"] > gossip["operations"]


@deep
@pytest.mark.slow
def test_simulator_speed_benchmark_writes_figures(tmp_path):
    out, figures = benchmark(tmp_path, "--quick", "--only", "digits")
    shown = printed(out)
    systems = {"digits": ["loop", "stacked", "sim", "evaluated", "outputs", "module"]}
    assert {workload: list(speeds) for workload, speeds in figures.items()} == systems
    assert {workload: list(rows) for workload, rows in shown.items()} == systems
    for workload, speeds in figures.items():
        for system, (speed,) in speeds.items():  # one repetition
            assert speed > 0
            assert isfinite(speed)
            ratios = [speed / speeds["loop"][0]] * 3 + [speed / s for s in speeds.get("stacked", ())]
            for value, exact, step in zip(shown[workload][system], [speed, *ratios], (1, *[0.01] * 4), strict=False):
                assert value == pytest.approx(exact, abs=0.51 * step)
            assert len(shown[workload][system]) == 1 + len(ratios)


@deep
@pytest.mark.slow
def test_simulator_speed_benchmark_compares_policies_with_gossip(tmp_path):
    out, figures = benchmark(tmp_path, "--quick", "--only", "linear", "--policy", "dac", "--policy", "dpfl")
    speeds = figures["linear"]
    assert list(speeds) == ["loop", "stacked", "sim", "dac", "dpfl"]
    shown = re.findall(r"^  (\w+) .*; time +([\d.]+) x sim", out, re.MULTILINE)
    assert [policy for policy, _ in shown] == ["dac", "dpfl"]
    for policy, ratio in shown:
        assert float(ratio) == pytest.approx(speeds["sim"][0] / speeds[policy][0], abs=0.0051)


@pytest.mark.slow
def test_scale_benchmark_writes_time_and_memory(tmp_path):
    out, figures = benchmark(tmp_path, "--scale", "60")
    assert list(figures) == ["scale"]
    assert figures["scale"]["nodes"] == 60
    assert 0 < figures["scale"]["peak_gib"] < 4
    assert figures["scale"]["processor_s"] > 0
    assert re.fullmatch(r"60 nodes, 5 rounds: [\d.]+ s, [\d.]+ s of one core, at most [\d.]+ GiB\n", out)


@deep
@pytest.mark.slow
def test_graph_benchmark_compares_with_static_graph(tmp_path):
    out, figures = benchmark(tmp_path, "--graphs", "--nodes", "20", "--repeat", "1")
    times = figures["graphs"]
    assert {name: len(each) for name, each in times.items()} == {"k-regular": 1, "epidemic": 1, "base-k": 1}
    for name, (time,) in times.items():
        assert re.search(rf"^  {name} +\d+   {time / times['k-regular'][0]:.3f} \(", out, re.M)


@pytest.mark.slow
def test_robust_benchmark_writes_ratio_of_each_rule(tmp_path):
    out, figures = benchmark(tmp_path, "--quick", program="robust.py")
    computed, merged = (figures[f"4810 {kind} by 100 nodes with 10 peers"] for kind in ("computed", "merged"))
    assert list(computed) == [*RULES, "median-clip"]
    assert set(merged) == RULES.keys() - {"ubar", "loss", "clip-loss"} | {"median-clip"}
    for ratios in figures.values():
        for rule, ratio in ratios.items():
            assert isfinite(ratio)
            assert f"{rule} {ratio:.2f}" in out


@pytest.mark.slow
def test_convolution_benchmark_compares_equal_gradients(tmp_path):
    out, figures = benchmark(tmp_path, "--models", "1", "--repeat", "1", program="convolutions.py")
    assert len(figures) == 3
    for network, seconds in figures.items():
        assert network in out
        assert {"kernel", "loop", "grouped", "vmap"} < seconds.keys()  # it ends with an error if their gradients differ


@pytest.mark.slow
def test_preference_benchmark_writes_times(tmp_path):
    done = subprocess.run(
        [forked.executable(), str(ROOT / "benchmarks" / "preferences.py"), "--repetitions", "3", "--json", "figures.json"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "P2PFL_DATA"} | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^synthetic: answer: [\d.]+ ms, at most [\d.]+ ms$", done.stdout, re.M)
    assert re.search(r"^adult: .*P2PFL_DATA", done.stdout, re.M)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {what: len(times) for what, times in figures["synthetic"].items()} == {"answer": 3, "decisions": 3}


@pytest.mark.slow
def test_cluster_benchmark_writes_efficiency(tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    out, figures = benchmark(tmp_path, "--runs", "2", "--rounds", "2", program="cluster.py")
    ((process,), (ray,), (efficiency,)) = (figures[name] for name in ("process", "ray", "efficiency"))
    assert efficiency == process / ray
    assert f"efficiency {efficiency:.2f}" in out
    used = figures["processors"]  # a worker of Ray imports torch, which takes more than a second
    assert used["efficiency"] == [used["process"][0] / used["ray"][0]]
    assert min(used["process"][0], used["ray"][0]) > 1


@pytest.mark.slow
def test_large_model_benchmark_sends_a_model(tmp_path):
    _, figures = benchmark(tmp_path, "--size", "2", program="large_model.py")
    assert figures["equal"] is True
    assert figures["bytes"] == 2_000_000 + OVERHEAD
