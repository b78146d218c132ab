"""Checkpoints of a node: a file that is replaced atomically, with the hash of its content, and the two previous ones.

A checkpoint is written when a model is published, before any peer can fetch it, after the preparation, and after every
round. A node that was killed at any time therefore restarts with its last finished round, and serves the same bytes as
before.

A checkpoint fits a task if its model has the same layout. A file with the same number of columns, but other ones, gives
the same layout, and the model would continue with inputs that have another meaning. Therefore a checkpoint also keeps
facts of the task, such as the names of its columns. They are compared too, and say what has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import msgspec
import numpy as np

from p2pfl._util.atomic_files import DamagedFileError, DiskErrorReporter, explain, read_sealed, write_sealed
from p2pfl._util.disk import SYSTEM, Disk
from p2pfl._util.event_log import EventLogger
from p2pfl._util.failpoints import failpoint
from p2pfl.budget import TrainingState
from p2pfl.errors import ConfigurationError, P2pflError
from p2pfl.node.conduct import ConductState
from p2pfl.node.exchange.model_encoding import Published
from p2pfl.node.folder.config import CHECKPOINT_MAGIC
from p2pfl.node.log import LOG
from p2pfl.node.policy_api import PeersState
from p2pfl.node.settings import Used
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import Stage, Update
from p2pfl.privacy import PrivacyState, PrivacyTracker
from p2pfl.task import Task

AFRESH = "move the checkpoints (checkpoint, checkpoint.1, checkpoint.2) away to start from round 0"
Array = tuple[str, list[int], bytes]
"""Type, shape and values of an array."""

MOST_FEATURES = 10_000  # names of features that a checkpoint keeps
MOST_NAMED = 6  # names in a message


class Model(msgspec.Struct, frozen=True):
    """Published model on disk, as peers receive it; `age` in seconds replaces the time, invalid after a restart."""

    round: int
    stage: Stage
    params: bytes
    extras: dict[str, Array]
    age: float
    size: int
    tag: bytes = b""


class TaskFacts(msgspec.Struct, frozen=True):
    """Facts of a task that must stay the same for a checkpoint to fit another task of its layout.

    Attributes:
        features: names of the columns that are inputs of the model, in their order; empty if unknown.
        options: options that the task has taken from its data, by name.
        shapes: names and shapes of the model's tensors.
        rows: hash of how the rows of a table become inputs, and outputs labels; "" without a table, or in files of earlier
            versions.
    """

    features: list[str] = []
    options: dict[str, Any] = {}
    shapes: list[tuple[str, list[int]]] = []
    rows: str = ""


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
        steps: the tags of the latest publications, and the changes; see p2pfl.compression.sparse_updates.Publication.
        prepared: whether the preparation before the first round is done.
        learner: the state that the learner keeps from round to round.
        peers: the knowledge of peers that the robust rule and the budget keep from round to round.
        conduct: the penalties of peers, and proofs of them.
        task: facts of the task, which name what has changed if the checkpoint does not fit.
        saves: number of checkpoints of this folder up to this one; 0 in memory, and in files of earlier versions.
        trainings: what the node has trained so far, which its budget limits.
        used: seconds and bytes of its rounds so far, which its `end` limits.
        privacy: what it has made of its privacy budget, which p2pfl.node.privacy_ledger counts; None without one.
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
    saves: int = 0
    trainings: TrainingState = TrainingState()
    used: Used = Used()
    privacy: PrivacyState | None = None


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
        self._saves = 0
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
        with self._lock, self._tries.tolerate():
            content = msgspec.msgpack.encode(msgspec.structs.replace(checkpoint, saves=self._saves + 1))
            write_sealed(self.path, CHECKPOINT_MAGIC, content, before=self._shift, disk=self._disk)
            self._saves += 1
            self.round = checkpoint.round
            failpoint("checkpoint-saved")

    def load(self) -> Checkpoint | None:
        """Return the last intact checkpoint, or None if there never was one.

        A newest one that is damaged, or older than the one before it, is set aside.

        Raises:
            ConfigurationError: all checkpoints are damaged, and remain unchanged; or one cannot be read.
        """
        checkpoint = self._load(set_aside=True)
        self.round = 0 if checkpoint is None else checkpoint.round
        if checkpoint is None:
            return None
        self._saves = checkpoint.saves
        return msgspec.structs.replace(checkpoint, saves=0)

    def peek(self) -> Checkpoint | None:
        """Return what `load` would, and leave all files as they are."""
        return self._load(set_aside=False)

    def _load(self, *, set_aside: bool) -> Checkpoint | None:
        bad = [] if self._disk.exists(self.path) else [(self.path, "missing")]
        for path in filter(self._disk.exists, self._generations):
            try:
                found = _read(path, self._disk)
            except DamagedFileError:
                bad.append((path, "damaged"))
                continue
            except OSError as error:
                later = "to continue from the checkpoint before it, move it away"
                raise ConfigurationError(f"cannot read {path}: {explain(error)}; {later}") from error
            if path == self.path and (before := self._before()) is not None and before.saves > found.saves:
                bad.append((path, f"older than {self._generations[1].name}"))
                found = before
            self._report(bad, found.round, set_aside)
            return found
        if damaged := [str(path) for path, what in bad if what == "damaged"]:
            raise ConfigurationError(f"no checkpoint is intact: {', '.join(damaged)}; move them away to start from round 0")
        return None

    def _before(self) -> Checkpoint | None:
        """Return the checkpoint before the newest one; None if it cannot be used."""
        try:
            return _read(self._generations[1], self._disk)
        except (OSError, P2pflError):
            return None

    def _report(self, bad: Sequence[tuple[Path, str]], round: int, set_aside: bool) -> None:
        """Report, and by choice rename, the checkpoints that are newer by name than the one that is used."""
        for path, what in bad:
            aside, done = path.with_name(f"{path.name}.damaged"), ""
            if what != "missing" and set_aside:
                try:
                    self._disk.rename(path, aside)
                except OSError as error:
                    raise ConfigurationError(f"cannot rename {path}, which is {what}: {explain(error)}") from error
                done = f": renamed it to {aside.name}"
            used = "continuing from" if set_aside else "reading"
            self._log.warning(
                f"{path} is {what}{done}; {used} the previous checkpoint, after round {round}",
                kind="file-damaged",
                path=str(path),
            )

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
        return msgspec.msgpack.decode(read_sealed(path, CHECKPOINT_MAGIC, disk), type=Checkpoint)
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


def same_privacy(checkpoint: Checkpoint, now: PrivacyTracker | None, *, counted: bool) -> None:
    """Raise ConfigurationError if the steps of a checkpoint are not part of the node's privacy budget.

    Args:
        counted: whether the node has a ledger on the disk, which must know all of them.
    """
    before = checkpoint.privacy
    if now is None:
        if before is not None and before.made:
            raise ConfigurationError(
                "the checkpoint is of trainings under a privacy budget, and its next model would break the promise of"
                f" that; restore the table [privacy] and the ledger, or, to give the promise up, {AFRESH}"
            )
        return
    if before is None and (checkpoint.round or checkpoint.trainings.trainings):
        raise ConfigurationError(
            f"this node has trained {checkpoint.round} rounds without a privacy budget, which cannot cover them any more;"
            f" remove the table [privacy], or, to cover what it releases from then on, {AFRESH}",
            "privacy",
        )
    if counted and before is not None and now.made < before.made:
        raise ConfigurationError(
            f"the ledger of the privacy budget has {now.made:,} steps, and the checkpoint has {before.made:,}: it is an"
            " older copy; restore the newest one"
        )


def same_rows(checkpoint: Checkpoint, task: Task) -> None:
    """Raise ConfigurationError if a task encodes rows otherwise than it did when its model was trained.

    A node that starts again takes rows as they are now, and trains its model with them; but what answers with the model of
    the checkpoint needs the rows of the training.
    """
    before, now = checkpoint.task.rows, _hash_of_rows(task.row_encoding)
    if before and before != now:
        raise ConfigurationError(
            "the node's data, or its task's options, have changed since the checkpoint was written, so that the task encodes"
            " rows otherwise than in the training; restore them, or run the node for another round"
        )


def _hash_of_rows(encoding: Mapping[str, Any]) -> str:
    """Return a hash of a task's `row_encoding`; "" if it is empty."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return f"{value:.6g}" if isinstance(value, float) else value  # another version of NumPy may round sums otherwise

    return sha256(repr(plain(encoding)).encode()).hexdigest()[:16] if encoding else ""


