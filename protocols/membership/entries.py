"""Entries of the membership log: changes of the members or of the admission key, and extensions by more rounds."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Role = Literal["participant", "observer", "coordinator-eligible"]
Action = Literal["add", "remove", "replace", "hand-over"]

MOST_ROUNDS = 1_000_000  # maximum of an extension; a mistyped number cannot be taken back
_LABEL = b"p2pfl membership 1\0"
_EXTENSION_LABEL = b"p2pfl membership 2\0"
_EXTENSION_FIELDS = 5


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One change of the membership.

    Attributes:
        membership_version: 1 for the first entry, and one more for each following entry.
        before: SHA-256 of the previous signed entry; zeros for the first.
        action: `add` or `remove` a member; `replace` a member's key, which revokes the old one; or `hand-over` to
            another admission key.
        name: the member's name; "" for a hand-over.
        key: the member's key, its new key, or the new admission key.
    """

    federation: Bytes16
    membership_version: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    before: Bytes32
    action: Action
    name: Annotated[str, Meta(max_length=64)]
    key: Bytes32
    role: Role


class Extension(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Extension of the federation by more rounds; the first three fields are those of `Entry`.

    Attributes:
        rounds: the new number of rounds of the federation, in place of that in its file or in an earlier extension.
    """

    federation: Bytes16
    membership_version: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    before: Bytes32
    action: Literal["extend"]
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)]


class Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    entry: Annotated[bytes, Meta(max_length=512)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class Ending(NamedTuple):
    """End of a membership: the entry that removed or replaced the member's key, and the admission key that signed it."""

    entry: Entry
    admission: bytes


_entry = msgspec.msgpack.Decoder(Entry)
_extension = msgspec.msgpack.Decoder(Extension)
_raw = msgspec.msgpack.Decoder(list[msgspec.Raw])


def decode_entry(data: bytes) -> Entry | Extension:
    """Read the content of a signed entry. The number of its fields tells its kind.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError, RecursionError: it is malformed.
    """
    extends = len(_raw.decode(data)) == _EXTENSION_FIELDS
    return _extension.decode(data) if extends else _entry.decode(data)


def signature_label(entry: Entry | Extension) -> bytes:
    """Return the bytes that a signature of an entry covers before the entry."""
    return _EXTENSION_LABEL if isinstance(entry, Extension) else _LABEL
