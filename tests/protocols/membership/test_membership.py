"""Signed file of a federation, signed log of its members, and invitations and requests to join."""

import base64
import dataclasses
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity, Verifier
from p2pfl.protocols.membership import federation_file, invitation
from p2pfl.protocols.membership import log as membership
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import Invitation, Join, Joined, JoinRefused, Request
from p2pfl.protocols.membership.log import Entry, Extension, Membership, Signed
from tests.support.depth import many
from tests.support.weak_keys import WEAK

ADMISSION, NEXT, ALICE, BOB, CAROL, EVE = (Identity.from_seed(bytes([k]) * 32) for k in range(1, 7))
TABLES = {"name": "home", "rounds": 5, "task": {"name": "digits"}}
FILE = Federation.sign(TABLES, ADMISSION)
OTHER = Federation.sign(TABLES, ADMISSION)


def flipped(data):
    """Yield the data with one bit flipped: each bit with P2PFL_DEEP, else one of almost every byte."""
    for position in range(0, 8 * len(data), many(9, 1)):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        yield bytes(changed)


def signed_by(identity, content):
    """Return a federation file with any content and a valid signature."""
    signature = identity.sign(b"p2pfl federation 1\0" + content)
    return content + f"# signature: {signature.hex()}\n".encode()


# The file


def test_federation_parse_returns_signed_content():
    read = Federation.parse(FILE.data)
    assert read == FILE
    assert read.tables == TABLES
    assert (read.name, read.admission, len(read.id)) == ("home", ADMISSION.public, 16)
    assert FILE.data.startswith(b"# A p2pfl federation")
    assert FILE.data.endswith(b"\n")


def test_federations_of_equal_content_have_different_ids():
    assert FILE.id != OTHER.id


@pytest.mark.slow
def test_federation_parse_detects_every_flipped_bit():
    for changed in flipped(FILE.data):
        with pytest.raises(FederationError):
            Federation.parse(changed)


def test_federation_parse_detects_cut_or_extended_file():
    for changed in (FILE.data[:-1], FILE.data + b"\n", FILE.data + b"x = 1\n", b"", b"\n", FILE.data + FILE.data):
        with pytest.raises(FederationError, match=r"not a federation file|damaged"):
            Federation.parse(changed)


def test_federation_parse_rejects_signature_of_another_key():
    content = FILE.data[: FILE.data.rindex(b"# signature")]
    with pytest.raises(FederationError, match="damaged or forged"):
        Federation.parse(signed_by(EVE, content))


def test_federation_rejects_file_that_is_too_long():
    with pytest.raises(FederationError, match="at most 65,536 are allowed"):
        Federation.parse(bytes(federation_file.LIMIT + 1))
    with pytest.raises(FederationError, match="at most 65,536 are allowed"):
        Federation.sign(TABLES | {"more": "x" * federation_file.LIMIT}, ADMISSION)


@pytest.mark.parametrize("name", ["", "a b", "../home", "x" * 65, "home\n", 7, None])
def test_federation_rejects_name_unfit_for_files(name):
    with pytest.raises(FederationError, match="federation name"):
        Federation.sign({"name": name} if name is not None else {}, ADMISSION)


HEAD = f'admission = "{ADMISSION.public.hex()}"\n'.encode()


@pytest.mark.parametrize(
    "content",
    [
        HEAD + b'nonce = "00"\nname = "home"\nx = ',
        HEAD + b'nonce = "00"\nname = "\xff"\n',
        HEAD + b'nonce = "00"\nname = "home"\nx = ' + b"9" * 5000,
        HEAD + b'nonce = "00"\nname = "home"\nx = ' + b"[" * 20000,
        HEAD + b'nonce = "00"\nname = "home"\nx = ' + b"9" * 20,
        HEAD + b'nonce = "00"\nname = "home"\n' + b"x." * 80 + b"x = 1",
        HEAD + b'name = "home"',
        HEAD + b'nonce = 7\nname = "home"',
        b'nonce = "00"\nname = "home"\nx = """\n' + HEAD + b'"""',
        b'nonce = "00"\nname = "home"\n[inner]\n' + HEAD,
        HEAD,
    ],
    ids=[
        "broken",
        "no text",
        "digits",
        "depth",
        "64 bits",
        "dotted key",
        "no nonce",
        "other nonce",
        "in a text",
        "in a table",
        "empty",
    ],
)
def test_federation_parse_rejects_signed_nonsense(content):
    with pytest.raises(FederationError):
        Federation.parse(signed_by(ADMISSION, content + b"\n"))


