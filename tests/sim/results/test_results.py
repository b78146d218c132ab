"""Files of a run, their consistency, and the trace."""

import json
import math
import statistics
from dataclasses import replace
from hashlib import sha256

import duckdb
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import p2pfl
from p2pfl.algorithms.selection import fedavg
from p2pfl.policies.random import Random
from p2pfl.policy import Merge, merge, samples
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.results import learning_curves, results, summary_metrics, tables
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.scenario.sweep import parse, sweep
from p2pfl.sim.simulation.recorder import Trace
from p2pfl.task import make_task
from tests.support.simulated import run

NODES, ROUNDS, PEERS = 21, 4, 3
TOML = f"""
name = "study"
description = "Three runs."
nodes = {NODES}
rounds = {ROUNDS}
seeds = [0, 1]
task = {{ name = "tests.sim.results.test_results:unequal" }}
policy = {{ name = "random", neighbours = {PEERS}, reported_stage = "trained" }}

[[run]]
name = "together"
paper = 12.5

[[run]]
name = "alone"
policy = {{ name = "local" }}
evaluate_every = 2

[[run]]
name = "it's apart"
mode = "asynchronous"
max_staleness = 3.5
patience = 9
topology = {{ name = "small-world", degree = 6, rewire = 0.5 }}
network = {{ latency = [0.01, 0.2], loss = 0.01 }}
compute = {{ slowdown = [1.0, 3.0] }}
budget = {{ models = 2 }}
"""
RUNS = ("together", "alone", "it's apart")
MODEL = OVERHEAD + 4 * 11  # bytes of a model of ten weights and a bias


def samples_of(node):
    return 10 + node


def group_of(node):
    return node * 3 // NODES


