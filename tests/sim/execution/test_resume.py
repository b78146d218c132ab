"""Resumption: an interrupted run continues, and has the same results as an uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import p2pfl
from p2pfl.sim.cli import main as cli
from p2pfl.sim.execution import resume
from p2pfl.sim.execution.resume import Parts, explain_resume
from p2pfl.sim.results.tables import PARTS
from p2pfl.sim.scenario.scenario import resolve
from tests.support import forked
from tests.support.depth import spread
from tests.support.extras import needs_torch
from tests.support.processes import PATIENCE

pytestmark = needs_torch
POLICY = """
from pathlib import Path
from p2pfl.errors import RunError
from p2pfl.policies.random import Random

class Stopped(Random):
    async def round(self, me, peers):
        if me.round == 2 and Path("stop").exists():
            raise {"interrupt": KeyboardInterrupt, "fail": RunError}[Path("stop").read_text()]
        return await super().round(me, peers)
"""
SCENARIO = """
nodes = 4
rounds = 3
seeds = [0, 1]
deadline = inf
task = { name = "concept-shift" }
[[run]]
name = "first"
policy = { name = "random", neighbours = 2 }
[[run]]
name = "second"
policy = { name = "stopping:Stopped", neighbours = 1 }
[[run]]
name = "third"
policy = { name = "local" }
paper = 10.0
[[claim]]
run = "first"
below = "third"
"""


@pytest.fixture(autouse=True)
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stopping.py").write_text(POLICY)
    for module in ("stopping", "helper"):  # of another folder
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("study.toml").write_text(SCENARIO)


def sim(capsys, *arguments):
    code = cli.main(["run", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def stopped(capsys, how="interrupt"):
    """Stop a scenario after both seeds of its first run, and return its exit code and errors."""
    Path("stop").write_text(how)
    code, out, err = sim(capsys, "study.toml", "--engine", "local", "--out", "here")
    Path("stop").unlink()
    assert out == ""
    return code, err


def left_behind(folder):
    """Return the outputs of a run without its times."""
    summary = json.loads(Path(folder, "summary.json").read_text())
    for run in summary["runs"]:
        assert run["time"].pop("wall_s") > 0
        assert run["time"].pop("node_rounds_per_s") > 0
    tables = {}
    for name in ("rounds", "edges"):
        table = duckdb.sql(f"SELECT * FROM '{folder}/{name}.parquet'")
        tables[name] = table.columns, [str(kind) for kind in table.types], [repr(row) for row in table.fetchall()]
    files = sorted(path.name for path in Path(folder).iterdir())
    return files, Path(folder, "scenario.toml").read_text(), summary, tables


def traces_and_times(folder):
    return {(run["name"], run["seed"]): run["time"] for run in json.loads(Path(folder, "summary.json").read_text())["runs"]}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "last"), [("interrupt", 130, "interrupted"), ("fail", 1, "run 'second', seed 0:")])
def test_resume_keeps_finished_runs_and_does_the_rest(capsys, how, code, last):
    sim(capsys, "study.toml", "--engine", "local", "--out", "whole")
    ended, err = stopped(capsys, how)
    assert ended == code
    hint, trust, end = err.splitlines()[-3:]
    assert (hint, end) == ("2 of 6 runs are finished; continue with: p2pfl-sim run --resume here --trust", last)
    assert trust.startswith("--trust imports the scenario's own modules, from /")
    assert sorted(path.name for path in Path("here").iterdir()) == ["parts", "scenario.toml"]
    code, out, err = sim(capsys, "--resume", "here", "--trust", "--engine", "local")
    assert code == 0
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        *("second, seed 0", "second, seed 1", "third, seed 0", "third, seed 1")
    ]
    assert "mean over nodes and 2 seeds" in out
    assert "note" not in out
    assert left_behind("here") == left_behind("whole")
    assert all(len(row["by_seed"]["mean"]) == 2 for row in left_behind("here")[2]["table"])  # the claim needs them


@pytest.mark.slow
def test_resume_after_second_interruption_in_other_folder(capsys, tmp_path, monkeypatch):
    sim(capsys, "study.toml", "--engine", "local", "--out", "whole")
    stopped(capsys)
    Path("stop").write_text("interrupt")
    code, _, err = sim(capsys, "--resume", "here", "--trust", "--engine", "local")
    assert code == 130
    assert "2 of 6 runs are finished; continue with: p2pfl-sim run --resume here --trust\n" in err
    Path("stop").unlink()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert sim(capsys, "--resume", "../here", "--trust", "--json")[0] == 0  # with the other engine
    assert left_behind("../here") == left_behind("../whole")


@pytest.mark.slow
def test_resume_keeps_times_of_finished_runs(capsys):
    stopped(capsys)
    kept = Path("here", PARTS, "0").read_bytes()
    code, out, err = sim(capsys, "--resume", "here", "--trust", "--engine", "local", "--json")
    assert (code, err) == (0, "")
    assert out == Path("here/summary.json").read_text()
    assert f'"wall_s": {json.loads(out)["runs"][0]["time"]["wall_s"]}'.encode() in kept


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-9] + b"x" + data[-8:], lambda data: b""])
def test_resume_recomputes_damaged_part(capsys, damage):
    sim(capsys, "study.toml", "--engine", "local", "--out", "whole")
    stopped(capsys)
    part = Path("here", PARTS, "1")
    part.write_bytes(damage(part.read_bytes()))
    code, out, _ = sim(capsys, "--resume", "here", "--trust", "--engine", "local")
    assert code == 0
    assert "note: first, seed 1 was computed again: its file of partial results is damaged\n" in out
    assert left_behind("here") == left_behind("whole")


@pytest.mark.slow
def test_resume_recomputes_part_of_changed_scenario(capsys):
    sim(capsys, "study.toml", "--engine", "local", "--out", "whole", "--set", "rounds=4")
    stopped(capsys)
    path = Path("here/scenario.toml")
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    code, out, _ = sim(capsys, "--resume", "here", "--trust", "--engine", "local")
    assert code == 0
    assert "note: first, seed 0; first, seed 1 were computed again: rounds 3 -> 4\n" in out
    assert left_behind("here") == left_behind("whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["study.toml"], "a scenario"),
        (["--set", "rounds=9"], "--set"),
        (["--set", "form=smoke"], "--set"),
        (["--seeds", "0:9"], "--seeds"),
        (["--only", "third"], "--only"),
        (["--out", "there"], "--out"),
    ],
)
def test_resume_refuses_options_that_change_the_run(capsys, arguments, what):
    stopped(capsys)
    code, out, err = sim(capsys, "--resume", "here", *arguments)
    assert (code, out) == (2, "")
    assert err == f"--resume continues a run with its own settings; leave out {what}\n"


@pytest.mark.slow
def test_resume_of_empty_or_finished_folder_is_refused(capsys):
    Path("empty").mkdir()
    code, _, err = sim(capsys, "--resume", "empty")
    assert (code, err) == (2, "empty holds no run to resume: it has no scenario.toml\n")
    sim(capsys, "study.toml", "--only", "third", "--engine", "local", "--out", "here")
    code, _, err = sim(capsys, "--resume", "here")
    assert (code, err) == (2, "here holds a finished run; there is nothing to resume\n")
    code, _, err = sim(capsys)
    assert (code, err) == (
        2,
        "no scenario: name one, or continue a run with --resume DIR; `p2pfl-sim list` prints the shipped scenarios\n",
    )


@pytest.mark.slow
def test_run_does_not_overwrite_unfinished_run(capsys):
    stopped(capsys)
    code, _, err = sim(capsys, "study.toml", "--out", "here")
    assert code == 2
    assert err == ("here holds an unfinished run; continue it with --resume here, or name another folder with --out\n")
    Path("mine").mkdir()
    Path("mine/scenario.toml").write_text("nodes = 2\n")
    code, _, err = sim(capsys, "mine/scenario.toml", "--out", "mine")
    assert (code, err) == (2, "mine already holds a scenario.toml; name another folder with --out\n")
    assert Path("mine/scenario.toml").read_text() == "nodes = 2\n"


@pytest.mark.slow
def test_interrupted_run_without_finished_part_leaves_nothing(capsys):
    Path("stop").write_text("interrupt")
    Path("there").mkdir()
    for out in ("here/deep", "there"):
        code, _, err = sim(capsys, "study.toml", "--only", "second", "--engine", "local", "--out", out)
        kept = "none of 2 runs is finished, and nothing is kept; the same command starts again\n"
        assert (code, err) == (130, kept + "interrupted\n")
    assert not Path("here").exists()
    assert list(Path("there").iterdir()) == []


class Interrupting:
    """Importer that stands for Ctrl-C while the command imports its modules."""

    def find_spec(self, name, path=None, target=None):
        if name == "p2pfl.sim.cli.run":
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("when", ["imports", "own module"])
def test_interruption_before_the_runs_says_what_is_kept(capsys, monkeypatch, when):
    stopped(capsys)
    if when == "imports":
        monkeypatch.delitem(sys.modules, "p2pfl.sim.cli.run")
        monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    else:
        monkeypatch.delitem(sys.modules, "stopping")
        Path("stopping.py").write_text("raise KeyboardInterrupt")
    code, out, err = sim(capsys, "study.toml", "--out", "there")
    nothing = "nothing has begun, and nothing is kept; the same command starts again\ninterrupted\n"
    assert (code, out, err) == (130, "", nothing)
    assert not Path("there").exists()
    code, out, err = sim(capsys, "--resume", "here", "--trust")
    kept = "what was finished before is kept; continue with: p2pfl-sim run --resume here --trust\ninterrupted\n"
    assert (code, out, err) == (130, "", kept)
    assert Path("here", PARTS, "1").exists()


def long_run(*options):
    return subprocess.Popen(
        [forked.executable(), "-m", "p2pfl.sim", "run", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )


LONG = ("dac-synthetic", "--set", "form=smoke", "--set", "rounds=12", "--seeds", "0:3")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_resume_of_run_in_use_is_refused(capsys):
    process = long_run("dac-synthetic", "--seeds", "0:200", "--out", "here")
    assert "local, seed " in process.stderr.readline()
    code, _, err = sim(capsys, "--resume", "here", "--trust")
    assert (code, err) == (2, "here/parts is in use: another process works on this run\n")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Files of a run without interruption."""
    folder = tmp_path_factory.mktemp("undisturbed") / "whole"
    assert cli.main(["run", *LONG, "--engine", "local", "--no-report", "--out", str(folder)]) == 0
    return left_behind(folder)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("end", spread([signal.SIGKILL, signal.SIGINT], 2))
