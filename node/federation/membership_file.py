"""A node's federation on disk: its signed file, the membership log, and, on the node that decides on members, its key.

federation.toml     rules on which the members have agreed, signed
membership          log of the members, signed entry by entry; commands and a running node both write it
membership.copy     the same log again, so that a damaged or older one is noticed and mended
membership.begin    checkpoint of the log with which this node has begun, and the entries after it that it has received,
                    until it has received the log up to it
fork                proof that the admission key has signed two logs, usually there is none
revocation          proof that this node was revoked by an entry that the log does not have; usually there is none
admission.pem       the admission key in force, mode 0600; it may be encrypted with a passphrase. Its owner decides which
                    nodes are members
admission.pem.old   the previous key, which is no longer in force

The last functions say why a node is not, or no longer, a member: by its copy of the log, or by a peer's proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from p2pfl._util.atomic_files import DamagedFileError, explain, read_sealed, reason, replace_file, write_sealed
from p2pfl._util.disk import LOCK_PATIENCE, NO_FILE, PRIVATE, SYSTEM, Disk, Stamp
from p2pfl._util.event_log import EventLogger
from p2pfl._util.failpoints import failpoint
from p2pfl._util.printable import key_name
from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.config import CHECKPOINT, CONFIG, KEY, check_folder_of_node
from p2pfl.protocols import key_files
from p2pfl.protocols.errors import FederationError, IdentityError, PassphraseError, ProtocolError
from p2pfl.protocols.identity import KEY_SIZE, Identity
from p2pfl.protocols.membership import checkpoint, fork
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership, count_entries

FEDERATION, MEMBERSHIP, REVOCATION, FORK = "federation.toml", "membership", "revocation", "fork"
COPY = "membership.copy"
BEGINNING = "membership.begin"
REJOIN = "remove it and federation.toml, and join again with the same token or a new one"
RESTORE = "copy it from the folder of another member, where it is the same, or restore it from a backup"
OLD = ".old"  # suffix of the files of a federation that this node has left to return with a new key
_MAGIC = b"p2pfl membership 1\n"
_REVOCATION_MAGIC = b"p2pfl revocation 1\n"
_BEGINNING_MAGIC = b"p2pfl membership beginning 1\n"
_beginning = msgspec.msgpack.Decoder(tuple[bytes, bytes])  # the checkpoint, and the entries after it
_FORK_MAGIC = b"p2pfl membership fork 1\n"
ADMISSION = "admission.pem"
ADMISSION_REMEDY = "restore it from the backup that `federation create` or `federation rotate` has written"


class MembershipFile:
    """Membership log on disk, in two files with the same content. Concurrent writes by several processes lose nothing.

    The log only grows, so that the longer of the two files is the newer one. If one is damaged, missing or older, the
    other counts, and the next write mends both. An older log would trust former members, and the owner of the admission
    key would sign other entries with the same numbers.

    Args:
        patience: seconds to wait for another process that writes.
        disk: the disk of the files.
        log: receives an event if the copy counts.

    Attributes:
        membership_version: the number of entries in the file when it was last read or written.

    The entries after a checkpoint have a file of their own until the log has reached the checkpoint. A revocation among them
    must not be forgotten, either.
    """

    def __init__(
        self, folder: Path, patience: float = LOCK_PATIENCE, *, disk: Disk = SYSTEM, log: EventLogger | None = None
    ) -> None:
        self.membership_version = 0
        self._path = folder / MEMBERSHIP
        self._copy = folder / COPY
        self._copied = 0  # entries in the copy
        self._ahead = 0  # newest entry after the checkpoint that was written
        self._patience = patience
        self._disk = disk
        self._log = log
        self._seen = NO_FILE
        self._reported: Stamp | None = None  # the damaged file that was last reported

    @property
    def is_behind(self) -> bool:
        """Whether a file was damaged, missing or older when it was last read, and has not been written since."""
        return self._copied != self.membership_version

    def lacks(self, membership: Membership) -> bool:
        """Return whether the files lack entries of the log, or were damaged, missing or older when they were last read."""
        ahead = 0 if membership.is_complete else membership.membership_version
        return self.membership_version != membership.stored or self.is_behind or self._ahead < ahead

    def save(self, membership: Membership) -> None:
        """Write the log, which is on disk when this returns. `membership` gets entries of other processes as well.

        Raises:
            OSError: the file cannot be written, or another process holds the lock.
            ConfigurationError: the file and its copy are damaged, or differ.
        """
        with self.adding(membership):
            pass

    @contextmanager
    def adding(self, membership: Membership) -> Iterator[None]:
        """Permit additions to `membership` while no other process adds to the log. It begins with the entries on disk.

        When the block ends, the new entries are on disk. An error in the block leaves the files unchanged.

        Raises:
            OSError: the file cannot be written, or another process holds the lock.
            ConfigurationError: the file and its copy are damaged, or differ.
        """
        with self._disk.exclusive(self._path.with_name(self._path.name + ".lock"), self._patience):
            self.merge(membership)
            yield
            newest = membership.stored
            if not membership.is_complete and membership.membership_version > self._ahead:
                content = msgspec.msgpack.encode(membership.encode_beginning())
                write_sealed(self._path.with_name(BEGINNING), _BEGINNING_MAGIC, content, disk=self._disk)
                self._ahead = membership.membership_version
            if newest > self.membership_version:
                write_sealed(self._path, _MAGIC, membership.encode(), disk=self._disk)
                self.membership_version, self._seen = newest, self._disk.stamp(self._path)
                failpoint("membership-saved")
            if newest > self._copied:
                write_sealed(self._copy, _MAGIC, membership.encode(), disk=self._disk)
                self._copied = newest
            if membership.is_complete:
                self._disk.remove(self._path.with_name(BEGINNING))

    def merge(self, membership: Membership) -> None:
        """Add the entries on disk, if there may be new ones. Only new entries are verified.

        Raises:
            ConfigurationError: the file cannot be read, is damaged, is the log of another federation, or differs. Only
                if the copy does not count either.
        """
        stamp = self._disk.stamp(self._path)  # before reading, so that a concurrent write is read again
        if stamp == self._seen != NO_FILE and membership.stored >= self.membership_version:
            return
        problem = self._take(membership, stamp)
        if problem is not None:
            self.membership_version = 0
        self._copied = self._take_copy(membership, problem)
        if self._copied <= self.membership_version:
            if problem is not None:
                raise problem
            return
        if self._log is not None and stamp != self._reported:
            what = "is older than its copy" if problem is None else f"cannot be used ({str(problem).partition('; ')[0]})"
            self._log.warning(
                f"{self._path} {what}; continuing with the {self._copied} entries in {self._copy.name}",
                kind="file-damaged",
                path=str(self._path),
            )
            self._reported = stamp

    def _take(self, membership: Membership, stamp: Stamp) -> ConfigurationError | None:
        """Add the entries of the file; return why it cannot be used, or None."""
        try:
            content = read_sealed(self._path, _MAGIC, self._disk)
            membership.extend(content, len(content))
        except FileNotFoundError:
            if self._disk.exists(self._path) or self._disk.exists(self._copy):
                return ConfigurationError(f"{self._path} is missing; {RESTORE}")
            self.membership_version = 0
            return None
        except DamagedFileError as error:
            return ConfigurationError(f"{error}; {RESTORE}")
        except OSError as error:
            return ConfigurationError(f"cannot read {self._path}: {explain(error)}")
        except ProtocolError as error:
            return ConfigurationError(f"{self._path}: {error}; {RESTORE}")
        self.membership_version, self._seen = count_entries(content), stamp
        return None

    def _take_copy(self, membership: Membership, problem: ConfigurationError | None) -> int:
        """Add the entries of the copy; return their number, or 0 if it cannot be used.

        Args:
            problem: why the file cannot be used, or None.
        """
        try:
            content = read_sealed(self._copy, _MAGIC, self._disk)
            membership.extend(content, len(content))
        except (OSError, DamagedFileError):
            return 0
        except ProtocolError as error:
            if problem is None and error.cause == "membership fork":
                raise ConfigurationError(
                    f"{self._path} and {self._copy.name} differ: the admission key has signed two entries with one number;"
                    " remove both, and copy membership from the folder of another member"
                ) from error
            return 0
        return count_entries(content)

    def save_revocation(self, key: bytes, proof: bytes) -> None:
        """Write the proof that the membership of a key was revoked.

        Raises:
            OSError: the file cannot be written.
        """
        write_sealed(self._path.with_name(REVOCATION), _REVOCATION_MAGIC, key + proof, disk=self._disk)

    def save_fork(self, proof: tuple[bytes, bytes]) -> None:
        """Write the proof that the admission key has signed two logs.

        Raises:
            OSError: the file cannot be written.
        """
        write_sealed(self._path.with_name(FORK), _FORK_MAGIC, fork.encode(*proof), disk=self._disk)

    def has_changed(self) -> bool:
        """Return whether the file may contain entries that this object has neither read nor written."""
        return self._disk.stamp(self._path) != self._seen


def describe_fork(membership: Membership) -> str:
    """Return what the proof of a fork says that a node has seen, in one sentence; "" for none."""
    if membership.fork is None:
        return ""
    return fork.describe(fork.verify(fork.encode(*membership.fork), membership.federation, membership.admissions).number)


def awaited_federation(folder: Path) -> str:
    """Return the name of the federation that a node has left to return with a new key; "" if there is none."""
    if SYSTEM.exists(folder / FEDERATION):
        return ""
    try:
        return str(Federation.parse(SYSTEM.read(folder / f"{FEDERATION}{OLD}")).name)
    except (FederationError, OSError):
        return ""


def load_federation(folder: Path, disk: Disk = SYSTEM, log: EventLogger | None = None) -> Membership | None:
    """Return the membership of a node's federation, or None if it belongs to none.

    Args:
        log: receives an event if the membership log is damaged or older than its copy.

    Raises:
        ConfigurationError: a file is damaged, missing, or from another federation.
    """
    try:
        data = disk.read(path := folder / FEDERATION)
    except FileNotFoundError as error:
        left = [name for name in (FEDERATION, MEMBERSHIP, COPY) if disk.exists(folder / name)]
        if left:
            raise ConfigurationError(
                f"{path} is missing, but {left[0]} is there, so this node is a member; {RESTORE}, or join again"
            ) from error
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {explain(error)}") from error
    try:
        membership = Membership(Federation.parse(data))
    except FederationError as error:
        raise ConfigurationError(f"{path}: {error}; {RESTORE}") from error
    if not any(disk.exists(folder / name) for name in (MEMBERSHIP, COPY, BEGINNING)):
        raise ConfigurationError(f"{folder / MEMBERSHIP} is missing; {RESTORE}")
    MembershipFile(folder, disk=disk, log=log).merge(membership)
    if content := _read_proof(folder / BEGINNING, _BEGINNING_MAGIC, disk):
        try:
            begun, following = _beginning.decode(content)
            membership.begin(checkpoint.read(begun, membership.file))
            membership.extend(following, len(following))
        except (ProtocolError, msgspec.MsgspecError) as error:
            raise ConfigurationError(f"{folder / BEGINNING}: {error}; {REJOIN}") from error
    if content := _read_proof(folder / FORK, _FORK_MAGIC, disk):
        with suppress(ProtocolError):  # it is about another federation
            membership.fork = fork.verify(content, membership.federation, membership.admissions).entries
    if content := _read_proof(folder / REVOCATION, _REVOCATION_MAGIC, disk):
        membership.accept_revocation(content[:KEY_SIZE], content[KEY_SIZE:])  # a later log makes it obsolete
    return membership


def _read_proof(path: Path, magic: bytes, disk: Disk) -> bytes:
    try:
        return read_sealed(path, magic, disk)
    except FileNotFoundError:
        return b""
    except DamagedFileError as error:
        mend = REJOIN if path.name == BEGINNING else "remove it, because peers show the proof again"
        raise ConfigurationError(f"{error}; {mend}") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {explain(error)}") from error


def member_of(folder: Path) -> Membership:
    """Return the membership of a node's federation.

    Raises:
        ConfigurationError: see `load_federation`; or this is no folder of a node, or the node belongs to no federation.
    """
    membership = load_federation(folder)
    if membership is None:
        check_folder_of_node(folder)
        raise ConfigurationError(
            f"{folder} belongs to no federation; run p2pfl-node federation create or p2pfl-node join first"
        )
    return membership


def write_federation(folder: Path, membership: Membership, disk: Disk = SYSTEM) -> None:
    """Make a node a member: save its federation's log, or the checkpoint with which it begins, and then the federation file.

    Raises:
        OSError: a file cannot be written.
        ConfigurationError: there is another log already.
    """
    MembershipFile(folder, disk=disk).save(membership)
    replace_file(folder / FEDERATION, [membership.file.data], mode=PRIVATE, disk=disk)


def may_admit(folder: Path) -> bool:
    """Return whether the admission key is in a node's folder."""
    return SYSTEM.exists(folder / ADMISSION)


