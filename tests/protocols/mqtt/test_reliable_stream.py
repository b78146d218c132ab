"""Seal of packets, and frames over a channel that loses, repeats, reorders and alters packets."""

import random
from collections import deque
from contextlib import suppress
from math import inf

import pytest

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.mqtt.packets import CONTROL, DATA, sealing_keys, sealing_of
from p2pfl.protocols.mqtt.reliable_stream import CHUNK, DATA_HEADER, PROBE, STALLED, WINDOW, ReliableStream, round_trip
from p2pfl.protocols.rate_limit import MOST, TokenBucket
from p2pfl.protocols.transports.frames import patience

SECRET = bytes(range(32))


def pair(secret=SECRET):
    """Return the seals of a dialler and of its listener."""
    return sealing_of(secret, dialled=True), sealing_of(secret, dialled=False)


def test_both_ends_open_each_others_packets():
    alice, bob = pair()
    assert bob.open(DATA, 0, alice.seal(DATA, 0, b"there", b"header"), b"header") == b"there"
    assert alice.open(DATA, 0, bob.seal(DATA, 0, b"back", b"header"), b"header") == b"back"


def test_every_secret_and_direction_has_another_key():
    keys = [*sealing_keys(SECRET), *sealing_keys(bytes(32))]
    assert len(set(keys)) == 4
    sealed = pair()[0].seal(DATA, 0, b"x", b"")
    with pytest.raises(ProtocolError, match="wrong seal"):
        pair(bytes(32))[1].open(DATA, 0, sealed, b"")


def test_seal_rejects_repeated_number():
    alice, _ = pair()
    alice.seal(DATA, 3, b"x", b"")
    alice.seal(CONTROL, 3, b"x", b"")
    for number in (3, 2):
        with pytest.raises(ValueError, match="number"):
            alice.seal(DATA, number, b"x", b"")


@pytest.mark.parametrize("change", ["kind", "number", "header", "content", "direction"])
def test_open_rejects_altered_packet(change):
    alice, bob = pair()
    sealed = alice.seal(DATA, 5, b"content", b"header")
    kind, number, header, opener = DATA, 5, b"header", bob
    match change:
        case "kind":
            kind = CONTROL
        case "number":
            number = 6
        case "header":
            header = b"Header"
        case "content":
            sealed = bytes([sealed[0] ^ 1]) + sealed[1:]
        case "direction":
            opener = alice
    with pytest.raises(ProtocolError, match="wrong seal"):
        opener.open(kind, number, sealed, header)


# Frames over a channel that loses, repeats and reorders


class Channel:
    """Two streams and a channel between them; `fate(packet)` returns the delays of all copies that arrive."""

    def __init__(self, fate=lambda packet: [0.01], limit=100_000_000):
        alice, bob = pair()
        self.now = 0.0
        self.ends = [ReliableStream(alice, bytes(16), limit, 0.0), ReliableStream(bob, bytes(16), limit, 0.0)]
        self.frames = [[], []]
        self.flying = []
        self.packets = 0
        self.fate = fate

    def pump(self):
        for end, stream in enumerate(self.ends):
            while (packet := stream.packet_out(self.now)) is not None:
                self.packets += 1
                for delay in self.fate(packet):
                    self.flying.append((self.now + delay, self.packets, 1 - end, packet))

    def until(self, condition, seconds=600.0):
        deadline = self.now + seconds
        while not condition():
            self.pump()
            times = [when for when, *_ in self.flying] + [stream.due() for stream in self.ends]
            self.now = max(self.now, min(times))
            assert self.now < deadline, "it takes too long"
            assert [stream.failure(self.now) for stream in self.ends] == ["", ""]
            arrived = sorted(entry for entry in self.flying if entry[0] <= self.now)
            self.flying = [entry for entry in self.flying if entry[0] > self.now]
            for _, _, end, packet in arrived:
                self.ends[end].packet_in(packet, self.now)
                while (frame := self.ends[end].frame()) is not None:
                    self.frames[end].append(bytes(frame))


def random_frames(generator, count=12):
    sizes = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, *(generator.randrange(4 * CHUNK) for _ in range(count - 6))]
    generator.shuffle(sizes)
    return [generator.randbytes(size) for size in sizes]


@pytest.mark.parametrize("seed", range(12))
def test_stream_delivers_frames_once_in_order_over_bad_channel(seed):
    generator = random.Random(seed)
    loss = generator.choice([0, 0.05, 0.2])

    def fate(packet):
        copies = 0 if generator.random() < loss else generator.choice([1, 1, 1, 2])
        return [generator.uniform(0.001, 0.5) for _ in range(copies)]

    channel = Channel(fate)
    sent = random_frames(generator), random_frames(generator, 8)
    for stream, frames in zip(channel.ends, sent, strict=True):
        for frame in frames:
            middle = generator.randrange(len(frame) + 1)
            stream.send([frame[:middle], memoryview(frame)[middle:]])
    channel.until(lambda: [len(frames) for frames in channel.frames] == [8, 12])
    assert channel.frames == [sent[1], sent[0]]
    channel.until(lambda: all(stream.due() == float("inf") for stream in channel.ends))
    assert [stream.backlog for stream in channel.ends] == [0, 0]


