"""Detection of members that send different models of one round to different peers.

After a fetch a node sends the signed headers of the received models to one peer, drawn at random. A node that knows two
different models of one round has a proof. It sends the proof to all peers, which verify it with the member's key and
pass it on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakKeyDictionary

from p2pfl.node.conduct.conduct import Conduct
from p2pfl.node.conduct.receipts import ReceiptBook
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Opened, Payload, parse_header
from p2pfl.protocols.wire.signed_models import (
    SignedModel,
    make_proof,
    parse_receipts,
    parse_signed_model,
    read_proof,
    verify,
)
from p2pfl.random_streams import RandomStreams

NEAR = 2  # reported models of rounds further from the own round are compared, but not kept
REPORT_RATE, REPORT_BURST = 5.0, 20  # reports of one peer per second that are read


class EquivocationWatch:
    """Comparison of signed models with those that peers have received.

    Attributes:
        conduct: penalties of the peers. If it is not enabled, this node sends no reports and ignores those of peers.
    """

    def __init__(self, config: PeeringConfig, contacts: PeerManager, conduct: Conduct) -> None:
        conduct.leave_out, conduct.accept_proof = contacts.roster.leave_out, self._restore
        self._access = config.options.access
        self._log = config.options.log
        self._key = config.key
        self._asynchronous = config.asynchronous
        self._draws = RandomStreams(config.seed, config.name)
        self._verifier = config.verifier
        self._federation = config.verifier.federation
        self._contacts = contacts
        self.conduct = conduct
        self._book = ReceiptBook()
        self._fresh: list[SignedModel] = []  # fetched since the last report
        self._rate = TokenBucket(REPORT_RATE, REPORT_BURST)
        self._sent: WeakKeyDictionary[Link, set[bytes]] = WeakKeyDictionary()  # keys of the proofs sent over a link

    # Models and reports

    def take(self, opened: Opened) -> None:
        """Note the frame of a received model.

        Raises:
            ProtocolError: a later start of the sender is known.
        """
        if not (self.conduct.enabled and len(opened.envelope)):
            return
        assert isinstance(opened.message, m.ModelUpdate)
        if opened.message.base:  # the bytes of a difference depend on the recipient
            return
        model = parse_signed_model(opened.envelope, self._federation)
        if self._book.is_outdated(model):
            raise ProtocolError("replay", "a model of an earlier start of its sender")
        known = self._book.find(model)
        if known is not None and known.contradicts(model):
            self._prove(known, model)
            return
        self._book.add(model, fetched=True)
        self._fresh.append(model)

    def report(self, round: int) -> None:
        """Send one peer the signed headers of the models that were received since the last report."""
        models, self._fresh = self._fresh, []
        peers = self._contacts.introduced_peers()
        if not (models and peers):
            return
        rng = self._draws.generator(round, "receipts")
        peer = peers[int(rng.integers(len(peers)))]
        others = [model.envelope for model in models if model.sender != peer.key]
        chosen = [others[k] for k in rng.permutation(len(others))[: m.Receipts.MOST]]
        if chosen:
            self._send(peer, m.Receipts(), b"".join(chosen))

    def receive(self, peer: Peer, opened: Opened) -> None:
        """Handle a report or a proof of a peer.

        Raises:
            ProtocolError: it is malformed, or not signed.
        """
        if isinstance(opened.message, m.Equivocation):
            self._accept(bytes(opened.payload))
        elif self.conduct.enabled and self._rate.take(peer.key, asyncio.get_running_loop().time()):
            for model in parse_receipts(opened.payload, self._federation):
                self._compare(model)

    def _compare(self, model: SignedModel) -> None:
        known = self._book.find(model)
        near = self._asynchronous or abs(model.round - self._contacts.round) <= NEAR
        if model.sender == self._key or (known is None and not near) or not self._is_member(model.sender):
            return
        if known is None:
            verify(model)
            if self._is_newest(model):
                self._verifier.note_model(model.sender, model.envelope)
            self._book.add(model, fetched=False)
        elif known.contradicts(model):
            verify(model)
            self._prove(known, model)

    def _is_newest(self, model: SignedModel) -> bool:
        """Return whether a model is of a later start or round than the newest known one of its sender."""
        if self._book.is_outdated(model):
            return False
        newest = self._verifier.newest_model(model.sender)
        if not newest:
            return True
        header = parse_header(newest, self._federation)
        assert isinstance(header.body, m.ModelUpdate)
        return (model.start, model.round) > ((header.incarnation, header.generation), header.body.round)

    def _is_member(self, key: bytes) -> bool:
        if self._access is not None:
            return not self._access.refusal(key)
        return any(peer.key == key for peer in self._contacts.peers.values())

    # Proofs

    def _restore(self, proof: bytes) -> None:
        with suppress(ProtocolError):
            self._accept(proof)

    def spread(self) -> None:
        """Count the proofs against peers, and send them over links that have not carried them; forget former members."""
        for name in [name for name in self.conduct.penalties if name not in self._contacts.peers]:
            self.conduct.forget(name)
        if not self.conduct.proofs:
            return
        for peer in self._contacts.peers.values():
            if peer.key in self.conduct.proofs:
                self.conduct.penalise(peer.name, "equivocation", "two different models of one round, both signed")
        for peer in self._contacts.introduced_peers():
            if peer.link is None:
                continue
            sent = self._sent.setdefault(peer.link, set())
            for key in [key for key in self.conduct.proofs if key not in sent and key != peer.key]:
                sent.add(key)
                self._send(peer, m.Equivocation(), self.conduct.proofs[key])

    def _prove(self, one: SignedModel, other: SignedModel) -> None:
        self._accept(make_proof(one, other))

    def _accept(self, proof: bytes) -> None:
        """Keep and pass on a proof, unless there is one of this member already, or its signer is no member.

        Raises:
            ProtocolError: the proof is not valid.
        """
        sender = parse_signed_model(proof[: len(proof) // 2], self._federation).sender
        if sender in self.conduct.proofs or not self._is_member(sender):
            return
        one, _ = read_proof(proof, self._federation)
        self.conduct.proofs[sender] = proof
        self._log.warning(f"a member has signed two models of round {one.round}", kind="equivocation", key=sender.hex())
        self.spread()

    def _send(self, peer: Peer, message: m.Receipts | m.Equivocation, payload: bytes) -> None:
        try:
            self._contacts.send(peer, message, Payload.of(payload))
        except TransportError:
            self._contacts.rejected["link lost"] += 1
