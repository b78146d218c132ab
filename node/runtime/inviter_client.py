"""Client of an inviting node: it dials the node in every way that a token names, and asks to join."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NamedTuple

from p2pfl.errors import ConfigurationError
from p2pfl.node.runtime.connectivity import BROKER, through_broker
from p2pfl.protocols.broker_address import PASSWORD, BrokerAddress
from p2pfl.protocols.errors import AddressError, RefusedError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Invitation, Join, Joined, JoinRefused, decode_answer, encode_join
from p2pfl.protocols.transport import Link
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.protocols.transports.tls_link import ANSWER
from p2pfl.system.printable import printable

ANSWERING = 20.0  # seconds for the answer
PAUSE = 2.0  # seconds until a busy node is asked again
PAUSES = 1.0, 1.0, 2.0, 2.0, *6 * [4.0]  # seconds between attempts: a small machine needs time until it listens
NOT_CLOSED = socket.gaierror, ssl.SSLError  # a name that does not exist, and a port of another program


class Way(NamedTuple):
    """Way to the inviting node: directly at an address, or through a broker.

    Attributes:
        address: address to dial; "" for a broker.
        broker: None for a direct way.
    """

    address: str
    broker: BrokerAddress | None = None


class _OnlyInviter:
    """Access control of a node that is not a member yet: it knows only the node that invites it."""

    membership_version = 0
    invites = False

    def __init__(self, invitation: Invitation) -> None:
        self.federation = invitation.federation
        self._inviter = invitation.inviter

    def refusal(self, key: bytes) -> str:
        return "" if key == self._inviter else "stranger"

    def after(self, membership_version: int, limit: int) -> bytes:
        return b""

    def extend(self, entries: bytes) -> int:
        return 0

    def revocation(self, key: bytes) -> bytes:
        return b""

    def accept_revocation(self, key: bytes, proof: bytes) -> bool:
        return False


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


class _Dialled(NamedTuple):
    way: Way
    link: Link
    waiter: _AnswerWaiter


def ways_to(
    invitation: Invitation,
    own_broker: str,
    *,
    notify: Callable[[str], None] = lambda text: None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[list[Way], list[Way]]:
    """Return the direct ways to the inviting node, and the ways through brokers.

    An account is used only at the node's own broker: a token must not direct a password to another one. Nor does a
    token decide which certificate that broker must show, because it could name the one of an attacker.

    Args:
        own_broker: URL of the broker in the newcomer's configuration; "" for none.
        notify: called with a sentence if the token has a fingerprint that is not used.
        environment: may hold the password, in P2PFL_MQTT_PASSWORD.

    Raises:
        AddressError: an address of the token or the URL is malformed.
    """
    direct = [Way(address) for address in invitation.addresses if not address.startswith("mqtt")]
    named = [BrokerAddress.parse(address) for address in invitation.addresses if address.startswith("mqtt")]
    if not own_broker:
        return direct, [Way("", BrokerAddress.parse(broker.public_url)) for broker in named]
    own, ways = BrokerAddress.parse(own_broker), []
    for broker in named:
        if not broker.is_same_place(own):
            ways.append(Way("", BrokerAddress.parse(broker.public_url)))
        elif broker.fingerprint and not own.fingerprint and own.scheme == broker.scheme:
            if own.user or own.password or environment.get(PASSWORD):
                pin = f"#sha256={broker.fingerprint.hex()}"
                notify(f"ignored the broker's fingerprint in the token; if it is right, add {pin} to broker in node.toml")
            else:
                own = replace(own, fingerprint=broker.fingerprint)
    return direct, [Way("", own), *ways] if named else []


class InviterClient:
    """Client of the node that made a token.

    Args:
        name: name of the newcomer.
        notify: called with a sentence if the node does not listen yet, and is dialled again.
        pauses: seconds before each further attempt to reach it; PAUSES if None.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        invitation: Invitation,
        identity: Identity,
        name: str,
        *,
        notify: Callable[[str], None] = lambda text: None,
        pauses: Sequence[float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._invitation = invitation
        self._identity = identity
        self._access = _OnlyInviter(invitation)
        self._request = encode_join(Join(invitation.secret, name))
        self._notify = notify
        self._pauses = PAUSES if pauses is None else pauses
        self._sleep = sleep
        self._problems: list[str] = []
        self._refused = False  # whether it refuses this node
        self._closed = False  # whether the machine of the inviting node has answered, but the port was closed

    async def ask(self, *groups: Sequence[Way]) -> tuple[Joined, Way]:
        """Ask to join over the first way that works; return the answer and that way.

        A node that was started just now listens after some seconds. If its port is closed, it is dialled again. Through a
        broker this is not necessary, because a dial waits for the node.

        Args:
            groups: ways that are tried at the same time; those of a later group only if no earlier one works.

        Raises:
            ConfigurationError: the inviting node refuses.
            TransportError: it cannot be reached.
            FederationError: its answer is invalid.
        """
        if (found := await self._ask_over(groups)) is not None:
            return found
        through_broker = any(way.broker is not None for ways in groups for way in ways)
        for number, pause in enumerate(() if through_broker else self._pauses):
            if not self._closed:
                break
            if not number:
                addresses = printable(", ".join(self._invitation.addresses))
                self._notify(f"waiting for the inviting node to listen at {addresses}, at most {sum(self._pauses):g} s")
            await self._sleep(pause)
            self._problems, self._closed = [], False
            if (found := await self._ask_over(groups)) is not None:
                return found
        problems = printable("; ".join(dict.fromkeys(self._problems)))
        if self._refused:
            raise TransportError(f"the inviting node does not answer this token ({problems})")
        raise TransportError(f"the inviting node is not reachable; it must run when you join ({problems})")

    async def _ask_over(self, groups: Sequence[Sequence[Way]]) -> tuple[Joined, Way] | None:
        """Ask over each group of ways until one works; return None if none does.

        Raises:
            ConfigurationError: the inviting node refuses.
            FederationError: its answer is invalid.
        """
        for ways in groups:
            try:
                async with asyncio.timeout(ANSWERING):
                    while (found := await self._ask_once(ways)) is not None:
                        answer, way = found
                        if isinstance(answer, Joined):
                            return answer, way
                        if not answer.reason.startswith("busy"):
                            raise ConfigurationError(f"cannot join: {printable(answer.reason)}")
                        await asyncio.sleep(PAUSE)
            except TimeoutError:
                self._problems.append(f"no answer within {ANSWERING:g} s")
        return None

    async def _ask_once(self, ways: Sequence[Way]) -> tuple[Joined | JoinRefused, Way] | None:
        """Dial over all ways, and ask over the first that works; return None if none does."""
        async with AsyncExitStack() as stack:
            attempts = [asyncio.ensure_future(self._dial(way, stack)) for way in ways]
            try:
                for attempt in asyncio.as_completed(attempts):
                    try:
                        way, link, waiter = await attempt
                        link.send([self._request])
                        return decode_answer(await waiter.answer), way
                    except (TransportError, AddressError, ConfigurationError) as error:
                        self._problems.append(str(error))
                        self._refused |= isinstance(error, RefusedError)
                        self._closed |= isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, NOT_CLOSED)
            finally:
                for each in attempts:
                    each.cancel()
                await asyncio.gather(*attempts, return_exceptions=True)
        return None

    async def _dial(self, way: Way, stack: AsyncExitStack) -> _Dialled:
        waiter, inviter = _AnswerWaiter(), self._invitation.inviter
        if way.broker is None:
            transport = TlsTransport("127.0.0.1:0", self._identity, self._access, ANSWER)
            stack.push_async_callback(transport.close)
            transport.use(waiter)
            return _Dialled(way, await transport.dial(way.address, inviter, joining=True), waiter)
        broker = through_broker(way.broker.url, self._identity, self._access, ANSWER, greeting=ANSWER)
        stack.push_async_callback(broker.close)
        await broker.listen(waiter)
        try:
            return _Dialled(way, await broker.dial(BROKER, inviter, joining=True), waiter)
        except TransportError as error:
            if broker.problem in str(error):
                raise
            raise TransportError(f"{error}: {broker.problem}") from None
