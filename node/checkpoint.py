"""Checkpoints of a node: a file that is replaced atomically, with the hash of its content, and the two previous ones.

A checkpoint is written when a model is published, before any peer can fetch it, after the preparation, and after every
round. A node that was killed at any time therefore restarts with its last finished round, and serves the same bytes as
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import msgspec
import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.node.conduct.conduct import ConductState
from p2pfl.node.exchange.published_models import Published
from p2pfl.node.log import LOG
from p2pfl.node.policy_api import PeersState
from p2pfl.node.task_facts import TaskFacts, describe_change
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import Stage, Update
from p2pfl.system.atomic_files import DamagedFileError, DiskErrorReporter, read_sealed, reason, write_sealed
from p2pfl.system.disk import SYSTEM, Disk
from p2pfl.system.event_log import EventLogger
from p2pfl.system.failpoints import failpoint

AFRESH = "move the checkpoints (checkpoint, checkpoint.1, checkpoint.2) away to start from round 0"
_MAGIC = b"p2pfl checkpoint 1\n"


Array = tuple[str, list[int], bytes]
"""Type, shape and values of an array."""


class Model(msgspec.Struct, frozen=True):
    """Published model on disk, as peers receive it; `age` in seconds replaces the time, invalid after a restart."""

    round: int
    stage: Stage
    params: bytes
    extras: dict[str, Array]
    age: float
    size: int
    tag: bytes = b""


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of a node on disk.

    Attributes:
        layout: the fingerprint of the layout of all values, shared and private.
        round: the last finished round.
        params: parameters after that round, with the private part.
        early_stopping: the state of early stopping, with all values of the best model.
        unevaluated: the models of `unevaluated_round` that have not been evaluated yet, all values, by stage.
        policy: name of the policy.
        policy_state: the policy's own state, msgpack.
        outbox: the published models that may still be requested; shared parts.
        final: whether nothing more will be published.
        codec: encoding of sent models.
        steps: the tags of the latest publications, and the changes; see p2pfl.compression.sparse_updates.Step.
        prepared: whether the preparation before the first round is done.
        learner: the state that the learner keeps from round to round.
        peers: the knowledge of peers that the robust rule and the budget keep from round to round.
        conduct: the penalties of peers, and proofs of them.
        task: facts of the task, which name what has changed if the checkpoint does not fit.
    """

    name: str
    seed: int
    layout: bytes
    round: int
    params: bytes
    early_stopping: dict[str, Any]
    unevaluated: dict[Stage, bytes]
    unevaluated_round: int
    policy: str
    policy_state: bytes
    outbox: list[Model]
    final: bool
    codec: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "float32"})
    steps: list[tuple[bytes, bytes]] = []
    prepared: bool = False
    learner: dict[str, Array] = {}
    peers: PeersState = PeersState()
    conduct: ConductState = ConductState()
    task: TaskFacts = TaskFacts()


def pack_model(model: Published, now: float) -> Model:
    update = model.update
    extras = pack_arrays(update.extras)
    return Model(update.round, update.stage, update.params.tobytes(), extras, now - model.time, update.size, model.tag)


def unpack_model(model: Model, sender: str, n_samples: int, now: float) -> Published:
    extras = unpack_arrays(model.extras)
    params = unpack(model.params)
    update = Update(sender, model.round, model.stage, params, n_samples, extras, size=model.size)
    return Published(update, now - model.age, model.tag)


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Array]:
    return {name: (array.dtype.str, list(array.shape), array.tobytes()) for name, array in arrays.items()}


