"""Rounds of all nodes of a simulation at once, where nothing tells the nodes apart but their data and draws.

Theory of operation
-------------------

Most of the time of a simulation of small models goes into what is done once per node: a task of asyncio, a fetch, a list
of updates, a dictionary of weights. A `Cohort` does each of these once per round, for all nodes, with arrays: it calls the
policy's own procedures with a `Me` and `Peers` that hold the values of all nodes (p2pfl.cohort), and runs them to the end
without an event loop.

`why_not` decides in one place whether a run is a cohort. Nodes must be synchronous and take equal time, links must cost no
time and lose nothing, messages must be modelled, and nobody attacks, clips, compresses or has private parameters. Then
every node is in the same round at every moment, finds the model of every peer published, and waits for nobody; so the
order of events is known without an event loop.

Nodes that have stopped early keep their rows in all arrays, so that a policy sees nothing of it. But no learner computes
these rows, they ask for no models, and what they have published last is what they still offer.

What must hold: parameters, weights, edges, bytes, budgets, the trace and all results equal those of single nodes bit for
bit. The same learner computes the same queries, in the same batches. Tests compare both for random scenarios.

No node has an object of its own: its data, streams, traffic and budget are rows of arrays, and so is its `FinalState`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from copy import copy
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from p2pfl import policy
from p2pfl.algorithms.selection import fitting
from p2pfl.algorithms.similarity import CompareEach, CompareModels
from p2pfl.budget import BudgetTracker
from p2pfl.cohort import (
    EACH,
    Counts,
    ExtrasOfEach,
    GeneratorsOfEach,
    IdsOfEach,
    MergeOfEach,
    QueriesOfEach,
    UpdatesOfEach,
    WeightsOfEach,
)
from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.task_stack import groups_of, samples_of
from p2pfl.node.evaluations import counted_stage
from p2pfl.node.node import SPLITS
from p2pfl.policy import Budget, Coordinated, Policy, Stage, SupportsPreselection, memory_of, runs_as_cohort
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.protocols.wire.payload import encode_extras
from p2pfl.queries import Evaluate, Loss, Mean, NodeQuery, Query, R, Split, Train
from p2pfl.random_streams import StreamsOfEach
from p2pfl.sim.columns import DiskArray
from p2pfl.sim.scenario.network import Links
from p2pfl.sim.simulation.batching import Batcher, ComputeBackend
from p2pfl.sim.simulation.clock import VirtualLoop
from p2pfl.sim.simulation.final_state import LIMITS, FinalState
from p2pfl.sim.simulation.plan import RunPlan
from p2pfl.sim.simulation.recorder import Recorder, Trained
from p2pfl.task import batch_size_of
from p2pfl.update_rules import Rule

T = TypeVar("T")
STAGES = get_args(Stage)
Models = NDArray[np.float32]
Figures = dict[str, np.ma.MaskedArray]
"""Metrics of each node by name, [N], masked where a node has none."""


def why_not(plan: RunPlan, first: Policy, backend: ComputeBackend, links: Links) -> str:
    """Return why the nodes of a run are no cohort, in a few words; "" if they are one.

    Args:
        first: policy of the first node.
    """
    scenario = plan.scenario
    for fits, reason in (
        (scenario.fidelity == "modelled", "messages are sent"),
        (scenario.mode == "synchronous", "nodes are asynchronous"),
        (links.presence is None, "nodes are away at times"),
        (links.instant, "links take time"),
        (not isinstance(scenario.compute.slowdown, Sequence), "nodes differ in speed"),
        (len({(speed.pass_s, speed.sample_s, speed.device) for speed in plan.speeds}) == 1, "nodes differ in speed"),
        (not (scenario.budget.trainings or scenario.budget.joules), "trainings are limited"),
        (not scenario.privacy.wanted, "nodes have privacy budgets"),
        (scenario.compute.seconds > 0, "training takes no time"),  # nodes of one time may then be in different rounds
        (scenario.attack is None, "nodes attack"),
        (scenario.robust == "none" and not scenario.distrust, "nodes protect themselves"),
        (not (scenario.end.seconds or scenario.end.bytes), "the run may end within a round"),
        (scenario.codec["name"] == "float32", "models are compressed"),
        (scenario.nodes > 1, "there is one node"),
        (isinstance(backend, BatchedLearner), "nodes are trained one by one"),
        (not plan.tasks[0].layout.unshared, "parameters are private"),
        (not scenario.policy_by_group, "policies differ"),
        (not isinstance(first, Coordinated), "a coordinator takes part"),
        (runs_as_cohort(first), "the policy has no form for cohorts"),
        (memory_of(first) is None, "predictions are mixed"),
    ):
        if not fits:
            return reason
    return ""


class Cohort:
    """All nodes of a run."""

    def __init__(
        self, plan: RunPlan, learner: BatchedLearner, batcher: Batcher, recorder: Recorder, loop: VirtualLoop
    ) -> None:
        self.plan, self.policy, self.count = plan, plan.policy(0), plan.scenario.nodes
        self.learner, self.recorder = learner, recorder
        self._batcher, self._loop, self._speed = batcher, loop, plan.speeds[0]
        count = self.count
        self.best = _BestModels(self, plan.scenario.best_by)
        self.me = _Me(self)
        self.peers = _Peers(self)
        self.n_samples = self.me.n_samples
        self._compare = CompareEach(self.me.initial)
        self._pending: tuple[int, dict[Stage, Models]] | None = None
        self.trained = Trained(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count))
        self._batch_size = batch_size_of(plan.tasks[0])
        self._waited = np.zeros(count, bool)  # nodes that have asked a query in this round which others have not
        self.runs = np.ones(count, bool)  # nodes that have not stopped early
        self.rows = np.arange(count)  # their numbers
        self.ended = np.zeros(count, np.int64)  # the last round of each node that has ended
        self._states: dict[int, dict[str, Any]] = {}  # of the policy for nodes that have stopped early
        self._result: Figures = {}
        self._trained: Models | None = None

    @property
    def all_run(self) -> bool:
        """Whether no node has stopped early."""
        return len(self.rows) == self.count

    def run(self) -> None:
        """Run all rounds.

        Raises: what `Node.run` raises.
        """
        scenario, me, peers = self.plan.scenario, self.me, self.peers
        self._take(_run(self.policy.prepare(cast(policy.Me, me), cast(policy.Peers, peers))))
        if not scenario.rounds:
            self._end(self.runs.copy())
        for round in range(1, scenario.rounds + 1):
            me.round = round
            peers.begin_round()
            self._waited[:] = False
            merge = _run(self.policy.round(cast(policy.Me, me), cast(policy.Peers, peers)))
            weights = self._take(merge)
            ending = self.runs & (round == scenario.rounds)
            if scenario.evaluate_every and (round % scenario.evaluate_every == 0 or round == scenario.rounds):
                self._evaluate({**{s: p for s, p in peers.published.items() if s != "prepared"}, "merged": me.params})
                ending |= self.runs & self.best.exhausted(scenario.patience)
            order = self.rows[self._waited[self.rows].argsort(kind="stable")]
            self.recorder.merged_by_all(round, peers, weights, order, self.trained)
            if ending.any():
                self._end(ending)
            if not len(self.rows):
                break
        self.recorder.closed_by_all(np.flatnonzero(self.ended < scenario.rounds), peers)

    def _take(self, merge: Any) -> WeightsOfEach | None:
        """Adopt the result of a round; return the weights, or None if each node keeps its own model alone."""
        params = merge.params
        if params.shape != self.me.params.shape or params.dtype != np.float32:
            raise ConfigurationError(f"the policy {type(self.policy).__name__} returned {params.dtype} {params.shape}")
        self.me.params = params if self.all_run else np.where(self.runs[:, None], params, self.me.params)
        return merge.weights if isinstance(merge.weights, WeightsOfEach) else None

    # Queries

    def train(self, query: Train) -> Models:
        """Return the trained models; `query.params` and the anchors of a proximal term are of all nodes, [N, P]."""
        seconds = self._speed.seconds(query)
        self.trained = self.trained.after(self.runs, query.samples(self.n_samples, self._batch_size), seconds)
        self._loop.now += seconds
        self._measure()  # time that passes computes what is not urgent
        self._count(Train.name)
        if self.all_run:
            return self.learner.train_each(query)
        self._trained = self._among_all(self.learner.train_each(query, self.rows))
        return self._trained

    def _among_all(self, models: Models) -> Models:
        """Return rows of the nodes that run as rows among those of all nodes."""
        if self.all_run:
            return models
        found = self.me.params.copy()
        found[self.rows] = models
        return found

    async def mix(self, own: Models, published: Models, weights: WeightsOfEach) -> MergeOfEach:
        """Return the weighted means, each summed in the order of the numbers of the nodes."""
        ids, count, nodes = weights.ids, self.count, self.rows
        trained, own = own is self._trained, self.peers.offered(own)
        fresh = trained and own is published
        keys = np.concatenate([ids.rows * count + ids.peers, nodes * (count + 1)])
        order = keys.argsort(kind="stable")
        rows = np.concatenate([ids.peers, nodes if own is published else nodes + count])[order]
        values = np.concatenate([weights.others, weights.own[nodes]])[order]
        models = published if own is published else np.concatenate([published, own])
        if not self.all_run:  # how means are summed depends on the number of different models if they are large
            used, rows = np.unique(rows, return_inverse=True)
            models, fresh = models[used], fresh and bool(self.runs[used % count].all())
        starts = ids.starts[nodes] + np.arange(len(nodes))
        waited = self._waited[nodes]
        groups = ~waited, waited  # single nodes ask for their means in two batches then
        for group in groups:
            self._count(Mean.name, int(group.sum()))
        alone = [int(group.argmax()) for group in groups if group.sum() == 1]
        means = self.learner.mean_each(models, rows, values, starts, alone=alone, fresh=fresh)
        return MergeOfEach(self._among_all(means), weights)

    def compare(self, own: Models, updates: UpdatesOfEach, measure: str) -> NDArray[np.float64]:
        """Return the similarity of each own model to those received, [E]; see p2pfl.algorithms.similarity."""
        self._count_askers(CompareModels.name, updates.ids)
        return self._compare.scores(self.peers.offered(own), updates.published, updates.ids, measure)

    def losses(self, updates: UpdatesOfEach, split: Split) -> NDArray[np.float64]:
        """Return the mean loss of each model received on the receiver's data, [E]."""
        self._count_askers(Loss.name, updates.ids)
        return self.learner.losses_each(updates.published, updates.ids, split)

    def _count_askers(self, name: str, ids: IdsOfEach) -> None:
        """Count a batch of queries on the models received; a node without any asks nothing, and the others wait for it."""
        asking = ids.counts > 0
        self._count(name, int(asking.sum()))
        if not asking[self.rows].all():
            self._waited |= asking

    def answers(self, asked: QueriesOfEach) -> Sequence[Any]:
        """Return the answers to queries of some nodes."""
        self._count(asked.queries[0].name, len(asked.queries))
        self._waited[list(asked.nodes)] = True
        return self.learner.compute([NodeQuery(k, query) for k, query in zip(asked.nodes, asked.queries, strict=True)])

    def _count(self, name: str, jobs: int | None = None) -> None:
        """Count a batch of queries, as if nodes had asked one by one; by default each that runs has."""
        if jobs != 0:
            queue = self._batcher.queue(name)
            queue.batches += 1
            queue.jobs += len(self.rows) if jobs is None else jobs

    # Evaluation: as in p2pfl.node.evaluations, computed with the next trainings, and reported one evaluation later

    def _evaluate(self, stages: dict[Stage, Models]) -> None:
        self._measure()  # of an earlier round without a training since
        self._pending = self.me.round, stages

    def _measure(self) -> None:
        """Compute and report the pending evaluation."""
        if self._pending is None:
            return
        (round, stages), self._pending = self._pending, None
        figures: dict[Stage, Figures] = {stage: {} for stage in stages}
        self._evaluate_rows([(self.runs, models, figures[stage]) for stage, models in stages.items()])
        self.best.see(round, stages, figures, self.runs)
        self.recorder.evaluated_by_all(round, figures)

    def _end(self, ending: NDArray[np.bool_]) -> None:
        """Evaluate the last models of nodes that end after this round, and those that were best on validation.

        Models that are evaluated on the same samples are one product, whose last bits depend on how many they are. So the
        batches are those of single nodes. A node that ends does not wait for the next training, but has the models of this
        round evaluated at once, with those of all nodes that are as far. If some nodes have waited in this round for what
        others did not ask, these are the early ones; the late ones come together with the results of the early ones.
        """
        early, late = self.runs & ~self._waited, self.runs & self._waited
        if not (early.any() and late.any()):
            early, late = early & False, self.runs
        nobody = early & False
        pending, self._pending = self._pending, None
        stages = {} if pending is None else pending[1]
        figures: dict[Stage, Figures] = {stage: {} for stage in stages}
        left = nobody
        for done, newer in ((nobody, early), (early & ending, late), (late & ending, nobody)):
            coming = left | newer
            if not (done | (coming & ending)).any():
                left = coming
                continue
            left = nobody
            asked = [(coming, models, figures[stage]) for stage, models in stages.items()] if coming.any() else []
            if done.any():
                asked.append((done, self._results(), self._result))
            self._evaluate_rows(asked)
            if stages and coming.any():
                self.best.see(self.me.round, stages, figures, coming)
        if stages:
            self.recorder.evaluated_by_all(self.me.round, figures)
        self.recorder.finished_by_all(self.me.round, self.me.params, self._result, np.flatnonzero(ending))
        self._stop(ending)

    def _stop(self, ending: NDArray[np.bool_]) -> None:
        """Leave nodes out from now on."""
        self.ended[ending] = self.me.round
        if self.me.round < self.plan.scenario.rounds and isinstance(self.policy, SupportsPreselection):
            self._states |= {k: self._state_of(k) for k in np.flatnonzero(ending).tolist()}
        self.runs &= ~ending
        self.rows = np.flatnonzero(self.runs)

    def _results(self) -> Models:
        """Return the model of each node that counts as its result, as far as it is known."""
        stage, params = self.policy.reported_stage, self.me.params
        reported = params if stage == "auto" else self.peers.published.get(stage, params)
        return reported if self.best.params is None else self.best.params

    def _evaluate_rows(self, asked: Sequence[tuple[NDArray[np.bool_], Models, Figures]]) -> None:
        """Evaluate some rows of models in one batch, and add the figures to those of other rows."""
        if not asked:
            return
        whose = np.logical_or.reduce([rows for rows, *_ in asked])
        self._count(Evaluate.name, int(whose.sum()))
        if all((rows == whose).all() for rows, *_ in asked):
            evaluations = self.learner.evaluate_each([models for _, models, _ in asked], SPLITS, np.flatnonzero(whose))
            for (_, _, figures), found in zip(asked, evaluations, strict=True):
                for name, values in found.items():
                    if name in figures:
                        figures[name][whose] = values[whose]
                    else:
                        figures[name] = values
            return
        queries: dict[int, list[tuple[Models, Figures]]] = {}
        for rows, models, figures in asked:
            for k in np.flatnonzero(rows).tolist():
                queries.setdefault(k, []).append((models[k], figures))
        nodes = sorted(queries)
        jobs = [NodeQuery(k, Evaluate([row for row, _ in queries[k]], SPLITS, None)) for k in nodes]
        for k, answers in zip(nodes, self.learner.compute(jobs), strict=True):
            for (_, figures), answer in zip(queries[k], answers, strict=True):
                for name, value in answer.items():
                    if name not in figures:
                        figures[name] = np.ma.MaskedArray(np.full(self.count, np.nan), np.ones(self.count, bool))
                    figures[name][k] = value

    def state(self) -> FinalState:
        """Return the final state of all nodes."""
        policies = [self.policy]
        if isinstance(self.policy, SupportsPreselection):
            policies = [copy(self.policy) for _ in range(self.count)]
            for k, each in enumerate(policies):
                each.restore(self._state_of(k))
        budget, counts = cast(BudgetOfEach, self.me.budget), self.peers.counts()
        return FinalState(
            policies,
            self._results(),
            self.me.params,
            self.best.judged,
            counts | {"rounds": self.ended},
            {kind: getattr(budget, kind) for kind in LIMITS},
            {
                **{"trainings": self.trained.trainings, "samples": self.trained.samples, "train_s": self.trained.seconds},
                **{"joules": self.trained.seconds * self._speed.watts, "refused": np.zeros_like(self.trained.trainings)},
            },
        )

    def _state_of(self, k: int) -> dict[str, Any]:
        """Return the policy's state of node `k` at its end."""
        if k in self._states:
            return self._states[k]
        names = self.plan.names
        return {
            name: [names[j] for j in value.of(k).tolist()] if isinstance(value, IdsOfEach) else value
            for name, value in self.policy.state().items()
        }


