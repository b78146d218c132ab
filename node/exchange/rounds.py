"""Rounds of a synchronous node that exchanges messages: which round is next, for whom to wait, and for how long.

Theory of operation. No clock and no leader counts the rounds of a federation. Each node announces its own round
(RoundReached; other messages carry it too), and derives its next round from what its peers have announced. A model is
useful to a peer only in the same round, or the next one, so nodes must stay close together. Yet no node may trust the
word of a single peer, and none may be stopped by one.

A round consists of these waits, each with a limit:

1. `Pacer.next_round`, before training: usually no wait. If the majority is two rounds behind, for up to a deadline,
   because it catches up soon if it was slow only once.
2. `Pacer.wait_for_slower`, before the model is published: for peers that are exactly one round behind, for up to half a
   deadline. The other half is needed because this node's own peers are already waiting for its model.
3. PeerRequests.ask, for the models of peers: up to the AdaptiveTimeout, at most a deadline.

The common round (`common_round`) is the greatest one that at least half of the participants, and at least two of them,
have reached. A minority of liars therefore moves nobody, and with two participants the slower one decides. From it
follows where a node goes (`Pacing.following`):

- In step (the common round is at most one ahead, or one behind): to the next round.
- Behind (it is further ahead): directly to the common round. The node skips rounds without training in them, and
  announces the round before, so that the others wait for its model (`Pacing.enter`).
- Ahead (it is further back): back to the round after it. The node keeps its model, and only its number decreases. It
  stops serving models of later rounds, and its signer starts a new generation (FrameSigner.go_back), because it will
  sign other models of rounds that it has signed before, which must not look like equivocation.

What must never be:

- A single peer decides a round. Hence the majority; a sparse topology, in which a node may have one neighbour only, is
  the exception, and there a step is limited to half of the remaining rounds.
- A majority of old facts decides. After an outage the known rounds are old; before a node goes back, it asks its
  participants for their rounds now (`_check_rounds`).
- Participants hold a node back on purpose. Each time, the node doubles the number of rounds before it goes back again,
  until a peer has sent it a model of its round (`Pacing.record_exchange`).
- An observer counts. Its round moves nobody, and nobody waits for it (Participants).
- A silent or slow peer costs a deadline in every round. A peer that missed one is suspected and on Probation: it is
  asked in the background, and must answer a growing number of times before the node waits for it again. The
  AdaptiveTimeout shortens the wait for peers that are usually fast. Their first answers are awaited for the whole
  deadline.
- A node in a small federation ends alone. With no other peer to wait for, it forgives the first one that answers.

Before the first round, StartWait waits for the members that the federation needs, without limit, and then for all
neighbours, up to a deadline. With rings that change it waits as long for the membership log, if this node has begun with a
checkpoint: it would compute other neighbours than the others do. An asynchronous node calls neither `next_round` nor
`wait_for_slower`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

import msgspec

from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.exchange.base import late_round
from p2pfl.node.exchange.model_encoding import Outbox
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peers import Peer
from p2pfl.protocols.wire import messages as m

FAR_AHEAD = 10  # rounds ahead of the others beyond which a peer's claimed round is counted as implausible
LONGEST_HOLD = 64  # maximum number of rounds before a node goes back once more
PACING_SHARE = 0.5  # share of the deadline to wait for slower peers, so that the node's own peers do not time out
SILENT_AFTER = 2  # unanswered probes after which the round of a suspected peer no longer counts
LEVELS = 6  # maximum number of times that the required answers of a peer are doubled
GOOD = 64  # answers in time after which the number of required answers is halved for the next miss
FLOOR = 1 / 6  # minimum timeout, as a share of the ceiling
GAIN_MEAN, GAIN_DEVIATION = 1 / 8, 1 / 4
DEVIATIONS = 4


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
        peering: PeerManager,
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
        self._peering = peering
        self._participants = participants
        self._pacing = pacing
        self._probation = probation
        self._outbox = outbox
        self._deadline = deadline

    def leave(self) -> None:
        """Stop waiting for peers."""
        self.leaving = True
        self._peering.notify()

    # The next round

    async def next_round(self, finished: int) -> int:
        """Return the round that follows `finished`; see p2pfl.node.exchange.base.Exchange."""

        def following() -> int:
            return self._pacing.following(finished, self._peering.round, self._participants.rounds())

        def enough() -> bool:
            return self.leaving or following() > finished

        self._note_far_rounds(max(finished, self._peering.round))
        if following() == finished - 1:  # the others catch up soon if they were slow only once
            await self._peering.until(enough, self._deadline)
        if self._probation.strict and following() <= finished:
            await self._check_rounds(enough)
        round = following()
        if self.leaving:
            return finished + 1
        announced = self._pacing.enter(round, finished, self._peering.round, self._outbox)
        if announced is not None:
            self._announce(announced)
        return round

    async def _check_rounds(self, enough: Callable[[], bool]) -> None:
        """Ask the other participants for their current rounds, and wait for one deadline.

        The known rounds may be from before an outage.
        """
        peering, participants = self._peering, self._participants
        asked: set[str] = set()
        while not enough() and (unasked := [peer for peer in participants.present() if peer.name not in asked]):
            asked.update(peer.name for peer in unasked)
            for peer in unasked:
                peering.check(peer)
            await peering.until(
                lambda: enough() or not any(peer.checking for peer in participants.present()), self._deadline
            )

    def _note_far_rounds(self, own: int) -> None:
        """Count the peers whose round is far ahead of both this node and most participants."""
        furthest = max(own, self._participants.common_round()) + FAR_AHEAD
        ahead = [peer for peer in self._peering.introduced_peers() if not peer.stopped and peer.round > furthest]
        self.far_ahead.update(peer.name for peer in ahead)

    # Announcements

    def reach(self, round: int) -> None:
        """Announce a round if it is a new one."""
        if round > self._peering.round:
            self._announce(round)

    def _announce(self, round: int) -> None:
        self._peering.round = round
        for peer in self._peering.introduced_peers():
            self._peering.tell(peer, m.RoundReached(round))

    # Slower peers

    async def wait_for_slower(self, round: int) -> None:
        """Wait until every neighbour that keeps up has reached the previous round; do not wait for observers.

        Nodes wait for at most half a deadline, so that the peers that wait for this node do not time out.
        """

        def behind() -> list[Peer]:
            live = [p for p in self._peering.introduced_peers() if not (p.stopped or p.name in self._peering.view.suspected)]
            return [p for p in live if self._participants.is_waited_for(p) and is_awaited(p.round, round)]

        if not await self._peering.until(lambda: not behind(), self._deadline * PACING_SHARE):
            self.expired += 1
            for peer in behind():
                self._probation.record_timeout(peer.name, len(self._peering.peers))
                self._peering.suspect(peer, late_round(round - 1))


def common_round(rounds: Sequence[int]) -> int:
    """Return the greatest round that at least half of the participants, and at least two of them, have reached.

    For two participants this is the lower round. A participant that lies about its round therefore moves the others
    neither forward nor back. The same holds for several liars, as long as they are fewer than half.

    Args:
        rounds: round of each participant; at least one.
    """
    return sorted(rounds, reverse=True)[min(len(rounds) - 1, max(1, (len(rounds) - 1) // 2))]


def keeps_up(theirs: float, own: float, synchronous: bool) -> bool:
    """Return whether a node in round `own` can learn with a peer in round `theirs`."""
    return not synchronous or theirs >= own - 1


def is_awaited(reached: float, round: int) -> bool:
    """Return whether a node that is about to publish in `round` waits for a peer that has reached round `reached`.

    It does not wait for a peer that is further behind, because that peer will skip rounds.
    """
    return reached == round - 2


class Pacing:
    """Pace of one node, which goes forward or back to the common round.

    A node goes back however far ahead it is, because the others cannot trust the round of a single node. Going back
    changes only the node's round number; the node keeps its model. Participants could hold others back on purpose. To
    bound the cost, a node doubles the number of rounds before it goes back once more, until it receives a model from a
    peer.

    Args:
        rounds: number of rounds of the federation.
        voice: whether the node is a participant. The round of an observer does not count for any node, including
            itself.
        sparse: whether the topology is incomplete. A node with one neighbour then follows that neighbour alone, by at
            most half of its remaining rounds at a time.

    Attributes:
        late: whether the others were already in a later round when the node last submitted to a coordinator, and the
            node received no model. Such a node skips one round, too; otherwise it would stay one round behind for good.
    """

    def __init__(self, rounds: int, voice: bool = True, sparse: bool = False) -> None:
        self._rounds = rounds
        self._voice = voice
        self._sparse = sparse
        self.late = False
        self._hold = 1  # rounds to complete before the node may go back again
        self._held_until = 0

    def extend(self, rounds: int) -> None:
        """Permit more rounds than before."""
        self._rounds = rounds

    def following(self, finished: int, announced: int, others: Sequence[int]) -> int:
        """Return the round that follows `finished`: the next one, or the others' round further ahead or back.

        Args:
            announced: the newest round that this node has announced.
            others: rounds announced by the participants that are connected and have not stopped.
        """
        if not others:
            return finished + 1
        common = common_round([*others, announced] if self._voice else others)
        if self._sparse and self._voice and len(others) == 1:
            step = 1 + max(0, self._rounds - finished - 1) // 2
            common = max(common, min(others[0], finished + step))
        if common > finished + 1:
            return common
        if self.late and common == finished + 1:
            return common + 1
        if common + 1 < announced and finished >= self._held_until:
            return common + 1
        return finished + 1

    def enter(self, round: int, finished: int, announced: int, outbox: Outbox) -> int | None:
        """Prepare for the round that follows `finished`; return the round to announce before it starts, if any.

        A node that goes back stops serving models of later rounds. A node that skips rounds announces the round before
        the new one, so that the others wait for its model.
        """
        if round <= finished:
            self._hold = min(2 * self._hold, LONGEST_HOLD)
            self._held_until = round + self._hold
            outbox.rewind(round)
            return outbox.round
        if round > finished + 1 and round > announced:
            outbox.skip(round)
            return round - 1
        return None

    def record_exchange(self) -> None:
        """Record that a peer has sent a model of the node's current round."""
        self._hold, self._held_until = 1, 0


