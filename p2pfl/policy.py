"""Interface of policies: the view of the own node and of its peers, and the result of a round, a `Merge`.

A policy is one short asynchronous procedure per round; a `Coordinated` one submits its model and takes an assignment.
A complete policy:

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
from math import inf, isfinite
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import msgspec
import numpy as np

from p2pfl.cohort import MergeOfEach, UpdatesOfEach, WeightsOfEach, of_each
from p2pfl.errors import ConfigurationError, none_of
from p2pfl.fragments import Fragments, Places
from p2pfl.parameters import Layout, Parameters
from p2pfl.prediction_mixing import PredictionMixer
from p2pfl.queries import Combine, CombineParts, Loss, Mean, Query, R, Split, Train
from p2pfl.robust.candidates import Combined, MergeRule
from p2pfl.robust.clipping import ClippedModel, without_clipping
from p2pfl.robust.selection import ClipLoss
from p2pfl.update_rules import Rule

Stage = Literal["prepared", "trained", "merged"]
"""Point of a round at which a model is published: `prepared` in round 0, `trained` before merging, `merged` after."""

ReportedStage = Literal["auto", "trained", "merged"]
"""Stage of the model that counts as a node's: `auto` is, in each round, the one with the lower validation loss."""

BestBy = Literal["loss", "metric"]
"""Figure on the validation data that decides which round's model of a node is the best."""

Extras = Mapping[str, np.ndarray]
"""Small arrays by name that a policy publishes with a model."""

P = TypeVar("P")


class Update(msgspec.Struct, frozen=True, gc=False):
    """A model of one node as another node receives it. A value: never write into it.

    Attributes:
        sender: the id of the node that trained it.
        round: the round in which it was published.
        stage: the stage at which it was published.
        model: its values, float32 [P], or the model that the robust rule has clipped; `params` has the values of both.
        n_samples: number of training samples of the sender.
        extras: small arrays by name that the sender's policy published with it (DAC: its similarities).
        final: whether the sender has stopped, so that its model no longer changes.
        age: seconds since it was published, measured by the sender.
        size: bytes of the frame in which it arrived.
    """

    sender: str
    round: int
    stage: Stage
    model: Parameters | ClippedModel
    n_samples: int
    extras: Extras = {}
    final: bool = False
    age: float = 0.0
    size: int = 0

    @property
    def params(self) -> Parameters:
        """The model; float32, shape [P]."""
        model = self.model
        return model.values if isinstance(model, ClippedModel) else model


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """A named part of a node's model as another node receives it. A value: never write into it.

    Attributes:
        sender: the id of the node that trained the model.
        round: the round in which the model was published.
        stage: the stage at which it was published.
        name: the name of the part; see p2pfl.fragments.Fragments.names.
        values: its values, float32 [p].
        places: the places of these values in the model; a slice, or int [p].
        n_samples: number of training samples of the sender.
        final: whether the sender has stopped, so that its model no longer changes.
        age: seconds since the model was published, measured by the sender.
        size: bytes of the frame in which it arrived.
    """

    sender: str
    round: int
    stage: Stage
    name: str
    values: Parameters
    places: Places
    n_samples: int
    final: bool = False
    age: float = 0.0
    size: int = 0


class Merge(NamedTuple):
    """Result of a round: the new parameters, and the weight of each node's model in them (the own id included)."""

    params: Parameters
    weights: Mapping[str, float]


