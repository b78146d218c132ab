"""Conduct of peers: points for what they have provably done, and the exclusion of peers with too many.

A point needs evidence that does not rest on the word of another peer. What a peer says about itself, such as the round
of its model, counts against nobody else. So does the order in which models arrive: a peer can fetch a model from its
author, and show it to this node before the author does. Only the author of a model knows who has copied it. This node
therefore gives points for copies of its own models, and for a model that a peer has shown before for another round.

A member that sends different models of one round to different peers (equivocation) is found by comparison. After a fetch
a node sends the signed header of each received model to the witnesses of its sender and round: three of its peers, which a
hash picks. A node that knows two different models of one round, fetched or reported, has a proof. It sends the proof to all
peers, which verify it with the member's key and pass it on. A proof alone suffices to leave a member out.

Witnesses. If each node reported to a random peer, two headers would meet by chance, once in as many rounds as a node has
peers. The hash of the sender, the round and the peer gives each peer a rank, and the first three are the witnesses
(rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). Two nodes with the
same peers therefore report to the same witnesses, in the same round, however many members there are. If their peers
differ in a few, most witnesses are still the same, without any agreement on them.

- One hostile or absent witness hides nothing: any two of the three suffice, and so does one. m accomplices among n peers
  are all three witnesses of a sender in (m / n)^3 of the rounds. A sender that waits for such a round is not found in it.
- Nobody chooses its rank: it is another one for each sender and round.
- In an incomplete graph two neighbours of the sender often have no other common peer. If all members know the graph, the
  witnesses are therefore neighbours of the sender, and receipts are carried to them over other members, by a shortest way
  without the sender. The way has O(log n) links in a random graph of n members, which takes a moment and no round. So
  that the cost stays that of a few frames, a node reports one sender of those that it has fetched. It draws it with its
  own key: a sender that could foresee it, even from all other models, would choose the rounds or the model with which it is
  not reported. If the graph is not known, nodes
  report to their own peers, and forks meet only where these have peers in common.
- Cost: a fetched model makes three receipts of 320 bytes. They travel in one frame for each witness, at most eight in a
  frame. Where there are more, as with many parts of models, those are chosen by a hash too, so that both headers are among
  them. A witness verifies the signature of the first receipt of a model, and compares the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from heapq import nsmallest
from operator import itemgetter
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec

from p2pfl.compression.sparse_updates import tag
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.node.peering.peers import Peer
from p2pfl.node.settings import MOST_DISTRUST
from p2pfl.parameters import Parameters
from p2pfl.policy import Update
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import (
    OVERHEAD,
    VERSION,
    Opened,
    Payload,
    SignedModel,
    is_readable,
    make_proof,
    make_route,
    parse_carried,
    parse_header,
    parse_receipts,
    parse_signed_model,
    read_proof,
)

Penalty = Literal["equivocation", "refused models", "repeated models", "free riding"]
# By penalty. A proof of equivocation suffices for every value of `distrust`.
POINTS: Mapping[Penalty, int] = {"equivocation": MOST_DISTRUST, "refused models": 1, "repeated models": 1, "free riding": 1}
UNSERVED = 10  # requests without a model in a row, and models sent in that time, that count as free riding once
REMEMBERED = 8  # models of each sender, and of this node, that are compared with later ones
NEAR = 2  # reported models of rounds further from the own round are compared, but not kept
REPORT_RATE, REPORT_BURST = 5.0, 20  # reports of one peer per second that are read
WITNESSES = 3  # peers that compare the models of a sender and a round
CARRY_RATE, CARRY_BURST = 20.0, 100  # reports of one peer per second that are passed on
WAYS = 256  # ways that are remembered
UNKNOWN = 16  # proofs against members that are not known yet, which are kept of one peer
KEPT = 6  # signed models of one sender and source: three rounds of two stages
KEPT_FRAGMENTS = 64  # the same of fragments
Key = tuple[tuple[int, int], int, str, tuple[str, int, int] | None]


class ConductState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Known penalties on disk.

    Attributes:
        penalties: by peer and kind.
        proofs: of equivocation; see p2pfl.protocols.wire.envelope.
    """

    penalties: dict[str, dict[str, int]] = {}
    proofs: list[bytes] = []


