"""Maker of the golden vectors of elections and coordinated rounds."""

import numpy as np

from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, Payload
from p2pfl.protocols.wire.payload import encode_assignment, encode_submission
from tests.conformance.wire_making import SHAPES, Vectors, exact, pack

MOST = 2**32 - 1
VALUES, STARTED = exact([1, -2.5, 0.1, 3e-5, -0.0, 100, 65504, 1e6]), exact([0, 0, 0, 0.5, 1, 2, 3, 4])
EXTRAS = {"update norm": np.array([0.25], np.float32)}
PREVIOUS = {"cluster": np.array([0, 1], np.int64), "figures": np.array([3, 1, 0.5, 2.0])}


def floats(values):
    return np.array(values, "<f4").tobytes()


def coordination_messages():
    """Return each message of these kinds with its payload."""
    submission = Payload.of(floats(VALUES), encode_submission(EXTRAS, PREVIOUS))
    assignment = Payload.of(floats(VALUES), encode_assignment({"alice": 0.5, "bob": 0.5}, PREVIOUS))
    return [
        (m.Vote(3, 8, True), EMPTY),
        (m.Vote(3, 8, False), EMPTY),
        (m.Vote(MOST, MOST, True), EMPTY),
        (m.Voted(3, 8, True, True), EMPTY),
        (m.Voted(3, 7, False, False), EMPTY),
        (m.Leading(3, 8, 1), EMPTY),
        (m.Following(3, 8, 1), EMPTY),
        (m.Following(3, 9, 0), EMPTY),
        (m.Submit(1, 4, 3, 8, 50, False), submission),
        (m.Submit(MOST, MOST, MOST, MOST, MOST, True), submission),
        (m.Assigned(1, 4, 3, 8, True), assignment),
        (m.Assigned(1, 4, 3, 9, False), EMPTY),
    ]


WRONG_MESSAGES = [
    ("a vote without a trial", "a field less", ["vote", 3, 8]),
    ("a trial as a number", "1", ["vote", 3, 8, 1]),
    ("a term of 33 bits", "2^32", ["vote", 3, 2**32, True]),
    ("a negative term", "-1", ["leading", 3, -1, 1]),
    ("a membership version that is a float", "3.0", ["leading", 3.0, 8, 1]),
    ("a beat that is nil", "no number", ["following", 3, 8, None]),
    ("a vote with a name", "a field more", ["vote", 3, 8, True, "alice"]),
    ("a grant as text", "no boolean", ["voted", 3, 8, True, "yes"]),
    ("a submission without a term", "five of six fields", ["submit", 1, 4, 3, 50, False]),
    ("a start in bytes", "the model is in the payload", ["submit", 1, 4, 3, 8, 50, b""]),
    ("an assignment without an answer", "four of five fields", ["assigned", 1, 4, 3, 8]),
]


def coordination_vectors() -> Vectors:
    v = Vectors("What a member that does not stand answers in an election, and what participants and coordinators send.")
    election_vectors(v)
    submission_vectors(v)
    assignment_vectors(v)
    submit_vectors(v)
    assigned_vectors(v)
    return v


