"""Intruders at a node: each is refused for a separately counted reason, changes nothing, and receives no model."""

import asyncio
import time
from hashlib import sha256

import msgspec
import pytest

from p2pfl.node.federation import invitations
from p2pfl.node.federation.invitations import RECOVERY, REFUSALS
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import Join, Joined, decode_answer, encode_join, new_secret
from p2pfl.protocols.membership.log import Entry, Membership, Signed
from p2pfl.protocols.transports.certificates import client_context, make_certificate, server_context
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import HEADER_SIZE, VERSION
from tests.support.brokers import MemoryBroker
from tests.support.loopback_nodes import Intruder, Relay, folders, honest, somebody, until


@pytest.fixture
def members(tmp_path):
    """Folders of alice, who has the admission key, carol, and mallory, who is malicious."""
    return folders(tmp_path, "alice", "carol", "mallory")


def key(members, name):
    return Identity.load(members[name] / "key.pem")


def access(node):
    return Membership(node.log.file, node.log.encode())


def assert_unchanged(node, before, intruder, rejected):
    """Check that only the counts of rejected messages changed, and that the intruder received no model data."""
    assert node.rejected == rejected
    assert node.state() == before
    assert node.model.tobytes()[:64] not in intruder.everything()


def ask(number=1):
    return m.Get(number, 1, "trained")


# Before a link exists


def stranger(node, members):
    return Intruder(somebody(), access(node))


def claims_a_members_key(node, members):
    intruder = stranger(node, members)

    class Liar:
        public = key(members, "mallory").public
        sign = intruder.identity.sign

    intruder.transport.credentials.identity = Liar
    return intruder


def of_another_federation(node, members):
    admission_key, own = somebody(), key(members, "mallory")
    log = Membership(Federation.sign({"name": "test"}, admission_key))
    log.append(admission_key, "add", "mallory", own.public)
    return Intruder(own, log)


def with_forged_log(node, members):
    """Return an intruder with an entry that follows the node's log, but carries the intruder's own signature."""
    forger, log = somebody(), access(node)
    last = msgspec.msgpack.decode(log.encode(), type=list[msgspec.Raw])[-1]
    entry = Entry(
        log.federation, log.membership_version + 1, sha256(last).digest(), "add", "eve", forger.public, "participant"
    )
    encoded = msgspec.msgpack.encode(entry)

    class Forged:
        federation, membership_version = log.federation, log.membership_version + 1

        @staticmethod
        def after(membership_version, limit):
            return msgspec.msgpack.encode([Signed(encoded, forger.sign(b"p2pfl membership 1\0" + encoded))])

    return Intruder(forger, Forged)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (stranger, "stranger"),
        (claims_a_members_key, "wrong proof"),
        (of_another_federation, "other federation"),
        (with_forged_log, "membership"),
    ],
)
def test_node_refuses_link_of_non_member(members, make, cause):
    async def main():
        async with honest(members["alice"]) as alice:
            before = alice.state()
            async with make(alice, members) as intruder:
                with pytest.raises(TransportError, match=f"refuses this node: {cause}"):
                    await intruder.dial(alice)
                assert not alice.transport.links
                assert_unchanged(alice, before, intruder, {cause: 1})

    asyncio.run(main())


@pytest.mark.parametrize("version", [2, 66])
def test_dialler_sends_nothing_to_server_with_wrong_key(members, version):
    async def main():
        eve = somebody()
        certificate = make_certificate(eve).replace(b"\xa0\x03\x02\x01\x02", bytes([0xA0, 3, 2, 1, version]))
        async with (
            honest(members["alice"]) as alice,
            Relay(alice, server_context(eve, certificate), client_context()) as relay,
            honest(members["carol"], addresses={"alice": relay.address}) as carol,
        ):
            await until(lambda: carol.rejected)
            assert set(carol.rejected) == {"wrong key"}
            assert not carol.exchange.peers["alice"].introduced
            assert relay.from_dialler == b""

    asyncio.run(main())


def test_handshake_relayed_by_member_is_rejected(members):
    """Carol dials mallory, who relays her proof to alice."""

    async def main():
        mallory = key(members, "mallory")
        async with (
            honest(members["alice"], addresses={}) as alice,
            Relay(alice, server_context(mallory, make_certificate(mallory)), client_context()) as relay,
        ):
            before = alice.state()
            async with honest(members["carol"], addresses={"mallory": relay.address}) as carol:
                await until(lambda: alice.rejected)
                assert not carol.exchange.peers["mallory"].introduced
                assert carol.rejected == {}
            assert set(alice.rejected) == {"wrong proof"}
            assert alice.state() == before
            assert alice.model.tobytes()[:64] not in relay.from_node

    asyncio.run(main())