@pytest.mark.slow
@given(st.binary(max_size=400))
def test_federation_parse_rejects_noise(noise):
    for data in (noise, noise + FILE.data, HEAD + noise + b"\n# signature: " + b"0" * 128 + b"\n"):
        if noise:
            with pytest.raises(FederationError):
                Federation.parse(data)


# The log


def log(*names, file=FILE):
    """Return a log with the given members, whose keys are derived from their names."""
    made = Membership(file)
    for name in names:
        made.append(ADMISSION, "add", name, key(name))
    return made


def key(name):
    return Identity.from_seed(sha256(name.encode()).digest()).public


def entries(made, start=0):
    return msgspec.msgpack.decode(made.after(start, membership.LIMIT), type=list[Signed])


def encoded(*signed):
    return msgspec.msgpack.encode(list(signed))


def signed(identity, **fields):
    """Return a signed entry with any fields; by default it follows the entry of `log("alice")`."""
    before = sha256(msgspec.msgpack.encode(entries(log("alice"))[0])).digest()
    values = {
        "federation": FILE.id,
        "membership_version": 2,
        "before": before,
        "action": "add",
        "name": "bob",
        "key": key("bob"),
    }
    entry = msgspec.msgpack.encode(Entry(**{**values, "role": "participant", **fields}))
    return Signed(entry, identity.sign(b"p2pfl membership 1\0" + entry))


def cause(made, data):
    """Check that a log rejects entries and stays unchanged; return the error message."""
    before = made.encode(), made.members, made.admission
    with pytest.raises(ProtocolError) as caught:
        made.extend(data)
    assert (made.encode(), made.members, made.admission) == before
    return str(caught.value)


def test_membership_round_trips():
    made = log("alice", "bob", "carol")
    made.append(ADMISSION, "remove", "bob", key("bob"))
    made.append(ADMISSION, "replace", "carol", CAROL.public)
    copy = Membership(FILE, made.encode())
    assert copy.encode() == made.encode()
    assert copy.members == made.members
    assert list(copy.members) == ["alice", "carol"]
    assert copy.membership_version == 5


def test_refusal_distinguishes_member_revoked_and_stranger():
    made = log("alice", "bob")
    made.append(ADMISSION, "remove", "bob", key("bob"))
    assert made.refusal(key("alice")) == ""
    assert made.refusal(key("bob")) == "revoked"
    assert made.refusal(EVE.public) == "stranger"
    assert (made.federation, made.invites) == (FILE.id, False)


def test_replaced_key_is_revoked_and_name_keeps_role():
    made = Membership(FILE)
    made.append(ADMISSION, "add", "alice", key("alice"), "observer")
    made.append(ADMISSION, "replace", "alice", ALICE.public, "participant")
    assert made.refusal(key("alice")) == "revoked"
    assert made.members["alice"] == membership.Member("alice", ALICE.public, "observer")


def test_after_returns_later_entries_that_fit_limit():
    made = log("alice", "bob", "carol")
    size = len(made.after(2, membership.LIMIT))
    assert len(entries(made, 1)) == 2
    assert len(msgspec.msgpack.decode(made.after(0, 2 * size + 5))) == 2
    assert len(made.after(0, 2 * size + 5)) <= 2 * size + 5
    assert Membership(FILE, made.after(3, 1000)).membership_version == 0
    assert made.after(9, 1000) == encoded()


def test_extend_with_older_log_changes_nothing():
    made = log("alice", "bob")
    old = made.encode()
    made.append(ADMISSION, "remove", "bob", key("bob"))
    told = []
    made.on_change.append(lambda: told.append(made.membership_version))
    assert made.extend(old) == 0
    assert made.membership_version == 3
    assert made.refusal(key("bob")) == "revoked"
    assert told == []


def test_membership_extend_verifies_new_entries_only(monkeypatch):
    made, more, checked = log("alice", "bob", "carol"), log("alice", "bob", "carol", "dave"), []
    valid = Verifier.valid
    monkeypatch.setattr(Verifier, "valid", lambda self, *args: checked.append(1) or valid(self, *args))
    assert made.extend(more.encode()) == 1
    assert made.copy().extend(more.encode()) == 0
    assert len(checked) == 1


