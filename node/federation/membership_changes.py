"""Changes of a federation and its members, made on the folder of a node.

- `create_federation` makes a federation with its admission key; this node is its first member.
- `leave` sets the files of a federation aside, so that the node can create or join another one.
- `extend` sets more rounds, `rotate` hands over to a new admission key, `appoint` names the committee, and `revoke` ends a
  membership.
- Manual admission carries two texts from machine to machine: the newcomer prints a `request`, a member with the admission
  key makes a bundle of it with `admit`, and the newcomer saves this with `accept_bundle`.

Not here: the tokens that members hand out, and the newcomers that show them, are in p2pfl.node.federation.invitations, and
the newcomer's questions in p2pfl.node.federation.join, which saves the answer with `accept`. The admission key and the log
are files of p2pfl.node.federation.membership_file. A running node receives changes of others through
p2pfl.node.federation.membership_sync.

`extend`, `rotate`, `appoint`, `revoke` and `admit` add a signed entry to the log (`open_log_for_additions`), whether the
node runs or not. They need the admission key; its passphrase comes from a file, from the environment, or from the keyboard
(`ask_passphrase`). A node that runs can neither enter a federation nor replace its own key.

A node that enters a federation sets its earlier checkpoints aside, because they belong to another model. If they are of
trainings without a privacy budget, the ledger notes it, because a later budget cannot cover these.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from p2pfl._util.atomic_files import PRIVATE_FOLDER, is_folder_locked, lock_folder, replace_file
from p2pfl._util.disk import PRIVATE, SYSTEM
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import agreement, membership_file
from p2pfl.node.federation.agreement import Approve, approve_all, check_agreement
from p2pfl.node.federation.membership_file import (
    ADMISSION,
    BEGINNING,
    COPY,
    FEDERATION,
    FORK,
    MEMBERSHIP,
    OLD,
    REVOCATION,
    MembershipFile,
    as_configuration,
    check_member,
    load_federation,
    member_of,
    write_federation,
)
from p2pfl.node.folder import config
from p2pfl.node.folder.config import CHECKPOINT, PUBLISHED, VOTE, NodeConfig
from p2pfl.node.folder.facts import update_facts
from p2pfl.node.privacy_ledger import note_unprotected
from p2pfl.protocols.election import Term
from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import Begun, Invitation, Joined, Request, decode_admission, encode_admission
from p2pfl.protocols.membership.log import Membership, Role

PASSPHRASE_VARIABLE = "P2PFL_ADMISSION_PASSPHRASE"
_LONGEST_PASSPHRASE = 4096  # bytes
EARLIER = f"{CHECKPOINT}.earlier"
LEFT = "left"  # folder with the files of federations that the node has left
INVITATIONS = "invitations"  # folder with the notes of tokens; see p2pfl.node.federation.invitations
OF_FEDERATION = (  # files that belong to one federation, besides its signed file
    INVITATIONS, ADMISSION, f"{ADMISSION}{OLD}", f"{ADMISSION}.new", VOTE, PUBLISHED, FORK, REVOCATION, f"{REVOCATION}{OLD}",
    f"{MEMBERSHIP}{OLD}", f"{FEDERATION}{OLD}", COPY, BEGINNING, MEMBERSHIP,
)  # fmt: skip
STOP_FIRST = "runs this node; stop it first"  # what holds the lock of a folder whose federation is to change


@contextmanager
def open_log_for_additions(folder: Path) -> Iterator[Membership]:
    """Yield the log for additions while no other process adds to it; the new entries are on disk afterwards.

    A former member can add nothing: no member would receive its entries, and another log could begin.

    Raises:
        ConfigurationError: the node belongs to no federation, its membership was revoked, or a file is damaged or cannot
            be written.
    """
    with as_configuration():
        membership = member_of(folder)
        with MembershipFile(folder).adding(membership):
            check_member(membership, config.own_key(folder), folder)
            yield membership


# Creation of a federation
def create_federation(folder: Path, tables: Mapping[str, Any], backup: Path, passphrase: bytes | None = None) -> Federation:
    """Create a federation, with an admission key and a backup of it; this node is its first member.

    Args:
        passphrase: encrypts the key and its copy.

    Raises:
        ConfigurationError: the node runs or belongs to a federation already, the copy would overwrite a file, the
            passphrase is too short, or a file cannot be written.
    """
    name = config.load(folder).name
    if (folder / FEDERATION).exists():
        raise ConfigurationError(
            f"{folder} belongs to a federation already; to create it again, or another one, leave it first, which keeps"
            f" {config.CONFIG} and the key: p2pfl-node federation leave {folder}"
        )
    with lock_folder(folder, STOP_FIRST), as_configuration():
        own = config.own_identity(folder)
        admission = membership_file.create(folder, backup, passphrase)
        try:
            membership = Membership(Federation.sign(tables, admission))
            membership.append(admission, "add", name, own.public)
        except BaseException:
            membership_file.discard(folder, backup)
            raise
        _enter(folder, membership)
    return membership.file


def rotate(folder: Path, backup: Path, passphrase: bytes | None = None, new_passphrase: bytes | None = None) -> None:
    """Hand over to a new admission key. The old one is kept in its own file, and is no longer in force.

    Args:
        passphrase: passphrase of the old key, if it is encrypted.
        new_passphrase: encrypts the new key and its copy.

    Raises:
        ConfigurationError: there is no admission key here, a passphrase is wrong, or a file cannot be written.
    """
    with open_log_for_additions(folder) as log:
        old = membership_file.load(folder, log, passphrase)
        new = membership_file.create_successor(folder, backup, new_passphrase)
        log.append(old, "hand-over", "", new.public)
    with open_log_for_additions(folder) as log:
        membership_file.load(folder, log, new_passphrase)  # replaces the old key by the new one


def extend(folder: Path, rounds: int, passphrase: bytes | None = None) -> None:
    """Extend a federation to a number of rounds. Its members continue as soon as they learn of it.

    Args:
        passphrase: passphrase of the admission key, if it is encrypted.

    Raises:
        ConfigurationError: there is no admission key here, its passphrase is wrong, or the number is not greater than
            the present one or too large.
    """
    with open_log_for_additions(folder) as log:
        log.append_extension(membership_file.load(folder, log, passphrase), rounds)


def appoint(folder: Path, names: Sequence[str], lost: bool = False, passphrase: bytes | None = None) -> tuple[str, ...]:
    """Name the committee that elects the coordinator; without names, change nothing. Return the names of the committee.

    Args:
        lost: whether a majority of an earlier committee has stopped for good; see p2pfl.protocols.election.
        passphrase: passphrase of the admission key, if it is encrypted.

    Raises:
        ConfigurationError: the federation has no committee, the names are not those of a committee, there is no
            admission key here, or its passphrase is wrong.
    """
    if names:
        with open_log_for_additions(folder) as log:
            _expect_committee(log)
            log.append_committee(membership_file.load(folder, log, passphrase), names, lost)
            return tuple(log.committees.epochs[-1].members)
    membership = member_of(folder)
    _expect_committee(membership)
    return tuple(membership.committees.epochs[-1].members)


def _expect_committee(membership: Membership) -> None:
    if not membership.committees.epochs:
        raise ConfigurationError(
            f"the federation {membership.file.name} has no committee: all its members elect the coordinator; create a"
            " federation with --set committee=7 for one"
        )


def describe(folder: Path) -> dict[str, Any]:
    """Return the agreement and the members of a node's federation."""
    membership = member_of(folder)
    tables = {**membership.file.tables, "rounds": membership.rounds}
    members = [{"name": member.name, "role": member.role, "key": member.key.hex()} for member in membership.members.values()]
    return {
        "federation": membership.file.name,
        "id": membership.federation.hex(),
        "admission_key": membership.admission.hex(),
        "membership_version": membership.membership_version,
        "complete": membership.is_complete,
        "members": members,
        "agreed": {key: value for key, value in tables.items() if key != "name"},
    }


