"""Reader of models as in docs/wire-protocol.md: codecs, differences, extras, and the acceptance of updates."""

from __future__ import annotations

import struct
from itertools import pairwise
from math import ceil, isfinite, prod, sqrt

from blake3 import blake3

from tests.conformance.wire_types import (
    MIB,
    WORD,
    RefusedError,
    array_of,
    blob,
    expect,
    integer,
    one_of,
    read,
    structure,
    to_text,
)


def floats(data):
    values = list(struct.unpack(f"<{len(data) // 4}f", data))
    expect(all(map(isfinite, values)), "not finite")
    return values


def to_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def parameters(codec, sizes, data):
    """Return the values of a model, and the rest."""
    count = sum(sizes)
    size = {"float32": 4 * count, "top-k": 4 * count, "sparse": 4 * count, "int8": 4 * len(sizes) + count}.get(
        codec, 2 * count
    )
    expect(len(data) >= size, "wrong length")
    data, rest = data[:size], data[size:]
    if codec in ("float32", "top-k", "sparse"):
        return floats(data), rest
    if codec == "float16":
        values = list(struct.unpack(f"<{count}e", data))
        expect(all(map(isfinite, values)), "not finite")
        return values, rest
    if codec == "bfloat16":
        return floats(b"".join(b"\0\0" + data[i : i + 2] for i in range(0, size, 2))), rest
    scales = floats(data[: 4 * len(sizes)])
    numbers = struct.unpack(f"<{count}b", data[4 * len(sizes) :])
    expect(min(scales) >= 0 and min(numbers) > -128, "malformed")
    scale_of = [scale for scale, tensor in zip(scales, sizes, strict=True) for _ in range(tensor)]
    return [to_float32(n * m / 127) for n, m in zip(numbers, scale_of, strict=True)], rest


