"""What is finished of a run that is not: each result in a file of its own, until all are there.

The files lie in DIR/parts, beside the scenario.toml that says what is to be done. Each is sealed (see node.files), and names
the run, the seed and the version of the program that it belongs to; one that does not fit is computed again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

import p2pfl
from node.config import lock
from node.files import Damaged, read_sealed, reason, replace_file, write_sealed
from p2pfl.errors import ConfigurationError, Failed
from sim.left import PARTS, SCENARIO, SUMMARY
from sim.results import Result, Table
from sim.scenario import Scenario, ScenarioFile, jobs_of

_MAGIC = b"p2pfl-sim part 1\n"
_MODE = 0o666  # as of the other files of a run

_Columns = dict[str, tuple[str, bytes]]  # by name: the dtype, and the values


class _Part(msgspec.Struct):
    """A result on the disk; `job` is the digest of what it is the result of, `summary` is JSON."""

    job: bytes
    summary: str
    notes: list[str]
    rounds: _Columns
    edges: _Columns
    more: dict[str, _Columns]


class Parts:
    """The finished results of a run, in a folder that no other process works on at the same time.

    Args:
        path: the folder of the run; its scenario.toml is written if it is not there.

    Attributes:
        done: how many results are on the disk.

    Raises:
        ConfigurationError: the folder cannot be written, or another process works on it.
    """

    def __init__(self, path: Path, file: ScenarioFile) -> None:
        self.path = path
        self.done = 0
        self._jobs = jobs_of(file)
        self._folder = path / PARTS
        self._made = [folder for folder in (self._folder, path, *path.parents) if not folder.exists()]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self._folder, "works on this run")
            if not (path / SCENARIO).exists():
                replace_file(path / SCENARIO, [msgspec.toml.encode(file.raw())])
        except OSError as error:
            raise ConfigurationError(f"cannot make the folder {path}: {reason(error)}") from error

    def save(self, number: int, result: Result) -> None:
        """Write the result of a job, so that it survives whatever ends this process or the machine.

        Raises:
            Failed: it could not be written.
        """
        part = _Part(
            _digest(self._jobs[number]),
            json.dumps(result.summary),
            result.notes,
            _packed(result.rounds),
            _packed(result.edges),
            {name: _packed(table) for name, table in result.more.items()},
        )
        path = self._folder / str(number)
        try:
            write_sealed(path, _MAGIC, msgspec.msgpack.encode(part), mode=_MODE)
        except OSError as error:
            raise Failed(f"cannot write {path}: {reason(error)}") from error
        self.done += 1

    def load(self) -> tuple[dict[int, Result], list[str]]:
        """Return the results that are there by their job's number, and a line for each that must be computed again."""
        results, notes = {}, []
        for number, job in enumerate(self._jobs):
            try:
                content = read_sealed(self._folder / str(number), _MAGIC)
                part = msgspec.msgpack.decode(content, type=_Part)
            except FileNotFoundError:
                continue
            except (Damaged, OSError, msgspec.DecodeError):
                notes.append(f"{job.name}, seed {job.seed} was computed again: what was kept of it is damaged")
                continue
            if part.job != _digest(job):
                notes.append(f"{job.name}, seed {job.seed} was computed again: the scenario or the program has changed")
                continue
            more = {name: _unpacked(table) for name, table in part.more.items()}
            rounds, edges = _unpacked(part.rounds), _unpacked(part.edges)
            results[number] = Result(json.loads(part.summary), rounds, edges, part.notes, more)
        self.done = len(results)
        return results, notes

    def remove(self) -> None:
        """Remove the parts: all is in the files of the whole run."""
        self._lock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def give_up(self) -> None:
        """Leave nothing behind that was not there before if nothing is finished."""
        self._lock.close()
        if not self.done and self._folder in self._made:
            shutil.rmtree(self._folder, ignore_errors=True)
            (self.path / SCENARIO).unlink(missing_ok=True)
            for folder in self._made[1:]:
                with suppress(OSError):  # something else is in it
                    folder.rmdir()


def refuse_to_overwrite(path: Path) -> None:
    """Raise ConfigurationError if a folder holds a run already, a whole one or a part of one."""
    if (path / SUMMARY).exists():
        raise ConfigurationError(f"{path} holds a run already; name another folder with --out")
    if (path / PARTS).exists():
        raise ConfigurationError(
            f"{path} holds a run that is not finished; go on with --resume {path}, or name another folder with --out"
        )
    if (path / SCENARIO).exists():
        raise ConfigurationError(f"{path} holds a {SCENARIO} already; name another folder with --out")


def scenario_to_resume(path: Path) -> str:
    """Return the scenario file of an unfinished run.

    Raises:
        ConfigurationError: there is none in the folder, or it is finished.
    """
    if (path / SUMMARY).exists():
        raise ConfigurationError(f"{path} holds a finished run: there is nothing to go on with")
    if not (path / SCENARIO).exists():
        raise ConfigurationError(f"{path} holds no run to go on with: it has no {SCENARIO}")
    return str(path / SCENARIO)


def _digest(job: Scenario) -> bytes:
    return sha256(p2pfl.__version__.encode() + b"\0" + msgspec.msgpack.encode(job, order="deterministic")).digest()


def _packed(table: Table) -> _Columns:
    return {name: (column.dtype.str, column.tobytes()) for name, column in table.items()}


def _unpacked(columns: Mapping[str, tuple[str, bytes]]) -> Table:
    return {name: np.frombuffer(data, kind) for name, (kind, data) in columns.items()}
