"""Checks of the golden vectors as in tests/conformance/wire_reader.py, with the code that nodes run."""

import asyncio
import tempfile
from hashlib import sha256
from math import inf
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2pfl.compression.codecs import CODECS, make_codec
from p2pfl.compression.sparse_updates import PeerCopy, tag
from p2pfl.node.exchange.base import ExchangeConfig
from p2pfl.node.exchange.message_exchange import MessageExchange
from p2pfl.node.exchange.model_encoding import ModelEncoder, read_division, read_parts
from p2pfl.node.federation import invitations, membership_file
from p2pfl.node.federation import membership_file as admission_key
from p2pfl.node.federation.agreement import describe, describe_committee, describe_demand, describe_groups, read, terms
from p2pfl.node.federation.invitations import InvitationService, TokenRedeemer
from p2pfl.node.peering.control_messages import difference
from p2pfl.node.peering.peering_config import Member, PeeringConfig
from p2pfl.node.peering.peers import Asked, AskedFragments
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.protocols import discovery, key_files
from p2pfl.protocols.election import TIMING
from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.membership import checkpoint, merkle
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import (
    Invitation,
    Look,
    Offered,
    Request,
    Rest,
    decode_admission,
    decode_answer,
    decode_join,
)
from p2pfl.protocols.membership.log import LIMIT, Entry, Membership, Signed, decode_entry
from p2pfl.protocols.mqtt import link as link_handshake
from p2pfl.protocols.mqtt import packets, reliable_stream
from p2pfl.protocols.mqtt import transport as mqtt
from p2pfl.protocols.mqtt.packets import Topics
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import key_of
from p2pfl.protocols.transports.handshake import Progress
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.transports.tls import TlsTransport
from p2pfl.protocols.transports.tls_link import TlsLink
from p2pfl.protocols.wire import messages
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Opened, parse_carried, parse_receipts, read_proof
from p2pfl.protocols.wire.payload import decode_extras
from p2pfl.topologies.rings import RingRule
from tests.conformance import (
    wire_project_committee,
    wire_project_coordination,
    wire_project_edges,
    wire_project_sums,
)
from tests.conformance.wire_keys import BY_KEY, KEYS, SEEDS
from tests.conformance.wire_models import more_text
from tests.conformance.wire_types import RefusedError, plain

# Parts of error messages, and the causes of docs/wire-protocol.md to which they belong.
WORDS = {
    "are allowed": "wrong length",
    "its signature is invalid": "wrong signature",
    "has an invalid signature": "wrong signature",
    "must begin with": "other kind",
    "was not copied correctly": "damaged",
    "is too large": "malformed",
    "inviting node is invalid": "malformed",
    "not a federation file": "malformed",
    "is not valid TOML": "malformed",
    "does not name its admission key": "malformed",
    "must have at most 64 letters": "malformed",
    "has a weak key": "malformed",
    "another version of p2pfl": "malformed",
}


def unhex(text):
    return bytes.fromhex(text)


def fields(struct):
    return plain(msgspec.to_builtins(msgspec.structs.asdict(struct), builtin_types=(bytes,)))


def tagged(struct):
    return {"kind": struct.__struct_config__.tag, **fields(struct)}


def tables_of(given):
    return {"rounds": given.get("rounds", 0), "committee": given.get("committee", 0)}


def file_of(given):
    return Federation(b"", unhex(given["federation"]), "", unhex(given["admission"]), tables_of(given))


def log_of(given, entries="log"):
    membership = Membership(file_of(given), unhex(given[entries]))
    membership.invites = given.get("invites", False)
    return membership


def list_of(log):
    return {name: [member.key.hex(), member.role] for name, member in log.members.items()}


def layout_of(given):
    shapes = tuple((f"tensor {k}", tuple(shape)) for k, shape in enumerate(given["tensors"]))
    layout = Layout(shapes, 0)
    return Layout(shapes, layout.size)


def vector(values):
    return np.array(values, np.float64).astype(np.float32)


def check_layout(given):
    layout = Layout(tuple((name, tuple(shape)) for name, shape in given["tensors"]), given["trained"])
    return {"fingerprint": layout.fingerprint.hex(), "values": layout.size}


def check_federation_file(given):
    file = Federation.parse(b"\n" * given.get("filled", 0) + given["text"].encode())
    return {"id": file.id.hex(), "admission": file.admission.hex(), "name": file.name}


