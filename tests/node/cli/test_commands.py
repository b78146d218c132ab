"""Commands as a user calls them: output, files and exit codes."""

import json
import logging
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import duckdb
import pytest

import p2pfl
from p2pfl._util.atomic_files import lock_folder
from p2pfl._version import __version__, describe_version
from p2pfl.errors import BudgetExceededError, ConfigurationError, DivergenceError, RunError
from p2pfl.node.cli import main as node_cli
from p2pfl.node.folder.config import CONFIG, KEY, STATUS, NodeConfig, Track
from p2pfl.node.settings import End
from p2pfl.node.status.reader import write_state
from p2pfl.policies import POLICIES
from p2pfl.policy import Budget
from p2pfl.privacy import Privacy
from p2pfl.protocols.errors import ProtocolError
from p2pfl.sim.cli import main as sim_cli
from p2pfl.sim.scenario.scenario import shipped_scenarios
from p2pfl.sim.simulation.workers import WorkerLostError
from p2pfl.task_specs import TASKS
from tests.support import forked
from tests.support.depth import spread
from tests.support.extras import needs_torch
from tests.support.logs import messages
from tests.support.processes import PATIENCE

SMOKE = ["run", "dac-synthetic", "--set", "form=smoke", "--only", "cosine-weights", "--engine", "local"]


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    """Run each test in its own folder; commands write to the current folder by default."""
    monkeypatch.chdir(tmp_path)


