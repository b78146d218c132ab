"""Partial results of an interrupted run, for --resume: each in its own file until all are complete.

The files are in DIR/parts, next to the scenario.toml of the run. Each file is sealed (see p2pfl.system.atomic_files),
and names its run, its seed and the version of the program. A result that does not match is computed again.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import TypeVar

import msgspec
import numpy as np

from p2pfl._version import __version__
from p2pfl.config.own_modules import module_files
from p2pfl.config.registry import root_of
from p2pfl.errors import ConfigurationError, DivergenceError, RunError
from p2pfl.sim.columns import Table
from p2pfl.sim.results.artifacts import CANDIDATES, PARTS, SCENARIO, SUMMARY
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, jobs_of
from p2pfl.sim.scenario.topology import FILE
from p2pfl.system.atomic_files import DamagedFileError, lock_folder, read_sealed, reason, replace_file, write_sealed

_MAGIC = b"p2pfl-sim part 2\n"
_LENGTH = 8  # bytes of the length of the head
_MODE = 0o666  # as for the other files of a run

Kind = TypeVar("Kind")

ROWS = 2**16  # that are written together

_Columns = dict[str, tuple[str, int]]  # by name: the dtype, and the number of rows


class _Head(msgspec.Struct):
    """Head of a result on disk: its length, little endian, comes before it, and the values of all columns follow it.

    `job` is the digest of its job, and `summary` is JSON.
    """

    job: bytes
    summary: str
    notes: list[str]
    rounds: _Columns
    edges: _Columns
    more: dict[str, _Columns]


class Unfinished:
    """Sealed files with the partial results of a run, in a folder that only one process may use at a time.

    Args:
        path: the folder of the run; its scenario.toml is written if it does not exist.
        within: the name of the subfolder with the files.

    Attributes:
        done: number of results on disk.
        resume: command-line options that resume the run.

    Raises:
        ConfigurationError: the folder cannot be written, or another process uses it.
    """

    def __init__(self, path: Path, file: ScenarioFile, within: str) -> None:
        self.path = path
        self.done = 0
        self._modules = file.path
        self._of_files: dict[tuple[str, ...], bytes] = {}  # digests as the files were when they were first needed
        self._folder = path / within
        self.resume = f"--resume {quote(str(path))}" + " --trust" * bool(file.path)  # its modules are elsewhere
        self._made = [folder for folder in (self._folder, path, *path.parents) if not folder.exists()]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self._folder, "works on this run")
            if not (path / SCENARIO).exists():
                replace_file(path / SCENARIO, [msgspec.toml.encode(file.raw())])
        except OSError as error:
            raise ConfigurationError(f"cannot create the folder {path}: {reason(error)}") from error

    def digest(self, job: Scenario) -> bytes:
        """Return a digest of a job, of the program's version, and of the modules and graphs that the job names."""
        named = (*sorted(_own_modules(job)), *filter(None, (str(job.topology.get(FILE, "")), job.network.places)))
        if named not in self._of_files:
            self._of_files[named] = _digest_files(named, self._modules)
        return digest(job) + self._of_files[named]

    def write(self, number: int, magic: bytes, content: bytes | Callable[[], Iterable[bytes]]) -> None:
        """Write a file so that it survives the end of this process or of the machine.

        Args:
            content: see p2pfl.system.atomic_files.write_sealed.

        Raises:
            RunError: the file cannot be written.
        """
        path = self._folder / str(number)
        try:
            write_sealed(path, magic, content, mode=_MODE)
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}") from error
        self.done += 1

    def read(self, number: int, magic: bytes, decode: Callable[[bytes], Kind]) -> Kind | None:
        """Return the decoded content of a file; None if it does not exist.

        Raises:
            DamagedFileError: the file's contents are not as written.
        """
        path = self._folder / str(number)
        try:
            return decode(read_sealed(path, magic))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # msgspec.DecodeError is a ValueError
            raise DamagedFileError(f"{path} cannot be read") from error

    def keep(self, file: ScenarioFile) -> None:
        """Keep the parts of a run whose files lack the rows that have diverged, so that --resume can compute these.

        Args:
            file: the whole scenario.
        """
        replace_file(self._folder / SCENARIO, [msgspec.toml.encode(file.raw())])
        self._lock.close()

    def remove(self) -> None:
        """Remove the parts, once the files of the whole run contain all results."""
        self._lock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def give_up(self) -> None:
        """Remove everything that this object has made, if no result is finished."""
        self._lock.close()
        if not self.done and self._folder in self._made:
            shutil.rmtree(self._folder, ignore_errors=True)
            (self.path / SCENARIO).unlink(missing_ok=True)
            for folder in self._made[1:]:
                with suppress(OSError):  # the folder has other contents
                    folder.rmdir()


