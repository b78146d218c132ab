"""Identity, messages, payloads, the envelope and its verification."""

import contextlib
import os
import stat
from dataclasses import dataclass

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.protocols.errors import IdentityError, ProtocolError
from p2pfl.protocols.identity import Identity, Verifier
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import (
    EARLIER,
    EMPTY,
    HEADER_SIZE,
    OVERHEAD,
    UNSIGNED,
    VERSION,
    WIDTH,
    FrameSigner,
    FrameVerifier,
    Payload,
    ReplayWindow,
    is_signed,
)
from p2pfl.protocols.wire.payload import (
    EXTRAS_LIMIT,
    check_weights,
    decode,
    decode_assignment,
    decode_submission,
    encode_assignment,
    encode_extras,
    encode_submission,
)

FEDERATION, LAYOUT = b"f" * 16, b"l" * 16
BIG = 2**32 - 1
EVERY_MESSAGE = [
    m.Hello(),
    m.Welcome(),
    m.Get(BIG, BIG, "prepared"),
    m.ModelUpdate(BIG, BIG, "prepared", BIG, True, 1e300),
    m.GetFragments(BIG, BIG, "prepared", "contiguous", 128, bytes(16)),
    m.FragmentUpdate(BIG, BIG, "prepared", BIG, True, 1e300, "contiguous", 128, 127),
    m.NotAvailable(BIG, BIG, "nothing yet"),
    m.Score(BIG, BIG),
    m.Scored(BIG, -1e300),
    m.RoundReached(BIG),
    m.Ping(BIG),
    m.Pong(BIG, BIG),
    m.PingRequest(BIG, b"k" * 32),
    m.IndirectAck(BIG, b"k" * 32),
    m.Entries(BIG),
    m.MissingEntries(BIG),
    m.Bye(BIG, True),
    m.Receipts(),
    m.Carried(BIG),
    m.Equivocation(),
    m.Conflict(),
    m.Vote(BIG, BIG, True),
    m.Voted(BIG, BIG, True, False),
    m.Leading(BIG, BIG, BIG),
    m.Following(BIG, BIG, BIG),
    m.SignedVote(BIG, BIG),
    m.TermCertificate(BIG, BIG),
    m.WhichTerm(BIG, BIG),
    m.TermOver(BIG, BIG),
    m.Submit(BIG, BIG, BIG, BIG, BIG, True),
    m.GroupMean(BIG, BIG, BIG, BIG),
    m.Assigned(BIG, BIG, BIG, BIG, True),
    m.SumRequest(BIG, BIG, BIG, BIG, "survivors"),
    m.SumAnswer(BIG, BIG, BIG, BIG, "survivors"),
]


# Identity


def test_key_file_is_private_and_round_trips(tmp_path):
    path = tmp_path / "key.pem"
    identity = Identity.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).public == identity.public
    assert identity.public.hex() in repr(identity)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_key_file_readable_by_others_is_refused(tmp_path, mode):
    path = tmp_path / "key.pem"
    Identity.create(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match=f"accessible to other users.*chmod 600 {path}"):
        Identity.load(path)


def test_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "key.pem"
    Identity.create(path)
    before = path.read_bytes()
    with pytest.raises(IdentityError, match="keys are not overwritten"):
        Identity.create(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"secret", b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"])
def test_load_refuses_other_file_without_quoting_it(tmp_path, content):
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="not a key file") as refused:
        Identity.load(path)
    assert "secret" not in str(refused.value)
    assert "c2VjcmV0" not in str(refused.value)


def test_load_reports_missing_key_file(tmp_path):
    with pytest.raises(IdentityError, match="No such file"):
        Identity.load(tmp_path / "key.pem")


def test_signature_is_valid_for_its_key_and_data_only():
    identity = Identity.from_seed(bytes(32))
    verifier = Verifier(identity.public)
    assert verifier.valid(identity.sign(b"x"), b"x")
    assert not verifier.valid(identity.sign(b"x"), b"y")
    assert not Verifier(Identity.from_seed(b"1" * 32).public).valid(identity.sign(b"x"), b"x")


