"""Part of a node in elections: the rules of p2pfl.protocols.election with a clock, a disk and links.

The election is a state machine that says what to write and to send. The runner carries this out in the order that makes
it safe: a ballot is on the disk before a message that depends on it is sent. If the write fails, no promise was made: the
runner begins again from the ballot on the disk, as after a crash. A node whose vote file is damaged might vote twice in a
term, so it takes no part until the membership changes, which begins a new term for all. With a committee it follows the
coordinator until then, as the members outside the committee do, and a member outside loses nothing.

In a federation with a committee (p2pfl.protocols.membership.committee), a granted vote is a message of its own, with a
signature. The elected member makes a certificate of them, and sends it once to every member that it is connected with.
Members outside the committee receive no beats. They keep the coordinator of the newest certificate that they know, while
they are connected with it; otherwise they ask one member of the committee after the other for the present certificate, one
question a second, however long elections take with large models. A former coordinator answers a submission with the newest
certificate, or reports that its term is over. So an ordinary member sends and receives a bounded number of messages, however
many members there are.

Nodes whose policy is not coordinated (see p2pfl.policy.Coordinated) hold no elections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import msgspec

from p2pfl._util.atomic_files import DamagedFileError, explain, file_of, read_sealed, reason, write_sealed
from p2pfl._util.disk import SYSTEM, Disk
from p2pfl._util.event_log import EventLogger
from p2pfl._util.failpoints import failpoint
from p2pfl._util.machine import amount, boot_clock
from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.facts import read_facts, update_facts
from p2pfl.node.log import LOG
from p2pfl.protocols import term_certificates
from p2pfl.protocols.election import LAST, TIMING, Ballot, Election, ElectionStep, Electorate, Quorum, Term, Timing
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity, verify
from p2pfl.protocols.membership.log import Member, Membership
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.term_certificates import Certificate
from p2pfl.protocols.wire import messages as m
from p2pfl.random_streams import RandomStreams

MAGIC = b"p2pfl vote 1\n"
PATIENCE = 5  # multiple of Timing.patience for which a round waits for the election of a coordinator
AHEAD, SLOWEST = 8, 1_000_000  # models that may delay an election message, and the bytes per second of their link
ASKING = 1.0  # seconds between the questions for a certificate
UNKNOWN = "no coordinator yet"
ADVANCES, ADVANCES_AT_ONCE = 1.0, 10  # later terms of one member per second, and at once, that this node accepts
SILENT = "no coordinator: this node's vote was lost, so it takes no part in elections until the membership changes"


class Elected(NamedTuple):
    """Coordinator as one node sees it.

    Attributes:
        coordinator: name of the coordinator; None if there is none, and then `problem` gives the reason.
        term: the newest term that the node knows.
    """

    coordinator: str | None
    term: Term
    problem: str


class Votes(Protocol):
    """Storage of a node's ballot."""

    def load(self, membership_version: int) -> Ballot:
        """Return the last saved ballot; an empty one for a node that never voted."""

    def save(self, ballot: Ballot) -> None:
        """Save a ballot permanently before returning.

        Raises:
            OSError: the ballot could not be saved.
        """


class MemoryVotes:
    """Storage of the ballot in memory: for simulated nodes, and for one without a federation."""

    def __init__(self) -> None:
        self.ballot = Ballot()

    def load(self, membership_version: int) -> Ballot:
        return self.ballot

    def save(self, ballot: Ballot) -> None:
        self.ballot = ballot


