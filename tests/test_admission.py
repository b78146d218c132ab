"""Who is let into a federation, by token and by hand, and what of that is kept in the folders of nodes."""

import base64
import dataclasses
import os
import shutil
import stat
import sys
import threading
from contextlib import contextmanager
from functools import partial

import pytest

from node import admission, agreement, config
from node.admission import Desk, MembershipFile, load_federation
from p2pfl.errors import ConfigurationError
from p2pfl.task import Part, make_task
from protocols.federation import Federation
from protocols.identity import Identity
from protocols.invitation import Invitation, Join, Joined, JoinRefused, decode_answer, encode_join
from protocols.membership import Membership

NOW = 1_800_000_000.0
BOB, CAROL, EVE = (Identity.from_seed(bytes([k]) * 32) for k in range(1, 4))


@pytest.fixture(scope="module")
def digits():
    return make_task("digits", {}, Part(0, 1), 0)


class Home:
    """The folders of some nodes, of which alice has made a federation."""

    def __init__(self, root, digits):
        self.root = root
        self.alice = self.node("alice")
        self.tables = agreement.draft("home", config.load(self.alice), digits)
        self.backup = root / "backup.pem"
        self.file = admission.create_federation(self.alice, self.tables, self.backup)

    def node(self, name, **options):
        config.create(self.root / name, name, ":4100", **options)
        return self.root / name

    def log(self):
        return load_federation(self.alice)

    def admission_key(self):
        return Identity.load(self.alice / admission.ADMISSION)

    def token(self, role="participant", minutes=15, now=NOW):
        return admission.invite(self.alice, ["10.0.0.1:4100"], role, minutes, now)

    def bundle(self, folder, role="participant", new_key=False):
        """Admit a node by hand; return what it joins with."""
        line = admission.request(folder, new_key)
        admission.admit(self.alice, line, role, self.root / "bundle")
        return (self.root / "bundle").read_text()

    def accept(self, folder, text):
        return admission.accept_bundle(folder, text, config.load(folder), Identity.load(folder / config.KEY).public)


@pytest.fixture
def home(tmp_path, digits):
    return Home(tmp_path, digits)


class Clock:
    def __init__(self, now=NOW):
        self.now = now

    def __call__(self):
        return self.now


class Door:
    """Alice's running node, as far as it answers those who bring a token."""

    def __init__(self, home):
        self.clock = Clock()
        self.log = load_federation(home.alice)
        self.desk = Desk(home.alice, self.log, self.clock)
        self.causes = []
        self.desk.refused = lambda cause, detail: self.causes.append(cause)

    def ask(self, key, secret, name="bob"):
        return decode_answer(self.desk.answer(key.public, encode_join(Join(secret, name))))


@pytest.fixture
def door(home):
    return Door(home)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def everything(folder):
    """What is in a folder, as one string of bytes: names and contents."""
    return b"\n".join(
        str(path.relative_to(folder)).encode() + b"\n" + (path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    )


def forms(secret):
    """A secret, and how it could be written."""
    plain, safe = base64.b64encode(secret).rstrip(b"="), base64.urlsafe_b64encode(secret).rstrip(b"=")
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), plain, safe, repr(secret)[2:-1].encode()]


# Making a federation


def test_who_makes_a_federation_is_its_first_member_and_has_its_admission_key(home):
    log = home.log()
    own = Identity.load(home.alice / config.KEY)
    assert log.file == home.file
    assert log.members["alice"].key == own.public
    assert log.epoch == 1
    assert home.admission_key().public == log.admission == home.file.admission
    assert home.admission_key().public != own.public


def test_the_copy_of_the_admission_key_is_a_key_file_too(home):
    assert Identity.load(home.backup).public == home.file.admission
    assert mode(home.backup) == mode(home.alice / admission.ADMISSION) == 0o600


