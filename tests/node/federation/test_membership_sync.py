"""Membership log of a running node and its file: equal as soon as the disk permits it."""

import asyncio
import json
import os
from collections import Counter

import msgspec
import pytest

from p2pfl._util.disk import SYSTEM, exclusive
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import loading, membership_changes, membership_sync
from p2pfl.node.federation.membership_file import MembershipFile, RevokedError, describe_fork, load_federation
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.status import reader
from p2pfl.node.status.text import describe
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Request
from tests.support.limits import limited
from tests.support.logs import log_to
from tests.support.loopback_nodes import folders, until


class Peers:
    """The part of a peer manager that membership changes use."""

    def __init__(self, around):
        self.peers, self.told = dict(around), 0
        self.gossip = self

    def remove(self, name, reason):
        del self.peers[name]

    def forget_released(self): ...

    def add(self, name, member, source=True):
        self.peers[name] = member

    def spread(self, urgent):
        self.told += 1


class Node:
    """Bob's node in a federation of alice, bob and carol."""

    def __init__(self, root, monkeypatch, **options):
        monkeypatch.setattr(membership_sync, "LOOKING", 0.01)
        self.folders = folders(root, "alice", "bob", "carol")
        self.folder, self.said = self.folders["bob"], []
        ready = loading.load(self.folder)
        self.log, key = ready.membership, Identity.load(self.folder / "key.pem").public
        neighbourhood = Neighbourhood(ready, ())
        self.peering = Peers(neighbourhood.members())
        self.file = MembershipFile(self.folder, **options)
        self.members = MembershipSync(ready, key, neighbourhood, self.peering, file=self.file, log=log_to(self.said))

    def revoke(self, name):
        """Revoke a member at alice; return the log that a peer would send."""
        membership_changes.revoke(self.folders["alice"], name)
        return load_federation(self.folders["alice"]).encode()

    def on_disk(self):
        return list(load_federation(self.folder).members)

    def run(self, test):
        async def main():
            running = asyncio.create_task(self.members.run())
            try:
                await until(lambda: self.file.membership_version == self.log.membership_version)
                await test()
            finally:
                running.cancel()

        asyncio.run(main())


