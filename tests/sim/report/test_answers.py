"""Answers of the questions of scenarios: the shipped ones, and their sentences."""

import msgspec
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.report.answers import question_of
from p2pfl.sim.report.folder import Summary
from p2pfl.sim.results.results import asked
from p2pfl.sim.scenario.questions import PROBLEM, Answer, check_answers, matches, missing_rows, pairs_of
from p2pfl.sim.scenario.scenario import load, shipped_scenarios

# Scenarios whose question compares numbers of nodes: attackers are nodes, and so is each member of a federation.
COMPARED_NODES = ("byzantine-", "mofld-")


def summary_of(rows, answers, *, question="Does it help?", metric="accuracy", **more):
    """Return a summary with rows of figures by seed; a list is the mean of each seed."""
    table = [
        {"name": name, "by_seed": figures if isinstance(figures, dict) else {"mean": figures}, "seeds": 3}
        for name, figures in rows.items()
    ]
    run = {"name": "a", "seed": 0, "nodes": 3, "rounds": 1, "metric": metric, "higher_is_better": True}
    found = {"scenario": "x", "runs": [run | {"time": {"wall_s": 1}}], "table": table, "question": question}
    return msgspec.convert(found | {"answers": answers} | more, Summary)


def answers(*given, **more):
    found = question_of(summary_of(*given, **more))
    return [*found.answers, *found.missing]


@pytest.fixture(scope="module")
def shipped():
    return {name: load(name, trust=True) for name in shipped_scenarios()}


@pytest.mark.slow
def test_every_shipped_scenario_asks_a_question_and_its_report_answers_it(shipped):
    for name, file in shipped.items():
        assert file.question.endswith("?"), name
        assert bool(file.answers) != bool(file.unanswered), name
        rows = list(file.rows())
        figures = {file.figure, "mean", *(figure for answer in file.answers for figure in answer.figures)}
        by_seed = {row: {figure: [0.4, 0.5, 0.6] for figure in figures if figure} for row in rows}
        found = question_of(msgspec.structs.replace(summary_of(by_seed, []), **as_summary(file)))
        assert found.asked == file.question
        assert found.answers or found.missing or found.tables, name
        missing = list(found.missing)
        assert missing == ([f"Missing: {file.unanswered}"] if file.unanswered else []), name


def as_summary(file):
    found = asked(file)
    return {key: getattr(msgspec.convert({"scenario": "", "runs": []} | found, Summary), key) for key in found}


@pytest.mark.slow
def test_answers_of_shipped_scenarios_name_rows_and_compare_like_with_like(shipped):
    for name, file in shipped.items():
        rows = file.rows()
        varied = {row: runs[0].varied for row, runs in rows.items()}
        for answer in file.answers:
            assert missing_rows(answer, varied) == [], name
            pairs = pairs_of(answer, varied)
            assert pairs, (name, answer)
            for pair in (pair for pair in pairs if isinstance(pair.other, str)):
                one, other = rows[pair.row][0], rows[pair.other][0]
                for key in {*PROBLEM} - {"attack", *(["nodes"] if name.startswith(COMPARED_NODES) else [])}:
                    assert problem_of(one, key) == problem_of(other, key), (name, pair, key)
                # without attack, or with another one of the same attackers, as the question asks
                assert one.attack == other.attack or None in (one.attack, other.attack), (name, pair)
        for pattern in file.references:
            assert any(matches(pattern, row) for row in rows), (name, pattern)


def problem_of(run, key):
    value = getattr(run, key)
    if key != "task":
        return value
    partition = {each: of for each, of in value.get("partition", {}).items() if each != "sizes"}  # with the attackers
    return [value["name"], value.get("data"), partition, value.get("shift")]


def test_answer_has_figure_margin_and_spread():
    rows = {"a": [0.90, 0.92, 0.91], "b": [0.70, 0.71, 0.74], "none": [0.70, 0.70, 0.73]}
    assert answers(rows, [{"run": ["a", "b"], "against": "none", "yes": "above"}]) == [
        "Yes. Test accuracy, against none (0.710): Above: a 0.910 (+0.200 ± 0.020); b 0.717 (+0.007 ± 0.006).",
        "In parentheses: margin ± standard deviation over 3 seeds; a margin within it is not decided.",
    ]