def election_vectors(v):
    three = {"membership_version": 3, "members": ["alice", "bob", "carol"], "eligible": ["alice", "bob"]}
    base = {"me": "carol", "electorate": three, "term": 7, "vote": "alice", "started": 0}

    def good(name, *heard, **changes):
        v.good(name, "election", **base | changes, heard=[list(each) for each in heard])

    def bad(name, why, *heard, **changes):
        v.bad(name, "election", "election", why, **base | changes, heard=[list(each) for each in heard])

    trial, vote, beat = ["vote", 3, 8, True], ["vote", 3, 8, False], ["leading", 3, 8, 1]
    good("a trial binds nobody", (2, "alice", trial), (2, "bob", trial))
    good("a trial for the present term is refused", (2, "bob", ["vote", 3, 7, True]))
    good("a trial for an earlier term is refused", (2, "bob", ["vote", 3, 6, True]))
    good("one vote in a term", (2, "bob", vote), (2, "alice", vote), (2.5, "bob", vote))
    good("the vote of the present term is given again", (2, "alice", ["vote", 3, 7, False]))
    good("and to nobody else", (2, "bob", ["vote", 3, 7, False]))
    good("an earlier term is refused, and told of the later one", (2, "alice", ["vote", 3, 6, False]))
    good("who has just started supports nobody", (1.99, "alice", trial), (1.99, "alice", vote), (2, "alice", vote))
    good("and adopts no term by that", (1, "bob", ["vote", 3, 100, False]))
    good("a coordinator is followed at once", (0.5, "bob", beat), (0.9, "bob", ["leading", 3, 8, 2]))
    good("who follows supports no other for its patience", (5, "bob", beat), (6.99, "alice", ["vote", 3, 9, True]))
    good("but does afterwards", (5, "bob", beat), (7, "alice", ["vote", 3, 9, False]))
    good("and the coordinator itself at once", (5, "bob", beat), (5.5, "bob", ["vote", 3, 9, False]))
    good("an overtaken beat is passed over", (5, "bob", ["leading", 3, 8, 3]), (6, "bob", ["leading", 3, 8, 2]))
    good("a beat that came before is passed over", (5, "bob", beat), (6.9, "bob", beat), (7, "alice", ["vote", 3, 9, True]))
    good("a coordinator of an earlier term is told so", (5, "bob", beat), (5.1, "alice", ["leading", 3, 7, 9]))
    good("one of a later term is followed", (5, "bob", beat), (5.1, "alice", ["leading", 3, 9, 1]))
    good("a refusal that was not asked for tells nothing", (5, "bob", ["voted", 3, 9, True, False]))
    good("a grant of another's tells nothing", (5, "bob", ["voted", 3, 9, True, True]))
    good("an answer of a later term ends the own one", (5, "bob", beat), (5.1, "alice", ["following", 3, 9, 0]))
    good("another membership version is passed over", (5, "bob", ["vote", 2, 8, False]), (5, "bob", ["leading", 4, 1, 1]))
    good("strangers and oneself are passed over", (5, "dave", vote), (5, "carol", beat))
    last = (5, "bob", ["leading", 3, MOST, MOST]), (9, "alice", ["vote", 3, MOST, True])
    good("the last term", *last, term=MOST - 1)
    good("a term 1,024 ahead", (5, "bob", ["leading", 3, 7 + 1024, 1]))
    alone = {"electorate": three | {"eligible": ["alice"]}}
    bad("a candidate that may only vote", "bob is not eligible", (5, "bob", vote), **alone)
    bad("a coordinator that may only vote", "bob is not eligible", (5, "bob", beat), **alone)
    for kind, more in (("vote", [True]), ("voted", [True, False]), ("leading", [1]), ("following", [0])):
        bad(f"a {kind} of a term 1,025 ahead", "claimed by one member", (5, "bob", [kind, 3, 7 + 1025, *more]))
    bad("two coordinators in one term", "one of them lies", (5, "bob", beat), (5.1, "alice", beat))


def submission_vectors(v):
    base = {"tensors": SHAPES, "start": False}
    model, start, rest = floats(VALUES), floats(STARTED), encode_submission(EXTRAS, PREVIOUS)

    def good(name, data, **changes):
        v.good(name, "submission", **base | changes, bytes=data.hex())

    def bad(name, cause, why, data, **changes):
        v.bad(name, "submission", cause, why, **base | changes, bytes=data.hex())

    good("a model alone", model)
    good("with the one from which the round began", model + start, start=True)
    good("with extras", model + rest)
    good("with both", model + start + rest, start=True)
    good("without extras, in full", model + pack([[], []]))
    good("extras alone", model + encode_submission(EXTRAS, {}))
    good("what was assigned alone", model + encode_submission({}, PREVIOUS))
    good("the same names in both", model + encode_submission(EXTRAS, EXTRAS))
    bad("a byte less", "wrong length", "31 bytes", model[:-1])
    bad("the second model is missing", "wrong length", "start is set", model, start=True)
    bad("a byte of the second model is missing", "wrong length", "63 bytes", (model + start)[:-1], start=True)
    bad("a second model that was not announced", "wrong length", "what follows is no pair", model + start)
    bad("extras of an update", "wrong length", "an array of arrays, no pair", model + pack([["x", "f4", [0], b""]]))
    bad("one of the two", "wrong length", "an array of one", model + pack([[]]))
    bad("three", "wrong length", "an array of three", model + pack([[], [], []]))
    bad("a map", "wrong length", "no array", model + pack({}))
    bad("nil in place of what was assigned", "wrong length", "no array", model + pack([[], None]))
    bad("trailing bytes", "wrong length", "one byte more", model + rest + b"\0")
    bad("seventeen arrays", "wrong length", "at most 16", model + pack([[], [[f"{k}", "f4", [0], b""] for k in range(17)]]))
    bad("an array of another type", "wrong length", "O", model + pack([[["a", "O", [1], bytes(8)]], []]))
    bad("a long name", "wrong length", "65 characters", model + pack([[["x" * 65, "f4", [0], b""]], []]))
    bad("the same name twice", "malformed", "a and a", model + pack([[["a", "f4", [0], b""]] * 2, []]))
    bad(
        "data of another length",
        "malformed",
        "4 bytes for 2^24 values",
        model + pack([[], [["a", "f4", [2**24], bytes(4)]]]),
    )
    bad("a value that is no number", "not finite", "the first", floats([np.nan, *VALUES[1:]]))
    bad("an infinite value", "not finite", "the last", floats([*VALUES[:-1], np.inf]))
    wrong = floats([*STARTED[:-1], -np.inf])
    bad("an infinite value in the second model", "not finite", "the last", model + wrong, start=True)


