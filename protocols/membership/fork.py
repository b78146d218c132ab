"""Proof that the admission key has signed two histories of a federation's membership.

A signed entry states two things: which entry has its number, and, by its hash, which entry has the number before. Two
entries of one federation prove a fork if their statements about one number differ:

- they have the same number and are different, or
- the second has the next number, and contains another hash than that of the first.

The second case finds forks between logs of different lengths at once: a node is never sent the entry with a number that
it knows, but the next one. As each entry contains the hash of its predecessor, two histories differ in all entries after
the first difference, so that the last entry of the shorter log always proves the fork.

Both entries need a signature of an admission key of the log of whoever verifies the proof. A proof is against the owner of
that key alone: members only pass entries on. It does not say which history is right. A node keeps the one that it knew
first (p2pfl.protocols.membership.log).

Any member whose log has the entry with that number is convinced by the two entries, whichever history it knows: it knows
at most one of the two, and the other one contradicts its log. So a proof needs no message of its own: it is passed on as
an array of entries (p2pfl.node.peering.control_messages.MembershipGossip).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import verify as is_valid
from p2pfl.protocols.membership.log import LONGEST, PAIR, AnyEntry, Signed, contradicts, decode_entry, signature_label

FORK_LIMIT = PAIR * LONGEST + 1  # maximum bytes of a proof, which is an array of entries as the log has them
_decoder = msgspec.msgpack.Decoder(Annotated[list[Signed], Meta(min_length=PAIR, max_length=PAIR)])


def encode(known: bytes, other: bytes) -> bytes:
    """Return the proof of two encoded signed entries."""
    return msgspec.msgpack.encode([msgspec.Raw(known), msgspec.Raw(other)])


class Fork(NamedTuple):
    """Verified proof.

    Attributes:
        number: number of the entry of which there are two.
        entries: the two signed entries, encoded.
    """

    number: int
    entries: tuple[bytes, bytes]


def verify(proof: bytes, federation: bytes, admissions: Sequence[bytes]) -> Fork:
    """Read a proof.

    Args:
        admissions: the admission keys so far.

    Raises:
        ProtocolError("membership"): it proves nothing.
    """
    try:
        if len(proof) > FORK_LIMIT:
            raise ProtocolError("membership", f"a proof of {len(proof)} bytes")
        first, second = signed = _decoder.decode(proof)
        one, other = entries = [decode_entry(each.entry) for each in signed]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("membership", str(error)) from error
    for each, entry in zip(signed, entries, strict=True):
        if entry.federation != federation:
            raise ProtocolError("membership", "an entry of another federation")
        label = signature_label(entry)
        if not any(is_valid(key, each.signature, label + each.entry) for key in admissions):
            raise ProtocolError("membership", "an entry without a signature of the admission key")
    return _contradiction(first, second, one, other)


def number_of(entries: bytes) -> int | None:
    """Return the number of the entry of which there are two, if an array of entries has the form of a proof.

    No signature is verified.
    """
    if len(entries) > FORK_LIMIT:
        return None
    try:
        first, second = _decoder.decode(entries)
        return _contradiction(first, second, decode_entry(first.entry), decode_entry(second.entry)).number
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ProtocolError):
        return None


def _contradiction(first: Signed, second: Signed, one: AnyEntry, other: AnyEntry) -> Fork:
    if not contradicts(first, one, second, other):
        raise ProtocolError("membership", "two entries that do not contradict each other")
    return Fork(one.membership_version, (msgspec.msgpack.encode(first), msgspec.msgpack.encode(second)))


def describe(number: int) -> str:
    """Return what a proof says, as one sentence."""
    return (
        f"the owner of the admission key has signed two different entries with the number {number}: members may know"
        " different members; ask the owner which log is right"
    )
