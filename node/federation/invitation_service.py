"""Answers of a running node to newcomers with a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import admission_key, passphrases
from p2pfl.node.federation.admission import adding
from p2pfl.node.federation.invitations import Clock
from p2pfl.node.federation.token_redeemer import TokenRedeemer
from p2pfl.node.log import LOG
from p2pfl.node.peering.newcomers import JoinReply
from p2pfl.protocols.addresses import network
from p2pfl.protocols.errors import FederationError, IdentityError, ProtocolError
from p2pfl.protocols.membership.federation_file import NAME
from p2pfl.protocols.membership.invitation import Join, Joined, JoinRefused, decode_join, encode_join
from p2pfl.protocols.membership.log import LIMIT, Membership
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.system.boot_clock import boot_clock
from p2pfl.system.event_log import EventLogger

AT_ONCE = 4  # requests of newcomers processed in parallel; further ones are refused as "busy"
REFUSALS, RECOVERY = 10, 0.5  # refusals of one host in a row, and additional ones per second


class InvitationService:
    """Service that answers newcomers with a token on a running node.

    A refusal costs only a small file access and a look-up in memory. Files are read and written in threads. Neither a
    slow disk nor another process that holds the lock of the log therefore blocks the node's other work.

    Args:
        membership: the node's membership log. It gets an entry once that is on disk, and its callbacks pass the entry
            on.
        booted: returns the seconds since the machine was started.
    """

    def __init__(
        self,
        redeemer: TokenRedeemer,
        membership: Membership,
        *,
        booted: Clock = boot_clock,
    ) -> None:
        self._redeemer = redeemer
        self._membership = membership
        self._booted = booted
        self._working = 0
        self._refusals = TokenBucket(RECOVERY, REFUSALS)

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
            if await self._admit(key, decode_join(frame)):
                self._refusals.take(who, now)  # repeating the answer is expensive, because it is long
        except ProtocolError as error:
            self._refusals.take(who, now)
            return _refusal(error)
        except (FederationError, IdentityError, ConfigurationError, OSError) as error:
            self._refusals.take(who, now)
            refused = JoinRefused("the inviting node has a problem, which its log names; ask its owner")
            return JoinReply(encode_join(refused), "join failed", str(error))
        finally:
            self._working -= 1
        return JoinReply(encode_join(Joined(self._membership.file.data, self._membership.encode())))

    async def _admit(self, key: bytes, join: Join) -> bool:
        """Make a newcomer a member; return whether it was one already and had lost the answer."""
        if not NAME.fullmatch(join.name):
            raise ProtocolError("malformed", "the name of a node has at most 64 letters, digits, '.', '_' and '-'")
        redeemer = self._redeemer
        note = await asyncio.to_thread(redeemer.read_note, join.secret)
        if redeemer.has_news():  # a command has added entries, or this node has not read the file yet
            await self._with_log(redeemer.read_news)
        if redeemer.may_come_back(note, self._membership, key, join.name):
            return True
        await self._with_log(partial(redeemer.redeem, key=key, join=join))
        return False

    async def _with_log(self, work: Callable[[Membership], None]) -> None:
        """Do file work in a thread with a copy of the log, and add its new entries to the log."""
        log = self._membership.copy()
        await asyncio.to_thread(work, log)
        self._membership.extend(log.after(self._membership.membership_version, LIMIT))


def _refusal(error: ProtocolError) -> JoinReply:
    return JoinReply(encode_join(JoinRefused(str(error)[:256])), error.cause, str(error))


def open_service(
    folder: Path, membership: Membership, passphrase_file: str, log: EventLogger = LOG
) -> tuple[InvitationService | None, str]:
    """Return the invitation service of a node, and permit newcomers to ask.

    Args:
        log: receives an event if the key cannot be decrypted.

    Returns:
        The service; None if the node has no admission key, or cannot decrypt it. The second value says why it cannot.
    """
    if not admission_key.may_admit(folder):
        return None, ""
    try:
        passphrase = None
        if admission_key.is_encrypted(folder):
            passphrase = passphrases.present(folder / admission_key.ADMISSION, passphrase_file)
            with adding(folder) as entries:
                admission_key.load(folder, entries, passphrase)
    except ConfigurationError as error:
        log.warning(f"cannot answer invitation tokens: {error}; p2pfl-node admit still works", kind="tokens-unanswered")
        return None, str(error)
    membership.invites = True
    return InvitationService(TokenRedeemer(folder, passphrase), membership), ""
