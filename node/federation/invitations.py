"""Invitation tokens: a member hands one out, and admits the newcomer that shows it.

The inviting node keeps a note of each token in its folder `invitations/`, named by the hash of the secret: the note says
how long the token is valid and for which name; it does not contain the secret. `check_token` is the rule.

A running node answers newcomers with `InvitationService`, which limits their number. It redeems tokens with
`TokenRedeemer`, which writes the entry of the membership log, and needs the admission key for it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec.structs import replace

from p2pfl._util.atomic_files import PRIVATE_FOLDER, DamagedFileError, explain, read_sealed, write_sealed
from p2pfl._util.event_log import EventLogger
from p2pfl._util.failpoints import failpoint
from p2pfl._util.machine import boot_clock
from p2pfl._version import describe_version
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import membership_changes, membership_file
from p2pfl.node.federation.membership_changes import INVITATIONS, check_name_is_free, open_log_for_additions
from p2pfl.node.federation.membership_file import MembershipFile, as_configuration
from p2pfl.node.folder import config
from p2pfl.node.log import LOG
from p2pfl.node.peering.peering_config import JoinReply
from p2pfl.protocols.addresses import network
from p2pfl.protocols.errors import FederationError, IdentityError, ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint, invitation
from p2pfl.protocols.membership.federation_file import NAME
from p2pfl.protocols.membership.log import LIMIT, Membership, Role
from p2pfl.protocols.rate_limit import TokenBucket

LONGEST = 366 * 24 * 60  # maximum minutes for which a token is valid
_MAGIC = b"p2pfl invitation 2\n"
_NOTE = re.compile(r"[0-9a-f]{64}")  # name of a note
Clock = Callable[[], float]
Question = invitation.Join | invitation.Begin | invitation.Look | invitation.Rest
Told = Callable[[str], Sequence[str] | None]
SHORT = 16 << 10  # maximum bytes of a log that a newcomer gets whole, although it could begin with a checkpoint
AT_ONCE = 4  # requests of newcomers processed in parallel; further ones are refused as "busy"
REFUSALS, RECOVERY = 10, 0.5  # refusals of one host in a row, and additional ones per second


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record that the inviting node keeps of a token.

    Attributes:
        name: name of the invited member.
        expires: seconds since 1970.
        until: latest time of expiry by `boot_clock`, in seconds. A token past it has also expired after a restart of
            the machine, because it was created before the clock began to count.
        reuse_name: whether the name may be that of a former member.
        expired: whether the note was found expired once; this never changes back, whatever a clock shows.
        looked_by: public key of the node that has read the federation's file with it last; empty before.
        used_by: public key of the node that has used it; empty before its use.
    """

    name: str
    role: Role
    expires: float
    until: float
    reuse_name: bool = False
    expired: bool = False
    looked_by: bytes = b""
    used_by: bytes = b""

    def is_late(self, now: float, booted: float) -> bool:
        """Return whether a clock shows that the token has expired.

        Args:
            now: seconds since 1970.
            booted: seconds since the machine was started.
        """
        return now > self.expires or booted > self.until


def invite(
    folder: Path,
    name: str,
    addresses: Sequence[str],
    role: Role,
    minutes: float,
    *,
    now: float,
    booted: float | None = None,
    passphrase: bytes | None = None,
    reuse_name: bool = False,
) -> invitation.Invitation:
    """Create a token, and keep a note of it.

    Args:
        name: name of the invited node; the token is valid for no other.
        addresses: addresses at which the newcomer reaches this node.
        minutes: time for which the token is valid.
        now: seconds since 1970.
        booted: seconds since the machine was started; by default from `boot_clock`.
        passphrase: passphrase of the admission key, if it is encrypted.
        reuse_name: whether the name may be that of a former member.

    Raises:
        ConfigurationError: there is no admission key here, its passphrase is wrong, the name is taken, an argument is
            out of range, or the note cannot be written.
    """
    config.check_name(name)
    if not 0 < minutes <= LONGEST:
        raise ConfigurationError(f"a token can be valid for at most {LONGEST} minutes, got {minutes:g}")
    if len(addresses) > invitation.MOST_ADDRESSES or any(len(address) > invitation.LONGEST_ADDRESS for address in addresses):
        raise ConfigurationError(
            f"a token can contain at most {invitation.MOST_ADDRESSES} addresses of {invitation.LONGEST_ADDRESS} characters"
        )
    expires, until = now + 60 * minutes, (boot_clock() if booted is None else booted) + 60 * minutes
    with open_log_for_additions(folder) as membership:
        membership_file.load(folder, membership, passphrase)  # this node needs it when the token is used
        check_name_is_free(membership, name, reuse_name)
        inviter = config.own_key(folder)
        secret = invitation.new_secret()
        (folder / INVITATIONS).mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        write_note(folder, secret, Note(name, role, expires, until, reuse_name))
    return invitation.Invitation(
        federation=membership.federation,
        name=membership.file.name,
        admission=membership.admission,
        inviter=inviter,
        addresses=tuple(addresses),
        secret=secret,
        expires=int(expires),
        member=name,
    )


