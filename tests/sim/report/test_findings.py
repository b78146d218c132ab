"""Sentences on finished runs: the best run, the effect of a change, and lists of runs, all against their spread."""

from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest

from p2pfl.sim.report.findings import best, budget_pairs, findings_of_runs
from p2pfl.sim.report.folder import Summary
from p2pfl.sim.report.series import Run, runs_of
from p2pfl.sim.scenario.questions import of_problem
from p2pfl.sim.scenario.scenario import load


def run(name, mean, seed=0, *, sent=1000, reached=None, models=5, **more):
    """Return an entry of `runs` in summary.json; `reached` has rounds, virtual seconds and bytes."""
    entry = {
        "name": name,
        "seed": seed,
        "nodes": 40,
        "rounds": 30,
        "time": {"wall_s": 1.0},
        "metric": "accuracy",
        "higher_is_better": True,
    }
    traffic = {"bytes": sent, "control_bytes": 0, "max_models_in_round": models, "preparation": {"bytes": 0}}
    entry |= {"test": {"mean": mean}, "traffic": traffic, "trace": f"{name}, {seed}"}
    return entry | {"reached": reached and dict(zip(("round", "virtual_s", "bytes"), reached, strict=True))} | more


def said(runs, tables=(), **more):
    summary = msgspec.convert({"scenario": "x", "runs": runs, **more}, Summary)
    return findings_of_runs(runs_of(summary, tables), summary)


def without_rankings(*given, **more):
    return [each for each in said(*given, **more) if not each.startswith(("Most ", "Fewest ", "Fastest ", "Not decided, "))]


# Best, or not decided


def test_best_has_a_margin_above_its_spread():
    ranked = [("a", {0: 0.90, 1: 0.92}), ("b", {0: 0.80, 1: 0.83}), ("c", {0: 0.1, 1: 0.1})]
    assert str(best("Most accurate", ranked, higher=True)) == (
        "Most accurate: a (0.910); the margin of 0.095 over b (0.815) exceeds its standard deviation over seeds, 0.007."
    )
    assert str(best("Least", ranked)).startswith("Least: c (0.100); the margin of 0.715 over b (0.815) exceeds ")


def test_best_is_not_decided_within_the_spread():
    ranked = [("a", {0: 0.9, 1: 0.8}), ("b", {0: 0.8, 1: 0.86}), ("c", {0: 0.2, 1: 0.1})]
    assert str(best("Best", ranked, higher=True)) == (
        "Best: not decided, because the margin is within its standard deviation over seeds; first a (0.850), next b (0.830);"
        " the margin is 0.020, its standard deviation 0.113."
    )
    equal = [*ranked, ("d", {0: 0.9, 1: 0.8})]
    assert "; first a (0.850), next d (0.850) and 1 more; " in str(best("Best", equal, higher=True))


def test_best_of_one_seed_is_not_decided():
    assert str(best("Best", [("a", {3: 2.0}), ("b", {3: 1.0})])) == (
        "Best: not decided, because a single seed has no spread; first b (1.00), next a (2.00)."
    )
    assert "single seed" in str(best("Best", [("a", {0: 2.0, 1: 2.0}), ("b", {2: 1.0, 3: 1.0})]))  # no common seed


def test_best_of_one_result_says_so():
    assert str(best("Best", [("a", {0: 1.0})])) == "Best: a (1.000), the only result."
    assert best("Best", []) is None


def test_margin_and_deviation_have_digits_of_their_own():
    wide = {"a": {0: 0.9, 1: 0.8, 2: 0.7}, "b": {0: 0.8987, 1: 0.7986, 2: 0.6988}}  # with 3 decimals 0.001 and 0.000
    assert str(best("Best", [*wide.items()], higher=True)) == (
        "Best: a (0.800); the margin of 0.0013 over b (0.799) exceeds its standard deviation over seeds, 0.0001."
    )
    near = {"a": {0: 0.9, 1: 0.8}, "b": {0: 0.8885, 1: 0.7879}}  # a margin of 0.0118, a deviation of 0.0004
    assert "the margin of 0.0118 over b (0.838) exceeds its standard deviation over seeds, 0.0004" in str(
        best("Best", [*near.items()], higher=True)
    )