class _Me(policy.Me):
    """All nodes as their policy sees the own one."""

    def __init__(self, cohort: Cohort) -> None:
        plan, scenario = cohort.plan, cohort.plan.scenario
        self._cohort = cohort
        self._streams = StreamsOfEach(scenario.seed, plan.names)
        self.id, self.round, self.rounds = EACH, 0, scenario.rounds
        self.initial = plan.initial
        self.params = np.broadcast_to(self.initial, (cohort.count, len(self.initial)))
        self.n_samples = samples_of(plan.tasks)  # type: ignore[assignment]
        self.layout, self.robust, self.rule = plan.tasks[0].layout, "none", None
        self.kept = ()
        self.budget = cast(Budget, BudgetOfEach(**scenario.budget.of_each(scenario.seed, plan.names)))

    def rng(self, purpose: str) -> np.random.Generator:
        return cast(np.random.Generator, GeneratorsOfEach(self._streams, self.round, purpose))

    async def compute(self, query: Query[R]) -> R:
        if isinstance(query, QueriesOfEach):
            return cast(R, self._cohort.answers(query))
        if not isinstance(query, Train):
            raise ConfigurationError(f"{type(query).__name__} has no form for cohorts")
        return cast(R, self._cohort.train(query))

    def trainings_left(self, epochs: int = 1, rule: Rule | None = None) -> float:
        return inf  # nodes with a budget of trainings are no cohort

    def compare(self, own: Models, updates: UpdatesOfEach, measure: str) -> NDArray[np.float64]:
        """Return the similarity of each own model to those received, [E]."""
        return self._cohort.compare(own, updates, measure)

    def losses(self, updates: UpdatesOfEach, split: Split) -> NDArray[np.float64]:
        """Return the mean loss of each model received on the receiver's data, [E]."""
        return self._cohort.losses(updates, split)

    def mean(self, models: Sequence[Models], weights: Sequence[float]) -> Awaitable[Models]:
        raise ConfigurationError("`me.mean` has no form for cohorts; use `merge`")