def test_recorded_session_sent_again_is_rejected(members):
    async def main():
        async with honest(members["alice"], addresses={}) as alice, Relay(alice) as relay:
            async with honest(members["carol"], addresses={"alice": relay.address}) as carol:
                await until(lambda: carol.exchange.peers["alice"].introduced)
                (update,) = await carol.exchange.fetch(["alice"], 1, "trained")
                assert update.params.tobytes() == alice.model.tobytes()
            await until(lambda: not alice.exchange.peers["carol"].introduced)
            assert alice.model.tobytes()[:64] not in relay.from_node  # it is encrypted
            before = alice.state()
            reader, writer = await asyncio.open_connection(*split_address(alice.transport.address))
            writer.write(relay.from_dialler)
            heard = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert alice.rejected == {"no TLS": 1}
            assert alice.state() == before
            assert len(heard) < 4096

    asyncio.run(main())


# Frames of a malicious member


class Scene:
    """Alice and carol have a link, and mallory has a link to each of them."""

    def __init__(self, alice, carol, mallory, to_alice, to_carol):
        self.alice, self.carol, self.mallory = alice, carol, mallory
        self.to_alice, self.to_carol = to_alice, to_carol

    def signed_by_carol(self, message, to=None):
        """Return a frame that carol has signed for the session of mallory's link to alice."""
        link = self.to_alice
        parts = self.carol.peering.signer.seal(message, to or self.alice.key, session=link.session, version=link.version)
        return b"".join(parts)

    def own_frame(self, message=None, **options):
        return self.mallory.seal(self.to_alice, message or ask(), **options)


def run_scene(members, test):
    async def main():
        async with honest(members["alice"]) as alice, honest(members["carol"]) as carol:
            await until(lambda: carol.exchange.peers["alice"].introduced and alice.exchange.peers["carol"].introduced)
            async with Intruder(key(members, "mallory"), access(alice)) as mallory:
                to_carol = await mallory.introduce(carol)
                to_alice = await mallory.introduce(alice)
                await test(Scene(alice, carol, mallory, to_alice, to_carol))

    asyncio.run(main())


def kinds(frames):
    return [msgspec.msgpack.decode(frame[:HEADER_SIZE])[11][0] for frame in frames]


def flipped(frame, position):
    changed = bytearray(frame)
    changed[position] ^= 1
    return bytes(changed)


def stranger_frame(stage):
    return Intruder(somebody(), stage.mallory.access).seal(stage.to_alice, ask())


def other_federation_frame(stage):
    class AccessControl:
        federation = bytes(16)

    return Intruder(stage.mallory.identity, AccessControl).seal(stage.to_alice, ask())


FRAMES = {
    "what carol has said to mallory": ("other recipient", lambda s: s.mallory.heard[s.to_carol][0]),
    "what alice herself has said": ("other recipient", lambda s: s.mallory.heard[s.to_alice][0]),
    "what carol asks mallory for": ("other recipient", lambda s: s.signed_by_carol(ask(), s.mallory.key)),
    "what carol asks alice for": ("other sender", lambda s: s.signed_by_carol(ask())),
    "what carol says when she leaves": ("other sender", lambda s: s.signed_by_carol(m.Bye(9, True))),
    "what was said over another link": ("other session", lambda s: s.own_frame(session=s.to_carol.session)),
    "what was said over no link": ("other session", lambda s: s.own_frame(session=bytes(16))),
    "what was said before": ("replay", lambda s: s.mallory.said[s.to_alice][-1]),
    "of another federation": ("other federation", other_federation_frame),
    "of a stranger": ("stranger", stranger_frame),
    "a changed signature": ("wrong signature", lambda s: flipped(s.own_frame(m.Vote(1, 1, True)), HEADER_SIZE)),
    "a signature where there is none": ("malformed", lambda s: flipped(s.own_frame(), HEADER_SIZE)),
    "a changed payload": ("wrong signature", lambda s: flipped(s.own_frame(m.Score(1, 1), payload=bytes(9)), -1)),
    "cut": ("wrong length", lambda s: s.own_frame(m.Score(1, 1), payload=bytes(9))[:-1]),
    "continued": ("wrong length", lambda s: s.own_frame() + b"x"),
    "noise": ("malformed", lambda s: bytes(500)),
    "entries that nobody has signed": ("membership", lambda s: s.own_frame(m.Entries(9), payload=b"\x91\x92\xa0\xa0")),
}


