"""Memory estimate: a run that cannot fit is refused before it starts; one that fits is not."""

import json
import tracemalloc

import networkx as nx
import pytest
from torch import nn

import p2pfl
from p2pfl._util import machine
from p2pfl.errors import ConfigurationError
from p2pfl.learning.modules import count_values
from p2pfl.sim.cli import main as cli
from p2pfl.sim.execution import memory_estimate
from p2pfl.sim.execution import runner as engine
from p2pfl.sim.execution.memory_estimate import check_runs, need
from p2pfl.sim.scenario.scenario import load, resolve, shipped_scenarios
from p2pfl.sim.scenario.topology import edges_of
from p2pfl.topologies import BUILDERS

GIB = 2**30
SMALL = {"nodes": 4, "rounds": 1, "task": {"name": "concept-shift"}, "policy": {"name": "local"}}


@pytest.fixture
def free(monkeypatch):
    """Set the amount of free memory."""

    def set_free(amount):
        for module in (machine, memory_estimate, engine):
            monkeypatch.setattr(module, "free_memory", lambda: amount)

    set_free(8 * GIB)
    return set_free


def sim(capsys, *arguments):
    code = cli.main([*arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "digits-gossip", "--set", "nodes=1000000000"],
            "run 'local' needs at least 5,820.8 GiB of memory, most of",
        ),
        (["run", "digits-gossip", "--set", "rounds=10000000000"], "most of it for its rounds, but 8.0 GiB are free"),
        (
            ["run", "digits-gossip", "--set", "nodes=100000", "--set", "topology.name=complete"],
            "most of it for its edges, but 8.0 GiB are free; --ignore-memory (in Python: ignore_memory=True) starts",
        ),
        (
            ["run", "digits-gossip", "--set", "task.hidden=1000000000"],
            "run 'local': the task's model has 75,000,000,010 values",
        ),
        (
            ["run", "digits-gossip", "--only", "local", "--set", "task.hidden=1000000"],
            "run 'local', with models of 75,000,010 values, needs at least 55.9 GiB of memory, most of it for its models",
        ),
        (["sweep", "digits-gossip", "--vary", "nodes=10,1000000000"], "run 'local, nodes=1000000000' needs"),
        (["pareto", "mofld-dst", "--set", "nodes=1000000000"], "run 'federated' needs"),
        (["data", "check", "digits-gossip", "--set", "nodes=1000000000"], "run 'local' needs"),
        (["topology", "complete", "--nodes", "1000000000"], "a topology of 1,000,000,000 nodes needs"),
    ],
)
def test_scenario_larger_than_memory_is_refused_early(capsys, tmp_path, monkeypatch, free, arguments, message):
    monkeypatch.chdir(tmp_path)
    tracemalloc.start()
    try:
        code, out, err = sim(capsys, *arguments)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (code, out) == (2, "")
    *before, last = err.splitlines()
    assert message in last
    assert all(line.startswith("preparing: ") for line in before)
    assert peak < 2**27
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_simulate_refuses_scenario_larger_than_memory(free):
    with pytest.raises(ConfigurationError, match=r"run 'scenario' needs .* most of it for its edges"):
        p2pfl.simulate(SMALL | {"nodes": 10**9})
    with pytest.raises(ConfigurationError, match=r"the task's model has 75,000,000,010 values"):
        p2pfl.simulate(SMALL | {"task": {"name": "digits", "hidden": 10**9}})


