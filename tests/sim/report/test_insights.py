"""Sentences computed from a summary: they agree with the figures, also for ties and runs that miss the target."""

import pytest

from p2pfl.sim.report.insights import budget_pairs, findings


def run(name, mean, seed=0, sent=1000, better=True):
    traffic = {"bytes": sent, "preparation": {"bytes": 0}}
    return {
        **{"name": name, "seed": seed, "rounds": 30, "metric": "accuracy", "higher_is_better": better},
        **{"test": {"mean": mean}, "traffic": traffic},
    }


def summary(rows, runs=None, seeds=1, **more):
    """Return a summary with the given costs to reach the target, by run."""
    table = [{"name": name, "seeds": seeds, "reached": reached} for name, reached in rows.items()]
    runs = runs or [run(name, 0.9, seed) for name in rows for seed in range(seeds)]
    return {"seeds": list(range(seeds)), "table": table, "runs": runs, **more}


def took(rounds, seconds, sent, seeds=1):
    return {"round": rounds, "virtual_s": seconds, "bytes": sent, "seeds": seeds}


def target(rows, seeds=1, value=0.85):
    return findings(summary(rows, seeds=seeds, target=value), [])


def test_findings_without_target_or_budget_are_empty():
    assert findings(summary({"a": None}), [{"name": "a"}]) == []


def test_findings_name_first_run_in_rounds_time_and_bytes():
    rows = {"complete": took(4, 12.34, 5_200_000), "ring": took(17, 5.06, 810_000), "torus": took(9, 5.5, 900_000)}
    assert target(rows) == [
        "complete reaches a mean test accuracy of 0.850 in the fewest rounds: 4 rounds; torus follows with 9 rounds,"
        " and ring is last with 17 rounds.",
        "ring reaches a mean test accuracy of 0.850 in the shortest time: 5.06 virtual seconds; torus follows with"
        " 5.50 virtual seconds, and complete is last with 12.3 virtual seconds.",
        "ring reaches a mean test accuracy of 0.850 with the fewest bytes sent: 810 kB; torus follows with 900 kB,"
        " and complete is last with 5.2 MB.",
    ]


def test_findings_name_ties_and_means_over_seeds():
    rounds, *_ = target({"a": took(1, 1, 1, 3), "b": took(1, 2, 2, 3), "c": took(4 / 3, 3, 3, 3)}, seeds=3)
    assert rounds == (
        "a and b reach a mean test accuracy of 0.850 in the fewest rounds: 1 round (mean over 3 seeds);"
        " c follows with 1.3 rounds."
    )


def test_findings_name_ties_of_next_and_last_runs():
    rounds, *_ = target({"a": took(1, 1, 1), "b": took(2, 2, 2), "c": took(2, 3, 3)})
    assert rounds.endswith(": 1 round; b and c follow with 2 rounds.")
    rows = {name: took(k, 1, 1) for name, k in zip("abcdef", (1, 2, 2, 3, 4, 4), strict=True)}
    assert target(rows)[0].endswith(": 1 round; b and c follow with 2 rounds, and e and f are last with 4 rounds.")


def test_findings_name_range_of_different_lengths():
    rows = {"a": took(3, 1, 1), "b": None, "c": None}
    runs = [run(name, 0.9) | {"rounds": rounds} for name, rounds in (("a", 30), ("b", 5), ("c", 10))]
    assert findings(summary(rows, runs, target=0.85), [])[-1] == "b and c never reach it in 5 to 10 rounds."
    rows = {"a": took(3, 1, 1), "b": None, "c": took(4, 1, 1)}
    assert findings(summary(rows, runs, target=0.85), [])[-1] == "b never reaches it in 5 rounds."


def test_findings_separate_names_that_contain_commas():
    *_, last = target({"a": took(3, 1, 1), "tau=1, nodes=2": None, "tau=2, nodes=2": None, "b": None})
    assert last == "tau=1, nodes=2; tau=2, nodes=2 and b never reach it in 30 rounds."


def test_findings_group_runs_that_reach_with_some_seeds():
    *_, last = target({name: took(2, 1, 1, seeds=1) for name in "abcdefgh"}, seeds=2)
    assert last == "a, b, c, d, e and 3 more reach it with some seeds only."


def test_findings_name_runs_that_miss_the_target():
    *_, last = target({"a": took(3, 1, 1), "b": None, "c": None})
    assert last == "b and c never reach it in 30 rounds."
    *_, last = target({"a": took(3, 1, 1), "b": None})
    assert last == "b never reaches it in 30 rounds."
    assert target({"a": None, "b": None}) == ["None of the 2 runs reaches a mean test accuracy of 0.850."]
    assert target({"a": None}) == ["The run never reaches a mean test accuracy of 0.850."]


def test_findings_do_not_compare_run_with_missing_seeds():
    rows = {"a": took(9, 1, 1, seeds=3), "b": took(2, 0.1, 1, seeds=2)}
    first, *_, last = target(rows, seeds=3)
    assert first == "a reaches a mean test accuracy of 0.850 in the fewest rounds: 9 rounds (mean over 3 seeds)."
    assert last == "b reaches it with 2 of 3 seeds only."
    assert target({"b": rows["b"], "c": None}, seeds=3) == [
        "No run reaches a mean test accuracy of 0.850 with every seed.",
        "b reaches it with 2 of 3 seeds only.",
        "c never reaches it in 30 rounds.",
    ]


