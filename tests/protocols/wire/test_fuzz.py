"""Fuzzing of inputs from outside: only documented errors, no dead tasks, and no memory leaks.

Inputs are real messages of every kind, modified at random from a seed: bits, pieces and lengths. In half of them, whole
fields are also changed and signed again with the right key, as a malicious member can do. This command tries a
million inputs from a new seed, and prints the number of each kind:

    P2PFL_FUZZ=1000000 pytest -s -m slow tests/protocols/wire/test_fuzz.py
"""

import asyncio
import base64
import os
import random
import time
from collections import Counter, deque
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2pfl.compression.codecs import BFloat16, DecodeError, Float16, Int8, TopK
from p2pfl.compression.sparse_updates import (
    PeerCopy,
    decode_changes,
    decode_entries,
    encode_change,
    encode_entries,
    quantise,
    tag,
)
from p2pfl.node.coordination.election_runner import ElectionRunner, MemoryVotes
from p2pfl.node.coordination.submissions import Coordination, UnansweredSubmission
from p2pfl.node.exchange.base import ExchangeConfig
from p2pfl.node.exchange.message_exchange import MessageExchange, payload_limit
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.peering.peering_config import Member, PeeringConfig, PeeringOptions
from p2pfl.node.peering.peers import Asked
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.protocols import discovery
from p2pfl.protocols.election import Ballot, Electorate, Term
from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint, invitation
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import Invitation, Join, Joined, JoinRefused, Request
from p2pfl.protocols.membership.log import Membership, Signed
from p2pfl.protocols.mqtt import link, reliable_stream, transport
from p2pfl.protocols.mqtt.packets import Sealing
from p2pfl.protocols.mqtt.reliable_stream import ReliableStream
from p2pfl.protocols.term_certificates import Certificate
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import Credentials, key_of, make_certificate
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.transports.tls_handshake import TlsHandshake
from p2pfl.protocols.wire import envelope, payload
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire import payload as submission
from p2pfl.protocols.wire.envelope import HEADER_SIZE, OVERHEAD, FrameSigner, FrameVerifier, Payload
from p2pfl.sim.simulation import clock
from tests.support.handshakes import dialler, listener

P = 8  # values of a model
GROWTH = 50 << 20  # bytes by which memory may grow
SESSION = bytes(range(16))
LATER = 1e9  # seconds; a lease or promise from then outlasts a test
KEYS = bytes(32), bytes([1]) * 32  # for each direction of a link through a broker
ADMISSION, ALICE, BOB, CAROL = (Identity.from_seed(bytes([k]) * 32) for k in range(4))
FILE = Federation.sign({"name": "test", "rounds": 3, "edges": [["a", "b"]], "task": {"name": "digits"}}, ADMISSION)


def make_log():
    log = Membership(FILE)
    for name, identity in (("alice", ALICE), ("bob", BOB), ("carol", CAROL)):
        log.append(ADMISSION, "add", name, identity.public)
    return log