# Accuracy, budgets and the target

RING, TORUS, FREE = "ring, budget.models=1", "torus, budget.models=4", "torus, budget.models=0"


def swept(name, budget, seed, mean, **more):
    return run(name, mean, seed, varied={"budget.models": budget}, **more)


SWEEP = [
    *(swept(RING, 1, k, (0.80, 0.82)[k], models=1, reached=(9, 9.0, (400, 500)[k])) for k in (0, 1)),
    *(swept(TORUS, 4, k, (0.90, 0.92)[k], models=4, reached=(4, (4.0, 5.0)[k], 450)) for k in (0, 1)),
    *(swept(FREE, 0, k, (0.93, 0.94)[k], models=5, reached=(5, (5.0, 6.0)[k], 9000)) for k in (0, 1)),
]


def test_sweep_answers_each_question_in_one_sentence():
    assert said(SWEEP, target=0.75) == [
        "Most accurate: torus, models=none (0.935); the margin of 0.025 over torus, models=4 (0.910) exceeds its"
        " standard deviation over seeds, 0.007.",
        "Best with at most 1 model a round: ring, models=1 (0.810), the only result.",
        "Best with at most 4 models a round: torus, models=4 (0.910); the margin of 0.100 over ring, models=1 (0.810)"
        " exceeds its standard deviation over seeds, 0.000.",
        "Fewest rounds to a mean test accuracy of 0.750: torus, models=4 (4 rounds); the margin of 1 round over"
        " torus, models=none (5 rounds) exceeds its standard deviation over seeds, 0 rounds.",
        "Fastest to a mean test accuracy of 0.750: torus, models=4 (4.5 virtual s); the margin of 1 virtual s over"
        " torus, models=none (5.5 virtual s) exceeds its standard deviation over seeds, 0 virtual s.",
        "Fewest bytes to a mean test accuracy of 0.750: not decided, because the margin is within its standard deviation"
        " over seeds; first ring, models=1 (450 B), next torus, models=4 (450 B); the margin is 0 B, its standard"
        " deviation 71 B.",
    ]


def test_one_run_without_target_or_budget_has_no_sentences():
    assert said([run("a", 0.9)], [{"name": "a"}]) == []


def test_runs_with_equal_events_are_ranked_once():
    same = [swept(f"ring, budget.models={k}", k, seed, 0.95, trace=f"same{seed}") for k in (4, 0) for seed in (0, 1)]
    assert said([*SWEEP, *same])[0].startswith("Most accurate: ring, models=4 (0.950); the margin of 0.015 over torus, mo")


def test_runs_with_another_problem_are_ranked_apart():
    tables = [{"name": name, "task": {"name": "digits", "labels": 2 + (name > "b")}} for name in "abcd"]
    runs = [run(name, 0.9 - k / 10) for k, name in enumerate("abcd")]
    assert said(runs, tables) == [
        "Not decided, because a single seed has no spread: Most accurate, labels 2: first a (0.900), next b (0.800). Most"
        " accurate, labels 3: first c (0.700), next d (0.600)."
    ]
    assert said(runs, [table | {"task": table["name"]} for table in tables]) == []  # a task of its own each
    assert said(runs, [table | {"task": {"name": table["name"]}} for table in tables]) == []


@pytest.mark.parametrize(
    ("key", "one", "other", "words"),
    [
        ("attack", {"name": "ipm"}, {"name": "alie"}, ("ipm", "alie")),
        ("attack", None, {"name": "alie", "share": 0.1}, ("attack none", "attack alie share=0.1")),
        ("task", {"name": "images", "data": "mnist"}, {"name": "images", "data": "digits"}, ("data mnist", "data digits")),
        ("nodes", 10, 20, ("nodes 10", "nodes 20")),
    ],
)
def test_runs_of_different_problems_are_never_compared(key, one, other, words):
    tables = [
        {"name": f"{policy} {k}", "policy": {"name": policy}} | ({key: given} if given else {})
        for k, given in enumerate((one, other))
        for policy in ("dac", "dpfl")
    ]
    runs = [run(table["name"], 0.9 - 0.1 * k, seed) for k, table in enumerate(tables) for seed in (0, 1)]
    first, second = said(runs, tables)
    assert first.startswith(f"Most accurate, {words[0]}: dac 0 (0.900); the margin of 0.100 over dpfl 0 (0.800) exceeds")
    assert second.startswith(f"Most accurate, {words[1]}: dac 1 (0.700); the margin of 0.100 over dpfl 1 (0.600) exceeds")


