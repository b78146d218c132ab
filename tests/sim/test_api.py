"""Simulations from Python: event loops, objects in scenarios, progress, folders and models."""

import asyncio
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler

import networkx as nx
import numpy as np
import pytest
import torch

import p2pfl
from p2pfl._util.registry import ObjectName
from p2pfl.errors import ConfigurationError
from p2pfl.policies.random import Random
from p2pfl.queries import Evaluate
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.api import compute_in_thread
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.scenario.sweep import parse, sweep
from p2pfl.task import Part, make_task

SMALL = {"nodes": 4, "rounds": 2, "task": "concept-shift", "policy": "random"}


class Own(Random):
    """Policy that fetches from few peers."""

    def __init__(self, few=1):
        super().__init__(neighbours=few)


def own_task(part, seed, *, samples: int = 20):
    return make_task("concept-shift", {"samples": samples}, part, seed)


@pytest.fixture(scope="module")
def plain():
    return p2pfl.simulate(SMALL, seeds=2)


def traces(results):
    return [result.summary["trace"] for result in results]


async def in_loop(*args, **options):
    return p2pfl.simulate(*args, **options)


# Event loops


@pytest.mark.slow
def test_simulate_in_event_loop_gives_equal_results(plain):
    torch.set_num_threads(2)
    try:
        found = asyncio.run(in_loop(SMALL, seeds=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert traces(found) == traces(plain)
    assert (found[1].rounds["merged_test_loss"] == plain[1].rounds["merged_test_loss"]).all()


@pytest.mark.slow
def test_simulate_in_event_loop_raises_errors_of_the_run():
    with pytest.raises(ConfigurationError, match=r"unknown key 'policy\.few'"):
        asyncio.run(in_loop(SMALL | {"policy": {"name": "random", "few": 1}}))


@pytest.mark.slow
def test_progress_function_is_called_in_the_thread_of_the_caller():
    calls = []

    def count(done, total):
        calls.append((done, total, threading.current_thread()))

    asyncio.run(in_loop(SMALL, seeds=2, progress=count))
    assert calls == [(done, 16, threading.main_thread()) for done in (4, 8, 12, 16)]


@pytest.mark.slow
def test_error_of_progress_function_ends_the_run():
    def fail(done, total):
        raise ZeroDivisionError

    before = threading.active_count()  # other tests may have left some
    for run in (p2pfl.simulate, lambda *args, **options: asyncio.run(in_loop(*args, **options))):
        with pytest.raises(ZeroDivisionError):
            run(SMALL, seeds=2, progress=fail)
    assert threading.active_count() <= before


def test_compute_in_thread_interrupts_the_work_on_ctrl_c():
    ended = []

    def work(post):
        def interrupt():
            raise KeyboardInterrupt

        post(interrupt)
        try:
            while True:
                threading.Event().wait(0.001)
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        compute_in_thread(work)
    assert ended


# Names, objects and seeds


def test_names_stand_for_tables(plain):
    tables = SMALL | {"task": {"name": "concept-shift"}, "policy": {"name": "random"}}
    assert resolve(tables, [], "study", ".").runs == resolve(SMALL, [], "study", ".").runs
    short = SMALL | {
        "topology": "ring",
        "codec": "int8",
        "run": [{"name": "a", "policy": "local"}, {"name": "b", "rounds": 3}],
    }
    first, second = resolve(short, ["policy=dac"], "study", ".").runs
    assert (first.policy, second.policy, first.topology, first.codec) == (
        {"name": "dac"},
        {"name": "dac"},
        {"name": "ring"},
        {"name": "int8"},
    )


def test_names_stand_for_tables_in_sweeps():
    base = {key: value for key, value in SMALL.items() if key != "policy"}
    swept = sweep(resolve(SMALL, [], "study", "."), parse(["policy=local,dac", "policy.tau=2,3"]))
    each = resolve(base | {"each": {"policy": ["local", "dac"]}}, [], "study", ".")
    for found in (swept, resolve(swept.to_toml(), [], "study", ".")):
        assert [run.policy for run in found.runs] == [{"name": "local"}, *({"name": "dac", "tau": tau} for tau in (2, 3))]
    assert [run.policy for run in each.runs] == [{"name": "local"}, {"name": "dac"}]


def test_importable_objects_become_names():
    (run,) = resolve(SMALL | {"policy": {"name": Own, "few": 2}, "task": own_task}, [], "study", ".").runs
    assert run.policy == {"name": f"{__name__}:Own", "few": 2}
    assert run.task == {"name": f"{__name__}:own_task"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [Own(), lambda: Own(1), {"name": lambda few: Own(few), "few": 1}, Own, {"name": Own, "few": 1}],
    ids=["object", "function", "function with options", "class", "class with options"],
)
def test_policy_may_be_an_object(policy, plain):
    expected = p2pfl.simulate(SMALL | {"policy": {"name": "random", "neighbours": 1}})
    found = p2pfl.simulate(SMALL | {"policy": policy})
    assert traces(found) == traces(expected)


@pytest.mark.slow
def test_policy_object_is_copied_for_each_node():
    class Counting(Random):
        rounds = ()

        async def round(self, me, peers):
            self.rounds = (*self.rounds, me.round)
            assert self.rounds == tuple(range(1, me.round + 1))
            return await super().round(me, peers)

    policy = Counting()
    p2pfl.simulate(SMALL | {"policy": policy})
    assert policy.rounds == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "list"])
