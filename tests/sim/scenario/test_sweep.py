"""Sweeps over combinations of values: their runs, their files, and resumption after interruptions."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import msgspec
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli import main as cli
from p2pfl.sim.results.objectives import on_front
from p2pfl.sim.results.tables import PARTS
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.scenario.sweep import parse, sweep
from tests.sim.execution.test_resume import left_behind
from tests.support import forked
from tests.support.depth import deep
from tests.support.extras import needs_torch
from tests.support.processes import PATIENCE

TWO = {
    "nodes": 6,
    "run": [
        {"name": "alone", "policy": {"name": "local"}},
        {"name": "chosen", "policy": {"name": "dac", "neighbours": 2}},
    ],
}


def grid(raw, *vary):
    return sweep(resolve(raw, [], "study", "."), parse(vary))


def names(file):
    return [run.name for run in file.runs]


# The grid


def test_sweep_gives_every_run_every_combination():
    file = grid(TWO, "nodes=4,8", "network.latency=0.1,[0.1, 0.5]")
    assert len(file.runs) == 8
    assert names(file)[:4] == [f"alone, nodes={n}, network.latency={t}" for n in (4, 8) for t in ("0.1", "[0.1, 0.5]")]
    last = file.runs[-1]
    assert (last.nodes, last.network.latency, last.policy["name"]) == (8, (0.1, 0.5), "dac")
    assert last.varied == {"nodes": 8, "network.latency": [0.1, 0.5]}
    assert file.varied == {"nodes": [4, 8], "network.latency": [0.1, [0.1, 0.5]]}
    assert file.notes == ()


def test_sweep_of_one_run_names_only_values():
    assert names(grid({}, "nodes=4,8")) == ["nodes=4", "nodes=8"]
    one = resolve(TWO, [], "study", ".").only("alone")
    assert names(sweep(one, parse(["nodes=4", "rounds=2,3"]))) == ["nodes=4, rounds=2", "nodes=4, rounds=3"]


def test_sweep_runs_once_without_the_varied_option():
    file = grid(TWO, "policy.tau=1,10", "nodes=4,8")
    assert names(file) == [
        *("alone, nodes=4", "alone, nodes=8"),
        *(f"chosen, policy.tau={tau}, nodes={n}" for tau in (1, 10) for n in (4, 8)),
    ]
    assert file.runs[0].varied == {"nodes": 4}
    assert file.runs[0].policy == {"name": "local"}
    assert names(grid(TWO, "policy.tau=1,10"))[0] == "alone"


def test_sweep_applies_option_to_named_factory_only():
    one = {"run": TWO["run"][1:]}
    file = grid(one, "codec.share=0.1,0.2", "codec.name=int8,top-k", "policy.name=random,dac", "policy.tau=3")
    assert Counter(run.codec["name"] for run in file.runs) == {"int8": 2, "top-k": 4}
    assert all(("share" in run.codec) == (run.codec["name"] == "top-k") for run in file.runs)
    assert {(run.policy["name"], run.policy.get("tau")) for run in file.runs} == {("random", None), ("dac", 3)}
    assert "codec.share=0.1, codec.name=top-k, policy.name=random" in names(file)


def test_sweep_topology_from_file_sets_the_nodes(tmp_path):
    Path(tmp_path / "path.edges").write_text("0 1\n1 2\n")
    file = sweep(resolve({}, [], "study", str(tmp_path)), parse(["topology.file=path.edges", "budget.models=1,2"]))
    assert [run.nodes for run in file.runs] == [3, 3]
    assert file.runs[0].topology["file"] == str(tmp_path / "path.edges")
    assert names(file)[0] == "topology.file=path.edges, budget.models=1"


def test_sweep_leaves_out_equal_runs_with_a_note():
    rows = [{"name": f"{k} nodes", "nodes": k} for k in (4, 8)]
    file = grid({"run": rows}, "nodes=5,6")
    assert names(file) == ["4 nodes, nodes=5", "4 nodes, nodes=6"]
    assert file.notes == ("left out, because they equal other runs: 8 nodes, nodes=5, 8 nodes, nodes=6",)


def test_sweep_written_as_scenario_resolves_to_same_runs():
    file = grid(TWO | {"against": "alone", "target": 0.5}, "policy.tau=1,10", "codec.name=int8,float16")
    again = resolve(msgspec.toml.decode(msgspec.toml.encode(file.to_toml())), [], "again", ".")
    assert again.runs == file.runs
    assert (again.varied, again.target) == (file.varied, 0.5)
    assert file.against == again.against == "alone"  # of each row's own values
    assert grid(TWO | {"against": "alone"}, "policy.tau=1,10").against == "alone"
    wider = sweep(again, parse(["nodes=4,8"]))
    assert wider.varied == {**file.varied, "nodes": [4, 8]}
    assert wider.runs[-1].varied == {"policy.tau": 10, "codec.name": "float16", "nodes": 8}
    with pytest.raises(ConfigurationError, match=r"this sweep varies policy\.tau"):
        resolve(file.to_toml(), ["policy.tau=3"], "again", ".")


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (["policy.tau"], "--vary must have the form KEY=VALUE,VALUE, such as policy.tau=1,10,100, got 'policy.tau'"),
        (["policy.tau=1,,2"], "--vary must have the form KEY=VALUE,VALUE"),
        (["=1"], "--vary must have the form KEY=VALUE,VALUE"),
        (["nodes=4,5,4"], "--vary nodes: the value 4 is given twice"),
        (["nodes=4", "nodes=5"], "--vary nodes is given 2 times; list all values in one --vary"),
        (["seed=0,1"], "--vary seed: a sweep cannot vary this key; use --seeds"),
        (["form=smoke,short"], "--vary form: a sweep cannot vary this key; use --set"),
        (["policy.taux=1,2"], "--vary policy.taux: no run has a policy with the option taux; the runs have dac, local"),
        (["task.part=1"], "--vary task.part: no run has a task with the option part; the runs have digits"),
        (["policy.name=dac,local"], "--vary policy.name: the 2 runs already differ in their policy; select one with --only"),
        (["policy.name=local", "policy.x=1"], "--vary policy.name: the 2 runs already differ"),
        (
            ["topology={name='ring'}", "topology.x=1,2"],
            "--vary topology.x: no run has a topology with the option x; the runs have ring",
        ),
        (["paper=1,2"], "--vary paper: a sweep cannot vary this key"),
        (["varied.x=1,2"], "--vary varied.x: a sweep cannot vary this key"),
        (["nodes=4,0"], "study: alone, nodes=0: nodes must be 1 or more, got 0"),
        (["node=4"], "study: alone, node=4: unknown key 'node'"),
        (["nodes=" + ",".join(map(str, range(1, 200))), "rounds=" + ",".join(map(str, range(99)))], "the sweep has 39,402 "),
    ],
)
def test_sweep_of_invalid_key_or_value_is_refused(vary, message):
    with pytest.raises(ConfigurationError) as refused:
        grid(TWO, *vary)
    assert str(refused.value).startswith(message)


def test_sweep_varies_policy_of_runs_with_equal_policies():
    rows = [{"name": "free"}, {"name": "bound", "budget": {"models": 2}}]
    assert names(grid({"run": rows}, "policy.name=dac,random")) == [
        f"{row}, policy.name={policy}" for row in ("free", "bound") for policy in ("dac", "random")
    ]


@pytest.mark.slow
def test_sweep_limit_includes_seeds():
    file = resolve({"seeds": list(range(300))}, [], "study", ".")
    with pytest.raises(ConfigurationError, match=r"the sweep has 119,700 runs with all seeds; the maximum is 100,000"):
        sweep(file, parse(["rounds=" + ",".join(map(str, range(1, 400)))]))


def test_parse_keeps_commas_in_brackets_and_quotes():
    (axis,) = parse(["""topology={name="ring"}, { name = "k-regular", degree = 4 }, 'a,b', [1, [2, 3]], word"""])
    assert axis.values == ({"name": "ring"}, {"name": "k-regular", "degree": 4}, "a,b", [1, [2, 3]], "word")


def test_on_front_marks_non_dominated_runs():
    assert on_front([1, 2, 3, 3], [0.5, 0.7, 0.6, 0.9], True) == [True, True, False, True]
    assert on_front([1, 2, 2], [0.5, 0.7, 0.5], False) == [True, False, False]
    assert on_front([1, 1], [0.5, 0.5], True) == [True, True]
    nan = float("nan")
    assert on_front([1, nan, 0, 2], [0.5, 0.9, nan, 0.6], True) == [True, False, False, True]
    assert on_front([nan], [0.5], False) == [False]


# The command

STUDY = """
nodes = 6
rounds = 3
deadline = inf
task = { name = "digits", samples = 20 }
policy = { name = "random" }
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)


