"""Partial results of an interrupted run, for --resume: which are used, and which are computed again.

Each result is in its own file until all are complete; `Parts.load` decides which of them are used.

The files are in DIR/parts, next to the scenario.toml of the run. Each file is sealed (see p2pfl._util.atomic_files),
and names the content of all inputs of its run (see p2pfl.sim.execution.inputs). A result whose inputs have changed is
computed again.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import TypeVar

import msgspec
import numpy as np

from p2pfl._util.atomic_files import DamagedFileError, lock_folder, read_sealed, reason, replace_file, write_sealed
from p2pfl.errors import ConfigurationError, DivergenceError, P2pflError, RunError
from p2pfl.sim.columns import Table
from p2pfl.sim.execution.inputs import Content, RunInputs, changed_files
from p2pfl.sim.results.results import Result
from p2pfl.sim.results.tables import AUDIT, AUDITS, CANDIDATES, PARTS, SCENARIO, SUMMARY
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, jobs_of, load
from p2pfl.sim.simulation.workers import prepared_process

_MAGIC = b"p2pfl-sim part 3\n"
_LENGTH = 8  # bytes of the length of the head
_MODE = 0o666  # as for the other files of a run

Kind = TypeVar("Kind")

KINDS = {
    PARTS: ("run", "run"),
    CANDIDATES: ("search", "pareto"),
    AUDITS: ("audit", "audit"),
}  # of unfinished work, by the folder of its results: a noun, and the command
ROWS = 2**16  # that are written together
MOST_NAMED = 4  # results in one line

_Columns = dict[str, tuple[str, int]]  # by name: the dtype, and the number of rows


class UnusableFileError(P2pflError):
    """File with a partial result that is damaged, or that another version of p2pfl has written."""


class _Head(msgspec.Struct):
    """Head of a result on disk: its length, little endian, comes before it, and the values of all columns follow it.

    `content` is that of the inputs of its job, and `summary` is JSON.
    """

    content: Content
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
        inputs: of the runs, as they were before the first run read them; by default as they are now.
        different_bits: keep results of other versions of the libraries, or of another kind of machine.

    Attributes:
        done: number of results on disk.
        resume: command-line options that resume the run.
        elsewhere: folders of the scenario's own modules; "" if it has none.

    Raises:
        ConfigurationError: the folder cannot be written, or another process uses it.
    """

    def __init__(
        self, path: Path, file: ScenarioFile, within: str, inputs: RunInputs | None, *, different_bits: bool = False
    ) -> None:
        self.path = path
        self.done = 0
        self.inputs = inputs or RunInputs(file, path)
        self.different_bits = different_bits
        self._folder = path / within
        self.elsewhere = ", ".join(file.path)  # folders of its modules, which only --trust imports
        self.resume = f"--resume {quote(str(path))}" + " --trust" * bool(self.elsewhere)
        self._made = [folder for folder in (self._folder, path, *path.parents) if not folder.exists()]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self._folder, "works on this run")
            if not (path / SCENARIO).exists():
                replace_file(path / SCENARIO, [msgspec.toml.encode(file.to_toml())])
        except OSError as error:
            raise ConfigurationError(f"cannot create the folder {path}: {reason(error)}") from error

    def changes(self, job: Scenario, before: Content) -> str:
        """Return the inputs of a job that differ from those of a result, in one line; "" if none does."""
        return before.changes(self.inputs.content(job), different_bits=self.different_bits)

    def write(self, number: int, magic: bytes, content: bytes | Callable[[], Iterable[bytes]]) -> None:
        """Write a file so that it survives the end of this process or of the machine.

        Args:
            content: see p2pfl._util.atomic_files.write_sealed.

        Raises:
            RunError: the file cannot be written.
        """
        path = self._folder / str(number)
        before = _inode(path)
        try:
            write_sealed(path, magic, content, mode=_MODE)
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}") from error
        finally:  # an interruption may come when the file is there, and the disk is not flushed yet
            self.done += _inode(path) != before

    def read(self, number: int, magic: bytes, decode: Callable[[bytes], Kind]) -> Kind | None:
        """Return the decoded content of a file; None if it does not exist.

        Raises:
            UnusableFileError: the file's contents are not as written, or another version of p2pfl has written it.
        """
        path = self._folder / str(number)
        try:
            return decode(read_sealed(path, magic))
        except FileNotFoundError:
            return None
        except (DamagedFileError, OSError, ValueError) as error:  # msgspec.DecodeError is a ValueError
            earlier = isinstance(error, DamagedFileError) and _is_earlier(path, magic)
            why = "of another version of p2pfl" if earlier else "damaged"
            raise UnusableFileError(f"its file of partial results is {why}") from error

    def keep(self, file: ScenarioFile) -> None:
        """Keep the parts of a run whose files lack the rows that have diverged, so that --resume can compute these.

        Args:
            file: the whole scenario.
        """
        replace_file(self._folder / SCENARIO, [msgspec.toml.encode(file.to_toml())])
        self._lock.close()

    def remove(self) -> None:
        """Remove the parts, once the files of the whole run contain all results."""
        self._lock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def new(self) -> bool:
        """Return whether no earlier process has begun this run."""
        return self._folder in self._made

    def give_up(self) -> None:
        """Remove everything that this object has made, if no result is finished."""
        self._lock.close()
        if not self.done and self.new:
            shutil.rmtree(self._folder, ignore_errors=True)
            (self.path / SCENARIO).unlink(missing_ok=True)
            for folder in self._made[1:]:
                with suppress(OSError):  # the folder has other contents
                    folder.rmdir()


