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
from node.agreement import applied, read
from node.config import NodeConfig
from node.crashpoints import reached
from node.files import PRIVATE, Damaged, read_sealed, reason, replace_file, sync_folder, write_sealed
from p2pfl.errors import ConfigurationError
from protocols.errors import FederationError, IdentityError, ProtocolError
from protocols.federation import NAME, Federation
from protocols.identity import Identity
from protocols.invitation import (
    LONGEST_ADDRESS,
    MOST_ADDRESSES,
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
LONGEST = 366 * 24 * 60  # minutes for which a token may be good


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
        self._seen = _NO_FILE

    def save(self, membership: Membership) -> None:
        """Write the log, with what another process has added meanwhile; when this returns it is on the disk.

        `membership` itself stays as it is: where the disk has more, `changed` says so, and `merge` takes it in.

        Raises:
            OSError: it cannot be written.
            ConfigurationError: what is there is damaged, or differs.
        """
        with _alone(self._path):
            whole = Membership(membership.file)
            self.merge(whole)
            self._extend(whole, membership.encode())
            write_sealed(self._path, _MAGIC, whole.encode())
            if whole.epoch == membership.epoch:
                self._seen = self._stamp()

    def merge(self, membership: Membership) -> None:
        """Take in what is on the disk.

        Raises:
            ConfigurationError: it cannot be read, is damaged, is the log of another federation, or differs.
        """
        try:
            content = read_sealed(self._path, _MAGIC)
        except FileNotFoundError:
            return
        except Damaged as error:
            raise ConfigurationError(str(error)) from error
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path}: {reason(error)}") from error
        self._extend(membership, content)

    def changed(self) -> bool:
        """Return whether the file may hold what this object has neither read nor written."""
        now = self._stamp()
        changed, self._seen = now != self._seen, now
        return changed

    def _extend(self, membership: Membership, entries: bytes) -> None:
        try:
            membership.extend(entries)
        except ProtocolError as error:
            raise ConfigurationError(f"{self._path}: {error}") from error

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return _NO_FILE
        return found.st_ino, found.st_mtime_ns, found.st_size


_NO_FILE = 0, 0, 0


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


def _admission_key(folder: Path, membership: Membership) -> Identity:
    """Return the admission key. Called alone, since it ends a hand-over that was interrupted after it was signed.

    Raises:
        ConfigurationError: there is none here, or it is not the one in force.
    """
    path, successor = folder / ADMISSION, folder / f"{ADMISSION}.new"
    if not may_admit(folder):
        raise ConfigurationError(f"{folder} has no {ADMISSION}: only the node with the admission key can do this")
    with _as_configuration():
        identity = Identity.load(path)
        if identity.public == membership.admission:
            return identity
        if successor.exists() and (new := Identity.load(successor)).public == membership.admission:
            replace_file(folder / f"{ADMISSION}.old", [path.read_bytes()], mode=PRIVATE)
            successor.replace(path)
            sync_folder(folder)
            return new
    raise ConfigurationError(f"{path} is not the admission key any more; it was handed over")


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


@contextmanager
def _adding(folder: Path, known: bytes = b"") -> Iterator[Membership]:
    """Yield the log to be added to, while no other process adds to it; afterwards it is on the disk, before anyone is told.

    Args:
        known: entries that may not be on the disk.
    """
    with _as_configuration(), _alone(folder / MEMBERSHIP):
        membership = _member_of(folder)
        before = membership.epoch
        if known:
            MembershipFile(folder)._extend(membership, known)
        yield membership
        if membership.epoch > before:
            write_sealed(folder / MEMBERSHIP, _MAGIC, membership.encode())


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
        try:
            federation = Federation.sign(tables, admission)
            membership = Membership(federation)
            membership.append(admission, "add", name, own.public)
            _back_up(folder / ADMISSION, backup)
        except BaseException:
            (folder / ADMISSION).unlink()  # nobody depends on it yet
            raise
        write_sealed(folder / MEMBERSHIP, _MAGIC, membership.encode())
        replace_file(folder / FEDERATION, [federation.data])
    return federation