def difference(known, data):
    count, size = int.from_bytes(data[:4], "little"), len(known)
    listed = 4 * count <= ceil(size / 8)
    which = 4 * count if listed else ceil(size / 8)
    expect(len(data) >= 4 and count <= size and len(data) >= 4 + which + 4 * count, "wrong length")
    end = 4 + which + 4 * count
    values = floats(data[4 + which : end])
    if listed:
        places = list(struct.unpack(f"<{count}I", data[4 : 4 + which]))
        expect(all(a < b for a, b in pairwise(places)), "malformed")
    else:
        places = [i for i in range(8 * which) if data[4 + i // 8] >> (i % 8) & 1]
        expect(len(places) == count, "malformed")
    expect(all(place < size for place in places), "malformed")
    model = list(known)
    for place, value in zip(places, values, strict=True):
        model[place] = value
    return model, data[end:]


BITS = 3  # of a value of the codec sparse in the vectors


def quantised_difference(known, data):
    expect(len(data) >= 2, "wrong length")
    count, end, values = int.from_bytes(data[:2], "little"), 2, list(known)
    expect(count <= 64, "malformed")
    for _ in range(count):
        end += message(values, data[end:])
    expect(all(map(isfinite, values)), "not finite")
    return values, data[end:]


def message(values, data):
    """Change the values in place; return the length of the message."""
    size, count = len(values), int.from_bytes(data[:4], "little")
    expect(len(data) >= 8 and count <= size, "wrong length")
    low = (size // count).bit_length() - 1 if count else 0
    parts = [ceil(low * count / 8), ceil((count + ((size - 1) >> low)) / 8) if count else 0]
    coded = sum(parts) < ceil(size / 8)
    parts = [8, *(parts if coded else [ceil(size / 8)]), ceil(BITS * count / 8)]
    expect(len(data) >= sum(parts), "wrong length")
    pieces, start = [], 0
    for length in parts:
        pieces.append(data[start : start + length])
        start += length
    (unit,) = floats(pieces[0][4:])
    expect((unit > 0) == (count > 0), "malformed")
    places = [k for k in range(8 * len(pieces[-2])) if pieces[-2][k // 8] >> (k % 8) & 1]
    expect(len(places) == count, "malformed")
    if coded:
        places = [((h - k) << low) + n for k, (h, n) in enumerate(zip(places, unpack(pieces[1], count, low), strict=True))]
    expect(all(a < b for a, b in pairwise(places)) and all(place < size for place in places), "malformed")
    for place, code in zip(places, unpack(pieces[-1], count, BITS), strict=True):
        level = (code & (2 ** (BITS - 1) - 1)) + 1
        values[place] = round_to_float32(values[place] + round_to_float32((-level if code >> (BITS - 1) else level) * unit))
    return sum(parts)


def round_to_float32(value):
    return to_float32(value) if abs(value) < 3.4028235677973366e38 else float("inf")


def unpack(data, count, width):
    whole = int.from_bytes(data, "little")
    expect(whole >> (count * width) == 0, "malformed")
    return [whole >> (k * width) & (2**width - 1) for k in range(count)]


EXTRA = structure(
    {
        "name": WORD,
        "dtype": one_of("f4", "f8", "i8", "u8"),
        "shape": array_of(integer(0, 2**24), 4),
        "data": blob(MIB, 0),
    }
)
EXTRAS = array_of(EXTRA, 16)
FORMATS = {"f4": "f", "f8": "d", "i8": "q", "u8": "Q"}


def follows(data, kind):
    """Read the data after the parameters."""
    expect(len(data) <= MIB, "wrong length")
    try:
        return read(data, kind)
    except RefusedError:
        raise RefusedError("wrong length") from None


def extras(data):
    return unpack_value(follows(data, EXTRAS)) if data else {}


def unpack_value(arrays):
    found = {}
    for array in arrays:
        name, dtype, shape = array["name"], array["dtype"], array["shape"]
        width = struct.calcsize("<" + FORMATS[dtype])
        expect(name not in found and len(array["data"]) == width * prod(shape), "malformed")
        expect(prod(shape) or width * prod(filter(None, shape)) < 2**63, "malformed")
        found[name] = [dtype, shape, list(struct.unpack(f"<{prod(shape)}{FORMATS[dtype]}", array["data"]))]
    return found


def tag(values):
    return blake3(struct.pack(f"<{len(values)}f", *values)).digest()[:8]


def model(given, base, data):
    """Return the values and the extras of an update's payload."""
    sizes, known = [prod(shape) for shape in given["tensors"]], given["known"]
    if base:
        expect(known is not None and base == tag(known), "not asked for")
        values, rest = (quantised_difference if given["codec"] == "sparse" else difference)(known, data)
    else:
        values, rest = parameters(given["codec"], sizes, data)
    return values, extras(rest)


def check_model(given):
    values, more = model(given, bytes.fromhex(given["base"]), bytes.fromhex(given["bytes"]))
    return {"values": [to_text(v) for v in values], "tag": tag(values).hex(), "extras": more_text(more)}


def more_text(more):
    return {name: [dtype, shape, [to_text(v) for v in values]] for name, (dtype, shape, values) in more.items()}


def check_encode(given):
    values, sizes = given["values"], [prod(shape) for shape in given["tensors"]]
    match given["codec"]:
        case "float16":
            data = struct.pack(f"<{len(values)}e", *(max(-65504.0, min(65504.0, v)) for v in values))
        case "bfloat16":
            data = b"".join(struct.pack("<H", upper_half(v)) for v in values)
        case "int8":
            data = int8(values, sizes)
        case _:
            data = struct.pack(f"<{len(values)}f", *values)
    return {"bytes": data.hex()}


def upper_half(value):
    whole = bits(value)
    half, rest = whole >> 16, whole & 0xFFFF
    if rest > 0x8000 or (rest == 0x8000 and half & 1):
        half += 1
    return half - 1 if half & 0x7FFF == 0x7F80 else half


def int8(values, sizes):
    scales, numbers, start = [], [], 0
    for size in sizes:
        tensor = values[start : start + size]
        greatest = max(map(abs, tensor), default=0.0)
        scales.append(greatest)
        numbers += [round(v * 127 / greatest) if greatest else 0 for v in tensor]
        start += size
    return struct.pack(f"<{len(scales)}f{len(numbers)}b", *scales, *numbers)


def check_update(given):
    asked, said = given["asked"], given["message"]
    expect(asked["kind"] == "get", "not asked for")
    newest = said["final"] or (given["asynchronous"] and said["stage"] != "prepared")
    expect(said["stage"] == asked["stage"] and (newest or said["round"] == asked["round"]), "not asked for")
    expect(said["n_samples"] == given["public_info"].get("n_samples"), "differs")
    values, _ = model(given | {"known": asked["known"]}, bytes.fromhex(said["base"]), bytes.fromhex(given["payload"]))
    expect(sqrt(sum(v * v for v in values)) <= 1000 * (1 + given["norm"]), "too large")
    return {"values": values}


# Fragments


def divided(given):
    """Return the places of each part's values."""
    sizes, parts = [prod(shape) for shape in given["tensors"]], given["parts"]
    size = sum(sizes)
    if given["division"] == "layers":
        expect(parts == len(sizes), "malformed")
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        return [list(range(end - count, end)) for end, count in zip(ends, sizes, strict=True)]
    expect(parts <= size, "malformed")
    if given["division"] == "strided":
        return [list(range(part, size, parts)) for part in range(parts)]
    order = list(range(size))
    if given["division"] == "random":
        stream = blake3(b"p2pfl fragments 1\0" + str(given["seed"]).encode()).digest(length=8 * size)
        order.sort(key=lambda place: int.from_bytes(stream[8 * place : 8 * place + 8], "little"))
    return [order[part * size // parts : (part + 1) * size // parts] for part in range(parts)]


def wanted_of(message):
    """Return the numbers of the wanted parts."""
    data = bytes.fromhex(message["wanted"])
    numbers = [k for k in range(8 * len(data)) if data[k // 8] >> k % 8 & 1]
    expect(numbers and numbers[-1] < message["parts"], "malformed")
    return numbers


def check_division(given):
    return {"places": divided(given)}


def check_wanted(given):
    divided(given)
    return {"wanted": wanted_of(given)}


def check_fragment(given):
    asked, said = given["asked"], given["message"]
    expect(asked["kind"] == "get_fragments", "not asked for")
    places = divided(given | {"division": said["division"], "parts": said["parts"]})
    same = (said["division"], said["parts"]) == (asked["division"], asked["parts"])
    expect(same and said["part"] in wanted_of(asked), "not asked for")
    newest = said["final"] or (given["asynchronous"] and said["stage"] != "prepared")
    expect(said["stage"] == asked["stage"] and (newest or said["round"] == asked["round"]), "not asked for")
    expect(said["n_samples"] == given["public_info"].get("n_samples"), "differs")
    payload = bytes.fromhex(given["payload"])
    expect(len(payload) == 4 * len(places[said["part"]]), "wrong length")
    values = floats(payload)
    expect(sqrt(sum(v * v for v in values)) <= 1000 * (1 + given["norm"]), "too large")
    return {"values": values}


CHECKS = {
    "encode": check_encode,
    "model": check_model,
    "update": check_update,
    "division": check_division,
    "wanted": check_wanted,
    "fragment": check_fragment,
}