@pytest.mark.parametrize("swept", [False, True])
def test_topology_is_a_choice_in_named_rows_as_in_a_sweep(swept):
    tables = [{"name": name, "topology": {"name": name}} for name in ("ring", "torus")]
    runs = [
        run(name, mean, **({"varied": {"topology.name": name}} if swept else {}))
        for name, mean in (("ring", 0.8), ("torus", 0.9))
    ]
    (found,) = said(runs, tables)
    assert "first torus (0.900), next ring (0.800)" in found


def test_named_rows_with_different_loss_are_different_problems():
    links = [{"nodes": list(range(10)), "loss": 0.1}]
    tables = [
        {
            "name": f"{graph}{', lossy' * lossy}",
            "topology": {"name": graph},
            "network": {"loss": 0.0, **({"links": links} if lossy else {})},
        }
        for lossy in (False, True)
        for graph in ("ring", "torus")
    ]
    runs = [run(table["name"], 0.9 - 0.1 * k, seed) for k, table in enumerate(tables) for seed in (0, 1)]
    first, second, why = said(runs, tables)
    assert "links none: ring (0.900); the margin of 0.100 over torus (0.800) exceeds" in first
    assert "ring, lossy (0.700); the margin of 0.100 over torus, lossy (0.600) exceeds" in second
    assert why == "network changes the learning problem, so rows with different values are not ranked with each other."


def test_references_are_named_and_never_the_best():
    tables = [{"name": name, "policy": {"name": name}} for name in ("oracle", "local", "dac", "dpfl")]
    tables.append({"name": "central", "policy": {"name": "fedavg"}})
    runs = [run(table["name"], 0.9 - 0.1 * k, seed) for k, table in enumerate(tables) for seed in (0, 1)]
    best, references, _ = said(runs, tables, references=["cen{tral}"])
    assert best.startswith("Most accurate: dac (0.700); the margin of 0.100 over dpfl (0.600) ")
    assert references == "References, which are not ranked: oracle (0.900); local (0.800); central (0.500)."


def learned(*means, higher_is_better=True):
    """Return the runs and tables of local learning and of other rows; each has the means of its seeds."""
    tables = [{"name": f"row {k}", "policy": {"name": "fedavg" if k else "local"}} for k in range(len(means))]
    runs = [
        run(table["name"], mean, seed, metric="mse", higher_is_better=higher_is_better)
        for table, each in zip(tables, means, strict=True)
        for seed, mean in enumerate(each)
    ]
    return runs, tables


def test_rows_are_compared_with_the_best_row_that_learns_alone():
    runs, tables = learned((3.0, 3.1), (2.0, 2.2), (1.0, 1.1), higher_is_better=False)
    tables[2]["policy"] = {"name": "local"}
    found = said(runs, tables)
    assert any("No row is better than learning alone (row 2, 1.05). Worse: row 1 2.10 (+1.05 " in each for each in found)


SPREADS = " In parentheses: margin ± standard deviation over 2 seeds; a margin within it is not decided."


def test_sentence_says_which_rows_are_better_than_learning_alone():
    found = said(*learned((0.5, 0.6), (0.7, 0.8), (0.5, 0.7), (0.3, 0.4), (0.8, 1.0)))
    assert (
        "Better than learning alone (row 0, 0.550): row 4 0.900 (+0.350 ± 0.071); row 1 0.750 (+0.200 ± 0.000). Not decided:"
        f" row 2 0.600 (+0.050 ± 0.071). Worse: row 3 0.350 (-0.200 ± 0.000).{SPREADS}" in found
    )
    asked = [{"run": "row {row}", "against": "row 0"}]  # an answer says the same
    assert not any("learning alone" in each for each in said(*learned((0.5, 0.6), (0.7, 0.8)), answers=asked))