LOG = make_log()
SHAPES = Layout((("weights", (2, 3)), ("bias", (2,))), P)
START = np.zeros(P, np.float32)
ENTRIES = Payload.of(encode_entries(np.ones(P, np.float32), np.array([1, 2, 5], np.uint32)))
QUANTISED = b"\1\0" + encode_change(quantise(np.ones(P, np.float32), 3, 3), P, 3)
MODEL = Payload.of(np.ones(P, np.float32).tobytes(), payload.encode_extras({"x": np.arange(6.0).reshape(2, 3)}))
TERMS = Payload.of(m.HelloParameters({"size": "8"}, {"n_samples": 50, "group": "x", "share": 0.5}, 1, False, 3).encode())
CLUSTER = {"cluster": np.array([0, 1]), "figures": np.array([1, 0, 0.5, 2.0])}
SUBMISSION = Payload.of(np.ones(2 * P, np.float32).tobytes(), submission.encode_submission({"x": np.ones(2)}, CLUSTER))
ASSIGNMENT = Payload.of(np.ones(P, np.float32).tobytes(), submission.encode_assignment({"a": 0.5, "b": 0.5}, CLUSTER))
MESSAGES = [
    (m.Hello(), TERMS),
    (m.Welcome(), TERMS),
    (m.Get(1, 1, "trained"), envelope.EMPTY),
    (m.Get(1, 2, "merged", tag(START)), envelope.EMPTY),
    (m.ModelUpdate(1, 1, "trained", 50, False, 0.5), MODEL),
    (m.ModelUpdate(1, 1, "trained", 50, False, 0.5, tag(START)), ENTRIES),
    (m.GetFragments(1, 1, "trained", "random", 16, b"\x05\x80"), envelope.EMPTY),
    (m.FragmentUpdate(1, 1, "trained", 50, False, 0.5, "layers", 2, 1), MODEL),
    (m.NotAvailable(1, 1, "busy"), envelope.EMPTY),
    (m.Score(1, 1), MODEL),
    (m.Scored(1, 0.5), envelope.EMPTY),
    (m.RoundReached(2), envelope.EMPTY),
    (m.Ping(7), envelope.EMPTY),
    (m.Pong(7, 1), envelope.EMPTY),
    (m.PingRequest(7, CAROL.public), envelope.EMPTY),
    (m.IndirectAck(7, CAROL.public), envelope.EMPTY),
    (m.Entries(3), Payload.of(LOG.encode())),
    (m.MissingEntries(2), envelope.EMPTY),
    (m.Bye(1, False), envelope.EMPTY),
    (m.Bye(1, True), envelope.EMPTY),
    (m.Vote(3, 1, True), envelope.EMPTY),
    (m.Vote(3, 1, False), envelope.EMPTY),
    (m.Voted(3, 1, False, True), envelope.EMPTY),
    (m.Leading(3, 1, 1), envelope.EMPTY),
    (m.Following(3, 1, 1), envelope.EMPTY),
    (m.SignedVote(3, 1), Payload.of(bytes(64))),
    (m.TermCertificate(3, 1), Payload.of(Certificate("bob", {"bob": bytes(64)}).encode())),
    (m.WhichTerm(3, 1), envelope.EMPTY),
    (m.TermOver(3, 1), envelope.EMPTY),
    (m.GroupMean(1, 1, 3, 1), SUBMISSION),
    (m.Submit(1, 1, 3, 1, 50, True), SUBMISSION),
    (m.Assigned(1, 1, 3, 1, True), ASSIGNMENT),
    (m.SumRequest(1, 1, 3, 1, "roster"), ASSIGNMENT),
    (m.SumAnswer(1, 1, 3, 1, "announce"), ASSIGNMENT),
]
STAGES = ("prepared", "trained", "merged")
NASTY = [  # invalid or extreme msgpack
    *(b"\xc1", b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
    *(
        b"\x91" * 40,
        b"\x81" * 40,
        b"\xcf" + b"\xff" * 8,
        b"\xd3\x80" + bytes(7),
        b"\xcb\x7f\xf8" + bytes(6),
        b"\xca\xff\x80\0\0",
    ),
    *(b"\xa4\xff\xfe\xfd\xfc", b"\xc7\xff\x01", b"\xd6\xff\0\0\0\0", b"\xdc\xff\xff", b"\x90", b"\x80", b"\xa0", b"\xc4\0"),
]
VALUES = [None, True, -1, 0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"), -0.0]
VALUES += ["", "trained", "x" * 300, "\0", "\ud7ff", b"", bytes(16), bytes(32), b"\xff" * 32, [], [[]], {}, {"a": 1}]
VALUES += ["get", "model_update", "hello", "entries", CAROL.public, ALICE.public]


class Mutator:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def changed(self, data, corpus):
        """Return data with a few random changes."""
        changed = bytearray(data)
        for _ in range(self.rng.randint(1, 4)):
            self._change(changed, corpus)
        return bytes(changed)

    def _change(self, data, corpus):
        rng = self.rng
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xDD, 0xFF, rng.randrange(256)))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 40))
            case 4:
                del data[at : at + rng.randint(1, 40)]
            case 5:
                other = rng.choice(corpus)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                nasty = rng.choice(NASTY)
                data[at : at + len(nasty)] = nasty

    def fields(self, value):
        """Return fields with one or two changes at any depth: altered, removed or added."""
        changed = list(value)
        for _ in range(self.rng.randint(1, 2)):
            at = self.rng.randrange(len(changed) + 1)
            kind = self.rng.randrange(8)
            if at == len(changed) or kind == 0:
                changed.insert(at, self.rng.choice(VALUES))
            elif kind == 1:
                del changed[at]
            elif isinstance(changed[at], list) and changed[at]:
                changed[at] = self.fields(changed[at])
            elif isinstance(changed[at], int) and kind < 4:
                changed[at] = min(max(0, changed[at] + self.rng.randint(-3, 3)), 2**64 - 1)
            elif isinstance(changed[at], bytes | str) and kind < 4:
                changed[at] = changed[at][: self.rng.randrange(len(changed[at]) + 1)]
            else:
                changed[at] = self.rng.choice(VALUES)
        return changed

    def plausible(self, body):
        """Return a message, as a list, with other valid values in its fields."""
        share = self.rng.choice((0.1, 0.5))
        return [body[0], *(self._plausible(value) if self.rng.random() < share else value for value in body[1:])]

    def _plausible(self, value):
        match value:
            case bool():
                return self.rng.random() < 0.5
            case int():
                return self.rng.choice((0, 1, 2, 3, 7, 2**32 - 1))
            case float():
                return self.rng.choice((0.0, 0.5, 1e300, float("inf")))
            case bytes():
                return self.rng.choice((ALICE, BOB, CAROL, ADMISSION)).public
            case _:
                return self.rng.choice((*STAGES, value))