class BudgetOfEach:
    """Limits of each node of a cohort; 0 means no limit. See p2pfl.policy.Budget.

    Attributes:
        models, held, bytes: int64 [N].
    """

    def __init__(self, models: Counts, held: Counts, bytes: Counts) -> None:
        self.models, self.held, self.bytes = models, held, bytes
        self.limited = (self.models | self.held | self.bytes) > 0

    @property
    def at_once(self) -> Counts:
        return np.where((self.models > 0) & (self.held > 0), np.minimum(self.models, self.held), self.models + self.held)

    def cap(self, models: int) -> Counts:
        """Return `models`, or the number that may be fetched at the same time if that is lower; [N]."""
        return np.where(self.at_once > 0, np.minimum(models, self.at_once), models)


class _Peers:
    """The peers of all nodes as their policy sees them, with traffic and budgets as columns.

    Attributes:
        ids: the neighbours of each node; in the preparation, those of all rounds.
        weights: the weights of their models, if the topology has a graph for each round.
        published: the models published in this round, by stage; [N, P]. Those of nodes that have stopped early are their
            last ones.
        models_in: models received in this round, or in the last one of a node, [N].
        received, sent: bytes in all rounds so far, [N].
        edges: the models received in this round, and the bytes of each.
    """

    def __init__(self, cohort: Cohort) -> None:
        self._cohort, plan, count = cohort, cohort.plan, cohort.count
        self.ids = plan.topology.neighbours.ids
        self.weights: WeightsOfEach | None = None
        self.published: dict[Stage, Models] = {}
        self._offers: dict[Stage, _Offer] = {}  # the last ones, by stage
        self._newest: tuple[Models, Models] | None = None  # what the policy published last, and what peers receive of it
        self._size = OVERHEAD + plan.encoder(0).whole
        self._extra = np.zeros(count, np.int64)  # bytes of each node's last extras
        self.models_in, self._bytes_in = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.edges: list[tuple[IdsOfEach, Counts]] = []
        self.received, self.sent = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._columns = {name: np.zeros(count, np.int64) for name in _COLUMNS}

    def begin_round(self) -> None:
        rounds = self._cohort.plan.topology.rounds
        if rounds is not None:
            graph = rounds.schedule.graph(self._cohort.me.round)
            self.ids = IdsOfEach(graph.starts, graph.sources)
            self.weights = WeightsOfEach(self.ids, graph.weights, graph.own)
        self.published = {}
        self.edges = []
        runs = self._cohort.runs
        self.models_in, self._bytes_in = np.where(runs, 0, self.models_in), np.where(runs, 0, self._bytes_in)

    def public_info(self, id: str) -> Mapping[str, Any]:
        """Return the public facts of every node: `n_samples`, [N], and the number of its `group`, [N], if all have one."""
        if id != EACH:
            raise ConfigurationError("a cohort has no single peers")
        groups = groups_of(self._cohort.plan.tasks)
        facts: dict[str, Any] = {"n_samples": self._cohort.me.n_samples}
        if None not in groups:
            numbers = {group: k for k, group in enumerate(dict.fromkeys(groups))}
            facts["group"] = np.array([numbers[group] for group in groups])
        return facts

    async def publish(self, params: Models, extras: ExtrasOfEach | None = None, stage: Stage = "trained") -> None:
        cohort = self._cohort
        cohort.recorder.published_by_all(cohort.me.round, stage, params, cohort.rows)
        self._extra = np.zeros(len(params), np.int64) if extras is None else _sizes_of(extras)
        offer = _Offer(params, extras, self._size + self._extra)
        if not cohort.all_run:
            if stage not in self._offers:
                raise ConfigurationError(f"nodes that have stopped early have published no model at the stage {stage!r}")
            offer = self._offers[stage].renewed(offer, cohort.runs)
        self._offers[stage], self.published[stage] = offer, offer.params
        self._newest = params, offer.params

    def offered(self, params: Models) -> Models:
        """Return what peers receive of these models if they were published last, else the same models.

        They differ only in rows of nodes that have stopped early.
        """
        return self._newest[1] if self._newest is not None and params is self._newest[0] else params

    async def models(self, ids: IdsOfEach, stage: Stage = "trained") -> UpdatesOfEach:
        cohort, me = self._cohort, self._cohort.me
        ids = self._asking(ids)
        self._reserve(ids)
        offer = self._offers[stage]
        sizes = offer.sizes[ids.peers]
        asked, given = ids.counts, np.bincount(ids.peers, minlength=len(ids.counts))
        columns, totals = self._columns, ids.sums(sizes).astype(np.int64)
        columns["asked"] += asked
        if me.round:
            self.models_in += asked
            self._bytes_in += totals
            columns["round_models"] += asked
            columns["round_bytes"] += totals
            self.received += OVERHEAD * given + totals
            self.sent += OVERHEAD * asked + given * offer.sizes
            self.edges.append((ids, sizes))
        else:
            columns["asked_early"] += asked
            columns["bytes_given_early"] += given * offer.sizes
        np.maximum(columns["most_held"], asked, out=columns["most_held"])
        cohort.recorder.received_by_all(me.round, ids)
        return UpdatesOfEach(ids, offer.params, me.n_samples, offer.extras, cohort.mix)

    def _asking(self, ids: IdsOfEach) -> IdsOfEach:
        """Return the ids without those of nodes that have stopped early."""
        return ids if self._cohort.all_run else ids.where(self._cohort.runs[ids.rows])

    # Budgets: see p2pfl.budget

    def _expected(self) -> Counts:
        """Return the expected bytes of a model that each node receives, [N]."""
        return self._size + np.where(cast(BudgetOfEach, self._cohort.me.budget).bytes > 0, self._extra, 0)

    def within_budget(self, ids: IdsOfEach) -> IdsOfEach:
        budget = cast(BudgetOfEach, self._cohort.me.budget)
        ids = self._asking(ids)
        if not budget.limited.any():
            return ids
        most = ids.counts.copy()
        for limit, used in ((budget.models, self.models_in), (budget.held, 0)):
            most = np.where(limit > 0, np.clip(limit - used, 0, most), most)
        expected = self._expected()
        left = np.where(budget.bytes > 0, budget.bytes - self._bytes_in, 0)
        fits = (most == ids.counts) & ((budget.bytes == 0) | (ids.counts * expected <= left))
        if (fits | ~budget.limited).all():
            return ids
        kept = np.ones(len(ids.peers), bool)
        rng = cast(GeneratorsOfEach, self._cohort.me.rng("budget"))
        for node in np.flatnonzero(budget.limited & ~fits).tolist():
            row = kept[ids.starts[node] : ids.starts[node + 1]]
            size = int(expected[node]) if budget.bytes[node] else 0
            places: Any = range(len(row))
            chosen: Any = fitting(rng.of(node), places, [size] * len(row), int(left[node]), int(most[node]))
            row[:] = False
            row[chosen] = True
        return ids.where(kept)

    def _reserve(self, ids: IdsOfEach) -> None:
        """Raise BudgetExceededError, as the node would, if one asks for more than its budget admits."""
        budget = cast(BudgetOfEach, self._cohort.me.budget)
        if not budget.limited.any():
            return
        expected = self._expected()
        beyond = np.zeros(len(ids.counts), bool)
        for limit, used in (
            (budget.models, self.models_in + ids.counts),
            (budget.held, ids.counts),
            (budget.bytes, self._bytes_in + ids.counts * expected),
        ):
            beyond |= (limit > 0) & (used > limit)
        for node in np.flatnonzero(beyond)[:1].tolist():
            tracker = BudgetTracker(Budget(**{kind: int(getattr(budget, kind)[node]) for kind in LIMITS}))
            tracker.preparing = not self._cohort.me.round
            tracker.models, tracker.bytes = int(self.models_in[node]), int(self._bytes_in[node])
            tracker.reserve([""] * int(ids.counts[node]), {"": int(expected[node])}.__getitem__)

    def counts(self) -> dict[str, Counts]:
        """Return the traffic and the use of budgets of all nodes; see FinalState."""
        of = self._columns
        prepared = OVERHEAD * of["asked_early"] + of["bytes_given_early"]
        counts = {"sent": self.sent, "control": np.zeros_like(prepared), "prepared_bytes": prepared}
        counts |= {"received": of["asked"], "prepared": of["asked_early"]}
        return counts | {name: of[name] for name in ("round_models", "round_bytes", "most_held")}


