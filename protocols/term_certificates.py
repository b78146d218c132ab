"""Certificates of terms: how members outside the committee know the coordinator without taking part in its election.

Theory of operation. A member of the committee that gives its vote signs (federation, term, candidate); the elected
candidate puts the signatures of a majority of the committee together, its own included. Whoever knows the committee from
the membership log verifies them, once a term, and needs no trust in the bearer. A committee that follows the rules signs
one candidate in a term, so two certificates of one term prove that a member has voted twice.

A certificate says that a coordinator was elected. It does not say that it still leads: for that the coordinator asks its
committee (the lease), before it acts. One of an earlier term is refused where a later term is known, and one of another
committee version proves nothing, because another committee has signed it. Majorities of earlier committees, which a changed
committee may need (p2pfl.protocols.election), are not in it: for that the candidate is trusted, as every member of the
committee is trusted not to lie in elections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl.protocols.election import Term
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity, verify
from p2pfl.protocols.membership.committee import MOST
from p2pfl.protocols.wire.messages import Name, Signature

LABEL = b"p2pfl term 1\0"
LIMIT = 2048  # maximum bytes of an encoded certificate
Check = Callable[[bytes, bytes, bytes], bool]


class Certificate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Votes for the coordinator of a term.

    Attributes:
        coordinator: its name.
        votes: signatures by the names of the members that signed them.
    """

    coordinator: Name
    votes: Annotated[dict[Name, Signature], Meta(max_length=MOST)]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_certificate = msgspec.msgpack.Decoder(Certificate)


def decode(payload: bytes | memoryview) -> Certificate:
    """Read a certificate.

    Raises:
        ProtocolError: `malformed` if it is not one, or longer than LIMIT.
    """
    if len(payload) > LIMIT:
        raise ProtocolError("malformed", f"a certificate of {len(payload)} bytes")
    try:
        return _certificate.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error


def signed_content(federation: bytes, term: Term, candidate: bytes) -> bytes:
    """Return the bytes that a vote's signature covers.

    Args:
        federation: the federation's id, 16 bytes.
        candidate: key of the member that gets the vote.
    """
    return LABEL + msgspec.msgpack.encode([federation, term.membership_version, term.number, candidate])


def sign_vote(identity: Identity, federation: bytes, term: Term, candidate: bytes) -> bytes:
    """Return the signature of a vote. The vote must be on the disk before."""
    return identity.sign(signed_content(federation, term, candidate))


def check_certificate(
    certificate: Certificate,
    term: Term,
    *,
    federation: bytes,
    committee: Mapping[str, bytes],
    eligible: tuple[str, ...],
    check: Check = verify,
) -> None:
    """Verify the certificate of a term of the present committee version.

    Args:
        committee: keys of the committee's members by name.
        eligible: the members that may coordinate.
        check: verifies a signature; see p2pfl.protocols.identity.verify.

    Raises:
        ProtocolError: `election` if it has the vote of somebody else, too few votes, an invalid signature, or a
            coordinator that cannot be elected.
    """
    name, votes = certificate.coordinator, certificate.votes
    if name not in eligible:
        raise ProtocolError("election", f"{name} cannot be elected in term {term}")
    if strangers := sorted(votes.keys() - committee.keys()):
        raise ProtocolError("election", f"a vote of {strangers[0]}, who is not in the committee of term {term}")
    needed = len(committee) // 2 + 1
    if len(votes) < needed:
        raise ProtocolError("election", f"{len(votes)} votes for {name} in term {term}, {needed} are needed")
    content = signed_content(federation, term, committee[name])
    for voter, signature in votes.items():
        if not check(committee[voter], signature, content):
            raise ProtocolError("election", f"the vote of {voter} in term {term} is not signed by its key")
