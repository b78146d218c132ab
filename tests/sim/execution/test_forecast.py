"""Forecasts of a scenario's cost from given trials; test_sweep.py runs the trials themselves."""

import pytest
from msgspec.structs import replace

from p2pfl.errors import RunError
from p2pfl.sim.execution.forecast import EDGE, ROW, TABLE_EDGE, TABLE_ROW, Trial, duration, estimate, forecast
from p2pfl.sim.execution.forecast import kind_of as kind
from p2pfl.sim.scenario.scenario import resolve

GIB = 2**30


def job(seed=0, **keys):
    (run,) = resolve({"nodes": 100, "rounds": 30} | keys, [], "study", ".").runs
    return replace(run, seed=seed)


def test_trial_extrapolates_first_round_and_the_others():
    assert Trial([5.0, 5.5, 6.0]).run_of(30) == 5.0 + 29 * 0.5
    assert Trial([2.0]).run_of(3) == 6.0
    assert Trial([2.0, 2.5]).run_of(1) == 2.0


def test_estimate_of_parallel_jobs_adds_time_and_memory():
    jobs = [job(seed) for seed in range(24)]
    found = estimate(jobs, {kind(jobs[0]): Trial([1.0, 1.5], GIB // 4, 200.0)}, 2, ready=4.0, own_memory=GIB // 8)
    assert found.seconds == 4.0 + 12 * (1.0 + 29 * 0.5)
    rows, edges = 100 * 30, 200 * 30
    kept = 24 * (TABLE_ROW * rows + TABLE_EDGE * edges)
    assert found.memory == GIB // 8 + 2 * (GIB // 4 + ROW * rows + EDGE * edges) + kept
    assert str(found) == "24 runs of 100 nodes, 30 rounds: about 3 min on 2 cores, 0.7 GiB"


def test_estimate_does_not_divide_the_longest_run():
    small, large = job(nodes=10), job(nodes=90)
    trials = {kind(small): Trial([1.0]), kind(large): Trial([9.0])}
    assert estimate([large, small, small], trials, 2).seconds == 30 * 9.0
    assert str(estimate([large, small], trials, 2)) == "2 runs of 10 to 90 nodes, 30 rounds: about 4 min on 2 cores"


def test_estimate_of_runs_that_may_end_before_their_rounds_is_an_upper_limit():
    ends = job(end={"seconds": 60.0})
    assert "30 rounds: at most about" in str(estimate([ends], {kind(ends): Trial([1.0])}, 2))


def test_estimate_of_untried_run_uses_same_policy():
    dac, tau, local = job(policy={"name": "dac"}), job(policy={"name": "dac", "tau": 3}), job(policy={"name": "local"})
    trials = {kind(dac): Trial([2.0]), kind(local): Trial([0.5])}
    assert estimate([tau], trials | {"": Trial([9.0])}, 1).seconds is None  # no trial of this policy
    assert estimate([dac, local, tau], trials, 1).seconds == 30 * (2.0 + 0.5 + 2.0)
    half = job(nodes=50, policy={"name": "dac"})
    assert estimate([dac, local, half], trials, 1).seconds == 30 * (2.0 + 0.5 + 1.0)
    other = job(policy={"name": "random"})
    assert estimate([dac, local, other], trials, 1).seconds == 30 * (2.0 + 0.5 + 1.25)


def test_estimate_without_a_finished_round_has_no_forecast():
    found = estimate([job()], {kind(job()): Trial([])}, 1)
    assert str(found) == "1 run of 100 nodes, 30 rounds: no forecast, because no trial finished a round in 60 s"
    assert found.warning(0) == ""


def test_warning_reports_insufficient_memory():
    found = estimate([job(), job(1)], {kind(job()): Trial([1.0], 2 * GIB)}, 2)
    assert found.warning(5 * GIB) == ""
    assert found.warning(None) == ""
    assert found.warning(3 * GIB) == (
        "the runs need about 4.0 GiB of memory, and only 3.0 GiB are free; use fewer --workers"
    )
    assert "fewer" not in estimate([job()], {kind(job()): Trial([1.0], 2 * GIB)}, 1).warning(0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (42.4, "42 s"),
        (99.0, "99 s"),
        (180, "3 min"),
        (5000, "83 min"),
        (7800, "2 h 10 min"),
        (14_400, "4 h"),
        (90_000, "25 h"),
    ],
)
def test_duration_in_words(seconds, words):
    assert duration(seconds) == words


BROKEN = """
from p2pfl.errors import RunError
from p2pfl.policies.random import Random

class Broken(Random):
    async def round(self, me, peers):
        raise RunError("no good")
"""


@pytest.mark.slow
def test_forecast_of_failing_run_raises(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    with pytest.raises(RunError, match="run 'study', seed 3: no good"):
        forecast([job(3, nodes=4, policy={"name": "broken:Broken"})], [str(tmp_path)], 1)


@pytest.mark.slow
def test_diverging_trial_gives_no_forecast():
    task = {"name": "concept-shift", "lr": 1e9}
    assert forecast([job(nodes=4, task=task)], [], 1).seconds is None
