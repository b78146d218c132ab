"""Checkpoints: saved data is loaded, and a damaged file is refused."""

import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl._util.atomic_files import replace_file, write_sealed
from p2pfl.errors import ConfigurationError
from p2pfl.node.checkpoint import (
    AFRESH,
    Checkpoint,
    FileStore,
    Model,
    TaskFacts,
    pack_model,
    same_federation,
    same_task,
    unpack,
    unpack_model,
)
from p2pfl.node.early_stopping import EarlyStopping
from p2pfl.node.exchange.model_encoding import Published
from p2pfl.node.settings import Settings
from p2pfl.policy import Update
from p2pfl.sim.simulation.clock import run
from p2pfl.task import Part, make_task
from tests.support.federation import Federation
from tests.support.logs import log_to

LAYOUT = bytes(range(16))
PARAMS = np.array([1.5, -0.0, 3e38, 1e-40], np.float32)
EXTRAS = {"peers": np.array([0, 2**64 - 1], np.uint64), "similarities": np.array([0.5, -1], np.float32)}


def published(extras=EXTRAS, time=2.0):
    return Published(Update("alice", 3, "trained", PARAMS, 10, extras, False, 0.0, 777), time)


def checkpoint(round=3, **changes):
    stopping = EarlyStopping(2)
    stopping.see(round, PARAMS, 0.25)
    fields = {
        "name": "alice",
        "seed": 7,
        "layout": LAYOUT,
        "round": round,
        "params": PARAMS.tobytes(),
        "early_stopping": stopping.state(),
        "unevaluated": {"trained": PARAMS.tobytes(), "merged": PARAMS[:2].tobytes()},
        "unevaluated_round": round,
        "policy": "p2pfl.policies.dac:Dac",
        "policy_state": msgspec.msgpack.encode({"met": {"bob": 0.5}}),
        "outbox": [pack_model(published(), now=5.0)],
        "final": False,
    }
    return Checkpoint(**(fields | changes))


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "checkpoint")


def refusal(action, *arguments):
    with pytest.raises(ConfigurationError) as refused:
        action(*arguments)
    text = str(refused.value)
    assert "\n" not in text
    return text


def files(store):
    return {path.name: path.read_bytes() for path in store.path.parent.iterdir()}


# Round trips


def test_store_loads_saved_checkpoint(store):
    store.save(checkpoint(final=True))
    loaded = FileStore(store.path).load()
    assert loaded == checkpoint(final=True)
    assert unpack(loaded.params).tobytes() == PARAMS.tobytes()
    assert loaded.early_stopping["best"] == PARAMS.tobytes()


def test_store_loads_checkpoint_of_round_zero(store):
    first = checkpoint(
        0, early_stopping=EarlyStopping(0).state(), unevaluated={}, policy_state=msgspec.msgpack.encode({}), outbox=[]
    )
    store.save(first)
    assert store.load() == first


def test_store_loads_last_saved_checkpoint(store):
    for round in (1, 2, 3, 2):
        store.save(checkpoint(round))
        assert store.load() == checkpoint(round)


def test_store_without_file_loads_none(store):
    assert store.load() is None


def through_bytes(model):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=Model)


def test_published_model_round_trips_with_age():
    model = published(time=2.0)
    packed = through_bytes(pack_model(model, now=5.0))
    assert packed.age == 3.0
    back = unpack_model(packed, "alice", 10, now=100.0)
    assert back.time == 97.0
    for field in ("sender", "round", "stage", "n_samples", "final", "age", "size"):
        assert getattr(back.update, field) == getattr(model.update, field)
    assert back.update.params.tobytes() == PARAMS.tobytes()
    assert {name: array.tolist() for name, array in back.update.extras.items()} == {
        "peers": [0, 2**64 - 1],
        "similarities": [0.5, -1.0],
    }


@pytest.mark.slow
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.tuples(st.sampled_from(["f4", "f8", "i8", "u8"]), st.lists(st.integers(0, 3), max_size=3)),
        max_size=4,
    )
)
def test_extras_of_any_shape_round_trip(shapes):
    extras = {name: (np.arange(np.prod(shape)) + 0.5).astype(kind).reshape(shape) for name, (kind, shape) in shapes.items()}
    back = unpack_model(through_bytes(pack_model(published(extras), 5.0)), "alice", 10, 5.0).update.extras
    assert list(back) == list(extras)
    for name, array in extras.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tolist() == array.tolist()


