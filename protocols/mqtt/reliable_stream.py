"""Stream of whole frames over a channel that loses, repeats, reorders and alters packets, for one link. No I/O.

A frame is cut into chunks, each sealed into its own packet:

    data      1 | link 16 | number 8 | frame size 4 | index 4 | sealed (chunk, and after the last one SHA-256 of the frame)
    control   2 | link 16 | number 8 | sealed (flags 1, next number that is missing 8, which of the 32 after it came 4)

The seal also covers the fields before it. Numbers count chunks over the life of the link and are their nonces; a
repeated chunk is the same packet. Acknowledgements are control packets. The carrier of the packets can neither forge
nor change one. It learns the sizes of frames and the times at which they are sent.

A packet that cannot be opened raises an error; a late or repeated one is ignored. At most WINDOW chunks that arrive too
early are kept. Memory for their frame is allocated only when its size is known and allowed.

The time after which a chunk is repeated is common to all links of a node (`round_trip`), because they share a broker, and
its queues are most of the delay. A busy broker becomes slower for all links at once, and most of them have only one
small frame on its way, so none could find this out for itself before it had repeated its frame several times. With
hundreds of links these repetitions are a multiple of the load that made the broker slow, and it does not recover. When
the time becomes too short, one link therefore repeats a chunk, and the others wait twice as long before they do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from struct import Struct

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.mqtt.packets import CONTROL, DATA, SEAL, Sealing
from p2pfl.protocols.round_trip import RoundTrip
from p2pfl.protocols.transport import Part
from p2pfl.protocols.transports.frames import patience

DATA_PACKET, CONTROL_PACKET = 1, 2  # first byte of a packet
CHUNK = (256 << 10) - 512  # bytes of a frame in one packet, so that the whole packet has at most 256 KiB
WINDOW = 16  # chunks that may be in transit
FIRST_WINDOW, LEAST_WINDOW = 4, 2  # chunks in transit at first, and when many are lost
FIRST_WAIT, SHORTEST_WAIT, LONGEST_WAIT = 1.0, 0.5, 8.0  # seconds without acknowledgement before a chunk is repeated
OVERTAKEN = 3  # number of acknowledged chunks that were sent later, after which a chunk counts as lost
STALLED = 30.0  # seconds without an acknowledgement of sent data after which the link fails
PROBE = 6.0  # seconds for an answer when the other side may have lost the link
PING_AGAIN = 1.5  # seconds between pings during this time
_PING, _CLOSE = 1, 2  # flags
CONTROL_HEADER = Struct(">B16sQ")
DATA_HEADER = Struct(">B16sQII")
CONTROL_CONTENT = Struct(">BQI")
_DIGEST = 32
LARGEST_PACKET = DATA_HEADER.size + CHUNK + _DIGEST + SEAL  # bytes


@dataclass(slots=True)
class _Sent:
    """Chunk that is not acknowledged yet."""

    packet: bytes
    size: int  # bytes of its frame in the chunk
    when: float
    again: bool = False  # sent more than once, so that its acknowledgement does not give a round-trip time
    due: bool = False  # due to be sent again


def round_trip() -> RoundTrip:
    """Return the estimate of a node's links through a broker."""
    return RoundTrip(FIRST_WAIT, SHORTEST_WAIT, LONGEST_WAIT)