def write_note(folder: Path, secret: bytes, note: Note) -> None:
    """Save the note of the token with a secret.

    Raises:
        OSError: the note cannot be written.
    """
    write_sealed(_path(folder, secret), _MAGIC, msgspec.msgpack.encode(note))


def read_note(folder: Path, secret: bytes) -> Note:
    """Return the note of the token with a secret.

    Raises:
        ProtocolError: with the cause `invitation unknown` if there is none.
        ConfigurationError: it is damaged.
        OSError: it cannot be read.
    """
    try:
        return _read_note(_path(folder, secret))
    except FileNotFoundError as error:
        raise ProtocolError(
            "invitation unknown", "the inviting node has not issued this token, or has lost its record"
        ) from error


def report_damaged_notes(folder: Path, log: EventLogger) -> None:
    """Report each damaged note of a folder, because its token admits nobody."""
    try:
        paths = sorted(path for path in (folder / INVITATIONS).iterdir() if _NOTE.fullmatch(path.name))
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning(f"cannot read {folder / INVITATIONS}: {explain(error)}", kind="tokens-unanswered")
        return
    for path in paths:
        try:
            _read_note(path)
        except ConfigurationError as error:
            log.warning(str(error), kind="file-damaged", path=str(path))
        except OSError as error:
            log.warning(f"cannot read {path}: {explain(error)}", kind="file-damaged", path=str(path))


def _read_note(path: Path) -> Note:
    """Return a note.

    Raises:
        ConfigurationError: it is damaged.
        OSError: it cannot be read.
    """
    try:
        return msgspec.msgpack.decode(read_sealed(path, _MAGIC), type=Note)
    except (DamagedFileError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"{path} is damaged, so its token admits nobody; remove it, and make a new token with p2pfl-node invite"
        ) from error


def _path(folder: Path, secret: bytes) -> Path:
    return folder / INVITATIONS / sha256(b"p2pfl invitation 1\0" + secret).hexdigest()


def check_token(note: Note, key: bytes, name: str, log: Membership, late: bool) -> bool:
    """Check that a token admits a newcomer.

    Args:
        key: the newcomer's public key.
        late: whether a clock shows that the token has expired.

    Returns:
        True if the newcomer has used the token and is a member already: it asks again because it has lost the answer.

    Raises:
        ProtocolError: the token does not admit this newcomer.
    """
    if note.used_by == key and not log.refusal(key):
        return True
    if note.used_by not in (b"", key):
        raise ProtocolError("invitation used", "another node has used this token; ask for a new one")
    if note.expired or late:
        raise ProtocolError("invitation expired", "ask for a new token")
    if name != note.name:
        raise ProtocolError("other name", f"the token is for a node named {note.name}")
    try:
        check_name_is_free(log, note.name, note.reuse_name)
    except FederationError as error:
        raise ProtocolError("name taken", str(error)) from error
    if log.refusal(key) != "stranger":
        raise ProtocolError(
            "known key", "the key of this node is or was that of a member; create a new node with p2pfl-node init"
        )
    return False