def test_run_killed_repeatedly_completes_by_resume(end, whole):
    options, times = (*LONG, "--workers", "2", "--no-report", "--out", "here"), 0
    while True:
        process = long_run(*options)
        lines = [process.stderr.readline() for _ in range(12)]
        if lines[-1]:  # it has not finished yet
            process.send_signal(end)
        process.communicate(timeout=PATIENCE)
        if process.returncode == 0:
            break
        assert process.returncode == (-9 if end == signal.SIGKILL else 130)
        options, times = ("--resume", "here", "--workers", "2", "--no-report"), times + 1
    assert times >= 2
    assert left_behind("here") == whole


@pytest.mark.slow
@pytest.mark.parametrize("changed", [True, False])
def test_runs_of_an_edited_module_are_computed_again(capsys, changed):
    scenario = SCENARIO.replace(
        'name = "first"\npolicy = { name = "random"', 'name = "first"\npolicy = { name = "stopping:Stopped"'
    )
    Path("study.toml").write_text(scenario)
    Path("stopping.py").write_text("import helper\n" + POLICY.replace("me.round == 2", "me.streams.seed == 1"))
    Path("helper.py").write_text("")
    stopped(capsys)
    Path("helper.py").write_text("VALUE = 1" if changed else "")
    code, out, _ = sim(capsys, "--resume", "here", "--trust", "--engine", "local")
    assert code == 0
    assert ("first, seed 0 was computed again: module helper.py has changed" in " ".join(out.split())) == changed


