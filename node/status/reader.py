"""Status of a node's folder: from the node itself if it runs and answers, otherwise from its status file.

A running node replaces the file atomically, and at a limited rate (`StatusFile`). It also answers over a Unix socket in
its folder, for its owner only, so that the status is available even if the file cannot be written, for example on a full
disk. If the system has no Unix sockets, or the folder's path is too long for one, only the file is available.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from asyncio import TimerHandle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

import msgspec

from p2pfl._util.atomic_files import DiskErrorReporter, is_folder_locked, replace_file
from p2pfl._util.disk import PRIVATE, SYSTEM
from p2pfl._util.event_log import EventLogger
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation.membership_changes import checkpoints
from p2pfl.node.federation.membership_file import (
    awaited_federation,
    describe_fork,
    describe_pending,
    describe_refusal,
    load_federation,
)
from p2pfl.node.folder.config import STATUS, load, own_key
from p2pfl.node.privacy_ledger import read_ledger
from p2pfl.privacy import epsilon_together
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.transports.tls import accept_from

RUNNING = ("starting", "waiting", "running", "serving")  # states of a node whose process runs
OF_RUN = ("peers", "peer_counts", "traffic", "suspicious", "election", "network", "broker", "rejected", "revoked_by")
OF_FEDERATION = ("federation", "rounds", *OF_RUN)
ENDED = ("finished", "stopped", "gone")  # states of a node whose process has ended without an error of its own
EMPTY: Mapping[str, Any] = {"round": 0, "peers": [], "history": []}  # status of a node before its first round
KEPT = ("name", "federation", "federation_id", "round", "rounds", "metric", "best", "history")  # from the last run
COSTS, LONGEST_APART = 20, 5.0  # durations of a write between two writes, and at most that many seconds
SHOWN = 200  # rounds in the file, which is rewritten often; the node's page shows more
NAME = "status.sock"
PATIENCE = 2.0  # seconds for an answer
LARGEST = 2**24  # maximum bytes of an answer


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
    if running and (answer := ask(folder)) is not None and _is_status(answer):
        return answer
    status = read(folder / STATUS)
    if status is None and running:
        return {"state": "starting", "pid": 0, "history": []}
    if not running:
        status = _with_ledger(folder, _with_membership(folder, status))
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
        return status | ({"fork": problem} if (problem := describe_fork(membership)) else {})
    return _after_joining(folder, status, membership)


def _with_ledger(folder: Path, status: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the status of a node that does not run, with what its ledger has spent of the privacy budget.

    The ledger counts a training before it begins, and the status afterwards: a node that was killed in between has spent
    more than its status says. A ledger that cannot be read is reported by the doctor and the next start.
    """
    ledger = None
    with suppress(ConfigurationError):
        ledger = read_ledger(folder)
    if status is None or ledger is None or not ledger.made:
        return status
    row = status.get("privacy")
    if not row:  # it has not run since it entered its federation, or was killed in its first training
        with suppress(ConfigurationError):
            privacy = load(folder).privacy
            row = {"budget": privacy.epsilon, "delta": privacy.delta, "validation": privacy.validation}
            row |= {"refused": 0, "then": privacy.when_spent, "steps": 0, "earlier": 0}
    if not row or ledger.made <= row["steps"] + row["earlier"]:
        return status
    spent = round(epsilon_together(ledger.parts, row["delta"]), 4)
    return status | {
        "privacy": row | {"epsilon": spent, "steps": ledger.made - row["earlier"], "colluding": ledger.colluding}
    }


def current_if_readable(folder: Path) -> dict[str, Any]:
    """Return the status of `current`; empty if the node never ran, or if its status is damaged."""
    try:
        return current(folder) or {}
    except ConfigurationError:
        return {}


def _after_joining(folder: Path, status: dict[str, Any], membership: Membership) -> dict[str, Any]:
    """Return the status of a node that has joined a federation since its last run.

    A node that has returned with a new key still has its checkpoints, and with them its rounds and figures; see
    p2pfl.node.federation.membership_changes. The figures of any other node are from before, and do not count.
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
            status = json.loads(SYSTEM.read(path))
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
        federation: identifier of the federation; "" for none.
    """

    rows: list[dict[str, Any]]
    best: dict[str, Any]
    by_stage: dict[str, dict[str, Any]]
    federation: str = ""


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
    federation = str(status.get("federation_id") or "")
    return Earlier(rows, best if isinstance(best, dict) else {}, by_stage, federation)


def _is_status(found: Any) -> TypeGuard[dict[str, Any]]:
    kinds = {"state": str, "pid": int, "history": list}
    return isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in kinds.items())


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():  # as at each start
        return True
    import psutil

    with suppress(OverflowError):
        alive: bool = psutil.pid_exists(pid)
        return alive
    return False


