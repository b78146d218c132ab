"""Tokens: how they are given, what their giver keeps, and how a running node answers those who bring one.

invitations/        a note of each token that was given, by the hash of its secret
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

from node import admission_key, config
from node.admission import adding, check_name_is_free
from node.admission_key import as_configuration
from node.crashpoints import reached
from node.files import PRIVATE_FOLDER, DamagedFileError, read_sealed, write_sealed
from node.membership_file import MembershipFile
from p2pfl.errors import ConfigurationError
from protocols.allowance import Allowance
from protocols.errors import FederationError, IdentityError, ProtocolError
from protocols.federation import NAME
from protocols.identity import Identity
from protocols.invitation import (
    LONGEST_ADDRESS,
    MOST_ADDRESSES,
    Invitation,
    Join,
    Joined,
    JoinRefused,
    decode_join,
    encode_join,
    new_secret,
)
from protocols.membership import LIMIT, Membership, Role

INVITATIONS = "invitations"
LONGEST = 366 * 24 * 60  # minutes for which a token may be good
AT_ONCE = 4  # questions of newcomers in work; with more, the others are refused as "busy"
REFUSALS, RECOVERY = 10, 0.5  # how many of one host are refused in a row, and how many a second after that
_MAGIC = b"p2pfl invitation 2\n"
Clock = Callable[[], float]


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An invitation as its giver keeps it.

    Attributes:
        name: of the member that it is for.
        expires: seconds since 1970.
        until: when it expires by `boot_clock`, at the latest.
        reuse_name: the name may be one that a former member had.
        expired: it was seen expired, and stays so whatever a clock shows.
        used_by: the key of the node that has used it.
    """

    name: str
    role: Role
    expires: float
    until: float
    reuse_name: bool = False
    expired: bool = False
    used_by: bytes = b""


