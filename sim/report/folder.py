"""Folder of a finished run, read for a report; each missing or damaged file gets a one-line error.

Only summary.json must be complete. The report leaves out everything that depends on missing keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.sim.formatting import some
from p2pfl.sim.report.summary import Summary
from p2pfl.sim.results.artifacts import CANDIDATES, PARTS, SCENARIO, SUMMARY
from p2pfl.system import toml_reader
from p2pfl.system.atomic_files import reason

if TYPE_CHECKING:
    import duckdb

Columns = dict[str, np.ndarray]
TABLES = {
    "rounds": ("run", "seed", "round", "virtual_time", "node", "bytes_out", "models_in"),
    "edges": ("run", "seed", "round", "src", "dst"),
}
MORE = {  # tables that not every run has
    "clusters": ("round", "node", "cluster"),
    "similarities": ("round", "node", "other", "similarity"),
    "elections": ("time", "node", "term", "coordinator", "problem"),
}


class Folder:
    """Files of a finished run; a context manager that closes them.

    Attributes:
        raw: contents of summary.json.
        summary: the part of summary.json that a report reads.
        text: text of scenario.toml; "" if there is none.
        scenario: contents of scenario.toml; {} if it cannot be read.

    Raises:
        ConfigurationError: the folder has no finished run, or one of its files cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw, self.summary = _summary(path)
        self.text, self.scenario = _scenario(path / SCENARIO)
        self._tables = _open(path, not self.summary.search)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def settings(self, run: str) -> dict[str, Any]:
        """Return the table of a run in the resolved scenario; {} if it does not exist."""
        runs = self.scenario.get("run")
        found = (table for table in runs if isinstance(table, dict)) if isinstance(runs, list) else ()
        return next((table for table in found if table.get("name") == run), {})

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return [str(row[0]) for row in self._run(table, f"DESCRIBE {table}").fetchall()]

    def has(self, table: str) -> bool:
        """Return whether one of the tables in MORE exists."""
        return (self.path / f"{table}.parquet").is_file()

    def read(self, table: str, columns: Sequence[str], run: str, seed: int, distinct: bool = False) -> Columns:
        """Return columns of a table for one run and seed; in a column of floats, null becomes NaN.

        Raises:
            ConfigurationError: the file is damaged.
        """
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        words = f"SELECT {'DISTINCT ' if distinct else ''}{names} FROM {table} WHERE run = ? AND seed = ?"
        found = self._run(table, words, (run, seed)).fetchnumpy()
        return {name: _plain(found[name]) for name in columns}

    def _run(self, table: str, words: str, values: Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            return self._tables.execute(words, values)
        except duckdb.Error as error:
            raise _damage_error(self.path / f"{table}.parquet", error) from error


def _summary(path: Path) -> tuple[dict[str, Any], Summary]:
    if not path.is_dir():
        raise ConfigurationError(f"the folder {path} does not exist; name the folder of a finished run")
    file = path / SUMMARY
    if not file.is_file():
        if (path / PARTS).exists():
            raise ConfigurationError(f"the run in {path} is not finished; continue with p2pfl-sim run --resume {path}")
        if (path / CANDIDATES).exists():
            raise ConfigurationError(f"the search in {path} is not finished; continue with p2pfl-sim pareto --resume {path}")
        below = sorted(each.parent.name for each in path.glob(f"*/{SUMMARY}"))
        hint = f"; runs below it: {some(below)}" if below else ""
        raise ConfigurationError(f"{path} holds no run: it has no {SUMMARY}{hint}")
    try:
        content = file.read_bytes()
        raw, summary = msgspec.json.decode(content), msgspec.json.decode(content, type=Summary)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {reason(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{file} is damaged, or not the summary of a run: {error}") from error
    if not summary.runs:
        raise ConfigurationError(f"{file} lists no run")
    if any("judged" in run for run in raw["runs"]):
        raise ConfigurationError(f"{file} is from an earlier version of p2pfl with other keys; run the scenario again")
    return raw, summary


def _scenario(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text and the contents of a scenario. A report does not need them."""
    try:
        text = file.read_bytes().decode(errors="replace")
    except OSError:
        return "", {}
    try:
        return text, toml_reader.parse(text.encode())
    except ValueError:
        return text, {}


def _open(path: Path, run: bool) -> duckdb.DuckDBPyConnection:
    """Return a connection with the Parquet files of a run as views; a search has none of these files."""
    import duckdb

    connection = duckdb.connect()
    if not run:
        return connection
    more = {table: ("run", "seed", *needed) for table, needed in MORE.items()}
    for table, needed in (TABLES | more).items():
        file = path / f"{table}.parquet"
        if table in MORE and not file.is_file():
            continue
        if not file.is_file():
            raise ConfigurationError(f"{path} holds no complete run: it has no {file.name}")
        try:
            connection.from_parquet(_literally(file)).create_view(table)
            found = {row[0] for row in connection.execute(f"DESCRIBE {table}").fetchall()}
        except duckdb.Error as error:
            raise _damage_error(file, error) from error
        if missing := [name for name in needed if name not in found]:
            raise ConfigurationError(f"{file} is not a table of a run: it has no column {', '.join(missing)}")
    return connection


def _literally(file: Path) -> str:
    """Return a path with DuckDB's special characters escaped."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(file))


def _damage_error(file: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{file} is damaged: {str(error).splitlines()[0]}")


def _plain(column: Any) -> np.ndarray:
    """Return a column of DuckDB, which masks null values, as plain numbers."""
    values = np.asarray(column)
    missing = np.ma.getmaskarray(column)
    return np.where(missing, np.nan, values) if missing.any() else values
