"""Runs one node as a process: its folder, its signals, its event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from node import config as folders
from node import tables
from node.checkpoint import FileStore
from node.commands import INTERRUPTED
from node.config import NodeConfig
from node.messaging import MessageExchange
from node.node import Node
from node.status import StatusBoard
from node.trainer import ThreadTrainer
from node.wiring import describe, max_frame, message_exchange
from p2pfl.errors import ConfigurationError
from p2pfl.policies import make_policy
from p2pfl.randomness import Draws
from p2pfl.task import Part, make_task
from protocols.errors import AddressError, IdentityError, TransportError
from protocols.identity import Identity
from protocols.tcp import TcpTransport

Say = Callable[[str], None]


def run(folder: Path, changes: Sequence[str], say: Say) -> int:
    """Run the node of a folder until its rounds are done and its peers need it no more; return the exit code.

    Raises:
        ConfigurationError: the configuration is wrong, the key is readable by others, the port is in use.
    """
    config = folders.load(folder, changes)
    for path in (str(folder), str(Path.cwd())):  # where a user's own policy and task may lie
        if path not in sys.path:
            sys.path.insert(0, path)
    with folders.lock(folder):
        loop_factory = None
        with suppress(ImportError):  # not on Windows
            import uvloop

            loop_factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            try:
                return runner.run(_run(folder, config, say))
            except (IdentityError, AddressError, TransportError) as error:  # of transport errors only: cannot listen
                raise ConfigurationError(str(error)) from error


async def _run(folder: Path, config: NodeConfig, say: Say) -> int:
    members = config.members()
    identity = Identity.load(folder / folders.KEY)
    task_name, task_options = tables.named("task", config.task)
    with folders.said_of(folder / folders.CONFIG):
        task = make_task(task_name, task_options, Part.parse(config.part), config.seed)
        policy = make_policy(*tables.named("policy", config.policy))
        trainer = ThreadTrainer(task.learner(Draws(config.seed, config.name), config.device))
    size = task.layout.size
    exchange = message_exchange(
        config.name,
        members,
        identity=identity,
        transport=TcpTransport(config.listen, max_frame(size)),
        boot=folders.next_boot(folder),
        federation=config.federation,
        task=task,
        trainer=trainer,
        settings=config,
        agreed=describe("task", config.task) | describe("policy", config.policy),
    )
    board = StatusBoard(folder / folders.STATUS, exchange, say)
    node = Node(
        config.name,
        [config.name, *members],
        task=task,
        policy=policy,
        trainer=trainer,
        exchange=exchange,
        settings=config,
        store=FileStore(folder / folders.CHECKPOINT, say),
        observer=board,
    )
    board.begin(node)
    leave = _on_signals(node, board, say)
    strays = _on_stray_errors()
    try:
        await node.run(lambda: _until_nobody_needs_it(exchange, leave))
    except asyncio.CancelledError:
        if strays:
            board.ended("failed", str(strays[0]))
            raise strays[0] from None
        board.ended("stopped")
        return INTERRUPTED
    except BaseException as error:
        board.ended("failed", str(error) or type(error).__name__)
        raise
    finally:
        trainer.close()
    if leave.is_set() and not node.done:
        board.ended("stopped")
        say(f"stopped after round {node.round}; run again to go on")
        return INTERRUPTED
    board.ended("finished")
    return 0


async def _until_nobody_needs_it(exchange: MessageExchange, leave: asyncio.Event) -> None:
    waits = [asyncio.create_task(exchange.others_done()), asyncio.create_task(leave.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


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
        say("stopping after this round (once more to stop at once)")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError):  # Windows has no signal handlers on a loop
            loop.add_signal_handler(number, stop)
    return leave


def _on_stray_errors() -> list[BaseException]:
    """End the node on an error in a callback, which asyncio would only log; return the list that it will be in."""
    errors: list[BaseException] = []
    main = asyncio.current_task()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(context.get("exception") or RuntimeError(context["message"]))
        if main is not None:
            main.cancel()

    asyncio.get_running_loop().set_exception_handler(handle)
    return errors