@pytest.mark.parametrize("what", FRAMES)
def test_node_rejects_forged_or_replayed_frame(members, what):
    cause, make = FRAMES[what]

    async def test(stage):
        before = stage.alice.state()
        stage.to_alice.send([make(stage)])
        answers = await stage.mallory.settled(stage.to_alice, stage.alice)
        assert kinds(answers) == (["conflict"] if cause == "replay" else [])
        assert_unchanged(stage.alice, before, stage.mallory, {cause: 1})

    run_scene(members, test)


def test_unsigned_frame_of_signed_kind_closes_link(members):
    async def test(stage):
        vote = stage.own_frame(m.Vote(1, 1, True))
        stage.to_alice.send([vote[:HEADER_SIZE] + bytes(64)])
        await until(lambda: not stage.alice.exchange.peers["mallory"].introduced)
        assert stage.alice.rejected == {"not signed": 1}
        await until(lambda: stage.mallory.lost_links == [stage.to_alice])
        assert (await stage.mallory.introduce(stage.alice)).version == VERSION  # it may try again

    run_scene(members, test)


def test_node_rejects_messages_of_peer_not_introduced(members):
    async def main():
        async with honest(members["alice"]) as alice, Intruder(key(members, "mallory"), access(alice)) as mallory:
            before = alice.state()
            link = await mallory.dial(alice)
            for message in (ask(), m.Score(2, 1), m.Ping(3), m.PingRequest(4, mallory.key), m.RoundReached(7)):
                mallory.send(link, message)
            await until(lambda: alice.rejected == {"not introduced": 5})
            mallory.send(link, m.Hello(), m.HelloParameters({"size": "7"}, {}, 1, False).encode())
            mallory.send(link, ask())
            await until(lambda: alice.rejected == {"not introduced": 5, "differs": 2})
            before["peers"]["mallory"] = 0, False, "size differs: this node has 1000, the peer has 7"
            before["ids"] = ("carol",)
            assert_unchanged(alice, before, mallory, alice.rejected)

    asyncio.run(main())


async def same_link(stage, again):
    return again, stage.to_alice, "replay"


async def another_link(stage, again):
    return again, await stage.mallory.introduce(stage.alice), "other session"


async def sender_restarted(stage, again):
    reborn = Intruder(stage.mallory.identity, stage.mallory.access, incarnation=2)
    stage.mallory.transport, stage.mallory.signer, stage.mallory.heard = reborn.transport, reborn.signer, {}
    reborn.transport.use(stage.mallory)
    return again, await stage.mallory.introduce(stage.alice), "other session"


@pytest.mark.parametrize("clock", [0, -7200])
@pytest.mark.parametrize("where", [same_link, another_link, sender_restarted])
def test_node_rejects_replayed_frames_despite_clock_jump(members, monkeypatch, where, clock):
    async def test(stage):
        mallory, alice = stage.mallory, stage.alice
        for message in (
            ask(),
            m.Score(1 << 20, 1),
            m.RoundReached(1),
            m.Ping(2),
            m.PingRequest(3, stage.carol.key),
            m.Bye(1, False),
        ):
            mallory.send(stage.to_alice, message, bytes(4000) if isinstance(message, m.Score) else b"")
        await mallory.settled(stage.to_alice, alice)
        began = time.time()
        monkeypatch.setattr(time, "time", lambda: began + clock)
        again, link, cause = await where(stage, list(mallory.said[stage.to_alice]))
        await mallory.settled(link, alice)
        before, heard = alice.state(), len(mallory.heard[link])
        for frame in again:
            link.send([frame])
        answers = ["conflict"] if cause == "replay" else []  # once per link
        assert kinds(await mallory.settled(link, alice)) == answers
        assert len(mallory.heard[link]) == heard + len(answers) + 1  # plus the pong
        assert alice.rejected == {cause: len(again)}
        assert alice.state() == before
        (update,) = await stage.carol.exchange.fetch(["alice"], 1, "trained")  # honest nodes continue
        assert update.params.tobytes() == alice.model.tobytes()

    run_scene(members, test)


def test_node_rejects_frames_recorded_before_its_restart(members):
    async def main():
        async with Intruder(key(members, "mallory"), Membership(Federation.parse(file_of(members)))) as mallory:
            async with honest(members["alice"], addresses={}) as alice:
                link = await mallory.introduce(alice)
                mallory.send(link, ask())
                await mallory.settled(link, alice)
                said = mallory.said[link]
            async with honest(members["alice"], addresses={}) as alice:
                link = await mallory.introduce(alice)
                await mallory.settled(link, alice)
                before = alice.state()
                for frame in said:
                    link.send([frame])
                assert await mallory.settled(link, alice) == []
                assert alice.rejected == {"other session": len(said)}
                assert alice.state() == before

    asyncio.run(main())


