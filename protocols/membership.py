"""Who is a member: a log of entries, each signed by the admission key and naming the one before it.

The log only grows. Every node keeps all of it, hands on what others lack, and believes nothing else: its newest entry's
number, the epoch, never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocols.errors import FederationError, ProtocolError
from protocols.federation import NAME, Federation
from protocols.identity import Identity, Verifier

Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Role = Literal["participant", "observer", "coordinator-eligible"]
Action = Literal["add", "remove", "replace", "hand-over"]

LIMIT = 4 << 20  # bytes of a whole log
_LABEL = b"p2pfl membership 1\0"
_NONE = bytes(32)


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """
    Attributes:
        epoch: 1 for the first entry, one more for each that follows.
        before: SHA-256 of the signed entry before this one; zeros for the first.
        action: `add` a member; `remove` one; give one another key (`replace`; the old one is revoked); or `hand-over` to
            another admission key.
        name: the member's; "" of a hand-over.
        key: the member's, or the new one, or the admission key's successor.
    """

    federation: Bytes16
    epoch: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    before: Bytes32
    action: Action
    name: Annotated[str, Meta(max_length=64)]
    key: Bytes32
    role: Role


class Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    entry: Annotated[bytes, Meta(max_length=512)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class Member(msgspec.Struct, frozen=True):
    """One who may exchange models with others."""

    name: str
    key: bytes
    role: Role


_entry = msgspec.msgpack.Decoder(Entry)
_log = msgspec.msgpack.Decoder(Annotated[list[Signed], Meta(max_length=2**16)])
_OVERHEAD = 5  # bytes around the entries of an encoded log, at most


class Membership:
    """The log as one node knows it. A gate of transports (see protocols.transport.Gate).

    Args:
        entries: of the log, encoded.

    Attributes:
        file: the federation's.
        federation: 16 bytes.
        invites: whether this node lets in those who bring a token.
        admissions: the admission keys so far; the last one is in force.
        members: by name.
        on_change: called when the log has grown.

    Raises:
        ProtocolError: the entries are not the federation's log.
    """

    def __init__(self, file: Federation, entries: bytes = b"") -> None:
        self.file = file
        self.federation = file.id
        self.invites = False
        self.admissions = [file.admission]
        self.members: Mapping[str, Member] = {}
        self.on_change: list[Callable[[], None]] = []
        self._names: dict[bytes, str] = {}
        self._seen: set[bytes] = set()  # every key that ever was a member's
        self._log: list[bytes] = []  # signed entries, encoded
        self._size = _OVERHEAD
        if entries:
            self.extend(entries)

    @property
    def epoch(self) -> int:
        return len(self._log)

    @property
    def admission(self) -> bytes:
        return self.admissions[-1]

    def refusal(self, key: bytes) -> str:
        if key in self._names:
            return ""
        return "revoked" if key in self._seen else "stranger"

    def after(self, epoch: int, limit: int) -> bytes:
        chosen, size = [], _OVERHEAD
        for signed in self._log[epoch:]:
            size += len(signed)
            if size > limit:
                break
            chosen.append(msgspec.Raw(signed))
        return msgspec.msgpack.encode(chosen)

    def encode(self) -> bytes:
        """Return the whole log."""
        return self.after(0, LIMIT)

    def extend(self, entries: bytes) -> int:
        """Take in entries that follow what is known here, and pass over those that are known already.

        Raises:
            ProtocolError: `membership` if they are malformed, leave a gap, are not signed by the admission key, or make no
                sense; `membership fork` if one differs from the one that is known here with the same number. What stands
                before such an entry is taken in.
        """
        if len(entries) > LIMIT:
            raise ProtocolError("membership", f"a log of {len(entries)} bytes")
        try:
            log = _log.decode(entries)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("membership", str(error)) from error
        before = self.epoch
        try:
            for signed in log:
                self._take(signed)
        finally:
            if self.epoch > before:
                for changed in list(self.on_change):
                    changed()
        return self.epoch - before

    def append(self, identity: Identity, action: Action, name: str, key: bytes, role: Role = "participant") -> None:
        """Sign a new entry and take it in. (`role` counts when a member is added.)

        Raises:
            FederationError: `identity` is not the admission key, or the entry makes no sense.
        """
        if identity.public != self.admission:
            raise FederationError("this is not the admission key that is in force")
        entry = msgspec.msgpack.encode(Entry(self.federation, self.epoch + 1, self._last(), action, name, key, role))
        signed = Signed(entry, identity.sign(_LABEL + entry))
        try:
            self.extend(msgspec.msgpack.encode([signed]))
        except ProtocolError as error:
            raise FederationError(str(error).partition(": ")[2]) from error

    def _take(self, signed: Signed) -> None:
        try:
            entry = _entry.decode(signed.entry)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("membership", str(error)) from error
        encoded = msgspec.msgpack.encode(signed)
        if entry.federation != self.federation:
            raise ProtocolError("membership", "an entry of another federation")
        if entry.epoch <= self.epoch:
            if self._log[entry.epoch - 1] != encoded:
                _check_signature(signed, self.admissions)  # a forger's is no fork
                raise ProtocolError("membership fork", f"two entries of epoch {entry.epoch}; the first stands")
            return
        if entry.epoch != self.epoch + 1:
            raise ProtocolError("membership", f"entry {entry.epoch} after {self.epoch}")
        if entry.before != self._last():
            raise ProtocolError("membership", f"entry {entry.epoch} names another one before it")
        _check_signature(signed, self.admissions[-1:])
        if self._size + len(encoded) > LIMIT:
            raise ProtocolError("membership", "the log is full; make a new federation")
        self._apply(entry)
        self._log.append(encoded)
        self._size += len(encoded)

    def _last(self) -> bytes:
        return sha256(self._log[-1]).digest() if self._log else _NONE

    def _apply(self, entry: Entry) -> None:
        name, key = entry.name, entry.key
        if entry.action == "hand-over":
            if name or key in self.admissions:
                raise ProtocolError("membership", "a hand-over to a key that was the admission key before, or with a name")
            self.admissions.append(key)
            return
        if not NAME.fullmatch(name):
            raise ProtocolError("membership", f"{name!r} is no name")
        if entry.action == "add" and name in self.members:
            raise ProtocolError("membership", f"there is a member named {name} already")
        if entry.action != "add" and name not in self.members:
            raise ProtocolError("membership", f"there is no member named {name}")
        members = dict(self.members)
        if entry.action != "add":
            old = members.pop(name)
            if entry.action == "remove" and old.key != key:
                raise ProtocolError("membership", f"{name} has another key")
        if entry.action != "remove":
            if key in self._seen:
                raise ProtocolError("membership", "a key that was a member's is nobody else's, nor its own again")
            role = entry.role if entry.action == "add" else self.members[name].role
            members[name] = Member(name, key, role)
            self._seen.add(key)
        self.members = dict(sorted(members.items()))
        self._names = {member.key: member.name for member in members.values()}


def _check_signature(signed: Signed, admissions: Sequence[bytes]) -> None:
    if not any(Verifier(key).valid(signed.signature, _LABEL + signed.entry) for key in admissions):
        raise ProtocolError("membership", "an entry that the admission key has not signed")
