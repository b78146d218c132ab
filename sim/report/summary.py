"""Schema of summary.json as a report reads it; keys that older versions did not write have defaults."""

from __future__ import annotations

from typing import Any

import msgspec


class Test(msgspec.Struct, frozen=True):
    """Test metric of a run's nodes; None if there is no number."""

    mean: float | None = None
    std: float | None = None
    worst_decile: float | None = None
    nodes: list[float | None] = []
    per_group: dict[str, float | None] = {}


class Reached(msgspec.Struct, frozen=True):
    """Cost of reaching the target; see p2pfl.sim.results.time_to_target."""

    round: int
    virtual_s: float
    bytes: int


class Preparation(msgspec.Struct, frozen=True):
    bytes: int = 0


class Use(msgspec.Struct, frozen=True):
    """Use of a kind of limit: the least and the greatest limit of a node, and the average share that was used."""

    least: float = 0
    greatest: float = 0
    used: float | None = None


class Traffic(msgspec.Struct, frozen=True):
    """Network traffic of a run; see p2pfl.sim.results.summary_metrics.traffic."""

    bytes: int | None = None
    control_bytes: int = 0
    max_models_in_round: int | None = None
    preparation: Preparation = Preparation()
    budget: dict[str, Use] = {}


class Time(msgspec.Struct, frozen=True):
    wall_s: float | None = None
    virtual_s: float | None = None


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
    """Solutions of the first nodes; see p2pfl.sim.results.preference_fronts."""

    higher_is_better: dict[str, bool]
    nodes: list[Answers]


class Clusters(msgspec.Struct, frozen=True):
    """Development of the clusters of a coordinated policy; see p2pfl.sim.simulation.cluster_log.over_rounds."""

    rounds: list[int] = []
    count: list[int] = []
    adjusted_rand: list[float] | None = None


class Entry(msgspec.Struct, frozen=True):
    """Run with one seed: an entry of `runs` in summary.json."""

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
    def better_is_higher(self) -> bool:
        """Return whether more is better; in older summaries, which lack this, it is true of accuracies only."""
        return self.metric == "accuracy" if self.higher_is_better is None else self.higher_is_better

    @property
    def sent(self) -> int | None:
        """Return all bytes sent for learning, including the preparation; None if the summary lacks them."""
        return None if self.traffic.bytes is None else self.traffic.bytes + self.traffic.preparation.bytes


class Pool(msgspec.Struct, frozen=True):
    """Combined solutions of the runs of a pool with one seed; see p2pfl.sim.results.objectives.pool_results."""

    name: str
    seed: int
    of: str
    labels: list[str]
    objectives: Objectives


class Against(msgspec.Struct, frozen=True):
    """Comparison of a row with another: the difference in the metric, and the ratio of the bytes sent."""

    name: str
    difference: float | None = None
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
    front: bool = False
    extra_metrics: dict[str, float | None] = {}


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
    varied: dict[str, list[Any]] = {}
    figure: str = ""
    search: bool = False