def test_sentence_says_that_no_row_is_better_than_learning_alone():
    found = said(*learned((0.1, 0.2), (0.3, 0.5), higher_is_better=False))
    assert f"No row is better than learning alone (row 0, 0.150). Worse: row 1 0.400 (+0.250 ± 0.071).{SPREADS}" in found
    found = said(*learned((0.1, 0.1), (0.1, 0.2)))
    assert any(each.startswith("Not decided whether any row is better than learning alone (row 0, ") for each in found)
    found = said(*learned((0.1,), (0.3,)))
    assert (
        "Not decided whether any row is better than learning alone (row 0, 0.100), because a single seed has no spread."
        " Ahead: row 1 0.300 (+0.200)." in found
    )
    found = said(*learned((0.3,), (0.1,)))
    assert any(each.endswith(", because a single seed has no spread. Behind: row 1 0.100 (-0.200).") for each in found)


def test_rows_of_too_many_problems_say_why_they_are_not_ranked():
    tables = [{"name": f"{name}{nodes}", "nodes": nodes} for nodes in range(3, 8) for name in "ab"]
    runs = [run(table["name"], 0.9) for table in tables]
    (why,) = said(runs, tables)
    assert why.startswith("The rows are not ranked, because they have 5 learning problems, more than 4; run those of one")
    assert not any("not ranked" in each for each in said(runs[:8], tables))


def test_column_across_problems_is_named_as_differences_only():
    tables = [{"name": name, "network": {"loss": loss}} for name, loss in (("no loss", 0.0), ("lossy", 0.1))]
    table = [{"name": each["name"], "against": {"name": "no loss"}} for each in tables]
    assert said([run("no loss", 0.9), run("lossy", 0.8)], tables, table=table) == [
        "network changes the learning problem, so rows with different values are not ranked with each other; the column vs"
        " no loss shows differences only."
    ]


def test_metric_of_which_less_is_better_is_named():
    runs = [run(name, mean, metric="mse", higher_is_better=False) for name, mean in (("a", 3.0), ("b", 2.0))]
    assert said(runs)[0].startswith("Best test mse: not decided, because a single seed has no spread; first b (2.00), next")


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_run_with_a_missing_seed_is_not_ranked(missing):
    assert said([run("a", 0.9), run("a", missing, 1), run("b", 0.8), run("b", 0.8, 1)]) == [
        "Most accurate: b (0.800), the only result."
    ]


def test_runs_that_miss_the_target_are_listed():
    first, *_, never, partly, unknown = said(
        [run("a", 0.9, k, reached=(3, 1, 1)) for k in (0, 1)]
        + [run("b", 0.9, 0, reached=(1, 0.1, 1)), run("b", 0.9, 1)]
        + [run(name, 0.9, k) for name in ("c", "tau=1, nodes=2") for k in (0, 1)],
        target=0.85,
    )
    assert unknown.startswith("Most accurate: not decided, because the margin is within ")
    goal = "a mean test accuracy of 0.850"
    assert first == f"Fewest rounds to {goal}: a (3 rounds), the only row that reaches it with every seed (b with 1 of 2)."
    assert never == "Runs that never reach a mean test accuracy of 0.850: c; tau=1, nodes=2."
    assert partly == "Runs that reach a mean test accuracy of 0.850 with some seeds only: b (1 of 2)."
    assert said([run(name, 0.9) for name in "ab"], target=0.85)[0] == "No run reaches a mean test accuracy of 0.850."
    many = said([run("a", 0.9, reached=(3, 1, 1)), *(run(name, 0.9) for name in "bcdefgh")], target=0.85)
    assert many[-2].endswith(": b; c; d; e; f and 2 more.")


# The effect of a budget

OF_RING = {"nodes": 40, "topology": {"name": "ring"}, "policy": {"name": "random"}}
NO_LIMIT = {**OF_RING, "name": "ring", "budget": {"models": 0, "held": 0, "bytes": 0}}
TENTH = {**OF_RING, "name": "ring/.1N", "budget": {"models": 0.1, "held": 0, "bytes": 0}}
WORDS = "a budget of a tenth of the nodes (4 models a round)"


