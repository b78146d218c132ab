"""Who is there, and where: what a member publishes about itself at a broker, which keeps it for those who come later.

It is signed, so that a broker can hold it back or show an old one again, but not make one. Addresses are hints: who is
really there is proven when it is dialled. A packet is 64 bytes of signature and the msgpack that is signed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import SIGNATURE_SIZE, Identity, Verifier
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.transports.handshake import Bytes16, Bytes32, UInt32

LIMIT = 4096  # bytes of a packet
ADDRESSES = 8
_LABEL = b"p2pfl presence 1\0"


class Presence(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Attributes:
    incarnation, sequence: how often the member has started, and how often it has published something since.
    addresses: where it can be dialled, such as "tcp://192.168.1.5:4100".
    online: False when it has left on purpose.
    """

    federation: Bytes16
    key: Bytes32
    incarnation: UInt32
    sequence: UInt32
    addresses: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=ADDRESSES)]
    online: bool


_decoder = msgspec.msgpack.Decoder(Presence)


def sign(identity: Identity, presence: Presence) -> bytes:
    """Return the packet that says where the one with this identity is."""
    content = msgspec.msgpack.encode(presence)
    return identity.sign(_LABEL + content) + content


class Directory:
    """What is known of the members' presence: of each, the newest that it has signed."""

    def __init__(self, gate: AccessControl) -> None:
        self._gate = gate
        self._known: dict[bytes, Presence] = {}

    def online(self, key: bytes) -> bool:
        """Return whether a member was last known to be there."""
        known = self._known.get(key)
        return known is not None and known.online

    def mark_gone(self, key: bytes) -> None:
        """Note that a member may not be there, until it says that it is."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = msgspec.structs.replace(known, online=False)

    def read(self, key: bytes, packet: bytes) -> Presence:
        """Take in a packet that was published as the presence of `key`.

        Raises:
            ProtocolError: its `cause` is one of malformed, other federation, other sender, stranger, revoked, replay, wrong
                signature.
        """
        if not SIGNATURE_SIZE < len(packet) <= LIMIT:
            raise ProtocolError("malformed", f"a presence of {len(packet)} bytes")
        try:
            presence = _decoder.decode(packet[SIGNATURE_SIZE:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("malformed", str(error)) from error
        if presence.federation != self._gate.federation:
            raise ProtocolError("other federation", presence.federation.hex())
        if presence.key != key:
            raise ProtocolError("other sender", f"the presence of {presence.key.hex()} in another's place")
        if cause := self._gate.refusal(key):
            raise ProtocolError(cause, f"{key.hex()} is no member")
        known = self._known.get(key)
        if known is not None and (presence.incarnation, presence.sequence) < (known.incarnation, known.sequence):
            raise ProtocolError("replay", f"an old presence of {key.hex()}")
        if not Verifier(key).valid(packet[:SIGNATURE_SIZE], _LABEL + packet[SIGNATURE_SIZE:]):
            raise ProtocolError("wrong signature", f"claims to be {key.hex()}")
        self._known[key] = presence
        return presence