def is_encrypted(folder: Path) -> bool:
    """Return whether the admission key in a node's folder needs a passphrase; False if there is no key.

    Raises:
        ConfigurationError: the key cannot be read.
    """
    with as_configuration():
        return any(SYSTEM.exists(path) and key_files.is_encrypted(path) for path in (folder / ADMISSION, _successor(folder)))


def load(folder: Path, membership: Membership, passphrase: bytes | None = None) -> Identity:
    """Return the admission key in force. Complete a hand-over that was interrupted after it was signed.

    Call this only while no other process adds to the log.

    Raises:
        ConfigurationError: there is no key here, it is not the one in force, or the passphrase is missing or wrong.
    """
    path, successor = folder / ADMISSION, _successor(folder)
    if not may_admit(folder):
        raise ConfigurationError(f"{folder} has no {ADMISSION}; run this command at the node with the admission key")
    locked: list[PassphraseError] = []
    broken: list[IdentityError] = []
    with as_configuration():
        for each in (path, successor):
            if not SYSTEM.exists(each):
                continue
            try:
                identity = Identity.load(each, passphrase)
            except PassphraseError as error:
                locked.append(error)
                continue
            except IdentityError as error:
                if each is successor:  # a part of a key that is not in force yet
                    continue
                broken.append(error)
                continue
            if identity.public != membership.admission:
                continue
            if each is successor:
                if not broken:
                    replace_file(folder / f"{ADMISSION}.old", [SYSTEM.read(path)], mode=PRIVATE)
                successor.replace(path)
                SYSTEM.sync(folder)
            return identity
        if locked:
            raise locked[0]
    if broken:
        remedy = "" if "; " in str(broken[0]) else f"; {ADMISSION_REMEDY}"
        raise ConfigurationError(f"{broken[0]}{remedy}")
    raise ConfigurationError(
        f"{path} is no longer the admission key: another key has replaced it; restore that one from its backup, or remove"
        " this file if another member has it"
    )