def _back_up(key: Path, backup: Path) -> None:
    """Copy a key file to a new file."""
    try:
        handle = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    except FileExistsError as error:
        raise ConfigurationError(f"{backup} exists; a copy of the admission key never overwrites a file") from error
    except OSError as error:
        raise ConfigurationError(f"cannot keep a copy of the admission key in {backup}: {reason(error)}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(backup.parent)
    except OSError as error:
        backup.unlink(missing_ok=True)
        raise ConfigurationError(f"cannot keep a copy of the admission key in {backup}: {reason(error)}") from error


def rotate(folder: Path, backup: Path) -> None:
    """Hand over to a new admission key. The old one is kept beside it, and decides nothing any more.

    Raises:
        ConfigurationError: there is no admission key here, or a file cannot be written.
    """
    new_path = folder / f"{ADMISSION}.new"
    with _adding(folder) as log:
        old = _admission_key(folder, log)
        new_path.unlink(missing_ok=True)  # of a hand-over that was interrupted before it was signed
        new = Identity.create(new_path)
        try:
            _back_up(new_path, backup)
        except ConfigurationError:
            new_path.unlink()
            raise
        log.append(old, "hand-over", "", new.public)
    with _adding(folder) as log:
        _admission_key(folder, log)  # puts the new one in the place of the old one


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
        ConfigurationError: there is no admission key here, an argument is out of range, or the note cannot be written.
    """
    if not 0 < minutes <= LONGEST:
        raise ConfigurationError(f"a token is good for up to {LONGEST} minutes, not {minutes:g}")
    if len(addresses) > MOST_ADDRESSES or any(len(address) > LONGEST_ADDRESS for address in addresses):
        raise ConfigurationError(f"a token names {MOST_ADDRESSES} addresses of {LONGEST_ADDRESS} characters at most")
    expires = now + 60 * minutes
    with _adding(folder) as membership:
        _admission_key(folder, membership)  # which this node must have when the token is used
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
        membership: the node's; an entry is on the disk before it is in here, and its callbacks tell of it.
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
        if self._now() < self._locked_until:
            raise ProtocolError("invitation locked", "too many wrong tokens; try later")
        if not NAME.fullmatch(join.name):
            raise ProtocolError("malformed", "a name has letters, digits, '.', '_' and '-', 64 at most")
        with _adding(self._folder, self._membership.encode()) as log:
            self._use(log, key, join)
        self._membership.extend(log.encode())

    def _use(self, log: Membership, key: bytes, join: Join) -> None:
        note, given = self._find(join.secret)
        if given.used_by == key and not log.refusal(key):
            return  # it has lost our answer
        if given.used_by not in (b"", key):
            raise ProtocolError("invitation used", "a token is good for one node")
        if self._now() > given.expires:
            raise ProtocolError("invitation expired", "ask for another one")
        if join.name in log.members:
            raise ProtocolError("name taken", f"there is a member named {join.name} already; take another name")
        if log.refusal(key) != "stranger":
            raise ProtocolError("known key", "this key is or was a member's; make another one")
        admission = _admission_key(self._folder, log)
        # Used first: a crash in between lets nobody in but the node with this key, when it asks again.
        _write_note(note, msgspec.structs.replace(given, used_by=key))
        reached("invitation-used")
        log.append(admission, "add", join.name, key, given.role)

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
    try:
        membership = Membership(federation, log)
    except ProtocolError as error:
        raise FederationError(str(error)) from error
    if admission is not None and admission not in membership.admissions:
        raise FederationError("the federation's admission key is another one than the token names")
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
        new_key: make a new key, and ask that it takes the place of the present one, which is kept beside it. The node
            belongs to no federation until it has joined again.

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
        replace_file(aside, [(folder / config.KEY).read_bytes()], mode=PRIVATE)
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
    with _as_configuration():
        asked = Request.parse(line)
        with _adding(folder) as log:
            admission = _admission_key(folder, log)
            known = log.members.get(asked.name)
            if known is None or known.key not in (asked.key, asked.replaces):
                log.append(admission, "add", asked.name, asked.key, role)
            elif known.key == asked.replaces:
                log.append(admission, "replace", asked.name, asked.key)
        replace_file(out, [encode_admission(Joined(log.file.data, log.encode())).encode()])
    return asked.name


def revoke(folder: Path, name: str) -> None:
    """End a membership.

    Raises:
        ConfigurationError: there is no admission key here, or no such member.
    """
    with _adding(folder) as log:
        admission = _admission_key(folder, log)
        if name not in log.members:
            raise FederationError(f"there is no member named {name}; there are {', '.join(log.members)}")
        log.append(admission, "remove", name, log.members[name].key)
