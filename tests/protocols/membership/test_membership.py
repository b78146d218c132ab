"""Signed file of a federation, signed log of its members, and invitations and requests to join."""

import base64
import dataclasses
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.protocols.errors import FederationError, ProtocolError
from p2pfl.protocols.identity import Identity, Verifier
from p2pfl.protocols.membership import federation_file, invitation
from p2pfl.protocols.membership import log as membership
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import Invitation, Join, Joined, JoinRefused, Request
from p2pfl.protocols.membership.log import Entry, Membership, Signed
from tests.support.weak_keys import WEAK

ADMISSION, NEXT, ALICE, BOB, CAROL, EVE = (Identity.from_seed(bytes([k]) * 32) for k in range(1, 7))
TABLES = {"name": "home", "rounds": 5, "task": {"name": "digits"}}
FILE = Federation.sign(TABLES, ADMISSION)
OTHER = Federation.sign(TABLES, ADMISSION)


def flipped(data):
    """Every change of a single bit."""
    for position in range(8 * len(data)):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        yield bytes(changed)


def signed_by(identity, content):
    """A federation's file with this content, whatever it says, honestly signed."""
    signature = identity.sign(b"p2pfl federation 1\0" + content)
    return content + f"# signature: {signature.hex()}\n".encode()


# The file


def test_a_federation_is_read_as_it_was_signed():
    read = Federation.parse(FILE.data)
    assert read == FILE
    assert read.tables == TABLES
    assert (read.name, read.admission, len(read.id)) == ("home", ADMISSION.public, 16)
    assert FILE.data.startswith(b"# A p2pfl federation")
    assert FILE.data.endswith(b"\n")


def test_two_federations_of_equal_content_are_two():
    assert FILE.id != OTHER.id


@pytest.mark.slow
def test_every_flipped_bit_of_the_file_is_noticed():
    for changed in flipped(FILE.data):
        with pytest.raises(FederationError):
            Federation.parse(changed)


def test_a_file_that_is_cut_or_extended_is_noticed():
    for changed in (FILE.data[:-1], FILE.data + b"\n", FILE.data + b"x = 1\n", b"", b"\n", FILE.data + FILE.data):
        with pytest.raises(FederationError, match=r"no federation's file|damaged"):
            Federation.parse(changed)


def test_a_file_that_somebody_else_has_signed_is_forged():
    content = FILE.data[: FILE.data.rindex(b"# signature")]
    with pytest.raises(FederationError, match="damaged or forged"):
        Federation.parse(signed_by(EVE, content))


def test_a_file_that_is_too_long_is_not_looked_at():
    with pytest.raises(FederationError, match="at most 65536 bytes"):
        Federation.parse(bytes(federation_file.LIMIT + 1))
    with pytest.raises(FederationError, match="at most 65536 bytes"):
        Federation.sign(TABLES | {"more": "x" * federation_file.LIMIT}, ADMISSION)


@pytest.mark.parametrize("name", ["", "a b", "../home", "x" * 65, "home\n", 7, None])
def test_a_federation_has_a_name_that_is_fit_for_files(name):
    with pytest.raises(FederationError, match="no name for a federation"):
        Federation.sign({"name": name} if name is not None else {}, ADMISSION)


HEAD = f'admission = "{ADMISSION.public.hex()}"\n'.encode()


@pytest.mark.parametrize(
    "content",
    [
        HEAD + b'nonce = "00"\nname = "home"\nx = ',
        HEAD + b'nonce = "00"\nname = "\xff"\n',
        HEAD + b'nonce = "00"\nname = "home"\nx = ' + b"9" * 5000,
        HEAD + b'nonce = "00"\nname = "home"\nx = ' + b"[" * 20000,
        HEAD + b'name = "home"',
        HEAD + b'nonce = 7\nname = "home"',
        b'nonce = "00"\nname = "home"\nx = """\n' + HEAD + b'"""',
        b'nonce = "00"\nname = "home"\n[inner]\n' + HEAD,
        HEAD,
    ],
    ids=["broken", "no text", "digits", "depth", "no nonce", "other nonce", "in a text", "in a table", "empty"],
)
def test_a_signed_file_that_makes_no_sense_is_refused_and_nothing_else_is_raised(content):
    with pytest.raises(FederationError):
        Federation.parse(signed_by(ADMISSION, content + b"\n"))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_noise_is_no_federation(noise):
    for data in (noise, noise + FILE.data, HEAD + noise + b"\n# signature: " + b"0" * 128 + b"\n"):
        if noise:
            with pytest.raises(FederationError):
                Federation.parse(data)