def create(folder: Path, backup: Path, passphrase: bytes | None = None) -> Identity:
    """Create an admission key and a copy of its file.

    Raises:
        ConfigurationError: there is one already, a file cannot be written, the copy would overwrite a file, or the
            passphrase is too short. No file is left behind then.
    """
    return _create(folder / ADMISSION, backup, passphrase)


def create_successor(folder: Path, backup: Path, passphrase: bytes | None = None) -> Identity:
    """Create the next key, as `create` does; `load` activates it once a hand-over to it is signed."""
    _successor(folder).unlink(missing_ok=True)  # from a hand-over that was interrupted before it was signed
    return _create(_successor(folder), backup, passphrase)


def discard(folder: Path, backup: Path) -> None:
    """Remove a newly created key and its copy, because nothing depends on it yet."""
    (folder / ADMISSION).unlink(missing_ok=True)
    backup.unlink(missing_ok=True)


def _successor(folder: Path) -> Path:
    return folder / f"{ADMISSION}.new"


def _create(path: Path, backup: Path, passphrase: bytes | None) -> Identity:
    with as_configuration():
        identity = Identity.create(path, passphrase)
    try:
        key_files.write_new(backup, SYSTEM.read(path))
    except FileExistsError as error:
        path.unlink()
        raise ConfigurationError(f"{backup} exists; choose another file for the backup of the admission key") from error
    except OSError as error:
        path.unlink()
        raise ConfigurationError(f"cannot write the backup of the admission key to {backup}: {reason(error)}") from error
    return identity