def test_membership_copy_is_independent():
    made, told = log("alice", "bob"), []
    made.on_change.append(lambda: told.append(made.membership_version))
    same = made.copy()
    same.append(ADMISSION, "remove", "bob", key("bob"))
    same.append(ADMISSION, "add", "carol", key("carol"))
    same.append(ADMISSION, "hand-over", "", NEXT.public)
    assert (made.membership_version, list(made.members), made.refusal(key("bob")), told) == (2, ["alice", "bob"], "", [])
    assert made.admission == ADMISSION.public
    assert made.extend(same.encode()) == 3
    assert (made.members, made.admission) == (same.members, NEXT.public)
    assert made.encode() == same.encode()


def test_members_are_sorted_and_mapping_is_a_snapshot():
    made = log("carol", "alice")
    before = made.members
    made.append(ADMISSION, "add", "bob", key("bob"))
    assert list(before) == ["alice", "carol"]
    assert list(made.members) == ["alice", "bob", "carol"]
    assert made.member("bob") == made.members["bob"]
    assert made.member("eve") is None


def test_membership_remembers_names_of_removed_members():
    made = log("alice", "bob")
    made.append(ADMISSION, "remove", "bob", key("bob"))
    assert (made.had("alice"), made.had("bob"), made.had("carol")) == (True, True, False)


def test_names_after_are_those_that_entries_are_about():
    made = log("alice", "bob")
    made.append(ADMISSION, "replace", "alice", key("alice2"))
    made.append_extension(ADMISSION, 9)
    made.append(ADMISSION, "remove", "bob", key("bob"))
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    assert [made.names_after(version) for version in range(7)] == [
        {"alice", "bob"},
        {"alice", "bob"},
        {"alice", "bob"},
        {"bob"},
        {"bob"},
        set(),
        set(),
    ]
    assert made.ended == 2


def test_key_has_a_name_while_it_is_that_of_a_member():
    made = log("alice", "bob")
    earlier = made.copy()
    made.append(ADMISSION, "replace", "alice", key("alice2"))
    made.append(ADMISSION, "remove", "bob", key("bob"))
    assert [made.name_of(key(name)) for name in ("alice", "alice2", "bob", "eve")] == [None, "alice", None, None]
    assert [earlier.name_of(key(name)) for name in ("alice", "alice2", "bob", "eve")] == ["alice", None, "bob", None]
    assert [earlier.refusal(key(name)) for name in ("alice", "alice2", "bob")] == ["", "stranger", ""]
    assert [made.refusal(key(name)) for name in ("alice", "alice2", "bob")] == ["revoked", "", "revoked"]


@pytest.mark.parametrize("weak", WEAK, ids=bytes.hex)
def test_membership_append_rejects_weak_key(weak):
    made = log("alice", "bob")
    for change in (("add", "carol", weak), ("replace", "bob", weak), ("hand-over", "", weak)):
        with pytest.raises(FederationError, match="a weak key"):
            made.append(ADMISSION, *change)
    assert made.membership_version == 2


def test_federation_parse_rejects_weak_key():
    content = HEAD.replace(ADMISSION.public.hex().encode(), WEAK[0].hex().encode()) + b'nonce = ""\nname = "home"\n'
    with pytest.raises(FederationError, match="damaged or forged"):
        Federation.parse(content + f"# signature: {(WEAK[0] + bytes(32)).hex()}\n".encode())


def test_request_parse_rejects_weak_key():
    with pytest.raises(FederationError, match="an invalid signature"):
        Request.parse(request(key=WEAK[0], replaces=None, signature=WEAK[0] + bytes(32), old_signature=None))


def test_extend_announces_change_once():
    made, told = log("alice"), []
    more = log("alice", "bob", "carol")
    made.on_change.append(lambda: told.append(list(made.members)))
    assert made.extend(more.encode()) == 2
    assert told == [["alice", "bob", "carol"]]


def chain_of(*signers):
    """Return entries that follow one another after the log of alice, one by each signer."""
    made, last = [], entries(log("alice"))[0]
    for number, signer in enumerate(signers, 2):
        before = sha256(msgspec.msgpack.encode(last)).digest()
        name = f"n{number}"
        last = signed(signer, membership_version=number, before=before, name=name, key=key(name))
        made.append(last)
    return made


def test_last_signature_covers_entries_before_it():
    made = log("alice")
    assert made.extend(encoded(*chain_of(EVE, EVE, ADMISSION))) == 3
    assert list(made.members) == ["alice", "n2", "n3", "n4"]
    assert made.revocation(key("n2")) == b""


