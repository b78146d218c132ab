"""Cost of reaching a target: from the columns of rounds, and in all files and output of a run."""

import json

import numpy as np
import pytest

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli import main as cli
from p2pfl.sim.results import learning_curves
from p2pfl.sim.results.learning_curves import mean, of_nodes
from p2pfl.sim.results.summary_metrics import mean_reached, time_to_target
from p2pfl.sim.scenario.scenario import resolve
from tests.support.report_pages import figures

RUN = {
    **{"metric": "accuracy", "reported_stage": "trained", "higher_is_better": True},
    **{"traffic": {"preparation": {"bytes": 1000}}},
}


def table(rows):
    """Rows of (round, time, node, bytes sent, trained, merged)."""
    names = ("round", "virtual_time", "node", "bytes_out", "trained_test_accuracy", "merged_test_accuracy")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


ROUNDS = table(
    [(1, 1.0, 0, 10, 0.2, 0.9), (1, 3.0, 1, 20, 0.4, 0.9), (2, 2.0, 0, 30, 0.6, 0.9), (2, 5.0, 1, 40, 0.8, 0.9)],
)


def learning_curve(rounds):
    return mean(of_nodes(rounds, "trained", "test_accuracy"))


def test_time_to_target_is_first_round_that_reaches_mean():
    assert learning_curve(ROUNDS) == pytest.approx([0.3, 0.7])
    assert time_to_target(ROUNDS, RUN, 0.7) == {"round": 2, "virtual_s": 5.0, "bytes": 1100}
    assert time_to_target(ROUNDS, RUN, 0.3) == {"round": 1, "virtual_s": 3.0, "bytes": 1030}
    assert time_to_target(ROUNDS, RUN, 0.71) is None
    assert time_to_target(ROUNDS, RUN | {"reported_stage": "merged"}, 0.71) == {"round": 1, "virtual_s": 3.0, "bytes": 1030}


def test_time_to_target_of_lower_is_better_metric():
    less = RUN | {"higher_is_better": False}
    assert time_to_target(ROUNDS, less, 0.31)["round"] == 1
    assert time_to_target(ROUNDS, less, 0.29) is None


def test_curve_uses_last_metric_of_node_without_value():
    nan = np.nan
    rows = [(1, 1, 0, 1, 0.5, nan), (1, 1, 1, 1, nan, nan), (2, 2, 0, 1, nan, nan), (2, 2, 1, 1, 0.7, nan)]
    curve = learning_curve(table([*rows, (3, 3, 1, 1, 0.9, nan)]))  # node 0 has stopped
    assert curve == pytest.approx([nan, 0.6, 0.7], nan_ok=True)


def test_curve_uses_merged_metric_if_nothing_was_published():
    rows = table([(1, 1, 0, 1, 0.5, 0.1), (1, 1, 1, 1, np.nan, 0.7)])
    assert learning_curve(rows) == pytest.approx([0.6])


def test_time_to_target_without_rounds_is_none():
    assert time_to_target({name: column[:0] for name, column in ROUNDS.items()}, RUN, 0.0) is None
    assert time_to_target({name: ROUNDS[name] for name in ("round", "virtual_time", "node", "bytes_out")}, RUN, 0.0) is None


ASYNCHRONOUS = RUN | {"mode": "asynchronous"}
# a node of 1 s a round, and one of 4 s
UNEQUAL = table(
    [(k, 1.0 * k, 0, 10, min(0.1 * k, 0.6), 0.9) for k in range(1, 9)]
    + [(1, 4.0, 1, 40, 0.2, 0.9), (2, 8.0, 1, 80, 0.4, 0.9)]
)


def test_time_to_target_of_asynchronous_run_is_a_moment():
    # the mean is .3 once the slow node has ended its first round, and the fast one has .4
    assert time_to_target(UNEQUAL, ASYNCHRONOUS, 0.3) == {"round": 2.5, "virtual_s": 4.0, "bytes": 1000 + 40 + 40}
    # and .35 with the next round of the fast one: a quarter of the slow one's second round has passed
    assert time_to_target(UNEQUAL, ASYNCHRONOUS, 0.35) == {"round": 3.0, "virtual_s": 5.0, "bytes": 1000 + 50 + 60}
    assert time_to_target(UNEQUAL, ASYNCHRONOUS, 0.51) is None
    # as if nodes had waited, the second round, .3 on average, would end with the slow node
    assert time_to_target(UNEQUAL, RUN, 0.3) == {"round": 2, "virtual_s": 8.0, "bytes": 1000 + 20 + 120}


def test_asynchronous_run_of_equal_nodes_is_seen_as_a_synchronous_one():
    rows = [(k, 1.5 * k, node, 7 * node + 1, 0.1 * k + 0.01 * node, 0.0) for k in (1, 2, 3, 4) for node in (0, 1, 2)]
    alike = table(rows)
    for target in (0.1, 0.2, 0.31, 0.4):
        assert time_to_target(alike, ASYNCHRONOUS, target) == time_to_target(alike, RUN, target)


