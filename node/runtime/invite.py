"""Inviting side of joining: the addresses in a token, and whether this node can run to answer it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from p2pfl._util.atomic_files import is_folder_locked, reason
from p2pfl.errors import ConfigurationError
from p2pfl.node.connectivity import check_connectivity, own_addresses
from p2pfl.node.federation import loading
from p2pfl.node.federation.membership_file import check_member
from p2pfl.node.folder import config
from p2pfl.node.folder.config import BROKERS, NodeConfig
from p2pfl.node.status import reader
from p2pfl.protocols.addresses import BrokerAddress, split_address
from p2pfl.protocols.errors import AddressError
from p2pfl.protocols.membership.invitation import MOST_ADDRESSES
from p2pfl.random_streams import RandomStreams

CONNECTING = 5.0  # seconds for the broker to show its certificate
OWN_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # variables that name other authorities than those of the system


def addresses(folder: Path, given: Sequence[str]) -> list[str]:
    """Return the addresses for the invited node to dial: the given ones, the configured ones, or those of this machine.

    A broker's address has no account, because the newcomer has its own. It has the fingerprint of the broker's
    certificate if this node trusts the certificate for a reason of its own.

    Raises:
        ConfigurationError: no other node could reach this one there, an address is malformed, or this machine cannot
            verify the certificate of a broker.
    """
    own = _as_running(folder, config.load(folder))
    try:
        if given:
            return [_for_newcomer(address, own) for address in given]
        found = _direct_addresses(own)
        if own.broker:
            found = [*found[: MOST_ADDRESSES - 1], _for_newcomer(own.broker, own)]
    except AddressError as error:
        raise ConfigurationError(str(error)) from error
    if not found:
        raise ConfigurationError("this machine has no address that others can reach; give one with --address")
    return found[:MOST_ADDRESSES]


def describe_addresses(addresses: Sequence[str]) -> str:
    """Return where a newcomer reaches the node at the addresses of a token, as the end of a sentence."""
    direct = [address for address in addresses if not BROKERS.match(address)]
    brokers = [address for address in addresses if BROKERS.match(address)]
    ways = [("at", direct), ("through the broker at", brokers)]
    return " or ".join(f"{how} {', '.join(named)}" for how, named in ways if named)


def _as_running(folder: Path, own: NodeConfig) -> NodeConfig:
    """Return a configuration with the ways to the node while it runs or starts, which options of `run` can have set."""
    state = reader.current_if_readable(folder)
    network = state.get("network") or state.get("configured_network") or {}
    if state.get("state") not in reader.RUNNING or not network:
        return own
    direct, broker = bool(network.get("listen")), network.get("broker", own.broker)
    return msgspec.structs.replace(own, listen=network.get("listen") or own.listen, direct=direct, broker=broker)


def _direct_addresses(own: NodeConfig) -> list[str]:
    """Return the addresses at which a newcomer may reach this node without a broker."""
    _, port = split_address(own.listen)
    if not own.direct or (own.broker and not port):
        return []
    if not port:
        raise ConfigurationError(
            "listen in node.toml has port 0, which changes at every start; set a port such as 4100, or use --address"
        )
    return own_addresses(own, own.listen)


def _for_newcomer(address: str, own: NodeConfig) -> str:
    if not BROKERS.match(address):
        split_address(address)
        return address
    broker, known = BrokerAddress.parse(address), BrokerAddress.parse(own.broker) if own.broker else None
    if not broker.fingerprint and known is not None and broker.is_same_place(known):
        broker = replace(broker, fingerprint=known.fingerprint)
    return _with_fingerprint(broker).public_url


def _with_fingerprint(broker: BrokerAddress) -> BrokerAddress:
    """Return a broker with the fingerprint of its certificate if a newcomer may not trust its authority."""
    if broker.scheme != "mqtts" or broker.fingerprint:
        return broker
    try:
        fingerprint = broker.read_fingerprint(CONNECTING)
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"cannot verify the certificate of the broker at {broker.name}: {error.verify_message}; set SSL_CERT_FILE as for"
            " run, or add #sha256=FINGERPRINT to broker in node.toml"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"cannot invite through the broker at {broker.name}: {reason(error)}; start it, or leave it out with --address"
        ) from error
    return replace(broker, fingerprint=fingerprint) if any(map(os.environ.get, OWN_AUTHORITIES)) else broker


def check_can_run(folder: Path) -> None:
    """Check that the inviting node can run, because it must run to answer a token. Do nothing if it runs already.

    Raises:
        ConfigurationError: it cannot run, or runs without the passphrase of the admission key; the text gives the reason.
    """
    if is_folder_locked(folder):
        if problem := reader.current_if_readable(folder).get("tokens_unanswered"):
            raise ConfigurationError(
                f"no token was made, because this node runs without the passphrase to answer it ({problem}); start it again"
                " with p2pfl-node run --passphrase-file FILE, or use p2pfl-node admit"
            )
        return
    try:
        ready = loading.load(folder)
        if ready.membership is not None:
            check_member(ready.membership, config.own_key(folder), folder)
        check_connectivity(ready.config)
        loading.policy_of(ready)
        own = ready.config
        loading.task_of(ready).learner(RandomStreams(own.seed, own.name), own.device)
    except ConfigurationError as error:
        raise ConfigurationError(f"no token was made, because this node could not run to answer it: {error}") from error
