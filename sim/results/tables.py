"""Files in the folder of a run: their names, its tables as Parquet and as data frames, and its nodes' models.

A model is in models/RUN/seed-SEED/node-NODE.safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np

from p2pfl._util.atomic_files import reason
from p2pfl.errors import ConfigurationError, MissingRequirementError, none_of
from p2pfl.sim.columns import PART, Table

if TYPE_CHECKING:
    import pandas
    import polars


Library = Literal["pandas", "polars"]
EXTRAS = {"pandas": "notebook", "polars": "polars"}
Tensors = dict[str, np.ndarray]
SCENARIO, SUMMARY, REPORT = "scenario.toml", "summary.json", "report.html"
PARTS = "parts"  # finished parts of an unfinished run
CANDIDATES = "candidates"  # solved candidates of an unfinished search
AUDITS = "audits"  # finished rows of an unfinished audit
AUDIT, AUDIT_PAGE = "audit.json", "audit.html"
MODELS = "models"  # models of a search's fronts, or of the nodes of a run


def stack_tables(tables: Sequence[tuple[Mapping[str, Any], Table]]) -> Table:
    """Return concatenated tables of runs, with the run's name and seed as the first columns.

    Args:
        tables: the summary of each run, with `name` and `seed`, and its table.
    """
    kinds = {name: column.dtype for _, table in tables for name, column in table.items()}
    lengths = [len(next(iter(table.values()))) for _, table in tables]
    stacked: Table = {
        "run": np.repeat(np.array([summary["name"] for summary, _ in tables], object), lengths),
        "seed": np.repeat([summary["seed"] for summary, _ in tables], lengths),
    }
    for name in kinds:  # a metric that a run lacks is NaN there
        parts = [table.get(name, np.full(n, np.nan)) for (_, table), n in zip(tables, lengths, strict=True)]
        stacked[name] = np.concatenate([part.astype(object) if part.dtype.kind == "U" else part for part in parts])
    return stacked


def write_parquet(path: Path, tables: Sequence[tuple[Mapping[str, Any], Table]]) -> None:
    """Write the tables of runs, one below the other as in `stack_tables`, without copies of long tables.

    Raises:
        OSError: the file cannot be written.
    """
    import duckdb

    names = list(dict.fromkeys(name for _, table in tables for name in table))
    with duckdb.connect() as connection:
        selections = []
        for k, (about, table) in enumerate(_sources(tables)):
            objects = {name: column.astype(object) for name, column in table.items() if column.dtype.kind == "U"}
            connection.register(f"table_{k}", table | objects)
            columns = (_quoted(name) if name in table else f"NULL::DOUBLE AS {_quoted(name)}" for name in names)
            selections.append(f"SELECT {about}, {', '.join(columns)} FROM table_{k}")
        try:
            connection.execute(f"COPY ({_union(selections)}) TO {_text(str(path))} (FORMAT parquet, COMPRESSION zstd)")
        except duckdb.IOException as error:
            raise OSError(str(error)) from error


def _sources(tables: Sequence[tuple[Mapping[str, Any], Table]]) -> Iterator[tuple[str, Table]]:
    """Yield tables with an expression for the run and the seed: each long table as it is, adjacent short ones stacked."""
    for long, group in groupby(tables, lambda each: len(next(iter(each[1].values()))) > PART):
        if long:
            for summary, table in group:
                yield f"{_text(str(summary['name']))} AS run, {int(summary['seed'])}::BIGINT AS seed", table
        else:
            yield '"run"::VARCHAR AS run, seed', stack_tables(list(group))  # without rows its type would be unknown


def _union(selections: Sequence[str]) -> str:
    """Return a query for the rows of all selections, in a tree: the parser limits the depth."""
    if len(selections) == 1:
        return selections[0]
    middle = len(selections) // 2
    return f"({_union(selections[:middle])}) UNION ALL ({_union(selections[middle:])})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def data_frame(columns: Mapping[str, Any], library: Library) -> pandas.DataFrame | polars.DataFrame:
    """Return columns as a data frame.

    Raises:
        ConfigurationError: the library is unknown or not installed.
    """
    if library not in EXTRAS:
        raise none_of("library", library, EXTRAS)
    try:
        if library == "polars":
            import polars

            return polars.DataFrame({name: _list_of_objects(column) for name, column in columns.items()})
        import pandas

        return pandas.DataFrame(dict(columns))
    except ImportError as error:
        raise MissingRequirementError(f"frame() needs {library}: pip install 'p2pfl-node[{EXTRAS[library]}]'") from error


def _list_of_objects(column: Any) -> Any:
    return column.tolist() if getattr(column, "dtype", np.dtype(float)).kind == "O" else column


def write_models(path: Path, run: Mapping[str, Any], models: Sequence[Tensors]) -> None:
    """Write the tensors of each node's model; `run` is the summary of the run."""
    from safetensors.numpy import save_file

    folder = _folder(path, run)
    for node, tensors in enumerate(models):
        folder.mkdir(parents=True, exist_ok=True)
        about = {"run": str(run["name"]), "seed": str(run["seed"]), "node": str(node)}
        save_file(tensors, folder / f"node-{node}.safetensors", about)


def read_models(path: Path, run: Mapping[str, Any]) -> list[Tensors] | None:
    """Return the tensors of each node's model; None if the folder has none of this run.

    Raises:
        ConfigurationError: a file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = _folder(path, run)
    if not folder.is_dir():
        return None
    models = []
    for node in range(run["nodes"]):
        file = folder / f"node-{node}.safetensors"
        try:
            models.append(load_file(file))
        except (OSError, SafetensorError) as error:
            why = reason(error) if isinstance(error, OSError) else error
            raise ConfigurationError(f"cannot read {file}: {why}") from error
    return models


def _folder(path: Path, run: Mapping[str, Any]) -> Path:
    name = quote(str(run["name"]), safe="").replace(".", "%2E")  # so that no name leads to another folder
    return path / MODELS / name / f"seed-{run['seed']}"
