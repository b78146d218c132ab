"""Membership of a federation: a log of entries, each with the hash of the previous one, signed by the admission key.

Theory of operation. The federation's file names the first admission key, and nothing else decides who is a member. Each
entry adds a member, removes one, replaces a member's key, hands admission over to another key, extends the federation
by more rounds, or names its committee (p2pfl.protocols.membership.committee). The number of the newest entry is the
membership version.

Every node keeps the whole log and passes on what others lack (p2pfl.node.peering.control_messages.MembershipGossip). So
a node needs no server, and a peer that brings entries needs no trust: `extend` accepts an entry only if it

- is of this federation, and has the next number,
- contains the hash of the entry before it,
- is signed by the admission key in force after the entry before it, with the label of its kind; or is followed, in the
  same array, by an entry that this key has signed,
- makes sense: a name that is free, or taken, as the action needs; a strong key that no member has had before.

`extend` verifies only entries that it does not know byte by byte, so that a repeated log costs nothing but a comparison.
Of the others it verifies one signature for each admission key, not one for each entry: an entry contains the hash of the
one before it, which contains that of the one before, so the signature of the last covers all. Every newest entry is
therefore a checkpoint of the whole log. Who holds the admission key has verified a log before signing its next entry.
10,000 entries take 0.08 s this way, and 1.2 s one by one. Only if the last signature does not hold, each is
verified by itself, so that the good ones before a bad one count.

An entry with a known number and other content is a fork if an admission key of this log has signed it: its owner has
signed two histories. So is the next entry, if the key in force has signed it after another entry than the last one here.
The first history is kept, because nodes that have acted on it cannot take that back. The cause `membership fork` tells
people, and the two entries remain in `fork` as a proof (p2pfl.protocols.membership.fork). A forged entry is no fork; it
must not be able to raise this alarm.

A key is in one of three states: never seen (`stranger`), present, or ended (`revoked`). A key never returns to an
earlier state: a former member that comes back needs a new key, so that an old, possibly stolen one stays worthless. A
name can return with a new key.

A node that was off when its membership ended has an old log, and nobody passes entries on to a former member. A member
therefore refuses its link with a proof (`revocation`): the entry that ended the membership, and the hand-overs before
it, so that a node whose log ends before a hand-over can verify the signature. `accept_revocation` records the end
before the log contains it. It removes the key from those present, but adds no entry and does not change the
membership version: the entries between are still missing.

A newcomer may begin before it has the log (`begin`). It then knows a checkpoint that the admission key has signed, some
members that are proven to belong to it (p2pfl.protocols.membership.checkpoint), and the entries after it, which it gets
like everybody: these are `_Ahead`, and decide alone who is a member here. Behind it the log grows from its first entry, as
that of any node, with the entries that it asks peers for. When it reaches the checkpoint, its last hash must be the one in
the checkpoint. From then on the log decides, and nothing distinguishes the node from others. `membership_version` is the
newest entry that counts here, and `stored` the number of entries that are here without a gap from the first on; they
differ for such a newcomer only.

What must never be:

- A log loses an entry, so that its membership version decreases.
- A node acts on an entry that it has not verified, or verifies one without its predecessor.
- An oversized array from a peer takes memory: its bytes are counted before it is decoded. The log itself has no limit, as
  nobody but the owner of the admission key makes it grow. It takes 0.2 kB on the disk, twice, and at most 1 kB of memory
  for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, NoReturn

import msgspec
from msgspec import Meta

from p2pfl._util.shared_dict import SharedDict
from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity, Verifier, is_weak
from p2pfl.protocols.identity import verify as is_valid
from p2pfl.protocols.membership import committee
from p2pfl.protocols.membership.committee import Committees
from p2pfl.protocols.membership.federation_file import NAME, Federation

LIMIT = 4 << 20  # maximum bytes of entries that arrive in one array
LONGEST = 582  # maximum bytes of a signed entry
_NONE = bytes(32)
_raw = msgspec.msgpack.Decoder(list[msgspec.Raw])
_OVERHEAD = 5  # maximum bytes around the entries of an encoded log
Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Role = Literal["participant", "observer", "coordinator-eligible"]
Action = Literal["add", "remove", "replace", "hand-over"]
MOST_ROUNDS = 1_000_000  # maximum of an extension; a mistyped number cannot be taken back
_LABEL = b"p2pfl membership 1\0"
_EXTENSION_LABEL = b"p2pfl membership 2\0"
_COMMITTEE_LABEL = b"p2pfl membership committee 1\0"
_EXTENSION_FIELDS, _COMMITTEE_FIELDS = 5, 6
PROOF_LIMIT = 2048  # maximum bytes
PAIR = 2  # entries of the proof of a fork
_MOST_ENTRIES = 16
_ARRAY = 1  # bytes before up to 15 entries


class Member(msgspec.Struct, frozen=True):
    """Member that may exchange models with others."""

    name: str
    key: bytes
    role: Role


class Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    entry: Annotated[bytes, Meta(max_length=512)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


_signed = msgspec.msgpack.Decoder(Signed)
_log = msgspec.msgpack.Decoder(list[Signed])  # an entry has at least 69 bytes, so LIMIT bounds their number, too


class Membership:
    """Membership log as one node knows it. It is also an access control (see p2pfl.protocols.transport.AccessControl).

    Args:
        entries: encoded entries of the log, as many as there are.

    Attributes:
        file: the federation's file.
        federation: the federation's id, 16 bytes.
        invites: whether this node admits newcomers with a token.
        admissions: the admission keys so far; the last one is in force.
        rounds: number of rounds of the federation; 0 if neither its file nor an extension sets it.
        committees: the members that elect the coordinator, in a federation with a committee.
        on_change: called when the log has grown, a revocation was accepted, or the first fork was seen.
        fork: two signed entries, the second from another node, that prove a fork; None as long as none was seen.
        accepted_revocation: a key and the proof of its revocation by an entry that this log does not have yet.

    Raises:
        ProtocolError: the entries are not the federation's log.
    """

    def __init__(self, file: Federation, entries: bytes = b"") -> None:
        self.file = file
        self.federation = file.id
        self.invites = False
        self._admissions = [file.admission]
        self._rounds = first if isinstance(first := file.tables.get("rounds"), int) else 0
        self._ahead: _Ahead | None = None
        size = file.tables.get("committee")
        self.committees = Committees(size if isinstance(size, int) else 0)
        self.on_change: list[Callable[[], None]] = []
        self._members: SharedDict[str, Member] = SharedDict()
        self._sorted: dict[str, Member] | None = None  # cache of `members`, filled on demand
        self._seen: SharedDict[bytes, str] = SharedDict()  # keys of all current and former members, and their names
        self.accepted_revocation: tuple[bytes, bytes] | None = None
        self.fork: tuple[bytes, bytes] | None = None
        self._ends: dict[bytes, Ending] = {}  # ends of memberships, by the former member's key
        self._hand_overs: list[int] = []  # membership versions of the hand-overs
        self._former: set[str] = set()  # names of members that were removed; some may be members again
        self._log: list[bytes] = []  # encoded signed entries
        self._added: SharedDict[str, bytes] = SharedDict()  # by member: hash of the signed entry that added it
        self._last = _NONE
        self._verifiers: dict[bytes, Verifier] = {}  # verifiers of admission keys
        if entries:
            self.extend(entries, len(entries))

    @property
    def membership_version(self) -> int:
        """Number of the newest entry."""
        return self.stored if self._ahead is None else self._ahead.membership_version

    @property
    def stored(self) -> int:
        """Number of the entries that are here without a gap from the first on."""
        return len(self._log)

    @property
    def is_complete(self) -> bool:
        """Whether all entries that count here are stored here; not so for a newcomer that has begun with a checkpoint."""
        return self._ahead is None

    @property
    def admissions(self) -> list[bytes]:
        return self._admissions if self._ahead is None else self._ahead.admissions

    @property
    def rounds(self) -> int:
        return self._rounds if self._ahead is None else self._ahead.rounds

    @property
    def election_version(self) -> int:
        """First part of the terms of elections: the version that made the present committee, or the newest one."""
        return self.committees.epochs[-1].membership_version if self.committees.epochs else self.membership_version

    @property
    def admission(self) -> bytes:
        return self.admissions[-1]

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by name, sorted. The returned mapping does not change when the log grows.

        After each change of the log the first call sorts all of them; `member`, `name_of` and `names_after` do not.
        """
        if self._sorted is None:
            self._sorted = dict(sorted((self._members if self._ahead is None else self._ahead.members).items()))
        return self._sorted

    @property
    def size(self) -> int:
        """Number of members, also of those that a newcomer does not know yet."""
        return len(self._members) if self._ahead is None else self._ahead.size

    @property
    def added(self) -> Mapping[str, bytes]:
        """SHA-256 of the signed entry that added each member, by name. Another key of a member does not change it."""
        return MappingProxyType(self._added if self._ahead is None else self._ahead.added)

    @property
    def last(self) -> bytes:
        """SHA-256 of the newest signed entry; zeros before the first."""
        return self._last if self._ahead is None else self._ahead.last

    @property
    def hand_overs(self) -> list[bytes]:
        """The encoded signed hand-overs that are stored here."""
        return [self._log[number - 1] for number in self._hand_overs]

    def member(self, name: str) -> Member | None:
        """Return the member with a name, or None."""
        return (self._members if self._ahead is None else self._ahead.members).get(name)

    def name_of(self, key: bytes) -> str | None:
        """Return the name of the member with a key; None if there is none."""
        if self._ahead is not None:
            return next((member.name for member in self._ahead.members.values() if member.key == key), None)
        return None if key in self._ends else self._seen.get(key)

    def names_after(self, membership_version: int) -> set[str]:
        """Return the names of the members that the entries after a membership version add, remove, or give another key.

        A newcomer that has begun with a checkpoint knows the names in the entries after it only.
        """
        if self._ahead is None:
            signed = map(_signed.decode, self._log[membership_version:])
            entries = [decode_entry(each.entry) for each in signed]
        else:
            entries = [link.entry for link in self._ahead.links[max(0, membership_version - self._ahead.begun) :]]
        return {entry.name for entry in entries if isinstance(entry, Entry) and entry.action != "hand-over"}

    @property
    def ended(self) -> int:
        """Number of keys whose membership has ended."""
        return len(self._ends)

    def had(self, name: str) -> bool:
        """Return whether a current or former member has this name."""
        return name in self._members or name in self._former

    def copy(self) -> Membership:
        """Return an independent copy of the log, without its callbacks. Nothing is verified again.

        The two share the members and keys that they have in common, and the entries.
        """
        same = copy(self)
        own = {name: copy(value) for name, value in vars(self).items() if isinstance(value, _COPIED)}
        vars(same).update(own | {"_sorted": self._sorted})  # which is replaced, and never changed
        same.on_change = []
        same.committees = self.committees.copy()
        return same

    def begin(self, beginning: Beginning) -> None:
        """Let a checkpoint and the members that it proves count, until the log has reached it."""
        if beginning.membership_version > self.stored:
            self._ahead, self._sorted = _Ahead(beginning), None

    def refusal(self, key: bytes) -> str:
        if self._ahead is not None:
            present = key not in self._ends and any(member.key == key for member in self._ahead.members.values())
            return "" if present else "revoked" if key in self._ends else "stranger"
        if key in self._ends:
            return "revoked"
        return "" if key in self._seen else "stranger"

    def end_of(self, key: bytes) -> Ending | None:
        """Return how the membership of a key ended; None if it did not end."""
        return self._ends.get(key)

    def revocation(self, key: bytes) -> bytes:
        ending = self._ends.get(key)
        if ending is None or (last := ending.entry.membership_version) > self.stored:
            return b""
        hand_overs = [self._log[number - 1] for number in self._hand_overs if number < last]
        return encode(hand_overs, self._log[last - 1])

    def accept_revocation(self, key: bytes, proof: bytes) -> bool:
        name = self.name_of(key)
        if name is None or self.refusal(key):
            return self.refusal(key) == "revoked"
        try:
            ending = verify(proof, self.federation, self.membership_version, self.admission)
        except ProtocolError:
            return False
        entry = ending.entry
        if entry.name != name or (entry.key == key) != (entry.action == "remove"):
            return False
        self._ends[key] = ending
        self.accepted_revocation = key, proof
        self._report_change()
        return True

    def after(self, membership_version: int, limit: int) -> bytes:
        chosen, size, log = [], _OVERHEAD, self._log
        if self._ahead is not None and membership_version >= self._ahead.begun:
            log, membership_version = [link.encoded for link in self._ahead.links], membership_version - self._ahead.begun
        for position in range(membership_version, len(log)):
            signed = log[position]
            size += len(signed)
            if size > limit:
                break
            chosen.append(msgspec.Raw(signed))
        return msgspec.msgpack.encode(chosen)

    def encode(self) -> bytes:
        """Return the log, as far as it is stored here."""
        return msgspec.msgpack.encode([msgspec.Raw(signed) for signed in self._log])

    def encode_beginning(self) -> tuple[bytes, bytes]:
        """Return the checkpoint with which this node has begun, and the entries after it; b"" for both if it has the log."""
        if self._ahead is None:
            return b"", b""
        return self._ahead.encoded, msgspec.msgpack.encode([msgspec.Raw(link.encoded) for link in self._ahead.links])

    def catch_up(self, other: Membership) -> None:
        """Add the entries that another copy of this log has in addition.

        Raises:
            ProtocolError: see `extend`.
        """
        while other.stored > self.stored:
            self.extend(other.after(self.stored, LIMIT))

    def extend(self, entries: bytes, limit: int = LIMIT) -> int:
        """Add entries that follow the known ones, and ignore the known ones.

        Args:
            limit: maximum bytes; a larger one is only for entries that this node has written itself.

        Only new entries are verified, so the cost depends only on their number, not on the length of the log.

        Raises:
            ProtocolError: `membership` if the entries are malformed, leave a gap, are not signed by the admission key,
                or are invalid; `membership fork` if one differs from the known entry with the same number, or follows
                another one than the last known entry. The entries before it are added.
        """
        if len(entries) > limit:
            raise ProtocolError("membership", f"a log of {len(entries)} bytes")
        try:
            log = _log.decode(entries)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("membership", str(error)) from error
        before = self.stored, self.membership_version
        try:
            ahead = self._ahead
            if ahead is not None and len(log) == PAIR:
                self._expect_no_fork(*log)
            self._take(log if ahead is None else ahead.take(log, self.stored, self.federation, self._ends, self._fork))
        finally:
            if self._ahead is not None and self.stored == self._ahead.begun:
                self._arrive(self._ahead)
            grown = max(self.stored - before[0], self.membership_version - before[1])
            if grown:
                self._report_change()
        return grown

    def _arrive(self, ahead: _Ahead) -> None:
        """Let the log decide, which has reached the checkpoint with which this node began."""
        self._ahead, self._sorted = None, None
        self._take([link.signed for link in ahead.links])

    def _report_change(self) -> None:
        for changed in list(self.on_change):
            changed()

    def append(self, identity: Identity, action: Action, name: str, key: bytes, role: Role = "participant") -> None:
        """Sign and add a new entry. (`role` applies when a member is added.)

        Raises:
            FederationError: `identity` is not the admission key, or the entry is invalid.
        """
        self._append(identity, Entry(self.federation, self.membership_version + 1, self._last, action, name, key, role))

    def append_extension(self, identity: Identity, rounds: int) -> None:
        """Sign and add an extension of the federation to a number of rounds.

        Raises:
            FederationError: `identity` is not the admission key, or the number is not greater than the present one, or
                greater than MOST_ROUNDS.
        """
        if not self.rounds < rounds <= MOST_ROUNDS:
            raise FederationError(
                f"the federation {self.file.name} has {self.rounds:,} rounds; the new number must be greater, and at most"
                f" {MOST_ROUNDS:,}, got {rounds:,}"
            )
        self._append(identity, Extension(self.federation, self.membership_version + 1, self._last, "extend", rounds))

    def append_committee(self, identity: Identity, names: Sequence[str], lost: bool = False) -> None:
        """Sign and add an entry that names the committee.

        Args:
            lost: whether a majority of an earlier committee has stopped for good, so that nobody waits for it.

        Raises:
            FederationError: `identity` is not the admission key, a name is not that of a member, or the entry is invalid.
        """
        for name in names:
            if name not in self._members:
                raise FederationError(f"{name} is not a member of the federation {self.file.name}")
        keys = [self._members[name].key for name in names]
        self._append(
            identity,
            CommitteeEntry(self.federation, self.membership_version + 1, self._last, "committee", keys, lost),
        )

    def _append(self, identity: Identity, entry: AnyEntry) -> None:
        if self._ahead is not None:
            raise FederationError(
                f"this node has {self.stored:,} of {self.membership_version:,} entries of the membership log, and can change"
                " nothing before it has all; let it run until it has received them"
            )
        if identity.public != self.admission:
            raise FederationError("this key is not the current admission key")
        content = msgspec.msgpack.encode(entry)
        signed = Signed(content, identity.sign(signature_label(entry) + content))
        try:
            self.extend(msgspec.msgpack.encode([signed]))
        except ProtocolError as error:
            raise FederationError(str(error).partition(": ")[2]) from error

    def _take(self, log: Sequence[Signed]) -> None:
        """Add the entries of an array that are not known, up to the first one that is wrong."""
        chain, odd = self._follow(log)
        covered = self._count_covered(chain)
        for position, link in enumerate(chain):
            if position >= covered and not self._is_signed(link.signed, link.entry, self._admissions[-1]):
                raise _not_signed()
            self._add(link)
        if odd is not None:
            self._refuse(odd)

    def _follow(self, log: Sequence[Signed]) -> tuple[list[_Link], Signed | None]:
        """Return the entries that follow the known ones, and the first one that does not, if any. Nothing is verified."""
        chain: list[_Link] = []
        version, last = len(self._log), self._last
        for signed in log:
            encoded = msgspec.msgpack.encode(signed)
            try:
                entry = decode_entry(signed.entry)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return chain, signed
            position = entry.membership_version - 1
            if position < version + len(chain):
                if encoded == (self._log[position] if position < version else chain[position - version].encoded):
                    continue
                return chain, signed
            if position > version + len(chain) or entry.before != last or entry.federation != self.federation:
                return chain, signed
            last = sha256(encoded).digest()
            chain.append(_Link(signed, entry, encoded, last))
        return chain, None

    def _count_covered(self, chain: Sequence[_Link]) -> int:
        """Return how many entries are covered by the last signature of their admission key, or are before such."""
        covered, admission = 0, self._admissions[-1]
        for position, (signed, entry, *_) in enumerate(chain):
            successor = entry.key if isinstance(entry, Entry) and entry.action == "hand-over" else None
            if successor is not None or position == len(chain) - 1:
                if not self._is_signed(signed, entry, admission):
                    break
                covered, admission = position + 1, successor or admission
        return covered

    def _refuse(self, signed: Signed) -> NoReturn:
        """Raise the reason why an entry does not follow the known ones."""
        try:
            entry = decode_entry(signed.entry)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("membership", str(error)) from error
        number, newest = entry.membership_version, self.stored
        if entry.federation != self.federation:
            raise ProtocolError("membership", "an entry of another federation")
        if number > newest + 1:
            raise ProtocolError("membership", f"entry {number} after {newest}")
        if number == newest + 1:
            what = f"entry {number} does not follow the entry before it"
            if newest and self._is_signed(signed, entry, self._admissions[-1]):
                raise self._fork(self._log[-1], signed, what)
            raise ProtocolError("membership", what)
        if not any(self._is_signed(signed, entry, key) for key in self._admissions):  # a forged entry is not a fork
            raise _not_signed()
        what = f"two different entries of membership version {number}; the first one is kept"
        raise self._fork(self._log[number - 1], signed, what)

    def _fork(self, known: bytes, signed: Signed, what: str) -> ProtocolError:
        """Keep the proof of the first fork, and return the error that names it.

        Args:
            known: the encoded entry that the other one contradicts.
        """
        if self.fork is None:
            self.fork = known, msgspec.msgpack.encode(signed)
            self._report_change()
        return ProtocolError("membership fork", what)

    def _expect_no_fork(self, first: Signed, second: Signed) -> None:
        """Keep two entries as a proof if they contradict each other. A newcomer may have no entry that contradicts one.

        Raises:
            ProtocolError("membership fork"): they do.
        """
        try:
            one, other = decode_entry(first.entry), decode_entry(second.entry)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        for signed, entry in ((first, one), (second, other)):
            if entry.federation != self.federation or not any(self._is_signed(signed, entry, k) for k in self.admissions):
                return
        if contradicts(first, one, second, other):
            number = one.membership_version
            raise self._fork(
                msgspec.msgpack.encode(first), second, f"two entries contradict each other about entry {number}"
            )

    def _is_signed(self, signed: Signed, entry: AnyEntry, key: bytes) -> bool:
        if is_weak(key):
            return False
        verifier = self._verifiers.get(key) or self._verifiers.setdefault(key, Verifier(key))
        return verifier.valid(signed.signature, signature_label(entry) + signed.entry)

    def _add(self, link: _Link) -> None:
        """Add an entry that follows the known ones and is signed, if it makes sense."""
        entry = link.entry
        ahead = self._ahead
        if ahead is not None and entry.membership_version == ahead.begun and link.hash != ahead.checkpoint:
            what = f"entry {ahead.begun} is another one than that of the checkpoint with which this node began"
            if ahead.links:  # the first of them contains the hash of the other one
                raise self._fork(link.encoded, ahead.links[0].signed, what)
            raise ProtocolError("membership fork", what)
        if isinstance(entry, Extension):
            self._extend_rounds(entry.rounds)
        elif isinstance(entry, CommitteeEntry):
            if problem := self.committees.appoint(entry.membership_version, entry.keys, entry.lost):
                raise ProtocolError("membership", problem)
        else:
            self._apply(entry)
            if entry.action == "add":
                self._added[entry.name] = link.hash
            elif entry.action == "remove":
                del self._added[entry.name]
        self._log.append(link.encoded)
        self._last = link.hash

    def _extend_rounds(self, rounds: int) -> None:
        if rounds <= self._rounds:
            raise ProtocolError("membership", f"an extension to {rounds} rounds of a federation that has {self._rounds}")
        self._rounds = rounds

    def _apply(self, entry: Entry) -> None:
        name, key, old = entry.name, entry.key, self._members.get(entry.name)
        if entry.action == "hand-over":
            if name or key in self._admissions:
                raise ProtocolError("membership", "an invalid hand-over: it has a name, or a former admission key")
            _check_strength(key)
            self._admissions.append(key)
            self._hand_overs.append(entry.membership_version)
            return
        if not NAME.fullmatch(name):
            raise ProtocolError("membership", f"name {name!r} must have at most 64 letters, digits, '.', '_' and '-'")
        if entry.action == "add" and old is not None:
            raise ProtocolError("membership", f"there is a member named {name} already")
        if entry.action != "add" and old is None:
            raise ProtocolError("membership", f"there is no member named {name}")
        if entry.action == "remove" and old is not None and old.key != key:
            raise ProtocolError("membership", f"{name} has another key")
        if entry.action != "remove":
            if key in self._seen:
                raise ProtocolError("membership", "this key is or was that of a member, and cannot be used again")
            _check_strength(key)
        if old is not None:
            self._ends[old.key] = Ending(entry, self._admissions[-1])
        new = None if entry.action == "remove" else Member(name, key, old.role if old else entry.role)
        self._replace(name, new)
        if new is None:
            self.committees.remove(entry.membership_version, name)
        else:
            self.committees.set_member(entry.membership_version, name, key, new.role)

    def _replace(self, name: str, new: Member | None) -> None:
        """Replace a member by another one of the same name."""
        self._sorted = None
        if new is None:
            del self._members[name]
            self._former.add(name)
            return
        self._members[name] = new
        self._seen[new.key] = name


