"""Neighbours of a node, and its suspicions that some of them have failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class PeerView:
    """Peers with which a node may learn.

    Attributes:
        neighbours: all peers that the topology allows; sorted.
        ids: the peers that are not suspected; sorted. The value is replaced, never changed, so that it can be kept.
        suspected: reason for the suspicion of a peer.
        left_out: reason for leaving out a peer for good; it is none of `neighbours`.
        on_change: called after every change.
    """

    def __init__(self, neighbours: Iterable[str]) -> None:
        given = tuple(neighbours)
        ordered = tuple(sorted(given))
        self.neighbours = given if given == ordered else ordered  # the caller's own tuple, if possible
        self.ids = self.neighbours
        self.suspected: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.on_change: list[Callable[[], None]] = []

    def add(self, id: str) -> None:
        """Add a peer."""
        self.neighbours = tuple(sorted({*self.neighbours, id}))
        self._update()

    def remove(self, id: str) -> None:
        """Remove a peer that is no longer a neighbour."""
        self.neighbours = tuple(known for known in self.neighbours if known != id)
        self.suspected.pop(id, None)
        self.left_out.pop(id, None)
        self._update()

    def leave_out(self, id: str, reason: str) -> None:
        """Exclude a peer for good: this node neither learns from it, nor serves it, nor waits for it."""
        if id not in self.left_out:
            self.left_out[id] = reason
            self.neighbours = tuple(known for known in self.neighbours if known != id)
            self._update()

    def suspect(self, id: str, reason: str) -> None:
        """Exclude a peer until its next message. This is an opinion of this node and decides nothing else."""
        if id not in self.suspected:
            self.suspected[id] = reason
            self._update()
        else:
            self.suspected[id] = reason

    def heard(self, id: str) -> None:
        """End the suspicion of a peer after an authentic message."""
        if self.suspected.pop(id, None) is not None:
            self._update()

    def notify(self) -> None:
        """Notify all subscribers of a change."""
        for notify in self.on_change:
            notify()

    def _update(self) -> None:
        self.ids = tuple(id for id in self.neighbours if id not in self.suspected)
        self.notify()
