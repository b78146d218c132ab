"""All checks of `p2pfl-node doctor`, from the folder to the network."""

from __future__ import annotations

import os
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
from p2pfl.node.doctor.network_checks import check_broker, check_multicast, check_port
from p2pfl.node.federation import loading
from p2pfl.node.folder import config
from p2pfl.node.status import reader
from p2pfl.protocols.errors import IdentityError
from p2pfl.protocols.identity import Identity
from p2pfl.system.atomic_files import is_folder_locked
from p2pfl.system.size_limit import READING


def run_checks(folder: Path) -> list[Finding]:
    """Return the findings of all checks of a node's folder, its machine and its network."""
    state = _status(folder)
    federation = check_federation(folder, state.get("revoked_by", ()))
    findings = [check_key(folder), check_folder(folder), check_disk(folder), check_clock(), federation]
    try:
        ready = loading.load(folder)
    except ConfigurationError as error:
        return [*findings, Finding("configuration", False, str(error), f"correct {folder / config.CONFIG}")]
    own = ready.config
    findings.append(check_port(own.listen, running=is_folder_locked(folder)))
    if own.mdns:
        findings.append(check_multicast())
    if own.broker:
        topic = ""
        if ready.membership is not None:
            key = _own_key(folder)
            topic = f"p2pfl/{ready.membership.federation.hex()}/{key}/{key}"
        findings.append(check_broker(own.broker, topic, os.environ.get("P2PFL_MQTT_PASSWORD")))
    if ready.agreement is not None:
        findings.append(
            check_layout(lambda: loading.task_of(ready, copies=READING).layout.shared, ready.agreement.model.layout)
        )
    return findings


def _status(folder: Path) -> dict[str, Any]:
    """Return the current or the last status of the node; empty if it never ran, or if its status is damaged."""
    try:
        return reader.current(folder) or {}
    except ConfigurationError:
        return {}


def _own_key(folder: Path) -> str:
    try:
        return Identity.load(folder / config.KEY).public.hex()
    except IdentityError:
        return "unknown"
