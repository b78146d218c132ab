"""Proofs that a membership has ended, for a former member whose log is older."""

import pytest

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import log as revocation_proof
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership

ADMISSION, BOB, CAROL, EVE, *NEXT = (Identity.from_seed(bytes([k]) * 32) for k in range(1, 25))
FILE = Federation.sign({"name": "home"}, ADMISSION)


def log(*steps):
    """Return a log with bob, and more entries: (action, name, identity)."""
    made, admission = Membership(FILE), ADMISSION
    for action, name, identity in [("add", "bob", BOB), *steps]:
        made.append(admission, action, name, identity.public)
        admission = identity if action == "hand-over" else admission
    return made


REMOVED = log(("add", "carol", CAROL), ("remove", "bob", BOB))


def test_proof_ends_membership_that_the_log_still_has():
    former, seen = log(), []
    former.on_change.append(lambda: seen.append(former.refusal(BOB.public)))
    assert former.accept_revocation(BOB.public, REMOVED.revocation(BOB.public))
    assert seen == ["revoked"]
    entry, admission = former.end_of(BOB.public)
    assert (entry.action, entry.membership_version, admission) == ("remove", 3, ADMISSION.public)
    assert former.membership_version == 1
    former.extend(REMOVED.encode())  # the log may still grow
    assert former.encode() == REMOVED.encode()
    assert former.refusal(BOB.public) == "revoked"


def test_proof_follows_hand_overs_of_the_admission_key():
    handed = log(*(("hand-over", "", key) for key in NEXT[:3]), ("replace", "bob", EVE))
    former = log()
    assert former.accept_revocation(BOB.public, handed.revocation(BOB.public))
    assert former.end_of(BOB.public).admission == NEXT[2].public


def test_proof_is_bounded_whatever_the_number_of_hand_overs():
    handed = log(*(("hand-over", "", key) for key in NEXT), ("remove", "bob", BOB))
    proof = handed.revocation(BOB.public)
    assert revocation_proof.PROOF_LIMIT - 200 < len(proof) <= revocation_proof.PROOF_LIMIT
    assert not log().accept_revocation(BOB.public, proof)  # the first hand-overs are missing
    newer = log(*(("hand-over", "", key) for key in NEXT[:15]))
    assert newer.accept_revocation(BOB.public, proof)


@pytest.mark.parametrize(
    "proof",
    [
        b"",
        b"\x90",
        REMOVED.encode(),
        Membership(Federation.sign({"name": "home"}, ADMISSION)).encode(),
        bytes(revocation_proof.PROOF_LIMIT + 1),
        log(("add", "carol", CAROL), ("remove", "carol", CAROL)).revocation(CAROL.public),
    ],
)
def test_wrong_proof_changes_nothing(proof):
    former = log()
    former.on_change.append(pytest.fail)
    assert not former.accept_revocation(BOB.public, proof)
    assert former.refusal(BOB.public) == ""
    assert former.accepted_revocation is None


OTHER = Membership(Federation.sign({"name": "other"}, ADMISSION))
for made, identity in (("add", BOB), ("remove", BOB)):
    OTHER.append(ADMISSION, made, "bob", identity.public)


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (b"\xc1", "MessagePack"),
        (bytes(revocation_proof.PROOF_LIMIT + 1), "bytes"),
        (REMOVED.encode(), "not a hand-over before its last one"),
        (log().encode(), "ends no membership"),
        (OTHER.revocation(BOB.public), "another federation"),
    ],
)
def test_proof_is_refused_for_a_reason(proof, reason):
    with pytest.raises(ProtocolError, match=reason) as refused:
        revocation_proof.verify(proof, FILE.id, 1, ADMISSION.public)
    assert refused.value.cause == "membership"


def test_proof_of_another_admission_key_or_of_a_known_entry_is_refused():
    proof = REMOVED.revocation(BOB.public)
    for version, admission, reason in ((1, EVE, "without a signature"), (3, ADMISSION, "which is known")):
        with pytest.raises(ProtocolError, match=reason) as refused:
            revocation_proof.verify(proof, FILE.id, version, admission.public)
        assert refused.value.cause == "membership"


def test_proof_may_come_twice_but_not_of_a_stranger():
    former, proof = log(), REMOVED.revocation(BOB.public)
    assert former.accept_revocation(BOB.public, proof)
    assert former.accept_revocation(BOB.public, b"")
    assert not former.accept_revocation(EVE.public, proof)


def test_log_has_no_revocation_of_members_and_strangers():
    assert REMOVED.revocation(CAROL.public) == REMOVED.revocation(EVE.public) == b""