@contextmanager
def as_configuration() -> Iterator[None]:
    """Convert errors of keys, tokens and disks to ConfigurationError, because the user can correct them."""
    try:
        yield
    except (FederationError, IdentityError) as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        named = error.filename2 or error.filename or "a file"
        raise ConfigurationError(f"cannot write {named}: {explain(error)}") from error


class RevokedError(ConfigurationError):
    """This node is no longer a member of its federation."""


def way_back(folder: Path) -> str:
    """Return how a node whose membership was revoked returns, and how its model can be used."""
    back = _how_to_return(folder)
    if SYSTEM.exists(folder / CHECKPOINT):
        back += f"; its best model is still here: p2pfl-node export {folder} model.safetensors"
    return back


def _how_to_return(folder: Path) -> str:
    if may_admit(folder):  # no other node can admit it
        return (
            f"to return, copy {folder / ADMISSION} to the folder of another member, and admit the output of"
            f" `p2pfl-node request {folder} --new-key` there with --reuse-name"
        )
    return (
        f"to return, send the output of `p2pfl-node request {folder} --new-key` to the owner of the admission key,"
        " who admits it with --reuse-name"
    )


def describe_pending(federation: str, folder: Path) -> str:
    """Return that a node with a new key waits for its admission, and how it joins, after a semicolon."""
    return (
        f"it has left the federation {federation} and has a new key, which is not admitted yet; to return, send the output"
        f" of `p2pfl-node request {folder}` to the owner of the admission key, and join with the admission file:"
        f" p2pfl-node join {folder} FILE"
    )


