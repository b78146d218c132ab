"""Record of clusters and objectives: the tables, and the figures in the summary."""

import json

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.policy import Assignment
from p2pfl.sim.cli.console import print_table
from p2pfl.sim.cli.main import main
from p2pfl.sim.execution.resume import Parts
from p2pfl.sim.results.objectives import with_distances
from p2pfl.sim.results.results import result_of, summarise, write
from p2pfl.sim.results.summary_metrics import adjusted_rand, clusters_by_round, clusters_over_seeds
from p2pfl.sim.scenario.scenario import jobs_of, resolve
from p2pfl.sim.simulation import recorder
from p2pfl.sim.simulation.recorder import ClusterNotes
from p2pfl.sim.simulation.simulation import Simulation
from tests.support.simulated import run

PARTITIONS = st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 3), min_size=n, max_size=n)] * 2))


def file(policy, **changes):
    raw = {"nodes": 8, "rounds": 14, "task": {"name": "deep-sea-treasure", "explore_rounds": 5.0}, "policy": policy}
    return resolve(raw | changes, [], "test", ".")


@pytest.fixture(scope="module")
def fedpref():
    """The simulation and result of a run whose clusters split until all nodes are alone."""
    simulation = Simulation(file({"name": "fedpref", "epsilon": 2.0, "patience": 1}).runs[0])
    return simulation, result_of(simulation.run())


def test_adjusted_rand_by_hand():
    assert adjusted_rand("aabb", "xxyy") == adjusted_rand([0, 0, 1], [1, 1, 0]) == 1.0
    assert adjusted_rand("aaaa", "xxyy") == adjusted_rand("abcd", "xxyy") == 0.0
    assert adjusted_rand("abab", "xxyy") == pytest.approx((0 - 2 * 2 / 6) / (2 - 2 * 2 / 6))  # no pair together in both
    assert adjusted_rand("aabbb", "xxxyy") == pytest.approx((2 - 4 * 4 / 10) / (4 - 4 * 4 / 10))
    assert (
        adjusted_rand("a", "x") == adjusted_rand("aaa", "xxx") == adjusted_rand("abc", "xyz") == adjusted_rand("", "") == 1
    )


@pytest.mark.slow
@given(PARTITIONS)
def test_adjusted_rand_equals_scikit_learn(partitions):
    metrics = pytest.importorskip("sklearn.metrics")
    assert adjusted_rand(*partitions) == pytest.approx(metrics.adjusted_rand_score(*partitions))


def describe(cluster):
    return Assignment(np.zeros(1, np.float32), {}, {"cluster": np.array(cluster, np.int64), "figures": np.zeros(4)})


def test_clusters_over_rounds_by_hand():
    notes = ClusterNotes({"a": 0, "b": 1, "c": 2, "d": 3}, 3)
    for round, cast in enumerate(["ab", "abcd", "ad"], 1):
        for id in cast:
            notes.assigned(id, round, describe([] if round == 1 else [int(id > "b")] if round == 2 else [0, int(id > "b")]))
    notes.assigned("c", 3, Assignment(np.zeros(1, np.float32), {}))  # a policy without clusters
    table = notes.tables()["clusters"]
    assert table["round"].tolist() == [1, 1, 2, 2, 2, 2, 3, 3]
    assert table["cluster"].tolist() == ["", "", "0", "0", "1", "1", "00", "01"]
    found = clusters_by_round(table, ["x", "x", "y", "y"])
    assert found["rounds"] == [1, 2, 3]
    assert found["count"] == [1, 2, 4]  # c, d: the common cluster in round 1; b, c: their last one in round 3
    assert found["adjusted_rand"] == [0.0, 1.0, 0.0]
    assert (found["best"], found["best_round"], found["final"]) == (1.0, 2, 0.0)
    assert found["nodes"] == ["00", "0", "1", "01"]
    unknown = clusters_by_round(table, ["x", "x", "y", None])
    assert unknown["adjusted_rand"] is None
    assert "best" not in unknown
    assert clusters_over_seeds([{"clusters": unknown}]) is None
    assert clusters_over_seeds([{"clusters": found}, {"clusters": found | {"best": 0.5, "best_round": 3}}]) == {
        "best": 0.75,
        "best_round": 2.5,
        "final": 0.0,
        "reached": 1,
    }


@pytest.mark.slow
def test_run_records_cluster_of_each_node_and_round(fedpref):
    _, result = fedpref
    table, summary = result.more["clusters"], result.summary["clusters"]
    assert len(table["round"]) == 8 * 14
    assert summary["rounds"] == list(range(1, 15))
    assert summary["count"] == sorted(summary["count"])
    assert (summary["count"][0], summary["count"][-1]) == (1, 8)
    assert len(set(summary["nodes"])) == 8
    assert summary["best"] > summary["final"] == 0.0


def test_run_records_similarities_within_clusters(fedpref):
    _, result = fedpref
    table = result.more["similarities"]
    assert (table["node"] < table["other"]).all()
    assert (np.abs(table["similarity"]) <= 1).all()
    assert (table["round"] == 1).sum() == 8 * 7 / 2
    of = result.more["clusters"]
    cluster = {
        key: name
        for *key, name in zip(*(of[k].tolist() for k in ("round", "node", "cluster")), strict=True)
        for key in [tuple(key)]
    }
    for round, node, other in zip(*(table[name].tolist() for name in ("round", "node", "other")), strict=True):
        assert round == 1 or cluster[round - 1, node] == cluster[round - 1, other]