def sim(capsys, *arguments):
    code = sim_cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def node(capsys, *arguments):
    code = node_cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def usage_error(capsys, main, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("main", [node_cli.main, sim_cli.main])
def test_version_option_prints_version(capsys, main):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(rf"p2pfl {p2pfl.__version__}( \([0-9a-f]+(\+changes)?\))?\n", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_version_of_clone_names_its_commit_and_changes(tmp_path):
    def git(*words):
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *words],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip()

    assert describe_version(tmp_path) == __version__
    git("init", "-q")
    assert describe_version(tmp_path) == __version__  # no commit yet
    (tmp_path / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "a")
    git("tag", "v1")
    commit = git("rev-parse", "--short=8", "HEAD")
    assert describe_version(tmp_path) == f"{__version__} ({commit})"
    (tmp_path / "a.py").write_text("2")
    assert describe_version(tmp_path) == f"{__version__} ({commit}+changes)"
    (tmp_path / "inside").mkdir()
    assert describe_version(tmp_path / "inside") == __version__  # the clone of another project has it


# p2pfl-sim


@pytest.mark.slow
def test_list_prints_all_scenarios(capsys):
    code, out, _ = sim(capsys, "list")
    assert code == 0
    assert {"dac-synthetic", "dac-synthetic-default", "digits-gossip"} <= set(shipped_scenarios())
    assert all(f"\n{name} " in out for name in shipped_scenarios())
    assert set(json.loads(sim(capsys, "list", "--json")[1])) == set(shipped_scenarios())


@pytest.mark.slow
def test_run_prints_table_with_values_of_paper(capsys, tmp_path):
    code, out, err = sim(capsys, *SMOKE, "--seeds", "0:2", "--out", "here")
    assert code == 0
    assert "mean over nodes and 2 seeds" in out
    assert "cosine-weights/fedavg" in out
    assert "10.34" in out
    assert err.count("\n") == 4  # a line for each finished run, as standard error is not a terminal here


@pytest.mark.slow
def test_run_writes_result_folder(capsys, tmp_path):
    sim(capsys, *SMOKE, "--seeds", "0:2", "--out", "here")
    summary = json.loads((tmp_path / "here/summary.json").read_text())
    assert summary["scenario"] == "dac-synthetic"
    assert summary["seeds"] == [0, 1]
    assert [row["name"] for row in summary["table"]] == ["cosine-weights/fedavg", "cosine-weights/fedsim"]
    run = summary["runs"][0]
    assert set(run["test"]) == {"mean", "std", "variance", "worst_decile", "nodes", "per_group", "last_round"}
    assert set(run["traffic"]) >= {"bytes", "models", "max_models_in_round", "max_models_held"}
    assert set(run["collaboration"]) >= {"within_group", "edges"}
    assert set(run["time"]) == {"wall_s", "virtual_s", "node_rounds_per_s"}
    assert len(run["trace"]) == 64
    rounds = duckdb.sql(f"SELECT * FROM '{tmp_path}/here/rounds.parquet'")
    assert rounds.columns[:8] == ["run", "seed", "round", "virtual_time", "node", "bytes_in", "bytes_out", "models_in"]
    assert {"trained_test_mse", "merged_validation_loss"} <= set(rounds.columns)
    assert len(rounds) == 2 * 2 * 12 * 4
    edges = duckdb.sql(f"SELECT * FROM '{tmp_path}/here/edges.parquet'")
    assert edges.columns == ["run", "seed", "round", "src", "dst", "weight", "bytes"]
    assert len(edges) == sum(run["traffic"]["models"] for run in summary["runs"])
    total = duckdb.sql(f"SELECT sum(bytes), sum(weight) FROM '{tmp_path}/here/edges.parquet'").fetchall()[0]
    assert total[0] < sum(run["traffic"]["bytes"] for run in summary["runs"])


@pytest.mark.slow
def test_saved_scenario_reproduces_run(capsys, tmp_path):
    sim(capsys, *SMOKE, "--seeds", "0:2", "--out", "first")
    sim(capsys, "run", "first/scenario.toml", "--engine", "local", "--out", "second")
    traces = [
        [run["trace"] for run in json.loads(Path(f"{name}/summary.json").read_text())["runs"]]
        for name in ("first", "second")
    ]
    assert traces[0] == traces[1]


@pytest.mark.slow
def test_sim_run_with_json_prints_one_object_only(capsys):
    code, out, err = sim(capsys, *SMOKE, "--json")
    assert code == 0
    assert err == ""
    assert json.loads(out) == json.loads(next(Path("runs").glob("*/summary.json")).read_text())


@pytest.mark.slow
def test_run_never_overwrites_results(capsys, tmp_path):
    sim(capsys, *SMOKE, "--out", "here")
    before = (tmp_path / "here/summary.json").read_text()
    code, _, err = sim(capsys, *SMOKE, "--out", "here")
    assert code == 2
    assert err == "here already holds a run; name another folder with --out\n"
    assert (tmp_path / "here/summary.json").read_text() == before


@needs_torch
def test_run_reports_folder_that_cannot_be_created(capsys, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = sim(capsys, *SMOKE, "--out", "file/here")
    assert code == 2
    assert err.startswith("cannot create the folder file/here")


@needs_torch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "dac-synthetc"], "unknown scenario 'dac-synthetc'; did you mean 'dac-synthetic',"),
        (["run", "dac-synthetic", "--set", "nodez=3"], "command line: unknown key 'nodez'; did you mean 'nodes'?"),
        (
            ["run", "dac-synthetic", "--set", "policy.neighbors=3"],
            "command line: unknown key 'policy.neighbors'; did you mean 'policy.neighbours'? (--set changes all runs; --only"
            " RUN selects some)",
        ),
        (
            ["sweep", "dac-synthetic", "--set", "policy.neighbours=3", "--vary", "rounds=1,2"],
            "command line: --set changes all runs, but the run 'local, rounds=1' does not take policy.neighbours; select"
            " runs that take it with --only, such as --only 'random",
        ),
        (
            ["run", "dac-synthetic", "--only", "random", "--set", "policy.k=3"],
            "command line: unknown key 'policy.k'; known: ",
        ),
        (["run", "dac-synthetic", "--set", "policy.name=dax"], "run 'dax': unknown policy 'dax'; did you mean 'dac'?"),
        (["run", "dac-synthetic", "--seeds", "5:2"], "--seeds 5:2 is empty"),
        (["run", "dac-synthetic", "--seeds", "x"], "--seeds must be a range such as 0:5 or a list such as 3,5, got 'x'"),
        (["run", "dac-synthetic", "--seed", "1", "--set", "nodes=0"], "command line: nodes must be 1 or more, got 0"),
        (["run", "dac-synthetic", "--seeds", "0,0"], "--seeds must not repeat a seed, got 0 more than once"),
        (["run", "dac-synthetic", "--workers", "0"], "--workers must be 1 or more, got 0"),
        (["run", "dac-synthetic", "--workers", "2", "--engine", "local"], "--workers needs --engine process"),
        (
            ["run", "dac-synthetic", "--set", "device=cpu:abc"],
            "run 'local': device 'cpu:abc' is not of the form cpu or cpu:0",
        ),
        (["run", "dac-synthetic", "--only", "x"], "command line: no run of dac-synthetic has 'x' in its name; its runs: "),
        (["run", "dac-synthetic", "--set", "seeds=3"], "command line: seeds cannot be changed with --set; use --seeds 0:3"),
        (["run", "none.toml"], "the scenario file none.toml does not exist"),
        (
            ["run", "dac-synthetic", "--set", "form=smoke", "--set", "policy.name=knn-per", "--engine", "local"],
            "run 'knn-per', seed 0: a memory of samples needs a classification task with cross-entropy loss",
        ),
    ],
)
def test_sim_run_with_wrong_configuration_exits_with_code_2(capsys, arguments, message):
    code, out, err = sim(capsys, *arguments)
    assert (code, out) == (2, "")
    *before, last = err.splitlines()
    assert last.startswith(message)
    assert all(line.startswith("preparing: ") for line in before)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (sim_cli.main, ["walk"], "invalid choice: 'walk'"),
        (
            node_cli.main,
            ["statsu"],
            "argument COMMAND: invalid choice: 'statsu'; did you mean 'status'? (see p2pfl-node --help)",
        ),
        (sim_cli.main, ["run", "x", "--zoom"], "p2pfl-sim run: unrecognized arguments: --zoom (see p2pfl-sim run --help)"),
        (sim_cli.main, ["run", "x", "--workers", "two"], "--workers: must be a whole number, got 'two'"),
        (
            sim_cli.main,
            ["run", "x", "--sed", "3"],
            "unrecognized arguments: --sed 3; did you mean --seed? (see p2pfl-sim run",
        ),
        (node_cli.main, ["init", "x", "--polcy=dac"], "--polcy=dac; did you mean --policy? (see p2pfl-node init --help)"),
        (node_cli.main, ["--versoin"], "p2pfl-node: unrecognized arguments: --versoin; did you mean --version?"),
        (node_cli.main, ["init"], "arguments are required: FOLDER"),
    ],
)
def test_wrong_usage_exits_with_code_2(capsys, main, arguments, message):
    assert message in usage_error(capsys, main, *arguments)


def test_init_in_folder_of_unsuitable_name_names_the_option(capsys):
    assert node_cli.main(["init", "a b/../c d"]) == 2
    assert capsys.readouterr().err.endswith("begin with a letter or digit; choose another one with --name\n")


@needs_torch
def test_run_with_same_rows_on_all_nodes_notes_it_at_start(capsys, tmp_path):
    (tmp_path / "rows.csv").write_text("a,label\n" + "1,0\n2,1\n" * 20)
    task = f'task = {{ name = "classification", data = "{tmp_path}/rows.csv" }}'
    (tmp_path / "same.toml").write_text(
        f'nodes = 2\nduration = 10\n{task}\npolicy = {{ name = "local" }}\n[[run]]\nname = "x"\n'
    )
    (tmp_path / "file").touch()
    code, _, err = sim(capsys, "run", str(tmp_path / "same.toml"), "--out", "file/here")
    assert code == 2
    assert "\nnote: all nodes have the same rows; set partition\ncannot create the folder file/here" in err


