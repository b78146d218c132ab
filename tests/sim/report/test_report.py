"""Report of finished runs: its figures, its text, and its errors for unreadable folders."""

from __future__ import annotations

import json
import re
import shutil

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.sim.formatting import column, difference, number, size
from p2pfl.sim.report import node_results
from p2pfl.sim.report.collaboration import MOST_NODES, count_links, order_nodes, place_nodes, strongest_links, windows
from p2pfl.sim.report.comparison import flat
from p2pfl.sim.report.figures import worst, worst_tenth
from p2pfl.sim.report.folder import Entry
from p2pfl.sim.report.series import folder_names
from p2pfl.sim.report.write import report, write_report
from p2pfl.sim.results.learning_curves import fill_gaps
from p2pfl.sim.results.objectives import on_front
from tests.support.browser import DESKTOP, PHONE, browser, needs_chromium, opened_report, page
from tests.support.report_folders import edges_of, entry, large, leave, rounds_of
from tests.support.report_pages import Tables, figures, payload, rows, texts


def an_entry(**more):
    given = {"name": "a", "seed": 0, "nodes": 4, "rounds": 4, "metric": "accuracy", "higher_is_better": True, "time": None}
    return Entry(**(given | more))


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """Two runs of three nodes and two rounds, with figures computed by hand.

    In run "a" the accuracy after training is node/10 + round/100 with seed 0, and 0.2 more with seed 1.
    """

    def table(more):
        return rounds_of(
            3,
            2,
            trained_test_accuracy=lambda r, n: n / 10 + r / 100 + more,
            merged_test_accuracy=lambda r, n: n / 10 + r / 100 + more + 0.05,
            trained_validation_loss=lambda r, n: 1 / r,
            virtual_time=lambda r, n: 2.0 * r + n / 4,
            bytes_out=lambda r, n: 100 * r,
            models_in=lambda r, n: n,
        )

    groups, edges = ["x", "y", "x"], edges_of((1, 0, 1), (1, 2, 0), (2, 2, 0), (2, 2, 0))
    made = []
    for seed in (0, 1):
        test = {"nodes": [0.1, 0.9, 0.5 + seed / 5], "mean": 0.5 + seed / 5, "per_group": {"x": 0.25, "y": 0.75 + seed / 4}}
        more = {"test": test, "groups": groups, "traffic": {"preparation": {"models": 1, "bytes": 50}}}
        made.append((entry("a", seed, 3, 2, **more), table(seed / 5), edges))
    alone = rounds_of(3, 2, merged_test_accuracy=0.5, bytes_out=0)
    more = {
        "groups": groups,
        "reported_stage": "merged",
        "test": {"mean": 0.55},
        "traffic": {"bytes": 0, "control_bytes": 0},
    }
    made += [(entry("b", seed, 3, 2, **more), alone, edges_of()) for seed in (0, 1)]
    scenario = {
        "seeds": [0, 1],
        "topology": {"name": "ring"},
        "run": [{"name": "a", "paper": 0.75}, {"name": "b", "rounds": 2}],
    }
    return leave(tmp_path_factory.mktemp("by-hand") / "it's [here]*", made, {"nodes": 3, "rounds": 2, **scenario})


@pytest.fixture(scope="module")
def text(by_hand):
    return report([by_hand])


# Curves


def test_curve_is_mean_over_nodes_and_seeds_with_deviation(text):
    found = figures(text)["learning"]
    assert found["kind"] == "lines"
    assert found["y"]["a"] == pytest.approx([0.21, 0.22])  # 0.1 + 0.01, and 0.2 more with the other seed
    deviation = 0.2 / np.sqrt(2)
    assert found["low"]["a"] == pytest.approx([0.21 - deviation, 0.22 - deviation])
    assert found["high"]["a"] == pytest.approx([0.21 + deviation, 0.22 + deviation])
    assert found["y"]["b"] == [0.5, 0.5]
    assert "Mean over the nodes" in found["note"]


def test_curve_has_views_over_rounds_bytes_and_time(text):
    views = {view["label"]: view["x"]["a"] for view in figures(text)["learning"]["views"]}
    assert views == {"rounds": [1, 2], "bytes sent": [350, 950], "virtual time": [2.5, 4.5]}


def test_worst_tenth_has_at_least_one_node(text):
    assert figures(text)["worst"]["y"]["a"] == pytest.approx([0.11, 0.12])  # node 0
    table = np.array([[0.1, 0.5, 0.9], [0.7, np.nan, 0.8]])
    np.testing.assert_array_equal(worst_tenth(table, True), [0.1, np.nan])
    np.testing.assert_array_equal(worst_tenth(table, False), [0.9, np.nan])
    assert worst_tenth(np.arange(40.0).reshape(2, 20), True).tolist() == [0.5, 20.5]


def test_gain_is_shown_for_runs_with_both_models(text):
    found = figures(text)["gain"]
    assert list(found["y"]) == ["a"]
    assert found["y"]["a"] == pytest.approx([0.05, 0.05])
    assert "Above 0 is an improvement" in found["note"]


def test_loss_curve_is_of_the_reported_model(text):
    assert figures(text)["loss"]["y"] == {"a": [1.0, 0.5]}


@pytest.mark.slow
def test_curve_uses_last_value_of_stopped_node(tmp_path):
    table = rounds_of(2, 3, trained_test_accuracy=lambda r, n: r + 10.0 * n)
    kept = ~((table["node"] == 1) & (table["round"] > 1))  # node 1 stops after round 1
    stopped = {name: column[kept] for name, column in table.items()}
    found = figures(report([leave(tmp_path / "run", [(entry("a", 0, 2, 3), stopped, edges_of())])]))
    assert found["learning"]["y"]["a"] == [6.0, 6.5, 7.0]  # (1 + 11) / 2, (2 + 11) / 2, (3 + 11) / 2
    assert found["models"]["y"]["a"] == [1.0, 0.5, 0.5]