def contradicts(first: Signed, one: AnyEntry, second: Signed, other: AnyEntry) -> bool:
    """Return whether the second of two signed entries, with their content, cannot be in a log that has the first."""
    known = msgspec.msgpack.encode(first)
    if other.membership_version == one.membership_version:
        return known != msgspec.msgpack.encode(second)
    return other.membership_version == one.membership_version + 1 and other.before != sha256(known).digest()


def count_entries(entries: bytes) -> int:
    """Return the number of entries in a log that has been accepted."""
    return len(_raw.decode(entries))


def _check_strength(key: bytes) -> None:
    if is_weak(key):
        raise ProtocolError("membership", f"{key.hex()} is a weak key, for which signatures can be forged")


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One change of the membership.

    Attributes:
        membership_version: 1 for the first entry, and one more for each following entry.
        before: SHA-256 of the previous signed entry; zeros for the first.
        action: `add` or `remove` a member; `replace` a member's key, which revokes the old one; or `hand-over` to
            another admission key.
        name: the member's name; "" for a hand-over.
        key: the member's key, its new key, or the new admission key.
    """

    federation: Bytes16
    membership_version: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    before: Bytes32
    action: Action
    name: Annotated[str, Meta(max_length=64)]
    key: Bytes32
    role: Role


class Extension(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Extension of the federation by more rounds; the first three fields are those of `Entry`.

    Attributes:
        rounds: the new number of rounds of the federation, in place of that in its file or in an earlier extension.
    """

    federation: Bytes16
    membership_version: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    before: Bytes32
    action: Literal["extend"]
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)]


class CommitteeEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Appointment of the committee; the first three fields are those of `Entry`.

    Attributes:
        keys: the members' keys, as many as a committee has now.
        lost: whether the earlier committees count no more.
    """

    federation: Bytes16
    membership_version: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    before: Bytes32
    action: Literal["committee"]
    keys: Annotated[list[Bytes32], Meta(min_length=1, max_length=committee.MOST)]
    lost: bool


AnyEntry = Entry | Extension | CommitteeEntry


class _Link(NamedTuple):
    """Entry that follows another one.

    Attributes:
        encoded: the signed entry in its shortest form.
        hash: SHA-256 of it, which the next entry contains.
    """

    signed: Signed
    entry: AnyEntry
    encoded: bytes
    hash: bytes


class Beginning(NamedTuple):
    """Verified checkpoint of a log, with some of the members (see p2pfl.protocols.membership.checkpoint).

    Attributes:
        membership_version: number of its newest entry.
        last: SHA-256 of that signed entry.
        rounds: number of rounds of the federation.
        size: number of members.
        admissions: the admission keys so far; the last one is in force.
        members: those of them that it proves.
        added: SHA-256 of the signed entry that added each of them, by name.
        encoded: the checkpoint as it was received.
    """

    membership_version: int
    last: bytes
    rounds: int
    size: int
    admissions: tuple[bytes, ...]
    members: tuple[Member, ...]
    added: Mapping[str, bytes]
    encoded: bytes


class _Ahead:
    """Knowledge of a newcomer before it has the log: a checkpoint, some members, and the entries after the checkpoint.

    Entries about members that it does not know cannot be checked against them. They count when the log has arrived.

    Attributes:
        begun: number of the newest entry of the checkpoint.
        checkpoint: SHA-256 of that signed entry.
        encoded: the checkpoint itself, as it was received.
        links: the entries after it; each one was verified by its own signature.
    """

    def __init__(self, beginning: Beginning) -> None:
        self.begun, self.checkpoint, self.encoded = beginning.membership_version, beginning.last, beginning.encoded
        self.rounds, self.size = beginning.rounds, beginning.size
        self.admissions = [*beginning.admissions]
        self.members = {member.name: member for member in beginning.members}
        self.added = dict(beginning.added)
        self.links: list[_Link] = []

    def __copy__(self) -> _Ahead:
        same = _Ahead.__new__(_Ahead)
        vars(same).update({name: copy(value) for name, value in vars(self).items()})
        return same

    @property
    def membership_version(self) -> int:
        return self.begun + len(self.links)

    @property
    def last(self) -> bytes:
        return self.links[-1].hash if self.links else self.checkpoint

    def take(
        self,
        log: Sequence[Signed],
        stored: int,
        federation: bytes,
        ends: dict[bytes, Ending],
        fork: Callable[[bytes, Signed, str], ProtocolError],
    ) -> list[Signed]:
        """Take the entries after the checkpoint; return those before it that belong to the log now.

        Args:
            stored: number of entries of the log. Others before the checkpoint than the next ones are ignored: nobody
                knows which of them this node has.
            ends: gets the ends of memberships.
            fork: keeps the proof of a fork, of a known encoded entry and another one; returns the error that names it.

        Raises:
            ProtocolError: see `Membership.extend`.
        """
        earlier: list[Signed] = []
        for signed in log:
            try:
                entry = decode_entry(signed.entry)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError("membership", str(error)) from error
            if entry.membership_version <= self.begun:
                if earlier or entry.membership_version <= stored + 1:
                    earlier.append(signed)
            else:
                self._follow(signed, entry, federation, ends, fork)
        return earlier

    def _follow(
        self,
        signed: Signed,
        entry: AnyEntry,
        federation: bytes,
        ends: dict[bytes, Ending],
        fork: Callable[[bytes, Signed, str], ProtocolError],
    ) -> None:
        encoded, number = msgspec.msgpack.encode(signed), entry.membership_version
        known = number <= self.membership_version
        if known and encoded == self.links[number - self.begun - 1].encoded:
            return
        if entry.federation != federation:
            raise ProtocolError("membership", "an entry of another federation")
        if number > self.membership_version + 1:
            raise ProtocolError("membership", f"entry {number} after {self.membership_version}")
        label = signature_label(entry) + signed.entry
        if not any(is_valid(key, signed.signature, label) for key in (self.admissions if known else self.admissions[-1:])):
            raise _not_signed()
        if known or entry.before != self.last:
            what = f"entry {number} belongs to another log than the entries known here"
            if self.links:
                raise fork((self.links[number - self.begun - 1] if known else self.links[-1]).encoded, signed, what)
            raise ProtocolError("membership fork", what)
        self.links.append(_Link(signed, entry, encoded, sha256(encoded).digest()))
        if isinstance(entry, Extension):
            self.rounds = entry.rounds
        elif isinstance(entry, Entry):
            self._apply(entry, ends)

    def _apply(self, entry: Entry, ends: dict[bytes, Ending]) -> None:
        name, old = entry.name, self.members.get(entry.name)
        if entry.action == "hand-over":
            self.admissions.append(entry.key)
            return
        self.size += {"add": 1, "remove": -1}.get(entry.action, 0)
        if entry.action == "add":
            self.members[name], self.added[name] = Member(name, entry.key, entry.role), self.last
            return
        if entry.action == "remove":
            ends[entry.key] = Ending(entry, self.admissions[-1])
            self.members.pop(name, None)
            self.added.pop(name, None)
        elif old is not None:  # otherwise it is a new key of a member that this node does not know yet
            ends[old.key] = Ending(entry, self.admissions[-1])
            self.members[name] = Member(name, entry.key, old.role)


_COPIED = (list, dict, set, SharedDict, _Ahead)  # what a copy of a log must not share with it


def _not_signed() -> ProtocolError:
    return ProtocolError("membership", "an entry without a signature of the admission key")


class Ending(NamedTuple):
    """End of a membership: the entry that removed or replaced the member's key, and the admission key that signed it."""

    entry: Entry
    admission: bytes


