"""Run policies in memory, on plain dictionaries, without event loop, clock or messages. For experiments and tests."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from p2pfl.budget import BudgetTracker, TrainingTracker
from p2pfl.errors import BudgetExceededError
from p2pfl.fragments import Fragments, WantedPart, by_sender, wanted_parts
from p2pfl.parameters import Layout, Parameters, PrivateParameters
from p2pfl.policy import (
    Assignment,
    Budget,
    Coordinated,
    Extras,
    Fragment,
    Me,
    Merge,
    Policy,
    Stage,
    Submission,
    Update,
    never_waits,
)
from p2pfl.queries import Query, R, Train
from p2pfl.random_streams import RandomStreams, common_order, federation_streams
from p2pfl.robust.candidates import MergeRule
from p2pfl.task import Task
from p2pfl.update_rules import Rule

T = TypeVar("T")


class _YieldOnce:
    """Awaitable that lets the other nodes continue."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def _at_once(value: T) -> T:
    return value


class InMemoryCoordinator:
    """Coordinator in memory. It makes the step of a round as soon as all nodes that are not absent have submitted.

    Args:
        policies: by node id; the policy of the node with the lowest id makes the steps.
        absent: by round, the nodes whose submissions do not arrive.
        layout: the layout of the shared values.

    Attributes:
        submitted: number of submissions so far.
        state: the state that the last step returned.
    """

    def __init__(self, policies: Mapping[str, Policy], absent: Mapping[int, Collection[str]], layout: Layout) -> None:
        self.submitted = 0
        self.state: Mapping[str, Any] = {}
        self.layout = layout
        self._policy = policies[min(policies)]
        self._ids = policies.keys()
        self._absent = absent
        self._there: dict[int, dict[str, Submission]] = {}
        self._made: dict[int, Mapping[str, Assignment]] = {}

    async def submit(self, submission: Submission) -> Assignment | None:
        round = submission.round
        if submission.sender in self._absent.get(round, ()):
            return None
        there = self._there.setdefault(round, {})
        there[submission.sender] = submission
        self.submitted += 1
        while there.keys() != self._ids - set(self._absent.get(round, ())):
            await _YieldOnce()
        if round not in self._made:
            assert isinstance(self._policy, Coordinated)
            self._made[round], self.state = self._policy.step(list(there.values()), self.state, self.layout)
        return self._made[round][submission.sender]