def check_agreed(given):
    agreement = read(Federation.parse(given["text"].encode()))
    layout = Layout(tuple((name, tuple(shape)) for name, shape in given["tensors"]), given["trained"])
    settings = Settings(**{key: getattr(agreement, key) for key in Settings.__struct_fields__ if hasattr(agreement, key)})
    timing = TIMING if given.get("coordinated") else None
    fragments = given.get("fragments", False)
    agreed = terms(
        layout,
        settings,
        agreement.model.initial,
        agreement.edges,
        timing,
        fragments=fragments,
        topology=agreement.topology,
    )
    agreed |= describe_demand(agreement) | describe_committee(agreement, timing) | describe_groups(agreement)
    return {"agreed": agreed | describe("task", agreement.task) | describe("policy", agreement.policy)}


def check_introduction(given):
    if problem := difference(given["ours"], given["theirs"]):
        raise ProtocolError("differs", problem)
    return {}


def check_committee(given):
    return wire_project_committee.committee_of(log_of(given))


def check_rings(given):
    rule = RingRule(given["seed"], given["round"] > 0, given["degree"])
    rule.change(log_of(given).added)
    return {"neighbours": {name: sorted(rule.neighbours(name, given["round"])) for name in log_of(given).members}}


def check_log(given):
    log = log_of(given, "known")
    try:
        log.extend(unhex(given["entries"]))
    except ProtocolError as error:
        raise RefusedError(error.cause, log.membership_version) from error
    entries = [decode_entry(each.entry) for each in msgspec.msgpack.decode(log.encode(), type=list[Signed])]
    keys = [entry.key for entry in entries if isinstance(entry, Entry)]
    revoked = {key.hex() for key in keys if log.refusal(key) == "revoked"}
    return {
        "membership_version": log.membership_version,
        "admission": log.admission.hex(),
        "rounds": log.rounds,
        "members": list_of(log),
        "revoked": sorted(revoked),
    }


def check_inclusion(given):
    proof = [unhex(each) for each in given["proof"]]
    if not merkle.verify(unhex(given["leaf"]), given["index"], given["size"], proof, unhex(given["root"])):
        raise ProtocolError("membership")
    return {}


def check_checkpoint(given):
    file = SimpleNamespace(id=unhex(given["federation"]), admission=unhex(given["admission"]))
    found = checkpoint.read(unhex(given["bytes"]), file)
    return plain(
        {
            "membership_version": found.membership_version,
            "last": found.last,
            "rounds": found.rounds,
            "admission": found.admissions[-1],
            "members": {each.name: [each.key, each.role, found.added[each.name]] for each in found.members},
        }
    )


def check_revocation(given):
    log, key = log_of(given), unhex(given["key"])
    if not log.accept_revocation(key, unhex(given["proof"])):
        raise RefusedError("membership")
    entry, admission = log.end_of(key)
    return {"action": entry.action, "membership_version": entry.membership_version, "admission": admission.hex()}


def check_invitation(given):
    return plain(vars(Invitation.parse(given["text"])) | {"addresses": [*Invitation.parse(given["text"]).addresses]})


def check_request(given):
    return plain(vars(Request.parse(given["text"])))


def check_admission(given):
    return fields(decode_admission(given["text"]))


def check_join(given):
    return fields(decode_join(unhex(given["bytes"])))


def check_look(given):
    found = decode_join(unhex(given["bytes"]))
    if not isinstance(found, Look):
        raise ProtocolError("malformed")
    return fields(found)


def check_join_answer(given):
    return tagged(decode_answer(unhex(given["bytes"])))


def check_inviter(given):
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Federation.parse(given["file"].encode())
        log = Membership(file, unhex(given["log"]))
        membership_file.write_federation(folder, log)
        private = Ed25519PrivateKey.from_private_bytes(SEEDS["admission"])
        assert private.public_key().public_bytes_raw() == file.admission
        key_files.write_new(folder / admission_key.ADMISSION, key_files.encode(private))
        (folder / invitations.INVITATIONS).mkdir()
        for secret, how in given["secrets"].items():
            invitations.write_note(
                folder, unhex(secret), invitations.Note(**how | {"used_by": unhex(how["used_by"] or "")}, until=inf)
            )
        redeemer = TokenRedeemer(folder, now=lambda: given["now"], booted=lambda: 0.0)
        service = InvitationService(redeemer, log, booted=lambda: 0.0)
        reply = asyncio.run(service.answer(unhex(given["key"]), unhex(given["join"]), "10.0.0.1"))
    answer = decode_answer(reply.frame)
    if reply.cause:
        assert answer.reason.startswith(reply.cause + ": ")
        raise RefusedError(reply.cause)
    assert answer.file == file.data
    if isinstance(answer, Offered):
        assert answer.rounds == log.rounds
    else:
        asked = decode_join(unhex(given["join"]))
        assert answer.log == log.after(asked.known if isinstance(asked, Rest) else 0, LIMIT)
    return {"membership_version": log.membership_version, "members": list_of(log)}