def unpack_arrays(packed: Mapping[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(data, dtype).reshape(shape) for name, (dtype, shape, data) in packed.items()}


def unpack(data: bytes) -> Parameters:
    return np.frombuffer(data, np.float32)


class Store(Protocol):
    """Storage of one checkpoint.

    Attributes:
        problem: why the last checkpoint could not be stored; "" if it was.
        round: round of the stored checkpoint; 0 if there is none.
    """

    @property
    def problem(self) -> str: ...

    @property
    def round(self) -> int: ...

    def save(self, checkpoint: Checkpoint) -> None: ...

    def load(self) -> Checkpoint | None: ...


class FileStore:
    """Storage of the last three checkpoints in files: `path`, and the previous ones in `path`.1 and `path`.2.

    Args:
        log: receives an event when a damaged checkpoint was set aside, when none can be written, and when writing works
            again.
        disk: the disk of the files.
    """

    def __init__(self, path: Path, log: EventLogger = LOG, disk: Disk = SYSTEM) -> None:
        self.path = path
        self.round = 0
        self._lock = Lock()
        self._log = log
        self._disk = disk
        self._tries = DiskErrorReporter(path, "checkpoints", log)
        self._generations = [path, path.with_name(f"{path.name}.1"), path.with_name(f"{path.name}.2")]

    @property
    def problem(self) -> str:
        return self._tries.problem

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint. When this returns it is on disk, or `problem` gives the error and the previous one is.

        The checkpoint of a cancelled caller may still be being written in another thread; this method then waits for
        it.
        """
        content = msgspec.msgpack.encode(checkpoint)
        with self._lock, self._tries.tolerate():
            write_sealed(self.path, _MAGIC, content, before=self._shift, disk=self._disk)
            self.round = checkpoint.round
            failpoint("checkpoint-saved")

    def load(self) -> Checkpoint | None:
        """Return the last intact checkpoint, or None if there never was one. Newer damaged ones are set aside.

        Raises:
            ConfigurationError: all checkpoints are damaged, and remain unchanged; or they cannot be read.
        """
        try:
            checkpoint = self._load()
        except OSError as error:
            raise ConfigurationError(f"cannot read {self.path}: {reason(error)}") from error
        self.round = 0 if checkpoint is None else checkpoint.round
        return checkpoint

    def _load(self) -> Checkpoint | None:
        damaged: list[Path] = []
        for path in self._generations:
            if not self._disk.exists(path):
                continue
            try:
                checkpoint = _read(path, self._disk)
            except DamagedFileError:
                damaged.append(path)
                continue
            for bad in damaged:
                aside = bad.with_name(f"{bad.name}.damaged")
                self._disk.rename(bad, aside)
                event = f"{bad} is damaged: renamed it to {aside.name}; continuing from the previous checkpoint"
                self._log.warning(event, kind="file-damaged", path=str(bad))
            return checkpoint
        if damaged:
            raise ConfigurationError(
                f"no checkpoint is intact: {', '.join(map(str, damaged))}; move them away to start from round 0"
            )
        return None

    def _shift(self) -> None:
        failpoint("checkpoint-written")
        newest, before, oldest = self._generations
        disk = self._disk
        if disk.exists(before):
            disk.rename(before, oldest)
        if disk.exists(newest):
            try:
                disk.link(newest, before)  # so that a newest one exists at every moment
            except OSError:  # a file system without links
                disk.rename(newest, before)
        failpoint("checkpoint-shifted")


def _read(path: Path, disk: Disk) -> Checkpoint:
    try:
        return msgspec.msgpack.decode(read_sealed(path, _MAGIC, disk), type=Checkpoint)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"{path} was written by another version of p2pfl ({error}); move it away to start from round 0"
        ) from error


def with_local_state(checkpoint: Checkpoint, layout: Layout, initial: Parameters) -> Checkpoint:
    """Return a checkpoint whose models have local state; those of an earlier version get that of the initial model.

    Raises:
        ConfigurationError: a model has another size.
    """

    def whole(data: bytes) -> bytes:
        return layout.with_local(unpack(data), lambda: initial).tobytes() if data else data

    return msgspec.structs.replace(
        checkpoint,
        params=whole(checkpoint.params),
        early_stopping=checkpoint.early_stopping | {"best": whole(checkpoint.early_stopping["best"])},
        unevaluated={stage: whole(data) for stage, data in checkpoint.unevaluated.items()},
    )


def same_federation(checkpoint: Checkpoint, expected: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if a checkpoint was made under another name, seed or policy."""
    for key, value in expected.items():
        found = getattr(checkpoint, key)
        if found != value:
            raise ConfigurationError(
                f"the checkpoint has {key} {found!r}, the configuration has {value!r}; restore the old value, or {AFRESH}"
            )


def same_task(checkpoint: Checkpoint, layout: bytes, facts: TaskFacts) -> None:
    """Raise ConfigurationError if a checkpoint does not fit a task: its model, or the columns of its data, are others."""
    change = describe_change(checkpoint.task, facts)
    if checkpoint.layout != layout:
        change = change or "the model has another layout now, because the data, the task or its options are others"
    if change:
        raise ConfigurationError(
            f"the checkpoint does not fit this task: {change}; restore the old data or task, or {AFRESH}"
        )
