"""Requests for models and losses, and the answers to them; see p2pfl.node.exchange.message_exchange for their states.

PeerRequests asks several peers at once, with one deadline for all answers. ModelClient and LossClient ask through it.
ModelServer and LossServer answer; the server of models sends a peer the next model only when it has read the previous
ones, and keeps only the newest of those that wait.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, Literal, NamedTuple

from p2pfl.fragments import Fragments, Places
from p2pfl.node.conduct import Conduct, EquivocationWatch
from p2pfl.node.exchange.base import disclosed_loss, late_answer
from p2pfl.node.exchange.model_encoding import (
    WHOLE,
    Absence,
    ModelEncoder,
    NormLimit,
    Outbox,
    Published,
    encode_values,
    pack_parts,
    read_division,
    read_parts,
)
from p2pfl.node.exchange.rounds import AdaptiveTimeout, Pacing, Participants, Probation
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peers import Asked, AskedFragments, Peer, Request
from p2pfl.node.settings import Settings
from p2pfl.parameters import Parameters
from p2pfl.policy import Fragment, Stage, Update
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Opened, Payload
from p2pfl.protocols.wire.payload import decode, encode_extras

MODELS_IN_FLIGHT = 2  # for each peer
LARGE = 512 << 10  # minimum bytes of a model that is encoded and hashed in a thread
WAITING_REQUESTS = 4  # an honest peer never waits for more models that are not published yet
Refusal = Absence | Literal["not allowed", "busy"]
SCORES_AT_ONCE = 2  # losses computed in parallel for one peer
LossFunction = Callable[[Parameters], Awaitable[float]]


class ModelClient:
    """Requests for models of peers, and the checks of the answers.

    Args:
        limit: limit of the norm of a model.
        equivocation: compares the models with those that other peers have received, and counts penalties.
    """

    def __init__(
        self,
        peering: PeerManager,
        requests: PeerRequests,
        *,
        encoder: ModelEncoder,
        settings: Settings,
        limit: NormLimit,
        pacing: Pacing,
        probation: Probation,
        equivocation: EquivocationWatch,
    ) -> None:
        self._peering = peering
        self._requests = requests
        self._encoder = encoder
        self._settings = settings
        self._limit = limit
        self._pacing = pacing
        self._probation = probation
        self._conduct = equivocation.conduct
        self._equivocation = equivocation

    async def fetch_fragments(
        self, wanted: Mapping[str, Sequence[int]], round: int, fragments: Fragments, stage: Stage
    ) -> list[Fragment]:
        """Return parts of the models of (round, stage), sorted by peer and then by part; those that came in time."""
        parts, arrived = fragments.count(self._encoder.layout), dict[str, list[Fragment]]()

        def ask(peer: Peer, number: int) -> None:
            numbers, received = wanted[peer.name], arrived.setdefault(peer.name, [])
            peer.asked[number] = AskedFragments(round, stage, fragments, set(numbers), received)
            request = m.GetFragments(number, round, stage, fragments.rule, parts, pack_parts(numbers))
            self._peering.send(peer, request)

        await self._requests.ask(list(wanted), round, ask)
        order = {name: k for k, name in enumerate(fragments.names(self._encoder.layout))}
        found = [each for id in sorted(arrived) for each in sorted(arrived[id], key=lambda each: order[each.name])]
        if any(each.round == self._peering.round for each in found):
            self._pacing.record_exchange()
        self._equivocation.report()
        return found

    def ask_on_probation(self, wanted: Collection[str], round: int, fragments: Fragments, stage: Stage) -> None:
        """Request one part from each peer on probation, except those of `wanted`, without waiting for the answers.

        It is apart from `fetch_fragments`: a policy that does not wait fetches from each peer alone, or from none, but must
        ask these peers once in a round.
        """
        parts, first = fragments.count(self._encoder.layout), pack_parts([0])
        self._ask_in_background(
            wanted, lambda peer, number: m.GetFragments(number, round, stage, fragments.rule, parts, first)
        )

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        """Return the models of (round, stage) from the peers `ids`, sorted by id."""
        copies = self._encoder.ask(sorted(ids))

        def ask(peer: Peer, number: int) -> None:
            stage = stages if isinstance(stages, str) else stages[peer.name]
            copy = copies.get(peer.name)
            peer.asked[number] = Asked(round, stage, copy)
            self._peering.send(peer, m.Get(number, round, stage, WHOLE if copy is None else copy.tag))

        self._ask_in_background(
            ids, lambda peer, number: m.Get(number, round, stages if isinstance(stages, str) else "trained", WHOLE)
        )
        updates: list[Update] = await self._requests.ask(ids, round, ask)
        if any(update.round == self._peering.round for update in updates):
            self._pacing.record_exchange()
        self._equivocation.report()
        return updates

    def _ask_in_background(self, ids: Collection[str], request: Callable[[Peer, int], Request]) -> None:
        """Request a model from the peers on probation without waiting for their answers."""
        peering = self._peering
        for peer in peering.introduced_peers():
            if self._probation.owes(peer.name) and peer.name in peering.view.neighbours and peer.name not in ids:
                number = next(peering.numbers)
                peer.note_overdue(number)
                peering.tell(peer, request(peer, number))

    def take(self, peer: Peer, opened: Opened, answer: m.ModelUpdate | m.FragmentUpdate) -> None:
        """Accept a model, or a part of one, from a peer.

        Raises:
            ProtocolError: the model is malformed, or it is not the requested one.
        """
        if answer.request not in peer.requests:  # the answer came too late, or nothing was requested
            if answer.request in peer.overdue:
                self._conduct.record_answer(peer.name)
            self._peering.resolve(peer, answer.request, None)
            return
        try:
            self._equivocation.take(opened)
            result: Update | Sequence[Fragment] | None
            if isinstance(answer, m.FragmentUpdate):
                result = self._take_fragment(peer, answer, opened.payload)
            else:
                result = self._update(peer, answer, opened.payload)
        except ProtocolError as error:
            peer.resolve(answer.request, None)
            if error.cause != "replay":  # a frame that was still in transit at a restart
                self._conduct.penalise(peer.name, "refused models", f"{error.cause}: {error}")
            raise
        peer.published = asyncio.get_running_loop().time() - answer.age
        if answer.final:
            peer.stopped = True
        if result is not None:
            peer.resolve(answer.request, result)

    def _take_fragment(self, peer: Peer, answer: m.FragmentUpdate, payload: memoryview) -> Sequence[Fragment] | None:
        """Add a part of a model to those that have arrived; return all of them if it was the last one of its request."""
        asked = peer.asked.get(answer.request)
        if not isinstance(asked, AskedFragments):
            raise ProtocolError("not asked for", "a fragment instead of a model or a loss")
        layout = self._encoder.layout
        if read_division(answer, layout) != asked.fragments or answer.part not in asked.missing:
            raise ProtocolError("not asked for", f"part {answer.part} of {answer.parts} ({answer.division})")
        self._check(peer, asked, answer)
        places = asked.fragments.places(layout, self._settings.seed)[answer.part]
        values = self._encoder.receive_fragment(payload, places, self._limit)
        fragment = Fragment(
            *(peer.name, answer.round, answer.stage, asked.fragments.names(layout)[answer.part], values, places),
            *(answer.n_samples, answer.final, answer.age, OVERHEAD + len(payload)),
        )
        asked.missing.remove(answer.part)
        asked.arrived.append(fragment)
        return None if asked.missing else asked.arrived

    def _update(self, peer: Peer, answer: m.ModelUpdate, payload: memoryview) -> Update:
        """Return the model in an answer, and keep a copy of it for later differences."""
        asked = peer.asked.get(answer.request)
        if not isinstance(asked, Asked):
            raise ProtocolError("not asked for", "a model instead of a loss or a fragment")
        self._check(peer, asked, answer)
        params, extras = self._encoder.receive(payload, answer.base, asked.known, self._limit)
        self._encoder.keep(peer.name, answer.round, params)
        return Update(
            peer.name,
            answer.round,
            answer.stage,
            params,
            answer.n_samples,
            extras,
            answer.final,
            answer.age,
            OVERHEAD + len(payload),
        )

    def _check(self, peer: Peer, asked: Asked | AskedFragments, answer: m.ModelUpdate | m.FragmentUpdate) -> None:
        """Refuse a model other than the requested one, or a number of samples other than the announced one."""
        newest = answer.final or (self._settings.mode == "asynchronous" and asked.stage != "prepared")
        if answer.stage != asked.stage or (answer.round != asked.round and not newest):
            found = f"{answer.stage} of round {answer.round}"
            raise ProtocolError("not asked for", f"{found} instead of {asked.stage} of round {asked.round}")
        if answer.n_samples != peer.public_info.get("n_samples"):
            raise ProtocolError(
                "differs",
                f"a model of {answer.n_samples} samples, but {peer.public_info.get('n_samples')} in the introduction",
            )


class _Parts(NamedTuple):
    """Encoded parts of a published model, by number."""

    model: Published
    fragments: Fragments
    payloads: dict[int, Payload]


class ModelServer:
    """Answers to requests for this node's models. A model is encoded once for all peers that know the same earlier one.

    Args:
        divide: returns the places of the parts of a model; None if the policy does not fetch fragments. Then no request
            for one is answered.

    Attributes:
        payloads: models and their encoded forms, by round, stage, and the tag of the model from which it is a difference.
    """

    def __init__(
        self,
        peering: PeerManager,
        participants: Participants,
        outbox: Outbox,
        encoder: ModelEncoder,
        conduct: Conduct,
        *,
        divide: Callable[[Fragments], Sequence[Places]] | None = None,
    ) -> None:
        self._conduct = conduct
        self.divide = divide
        self._parts: dict[tuple[int, Stage], _Parts] = {}
        self.payloads: dict[tuple[int, Stage, bytes], tuple[Published, Payload]] = {}
        self._peering = peering
        self._participants = participants
        self._outbox = outbox
        self._encoder = encoder

    async def prepare(self, model: Published) -> None:
        """Encode and hash a model that is about to be published, so that no request waits for it.

        If peers receive differences, nothing is prepared, because requests name the models that they differ from.
        """
        if not self._encoder.differences:
            large = self._encoder.whole >= LARGE
            loop = asyncio.get_running_loop()
            payload = await loop.run_in_executor(None, self._encode, model, WHOLE) if large else self._encode(model, WHOLE)
            self._keep(model, WHOLE, payload)

    def serve(self, peer: Peer, get: Request) -> None:
        """Answer a request now, or as soon as its model is published.

        Raises:
            ProtocolError: a request for fragments is malformed, or the policy fetches none.
            TransportError: the peer is no longer connected.
        """
        if isinstance(get, m.GetFragments):
            if self.divide is None:
                self._refuse(peer, get, "not allowed")
                raise ProtocolError("not allowed", f"a request of {peer.name} for fragments")
            read_division(get, self._encoder.layout)
            read_parts(get)
        if not self._participants.may_ask(peer):
            self._refuse(peer, get, "not allowed")
            return
        found = self._outbox.find(get.round, get.stage)
        if found != "wait":
            self._answer(peer, get, found)
            return
        peer.waiting[get.round, get.stage, isinstance(get, m.GetFragments)] = get
        if len(peer.waiting) > WAITING_REQUESTS:  # the newest request replaces the oldest one
            del peer.waiting[min(peer.waiting, key=lambda key: peer.waiting[key].request)]

    def serve_waiting(self) -> None:
        """Answer the requests that waited for the newly published model."""
        for peer in self._peering.introduced_peers():
            for key in list(peer.waiting):
                found = self._outbox.find(*key[:2])
                if found != "wait" and (get := peer.waiting.pop(key, None)) is not None:  # a lost link clears the rest
                    self._try_answer(peer, get, found)

    def drained(self, peer: Peer) -> None:
        """Send the queued model to a peer that has read most of its data."""
        if peer.queued is not None:
            (get, key), peer.queued = peer.queued, None
            self._try_answer(peer, get, self._outbox.models.get(key, "gone"))

    def _try_answer(self, peer: Peer, get: Request, found: Published | Absence) -> None:
        try:
            self._answer(peer, get, found)
        except TransportError:
            self._peering.rejected["link lost"] += 1

    def _answer(self, peer: Peer, get: Request, found: Published | Absence) -> None:
        """Send a model. If the peer has not read the previous ones, queue it in place of an older queued model."""
        if not isinstance(found, Published):
            self._refuse(peer, get, found)
            return
        update = found.update
        if peer.link is not None and peer.link.backlog > (MODELS_IN_FLIGHT - 1) * update.size:
            superseded, peer.queued = peer.queued, (get, (update.round, update.stage))
            if superseded is not None:
                self._refuse(peer, superseded[0], "busy")
            return
        sent = self._outbox.as_sent(update, found.age(asyncio.get_running_loop().time()))
        about = get.request, sent.round, sent.stage, sent.n_samples, sent.final, sent.age
        if isinstance(get, m.GetFragments):
            for part in read_parts(get):
                payload = self.encode_part(found, read_division(get, self._encoder.layout), part)
                self._peering.send(peer, m.FragmentUpdate(*about, get.division, get.parts, part), payload)
        else:
            base = self._encoder.base(found, get.known)
            self._peering.send(peer, m.ModelUpdate(*about, base), self._payload(found, base))
        self._conduct.record_gift(peer.name)

    def _refuse(self, peer: Peer, get: Request, reason: Refusal) -> None:
        self._peering.send(peer, m.NotAvailable(get.request, self._peering.round, reason))

    def _payload(self, model: Published, base: bytes) -> Payload:
        """Return the payload for all peers that know the model `base`. It is encoded only once.

        A node that went back publishes another model of the same round and stage.
        """
        encoded = self.payloads.get((model.update.round, model.update.stage, base))
        if encoded is not None and encoded[0] is model:
            return encoded[1]
        return self._keep(model, base, self._encode(model, base))

    def encode_part(self, model: Published, fragments: Fragments, part: int) -> Payload:
        """Return the payload of a part of a model for all peers. It is encoded only once, for one division at a time."""
        key = model.update.round, model.update.stage
        kept = self._parts.get(key)
        if kept is None or kept.model is not model or kept.fragments != fragments:
            models = self._outbox.models
            self._parts = {key: kept for key, kept in self._parts.items() if models.get(key) is kept.model}
            kept = self._parts[key] = _Parts(model, fragments, {})
        if part not in kept.payloads:
            assert self.divide is not None
            kept.payloads[part] = Payload.of(encode_values(model.update.params[self.divide(fragments)[part]]))
        return kept.payloads[part]

    def _encode(self, model: Published, base: bytes) -> Payload:
        return Payload.of(self._encoder.encode(model, base), encode_extras(model.update.extras))

    def _keep(self, model: Published, base: bytes, payload: Payload) -> Payload:
        """Keep a payload in place of those of models that are no longer published."""
        models = self._outbox.models
        self.payloads = {key: kept for key, kept in self.payloads.items() if models.get(key[:2]) is kept[0]}
        self.payloads[model.update.round, model.update.stage, base] = model, payload
        return payload


class PeerRequests:
    """Wait for the answers of several peers that are asked at once, for each as long as it usually takes.

    Attributes:
        expired: number of missed deadlines.
    """

    def __init__(self, peering: PeerManager, timeouts: AdaptiveTimeout, probation: Probation) -> None:
        self.expired = 0
        self._peering = peering
        self._timeouts = timeouts
        self._probation = probation

    async def ask(self, ids: Sequence[str], round: int, send: Callable[[Peer, int], None]) -> list[Any]:
        """Send a request to each of `ids`; return the answers that came in time, in the order of `ids`.

        Args:
            send: sends the request with the given number to a peer.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        asked: list[tuple[Peer, int, Future[Any]]] = []
        for id in sorted(ids):
            peer = self._peering.peers.get(id)
            if peer is None:  # it is no longer a member
                continue
            number, answer = next(self._peering.numbers), loop.create_future()
            asked.append((peer, number, answer))
            peer.requests[number] = answer
            try:
                send(peer, number)
            except TransportError as error:
                answer.set_result(None)
                self._peering.suspect(peer, str(error))
            else:
                answer.add_done_callback(partial(self._measure, id, begun))
        if not asked:
            return []
        seconds = self._timeouts.wait([peer.name for peer, *_ in asked])
        _, late = await asyncio.wait([answer for *_, answer in asked], timeout=seconds)
        self.expired += bool(late)
        for peer, number, answer in asked:
            peer.requests.pop(number, None)
            peer.asked.pop(number, None)
            if answer in late:
                self._miss(peer, number, round)
        answers = [answer.result() for *_, answer in asked if answer not in late]
        return [answer for answer in answers if answer is not None]

    def _miss(self, peer: Peer, number: int, round: int) -> None:
        """Suspect a peer that has not answered in time."""
        self._timeouts.record_timeout(peer.name)
        peer.note_overdue(number)
        self._probation.record_timeout(peer.name, len(self._peering.peers))
        self._peering.suspect(peer, late_answer(round))

    def _measure(self, name: str, begun: float, answer: Future[Any]) -> None:
        if not answer.cancelled() and answer.result() is not None:
            self._probation.record_answer(name)
            self._timeouts.record_answer(name, asyncio.get_running_loop().time() - begun)