def check_certificate(given):
    if key_of(unhex(given["certificate"])) != unhex(given["dialled"]):
        raise ProtocolError("wrong key")
    return {}


class Recorder:
    """Proof that never completes; the handshake has its own vectors."""

    def __init__(self):
        self.frames = []

    def begin(self):
        return b""

    def step(self, frame):
        self.frames.append(bytes(frame))
        return Progress()


class Listener:
    """Handler that records causes of refusals."""

    def __init__(self):
        self.causes = []

    def refused(self, cause, detail):
        self.causes.append(cause)

    def lost(self, link, reason): ...


def check_frames(given):
    async def feed():
        listener, recorder = Listener(), Recorder()
        access = log_of({"federation": "00" * 16, "admission": "00" * 32, "log": ""})
        transport = TlsTransport("127.0.0.1:0", KEYS["bob"], access, given["limit"])
        transport.credentials.server_proof = lambda: recorder
        transport.use(listener)
        link = TlsLink(transport)
        link.connection_made(mock.MagicMock())
        link.trust()  # frames may have the full size
        data = unhex(given["bytes"])
        while data and not listener.causes:
            buffer = link.get_buffer(-1)
            taken = min(len(buffer), len(data))
            buffer[:taken], data = data[:taken], data[taken:]
            link.buffer_updated(taken)
        return listener.causes, recorder.frames

    causes, frames = asyncio.run(feed())
    if causes:
        raise RefusedError(causes[0])
    return {"frames": [frame.hex() for frame in frames]}


def check_step(given):
    return tagged(handshake.decode(unhex(given["bytes"])))


def step(data, kind):
    found = handshake.decode(unhex(data))
    if not isinstance(found, kind):
        raise ProtocolError("malformed", "a step of the handshake in the wrong order")
    return found


def check_challenge(given):
    challenge = step(given["bytes"], handshake.Challenge)
    access = log_of({"federation": "00" * 16, "admission": "00" * 32, "log": ""})
    handshake.prove(KEYS["alice"], access, challenge, KEYS["bob"].public, b"", joining=False)
    return plain({"nonce": challenge.nonce, "membership_version": challenge.membership_version})


def check_proof(given):
    log = log_of(given)
    challenge, proof = step(given["challenge"], handshake.Challenge), step(given["proof"], handshake.Proof)
    proven = handshake.check(proof, log, challenge, unhex(given["server"]), unhex(given["certificate"]))
    found = proven._asdict()
    found["dialler_key"], found["listener_key"] = packets.sealing_keys(found.pop("secret"))
    return plain(found | {"membership_version": log.membership_version})


def check_topic(given):
    access = log_of({"federation": given["federation"], "admission": "00" * 32, "log": ""})
    return {"packets": Topics(access.federation, unhex(given["sender"])).inbox(unhex(given["recipient"]))}


class MessageRecorder:
    """TLS of a listener that answers every message."""

    def __init__(self):
        self.messages = []

    def step(self, data):
        self.messages.append(bytes(data))
        return Progress(b"an answer")


def check_handshake_packets(given):
    link, recorder = unhex(given["link"]), MessageRecorder()
    handshake = link_handshake.LinkHandshake(recorder, link)
    for packet in map(unhex, given["packets"]):
        if packet[0] != link_handshake.HANDSHAKE_PACKET:
            raise ProtocolError("malformed")
        if packet[1:17] != link:
            raise ProtocolError("unknown session")
        handshake.packet_in(packet, 0.0)
    return plain({"messages": recorder.messages})