# The log


def log(*names, file=FILE):
    """A log with some members, of whom each has the key of its name."""
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
    """An entry as its signer pleases; it would be the second one of `log("alice")`."""
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
    """Why a log does not take in entries; it stays as it was."""
    before = made.encode(), made.members, made.admission
    with pytest.raises(ProtocolError) as caught:
        made.extend(data)
    assert (made.encode(), made.members, made.admission) == before
    return str(caught.value)


def test_a_log_that_was_handed_on_says_the_same():
    made = log("alice", "bob", "carol")
    made.append(ADMISSION, "remove", "bob", key("bob"))
    made.append(ADMISSION, "replace", "carol", CAROL.public)
    copy = Membership(FILE, made.encode())
    assert copy.encode() == made.encode()
    assert copy.members == made.members
    assert list(copy.members) == ["alice", "carol"]
    assert copy.membership_version == 5


def test_members_are_let_in_and_others_are_kept_out_for_a_reason():
    made = log("alice", "bob")
    made.append(ADMISSION, "remove", "bob", key("bob"))
    assert made.refusal(key("alice")) == ""
    assert made.refusal(key("bob")) == "revoked"
    assert made.refusal(EVE.public) == "stranger"
    assert (made.federation, made.invites) == (FILE.id, False)


def test_a_key_that_is_replaced_is_revoked_and_the_name_keeps_its_role():
    made = Membership(FILE)
    made.append(ADMISSION, "add", "alice", key("alice"), "observer")
    made.append(ADMISSION, "replace", "alice", ALICE.public, "participant")
    assert made.refusal(key("alice")) == "revoked"
    assert made.members["alice"] == membership.Member("alice", ALICE.public, "observer")


def test_news_are_what_follows_an_epoch_as_many_as_fit():
    made = log("alice", "bob", "carol")
    size = len(made.after(2, membership.LIMIT))
    assert len(entries(made, 1)) == 2
    assert len(msgspec.msgpack.decode(made.after(0, 2 * size + 5))) == 2
    assert len(made.after(0, 2 * size + 5)) <= 2 * size + 5
    assert Membership(FILE, made.after(3, 1000)).membership_version == 0
    assert made.after(9, 1000) == encoded()


def test_what_is_known_is_passed_over_and_an_old_log_changes_nothing():
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


def test_membership_copy_grows_apart_and_tells_nobody():
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


def test_membership_members_are_sorted_and_a_mapping_stays_as_it_was():
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


@pytest.mark.parametrize("weak", WEAK, ids=bytes.hex)
def test_membership_with_a_weak_key_is_refused(weak):
    made = log("alice", "bob")
    for change in (("add", "carol", weak), ("replace", "bob", weak), ("hand-over", "", weak)):
        with pytest.raises(FederationError, match="a key without a secret"):
            made.append(ADMISSION, *change)
    assert made.membership_version == 2


def test_federation_file_by_a_weak_key_is_forged():
    content = HEAD.replace(ADMISSION.public.hex().encode(), WEAK[0].hex().encode()) + b'nonce = ""\nname = "home"\n'
    with pytest.raises(FederationError, match="damaged or forged"):
        Federation.parse(content + f"# signature: {(WEAK[0] + bytes(32)).hex()}\n".encode())


def test_request_with_a_weak_key_is_refused():
    with pytest.raises(FederationError, match="not signed with the keys that it names"):
        Request.parse(request(key=WEAK[0], replaces=None, signature=WEAK[0] + bytes(32), old_signature=None))


def test_a_change_is_told_once_however_many_entries_it_has():
    made, told = log("alice"), []
    more = log("alice", "bob", "carol")
    made.on_change.append(lambda: told.append(list(made.members)))
    assert made.extend(more.encode()) == 2
    assert told == [["alice", "bob", "carol"]]