def effect(free, bound, tables=(NO_LIMIT, TENTH), sent=(1000, 100), **more):
    runs = [run(tables[0]["name"], mean, k, sent=sent[0], **more) for k, mean in enumerate(free)]
    runs += [run(tables[1]["name"], mean, k, sent=sent[1], **more) for k, mean in enumerate(bound)]
    return (without_rankings(runs, tables) or [""])[-1]


def test_budget_has_an_effect_above_its_spread():
    assert effect([0.90, 0.92], [0.88, 0.89]) == (
        f"ring: {WORDS} lowers the test accuracy by 0.025 (0.885 instead of 0.910), more than the spread of 0.007 over"
        " 2 seeds; 90 % fewer bytes are sent."
    )


def test_effect_within_its_spread_is_not_decided():
    assert effect([0.90, 0.92], [0.91, 0.90]) == (
        f"ring: {WORDS} lowers the test accuracy by 0.005 (0.905 instead of 0.910), not decided: within the spread of"
        " 0.021 over 2 seeds; 90 % fewer bytes are sent."
    )
    assert effect([0.90], [0.92], sent=(100, 150)) == (
        f"ring: {WORDS} raises the test accuracy by 0.020 (0.920 instead of 0.900), not decided, because a single seed"
        " has no spread; 50 % more bytes are sent."
    )
    assert f"{WORDS} leaves the test accuracy at 0.900, not decided" in effect([0.9], [0.90001])


def test_small_effect_that_is_decided_is_said_with_its_digits():
    assert effect([0.90, 0.91, 0.92], [0.9001, 0.9102, 0.9203]) == (
        f"ring: {WORDS} raises the test accuracy by 0.0002 (0.910 instead of 0.910), more than the spread of 0.0001 over"
        " 3 seeds; 90 % fewer bytes are sent."
    )


def test_effect_names_the_target_that_both_runs_reach():
    runs = [run("ring", 0.9, k, reached=(4, 16.66, 1)) for k in (0, 1)]
    runs += [run("ring/.1N", 0.8, k, sent=500, reached=(5 + k, 11.6, 1)) for k in (0, 1)]
    takes = "; the target takes 5.5 rounds instead of 4 rounds, and 11.6 virtual s instead of 16.7 virtual s."
    assert without_rankings(runs, [NO_LIMIT, TENTH], target=0.85)[-1].endswith(takes)
    runs[0]["reached"] = None
    assert without_rankings(runs, [NO_LIMIT, TENTH], target=0.85)[-1].endswith("; 50 % fewer bytes are sent.")


def test_budget_without_effect_says_so():
    runs = [run(name, mean, k, trace=f"{k}") for name in ("ring", "ring/.1N") for k, mean in enumerate((0.9, 0.91))]
    assert without_rankings(runs, [NO_LIMIT, TENTH])[-1] == f"ring: {WORDS} changes nothing: both runs have the same events."
    runs[-1]["trace"] = "other"  # equal metrics by chance, with other models
    assert "leaves the test accuracy at 0.905" in without_rankings(runs, [NO_LIMIT, TENTH])[-1]


def test_sweep_leaves_the_budget_out_of_names():
    tables = [{**NO_LIMIT, "name": "budget.models=0"}, {**TENTH, "name": "budget.models=0.1"}]
    runs = [run(tables[k]["name"], (0.9, 0.8)[k], varied={"budget.models": k / 10}) for k in (0, 1)]
    assert without_rankings(runs, tables)[-1].startswith(f"A{WORDS[1:]} lowers the test accuracy by 0.100 (")
    for table, each in zip(tables, runs, strict=True):
        table["name"] = each["name"] = f"policy.tau=3, {table['name']}"
        each["varied"]["policy.tau"] = 3
    assert without_rankings(runs, tables)[-1].startswith(f"tau=3: {WORDS} lowers the test accuracy by 0.100 (")


