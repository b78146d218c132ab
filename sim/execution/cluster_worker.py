"""The side of a Ray cluster's workers: preparation, one run as a stream of messages, and shards of a run as actors.

Messages travel as bytes: plain values, arrays, and objects of plain data. An object is a struct of msgspec, a dataclass,
a named tuple, or an error of this project. It is sent as the name of its type and its fields. A reader finds the type
among the modules that it has already imported; a message imports nothing and calls nothing but the type.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import Any

import msgspec
import numpy as np

from p2pfl.data.image_sets import ROOT
from p2pfl.errors import ConfigurationError, P2pflError, RunError
from p2pfl.sim.execution.inputs import changed_files, files_of
from p2pfl.sim.execution.probe import ProbeResult, probe
from p2pfl.sim.execution.run_order import RunOrder, run_order
from p2pfl.sim.formatting import size
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.sharding import Shard, ShardServer
from p2pfl.sim.simulation.workers import WorkerLostError, prepare_process

EVERY = 0.2  # seconds between messages about progress
# Tags of the values that msgpack cannot tell apart; each is a map with one key.
_TUPLE, _DICT, _ARRAY, _SCALAR, _OBJECT, _ERROR = "t", "d", "a", "n", "o", "e"
_PLAIN = (type(None), bool, int, float, str, bytes)
PATIENCE = 60.0  # seconds until a run continues with the shards that have started


@dataclass(frozen=True)
class Job:
    """A run for a worker."""

    order: RunOrder
    settings: WorkerSettings


def run_job(message: bytes) -> Iterator[bytes]:
    """Run a job; the function of a task of Ray.

    Yields:
        The probe of this machine; then numbers of node-rounds done since the last message, and snapshots; at last the
        result, or an exception.
    """
    queue: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_compute, args=(message, queue), name="simulation", daemon=True).start()
    while True:
        found = queue.get()
        yield encode(found)
        if isinstance(found, Result | Exception):
            return


def _compute(message: bytes, queue: SimpleQueue[Any]) -> None:
    try:
        job = decode(message)
        assert isinstance(job, Job)
        queue.put(_run(job, queue))
    except BaseException as error:
        reported = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        reported.add_note(traceback.format_exc())  # a traceback does not travel
        queue.put(reported)


def _run(job: Job, queue: SimpleQueue[Any]) -> Result:
    order, settings = job.order, job.settings
    prepare_worker(settings)
    found = probe(order.job.device)
    queue.put(found)
    settings.check(found)
    settings.check_files(order.job, order.files)
    shards = RayShards(settings, order.job.device)
    progress = _Progress(queue)
    result = run_order(order, progress.tell, shards)
    progress.flush()
    result.notes.extend(shards.notes())
    return result


class _Progress:
    """Sum of the node-rounds done, sent from time to time."""

    def __init__(self, queue: SimpleQueue[Any]) -> None:
        self._queue = queue
        self._sum, self._last = 0, time.monotonic()

    def tell(self, message: Any) -> None:
        if not isinstance(message, int):
            self._queue.put(message)
            return
        self._sum += message
        if time.monotonic() - self._last >= EVERY:
            self.flush()

    def flush(self) -> None:
        if self._sum:
            self._queue.put(self._sum)
        self._sum, self._last = 0, time.monotonic()


def encode(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        ConfigurationError: it has a part that is no plain data, such as a function.
    """
    return msgspec.msgpack.encode(_pack(value))