def file_of(members):
    return (members["alice"] / "federation.toml").read_bytes()


# Revoked members


@pytest.mark.slow
def test_member_revoked_during_transfer_never_receives_rest(members):
    async def main():
        size = 8_000_000
        async with (
            honest(members["alice"], size=size) as alice,
            honest(members["carol"], size=size) as carol,
            Intruder(key(members, "mallory"), access(alice), size=size) as mallory,
        ):
            await until(lambda: alice.exchange.peers["carol"].introduced and carol.exchange.peers["alice"].introduced)
            spare = await mallory.introduce(alice)
            link = await mallory.introduce(alice)
            link.connection.pause_reading()
            mallory.send(link, ask())
            await until(lambda: alice.exchange.traffic.sent["models"] == 1)
            assert alice.exchange.peers["mallory"].link.backlog > 1_000_000  # the model is in transit
            alice.log.append(Identity.load(members["alice"] / "admission.pem"), "remove", "mallory", mallory.key)
            assert alice.rejected == {"revoked": 1}
            assert "mallory" not in alice.exchange.peers
            link.connection.resume_reading()
            await until(lambda: link in mallory.lost_links)
            assert max(len(frame) for frame in mallory.heard[link]) < 4 * size
            await until(lambda: spare in mallory.lost_links)
            with pytest.raises(TransportError, match="refuses this node: revoked"):
                await mallory.dial(alice)
            assert alice.rejected == {"revoked": 2}
            assert alice.exchange.traffic.sent["models"] == 1
            assert alice.exchange.view.ids == ("carol",)
            await until(lambda: "mallory" not in carol.exchange.peers)  # alice has sent her the entry
            with pytest.raises(TransportError, match="refuses this node: revoked"):
                await mallory.dial(carol)

    asyncio.run(main())


# Invitations


@pytest.fixture(params=["direct", "broker"])
def bus(request):
    """Return a function that makes a client of a broker; None for direct links."""
    return MemoryBroker().bus if request.param == "broker" else None


class Inviter:
    """Alice, who answers mallory, a member, and newcomers."""

    def __init__(self, alice, members):
        self.alice, self.members = alice, members
        self.token = self.invite("eve")

    def invite(self, name):
        now = self.alice.now
        return invitations.invite(self.alice.folder, name, [], "participant", 10, now=now, booted=now).secret

    async def answer(self, join, identity=None):
        """Ask with a proven key; return the answer."""
        async with Intruder(identity or somebody(), access(self.alice), bus=self.alice.bus) as newcomer:
            link = await newcomer.dial(self.alice, joining=True)
            link.send([join if isinstance(join, bytes) else encode_join(join)])
            await until(lambda: newcomer.heard.get(link))
            (frame,) = newcomer.heard[link]
            return decode_answer(frame)


def used(inviter):
    note = invitations.read_note(inviter.alice.folder, inviter.token)
    changed = msgspec.structs.replace(note, used_by=somebody().public)
    invitations.write_note(inviter.alice.folder, inviter.token, changed)
    return Join(inviter.token, "eve")


def expired(inviter):
    inviter.alice.now += 601
    return Join(inviter.token, "eve")


def taken(inviter):
    """Return a question whose name was free when the token was issued."""
    note = invitations.read_note(inviter.alice.folder, inviter.token)
    invitations.write_note(inviter.alice.folder, inviter.token, msgspec.structs.replace(note, name="carol"))
    return Join(inviter.token, "carol")


BAD_TOKENS = {
    "used": ("invitation used", used),
    "expired": ("invitation expired", expired),
    "guessed": ("invitation unknown", lambda inviter: Join(new_secret(), "eve")),
    "for another name": ("other name", lambda inviter: Join(inviter.token, "dave")),
    "for a name that is taken": ("name taken", taken),
    "for a name that is a path": ("malformed", lambda inviter: Join(inviter.token, "../eve")),
    "no question": ("malformed", lambda inviter: b"\x93\xa4join\xc4\xff"),
}


@pytest.mark.parametrize("what", BAD_TOKENS)
def test_inviter_refuses_invalid_token_with_reason(members, bus, what):
    cause, make = BAD_TOKENS[what]

    async def main():
        async with honest(members["alice"], bus=bus) as alice:
            inviter = Inviter(alice, members)
            join, before = make(inviter), alice.state()
            answer = await inviter.answer(join)
            assert answer.reason.startswith(cause)
            assert alice.rejected == {cause: 1}
            assert alice.state() == before

    asyncio.run(main())