def test_a_copy_overwrites_nothing_and_without_it_nothing_is_made(tmp_path, digits):
    folder = tmp_path / "alice"
    config.create(folder, "alice")
    before = sorted(folder.iterdir())
    tables = agreement.draft("home", config.load(folder), digits)
    (tmp_path / "precious").write_text("precious")
    for backup, why in ((tmp_path / "precious", "exists"), (tmp_path / "none" / "backup.pem", "No such file")):
        with pytest.raises(ConfigurationError, match=why):
            admission.create_federation(folder, tables, backup)
    with pytest.raises(ConfigurationError, match="no name for a federation"):
        admission.create_federation(folder, tables | {"name": "h o m e"}, tmp_path / "backup.pem")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "backup.pem").exists()
    assert sorted(folder.iterdir()) == before
    admission.create_federation(folder, tables, tmp_path / "backup.pem")


def test_a_node_belongs_to_one_federation(home):
    with pytest.raises(ConfigurationError, match="belongs to a federation already"):
        admission.create_federation(home.alice, home.tables, home.root / "other.pem")


def test_a_node_of_no_federation_has_no_membership_and_can_do_nothing(home):
    bob = home.node("bob")
    assert load_federation(bob) is None
    for act in (
        lambda: admission.describe(bob),
        lambda: admission.revoke(bob, "alice"),
        lambda: admission.rotate(bob, home.root / "other.pem"),
        lambda: admission.invite(bob, ["x:1"], "participant", 15, NOW),
    ):
        with pytest.raises(ConfigurationError, match="belongs to no federation"):
            act()


def test_a_federation_is_described_without_secrets(home):
    shown = admission.describe(home.alice)
    assert (shown["federation"], shown["id"], shown["epoch"]) == ("home", home.file.id.hex(), 1)
    assert [member["name"] for member in shown["members"]] == ["alice"]
    assert shown["agreed"]["task"] == {"name": "digits"}
    assert "PRIVATE" not in str(shown)


# The files


def test_every_flipped_bit_of_both_files_is_noticed(home):
    for name in (admission.FEDERATION, admission.MEMBERSHIP):
        path = home.alice / name
        whole = path.read_bytes()
        for position in range(8 * len(whole)):
            changed = bytearray(whole)
            changed[position // 8] ^= 1 << position % 8
            path.write_bytes(changed)
            with pytest.raises(ConfigurationError, match=name):
                load_federation(home.alice)
        path.write_bytes(whole)
    assert home.log().epoch == 1


def test_a_log_that_is_missing_cut_or_of_another_federation_is_said(home, tmp_path, digits):
    path = home.alice / admission.MEMBERSHIP
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole + b"\0", whole[:20]):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match="membership is damaged"):
            load_federation(home.alice)
    path.unlink()
    with pytest.raises(ConfigurationError, match="membership is missing"):
        load_federation(home.alice)
    (tmp_path / "other").mkdir()
    shutil.copy(Home(tmp_path / "other", digits).alice / admission.MEMBERSHIP, path)
    with pytest.raises(ConfigurationError, match="an entry of another federation"):
        load_federation(home.alice)


def test_the_epoch_on_the_disk_never_goes_back(home):
    old = home.log()
    home.bundle(home.node("bob"))
    MembershipFile(home.alice).save(old)
    assert home.log().epoch == 2
    assert old.epoch == 1


def test_a_running_node_and_commands_lose_nothing_of_each_other(home):
    running, file = home.log(), MembershipFile(home.alice)
    running.on_change.append(lambda: file.save(running))
    file.changed()
    for name in ("bob", "carol"):
        home.bundle(home.node(name))
    # A peer tells of bob before the node has looked at the file, where carol is too.
    running.extend(home.log().after(1, 300))
    assert list(running.members) == ["alice", "bob"]
    assert list(home.log().members) == ["alice", "bob", "carol"]
    assert file.changed()
    file.merge(running)
    assert list(running.members) == ["alice", "bob", "carol"]
    assert not file.changed()


def test_a_node_sees_what_was_written_before_it_began_to_look(home):
    running = home.log()
    home.bundle(home.node("bob"))
    file = MembershipFile(home.alice)
    assert file.changed()
    file.merge(running)
    assert running.epoch == 2
    assert not file.changed()


def test_a_log_on_the_disk_that_differs_is_said_and_left(home):
    running = home.log()
    running.append(home.admission_key(), "add", "carol", CAROL.public)
    home.bundle(home.node("bob"))
    with pytest.raises(ConfigurationError, match="membership fork: two entries of epoch 2"):
        MembershipFile(home.alice).save(running)
    assert "bob" in home.log().members


