"""Failure detector, which classifies peers as alive, suspected or dead by the time of their last authentic message.

It follows SWIM (Das, Gupta and Motivala, DSN 2002) and its Lifeguard extensions (Dadgar, Phillips and Currey, 2018), with
five differences:

- A peer that has sent something recently is not probed, because the traffic of learning is proof of life. While a round is
  under way, a node sends at most one ping per period, however many peers it has.
- A node that waits for nobody, before its first round and after its last one, rests: it is not in a hurry to learn that a
  peer is gone, and may run on a battery. Once per rest period, which is longer, it pings all peers that were silent for
  such a period. One timer serves all links, so that the node wakes up seldom, and a ping is a sign of life for both
  ends. So that many peers cost no more than in a round, it pings at most as many as it would have pinged there in this
  time. From an unanswered ping on, everything takes the same time as in a round.
- It waits for an answer as long as answers have taken lately (RFC 6298), at least one period and at most 8. A busy broker,
  or busy cores, slow down the answers of all peers. Each false alarm asks three other peers, which takes twelve
  messages instead of two: a hundred nodes behind one broker sent mostly these, and so kept it busy.
- Any authentic message refutes a suspicion, without incarnation numbers, because the link proves the sender of each.
- Death is this node's own opinion. It decides for which peers the node waits, never which nodes are members. It ends
  with the next message of the peer.

One of n peers that is gone is thus suspected after at most 2 n + 4 periods in a round, while answers take less than a
period. At rest it is suspected after at most two rest periods and 4 periods, if no more peers are silent than are pinged
at once.

The detector sends nothing, receives nothing and reads no clock. Its caller (p2pfl.node.peering.control_messages.Prober)
calls `tick` at the time that `next_tick` returns, and carries out the returned steps.
"""

from __future__ import annotations

from math import inf, log10

import msgspec
import numpy as np

from p2pfl.protocols.round_trip import RoundTrip

HELPERS = 3  # peers that are asked to probe for this node (SWIM: k)
LATE = 0.2  # seconds by which a tick may be late; a later tick means that this node's own event loop lags
MAX_HEALTH = 8


class Ping(msgspec.Struct, frozen=True):
    """Step: ask a peer for a sign of life."""

    name: str


class AskOthers(msgspec.Struct, frozen=True):
    """Step: ask 1 to 3 other peers to ping a peer and to report its answer, for `record_indirect_ack`."""

    helpers: tuple[str, ...]
    about: str


class Suspect(msgspec.Struct, frozen=True):
    """Step: stop waiting for a peer that answered neither this node nor others. One more ping lets it refute this."""

    name: str
    reason: str


class Dead(msgspec.Struct, frozen=True):
    """Step: close the link with a peer that did not refute its suspicion in time, and stop probing it."""

    name: str
    reason: str


Step = Ping | AskOthers | Suspect | Dead


class _Peer:
    __slots__ = ("asked", "heard", "stage", "until")

    def __init__(self, now: float) -> None:
        self.heard = now
        self.asked = now  # time of the first step since its last message
        self.stage: type[Step] | None = None  # the latest step taken against the peer since its last message
        self.until = 0.0  # time at which the next step is due


