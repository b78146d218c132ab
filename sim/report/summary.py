"""summary.json, as far as a report reads it. What an older version did not write has a default."""

from __future__ import annotations

from typing import Any

import msgspec


class Test(msgspec.Struct, frozen=True):
    """The test metric of a run's nodes; None where there is no number."""

    mean: float | None = None
    std: float | None = None
    worst_decile: float | None = None
    nodes: list[float | None] = []
    per_group: dict[str, float | None] = {}


class Reached(msgspec.Struct, frozen=True):
    """What it took until a run reached its target; see p2pfl.sim.results.time_to_target."""

    round: int
    virtual_s: float
    bytes: int


class Preparation(msgspec.Struct, frozen=True):
    bytes: int = 0


class Use(msgspec.Struct, frozen=True):
    """Of a kind of limit: the least and the greatest of a node, and which share of it was used on average."""

    least: float = 0
    greatest: float = 0
    used: float | None = None


class Traffic(msgspec.Struct, frozen=True):
    """What went over the network; see p2pfl.sim.results.summary_metrics.traffic."""

    bytes: int | None = None
    control_bytes: int = 0
    max_models_in_round: int | None = None
    preparation: Preparation = Preparation()
    budget: dict[str, Use] = {}


class Time(msgspec.Struct, frozen=True):
    wall_s: float | None = None
    virtual_s: float | None = None


class Objectives(msgspec.Struct, frozen=True):
    """Those of each node's model, in a task of several, and of each whether more is better; see
    p2pfl.sim.results.objectives.

    Of a search they are those of its candidates; `each` says what has them.
    """

    higher_is_better: dict[str, bool]
    nodes: list[list[float | None]]
    left_out: list[int] = []
    reference: list[float] | None = None
    front: list[list[float]] = []
    each: str = "node"


class Answers(msgspec.Struct, frozen=True):
    """Those of a node whose model holds a solution for every preference."""

    preferences: list[list[float]]
    points: list[list[float]]


class AllAnswers(msgspec.Struct, frozen=True):
    """Those of the first nodes; see p2pfl.sim.results.preference_fronts."""

    higher_is_better: dict[str, bool]
    nodes: list[Answers]


class Clusters(msgspec.Struct, frozen=True):
    """How the clusters of a coordinated policy developed; see p2pfl.sim.simulation.cluster_log.over_rounds."""

    rounds: list[int] = []
    count: list[int] = []
    adjusted_rand: list[float] | None = None


class Entry(msgspec.Struct, frozen=True):
    """A run with one seed: an entry of `runs` in summary.json, as far as a report reads it."""

    name: str
    seed: int
    nodes: int
    rounds: int
    metric: str
    test: Test = Test()
    higher_is_better: bool | None = None
    reported_stage: str = ""
    topology: str = ""
    traffic: Traffic = Traffic()
    time: Time = Time()
    labels: list[str] = []
    groups: list[str | None] = []
    chosen_before: list[str] = []
    trace: str = ""
    pool: str = ""
    objectives: Objectives | None = None
    clusters: Clusters | None = None
    answers: AllAnswers | None = None
    varied: dict[str, Any] = {}
    reached: Reached | msgspec.UnsetType | None = msgspec.UNSET
    hypervolumes: list[float] = []  # of a search, after each iteration

    @property
    def better_is_higher(self) -> bool:
        """Older summaries do not say so: of theirs, accuracies are better when they are higher."""
        return self.metric == "accuracy" if self.higher_is_better is None else self.higher_is_better

    @property
    def sent(self) -> int | None:
        """All bytes that were sent in order to learn, the preparation included; None if the summary does not say it."""
        return None if self.traffic.bytes is None else self.traffic.bytes + self.traffic.preparation.bytes


class Pool(msgspec.Struct, frozen=True):
    """What the runs of a pool have together with one seed; see p2pfl.sim.results.objectives.pooled."""

    name: str
    seed: int
    of: str
    labels: list[str]
    objectives: Objectives


class Against(msgspec.Struct, frozen=True):
    """What a row's metric has more than that of another, and how many times as many bytes it sends."""

    name: str
    difference: float | None = None
    times_bytes: float | None = None


class MeanReached(msgspec.Struct, frozen=True):
    """The mean of Reached over those seeds that did, and how many these are."""

    round: float
    virtual_s: float
    bytes: float
    seeds: int


class Row(msgspec.Struct, frozen=True):
    """A row of the table: a run over all of its seeds."""

    name: str
    candidates: int | None = None
    seconds: float | None = None
    std: float | None = None
    paper: float | None = None
    against: Against | None = None
    reached: MeanReached | None = None
    front: bool = False
    extra_metrics: dict[str, float | None] = {}


class Summary(msgspec.Struct, frozen=True):
    """summary.json, as far as a report reads it."""

    scenario: str
    runs: list[Entry]
    pools: list[Pool] = []
    version: str = ""
    versions: dict[str, str] = {}
    seeds: list[int] = []
    table: list[Row] = []
    notes: list[str] = []
    target: float | None = None
    varied: dict[str, list[Any]] = {}
    figure: str = ""
    search: bool = False