class FileVotes:
    """Storage of the ballot in a sealed file.

    Args:
        log: receives an event if the file is damaged.
        disk: the disk of the file.
    """

    def __init__(self, path: Path, log: EventLogger = LOG, disk: Disk = SYSTEM) -> None:
        self._path = path
        self._log = log
        self._disk = disk

    def load(self, membership_version: int) -> Ballot:
        """Return the last saved ballot.

        A damaged file is set aside, because its vote is unknown; so is one that is older than the last vote in the
        facts of the folder. The returned ballot then has the last term of this version of the membership log, in which
        the node takes no part.

        Raises:
            ConfigurationError: the file cannot be read, or its replacement cannot be written.
        """
        newest = read_facts(self._path.parent, self._disk).term
        what = "is damaged"
        try:
            ballot = msgspec.msgpack.decode(read_sealed(self._path, MAGIC, self._disk), type=Ballot)
            if ballot.term >= newest:
                return ballot
            what = "is older than the last vote of this node"
        except FileNotFoundError:
            if newest == Ballot().term:
                return Ballot()
            what = "is missing"
        except OSError as error:
            self._fail("read", error)
        except (DamagedFileError, msgspec.MsgspecError):
            pass
        ballot = Ballot(Term(membership_version, LAST))
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            if self._disk.exists(self._path):
                self._disk.rename(self._path, aside)
                what += f": renamed it to {aside.name}"
            self.save(ballot)
        except OSError as error:
            self._fail("write", error)
        event = f"{self._path} {what}; this node takes no part in elections until the membership changes"
        self._log.warning(event, kind="file-damaged", path=str(self._path))
        return ballot

    def save(self, ballot: Ballot) -> None:
        write_sealed(self._path, MAGIC, msgspec.msgpack.encode(ballot), disk=self._disk)
        update_facts(self._path.parent, self._disk, term=ballot.term)
        failpoint("vote-saved")

    def distrust(self, membership_version: int) -> None:
        """Withdraw from the elections of a membership version, because the file is older than messages of this node.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        try:
            self.save(Ballot(Term(membership_version, LAST)))
        except OSError as error:
            self._fail("write", error)

    def _fail(self, what: str, error: OSError) -> NoReturn:
        raise ConfigurationError(f"cannot {what} {file_of(error, self._path)}: {explain(error)}") from error


def electorate(membership_version: int, members: Iterable[Member]) -> Electorate:
    """Return the members that vote, and the members that may coordinate.

    Observers have no vote. If any member has the role `coordinator-eligible`, only members with this role may
    coordinate; otherwise all voters may. The preferred one is the first by name.
    """
    voters = sorted((member.name, member.role) for member in members if member.role != "observer")
    chosen = [name for name, role in voters if role == "coordinator-eligible"]
    return Electorate(
        membership_version, frozenset(name for name, _ in voters), tuple(chosen or [name for name, _ in voters])
    )


def committee_electorate(log: Membership) -> Electorate:
    """Return the members that vote and may coordinate, of the committee if the federation has one.

    If any member of the committee has the role `coordinator-eligible`, only such members may coordinate.
    """
    everyone = log.members.values()
    epochs = log.committees.epochs
    if not epochs:
        return electorate(log.membership_version, everyone)
    *before, present = epochs
    chosen = electorate(present.membership_version, [log.members[name] for name in present.members])
    return msgspec.structs.replace(
        chosen,
        keys=present.members,
        participants=frozenset(member.name for member in everyone if member.role != "observer"),
        earlier=tuple(
            Quorum(
                epoch.membership_version,
                len(epoch.members) // 2 + 1,
                frozenset(n for n, key in epoch.members.items() if n in log.members and log.members[n].key == key),
            )
            for epoch in before
        ),
    )


class VoteSigner(NamedTuple):
    """What a node signs its votes with, in a federation with a committee."""

    identity: Identity
    federation: bytes


class Bound(NamedTuple):
    """What coordinating costs a node.

    Attributes:
        members: number of members that take part, this node included.
        bytes: bytes of models in memory: of each member that submits to it what it has trained, and what it is assigned.
        beats: beats that the node sends in a second, and receives.
    """

    members: int
    bytes: int
    beats: float


def timing_of(size: int, deadline: float) -> Timing:
    """Return the timing of elections between nodes with P parameters.

    An election message may wait behind models on the same link. No member may count a coordinator as lost during that
    time, because the coordinator would then never receive all submissions. Patience is therefore the time of AHEAD
    models at SLOWEST, but not less than its default. The lease is limited to half the deadline, within which a
    coordinator must have all submissions.

    Args:
        deadline: time in seconds for which participants wait.
    """
    patience = min(4 * size * AHEAD / SLOWEST, deadline / 2 * TIMING.patience / TIMING.lease)
    return TIMING if patience <= TIMING.patience else Timing(0.2 * patience, 0.8 * patience, patience)


class ElectionRunner:
    """Takes part in elections, and tells the node who coordinates.

    Args:
        me: this node's name.
        electorate: the members that vote; it may change later.
        incarnation: number of the node's starts.
        seed: seed of the federation.
        clock: returns the time in seconds; see p2pfl.protocols.election.Election.
        log: receives an event if the vote cannot be written.
        signer: signs votes; needed in a federation with a committee.
        size: P, the number of shared parameters.
        memory: bytes of models (see `bound`) with which this node stands for election at most, and which it holds at most.
        group_size: members of a group whose mean another member computes; 0 without groups.

    Attributes:
        election: the election as this node follows it; None while the node takes no part.
        certificate: the newest term of the present committee of which this node has the certificate, and that; None
            without one.
    """

    def __init__(
        self,
        me: str,
        electorate: Electorate,
        votes: Votes,
        *,
        incarnation: int,
        seed: int,
        clock: Callable[[], float] = boot_clock,
        log: EventLogger = LOG,
        timing: Timing = TIMING,
        signer: VoteSigner | None = None,
        size: int = 0,
        memory: float = inf,
        group_size: int = 0,
    ) -> None:
        self._me = me
        self._electorate = electorate
        self._votes = votes
        self._draw = RandomStreams(seed, me).generator(incarnation, "election").random
        self._clock = clock
        self._log = log
        self.timing = timing
        self._signer = signer
        self._size, self._memory, self._group_size = size, memory, group_size
        self._send: Callable[..., None]
        self._connected: Callable[[], Collection[str]] = tuple
        self._on_change: Callable[[Elected], None] = lambda elected: None
        self.seen = Elected(None, Term(0, 0), UNKNOWN)
        self._lost = -1.0  # last time at which there was a coordinator
        self.election: Election | None = None  # None while the node takes no part
        self._running = False
        self._advances = TokenBucket(ADVANCES, ADVANCES_AT_ONCE)
        self.certificate: tuple[Term, Certificate] | None = None
        self._signatures: tuple[Term, dict[str, bytes]] = Term(0, 0), {}  # votes for this node, in its candidacy
        self._unsaved = False  # whether the term is not written, because the vote file has a mark of a lost vote
        self._full = Term(0, 0)  # the last term in which the memory was too small for a submission
        self._too_large = Term(0, 0)  # the last term in which an assignment was too large
        self._ask_at, self._asked = 0.0, 0  # when to ask for a certificate, and the number of questions

    def connect(
        self,
        send: Callable[..., None],
        on_change: Callable[[Elected], None],
        connected: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Connect the runner to the members, before it runs.

        Args:
            send: sends a message, and its payload if it has one, to a member, if it can be reached.
            on_change: receives every change of the coordinator.
            connected: returns the names of the members that can be reached; used in a federation with a committee.
        """
        self._send, self._on_change, self._connected = send, on_change, connected

    async def run(self) -> None:
        """Take part in elections until cancelled."""
        self.begin()
        self._lost = self._clock()
        while True:
            wait = self.timing.beat  # not longer, so that silence of the others is noticed without an event
            if self.election is not None:
                self._do(self.election.tick(self._clock()))
            if self.election is not None:
                if self.election.follows_only:
                    wait = self._ask()
                wait = min(self.election.next_tick() - self._clock(), wait)
            await asyncio.sleep(max(0.0, wait))

    def receive(self, sender: str, message: m.ElectionMessage) -> None:
        """Handle a member's message about the election.

        Raises:
            ProtocolError: the message violates the rules, or its sender claims later terms too often. (Each of them is
                written to the disk.)
        """
        if isinstance(message, m.Voted) and message.granted and not message.trial and self._electorate.keys is not None:
            raise ProtocolError("election", f"{sender} does not sign its vote")
        self._receive(sender, message)

    def _receive(self, sender: str, message: m.ElectionMessage) -> None:
        election, now = self.election, self._clock()
        if election is None:
            return
        known = message.membership_version == election.term.membership_version
        later = known and message.term > election.term.number and not (isinstance(message, m.Vote) and message.trial)
        if later and not self._advances.take(sender.encode(), now):
            raise ProtocolError("election", f"{sender} claims later terms too often")
        self._do(election.receive(sender, message, now))

    def receive_of_committee(self, sender: str, message: m.CommitteeMessage, payload: bytes) -> None:
        """Handle a member's message that only federations with a committee have.

        Raises:
            ProtocolError: there is no committee, or the message violates the rules.
        """
        electorate, election, now = self._electorate, self.election, self._clock()
        if electorate.keys is None:
            raise ProtocolError("election", "this federation has no committee")
        term = Term(message.membership_version, message.term)
        match message:
            case m.WhichTerm():
                self._show_certificate(sender, term)
            case _ if election is None or term.membership_version != electorate.membership_version:
                pass  # the log is distributed separately, and the certificate is asked for again
            case m.SignedVote():
                if term == election.term and election.role == "candidate" and sender in electorate.keys:
                    self._take_signature(sender, term, payload)
                self._receive(sender, m.Voted(*term, False, True))
            case m.TermCertificate():
                self._take_certificate(election, term, payload, now)
            case m.TermOver():
                election.release(sender, term)
                self._look()

    def _take_signature(self, sender: str, term: Term, signature: bytes) -> None:
        """Keep the signature of a vote for this node."""
        keys, signer = self._electorate.keys, self._signer
        assert keys is not None
        assert signer is not None
        content = term_certificates.signed_content(signer.federation, term, signer.identity.public)
        if not verify(keys[sender], signature, content):
            raise ProtocolError("election", f"the vote of {sender} in term {term} is not signed by its key")
        if self._signatures[0] != term:
            self._signatures = term, {}
        self._signatures[1][sender] = signature

    def _take_certificate(self, election: Election, term: Term, payload: bytes, now: float) -> None:
        """Verify a certificate, unless it is the known one, and follow it.

        Raises:
            ProtocolError: it is of an earlier term, or proves nothing.
        """
        electorate, known, signer = self._electorate, self.certificate, self._signer
        if term < election.term or (known is not None and term < known[0]):
            raise ProtocolError("lower term", f"a certificate of the ended term {term}")
        certificate = term_certificates.decode(payload)
        if known is not None and term == known[0] and certificate.coordinator == known[1].coordinator:
            self._do(election.certify(term, certificate.coordinator, now))  # again, after an interruption
            return
        assert electorate.keys is not None
        assert signer is not None
        term_certificates.check_certificate(
            certificate,
            term,
            federation=signer.federation,
            committee=electorate.keys,
            eligible=electorate.eligible,
        )
        if known is not None and term == known[0]:
            raise ProtocolError("election", f"two certificates of term {term}: a member of the committee has voted twice")
        self._do(election.certify(term, certificate.coordinator, now))
        self.certificate = term, certificate

    def _certify_own(self, election: Election) -> None:
        """Make the certificate of the term that this node coordinates, and send it to the connected members."""
        term, signer, keys = election.term, self._signer, self._electorate.keys
        if keys is None or signer is None or (self.certificate is not None and self.certificate[0] == term):
            return
        votes = dict(self._signatures[1]) if self._signatures[0] == term else {}
        votes[self._me] = term_certificates.sign_vote(signer.identity, signer.federation, term, keys[self._me])
        certificate = Certificate(self._me, dict(sorted(votes.items())))
        self.certificate = term, certificate
        payload = certificate.encode()
        for name in self._connected():
            self._send(name, m.TermCertificate(*term), payload)

    def _show_certificate(self, name: str, known: Term) -> bool:
        """Send a member the certificate of a term that it may not know. Return whether there is one.

        One of a term whose coordinator this node has lost is not shown.
        """
        if self.certificate is None or self.certificate[0] < known or self.election is None:
            return False
        term, certificate = self.certificate
        if term != self.election.term or certificate.coordinator != self.coordinator:
            return False
        self._send(name, m.TermCertificate(*term), certificate.encode())
        return True

    def correct(self, name: str, term: Term) -> None:
        """Tell a member that has submitted in a term in which this node does not lead, where to turn."""
        if self._electorate.keys is None:
            return
        later = self.certificate is not None and self.certificate[0] > term
        if not (later and self._show_certificate(name, term)):
            self._send(name, m.TermOver(*term))

    def _ask(self) -> float:
        """Ask a member of the committee for the certificate of the present term, if needed; return the seconds to wait."""
        election, now, keys = self.election, self._clock(), self._electorate.keys
        if election is None or keys is None or self.coordinator is not None:
            return TIMING.patience
        if now >= self._ask_at:
            self._ask_at = now + ASKING
            if reachable := sorted(keys.keys() & set(self._connected())):
                self._asked += 1
                self._send(reachable[self._asked % len(reachable)], m.WhichTerm(*election.term))
        return self._ask_at - now

    def change(self, electorate: Electorate) -> None:
        """Adopt a change of the membership, which is on disk already."""
        new = electorate.membership_version != self._electorate.membership_version
        if new:
            self.certificate = None
        self._electorate = electorate
        self._weigh()
        if new and self._unsaved and self.election is not None:
            self.begin()  # with a new committee, the mark of a lost vote ends
        if self.election is not None:
            self._do(self.election.change(electorate, self._clock()))
        elif self._running:
            self.begin()

    def _do(self, step: ElectionStep) -> None:
        if step.write is not None:
            try:
                if not self._unsaved:
                    self._votes.save(step.write)
            except OSError as error:  # no promise was made and no message is sent, as after an earlier crash
                self._log.warning(
                    f"cannot write this node's vote: {reason(error)}; this node takes no part in this election",
                    kind="vote-unwritten",
                )
                self.begin()
                return
        for name, message in step.send:
            if isinstance(message, m.Voted) and message.granted and not message.trial and self._signer is not None:
                self._send_vote(name, Term(message.membership_version, message.term), self._signer)
            else:
                self._send(name, message)
        if self.election is not None and self.election.role == "coordinator":
            self._certify_own(self.election)
        self._look()

    def _send_vote(self, name: str, term: Term, signer: VoteSigner) -> None:
        if self._electorate.keys is None:
            self._send(name, m.Voted(*term, False, True))
            return
        signature = term_certificates.sign_vote(signer.identity, signer.federation, term, self._electorate.keys[name])
        self._send(name, m.SignedVote(*term), signature)

    def begin(self) -> None:
        """Start with the saved ballot; stay silent if it was damaged.

        A node that only withheld its vote would still spread its term, the last one, and thereby end the elections of
        the others.
        """
        self._running = True
        ballot = self._votes.load(self._electorate.membership_version)
        silent = ballot.term == Term(self._electorate.membership_version, LAST)
        self._unsaved = silent and self._electorate.keys is not None
        if self._unsaved:
            ballot = Ballot(Term(self._electorate.membership_version, 0))
        fresh = partial(Election, self._me, self._electorate, ballot, self._draw, self._clock(), timing=self.timing)
        self.election = fresh() if self._unsaved or not silent else None
        if self.election is not None:
            self.election.mute = self._unsaved
        self._weigh()
        self._look()

    @property
    def electorate(self) -> Electorate:
        return self._electorate

    @property
    def bound(self) -> Bound:
        """What coordinating would cost this node now."""
        members, voting = self.voters, len(self._electorate.members)
        held = members
        if self._group_size:  # its own group, and the means of the others
            groups = min(voting, ceil(members / self._group_size))
            held = min(members, ceil(members / max(1, groups)) + groups)
        return Bound(members, 2 * 4 * self._size * held, (voting - 1) / self.timing.beat)

    def may_lead(self) -> bool:
        """Return whether the members may elect this node."""
        return self._me in self._electorate.eligible

    def _weigh(self) -> None:
        """Stand for election only if the memory suffices for the models of all members."""
        willing = self.bound.bytes <= self._memory
        if self.election is not None and self.election.willing != willing:
            self.election.willing = willing
            if not willing and self.may_lead():
                self._log.warning(
                    f"this node does not stand as the coordinator: the models of {self.bound.members:,} members take"
                    f" {amount(self.bound.bytes)}, and coordinator_memory permits {amount(int(self._memory))}",
                    kind="coordinator-bound",
                )

    def has_room(self, held: int) -> bool:
        """Return whether the memory permits one more submission, of two models.

        The bound of a coordinator is not enough: it stands in for a lost summer, and a member of the committee sums without
        standing for election.

        Args:
            held: number of submissions in memory, and of those that room is kept for.
        """
        return 2 * 4 * self._size * (held + 1) <= self._memory

    def report_full(self) -> None:
        """Log the first submission of a term for which there is no room."""
        if self._full != self.term:
            self._full = self.term
            self._log.warning(
                f"this node can hold the submissions of {int(self._memory) // (8 * self._size):,} members with the"
                f" {amount(int(self._memory))} of coordinator_memory, and takes no others in term {self.term}",
                kind="coordinator-bound",
            )

    def report_too_large(self, why: str) -> None:
        """Log the first assignment of a term that no message can contain."""
        if self._too_large != self.term:
            self._too_large = self.term
            self._log.error(
                f"the others get no assignment in term {self.term}: {why}; take a policy without a coordinator for so many"
                " members, or smaller extras",
                kind="assignment-too-large",
            )

    def _look(self) -> None:
        """Report the coordinator if it has changed."""
        now, election = self._clock(), self.election
        if election is None:
            seen = Elected(None, self.seen.term, SILENT)
        else:
            coordinator, problem = self.coordinator, election.problem(now)
            if coordinator is None and not problem:
                problem = f"no coordinator: {election.coordinator(now)}, that of the newest known term, is not reachable"
            seen = Elected(coordinator, election.term, problem)
        coordinator = seen.coordinator
        if coordinator is not None:
            self._lost = now
        before, self.seen = self.seen, seen
        if seen.coordinator != before.coordinator or seen.problem != before.problem or (coordinator and seen != before):
            self._on_change(seen)

    # State

    @property
    def term(self) -> Term:
        return self.seen.term if self.election is None else self.election.term

    def votes(self, name: str) -> bool:
        """Return whether a member takes part in coordinated rounds; an observer does not."""
        return name in self._participants

    def is_voter(self, name: str) -> bool:
        """Return whether a member votes: it is in the committee, if there is one."""
        return name in self._electorate.members

    @property
    def voters(self) -> int:
        """Number of members that take part in coordinated rounds."""
        return len(self._participants)

    @property
    def _participants(self) -> frozenset[str]:
        chosen = self._electorate
        return chosen.members if chosen.participants is None else chosen.participants

    @property
    def coordinator(self) -> str | None:
        """Coordinator that this node can turn to now; None if there is none."""
        if self.election is None:
            return None
        name = self.election.coordinator(self._clock())
        return name if not self.election.follows_only or name in self._connected() else None

    @property
    def patience(self) -> float:
        """Seconds for which to wait for an election."""
        return max(0.0, self._lost + PATIENCE * self.timing.patience - self._clock()) if self.election is not None else 0.0

    def coordinates(self, term: Term) -> bool:
        """Return whether this node is the coordinator of a term."""
        return self.election is not None and self.election.role == "coordinator" and self.election.term == term

    def leads(self, term: Term) -> bool:
        """Return whether this node may act as the coordinator of a term now. Call it immediately before acting."""
        return self.coordinates(term) and self.election is not None and self.election.leads(self._clock())

    def obeys(self, sender: str, term: Term) -> bool:
        """Return whether to follow a member as the coordinator of a term."""
        return self.election is not None and self.election.obeys(sender, term)