BREAKING = """
import asyncio, os, signal
from p2pfl.policies.local import Local

class Stuck(Local):
    async def round(self, me, peers):
        await asyncio.Event().wait()

class Killed(Local):
    async def round(self, me, peers):
        os.kill(os.getpid(), signal.SIGKILL)
"""
BREAKING_SCENARIO = """
nodes = 3
rounds = 2
task = { name = "concept-shift" }
[[run]]
name = "stuck"
policy = { name = "breaking:Stuck" }
[[run]]
name = "killed"
policy = { name = "breaking:Killed" }
[[run]]
name = "diverging"
policy = { name = "local" }
task.lr = 1e9
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "run", "message"),
    [
        ("local", "stuck", "deadlock at 0 s of virtual time: no event is left, but 3 of 3 nodes wait: "),
        ("process", "stuck", "deadlock at 0 s of virtual time: no event is left, but 3 of 3 nodes wait: "),
        ("process", "killed", "a worker process ended with code -9; if it ran out of memory"),
        ("local", "diverging", "the training of node-0 diverged in round 1; a lower learning rate may help"),
        ("process", "diverging", "the training of node-0 diverged in round 1; a lower learning rate may help"),
    ],
)
def test_failed_run_exits_with_code_1_and_leaves_no_folder(capsys, monkeypatch, tmp_path, engine, run, message):
    monkeypatch.delitem(sys.modules, "breaking", raising=False)  # a module of another test's folder
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "breaking.py").write_text(BREAKING)
    (tmp_path / "breaking.toml").write_text(BREAKING_SCENARIO)
    code, out, err = sim(capsys, "run", "breaking.toml", "--only", run, "--engine", engine)
    assert (code, out) == (1, "")
    assert err.startswith(f"run '{run}', seed 0: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "error",
    [
        DivergenceError("alice", 3),
        BudgetExceededError("3 models"),
        ConfigurationError("no such thing"),
        WorkerLostError("killed"),
        ProtocolError("malformed", "a frame"),
    ],
)
def test_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_errors_that_end_a_run_are_run_errors():
    assert all(issubclass(kind, RunError) for kind in (DivergenceError, BudgetExceededError, WorkerLostError))


def start_long_run(folder, *options, python=sys.executable):
    """Start a run of several minutes; its standard error closes when all of its processes have ended."""
    process = subprocess.Popen(
        [python, "-m", "p2pfl.sim", "run", "dac-synthetic", "--seeds", "0:200", "--out", "runs/here", *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    assert "local, seed " in process.stderr.readline()
    return process


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize(
    ("engine", "interrupt", "forks"),
    spread(
        [
            ("local", lambda process: process.send_signal(signal.SIGTERM), True),
            ("local", lambda process: process.send_signal(signal.SIGINT), True),
            ("process", lambda process: os.killpg(process.pid, signal.SIGINT), False),  # as a terminal does
            ("process", lambda process: process.send_signal(signal.SIGTERM), True),
        ],
        2,
    ),
)
def test_interrupted_run_exits_with_code_130_and_resume_hint(tmp_path, engine, interrupt, forks):
    process = start_long_run(tmp_path, "--engine", engine, python=forked.executable() if forks else sys.executable)
    try:
        interrupt(process)
        err = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    *before, hint, last = err.splitlines()
    assert last == "interrupted"
    assert re.fullmatch(r"\d+ of 2800 runs are finished; continue with: p2pfl-sim run --resume runs/here", hint)
    assert all(line.startswith("local, seed ") for line in before)
    assert process.returncode == 130
    assert sorted(path.name for path in (tmp_path / "runs/here").iterdir()) == ["parts", "scenario.toml"]


@pytest.mark.slow
def test_workers_end_when_parent_process_is_killed(tmp_path):
    process = start_long_run(tmp_path, "--workers", "2")
    process.kill()
    process.communicate(timeout=PATIENCE)  # returns when the workers have ended


@pytest.mark.slow
@needs_torch
def test_run_mentions_rows_made_equal_by_changes(capsys):
    smoke = ["run", "dac-synthetic", "--set", "form=smoke", "--engine", "local"]
    code, out, _ = sim(capsys, *smoke, "--set", "policy.name=local", "--set", "task.lr=0.001")
    assert code == 0
    assert "note: left out, because the changes make them equal to other runs: random, oracle, " in out


# p2pfl-node


def init(capsys, name="alice", port=0, *more):
    address = () if "--listen" in more else ("--port", port)
    code, out, _ = node(capsys, "init", name, *address, *more)
    assert code == 0
    return out


def test_init_creates_node_folder(capsys, tmp_path):
    out = init(capsys, "alice", 4101, "--part", "1/3")
    assert out.startswith("created alice; next: p2pfl-node federation create alice --backup FILE, or ")
    assert (tmp_path / "alice" / KEY).stat().st_mode & 0o077 == 0
    written = tomllib.loads((tmp_path / "alice" / CONFIG).read_text())
    assert (written["name"], written["listen"], written["part"]) == ("alice", ":4101", "1/3")
    Path("mine.csv").write_text("a,label\n" + "".join(f"{k * 7 % 20},{k % 2}\n" for k in range(20)))
    init(capsys, "bob", 0, "--listen", "127.0.0.1:4102", "--data", "mine.csv")
    written = tomllib.loads((tmp_path / "bob" / CONFIG).read_text())
    assert (written["listen"], written["data"]) == ("127.0.0.1:4102", str(tmp_path / "mine.csv"))
    assert (written["task"]["name"], written["task"]["target"]) == ("classification", "label")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--part", "5/3", "part 5/3 does not exist; the last of 3 is 2/3"),
        ("--part", '1"', "part '1\"' is not of the form 0/3"),
        ("--policy", "dax", "unknown policy 'dax'; did you mean 'dac'?"),
        ("--task", 'a"b', f"unknown task 'a\"b'; known: {', '.join(sorted(TASKS))}"),
        ("--task", 'a"b:c', "task 'a\"b:c' is not of the form package.module:factory"),
        ("--name", "a b", "name 'a b' must have at most 64 letters, digits"),
    ],
)
def test_init_refuses_invalid_options_and_writes_nothing(capsys, option, value, message):
    code, out, err = node(capsys, "init", "alice", f"{option}={value}")
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert not Path("alice").exists()


@pytest.mark.parametrize("options", [["--data", "later.csv"], ["--task", "fairness", "--data", "schemas/later.toml"]])
def test_init_refuses_a_missing_data_file(capsys, options):
    code, out, err = node(capsys, "init", "alice", *options)
    assert (code, out, err) == (2, "", f"--data: the file {options[-1]} does not exist\n")
    assert not Path("alice").exists()


def test_init_accepts_the_name_of_a_published_data_set(capsys):
    init(capsys, "alice", 0, "--task", "fairness", "--data", "adult")
    assert tomllib.loads(Path("alice", CONFIG).read_text())["data"] == "adult"


def test_init_accepts_custom_task_that_does_not_exist_yet(capsys):
    init(capsys, "alice", 0, "--policy", "not.there.yet:Policy", "--task", "nor_this:task")
    code, _, err = node(capsys, "run", "alice")
    assert code == 2
    assert "'nor_this:task' cannot be imported" in err


def test_init_writes_every_setting_with_comment_and_default(capsys):
    init(capsys)
    text = Path("alice", CONFIG).read_text()
    written = tomllib.loads(text)
    defaults = NodeConfig(name="alice", listen=":0")
    assert written.keys() == set(NodeConfig.__struct_fields__)
    typed = written | {
        "budget": Budget(**written["budget"]),
        "privacy": Privacy(**written["privacy"]),
        "end": End(**written["end"]),
        "advertise": (),
        "preference": (),
        "track": Track(**written["track"] | {"tools": ()}),
    }
    assert NodeConfig(**typed) == defaults
    assert all("#" in line for line in text.splitlines() if "=" in line)


def test_init_does_not_overwrite(capsys):
    init(capsys)
    code, _, err = node(capsys, "init", "alice")
    assert (code, err) == (2, "alice contains a node already; choose another folder\n")


@pytest.mark.slow
def test_run_of_single_node_prints_rounds_and_result(capsys):
    init(capsys)
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=3")
    assert code == 0
    lines = messages(out).splitlines()
    folder = Path("alice").resolve()
    assert lines[0] == f"node alice, folder {folder}: it belongs to no federation and trains alone"
    assert [line.split(",")[0] for line in lines[1:4]] == ["round 1 of 3", "round 2 of 3", "round 3 of 3"]
    assert lines[4].startswith("finished; the model of round ")
    code, out, _ = node(capsys, "status", "alice")
    assert code == 0
    shown = out.splitlines()
    assert shown[0] == "alice: finished, round 3 of 3"
    assert [line.split()[0] for line in shown[1:4]] == ["as", "accuracy", "best"]
    _, out, _ = node(capsys, "run", "alice", "--set", "rounds=3", "--set", "broker=mqtt://me:secret@host")
    start = (
        f"node alice, folder {folder}: it belongs to no federation and trains alone, without its broker mqtt://me@host:1883"
    )
    assert messages(out).splitlines()[0] == start


def test_run_without_validation_data_reports_last_model(capsys):
    init(capsys, "alice", 0, "--task", "deep-sea-treasure")
    _, out, _ = node(capsys, "run", "alice", "--set", "rounds=2")
    last = messages(out).splitlines()[-1]
    assert last.startswith(
        "finished; the model of round 2 is the result, because no validation data are looked at: test loss "
    )


@pytest.mark.slow
def test_run_of_finished_node_ends_at_once(capsys):
    init(capsys)
    node(capsys, "run", "alice", "--set", "rounds=2")
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=2")
    assert code == 0
    assert [line.split(";")[0] for line in messages(out).splitlines()[1:]] == ["resuming after round 2", "finished"]


@pytest.mark.parametrize("change", ["ruonds=3", "task.ruonds=3", "policy.ruonds=3", "part=7/3"])
def test_mistake_in_an_option_of_run_keeps_the_state(capsys, change):
    init(capsys)
    status = Path("alice", STATUS)
    assert node(capsys, "run", "alice", "--set", change)[0] == 2
    assert not status.exists()
    write_state(status, "finished")
    before = status.read_bytes()
    code, _, err = node(capsys, "run", "alice", "--set", change)
    assert (code, err.startswith("command line: "), status.read_bytes()) == (2, True, before)


def test_mistake_in_the_configuration_is_the_state_of_the_node(capsys):
    init(capsys)
    path = Path("alice", CONFIG)
    path.write_text(path.read_text().replace("[task]", "[task]\nruonds = 3", 1))
    assert node(capsys, "run", "alice")[0] == 2
    status = json.loads(Path("alice", STATUS).read_text())
    assert (status["state"], "task.ruonds" in status["reason"]) == ("failed", True)


@pytest.mark.slow
def test_run_of_member_prints_federation_address_and_rounds(capsys):
    init(capsys)
    create = ("federation", "create", "alice", "--backup", "backup.pem", "--set", "rounds=1")
    assert node(capsys, *create)[0] == 0
    id = json.loads(node(capsys, "federation", "show", "alice", "--json")[1])["id"]
    code, out, _ = node(capsys, "run", "alice", "--until-done", "--set", "mdns=false")
    first, second, third, *_ = messages(out).splitlines()
    assert code == 0
    assert first == f"node alice, folder {Path('alice').resolve()}: federation home ({id[:8]})"
    assert re.fullmatch(r"listening on port [1-9]\d* of all addresses", second)
    assert third.startswith("round 1 of 1")
    shown = json.loads(Path("alice", STATUS).read_text())
    assert shown["network"] == {"listen": f":{second.split()[3]}", "broker": "", "mdns": False}


@pytest.mark.slow
def test_failed_start_is_the_status_of_the_node(capsys, tmp_path):
    init(capsys)
    path = Path("alice", CONFIG)
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "tpu"'))
    assert node(capsys, "run", "alice")[0] == 2
    code, out, _ = node(capsys, "status", "alice")
    assert code == 0
    assert out.startswith("alice: failed, round 0\n")
    assert "unknown device 'tpu'" in out


@pytest.mark.skipif(os.name != "posix", reason="there are no locks")
def test_status_of_node_that_just_started_is_starting(capsys):
    init(capsys)
    with lock_folder(Path("alice")):
        assert node(capsys, "status", "alice")[:2] == (0, "alice: starting, round 0\n")


@pytest.mark.slow
def test_node_run_with_json_prints_status_only(capsys):
    init(capsys)
    code, out, err = node(capsys, "run", "alice", "--set", "rounds=2", "--json")
    assert (code, err) == (0, "")
    status = json.loads(out)
    assert (status["name"], status["state"], status["round"]) == ("alice", "finished", 2)
    assert json.loads(node(capsys, "status", "alice", "--json")[1])["round"] == 2


def test_status_of_node_that_never_ran_exits_with_code_1(capsys):
    init(capsys)
    assert node(capsys, "status", "alice") == (1, "", "alice: this node has never run; run it with p2pfl-node run alice\n")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "{", "[1]", "3", '{"state": "running"}', "\xff"])
def test_status_reports_damaged_file(capsys, text):
    init(capsys)
    Path("alice", STATUS).write_bytes(text.encode("latin-1"))
    code, out, err = node(capsys, "status", "alice")
    assert (code, out) == (2, "")
    assert err.startswith("alice/status.json is damaged")
    assert err.count("\n") == 1
    assert node(capsys, "run", "alice", "--set", "rounds=1")[0] == 0
    assert node(capsys, "status", "alice")[0] == 0


@pytest.mark.skipif(os.name != "posix", reason="there are no locks")
def test_status_shows_running_only_while_lock_is_held(capsys):
    """After a restart of the machine, any process may have the stored process id; here this test's process has it."""
    init(capsys)
    said = {"name": "alice", "state": "running", "pid": os.getpid(), "history": []}
    Path("alice", STATUS).write_text(json.dumps(said))
    assert json.loads(node(capsys, "status", "alice", "--json")[1])["state"] == "gone"
    with lock_folder(Path("alice")):
        assert json.loads(node(capsys, "status", "alice", "--json")[1])["state"] == "running"
    assert json.loads(node(capsys, "status", "alice", "--json")[1])["state"] == "gone"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rouns=3", "command line: unknown key 'rouns'; did you mean 'rounds'?"),
        ("privacy.epsilon=-8", "command line: privacy.epsilon must be 0 (no privacy) or more, and finite, got -8.0"),
        ("rounds=-3", "command line: rounds must be 0 or more, got -3"),
        ("budget.models=-3", "command line: a budget cannot be negative"),
        ("rounds=many", "command line: rounds must be a whole number, got 'many'"),
        ("deadline=nan", "command line: deadline must be more than 0 seconds, got nan"),
        ("max_staleness=nan", "command line: max_staleness must be more than 0 seconds, got nan"),
        ("mode=sync", "command line: mode must be one of synchronous, asynchronous, got 'sync'; did you mean"),
        ("policy=dac", "command line: policy must be a table such as { name = \"dac\" }, got 'dac'"),
        ("policy.name=dax", "command line: unknown policy 'dax'; did you mean 'dac'?"),
        ("task.name=digit", "command line: unknown task 'digit'; did you mean 'digits'?"),
        ("task.label=3", "command line: unknown key 'task.label'; did you mean 'task.labels'?"),
        ("task.lr=nan", "command line: task: lr must be 0 or more, and finite, got nan"),
        ("part=3", "command line: part must be a string, got 3"),
        ('part="3/3"', "command line: part 3/3 does not exist; the last of 3 is 2/3"),
        ('listen="4100"', "command line: address '4100' is not of the form 192.168.1.5:4100"),
        ('listen=":99999"', "command line: the port of address ':99999' must be from 0 to 65535"),
        pytest.param("device=tpu", "command line: unknown device 'tpu'; known: auto, cpu, cuda, mps", marks=needs_torch),
        pytest.param("device=cpu:abc", "command line: device 'cpu:abc' is not of the form cpu or cpu:0", marks=needs_torch),
        ("name=../x", "command line: name '../x' must have at most 64 letters"),
        ("peer={}", "command line: unknown key 'peer'"),
        ("direct=maybe", "command line: direct must be true or false, got 'maybe'"),
        ("members=-1", "command line: members must be 0 or more, got -1"),
        ("broker=host:1883", "command line: broker must be of the form mqtt://host:1883"),
        ("probe_period=0.5", "command line: probe_period must be from 1 to 3600 seconds, got 0.5"),
        ("probe_period=inf", "command line: probe_period must be from 1 to 3600 seconds, got inf"),
        ("status_port=99999", "command line: status_port must be from 0 to 65535, or -1 for none, got 99999"),
        (
            "status_host=0.0.0.0",
            "command line: status_host needs status_port, such as --status-port 4180",
        ),
        ("status_host=", "command line: status_host must be an address of this machine, such as 127.0.0.1"),
        ('addresses={bob="x"}', "command line: address 'x' is not of the form 192.168.1.5:4100"),
        ('advertise=["[::1:4"]', "command line: address '[::1:4' is not of the form 192.168.1.5:4100"),
    ],
)
def test_node_run_with_wrong_configuration_exits_with_code_2(capsys, change, message):
    init(capsys)
    code, out, err = node(capsys, "run", "alice", "--set", change)
    assert code == 2
    assert re.fullmatch("(node alice, .*\n)?", messages(out))  # the task finds its errors after the start
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "key", "change"),
    [
        ("rounds = -1", "rounds", "seed=3"),
        ('listen = "4100"', "address '4100'", "part=0/3"),
        ("status_port = 99999", "status_port", 'addresses={bob=":4100"}'),
        ('broker = "host"', "broker", "codec.name=int8"),
    ],
)
def test_error_of_file_is_not_of_command_line(capsys, line, key, change):
    init(capsys)
    path, name = Path("alice/node.toml"), line.partition(" ")[0]
    kept = [each for each in path.read_text().splitlines() if not each.startswith(f"{name} ")]
    path.write_text("\n".join([line, *kept]))
    code, _, err = node(capsys, "run", "alice", "--set", change)
    assert (code, err.startswith(f"{path}: {key}")) == (2, True), err