def test_findings_of_one_run_have_no_comparison():
    assert target({"a": took(1, 60.04, 1)}) == [
        "a reaches a mean test accuracy of 0.850 after 1 round, 60.0 virtual seconds and 1 B sent."
    ]


def test_findings_count_many_names():
    rows = {name: took(2, 1, 1) for name in "abcdefgh"}
    assert target(rows)[0].startswith("a, b, c, d, e and 3 more reach ")


RING = {"nodes": 40, "topology": {"name": "ring"}, "policy": {"name": "random"}}
FREE = {**RING, "name": "ring", "budget": {"models": 0, "held": 0, "bytes": 0}}
TENTH = {**RING, "name": "ring/.1N", "budget": {"models": 0.1, "held": 0, "bytes": 0}}


def costs(free, bound, tables=(FREE, TENTH), better=True, sent=(1000, 100)):
    runs = [run("ring", mean, k, sent[0], better) for k, mean in enumerate(free)]
    runs += [run("ring/.1N", mean, k, sent[1], better) for k, mean in enumerate(bound)]
    return findings(summary({}, runs, len(free)), tables)


def test_findings_report_cost_and_saving_of_budget():
    assert costs([0.90, 0.92], [0.88, 0.89]) == [
        "For ring, a budget of a tenth of the nodes (4 models a round) lowers the accuracy by 0.025 (0.885 instead of 0.910;"
        " standard deviation of the difference 0.007 over 2 seeds), and 90 % fewer bytes are sent."
    ]


def test_findings_report_time_to_target_with_budget():
    runs = [run("ring", 0.9), run("ring/.1N", 0.8, sent=500)]

    def last(**reached):
        rows = {"ring": took(4, 16.66, 1), "ring/.1N": took(5.5, 11.6, 1)} | reached
        return findings(summary(rows, runs, target=0.85), [FREE, TENTH])[-1]

    assert last().endswith(
        " 50 % fewer bytes are sent. With it, the target takes 5.5 instead of 4 rounds, and 11.6 instead of 16.7 virtual"
        " seconds."
    )
    assert last(ring=took(5.5, 11.6, 1)).endswith(
        " With it, the target takes as many rounds (5.5), and as many virtual seconds (11.6)."
    )
    assert last(ring=None).endswith(" 50 % fewer bytes are sent.")
    assert last(ring=took(1, 1, 1, seeds=0)).endswith(" 50 % fewer bytes are sent.")


def test_findings_of_sweep_omit_budget_in_names():
    tables = [{**FREE, "varied": {"budget.models": 0}, "name": "budget.models=0"}]
    tables += [{**TENTH, "varied": {"budget.models": 0.1}, "name": "budget.models=0.1"}]
    runs = [run(table["name"], mean, sent=100) for table, mean in zip(tables, (0.9, 0.8), strict=True)]
    (sentence,) = findings(summary({}, runs), tables)
    assert sentence.startswith("A budget of a tenth of the nodes (4 models a round) lowers the accuracy by 0.100 (")
    same = [{**each, "test": {"mean": 0.9}} for each in runs]
    assert findings(summary({}, same), tables) == [
        "A budget of a tenth of the nodes (4 models a round) has no effect: no node requests more."
    ]
    for table, each in zip(tables, runs, strict=True):
        table["name"] = each["name"] = f"policy.tau=3, {table['name']}"
    (sentence,) = findings(summary({}, runs), tables)
    assert sentence.startswith(
        "For policy.tau=3, a budget of a tenth of the nodes (4 models a round) lowers the accuracy by 0.100"
    )
    free, bound = (
        "budget={held=0, models=0}, network.latency=[0, 0.1]",
        "budget={held=0, models=0.1}, network.latency=[0, 0.1]",
    )
    for table, each, name in zip(tables, runs, (free, bound), strict=True):
        table["name"] = each["name"] = name
    (sentence,) = findings(summary({}, runs), tables)
    assert sentence.startswith(
        "For network.latency=[0, 0.1], a budget of a tenth of the nodes (4 models a round) lowers the accuracy by 0.100"
    )


def test_findings_of_sweep_name_runs_in_words():
    tables = [
        {**table, "name": f"topology.name=ring, budget.models={most}", "varied": {"topology.name": "ring"}}
        for table, most in ((FREE, 0), (TENTH, 0.1))
    ]
    for table in tables:
        table["varied"] |= {"budget.models": table["name"].rpartition("=")[2]}
    runs = [run(table["name"], mean, sent=100) for table, mean in zip(tables, (0.9, 0.8), strict=True)]
    (sentence,) = findings(summary({}, runs), tables)
    assert sentence.startswith("For ring, a budget of a tenth of the nodes (4 models a round) lowers ")


