"""Checkpoints of the membership log, and newcomers that begin with them."""

from hashlib import sha256

import msgspec
import pytest

from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint, fork
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership

ADMISSION, NEXT, EVE = (Identity.from_seed(bytes([k]) * 32) for k in range(1, 4))
FILE = Federation.sign({"name": "home", "rounds": 5}, ADMISSION)
OTHER = Federation.sign({"name": "home", "rounds": 5}, ADMISSION)
TOLD = ["n4", "n0", "n2"]


def key(name):
    return Identity.from_seed(sha256(name.encode()).digest()).public


def log(count=5, file=FILE):
    made = Membership(file)
    for k in range(count):
        made.append(ADMISSION, "add", f"n{k}", key(f"n{k}"))
    return made


def begun(data, file=FILE):
    """Return the membership of a newcomer that has a checkpoint."""
    membership = Membership(file)
    membership.begin(checkpoint.read(data, file))
    return membership


def pages(made, start=0, limit=600):
    """Yield a log in pieces."""
    while start < made.membership_version:
        page = made.after(start, limit)
        start += len(msgspec.msgpack.decode(page))
        yield page


def test_newcomer_begins_with_told_members_and_ends_with_the_log():
    made = log()
    made.append_extension(ADMISSION, 9)
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    assert (new.membership_version, new.stored, new.is_complete, new.size) == (6, 0, False, 5)
    assert list(new.members) == sorted(TOLD)
    assert (new.rounds, new.admissions, new.added) == (9, [ADMISSION.public], {name: made.added[name] for name in TOLD})
    assert [new.refusal(key(name)) for name in ("n0", "n1", "n4")] == ["", "stranger", ""]
    told = []
    new.on_change.append(lambda: told.append(new.stored))
    for page in pages(made):
        assert not new.is_complete
        assert list(new.members) == sorted(TOLD)
        new.extend(page)
    assert told == [3, 6]
    assert new.is_complete
    assert (new.encode(), new.members, new.rounds, new.added) == (made.encode(), made.members, 9, made.added)
    assert not any(new.refusal(key(name)) for name in made.members)


def test_entries_after_the_checkpoint_count_at_once():
    made = log()
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    made.append(ADMISSION, "remove", "n2", key("n2"))
    made.append(ADMISSION, "add", "m", key("m"), "observer")
    made.append(ADMISSION, "remove", "n3", key("n3"))  # it was not told of n3
    made.append(ADMISSION, "replace", "n0", key("other"))
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    made.append_extension(NEXT, 20)
    assert new.extend(made.after(5, 4096)) == 6
    assert new.extend(made.after(5, 4096)) == 0
    assert list(new.members) == ["m", "n0", "n4"]
    assert new.size == made.size == len(made.members) == 4
    assert new.members["m"] == made.members["m"]
    assert (new.rounds, new.admission, new.membership_version, new.stored) == (20, NEXT.public, 11, 0)
    assert [new.names_after(version) for version in (0, 5, 8)] == [{"n2", "m", "n3", "n0"}] * 2 + [{"n0"}]
    assert [new.name_of(key(name)) for name in ("m", "n0", "other", "n1", "n2")] == ["m", None, "n0", None, None]
    assert [new.refusal(key(name)) for name in ("n2", "n3", "n0", "other", "m")] == [*3 * ["revoked"], "", ""]
    assert new.end_of(key("n2")).entry.action == "remove"
    assert new.revocation(key("n2")) == b""  # it has no entry to show yet
    assert new.after(5, 4096) == made.after(5, 4096)
    assert new.after(0, 4096) == b"\x90"
    copied = new.copy()
    copied.extend(made.after(0, 1 << 16))
    assert copied.is_complete
    assert not new.is_complete
    new.extend(made.after(0, 600))
    assert (new.stored, new.membership_version) == (3, 11)
    assert new.after(0, 4096) == made.after(0, 600)
    new.extend(made.after(3, 1 << 16))
    assert new.is_complete
    assert new.encode() == copied.encode() == made.encode()
    assert new.revocation(key("n2")) == made.revocation(key("n2"))


