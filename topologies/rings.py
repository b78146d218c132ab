"""Rings: neighbours of any number of members by a rule, which a member that comes or goes changes for few of them.

Theory of operation
-------------------

A list of edges grows with the members, is fixed when the federation is created, and gives a newcomer no neighbours. A
rule has none of these limits: it is a name, a degree k and a seed, and each member computes its own neighbours from them
and from the membership log.

The rule has k / 2 rings (k is even). On each ring every member has a place, a hash of the seed, the ring and the member's
token; its neighbours are the members before and after it, on all rings together. From this follows:

- Neighbours are mutual, and each member has at most k of them, fewer where two rings give the same one.
- The graph is connected, because each ring is. Several random rings have the short ways of a random graph: about
  log(n) / log(k - 1) links between two members (Law and Siu, "Distributed construction of random expander networks",
  INFOCOM 2003, who build such rings with messages; here no message is needed).
- A member that comes stands between two others on each ring. At most k / 2 links end and k begin, all with or beside the
  newcomer; the same in reverse when a member goes. All other links stay, so members whose logs differ by a few entries
  differ in a few links.
- Members that know the same members compute the same neighbours, in whatever order they have heard of them.

The token of a member is the hash of its signed admission (p2pfl.protocols.membership.log). It contains a signature of the
admission key, which the newcomer cannot compute, so a newcomer that tries a thousand keys learns no place before it is
admitted, and has no more neighbours of its choice than chance gives. A new key of the same member keeps the place. Whoever
holds the admission key can try signatures, and so choose places: it admits members anyway. In a simulation the token of a
node is its number in 32 bytes, highest first.

`Rings` is for one member on a machine: places in sorted lists, where a member finds its neighbours in O(k log n), and one
that comes or goes is O(k log n) comparisons. `ring_orders` is for all members at once, as arrays.

Rings that change (the rule `changing-rings`). The hash contains the round, so that each round has rings of its own: a
member fetches from k others, other ones in each round, and meets all members in time. A round costs a member one hash for
every member and four rings, because each place is a new one.

What must never be:

- A place that depends on anything that members may know at different times: addresses, who is connected, an order of
  arrival.
- A degree that is odd or too great, so that the links of a member are not bounded.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from struct import Struct
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Id = TypeVar("Id", int, str)
DEGREE = 8  # by default
MOST = 64  # greatest degree
LABEL = b"p2pfl rings 1\0"
KEPT = 4  # rounds whose rings are kept
_places = Struct(">4Q")  # of four rings, from one hash


def check_degree(degree: int) -> None:
    """Raise ValueError unless a degree is even, from 2 to MOST."""
    if not 2 <= degree <= MOST or degree % 2:
        raise ValueError(f"degree must be an even number from 2 to {MOST}, two for each ring, got {degree}")


class _Hashes:
    """Hashes of the rings of one round, each for four rings.

    Args:
        round: 0 for rings that do not change.
    """

    def __init__(self, seed: int, degree: int, round: int) -> None:
        check_degree(degree)
        self.rings = degree // 2
        blocks = range(-(-self.rings // 4))
        self._begun = [sha256(LABEL + f"{seed}\0{round}\0{block}\0".encode()) for block in blocks]

    def of(self, token: bytes) -> bytes:
        """Return the places of a token on all rings, and on up to three more, 8 bytes each."""
        found = b""
        for begun in self._begun:
            state = begun.copy()
            state.update(token)
            found += state.digest()
        return found

    def places(self, token: bytes) -> list[int]:
        """Return the place of a token on each ring, from 0 to 2^64 - 1."""
        return [place for four in _places.iter_unpack(self.of(token)) for place in four][: self.rings]


class Rings(Generic[Id]):
    """Rings of one round, on which members are added and removed.

    Args:
        seed: of the federation.
        degree: k, the maximum number of neighbours; even, from 2 to MOST.
        tokens: token of each member, 32 bytes.
        round: round of rings that change, from 1; 0 for rings that do not change.

    Raises:
        ValueError: the degree is invalid.
    """

    def __init__(self, seed: int, degree: int, tokens: Mapping[Id, bytes], round: int = 0) -> None:
        self._hashes = _Hashes(seed, degree, round)
        self._place(tokens)

    def _place(self, tokens: Mapping[Id, bytes]) -> None:
        self._tokens: dict[Id, bytes] = dict(tokens)
        places = {id: self._hashes.places(token) for id, token in tokens.items()}
        self._rings: list[list[tuple[int, Id]]] = [
            sorted((each[ring], id) for id, each in places.items()) for ring in range(self._hashes.rings)
        ]

    def change(self, tokens: Mapping[Id, bytes], ids: Iterable[Id] | None = None) -> None:
        """Replace the members: those that are new, gone, or have another token lose or get their places.

        Args:
            ids: those that may be new, gone, or have another token; None to compare all.
        """
        if not self._tokens and ids is None:
            self._place(tokens)
            return
        for id in self._tokens.keys() | tokens.keys() if ids is None else ids:
            token, before = tokens.get(id), self._tokens.get(id)
            if token == before:
                continue
            if before is not None:
                self._remove(id)
            if token is not None:
                self._add(id, token)

    def __copy__(self) -> Rings[Id]:
        same: Rings[Id] = Rings.__new__(Rings)
        same._hashes, same._tokens, same._rings = self._hashes, self._tokens.copy(), [ring.copy() for ring in self._rings]
        return same

    def _add(self, id: Id, token: bytes) -> None:
        self._tokens[id] = token
        for ring, place in zip(self._rings, self._hashes.places(token), strict=True):
            insort(ring, (place, id))

    def _remove(self, id: Id) -> None:
        for ring, place in zip(self._rings, self._hashes.places(self._tokens.pop(id)), strict=True):
            del ring[bisect_left(ring, (place, id))]

    def neighbours(self, id: Id) -> set[Id]:
        """Return the members before and after a member on all rings; none for one that has no place.

        Members with the same place, of which there are none in practice, are in the order of their ids.
        """
        if id not in self._tokens:
            return set()
        found: set[Id] = set()
        for ring, place in zip(self._rings, self._hashes.places(self._tokens[id]), strict=True):
            at = bisect_left(ring, (place, id))
            found |= {ring[at - 1][1], ring[(at + 1) % len(ring)][1]}
        return found - {id}


def ring_orders(seed: int, degree: int, tokens: Iterable[bytes], round: int = 0) -> Ints:
    """Return the numbers of all members in the order of their places on each ring; int64 [degree / 2, n].

    Args:
        tokens: of the members, in the order of their ids.
        round: see Rings.

    Raises:
        ValueError: the degree is invalid.
    """
    hashes = _Hashes(seed, degree, round)
    found = np.frombuffer(b"".join(map(hashes.of, tokens)), ">u8").reshape(-1, 4 * -(-hashes.rings // 4))
    return found[:, : hashes.rings].astype(np.uint64).argsort(axis=0, kind="stable").T


def ring_links(orders: Ints) -> tuple[Ints, Ints]:
    """Return the links of the rings, each once, as the lower and the greater number of its ends; int64 [E], int64 [E]."""
    n = orders.shape[1]
    ends = np.stack([orders, np.roll(orders, -1, axis=1)]).reshape(2, -1)
    low, high = ends.min(axis=0), ends.max(axis=0)
    links = np.divmod(np.unique((low * n + high)[low < high]), n)
    return links[0], links[1]


def numbered(n: int) -> list[bytes]:
    """Return the tokens of simulated nodes: their numbers."""
    return [number.to_bytes(32, "big") for number in range(n)]


def neighbours_in(orders: Ints, number: int) -> list[int]:
    """Return the numbers of a member's neighbours, sorted."""
    at = (orders == number).argmax(axis=1)
    rows = np.arange(len(orders))
    around = {*orders[rows, at - 1].tolist(), *orders[rows, (at + 1) % orders.shape[1]].tolist()}
    return sorted(around - {number})