# Messages, compared with another implementation of msgpack


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda message: type(message).__name__)
def test_messages_are_plain_msgpack(message):
    encoded = msgspec.msgpack.encode(message)
    fields = msgpack.unpackb(encoded)
    assert fields == [message.__struct_config__.tag, *msgspec.structs.astuple(message)]
    assert msgspec.msgpack.decode(msgpack.packb(fields), type=m.Message) == message


def test_list_of_messages_is_complete():
    assert {type(message) for message in EVERY_MESSAGE} == set(m.Message.__args__)


@pytest.mark.parametrize(
    "fields",
    [
        ["get", -1, 0, "trained"],
        ["get", 2**32, 0, "trained"],
        ["get", 0, 0, "else"],
        ["get", 0, 0],
        ["get", 0, 0, "trained", 1],
        ["get", "0", 0, "trained"],
        ["fetch", 0],
        ["model_update", 0, 0, "trained", 1, True, -1.0],
        ["model_update", 0, 0, "trained", 1, True, float("inf")],
        ["model_update", 0, 0, "trained", 1, True, float("nan")],
        [],
        {"get": 0},
        None,
    ],
)
def test_message_decoder_rejects_invalid_fields(fields):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgpack.packb(fields), type=m.Message)


def test_hello_parameters_round_trip():
    terms = m.HelloParameters({"layout": "abc", "policy.tau": "3.0"}, {"group": 2, "share": 0.5, "name": "x"}, 7, False)
    assert m.decode_hello_parameters(terms.encode()) == terms
    assert msgpack.unpackb(terms.encode())["agreed"]["policy.tau"] == "3.0"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb({"agreed": {}, "public_info": {}, "round": 0}),
        msgpack.packb({"agreed": {"x" * 65: ""}, "public_info": {}, "round": 0, "stopped": False}),
        msgpack.packb({"agreed": {str(k): "" for k in range(129)}, "public_info": {}, "round": 0, "stopped": False}),
        msgpack.packb({"agreed": {"a": "x" * 257}, "public_info": {}, "round": 0, "stopped": False}),
        msgpack.packb({"agreed": {}, "public_info": {"a": [1]}, "round": 0, "stopped": False}),
        msgpack.packb({"agreed": {}, "public_info": {"a": float("nan")}, "round": 0, "stopped": False}),
        msgpack.packb({"agreed": {}, "public_info": {}, "round": 0, "stopped": False, "more": 1}),
        b"\x91" * 70_000,
    ],
)
def test_hello_parameters_beyond_limits_are_rejected(payload):
    with pytest.raises(ProtocolError):
        m.decode_hello_parameters(payload)


# Payloads


def test_payload_is_raw_floats_then_extras():
    params = np.array([1, 2, 3], np.float32)
    extras = {"peers": np.array([7, 8], np.uint64), "similarities": np.array([[0.5]], np.float32)}
    payload = params.tobytes() + encode_extras(extras)
    assert payload[:12] == b"\x00\x00\x80?\x00\x00\x00@\x00\x00@@"
    found, more = decode(payload, 3)
    assert found.tolist() == [1, 2, 3]
    assert {name: array.tolist() for name, array in more.items()} == {"peers": [7, 8], "similarities": [[0.5]]}
    assert not found.flags.writeable


def test_payload_without_extras_ends_after_model():
    assert encode_extras({}) == b""
    assert decode(np.zeros(2, np.float32).tobytes(), 2)[1] == {}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_payload_with_non_finite_value_is_rejected(value):
    with pytest.raises(ProtocolError) as refused:
        decode(np.array([0, value, 1], np.float32).tobytes(), 3)
    assert refused.value.cause == "not finite"


@pytest.mark.parametrize("size", [0, 4, 11, 13, 16])
def test_payload_of_wrong_length_is_rejected(size):
    with pytest.raises(ProtocolError) as refused:
        decode(bytes(size), 3)
    assert refused.value.cause == "wrong length"


def pack_value(name="a", dtype="f4", shape=(1,), data=bytes(4)):
    return msgpack.packb([[name, dtype, list(shape), data]])


