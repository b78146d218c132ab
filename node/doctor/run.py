"""All checks of `p2pfl-node doctor`, from the folder to the network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2pfl.errors import ConfigurationError
from p2pfl.node.doctor.checks import (
    Finding,
    check_clock,
    check_disk,
    check_federation,
    check_folder,
    check_key,
    check_layout,
)
from p2pfl.node.doctor.network_checks import broker_problem, check_broker, check_multicast, check_port
from p2pfl.node.doctor.peer_checks import check_node, check_peers, is_running
from p2pfl.node.federation import loading
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.revocation import check_name
from p2pfl.node.folder import config
from p2pfl.node.runtime.connectivity import without_password
from p2pfl.node.status import reader
from p2pfl.system.size_limit import READING


def run_checks(folder: Path) -> list[Finding]:
    """Return the findings of all checks of a node's folder, its machine and its network.

    Raises:
        ConfigurationError: the folder does not exist.
    """
    if not folder.is_dir():
        config.check_folder_of_node(folder)
    state = reader.current_if_readable(folder)
    federation = check_federation(folder, state.get("revoked_by", ()))
    findings = [check_node(state), check_key(folder), check_folder(folder), check_disk(folder), check_clock(), federation]
    try:
        ready = loading.load(folder)
    except ConfigurationError as error:
        return [*findings, Finding("configuration", False, str(error), f"correct {folder / config.CONFIG}")]
    if (membership := ready.membership) is not None and federation.ok:
        try:
            check_name(membership, config.own_key(folder), ready.config.name, folder)
        except ConfigurationError as error:
            result, _, remedy = str(error).partition("; ")
            findings.append(Finding("name", False, result, remedy))
    if is_running(state) and state.get("tokens_unanswered"):
        remedy = f"start the node again with p2pfl-node run {folder} --passphrase-file FILE"
        findings.append(
            Finding("tokens", False, f"invitation tokens are not answered: {state['tokens_unanswered']}", remedy)
        )
    findings += _check_network(state, ready, may_run=federation.ok is not False)
    agreed = None if ready.agreement is None else ready.agreement.model.layout
    layout = check_layout(lambda: loading.task_of(ready, copies=READING).layout.shared, agreed, ready.config.data)
    return [*findings, layout]


def _check_network(state: Mapping[str, Any], ready: LoadedNode, may_run: bool) -> list[Finding]:
    """Check the port, multicast, the broker and the peers: as the node runs with them, or as node.toml has them.

    Args:
        may_run: whether the node is a member, or trains alone. The peers of a former member are not mentioned.
    """
    own = ready.config
    if not is_running(state):
        configured = {"listen": own.listen if own.direct else "", "broker": own.broker, "mdns": own.mdns and own.direct}
        return [*_check_ways(configured, ready), *(_check_absent_peers(ready) if may_run else [])]
    network = state.get("network")
    if network is not None:
        return [*_check_ways(network, ready, state), *check_peers(state)]
    result = "is starting" if state["state"] == "starting" else "trains alone, without a port"
    return [Finding("port", None, f"not checked, because this node {result}")]


def _check_ways(network: Mapping[str, Any], ready: LoadedNode, state: Mapping[str, Any] | None = None) -> list[Finding]:
    """Check the ways in which others reach this node.

    Args:
        network: see p2pfl.node.runtime.connectivity.Connectivity.describe.
        state: status of the running node; None if it does not run.
    """
    own, findings = ready.config, []
    if network["listen"]:
        findings.append(check_port(network["listen"], state is not None, own.listen))
    else:
        findings.append(Finding("port", True, "not used: this node connects through the broker only"))
    if network["mdns"]:
        findings.append(check_multicast())
    if state is not None and state.get("broker"):
        findings.append(broker_problem(state["broker"]))
    elif network["broker"]:
        url = own.broker if without_password(own.broker) == network["broker"] else network["broker"]
        findings.append(check_broker(url, _own_topic(ready), os.environ.get("P2PFL_MQTT_PASSWORD")))
    return findings


def _check_absent_peers(ready: LoadedNode) -> list[Finding]:
    if ready.membership is None or len(ready.membership.members) < 2:
        return []
    result = "not checked, because this node does not run"
    return [Finding("peers", None, result, f"run p2pfl-node run {ready.folder}, and p2pfl-node doctor {ready.folder} again")]


def _own_topic(ready: LoadedNode) -> str:
    """Return a topic to which this node may publish and subscribe; "" without a federation or a key."""
    try:
        key = config.own_key(ready.folder).hex()
    except ConfigurationError:
        return ""
    return "" if ready.membership is None else f"p2pfl/{ready.membership.federation.hex()}/{key}/{key}"