def many_note(folder: Path, newcomers: int = 0) -> str:
    """Return what to choose for a federation as large as a node's with some newcomers; see agreement.many_note."""
    membership = member_of(folder)
    return agreement.many_note(membership.file.tables, len(membership.members) + newcomers)


class Left(NamedTuple):
    """Federation that a node has left.

    Attributes:
        name: its name.
        aside: folder with its files.
        others: names of its other members, which still count this node as a member.
        admission: whether the admission key is among the files.
    """

    name: str
    aside: Path
    others: tuple[str, ...]
    admission: bool


def leave(folder: Path) -> Left:
    """Set the files of a node's federation aside, its admission key and its tokens among them; nothing is deleted.

    The node keeps its configuration, its key and its checkpoints. An interrupted call can be repeated.

    Raises:
        ConfigurationError: the node runs, belongs to no federation, or a file cannot be moved.
    """
    config.check_folder_of_node(folder)
    if not SYSTEM.exists(folder / FEDERATION):
        raise ConfigurationError(f"{folder} belongs to no federation")
    with lock_folder(folder, STOP_FIRST), as_configuration():
        federation = Federation.parse(SYSTEM.read(folder / FEDERATION))
        others, admission = _others(folder), membership_file.may_admit(folder)
        # The file of the federation is the last one: until it is moved, the command can be repeated.
        files = [name for name in (*OF_FEDERATION, FEDERATION) if (folder / name).exists()]
        aside = _free_folder(folder / LEFT / f"{federation.name}-{federation.id.hex()[:8]}", files)
        aside.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        aside.parent.chmod(PRIVATE_FOLDER)
        update_facts(folder, federation="", entries=0, admission=b"", term=Term(0, 0))
        for name in files:
            (folder / name).replace(aside / name)
        SYSTEM.sync(folder)
    return Left(federation.name, aside, others, admission)


