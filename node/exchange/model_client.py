"""Client that fetches models from peers and checks the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from p2pfl.node.conduct.equivocation import EquivocationWatch
from p2pfl.node.exchange.model_encoding import WHOLE, ModelEncoder
from p2pfl.node.exchange.norm_limit import NormLimit
from p2pfl.node.exchange.peer_requests import PeerRequests
from p2pfl.node.exchange.rounds.pacing import Pacing
from p2pfl.node.exchange.rounds.probation import Probation
from p2pfl.node.folder.settings import Settings
from p2pfl.node.peering.peer import Asked, Peer
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.policy import Stage, Update
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Opened
from p2pfl.protocols.wire.payload import decode_extras


class ModelClient:
    """Client that fetches models from peers.

    Args:
        limit: limit of the norm of a model.
        equivocation: compares the models with those that other peers have received, and counts penalties.
    """

    def __init__(
        self,
        contacts: PeerManager,
        requests: PeerRequests,
        *,
        coding: ModelEncoder,
        settings: Settings,
        limit: NormLimit,
        pacing: Pacing,
        probation: Probation,
        equivocation: EquivocationWatch,
    ) -> None:
        self._contacts = contacts
        self._requests = requests
        self._coding = coding
        self._settings = settings
        self._limit = limit
        self._pacing = pacing
        self._probation = probation
        self._conduct = equivocation.conduct
        self._equivocation = equivocation

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        """Return the models of (round, stage) from the peers `ids`, sorted by id."""
        copies, traffic = self._coding.ask(sorted(ids)), self._contacts.traffic

        def ask(peer: Peer, number: int) -> None:
            stage = stages if isinstance(stages, str) else stages[peer.name]
            copy = copies.get(peer.name)
            peer.asked[number] = Asked(round, stage, copy)
            self._contacts.send(peer, m.Get(number, round, stage, WHOLE if copy is None else copy.tag))
            traffic.sent_get += OVERHEAD
            traffic.sent_preparation += 0 if round else OVERHEAD

        self._ask_in_background(ids, round, stages)
        updates: list[Update] = await self._requests.ask(ids, round, ask)
        self._equivocation.report(round)
        return updates

    def _ask_in_background(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> None:
        """Request a model from the peers on probation without waiting for their answers."""
        contacts = self._contacts
        for peer in contacts.introduced_peers():
            if self._probation.owes(peer.name) and peer.name in contacts.roster.neighbours and peer.name not in ids:
                number = next(contacts.numbers)
                peer.note_overdue(number)
                stage = stages if isinstance(stages, str) else "trained"
                contacts.tell(peer, m.Get(number, round, stage, WHOLE))
                contacts.traffic.sent_get += OVERHEAD

    def take(self, peer: Peer, opened: Opened, answer: m.ModelUpdate) -> None:
        """Accept a model from a peer.

        Raises:
            ProtocolError: the model is malformed, or it is not the requested one.
        """
        if answer.request not in peer.requests:  # the answer came too late, or nothing was requested
            if answer.request in peer.overdue:
                self._conduct.record_answer(peer.name)
            self._contacts.resolve(peer, answer.request, None)
            return
        try:
            self._equivocation.take(opened)
            update = self._update(peer, answer, opened.payload)
        except ProtocolError as error:
            peer.resolve(answer.request, None)
            if error.cause != "replay":  # a frame that was still in transit at a restart
                self._conduct.penalise(peer.name, "refused models", f"{error.cause}: {error}")
            raise
        self._coding.keep(peer.name, answer.round, update.params)
        peer.published = asyncio.get_running_loop().time() - answer.age
        if answer.round == self._contacts.round:
            self._pacing.record_exchange()
        if answer.final:
            peer.stopped = True
        peer.resolve(answer.request, update)

    def _update(self, peer: Peer, answer: m.ModelUpdate, payload: memoryview) -> Update:
        """Return the model in an answer."""
        asked = peer.asked.get(answer.request)
        if asked is None:
            raise ProtocolError("not asked for", "a model instead of a loss")
        self._check(peer, asked, answer)
        (params, norm), rest = self._coding.decode(payload, answer.base, asked.known)
        extras = decode_extras(rest)
        self._limit.check_norm(norm)
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

    def _check(self, peer: Peer, asked: Asked, answer: m.ModelUpdate) -> None:
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
