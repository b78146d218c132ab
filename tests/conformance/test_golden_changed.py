"""Modified golden vectors: the reader and the project must agree on them, or the document has a gap.

Inputs are modified at random from a seed and, for most of them, signed again with the right key.
`P2PFL_FUZZ=200000 pytest tests/conformance/test_golden_changed.py` tries that number of inputs.
"""

import json
import os
import random
from collections import Counter
from hashlib import sha256

import msgpack
import pytest

from p2pfl.protocols.membership.invitation import pack_word
from tests.conformance import wire_project, wire_reader
from tests.conformance.test_golden import vectors
from tests.conformance.wire_keys import BY_KEY, KEYS
from tests.conformance.wire_types import RefusedError, read

# The given field that is changed, by check.
FIELDS = {
    "log": "entries",
    "revocation": "proof",
    "join": "bytes",
    "look": "bytes",
    "join answer": "bytes",
    "frames": "bytes",
    "handshake step": "bytes",
    "challenge": "bytes",
    "proof": "proof",
    "presence": "packet",
    "txt": "bytes",
    "frame": "frame",
    "terms": "bytes",
    "model": "bytes",
    "update": "payload",
    "fragment": "payload",
    "submission": "bytes",
    "assignment": "bytes",
    "submit": "payload",
    "assigned": "payload",
    "announcement": "bytes",
}
WORDS = {"invitation": "p2pfl-invite-", "request": "p2pfl-request-", "admission": "p2pfl-admission-"}
LABELS = {
    "presence": ("key", b"p2pfl presence 1\0"),
}
# msgpack of all kinds: shortest and longer formats, and announced lengths without content.
HEX = (
    "c0 c1 c2 c3 dc0001 dd00000001 ddffffffff de0001 dfffffffff c400 c40100 c5000100 c6ffffffff a0 a161 d90161 da000161 "
    "db0000000161 cc05 cd0005 ce00000005 cf0000000000000005 cfffffffffffffffff d0ff d005 d10005 d200000005 "
    "d30000000000000005 d3ffffffffffffffff ca3f800000 ca7fc00000 cb3ff0000000000000 cb7ff8000000000000 "
    "cb7ff0000000000000 cb8000000000000000 d40100 d6ff00000000 c70001 c7ff01 90 80 91 9190 8181 81a16100 e0 7f 80"
)
PIECES = [bytes.fromhex(piece) for piece in HEX.split()]
LARGEST = 20_000  # characters of a vector; larger ones are left out