class Participants:
    """Peers that count in the rounds of a node: those for which it waits, and those that may fetch from it.

    Args:
        askers: names of the peers that may fetch from this node; None: all.
        election: elections of a coordinator, if the policy is coordinated. Every peer with a vote then counts.
            Otherwise the peers from which this node may fetch count.
    """

    def __init__(self, peering: PeerManager, askers: Collection[str] | None, election: ElectionRunner | None) -> None:
        self._peering = peering
        self._askers = None if askers is None else frozenset(askers)
        self._election = election

    def counts(self, peer: Peer) -> bool:
        """Return whether a peer is a participant, whose round counts."""
        if self._election is not None:
            return self._election.votes(peer.name)
        return peer.name in self._peering.view.neighbours

    def may_ask(self, peer: Peer) -> bool:
        """Return whether a peer may request a model from this node."""
        if peer.name in self._peering.view.left_out:
            return False
        return self._askers is None or peer.name in self._askers

    def is_waited_for(self, peer: Peer) -> bool:
        """Return whether this node waits for a peer: one that may request its models, or else any participant."""
        return self.counts(peer) if self._askers is None else self.may_ask(peer)

    def present(self) -> list[Peer]:
        """Return the participants that are connected and have not stopped, however slow they are."""
        suspected = self._peering.view.suspected
        there = [peer for peer in self._peering.introduced_peers() if not peer.stopped and self.counts(peer)]
        return [peer for peer in there if peer.name not in suspected or peer.unanswered < SILENT_AFTER]

    def rounds(self) -> list[int]:
        """Return the rounds of the connected participants."""
        return [peer.round for peer in self.present()]

    def common_round(self) -> int:
        """Return the latest plausible round, from the rounds of this node and the participants."""
        return common_round([self._peering.round, *self.rounds()])