def test_verdict_counts_what_is_decided():
    rows = {"a": [0.9, 0.9], "b": [0.6, 0.8], "c": [0.1, 0.1], "none": [0.7, 0.7], "same": [0.7, 0.7]}

    def verdict(*runs):
        return answers(rows, [{"run": [*runs], "against": "none", "yes": "above"}])[0].partition(" Test")[0]

    assert verdict("a") == "Yes."
    assert verdict("a", "b", "c") == "Yes in 1 of 3."
    assert verdict("b") == "Not decided."
    assert verdict("b", "c") == verdict("same") == "No."


def test_answer_says_once_that_nothing_is_decided():
    (found, _) = answers({"b": [0.6, 0.8], "none": [0.7, 0.7]}, [{"run": "b", "against": "none", "yes": "above"}])
    assert found == "Not decided. Test accuracy, against none (0.70): b 0.70 (+0.00 ± 0.14)."


def test_margins_that_cancel_are_not_decided():
    """Their mean is 0, and no row is below the other."""
    answer = {"run": "a", "against": "none", "yes": "below"}
    found, _ = answers({"a": [3.0, 5.0, 4.0], "none": [4.0, 4.0, 4.0]}, [answer])
    assert found.startswith("Not decided. ")


def test_answer_of_one_seed_is_not_decided_and_says_what_is_missing():
    found = answers({"a": [0.9], "none": [0.7]}, [{"run": "a", "against": "none", "yes": "above"}])
    found = [each.replace("three", "3") for each in found]
    assert found[0] == "Not decided. Test accuracy, against none (0.700): a 0.900 (+0.200)."
    assert answers({"a": [0.9]}, [{"run": "a", "against": 0.5}])[0] == "Test accuracy, against 0.5: a 0.900 (+0.400)."


def test_names_in_braces_pair_rows_with_the_same_text():
    rows = {f"{data}/{policy}": {} for data in ("x", "y") for policy in ("dac", "dpfl", "local")}
    answer = Answer("{data}/dac", ["{data}/{other}"], by="data")
    assert [(pair.row, pair.other, pair.place) for pair in pairs_of(answer, rows)] == [
        ("x/dac", "x/dpfl", "x"),
        ("x/dac", "x/local", "x"),
        ("y/dac", "y/dpfl", "y"),
        ("y/dac", "y/local", "y"),
    ]
    values = {row: [0.5 + k / 10, 0.52 + k / 10] for k, row in enumerate(rows)}
    first, second, _ = answers(values, [msgspec.to_builtins(answer)])
    assert first == (
        "Test accuracy, data x, x/dac (0.510) against: Below x/dpfl 0.610 (-0.100 ± 0.000); x/local 0.710 (-0.200 ± 0.000)."
    )
    assert second.startswith("Test accuracy, data y, y/dac (0.810) against: ")


def test_rows_without_against_are_ranked_in_each_place():
    rows = {"x/a": [0.9, 0.8], "x/b": [0.5, 0.4], "y/a": [0.1, 0.2], "y/b": [0.5, 0.5]}
    first, second = answers(rows, [{"run": "{data}/{policy}", "by": "data"}])
    assert first.startswith("Highest test accuracy, data x: x/a (0.850); the margin of 0.400 over x/b (0.450) exceeds ")
    assert second.startswith("Highest test accuracy, data y: y/b (0.500); ")


def test_best_row_within_each_budget_has_margin_or_is_not_decided():
    figures = {
        "ring, equal": {"within.bytes.1000": [0.5, 0.6, 0.7], "within.seconds.9": [0.5, 0.6, 0.7]},
        "torus, equal": {"within.bytes.1000": [0.7, 0.8, 0.9], "within.seconds.9": [0.6, 0.6, 0.6]},
        "base, equal": {"within.bytes.1000": [0.8, 0.7, 0.9], "within.seconds.9": [0.1, 0.1, None]},
        "ring, unequal": {"within.bytes.1000": [0.4, 0.4, 0.4]},
    }
    answer = {"run": "{graph}, {devices}", "by": "devices", "within": {"bytes": [1000], "seconds": [9], "joules": [7]}}
    found = question_of(summary_of(figures, [answer]))
    (table,) = found.tables
    assert table.heads == ["at most", "devices equal", "margin", "devices unequal", "margin"]
    assert table.cells == [  # the row with a missing seed is not ranked, and no row has joules
        ["1 kB sent by a node", "not decided: torus 0.80, base 0.80", "+0.00 ± 0.10", "ring 0.40", "the only row"],
        ["9 s", "not decided: ring 0.60, torus 0.60", "+0.00 ± 0.10", "no row", ""],
    ]
    assert found.lines()[1:] == [
        "answer: At most 1 kB sent by a node: devices equal: not decided: torus 0.80, base 0.80 (+0.00 ± 0.10);"
        " devices unequal: ring 0.40 (the only row).",
        "answer: At most 9 s: devices equal: not decided: ring 0.60, torus 0.60 (+0.00 ± 0.10); devices unequal: no row.",
    ]
    del figures["base, equal"]
    (table,) = question_of(summary_of(figures, [answer])).tables
    assert table.cells[0][1:3] == ["torus 0.80", "+0.20 ± 0.00 over ring 0.60"]


