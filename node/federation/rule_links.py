"""Links of a member whose federation has rings: those of its rounds, those of recent rounds, and guests.

Theory of operation. By a rule (p2pfl.topologies.rings) a member has links with few others, and with `changing-rings` with
other ones in each round. Whom it dials follows from its own log and its own round; others may have an older log, or be in
another round. `RuleLinks` decides with whom the member has links:

- its neighbours of this round and of the next one, so that the links of a round are there when it begins;
- those of the last two rounds, as long as the links last, because slower members still fetch models of these rounds; at
  most 64 of them;
- guests: members that dial this one although it does not count them among its neighbours. They are in another round, know
  a member that it does not know yet, or return after a long time. A guest may fetch models and sends the entries that this
  member lacks. It stays for 20 s, and at most 16 are there at once, so what members can cost each other is bounded. This
  member fetches nothing from a guest.

The member dials the first ones only. The ends of a link rarely let it go at the same moment; if the slower one dialled
again, each round would cost as many handshakes once more.

`LinkKeeper` carries this out: it changes the peers when the round changes, when a guest comes and when its time is over.
Before a round it waits until its neighbours are connected or cannot be reached, for a quarter of the deadline and for 2 s at
most: a member that answers nothing at all must not cost more.

What must never be: a link with a member that the log does not have. `MembershipSync` compares every name with the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peers import NEW
from p2pfl.topologies.rings import RingRule

GUESTS, GUEST_SECONDS = 16, 20.0
RECENT, RECENT_ROUNDS = 64, 2
SHARE, LONGEST = 0.25, 2.0  # of the deadline, and seconds, to wait for the links of a round


class RuleLinks:
    """Names of the members with which a member has links by a rule.

    Args:
        name: name of the member.

    Attributes:
        round: the round that the member is in, or begins with.
    """

    def __init__(self, rule: RingRule, name: str) -> None:
        self.rule = rule
        self.round = 1
        self._name = name
        self._recent: dict[str, int] = {}  # members with the last round in which they were neighbours, the oldest first
        self._guests: dict[str, float] = {}  # members with the time at which they leave

    def enter(self, round: int) -> None:
        """Go to another round."""
        if round == self.round:
            return
        if not self.rule.changing:
            self.round = round
            return
        for name in sorted(self.neighbours()):
            self._recent.pop(name, None)
            self._recent[name] = self.round
        self.round = round
        near = [(name, last) for name, last in self._recent.items() if abs(round - last) <= RECENT_ROUNDS]
        self._recent = dict(near[-RECENT:])

    def neighbours(self) -> set[str]:
        """Return the neighbours of this round."""
        return self.rule.neighbours(self._name, self.round)

    def dialled(self) -> set[str]:
        """Return the members that this one dials: the neighbours of this round and of the next one."""
        found = self.neighbours()
        return found | self.rule.neighbours(self._name, self.round + 1) if self.rule.changing else found

    def sources(self) -> set[str]:
        """Return the members from which this one may fetch."""
        return self.dialled() | self._recent.keys()

    def names(self, now: float) -> set[str]:
        """Return the members with which there are links.

        Args:
            now: time of the event loop in seconds.
        """
        self._guests = {name: until for name, until in self._guests.items() if until > now}
        return self.sources() | self._guests.keys()

    def receive(self, name: str, now: float) -> bool:
        """Return whether a member that has dialled this one may stay as a guest."""
        if name not in self.names(now):
            if len(self._guests) >= GUESTS:
                return False
            self._guests[name] = now + GUEST_SECONDS
        return True


class LinkKeeper:
    """Changes of a member's links by its rule; it is also the graph of each round (p2pfl.topologies.schedules.GraphByRound).

    Args:
        name_of: returns the name of the member with a key; None if there is none.
        follow: makes the peers those with which there are links now.
        deadline: of a round, in seconds.
    """

    def __init__(
        self,
        links: RuleLinks,
        peering: PeerManager,
        *,
        name_of: Callable[[bytes], str | None],
        follow: Callable[[], None],
        deadline: float,
    ) -> None:
        self._links = links
        self._peering = peering
        self._name_of = name_of
        self._follow = follow
        self._patience = min(SHARE * deadline, LONGEST)
        peering.on_unknown = self._receive

    def row(self, name: str, round: int) -> Mapping[str, float]:
        return self._links.rule.row(name, round)

    async def enter(self, round: int) -> None:
        """Make the links of a round and of the next one, and let older ones go."""
        self._links.enter(round)
        self._follow()
        wanted = self._links.neighbours()
        suspected = self._peering.view.suspected
        await self._peering.until(lambda: not any(suspected.get(name) == NEW for name in wanted), self._patience)

    def _receive(self, key: bytes) -> None:
        """Receive a member that is no peer as a guest."""
        name = self._name_of(key)
        if name is not None and self._links.receive(name, asyncio.get_running_loop().time()):
            self._follow()
            self._peering.begin(self._end_visit(), f"{self._peering.name}: visit of {name}")

    async def _end_visit(self) -> None:
        await asyncio.sleep(1.01 * GUEST_SECONDS)
        self._follow()