class Submission(msgspec.Struct, frozen=True, gc=False):
    """The model that a participant sends to the coordinator in a round. A value: never write into it.

    Attributes:
        sender: the id of the participant.
        round: the round of the submission.
        params: the trained model; float32, shape [P].
        n_samples: number of training samples of the sender.
        extras: small arrays by name that the sender's policy adds.
        previous: the extras of the assignment from which the sender continued; empty before the first one.
        start: the model from which the sender trained, float32 [P]. None if the coordinator knows it because it
            assigned it, or if the policy's step does not need it. A new coordinator rebuilds the state from this and
            `previous`.
        noise: standard deviation of the normal noise that its sender adds to each trained value in a secure sum, when the
            model is masked; see p2pfl.central_noise.
    """

    sender: str
    round: int
    params: Parameters
    n_samples: int
    extras: Extras = {}
    previous: Extras = {}
    start: Parameters | None = None
    noise: float = 0.0


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The coordinator's answer to a submission: the participant's new parameters. A value: never write into it.

    Attributes:
        params: float32, shape [P].
        weights: the weight of each participant's model in `params`.
        extras: small arrays by name that the participant returns with its next submission.
        size: bytes of the frame in which it arrived; 0 at the coordinator itself.
    """

    params: Parameters
    weights: Mapping[str, float]
    extras: Extras = {}
    size: int = 0


class PlannedTraining(NamedTuple):
    """Trainings of a policy in a run, so that the noise of a privacy budget can be planned; see p2pfl.privacy.

    Attributes:
        passes: passes over the training data in the whole run, the sum over its trainings.
        steps: steps besides these passes.
        validates: whether what the policy releases depends on validation data.
        mixing: factor of the Metropolis weights, 1 / (1 + max(d_i, d_j)) for neighbours with d_i and d_j neighbours, with
            which a node averages its model with those of all its neighbours after each single step; 0 if it does not, so
            that noise of edges would not cancel (p2pfl.correlated_noise).
    """

    passes: int
    steps: int = 0
    validates: bool = False
    mixing: float = 0.0
    submits: bool = False


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of what a node may receive, and of its trainings; 0 means no limit. p2pfl.budget defines how they are charged.

    Attributes:
        models: models received in one round, or in one step of the preparation.
        held: received models held at the same time.
        bytes: bytes of models received in one round, or in one step of the preparation.
        trainings: trainings in the whole run, the sum over its rounds.
        joules: joules that the trainings of the whole run use.
    """

    models: int = 0
    held: int = 0
    bytes: int = 0
    trainings: int = 0
    joules: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= limit < inf for limit in (self.models, self.held, self.bytes, self.trainings, self.joules)):
            raise ValueError("a budget cannot be negative or infinite; 0 means no limit")

    @property
    def receiving(self) -> bool:
        """Whether it limits what the node receives."""
        return bool(self.models or self.held or self.bytes)

    @property
    def at_once(self) -> int:
        """Number of models that may be fetched at the same time; 0 means no limit."""
        return min(self.models, self.held) or max(self.models, self.held)

    def cap(self, models: int) -> int:
        """Return `models`, or the number that may be fetched at the same time if that is lower."""
        limit = self.at_once
        return min(models, limit) if limit else models


