"""Server of this node's models.

A peer receives the next model only when it has read the previous ones. If several models wait for that, only the newest
is kept.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from p2pfl.node.conduct.conduct import Conduct
from p2pfl.node.exchange.model_encoding import WHOLE, ModelEncoder
from p2pfl.node.exchange.published_models import Absence, Outbox, Published
from p2pfl.node.exchange.rounds.participants import Participants
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.policy import Stage
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Payload
from p2pfl.protocols.wire.payload import encode_extras

MODELS_IN_FLIGHT = 2  # for each peer
LARGE = 512 << 10  # minimum bytes of a model that is encoded and hashed in a thread
WAITING_REQUESTS = 4  # an honest peer never waits for more models that are not published yet

Refusal = Absence | Literal["not allowed", "busy"]


class ModelServer:
    """Server of this node's models.

    Attributes:
        payloads: models and their encoded forms, by round, stage, and the tag of the model from which it is a difference.
    """

    def __init__(
        self,
        contacts: PeerManager,
        participants: Participants,
        outbox: Outbox,
        coding: ModelEncoder,
        conduct: Conduct,
    ) -> None:
        self._conduct = conduct
        self.payloads: dict[tuple[int, Stage, bytes], tuple[Published, Payload]] = {}
        self._contacts = contacts
        self._participants = participants
        self._outbox = outbox
        self._coding = coding

    async def prepare(self, model: Published) -> None:
        """Encode and hash a model that is about to be published, so that no request waits for it.

        If peers receive differences, nothing is prepared, because requests name the models that they differ from.
        """
        if not self._coding.differences:
            large = self._coding.whole >= LARGE
            loop = asyncio.get_running_loop()
            payload = await loop.run_in_executor(None, self._encode, model, WHOLE) if large else self._encode(model, WHOLE)
            self._keep(model, WHOLE, payload)

    def serve(self, peer: Peer, get: m.Get) -> None:
        """Answer a request now, or as soon as its model is published.

        Raises:
            TransportError: the peer is no longer connected.
        """
        if not self._participants.may_ask(peer):
            self._refuse(peer, get, "not allowed")
            return
        found = self._outbox.find(get.round, get.stage)
        if found != "wait":
            self._answer(peer, get, found)
            return
        peer.waiting[get.round, get.stage] = get
        if len(peer.waiting) > WAITING_REQUESTS:  # the newest request replaces the oldest one
            del peer.waiting[min(peer.waiting, key=lambda key: peer.waiting[key].request)]

    def serve_waiting(self) -> None:
        """Answer the requests that waited for the newly published model."""
        for peer in self._contacts.introduced_peers():
            for key in list(peer.waiting):
                found = self._outbox.find(*key)
                if found != "wait" and (get := peer.waiting.pop(key, None)) is not None:  # a lost link clears the rest
                    self._try_answer(peer, get, found)

    def drained(self, peer: Peer) -> None:
        """Send the queued model to a peer that has read most of its data."""
        if peer.queued is not None:
            (get, key), peer.queued = peer.queued, None
            self._try_answer(peer, get, self._outbox.models.get(key, "gone"))

    def _try_answer(self, peer: Peer, get: m.Get, found: Published | Absence) -> None:
        try:
            self._answer(peer, get, found)
        except TransportError:
            self._contacts.rejected["link lost"] += 1

    def _answer(self, peer: Peer, get: m.Get, found: Published | Absence) -> None:
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
        base = self._coding.base(found, get.known)
        payload = self._payload(found, base)
        sent = self._outbox.as_sent(update, found.age(asyncio.get_running_loop().time()))
        answer = m.ModelUpdate(get.request, sent.round, sent.stage, sent.n_samples, sent.final, sent.age, base)
        self._contacts.send(peer, answer, payload)
        self._conduct.record_gift(peer.name)
        traffic, size = self._contacts.traffic, OVERHEAD + payload.size
        traffic.sent_models += 1
        traffic.sent_update += size
        traffic.sent_preparation += 0 if update.round else size

    def _refuse(self, peer: Peer, get: m.Get, reason: Refusal) -> None:
        self._contacts.send(peer, m.NotAvailable(get.request, self._contacts.round, reason))

    def _payload(self, model: Published, base: bytes) -> Payload:
        """Return the payload for all peers that know the model `base`. It is encoded only once.

        A node that went back publishes another model of the same round and stage.
        """
        encoded = self.payloads.get((model.update.round, model.update.stage, base))
        if encoded is not None and encoded[0] is model:
            return encoded[1]
        return self._keep(model, base, self._encode(model, base))

    def _encode(self, model: Published, base: bytes) -> Payload:
        return Payload.of(self._coding.encode(model, base), encode_extras(model.update.extras))

    def _keep(self, model: Published, base: bytes, payload: Payload) -> Payload:
        """Keep a payload in place of those of models that are no longer published."""
        models = self._outbox.models
        self.payloads = {key: kept for key, kept in self.payloads.items() if models.get(key[:2]) is kept[0]}
        self.payloads[model.update.round, model.update.stage, base] = model, payload
        return payload