@pytest.fixture
def bob(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


def test_membership_sync_saves_entries_of_peers(bob):
    news = bob.revoke("carol")

    async def test():
        bob.log.extend(news)
        assert list(bob.peering.peers) == ["alice"]  # the change takes effect at once
        await until(lambda: bob.on_disk() == ["alice", "bob"])

    bob.run(test)
    assert bob.peering.told == 1


class CountingDisk:
    """The disk of the system, which counts the files that are created to replace others, and looks at the log's file."""

    def __init__(self):
        self.created, self.looks = Counter(), 0

    def __getattr__(self, name):
        return getattr(SYSTEM, name)

    def create(self, path, *given):
        self.created[path.name] += 1
        SYSTEM.create(path, *given)

    def stamp(self, path):
        self.looks += 1
        return SYSTEM.stamp(path)

    async def look(self):
        """Wait until the node has looked ten times whether the file has changed."""
        begun = self.looks
        await until(lambda: self.looks >= begun + 10)


def test_change_is_written_once_to_the_file_and_once_to_its_copy(tmp_path, monkeypatch):
    disk = CountingDisk()
    bob = Node(tmp_path, monkeypatch, disk=disk)
    news = bob.revoke("carol")
    once = {"membership.new": 1, "membership.copy.new": 1}

    async def test():
        await until(lambda: not bob.file.is_behind)  # the copy of the first log, which this folder lacks
        disk.created.clear()
        bob.log.extend(news)
        await until(lambda: bob.on_disk() == ["alice", "bob"])
        await disk.look()
        assert disk.created == once
        membership_changes.extend(bob.folders["alice"], 99)
        log = load_federation(bob.folders["alice"])
        MembershipFile(bob.folder).save(log)  # as a command does, which is another process
        await until(lambda: bob.log.rounds == 99)
        await disk.look()
        assert disk.created == once  # what the command has written is not written again

    bob.run(test)


def test_membership_sync_keeps_proof_of_fork_and_reports_it_once(bob):
    alice = bob.folders["alice"]
    backup = (alice / "membership").read_bytes()
    membership_changes.revoke(alice, "carol")
    theirs = load_federation(alice)
    for name in ("membership", "membership.copy"):
        (alice / name).write_bytes(backup)  # the owner restores a backup, and signs another entry with the same number
    membership_changes.extend(alice, 99)
    bob.log.extend(load_federation(alice).encode())

    async def test():
        for _ in range(3):
            with pytest.raises(ProtocolError, match="membership fork"):
                bob.log.extend(theirs.encode())
        await until(lambda: any("two different entries" in line for line in bob.said))

    bob.run(test)
    status = {"state": "stopped", "pid": 1, "history": [], "federation_id": bob.log.federation.hex()}
    (bob.folder / "status.json").write_text(json.dumps(status))
    assert f"  fork  {describe_fork(bob.log)}" in describe(reader.current(bob.folder))
    told = [line for line in bob.said if "two different entries" in line]
    assert told == [describe_fork(load_federation(bob.folder))]
    assert "the number 4:" in told[0]
    assert bob.on_disk() == ["alice", "bob", "carol"]
    assert load_federation(bob.folder).rounds == 99


def test_proof_of_fork_in_folder_must_hold(bob):
    log, other = load_federation(bob.folder), load_federation(bob.folder)
    admission = Identity.load(bob.folders["alice"] / "admission.pem")
    log.append(admission, "remove", "carol", log.members["carol"].key)
    other.append_extension(admission, 99)
    MembershipFile(bob.folder).save(log)
    one, two = (each.after(3, 4096)[1:] for each in (log, other))
    forged = Identity.from_seed(bytes(32))
    entry = msgspec.msgpack.decode(two)[0]
    stranger = msgspec.msgpack.encode([entry, forged.sign(b"p2pfl membership 2\0" + entry)])
    for proof, holds in [((one, stranger), False), ((one, one), False), ((one, two), True)]:
        bob.file.save_fork(proof)
        assert (load_federation(bob.folder).fork == proof) is holds
    content = (bob.folder / "fork").read_bytes()
    (bob.folder / "fork").write_bytes(content[:-1])
    with pytest.raises(ConfigurationError, match="fork is damaged: its checksum is wrong; remove it"):
        load_federation(bob.folder)


def test_membership_sync_saves_after_disk_was_full(bob):
    news, path = bob.revoke("carol"), bob.folder / "membership"

    async def test():
        with limited(100):
            bob.log.extend(news)
            await until(lambda: f"cannot write {path}: File too large; continuing in memory" in bob.said)
            assert list(bob.peering.peers) == ["alice"]
            assert bob.on_disk() == ["alice", "bob", "carol"]
        await until(lambda: bob.on_disk() == ["alice", "bob"])
        await until(lambda: "can write the membership log again" in bob.said)

    bob.run(test)
    about_disk = [line for line in bob.said if "write" in line]
    assert len(about_disk) == 2  # each message appears once, although the write is retried


def test_membership_sync_mends_a_damaged_log(bob):
    path = bob.folder / "membership"

    async def test():
        path.write_bytes(b"")
        await until(lambda: bob.on_disk() == ["alice", "bob", "carol"] and path.stat().st_size)

    bob.run(test)
    assert path.read_bytes() == (bob.folder / "membership.copy").read_bytes()


@pytest.mark.slow
def test_membership_sync_waits_for_lock_without_blocking_node(tmp_path, monkeypatch):
    bob = Node(tmp_path, monkeypatch, patience=0.02)
    news, path = bob.revoke("carol"), bob.folder / "membership"

    async def test():
        with exclusive(bob.folder / "membership.lock"):
            bob.log.extend(news)
            held = f"cannot write {path}.lock: another process has locked it for 0.02 s; continuing in memory"
            await until(lambda: held in bob.said)
            assert list(bob.peering.peers) == ["alice"]
        await until(lambda: bob.on_disk() == ["alice", "bob"])

    bob.run(test)


def test_membership_sync_reads_entries_of_commands(bob):
    news = bob.revoke("carol")

    async def test():
        other = load_federation(bob.folder)
        other.extend(news)
        MembershipFile(bob.folder).save(other)
        await until(lambda: list(bob.peering.peers) == ["alice"])
        assert bob.log.membership_version == other.membership_version

    bob.run(test)


def test_membership_sync_merges_entries_of_peers_and_commands(bob):
    """While the disk was full, a peer sent one entry and a command wrote one more."""
    alice = bob.folders["alice"]
    first = bob.revoke("carol")
    membership_changes.admit(alice, _request(), "participant", alice / "bundle")
    second = load_federation(alice)

    async def test():
        with limited(100):
            bob.log.extend(first)
            await until(lambda: any("cannot write" in line for line in bob.said))
        MembershipFile(bob.folder).save(second.copy())
        await until(lambda: bob.log.membership_version == second.membership_version)
        await until(lambda: bob.on_disk() == ["alice", "bob", "dave"])

    bob.run(test)


def _request():
    return Request.make(Identity.from_seed(os.urandom(32)), "dave")


def test_membership_sync_ends_revoked_node(bob):
    async def test():
        running = asyncio.create_task(bob.members.run())
        bob.log.extend(bob.revoke("bob"))
        with pytest.raises(RevokedError, match="the membership of this node, bob, in test was revoked"):
            await running
        assert bob.on_disk() == ["alice", "carol"]

    asyncio.run(test())
