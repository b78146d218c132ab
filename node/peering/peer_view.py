"""Neighbours of a node, and its suspicions that some are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class PeerView:
    """The peers that a node may learn with.

    Attributes:
        neighbours: all peers that the topology allows; sorted.
        ids: those that are not suspected; sorted. Replaced, never changed, so that it can be kept.
        suspected: reason for which a peer is left out.
        on_change: called after every change.
    """

    def __init__(self, neighbours: Iterable[str]) -> None:
        self.neighbours = tuple(sorted(neighbours))
        self.ids = self.neighbours
        self.suspected: dict[str, str] = {}
        self.on_change: list[Callable[[], None]] = []

    def add(self, id: str) -> None:
        """Add a peer."""
        self.neighbours = tuple(sorted({*self.neighbours, id}))
        self._update()

    def remove(self, id: str) -> None:
        """Remove a peer, which is no neighbour any more."""
        self.neighbours = tuple(known for known in self.neighbours if known != id)
        self.suspected.pop(id, None)
        self._update()

    def suspect(self, id: str, reason: str) -> None:
        """Leave a peer out until it is heard again. Nothing else is decided by this: it is an opinion of this node."""
        if id not in self.suspected:
            self.suspected[id] = reason
            self._update()
        else:
            self.suspected[id] = reason

    def heard(self, id: str) -> None:
        """End the suspicion of a peer, as something authentic came from it."""
        if self.suspected.pop(id, None) is not None:
            self._update()

    def notify(self) -> None:
        """Call everyone who asked for changes."""
        for notify in self.on_change:
            notify()

    def _update(self) -> None:
        self.ids = tuple(id for id in self.neighbours if id not in self.suspected)
        self.notify()