class Conduct:
    """Penalties of a node's peers.

    Args:
        distrust: score from which a peer is left out; 0 leaves no peer out.
        enabled: whether models are compared with earlier ones.

    Attributes:
        penalties: number of penalties, by peer and kind.
        proofs: proof of equivocation of each convicted member, by key. Not all of them are peers.
        unweighted: number of rounds in which the robust rule gave a peer the weight 0. That is no penalty.
        shared: number of models of each peer that another peer has shown, too. That is no penalty for either, because
            this node cannot tell which of the two is the author.
        left_out: peers that are left out.
        leave_out: called with the name of a peer to leave out, and the reason.
        accept_proof: called with each restored proof, to verify it.
        on_penalty: called with the name of a peer, the kind of its penalty, and a detail, after each penalty.
    """

    def __init__(self, distrust: int = 0, enabled: bool = False) -> None:
        self.distrust = distrust
        self.enabled = enabled
        self.penalties: dict[str, Counter[str]] = {}
        self.proofs: dict[bytes, bytes] = {}
        self.unweighted: Counter[str] = Counter()
        self.shared: Counter[str] = Counter()
        self.left_out: set[str] = set()
        self.leave_out: Callable[[str, str], None] = lambda name, reason: None
        self.accept_proof: Callable[[bytes], None] = lambda proof: None
        self.on_penalty: list[Callable[[str, str, str], None]] = []
        self._unserved: Counter[str] = Counter()  # requests to a peer since its last model
        self._given: Counter[str] = Counter()  # models sent to a peer since its last model
        self._models: dict[str, dict[bytes, int]] = {}  # by sender: hashes of its last models, with their round
        self._own: list[bytes] = []  # hashes of this node's last models

    # The score

    def score(self, name: str) -> int:
        """Return the sum of a peer's points."""
        found = self.penalties.get(name, Counter())
        return sum(points * found[kind] for kind, points in POINTS.items())

    def reason(self, name: str) -> str:
        """Return the penalties of a peer as text, the gravest first; "" without any."""
        found = self.penalties.get(name, Counter())
        return ", ".join(kind if kind == "equivocation" else f"{kind}: {found[kind]}" for kind in POINTS if found.get(kind))

    def is_distrusted(self, name: str) -> bool:
        """Return whether a peer is left out."""
        return 0 < self.distrust <= self.score(name)

    def penalise(self, name: str, kind: Penalty, detail: str = "") -> None:
        """Count a penalty of a peer, and leave the peer out if its score is too high now."""
        counts = self.penalties.setdefault(name, Counter())
        if kind == "equivocation" and counts[kind]:
            return  # one proof of each member is enough
        counts[kind] += 1
        for report in self.on_penalty:
            report(name, kind, detail)
        self.review([name])

    def forget(self, name: str) -> None:
        """Forget a peer that is no longer a member, or has another key now."""
        for counts in (self.penalties, self.unweighted, self.shared, self._unserved, self._given, self._models):
            counts.pop(name, None)
        self.left_out.discard(name)

    def review(self, names: Collection[str]) -> None:
        """Leave out those of some peers whose score is too high."""
        for name in names:
            if self.is_distrusted(name) and name not in self.left_out:
                self.left_out.add(name)
                self.leave_out(name, f"distrusted: {self.reason(name)}")

    # Models

    def record_fetch(self, asked: Sequence[str], updates: Sequence[Update], own: Parameters | None) -> None:
        """Compare fetched models with earlier ones, and count the requests that brought no model.

        Args:
            asked: the peers that were asked.
            own: the node's own trained model of the round, as its peers receive it. None if it has none, or if it equals
                the model before training: nodes that have not learned yet may have the same one.
        """
        if not self.enabled:
            return
        served = {update.sender for update in updates}
        for name in asked:
            if name not in served:
                self.record_miss(name)
        if own is not None and (mine := tag(own)) not in self._own:
            self._own = [*self._own, mine][-REMEMBERED:]
        for update in updates:
            self.record_answer(update.sender)
            if update.stage == "trained" and not update.final:
                self._compare(update)

    def record_fragments(self, asked: Collection[str], senders: Collection[str]) -> None:
        """Count the requests for fragments that brought none. Fragments are not compared with earlier ones.

        Args:
            asked: the peers that were asked.
            senders: those that have sent a fragment.
        """
        for name in asked if self.enabled else ():
            if name in senders:
                self.record_answer(name)
            else:
                self.record_miss(name)

    def record_answer(self, name: str) -> None:
        """Record that a peer has sent a model, possibly late."""
        self._unserved[name] = self._given[name] = 0

    def record_miss(self, name: str) -> None:
        """Record a request to a peer that brought no model."""
        self._unserved[name] += 1
        if self._unserved[name] >= UNSERVED and self._given[name] >= UNSERVED:
            self.record_answer(name)
            self.penalise(name, "free riding", f"{UNSERVED} models fetched, none sent")

    def record_gift(self, name: str) -> None:
        """Record that this node has sent a model to a peer."""
        self._given[name] += 1

    def record_weights(self, senders: Collection[str], weights: Mapping[str, float]) -> None:
        """Count the senders of a round's models to which the robust rule has given no weight."""
        self.unweighted.update([id for id in senders if not weights.get(id, 0.0)])

    def _compare(self, update: Update) -> None:
        """Count a trained model that is equal to one of this node's, or to one that its sender has shown before."""
        found, sender, round = tag(update.params), update.sender, update.round
        known = self._models.setdefault(sender, {})
        if found in self._own:
            self.penalise(sender, "repeated models", f"round {round}: a model of this node")
        elif known.get(found, round) != round:
            self.penalise(sender, "repeated models", f"round {round}: its model of round {known[found]}")
        if found in known:
            return
        others = [name for name, models in self._models.items() if found in models]
        if others:
            self.shared.update([sender, *others])
        known[found] = round
        if len(known) > REMEMBERED:
            del known[next(iter(known))]

    # Checkpoints

    def state(self) -> ConductState:
        penalties = {name: {kind: n for kind, n in counts.items() if n} for name, counts in self.penalties.items()}
        return ConductState(penalties, [self.proofs[key] for key in sorted(self.proofs)])

    def restore(self, state: ConductState) -> None:
        """Restore the penalties. Proofs are verified again, because members may have changed."""
        for name, counts in state.penalties.items():
            self.penalties[name] = Counter(
                {kind: n for kind, n in counts.items() if kind in POINTS and kind != "equivocation"}
            )
        for proof in state.proofs:
            self.accept_proof(proof)
        self.review(list(self.penalties))

    def score_state(self, name: str) -> dict[str, Any]:
        """Return the score of a peer and its penalties, as values that JSON supports."""
        return {
            "score": self.score(name),
            "penalties": {kind: n for kind, n in self.penalties.get(name, {}).items() if n},
        }