def assignment_vectors(v):
    model, weights = floats(VALUES), {"alice": 0.25, "bob": 0.75}

    def good(name, data):
        v.good(name, "assignment", tensors=SHAPES, bytes=data.hex())

    def bad(name, cause, why, data):
        v.bad(name, "assignment", cause, why, tensors=SHAPES, bytes=data.hex())

    good("a model and its weights", model + encode_assignment(weights, {}))
    good("with extras", model + encode_assignment(weights, PREVIOUS))
    good("a weight as an integer", model + pack([[["alice", 1]], []]))
    good("a weight as float 32", model + b"\x92\x91\x92\xa5alice\xca\x3e\x80\0\0\x90")
    good("no weights", model + pack([[], []]))
    good("of one alone", model + encode_assignment({"x" * 64: 1.0}, {}))
    bad("a byte less", "wrong length", "31 bytes", model[:-1])
    bad("nothing after the model", "wrong length", "an assignment has weights", model)
    bad("weights alone", "wrong length", "no pair", model + pack([[["alice", 1.0]]]))
    bad("weights as a map", "wrong length", "no array", model + pack([{"alice": 1.0}, []]))
    bad("a weight that is no number", "wrong length", "NaN", model + pack([[["alice", float("nan")]], []]))
    bad("an infinite weight", "wrong length", "inf", model + pack([[["alice", float("inf")]], []]))
    bad("a weight as text", "wrong length", "1", model + pack([[["alice", "1"]], []]))
    bad("a weight as a boolean", "wrong length", "true", model + pack([[["alice", True]], []]))
    bad("no name", "wrong length", "1 to 64 characters", model + pack([[["", 1.0]], []]))
    bad("a long name", "wrong length", "65 characters", model + pack([[["x" * 65, 1.0]], []]))
    bad("a name in bytes", "wrong length", "no text", model + pack([[[b"alice", 1.0]], []]))
    bad("three for one", "wrong length", "a field more", model + pack([[["alice", 1.0, 1]], []]))
    bad("one counts twice", "malformed", "alice and alice", model + pack([[["alice", 0.5], ["alice", 0.5]], []]))
    bad("trailing bytes", "wrong length", "one byte more", model + encode_assignment(weights, {}) + b"\0")
    bad("the same extra twice", "malformed", "a and a", model + pack([[], [["a", "f4", [0], b""]] * 2]))
    bad("a model that is not finite", "not finite", "NaN", floats([np.nan] * 8) + encode_assignment(weights, {}))