def test_of_two_entries_of_one_epoch_the_first_stands():
    made, other = log("alice", "bob"), log("alice", "carol")
    assert cause(made, other.encode()) == "membership fork: two entries of membership version 2; the first stands"


def test_a_fork_from_before_a_hand_over_is_still_a_fork():
    made, other = log("alice", "bob"), log("alice", "carol")
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    assert cause(made, other.encode()).startswith("membership fork")


def test_a_forger_makes_no_fork():
    assert cause(log("alice", "carol"), encoded(signed(EVE))) == (
        "membership: an entry that the admission key has not signed"
    )


def test_a_gap_is_refused_and_what_stands_before_it_is_taken():
    first, second, third = entries(log("alice", "bob", "carol"))
    made = log("alice")
    assert cause(made, encoded(third)) == "membership: entry 3 after 1"
    empty, told = Membership(FILE), []
    empty.on_change.append(lambda: told.append(empty.membership_version))
    with pytest.raises(ProtocolError, match="entry 3 after 1"):
        empty.extend(encoded(first, third))
    assert (empty.membership_version, told) == (1, [1])
    assert empty.extend(encoded(second, third)) == 2


def test_only_the_admission_key_signs():
    assert "has not signed" in cause(log("alice"), encoded(signed(EVE)))
    assert "has not signed" in cause(log("alice"), encoded(signed(ALICE)))


def test_a_signature_is_of_its_entry_only():
    good = signed(ADMISSION)
    other = signed(ADMISSION, name="carol")
    assert "has not signed" in cause(log("alice"), encoded(Signed(other.entry, good.signature)))


def test_the_log_of_another_federation_is_refused():
    assert cause(log("alice"), log("alice", "bob", file=OTHER).encode()) == "membership: an entry of another federation"


def test_an_entry_that_follows_another_log_is_refused():
    assert "names another one before it" in cause(log("alice"), encoded(signed(ADMISSION, before=bytes(32))))
    assert "names another one before it" in cause(Membership(FILE), encoded(signed(ADMISSION, membership_version=1)))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "alice"}, "there is a member named alice already"),
        ({"name": ""}, "is no name"),
        ({"name": "../bob"}, "is no name"),
        ({"name": "bob\n"}, "is no name"),
        ({"key": key("alice")}, "nobody else's"),
        ({"action": "remove"}, "there is no member named bob"),
        ({"action": "replace"}, "there is no member named bob"),
        ({"action": "remove", "name": "alice"}, "alice has another key"),
        ({"action": "replace", "name": "alice", "key": key("alice")}, "nobody else's"),
        ({"action": "hand-over", "name": "bob"}, "with a name"),
        ({"action": "hand-over", "name": "", "key": ADMISSION.public}, "was the admission key before"),
        ({"action": "promote"}, "Invalid enum value 'promote'"),
        ({"role": "king"}, "Invalid enum value 'king'"),
        ({"key": b"short"}, "length >= 32"),
        ({"name": "x" * 65}, "length <= 64"),
    ],
)
def test_signed_nonsense_is_refused(fields, why):
    assert why in cause(log("alice"), encoded(signed(ADMISSION, **fields)))


@pytest.mark.parametrize("membership_version", [0, -1, 2**32])
def test_an_epoch_is_a_positive_number_of_32_bits(membership_version):
    assert "Expected `int`" in cause(log("alice"), encoded(signed(ADMISSION, membership_version=membership_version)))


def test_a_revoked_key_never_comes_back_under_any_name():
    made = log("alice", "bob")
    made.append(ADMISSION, "remove", "bob", key("bob"))
    for name in ("bob", "robert"):
        with pytest.raises(FederationError, match="nobody else's, nor its own again"):
            made.append(ADMISSION, "add", name, key("bob"))
    with pytest.raises(FederationError, match="nobody else's"):
        made.append(ADMISSION, "replace", "alice", key("bob"))
    made.append(ADMISSION, "add", "bob", BOB.public)  # the name may
    assert made.refusal(BOB.public) == ""
    assert made.refusal(key("bob")) == "revoked"


