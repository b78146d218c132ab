"""Joining of a federation: ask the inviting node with a token, and save the files from its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from p2pfl.errors import ConfigurationError, RunError
from p2pfl.node.federation import admission
from p2pfl.node.federation.agreement import Approve, approve_all
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.federation.revocation import describe_refusal
from p2pfl.node.folder import config, config_edit
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.folder.earlier_training import STOP_FIRST, watch_checkpoints
from p2pfl.node.runtime.inviter_client import InviterClient, ways_to
from p2pfl.protocols.broker_address import BrokerAddress
from p2pfl.protocols.errors import AddressError, FederationError, IdentityError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import INVITATION, Invitation
from p2pfl.system.atomic_files import lock_folder
from p2pfl.system.printable import printable


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
    if (membership := load_federation(folder)) is not None:
        refusal = describe_refusal(membership, config.own_key(folder), folder)
        member = f"{folder} belongs to a federation already; create another node with p2pfl-node init"
        raise ConfigurationError(refusal or member)
    with lock_folder(folder, STOP_FIRST):
        return _join(folder, own, token, approve, notify)


def _join(folder: Path, own: NodeConfig, token: str, approve: Approve, notify: Callable[[str], None]) -> str:
    """Become a member with the folder locked: a running node would write a checkpoint of its own training."""
    say_earlier = watch_checkpoints(folder, notify)
    try:
        identity = Identity.load(folder / config.KEY)
        if not token.lstrip().startswith(INVITATION):
            name = admission.accept_bundle(folder, token, own, identity.public, approve=approve)
            say_earlier()
            return name
        invitation = Invitation.parse(token)
        if invitation.member != own.name:
            raise ConfigurationError(
                f"the token is for a node named {invitation.member}, but name in {folder / config.CONFIG} is {own.name}"
            )
        client = InviterClient(invitation, identity, own.name, notify=notify)
        joined, way = asyncio.run(client.ask(*ways_to(invitation, own.broker, notify=notify)))
        name = admission.accept(folder, joined, invitation, own, identity.public, approve=approve)
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
