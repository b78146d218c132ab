"""Reader of secure sums as in docs/wire-protocol.md: a member, and the coordinator's sum. For rosters of up to 128."""

from __future__ import annotations

import itertools
import struct
from hashlib import sha256
from math import isfinite

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.conformance.wire_types import B32, B64, U32, WORD, array_of, blob, expect, one_of, read, signed, structure

LABEL = "p2pfl secure sum "
FIELD = 2**256 + 297
STEPS = ("roster", "shares", "survivors", "open")
TERM = {"request": U32, "round": U32, "membership_version": U32, "term": U32}
MESSAGES = {
    "sum_request": structure(TERM | {"step": one_of(*STEPS)}),
    "sum_answer": structure(TERM | {"step": one_of("announce", *STEPS)}),
}
MANY = 65536
SHARES = structure({"place": U32, "sealed": blob(82, 82)})
GIVEN = array_of(structure({"place": U32, "sealed": blob(82, 82), "checks": B32}), MANY)
ROSTER = array_of(
    structure({"name": WORD, "n_samples": U32, "sealing": B32, "masking": B32, "commitment": B32, "signature": B64}), MANY
)
SIGNATURES = array_of(structure({"place": U32, "signature": B64}), MANY)
OPENED = array_of(structure({"owner": U32, "share": blob(33, 33)}), MANY)
SET = blob(8192, 0)


def agreed(threshold):
    least = f"at least {threshold} members" if threshold else "more than two thirds of the members with a vote"
    return {
        "local submission format": "all parameters, masked, 64 bits each",
        "joint aggregation behaviour": f"the mean by samples, of a secure sum that {least} open",
    }


def for_me(value):
    expect(type(value) is list and len(value) == 2, "malformed")
    return SET(value[0]), array_of(SHARES, MANY)(value[1])


def label(what, version=1):
    return f"{LABEL}{what} {version}\0".encode() if what else b"p2pfl secure sum 1\0"


def context(given):
    return bytes.fromhex(given["federation"]) + struct.pack(">III", *given["term"], given["round"])


def check_signature(given, key, said):
    samples = struct.pack(">I", said["n_samples"])
    content = label("announcement") + context(given) + samples + said["sealing"] + said["masking"] + said["commitment"]
    expect(signed(key, said["signature"], content), "wrong signature")


def agree(private, public):
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        expect(False, "malformed")


def public(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive(secret, sum_id, use):
    return HKDF(hashes.SHA256(), 32, salt=sum_id, info=use).derive(secret)


def mask(key, size):
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * size))
    return struct.unpack(f"<{size}Q", stream)


def mask_use(members, one, other):
    low, high = min(one, other), max(one, other)
    return label("mask", 2) + struct.pack(">II", low, high) + members[low]["masking"] + members[high]["masking"]


def comparable(key):
    """Return the point times 2^254, which has lost its part of small order; without it."""
    return agree(bytes(32), key)