@pytest.mark.parametrize("command", ["run", "doctor", "federation show", "federation proofs"])
def test_command_refuses_missing_folder_in_one_line(capsys, command):
    code, out, err = node(capsys, *command.split(), "nowhere")
    assert (code, out, err) == (
        2,
        "",
        "nowhere does not exist; if the node was moved, name its folder there (p2pfl-node list DIR finds it), or create a"
        " new node with p2pfl-node init nowhere\n",
    )


@pytest.mark.parametrize("change", ["edges=all", "edge=a-b"])
def test_create_names_the_options_for_pairs_of_members(capsys, change):
    init(capsys)
    code, _, err = node(capsys, "federation", "create", "alice", "--backup", "backup.pem", "--set", change)
    assert (code, err) == (
        2,
        "command line: list the pairs of members with --edge A-B or --edges FILE, not with --set\n",
    )


def test_create_refuses_settings_of_a_single_node(capsys):
    init(capsys)
    code, _, err = node(capsys, "federation", "create", "alice", "--backup", "backup.pem", "--set", "mdns=false")
    assert code == 2
    where = "set it in alice/node.toml, or with run --set"
    assert err == f"command line: mdns is a setting of each node, not of the federation; {where}\n"
    assert "did you mean 'rounds'" in node(capsys, "federation", "create", "alice", "--backup", "b", "--set", "rouns=3")[2]


