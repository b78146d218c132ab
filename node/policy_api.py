"""View that a policy has of a running node: `Me`, the node itself, and `NodePeers`, its only access to other nodes.

They implement the interfaces of p2pfl.policy. `NodePeers` also protects the node from what it fetches: it charges the
budget, clips peers' models, and limits how far the coordinator's assignments move the node (p2pfl.robust.clipping).
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from p2pfl import policy
from p2pfl._util.failpoints import failpoint
from p2pfl.budget import BudgetTracker, Reservation, TrainingTracker
from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.fragments import Fragments, WantedPart, by_sender, wanted_parts
from p2pfl.node.exchange.base import Exchange
from p2pfl.node.privacy_ledger import PrivacyLedger
from p2pfl.node.trainer import Trainer
from p2pfl.parameters import Layout, Parameters, PrivateParameters, detached
from p2pfl.policy import Assignment, Budget, Extras, Fragment, Stage, Submission, Update, relative_losses
from p2pfl.privacy import PrivacyTracker
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.protocols.wire.payload import encode_extras
from p2pfl.queries import Clip, Query, R, Train
from p2pfl.random_streams import RandomStreams, common_order, federation_streams
from p2pfl.robust.candidates import cap_samples
from p2pfl.robust.clipping import AssignmentLimits, MedianClip, factor_of, move_towards, ratio_of
from p2pfl.robust.registry import CLIPPING, NONE, Robust, make_rule, split_robust
from p2pfl.robust.selection import ClipLoss
from p2pfl.topologies.schedules import GraphByRound
from p2pfl.update_rules import Rule

if TYPE_CHECKING:  # a node without noise of neighbours does not load it
    from p2pfl.node.edge_noise import EdgeSecrets

U = TypeVar("U", Update, Fragment)
DIVERGED_IN_A_ROW = 3  # failed trainings in a row after which the node ends


class Observer:
    """Observer of a node's exchanges with its peers; see p2pfl.node.node.Observer."""

    def published(self, id: str, round: int, stage: Stage, params: Parameters) -> None:
        """Report that the node has published a model."""

    def received(self, id: str, round: int, updates: Sequence[Update]) -> None:
        """Report the models that the node may use, of all that one request asked for."""

    def received_fragments(self, id: str, round: int, fragments: Sequence[Fragment]) -> None:
        """Report the parts of models that the policy receives, of all that it has asked for."""

    def assigned(self, id: str, round: int, assignment: Assignment) -> None:
        """Report the coordinator's assignment that the node continues from."""

    def discarded(self, id: str, round: int, reason: str, senders: Sequence[str]) -> None:
        """Report that the node keeps its model, because the next one has values that are not finite.

        Args:
            senders: senders of the models from which it was made.
        """