def unequal(part, seed):
    """Nodes that have 10, 11, 12, ... samples, in three groups."""
    return make_task("concept-shift", {"samples": samples_of(part.index)}, part, seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of a finished run, at a path with special characters."""
    root = tmp_path_factory.mktemp("study")
    (root / "study.toml").write_text(TOML)
    return leave(load(str(root / "study.toml"), trust=True), root / "it's here")  # the scenario names this module


def leave(file, path):
    """Run a scenario as p2pfl-sim does, and return its folder."""
    outcome = run_all(file)
    path.mkdir(exist_ok=True)
    results.write(path, file, outcome, results.summarise(file, outcome))
    return path


def summary(folder):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads((folder / "summary.json").read_text(), parse_constant=refuse)


def entry(folder, name, seed=0):
    (found,) = [run for run in summary(folder)["runs"] if (run["name"], run["seed"]) == (name, seed)]
    return found


def sql(folder, query):
    """Run a query on `rounds` and `edges`."""
    with duckdb.connect() as connection:
        for table in ("rounds", "edges"):
            connection.from_parquet(str(folder / f"{table}.parquet")).create_view(table)
        return connection.sql(query).fetchall()


def columns(folder, table):
    with duckdb.connect() as connection:
        found = connection.from_parquet(str(folder / f"{table}.parquet"))
        return dict(zip(found.columns, map(str, found.types), strict=True))


# summary.json


@pytest.mark.slow
def test_run_writes_all_files(folder):
    assert {path.name for path in folder.iterdir()} >= {"scenario.toml", "summary.json", "rounds.parquet", "edges.parquet"}


@pytest.mark.slow
def test_summary_has_the_documented_keys(folder):
    found = summary(folder)
    assert list(found) == ["scenario", "version", "versions", "equal", "seeds", "runs", "table", "notes"]
    contract = {"name", "seed", "nodes", "rounds", "topology", "metric", "test", "traffic", "collaboration", "time", "trace"}
    contract |= {"higher_is_better", "reported_stage", "selected_by", "groups", "inputs"}
    for each in found["runs"]:
        assert set(each) - {"waits"} == contract | {
            "test_by_snapshot",
            "computed",
            "cost",
            *(["mode"] if each["name"] == "it's apart" else []),
            "deadlines_expired",
            "batches",
            "topology_properties",
            "codec",
        }
        assert set(each["test"]) == {"mean", "last_round", "std", "variance", "worst_decile", "nodes", "per_group"}
        counts = {"bytes", "models", "max_models_in_round", "max_models_held"}
        limited = {"budget"} if each["name"] == "it's apart" else set()
        assert set(each["traffic"]) == counts | {"control_bytes", "preparation"} | limited
        late = {"links_per_node", "sparsity", "asymmetry", "late_share"} if each["name"] != "alone" else set()
        assert set(each["collaboration"]) == {"within_group", "weight_within_group", "edges"} | late
        assert set(each["time"]) == {"wall_s", "virtual_s", "node_rounds_per_s"}
    for row in found["table"]:
        more = {"weight_within_group"} if row["name"] != "alone" else set()
        more |= {"paper"} if row is found["table"][0] else set()
        assert set(row) == {"name", "mean", "std", "seeds", "per_group", "equal", "cost"} | more


def test_summary_names_scenario_runs_and_topologies(folder):
    found = summary(folder)
    assert (found["scenario"], found["version"], found["seeds"]) == ("study", p2pfl.__version__, [0, 1])
    assert [(run["name"], run["seed"]) for run in found["runs"]] == [(name, seed) for name in RUNS for seed in (0, 1)]
    assert {(run["nodes"], run["rounds"], run["metric"]) for run in found["runs"]} == {(NODES, ROUNDS, "mse")}
    assert [entry(folder, name)["topology"] for name in RUNS] == ["complete", "complete", "small-world"]


def test_summary_has_distinct_trace_per_run_and_seed(folder):
    traces = [entry(folder, name, seed)["trace"] for name in ("together", "it's apart") for seed in (0, 1)]
    assert len(set(traces)) == 4
    assert all(len(bytes.fromhex(trace)) == 32 for trace in traces)


def test_summary_has_virtual_and_real_times(folder):
    assert entry(folder, "together")["time"]["virtual_s"] == ROUNDS  # a second for each round, and nothing else
    assert entry(folder, "it's apart")["time"]["virtual_s"] > ROUNDS
    for each in summary(folder)["runs"]:
        assert each["time"]["wall_s"] > 0
        assert each["time"]["node_rounds_per_s"] > 0


def test_table_row_is_mean_over_seeds(folder):
    for row in summary(folder)["table"]:
        means = [entry(folder, row["name"], seed)["test"]["mean"] for seed in (0, 1)]
        assert row["seeds"] == 2
        assert row["mean"] == pytest.approx(sum(means) / 2)
        assert row["std"] == pytest.approx(abs(means[0] - means[1]) / math.sqrt(2))
    assert [row["name"] for row in summary(folder)["table"]] == list(RUNS)
    assert summary(folder)["table"][0]["paper"] == 12.5


def test_summarise_given_runs_by_hand():
    file = resolve({"run": [{"name": "a"}, {"name": "b", "paper": 3.0, "rounds": 1}]}, [], "study", ".")
    values = {"a": (1.0, 2.0, 6.0), "b": (5.0,)}
    given = [
        results.Result({"name": name, "seed": seed, "test": {"mean": mean, "per_group": {}}}, {}, {}, [])
        for name, means in values.items()
        for seed, mean in enumerate(means)
    ]
    found = results.summarise(file, given)
    assert found["seeds"] == [0, 1, 2]
    assert found["table"] == [
        {"name": "a", "mean": 3.0, "std": pytest.approx(math.sqrt(7)), "seeds": 3},  # (4 + 1 + 9) / 2
        {"name": "b", "mean": 5.0, "std": 0.0, "seeds": 1, "paper": 3.0},
    ]


def test_table_compares_metric_and_bytes_with_reference():
    file = resolve({"against": "b", "run": [{"name": "a"}, {"name": "b", "rounds": 1}]}, [], "study", ".")
    given = [
        results.Result(
            {
                "name": name,
                "seed": 0,
                "test": {"mean": mean, "per_group": {}},
                "traffic": {"bytes": sent, "preparation": {"bytes": prepared}},
            },
            {},
            {},
            [],
        )
        for name, mean, sent, prepared in (("a", 0.75, 10, 20), ("b", 0.5, 120, 0))
    ]
    rows = results.summarise(file, given)["table"]
    assert [row["against"] for row in rows] == [
        {"name": "b", "difference": 0.25, "std": None, "times_bytes": 0.25},
        {"name": "b", "difference": 0.0, "std": None, "times_bytes": 1.0},
    ]
    given[1].summary["traffic"]["bytes"] = 0
    assert results.summarise(file, given)["table"][0]["against"]["times_bytes"] is None


def test_difference_from_reference_has_the_spread_of_its_seeds():
    file = resolve({"against": "b", "seeds": [0, 1], "run": [{"name": "a"}, {"name": "b"}]}, [], "study", ".")
    traffic = {"bytes": 0, "preparation": {"bytes": 0}}
    given = [
        results.Result({"name": name, "seed": seed, "test": {"mean": mean, "per_group": {}}, "traffic": traffic}, {}, {}, [])
        for name, means in (("a", (0.5, 0.9)), ("b", (0.4, 0.7)))
        for seed, mean in enumerate(means)
    ]
    first, second = (row["against"] for row in results.summarise(file, given)["table"])
    assert (first["difference"], first["std"]) == pytest.approx((0.15, 0.1 / math.sqrt(2)))  # 0.1 and 0.2
    assert second["std"] is None  # the reference itself


def test_front_of_a_sweep_is_of_the_same_learning_problem():
    few, many = {"name": "few", "nodes": 4}, {"name": "many", "nodes": 5}
    file = sweep(resolve({"run": [few, many]}, [], "study", "."), parse(["task.lr=0.1,0.2"]))

    def fronts(file, means):
        given = []
        for each, mean in zip(file.runs, means, strict=True):
            summary = {"name": each.name, "seed": 0, "metric": "accuracy", "higher_is_better": True}
            summary |= {"traffic": {"bytes": 10 * each.nodes, "preparation": {"bytes": 0}}}
            given.append(results.Result(summary | {"test": {"mean": mean, "per_group": {}}}, {}, {}, []))
        return [row.get("front") for row in results.summarise(file, given)["table"]]

    assert [run.name.partition(",")[0] for run in file.runs] == ["few", "few", "many", "many"]
    assert fronts(file, [0.5, 0.6, 0.4, 0.3]) == [False, True, True, False]
    alone = sweep(resolve({"run": [few]}, [], "study", "."), parse(["nodes=4,5"]))
    assert fronts(alone, [0.5, 0.6]) == [None, None]  # each is compared with no other


@pytest.mark.slow
def test_groups_may_differ_between_seeds_and_in_type():
    file = resolve({"run": [{"name": "a"}]}, [], "study", ".")
    groups = ({"0": 1.0, "1": 3.0}, {"1": 5.0, "b": 7.0})
    given = [
        results.Result({"name": "a", "seed": seed, "test": {"mean": 0.0, "per_group": means}}, {}, {}, [])
        for seed, means in enumerate(groups)
    ]
    assert results.summarise(file, given)["table"][0]["per_group"] == {"0": 1.0, "1": 4.0, "b": 7.0}
    (found,) = p2pfl.simulate(
        {"nodes": 4, "rounds": 1, "task": {"name": "tests.sim.results.test_results:mix"}, "policy": {"name": "local"}}
    )
    assert list(found.summary["test"]["per_group"]) == ["1", "3", "even"]


def mix(part, seed):
    """Nodes in groups named by numbers and by a word."""
    task = make_task("concept-shift", {}, part, seed)
    return replace(task, public_info={"group": part.index if part.index % 2 else "even"})


# Metrics of a run


@pytest.mark.parametrize(
    ("task", "worst"),
    [
        ({"name": "concept-shift"}, lambda values: sorted(values)[-2:]),
        ({"name": "digits"}, lambda values: sorted(values)[:2]),
    ],
)
def test_summary_statistics_match_results_of_nodes(task, worst):
    finished = run(resolve({"nodes": 29, "rounds": 1, "task": task, "policy": {"name": "local"}}, [], "t", ".").runs[0])
    metric = {"concept-shift": "mse", "digits": "accuracy"}[task["name"]]
    values = [finished.recorder.results[f"node-{k:02d}"][f"test_{metric}"] for k in range(29)]
    assert len(set(values)) > 5
    found = results.result_of(finished).summary["test"]
    assert found["mean"] == pytest.approx(sum(values) / 29)
    assert found["std"] == pytest.approx(statistics.pstdev(values))
    assert found["worst_decile"] == pytest.approx(sum(worst(values)) / 2)
    if task["name"] == "concept-shift":  # three clusters, in blocks of 10, 10 and 9
        blocks = {"0": values[:10], "1": values[10:20], "2": values[20:]}
        assert found["per_group"] == {group: pytest.approx(sum(v) / len(v)) for group, v in blocks.items()}
    else:
        assert found["per_group"] == {}


def test_worst_decile_of_few_nodes_is_the_worst_node():
    finished = run(resolve({"nodes": 4, "rounds": 1, "task": {"name": "concept-shift"}}, [], "t", ".").runs[0])
    values = [result["test_mse"] for result in finished.recorder.results.values()]
    assert results.result_of(finished).summary["test"]["worst_decile"] == max(values)


@pytest.mark.slow
def test_summary_names_reported_stage_and_metric_direction(folder):
    assert [entry(folder, name)["reported_stage"] for name in RUNS] == [
        "trained",
        "merged",
        "trained",
    ]  # a node alone has only one model
    assert {run["higher_is_better"] for run in summary(folder)["runs"]} == {False}
    small = {"nodes": 4, "rounds": 1, "evaluate_every": 0}
    found = p2pfl.simulate(
        small
        | {
            "run": [
                {"name": "merged", "policy": {"name": "random", "reported_stage": "merged"}},
                {"name": "trained", "policy": {"name": "random", "reported_stage": "trained"}},
            ]
        }
    )
    assert [result.summary["reported_stage"] for result in found] == ["merged", "trained"]
    assert {result.summary["higher_is_better"] for result in found} == {True}  # the accuracy on digits


@pytest.mark.slow
def test_auto_takes_better_stage_in_result_curve_and_table():
    scenario = {
        "nodes": 6,
        "rounds": 4,
        "task": {"name": "digits", "samples": 30},
        "run": [{"name": "auto", "policy": {"name": "random"}}, {"name": "alone", "policy": {"name": "local"}}],
    }
    file = resolve(scenario, [], "study", ".")
    found = [results.result_of(run(one)) for one in file.runs]
    together = found[0]
    assert [each.summary["reported_stage"] for each in found] == ["auto", "merged"]
    rounds, test = together.rounds, together.summary["test"]["nodes"]
    losses = np.stack([rounds[f"{stage}_validation_loss"] for stage in ("merged", "trained")])
    tests = np.stack([rounds[f"{stage}_test_accuracy"] for stage in ("merged", "trained")])
    for node in range(6):
        of_node = rounds["node"] == node
        mine, best = tests[:, of_node], np.argmin(losses[:, of_node])
        assert test[node] == pytest.approx(mine.flat[best])
    better = np.where(losses[1] < losses[0], tests[1], tests[0])
    assert learning_curves.reported(rounds, "auto", "test_accuracy").tolist() == better.tolist()
    table = results.summarise(file, found)["table"]
    assert table[0]["stages"] == together.summary["test_by_snapshot"]
    assert set(table[0]["stages"]) == {"trained", "merged"}
    assert [each["reported_stage"] for each in table] == ["auto", "merged"]
    assert table[1]["stages"] == {"trained": table[1]["mean"]}, "a node that trains alone merges nothing"
    html = results.Results(found, file)._repr_html_()
    assert ">trained<" in html
    assert f">{table[0]['stages']['merged']:.3f}<" in html


def test_table_without_auto_has_no_stages(folder):
    assert not any("stages" in row for row in summary(folder)["table"])


def test_summary_lists_metric_of_each_node(folder):
    for each in summary(folder)["runs"]:
        assert each["groups"] == [str(group_of(node)) for node in range(NODES)]
        assert statistics.fmean(each["test"]["nodes"]) == pytest.approx(each["test"]["mean"])
        assert statistics.fmean(each["test"]["nodes"][:7]) == pytest.approx(each["test"]["per_group"]["0"])


def test_summary_lists_peers_chosen_by_dpfl():
    scenario = {
        "nodes": 6,
        "rounds": 1,
        "task": {"name": "concept-shift"},
        "policy": {"name": "dpfl"},
        "budget": {"models": 2},
    }
    finished = run(resolve(scenario, [], "study", ".").runs[0])
    found = results.result_of(finished).summary["chosen_before"]
    omega = [node.policy.omega for node in finished.nodes.values()]
    assert [line.split() for line in found] == [[id.removeprefix("node-") for id in ids] for ids in omega]
    assert {len(ids) for ids in omega} <= {0, 1, 2}
    assert any(omega)


@pytest.mark.slow
def test_summary_contains_versions_and_notes(tmp_path):
    file = resolve({"nodes": 3, "rounds": 1, "budget": {"bytes": 9}}, [], "study", ".")
    found = summary(leave(file, tmp_path / "small"))
    assert found["versions"]["p2pfl"] == p2pfl.__version__
    assert {"Python", "torch", "numpy"} < set(found["versions"])
    assert len(found["notes"]) == 1
    assert found["notes"][0].startswith("budget.bytes of 3 of 3 nodes")


@pytest.mark.parametrize(("name", "stage"), [("together", "trained"), ("alone", "merged")])
def test_result_of_node_is_from_best_validation_round(folder, name, stage):
    for seed in (0, 1):
        best = sql(
            folder,
            f"SELECT arg_min({stage}_test_mse, {stage}_validation_loss) FROM rounds"
            f" WHERE run = '{name}' AND seed = {seed} AND {stage}_test_mse IS NOT NULL GROUP BY node ORDER BY node",
        )
        values = [value for (value,) in best]
        found = entry(folder, name, seed)["test"]
        assert found["mean"] == pytest.approx(sum(values) / NODES, rel=1e-5)
        assert found["std"] == pytest.approx(statistics.pstdev(values), rel=1e-5)
        assert found["worst_decile"] == pytest.approx(sum(sorted(values)[-2:]) / 2, rel=1e-5)
        for group in range(3):
            of_group = [value for node, value in enumerate(values) if group_of(node) == group]
            assert found["per_group"][str(group)] == pytest.approx(sum(of_group) / len(of_group), rel=1e-5)


@pytest.mark.slow
def test_summary_of_nodes_without_test_data_has_nulls(tmp_path):
    file = resolve({"nodes": 3, "rounds": 1, "task": {"name": "tests.sim.results.test_results:untested"}}, [], "study", ".")
    found = summary(leave(file, tmp_path / "out"))
    none = {"mean": None, "std": None, "variance": None, "worst_decile": None, "nodes": [None] * 3, "per_group": {}}
    assert found["runs"][0]["test"] == none | {"without_data": [0, 1, 2]}
    assert found["table"][0]["mean"] is None


@pytest.mark.slow
def test_worst_tenth_counts_no_other_nodes_than_the_mean():
    """One of three nodes has no test data: there is no mean, and the worst of the others is not the worst node."""
    task = {"name": "tests.sim.results.test_results:partly_tested"}
    found = results.result_of(run(resolve({"nodes": 3, "rounds": 1, "task": task}, [], "t", ".").runs[0])).summary["test"]
    assert found["without_data"] == [0]
    assert np.isfinite(found["nodes"][1:]).all()
    assert np.isnan([found["mean"], found["worst_decile"]]).all()


@pytest.mark.slow
def test_test_by_snapshot_is_from_best_validation_round(folder):
    for name in ("together", "alone"):
        found, means = entry(folder, name), {}
        for stage in ("trained", "merged"):
            best = sql(
                folder,
                f"SELECT arg_min({stage}_test_mse, {stage}_validation_loss) FROM rounds"
                f" WHERE run = '{name}' AND seed = 0 AND NOT isnan({stage}_validation_loss) GROUP BY node",
            )
            if best:
                means[stage] = pytest.approx(float(np.mean(best)))
        assert found["test_by_snapshot"] == means
        reported = "merged" if name == "alone" else "trained"  # a node that trains alone publishes nothing
        assert found["test_by_snapshot"][reported] == pytest.approx(found["test"]["mean"])
        assert len(means) == (1 if name == "alone" else 2)


@pytest.mark.parametrize(("policy", "stage"), [("local", "merged"), ("dpfl", "trained")])
def test_result_by_metric_is_from_last_round_of_best_metric(policy, stage):
    """`local` publishes nothing, so that its model is `merged`."""
    options = {"initial_epochs": 1, "epochs": 1, "snapshot": "trained"} if policy == "dpfl" else {}
    task = {"name": "images", "samples": 30, "validation": 8, "optimizer": {"name": "sgd", "lr": 1.0}}
    scenario = {"nodes": 3, "rounds": 8, "policy": {"name": policy, **options}, "task": task, "best_by": "metric"}
    finished = run(resolve(scenario, [], "study", ".").runs[0])
    found = results.result_of(finished)
    validation, test = (
        learning_curves.of_nodes(found.rounds, stage, f"{split}_accuracy") for split in ("validation", "test")
    )
    best = [np.flatnonzero(column == column.max())[-1] for column in validation.T]
    assert found.summary["test"]["nodes"] == pytest.approx([test[round, node] for node, round in enumerate(best)])
    assert found.summary["test_by_snapshot"][stage] == pytest.approx(found.summary["test"]["mean"])
    by_loss = learning_curves.of_nodes(found.rounds, stage, "validation_loss").argmin(axis=0)
    assert best != by_loss.tolist()


def untested(part, seed):
    from torch import nn

    data = np.random.default_rng(part.index).normal(size=(2, 8, 1)).astype(np.float32)
    return p2pfl.regression(lambda: nn.Linear(1, 1), tuple(data))


def partly_tested(part, seed):
    from torch import nn

    data = tuple(np.random.default_rng(part.index).normal(size=(2, 8, 1)).astype(np.float32))
    return p2pfl.regression(lambda: nn.Linear(1, 1), data, test=None if part.index == 0 else data)


# rounds.parquet


def test_rounds_table_has_documented_columns(folder):
    found = columns(folder, "rounds")
    first = ["run", "seed", "round", "virtual_time", "node", "bytes_in", "bytes_out", "models_in"]
    first += ["trainings", "samples", "train_s"]
    assert list(found)[:11] == first
    assert set(found) - set(first) == {
        f"{stage}_{split}_{metric}"
        for stage in ("trained", "merged")
        for split in ("validation", "test")
        for metric in ("loss", "mse")
    }
    kinds = dict.fromkeys(first, "BIGINT") | {"run": "VARCHAR", "virtual_time": "DOUBLE", "train_s": "DOUBLE"}
    assert {name: found[name] for name in first} == kinds
    assert {found[name] for name in set(found) - set(first)} == {"DOUBLE"}


def test_rounds_table_has_a_row_per_round_and_node(folder):
    rows = sql(folder, "SELECT run, seed, round, node FROM rounds")
    expected = {(name, s, r, n) for name in RUNS for s in (0, 1) for r in range(1, ROUNDS + 1) for n in range(NODES)}
    assert len(rows) == len(expected)
    assert set(rows) == expected


@pytest.mark.slow
def test_rounds_table_has_virtual_time_of_round_end(folder):
    assert sql(folder, "SELECT DISTINCT virtual_time - round FROM rounds WHERE run = 'together'") == [(0.0,)]
    steps = sql(
        folder,
        "SELECT virtual_time - lag(virtual_time, 1, 0) OVER (PARTITION BY seed, node ORDER BY round)"
        " FROM rounds WHERE run = 'it''s apart'",
    )
    assert min(step for (step,) in steps) >= 1.0  # the quickest node trains for a second


@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_bytes_sum_to_traffic(folder, seed):
    traffic = entry(folder, "together", seed)["traffic"]
    found = sql(
        folder,
        "SELECT sum(bytes_in), sum(bytes_out), sum(models_in), max(models_in) FROM rounds"
        f" WHERE run = 'together' AND seed = {seed}",
    )
    models = NODES * ROUNDS * PEERS
    total = models * (OVERHEAD + MODEL)  # a request and an answer each
    assert found == [(total, total, models, PEERS)]
    assert traffic == {
        "bytes": total,
        "models": models,
        "max_models_in_round": PEERS,
        "max_models_held": PEERS + 1,
        "control_bytes": 0,
        "preparation": {"models": 0, "bytes": 0},
    }


def test_rounds_bytes_count_models_and_requests(folder):
    """Compare received bytes: the models that a node requested, and the requests for its own models."""
    rows = sql(
        folder,
        "SELECT bytes_in, bytes_out, models_in, (SELECT count(*) FROM edges AS e WHERE e.run = r.run AND e.seed = r.seed"
        " AND e.round = r.round AND e.src = r.node) FROM rounds AS r WHERE run = 'together'",
    )
    assert len({asked for *_, asked in rows}) > 2
    for came, went, models, asked in rows:
        assert came == models * MODEL + asked * OVERHEAD
        assert went == models * OVERHEAD + asked * MODEL


def test_local_run_has_no_traffic(folder):
    assert sql(folder, "SELECT DISTINCT bytes_in, bytes_out, models_in FROM rounds WHERE run = 'alone'") == [(0, 0, 0)]
    found = entry(folder, "alone")
    assert found["traffic"]["bytes"] == found["traffic"]["models"] == 0
    assert found["collaboration"] == {"within_group": None, "weight_within_group": None, "edges": 0}


def test_rounds_without_evaluation_have_null_metrics(folder):
    query = "SELECT round, count(merged_test_mse), count(trained_test_mse) FROM rounds WHERE run = 'alone' GROUP BY round"
    both = 2 * NODES  # for two seeds
    assert sorted(sql(folder, query)) == [(1, 0, 0), (2, both, 0), (3, 0, 0), (4, both, 0)]


# edges.parquet


def test_edges_table_has_documented_columns(folder):
    found = columns(folder, "edges")
    assert list(found) == ["run", "seed", "round", "src", "dst", "weight", "bytes"]
    assert found["run"] == "VARCHAR"
    assert found["weight"] == "FLOAT"
    assert {found[name] for name in ("seed", "round", "src", "dst", "bytes")} <= {"BIGINT", "INTEGER"}


@pytest.mark.slow
def test_edges_table_has_a_row_per_aggregated_model(folder):
    rows = sql(
        folder, "SELECT seed, round, dst, count(DISTINCT src), count(*) FROM edges WHERE run = 'together' GROUP BY ALL"
    )
    assert len(rows) == 2 * ROUNDS * NODES
    assert {(different, all_) for *_, different, all_ in rows} == {(PEERS, PEERS)}
    assert sql(folder, "SELECT count(*) FROM edges WHERE src = dst OR run = 'alone'") == [(0,)]
    assert sql(folder, "SELECT DISTINCT bytes FROM edges") == [(MODEL,)]


def test_models_in_equals_edges_in_asynchronous_run(folder):
    rows = sql(
        folder,
        "SELECT models_in, (SELECT count(*) FROM edges AS e WHERE e.run = r.run AND e.seed = r.seed"
        " AND e.round = r.round AND e.dst = r.node) FROM rounds AS r WHERE run = 'it''s apart'",
    )
    assert {models for models, _ in rows} == {0, 1, 2}  # the budget allows two
    assert all(models == count for models, count in rows)


@pytest.mark.parametrize("name", ["together", "it's apart"])
def test_edge_weights_match_fedavg_and_sum_to_one(folder, name):
    taken = {}
    quoted = name.replace("'", "''")
    for seed, round, src, dst, weight in sql(
        folder, f"SELECT seed, round, src, dst, weight FROM edges WHERE run = '{quoted}'"
    ):
        taken.setdefault((seed, round, dst), {})[src] = weight
    assert len(taken) > NODES
    for (_, _, dst), weights in taken.items():
        total = samples_of(dst) + sum(map(samples_of, weights))
        assert weights == {src: pytest.approx(samples_of(src) / total, rel=1e-6) for src in weights}
        assert sum(weights.values()) + samples_of(dst) / total == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("name", ["together", "it's apart"])
def test_collaboration_summary_matches_edges(folder, name):
    quoted = name.replace("'", "''")
    for seed in (0, 1):
        late = sql(
            folder, f"SELECT round, src, dst FROM edges WHERE run = '{quoted}' AND seed = {seed} AND round > {ROUNDS / 2}"
        )
        within = [group_of(src) == group_of(dst) for _, src, dst in late]
        assert 0 < sum(within) < len(within)
        found = entry(folder, name, seed)["collaboration"]
        assert found["edges"] == sum(round == ROUNDS for round, *_ in late)
        assert found["within_group"] == pytest.approx(sum(within) / len(within))
        assert found["links_per_node"] == pytest.approx(len(late) / NODES / (ROUNDS / 2))
        assert found["sparsity"] == pytest.approx(1 - len(late) / (NODES * (NODES - 1) * ROUNDS / 2))
        one_way = [(round, dst, src) not in late for round, src, dst in late]
        assert 0 < found["asymmetry"] == pytest.approx(sum(one_way) / len(one_way))
        for own, shares in found["late_share"].items():
            sources = [str(group_of(src)) for _, src, dst in late if str(group_of(dst)) == own]
            others = set(sources) - {own}
            assert shares == pytest.approx({other: sources.count(other) / len(sources) for other in others})


class Fading(Random):
    """Policy that requests models in the first round only."""

    async def round(self, me, peers):
        if me.round == 1:
            return await super().round(me, peers)
        return Merge(await me.train(), {me.id: 1.0})


@pytest.mark.slow
def test_collaboration_without_late_links_is_zero():
    (found,) = p2pfl.simulate(
        {
            "nodes": 4,
            "rounds": 4,
            "task": {"name": "concept-shift"},
            "policy": {"name": "tests.sim.results.test_results:Fading"},
        }
    )
    assert set(found.edges["round"].tolist()) == {1}
    late = found.summary["collaboration"]
    assert late.pop("weight_within_group") is None
    assert late == {"edges": 0, "within_group": None, "links_per_node": 0.0, "sparsity": 1.0, "asymmetry": None}


def test_late_links_count_only_active_nodes():
    columns = {"round": [1, 4, 4], "src": [1, 1, 1], "dst": [0, 0, 0], "weight": [0.5, 0.5, 0.5]}
    edges = {name: np.array(column) for name, column in columns.items()}
    rounds = {"round": np.array([1, 1, 2, 2, 3, 4])}  # one of two nodes stops after round 2
    late = summary_metrics.collaboration(edges, rounds, [0, 1])
    assert late["edges"] == 2
    assert late["links_per_node"] == 0.5  # one model was fetched twice, in two rounds of one node
    assert late["sparsity"] == 0.5
    assert late["late_share"] == {"0": {"1": 1.0}}


def test_weight_on_own_group_is_a_share_of_the_weight_given_to_others():
    columns = {"round": [1, 2, 2, 2], "src": [2, 1, 2, 0], "dst": [0, 0, 0, 1], "weight": [0.9, 0.3, 0.1, 0.4]}
    edges = {name: np.array(column) for name, column in columns.items()}
    found = summary_metrics.collaboration(edges, {"round": np.array([1, 1, 1, 2, 2, 2])}, ["x", "x", "y"])
    assert found["weight_within_group"] == pytest.approx(0.7 / 0.8)  # round 1 is not in the last half
    assert found["within_group"] == pytest.approx(2 / 3)


class InTwoRequests(Random):
    """Policy that requests the model of the first peer, then those of the others."""

    async def round(self, me, peers):
        trained = await me.train()
        await peers.publish(trained)
        updates = await peers.models(peers.ids[:1]) + await peers.models(peers.ids[1:])
        return await merge(me, trained, updates, fedavg(samples(me, updates)))


class Unmoved(Random):
    """Policy that fetches its peers' models and gives them zero weight."""

    async def round(self, me, peers):
        trained = await me.train()
        await peers.publish(trained)
        updates = await peers.models(peers.ids)
        return Merge(trained, {me.id: 1.0} | {update.sender: 0.0 for update in updates})


class Deaf(Unmoved):
    """Policy that publishes the same models and fetches none."""

    async def round(self, me, peers):
        trained = await me.train()
        await peers.publish(trained)
        return Merge(trained, {me.id: 1.0})


def with_policy(name):
    (found,) = p2pfl.simulate({"nodes": 4, "rounds": 2, "task": {"name": "concept-shift"}, "policy": {"name": name}})
    return found


@pytest.mark.slow
def test_models_fetched_in_two_requests_are_one_edge_each():
    found = with_policy("tests.sim.results.test_results:InTwoRequests")
    edges = list(zip(*(found.edges[name].tolist() for name in ("round", "src", "dst", "weight", "bytes")), strict=True))
    assert sorted(edges) == [
        (r, src, dst, 0.25, MODEL) for r in (1, 2) for src in range(4) for dst in range(4) if src != dst
    ]
    assert found.summary["traffic"]["max_models_in_round"] == 3


@pytest.mark.slow
def test_model_with_zero_weight_is_no_edge():
    found = with_policy("tests.sim.results.test_results:Unmoved")
    assert len(found.edges["src"]) == 0
    assert found.summary["collaboration"] == {"edges": 0, "within_group": None, "weight_within_group": None}
    assert found.summary["traffic"]["models"] == found.rounds["models_in"].sum() == 4 * 3 * 2


@pytest.mark.slow
def test_trace_depends_on_received_models():
    found = {name: with_policy(f"tests.sim.results.test_results:{name}") for name in ("Unmoved", "Deaf")}
    assert found["Unmoved"].summary["test"] == found["Deaf"].summary["test"]  # the models are the same
    assert found["Unmoved"].summary["trace"] != found["Deaf"].summary["trace"]


# Empty and mixed runs


@pytest.mark.slow
def test_run_without_rounds_writes_empty_tables(tmp_path):
    path = leave(resolve({"nodes": 3, "rounds": 0, "task": {"name": "concept-shift"}}, [], "none", "."), tmp_path / "out")
    assert sql(path, "SELECT (SELECT count(*) FROM rounds), (SELECT count(*) FROM edges)") == [(0, 0)]
    assert list(columns(path, "rounds"))[:4] == ["run", "seed", "round", "virtual_time"]
    assert list(columns(path, "edges")) == ["run", "seed", "round", "src", "dst", "weight", "bytes"]
    assert summary(path)["runs"][0]["traffic"]["models"] == 0


@pytest.mark.slow
def test_runs_with_different_metrics_share_one_table(tmp_path):
    runs = [{"name": name, "task": {"name": name}} for name in ("digits", "concept-shift")]
    path = leave(resolve({"nodes": 3, "rounds": 2, "run": runs}, [], "both", "."), tmp_path / "out")
    rows = sql(path, "SELECT run, count(*), count(trained_test_accuracy), count(trained_test_mse) FROM rounds GROUP BY ALL")
    assert sorted(rows) == [("concept-shift", 6, 0, 6), ("digits", 6, 6, 0)]


# scenario.toml


@pytest.mark.slow
def test_written_scenario_reproduces_the_results(folder, tmp_path):
    again = leave(load(str(folder / "scenario.toml"), trust=True), tmp_path / "again")
    first, second = summary(folder), summary(again)
    for each in (*first["runs"], *second["runs"]):
        del each["time"]["wall_s"], each["time"]["node_rounds_per_s"]
    assert first == second
    for table in ("rounds", "edges"):
        assert columns(folder, table) == columns(again, table)
        assert repr(sql(folder, f"FROM {table} ORDER BY ALL")) == repr(sql(again, f"FROM {table} ORDER BY ALL"))
    assert (folder / "scenario.toml").read_bytes() == (again / "scenario.toml").read_bytes()


def test_written_scenario_contains_every_setting(folder):
    apart = load(str(folder / "scenario.toml"), trust=True).runs[2]
    assert (apart.mode, apart.max_staleness, apart.patience, apart.budget.models) == ("asynchronous", 3.5, 9, 2)
    assert apart.topology == {"name": "small-world", "degree": 6, "rewire": 0.5}
    assert (apart.network.latency, apart.network.loss, apart.compute.slowdown) == ((0.01, 0.2), 0.01, (1.0, 3.0))


# The trace

MODEL_A = np.array([1.0, 0.0], np.float32)
EVENTS = [
    ("published", 1.0, "a", "trained", 1, MODEL_A),
    ("published", 1.0, "b", "trained", 1, MODEL_A),
    ("received", 1.0, "a", 1, "b"),
    ("published", 2.0, "a", "trained", 2, MODEL_A),
]


def digest(events):
    trace = Trace()
    for kind, *arguments in events:
        getattr(trace, kind)(*arguments)
    return trace.digest()


def test_trace_of_same_events_has_same_digest():
    assert digest(EVENTS) == digest(list(EVENTS))
    assert digest([]) == sha256(b"").hexdigest()


@given(st.data())
def test_trace_ignores_order_of_nodes_within_an_instant(data):
    """Events of one node keep their order; nodes may run in any order."""
    order = data.draw(st.lists(st.sampled_from("abc"), max_size=12))
    other = data.draw(st.permutations(order))

    def played(nodes):
        counts = dict.fromkeys("abc", 0)
        for node in nodes:
            counts[node] += 1
            yield "published", 1.0, node, "trained", counts[node], MODEL_A
        yield "received", 2.0, "a", 1, "b"

    assert digest(played(order)) == digest(played(other))


def test_trace_depends_on_order_of_events_of_a_node():
    swapped = [EVENTS[2], EVENTS[1], EVENTS[0], EVENTS[3]]
    assert digest(swapped) != digest(EVENTS)


@pytest.mark.parametrize(
    ("place", "event"),
    [
        (0, ("published", 1.0, "c", "trained", 1, MODEL_A)),
        (0, ("published", 1.0, "a", "merged", 1, MODEL_A)),
        (0, ("published", 1.0, "a", "trained", 2, MODEL_A)),
        (0, ("published", 1.0, "a", "trained", 1, np.nextafter(MODEL_A, np.float32(2)))),
        (0, ("published", 1.0, "a", "trained", 1, np.array([1.0, -0.0], np.float32))),
        (0, ("received", 1.0, "a", 1, "b")),
        (2, ("received", 1.0, "a", 1, "c")),
        (2, ("received", 1.0, "a", 1, "b,c")),
        (2, ("received", 1.0, "a", 2, "b")),
        (2, ("received", 1.0, "b", 1, "b")),
        (3, ("published", math.nextafter(2.0, 3.0), "a", "trained", 2, MODEL_A)),
        (3, ("published", 1.0, "a", "trained", 2, MODEL_A)),
    ],
)
def test_trace_depends_on_every_field_of_an_event(place, event):
    changed = [*EVENTS[:place], event, *EVENTS[place + 1 :]]
    assert digest(changed) != digest(EVENTS)


@given(st.integers(0, 3))
def test_trace_detects_missing_or_repeated_event(place):
    assert digest(EVENTS[:place] + EVENTS[place + 1 :]) != digest(EVENTS)
    assert digest([*EVENTS[: place + 1], *EVENTS[place:]]) != digest(EVENTS)


# Edge cases

SMALL = {"nodes": 12, "rounds": 4, "task": {"name": "concept-shift"}, "policy": {"name": "random"}}


@pytest.mark.slow
def test_fetch_without_models_is_harmless():
    slow = {
        "mode": "asynchronous",
        "compute": {"slowdown": [1.0, 9.0]},
        "policy": {"name": "tests.sim.results.test_results:InTwoRequests"},
    }
    (found,) = p2pfl.simulate({"nodes": 4, "rounds": 3, "task": {"name": "concept-shift"}} | slow)
    assert found.summary["traffic"]["models"] >= len(found.edges["src"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"mode": "asynchronous", "compute": {"slowdown": [1.0, 10.0]}}, {"rounds": 12, "patience": 1}]
)
def test_rounds_bytes_sum_to_traffic_when_nodes_end_early(change):
    (found,) = p2pfl.simulate(SMALL | change)
    assert found.rounds["bytes_out"].sum() == found.summary["traffic"]["bytes"]


