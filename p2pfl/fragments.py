"""Fragments of a model: rules that divide its shared values into named parts, which peers can fetch one by one.

A rule and a number of parts say which value belongs to which part. Every node of a federation computes the same places
from them, the layout and the federation's seed, so that a message names a part by its number only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError, must_be, none_of
from p2pfl.parameters import Layout

Division = Literal["contiguous", "strided", "random", "layers"]
"""Rule that divides P values into K parts. `contiguous`: part k has the values from floor(k P / K) to before
floor((k + 1) P / K); `strided`: every K-th value from the k-th on; `random`: as `contiguous`, of a permutation drawn from
the federation's seed, the same in all rounds; `layers`: each tensor is a part."""

Places = slice | NDArray[np.intp]
"""Places of a part's values in a model's, in the order in which a part has them."""

MOST_PARTS = 128
_LABEL = b"p2pfl fragments 1\0"


class Fragments(msgspec.Struct, frozen=True):
    """Division of a model into parts.

    Attributes:
        rule: see Division.
        parts: K, the number of parts, 1 to 128; 0 with the rule `layers`, whose parts are the tensors.

    Raises:
        ConfigurationError: the rule is unknown, or the number is out of range.
    """

    rule: Division
    parts: int = 0

    def __post_init__(self) -> None:
        if self.rule not in (rules := get_args(Division)):
            raise none_of("the division into fragments", self.rule, rules)
        if self.rule == "layers" and self.parts:
            raise ConfigurationError("fragments by layers have no number: each tensor is one")
        if self.rule != "layers" and not 1 <= self.parts <= MOST_PARTS:
            raise must_be("fragments", f"from 1 to {MOST_PARTS}", self.parts)

    def count(self, layout: Layout) -> int:
        """Return the number of parts of a model.

        Raises:
            ConfigurationError: the model has fewer values than parts, or too many tensors.
        """
        if self.rule == "layers":
            if len(layout.shapes) > MOST_PARTS:
                raise ConfigurationError(
                    f"fragments by layers need at most {MOST_PARTS} tensors, but the model has {len(layout.shapes)}; use"
                    ' another division, such as "random"'
                )
            return len(layout.shapes)
        if self.parts > layout.size:
            raise ConfigurationError(f"a model of {layout.size} values cannot have {self.parts} fragments; set fewer")
        return self.parts

    def names(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of the parts in their order: those of the tensors with `layers`, else "0", "1", ..."""
        count = self.count(layout)
        return tuple(name for name, _ in layout.shapes) if self.rule == "layers" else tuple(map(str, range(count)))

    def places(self, layout: Layout, seed: int) -> tuple[Places, ...]:
        """Return the places of each part's values.

        Args:
            seed: of the federation; only `random` depends on it.
        """
        if self.rule == "layers":
            self.count(layout)
            return tuple(slice(start, stop) for _, start, stop, _ in layout.places)
        parts, size = self.count(layout), layout.size
        if self.rule == "strided":
            return tuple(slice(k, size, parts) for k in range(parts))
        slices = tuple(slice(k * size // parts, (k + 1) * size // parts) for k in range(parts))
        if self.rule == "contiguous":
            return slices
        order = _order(size, seed)
        return tuple(order[part] for part in slices)


# All nodes of a process, all rounds and all numbers of parts share one order, so that a peer that asks for fragments of many
# divisions costs no more work than one that asks for models.
@lru_cache(maxsize=2)
def _order(size: int, seed: int) -> NDArray[np.intp]:
    """Return the places of all values in the order of keys that follow from the seed; read-only, [P]."""
    stream = blake3(_LABEL + str(seed).encode()).digest(length=8 * size)
    order = np.frombuffer(stream, "<u8").argsort(kind="stable")
    order.flags.writeable = False
    return order


def size_of(places: Places) -> int:
    """Return the number of values at some places."""
    return len(range(places.start, places.stop, places.step or 1)) if isinstance(places, slice) else len(places)


class WantedPart(NamedTuple):
    """A part of a node's model that a policy wants, with what it costs.

    Attributes:
        sender: the node.
        number: of the part.
        name: of the part.
        values: number of its values.
        bytes: of the frame in which it will arrive.
    """

    sender: str
    number: int
    name: str
    values: int
    bytes: int


def wanted_parts(
    wanted: Mapping[str, Sequence[str]], fragments: Fragments, layout: Layout, seed: int, overhead: int = 0
) -> list[WantedPart]:
    """Return the wanted parts, sorted by sender and number, without repetitions.

    Args:
        wanted: names of parts by node.
        layout, seed: see `Fragments.places`.
        overhead: bytes of a frame besides the values.

    Raises:
        ConfigurationError: a part has another name, or a model cannot be divided so.
    """
    numbers = {name: k for k, name in enumerate(fragments.names(layout))}
    for name in (name for names in wanted.values() for name in names):
        if name not in numbers:
            raise none_of("the name of a fragment", name, numbers)
    sizes = [size_of(places) for places in fragments.places(layout, seed)]
    return [
        WantedPart(id, numbers[name], name, sizes[numbers[name]], overhead + 4 * sizes[numbers[name]])
        for id in sorted(wanted)
        for name in sorted(set(wanted[id]), key=numbers.__getitem__)
    ]


def by_sender(parts: Iterable[WantedPart]) -> dict[str, list[WantedPart]]:
    """Return parts by their sender."""
    found: dict[str, list[WantedPart]] = {}
    for part in parts:
        found.setdefault(part.sender, []).append(part)
    return found
