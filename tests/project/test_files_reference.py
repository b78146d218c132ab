"""Reference of the files of runs and nodes: it lists exactly the files that small runs leave."""

import json
import re
from pathlib import Path

import duckdb
import networkx as nx
import pytest

import p2pfl
from tests.support.pages import DOCS
from tests.support.ports import free_ports
from tests.support.readme import bash

TEXT = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#|\Z)", TEXT, re.M | re.S))

POOL = """
nodes = 3
rounds = 2
task = { name = "deep-sea-treasure", steps = 200 }
policy = { name = "fedavg" }

[[run]]
name = "pooled"
pool = { of = "means" }
paper = 1.0
each = { "task.preference" = [[0.2, 0.8], [0.8, 0.2]] }
"""
SWEEP = """
nodes = 4
rounds = 2
target = 0.0
against = "random"
task = { name = "concept-shift", samples = 20, test = 20 }
topology = { name = "complete" }

[[run]]
name = "random"
policy = { name = "random", neighbours = 1 }
budget = { models = 2 }

[[run]]
name = "chosen"
policy = { name = "dpfl" }
"""
ELECTED = """
nodes = 3
rounds = 2
fidelity = "wire"
task = { name = "digits", samples = 20 }
policy = { name = "coordinated-fedavg" }
"""
RUNS = {
    "clusters": "run fedpref-dst --set form=smoke",
    "answers": "run praffl-synthetic --set form=smoke --only praffl",
    "cities": "run cities.toml",
    "pool": "run pool.toml",
    "sweep": "sweep sweep.toml --vary rounds=1,2",
    "compared": "run sweep.toml --set network.loss=0.3 --set deadline=2 --set rounds=3",
    "attacked": "run sweep.toml --set attack.name=sign-flip --set attack.share=0.5",
    "elected": "run elected.toml",
    "graphs": "run sweep.toml --only random --set topology=base-k",
    "apart": "run sweep.toml --set mode=asynchronous",
    "table": "run table.toml",
}
CITIES = """
nodes = 3
rounds = 1
topology = { file = "cities.txt" }
task = { name = "digits", samples = 20 }
"""
TABLE = """
nodes = 2
rounds = 1
task = { name = "classification", data = "rows.csv", partition = { name = "iid" } }
"""
# keys that need data sets, or appear only sometimes
DEVICES = {"joules"}  # column of rounds of nodes with devices
PLACED = {
    "cost.joules", "cost.joules_by", "cost.devices", "cost.refused",
    "figure", "left_out", "mean_left_out", "of_nodes", "unanswered",
    "epsilon", "privacy.nodes", "privacy.budget", "privacy.delta", "privacy.noise", "privacy.rate",
    "privacy.validation", "privacy.epsilon", "privacy.by_round", "privacy.refused", "privacy.correlated", "privacy.central",
    "within",
    "answers.dead", "test.without_data", "data.columns_not_listed",
}  # fmt: skip