@pytest.mark.parametrize("count", [1, 2, 3])
def test_entries_without_last_signature_are_verified_one_by_one(count):
    made = log("alice")
    with pytest.raises(ProtocolError, match="without a signature"):
        made.extend(encoded(*chain_of(*count * [ADMISSION], EVE)))
    assert made.membership_version == 1 + count
    assert "without a signature" in cause(log("alice"), encoded(*chain_of(EVE, ADMISSION, EVE)))


def test_forged_chain_is_refused_whole():
    assert "without a signature" in cause(log("alice"), encoded(*chain_of(*40 * [EVE])))


@pytest.mark.parametrize("signer", [NEXT, ADMISSION])
def test_no_later_signature_covers_hand_over(signer):
    grown = log("alice")
    (before,) = entries(grown)
    handed = signed(EVE, action="hand-over", name="", key=NEXT.public)
    follower = signed(
        signer, membership_version=3, before=sha256(msgspec.msgpack.encode(handed)).digest(), name="carol", key=key("carol")
    )
    assert "without a signature" in cause(grown, encoded(before, handed, follower))


def test_each_admission_key_covers_its_own_entries():
    made = log("alice", "bob")
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    made.append(NEXT, "add", "carol", CAROL.public)
    made.append(NEXT, "add", "eve", EVE.public)
    damaged = [msgspec.structs.replace(each, signature=bytes(64)) for each in entries(made)]
    for wrong in (0, 3):  # each changes the hash that the next entry must contain
        mixed = entries(made)
        mixed[wrong] = damaged[wrong]
        read = Membership(FILE)
        with pytest.raises(ProtocolError, match="without a signature"):
            read.extend(encoded(*mixed))
        assert read.membership_version == wrong
    assert Membership(FILE, made.encode()).members == made.members


def test_fork_keeps_first_entry():
    made, other = log("alice", "bob"), log("alice", "carol")
    assert (
        cause(made, other.encode())
        == "membership fork: two different entries of membership version 2; the first one is kept"
    )


def test_fork_from_before_hand_over_is_detected():
    made, other = log("alice", "bob"), log("alice", "carol")
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    assert cause(made, other.encode()).startswith("membership fork")


def test_forged_entry_is_not_a_fork():
    assert cause(log("alice", "carol"), encoded(signed(EVE))) == (
        "membership: an entry without a signature of the admission key"
    )


def test_extend_stops_at_gap_and_keeps_entries_before():
    first, second, third = entries(log("alice", "bob", "carol"))
    made = log("alice")
    assert cause(made, encoded(third)) == "membership: entry 3 after 1"
    empty, told = Membership(FILE), []
    empty.on_change.append(lambda: told.append(empty.membership_version))
    with pytest.raises(ProtocolError, match="entry 3 after 1"):
        empty.extend(encoded(first, third))
    assert (empty.membership_version, told) == (1, [1])
    assert empty.extend(encoded(second, third)) == 2


def test_entry_not_signed_by_admission_key_is_rejected():
    assert "without a signature" in cause(log("alice"), encoded(signed(EVE)))
    assert "without a signature" in cause(log("alice"), encoded(signed(ALICE)))


def test_signature_of_another_entry_is_rejected():
    good = signed(ADMISSION)
    other = signed(ADMISSION, name="carol")
    assert "without a signature" in cause(log("alice"), encoded(Signed(other.entry, good.signature)))


def test_log_of_another_federation_is_rejected():
    assert cause(log("alice"), log("alice", "bob", file=OTHER).encode()) == "membership: an entry of another federation"


def test_entry_that_follows_another_log_is_rejected():
    assert "does not follow the entry before it" in cause(log("alice"), encoded(signed(ADMISSION, before=bytes(32))))
    assert "does not follow the entry before it" in cause(Membership(FILE), encoded(signed(ADMISSION, membership_version=1)))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "alice"}, "there is a member named alice already"),
        ({"name": ""}, "must have at most 64"),
        ({"name": "../bob"}, "must have at most 64"),
        ({"name": "bob\n"}, "must have at most 64"),
        ({"key": key("alice")}, "cannot be used again"),
        ({"action": "remove"}, "there is no member named bob"),
        ({"action": "replace"}, "there is no member named bob"),
        ({"action": "remove", "name": "alice"}, "alice has another key"),
        ({"action": "replace", "name": "alice", "key": key("alice")}, "cannot be used again"),
        ({"action": "hand-over", "name": "bob"}, "it has a name"),
        ({"action": "hand-over", "name": "", "key": ADMISSION.public}, "a former admission key"),
        ({"action": "promote"}, "Invalid enum value 'promote'"),
        ({"role": "king"}, "Invalid enum value 'king'"),
        ({"key": b"short"}, "length >= 32"),
        ({"name": "x" * 65}, "length <= 64"),
    ],
)
def test_invalid_signed_entry_is_rejected(fields, why):
    assert why in cause(log("alice"), encoded(signed(ADMISSION, **fields)))