def describe_refusal(membership: Membership, key: bytes, folder: Path) -> str:
    """Return why the owner of a key is not a member, and the remedy after a semicolon; "" if it is a member.

    Args:
        folder: folder of its node, for commands in the remedy.
    """
    federation = membership.file.name
    if not membership.refusal(key):
        return ""
    ending = membership.end_of(key)
    if ending is None:
        mend = "ask the owner of the admission key for an invitation, and join again"
        return f"this node is not a member of {federation}; {mend}"
    entry = ending.entry
    where = f"entry {entry.membership_version} of the membership log"
    owner = f"the owner of the admission key {key_name(ending.admission)}"
    if entry.action == "replace":
        mend = "run the node from the folder with the new key"
        return f"{owner} has replaced the key of this node, {entry.name}, in {federation} ({where}); {mend}"
    return f"the membership of this node, {entry.name}, in {federation} was revoked by {owner} ({where}); {way_back(folder)}"


def check_member(membership: Membership, key: bytes, folder: Path) -> None:
    """Check that the owner of a key, the node of a folder, is a member.

    Raises:
        RevokedError: its membership was revoked, or its key replaced.
        ConfigurationError: it never was a member.
    """
    if text := describe_refusal(membership, key, folder):
        raise (ConfigurationError if membership.end_of(key) is None else RevokedError)(text)


def check_name(membership: Membership, key: bytes, name: str, folder: Path) -> None:
    """Check that the key of a folder is that of the member which node.toml names.

    Args:
        name: the name in node.toml.

    Raises:
        ConfigurationError: it is the key of another member.
    """
    owner = next((member.name for member in membership.members.values() if member.key == key), name)
    if owner != name:
        raise ConfigurationError(
            f"{folder / KEY} is the key of the member {owner} of {membership.file.name}, but name in {folder / CONFIG} is"
            f' {name}; set name = "{owner}" there again, because a member keeps its name (docs/how-to/manage-nodes.md says'
            f" how it becomes a member with another one); if the key of another node was copied here, restore that of {name}"
        )