class Changer:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def changed(self, data):
        rng, changed = self.rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at, piece = rng.randrange(len(changed) + 1), rng.choice(PIECES)
            match rng.randrange(7):
                case 0 if at < len(changed):
                    changed[at] ^= 1 << rng.randrange(8)
                case 1 if at < len(changed):
                    changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xFF, rng.randrange(256)))
                case 2:
                    del changed[at : at + rng.randint(1, 9)]
                case 3:
                    changed[at:at] = piece
                case 4:
                    changed[at : at + len(piece)] = piece
                case 5:
                    changed[at : at + 1] = piece
                case _:
                    changed = changed[:at] if rng.random() < 0.5 else changed + bytes(rng.randint(1, 3))
        return bytes(changed)

    def given(self, check, given):
        """Return the given values with one field changed."""
        if check == "federation file":
            return given | {"text": self.file(given["text"])}
        if check in WORDS:
            return given | {"text": self.word(given["text"], WORDS[check])}
        field = FIELDS[check]
        data = bytes.fromhex(given[field])
        if check in LABELS and len(data) > 64:
            who, label = LABELS[check]
            content = self.changed(data[64:])
            data = owner(given[who]).sign(label + content) + content
        elif check == "frame" and len(data) >= 320 and self.rng.random() < 0.8:
            data = self.frame(data)
        elif check == "log" and self.rng.random() < 0.7:
            data = self.log(data)
        else:
            data = self.changed(data)
        return given | {field: data.hex()}

    def file(self, text):
        content, mark, rest = text.rpartition("# signature: ")
        at = self.rng.randrange(len(content) + 1)
        content = (
            content[:at] + self.rng.choice(["\n", '"', "x", "0", "\r\n", "é", " "]) + content[at + self.rng.randrange(2) :]
        )
        if self.rng.random() < 0.3:
            return content + mark + rest
        signature = KEYS["admission"].sign(b"p2pfl federation 1\0" + content.encode())
        return f"{content}# signature: {signature.hex()}\n"

    def word(self, text, prefix):
        if not text.startswith(prefix) or self.rng.random() < 0.2:
            at = self.rng.randrange(len(text))
            return text[:at] + chr(self.rng.randrange(33, 127)) + text[at + 1 :]
        try:
            content = self.changed(wire_reader.word(text, prefix))
        except RefusedError:
            return text
        return prefix + pack_word(content)

    def frame(self, frame):
        """Change the second half of a header and sign it again."""
        header = (frame[:165] + self.changed(frame[165:215]) + frame[215:256] + bytes(64))[:256]
        try:
            read_header = read(header, wire_reader.HEADER)
        except RefusedError:
            return header + frame[256:]
        if frame[256:320] == bytes(64):
            return header + frame[256:]
        label = wire_reader.LABELS.get(read_header["version"], b"")
        signature = owner(header[22:54].hex()).sign(label + sha256(header).digest() + read_header["digest"])
        return header + signature + frame[320:]

    def log(self, data):
        """Change one entry and sign it with the admission key."""
        try:
            entries = read(data, wire_reader.ENTRIES)
        except RefusedError:
            return self.changed(data)
        signed = [[entry["entry"], entry["signature"]] for entry in entries]
        if signed:
            one = self.rng.choice(signed)
            label = b"p2pfl membership 2\0" if b"extend" in one[0] else b"p2pfl membership 1\0"
            one[0] = self.changed(one[0])
            one[1] = KEYS["admission"].sign(label + one[0])
        return msgpack.packb(signed)


def owner(key):
    """Return the identity with this public key, or mallory if it is unknown."""
    return BY_KEY.get(bytes.fromhex(key), KEYS["mallory"])


def outcome_of(run, check, given):
    try:
        return json.loads(json.dumps(run(check, given)))
    except RefusedError as refused:
        return refused.cause


def repeats_a_key(given):
    """Return whether terms repeat a key, which the document leaves undefined."""
    keys = []

    def pairs(found):
        keys.append([key for key, _ in found])
        return dict(found)

    try:
        msgpack.unpackb(bytes.fromhex(given["bytes"]), raw=False, strict_map_key=False, object_pairs_hook=pairs)
    except (ValueError, TypeError, msgpack.UnpackException):
        return False
    return any(len(some) != len(set(map(repr, some))) for some in keys)


def compare(seed, times):
    changer, seen = Changer(seed), Counter()
    tried = [
        v for v in vectors() if v["check"] in {*FIELDS, *WORDS, "federation file"} and len(json.dumps(v["given"])) < LARGEST
    ]
    for _ in range(times):
        vector = changer.rng.choice(tried)
        check = vector["check"]
        given = changer.given(check, vector["given"])
        reader = outcome_of(lambda check, given: wire_reader.CHECKS[check](given), check, given)
        project = outcome_of(wire_project.run, check, given)
        if reader != project:
            assert check == "terms", (check, given, reader, project)
            assert repeats_a_key(given), (check, given, reader, project)
        seen["accepted" if isinstance(project, dict) else project] += 1
    return seen


@pytest.mark.slow
def test_reader_and_project_agree_on_changed_vectors():
    seen = compare(1, int(os.environ.get("P2PFL_FUZZ", "1000")))
    assert seen["accepted"] > 30
    assert len(seen) > 15, seen
