"""Who is let into a federation, and what of that is kept in a node's folder.

federation.toml     what the members have agreed on, signed
membership          the log of who is one, signed entry by entry
admission.pem       the admission key, where the federation was made, mode 0600; it decides who is a member
invitations/        tokens that were given out, by the hash of their secret
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from node import config
from node.config import NodeConfig
from node.crashpoints import reached
from node.files import Damaged, read_sealed, reason, replace_file, sync_folder, write_sealed
from p2pfl.errors import ConfigurationError
from protocols.errors import FederationError, IdentityError, ProtocolError
from protocols.federation import Federation
from protocols.identity import Identity
from protocols.invitation import (
    Invitation,
    Join,
    Joined,
    JoinRefused,
    Request,
    decode_admission,
    decode_join,
    encode_admission,
    encode_join,
    new_secret,
)
from protocols.membership import Membership, Role

FEDERATION, MEMBERSHIP, ADMISSION, INVITATIONS = "federation.toml", "membership", "admission.pem", "invitations"
_MAGIC, _INVITATION_MAGIC = b"p2pfl membership 1\n", b"p2pfl invitation 1\n"
GUESSES, LOCKED = 10, 600.0  # wrong tokens in a row after which none is taken, and for how many seconds


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An invitation as its giver keeps it.

    Attributes:
        expires: seconds since 1970.
        used_by: the key of the node that has used it.
    """

    role: Role
    expires: float
    used_by: bytes = b""


# The files


class MembershipFile:
    """The membership log on the disk, which commands and a running node both write; neither loses what the other wrote."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MEMBERSHIP
        self._seen = self._stamp()

    def save(self, membership: Membership) -> None:
        """Write the log, with what another process has added meanwhile; when this returns it is on the disk.

        Raises:
            OSError: it cannot be written.
            ConfigurationError: what is there is damaged.
        """
        with _alone(self._path):
            self.merge(membership)
            write_sealed(self._path, _MAGIC, membership.encode())
            self._seen = self._stamp()

    def merge(self, membership: Membership) -> None:
        """Take in what is on the disk.

        Raises:
            ConfigurationError: it is damaged, or the log of another federation.
        """
        try:
            content = read_sealed(self._path, _MAGIC)
        except FileNotFoundError:
            return
        except Damaged as error:
            raise ConfigurationError(str(error)) from error
        try:
            membership.extend(content)
        except ProtocolError as error:
            raise ConfigurationError(f"{self._path}: {error}") from error

    def changed(self) -> bool:
        """Return whether the file is another one than was last read or written here."""
        now = self._stamp()
        changed, self._seen = now != self._seen, now
        return changed

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0, 0
        return found.st_ino, found.st_mtime_ns, found.st_size


def load_federation(folder: Path) -> Membership | None:
    """Return the membership of a node's federation, or None if it belongs to none.

    Raises:
        ConfigurationError: a file is damaged, missing, or of another federation.
    """
    try:
        data = (folder / FEDERATION).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {folder / FEDERATION}: {reason(error)}") from error
    try:
        membership = Membership(Federation.parse(data))
    except FederationError as error:
        raise ConfigurationError(f"{folder / FEDERATION}: {error}") from error
    if not (folder / MEMBERSHIP).exists():
        raise ConfigurationError(f"{folder / MEMBERSHIP} is missing; bring it back, or join again in a new folder")
    MembershipFile(folder).merge(membership)
    return membership


def may_admit(folder: Path) -> bool:
    """Return whether the admission key is in a node's folder."""
    return (folder / ADMISSION).exists()


def _member_of(folder: Path) -> Membership:
    membership = load_federation(folder)
    if membership is None:
        raise ConfigurationError(f"{folder} belongs to no federation; p2pfl-node federation create makes one")
    return membership


def _admission_key(folder: Path) -> Identity:
    if not may_admit(folder):
        raise ConfigurationError(f"{folder} has no {ADMISSION}: only the node with the admission key can do this")
    with _as_configuration():
        return Identity.load(folder / ADMISSION)