class LossClient:
    """Requests for the losses of this node's models on the training data of peers."""

    def __init__(self, peering: PeerManager, requests: PeerRequests) -> None:
        self._peering = peering
        self._requests = requests

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        """Return the mean loss of a model, float32 [S], on the training data of each of `ids`."""
        payload = Payload.of(params.data.cast("B"))

        def ask(peer: Peer, number: int) -> None:
            self._peering.send(peer, m.Score(number, round), payload)

        return dict(await self._requests.ask(ids, round, ask))

    def take(self, peer: Peer, scored: m.Scored) -> None:
        """Accept a loss from a peer.

        Raises:
            ProtocolError: the request was for a model.
        """
        if scored.request in peer.asked:
            peer.resolve(scored.request, None)
            raise ProtocolError("not asked for", "a loss instead of a model")
        loss = scored.loss
        self._peering.resolve(peer, scored.request, (peer.name, loss) if isfinite(loss) else None)


class LossServer:
    """Answers to requests for the losses of peers' models on this node's training data.

    Args:
        size: S, the number of values of a model that peers know.
        loss: computes the mean loss of a model [S] on this node's training data; None: no request is answered.

    Attributes:
        given: number of losses sent, by peer.
    """

    def __init__(
        self, peering: PeerManager, participants: Participants, *, settings: Settings, size: int, loss: LossFunction | None
    ) -> None:
        self.given: Counter[str] = Counter()
        self._peering = peering
        self._participants = participants
        self._settings = settings
        self._size = size
        self._loss = loss

    def serve(self, peer: Peer, score: m.Score, payload: memoryview) -> None:
        """Start to compute a loss.

        Raises:
            ProtocolError: the peer may not ask for a loss now, or its model is malformed.
            TransportError: the peer is no longer connected.
        """
        loss = self._loss
        if loss is None or not self._participants.may_ask(peer) or not self._is_fresh(peer, score):
            self._refuse(peer, score, "not allowed")
            raise ProtocolError("not allowed", f"a request of {peer.name} for a loss")
        params, _ = decode(payload, self._size)  # independent of the codec
        if peer.scoring >= SCORES_AT_ONCE:
            self._refuse(peer, score, "busy")
            return
        peer.scoring += 1
        if self._settings.robust != "none":
            peer.scored.add(self._round_of(score))
        self.given[peer.name] += 1
        name = f"{self._peering.name}: loss for {peer.name}"
        self._peering.serve(peer.link, self._reply(loss, peer, score, params), name)

    async def _reply(self, loss: LossFunction, peer: Peer, score: m.Score, params: Parameters) -> None:
        try:
            value = await loss(params)
        finally:
            peer.scoring -= 1
        self._peering.send(peer, m.Scored(score.request, disclosed_loss(value, self._settings.robust)))

    def _refuse(self, peer: Peer, score: m.Score, reason: Literal["not allowed", "busy"]) -> None:
        self._peering.send(peer, m.NotAvailable(score.request, self._peering.round, reason))

    def _round_of(self, score: m.Score) -> int:
        """Return the round to which a request counts."""
        return score.round if self._settings.mode == "synchronous" else self._peering.round

    def _is_fresh(self, peer: Peer, score: m.Score) -> bool:
        """Return whether a member may ask for a loss now.

        It must be a participant, may ask once per round, and only for a round close to this node's round.
        """
        if self._settings.robust == "none":
            return True
        own, round = self._peering.round, self._round_of(score)
        peer.scored = {known for known in peer.scored if known >= own - 1}
        near = abs(round - own) <= 1
        return near and round not in peer.scored and self._participants.counts(peer)
