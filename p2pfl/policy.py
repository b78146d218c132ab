"""Interface of policies: their view of the own node and of its peers, and their result.

A policy is one short asynchronous procedure per round. A complete one:

    class Everyone:
        reported_stage = "merged"

        async def prepare(self, me, peers):
            return Merge(me.params, {me.id: 1.0})

        async def round(self, me, peers):
            trained = await me.train()
            await peers.publish(trained)
            updates = await peers.models(peers.ids)
            return await merge(me, trained, updates, fedavg(samples(me, updates)))

        def state(self):
            return {}

        def restore(self, state):
            pass
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np

from p2pfl.parameters import Layout, Parameters
from p2pfl.prediction_mixing import PredictionMixer
from p2pfl.queries import Loss, Mean, Query, R, Split, Train
from p2pfl.update_rules import Rule

Stage = Literal["prepared", "trained", "merged"]
"""Which model of a round: `prepared` at round 0, `trained` before a node collaborates, `merged` after."""

Robust = Literal["none", "median-clip"]
"""The protection against members that lie that a federation has agreed on; see p2pfl.algorithms.robust_aggregation."""

Extras = Mapping[str, np.ndarray]
"""What a policy publishes with a model: small arrays by name."""


class Update(msgspec.Struct, frozen=True, gc=False):
    """A model of one node, as another one gets it. A value: nothing in it may be written.

    Attributes:
        sender: the id of the node that trained it.
        params: float32, shape [P].
        n_samples: how many training samples the sender has.
        extras: what the sender's policy published with it (DAC: its similarities), small arrays by name.
        final: the sender has stopped and will not change any more.
        age: seconds since it was published, measured by the sender.
        size: bytes of the frame that brought it.
    """

    sender: str
    round: int
    stage: Stage
    params: Parameters
    n_samples: int
    extras: Extras = {}
    final: bool = False
    age: float = 0.0
    size: int = 0


class Merge(NamedTuple):
    """What a round makes: the new parameters, and how much each node's model counted in them (the own id included)."""

    params: Parameters
    weights: Mapping[str, float]


