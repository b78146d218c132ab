"""What survives a crash: a file replaced as a whole, with the hash of its content, and the two before it.

A checkpoint is written when a model is published, before any peer can get it, and after every round. So a node that was
killed at any moment comes back with its last finished round and still serves the bytes that it has served before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from node.outbox import Published
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters
from p2pfl.policy import Stage, Update

_MAGIC = b"p2pfl checkpoint 1\n"


class Model(msgspec.Struct, frozen=True):
    """A published model on disk; `age` in seconds stands for the time, which has no meaning after a restart."""

    round: int
    stage: Stage
    params: bytes
    extras: dict[str, tuple[str, list[int], bytes]]
    age: float
    size: int


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Attributes:
        layout: the layout's fingerprint.
        round: the last finished one.
        params: as that round left them.
        judge: the state of early stopping, with the best model.
        unjudged: the models of `unjudged_round`, by stage, whose metrics were not looked at yet.
        policy: which policy it is.
        policy_state: the policy's own state, msgpack.
        outbox: what may still be asked for.
        final: nothing more will be published.
    """

    name: str
    seed: int
    layout: bytes
    round: int
    params: bytes
    judge: dict[str, Any]
    unjudged: dict[Stage, bytes]
    unjudged_round: int
    policy: str
    policy_state: bytes
    outbox: list[Model]
    final: bool


def pack_model(model: Published, now: float) -> Model:
    update = model.update
    extras = {name: (a.dtype.str, list(a.shape), a.tobytes()) for name, a in update.extras.items()}
    return Model(update.round, update.stage, update.params.tobytes(), extras, now - model.time, update.size)


def unpack_model(model: Model, sender: str, n_samples: int, now: float) -> Published:
    extras = {name: np.frombuffer(data, dtype).reshape(shape) for name, (dtype, shape, data) in model.extras.items()}
    params = unpack(model.params)
    update = Update(sender, model.round, model.stage, params, n_samples, extras, size=model.size)
    return Published(update, now - model.age)


def unpack(data: bytes) -> Parameters:
    return np.frombuffer(data, np.float32)


class Store(Protocol):
    """Keeps one checkpoint."""

    def save(self, checkpoint: Checkpoint) -> None: ...

    def load(self) -> Checkpoint | None: ...


class FileStore:
    """Keeps the last three checkpoints in files: `path`, and before it `path`.1 and `path`.2.

    Args:
        say: is told when a damaged one was set aside.
    """

    def __init__(self, path: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.path = path
        self._say = say
        self._generations = [path, path.with_name(f"{path.name}.1"), path.with_name(f"{path.name}.2")]

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; when this returns it is on the disk."""
        content = msgspec.msgpack.encode(checkpoint)
        replace_file(self.path, [_MAGIC, sha256(content).digest(), content], before=self._shift)

    def load(self) -> Checkpoint | None:
        """Return the last checkpoint that is whole, or None if there never was one. Damaged ones before it are set aside.

        Raises:
            ConfigurationError: all are damaged; they are left as they are.
        """
        damaged: list[Path] = []
        for path in self._generations:
            if not path.exists():
                continue
            checkpoint = _read(path)
            if checkpoint is not None:
                for bad in damaged:
                    aside = bad.with_name(f"{bad.name}.damaged")
                    bad.replace(aside)
                    self._say(f"{bad} is damaged: kept as {aside.name}, and the checkpoint before it is used")
                return checkpoint
            damaged.append(path)
        if damaged:
            raise ConfigurationError(f"{', '.join(map(str, damaged))}: damaged; move away to start from round 0")
        return None

    def _shift(self) -> None:
        newest, before, oldest = self._generations
        if before.exists():
            before.replace(oldest)
        if newest.exists():
            try:
                os.link(newest, before)  # so that there is a newest one at every moment
            except OSError:  # a file system without links
                newest.replace(before)


def _read(path: Path) -> Checkpoint | None:
    """Return a checkpoint, or None if the file is not as it was written."""
    data = path.read_bytes()
    head = len(_MAGIC) + 32
    content = data[head:]
    if data[:head] != _MAGIC + sha256(content).digest():
        return None
    try:
        return msgspec.msgpack.decode(content, type=Checkpoint)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path} is of another version: {error}; move it away to start anew") from error


def replace_file(
    path: Path, parts: Iterable[bytes], durable: bool = True, before: Callable[[], None] = lambda: None
) -> None:
    """Replace a file by new content, so that at every moment it holds the old or the new one, whole.

    Args:
        durable: also after a power cut (costs the time of a flush to the disk).
        before: called when the new content is on the disk, before it takes its place.
    """
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        for part in parts:
            file.write(part)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    before()
    temporary.replace(path)
    if durable and os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def same_federation(checkpoint: Checkpoint, expected: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if a checkpoint was made under another name, seed, layout or policy."""
    for key, value in expected.items():
        found = getattr(checkpoint, key)
        if found != value:
            shown = (found.hex(), value.hex()) if isinstance(value, bytes) else (found, value)
            raise ConfigurationError(
                f"the checkpoint has {key} {shown[0]!r}, the configuration {shown[1]!r};"
                " change that back, or move the checkpoint away to start from round 0"
            )
