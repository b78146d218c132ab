"""Names by which tables of edges call their columns: source, target and weight."""

from __future__ import annotations

import re
from collections.abc import Sequence

PAIRS = (
    ("source", "target"),
    ("src", "dst"),
    ("src", "dest"),
    ("src", "tgt"),
    ("source", "destination"),
    ("source", "dest"),
    ("source", "sink"),
    ("from", "to"),
    ("start", "end"),
    ("begin", "end"),
    ("origin", "destination"),
    ("sender", "receiver"),
    ("sender", "recipient"),
    ("ego", "alter"),
    ("parent", "child"),
    ("citing", "cited"),
    ("follower", "followee"),
)
SHORT = (("u", "v"), ("i", "j"), ("a", "b"), ("x", "y"), ("s", "t"))  # may as well be names of nodes
WEIGHTS = ("weight", "weights", "edgeweight", "w")
COUNTED = re.compile(r"(.*?)[\W_]*(?:(1|2)|(?<![^\W_])(a|b|i|j|x|y|u|v))", re.ASCII)
MATES = {"1": "2", "a": "b", "i": "j", "x": "y", "u": "v"}
GENERAL = re.compile(r"node|vertex|name|index|idx|label|key|id(?![a-z])|(?<=from)id|(?<=to)id|[\W_]")


def columns_of(header: Sequence[str], short: bool = False) -> tuple[int, int] | None:
    """Return the positions of the source and the target in a row of column names; None if it does not name both.

    Args:
        short: whether pairs of single letters, such as `u` and `v`, are names of columns.

    Raises:
        ValueError: several pairs of columns may be the source and the target, or two columns have one name.
    """
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip()).casefold() for name in header]
    found = []
    plain = [_plain(name) for name in names]
    exact = [(a, b) for a, b in PAIRS if a in names and b in names]
    for a, b in exact or PAIRS:
        where = names if exact else plain
        if a in where and b in where:
            found.append((where.index(a), where.index(b)))
    if not found:
        found = _counted(names)
    if not found and short:
        found = [(names.index(a), names.index(b)) for a, b in SHORT if a in names and b in names]
    found = list(dict.fromkeys(found))
    if len(found) > 1:
        raise ValueError("several columns may be the source and the target; name only two of them source and target")
    used = [names[k] for pair in found for k in pair]
    if any(names.count(name) > 1 for name in used):
        raise ValueError("two columns have the same name")
    return found[0] if found else None


def weight_of(header: Sequence[str]) -> int | None:
    """Return the position of the weight in a row of column names; None without one."""
    names = [re.sub(r"[\W_]", "", name.casefold()) for name in header]
    found = [k for k, name in enumerate(names) if name in WEIGHTS]
    if len(found) > 1:
        raise ValueError("two columns may be the weight; name only one of them weight")
    return found[0] if found else None


def stem_of(name: str) -> str | None:
    """Return what comes before the number in a name such as `node1`; None without a number."""
    found = re.fullmatch(r"(.*?)[\W_]*\d+", name.strip().casefold(), re.ASCII)
    return found[1] if found else None


def _plain(name: str) -> str:
    """Return a name without words such as node and id: `FromNodeId` and `from_id` are `from`."""
    return GENERAL.sub("", name) or name


def _counted(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of columns such as `id_1` and `id_2`, or `node a` and `node b`."""
    split = {}
    for k, name in enumerate(names):
        if (found := COUNTED.fullmatch(name)) and found[1]:
            split[found[1], found[2] or found[3]] = k
    return [(k, split[stem, MATES[end]]) for (stem, end), k in split.items() if end in MATES and (stem, MATES[end]) in split]
