"""Presences that a broker has retained: all of them arrive at once, more than may be verified in a second."""

import asyncio

from p2pfl.protocols.identity import Identity
from p2pfl.protocols.mqtt.packets import VERIFICATIONS, HandshakeLimits
from p2pfl.protocols.mqtt.transport import Presence, PresenceObserver, sign
from p2pfl.sim.simulation.clock import run
from tests.support.gates import Club

MEMBERS = [Identity.from_seed(k.to_bytes(32, "big")) for k in range(1, 251)]


class Observer(PresenceObserver):
    """Observer of the first member, which records the members that it finds, and the seconds of each."""

    def __init__(self, access):
        self.found, self.addresses, self.causes = {}, [], []
        super().__init__(
            MEMBERS[0].public,
            access,
            HandshakeLimits(access),
            found=self.record,
            hinted=lambda key: None,
            refused=lambda cause, detail: self.causes.append(cause),
        )

    def record(self, key, address):
        self.found.setdefault(key, asyncio.get_running_loop().time())
        self.addresses.append(address)


def presence_of(member, access, sequence=1, address="tcp://10.0.0.1:4100"):
    return sign(
        member,
        Presence(
            federation=access.federation,
            key=member.public,
            incarnation=1,
            sequence=sequence,
            addresses=(address,),
            online=True,
        ),
    )


def test_retained_presences_beyond_limit_are_verified_later():
    async def main():
        access = Club(*MEMBERS)
        observer = Observer(access)
        for member in MEMBERS[1:]:
            observer.presence(member.public, presence_of(member, access))
        assert len(observer.found) == VERIFICATIONS
        await asyncio.sleep(10.0)
        assert set(observer.found) == {member.public for member in MEMBERS[1:]}
        times = sorted(observer.found.values())
        for first, last in zip(times, times[VERIFICATIONS:], strict=False):
            assert last - first >= 1.0  # in no second more than permitted
        assert observer.causes == []

    run(main())


def test_members_that_announce_themselves_may_dial_at_once():
    async def main():
        limits = HandshakeLimits(Club(*MEMBERS))
        for _ in range(3):  # second after second
            for member in MEMBERS[:VERIFICATIONS]:
                assert limits.may_verify(member.public)
                assert limits.may_begin(member.public)
            await asyncio.sleep(1.0)

    run(main())


def test_member_has_one_place_among_waiting_presences():
    async def main():
        access = Club(*MEMBERS[:3])
        observer, bob = Observer(access), MEMBERS[1]
        for sequence in range(1, 2 * VERIFICATIONS):
            observer.presence(bob.public, presence_of(bob, access, sequence, f"tcp://10.0.0.1:{sequence}"))
        await asyncio.sleep(20.0)
        newest = f"tcp://10.0.0.1:{2 * VERIFICATIONS - 1}"
        assert observer.addresses[-2:] == [newest, "mqtt:"]
        assert observer.causes == []

    run(main())


def test_presence_of_member_that_leaves_meanwhile_is_not_used():
    async def main():
        access = Club(*MEMBERS)
        observer = Observer(access)
        for member in MEMBERS[1:]:
            observer.presence(member.public, presence_of(member, access))
        last = MEMBERS[-1].public
        access.members.discard(last)
        await asyncio.sleep(10.0)
        assert last not in observer.found
        assert len(observer.found) == len(MEMBERS) - 2
        assert observer.causes == []

    run(main())