def test_task_may_be_an_object(kind):
    expected = p2pfl.simulate(SMALL | {"task": {"name": "concept-shift", "samples": 20}})
    tables = {key: value for key, value in SMALL.items() if key != "nodes"}
    if kind == "function":
        found = p2pfl.simulate(SMALL | {"task": lambda part, seed: own_task(part, seed)})
    else:
        found = p2pfl.simulate(tables | {"task": [own_task(Part(k, 4), 0) for k in range(4)]})
    assert traces(found) == traces(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": own_task(Part(0, 1), 0)}, "task is one object; give a list with a task for each node"),
        ({"task": [own_task(Part(0, 1), 0)] * 3}, "task has 3 objects for 4 nodes; give one for each node"),
        ({"task": lambda part: None}, "it does not take `part` and `seed`"),
        ({"policy": object()}, "policy must be a table such as"),
        ({"policy": {"name": Own(), "few": 1}}, "unknown key 'policy.few'"),
        ({"policy": dict}, "dict"),
    ],
)
def test_unusable_object_reports_one_line(change, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        p2pfl.simulate(SMALL | change)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_written_scenario_with_object_cannot_be_run(tmp_path):
    p2pfl.simulate(SMALL | {"policy": lambda: Own(1)}, out=tmp_path / "out")
    with pytest.raises(ConfigurationError, match=r"policy 'object:.*<lambda>' was an object of a Python program"):
        load(str(tmp_path / "out" / "scenario.toml"))


@pytest.mark.slow
def test_seeds_may_be_a_number(plain):
    assert [result.summary["seed"] for result in plain] == [0, 1]
    assert traces(p2pfl.simulate(SMALL, seeds=np.int64(2))) == traces(p2pfl.simulate(SMALL, seeds=np.arange(2)))


@pytest.mark.parametrize("seeds", [0, -1, [], "3", 1.5])
def test_invalid_seeds_report_one_line(seeds):
    with pytest.raises(ConfigurationError, match="seeds must be a number of 1 or more, or a list of whole numbers, got"):
        p2pfl.simulate(SMALL, seeds=seeds)


# Workers


@pytest.mark.slow
def test_workers_give_equal_results_for_objects(plain):
    graph = nx.cycle_graph(4)
    objects = SMALL | {"policy": Own(), "task": lambda part, seed: own_task(part, seed)}
    here = p2pfl.simulate(objects, seeds=2, graph=graph, models=True)
    there = asyncio.run(in_loop(objects, seeds=2, graph=graph, models=True, workers=2))
    assert traces(here) == traces(there)
    assert (here[1].models[3]["weight"] == there[1].models[3]["weight"]).all()


SCRIPT = """
import p2pfl
from p2pfl.policies.random import Random

class Own(Random): ...

print(p2pfl.simulate({"nodes": 3, "rounds": 1, "task": "concept-shift", "policy": Own}, seeds=2, workers=2))
"""


@pytest.mark.slow
def test_script_without_main_guard_uses_workers(tmp_path):
    (tmp_path / "study.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "study.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout.split()[:3], done.stderr) == (["run", "test", "mse"], "")


def test_object_that_cannot_be_copied_names_the_remedy():
    lock = threading.Lock()
    name = ObjectName("locked", lambda: lock)
    with pytest.raises(ConfigurationError, match=r"locked cannot be copied to worker processes \(TypeError: .*leave out"):
        ForkingPickler.dumps(name)


def test_object_for_workers_without_cloudpickle_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ConfigurationError, match=r"need cloudpickle for own: pip install 'p2pfl-node\[notebook\]'"):
        ForkingPickler.dumps(ObjectName("own", Own))


