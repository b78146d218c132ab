"""Pace of a synchronous node that exchanges messages: its next round, and waiting for slower peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from p2pfl.node.exchange.published_models import Outbox
from p2pfl.node.exchange.rounds.pacing import PACING_SHARE, Pacing, is_awaited
from p2pfl.node.exchange.rounds.participants import Participants
from p2pfl.node.exchange.rounds.probation import Probation
from p2pfl.node.exchange.rules import late_round
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.protocols.wire import messages as m

FAR_AHEAD = 10  # rounds ahead of the others beyond which a peer's claimed round is counted as implausible


class Pacer:
    """Pace of a synchronous node, from the rounds that its peers announce.

    Args:
        deadline: deadline in seconds.

    Attributes:
        expired: number of missed deadlines.
        far_ahead: number of this node's rounds in which a peer claimed a round far ahead, by peer.
        leaving: whether the node is about to stop and waits for no peer.
    """

    def __init__(
        self,
        contacts: PeerManager,
        *,
        participants: Participants,
        pacing: Pacing,
        probation: Probation,
        outbox: Outbox,
        deadline: float,
    ) -> None:
        self.expired = 0
        self.far_ahead: Counter[str] = Counter()
        self.leaving = False
        self._contacts = contacts
        self._participants = participants
        self._pacing = pacing
        self._probation = probation
        self._outbox = outbox
        self._deadline = deadline

    def leave(self) -> None:
        """Stop waiting for peers."""
        self.leaving = True
        self._contacts.notify()

    # The next round

    async def next_round(self, finished: int) -> int:
        """Return the round that follows `finished`; see p2pfl.node.exchange.base.Exchange."""

        def following() -> int:
            return self._pacing.following(finished, self._contacts.round, self._participants.rounds())

        def enough() -> bool:
            return self.leaving or following() > finished

        self._note_far_rounds(max(finished, self._contacts.round))
        if following() == finished - 1:  # the others catch up soon if they were slow only once
            await self._contacts.until(enough, self._deadline)
        if self._probation.strict and following() <= finished:
            await self._check_rounds(enough)
        round = following()
        if self.leaving:
            return finished + 1
        announced = self._pacing.enter(round, finished, self._contacts.round, self._outbox)
        if announced is not None:
            self._announce(announced)
        return round

    async def _check_rounds(self, enough: Callable[[], bool]) -> None:
        """Ask the other participants for their current rounds, and wait for one deadline.

        The known rounds may be from before an outage.
        """
        contacts, participants = self._contacts, self._participants
        asked: set[str] = set()
        while not enough() and (unasked := [peer for peer in participants.present() if peer.name not in asked]):
            asked.update(peer.name for peer in unasked)
            for peer in unasked:
                contacts.check(peer)
            await contacts.until(
                lambda: enough() or not any(peer.checking for peer in participants.present()), self._deadline
            )

    def _note_far_rounds(self, own: int) -> None:
        """Count the peers whose round is far ahead of both this node and most participants."""
        furthest = max(own, self._participants.common_round()) + FAR_AHEAD
        ahead = [peer for peer in self._contacts.introduced_peers() if not peer.stopped and peer.round > furthest]
        self.far_ahead.update(peer.name for peer in ahead)

    # Announcements

    def reach(self, round: int) -> None:
        """Announce a round if it is a new one."""
        if round > self._contacts.round:
            self._announce(round)

    def _announce(self, round: int) -> None:
        self._contacts.round = round
        for peer in self._contacts.introduced_peers():
            self._contacts.tell(peer, m.RoundReached(round))

    # Slower peers

    async def wait_for_slower(self, round: int) -> None:
        """Wait until every neighbour that keeps up has reached the previous round; do not wait for observers.

        Nodes wait for at most half a deadline, so that the peers that wait for this node do not time out.
        """

        def behind() -> list[Peer]:
            live = [
                p for p in self._contacts.introduced_peers() if not (p.stopped or p.name in self._contacts.roster.suspected)
            ]
            return [p for p in live if self._participants.is_waited_for(p) and is_awaited(p.round, round)]

        if not await self._contacts.until(lambda: not behind(), self._deadline * PACING_SHARE):
            self.expired += 1
            for peer in behind():
                self._probation.record_timeout(peer.name, len(self._contacts.peers))
                self._contacts.suspect(peer, late_round(round - 1))