@pytest.mark.slow
def test_curve_leaves_out_rounds_without_evaluation(tmp_path):
    table = rounds_of(2, 4, trained_test_accuracy=lambda r, n: r if r % 2 == 0 else np.nan)
    found = figures(report([leave(tmp_path / "run", [(entry("a", 0, 2, 4), table, edges_of())])]))
    assert found["learning"]["y"]["a"] == [2.0, 4.0]
    assert found["learning"]["views"][0]["x"]["a"] == [2, 4]
    assert found["learning"]["views"][1]["x"]["a"] == [40, 80]


@pytest.mark.slow
def test_curve_uses_last_value_of_shorter_seed(tmp_path):
    made = [
        (entry("a", seed, 1, 3), rounds_of(1, last, trained_test_accuracy=lambda r, n, s=seed: r + s * 1.0), edges_of())
        for seed, last in ((0, 3), (1, 2))
    ]
    found = figures(report([leave(tmp_path / "run", made)]))["learning"]
    assert found["y"]["a"] == [1.5, 2.5, 3.0]
    assert found["views"][2]["x"]["a"] == [1.0, 2.0, 2.5]


@pytest.mark.slow
def test_figures_of_early_stopped_run_end_at_last_round(tmp_path):
    made = [
        (
            entry("a", seed, 2, 9),
            rounds_of(2, last, trained_test_accuracy=0.5, models_in=2),
            edges_of((1, 0, 1), (last, 0, 1)),
        )
        for seed, last in ((0, 2), (1, 4))
    ]
    found = figures(report([leave(tmp_path / "run", made)]))
    assert found["models"]["views"][0]["x"]["a"] == [1, 2, 3, 4]
    assert found["models"]["y"]["a"] == [2.0, 2.0, 1.0, 1.0]  # with seed 0 no model arrived after round 2
    assert [frame["label"] for frame in found["over-time"]["frames"]["a"]] == ["round 1", "round 2"]
    assert found["communication"]["frames"]["a"][0]["values"] == [0, 0, 100, 0]
    assert found["topology"]["runs"]["a"]["links"] == [[0, 1, 1.0]]


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=3, max_size=3), min_size=1, max_size=8))
def test_fill_gaps_repeats_the_last_number(given):
    table = np.array(given, float)
    expected = table.copy()
    for r in range(1, len(expected)):
        for n in range(3):
            if np.isnan(expected[r, n]):
                expected[r, n] = expected[r - 1, n]
    np.testing.assert_array_equal(fill_gaps(table), expected)


# Results


@pytest.mark.slow
def test_distribution_shows_one_seed_and_marks_worst_nodes(by_hand, text):
    found = figures(text)["nodes"]
    assert found["runs"]["a"] == {"values": pytest.approx([0.1, 0.9, 0.5]), "worst": [1, 0, 0], "mean": pytest.approx(0.5)}
    other = figures(report([by_hand], seed=1))["nodes"]
    assert other["runs"]["a"]["values"] == pytest.approx([0.1, 0.9, 0.7])
    assert "seed 1" in other["note"]


@pytest.mark.slow
def test_distribution_of_many_nodes_shows_part_of_them(by_hand, monkeypatch):
    monkeypatch.setattr(node_results, "MOST_MARKS", 4)
    monkeypatch.setattr(node_results, "LEAST_MARKS", 2)
    found = figures(report([by_hand]))["nodes"]
    assert found["runs"]["a"] == {"values": pytest.approx([0.1, 0.9]), "worst": [1, 0], "mean": pytest.approx(0.5)}
    assert found["labels"] == ["value 1", "value 2"]
    assert "at most 2 marks" in found["note"]


def test_worst_selects_least_or_greatest_values():
    values = np.array([3.0, np.nan, *range(10, 29), 2.0])  # 21 numbers: the worst two
    assert np.flatnonzero(worst(values, True)).tolist() == [0, 21]
    assert np.flatnonzero(worst(values, False)).tolist() == [19, 20]
    assert worst(np.array([np.nan]), True).tolist() == [0]


def test_group_bars_show_mean_over_seeds(text):
    found = figures(text)
    assert found["group-0"]["runs"] == {"a": 0.25}
    assert found["group-1"]["runs"] == {"a": 0.875}


def test_report_table_has_means_deviations_and_paper_figure(text):
    found = rows(text)
    assert list(found) == ["a", "b"]
    assert found["a"]["accuracy"] == "0.60"  # two digits of the deviation
    assert found["b"]["accuracy"] == "0.55"
    assert found["a"]["± over seeds"] == "0.14"
    assert (found["a"]["group x"], found["a"]["group y"]) == ("0.25", "0.88")
    assert found["a"]["worst tenth"] == "0.50"
    assert found["a"]["bytes sent"] == "1.05 kB"
    assert found["a"]["paper"] == "0.75"
    assert found["b"]["paper"] == ""
    assert found["b"]["bytes sent"] == "0 B"


def test_report_is_readable_without_scripts(text):
    assert "<h1>by-hand</h1>" in text
    assert "&quot;ring&quot;" in text  # the scenario, as text
    assert "00" * 32 in text
    best = "Most accurate: not decided, because the margin is within its standard deviation over seeds; first a (0.60), next"
    assert f"{best} b (0.55); the margin is 0.05, its standard deviation 0.14." in text


# Collaboration


def test_matrix_counts_each_link_of_a_round_once(text):
    found = figures(text)["over-time"]
    assert (found["n"], found["labels"]) == (3, ["0", "2", "1"])  # in the order of the groups
    assert found["groups"] == [{"label": "x", "count": 2}, {"label": "y", "count": 1}]
    first, second = found["frames"]["a"]
    assert (first["label"], second["label"], first["max"]) == ("round 1", "round 2", 100)
    assert first["values"] == [0, 100, 0, 0, 0, 0, 100, 0, 0]  # 0 learned from 2, and 1 from 0
    assert second["values"] == [0, 100, 0, 0, 0, 0, 0, 0, 0]
    (whole,) = figures(text)["communication"]["frames"]["a"]
    assert (whole["label"], whole["values"]) == ("rounds 1 to 2", [0, 100, 0, 0, 0, 0, 50, 0, 0])


