"""Signed models that a node has fetched or that peers reported, for comparison with others of the same round."""

from __future__ import annotations

from p2pfl.protocols.wire.signed_models import SignedModel

KEPT = 6  # signed models of one sender and source: three rounds of two stages

Key = tuple[tuple[int, int], int, str]


class ReceiptBook:
    """Signed models of the last rounds, by sender.

    Fetched models and those that peers report are kept separately, so that reports cannot displace what this node has
    fetched itself.
    """

    def __init__(self) -> None:
        self._fetched: dict[bytes, dict[Key, SignedModel]] = {}
        self._reported: dict[bytes, dict[Key, SignedModel]] = {}

    def find(self, model: SignedModel) -> SignedModel | None:
        """Return the known model of the same sender, start, round and stage."""
        for book in (self._fetched, self._reported):
            found = book.get(model.sender, {}).get(_key(model))
            if found is not None:
                return found
        return None

    def add(self, model: SignedModel, fetched: bool) -> None:
        """Keep a model in place of the oldest one of its sender. The signature of a reported one must be valid."""
        kept = (self._fetched if fetched else self._reported).setdefault(model.sender, {})
        kept[_key(model)] = model
        if len(kept) > KEPT:
            del kept[min(kept)]

    def latest(self, sender: bytes) -> SignedModel | None:
        """Return the newest known model of a sender: of its last start, and there of its last round."""
        known = [*self._fetched.get(sender, {}).values(), *self._reported.get(sender, {}).values()]
        return max(known, key=_key, default=None)

    def is_outdated(self, model: SignedModel) -> bool:
        """Return whether a later start of the sender is known."""
        latest = self.latest(model.sender)
        return latest is not None and latest.start > model.start


def _key(model: SignedModel) -> Key:
    return model.start, model.round, model.stage