def test_extras_that_are_views_round_trip():
    table = np.arange(6.0).reshape(2, 3)
    back = unpack_model(pack_model(published({"turned": table.T, "some": table[:, ::2]}), 5.0), "alice", 10, 5.0)
    assert back.update.extras["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert back.update.extras["some"].tolist() == [[0, 2], [3, 5]]


# Damage


@pytest.mark.slow
def test_load_detects_change_of_any_byte(store):
    store.save(checkpoint())
    whole = store.path.read_bytes()
    for position in range(len(whole)):
        store.path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert refusal(store.load).endswith("checkpoint; move them away to start from round 0")


@pytest.mark.slow
def test_load_detects_truncated_or_extended_file(store):
    store.save(checkpoint())
    whole = store.path.read_bytes()
    for size in range(len(whole)):
        store.path.write_bytes(whole[:size])
        assert "no checkpoint is intact" in refusal(store.load)
    store.path.write_bytes(whole + b"\0")
    assert "no checkpoint is intact" in refusal(store.load)


def test_load_keeps_damaged_file(store):
    store.save(checkpoint())
    damaged = store.path.read_bytes()[:-1]
    store.path.write_bytes(damaged)
    refusal(store.load)
    assert damaged in files(store).values()


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields | {"colour": "red"},
        lambda fields: {key: value for key, value in fields.items() if key != "outbox"},
        lambda fields: fields | {"round": "three"},
        lambda fields: [fields],
    ],
)
def test_load_refuses_intact_file_of_another_version(store, change):
    store.save(checkpoint())
    data, content = store.path.read_bytes(), msgspec.msgpack.encode(checkpoint())
    magic = data[: -len(content) - 32]
    other = msgspec.msgpack.encode(change(msgspec.to_builtins(checkpoint(), builtin_types=(bytes,))))
    write_sealed(store.path, magic, other)
    assert "was written by another version" in refusal(store.load)


# Atomic replacement


def test_store_ignores_half_written_new_file(store):
    beside = store.path.with_name("checkpoint.new")
    beside.write_bytes(b"half")
    assert store.load() is None
    store.save(checkpoint(1))
    beside.write_bytes(store.path.read_bytes()[:100])
    assert store.load() == checkpoint(1)
    store.save(checkpoint(2))
    assert store.load() == checkpoint(2)
    assert not beside.exists()


@pytest.mark.parametrize("durable", [True, False])
def test_replace_file_that_fails_midway_keeps_old_content(tmp_path, durable):
    path = tmp_path / "file"
    replace_file(path, [b"old ", b"content"], durable)

    def parts():
        yield b"new "
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        replace_file(path, parts(), durable)
    assert path.read_bytes() == b"old content"
    replace_file(path, [b"new"], durable)
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="a file that is open cannot be replaced elsewhere")
def test_reader_during_replacement_reads_old_content(tmp_path):
    path = tmp_path / "file"
    replace_file(path, [b"old content"])
    with path.open("rb", buffering=0) as file:
        assert file.read(4) == b"old "
        replace_file(path, [b"new"])
        assert file.read() == b"content"
    assert path.read_bytes() == b"new"


SAVER = """
import sys
from pathlib import Path
import numpy as np
from p2pfl.node.checkpoint import AFRESH, Checkpoint, FileStore
store = FileStore(Path(sys.argv[1]))
for round in range(1, 10_000):
    params = np.full(2**20, round, np.float32).tobytes()
    store.save(Checkpoint("alice", 0, b"", round, params, {}, {}, 0, "", b"", [], False))
    print(round, flush=True)
"""