class Me(policy.Me):
    """Policy's own node; see p2pfl.policy.Me.

    Its inputs and outputs are shared values, [S]; its trainer receives all values.

    Args:
        initial: all values of the common initial model, [P].
        layout: layout of all values.
        lenient: whether to continue with the previous model if training diverges, instead of raising DivergenceError. A
            node that is not lenient is simulated.
        batch_size: samples of a training step; 0 if the task has no batches.
        ledger: keeps the steps of `privacy` on the disk, and draws the secrets of trainings; None in a simulation.
        edges: the noise that neighbours add with this node on a machine; None without it, and in a simulation.

    Attributes:
        training: the tracker of its trainings, and of their budget.
        privacy: the tracker of its privacy budget; None without one.
        pauses: whether a refused training lasts as long as a mean one: nobody paces an asynchronous node, which would
            begin one round after another.
        step: the result of this round's training without noise, if noise adds up in sums (p2pfl.central_noise); None if
            nothing was trained, or there is no such noise.
        deviation: returns the standard deviation of the noise of a submission in a round.
    """

    __slots__ = (
        "_has_private_part",
        "batch_size",
        "budget",
        "deviation",
        "diverged",
        "edges",
        "id",
        "initial",
        "kept",
        "layout",
        "ledger",
        "lenient",
        "most_diverged",
        "n_samples",
        "observers",
        "params",
        "pauses",
        "privacy",
        "private_parameters",
        "robust",
        "round",
        "rounds",
        "rule",
        "step",
        "streams",
        "trainer",
        "training",
    )

    def __init__(
        self,
        id: str,
        streams: RandomStreams,
        *,
        trainer: Trainer,
        initial: Parameters,
        layout: Layout,
        n_samples: int,
        budget: Budget,
        rounds: int,
        robust: Robust = "none",
        lenient: bool = False,
        batch_size: int = 0,
        privacy: PrivacyTracker | None = None,
        ledger: PrivacyLedger | None = None,
        edges: EdgeSecrets | None = None,
        deviation: Callable[[int], float] | None = None,
    ) -> None:
        self.id = id
        self.observers: Sequence[Observer] = ()
        self.lenient = lenient
        self.diverged = 0  # number of diverged trainings in a row
        self.most_diverged: float = DIVERGED_IN_A_ROW  # after more, the node ends
        self.streams = streams
        self.trainer = trainer
        self.private_parameters = PrivateParameters(layout, initial)
        self._has_private_part = bool(layout.unshared)
        self.params = self.initial = layout.shared_of(initial)
        self.layout = layout.shared
        self.kept = layout.private
        self.n_samples = n_samples
        self.budget = budget
        self.batch_size = batch_size
        self.training = TrainingTracker(budget, trainer.used, trainer.joules)
        self.privacy = privacy
        self.ledger = ledger
        self.edges = edges
        self.deviation = deviation
        self.step: Parameters | None = None
        self.pauses = False
        self.round = 0
        self.rounds = rounds
        self.robust, _ = split_robust(robust)
        self.rule = make_rule(robust)

    def rng(self, purpose: str) -> np.random.Generator:
        return self.streams.generator(self.round, purpose)

    @property
    def trainings(self) -> int:
        """The number of its trainings so far."""
        return self.training.trainings

    def trainings_left(self, epochs: int = 1, rule: Rule | None = None) -> float:
        query = Train(self.params, self.round, epochs, rule=rule)
        return self.training.left(query.samples(self.n_samples, self.batch_size))

    def compute(self, query: Query[R]) -> Awaitable[R]:
        if self.privacy is not None:
            self.privacy.check(query)
        if not isinstance(query, Train):
            return self._ask(query)
        if self.deviation is not None:
            return cast("Awaitable[R]", self._train_for_sum(query))
        return cast("Awaitable[R]", self._train(query))

    def _train(self, query: Train) -> Awaitable[Parameters]:
        samples = query.samples(self.n_samples, self.batch_size)
        admitted: Train | None = query if self.training.admits(samples) else None
        if admitted is not None and self.privacy is not None:
            admitted = self.privacy.admit(admitted, self.n_samples)
        if admitted is None:
            return self._untrained(query.params)
        self.training.charge(samples)
        if self.privacy is not None and self.ledger is not None:
            return self._train_on_record(admitted, self.privacy, self.ledger)
        return self._train_as_admitted(admitted)

    async def _train_for_sum(self, query: Train) -> Parameters:
        """Make the one step of a round without noise, which is added to its submission; see p2pfl.central_noise.

        Raises:
            ConfigurationError: it is a second one, or begins at another model than that with which the round has begun.
        """
        if self.step is not None or not np.array_equal(query.params, self.params):
            raise ConfigurationError(
                "noise that adds up in sums (privacy.central) hides one training in each round, from the model with which it"
                " begins, and the policy trains in another way",
                "privacy.central",
                "policy",
            )
        trained = await self._train(query)
        self.step = None if trained is query.params else trained
        return trained

    def _train_as_admitted(self, query: Train) -> Awaitable[Parameters]:
        return self._train_leniently(query) if self.lenient else self._ask(query)

    async def _train_on_record(self, query: Train, privacy: PrivacyTracker, ledger: PrivacyLedger) -> Parameters:
        """Train with secret draws, once the training is in the ledger on the disk; if it cannot be, do not train."""
        if not await asyncio.get_running_loop().run_in_executor(None, ledger.record, privacy.steps):
            privacy.withdraw(query, self.n_samples)
            self.training.refund(query.samples(self.n_samples, self.batch_size))
            return await self._untrained(query.params)
        assert query.mechanism is not None
        mechanism = replace(query.mechanism, key=ledger.draw_key())
        if self.edges is not None:
            mechanism = self.edges.add_to(mechanism, self.round)
        trained = await self._train_as_admitted(replace(query, mechanism=mechanism))
        failpoint("trained")
        return trained

    async def _untrained(self, params: Parameters) -> Parameters:
        if self.pauses:
            await asyncio.sleep(self.training.mean_seconds)
        return params

    def _ask(self, query: Query[R]) -> Awaitable[R]:
        """Return the trainer's answer to a query, which is completed with the private part if there is one."""
        return self._with_private_part(query) if self._has_private_part else self.trainer.submit(query)

    async def _with_private_part(self, query: Query[R]) -> R:
        return query.restrict(await self.trainer.submit(query.complete(self.private_parameters)), self.private_parameters)

    async def _train_leniently(self, query: Train) -> Parameters:
        """Train. If the result has values that are not finite, return the previous model, a few times in a row."""
        before = self.private_parameters.whole(query.params)
        try:
            trained = await self._ask(query)
            if not np.isfinite(self.private_parameters.whole(trained)).all():
                raise DivergenceError(self.id, self.round)
        except DivergenceError as error:
            self.private_parameters.keep(before)
            self.diverged += 1
            if self.diverged > self.most_diverged:
                raise
            for observer in self.observers:
                observer.discarded(self.id, self.round, str(error), ())
            return query.params
        self.diverged = 0
        return trained

    @property
    def whole(self) -> Parameters:
        """All values, [P]."""
        return self.private_parameters.whole(self.params)

    def begin_round(self, round: int) -> None:
        self.round = round
        self.step = None

    def restore(self, whole: Parameters) -> None:
        """Continue from all values, [P]."""
        self.params = self.private_parameters.keep(whole)


