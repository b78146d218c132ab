"""Checkpoint of the membership log, signed by the admission key: a newcomer begins with it before it has the log.

Theory of operation. The log of 10,000 members has 1.8 MB. A newcomer needs little of it to begin: that it is a member, and
who its neighbours are. The node that admits it has the admission key and the whole log. It computes a Merkle tree
(p2pfl.protocols.membership.merkle) over the members of now, signs its root together with the number and the hash of the
newest entry, and shows the newcomer a proof for each member that the newcomer will meet. That are some 550 bytes a member
of 10,000, and LIMIT for all.

The tree is over the members and not over the entries of the log: that an entry is in the log says that a node once became
a member, and not that it still is one. A leaf is the array of a member's name, key, role, and the hash of the signed entry
that added it, by which rules compute neighbours; the leaves are in the order of the names. The hash chain of the log makes
the rest: the checkpoint contains the hash of the newest entry, the next entry contains it, too, and the log that the
newcomer receives afterwards must lead to it (`Membership.begin`). Two checkpoints with one number and different hashes, or
a checkpoint and an entry that does not fit, are a fork like two entries.

What a newcomer cannot see until its log has arrived: members that it was not told of. It refuses their links as those of
strangers; they try again. A lying inviter, which needs the admission key, can leave out neighbours, and cannot invent any.

Who signs: the admission key in force, as for entries. A newcomer knows the first one from the federation's file, and gets
the hand-overs since. Without room for all hand-overs, or in a federation whose members must all be known from the
beginning (see p2pfl.node.federation.membership_sync.Neighbourhood.told), the newcomer gets the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.identity import verify as is_valid
from p2pfl.protocols.membership import merkle
from p2pfl.protocols.membership.federation_file import NAME, Federation
from p2pfl.protocols.membership.log import (
    Beginning,
    Bytes16,
    Bytes32,
    Entry,
    Member,
    Membership,
    Role,
    Signed,
    decode_entry,
    signature_label,
)

LIMIT = 48 << 10  # maximum bytes of a checkpoint with its proofs
MOST_MEMBERS, MOST_HAND_OVERS = 64, 16
_LABEL = b"p2pfl membership checkpoint 1\0"
_PLACE = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content that the admission key signs.

    Attributes:
        membership_version: number of the newest entry.
        last: SHA-256 of that signed entry.
        rounds: number of rounds of the federation, with its extensions.
        size: number of members.
        root: root of the Merkle tree over them.
    """

    federation: Bytes16
    membership_version: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    last: Bytes32
    rounds: Annotated[int, Meta(ge=0, le=2**53)]
    size: _PLACE
    root: Bytes32


class _Proven(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Member with the proof that it is in the tree.

    Attributes:
        index: its place among the members in the order of their names, from 0.
        leaf: `_Leaf`, as msgpack.
        proof: the inclusion proof.
    """

    index: _PLACE
    leaf: Annotated[bytes, Meta(max_length=256)]
    proof: Annotated[list[Bytes32], Meta(max_length=32)]


class _Leaf(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=64)]
    key: Bytes32
    role: Role
    added: Bytes32


class _Beginning(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Message to a newcomer, with all that it needs to begin.

    Attributes:
        checkpoint: `Checkpoint`, as msgpack.
        signature: by the admission key, over a label and the checkpoint.
        hand_overs: all hand-overs of the log, in their order.
    """

    checkpoint: Annotated[bytes, Meta(max_length=256)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]
    hand_overs: Annotated[list[Signed], Meta(max_length=MOST_HAND_OVERS)]
    members: Annotated[list[_Proven], Meta(max_length=MOST_MEMBERS)]


_decoder = msgspec.msgpack.Decoder(_Beginning)
_checkpoint = msgspec.msgpack.Decoder(Checkpoint)
_leaf = msgspec.msgpack.Decoder(_Leaf)


def make(log: Membership, identity: Identity, names: Iterable[str]) -> bytes:
    """Return a checkpoint of a log with proofs of members; b"" if the log has too many hand-overs for it.

    Args:
        identity: the admission key in force.
        names: the members to prove, the most important ones first. Those that do not fit are left out.
    """
    if len(log.hand_overs) > MOST_HAND_OVERS:
        return b""
    members = [*log.members.values()]
    leaves = [
        msgspec.msgpack.encode(_Leaf(member.name, member.key, member.role, log.added[member.name])) for member in members
    ]
    tree = merkle.MerkleTree(leaves)
    places = {member.name: place for place, member in enumerate(members)}
    content = msgspec.msgpack.encode(
        Checkpoint(log.federation, log.membership_version, log.last, log.rounds, tree.size, tree.root)
    )
    hand_overs = [msgspec.msgpack.decode(each, type=Signed) for each in log.hand_overs]
    made = _Beginning(content, identity.sign(_LABEL + content), hand_overs, [])
    size = len(msgspec.msgpack.encode(made)) + 2
    for name in dict.fromkeys(names):
        proven = _Proven(places[name], leaves[places[name]], tree.proof(places[name]))
        size += len(msgspec.msgpack.encode(proven))
        if size > LIMIT or len(made.members) == MOST_MEMBERS:
            break
        made.members.append(proven)
    return msgspec.msgpack.encode(made)


def read(data: bytes, file: Federation) -> Beginning:
    """Verify a checkpoint with its proofs, from a federation's file alone.

    Raises:
        ProtocolError("membership"): it is malformed, not signed by the admission key, or a member is not proven.
    """
    try:
        if len(data) > LIMIT:
            raise ProtocolError("membership", f"a checkpoint of {len(data)} bytes")
        found = _decoder.decode(data)
        checkpoint = _checkpoint.decode(found.checkpoint)
        leaves = [_leaf.decode(each.leaf) for each in found.members]
        admissions = _follow(found.hand_overs, file)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("membership", str(error)) from error
    if checkpoint.federation != file.id:
        raise ProtocolError("membership", "a checkpoint of another federation")
    if not is_valid(admissions[-1], found.signature, _LABEL + found.checkpoint):
        raise ProtocolError("membership", "a checkpoint without a signature of the admission key")
    for each, leaf in zip(found.members, leaves, strict=True):
        if not merkle.verify(each.leaf, each.index, checkpoint.size, each.proof, checkpoint.root):
            raise ProtocolError("membership", f"{leaf.name!r} is not proven to be a member")
        if not NAME.fullmatch(leaf.name):
            raise ProtocolError("membership", f"name {leaf.name!r} must have at most 64 letters, digits, '.', '_' and '-'")
    return Beginning(
        checkpoint.membership_version,
        checkpoint.last,
        checkpoint.rounds,
        checkpoint.size,
        admissions,
        tuple(Member(leaf.name, leaf.key, leaf.role) for leaf in leaves),
        {leaf.name: leaf.added for leaf in leaves},
        bytes(data),
    )


def _follow(hand_overs: Sequence[Signed], file: Federation) -> tuple[bytes, ...]:
    """Return the admission keys to which hand-overs lead from the one in the federation's file."""
    admissions, number = [file.admission], 0
    for signed in hand_overs:
        entry = decode_entry(signed.entry)
        if not isinstance(entry, Entry) or entry.action != "hand-over" or entry.federation != file.id:
            raise ProtocolError("membership", "an entry that is no hand-over of this federation")
        if entry.membership_version <= number:
            raise ProtocolError("membership", "hand-overs in another order")
        if not is_valid(admissions[-1], signed.signature, signature_label(entry) + signed.entry):
            raise ProtocolError("membership", "a hand-over without a signature of the admission key")
        admissions.append(entry.key)
        number = entry.membership_version
    return tuple(admissions)
