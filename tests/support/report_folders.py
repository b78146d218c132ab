"""Folders of made-up runs: small ones for computations by hand, and large ones for tests of a page's limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from p2pfl.sim.results import results
from p2pfl.sim.scenario.scenario import resolve


def entry(name, seed, nodes, rounds, **more):
    """Return an entry of `runs` in summary.json, as p2pfl.sim.results.results writes it."""
    values = [round(0.5 + 0.01 * node, 4) for node in range(nodes)]
    made = {
        "name": name,
        "seed": seed,
        "nodes": nodes,
        "rounds": rounds,
        "topology": "complete",
        "codec": {"name": "float32"},
        "metric": "accuracy",
        "higher_is_better": True,
        "reported_stage": "trained",
        "test": {
            "mean": float(np.mean(values)),
            "std": float(np.std(values)),
            "worst_decile": min(values),
            "nodes": values,
            "per_group": {},
        },
        "traffic": {
            "bytes": 1000,
            "models": 10,
            "max_models_in_round": 2,
            "max_models_held": 3,
            "control_bytes": 100,
            "preparation": {"models": 0, "bytes": 0},
        },
        "collaboration": {"within_group": None, "edges": 0},
        "time": {"wall_s": 1.5, "virtual_s": float(rounds), "node_rounds_per_s": 10.0},
        "trace": "00" * 32,
    }
    for key, value in more.items():
        made[key] = {**made[key], **value} if isinstance(made.get(key), dict) else value
    return made


def rounds_of(nodes, rounds, **columns):
    """Return rows for each round and node, in the order of the rounds; a column may be a function of round and node."""
    when, node = np.divmod(np.arange(nodes * rounds), nodes)
    table = {
        "round": when + 1,
        "virtual_time": when + 1.0,
        "node": node,
        "bytes_in": np.full(len(when), 10),
        "bytes_out": np.full(len(when), 10),
        "models_in": np.full(len(when), 1),
    }
    for name, value in columns.items():
        values = [value(r + 1, n) for r, n in zip(when, node, strict=True)] if callable(value) else value
        table[name] = np.array(values) if np.ndim(values) else np.full(len(when), values)
    return table


def edges_of(*links):
    """Return rows of edges.parquet from (round, src, dst)."""
    when, src, dst = np.array(links, np.int32).reshape(-1, 3).T
    return {"round": when, "src": src, "dst": dst, "weight": np.full(len(when), 0.5, np.float32), "bytes": when * 0 + 10}


def leave(path: Path, made, scenario=None):
    """Write a folder as p2pfl-sim does from results made by hand: (entry, rounds, edges), and further tables by name."""
    runs = list(dict.fromkeys(summary["name"] for summary, *_ in made))
    first = made[0][0]
    file = resolve(
        {"nodes": first["nodes"], "rounds": first["rounds"], "name": "by-hand"}
        | (scenario or {"run": [{"name": run, "seed": k} for k, run in enumerate(runs)]}),
        [],
        "by-hand",
        ".",
    )
    outcome = [results.Result(summary, rounds, edges, [], *more) for summary, rounds, edges, *more in made]
    path.mkdir(parents=True, exist_ok=True)
    results.write(path, file, outcome, results.summarise(file, outcome))
    return path


def clusters_of(*assigned):
    """Return rows of clusters.parquet from (round, node, name of the cluster)."""
    when, node, cluster = zip(*assigned, strict=True)
    return {"round": np.array(when, np.int32), "node": np.array(node, np.int32), "cluster": np.array(cluster, np.str_)}


def similarities_of(*pairs):
    """Return rows of similarities.parquet from (round, node, other, similarity)."""
    columns = zip(("round", "node", "other", "similarity"), zip(*pairs, strict=True), strict=True)
    return {name: np.array(column, np.float32 if name == "similarity" else np.int32) for name, column in columns}


def large(path: Path, nodes=100, rounds=100, runs=10, peers=10):
    """Write a folder of the largest size that a page must support: noise, which compresses worst."""
    random = np.random.default_rng(0)
    made = []
    for k in range(runs):
        count = nodes * rounds
        noise = {
            f"{stage}_{what}": random.random(count)
            for stage in ("trained", "merged")
            for what in ("test_accuracy", "validation_loss")
        }
        when, dst = np.divmod(np.repeat(np.arange(count), peers), nodes)
        links = np.column_stack([when + 1, (dst + random.integers(1, nodes, size=len(when))) % nodes, dst])
        values = random.random(nodes)
        groups = [str(node * 4 // nodes) for node in range(nodes)]
        test = {"nodes": values.tolist(), "mean": float(values.mean()), "per_group": {str(g): 0.5 for g in range(4)}}
        objectives = {"higher_is_better": {"a": True, "b": True}, "nodes": random.random((nodes, 2)).tolist()}
        more = {"groups": groups, "test": test, "traffic": {"bytes": 10**9 + k}, "objectives": objectives}
        summary = entry(f"run {k}", 0, nodes, rounds, **more)
        tables = {"clusters": _splitting(nodes, rounds), "similarities": _alike(random, nodes, range(1, rounds + 1, 10))}
        made.append((summary, rounds_of(nodes, rounds, **noise), edges_of(*links), tables))
    return leave(path, made)


def _splitting(nodes, rounds):
    """Return clusters that all split in two every tenth of the rounds."""
    splits = [(r, min(7, (r - 1) * 10 // rounds)) for r in range(1, rounds + 1)]
    return clusters_of(*((r, node, f"{node * 128 // nodes:07b}"[:depth]) for r, depth in splits for node in range(nodes)))


def _alike(random, nodes, rounds):
    """Return random similarities of all pairs of at most 128 nodes."""
    one, other = np.triu_indices(min(nodes, 128), 1)
    values = random.uniform(-1, 1, (len(rounds), len(one)))
    return similarities_of(
        *((r, *row) for r, of in zip(rounds, values, strict=True) for row in zip(one, other, of, strict=True))
    )