@pytest.mark.parametrize("membership_version", [0, -1, 2**32])
def test_membership_version_out_of_range_is_rejected(membership_version):
    assert "Expected `int`" in cause(log("alice"), encoded(signed(ADMISSION, membership_version=membership_version)))


def test_revoked_key_is_rejected_under_any_name():
    made = log("alice", "bob")
    made.append(ADMISSION, "remove", "bob", key("bob"))
    for name in ("bob", "robert"):
        with pytest.raises(FederationError, match="cannot be used again"):
            made.append(ADMISSION, "add", name, key("bob"))
    with pytest.raises(FederationError, match="cannot be used again"):
        made.append(ADMISSION, "replace", "alice", key("bob"))
    made.append(ADMISSION, "add", "bob", BOB.public)  # the name may be used again
    assert made.refusal(BOB.public) == ""
    assert made.refusal(key("bob")) == "revoked"


def test_old_admission_key_is_rejected_after_hand_over():
    made = log("alice")
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    assert made.admission == NEXT.public
    with pytest.raises(FederationError, match="not the current admission key"):
        made.append(ADMISSION, "add", "bob", BOB.public)
    before = sha256(msgspec.msgpack.encode(entries(made)[1])).digest()
    assert "without a signature" in cause(made, encoded(signed(ADMISSION, membership_version=3, before=before)))
    made.append(NEXT, "add", "bob", BOB.public)
    assert Membership(FILE, made.encode()).members == made.members


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("add", "alice", EVE.public), "there is a member named alice already"),
        (("add", "eve", key("alice")), "cannot be used again"),
        (("add", "e v e", EVE.public), "name 'e v e' must have at most 64"),
        (("remove", "eve", EVE.public), "there is no member named eve"),
        (("replace", "eve", EVE.public), "there is no member named eve"),
    ],
)
def test_append_rejects_invalid_change(change, why):
    made = log("alice")
    with pytest.raises(FederationError, match=why) as caught:
        made.append(ADMISSION, *change)
    assert "\n" not in str(caught.value)
    assert made.membership_version == 1


def test_append_by_stranger_is_rejected():
    with pytest.raises(FederationError, match="not the current admission key"):
        log("alice").append(EVE, "add", "eve", EVE.public)


@pytest.mark.slow
def test_membership_detects_every_flipped_bit():
    made = log("alice", "bob").encode()
    for changed in flipped(made):
        with pytest.raises(ProtocolError, match="membership"):
            Membership(FILE, changed)


@pytest.mark.slow
@given(st.binary(min_size=1, max_size=400))
def test_extend_rejects_noise(noise):
    made = log("alice")
    for data in (noise, b"\xdd\xff\xff\xff\xff" + noise, b"\x91\x92\xc4\x10" + noise):
        if data != encoded():
            with pytest.raises(ProtocolError, match="membership"):
                made.extend(data)
    assert made.membership_version == 1


def test_extend_rejects_log_that_is_too_long():
    with pytest.raises(ProtocolError, match="a log of 4194305 bytes"):
        log("alice").extend(bytes(membership.LIMIT + 1))


def test_log_grows_beyond_what_arrives_at_once(monkeypatch):
    monkeypatch.setattr(membership, "LIMIT", 400)  # two entries
    names = [f"n{k}" for k in range(9)]
    made, other = log(*names), log("n0")
    assert Membership(FILE, made.encode()).members == made.members
    with pytest.raises(ProtocolError, match="a log of"):
        other.extend(made.encode(), membership.LIMIT)
    told = []
    other.on_change.append(lambda: told.append(other.membership_version))
    other.catch_up(made)
    assert other.encode() == made.encode()
    assert told == [3, 5, 7, 9]


