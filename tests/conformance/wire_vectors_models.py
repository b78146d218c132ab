"""Maker of the golden vectors of models: every codec, differences, extras, and the acceptance of updates."""

import numpy as np

from p2pfl.compression.sparse_updates import Change, encode_change, encode_entries, tag
from p2pfl.protocols.wire.payload import encode_extras
from tests.conformance.wire_making import SHAPES, exact, pack
from tests.conformance.wire_project import run

VALUES = [1.0, -2.5, 0.1, 3e-5, -0.0, 100.0, 65504.0, 1e6]
ALL = ("float32", "float16", "bfloat16", "int8", "top-k", "sparse")


def codec_vectors(v):
    for codec in ALL:
        v.good(f"encoded in {codec}", "encode", codec=codec, tensors=SHAPES, values=exact(VALUES))
    corners = [3.4028234663852886e38, -3.4e38, 1e-40, 1.00390625, 1.01171875, -1.00390625, 3.3895313892515355e38, 0.0]
    v.good("bfloat16 at its limits, ties to even", "encode", codec="bfloat16", tensors=SHAPES, values=exact(corners))
    just = np.array([0x3F808001, 0x3F807FFF, 0x3F818000, 0xBF808001] * 2, np.uint32).view(np.float32)
    v.good("bfloat16 beside its ties", "encode", codec="bfloat16", tensors=SHAPES, values=exact(just))
    halves = [1.00048828125, 1.00146484375, 65519.0, 65520.0, -1e30, 5.960464477539063e-08, 2.9802322387695312e-08, 1e-9]
    v.good("float16 at its limits, ties to even", "encode", codec="float16", tensors=SHAPES, values=exact(halves))
    ties = [127.0, 0.5, 1.5, -0.5, -1.5, -127.0, 0.0, 0.0]
    v.good("int8, ties to even, and a tensor of zeros", "encode", codec="int8", tensors=SHAPES, values=ties)
    v.good("int8 with an empty tensor", "encode", codec="int8", tensors=[[0, 3], [2]], values=[1.0, -0.25])
    nothing_known = {"known": None, "base": ""}
    for codec in ALL:
        encoded = run("encode", {"codec": codec, "tensors": SHAPES, "values": exact(VALUES)})["bytes"]
        size = len(encoded) // 2
        base = {"codec": codec, "tensors": SHAPES, **nothing_known}
        v.good(f"a model in {codec}", "model", **base, bytes=encoded)
        extra = encode_extras({"a": np.array([1.5], np.float32)}).hex()
        v.good(f"with extras, in {codec}", "model", **base, bytes=encoded + extra)
        v.bad(f"a byte less, in {codec}", "model", "wrong length", f"{size - 1} bytes", **base, bytes=encoded[:-2])
        v.bad(f"a byte more, in {codec}", "model", "wrong length", "what follows is no extras", **base, bytes=encoded + "00")
        v.bad(f"nothing, in {codec}", "model", "wrong length", "no bytes", **base, bytes="")
        for name, value in [("infinite", np.inf), ("negative infinite", -np.inf), ("no number", np.nan)]:
            wrong = {"float16": np.float16, "int8": np.float32}.get(codec, np.float32)(value).tobytes()
            wrong = wrong[2:] if codec == "bfloat16" else wrong
            data = wrong.hex() + encoded[2 * len(wrong) :]
            v.bad(f"a value that is {name}, in {codec}", "model", "not finite", "the first", **base, bytes=data)
    scales, numbers = np.array([1.0, 2.0], "<f4"), np.array([127, -127, 64, 1, 0, -1, 5, 100], np.int8)
    base = {"codec": "int8", "tensors": SHAPES, **nothing_known}
    v.good("int8, numbers of all sizes", "model", **base, bytes=(scales.tobytes() + numbers.tobytes()).hex())
    zero = np.array([0.0, -0.0], "<f4").tobytes()
    v.good("int8, scales of 0 and -0", "model", **base, bytes=(zero + numbers.tobytes()).hex())
    v.bad("a negative scale", "model", "malformed", "-1", **base, bytes=((-scales).tobytes() + numbers.tobytes()).hex())
    v.bad("the number -128", "model", "malformed", "below -127", **base, bytes=(scales.tobytes() + b"\x80" * 8).hex())
    large = np.full(8, 3e38, "<f4")
    v.good(
        "large values, whose squares are not finite",
        "model",
        codec="float32",
        tensors=SHAPES,
        **nothing_known,
        bytes=large.tobytes().hex(),
    )


