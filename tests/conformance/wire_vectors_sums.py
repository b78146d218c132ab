"""Maker of the golden vectors of secure sums."""

import random

import numpy as np
from msgpack import unpackb as unpacked

from p2pfl.protocols.secure_sums import STEPS, SumCollector, SumContext, SumMember
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, Payload
from tests.conformance.wire_keys import KEYS, SEEDS
from tests.conformance.wire_making import ID, exact, flipped, pack

MOST = 2**32 - 1
NAMES = ("alice", "bob", "carol", "dave")
SAMPLES = {"alice": 50, "bob": 20, "carol": 70, "dave": 1}
MODELS = {
    "alice": exact([1, -2.5, 0.1, 3e-5]),
    "bob": exact([0, 0, 2**20, -(2**20)]),
    "carol": exact([-0.5, 1e-12, 2**20, -(2**20)]),
    "dave": exact([100, 7, -1, 0.25]),
}
ROUND = {"federation": ID.hex(), "term": [3, 8], "round": 4}
SECRETS = {
    name: {key: f"{40 + 3 * k + j:02x}" * 32 for j, key in enumerate(("sealing", "masking", "self_seed"))}
    for k, name in enumerate(NAMES)
}
WRONG_SUM_MESSAGES = [
    ("a step that does not exist", "close", ["sum_request", 1, 4, 3, 8, "close"]),
    ("an announcement that is asked for", "announce is no step of the coordinator", ["sum_request", 1, 4, 3, 8, "announce"]),
    ("an answer without a step", "four of five fields", ["sum_answer", 1, 4, 3, 8]),
]


def sum_messages():
    """Return each message of these kinds with its payload."""
    return [
        (m.SumRequest(1, 4, 3, 8, "roster"), Payload.of(b"\x90")),
        (m.SumRequest(MOST, MOST, MOST, MOST, "survivors"), EMPTY),
        (m.SumAnswer(1, 4, 3, 8, "announce"), Payload.of(bytes(160))),
        (m.SumAnswer(MOST, MOST, MOST, MOST, "survivors"), Payload.of(bytes(64))),
        (m.SumAnswer(1, 4, 3, 8, "open"), EMPTY),
    ]


def played(lost=lambda step, name: False, names=NAMES):
    """Return a round: by step and name the request and the answer; and its members."""
    context = SumContext(ID, 3, 8, 4)
    members, source = {}, random.Random(7).randbytes
    for name in names:
        own = [bytes.fromhex(secret) for secret in SECRETS[name].values()]
        members[name] = SumMember(
            name,
            KEYS[name],
            context,
            np.array(MODELS[name], np.float32),
            SAMPLES[name],
            keys=lambda other: KEYS[other].public,
            threshold=3,
            source=lambda size, own=own: own.pop(0) if own else source(size),
        )
    collector = SumCollector(context, [member.announcement for member in members.values()], 3, 4)
    said = {}
    for step in STEPS:
        for name in collector.begin(step):
            if not lost(step, name):
                request = collector.request(step, name)
                answer = members[name].answer(step, request)
                said[step, name] = request, answer
                collector.take(step, name, KEYS[name].public, answer)
    return said, members


def sum_vectors_of_members(v):
    announcement_vectors(v)
    member_vectors(v)
    sum_vectors(v)


def announcement_vectors(v):
    _, members = played()
    data = members["alice"].announcement.encode()
    base = ROUND | {"key": KEYS["alice"].public.hex(), "n_samples": 50}

    def bad(name, cause, why, data, **changes):
        v.bad(name, "announcement", cause, why, **base | changes, bytes=data.hex())

    v.good("an announcement", "announcement", **base, bytes=data.hex())
    bad("a byte less", "wrong length", "159 bytes", data[:-1])
    bad("a byte more", "wrong length", "161 bytes", data + b"\0")
    bad("another signature", "wrong signature", "one bit", flipped(data))
    bad("another key", "wrong signature", "one bit of the masking key", flipped(data, 40))
    bad("of another member", "wrong signature", "bob has not signed it", data, key=KEYS["bob"].public.hex())
    bad("of other samples", "wrong signature", "51, not 50", data, n_samples=51)
    bad("of another round", "wrong signature", "5, not 4", data, round=5)
    bad("of another term", "wrong signature", "9, not 8", data, term=[3, 9])
    bad("of another membership version", "wrong signature", "4, not 3", data, term=[4, 8])
    bad("of another federation", "wrong signature", "zeros", data, federation=bytes(16).hex())
    for at, what in ((0, "sealing"), (32, "masking")):
        content = data[:at] + bytes(32) + data[at + 32 : 96]
        head = b"p2pfl secure sum announcement 1\0" + SumContext(ID, 3, 8, 4).encode() + (50).to_bytes(4, "big")
        weak = content + KEYS["alice"].sign(head + content)
        bad(f"a {what} key of small order", "malformed", "the shared secret is 0", weak)
    for what, key in (("equal keys", data[:32]), ("keys that differ in bit 255", data[:31] + bytes([data[31] ^ 128]))):
        content = data[:32] + key + data[64:96]
        bad(what, "malformed", "they give equal secrets", content + KEYS["alice"].sign(head + content))