@pytest.mark.parametrize(
    "extras",
    [
        pack_value(shape=(2,)),
        pack_value(shape=(2**24, 2**24)),
        pack_value(shape=(-1,)),
        pack_value(dtype="O"),
        pack_value(name=""),
        pack_value(shape=(1, 1, 1, 1, 1)),
        msgpack.packb([["a", "f4", [0], b""]] * 17),
        msgpack.packb([["a", "f4", [0], b""]] * 2),
        msgpack.packb(["builtins", "eval"]),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        bytes(EXTRAS_LIMIT + 1),
    ],
)
def test_malformed_extras_are_rejected(extras):
    with pytest.raises(ProtocolError):
        decode(bytes(12) + extras, 3)


def test_encode_extras_rejects_unsupported_or_large_arrays():
    with pytest.raises(ValueError, match="must be float32"):
        encode_extras({"a": np.array(["x"])})
    with pytest.raises(ValueError, match="at most"):
        encode_extras({"a": np.zeros(EXTRAS_LIMIT)})


# Submissions and assignments

MODEL = np.arange(3, dtype=np.float32)
EXTRAS = {"cluster": np.array([0, 1])}


@pytest.mark.parametrize("start", [None, -MODEL])
@pytest.mark.parametrize(("extras", "previous"), [({}, {}), (EXTRAS, {}), ({"cluster": np.zeros(2)}, EXTRAS)])
def test_submission_round_trips_models_and_extras(start, extras, previous):
    models = MODEL.tobytes() + (b"" if start is None else start.tobytes())
    payload = models + encode_submission(extras, previous)
    assert (payload == models) == (not extras and not previous)
    submitted = decode_submission(payload, 3, start is not None)
    assert submitted.params.tolist() == MODEL.tolist()
    assert start is None or submitted.start.tolist() == start.tolist()
    for found, said in ((submitted.extras, extras), (submitted.previous, previous)):
        assert {name: array.tolist() for name, array in found.items()} == {k: v.tolist() for k, v in said.items()}


def test_assignment_round_trips_model_and_weights():
    given = decode_assignment(MODEL.tobytes() + encode_assignment({"bob": 0.25, "alice": 0.75}, EXTRAS), 3)
    assert given.params.tolist() == MODEL.tolist()
    assert given.weights == {"bob": 0.25, "alice": 0.75}
    assert given.extras["cluster"].tolist() == [0, 1]


TWO = msgpack.packb([[], []])


@pytest.mark.parametrize(
    ("payload", "start", "cause"),
    [
        (MODEL.tobytes()[1:], False, "wrong length"),
        (MODEL.tobytes() * 2, False, "wrong length"),
        (MODEL.tobytes() + TWO, True, "wrong length"),
        (MODEL.tobytes() * 2 + TWO[:-1], True, "wrong length"),
        (MODEL.tobytes() + TWO + b"\0", False, "wrong length"),
        (MODEL.tobytes() + pack_value(), False, "wrong length"),
        (MODEL.tobytes() + bytes(EXTRAS_LIMIT + 1), False, "wrong length"),
        (MODEL.tobytes() + msgpack.packb([[["a", "f4", [0], b""]] * 2, []]), False, "malformed"),
        (MODEL.tobytes() + msgpack.packb([[], [["a", "f4", [9], b""]]]), False, "malformed"),
        (np.full(3, np.inf, np.float32).tobytes(), False, "not finite"),
        (MODEL.tobytes() + np.full(3, np.nan, np.float32).tobytes(), True, "not finite"),
    ],
)
def test_malformed_submission_is_rejected_with_cause(payload, start, cause):
    with pytest.raises(ProtocolError) as refused:
        decode_submission(payload, 3, start)
    assert refused.value.cause == cause


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        (MODEL.tobytes(), "wrong length"),
        (MODEL.tobytes() + TWO[:-1], "wrong length"),
        (MODEL.tobytes() + msgpack.packb([[["a", float("nan")]], []]), "wrong length"),
        (MODEL.tobytes() + msgpack.packb([[["", 1.0]], []]), "wrong length"),
        (MODEL.tobytes() + msgpack.packb([[["a", 0.5], ["a", 0.5]], []]), "malformed"),
        (np.full(3, np.inf, np.float32).tobytes() + TWO, "not finite"),
    ],
)
def test_malformed_assignment_is_rejected_with_cause(payload, cause):
    with pytest.raises(ProtocolError) as refused:
        decode_assignment(payload, 3)
    assert refused.value.cause == cause