def boot_clock() -> float:
    """Return seconds since this machine was started, with the time of sleep where the system counts it.

    No one sets this clock. A token is too old when it is past its `until`, also after a restart of the machine: it was made
    before all of the time that the clock shows then.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def invite(
    folder: Path,
    name: str,
    addresses: Sequence[str],
    role: Role,
    minutes: float,
    now: float,
    *,
    booted: float | None = None,
    passphrase: bytes | None = None,
    reuse_name: bool = False,
) -> Invitation:
    """Make a token and note it, by the hash of its secret.

    Args:
        name: of the node that it is for; it is good for no other.
        addresses: where this node is.
        minutes: for which the token is good.
        now: seconds since 1970.
        booted: seconds since the machine was started; by default by `boot_clock`.
        passphrase: of the admission key, if it is encrypted.
        reuse_name: the name may be one that a former member had.

    Raises:
        ConfigurationError: there is no admission key here, its passphrase is wrong, the name is taken, an argument is out of
            range, or the note cannot be written.
    """
    config.check_name(name)
    if not 0 < minutes <= LONGEST:
        raise ConfigurationError(f"a token is good for up to {LONGEST} minutes, not {minutes:g}")
    if len(addresses) > MOST_ADDRESSES or any(len(address) > LONGEST_ADDRESS for address in addresses):
        raise ConfigurationError(f"a token names {MOST_ADDRESSES} addresses of {LONGEST_ADDRESS} characters at most")
    expires, until = now + 60 * minutes, (boot_clock() if booted is None else booted) + 60 * minutes
    with adding(folder) as membership:
        admission_key.load(folder, membership, passphrase)  # which this node must have when the token is used
        check_name_is_free(membership, name, reuse_name)
        inviter = Identity.load(folder / config.KEY).public
        secret = new_secret()
        (folder / INVITATIONS).mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        write_note(folder, secret, Note(name, role, expires, until, reuse_name))
    return Invitation(
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
    write_sealed(_path(folder, secret), _MAGIC, msgspec.msgpack.encode(note))


def read_note(folder: Path, secret: bytes) -> Note:
    """Return what is kept of the token with a secret.

    Raises:
        ProtocolError: `invitation unknown`.
    """
    try:
        return msgspec.msgpack.decode(read_sealed(_path(folder, secret), _MAGIC), type=Note)
    except (FileNotFoundError, DamagedFileError, msgspec.MsgspecError) as error:
        raise ProtocolError("invitation unknown", "this node has given no such token") from error


def _path(folder: Path, secret: bytes) -> Path:
    return folder / INVITATIONS / sha256(b"p2pfl invitation 1\0" + secret).hexdigest()


class InvitationService:
    """Answers those who bring a token to a running node.

    A refusal takes one small file and what is in memory. Files are read and written in threads: neither a slow disk nor
    another process that holds the lock of the log keeps the node from anything else.

    Args:
        membership: the node's. An entry is on the disk before it is in here, and its callbacks tell of it.
        passphrase: of the admission key, if it is encrypted.
        now: returns seconds since 1970.
        booted: returns seconds since the machine was started.
        file: of the log.

    Attributes:
        refused: called with the cause of every refusal, and words for people.
    """

    def __init__(
        self,
        folder: Path,
        membership: Membership,
        passphrase: bytes | None = None,
        now: Clock = time.time,
        booted: Clock = boot_clock,
        file: MembershipFile | None = None,
    ) -> None:
        self._folder = folder
        self._membership = membership
        self._passphrase = passphrase
        self._now = now
        self._booted = booted
        self._file = file or MembershipFile(folder)
        self._key: Identity | None = None
        self._working = 0
        self._refusals = Allowance(RECOVERY, REFUSALS)
        self.refused: Callable[[str, str], None] = lambda cause, detail: None

    async def answer(self, key: bytes, frame: bytes, host: str) -> bytes:
        """Return the answer to one who has proven `key` and asks to join. A refusal is counted by its cause.

        Args:
            host: an IP address; or, as of a broker, any other text for those whose address is not known.
        """
        who, now = _network(host), self._booted()
        if self._working >= AT_ONCE or self._refusals.left(who, now) < 1:
            return self._refuse(ProtocolError("busy", "too many questions of newcomers; try again in a while"))
        self._working += 1
        try:
            if await self._admit(key, decode_join(frame)):
                self._refusals.take(who, now)  # the long answer once more
        except ProtocolError as error:
            self._refusals.take(who, now)
            return self._refuse(error)
        except (FederationError, IdentityError, ConfigurationError, OSError) as error:
            self._refusals.take(who, now)
            self.refused("join failed", str(error))
            return encode_join(JoinRefused("the inviting node cannot do it now; its owner can see why"))
        finally:
            self._working -= 1
        return encode_join(Joined(self._membership.file.data, self._membership.encode()))

    def _refuse(self, error: ProtocolError) -> bytes:
        self.refused(error.cause, str(error))
        return encode_join(JoinRefused(str(error)[:256]))

    async def _admit(self, key: bytes, join: Join) -> bool:
        """Make a newcomer a member; return whether it was one already, and has lost the answer."""
        if not NAME.fullmatch(join.name):
            raise ProtocolError("malformed", "a name has letters, digits, '.', '_' and '-', 64 at most")
        note = await asyncio.to_thread(read_note, self._folder, join.secret)
        if self._file.changed():  # a command has added something, or this node has not read the file yet
            await self._with_log(self._file.merge)
        if not self._late(note) and self._may_join(note, key, join, self._membership):
            return True
        await self._with_log(partial(self._use, key=key, join=join))
        return False

    async def _with_log(self, work: Callable[[Membership], None]) -> None:
        """Do file work in a thread, with a copy of the log, and take in what the copy has then."""
        log = self._membership.copy()
        await asyncio.to_thread(work, log)
        self._membership.extend(log.after(self._membership.epoch, LIMIT))

    def _late(self, note: Note) -> bool:
        """Return whether a token that was not seen expired is so now."""
        return not note.expired and (self._now() > note.expires or self._booted() > note.until)

    def _may_join(self, note: Note, key: bytes, join: Join, log: Membership) -> bool:
        """Return whether the one who has used a token asks again; raise ProtocolError if it does not let this one in."""
        if note.used_by == key and not log.refusal(key):
            return True
        if note.used_by not in (b"", key):
            raise ProtocolError("invitation used", "a token is good for one node")
        if note.expired or self._now() > note.expires or self._booted() > note.until:
            raise ProtocolError("invitation expired", "ask for another one")
        if join.name != note.name:
            raise ProtocolError("other name", f"the token is for a node named {note.name}")
        try:
            check_name_is_free(log, note.name, note.reuse_name)
        except FederationError as error:
            raise ProtocolError("name taken", str(error)) from error
        if log.refusal(key) != "stranger":
            raise ProtocolError("known key", "this key is or was a member's; make another one")
        return False

    def _use(self, log: Membership, key: bytes, join: Join) -> None:
        """Add the newcomer to a copy of the log, and write both that and the token's note. In a thread.

        No other process adds to the log at the same time. The token and the name are looked at again: both may be taken now.
        """
        with as_configuration(), self._file.adding(log):
            note = read_note(self._folder, join.secret)
            write = partial(write_note, self._folder, join.secret)
            if self._late(note):
                write(msgspec.structs.replace(note, expired=True))
            if self._may_join(note, key, join, log):
                return
            if self._key is None or self._key.public != log.admission:
                self._key = admission_key.load(self._folder, log, self._passphrase)
            # Used first: after a crash in between only the node with this key can get in, when it asks again.
            write(msgspec.structs.replace(note, used_by=key))
            reached("invitation-used")
            log.append(self._key, "add", join.name, key, note.role)


def _network(host: str) -> bytes:
    """Return what stands for a host: its IPv4 address, or the /64 of its IPv6 address, which one host has as a whole."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host.encode()
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped.packed if address.ipv4_mapped else address.packed[:8]
    return address.packed