def at_once(*works):
    """Do things in threads that begin together; return what they return, or raise, in order."""
    results, start = [None] * len(works), threading.Barrier(len(works))

    def do(k, work):
        start.wait()
        try:
            results[k] = work()
        except Exception as error:
            results[k] = error

    threads = [threading.Thread(target=do, args=each) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_commands_that_run_together_all_count(home):
    lines = [admission.request(home.node(f"node-{k}")) for k in range(8)]
    works = [
        partial(admission.admit, home.alice, line, "participant", home.root / f"bundle-{k}") for k, line in enumerate(lines)
    ]
    assert at_once(*works) == [f"node-{k}" for k in range(8)]
    assert home.log().epoch == 9
    assert len(home.log().members) == 9


# By token


def test_a_token_makes_a_member_with_its_role(home, door):
    token = home.token(role="observer")
    assert (token.federation, token.name, token.admission) == (home.file.id, "home", home.file.admission)
    assert token.inviter == Identity.load(home.alice / config.KEY).public
    assert token.addresses == ("10.0.0.1:4100",)
    assert token.expires == NOW + 15 * 60
    answer = door.ask(BOB, token.secret)
    assert answer == Joined(home.file.data, door.log.encode())
    assert Membership(home.file, answer.log).members["bob"].role == "observer"
    assert home.log().members == door.log.members


def test_a_token_is_only_known_by_who_holds_it(home, door, monkeypatch):
    said, answers = [], []
    door.desk.refused = lambda cause, detail: said.append((cause, detail))
    tokens = [home.token() for _ in range(3)]
    for token, times in zip(tokens, (NOW, NOW, NOW + 3600), strict=True):
        door.clock.now = times
        for key in (BOB, CAROL):
            answers.append(door.ask(key, token.secret))
    guess = os.urandom(16)
    answers.append(door.ask(EVE, guess))
    shown = everything(home.root) + repr((tokens, said, answers)).encode()
    for secret in (*(token.secret for token in tokens), guess):
        for form in forms(secret):
            assert form not in shown


def test_what_is_kept_of_a_token_is_for_its_owner_only(home):
    home.token()
    folder = home.alice / admission.INVITATIONS
    assert mode(folder) == 0o700
    assert [mode(path) for path in folder.iterdir()] == [0o600]


def refusals(door, *asked):
    """The causes of refusals; nobody came in."""
    before = door.log.epoch
    for key, secret, *name in asked:
        assert isinstance(door.ask(key, secret, *name), JoinRefused)
    assert door.log.epoch == before
    return door.causes


def test_a_token_is_good_for_one_node(home, door):
    token = home.token()
    assert isinstance(door.ask(BOB, token.secret), Joined)
    assert refusals(door, (EVE, token.secret, "eve"), (EVE, token.secret, "bob")) == ["invitation used"] * 2


def test_one_who_has_lost_the_answer_gets_it_again(home, door):
    token = home.token()
    first = door.ask(BOB, token.secret)
    door.clock.now += 3600
    assert door.ask(BOB, token.secret) == first
    assert Door(home).ask(BOB, token.secret) == first  # also of a node that was started again
    assert home.log().epoch == 2


def test_a_token_is_good_until_it_expires(home, door):
    token = home.token(minutes=15)
    door.clock.now = NOW + 15 * 60 + 1
    assert refusals(door, (BOB, token.secret)) == ["invitation expired"]
    door.clock.now = NOW + 15 * 60 - 1
    assert isinstance(door.ask(BOB, token.secret), Joined)


def test_a_token_that_was_never_given_is_unknown(home, door):
    assert refusals(door, (BOB, bytes(16))) == ["invitation unknown"]
    home.token()
    assert refusals(door, (BOB, bytes(16))) == ["invitation unknown"] * 2


def test_the_token_of_another_node_is_unknown(home, door, tmp_path, digits):
    (tmp_path / "other").mkdir()
    token = Home(tmp_path / "other", digits).token()
    assert refusals(door, (BOB, token.secret)) == ["invitation unknown"]


def test_after_ten_guesses_nobody_may_try_for_ten_minutes(home, door):
    token = home.token(minutes=60)
    assert refusals(door, *[(EVE, os.urandom(16)) for _ in range(10)]) == ["invitation unknown"] * 10
    assert refusals(door, (EVE, os.urandom(16)), (BOB, token.secret))[10:] == ["invitation locked"] * 2
    door.clock.now += admission.LOCKED
    assert isinstance(door.ask(BOB, token.secret), Joined)


def test_guesses_count_in_a_row(home, door):
    token = home.token()
    for _ in range(3):
        refusals(door, *[(EVE, os.urandom(16)) for _ in range(9)])
        assert isinstance(door.ask(BOB, token.secret), Joined)
    assert set(door.causes) == {"invitation unknown"}


def test_a_name_that_is_taken_or_unfit_does_not_use_up_the_token(home, door):
    token = home.token()
    asked = [(BOB, token.secret, name) for name in ("alice", "../bob", "b o b")]
    assert refusals(door, *asked) == ["name taken", "malformed", "malformed"]
    assert isinstance(door.ask(BOB, token.secret, "bob"), Joined)


def test_a_key_that_is_or_was_a_members_does_not_come_in_again(home, door):
    first, second = home.token(), home.token()
    door.ask(BOB, first.secret)
    assert refusals(door, (BOB, second.secret, "robert")) == ["known key"]
    admission.revoke(home.alice, "bob")
    asked = [(BOB, first.secret), (BOB, second.secret, "robert")]
    door.causes.clear()
    for key, secret, *name in asked:
        assert isinstance(door.ask(key, secret, *name), JoinRefused)
    assert door.causes == ["known key"] * 2


def test_noise_is_answered_with_a_refusal(door):
    answer = decode_answer(door.desk.answer(EVE.public, b"\xff" * 100))
    assert isinstance(answer, JoinRefused)
    assert door.causes == ["malformed"]


def test_of_two_who_come_at_once_with_a_token_one_is_let_in(home):
    for k in range(5):
        token, doors = home.token(), [Door(home), Door(home)]
        keys = [Identity.from_seed(os.urandom(32)) for _ in doors]
        answers = at_once(
            *(partial(door.ask, key, token.secret, key.public.hex()) for door, key in zip(doors, keys, strict=True))
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["JoinRefused", "Joined"]
        assert doors[0].causes + doors[1].causes == ["invitation used"]
        assert home.log().epoch == k + 2


def test_a_desk_sees_what_commands_did_meanwhile(home, door):
    home.bundle(home.node("carol"))
    token = home.token()
    assert refusals(door, (BOB, token.secret, "carol")) == ["name taken"]
    assert isinstance(door.ask(BOB, token.secret), Joined)
    assert list(door.log.members) == ["alice", "bob", "carol"]


def test_a_desk_keeps_what_was_heard_but_could_not_be_written(home, door):
    door.log.append(home.admission_key(), "add", "carol", CAROL.public)
    assert isinstance(door.ask(BOB, home.token().secret), Joined)
    assert list(home.log().members) == list(door.log.members) == ["alice", "bob", "carol"]


def test_a_member_is_on_the_disk_before_anyone_is_told(home, door):
    on_disk = []
    door.log.on_change.append(lambda: on_disk.append(list(home.log().members)))
    door.ask(BOB, home.token().secret)
    assert on_disk == [["alice", "bob"]]


class Killed(BaseException):
    pass


def test_a_node_that_was_killed_while_it_let_one_in_lets_in_that_one_only(home, door, monkeypatch):
    token = home.token()

    def kill(point):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(admission, "reached", kill)
        with pytest.raises(Killed):
            door.ask(BOB, token.secret)
    assert home.log().epoch == 1
    door = Door(home)
    assert refusals(door, (EVE, token.secret, "eve")) == ["invitation used"]
    assert isinstance(door.ask(BOB, token.secret), Joined)


@contextmanager
def limited(size):
    """Let this process write no file of more than `size` bytes: the honest, small sister of a full disk."""
    resource = pytest.importorskip("resource", reason="there are no file size limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_the_disk_is_full_nobody_is_let_in_and_the_token_stays_good(home, door):
    token = home.token()
    for size in (10, 300):  # too little for the token's file; enough for it, too little for the log
        with limited(size):
            assert set(refusals(door, (BOB, token.secret))) == {"join failed"}
        assert home.log().epoch == 1
    assert isinstance(door.ask(BOB, token.secret), Joined)
    assert home.log().epoch == 2


def test_tokens_are_made_only_where_the_admission_key_in_force_is(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    with pytest.raises(ConfigurationError, match=r"has no admission\.pem"):
        admission.invite(bob, ["x:1"], "participant", 15, NOW)
    shutil.copy(home.backup, bob / admission.ADMISSION)
    admission.rotate(home.alice, home.root / "second.pem")
    MembershipFile(bob).save(home.log())
    with pytest.raises(ConfigurationError, match="not the admission key any more"):
        admission.invite(bob, ["x:1"], "participant", 15, NOW)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_token_is_good_for_a_sensible_time(home, minutes):
    with pytest.raises(ConfigurationError, match="a token is good for up to"):
        home.token(minutes=minutes)


def test_a_token_that_could_not_be_read_is_not_made(home):
    for addresses in (["x:1"] * 9, ["x" * 300]):
        with pytest.raises(ConfigurationError, match="8 addresses of 256 characters at most"):
            admission.invite(home.alice, addresses, "participant", 15, NOW)
    longest = admission.invite(home.alice, ["x" * 256] * 8, "participant", 15, NOW)
    assert Invitation.parse(longest.encode()) == longest


# What a newcomer takes


class Newcomer:
    """Bob, who has used a token and holds the answer."""

    def __init__(self, home, **options):
        self.folder = home.node("bob", **options)
        self.key = Identity.load(self.folder / config.KEY)
        self.token = home.token()
        self.answer = Door(home).ask(self.key, self.token.secret)

    def accept(self, **changes):
        given = {"joined": self.answer, "invitation": self.token, "own": config.load(self.folder), "key": self.key.public}
        return admission.accept(self.folder, **{**given, **changes})

    def refuses(self, **changes):
        """Why it takes nothing; nothing of it is kept."""
        with pytest.raises(ConfigurationError) as caught:
            self.accept(**changes)
        assert load_federation(self.folder) is None
        assert not (self.folder / admission.MEMBERSHIP).exists()
        assert "\n" not in str(caught.value)
        return str(caught.value)


def test_a_newcomer_keeps_what_it_was_given(home):
    bob = Newcomer(home)
    assert bob.accept() == "home"
    kept = load_federation(bob.folder)
    assert kept.file == home.file
    assert kept.encode() == home.log().encode()
    assert not (bob.folder / admission.ADMISSION).exists()


def test_a_newcomer_takes_the_federation_of_its_token_only(home, tmp_path, digits):
    bob = Newcomer(home)
    other = Federation.sign(home.tables, home.admission_key())
    log = Membership(other)
    log.append(home.admission_key(), "add", "bob", bob.key.public)
    assert "another federation than the token" in bob.refuses(joined=Joined(other.data, log.encode()))
    token = dataclasses.replace(bob.token, admission=EVE.public)
    assert "admission key is another one than the token names" in bob.refuses(invitation=token)


def test_a_newcomer_takes_no_log_without_itself_in_it(home):
    bob = Newcomer(home)
    log = home.log()
    without = Membership(home.file, log.after(0, 250))
    assert without.epoch == 1
    assert "not among the members" in bob.refuses(joined=Joined(home.file.data, without.encode()))
    assert "not among the members" in bob.refuses(key=EVE.public)
    admission.revoke(home.alice, "bob")
    assert "not among the members" in bob.refuses(joined=Joined(home.file.data, home.log().encode()))


def test_a_newcomer_takes_nothing_that_was_changed(home):
    bob = Newcomer(home)
    file, log = bob.answer.file, bob.answer.log
    assert "damaged or forged" in bob.refuses(joined=Joined(file.replace(b"rounds = 10", b"rounds = 99"), log))
    assert "membership" in bob.refuses(joined=Joined(file, log[:-1] + bytes([log[-1] ^ 1])))
    assert "membership" in bob.refuses(joined=Joined(file, b"nonsense"))


def test_a_hand_over_between_token_and_answer_does_no_harm(home):
    bob = Newcomer(home)
    admission.rotate(home.alice, home.root / "second.pem")
    admission.rotate(home.alice, home.root / "third.pem")
    assert bob.accept(joined=Joined(home.file.data, home.log().encode())) == "home"


def federation_that_names(home, **changes):
    """A federation like home, which names other things."""
    folder = home.node("mallory")
    return folder, admission.create_federation(folder, home.tables | changes, home.root / "mallory.pem")


@pytest.mark.parametrize("kind", ["task", "policy"])
def test_what_a_federation_names_is_not_imported_unless_the_owner_has_named_it(home, tmp_path, monkeypatch, kind):
    folder, _ = federation_that_names(home, **{kind: {"name": "evil:make"}})
    bob = home.node("bob")
    for place in (bob, tmp_path / "modules"):
        place.mkdir(exist_ok=True)
        (place / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.chdir(bob)
    admission.admit(folder, admission.request(bob), "participant", home.root / "bundle")
    with pytest.raises(ConfigurationError) as caught:
        home.accept(bob, (home.root / "bundle").read_text())
    own = {"task": "digits", "policy": "dac"}[kind]
    assert str(caught.value) == (f"{kind} differs: this node's configuration names {own!r}, the federation home 'evil:make'")
    assert "evil" not in sys.modules
    assert load_federation(bob) is None


def test_a_federation_without_sense_is_refused(home):
    folder, _ = federation_that_names(home, rounds=-1)
    bob = home.node("bob")
    admission.admit(folder, admission.request(bob), "participant", home.root / "bundle")
    with pytest.raises(ConfigurationError, match="rounds"):
        home.accept(bob, (home.root / "bundle").read_text())
    assert load_federation(bob) is None


# By hand


def test_a_node_is_admitted_by_hand(home):
    bob = home.node("bob")
    assert home.accept(bob, home.bundle(bob, role="coordinator-eligible")) == "home"
    assert load_federation(bob).members["bob"].role == "coordinator-eligible"


def test_the_same_request_again_gives_the_same_admission(home):
    bob = home.node("bob")
    assert home.bundle(bob) == home.bundle(bob)
    assert home.log().epoch == 2


def test_a_name_that_is_taken_is_not_given_to_another_key(home, tmp_path):
    home.bundle(home.node("bob"))
    config.create(tmp_path / "impostor", "bob")
    with pytest.raises(ConfigurationError, match="there is a member named bob already"):
        home.bundle(tmp_path / "impostor")


def test_a_bundle_is_for_the_node_that_has_asked(home):
    bob, carol = home.node("bob"), home.node("carol")
    with pytest.raises(ConfigurationError, match="carol, is not among the members"):
        home.accept(carol, home.bundle(bob))


@pytest.mark.parametrize("line", ["", "nonsense", "p2pfl-request-AAAA"])
def test_a_request_that_is_none_is_refused(home, line):
    with pytest.raises(ConfigurationError, match="a request"):
        admission.admit(home.alice, line, "participant", home.root / "bundle")
    assert not (home.root / "bundle").exists()


def test_only_the_admission_key_admits_and_revokes(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    line = admission.request(home.node("carol"))
    for act in (
        lambda: admission.admit(bob, line, "participant", home.root / "bundle"),
        lambda: admission.revoke(bob, "alice"),
        lambda: admission.rotate(bob, home.root / "second.pem"),
    ):
        with pytest.raises(ConfigurationError, match=r"has no admission\.pem"):
            act()


def test_who_is_revoked_is_no_member_and_its_key_never_is_again(home):
    bob = home.node("bob")
    line = admission.request(bob)
    home.accept(bob, home.bundle(bob))
    admission.revoke(home.alice, "bob")
    key = Identity.load(bob / config.KEY).public
    assert home.log().refusal(key) == "revoked"
    with pytest.raises(ConfigurationError, match="nobody else's, nor its own again"):
        admission.admit(home.alice, line, "participant", home.root / "bundle")
    with pytest.raises(ConfigurationError, match="there is no member named bob; there are alice"):
        admission.revoke(home.alice, "bob")


def test_a_node_gets_another_key_and_keeps_its_name_and_role(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob, role="observer"))
    old = Identity.load(bob / config.KEY).public
    home.accept(bob, home.bundle(bob, new_key=True))
    new = Identity.load(bob / config.KEY).public
    log = load_federation(bob)
    assert (log.members["bob"].key, log.members["bob"].role) == (new, "observer")
    assert (log.refusal(old), log.refusal(new)) == ("revoked", "")
    assert Identity.load(bob / "key.pem.old").public == old


def test_a_revoked_node_comes_back_with_another_key(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    admission.revoke(home.alice, "bob")
    home.accept(bob, home.bundle(bob, new_key=True))
    assert load_federation(bob).refusal(Identity.load(bob / config.KEY).public) == ""


def test_a_node_that_runs_or_has_an_older_key_beside_it_keeps_its_key(home):
    bob = home.node("bob")
    before = (bob / config.KEY).read_bytes()
    with config.lock(bob), pytest.raises(ConfigurationError, match="stop the node"):
        admission.request(bob, new_key=True)
    (bob / "key.pem.old").write_text("an older one")
    with pytest.raises(ConfigurationError, match=r"key\.pem\.old exists"):
        admission.request(bob, new_key=True)
    assert (bob / config.KEY).read_bytes() == before


# Handing over


def test_after_a_hand_over_the_new_key_decides(home):
    old = home.admission_key()
    admission.rotate(home.alice, home.root / "second.pem")
    new = home.admission_key()
    assert home.log().admission == new.public == Identity.load(home.root / "second.pem").public != old.public
    assert Identity.load(home.alice / "admission.pem.old").public == old.public
    assert mode(home.alice / "admission.pem.old") == mode(home.root / "second.pem") == 0o600
    home.bundle(home.node("bob"))
    shutil.copy(home.backup, home.alice / admission.ADMISSION)
    with pytest.raises(ConfigurationError, match="not the admission key any more"):
        home.bundle(home.node("carol"))


def test_a_hand_over_without_a_copy_does_not_happen(home):
    with pytest.raises(ConfigurationError, match="exists"):
        admission.rotate(home.alice, home.backup)
    assert home.log().epoch == 1
    assert not (home.alice / "admission.pem.new").exists()
    home.bundle(home.node("bob"))


def test_a_hand_over_that_was_interrupted_after_it_was_signed_is_ended(home):
    old = (home.alice / admission.ADMISSION).read_bytes()
    admission.rotate(home.alice, home.root / "second.pem")
    (home.alice / admission.ADMISSION).replace(home.alice / "admission.pem.new")
    (home.alice / "admission.pem.old").unlink()
    (home.alice / admission.ADMISSION).write_bytes(old)
    (home.alice / admission.ADMISSION).chmod(0o600)
    home.bundle(home.node("bob"))
    assert home.admission_key().public == home.log().admission
    assert (home.alice / "admission.pem.old").read_bytes() == old
    assert not (home.alice / "admission.pem.new").exists()


def test_a_hand_over_that_was_interrupted_before_it_was_signed_is_done_anew(home):
    stray = Identity.create(home.alice / "admission.pem.new").public
    admission.rotate(home.alice, home.root / "second.pem")
    assert home.log().admission == home.admission_key().public != stray


def test_private_keys_are_nowhere_but_in_their_files(home):
    """Not in what is printed, sent or written for others."""
    bob = home.node("bob")
    text = home.bundle(bob)
    shown = "\n".join([admission.request(bob), text, str(admission.describe(home.alice)), home.token().encode()])
    for path in (home.alice / admission.ADMISSION, home.alice / config.KEY, bob / config.KEY):
        lines = path.read_text().splitlines()
        secret = lines[lines.index("-----BEGIN PRIVATE KEY-----") + 1]
        seed = base64.b64decode(secret)[-32:]
        for form in (secret.encode(), *forms(seed)):
            assert form not in shown.encode()