def test_many_pairs_are_summarised():
    tables, runs = [], []
    for k in range(9):
        for table in (NO_LIMIT, TENTH):
            tables.append({**table, "name": f"{k}{table['name']}", "policy": {"name": str(k)}})
        for seed in (0, 1):
            runs.append(run(tables[-2]["name"], 0.5, seed))
            runs.append(run(tables[-1]["name"], 0.5 + 0.01 * (k - 2), seed, sent=400))
    assert without_rankings(runs, tables)[-1] == (
        f"Of 9 runs, {WORDS} improves 6 and worsens 2; 1 is equal. The mean change of the test accuracy is +0.020, from"
        " -0.020 (0ring) to +0.060 (8ring); 60 % fewer bytes are sent."
    )


def test_effects_on_different_metrics_are_apart():
    tables = [
        {**table, "name": f"{name}{table['name'][4:]}", "policy": {"name": name}}
        for name in "ab"
        for table in (NO_LIMIT, TENTH)
    ]
    runs = [run(table["name"], mean) for table, mean in zip(tables, (0.5, 0.4, 0.5, 0.6), strict=True)]
    for each in runs[2:]:
        each |= {"metric": "error", "higher_is_better": False}
    first, second = without_rankings(runs, tables)
    assert "lowers the test accuracy by 0.100" in first
    assert "raises the test error by 0.100" in second


def test_share_of_bytes_is_rounded_within_limits():
    assert "; more than 99 % fewer bytes are sent" in effect([0.9], [0.8], sent=(1000, 3))
    assert "; 100 % fewer bytes are sent" in effect([0.9], [0.8], sent=(1000, 0))
    assert "bytes" not in effect([0.9], [0.8], sent=(1000, 1001))


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_effect_leaves_out_seeds_without_metric(missing):
    assert "budget" not in effect([0.9], [missing])
    assert "0.880 instead of 0.900), not decided, because a single seed" in effect([0.90, 0.90], [0.88, missing])


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"models": 1}, "1 model a round"),
        ({"models": [2, 10]}, "2 to 10 models a round"),
        ({"models": 0.25, "bytes": 20_000}, "25 % of the nodes (10 models a round) and 20,000 bytes a round"),
        ({"held": 3}, "3 models held at once"),
        ({"models": 0.125}, "12.5 % of the nodes (5 models a round)"),
    ],
)
def test_budget_is_described_in_words(budget, words):
    tables = (NO_LIMIT, {**TENTH, "budget": budget})
    assert effect([0.9], [0.8], tables).startswith(f"ring: a budget of {words} lowers the test accuracy by 0.100 ")


def test_budget_pairs_differ_only_in_budget():
    def pairs(*tables):
        runs = [Run(table["name"], table["name"], [], type("", (), {"pool": ""})(), table) for table in tables]
        return [(free.name, bound.name) for free, bound in budget_pairs(runs)]

    assert pairs(NO_LIMIT, TENTH, {**TENTH, "policy": {"name": "dac"}, "name": "dac/.1N"}) == [("ring", "ring/.1N")]
    assert pairs(TENTH, {**TENTH, "name": "two", "budget": {"models": 2}}) == []


# Robust rules


def attacked(seeds=1):
    """Four nodes; node 3 attacks. Without attack its accuracy is below that of the others."""
    each = {
        "none": ([0.8, 0.8, 0.8, 0.4], []),
        "none, ipm": ([0.4, 0.4, 0.4, None], [3]),
        "clip": ([0.8, 0.8, 0.8, 0.3], []),
        "clip, ipm": ([0.8, 0.8, 0.7, None], [3]),
    }
    runs = [
        run(name, 0.5, seed, test={"mean": 0.5, "nodes": nodes}, attackers=attackers)
        for name, (nodes, attackers) in each.items()
        for seed in range(seeds)
    ]
    tables = [
        {"name": name, "robust": "none" if name.startswith("none") else "median-clip"}
        | ({"attack": {"name": "ipm", "nodes": [3]}} if "ipm" in name else {})
        for name in each
    ]
    return runs, tables