def difference_vectors(v):
    def entries_of(places, size=8, values=None):
        params = np.arange(1, size + 1, dtype=np.float32) if values is None else values
        return encode_entries(params, np.array(places, np.uint32))

    known = exact([0.5] * 8)
    base = {"codec": "top-k", "tensors": SHAPES, "known": known, "base": tag(np.array(known, np.float32)).hex()}
    v.good("no entry has changed", "model", **base, bytes=entries_of([]).hex())
    v.good("three entries, marked", "model", **base, bytes=entries_of([1, 2, 5]).hex())
    v.good("all entries", "model", **base, bytes=entries_of(range(8)).hex())
    v.good("and extras", "model", **base, bytes=(entries_of([7]) + encode_extras({"a": np.array([], np.int64)})).hex())
    many = exact([0.0] * 100)
    wide = {"codec": "top-k", "tensors": [[100]], "known": many, "base": tag(np.array(many, np.float32)).hex()}
    v.good("three entries of 100, listed", "model", **wide, bytes=entries_of([0, 50, 99], 100).hex())
    v.good("four entries of 100, marked", "model", **wide, bytes=entries_of([0, 50, 98, 99], 100).hex())
    for size, how in ((25, "listed: in as many bytes as marks have"), (24, "marked: in a byte less than a list has")):
        some = {"codec": "top-k", "tensors": [[size]], "known": many[:size]}
        some["base"] = tag(np.zeros(size, np.float32)).hex()
        v.good(f"one entry of {size}, {how}", "model", **some, bytes=entries_of([9], size).hex())
    v.good("whole, though something is known", "model", **base | {"base": ""}, bytes=np.zeros(8, "<f4").tobytes().hex())

    def bad(name, cause, why, data, to=base, **changes):
        v.bad(name, "model", cause, why, **to | changes, bytes=data.hex())

    listed = entries_of([0, 50, 99], 100)
    bad("a difference from another model", "not asked for", "its tag differs", entries_of([1]), base="00" * 8)
    bad("a difference where nothing was known", "not asked for", "no model was named", entries_of([1]), known=None)
    bad("a short tag", "not asked for", "7 bytes of the right one", entries_of([1]), base=base["base"][:-2])
    bad("a difference in float32", "not asked for", "another codec", entries_of([1]), codec="float32", known=None)
    bad("more entries than there are", "wrong length", "9 of 8", (9).to_bytes(4, "little") + bytes(100))
    bad("a byte less", "wrong length", "the last one is missing", entries_of([1, 2, 5])[:-1])
    bad("no count", "wrong length", "3 bytes", bytes(3))
    bad("a count that is announced only", "wrong length", "4 GiB of entries", b"\xff\xff\xff\xff")
    bad("a byte more", "wrong length", "what follows is no extras", entries_of([1]) + b"\0")
    bad("indices that descend", "malformed", "50 after 99", listed[:8] + listed[12:16] + listed[8:12] + listed[16:], wide)
    bad("the same index twice", "malformed", "50 after 50", listed[:12] + listed[8:12] + listed[16:], wide)
    bad(
        "an index beyond the model", "malformed", "100 of 100", listed[:12] + (100).to_bytes(4, "little") + listed[16:], wide
    )
    marked = entries_of([1, 2, 5])
    bad("too many marks", "malformed", "4 of 3", marked[:4] + b"\x27" + marked[5:])
    four = entries_of([0, 50, 98, 99], 100)
    bad("a mark beyond the model", "malformed", "100 of 100", four[:16] + b"\x14" + four[17:], wide)
    wrong = np.array([np.nan] * 8, np.float32)
    bad("a value that is no number", "not finite", "NaN", entries_of([3], values=wrong))
    bad("an infinite value, listed", "not finite", "inf", entries_of([3], 100, np.full(100, np.inf, np.float32)), wide)