def check_packets(given):
    link, key, own = unhex(given["link"]), unhex(given["key"]), bytes(32)
    stream = reliable_stream.ReliableStream(packets.Sealing(own, key), link, given["limit"], 0.0)
    frames = []
    for position, packet in enumerate(given["packets"]):
        data = unhex(packet)
        if position == 0 and "pattern" in given:
            data = pattern_packet(link, key, given["pattern"])
            assert sha256(data).hexdigest() == packet
        if data[0] not in (reliable_stream.DATA_PACKET, reliable_stream.CONTROL_PACKET):
            raise ProtocolError("malformed")
        if data[1:17] != link:
            raise ProtocolError("unknown session")
        stream.packet_in(data, 0.0)
        while (frame := stream.frame()) is not None:
            frames.append(frame)
    stream.acknowledge()
    said = stream.packet_out(0.0)
    content = packets.Sealing(key, own).open(packets.CONTROL, 0, said[25:], said[:25])
    _, missing, came = reliable_stream.CONTROL_CONTENT.unpack(content)
    return {
        "frames": [sha256(frame).hexdigest() for frame in frames],
        "acknowledged": {"missing": missing, "came": came},
        "closed": stream.ended,
    }


def pattern_packet(link, key, size):
    sender = reliable_stream.ReliableStream(packets.Sealing(key, bytes(32)), link, 0, 0.0)
    sender.send([bytes(i % 251 for i in range(size))])
    return sender.packet_out(0.0)


def check_presence(given):
    directory, key = mqtt.Directory(log_of(given)), unhex(given["key"])
    for packet in given["before"]:
        directory.read(key, unhex(packet))
    return fields(directory.read(key, unhex(given["packet"])))


def check_txt(given):
    found = discovery.read_text(unhex(given["bytes"]))
    if found is None:
        raise RefusedError("malformed")
    return {"key": found[0].hex(), "federation": found[1].hex()}


def check_conflict(given):
    identity = BY_KEY[unhex(given["key"])]
    signer, evidence = (
        FrameSigner(identity, unhex(given["federation"]), bytes(16), given["incarnation"]),
        unhex(given["evidence"]),
    )
    for known in given["sessions"]:
        signer.seal(messages.Ping(1), identity.public, session=unhex(known))
    foreign = signer.foreign(evidence)
    return {"conflict": foreign is not None} | ({} if foreign is None else foreign._asdict())


def check_equivocation(given):
    one, _ = read_proof(unhex(given["proof"]), unhex(given["federation"]))
    return {"sender": one.sender.hex(), "round": one.round}


def check_receipts(given):
    models = parse_receipts(unhex(given["payload"]), unhex(given["federation"]))
    return {"rounds": [model.round for model in models]}


def check_carried(given):
    names, receipts = parse_carried(messages.Carried(given["route"]), unhex(given["payload"]))
    return {"names": names} | check_receipts({"payload": receipts.hex(), "federation": given["federation"]})


def check_frame(given):
    keys = {key: unhex(key) for key in given["members"]}
    verifier = FrameVerifier(keys, unhex(given["me"]), unhex(given["federation"]), given["limit"])
    link = {"session": unhex(given["session"]), "key": unhex(given["link"]), "version": given.get("version", 6)}
    for frame in given["before"]:
        verifier.open(unhex(frame), **link)
    opened = verifier.open(unhex(given["frame"]), **link)
    header = msgspec.msgpack.decode(unhex(given["frame"])[:256])
    return plain(
        {
            "sender": unhex(opened.sender),
            "incarnation": opened.incarnation,
            "sequence": header[6],
            "layout": header[8],
            "kind": opened.message.__struct_config__.tag,
            "fields": fields(opened.message),
            "payload": bytes(opened.payload),
        }
    )


def check_terms(given):
    return fields(messages.decode_hello_parameters(unhex(given["bytes"])))


def codec_of(given):
    return CODECS[given["codec"]]()


def check_encode(given):
    return {"bytes": bytes(codec_of(given).encode(vector(given["values"]), layout_of(given))).hex()}


def encoder_of(given, known):
    layout = layout_of(given)
    initial = np.zeros(layout.size, np.float32) if known is None else vector(known)
    return ModelEncoder(make_codec(given["codec"], {}), layout, initial), initial


def check_model(given):
    encoder, initial = encoder_of(given, given["known"])
    copy = None if given["known"] is None else PeerCopy(tag(initial), initial, 0)
    (params, _), rest = encoder.decode(memoryview(unhex(given["bytes"])), unhex(given["base"]), copy)
    extras = decode_extras(rest)
    dtypes = {np.dtype("<f4"): "f4", np.dtype("<f8"): "f8", np.dtype("<i8"): "i8", np.dtype("<u8"): "u8"}
    more = {name: [dtypes[a.dtype], list(a.shape), a.reshape(-1).tolist()] for name, a in extras.items()}
    return {"values": plain(params.tolist()), "tag": tag(params).hex(), "extras": more_text(more)}


