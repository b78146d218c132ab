"""Life of a node. The same code runs on machines, through a broker, and by the hundred in the simulator.

All differences are injected: the way to peers (`exchange`), the place of training (`trainer`), storage (`store`), and
the `observers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from p2pfl._util.failpoints import failpoint
from p2pfl._util.printable import plural
from p2pfl.central_noise import deviation
from p2pfl.compression.sparse_updates import Publication
from p2pfl.errors import ConfigurationError, first_error
from p2pfl.node import policy_api
from p2pfl.node.checkpoint import (
    Checkpoint,
    Store,
    facts_of,
    pack_arrays,
    pack_model,
    same_federation,
    same_privacy,
    same_task,
    unpack,
    unpack_arrays,
    unpack_model,
    with_local_state,
)
from p2pfl.node.coordination.election_runner import Elected
from p2pfl.node.early_stopping import EarlyStopping
from p2pfl.node.evaluations import Evaluations
from p2pfl.node.exchange.base import Exchange
from p2pfl.node.exchange.model_encoding import Published
from p2pfl.node.policy_api import Me, NodePeers
from p2pfl.node.privacy_ledger import PrivacyLedger
from p2pfl.node.settings import End, Settings, Used, check_policy
from p2pfl.node.trainer import Trainer
from p2pfl.parameters import Parameters, detached, problem
from p2pfl.policy import Budget, Coordinated, Merge, Policy, Stage, asks_scores, check_stage, fetches_fragments, memory_of
from p2pfl.privacy import PrivacyPlan, PrivacyTracker
from p2pfl.queries import Evaluate, Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Task, batch_size_of
from p2pfl.topologies.schedules import GraphByRound

if TYPE_CHECKING:  # a node without noise of neighbours does not load it
    from p2pfl.node.edge_noise import EdgeSecrets

SPLITS: tuple[Split, ...] = ("validation", "test")


class Observer(policy_api.Observer):
    """Observer of a node, which is told of its events while they happen.

    Each method does nothing; a subclass overrides those of the events that it needs. An observer must not affect the
    node: it returns at once and raises nothing.
    """

    def restored(self, node: Node) -> None:
        """Report that the node continues from its stored checkpoint."""

    def elected(self, node: Node, elected: Elected) -> None:
        """Report a change of the node's coordinator, including its loss."""

    def skipped(self, node: Node, finished: int, following: int) -> None:
        """Report that the node skips forward or goes back to the round of most participants."""

    def merged(self, node: Node, merge: Merge) -> None:
        """Report that a round has ended."""

    def evaluated(self, node: Node, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        """Report the metrics of a round's models by stage, possibly some rounds later."""

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        """Report that the last round has ended; `result` has the metrics of the model that was best on validation."""


class Node:
    """One participant.

    Args:
        name: name of the node in the federation.
        names: names of all participants, including this one; equal on every participant.
        budget: limits of what the node may receive; unlimited by default.
        lenient: whether to drop models that exceed the budget, and to keep the previous model if training or a merge
            gives values that are not finite, instead of raising BudgetExceededError or DivergenceError.
        initial: the whole common initial model, if it exists already.
        resume_after: the newest round whose model of this node peers hold; it continues after that round.
        end: seconds and bytes of rounds after which the node ends before all of its rounds; no limit by default.
        rounds: the graph of each round; None if the topology is the same in all rounds.
        privacy: the plan of the node's privacy budget; None without one.
        ledger: the ledger of that budget on the disk; None in a simulation.
        edges: see p2pfl.node.policy_api.Me.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        *,
        task: Task,
        policy: Policy,
        trainer: Trainer,
        exchange: Exchange,
        settings: Settings,
        store: Store | None = None,
        observers: Sequence[Observer] = (),
        budget: Budget | None = None,
        lenient: bool = False,
        initial: Parameters | None = None,
        resume_after: int = 0,
        end: End = End(),  # noqa: B008 (it is frozen)
        rounds: GraphByRound | None = None,
        privacy: PrivacyPlan | None = None,
        ledger: PrivacyLedger | None = None,
        edges: EdgeSecrets | None = None,
    ) -> None:
        settings.check()
        check_stage(policy)
        check_policy(settings, policy)
        self.name = name
        self.task = task
        self.policy = policy
        self.trainer = trainer
        self.exchange = exchange
        self.settings = settings
        self.early_stopping = EarlyStopping(settings.patience, settings.best_by)
        self._store, self._observers = store, observers
        self._resume_after = min(resume_after, settings.rounds)
        self._end = end
        self._before = Used()  # in earlier runs of the node
        self._seconds = 0.0  # of the rounds of this run, up to the last time that it began to serve
        self._began: float | None = None  # when the rounds began that run now
        self.end_reached = ""
        self._stopping = self._prepared = False
        self._ended = False  # whether the checkpoint is from the end of all rounds so far
        self._evaluations = Evaluations(
            self.early_stopping,
            policy.reported_stage,
            task=task,
            measure=self._metrics,
            report=self._report_evaluated,
        )
        self.me = Me(
            name,
            RandomStreams(settings.seed, name),
            trainer=trainer,
            initial=task.initial(settings.seed) if initial is None else initial,
            layout=task.layout,
            n_samples=task.n_samples,
            budget=budget or Budget(),
            rounds=settings.rounds,
            robust=settings.robust,
            lenient=lenient,
            batch_size=batch_size_of(task),
            privacy=_tracker(task, privacy, ledger),
            deviation=None if privacy is None or not privacy.share else partial(deviation, privacy, task),
            ledger=ledger,
            edges=edges,
        )
        self.peers = NodePeers(
            self.me,
            exchange,
            seed=settings.seed,
            names=names,
            refuse=lenient,
            asks_scores=asks_scores(policy),
            fetches_fragments=fetches_fragments(policy),
            oldest=inf if settings.mode == "synchronous" else settings.max_staleness,
            rounds=rounds,
        )
        self._graph = rounds
        self.me.observers = self.peers.observers = observers
        self.me.pauses = settings.mode == "asynchronous"
        self._saved: Checkpoint | None = None

    @property
    def round(self) -> int:
        """The round that the node is in or has finished."""
        return self.me.round

    @property
    def done(self) -> bool:
        """Return whether the node has finished: all rounds are done, it has stopped early, or a limit ends its rounds."""
        ended = bool(self.end_reached or self._spent_privacy)
        return self.me.round >= self.settings.rounds or self.early_stopping.stop or ended

    @property
    def _spent_privacy(self) -> str:
        """The reason why the privacy budget ends the rounds; "" if it does not."""
        privacy = self.me.privacy
        return "" if privacy is None or not privacy.ended else privacy.refusal

    @property
    def why_early(self) -> str:
        """The reason why the node has ended before all of its rounds; "" if it has not."""
        if self.me.round >= self.settings.rounds or not self.done:
            return ""
        return (
            self.end_reached
            or self._spent_privacy
            or f"no model was better for {plural(self.settings.patience, 'round')} (patience)"
        )

    @property
    def used(self) -> Used:
        """Seconds and bytes of the rounds so far, those of earlier runs included."""
        running = 0.0 if self._began is None else asyncio.get_running_loop().time() - self._began
        seconds = self._before.seconds + self._seconds + running
        return Used(round(seconds, 3), self._before.bytes + self.exchange.traffic.received_in_rounds)

    @property
    def limits(self) -> End:
        """Seconds and bytes of rounds after which the node ends; 0 is no limit."""
        return self._end

    @property
    def disk(self) -> str:
        """The reason why the last checkpoint or the ledger could not be written; "" if they were written."""
        ledger = "" if self.me.ledger is None else self.me.ledger.problem
        return ledger if self._store is None else self._store.problem or ledger

    @property
    def stored(self) -> int:
        """The last round whose checkpoint is on disk; without a store, the last round."""
        return self.me.round if self._store is None else self._store.round

    def extend(self, rounds: int) -> None:
        """Raise the number of rounds. A node that has stopped early does not continue."""
        self.settings = msgspec.structs.replace(self.settings, rounds=rounds)
        self.me.rounds = rounds

    def stop(self) -> None:
        """Leave after the current round. The checkpoint contains everything that is finished."""
        self._stopping = True
        self.exchange.leave()

    async def run(self, linger: Callable[[], Awaitable[None]] | None = None) -> None:
        """Run all rounds, then serve until `linger()` returns; without `linger`, end at once.

        If an extension has added rounds when `linger()` returns, run them too.

        Raises:
            ConfigurationError: the policy or the stored checkpoint does not fit.
            BudgetExceededError: the policy asks for more than the budget allows. Other errors of the policy are raised
                unchanged.
        """
        self._restore()
        if isinstance(self.policy, Coordinated):
            self.exchange.resume(self.me.round, self.me.params)
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    await self.exchange.start(tasks, self, extended=self._ended and not self.done)
                    await self._rounds()
                    while linger is not None and not self._stopping:
                        if self.done:  # otherwise an extension came while the result was computed
                            await linger()
                        if self.done:
                            break
                        await self._rounds()
                    self.peers.drop_arriving()
                    if self.disk:  # the disk may have room again
                        await self._save()
                except BaseException:
                    self.peers.drop_arriving()
                    with suppress(Exception):  # the first error is the cause, not those that follow from it
                        await self.exchange.close()
                    raise
                await self.exchange.close()
        except ExceptionGroup as group:  # report one cause, not a tree
            raise first_error(group) from None

    async def _rounds(self) -> None:
        if not (self.done or self._prepared or self._stopping):
            await self._prepare()
        if self._ended and not self.done:
            self._ended = False
            await self.exchange.gather()
        self._began = asyncio.get_running_loop().time()
        while not (self._stopping or self.done):
            await self._round()
            self.end_reached = self._end.reached(self.used)
        self._seconds += asyncio.get_running_loop().time() - self._began
        self._began = None
        if self.done:
            _end_rounds(self)
            self.exchange.finish()
            await self._save()
            await self._finish()
            await self._save()

    async def conclude(self) -> None:
        """End with the rounds so far, after `run` was cancelled: the simulation has reached its end."""
        self.peers.published = {}  # of a round that has not ended
        every = self.settings.evaluate_every
        if every and self.me.round % every:
            await self._evaluate()
        _end_rounds(self)
        await self._finish()

    async def _prepare(self) -> None:
        await self._save()
        self._take(await _asynchronous(self.policy, self.policy.prepare(self.me, self.peers)))
        self._prepared = True
        self._skip_published()
        await self._save()

    async def _round(self) -> None:
        me, settings = self.me, self.settings
        following = me.round + 1
        if settings.mode == "synchronous":  # the round of most of the others
            following = min(await self.exchange.next_round(me.round), settings.rounds)
            if self._stopping:
                return
            if following != me.round + 1:
                for observer in self._observers:
                    observer.skipped(self, me.round, following)
        if self._graph is not None:
            await self._graph.enter(following)
        finished = me.round
        me.begin_round(following)
        self.peers.begin_round()
        try:
            merge = await _asynchronous(self.policy, self.policy.round(me, self.peers))
        except BaseException:
            me.round = finished
            raise
        if me.deviation is not None:  # a step that no sum has released is dropped; see p2pfl.central_noise
            merge = merge._replace(params=me.params if self.peers.assigned is None else self.peers.assigned)
        merge = self._take(merge)
        if settings.evaluate_every and (me.round % settings.evaluate_every == 0 or me.round == settings.rounds):
            await self._evaluate()
        if self._store is not None:  # first, because an observer of the round may rely on it
            await self._save()
            failpoint("round-saved")
        for observer in self._observers:
            observer.merged(self, merge)

    def _take(self, merge: Merge) -> Merge:
        """Adopt and return the result of a round; keep the own model if the result has values that are not finite."""
        if not isinstance(merge, Merge):
            raise ConfigurationError(f"the policy {type(self.policy).__name__} returned {type(merge).__name__}, not a Merge")
        params = merge.params
        if params.shape != self.me.params.shape or params.dtype != self.me.params.dtype:
            reason = problem(params, self.me.layout.size)
            raise ConfigurationError(f"the policy {type(self.policy).__name__} returned an invalid model: {reason}")
        if self.me.lenient and not np.isfinite(params).all():
            senders = sorted(id for id, weight in merge.weights.items() if weight and id != self.name)
            reason = f"the average with the models of {', '.join(senders) or 'no peer'} has values that are not finite"
            self._report_discarded(reason, senders)
            merge = Merge(self.peers.own, {self.name: 1.0})
        self.me.params = merge.params
        return merge

    def _report_discarded(self, reason: str, senders: Sequence[str]) -> None:
        for observer in self._observers:
            observer.discarded(self.name, self.me.round, reason, senders)

    # Evaluation

    async def _evaluate(self) -> None:
        published: dict[Stage, Parameters] = {s: p for s, p in self.peers.published.items() if s != "prepared"}
        await self._evaluations.begin(self.me.round, published | {"merged": self.me.whole})

    def _report_evaluated(self, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        for observer in self._observers:
            observer.evaluated(self, round, stages)

    async def _finish(self) -> None:
        """Evaluate the model that was best on validation, which is the node's result."""
        await self._evaluations.finish()
        (result,) = await self._metrics([self.result])
        for observer in self._observers:
            observer.finished(self, result)

    @property
    def result(self) -> Parameters:
        """Return all values, [P], of the model best on validation; before the first evaluation, of the newest."""
        return self.early_stopping.best if self.early_stopping.best is not None else self._reported_parameters()

    def _metrics(self, models: Sequence[Parameters]) -> Awaitable[list[dict[str, float]]]:
        memory = memory_of(self.policy)
        if memory is not None:
            memory = memory.complete(self.me.private_parameters.whole)
        privacy = self.me.privacy
        if privacy is not None and privacy.plan.privacy.validation == "private":
            # nothing looks at them: the round in which a node stops, and its best model, would tell about them
            return self.trainer.submit(Evaluate(models, ("test",), memory))
        return self.trainer.submit(Evaluate(models, SPLITS, memory))

    def _reported_parameters(self) -> Parameters:
        stage = self.policy.reported_stage
        if stage != "trained":  # what a policy publishes as `merged` may be another thing than its model, as in sgp
            return self.me.whole
        return self.peers.published.get(stage, self.me.whole)

    # Interface for the exchange (see p2pfl.node.exchange.base.ExchangeHost)

    def complete(self, params: Parameters) -> Parameters:
        return self.me.private_parameters.whole(params)

    async def save_model(self, model: Published) -> None:
        if self._store is not None:
            await self._save_outbox(model)

    def elected(self, elected: Elected) -> None:
        for observer in self._observers:
            observer.elected(self, elected)

    # Checkpoints

    async def _save(self) -> None:
        """Save the state after a round, or before or after the preparation; without a store, do nothing."""
        if self._store is None:
            return
        self._saved = _checkpoint_of(self, self._evaluations, self._prepared)
        await self._save_outbox()

    async def _save_outbox(self, coming: Published | None = None) -> None:
        """Save the published models with the last round's state. An unfinished round is repeated after a restart."""
        assert self._store is not None
        assert self._saved is not None
        loop, outbox = asyncio.get_running_loop(), self.exchange.outbox
        models = [*outbox.models.values(), *([] if coming is None else [coming])]
        packed = [pack_model(model, loop.time()) for model in models]
        steps = [(each.tag, each.changed) for each in self.exchange.encoder.state()]
        # the trainings, seconds and bytes of an unfinished round count although a restart repeats it
        trainings = self.me.training.state()
        privacy = None if self.me.privacy is None else self.me.privacy.state()
        checkpoint = msgspec.structs.replace(
            self._saved,
            outbox=packed,
            final=outbox.final,
            steps=steps,
            trainings=trainings,
            used=self.used,
            privacy=privacy,
        )
        await loop.run_in_executor(None, self._store.save, checkpoint)
        if coming is not None:
            failpoint("published")

    def _restore(self) -> None:
        if self._store is not None and (checkpoint := self._store.load()) is not None:
            self._restore_from(checkpoint)
        self._skip_published()

    def _skip_published(self) -> None:
        """Skip the rounds that this node's checkpoint lacks, and whose models peers hold."""
        if self._prepared and self._resume_after > self.me.round:
            self.me.round = self._resume_after
            self.exchange.outbox.skip(self._resume_after + 1)

    def _restore_from(self, checkpoint: Checkpoint) -> None:
        _check_origin(self, checkpoint)
        if (layout := self.task.layout).local:
            checkpoint = with_local_state(checkpoint, layout, self.me.private_parameters.latest)
        self._saved = checkpoint
        self.me.round = checkpoint.round
        params = unpack(checkpoint.params)
        if np.isfinite(params).all():
            self.me.restore(params)
        else:
            self._report_discarded("the checkpoint has values that are not finite", ())
        self._prepared = checkpoint.prepared or checkpoint.round > 0
        self.early_stopping.restore(checkpoint.early_stopping)
        self.trainer.restore(unpack_arrays(checkpoint.learner))
        self.policy.restore(msgspec.msgpack.decode(checkpoint.policy_state))
        self.peers.restore(checkpoint.peers)
        self.me.training.restore(checkpoint.trainings)
        if self.me.privacy is not None and checkpoint.privacy is not None:
            self.me.privacy.restore(checkpoint.privacy)
        self._before = checkpoint.used
        self.end_reached = self._end.reached(self.used)
        self.exchange.conduct.restore(checkpoint.conduct)
        _restore_evaluations(self._evaluations, checkpoint)
        outbox, now = self.exchange.outbox, asyncio.get_running_loop().time()
        for model in checkpoint.outbox:
            outbox.add(unpack_model(model, self.name, self.me.n_samples, now))
        publications = [Publication(tag, changed) for tag, changed in checkpoint.steps]
        self.exchange.encoder.restore(publications, outbox.models.values())
        self._ended = checkpoint.final
        outbox.final = checkpoint.final and self.done  # unless there are more rounds to do now
        for observer in self._observers:
            observer.restored(self)


def _check_origin(node: Node, checkpoint: Checkpoint) -> None:
    """Raise ConfigurationError if a checkpoint was made by another node, or for another task."""
    same_federation(checkpoint, _federation_of(node))
    same_task(checkpoint, node.task.layout.fingerprint, facts_of(node.task))
    same_privacy(checkpoint, node.me.privacy, counted=node.me.ledger is not None)


def _tracker(task: Task, plan: PrivacyPlan | None, ledger: PrivacyLedger | None) -> PrivacyTracker | None:
    """Return the tracker of a privacy budget, which continues from the ledger if there is one; None without a budget."""
    if plan is None:
        return None
    return PrivacyTracker(plan, batch_size_of(task), 0 if ledger is None else ledger.steps)


def _restore_evaluations(evaluations: Evaluations, checkpoint: Checkpoint) -> None:
    """Restore the models that had not been evaluated yet."""
    if checkpoint.unevaluated:
        evaluations.restore(checkpoint.unevaluated_round, {s: unpack(p) for s, p in checkpoint.unevaluated.items()})


def _asynchronous(policy: Policy, work: Awaitable[Merge]) -> Awaitable[Merge]:
    """Return what a method of a policy has returned, after checking that the method is asynchronous."""
    if isinstance(work, Merge):
        raise ConfigurationError(f"a method of {type(policy).__name__} is not asynchronous; write `async def`")
    return work


def _checkpoint_of(node: Node, evaluations: Evaluations, prepared: bool) -> Checkpoint:
    """Return the state of a node without its published models."""
    unevaluated = evaluations.pending
    return Checkpoint(
        **_federation_of(node),
        layout=node.task.layout.fingerprint,
        task=facts_of(node.task),
        round=node.me.round,
        params=node.me.whole.tobytes(),
        early_stopping=node.early_stopping.state(),
        unevaluated={} if unevaluated is None else {s: p.tobytes() for s, p in unevaluated.snapshots.items()},
        unevaluated_round=0 if unevaluated is None else unevaluated.round,
        policy_state=encode_state(node.policy),
        outbox=[],
        final=False,
        prepared=prepared,
        learner=pack_arrays(node.trainer.learner_state()),
        peers=node.peers.state(),
        conduct=node.exchange.conduct.state(),
    )


def _federation_of(node: Node) -> dict[str, Any]:
    """Return the entries of a checkpoint that must not change between runs of a node."""
    return {
        "name": node.name,
        "seed": node.settings.seed,
        "policy": policy_name(node.policy),
        "codec": node.settings.codec,
    }


def policy_name(policy: Policy) -> str:
    """Return the name of a policy's class in checkpoints."""
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


def encode_state(policy: Policy) -> bytes:
    """Return a policy's state as MessagePack.

    Raises:
        ConfigurationError: the state contains values other than numbers, strings, lists and dicts.
    """
    try:
        return msgspec.msgpack.encode(policy.state())
    except TypeError as error:
        raise ConfigurationError(
            f"the state of the policy {policy_name(policy)} must consist of numbers, strings, lists and dicts: {error}"
        ) from error


def _end_rounds(node: Node) -> None:
    """Record whether a node stops early for good. If it ends early, replace its views of larger arrays by copies.

    A node whose `end` is reached, or whose privacy budget is spent, continues after a restart with a later end, or with a
    greater budget.

    In a simulation these arrays are stacks of models that were computed together. Nodes that stop in different rounds
    would keep a stack each. Nodes that finish all rounds share one.
    """
    node.peers.drop_arriving()
    early = node.me.round < node.settings.rounds
    privacy = node.me.privacy
    node.early_stopping.stopped = early and not node.end_reached and not (privacy is not None and privacy.ended)
    if early:
        node.me.params = detached(node.me.params)
        node.peers.detach()
        node.exchange.outbox.detach()
