"""The round that a synchronous node does next: the majority of the participants that it hears sets the pace.

A node also waits before it publishes, until the peers that keep up have reached the round before.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.node.exchange.published_models import Outbox

LONGEST_HOLD = 64  # rounds that a node does at most before it goes back once more
PACING_SHARE = 0.5  # of the deadline that a node waits for slower ones, so that its own peers do not lose it meanwhile


def common_round(rounds: Sequence[int]) -> int:
    """Return the greatest round that at least half of some participants have reached, and at least two of them.

    Of two participants it is the lower round. So one that lies about its round moves the others neither forward nor back,
    and neither do several as long as they are fewer than half.

    Args:
        rounds: of each participant; one or more.
    """
    return sorted(rounds, reverse=True)[min(len(rounds) - 1, max(1, (len(rounds) - 1) // 2))]


def keeps_up(theirs: float, own: float, synchronous: bool) -> bool:
    """Return whether a peer in round `theirs` is near enough to learn with for a node in round `own`."""
    return not synchronous or theirs >= own - 1


def is_awaited(reached: float, round: int) -> bool:
    """Return whether a node that is about to publish in `round` waits for a peer that has reached round `reached`.

    A peer that is further behind is not waited for: it will skip rounds.
    """
    return reached == round - 2


class Pacing:
    """The pace of one node, which goes forward to the common round, and back to it.

    A node goes back, however far it is ahead, because the others cannot follow the word of one. Going back costs it nothing
    but the numbers of its rounds: its model stays. To bound what participants can cost it that hold others back, it does
    twice as many rounds before it goes back once more, until a peer has given it a model.

    Args:
        rounds: that the federation does.
        voice: whether the node is a participant; the round of an observer counts for nobody, itself included.
        sparse: whether there is a topology. In it a node with one neighbour has nobody else to ask, and follows that one,
            by at most half of its remaining rounds at a time.
    """

    def __init__(self, rounds: int, voice: bool = True, sparse: bool = False) -> None:
        self._rounds = rounds
        self._voice = voice
        self._sparse = sparse
        self._hold = 1  # rounds to be done before the node may go back again
        self._held_until = 0

    def following(self, finished: int, announced: int, others: Sequence[int]) -> int:
        """Return the round that follows `finished`: the next one, or one further ahead or back where the others are.

        Args:
            announced: the newest round that the others know this node to have reached.
            others: what they announced; of the participants that are there and have not stopped.
        """
        if not others:
            return finished + 1
        common = common_round([*others, announced] if self._voice else others)
        if self._sparse and self._voice and len(others) == 1:
            step = 1 + max(0, self._rounds - finished - 1) // 2
            common = max(common, min(others[0], finished + step))
        if common > finished + 1:
            return common
        if common + 1 < announced and finished >= self._held_until:
            return common + 1
        return finished + 1

    def enter(self, round: int, finished: int, announced: int, outbox: Outbox) -> int | None:
        """Prepare for the round that follows `finished`; return the round to announce before it is done, if any.

        A node that goes back serves nothing of later rounds any more. One that skips rounds announces the one before, so
        that the others wait for its model.
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
        """Take note that a peer has given a model of the node's round."""
        self._hold, self._held_until = 1, 0