def member_vectors(v):
    said, _ = played()
    early, _ = played(lambda step, name: (step, name) == ("roster", "dave"))
    late, _ = played(lambda step, name: (step, name) == ("shares", "dave"))
    base = ROUND | SECRETS["alice"] | {"me": "alice", "seed": SEEDS["alice"].hex(), "n_samples": 50, "threshold": 3}
    base |= {"values": MODELS["alice"], "voters": {name: KEYS[name].public.hex() for name in NAMES}}

    def steps(run, until="open"):
        return [[step, run[step, "alice"][0].hex()] for step in STEPS[: STEPS.index(until) + 1]]

    def bad(name, cause, why, step, payload, run=said, **changes):
        before = steps(run, step)[:-1]
        v.bad(name, "sum member", cause, why, **base | changes, steps=[*before, [step, payload.hex()]])

    v.good("all take part", "sum member", **base, steps=steps(said))
    v.good("one has given no shares", "sum member", **base, steps=steps(early))
    v.good("the masked model of one has not come", "sum member", **base, steps=steps(late))
    v.good("no step is asked", "sum member", **base, steps=[])
    included, sealed = pack([b"\x0f", []]), list(map(list, unpacked(said["shares", "alice"][0])[1]))
    v.good("no shares come", "sum member", **base, steps=[*steps(said, "roster"), ["shares", included.hex()]])
    spoilt = pack([b"\x0f", [[place, flipped(data)] for place, data in sealed]])
    v.good("no share opens", "sum member", **base, steps=[*steps(said, "roster"), ["shares", spoilt.hex()]])
    roster = said["roster", "alice"][0]
    entries = unpacked(roster)
    bad("another step first", "not asked for", "shares before the roster", "roster", b"")
    v.vectors[-1]["given"]["steps"] = [["shares", included.hex()]]
    v.bad("a step twice", "sum member", "not asked for", "the roster", **base, steps=[*steps(said, "roster")] * 2)
    v.bad("after the last", "sum member", "not asked for", "open", **base, steps=[*steps(said), steps(said)[-1]])
    bad("no roster", "malformed", "nil", "roster", b"\xc0")
    bad("trailing bytes", "malformed", "one byte more", "roster", roster + b"\0")
    bad("a roster out of order", "malformed", "dave first", "roster", pack([entries[3], *entries[:3]]))
    bad("one twice", "malformed", "bob and bob", "roster", pack([entries[0], entries[1], *entries[1:]]))
    bad("too short a roster", "malformed", "two of three", "roster", pack(entries[:2]))
    bad("one without a vote", "malformed", "dave", "roster", roster, voters={n: KEYS[n].public.hex() for n in NAMES[:3]})
    changed = [*entries[:2], [*entries[2][:5], flipped(entries[2][5])], entries[3]]
    bad("a roster that one has not signed so", "wrong signature", "carol", "roster", pack(changed))
    bad("of another round", "wrong signature", "5, not 4", "roster", roster, round=5)
    bad("a roster without the member", "malformed", "alice is missing", "roster", pack(entries[1:]))
    other = [[*entries[0][:1], 49, *entries[0][2:]], *entries[1:]]
    bad("with other samples of the member", "malformed", "49, not 50", "roster", pack(other))

    def announced(place, **changes):
        """Return the roster with one announcement changed by its member."""
        names = ("name", "n_samples", "sealing", "masking", "commitment", "signature")
        entry = dict(zip(names, entries[place], strict=True)) | changes
        head = b"p2pfl secure sum announcement 1\0" + SumContext(ID, 3, 8, 4).encode()
        content = entry["n_samples"].to_bytes(4, "big") + entry["sealing"] + entry["masking"] + entry["commitment"]
        signature = KEYS[entry["name"]].sign(head + content)
        return [*entries[:place], [*list(entry.values())[:5], signature], *entries[place + 1 :]]

    order = 2**255 - 19
    for what, key in {
        "the same": entries[1][3],
        "the same in bit 255": entries[1][3][:31] + bytes([entries[1][3][31] ^ 128]),
        "the same plus the point of order 2": pow(int.from_bytes(entries[1][3], "little"), order - 2, order).to_bytes(
            32, "little"
        ),
    }.items():
        bad(f"bob's masking key for dave: {what}", "malformed", "equal secrets", "roster", pack(announced(3, masking=key)))
    bad("bob's sealing key for dave", "malformed", "equal", "roster", pack(announced(3, sealing=entries[1][2])))
    few = announced(3, n_samples=0)
    v.good("one of four without samples", "sum member", **base, steps=[["roster", pack(few).hex()]])
    few[1] = announced(1, n_samples=0)[1]
    bad("too few with samples", "malformed", "two", "roster", pack(few))
    bad("too few are included", "malformed", "two", "shares", pack([b"\x03", []]))
    bad("the member is not included", "malformed", "bob, carol and dave", "shares", pack([b"\x0e", []]))
    bad("a set that is too long", "malformed", "two bytes for four", "shares", pack([b"\x0f\x00", []]))
    bad("a fifth of four", "malformed", "bit 4", "shares", pack([b"\x1f", []]))
    bad("shares of one twice", "malformed", "bob", "shares", pack([b"\x0f", [sealed[0], *sealed]]))
    bad("shares of one that is not included", "malformed", "dave", "shares", pack([b"\x07", sealed]))
    bad("own shares", "malformed", "place 0", "shares", pack([b"\x0f", [[0, sealed[0][1]]]]))
    bad("short shares", "malformed", "81 bytes", "shares", pack([b"\x0f", [[1, sealed[0][1][:-1]]]]))
    bad("too few survivors", "malformed", "two", "survivors", pack(b"\x03"))
    bad("survivors without the member", "malformed", "bob, carol and dave", "survivors", pack(b"\x0e"))
    bad("a survivor that is not included", "malformed", "dave", "survivors", pack(b"\x0f"), early)
    signatures = unpacked(said["open", "alice"][0])
    bad("too few signatures", "malformed", "two", "open", pack(signatures[:2]))
    bad("one has signed twice", "malformed", "bob and bob", "open", pack([signatures[1], *signatures[1:3]]))
    ghost = unpacked(late["open", "alice"][0])
    bad("one that is no survivor has signed", "malformed", "dave", "open", pack([*ghost, [3, bytes(64)]]), late)
    bad("another list was signed", "wrong signature", "with dave, not without", "open", pack(signatures[:3]), late)
    bad(
        "a signature of another",
        "wrong signature",
        "carol's is bob's",
        "open",
        pack([*signatures[:2], [2, signatures[1][1]]]),
    )


