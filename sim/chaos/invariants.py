"""Invariants of a federation, checked while it runs under faults.

They are checked from outside: by the frames in the network, by the checkpoints on the disks, and by an observer of each
process. `Invariants` has the knowledge that outlives a process; `ProcessWatch` observes one process.

Some faults excuse what would be a violation without them, and the excuse is as narrow as possible. A folder that was
replaced by an older copy may hold an older round and an older membership log, and numbers of frames up to the incarnation
that it had may repeat until peers have told the node; a higher one may not. Votes of an election are lost if half of the
members or more were restored from copies after the coordinator's first claim; no protocol could then know of the first
coordinator. Everything else holds under every fault.

`Violation` is also what the processes of tests/chaos report. From outside they show `error`, `not finite`, `number
reused` and `no progress` in statuses, files and output, and `resources exceeded`, which has no meaning here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from p2pfl.node.checkpoint import Checkpoint
from p2pfl.node.coordination.election_runner import Elected
from p2pfl.node.node import Node, Observer
from p2pfl.policy import Assignment, Budget, Fragment, Merge, Update
from p2pfl.protocols.election import Term
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import HEADER_SIZE, OVERHEAD, Header

Invariant = Literal[
    "round lost",
    "number reused",
    "revoked member served",
    "membership lost",
    "budget exceeded",
    "model not requested",
    "two coordinators",
    "not finite",
    "no progress",
    "error",
    "resources exceeded",
]

_header = msgspec.msgpack.Decoder(Header)


class Violation(msgspec.Struct, frozen=True):
    """Invariant that does not hold.

    Attributes:
        at: virtual seconds since the start.
    """

    invariant: Invariant
    at: float
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.node} at {self.at:.3f} s: {self.text}"


@dataclass
class Memory:
    """Knowledge of one node that survives its crashes.

    Attributes:
        replaced: whether its folder was replaced by an older copy since the last start.
        replaced_at: the last time at which that happened.
        acknowledged: the last checkpoint that was on disk when the node continued.
        attempted: checkpoints that it has begun to write since.
        membership_version: the newest version of the membership log that was on its disk.
        incarnation: its highest incarnation so far.
        repeatable: incarnations up to this one may repeat numbers, because the folder is older than their frames.
    """

    replaced: bool = False
    replaced_at: float = -inf
    acknowledged: Checkpoint | None = None
    attempted: list[Checkpoint] = field(default_factory=list)
    membership_version: int = 0
    incarnation: int = 0
    repeatable: int = 0

    def forget(self, now: float) -> None:
        """Expect nothing of the disk, because it was replaced by an older copy."""
        self.replaced, self.replaced_at, self.membership_version = True, now, 0
        self.repeatable = self.incarnation


class Invariants:
    """Checks of all nodes.

    Args:
        now: returns the virtual time.
        report: receives each violation.
        membership_of: returns the membership log of a node's running process; None while there is none.

    Attributes:
        memories: knowledge of each node, by name.
        figures: number of frames, of their bytes, and of finished rounds.
    """

    def __init__(
        self,
        keys: Mapping[str, bytes],
        now: Callable[[], float],
        report: Callable[[Violation], None],
        membership_of: Callable[[str], Membership | None],
    ) -> None:
        self.memories = {name: Memory() for name in keys}
        self.figures = {"frames": 0, "bytes": 0, "rounds": 0}
        self.hash = blake2b(digest_size=16)
        self._keys = keys
        self.now = now
        self._report = report
        self._membership_of = membership_of
        self._numbers: dict[tuple[str, int, int], bytes] = {}
        self._coordinators: dict[Term, tuple[str, float]] = {}
        self._requests: Counter[tuple[str, str, int]] = Counter()  # unanswered, by asker, sender of the model, and number

    def fail(self, invariant: Invariant, node: str, text: str) -> None:
        """Report a violation."""
        self._report(Violation(invariant, round(self.now(), 6), node, text))

    def sent(self, sender: str, recipient: str, frame: bytes) -> None:
        """Check a frame that a node sends."""
        signed = frame[:OVERHEAD]
        self.figures["frames"] += 1
        self.figures["bytes"] += len(frame)
        self.hash.update(signed)
        header = _header.decode(frame[:HEADER_SIZE])
        memory = self.memories[sender]
        memory.incarnation = max(memory.incarnation, header.incarnation)
        number = sender, header.incarnation, header.sequence
        if self._numbers.setdefault(number, signed) != signed and header.incarnation > memory.repeatable:
            self.fail("number reused", sender, f"two frames have number {header.sequence} of start {header.incarnation}")
        membership = self._membership_of(sender)
        revoked = membership is not None and membership.refusal(self._keys[recipient]) == "revoked"
        if revoked and not isinstance(header.body, m.Entries | m.Bye):
            kind = type(header.body).__name__
            self.fail("revoked member served", sender, f"sends {kind} to {recipient}, whose revocation it knows")
        match header.body:
            case m.Get(request=request):
                self._requests[sender, recipient, request] += 1
            case m.ModelUpdate(request=request):
                self._served(sender, recipient, request)
            case m.Leading(membership_version=version, term=term):
                self.leads(sender, Term(version, term))

    def _served(self, sender: str, recipient: str, request: int) -> None:
        """Check that a model answers a request that was not answered before."""
        self._requests[recipient, sender, request] -= 1
        if self._requests[recipient, sender, request] < 0:
            self.fail("model not requested", sender, f"sends {recipient} more models for request {request} than requested")

    def leads(self, name: str, term: Term) -> None:
        """Check a claim that a node is the coordinator of a term.

        No vote on a disk survives if half of the members or more are restored from older copies after the first claim.
        """
        first, since = self._coordinators.setdefault(term, (name, self.now()))
        if first != name and not self._votes_are_lost(name, since):
            text = f"coordinates term {term.number} of membership version {term.membership_version}, as {first} did"
            self.fail("two coordinators", name, text)

    def _votes_are_lost(self, name: str, since: float) -> bool:
        """Return whether half of the members that a node knows, or more, were restored after a time."""
        membership = self._membership_of(name)
        members = self.memories if membership is None else membership.members
        return 2 * sum(self.memories[member].replaced_at >= since for member in members) >= len(members)

    def starts(self, name: str, membership: Membership) -> None:
        """Check the membership log with which a process starts."""
        known, found = self.memories[name].membership_version, membership.membership_version
        if found < known:
            self.fail("membership lost", name, f"starts with membership version {found} after {known} was on its disk")


class Merged(NamedTuple):
    """Finished round of a node, and the number of others from which it learned."""

    at: float
    round: int
    others: int


class ProcessWatch(Observer):
    """Observer of one process: of its node, of its checkpoints, and of errors in its parts.

    Attributes:
        merges: the rounds that it has finished.
    """

    def __init__(self, invariants: Invariants, name: str, budget: Budget, note: Callable[[str], None]) -> None:
        self._invariants = invariants
        self._name = name
        self._budget = budget
        self._note = note
        self._memory = invariants.memories[name]
        self._models = self._bytes = 0
        self._trainings = 0  # of this process, and in the checkpoint with which it has started
        self.merges: list[Merged] = []
        self._assigned: set[int] = set()

    def _fail(self, invariant: Invariant, text: str) -> None:
        self._invariants.fail(invariant, self._name, text)

    # The disk

    def loaded(self, checkpoint: Checkpoint | None) -> None:
        memory = self._memory
        known = checkpoint == memory.acknowledged or checkpoint in memory.attempted
        if not (known or memory.replaced):
            found = "nothing" if checkpoint is None else f"round {checkpoint.round}"
            last = "nothing" if memory.acknowledged is None else f"round {memory.acknowledged.round}"
            self._fail("round lost", f"starts with {found}, but the last acknowledged state was {last}")
        memory.acknowledged, memory.attempted, memory.replaced = checkpoint, [], False
        self._trainings = 0 if checkpoint is None else checkpoint.trainings.trainings

    def saving(self, checkpoint: Checkpoint) -> None:
        self._memory.attempted.append(checkpoint)

    def saved(self, checkpoint: Checkpoint) -> None:
        self._memory.acknowledged, self._memory.attempted = checkpoint, []

    # The node

    def fault(self, part: str, error: Exception) -> None:
        self._fail("error", f"in {part}: {type(error).__name__}: {error}")

    def trained(self) -> None:
        """Count a training that the node has begun."""
        self._trainings += 1
        if self._budget.trainings and self._trainings > self._budget.trainings:
            self._fail("budget exceeded", f"begins training {self._trainings}; its budget is {self._budget.trainings}")

    def restored(self, node: Node) -> None:
        self._note(f"continues after round {node.round}")

    def elected(self, node: Node, elected: Elected) -> None:
        if elected.coordinator is not None:
            self._invariants.leads(elected.coordinator, elected.term)
        self._note(f"coordinator of term {elected.term.number}: {elected.coordinator}")

    def skipped(self, node: Node, finished: int, following: int) -> None:
        self._note(f"goes from round {finished} to round {following}")

    def merged(self, node: Node, merge: Merge) -> None:
        self._models = self._bytes = 0
        self._invariants.figures["rounds"] += 1
        if not np.isfinite(node.me.params).all():
            self._fail("not finite", f"has parameters that are not finite after round {node.round}")
        others = sum(1 for id, weight in merge.weights.items() if weight and id != node.name)
        others += node.round in self._assigned
        self.merges.append(Merged(self._invariants.now(), node.round, others))
        self._note(f"round {node.round} with {others} others")

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        self._note("has finished all rounds")

    def received(self, id: str, round: int, updates: Sequence[Update]) -> None:
        self._charge(round, len(updates), updates)
        for update in updates:
            if not np.isfinite(update.params).all():
                self._fail("not finite", f"takes a model of {update.sender} that is not finite, of round {update.round}")

    def received_fragments(self, id: str, round: int, fragments: Sequence[Fragment]) -> None:
        self._charge(round, 0, fragments)

    def _charge(self, round: int, models: int, received: Sequence[Update | Fragment]) -> None:
        """Compare what the node has received in a round with its budget. Fragments count by their bytes only."""
        self._models += models
        self._bytes += sum(each.size for each in received)
        for limit, used, what in ((self._budget.models, self._models, "models"), (self._budget.bytes, self._bytes, "bytes")):
            if limit and used > limit:
                self._fail("budget exceeded", f"received {used} {what} in round {round}; its budget is {limit}")

    def assigned(self, id: str, round: int, assignment: Assignment) -> None:
        self._assigned.add(round)

    def discarded(self, id: str, round: int, reason: str, senders: Sequence[str]) -> None:
        self._note(f"keeps its model in round {round}: {reason}")
