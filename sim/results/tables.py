"""Tables of runs as columns, as Parquet files and as data frames of pandas and polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from p2pfl.errors import MissingRequirementError, none_of

if TYPE_CHECKING:
    import pandas
    import polars

Table = dict[str, np.ndarray]
Library = Literal["pandas", "polars"]
EXTRAS = {"pandas": "notebook", "polars": "polars"}


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
    """Write the stacked tables of runs; see `stack_tables`.

    Raises:
        OSError: the file cannot be written.
    """
    import duckdb

    with duckdb.connect() as connection:
        connection.register("stacked", stack_tables(tables))
        target = str(path).replace("'", "''")
        columns = '"run"::VARCHAR AS run, * EXCLUDE (run)'  # without rows its type would be unknown
        try:
            connection.execute(f"COPY (SELECT {columns} FROM stacked) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
        except duckdb.IOException as error:
            raise OSError(str(error)) from error


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
