"""Report of runs with several objectives and with clusters: its figures, recomputed from the files of the run."""

from __future__ import annotations

import json
import shutil

import duckdb
import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.sim.report.write import report, write_report
from tests.support.browser import DESKTOP, PHONE, browser, needs_chromium, opened_report, page
from tests.support.report_folders import clusters_of, edges_of, entry, leave, rounds_of, similarities_of
from tests.support.report_pages import figures, payload, rows, texts

OF_SEVERAL = {"fronts", "clusters-over-rounds", "rand", "clusters-count", "similarity"}


def several(nodes, higher=(True, False), **more):
    return {"objectives": {"higher_is_better": dict(zip(("gain", "cost"), higher, strict=True)), "nodes": nodes, **more}}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """Four nodes in two groups: "splits" has clusters, and node 3 misses round 2; "worse" has none."""
    groups = {"groups": ["x", "y", "x", "y"]}
    made = []
    for seed, best in ((0, 0.5), (1, 1.0)):
        index = {"rounds": [1, 2, 3], "count": [1, 2, 4], "adjusted_rand": [0.0, best, 0.0]}
        index |= {"best": best, "best_round": 2, "final": 0.0, "nodes": ["00", "10", "01", "11"]}
        points = [[1, 1], [3, 3], [1, 1], [1, 2]]  # the last point is worse than the first
        more = groups | several(points, reference=[0, 5], hypervolume=0.0, igd=0.0) | {"clusters": index}
        assigned = [(1, node, "") for node in range(4)] + [(2, 0, "0"), (2, 1, "1"), (2, 2, "0")]
        assigned += [(3, node, name) for node, name in enumerate(index["nodes"])]
        pairs = [(1, a, b, -0.25 if (a + b) % 2 else 0.5) for a in range(4) for b in range(a + 1, 4)]
        tables = {"clusters": clusters_of(*assigned), "similarities": similarities_of(*pairs, (2, 0, 2, 0.875))}
        made.append((entry("splits", seed, 4, 3, **more), rounds_of(4, 3, trained_test_accuracy=0.5), edges_of(), tables))
    points = several([[1, 4], [2, 4], [None, 1], [2, 4]], reference=[0, 5], hypervolume=0.0, igd=0.0)
    made.append((entry("worse", 0, 4, 3, **groups, **points), rounds_of(4, 3, trained_test_accuracy=0.5), edges_of()))
    return leave(tmp_path_factory.mktemp("by-hand") / "run", made)