class FailureDetector:
    """Judgement of each watched peer by the time of its last message, and the probes that are due.

    Args:
        rng: shuffles the order in which peers are probed.
        period: seconds between two probes, and to wait for an answer.
        rest: seconds between two probes at rest; at least `period`.

    Attributes:
        resting: whether no round is under way, so that this node waits for no peer.
        health: factor of all waits; 1 while ticks are on time, at most 8 (Lifeguard's local health multiplier).
    """

    def __init__(self, rng: np.random.Generator, period: float = 1.0, rest: float = 0.0) -> None:
        self.period = period
        self.rest = max(rest, period)
        self.resting = False
        self.health = 1
        self._rng = rng
        self._answers = RoundTrip(0.0, 0.0, MAX_HEALTH * period)
        self._peers: dict[str, _Peer] = {}
        self._probed: dict[str, _Peer] = {}  # the peers with a next step
        self._turns: list[str] = []  # order of the probes; the last entry is next
        self._due = inf
        self._turn = -inf  # time at rest from which the next tick probes peers that are silent

    def watch(self, name: str, now: float) -> None:
        """Start to watch a peer, as if it had just sent a message. Do nothing if it is watched already."""
        self._peers.setdefault(name, _Peer(now))

    def unwatch(self, name: str) -> None:
        """Stop watching a peer. Do nothing if it is not watched."""
        self._peers.pop(name, None)
        self._probed.pop(name, None)

    def heard(self, name: str, now: float) -> bool:
        """Record a sign of life of a peer; return whether it was suspected or dead. Ignore unwatched peers."""
        peer = self._peers.get(name)
        if peer is None:
            return False
        if name in self._probed:
            self._answers.measured(now - peer.asked)
        return self._believe(name, peer, now)

    def _believe(self, name: str, peer: _Peer, now: float) -> bool:
        was_out = peer.stage is Suspect or peer.stage is Dead
        peer.heard, peer.stage = now, None
        self._probed.pop(name, None)
        return was_out

    def record_indirect_ack(self, name: str, now: float) -> bool:
        """Record another peer's report that a peer is alive, which ends a suspicion; return whether it was suspected.

        A dead peer stays dead, because this node cannot reach it.
        """
        return name in self._probed and self._believe(name, self._peers[name], now)

    def next_tick(self, now: float) -> float:
        """Return the time of the next `tick`. It may become earlier when the node no longer rests."""
        if self._due == inf or not self.resting:
            self._due = min(self._due, now + self.period)
        return self._due

    def tick(self, now: float) -> list[Step]:
        """Return the steps that are due now, or earlier than that.

        A late tick blames no peer, because messages of peers may be unread. All waits then restart and become longer.
        """
        late = now > self._due + LATE
        self.health = min(MAX_HEALTH, self.health + 1) if late else max(1, self.health - 1)
        if late:
            for peer in self._probed.values():
                peer.until = now + self._patience(peer.stage)
        due = [(name, peer) for name, peer in self._probed.items() if peer.until <= now]
        steps = [step for name, peer in due for step in self._escalate(name, peer, now)]
        if not self.resting:
            steps += self._probe(1, self.period, now)
        elif now >= self._turn:
            steps += self._probe(int(self.rest / self.period), self.rest, now)
            self._turn = now + self.rest
        self._due = now + self.period if self._probed or not self.resting else self._turn
        return steps

    def _probe(self, most: int, silence: float, now: float) -> list[Step]:
        """Return pings of the next peers in turn, at most so many, that have been silent for so many seconds.

        Every peer has one turn in a round, in shuffled order (SWIM, 4.3).
        """
        steps: list[Step] = []
        for _ in range(2):
            while self._turns and len(steps) < most:
                name = self._turns.pop()
                peer = self._peers.get(name)
                if peer is not None and peer.stage is None and now - peer.heard >= silence:
                    self._take(Ping, name, now)
                    steps.append(Ping(name))
            if len(steps) == most:
                break
            names = list(self._peers)
            self._turns = [names[i] for i in self._rng.permutation(len(names))]
        return steps

    def _escalate(self, name: str, peer: _Peer, now: float) -> list[Step]:
        """Return the step that follows an unanswered one."""
        if peer.stage is Ping:
            self._take(AskOthers, name, now)
            helpers = self._helpers()
            return [AskOthers(helpers, name)] if helpers else [Ping(name)]
        silent = f"silent for {now - peer.heard:.1f} s"
        if peer.stage is AskOthers:
            self._take(Suspect, name, now)
            return [Suspect(name, silent), Ping(name)]
        self._take(Dead, name, now)
        return [Dead(name, silent)]

    def _take(self, step: type[Step], name: str, now: float) -> None:
        peer = self._peers[name]
        if peer.stage is None:
            peer.asked = now
        peer.stage = step
        if step is Dead:
            del self._probed[name]
        else:
            peer.until = now + self._patience(step)
            self._probed[name] = peer

    def _patience(self, step: type[Step] | None) -> float:
        """Return the time in seconds to wait for an answer to a step.

        The time of a suspicion is longer if more peers can refute it.
        """
        periods = max(3.0, 4 * log10(len(self._peers) + 1)) if step is Suspect else 1.0
        return max(periods * self.period * self.health, self._answers.wait)

    def _helpers(self) -> tuple[str, ...]:
        """Return the peers with the most recent messages that are not in doubt themselves."""
        alive = [name for name, peer in self._peers.items() if peer.stage is None]
        return tuple(sorted(alive, key=lambda name: self._peers[name].heard, reverse=True)[:HELPERS])