def test_longest_entry_has_stated_size():
    keys = [key(str(k)) for k in range(9)]
    longest = Signed(bytes(512), bytes(64))
    assert len(msgspec.msgpack.encode(longest)) == membership.LONGEST
    appointed = membership.CommitteeEntry(FILE.id, 2**32 - 1, bytes(32), "committee", keys, True)
    assert len(msgspec.msgpack.encode(appointed)) <= 512


# Tokens


TOKEN = Invitation(
    FILE.id, "home", ADMISSION.public, ALICE.public, ("10.0.0.1:4100", "[::1]:4100"), bytes(range(16)), 99, "bob"
)


def test_token_round_trips():
    assert Invitation.parse(TOKEN.encode()) == TOKEN
    assert TOKEN.encode().startswith("p2pfl-invite-")
    assert len(TOKEN.encode().split()) == 1


def test_token_parse_ignores_whitespace_and_line_breaks():
    word = TOKEN.encode()
    assert Invitation.parse(f"  {word[:40]}\r\n{word[40:]}\n") == TOKEN


def test_token_parse_detects_typos_without_quoting_them():
    word = TOKEN.encode()
    for position in range(len("p2pfl-invite-"), len(word) - 1):
        other = "A" if word[position] != "A" else "B"
        for changed in (word[:position] + other + word[position + 1 :], word[:position] + word[position + 1 :]):
            with pytest.raises(FederationError, match="not copied correctly") as caught:
                Invitation.parse(changed)
            assert changed[13:40] not in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hello", "p2pfl-request-AAAA", "p2pfl-invite-", "p2pfl-invite-ä", "p2pfl-invite-AAAA"])
def test_token_parse_rejects_other_text(text):
    with pytest.raises(FederationError, match="an invitation"):
        Invitation.parse(text)


def encode_word(prefix, content):
    return prefix + base64.urlsafe_b64encode(content + sha256(content).digest()[:4]).decode().rstrip("=")


@given(st.binary(min_size=1, max_size=200))
def test_noise_with_valid_checksum_is_another_version(noise):
    for prefix, read in (
        ("p2pfl-invite-", Invitation.parse),
        ("p2pfl-request-", Request.parse),
        ("p2pfl-admission-", invitation.decode_admission),
    ):
        with pytest.raises(FederationError, match="from another version"):
            read(encode_word(prefix, noise))


@pytest.mark.parametrize(
    "change", [{"addresses": ("x",) * 9}, {"addresses": ("x" * 257,)}, {"secret": bytes(15)}, {"expires": -1}, {"name": ""}]
)
def test_token_parse_rejects_values_beyond_limits(change):
    with pytest.raises(FederationError, match="from another version"):
        Invitation.parse(dataclasses.replace(TOKEN, **change).encode())


def test_secret_is_not_in_repr():
    secret = TOKEN.secret
    for shown in (repr(TOKEN), str(TOKEN), repr(Join(secret, "bob")), str(Join(secret, "bob"))):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


# Joining


def test_join_questions_and_answers_round_trip():
    join = Join(bytes(16), "bob")
    assert invitation.decode_join(invitation.encode_join(join)) == join
    for answer in (Joined(b"file", b"log"), JoinRefused("no")):
        assert invitation.decode_answer(invitation.encode_join(answer)) == answer


def test_join_decoders_reject_each_others_messages():
    with pytest.raises(ProtocolError, match="malformed"):
        invitation.decode_join(invitation.encode_join(Joined(b"", b"")))
    with pytest.raises(FederationError, match="answer of the inviting node is invalid"):
        invitation.decode_answer(invitation.encode_join(Join(bytes(16), "bob")))


def test_join_decoders_reject_messages_that_are_too_long():
    with pytest.raises(ProtocolError, match="4097 bytes"):
        invitation.decode_join(bytes(4097))
    with pytest.raises(FederationError, match="bytes"):
        invitation.decode_answer(bytes(invitation.ANSWER_LIMIT + 1))


@given(st.binary(max_size=200))
def test_join_decoders_reject_noise(noise):
    with pytest.raises(ProtocolError, match="malformed"):
        invitation.decode_join(noise)
    with pytest.raises(FederationError, match="answer of the inviting node is invalid"):
        invitation.decode_answer(noise)


def test_decode_join_error_does_not_quote_secret():
    secret = b"0123456789abcdef"
    whole = invitation.encode_join(Join(secret, "x" * 65))
    for data in (whole, whole[:-1], whole + b"\0"):
        with pytest.raises(ProtocolError) as caught:
            invitation.decode_join(data)
        assert "0123456789" not in f"{caught.value} {caught.value.__cause__}"