def witnesses(sender: str, round: int, peers: Iterable[str]) -> list[str]:
    """Return the names of those peers that compare the models of a sender and a round: the three with the lowest hashes."""
    begun = sha256(b"p2pfl witness 1\0" + round.to_bytes(8, "big") + sender.encode() + b"\0")

    def rank(peer: str) -> bytes:
        hash = begun.copy()
        hash.update(peer.encode())
        return hash.digest()

    return nsmallest(WITNESSES, (peer for peer in peers if peer != sender), key=rank)


def reports(models: Sequence[tuple[str, SignedModel]], peers: Collection[str]) -> dict[str, list[SignedModel]]:
    """Return the models that each of some peers is to compare, by its name; at most as many as fit into a message.

    Args:
        models: models with the names of their senders.
    """
    found: dict[str, list[tuple[bytes, SignedModel]]] = {}
    chosen: dict[tuple[str, int], list[str]] = {}
    for sender, model in models:
        key = sender, model.round
        if key not in chosen:
            chosen[key] = witnesses(sender, model.round, peers)
        order = sha256(f"{sender} {model.round} {model.stage} {model.part}".encode()).digest()
        for name in chosen[key]:
            found.setdefault(name, []).append((order, model))
    return {
        name: [model for _, model in nsmallest(m.Receipts.MOST, found[name], key=itemgetter(0))] for name in sorted(found)
    }


