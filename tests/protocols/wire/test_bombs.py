"""Inputs that are small on the wire and large in memory, or claim a large size: refused before memory is allocated."""

import asyncio
import tracemalloc
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from p2pfl.compression.codecs import Int8, Sparse, TopK
from p2pfl.compression.sparse_updates import PeerCopy
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.parameters import Layout
from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint, invitation
from p2pfl.protocols.membership.federation_file import LIMIT as FILE_LIMIT
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import LIMIT as LOG_LIMIT
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.mqtt import link as link_handshake
from p2pfl.protocols.mqtt import reliable_stream, transport
from p2pfl.protocols.mqtt.packets import DATA, sealing_of
from p2pfl.protocols.mqtt.reliable_stream import ReliableStream
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import Credentials
from p2pfl.protocols.transports.tls_handshake import TlsHandshake
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire import payload
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Payload
from tests.protocols.wire.test_fuzz import ALICE, BOB, FILE, LOG
from tests.support.loopback_nodes import Intruder, folders, honest, until

P = 1000
SMALL = 16 << 10  # bytes that a refusal with its message needs
EMPTY = b"\xdd\x00\x40\x00\x00" + b"\x90" * (4 << 20)  # an array of four million empty arrays
HUGE = b"\xdd\xff\xff\xff\xff"  # an array of 2**32 - 1 missing items
DEEP = b"\x91" * (4 << 20)


def terms(agreed):
    return b"\x84\xa6agreed" + agreed


def minimal_entries(count):
    return b"\xdd" + count.to_bytes(4, "big") + (b"\x92\xc4\x00\xc4\x40" + bytes(64)) * count


def extras(shape, data=b"", count=1):
    return bytes(4 * P) + msgspec.msgpack.encode([["x", "f8", shape, data]] * count)


def take_terms(data):
    m.decode_hello_parameters(data)


def take_model(data):
    payload.decode(data, P)


def take_int8(data):
    ModelEncoder(Int8(), SHAPES).decode(memoryview(data), b"", None)


def take_difference(data):
    start = np.zeros(P, np.float32)
    known = PeerCopy(b"12345678", start, 0)
    ModelEncoder(TopK(), SHAPES, start).decode(memoryview(data), known.tag, known)


def take_quantised(data):
    start = np.zeros(P, np.float32)
    known = PeerCopy(b"12345678", start, 0)
    ModelEncoder(Sparse(), SHAPES, start).decode(memoryview(b"\1\0" + data), known.tag, known)


def take_entries(data):
    Membership(FILE, LOG.encode()).extend(data)


def take_checkpoint(data):
    checkpoint.read(data, FILE)


def take_frame(data):
    FrameVerifier({"bob": BOB.public}, ALICE.public, FILE.id, 1 << 20).open(data)


def take_file(data):
    Federation.parse(data)


def signed_file(content):
    name, lines = b'admission = "' + BOB.public.hex().encode() + b'"\n', content + b"\n"
    signature = BOB.sign(b"p2pfl federation 1\0" + name + lines)
    return name + lines + b"# signature: " + signature.hex().encode() + b"\n"