class StatusFile:
    """Writes the status of a running node to its file, at a limited rate.

    Args:
        log: receives an event when the file cannot be written, and when it can be written again.
        clock: returns seconds of a monotonic clock.
        make: returns the current status.
    """

    def __init__(
        self, path: Path, log: EventLogger, clock: Callable[[], float], make: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._path = path
        self._tries = DiskErrorReporter(path, "the status", log)
        self._clock = clock
        self._make = make
        self._written = float("-inf")
        self._cost = 0.0  # seconds of the last write
        self._timer: TimerHandle | None = None
        self._due = float("inf")  # time at which the timer ends

    @property
    def problem(self) -> str:
        """The reason why the last write failed; "" if it succeeded."""
        return self._tries.problem

    def write(self, apart: float = 0.0) -> None:
        """Write the status now, or once `apart` seconds have passed since the last write.

        A status that takes long to write, because there are many peers, is written less often: for a 20th of the time.
        """
        now = self._clock()
        due = max(now, self._written + max(apart, min(COSTS * self._cost, LONGEST_APART))) if apart else now
        loop = _running_loop() if due > now else None
        if loop is None:
            self._write()
        elif due < self._due:
            self._cancel()
            self._due, self._timer = due, loop.call_later(due - now, self._write)

    def _write(self) -> None:
        self._cancel()
        self._written = self._clock()
        state = self._make()
        with self._tries.tolerate():
            shown = {**state, "history": state["history"][-SHOWN:]}
            replace_file(self._path, [encode(shown)], durable=False, mode=PRIVATE)
        self._cost = self._clock() - self._written

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, float("inf")


def encode(state: Mapping[str, Any]) -> bytes:
    """Return a status as JSON.

    A value that is not finite becomes null, because JSON has no text for it. A task of the user's own may report its
    metrics as numbers of NumPy.
    """
    return msgspec.json.encode(state, enc_hook=float)


def write_state(
    path: Path,
    state: str,
    reason: str = "",
    *,
    facts: Mapping[str, Any] = MappingProxyType({}),
    wall: Callable[[], float] = time.time,
) -> None:
    """Write the state of a node that has no observer yet; keep the rounds of its last run.

    Nothing is written if the disk is full: this state is for display only.

    Args:
        reason: why the node is in this state.
        facts: further entries of the status, by key.
        wall: returns seconds since 1970.
    """
    try:
        earlier = read(path) or {}
    except ConfigurationError:  # damaged
        earlier = {}
    kept = {key: earlier[key] for key in KEPT if key in earlier}
    status = {**EMPTY, **kept, **facts, "state": state, "reason": reason, "pid": os.getpid(), "updated": wall()}
    with suppress(OSError):
        replace_file(path, [encode(status)], durable=False, mode=PRIVATE)


@contextmanager
def keep_state(path: Path, error: type[Exception]) -> Iterator[None]:
    """Write the earlier status again if the block ends with an error of a type, after which the node has not started."""
    try:
        earlier = SYSTEM.read(path)
    except OSError:
        earlier = None
    try:
        yield
    except error:
        with suppress(OSError):
            if earlier is None:
                path.unlink()
            else:
                replace_file(path, [earlier], durable=False, mode=PRIVATE)
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def answer(folder: Path, make: Callable[[], bytes]) -> None:
    """Send the value of `make` to each client in turn until cancelled; return if there can be no socket."""
    listening = _listening(folder / NAME)
    if listening is None:
        return
    loop = asyncio.get_running_loop()
    try:
        with listening:
            while True:
                try:
                    link, _ = await accept_from(listening)
                    with link:
                        async with asyncio.timeout(PATIENCE / 2):  # so that a client that does not read blocks no other
                            await loop.sock_sendall(link, make())
                except TimeoutError:
                    continue
                except OSError:  # the client has gone, or there are no free descriptors
                    await asyncio.sleep(0.1)
    finally:
        with suppress(OSError):
            (folder / NAME).unlink()


def ask(folder: Path) -> dict[str, Any] | None:
    """Return the status of the node that runs in a folder; None if it does not answer."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    end = time.monotonic() + PATIENCE
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(PATIENCE)
            link.connect(str(folder / NAME))
            content = bytearray()
            while len(content) <= LARGEST and (part := link.recv(2**16)):
                content += part
                link.settimeout(max(0.001, end - time.monotonic()))
        found = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _listening(path: Path) -> socket.socket | None:
    """Return a socket that listens in a new file; None if that is not possible."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:  # a service that may not open sockets
        return None
    try:
        path.unlink(missing_ok=True)  # a file left by a crash; no other process runs this node
        listening.bind(str(path))
        path.chmod(PRIVATE)  # no client can connect before it listens
        listening.listen()
        listening.setblocking(False)
    except OSError:
        listening.close()
        return None
    return listening