class ReliableStream:
    """Both directions of one link: chunks that are sent until they are acknowledged, and frames that are put together.

    Args:
        id: id of the link.
        limit: maximum bytes of a received frame. It may be changed, and applies to frames that `frame` has not begun.
        now: the time in seconds, of any clock that never goes back; most calls take it.
        shared: estimate of `round_trip` that this link shares with others; by default one of its own.

    Attributes:
        heard: number of received packets that the other side has sealed.
        ended: whether the other side has closed the link.
        backlog: bytes of frames that are not acknowledged yet.
    """

    def __init__(self, sealing: Sealing, id: bytes, limit: int, now: float, shared: RoundTrip | None = None) -> None:
        self.id = id
        self.limit = limit
        self.heard = 0
        self.ended = False
        self.backlog = 0
        self._sealing = sealing
        self._outgoing = _Outgoing()
        self._next_out = 0
        self._sent: dict[int, _Sent] = {}
        self._unacknowledged = 0  # the lowest number that the other side does not have
        self._window = float(FIRST_WINDOW)
        self._round_trip = shared or round_trip()
        self._patience = 0.0  # seconds for which this link waits longer than others, because its chunks were lost
        self._progress = now
        self._early: dict[int, tuple[int, int, bytes]] = {}  # chunks that wait for an earlier one: size, index, content
        self._early_size = 0
        self._next_in = 0
        self._incoming: _Incoming | None = None
        self._came = now  # time of the last packet
        self._complete_by = inf  # deadline of the incomplete frame
        self._next_control = 0
        self._newest_control = -1
        self._flags = 0
        self._owes = False  # whether an acknowledgement is due
        self._probed_until = inf
        self._ping_at = inf
        self._next_probe = now

    # Sending

    def send(self, parts: Sequence[Part]) -> None:
        """Queue a frame for sending. Its parts must not change afterwards."""
        self.backlog += self._outgoing.add(parts)

    @property
    def unsent(self) -> bool:
        """Return whether a part of a queued frame has not been sent yet."""
        return bool(self._outgoing)

    @property
    def sendable(self) -> bool:
        """Return whether there is a chunk that may be sent now."""
        return any(sent.due for sent in self._sent.values()) or (
            len(self._sent) < int(self._window) and bool(self._outgoing) and self._next_out < self._unacknowledged + WINDOW
        )

    def acknowledge(self) -> None:
        """Schedule a control packet even without received data. It proves that this side has the keys."""
        self._owes = True

    def probe(self, now: float) -> None:
        """Ask for a sign of life; if none arrives in time, `failure` returns an error. Repeated calls do nothing."""
        if now >= self._next_probe:
            self._next_probe = self._probed_until = now + PROBE
            self._ping_at = now

    def closing(self) -> bytes:
        """Return the packet that tells the other side that the link is closed."""
        self._flags |= _CLOSE
        return self._control()

    def packet_out(self, now: float, data: bool = True) -> bytes | None:
        """Return the next packet to send now, or None; `data`: whether it may be a large one."""
        if now >= self._ping_at:
            self._ping_at = now + PING_AGAIN
            self._flags |= _PING
        if self._owes or self._flags:
            return self._control()
        self._time_out(now)
        if not data:
            return None
        for sent in self._sent.values():
            if sent.due:
                sent.due, sent.again, sent.when = False, True, now
                return sent.packet
        return self._next_frame(now) if self.sendable else None

    def _next_frame(self, now: float) -> bytes:
        size, index, chunk, length = self._outgoing.next_chunk()
        header = DATA_HEADER.pack(DATA_PACKET, self.id, self._next_out, size, index)
        packet = header + self._sealing.seal(DATA, self._next_out, chunk, header)
        if not self._sent:
            self._progress = now
        self._sent[self._next_out] = _Sent(packet, length, now)
        self._next_out += 1
        return packet

    def _control(self) -> bytes:
        header = CONTROL_HEADER.pack(CONTROL_PACKET, self.id, self._next_control)
        came = sum(1 << (number - self._next_in - 1) for number in self._early if number > self._next_in)
        content = CONTROL_CONTENT.pack(self._flags, self._next_in, came)
        packet = header + self._sealing.seal(CONTROL, self._next_control, content, header)
        self._next_control += 1
        self._flags, self._owes = 0, False
        return packet

    @property
    def _wait(self) -> float:
        """Seconds without acknowledgement before a chunk is repeated. They double for a peer that does not answer."""
        return max(self._round_trip.wait, self._patience)

    def _time_out(self, now: float) -> None:
        wait = self._wait
        late = [sent for sent in self._sent.values() if not sent.due and sent.when + wait <= now]
        if late:
            for sent in late:
                sent.due = True
            self._patience = min(2 * wait, LONGEST_WAIT)
            self._round_trip.expired()
            self._window = max(LEAST_WINDOW, self._window / 2)

    # Receiving

    @property
    def incomplete(self) -> int:
        """Size in bytes of the frame that has begun to arrive; 0 without one."""
        return 0 if self._incoming is None else len(self._incoming.content)

    def packet_in(self, packet: Part, now: float) -> None:
        """Process a packet of this link; `frame` returns the frames that it completes.

        Raises:
            ProtocolError: "malformed" or "wrong seal": the other side did not make the packet.
        """
        self._came = now
        data = packet[0] == DATA_PACKET
        header = packet[: (DATA_HEADER if data else CONTROL_HEADER).size]
        if len(packet) <= len(header):
            raise ProtocolError("malformed", f"a packet of {len(packet)} bytes")
        sealed = memoryview(packet)[len(header) :]
        if data:
            self._data_in(header, sealed)
        else:
            self._control_in(header, sealed, now)

    def _data_in(self, header: Part, sealed: memoryview) -> None:
        _, _, number, size, index = DATA_HEADER.unpack(header)
        repeated = number < self._next_in or number in self._early
        # Early chunks are kept only up to the maximum size of one frame, which is small before a link is trusted.
        if number >= self._next_in + WINDOW or (
            not repeated and number > self._next_in and self._early_size + len(sealed) > self.limit + CHUNK
        ):
            return
        chunk = self._sealing.open(DATA, number, sealed, header)
        self._owes = True  # also for a repeated one, because its acknowledgement may be lost
        if repeated:
            return
        self._alive()
        self._early[number] = size, index, chunk
        self._early_size += len(chunk)

    def frame(self) -> memoryview | None:
        """Return the next complete frame, or None.

        Raises:
            ProtocolError: "malformed" or "too large": the other side has sent invalid data, and the link cannot
                continue.
        """
        while (early := self._early.pop(self._next_in, None)) is not None:
            size, index, chunk = early
            self._early_size -= len(chunk)
            self._next_in += 1
            if self._incoming is None:
                if size > self.limit:
                    raise ProtocolError("too large", f"a frame of {size} bytes, at most {self.limit} are allowed")
                self._incoming, self._complete_by = _Incoming(size), self._came + patience(size)
            if self._incoming.take(size, index, chunk):
                frame, self._incoming = memoryview(self._incoming.content), None
                self._complete_by = inf
                return frame
        return None

    def _control_in(self, header: Part, sealed: memoryview, now: float) -> None:
        _, _, number = CONTROL_HEADER.unpack(header)
        if number <= self._newest_control:
            return  # repeated, or older than one that was processed already
        content = self._sealing.open(CONTROL, number, sealed, header)
        if len(content) != CONTROL_CONTENT.size:
            raise ProtocolError("malformed", "a control packet of the wrong length")
        self._newest_control = number
        self._alive()
        flags, missing, came = CONTROL_CONTENT.unpack(content)
        self._owes |= bool(flags & _PING)
        self.ended |= bool(flags & _CLOSE)
        self._on_acknowledgement(missing, came, now)

    def _on_acknowledgement(self, missing: int, came: int, now: float) -> None:
        new = [n for n in self._sent if n < missing or (n > missing and came >> (n - missing - 1) & 1)]
        if not new:
            return
        for number in new:
            sent = self._sent.pop(number)
            self.backlog -= sent.size
            if not sent.again:
                self._round_trip.measured(now - sent.when)
        self._unacknowledged = min(self._sent, default=self._next_out)
        self._window = min(self._window + len(new), WINDOW)
        self._progress = now
        self._patience = 0.0
        for number, sent in self._sent.items():
            if number + OVERTAKEN <= new[-1] and not sent.again:
                sent.due = True

    def _alive(self) -> None:
        self.heard += 1
        self._probed_until = self._ping_at = inf

    # Timing

    def due(self) -> float:
        """Return the time at which to call `packet_out` or `failure` without a new packet; inf for never."""
        asked = min(self._ping_at, self._probed_until, self._complete_by)
        if not self._sent:
            return asked
        again = min((sent.when for sent in self._sent.values() if not sent.due), default=inf) + self._wait
        return min(again, self._progress + STALLED, asked)

    def failure(self, now: float) -> str:
        """Return the reason to give the link up, or ""."""
        if self._sent and now >= self._progress + STALLED:
            return "does not read its messages"
        if now >= self._probed_until:
            return "no longer knows this link"
        if now >= self._complete_by:
            return "did not complete a frame in time"
        return ""

    def resume(self, now: float) -> None:
        """Resume after an interruption of the channel: send the chunks in transit again, and ignore the pause."""
        for sent in self._sent.values():
            sent.due = True
        self._patience = 0.0
        self._round_trip.reset()
        self._progress = now
        self._probed_until = self._ping_at = inf
        if self._incoming is not None:
            self._complete_by = now + patience(len(self._incoming.content))
        self._owes = True


