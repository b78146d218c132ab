"""Who is there when: intervals from a file and drawn ones, and what nodes miss while they are away."""

from itertools import islice
from math import inf

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.availability import Availability, Presence
from p2pfl.sim.scenario.network import Nodes
from p2pfl.sim.scenario.scenario import resolve
from tests.support.simulated import run

NAMES = ("node-0", "node-1", "node-2", "node-3")
SMALL = {"nodes": 4, "rounds": 8, "deadline": 2.0, "task": {"name": "concept-shift"}, "policy": {"name": "fedavg"}}


def presence(seed=0, names=NAMES, **options):
    return Availability(**options).presence(names, seed, Nodes(names, ()).number)


def spans(found, name, until):
    """Return the intervals of a node up to a time."""
    points = np.linspace(0, until, 2001)[:-1]
    return np.array([found.there(name, float(time)) for time in points])


def scenario(folder=".", **changes):
    return resolve(SMALL | changes, [], "test", str(folder)).runs[0]


def trace(folder, *lines):
    (folder / "trace.csv").write_text("node,start,end\n" + "".join(f"{line}\n" for line in lines))
    return {"file": "trace.csv"}


def test_work_goes_on_after_an_absence():
    found = Presence({"a": iter([(1.0, 3.0), (5.0, 6.0), (10.0, inf)])})
    assert [found.there("a", time) for time in (0.5, 1.0, 2.9, 3.0, 5.5, 11.0)] == [False, True, True, False, True, True]
    assert found.after("a", 0.0, 0.0) == 1.0
    assert found.after("a", 0.0, 1.5) == 2.5
    assert found.after("a", 2.0, 1.5) == 5.5
    assert found.after("a", 2.0, 2.5) == 10.5
    assert found.after("a", 20.0, 2.0) == 22.0


def test_diurnal_nodes_are_there_for_their_share_in_their_zone():
    names = tuple(f"n{k}" for k in range(12))
    found = presence(names=names, name="diurnal", day=100.0, share=0.3, zones=4)
    there = {name: spans(found, name, 1000) for name in names}
    assert {round(float(each.mean()), 2) for each in there.values()} == {0.3}
    assert len({each.tobytes() for each in there.values()}) == 4
    jittered = presence(names=names, name="diurnal", day=100.0, share=0.3, zones=4, jitter=0.1)
    assert len({spans(jittered, name, 1000).tobytes() for name in names}) == 12


def test_sessions_have_the_mean_lengths_and_differ_between_nodes_and_seeds():
    found = presence(name="sessions", present=3.0, away=1.0, shape=0.7)
    there = {name: spans(found, name, 20_000) for name in NAMES}
    assert np.mean([each.mean() for each in there.values()]) == pytest.approx(0.75, abs=0.05)
    assert len({each.tobytes() for each in there.values()}) == 4
    assert spans(presence(name="sessions", seed=1), "node-0", 20_000).tobytes() != there["node-0"].tobytes()


def test_nodes_of_a_group_are_cut_off_together():
    names = tuple(f"n{k}" for k in range(12))
    found = presence(names=names, name="outages", groups=3, present=10.0, away=5.0)
    there = {spans(found, name, 500).tobytes() for name in names}
    assert len(there) == 3
    assert all(found.there(name, 0.0) for name in names)


