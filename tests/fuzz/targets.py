"""Targets of the fuzzer: what a node reads from peers, brokers, the network and files, each with an oracle.

Inputs of most targets belong to a golden vector: its first byte selects the other values that the vector's check is given,
the second one is 0, or 1 to repair signatures, checksums and seals as a malicious member could, and the rest replaces the
bytes under test. The oracle is the reader that was written from docs/wire-protocol.md alone: both must accept an input with
the same result, or refuse it for the same cause. Other targets only have documented errors and what must hold of results.

Anything else that a target raises is a finding.
"""

from __future__ import annotations

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import networkx as nx
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from p2pfl import topologies
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import agreement
from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import pack_word
from p2pfl.protocols.transports.certificates import Credentials
from p2pfl.protocols.transports.tls_handshake import FrameReader, TlsHandshake
from p2pfl.protocols.wire.envelope import HEADER_SIZE, OVERHEAD
from tests.conformance import wire_project, wire_reader
from tests.conformance.wire_keys import BY_KEY, KEYS
from tests.conformance.wire_types import RefusedError, digest
from tests.support.graph_files import FORMS, random_graph

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "docs" / "vectors"
RAW, REPAIRED = 0, 1
LONGEST = 8192  # bytes of an input
Given = dict[str, Any]


class Target(NamedTuple):
    """Function that the fuzzer calls, and the inputs with which it begins."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


# Checks of the golden vectors, by target; with the value that the input replaces

CHECKS = {
    "handshake": {"handshake step": "bytes", "challenge": "bytes", "proof": "proof", "certificate": "certificate"},
    "envelopes": {"frame": "frame", "conflict": "evidence", "equivocation": "proof", "receipts": "payload"},
    "codecs": {"model": "bytes", "submission": "bytes", "assignment": "bytes", "terms": "bytes"},
    "membership": {"log": "entries", "revocation": "proof"},
    "joining": {"join": "bytes", "join answer": "bytes", "invitation": "text", "request": "text", "admission": "text"},
    "broker": {"presence": "packet", "packets": "packets", "handshake packets": "packets"},
    "discovery": {"txt": "bytes"},
    "fragments": {"fragment": "payload", "wanted": "wanted"},
}


class Case(NamedTuple):
    """A vector's check and what it is given, without the value that the input replaces."""

    check: str
    field: str
    given: Given


@cache
def _vectors() -> list[Given]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(VECTORS.glob("*.json"))]
    return [vector for file in files for vector in file.get("vectors", [])]


@cache
def _cases(target: str) -> tuple[list[Case], list[bytes]]:
    """Return the cases of a target, and its seeds: the vectors."""
    cases: dict[str, int] = {}
    chosen, seeds = [], []
    for vector in _vectors():
        check, given = vector["check"], dict(vector["given"])
        field = CHECKS[target].get(check)
        if field is None or "pattern" in given or "filled" in given:
            continue
        value = given.pop(field)
        case = cases.setdefault(json.dumps([check, given]), len(cases))
        if case == len(chosen):
            chosen.append(Case(check, field, given))
        head = bytes([case, REPAIRED if check == "packets" else RAW])
        if field == "packets":
            body = b"".join(len(packet).to_bytes(2, "big") + packet for packet in map(bytes.fromhex, value))
        else:
            body = value.encode() if field == "text" else bytes.fromhex(value)
        if len(body) <= LONGEST:
            seeds.append(head + body)
    return chosen, seeds


def _run_checks(target: str, data: bytes) -> None:
    cases, _ = _cases(target)
    if len(data) < 2:
        return
    case = cases[data[0] % len(cases)]
    body = data[2:]
    if data[1] == REPAIRED and case.check in REPAIRS:
        body = REPAIRS[case.check](case.given, body)
    if case.field == "text":
        value: Any = body.decode("utf-8", "replace")
    elif case.field == "packets":
        value = [packet.hex() for packet in _pieces(body) if len(packet) > 17]
    else:
        value = body.hex()
    given = case.given | {case.field: value}
    ours, theirs = _result(wire_project.run, case.check, given), _result(_read_independently, case.check, given)
    assert ours == theirs, f"{case.check}: this project has {ours}, the independent reader {theirs}"


def _result(run: Callable[[str, Given], Any], check: str, given: Given) -> str:
    try:
        return json.dumps(run(check, given), sort_keys=True)
    except RefusedError as error:
        version = error.membership_version if check == "log" else ""  # after the entries before the refused one
        return f"refused: {error.cause} {version}"


def _read_independently(check: str, given: Given) -> Any:
    return wire_reader.CHECKS[check](given)


