"""Floods, and members that do not read: honest nodes continue at bounded cost."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from p2pfl.node.federation.membership_file import MembershipFile, load_federation
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.transports.certificates import client_context
from p2pfl.protocols.transports.tls import LINKS_PER_KEY, STRANGERS
from p2pfl.protocols.wire import messages as m
from tests.support.depth import deep
from tests.support.loopback_nodes import Intruder, folders, honest, until

ROOT = Path(__file__).parents[3]
HALF_OPEN = 500


def count_open_files():
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 0


async def half_open(node, tls):
    """Connect, and neither send nor read."""
    with suppress(OSError):
        _, writer = await asyncio.open_connection(*split_address(node.transport.address), ssl=tls)
        writer.transport.pause_reading()
        try:
            await asyncio.Event().wait()
        finally:
            writer.transport.abort()


async def assert_served(asker, node):
    (update,) = await asker.exchange.fetch([node.name], 1, "trained")
    assert update.params.tobytes() == node.model.tobytes()


@pytest.mark.slow
def test_half_open_connections_do_not_block_peers(tmp_path, monkeypatch):
    for limit in ("HOST_BURST", "CONNECTION_BURST"):  # so that all of them count as strangers, for which the node waits
        monkeypatch.setattr(f"p2pfl.protocols.transports.tls.{limit}", 10 * HALF_OPEN)
    members = folders(tmp_path, "alice", "bob", "carol")

    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        async with honest(members["alice"]) as alice, honest(members["bob"]) as bob:
            await until(lambda: bob.exchange.peers["alice"].introduced and alice.exchange.peers["bob"].introduced)
            before, link, context = count_open_files(), alice.exchange.peers["bob"].link, client_context()
            flood = [asyncio.create_task(half_open(alice, context if k % 2 else None)) for k in range(HALF_OPEN)]
            await until(lambda: len(alice.transport.strangers) > STRANGERS // 2)
            async with honest(members["carol"]) as carol:  # a peer that connects during the flood
                while alice.rejected.get("not proven", 0) < HALF_OPEN // 2:
                    await assert_served(bob, alice)
                    await asyncio.sleep(0)
                    assert len(alice.transport.strangers) <= STRANGERS + 2  # plus the links that alice dials
                    assert len(asyncio.all_tasks() - set(flood)) <= 4 * STRANGERS
                    assert count_open_files() <= before + HALF_OPEN + 2 * STRANGERS
                await until(lambda: carol.exchange.peers["alice"].introduced)
                await assert_served(carol, alice)
                assert alice.exchange.peers["bob"].link is link
                assert "bob" in alice.exchange.view.ids
                assert set(alice.rejected) <= {"not proven", "no TLS"}
            for task in flood:
                task.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            await until(lambda: not alice.transport.strangers and count_open_files() <= before)
            assert faults == []

    asyncio.run(main())


@pytest.mark.slow
def test_member_that_never_reads_uses_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("p2pfl.protocols.transports.tls_link.STALLED", 0.5)
    members, size = folders(tmp_path, "alice", "bob", "mallory"), 2_000_000

    async def main():
        async with honest(members["alice"], size=size) as alice, honest(members["bob"], size=size) as bob:
            await until(lambda: bob.exchange.peers["alice"].introduced)
            identity, log = Identity.load(members["mallory"] / "key.pem"), Membership(alice.log.file, alice.log.encode())
            async with Intruder(identity, log, size=size) as mallory:
                link = await mallory.introduce(alice)
                link.connection.pause_reading()
                for number in range(200):
                    mallory.send(link, m.Get(number, 1, "trained"))
                await until(lambda: alice.exchange.traffic.received["get"])
                deaf = alice.exchange.peers["mallory"]
                while deaf.introduced:
                    await assert_served(bob, alice)
                    assert deaf.link is None or deaf.link.backlog < 3 * 4 * size
                assert "mallory" not in alice.exchange.view.ids
                assert "bob" in alice.exchange.view.ids
                assert alice.rejected == {}

    asyncio.run(main())


@pytest.mark.slow
def test_truncated_frame_closes_only_its_link(tmp_path):
    members = folders(tmp_path, "alice", "bob", "mallory")

    async def main():
        async with honest(members["alice"]) as alice, honest(members["bob"]) as bob:
            await until(lambda: bob.exchange.peers["alice"].introduced)
            identity, log = Identity.load(members["mallory"] / "key.pem"), Membership(alice.log.file, alice.log.encode())
            for incarnation, kept in enumerate((0, 3, 4, 5, 319, 3000)):
                async with Intruder(identity, log, incarnation=incarnation) as mallory:
                    link = await mallory.introduce(alice)
                    frame = mallory.seal(link, m.Score(1 << 20, 1), bytes(4000))
                    link.connection.write((len(frame).to_bytes(4, "big") + frame)[:kept])
                    link.close()
                await until(lambda: not alice.exchange.peers["mallory"].introduced)
                await assert_served(bob, alice)
            assert alice.exchange.traffic.received["score"] == 0
            assert "bob" in alice.exchange.view.ids

    asyncio.run(main())


@pytest.mark.slow
def test_links_per_member_are_limited(tmp_path):
    members = folders(tmp_path, "alice", "bob", "mallory")

    async def main():
        async with honest(members["alice"]) as alice, honest(members["bob"]) as bob:
            await until(lambda: bob.exchange.peers["alice"].introduced)
            identity, log = Identity.load(members["mallory"] / "key.pem"), Membership(alice.log.file, alice.log.encode())
            async with Intruder(identity, log) as mallory:
                for _ in range(3 * LINKS_PER_KEY):
                    link = await mallory.introduce(alice)
                await until(lambda: len(mallory.lost_links) == 2 * LINKS_PER_KEY)
                assert sum(one.key == mallory.key for one in alice.transport.links) == LINKS_PER_KEY
                await mallory.settled(link, alice)
                await assert_served(bob, alice)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.alone
@deep
def test_processes_continue_while_one_is_attacked(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "hostile.py"), "--quick", "--json", "figures.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["connections"]
    spells = ("rounds/s in peace", "rounds/s in the control", "rounds/s under attack")
    assert all(speed > 0 for kind in spells for speed in figures[kind])
    assert figures["files open"] < 4 * STRANGERS
    assert figures["rejected"]["not proven"] > 0
    assert figures["suspected"] == {"alice": [], "bob": [], "carol": []}
    assert "attack to control" in done.stdout


@pytest.mark.slow
def test_membership_log_longer_than_message_is_sent_in_full(tmp_path, monkeypatch):
    monkeypatch.setattr(m.Entries, "LIMIT", 600)  # two or three entries
    members = folders(tmp_path, "alice", "bob")
    known = (members["bob"] / "membership").read_bytes()
    admission_key = Identity.load(members["alice"] / "admission.pem")
    log = load_federation(members["alice"])
    for k in range(20):
        log.append(admission_key, "add", f"node-{k}", Identity.from_seed(bytes([k]) * 32).public)
    MembershipFile(members["alice"]).save(log)
    (members["bob"] / "membership").write_bytes(known)

    async def main():
        async with honest(members["alice"]) as alice, honest(members["bob"]) as bob:
            await until(lambda: bob.log.membership_version == alice.log.membership_version == 22)
            assert bob.rejected == {}
            assert "node-19" in bob.log.members

    asyncio.run(main())