@contextmanager
def _as_configuration() -> Iterator[None]:
    """Let faults of keys, tokens and disks be the user's to mend."""
    try:
        yield
    except (FederationError, IdentityError) as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename or 'a file'}: {reason(error)}") from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from writing a file meanwhile."""
    with path.with_name(path.name + ".lock").open("ab") as file:
        if os.name == "posix":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _append(folder: Path, change: Callable[[Membership], None], membership: Membership | None = None) -> Membership:
    """Add to the log what `change` appends, and write it down before anyone is told.

    Args:
        membership: the running node's, whose own callback writes it.
    """
    if membership is not None:
        MembershipFile(folder).merge(membership)
        change(membership)
        return membership
    membership = _member_of(folder)
    with _as_configuration():
        change(membership)
        MembershipFile(folder).save(membership)
    return membership


# Making a federation


def create_federation(folder: Path, tables: Mapping[str, Any], backup: Path) -> Federation:
    """Make a federation of which a node is the first member, with an admission key and a copy of it.

    Raises:
        ConfigurationError: the node belongs to a federation already, the copy would overwrite a file, or a file cannot be
            written.
    """
    name = config.load(folder).name
    if (folder / FEDERATION).exists():
        raise ConfigurationError(f"{folder} belongs to a federation already; a node belongs to one")
    with _as_configuration():
        own = Identity.load(folder / config.KEY)
        admission = Identity.create(folder / ADMISSION)
        _back_up(folder / ADMISSION, backup)
        federation = Federation.sign(tables, admission)
        membership = Membership(federation)
        membership.append(admission, "add", name, own.public)
        MembershipFile(folder).save(membership)
        replace_file(folder / FEDERATION, [federation.data])
    return federation