WILD = SCENARIO.replace("rounds = 3", "rounds = 1").replace(
    'policy = { name = "stopping:Stopped", neighbours = 1 }', "task = { lr = 1e9 }"
)


@pytest.mark.slow
def test_other_rows_have_results_when_a_row_diverges(capsys):
    Path("wild.toml").write_text(WILD)
    code, out, err = sim(capsys, "wild.toml", "--out", "here", "--engine", "local")
    assert code == 1
    reason = "run 'second', seed 0, and 1 other run: the training of node-0 diverged in round 1"
    assert f"note: left out: second ({reason}" in " ".join(out.split())
    assert err.splitlines()[-1].startswith(reason)
    summary = json.loads(Path("here/summary.json").read_text())
    assert [row["name"] for row in summary["table"]] == ["first", "third"]
    assert summary["notes"][0].startswith("left out: second")
    assert Path("here/report.html").exists()
    assert len(p2pfl.load("here")) == 4
    code, out, _ = sim(capsys, "wild.toml", "--out", "there", "--engine", "local", "--json")
    assert code == 1
    assert json.loads(out)["table"][1]["name"] == "third"


def test_nothing_is_written_when_every_row_diverges(capsys):
    Path("wild.toml").write_text(WILD)
    code, out, _ = sim(capsys, "wild.toml", "--only", "second", "--out", "here", "--engine", "local")
    assert (code, out) == (1, "")
    assert not Path("here").exists()


