"""Merkle trees as in RFC 6962: one hash commits to a list, and a short proof shows that an element is in it.

The hash of a leaf is SHA-256(0x00 || leaf), that of an inner node SHA-256(0x01 || left || right), so that neither can stand
for the other. A list of n leaves is divided at the largest power of two below n, so the left side is always complete. This
is the same as to hash the nodes of each level in pairs and to move a last one without a partner up unchanged, which
`MerkleTree` does. The root of an empty list is the SHA-256 of nothing.

An inclusion proof of a leaf is the list of the hashes beside its way to the root, from below: at most ceil(log2 n) hashes
of 32 bytes, 14 for 10,000 leaves. `verify` follows RFC 9162, section 2.1.3.2. It needs the number of leaves, which decides
on which side each hash is, so whoever signs a root must sign that number with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256


def leaf_hash(leaf: bytes) -> bytes:
    return sha256(b"\0" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


class MerkleTree:
    """Tree over a list of leaves.

    Attributes:
        size: number of leaves.
        root: 32 bytes.
    """

    def __init__(self, leaves: Iterable[bytes]) -> None:
        level = [leaf_hash(leaf) for leaf in leaves]
        self.size = len(level)
        self._levels = [level]
        while len(level) > 1:
            level = [node_hash(*level[k : k + 2]) if k + 1 < len(level) else level[k] for k in range(0, len(level), 2)]
            self._levels.append(level)
        self.root = level[0] if level else sha256().digest()

    def proof(self, index: int) -> list[bytes]:
        """Return the inclusion proof of a leaf: 32-byte hashes from below.

        Raises:
            IndexError: there is no such leaf.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"leaf {index} of {self.size}")
        found = []
        for level in self._levels[:-1]:
            beside = index ^ 1
            if beside < len(level):
                found.append(level[beside])
            index //= 2
        return found


def verify(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Return whether a proof shows that a leaf is in the list of a root, at an index.

    Args:
        size: number of leaves of the list.
    """
    if not 0 <= index < size:
        return False
    at, last, found = index, size - 1, leaf_hash(leaf)
    for beside in proof:
        if last == 0:
            return False
        if at % 2 or at == last:
            found = node_hash(beside, found)
            while at and not at % 2:
                at, last = at // 2, last // 2
        else:
            found = node_hash(found, beside)
        at, last = at // 2, last // 2
    return last == 0 and found == root