# By hand


def test_request_round_trips():
    assert Request.parse(Request.make(BOB, "bob")) == Request("bob", BOB.public, None)
    assert Request.parse(Request.make(BOB, "bob", ALICE)) == Request("bob", BOB.public, ALICE.public)


def request(**changes):
    content = base64.urlsafe_b64decode(Request.make(BOB, "bob", ALICE).removeprefix("p2pfl-request-") + "==")[:-4]
    fields = zip(("name", "key", "replaces", "signature", "old_signature"), msgspec.msgpack.decode(content), strict=True)
    return encode_word("p2pfl-request-", msgspec.msgpack.encode([*(dict(fields) | changes).values()]))


@pytest.mark.parametrize(
    "changes",
    [
        {"key": EVE.public},
        {"name": "robert"},
        {"replaces": EVE.public},
        {"replaces": None},
        {"old_signature": None},
        {"old_signature": bytes(64)},
        {"signature": bytes(64)},
    ],
)
def test_request_requires_signature_of_every_key(changes):
    assert Request.parse(request()).key == BOB.public
    with pytest.raises(FederationError, match="an invalid signature"):
        Request.parse(request(**changes))


def test_request_parse_rejects_name_unfit_for_files():
    with pytest.raises(FederationError, match="must have at most 64"):
        Request.parse(Request.make(BOB, "b o b"))


def test_admission_is_text_and_detects_change():
    joined = Joined(FILE.data, log("alice").encode())
    text = invitation.encode_admission(joined)
    assert invitation.decode_admission(text) == joined
    assert text.isascii()
    with pytest.raises(FederationError, match="not copied correctly"):
        invitation.decode_admission(text[:100] + text[101:])


# Extensions by more rounds


def extended(*rounds):
    made = log("alice")
    for number in rounds:
        made.append_extension(ADMISSION, number)
    return made


def extension(made, rounds, identity=ADMISSION, label=b"p2pfl membership 2\0"):
    """Return a signed extension that follows a log, as a log of one entry."""
    before = sha256(msgspec.msgpack.encode(entries(made)[-1])).digest()
    entry = msgspec.msgpack.encode(Extension(FILE.id, made.membership_version + 1, before, "extend", rounds))
    return encoded(Signed(entry, identity.sign(label + entry)))


def test_extension_raises_rounds_and_round_trips():
    made = extended(7, 12)
    assert (log("alice").rounds, made.rounds, made.membership_version) == (5, 12, 3)
    made.append(ADMISSION, "add", "bob", key("bob"))
    copy = Membership(FILE, made.encode())
    assert (copy.rounds, list(copy.members), copy.encode()) == (12, ["alice", "bob"], made.encode())


@pytest.mark.parametrize("rounds", [12, 11, 5, 0, -1, 1_000_001, 2**70])
def test_extension_must_raise_rounds_within_limit(rounds):
    made = extended(12)
    before = made.encode()
    with pytest.raises(FederationError, match=r"has 12 rounds; the new number must be greater, and at most 1,000,000"):
        made.append_extension(ADMISSION, rounds)
    assert (made.rounds, made.encode()) == (12, before)


def test_signed_extension_to_fewer_rounds_is_rejected():
    made = extended(12)
    for rounds in (12, 11):
        assert f"an extension to {rounds} rounds of a federation that has 12" in cause(made, extension(made, rounds))
    for rounds in (0, 1_000_001):
        assert "Expected `int`" in cause(made, extension(made, rounds))
    assert made.rounds == 12


def test_extension_sent_again_changes_nothing():
    made, first = extended(12, 20), extended(12)
    assert made.extend(first.encode()) == 0
    assert "two different entries of membership version 2" in cause(made, extension(log("alice"), 14))
    assert made.rounds == 20


def test_extension_is_signed_by_admission_key_in_force():
    made = log("alice")
    assert "without a signature" in cause(made, extension(made, 9, EVE))
    assert "without a signature" in cause(made, extension(made, 9, label=b"p2pfl membership 1\0"))
    with pytest.raises(FederationError, match="not the current admission key"):
        made.append_extension(ALICE, 9)
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    assert "without a signature" in cause(made, extension(made, 9))
    made.append_extension(NEXT, 9)
    assert made.rounds == 9