CREDENTIALS = Credentials(ALICE, LOG)
SHAPES = Layout((("model", (P,)),), P)
MODEL_LIMIT = 4 * P + payload.EXTRAS_LIMIT
BOMBS = {  # by name: the decoder, the input, and the limit of its memory in bytes
    "terms of four million empty arrays": (take_terms, EMPTY, 2 * m.HelloParameters.LIMIT),
    "terms of empty arrays": (take_terms, terms(b"\xdc\xff\x00" + b"\x90" * 65_000), 2 * m.HelloParameters.LIMIT),
    "terms of 2**32 keys": (take_terms, terms(b"\xdf\xff\xff\xff\xff"), 2 * m.HelloParameters.LIMIT),
    "terms with a text of 4 GB": (take_terms, terms(b"\x81\xdb\xff\xff\xff\xff"), 2 * m.HelloParameters.LIMIT),
    "terms that are deep": (take_terms, terms(b"\x81" * 60_000), 2 * m.HelloParameters.LIMIT),
    "extras of four million empty arrays": (take_model, bytes(4 * P) + EMPTY, 2 * MODEL_LIMIT),
    "extras of empty arrays": (take_model, bytes(4 * P) + EMPTY[:1_000_000], 2 * MODEL_LIMIT),
    "extras of 2**32 arrays": (take_model, bytes(4 * P) + HUGE, 2 * MODEL_LIMIT),
    "extras that are deep": (take_model, bytes(4 * P) + DEEP[:1_000_000], 2 * MODEL_LIMIT),
    "extras of 2**62 values": (take_model, extras([2**24, 2**24, 2**14]), 2 * MODEL_LIMIT),
    "extras of no values in a huge shape": (take_model, extras([0, 2**24, 2**24, 2**24]), 2 * MODEL_LIMIT),
    "more arrays than there may be": (take_model, extras([1 << 12], bytes(1 << 15), 30), 2 * MODEL_LIMIT),
    "as many extras as there may be": (take_model, extras([1 << 12], bytes(1 << 15), 16)[:-1], 2 * MODEL_LIMIT),
    "an int8 model that is too short": (take_int8, bytes(P), SMALL),
    "an int8 model whose scale is infinite": (take_int8, b"\0\0\x80\x7f" + bytes(P), SMALL),
    "a difference of 2**32 entries": (take_difference, b"\xff\xff\xff\xff" + bytes(P), SMALL),
    "a difference of 2**28 entries": (take_difference, b"\0\0\0\x10" + bytes(8 * P), SMALL),
    "a difference of one entry beyond the model": (take_difference, b"\1\0\0\0" + b"\xff" * 4 + bytes(4), 8 * P + SMALL),
    "a difference of more entries than are marked": (take_difference, b"\0\2\0\0" + bytes(P // 8 + 4 * 512), 8 * P + SMALL),
    "a message of 2**32 entries": (take_quantised, b"\xff\xff\xff\xff" + bytes(P), SMALL),
    "a message of more entries than are marked": (take_quantised, b"\0\2\0\0\0\0\x80\x3f" + bytes(P), 16 * P + SMALL),
    "entries that are empty arrays": (take_entries, EMPTY[: 1 << 22], 3 * LOG_LIMIT),
    "2**32 entries": (take_entries, HUGE, 3 * LOG_LIMIT),
    "60,000 entries": (take_entries, minimal_entries(60_000), 3 * LOG_LIMIT),
    "more than 2**16 entries": (take_entries, minimal_entries(2**16 + 1), 3 * LOG_LIMIT),
    "entries that are deep": (take_entries, DEEP, 3 * LOG_LIMIT),
    "a header that is deep": (take_frame, DEEP[:320], SMALL),
    "a header of 2**32 fields": (take_frame, HUGE.ljust(320, b"\0"), SMALL),
    "a frame of 4 MB": (take_frame, EMPTY, SMALL),
    "a step of the handshake that is deep": (handshake.decode, DEEP[: handshake.LIMIT], SMALL),
    "a step of the handshake of 4 MB": (handshake.decode, EMPTY, SMALL),
    "a packet of a handshake of 4 MB": (link_handshake.read_packet, EMPTY, SMALL),
    "a handshake of 4 MB": (lambda data: TlsHandshake(CREDENTIALS).step(data), EMPTY, SMALL),
    "a presence of 4 MB": (lambda data: transport.Directory(LOG).read(BOB.public, data), EMPTY, SMALL),
    "a newcomer's question of 4 MB": (invitation.decode_join, EMPTY, SMALL),
    "an answer to it of empty arrays": (invitation.decode_answer, b"\x93\xa6joined" + EMPTY, 3 * LOG_LIMIT),
    "a checkpoint of empty arrays": (take_checkpoint, EMPTY[: checkpoint.LIMIT], 4 * checkpoint.LIMIT),
    "a checkpoint of 4 MB": (take_checkpoint, EMPTY, SMALL),
    "a checkpoint that is deep": (take_checkpoint, DEEP[: checkpoint.LIMIT], 4 * checkpoint.LIMIT),
    "a checkpoint of 2**32 fields": (take_checkpoint, HUGE, 4 * checkpoint.LIMIT),
    "a federation's file of 4 MB": (take_file, DEEP, 8 * FILE_LIMIT),
    "a federation's file that is deep": (take_file, signed_file(b"a = " + b"[" * 60_000), 8 * FILE_LIMIT),
}


def peak_memory(test):
    """Return the peak of allocated bytes."""
    tracemalloc.start()
    try:
        test()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", BOMBS)
def test_bomb_is_rejected_before_memory_is_allocated(what):
    take, data, most = BOMBS[what]

    def refused():
        with pytest.raises((ProtocolError, FederationError)):
            take(data)

    with suppress(ProtocolError, FederationError):
        take(data)  # once before, to exclude one-time allocations
    assert peak_memory(refused) < most


def test_stream_rejects_announced_4_gb_before_allocating():
    theirs, ours, limit = sealing_of(bytes(32), dialled=True), sealing_of(bytes(32), dialled=False), 1 << 20
    header = reliable_stream.DATA_HEADER.pack(reliable_stream.DATA_PACKET, bytes(16), 0, 2**32 - 1, 0)
    packet = header + theirs.seal(DATA, 0, b"x", header)

    def refused():
        stream = ReliableStream(ours, bytes(16), limit, 0.0)
        stream.packet_in(packet, 0.0)
        with pytest.raises(ProtocolError, match="at most"):
            stream.frame()

    assert peak_memory(refused) < 2 * limit


def test_stream_limits_memory_of_early_chunks():
    theirs, ours, limit = sealing_of(bytes(32), dialled=True), sealing_of(bytes(32), dialled=False), 4096
    stream = ReliableStream(ours, bytes(16), limit, 0.0)

    def send(number):
        header = reliable_stream.DATA_HEADER.pack(reliable_stream.DATA_PACKET, bytes(16), number, 1 << 30, 1)
        stream.packet_in(header + theirs.seal(DATA, number, bytes(reliable_stream.CHUNK), header), 0.0)

    assert peak_memory(lambda: [send(number) for number in range(1, 200)]) < 4 * (limit + reliable_stream.CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2**32 - 1, 0, "more than a frame may have"])
def test_announced_size_beyond_limit_closes_only_that_link(tmp_path, size):
    members = folders(tmp_path, "alice", "mallory")

    async def main():
        async with honest(members["alice"]) as alice:
            mallory = Intruder(Identity.load(members["mallory"] / "key.pem"), Membership(alice.log.file, alice.log.encode()))
            async with mallory:
                link = await mallory.introduce(alice)
                await mallory.settled(link, alice)
                announced = alice.transport.max_frame + 1 if isinstance(size, str) else size
                before = alice.state()
                tracemalloc.start()
                link.connection.write(announced.to_bytes(4, "big") + bytes(1000))
                await until(lambda: mallory.lost_links)
                assert tracemalloc.get_traced_memory()[1] < 2 * alice.transport.max_frame
                tracemalloc.stop()
                before["ids"] = ()
                assert alice.state() == before
                assert not alice.exchange.peers["mallory"].introduced
                again = await mallory.introduce(alice)  # it may connect again as before
                await mallory.settled(again, alice)

    asyncio.run(main())


def test_verifier_rejects_model_larger_than_agreed():
    signer = FrameSigner(BOB, FILE.id, bytes(16), 1)
    verifier = FrameVerifier({"bob": BOB.public}, ALICE.public, FILE.id, MODEL_LIMIT)
    large = Payload.of(bytes(MODEL_LIMIT + 4))
    with pytest.raises(ProtocolError, match="wrong length"):
        verifier.open(b"".join(map(bytes, signer.seal(m.ModelUpdate(1, 1, "trained", 50, False, 0.0), ALICE.public, large))))