def quantised_vectors(v):
    def message(places, levels, unit, size=8):
        change = Change(np.array(places, np.uint32), np.array(levels, np.int16), np.float32(unit))
        return encode_change(change, size, 3)

    def difference(*messages):
        return len(messages).to_bytes(2, "little") + b"".join(messages)

    known = exact([0.5] * 8)
    base = {"codec": "sparse", "tensors": SHAPES, "known": known, "base": tag(np.array(known, np.float32)).hex()}
    v.good("sparse, no publication", "model", **base, bytes=difference().hex())
    v.good("sparse, an empty publication", "model", **base, bytes=difference(message([], [], 0)).hex())
    v.good("sparse, marked", "model", **base, bytes=difference(message([1, 2, 5], [1, -4, 3], 0.1)).hex())
    v.good("sparse, all entries", "model", **base, bytes=difference(message(range(8), [4, -4] * 4, 1e-3)).hex())
    extra = encode_extras({"a": np.array([], np.int64)})
    v.good("sparse, and extras", "model", **base, bytes=(difference(message([7], [2], 3e7)) + extra).hex())
    many = exact([0.1] * 100)
    wide = {"codec": "sparse", "tensors": [[100]], "known": many, "base": tag(np.array(many, np.float32)).hex()}
    coded = message([3, 40, 99], [1, -4, 3], 0.1, 100)
    v.good("sparse, coded", "model", **wide, bytes=difference(coded).hex())
    three = difference(coded, message([40], [-1], 1e9, 100), message(range(0, 100, 2), [1] * 50, 0.3, 100))
    v.good("sparse, three publications in order", "model", **wide, bytes=three.hex())

    def bad(name, cause, why, data, **changes):
        v.bad(f"sparse, {name}", "model", cause, why, **wide | changes, bytes=data.hex())

    one = difference(coded)
    bad("another model", "not asked for", "its tag differs", one, base="00" * 8)
    bad("nothing known", "not asked for", "no model was named", one, known=None)
    bad("no count of publications", "wrong length", "1 byte", b"\0")
    bad("a byte less", "wrong length", "the last one is missing", one[:-1])
    bad("a byte more", "wrong length", "what follows is no extras", one + b"\0")
    bad("one publication missing", "wrong length", "2 were announced", b"\2\0" + coded)
    bad("65 publications", "malformed", "at most 64", difference(*[message([], [], 0)] * 65))
    bad("more entries than there are", "wrong length", "101 of 100", b"\1\0" + (101).to_bytes(4, "little") + bytes(999))
    bad("a unit that is infinite", "not finite", "inf", one[:6] + np.array([np.inf], "<f4").tobytes() + one[10:])
    bad("a negative unit", "malformed", "-1", one[:6] + np.array([-1], "<f4").tobytes() + one[10:])
    bad("a unit of 0", "malformed", "with 3 entries", one[:6] + bytes(4) + one[10:])
    bad("a unit without entries", "malformed", "must be 0", b"\1\0" + bytes(4) + np.array([1], "<f4").tobytes())
    bad("the same index twice", "malformed", "3, 3", difference(coded[:8] + b"\x63\x0c\x0d" + coded[11:]))
    bad("too many marks", "malformed", "4 of 3", one[:12] + b"\x2d" + one[13:])
    bad("an index beyond the model", "malformed", "103 of 100", one[:10] + b"\x03\x1d" + one[12:])
    bad("an unused bit of the indices", "malformed", "must be 0", one[:11] + b"\x8d" + one[12:])
    bad("an unused bit of the values", "malformed", "must be 0", one[:-1] + b"\x80")
    large = message([0], [4], 8e37, 100)
    bad("a value that overflows", "not finite", "twice 3.2e38", difference(large, large))