def describe_leaving(folder: Path) -> str:
    """Return what the other members lose if a node leaves its federation, in one sentence; "" if nothing."""
    others = _others(folder)
    if not others or not membership_file.may_admit(folder):
        return ""
    return (
        f"{folder} has the admission key: {', '.join(others)} would remain in the federation, which could then neither admit"
        " nor revoke members"
    )


def _others(folder: Path) -> tuple[str, ...]:
    """Return the names of the other members of a node's federation; none if its files are damaged or missing."""
    try:
        membership, own = load_federation(folder), config.own_key(folder)
    except ConfigurationError:
        return ()
    return () if membership is None else tuple(name for name, member in membership.members.items() if member.key != own)


def _free_folder(path: Path, files: Sequence[str]) -> Path:
    """Return a folder that has none of the files: a path, or the path with a number."""
    numbered = (path.with_name(f"{path.name}.{k}") for k in count(1))
    return next(each for each in chain([path], numbered) if not any((each / name).exists() for name in files))


# Answers that a newcomer saves
def accept(
    folder: Path,
    joined: Joined | Begun,
    invitation: Invitation,
    own: NodeConfig,
    key: bytes,
    *,
    approve: Approve = approve_all,
) -> str:
    """Save the answer of the inviting node; return the federation's name.

    Args:
        approve: called before anything is saved.

    Raises:
        ConfigurationError: it is not the federation of the token, names another task or policy than this node's
            configuration, sets options that are the node's own, or is not approved.
    """
    with as_configuration():
        federation = Federation.parse(joined.file)
        if federation.id != invitation.federation:
            raise FederationError("the answer of the inviting node belongs to another federation than the token")
        membership = _read(federation, joined)
        if invitation.admission not in membership.admissions:
            raise FederationError("the admission key of the federation is not the one in the token; ask for a new token")
        _expect_member(membership, own, key, approve)
        _enter(folder, membership)
    return federation.name


def accept_bundle(folder: Path, text: str, own: NodeConfig, key: bytes, *, approve: Approve = approve_all) -> str:
    """Save the bundle that `admit` has written; return the federation's name.

    Raises:
        ConfigurationError: see `accept`.
    """
    with as_configuration():
        joined = decode_admission(text)
        membership = _read(Federation.parse(joined.file), joined)
        _expect_member(membership, own, key, approve)
        _enter(folder, membership)
    return membership.file.name


def _read(federation: Federation, joined: Joined | Begun) -> Membership:
    try:
        if isinstance(joined, Joined):
            return Membership(federation, joined.log)
        membership = Membership(federation)
        membership.begin(checkpoint.read(joined.checkpoint, federation))
    except ProtocolError as error:
        raise FederationError(str(error)) from error
    return membership


def _expect_member(membership: Membership, own: NodeConfig, key: bytes, approve: Approve) -> None:
    member = membership.member(own.name)
    if member is None or member.key != key:
        raise FederationError(
            f"the federation has no member {own.name} with the key of this node; ask for a new token or admission"
        )
    approve(own, replace(check_agreement(own, membership.file), rounds=membership.rounds))


