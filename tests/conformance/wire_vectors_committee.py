"""Maker of the golden vectors of committees and certificates of terms."""

from hashlib import sha256

import msgspec
import numpy as np

from p2pfl.protocols import term_certificates
from p2pfl.protocols.election import Term
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import CommitteeEntry, Membership, Signed, signature_label
from p2pfl.protocols.term_certificates import Certificate
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, Payload
from tests.conformance.wire_making import ADMISSION, SHAPES, exact, federation, flipped, pack

MOST = 2**32 - 1
MEAN = np.array(exact([1, -2.5, 0.1, 3e-5, -0.0, 100, 65504, 1e6]), "<f4").tobytes()
NAMES = ("ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hal")
OWN = {name: Identity.from_seed(name.encode().ljust(32, b".")) for name in NAMES}
FILE = federation(committee=5)
TERM = Term(5, 2)

WRONG_COMMITTEE_MESSAGES = [
    ("a signed vote with a trial", "a field more", ["signed_vote", 3, 8, True]),
    ("a certificate without a term", "a field less", ["term_certificate", 3]),
    ("a question with a name", "no number", ["which_term", 3, "alice"]),
    ("the mean of a group with samples", "they are in the payload", ["group_mean", 1, 4, 3, 8, 50]),
    ("a term that ended before it began", "-1", ["term_over", 3, -1]),
]


def committee_messages():
    """Return each message of these kinds with its payload."""
    return [
        (m.SignedVote(3, 8), Payload.of(bytes(64))),
        (m.TermCertificate(3, 8), Payload.of(certificate("ada", NAMES[:3]).encode())),
        (m.WhichTerm(MOST, MOST), EMPTY),
        (m.TermOver(3, 0), EMPTY),
        (m.GroupMean(1, 4, 3, 8), Payload.of(MEAN, pack([["ada", 50], ["ben", 20]]))),
    ]


def certificate(of, voters, term=TERM, candidate=None, federation_id=FILE.id):
    key = OWN[candidate or of].public
    return Certificate(of, {name: term_certificates.sign_vote(OWN[name], federation_id, term, key) for name in voters})


def log_of(*steps):
    log = Membership(FILE)
    for action, *rest in steps:
        if action == "committee":
            log.append_committee(ADMISSION, *rest)
        else:
            name, *role = rest
            log.append(ADMISSION, action, name, OWN[name].public, *role)
    return log


def by_hand(log, keys, lost=False):
    """Return a log with an entry that the project refuses to make."""
    before = msgspec.msgpack.decode(log.encode(), type=list[Signed])
    hashed = msgspec.msgpack.encode(before[-1])
    entry = CommitteeEntry(FILE.id, len(before) + 1, sha256(hashed).digest(), "committee", keys, lost)
    content = msgspec.msgpack.encode(entry)
    return [*before, Signed(content, ADMISSION.sign(signature_label(entry) + content))]


def committee_vectors_of_logs(v):
    base = {"federation": FILE.id.hex(), "admission": ADMISSION.public.hex(), "committee": 5}
    added = [("add", name) for name in NAMES[:7]]

    def good(name, *steps):
        v.good(name, "committee", **base, log=log_of(*steps).encode().hex())

    def bad(name, why, keys, lost=False):
        log = log_of(*added, ("add", "hal", "observer"))
        entries = msgspec.msgpack.encode(by_hand(log, keys, lost))
        v.bad(name, "committee", "membership", why, **base, log=entries.hex())

    good("three members", *added[:3])
    good("the first five of seven", *added)
    good("an observer is in none", ("add", "hal", "observer"), *added)
    good("an eligible member comes first", *added[:6], ("add", "gus", "coordinator-eligible"))
    good("one was revoked", *added, ("remove", "ben"))
    good("a later member changes nothing", *added, ("add", "hal"), ("remove", "hal"))
    good("one was replaced by name", *added, ("committee", ["ada", "cleo", "dan", "eve", "gus"]))
    good("the same again", *added, ("committee", ["ada", "ben", "cleo", "dan", "eve"]))
    named = ("committee", ["cleo", "dan", "eve", "finn", "gus"])
    good("one of those named was revoked", *added, named, ("remove", "finn"))
    good("the earlier ones are lost", *added, named, ("committee", ["ada", "ben", "cleo", "dan", "eve"], True))
    keys = [OWN[name].public for name in NAMES]
    bad("four of five", "five are needed", keys[:4])
    bad("six", "five are needed", keys[:6])
    bad("one twice", "ada and ada", [*keys[:4], keys[0]])
    bad("an observer", "hal", [*keys[:4], keys[7]])
    bad("a stranger", "no member's key", [*keys[:4], Identity.from_seed(bytes(32)).public])