def plain(data):
    return msgspec.msgpack.decode(data)


def pack_value(value):
    return msgspec.msgpack.encode(value)


class CountingLink:
    """Link that only counts frames."""

    remote, key, session, dialled, direct, joining = "bob", BOB.public, SESSION, False, True, False
    backlog = progress = 0
    payload_digest, version = b"", 6

    def __init__(self):
        self.frames = 0

    def send(self, parts):
        assert sum(len(part) for part in parts) >= OVERHEAD
        self.frames += 1

    def trust(self): ...

    def close(self): ...


class FrameFuzzer:
    """Fuzzer of frames: a node, and bob, a member who sends arbitrary frames."""

    def __init__(self, mutator):
        self.mutator = mutator
        signer = FrameSigner(BOB, FILE.id, bytes(16), 1)
        self.corpus = [b"".join(signer.seal(*said[:1], ALICE.public, said[1], SESSION)) for said in MESSAGES]
        self.sequence = 1000
        self.recent = deque(maxlen=64)
        self.seen = Counter()
        self.votes = MemoryVotes()

    async def start(self, tasks):
        others = {"bob": Member(BOB.public), "carol": Member(CAROL.public)}
        keys = {name: member.key for name, member in others.items()}
        everyone = ("alice", "bob", "carol")
        election = ElectionRunner(
            *("alice", Electorate(LOG.membership_version, frozenset(everyone), everyone), self.votes),
            incarnation=1,
            seed=0,
            clock=asyncio.get_running_loop().time,
        )
        config = ExchangeConfig(
            peering=PeeringConfig(
                name="alice",
                key=ALICE.public,
                neighbours=others,
                transport=InProcessNetwork().transport("alice"),
                signer=FrameSigner(ALICE, FILE.id, bytes(16), 1),
                verifier=FrameVerifier(keys, ALICE.public, FILE.id, payload_limit(P, True)),
                agreed={"size": "8"},
                public_info={"n_samples": 50},
                options=PeeringOptions(access=make_log()),
            ),
            settings=Settings(),
            n_samples=50,
        )
        coordination = Coordination(election, CoordinatedFedAvg().step)
        self.exchange = MessageExchange(config, ModelEncoder(TopK(0.5), SHAPES, START), self._loss, coordination)
        self.peering = self.exchange.peering
        await self.peering.start(tasks)
        election.begin()
        await self.exchange.publish(1, "trained", np.ones(P, np.float32), {})
        self.wire = CountingLink()
        self.sequence = 1000

    async def _loss(self, params):
        await asyncio.sleep(0)
        return 0.5

    def greet(self):
        """Introduce bob, regardless of earlier frames; return whether that is still possible."""
        self.sequence += 1
        signer = FrameSigner(BOB, FILE.id, bytes(16), 1, sequence=self.sequence - 1)
        self.peering.received(self.wire, memoryview(b"".join(signer.seal(m.Hello(), ALICE.public, TERMS, SESSION))))
        # Pending requests to him, so that his answers are processed.
        peer = self.exchange.peers["bob"]
        peer.requests = {k: asyncio.get_running_loop().create_future() for k in (1, 2)}
        peer.asked = {1: Asked(1, "trained", PeerCopy(tag(START), START, 0))}
        self.coordinate()
        return peer.introduced

    def coordinate(self):
        """Make alice the coordinator, or let her wait for an assignment of bob."""
        exchange, rng = self.exchange, self.mutator.rng
        exchange.peering.final = True  # so that a submission of bob completes a round
        self.votes.ballot = Ballot(Term(LOG.membership_version, 0))
        exchange.election.begin()
        election = exchange.election.election
        if rng.random() < 0.5:
            election.tick(LATER)
            for said in (
                m.Voted(LOG.membership_version, 1, True, True),
                m.Voted(LOG.membership_version, 1, False, True),
                m.Following(LOG.membership_version, 1, 1),
            ):
                election.receive("carol", said, LATER)
            assert election.leads(LATER)
        else:
            election.receive("bob", m.Leading(LOG.membership_version, 1, 1), LATER)
            assert election.obeys("bob", Term(LOG.membership_version, 1))
        answer = asyncio.get_running_loop().create_future()
        exchange.coordination.client.pending = UnansweredSubmission(1, 1, "bob", election.term, answer)

    def frame(self):
        rng, mutator = self.mutator.rng, self.mutator
        data = rng.choice(self.corpus)
        if rng.random() < 0.5:
            return mutator.changed(data, self.corpus)
        header, content = plain(data[:HEADER_SIZE]), data[OVERHEAD:]
        if rng.random() < 0.3:
            content = mutator.changed(content, [each[OVERHEAD:] for each in self.corpus])
        self.sequence += 1
        header[6], header[9], header[10] = self.sequence, len(content), envelope.Payload.of(content).digest
        match rng.randrange(4):
            case 0:
                return self.signed(mutator.fields(header[:12]), content)
            case 1:
                return self.signed([*header[:11], mutator.fields(header[11])], content)
            case _:
                return self.signed([*header[:11], mutator.plausible(header[11])], content)

    def signed(self, fields, content):
        """Return a frame signed by bob, with its header padded to the usual size if possible."""
        used = len(pack_value([*fields, b""]))
        header = pack_value([*fields, bytes(max(0, HEADER_SIZE - used))])[:HEADER_SIZE]
        digest = envelope.Payload.of(content).digest
        return header + BOB.sign(envelope.signed_content(header, digest, envelope.VERSION)) + content

    def run_one(self):
        frame = self.frame()
        self.recent.append(frame)
        before = self.exchange.rejected.total()
        self.peering.received(self.wire, memoryview(frame))
        self.seen["frames" if self.exchange.rejected.total() > before else "frames that were taken"] += 1