class Prepared(Random):
    async def prepare(self, me, peers):
        await peers.publish(me.params, stage="prepared")
        updates = await peers.models(peers.ids, stage="prepared")
        return await merge(me, me.params, updates, fedavg(samples(me, updates)))


@pytest.mark.slow
def test_models_fetched_in_preparation_are_no_edges():
    found = with_policy("tests.sim.results.test_results:Prepared")
    first = (found.edges["round"] == 1) & (found.edges["dst"] == 0)
    assert found.edges["weight"][first].sum() == pytest.approx(0.75)


@pytest.mark.slow
def test_trace_of_local_run_depends_on_seed():
    first, second = p2pfl.simulate(SMALL | {"policy": {"name": "local"}, "seeds": [0, 1]})
    assert first.summary["trace"] != second.summary["trace"]


@pytest.mark.slow
def test_summary_of_given_graph_names_no_builder():
    (found,) = p2pfl.simulate(SMALL, graph=nx.star_graph(3))
    assert found.summary["topology"] == "a graph of one's own"


@pytest.mark.slow
def test_column_types_do_not_depend_on_number_of_rows(tmp_path):
    full, empty = (leave(resolve(SMALL | {"rounds": r}, [], "n", "."), tmp_path / str(r)) for r in (2, 0))
    for table in ("rounds", "edges"):
        assert columns(empty, table).items() <= columns(full, table).items()


