"""How a node has models of its peers by messages, over whatever links there are (see node.exchange.Exchange).

Requests carry a number by which their answer is known. A model is sent to a peer while it reads what it was sent before; of
those that must wait for that, only the newest is kept.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TaskGroup
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from node.coding import WHOLE, Coding
from node.contact import PeerManager
from node.coordination_parts import CoordinationRoles, make_coordination_roles
from node.deadlines import Deadlines
from node.electing import Elected, Electing
from node.outbox import Outbox, Published
from node.pacing import Pacing, common_round
from node.peer import Asked, Peer
from node.peering_config import PeeringConfig
from node.probation import Probation
from node.roster import Roster
from node.settings import Settings
from node.traffic import Traffic
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Extras, Stage, Step, Submission, Update
from p2pfl.robust import coarse
from protocols import messages as m
from protocols.envelope import OVERHEAD, Opened, Payload
from protocols.errors import ProtocolError, TransportError
from protocols.payload import EXTRAS_LIMIT, decode, decode_extras, encode_extras

FAR_AHEAD = 10  # rounds beyond which a peer's round is counted as one that is not believed
SILENT_AFTER = 2  # unanswered probes after which the round of a suspected peer counts no more
GONE_AFTER = 3  # unanswered probes after which nobody waits for a peer to finish
LARGEST_RATIO = 1000.0  # between the norm of a peer's model and that of the own one
SCORES_AT_ONCE = 2  # losses computed for one peer at a time
MODELS_IN_FLIGHT = 2  # to one peer
WAITING_REQUESTS = 4  # no honest peer waits for more models that are not published yet


class MessageExchange:
    """
    Args:
        peering: who this node is, and how it reaches its neighbours.
        askers: those of them that may fetch from it; by default all.
        coding: how models travel.
        loss: computes the mean loss of a model (with the private part) on the own training data, for peers that ask; None
            where the policy asks for none, and nobody is answered.
        electing: the node's part in electing a coordinator, where its policy is coordinated.
        observer: whether this node is one: its round counts for nobody.
        sparse: whether the topology is not complete; see node.pacing.
    """

    def __init__(
        self,
        peering: PeeringConfig,
        *,
        settings: Settings,
        coding: Coding,
        n_samples: int,
        loss: Callable[[Parameters], Awaitable[float]] | None,
        askers: Collection[str] | None = None,
        electing: Electing | None = None,
        observer: bool = False,
        sparse: bool = False,
    ) -> None:
        self.name = peering.name
        self.outbox = Outbox(settings.mode == "synchronous")
        self._expired = 0
        self.losses_given: Counter[str] = Counter()  # by peer
        self.far_ahead: Counter[str] = Counter()  # rounds of this node in which a peer claimed a round far beyond, by peer
        self.durable: Callable[[Published], Awaitable[None]] | None = None
        self.contacts = PeerManager(peering, self)
        self.deadlines = Deadlines(settings.deadline, settings.adaptive)
        self._strict = (
            peering.options.period < inf
        )  # nodes in one process are honest, and their scenario says for what they wait
        self._probation = Probation()
        self.electing = electing
        self.step: Step | None = None
        self.whole: Callable[[Parameters], Parameters] = lambda params: params
        self.elected: Callable[[Elected], None] = lambda elected: None
        self._coordination = None if electing is None else self._elect(electing, coding, settings)
        self._askers = None if askers is None else frozenset(askers)
        self._leaving = False
        self._settings = settings
        self._pacing = Pacing(settings.rounds, not observer, sparse)
        self.coding = coding
        self._n_samples = n_samples
        self._loss = loss
        self._payloads: dict[tuple[int, Stage, bytes], Payload] = {}  # by what they are differences from, too
        self._norm = 0.0  # the greatest of the models that were published

    @property
    def roster(self) -> Roster:
        return self.contacts.roster

    @property
    def traffic(self) -> Traffic:
        return self.contacts.traffic

    @property
    def rejected(self) -> Counter[str]:
        return self.contacts.rejected

    @property
    def peers(self) -> Mapping[str, Peer]:
        return self.contacts.peers

    @property
    def round(self) -> int:
        return self.contacts.round

    @property
    def expired(self) -> int:
        """Number of deadlines that have passed."""
        return self._expired + (0 if self._coordination is None else self._coordination.client.expired)

    # The coordinator, where the policy has one

    def _elect(self, electing: Electing, coding: Coding, settings: Settings) -> CoordinationRoles:
        def say(name: str, message: m.Electing) -> None:
            peer = self.peers.get(name)
            if peer is not None and peer.introduced:
                self.contacts.tell(peer, message)

        def changed(elected: Elected) -> None:
            self.elected(elected)
            self.contacts.moved()

        def step(*given: Any) -> Any:
            assert self.step is not None  # only nodes with a coordinated policy take part in elections
            return self.step(*given)

        electing.send, electing.on_change = say, changed
        return make_coordination_roles(
            self.contacts,
            electing,
            coding.layout,
            deadline=settings.deadline,
            newest=self._common_round,
            check=self._check_norm,
            step=step,
            robust=settings.robust,
        )

    def resume(self, round: int, params: Parameters) -> None:
        if self.electing is None:
            raise ConfigurationError("this policy needs a coordinator, and this node takes no part in electing one")
        self.contacts.round = round
        self._norm = norm(params)

    async def submit(self, submission: Submission) -> Assignment | None:
        if self._coordination is None:
            raise ConfigurationError("only a coordinated policy may call joint: one that has a method step")
        self._norm = max(self._norm, norm(submission.params))
        self._reach(submission.round)
        return await self._coordination.client.submit(submission)

    def moved(self) -> None:
        if self._coordination is not None:
            self._coordination.coordinator.review()

    # Life

    async def start(self, tasks: TaskGroup) -> None:
        contacts = self.contacts
        contacts.round = max(self.outbox.round, contacts.round)
        contacts.final = self.outbox.final
        await contacts.start(tasks)
        if self.electing is not None:
            contacts.begin(self.electing.run(), f"{self.name} takes part in elections")
        if contacts.round == 0:  # the members that must be there before anyone begins
            await contacts.until(
                lambda: self._leaving or 1 + len(contacts.introduced()) >= self._settings.members or self._kept_out(), inf
            )
        await contacts.until(
            lambda: self._leaving or all(p.introduced or p.problem for p in self.peers.values()), self._settings.deadline
        )
        for peer in self.peers.values():
            if not peer.introduced:
                contacts.suspect(peer, peer.problem or self.roster.suspected.get(peer.name, "not there at the start"))
        if self._kept_out():
            problems = "; ".join(f"{name}: {peer.problem}" for name, peer in self.peers.items())
            raise ConfigurationError(f"no peer can be learned with: {problems}")

    def _kept_out(self) -> bool:
        return bool(self.peers) and all(peer.problem for peer in self.peers.values())

    def finish(self) -> None:
        self.outbox.final = self.contacts.final = True
        self._answer_waiting()
        for peer in self.contacts.introduced():
            self.contacts.tell(peer, m.Bye(self.round, leaving=False))

    def leave(self) -> None:
        self._leaving = True
        self.contacts.moved()

    async def others_done(self) -> None:
        """Wait until no neighbour that is there needs this node any more."""

        def done(peer: Peer) -> bool:
            gone = peer.name in self.roster.suspected and (not peer.introduced or peer.unanswered >= GONE_AFTER)
            return peer.stopped or gone

        await self.contacts.until(lambda: all(done(peer) for peer in self.peers.values()), inf)

    async def close(self) -> None:
        await self.contacts.close()

    def about(self, id: str) -> Mapping[str, Any]:
        return self.contacts.about if id == self.name else self.peers[id].about

    async def next_round(self, finished: int) -> int:
        def following() -> int:
            return self._pacing.following(finished, self.round, self._rounds_of_others())

        self._note_far_rounds(max(finished, self.round))
        if following() == finished - 1:  # they come up in a moment, if they were slow only once
            await self.contacts.until(lambda: self._leaving or following() > finished, self._settings.deadline)
        if self._strict and following() <= finished:
            await self._check_rounds(lambda: self._leaving or following() > finished)
        round = following()
        if self._leaving:
            return finished + 1
        if round <= finished:
            self._go_back(round)
        elif round > finished + 1 and round > self.round:
            self.outbox.skip(round)
            self._announce(round - 1)  # before it trains, so that the others wait for its model
        return round

    async def _check_rounds(self, enough: Callable[[], bool]) -> None:
        """Ask the others where they are: what is known may be from before an outage. One deadline for their answers."""
        asked: set[str] = set()
        while not enough() and (unasked := [peer for peer in self._pacemakers() if peer.name not in asked]):
            asked.update(peer.name for peer in unasked)
            for peer in unasked:
                self.contacts.check(peer)
            await self.contacts.until(
                lambda: enough() or not any(peer.checking for peer in self._pacemakers()), self._settings.deadline
            )

    def _note_far_rounds(self, own: int) -> None:
        """Count peers whose round is further ahead than most participants', and this node, by far."""
        common = max(own, self._common_round())
        self.far_ahead.update(p.name for p in self.contacts.introduced() if not p.stopped and p.round > common + FAR_AHEAD)

    def _go_back(self, round: int) -> None:
        self._pacing.went_back(round)
        self.outbox.rewind(round)
        if self._coordination is not None:
            self._coordination.coordinator.rewind(round)
        self._announce(self.outbox.round)

    def _announce(self, round: int) -> None:
        self.contacts.round = round
        for peer in self.contacts.introduced():
            self.contacts.tell(peer, m.Have(round))

    def _pacemakers(self) -> list[Peer]:
        """Return the participants that are there and have not stopped, however slow they are."""
        suspected = self.roster.suspected
        there = [p for p in self.contacts.introduced() if not p.stopped and self._sets_the_pace(p)]
        return [p for p in there if p.name not in suspected or p.unanswered < SILENT_AFTER]

    def _rounds_of_others(self) -> list[int]:
        return [peer.round for peer in self._pacemakers()]

    def _common_round(self) -> int:
        return common_round([self.round, *self._rounds_of_others()])

    def _sets_the_pace(self, peer: Peer) -> bool:
        if self.electing is not None:
            return self.electing.votes(peer.name)
        return peer.name in self.roster.neighbours

    # Publishing

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        if round > self.round:
            if self._settings.mode == "synchronous":
                await self._pace(round)
            self._reach(round)
        if (round, stage) not in self.outbox.models:  # else it was published before a restart, and is served as it was
            public, tag = self.coding.publish(params)
            size = OVERHEAD + self.coding.whole + len(encode_extras(extras))
            update = Update(self.name, round, stage, public, self._n_samples, extras, size=size)
            model = Published(update, asyncio.get_running_loop().time(), tag)
            if self.durable is not None:
                await self.durable(model)
            self.outbox.add(model)
        self._norm = max(self._norm, norm(params))
        self._answer_waiting()

    def _reach(self, round: int) -> None:
        """Announce a round, if it is a new one."""
        if round > self.round:
            self._announce(round)

    async def _pace(self, round: int) -> None:
        """Wait until every neighbour that keeps up has reached the round before, at most half a deadline; not for observers.

        Half, so that those who wait for this node do not lose it while it waits for another.
        """

        def behind() -> list[Peer]:
            live = (p for p in self.contacts.introduced() if not p.stopped and p.name not in self.roster.suspected)
            return [p for p in live if self._waits_for(p) and p.round == round - 2]  # further behind: it will skip

        if not await self.contacts.until(lambda: not behind(), self._settings.deadline / 2):
            self._expired += 1
            for peer in behind():
                self._missed(peer)
                self.contacts.suspect(peer, f"did not reach round {round - 1} in time")

    def _waits_for(self, peer: Peer) -> bool:
        """Return whether a member may ask for a model of this node, and is no observer."""
        return self._sets_the_pace(peer) if self._askers is None else peer.name in self._askers

    def _may_ask(self, peer: Peer) -> bool:
        return self._askers is None or peer.name in self._askers

    # Asking

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        copies = self.coding.ask(sorted(ids))

        def ask(peer: Peer, number: int) -> None:
            stage = stages if isinstance(stages, str) else stages[peer.name]
            copy = copies.get(peer.name)
            peer.asked[number] = Asked(round, stage, copy)
            self.contacts.say(peer, m.Get(number, round, stage, WHOLE if copy is None else copy.tag))
            self.traffic.sent_get += OVERHEAD
            self.traffic.sent_preparation += 0 if round else OVERHEAD

        self._ask_in_background(ids, round, stages)
        updates: list[Update] = await self._ask(ids, round, ask)
        if self._settings.mode == "asynchronous":
            updates = [u for u in updates if u.age <= self._settings.max_staleness]
        return updates

    def _ask_in_background(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> None:
        """Ask those for a model that are on probation, without waiting for it."""
        for peer in self.contacts.introduced():
            if self._probation.owes(peer.name) and peer.name in self.roster.neighbours and peer.name not in ids:
                number = next(self.contacts.numbers)
                peer.note_overdue(number)
                stage = stages if isinstance(stages, str) else "trained"
                self.contacts.tell(peer, m.Get(number, round, stage, WHOLE))
                self.traffic.sent_get += OVERHEAD

    def may_return(self, peer: Peer) -> bool:
        return not self._probation.owes(peer.name)

    def _missed(self, peer: Peer, request: int = 0) -> None:
        """Note that a peer was waited for in vain, and by which request; 0 for none."""
        if self._strict:
            self._probation.missed(peer.name, len(self.peers))
            if request:
                peer.note_overdue(request)

    def late(self, peer: Peer) -> None:
        self._probation.answered(peer.name)

    def expected(self, id: str, round: int) -> int:
        return self.coding.expected(id, round)

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        payload = Payload.of(params.data.cast("B"))

        def ask(peer: Peer, number: int) -> None:
            self.contacts.say(peer, m.Score(number, round), payload)
            self.traffic.sent_score += OVERHEAD + payload.size

        return dict(await self._ask(ids, round, ask))

    async def _ask(self, ids: Sequence[str], round: int, ask: Callable[[Peer, int], None]) -> list[Any]:
        """Ask each of `ids` something; return the answers in the order of ids, without those that did not come in time."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        asked: list[tuple[Peer, int, Future[Any]]] = []
        for id in sorted(ids):
            peer = self.peers.get(id)
            if peer is None:  # it is no member any more
                continue
            number, answer = next(self.contacts.numbers), loop.create_future()
            asked.append((peer, number, answer))
            peer.requests[number] = answer
            try:
                ask(peer, number)
            except TransportError as error:
                answer.set_result(None)
                self.contacts.suspect(peer, str(error))
            else:
                answer.add_done_callback(partial(self._measure, id, begun))
        if not asked:
            return []
        seconds = self.deadlines.wait([peer.name for peer, *_ in asked])
        _, late = await asyncio.wait([answer for *_, answer in asked], timeout=seconds)
        self._expired += bool(late)
        for peer, number, answer in asked:
            peer.requests.pop(number, None)
            peer.asked.pop(number, None)
            if answer in late:
                self.deadlines.missed(peer.name)
                self._missed(peer, number)
                self.contacts.suspect(peer, f"missed the deadline of round {round}")
        answers = [answer.result() for *_, answer in asked if answer not in late]
        return [answer for answer in answers if answer is not None]

    def _measure(self, name: str, begun: float, answer: Future[Any]) -> None:
        if not answer.cancelled() and answer.result() is not None:
            self._probation.answered(name)
            self.deadlines.answered(name, asyncio.get_running_loop().time() - begun)

    # What peers say about learning (see node.peer_table.PeerEvents)

    def handle(self, peer: Peer, opened: Opened) -> None:
        message, payload = opened.message, opened.payload
        size = OVERHEAD + len(payload)
        match message:
            case m.Get():
                self.traffic.received_get += size
                self.traffic.received_preparation += 0 if message.round else size
                self._serve(peer, message)
            case m.Answer():
                self.traffic.received_update += size
                self.traffic.received_models += 1
                self.traffic.received_preparation += 0 if message.round else size
                self._take(peer, message, payload)
            case m.Score():
                self.traffic.received_score += size
                self._begin_score(peer, message, payload)
            case m.Scored():
                self.traffic.received_scored += size
                if message.request in peer.asked:
                    peer.resolve(message.request, None)
                    raise ProtocolError("not asked for", "a loss, where a model was")
                loss = message.loss
                self.contacts.resolve(peer, message.request, (peer.name, loss) if isfinite(loss) else None)
            case _ if self.electing is None or self._coordination is None:
                raise ProtocolError("election", "there is no coordinator here")
            case m.Submit():
                self._coordination.server.take_submit(peer, opened, message)
            case m.Assigned():
                self._coordination.client.take_assigned(peer, opened, message)
            case m.Vote() | m.Voted() | m.Leading() | m.Following():
                self.electing.receive(peer.name, message)

    def drained(self, peer: Peer) -> None:
        if peer.queued is None:
            return
        (get, key), peer.queued = peer.queued, None
        try:
            model = self.outbox.models.get(key)
            if model is None:
                self.contacts.say(peer, m.Absent(get.request, self.round, "gone"))
            else:
                self._answer(peer, get, model)
        except TransportError:
            self.rejected["link lost"] += 1

    def _serve(self, peer: Peer, get: m.Get) -> None:
        if not self._may_ask(peer):
            self.contacts.say(peer, m.Absent(get.request, self.round, "not allowed"))
            return
        found = self.outbox.find(get.round, get.stage)
        if isinstance(found, Published):
            self._answer(peer, get, found)
        elif found == "wait":
            peer.waiting[get.round, get.stage] = get
            if len(peer.waiting) > WAITING_REQUESTS:  # the newest request replaces the oldest
                del peer.waiting[min(peer.waiting, key=lambda key: peer.waiting[key].request)]
        else:
            self.contacts.say(peer, m.Absent(get.request, self.round, found))

    def _answer_waiting(self) -> None:
        for peer in self.contacts.introduced():
            for key in list(peer.waiting):
                found = self.outbox.find(*key)
                if found != "wait":
                    get = peer.waiting.pop(key)
                    try:
                        if isinstance(found, Published):
                            self._answer(peer, get, found)
                        else:
                            self.contacts.say(peer, m.Absent(get.request, self.round, found))
                    except TransportError:
                        self.rejected["link lost"] += 1

    def _answer(self, peer: Peer, get: m.Get, model: Published) -> None:
        """Send a model; or keep it until the peer has read the ones before, instead of an older one that was kept."""
        update = model.update
        if peer.link is not None and peer.link.backlog > (MODELS_IN_FLIGHT - 1) * update.size:
            superseded, peer.queued = peer.queued, (get, (update.round, update.stage))
            if superseded is not None:
                self.contacts.say(peer, m.Absent(superseded[0].request, self.round, "busy"))
            return
        base = self.coding.base(model, get.known)
        payload = self._payload(model, base)
        age = max(0.0, asyncio.get_running_loop().time() - model.time)
        answer = m.Answer(get.request, update.round, update.stage, update.n_samples, self.outbox.final, age, base)
        self.contacts.say(peer, answer, payload)
        self.traffic.sent_models += 1
        self.traffic.sent_update += OVERHEAD + payload.size
        self.traffic.sent_preparation += 0 if update.round else OVERHEAD + payload.size

    def _payload(self, model: Published, base: bytes) -> Payload:
        """Return what is sent of a model to all who know `base`; made once."""
        key = model.update.round, model.update.stage, base
        if key not in self._payloads:
            self._payloads = {k: v for k, v in self._payloads.items() if k[:2] in self.outbox.models}
            self._payloads[key] = Payload.of(self.coding.encode(model, base), encode_extras(model.update.extras))
        return self._payloads[key]

    def _take(self, peer: Peer, answer: m.Answer, payload: memoryview) -> None:
        if answer.request not in peer.requests:  # it came too late
            self.contacts.resolve(peer, answer.request, None)
            return
        if answer.request not in peer.asked:
            peer.resolve(answer.request, None)
            raise ProtocolError("not asked for", "a model, where a loss was")
        try:
            self._check_asked(peer, answer)
            params, rest = self.coding.decode(payload, answer.base, peer.asked[answer.request].known)
            extras = decode_extras(rest)
            self._check_norm(params)
        except ProtocolError:
            peer.resolve(answer.request, None)
            raise
        self.coding.keep(peer.name, answer.round, params)
        size = OVERHEAD + len(payload)
        update = Update(
            peer.name, answer.round, answer.stage, params, answer.n_samples, extras, answer.final, answer.age, size
        )
        peer.age = answer.age
        if answer.round == self.round:
            self._pacing.exchanged()
        if answer.final:
            peer.stopped = True
        peer.resolve(answer.request, update)

    def _check_asked(self, peer: Peer, answer: m.Answer) -> None:
        """Refuse another model than the one that was asked for, and another number of samples than was introduced."""
        round, stage, _ = peer.asked[answer.request]
        newest = answer.final or (self._settings.mode == "asynchronous" and stage != "prepared")
        if answer.stage != stage or (answer.round != round and not newest):
            raise ProtocolError("not asked for", f"{answer.stage} of round {answer.round}, not {stage} of {round}")
        if answer.n_samples != peer.about.get("n_samples"):
            raise ProtocolError("differs", f"{answer.n_samples} samples, {peer.about.get('n_samples')} at the introduction")

    def _check_norm(self, params: Parameters) -> None:
        """Refuse a model so large that its mean with ours would be useless."""
        if norm(params) > LARGEST_RATIO * (1.0 + self._norm):
            raise ProtocolError("too large", f"a norm of {norm(params):.3g}, our own is {self._norm:.3g}")

    def _begin_score(self, peer: Peer, score: m.Score, payload: memoryview) -> None:
        compute = self._loss
        if compute is None or not self._may_ask(peer) or not self._is_fresh(peer, score):
            self.contacts.say(peer, m.Absent(score.request, self.round, "not allowed"))
            raise ProtocolError("not allowed", f"{peer.name} asks for a loss")
        params, _ = decode(payload, self.coding.layout.size)  # whatever the codec
        if peer.scoring >= SCORES_AT_ONCE:
            self.contacts.say(peer, m.Absent(score.request, self.round, "busy"))
            return

        peer.scoring += 1
        peer.scored.add(score.round if self._settings.mode == "synchronous" else self.round)
        self.losses_given[peer.name] += 1

        async def reply() -> None:
            try:
                loss = await compute(self.whole(params))
            finally:
                peer.scoring -= 1
            if self._settings.robust != "none":
                loss = coarse(loss)
            self.contacts.say(peer, m.Scored(score.request, loss))
            self.traffic.sent_scored += OVERHEAD

        self.contacts.serve(peer.link, reply(), f"{self.name} scores for {peer.name}")

    def _is_fresh(self, peer: Peer, score: m.Score) -> bool:
        """Return whether a member may ask for a loss now: a participant, once a round, and only for a round near by."""
        if self._settings.robust == "none":
            return True
        round = score.round if self._settings.mode == "synchronous" else self.round
        peer.scored = {known for known in peer.scored if known >= self.round - 1}
        near = abs(round - self.round) <= 1
        return near and round not in peer.scored and self._sets_the_pace(peer)


def norm(params: Parameters) -> float:
    """Return the Euclidean norm."""
    with np.errstate(over="ignore"):
        square = float(np.dot(params, params))
    return sqrt(square) if isfinite(square) else float(np.linalg.norm(params.astype(np.float64)))


def payload_limit(size: int, coordinated: bool = False) -> int:
    """Return the most bytes that a payload of nodes with P parameters may have.

    Args:
        coordinated: their policy has a coordinator, to which they submit two models at once.
    """
    return max(4 * size * (1 + coordinated) + EXTRAS_LIMIT, m.Terms.LIMIT)