def test_moments_of_many_rounds_are_thinned(monkeypatch):
    monkeypatch.setattr(learning_curves, "MOST_MOMENTS", 3)
    timeline = learning_curves.Timeline(UNEQUAL, asynchronous=True)
    assert timeline.seconds.tolist() == [1.0, 5.0, 8.0]
    curve = mean(timeline.reported("trained", "test_accuracy"))
    assert curve == pytest.approx([np.nan, 0.35, 0.5], nan_ok=True)
    assert timeline.trainings.tolist() == timeline.rounds.tolist() == [0.5, 3.0, 5.0]  # one a round is assumed
    assert timeline.value_at(curve, "seconds", 7.9) == curve[1]
    assert np.isnan(timeline.value_at(curve, "bytes", 19))


def test_trainings_are_counted_where_nodes_train_not_once_a_round():
    rare = UNEQUAL | {"trainings": (UNEQUAL["round"] % 2).astype(np.int32)}
    assert learning_curves.Timeline(rare, asynchronous=True).trainings[-1] == (4 + 1) / 2
    assert learning_curves.Timeline(ROUNDS | {"trainings": np.array([2, 2, 0, 2])}).trainings.tolist() == [2.0, 3.0]


def test_mean_reached_averages_successful_seeds():
    one, other = ({"round": k, "virtual_s": 2.0 * k, "bytes": 10 * k} for k in (1, 4))
    assert mean_reached([one, None, other]) == {"round": 2.5, "virtual_s": 5.0, "bytes": 25.0, "seeds": 2}
    assert mean_reached([None]) is None


STUDY = """
target = 0.3
nodes = 4
rounds = 3
seeds = [0, 1]
deadline = inf
task = { name = "digits", samples = 40 }
[[run]]
name = "alone"
policy = { name = "local" }
[[run]]
name = "together"
policy = { name = "random", neighbours = 2 }
[forms.short]
target = 0.99
"""