class Submission(msgspec.Struct, frozen=True, gc=False):
    """What a participant gives the coordinator in a round. A value: nothing in it may be written.

    Attributes:
        params: as they were trained; float32, shape [P].
        n_samples: how many training samples the sender has.
        extras: what its policy says with it, small arrays by name.
        previous: the extras of the assignment from which it went on; none before the first.
        start: the model from which it trained, float32 [P]; None where the coordinator knows it, as it has assigned it, and
            where the policy's step does not ask for it. With `previous` it is what a successor rebuilds the state from.
    """

    sender: str
    round: int
    params: Parameters
    n_samples: int
    extras: Extras = {}
    previous: Extras = {}
    start: Parameters | None = None


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """What the coordinator gives back to a participant: its new parameters. A value, too.

    Attributes:
        params: float32, shape [P].
        weights: how much each participant's model counted in them.
        extras: what the participant says again with its next submission, small arrays by name.
        size: bytes of the frame that brought it; 0 at the coordinator itself.
    """

    params: Parameters
    weights: Mapping[str, float]
    extras: Extras = {}
    size: int = 0


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node may receive; 0 means no limit. How it is charged stands in p2pfl.budget.

    Attributes:
        models: models received in one round, or in one step of the preparation.
        held: received models held at once.
        bytes: bytes of models received in one round, or in one step of the preparation.
    """

    models: int = 0
    held: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.models, self.held, self.bytes) < 0:
            raise ValueError("a budget cannot be negative; 0 means no limit")

    @property
    def at_once(self) -> int:
        """How many models may be had at once; 0 means no limit."""
        return min((limit for limit in (self.models, self.held) if limit), default=0)

    def cap(self, models: int) -> int:
        """Return how many of so many models may be had at once."""
        return min(models, self.at_once) if self.at_once else models


class Me(Protocol):
    """The policy's own node. `train`, `mean` and `loss` are short for `compute` with such a query.

    Attributes:
        id: by which the federation knows it.
        round: that the node is in, from 1; 0 in the preparation.
        rounds: how many there will be, unless the node stops early.
        params: as the last round left them; shape [P]. Where a part of the parameters is private (see
            p2pfl.parameters.Layout), a policy sees nothing of it: P is the number of shared values everywhere here.
        initial: the model that all nodes have started from; shape [P].
        n_samples: of training.
        budget: what the node may receive.
        layout: what the values of a model are.
        robust: the protection against members that lie.
    """

    __slots__ = ()

    id: str
    round: int
    rounds: int
    params: Parameters
    initial: Parameters
    n_samples: int
    budget: Budget
    layout: Layout
    robust: Robust

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator of (federation seed, this node, this round, purpose)."""

    def compute(self, query: Query[R]) -> Awaitable[R]:
        """Return the answer of the node's learner to a query; see p2pfl.queries.

        Models in the query and in the answer are of shared values, [S].

        Raises:
            ConfigurationError: the task's learner does not answer such a query.
        """

    def train(
        self,
        params: Parameters | None = None,
        *,
        epochs: int = 1,
        proximal: tuple[float, Parameters] | None = None,
        purpose: str = "train",
        rule: Rule | None = None,
    ) -> Awaitable[Parameters]:
        """Train from `params` (default: the own ones) on the own training data.

        Args:
            proximal: (mu, anchor) adds mu/2 ||w - anchor||^2 to the loss (FedProx).
            purpose: sets apart the random draws of two trainings in one round.
            rule: another way to step than along the gradient at the model; see p2pfl.update_rules. The task must be one
                that is
                trained along gradients.
        """
        start = self.params if params is None else params
        return self.compute(Train(start, self.round, epochs, proximal, purpose, rule))

    def mean(self, models: Sequence[Parameters], weights: Sequence[float]) -> Awaitable[Parameters]:
        """Return the sum of weights[k] * models[k] (p2pfl.weighted_mean, computed where training is)."""
        return self.compute(Mean(models, weights))

    def loss(self, stack: Sequence[Parameters], *, split: Split = "validation") -> Awaitable[np.ndarray]:
        """Return the mean loss of K models on the own data; shape [K]."""
        return self.compute(Loss(list(stack), split))


class Peers(Protocol):
    """All that a policy may do to the outside."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Whom I may fetch from, as the topology allows it and they are not suspected; sorted."""

    def public_info(self, id: str) -> Mapping[str, Any]:
        """Return what a peer says of itself in public (`n_samples`, and `group` where the task has groups)."""

    def round_order(self, round: int) -> Mapping[str, int]:
        """Return each node's place in a permutation that is common to all, drawn from (federation seed, round)."""

    async def publish(self, params: Parameters, extras: Extras | None = None, stage: Stage = "trained") -> None:
        """Let peers fetch `params`. May wait until slower peers are near enough not to lose an older model."""

    async def models(self, ids: Sequence[str], stage: Stage | Mapping[str, Stage] = "trained") -> list[Update]:
        """Fetch this round's models, sorted by id; a peer that cannot be had in time is left out.

        Raises:
            BudgetExceededError: more models or bytes than the budget allows.
        """

    def within_budget(self, ids: Sequence[str]) -> Sequence[str]:
        """Return those of `ids` for whose models the budget has room now; which ones, is drawn.

        Bytes are those that the models are expected to take: with some codecs fewer of peers that were heard lately.
        """

    async def remote_losses(self, ids: Sequence[str], params: Parameters) -> dict[str, float]:
        """Return the mean loss of `params` on each peer's training data; a peer that does not answer is left out.

        Raises:
            ConfigurationError: the policy does not say that it asks for losses, in `asks_scores`.
        """

    async def submit(
        self,
        params: Parameters,
        *,
        extras: Extras | None = None,
        previous: Extras | None = None,
        start: Parameters | None = None,
    ) -> Assignment | None:
        """Submit `params` to the coordinator and return what it assigns; None if there is none, or it was too late.

        It goes through the coordinator whatever the topology is. An assignment is charged as one model of the round; where
        the budget has no room for it nothing is submitted, and None comes back. What the coordinator receives of others is
        not charged to its budget.

        Args: see `Submission`. `start` only travels where the coordinator does not know it.
        """