class Parts(Unfinished):
    """Finished results of the jobs of a run; see p2pfl.sim.scenario.scenario.jobs_of."""

    def __init__(self, path: Path, file: ScenarioFile) -> None:
        super().__init__(path, file, PARTS)
        self._jobs = jobs_of(file)
        self._digests = list(map(self.digest, self._jobs))

    def save(self, number: int, result: Result) -> None:
        """Write the result of a job so that it survives the end of this process or of the machine.

        Raises:
            RunError: the result cannot be written.
        """
        tables = [result.rounds, result.edges, *result.more.values()]
        head = _Head(
            self._digests[number],
            json.dumps(result.summary),
            result.notes,
            _describe(result.rounds),
            _describe(result.edges),
            {name: _describe(table) for name, table in result.more.items()},
        )
        encoded = msgspec.msgpack.encode(head)
        columns = [column for table in tables for column in table.values()]

        def content() -> Iterator[bytes]:
            yield len(encoded).to_bytes(_LENGTH, "little") + encoded
            for column in columns:
                for first in range(0, len(column), ROWS):
                    yield column[first : first + ROWS].tobytes()

        self.write(number, _MAGIC, content)

    def load(self) -> tuple[dict[int, Result], list[str]]:
        """Return the results on disk by the number of their job, and a line for each that must be computed again."""
        results, notes = {}, []
        for number, job in enumerate(self._jobs):
            try:
                part = self.read(number, _MAGIC, _decode)
            except DamagedFileError:
                notes.append(f"{job.name}, seed {job.seed} was computed again: its file of partial results is damaged")
                continue
            if part is None:
                continue
            head, found = part
            if head.job != self._digests[number]:
                notes.append(f"{job.name}, seed {job.seed} was computed again: the scenario or the program has changed")
                continue
            results[number] = found
        self.done = len(results)
        return results, notes


@contextmanager
def explain_resume(parts: Unfinished, total: int, command: str, what: str = "runs") -> Iterator[None]:
    """Explain how to resume if this block ends early; remove the folder if no result is finished.

    A run that has diverged would diverge again.

    Args:
        total: number of results of the whole run.
        command: name of the p2pfl-sim command.
        what: plural noun for the results.
    """
    try:
        yield
    except BaseException as error:
        parts.give_up()
        if parts.done and isinstance(error, DivergenceError):
            print(f"{parts.done} of {total} {what} are finished, and kept in {parts.path}", file=sys.stderr)
        elif parts.done:
            again = f"p2pfl-sim {command} {parts.resume}"
            print(f"{parts.done} of {total} {what} are finished; continue with: {again}", file=sys.stderr)
        raise


def refuse_to_overwrite(path: Path) -> None:
    """Raise ConfigurationError if a folder already holds a complete or a partial run."""
    if (path / SUMMARY).exists():
        raise ConfigurationError(f"{path} already holds a run; name another folder with --out")
    for folder, what in ((PARTS, "run"), (CANDIDATES, "search")):
        if (path / folder).exists():
            raise ConfigurationError(
                f"{path} holds an unfinished {what}; continue it with --resume {path}, or name another folder with --out"
            )
    if (path / SCENARIO).exists():
        raise ConfigurationError(f"{path} already holds a {SCENARIO}; name another folder with --out")


def scenario_to_resume(path: Path, command: str = "run") -> str:
    """Return the scenario file of an unfinished run, or of an unfinished search by the command `pareto`.

    Raises:
        ConfigurationError: the folder has no scenario file, the run is finished, or another command has begun it.
    """
    whole = path / PARTS / SCENARIO  # of a run whose files lack rows that have diverged
    if (path / SUMMARY).exists() and not whole.exists():
        raise ConfigurationError(f"{path} holds a finished run; there is nothing to resume")
    if not (path / SCENARIO).exists():
        raise ConfigurationError(f"{path} holds no run to resume: it has no {SCENARIO}")
    for folder, other in ((PARTS, "run"), (CANDIDATES, "pareto")):
        if (path / folder).exists() and (command == "pareto") != (other == "pareto"):
            raise ConfigurationError(
                f"{path} was written by p2pfl-sim {other}; continue with p2pfl-sim {other} --resume {path}"
            )
    return str(whole if whole.exists() else path / SCENARIO)


def digest(job: Scenario) -> bytes:
    """Return a digest of a job and the version of the program."""
    return sha256(__version__.encode() + b"\0" + msgspec.msgpack.encode(job, order="deterministic")).digest()


def _own_modules(job: Scenario) -> set[str]:
    """Return the top-level modules of the task and the policies that a job names by their place."""
    tables = [job.task, job.policy, *job.policy_by_group.values()]
    names = [str(table.get("name", "")) for table in tables]
    return {root_of(name) for name in names if ":" in name}


def _digest_files(named: Sequence[str], folders: Sequence[str]) -> bytes:
    """Return a digest of files: graphs, and modules in the first of the folders that has them; b"" if none exists.

    It covers the modules of those folders that they import.
    """
    content = sha256()
    found = [Path(name) for name in named if Path(name).is_file()]
    for name in named:
        found += next(filter(None, (module_files(Path(folder), [name]) for folder in folders)), [])
    for path in found:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            content.update(file.name.encode() + b"\0" + sha256(file.read_bytes()).digest())
    return content.digest() if found else b""


def _describe(table: Table) -> _Columns:
    return {name: (column.dtype.str, len(column)) for name, column in table.items()}


def _decode(content: bytes) -> tuple[_Head, Result]:
    """Return the head of a result on disk, and the result..

    Raises:
        ValueError: the content is not as `Parts.save` writes it.
    """
    place = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    head = msgspec.msgpack.decode(content[_LENGTH:place], type=_Head)

    def read(columns: _Columns) -> Table:
        nonlocal place
        table = {}
        for name, (kind, count) in columns.items():
            table[name] = np.frombuffer(content, kind, count, place).copy() if count else np.empty(0, kind)
            place += table[name].nbytes
        return table

    rounds, edges = read(head.rounds), read(head.edges)
    more = {name: read(table) for name, table in head.more.items()}
    return head, Result(json.loads(head.summary), rounds, edges, head.notes, more)