def test_report_names_run_without_links(text):
    assert list(figures(text)["over-time"]["frames"]) == ["a"]
    assert texts(text)["collaboration"] == ["Runs in which no node received a model of another: b."]


@pytest.mark.slow
def test_matrix_starts_with_peers_chosen_before_round_1(tmp_path):
    summary = entry("a", 0, 3, 2, chosen_before=["1 2", "", "0"])
    folder = leave(tmp_path / "run", [(summary, rounds_of(3, 2), edges_of((2, 1, 0)))])
    first, *others = figures(report([folder]))["over-time"]["frames"]["a"]
    assert (first["label"], first["values"]) == ("selected before round 1", [0, 100, 100, 0, 0, 0, 100, 0, 0])
    assert [frame["label"] for frame in others] == ["round 1", "round 2"]
    assert others[1]["values"] == [0, 100, 0, 0, 0, 0, 0, 0, 0]
    assert len(figures(report([folder]))["communication"]["frames"]["a"]) == 1
    given_summary(folder, lambda summary: summary["runs"][0].update(chosen_before=["7 x 1"]))
    assert figures(report([folder]))["over-time"]["frames"]["a"][0]["values"] == [0, 100, 0, 0, 0, 0, 0, 0, 0]


def test_within_group_share_is_computed_per_round(text):
    found = figures(text)["within-group"]
    assert found["y"]["a"] == [50.0, 100.0]
    assert "b" not in found["y"]


@pytest.mark.parametrize(
    ("rounds", "parts"),
    [
        (1, [(1, 1)]),
        (3, [(1, 1), (2, 2), (3, 3)]),
        (10, [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]),
        (7, [(1, 1), (2, 2), (3, 4), (5, 5), (6, 7)]),
    ],
)
def test_windows_divide_rounds_evenly(rounds, parts):
    assert windows(rounds, 5) == parts


@given(st.integers(1, 300), st.integers(1, 9), st.integers(16, 128))
def test_order_nodes_merges_many_nodes_into_few_rows(nodes, groups, most):
    given = an_entry(nodes=nodes, groups=[str(k * 7 % groups) for k in range(nodes)])
    order = order_nodes(given, most)
    assert len(order.sizes) <= max(most, 1)
    assert order.sizes.sum() == nodes
    assert order.sizes.min() >= 1
    assert sum(count for _, count in order.groups) == (len(order.sizes) if order.groups else 0)
    assert len(order.labels) == len(order.sizes)
    start = 0
    for name, count in order.groups:
        assert {given.groups[k] for k in range(nodes) if start <= order.place[k] < start + count} == {name}
        start += count


def test_matrix_cell_of_merged_nodes_is_share_of_pairs():
    order = order_nodes(an_entry(nodes=4), 2)
    assert order.place.tolist() == [0, 0, 1, 1]
    assert order.labels == ["0 and 1 more", "2 and 1 more"]
    links = edges_of((1, 0, 1), (1, 1, 0), (1, 0, 2), (2, 3, 2))  # the whole first row in round 1, and a quarter of a cell
    assert count_links(links, order, [(1, 1), (2, 2)]).tolist() == [[[100, 0], [25, 0]], [[0, 0], [0, 50]]]


def test_rare_link_in_long_run_is_visible():
    order = order_nodes(an_entry(nodes=2))
    assert count_links(edges_of((999, 0, 1)), order, [(1, 1000)]).tolist() == [[[0, 0], [1, 0]]]


# The drawing


def test_strongest_links_are_most_frequent_per_node():
    links = edges_of(*[(r, 1, 0) for r in (1, 2, 3)], (1, 2, 0), (2, 2, 0), (4, 0, 2))
    assert strongest_links(links, 3, 4) == [[1, 0, 0.75], [2, 0, 0.5], [0, 2, 0.25]]
    busy = edges_of(*[(r, src, dst) for dst in range(300) for r, src in ((1, 301), (1, 302), (2, 302))])
    found = strongest_links(busy, 303, 4)
    assert len(found) == 300
    assert {src for src, _, _ in found} == {302}


def test_equal_links_of_complete_graph_have_many_sources():
    n = 40
    found = strongest_links(edges_of(*[(1, src, dst) for src in range(n) for dst in range(n) if src != dst]), n, 1)
    times = np.bincount([src for src, _, _ in found], minlength=n)
    assert times.sum() == 5 * n
    assert np.count_nonzero(times) >= 35
    assert times.max() <= 14


def test_topology_figure_has_edges_and_links_of_each_run(text):
    found = figures(text)["topology"]
    assert found["title"] == "Topology: complete, 3 nodes"
    assert sorted(map(sorted, found["edges"])) == [[0, 1], [0, 2], [1, 2]]
    assert found["nodes"]["group"] == ["x", "y", "x"]
    assert found["runs"]["a"] == {"value": pytest.approx([0.1, 0.9, 0.5]), "links": [[2, 0, 1.0], [0, 1, 0.5]]}
    assert list(found["runs"]) == ["a"]


@pytest.mark.slow
def test_topology_of_many_nodes_is_not_drawn(tmp_path):
    n = MOST_NODES + 1
    folder = leave(tmp_path / "run", [(entry("a", 0, n, 1), rounds_of(n, 1), edges_of((1, 0, 1)))])
    text = report([folder])
    found = figures(text)
    assert "topology" not in found
    assert "communication" in found
    assert "The topologies of more than 2,000 nodes are not drawn: a." in texts(text)["collaboration"]


@pytest.mark.slow
def test_topology_figures_name_the_topology_and_list_its_runs(tmp_path):
    tables = {f"small, {k}": {"name": "small-world", "degree": k} for k in (2, 4)} | {"dac, all": {"name": "complete"}}
    runs = [{"name": name, "topology": table} for name, table in tables.items()]
    made = [
        (entry(name, 0, 6, 1, topology=table["name"]), rounds_of(6, 1), edges_of((1, 0, 1)))
        for name, table in tables.items()
    ]
    found = figures(report([leave(tmp_path / "run", made, {"run": runs})]))
    assert [found[f"topology{k}"]["title"] for k in ("", "-1", "-2")] == [
        "Topology: small-world (degree=2), 6 nodes",
        "Topology: small-world (degree=4), 6 nodes",
        "Topology: complete, 6 nodes",
    ]
    assert found["topology-2"]["note"].startswith("Of dac, all. Links: ")


