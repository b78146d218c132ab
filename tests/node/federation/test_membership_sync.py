"""Membership log of a running node and its file: equal as soon as the disk permits it."""

import asyncio
import os

import pytest

from p2pfl.node.federation import admission, loading, membership_sync
from p2pfl.node.federation.membership_file import MembershipFile, load_federation
from p2pfl.node.federation.membership_sync import MembershipSync, RevokedError
from p2pfl.node.federation.neighbourhood import Neighbourhood
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Request
from p2pfl.system.atomic_files import exclusive
from tests.support.fortress import folders, until
from tests.support.limits import limited
from tests.support.logs import log_to


class Peers:
    """A peer manager, as far as a change of the membership is concerned."""

    def __init__(self, around):
        self.peers, self.told = dict(around), 0

    def remove(self, name, reason):
        del self.peers[name]

    def add(self, name, member, source=True):
        self.peers[name] = member

    def gossip_membership(self):
        self.told += 1


class Node:
    """Bob's, of a federation of alice, bob and carol."""

    def __init__(self, root, monkeypatch, **options):
        monkeypatch.setattr(membership_sync, "LOOKING", 0.01)
        self.folders = folders(root, "alice", "bob", "carol")
        self.folder, self.said = self.folders["bob"], []
        ready = loading.load(self.folder)
        self.log, key = ready.membership, Identity.load(self.folder / "key.pem").public
        neighbourhood = Neighbourhood(ready, ())
        self.contacts = Peers(neighbourhood.members())
        self.file = MembershipFile(self.folder, **options)
        self.members = MembershipSync(ready, key, neighbourhood, self.contacts, file=self.file, log=log_to(self.said))

    def news(self, name):
        """Entries that say that somebody was revoked, as a peer has them."""
        admission.revoke(self.folders["alice"], name)
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


def test_members_write_down_what_peers_tell(bob):
    news = bob.news("carol")

    async def test():
        bob.log.extend(news)
        assert list(bob.contacts.peers) == ["alice"]  # acted on at once
        await until(lambda: bob.on_disk() == ["alice", "bob"])

    bob.run(test)
    assert bob.contacts.told == 1


def test_members_write_a_change_when_the_disk_has_room_again(bob):
    news, path = bob.news("carol"), bob.folder / "membership"

    async def test():
        with limited(100):
            bob.log.extend(news)
            await until(lambda: f"cannot write {path}: File too large; going on from memory" in bob.said)
            assert list(bob.contacts.peers) == ["alice"]
            assert bob.on_disk() == ["alice", "bob", "carol"]
        await until(lambda: bob.on_disk() == ["alice", "bob"])
        await until(lambda: "writes the membership log again" in bob.said)

    bob.run(test)
    about_disk = [line for line in bob.said if "write" in line]
    assert len(about_disk) == 2  # each is said once, however often it is tried


def test_members_wait_for_a_lock_and_the_node_does_not(tmp_path, monkeypatch):
    bob = Node(tmp_path, monkeypatch, patience=0.02)
    news, path = bob.news("carol"), bob.folder / "membership"

    async def test():
        with exclusive(bob.folder / "membership.lock"):
            bob.log.extend(news)
            held = f"cannot write {path}: another process has held its lock for 0.02 s; going on from memory"
            await until(lambda: held in bob.said)
            assert list(bob.contacts.peers) == ["alice"]
        await until(lambda: bob.on_disk() == ["alice", "bob"])

    bob.run(test)


def test_members_take_in_what_commands_write(bob):
    news = bob.news("carol")

    async def test():
        other = load_federation(bob.folder)
        other.extend(news)
        MembershipFile(bob.folder).save(other)
        await until(lambda: list(bob.contacts.peers) == ["alice"])
        assert bob.log.membership_version == other.membership_version

    bob.run(test)


def test_members_lose_nothing_that_comes_from_both_sides(bob):
    """A peer tells of one entry, and a command has written one more, while the disk was full."""
    alice = bob.folders["alice"]
    first = bob.news("carol")
    admission.admit(alice, _request(), "participant", alice / "bundle")
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


def test_members_end_a_node_that_is_revoked_itself(bob):
    async def test():
        running = asyncio.create_task(bob.members.run())
        bob.log.extend(bob.news("bob"))
        with pytest.raises(RevokedError, match="this node was revoked"):
            await running
        assert bob.on_disk() == ["alice", "carol"]

    asyncio.run(test())