@runtime_checkable
class Policy(Protocol):
    """How a node selects peers and aggregates. One instance per node; it may remember what it learnt.

    Attributes:
        reported_stage: the snapshot that drives early stopping and is reported where it was best on validation.

    A policy that calls `Peers.scores` has `asks_scores = True`: only then do nodes tell each other losses.

    A policy whose nodes predict together with their own samples, or with other models, also has `memory`
    (p2pfl.prediction_mixing); then all that is reported of models is that of the mixed predictions.

    A policy with something to show in reports implements SupportsPreselection or SupportsSimilarities.
    """

    reported_stage: Stage

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        """Run once before round 1."""

    async def round(self, me: Me, peers: Peers) -> Merge:
        """Run one round: train, publish, select, fetch, aggregate."""

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs to go on after a restart: numbers, strings, lists and dicts of them."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a state that `state` returned."""


@runtime_checkable
class Coordinated(Policy, Protocol):
    """A policy whose aggregation is one step, made for all by the coordinator. Its `round` calls `peers.submit`."""

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Make a round's assignments. Pure: it reads the policy's options, and neither writes nor remembers anything.

        Args:
            submissions: of those who were there in time, one each, in any order.
            state: what the step before has returned; empty in the first one, and after a change of coordinator.

        Returns:
            An assignment for each sender, and the state for the next step.
        """


@runtime_checkable
class SupportsPreselection(Protocol):
    """A policy that selects peers once, in the preparation (DPFL). Reports show the graph of these selections."""

    def preselection(self) -> Sequence[str]:
        """Return the ids of the peers that were selected in the preparation."""


@runtime_checkable
class SupportsSimilarities(Protocol):
    """A coordinated policy that compares models (FedPref, CFL). Reports show the matrices."""

    def similarities(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> Sequence[tuple[Sequence[str], np.ndarray]]:
        """Return the ids of each cluster's members before the step, and their similarities, float64 [n, n].

        Args: as of `Coordinated.step`. Pure, too.
        """


Step = Callable[[Sequence[Submission], Mapping[str, Any], Layout], tuple[dict[str, Assignment], dict[str, Any]]]
"""See `Coordinated.step`."""


def check_epochs(epochs: int, name: str = "epochs") -> None:
    """Raise ValueError where a policy's option asks for no epoch of training."""
    if epochs < 1:
        raise ValueError(f"{name} must be 1 or more, got {epochs}")


def memory_of(policy: Policy) -> PredictionMixer | None:
    """Return with which memory a policy's models are evaluated; None without one."""
    memory: PredictionMixer | None = getattr(policy, "memory", None)
    return memory


def asks_scores(policy: Policy) -> bool:
    """Return whether a policy asks peers for losses on their data."""
    return bool(getattr(policy, "asks_scores", False))


def samples(me: Me, updates: Sequence[Update]) -> dict[str, int]:
    """Return the number of training samples of the own node and of each update's sender."""
    return {me.id: me.n_samples} | {update.sender: update.n_samples for update in updates}


async def merge(me: Me, own: Parameters, updates: Sequence[Update], weights: Mapping[str, float]) -> Merge:
    """Return the weighted mean of the own model and the updates, summed in the order of their ids.

    Args:
        own: the own model, shape [P].
        weights: by id, the own one included; they sum to 1.
    """
    models = {update.sender: update.params for update in updates}
    models[me.id] = own
    ids = sorted(models)
    return Merge(await me.mean([models[id] for id in ids], [weights[id] for id in ids]), weights)