def command(capsys, *arguments):
    code = cli.main(["sweep", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


HERE = ("--engine", "local", "--no-report", "--out", "here")
NEIGHBOURS = ("study.toml", "--vary", "policy.neighbours=1,2", "--vary", "budget.models=0,[1, 2]")


@pytest.mark.slow
@pytest.mark.usefixtures("study")
def test_sweep_table_has_values_and_sweep_reruns_equally(capsys):
    code, out, err = command(capsys, *NEIGHBOURS, "--seeds", "0:2", *HERE)
    assert code == 0
    assert [line.partition(":")[0] for line in err.splitlines()[:3]] == ["preparing"] * 3
    assert err.splitlines()[3].startswith("8 runs of 6 nodes, 3 rounds: ")
    assert [line.partition(":")[0] for line in err.splitlines()[4:6]] == [
        f"neighbours=1, models=none, seed {seed}" for seed in (0, 1)
    ]
    upper, lower, _, *rows = [line.split() for line in out.replace("[1, 2]", "[1,2]").splitlines()[2:9]]
    assert upper == ["policy.", "budget.", "+-", "over", "MB"]
    assert lower == ["neighbours", "models", "accuracy", "seeds", "trained", "merged", "sent", "front"]
    assert [row[:2] for row in rows] == [["1", "none"], ["1", "[1,2]"], ["2", "none"], ["2", "[1,2]"]]
    summary = json.loads(Path("here/summary.json").read_text())
    assert summary["varied"] == {"policy.neighbours": [1, 2], "budget.models": [0, [1, 2]]}
    assert [run["varied"] for run in summary["runs"]][2] == {"policy.neighbours": 1, "budget.models": [1, 2]}
    assert [row["front"] for row in summary["table"]] == ["*" in row[-1] for row in rows]
    assert any(row["front"] for row in summary["table"])
    assert cli.main(["run", "here/scenario.toml", "--engine", "local", "--no-report", "--out", "there"]) == 0
    again, _ = capsys.readouterr()
    assert again.splitlines()[2:9] == out.splitlines()[2:9]
    assert left_behind("there") == left_behind("here")


@pytest.mark.slow
@pytest.mark.usefixtures("study")
def test_sweep_table_shows_infinite_values_and_is_complete(capsys):
    keys = ("deadline=inf,5", 'trainer="one-by-one"', "network.latency=[0.01, 0.1]", "policy.neighbours=1", "task.hidden=64")
    code, out, _ = command(
        capsys, "study.toml", *(part for key in keys for part in ("--vary", key)), "--set", "target=2", *HERE
    )
    assert code == 0
    assert "…" not in out
    rows = [
        line.split()
        for line in out.replace("[0.01, 0.1]", "[0.01,0.1]").splitlines()
        if line.startswith(" ") and "one-by-one" in line
    ]
    assert [row[:3] for row in rows] == [["inf", "one-by-one", "[0.01,0.1]"], ["5", "one-by-one", "[0.01,0.1]"]]
    summary = json.loads(Path("here/summary.json").read_text())
    assert summary["varied"]["deadline"] == ["inf", 5]
    assert [row["varied"]["deadline"] for row in (*summary["runs"], *summary["table"])] == ["inf", 5] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("study")
def test_sweep_of_different_tasks_marks_no_front(capsys):
    code, out, _ = command(capsys, "study.toml", "--vary", "task.samples=20,30", *HERE)
    assert code == 0
    assert "front" not in out
    assert all("front" not in row for row in json.loads(Path("here/summary.json").read_text())["table"])


@pytest.mark.slow
@pytest.mark.usefixtures("study")
def test_sweep_table_names_runs_of_several_rows(capsys):
    rows = '[[run]]\nname = "alone"\npolicy = { name = "local" }\n[[run]]\nname = "two"\n'
    Path("study.toml").write_text(STUDY + rows)
    code, out, _ = command(capsys, "study.toml", "--vary", "policy.neighbours=1,2", *HERE)
    assert code == 0
    rows = [line.replace("│", " ").split() for line in out.splitlines()]
    assert [row[:2] for row in rows if row and row[0] == "two"] == [["two", "1"], ["two", "2"]]
    assert sum(row[:1] == ["alone"] for row in rows) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("study")
def test_sweep_dry_run_prints_estimate_and_writes_nothing(capsys):
    code, out, err = command(capsys, *NEIGHBOURS, "--seeds", "0:100", "--dry-run", "--workers", "1")
    assert (code, err) == (0, "")
    *rows, count, forecast = out.splitlines()
    assert rows == [f"neighbours={k}, models={most}" for k in (1, 2) for most in ("none", "[1, 2]")]
    assert count == "4 rows, seeds 0:100: 400 runs"
    assert forecast.startswith("400 runs of 6 nodes, 3 rounds: about ")
    assert " on 1 core" in forecast
    code, out, err = command(capsys, *NEIGHBOURS, "--dry-run", "--engine", "local", "--json")
    estimated = json.loads(out)
    assert (code, err) == (0, "")
    assert (estimated["runs"], estimated["nodes"], estimated["rounds"], estimated["processes"]) == (4, [6, 6], [3, 3], 1)
    assert estimated["seconds"] > 0
    assert (len(estimated["rows"]), estimated["rows"][0]) == (4, "policy.neighbours=1, budget.models=0")
    assert [path.name for path in Path().iterdir()] == ["study.toml"]


@needs_torch
@pytest.mark.usefixtures("study")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study.toml"], "no key to vary: add --vary KEY=VALUES, such as --vary policy.tau=1,10,100, or use p2pfl-sim run"),
        (
            [*NEIGHBOURS, "--set", "policy.neighbours=3"],
            "policy.neighbours is both in --set and in --vary; remove one of them",
        ),
        (["study.toml", "--vary", "search.step=0.1,0.2"], "--vary search.step has no effect in a sweep"),
        (["--vary", "nodes=3"], "no scenario: name one, or continue a run with --resume DIR"),
        (["study.toml", "--vary", "policy.neighbours=-1,2"], "run 'policy.neighbours=-1': policy: neighbours must be 0 or"),
        (["--resume", "x", "--vary", "nodes=3"], "--resume continues a run with its own settings; leave out"),
        (
            ["--resume", "x", "--dry-run"],
            "--resume continues a run with its own settings; leave out --dry-run",
        ),
    ],
)
def test_sweep_with_invalid_arguments_is_refused(capsys, arguments, message):
    code, out, err = command(capsys, *arguments)
    said = "".join(line for line in err.splitlines(True) if not line.startswith("preparing: "))  # what a sweep does first
    assert (code, out) == (2, "")
    assert said.startswith(message)