class RingRule:
    """Neighbours of named members by the rule `rings` or `changing-rings`, as each member computes them from its own log.

    Args:
        seed: of the federation.
        changing: whether each round has rings of its own.
        degree: maximum number of neighbours of a member in a round; even, from 2 to 64.

    Raises:
        ValueError: the degree is invalid.
    """

    def __init__(self, seed: int, changing: bool, degree: int = DEGREE) -> None:
        self.changing, self.degree = changing, degree
        self._seed = seed
        self._tokens: Mapping[str, bytes] = {}
        self._rings: Rings[str] = Rings(seed, degree, {})
        self._names: list[str] = []  # sorted, for rings that change
        self._orders: OrderedDict[int, Ints] = OrderedDict()  # of the latest rounds

    def change(self, tokens: Mapping[str, bytes], names: Collection[str] | None = None) -> None:
        """Replace the members by those with the given tokens, 32 bytes each.

        Args:
            names: those that may be new, gone, or have another token; None to compare all.
        """
        if not self.changing:
            self._rings.change(tokens, names)
        elif tokens != self._tokens if names is None else any(tokens.get(n) != self._tokens.get(n) for n in names):
            self._orders.clear()
            self._tokens = dict(tokens)
            self._names = sorted(tokens)

    def neighbours(self, name: str, round: int) -> set[str]:
        """Return the neighbours of a member in a round, from 1; none of a name that has no place."""
        if not self.changing:
            return self._rings.neighbours(name)
        at = bisect_left(self._names, name)
        if self._names[at : at + 1] != [name]:
            return set()
        return {self._names[k] for k in neighbours_in(self._order(round), at)}

    def row(self, name: str, round: int) -> Mapping[str, float]:
        """Return the neighbours of a member in a round, sorted, and the weights of their models; see `changing_rings`."""
        return dict.fromkeys(sorted(self.neighbours(name, round)), 1 / (self.degree + 1))

    def _order(self, round: int) -> Ints:
        if round not in self._orders:
            tokens = map(self._tokens.__getitem__, self._names)
            self._orders[round] = ring_orders(self._seed, self.degree, tokens, round)
            while len(self._orders) > KEPT:
                self._orders.popitem(last=False)
        return self._orders[round]
