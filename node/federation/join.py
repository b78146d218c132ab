"""Joining of a federation with a token: ask the inviting node, and save the files from its answer.

A token names the inviting node's key and the ways to reach it. `InviterClient` dials it in each way in turn, and accepts
no other node's answer. It first asks for the federation's file (`InviterClient.look`): the newcomer asks to become a member
only if its configuration and data fit (`check_data`), and if its owner accepts options that differ from the newcomer's
configuration (`differences`). What it gets is checked against the token before anything is saved.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from p2pfl._util.atomic_files import lock_folder
from p2pfl._util.binding import split_name
from p2pfl._util.disk import SYSTEM
from p2pfl._util.printable import plural, printable
from p2pfl._util.registry import resolve
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.node.connectivity import BROKER, through_broker
from p2pfl.node.federation import membership_changes
from p2pfl.node.federation.agreement import (
    Agreement,
    Approve,
    apply_agreement,
    approve_all,
    check_agreement,
    describe_demand,
)
from p2pfl.node.federation.loading import LoadedNode, find_own_modules, task_of
from p2pfl.node.federation.membership_changes import STOP_FIRST, watch_checkpoints
from p2pfl.node.federation.membership_file import FEDERATION, describe_refusal, load_federation
from p2pfl.node.folder import config, config_edit
from p2pfl.node.folder.config import NodeConfig
from p2pfl.policies import POLICIES
from p2pfl.protocols.addresses import PASSWORD, BrokerAddress
from p2pfl.protocols.errors import AddressError, FederationError, IdentityError, ProtocolError, RefusedError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import (
    INVITATION,
    Begin,
    Begun,
    Invitation,
    Join,
    Joined,
    JoinRefused,
    Look,
    Offered,
    Rest,
    decode_answer,
    encode_join,
)
from p2pfl.protocols.membership.log import LIMIT, LONGEST, Membership
from p2pfl.protocols.transport import Link
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.protocols.transports.tls_link import ANSWER
from p2pfl.task_specs import FACTORIES, TASKS

ANSWERING = 20.0  # seconds for the answer
PAUSE = 2.0  # seconds until a busy node is asked again
PAUSES = 1.0, 1.0, 2.0, 2.0, *6 * [4.0]  # seconds between attempts: a small machine needs time until it listens
NOT_CLOSED = socket.gaierror, ssl.SSLError  # a name that does not exist, and a port of another program
NOTHING = "nothing"
_KINDS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "task": (FACTORIES, "p2pfl.tasks"),
    "policy": (POLICIES, "p2pfl.policies"),
}


def join(
    folder: Path, token: str, approve: Approve = approve_all, *, notify: Callable[[str], None] = lambda text: None
) -> str:
    """Become a member, with a token or an admission; return the federation's name.

    The way to the inviting node is saved in node.toml for later runs, if it is not there: the node's address, or the
    broker through which it was reached.

    Args:
        approve: called before anything is saved.
        notify: called with sentences about waiting for the inviting node, the broker, and earlier training.

    Raises:
        ConfigurationError: the node runs, the token is wrong or for a node of another name, or the inviting node
            refuses. Also if the federation names another task or policy than this node's configuration, sets options
            that are the node's own, or is not approved.
        RunError: the inviting node cannot be reached.
    """
    own = config.load(folder)
    # Without its file, an earlier command was interrupted, or the file was lost: to join again restores it.
    if SYSTEM.exists(folder / FEDERATION) and (membership := load_federation(folder)) is not None:
        refusal = describe_refusal(membership, config.own_key(folder), folder)
        member = (
            f"{folder} belongs to the federation {membership.file.name} already; to join another one, or the one that was"
            f" created again, leave it first, which keeps {config.CONFIG} and the key: p2pfl-node federation leave {folder}"
        )
        raise ConfigurationError(refusal or member)
    with lock_folder(folder, STOP_FIRST):
        return _join(folder, own, token, approve, notify)


def _join(folder: Path, own: NodeConfig, token: str, approve: Approve, notify: Callable[[str], None]) -> str:
    """Become a member with the folder locked: a running node would write a checkpoint of its own training."""
    say_earlier = watch_checkpoints(folder, notify)
    try:
        identity = config.own_identity(folder)
        if not token.lstrip().startswith(INVITATION):
            name = membership_changes.accept_bundle(folder, token, own, identity.public, approve=approve)
            say_earlier()
            return name
        invitation = Invitation.parse(token)
        if invitation.member != own.name:
            raise ConfigurationError(
                f"the token is for a node named {invitation.member}, but name in {folder / config.CONFIG} is {own.name}"
            )
        client = InviterClient(invitation, identity, own.name, notify=notify)
        groups: Sequence[Sequence[Way]] = ways_to(invitation, own.broker, notify=notify)
        if (found := asyncio.run(client.look(*groups))) is not None:  # otherwise its owner decides as a member already
            offered, way = found
            groups = [[way]]
            file = Federation.parse(offered.file)
            if file.id != invitation.federation:
                raise FederationError("the answer of the inviting node belongs to another federation than the token")
            approve(own, msgspec.structs.replace(check_agreement(own, file), rounds=offered.rounds))
            approve = approve_all
        joined, way = asyncio.run(client.ask(*groups))
        name = membership_changes.accept(folder, joined, invitation, own, identity.public, approve=approve)
    except TransportError as error:
        raise RunError(f"cannot join: {error}") from error
    except (FederationError, IdentityError, AddressError) as error:
        raise ConfigurationError(f"cannot join: {error}") from error
    say_earlier()
    if way.broker is not None:
        _keep_broker(folder, own.broker, way.broker, notify)
    else:
        _keep_address(folder, own, invitation.inviter, way.address, notify)
    return name


def _keep_address(folder: Path, own: NodeConfig, inviter: bytes, address: str, notify: Callable[[str], None]) -> None:
    """Save the address of the inviting node, which other networks than the local one do not announce."""
    membership = load_federation(folder)
    names = [name for name, member in membership.members.items() if member.key == inviter] if membership else []
    if not names or names[0] in own.addresses:
        return
    try:
        config_edit.set_text(folder, names[0], address, table="addresses")
    except ConfigurationError as error:
        notify(f"joined, but the address of {names[0]} was not saved: {error}")


def _keep_broker(folder: Path, own: str, used: BrokerAddress, notify: Callable[[str], None]) -> None:
    """Save the broker through which the node has joined, unless node.toml has another one."""
    before, place = BrokerAddress.parse(own) if own else None, printable(used.short_url)
    if before == used:
        return
    if before is not None and not before.is_same_place(used):
        notify(f"joined through the broker {place}, but broker in node.toml is {before.short_url}")
        return
    try:
        config_edit.set_text(folder, "broker", used.url)
        notify(f"saved the broker {place} in {folder / config.CONFIG}")
    except ConfigurationError as error:
        notify(f"joined, but the broker was not saved: {error}")


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
    stored = 0
    fork = None
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


class _InviterRefusedError(ConfigurationError):
    """The inviting node refuses a question.

    Attributes:
        reason: its words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot join: {printable(reason)}")
        self.reason = reason