_entry = msgspec.msgpack.Decoder(Entry)
_extension = msgspec.msgpack.Decoder(Extension)
_committee = msgspec.msgpack.Decoder(CommitteeEntry)


def decode_entry(data: bytes) -> AnyEntry:
    """Read the content of a signed entry. The number of its fields tells its kind.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError, RecursionError: it is malformed.
    """
    match len(_raw.decode(data)):
        case n if n == _EXTENSION_FIELDS:
            return _extension.decode(data)
        case n if n == _COMMITTEE_FIELDS:
            return _committee.decode(data)
    return _entry.decode(data)


def signature_label(entry: AnyEntry) -> bytes:
    """Return the bytes that a signature of an entry covers before the entry."""
    if isinstance(entry, CommitteeEntry):
        return _COMMITTEE_LABEL
    return _EXTENSION_LABEL if isinstance(entry, Extension) else _LABEL


_decoder = msgspec.msgpack.Decoder(Annotated[list[Signed], Meta(min_length=1, max_length=_MOST_ENTRIES)])


def encode(hand_overs: Sequence[bytes], end: bytes) -> bytes:
    """Return the proof of an entry that ended a membership.

    Args:
        hand_overs: the encoded signed hand-overs before the entry. The oldest of them are left out if they do not fit.
        end: the encoded signed entry.
    """
    chosen, size = [end], _ARRAY + len(end)
    for signed in reversed(hand_overs):
        size += len(signed)
        if size > PROOF_LIMIT or len(chosen) == _MOST_ENTRIES - 1:
            break
        chosen.insert(0, signed)
    return msgspec.msgpack.encode([msgspec.Raw(signed) for signed in chosen])


