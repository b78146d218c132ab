"""Rounds that waited for a deadline, overridden settings beside a description, and the r2 of all test rows: all are said."""

import numpy as np
import pytest

from p2pfl.sim.results.results import result_of, summarise
from p2pfl.sim.results.summary_metrics import waits
from p2pfl.sim.scenario.scenario import jobs_of, resolve
from p2pfl.sim.scenario.sweep import parse, sweep
from tests.support.simulated import run

LOSSY = {"nodes": 4, "rounds": 6, "deadline": 5.0, "task": {"name": "concept-shift"}, "policy": {"name": "random"}}


def summary(*changes, **options):
    file = resolve(LOSSY | options, changes, "test", ".")
    return summarise(file, [result_of(run(file.runs[0]))])


def test_rounds_that_waited_for_a_deadline_are_counted_and_noted():
    found = summary(network={"links": [{"nodes": [0], "loss": 0.3}]})
    (entry,) = found["runs"]
    assert 0 < entry["waits"]["rounds"] <= min(entry["waits"]["of"], entry["deadlines_expired"])
    assert entry["waits"]["of"] <= 24
    (note,) = [each for each in found["notes"] if "waited for a deadline" in each]
    assert note.startswith(
        f"{entry['waits']['rounds']} of {entry['waits']['of']} rounds of nodes waited for a deadline, in test"
    )


def test_repeated_rounds_are_not_counted():
    file = resolve(LOSSY | {"network": {"links": [{"nodes": [0], "loss": 0.3}]}}, (), "test", ".")
    finished = run(file.runs[0])
    before = finished.recorder.waits()
    assert before["of"] == len(finished.recorder.rounds_table()["round"])
    for node in finished.nodes.values():
        finished.recorder.skipped(node, 6, 2)  # it went back to round 2
    after = finished.recorder.waits()
    assert after["of"] == len(finished.recorder.rounds_table()["round"]) == 4
    assert after["rounds"] <= 4 < before["rounds"]


def test_runs_without_a_missed_deadline_say_nothing():
    found = summary()
    assert "waits" not in found["runs"][0]
    assert found["notes"] == []


def test_the_run_with_the_largest_share_is_named_among_several():
    (line,) = waits(
        [{"name": name, "seed": 0, "waits": {"rounds": rounds, "of": 10}} for name, rounds in (("a", 2), ("b", 7))]
    )
    assert line.startswith("9 of 20 rounds of nodes waited for a deadline, in 2 runs (most in b, seed 0: 7 of 10)")


def test_description_and_notes_name_overridden_settings():
    options = LOSSY | {"description": "No budget, twenty rounds."}
    file = resolve(options, ["budget.bytes=50000", "rounds=3"], "test", ".")
    assert (file.overridden, file.notes) == ("overridden: budget.bytes = 50000, rounds = 3", ())
    assert file.description == "No budget, twenty rounds.\nOverridden: budget.bytes = 50000, rounds = 3."
    assert resolve(options, [], "test", ".").description == "No budget, twenty rounds."
    assert resolve(LOSSY, ["rounds=3"], "test", ".").overridden == ""


@pytest.mark.slow
def test_note_says_which_rows_a_varied_network_does_not_change():
    base = {**LOSSY, "rounds": 2, "run": [{"name": "alone", "policy": {"name": "local"}}, {"name": "random"}]}
    file = sweep(resolve(base, [], "test", "."), parse(["network.loss=0.0,0.2", "task.samples=20,30"]))
    notes = summarise(file, [result_of(run(one)) for one in file.runs])["notes"]
    said = [note for note in notes if "exchanges nothing" in note]
    assert said == ["alone exchanges nothing: its rows are the same at all values of network.loss"]


def test_note_says_that_rows_keep_names_of_what_is_overridden():
    rows = [{"name": name, "topology": {"name": name}} for name in ("complete", "ring")]
    file = resolve({**LOSSY, "run": rows}, ["topology.name=star"], "test", ".")
    assert "rows keep their names of the file, although all have topology.name = star now" in file.notes
    assert not any("keep their names" in note for note in resolve({**LOSSY, "run": rows}, ["rounds=3"], "test", ".").notes)
    varied = {"name": "a", "each": {"topology.name": ["ring", "star"]}}  # a fixed key leaves the name
    assert not any("keep" in note for note in resolve({**LOSSY, "run": [varied]}, ["topology.name=ring"], "test", ".").notes)


@pytest.mark.parametrize("nodes", [1, 6])
def test_pooled_r2_compares_the_errors_with_the_spread_of_all_test_rows(tmp_path, nodes):
    rng = np.random.default_rng(0)
    rows = [f"{a:.4f},{b:.4f},{a - b + rng.normal():.4f}" for a, b in rng.normal(size=(60, 2))]
    (tmp_path / "wells.csv").write_text("\n".join(["a,b,power", *rows]))
    task = {"name": "regression", "data": str(tmp_path / "wells.csv"), "features": 2, "test": 0.2, "metrics": ["r2"]}
    task["partition"] = {"name": "iid"}
    options = {"nodes": nodes, "rounds": 2, "task": task, "policy": {"name": "local"}}
    done = run(resolve(options, [], "test", ".").runs[0])
    entry = result_of(done).summary
    found = entry["extra_metrics"]
    y = [np.asarray(node.task.data["test"][1], float).ravel() for node in done.nodes.values()]
    errors = sum(len(own) * mse for own, mse in zip(y, entry["test"]["nodes"], strict=True))
    assert found["r2_pooled"]["mean"] == pytest.approx(1 - errors / (np.concatenate(y).var() * sum(map(len, y))))
    assert (found["r2_pooled"]["mean"] == pytest.approx(found["r2"]["mean"])) == (nodes == 1)


def test_row_has_the_metrics_that_every_seed_has():
    """A seed in which some node has no test rows has no pooled r2; a mean of the others is not that of the row."""
    file = resolve(LOSSY | {"seeds": [0, 1]}, (), "test", ".")
    found = [result_of(run(job)) for job in jobs_of(file)]
    r2 = {"mean": 0.5, "nodes": []}
    found[0].summary["extra_metrics"] = {"r2": r2, "r2_pooled": r2}
    found[1].summary["extra_metrics"] = {"r2": r2}
    (row,) = summarise(file, found)["table"]
    assert row["extra_metrics"] == {"r2": 0.5}