def test_newcomer_refuses_forged_and_missing_entries_after_checkpoint():
    made = log()
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    forged = log()
    entry = msgspec.msgpack.decode(made.after(4, 4096), type=list[msgspec.Raw])
    made.append(ADMISSION, "remove", "n2", key("n2"))
    made.append(ADMISSION, "remove", "n0", key("n0"))
    with pytest.raises(ProtocolError, match="entry 7 after 5"):
        new.extend(made.after(6, 4096))
    forged.append(ADMISSION, "add", "x", key("x"))
    (signed,) = msgspec.msgpack.decode(forged.after(5, 4096))
    with pytest.raises(ProtocolError, match="without a signature"):
        new.extend(msgspec.msgpack.encode([[signed[0], EVE.sign(b"p2pfl membership 1\0" + signed[0])]]))
    assert new.extend(msgspec.msgpack.encode(entry)) == 0  # entry 5 is before the checkpoint, and does not follow entry 0
    assert new.members == begun(checkpoint.make(log(), ADMISSION, TOLD)).members


def test_entry_that_contradicts_those_after_the_checkpoint_is_a_fork():
    made, other = log(), log()
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    made.append(ADMISSION, "add", "x", key("x"))
    other.append(ADMISSION, "add", "y", key("y"))
    new.extend(made.after(5, 4096))
    later = new.copy()
    with pytest.raises(ProtocolError, match="membership fork"):
        new.extend(other.after(5, 4096))
    other.append(ADMISSION, "add", "z", key("z"))
    for each in (new, later):
        with pytest.raises(ProtocolError, match="membership fork"):
            each.extend(other.after(6, 4096))
        assert not {"y", "z"} & set(each.members)
        assert fork.verify(fork.encode(*each.fork), FILE.id, [ADMISSION.public]).number == 6
    alone = begun(checkpoint.make(made, ADMISSION, TOLD))
    with pytest.raises(ProtocolError, match="membership fork"):
        alone.extend(other.after(6, 4096))
    assert alone.fork is None  # nothing but the checkpoint contradicts the entry


def test_log_that_does_not_lead_to_the_checkpoint_is_a_fork():
    made, other = log(), log(3)
    for name in ("x", "y"):
        other.append(ADMISSION, "add", name, key(name))
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"membership fork: entry 5 is another one than that of the checkpoint"):
            new.extend(other.after(new.stored, 4096))
        assert (new.stored, new.is_complete, list(new.members)) == (4, False, sorted(TOLD))
    with pytest.raises(ProtocolError, match=r"membership fork: two different entries of membership version 4"):
        new.extend(made.encode())
    assert new.fork is not None


def test_log_that_leads_neither_to_the_checkpoint_nor_to_the_entries_after_it_proves_the_fork():
    made, other = log(), log(4)
    other.append(ADMISSION, "add", "x", key("x"))
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    made.append(ADMISSION, "add", "y", key("y"))
    new.extend(made.after(5, 4096))
    with pytest.raises(ProtocolError, match="membership fork: entry 5 is another one than that of the checkpoint"):
        new.extend(other.encode())
    assert fork.verify(fork.encode(*new.fork), FILE.id, [ADMISSION.public]).number == 5


@pytest.mark.parametrize("of", ["one number", "two numbers"])
def test_newcomer_keeps_proof_of_fork_before_its_log_has_arrived(of):
    """A peer passes a proof on once, and a newcomer has no entry yet that it contradicts."""
    made, other = log(), log(2)
    other.append(ADMISSION, "add", "x", key("x"))
    other.append(ADMISSION, "add", "y", key("y"))
    one, two = made.after(2, 4096), other.after(2 if of == "one number" else 3, 4096)
    entries = [msgspec.msgpack.decode(each, type=list[msgspec.Raw])[0] for each in (one, two)]
    proof = msgspec.msgpack.encode(entries)
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    told = []
    new.on_change.append(lambda: told.append(new.fork is not None))
    harmless = msgspec.msgpack.decode(one, type=list[msgspec.Raw])[:2]
    new.extend(msgspec.msgpack.encode(harmless))
    signed = msgspec.msgpack.decode(proof)
    forged = [signed[0], [signed[1][0], EVE.sign(b"p2pfl membership 1\0" + signed[1][0])]]
    new.extend(msgspec.msgpack.encode(forged))
    assert new.fork is None
    with pytest.raises(ProtocolError, match="membership fork"):
        new.extend(proof)
    assert fork.encode(*new.fork) == proof
    assert told == [True]
    assert (new.stored, list(new.members)) == (0, sorted(TOLD))
    assert fork.verify(proof, FILE.id, new.admissions).number == 3


def test_newcomer_accepts_proof_of_its_revocation():
    made = log()
    new = begun(checkpoint.make(made, ADMISSION, TOLD))
    made.append(ADMISSION, "remove", "n4", key("n4"))
    proof = made.revocation(key("n4"))
    assert new.accept_revocation(key("n4"), proof)
    assert new.refusal(key("n4")) == "revoked"
    new.extend(log().encode())
    assert new.refusal(key("n4")) == "revoked"


