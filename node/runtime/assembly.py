"""Assembly of a running node from its folder.

Everything that differs between machines and the simulator is chosen here: transports, exchange, trainer, store,
observers. A node without a federation gets an exchange without peers. Additional rounds of a federation reach a running
node through `follow_extensions`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any, NamedTuple

from p2pfl._util.binding import split_name
from p2pfl._util.event_log import EventLogger
from p2pfl._util.machine import amount, free_memory
from p2pfl._util.printable import plural
from p2pfl.central_noise import check_central
from p2pfl.errors import ConfigurationError, name_source
from p2pfl.node.checkpoint import FileStore
from p2pfl.node.connectivity import Connectivity, Supervisor
from p2pfl.node.coordination.election_runner import Bound, ElectionRunner, FileVotes, MemoryVotes, VoteSigner, timing_of
from p2pfl.node.exchange.base import NeighbourRoles
from p2pfl.node.exchange.message_exchange import MessageExchange, federation_id, max_frame, message_exchange
from p2pfl.node.federation import agreement, loading
from p2pfl.node.federation.agreement import Agreement
from p2pfl.node.federation.invitations import open_service
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.membership_file import describe_fork, may_admit
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.federation.rule_links import LinkKeeper
from p2pfl.node.folder import config as folders
from p2pfl.node.folder.incarnation import last_published
from p2pfl.node.node import Node, Observer
from p2pfl.node.peering.control_messages import MembershipGossip
from p2pfl.node.peering.peering_config import DialLimits, Discovery, Guard, PeeringOptions
from p2pfl.node.privacy_ledger import PrivacyLedger, check_without_budget, read_ledger
from p2pfl.node.status.observer import StatusObserver, TrackingObserver
from p2pfl.node.trainer import ThreadTrainer
from p2pfl.policy import Budget, Coordinated, Merge, PlannedTraining, asks_scores, fetches_fragments
from p2pfl.privacy import (
    EDGE_CLAIMS,
    MOST_PUBLIC,
    PrivacyPlan,
    check_private_policy,
    check_private_settings,
    claim_of,
)
from p2pfl.protocols.election import Electorate
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.transport import Transport
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.wire.payload import check_weights
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Task, batch_size_of, samples_of
from p2pfl.topologies.schedules import GraphByRound
from p2pfl.tracking.tracker import Tracking, factories

if TYPE_CHECKING:  # a node without a coordinator, or without noise of neighbours, does not load them
    from p2pfl.correlated_noise import Around
    from p2pfl.node.coordination.secure_rounds import OpenedRounds
    from p2pfl.node.coordination.submissions import Coordination
    from p2pfl.node.edge_noise import EdgeSecrets, Neighbour

TRACK = "track"  # folder of the trackers' files
PROBING = 1.0  # seconds between probes of silent peers in a round


class Parts(NamedTuple):
    """Parts of a process: what it runs, and what it shows.

    Attributes:
        tracking_observer: None without trackers.
        connectivity, members: None for a node that belongs to no federation.
        about: facts that the status shows.
    """

    node: Node
    exchange: MessageExchange
    status_observer: StatusObserver
    tracking_observer: TrackingObserver | None
    connectivity: Connectivity | None
    members: MembershipSync | None
    about: dict[str, Any]


class _Connected(NamedTuple):
    exchange: MessageExchange
    connectivity: Connectivity | None = None
    members: MembershipSync | None = None
    rounds: GraphByRound | None = None
    tokens_unanswered: str = ""  # why a node with an admission key cannot answer tokens


class Assembly:
    """Factory of the parts of a node; its event loop must run.

    Args:
        log: receives the events of all parts.
        close: receives the parts that must be closed when the node ends.
        supervisor: counts the faults of its parts.

    Raises:
        ConfigurationError: the configuration is wrong, or a file of the folder cannot be read or written.
        IdentityError: the key cannot be used.
    """

    def __init__(self, ready: LoadedNode, log: EventLogger, close: ExitStack, supervisor: Supervisor) -> None:
        self._ready = ready
        self._config = config = ready.config
        self._log = log
        self._supervisor = supervisor
        self._identity = folders.own_identity(ready.folder)
        self._task: Task = loading.task_of(ready)
        for facts in self._task.data_facts:
            log.info(f"data: {facts.line}", kind="data", source=facts.source, samples=facts.samples)
            for note in facts.notes:
                log.warning(f"data: {note}", kind="data-note")
        for note in self._task.data_notes:
            log.warning(f"data: {note}", kind="data-note")
        for note in self._task.module_notes:
            log.warning(note, kind="module-note")
        self._initial = self._task.initial(config.seed)
        if ready.agreement is not None:
            agreement.same_model(ready.agreement, self._task, self._initial)
        self._policy = loading.policy_of(ready)
        self._coordinated = isinstance(self._policy, Coordinated)
        self._edges: EdgeSecrets | None = None
        self._ledger = self._open_ledger()
        with name_source(ready.source(("device", *loading.TASK_KEYS))):
            learner = self._task.learner(RandomStreams(config.seed, config.name), config.device)
        self._trainer = ThreadTrainer(learner, samples=partial(samples_of, self._task))
        close.callback(self._trainer.close)
        self._tracking_observer = self._open_trackers(close)

    def parts(self) -> Parts:
        """Return the parts of the node. Call this only once, because it counts a start."""
        ready, config, log = self._ready, self._config, self._log
        incarnation = folders.next_incarnation(ready.folder, log)
        if ready.membership is None or ready.agreement is None:
            connected = self._alone(incarnation)
        else:
            connected = self._connect(ready.membership, ready.agreement, incarnation)
        exchange, connectivity, members, rounds, tokens_unanswered = connected
        if self._edges is not None:
            self._edges.neighbours = partial(_present, exchange)
        status_observer = StatusObserver(ready.folder / folders.STATUS, exchange, log, faults=self._supervisor.faults)
        tracking_observer = self._tracking_observer
        observers: list[Observer] = [status_observer, LogFetch(exchange.peering.gossip)]
        if tracking_observer is not None:
            observers.append(tracking_observer)
        node = Node(
            config.name,
            [config.name] if ready.membership is None else list(ready.membership.members),
            task=self._task,
            policy=self._policy,
            trainer=self._trainer,
            exchange=exchange,
            settings=config,
            store=FileStore(ready.folder / folders.CHECKPOINT, log),
            observers=observers,
            budget=config.budget,
            lenient=True,
            initial=self._initial,
            resume_after=last_published(ready.folder / folders.PUBLISHED, log=log),
            end=config.end,
            rounds=rounds,
            privacy=None if self._ledger is None else self._ledger.plan,
            ledger=self._ledger,
            edges=self._edges,
        )
        if ready.membership is not None:
            follow_extensions(ready.membership, node, exchange, status_observer)
            follow_forks(ready.membership, status_observer)
        about: dict[str, Any] = {"task": config.task["name"], "policy": config.policy["name"]}
        if ready.agreement is not None and ready.membership is not None:
            rings = agreement.ring_rule(ready.agreement.topology, 0) is not None
            sparse = (ready.agreement.edges != "all" or rings) and not self._coordinated
            about["federation"], about["federation_id"] = ready.agreement.name, ready.membership.federation.hex()
            about["topology"] = "sparse" if sparse else "complete"
            if ready.agreement.greatest_epsilon:
                about["greatest_epsilon"] = ready.agreement.greatest_epsilon
        if tokens_unanswered:
            about["tokens_unanswered"] = tokens_unanswered
        if connectivity is not None:
            about["configured_network"] = connectivity.describe()
        return Parts(node, exchange, status_observer, tracking_observer, connectivity, members, about)

    def _open_ledger(self) -> PrivacyLedger | None:
        """Return the ledger of the node's privacy budget; None without one.

        Raises:
            ConfigurationError: the budget does not fit the task, the policy, the settings or what the node has done before.
        """
        config, task, folder = self._config, self._task, self._ready.folder
        privacy, n_samples = config.privacy, task.n_samples
        if not privacy.epsilon:
            check_without_budget(folder, folders.CONFIG)
            return None
        with name_source(self._ready.source(("privacy",))):
            planned = check_private_policy(privacy, self._policy, config.rounds)
            check_private_settings(privacy, config.patience, config.robust)
            task.check_private()
            threshold = config.secure_threshold if config.secure_sums else 0
            if privacy.central:
                check_central(
                    privacy,
                    self._policy,
                    planned,
                    task,
                    rounds=config.rounds,
                    threshold=threshold,
                    batch_size=batch_size_of(task),
                )
            if privacy.correlated:
                self._check_correlated(planned)
            most = MOST_PUBLIC - privacy.central - len(EDGE_CLAIMS) * privacy.correlated
            if len(task.public_info) > most:
                raise ConfigurationError(
                    f"under a privacy budget public_info of a task has at most {most} entries, because the node adds"
                    f" its claim; the task has {len(task.public_info)}",
                    "privacy",
                    "task",
                )
            ledger = PrivacyLedger(
                folder,
                privacy,
                planned,
                n_samples=n_samples,
                batch_size=batch_size_of(task),
                secret=os.urandom,
                found=read_ledger(folder),
                log=self._log,
                threshold=threshold,
            )
            if privacy.correlated:
                self._edges = self._open_edges(ledger.plan, planned)
                ledger.with_others = self._edges is not None
        plan = ledger.plan
        noise = plan.share or plan.mechanism.noise
        spent = plan.epsilon(ledger.steps)
        if self._ready.agreement is not None:
            agreement.check_spent(privacy, spent, self._ready.agreement)
        self._log.info(
            f"privacy budget: epsilon {spent:.3g} of {privacy.epsilon:g} spent at delta {privacy.delta:g};"
            f" {ledger.steps:,} of {plan.steps:,} steps, noise {noise:.4g}",
            kind="privacy",
            epsilon=spent,
            budget=privacy.epsilon,
            delta=privacy.delta,
        )
        if ledger.colluding is not None:
            self._log.info(
                f"privacy budget: what is spent holds against {plural(ledger.colluding, 'member')} who may collude, because"
                " noise of others has protected this node",
                kind="privacy",
                colluding=ledger.colluding,
            )
        if privacy.delta >= 1 / n_samples:
            self._log.warning(
                f"privacy.delta is 1 / samples or more ({n_samples:,} samples): the bound may fail for a whole sample; lower"
                " it",
                kind="privacy",
            )
        return ledger

    def _check_correlated(self, planned: PlannedTraining) -> None:
        """Raise ConfigurationError if noise that neighbours add with this node would not cancel."""
        from p2pfl.correlated_noise import check_correlated

        ready, config = self._ready, self._config
        check_correlated(
            [planned.mixing],
            [self._task],
            fixed=ready.agreement is None or not ready.agreement.topology,
            nodes=max(len(_learning_members(ready)), config.members),
            mode=config.mode,
            robust=config.robust,
            codec=split_name("codec", config.codec)[0],
            limited=config.budget != Budget(),
        )

    def _open_edges(self, plan: PrivacyPlan, planned: PlannedTraining) -> EdgeSecrets | None:
        """Return the noise that neighbours add with this node; None if it has no use in this federation."""
        from p2pfl.correlated_noise import NO_USE, needed_of, offer_of
        from p2pfl.node.edge_noise import EdgeSecrets

        ready, config, task = self._ready, self._config, self._task
        around = _graph(ready)
        needed = needed_of(plan, min(batch_size_of(task), task.n_samples))
        offer = offer_of(needed, around, plan.privacy.colluding, planned.mixing)
        if offer is None or ready.membership is None:
            self._log.warning(NO_USE, kind="privacy")
            return None
        self._log.info(
            f"noise that cancels: own noise {plan.mechanism.noise * offer.own / needed:.4g} in place of"
            f" {plan.mechanism.noise:.4g} while all neighbours are present, against"
            f" {plural(plan.privacy.colluding, 'member')} who may collude",
            kind="privacy",
        )
        return EdgeSecrets(
            config.name,
            self._identity.public,
            ready.membership.federation,
            privacy=plan.privacy,
            needed=needed,
            offer=offer,
            secret=os.urandom,
        )

    def _open_trackers(self, close: ExitStack) -> TrackingObserver | None:
        """Return the observer that feeds the trackers of the configuration; None if it names none."""
        config, log = self._config, self._log
        with name_source(self._ready.source(("track",))):
            found = factories(config.track.tools)
        if not found:
            return None
        folder = Path(config.track.folder).expanduser() if config.track.folder else self._ready.folder / TRACK
        tracking = Tracking(found, folder, lambda text: log.warning(text, kind="tracker-failed"))
        close.callback(tracking.close)
        tracking_observer = TrackingObserver(tracking, config)
        close.callback(tracking_observer.end)  # before the trackers are closed: the result ends the run
        return tracking_observer

    def _alone(self, incarnation: int) -> _Connected:
        """Return the exchange of a node without a federation, which does not listen."""
        name = self._config.name
        election = ElectionRunner(
            name, Electorate(0, frozenset([name]), (name,)), MemoryVotes(), incarnation=1, seed=self._config.seed
        )
        exchange = message_exchange(
            name,
            NeighbourRoles(members={}),
            transport=InProcessNetwork().transport(name),
            federation=federation_id(name),
            agreed={},
            coordination=self._coordination(election),
            **self._learning(incarnation),
        )
        return _Connected(exchange)

    def _connect(self, membership: Membership, agreed: Agreement, incarnation: int) -> _Connected:
        """Return the exchange with the other members of a federation, and its transports."""
        ready, config, size = self._ready, self._config, self._task.layout.shared.size
        guard = Guard(membership, asyncio.get_running_loop().time)
        discovery = Discovery()
        connectivity = Connectivity(
            config,
            self._identity,
            access=guard,
            most=max_frame(size, self._coordinated),
            incarnation=incarnation,
            discovery=discovery,
            supervisor=self._supervisor,
            log=self._log,
        )
        neighbourhood = Neighbourhood(ready, connectivity.addresses, self._coordinated)
        if neighbourhood.links is not None:
            neighbourhood.links.enter(1 + last_published(ready.folder / folders.PUBLISHED, log=self._log))
        service, unanswered = open_service(
            ready.folder, membership, config.passphrase_file, self._log, told=neighbourhood.told
        )
        options = PeeringOptions(
            access=guard,
            guard=guard,
            period=PROBING,
            rest=config.probe_period,
            dialling=DialLimits(),
            discovery=discovery,
            answer_join=None if service is None else service.answer,
            on_fault=self._supervisor.fault,
            log=self._log,
        )
        exchange = member_exchange(
            ready,
            neighbourhood,
            transport=connectivity.transport,
            options=options,
            coordination=self._coordination(self._election(membership, neighbourhood.electorate(), incarnation)),
            **self._learning(incarnation),
        )
        if neighbourhood.needs_log or may_admit(ready.folder):
            exchange.peering.gossip.fetching = True
        election, key = exchange.election, self._identity.public
        sync = MembershipSync(ready, key, neighbourhood, exchange.peering, election, log=self._log)
        rounds: GraphByRound | None = neighbourhood.rounds
        if neighbourhood.links is not None:
            keeper = LinkKeeper(
                neighbourhood.links,
                exchange.peering,
                name_of=membership.name_of,
                follow=sync.follow,
                deadline=config.deadline,
            )
            rounds = keeper if neighbourhood.links.rule.changing else None
        return _Connected(exchange, connectivity, sync, rounds, unanswered)

    def _election(self, membership: Membership, electorate: Electorate, incarnation: int) -> ElectionRunner:
        config = self._config
        if self._coordinated:
            try:
                check_weights([name for name, member in membership.members.items() if member.role != "observer"])
            except ValueError as error:
                raise ConfigurationError(f"{error}; take a policy without a coordinator for so many members") from error
        election = ElectionRunner(
            config.name,
            electorate,
            FileVotes(self._ready.folder / folders.VOTE, self._log),
            incarnation=incarnation,
            seed=config.seed,
            log=self._log,
            timing=timing_of(self._task.layout.shared.size, config.deadline),
            signer=VoteSigner(self._identity, membership.federation),
            size=self._task.layout.shared.size,
            memory=config.coordinator_memory * 2**20 or inf,
            group_size=self._group_size,
        )
        if self._coordinated and election.may_lead():
            self._say_bound(election.bound)
        return election

    def _say_bound(self, bound: Bound) -> None:
        """Log what coordinating would cost, before the first round; warn if the machine has less memory free."""
        self._log.info(
            f"as the coordinator of {bound.members:,} members this node would hold up to {amount(bound.bytes)} of models,"
            f" and send and receive {bound.beats:.3g} beats a second",
            kind="coordinator-bound",
            bytes=bound.bytes,
        )
        free = free_memory()
        if free is not None and bound.bytes > free:
            self._log.warning(
                f"as the coordinator this node would need {amount(bound.bytes)} for models, and {amount(free)} is free: give"
                " other machines the role coordinator-eligible, or set coordinator_memory, so that it does not stand",
                kind="coordinator-bound",
            )

    def _coordination(self, election: ElectionRunner) -> Coordination | None:
        if not isinstance(self._policy, Coordinated):
            return None
        from p2pfl.node.coordination.submissions import Coordination

        return Coordination(election, self._policy.step, self._group_size)

    def _claim(self) -> Mapping[str, float | str]:
        """Return what the node tells its peers of its privacy budget."""
        if self._ledger is None:
            return {}
        plan = self._ledger.plan
        claim = claim_of(self._config.privacy, plan.epsilon(self._ledger.steps), plan.share)
        return claim if self._edges is None else {**claim, **self._edges.claim}

    @property
    def _group_size(self) -> int:
        return 0 if self._ready.agreement is None else self._ready.agreement.group_size

    def _learning(self, incarnation: int) -> dict[str, Any]:
        """Return the arguments that every exchange of this node needs."""
        return {
            "identity": self._identity,
            "incarnation": incarnation,
            "generation": randbits(31),
            "task": self._task,
            "trainer": self._trainer,
            "settings": self._config,
            "initial": agreement.digest(self._task.layout.shared_of(self._initial)),
            "scores": asks_scores(self._policy),
            "claim": self._claim(),
            "plan": None if self._ledger is None or not self._ledger.plan.share else self._ledger.plan,
            "fragments": fetches_fragments(self._policy),
            "opened": self._opened_rounds(),
        }

    def _opened_rounds(self) -> OpenedRounds | None:
        """Return the secure sums that the node has agreed to open, in its folder; None without secure sums."""
        if not self._config.secure_sums:
            return None
        from p2pfl.node.coordination.secure_rounds import SavedOpenedRounds

        membership = self._ready.membership
        return SavedOpenedRounds(self._ready.folder, b"" if membership is None else membership.federation)


def _learning_members(ready: LoadedNode) -> list[str]:
    """Return the names of the members that are no observers, or of the node alone; sorted."""
    if ready.membership is None:
        return [ready.config.name]
    return sorted(name for name, member in ready.membership.members.items() if member.role != "observer")


def _graph(ready: LoadedNode) -> Around:
    """Return the neighbours of each node of a federation, as far as they are known at a start."""
    names, edges = _learning_members(ready), "all" if ready.agreement is None else ready.agreement.edges
    if edges == "all":
        nodes = max(len(names), ready.config.members)  # more may follow
        return [[other for other in range(nodes) if other != k] for k in range(nodes)]
    places = {name: k for k, name in enumerate(names)}
    return [sorted(places[other] for other in agreement.neighbours(edges, name, names)) for name in names]


def _present(exchange: MessageExchange) -> list[Neighbour]:
    """Return the peers from which a node would fetch now."""
    from p2pfl.node.edge_noise import Neighbour

    peers = (exchange.peers[id] for id in exchange.view.ids)
    return [Neighbour(peer.name, peer.key, peer.public_info) for peer in peers]


def member_exchange(
    ready: LoadedNode,
    neighbourhood: Neighbourhood,
    *,
    transport: Transport,
    options: PeeringOptions,
    coordination: Coordination | None,
    **learning: Any,
) -> MessageExchange:
    """Return the exchange of a member of a federation.

    Args:
        coordination: its part in a coordinated policy, if it has one.
        learning: the other arguments of p2pfl.node.exchange.message_exchange.message_exchange.
    """
    config, membership, agreed = ready.config, ready.membership, ready.agreement
    assert membership is not None
    assert agreed is not None
    peers = neighbourhood.members()
    roles = NeighbourRoles(
        members=peers,
        sources=sorted(neighbourhood.sources(peers)),
        askers=neighbourhood.askers() if coordination is not None else None,
        observer=config.name in membership.members and membership.members[config.name].role == "observer",
        sparse=neighbourhood.sparse,
        known=neighbourhood.known if neighbourhood.outside_committee or neighbourhood.sparse else None,
        has_log=neighbourhood.has_log,
        around=neighbourhood.around if neighbourhood.knows_graph and coordination is None else None,
    )
    return message_exchange(
        config.name,
        roles,
        transport=transport,
        federation=membership.federation,
        agreed={
            **agreement.describe("task", config.task),
            **agreement.describe("policy", config.policy),
            "rounds": str(agreed.rounds),  # without extensions, which a peer may learn of only from this node
            **agreement.describe_demand(agreed),
            **agreement.describe_groups(agreed),
            **agreement.describe_committee(agreed, None if coordination is None else coordination.election.timing),
        },
        edges=agreed.edges,
        topology=agreed.topology,
        options=options,
        coordination=coordination,
        **learning,
    )


class LogFetch(Observer):
    """Start of the fetch of the membership log by a newcomer that has begun with a checkpoint.

    The fetch begins when the first round of the node has ended, so that the cost of a newcomer's first round does not grow
    with the log; or when its rounds are over. A node that needs the log earlier fetches it from its start on: one that may
    have links with any member (Neighbourhood.needs_log), or has the admission key, with which it can sign nothing before.
    """

    def __init__(self, gossip: MembershipGossip) -> None:
        self._gossip = gossip

    def restored(self, node: Node) -> None:
        if node.round:
            self._gossip.fetching = True

    def merged(self, node: Node, merge: Merge) -> None:
        self._gossip.fetching = True

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        self._gossip.fetching = True


def follow_forks(membership: Membership, status_observer: StatusObserver) -> None:
    """Show a proof against the admission key in the status, from a start with one or from the moment that it arrives."""

    def show() -> None:
        if membership.fork is not None and not status_observer.state.get("fork"):
            status_observer.state["fork"] = describe_fork(membership)
            status_observer.write()

    if membership.fork is not None:
        status_observer.state["fork"] = describe_fork(membership)  # written with the first state
    membership.on_change.append(show)


def follow_extensions(
    membership: Membership, node: Node, exchange: MessageExchange, status_observer: StatusObserver
) -> None:
    """Make a node run the additional rounds of each extension that its membership log gets from now on."""

    def extend() -> None:
        if membership.rounds > node.settings.rounds:
            node.extend(membership.rounds)
            exchange.extend(membership.rounds, resume=not node.done)
            status_observer.extended(node)

    membership.on_change.append(extend)