@contextmanager
def saving(store):
    """Run a process that saves checkpoints and prints the round of each; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(store.path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with process:
        try:
            yield (int(line) for line in process.stdout)
        finally:
            process.kill()


def load_intact(store):
    loaded = store.load()
    assert (unpack(loaded.params) == loaded.round).all()
    return loaded


@pytest.mark.slow
def test_checkpoint_survives_kill_during_save(store):
    for last in (1, 4, 9):
        with saving(store) as told:
            assert next(round for round in told if round == last)
        assert load_intact(store).round >= last


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a file that is open cannot be replaced elsewhere")
def test_store_always_holds_intact_checkpoint_during_saves(store):
    with saving(store) as told:
        next(told)
        while load_intact(store).round < 60:
            pass


# Checkpoints of other nodes

MINE = {"name": "alice", "seed": 7, "policy": "p2pfl.policies.dac:Dac"}


def test_same_federation_accepts_equal_checkpoint():
    same_federation(checkpoint(), MINE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "bob"}, "the checkpoint has name 'alice', the configuration has 'bob'"),
        ({"policy": "a:B"}, "the checkpoint has policy 'p2pfl.policies.dac:Dac', the configuration has 'a:B'"),
        ({"seed": 8}, "the checkpoint has seed 7, the configuration has 8"),
    ],
)
def test_same_federation_refuses_differing_checkpoint(change, message):
    assert refusal(same_federation, checkpoint(), MINE | change) == f"{message}; restore the old value, or {AFRESH}"


def test_checkpoint_of_another_task_is_refused():
    saved = checkpoint(task=TaskFacts(["a", "b"]))
    same_task(checkpoint(), LAYOUT, TaskFacts(["a", "b"]))  # an earlier version has written no facts
    same_task(saved, LAYOUT, TaskFacts(["a", "b"]))
    start = "the checkpoint does not fit this task: "
    assert refusal(same_task, saved, LAYOUT, TaskFacts(["b", "a"])).startswith(f"{start}the features of the data are in ")
    assert refusal(same_task, saved, b"\xff" * 16, TaskFacts(["a", "b"])).startswith(f"{start}the model has another layout")


def start_again(folder, name="a", **options):
    """Run a node to its end, then start `name` with that checkpoint."""

    async def main():
        federation = Federation(("a", "b"), Settings(rounds=2), edges=[], folder=folder)
        federation.start("a")
        await federation.done("a")
        if not (folder / name).exists():
            shutil.copy(folder / "a", folder / name)
        federation.watch[name].weights.clear()
        federation.start(name, **options)
        async with asyncio.timeout(1000):  # virtual seconds
            await federation.done(name)
        return federation

    return run(main())


def test_node_resumes_from_own_checkpoint(tmp_path):
    federation = start_again(tmp_path)
    assert federation.nodes["a"].round == 2
    assert federation.watch["a"].weights == {}  # no round was repeated
    assert FileStore(tmp_path / "a").load().final


def test_node_refuses_checkpoint_of_another_name(tmp_path):
    message = refusal(start_again, tmp_path, "b")
    assert message.startswith("the checkpoint has name 'a', the configuration has 'b'; restore the old value, or")


def test_node_refuses_checkpoint_of_another_layout(tmp_path):
    task = make_task("concept-shift", {"dimensions": 12}, Part(0, 2), 0)
    with pytest.raises(ConfigurationError, match=r"^the checkpoint does not fit this task: .* has the shape .* instead of "):
        start_again(tmp_path, task=task)
    assert len(unpack(FileStore(tmp_path / "a").load().params)) == 11  # the checkpoint is unchanged


# Generations


def test_store_keeps_three_generations(store):
    for round in (1, 2, 3, 4, 5):
        store.save(checkpoint(round))
    assert sorted(files(store)) == ["checkpoint", "checkpoint.1", "checkpoint.2"]
    for round, name in ((5, "checkpoint"), (4, "checkpoint.1"), (3, "checkpoint.2")):
        assert store.load() == checkpoint(round)
        store.path.with_name(name).unlink()
    assert store.load() is None


def test_store_sets_damaged_checkpoint_aside_and_loads_previous(tmp_path):
    said = []
    store = FileStore(tmp_path / "checkpoint", log_to(said))
    for round in (1, 2, 3):
        store.save(checkpoint(round))
    damaged = store.path.read_bytes()[:-1]
    store.path.write_bytes(damaged)
    assert store.load() == checkpoint(2)
    assert files(store)["checkpoint.damaged"] == damaged
    (line,) = said
    text = "is damaged: renamed it to checkpoint.damaged; continuing from the previous checkpoint, after round 2"
    assert line == f"{store.path} {text}"


def test_crash_between_renames_loses_no_checkpoint(store, monkeypatch):
    def crash(point):
        if point == "checkpoint-shifted":
            raise KeyboardInterrupt

    for round in (1, 2):
        store.save(checkpoint(round))
    monkeypatch.setattr("p2pfl.node.checkpoint.failpoint", crash)
    with pytest.raises(KeyboardInterrupt):
        store.save(checkpoint(3))
    assert FileStore(store.path).load() == checkpoint(2)