def test_stream_without_loss_sends_nothing_twice():
    channel = Channel()
    channel.ends[0].send([bytes(20 * CHUNK)])
    channel.until(lambda: channel.frames[1])
    assert channel.packets <= 20 + 20  # chunks and acknowledgements


@pytest.mark.parametrize("early", [False, True])
def test_stream_acknowledges_only_genuine_repetitions(early):
    sent = []
    channel = Channel(fate=lambda packet: sent.append(packet) or [])
    channel.ends[0].send([bytes(2 * CHUNK)])
    channel.pump()
    bob, packet = channel.ends[1], sent[int(early)]
    bob.packet_in(packet, 0.0)
    bob.frame()
    assert bob.packet_out(0.0) is not None
    with pytest.raises(ProtocolError, match="wrong seal"):
        bob.packet_in(packet[:-1] + bytes([packet[-1] ^ 1]), 0.0)
    assert bob.packet_out(0.0) is None
    bob.packet_in(packet, 0.0)
    assert bob.packet_out(0.0) is not None


def test_stream_sends_at_most_the_window():
    numbers = set()
    channel = Channel(fate=lambda packet: numbers.add(packet[: DATA_HEADER.size]) or [])
    channel.ends[0].send([bytes(100 * CHUNK)])
    for _ in range(50):
        channel.pump()
        channel.now += 1.0
    assert 0 < len(numbers) <= WINDOW
    assert channel.ends[0].backlog == 100 * CHUNK


def test_stream_rejects_announced_frame_above_limit():
    channel = Channel(limit=1000)
    channel.ends[0].send([bytes(1001)])
    with pytest.raises(ProtocolError, match="a frame of 1001 bytes, at most 1000 are allowed"):
        channel.until(lambda: channel.frames[1])


def test_stream_rejects_announced_frame_of_four_gigabytes():
    alice, bob = pair()
    stream = ReliableStream(bob, bytes(16), 10**6, 0.0)
    header = DATA_HEADER.pack(1, bytes(16), 0, 2**32 - 1, 0)
    stream.packet_in(header + alice.seal(DATA, 0, bytes(100), header), 0.0)
    with pytest.raises(ProtocolError, match="too large"):
        stream.frame()


def test_stream_limit_may_be_raised_between_buffered_frames():
    channel = Channel(limit=10)
    channel.ends[0].send([b"hello"])
    channel.ends[0].send([bytes(2000)])
    first, second = (channel.ends[0].packet_out(0.0) for _ in range(2))
    receiver = channel.ends[1]
    receiver.packet_in(second, 0.0)
    receiver.packet_in(first, 0.0)
    assert bytes(receiver.frame()) == b"hello"
    receiver.limit = 2000
    assert len(receiver.frame()) == 2000


def test_stream_of_untrusted_link_buffers_little():
    channel = Channel(limit=1000)
    sender, receiver = channel.ends
    for _ in range(WINDOW):  # each acknowledgement opens the window by one packet
        sender.send([b"x"])
    channel.until(lambda: not sender.backlog)
    sender.send([bytes(WINDOW * CHUNK)])
    packets = [sender.packet_out(channel.now) for _ in range(WINDOW)]
    for packet in packets[1:]:
        receiver.packet_in(packet, channel.now)
    sender.packet_in(receiver.packet_out(channel.now), channel.now)
    assert 0 < WINDOW * CHUNK - sender.backlog <= 1000 + CHUNK  # buffered packets are acknowledged


def test_stream_ignores_altered_and_forged_packets():
    channel = Channel()
    channel.ends[0].send([b"frame"])
    packet = channel.ends[0].packet_out(0.0)
    receiver = channel.ends[1]
    for position in range(17, len(packet)):
        changed = bytearray(packet)
        changed[position] ^= 1
        with suppress(ProtocolError):  # or it is ignored: its number is far ahead
            receiver.packet_in(bytes(changed), 0.0)
        assert receiver.frame() is None
    for length in range(1, len(packet)):
        with pytest.raises(ProtocolError):
            receiver.packet_in(packet[:length], 0.0)
    assert not receiver.heard
    receiver.packet_in(packet, 0.0)
    assert bytes(receiver.frame()) == b"frame"


def test_stream_rejects_forged_or_replayed_acknowledgement():
    channel = Channel()
    sender, receiver = channel.ends
    sender.send([b"first"])
    receiver.packet_in(sender.packet_out(0.0), 0.0)
    receiver.frame()
    acknowledgement = receiver.packet_out(0.0)
    with pytest.raises(ProtocolError, match="wrong seal"):
        sender.packet_in(acknowledgement[:-1] + bytes([acknowledgement[-1] ^ 1]), 0.0)
    assert sender.backlog == 5
    sender.packet_in(acknowledgement, 0.0)
    assert sender.backlog == 0
    sender.send([b"second"])
    sender.packet_out(0.0)
    sender.packet_in(acknowledgement, 0.0)
    assert sender.backlog == 6