class _Offer(NamedTuple):
    """What all nodes have published at one stage.

    Attributes:
        params: float32 [N, P].
        sizes: bytes of each model with its extras, [N].
    """

    params: Models
    extras: ExtrasOfEach | None
    sizes: Counts

    def renewed(self, other: _Offer, rows: NDArray[np.bool_]) -> _Offer:
        """Return an offer with some rows of another one, bool [N]."""
        params = np.where(rows[:, None], other.params, self.params)
        return _Offer(params, _renewed(self.extras, other.extras, rows), np.where(rows, other.sizes, self.sizes))


def _renewed(old: ExtrasOfEach | None, new: ExtrasOfEach | None, rows: NDArray[np.bool_]) -> ExtrasOfEach | None:
    """Return extras with some rows of newer ones, bool [N]."""
    if old is None or new is None:
        return new
    counts = np.where(rows, np.diff(new.starts), np.diff(old.starts))
    starts = np.concatenate([[0], np.cumsum(counts)])
    begins = np.where(rows, new.starts[:-1] + old.starts[-1], old.starts[:-1])
    entries = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], counts)
    return ExtrasOfEach(starts, {name: np.concatenate([old.arrays[name], new.arrays[name]])[entries] for name in new.arrays})


_COLUMNS = ("asked", "asked_early", "bytes_given_early", "round_models", "round_bytes", "most_held")