def certificate_vectors(v):
    committee = {name: OWN[name].public.hex() for name in NAMES[:5]}
    base = {"federation": FILE.id.hex(), "term": list(TERM), "committee": committee, "eligible": ["ada", "ben", "cleo"]}

    def good(name, data, **changes):
        v.good(name, "term certificate", **base | changes, bytes=data.hex())

    def bad(name, cause, why, data, **changes):
        v.bad(name, "term certificate", cause, why, **base | changes, bytes=data.hex())

    three = certificate("ada", NAMES[:3]).encode()
    good("three of five", three)
    good("all five", certificate("cleo", NAMES[:5]).encode())
    good("without the coordinator's own vote", certificate("ada", NAMES[1:4]).encode())
    bad("two of five", "election", "three are needed", certificate("ada", NAMES[:2]).encode())
    bad("a member outside", "election", "finn", certificate("ada", [*NAMES[:3], "finn"]).encode())
    bad("a coordinator that cannot be elected", "election", "dan", certificate("dan", NAMES[:3]).encode())
    bad("votes for another", "election", "for ben", certificate("ada", NAMES[:3], candidate="ben").encode())
    bad("votes of another term", "election", "5.1", certificate("ada", NAMES[:3], Term(5, 1)).encode())
    bad("votes of another committee version", "election", "4.2", certificate("ada", NAMES[:3], Term(4, 2)).encode())
    bad("votes of another federation", "election", "zeros", certificate("ada", NAMES[:3], federation_id=bytes(16)).encode())
    bad("a changed signature", "election", "its last bit", flipped(three))
    bad("a short signature", "malformed", "63 bytes", pack(["ada", {"ada": bytes(63)}]))
    bad("ten votes", "malformed", "at most nine", pack(["ada", {f"n{k}": bytes(64) for k in range(10)}]))
    bad("no coordinator", "malformed", "an array of one", pack([{"ada": bytes(64)}]))
    bad("a field more", "malformed", "three", pack(["ada", {}, 1]))
    bad("trailing bytes", "malformed", "one byte more", three + b"\0")


def group_vectors(v):
    base = {"tensors": SHAPES, "group": {"ada": 50, "ben": 20, NAMES[2]: 0}}

    def good(name, rest):
        v.good(name, "group mean", **base, bytes=(MEAN + rest).hex())

    def bad(name, cause, why, data):
        v.bad(name, "group mean", cause, why, **base, bytes=data.hex())

    good("two members", pack([["ada", 50], ["ben", 20]]))
    good("one without samples", pack([[NAMES[2], 0]]))
    bad("nobody", "malformed", "an empty array", MEAN + pack([]))
    bad("a stranger", "differs", "zoe is not in the group", MEAN + pack([["ada", 50], ["zoe", 20]]))
    good("more samples than the members have", pack([["ada", 50], ["ben", 21]]))
    good("fewer samples than the members have", pack([["ada", 49], ["ben", 20]]))
    bad("one twice", "malformed", "ada and ada", MEAN + pack([["ada", 50], ["ada", 20]]))
    bad("a byte less", "wrong length", "31 bytes", MEAN[:-1])
    bad("nothing after the mean", "wrong length", "the samples are needed", MEAN)
    bad("a map", "wrong length", "no array", MEAN + pack({"ada": 50}))
    bad("half a sample", "wrong length", "0.5", MEAN + pack([["ada", 0.5]]))
    bad("33 bits", "wrong length", "2^32", MEAN + pack([["ada", 2**32]]))
    bad("trailing bytes", "wrong length", "one byte more", MEAN + pack([["ada", 50]]) + b"\0")
    wrong = np.array([np.nan] * 8, "<f4").tobytes()
    bad("a mean that is not finite", "not finite", "NaN", wrong + pack([["ada", 50]]))