def test_encode_submission_rejects_extras_that_are_too_large():
    half = {"a": np.zeros(EXTRAS_LIMIT // 16 + 1)}
    assert encode_submission(half, {})
    with pytest.raises(ValueError, match="at most"):
        encode_submission(half, half)
    with pytest.raises(ValueError, match="at most"):
        encode_assignment({f"{k:060}": 0.0 for k in range(20_000)}, {})


@pytest.mark.parametrize(("length", "most"), [(64, 13_796), (10, 49_931)])
def test_greatest_number_of_weights_is_known_without_a_model(length, most):
    names = [f"{k:0{length}}" for k in range(most + 1)]
    check_weights(names[:-1])
    encode_assignment(dict.fromkeys(names[:-1], 0.5), {})
    for work in (check_weights, lambda names: encode_assignment(dict.fromkeys(names, 0.5), {})):
        with pytest.raises(ValueError, match=r"1,048,576|1048576"):
            work(names)
    with pytest.raises(ValueError, match="65,537 nodes"):
        check_weights([f"{k:x}" for k in range(65_537)])


# The envelope


@dataclass
class Pair:
    """Alice's frame signer and Bob's frame verifier."""

    alice: Identity
    bob: Identity
    signer: FrameSigner
    verifier: FrameVerifier

    def frame(self, message=EVERY_MESSAGE[2], payload=EMPTY):
        return bytearray(b"".join(self.signer.seal(message, self.bob.public, payload)))


def make_pair(incarnation=1, federation=FEDERATION):
    alice, bob = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)
    signer = FrameSigner(alice, federation, LAYOUT, incarnation)
    return Pair(alice, bob, signer, FrameVerifier({"alice": alice.public}, bob.public, FEDERATION, limit=1000))


@pytest.fixture
def pair():
    return make_pair()


def cause(verifier, frame):
    with pytest.raises(ProtocolError) as refused:
        verifier.open(frame)
    return refused.value.cause


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("size", [0, 1000])
def test_frame_round_trips_and_has_expected_size(pair, message, size):
    payload = b"p" * size if isinstance(message, m.WithPayload) else b""
    frame = pair.frame(message, Payload.of(payload))
    assert len(frame) == OVERHEAD + len(payload)
    opened = pair.verifier.open(frame)
    assert (opened.sender, opened.message, bytes(opened.payload), opened.incarnation) == ("alice", message, payload, 1)


def test_frame_header_is_plain_msgpack(pair):
    header = msgpack.unpackb(pair.frame()[:HEADER_SIZE])
    assert header[:6] == [6, FEDERATION, pair.alice.public, pair.bob.public, bytes(16), 1]
    assert header[11] == ["get", BIG, BIG, "prepared", b""]


def test_frame_of_another_session_is_rejected(pair):
    frame = b"".join(pair.signer.seal(m.Ping(1), pair.bob.public, session=b"1" * 16))
    for session in (b"2" * 16, bytes(16)):
        with pytest.raises(ProtocolError, match="other session"):
            pair.verifier.open(frame, session)
    assert pair.verifier.open(frame, b"1" * 16).sender == "alice"


def test_frame_relayed_by_another_member_is_rejected(pair):
    with pytest.raises(ProtocolError, match="other sender"):
        pair.verifier.open(pair.frame(), key=pair.bob.public)
    assert pair.verifier.open(pair.frame(), key=pair.alice.public).sender == "alice"


def test_verifier_admits_and_expels_members(pair):
    carol = Identity.from_seed(b"c" * 32)
    signer = FrameSigner(carol, FEDERATION, b"l" * 16, 1)

    def describe():
        return b"".join(signer.seal(m.Ping(1), pair.bob.public))

    assert cause(pair.verifier, describe()) == "stranger"
    pair.verifier.admit("carol", carol.public)
    once = describe()
    assert pair.verifier.open(once).sender == "carol"
    pair.verifier.expel(carol.public)
    assert cause(pair.verifier, describe()) == "stranger"
    pair.verifier.admit("carol", carol.public)
    assert cause(pair.verifier, once) == "replay"  # earlier frames stay known


def test_verifier_detects_every_changed_byte(pair):
    frame = pair.frame(m.Score(1, 1), Payload.of(b"payload"))
    for position in range(len(frame)):
        changed = bytearray(frame)
        changed[position] ^= 1
        with pytest.raises(ProtocolError):
            pair.verifier.open(changed)
    assert pair.verifier.open(frame).sender == "alice"  # none of those used up its sequence number


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda message: type(message).__name__)
def test_payload_on_message_without_one_is_rejected(pair, message):
    if isinstance(message, m.WithPayload):
        return
    assert cause(pair.verifier, pair.frame(message, Payload.of(b"p"))) == "wrong length"
    assert pair.verifier.open(pair.frame(message)).message == message


