"""Worker processes: for whole runs, and for the nodes of one run if these are trained one by one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.learning.batched_learner import SequentialLearner
from p2pfl.queries import Evaluate, Loss, Mean, NodeQuery, Train
from p2pfl.sim.execution.run_order import Listener
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.simulation.sharding import balance_by_samples
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.sim.simulation.workers import WorkerLostError
from tests.support.depth import spread
from tests.support.processes import PATIENCE

TASKS = '''
import os, signal, sys
from p2pfl.task import Task, make_task
from p2pfl.learning.torch_learner import TorchLearner
from p2pfl.learning.torch_task import classification
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
import torch
from torch import nn


def network():
    return nn.Sequential(nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(2304, 3))


def images(part, seed):
    """Other numbers of samples at each node."""
    rng = RandomStreams(seed, f"images {part.index}").generator(0, "data")

    def some(n):
        return rng.standard_normal((n, 1, 28, 28), "f4"), rng.integers(0, 3, n)

    return classification(network, some(10 + 7 * part.index), some(4), some(5), batch_size=8)


class Careless(Task):
    """A task whose node at a place kills the process that trains it, or without a place says that it trains."""

    def __init__(self, part, seed, where=None):
        task = make_task("concept-shift", {}, part, seed)
        for name in ("layout", "n_samples", "metric", "higher_is_better", "public_info", "initial"):
            setattr(self, name, getattr(task, name))
        self.task, self.learners = task, Telling if where is None else Killing if part.index == where else None

    def learner(self, draws, device):
        learner = self.task.learner(draws, device)
        return self.learners(learner) if self.learners else learner


class Telling:
    def __init__(self, learner):
        self.learner = learner

    def compute(self, query):
        return self.train(query) if isinstance(query, Train) else self.learner.compute(query)

    def train(self, query):
        if query.round == 1:
            print("trains in", os.getpid(), file=sys.stderr, flush=True)
        return self.learner.compute(query)


class Particular(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class Bound(Exception):
    def __init__(self, *words):
        super().__init__(" and ".join(words))
        self.bound = lambda: words


class Failing(Telling):
    def train(self, query):
        raise {"Particular": Particular, "Bound": Bound}[self.kind]("seven", "eight")  # in training


def failing(part, seed, kind):
    task = Careless(part, seed)
    task.learners = type("Kind", (Failing,), {"kind": kind})
    return task


class Killing(Telling):
    def train(self, query):
        os.kill(os.getpid(), signal.SIGKILL)


def diverging(part, seed, where):
    """Nodes from a place on diverge."""
    return make_task("concept-shift", {"lr": 1e9 if part.index >= where else 0.003}, part, seed)


def elsewhere(part, seed):
    """A task that cannot be made in a process that only trains."""
    import multiprocessing
    if multiprocessing.parent_process() is not None:
        from p2pfl.errors import ConfigurationError
        raise ConfigurationError("no data here")
    return make_task("concept-shift", {}, part, seed)
'''


@pytest.fixture(autouse=True)
def own_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own.py").write_text(TASKS)
    yield
    sys.modules.pop("own", None)


def scenario(task, nodes=5, rounds=2, options=(), **changes):
    task = {"name": f"own:{task}", **dict(options)}
    table = {"nodes": nodes, "rounds": rounds, "task": task, "trainer": "one-by-one", **changes}
    return resolve(table, [], "study", ".")


def left_of(result):
    summary = {key: value for key, value in result.summary.items() if key != "time"}
    tables = [
        (name, column.dtype.str, column.tobytes())
        for table in (result.rounds, result.edges)
        for name, column in table.items()
    ]
    return summary, tables, result.notes


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"name": "dac", "neighbours": 2}},
        {"policy": {"name": "random", "neighbours": 2}, "mode": "asynchronous", "compute": {"slowdown": [1, 3]}},
        {"policy": {"name": "random", "neighbours": 2}, "fidelity": "wire"},
    ],
)
def test_run_in_processes_equals_local_bit_for_bit(changes):
    file = scenario("images", **changes)
    here, shared = run_all(file, "local"), run_all(file, "process", workers=3)
    assert [left_of(result) for result in here] == [left_of(result) for result in shared]


@pytest.mark.slow
def test_fewer_runs_than_workers_are_divided_among_them():
    file = scenario("images", nodes=3, rounds=1, seeds=[4, 5])
    here, shared = run_all(file, "local"), run_all(file, "process", workers=5)
    assert [left_of(result) for result in here] == [left_of(result) for result in shared]


@pytest.mark.slow
def test_every_query_in_processes_equals_one_process():
    job = scenario("images").runs[0]
    simulation = Simulation(job, workers=3)
    assert simulation.processes == 3
    nodes = zip(simulation.plan.tasks, simulation.nodes.values(), strict=True)
    one = SequentialLearner([task.learner(node.me.streams, "cpu") for task, node in nodes])
    model = simulation.plan.initial
    models = [model, model + np.float32(0.01)]
    try:
        for jobs in (
            [NodeQuery(k, Train(models[1], 3, 2, (0.1, model), "other")) for k in (4, 2, 0)],
            [NodeQuery(k, Mean(models, [0.25, 0.75])) for k in (0, 3)],
            [NodeQuery(k, Loss(models, split)) for k in range(5) for split in ("train", "validation")],
            [NodeQuery(k, Evaluate(models, ("validation", "test"))) for k in (1, 3)],
        ):
            for _ in range(2):
                assert repr(simulation.backend.compute(jobs)) == repr(one.compute(jobs))
                results = zip(simulation.backend.compute(jobs), one.compute(jobs), strict=True)
                assert all(np.array_equal(mine, theirs) for mine, theirs in results)
    finally:
        simulation.backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", [0, 1])  # node 0 is in the process of the run
def test_killed_worker_process_ends_the_run(where):
    file = scenario("Careless", nodes=4, options={"where": where})
    with pytest.raises(WorkerLostError, match="a worker process ended with code -9"):
        run_all(file, "process", workers=2)


@pytest.mark.slow
def test_error_of_first_node_is_raised_from_any_process():
    for where in (0, 1):
        file = scenario("diverging", nodes=4, options={"where": where})
        with pytest.raises(DivergenceError, match=f"the training of node-{where} diverged in round 1"):
            run_all(file, "process", workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "process"])
def test_other_runs_are_finished_when_some_diverge(engine):
    rows = [{"name": name, "task": {"where": where}} for name, where in [("a", 0), ("b", 9), ("c", 1), ("d", 9)]]
    table = {"nodes": 3, "rounds": 2, "task": {"name": "own:diverging", "where": 9}, "trainer": "one-by-one", "run": rows}
    finished = {}
    stopped = []
    listener = Listener(finished=finished.__setitem__, diverged=stopped.append)
    with pytest.raises(DivergenceError) as caught:
        run_all(resolve(table, [], "study", "."), engine, workers=2, listener=listener, finish_others=True)
    assert {result.summary["name"] for result in finished.values()} == {"b", "d"}
    assert sorted(stopped) == [0, 2]
    assert "diverged in round 1; a lower learning rate may help" in str(caught.value)
    assert caught.value.run in ("run 'a', seed 0, and 1 other run", "run 'c', seed 0, and 1 other run")


@pytest.mark.slow
def test_error_at_start_of_worker_is_raised():
    with pytest.raises(ConfigurationError, match="no data here"):
        Simulation(scenario("elsewhere").runs[0], workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Particular", "Bound"])
def test_unpicklable_worker_error_keeps_its_message(kind):
    file = scenario("failing", nodes=4, options={"kind": kind})
    with pytest.raises(RuntimeError, match=f"^{kind}: seven and eight") as caught:
        run_all(file, "process", workers=1)
    assert "in training" in "".join(caught.value.__notes__)  # the traceback of the worker


@pytest.mark.slow
def test_stacked_nodes_stay_in_one_process_with_a_note():
    changes = ["form=smoke"]
    file = load("dac-synthetic", changes).only("l2/fedavg")
    (divided,) = run_all(file, "process", workers=2)
    (here,) = run_all(file, "local")
    assert here.notes == []
    assert [note[:33] for note in divided.notes] == ["one process trained all nodes of "]
    assert left_of(divided)[:2] == left_of(here)[:2]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 8))
def test_balance_by_samples_divides_nodes_evenly(samples, processes):
    processes = min(processes, len(samples))
    shares = balance_by_samples(samples, processes)
    assert sorted(node for share in shares for node in share) == list(range(len(samples)))
    assert all(share == sorted(share) and share for share in shares)
    loads = [sum(samples[node] for node in share) for share in shares]
    assert max(loads) - min(loads) <= max(samples)
    assert loads[0] == min(loads)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("end", spread([signal.SIGKILL, signal.SIGINT], 2))
def test_no_process_remains_after_divided_run_is_killed(tmp_path, end):
    Path("long.toml").write_text(
        'nodes = 2\nrounds = 100000\ntask = { name = "own:Careless" }\npolicy = { name = "local" }\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "p2pfl.sim", "run", "long.toml", "--workers", "2"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert len({process.stderr.readline() for _ in range(2)}) == 2
    process.send_signal(end)
    process.communicate(timeout=PATIENCE)  # returns when all processes have ended
    assert process.returncode == (-9 if end == signal.SIGKILL else 130)


@pytest.mark.slow
def test_modules_of_the_current_folder_do_not_reach_workers(tmp_path):
    for name in ("queue.py", "random.py"):  # torch imports modules of these names
        (tmp_path / name).write_text("raise SystemExit('the module of the user was imported')\n")
    command = [sys.executable, "-P", "-m", "p2pfl.sim", "run", "digits-gossip", "--set", "form=smoke", "--only", "random"]
    options = ["--engine", "process", "--workers", "2", "--no-report", "--out", "here"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "summary.json").exists()
