"""Failures of a node's parts: they are restarted and counted, and the node continues."""

import asyncio
import gc
import json
from contextlib import suppress
from itertools import cycle, pairwise

import aiomqtt
import pytest

from p2pfl._util import http_server as pages
from p2pfl.node import connectivity
from p2pfl.node.connectivity import FIRST_PAUSE, LONGEST_PAUSE, STRAY, Supervisor
from p2pfl.node.federation import loading
from p2pfl.node.folder import config
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.runtime import run as runtime
from p2pfl.node.settings import Settings
from p2pfl.node.status import reader
from p2pfl.policies.random import Random
from p2pfl.protocols import discovery
from p2pfl.protocols.mqtt.transport import MqttTransport
from p2pfl.sim.simulation.clock import run
from tests.support import brokers
from tests.support.depth import spread
from tests.support.federation import play
from tests.support.logs import log_to
from tests.support.loops import LOOPS, run_on
from tests.support.processes import Processes


def fail(*args, **options):
    raise KeyError("chaos\x1b[2J")


# On virtual time


def test_supervisor_restarts_failed_part_after_growing_pauses():
    said, starts = [], []

    async def main():
        loop = asyncio.get_running_loop()

        async def work():
            starts.append(loop.time())
            if len(starts) == 10:
                await asyncio.sleep(2 * LONGEST_PAUSE)  # the part runs without error for a while
            if len(starts) < 13:
                fail()

        watched = Supervisor(log_to(said))
        await watched.run("part", work)
        return watched

    watched = run(main())
    pauses = [after - before for before, after in pairwise(starts)]
    assert pauses[:9] == [FIRST_PAUSE * 2**k for k in range(6)] + [LONGEST_PAUSE] * 3
    assert pauses[9:] == [2 * LONGEST_PAUSE + FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert watched.faults == {"part": 12}
    assert len(said) == 1
    assert said[0].startswith("error in part, the node continues: KeyError: 'chaos")
    assert said[0].isprintable()


def test_supervisor_names_origin_of_stray_error():
    said = []
    watched, loop = Supervisor(log_to(said)), asyncio.new_event_loop()
    loop.close()
    watched.stray(loop, {"message": "Task was destroyed but it is pending!", "task": "<Task dial>"})
    watched.stray(loop, {"message": "Exception in callback close()", "exception": KeyError("chaos")})
    assert watched.faults == {STRAY: 2}
    lost, raised = said
    assert lost.endswith("an error without exception; Task was destroyed but it is pending!: '<Task dial>'")
    assert raised.endswith("KeyError: 'chaos'; Exception in callback close()")


def test_supervisor_ends_part_that_fails_during_cancellation():
    async def main():
        async def work():
            try:
                await asyncio.sleep(1000)
            finally:
                fail()

        watched = Supervisor()
        task = asyncio.create_task(watched.run("part", work))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert watched.faults == {"part": 1}

    run(main())


# In a live node

TOML = """
rounds = 1000000
members = 1
deadline = 0.5
status_port = 0
broker = "mqtt://127.0.0.1:{port}"
task = {{ name = "concept-shift" }}
policy = {{ name = "random" }}
"""


class LiveNode:
    """Node that runs on this event loop, with its status and its log lines."""

    def __init__(self, root, port=1, changes=()):
        self.folder = Processes(root, ("alice", "bob"), TOML.format(port=port)).folders["alice"]
        self.changes = changes
        self.said = []

    async def __aenter__(self):
        self.task = asyncio.create_task(
            runtime.run_loaded(loading.load(self.folder, self.changes), log_to(self.said), False)
        )
        await self.until(lambda status: status["round"] >= 2)
        return self

    async def __aexit__(self, *error):
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    def status(self):
        try:
            return json.loads((self.folder / config.STATUS).read_text())
        except FileNotFoundError:
            return {"round": 0, "faults": {}}

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition(self.status()):
                if self.task.done():
                    await self.task
                    raise AssertionError(self.said)
                await asyncio.sleep(0.02)  # of real time: this is a real node

    async def makes_progress(self):
        round = self.status()["round"]
        await self.until(lambda status: status["round"] >= round + 3)


class FailingFunction:
    """Replaces a function so that it fails `times` times and then works again; `broken` counts the failures."""

    def __init__(self, monkeypatch, owner, name, times=2):
        self.real, self.broken = getattr(owner, name), 0
        self.worked = asyncio.Event()

        def breaking(*args, **options):
            if self.broken < times:
                self.broken += 1
                fail()
            self.worked.set()
            return self.real(*args, **options)

        monkeypatch.setattr(owner, name, breaking)


PARTS = {
    "broker, connecting": ("broker", aiomqtt.Client, "__init__"),
    "broker, subscribing": ("broker", aiomqtt.Client, "subscribe"),
    "broker, publishing": ("broker", aiomqtt.Client, "publish"),
    "broker, looking at a message": ("links", MqttTransport, "_look_at"),
    "mdns": ("mdns", discovery, "AsyncZeroconf"),
    "mdns, browsing": ("mdns", discovery, "AsyncServiceBrowser"),
    "page": ("page", pages, "_abort"),
    "status socket": ("status socket", reader, "_listening"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "loop"), spread(zip(PARTS, cycle(LOOPS), strict=False), 3))
def test_node_restarts_failed_part_and_continues(tmp_path, monkeypatch, what, loop):
    part, owner, name = PARTS[what]
    monkeypatch.setattr(connectivity, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(runtime, "FRESH", 0.2)
    monkeypatch.setattr(pages, "LONGEST", 0.1)

    async def main(port):
        breaking = FailingFunction(monkeypatch, owner, name)
        async with LiveNode(tmp_path, port, ["mdns=true"] if part == "mdns" else []) as live:
            async with asyncio.timeout(60):
                await breaking.worked.wait()
            await live.until(lambda status: status["faults"] == {part: 2} and not status["broker"])
            await live.makes_progress()
        assert len([line for line in live.said if line.startswith("error in ")]) == 1
        assert live.status()["reason"] == ""

    with brokers.mosquitto() as broker:
        run_on(loop, main(broker.port))


@pytest.mark.slow
def test_node_counts_unawaited_errors_and_continues(tmp_path, monkeypatch, on_loop):
    monkeypatch.setattr(runtime, "FRESH", 0.2)

    async def unawaited():
        fail()

    async def main():
        async with LiveNode(tmp_path) as live:
            asyncio.get_running_loop().call_soon(fail)
            task = asyncio.create_task(unawaited())
            await asyncio.wait([task])
            del task
            gc.collect()
            await live.until(lambda status: status["faults"] == {STRAY: 2})
            await live.makes_progress()
        assert [line.partition(":")[0] for line in live.said if line.startswith("error in ")] == [
            f"error in {STRAY}, the node continues"
        ]

    on_loop(main())


@pytest.mark.slow
@pytest.mark.parametrize(("trick", "loop"), spread(zip(brokers.TRICKS, cycle(LOOPS), strict=False), 5))
def test_node_survives_broker_that_sends_garbage(tmp_path, monkeypatch, trick, loop):
    monkeypatch.setattr("p2pfl.protocols.mqtt.broker_client.CONNECTING", 0.3)

    async def main():
        async with brokers.tricking(trick) as (url, ended), LiveNode(tmp_path, url.rpartition(":")[2]) as live:
            async with asyncio.timeout(60):
                await ended.wait()
            gc.collect()
            await live.makes_progress()
            assert live.status()["faults"] == {}
            assert live.status()["broker"]

    run_on(loop, main())


@pytest.mark.slow
def test_node_reports_first_error_not_errors_of_cleanup(tmp_path, monkeypatch, on_loop):
    async def broken(self, me, peers):
        if me.round == 3:
            raise RuntimeError("the first error")
        return await real(self, me, peers)

    def closing(close):
        async def late(self):
            await close(self)
            raise KeyError("a later error")

        return late

    async def main():
        with pytest.raises(RuntimeError, match="the first error"):
            async with LiveNode(tmp_path) as live:
                await live.makes_progress()
        return live

    real = Random.round
    monkeypatch.setattr(Random, "round", broken)
    for kind in (pages.PageServer, MqttTransport, PeerManager):
        monkeypatch.setattr(kind, "close", closing(kind.close))
    status = on_loop(main()).status()
    assert (status["state"], status["reason"]) == ("failed", "the first error")


# A message that cannot be handled


@pytest.mark.slow
def test_error_in_message_handler_closes_only_its_link():
    watched = Supervisor()

    async def main(federation):
        federation.start()
        for name in "abc":
            await federation.round(name, 2)
        exchange = federation.nodes["a"].exchange
        link, handle = exchange.peers["b"].link, exchange.handle

        def breaking(peer, opened):
            if peer.link is link:
                fail()
            handle(peer, opened)

        exchange.handle = breaking
        await federation.done()
        assert watched.faults == {"links": 1}
        assert exchange.peers["b"].link is not link

    federation = play(main, "abc", Settings(rounds=30, deadline=10.0), period=1.0, on_fault=watched.fault)
    for name in "abc":
        assert sorted(federation.watch[name].weights) == list(range(1, 31))
        assert set(federation.watch[name].weights[30]) == set("abc")
