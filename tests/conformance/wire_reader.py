"""Independent reader of the protocol, written from docs/wire-protocol.md alone.

`CHECKS` has a function for each `check` of the golden vectors. It takes the `given` values and returns the expected
ones, or raises `RefusedError` with the cause. It imports nothing from this project.
"""

from __future__ import annotations

import base64
import re
import struct
import tomllib
from hashlib import sha256
from math import prod

import msgpack
from blake3 import blake3
from cryptography import x509
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.conformance import wire_committee, wire_coordination, wire_edges, wire_models, wire_rings, wire_sums
from tests.conformance.wire_committee import KEYS_OF_COMMITTEE, Committees, committee_of
from tests.conformance.wire_types import (
    B16,
    B32,
    B64,
    U32,
    WORD,
    RefusedError,
    array_of,
    blob,
    boolean,
    digest,
    either,
    expect,
    integer,
    is_weak,
    kinds,
    map_of,
    nothing,
    number,
    one_of,
    plain,
    read,
    signed,
    structure,
    text,
    without_kind,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MIB = 1 << 20
NONE = bytes(32)

# Keys and layouts


def layout_fingerprint(trained, tensors):
    lines = ["p2pfl layout 1", str(trained), *(f"{name} [{', '.join(map(str, shape))}]" for name, shape in tensors)]
    return digest("\n".join(lines).encode())[:16]


def check_layout(given):
    values = sum(prod(shape) for _, shape in given["tensors"])
    return {"fingerprint": layout_fingerprint(given["trained"], given["tensors"]).hex(), "values": values}


# The federation file


def federation_file(data):
    expect(len(data) <= 65536, "wrong length")
    match = re.fullmatch(rb"(.*\n)# signature: ([0-9a-f]{128})\n", data, re.S)
    expect(match, "malformed")
    content, signature = match[1], bytes.fromhex(match[2].decode())
    lines = (re.fullmatch(rb'admission = "([0-9a-f]{64})"', line) for line in content.split(b"\n"))
    keys = [line[1].decode() for line in lines if line]
    expect(keys, "malformed")
    signed_part = b"p2pfl federation 1\0" + content
    expect(signed(bytes.fromhex(keys[0]), signature, signed_part), "wrong signature")
    try:
        tables = tomllib.loads(content.decode())
    except ValueError as error:
        raise RefusedError("malformed") from error
    expect(tables.get("admission") == keys[0] and isinstance(tables.get("nonce"), str), "malformed")
    expect(isinstance(tables.get("name"), str) and NAME.fullmatch(tables["name"]), "malformed")
    return {"id": digest(signed_part)[:16], "admission": bytes.fromhex(keys[0]), "name": tables["name"], "tables": tables}


def check_federation_file(given):
    file = federation_file(b"\n" * given.get("filled", 0) + given["text"].encode())
    return {"id": file["id"].hex(), "admission": file["admission"].hex(), "name": file["name"]}


def short_hash(words):
    return sha256(words.encode()).hexdigest()[:16]


COORDINATED = {
    "coordinator": "elected by a majority of the members; beats every 0.4 s, a lease of 1.6 s, patience of 2 s",
    "local submission trigger": "the end of a round's training",
    "local aggregation behaviour": "takes what the coordinator assigns",
    "joint aggregation behaviour": "the policy's step, made by the coordinator of what has come after half of the wait",
    "model collection": "submitted to the coordinator, whatever the topology is",
}


def check_agreed(given):
    file = federation_file(given["text"].encode())["tables"]
    edges, synchronous = file["edges"], file["mode"] == "synchronous"
    pairs = sorted(tuple(pair) for pair in edges) if edges != "all" else []
    topology = "everyone with everyone" if edges == "all" else f"{len(pairs)} edges ({short_hash(repr(pairs))})"
    if rule := file.get("topology"):
        options = ", ".join(f"{key} = {rule[key]!r}" for key in sorted(rule) if key != "name")
        kind = "neighbours by rule" if rule["name"] in ("rings", "changing-rings") else "another graph in each round"
        topology = f"{kind}: {rule['name']}" + (f" ({options})" if options else "")
    codec = file.get("codec", {"name": "float32"})
    few = ", fewer where peers are quick" if file["adaptive"] else ""
    layout = check_layout(given)
    agreed = {
        "system topology": f"no server; {topology}",
        "coordinator": "none",
        "layout": f"{layout['values']} values in {len(given['tensors'])} tensors ({layout['fingerprint']})",
        "initial model": file["model"]["initial"],
        "seed": str(file["seed"]),
        "rounds": str(file["rounds"]),
        "round mode": file["mode"],
        "local submission trigger": "the end of a round's training, and a peer's request",
        "local submission format": CODEC_WORDS[codec["name"]].format(
            **{"share": {"sparse": 0.03}.get(codec["name"], 0.1), "bits": 3} | codec
        ),
        "local aggregation behaviour": "waits for models of its round" if synchronous else "takes the newest models",
        "joint aggregation behaviour": "none; every node aggregates for itself",
        "integration of a received model": "as the policy says, in place of the local model",
        "model collection": "fetched from peers, as many as the policy asks for and the node's own budget lets in",
        "failure handling": f"waits {file['deadline']:g} s at most{few}, goes on without a silent peer until it is heard",
        "robust aggregation": file["robust"],
        "early stopping": f"after {file['patience']} rounds" if file["patience"] else "never",
    }
    if file.get("greatest_epsilon"):
        epsilon, delta = file["greatest_epsilon"], file.get("greatest_delta", 1e-5)
        agreed["privacy"] = f"each member claims epsilon {epsilon:g} or less at delta {delta:g} or less"
    if given.get("coordinated"):
        agreed |= COORDINATED
        if committee := file.get("committee"):
            agreed["coordinator"] = COORDINATED["coordinator"].replace(
                "majority of the members", f"committee of {committee}"
            )
        if file.get("group_size"):
            words = (
                f"the mean by samples, of means of groups of about {file['group_size']} that members of the committee make"
            )
            agreed["joint aggregation behaviour"] = words
        if file.get("secure_sums"):
            agreed |= wire_sums.agreed(file.get("secure_threshold", 0))
    if given.get("fragments"):
        agreed["model collection"] = f"models or fragments {agreed['model collection']}"
    for table in ("task", "policy"):
        for key, value in file[table].items():
            words = repr(value)
            if len(words) > 200:
                words = f"{words[:40]}... ({short_hash(words)})"
            agreed[f"{table}.{key}"[:64]] = words
    return {"agreed": agreed}


def check_introduction(given):
    expect(given["ours"] == given["theirs"], "differs")
    return {}


# The membership log

SIGNED = structure({"entry": blob(512, 0), "signature": B64})
ENTRIES = array_of(SIGNED, 4 * MIB)
PLACE = {"federation": B16, "membership_version": integer(1, 2**32 - 1), "before": B32}
CHANGE = structure(
    {
        **PLACE,
        "action": one_of("add", "remove", "replace", "hand-over"),
        "name": text(64),
        "key": B32,
        "role": one_of("participant", "observer", "coordinator-eligible"),
    }
)
EXTENSION = structure({**PLACE, "action": one_of("extend"), "rounds": integer(1, 1_000_000)})
COMMITTEE = structure({**PLACE, "action": one_of("committee"), "keys": KEYS_OF_COMMITTEE, "lost": boolean})
ENTRY = either(CHANGE, EXTENSION, COMMITTEE)
ENTRY_LABELS = {"extend": b"p2pfl membership 2\0", "committee": b"p2pfl membership committee 1\0"}


class Log:
    def __init__(self, federation, admission, entries=b"", rounds=0, committee=0):
        self.rounds = rounds
        self.committees = Committees(committee)
        self.federation = federation
        self.admissions = [admission]
        self.members = {}  # name: (key, role)
        self.seen = []
        self.names = set()
        self.entries = []  # in the shortest formats
        if entries:
            self.extend(entries)

    @property
    def membership_version(self):
        return len(self.entries)

    def standing(self, key):
        if any(key == member for member, _ in self.members.values()):
            return "member"
        return "revoked" if key in self.seen else "stranger"

    def extend(self, data):
        try:
            expect(len(data) <= 4 * MIB, "malformed")
            entries = read(data, ENTRIES)
        except RefusedError:
            raise RefusedError("membership", self.membership_version) from None
        for position, entry in enumerate(entries):
            try:
                self.take(entry, entries[position + 1 :])
            except RefusedError as error:
                raise RefusedError(
                    "membership fork" if error.cause == "membership fork" else "membership", self.membership_version
                ) from None

    def take(self, one, later):
        entry = read(one["entry"], ENTRY)
        whole = msgpack.packb([one["entry"], one["signature"]])
        expect(entry["federation"] == self.federation, "membership")
        label = ENTRY_LABELS.get(entry["action"], b"p2pfl membership 1\0")
        valid = [signed(key, one["signature"], label + one["entry"]) for key in self.admissions]
        if entry["membership_version"] <= self.membership_version:
            if whole != self.entries[entry["membership_version"] - 1]:
                raise RefusedError("membership fork" if any(valid) else "membership")
            return
        expect(entry["membership_version"] == self.membership_version + 1, "membership")
        if entry["before"] != (digest(self.entries[-1]) if self.entries else NONE):
            raise RefusedError("membership fork" if self.entries and valid[-1] else "membership")
        expect(valid[-1] or self.covered(whole, entry, later), "membership")
        self.apply(entry)
        self.entries.append(whole)

    def covered(self, whole, entry, later):
        """Return whether the last entry that follows one with the same admission key is signed by that key."""
        last = None
        for one in later:
            if entry["action"] == "hand-over":
                break
            version = entry["membership_version"]
            try:
                entry = read(one["entry"], ENTRY)
            except RefusedError:
                break
            follows = entry["membership_version"] == version + 1 and entry["before"] == digest(whole)
            if not follows or entry["federation"] != self.federation:
                break
            whole, last = msgpack.packb([one["entry"], one["signature"]]), (one, entry)
        if last is None:
            return False
        one, entry = last
        label = ENTRY_LABELS.get(entry["action"], b"p2pfl membership 1\0")
        return signed(self.admissions[-1], one["signature"], label + one["entry"])

    def apply(self, entry):
        if entry["action"] == "extend":
            expect(entry["rounds"] > self.rounds, "membership")
            self.rounds = entry["rounds"]
            return
        if entry["action"] == "committee":
            self.committees.appoint(entry["membership_version"], self.members, entry["keys"], entry["lost"])
            return
        self.change(entry)
        self.committees.follow(entry["membership_version"], self.members)

    def change(self, entry):
        action, name, key = entry["action"], entry["name"], entry["key"]
        expect(action == "remove" or not is_weak(key), "membership")
        if action == "hand-over":
            expect(not name and key not in self.admissions, "membership")
            self.admissions.append(key)
            return
        expect(NAME.fullmatch(name), "membership")
        expect((name in self.members) == (action != "add"), "membership")
        if action == "remove":
            expect(self.members[name][0] == key, "membership")
            del self.members[name]
            return
        expect(key not in self.seen, "membership")
        self.members[name] = key, entry["role"] if action == "add" else self.members[name][1]
        self.seen.append(key)
        self.names.add(name)

    def list_of(self):
        return {name: [key.hex(), role] for name, (key, role) in sorted(self.members.items())}


def log_of(given, entries="log"):
    ids = (bytes.fromhex(given[key]) for key in ("federation", "admission", entries))
    return Log(*ids, given.get("rounds", 0), given.get("committee", 0))


def check_committee(given):
    return committee_of(log_of(given))


def check_rings(given):
    return wire_rings.rings_of(log_of(given), given)


def check_log(given):
    log = log_of(given, "known")
    log.extend(bytes.fromhex(given["entries"]))
    revoked = [key.hex() for key in log.seen if log.standing(key) == "revoked"]
    return {
        "membership_version": log.membership_version,
        "admission": log.admissions[-1].hex(),
        "rounds": log.rounds,
        "members": log.list_of(),
        "revoked": sorted(revoked),
    }


PROOF = array_of(SIGNED, 16)


def check_revocation(given):
    log, data, key = log_of(given), bytes.fromhex(given["proof"]), bytes.fromhex(given["key"])
    newest, admission = log.membership_version, log.admissions[-1]
    try:
        expect(len(data) <= 2048, "membership")
        proof = read(data, PROOF)
        entries = [read(one["entry"], ENTRY) for one in proof]
    except RefusedError:
        raise RefusedError("membership") from None
    expect(entries, "membership")
    for one, entry in zip(proof, entries, strict=True):
        last = one is proof[-1]
        expect(entry["action"] in (("remove", "replace") if last else ("hand-over",)), "membership")
        if entry["membership_version"] <= newest and not last:
            continue
        expect(entry["membership_version"] > newest, "membership")
        expect(entry["federation"] == log.federation, "membership")
        expect(signed(admission, one["signature"], b"p2pfl membership 1\0" + one["entry"]), "membership")
        newest = entry["membership_version"]
        admission = admission if last else entry["key"]
    end = entries[-1]
    expect(log.members[end["name"]][0] == key if end["name"] in log.members else False, "membership")
    expect((end["key"] == key) == (end["action"] == "remove"), "membership")
    return {"action": end["action"], "membership_version": newest, "admission": admission.hex()}


HASH = {"leaf": b"\0", "node": b"\1"}


def above(leaf, index, size, proof):
    """Return the root to which an inclusion proof leads, by the definition of the tree; None if its length is wrong."""
    if size == 1:
        return None if proof else digest(HASH["leaf"] + leaf)
    if not proof:
        return None
    half = 1 << (size - 1).bit_length() - 1  # the largest power of two below the size
    right = index >= half
    below = above(leaf, index - half, size - half, proof[:-1]) if right else above(leaf, index, half, proof[:-1])
    if below is None:
        return None
    return digest(HASH["node"] + (proof[-1] + below if right else below + proof[-1]))


def expect_included(leaf, index, size, proof, root):
    expect(index < size and above(leaf, index, size, proof) == root, "membership")


def check_inclusion(given):
    leaf, root = bytes.fromhex(given["leaf"]), bytes.fromhex(given["root"])
    expect_included(leaf, given["index"], given["size"], [bytes.fromhex(each) for each in given["proof"]], root)
    return {}


CHECKPOINT = structure(
    {
        "federation": B16,
        "membership_version": integer(1, 2**32 - 1),
        "last": B32,
        "rounds": integer(0, 2**53),
        "size": U32,
        "root": B32,
    }
)
LEAF = structure(
    {"name": text(64), "key": B32, "role": one_of("participant", "observer", "coordinator-eligible"), "added": B32}
)
TOLD = structure({"index": U32, "leaf": blob(256, 0), "proof": array_of(B32, 32)})
BEGINNING = structure(
    {"checkpoint": blob(256, 0), "signature": B64, "hand_overs": array_of(SIGNED, 16), "members": array_of(TOLD, 64)}
)


def check_checkpoint(given):
    data, federation = bytes.fromhex(given["bytes"]), bytes.fromhex(given["federation"])
    admissions, newest = [bytes.fromhex(given["admission"])], 0
    try:
        expect(len(data) <= 48 * 1024, "malformed")
        found = read(data, BEGINNING)
        checkpoint = read(found["checkpoint"], CHECKPOINT)
        leaves = [read(each["leaf"], LEAF) for each in found["members"]]
        for one in found["hand_overs"]:
            entry = read(one["entry"], ENTRY)
            expect(entry["action"] == "hand-over" and entry["federation"] == federation, "malformed")
            expect(entry["membership_version"] > newest, "malformed")
            expect(signed(admissions[-1], one["signature"], b"p2pfl membership 1\0" + one["entry"]), "malformed")
            admissions.append(entry["key"])
            newest = entry["membership_version"]
    except RefusedError:
        raise RefusedError("membership") from None
    expect(checkpoint["federation"] == federation, "membership")
    content = b"p2pfl membership checkpoint 1\0" + found["checkpoint"]
    expect(signed(admissions[-1], found["signature"], content), "membership")
    for each, leaf in zip(found["members"], leaves, strict=True):
        expect_included(each["leaf"], each["index"], checkpoint["size"], each["proof"], checkpoint["root"])
        expect(NAME.fullmatch(leaf["name"]), "membership")
    return plain(
        {
            "membership_version": checkpoint["membership_version"],
            "last": checkpoint["last"],
            "rounds": checkpoint["rounds"],
            "admission": admissions[-1],
            "members": {leaf["name"]: [leaf["key"], leaf["role"], leaf["added"]] for leaf in leaves},
        }
    )


# Admission


def word(line, prefix):
    line = "".join(line.split())
    expect(line.startswith(prefix), "other kind")
    rest = line[len(prefix) :]
    try:
        data = base64.b64decode(rest + "=" * (-len(rest) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise RefusedError("damaged") from None
    content, check = data[:-4], data[-4:]
    expect(content and digest(content)[:4] == check, "damaged")
    return content


INVITATION = structure(
    {
        "federation": B16,
        "name": WORD,
        "admission": B32,
        "inviter": B32,
        "addresses": array_of(text(256), 8),
        "secret": B16,
        "expires": integer(0, 2**53),
        "member": WORD,
    }
)
REQUEST = structure(
    {
        "name": WORD,
        "key": B32,
        "replaces": either(B32, nothing),
        "signature": B64,
        "old_signature": either(B64, nothing),
    }
)
QUESTION = structure({"secret": B16, "name": WORD})
REST = structure({"secret": B16, "name": WORD, "known": integer(1, 2**32 - 1)})
JOIN = kinds({"join": QUESTION, "look": QUESTION, "begin": QUESTION, "rest": REST})
JOINED = structure({"file": blob(65536, 0), "log": blob(4 * MIB, 0)})
OFFERED = structure({"file": blob(65536, 0), "rounds": integer(0, 2**53)})
ADMISSION = kinds({"joined": structure({"file": blob(65536, 0), "log": blob(2**32, 0)})})
BEGUN = structure({"file": blob(65536, 0), "checkpoint": blob(48 * 1024, 1)})
JOIN_ANSWER = kinds({"joined": JOINED, "begun": BEGUN, "offered": OFFERED, "refused": structure({"reason": text(256)})})


def check_invitation(given):
    found = read(word(given["text"], "p2pfl-invite-"), INVITATION)
    expect(NAME.fullmatch(found["member"]), "malformed")
    expect(not is_weak(found["admission"]) and not is_weak(found["inviter"]), "malformed")
    return plain(found)


def check_request(given):
    asked = read(word(given["text"], "p2pfl-request-"), REQUEST)
    expect(NAME.fullmatch(asked["name"]), "malformed")
    content = b"p2pfl request 1\0" + asked["key"] + (asked["replaces"] or NONE) + asked["name"].encode()
    expect(signed(asked["key"], asked["signature"], content), "wrong signature")
    if asked["replaces"] is not None:
        expect(signed(asked["replaces"], asked["old_signature"] or b"", content), "wrong signature")
    return plain({name: asked[name] for name in ("name", "key", "replaces")})


def check_admission(given):
    return plain(without_kind(read(word(given["text"], "p2pfl-admission-"), ADMISSION)))


def join(data):
    expect(len(data) <= 4096, "malformed")
    return read(data, JOIN)


def check_join(given):
    return plain(without_kind(join(bytes.fromhex(given["bytes"]))))


def check_look(given):
    found = join(bytes.fromhex(given["bytes"]))
    expect(found["kind"] == "look", "malformed")
    return plain(without_kind(found))


def check_join_answer(given):
    data = bytes.fromhex(given["bytes"])
    expect(len(data) <= 4 * MIB + 65536 + 64, "malformed")
    return plain(read(data, JOIN_ANSWER))


def check_inviter(given):
    file, now, key = federation_file(given["file"].encode()), given["now"], bytes.fromhex(given["key"])
    log = Log(file["id"], file["admission"], bytes.fromhex(given["log"]))
    asked = join(bytes.fromhex(given["join"]))
    expect(NAME.fullmatch(asked["name"]), "malformed")
    secret = given["secrets"].get(asked["secret"].hex())
    expect(secret, "invitation unknown")
    unchanged = {"membership_version": log.membership_version, "members": log.list_of()}
    if secret["used_by"] == key.hex() and log.standing(key) == "member":
        return unchanged
    expect(secret["used_by"] in (None, key.hex()), "invitation used")
    expect(now <= secret["expires"] and not secret["expired"], "invitation expired")
    expect(asked["name"] == secret["name"], "other name")
    expect(asked["name"] not in log.members, "name taken")
    expect(asked["name"] not in log.names or secret["reuse_name"], "name taken")
    expect(log.standing(key) == "stranger", "known key")
    expect(asked["kind"] != "rest", "malformed")
    if asked["kind"] == "look":
        return unchanged
    return {
        "membership_version": log.membership_version + 1,
        "members": dict(sorted({**log.list_of(), asked["name"]: [key.hex(), secret["role"]]}.items())),
    }


# The link over TLS

STEPS = {
    "challenge": structure({"version": U32, "nonce": B32, "membership_version": U32}),
    "proof": structure(
        {
            "version": U32,
            "federation": B16,
            "key": B32,
            "nonce": B32,
            "joining": boolean,
            "entries": blob(3500, 0),
            "signature": B64,
        }
    ),
    "accepted": structure({}),
    "refused": structure({"cause": text(64), "detail": text(256)}),
    "revoked": structure({"detail": text(256), "proof": blob(2048, 0)}),
}


def step(data, *which):
    expect(len(data) <= 4096, "malformed")
    return read(data, kinds({name: STEPS[name] for name in which or STEPS}))


def check_certificate(given):
    try:
        key = x509.load_der_x509_certificate(bytes.fromhex(given["certificate"])).public_key()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise RefusedError("wrong key") from None
    expect(isinstance(key, Ed25519PublicKey) and key.public_bytes_raw().hex() == given["dialled"], "wrong key")
    return {}


def check_frames(given):
    data, frames = bytes.fromhex(given["bytes"]), []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        expect(0 < size <= given["limit"], "malformed")
        if len(data) < 4 + size:
            break
        frames.append(data[4 : 4 + size].hex())
        data = data[4 + size :]
    return {"frames": frames}


def check_step(given):
    return plain(step(bytes.fromhex(given["bytes"])))


def check_challenge(given):
    challenge = step(bytes.fromhex(given["bytes"]), "challenge")
    expect(challenge["version"] == 1, "version")
    return plain({name: challenge[name] for name in ("nonce", "membership_version")})


def may_dial(log, key, joining, invites, entries):
    if joining:
        expect(invites, "not inviting")
        return
    if log.standing(key) == "stranger" and entries:
        log.extend(entries)
    expect(log.standing(key) == "member", log.standing(key))


def check_proof(given):
    log = log_of(given)
    server, certificate = bytes.fromhex(given["server"]), bytes.fromhex(given["certificate"])
    challenge = step(bytes.fromhex(given["challenge"]), "challenge")
    proof = step(bytes.fromhex(given["proof"]), "proof")
    expect(proof["version"] == 1, "version")
    expect(proof["federation"] == log.federation, "other federation")
    may_dial(log, proof["key"], proof["joining"], given["invites"], proof["entries"])
    parts = log.federation + server + digest(certificate) + challenge["nonce"] + proof["nonce"] + proof["key"]
    content = digest(parts + bytes([proof["joining"]]))
    expect(signed(proof["key"], proof["signature"], b"p2pfl proof 1\0" + content), "wrong proof")
    keys = HKDF(SHA256(), 64, None, b"p2pfl broker keys 2\0").derive(content)
    found = {"key": proof["key"], "joining": proof["joining"], "session": digest(b"p2pfl session 1\0" + content)[:16]}
    found |= {"dialler_key": keys[:32], "listener_key": keys[32:]}
    return plain(found | {"membership_version": log.membership_version})


# The link through a broker

PRESENCE = structure(
    {
        "federation": B16,
        "key": B32,
        "incarnation": U32,
        "sequence": U32,
        "addresses": array_of(text(256), 8),
        "online": boolean,
    }
)


def signed_packet(packet, most, kind):
    expect(65 <= len(packet) <= most, "malformed")
    return read(packet[64:], kind)


def check_topic(given):
    return {"packets": f"p2pfl/{given['federation']}/{given['recipient']}/{given['sender']}"}


def check_handshake_packets(given):
    link, messages = bytes.fromhex(given["link"]), []
    for packet in map(bytes.fromhex, given["packets"]):
        expect(packet[0] == 7, "malformed")
        expect(packet[1:17] == link, "unknown session")
        expect(35 <= len(packet) <= 8192, "malformed")
        expect(packet[18:34] == digest(packet[:18] + packet[34:])[:16], "wrong seal")
        if packet[17] == len(messages):
            messages.append(packet[34:])
    return plain({"messages": messages})


CHUNK = 261632


class Receiver:
    """Receiving side of a link."""

    def __init__(self, link, key, limit):
        self.link, self.limit = link, limit
        self.seal = ChaCha20Poly1305(key)
        self.early = {}
        self.missing = 0
        self.control = -1
        self.frames = []
        self.size, self.index, self.parts = None, 0, b""
        self.closed = False

    def open(self, kind, number, header, sealed):
        try:
            return self.seal.decrypt(struct.pack(">IQ", kind, number), sealed, header)
        except InvalidTag:
            raise RefusedError("wrong seal") from None

    def packet(self, packet):
        expect(packet[0] in (1, 2), "malformed")
        expect(packet[1:17] == self.link, "unknown session")
        length = 33 if packet[0] == 1 else 25
        expect(len(packet) > length, "malformed")
        header, sealed = packet[:length], packet[length:]
        number = int.from_bytes(packet[17:25], "big")
        if packet[0] == 1:
            if number >= self.missing + 16:
                return
            content = self.open(0, number, header, sealed)
            if number < self.missing or number in self.early:
                return
            self.early[number] = (*struct.unpack(">II", packet[25:33]), content)
            while self.missing in self.early:
                self.missing += 1
                self.chunk(*self.early.pop(self.missing - 1))
            return
        if number <= self.control:
            return
        content = self.open(1, number, header, sealed)
        expect(len(content) == 13, "malformed")
        self.control = number
        self.closed |= bool(content[0] & 2)

    def chunk(self, size, index, chunk):
        if self.size is None:
            expect(size <= self.limit, "too large")
            self.size = size
        length = min(CHUNK, self.size - len(self.parts))
        last = len(self.parts) + length == self.size
        expect(size == self.size and index == self.index and len(chunk) == length + 32 * last, "malformed")
        self.parts += chunk[:length]
        self.index += 1
        if last:
            expect(digest(self.parts) == chunk[length:], "malformed")
            self.frames.append(self.parts)
            self.size, self.index, self.parts = None, 0, b""

    @property
    def came(self):
        return sum(1 << (number - self.missing - 1) for number in self.early)


def patterned(link, key, size, expected):
    """Return the first packet of a frame whose byte i is i mod 251."""
    header = b"\1" + link + struct.pack(">QII", 0, size, 0)
    chunk = bytes(i % 251 for i in range(min(size, CHUNK)))
    packet = header + ChaCha20Poly1305(key).encrypt(bytes(12), chunk, header)
    assert sha256(packet).hexdigest() == expected
    return packet


def check_packets(given):
    link, key = bytes.fromhex(given["link"]), bytes.fromhex(given["key"])
    receiver = Receiver(link, key, given["limit"])
    packets = [bytes.fromhex(packet) for packet in given["packets"]]
    if "pattern" in given:
        packets[0] = patterned(link, key, given["pattern"], given["packets"][0])
    for packet in packets:
        receiver.packet(packet)
    return {
        "frames": [sha256(frame).hexdigest() for frame in receiver.frames],
        "acknowledged": {"missing": receiver.missing, "came": receiver.came},
        "closed": receiver.closed,
    }


def presence(log, key, packet, newest):
    said = signed_packet(packet, 4096, PRESENCE)
    expect(said["federation"] == log.federation, "other federation")
    expect(said["key"] == key, "other sender")
    expect(log.standing(key) == "member", log.standing(key))
    expect((said["incarnation"], said["sequence"]) >= newest, "replay")
    expect(signed(key, packet[:64], b"p2pfl presence 1\0" + packet[64:]), "wrong signature")
    return said


def check_presence(given):
    log, key, newest = log_of(given), bytes.fromhex(given["key"]), (-1, -1)
    for packet in given["before"]:
        said = presence(log, key, bytes.fromhex(packet), newest)
        newest = said["incarnation"], said["sequence"]
    return plain(presence(log, key, bytes.fromhex(given["packet"]), newest))


# mDNS


def check_txt(given):
    data, values = bytes.fromhex(given["bytes"]), {}
    expect(len(data) <= 512, "malformed")
    while data:
        size = data[0]
        expect(len(data) > size, "malformed")
        name, _, value = data[1 : 1 + size].partition(b"=")
        values.setdefault(name.lower(), value)
        data = data[1 + size :]
    for name, digits in ((b"id", 64), (b"fed", 32)):
        expect(re.fullmatch(rb"[0-9a-fA-F]{%d}" % digits, values.get(name, b"")), "malformed")
    return {"key": values[b"id"].decode().lower(), "federation": values[b"fed"].decode().lower()}


# The envelope

STAGE = one_of("prepared", "trained", "merged")
DIVISION = one_of("contiguous", "strided", "random", "layers")
MESSAGES = {
    "hello": structure({}),
    "welcome": structure({}),
    "get": structure({"request": U32, "round": U32, "stage": STAGE, "known": blob(8, 0)}, {"known": b""}),
    "model_update": structure(
        {
            "request": U32,
            "round": U32,
            "stage": STAGE,
            "n_samples": U32,
            "final": boolean,
            "age": number(0, finite=True),
            "base": blob(8, 0),
        },
        {"base": b""},
    ),
    "get_fragments": structure(
        {"request": U32, "round": U32, "stage": STAGE, "division": DIVISION, "parts": integer(1, 128), "wanted": blob(16, 1)}
    ),
    "fragment_update": structure(
        {
            "request": U32,
            "round": U32,
            "stage": STAGE,
            "n_samples": U32,
            "final": boolean,
            "age": number(0, finite=True),
            "division": DIVISION,
            "parts": integer(1, 128),
            "part": integer(0, 127),
        }
    ),
    "not_available": structure(
        {"request": U32, "round": U32, "reason": one_of("gone", "not allowed", "busy", "nothing yet")}
    ),
    "score": structure({"request": U32, "round": U32}),
    "scored": structure({"request": U32, "loss": number()}),
    "round_reached": structure({"round": U32}),
    "ping": structure({"request": U32}),
    "pong": structure({"request": U32, "round": U32}),
    "ping_request": structure({"request": U32, "subject": B32}),
    "indirect_ack": structure({"request": U32, "subject": B32}),
    "entries": structure({"membership_version": U32}),
    "missing_entries": structure({"known": U32}),
    "bye": structure({"round": U32, "leaving": boolean}),
    "conflict": structure({}),
    "receipts": structure({}),
    "carried": structure({"route": U32}),
    "equivocation": structure({}),
    **wire_coordination.MESSAGES,
    **wire_committee.MESSAGES,
    **wire_sums.MESSAGES,
}
WITH_PAYLOAD = (
    "hello",
    "welcome",
    "model_update",
    "fragment_update",
    "score",
    "entries",
    "submit",
    "assigned",
    "conflict",
    "receipts",
    "carried",
    "equivocation",
    "sum_request",
    "sum_answer",
    "signed_vote",
    "term_certificate",
    "group_mean",
)
SIGNED = (
    "hello",
    "welcome",
    "model_update",
    "fragment_update",
    "submit",
    "group_mean",
    "assigned",
    "sum_request",
    "sum_answer",
    "vote",
    "voted",
)
LABELS = {6: b"p2pfl envelope 6\0", 7: b"p2pfl envelope 7\0"}
U63 = integer(0, 2**63 - 1)
HEADER = structure(
    {
        "version": U32,
        "federation": B16,
        "sender": B32,
        "recipient": B32,
        "session": B16,
        "incarnation": U32,
        "sequence": U63,
        "generation": U32,
        "layout": B16,
        "payload_size": U32,
        "digest": B32,
        "message": kinds(MESSAGES),
        "padding": blob(256, 0),
    }
)


class FrameVerifier:
    def __init__(self, given):
        self.federation, self.me = bytes.fromhex(given["federation"]), bytes.fromhex(given["me"])
        self.members = [bytes.fromhex(key) for key in given["members"]]
        self.session, self.link = bytes.fromhex(given["session"]), bytes.fromhex(given["link"])
        self.limit, self.version = given["limit"], given.get("version", 6)
        self.seen = {}  # by key: the highest incarnation and its sequence numbers

    def open(self, frame):
        expect(320 <= len(frame) <= 320 + self.limit, "wrong length")
        head, signature, payload = frame[:256], frame[256:320], frame[320:]
        if 0x90 <= head[0] <= 0x9F and head[1] < 0x80:
            expect(head[1] == self.version, "version")
        header = read(head, HEADER)
        sender, message = header["sender"], header["message"]
        expect(header["version"] == self.version, "version")
        expect(header["federation"] == self.federation, "other federation")
        expect(header["recipient"] == self.me, "other recipient")
        expect(sender in self.members, "stranger")
        expect(sender == self.link, "other sender")
        expect(header["session"] == self.session, "other session")
        expect(header["payload_size"] == len(payload), "wrong length")
        expect(not payload or message["kind"] in WITH_PAYLOAD, "wrong length")
        incarnation, numbers = self.seen.get(sender, (-1, set()))
        if header["incarnation"] > incarnation:
            incarnation, numbers = header["incarnation"], set()
        expect(header["incarnation"] == incarnation, "replay")
        expect(not numbers or header["sequence"] > max(numbers) - 1024, "replay")
        expect(header["sequence"] not in numbers, "replay")
        if self.version == 6 or message["kind"] in SIGNED:
            expect(self.version == 6 or signature != bytes(64), "not signed")
            content = LABELS[self.version] + digest(head) + header["digest"]
            expect(signed(sender, signature, content), "wrong signature")
        else:
            expect(signature == bytes(64), "malformed")
        expect(blake3(payload).digest() == header["digest"], "wrong signature")
        self.seen[sender] = incarnation, numbers | {header["sequence"]}
        found = {name: header[name] for name in ("sender", "incarnation", "sequence", "layout")}
        return found | {"kind": message["kind"], "fields": without_kind(message), "payload": payload}


def check_conflict(given):
    """Check the evidence that a node receives: one or two frames signed with its own key."""
    evidence = bytes.fromhex(given["evidence"])
    expect(len(evidence) in (320, 640), "wrong length")
    incarnation, round = None, 0
    for at in range(0, len(evidence), 320):
        header = envelope_header(evidence[at : at + 320], given["federation"])
        expect(header["sender"] == bytes.fromhex(given["key"]), "wrong signature")
        expect_signed(header, evidence[at : at + 320])
        same = header["incarnation"] == given["incarnation"] and header["session"].hex() not in given["sessions"]
        if header["incarnation"] > given["incarnation"] or same:
            incarnation = max(incarnation or 0, header["incarnation"])
        if header["message"]["kind"] in ("model_update", "fragment_update"):
            round = max(round, header["message"]["round"])
    return {"conflict": incarnation is not None} | (
        {} if incarnation is None else {"incarnation": incarnation, "round": round}
    )


def envelope_header(envelope, federation):
    header = read(envelope[:256], HEADER)
    expect(header["version"] in LABELS, "version")
    expect(header["federation"] == bytes.fromhex(federation), "other federation")
    return header


def expect_signed(header, envelope):
    content = LABELS[header["version"]] + digest(envelope[:256]) + header["digest"]
    expect(signed(header["sender"], envelope[256:], content), "wrong signature")


def signed_model(envelope, federation):
    """Return the header of a model, or of a fragment, whose signature is not checked yet."""
    header = envelope_header(envelope, federation)
    message = header["message"]
    expect(message["kind"] == "fragment_update" or (message["kind"] == "model_update" and not message["base"]), "malformed")
    return header


def same_round(header):
    message = header["message"]
    part = [message.get(field) for field in ("division", "parts", "part")]
    return header["sender"], header["incarnation"], header["generation"], message["round"], message["stage"], part


def check_equivocation(given):
    proof = bytes.fromhex(given["proof"])
    expect(len(proof) == 640, "wrong length")
    halves = proof[:320], proof[320:]
    one, other = (signed_model(half, given["federation"]) for half in halves)
    expect(same_round(one) == same_round(other), "malformed")
    contents = [(header["digest"], header["message"]["n_samples"]) for header in (one, other)]
    expect(contents[0] != contents[1], "malformed")
    for header, half in zip((one, other), halves, strict=True):
        expect_signed(header, half)
    return {"sender": one["sender"].hex(), "round": one["message"]["round"]}


def check_receipts(given):
    payload = bytes.fromhex(given["payload"])
    expect(len(payload) % 320 == 0 and 1 <= len(payload) // 320 <= 8, "wrong length")
    models = [signed_model(payload[at : at + 320], given["federation"]) for at in range(0, len(payload), 320)]
    return {"rounds": [model["message"]["round"] for model in models]}


def check_carried(given):
    payload, route = bytes.fromhex(given["payload"]), given["route"]
    names = read(payload[:route], array_of(text(64, 1), 16))
    models = check_receipts({"payload": payload[route:].hex(), "federation": given["federation"]})
    return {"names": names} | models


def check_frame(given):
    verifier = FrameVerifier(given)
    for frame in given["before"]:
        verifier.open(bytes.fromhex(frame))
    return plain(verifier.open(bytes.fromhex(given["frame"])))


# Payloads

TERMS_KEYS = {"agreed", "public_info", "round", "stopped", "membership_version"}
AGREED = map_of(WORD, text(256), 128)
CODEC_WORDS = {
    "float32": "all parameters, float32, not compressed",
    "float16": "all parameters, float16",
    "bfloat16": "all parameters, bfloat16",
    "int8": "all parameters, int8 with a scale for each tensor",
    "top-k": "the {share:g} of the parameters that have changed most, float32",
    "sparse": "differences of the {share:g} of the parameters that have changed most, {bits} bits",
}


def fact(value):
    if type(value) is float:
        return number(finite=True)(value)
    return either(integer(-(2**53), 2**53), boolean, text(256))(value)


def terms(value):
    expect(type(value) is dict and TERMS_KEYS - {"membership_version"} <= set(value) <= TERMS_KEYS, "malformed")
    return {
        "agreed": AGREED(value["agreed"]),
        "public_info": map_of(WORD, fact, 32)(value["public_info"]),
        "round": U32(value["round"]),
        "stopped": boolean(value["stopped"]),
        "membership_version": U32(value.get("membership_version", 0)),
    }


def check_terms(given):
    data = bytes.fromhex(given["bytes"])
    expect(len(data) <= 65536, "malformed")
    return read(data, terms)


CHECKS = {
    "committee": check_committee,
    "rings": check_rings,
    "layout": check_layout,
    "federation file": check_federation_file,
    "agreed": check_agreed,
    "introduction": check_introduction,
    "log": check_log,
    "inclusion": check_inclusion,
    "checkpoint": check_checkpoint,
    "revocation": check_revocation,
    "invitation": check_invitation,
    "request": check_request,
    "admission": check_admission,
    "join": check_join,
    "look": check_look,
    "join answer": check_join_answer,
    "inviter": check_inviter,
    "certificate": check_certificate,
    "frames": check_frames,
    "handshake step": check_step,
    "challenge": check_challenge,
    "proof": check_proof,
    "topic": check_topic,
    "handshake packets": check_handshake_packets,
    "packets": check_packets,
    "presence": check_presence,
    "txt": check_txt,
    "conflict": check_conflict,
    "equivocation": check_equivocation,
    "receipts": check_receipts,
    "carried": check_carried,
    "frame": check_frame,
    "terms": check_terms,
    **wire_models.CHECKS,
    **wire_coordination.CHECKS,
    **wire_committee.CHECKS,
    **wire_sums.CHECKS,
    **wire_edges.CHECKS,
}