class InMemoryNode(Me):
    """One node of a run in memory. It implements both `Me` and `Peers`; its peers are all other nodes.

    Attributes:
        published: the updates that it has published, by (round, stage).
        asked: the ids whose models it has requested, by round.
        budget_tracker: the tracker of its budget of what it receives.
        training: the tracker of its trainings.
        task: its data and model.
        learner: its computations.
        coordinator: the common coordinator.
        waits: whether it waits for models of its round; otherwise it takes the newest ones that are there.
    """

    waits = True

    def __init__(
        self,
        id: str,
        cast: Mapping[str, InMemoryNode],
        *,
        task: Task,
        seed: int,
        budget: Budget,
        rounds: int,
        coordinator: InMemoryCoordinator,
    ) -> None:
        self.id = id
        self.round = 0
        self.rounds = rounds
        self.robust = "none"
        self.rule: MergeRule | None = None
        self.layout: Layout = task.layout.shared
        self.kept = task.layout.private
        initial = task.initial(seed)
        self.private_parameters = PrivateParameters(task.layout, initial)
        self.initial = self.params = task.layout.shared_of(initial)
        self.n_samples = task.n_samples
        self.budget = budget
        self.budget_tracker = BudgetTracker(budget, size=self.layout.size)
        self.training = TrainingTracker(budget)
        self.published: dict[tuple[int, Stage], Update] = {}
        self.asked: dict[int, list[str]] = {}
        self._arrived: list[Fragment] = []
        self._cast = cast
        self.coordinator = coordinator
        self.task = task
        self._streams = RandomStreams(seed, id)
        self.learner = task.learner(self._streams, "cpu")

    # Me

    def rng(self, purpose: str) -> np.random.Generator:
        return self._streams.generator(self.round, purpose)

    def trainings_left(self, epochs: int = 1, rule: Rule | None = None) -> float:
        return self.training.left(Train(self.params, self.round, epochs, rule=rule).samples(self.n_samples))

    def compute(self, query: Query[R]) -> Awaitable[R]:
        if isinstance(query, Train):
            samples = query.samples(self.n_samples)
            if not self.training.admits(samples):
                return cast("Awaitable[R]", _at_once(query.params))
            self.training.charge(samples)
        return _at_once(
            query.restrict(self.learner.compute(query.complete(self.private_parameters)), self.private_parameters)
        )

    # Peers

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(id for id in sorted(self._cast) if id != self.id)

    @property
    def weights(self) -> Mapping[str, float] | None:
        return None

    @property
    def askers(self) -> tuple[str, ...]:
        return self.ids

    def public_info(self, id: str) -> Mapping[str, Any]:
        task = self._cast[id].task
        return {**task.public_info, "n_samples": task.n_samples}

    def round_order(self, round: int) -> Mapping[str, int]:
        return common_order(self._streams.seed, round, tuple(sorted(self._cast)))

    async def publish(self, params: Parameters, extras: Extras | None = None, stage: Stage = "trained") -> None:
        size = params.nbytes + sum(array.nbytes for array in (extras or {}).values())
        update = Update(self.id, self.round, stage, params, self.n_samples, extras or {}, size=size)
        self.published[self.round, stage] = update

    async def models(self, ids: Sequence[str], stage: Stage | Mapping[str, Stage] = "trained") -> list[Update]:
        places = self.budget_tracker.reserve(ids, lambda peer: 4 * self.layout.size)
        self.asked.setdefault(self.round, []).extend(places.ids)
        updates = []
        for id in sorted(places.ids):
            wanted, there = stage if isinstance(stage, str) else stage[id], self._cast[id].published
            if self.waits:
                while (self.round, wanted) not in there:
                    await _YieldOnce()
                updates.append(there[self.round, wanted])
            elif rounds := [round for round, each in there if each == wanted]:
                updates.append(there[max(rounds), wanted])
        self.budget_tracker.release(places)
        return self.budget_tracker.take(updates)

    def within_budget(self, ids: Sequence[str]) -> Sequence[str]:
        return self.budget_tracker.within_budget(self.rng, ids, lambda _: 4 * self.layout.size)

    def common_rng(self, purpose: str) -> np.random.Generator:
        return federation_streams(self._streams.seed).generator(self.round, purpose)

    async def fragments(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments, stage: Stage = "trained", *, wait: bool = True
    ) -> list[Fragment]:
        found = await self._fetch_fragments(wanted, fragments, stage)
        if not wait:  # they arrive before the next call
            found, self._arrived = self._arrived, found
        return found

    async def _fetch_fragments(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments, stage: Stage
    ) -> list[Fragment]:
        admitted, reserved = self.budget_tracker.reserve_fragments(self._wanted_parts(wanted, fragments))
        places = fragments.places(self.layout, self._streams.seed)
        received = []
        for part in admitted:
            while (self.round, stage) not in self._cast[part.sender].published:
                await _YieldOnce()
            model = self._cast[part.sender].published[self.round, stage]
            at = places[part.number]
            values, size = model.params[at], 4 * part.values
            received.append(Fragment(part.sender, self.round, stage, part.name, values, at, model.n_samples, size=size))
        self.budget_tracker.release(reserved)
        return self.budget_tracker.take_fragments(received)

    def fragments_within_budget(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments
    ) -> Mapping[str, Sequence[str]]:
        chosen = self.budget_tracker.fragments_within_budget(self.rng, self._wanted_parts(wanted, fragments))
        return {id: [part.name for part in parts] for id, parts in by_sender(chosen).items()}

    def _wanted_parts(self, wanted: Mapping[str, Sequence[str]], fragments: Fragments) -> list[WantedPart]:
        return wanted_parts(wanted, fragments, self.layout, self._streams.seed)

    async def remote_losses(self, ids: Sequence[str], params: Parameters) -> dict[str, float]:
        asked = [(id, self._cast[id]) for id in sorted(ids)]
        return {id: float(a.learner.loss([a.private_parameters.whole(params)], split="train")[0]) for id, a in asked}

    async def submit(
        self,
        params: Parameters,
        *,
        extras: Extras | None = None,
        previous: Extras | None = None,
        start: Parameters | None = None,
    ) -> Assignment | None:
        size = 4 * self.layout.size
        if not self.budget_tracker.admits(size):
            raise BudgetExceededError(self.budget_tracker.refusal)
        submission = Submission(self.id, self.round, params, self.n_samples, extras or {}, previous or {}, start)
        assignment = await self.coordinator.submit(submission)
        if assignment is not None and self.id != min(self._cast):
            self.budget_tracker.charge(size)
        return assignment


