"""Folder of a finished run, read for a report; each missing or damaged file gets a one-line error.

Three kinds of files matter. summary.json must be complete: its part that a report reads has the schema `Summary`, and a
file that does not fit is damaged. The Parquet files are views of one DuckDB connection, read by column, run and seed only
when a figure needs them. scenario.toml is optional: what needs the settings of a run is left out without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from p2pfl._util import toml_tables
from p2pfl._util.atomic_files import reason
from p2pfl.errors import ConfigurationError
from p2pfl.sim.formatting import some
from p2pfl.sim.results.tables import CANDIDATES, PARTS, SCENARIO, SUMMARY
from p2pfl.sim.scenario.questions import Answer, label

if TYPE_CHECKING:
    import duckdb


Columns = dict[str, np.ndarray]
TABLES = {
    "rounds": ("run", "seed", "round", "virtual_time", "node", "bytes_out", "models_in"),
    "edges": ("run", "seed", "round", "src", "dst", "weight"),
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

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Return the tables [[run]] of the resolved scenario."""
        found = self.scenario.get("run")
        return [table for table in found if isinstance(table, dict)] if isinstance(found, list) else []

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
    return raw, summary


def _scenario(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text and the contents of a scenario. A report does not need them."""
    try:
        text = file.read_bytes().decode(errors="replace")
    except OSError:
        return "", {}
    try:
        return text, toml_tables.parse(text.encode())
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


class Test(msgspec.Struct, frozen=True):
    """Test metric of a run's nodes; None if there is no number."""

    mean: float | None = None
    last_round: float | None = None
    std: float | None = None
    worst_decile: float | None = None
    nodes: list[float | None] = []
    per_group: dict[str, float | None] = {}


class Reached(msgspec.Struct, frozen=True):
    """Cost of reaching the target; see p2pfl.sim.results.summary_metrics."""

    round: float
    virtual_s: float
    bytes: int


class Preparation(msgspec.Struct, frozen=True):
    bytes: int


class Use(msgspec.Struct, frozen=True):
    """Use of a kind of limit: the least and the greatest limit of a node, and the average share that was used."""

    least: float = 0
    greatest: float = 0
    used: float | None = None


class Traffic(msgspec.Struct, frozen=True):
    """Network traffic of a run; see p2pfl.sim.results.summary_metrics.traffic."""

    bytes: int
    control_bytes: int
    max_models_in_round: int
    preparation: Preparation
    budget: dict[str, Use] = {}


class Time(msgspec.Struct, frozen=True):
    wall_s: float
    virtual_s: float = 0.0  # a search has none


class Objectives(msgspec.Struct, frozen=True):
    """Objectives of each node's model in a task of several, and their directions; see p2pfl.sim.results.objectives.

    For a search, they are the objectives of its candidates, and `each` is "candidate".
    """

    higher_is_better: dict[str, bool]
    nodes: list[list[float | None]]
    of_nodes: list[int] = []
    left_out: list[int] = []
    reference: list[float] | None = None
    front: list[list[float]] = []
    each: str = "node"


class Answers(msgspec.Struct, frozen=True):
    """Solutions of a node whose model holds one for every preference."""

    preferences: list[list[float]]
    points: list[list[float]]


class AllAnswers(msgspec.Struct, frozen=True):
    """Solutions of the first nodes; see p2pfl.sim.results.objectives."""

    higher_is_better: dict[str, bool]
    nodes: list[Answers]


class Clusters(msgspec.Struct, frozen=True):
    """Development of the clusters of a coordinated policy; see p2pfl.sim.results.summary_metrics.clusters_by_round."""

    rounds: list[int] = []
    count: list[int] = []
    adjusted_rand: list[float] | None = None


class Amount(msgspec.Struct, frozen=True):
    """Amount of all nodes."""

    total: float = 0.0


class Effort(msgspec.Struct, frozen=True):
    """Costs of the trainings of a run; `joules` without devices, and in folders of versions without them, is None."""

    trainings: Amount = Amount()
    train_s: Amount = Amount()
    joules: Amount | None = None


class Entry(msgspec.Struct, frozen=True):
    """Run with one seed: an entry of `runs` in summary.json."""

    name: str
    seed: int
    nodes: int
    rounds: int
    metric: str
    higher_is_better: bool
    time: Time
    mode: str = ""  # "asynchronous" if nodes do not wait for each other
    test: Test = Test()
    reported_stage: str = ""
    selected_by: str = ""  # "last round", or what selects each node's round, such as "validation loss"
    topology: str = ""
    traffic: Traffic = Traffic(0, 0, 0, Preparation(0))  # that of a search
    effort: Effort = msgspec.field(default=Effort(), name="cost")
    labels: list[str] = []
    groups: list[str | None] = []
    chosen_before: list[str] = []
    attackers: list[int] = []  # numbers of the nodes that attack
    trace: str = ""
    pool: str = ""
    objectives: Objectives | None = None
    clusters: Clusters | None = None
    answers: AllAnswers | None = None
    varied: dict[str, Any] = {}
    reached: Reached | msgspec.UnsetType | None = msgspec.UNSET
    hypervolumes: list[float] = []  # for a search, after each iteration

    @property
    def sent(self) -> int:
        """Return all bytes sent for learning, including the preparation."""
        return self.traffic.bytes + self.traffic.preparation.bytes

    @property
    def joules(self) -> float:
        """Return the joules of all nodes; 0 without devices, or if they have no watts."""
        return 0.0 if self.effort.joules is None else self.effort.joules.total

    @property
    def node_values(self) -> np.ndarray:
        """Return the test metric of each node; NaN for an attacker, and without a number."""
        return np.array([np.nan if value is None else value for value in self.test.nodes], float)

    def cost(self, key: str) -> float | None:
        """Return a cost of reaching the target, by its field in Reached; None if the run never did."""
        return float(getattr(self.reached, key)) if isinstance(self.reached, Reached) else None


class Pool(msgspec.Struct, frozen=True):
    """Combined solutions of the runs of a pool with one seed; see p2pfl.sim.results.objectives.pool_results."""

    name: str
    seed: int
    of: str
    labels: list[str]
    objectives: Objectives


class Against(msgspec.Struct, frozen=True):
    """Comparison of a row with another: the difference in the metric, its spread over the seeds, and the ratio of bytes."""

    name: str
    difference: float | None = None
    std: float | None = None
    times_bytes: float | None = None


class MeanReached(msgspec.Struct, frozen=True):
    """Mean of Reached over the seeds that reached the target, and the number of these seeds."""

    round: float
    virtual_s: float
    bytes: float
    seeds: int


class Row(msgspec.Struct, frozen=True):
    """Row of the table: a run over all of its seeds."""

    name: str
    candidates: int | None = None
    seconds: float | None = None
    std: float | None = None
    paper: float | None = None
    against: Against | None = None
    reached: MeanReached | None = None
    equal: dict[str, float | None] = {}  # the metric at equal measures; see p2pfl.sim.results.summary_metrics
    epsilon: float | None = None  # the greatest that a node has spent
    front: bool = False
    extra_metrics: dict[str, float | None] = {}
    seeds: int = 1
    weight_within_group: float | None = None
    by_seed: dict[str, list[float | None]] = {}
    varied: dict[str, Any] = {}

    @property
    def words(self) -> str:
        """Return its label; see p2pfl.sim.scenario.questions.label."""
        return label(self.name, self.varied)


class Summary(msgspec.Struct, frozen=True):
    """Contents of summary.json as a report reads them."""

    scenario: str
    runs: list[Entry]
    pools: list[Pool] = []
    version: str = ""
    versions: dict[str, str] = {}
    seeds: list[int] = []
    table: list[Row] = []
    notes: list[str] = []
    target: float | None = None
    equal: dict[str, float] = {}
    varied: dict[str, list[Any]] = {}
    figure: str = ""
    search: bool = False
    question: str = ""
    unanswered: str = ""
    answers: list[Answer] = []
    references: list[str] = []