def _enter(folder: Path, membership: Membership) -> None:
    """Write the files of a federation. Checkpoints from before are set aside, unless the node returns with a new key."""
    try:
        returns = Federation.parse(SYSTEM.read(folder / f"{FEDERATION}{OLD}")).id == membership.federation
    except (FederationError, OSError):
        returns = False
    if not returns:
        note_unprotected(folder, checkpoints(folder))  # first: nothing else knows it afterwards
        set_checkpoints_aside(folder)
    write_federation(folder, membership)


# Manual admission
def request(folder: Path, new_key: bool = False) -> str:
    """Return a line that a member with the admission key needs to admit this node.

    Args:
        new_key: whether to create a new key and request that it replaces the current one, which is kept in its own
            file. The node then belongs to no federation until it has joined again. Until then the request stays the
            same, with this option and without it.

    Raises:
        ConfigurationError: there is no key, or a new one cannot be created.
    """
    own = config.load(folder)
    with as_configuration():
        identity = config.own_identity(folder)
        aside = folder / f"{config.KEY}{OLD}"
        if aside.exists() and not (folder / FEDERATION).exists():
            replaced = Identity.load(aside)
            if replaced.public != identity.public:  # equal keys: an earlier command was interrupted
                return Request.make(identity, own.name, replaced)
        if not new_key:
            return Request.make(identity, own.name)
        if is_folder_locked(folder):
            raise ConfigurationError(f"{folder} is in use: stop the node before you replace its key")
        fresh = folder / f"{config.KEY}.new"
        fresh.unlink(missing_ok=True)
        new = Identity.create(fresh)
        line = Request.make(new, own.name, identity)
        replace_file(aside, [SYSTEM.read(folder / config.KEY)], mode=PRIVATE)
        for name in (FEDERATION, MEMBERSHIP, REVOCATION):  # the node joins again
            if (folder / name).exists():
                (folder / name).replace(folder / f"{name}{OLD}")
        SYSTEM.remove(folder / COPY)
        SYSTEM.remove(folder / BEGINNING)
        fresh.replace(folder / config.KEY)  # last, so that the command can be repeated after an interruption
        SYSTEM.sync(folder)
        return line


def former_federation(folder: Path) -> str:
    """Return the name of the federation that has ended the membership of this node's key; "" if none has."""
    membership = load_federation(folder)
    return membership.file.name if membership is not None and membership.end_of(config.own_key(folder)) else ""


def admit(
    folder: Path, line: str, role: Role | None, out: Path, *, passphrase: bytes | None = None, reuse_name: bool = False
) -> tuple[str, Role]:
    """Admit the node that printed a request; write the bundle that it needs to join, and return its name and its role.

    Args:
        role: the role of the new member. None keeps the role of a node that is a member, and is `participant` for any
            other node.
        passphrase: passphrase of the admission key, if it is encrypted.
        reuse_name: whether the name may be that of a former member.

    Raises:
        ConfigurationError: there is no admission key here, its passphrase is wrong, the request is invalid, its name is
            taken, or the node is a member with another role.
    """
    with as_configuration():
        asked = Request.parse(line)
        with open_log_for_additions(folder) as log:
            admission = membership_file.load(folder, log, passphrase)
            known = log.member(asked.name)
            member = known if known is not None and known.key in (asked.key, asked.replaces) else None
            if member is not None and role not in (None, member.role):
                raise ConfigurationError(f"{asked.name} is a member with the role {member.role}, which cannot be changed")
            given = role or ("participant" if member is None else member.role)
            if member is None:
                if log.refusal(asked.key) == "revoked":
                    raise ConfigurationError(
                        f"the key of {asked.name} is that of a former member, and cannot be admitted again; ask its owner"
                        " for the output of p2pfl-node request FOLDER --new-key"
                    )
                if log.refusal(asked.key) == "stranger":  # otherwise the key is the problem
                    check_name_is_free(log, asked.name, reuse_name)
                log.append(admission, "add", asked.name, asked.key, given)
            elif member.key == asked.replaces:
                log.append(admission, "replace", asked.name, asked.key)
        replace_file(out, [encode_admission(Joined(log.file.data, log.encode())).encode()])
    return asked.name, given


def check_name_is_free(log: Membership, name: str, reuse: bool) -> None:
    """Raise FederationError if a new member may not have a name.

    Args:
        reuse: whether it may be the name of a former member, for which peers may have stored data.
    """
    if log.member(name) is not None:
        raise FederationError(f"there is a member named {name} already")
    if log.had(name) and not reuse:
        raise FederationError(
            f"{name} was the name of a former member; add --reuse-name to admit it, because peers may still have its data"
            " under this name, or use another name"
        )