def facts_of(task: Task) -> TaskFacts:
    """Return the facts of a task."""
    columns = [column for facts in task.data_facts for column in facts.columns]
    features = [column.name for column in columns if column.role in ("feature", "sensitive")]
    return TaskFacts(
        features[:MOST_FEATURES] if all(features) else [],
        dict(task.derived_options),
        [(name, list(shape)) for name, shape in task.layout.shapes],
        _hash_of_rows(task.row_encoding),
    )


def describe_change(before: TaskFacts, now: TaskFacts) -> str:
    """Return what has changed in a task, as a sentence; "" if nothing that is known."""
    if before.features and now.features and before.features != now.features:
        return _describe_columns(before.features, now.features)
    counts = [
        f"{now.options[name]} {name} instead of {value}"
        for name, value in before.options.items()
        if isinstance(value, int) and now.options.get(name, value) != value
    ]
    if counts:
        return f"the data now have {' and '.join(counts)}"
    if before.options.get("columns") != now.options.get("columns") and before.options.get("columns"):
        return "the data now have other columns, or the same ones in another order"
    if before.shapes and before.shapes != now.shapes:
        return _describe_shapes(before.shapes, now.shapes)
    return ""


def _describe_columns(before: Sequence[str], now: Sequence[str]) -> str:
    new, gone = ([name for name in a if name not in set(b)] for a, b in ((now, before), (before, now)))
    if not new and not gone and len(now) == len(before):
        return f"the features of the data are in another order: {_names(now)} instead of {_names(before)}"
    count = f"{len(now)} features instead of {len(before)}" if len(now) != len(before) else "other features"
    changes = [f"{what} {_names(names)}" for what, names in (("new:", new), ("missing:", gone)) if names]
    return f"the data now have {count} ({', '.join(changes)})"


def _describe_shapes(before: Sequence[tuple[str, list[int]]], now: Sequence[tuple[str, list[int]]]) -> str:
    was, present = dict(before), dict(now)
    for name, shape in now:
        if name in was and was[name] != shape:
            return (
                f"the model is another one now: its tensor {name} has the shape {_shape(shape)} instead of"
                f" {_shape(was[name])}; the data may have other columns, or the task other options"
            )
    new, gone = ([name for name in a if name not in b] for a, b in ((present, was), (was, present)))
    changes = [f"{what} {_names(names)}" for what, names in (("new:", new), ("missing:", gone)) if names]
    return f"the model has other tensors now ({', '.join(changes) or 'in another order'})"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "of one value"


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