@pytest.mark.slow
def test_ignore_memory_option_skips_the_check(capsys, tmp_path, free):
    free(GIB // 1_000_000)
    (tmp_path / "small.toml").write_text(
        'nodes = 4\nrounds = 1\ntask = { name = "concept-shift" }\npolicy = { name = "local" }\n'
    )
    rest = (
        str(tmp_path / "small.toml"),
        "--engine",
        "local",
        "--no-report",
        "--json",
        "--out",
        str(tmp_path / "out"),
    )
    code, _, err = sim(capsys, "run", *rest)
    assert (code, "--ignore-memory" in err) == (2, True)
    code, out, _ = sim(capsys, "run", *rest, "--ignore-memory")
    assert (code, json.loads(out)["scenario"]) == (0, "small")
    assert p2pfl.simulate(SMALL, ignore_memory=True)


@pytest.mark.slow
def test_memory_estimate_counts_edges_of_given_graph(free):
    free(300 * memory_estimate.ROW_OF_COHORT)
    assert p2pfl.simulate(SMALL | {"rounds": 0}, graph=nx.path_graph(190))
    with pytest.raises(ConfigurationError, match="needs at least"):
        p2pfl.simulate(SMALL | {"rounds": 0, "nodes": 190})


def test_check_runs_adds_memory_of_parallel_runs(free):
    runs = resolve(SMALL | {"nodes": 650_000, "topology": {"name": "ring"}}, [], "study", ".").runs
    check_runs(runs, 10, 5)
    with pytest.raises(ConfigurationError, match=r"10 parallel runs need at least 7\.\d GiB of memory"):
        free(7 * GIB)
        check_runs(runs, 10, 10)


def test_memory_estimate_ignores_rounds_after_early_stopping():
    (run,) = resolve(SMALL | {"rounds": 10**10, "patience": 9}, [], "study", ".").runs
    assert need(run).rounds == need(run, 11).rounds == memory_estimate.ROW * 4 * 10


def test_memory_estimate_ignores_rounds_after_the_end(free):
    (run,) = resolve(SMALL | {"rounds": 10**10, "end": {"seconds": 60.0}}, [], "study", ".").runs
    assert need(run).rounds == memory_estimate.ROW * 4
    check_runs([run], 10, 1)


def test_check_runs_adds_tables_of_all_runs(free):
    runs = resolve(SMALL | {"nodes": 1000, "rounds": 1000}, [], "study", ".").runs
    check_runs(runs, 10, 1)
    with pytest.raises(ConfigurationError, match="the tables of all runs need"):
        check_runs(runs, 100, 1)


@pytest.mark.parametrize(
    "options",
    [
        *({"name": name} for name in ("complete", "ring", "star", "small-world", "erdos-renyi", "scale-free", "clusters")),
        {"name": "torus"},
        {"name": "k-regular", "degree": 6},
        {"name": "rings", "degree": 6},
        {"name": "rings", "degree": 64},
        {"name": "watts-strogatz", "degree": 8},
        {"name": "barabasi-albert", "edges": 5},
        {"name": "erdos-renyi", "p": 0.5},
        {"name": "clusters", "groups": 7, "within": 0.8, "links": 2},
    ],
)
@pytest.mark.parametrize("nodes", [36, 144])
def test_edge_estimate_is_never_above_the_graph(options, nodes):
    name, given = options["name"], {key: value for key, value in options.items() if key != "name"}
    found = BUILDERS[name](nodes, 0, **given).number_of_edges()
    assert 0.4 * found <= edges_of(options, nodes) <= found


@pytest.mark.parametrize(
    "options",
    [
        {"name": "k-regular", "degree": "many"},
        {"name": "k-regular", "degree": 10**30},
        {"name": "clusters", "groups": 0},
        {"name": "clusters", "groups": -3, "within": 9},
        {"name": "erdos-renyi", "p": float("nan")},
        {"name": "file", "file": "x"},
        {"name": "nowhere"},
    ],
)
def test_edge_estimate_tolerates_invalid_options(options):
    assert not edges_of(options, 10) > 45


@pytest.mark.slow
def test_shipped_scenarios_fit_into_an_ordinary_machine(free):
    for name in shipped_scenarios():
        file = load(name)
        check_runs(file.runs, len(file.seeds), 16)


@pytest.mark.slow
def test_memory_estimate_is_below_use_of_run():
    tables = SMALL | {"nodes": 50, "rounds": 4}
    tracemalloc.start()
    try:
        p2pfl.simulate(tables)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert need(*resolve(tables, [], "study", ".").runs, 11).total < taken


def test_count_values_of_module_that_needs_data_is_zero(free):
    def stubborn():
        module = nn.Linear(2, 3)
        assert module.weight.sum().item() != 7
        return module

    assert count_values(stubborn) == 0
    assert count_values(lambda: nn.Linear(2, 3)) == 9