def described(section):
    """Return the names in the first column of a section's table."""
    rows = [row for row in SECTIONS[section].splitlines() if row.startswith("|")][2:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of all runs; the one of `pareto` is a search."""
    where = tmp_path_factory.mktemp("files")
    for name, text in {"pool": POOL, "sweep": SWEEP, "elected": ELECTED, "cities": CITIES, "table": TABLE}.items():
        (where / f"{name}.toml").write_text(text)
    (where / "cities.txt").write_text("# from to\nOslo Turin\nTurin Athens\n")
    (where / "rows.csv").write_text("a,b,label\n\n" + "".join(f"{7 * k % 20},{k / 2},{k % 2}\n" for k in range(20)))
    commands = [f"p2pfl-sim {command} --engine local --out runs/{name}" for name, command in RUNS.items()]
    bash("\n".join(commands), where)
    p2pfl.simulate(where / "sweep.toml", graph=nx.path_graph(3), models=True, out=where / "runs" / "given")
    bash("p2pfl-sim pareto mofld-dst --set form=smoke --workers 1 --out runs/search", where)
    return {path.name: path for path in (where / "runs").iterdir()}


def columns(path):
    return {row[0] for row in duckdb.sql(f"describe select * from '{path}'").fetchall()}


def paths(value, path=""):
    """Yield the path of each value, without indices of lists."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from paths(each, path)
    else:
        yield path


def check(found, keys, absent=frozenset()):
    """Compare found paths with the keys of a table; a key may cover all paths below it."""
    unknown = {path for path in found if not any(path == key or path.startswith(f"{key}.") for key in keys)}
    assert unknown == set()
    assert {key for key in keys if not any(path == key or path.startswith(f"{key}.") for path in found)} <= absent


@pytest.mark.slow
def test_files_of_runs_match_documentation(folders):
    paths = [path for name, folder in folders.items() if name != "search" for path in folder.iterdir()]
    found = {path.name + "/" * path.is_dir() for path in paths}
    assert found == set(described("Folder of a run")) - {"parts/", "track/"}
    search = {path.relative_to(folders["search"]).as_posix() for path in folders["search"].rglob("*") if path.is_file()}
    models = {path for path in search if re.fullmatch(r"models/[\w-]+/seed-\d+/candidate-\d+\.safetensors", path)}
    assert models
    assert search - models == {"scenario.toml", "summary.json", "report.html", "candidates.parquet"}


@pytest.mark.slow
@pytest.mark.parametrize("table", ["rounds", "edges", "clusters", "similarities", "elections"])
def test_columns_of_tables_match_documentation(folders, table):
    listed = set(described(f"Columns of `{table}.parquet`"))
    files = [folder / f"{table}.parquet" for folder in folders.values() if (folder / f"{table}.parquet").exists()]
    assert files
    for file in files:
        found = columns(file)
        metrics = {name for name in found if re.fullmatch("(trained|merged)_(validation|test)_[a-z_]+", name)}
        assert found - metrics - DEVICES == listed - DEVICES - {"STAGE_SPLIT_METRIC"}
        assert bool(metrics) == ("STAGE_SPLIT_METRIC" in listed)


@pytest.mark.slow
def test_keys_of_summaries_match_documentation(folders):
    summaries = {name: json.loads((folder / "summary.json").read_text()) for name, folder in folders.items()}
    search = summaries.pop("search")
    parts = {"runs": [], "pools": [], "table": [], "objectives": []}
    tops = set()
    for summary in summaries.values():
        tops |= set(summary) - set(parts)
        for part in ("runs", "pools", "table"):
            parts[part] += summary.get(part, [])
    for each in (*parts["runs"], *parts["pools"], *search["runs"]):
        parts["objectives"] += [each["objectives"]] if "objectives" in each else []
    check(tops, described("Keys at the top"), PLACED)
    for part, entries in parts.items():
        check(set(paths(entries)), described(f"Keys of `{part}`"), PLACED)
    check(set(paths(search["runs"])), described("Keys of a search's `runs`"))
    check(set(paths(search["table"])), described("Keys of a search's `table`"), {"std"})


@pytest.mark.slow
def test_files_of_a_node_match_documentation(tmp_path):
    (port,) = free_ports(1)
    bash(
        f"p2pfl-node init anna --listen 127.0.0.1:{port} --part 0/20 --policy coordinated-fedavg\n"
        "p2pfl-node federation create anna --backup backup --set rounds=3\n"
        "p2pfl-node run anna --until-done --set mdns=false\n"
        "p2pfl-node invite anna bob >token\n"
        "p2pfl-node federation rotate anna --backup other\n"
        "p2pfl-node request anna --new-key >request\n",
        tmp_path,
    )
    listed = set(described("Folder of a node"))
    found = {path.name + "/" * path.is_dir() for path in Path(tmp_path, "anna").iterdir()}
    moved = {"membership", "membership.copy", "federation.toml", "checkpoint.earlier"}  # files of before, renamed
    rare = {"revocation", "revocation.old"}  # of a member that was revoked while it was off
    rare |= {"published", "left/"}  # of a restored folder, and of a federation that the node has left
    rare |= {"ledger"}  # of a node with a privacy budget
    rare |= {"fork", "membership.begin"}  # of an admission key with two histories; of a newcomer without the log
    assert found - listed == set()
    assert listed - found <= {"status.sock", "track/", *moved, *rare}