@pytest.mark.slow
def test_row_that_has_diverged_can_be_resumed(capsys):
    broken = POLICY.replace("import RunError", "import DivergenceError, RunError").replace(
        "        if me",
        "        if me.streams.seed == 1:\n            raise DivergenceError(me.id, me.round)\n        if me",
    )
    Path("stopping.py").write_text(broken)
    code, _, err = sim(capsys, "study.toml", "--out", "here", "--engine", "local", "--no-report")
    assert code == 1
    assert err.splitlines()[-1].startswith("run 'second', seed 1: the training of node-")
    assert [row["name"] for row in json.loads(Path("here/summary.json").read_text())["table"]] == ["first", "third"]
    assert len([path for path in Path("here", PARTS).iterdir() if path.name.isdigit()]) == 5
    Path("stopping.py").write_text(POLICY)
    del sys.modules["stopping"]  # as in a new process
    code, _, _ = sim(capsys, "--resume", "here", "--trust", "--engine", "local", "--no-report")
    assert code == 0
    rows = json.loads(Path("here/summary.json").read_text())["table"]
    assert [row["name"] for row in rows] == ["first", "second", "third"]
    assert not Path("here", PARTS).exists()


def test_interruption_before_the_first_result_says_that_nothing_is_kept(tmp_path, capsys):
    file = resolve({"nodes": 2, "rounds": 1}, [], "x", ".")
    with pytest.raises(KeyboardInterrupt), explain_resume(Parts(tmp_path / "out", file), 3, "sweep"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "none of 3 runs is finished, and nothing is kept; the same command starts again\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_interruption_while_the_disk_is_flushed_counts_the_result_that_is_there(tmp_path, monkeypatch, capsys):
    write, result = resume.write_sealed, p2pfl.simulate({"nodes": 2, "rounds": 1, "policy": {"name": "local"}})[0]

    def interrupted(*values, **options):
        write(*values, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(resume, "write_sealed", interrupted)
    file = resolve({"nodes": 2, "rounds": 1, "policy": {"name": "local"}}, [], "x", ".")
    parts = Parts(tmp_path / "here", file)
    with pytest.raises(KeyboardInterrupt), explain_resume(parts, 2, "sweep"):
        parts.save(0, result)
    assert "1 of 2 runs are finished; continue with: p2pfl-sim sweep --resume" in capsys.readouterr().err
    assert (tmp_path / "here" / PARTS / "0").exists()


def test_interruption_while_results_are_read_does_not_say_that_nothing_is_kept(tmp_path, capsys):
    file = resolve({"nodes": 2, "rounds": 1}, [], "x", ".")
    (tmp_path / "here" / PARTS).mkdir(parents=True)
    parts = Parts(tmp_path / "here", file)
    with pytest.raises(KeyboardInterrupt), explain_resume(parts, 2, "sweep"):
        raise KeyboardInterrupt
    assert "nothing is kept" not in capsys.readouterr().err
    assert (tmp_path / "here" / PARTS).exists()