def carried_reports(
    models: Sequence[tuple[str, SignedModel]],
    name: str,
    around: Callable[[str], Collection[str]],
    draw: Callable[[bytes], bytes],
) -> dict[str, list[SignedModel]]:
    """Return the models of one sender and round, drawn from those fetched, that each of its witnesses is to compare.

    The witnesses are among the sender's neighbours. This node has compared the models already if it is one.

    Args:
        models: models with the names of their senders; at least one.
        name: name of this node.
        draw: returns bytes that follow from other bytes, and that only this node can foresee.
    """
    groups: dict[tuple[str, int], list[tuple[str, SignedModel]]] = {}
    for sender, model in models:
        groups.setdefault((sender, model.round), []).append((sender, model))
    drawn = draw(sha256(b"".join(sorted(model.content[0][:8] for _, model in models))).digest())
    chosen = sorted(groups)[int.from_bytes(drawn[:8], "big") % len(groups)]
    return {each: models for each, models in reports(groups[chosen], around(chosen[0])).items() if each != name}


class Ways:
    """Shortest ways between members over the links of a graph that all know.

    Args:
        around: returns the names of the members with which a member has links.
        version: returns a value that changes with the graph. The ways of an earlier graph may lead over members that have
            gone, or that are no neighbours any more.
    """

    def __init__(self, around: Callable[[str], Collection[str]], version: Callable[[], object] = lambda: 0) -> None:
        self.around = around
        self._version = version
        self._known = version()  # the graph of the ways that are remembered
        self._found: dict[tuple[str, str, str], tuple[str, ...]] = {}

    def find(self, start: str, end: str, without: str) -> tuple[str, ...]:
        """Return the names on a shortest way, without its start, that avoids a member; empty if there is none.

        The search begins at both ends, so it sees about the square root of the members of a random graph.
        """
        key, version = (start, end, without), self._version()
        if version != self._known:
            self._known = version
            self._found.clear()
        if key not in self._found:
            if len(self._found) >= WAYS:
                self._found.clear()
            self._found[key] = self._search(*key)
        return self._found[key]

    def _search(self, start: str, end: str, without: str) -> tuple[str, ...]:
        before: tuple[dict[str, str], dict[str, str]] = {start: ""}, {end: ""}  # towards the start, and towards the end
        fronts = [[start], [end]]
        for _ in range(m.Carried.MOST):
            side = int(len(fronts[1]) < len(fronts[0]))
            seen, front = before[side], []
            for name in fronts[side]:
                for near in sorted(self.around(name)):
                    if near == without or near in seen:
                        continue
                    seen[near] = name
                    if near in before[1 - side]:
                        return (*reversed(_trail(near, before[0])), near, *_trail(near, before[1]))[1:]
                    front.append(near)
            fronts[side] = front
        return ()


def _trail(name: str, before: Mapping[str, str]) -> list[str]:
    """Return the names that come before one, the nearest first."""
    found = []
    while name := before[name]:
        found.append(name)
    return found