@pytest.fixture(scope="module")
def text(by_hand):
    return report([by_hand])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A real run of FedPref on deep-sea treasure."""
    out = tmp_path_factory.mktemp("ran") / "run"
    assert main(["run", "fedpref-dst", "--set", "form=smoke", "--set", "rounds=6", "--set", "policy.epsilon=1e9",
                 "--only", "fedpref", "--out", str(out)]) == 0  # fmt: skip
    return out


# Objectives


def test_fronts_figure_merges_equal_points_of_a_run(text):
    found = figures(text)["fronts"]
    points = {(p["run"], p["x"], p["y"]): (p["label"], p["size"], p["on_front"]) for p in found["points"]}
    assert points == {
        ("splits", 1, 1): ("nodes 0, 2", 2, True),
        ("splits", 1, 2): ("node 3", 1, False),
        ("splits", 3, 3): ("node 1", 1, True),
        ("worse", 1, 4): ("node 0", 1, False),
        ("worse", 2, 4): ("nodes 1, 3", 2, True),  # node 2 has no value
    }
    assert (found["x_label"], found["y_label"]) == ("gain (more is better)", "cost (less is better)")
    assert found["fronts"] == {"x": True, "stepped": True}


def test_fronts_table_by_hand(text):
    found = rows(text, 1)
    # Above the reference (0, 5): a box of 1 x 4 and one of 2 x 2.
    assert found["splits"]["hypervolume"] == "8.00"
    assert found["worse"]["hypervolume"] == "2.00"
    assert (found["splits"]["solutions"], found["worse"]["solutions"]) == ("2.0", "1.0")
    assert found["splits"]["sparsity"] == "8.00"  # the squares of 3 - 1 and 3 - 1
    # The common front is that of "splits": (1, 1), nearest to (1, 4), and (3, 3), nearest to (2, 4).
    assert found["splits"]["IGD"] == "0.000"
    assert found["worse"]["IGD"] == f"{(3 + 2**0.5) / 2:.2f}"
    assert "0.000, 5.00: set by the task" in text


@pytest.mark.slow
def test_fronts_without_reference_use_point_beyond_worst(tmp_path):
    made = [(entry("a", 0, 2, 1, **several([[0, 0], [10, 20]], (True, True), igd=0.0)), rounds_of(2, 1), edges_of())]
    text = report([leave(tmp_path / "run", made)])
    assert "(-1.000, -2.00: a tenth of each objective&#x27;s range beyond its worst value" in text
    assert rows(text, 1)["a"]["hypervolume"] == f"{11 * 22:.2f}"


@pytest.mark.slow
def test_fronts_and_solutions_are_separate_for_each_loss_of_the_network(tmp_path):
    run = {"name": "a", "each": {"network.loss": [0.0, 0.1]}}
    made = [
        (entry(f"a, network.loss={loss}", 0, 2, 1, **several(points, (True, True), igd=0.0)), rounds_of(2, 1), edges_of())
        for loss, points in (("0.0", [[0, 0], [10, 20]]), ("0.1", [[1, 1], [5, 5]]))
    ]
    text = report([leave(tmp_path / "run", made, {"deadline": 5.0, "run": [run]})])
    found = figures(text)
    assert [found[id]["title"].partition(": ")[2] for id in ("fronts", "fronts-1")] == [
        "gain, cost; loss=0.0",
        "gain, cost; loss=0.1",
    ]
    assert [{point["run"] for point in found[id]["points"]} for id in ("fronts", "fronts-1")] == [
        {"a, network.loss=0.0"},
        {"a, network.loss=0.1"},
    ]
    assert all(point["on_front"] for point in found["fronts-1"]["points"] if point["x"] == 5)


@pytest.mark.slow
def test_fronts_of_three_objectives_have_view_of_each_pair(tmp_path):
    objectives = {"higher_is_better": dict.fromkeys("abc", True), "nodes": [[1, 2, 3], [1, 1, 4]], "igd": 0.0}
    made = [(entry("a", 0, 2, 1, objectives=objectives), rounds_of(2, 1), edges_of())]
    found = figures(report([leave(tmp_path / "run", made)]))["fronts"]
    assert [view["label"] for view in found["views"]] == ["a and b", "a and c", "b and c"]
    assert [p["more"] for p in found["views"][2]["points"]] == [[["a", 1]], [["a", 1]]]
    assert all(p["on_front"] for view in found["views"] for p in view["points"])  # although (1, 1) is worse than (1, 2)
    assert not any(view["fronts"]["stepped"] for view in found["views"])


@pytest.mark.slow
def test_fronts_of_real_run_match_summary_and_known_front(ran):
    text = report([ran])
    summary = json.loads((ran / "summary.json").read_text())
    (found,) = [run["objectives"] for run in summary["runs"] if run["name"] == "fedpref"]
    row = rows(text, 1)["fedpref"]
    assert row["hypervolume"] == f"{found['hypervolume']:.2f}"
    assert row["IGD"] == f"{found['igd']:.2f}"
    treasures = sorted(x for x, _ in figures(text)["fronts"]["known"])
    assert (len(treasures), treasures[-1]) == (10, 23.7)
    models = {(p["x"], p["y"]): p["size"] for p in figures(text)["fronts"]["points"] if p["run"] == "fedpref"}
    assert models == {tuple(values): found["nodes"].count(values) for values in found["nodes"]}


# Clusters


def lanes_of(figure, run):
    """Return the clusters of each node as (first round, last round, name), in the order of the rows."""
    found = figure["runs"][run]
    lanes = {}
    for row, a, b, block in zip(found["row"], found["from"], found["to"], found["block"], strict=True):
        lanes.setdefault(found["rows"][row], []).append((a + 0.5, b - 0.5, found["blocks"][block]))
    return lanes


def test_cluster_figure_shows_members_by_round(text):
    figure = figures(text)["clusters-over-rounds"]
    assert lanes_of(figure, "splits") == {
        "node 0": [(1, 1, "the cluster of all 4"), (2, 2, "cluster 0, of 2"), (3, 3, "cluster 00, of 1")],
        "node 2": [(1, 1, "the cluster of all 4"), (2, 2, "cluster 0, of 2"), (3, 3, "cluster 01, of 1")],
        "node 1": [(1, 1, "the cluster of all 4"), (2, 2, "cluster 1, of 1"), (3, 3, "cluster 10, of 1")],
        "node 3": [(1, 1, "the cluster of all 4"), (3, 3, "cluster 11, of 1")],
    }
    found = figure["runs"]["splits"]
    assert found["rows"] == ["node 0", "node 2", "node 1", "node 3"]  # this order leaves no gaps in clusters
    assert found["groups"] == ["group x", "group x", "group y", "group y"]
    assert [figure["keys"][k] for k in found["key"]] == ["group x"] * 6 + ["group y"] * 5
    assert "worse" not in figure["runs"]


def test_rand_figure_is_mean_over_seeds(text):
    found = figures(text)
    assert found["rand"]["y"]["splits"] == [0, 0.75, 0]
    assert found["clusters-count"]["y"]["splits"] == [1, 2, 4]
    assert found["rand"]["views"][0]["x"]["splits"] == [1, 2, 3]
    assert list(found["rand"]["y"]) == ["splits"]


def test_report_describes_clusters_of_a_run(text):
    said = (
        "Clusters equalled the true groups (adjusted Rand index 1.00) in: splits (in 1 of 2 seeds, first in round 2; at the"
    )
    assert f"{said} end 4 clusters of 4 nodes, index 0.00)." in text


def asked(words, *values):
    with duckdb.connect() as connection:
        return connection.execute(words, values).fetchall()


@pytest.mark.slow
def test_cluster_figure_matches_files_of_real_run(ran):
    figure = figures(report([ran]))["clusters-over-rounds"]
    words = f"SELECT node, cluster, min(round), max(round) FROM '{ran}/clusters.parquet' WHERE run = ? GROUP BY ALL"
    for run in ("fedpref", "fedpref+ft"):
        left = {(f"node {node}", first, last, cluster) for node, cluster, first, last in asked(words, run)}
        drawn = {
            (row, first, last, "" if "all" in name else name.partition(",")[0].removeprefix("cluster "))
            for row, parts in lanes_of(figure, run).items()
            for first, last, name in parts
        }
        assert drawn == left
        assert len({cluster for *_, cluster in left}) > 2  # it has split


# Similarities


def test_similarity_figure_shows_matrix_by_round(text):
    figure = figures(text)["similarity"]
    first, second = figure["frames"]["splits"]
    assert (first["label"], second["label"], figure["least"]) == ("round 1", "round 2", -1)
    assert figure["labels"] == ["0", "2", "1", "3"] or figure["labels"] == ["0", "1", "2", "3"]
    own, other = 0.5, -0.25  # nodes 0 and 2 are similar, and nodes 1 and 3
    expected = [[1, own, other, other], [own, 1, other, other], [other, other, 1, own], [other, other, own, 1]]
    assert np.reshape(first["values"], (4, 4)).tolist() == expected
    found = np.reshape(second["values"], (4, 4))
    assert found[0, 1] == pytest.approx(0.875, abs=0.0051)  # two decimals are kept
    assert np.isnan(found[2:]).all()
    assert np.isnan(found[:2, 2:]).all()


@pytest.mark.slow
def test_similarity_figure_matches_files_of_real_run(ran):
    figure = figures(report([ran]))["similarity"]
    for run, frames in figure["frames"].items():
        for frame in frames:
            words = f"SELECT node, other, similarity FROM '{ran}/similarities.parquet' WHERE run = ? AND round = ?"
            pairs = asked(words, run, int(frame["label"].removeprefix("round ")))
            values = np.reshape(frame["values"], (figure["n"], figure["n"]))
            place = {int(label): k for k, label in enumerate(figure["labels"])}
            for one, other, value in pairs:
                assert (
                    values[place[one], place[other]] == values[place[other], place[one]] == pytest.approx(value, abs=0.0051)
                )
            assert np.isfinite(values).sum() == 2 * len(pairs) + len({node for *both, _ in pairs for node in both})


# Elections


@pytest.fixture(scope="module")
def elected(tmp_path_factory):
    """Three nodes in ten virtual seconds: node 2 coordinates from 1 to 4 s, node 0 from 6 s; node 1 learns of it late."""
    seen = [
        (0.0, 0, 0, -1, "no coordinator yet"),
        (1.0, 2, 1, 2, ""),
        (1.5, 0, 1, 2, ""),
        (1.5, 1, 1, 2, ""),
        (4.0, 2, 1, -1, "no coordinator: 1 of 3 members reachable, 2 needed"),
        (5.0, 0, 1, -1, "no coordinator yet"),
        (5.5, 0, 2, -1, "no coordinator yet"),  # a term without a coordinator is not shown
        (6.0, 0, 2, 0, ""),
        (7.0, 1, 2, 0, ""),
    ]
    kinds = {"time": float, "node": np.int32, "term": np.int64, "coordinator": np.int32, "problem": np.str_}
    table = {name: np.array(column, kinds[name]) for name, column in zip(kinds, zip(*seen, strict=True), strict=True)}
    rounds = rounds_of(3, 2, virtual_time=lambda r, n: 5.0 * r)
    made = [(entry("wired", 0, 3, 2, time={"virtual_s": 10.0}), rounds, edges_of(), {"elections": table})]
    return leave(tmp_path_factory.mktemp("elected") / "run", made)


def test_coordinator_figure_shows_views_of_all_nodes(elected):
    found = figures(report([elected]))["coordinators"]["runs"]["wired"]
    lanes = {}
    for row, a, b, block in zip(found["row"], found["from"], found["to"], found["block"], strict=True):
        lanes.setdefault(found["rows"][row], []).append((a, b, found["blocks"][block]))
    alone = "no coordinator: 1 of 3 members reachable, 2 needed"
    assert lanes == {
        "coordinator": [
            (0, 1, "no coordinator yet"),
            (1, 4, "node 2, term 1"),
            (4, 6, f"no coordinator yet, {alone}"),
            (6, 10, "node 0, term 2"),
        ],
        "node 0": [
            (0, 1.5, "no coordinator yet"),
            (1.5, 5, "node 2, term 1"),
            (5, 6, "no coordinator yet"),
            (6, 10, "node 0, term 2"),
        ],
        "node 1": [(0, 1.5, "no coordinator yet"), (1.5, 7, "node 2, term 1"), (7, 10, "node 0, term 2")],
        "node 2": [(0, 1, "no coordinator yet"), (1, 4, "node 2, term 1"), (4, 10, alone)],
    }


def test_report_summarises_elections(elected):
    (said,) = texts(report([elected]))["elections"]
    assert said == (
        "wired: 2 coordinators in 2 terms. The first one was elected at 1.000 s of virtual time; the coordinator"
        " was lost 1 time."
        " There was no coordinator for 3.00 of 10.00 s (30.0 %)."
    )


def test_report_refuses_elections_with_unknown_node(elected, tmp_path):
    shutil.copytree(elected, tmp_path / "run")
    file = tmp_path / "run" / "elections.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE found AS SELECT * REPLACE (coordinator + 1 AS coordinator) FROM '{file}'")
        connection.execute(f"COPY found TO '{file}' (FORMAT parquet)")
    with pytest.raises(
        ConfigurationError, match=r"elections\.parquet does not match the summary: coordinator must be from -1 to 2"
    ):
        report([tmp_path / "run"])


@pytest.mark.slow
@needs_chromium
def test_election_timeline_is_drawn(elected, tmp_path):
    path = write_report([elected], tmp_path / "report.html")
    with browser() as chromium, page(chromium) as (shown, seen):
        shown.goto(path.as_uri())
        shown.wait_for_selector("html[data-ready]", state="attached")
        assert "node 2, term 1" in shown.locator("#coordinators svg.drawing").text_content()
        assert seen.problems == []


# Runs without these figures


@pytest.mark.slow
def test_report_of_plain_run_has_no_preference_figures(tmp_path):
    made = [(entry("plain", 0, 3, 2), rounds_of(3, 2, trained_test_accuracy=0.5), edges_of((1, 0, 1)))]
    text = report([leave(tmp_path / "run", made)])
    assert not OF_SEVERAL & set(figures(text))
    assert not {"objectives", "clusters", "elections"} & set(texts(text))
    assert "<h3>Fronts</h3>" not in text


@pytest.mark.slow
def test_comparison_of_plain_and_preference_runs(by_hand, tmp_path):
    made = [(entry("plain", 0, 3, 2), rounds_of(3, 2, trained_test_accuracy=0.5), edges_of((1, 0, 1)))]
    text = report([by_hand, leave(tmp_path / "other", made)])
    assert set(figures(text)) >= OF_SEVERAL
    assert payload(text)["runs"] == ["splits", "worse", "plain"]


# In a browser


@needs_chromium
@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)])
def test_preference_figures_are_drawn_without_requests(by_hand, tmp_path, size, dark):
    path = write_report([by_hand], tmp_path / "report.html")
    with browser() as chromium:
        found = opened_report(chromium, path, size=size, dark=dark)
    assert {figure["id"] for figure in found.figures if figure["drawn"] > 5 and not figure["empty"]} >= OF_SEVERAL
    assert (found.problems, found.requests, found.wide) == ([], [path.as_uri()], False)


@pytest.mark.slow
@needs_chromium
def test_cluster_figure_shows_tooltip_and_download(by_hand, tmp_path):
    path = write_report([by_hand], tmp_path / "report.html")
    with browser() as chromium, page(chromium) as (shown, seen):
        shown.goto(path.as_uri())
        shown.wait_for_selector("html[data-ready]", state="attached")
        figure = shown.locator("#clusters-over-rounds")
        shown.keyboard.press("Tab")
        figure.locator("svg.drawing").focus()
        shown.keyboard.press("Home")
        shown.keyboard.press("ArrowRight")
        assert shown.locator(".tip").inner_text().split("\n")[0] == "node 0"
        assert "cluster 0, of 2" in shown.locator(".tip").inner_text()
        with shown.expect_download() as download:
            figure.locator("button.csv").click()
        lines = download.value.path().read_text().splitlines()
        assert lines[0] == "run,node,from,to,group,cluster"
        assert 'splits,node 3,3,3,group y,"cluster 11, of 1"' in lines
        with shown.expect_download() as download:
            shown.locator("#similarity button.csv").click()
        assert "splits,round 1,0,1,-0.25" in download.value.path().read_text().splitlines()
        assert seen.problems == []
