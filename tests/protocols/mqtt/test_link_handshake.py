"""TLS 1.3 and the proof of both keys in packets through an untrusted broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.mqtt.link import (
    AGAIN,
    LIMIT,
    DamageError,
    LinkHandshake,
    begins_handshake,
    make_packet,
    read_packet,
)
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import Credentials
from p2pfl.protocols.transports.handshake import Progress
from p2pfl.protocols.transports.tls_handshake import MOST, TlsHandshake
from tests.support.handshakes import dialler, exchange, listener
from tests.support.members import ALICE, BOB, CAROL, EVE, KnownMembers

CREDENTIALS = Credentials(BOB, KnownMembers(ALICE, BOB))


def access(**options):
    return KnownMembers(ALICE, BOB, **options)


def proven(identity=ALICE, theirs=None, ours=None, **options):
    """Return the results of a handshake with Bob, his first."""
    a, packet = dialler(identity, theirs or access(), BOB.public, **options)
    return exchange(a, listener(BOB, ours or access()), packet)


def test_both_ends_prove_keys_and_share_session_and_secret():
    bob, alice = proven()
    assert (bob.proven.key, alice.proven.key) == (ALICE.public, BOB.public)
    assert (bob.proven.session, bob.proven.secret) == (alice.proven.session, alice.proven.secret)
    assert (len(bob.proven.session), len(bob.proven.secret)) == (16, 32)


def test_every_handshake_has_another_session_and_secret():
    first, second = proven()[0].proven, proven()[0].proven
    assert first.session != second.session
    assert first.secret != second.secret


def test_secret_and_nonces_never_leave_tls():
    a, packet = dialler(ALICE, access(), BOB.public)
    b, seen, result = listener(BOB, access()), b"", None
    sides = [b, a]
    while packet:
        seen += packet
        result = sides[0].packet_in(packet, 0.0).proven or result
        packet = sides[0].packet_out(0.0)
        sides.reverse()
    assert result is not None
    for hidden in (result.secret, result.session, ALICE.public, b"challenge", b"proof", b"accepted"):
        assert hidden not in seen


@pytest.mark.parametrize(
    ("identity", "theirs", "ours", "joining", "cause"),
    [
        (EVE, access(), access(), False, "stranger"),
        (ALICE, access(), access(federation=bytes(16)), False, "other federation"),
        (EVE, access(), access(), True, "not inviting"),
    ],
)
def test_listener_tells_dialler_cause_of_refusal(identity, theirs, ours, joining, cause):
    a, packet = dialler(identity, theirs, BOB.public, joining=joining)
    b = listener(BOB, ours)
    answer = a.packet_in(next_packet(b, packet), 0.0)
    answer = a.packet_in(next_packet(b, a.packet_out(0.0)), 0.0)
    assert answer.reply
    with pytest.raises(ProtocolError) as caught:
        b.packet_in(a.packet_out(0.0), 0.0)
    assert caught.value.cause == cause
    assert a.packet_in(b.packet_out(0.0), 0.0).refusal.startswith(f"{cause}: ")


def next_packet(side, packet):
    side.packet_in(packet, 0.0)
    return side.packet_out(0.0)


def test_further_check_of_listener_is_told_to_dialler():
    def admit(proven):
        raise ProtocolError("too often", "wait")

    a, packet = dialler(ALICE, access(), BOB.public)
    b = listener(BOB, access(), admit=admit)
    for _ in range(2):
        packet = next_packet(a, next_packet(b, packet))
    with pytest.raises(ProtocolError, match="too often: wait"):
        b.packet_in(packet, 0.0)
    assert a.packet_in(b.packet_out(0.0), 0.0).refusal == "too often: wait"


def test_altered_record_after_tls_is_refused_as_no_tls():
    """TLS can no longer carry the reason, so the listener sends none."""
    a, packet = dialler(ALICE, access(), BOB.public)
    b = listener(BOB, access())
    for _ in range(2):
        packet = next_packet(a, next_packet(b, packet))
    number, content = read_packet(packet)
    with pytest.raises(ProtocolError) as caught:
        b.packet_in(make_packet(bytes(16), number, content[:-1] + bytes([content[-1] ^ 1])), 0.0)
    assert caught.value.cause == "no TLS"
    assert b.packet_out(0.0) is None


def test_dialler_proves_nothing_to_other_certificate():
    a, packet = dialler(ALICE, access(), CAROL.public)
    with pytest.raises(ProtocolError, match="wrong key"):
        a.packet_in(next_packet(listener(BOB, access()), packet), 0.0)
    assert a.packet_out(0.0) is None


def test_handshake_refuses_other_version(monkeypatch):
    a, packet = dialler(ALICE, access(), BOB.public)
    b = listener(BOB, access())
    packet = next_packet(b, next_packet(a, next_packet(b, packet)))
    monkeypatch.setattr(handshake, "VERSION", 2)
    with pytest.raises(ProtocolError, match="version: the peer has version 1, this node 2"):
        a.packet_in(packet, 0.0)


def test_newcomer_is_proven_if_listener_invites():
    bob, eve = proven(EVE, ours=access(invites=True), joining=True)
    assert (bob.proven.key, bob.proven.joining, eve.proven.joining) == (EVE.public, True, True)


def test_listener_learns_new_member_from_proof():
    behind = KnownMembers(BOB, membership_version=0)
    assert proven(ours=behind)[0].proven.key == ALICE.public
    assert behind.refusal(ALICE.public) == ""


def test_recorded_packets_prove_nothing_to_another_handshake():
    a, packet = dialler(ALICE, access(), BOB.public)
    b, recorded = listener(BOB, access()), []
    while packet:
        recorded.append(packet)
        packet = b.packet_in(packet, 0.0) and b.packet_out(0.0)
        packet = packet and a.packet_in(packet, 0.0) and a.packet_out(0.0)
    again = listener(BOB, access())
    assert again.packet_in(recorded[0], 0.0).reply
    with pytest.raises(ProtocolError, match="no TLS"):
        again.packet_in(recorded[1], 0.0)


def test_message_is_repeated_until_it_is_answered():
    a, packet = dialler(ALICE, access(), BOB.public)
    assert a.packet_out(AGAIN / 2) is None
    assert a.due() == AGAIN
    assert a.packet_out(AGAIN) == packet
    b = listener(BOB, access())
    answer = next_packet(b, packet)
    assert b.packet_in(packet, 0.0).reply == b""
    assert b.packet_out(0.0) is None  # its own message is repeated when it is due
    assert b.packet_out(AGAIN) == answer
    b.resume(1.5)
    assert b.packet_out(1.5) == answer


def test_altered_packet_is_ignored():
    a, packet = dialler(ALICE, access(), BOB.public)
    b = listener(BOB, access())
    for position in range(len(packet)):
        changed = bytearray(packet)
        changed[position] ^= 1
        with pytest.raises(DamageError, match="wrong seal"):
            b.packet_in(bytes(changed), 0.0)
    assert exchange(a, b, packet)[0].proven


@pytest.mark.parametrize("position", range(0, 500, 23))
def test_forged_message_ends_handshake(position):
    a, first = dialler(ALICE, access(), BOB.public)
    number, content = read_packet(next_packet(listener(BOB, access()), first))
    changed = bytearray(content)
    changed[position] ^= 1
    with pytest.raises(ProtocolError):
        a.packet_in(make_packet(bytes(16), number, bytes(changed)), 0.0)


def test_listener_ignores_messages_after_the_proof():
    a, packet = dialler(ALICE, access(), BOB.public)
    b = listener(BOB, access())
    assert exchange(a, b, packet)[0].proven
    for number in range(8):
        assert b.packet_in(make_packet(bytes(16), number, b"forged"), 0.0) == Progress()


@given(st.binary(max_size=300))
def test_noise_in_packet_or_message_is_refused(noise):
    with pytest.raises(DamageError):
        read_packet(noise)
    with pytest.raises(ProtocolError):
        LinkHandshake(TlsHandshake(CREDENTIALS), bytes(16)).packet_in(make_packet(bytes(16), 0, b"x" + noise), 0.0)


def test_only_first_packet_of_dialler_begins_handshake():
    a, packet = dialler(ALICE, access(), BOB.public)
    assert begins_handshake(packet)
    answer = next_packet(listener(BOB, access()), packet)
    assert not begins_handshake(answer)
    assert not begins_handshake(next_packet(a, answer))
    assert not begins_handshake(make_packet(bytes(16), 0, b"nonsense"))


def test_handshake_limits_bytes_of_packet_and_of_whole():
    with pytest.raises(DamageError, match="before the peer is known"):
        read_packet(make_packet(bytes(16), 0, bytes(LIMIT)))
    handshake = TlsHandshake(CREDENTIALS)
    with pytest.raises(ProtocolError, match="malformed: too many bytes"):
        handshake.step(bytes(MOST + 1))