def test_findings_of_insignificant_or_negative_cost():
    (sentence,) = costs([0.90, 0.92], [0.91, 0.90])
    assert "lowers the accuracy by 0.005, which is within its standard deviation (0.905 instead of 0.910;" in sentence
    (sentence,) = costs([0.90], [0.92], sent=(100, 150))
    assert sentence == (
        "For ring, a budget of a tenth of the nodes (4 models a round) raises the accuracy by 0.020 (0.920 instead of"
        " 0.900), and 50 % more bytes are sent."
    )
    (sentence,) = costs([0.9], [0.8999])
    assert "lowers the accuracy by less than 0.001" in sentence


def test_findings_of_lower_is_better_report_increase_as_cost():
    (sentence,) = costs([10.0], [10.5], better=False)
    assert "raises the accuracy by 0.50 (10.50 instead of 10.00)" in sentence
    (sentence,) = costs([10.0], [9.0], better=False)
    assert "lowers the accuracy by 1.00 (9.00 instead of 10.00)" in sentence
    tables = [
        {**table, "name": f"{name}{table['name'][4:]}", "policy": {"name": name}} for name in "ab" for table in (FREE, TENTH)
    ]
    runs = [run(table["name"], mean, better=False) for table, mean in zip(tables, (0.5, 0.4, 0.5, 0.6), strict=True)]
    runs[3]["test"]["mean"] = 0.2
    *_, last = findings(summary({}, runs), tables)
    assert "lowers the accuracy by 0.200 on average (from 0.100 to 0.300)" in last


def test_findings_do_not_average_different_metrics():
    tables = [
        {**table, "name": f"{name}{table['name'][4:]}", "policy": {"name": name}} for name in "ab" for table in (FREE, TENTH)
    ]
    runs = [run(table["name"], mean) for table, mean in zip(tables, (0.5, 0.4, 0.5, 0.6), strict=True)]
    for each in runs[2:]:
        each |= {"metric": "error", "higher_is_better": False}
    first, second = findings(summary({}, runs), tables)
    assert "lowers the accuracy by 0.100" in first
    assert "raises the error by 0.100" in second


def test_findings_round_byte_shares_within_limits():
    assert "and more than 99 % fewer bytes are sent" in costs([0.9], [0.8], sent=(1000, 3))[0]
    assert "and 100 % fewer bytes are sent" in costs([0.9], [0.8], sent=(1000, 0))[0]
    tables = [
        {**table, "name": f"{name}{table['name'][4:]}", "policy": {"name": name}} for name in "ab" for table in (FREE, TENTH)
    ]
    *_, last = findings(summary({}, [run(table["name"], 0.9, sent=1000 + k) for k, table in enumerate(tables)]), tables)
    assert last.endswith("and saves 0 % of the bytes.")


def test_findings_of_budget_without_effect():
    assert costs([0.9, 0.91], [0.9, 0.91], sent=(70, 70)) == [
        "A budget of a tenth of the nodes (4 models a round) has no effect on ring: no node requests more."
    ]
    runs = [run(name, 0.9) | {"trace": name} for name in ("ring", "ring/.1N")]  # equal metrics by chance, with other models
    (sentence,) = findings(summary({}, runs), [FREE, TENTH])
    assert "changes nothing" not in sentence


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_findings_leave_out_seeds_without_metric(missing):
    assert costs([0.9], [missing]) == []
    (sentence,) = costs([0.90, 0.90, missing], [0.88, missing, 0.5])
    assert "0.880 instead of 0.900), and 90 % fewer" in sentence


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
def test_findings_describe_budget_in_words(budget, words):
    (sentence,) = costs([0.9], [0.8], (FREE, {**TENTH, "budget": budget}))
    assert sentence.startswith(f"For ring, a budget of {words} lowers the accuracy by 0.100 ")


def test_budget_pairs_differ_only_in_budget():
    other = {**TENTH, "policy": {"name": "dac"}, "name": "dac/.1N"}
    assert budget_pairs([FREE, TENTH, other]) == [(FREE, TENTH)]
    assert budget_pairs([TENTH, {**TENTH, "name": "two", "budget": {"models": 2}}]) == []


def test_findings_group_runs_without_budget_effect():
    tables = [
        {**table, "name": f"{name}{table['name'][4:]}", "policy": {"name": name}}
        for name in "abc"
        for table in (FREE, TENTH)
    ]
    assert findings(summary({}, [run(table["name"], 0.9) for table in tables]), tables) == [
        "A budget of a tenth of the nodes (4 models a round) has no effect on a, b and c: no node requests more."
    ]


def test_findings_average_same_budget_over_pairs():
    star = [
        {**table, "name": table["name"].replace("ring", "star"), "topology": {"name": "star"}} for table in (FREE, TENTH)
    ]
    runs = [run("ring", 0.9), run("ring/.1N", 0.8, sent=100), run("star", 0.9), run("star/.1N", 0.92, sent=800)]
    *_, last = findings(summary({}, runs), [FREE, TENTH, *star])
    assert last == (
        "Over these 2 pairs, a budget of a tenth of the nodes (4 models a round) lowers the accuracy by 0.040 on average"
        " (from -0.020 to 0.100), and saves 20 % to 90 % of the bytes."
    )
