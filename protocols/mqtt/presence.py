"""Presence of members at a broker: a signed announcement of a member, which the broker retains for later subscribers.

The signature prevents the broker from forging a presence, but not from withholding it or sending an old one. Addresses
are hints: a node proves its key when it is dialled. A packet is 64 bytes of signature and the signed msgpack.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import SIGNATURE_SIZE, Identity, Verifier
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.transports.handshake import Bytes16, Bytes32, UInt32

LIMIT = 4096  # maximum bytes of a packet
ADDRESSES = 8
_LABEL = b"p2pfl presence 1\0"


class Presence(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Announcement of one member.

    Attributes:
        incarnation, sequence: number of the member's starts, and number of its announcements since the last start.
        addresses: addresses at which it can be dialled, for example "tcp://192.168.1.5:4100".
        online: False if the member has left on purpose.
    """

    federation: Bytes16
    key: Bytes32
    incarnation: UInt32
    sequence: UInt32
    addresses: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=ADDRESSES)]
    online: bool


_decoder = msgspec.msgpack.Decoder(Presence)


def sign(identity: Identity, presence: Presence) -> bytes:
    """Return the signed packet of a presence."""
    content = msgspec.msgpack.encode(presence)
    return identity.sign(_LABEL + content) + content


class Directory:
    """Directory of the newest signed presence of each member."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._known: dict[bytes, Presence] = {}

    def online(self, key: bytes) -> bool:
        """Return whether a member was online at its last announcement."""
        known = self._known.get(key)
        return known is not None and known.online

    def mark_gone(self, key: bytes) -> None:
        """Mark a member as possibly offline until its next announcement."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = msgspec.structs.replace(known, online=False)

    def read(self, key: bytes, packet: bytes) -> Presence:
        """Read a packet that was published as the presence of `key`, and record it.

        Raises:
            ProtocolError: its `cause` is one of malformed, other federation, other sender, stranger, revoked, replay,
                wrong signature.
        """
        if not SIGNATURE_SIZE < len(packet) <= LIMIT:
            raise ProtocolError("malformed", f"a presence of {len(packet)} bytes")
        try:
            presence = _decoder.decode(packet[SIGNATURE_SIZE:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("malformed", str(error)) from error
        if presence.federation != self._access.federation:
            raise ProtocolError("other federation", presence.federation.hex())
        if presence.key != key:
            raise ProtocolError("other sender", f"the presence of {presence.key.hex()} in the topic of another member")
        if cause := self._access.refusal(key):
            raise ProtocolError(cause, f"{key.hex()} is not a member")
        known = self._known.get(key)
        if known is not None and (presence.incarnation, presence.sequence) < (known.incarnation, known.sequence):
            raise ProtocolError("replay", f"an old presence of {key.hex()}")
        if not Verifier(key).valid(packet[:SIGNATURE_SIZE], _LABEL + packet[SIGNATURE_SIZE:]):
            raise ProtocolError("wrong signature", f"claims to be {key.hex()}")
        self._known[key] = presence
        return presence