def test_invalid_number_of_workers_is_refused():
    with pytest.raises(ConfigurationError, match="workers must be 1 or more, got 0"):
        p2pfl.simulate(SMALL, workers=0)


# Folders and models


@pytest.mark.slow
def test_simulate_writes_and_load_reads_the_folder(tmp_path):
    made = p2pfl.simulate(SMALL, seeds=2, out=tmp_path / "out", report=True, models=True)
    read = p2pfl.load(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").exists()
    assert repr(read) == repr(made) == "Results('scenario': 1 run, 2 seeds)"
    assert read.summary["table"] == made.summary["table"]
    assert traces(read) == traces(made)
    for one, other in zip(made, read, strict=True):
        for table in ("rounds", "edges"):
            mine, theirs = getattr(one, table), getattr(other, table)
            assert list(mine) == list(theirs)
            assert all(np.array_equal(mine[name], theirs[name], equal_nan=True) for name in mine)
        assert all((one.models[k][name] == other.models[k][name]).all() for k in range(4) for name in ("weight", "bias"))
    assert traces(p2pfl.simulate(tmp_path / "out" / "scenario.toml")) == traces(made)


@pytest.mark.slow
def test_simulate_returns_results_if_folder_becomes_unwritable(tmp_path):
    def block(done, total):
        (tmp_path / "out" / "rounds.parquet").mkdir(exist_ok=True)

    with pytest.warns(UserWarning, match=r"cannot write .*; write the returned results with to_dir"):
        made = p2pfl.simulate(SMALL, out=tmp_path / "out", progress=block)
    made.to_dir(tmp_path / "other")
    assert traces(p2pfl.load(tmp_path / "other")) == traces(made)


@pytest.mark.slow
def test_models_are_those_of_the_results():
    (found,) = p2pfl.simulate(SMALL, models=True)
    task = make_task("concept-shift", {}, Part(2, 4), 0)
    learner = task.learner(RandomStreams(0, "node-2"))
    (figures,) = learner.compute(Evaluate([task.layout.flatten(found.models[2])], ("test",)))
    assert figures["test_mse"] == pytest.approx(found.summary["test"]["nodes"][2])
    assert p2pfl.simulate(SMALL)[0].models is None


@pytest.mark.slow
def test_folder_of_given_graph_repeats_the_run(tmp_path):
    graph = nx.DiGraph([("hub", "x"), ("hub", "y"), ("y", "x")])
    graph.add_node("alone", latitude=1.0, longitude=2.0)
    graph.edges["hub", "x"]["weight"] = 2.0
    made = p2pfl.simulate(SMALL, graph=graph, out=tmp_path / "out")
    p2pfl.load(tmp_path / "out")[0].to_dir(tmp_path / "copy")
    for folder in ("out", "copy"):
        again = p2pfl.simulate(tmp_path / folder / "scenario.toml")
        assert traces(again) == traces(made)
        assert again[0].summary["labels"] == ["hub", "x", "y", "alone"]
        assert again[0].summary["topology_properties"] == made[0].summary["topology_properties"]


@pytest.mark.slow
def test_folder_with_a_run_is_refused_before_the_run(tmp_path, plain):
    plain[1].to_dir(tmp_path / "one")
    assert [result.summary["seed"] for result in p2pfl.load(tmp_path / "one")] == [1]
    with pytest.raises(ConfigurationError, match="one already holds a run; name another folder"):
        p2pfl.simulate({"task": "unknown"}, out=tmp_path / "one")


def test_report_needs_a_folder():
    with pytest.raises(ConfigurationError, match="report=True needs a folder: add out"):
        p2pfl.simulate(SMALL, report=True)


@pytest.mark.slow
def test_load_names_damaged_files(tmp_path, plain):
    plain.to_dir(tmp_path / "out")
    (tmp_path / "out" / "scenario.toml").write_text("nodes = [")
    with pytest.raises(ConfigurationError, match=r"out holds no complete run: scenario\.toml is missing or damaged"):
        p2pfl.load(tmp_path / "out")


def test_load_of_missing_folder_reports_one_line(tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist; name the folder of a finished run"):
        p2pfl.load(tmp_path / "nowhere")
