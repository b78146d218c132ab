"""The engine `ray` on clusters of several nodes on this machine, which Ray provides for tests.

The clusters need some seconds to start, so there are few tests. They skip where Ray is not installed; continuous
integration installs it in a job of its own.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from p2pfl.errors import ConfigurationError, RunError
from p2pfl.sim.cli.main import main
from p2pfl.sim.execution.cluster import ClusterOptions, connect
from p2pfl.sim.execution.run_order import Listener
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.scenario.scenario import resolve
from tests.sim.execution.test_resume import left_behind
from tests.sim.execution.test_runner import left_of
from tests.support.ports import free_ports
from tests.support.processes import PATIENCE

ROOT = Path(__file__).parents[3]
TASKS = """
import os, signal
from pathlib import Path
from p2pfl.queries import Train
from p2pfl.task import Task, make_task

FOLDER = Path(__file__).parent


class Watched(Task):
    def __init__(self, part, seed, kind):
        task = make_task("concept-shift", {}, part, seed)
        for name in ("layout", "n_samples", "metric", "higher_is_better", "public_info", "initial"):
            setattr(self, name, getattr(task, name))
        self.task, self.kind = task, kind

    def learner(self, draws, device):
        return self.kind(self.task.learner(draws, device))


class Training:
    def __init__(self, learner):
        self.learner = learner

    def compute(self, query):
        if isinstance(query, Train):
            self.train(query)
        return self.learner.compute(query)


class Noting(Training):
    def train(self, query):
        (FOLDER / f"trained-by-{os.getpid()}").touch()


class Deadly(Training):
    '''Once, the first of them in round 2 on a machine other than the head kills its machine.'''

    def train(self, query):
        import ray
        if query.round < 2 or not ray.is_initialized():
            return
        if ray.get_runtime_context().get_node_id() == (FOLDER / "head").read_text():
            return
        try:
            (FOLDER / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getppid(), signal.SIGKILL)  # the machine's raylet
        os.kill(os.getpid(), signal.SIGKILL)


class Fatal(Training):
    def train(self, query):
        os.kill(os.getpid(), signal.SIGKILL)


def noting(part, seed):
    return Watched(part, seed, Noting)


def deadly(part, seed):
    return Watched(part, seed, Deadly)


def fatal(part, seed):
    return Watched(part, seed, Fatal)
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return a folder with modules of the user."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "own_ray.py").write_text(TASKS)
    before = list(sys.path)
    yield folder
    sys.path[:] = before
    sys.modules.pop("own_ray", None)


def scenario(study, task, nodes=4, rounds=3, **changes):
    table = {"nodes": nodes, "rounds": rounds, "task": {"name": task}, "policy": {"name": "random", "neighbours": 2}}
    return resolve({**table, **changes}, [], "study", str(study))


