"""Shared code of the makers of golden vectors: a federation, its log, and a file of vectors."""

import json
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from unittest import mock

import msgpack
import numpy as np

from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.wire.envelope import EARLIER
from tests.conformance.wire_keys import KEYS
from tests.conformance.wire_project import run

ADMISSION, SUCCESSOR, ALICE, BOB, CAROL, DAVE, MALLORY = KEYS.values()
TENSORS = [["weights", [2, 3]], ["bias", [2]]]
SHAPES = [shape for _, shape in TENSORS]
LAYOUT = bytes.fromhex(run("layout", {"trained": 8, "tensors": TENSORS})["fingerprint"])
INITIAL = np.zeros(8, np.float32)
AGREED = {
    "name": "example",
    "rounds": 5,
    "seed": 7,
    "members": 2,
    "mode": "synchronous",
    "deadline": 30.0,
    "adaptive": False,
    "max_staleness": float("inf"),
    "patience": 0,
    "robust": "median-clip",
    "codec": {"name": "float32"},
    "edges": "all",
    "task": {"name": "digits", "alpha": 0.5},
    "policy": {"name": "dac", "tau": 30.0},
    "model": {"layout": LAYOUT.hex(), "values": 8, "initial": sha256(INITIAL.tobytes()).hexdigest()},
}


@contextmanager
def seeded_randomness(seed):
    """Derive random values from a seed, so that the vectors are reproducible."""
    numbers = count()

    def urandom(size):
        blocks = (sha256(f"{seed} {next(numbers)}".encode()).digest() for _ in range(-(-size // 32)))
        return b"".join(blocks)[:size]

    with mock.patch("os.urandom", urandom):
        yield


class Vectors:
    """Vectors of one file: those of version 6 also hold in version 7, except its frames."""

    def __init__(self, about, protocol=EARLIER):
        self.about, self.protocol = about, protocol
        self.vectors = []

    def good(self, name, check, **given):
        self.vectors.append({"name": name, "check": check, "given": given, "expect": run(check, given)})

    def bad(self, name, check, cause, why, membership_version=None, **given):
        after = {} if membership_version is None else {"membership_version": membership_version}
        self.vectors.append({"name": name, "check": check, "given": given, "cause": cause, "why": why, **after})

    def text(self):
        whole = {"about": self.about, "protocol": self.protocol, "vectors": self.vectors}
        return json.dumps(whole, indent=1, allow_nan=False, ensure_ascii=True) + "\n"


def exact(values):
    """Return values rounded to float32."""
    return [float(np.float32(value)) for value in values]


def pack(value):
    return msgpack.packb(value)


def flipped(data, at=-1):
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def federation(**changes):
    with seeded_randomness("federation"):
        return Federation.sign(AGREED | changes, ADMISSION)


def signed_file(content, identity=ADMISSION):
    signature = identity.sign(b"p2pfl federation 1\0" + content.encode())
    return f"{content}# signature: {signature.hex()}\n"


FILE = federation()
ID = FILE.id


def grown(*steps):
    """Return a log; a step is (action, name, identity) or (action, name, identity, role)."""
    log, admission = Membership(FILE), ADMISSION
    for action, name, identity, *role in steps:
        log.append(admission, action, name, identity.public, *role)
        admission = identity if action == "hand-over" else admission
    return log


ADDED = [("add", "alice", ALICE), ("add", "bob", BOB), ("add", "carol", CAROL)]
LOG = grown(*ADDED)
IN = {"federation": ID.hex(), "admission": ADMISSION.public.hex()}