def _back_up(key: Path, backup: Path) -> None:
    """Copy a key file. Without a copy there is no key."""
    try:
        handle = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        key.unlink()
        said = "exists; a key is never overwritten" if isinstance(error, FileExistsError) else reason(error)
        raise ConfigurationError(f"cannot keep a copy of the admission key: {backup} {said}") from error
    with os.fdopen(handle, "wb") as file:
        file.write(key.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(backup.parent)


def rotate(folder: Path, backup: Path) -> None:
    """Hand over to a new admission key. The old one is kept beside it, and decides nothing any more.

    Raises:
        ConfigurationError: there is no admission key here, or a file cannot be written.
    """
    old = _admission_key(folder)
    new_path, old_path = folder / f"{ADMISSION}.new", folder / f"{ADMISSION}.old"
    with _as_configuration():
        new_path.unlink(missing_ok=True)  # of a hand-over that was interrupted before it was signed
        new = Identity.create(new_path)
        _back_up(new_path, backup)
        _append(folder, lambda log: log.append(old, "hand-over", "", new.public))
        (folder / ADMISSION).replace(old_path)
        new_path.replace(folder / ADMISSION)
        sync_folder(folder)


def describe(folder: Path) -> dict[str, Any]:
    """Return what a node's federation has agreed on, and its members."""
    membership = _member_of(folder)
    members = [{"name": member.name, "role": member.role, "key": member.key.hex()} for member in membership.members.values()]
    return {
        "federation": membership.file.name,
        "id": membership.federation.hex(),
        "admission key": membership.admission.hex(),
        "epoch": membership.epoch,
        "members": members,
        "agreed": {key: value for key, value in membership.file.tables.items() if key != "name"},
    }


# By invitation


def invite(folder: Path, addresses: Sequence[str], role: Role, minutes: float, now: float) -> Invitation:
    """Make a token and note it, by the hash of its secret.

    Args:
        addresses: where this node is.
        minutes: for which the token is good.
        now: seconds since 1970.

    Raises:
        ConfigurationError: there is no admission key here, or the note cannot be written.
    """
    admission, membership = _admission_key(folder), _member_of(folder)
    if admission.public != membership.admission:
        raise ConfigurationError(f"{folder / ADMISSION} is not the admission key any more; it was handed over")
    expires = now + 60 * minutes
    with _as_configuration():
        inviter = Identity.load(folder / config.KEY).public
        secret = new_secret()
        (folder / INVITATIONS).mkdir(mode=0o700, exist_ok=True)
        _write_note(_note(folder, secret), _Given(role, expires))
    return Invitation(
        membership.federation,
        membership.file.name,
        membership.admission,
        inviter,
        tuple(addresses),
        secret,
        int(expires),
    )


def _note(folder: Path, secret: bytes) -> Path:
    return folder / INVITATIONS / sha256(b"p2pfl invitation 1\0" + secret).hexdigest()


def _write_note(path: Path, given: _Given) -> None:
    write_sealed(path, _INVITATION_MAGIC, msgspec.msgpack.encode(given))


class Desk:
    """Where a running node answers those who bring a token.

    Args:
        membership: the node's; its callbacks make an entry durable and tell of it.
        now: returns seconds since 1970: tokens expire by this node's clock alone.
    """

    def __init__(self, folder: Path, membership: Membership, now: Callable[[], float]) -> None:
        self._folder = folder
        self._membership = membership
        self._now = now
        self._guesses = 0
        self._locked_until = 0.0
        self.refused: Callable[[str, str], None] = lambda cause, detail: None

    def answer(self, key: bytes, frame: bytes) -> bytes:
        """Return the answer to one who has proven `key` and asks to join. A refusal is counted by its cause."""
        try:
            join = decode_join(frame)
            self._admit(key, join)
        except ProtocolError as error:
            self.refused(error.cause, str(error))
            return encode_join(JoinRefused(str(error)[:256]))
        except (FederationError, ConfigurationError, OSError) as error:
            self.refused("join failed", str(error))
            return encode_join(JoinRefused("the node that has invited cannot do it now; its owner can see why"))
        return encode_join(Joined(self._membership.file.data, self._membership.encode()))

    def _admit(self, key: bytes, join: Join) -> None:
        now = self._now()
        if now < self._locked_until:
            raise ProtocolError("invitation locked", "too many wrong tokens; try later")
        note, given = self._find(join.secret)
        if given.used_by == key and not self._membership.refusal(key):
            return  # it has lost our answer
        if given.used_by:
            raise ProtocolError("invitation used", "a token is good for one node")
        if now > given.expires:
            raise ProtocolError("invitation expired", "ask for another one")
        if join.name in self._membership.members:
            raise ProtocolError("name taken", f"there is a member named {join.name} already; take another name")
        if self._membership.refusal(key) != "stranger":
            raise ProtocolError("known key", "this key is or was a member's; make another one")
        admission = _admission_key(self._folder)
        # Used first: a crash in between costs a token, and never lets two in with one.
        _write_note(note, msgspec.structs.replace(given, used_by=key))
        reached("invitation-used")
        _append(self._folder, lambda log: log.append(admission, "add", join.name, key, given.role), self._membership)

    def _find(self, secret: bytes) -> tuple[Path, _Given]:
        note = _note(self._folder, secret)
        try:
            given = msgspec.msgpack.decode(read_sealed(note, _INVITATION_MAGIC), type=_Given)
        except (FileNotFoundError, Damaged, msgspec.MsgspecError) as error:
            self._guesses += 1
            if self._guesses >= GUESSES:
                self._guesses, self._locked_until = 0, self._now() + LOCKED
            raise ProtocolError("invitation unknown", "this node has given no such token") from error
        self._guesses = 0
        return note, given


def accept(folder: Path, joined: Joined, invitation: Invitation, own: NodeConfig, key: bytes) -> str:
    """Keep what the node that has invited has answered; return the federation's name.

    Raises:
        ConfigurationError: it is not the federation of the token, or has another task or policy than this node's
            configuration.
    """
    with _as_configuration():
        federation = Federation.parse(joined.file)
        if federation.id != invitation.federation:
            raise FederationError("the answer is of another federation than the token")
        return _keep(folder, federation, joined.log, own, key, invitation.admission)


def accept_bundle(folder: Path, text: str, own: NodeConfig, key: bytes) -> str:
    """Keep what `admit` has written; return the federation's name.

    Raises:
        ConfigurationError: as `accept`.
    """
    with _as_configuration():
        joined = decode_admission(text)
        return _keep(folder, Federation.parse(joined.file), joined.log, own, key, None)


def _keep(folder: Path, federation: Federation, log: bytes, own: NodeConfig, key: bytes, admission: bytes | None) -> str:
    from node.agreement import applied, read

    try:
        membership = Membership(federation, log)
    except ProtocolError as error:
        raise FederationError(str(error)) from error
    if admission is not None and admission != membership.admission and admission != federation.admission:
        raise FederationError("the answer is signed with another admission key than the token names")
    member = membership.members.get(own.name)
    if member is None or member.key != key:
        raise FederationError(f"this node, {own.name}, is not among the members with its key")
    applied(own, read(federation))  # compares names; imports nothing
    MembershipFile(folder).save(membership)
    replace_file(folder / FEDERATION, [federation.data])
    return federation.name


# By hand


def request(folder: Path, new_key: bool = False) -> str:
    """Return a line with which this node can be admitted by hand.

    Args:
        new_key: make a new key, and ask that it takes the place of the present one. The node uses it when it has joined
            again; the old one is kept beside it.

    Raises:
        ConfigurationError: there is no key, or a new one cannot be made.
    """
    own = config.load(folder)
    with _as_configuration():
        identity = Identity.load(folder / config.KEY)
        if not new_key:
            return Request.make(identity, own.name)
        if config.locked(folder):
            raise ConfigurationError(f"{folder} is in use: stop the node before it gets another key")
        aside = folder / f"{config.KEY}.old"
        if aside.exists():
            raise ConfigurationError(f"{aside} exists; move it away first")
        fresh = folder / f"{config.KEY}.new"
        fresh.unlink(missing_ok=True)
        new = Identity.create(fresh)
        line = Request.make(new, own.name, identity)
        (folder / config.KEY).replace(aside)
        fresh.replace(folder / config.KEY)
        for name in (FEDERATION, MEMBERSHIP):  # it joins anew
            if (folder / name).exists():
                (folder / name).replace(folder / f"{name}.old")
        sync_folder(folder)
        return line


def admit(folder: Path, line: str, role: Role, out: Path) -> str:
    """Make the node that has printed a request a member; write what it joins with, and return its name.

    Raises:
        ConfigurationError: there is no admission key here, the request is no good, or its name is taken.
    """
    admission = _admission_key(folder)
    with _as_configuration():
        asked = Request.parse(line)

        def change(log: Membership) -> None:
            known = log.members.get(asked.name)
            if known is not None and known.key == asked.key:
                return  # the same request again
            if asked.replaces is None:
                log.append(admission, "add", asked.name, asked.key, role)
            elif known is None or known.key != asked.replaces:
                raise FederationError(f"{asked.name} is not a member with the key that it wants to replace")
            else:
                log.append(admission, "replace", asked.name, asked.key)

        membership = _append(folder, change)
        replace_file(out, [encode_admission(Joined(membership.file.data, membership.encode())).encode()])
    return asked.name


def revoke(folder: Path, name: str) -> None:
    """End a membership.

    Raises:
        ConfigurationError: there is no admission key here, or no such member.
    """
    admission = _admission_key(folder)

    def change(log: Membership) -> None:
        if name not in log.members:
            raise FederationError(f"there is no member named {name}; there are {', '.join(log.members)}")
        log.append(admission, "remove", name, log.members[name].key)

    with _as_configuration():
        _append(folder, change)
