"""Implementation of p2pfl.node.exchange.base.Exchange with messages over any kind of link, and its factory.

Theory of operation. Everything runs in one event loop, so no state needs a lock. Only the encoding of large models and
the computation of losses run in threads, and neither touches this state.

A model goes out in five steps, in `publish`:

1. A synchronous node waits for peers that are one round behind (Pacer.wait_for_slower), then announces its round.
2. The Publisher encodes the model, and keeps it as peers receive it.
3. The host writes it to disk.
4. The ModelServer encodes its payload once for all peers, and the Outbox takes it.
5. The requests that were waiting for it are answered.

Step 3 must come before step 4. A node that shows a model, crashes and then trains again would publish a second model of
the same round and stage. Two such headers are a proof of equivocation, and the node would be left out for good.

A request has a number, and is in one of these states at the asking node (PeerRequests):

- open: its future is in `peer.requests`; if it asks for a model, what it asks for is in `peer.asked`.
- answered: the future has the answer, or None for a refusal, a lost link or an invalid answer. It is never left open
  because an answer was invalid: the round would wait for the whole deadline.
- overdue: the deadline has passed. The peer is suspected and on probation, and the number is kept in `peer.overdue`. A
  late answer ends the suspicion, but its model is not used: the policy has already continued without it.

At the asked node (ModelServer) the request is answered at once, waits for a model that is not published yet
(`peer.waiting`), waits for the peer to read previous models (`peer.queued`), or is refused. Each of these holds a fixed
number of requests of each peer, and the newest replaces the oldest, so that no peer can take memory.

A model that comes in is checked in this order, and not used before the last check:

1. PeerManager.received: the owner of the link is a member, and not excluded for earlier offences. FrameVerifier.open:
   length, sender, recipient, federation, session, sequence number, signature, hash of the payload.
2. PeerManager._route: the sender has been introduced, and its settings do not differ.
3. ModelClient.take: the request is open, and the answer is of the requested stage and round, with the announced samples.
   EquivocationWatch.take: no later start of the sender is known. If its header contradicts one that this node knows, the
   two are a proof, and the sender is left out.
4. ModelEncoder.receive: the bytes are P finite values, the extras are valid, and the norm is plausible.
5. NodePeers.models (p2pfl.node.policy_api): copies, free riding, sample cap, clipping, age, budget.

Checks 1 to 4 raise a ProtocolError, which PeerManager counts by cause and by sender; checks 3 and 4 also count as a
penalty of the sender. A replay is no penalty: a frame may have been in transit while its sender restarted.

What each round is allowed to wait for is the concern of p2pfl.node.exchange.rounds, and what a coordinated policy adds
that of p2pfl.node.coordination.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import TaskGroup
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from math import inf, nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from p2pfl._util.binding import split_name
from p2pfl.compression.codecs import Differential, make_codec
from p2pfl.errors import ConfigurationError
from p2pfl.fragments import Fragments
from p2pfl.node.conduct import Conduct, EquivocationWatch
from p2pfl.node.coordination.election_runner import Elected, ElectionRunner
from p2pfl.node.exchange.base import Detached, ExchangeConfig, ExchangeHost, NeighbourRoles
from p2pfl.node.exchange.model_encoding import ModelEncoder, NormLimit, Outbox, Publisher
from p2pfl.node.exchange.model_transfer import LossClient, LossFunction, LossServer, ModelClient, ModelServer, PeerRequests
from p2pfl.node.exchange.rounds import AdaptiveTimeout, Pacer, Pacing, Participants, Probation, StartWait, all_incompatible
from p2pfl.node.federation.agreement import Edges, terms
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import PeeringConfig, PeeringOptions
from p2pfl.node.peering.peers import Peer
from p2pfl.node.settings import Settings, detects
from p2pfl.node.trainer import Trainer
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Extras, Fragment, Stage, Submission, Update
from p2pfl.privacy import PrivacyPlan
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import Transport
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, FrameSigner, FrameVerifier, Opened, Payload
from p2pfl.protocols.wire.payload import EXTRAS_LIMIT
from p2pfl.queries import Loss
from p2pfl.task import Task

if TYPE_CHECKING:  # a node without a coordinator does not load them
    from p2pfl.node.coordination.secure_rounds import OpenedRounds, SecureSums
    from p2pfl.node.coordination.submissions import Coordination, CoordinationRoles
    from p2pfl.protocols.secure_sums import Secret

LARGEST_FRAME = 2**32 - 1  # bytes; a frame's length and its payload's have 4 bytes
GONE_AFTER = 3  # unanswered probes after which a node that has finished no longer waits for a peer


class MessageExchange:
    """Exchange of models and losses by messages.

    Args:
        encoder: encoder of models.
        loss: computes the mean loss of a whole model on this node's training data for peers that ask for it. None if
            the policy does not ask for losses; then no peer is answered.
        coordination: the node's part in a coordinated policy, if it has one.
        sums: identity and secrets of its secure sums; None without them.

    Attributes:
        peering: links with the peers.
        requests: requests to peers for models and losses.
        models: server of this node's models.
        losses: server of losses.
        limit: limit of the norm of a model.
        conduct: penalties of the peers.
        equivocation: comparison of the models that members send to different peers.
        start_wait: wait for the members at the start.
    """

    def __init__(
        self,
        config: ExchangeConfig,
        encoder: ModelEncoder,
        loss: LossFunction | None = None,
        coordination: Coordination | None = None,
        sums: SecureSums | None = None,
    ) -> None:
        settings = config.settings
        self.name = config.peering.name
        self.encoder = encoder
        self.outbox = Outbox(settings.mode == "synchronous")
        self.peering = PeerManager(config.peering, self)
        self.view, self.traffic, self.rejected = self.peering.view, self.peering.traffic, self.peering.rejected
        self.conduct = Conduct(settings.distrust, detects(settings))
        self.equivocation = EquivocationWatch(config.peering, self.peering, self.conduct, config.around)
        self.election: ElectionRunner | None = None if coordination is None else coordination.election
        self.timeouts = AdaptiveTimeout(settings.deadline, settings.adaptive)
        self.limit = NormLimit()
        self._settings = settings
        self._askers = config.askers
        self._has_log, self._log = config.has_log, config.peering.options.log
        self._host: ExchangeHost = Detached()
        self._probation = Probation(config.strict)
        self._publisher = Publisher(self.name, config.n_samples, encoder, lambda: asyncio.get_running_loop().time())
        self._participants = participants = Participants(self.peering, config.askers, self.election)
        self._pacing = pacing = Pacing(settings.rounds, not config.observer, config.sparse)
        self.pacer = pacer = Pacer(
            self.peering,
            participants=participants,
            pacing=pacing,
            probation=self._probation,
            outbox=self.outbox,
            deadline=settings.deadline,
        )
        self.start_wait = StartWait(self.peering, lambda: pacer.leaving, config.known, config.has_log)
        self.requests = PeerRequests(self.peering, self.timeouts, self._probation)
        self._model_client = ModelClient(
            self.peering,
            self.requests,
            encoder=encoder,
            settings=settings,
            limit=self.limit,
            pacing=pacing,
            probation=self._probation,
            equivocation=self.equivocation,
        )
        self._loss_client = LossClient(self.peering, self.requests)
        divide = partial(Fragments.places, layout=encoder.layout, seed=settings.seed) if config.fragments else None
        self.models = ModelServer(self.peering, participants, self.outbox, encoder, self.conduct, divide=divide)
        self.losses = LossServer(
            self.peering,
            participants,
            settings=settings,
            size=encoder.layout.size,
            loss=None if loss is None else lambda params: loss(self._host.complete(params)),
        )
        self.coordination: CoordinationRoles | None = None
        if coordination is not None:
            from p2pfl.node.coordination.submissions import make_coordination_roles

            coordination.election.connect(partial(_send_in_election, self.peering), self._elected, self._connected)
            newest, check = participants.common_round, self.limit.check
            self.coordination = make_coordination_roles(
                self.peering,
                coordination,
                encoder.layout,
                settings=settings,
                newest=newest,
                check=check,
                sums=sums,
                group_size=coordination.group_size,
            )

    @property
    def peers(self) -> Mapping[str, Peer]:
        return self.peering.peers

    @property
    def askers(self) -> Collection[str]:
        """Names of the nodes that may fetch from this one."""
        return self.view.neighbours if self._askers is None else self._askers

    @property
    def round(self) -> int:
        return self.peering.round

    @property
    def expired(self) -> int:
        """Number of missed deadlines."""
        submitting = 0 if self.coordination is None else self.coordination.client.expired
        return self.requests.expired + self.pacer.expired + submitting

    # Lifecycle

    async def start(self, tasks: TaskGroup, host: ExchangeHost, extended: bool = False) -> None:
        """Accept connections, and wait for the neighbours; see p2pfl.node.exchange.rounds.

        Raises:
            ConfigurationError: every peer is excluded because its settings differ.
        """
        peering = self.peering
        self._host = host
        peering.round = max(self.outbox.round, peering.round)  # `resume` has set it if the policy is coordinated
        peering.final = self.outbox.final
        peering.rest()
        await peering.start(tasks)
        if self.election is not None:
            peering.begin(self.election.run(), f"{self.name}: elections")
        await self.start_wait.run(self._settings.members, self._settings.deadline, extended)
        if not (self._has_log() or self.pacer.leaving):
            self._log.warning(
                f"the membership log has not arrived within the deadline of {self._settings.deadline:g} s; until it has,"
                " this node computes its neighbours from the members that it knows, which the rule would not choose",
                kind="log-late",
            )
        for peer in self.peers.values():
            if not (peer.introduced or self.pacer.leaving):
                reason = peer.problem or self.view.suspected.get(peer.name) or peer.dial_problem
                peering.suspect(peer, reason or "not connected at the start")
        if all_incompatible(self.peers):
            problems = "; ".join(f"{name}: {peer.problem}" for name, peer in self.peers.items())
            raise ConfigurationError(f"the settings of every peer differ from this node's: {problems}")
        peering.end_rest()

    async def gather(self) -> None:
        self.peering.rest()
        await self.start_wait.run_again(self._settings.members)
        self.peering.end_rest()

    def extend(self, rounds: int, resume: bool) -> None:
        """Permit more rounds.

        Args:
            resume: whether this node publishes again if its model was final.
        """
        self._pacing.extend(rounds)
        if resume and self.peering.final:
            self.outbox.final = self.peering.final = False
            self.peering.end_rest()
            self.peering.introducer.greet_again()
            self.peering.notify()

    def finish(self) -> None:
        self.outbox.final = self.peering.final = True
        self.models.serve_waiting()
        for peer in self.peering.introduced_peers():
            self.peering.tell(peer, m.Bye(self.round, leaving=False))
        self.peering.rest()

    def leave(self) -> None:
        self.pacer.leave()

    async def others_done(self) -> None:
        """Wait until no connected neighbour needs this node, or until the node has more rounds to do."""
        peering = self.peering

        def done(peer: Peer) -> bool:
            gone = peer.name in self.view.suspected and (not peer.introduced or peer.unanswered >= GONE_AFTER)
            return gone or peer.name in self.view.left_out or (peer.stopped and not peering.gossip.lacks_entries(peer))

        peering.end_rest()  # a peer that is gone must not keep this node here
        await peering.until(lambda: not peering.final or all(done(peer) for peer in self.peers.values()), inf)

    async def close(self) -> None:
        await self.peering.close()

    # Interface for the node

    def public_info(self, id: str) -> Mapping[str, Any]:
        return self.peering.public_info if id == self.name else self.peers[id].public_info

    async def next_round(self, finished: int) -> int:
        round = await self.pacer.next_round(finished)
        if round <= finished:
            self.peering.signer.go_back()
            if self.coordination is not None:
                self.coordination.rewind(round)
        return round

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        if round > self.round:
            if self._settings.mode == "synchronous":
                await self.pacer.wait_for_slower(round)
            self.pacer.reach(round)
        if (round, stage) not in self.outbox.models:  # otherwise published before a restart; served unchanged
            model = self._publisher.make(round, stage, params, extras)
            await self._host.save_model(model)
            await self.models.prepare(model)
            self.outbox.add(model)
        self.limit.note(params)
        self.models.serve_waiting()

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        return await self._model_client.fetch(ids, round, stages)

    async def fetch_fragments(
        self, wanted: Mapping[str, Sequence[int]], round: int, fragments: Fragments, stage: Stage
    ) -> list[Fragment]:
        return await self._model_client.fetch_fragments(wanted, round, fragments, stage)

    def ask_on_probation(self, wanted: Collection[str], round: int, fragments: Fragments, stage: Stage) -> None:
        self._model_client.ask_on_probation(wanted, round, fragments, stage)

    def expected_bytes(self, id: str, round: int) -> int:
        return self.encoder.expected_bytes(id, round)

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        return await self._loss_client.score(ids, round, params)

    # Coordination, if the policy is coordinated

    def resume(self, round: int, params: Parameters) -> None:
        if self.coordination is None:
            raise ConfigurationError("this policy needs a coordinator, but this node takes no part in elections")
        self.peering.round = round
        self.limit.note(params)

    async def submit(self, submission: Submission) -> Assignment | None:
        if self.coordination is None:
            raise ConfigurationError("`peers.submit` needs a coordinated policy: one with a method `step`")
        self.limit.note(submission.params)
        self.pacer.reach(submission.round)
        behind = self._participants.common_round() > submission.round
        assignment = await self.coordination.client.submit(submission)
        self._pacing.late = behind and assignment is None
        return assignment

    def set_aside(self) -> str:
        return "" if self.coordination is None else self.coordination.client.set_aside()

    def _connected(self) -> list[str]:
        return [peer.name for peer in self.peering.introduced_peers()]

    def _elected(self, elected: Elected) -> None:
        self._host.elected(elected)
        self.peering.notify()

    # Events of peers (see p2pfl.node.peering.peers.PeerEvents)

    def handle(self, peer: Peer, opened: Opened) -> None:
        message, payload = opened.message, opened.payload
        match message:
            case m.Get() | m.GetFragments():
                self.models.serve(peer, message)
            case m.ModelUpdate() | m.FragmentUpdate():
                self._model_client.take(peer, opened, message)
            case m.Score():
                self.losses.serve(peer, message, payload)
            case m.Scored():
                self._loss_client.take(peer, message)
            case m.Receipts() | m.Carried() | m.Equivocation():
                self.equivocation.receive(peer, opened)
            case _ if self.election is None or self.coordination is None:
                raise ProtocolError("election", "this node's policy has no coordinator")
            case m.Vote() | m.Voted() | m.Leading() | m.Following():
                self.election.receive(peer.name, message)
            case m.SignedVote() | m.TermCertificate() | m.WhichTerm() | m.TermOver():
                self.election.receive_of_committee(peer.name, message, bytes(payload))
                if isinstance(message, m.TermOver):
                    self.coordination.client.take_term_over(peer, message)
            case _:
                self._handle_coordination(peer, opened, self.coordination)

    def _handle_coordination(self, peer: Peer, opened: Opened, roles: CoordinationRoles) -> None:
        match message := opened.message:
            case m.Submit():
                roles.server.take_submit(peer, opened, message)
            case m.GroupMean():
                roles.server.take_group_mean(peer, opened, message)
            case m.SumAnswer():
                roles.server.take_sum_answer(peer, opened, message)
            case m.SumRequest():
                roles.client.take_sum_request(peer, opened, message)
            case m.Assigned():
                roles.client.take_assigned(peer, opened, message)

    def drained(self, peer: Peer) -> None:
        self.models.drained(peer)

    def may_return(self, peer: Peer) -> bool:
        return not self._probation.owes(peer.name)

    def late(self, peer: Peer) -> None:
        self._probation.record_answer(peer.name)
        if not self.view.ids:  # waiting for it costs less than learning alone
            self._probation.forgive(peer.name)

    def peers_changed(self) -> None:
        self.equivocation.spread()
        if self.coordination is not None:
            self.coordination.review()


def _send_in_election(
    peering: PeerManager, name: str, message: m.ElectionMessage | m.CommitteeMessage, payload: bytes = b""
) -> None:
    peer = peering.peers.get(name)
    if peer is not None and peer.introduced:
        peering.tell(peer, message, Payload.of(payload))


def payload_limit(size: int, coordinated: bool = False) -> int:
    """Return the maximum size in bytes of a payload between nodes with P parameters.

    Args:
        coordinated: whether the policy has a coordinator; a submission to it contains two models.

    Raises:
        ConfigurationError: the models are too large for messages.
    """
    limit = max(4 * size * (1 + coordinated) + EXTRAS_LIMIT, m.HelloParameters.LIMIT)
    if OVERHEAD + limit > LARGEST_FRAME:
        raise ConfigurationError(
            f"the model shares {size:,} values, but a message has at most 4 GiB"
            f" ({(LARGEST_FRAME - OVERHEAD - EXTRAS_LIMIT) // (4 * (1 + coordinated)):,} values with this policy); keep a"
            " part of the model private"
        )
    return limit


def message_exchange(
    name: str,
    roles: NeighbourRoles,
    *,
    identity: Identity,
    transport: Transport,
    incarnation: int,
    generation: int = 0,
    federation: bytes,
    task: Task,
    trainer: Trainer,
    settings: Settings,
    agreed: Mapping[str, str],
    initial: str = "made by the task from the seed",
    encoder: ModelEncoder | None = None,
    edges: Edges = "all",
    topology: Mapping[str, Any] | None = None,
    options: PeeringOptions = PeeringOptions(),  # noqa: B008 (it is frozen)
    coordination: Coordination | None = None,
    scores: bool = False,
    fragments: bool = False,
    secrets: Secret = os.urandom,
    opened: OpenedRounds | None = None,
    claim: Mapping[str, float | str] = MappingProxyType({}),
    plan: PrivacyPlan | None = None,
) -> MessageExchange:
    """Return the exchange of a node that reaches its neighbours over `transport`.

    Args:
        incarnation: number of the node's starts; it must be on disk before this call.
        generation: random on machines; see p2pfl.protocols.wire.envelope.FrameSigner.
        federation: 16 bytes; see `federation_id` if there is no signed file.
        agreed: settings that must be equal on all nodes, in addition to `p2pfl.node.federation.agreement.terms`.
        initial: the hash of the initial model.
        encoder: encoder of models, if it exists already.
        edges: pairs of nodes that may exchange models.
        topology: see p2pfl.node.federation.agreement.Agreement.
        scores: whether the policy asks for losses.
        fragments: whether the policy fetches parts of models.
        secrets: source of the node's secrets.
        opened: the secure sums that the node has agreed to open; by default remembered until the process ends.
        claim: what the node tells its peers of its privacy budget; see p2pfl.privacy.claim_of and
            p2pfl.node.edge_noise.
        plan: the plan of that budget, if the noise of all nodes adds up in secure sums; see p2pfl.central_noise.
    """
    layout, election = task.layout.shared, None if coordination is None else coordination.election
    keys = {id: member.key for id, member in roles.members.items()}
    peering = PeeringConfig(
        name=name,
        key=identity.public,
        neighbours=roles.members,
        transport=transport,
        signer=FrameSigner(identity, federation, layout.fingerprint, incarnation, generation=generation),
        verifier=FrameVerifier(keys, identity.public, federation, payload_limit(layout.size, election is not None)),
        agreed={
            **terms(
                layout,
                settings,
                initial,
                edges,
                None if election is None else election.timing,
                fragments=fragments,
                topology=topology,
            ),
            **agreed,
        },
        public_info=dict(task.public_info) | {"n_samples": task.n_samples} | dict(claim),
        seed=settings.seed,
        asynchronous=settings.mode == "asynchronous",
        sources=roles.sources,
        options=options,
    )
    config = ExchangeConfig(
        peering=peering,
        settings=settings,
        n_samples=task.n_samples,
        askers=roles.askers,
        observer=roles.observer,
        sparse=roles.sparse,
        known=roles.known,
        has_log=roles.has_log,
        around=roles.around,
        fragments=fragments,
    )
    loss = _loss(task, trainer) if scores else None
    sums = None
    if settings.secure_sums and coordination is not None:
        from p2pfl.node.coordination.secure_rounds import OpenedRounds, SecureSums

        kept = opened or OpenedRounds()
        sums = SecureSums(identity, federation, settings.secure_threshold, kept, secrets, options.log, plan)
    return MessageExchange(config, encoder or encoder_of(task, settings), loss, coordination, sums)


def encoder_of(task: Task, settings: Settings) -> ModelEncoder:
    """Return the model encoder that the settings select."""
    codec = make_codec(*split_name("codec", settings.codec))
    initial = task.layout.shared_of(task.initial(settings.seed)) if isinstance(codec, Differential) else None
    return ModelEncoder(codec, task.layout.shared, initial)


def _loss(task: Task, trainer: Trainer) -> LossFunction:
    """Return a function that computes the loss of a peer's model on this node's training data.

    The function returns NaN for a task with a preference, because the losses would reveal the preference.
    """
    private = bool(task.goals)

    async def loss(params: Parameters) -> float:
        if private:
            return nan
        return float((await trainer.submit(Loss([params], "train")))[0])

    return loss


def max_frame(size: int, coordinated: bool = False) -> int:
    """Return the maximum size in bytes of a frame between nodes with P parameters.

    Args:
        coordinated: see p2pfl.node.exchange.message_exchange.payload_limit.
    """
    return OVERHEAD + payload_limit(size, coordinated)


def federation_id(name: str) -> bytes:
    """Return the 16 bytes that identify the federation in its frames."""
    return sha256(b"p2pfl federation 1\0" + name.encode()).digest()[:16]
