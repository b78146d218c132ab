"""Section on attacks: heat maps of rule by attack, and the weight that honest nodes gave to attackers."""

import numpy as np
import pytest

from p2pfl.sim.report.write import report
from tests.support.report_folders import edges_of, entry, leave, rounds_of
from tests.support.report_pages import figures, payload, texts

RULES = ("none", "median-clip")


def run_of(name, mean, tenth, attackers=()):
    """Return a run of three nodes and two rounds: nodes 0 and 1 merge the model of node 2 with the weight 1/2."""
    links = edges_of((1, 2, 0), (1, 1, 0), (2, 2, 0), (2, 2, 1), (2, 0, 2))
    more = {"test": {"mean": mean, "worst_decile": tenth}} | ({"attackers": list(attackers)} if attackers else {})
    return entry(name, 0, 3, 2, **more), rounds_of(3, 2, trained_test_accuracy=0.5), links


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = []
    for rule in RULES:
        runs.append({"name": f"{rule} alone", "robust": rule})
        for attack in ("ipm", "alie"):
            runs.append({"name": f"{rule} {attack}", "robust": rule, "attack": {"name": attack, "nodes": [2]}})
    found = [run_of(run["name"], 0.9 - 0.1 * k, 0.1 * k, [2] if "attack" in run else []) for k, run in enumerate(runs)]
    return leave(tmp_path_factory.mktemp("attacks") / "run", found, {"nodes": 3, "rounds": 2, "run": runs})


@pytest.fixture(scope="module")
def page(folder):
    return report([folder])


def cells(figure):
    (view,) = figure["views"]
    values = {(view["rows"][c["row"]], view["columns"][c["column"]]): c["value"] for c in view["cells"].values()}
    bold = {(view["rows"][c["row"]], view["columns"][c["column"]]) for c in view["cells"].values() if c.get("bold")}
    return values, bold


def test_heat_map_has_rules_attacks_and_the_worst_in_bold(page):
    found = figures(page)
    values, bold = cells(found["attacks-mean"])
    assert values["none", "no attack"] == pytest.approx(0.9)
    assert values["median-clip", "alie"] == pytest.approx(0.4)
    assert bold == {("none", "alie"), ("median-clip", "alie")}
    _, bold = cells(found["attacks-worst-tenth"])
    assert bold == {("none", "ipm"), ("median-clip", "ipm")}


def test_heat_map_of_trust_has_attacks_only(page):
    values, bold = cells(figures(page)["attacks-trust"])
    assert set(values) == {(rule, attack) for rule in RULES for attack in ("ipm", "alie")}
    assert values["none", "ipm"] == 37.5  # node 0: 1/2 in both rounds; node 1: 1/2 in one of two
    assert len(bold) == 2


def test_weight_of_attackers_is_by_round_and_node(page):
    found = figures(page)
    assert found["attackers-weight"]["y"]["none ipm"] == [25.0, 50.0]
    assert found["attackers-models"]["y"]["none ipm"] == [50.0, 100.0]
    assert "none alone" not in found["attackers-weight"]["y"]
    values = found["attackers-trusted"]["runs"]["none ipm"]["values"]
    assert values[:2] == [50.0, 25.0]
    assert values[2] is None or np.isnan(values[2])
    assert texts(page)["attacks"] == ["1 of 3 nodes attack. All figures of this section are of the honest nodes."]


@pytest.mark.slow
def test_settings_have_a_view_each_and_one_of_the_worst(tmp_path):
    runs = [
        {"name": f"{policy} {rule} {attack}", "policy": {"name": policy}, "robust": rule, "attack": {"name": attack}}
        for policy in ("dac", "fedavg")
        for rule in RULES
        for attack in ("ipm", "alie")
    ]
    found = [run_of(run["name"], 0.9 - 0.1 * k, 0.5, [2]) for k, run in enumerate(runs)]
    page = report([leave(tmp_path / "run", found, {"nodes": 3, "rounds": 2, "run": runs})])
    views = figures(page)["attacks-mean"]["views"]
    assert [view["label"] for view in views] == ["worst of 2 settings", "dac", "fedavg"]
    assert set(views[0]["cells"]) == {run["name"] for run in runs if run["policy"]["name"] == "fedavg"}


@pytest.mark.slow
def test_runs_without_attackers_have_no_section(tmp_path):
    page = report([leave(tmp_path / "run", [run_of("a", 0.5, 0.5), run_of("b", 0.5, 0.5)])])
    assert "attacks" not in [section["id"] for section in payload(page)["sections"]]


@pytest.mark.slow
def test_one_rule_has_no_heat_map(tmp_path):
    page = report([leave(tmp_path / "run", [run_of("a", 0.5, 0.5, [2])])])
    assert "attacks-mean" not in figures(page)
    assert figures(page)["attackers-weight"]["y"]["a"] == [25.0, 50.0]