def test_run_without_rounds_leaves_types_of_others(tmp_path):
    path = leave(resolve(SMALL | {"run": [{"name": "a"}, {"name": "b", "rounds": 0}]}, [], "n", "."), tmp_path / "o")
    assert columns(path, "rounds")["round"] == "BIGINT"


@pytest.mark.slow
def test_written_scenario_finds_modules_of_original_folder(tmp_path):
    study = tmp_path / "study"
    study.mkdir()
    (study / "beside.py").write_text("from p2pfl.policies.random import Random as Own\n")
    (study / "study.toml").write_text('nodes = 4\nrounds = 1\ntask.name = "concept-shift"\npolicy.name = "beside:Own"\n')
    path = leave(load(str(study / "study.toml")), tmp_path / "o")
    assert load(str(path / "scenario.toml"), trust=True).folder == str(study)


def test_trace_digest_has_no_side_effect():
    looked, plain = Trace(), Trace()
    for trace in (looked, plain):
        trace.published(1.0, "a", "trained", 1, MODEL_A)
        if trace is looked:
            trace.digest()
        trace.published(1.0, "b", "trained", 1, MODEL_A)
    assert looked.digest() == plain.digest()


def test_long_and_short_tables_are_written_below_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PART", 2)
    written = []
    for number, rows in enumerate((1, 2, 5, 0, 3, 4)):
        extra = {} if number % 2 else {"loss": np.linspace(0, 1, rows, dtype=np.float32)}
        written.append(({"name": f"it's {number}", "seed": number}, {"round": np.arange(rows)} | extra))
    tables.write_parquet(tmp_path / "t.parquet", written)
    stacked = tables.stack_tables(written)
    found = duckdb.sql(f"SELECT * FROM '{tmp_path}/t.parquet'").fetchnumpy()
    assert list(found) == ["run", "seed", "round", "loss"]
    for name, column in stacked.items():
        np.testing.assert_array_equal(np.ma.filled(found[name], np.nan) if name == "loss" else found[name], column)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"evaluate_every": 2, "rounds": 5}, {"patience": 1, "rounds": 8}])