@pytest.mark.slow
def test_sweep_imports_policy_from_scenario_folder(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "swept_policy.py").write_text("from p2pfl.policies.local import Local\n")
    (folder / "own.toml").write_text('nodes = 2\nrounds = 1\npolicy = { name = "swept_policy:Local" }\n')
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, out, err = command(capsys, str(folder / "own.toml"), "--vary", "policy.epochs=1,2", "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == ["epochs=1", "epochs=2"]
    assert "\n2 runs of 2 nodes" in out


def test_sweep_of_shipped_scenario_varies_its_rows():
    file = sweep(load("digits-gossip"), parse(["policy.tau=1,10,100", "budget.models=2,5"]))
    assert len(file.runs) == 2 + 2 + 6 + 6


@pytest.mark.slow
@needs_torch
@pytest.mark.usefixtures("study")
def test_few_test_samples_are_noted_before_and_after_the_runs(capsys):
    Path("few.toml").write_text(STUDY.replace('"digits", samples = 20', '"images", data = "digits", test = 5'))
    grid = ["--vary", "policy.neighbours=1,2", "--set", "rounds=1", "--engine", "local"]
    assert cli.main(["sweep", "few.toml", *grid, "--out", "few"]) == 0
    out, err = capsys.readouterr()
    step = "has only 5 test samples: one of them changes its test accuracy by 0.2\n"
    assert err.count(f"note: the first node {step}") == 1
    assert out.count(f"note: the node with the fewest {step}") == 1
    assert "the node with the fewest has only 5 test samples" in Path("few/report.html").read_text()
    assert cli.main(["sweep", "study.toml", *grid, "--out", "many"]) == 0
    out, err = capsys.readouterr()
    assert "test sample" not in out + err


# Interruptions


LONG = 5 * PATIENCE  # for 24 runs: a busy machine starts processes, forecasts and trains many times more slowly


def process(*options):
    return subprocess.Popen(
        [forked.executable(), "-m", "p2pfl.sim", "sweep", *options, "--no-report"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )


def finished(line):
    """Return the run and seed that a line on standard error reports as finished, or None."""
    return line.rpartition(":")[0] if ", seed " in line and line.rstrip().endswith("s)") else None


@deep
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.usefixtures("study")
def test_sweep_interrupted_three_times_repeats_no_run():
    Path("study.toml").write_text(STUDY.replace("rounds = 3", "rounds = 8"))
    grid = ("study.toml", "--vary", "policy.neighbours=1,2,3", "--vary", "budget.models=0,2", "--seeds", "0:4")
    whole = process(*grid, "--engine", "local", "--out", "whole")
    printed, _ = whole.communicate(timeout=LONG)
    assert whole.returncode == 0
    options, reported, before = (*grid, "--out", "here"), [], {}
    for end in (signal.SIGINT, signal.SIGKILL, signal.SIGINT):
        running, count = process(*options, "--workers", "2"), 0
        for line in running.stderr:
            if (name := finished(line)) is not None:
                reported.append(name)
                count += 1
            if count == 3:
                break
        running.send_signal(end)
        _, err = running.communicate(timeout=LONG)
        assert running.returncode == (-signal.SIGKILL if end == signal.SIGKILL else 130)
        reported += [name for line in err.splitlines() if (name := finished(line))]
        kept = {path.name: path.stat().st_mtime_ns for path in Path("here", PARTS).iterdir() if path.name.isdecimal()}
        assert before.items() <= kept.items()  # those that were there are as they were
        before = kept
        assert len(kept) >= len(reported)  # one may be on the disk before it is reported
        if end == signal.SIGINT:
            assert f"{len(kept)} of 24 runs are finished; continue with: p2pfl-sim sweep --resume here\n" in err
        options = ("--resume", "here")
    running = process(*options, "--engine", "local")
    out, err = running.communicate(timeout=LONG)
    assert running.returncode == 0
    assert f"{24 - len(kept)} runs of 6 nodes, 8 rounds: about " in err
    last = [name for line in err.splitlines() if (name := finished(line))]
    assert len(last) == 24 - len(kept)
    assert Counter([*reported, *last]).most_common(1)[0][1] == 1
    assert out.replace("here", "whole") == printed
    assert left_behind("here") == left_behind("whole")
    assert duckdb.sql("SELECT count(*) FROM 'here/rounds.parquet'").fetchall() == [(24 * 6 * 8,)]