class InviterClient:
    """Dials the node that made a token, in every way that it names, and asks to join.

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
        self._name = name
        self._notify = notify
        self._pauses = PAUSES if pauses is None else pauses
        self._sleep = sleep
        self._problems: list[str] = []
        self._refused = False  # whether it refuses this node
        self._closed = False  # whether the machine of the inviting node has answered, but the port was closed

    async def look(self, *groups: Sequence[Way]) -> tuple[Offered, Way] | None:
        """Ask for the federation's file before this node becomes a member; None if the inviting node is too old for that.

        See `ask` for the arguments and the errors.
        """
        try:
            answer, way = await self._ask(Look(self._invitation.secret, self._name), groups)
        except _InviterRefusedError as error:
            if error.reason.startswith("malformed"):  # an earlier version knows no such question
                return None
            raise
        if not isinstance(answer, Offered):
            raise FederationError("the inviting node has answered another question")
        return answer, way

    async def ask(self, *groups: Sequence[Way]) -> tuple[Joined | Begun, Way]:
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
        try:
            answer, way = await self._ask(Begin(self._invitation.secret, self._name), groups)
        except _InviterRefusedError as error:
            if not error.reason.startswith("malformed"):
                raise
            answer, way = await self._ask(Join(self._invitation.secret, self._name), groups)  # an earlier version
        if isinstance(answer, Offered):
            raise FederationError("the inviting node has answered another question")
        return answer if isinstance(answer, Begun) else await self._complete(answer, way), way

    async def _complete(self, joined: Joined, way: Way) -> Joined:
        """Return an answer with all entries of the log up to the newcomer's, which may not have fitted into it.

        Each piece is verified before the next one is asked for. What is wrong in one is left to `accept`, which says it.
        """
        if len(joined.log) <= LIMIT - LONGEST:
            return joined
        try:
            log = Membership(Federation.parse(joined.file), joined.log)
            while log.refusal(self._identity.public) == "stranger":
                question = Rest(self._invitation.secret, self._name, log.membership_version)
                answer, _ = await self._ask(question, [[way]])
                if not isinstance(answer, Joined) or not log.extend(answer.log):
                    break
        except (FederationError, ProtocolError):
            return joined
        return Joined(joined.file, log.encode())

    async def _ask(
        self, question: Join | Begin | Look | Rest, groups: Sequence[Sequence[Way]]
    ) -> tuple[Joined | Begun | Offered, Way]:
        """Ask a question over the first way that works; see `ask`."""
        request = encode_join(question)
        if (found := await self._ask_over(request, groups)) is not None:
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
            if (found := await self._ask_over(request, groups)) is not None:
                return found
        problems = printable("; ".join(dict.fromkeys(self._problems)))
        if self._refused:
            raise TransportError(f"the inviting node does not answer this token ({problems})")
        raise TransportError(f"the inviting node is not reachable; it must run when you join ({problems})")

    async def _ask_over(
        self, request: bytes, groups: Sequence[Sequence[Way]]
    ) -> tuple[Joined | Begun | Offered, Way] | None:
        """Ask over each group of ways until one works; return None if none does.

        Raises:
            ConfigurationError: the inviting node refuses.
            FederationError: its answer is invalid.
        """
        for ways in groups:
            try:
                async with asyncio.timeout(ANSWERING):
                    while (found := await self._ask_once(request, ways)) is not None:
                        answer, way = found
                        if not isinstance(answer, JoinRefused):
                            return answer, way
                        if not answer.reason.startswith("busy"):
                            raise _InviterRefusedError(answer.reason)
                        await asyncio.sleep(PAUSE)
            except TimeoutError:
                self._problems.append(f"no answer within {ANSWERING:g} s")
        return None

    async def _ask_once(
        self, request: bytes, ways: Sequence[Way]
    ) -> tuple[Joined | Begun | Offered | JoinRefused, Way] | None:
        """Dial over all ways, and ask over the first that works; return None if none does."""
        async with AsyncExitStack() as stack:
            attempts = [asyncio.ensure_future(self._dial(way, stack)) for way in ways]
            try:
                for attempt in asyncio.as_completed(attempts):
                    try:
                        way, link, waiter = await attempt
                        link.send([request])
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


class Difference(NamedTuple):
    """Option that differs between a federation and a node's configuration.

    Attributes:
        key: key of the option, such as "task.samples".
        theirs, ours: values as text; `NOTHING` if there is neither a value nor a default.
    """

    key: str
    theirs: str
    ours: str


def summary(agreement: Agreement) -> list[str]:
    """Return a federation's settings as lines for people."""
    lines = [f"settings of the federation {agreement.name}:"]
    for kind in _KINDS:
        name, options = split_name(kind, getattr(agreement, kind))
        words = ", ".join(f"{printable(key)} = {_format_value(value)}" for key, value in options.items())
        lines.append(f"  {kind} {printable(name)}{': ' + words if words else ''}")
    values = agreement.model.values
    lines.append(f"  model of {values:,} values ({4 * values / 1e6:,.2f} MB), {plural(agreement.rounds, 'round')}")
    return [*lines, *(f"  {key}: {text}" for key, text in describe_demand(agreement).items())]


