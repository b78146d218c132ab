"""Proofs that an admission key has signed two histories of a federation's membership."""

from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import fork
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership, Signed

ADMISSION, NEXT, EVE = (Identity.from_seed(bytes([k]) * 32) for k in range(1, 4))
FILE = Federation.sign({"name": "home", "rounds": 5}, ADMISSION)


def key(name):
    return Identity.from_seed(sha256(name.encode()).digest()).public


def log(*names, start=None):
    made = Membership(FILE) if start is None else start.copy()
    for name in names:
        made.append(ADMISSION, "add", name, key(name))
    return made


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))
def test_two_histories_prove_the_fork_to_both_sides(shared, ours, theirs):
    common = log(*(f"c{k}" for k in range(shared)))
    one = log(*(f"a{k}" for k in range(ours)), start=common)
    other = log(*(f"b{k}" for k in range(theirs)), start=common)
    longer, shorter = (one, other) if ours >= theirs else (other, one)
    newest = shorter.after(shorter.membership_version - 1, 4096)
    sent = longer.after(shorter.membership_version, 4096) if ours != theirs else longer.after(shared + ours - 1, 4096)
    for log_, entries in [(shorter, sent), (longer, newest)]:
        before = log_.encode()
        with pytest.raises(ProtocolError, match="membership fork"):
            log_.extend(entries)
        assert log_.encode() == before
        proof = fork.encode(*log_.fork)
        assert len(proof) <= fork.FORK_LIMIT
        for reader in (one, other):
            found = fork.verify(proof, FILE.id, reader.admissions)
            assert found.entries == log_.fork
            assert found.number == shorter.membership_version


def test_first_proof_is_kept_and_told_once():
    made, told = log("alice", "bob"), []
    made.on_change.append(lambda: told.append(made.fork))
    for name in ("carol", "dave"):
        with pytest.raises(ProtocolError, match="membership fork"):
            made.extend(log("alice", name).encode())
    assert len(told) == 1
    assert b"carol" in made.fork[1]
    assert made.copy().fork == made.fork


def test_entry_of_former_key_or_stranger_after_another_history_is_no_fork():
    made = log("alice", "bob")
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    other = log("alice", "carol", "dave", "erin")
    with pytest.raises(ProtocolError, match=r"^membership: entry 4 does not follow"):
        made.extend(other.after(3, 4096))
    assert made.fork is None


def test_first_entry_is_never_a_fork_alone():
    other = log("alice", "bob")
    entry = msgspec.msgpack.decode(other.encode(), type=list[Signed])[1]
    content = msgspec.msgpack.decode(entry.entry)
    content[1] = 1  # it has the number of the first, and the hash of another
    encoded = msgspec.msgpack.encode(content)
    signed = Signed(encoded, ADMISSION.sign(b"p2pfl membership 1\0" + encoded))
    empty = Membership(FILE)
    with pytest.raises(ProtocolError, match=r"^membership: entry 1 does not follow"):
        empty.extend(msgspec.msgpack.encode([signed]))
    assert empty.fork is None


def signed_entries(made):
    return [msgspec.msgpack.encode(each) for each in msgspec.msgpack.decode(made.encode(), type=list[Signed])]


def test_proof_that_proves_nothing_is_refused():
    one, other = signed_entries(log("alice", "bob", "carol")), signed_entries(log("alice", "dave", "erin"))
    foreign = Federation.sign({"name": "home"}, ADMISSION).id
    good = fork.encode(one[1], other[1])
    assert fork.verify(good, FILE.id, [NEXT.public, ADMISSION.public]).number == 2
    assert fork.verify(fork.encode(one[1], other[2]), FILE.id, [ADMISSION.public]).number == 2
    for proof, federation, admissions, why in [
        (fork.encode(one[1], one[1]), FILE.id, ADMISSION, "do not contradict"),
        (fork.encode(one[1], one[2]), FILE.id, ADMISSION, "do not contradict"),
        (fork.encode(one[0], other[2]), FILE.id, ADMISSION, "do not contradict"),
        (fork.encode(other[2], one[1]), FILE.id, ADMISSION, "do not contradict"),
        (good, foreign, ADMISSION, "another federation"),
        (good, FILE.id, EVE, "without a signature"),
        (good[:-1], FILE.id, ADMISSION, "truncated"),
        (msgspec.msgpack.encode([msgspec.Raw(one[0])]), FILE.id, ADMISSION, "length"),
        (bytes(fork.FORK_LIMIT + 1), FILE.id, ADMISSION, "a proof of 1166 bytes"),
    ]:
        with pytest.raises(ProtocolError, match=why):
            fork.verify(proof, federation, [admissions.public])


def test_proof_with_changed_bit_is_refused():
    one, other = signed_entries(log("alice", "bob")), signed_entries(log("alice", "dave"))
    good = fork.encode(one[1], other[1])
    for position in range(0, 8 * len(good), 5):
        changed = bytearray(good)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(ProtocolError, match="membership"):
            fork.verify(bytes(changed), FILE.id, [ADMISSION.public])