def places(data, members):
    value = int.from_bytes(data, "little")
    expect(len(data) == (members + 7) // 8 and value < 1 << members, "malformed")
    return {k for k in range(members) if value >> k & 1}


def weights_of(roster):
    samples = [each["n_samples"] for each in roster]
    return samples if sum(samples) else [1] * len(samples)


def check_announcement(given):
    data = bytes.fromhex(given["bytes"])
    expect(len(data) == 160, "wrong length")
    said = {"sealing": data[:32], "masking": data[32:64], "commitment": data[64:96], "signature": data[96:]}
    check_signature(given, bytes.fromhex(given["key"]), said | {"n_samples": given["n_samples"]})
    expect(comparable(said["sealing"]) != comparable(said["masking"]), "malformed")
    return {name: value.hex() for name, value in said.items()}


class Member:
    def __init__(self, given):
        self.given = given
        self.voters = {name: bytes.fromhex(key) for name, key in given["voters"].items()}
        self.identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["seed"]))
        self.sealing, self.masking, self.self_seed = (
            bytes.fromhex(given[key]) for key in ("sealing", "masking", "self_seed")
        )
        commitment = sha256(label("commitment") + self.self_seed).digest()
        keys = public(self.sealing), public(self.masking), commitment
        samples = struct.pack(">I", given["n_samples"])
        signature = self.identity.sign(label("announcement") + context(given) + samples + b"".join(keys))
        self.said = dict(zip(("sealing", "masking", "commitment", "signature"), (*keys, signature), strict=True))
        self.said |= {"name": given["me"], "n_samples": given["n_samples"]}

    def enough(self, some):
        expect(len(some) >= self.given["threshold"], "malformed")

    def enough_samples(self, some):
        counted = [place for place in some if weights_of(self.members)[place]]
        expect(len(counted) >= self.given["threshold"], "malformed")

    def roster(self, payload):
        self.members = read(payload, ROSTER)
        names = [each["name"] for each in self.members]
        expect(all(one < other for one, other in itertools.pairwise(names)), "malformed")
        self.enough(names)
        for each in self.members:
            if each["name"] != self.given["me"]:
                expect(each["name"] in self.voters, "malformed")
                check_signature(self.given, self.voters[each["name"]], each)
        expect(self.said in self.members, "malformed")
        self.own = self.members.index(self.said)
        self.enough_samples(range(len(names)))
        keys = {comparable(each[key]) for each in self.members for key in ("sealing", "masking")}
        expect(len(keys) == 2 * len(names), "malformed")
        self.sum_id = sha256(label("") + context(self.given) + payload).digest()
        return None  # the shares are random

    def shares(self, payload):
        found, given = read(payload, for_me)
        self.included = places(found, len(self.members))
        self.enough_samples(self.included)
        owners = [each["place"] for each in given]
        expect(self.own in self.included and len(set(owners)) == len(owners), "malformed")
        expect(set(owners) <= self.included - {self.own}, "malformed")
        self.held = {}
        for each in given:
            owner = self.members[each["place"]]
            use = label("share", 2) + struct.pack(">II", each["place"], self.own) + owner["sealing"] + self.said["sealing"]
            seal = ChaCha20Poly1305(derive(agree(self.sealing, owner["sealing"]), self.sum_id, use))
            try:
                both = seal.decrypt(bytes(12), each["sealed"], None)
            except InvalidTag:
                continue
            self.held[each["place"]] = both[:33], both[33:]
        weights = weights_of(self.members)
        share = weights[self.own] / sum(weights)
        numbers = [round(value * (share * 2.0**42)) for value in self.given["values"]]
        masks = [(1, derive(self.self_seed, self.sum_id, label("self mask")))]
        for place in self.included - {self.own}:
            secret = agree(self.masking, self.members[place]["masking"])
            use = mask_use(self.members, self.own, place)
            masks.append((1 if self.own < place else -1, derive(secret, self.sum_id, use)))
        for sign, key in masks:
            numbers = [a + sign * b for a, b in zip(numbers, mask(key, len(numbers)), strict=True)]
        return struct.pack(f"<{len(numbers)}Q", *(a % 2**64 for a in numbers)).hex()

    def survivors(self, payload):
        data = read(payload, SET)
        self.survived = places(data, len(self.members))
        self.enough_samples(self.survived)
        expect(self.survived <= self.included and self.own in self.survived, "malformed")
        included = sum(1 << k for k in self.included).to_bytes((len(self.members) + 7) // 8, "little")
        self.content = label("survivors") + self.sum_id + included + data
        return self.identity.sign(self.content).hex()

    def open(self, payload):
        said = read(payload, SIGNATURES)
        who = {each["place"] for each in said}
        expect(len(who) == len(said) and who <= self.survived, "malformed")
        self.enough(said)
        for each in said:
            name = self.members[each["place"]]["name"]
            expect(signed(self.voters.get(name, b""), each["signature"], self.content), "wrong signature")
        return [
            [owner, (seed if owner in self.survived else key).hex()]
            for owner, (key, seed) in sorted(self.held.items())
            if owner in self.included
        ]


def check_member(given):
    member, answers, steps = Member(given), [], list(STEPS)
    for step, payload in given["steps"]:
        expect(steps and step == steps.pop(0), "not asked for")
        answers.append(getattr(member, step)(bytes.fromhex(payload)))
    announced = b"".join(member.said[key] for key in ("sealing", "masking", "commitment", "signature"))
    return {"announcement": announced.hex(), "answers": answers}


def recover(shares):
    total = 0
    for point, value in shares.items():
        above = below = 1
        for other in set(shares) - {point}:
            above, below = above * -other % FIELD, below * (point - other) % FIELD
        total += value * above * pow(below, FIELD - 2, FIELD)
    return (total % FIELD).to_bytes(33, "big")[1:]


def right_helpers(known, checks):
    return [k for k in sorted(known.keys() & checks) if sha256(label("check") + known[k]).digest()[:16] == checks[k]]


def is_secret(secret, member, survived):
    if survived:
        return sha256(label("commitment") + secret).digest() == member["commitment"]
    return public(secret) == member["masking"]


def check_sum(given):
    payload = bytes.fromhex(given["roster"])
    members, size = read(payload, ROSTER), given["size"]
    sum_id = sha256(label("") + context(given) + payload).digest()
    total, survivors, shares = [0] * size, [], {}
    given_by = {owner: read(bytes.fromhex(data), GIVEN) for owner, data in given["given"]}
    for place, data in given["masked"]:
        expect(len(data) == 16 * size, "wrong length")
        survivors.append(place)
        total = [a + b for a, b in zip(total, struct.unpack(f"<{size}Q", bytes.fromhex(data)), strict=True)]
    for opener, data in given["opened"]:
        for each in read(bytes.fromhex(data), OPENED):
            shares.setdefault(each["owner"], {})[opener] = each["share"]
    keys = []
    for place in given_by:
        known = shares.get(place, {})
        half = slice(16, 32) if place in survivors else slice(16)
        right = right_helpers(known, {each["place"]: each["checks"][half] for each in given_by[place]})
        some = {helper + 1: int.from_bytes(known[helper], "big") for helper in right[: given["threshold"]]}
        if len(some) < given["threshold"] and place in known:
            some[place + 1] = int.from_bytes(known[place], "big")
        if len(some) < given["threshold"]:
            return {"mean": None, "samples": None}
        secret = recover(some)
        if not is_secret(secret, members[place], place in survivors):
            return {"mean": None, "samples": None}
        if place in survivors:
            keys.append((-1, derive(secret, sum_id, label("self mask"))))
            continue
        for other in survivors:
            shared = derive(agree(secret, members[other]["masking"]), sum_id, mask_use(members, place, other))
            keys.append((-1 if other < place else 1, shared))
    for sign, key in keys:
        total = [a + sign * b for a, b in zip(total, mask(key, size), strict=True)]
    weights = weights_of(members)
    share = sum(weights[place] / sum(weights) for place in sorted(survivors))
    signed_total = [(a + 2**63) % 2**64 - 2**63 for a in total]
    mean = [struct.unpack("<f", struct.pack("<f", a * (1 / (share * 2.0**42))))[0] for a in signed_total]
    assert all(map(isfinite, mean))
    return {"mean": mean, "samples": {members[place]["name"]: members[place]["n_samples"] for place in sorted(survivors)}}


CHECKS = {"announcement": check_announcement, "sum member": check_member, "sum": check_sum}