def test_many_comparisons_are_counted():
    rows = {f"r{k}": [0.1 * k, 0.1 * k + 0.01] for k in range(14)} | {"none": [0.5, 0.5]}
    (first, _) = answers(rows, [{"run": "r{k}", "against": "none"}])
    assert first.startswith(
        "Test accuracy: of 14 comparisons 8 above, 5 below, 1 not decided; from -0.495 (r0 0.005 against"
    )


def test_missing_rows_and_figures_are_named():
    rows = {"a": {"mean": [0.5, 0.6]}, "b": {"mean": [0.5, None]}}
    assert answers(rows, [{"run": "a", "against": "c/{x}"}]) == [
        "Not among these results: a row c/… for each x, for the test accuracy."
    ]
    harm = {"run": "{policy}, robust=none, attack.name={attack}, attack.share={share}", "against": "{policy}, no attack"}
    assert answers(rows, [harm]) == [
        "Not among these results: a row robust=none under each attack, for each policy and share or a row without attack for"
        " each policy, for the test accuracy."
    ]
    several = [
        {"run": "a", "against": "c", "figure": figure} for figure in ("mean", "bytes", "reached.round", "reached.bytes")
    ]
    found = question_of(summary_of(rows, several))
    assert found.lines() == []  # what is missing comes at the end of the output
    assert found.last_lines()[1:] == [
        "answer: Not among these results: a row c, for the test accuracy, bytes sent, rounds to the target and 1 more."
    ]
    assert answers(rows, [{"run": "b", "against": "a"}]) == ["Missing: the test accuracy of 1 of 1 comparison, such as b."]
    assert answers(rows, []) == ["Missing: the scenario does not state which rows answer it."]
    assert answers(rows, [], unanswered="A second run.") == ["Missing: A second run."]
    assert question_of(summary_of(rows, [], question="")).lines() == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer([]), "must name one or more rows"),
        (Answer("a", []), "must name one or more rows"),
        (Answer("{x}/a", "b", by="y"), "by = 'y' is not in every pattern of `run`; its names in braces are x"),
        (Answer("a", "b", by="y"), "it has no name in braces"),
        (Answer("a", within={"byte": [1]}), "unknown answer.within 'byte'; did you mean 'bytes'?"),
        (Answer("a", within={"bytes": [0]}), "must list whole numbers of 1 or more"),
        (Answer("a", within={"bytes": []}), "must list whole numbers of 1 or more"),
        (Answer("a", "b", within={"bytes": [1]}), "leave out `against`, `figure` and `yes`"),
    ],
)
def test_answer_that_compares_nothing_is_refused(answer, words):
    with pytest.raises(ConfigurationError, match=words):
        check_answers([answer])


def test_answers_of_a_sweep_compare_rows_of_the_same_values():
    rows = {
        "alone, network.loss=0": {"network.loss": 0},
        "alone, network.loss=0.1": {"network.loss": 0.1},
        "dac, policy.tau=1, network.loss=0": {"policy.tau": 1, "network.loss": 0},
        "dac, policy.tau=1, network.loss=0.1": {"policy.tau": 1, "network.loss": 0.1},
    }
    pairs = pairs_of(Answer("dac", "alone"), rows)
    assert [(pair.row, pair.other) for pair in pairs] == [
        ("dac, policy.tau=1, network.loss=0", "alone, network.loss=0"),
        ("dac, policy.tau=1, network.loss=0.1", "alone, network.loss=0.1"),
    ]
    assert [pair.level for pair in pairs_of(Answer("{policy}"), rows)] == ["loss=0", "loss=0.1", "loss=0", "loss=0.1"]
