"""Process of one node: its folder, its signals, its event loop.

The folder is locked while the process runs. If peers know later messages of this node's key than its folder does, the
folder is older than the last run (a restored backup, or a copy). The node then takes new message numbers, once, and
starts again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from p2pfl._util.atomic_files import explain, file_of, lock_folder
from p2pfl._util.console import FAILED, INTERRUPTED
from p2pfl._util.disk import SYSTEM, Disk
from p2pfl._util.event_log import EventLogger
from p2pfl._util.http_server import PageServer
from p2pfl._util.machine import raise_open_files
from p2pfl.errors import CommandLineError, ConfigurationError, first_error
from p2pfl.node.connectivity import Supervisor, network_of, without_password
from p2pfl.node.coordination.election_runner import FileVotes
from p2pfl.node.federation import loading
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.membership_changes import checkpoints
from p2pfl.node.federation.membership_file import (
    ADMISSION,
    FEDERATION,
    MEMBERSHIP,
    RESTORE,
    MembershipFile,
    RevokedError,
    awaited_federation,
    check_member,
    check_name,
    load_federation,
    may_admit,
)
from p2pfl.node.folder import config as folders
from p2pfl.node.folder import incarnation
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.folder.facts import FACTS, read_facts, report_losses, update_facts
from p2pfl.node.log import LOG
from p2pfl.node.node import Node
from p2pfl.node.peering.control_messages import IncarnationConflictError
from p2pfl.node.privacy_ledger import LEDGER, NO_COPY, note_older_copy, read_ledger
from p2pfl.node.runtime.assembly import Assembly, Parts
from p2pfl.node.status.endpoints import open_to_others, status_page
from p2pfl.node.status.observer import StatusObserver, describe_start, federation_title
from p2pfl.node.status.reader import keep_state, read_earlier, write_state
from p2pfl.protocols.errors import AddressError, AddressInUseError, FederationError, IdentityError, TransportError

OTHER_FILES = 128  # files and sockets besides the links with neighbours
FRESH = 10.0  # seconds; long enough not to wear out the memory card of a small machine


def run(folder: Path, changes: Sequence[str], log: EventLogger = LOG, until_done: bool = False) -> int:
    """Run the node of a folder until it is stopped; return the exit code.

    Args:
        log: receives the events of the node, with the name of its folder as the field `node`.
        until_done: whether to end when its rounds are done and no peer needs it.

    Raises:
        RevokedError: the membership of the node was revoked.
        ConfigurationError: the configuration is wrong, the key is readable by others, or the port is in use.
    """
    log = log.bind(node=folder.resolve().name)
    ready = loading.load(folder, changes, log)  # report its errors before the lock
    if ready.membership is not None:
        key = folders.own_key(folder)
        check_member(ready.membership, key, folder)
        check_name(ready.membership, key, ready.config.name, folder)
    configured = {} if ready.membership is None else network_of(ready.config, ready.config.listen)
    with lock_folder(folder), keep_state(folder / folders.STATUS, CommandLineError):
        write_state(folder / folders.STATUS, "starting", facts={"configured_network": configured})
        _log_start(ready, log)
        compare_with_facts(ready, log)
        try:
            return _run_once(folder, changes, log, until_done)
        except IncarnationConflictError as conflict:
            note_older_copy(folder)  # first: a node that has spent more than it knows must not start again
            renumber(folder, conflict.incarnation, log, round=conflict.round)
        try:
            return _run_once(folder, changes, log, until_done)
        except IncarnationConflictError:
            raise ConfigurationError(
                f"another process uses the key of this node: {folder} or a copy of it runs elsewhere; stop one of them, and"
                " create a second node with p2pfl-node init"
            ) from None


def _log_start(ready: LoadedNode, log: EventLogger) -> None:
    """Log the node and its federation at once, because the task takes seconds to load."""
    membership, title = ready.membership, ""
    fields: dict[str, object] = {"folder": str(ready.folder.resolve())}
    if membership is not None:
        fields |= {"federation": membership.file.name, "federation_id": membership.federation.hex()}
        title = federation_title(membership.file.name, membership.federation.hex())
    broker = without_password(ready.config.broker).partition("#")[0]  # without a fingerprint
    log.bind(**fields).info(describe_start(ready.config.name, ready.folder.resolve(), title, broker), kind="start")


def compare_with_facts(ready: LoadedNode, log: EventLogger) -> None:
    """Compare a folder with the facts of the last start, report what it has lost, and write the facts of this start.

    A membership log that was damaged or older than its copy is written again first.

    Raises:
        ConfigurationError: the files of the federation are missing, or a file cannot be read or written.
    """
    folder, membership = ready.folder, ready.membership
    before = read_facts(folder, log=log)
    if membership is None and before.federation and not awaited_federation(folder):
        raise ConfigurationError(
            f"{folder / FEDERATION} and {MEMBERSHIP} are missing, but this node was a member of {before.federation} at its"
            f" last start; {RESTORE}, or join again; to train alone, remove {folder / FACTS}"
        )
    entries = 0 if membership is None else membership.membership_version
    if membership is not None and entries < before.entries and before.federation == membership.file.name:
        raise ConfigurationError(
            f"{folder / MEMBERSHIP} has {entries} entries, and had {before.entries} at the last start; {RESTORE}; to go on"
            f" with this one, remove {folder / FACTS}"
        )
    admission = membership.admission if membership is not None and may_admit(folder) else b""
    ledger = read_ledger(folder)
    steps = 0 if ledger is None else ledger.made
    if steps < before.private_steps:
        what = "is missing" if ledger is None else f"has {steps:,} private steps"
        raise ConfigurationError(f"{folder / LEDGER} {what}, and the last start knew of {before.private_steps:,}; {NO_COPY}")
    own = {"budget": ready.config.budget, "end": ready.config.end, "privacy": ready.config.privacy}
    set_limits = {f"{table}.{key}": limit for table, keys in own.items() for key, limit in asdict(keys).items()}
    limits = {
        key: int(limit) if isinstance(limit, float) and limit.is_integer() else limit for key, limit in set_limits.items()
    }
    limits["distrust"] = ready.config.distrust
    now = replace(
        before,
        federation="" if membership is None else membership.file.name,
        entries=entries,
        admission=admission,
        limits=limits,
        private_steps=steps,
    )
    _report_lost_checkpoint(ready, log)
    report_losses(before, now, folder, config=folders.CONFIG, admission=ADMISSION, log=log)
    try:
        if membership is not None:
            MembershipFile(folder).save(membership)
        update_facts(
            folder, federation=now.federation, entries=entries, admission=admission, limits=limits, private_steps=steps
        )
    except OSError as error:
        raise ConfigurationError(f"cannot write {file_of(error, folder / FACTS)}: {explain(error)}") from error


def _report_lost_checkpoint(ready: LoadedNode, log: EventLogger) -> None:
    """Report that there is no checkpoint, although the status shows rounds in the same federation."""
    status, membership = read_earlier(ready.folder / folders.STATUS), ready.membership
    federation = "" if membership is None else membership.federation.hex()
    last = max((row["round"] for row in status.rows), default=0)
    if last and status.federation == federation and not checkpoints(ready.folder):
        log.warning(
            f"{ready.folder / folders.CHECKPOINT} is missing, but the last run has finished round {last};"
            " starting again from round 0",
            kind="rounds-lost",
            round=0,
        )


def _run_once(folder: Path, changes: Sequence[str], log: EventLogger, until_done: bool) -> int:
    loop_factory = None
    with suppress(ImportError):  # not available on Windows
        import uvloop

        loop_factory = uvloop.new_event_loop
    ready = loading.load(folder, changes)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(run_loaded(ready, log, until_done))
        except AddressInUseError as error:
            raise ConfigurationError(f"{error}; choose another port with --port, or `listen` in node.toml") from error
        except (IdentityError, AddressError, FederationError, TransportError) as error:  # TransportError: cannot listen
            raise ConfigurationError(str(error)) from error


async def run_loaded(ready: LoadedNode, log: EventLogger, until_done: bool) -> int:
    """Run a loaded node on the current event loop until it ends, and return the exit code.

    The folder is not locked, and a conflict of incarnations is not resolved: see `run`.

    Args:
        until_done: see `run`.

    Raises:
        IncarnationConflictError: peers know later messages of this node's key.
    """
    supervisor = Supervisor(log)
    asyncio.get_running_loop().set_exception_handler(supervisor.stray)
    with ExitStack() as close:
        try:
            parts = Assembly(ready, log, close, supervisor).parts()
            page = await _show(ready.config, parts, log)
        except Exception as cause:
            write_state(ready.folder / folders.STATUS, "failed", str(cause))
            raise
        node, status_observer = parts.node, parts.status_observer
        if parts.connectivity is not None and ready.config.direct:
            check_open_files(raise_open_files(), len(parts.exchange.peers), log)
        if (connectivity := parts.connectivity) is not None:
            parts.exchange.peering.on_listening.append(lambda: status_observer.listening(connectivity.describe()))
        status_observer.begin(node, parts.about)
        if parts.tracking_observer is not None:
            parts.tracking_observer.begin(node, parts.about.get("federation", ""))
        leave = _on_signals(node, status_observer, log)
        try:
            async with asyncio.TaskGroup() as beside:
                tasks = [beside.create_task(work) for work in _beside(parts, page, ready.folder, supervisor)]
                await node.run(lambda: _serve(parts, leave, until_done or parts.members is None))
                for task in tasks:
                    task.cancel()
        except asyncio.CancelledError:
            status_observer.ended("stopped")
            return INTERRUPTED
        except BaseException as failure:
            error = first_error(failure)
            if isinstance(error, IncarnationConflictError):
                raise error from None
            state = "revoked" if isinstance(error, RevokedError) else "failed"
            status_observer.ended(state, str(error) or type(error).__name__)
            raise error from None
        finally:
            if page is not None:
                await supervisor.clean_up("page", page.close())
        if node.disk and node.stored < node.round:
            lost = (
                f"round {node.round} is lost, because {ready.folder / folders.CHECKPOINT} cannot be written: {node.disk};"
                f" correct that, and run again to continue after round {node.stored}"
            )
            status_observer.ended("failed", lost)
            log.error(lost, kind="disk-failed", path=str(ready.folder / folders.CHECKPOINT))
            return FAILED
        if leave.is_set() and not node.done:
            status_observer.ended("stopped")
            log.info(f"stopped after round {node.round}; run again to continue", kind="stopped", round=node.round)
            return INTERRUPTED
        status_observer.ended("finished")
        return 0


def check_open_files(limit: int | None, neighbours: int, log: EventLogger) -> None:
    """Log a warning if the links with all neighbours need more open files than this process may have.

    Args:
        limit: maximum number of open files; None for no limit.
    """
    needed = neighbours + OTHER_FILES
    if limit is not None and limit < needed:
        log.warning(
            f"{limit} open files are permitted, but links with {neighbours} members need up to {needed}; raise the limit"
            " (ulimit -Hn, or LimitNOFILE of the service), or give the federation a topology with fewer neighbours",
            kind="open-files",
            limit=limit,
            needed=needed,
        )


async def _show(config: NodeConfig, parts: Parts, log: EventLogger) -> PageServer | None:
    """Start the status page for browsers and Prometheus, if it is configured."""
    if config.status_port < 0:
        return None
    page = status_page(parts.status_observer, config.status_host, config.status_port)
    address = await page.start()
    parts.about["page"] = address
    if open_to_others(config.status_host):
        log.warning(
            f"status page: {address} (not on loopback: everyone who can connect to this address can read it)",
            kind="status-page",
            address=address,
        )
    else:
        log.info(f"status page: {address}", kind="status-page", address=address)
    return page


def _beside(parts: Parts, page: PageServer | None, folder: Path, supervisor: Supervisor) -> list[Coroutine[Any, Any, None]]:
    """Return the work in parallel to the rounds: find members, follow the membership, show the state of the node.

    Only an error in following the membership may end the node, because it decides whether the node is a member.
    """
    run, peering = supervisor.run, parts.exchange.peering
    works = [_keep_fresh(parts.status_observer), run("status socket", lambda: parts.status_observer.answer(folder))]
    if page is not None:
        works.append(run("page", _page_again(page, supervisor)))
    if parts.connectivity is not None:
        works.append(run("mdns", partial(parts.connectivity.search, peering)))
    if parts.members is not None:
        works.append(parts.members.run())
    return works


def _page_again(page: PageServer, supervisor: Supervisor) -> Callable[[], Awaitable[None]]:
    """Return work that waits for a page to fail; when it is called again, it first restarts the page."""
    started = True

    async def work() -> None:
        nonlocal started
        if not started:
            await supervisor.clean_up("page", page.close())
            await page.start()
        started = False
        await page.wait_until_failed()

    return work


async def _keep_fresh(status_observer: StatusObserver) -> None:
    """Write the status periodically, even if nothing happens."""
    while True:
        await asyncio.sleep(FRESH)
        status_observer.write()


async def _serve(parts: Parts, leave: asyncio.Event, until_done: bool) -> None:
    """Answer peers until stopped or extended or, with `until_done`, until none of them needs this node."""
    exchange = parts.exchange
    if not until_done:
        parts.status_observer.serving()
    ends = exchange.others_done() if until_done else exchange.peering.until(lambda: not exchange.peering.final, inf)
    waits = [asyncio.ensure_future(ends), asyncio.create_task(leave.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _on_signals(node: Node, status_observer: StatusObserver, log: EventLogger) -> asyncio.Event:
    """Stop after the current round on the first Ctrl-C or SIGTERM, and at once on the second."""
    leave = asyncio.Event()

    def stop() -> None:
        if leave.is_set():
            status_observer.ended("stopped")
            log.info(
                "stopped at once; run again to continue after the last finished round", kind="stopped", round=node.round
            )
            sys.stdout.flush()
            os._exit(INTERRUPTED)  # Python would wait for the training thread
        leave.set()
        node.stop()
        now = "stopping: this node no longer serves its peers"
        later = "stopping after this round; press Ctrl-C again to stop at once"
        log.info(now if node.done else later, kind="stopping", round=node.round)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError):  # Windows has no signal handlers on a loop
            loop.add_signal_handler(number, stop)
    return leave


def renumber(folder: Path, known: int, log: EventLogger, disk: Disk = SYSTEM, round: int = 0) -> None:
    """Let the next start of a node use message numbers that no frame of its key has used.

    Args:
        known: the incarnation in a frame of its key that a peer has shown.
        log: receives an event.
        disk: the disk of the folder.
        round: the newest round whose model of this node a peer holds. The node continues after it.

    Raises:
        ConfigurationError: a file cannot be read or written.
    """
    incarnation.note_published(folder / folders.PUBLISHED, round, disk)
    incarnation.count_past(folder / folders.INCARNATION, known, disk)
    membership = load_federation(folder, disk)
    if membership is not None:  # also without a vote file: the copy may be older than the first vote
        FileVotes(folder / folders.VOTE, log, disk).distrust(membership.election_version)
    log.warning(
        f"peers have newer messages of this node than {folder}: it was restored from an older copy, or another process uses"
        " its key; starting again with new message numbers",
        kind="renumbered",
    )