class Parts(Unfinished):
    """Finished results of the jobs of a run; see p2pfl.sim.scenario.scenario.jobs_of."""

    def __init__(
        self, path: Path, file: ScenarioFile, inputs: RunInputs | None = None, *, different_bits: bool = False
    ) -> None:
        super().__init__(path, file, PARTS, inputs, different_bits=different_bits)
        self._jobs = jobs_of(file)

    def save(self, number: int, result: Result) -> None:
        """Write the result of a job so that it survives the end of this process or of the machine.

        Raises:
            RunError: the result cannot be written.
        """
        tables = [result.rounds, result.edges, *result.more.values()]
        head = _Head(
            self.inputs.content(self._jobs[number]),
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
        results, again = {}, Recomputed()
        for number, job in enumerate(self._jobs):
            try:
                part = self.read(number, _MAGIC, _decode)
            except UnusableFileError as error:
                again.add(f"{job.name}, seed {job.seed}", str(error))
                continue
            if part is None:
                continue
            head, found = part
            if changes := self.changes(job, head.content):
                again.add(f"{job.name}, seed {job.seed}", changes)
                continue
            results[number] = found
        self.done = len(results)
        return results, again.lines()


class Recomputed:
    """Results of an earlier attempt that are computed again, by the reason."""

    def __init__(self, what: str = "computed") -> None:
        self._what = what
        self._names: dict[str, list[str]] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of all."""
        return [name for names in self._names.values() for name in names]

    def add(self, name: str, why: str) -> None:
        """Add a result by its name."""
        self._names.setdefault(why, []).append(name)

    def lines(self) -> list[str]:
        """Return a line for each reason."""
        lines = []
        for why, names in self._names.items():
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            were = "was" if len(names) == 1 else "were"
            lines.append(f"{'; '.join(names[:MOST_NAMED])}{more} {were} {self._what} again: {why}")
        return lines


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
            if parts.elsewhere:
                print(f"--trust imports the scenario's own modules, from {parts.elsewhere}", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt) and parts.new:
            print(f"none of {total} {what} is finished, and nothing is kept; the same command starts again", file=sys.stderr)
        raise


def refuse_to_overwrite(path: Path) -> None:
    """Raise ConfigurationError if a folder already holds a complete or a partial run."""
    for done, what in ((SUMMARY, "a run"), (AUDIT, "an audit")):
        if (path / done).exists():
            raise ConfigurationError(f"{path} already holds {what}; name another folder with --out")
    for folder, (what, _) in KINDS.items():
        if (path / folder).exists():
            raise ConfigurationError(
                f"{path} holds an unfinished {what}; continue it with --resume {path}, or name another folder with --out"
            )
    if (path / SCENARIO).exists():
        raise ConfigurationError(f"{path} already holds a {SCENARIO}; name another folder with --out")


def scenario_to_resume(path: Path, command: str = "run", trust: bool = False) -> str:
    """Return the scenario file of an unfinished run, or of an unfinished search or audit by its command.

    Args:
        trust: see p2pfl.sim.scenario.scenario.load.

    Raises:
        ConfigurationError: the folder has no scenario file, the run is finished, or another command has begun it. If the
            inputs of a finished run have changed, the text names them.
    """
    whole = path / PARTS / SCENARIO  # of a run whose files lack rows that have diverged
    if (path / SUMMARY).exists() and not whole.exists():
        changes = ", ".join(changes_since(path, trust))
        remedy = f", but since then {changes}; run the scenario again into another folder" if changes else ""
        raise ConfigurationError(f"{path} holds a finished run; there is nothing to resume{remedy}")
    if (path / AUDIT).exists():
        raise ConfigurationError(f"{path} holds a finished audit; there is nothing to resume")
    if not (path / SCENARIO).exists():
        raise ConfigurationError(f"{path} holds no run to resume: it has no {SCENARIO}")
    own = command if command in ("pareto", "audit") else "run"
    for folder, (_, other) in KINDS.items():
        if (path / folder).exists() and own != other:
            raise ConfigurationError(
                f"{path} was written by p2pfl-sim {other}; continue with p2pfl-sim {other} --resume {path}"
            )
    return str(whole if whole.exists() else path / SCENARIO)


def changes_since(path: Path, trust: bool = False) -> list[str]:
    """Return a phrase for each file that has changed since a run was finished; [] if this cannot be determined.

    Args:
        path: the folder of the run.
        trust: see p2pfl.sim.scenario.scenario.load.
    """
    try:
        file = load(str(path / SCENARIO), trust=trust)
        runs = json.loads((path / SUMMARY).read_text(encoding="utf-8"))["runs"]
        before = {(run["name"], run["seed"]): run.get("inputs", {}) for run in runs}
        with prepared_process(file.path):
            inputs = RunInputs(file, path)
            jobs = [job for job in jobs_of(file) if (job.name, job.seed) in before]
            found = [phrase for job in jobs for phrase in changed_files(before[job.name, job.seed], inputs.files(job))]
    except (ConfigurationError, OSError, ValueError, KeyError, TypeError):
        return []
    return list(dict.fromkeys(found))


def _inode(path: Path) -> int | None:
    """Return the number of a file, which a replacement changes; None if there is no file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _is_earlier(path: Path, magic: bytes) -> bool:
    """Return whether a file begins like one of another version."""
    with suppress(OSError):
        line = path.read_bytes().partition(b"\n")[0] + b"\n"
        return line != magic and line.startswith(magic.rstrip(b"\n").rstrip(b"0123456789"))
    return False


def _describe(table: Table) -> _Columns:
    return {name: (column.dtype.str, len(column)) for name, column in table.items()}


def _decode(content: bytes) -> tuple[_Head, Result]:
    """Return the head of a result on disk, and the result.

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