def test_after_a_hand_over_the_old_key_decides_nothing():
    made = log("alice")
    made.append(ADMISSION, "hand-over", "", NEXT.public)
    assert made.admission == NEXT.public
    with pytest.raises(FederationError, match="not the admission key that is in force"):
        made.append(ADMISSION, "add", "bob", BOB.public)
    before = sha256(msgspec.msgpack.encode(entries(made)[1])).digest()
    assert "has not signed" in cause(made, encoded(signed(ADMISSION, membership_version=3, before=before)))
    made.append(NEXT, "add", "bob", BOB.public)
    assert Membership(FILE, made.encode()).members == made.members


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("add", "alice", EVE.public), "there is a member named alice already"),
        (("add", "eve", key("alice")), "nobody else's"),
        (("add", "e v e", EVE.public), "'e v e' is no name"),
        (("remove", "eve", EVE.public), "there is no member named eve"),
        (("replace", "eve", EVE.public), "there is no member named eve"),
    ],
)
def test_a_change_that_makes_no_sense_is_said_in_one_line_and_not_made(change, why):
    made = log("alice")
    with pytest.raises(FederationError, match=why) as caught:
        made.append(ADMISSION, *change)
    assert "\n" not in str(caught.value)
    assert made.membership_version == 1


def test_a_stranger_cannot_append():
    with pytest.raises(FederationError, match="not the admission key"):
        log("alice").append(EVE, "add", "eve", EVE.public)


@pytest.mark.slow
def test_every_flipped_bit_of_the_log_is_noticed():
    made = log("alice", "bob").encode()
    for changed in flipped(made):
        with pytest.raises(ProtocolError, match="membership"):
            Membership(FILE, changed)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=400))
def test_noise_is_no_log(noise):
    made = log("alice")
    for data in (noise, b"\xdd\xff\xff\xff\xff" + noise, b"\x91\x92\xc4\x10" + noise):
        if data != encoded():
            with pytest.raises(ProtocolError, match="membership"):
                made.extend(data)
    assert made.membership_version == 1


def test_a_log_that_is_too_long_is_not_decoded():
    with pytest.raises(ProtocolError, match="a log of 4194305 bytes"):
        log("alice").extend(bytes(membership.LIMIT + 1))


def test_a_full_log_takes_nothing_more_rather_than_lose_its_end(monkeypatch):
    made = log("alice", "bob")
    monkeypatch.setattr(membership, "LIMIT", len(made.encode()) + 100)
    with pytest.raises(FederationError, match="the log is full"):
        made.append(ADMISSION, "add", "carol", CAROL.public)
    assert Membership(FILE, made.encode()).membership_version == made.membership_version == 2


# Tokens


TOKEN = Invitation(
    FILE.id, "home", ADMISSION.public, ALICE.public, ("10.0.0.1:4100", "[::1]:4100"), bytes(range(16)), 99, "bob"
)


def test_a_token_is_read_as_it_was_made():
    assert Invitation.parse(TOKEN.encode()) == TOKEN
    assert TOKEN.encode().startswith("p2pfl-invite-")
    assert len(TOKEN.encode().split()) == 1


def test_a_token_may_have_white_space_around_it_and_be_broken_into_lines():
    word = TOKEN.encode()
    assert Invitation.parse(f"  {word[:40]}\r\n{word[40:]}\n") == TOKEN


def test_a_mistyped_token_is_said_to_be_mistyped_and_not_quoted():
    word = TOKEN.encode()
    for position in range(len("p2pfl-invite-"), len(word) - 1):
        other = "A" if word[position] != "A" else "B"
        for changed in (word[:position] + other + word[position + 1 :], word[:position] + word[position + 1 :]):
            with pytest.raises(FederationError, match="not copied as it is") as caught:
                Invitation.parse(changed)
            assert changed[13:40] not in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hello", "p2pfl-request-AAAA", "p2pfl-invite-", "p2pfl-invite-ä", "p2pfl-invite-AAAA"])
def test_what_is_no_token_is_refused(text):
    with pytest.raises(FederationError, match="an invitation"):
        Invitation.parse(text)


