"""Status of a node's folder: from the node itself if it runs and answers, otherwise from its status file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation.membership_file import awaited_federation, load_federation
from p2pfl.node.federation.revocation import describe_pending, describe_refusal
from p2pfl.node.folder.config import STATUS, load, own_key
from p2pfl.node.folder.earlier_training import checkpoints
from p2pfl.node.status import status_socket
from p2pfl.protocols.membership.log import Membership
from p2pfl.system.atomic_files import is_folder_locked

RUNNING = ("starting", "waiting", "running", "serving")  # states of a node whose process runs
OF_RUN = ("peers", "traffic", "suspicious", "election", "network", "broker", "rejected", "revoked_by")
OF_FEDERATION = ("federation", "rounds", *OF_RUN)
ENDED = ("finished", "stopped", "gone")  # states of a node whose process has ended without an error of its own


def current(folder: Path, wall: Callable[[], float] = time.time) -> dict[str, Any] | None:
    """Return the current status of a folder's node, from the node itself if it answers, otherwise from the file.

    Args:
        wall: returns seconds since 1970.

    Returns:
        The status, with its `age` in seconds if it comes from the file. Its state is "starting" if the node runs, but has
        not reported its state yet. None if the node never ran.

    Raises:
        ConfigurationError: the file cannot be read, or is damaged.
    """
    running = is_folder_locked(folder)
    if running and (answer := status_socket.ask(folder)) is not None and _is_status(answer):
        return answer
    status = read(folder / STATUS)
    if status is None and running:
        return {"state": "starting", "pid": 0, "history": []}
    if not running:
        status = _with_membership(folder, status)
    if status is not None and isinstance(status.get("updated"), int | float):
        status["age"] = max(0.0, wall() - status["updated"])  # the clock may have been set back
    return status


def _with_membership(folder: Path, status: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the status of a node that does not run, with what has happened to its membership since then."""
    try:
        membership, key = load_federation(folder), own_key(folder)
    except ConfigurationError:  # other commands report it
        return status
    if membership is None:
        return _without_federation(folder, status)
    if membership.end_of(key) is not None:
        reason = describe_refusal(membership, key, folder)
        return {"pid": 0, "history": [], **(status or {}), "state": "revoked", "reason": reason}
    if status is None:
        return None
    if status["state"] != "revoked" and status.get("federation_id") == membership.federation.hex():
        return status
    return _after_joining(folder, status, membership)


def current_if_readable(folder: Path) -> dict[str, Any]:
    """Return the status of `current`; empty if the node never ran, or if its status is damaged."""
    try:
        return current(folder) or {}
    except ConfigurationError:
        return {}


def _after_joining(folder: Path, status: dict[str, Any], membership: Membership) -> dict[str, Any]:
    """Return the status of a node that has joined a federation since its last run.

    A node that has returned with a new key still has its checkpoints, and with them its rounds and figures; see
    p2pfl.node.federation.admission. The figures of any other node are from before, and do not count.
    """
    joined = status["state"] == "revoked" or (status["state"] in ENDED and not status.get("reason"))
    now: dict[str, Any] = {"federation": membership.file.name, "federation_id": membership.federation.hex()}
    now |= {"rounds": membership.rounds, "pid": 0, "state": "joined"}
    if not joined:
        now |= {key: status[key] for key in ("state", "reason", "updated") if key in status}
    if checkpoints(folder):
        return {key: value for key, value in status.items() if key not in (*OF_RUN, "reason", "updated")} | now
    earlier = {"name": status.get("name", ""), "round": 0, "earlier_rounds": status.get("round", 0), "history": []}
    return earlier | now


def _without_federation(folder: Path, status: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the status of a node that has left its federation, without the peers and the traffic of that federation.

    Its number of rounds is that of its configuration, for which it trains until it joins again.
    """
    if status is None:
        return None
    if status.get("federation_id"):
        left = f"left the federation {status.get('federation') or ''}".rstrip()
        kept = {key: value for key, value in status.items() if key not in OF_FEDERATION}
        status = kept | {"reason": status.get("reason") or left}
        with suppress(ConfigurationError):  # other commands report it
            status["rounds"] = load(folder).rounds
    if status["state"] in (*ENDED, "revoked") and (name := awaited_federation(folder)):
        status["reason"] = describe_pending(name, folder)
    return status


def read(path: Path) -> dict[str, Any] | None:
    """Return the content of a status file, or None if there is none. The state of a node that was killed is "gone".

    Raises:
        ConfigurationError: the file cannot be read, or is damaged.
    """
    status = None
    try:
        with suppress(ValueError, RecursionError):
            status = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    if not _is_status(status):
        raise ConfigurationError(f"{path} is damaged; the next run of the node replaces it")
    # The process number alone is not enough: after a restart of the machine it may belong to another process. A running
    # node holds the lock of its folder.
    if status["state"] in RUNNING and not (_is_alive(status["pid"]) and is_folder_locked(path.parent)):
        status["state"] = "gone"
    return status


class Earlier(NamedTuple):
    """Rounds of a node's last run.

    Attributes:
        rows: rows of the rounds.
        best: metrics of the model that was best on validation; empty if unknown.
        by_stage: the same for the model of each stage.
    """

    rows: list[dict[str, Any]]
    best: dict[str, Any]
    by_stage: dict[str, dict[str, Any]]


def read_earlier(path: Path) -> Earlier:
    """Return the rounds in a status file; none if there is no readable file."""
    try:
        status = read(path) or {}
    except ConfigurationError:
        status = {}
    rows = [row for row in status.get("history", ()) if isinstance(row, dict) and isinstance(row.get("round"), int)]
    best = status.get("best")
    stages = status.get("by_stage")
    by_stage = {stage: each for stage, each in stages.items() if isinstance(each, dict)} if isinstance(stages, dict) else {}
    return Earlier(rows, best if isinstance(best, dict) else {}, by_stage)


def _is_status(found: Any) -> TypeGuard[dict[str, Any]]:
    kinds = {"state": str, "pid": int, "history": list}
    return isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in kinds.items())


def _is_alive(pid: int) -> bool:
    import psutil

    with suppress(OverflowError):
        alive: bool = psutil.pid_exists(pid)
        return alive
    return False