class Me(Protocol):
    """The policy's own node. `train`, `mean` and `loss` are shortcuts for `compute` with the query of that name.

    Attributes:
        id: the node's id in the federation.
        round: the current round, from 1; 0 in the preparation.
        rounds: the planned number of rounds; the node may stop earlier.
        params: the parameters after the last round; shape [P]. If a part of the parameters is private (see
            p2pfl.parameters.Layout), a policy never sees it: P is then the number of shared values, here and below.
        initial: the common initial model of all nodes; shape [P].
        n_samples: number of training samples.
        budget: the limits of what the node may receive, and of its trainings.
        layout: the names and shapes of a model's tensors.
        kept: the names of the tensors that the task keeps private.
        robust: the name of the robust rule; see p2pfl.robust.registry.
        rule: the robust rule of `merge`; None if the weights of the policy decide alone.
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
    kept: Sequence[str]
    robust: str
    rule: MergeRule | None

    def trainings_left(self, epochs: int = 1, rule: Rule | None = None) -> float:
        """Return how many trainings the budget still allows; inf without a limit, and while their joules are not known.

        Args:
            epochs, rule: of each training, on which its joules depend; see `train`.
        """

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator of (federation seed, this node, this round, purpose)."""

    def compute(self, query: Query[R]) -> Awaitable[R]:
        """Return the answer of the node's learner to a query; see p2pfl.queries.

        Models in the query and in the answer consist of the shared values, [S].

        Raises:
            ConfigurationError: the task's learner does not answer this query.
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
        """Train from `params` (default: the node's own) on the node's training data.

        A node whose budget of trainings or of joules is used up does not train: the result is the model from which it
        would have started.

        Args:
            epochs: passes over the training data.
            proximal: (mu, anchor) adds mu/2 ||w - anchor||^2 to the loss (FedProx).
            purpose: separates the random draws of two trainings in one round.
            rule: another update rule than the gradient at the model; see p2pfl.update_rules. The task must be trained
                by gradient descent.
        """
        start = self.params if params is None else params
        return self.compute(Train(start, self.round, epochs, proximal, purpose, rule))

    def mean(self, models: Sequence[Parameters], weights: Sequence[float]) -> Awaitable[Parameters]:
        """Return the sum of weights[k] * models[k] (p2pfl.weighted_mean, computed on the training device)."""
        return self.compute(Mean(models, weights))

    def loss(self, stack: Sequence[Parameters], *, split: Split = "validation") -> Awaitable[np.ndarray]:
        """Return the mean loss of K models on the node's data; shape [K]."""
        return self.compute(Loss(list(stack), split))


class Peers(Protocol):
    """The other nodes: a policy's only way to communicate."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the peers to fetch from, sorted: the topology allows them, and none is suspected to have failed.

        If the topology has a graph for each round, these are the peers of the current round. In the preparation they are
        those of all rounds.
        """

    @property
    def weights(self) -> Mapping[str, float] | None:
        """Weights of the models of this round's neighbours, by id; the own model has the rest of 1.

        They belong to a topology with a graph for each round (p2pfl.topologies.schedules); None for any other one.
        """

    @property
    def askers(self) -> tuple[str, ...]:
        """Ids of the nodes that may fetch from this one, sorted: on a graph without directions, the neighbours."""

    def public_info(self, id: str) -> Mapping[str, Any]:
        """Return a peer's public facts (`n_samples`, and `group` if the task has groups)."""

    def round_order(self, round: int) -> Mapping[str, int]:
        """Return each node's position in a permutation common to all nodes, drawn from (federation seed, round)."""

    async def publish(self, params: Parameters, extras: Extras | None = None, stage: Stage = "trained") -> None:
        """Make `params` available to peers. May wait for slower peers, so that they do not miss an older model."""

    async def models(self, ids: Sequence[str], stage: Stage | Mapping[str, Stage] = "trained") -> list[Update]:
        """Fetch this round's models, sorted by id. A peer that does not deliver in time is left out.

        Raises:
            BudgetExceededError: the policy requests more models or bytes than the budget allows.
        """

    def within_budget(self, ids: Sequence[str]) -> Sequence[str]:
        """Return a random selection of `ids` for whose models the budget has room now, or all of them if they fit.

        The bytes of a model are an estimate: with some codecs, models of recently heard peers take fewer.
        """

    def common_rng(self, purpose: str) -> np.random.Generator:
        """Return the generator of (federation seed, this round, purpose), whose draws are equal on all nodes."""

    async def fragments(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments, stage: Stage = "trained", *, wait: bool = True
    ) -> list[Fragment]:
        """Fetch parts of this round's models, sorted by sender, then in the order of the parts.

        Each part travels in a frame of its own. A part that does not arrive in time is left out, the others are used.

        Args:
            wanted: by id, the names of the parts; see `Fragments.names`.
            fragments: how models are divided; the same on all nodes.
            wait: whether to return these parts. If not, they arrive while the policy continues, and the result has those
                that have arrived since the last call, in the order of their arrival. A peer that has not answered the
                last such request is not asked again.

        Raises:
            BudgetExceededError: the policy requests more than the budget allows; p2pfl.budget defines the share of a part.
            ConfigurationError: a name is unknown, or the policy does not declare `fetches_fragments`.
        """

    def fragments_within_budget(
        self, wanted: Mapping[str, Sequence[str]], fragments: Fragments
    ) -> Mapping[str, Sequence[str]]:
        """Return a random selection of `wanted` for which the budget has room now, or all of it if it fits."""

    async def remote_losses(self, ids: Sequence[str], params: Parameters) -> dict[str, float]:
        """Return the mean loss of `params` on each peer's training data. A peer that does not answer is left out.

        Raises:
            ConfigurationError: the policy does not declare `asks_scores`.
        """

    async def submit(
        self,
        params: Parameters,
        *,
        extras: Extras | None = None,
        previous: Extras | None = None,
        start: Parameters | None = None,
    ) -> Assignment | None:
        """Submit `params` to the coordinator and return its assignment. Return None without a coordinator, or if late.

        Submissions reach the coordinator in any topology. An assignment is charged as one model of the round; if the
        budget has no room for it, nothing is submitted and None is returned. The submissions that a coordinator
        receives are not charged to its budget.

        Args: see `Submission`. `start` is sent only if the coordinator does not know it.
        """


@runtime_checkable
class Policy(Protocol):
    """Rule by which a node selects peers and aggregates models. One instance per node; it may keep state.

    Attributes:
        reported_stage: the model that counts: it drives early stopping, and its best round is the node's result. See
            ReportedStage.

    A policy that calls `Peers.remote_losses` has `asks_scores = True`. Only then do nodes send each other losses. In the
    same way, one that calls `Peers.fragments` has `fetches_fragments = True`.

    A policy whose nodes must not wait for each other, because it fetches models of rounds that have not ended everywhere,
    has `asynchronous = True`; nodes refuse it with `mode = "synchronous"`. One whose nodes must wait, because some of its
    rounds take no time or because it needs the models of one round, has `synchronous = True`. One that adds up what it
    receives has `counts_models = True`; nodes refuse it with a codec that loses digits.

    A policy whose nodes mix their predictions with their own samples or with other models also has `memory`
    (p2pfl.prediction_mixing). All reported figures are then those of the mixed predictions.

    A coordinated policy whose step assigns to all the mean of all models by samples, without extras, has
    `only_mean = True`. It can then run with secure sums, in which its step never sees a model.

    A policy that may run under a privacy budget has a method `under_privacy`; see `planned_training`.

    A policy with additional content for reports implements SupportsPreselection or SupportsSimilarities.

    A class whose procedures also compute with the values of all nodes of a simulation at once has `cohort = True`, or a
    property of that name; see p2pfl.cohort. The simulator then runs one policy object for all nodes, where it can. A
    subclass does not inherit this, because its procedures may do what has no form for cohorts.
    """

    reported_stage: ReportedStage

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        """Run once before round 1."""

    async def round(self, me: Me, peers: Peers) -> Merge:
        """Run one round: train, publish, select, fetch, aggregate."""

    def state(self) -> dict[str, Any]:
        """Return the data that `restore` needs after a restart: numbers, strings, lists and dicts of them."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""


@runtime_checkable
class Coordinated(Policy, Protocol):
    """A policy whose aggregation is one joint step of the coordinator. Its `round` calls `peers.submit`."""

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Make a round's assignments. Pure: it reads the policy's options and changes nothing.

        Args:
            submissions: one from each participant that submitted in time, in any order.
            state: the state that the previous step returned; empty in the first step and after a change of coordinator.

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
        """Return the ids of each cluster's members before the step, and their similarities, float64 [n, n]. Pure.

        Args: see `Coordinated.step`.
        """


PolicyStep = Callable[[Sequence[Submission], Mapping[str, Any], Layout], tuple[dict[str, Assignment], dict[str, Any]]]
"""See `Coordinated.step`."""


def built_in(name: str) -> Callable[[type[P]], type[P]]:
    """Mark a class in p2pfl.policies as the policy of this name; p2pfl.policies finds the mark in the source."""
    return lambda policy: policy


def check_epochs(epochs: int, name: str = "epochs") -> None:
    """Raise ValueError if a policy's option is less than one epoch of training."""
    if epochs < 1:
        raise ValueError(f"{name} must be 1 or more, got {epochs}")


def memory_of(policy: Policy) -> PredictionMixer | None:
    """Return the memory with which a policy's models are evaluated; None without one."""
    memory: PredictionMixer | None = getattr(policy, "memory", None)
    return memory


def check_stage(policy: Policy) -> None:
    """Raise ConfigurationError if a policy reports a stage that does not exist."""
    if policy.reported_stage not in (stages := get_args(ReportedStage)):
        raise none_of(f"reported_stage of {type(policy).__name__}", policy.reported_stage, stages)


def asks_scores(policy: Policy) -> bool:
    """Return whether a policy asks peers for losses on their data."""
    return bool(getattr(policy, "asks_scores", False))


def fetches_fragments(policy: Policy) -> bool:
    """Return whether a policy fetches parts of models."""
    return bool(getattr(policy, "fetches_fragments", False))


def never_waits(policy: Policy) -> bool:
    """Return whether a policy needs nodes that do not wait for each other."""
    return bool(getattr(policy, "asynchronous", False))


def always_waits(policy: Policy) -> bool:
    """Return whether a policy needs nodes that wait for each other."""
    return bool(getattr(policy, "synchronous", False))


def counts_models(policy: Policy) -> bool:
    """Return whether a policy adds up what it receives, so that a codec with losses would change the sum of all models."""
    return bool(getattr(policy, "counts_models", False))


def needs_only_mean(policy: Policy) -> bool:
    """Return whether a coordinated policy's step needs no more than the mean of all models by samples.

    It says so with `only_mean = True`. A subclass does not inherit this, because its step may need more.
    """
    return bool(vars(type(policy)).get("only_mean", False))


def check_topology(policy: Policy, changes: bool) -> None:
    """Raise ConfigurationError if a policy cannot run with a topology.

    A policy that selects its peers once for all rounds has `selects_once = True`, or implements SupportsPreselection. One
    that takes its weights from the topology has `needs_weights = True`.

    Args:
        changes: whether the topology has a graph for each round, with weights.
    """
    name = type(policy).__name__
    if changes and (isinstance(policy, SupportsPreselection) or getattr(policy, "selects_once", False)):
        raise ConfigurationError(
            f"the policy {name} selects its peers once, before round 1, and needs a topology that never changes",
            "policy",
            "topology",
        )
    if changes and isinstance(policy, Coordinated):
        raise ConfigurationError(
            f"the policy {name} receives its models from a coordinator, so a graph for each round has no effect on it; leave"
            " the topology out",
            "policy",
            "topology",
        )
    if changes and counts_models(policy):
        raise ConfigurationError(
            f"the policy {name} adds up what it receives, and needs a topology that never changes; on one with a graph for"
            ' each round use the policy dsgd with weights = "graph"',
            "policy",
            "topology",
        )
    if not changes and getattr(policy, "needs_weights", False):
        raise ConfigurationError(
            f'the policy {name} with weights = "graph" needs a topology with weights: one with a graph for each round,'
            " such as base-k",
            "policy",
            "topology",
        )


def planned_training(policy: Policy, rounds: int) -> PlannedTraining | str:
    """Return what a policy plans to train in a run, or why a node with a privacy budget must refuse it.

    A policy says so in its method `under_privacy(rounds)`. With a PlannedTraining it states that what leaves a node (models,
    extras, submissions, requests, and when it sends them) depends on training data through trained models only. A subclass
    does not inherit the method, because its procedures may release more.
    """
    if "under_privacy" not in vars(type(policy)):
        return (
            "it does not say what leaves a node; if all of it follows from trained models, give the class a method"
            " under_privacy(self, rounds) that returns p2pfl.policy.PlannedTraining"
        )
    found: PlannedTraining | str = policy.under_privacy(rounds)  # type: ignore[attr-defined]
    return found


def refused_under_privacy(reason: str) -> Any:
    """Return the method `under_privacy` of a policy that must not run under a privacy budget; see `planned_training`."""
    return lambda policy, rounds: reason  # as an attribute, it is no override by its type


def passes_and_steps(rounds: int, epochs: int, steps: int) -> PlannedTraining:
    """Return what a policy plans that trains for so many epochs in each round or, if `steps` is not 0, so many steps."""
    return PlannedTraining(0, rounds * steps) if steps else PlannedTraining(rounds * epochs)


def runs_as_cohort(policy: Policy) -> bool:
    """Return whether a policy's procedures also compute with the values of all nodes at once; see p2pfl.cohort."""
    return "cohort" in vars(type(policy)) and bool(getattr(policy, "cohort", False))


def _samples_of_each(me: Any, updates: UpdatesOfEach) -> WeightsOfEach:
    return WeightsOfEach(updates.ids, updates.n_samples[updates.ids.peers], me.n_samples)


@of_each(_samples_of_each)
def samples(me: Me, updates: Sequence[Update]) -> dict[str, int]:
    """Return the number of training samples of the own node and of each update's sender."""
    counts = {me.id: me.n_samples}
    for update in updates:
        counts[update.sender] = update.n_samples
    return counts


async def _merge_of_each(me: Any, own: Any, updates: UpdatesOfEach, weights: WeightsOfEach) -> MergeOfEach:
    return await updates.mix(own, updates.published, weights)


@of_each(_merge_of_each)
async def merge(me: Me, own: Parameters, updates: Sequence[Update], weights: Mapping[str, float]) -> Merge:
    """Return the weighted mean of the own model and the updates, summed in the order of their ids.

    The robust rule of the node, `me.rule`, may change the weights, or replace the mean.

    Args:
        own: the node's own model, shape [P].
        weights: by id, including the own id; they sum to 1.
    """
    given = {update.sender: update for update in updates}
    ids = sorted({*given, me.id})
    if me.rule is not None and any(weights[id] for id in given):
        return await _merge_by_rule(me, me.rule, {id: own if id == me.id else given[id].params for id in ids}, weights)
    models = [own if id == me.id else given[id].model for id in ids]
    return Merge(await me.mean(*without_clipping(models, [*map(weights.__getitem__, ids)])), weights)


async def _merge_by_rule(me: Me, rule: MergeRule, models: Mapping[str, Parameters], weights: Mapping[str, float]) -> Merge:
    """Return the merge of models by a robust rule, in their order. Models of peers without weight are left out."""
    ids = [id for id in models if id == me.id or weights[id] > 0]
    stack = [models[id] for id in ids]
    losses = None
    if rule.needs_losses:
        losses = await (relative_losses if isinstance(rule, ClipLoss) else own_losses)(me, stack)
    query = Combine(stack, [weights[id] for id in ids], rule, ids.index(me.id), losses)
    combined: Combined = await me.compute(query)
    return Merge(combined.params, dict.fromkeys(models, 0.0) | dict(zip(ids, combined.weights, strict=True)))


async def relative_losses(me: Me, models: Sequence[Parameters]) -> list[float]:
    """Return the losses of models on the node's validation data, divided by that of the initial model if that is above 1.

    They are NaN without validation data.
    """
    losses = await me.loss([*models, me.initial])
    *relative, initial = losses.tolist()
    scale = max(1.0, abs(initial)) if isfinite(initial) else 1.0
    return [loss / scale for loss in relative]


async def own_losses(me: Me, models: Sequence[Parameters]) -> list[float]:
    """Return the losses of models on the node's validation data; without such data, on its training data."""
    losses: list[float] = (await me.loss(models)).tolist()
    return losses if any(isfinite(loss) for loss in losses) else (await me.loss(models, split="train")).tolist()


async def merge_fragments(
    me: Me, own: Parameters, received: Sequence[Fragment], weights: Mapping[str, float] | None = None
) -> Merge:
    """Return for each value of a model the mean of the own one and of those in the received fragments that contain it.

    Of several fragments of one sender and part the last counts. The reported weight of a node is its mean weight over all
    values. A coordinate-wise robust rule of the node replaces the mean in each part.

    Args:
        own: the node's own model, shape [P].
        received: parts of one division.
        weights: by id, including the own id, in any proportion; by default all are equal.
    """
    given = {(fragment.name, fragment.sender): fragment for fragment in received}
    parts: dict[str, dict[str, Fragment]] = {}
    for name, sender in sorted(given):
        parts.setdefault(name, {})[sender] = given[name, sender]
    models, shares, places = [], [], []
    for senders in parts.values():
        ids = sorted({me.id, *senders})
        at = next(iter(senders.values())).places
        models.append([own[at] if id == me.id else senders[id].values for id in ids])
        each = [1.0 if weights is None else float(weights[id]) for id in ids]
        shares.append([weight / sum(each) for weight in each])
        places.append((at, ids))
    merged, total = own.copy(), {me.id: 0.0} | {sender: 0.0 for _, sender in given}
    combined = await me.compute(CombineParts(models, shares, [ids.index(me.id) for _, ids in places], me.rule))
    covered = 0
    for (at, ids), part in zip(places, combined, strict=True):
        merged[at] = part.params
        covered += len(part.params)
        for id, share in zip(ids, part.weights, strict=True):
            total[id] += share * len(part.params) / len(own)
    total[me.id] += (len(own) - covered) / len(own)
    return Merge(merged, total)
