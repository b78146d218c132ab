"""Maker of the golden vectors of neighbours by a rule."""

from hashlib import sha256

from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Membership
from tests.conformance.wire_making import ADMISSION, federation

FILE = federation()
NAMES = [f"m{k:02d}" for k in range(24)]


def key_of(name):
    return Identity.from_seed(sha256(name.encode()).digest()).public


def log_of(*steps):
    """Return a log to which all NAMES are added, before further steps: an action, a name, and what the key is made from."""
    log = Membership(FILE)
    for action, name, source in [*(("add", name, name) for name in NAMES), *steps]:
        log.append(ADMISSION, action, name, key_of(source))
    return log


LEFT = [("remove", "m05", "m05"), ("remove", "m17", "m17")]
LOGS = {
    "24 members": (),
    "24 members, of which two have gone": LEFT,
    "two have gone, one has come and one has returned": [*LEFT, ("add", "new", "new"), ("add", "m05", "again")],
    "a member with another key has the same place": [("replace", "m03", "other")],
}


def ring_vectors_of_logs(v):
    base = {"federation": FILE.id.hex(), "admission": ADMISSION.public.hex()}
    for name, steps in LOGS.items():
        v.good(name, "rings", **base, log=log_of(*steps).encode().hex(), seed=7, degree=4, round=0)
    whole = log_of().encode().hex()
    for seed, degree, round in ((7, 2, 0), (8, 4, 0), (7, 10, 0), (7, 4, 1), (7, 4, 2), (7, 18, 300), (2**40, 64, 0)):
        name = f"seed {seed}, degree {degree}, " + (f"changing, in round {round}" if round else "not changing")
        v.good(name, "rings", **base, log=whole, seed=seed, degree=degree, round=round)
    alone = Membership(FILE)
    for count, who in enumerate(NAMES[:3], 1):
        alone.append(ADMISSION, "add", who, key_of(who))
        v.good(f"members: {count}", "rings", **base, log=alone.encode().hex(), seed=7, degree=4, round=0)
