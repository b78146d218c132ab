"""Claims of scenarios about their rows, and the sources that they name."""

import re

import msgspec
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.sim.scenario.claims import Claim, check, figure_of
from p2pfl.sim.scenario.scenario import load, resolve, shipped_scenarios

TABLE = [
    {"name": "alone", "mean": 1.0, "objectives": {"hypervolume": 50.0}},
    {"name": "with peers", "mean": 3.0, "objectives": {"hypervolume": 40.0}},
    {"name": "fedavg", "mean": 2.0, "objectives": {"hypervolume": 45.0}},
]


def claimed(*claims, rows=("alone", "with peers", "fedavg"), **keys):
    runs = [{"name": row, "nodes": 3 + k} for k, row in enumerate(rows)]
    return resolve({"run": runs, "claim": list(claims), **keys}, [], "study", ".")


def describe(claim, **keys):
    file = claimed(claim, **keys)
    return [str(each) for each in check(file.claims, file.figure, TABLE)]


def test_claim_compares_row_with_margin():
    claim = {"run": "with peers", "above": "alone"}
    assert describe(claim) == ["with peers 3.00 > alone 1.000: held"]
    assert describe(claim | {"by": 2.0}) == ["with peers 3.00 >= alone 1.000 + 2: held"]
    assert describe(claim | {"by": 2.1}) == [
        "with peers 3.00 >= alone 1.000 + 2.1: not held, but the scenario states the opposite"
    ]


def test_claim_compares_each_row_with_each_other():
    claim = {"run": ["with peers", "fedavg"], "above": ["alone", "fedavg"]}  # no row is above itself
    assert [line.rpartition(": ")[2].split(",")[0] for line in describe(claim)] == ["held", "held", "held", "not held"]
    assert len(describe(claim)) == 4
    assert describe({"run": "alone", "below": 1.5}) == ["alone 1.000 < 1.500: held"]


def test_claim_compares_named_figure():
    lower = {"run": "with peers", "below": ["alone", "fedavg"], "by": 5.0}
    assert describe(lower, figure="objectives.hypervolume") == describe(lower | {"figure": "objectives.hypervolume"})
    assert describe(lower, figure="objectives.hypervolume")[0] == (
        "objectives hypervolume of with peers 40.00 <= alone 50.00 - 5: held"
    )
    with pytest.raises(ConfigurationError, match=r"row 'alone' has no figure 'objectives.igd'"):
        figure_of(TABLE[0], "objectives.igd")
    assert describe({"run": "alone", "above": 1, "figure": "objectives.igd"}) == ["no figure objectives.igd for alone"]


def test_equal_figures_are_neither_above_nor_below():
    said = "not held, but the scenario states the opposite"
    assert describe({"run": "alone", "above": 1.0}) == [f"alone 1.000 > 1.000: {said}"]
    assert describe({"run": "alone", "below": 1.0}) == [f"alone 1.000 < 1.000: {said}"]
    assert by_seed([1.0, 2.0], [1.0, 2.0]).verdict == "not held"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figure_that_is_not_finite_is_none(value):
    """In summary.json it is null."""
    found = check(claimed({"run": "alone", "above": "fedavg"}).claims, "mean", [{"name": "alone", "mean": value}, TABLE[2]])
    assert [(str(each), each.verdict) for each in found] == [("no figure mean for alone", "")]


def test_claim_needs_the_figure_with_every_seed():
    """One of two seeds never reached the target: the rounds of the other do not decide."""
    table = [
        {"name": "alone", "reached": {"round": 9.0}, "by_seed": {"mean": [0.5, 0.9]}},
        {"name": "fedavg", "reached": {"round": 30.0}, "by_seed": {"mean": [0.8, 0.9], "reached.round": [28.0, 32.0]}},
    ]
    (found,) = check(claimed({"run": "alone", "below": "fedavg", "figure": "reached.round"}).claims, "mean", table)
    assert (str(found), found.stated, found.verdict) == ("no figure reached.round with every seed for alone", False, "")