@pytest.fixture
def cluster_of():
    """Return a function that starts a cluster with a head of these processors, and ends it after the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra ray")
        started = []

        def start(processors):
            args = {"num_cpus": processors, "include_dashboard": False, "object_store_memory": 2**27}
            started.append(cluster_utils.Cluster(initialize_head=True, head_node_args=args))
            return started[0]

        yield start
        for cluster in started:
            cluster.shutdown()


class Counting:
    """Listener that counts node-rounds and finished jobs."""

    def __init__(self):
        self.node_rounds, self.jobs = 0, []

    def listener(self):
        return Listener(progress=self.count, finished=lambda number, result: self.jobs.append(number))

    def count(self, node_rounds):
        self.node_rounds += node_rounds


@pytest.mark.slow
def test_grid_equals_local_though_a_machine_dies(study, cluster_of):
    cluster = cluster_of(1)
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=2**27)
    (study / "head").write_text(cluster.head_node.node_id)
    file = scenario(study, "own_ray:deadly", seeds=[0, 1, 2, 3, 4], trainer="one-by-one")
    here, counts = run_all(file, "local"), Counting()
    there = run_all(file, "ray", listener=counts.listener(), cluster=ClusterOptions(cluster.address))
    assert (study / "killed").exists()
    notes = [note for result in there for note in result.notes]
    for result in there:
        result.notes.clear()
    assert [left_of(result) for result in there] == [left_of(result) for result in here]
    assert sorted(counts.jobs) == [0, 1, 2, 3, 4]
    assert counts.node_rounds == 5 * 4 * 3
    (note,) = notes
    assert note.endswith("started again once, because its worker was lost")

    # One large run is divided between the two machines that are left.
    file = scenario(study, "own_ray:noting", trainer="one-by-one")
    (alone,) = run_all(file, "local")
    for path in study.glob("trained-by-*"):
        path.unlink()
    (divided,) = run_all(file, "ray", cluster=ClusterOptions(cluster.address))
    assert len(list(study.glob("trained-by-*"))) == 2
    divided.notes.clear()
    assert left_of(divided) == left_of(alone)

    # A run that ends its workers itself is not repeated without end.
    file = scenario(study, "own_ray:fatal", seeds=[7], trainer="one-by-one")
    with pytest.raises(RunError, match="run 'study', seed 7: its worker was lost 3 times"):
        run_all(file, "ray", workers=1, cluster=ClusterOptions(cluster.address))


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch has one instruction set here")
def test_machine_with_different_bits_is_used_on_request_only(study, cluster_of):
    cluster = cluster_of(0)
    cluster.add_node(num_cpus=1, object_store_memory=2**27, env_vars={"ATEN_CPU_CAPABILITY": "default"})
    file, counts = scenario(study, "concept-shift"), Counting()
    with pytest.raises(RunError, match=r"DEFAULT\) computes other last bits than .* --allow-different-bits"):
        run_all(file, "ray", listener=counts.listener(), cluster=ClusterOptions(cluster.address))
    assert (counts.node_rounds, counts.jobs) == (0, [])
    (result,) = run_all(file, "ray", cluster=ClusterOptions(cluster.address, allow_different_bits=True))
    (note,) = result.notes
    assert "DEFAULT) computed runs whose last bits differ from those of" in note


def command(*options):
    """Start a command in a group of its own, so that a signal reaches all its processes, as from a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "p2pfl.sim", "run", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_interrupted_run_continues_on_a_local_ray(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs the extra ray")
    psutil = pytest.importorskip("psutil")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    scenario = ("dac-synthetic", "--set", "form=smoke", "--set", "rounds=12", "--seeds", "0:2")
    assert main(["run", *scenario, "--no-report", "--engine", "local", "--out", "whole"]) == 0
    options = (*scenario, "--out", "here")
    for end in (signal.SIGINT, signal.SIGTERM, None):
        process = command(*options, "--engine", "ray", "--workers", "1", "--no-report")
        if end is not None:
            assert ", seed " in process.stderr.readline()
            started = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, end)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == (0 if end is None else 130), err
        assert ("continue with: p2pfl-sim run --resume here" in err) == (end is not None)
        _, alive = psutil.wait_procs(started, timeout=PATIENCE)
        assert alive == []
        options = ("--resume", "here")
    assert left_behind("here") == left_behind("whole")


def test_options_for_other_engines_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, line in (
        (["--ray-address", "auto"], "--ray-address needs --engine ray"),
        (["--allow-different-bits", "--engine", "local"], "--allow-different-bits needs --engine ray or --resume"),
    ):
        assert main(["run", "dac-synthetic", *options]) == 2
        assert capsys.readouterr().err == line + "\n"
    sweep = ["sweep", "dac-synthetic", "--vary", "policy.tau=1,10", "--engine", "ray", "--dry-run"]
    assert main(sweep) == 2
    assert capsys.readouterr().err == "--dry-run measures this machine, not a cluster; leave out --engine ray\n"


@pytest.mark.slow
def test_missing_ray_and_its_client_give_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    run = ["run", "dac-synthetic", "--set", "form=smoke", "--engine", "ray", "--out", "here"]
    assert main(run) == 2
    assert capsys.readouterr().err == "--engine ray needs Ray: pip install 'p2pfl-node[sim,ray]'\n"
    assert main([*run, "--ray-address", "ray://head:10001"]) == 2
    assert capsys.readouterr().err.startswith("the engine ray does not support Ray Client (ray://head:10001); ")
    assert not Path("here").exists()


def test_wrong_address_gives_one_line_at_once():
    (closed,) = free_ports(1)
    with (
        pytest.raises(RunError, match=f"cannot use the Ray cluster 127.0.0.1:{closed}: "),
        connect(f"127.0.0.1:{closed}", None),
    ):
        pass
    with pytest.raises(ConfigurationError, match="host:port or auto, got 'head'"), connect("head", None):
        pass
