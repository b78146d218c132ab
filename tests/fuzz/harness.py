"""One target under Atheris: `python -m tests.fuzz.harness TARGET FOLDER... [options of libFuzzer]`; see scripts/fuzz.

Atheris alone changes bytes, so that most changes of msgpack are refused at once. Half of the changes here are of values.
"""

from __future__ import annotations

import random
import sys
from math import inf, nan
from typing import Any

import atheris
import msgpack

with atheris.instrument_imports(include=["p2pfl"]):
    from tests.fuzz.targets import TARGETS

HEAD = 2  # bytes that select a case and a repair
NASTY = [None, True, -1, 0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -(2**63), 0.5, 1.0, nan, inf, -0.0]
NASTY += ["", "x" * 65, "x" * 257, "\0", b"", bytes(8), bytes(16), bytes(32), b"\xff" * 32, [], [[]], {}, {"a": 1}]


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Change bytes, or a value of the first msgpack value in them."""
    rng = random.Random(seed)
    if rng.random() < 0.5 or len(data) <= HEAD:
        return atheris.Mutate(data, most)
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    try:
        unpacker.feed(data[HEAD:])
        value = unpacker.unpack()
        end = HEAD + unpacker.tell()
        if not isinstance(value, list | dict):
            return atheris.Mutate(data, most)
        changed = msgpack.packb(_change(value, rng))
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException, RecursionError):
        return atheris.Mutate(data, most)
    return (data[:HEAD] + changed + data[end:])[:most]


def _change(value: Any, rng: random.Random) -> Any:
    """Return a value with one change at any depth: altered, removed, repeated or replaced."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {k: _change(v, rng) if k is key else v for k, v in value.items() if k is not key or rng.random() < 0.8}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value[:at], value[rng.randrange(len(value))], *value[at:]]
            case 2:
                return [*value[:at], rng.choice(NASTY), *value[at + 1 :]]
            case _:
                return [*value[:at], _change(value[at], rng), *value[at + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return min(max(-(2**63), value + rng.choice((-2, -1, 1, 2, 2**16, -value))), 2**64 - 1)
    if isinstance(value, bytes) and value:
        try:
            inner = msgpack.unpackb(value, raw=False, strict_map_key=False)
            if isinstance(inner, list | dict):
                return msgpack.packb(_change(inner, rng))
        except (ValueError, TypeError, msgpack.UnpackException):
            pass
        at = rng.randrange(len(value))
        return rng.choice((value[:at], value + b"\0", value[:at] + bytes([rng.randrange(256)]) + value[at + 1 :]))
    if isinstance(value, str) and value:
        return rng.choice((value[:-1], value + "x", value.upper(), value[::-1]))
    return rng.choice(NASTY)


STRUCTURED = ("handshake", "envelopes", "codecs", "membership", "joining", "broker")


def main() -> None:
    _, name, *options = sys.argv
    command = f"{sys.executable} -m tests.fuzz.harness {name}"  # a shell runs it again to merge inputs
    atheris.Setup([command, *options], TARGETS[name].run, **({"custom_mutator": mutate} if name in STRUCTURED else {}))
    atheris.Fuzz()


main()