class InvitationService:
    """Answers newcomers with a token on a running node.

    A refusal costs only a small file access and a look-up in memory. Files are read and written in threads. Neither a
    slow disk nor another process that holds the lock of the log therefore blocks the node's other work.

    Args:
        membership: the node's membership log. It gets an entry once that is on disk, and its callbacks pass the entry
            on.
        booted: returns the seconds since the machine was started.
        told: returns the members that a newcomer must know to begin, by its name, the most important ones first; None if
            it must have the whole log.
        must_look: whether to admit only a newcomer that has asked for the federation's file before, as this version does
            to find out whether it can read it. The wire protocol leaves that to the inviter.
    """

    def __init__(
        self,
        redeemer: TokenRedeemer,
        membership: Membership,
        *,
        booted: Clock = boot_clock,
        told: Told = lambda name: None,
        must_look: bool = False,
    ) -> None:
        self._redeemer = redeemer
        self._told = told
        self._membership = membership
        self._booted = booted
        self._working = 0
        self._refusals = TokenBucket(RECOVERY, REFUSALS)
        self._must_look = must_look

    async def answer(self, key: bytes, frame: bytes, host: str) -> JoinReply:
        """Return the answer to a newcomer that has proven `key` and asks to join.

        Args:
            host: an IP address; or any other text if the address is unknown, as with a broker.
        """
        who, now = network(host), self._booted()
        if self._working >= AT_ONCE or self._refusals.remaining(who, now) < 1:
            return _refusal(ProtocolError("busy", "too many nodes want to join; try again later"))
        self._working += 1
        try:
            question = invitation.decode_join(frame)
            if isinstance(question, invitation.Look):
                self._refusals.take(who, now)  # otherwise a newcomer could repeat this question without end
                await self._check(key, question)
                shown = invitation.Offered(self._membership.file.data, self._membership.rounds)
                return JoinReply(invitation.encode_join(shown))
            known = question.known if isinstance(question, invitation.Rest) else 0
            if await self._admit(key, question):
                self._refusals.take(who, now)  # repeating the answer is expensive, because it is long
            begun = await self._checkpoint(question.name) if isinstance(question, invitation.Begin) else b""
        except ProtocolError as error:
            self._refusals.take(who, now)
            return _refusal(error)
        except (FederationError, IdentityError, ConfigurationError, OSError) as error:
            self._refusals.take(who, now)
            refused = invitation.JoinRefused("the inviting node has a problem, which its log names; ask its owner")
            return JoinReply(invitation.encode_join(refused), "join failed", str(error))
        finally:
            self._working -= 1
        if begun:
            return JoinReply(invitation.encode_join(invitation.Begun(self._membership.file.data, begun)))
        entries = self._membership.after(known, LIMIT)
        return JoinReply(invitation.encode_join(invitation.Joined(self._membership.file.data, entries)))

    async def _checkpoint(self, name: str) -> bytes:
        """Return a checkpoint for a new member; b"" if it gets the log, because that is short or needed."""
        if len(self._membership.encode()) <= SHORT or (told := self._told(name)) is None:
            return b""
        return await asyncio.to_thread(self._redeemer.sign_checkpoint, self._membership.copy(), [name, *told])

    async def _admit(self, key: bytes, join: invitation.Join | invitation.Begin | invitation.Rest) -> bool:
        """Make a newcomer a member; return whether it was one already, and asks for the log or the rest of it."""
        if await self._is_member(key, join):
            return True
        if isinstance(join, invitation.Rest):
            await self._with_log(partial(self._redeemer.check, key=key, join=join))  # the other causes come first
            raise ProtocolError("malformed", "asks for the rest of the log before it has joined")
        if self._must_look and (await asyncio.to_thread(self._redeemer.read_note, join.secret)).looked_by != key:
            await self._with_log(partial(self._redeemer.check, key=key, join=join))  # the other causes come first
            here = await asyncio.to_thread(describe_version)
            raise ProtocolError(
                "earlier version",
                f"this node has p2pfl {here}; the newcomer has an earlier version, which does not check whether it can read"
                " the federation; upgrade the newcomer, and repeat join with the same token",
            )
        await self._with_log(partial(self._redeemer.redeem, key=key, join=join))
        return False

    async def _check(self, key: bytes, look: invitation.Look) -> None:
        """Check that a newcomer would be admitted, and leave it a stranger."""
        if not await self._is_member(key, look):
            await self._with_log(partial(self._redeemer.check, key=key, join=look))

    async def _is_member(self, key: bytes, join: Question) -> bool:
        """Return whether a newcomer is a member already, and had lost the answer; no file is written."""
        if not NAME.fullmatch(join.name):
            raise ProtocolError("malformed", "the name of a node has at most 64 letters, digits, '.', '_' and '-'")
        redeemer = self._redeemer
        note = await asyncio.to_thread(redeemer.read_note, join.secret)
        if redeemer.file.has_changed():  # a command has added entries, or this node has not read the file yet
            await self._with_log(redeemer.file.merge)
        return redeemer.may_come_back(note, self._membership, key, join.name)

    async def _with_log(self, work: Callable[[Membership], None]) -> None:
        """Do file work in a thread with a copy of the log, and add its new entries to the log."""
        log = self._membership.copy()
        await asyncio.to_thread(work, log)
        self._membership.catch_up(log)


def _refusal(error: ProtocolError) -> JoinReply:
    return JoinReply(invitation.encode_join(invitation.JoinRefused(str(error)[:256])), error.cause, str(error))


