"""Failure detection: peers are taken for alive, suspected or dead by when something authentic last came from them.

After SWIM (Das, Gupta and Motivala, DSN 2002) and its Lifeguard extensions (Dadgar, Phillips and Currey, 2018), with three
differences. A peer that was heard lately is not probed: the traffic of learning is proof of life, and an idle federation
exchanges one ping per period and node, however many nodes it has. Suspicion is refuted by being heard, without incarnation
numbers, because what counts as heard is signed. Death is this node's own opinion: it changes who is waited for, never
who is a member, and ends when the peer is heard again.

Nothing here sends, receives or reads a clock. The caller calls `tick` when `next_tick` says so, and does what is returned.
"""

from __future__ import annotations

from math import inf, log10

import msgspec
import numpy as np

HELPERS = 3  # peers that are asked to probe for this node (SWIM: k)
LATE = 0.2  # seconds by which a tick may be late; later than that, this node's own loop lags
MAX_HEALTH = 8


class Ping(msgspec.Struct, frozen=True):
    """Ask a peer for a sign of life."""

    name: str


class AskOthers(msgspec.Struct, frozen=True):
    """Ask 1 to 3 peers to ping another, and to say so if it answers: call `vouched` then."""

    helpers: tuple[str, ...]
    about: str


class Suspect(msgspec.Struct, frozen=True):
    """Wait for a peer no longer: it answered neither this node nor others. One more ping lets it refute that."""

    name: str
    reason: str


class Dead(msgspec.Struct, frozen=True):
    """Give up the link with a peer whose suspicion was not refuted in time. It is not probed any more."""

    name: str
    reason: str


Step = Ping | AskOthers | Suspect | Dead


class _Peer:
    __slots__ = ("heard", "stage", "until")

    def __init__(self, now: float) -> None:
        self.heard = now
        self.stage: type[Step] | None = None  # the newest step that was taken against it since it was heard
        self.until = 0.0  # when the next one is due


class FailureDetector:
    """Judges each watched peer, and returns the probes that are due.

    Args:
        rng: shuffles the order in which peers are probed.
        period: seconds between two probes.

    Attributes:
        health: all waits are multiplied by it; 1 while ticks are on time, at most 8 (Lifeguard's local health multiplier).
    """

    def __init__(self, rng: np.random.Generator, period: float = 1.0) -> None:
        self.period = period
        self.health = 1
        self._rng = rng
        self._peers: dict[str, _Peer] = {}
        self._probed: dict[str, _Peer] = {}  # those with a next step
        self._turns: list[str] = []  # who comes next, the last one first
        self._due = inf

    def watch(self, name: str, now: float) -> None:
        """Begin to judge a peer, as one that was heard just now; nothing happens if it is watched already."""
        self._peers.setdefault(name, _Peer(now))

    def unwatch(self, name: str) -> None:
        """Forget a peer. Nothing happens if it is not watched."""
        self._peers.pop(name, None)
        self._probed.pop(name, None)

    def heard(self, name: str, now: float) -> bool:
        """Note a sign of life of a peer; return whether it was suspected or dead. A peer that is not watched is ignored."""
        peer = self._peers.get(name)
        if peer is None:
            return False
        was_out = peer.stage is Suspect or peer.stage is Dead
        peer.heard, peer.stage = now, None
        self._probed.pop(name, None)
        return was_out

    def record_indirect_ack(self, name: str, now: float) -> bool:
        """Note that another peer has just heard this one, which ends a suspicion; return whether it was suspected.

        The dead stay dead: for this node they are out of reach.
        """
        return name in self._probed and self.heard(name, now)

    def next_tick(self, now: float) -> float:
        """Return the time of the next `tick`."""
        if self._due == inf:
            self._due = now + self.period
        return self._due

    def tick(self, now: float) -> list[Step]:
        """Return the steps that are due now.

        A tick that comes late blames nobody: what peers have sent may lie unread. All waits begin anew, and get longer.
        """
        late = now > self._due + LATE
        self._due = now + self.period
        self.health = min(MAX_HEALTH, self.health + 1) if late else max(1, self.health - 1)
        if late:
            for peer in self._probed.values():
                peer.until = now + self._patience(peer.stage)
        due = [(name, peer) for name, peer in self._probed.items() if peer.until <= now]
        steps = [step for name, peer in due for step in self._escalate(name, peer, now)]
        name = self._next(now)
        if name is not None:
            self._take(Ping, name, now)
            steps.append(Ping(name))
        return steps

    def _next(self, now: float) -> str | None:
        """Return the next in turn that was not heard lately. Everybody has one turn in a round, shuffled (SWIM, 4.3)."""
        for _ in range(2):
            while self._turns:
                name = self._turns.pop()
                peer = self._peers.get(name)
                if peer is not None and peer.stage is None and now - peer.heard >= self.period:
                    return name
            names = list(self._peers)
            self._turns = [names[i] for i in self._rng.permutation(len(names))]
        return None

    def _escalate(self, name: str, peer: _Peer, now: float) -> list[Step]:
        """Take the step that follows an unanswered one."""
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
        peer.stage = step
        if step is Dead:
            del self._probed[name]
        else:
            peer.until = now + self._patience(step)
            self._probed[name] = peer

    def _patience(self, step: type[Step] | None) -> float:
        """Return how many seconds an answer to a step is waited for; a suspicion longer where more could refute it."""
        periods = max(3.0, 4 * log10(len(self._peers) + 1)) if step is Suspect else 1.0
        return periods * self.period * self.health

    def _helpers(self) -> tuple[str, ...]:
        """Return the peers that were heard last and are not in doubt themselves."""
        alive = [name for name, peer in self._peers.items() if peer.stage is None]
        return tuple(sorted(alive, key=lambda name: self._peers[name].heard, reverse=True)[:HELPERS])