# Revocation
def describe_loss(folder: Path, name: str) -> str:
    """Return what a federation would lose with a member, in one sentence; "" if that is only the member.

    Raises:
        ConfigurationError: the node belongs to no federation, its membership was revoked, or a file is damaged.
    """
    membership, own = member_of(folder), config.own_key(folder)
    check_member(membership, own, folder)
    member, title = membership.member(name), f"the federation {membership.file.name}"
    if member is None:
        return ""
    if len(membership.members) == 1:
        return f"{name} is the last member of {title}"
    if member.key == own:
        return f"{name} is this node, which has the admission key: {title} could then neither admit nor revoke members"
    return ""


def revoke(folder: Path, name: str, passphrase: bytes | None = None) -> None:
    """End a membership.

    Args:
        passphrase: passphrase of the admission key, if it is encrypted.

    Raises:
        ConfigurationError: there is no admission key here, its passphrase is wrong, or there is no member with this
            name.
    """
    with open_log_for_additions(folder) as log:
        admission = membership_file.load(folder, log, passphrase)
        member = log.member(name)
        if member is None:
            raise FederationError(f"there is no member named {name}; the members are {', '.join(log.members)}")
        log.append(admission, "remove", name, member.key)


# Passphrase of the admission key
def ask_passphrase(key: Path, file: str | Path = "") -> bytes:
    """Return the passphrase that opens an encrypted key: from `file`, else from the environment, else from the terminal.

    Raises:
        ConfigurationError: there is none, or the file cannot be read.
    """
    if file:
        return read_passphrase(Path(file).expanduser())
    if os.environ.get(PASSPHRASE_VARIABLE):
        return os.environ[PASSPHRASE_VARIABLE].encode()
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{key} is encrypted and needs its passphrase: use --passphrase-file, passphrase_file in node.toml, the"
            f" environment variable {PASSPHRASE_VARIABLE}, or a terminal"
        )
    return getpass.getpass(f"passphrase of {key}: ").encode()


def choose_passphrase(file: Path | None, asked: bool) -> bytes | None:
    """Return the passphrase for a new key: from a file, or typed twice; None if neither is requested.

    Raises:
        ConfigurationError: the file cannot be read, there is no terminal, or the two entries differ.
    """
    if file is not None:
        return read_passphrase(file)
    if not asked:
        return None
    if not sys.stdin.isatty():
        raise ConfigurationError("--passphrase needs a terminal; use --passphrase-file instead")
    first = getpass.getpass("passphrase of the new admission key: ")
    if getpass.getpass("repeat the passphrase: ") != first:
        raise ConfigurationError("the two passphrases differ")
    return first.encode()


def read_passphrase(path: Path) -> bytes:
    """Return the passphrase in the first line of a file.

    Raises:
        ConfigurationError: the file cannot be read, or contains no passphrase.
    """
    try:
        line = SYSTEM.read(path, _LONGEST_PASSPHRASE).partition(b"\n")[0].rstrip(b"\r")
    except OSError as error:
        raise ConfigurationError(f"cannot read the passphrase from {path}: {error.strerror}") from error
    if not line:
        raise ConfigurationError(f"{path} has no passphrase: its first line is empty")
    return line


# Checkpoints from before
def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, from which the next run resumes; the newest is first."""
    return [path for path in (folder / CHECKPOINT, *(folder / f"{CHECKPOINT}.{k}" for k in (1, 2))) if path.exists()]


def set_checkpoints_aside(folder: Path) -> bool:
    """Rename the last checkpoint, so that the next run starts with round 1; return whether there was one.

    The members of a federation start with the same model. A node that has trained before would otherwise count its own
    rounds as those of the federation, and could finish at once.
    """
    found = checkpoints(folder)
    for older in found[1:]:  # first: after an interruption they would replace the newest one
        older.unlink()
    if found:
        found[0].replace(folder / EARLIER)
        SYSTEM.sync(folder)
    return bool(found)


def watch_checkpoints(folder: Path, notify: Callable[[str], None]) -> Callable[[], None]:
    """Return a function that tells the user if the checkpoints of a folder have been set aside since this call."""
    before = (folder / CHECKPOINT).exists()

    def say() -> None:
        if before and not (folder / CHECKPOINT).exists():
            notify(f"this node has trained before: it starts the federation with round 1, and keeps {folder / EARLIER}")

    return say
