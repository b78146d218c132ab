"""Parts of a TLS link: the steps of both proofs, reassembly of frames, and timers (tls_proof, tls_frames, timer)."""

import asyncio
import random

import pytest
from blake3 import blake3

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transport import Timer
from p2pfl.protocols.transports.frames import HASHED, PREFIX, STEP, FrameReader
from p2pfl.protocols.transports.handshake import ClientProof, ServerProof, refusal_of
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.simulation.clock import run
from tests.support.members import ALICE, BOB, EVE, KnownMembers

CERTIFICATE = b"a certificate of Bob"


def sides(client=ALICE, certificate=CERTIFICATE, joining=False):
    access = KnownMembers(ALICE, BOB)
    return ServerProof(BOB, access, CERTIFICATE), ClientProof(client, access, BOB.public, certificate, joining)


def test_both_sides_prove_keys_and_share_session():
    server, client = sides()
    proof = client.step(memoryview(server.begin()))
    accepted = server.step(memoryview(proof.reply))
    proven = client.step(memoryview(accepted.reply))
    assert (proof.proven, proven.reply) == (None, b"")
    assert accepted.proven.key == ALICE.public
    assert proven.proven.key == BOB.public
    assert accepted.proven.session == proven.proven.session


@pytest.mark.parametrize(("options", "cause"), [({"client": EVE}, "stranger"), ({"certificate": b"other"}, "wrong proof")])
def test_proof_of_other_key_or_certificate_is_refused(options, cause):
    server, client = sides(**options)
    proof = client.step(memoryview(server.begin()))
    with pytest.raises(ProtocolError) as refused:
        server.step(memoryview(proof.reply))
    assert refused.value.cause == cause
    assert client.step(memoryview(refusal_of(refused.value))).refusal.startswith(f"{cause}: ")


def test_proof_steps_out_of_order_are_malformed():
    server, client = sides()
    challenge = server.begin()
    with pytest.raises(ProtocolError, match="in the wrong order"):
        server.step(memoryview(challenge))
    proof = client.step(memoryview(challenge))
    accepted = server.step(memoryview(proof.reply)).reply
    with pytest.raises(ProtocolError, match="in the wrong order"):
        sides()[1].step(memoryview(accepted))
    with pytest.raises(ProtocolError, match="in the wrong order"):
        client.step(memoryview(challenge))


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_frame_reader_joins_pieces_of_any_size(piece):
    frames, reader, found = [b"one", b"another frame", b"x"], FrameReader(), []
    stream = b"".join(len(frame).to_bytes(PREFIX, "big") + frame for frame in frames)
    while stream:
        buffer = reader.buffer()
        count = min(len(buffer), piece, len(stream))
        buffer[:count], stream = stream[:count], stream[count:]
        if reader.advance(count):
            if reader.in_frame:
                found.append(bytes(reader.take()))
            else:
                reader.begin(memoryview(bytearray(reader.size())))
    assert found == frames
    assert not reader.in_frame


@pytest.mark.parametrize("piece", [1000, STEP - 1, 2 * HASHED])
def test_frame_reader_hashes_payload_of_large_frame(piece):
    frames, reader, found = [random.Random(0).randbytes(HASHED + 5), b"small" * 100], FrameReader(), []
    for frame in frames:
        reader.begin(memory := memoryview(bytearray(len(frame))))
        while reader.in_frame:
            start, count = len(frame) - len(reader.buffer()), min(piece, len(reader.buffer()))
            reader.buffer()[:count] = frame[start : start + count]
            if reader.advance(count):
                assert reader.take() is memory
        found.append(reader.digest)
    assert found == [blake3(frames[0][OVERHEAD:]).digest(), b""]


def test_frame_reader_after_clear_expects_length():
    reader = FrameReader()
    reader.buffer()[:] = (1000).to_bytes(PREFIX, "big")
    assert reader.advance(PREFIX)
    reader.begin(memoryview(bytearray(1000)))
    reader.advance(10)
    reader.clear()
    assert not reader.in_frame
    assert len(reader.buffer()) == PREFIX


def test_timer_calls_only_last_callback_once():
    calls = []

    async def main():
        timer = Timer()
        timer.start(1.0, lambda: calls.append("first"))
        timer.start(2.0, lambda: calls.append("second"))
        await asyncio.sleep(5.0)
        assert not timer.pending
        timer.start(1.0, lambda: calls.append("third"))
        assert timer.pending
        timer.cancel()
        await asyncio.sleep(5.0)

    run(main())
    assert calls == ["second"]
