"""Runs one node as a process: its folder, its signals, its event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from node import admission, agreement, boot, setup
from node import config as folders
from node.checkpoint import FileStore
from node.commands import INTERRUPTED
from node.config import NodeConfig
from node.contact import IncarnationConflictError
from node.electing import Electing, FileVotes, MemoryVotes, timing_of
from node.guard import Guard
from node.members import Members
from node.messaging import MessageExchange
from node.node import Node, first_error
from node.page import Page, open_to_others
from node.reach import Reach
from node.setup import Setup
from node.status import StatusBoard
from node.status_page import status_page
from node.supervisor import Supervisor
from node.trainer import ThreadTrainer
from node.wiring import federation_id, message_exchange
from p2pfl.errors import ConfigurationError
from p2pfl.policy import Coordinated, Policy, asks_scores
from p2pfl.randomness import Draws
from p2pfl.task import Task
from protocols.errors import AddressError, FederationError, IdentityError, TransportError
from protocols.identity import Identity
from protocols.memory import MemoryNetwork
from protocols.terms import Electorate

Say = Callable[[str], None]
FRESH = 10.0  # seconds; not so often that it wears out the card of a small machine
PROBING = 1.0  # seconds between probes of peers that are silent


def run(folder: Path, changes: Sequence[str], say: Say, until_done: bool = False) -> int:
    """Run the node of a folder, until it is told to stop; return the exit code.

    Args:
        until_done: end when its rounds are done and no peer needs it any more.

    Raises:
        ConfigurationError: the configuration is wrong, the key is readable by others, the port is in use.
    """
    setup.load(folder, changes)  # errors in it come before the lock
    with folders.lock(folder):
        try:
            return _run_once(folder, changes, say, until_done)
        except IncarnationConflictError as conflict:
            _renumber(folder, conflict.boot, say)
        try:
            return _run_once(folder, changes, say, until_done)
        except IncarnationConflictError:
            raise ConfigurationError(
                f"another process uses the key of this node: {folder}, or a copy of it, runs elsewhere. Stop one of them;"
                " a second node needs a folder and a key of its own (p2pfl-node init)"
            ) from None


def _run_once(folder: Path, changes: Sequence[str], say: Say, until_done: bool) -> int:
    loop_factory = None
    with suppress(ImportError):  # not on Windows
        import uvloop

        loop_factory = uvloop.new_event_loop
    ready = setup.load(folder, changes)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(_run(ready, say, until_done))
        except (IdentityError, AddressError, FederationError, TransportError) as error:  # of the last: cannot listen
            raise ConfigurationError(str(error)) from error


def _renumber(folder: Path, known: int, say: Say) -> None:
    """Go on after a conflict of incarnations, with numbers that no frame of this key has had."""
    boot.count_past(folder / folders.BOOT, known)
    membership = admission.load_federation(folder)
    if membership is not None and (folder / folders.VOTE).exists():
        FileVotes(folder / folders.VOTE, say).distrust(membership.epoch)
    say(
        f"peers know messages of this node that are later than its folder: {folder} was restored from an older copy, or"
        " another process uses its key. The node starts again with new message numbers"
    )


class _Parts:
    """What a node is made of."""

    def __init__(self, ready: Setup, say: Say, close: ExitStack, supervisor: Supervisor) -> None:
        folder, config = ready.folder, ready.config
        self.folder = folder
        self.identity = Identity.load(folder / folders.KEY)
        self.task: Task = setup.task_of(ready)
        self.initial = self.task.initial(config.seed)
        if ready.agreement is not None:
            agreement.same_model(ready.agreement, self.task, self.initial)
        policy = setup.policy_of(ready)
        self._coordinated = isinstance(policy, Coordinated)
        with folders.said_of(folder / folders.CONFIG):
            trainer = ThreadTrainer(self.task.learner(Draws(config.seed, config.name), config.device))
        close.callback(trainer.close)
        self.supervisor = supervisor
        self.reach: Reach | None = None
        self.members: Members | None = None
        self.exchange = self._exchange(ready, trainer, policy, say)
        self.board = StatusBoard(folder / folders.STATUS, self.exchange, say, faults=supervisor.faults)
        names = [config.name] if ready.membership is None else list(ready.membership.members)
        self.node = Node(
            config.name,
            names,
            task=self.task,
            policy=policy,
            trainer=trainer,
            exchange=self.exchange,
            settings=config,
            store=FileStore(folder / folders.CHECKPOINT, say),
            observer=self.board,
            budget=config.budget,
            lenient=True,
            initial=self.initial,
        )
        self.about = {"task": config.task["name"], "policy": config.policy["name"]}
        if ready.agreement is not None:
            self.about["federation"] = ready.agreement.name

    def _exchange(self, ready: Setup, trainer: ThreadTrainer, policy: Policy, say: Say) -> MessageExchange:
        config, membership, agreed = ready.config, ready.membership, ready.agreement
        common: dict[str, Any] = {
            "identity": self.identity,
            "boot": folders.next_boot(ready.folder, say),
            "task": self.task,
            "trainer": trainer,
            "settings": config,
            "initial": agreement.digest(self.task.layout.cut(self.initial)),
        }
        if membership is None or agreed is None:  # alone: nothing is listened on
            transport = MemoryNetwork().transport(config.name)
            alone = Electing(
                config.name, Electorate(0, frozenset([config.name]), (config.name,)), MemoryVotes(), boot=1, seed=config.seed
            )
            return message_exchange(
                *(config.name, {}),
                transport=transport,
                federation=federation_id(config.name),
                agreed={},
                electing=alone if self._coordinated else None,
                scores=asks_scores(policy),
                **common,
            )
        size, coordinated = self.task.layout.shared.size, self._coordinated
        guard = Guard(membership, asyncio.get_running_loop().time)
        self.reach = Reach(config, self.identity, membership, size, common["boot"], say, self.supervisor, coordinated, guard)
        members = Members(ready, self.identity.public, self.reach.addresses, say, coordinated)
        electing = Electing(
            *(config.name, members.electorate(), FileVotes(ready.folder / folders.VOTE, say)),
            boot=common["boot"],
            seed=config.seed,
            say=say,
            timing=timing_of(size, config.deadline),
        )
        around = members.around()
        exchange = message_exchange(
            config.name,
            around,
            transport=self.reach.transport,
            federation=membership.federation,
            agreed=agreement.describe("task", config.task) | agreement.describe("policy", config.policy),
            edges=agreed.edges,
            sources=[name for name in around if members.learned_from(name)],
            askers=members.askers() if coordinated else None,
            electing=electing if coordinated else None,
            observer=membership.members[config.name].role == "observer" if config.name in membership.members else False,
            gate=guard,
            period=PROBING,
            scores=asks_scores(policy),
            **common,
        )
        members.keep(exchange.contacts, exchange.electing)
        exchange.contacts.on_fault = self.supervisor.fault
        self.reach.serve(exchange.contacts, ready.folder)
        self.members = members
        return exchange


async def _run(ready: Setup, say: Say, until_done: bool) -> int:
    supervisor = Supervisor(say)
    asyncio.get_running_loop().set_exception_handler(supervisor.stray)
    with ExitStack() as close:
        parts = _Parts(ready, say, close, supervisor)
        node, board = parts.node, parts.board
        page = await _show(ready.config, parts, say)
        board.begin(node, parts.about)
        leave = _on_signals(node, board, say)
        try:
            async with asyncio.TaskGroup() as beside:
                tasks = [beside.create_task(work) for work in _beside(parts, page)]
                await node.run(lambda: _serve(parts, leave, until_done or parts.members is None))
                for task in tasks:
                    task.cancel()
        except asyncio.CancelledError:
            board.ended("stopped")
            return INTERRUPTED
        except BaseException as failure:
            error = first_error(failure)
            if isinstance(error, IncarnationConflictError):
                raise error from None
            board.ended("failed", str(error) or type(error).__name__)
            raise error from None
        finally:
            if page is not None:
                await supervisor.clean_up("page", page.close())
        if leave.is_set() and not node.done:
            board.ended("stopped")
            say(f"stopped after round {node.round}; run again to go on")
            return INTERRUPTED
        board.ended("finished")
        return 0


async def _show(config: NodeConfig, parts: _Parts, say: Say) -> Page | None:
    """Show what the node does to browsers and to Prometheus, if its owner wants that."""
    if config.status_port < 0:
        return None
    page = status_page(parts.board, config.status_host, config.status_port)
    address = await page.start()
    parts.about["page"] = address
    warning = " (not on loopback: whoever reaches this address sees it)" if open_to_others(config.status_host) else ""
    say(f"status page: {address}{warning}")
    return page


def _beside(parts: _Parts, page: Page | None) -> list[Coroutine[Any, Any, None]]:
    """Return what goes on beside the rounds: finding members, following who is one, and showing it.

    Only the second of them, which is about what the node is, may end it.
    """
    run = parts.supervisor.run
    works = [_keep_fresh(parts.board), run("status socket", lambda: parts.board.answer(parts.folder))]
    if page is not None:
        works.append(run("page", _page_again(page, parts.supervisor)))
    if parts.reach is not None:
        works.append(run("mdns", parts.reach.run))
    if parts.members is not None:
        works.append(parts.members.run())
    return works


def _page_again(page: Page, supervisor: Supervisor) -> Callable[[], Awaitable[None]]:
    """Return what waits for a page, which was started once, to fail; and which starts it again from the second time on."""
    started = True

    async def work() -> None:
        nonlocal started
        if not started:
            await supervisor.clean_up("page", page.close())
            await page.start()
        started = False
        await page.failed()

    return work


async def _keep_fresh(board: StatusBoard) -> None:
    """Write down what is counted, also while nothing happens."""
    while True:
        await asyncio.sleep(FRESH)
        board.write()


async def _serve(parts: _Parts, leave: asyncio.Event, until_done: bool) -> None:
    """Answer peers until told to stop; or, if asked to, until none of them needs this node any more."""
    if until_done:
        waits = [asyncio.create_task(parts.exchange.others_done()), asyncio.create_task(leave.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return
    parts.board.serving()
    await leave.wait()


def _on_signals(node: Node, board: StatusBoard, say: Say) -> asyncio.Event:
    """Stop after the round in progress on the first Ctrl-C or SIGTERM, at once on the second."""
    leave = asyncio.Event()

    def stop() -> None:
        if leave.is_set():
            board.ended("stopped")
            say("stopped at once; run again to go on after the last finished round")
            sys.stdout.flush()
            os._exit(INTERRUPTED)  # Python itself would wait for the thread that trains
        leave.set()
        node.stop()
        if not node.done:
            say("stopping after this round (once more to stop at once)")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError):  # Windows has no signal handlers on a loop
            loop.add_signal_handler(number, stop)
    return leave