@pytest.mark.slow
def test_topology_that_changes_has_the_graph_of_each_round(tmp_path):
    runs = [
        {"name": "base", "topology": {"name": "base-k"}},
        {"name": "drawn", "topology": {"name": "random-matching"}},
        {"name": "ring", "topology": {"name": "ring"}},
    ]
    made = [
        (entry(run["name"], 0, 4, 1, topology=run["topology"]["name"]), rounds_of(4, 1), edges_of((1, 0, 1))) for run in runs
    ]
    found = figures(report([leave(tmp_path / "run", made, {"run": runs})]))
    base = found["graph-by-round"]
    assert base["title"] == "Graph of each round: base-k, 4 nodes"
    assert "The graphs repeat after 2 rounds." in base["note"]
    assert [frame["label"] for frame in base["frames"]["base"]] == ["round 1", "round 2"]
    first, second = (np.reshape(frame["values"], (4, 4)) // 100 for frame in base["frames"]["base"])
    assert first.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert second.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]
    assert "Each round has a new random graph; the first 6 are shown." in found["graph-by-round-1"]["note"]
    assert "graph-by-round-2" not in found
    drawings = {found[f"topology{k}"]["title"]: found[f"topology{k}"] for k in ("", "-1", "-2")}
    assert sorted(map(len, (each["edges"] for each in drawings.values()))) == [0, 4, 4]


@pytest.mark.slow
def test_topology_figure_uses_geographic_positions(tmp_path):
    graph = nx.Graph()
    for k, (latitude, longitude) in enumerate([(50.0, 0.0), (50.0, 10.0), (60.0, 5.0)]):
        graph.add_node(k, label=f"city {k}", Latitude=latitude, Longitude=longitude)
    graph.add_edges_from([(0, 1), (1, 2)])
    file = tmp_path / "net.graphml"
    nx.write_graphml(graph, file)
    scenario = {"run": [{"name": "a", "topology": {"file": str(file)}}]}
    summary = entry("a", 0, 3, 1, labels=["city 0", "city 1", "city 2"])
    folder = leave(tmp_path / "run", [(summary, rounds_of(3, 1), edges_of((1, 0, 1)))], scenario)
    nodes = figures(report([folder]))["topology"]["nodes"]
    assert nodes["label"] == ["city 0", "city 1", "city 2"]
    assert nodes["x"][0] < nodes["x"][2] < nodes["x"][1]  # west to east is left to right
    assert nodes["y"][2] == 0
    assert nodes["y"][0] == nodes["y"][1] == 1  # north is up
    file.unlink()
    found = figures(report([folder]))["topology"]
    assert found["edges"] == [[0, 1]]  # what was used
    assert "does not suffice to rebuild the topology" in found["note"]


@pytest.mark.parametrize("name", ["ring", "torus", "star", "k-regular", "scale-free", "erdos-renyi"])
def test_place_nodes_is_distinct_and_deterministic(name):
    from p2pfl.sim.scenario.topology import topology

    graph = topology({"name": name}, 36, 0)
    x, y = place_nodes(graph, name)
    assert len({(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)}) == 36
    assert 0 <= x.min() <= x.max() <= 1
    assert 0 <= y.min() <= y.max() <= 1
    again = place_nodes(graph, name)
    assert np.array_equal([x, y], again)


def test_place_nodes_of_large_graph_is_distinct():
    x, y = place_nodes(nx.barabasi_albert_graph(1500, 2, seed=0), "scale-free")
    assert len({(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)}) > 1400


# Traffic


def test_traffic_figure_divides_bytes_by_purpose(text):
    assert figures(text)["sent"]["runs"]["a"]["parts"] == {"models": 900, "control": 100, "preparation": 50}
    assert figures(text)["sent"]["runs"]["b"]["parts"] == {"models": 0}


@pytest.mark.slow
def test_best_run_is_chosen_among_equal_tasks(tmp_path):
    means = {"a": 0.5, "b": 0.7, "c": 0.9, "d": 0.9, "e": 0.3}
    tasks = {"a": {"labels": 2}, "b": {"labels": 2, "lr": 0.5}, "c": {"labels": 3}, "d": {"labels": 3}, "e": {"labels": 3}}
    made = [
        (entry(name, 0, 2, 1, test={"mean": mean}, trace=name), rounds_of(2, 1), edges_of()) for name, mean in means.items()
    ]
    runs = [{"name": name, "task": {"name": "digits", **task}, "seed": k} for k, (name, task) in enumerate(tasks.items())]
    text = report([leave(tmp_path / "run", made, {"run": runs})])
    assert "first b (0.700), next a (0.500)." in text
    assert "first c (0.900), next d (0.900)." in text
    assert not any(point["on_front"] for view in figures(text)["cost"]["views"] for point in view["points"])


def test_cost_figure_shows_bytes_and_time(text):
    by_bytes, by_time = figures(text)["cost"]["views"]
    a, b = by_bytes["points"]
    assert (a["run"], a["x"], a["y"], a["on_front"]) == ("a", 1050, pytest.approx(0.6), True)
    assert a["y_dev"] == pytest.approx(0.2 / np.sqrt(2))
    assert (b["x"], b["on_front"]) == (0, True)
    assert by_time["points"][0]["x"] == 2.0


def test_on_front_marks_non_dominated_points():
    assert on_front([1, 2, 2, 3], [0.5, 0.7, 0.6, 0.7], True) == [True, True, False, False]
    assert on_front([1, 2, 3], [5.0, 7.0, 4.0], False) == [True, False, True]
    assert on_front([1, 1], [0.5, 0.5], True) == [True, True]
    assert on_front([], [], True) == []


