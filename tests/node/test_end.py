"""End of a live node by the seconds or the bytes of its rounds: where it ends, what it says, and what a restart keeps."""

import asyncio

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.settings import End, Settings, Used
from p2pfl.node.status.observer import StatusObserver
from p2pfl.node.status.text import describe
from p2pfl.policies.random import Random
from tests.support.federation import play
from tests.support.logs import log_to


def everyone():
    return Random(neighbours=9)


def test_node_ends_with_the_round_of_its_seconds_over_all_its_runs(tmp_path):
    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        kept = {name: federation.nodes[name].used for name in federation.names}
        for name in federation.names:
            await federation.kill(name)
        await asyncio.sleep(100)  # the time that the nodes are away does not count
        federation.start()
        await federation.done()
        for name, node in federation.nodes.items():
            assert kept[name].seconds <= node.used.seconds < 20
            assert node.end_reached.startswith("end.seconds is reached: ")
            assert 3 < node.round < 20
            assert node.why_early == node.end_reached

        federation.node_options["end"] = End(seconds=1000)  # the owner has raised the limit
        used = {name: node.used for name, node in federation.nodes.items()}
        federation.start()
        await federation.done()
        for name, node in federation.nodes.items():
            assert (node.round, node.why_early) == (20, "")
            assert node.used.seconds > used[name].seconds
            assert node.used.bytes > used[name].bytes > 0

    play(test, ["a", "b"], Settings(rounds=20, deadline=10.0), policy=everyone, folder=tmp_path, end=End(seconds=8.5))


def test_node_that_has_received_its_bytes_says_so_and_serves(tmp_path):
    lines = []

    async def test(federation):
        exchange = federation.exchange("a")
        observer = StatusObserver(tmp_path / "status.json", exchange, log_to(lines))
        node = federation.make("a", exchange=exchange, observer=observer)
        observer.begin(node)
        federation.node_options["end"] = End()
        federation.start("b")
        await node.run()
        await federation.done()
        assert federation.nodes["b"].round == 8
        observer.serving()
        state = observer.fresh()
        assert 0 < node.round < 8
        limits = state["end"]["bytes"]
        assert limits["limit"] <= limits["used"] == node.used.bytes
        assert state["ended_early"] == f"end.bytes is reached: {limits['used']:,} of 1,000 bytes"
        assert ["ended", "before all rounds: " + state["ended_early"]] in [line.split(None, 1) for line in describe(state)]

    play(test, ["a", "b"], Settings(rounds=8, deadline=10.0), policy=everyone, end=End(bytes=1000))
    assert any("ending after round" in line and "end.bytes is reached" in line for line in map(str, lines))
    assert any("the rounds have ended early; serving" in line for line in map(str, lines))


def test_limits_of_a_node_are_checked_and_shown():
    with pytest.raises(ConfigurationError, match=r"end\.bytes must be 0 or more, and finite, got -1"):
        NodeConfig(name="a", listen=":1", end=End(bytes=-1)).check()
    assert End(seconds=60).reached(Used(seconds=59.9, bytes=10**9)) == ""
    assert End(seconds=60).reached(Used(seconds=60.0)) == "end.seconds is reached: 60 of 60 s"
