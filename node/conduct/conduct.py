"""Penalties of peers, their score, and the exclusion of peers with a high score.

A point needs evidence that does not rest on the word of another peer. What a peer says about itself, such as the round
of its model, counts against nobody else. So does the order in which models arrive: a peer can fetch a model from its
author, and show it to this node before the author does. Only the author of a model knows who has copied it. This node
therefore gives points for copies of its own models, and for a model that a peer has shown before for another round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from p2pfl.compression.sparse_updates import tag
from p2pfl.node.folder.settings import MOST_DISTRUST
from p2pfl.parameters import Parameters
from p2pfl.policy import Update

Penalty = Literal["equivocation", "refused models", "repeated models", "free riding"]
POINTS: Mapping[Penalty, int] = {"equivocation": MOST_DISTRUST, "refused models": 1, "repeated models": 1, "free riding": 1}
"""Points of each penalty in the score of a peer. A proof suffices for every value of `distrust`."""

UNSERVED = 10  # requests without a model in a row, and models sent in that time, that count as free riding once
REMEMBERED = 8  # models of each sender, and of this node, that are compared with later ones


class ConductState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Known penalties on disk.

    Attributes:
        penalties: by peer and kind.
        proofs: of equivocation; see p2pfl.protocols.wire.signed_models.
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
