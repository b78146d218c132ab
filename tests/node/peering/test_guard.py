"""Temporary exclusion of members that send garbage."""

import asyncio
import os

import pytest

from p2pfl.node.peering.peering_config import CAUSE, FIRST_EXCLUSION, FORGIVEN, LONGEST_EXCLUSION, TOLERATED, Guard
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.wire import messages as m
from tests.support.loopback_nodes import Intruder, folders, honest, until

KEY, OTHER = bytes(32), bytes([1]) * 32


class OpenAccessControl:
    federation, invites, membership_version = bytes(16), False, 3

    def refusal(self, key):
        return "stranger" if key == OTHER else ""

    def after(self, membership_version, limit):
        return b"entries"

    def extend(self, entries):
        return len(entries)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def guard():
    clock = Clock()
    return Guard(OpenAccessControl(), clock), clock


def test_guard_excludes_member_after_many_offences():
    access, clock = guard()
    assert [access.offend(KEY, "malformed") for _ in range(TOLERATED + 1)] == [False] * TOLERATED + [True]
    assert access.refusal(KEY) == CAUSE
    assert access.seconds_left(KEY) == FIRST_EXCLUSION
    clock.now += FIRST_EXCLUSION
    assert access.refusal(KEY) == ""


def test_guard_doubles_exclusion_at_each_repeat():
    access, clock = guard()
    pauses = []
    for _ in range(10):
        while not access.offend(KEY, "wrong signature"):
            pass
        pauses.append(access.seconds_left(KEY))
        clock.now += access.seconds_left(KEY)
    assert pauses[:3] == [FIRST_EXCLUSION, 2 * FIRST_EXCLUSION, 4 * FIRST_EXCLUSION]
    assert pauses[-1] == LONGEST_EXCLUSION


def test_guard_tolerates_same_number_after_exclusion():
    access, clock = guard()
    for _ in range(3):
        assert [access.offend(KEY, "malformed") for _ in range(TOLERATED + 1)] == [False] * TOLERATED + [True]
        clock.now += access.seconds_left(KEY)


def test_guard_forgives_rare_offences():
    access, clock = guard()
    for _ in range(1000):
        assert not access.offend(KEY, "malformed")
        clock.now += 1 / FORGIVEN


def test_guard_ignores_causes_that_honest_members_produce():
    access, _ = guard()
    assert not any(access.offend(KEY, cause) for cause in ("replay", "lower term", "differs", "not introduced") * 100)


def test_guard_delegates_to_access_control():
    access, _ = guard()
    assert (access.federation, access.invites, access.membership_version) == (bytes(16), False, 3)
    assert access.refusal(OTHER) == "stranger"
    assert access.after(1, 2) == b"entries"
    assert access.extend(b"two") == 3


@pytest.mark.slow
def test_member_that_sends_garbage_is_reported_and_excluded(tmp_path):
    members = folders(tmp_path, "alice", "bob", "mallory")

    async def main():
        async with honest(members["alice"], guarded=True) as alice, honest(members["bob"]) as bob:
            await until(lambda: bob.exchange.peers["alice"].introduced)
            identity, log = Identity.load(members["mallory"] / "key.pem"), Membership(alice.log.file, alice.log.encode())
            async with Intruder(identity, log) as mallory:
                link = await mallory.introduce(alice)
                for _ in range(20):
                    link.send([os.urandom(400)])
                peer = alice.exchange.peers["mallory"]
                await until(lambda: not peer.introduced)
                assert peer.offences.total() > TOLERATED
                assert "excluded for 60 s" in alice.exchange.view.suspected["mallory"]
                await until(lambda: link in mallory.lost_links)
                assert "bob" in alice.exchange.view.ids
                again = await mallory.dial(alice) if alice.transport.credentials.access.refusal(mallory.key) == "" else None
                assert again is None

    asyncio.run(main())


@pytest.mark.slow
def test_membership_log_is_sent_to_member_few_times_only(tmp_path):
    members = folders(tmp_path, "alice", "mallory")

    async def main():
        async with honest(members["alice"]) as alice:
            identity, log = Identity.load(members["mallory"] / "key.pem"), Membership(alice.log.file, alice.log.encode())
            async with Intruder(identity, log) as mallory:
                link = await mallory.introduce(alice)
                terms = m.HelloParameters({"size": "1000"}, {"n_samples": 50}, 1, False, 0).encode()
                for _ in range(50):
                    mallory.send(link, m.Hello(), terms)
                frames = await mallory.settled(link, alice)
                assert sum(b"entries" in frame[:256] for frame in frames) <= 4

    asyncio.run(main())