class PeersState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Knowledge of peers that one round passes to the next.

    Attributes:
        distances: the latest known distance of each peer's model; see p2pfl.robust.clipping.
        assigned: lengths of the node's training steps, which limit assignments; see p2pfl.robust.clipping.
        extras: bytes of the extras that the node published last.
        beyond: by peer, the bytes by which its last model exceeded the expected size.
        best: the lowest loss of a model with which the node has begun a round; None if it is not known.
        rounds: the round of each of the distances.
    """

    distances: dict[str, float] = {}
    assigned: dict[str, float] = {}
    extras: int = 0
    beyond: dict[str, int] = {}
    best: float | None = None
    rounds: dict[str, int] = {}


class NodePeers:
    """Policy's access to other nodes, within the node's budget; see p2pfl.policy.Peers.

    Args:
        refuse: see p2pfl.budget.BudgetTracker.
        asks_scores: whether the policy may ask for losses.
        fetches_fragments: whether the policy may fetch parts of models.
        oldest: maximum age in seconds of the models that the policy receives.
        rounds: the graph of each round; None if the topology is the same in all rounds.

    Attributes:
        budget_tracker: the received models and bytes, and their budget.
        published: the models published in this round, by stage, with the private part at that time; [P].
        clip: clips received models, if the federation has agreed on a rule that does so; see p2pfl.robust.clipping.
        capped: number of times that a peer claimed more samples than are counted.
        refused: number of assignments of each coordinator that this node has refused.
        senders: senders of the models received in this round, if a robust rule changes the merge.
        assigned: the model that the node was assigned in this round; None before, and without an assignment.
    """

    def __init__(
        self,
        me: Me,
        exchange: Exchange,
        *,
        seed: int,
        names: Sequence[str],
        refuse: bool = False,
        asks_scores: bool = False,
        fetches_fragments: bool = False,
        oldest: float = inf,
        rounds: GraphByRound | None = None,
    ) -> None:
        self._me = me
        self._rounds = rounds
        self._exchange = exchange
        self._seed = seed
        self._asks_scores = asks_scores
        self._fetches_fragments = fetches_fragments
        self._oldest = oldest
        self._names = tuple(names)
        self._neighbours: tuple[str, ...] = exchange.view.neighbours
        self.observers: Sequence[Observer] = ()
        self.budget_tracker = BudgetTracker(me.budget, refuse, me.layout.size)
        self._extras = 0  # bytes of the extras that were published last
        self._beyond: dict[str, int] = {}  # by peer: bytes by which its last model exceeded the expected size
        self._own: Parameters | None = None  # the model that was published last in this round
        self.clip = MedianClip() if me.robust in CLIPPING else None
        self._limits = AssignmentLimits()
        self.refused: Counter[str] = Counter()
        self.capped: Counter[str] = Counter()
        self.published: dict[Stage, Parameters] = {}
        self.senders: set[str] = set()
        self.assigned: Parameters | None = None
        self._arriving: dict[str, Future[list[Fragment]]] = {}  # by peer: fetches for which the policy does not wait
        self._arrived: list[Future[list[Fragment]]] = []  # those that have ended since the policy last asked

    def begin_round(self) -> None:
        self.budget_tracker.begin_round()
        self.published = {}
        self.senders = set()
        self.assigned = None
        self._own = None

    def detach(self) -> None:
        """Copy the models of the last round that are views of larger arrays; see `p2pfl.parameters.detached`."""
        self._own = None
        self.published = {stage: detached(params) for stage, params in self.published.items()}

    def drop_arriving(self) -> None:
        """End the fetches for which the policy does not wait, because no round follows."""
        for task in self._arriving.values():
            task.cancel()
        self._arrived = []

    def state(self) -> PeersState:
        distances, rounds = ({}, {}) if self.clip is None else (dict(self.clip.distances), dict(self.clip.rounds))
        limits = self._limits
        best = limits.best if isfinite(limits.best) else None
        return PeersState(distances, dict(limits.steps), self._extras, dict(self._beyond), best, rounds)

    def restore(self, state: PeersState) -> None:
        if self.clip is not None:
            self.clip.distances, self.clip.rounds = dict(state.distances), dict(state.rounds)
        self._limits.steps = dict(state.assigned)
        self._limits.best = inf if state.best is None else state.best
        self._extras, self._beyond = state.extras, dict(state.beyond)

    @property
    def own(self) -> Parameters:
        """The shared values that the node published last in this round, else those after the last round; [S]."""
        return self._me.params if self._own is None else self._own

    def _trained_as_received(self) -> Parameters | None:
        """Return the own trained model of this round as peers receive it; None if training has changed nothing."""
        model = self._exchange.outbox.models.get((self._me.round, "trained"))
        return None if model is None or np.array_equal(self.own, self._me.params) else model.update.params

    @property
    def models_in(self) -> int:
        """Models received in this round."""
        return self.budget_tracker.models

    @property
    def ids(self) -> tuple[str, ...]:
        if self._rounds is None or not self._me.round:
            return self._exchange.view.ids
        return self._exchange.view.among(self._rounds.row(self._me.id, self._me.round))

    @property
    def weights(self) -> Mapping[str, float] | None:
        return None if self._rounds is None else self._rounds.row(self._me.id, self._me.round)

    @property
    def askers(self) -> tuple[str, ...]:
        return tuple(sorted(self._exchange.askers))

    def public_info(self, id: str) -> Mapping[str, Any]:
        return self._exchange.public_info(id)

    def round_order(self, round: int) -> Mapping[str, int]:
        neighbours = self._exchange.view.neighbours
        if neighbours is not self._neighbours:  # a peer has become a member since
            self._neighbours, self._names = neighbours, tuple(sorted({*self._names, *neighbours}))
        return common_order(self._seed, round, self._names)

    async def publish(self, params: Parameters, extras: Extras | None = None, stage: Stage = "trained") -> None:
        if not isinstance(params, np.ndarray):
            raise ConfigurationError(f"publish takes a model, got a {type(params).__name__}; is an `await` missing?")
        if self._me.deviation is not None:
            raise ConfigurationError(
                "with noise that adds up in sums (privacy.central) a model leaves its node in sums only, and the policy"
                " publishes one",
                "privacy.central",
                "policy",
            )
        self.published[stage] = self._me.private_parameters.whole(params)
        self._own = params
        if self._me.budget.bytes:
            self._extras = len(encode_extras(extras)) if extras else 0
        await self._exchange.publish(self._me.round, stage, params, extras or {})
        for observer in self.observers:
            observer.published(self._me.id, self._me.round, stage, params)

    async def models(self, ids: Sequence[str], stage: Stage | Mapping[str, Stage] = "trained") -> list[Update]:
        places = self.budget_tracker.reserve(ids, self._expected_bytes)
        if not places.ids:  # peers on probation are asked nevertheless, or a node without other peers would stay alone
            await self._exchange.fetch((), self._me.round, stage)
            return []
        try:
            updates = await self._exchange.fetch(places.ids, self._me.round, stage)
        finally:
            self.budget_tracker.release(places)
        if self._exchange.conduct.enabled:
            self._exchange.conduct.record_fetch(places.ids, updates, self._trained_as_received())
        if self._oldest < inf:  # a peer whose model is too old to be used has sent one nevertheless
            updates = [update for update in updates if update.age <= self._oldest]
        if self._me.rule is not None:
            self.senders.update(update.sender for update in updates)
        if self._me.robust != NONE and updates:
            updates = self._cap_samples(updates)
            if self.clip is not None:
                updates = await self._clip_updates(self.clip, updates)
        if self.budget_tracker.refuses and self._me.budget.bytes:
            self._note_sizes(updates)
        updates = self.budget_tracker.take(updates)
        for observer in self.observers:
            observer.received(self._me.id, self._me.round, updates)
        return updates

    def common_rng(self, purpose: str) -> np.random.Generator:
        return federation_streams(self._seed).generator(self._me.round, purpose)

    async def fragments(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments, stage: Stage = "trained", *, wait: bool = True
    ) -> list[Fragment]:
        if not self._fetches_fragments:
            raise ConfigurationError(
                "a policy that calls `peers.fragments` must set `fetches_fragments = True`; otherwise no peer answers"
            )
        parts = self._wanted_parts(wanted, fragments)
        self._exchange.ask_on_probation(wanted, self._me.round, fragments, stage)
        if wait:
            received = await self._fetch_fragments(*self.budget_tracker.reserve_fragments(parts), fragments, stage)
        else:
            arrived, self._arrived = self._arrived, []
            received = [fragment for task in arrived for fragment in task.result()]
            for id, own in by_sender(parts).items():  # one task for each peer, so that none waits for a slower one
                if id in self._arriving:  # more requests would only make the queue on its line longer
                    continue
                reserved = self.budget_tracker.reserve_fragments(own)
                task = self._arriving[id] = asyncio.ensure_future(self._fetch_fragments(*reserved, fragments, stage))
                task.add_done_callback(partial(self._arrive, id))
        for observer in self.observers:
            observer.received_fragments(self._me.id, self._me.round, received)
        return received

    def _arrive(self, id: str, task: Future[list[Fragment]]) -> None:
        del self._arriving[id]
        if not task.cancelled():
            self._arrived.append(task)

    async def _fetch_fragments(
        self, admitted: Sequence[WantedPart], places: Reservation, fragments: Fragments, stage: Stage
    ) -> list[Fragment]:
        me, tracker, conduct = self._me, self.budget_tracker, self._exchange.conduct
        asked = {id: [part.number for part in parts] for id, parts in by_sender(admitted).items()}
        try:
            received = await self._exchange.fetch_fragments(asked, me.round, fragments, stage)
        finally:
            tracker.release(places)
        conduct.record_fragments(asked, {fragment.sender for fragment in received})
        received = [fragment for fragment in received if fragment.age <= self._oldest]
        if me.rule is not None:
            self.senders.update(fragment.sender for fragment in received)
        if me.robust != NONE and received:
            received = self._cap_samples(received)
        return tracker.take_fragments(received)

    def fragments_within_budget(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments
    ) -> Mapping[str, Sequence[str]]:
        chosen = self.budget_tracker.fragments_within_budget(self._me.rng, self._wanted_parts(wanted, fragments))
        return {id: [part.name for part in parts] for id, parts in by_sender(chosen).items()}

    def _wanted_parts(self, wanted: Mapping[str, Sequence[str]], fragments: Fragments) -> list[WantedPart]:
        return wanted_parts(wanted, fragments, self._me.layout, self._seed, OVERHEAD)

    def _cap_samples(self, updates: Sequence[U]) -> list[U]:
        """Return the updates, or the fragments, with capped numbers of samples."""
        capped = cap_samples(self._me.n_samples, {u.sender: u.n_samples for u in updates})
        too_many = {u.sender for u in updates if u.n_samples != capped[u.sender]}
        self.capped.update(too_many)
        return [replace(u, n_samples=capped[u.sender]) if u.sender in too_many else u for u in updates]

    async def _clip_updates(self, clip: MedianClip, updates: Sequence[Update]) -> list[Update]:
        """Return the updates with clipped models, whose values are computed only if the policy reads them."""
        me, own = self._me, self.own
        senders, models, samples = zip(*((u.sender, u.params, u.n_samples) for u in updates), strict=True)
        clip.forget(self._exchange.view.neighbours)
        clipped = await me.compute(Clip([own, *models], me.initial, clip.distances_of_others(senders, me.round), samples))
        clip.record(senders, clipped, me.round)
        kept = clipped.models(own, models)
        return [u if model is u.model else replace(u, model=model) for u, model in zip(updates, kept, strict=True)]

    def within_budget(self, ids: Sequence[str]) -> Sequence[str]:
        return self.budget_tracker.within_budget(self._me.rng, ids, self._expected_bytes)

    async def remote_losses(self, ids: Sequence[str], params: Parameters) -> dict[str, float]:
        if not self._asks_scores:
            raise ConfigurationError(
                "a policy that calls `peers.remote_losses` must set `asks_scores = True`; otherwise no peer answers"
            )
        return await self._exchange.score(ids, self._me.round, params) if ids else {}

    async def submit(
        self,
        params: Parameters,
        *,
        extras: Extras | None = None,
        previous: Extras | None = None,
        start: Parameters | None = None,
    ) -> Assignment | None:
        me = self._me
        if me.deviation is not None and params is not me.step:
            return None  # without a new step it would show the same one twice, and others count on its noise
        self.published["trained"] = me.private_parameters.whole(params)
        for observer in self.observers:
            observer.published(me.id, me.round, "trained", params)
        if not self.budget_tracker.admits(
            self._expected_bytes(me.id)
        ):  # the node learns alone, because the budget does not allow the assignment
            return None
        noise = 0.0 if me.deviation is None else me.deviation(me.round)
        submission = Submission(me.id, me.round, params, me.n_samples, extras or {}, previous or {}, start, noise)
        assignment = await self._exchange.submit(submission)
        if assignment is None:
            return None
        self.budget_tracker.charge(assignment.size)
        if me.robust != NONE:
            kept = await self._protect(params, assignment.params, start is None)
            if kept is not assignment.params:
                coordinator = self._exchange.set_aside()
                if kept is None:
                    self.refused[coordinator] += 1
                    return None
                assignment = replace(assignment, params=kept)
        for observer in self.observers:
            observer.assigned(me.id, me.round, assignment)
        self.assigned = assignment.params
        return assignment

    async def _protect(self, own: Parameters, assigned: Parameters, free: bool) -> Parameters | None:
        """Return the assigned model as the robust rule lets it through; None if the rule refuses it.

        Args:
            free: whether the coordinator does not need to know from which model the node starts.
        """
        me = self._me
        far, step = (await me.compute(Clip([own, assigned, me.params], me.initial))).distances
        self._limits.record_step(me.round, step)
        radius = self._limits.radius
        if far > radius:
            radius *= ratio_of(me.n_samples, self._samples_of_peers())
        kept = move_towards(assigned, own, factor_of(far, radius))
        if not isinstance(me.rule, ClipLoss):
            return kept
        start, before, given, *after = await relative_losses(me, [me.params, own, assigned, *([kept] if free else [])])
        self._limits.record_start(start)
        if me.rule.refuses(given, before, self._limits.best):
            return None
        return move_towards(kept, own, me.rule.part_kept(before, *after)) if free else kept

    def _samples_of_peers(self) -> list[int]:
        """Return the numbers of samples that the known neighbours claim."""
        infos = (self._exchange.public_info(id) for id in self._exchange.view.neighbours)
        return [info["n_samples"] for info in infos if "n_samples" in info]

    def _note_sizes(self, updates: Sequence[Update]) -> None:
        """Expect from each peer the size that it sent last, if it was more than expected."""
        for update in updates:
            self._beyond[update.sender] = max(0, update.size - self._exchange.expected_bytes(update.sender, self._me.round))

    def _expected_bytes(self, id: str) -> int:
        """Return the expected bytes of a peer's model, with extras as long as this node's or the peer's last ones."""
        return self._exchange.expected_bytes(id, self._me.round) + max(self._extras, self._beyond.get(id, 0))