def test_claim_may_state_that_it_does_not_hold():
    claim = {"run": "alone", "above": "fedavg", "holds": False, "reason": "few rounds"}
    assert [(each.held, each.stated) for each in check(claimed(claim).claims, "mean", TABLE)] == [(False, True)]
    claim = {"run": "fedavg", "above": "alone", "holds": False, "reason": "few rounds"}
    assert [(each.held, each.stated) for each in check(claimed(claim).claims, "mean", TABLE)] == [(True, False)]


def test_claim_text_is_a_sentence():
    claim = {"run": ["with peers", "fedavg"], "above": ["alone"], "by": 0.25}
    (first,) = claimed(claim).claims
    assert str(first) == "with peers, fedavg above alone by 0.25"
    false = {"holds": False, "reason": "few rounds"}
    (second,) = claimed({"run": "alone", "below": 0.5, "figure": "clusters.best"} | false).claims
    assert str(second) == "expected not to hold: clusters best of alone below 0.5 (few rounds)"


def test_claim_text_separates_names_with_commas_by_semicolons():
    claim = Claim(run="a", above=["b, n=1", "c, n=2"])
    assert str(claim) == "a above b, n=1; c, n=2"


def test_claim_text_combines_names_that_differ_in_one_setting():
    claim = Claim(run=["a, n=1, lr=2", "a, n=3, lr=2"], above=["b, n=1", "b, m=2"])
    assert str(claim) == "a, n=(1, 3), lr=2 above b, n=1; b, m=2"


def by_seed(first, second, **keys):
    table = [
        {"name": name, "mean": sum(values) / len(values), "by_seed": {"mean": values}}
        for name, values in (("alone", first), ("fedavg", second))
    ]
    (found,) = check(claimed({"run": "fedavg", "above": "alone", **keys}).claims, "mean", table)
    return found


def test_claim_needs_two_standard_errors_over_seeds():
    """The differences 1, 2 and 3 have the mean 2 and a standard error of 1 / sqrt(3)."""
    assert by_seed([1.0, 1.0, 1.0], [2.0, 3.0, 4.0]).held
    undecided = by_seed([1.0, 1.0, 1.0], [1.0, 3.0, 2.0])  # a mean of 1 and a standard error of 0.58
    assert not undecided.held
    assert str(undecided).endswith(": not decided")
    assert by_seed([1.0, 1.0, 1.0], [0.0, -1.0, -2.0]).verdict == "not held"
    assert by_seed([1.0, 1.0, 1.0], [0.0, 0.9, -1.1]).verdict == "not decided"  # the sign is that of the opposite
    assert str(by_seed([1.0, 1.0, 1.0], [2.0, 3.0, 4.0])) == "fedavg 3.00 >= alone 1.000 + 1.15: held"
    assert not by_seed([1.0, 1.0, 1.0], [2.0, 3.0, 4.0], by=2.1).held


def test_claim_compares_rows_seed_by_seed():
    """A spread that both rows share does not matter."""
    assert by_seed([1.0, 11.0, 21.0], [2.0, 12.0, 22.1]).held
    assert by_seed([1.0], [2.0]).held


def test_claim_says_whose_it_is():
    assert (Claim(run="a", above="b").whose, Claim(run="a", above="b", paper=True).whose) == ("ours", "paper")
    assert str(by_seed([1.0], [2.0], paper=True)).endswith("(paper): held")
    claim = Claim(run="a", above="b", holds=False, reason="it has 3 of 100 rounds")
    assert str(claim) == "expected not to hold: a above b (it has 3 of 100 rounds)"


@pytest.mark.parametrize("name", shipped_scenarios())
def test_claims_of_papers_agree_with_printed_figures(name):
    file = load(name)
    printed = {row: runs[0].paper for row, runs in file.rows().items() if runs[0].paper is not None}
    table = [{"name": row, "mean": figure} for row, figure in printed.items()]
    claims = [
        msgspec.structs.replace(claim, holds=True, by=0.0) for claim in file.claims if claim.paper and not claim.figure
    ]
    assert [str(checked) for checked in check(claims, "mean", table) if not checked.held] == []