def differences(own: NodeConfig, agreement: Agreement, folder: Path) -> list[Difference]:
    """Return the options of task and policy that differ between a federation and a node's configuration.

    A missing option counts with the default of the task or policy, which is imported to find it. The node's owner has
    named it too (see p2pfl.node.federation.agreement.apply_agreement). The task of a node's own file is an exception: its
    options say how files are read and learned, so that an option that the owner has not set is the federation's, and one
    that only says what is in the file (p2pfl.task_specs.TaskSpec.listed) does not differ. `check_data` reads the file with
    the federation's options.
    """
    found = []
    for kind in _KINDS:
        name, theirs = split_name(kind, getattr(agreement, kind))
        _, ours = split_name(kind, getattr(own, kind))
        if theirs == ours:
            continue
        find_own_modules(folder, own)
        default = _defaults(kind, name)
        spec = TASKS.get(name) if kind == "task" else None
        of_file = spec is not None and bool(spec.derived)
        for key in sorted({*ours} - {*spec.listed} if spec is not None and of_file else {*theirs, *ours}):
            here, there = (options.get(key, default.get(key, Parameter.empty)) for options in (ours, theirs))
            if here != there:
                found.append(Difference(printable(f"{kind}.{key}"), _format_value(there), _format_value(here)))
    return found


def check_data(own: NodeConfig, agreement: Agreement, folder: Path) -> None:
    """Check that this node's data has the sizes and columns of the federation, if its task takes them from the data.

    Data that is not there yet is checked when the node runs.

    Raises:
        ConfigurationError: the data does not fit the federation.
    """
    spec = TASKS.get(agreement.task["name"])
    if spec is not None and spec.derived and own.data and Path(own.data).expanduser().exists():
        try:
            task_of(LoadedNode(folder, apply_agreement(own, agreement), None, agreement))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}; if the data are right, the federation must be created again with them, as in"
                " docs/how-to/manage-nodes.md; otherwise correct them, and run the same command again: the admission, or"
                " the token until it expires, remains valid for this node"
            ) from error


def _defaults(kind: str, name: str) -> dict[str, Any]:
    """Return the options of a task or policy that have a default; none if it cannot be imported."""
    try:
        parameters = signature(resolve(kind, name, *_KINDS[kind])).parameters.values()
    except (ConfigurationError, ValueError):
        return {}
    return {each.name: each.default for each in parameters if each.default is not Parameter.empty}


def _format_value(value: Any) -> str:
    return NOTHING if value is Parameter.empty else "none" if value is None or value in ((), []) else repr(value)
