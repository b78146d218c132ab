"""Proof that a membership has ended: the signed entry of the membership log that ended it.

A member shows the proof to a former member that was off when the entry was made. Hand-overs of the admission key precede
the entry, so that a node whose log ends before them can verify it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import verify as is_valid
from p2pfl.protocols.membership.entries import Ending, Entry, Signed, decode_entry, signature_label

LIMIT = 2048  # maximum bytes
_MOST_ENTRIES = 16
_ARRAY = 1  # bytes before up to 15 entries
_decoder = msgspec.msgpack.Decoder(Annotated[list[Signed], Meta(min_length=1, max_length=_MOST_ENTRIES)])


def encode(hand_overs: Sequence[bytes], end: bytes) -> bytes:
    """Return the proof of an entry that ended a membership.

    Args:
        hand_overs: the encoded signed hand-overs before the entry. The oldest of them are left out if they do not fit.
        end: the encoded signed entry.
    """
    chosen, size = [end], _ARRAY + len(end)
    for signed in reversed(hand_overs):
        size += len(signed)
        if size > LIMIT or len(chosen) == _MOST_ENTRIES - 1:
            break
        chosen.insert(0, signed)
    return msgspec.msgpack.encode([msgspec.Raw(signed) for signed in chosen])


def verify(proof: bytes, federation: bytes, membership_version: int, admission: bytes) -> Ending:
    """Return the entry of a proof, and the admission key that signed it.

    Args:
        membership_version: the newest entry of the log that is known here. The proof must be about a later one.
        admission: the admission key in force after that entry.

    Raises:
        ProtocolError("membership"): it proves nothing.
    """
    try:
        if len(proof) > LIMIT:
            raise ProtocolError("membership", f"a proof of {len(proof)} bytes")
        read = [(signed, decode_entry(signed.entry)) for signed in _decoder.decode(proof)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("membership", str(error)) from error
    *hand_overs, (signed, end) = read
    for handed, entry in hand_overs:
        if not isinstance(entry, Entry) or entry.action != "hand-over":
            raise ProtocolError("membership", "a proof with an entry that is not a hand-over before its last one")
        if entry.membership_version > membership_version:  # an earlier one is known
            _check(handed, entry, federation, admission)
            membership_version, admission = entry.membership_version, entry.key
    if not isinstance(end, Entry) or end.action not in ("remove", "replace"):
        raise ProtocolError("membership", "a proof whose last entry ends no membership")
    if end.membership_version <= membership_version:
        raise ProtocolError("membership", f"a proof from membership version {end.membership_version}, which is known")
    _check(signed, end, federation, admission)
    return Ending(end, admission)


def _check(signed: Signed, entry: Entry, federation: bytes, admission: bytes) -> None:
    if entry.federation != federation:
        raise ProtocolError("membership", "an entry of another federation")
    if not is_valid(admission, signed.signature, signature_label(entry) + signed.entry):
        raise ProtocolError("membership", "an entry without a signature of the admission key")