def test_newcomer_cannot_sign_before_it_has_the_log():
    new = begun(checkpoint.make(log(), ADMISSION, TOLD))
    with pytest.raises(FederationError, match="has 0 of 5 entries"):
        new.append(ADMISSION, "add", "x", key("x"))


def test_checkpoint_that_the_log_has_reached_changes_nothing():
    made = log()
    data = checkpoint.make(made, ADMISSION, TOLD)
    made.append(ADMISSION, "add", "x", key("x"))
    made.begin(checkpoint.read(data, FILE))
    assert made.is_complete
    assert "x" in made.members


def test_checkpoint_follows_hand_overs():
    made = log()
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    data = checkpoint.make(made, NEXT, TOLD)
    assert checkpoint.read(data, FILE).admissions == (ADMISSION.public, NEXT.public)
    for wrong in (ADMISSION, EVE):  # the former key, and one that was never in force
        with pytest.raises(ProtocolError, match="a checkpoint without a signature"):
            checkpoint.read(checkpoint.make(made, wrong, TOLD), FILE)
    parts = msgspec.msgpack.decode(data)
    without = msgspec.msgpack.encode([*parts[:2], [], parts[3]])
    with pytest.raises(ProtocolError, match="a checkpoint without a signature"):
        checkpoint.read(without, FILE)
    forged = [parts[2][0][0], EVE.sign(b"p2pfl membership 1\0" + parts[2][0][0])]
    with pytest.raises(ProtocolError, match="a hand-over without a signature"):
        checkpoint.read(msgspec.msgpack.encode([*parts[:2], [forged], parts[3]]), FILE)
    with pytest.raises(ProtocolError, match="hand-overs in another order"):
        checkpoint.read(msgspec.msgpack.encode([*parts[:2], 2 * parts[2], parts[3]]), FILE)
    added = msgspec.msgpack.decode(made.after(0, 250))
    with pytest.raises(ProtocolError, match="no hand-over"):
        checkpoint.read(msgspec.msgpack.encode([*parts[:2], added, parts[3]]), FILE)


def test_log_with_too_many_hand_overs_has_no_checkpoint():
    made, keys = log(1), [ADMISSION, *(Identity.from_seed(bytes([k]) * 32) for k in range(50, 67))]
    for k in range(16):
        made.append(keys[k], "hand-over", "", keys[k + 1].public)
    assert checkpoint.read(checkpoint.make(made, keys[16], ["n0"]), FILE).admissions[-1] == keys[16].public
    made.append(keys[16], "hand-over", "", keys[17].public)
    assert checkpoint.make(made, keys[17], ["n0"]) == b""


def test_every_changed_bit_of_a_checkpoint_is_noticed():
    good = checkpoint.make(log(), ADMISSION, ["n1", "n3"])
    checkpoint.read(good, FILE)
    for position in range(0, 8 * len(good), 3):
        changed = bytearray(good)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(ProtocolError, match="membership"):
            checkpoint.read(bytes(changed), FILE)
    for size in range(0, len(good), 7):
        with pytest.raises(ProtocolError, match="membership"):
            checkpoint.read(good[:size], FILE)


def test_checkpoint_of_another_federation_and_former_member_are_refused():
    with pytest.raises(ProtocolError, match="another federation"):
        checkpoint.read(checkpoint.make(log(file=OTHER), ADMISSION, TOLD), FILE)
    before, after = log(), log()
    after.append(ADMISSION, "remove", "n2", key("n2"))
    old, new = (msgspec.msgpack.decode(checkpoint.make(each, ADMISSION, names)) for each, names in
                [(before, ["n2"]), (after, ["n1"])])  # fmt: skip
    with pytest.raises(ProtocolError, match="'n2' is not proven to be a member"):
        checkpoint.read(msgspec.msgpack.encode([*new[:3], old[3]]), FILE)


def test_checkpoint_of_many_members_stays_within_its_limit(monkeypatch):
    made = log(300)
    names = [f"n{k}" for k in range(300)]
    data = checkpoint.make(made, ADMISSION, names)
    assert len(data) <= checkpoint.LIMIT
    assert [member.name for member in checkpoint.read(data, FILE).members] == names[: checkpoint.MOST_MEMBERS]
    monkeypatch.setattr(checkpoint, "LIMIT", 5000)
    small = checkpoint.make(made, ADMISSION, names)
    assert 4000 < len(small) <= 5000
    assert len(checkpoint.read(small, FILE).members) < checkpoint.MOST_MEMBERS
    with pytest.raises(ProtocolError, match="a checkpoint of"):
        checkpoint.read(data, FILE)
