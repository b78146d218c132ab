"""End of a run by virtual time, or by the bytes that a node has received."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.results.results import result_of
from p2pfl.sim.results.summary_metrics import at_equal_measures, time_to_target
from p2pfl.sim.scenario.scenario import resolve, restore
from tests.support.simulated import run

SMALL = {
    **{"nodes": 4, "rounds": 12, "task": {"name": "concept-shift", "samples": 20, "test": 20}},
    **{"policy": {"name": "random", "neighbours": 2}, "compute": {"slowdown": [1.0, 4.0]}},
}


def scenario(**changes):
    return resolve(SMALL | changes, [], "test", ".").runs[0]


def rows(table, upto=np.inf):
    """Return (node, round, time, loss) of the rounds that had ended by a time."""
    columns = (table[name].tolist() for name in ("node", "round", "virtual_time", "merged_test_loss"))
    return sorted(row for row in zip(*columns, strict=True) if row[2] <= upto)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_run_that_ends_at_a_time_is_the_beginning_of_the_whole_run(mode, fidelity):
    whole = run(scenario(mode=mode, fidelity=fidelity)).recorder.rounds_table()
    part = run(scenario(mode=mode, fidelity=fidelity, end={"seconds": 9.7}))
    found = part.recorder.rounds_table()
    assert rows(found) == rows(whole, 9.7)
    assert len(rows(found)) < len(rows(whole))
    assert part.virtual_s == 9.7
    for node in part.nodes.values():
        assert node.round == max(row[1] for row in rows(found) if f"node-{row[0]}" == node.name)
        assert np.isfinite(part.recorder.results[node.name]["test_loss"])


def test_rounds_that_end_at_the_very_time_count():
    result = run(scenario(compute={"seconds": 0.1}, end={"seconds": 0.3}))  # .1 + .1 + .1 is more than .3
    assert [node.round for node in result.nodes.values()] == [3] * 4
    assert result.computed == "node by node: the run may end within a round"


def test_model_between_evaluations_is_evaluated_at_the_end():
    result = run(scenario(compute={"seconds": 1.0}, end={"seconds": 5.0}, evaluate_every=3))
    found = result.recorder.rounds_table()
    assert sorted({row[1] for row in rows(found) if np.isfinite(row[3])}) == [3, 5]


@pytest.mark.slow
def test_node_ends_with_the_round_in_which_it_has_received_its_bytes():
    whole = run(scenario(mode="asynchronous")).recorder.rounds_table()
    limit = int(whole["bytes_in"].sum() / 8)
    found = run(scenario(mode="asynchronous", end={"bytes": limit})).recorder.rounds_table()
    for node in range(4):
        received = np.cumsum(found["bytes_in"][found["node"] == node])
        assert received[-1] >= limit
        assert (received[:-2] < limit).all()  # after its last round it may still receive requests


@pytest.mark.slow
def test_nodes_that_end_their_rounds_first_are_noted():
    result = run(scenario(mode="asynchronous", rounds=3, end={"seconds": 9.7}))
    early = sum(node.round == 3 for node in result.nodes.values())
    assert f"{early} of 4 nodes ended all 3 rounds before the `end`; more `rounds` let them go on" in result.notes
    assert not any("before the `end`" in note for note in run(scenario(end={"seconds": 9.7})).notes)


def test_costs_are_those_of_the_rounds_that_have_ended():
    devices = {"board": {"samples": 40, "watts": 2.0}}
    result = result_of(run(scenario(compute={"device": "board", "devices": devices}, end={"seconds": 3.9})))
    cost, rounds = result.summary["cost"], result.rounds
    assert cost["trainings"]["total"] == rounds["trainings"].sum()
    assert cost["joules"]["total"] == pytest.approx(2.0 * cost["train_s"]["total"])
    assert 0 < rounds["virtual_time"].max() < 3.9  # a training of each node is cut off


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_run_in_which_a_node_ends_no_round_has_no_mean_over_all_nodes(mode):
    part = scenario(mode=mode, compute={"slowdown": [1.0, 9.0]}, end={"seconds": 4.0}, deadline=1.0)
    made = run(part)
    result = result_of(made)
    late = 4 - len(np.unique(result.rounds["node"]))
    assert 0 < late < 4
    assert any(note.startswith(f"{late} of 4 nodes ended no round before the `end`") for note in made.notes)
    assert time_to_target(result.rounds, result.summary, 0.0) is None
    assert np.isnan(at_equal_measures(result.rounds, result.summary, {"seconds": 4.0})["seconds"])
    assert "last_round" not in result.summary["test"]


@pytest.mark.parametrize(("key", "value"), [("seconds", -1.0), ("seconds", np.inf), ("bytes", -5)])
def test_invalid_end_is_refused(key, value):
    with pytest.raises(ConfigurationError, match=f"end.{key} must be 0 or more, and finite"):
        scenario(end={key: value})


def test_end_is_kept_in_the_folder_of_a_run(tmp_path):
    file = resolve(SMALL | {"end": {"seconds": 3.0}}, [], "test", ".")
    assert restore(file.to_toml(), tmp_path).runs[0].end.seconds == 3.0
    assert "end" not in resolve(SMALL, [], "test", ".").to_toml()["run"][0]
