"""Parts of the engine `ray` that need no cluster: messages, the note on divided runs, and the check of machines."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from p2pfl._util.registry import ObjectName
from p2pfl.algorithms.ggc import DecideGreedily, Decisions, Sets
from p2pfl.errors import ConfigurationError, DivergenceError, RunError
from p2pfl.parameters import Layout, PrivateParameters
from p2pfl.prediction_mixing import ModelEnsemble
from p2pfl.queries import Evaluate, NodeQuery, Train
from p2pfl.sim.execution.cluster_worker import RayShard, RayShards, WorkerSettings, decode, encode
from p2pfl.sim.execution.probe import probe
from p2pfl.sim.execution.run_order import RunOrder
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.execution.snapshots import of_result
from p2pfl.sim.scenario.scenario import jobs_of, load, resolve, shipped_scenarios
from p2pfl.update_rules import Mixture

MODEL = np.arange(6, dtype=np.float32)
TINY = {"nodes": 3, "rounds": 2, "task": {"name": "teachers"}, "policy": {"name": "random", "neighbours": 1}}


@pytest.mark.parametrize("name", shipped_scenarios())
def test_jobs_of_shipped_scenarios_return_unchanged(name):
    jobs = jobs_of(load(name))[:200]
    for job in jobs:
        order = decode(encode(RunOrder(job, None, models=False, watch=True)))
        assert order == RunOrder(job, None, models=False, watch=True)
        assert repr(order) == repr(RunOrder(job, None, models=False, watch=True))


@pytest.mark.parametrize(
    "query",
    [
        Train(MODEL, 3, 2, (0.1, MODEL * 2), "other", Mixture(0.5, MODEL)),
        Evaluate([MODEL, MODEL], ("validation", "test"), ModelEnsemble([MODEL], [0.25])),
        DecideGreedily(
            Sets(MODEL, 1.0, MODEL, 2.0),
            [MODEL],
            [3],
            np.array([0.5]),
            4,
            True,
            PrivateParameters(Layout((("w", (6,)),), 6), MODEL),
        ),
    ],
)
def test_queries_return_unchanged(query):
    found = decode(encode(NodeQuery(2, query)))
    assert repr(found) == repr(NodeQuery(2, query))
    assert type(found.query) is type(query)


def test_arrays_return_with_type_and_are_writable():
    for array in (MODEL.reshape(2, 3), np.array(["ab", "c"]), np.array(7.5), np.zeros((0, 4), np.int64)):
        found = decode(encode(array))
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert found.flags.writeable
    found = decode(encode([np.float32(0.5), np.int64(3), (1, "a"), {2: None}, float("inf"), Decisions([True], (0.5, 1.0))]))
    assert [type(each) for each in found] == [np.float32, np.int64, tuple, dict, float, Decisions]
    assert found == [0.5, 3, (1, "a"), {2: None}, float("inf"), ([True], (0.5, 1.0))]


def test_result_and_snapshot_return_unchanged():
    (result,) = run_all(resolve(TINY, [], "study", "."))
    for value in (result, of_result(result)):
        assert encode(decode(encode(value))) == encode(value)
    assert decode(encode(result)).summary == result.summary


def test_errors_keep_type_run_and_notes():
    error = DivergenceError("node-1", 7)
    error.run = "run 'x', seed 0"
    error.add_note("a traceback")
    found = decode(encode(error))
    assert (type(found), str(found), found.__notes__) == (DivergenceError, str(error), ["a traceback"])
    found = decode(encode(KeyError("seven")))
    assert (type(found), str(found)) == (RuntimeError, "KeyError: 'seven'")


@pytest.mark.parametrize("value", [ObjectName("mine", dict), len, {1, 2}, np.array([{}]), object()])
def test_values_that_are_no_plain_data_are_refused(value):
    with pytest.raises(ConfigurationError, match="the engine ray cannot send"):
        encode([value])


@pytest.mark.parametrize(
    "content",
    [
        {"o": ["subprocess", "Popen", [["true"]]]},
        {"o": ["os", "system", ["true"]]},
        {"o": ["a_module_that_is_not_imported", "Query", []]},
        {"o": ["p2pfl.queries", "Train", [1]]},
        {"e": ["subprocess", "Popen", ["true"]]},
        {"a": ["O", [1], b"12345678"]},
        {"x": 1},
        {"t": 1},
    ],
)
def test_messages_with_other_types_are_refused(content):
    with pytest.raises(RunError, match="a message from the cluster cannot be read"):
        decode(msgspec.msgpack.encode(content))


def test_damaged_message_is_refused():
    with pytest.raises(RunError, match="a message from the cluster cannot be read"):
        decode(encode(MODEL)[:-1])


@pytest.mark.parametrize(("elapsed", "pays"), [(3.0, True), (5.0, False)])
def test_note_says_when_sending_takes_longer_than_computing(elapsed, pays):
    here = probe()
    shards = RayShards(WorkerSettings((), "", here, allow_different_bits=False), "cpu")
    shard = RayShard(None)
    shard.bytes, shard.computed, shard.elapsed = 3_000_000, 2.0, elapsed
    shards.add(shard)
    expected = "dividing this run did not pay: 3 MB of models went to other workers and back, which took 3.0 s for 2.0 s"
    assert [note[: len(expected)] for note in shards.notes()] == ([] if pays else [expected])


def test_machine_with_other_bits_or_version_is_refused():
    here = probe()
    settings = WorkerSettings((), "", here, allow_different_bits=False)
    settings.check(here)
    other = replace(here, digest="00", machine="other", processor="OLD")
    with pytest.raises(RunError, match=r"^other \(torch .*, OLD\) computes other last bits than .*--allow-different-bits$"):
        settings.check(other)
    replace(settings, allow_different_bits=True).check(other)
    with pytest.raises(RunError, match=r"other has version 0\.0 of p2pfl-node"):
        replace(settings, allow_different_bits=True).check(replace(other, program="0.0"))