def extras_vectors(v):
    base = {"codec": "float32", "tensors": [[1]], "known": None, "base": ""}
    model = np.ones(1, "<f4").tobytes()

    def good(name, data):
        v.good(name, "model", **base, bytes=(model + data).hex())

    def bad(name, cause, why, data):
        v.bad(name, "model", cause, why, **base, bytes=(model + data).hex())

    some = {
        "peers": np.array([7, 2**64 - 1], np.uint64),
        "numbers": np.array([[-(2**63)], [5]], np.int64),
        "similarities": np.array([[0.5, -1.5]], np.float32),
        "losses": np.array([0.1, np.nan, np.inf]),
        "one": np.array(3.0),
        "none": np.zeros((0, 2), np.float32),
    }
    good("arrays of all types", encode_extras(some))
    good("an empty array of arrays", pack([]))
    good("sixteen arrays", pack([[f"{k}", "f4", [0], b""] for k in range(16)]))
    good("a shape just below 2^63 bytes, without values", pack([["a", "f8", [0, 2**24, 2**24, 2**11], b""]]))
    bad("seventeen arrays", "wrong length", "at most 16", pack([[f"{k}", "f4", [0], b""] for k in range(17)]))
    for name, cause, why, array in [
        (
            "a shape of 2^63 bytes, without values",
            "malformed",
            "too large a shape",
            ["a", "f8", [0, 2**24, 2**24, 2**12], b""],
        ),
        ("data of another length", "malformed", "4 bytes for 2 values", ["a", "f4", [2], bytes(4)]),
        ("an unknown type", "wrong length", "O", ["a", "O", [1], bytes(4)]),
        ("no name", "wrong length", "1 to 64 characters", ["", "f4", [1], bytes(4)]),
        ("five dimensions", "wrong length", "at most 4", ["a", "f4", [1] * 5, bytes(4)]),
        ("a negative dimension", "wrong length", "-1", ["a", "f4", [-1], b""]),
        ("a large dimension", "wrong length", "more than 2^24", ["a", "f4", [0, 2**24 + 1], b""]),
        ("data as text", "wrong length", "no bytes", ["a", "f4", [1], "abcd"]),
        ("a field more", "wrong length", "five", ["a", "f4", [1], bytes(4), 1]),
    ]:
        bad(name, cause, why, pack([array]))
    bad("the same name twice", "malformed", "a and a", pack([["a", "f4", [0], b""]] * 2))
    bad("trailing bytes after extras", "wrong length", "one byte more", encode_extras({"a": np.ones(1)}) + b"\0")
    bad("no array", "wrong length", "a map", pack({}))


def update_vectors(v):
    values = exact([1, 2, 3, 4, 5, 6, 7, 8])
    payload = np.array(values, "<f4").tobytes()
    asked = {"kind": "get", "request": 7, "round": 3, "stage": "trained", "known": None}
    message = {"request": 7, "round": 3, "stage": "trained", "n_samples": 50, "final": False, "age": 0.5, "base": ""}
    base = {"asynchronous": False, "tensors": SHAPES, "codec": "float32", "asked": asked, "public_info": {"n_samples": 50}}
    base |= {"norm": 1.0, "message": message, "payload": payload.hex()}

    def good(name, **changes):
        v.good(name, "update", **base | changes)

    def bad(name, cause, why, **changes):
        v.bad(name, "update", cause, why, **base | changes)

    good("what was asked for")
    good("a final model of an earlier round", message=message | {"round": 2, "final": True})
    good("the newest one, asynchronous", message=message | {"round": 5}, asynchronous=True)
    known = exact([0.5] * 8)
    name = tag(np.array(known, np.float32)).hex()
    entries_ = encode_entries(np.array(values, np.float32), np.array([0, 7], np.uint32)).hex()
    good("a difference", codec="top-k", asked=asked | {"known": known}, message=message | {"base": name}, payload=entries_)
    good("a norm of 1000 (1 + 1)", payload=np.array([2000.0] + [0.0] * 7, "<f4").tobytes().hex())
    bad("another round", "not asked for", "round 2, not 3", message=message | {"round": 2})
    bad("another stage", "not asked for", "merged, not trained", message=message | {"stage": "merged"})
    bad("another stage, asynchronous", "not asked for", "merged", message=message | {"stage": "merged"}, asynchronous=True)
    prepared = {"asked": asked | {"stage": "prepared"}, "message": message | {"stage": "prepared", "round": 2}}
    bad("another preparation, asynchronous", "not asked for", "round 2, not 3", **prepared, asynchronous=True)
    bad("a model where a loss was asked for", "not asked for", "the request was a score", asked=asked | {"kind": "score"})
    bad("another number of samples", "differs", "51, 50 at the introduction", message=message | {"n_samples": 51})
    bad("a number of samples that was not said before", "differs", "none at the introduction", public_info={})
    bad("too large a norm", "too large", "2001, at most 2000", payload=np.array([2001.0] + [0.0] * 7, "<f4").tobytes().hex())
    bad("large values, whose squares are not finite", "too large", "8.5e38", payload=np.full(8, 3e38, "<f4").tobytes().hex())
    bad("a value that is no number", "not finite", "the last", payload=(payload[:-4] + np.float32(np.nan).tobytes()).hex())
    bad("a short model", "wrong length", "31 bytes", payload=payload[:-1].hex())
    bad(
        "a difference that was not asked for",
        "not asked for",
        "nothing was known",
        message=message | {"base": name},
        payload=entries_,
    )
