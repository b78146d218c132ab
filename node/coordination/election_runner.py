"""A node's part in electing a coordinator: the rules of p2pfl.protocols.election.raft with a clock, a disk and links.

Elections are held only in federations whose policy is coordinated (see p2pfl.policy.Coordinated).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import msgspec

from p2pfl.errors import ConfigurationError
from p2pfl.node.log import LOG
from p2pfl.protocols.election.raft import Election, Step
from p2pfl.protocols.election.types import LAST, TIMING, Ballot, Electorate, Term, Timing
from p2pfl.protocols.membership.log import Member
from p2pfl.protocols.wire import messages as m
from p2pfl.random_streams import RandomStreams
from p2pfl.system.atomic_files import DamagedFileError, read_sealed, reason, write_sealed
from p2pfl.system.event_log import EventLogger
from p2pfl.system.failpoints import failpoint

MAGIC = b"p2pfl vote 1\n"
PATIENCE = 5  # times Timing.patience: for so long a round waits for a coordinator to be elected
AHEAD, SLOWEST = 8, 1_000_000  # models that what is said may wait for, and bytes in a second of their link
UNKNOWN = "no coordinator yet"
SILENT = "no coordinator is known here: this node's vote was damaged, and it takes no part until the membership changes"


class Elected(NamedTuple):
    """The coordinator as one node sees it.

    Attributes:
        coordinator: its name; None while there is none, and then `problem` says why.
        term: the newest that the node knows.
    """

    coordinator: str | None
    term: Term
    problem: str


class Votes(Protocol):
    """Keeps a node's ballot."""

    def load(self, membership_version: int) -> Ballot:
        """Return the ballot that was saved last; an empty one for a node that never voted."""

    def save(self, ballot: Ballot) -> None:
        """Keep a ballot. When this returns, it is never forgotten.

        Raises:
            OSError: it could not be kept.
        """


class MemoryVotes:
    """Keeps a ballot as long as the process runs: for simulated nodes, and for one without a federation."""

    def __init__(self) -> None:
        self.ballot = Ballot()

    def load(self, membership_version: int) -> Ballot:
        return self.ballot

    def save(self, ballot: Ballot) -> None:
        self.ballot = ballot


class FileVotes:
    """Keeps the ballot in a sealed file.

    Args:
        log: receives an event when it is damaged.
    """

    def __init__(self, path: Path, log: EventLogger = LOG) -> None:
        self._path = path
        self._log = log

    def load(self, membership_version: int) -> Ballot:
        """Return the ballot that was saved last.

        A damaged file is set aside, because its vote is unknown. The ballot returned then has the last term of this version
        of the membership log, in which the node takes no part.

        Raises:
            ConfigurationError: it cannot be read, or the other one not written.
        """
        try:
            return msgspec.msgpack.decode(read_sealed(self._path, MAGIC), type=Ballot)
        except FileNotFoundError:
            return Ballot()
        except OSError as error:
            self._fail("read", error)
        except (DamagedFileError, msgspec.MsgspecError):
            pass
        ballot = Ballot(Term(membership_version, LAST))
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            self._path.replace(aside)
            self.save(ballot)
        except OSError as error:
            self._fail("write", error)
        event = f"{self._path} is damaged: kept as {aside.name}; it takes no part in elections until the membership changes"
        self._log.warning(event, path=str(self._path))
        return ballot

    def save(self, ballot: Ballot) -> None:
        write_sealed(self._path, MAGIC, msgspec.msgpack.encode(ballot))
        failpoint("vote-saved")

    def distrust(self, membership_version: int) -> None:
        """Take no part in the elections of a membership version: the file is older than messages of this node.

        Raises:
            ConfigurationError: it cannot be written.
        """
        try:
            self.save(Ballot(Term(membership_version, LAST)))
        except OSError as error:
            self._fail("write", error)

    def _fail(self, what: str, error: OSError) -> NoReturn:
        raise ConfigurationError(f"cannot {what} {self._path}: {reason(error)}") from error


def electorate(membership_version: int, members: Iterable[Member]) -> Electorate:
    """Return the members that vote, and those that may coordinate.

    Observers have no vote. Where members have the role `coordinator-eligible`, only these may coordinate, else all who vote;
    the preferred one is the first by name.
    """
    voters = sorted((member.name, member.role) for member in members if member.role != "observer")
    chosen = [name for name, role in voters if role == "coordinator-eligible"]
    return Electorate(
        membership_version, frozenset(name for name, _ in voters), tuple(chosen or [name for name, _ in voters])
    )


def timing_of(size: int, deadline: float) -> Timing:
    """Return how long everything takes in the elections of nodes with P parameters.

    What is said in an election waits behind models on the same links, and nobody may take a coordinator for lost meanwhile:
    it would never have all submissions. So patience is as long as AHEAD models take at SLOWEST, and not less than usual.
    Half the deadline, in which a coordinator must have all submissions, is enough for the lease.

    Args:
        deadline: for which participants wait, in seconds.
    """
    patience = min(4 * size * AHEAD / SLOWEST, deadline / 2 * TIMING.patience / TIMING.lease)
    return TIMING if patience <= TIMING.patience else Timing(0.2 * patience, 0.8 * patience, patience)