def word_of(prefix, content):
    return prefix + base64.urlsafe_b64encode(content + sha256(content).digest()[:4]).decode().rstrip("=")


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_noise_with_a_right_checksum_is_of_another_version(noise):
    for prefix, read in (
        ("p2pfl-invite-", Invitation.parse),
        ("p2pfl-request-", Request.parse),
        ("p2pfl-admission-", invitation.decode_admission),
    ):
        with pytest.raises(FederationError, match="of another version"):
            read(word_of(prefix, noise))


@pytest.mark.parametrize(
    "change", [{"addresses": ("x",) * 9}, {"addresses": ("x" * 257,)}, {"secret": bytes(15)}, {"expires": -1}, {"name": ""}]
)
def test_a_token_beyond_its_limits_is_refused(change):
    with pytest.raises(FederationError, match="of another version"):
        Invitation.parse(dataclasses.replace(TOKEN, **change).encode())


def test_a_secret_is_not_shown():
    secret = TOKEN.secret
    for shown in (repr(TOKEN), str(TOKEN), repr(Join(secret, "bob")), str(Join(secret, "bob"))):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


# Joining


def test_questions_and_answers_are_read_as_they_were_said():
    join = Join(bytes(16), "bob")
    assert invitation.decode_join(invitation.encode_join(join)) == join
    for answer in (Joined(b"file", b"log"), JoinRefused("no")):
        assert invitation.decode_answer(invitation.encode_join(answer)) == answer


def test_an_answer_is_no_question_and_a_question_no_answer():
    with pytest.raises(ProtocolError, match="malformed"):
        invitation.decode_join(invitation.encode_join(Joined(b"", b"")))
    with pytest.raises(FederationError, match="nonsense"):
        invitation.decode_answer(invitation.encode_join(Join(bytes(16), "bob")))


def test_what_is_too_long_is_not_decoded():
    with pytest.raises(ProtocolError, match="4097 bytes"):
        invitation.decode_join(bytes(4097))
    with pytest.raises(FederationError, match="bytes"):
        invitation.decode_answer(bytes(invitation.ANSWER_LIMIT + 1))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_no_question_and_no_answer(noise):
    with pytest.raises(ProtocolError, match="malformed"):
        invitation.decode_join(noise)
    with pytest.raises(FederationError, match="nonsense"):
        invitation.decode_answer(noise)


def test_an_error_about_a_question_does_not_quote_it():
    secret = b"0123456789abcdef"
    whole = invitation.encode_join(Join(secret, "x" * 65))
    for data in (whole, whole[:-1], whole + b"\0"):
        with pytest.raises(ProtocolError) as caught:
            invitation.decode_join(data)
        assert "0123456789" not in f"{caught.value} {caught.value.__cause__}"


# By hand


def test_a_request_is_read_as_it_was_made():
    assert Request.parse(Request.make(BOB, "bob")) == Request("bob", BOB.public, None)
    assert Request.parse(Request.make(BOB, "bob", ALICE)) == Request("bob", BOB.public, ALICE.public)


def request(**changes):
    content = base64.urlsafe_b64decode(Request.make(BOB, "bob", ALICE).removeprefix("p2pfl-request-") + "==")[:-4]
    fields = zip(("name", "key", "replaces", "signature", "old_signature"), msgspec.msgpack.decode(content), strict=True)
    return word_of("p2pfl-request-", msgspec.msgpack.encode([*(dict(fields) | changes).values()]))


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
def test_a_request_is_signed_with_every_key_that_it_names(changes):
    assert Request.parse(request()).key == BOB.public
    with pytest.raises(FederationError, match="not signed with the keys that it names"):
        Request.parse(request(**changes))


def test_a_request_has_a_name_that_is_fit_for_files():
    with pytest.raises(FederationError, match="is no name"):
        Request.parse(Request.make(BOB, "b o b"))


def test_an_admission_is_text_and_a_change_to_it_is_noticed():
    joined = Joined(FILE.data, log("alice").encode())
    text = invitation.encode_admission(joined)
    assert invitation.decode_admission(text) == joined
    assert text.isascii()
    with pytest.raises(FederationError, match="not copied as it is"):
        invitation.decode_admission(text[:100] + text[101:])