class InputFuzzer:
    """Fuzzer of all other inputs: for each, valid inputs, the function that reads them, and its documented errors."""

    def __init__(self, mutator):
        self.mutator = mutator
        self.log = make_log()
        self.directory = transport.Directory(self.log)
        self.places = {
            "handshake": (self._steps(), self.step, ProtocolError),
            "handshake packet": (self._packets_of_handshake(), self.handshake_packet, ProtocolError),
            "chunks": (self._packets(), self.chunk, ProtocolError),
            "presence": (self._presences(), lambda data: self.directory.read(BOB.public, data), ProtocolError),
            "membership": ([LOG.encode(), LOG.after(1, 1 << 20)], lambda data: make_log().extend(data), ProtocolError),
            "new entries": ([LOG.encode()], lambda data: Membership(FILE).extend(self.entries(data)), ProtocolError),
            "federation": ([FILE.data], Federation.parse, FederationError),
            "signed federation": ([FILE.data], lambda data: Federation.parse(self.file(data)), FederationError),
            "terms": ([TERMS.parts[0]], m.decode_hello_parameters, ProtocolError),
            "payload": ([b"".join(MODEL.parts)], lambda data: payload.decode(data, P), ProtocolError),
            "submission": (
                [b"".join(SUBMISSION.parts)],
                lambda data: submission.decode_submission(data, P, True),
                ProtocolError,
            ),
            "assignment": (
                [b"".join(ASSIGNMENT.parts)],
                lambda data: submission.decode_assignment(data, P),
                ProtocolError,
            ),
            "float16": ([np.ones(P, np.float16).tobytes()], lambda data: Float16().decode(data, SHAPES), DecodeError),
            "bfloat16": ([b"\x80\x3f" * P], lambda data: BFloat16().decode(data, SHAPES), DecodeError),
            "int8": ([b"\0\0\x80\x3f" * 2 + bytes(P)], lambda data: Int8().decode(data, SHAPES), DecodeError),
            "entries": ([ENTRIES.parts[0]], lambda data: decode_entries(memoryview(data), START), DecodeError),
            "quantised": ([QUANTISED], lambda data: decode_changes(memoryview(data), START, 3), DecodeError),
            "join": ([pack_value(Join(bytes(16), "dave"))], invitation.decode_join, ProtocolError),
            "joined": (
                [pack_value(Joined(FILE.data, LOG.encode())), pack_value(JoinRefused("no"))],
                invitation.decode_answer,
                FederationError,
            ),
            "checkpoint": (
                [checkpoint.make(LOG, ADMISSION, [*LOG.members][:2])],
                lambda data: checkpoint.read(data, FILE),
                ProtocolError,
            ),
            "token": ([self._token()], lambda data: Invitation.parse(self.word(data)), FederationError),
            "request": (
                [Request.make(BOB, "bob", CAROL).encode()],
                lambda data: Request.parse(self.word(data)),
                FederationError,
            ),
            "admission": (
                [invitation.encode_admission(Joined(FILE.data, LOG.encode())).encode()],
                lambda data: invitation.decode_admission(self.word(data)),
                FederationError,
            ),
            "mdns": ([self._text()], discovery.read_text, ()),
            "certificate": ([self._certificate()], key_of, ()),
        }
        self.names = list(self.places)
        self.seen = Counter()

    def run_one(self):
        name = self.mutator.rng.choice(self.names)
        corpus, take, errors = self.places[name]
        data = self.mutator.changed(self.mutator.rng.choice(corpus), corpus)
        try:
            with suppress(errors):
                take(data)
        except Exception as error:
            raise AssertionError(f"{name}: {data.hex()}") from error
        self.seen[name] += 1

    # Valid inputs

    def _steps(self):
        challenge = handshake.challenge(self.log)
        proof, _ = handshake.prove(BOB, self.log, handshake.Challenge(1, bytes(32), 0), ALICE.public, b"c", joining=False)
        self.challenge = challenge
        return [handshake.encode(step) for step in (challenge, proof, handshake.Accepted(), handshake.Refused("a", "b"))]

    def _packets_of_handshake(self):
        """Return the packets that a listener receives before the proof, and the dialler's first one."""
        self.credentials = Credentials(ALICE, self.log)
        a, first = dialler(BOB, self.log, ALICE.public)
        b = listener(ALICE, self.log)
        b.packet_in(first, 0.0)
        a.packet_in(b.packet_out(0.0), 0.0)
        return [first, a.packet_out(0.0)]

    def _packets(self):
        return [
            reliable_stream.DATA_HEADER.pack(1, SESSION, 0, 100, 0) + bytes(132),
            reliable_stream.CONTROL_HEADER.pack(2, SESSION, 0) + bytes(13),
        ]

    def _presences(self):
        said = [transport.Presence(FILE.id, BOB.public, 1, k, ("tcp://127.0.0.1:4100",), True) for k in range(2)]
        return [transport.sign(BOB, each) for each in said]

    def _token(self):
        made = (FILE.id, "test", ADMISSION.public, ALICE.public, ("127.0.0.1:4100",), bytes(16), 2**31, "bob")
        return Invitation(*made).encode().encode()

    def _text(self):
        return b"".join(bytes([len(s)]) + s for s in (b"id=" + BOB.public.hex().encode(), b"fed=" + FILE.id.hex().encode()))

    def _certificate(self):
        return make_certificate(BOB)

    # Functions that read them

    def step(self, data):
        step = handshake.decode(data)
        if isinstance(step, handshake.Proof):
            handshake.check(step, make_log(), self.challenge, ALICE.public, b"c")
        elif isinstance(step, handshake.Challenge):
            handshake.prove(BOB, self.log, step, ALICE.public, b"c", joining=False)

    def handshake_packet(self, data):
        """Give a listener one packet, half of them with a right checksum."""
        if self.mutator.rng.random() < 0.5:
            data = link.make_packet(bytes(16), 0, data[link.HEADER.size + link.CHECKSUM :])
        link.LinkHandshake(TlsHandshake(self.credentials), bytes(16)).packet_in(data, 0.0)

    def chunk(self, data):
        """Feed a stream: half of the inputs as sealed by the other side, the others as forged by a broker."""
        ours, theirs = Sealing(*KEYS), Sealing(*KEYS[::-1])
        stream = ReliableStream(ours, SESSION, 1 << 16, 0.0)
        if self.mutator.rng.random() < 0.5:
            kind, header = (1, reliable_stream.DATA_HEADER) if data[:1] == b"\1" else (2, reliable_stream.CONTROL_HEADER)
            head = bytearray(data[: header.size].ljust(header.size, b"\0"))
            head[0], head[17:25] = kind, bytes(8)
            sealed = theirs.seal(kind - 1, 0, data[header.size :], bytes(head))
            data = bytes(head) + sealed
        if not data or data[0] not in (1, 2) or len(data) < 17:
            return  # the transport does not pass it to the link
        stream.packet_in(data, 0.0)
        stream.frame()

    def entries(self, data):
        """Return the log with one entry changed and signed again with the admission key."""
        log = msgspec.msgpack.decode(LOG.encode(), type=list[Signed])
        at = self.mutator.rng.randrange(len(log))
        entry = pack_value(self.mutator.fields(plain(log[at].entry)))
        log[at] = Signed(entry, ADMISSION.sign(b"p2pfl membership 1\0" + entry))
        return pack_value(log)

    def file(self, data):
        content = data[: data.rfind(b"# signature")] if b"# signature" in data else data + b"\n"
        signature = ADMISSION.sign(b"p2pfl federation 1\0" + content)
        return content + f"# signature: {signature.hex()}\n".encode()

    def word(self, data):
        """Return the text, with a valid checksum for half of the inputs."""
        text = data.decode("latin-1")
        if self.mutator.rng.random() < 0.5:
            return text
        prefix = next(
            (p for p in (invitation.INVITATION, invitation.REQUEST, invitation.ADMISSION) if text.startswith(p)), ""
        )
        word = text[len(prefix) :].strip()
        with suppress(ValueError):
            content = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))[:-4]
            return prefix + base64.urlsafe_b64encode(content + sha256(content).digest()[:4]).decode().rstrip("=")
        return text


