"""Maker of the golden vectors of Merkle trees and checkpoints of the membership log."""

import msgspec

from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.membership.merkle import MerkleTree
from tests.conformance.wire_making import ADMISSION, MALLORY, SUCCESSOR, federation, pack

FILE = federation()
NAMES = [f"m{k}" for k in range(11)]
KEYS = {name: Identity.from_seed(name.encode().ljust(32, b".")).public for name in NAMES}


def log_of(count, *hand_over):
    log = Membership(FILE)
    for name in NAMES[:count]:
        log.append(ADMISSION, "add", name, KEYS[name])
    for key in hand_over:
        log.append(ADMISSION, "hand-over", "", key.public)
    return log


def tree_vectors(v):
    leaves = [name.encode() * k for k, name in enumerate(NAMES)]
    for count in (1, 2, 3, 4, 7, 8, 11):
        tree = MerkleTree(leaves[:count])
        for index in {0, count // 2, count - 1}:
            given = {"leaf": leaves[index].hex(), "index": index, "size": count, "root": tree.root.hex()}
            proof = [each.hex() for each in tree.proof(index)]
            v.good(f"leaf {index} of {count}", "inclusion", **given, proof=proof)
    tree = MerkleTree(leaves)
    given = {"leaf": leaves[5].hex(), "index": 5, "size": 11, "root": tree.root.hex()}
    proof = [each.hex() for each in tree.proof(5)]
    for name, why, changes in [
        ("another leaf", "it is not there", {"leaf": leaves[4].hex()}),
        ("another index", "it is leaf 5", {"index": 4}),
        ("an index that is too large", "there are 11", {"index": 11}),
        ("another size", "the proof has the length of more leaves", {"size": 8}),
        ("another root", "of ten leaves", {"root": MerkleTree(leaves[:10]).root.hex()}),
        ("a hash more", "the way has ended", {"proof": [*proof, proof[0]]}),
        ("a hash less", "the way has not ended", {"proof": proof[:-1]}),
        ("no hash", "the way has not ended", {"proof": []}),
        ("two hashes exchanged", "from below", {"proof": [proof[1], proof[0], *proof[2:]]}),
    ]:
        v.bad(name, "inclusion", "membership", why, **{**given, "proof": proof, **changes})


def checkpoint_vectors(v):
    base = {"federation": FILE.id.hex(), "admission": ADMISSION.public.hex()}
    log = log_of(11)
    made = checkpoint.make(log, ADMISSION, ["m3", "m10"])
    v.good("two of eleven members", "checkpoint", **base, bytes=made.hex())
    v.good("one of one", "checkpoint", **base, bytes=checkpoint.make(log_of(1), ADMISSION, ["m0"]).hex())
    v.good("nobody", "checkpoint", **base, bytes=checkpoint.make(log, ADMISSION, []).hex())
    handed = log_of(5, SUCCESSOR)
    after = checkpoint.make(handed, SUCCESSOR, ["m1"])
    v.good("after a hand-over", "checkpoint", **base, bytes=after.hex())
    more = log_of(4)
    more.append(ADMISSION, "remove", "m2", KEYS["m2"])
    more.append_extension(ADMISSION, 99)
    v.good("after a removal and an extension", "checkpoint", **base, bytes=checkpoint.make(more, ADMISSION, ["m3"]).hex())
    parts = msgspec.msgpack.decode(made)
    old = msgspec.msgpack.decode(checkpoint.make(log_of(4), ADMISSION, ["m2"]))
    new = msgspec.msgpack.decode(checkpoint.make(more, ADMISSION, []))
    content = msgspec.msgpack.decode(parts[0])
    foreign = pack([bytes(16), *content[1:]])
    by = b"p2pfl membership checkpoint 1\0"
    handed_parts = msgspec.msgpack.decode(after)
    place, leaf, proof = parts[3][0]
    for name, why, data in [
        ("signed by another key", "mallory's", checkpoint.make(log, MALLORY, ["m3"])),
        ("signed by the former key", "it was handed over", checkpoint.make(handed, ADMISSION, ["m1"])),
        ("without the hand-over", "the successor has signed it", pack([*handed_parts[:2], [], handed_parts[3]])),
        ("with a hand-over that is none", "the first entry adds m0", pack(
            [*parts[:2], msgspec.msgpack.decode(log.after(0, 250)), parts[3]])),
        ("without a label", "a signature of something else", pack([parts[0], ADMISSION.sign(parts[0]), *parts[2:]])),
        ("another federation", "names another federation", pack([foreign, ADMISSION.sign(by + foreign), *parts[2:]])),
        ("a removed member", "it was in an earlier tree", pack([*new[:3], old[3]])),
        ("another index", "m3 is at 4", pack([*parts[:3], [[place + 1, leaf, proof]]])),
        ("a leaf of five", "four fields", pack([*parts[:3], [[place, pack([*msgspec.msgpack.decode(leaf), 1]), proof]]])),
        ("a proof of 33 hashes", "at most 32", pack([*parts[:3], [[place, leaf, [bytes(32)] * 33]]])),
        ("65 members", "at most 64", pack([*parts[:3], parts[3][:1] * 65])),
        ("17 hand-overs", "at most 16", pack([*parts[:2], handed_parts[2] * 17, parts[3]])),
        ("trailing bytes", "one byte more", made + b"\0"),
        ("nothing", "no value at all", b""),
    ]:  # fmt: skip
        v.bad(name, "checkpoint", "membership", why, **base, bytes=data.hex())