@pytest.mark.parametrize("fields", [12, 13, 14])
def test_frame_of_another_version_is_recognised(pair, fields):
    frame = pair.frame()
    frame[:2] = bytes([0x90 | fields, 4])
    assert cause(pair.verifier, frame) == "version"
    frame[:2] = bytes([0x9E, 6])
    assert cause(pair.verifier, frame) == "malformed"


def test_frame_with_wrong_signature_is_rejected(pair):
    frame = pair.frame()
    frame[HEADER_SIZE] ^= 1
    assert cause(pair.verifier, frame) == "wrong signature"


def test_frame_with_altered_payload_is_rejected(pair):
    frame = pair.frame(m.Score(1, 1), Payload.of(b"payload"))
    frame[-1] ^= 1
    assert cause(pair.verifier, frame) == "wrong signature"


def test_hash_computed_during_arrival_is_compared(pair):
    payload = Payload.of(b"payload")
    assert pair.verifier.open(pair.frame(m.Score(1, 1), payload), digest=payload.digest).message == m.Score(1, 1)
    with pytest.raises(ProtocolError, match="wrong signature"):
        pair.verifier.open(pair.frame(m.Score(2, 1), payload), digest=bytes(32))


def test_frames_of_strangers_or_other_federations_are_rejected(pair):
    stranger = FrameSigner(Identity.from_seed(b"s" * 32), FEDERATION, LAYOUT, 1)
    assert cause(pair.verifier, b"".join(stranger.seal(m.Hello(), pair.bob.public))) == "stranger"
    assert cause(pair.verifier, b"".join(pair.signer.seal(m.Hello(), pair.alice.public))) == "other recipient"
    assert cause(pair.verifier, make_pair(federation=b"g" * 16).frame()) == "other federation"


def test_frame_of_wrong_size_is_rejected_first(pair):
    assert cause(pair.verifier, b"") == "wrong length"
    assert cause(pair.verifier, pair.frame()[: OVERHEAD - 1]) == "wrong length"
    assert cause(pair.verifier, pair.frame(m.Score(1, 1), Payload.of(bytes(1001)))) == "wrong length"
    assert cause(pair.verifier, pair.frame() + b"x") == "wrong length"
    assert cause(pair.verifier, b"\xdd\xff\xff\xff\xff" + bytes(OVERHEAD)) == "malformed"


def test_frame_is_accepted_only_once(pair):
    first, second = pair.frame(), pair.frame()
    pair.verifier.open(second)
    pair.verifier.open(first)  # frames may overtake each other
    assert cause(pair.verifier, first) == cause(pair.verifier, second) == "replay"


def test_old_frames_are_rejected_after_sender_restarts(pair):
    old, unseen = pair.frame(), pair.frame()
    pair.verifier.open(old)
    pair.verifier.open(make_pair(incarnation=2).frame())
    assert cause(pair.verifier, unseen) == "replay"


@pytest.mark.slow
@given(st.binary(max_size=700))
def test_random_frames_raise_only_documented_error(data):
    with pytest.raises(ProtocolError):
        make_pair().verifier.open(data)