def test_stream_without_acknowledgements_fails_as_not_reading():
    channel = Channel(fate=lambda packet: [])
    stream = channel.ends[0]
    stream.send([b"frame"])
    while not (reason := stream.failure(channel.now)):
        channel.pump()
        channel.now = min(stream.due(), STALLED)
    assert reason == "does not read its messages"
    assert channel.now == STALLED
    stream.resume(channel.now)  # it was the channel that was away
    assert stream.failure(channel.now) == ""


def test_stream_fails_if_frame_is_not_completed_in_time():
    channel = Channel()
    sender, receiver = channel.ends
    sender.send([bytes(3 * CHUNK)])
    receiver.packet_in(sender.packet_out(0.0), 1.0)
    assert receiver.frame() is None
    assert receiver.due() == 1.0 + patience(3 * CHUNK)
    assert receiver.failure(receiver.due() - 0.001) == ""
    assert receiver.failure(receiver.due()) == "did not complete a frame in time"
    receiver.resume(100.0)  # it was the channel that was away
    assert receiver.due() == 100.0 + patience(3 * CHUNK)
    for _ in range(2):
        receiver.packet_in(sender.packet_out(0.0), 100.0)
    assert len(receiver.frame()) == 3 * CHUNK
    assert receiver.due() == float("inf")


def test_stream_fails_if_probe_is_not_answered():
    channel = Channel()
    channel.ends[0].probe(0.0)
    channel.pump()
    channel.until(lambda: channel.ends[0].due() == float("inf"))
    assert channel.ends[0].failure(channel.now + 1000) == ""
    channel.fate = lambda packet: []
    channel.now += 1000
    channel.ends[0].probe(channel.now)
    assert channel.ends[0].failure(channel.now + PROBE) == "no longer knows this link"


def test_stream_closing_is_reported_to_other_side():
    channel = Channel()
    channel.ends[1].packet_in(channel.ends[0].closing(), 0.0)
    assert channel.ends[1].ended


class BusyBroker:
    """Broker that delivers `rate` packets per second to the dialling ends of many links, and to the other ends.

    Attributes:
        packets: number of packets that all ends have sent.
    """

    def __init__(self, links, rate):
        self.now, self.rate, self.free, self.packets = 0.0, rate, 0.0, 0
        times = round_trip(), round_trip()
        self.links = []
        for number in range(links):
            seals = pair(number.to_bytes(32, "big"))
            self.links.append([ReliableStream(seals[end], bytes(16), 1000, 0.0, times[end]) for end in (0, 1)])
        self.queue = deque()

    def send_frames(self):
        """Send one small frame over each link at the same time, and return when all are acknowledged."""
        for ends in self.links:
            ends[0].send([b"frame"])
        while any(ends[0].backlog for ends in self.links) or self.queue:
            for ends in self.links:
                for end, stream in enumerate(ends):
                    while (packet := stream.packet_out(self.now)) is not None:
                        self.packets += 1
                        self.free = max(self.free, self.now) + 1 / self.rate
                        self.queue.append((self.free, ends[1 - end], packet))
                    assert stream.failure(self.now) == ""
            arrives = self.queue[0][0] if self.queue else inf
            self.now = min(arrives, *(stream.due() for ends in self.links for stream in ends if stream.due() > self.now))
            while self.queue and self.queue[0][0] <= self.now:
                _, stream, packet = self.queue.popleft()
                stream.packet_in(packet, self.now)
                while stream.frame() is not None:
                    pass


def test_links_through_a_busy_broker_do_not_repeat_what_is_on_its_way():
    broker = BusyBroker(links=100, rate=40.0)  # which needs five seconds for a hundred frames and their acknowledgements
    broker.send_frames()
    assert broker.packets < 220
    broker.send_frames()  # the round-trip time is known now
    assert broker.packets < 420


def test_token_bucket_is_per_sender_and_refills():
    allowance = TokenBucket(rate=2, burst=3)
    assert [allowance.take(b"a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert allowance.take(b"b", 0.0)
    assert [allowance.take(b"a", 1.0) for _ in range(3)] == [True, True, False]
    assert [allowance.take(b"a", 100.0) for _ in range(4)] == [True, True, True, False]
    for k in range(3 * MOST):
        allowance.take(k.to_bytes(4, "big"), 100.0)
    assert allowance.remaining((2 * MOST).to_bytes(4, "big"), 100.0) == 2  # only the last MOST senders are remembered
    assert allowance.remaining((2 * MOST - 1).to_bytes(4, "big"), 100.0) == 3
    assert allowance.remaining(b"a", 100.0) == 3