def run_in_memory(
    policies: Mapping[str, Policy],
    tasks: Mapping[str, Task],
    rounds: int,
    *,
    seed: int = 0,
    budget: Budget | Mapping[str, Budget] | None = None,
    absent: Mapping[int, Collection[str]] | None = None,
) -> tuple[dict[str, InMemoryNode], list[dict[str, Merge]]]:
    """Run each node's policy for some rounds, one node after another as far as they do not wait.

    Args:
        policies, tasks: by node id.
        budget: of each node, or by node id.
        absent: by round, the nodes whose submissions do not reach the coordinator (the node with the lowest id).

    Returns:
        The nodes after the last round, and the merges of each round by node id.

    Raises:
        BudgetExceededError: a policy requests more than its node's budget allows.
        RuntimeError: the policies wait for each other and cannot continue.
    """
    cast: dict[str, InMemoryNode] = {}
    coordinator = InMemoryCoordinator(policies, absent or {}, tasks[min(policies)].layout.shared)
    for id in sorted(policies):
        own = budget.get(id) if isinstance(budget, Mapping) else budget
        cast[id] = InMemoryNode(
            id, cast, task=tasks[id], seed=seed, budget=own or Budget(), rounds=rounds, coordinator=coordinator
        )
        cast[id].waits = not never_waits(policies[id])
    _take_turns({id: policies[id].prepare(actor, actor) for id, actor in cast.items()}, cast)
    history = []
    for round in range(1, rounds + 1):
        for actor in cast.values():
            actor.round = round
            actor.budget_tracker.begin_round()
        history.append(_take_turns({id: policies[id].round(actor, actor) for id, actor in cast.items()}, cast))
    return cast, history


def _take_turns(parts: Mapping[str, Coroutine[Any, Any, Merge]], cast: Mapping[str, InMemoryNode]) -> dict[str, Merge]:
    """Run coroutines in turn until all are done, and store their parameters."""
    waiting, merges = dict(parts), {}
    try:
        while waiting:
            before = _done(waiting, cast)
            for id in list(waiting):
                try:
                    waiting[id].send(None)
                except StopIteration as done:
                    merges[id] = done.value
                    cast[id].params = done.value.params
                    del waiting[id]
            if _done(waiting, cast) == before:
                raise RuntimeError(f"{', '.join(waiting)} wait for models that no node will publish")
    finally:
        for part in waiting.values():
            part.close()
    return merges


def _done(waiting: Mapping[str, Any], cast: Mapping[str, InMemoryNode]) -> tuple[int, int, int]:
    """Return a figure that changes whenever a coroutine makes progress."""
    published = sum(len(actor.published) for actor in cast.values())
    return len(waiting), published, max(actor.coordinator.submitted for actor in cast.values())