@pytest.mark.slow
def test_similarities_are_recorded_periodically_up_to_limit(monkeypatch):
    def noted(policy):
        found = Simulation(file(policy, rounds=30).runs[0])
        result = result_of(found.run())
        return np.unique(result.more["similarities"]["round"]).tolist()

    matfl, every = {"name": "matfl"}, list(range(3, 31, 3))
    assert noted(matfl) == every
    assert set(noted({"name": "fedpref", "epsilon": 2.0})) - set(every)
    monkeypatch.setattr(recorder, "MOST_PAIRS", 60)  # each matrix has 28 pairs
    assert noted(matfl) == [3, 6]


@pytest.mark.slow
def test_recording_does_not_change_results(monkeypatch):
    entry = file({"name": "fedpref", "epsilon": 2.0}).runs[0]
    one = Simulation(entry)
    monkeypatch.setattr(recorder.ClusterNotes, "watching", lambda self, policy: policy.step)
    other = Simulation(entry)
    assert one.run().recorder.trace.digest() == other.run().recorder.trace.digest()
    assert one.recorder.clusters.tables().keys() == {"clusters", "similarities"}
    assert other.recorder.clusters.tables().keys() == {"clusters"}


@pytest.mark.slow
def test_recorded_clusters_modelled_equal_wire():
    policy = {"name": "fedpref", "epsilon": 2.0, "patience": 1}
    tables = []
    for fidelity in ("modelled", "wire"):
        simulation = Simulation(file(policy, nodes=4, rounds=9, trainer="one-by-one", fidelity=fidelity).runs[0])
        tables.append(result_of(simulation.run()).more)
    modelled, wire = tables
    for name in ("clusters", "similarities"):
        assert {key: column.tolist() for key, column in modelled[name].items()} == {
            key: column.tolist() for key, column in wire[name].items()
        }


@pytest.mark.slow
def test_folder_has_cluster_tables_of_clustered_runs_only(tmp_path, fedpref):
    whole = resolve(
        {
            "nodes": 8,
            "rounds": 14,
            "task": {"name": "deep-sea-treasure", "explore_rounds": 5.0},
            "run": [
                {"name": "alone", "policy": {"name": "local"}},
                {"name": "clustered", "policy": {"name": "fedpref", "epsilon": 2.0, "patience": 1}},
            ],
        },
        [],
        "test",
        ".",
    )
    results = [result_of(run(job)) for job in jobs_of(whole)]
    parts = Parts(tmp_path / "parts", whole)
    for number, result in enumerate(results):
        parts.save(number, result)
    kept, _ = parts.load()
    summary = summarise(whole, list(kept.values()))
    write(tmp_path, whole, list(kept.values()), summary)
    with duckdb.connect() as connection:
        rows = connection.execute(f"select run, seed, round, node, cluster from '{tmp_path}/clusters.parquet'").fetchall()
        pairs = connection.execute(f"select * from '{tmp_path}/similarities.parquet'").fetchall()
    assert {row[0] for row in rows} == {"clustered"}
    assert len(rows) == 8 * 14
    assert rows[0] == ("clustered", 0, 1, 0, "")
    assert {row[4] for row in rows if row[2] == 14} == set(fedpref[1].summary["clusters"]["nodes"])
    assert len(pairs) > 28
    alone, clustered = summary["table"]
    assert "clusters" not in alone
    assert clustered["clusters"]["final"] == 0.0
    assert alone["objectives"].keys() == {"hypervolume", "igd", "sparsity", "cardinality"}
    parts.remove()


@pytest.mark.slow
def test_printed_table_shows_clusters_and_front(tmp_path, capsys):
    main(["run", "fedpref-dst", "--set", "form=smoke", "--engine", "local", "--no-report", "--out", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    upper, lower = printed.splitlines()[2:4]
    assert upper.split() == ["best", "true", "final"]
    assert lower.split() == ["run", "reward", "hypervolume", "igd", "ARI", "groups", "ARI"]
    (row,) = [line for line in printed.splitlines() if line.startswith(" local ")]
    assert not row[lower.index(" ARI") :].strip()  # this run has no clusters
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert all(len(run["objectives"]["reference"]) == 2 for run in summary["runs"])
    assert not (tmp_path / "run" / "parts").exists()


def test_printed_table_mixes_rows_without_hypervolume(capsys):
    table = [
        {"name": name, "mean": 1.0, "std": 0.0, "seeds": 1, "per_group": {"0": 1.0, "1": 2.0}, "objectives": measured}
        for name, measured in (("one", {"hypervolume": 7.5, "igd": 0.5}), ("other", {"igd": 0.25}))
    ]
    print_table({"scenario": "mixed", "seeds": [0], "runs": [{"metric": "reward"}], "table": table})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["│", "one", "│", "1.000", "│", "7.50", "│", "0.500", "│"] in rows
    assert ["│", "other", "│", "1.000", "│", "│", "0.250", "│"] in rows


def test_distance_without_known_front_uses_best_of_all_runs():
    def entry(name, seed, *points, **more):
        return {"name": name, "seed": seed, "objectives": {"higher_is_better": {"a": False}, "nodes": points} | more}

    one, other, elsewhere, known = with_distances(
        [entry("one", 0, [3.0], [2.0]), entry("other", 0, [1.0]), entry("one", 1, [5.0]), entry("known", 0, [0.0], igd=7.0)],
        {},
    )
    assert one["objectives"]["igd"] == 1.0  # lower is better, and 1 is the best with that seed
    assert other["objectives"]["igd"] == elsewhere["objectives"]["igd"] == 0.0
    assert known["objectives"]["igd"] == 7.0
    assert with_distances([{"name": "single"}], {}) == [{"name": "single"}]