def test_late_figures_are_of_each_nodes_last_evaluations(changes):
    table = {"nodes": 4, "late_rounds": 2, "task": {"name": "digits", "samples": 30}, "policy": "random"}
    (found,) = p2pfl.simulate(table | changes, progress=False)
    rounds = found.rounds
    last = []
    for node in range(4):
        values = rounds["merged_test_accuracy"][rounds["node"] == node]
        last.append(values[~np.isnan(values)][-2:].mean())
    assert found.summary["extra_metrics"]["late"]["nodes"] == pytest.approx(last)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"evaluate_every": 0}, {"rounds": 0}])
def test_late_figures_without_evaluations_are_undefined(changes):
    (found,) = p2pfl.simulate({"nodes": 2, "rounds": 2, "late_rounds": 1, "policy": "local"} | changes, progress=False)
    assert np.isnan(found.summary["extra_metrics"]["late"]["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["deep-sea-treasure", "teachers"])
def test_objectives_are_those_of_honest_nodes(task):
    table = {"nodes": 4, "rounds": 1, "task": task, "policy": "random", "attack": {"name": "gaussian", "nodes": [1]}}
    (found,) = p2pfl.simulate(table, progress=False)
    assert found.summary["objectives"]["of_nodes"] == [0, 2, 3]
    assert len(found.summary["objectives"]["nodes"]) == 3