def awake() -> float:
    """Return seconds of a clock that never goes back and, on Linux, runs while the machine sleeps."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class ElectionRunner:
    """
    Args:
        me: this node's name.
        electorate: who votes; it may change later.
        incarnation: how often the node has started.
        seed: of the federation.
        clock: tells the time in seconds; see p2pfl.protocols.election.raft.Election.
        log: receives an event when the vote cannot be written.

    Attributes:
        election: the rules as this node follows them; None while it takes no part.
    """

    def __init__(
        self,
        me: str,
        electorate: Electorate,
        votes: Votes,
        *,
        incarnation: int,
        seed: int,
        clock: Callable[[], float] = awake,
        log: EventLogger = LOG,
        timing: Timing = TIMING,
    ) -> None:
        self._me = me
        self._electorate = electorate
        self._votes = votes
        self._draw = RandomStreams(seed, me).generator(incarnation, "election").random
        self._clock = clock
        self._log = log
        self.timing = timing
        self._send: Callable[[str, m.ElectionMessage], None]
        self._on_change: Callable[[Elected], None] = lambda elected: None
        self.seen = Elected(None, Term(0, 0), UNKNOWN)
        self._lost = -1.0  # when there was a coordinator last
        self.election: Election | None = None  # while it takes no part
        self._running = False

    def connect(self, send: Callable[[str, m.ElectionMessage], None], on_change: Callable[[Elected], None]) -> None:
        """Connect the runner to the members, before it runs.

        Args:
            send: sends a message to a member, if it can be reached.
            on_change: receives every change of the coordinator.
        """
        self._send, self._on_change = send, on_change

    async def run(self) -> None:
        """Take part until cancelled."""
        self.begin()
        self._lost = self._clock()
        while True:
            wait = self.timing.beat  # not longer: that nobody is heard any more is noticed although nothing happens
            if self.election is not None:
                self._do(self.election.tick(self._clock()))
            if self.election is not None:
                wait = min(self.election.next_tick() - self._clock(), wait)
            await asyncio.sleep(max(0.0, wait))

    def receive(self, sender: str, message: m.ElectionMessage) -> None:
        """Take a member's message about the election.

        Raises:
            ProtocolError: it breaks the rules.
        """
        if self.election is not None:
            self._do(self.election.receive(sender, message, self._clock()))

    def change(self, electorate: Electorate) -> None:
        """Follow a change of the membership, which is on the disk already."""
        self._electorate = electorate
        if self.election is not None:
            self._do(self.election.change(electorate, self._clock()))
        elif self._running:
            self.begin()

    def _do(self, step: Step) -> None:
        if step.write is not None:
            try:
                self._votes.save(step.write)
            except OSError as error:  # nothing was promised, and nothing is said: as if the node had crashed before
                self._log.warning(f"cannot write this node's vote: {reason(error)}; it takes no part in this election")
                self.begin()
                return
        for name, message in step.send:
            self._send(name, message)
        self._look()

    def begin(self) -> None:
        """Begin with the saved ballot; or stay silent where it was damaged.

        A node that only withheld its vote would still spread its term, the last one, and so end the elections of the others.
        """
        self._running = True
        ballot = self._votes.load(self._electorate.membership_version)
        silent = ballot.term == Term(self._electorate.membership_version, LAST)
        fresh = partial(Election, self._me, self._electorate, ballot, self._draw, self._clock(), timing=self.timing)
        self.election = None if silent else fresh()
        self._look()

    def _look(self) -> None:
        """Report the coordinator if it has changed."""
        now, election = self._clock(), self.election
        if election is None:
            seen = Elected(None, self.seen.term, SILENT)
        else:
            seen = Elected(election.coordinator(now), election.term, election.problem(now))
        coordinator = seen.coordinator
        if coordinator is not None:
            self._lost = now
        before, self.seen = self.seen, seen
        if seen.coordinator != before.coordinator or seen.problem != before.problem or (coordinator and seen != before):
            self._on_change(seen)

    # What is known

    @property
    def term(self) -> Term:
        return self.seen.term if self.election is None else self.election.term

    def votes(self, name: str) -> bool:
        """Return whether a member has a vote; an observer has none."""
        return name in self._electorate.members

    @property
    def coordinator(self) -> str | None:
        return None if self.election is None else self.election.coordinator(self._clock())

    @property
    def patience(self) -> float:
        """Seconds for which it is worth waiting for an election."""
        return max(0.0, self._lost + PATIENCE * self.timing.patience - self._clock()) if self.election is not None else 0.0

    def coordinates(self, term: Term) -> bool:
        """Return whether this node is the coordinator of a term."""
        return self.election is not None and self.election.role == "coordinator" and self.election.term == term

    def leads(self, term: Term) -> bool:
        """Return whether this node may act as the coordinator of a term now. Ask just before it acts."""
        return self.coordinates(term) and self.election is not None and self.election.leads(self._clock())

    def obeys(self, sender: str, term: Term) -> bool:
        """Return whether to follow a member as the coordinator of a term."""
        return self.election is not None and self.election.obeys(sender, term)