def submit_vectors(v):
    message = {"request": 7, "round": 4, "membership_version": 3, "term": 8, "n_samples": 50, "start": False}
    base = {
        "term": [3, 8],
        "coordinates": True,
        "voters": ["alice", "bob"],
        "public_info": {"n_samples": 50},
        "tensors": SHAPES,
    }
    base |= {"norm": 2000.0, "message": message, "payload": floats(VALUES).hex()}

    def good(name, **changes):
        v.good(name, "submit", **base | changes)

    def bad(name, cause, why, **changes):
        v.bad(name, "submit", cause, why, **base | changes)

    good("to the coordinator of its term")
    both = (floats(VALUES) + floats(STARTED) + encode_submission(EXTRAS, PREVIOUS)).hex()
    good("with all that there may be", message=message | {"start": True}, payload=both)
    good("of an observer", voters=["bob"])
    bad("in an earlier term", "lower term", "7, not 8", message=message | {"term": 7})
    bad(
        "in an earlier membership version",
        "lower term",
        "2.9 is before 3.8",
        message=message | {"membership_version": 2, "term": 9},
    )
    bad("in an earlier term, which it leads no more", "lower term", "7", message=message | {"term": 7}, coordinates=False)
    bad("in a later term", "not the coordinator", "9, not 8", message=message | {"term": 9})
    bad(
        "in a later membership version",
        "not the coordinator",
        "4.1 is after 3.8",
        message=message | {"membership_version": 4, "term": 1},
    )
    bad("to one who does not coordinate", "not the coordinator", "another one may", coordinates=False)
    bad("another number of samples", "differs", "51, not 50", message=message | {"n_samples": 51})
    bad("a number that was never said", "differs", "none at the introduction", public_info={})
    bad("too large a model", "too large", "a norm of 1e6, at most 1000", norm=0.0)
    large = floats(STARTED) + floats([3e38] * 8)
    bad("too large a model to begin from", "too large", "1e38", message=message | {"start": True}, payload=large.hex())
    bad("no model", "wrong length", "no bytes", payload="")
    bad("a value that is no number", "not finite", "NaN", payload=floats([np.nan] * 8).hex())


def assigned_vectors(v):
    payload = floats(VALUES) + encode_assignment({"alice": 0.5, "bob": 0.5}, PREVIOUS)
    message = {"request": 7, "round": 4, "membership_version": 3, "term": 8, "given": True}
    asked = {"request": 7, "round": 4, "of": "alice", "term": [3, 8]}
    base = {
        "term": [3, 8],
        "follows": "alice",
        "voters": ["alice", "bob"],
        "asked": asked,
        "tensors": SHAPES,
        "norm": 2000.0,
    }
    base |= {"message": message, "payload": payload.hex()}

    def good(name, **changes):
        v.good(name, "assigned", **base | changes)

    def bad(name, cause, why, **changes):
        v.bad(name, "assigned", cause, why, **base | changes)

    good("what was asked for")
    good("nothing will come of it", message=message | {"given": False}, payload="")
    good("another request is passed over", message=message | {"request": 8})
    bad("of an earlier term", "lower term", "7, not 8", message=message | {"term": 7})
    bad(
        "of an earlier membership version",
        "lower term",
        "2.9 is before 3.8",
        message=message | {"membership_version": 2, "term": 9},
    )
    bad("of an earlier term, and another request", "lower term", "7", message=message | {"term": 7, "request": 8})
    bad("the term has ended since", "lower term", "9 is known here", term=[3, 9], follows="")
    bad("of a later term", "not asked for", "9, not 8", message=message | {"term": 9})
    bad("of another round", "not asked for", "3, not 4", message=message | {"round": 3})
    bad("of another than was asked", "not asked for", "carol was", asked=asked | {"of": "carol"}, follows="carol")
    bad("of one who is not followed any more", "not asked for", "nobody is", follows="")
    bad("nothing, of another than was asked", "not asked for", "carol was", **REFUSED | {"asked": asked | {"of": "carol"}})
    bad("too large a model", "too large", "a norm of 1e6, at most 1000", norm=0.0)
    bad("a short model", "wrong length", "31 bytes", payload=payload[:31].hex())
    bad("a value that is no number", "not finite", "NaN", payload=(floats([np.nan] * 8) + payload[32:]).hex())
    bad("nothing, with a payload", "wrong length", "a model that is not given", message=message | {"given": False})
    bad("weights of an observer", "differs", "alice", voters=["bob"])


REFUSED = {
    "message": {"request": 7, "round": 4, "membership_version": 3, "term": 8, "given": False},
    "payload": "",
    "follows": "carol",
}