@pytest.mark.slow
def test_run_reports_cost_of_target(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # headings on one line
    (tmp_path / "study.toml").write_text(STUDY)
    assert cli.main(["run", "study.toml", "--engine", "local", "--out", "here"]) == 0
    out, _ = capsys.readouterr()
    summary = json.loads((tmp_path / "here/summary.json").read_text())
    assert summary["target"] == 0.3
    assert {run["name"]: set(run["reached"]) for run in summary["runs"]} == {
        "alone": {"round", "virtual_s", "bytes"},
        "together": {"round", "virtual_s", "bytes"},
    }
    assert all(row["reached"]["seeds"] == 2 for row in summary["table"])
    assert "rounds to 0.300" in out
    assert "Fewest bytes to a mean test accuracy of 0.300: together (" in out  # local learning is a reference
    assert cli.main(["run", "here/scenario.toml", "--engine", "local", "--set", "target=0.999", "--out", "there"]) == 0
    out, _ = capsys.readouterr()
    assert "No run reaches a mean test accuracy of 0.999.\n" in out
    again = json.loads((tmp_path / "there/summary.json").read_text())
    assert [run["reached"] for run in again["runs"]] == [None] * 4
    assert [run["trace"] for run in again["runs"]] == [run["trace"] for run in summary["runs"]]


def test_form_and_change_override_target():
    raw = {"target": 1, "forms": {"short": {"target": 2.5}}}
    assert resolve(raw, [], "study", ".").target == 1
    assert resolve(raw, ["form=short"], "study", ".").target == 2.5
    assert resolve(raw, ["form=short", "target=3"], "study", ".").to_toml()["target"] == 3
    assert resolve({}, [], "study", ".").target is None


@pytest.mark.parametrize("value", ["nan", "inf", "true", "high", "[1]"])
def test_target_that_is_no_number_is_refused(value):
    with pytest.raises(ConfigurationError, match=r"study: target must be a number, got "):
        resolve({}, [f"target={value}"], "study", ".")


EQUAL = {
    **{"nodes": 4, "seeds": [0, 1], "task": {"name": "digits", "samples": 40}, "compute": {"slowdown": [1.0, 6.0]}},
    "policy": {"name": "random", "neighbours": 1, "reported_stage": "merged"},
    "question": "Is it faster not to wait?",
    "answer": [{"run": "apart", "against": "together", "figure": f"equal.{k}"} for k in ("seconds", "bytes", "trainings")],
    "run": [{"name": "together", "rounds": 4}, {"name": "apart", "rounds": 8, "mode": "asynchronous"}],
}


@pytest.mark.slow
def test_asynchronous_rows_are_compared_at_equal_time_bytes_and_trainings(tmp_path, capsys):
    found = p2pfl.simulate(EQUAL, out=tmp_path / "run", progress=False)
    equal, rows = found.summary["equal"], {row["name"]: row for row in found.summary["table"]}
    assert equal["trainings"] == 4  # the synchronous nodes have no more
    assert equal["seconds"] == min(run["time"]["virtual_s"] for run in found.summary["runs"])
    assert equal["bytes"] == min(run["traffic"]["bytes"] for run in found.summary["runs"])
    for result in found.only("apart"):
        now = []
        for node in range(4):  # by hand: the last round that each node had ended
            ended = (result.rounds["node"] == node) & (result.rounds["virtual_time"] <= equal["seconds"] + 1e-6)
            now.append(result.rounds["merged_test_accuracy"][ended][-1])
        assert rows["apart"]["by_seed"]["equal.seconds"][result.summary["seed"]] == pytest.approx(np.mean(now))
    for result in found.only("together"):
        last = result.rounds["merged_test_accuracy"][result.rounds["round"] == 4]
        assert rows["together"]["by_seed"]["equal.trainings"][result.summary["seed"]] == pytest.approx(np.mean(last))
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Test accuracy at equal time, against together" in page
    assert f">at {equal['seconds']:,.4g} s</th>" in page
    learning = figures(page)["learning"]
    assert learning["views"][0]["x"]["together"] == [1, 2, 3, 4]
    assert len(learning["y"]["apart"]) > 100  # moments, not rounds
    assert "the model that each node has at a moment" in learning["note"]


@pytest.mark.slow
def test_synchronous_rows_have_no_columns_at_equal_measures():
    found = p2pfl.simulate(
        EQUAL | {"answer": [], "seeds": [0], "mode": "synchronous", "run": [{"name": "a"}, {"name": "b", "rounds": 2}]},
        progress=False,
    )
    assert "equal" not in found.summary
    assert "mode" not in found.summary["runs"][0]


BUDGETS = {
    **{"nodes": 4, "seeds": [0, 1], "rounds": 20, "task": {"name": "digits", "samples": 40}, "question": "Which?"},
    "compute": {"device": "board", "devices": {"board": {"watts": 2.0, "samples": 40}}},
    **{"policy": {"name": "dsgd", "steps": 1}, "network": {"latency": 0.1}, "end": {"seconds": 6.0}},
    "answer": [
        {
            "run": "{graph}, {mode}",
            "by": "mode",
            "within": {"models": [2, 3], "bytes": [10**5, 10**9], "seconds": [4], "trainings": [3], "joules": [1]},
        }
    ],
    "run": [
        {"name": "ring, wait", "topology": "ring"},
        {"name": "complete, wait", "topology": "complete"},
        {"name": "ring, go on", "topology": "ring", "mode": "asynchronous"},
    ],
}


def test_rows_are_compared_within_budgets(tmp_path, capsys):
    found = p2pfl.simulate(BUDGETS, out=tmp_path / "run", progress=False)
    rows = {row["name"]: row for row in found.summary["table"]}
    for result in found.only("wait"):  # by hand: the last round whose end all nodes reached within the budget
        by_seed, seed = rows[result.summary["name"]]["by_seed"], result.summary["seed"]
        rounds = range(1, 1 + result.rounds["round"].max())
        each = [{name: column[result.rounds["round"] == k] for name, column in result.rounds.items()} for k in rounds]
        curve = mean(of_nodes(result.rounds, "merged", "test_accuracy"))
        spent = {
            "bytes.100000": np.cumsum([one["bytes_out"].sum() for one in each]) / 4 <= 1e5,
            "seconds.4": np.array([one["virtual_time"].max() for one in each]) <= 4 + 1e-9,
            "trainings.3": np.cumsum([one["trainings"].sum() for one in each]) / 4 <= 3,
            "joules.1": np.cumsum([one["joules"].sum() for one in each]) / 4 <= 1,
        }
        for budget, within in spent.items():
            assert 0 < within.sum() < len(curve), budget
            assert by_seed[f"within.{budget}"][seed] == pytest.approx(curve[within][-1]), budget
        assert by_seed["within.bytes.1000000000"][seed] == pytest.approx(curve[-1])  # it never is spent
    assert rows["ring, wait"]["within"]["models"]["2"] is not None
    assert rows["complete, wait"]["within"]["models"]["2"] is None
    assert rows["ring, go on"]["within"]["joules"]["1"] is not None
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert ">mode go on</th>" in page
    assert ">100 kB sent by a node</th>" in page
    panels = [figure for name, figure in figures(page).items() if name.startswith("budgets-")]
    assert [[list(figure["names"].values()), figure["views"][0]["label"]] for figure in panels] == [
        [["ring", "complete"], "bytes sent by a node"],
        [["ring"], "bytes sent by a node"],
        [["ring", "complete"], "virtual time"],
        [["ring"], "virtual time"],
    ]
    own = np.mean([run["traffic"]["bytes"] for run in found.summary["runs"] if run["name"] == "ring, wait"]) / 4
    assert panels[0]["views"][0]["x"]["ring, wait"][-1] == pytest.approx(own)