@pytest.mark.slow
def test_budget_figures_show_share_of_limit(tmp_path):
    budget = {"models": {"least": 2, "greatest": 5, "used": 0.75}, "bytes": {"least": 9, "greatest": 9, "used": 0.5}}
    made = [(entry("a", 0, 2, 1, traffic={"budget": budget}), rounds_of(2, 1), edges_of())]
    made.append((entry("b", 0, 2, 1), rounds_of(2, 1), edges_of()))
    found = figures(report([leave(tmp_path / "run", made)]))
    assert (found["budget-models"]["runs"], found["budget-models"]["limit"]) == ({"a": 75.0}, {"a": 100})
    assert found["budget-models"]["note"].endswith("Limits: a: 2 to 5.")
    assert found["budget-bytes"]["runs"] == {"a": 50.0}
    assert "budget-held" not in found


# Target and sweep


def given_summary(folder, change):
    """Change the summary.json of a folder, and return the folder."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))
    return folder


@pytest.mark.slow
def test_target_figures_show_rounds_time_and_bytes(tmp_path):
    costs = {"round": 3, "virtual_s": 4.0, "bytes": 700}
    made = [
        (entry(name, seed, 2, 1), rounds_of(2, 1, trained_test_accuracy=0.5), edges_of())
        for name in "abc"
        for seed in (0, 1)
    ]

    def change(summary):
        summary["target"] = 0.8
        reached = [costs, costs | {"round": 5}, costs, None, None, None]
        for run, value in zip(summary["runs"], reached, strict=True):
            run["reached"] = value

    text = report(
        [
            given_summary(
                leave(
                    tmp_path / "run", made, {"seeds": [0, 1], "run": [{"name": n, "rounds": k} for k, n in enumerate("abc")]}
                ),
                change,
            )
        ]
    )
    found = figures(text)
    assert found["target-round"]["runs"] == {"a": 4.0, "b": None, "c": None}
    assert found["target-virtual-s"]["runs"]["a"] == 4.0
    assert found["target-bytes"]["missing"] == {"b": "by 1 of 2 seeds", "c": "never"}
    assert texts(text)["target"] == [
        "The target is a mean test accuracy of 0.8 or more, of each node's model of the round.",
        "Runs that never reach a mean test accuracy of 0.800: c.",
        "Runs that reach a mean test accuracy of 0.800 with some seeds only: b (1 of 2).",
    ]
    assert found["learning"]["target"] == 0.8


@pytest.mark.slow
def test_target_that_no_run_reaches_has_one_line_and_no_figures(tmp_path):
    made = [(entry(name, 0, 2, 1), rounds_of(2, 1, trained_test_accuracy=0.5), edges_of()) for name in "ab"]

    def change(summary):
        summary["target"] = 0.8
        for run in summary["runs"]:
            run["reached"] = None

    runs = [{"name": name, "rounds": k} for k, name in enumerate("ab")]
    text = report([given_summary(leave(tmp_path / "run", made, {"seeds": [0], "run": runs}), change)])
    assert texts(text)["target"][1:] == ["No run reaches a mean test accuracy of 0.800."]
    assert not [id for id in figures(text) if id.startswith("target-")]


@pytest.mark.slow
def test_sweep_figure_shows_metric_against_varied_key(tmp_path):
    values = [(1, "x"), (10, "x"), (10, "y")]
    made = [
        (entry(f"policy.tau={tau}, policy.word={word}", 0, 2, 1, test={"mean": tau / 20}), rounds_of(2, 1), edges_of())
        for tau, word in values
    ]

    def change(summary):
        summary["varied"] = {"policy.tau": [1, 10], "policy.word": ["x", "y"]}
        for run, (tau, word) in zip(summary["runs"], values, strict=True):
            run["varied"] = {"policy.tau": tau, "policy.word": word}

    text = report([given_summary(leave(tmp_path / "run", made), change)])
    found = figures(text)["against-policy-tau"]
    assert [(point["x"], point["y"], point["on_front"]) for point in found["points"]] == [
        (1, 0.05, False),
        (10, 0.5, False),
        (10, 0.5, False),
    ]
    assert [point["label"] for point in found["points"]] == ["word=x", "word=x", "word=y"]
    assert found["joined"]
    assert (
        found["note"]
        == "Each point is a run: the mean over the nodes, then over the seeds; of each node's model of its best round by"
        " validation. Lines connect runs that differ in this key only."
    )
    assert "against-policy-word" not in figures(text)
    assert texts(text)["sweep"][0] == "Varied: policy.tau (1, 10), policy.word (x, y)."
    assert [section["id"] for section in payload(text)["sections"]][:3] == ["grid", "results", "sweep"]
    assert list(figures(text)).count("cost") == 1


@pytest.mark.slow
def test_sweep_of_topologies_has_labels_without_name_keys(tmp_path):
    budget = {"models": {"least": 2, "greatest": 2, "used": 0.5}}
    names = [f"topology.name={word}, policy.tau=1" for word in ("ring", "complete")]
    made = [(entry(name, 0, 2, 1, traffic={"budget": budget}), rounds_of(2, 1), edges_of()) for name in names]

    def change(summary):
        summary["varied"] = {"topology.name": ["ring", "complete"], "policy.tau": [1]}
        for run, word in zip(summary["runs"], ("ring", "complete"), strict=True):
            run["varied"] = {"topology.name": word, "policy.tau": 1}

    text = report([given_summary(leave(tmp_path / "run", made), change)])
    assert texts(text)["sweep"] == [
        "Varied: topology (ring, complete), policy.tau (1).",
        "No figure for values that are not numbers: topology, policy.tau; see the table.",
    ]
    assert figures(text)["budget-models"]["note"].endswith("Limits: topology=ring, tau=1: 2; topology=complete, tau=1: 2.")


@pytest.fixture
def sweep_of_20(tmp_path):
    """Twenty runs; runs that send more are better, except every second one, which is worst."""
    made = []
    for k in range(20):
        more = {"test": {"mean": k / 40 + 0.4 if k % 2 else 0.1}, "traffic": {"bytes": 1000 * (k + 1)}}
        made.append((entry(f"tau={k}", 0, 2, 1, **more), rounds_of(2, 1, trained_test_accuracy=0.5), edges_of((1, 0, 1))))

    def change(summary):
        summary["varied"] = {"policy.tau": list(range(20))}
        for k, run in enumerate(summary["runs"]):
            run["varied"] = {"policy.tau": k}

    return given_summary(leave(tmp_path / "run", made), change)


@pytest.mark.slow
def test_report_of_many_runs_shows_best_ones_initially(sweep_of_20):
    text = report([sweep_of_20])
    assert payload(text)["shown"] == [f"tau={k}" for k in (5, 7, 9, 11, 13, 15, 17, 19)]
    assert figures(text)["against-policy-tau"]["unfiltered"]
    assert figures(text)["cost"]["unfiltered"]
    assert "unfiltered" not in figures(text)["learning"]


@pytest.mark.slow
def test_report_of_many_runs_shows_one_in_each_figure(tmp_path):
    limited = {"traffic": {"budget": {"models": {"least": 1, "greatest": 1, "used": 0.5}}}}
    made = [
        (
            entry(f"run {k}", 0, 2, 1, test={"mean": 0.9 - k / 40}, **(limited if k == 19 else {})),
            rounds_of(2, 1),
            edges_of(),
        )
        for k in range(20)
    ]
    text = report([leave(tmp_path / "run", made)])
    assert list(figures(text)["budget-models"]["runs"]) == ["run 19"]  # the worst one
    assert payload(text)["shown"] == [*(f"run {k}" for k in range(8)), "run 19"]


@pytest.mark.slow
@needs_chromium
def test_sweep_figures_draw_all_runs_and_front(sweep_of_20):
    path = write_report([sweep_of_20])
    with browser() as chromium, page(chromium) as (shown, seen):
        shown.goto(path.as_uri())
        shown.wait_for_selector("html[data-ready]", state="attached")
        assert shown.locator("#cost .mark").count() == 20
        assert shown.locator("#against-policy-tau .mark").count() == 20
        line = shown.locator("#cost .front").get_attribute("d")
        assert re.fullmatch(r"M[\d.]+ [\d.]+(H[\d.]+V[\d.]+){10}", line)  # ten steps, from tau=0 through the odd values
        assert shown.locator(".chip[aria-pressed=true]").count() == 8
        assert seen.problems == []


# Several folders


@pytest.fixture
def pair(tmp_path):
    """Two folders with a run of the same name but different rate and mean; each has another run, too."""
    folders = []
    for k, (name, own) in enumerate((("one", "first"), ("two", "second"))):
        scenario = {
            "seeds": [0],
            "run": [
                {"name": "both", "task": {"name": "digits", "lr": 0.1 + k / 10}, "rounds": 2},
                {"name": own, "policy": {"name": "local"}, "rounds": 2},
            ],
        }
        made = [
            (entry(run, 0, 2, 2, test={"mean": 0.5 + k / 4}), rounds_of(2, 2, trained_test_accuracy=0.5), edges_of())
            for run in ("both", own)
        ]
        folders.append(leave(tmp_path / name, made, scenario))
    return folders


def test_runs_of_equal_name_are_prefixed_with_folder(pair):
    assert payload(report(pair))["runs"] == ["one: both", "two: both", "first", "second"]


@pytest.mark.slow
def test_comparison_lists_differences_of_scenarios(pair):
    text = report(pair)
    (found,) = [table for table in Tables(text).tables if table[0][0] == "Key"]
    assert found == [["Key", "one", "two"], ["task.lr", "0.1", "0.2"]]
    assert "Only in one: first." in text
    assert "Only in two: second." in text


@pytest.mark.slow
def test_comparison_table_shows_difference(pair):
    text = report(pair)
    heads, line = Tables(text).tables[0]
    assert (heads[0], heads[-2:]) == ("Run", ["difference", "± of the difference"])
    assert (line[0], line[1], line[3], line[-2:]) == ("both", "0.500", "0.750", ["+0.250", ""])
    assert [table[1][0] for table in Tables(text).tables[1:3]] == ["both", "both"]


@pytest.mark.slow
def test_comparison_of_different_metrics_has_no_difference(pair):
    def change(summary):
        summary["runs"][0].update(metric="mse", higher_is_better=False)

    text = report([pair[0], given_summary(pair[1], change)])
    assert "difference" not in Tables(text).tables[0][0]
    assert "<dd>accuracy, higher is better; mse, lower is better</dd>" in text


@pytest.mark.slow
def test_comparison_without_common_run_uses_all_runs(tmp_path):
    folders = [
        leave(
            tmp_path / name,
            [(entry(name, 0, 2, rounds), rounds_of(2, rounds), edges_of())],
            {"run": [{"name": name, "rounds": rounds}]},
        )
        for name, rounds in (("one", 2), ("two", 3))
    ]
    text = report(folders)
    (found,) = [table for table in Tables(text).tables if table[0][0] == "Key"]
    assert found[1:] == [["rounds", "2", "3"]]
    assert "No run has the same name in all folders" in text


@pytest.mark.slow
def test_comparison_of_same_scenario_reports_no_difference(by_hand, tmp_path):
    shutil.copytree(by_hand, tmp_path / "again")
    assert "The runs with the same names have equal settings." in report([by_hand, tmp_path / "again"])


def test_folder_names_use_shortest_distinct_suffix(tmp_path):
    assert folder_names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert folder_names([tmp_path / "a" / "run", tmp_path / "b"]) == ["run", "b"]


def test_flat_joins_keys_with_dots():
    assert flat({"name": "x", "task": {"name": "digits", "of": {"k": [1]}}, "paper": 1}) == {
        "task.name": "digits",
        "task.of.k": [1],
    }


# Destination


@pytest.mark.slow
def test_report_is_written_into_the_folder(by_hand, capsys):
    assert main(["report", str(by_hand)]) == 0
    assert capsys.readouterr().out == f"report: {by_hand / 'report.html'}\n"
    assert (by_hand / "report.html").read_text() == report([by_hand])


@pytest.mark.slow
def test_comparison_is_written_into_current_folder(pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *map(str, pair)]) == 0
    assert (tmp_path / "report.html").exists()
    assert not (pair[0] / "report.html").exists()
    assert main(["report", *map(str, pair), "--out", "there.html"]) == 0
    assert "there.html" in capsys.readouterr().out
    assert (tmp_path / "there.html").read_text() == (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_write_report_accepts_folder_as_destination(by_hand, tmp_path):
    assert write_report([by_hand], tmp_path) == tmp_path / "report.html"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "{run}"], "a folder is named twice"),
        (["{run}", "--seed", "7"], "has no seed 7; its seeds are 0, 1"),
        (["{run}", "--out", "{run}/nowhere/report.html"], "cannot write"),
        (["{run}/nowhere"], "nowhere does not exist"),
        (["{run}/.."], "holds no run: it has no summary.json"),
    ],
)
def test_report_with_invalid_arguments_reports_one_line(by_hand, capsys, arguments, words):
    assert main(["report", *(argument.format(run=by_hand) for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert words in printed.err


@pytest.mark.slow
def test_run_writes_report_with_every_section(tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["run", "dpfl-two-groups", "--set", "form=smoke", "--seeds", "0", "--engine", "local"]
    assert main([*asked, "--out", str(out)]) == 0
    assert str(out / "report.html") in capsys.readouterr().out
    found = payload((out / "report.html").read_text())
    assert [section["id"] for section in found["sections"]] == ["results", "learning-curves", "collaboration", "traffic"]
    assert all(section["figures"] for section in found["sections"])


@pytest.mark.slow
def test_run_with_no_report_option_writes_no_report(tmp_path, capsys):
    asked = ["run", "digits-gossip", "--set", "form=smoke", "--only", "local", "--engine", "local", "--no-report"]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    assert "report.html" not in capsys.readouterr().out
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_run_with_failing_report_adds_note(tmp_path, capsys, monkeypatch):
    def broken(paths):
        raise ZeroDivisionError("of no use")

    monkeypatch.setattr("p2pfl.sim.report.write.write_report", broken)
    asked = ["run", "digits-gossip", "--set", "form=smoke", "--only", "local", "--engine", "local"]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    assert "note: report.html was not made: ZeroDivisionError: of no use" in capsys.readouterr().out
    assert (tmp_path / "out" / "summary.json").exists()


# Damaged folders


def broken(by_hand, tmp_path, change):
    folder = tmp_path / "broken"
    shutil.copytree(by_hand, folder)
    change(folder)
    return folder


def cut(name):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def swap_tables(folder):
    (folder / "edges.parquet").write_bytes((folder / "rounds.parquet").read_bytes())


def other_numbers(key, value):
    def change(folder):
        given_summary(folder, lambda summary: [run.update({key: value}) for run in summary["runs"]])

    return change


def unfinished(folder):
    (folder / "summary.json").unlink()
    (folder / "parts").mkdir()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "holds no run: it has no summary.json"),
        (unfinished, "is not finished; continue with p2pfl-sim run --resume"),
        (cut("summary.json"), "summary.json is damaged, or not the summary of a run"),
        (lambda folder: (folder / "summary.json").write_bytes(b"\xff\xfe"), "summary.json is damaged"),
        (lambda folder: (folder / "summary.json").write_text("[]"), "summary.json is damaged"),
        (lambda folder: (folder / "summary.json").write_text("[" * 100_000), "summary.json is damaged"),
        (lambda folder: (folder / "summary.json").write_text('{"scenario": "x", "runs": []}'), "lists no run"),
        (lambda folder: (folder / "summary.json").write_text('{"scenario": "x", "runs": [{"name": 1}]}'), "$.runs[0]"),
        (other_numbers("traffic", {"bytes": "many"}), "$.runs[0].traffic.bytes"),
        (other_numbers("traffic", {"bytes": 1}), "missing required field"),
        (other_numbers("time", {"virtual_s": []}), "$.runs[0].time.virtual_s"),
        (cut("rounds.parquet"), "rounds.parquet is damaged"),
        (cut("edges.parquet"), "edges.parquet is damaged"),
        (lambda folder: (folder / "edges.parquet").write_bytes(b""), "edges.parquet is damaged"),
        (lambda folder: (folder / "rounds.parquet").unlink(), "holds no complete run: it has no rounds.parquet"),
        (swap_tables, "edges.parquet is not a table of a run: it has no column src, dst"),
        (other_numbers("nodes", 2), "does not match the summary: node must be from 0 to 1"),
        (other_numbers("rounds", 1), "does not match the summary: round must be from 1 to 1"),
    ],
)
def test_report_of_damaged_folder_reports_one_line(by_hand, tmp_path, capsys, change, words):
    folder = broken(by_hand, tmp_path, change)
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    with pytest.raises(ConfigurationError):
        report([folder])


@pytest.mark.parametrize("content", [None, b"name = ", b"\xff\xff", b"run = 3", b'run = [{ name = "a", topology = 3 }]'])
def test_report_without_readable_scenario_is_written(by_hand, tmp_path, content):
    def change(folder):
        (folder / "scenario.toml").unlink()
        if content is not None:
            (folder / "scenario.toml").write_bytes(content)

    found = figures(report([broken(by_hand, tmp_path, change)]))
    assert found["learning"]["y"]["a"] == pytest.approx([0.21, 0.22])
    assert "does not suffice to rebuild the topology" in found["topology"]["note"]


@pytest.mark.slow
def test_comparison_names_folder_without_scenario(by_hand, tmp_path):
    folder = broken(by_hand, tmp_path, lambda folder: (folder / "scenario.toml").unlink())
    assert "no readable scenario.toml in broken" in report([by_hand, folder])


def test_report_ignores_unknown_keys_of_summary(by_hand, tmp_path):
    def change(folder):
        given_summary(folder, lambda summary: [run.update(later={"x": 1}) for run in summary["runs"]])

    assert report([broken(by_hand, tmp_path, change)])


def test_report_of_run_without_numbers_is_written(tmp_path):
    nothing = {
        "mean": float("nan"),
        "std": float("nan"),
        "worst_decile": float("nan"),
        "nodes": [float("nan")] * 2,
        "per_group": {},
    }
    summary = entry("a", 0, 2, 0, test=nothing)
    text = report([leave(tmp_path / "run", [(summary, rounds_of(2, 0), edges_of())])])
    assert rows(text)["a"]["accuracy"] == ""
    assert "learning" not in figures(text)


def test_report_separates_metrics_and_node_counts(tmp_path):
    made = [
        (entry("a", 0, 2, 2), rounds_of(2, 2, trained_test_accuracy=0.5, trained_validation_loss=1.0), edges_of((1, 0, 1))),
        (
            entry("b", 0, 3, 2, metric="mse", higher_is_better=False),
            rounds_of(3, 2, trained_test_mse=9.0, trained_validation_loss=9.0),
            edges_of((1, 0, 1)),
        ),
    ]
    found = figures(report([leave(tmp_path / "run", made)]))
    assert (list(found["learning"]["y"]), list(found["learning-mse"]["y"])) == (["a"], ["b"])
    assert (list(found["loss"]["y"]), list(found["loss-mse"]["y"])) == (["a"], ["b"])
    assert found["loss-mse"]["title"] == "Validation loss of the runs with a test mse"
    assert (found["over-time"]["n"], found["over-time-1"]["n"]) == (2, 3)
    assert found["over-time-1"]["title"] == "Sources of each node over time: b"
    assert {"topology", "topology-1"} <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("values", "spreads", "shown"),
    [
        ([10.34, 9.87, 4123.5], [], ["10.34", "9.87", "4,123.50"]),  # as if the third had diverged
        ([5000, 10, 3000], [], ["5,000", "10", "3,000"]),
        ([0.5, 12], [], ["0.50", "12.00"]),
        ([10.34, 4123.5], [2.5, 900], ["10.3", "4,123.5"]),
    ],
)
def test_one_great_value_hides_no_digit_of_the_others(values, spreads, shown):
    assert column(values, spreads) == shown


def test_number_difference_and_size_formats():
    assert [number(value) for value in (0.12345, 12.345, 12345.6, None, float("nan"))] == [
        "0.123",
        "12.35",
        "12,346",
        "",
        "",
    ]
    assert [difference(value) for value in (0.5, -0.0001, 12.345, None)] == ["+0.500", "+0.000", "+12.35", ""]
    assert [size(count) for count in (0, 999, 1050, 999_600, 2.5e6, None)] == [
        "0 B",
        "999 B",
        "1.05 kB",
        "1 MB",
        "2.5 MB",
        "",
    ]


# In a browser

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>",
    "it's & so",
    "__proto__",
    "a\u202eb",
    "$title",
]


@pytest.mark.slow
@needs_chromium
def test_report_draws_every_figure_without_requests(tmp_path):
    out = tmp_path / "out"
    asked = ["run", "dpfl-budgets", "--set", "form=smoke", "--seeds", "0:2", "--only", "dpfl", "--engine", "local"]
    assert main([*asked, "--out", str(out)]) == 0
    path = out / "report.html"
    expected = list(figures(path.read_text()))
    assert {"nodes", "learning", "worst", "gain", "loss", "over-time", "communication", "topology"} <= set(expected)
    assert {"sent", "cost", "budget-models", "models"} <= set(expected)
    assert path.stat().st_size < 5e6
    with browser() as chromium:
        for size_of_page, dark in ((DESKTOP, False), (PHONE, True)):
            found = opened_report(chromium, path, size=size_of_page, dark=dark)
            assert [figure["id"] for figure in found.figures] == expected
            assert all(figure["drawn"] > 5 and not figure["empty"] for figure in found.figures), found.figures
            assert found.requests == [path.as_uri()]
            assert found.problems == []
            assert not found.wide


@pytest.mark.slow
@needs_chromium
def test_report_shows_hostile_names_as_text(tmp_path):
    made = []
    for k, name in enumerate(HOSTILE):
        more = {"groups": [HOSTILE[0], HOSTILE[1]], "labels": [HOSTILE[1], HOSTILE[2]], "topology": HOSTILE[0]}
        test = {"per_group": {HOSTILE[0]: 0.5, HOSTILE[1]: 0.6}}
        made.append(
            (entry(name, 0, 2, 2, test=test, **more), rounds_of(2, 2, trained_test_accuracy=k / 10), edges_of((1, 0, 1)))
        )
    scenario = {
        "description": HOSTILE[1],
        "name": HOSTILE[0],
        "run": [{"name": name, "rounds": k} for k, name in enumerate(HOSTILE)],
    }
    path = write_report([leave(tmp_path / "run", made, scenario)])
    with browser() as chromium:
        found = opened_report(chromium, path)
    assert found.problems == []
    assert found.requests == [path.as_uri()]
    plain = write_report([leave(tmp_path / "plain", [(entry("a", 0, 2, 2), rounds_of(2, 2), edges_of())])])
    with browser() as chromium:
        assert found.marks == opened_report(chromium, plain).marks  # no more elements than a page with plain names
    for name in ("<script>alert(1)</script>", "it's & so", "$title", "__proto__"):
        assert name in found.text
    assert payload(path.read_text())["runs"] == HOSTILE


@pytest.mark.slow
@needs_chromium
def test_report_of_large_study_is_drawn(tmp_path):
    path = write_report([large(tmp_path / "large")])
    assert path.stat().st_size < 5e6
    with browser() as chromium:
        found = opened_report(chromium, path)
    assert all(figure["drawn"] > 5 for figure in found.figures)
    assert (found.problems, found.requests) == ([], [path.as_uri()])


@pytest.mark.slow
def test_report_of_a_thousand_nodes_is_below_5_mb(tmp_path):
    path = write_report([large(tmp_path / "large", nodes=1000, rounds=6, runs=2)])
    assert path.stat().st_size < 5e6
    found = figures(path.read_text())
    assert found["over-time"]["n"] <= 128
    assert "is a bin of up to 8 nodes" in found["over-time"]["note"]
    assert len(found["topology"]["runs"]["run 0"]["links"]) <= 400