def _pieces(data: bytes) -> Iterator[bytes]:
    while len(data) > 2:
        size = int.from_bytes(data[:2], "big")
        yield data[2 : 2 + size]
        data = data[2 + size :]


# Repairs


def _first(data: bytes) -> Any:
    """Return the first msgpack value in some bytes, or None."""
    try:
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=2 * LONGEST)
        unpacker.feed(data)
        return unpacker.unpack()
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None


def _pack(value: Any, otherwise: bytes) -> bytes:
    try:
        return msgpack.packb(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return otherwise


def _sign_proof(given: Given, data: bytes) -> bytes:
    fields, challenge = _first(data), _first(bytes.fromhex(given["challenge"]))
    match fields, challenge:
        case ["proof", _, _, bytes(key), bytes(nonce), joining, _, bytes()], ["challenge", _, theirs, _] if key in BY_KEY:
            parts = bytes.fromhex(given["federation"]) + bytes.fromhex(given["server"])
            parts += digest(bytes.fromhex(given["certificate"])) + theirs + nonce + key
            fields[7] = BY_KEY[key].sign(b"p2pfl proof 1\0" + digest(parts + bytes([joining is True])))
            return _pack(fields, data)
    return data


def _sign_envelope(data: bytes, payload: bytes | None = None) -> bytes:
    """Sign a header as its sender; with a payload, state its size and hash first."""
    header, fields = data[:HEADER_SIZE], _first(data[:HEADER_SIZE])
    match fields:
        case [_, _, bytes(sender), *_, bytes(), _, bytes()] if len(fields) == 13 and sender in BY_KEY:
            if payload is not None:
                fields[9], fields[10] = len(payload), blake3(payload).digest()
            used = len(_pack([*fields[:12], b""], b""))
            fields[12] = bytes(max(0, HEADER_SIZE - used))  # one byte of length, or two, is part of the width
            for _ in range(2):
                if (more := HEADER_SIZE - len(_pack(fields, b""))) < 0:
                    fields[12] = fields[12][:more]
            header = _pack(fields, header)
            hash = fields[10] if isinstance(fields[10], bytes) else b""
            if data[HEADER_SIZE:OVERHEAD] == bytes(64) and payload is not None:
                return header + bytes(64)  # a kind that is not signed in version 7
            label = b"p2pfl envelope 7\0" if fields[0] == 7 else b"p2pfl envelope 6\0"
            return header + BY_KEY[sender].sign(label + digest(header) + hash)
    return data[:OVERHEAD]


def _sign_frame(given: Given, data: bytes) -> bytes:
    payload = data[OVERHEAD:]
    return _sign_envelope(data, payload) + payload


def _sign_envelopes(given: Given, data: bytes) -> bytes:
    return b"".join(_sign_envelope(data[at : at + OVERHEAD]) for at in range(0, len(data), OVERHEAD))


ADMISSION = KEYS["admission"]


def _sign_log(given: Given, data: bytes) -> bytes:
    """Chain the entries of a log after those that are known, and sign them."""
    known = wire_reader.log_of(given, "known")
    number, signer = known.membership_version, BY_KEY[known.admissions[-1]]
    before = digest(known.entries[-1]) if known.entries else bytes(32)
    entries = _first(data)
    if not isinstance(entries, list):
        return data
    for place, each in enumerate(entries):
        match each:
            case [bytes(content), bytes()]:
                entry = _first(content)
                if isinstance(entry, list) and len(entry) >= 5:
                    number += 1
                    entry[:3] = [known.federation, number, before]
                    content = _pack(entry, content)
                    label = b"p2pfl membership 2\0" if len(entry) == 5 else b"p2pfl membership 1\0"
                    entries[place] = [content, signer.sign(label + content)]
                    before = digest(msgpack.packb(entries[place]))
                    if entry[3] == "hand-over" and len(entry) > 5 and isinstance(entry[5], bytes):
                        signer = BY_KEY.get(entry[5], signer)
    return _pack(entries, data)


def _sign_revocation(given: Given, data: bytes) -> bytes:
    signer, entries = ADMISSION, _first(data)
    if not isinstance(entries, list):
        return data
    for place, each in enumerate(entries):
        match each:
            case [bytes(content), bytes()]:
                entries[place] = [content, signer.sign(b"p2pfl membership 1\0" + content)]
                entry = _first(content)
                if isinstance(entry, list) and len(entry) == 7 and entry[3] == "hand-over" and isinstance(entry[5], bytes):
                    signer = BY_KEY.get(entry[5], signer)
    return _pack(entries, data)


def _word(kind: str) -> Callable[[Given, bytes], bytes]:
    def repair(given: Given, data: bytes) -> bytes:
        """Make a word of its content."""
        text = data.decode("utf-8", "replace")
        with suppress(RefusedError):  # otherwise the input is the content itself
            data = wire_reader.word(text, f"p2pfl-{kind}-")
        if kind == "request":
            data = _sign_request(data)
        return f"p2pfl-{kind}-{pack_word(data)}".encode()

    return repair


def _sign_request(data: bytes) -> bytes:
    fields = _first(data)
    match fields:
        case [str(name), bytes(key), replaced, bytes(), _] if key in BY_KEY:
            try:
                old = replaced if isinstance(replaced, bytes) else b""
                content = b"p2pfl request 1\0" + key + (old or bytes(32)) + name.encode()
            except UnicodeEncodeError:
                return data
            fields[3], fields[4] = BY_KEY[key].sign(content), BY_KEY[old].sign(content) if old in BY_KEY else fields[4]
            return _pack(fields, data)
    return data


def _sign_presence(given: Given, data: bytes) -> bytes:
    key = bytes.fromhex(given["key"])
    return BY_KEY[key].sign(b"p2pfl presence 1\0" + data[64:]) + data[64:] if key in BY_KEY else data


def _seal_packets(given: Given, data: bytes) -> bytes:
    """Seal the content of packets of a link; that of a valid packet is opened first."""
    seal, link, packets = ChaCha20Poly1305(bytes.fromhex(given["key"])), bytes.fromhex(given["link"]), []
    for packet in _pieces(data):
        packet = packet[:1] + link + packet[17:]
        kind, length = (0, 33) if packet[0] == 1 else (1, 25)
        nonce, header, content = kind.to_bytes(4, "big") + packet[17:25], packet[:length], packet[length:]
        if len(header) == length:
            with suppress(InvalidTag):  # otherwise it is the content itself
                content = seal.decrypt(nonce, content, header)
            packet = header + seal.encrypt(nonce, content, header)
        packets.append(len(packet).to_bytes(2, "big") + packet)
    return b"".join(packets)


def _sum_packets(given: Given, data: bytes) -> bytes:
    link, packets = bytes.fromhex(given["link"]), []
    for packet in _pieces(data):
        head, content = packet[:1] + link + packet[17:18], packet[34:]
        packet = head + digest(head + content)[:16] + content
        packets.append(len(packet).to_bytes(2, "big") + packet)
    return b"".join(packets)


REPAIRS: dict[str, Callable[[Given, bytes], bytes]] = {
    "proof": _sign_proof,
    "frame": _sign_frame,
    "conflict": _sign_envelopes,
    "equivocation": _sign_envelopes,
    "receipts": _sign_envelopes,
    "log": _sign_log,
    "revocation": _sign_revocation,
    "invitation": _word("invite"),
    "request": _word("request"),
    "admission": _word("admission"),
    "presence": _sign_presence,
    "packets": _seal_packets,
    "handshake packets": _sum_packets,
}

# Frames of a stream, as pieces of any size


def _read_frames(data: bytes) -> None:
    """Read a stream in pieces whose sizes the first byte selects; compare with a reader of the whole stream."""
    if not data:
        return
    step, data = data[0] + 1, data[1:]
    limit = 4096
    try:
        theirs = wire_reader.check_frames({"limit": limit, "bytes": data.hex()})["frames"]
    except RefusedError:
        theirs = None
    assert _frames(data, step, limit) == theirs


def _frames(data: bytes, step: int, limit: int) -> list[str] | None:
    reader, frames = FrameReader(), []
    while data:
        buffer = reader.buffer()
        taken = min(len(buffer), len(data), step)
        buffer[:taken], data = data[:taken], data[taken:]
        if not reader.advance(taken):
            continue
        if reader.in_frame:
            frames.append(bytes(reader.take()).hex())
        elif 0 < reader.size() <= limit:
            reader.begin(memoryview(bytearray(reader.size())))
        else:
            return None
    return frames


def _seeds_of_frames() -> list[bytes]:
    streams = [bytes.fromhex(vector["given"]["bytes"]) for vector in _vectors() if vector["check"] == "frames"]
    return [bytes([step]) + stream for stream in streams if len(stream) <= LONGEST for step in (0, 255)]


# Both sides of a handshake, with bytes of anyone


@cache
def _credentials() -> Credentials:
    access = wire_project.log_of({"federation": "00" * 16, "admission": "00" * 32, "log": ""})
    return Credentials(KEYS["bob"], access)


def _shake_hands(data: bytes) -> None:
    """Give bytes to a listener, in pieces, or to a dialler and its proof of its key."""
    if not data:
        return
    try:
        if data[0] & 1:
            side = TlsHandshake(_credentials(), None if data[0] & 2 else KEYS["alice"].public)
            side.begin()
            for piece in _pieces(data[1:]):
                side.step(piece)
        else:
            proof = _credentials().client_proof(KEYS["alice"].public, b"", bool(data[0] & 2))
            for piece in _pieces(data[1:]):
                proof.step(memoryview(piece))
    except ProtocolError:
        pass


def _seeds_of_handshakes() -> list[bytes]:
    dialler = TlsHandshake(_credentials(), KEYS["bob"].public)
    hello = dialler.begin()
    steps = [bytes.fromhex(vector["given"]["bytes"]) for vector in _vectors() if vector["check"] == "handshake step"]
    first, *_ = steps
    seeds = [b"\3" + len(hello).to_bytes(2, "big") + hello, b"\1" + len(hello).to_bytes(2, "big") + hello]
    for step in steps:
        if len(step) <= 4096:
            seeds.append(b"\0" + b"".join(len(each).to_bytes(2, "big") + each for each in (first, step)))
    return seeds


# The federation's file, and what its members have agreed on


def _read_federation(data: bytes) -> None:
    if not data:
        return
    mode, data = data[0], data[1:]
    if mode == REPAIRED:
        content, _, _ = data.partition(b"# signature: ")
        content = content if content.endswith(b"\n") else content + b"\n"
        data = content + b"# signature: " + ADMISSION.sign(b"p2pfl federation 1\0" + content).hex().encode() + b"\n"
    try:
        federation = Federation.parse(data)
    except FederationError as error:
        if "64" not in str(error):  # the reader has no limits on depth and on integers
            _expect_refused(data)
        return
    theirs = wire_reader.federation_file(data)
    assert (federation.id, federation.admission, federation.name) == (theirs["id"], theirs["admission"], theirs["name"])
    with suppress(ConfigurationError):
        agreement.read(federation)


def _expect_refused(data: bytes) -> None:
    try:
        found = wire_reader.federation_file(data)
    except RefusedError:
        return
    raise AssertionError(f"the independent reader accepts {found['name']!r}")


def _seeds_of_federations() -> list[bytes]:
    texts = [
        *(vector["given"]["text"].encode() for vector in _vectors() if vector["check"] in ("federation file", "agreed")),
        *(vector["given"]["file"].encode() for vector in _vectors() if vector["check"] == "inviter"),
    ]
    return [bytes([mode]) + text for text in dict.fromkeys(texts) if len(text) <= LONGEST for mode in (RAW, REPAIRED)]


# Graph files


@cache
def _folder() -> Path:
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


SUFFIXES = (".graphml", ".gml", ".json", ".adjlist", ".edgelist", ".csv", ".tsv", ".txt", ".csv.gz")
DIRECTED = (None, False, True)


def _read_graph(data: bytes) -> None:
    if not data:
        return
    kind, data = data[0], data[1:]
    suffix, directed = SUFFIXES[kind % len(SUFFIXES)], DIRECTED[kind // len(SUFFIXES) % len(DIRECTED)]
    path = _folder() / f"graph{suffix}"
    path.write_bytes(data)
    try:
        graph = topologies.read(str(path), directed)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        return
    assert list(graph) == list(range(len(graph)))
    assert len(graph)
    assert not nx.number_of_selfloops(graph)
    weights = nx.get_edge_attributes(graph, "weight")
    assert len(weights) in (0, graph.number_of_edges())
    assert all(0 < weight < float("inf") for weight in weights.values())


def _seeds_of_graphs() -> list[bytes]:
    seeds = []
    for form, (name, write, _) in FORMS.items():
        content = write(random_graph(random.Random(form), nodes=4))
        suffix = "".join(Path(name).suffixes)
        if suffix in SUFFIXES and len(content) <= LONGEST:
            seeds.append(bytes([SUFFIXES.index(suffix)]) + content)
    return seeds


def _of_checks(name: str) -> Target:
    return Target(lambda data: _run_checks(name, data), lambda: _cases(name)[1])


TARGETS = {
    "frames": Target(_read_frames, _seeds_of_frames),
    "tls": Target(_shake_hands, _seeds_of_handshakes),
    **{name: _of_checks(name) for name in CHECKS},
    "federation": Target(_read_federation, _seeds_of_federations),
    "graphs": Target(_read_graph, _seeds_of_graphs),
}