def open_service(
    folder: Path,
    membership: Membership,
    passphrase_file: str,
    log: EventLogger = LOG,
    *,
    told: Told = lambda name: None,
) -> tuple[InvitationService | None, str]:
    """Return the invitation service of a node, and permit newcomers to ask.

    Args:
        log: receives an event if the key is damaged, not the one in force, or cannot be decrypted; and one for each
            damaged note of a token.
        told: see InvitationService.

    Returns:
        The service; None if the node has no admission key, or cannot use it. The second value says why it cannot.
    """
    if not membership_file.may_admit(folder):
        return None, ""
    passphrase, still = None, ""
    try:
        if membership_file.is_encrypted(folder):
            still = "; p2pfl-node admit still works"
            passphrase = membership_changes.ask_passphrase(folder / membership_file.ADMISSION, passphrase_file)
        with open_log_for_additions(folder) as entries:
            membership_file.load(folder, entries, passphrase)
    except ConfigurationError as error:
        log.warning(f"cannot answer invitation tokens: {error}{still}", kind="tokens-unanswered")
        return None, str(error)
    report_damaged_notes(folder, log)
    membership.invites = True
    return InvitationService(TokenRedeemer(folder, passphrase), membership, told=told, must_look=True), ""


class TokenRedeemer:
    """Notes of tokens, membership log and admission key in a node's folder.

    Its methods wait for the disk, and for other processes that hold the lock of the log.

    Args:
        passphrase: passphrase of the admission key, if it is encrypted.
        file: file of the log; by default that of the folder.
        now: returns seconds since 1970.
        booted: returns seconds since the machine was started.
    """

    def __init__(
        self,
        folder: Path,
        passphrase: bytes | None = None,
        *,
        file: MembershipFile | None = None,
        now: Clock = time.time,
        booted: Clock = boot_clock,
    ) -> None:
        self._folder = folder
        self._passphrase = passphrase
        self.file = file or MembershipFile(folder)
        self._now = now
        self._booted = booted
        self._key: Identity | None = None

    def read_note(self, secret: bytes) -> Note:
        """Return the note of a token.

        Raises:
            ProtocolError: there is no note of this token.
        """
        return read_note(self._folder, secret)

    def may_come_back(self, note: Note, log: Membership, key: bytes, name: str) -> bool:
        """Return whether a newcomer is a member already and has lost the answer; no file is read or written.

        Raises:
            ProtocolError: the token does not admit this newcomer.
        """
        late = self._is_late(note)
        if late and not note.expired:  # `redeem` records this
            return False
        return check_token(note, key, name, log, late)

    def check(self, log: Membership, key: bytes, join: Question) -> None:
        """Check that a newcomer would be admitted; its token remains unused. A look is noted for its `join`.

        Raises:
            ProtocolError: the token does not admit this newcomer.
            ConfigurationError: a file cannot be read or written.
        """
        with as_configuration(), self.file.adding(log):
            note = self._valid_note(log, key, join)
            if isinstance(join, invitation.Look) and note is not None and note.looked_by != key:
                write_note(self._folder, join.secret, replace(note, looked_by=key))

    def redeem(self, log: Membership, key: bytes, join: invitation.Join | invitation.Begin) -> None:
        """Add a newcomer to a log and its file, and mark its token as used.

        No other process adds to the log at the same time. Token and name are checked again, because both may be taken
        by now.

        Raises:
            ProtocolError: the token does not admit this newcomer.
            ConfigurationError: a file cannot be read or written, or the admission key is not the one in force.
        """
        with as_configuration(), self.file.adding(log):
            note = self._valid_note(log, key, join)
            if note is None:
                return
            key_in_force = self._load_key(log)
            # Mark the token first: after a crash between the two writes, only the node with this key can join when it
            # asks again.
            write_note(self._folder, join.secret, replace(note, used_by=key))
            failpoint("invitation-used")
            log.append(key_in_force, "add", join.name, key, note.role)

    def sign_checkpoint(self, log: Membership, names: Sequence[str]) -> bytes:
        """Return a checkpoint of the log with proofs of members; see p2pfl.protocols.membership.checkpoint.make.

        Raises:
            ConfigurationError: the admission key cannot be read, or is not the one in force.
        """
        with as_configuration():
            return checkpoint.make(log, self._load_key(log), names)

    def _load_key(self, log: Membership) -> Identity:
        if self._key is None or self._key.public != log.admission:
            self._key = membership_file.load(self._folder, log, self._passphrase)
        return self._key

    def _valid_note(self, log: Membership, key: bytes, join: Question) -> Note | None:
        """Return the note of a token that admits a newcomer; None if the newcomer is a member already."""
        note = read_note(self._folder, join.secret)
        late = self._is_late(note)
        if late and not note.expired:
            write_note(self._folder, join.secret, replace(note, expired=True))
        return None if check_token(note, key, join.name, log, late) else note

    def _is_late(self, note: Note) -> bool:
        return note.is_late(self._now(), self._booted())