@pytest.mark.slow
@given(st.data())
def test_mutated_frames_raise_only_documented_error(data):
    pair = make_pair()
    frame = pair.frame(data.draw(st.sampled_from(EVERY_MESSAGE)))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, HEADER_SIZE - 1))
        frame[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert pair.verifier.open(frame).sender == "alice"  # the mutation changed nothing


# Version 7, in which only some kinds are signed

SIGNED = {"Hello", "Welcome", "ModelUpdate", "FragmentUpdate", "Submit", "Assigned", "SumRequest", "SumAnswer"}
SIGNED |= {"GroupMean", "Vote", "Voted"}


def sealed(pair, message, payload=EMPTY, version=VERSION):
    return bytearray(b"".join(pair.signer.seal(message, pair.bob.public, payload, version=version)))


def open_7(pair, frame, key="alice", version=VERSION):
    key = {"alice": pair.alice.public, "bob": pair.bob.public, None: None}[key]
    return pair.verifier.open(frame, key=key, version=version)


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda message: type(message).__name__)
def test_only_kinds_of_the_table_are_signed(pair, message):
    payload = Payload.of(b"p") if isinstance(message, m.WithPayload) else EMPTY
    frame = sealed(pair, message, payload)
    assert (frame[HEADER_SIZE:OVERHEAD] != UNSIGNED) == (type(message).__name__ in SIGNED) == is_signed(message, VERSION)
    assert is_signed(message, EARLIER)
    assert open_7(pair, frame).message == message


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda message: type(message).__name__)
def test_frame_without_its_signature_or_with_another_one_is_rejected(pair, message):
    frame = sealed(pair, message)
    other = frame[:HEADER_SIZE] + b"s" * 64
    with pytest.raises(ProtocolError) as refused:
        open_7(pair, other)
    assert refused.value.cause == ("wrong signature" if is_signed(message, VERSION) else "malformed")
    if is_signed(message, VERSION):
        with pytest.raises(ProtocolError) as refused:
            open_7(pair, frame[:HEADER_SIZE] + UNSIGNED)
        assert refused.value.cause == "not signed"
    assert open_7(pair, frame).message == message


def test_unsigned_frame_needs_link_with_proven_key(pair):
    frame = sealed(pair, m.Ping(1))
    for key, cause in ((None, "not signed"), ("bob", "other sender")):
        with pytest.raises(ProtocolError) as refused:
            open_7(pair, frame, key)
        assert refused.value.cause == cause
    assert open_7(pair, frame).message == m.Ping(1)


@pytest.mark.parametrize("message", [m.Ping(1), m.Hello()])
def test_frame_of_other_version_than_the_link_is_rejected(pair, message):
    for of, link in ((EARLIER, VERSION), (VERSION, EARLIER)):
        with pytest.raises(ProtocolError) as refused:
            open_7(pair, sealed(pair, message, version=of), version=link)
        assert refused.value.cause == "version"


def test_unsigned_frame_is_accepted_once_and_is_no_evidence(pair):
    hello, ping = sealed(pair, m.Hello()), sealed(pair, m.Ping(1))
    for frame in (hello, ping):
        open_7(pair, frame)
        with pytest.raises(ProtocolError, match="replay"):
            open_7(pair, frame)
    assert pair.verifier.newest(pair.alice.public) == hello[:OVERHEAD]


def test_unsigned_frame_with_altered_payload_is_rejected(pair):
    frame = sealed(pair, m.Score(1, 1), Payload.of(b"payload"))
    frame[-1] ^= 1
    with pytest.raises(ProtocolError, match="wrong signature"):
        open_7(pair, frame)


# Replay


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=80))
def test_replay_window_behaves_like_set_of_seen_frames(frames):
    window, seen, newest = ReplayWindow(), set(), -1
    for incarnation, sequence in frames:
        fresh = incarnation >= newest and (incarnation, sequence) not in seen
        try:
            window.check(incarnation, sequence)
        except ProtocolError:
            assert not fresh
        else:
            assert fresh
            window.commit(incarnation, sequence)
            seen.add((incarnation, sequence))
            newest = max(newest, incarnation)


def test_replay_window_has_stated_width():
    window = ReplayWindow()
    window.commit(0, 5000)
    window.check(0, 5000 - WIDTH + 1)
    with pytest.raises(ProtocolError):
        window.check(0, 5000 - WIDTH)
    window.commit(0, BIG)  # a leap needs no memory
    with pytest.raises(ProtocolError):
        window.check(0, 5001)
