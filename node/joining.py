"""How a node becomes a member: it dials who has invited it, shows the token, and keeps what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from node import admission, config
from node.config import NodeConfig
from p2pfl.errors import ConfigurationError
from protocols.addresses import is_loopback, join_address, split_address
from protocols.errors import AddressError, FederationError, IdentityError, TransportError
from protocols.identity import Identity
from protocols.invitation import Invitation, Join, Joined, JoinRefused, decode_answer, encode_join
from protocols.mdns import interface_hosts
from protocols.tls import TlsTransport
from protocols.transport import Link

ANSWERING = 20.0  # seconds for the answer


class _NoMember:
    """The gate of one who is no member yet: it lets nobody in."""

    epoch = 0
    invites = False

    def __init__(self, federation: bytes) -> None:
        self.federation = federation

    def refusal(self, key: bytes) -> str:
        return "stranger"

    def after(self, epoch: int, limit: int) -> bytes:
        return b""

    def extend(self, entries: bytes) -> int:
        return 0


class _Ear:
    """Waits for one answer."""

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
    """Return where an invited node finds this one: as given, or as configured, or at this machine's addresses.

    Raises:
        ConfigurationError: nobody else could reach it there, or one is malformed.
    """
    own = config.load(folder)
    try:
        for address in given:
            split_address(address)
        host, port = split_address(own.listen)
    except AddressError as error:
        raise ConfigurationError(str(error)) from error
    if given or own.advertise:
        return list(given or own.advertise)
    if not port:
        raise ConfigurationError("node.toml listens on port 0, which is another one at every start; name a port")
    hosts = [host] if host and host not in ("0.0.0.0", "::") else interface_hosts()
    found = [join_address(each, port) for each in hosts if not is_loopback(each) or host]
    if not found and not own.broker:
        raise ConfigurationError("this machine has no address that others could reach; name one with --address")
    return [*found[:7], *([own.broker] if own.broker else [])] or [join_address("127.0.0.1", port)]


def join(folder: Path, token: str) -> str:
    """Become a member, with a token or an admission; return the federation's name.

    Raises:
        ConfigurationError: the token is wrong, nobody answers, the one who has invited refuses, or the federation has
            another task or policy than this node's configuration names.
    """
    own = config.load(folder)
    if admission.load_federation(folder) is not None:
        raise ConfigurationError(f"{folder} belongs to a federation already; a node belongs to one")
    try:
        identity = Identity.load(folder / config.KEY)
        if not token.lstrip().startswith("p2pfl-invite-"):
            return admission.accept_bundle(folder, token, own, identity.public)
        invitation = Invitation.parse(token)
        joined = asyncio.run(_ask(invitation, identity, own))
        return admission.accept(folder, joined, invitation, own, identity.public)
    except (FederationError, IdentityError, TransportError) as error:
        raise ConfigurationError(f"cannot join: {error}") from error


async def _ask(invitation: Invitation, identity: Identity, own: NodeConfig) -> Joined:
    """Ask the node that has invited, wherever it answers."""
    problems = []
    for address in invitation.addresses:
        ear = _Ear()
        transport = TlsTransport("127.0.0.1:0", identity, _NoMember(invitation.federation), 0)
        transport.use(ear)
        try:
            async with asyncio.timeout(ANSWERING):
                link = await transport.dial(address, invitation.inviter, joining=True)
                link.send([encode_join(Join(invitation.secret, own.name))])
                answer = decode_answer(await ear.answer)
        except (TransportError, TimeoutError) as error:
            problems.append(str(error) or f"{address} does not answer")
            continue
        finally:
            await transport.close()
        if isinstance(answer, JoinRefused):
            raise TransportError(answer.reason)
        return answer
    raise TransportError(f"the node that has invited must be running, and be reached: {'; '.join(problems)}")