def test_run_refuses_key_readable_by_others(capsys, tmp_path):
    init(capsys)
    (tmp_path / "alice" / KEY).chmod(0o644)
    code, _, err = node(capsys, "run", "alice")
    assert code == 2
    assert err == "alice/key.pem is accessible to other users (mode 0644); run: chmod 600 alice/key.pem\n"


def test_run_reports_port_in_use(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        init(capsys, "alice", 0, "--listen", f"127.0.0.1:{port}")
        node(capsys, "federation", "create", "alice", "--backup", "backup.pem")
        code, _, err = node(capsys, "run", "alice")
    assert code == 2
    remedy = "choose another port with --port, or `listen` in node.toml"
    assert err == f"cannot listen on 127.0.0.1:{port}: address already in use; {remedy}\n"


@pytest.mark.slow
def test_run_refuses_damaged_checkpoints_and_keeps_them(capsys, tmp_path):
    init(capsys)
    node(capsys, "run", "alice", "--set", "rounds=2")
    names = "checkpoint", "checkpoint.1", "checkpoint.2"
    for name in names:
        (tmp_path / "alice" / name).write_bytes(b"p2pfl checkpoint 1\nand then nothing of use")
    code, _, err = node(capsys, "run", "alice", "--set", "rounds=2")
    shown = ", ".join(f"alice/{name}" for name in names)
    assert (code, err) == (2, f"no checkpoint is intact: {shown}; move them away to start from round 0\n")
    assert all((tmp_path / "alice" / name).read_bytes().endswith(b"of use") for name in names)


@pytest.mark.slow
def test_run_sets_damaged_checkpoint_aside_and_uses_previous(capsys, tmp_path):
    init(capsys)
    node(capsys, "run", "alice", "--set", "rounds=2")
    path = tmp_path / "alice" / "checkpoint"
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=2")
    assert code == 0
    assert "alice/checkpoint is damaged: renamed it to checkpoint.damaged" in out
    assert (tmp_path / "alice" / "checkpoint.damaged").read_bytes() == damaged


@pytest.mark.slow
def test_run_refuses_checkpoint_of_another_seed(capsys):
    init(capsys)
    node(capsys, "run", "alice", "--set", "rounds=2")
    code, _, err = node(capsys, "run", "alice", "--set", "rounds=2", "--set", "seed=7")
    assert code == 2
    assert err.startswith("the checkpoint has seed 0, the configuration has 7")


def test_run_refuses_node_that_already_runs(capsys):
    init(capsys)
    with lock_folder(Path("alice")):
        code, _, err = node(capsys, "run", "alice")
    assert (code, err) == (2, "alice is in use: another process runs this node\n")


@pytest.mark.slow
def test_help_of_packages_exits_with_code_0():
    """The test of imports checks that torch, whose import takes most of the time, is not imported."""
    for module in ("node", "sim"):
        done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        assert "COMMAND" in done.stdout


@pytest.mark.parametrize(
    ("main", "command"),
    [(node_cli.main, c) for c in ("init", "invite", "join", "run", "status", "doctor", "export", "demo")]
    + [(sim_cli.main, "run")],
)
def test_help_describes_every_option_and_default(capsys, main, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out.partition("\n\n")[2]  # after the usage
    assert not re.search(r"^ +([A-Z]+|-\S+( \S+)?)$\n(?! {20})", text, re.M)  # an option without a description
    assert all(remark.startswith("default: ") for remark in re.findall(r"\(([^)]*)\)", " ".join(text.split())))


def test_help_explains_majority_and_eligible_members(capsys):
    for command, said in (("init", "docs/explanation/elections.md"), ("invite", "docs/explanation/elections.md")):
        with pytest.raises(SystemExit):
            node_cli.main([command, "--help"])
        assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["init", "demo"])
def test_help_names_every_policy(capsys, command):
    with pytest.raises(SystemExit):
        node_cli.main([command, "--help"])
    words = re.split(r"[\s,]+", capsys.readouterr().out)
    assert set(POLICIES) <= set(words)


@pytest.mark.parametrize(
    ("nodes", "rounds", "message"), [(1, 3, "--nodes must be from 2 to 10"), (3, 0, "--rounds must be 1 or more")]
)
def test_demo_rejects_too_few_nodes_or_rounds(capsys, nodes, rounds, message):
    code, _, err = node(capsys, "demo", "--nodes", nodes, "--rounds", rounds)
    assert code == 2
    assert err.startswith(message)


# Tools for a node


@pytest.mark.slow
def test_doctor_reports_problems_and_exits_with_code_1(capsys):
    init(capsys, "alice", 0, "--listen", "127.0.0.1:0")
    code, out, err = node(capsys, "doctor", "alice")
    assert (code, err) == (0, "")
    assert {line.split(":")[0].split()[-1] for line in out.splitlines()} - {"path"} == {
        *("installation", "node", "key", "folder", "disk", "clock", "federation", "extras", "port", "multicast", "task")
    }
    Path("alice", KEY).chmod(0o644)
    code, out, _ = node(capsys, "doctor", "alice")
    assert code == 1
    assert "wrong  key: alice/key.pem is accessible to other users (mode 0644)" in out
    Path("alice", KEY).chmod(0o600)
    node(capsys, "federation", "create", "alice", "--backup", "backup.pem")
    code, out, _ = node(capsys, "doctor", "alice", "--json")
    found = {finding["check"]: finding["ok"] for finding in json.loads(out)["findings"]}
    assert code == 0
    assert found["federation"] is True
    assert found["task"] is True
    text = Path("alice", CONFIG).read_text()
    Path("alice", CONFIG).write_text(text.replace('[task]\nname = "digits"', '[task]\nname = "concept-shift"'))
    code, out, _ = node(capsys, "doctor", "alice")
    assert code == 1
    said = "task.name is 'concept-shift' in this node's node.toml, but 'digits' in the federation home"
    assert f"wrong  configuration: alice/node.toml: {said}" in out


@pytest.mark.slow
def test_export_writes_the_best_model(capsys):
    from safetensors.numpy import load_file

    init(capsys)
    code, _, err = node(capsys, "export", "alice", "model.safetensors")
    assert (code, err) == (2, "alice has no checkpoint: the node has not finished a round yet\n")
    node(capsys, "run", "alice", "--set", "rounds=2")
    code, out, _ = node(capsys, "export", "alice", "model.safetensors")
    assert code == 0
    assert out.startswith("wrote the model of round ")
    assert sum(array.size for array in load_file("model.safetensors").values()) == 4810
    code, _, err = node(capsys, "export", "alice", "model.safetensors")
    assert (code, err) == (2, "model.safetensors exists; use --force to overwrite it\n")
    assert node(capsys, "export", "alice", "model.safetensors", "--force")[0] == 0
    assert "is a folder; name a file" in node(capsys, "export", "alice", ".", "--force")[2]


@pytest.mark.slow
def test_status_watch_repeats_until_interrupted(capsys):
    import signal

    init(capsys)
    node(capsys, "run", "alice", "--set", "rounds=1")
    process = subprocess.Popen(
        [sys.executable, "-m", "p2pfl.node", "status", "alice", "--watch", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert [json.loads(line)["state"] for line in lines] == ["finished", "finished"]
    assert (process.returncode, err) == (130, "interrupted\n")


def test_status_watch_waits_for_node_that_never_ran(capsys, monkeypatch):
    init(capsys)
    waits = iter([None, None])

    def sleep(seconds):
        if next(waits, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr("p2pfl.node.cli.main.time.sleep", sleep)
    assert node(capsys, "status", "alice", "--watch") == (
        130,
        "",
        "alice: this node has never run; run it with p2pfl-node run alice\ninterrupted\n",
    )


@pytest.mark.slow
def test_json_log_has_structured_events(capsys):
    init(capsys)
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=1", "--log-format", "json")
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert {(event["node"], event["level"]) for event in events} == {("alice", "info")}
    assert events[0]["folder"] == str(Path("alice").resolve())
    (finished,) = [event for event in events if event["kind"] == "round"]
    assert finished["round"] == 1
    assert finished["event"].startswith("round 1 of 1, validation accuracy ")
    assert 0 <= finished["validation"] <= 1
    assert finished["metric"] == "accuracy"
    assert events[-1]["event"].startswith("finished; the model of round")
    assert (events[-1]["kind"], events[-1]["best_round"]) == ("finished", 1)
    assert not logging.getLogger("p2pfl.node").isEnabledFor(logging.INFO)  # the level is restored


@pytest.mark.slow
def test_text_log_has_times_levels_and_messages(capsys):
    init(capsys)
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=1")
    assert code == 0
    start, first, last = out.splitlines()
    assert messages(start).startswith("node alice, folder ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d info    round 1 of 1, validation .*", first)
    assert messages(last).startswith("finished; the model of round")


@pytest.mark.slow
@pytest.mark.parametrize(("option", "levels"), [("-v", {"debug", "info"}), ("--verbose", {"debug", "info"}), ("-q", set())])
def test_log_level_follows_options(capsys, option, levels):
    init(capsys)
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=1", "--log-format", "json", option)
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, {event["level"] for event in events}) == (0, levels)
    assert not levels or {"published", "merged", "round", "finished"} <= {event["kind"] for event in events}


def test_run_listens_on_port_of_command_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        init(capsys, "alice", 0, "--listen", "127.0.0.1:0")
        node(capsys, "federation", "create", "alice", "--backup", "backup.pem")
        for option in (("--port", port), ("--listen", f"127.0.0.1:{port}")):
            code, _, err = node(capsys, "run", "alice", *option)
            assert code == 2
            assert err.startswith(f"cannot listen on 127.0.0.1:{port}: address already in use; choose another port")


def test_error_names_the_file_if_the_file_is_wrong(capsys):
    init(capsys)
    path = Path("alice", CONFIG)
    path.write_text(path.read_text().replace("rounds = 10", "rounds = -3"))
    code, _, err = node(capsys, "run", "alice", "--set", "members=3")
    assert (code, err) == (2, "alice/node.toml: rounds must be 0 or more, got -3\n")
    code, _, err = node(capsys, "run", "alice", "--set", "rounds=-4")
    assert (code, err) == (2, "command line: rounds must be 0 or more, got -4\n")
    code, _, err = node(
        capsys, "federation", "create", "alice", "--backup", "x", "--set", "rounds=2", "--set", "task.lr=nan"
    )
    assert (code, err) == (2, "command line: task: lr must be 0 or more, and finite, got nan\n")


@pytest.mark.parametrize(
    "arguments",
    [("init", "alice", "--port=99999"), ("run", "alice", "--port=-4"), ("run", "alice", "--status-port=high")],
)
def test_port_out_of_range_is_a_usage_error(capsys, arguments):
    option, _, value = arguments[2].partition("=")
    message = f"argument {option}: a port is a number from 0 to 65535, got '{value}'"
    assert message in usage_error(capsys, node_cli.main, *arguments)


def test_seed_names_one_seed(capsys):
    for option in ("--seed=3", "--seeds=3"):
        assert sim_cli.parser().parse_args(["run", "digits-gossip", option]).seeds == "3"
    err = usage_error(capsys, sim_cli.main, "run", "digits-gossip", "--seed", "0:3")
    assert "argument --seed: a seed is a whole number of 0 or more, got '0:3'; for several use --seeds" in err
    err = usage_error(capsys, sim_cli.main, "run", "digits-gossip", "--seed", "3", "--seeds", "0:3")
    assert "argument --seeds: not allowed with argument --seed" in err


@needs_torch
def test_sim_error_names_the_file_if_the_file_is_wrong(capsys):
    Path("study.toml").write_text("nodez = 3")
    code, _, err = sim(capsys, "run", "study.toml", "--set", "rounds=-1")
    assert (code, err) == (2, "study: unknown key 'nodez'; did you mean 'nodes'?\n")


@needs_torch
def test_quiet_run_prints_its_table_only(capsys):
    Path("study.toml").write_text('nodes = 2\nrounds = 1\ntask = { name = "concept-shift" }\npolicy = { name = "local" }')
    code, out, err = sim(capsys, "run", "study.toml", "--engine", "local", "-q", "--no-report")
    assert (code, err) == (0, "")
    assert "test mse, mean over nodes" in out


def test_set_without_equals_sign_is_a_usage_error(capsys):
    for main, *command in ((node_cli.main, "run", "alice"), (sim_cli.main, "run", "digits-gossip")):
        assert "argument --set: 'rounds' is not of the form KEY=VALUE" in usage_error(
            capsys, main, *command, "--set", "rounds"
        )


@pytest.mark.slow
def test_node_run_with_json_prints_no_log(capsys):
    init(capsys)
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=1", "--json")
    assert code == 0
    assert json.loads(out)["state"] == "finished"


@pytest.mark.slow
def test_run_of_member_refuses_changes_of_agreed_settings(capsys):
    init(capsys)
    node(capsys, "federation", "create", "alice", "--backup", "backup.pem", "--set", "rounds=3", "--edge", "alice-bob")
    code, out, _ = node(capsys, "federation", "show", "alice")
    assert code == 0
    assert "  rounds: 3\n" in out
    assert "  edges: alice-bob\n" in out
    assert "  adaptive: yes\n" in out
    assert "True" not in out
    for change in ("rounds=4", "task.labels=3", "policy.name=random", "seed=1"):
        code, _, err = node(capsys, "run", "alice", "--set", change)
        key = change.partition("=")[0].partition(".")[0]
        assert (code, err) == (2, f"--set {key}: this setting belongs to the federation home, and a node cannot change it\n")
    code, _, err = node(capsys, "federation", "create", "alice", "--backup", "other.pem")
    assert (code, err.rpartition(": ")[2]) == (2, "p2pfl-node federation leave alice\n")
    for edge in ("alice", "alice-alice", "alice-bob-carol"):
        init(capsys, f"node-{edge}")
        code, _, err = node(capsys, "federation", "create", f"node-{edge}", "--backup", "x.pem", "--edge", edge)
        assert code == 2
        assert "an edge must be a pair of two names" in err


def test_federation_create_reads_edges_from_file(capsys):
    init(capsys)
    create = ("federation", "create", "alice", "--backup", "backup.pem", "--edges", "edges.txt")
    for content, message in (
        (None, "edges.txt: No such file or directory"),
        (b"# none", "edges.txt has no pair of names; write two names on each line, such as alice bob"),
        (b"alice bob 2", "edges.txt: line 1: an edge must be a pair of two names such as alice-bob, got 'alice-bob-2'"),
        (
            b"# two\nalice alice",
            "edges.txt: line 2: an edge must be a pair of two names such as alice-bob, got 'alice-alice'",
        ),
        (b"source,target\nalice,bob\n", "edges.txt: line 1: 'source,target' names columns; remove the line"),
        (
            b'"alice","bob"\n',
            "edges.txt: line 1: name '\"alice\"' must have at most 64 letters, digits, '.', '_' and '-', and"
            " begin with a letter or digit",
        ),
        (
            b"alice bob {}\n",
            "edges.txt: line 1: name '{}' must have at most 64 letters, digits, '.', '_' and '-', and begin"
            " with a letter or digit",
        ),
        (b"\xff", "edges.txt is not UTF-8 text"),
        (b"#" * (2**20 + 1), "edges.txt is too large: it has more than 1,048,576 bytes"),
    ):
        if content is not None:
            Path("edges.txt").write_bytes(content)
        assert node(capsys, *create)[::2] == (2, f"{message}\n")
    Path("edges.txt").write_text("\ufeffalice bob  # neighbours\n\nbob, carol\n")
    assert node(capsys, *create, "--edge", "alice-dora")[0] == 0
    assert "  edges: alice-dora, alice-bob, bob-carol\n" in node(capsys, "federation", "show", "alice")[1]


def test_run_learns_from_own_csv_file(capsys, tmp_path):
    rows = "\n".join(f"{k % 3 + 0.1 * (k % 7)},{k % 5},{k % 3}" for k in range(90))
    (tmp_path / "mine.csv").write_text(f"a,b,label\n{rows}\n")
    init(capsys, "alice", 0, "--data", "mine.csv")
    text = Path("alice", CONFIG).read_text()
    assert tomllib.loads(text)["data"] == str(tmp_path / "mine.csv")  # an absolute path
    Path("alice", CONFIG).write_text(text.replace("[task]", "[task]\nclasses = 3\nfeatures = 2", 1))
    code, out, _ = node(capsys, "run", "alice", "--set", "rounds=2", "--set", "policy.name=local")
    assert (code, "round 2 of 2" in out) == (0, True)
    code, _, err = node(capsys, "run", "alice", "--set", "policy.name=local", "--data", "other.csv")
    assert code == 2
    assert "other.csv" in err