def test_inviter_refuses_known_key(members, bus):
    async def main():
        async with honest(members["alice"], bus=bus) as alice:
            inviter, before = Inviter(alice, members), alice.state()
            answer = await inviter.answer(Join(inviter.token, "eve"), identity=key(members, "mallory"))
            assert answer.reason.startswith("known key")
            assert alice.rejected == {"known key": 1}
            assert alice.state() == before

    asyncio.run(main())


def test_token_admits_only_one_node(members, bus):
    async def main():
        async with honest(members["alice"], bus=bus) as alice:
            inviter = Inviter(alice, members)
            assert isinstance(await inviter.answer(Join(inviter.token, "eve")), Joined)
            before = alice.state()
            second = await inviter.answer(Join(inviter.token, "eve"))
            assert second.reason.startswith("invitation used")
            assert alice.state() == before

    asyncio.run(main())


@pytest.mark.slow
def test_valid_token_works_from_other_host_after_guessing(members, bus):
    """Wrong secrets delay only the host that sent them; the valid token works at once from another host."""

    async def main():
        async with honest(members["alice"], bus=bus) as alice:
            inviter, before = Inviter(alice, members), alice.state()
            for _ in range(REFUSALS):
                assert (await inviter.answer(Join(new_secret(), "eve"))).reason.startswith("invitation unknown")
            assert (await inviter.answer(Join(inviter.token, "eve"))).reason.startswith("busy")
            assert alice.rejected == {"invitation unknown": REFUSALS, "busy": 1}
            assert alice.state() == before
            question = encode_join(Join(inviter.token, "eve"))
            reply = await alice.service.answer(somebody().public, question, "10.0.0.9")
            assert isinstance(decode_answer(reply.frame), Joined)

    asyncio.run(main())


@pytest.mark.slow
def test_refused_host_may_ask_again_later(members, bus):
    async def main():
        async with honest(members["alice"], bus=bus) as alice:
            inviter = Inviter(alice, members)
            for _ in range(REFUSALS):
                await inviter.answer(Join(new_secret(), "eve"))
            alice.now += 1 / RECOVERY
            assert isinstance(await inviter.answer(Join(inviter.token, "eve")), Joined)

    asyncio.run(main())


def test_joining_link_closes_at_second_question(members, bus):
    async def main():
        async with honest(members["alice"], bus=bus) as alice, Intruder(somebody(), access(alice), bus=bus) as eve:
            before = alice.state()
            link = await eve.dial(alice, joining=True)
            for _ in range(2):
                link.send([encode_join(Join(new_secret(), "eve"))])
            await until(lambda: link in eve.lost_links)
            assert alice.rejected["malformed"] == 1
            assert len(eve.heard.get(link, ())) <= 1
            assert alice.state() == before

    asyncio.run(main())


def test_joining_link_rejects_other_messages(members, bus):
    async def main():
        async with honest(members["alice"], bus=bus) as alice, Intruder(somebody(), access(alice), bus=bus) as eve:
            before = alice.state()
            link = await eve.dial(alice, joining=True)
            eve.send(link, ask())
            await until(lambda: link in eve.heard)
            assert msgspec.msgpack.decode(eve.heard[link][0])[0] == "refused"
            assert_unchanged(alice, before, eve, {"malformed": 1})

    asyncio.run(main())


@pytest.mark.slow
def test_flood_of_newcomers_through_broker_spares_members(members):
    """Twenty newcomers are let in at once, and then five a second; they cost the node ten look-ups."""
    bus = MemoryBroker().bus

    async def flood(alice):
        async with Intruder(somebody(), access(alice), bus=bus) as eve:
            link = await eve.dial(alice, joining=True)
            link.send([encode_join(Join(new_secret(), "eve"))])
            await until(lambda: link in eve.heard)

    async def main():
        async with honest(members["alice"], bus=bus) as alice:
            inviter = Inviter(alice, members)
            async with Intruder(key(members, "carol"), access(alice), bus=bus) as carol:
                link = await carol.introduce(alice)
                flooding = [asyncio.ensure_future(flood(alice)) for _ in range(24)]
                await until(lambda: alice.rejected.get("too often", 0) > 0)
                await carol.settled(link, alice)
                assert len(alice.transport.strangers) <= 20
                await asyncio.gather(*flooding)
                looked_up, busy = alice.rejected["invitation unknown"], alice.rejected["busy"]
                assert looked_up <= REFUSALS
                assert looked_up + busy == 24
                assert "eve" not in alice.log.members
                alice.now += 60
                assert isinstance(await inviter.answer(Join(inviter.token, "eve")), Joined)
                assert link not in carol.lost_links

    asyncio.run(main())