def test_rules_are_ranked_by_what_the_worst_attack_leaves_of_the_same_nodes():
    assert said(*attacked())[-4:] == [
        "Least mean accuracy lost without attack: median-clip (0.025), the only result.",
        "Rules that keep 95.0 % of the mean accuracy under attack, and lose at most 0.02 without: none.",
        "Rules that keep 95.0 % of the accuracy of the worst tenth under attack, and lose at most 0.02 without: none.",
        "Not decided, because a single seed has no spread: Most accurate, attack none: first none (0.500), next clip"
        " (0.500). Most accurate, attack ipm nodes=[3]: first none, ipm (0.500), next clip, ipm (0.500). Most of the mean"
        " accuracy left by the worst attack: first median-clip against ipm (95.8 %), next none against ipm (50.0 %). Most of"
        " the accuracy of the worst tenth left by the worst attack: first median-clip against ipm (87.5 %), next none"
        " against ipm (50.0 %).",
    ]
    assert said(*attacked(seeds=2))[0] == (
        "Most of the mean accuracy left by the worst attack: median-clip against ipm (95.8 %); the margin of 45.8 % over"
        " none against ipm (50.0 %) exceeds its standard deviation over seeds, 0.0 %."
    )


def test_rule_in_the_limits_is_named():
    runs, tables = attacked()
    runs[2]["test"]["nodes"] = [0.8, 0.8, 0.8, 0.4]
    assert said(runs, tables)[-3].endswith("of the mean accuracy under attack, and lose at most 0.02 without: median-clip.")


def test_rules_that_are_not_compared_have_no_sentences():
    runs, tables = attacked()
    assert not [each for each in said(runs, [table | {"robust": "none"} for table in tables]) if "Rules" in each]
    lower = [each | {"higher_is_better": False} for each in runs]
    assert not [each for each in said(lower, tables) if "Rules" in each]


# Clusters


def test_clusters_are_listed_by_their_agreement_with_the_groups():
    def clustered(name, count, index, seed=0):
        clusters = {"rounds": [*range(1, len(count) + 1)], "count": count, "adjusted_rand": index}
        return run(name, 0.5, seed, clusters=clusters)

    runs = [
        *(clustered("equal", [1, 2, 3], index, k) for k, index in enumerate(([0, 1.0, 0.9], [0, 0.5, 0.7]))),
        clustered("missed", [1, 2], [0, 0.6]),
        clustered("unknown", [1, 4], None),
        clustered("whole", [1, 1], [0, 0]),
        run("other", 0.5),
    ]
    assert without_rankings(runs)[-4:] == [
        "Clusters equalled the true groups (adjusted Rand index 1.00) in: equal (in 1 of 2 seeds, first in round 2; at the"
        " end 3 clusters of 40 nodes, index 0.80).",
        "Clusters never equalled the true groups in: missed (index 0.60 at best; at the end 2 clusters of 40 nodes,"
        " index 0.60).",
        "Clusters without known groups in: unknown (at the end 4 clusters of 40 nodes).",
        "No cluster was split in: whole.",
    ]


# Rows of a sweep


def grid_of(means, keys, against="", **more):
    """Return tables, runs and rows of a sweep: means by row before the sweep and by values of the keys, with two seeds."""
    runs, table, tables = [], [], []
    for (base, *values), (first, second) in means.items():
        varied = dict(zip(keys, values, strict=True))
        name = ", ".join([base, *(f"{key}={value}" for key, value in varied.items())])
        tables.append({"name": name, "policy": {"name": "local" if base == "alone" else base}})
        table.append({"name": name, "varied": varied} | ({"against": {"name": against}} if against else {}))
        runs += [run(name, mean, seed, varied=varied, **more) for seed, mean in enumerate((first, second))]
    return runs, tables, table


LOSSES = {
    ("alone", 0): (0.50, 0.51),
    ("random", 0): (0.60, 0.62),
    ("dac", 0): (0.80, 0.81),
    ("alone", 0.2): (0.50, 0.51),
    ("random", 0.2): (0.70, 0.72),
    ("dac", 0.2): (0.55, 0.56),
}


