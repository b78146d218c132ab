"""Joining of a federation: dial the inviting node, send the token, and save the files from its answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import admission, loading
from p2pfl.node.federation.agreement import Approve, approve_all
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.federation.revocation import check_member
from p2pfl.node.folder import config
from p2pfl.node.folder.config import BROKERS, NodeConfig
from p2pfl.node.runtime.connectivity import BROKER, check_connectivity, own_addresses, through_broker, without_user
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import AddressError, FederationError, IdentityError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import (
    MOST_ADDRESSES,
    Invitation,
    Join,
    Joined,
    JoinRefused,
    decode_answer,
    encode_join,
)
from p2pfl.protocols.transport import Link, Transport
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.protocols.transports.tls_link import ANSWER
from p2pfl.random_streams import RandomStreams
from p2pfl.system.atomic_files import is_folder_locked
from p2pfl.system.printable import printable

ANSWERING = 20.0  # seconds for the answer
PAUSE = 2.0  # seconds until a busy node is asked again


class _NoMember:
    """Access control of a node that is not a member yet: it admits no other node."""

    membership_version = 0
    invites = False

    def __init__(self, federation: bytes) -> None:
        self.federation = federation

    def refusal(self, key: bytes) -> str:
        return "stranger"

    def after(self, membership_version: int, limit: int) -> bytes:
        return b""

    def extend(self, entries: bytes) -> int:
        return 0


class _AnswerWaiter:
    """Handler that waits for one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def received(self, link: Link, frame: memoryview) -> None:
        if not self.answer.done():
            self.answer.set_result(bytes(frame))

    def drained(self, link: Link) -> None: ...

    def lost(self, link: Link, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(TransportError(reason))

    def refused(self, cause: str, detail: str) -> None: ...


def addresses(folder: Path, given: Sequence[str]) -> list[str]:
    """Return the addresses for the invited node to dial: the given ones, the configured ones, or those of this machine.

    Raises:
        ConfigurationError: no other node could reach this one there, or an address is malformed.
    """
    own = config.load(folder)
    try:
        for address in given:
            if not BROKERS.match(address):
                split_address(address)
        _, port = split_address(own.listen)
    except AddressError as error:
        raise ConfigurationError(str(error)) from error
    if given:
        return list(given)
    if not port:
        raise ConfigurationError(
            "listen in node.toml has port 0, which changes at every start; set a port such as 4100, or use --address"
        )
    found = own_addresses(own, own.listen)
    if own.broker:
        found.append(without_user(own.broker))  # the newcomer has its own account
    if not found:
        raise ConfigurationError("this machine has no address that others can reach; give one with --address")
    return [*found[: MOST_ADDRESSES - 1], found[-1]] if len(found) > MOST_ADDRESSES else found


def check_can_run(folder: Path) -> None:
    """Check that the inviting node can run, because it must run to answer a token. Do nothing if it runs already.

    Raises:
        ConfigurationError: it cannot run; the text gives the reason.
    """
    if os.name == "posix" and is_folder_locked(folder):
        return
    try:
        ready = loading.load(folder)
        if ready.membership is not None:
            check_member(ready.membership, config.own_key(folder))
        check_connectivity(ready.config)
        loading.policy_of(ready)
        own = ready.config
        loading.task_of(ready).learner(RandomStreams(own.seed, own.name), own.device)
    except ConfigurationError as error:
        raise ConfigurationError(f"no token was made, because this node could not run to answer it: {error}") from error


def join(folder: Path, token: str, approve: Approve = approve_all) -> str:
    """Become a member, with a token or an admission; return the federation's name.

    Args:
        approve: called before anything is saved.

    Raises:
        ConfigurationError: the token is wrong or for a node of another name, no node answers, or the inviting node
            refuses. Also if the federation names another task or policy than this node's configuration, sets options
            that are the node's own, or is not approved.
    """
    own = config.load(folder)
    if load_federation(folder) is not None:
        raise ConfigurationError(f"{folder} belongs to a federation already; create another node with p2pfl-node init")
    try:
        identity = Identity.load(folder / config.KEY)
        if not token.lstrip().startswith("p2pfl-invite-"):
            return admission.accept_bundle(folder, token, own, identity.public, approve=approve)
        invitation = Invitation.parse(token)
        if invitation.member != own.name:
            raise ConfigurationError(
                f"the token is for a node named {invitation.member}, but name in {folder / config.CONFIG} is {own.name}"
            )
        joined = asyncio.run(_ask(invitation, identity, own))
        return admission.accept(folder, joined, invitation, own, identity.public, approve=approve)
    except (FederationError, IdentityError, TransportError) as error:
        raise ConfigurationError(f"cannot join: {error}") from error


async def _ask(invitation: Invitation, identity: Identity, own: NodeConfig) -> Joined:
    """Ask the inviting node at each of its addresses, and again while it is busy."""
    problems = []
    for address in invitation.addresses:
        try:
            async with asyncio.timeout(ANSWERING):
                while isinstance(answer := await _ask_at(address, invitation, identity, own), JoinRefused):
                    if not answer.reason.startswith("busy"):
                        raise ConfigurationError(f"cannot join: {printable(answer.reason)}")
                    await asyncio.sleep(PAUSE)
                return answer
        except (TransportError, TimeoutError) as error:
            problems.append(str(error) or f"{address} did not answer within {ANSWERING:g} s")
    raise TransportError(f"the inviting node is not reachable; it must run when you join ({'; '.join(problems)})")


async def _ask_at(address: str, invitation: Invitation, identity: Identity, own: NodeConfig) -> Joined | JoinRefused:
    waiter = _AnswerWaiter()
    transport, where = _transport_for(address, invitation, identity, own)
    try:
        if isinstance(transport, TlsTransport):
            transport.use(waiter)
        else:
            await transport.listen(waiter)
        link = await transport.dial(where, invitation.inviter, joining=True)
        link.send([encode_join(Join(invitation.secret, own.name))])
        return decode_answer(await waiter.answer)
    finally:
        await transport.close()


def _transport_for(address: str, invitation: Invitation, identity: Identity, own: NodeConfig) -> tuple[Transport, str]:
    """Return a transport for one of the addresses of an invitation, and the address to dial with it."""
    access = _NoMember(invitation.federation)
    if not address.startswith("mqtt"):
        return TlsTransport("127.0.0.1:0", identity, access, ANSWER), address
    return through_broker(own.broker or address, identity, access, ANSWER, greeting=ANSWER), BROKER