def decode(data: bytes) -> Any:
    """Return the value of `encode`. Arrays are writable copies.

    Raises:
        RunError: the bytes are damaged, or have a type that this process does not know.
    """
    try:
        return _unpack(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        raise RunError(f"a message from the cluster cannot be read: {type(error).__name__}: {error}") from error


def _pack(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_pack(part) for part in value]
    if kind is tuple:
        return {_TUPLE: [_pack(part) for part in value]}
    if isinstance(value, Mapping):
        return {_DICT: [[_pack(key), _pack(part)] for key, part in value.items()]}
    if kind is np.ndarray and not value.dtype.hasobject:
        return {_ARRAY: [value.dtype.str, list(value.shape), value.tobytes()]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {_SCALAR: [value.dtype.str, value.tobytes()]}
    if isinstance(value, Exception):
        return {_ERROR: _pack_error(value)}
    if (names := _field_names(kind)) is not None:
        return {_OBJECT: [kind.__module__, kind.__qualname__, [_pack(getattr(value, name)) for name in names]]}
    raise ConfigurationError(
        f"the engine ray cannot send {value!r} of type {kind.__qualname__} to other machines; put a task or a policy of your"
        " own into a module, and name it package.module:factory"
    )


def _unpack(data: Any) -> Any:
    if isinstance(data, list):
        return [_unpack(part) for part in data]
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    match tag:
        case "t":
            return tuple(_unpack(part) for part in content)
        case "d":
            return {_unpack(key): _unpack(part) for key, part in content}
        case "a":
            dtype, shape, values = content
            return np.frombuffer(values, dtype).reshape(shape).copy()
        case "n":
            dtype, values = content
            return np.frombuffer(values, dtype)[0]
        case "e":
            return _unpack_error(*content)
        case "o":
            module, name, fields = content
            kind = _type_of(module, name)
            return kind(**dict(zip(_field_names(kind) or (), map(_unpack, fields), strict=True)))
    raise ValueError(f"unknown tag {tag!r}")


def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of a type's fields, in the order of its arguments; None for a type without fields."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, tuple):
        return getattr(kind, "__match_args__", None)
    return None


def _type_of(module: str, name: str) -> type:
    """Return a type of an imported module that consists of fields."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or _field_names(found) is None:
        raise ValueError(f"unknown type {module}.{name}")
    return found


def _pack_error(error: Exception) -> list[Any]:
    """Return an error as its type, its arguments, the name of its run, and its notes."""
    kind, notes = type(error), list(getattr(error, "__notes__", ()))
    run = error.run if isinstance(error, RunError) else ""
    if isinstance(error, P2pflError) and all(type(part) in _PLAIN for part in error.args):
        return [kind.__module__, kind.__qualname__, list(error.args), run, notes]
    if isinstance(error, RunError):
        return [RunError.__module__, RunError.__qualname__, [error.reason()], run, notes]
    return ["builtins", "RuntimeError", [f"{kind.__name__}: {error}"], run, notes]


def _unpack_error(module: str, name: str, args: list[Any], run: str, notes: list[str]) -> Exception:
    found: Any = getattr(sys.modules.get(module), name, None)
    known = isinstance(found, type) and issubclass(found, P2pflError)
    error: Exception = found(*args) if known else RuntimeError(*args)
    if isinstance(error, RunError):
        error.run = run
    for note in notes:
        error.add_note(note)
    return error


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of all workers of a program.

    Attributes:
        path: folders to search for modules of the scenario.
        data: folder of the data sets, where the machine does not name its own; "" is none.
        probe: that of the program's own machine, for the device of the run.
        allow_different_bits: run even if this machine's probe differs.
    """

    path: tuple[str, ...]
    data: str
    probe: ProbeResult
    allow_different_bits: bool

    def check(self, found: ProbeResult) -> None:
        """Raise RunError if a machine with this probe must not be used."""
        if found.program != self.probe.program:
            raise RunError(
                f"{found.machine} has version {found.program} of p2pfl-node, and this machine has {self.probe.program};"
                " install the same version on all machines"
            )
        if found.digest != self.probe.digest and not self.allow_different_bits:
            raise RunError(
                f"{found} computes other last bits than {self.probe}, so results would depend on the machine;"
                " leave this machine out, or accept it with --allow-different-bits"
            )

    def check_files(self, job: Scenario, files: Mapping[str, str] | None) -> None:
        """Raise RunError if this machine's files differ from those of the program's own machine.

        Args:
            files: digests of the files that the job reads, by name; None is unknown.
        """
        if files is None:
            return
        there = files_of(job, self.path)
        if changes := ", ".join(changed_files(files, there)):
            raise RunError(
                f"{platform.node()} has other inputs than {self.probe.machine}: {changes}; copy the files to all machines"
            )


@cache
def prepare_worker(settings: WorkerSettings) -> None:
    """Prepare this process once; Ray uses it for several runs."""
    if settings.data:
        os.environ.setdefault(ROOT, settings.data)
    prepare_process(settings.path)


def resources_of(device: str) -> dict[str, Any]:
    """Return the resources of Ray that a run or a shard on a device of torch needs."""
    return {"num_cpus": 1, "num_gpus": 0 if device == "cpu" else 1}


class ShardActor:
    """The class of an actor of Ray: a shard that takes and returns bytes.

    Args:
        settings: WorkerSettings, encoded.
    """

    def __init__(self, settings: bytes) -> None:
        prepare_worker(decode(settings))
        self._server = ShardServer()

    def probe(self, device: str) -> bytes:
        """Return the probe of its machine."""
        return encode(probe(device))

    def answer(self, message: bytes) -> bytes:
        """Return the seconds of a computation, and its result or its exception; see ShardServer."""
        job, begun = decode(message), time.perf_counter()
        try:
            found = self._server.answer(job)
        except Exception as error:
            error.add_note(traceback.format_exc())  # a traceback does not travel
            found = error
        return encode((time.perf_counter() - begun, found))


class RayShard:
    """A shard, as seen from the run.

    Attributes:
        actor: handle of Ray.
        bytes: sent to and received from the actor.
        computed: seconds of its computations.
        elapsed: seconds from messages to their answers.
    """

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self._answer: Any = None
        self.bytes = 0
        self.computed = self.elapsed = 0.0

    def give(self, message: Any) -> None:
        self._begun = time.perf_counter()
        data = encode(message)
        self.bytes += len(data)
        self._answer = self.actor.answer.remote(data)

    def take(self) -> Any:
        import ray

        try:
            data = ray.get(self._answer)
        except ray.exceptions.RayError as error:
            raise WorkerLostError(f"a shard of the run was lost: {type(error).__name__}") from error
        seconds, result = decode(data)
        self.bytes += len(data)
        self.computed += seconds
        self.elapsed += time.perf_counter() - self._begun
        return result


class RayShards:
    """Actors on the machines of the cluster; see p2pfl.sim.simulation.sharding.ShardSource."""

    def __init__(self, settings: WorkerSettings, device: str) -> None:
        self._settings = settings
        self._device = device
        self._shards: list[RayShard] = []
        self._actors: list[Any] = []

    def start(self, most: int) -> Sequence[Shard]:
        """Return the shards that start in time; the cluster may have lost machines since the run was planned.

        Raises:
            RunError: a machine must not be used; see WorkerSettings.check.
        """
        import ray

        make = ray.remote(**resources_of(self._device), max_restarts=0, scheduling_strategy="SPREAD")(ShardActor)
        settings = encode(self._settings)
        self._actors = [make.remote(settings) for _ in range(most)]
        probes = {actor.probe.remote(self._device): actor for actor in self._actors}
        ready, _ = ray.wait(list(probes), num_returns=most, timeout=PATIENCE)
        for answer in ready:
            try:
                found = decode(ray.get(answer))
            except ray.exceptions.RayActorError:  # lost with its machine
                continue
            assert isinstance(found, ProbeResult)
            self._settings.check(found)
            self.add(RayShard(probes[answer]))
        used = {id(shard.actor) for shard in self._shards}
        for actor in self._actors:
            if id(actor) not in used:
                ray.kill(actor)
        return self._shards

    def add(self, shard: RayShard) -> None:
        """Count a shard in the notes."""
        self._shards.append(shard)

    def end(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def notes(self) -> list[str]:
        """Return a note if sending models took longer than the shards computed."""
        computed = sum(shard.computed for shard in self._shards)
        sending = sum(shard.elapsed for shard in self._shards) - computed
        if sending <= computed:
            return []
        travelled = size(sum(shard.bytes for shard in self._shards))
        return [
            f"dividing this run did not pay: {travelled} of models went to other workers and back, which took"
            f" {sending:.1f} s for {computed:.1f} s of computation; give --workers the number of runs"
        ]