def test_file_names_nodes_by_number_name_or_label_and_repeats(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("# a trace\nNode, Start, End\nBern,6,8\nnode-1,0,10\n\n0,4,6\n0,0,2\n")
    nodes = Nodes(("node-0", "node-1", "node-2"), ("Aarau", "Basel", "Bern"))
    found = Availability(file=str(path)).presence(nodes.names, 0, nodes.number)
    assert [found.there("node-0", time) for time in (1, 3, 5, 7, 11, 13, 15)] == [
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    assert [found.there("node-2", time) for time in (7, 9, 17)] == [True, False, True]
    assert found.after("node-0", 5.0, 2.0) == 11.0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0,0,5", "0,4,6"], "the lines 2 and 3 of node-0 overlap"),
        (["0,-1,5"], "line 2: needs 0 <= start < end, got -1 and 5"),
        (["0,5,5"], "line 2: needs 0 <= start < end"),
        (["0,1,nan"], "line 2: must be a number of seconds, got 'nan'"),
        (["0,1"], "line 2: needs node,start,end, got 2 values"),
        (["9,0,5"], "line 2: nodes must be numbers from 0 to 3"),
        (["alice,0,5"], "line 2: unknown node 'alice'"),
        (["0,0,5"], "trace.csv has no interval of node-1 and 2 more"),
    ],
)
def test_invalid_lines_are_refused(tmp_path, lines, message):
    trace(tmp_path, *lines)
    with pytest.raises(ConfigurationError) as caught:
        presence(file=str(tmp_path / "trace.csv"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"availability": {"name": "sessions"}, "deadline": inf}, "a node waits for ever for a peer that is away"),
        ({"availability": {"name": "sessions", "file": "trace.csv"}}, "has a file and a name"),
        ({"availability": {"name": "diurnal", "share": 1.0}}, "availability.share must be above 0 and below 1"),
        ({"availability": {"name": "diurnal", "jitter": 0.25}}, "availability.jitter must be 0 or more"),
        ({"availability": {"name": "weekly"}}, "availability.name"),
    ],
)
def test_invalid_keys_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        scenario(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_node_that_is_away_neither_trains_nor_answers_and_comes_back(tmp_path, fidelity):
    away = trace(tmp_path, "0,0,1000", "1,0,1000", "2,0,1000", "3,0,2.5", "3,20,1000")
    rounds = 40
    result = run(scenario(tmp_path, availability=away, fidelity=fidelity, rounds=rounds))
    assert result.computed == "node by node: nodes are away at times" if fidelity == "modelled" else result.computed
    table, edges = result_of(result).rounds, result_of(result).edges
    mine = table["node"] == 3
    assert not ((table["virtual_time"][mine] > 2.5) & (table["virtual_time"][mine] < 20)).any()
    assert table["trainings"][mine].sum() < rounds  # those that it missed
    assert table["round"][mine].max() == rounds
    when = {
        (node, round): time for node, round, time in zip(table["node"], table["round"], table["virtual_time"], strict=True)
    }
    from_it = edges["src"] == 3
    used = [when[dst, round] for dst, round in zip(edges["dst"][from_it], edges["round"][from_it], strict=True)]
    assert not any(5 < time < 20 for time in used)
    assert any(time > 20 for time in used)
    again = run(scenario(tmp_path, availability=away, fidelity=fidelity, rounds=rounds))
    assert again.recorder.trace.digest() == result.recorder.trace.digest()


def test_asynchronous_nodes_train_only_while_they_are_there(tmp_path):
    away = trace(tmp_path, "0,0,100", "1,0,100", "2,0,100", "3,0,2.5", "3,6,100")
    table = result_of(run(scenario(tmp_path, availability=away, mode="asynchronous"))).rounds
    mine = table["virtual_time"][table["node"] == 3]
    assert list(islice(mine, 3))[:2] == [1.0, 2.0]
    assert mine[2] == pytest.approx(6.5)  # half of the training was done before
    assert len(mine) == 8


def test_file_of_a_change_has_its_full_path(tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir(), here.mkdir()
    monkeypatch.chdir(here)
    (here / "trace.csv").write_text("node,start,end\n")
    for change in ("availability.file=trace.csv", 'availability={file="trace.csv"}'):
        assert resolve(SMALL, [change], "test", str(home)).runs[0].availability.file == str(here / "trace.csv")
    (home / "trace.csv").write_text("node,start,end\n")  # the folder of the scenario comes first
    assert resolve(SMALL, [change], "test", str(home)).runs[0].availability.file == str(home / "trace.csv")


def test_file_of_a_scenario_is_in_its_folder_and_among_its_inputs(tmp_path):
    away = trace(tmp_path, *(f"{k},0,10" for k in range(4)))
    file = resolve(SMALL | {"availability": away}, [], "test", str(tmp_path))
    assert file.runs[0].availability.file == str(tmp_path / "trace.csv")
    (entry,) = file.to_toml()["run"]
    assert resolve(entry, [], "test", ".").runs[0].availability == file.runs[0].availability
    (plain,) = resolve(SMALL, [], "test", ".").to_toml()["run"]
    assert "availability" not in plain