def check_update(given):
    """Pass the answer to a request to an exchange."""
    return asyncio.run(_update(given))


async def _update(given):
    asked, said = given["asked"], given["message"]
    encoder, initial = encoder_of(given, asked["known"])
    copy = None if asked["known"] is None else PeerCopy(tag(initial), initial, 0)
    wants = Asked(asked["round"], asked["stage"], copy) if asked["kind"] == "get" else None
    message = messages.ModelUpdate(**{name: unhex(value) if name == "base" else value for name, value in said.items()})
    return {"values": (await _answered(given, encoder, wants, message)).params.tolist()}


def check_division(given):
    layout, message = layout_of(given), messages.GetFragments(1, 1, "trained", given["division"], given["parts"], b"\1")
    size = range(layout.size)
    places = read_division(message, layout).places(layout, given["seed"])
    return {"places": [list(size[at]) if isinstance(at, slice) else at.tolist() for at in places]}


def check_wanted(given):
    get = messages.GetFragments(1, 1, "trained", given["division"], given["parts"], unhex(given["wanted"]))
    read_division(get, layout_of(given))
    return {"wanted": read_parts(get)}


def check_fragment(given):
    """Pass a fragment to an exchange that has asked for some."""
    return asyncio.run(_fragment(given))


async def _fragment(given):
    asked, said = given["asked"], given["message"]
    encoder, _ = encoder_of(given | {"codec": "float32"}, None)
    wants = Asked(asked["round"], asked["stage"], None) if asked["kind"] == "get" else None
    if asked["kind"] == "get_fragments":
        fields = {name: unhex(value) if name == "wanted" else value for name, value in asked.items() if name != "kind"}
        get = messages.GetFragments(**fields)
        missing = {said["part"]} & set(read_parts(get))  # the others are there already
        wants = AskedFragments(get.round, get.stage, read_division(get, encoder.layout), missing, [])
    (fragment,) = await _answered(given, encoder, wants, messages.FragmentUpdate(**said))
    return {"values": fragment.values.tolist()}


async def _answered(given, encoder, wants, message):
    """Return what an exchange makes of an answer to what it has asked for."""
    alice, bob = KEYS["alice"], KEYS["bob"]
    config = ExchangeConfig(
        peering=PeeringConfig(
            name="bob",
            key=bob.public,
            neighbours={"alice": Member(alice.public)},
            transport=InProcessNetwork().transport("bob"),
            signer=FrameSigner(bob, bytes(16), bytes(16), 1),
            verifier=FrameVerifier({"alice": alice.public}, bob.public, bytes(16), 1 << 20),
            agreed={},
            public_info={},
            asynchronous=given["asynchronous"],
        ),
        settings=Settings(mode="asynchronous" if given["asynchronous"] else "synchronous", seed=given.get("seed", 0)),
        n_samples=1,
    )
    exchange = MessageExchange(config, encoder)
    exchange.limit.own = given["norm"]
    peer = exchange.peers["alice"]
    peer.public_info = given["public_info"]
    number = given["asked"]["request"]
    answer = peer.requests[number] = asyncio.get_running_loop().create_future()
    if wants is not None:
        peer.asked[number] = wants
    try:
        exchange.handle(peer, Opened("alice", message, memoryview(unhex(given["payload"])), 1))
    except ProtocolError:
        assert answer.result() is None  # the request has ended
        raise
    return answer.result()


def names():
    return {name: function for name, function in globals().items() if name.startswith("check_")}


CHECKS = (
    wire_project_coordination.CHECKS
    | wire_project_sums.CHECKS
    | wire_project_committee.CHECKS
    | wire_project_edges.CHECKS
    | {
        {"step": "handshake step"}.get(name.removeprefix("check_"), name.removeprefix("check_").replace("_", " ")): function
        for name, function in names().items()
    }
)


def run(check, given):
    """Run a check; raise a refusal with its cause."""
    try:
        return CHECKS[check](given)
    except ProtocolError as error:
        raise RefusedError(error.cause) from error
    except FederationError as error:
        raise RefusedError(next(cause for words, cause in WORDS.items() if words in str(error))) from error