def verify(proof: bytes, federation: bytes, membership_version: int, admission: bytes) -> Ending:
    """Return the entry of a proof, and the admission key that signed it.

    Args:
        membership_version: the newest entry of the log that is known here. The proof must be about a later one.
        admission: the admission key in force after that entry.

    Raises:
        ProtocolError("membership"): it proves nothing.
    """
    try:
        if len(proof) > PROOF_LIMIT:
            raise ProtocolError("membership", f"a proof of {len(proof)} bytes")
        read = [(signed, decode_entry(signed.entry)) for signed in _decoder.decode(proof)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("membership", str(error)) from error
    *hand_overs, (signed, end) = read
    for handed, entry in hand_overs:
        if not isinstance(entry, Entry) or entry.action != "hand-over":
            raise ProtocolError("membership", "a proof with an entry that is not a hand-over before its last one")
        if entry.membership_version > membership_version:  # an earlier one is known
            _check(handed, entry, federation, admission)
            membership_version, admission = entry.membership_version, entry.key
    if not isinstance(end, Entry) or end.action not in ("remove", "replace"):
        raise ProtocolError("membership", "a proof whose last entry ends no membership")
    if end.membership_version <= membership_version:
        raise ProtocolError("membership", f"a proof from membership version {end.membership_version}, which is known")
    _check(signed, end, federation, admission)
    return Ending(end, admission)


def _check(signed: Signed, entry: Entry, federation: bytes, admission: bytes) -> None:
    if entry.federation != federation:
        raise ProtocolError("membership", "an entry of another federation")
    if not is_valid(admission, signed.signature, signature_label(entry) + signed.entry):
        raise ProtocolError("membership", "an entry without a signature of the admission key")
