"""Recommendations from a sweep: the best run, and its margin against the spread over seeds."""

from p2pfl.sim.report.insights import findings
from p2pfl.sim.report.recommendations import recommendations


def run(name, seed, mean, *, budget=0, models=5, seconds=None, sent=None, trace=None):
    reached = None if seconds is None else {"round": 3, "virtual_s": seconds, "bytes": sent}
    return {
        **{"name": name, "seed": seed, "rounds": 9, "metric": "accuracy", "higher_is_better": True},
        **{"test": {"mean": mean}, "reached": reached, "varied": {"budget.models": budget}, "trace": trace or name},
        "traffic": {"bytes": 100, "preparation": {"bytes": 0}, "max_models_in_round": models},
    }


def summary(runs, **more):
    names = dict.fromkeys(run["name"] for run in runs)
    table = [{"name": name, "seeds": 2, "reached": None, "front": True} for name in names]
    seeds = sorted({run["seed"] for run in runs})
    return {"runs": runs, "seeds": seeds, "table": table, "varied": {"budget.models": [1, 4, 0]}} | more


RING, TORUS, FREE = "ring, budget.models=1", "torus, budget.models=4", "torus, budget.models=0"
RUNS = [
    *(run(RING, k, (0.80, 0.82)[k], budget=1, models=1, seconds=9.0, sent=(400, 500)[k]) for k in (0, 1)),
    *(run(TORUS, k, (0.90, 0.92)[k], budget=4, models=4, seconds=(4.0, 5.0)[k], sent=450) for k in (0, 1)),
    *(run(FREE, k, (0.93, 0.94)[k], models=5, seconds=(5.0, 6.0)[k], sent=9000) for k in (0, 1)),
]


def test_recommendations_answer_each_question_in_one_sentence():
    assert recommendations(summary(RUNS, target=0.75)) == [
        "Fastest to a mean test accuracy of 0.750: torus, budget 4 (4.5 virtual s); the margin of 1 virtual s over"
        " torus, no budget (5.5 virtual s) exceeds its standard deviation over seeds, 0 virtual s.",
        "Fewest bytes to a mean test accuracy of 0.750: not decided between ring, budget 1 (450 B) and"
        " torus, budget 4 (450 B); the margin of 0 B is within its standard deviation over seeds, 71 B.",
        "Most accurate: torus, no budget (0.935); the margin of 0.025 over torus, budget 4 (0.910) exceeds its"
        " standard deviation over seeds, 0.007.",
        "Best with at most 1 model a round: ring, budget 1 (0.810), the only result.",
        "Best with at most 4 models a round: torus, budget 4 (0.910); the margin of 0.100 over ring, budget 1 (0.810)"
        " exceeds its standard deviation over seeds, 0.000.",
    ]


def test_recommendation_counts_all_runs_within_the_spread():
    runs = [
        run(f"{name}, budget.models=4", k, (0.9, 0.8)[k] + (0.1 * k - 0.05) * j, budget=4)
        for j, name in enumerate(("a", "b", "c"))
        for k in (0, 1)
    ]
    (said,) = [each for each in recommendations(summary(runs)) if each.startswith("Most accurate")]
    assert said.startswith("Most accurate: not decided between a, budget 4 (0.850), b, budget 4 (0.850) and 1 more;")


def test_recommendation_of_one_seed_is_not_decided():
    said = recommendations(summary([each for each in RUNS if each["seed"] == 0]))
    assert said[0] == (
        "Most accurate: not decided, because a single seed has no spread; first torus, no budget (0.930),"
        " next torus, budget 4 (0.900)."
    )


def test_equal_runs_are_compared_once():
    same = [run("ring, budget.models=4", k, (0.95, 0.96)[k], budget=4, trace=f"same{k}") for k in (0, 1)]
    same += [run("ring, budget.models=0", k, (0.95, 0.96)[k], trace=f"same{k}") for k in (0, 1)]
    (said,) = [each for each in recommendations(summary([*RUNS, *same])) if each.startswith("Most accurate")]
    assert said.startswith("Most accurate: ring, budget 4 (0.955); the margin of 0.020 over torus, no budget")


def test_other_scenarios_have_no_recommendations():
    assert recommendations(summary(RUNS) | {"varied": {}}) == []
    assert recommendations(summary(RUNS, table=[{"name": RING, "front": False}])) != []
    assert recommendations(summary(RUNS, table=[{"name": RING}])) == []  # several tasks
    assert findings(summary(RUNS), [])[0].startswith("Most accurate: torus")


def test_runs_that_miss_the_target_have_short_names():
    missing = [each | {"reached": None} for each in RUNS]
    table = [
        {"name": name, "seeds": 2, "reached": None, "front": True, "varied": {"budget.models": budget}}
        for name, budget in ((RING, 1), (FREE, 0))
    ] + [{"name": TORUS, "seeds": 2, "reached": {"seeds": 2, "round": 3, "virtual_s": 4, "bytes": 5}, "front": True}]
    said = findings(summary(missing, table=table, target=0.99), [])
    assert said[-1] == "ring, budget 1 and torus, no budget never reach it in 9 rounds."