def sum_vectors(v):
    def given(run, **changes):
        shares = [[k, run["roster", name][1].hex()] for k, name in enumerate(NAMES) if ("roster", name) in run]
        masked = [[k, run["shares", name][1].hex()] for k, name in enumerate(NAMES) if ("shares", name) in run]
        opened = [[k, run["open", name][1].hex()] for k, name in enumerate(NAMES) if ("open", name) in run]
        roster = next(request for (step, _), (request, _) in run.items() if step == "roster")
        base = ROUND | {"roster": roster.hex(), "threshold": 3, "size": 4, "given": shares}
        return base | {"masked": masked, "opened": opened} | changes

    def good(name, run, **changes):
        v.good(name, "sum", **given(run, **changes))

    def bad(name, cause, why, **changes):
        v.bad(name, "sum", cause, why, **given(said, **changes))

    said, _ = played()
    good("the mean of all", said)
    for name, fate in {
        "one has given no shares": ("roster", "alice"),
        "the masked model of the first has not come": ("shares", "alice"),
        "that of the last has not come": ("shares", "dave"),
        "one has not signed": ("survivors", "carol"),
        "one does not open": ("open", "bob"),
    }.items():
        run, _ = played(lambda step, name, fate=fate: (step, name) == fate)
        good(name, run)
    good("too few open", said, opened=given(said)["opened"][:2])

    def lies(*liars):
        """Return the opened shares, in which some give wrong ones of all others."""
        wrong = {k: unpacked(bytes.fromhex(data)) for k, data in given(said)["opened"]}
        for k in liars:
            wrong[k] = [[owner, share if owner == k else flipped(share)] for owner, share in wrong[k]]
        return [[k, pack(shares).hex()] for k, shares in wrong.items()]

    good("wrong shares of one are left out", said, opened=lies(2))
    good("two give wrong shares", said, opened=lies(0, 2))
    bad("a short masked model", "wrong length", "31 bytes", masked=[[0, said["shares", "alice"][1].hex()[:-2]]])
    bad("opened shares that are no array", "malformed", "nil", opened=[[0, "c0"]])
    bad("a short share", "malformed", "32 bytes", opened=[[0, pack([[0, bytes(32)]]).hex()]])