def _sizes_of(extras: ExtrasOfEach) -> Counts:
    """Return the bytes of the extras of each node, [N]. They depend on the lengths of the arrays alone."""
    counts = np.diff(extras.starts)
    different = np.flatnonzero(np.bincount(counts))
    kinds = tuple((name, array.dtype.str) for name, array in extras.arrays.items())
    sizes = np.zeros(int(counts.max()) + 1, np.int64)
    sizes[different] = [_size_of(kinds, count) for count in different.tolist()]
    return sizes[counts]


@lru_cache(maxsize=2**16)
def _size_of(kinds: tuple[tuple[str, str], ...], count: int) -> int:
    """Return the bytes of extras of these names and dtypes, whose arrays have `count` values."""
    return len(encode_extras({name: np.zeros(count, dtype) for name, dtype in kinds}))


class _BestModels:
    """Model of each node that is best on validation; see p2pfl.node.early_stopping.EarlyStopping.

    Attributes:
        params: these models, float32 [N, P]; None before the first evaluation.
    """

    def __init__(self, cohort: Cohort, by: policy.BestBy) -> None:
        task, count = cohort.plan.tasks[0], cohort.count
        self._reported = cohort.policy.reported_stage
        self._figure, self._sign = "validation_loss", 1.0
        if by == "metric":
            self._figure, self._sign = f"validation_{task.metric}", -1.0 if task.higher_is_better else 1.0
        self._by = by
        self.params: Models | None = None
        self._round = np.zeros(count, np.int64)
        self._improved = np.zeros(count, np.int64)
        self._newest = np.zeros(count, np.int64)
        self._loss = np.full(count, inf)
        self._stage = np.zeros(count, np.int64)  # its place in STAGES
        self._least: dict[Stage, tuple[NDArray[np.float64], Counts]] = {}  # of the validation loss, and its round

    def see(
        self,
        round: int,
        stages: Mapping[Stage, Models],
        figures: Mapping[Stage, Figures],
        rows: NDArray[np.bool_],
    ) -> None:
        """Record the models of a round and their figures for some of the nodes."""
        count = len(self._loss)
        self._newest[rows] = round
        for stage, found in figures.items():
            if "validation_loss" in found:
                loss = found["validation_loss"].filled(inf)
                least, at = self._least.setdefault(stage, (np.full(count, inf), np.zeros(count, np.int64)))
                better = (loss < least) & rows
                least[better], at[better] = loss[better], round
        counted = self._counted(figures)
        unknown, loss = np.ones(count, bool), np.full(count, np.nan)
        for stage, found in figures.items():
            chosen = counted == STAGES.index(stage)
            if self._figure in found:
                unknown[chosen] = np.ma.getmaskarray(found[self._figure])[chosen]
                loss[chosen] = self._sign * found[self._figure].data[chosen]
        if self.params is None:
            self._kept = DiskArray(next(iter(stages.values())).shape, np.float32)
            self.params = self._kept.array
        first = self._round == 0
        better = improved = rows & (first | unknown | (loss < self._loss))
        if self._by == "metric":
            better = better | (rows & (loss == self._loss))
        self._improved[improved] = round
        self._round[better], self._stage[better] = round, counted[better]
        self._loss[better] = np.where(np.isnan(loss), inf, loss)[better]
        for stage, models in stages.items():
            chosen = better & (counted == STAGES.index(stage))
            if chosen.all():
                self.params[:] = models
            else:
                self.params[chosen] = models[chosen]
        self._kept.release()

    def exhausted(self, patience: int) -> NDArray[np.bool_]:
        """Return whether the patience of each node has run out, [N]."""
        return (patience > 0) & (self._newest - self._improved >= patience)

    def _counted(self, figures: Mapping[Stage, Figures]) -> Counts:
        """Return the number of the stage that counts for each node; see p2pfl.node.evaluations.counted_stage."""
        count = len(self._loss)
        if self._reported != "auto":
            return np.full(count, STAGES.index(counted_stage(self._reported, cast(Any, figures))))

        def loss(stage: Stage) -> NDArray[np.float64]:
            values = figures[stage].get("validation_loss")
            return (
                np.full(count, inf)
                if values is None
                else np.nan_to_num(values.filled(inf), nan=inf, posinf=inf, neginf=-inf)
            )

        found = np.full(count, STAGES.index("merged"))
        if "trained" in figures:
            found[loss("trained") < loss("merged")] = STAGES.index("trained")
        return found

    @property
    def judged(self) -> bool:
        """Whether any model has a figure on validation data."""
        return bool((self._loss != inf).any())


def _run(procedure: Coroutine[Any, Any, T]) -> T:
    """Run a procedure of a policy to its end; nothing in a cohort waits."""
    try:
        procedure.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    procedure.close()
    raise ConfigurationError("a policy with a form for cohorts awaits something else than its node and its peers")
