"""Wait at the start of a node: for the members that the first round needs, then for the other neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_manager import PeerManager


class Waiting(NamedTuple):
    """Members for which a node waits.

    Attributes:
        present: number of connected members, this node included.
        needed: number of members for which it waits, this node included.
        seconds: maximum seconds of the wait; infinite if it lasts until they are connected.
    """

    present: int
    needed: int
    seconds: float


class StartWait:
    """Wait of a node that has just started.

    Args:
        leaving: returns whether the node is about to stop and waits for no peer.

    Attributes:
        waiting: the members for which the node waits; None if it does not wait.
        over: whether the wait is over.
        on_change: called after every change of `waiting` and `over`.
    """

    def __init__(self, contacts: PeerManager, leaving: Callable[[], bool]) -> None:
        self.waiting: Waiting | None = None
        self.over = False
        self.on_change: list[Callable[[], None]] = []
        self._contacts = contacts
        self._leaving = leaving

    async def run(self, members: int, deadline: float, extended: bool = False) -> None:
        """Wait until enough members are connected; then wait for all neighbours, up to a deadline.

        The first wait is only for round 1, and for the first additional round of a node that had finished.

        Args:
            members: number of members that must be present, this node included.
            deadline: seconds to wait for the other neighbours.
            extended: whether the next round is the first additional one.
        """
        contacts = self._contacts
        if extended:
            await contacts.until(lambda: self._is_enough_again(members), inf)
        elif contacts.round == 0:
            await contacts.until(lambda: self._is_enough(members, inf), inf)
        await contacts.until(lambda: self._is_enough(self._possible(), deadline), deadline)
        self._report(None, over=True)

    async def run_again(self, members: int) -> None:
        """Wait before the first additional round until enough members are connected, or until one of them is ahead.

        A former member is not needed.

        Args:
            members: see `run`.
        """
        await self._contacts.until(lambda: self._is_enough_again(members), inf)
        self._report(None, over=True)

    def _is_enough_again(self, members: int) -> bool:
        contacts = self._contacts
        ahead = any(peer.round > contacts.round and not peer.stopped for peer in contacts.introduced_peers())
        return ahead or self._is_enough(min(members, self._possible()), inf)

    def _possible(self) -> int:
        """Return the number of members that can be connected: those with other settings than this node's cannot."""
        return 1 + sum(peer.introduced or not peer.problem for peer in self._contacts.peers.values())

    def _is_enough(self, needed: int, seconds: float) -> bool:
        present, peers = 1 + len(self._contacts.introduced_peers()), self._contacts.peers
        if self._leaving() or present >= needed or all_incompatible(peers):
            return True
        self._report(Waiting(present, needed, seconds))
        return False

    def _report(self, waiting: Waiting | None, over: bool = False) -> None:
        if (waiting, over) != (self.waiting, self.over):
            self.waiting, self.over = waiting, over
            for report in self.on_change:
                report()


def all_incompatible(peers: Mapping[str, Peer]) -> bool:
    """Return whether the node has peers and all of them have settings that differ from its own."""
    return bool(peers) and all(peer.problem for peer in peers.values())