class _Outgoing:
    """Frames to send, cut into chunks without joining their parts first."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, deque[memoryview]]] = deque()
        self._index = 0
        self._left = 0  # bytes of the first frame
        self._digest = sha256()

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, parts: Sequence[Part]) -> int:
        """Add a frame; return its size in bytes."""
        views = deque(memoryview(part).cast("B") for part in parts if len(part))
        size = sum(len(view) for view in views)
        if not self._frames:
            self._left = size
        self._frames.append((size, views))
        return size

    def next_chunk(self) -> tuple[int, int, Part, int]:
        """Return the first frame's size, and the index, the content to seal, and the length of its next chunk."""
        size, views = self._frames[0]
        length = min(CHUNK, self._left)
        pieces: list[Part] = []
        missing = length
        while missing:
            view = views.popleft()
            if len(view) > missing:
                views.appendleft(view[missing:])
                view = view[:missing]
            missing -= len(view)
            self._digest.update(view)
            pieces.append(view)
        index = self._index
        self._left -= length
        self._index += 1
        if not self._left:
            pieces.append(self._digest.digest())
            self._frames.popleft()
            self._index, self._digest = 0, sha256()
            self._left = self._frames[0][0] if self._frames else 0
        return size, index, pieces[0] if len(pieces) == 1 else b"".join(pieces), length


class _Incoming:
    """Incomplete frame whose chunks arrive in order."""

    def __init__(self, size: int) -> None:
        self.content = bytearray(size)
        self._filled = 0
        self._index = 0
        self._digest = sha256()

    def take(self, size: int, index: int, chunk: bytes) -> bool:
        """Add a chunk; return whether the frame is complete.

        Raises:
            ProtocolError("malformed"): the chunk does not belong at this position.
        """
        length = min(CHUNK, len(self.content) - self._filled)
        last = self._filled + length == len(self.content)
        if size != len(self.content) or index != self._index or len(chunk) != length + last * _DIGEST:
            raise ProtocolError("malformed", "a chunk that does not belong to its frame")
        content = memoryview(chunk)[:length]
        self._digest.update(content)
        self.content[self._filled : self._filled + length] = content
        self._filled += length
        self._index += 1
        if last and self._digest.digest() != chunk[length:]:
            raise ProtocolError("malformed", "a frame that was changed on the way")
        return last