class EquivocationWatch:
    """Comparison of signed models with those that peers have received.

    Attributes:
        conduct: penalties of the peers. If it is not enabled, this node sends no reports and ignores those of peers.

    Args:
        around: see p2pfl.node.exchange.base.NeighbourRoles.
    """

    def __init__(
        self,
        config: PeeringConfig,
        peering: PeerManager,
        conduct: Conduct,
        around: Callable[[str], Collection[str]] | None = None,
    ) -> None:
        conduct.leave_out, conduct.accept_proof = peering.view.leave_out, self._restore
        self._access = config.options.access
        self._log = config.options.log
        self._key = config.key
        self._draw = config.signer.draw
        self._asynchronous = config.asynchronous
        self._verifier = config.verifier
        self._federation = config.verifier.federation
        self._peering = peering
        self.conduct = conduct
        self._book = ReceiptBook()
        self._fresh: list[SignedModel] = []  # fetched since the last report
        self._rate = TokenBucket(REPORT_RATE, REPORT_BURST)
        self._carry_rate = TokenBucket(CARRY_RATE, CARRY_BURST)
        self._name = config.name
        self._ways = None if around is None else Ways(around, self._version_of_log)
        self._sent: WeakKeyDictionary[Link, set[bytes]] = WeakKeyDictionary()  # keys of the proofs sent over a link
        self._unknown: dict[bytes, dict[bytes, bytes]] = {}  # by the key of who has shown them: proofs by their signers
        self._recalled = self._version_of_log()  # when these were looked at

    def _version_of_log(self) -> tuple[int, int]:
        """Return what the graph follows from; the log of a newcomer grows behind its checkpoint, too."""
        return (0, 0) if self._access is None else (self._access.membership_version, self._access.stored)

    # Models and reports

    def take(self, opened: Opened) -> None:
        """Note the frame of a received model.

        Raises:
            ProtocolError: a later start of the sender is known.
        """
        model = opened.model
        if model is None or not self.conduct.enabled:
            return
        if self._book.is_outdated(model):
            raise ProtocolError("replay", "a model of an earlier start of its sender")
        known = self._book.find(model)
        if known is not None and known.contradicts(model):
            self._prove(known, model)
            return
        self._book.add(model, fetched=True)
        self._fresh.append(model)

    def report(self) -> None:
        """Send the signed headers of the models that were received since the last report to their witnesses."""
        self._recall()
        models, self._fresh = self._fresh, []
        if not models:
            return
        peers = {peer.name: peer for peer in self._peering.introduced_peers()}
        fetched = [(sender.name, model) for model in models if (sender := self._peering.with_key(model.sender)) is not None]
        if self._ways is not None:
            self._carry(fetched, self._ways)
            return
        for name, shown in reports(fetched, peers).items():
            known = [model.envelope for model in shown if _is_known_to(peers[name], model.envelope)]
            if known:
                self._send(peers[name], m.Receipts(), b"".join(known))

    def _carry(self, fetched: Sequence[tuple[str, SignedModel]], ways: Ways) -> None:
        """Send the headers of one of the fetched senders towards neighbours of that sender."""
        for witness, shown in carried_reports(fetched, self._name, ways.around, self._draw).items():
            sender = next(name for name, model in fetched if model is shown[0])
            way = ways.find(self._name, witness, without=sender)
            first = self._peering.peers.get(way[0]) if way else None
            if first is None:
                continue
            receipts = b"".join(model.envelope for model in shown if _is_known_to(first, model.envelope))
            if len(way) > 1:
                self._pass_on(way, receipts)
            elif receipts:
                self._send(first, m.Receipts(), receipts)

    def _pass_on(self, way: Sequence[str], receipts: bytes | memoryview) -> None:
        """Send a report to the first member of a way. Do nothing if it is not connected, or knows version 6 only."""
        peer = self._peering.peers.get(way[0])
        if peer is not None and peer.link is not None and peer.link.version >= VERSION:
            route = make_route(way[1:])
            self._send(peer, m.Carried(len(route)), route, receipts)

    def _take_carried(self, message: m.Carried, payload: memoryview) -> None:
        """Pass on a report, or compare its models if this node is the witness.

        Who carries a report has not signed its headers and does not verify them, which would cost more than all else. So a
        false header is not held against the peer that has passed it on.

        Raises:
            ProtocolError: it is malformed. Nobody passes on such a report.
        """
        way, receipts = parse_carried(message, payload)
        models = parse_receipts(receipts, self._federation)
        if way:
            self._pass_on(way, receipts)
        for model in models:
            with suppress(ProtocolError):
                self._compare(model, keep=not way)  # on the way, this node may have fetched the other model

    def receive(self, peer: Peer, opened: Opened) -> None:
        """Handle a report or a proof of a peer.

        Raises:
            ProtocolError: it is malformed, or not signed.
        """
        if isinstance(opened.message, m.Equivocation):
            self._accept(bytes(opened.payload), peer.key)
        elif isinstance(opened.message, m.Carried):
            if self.conduct.enabled and self._carry_rate.take(peer.key, asyncio.get_running_loop().time()):
                self._take_carried(opened.message, opened.payload)
        elif self.conduct.enabled and self._rate.take(peer.key, asyncio.get_running_loop().time()):
            for model in parse_receipts(opened.payload, self._federation):
                self._compare(model)

    def _compare(self, model: SignedModel, keep: bool = True) -> None:
        known = self._book.find(model)
        # A report of a distant round is not kept, because old headers would displace the recent ones in the book.
        near = self._asynchronous or abs(model.round - self._peering.round) <= NEAR
        if model.sender == self._key or (known is None and not (near and keep)) or not self._is_member(model.sender):
            return
        if known is None:
            model.verify()
            if self._is_newest(model):
                self._verifier.note_model(model.sender, model.envelope)
            self._book.add(model, fetched=False)
        elif known.contradicts(model):
            model.verify()
            self._prove(known, model)

    def _is_newest(self, model: SignedModel) -> bool:
        """Return whether a model is of a later start or round than the newest known one of its sender."""
        if self._book.is_outdated(model):
            return False
        newest = self._verifier.newest_model(model.sender)
        if not newest:
            return True
        header = parse_header(newest, self._federation)
        assert isinstance(header.body, m.ModelUpdate | m.FragmentUpdate)
        return (model.start, model.round) > ((header.incarnation, header.generation), header.body.round)

    def _is_member(self, key: bytes) -> bool:
        if self._access is not None:
            return not self._access.refusal(key)
        return any(peer.key == key for peer in self._peering.peers.values())

    # Proofs

    def _restore(self, proof: bytes) -> None:
        with suppress(ProtocolError):
            self._accept(proof, self._key)

    def _recall(self) -> None:
        """Accept the proofs against members that the log has now. It comes to a newcomer after its first peers."""
        if not self._unknown or self._recalled == (version := self._version_of_log()):
            return
        self._recalled = version
        unknown, self._unknown = self._unknown, {}
        for shown_by, proofs in unknown.items():
            for proof in proofs.values():
                with suppress(ProtocolError):
                    self._accept(proof, shown_by)

    def _keep_unknown(self, sender: bytes, proof: bytes, shown_by: bytes) -> None:
        """Keep a proof against a key that the log does not have. It is not verified, so its number is bounded."""
        if self._access is None or self._access.refusal(sender) != "stranger":
            return
        if shown_by == self._key or self._peering.with_key(shown_by) is not None:
            kept = self._unknown.setdefault(shown_by, {})
            if len(kept) < UNKNOWN:
                kept.setdefault(sender, proof)

    def spread(self) -> None:
        """Count the proofs against peers, and send them over links that have not carried them; forget former members."""
        present = self._peering.peers.keys() | self._peering.released.keys()
        for name in [name for name in self.conduct.penalties if name not in present]:
            self.conduct.forget(name)
        self._recall()
        if not self.conduct.proofs:
            return
        for peer in self._peering.peers.values():
            if peer.key in self.conduct.proofs:
                self.conduct.penalise(peer.name, "equivocation", "two different models of one round, both signed")
        for peer in self._peering.introduced_peers():
            if peer.link is None:
                continue
            sent = self._sent.setdefault(peer.link, set())
            for key in [key for key in self.conduct.proofs if key not in sent and key != peer.key]:
                sent.add(key)
                proof = self.conduct.proofs[key]
                if _is_known_to(peer, proof) and _is_known_to(peer, proof[OVERHEAD:]):
                    self._send(peer, m.Equivocation(), proof)

    def _prove(self, one: SignedModel, other: SignedModel) -> None:
        self._accept(make_proof(one, other), self._key)

    def _accept(self, proof: bytes, shown_by: bytes) -> None:
        """Keep and pass on a proof, unless there is one of this member already, or its signer is no member.

        A peer shows a proof once over a link, so one against a member that the log does not have yet is kept until then.

        Args:
            shown_by: key of the peer that has sent it; that of this node for one of its own.

        Raises:
            ProtocolError: the proof is not valid.
        """
        sender = parse_signed_model(proof[: len(proof) // 2], self._federation).sender
        # Before the signatures are verified: a repeated proof, or one of a stranger, must cost no more than a look-up.
        if sender in self.conduct.proofs:
            return
        if not self._is_member(sender):
            self._keep_unknown(sender, proof, shown_by)
            return
        one, _ = read_proof(proof, self._federation)
        self.conduct.proofs[sender] = proof
        self._log.warning(f"a member has signed two models of round {one.round}", kind="equivocation", key=sender.hex())
        self.spread()

    def _send(self, peer: Peer, message: m.Report, *payload: bytes | memoryview) -> None:
        try:
            self._peering.send(peer, message, Payload.of(*payload))
        except TransportError:
            self._peering.rejected["link lost"] += 1


def _is_known_to(peer: Peer, envelope: bytes) -> bool:
    """Return whether a peer knows the wire version of a header."""
    return peer.link is not None and is_readable(envelope, peer.link.version)


class ReceiptBook:
    """Signed models of the last rounds, by sender.

    Fetched models and those that peers report are kept separately, so that reports cannot displace what this node has
    fetched itself; so are whole models and fragments.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, bool, bool], dict[Key, SignedModel]] = {}  # by sender, fetched, fragment

    def find(self, model: SignedModel) -> SignedModel | None:
        """Return the known model of the same sender, start, round and stage."""
        key = _key(model)
        for fetched in (True, False):
            found = self._kept.get((model.sender, fetched, model.part is not None), {}).get(key)
            if found is not None:
                return found
        return None

    def add(self, model: SignedModel, fetched: bool) -> None:
        """Keep a model in place of the oldest one of its sender. The signature of a reported one must be valid."""
        kept = self._kept.setdefault((model.sender, fetched, model.part is not None), {})
        kept[_key(model)] = model
        if len(kept) > (KEPT if model.part is None else KEPT_FRAGMENTS):
            del kept[min(kept)]

    def latest(self, sender: bytes) -> SignedModel | None:
        """Return the newest known model of a sender: of its last start, and there of its last round."""
        books = (self._kept.get((sender, fetched, part), {}) for fetched in (True, False) for part in (False, True))
        return max((model for book in books for model in book.values()), key=lambda model: _key(model)[:3], default=None)

    def is_outdated(self, model: SignedModel) -> bool:
        """Return whether a later start of the sender is known."""
        latest = self.latest(model.sender)
        return latest is not None and latest.start > model.start


def _key(model: SignedModel) -> Key:
    return model.start, model.round, model.stage, model.part