def resident():
    """Return the resident memory of this process in bytes; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def fuzz(seed, most, seconds):
    """Return the number of inputs of each kind, and the maximal growth of memory in bytes."""
    mutator = Mutator(seed)
    inputs, frames = InputFuzzer(mutator), FrameFuzzer(mutator)
    before = growth = 0
    until = time.monotonic() + seconds

    async def world(count):
        """Run one node with `count` inputs, or fewer if it no longer accepts bob."""
        async with asyncio.TaskGroup() as tasks:
            await frames.start(tasks)
            for k in range(count):
                if k % 50 == 0 and not frames.greet():
                    break
                frames.run_one()
                inputs.run_one()
                if k % 20 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert frames.exchange.outbox.round == 1
            assert set(frames.peering.peers) == {"bob", "carol"}
            await frames.exchange.close()

    while (done := frames.seen.total() + inputs.seen.total()) < most and time.monotonic() < until:
        try:
            clock.run(world(min(1000, (most - done + 1) // 2)))
        except BaseExceptionGroup as group:
            last = [frame.hex() for frame in frames.recent]
            raise AssertionError(f"seed {seed}, one of the last frames: {last}") from group
        before = before or resident()  # without one-time allocations
        growth = max(growth, resident() - before)
    return frames.seen + inputs.seen, growth


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_fuzzed_inputs_raise_only_documented_errors():
    seen, growth = fuzz(1, 8_000, 240)
    assert seen.total() >= 8_000
    assert min(seen.values()) > 25
    assert growth < GROWTH


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.skipif("P2PFL_FUZZ" not in os.environ, reason="long: set P2PFL_FUZZ to the number of inputs")
def test_fuzzed_inputs_for_long_raise_only_documented_errors():
    began = time.monotonic()
    seen, growth = fuzz(random.randrange(1 << 30), int(os.environ["P2PFL_FUZZ"]), float("inf"))
    print(f"\n{seen.total()} inputs in {time.monotonic() - began:.0f} s, {growth / 1e6:.1f} MB of memory: {dict(seen)}")
    assert growth < GROWTH