def test_claim_skips_rows_missing_in_the_form():
    file = claimed({"run": "with peers", "above": ["alone", "fedavg"]})
    assert len(check(file.claims, "mean", TABLE[:2])) == 1
    assert check(file.claims, "mean", TABLE[2:]) == []


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (
            {"run": "with peer", "above": "alone"},
            "study: claim: unknown run 'with peer'; did you mean 'with peers'?",
        ),
        ({"run": "alone", "above": ["aloof"]}, "unknown run 'aloof'; did you mean 'alone'?"),
        ({"run": "alone"}, "study: the claim of 'alone' must have either `above` or `below`"),
        ({"run": "alone", "above": "fedavg", "below": 1.0}, "must have either `above` or `below`"),
        ({"run": "alone", "above": "fedavg", "by": -1.0}, "study: claim: by must be 0 or more, got -1.0"),
        ({"run": "alone", "over": "fedavg"}, "study: claim: unknown key 'over'; did you mean 'above'?"),
        ({"run": "alone", "above": True}, "study: claim: "),
        ({"run": "alone", "above": "fedavg", "holds": False}, "study: the claim of 'alone' needs a `reason`"),
        (
            {"run": "alone", "above": "fedavg", "reason": "few rounds"},
            "study: the claim of 'alone' has a `reason`, which is for claims with `holds = false`",
        ),
    ],
)
def test_invalid_claim_reports_one_line(claim, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)) as refused:
        claimed(claim)
    assert "\n" not in str(refused.value)


def test_source_and_claim_of_wrong_type_are_refused():
    with pytest.raises(ConfigurationError, match="study: source must be a string, got 3"):
        claimed(source=3)
    with pytest.raises(
        ConfigurationError, match=r"study: claim must be a list of tables, each headed \[\[claim\]\], got {}"
    ):
        resolve({"claim": {}}, [], "study", ".")


@pytest.mark.slow
def test_shipped_scenario_with_paper_figures_names_source():
    for name in shipped_scenarios():
        file = load(name)
        assert file.source or all(run.paper is None for run in file.runs), name


@pytest.mark.slow
def test_paper_column_names_its_figure(tmp_path, capsys):
    (tmp_path / "study.toml").write_text(STUDY)
    assert main(["run", str(tmp_path / "study.toml"), "--engine", "local", "--out", str(tmp_path / "run")]) == 0
    assert "paper, hypervolume" in capsys.readouterr().out
    assert "<th>paper, hypervolume</th>" in re.sub(r"<th [^>]*>", "<th>", (tmp_path / "run" / "report.html").read_text())
    assert load(str(tmp_path / "run" / "scenario.toml")).figure == "objectives.hypervolume"


STUDY = """
nodes = 2
rounds = 1
source = "A paper"
figure = "objectives.hypervolume"
task = { name = "deep-sea-treasure" }
policy = { name = "local" }

[[run]]
name = "local"
paper = 700.0

[[claim]]
run = "local"
above = 0.0
"""


def test_scenario_of_part_of_the_runs_keeps_their_claims():
    """A resumed run reads its claims from the scenario in its folder."""
    file = claimed(
        {"run": ["with peers", "fedavg"], "above": ["alone", "fedavg"], "by": 0.5},
        {"run": "fedavg", "above": 1.5},
        {"run": "with peers", "above": "fedavg"},
    )
    part = file.part(["fedavg", "alone"], [0])
    read = resolve(part.to_toml(), [], "study", ".")
    assert [str(claim) for claim in read.claims] == ["fedavg above alone, fedavg by 0.5", "fedavg above 1.5"]
    assert [str(claim) for claim in resolve(file.to_toml(), [], "study", ".").claims] == [
        str(claim) for claim in file.claims
    ]