def test_sweep_never_compares_different_problems():
    runs, tables, table = grid_of(LOSSES, ["network.loss"], "alone")
    found = said(runs, tables, table=table)
    assert found[0].startswith("Most accurate, network.loss 0: dac, loss=0 (0.805); the margin of 0.195 over random, loss=0")
    assert found[1].startswith(
        "Most accurate, network.loss 0.2: random, loss=0.2 (0.710); the margin of 0.155 over dac, loss=0.2"
    )
    why = "network.loss changes the learning problem, so rows with different values are not ranked with each other."
    assert why in found


def test_sweep_compares_rows_with_the_reference_of_the_same_values():
    runs, tables, table = grid_of(LOSSES, ["network.loss"], "alone")
    found = said(runs, tables, table=table)
    assert (
        "loss=0.2: random instead of alone raises the test accuracy by 0.205 (0.710 instead of 0.505), more than the spread"
        " of 0.007 over 2 seeds." in found
    )
    assert len([each for each in found if " instead of alone raises" in each]) == 4


def test_sweep_ranks_rows_within_each_shared_choice():
    levels = {
        (base, budget): (mean + budget / 1e4, mean + budget / 1e4 + 0.01)
        for budget in (100, 200)
        for base, mean in (("random", 0.6), ("dac", 0.7))
    }
    runs, tables, table = grid_of(levels, ["budget.bytes"])
    found = said(runs, tables, table=table)
    assert found[0].startswith("Most accurate: dac, bytes=200 (0.725); the margin of 0.010 over dac, bytes=100")
    assert found[1].startswith(
        "Most accurate, bytes=100: dac, bytes=100 (0.715); the margin of 0.100 over random, bytes=100"
    )
    assert found[2].startswith(
        "Most accurate, bytes=200: dac, bytes=200 (0.725); the margin of 0.100 over random, bytes=200"
    )


def test_many_levels_of_a_sweep_are_counted():
    levels = {
        (base, k): (mean * (1 if k < 7 else -1), mean * (1 if k < 7 else -1) + 0.01)
        for k in range(9)
        for base, mean in (("random", 0.6), ("dac", 0.7))
    }
    runs, tables, table = grid_of(levels, ["policy.neighbours"])
    found = said(runs, tables, table=table)
    assert (
        "Most accurate within each of 9 combinations of policy.neighbours: dac in 7 (7 decided); random in 2 (2 decided)."
        in found
    )


def test_orders_of_best_and_last_round_are_both_shown_where_they_differ():
    runs = [run("a", 0.9, test={"mean": 0.9, "last_round": 0.5}), run("b", 0.8, test={"mean": 0.8, "last_round": 0.7})]
    sentence = (
        "The order depends on the round. Each node's best round: a (0.900); b (0.800). Last round: b (0.700); a (0.500)."
    )
    assert sentence in said(runs)
    runs[1]["test"]["last_round"] = 0.4
    assert not any("order depends" in each for each in said(runs))


@pytest.mark.parametrize(
    ("scenario", "sizes"),
    [
        (
            "byzantine-two-worlds",
            [1, 4, 4, 4, 4, 4],
        ),  # attacks and attackers; the rule that an attack assumes is tuned
        ("dpfl-table1", [15, 15, 15]),  # partitions and data
        ("mofld-dst", [1, 6, 6, 6]),  # numbers of nodes; the steps of an epoch are training
        ("praffl-bank", [11, 2]),  # columns; the model, its penalty and how it is kept are training
        ("dac-synthetic", [14]),  # learning rates
    ],
)
def test_rows_of_shipped_scenarios_are_separated_by_their_problem(scenario, sizes):
    tables = load(scenario).to_toml()["run"]
    problems = Counter(Run(row["name"], row["name"], [], SimpleNamespace(varied={}), row).problem for row in tables)
    assert sorted(problems.values()) == sorted(sizes)


@pytest.mark.parametrize(
    "key",
    [
        "task.momentum",
        "task.steps",
        "task.kept",
        "task.targets",
        "task.settings.gamma",
        "attack.against",
        "attack.against.share",
    ],
)
def test_settings_of_training_and_of_a_tuned_attack_are_no_problem(key):
    assert not of_problem(key)
    assert all(
        map(of_problem, ("task.labels", "attack.share", "nodes", "network.loss", "compute.slowdown", "availability.away"))
    )