class _Record:
    __slots__ = ("good", "level", "owed")

    def __init__(self) -> None:
        self.level = 0
        self.good = 0
        self.owed = 0


class Probation:
    """Record of the deadlines that peers have missed.

    The node does not wait for a peer that missed a deadline. It asks the peer in the background, once per round, until
    the peer has given the required number of answers: 1 after its first miss, then 3, 7, and up to 63. In large
    federations the number is higher, because all other nodes wait for each node that waits. A peer that answers pings
    but no requests therefore costs one deadline. A peer that answers only sometimes costs little, because many rounds
    share each deadline. A node without any other peer forgives the first one that answers.

    Args:
        strict: False to put no peer on probation.
    """

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self._records: dict[str, _Record] = {}

    def record_timeout(self, name: str, peers: int) -> None:
        """Record that a peer missed a deadline; `peers` is the number of peers of this node."""
        if not self.strict:
            return
        record = self._records.setdefault(name, _Record())
        record.level = min(record.level + 1, LEVELS)
        record.good = 0
        record.owed = (2**record.level - 1) * max(1, peers // 4)

    def record_answer(self, name: str) -> None:
        """Record an answer of a peer, in time or in the background."""
        record = self._records.get(name)
        if record is None:
            return
        if record.owed:
            record.owed -= 1
            return
        record.good += 1
        if record.good == GOOD:
            record.level, record.good = record.level - 1, 0
            if not record.level:
                del self._records[name]

    def owes(self, name: str) -> bool:
        """Return whether a peer is on probation, so that this node does not wait for it yet."""
        record = self._records.get(name)
        return record is not None and record.owed > 0

    def forgive(self, name: str) -> None:
        """End the probation of a peer; its next miss has the same length as if it had given all answers."""
        if name in self._records:
            self._records[name].owed = 0

    def forget(self, name: str) -> None:
        """Remove a peer that is no longer a member."""
        self._records.pop(name, None)


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
    """Pause of a started node until the members are there with which it begins to learn.

    A node that has links with some of the members only (by a list of edges, a rule or a committee) needs as many members in
    the log as the federation needs, and the same share of its own peers, or one that has begun.

    Args:
        known: returns the number of members in the log, if the node has links with some of them only.
        leaving: returns whether the node is about to stop and waits for no peer.
        has_log: returns whether the neighbours of each round follow from the membership log as far as it is here.

    Attributes:
        waiting: the members for which the node waits; None if it does not wait.
        over: whether the wait is over.
        on_change: called after every change of `waiting` and `over`.
    """

    def __init__(
        self,
        peering: PeerManager,
        leaving: Callable[[], bool],
        known: Callable[[], int] | None = None,
        has_log: Callable[[], bool] = lambda: True,
    ) -> None:
        self._known = known
        self._has_log = has_log
        self.waiting: Waiting | None = None
        self.over = False
        self.on_change: list[Callable[[], None]] = []
        self._peering = peering
        self._leaving = leaving

    async def run(self, members: int, deadline: float, extended: bool = False) -> None:
        """Wait until enough members are connected; then wait for all neighbours and for the log, up to a deadline.

        The first wait is only for round 1, and for the first additional round of a node that had finished.

        Args:
            members: number of members that must be present, this node included.
            deadline: seconds to wait for the other neighbours.
            extended: whether the next round is the first additional one.
        """
        peering = self._peering
        if extended:
            await peering.until(lambda: self._is_enough_again(members), inf)
        elif peering.round == 0:
            await peering.until(lambda: self._has_begun(members) or self._is_enough(self._needed(members), inf), inf)
        await peering.until(
            lambda: self._is_enough(self._possible(), deadline) and (self._has_log() or self._leaving()), deadline
        )
        self._report(None, over=True)

    async def run_again(self, members: int) -> None:
        """Wait before the first additional round until enough members are connected, or until one of them is ahead.

        A former member is not needed.

        Args:
            members: see `run`.
        """
        await self._peering.until(lambda: self._is_enough_again(members), inf)
        self._report(None, over=True)

    def _needed(self, members: int) -> int:
        """Return how many members must be present, this node included.

        Of a node that has links with some members only, as great a share of its peers must be there as the needed members
        are of all that the log has.
        """
        if self._known is None or (known := self._known()) < members:
            return members
        return 1 + ceil((members - 1) / max(1, known - 1) * len(self._peering.peers))

    def _has_begun(self, members: int) -> bool:
        """Return whether a peer has begun, for a node that has links with some members only: they are enough elsewhere."""
        return self._known is not None and self._known() >= members and self._is_one_ahead()

    def _is_one_ahead(self) -> bool:
        peering = self._peering
        return any(peer.round > peering.round and not peer.stopped for peer in peering.introduced_peers())

    def _is_enough_again(self, members: int) -> bool:
        return self._is_one_ahead() or self._is_enough(min(members, self._possible()), inf)

    def _possible(self) -> int:
        """Return the number of members that can be connected: those with other settings than this node's cannot."""
        return 1 + sum(peer.introduced or not peer.problem for peer in self._peering.peers.values())

    def _is_enough(self, needed: int, seconds: float) -> bool:
        present, peers = 1 + len(self._peering.introduced_peers()), self._peering.peers
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


class _Pace(msgspec.Struct):
    mean: float
    deviation: float
    estimate: float


class AdaptiveTimeout:
    """Timeout of twice the expected response time of a peer.

    The expected time is a smoothed mean plus four smoothed deviations, like TCP's retransmission timeout (RFC 6298,
    section 2).

    With a fixed deadline, a silent peer costs the whole deadline, and a peer that is always slightly late costs it in
    every round. Here a silent peer costs no more than a few of its usual response times. An adaptive deadline alone
    would never measure a peer that is always slightly late. Each miss therefore doubles that peer's timeout (RFC 6298,
    section 5.5) until it answers in time and is measured again.

    The estimates are kept in memory only: the network may differ after a restart, so every peer starts with the
    ceiling.

    Args:
        ceiling: maximum timeout in seconds; inf for no limit.
        adaptive: False to use the ceiling always.
    """

    def __init__(self, ceiling: float, adaptive: bool) -> None:
        self._ceiling = ceiling
        self._adaptive = adaptive and ceiling < inf
        self._paces: dict[str, _Pace] = {}

    def record_answer(self, name: str, seconds: float) -> None:
        """Record that a peer answered `seconds` after the request."""
        pace = self._paces.get(name)
        if pace is None:
            pace = self._paces[name] = _Pace(seconds, seconds / 2, 0.0)
        else:
            pace.deviation += GAIN_DEVIATION * (abs(pace.mean - seconds) - pace.deviation)
            pace.mean += GAIN_MEAN * (seconds - pace.mean)
        pace.estimate = pace.mean + DEVIATIONS * pace.deviation

    def record_timeout(self, name: str) -> None:
        """Record that a peer missed its timeout. Double its timeout, up to the ceiling, until it answers."""
        pace = self._paces.get(name)
        if pace is not None:
            pace.estimate *= 2

    def wait(self, names: Collection[str]) -> float:
        """Return the time in seconds to wait for the answers of these peers.

        It is the timeout of the slowest of them, or the ceiling if one of them has never answered.
        """
        if not self._adaptive or any(name not in self._paces for name in names):
            return self._ceiling
        slowest = max((self._paces[name].estimate for name in names), default=0.0)
        return min(self._ceiling, max(FLOOR * self._ceiling, 2 * slowest))
