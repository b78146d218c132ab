"""Admission to a federation by token and by hand, and the resulting files in node folders."""

import asyncio
import base64
import dataclasses
import errno
import json
import os
import re
import shutil
import stat
import sys
import threading
from functools import partial

import pytest

from p2pfl._util.atomic_files import lock_folder
from p2pfl._util.disk import exclusive
from p2pfl._version import __version__
from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.federation import agreement, invitations, join, loading, membership_changes, membership_file
from p2pfl.node.federation import join as joining
from p2pfl.node.federation.invitations import RECOVERY, REFUSALS, InvitationService, TokenRedeemer
from p2pfl.node.federation.membership_changes import INVITATIONS
from p2pfl.node.federation.membership_file import (
    ADMISSION,
    COPY,
    FEDERATION,
    MEMBERSHIP,
    MembershipFile,
    describe_pending,
    describe_refusal,
    load_federation,
)
from p2pfl.node.folder import config
from p2pfl.node.folder.facts import read_facts, update_facts
from p2pfl.node.peering import control_messages
from p2pfl.node.peering.peering_config import JoinReply
from p2pfl.node.status import reader
from p2pfl.node.status.observer import federation_title
from p2pfl.node.status.reader import write_state
from p2pfl.protocols.identity import Identity, Verifier
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.invitation import (
    Invitation,
    Join,
    Joined,
    JoinRefused,
    Look,
    Offered,
    Rest,
    decode_answer,
    decode_join,
    encode_join,
)
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.wire import messages as m
from p2pfl.task import Part, make_task
from tests.support.limits import limited
from tests.support.loopback_nodes import folders, honest, until

NOW, BOOTED = 1_800_000_000.0, 5000.0
BOB, CAROL, EVE = (Identity.from_seed(bytes([k]) * 32) for k in range(1, 4))


def invite(folder, name, addresses, role="participant", minutes=15, now=NOW, **options):
    return invitations.invite(folder, name, addresses, role, minutes, now=now, **{"booted": BOOTED, **options})


@pytest.fixture(scope="module")
def digits():
    return make_task("digits", {}, Part(0, 1), 0)


class Home:
    """Node folders, among them that of alice, who has created a federation."""

    def __init__(self, root, digits):
        self.root = root
        self.alice = self.node("alice")
        self.tables = agreement.draft("home", config.load(self.alice), digits)
        self.backup = root / "backup.pem"
        self.file = membership_changes.create_federation(self.alice, self.tables, self.backup)

    def node(self, name, **options):
        config.create(self.root / name, name, ":4100", **options)
        return self.root / name

    def log(self):
        return load_federation(self.alice)

    def admission_key(self):
        return Identity.load(self.alice / membership_file.ADMISSION)

    def token(self, name="bob", role="participant", minutes=15, now=NOW, **options):
        return invite(self.alice, name, ["10.0.0.1:4100"], role, minutes, now, **options)

    def bundle(self, folder, role=None, new_key=False, **options):
        """Admit a node by hand; return the bundle with which it joins."""
        line = membership_changes.request(folder, new_key)
        membership_changes.admit(self.alice, line, role, self.root / "bundle", **options)
        return (self.root / "bundle").read_text()

    def accept(self, folder, text, **options):
        key = Identity.load(folder / config.KEY).public
        return membership_changes.accept_bundle(folder, text, config.load(folder), key, **options)


@pytest.fixture
def home(tmp_path, digits):
    return Home(tmp_path, digits)


class Clock:
    """Clocks of a machine: `now` may be set, `booted` only advances."""

    def __init__(self):
        self.now, self.booted = NOW, BOOTED

    def advance(self, seconds):
        self.now += seconds
        self.booted += seconds


class Inviter:
    """The part of alice's running node that answers newcomers with a token."""

    def __init__(self, home, clock=None, file=None, must_look=False):
        self.clock = clock or Clock()
        self.log = load_federation(home.alice)
        redeemer = TokenRedeemer(home.alice, file=file, now=lambda: self.clock.now, booted=lambda: self.clock.booted)
        self.service = InvitationService(redeemer, self.log, booted=lambda: self.clock.booted, must_look=must_look)
        self.causes = []
        self.refusals = []

    def ask(self, key, secret, name="bob", host="10.0.0.1"):
        return self.send(key, encode_join(Join(secret, name)), host)

    def send(self, key, frame, host="10.0.0.1"):
        reply = asyncio.run(self.service.answer(key.public, frame, host))
        if reply.cause:
            self.causes.append(reply.cause)
            self.refusals.append((reply.cause, reply.detail))
        return decode_answer(reply.frame)


@pytest.fixture
def inviter(home):
    return Inviter(home)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def folder_contents(folder):
    """Return the names and contents of a folder's files as one string of bytes."""
    return b"\n".join(
        str(path.relative_to(folder)).encode() + b"\n" + (path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    )


def encodings_of(secret):
    """Return a secret in all forms in which it could be written."""
    plain, safe = base64.b64encode(secret).rstrip(b"="), base64.urlsafe_b64encode(secret).rstrip(b"=")
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), plain, safe, repr(secret)[2:-1].encode()]


# Creation of a federation


def test_create_federation_makes_creator_member_with_key(home):
    log = home.log()
    own = Identity.load(home.alice / config.KEY)
    assert log.file == home.file
    assert log.members["alice"].key == own.public
    assert log.membership_version == 1
    assert home.admission_key().public == log.admission == home.file.admission
    assert home.admission_key().public != own.public


def test_create_federation_writes_backup_as_key_file(home):
    assert Identity.load(home.backup).public == home.file.admission
    assert mode(home.backup) == mode(home.alice / membership_file.ADMISSION) == 0o600


def test_create_federation_without_backup_writes_nothing(tmp_path, digits):
    folder = tmp_path / "alice"
    config.create(folder, "alice")
    before = list(folder.iterdir())
    tables = agreement.draft("home", config.load(folder), digits)
    (tmp_path / "precious").write_text("precious")
    for backup, why in ((tmp_path / "precious", "exists"), (tmp_path / "none" / "backup.pem", "No such file")):
        with pytest.raises(ConfigurationError, match=why):
            membership_changes.create_federation(folder, tables, backup)
    with pytest.raises(ConfigurationError, match="federation name"):
        membership_changes.create_federation(folder, tables | {"name": "h o m e"}, tmp_path / "backup.pem")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "backup.pem").exists()
    assert {*folder.iterdir()} == {*before, folder / "lock"}
    membership_changes.create_federation(folder, tables, tmp_path / "backup.pem")


def test_create_federation_refuses_second_federation_of_node(home):
    with pytest.raises(ConfigurationError, match="belongs to a federation already"):
        membership_changes.create_federation(home.alice, home.tables, home.root / "other.pem")


def test_node_leaves_a_federation_and_creates_it_again(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    home.token("carol")
    kept = {name: (home.alice / name).read_bytes() for name in (config.CONFIG, config.KEY)}
    key, log = (home.alice / ADMISSION).read_bytes(), (home.alice / MEMBERSHIP).read_bytes()
    update_facts(home.alice, federation="home", entries=2, starts=3)
    assert "bob would remain" in membership_changes.describe_leaving(home.alice)
    assert not membership_changes.describe_leaving(bob)
    first = membership_changes.leave(home.alice)
    assert (first.name, first.others, first.admission) == ("home", ("bob",), True)
    assert ((first.aside / ADMISSION).read_bytes(), (first.aside / MEMBERSHIP).read_bytes()) == (key, log)
    assert [*(first.aside / "invitations").iterdir()]
    assert {name: (home.alice / name).read_bytes() for name in kept} == kept
    assert load_federation(home.alice) is None
    facts = read_facts(home.alice)
    assert (facts.federation, facts.entries, facts.starts) == ("", 0, 3)
    again = membership_changes.create_federation(home.alice, home.tables, home.root / "again.pem")
    assert again.id != home.file.id
    membership_changes.leave(bob)
    home.accept(bob, home.bundle(bob))
    assert load_federation(bob).federation == again.id


def test_leaving_a_federation_twice_keeps_both_copies_of_its_files(home):
    bob = home.node("bob")
    bundle = home.bundle(bob)
    found = []
    for _ in range(2):
        home.accept(bob, bundle)
        found.append(membership_changes.leave(bob).aside)
    assert found[0] != found[1]
    assert all((each / FEDERATION).read_bytes() == home.file.data for each in found)
    with pytest.raises(ConfigurationError, match="belongs to no federation"):
        membership_changes.leave(bob)


def test_leaving_that_was_interrupted_is_completed(home, monkeypatch):
    replace = type(home.alice).replace

    def fail(path, target):
        if path.name == MEMBERSHIP:
            raise OSError(errno.EIO, "broken", str(path))
        return replace(path, target)

    with monkeypatch.context() as broken, pytest.raises(ConfigurationError):
        broken.setattr(type(home.alice), "replace", fail)
        membership_changes.leave(home.alice)
    left = membership_changes.leave(home.alice)
    assert {ADMISSION, MEMBERSHIP, FEDERATION} <= {path.name for path in left.aside.iterdir()}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda tables: {"task": tables["task"] | {"coming": 1}}, "task.coming"),
        (lambda tables: {"policy": tables["policy"] | {"coming": 1}}, "policy.coming"),
        (lambda tables: {"coming": 1}, "coming"),
    ],
)
def test_key_of_a_newer_version_is_not_looked_for_in_node_toml(home, change, key):
    newer = home.node("newer")
    tables = home.tables | change(home.tables)
    membership_changes.create_federation(newer, tables, home.root / "newer.pem")
    with pytest.raises(ConfigurationError, match=f"the federation home sets {key}, which p2pfl .* upgrade") as refused:
        ready = loading.load(newer)
        loading.policy_of(ready)
        loading.task_of(ready)
    assert "node.toml" not in str(refused.value)


def test_commands_of_node_without_federation_are_refused(home):
    bob = home.node("bob")
    assert load_federation(bob) is None
    for act in (
        lambda: membership_changes.describe(bob),
        lambda: membership_changes.revoke(bob, "alice"),
        lambda: membership_changes.rotate(bob, home.root / "other.pem"),
        lambda: invite(bob, "carol", ["x:1"]),
    ):
        with pytest.raises(ConfigurationError, match="belongs to no federation"):
            act()


def test_describe_shows_federation_without_secrets(home):
    shown = membership_changes.describe(home.alice)
    assert (shown["federation"], shown["id"], shown["membership_version"]) == ("home", home.file.id.hex(), 1)
    assert [member["name"] for member in shown["members"]] == ["alice"]
    assert shown["agreed"]["task"] == {"name": "digits"}
    assert "PRIVATE" not in str(shown)


# The files


@pytest.mark.slow
def test_load_federation_detects_a_flipped_bit_of_each_byte(home):
    """The tests of the protocol flip every bit of both contents, in memory."""
    (home.alice / COPY).unlink()
    for name in (FEDERATION, MEMBERSHIP):
        path = home.alice / name
        whole = path.read_bytes()
        for position in range(len(whole)):
            changed = bytearray(whole)
            changed[position] ^= 1 << position % 8
            path.write_bytes(changed)
            with pytest.raises(ConfigurationError, match=name):
                load_federation(home.alice)
        path.write_bytes(whole)
    assert home.log().membership_version == 1


def test_load_federation_reports_missing_cut_or_foreign_log(home, tmp_path, digits):
    path = home.alice / MEMBERSHIP
    whole = path.read_bytes()
    (home.alice / COPY).unlink()
    for content in (b"", whole[:-1], whole + b"\0", whole[:20]):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match="membership is damaged"):
            load_federation(home.alice)
    path.unlink()
    with pytest.raises(ConfigurationError, match="membership is missing"):
        load_federation(home.alice)
    (tmp_path / "other").mkdir()
    shutil.copy(Home(tmp_path / "other", digits).alice / MEMBERSHIP, path)
    with pytest.raises(ConfigurationError, match="an entry of another federation"):
        load_federation(home.alice)


def test_saved_membership_version_never_decreases(home):
    old = home.log()
    home.bundle(home.node("bob"))
    MembershipFile(home.alice).save(old)
    assert home.log().membership_version == old.membership_version == 2


def test_node_and_commands_keep_entries_of_each_other(home):
    running, file = home.log(), MembershipFile(home.alice)
    running.on_change.append(lambda: file.save(running.copy()))
    file.merge(running)
    for name in ("bob", "carol"):
        home.bundle(home.node(name))
    # A peer sends bob's entry before the node has read the file, which also holds carol's.
    running.extend(home.log().after(1, 300))
    assert list(running.members) == ["alice", "bob"]
    assert list(home.log().members) == ["alice", "bob", "carol"]
    assert file.membership_version > running.membership_version
    file.merge(running)
    assert list(running.members) == ["alice", "bob", "carol"]
    assert not file.has_changed()


def test_save_verifies_only_entries_of_other_processes(home, monkeypatch):
    running, file = home.log(), MembershipFile(home.alice)
    file.merge(running)
    checked, valid = [], Verifier.valid
    monkeypatch.setattr(Verifier, "valid", lambda self, *args: checked.append(1) or valid(self, *args))
    running.append(home.admission_key(), "add", "dave", EVE.public)
    file.save(running)
    assert len(checked) == 1  # the new entry, when it was appended
    home.bundle(home.node("bob"))
    checked.clear()
    file.save(running)
    assert len(checked) == 1
    assert home.log().encode() == running.encode()


def test_membership_file_detects_change_before_first_merge(home):
    running = home.log()
    home.bundle(home.node("bob"))
    file = MembershipFile(home.alice)
    assert file.has_changed()
    file.merge(running)
    assert running.membership_version == 2
    assert not file.has_changed()


def test_save_reports_fork_and_keeps_file(home):
    running = home.log()
    running.append(home.admission_key(), "add", "carol", CAROL.public)
    home.bundle(home.node("bob"))
    with pytest.raises(ConfigurationError, match="membership fork: two different entries of membership version 2"):
        MembershipFile(home.alice).save(running)
    assert "bob" in home.log().members


def run_concurrently(*works):
    """Run callables in threads that start together; return their results or exceptions in order."""
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


@pytest.mark.slow
def test_concurrent_admissions_are_all_kept(home):
    lines = [membership_changes.request(home.node(f"node-{k}")) for k in range(8)]
    works = [
        partial(membership_changes.admit, home.alice, line, "participant", home.root / f"bundle-{k}")
        for k, line in enumerate(lines)
    ]
    assert run_concurrently(*works) == [(f"node-{k}", "participant") for k in range(8)]
    assert home.log().membership_version == 9
    assert len(home.log().members) == 9


# By token


def test_token_admits_member_with_its_role(home, inviter):
    token = home.token(role="observer")
    assert (token.federation, token.name, token.admission) == (home.file.id, "home", home.file.admission)
    assert token.inviter == Identity.load(home.alice / config.KEY).public
    assert token.addresses == ("10.0.0.1:4100",)
    assert token.expires == NOW + 15 * 60
    answer = inviter.ask(BOB, token.secret)
    assert answer == Joined(home.file.data, inviter.log.encode())
    assert Membership(home.file, answer.log).members["bob"].role == "observer"
    assert home.log().members == inviter.log.members


def test_token_secret_is_neither_stored_nor_reported(home, inviter, monkeypatch):
    answers = []
    tokens = [home.token(name) for name in ("bob", "carol", "dave")]
    for token, seconds in zip(tokens, (0, 0, 3600), strict=True):
        inviter.clock.advance(seconds)
        for key in (BOB, CAROL):
            answers.append(inviter.ask(key, token.secret, token.member))
    guess = os.urandom(16)
    answers.append(inviter.ask(EVE, guess))
    shown = folder_contents(home.root) + repr((tokens, inviter.refusals, answers)).encode()
    for secret in (*(token.secret for token in tokens), guess):
        for form in encodings_of(secret):
            assert form not in shown


def test_invitation_files_are_private(home):
    home.token()
    folder = home.alice / INVITATIONS
    assert mode(folder) == 0o700
    assert [mode(path) for path in folder.iterdir()] == [0o600]


def refusals(inviter, *asked):
    """Ask for each key, check that all are refused, and return the causes."""
    before = inviter.log.membership_version
    for key, secret, *name in asked:
        assert isinstance(inviter.ask(key, secret, *name), JoinRefused)
    assert inviter.log.membership_version == before
    return inviter.causes


def test_token_admits_only_one_node(home, inviter):
    token = home.token()
    assert isinstance(inviter.ask(BOB, token.secret), Joined)
    assert refusals(inviter, (EVE, token.secret, "eve"), (EVE, token.secret, "bob")) == ["invitation used"] * 2


def test_token_gives_same_node_same_answer_again(home, inviter):
    token = home.token()
    first = inviter.ask(BOB, token.secret)
    inviter.clock.advance(3600)
    assert inviter.ask(BOB, token.secret) == first
    assert Inviter(home).ask(BOB, token.secret) == first  # also from a restarted node
    assert home.log().membership_version == 2


def test_token_is_valid_until_it_expires(home, inviter):
    first, second = home.token(minutes=15), home.token("carol", minutes=15)
    inviter.clock.advance(15 * 60)
    assert isinstance(inviter.ask(BOB, first.secret), Joined)
    inviter.clock.advance(1)
    assert refusals(inviter, (CAROL, second.secret, "carol")) == ["invitation expired"]


def test_expired_token_stays_expired_when_clock_is_set_back(home, inviter):
    token = home.token(minutes=15)
    inviter.clock.now += 3600
    assert refusals(inviter, (BOB, token.secret)) == ["invitation expired"]
    inviter.clock.now -= 3600
    assert refusals(inviter, (BOB, token.secret)) == ["invitation expired"] * 2
    assert refusals(Inviter(home, inviter.clock), (BOB, token.secret)) == ["invitation expired"]  # after a restart


def test_token_expires_although_clock_is_set_back(home, inviter):
    token = home.token(minutes=15)
    inviter.clock.advance(3600)
    inviter.clock.now -= 3600
    assert refusals(inviter, (BOB, token.secret)) == ["invitation expired"]


def test_inviter_accepts_tokens_after_clock_is_set_back(home, inviter):
    inviter.clock.now += 30 * 24 * 3600
    for _ in range(3):
        refusals(inviter, (EVE, os.urandom(16)))
    inviter.clock.now -= 30 * 24 * 3600
    assert isinstance(inviter.ask(BOB, home.token().secret), Joined)


def test_token_survives_machine_restart_until_it_expires(home, inviter):
    token, other = home.token(minutes=15), home.token("carol", minutes=15)
    inviter.clock.now, inviter.clock.booted = NOW + 60, 1.0
    assert isinstance(inviter.ask(BOB, token.secret), Joined)
    inviter.clock.advance(15 * 60)
    assert refusals(inviter, (CAROL, other.secret, "carol")) == ["invitation expired"]


def test_token_never_issued_is_unknown(home, inviter):
    assert refusals(inviter, (BOB, bytes(16))) == ["invitation unknown"]
    home.token()
    assert refusals(inviter, (BOB, bytes(16))) == ["invitation unknown"] * 2


def test_token_of_another_node_is_unknown(home, inviter, tmp_path, digits):
    (tmp_path / "other").mkdir()
    token = Home(tmp_path / "other", digits).token()
    assert refusals(inviter, (BOB, token.secret)) == ["invitation unknown"]


@pytest.mark.slow
def test_refusals_are_limited_per_host(home, inviter):
    token, more = home.token(minutes=60), REFUSALS + 5
    causes = refusals(inviter, *[(EVE, os.urandom(16)) for _ in range(more)])
    assert causes == ["invitation unknown"] * REFUSALS + ["busy"] * 5
    assert isinstance(inviter.ask(BOB, token.secret, host="10.0.0.2"), Joined)
    inviter.clock.advance(1 / RECOVERY)
    assert isinstance(inviter.ask(CAROL, home.token("carol").secret, "carol"), Joined)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("fd00:1:2:3::1", "fd00:1:2:3:ffff::9", True),
        ("fd00:1:2:3::1", "fd00:1:2:4::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("broker", "broker", True),
        ("broker", "10.0.0.1", False),
    ],
)
def test_hosts_of_one_network_share_refusal_limit(home, inviter, one, other, same):
    for _ in range(REFUSALS):
        inviter.ask(EVE, os.urandom(16), host=one)
    inviter.ask(EVE, os.urandom(16), host=other)
    assert (inviter.causes[-1] == "busy") == same


def test_refusals_of_used_token_are_limited(home, inviter):
    token = home.token()
    inviter.ask(BOB, token.secret)
    for _ in range(2 * REFUSALS):
        assert isinstance(inviter.ask(EVE, token.secret), JoinRefused)
    assert inviter.causes == ["invitation used"] * REFUSALS + ["busy"] * REFUSALS


@pytest.mark.slow
def test_admitted_newcomers_do_not_count_as_refusals(home, inviter):
    for k in range(2 * REFUSALS):
        key = Identity.from_seed(bytes([100 + k]) * 32)
        assert isinstance(inviter.ask(key, home.token(f"node-{k}").secret, f"node-{k}"), Joined)


@pytest.mark.slow
def test_concurrent_questions_beyond_limit_are_refused_as_busy(home, inviter):
    """Another process holds the lock, so all questions wait; the node's event loop continues."""
    tokens, keys = [home.token(f"node-{k}") for k in range(6)], [Identity.from_seed(os.urandom(32)).public for _ in range(6)]

    async def main():
        asked = [
            asyncio.create_task(
                inviter.service.answer(keys[k], encode_join(Join(token.secret, token.member)), f"10.0.0.{k}")
            )
            for k, token in enumerate(tokens)
        ]
        while not all(task.done() for task in asked[4:]):
            await asyncio.sleep(0.01)
        return asked

    async def held():
        with exclusive(home.alice / "membership.lock"):
            asked = await main()
            assert not any(task.done() for task in asked[:4])
        return await asyncio.gather(*asked)

    replies = asyncio.run(held())
    assert [type(decode_answer(reply.frame)) for reply in replies] == [Joined] * 4 + [JoinRefused] * 2
    assert [reply.cause for reply in replies] == [""] * 4 + ["busy"] * 2


def test_lock_never_released_is_reported_and_token_stays_valid(home):
    inviter = Inviter(home, file=MembershipFile(home.alice, patience=0.05))
    token = home.token()
    with exclusive(home.alice / "membership.lock"):
        assert isinstance(inviter.ask(BOB, token.secret), JoinRefused)
    path = home.alice / "membership.lock"
    assert inviter.refusals == [("join failed", f"cannot write {path}: another process has locked it for 0.05 s; try again")]
    assert isinstance(inviter.ask(BOB, token.secret), Joined)


def test_refusal_reads_neither_log_nor_lock(home, inviter):
    """The cost of a refusal depends neither on the length of the log nor on its lock."""
    used = home.token()
    inviter.ask(BOB, used.secret)
    (home.alice / MEMBERSHIP).unlink()
    with exclusive(home.alice / "membership.lock"):
        assert refusals(inviter, (EVE, os.urandom(16)), (EVE, used.secret)) == ["invitation unknown", "invitation used"]


def test_token_is_valid_for_one_name(home, inviter):
    token = home.token("bob")
    assert refusals(inviter, (BOB, token.secret, "robert"), (BOB, token.secret, "../bob")) == ["other name", "malformed"]
    assert isinstance(inviter.ask(BOB, token.secret, "bob"), Joined)


def test_taken_name_does_not_use_up_token(home, inviter):
    token = home.token("carol")
    home.bundle(home.node("carol"))
    assert isinstance(inviter.ask(CAROL, token.secret, "carol"), JoinRefused)
    assert inviter.causes == ["name taken"]
    assert invitations.read_note(home.alice, token.secret).used_by == b""


def test_invite_refuses_taken_or_invalid_name(home):
    with pytest.raises(ConfigurationError, match="there is a member named alice already"):
        home.token("alice")
    with pytest.raises(ConfigurationError, match="must have at most 64 letters, digits"):
        home.token("../bob")


def test_invite_reuses_name_of_former_member_only_on_request(home, inviter):
    home.bundle(home.node("carol"))
    early = home.token("bob")
    home.bundle(home.node("bob"))
    for name in ("bob", "carol"):
        membership_changes.revoke(home.alice, name)
    with pytest.raises(ConfigurationError, match=r"carol was the name of a former member.*--reuse-name"):
        home.token("carol")
    assert isinstance(inviter.ask(CAROL, home.token("carol", reuse_name=True).secret, "carol"), Joined)
    assert refusals(inviter, (BOB, early.secret)) == ["name taken"]  # the name was free when the token was made


def test_token_refuses_key_of_current_or_former_member(home, inviter):
    first, second = home.token(), home.token("robert")
    inviter.ask(BOB, first.secret)
    assert refusals(inviter, (BOB, second.secret, "robert")) == ["known key"]
    membership_changes.revoke(home.alice, "bob")
    inviter.causes.clear()
    for token in (first, second):
        assert isinstance(inviter.ask(BOB, token.secret, token.member), JoinRefused)
    assert inviter.causes == ["name taken", "known key"]


def test_inviter_refuses_malformed_question(inviter):
    assert isinstance(inviter.send(EVE, b"\xff" * 100), JoinRefused)
    assert inviter.causes == ["malformed"]


@pytest.mark.slow
def test_token_used_by_two_nodes_at_once_admits_one(home):
    for k in range(5):
        token, inviters = home.token(f"node-{k}"), [Inviter(home), Inviter(home)]
        keys = [Identity.from_seed(os.urandom(32)) for _ in inviters]
        answers = run_concurrently(
            *(partial(inviter.ask, key, token.secret, token.member) for inviter, key in zip(inviters, keys, strict=True))
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["JoinRefused", "Joined"]
        assert inviters[0].causes + inviters[1].causes in (["invitation used"], ["name taken"])  # in either order of writes
        assert home.log().membership_version == k + 2


def test_inviter_sees_entries_added_by_commands(home, inviter):
    token = home.token()
    home.bundle(home.node("carol"))
    assert isinstance(inviter.ask(BOB, token.secret), Joined)
    assert list(inviter.log.members) == ["alice", "bob", "carol"]


def test_inviter_saves_entries_not_yet_on_disk(home, inviter):
    inviter.log.append(home.admission_key(), "add", "carol", CAROL.public)
    assert isinstance(inviter.ask(BOB, home.token().secret), Joined)
    assert list(home.log().members) == list(inviter.log.members) == ["alice", "bob", "carol"]


def test_new_member_is_on_disk_before_change_is_announced(home, inviter):
    on_disk = []
    inviter.log.on_change.append(lambda: on_disk.append(list(home.log().members)))
    inviter.ask(BOB, home.token().secret)
    assert on_disk == [["alice", "bob"]]


class Killed(BaseException):
    pass


def test_inviter_killed_during_admission_admits_same_node_only(home, inviter, monkeypatch):
    token = home.token()

    def kill(point):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("p2pfl.node.federation.invitations.failpoint", kill)
        with pytest.raises(Killed):
            inviter.ask(BOB, token.secret)
    assert home.log().membership_version == 1
    inviter = Inviter(home)
    assert refusals(inviter, (EVE, token.secret, "eve")) == ["invitation used"]
    assert isinstance(inviter.ask(BOB, token.secret), Joined)


def test_full_disk_refuses_newcomer_and_keeps_token_valid(home, inviter):
    token = home.token()
    for size in (10, 300):  # too small for the token's file; large enough for it, too small for the log
        with limited(size):
            assert set(refusals(inviter, (BOB, token.secret))) == {"join failed"}
        assert home.log().membership_version == 1
    assert isinstance(inviter.ask(BOB, token.secret), Joined)
    assert home.log().membership_version == 2


def test_invite_requires_current_admission_key(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    with pytest.raises(ConfigurationError, match=r"has no admission\.pem"):
        invite(bob, "carol", ["x:1"])
    shutil.copy(home.backup, bob / membership_file.ADMISSION)
    membership_changes.rotate(home.alice, home.root / "second.pem")
    MembershipFile(bob).save(home.log())
    with pytest.raises(ConfigurationError, match="no longer the admission key"):
        invite(bob, "carol", ["x:1"])


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf"), 1e9])
def test_invite_rejects_unreasonable_validity(home, minutes):
    with pytest.raises(ConfigurationError, match="a token can be valid for at most"):
        home.token(minutes=minutes)


def test_invite_rejects_too_many_or_too_long_addresses(home):
    for addresses in (["x:1"] * 9, ["x" * 300]):
        with pytest.raises(ConfigurationError, match="at most 8 addresses of 256 characters"):
            invite(home.alice, "bob", addresses)
    longest = invite(home.alice, "bob", ["x" * 256] * 8)
    assert Invitation.parse(longest.encode()) == longest


# Questions of a newcomer


def test_join_refuses_token_for_another_name_before_dialling(home):
    token = home.token("carol", minutes=60)
    bob = home.node("bob")
    with pytest.raises(ConfigurationError) as caught:
        joining.join(bob, token.encode())
    assert str(caught.value) == f"the token is for a node named carol, but name in {bob / 'node.toml'} is bob"


@pytest.mark.slow
def test_join_retries_while_inviter_is_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(join, "PAUSE", 0.01)
    alice_folder = folders(tmp_path, "alice", "carol")["alice"]
    config.create(tmp_path / "bob", "bob", "127.0.0.1:0", task="concept-shift")
    busy = [encode_join(JoinRefused("busy: too many nodes")) for _ in range(3)]

    async def main():
        async with honest(alice_folder) as alice:
            answer = alice.service.answer

            async def sometimes(*question):
                return JoinReply(busy.pop(), "busy") if busy else await answer(*question)

            alice.service.answer = sometimes
            token = invite(alice_folder, "bob", [alice.transport.address], now=alice.now, booted=alice.now)
            return await asyncio.to_thread(joining.join, tmp_path / "bob", token.encode())

    assert asyncio.run(main()) == load_federation(alice_folder).file.name
    assert list(load_federation(tmp_path / "bob").members) == ["alice", "bob", "carol"]
    assert busy == []


class Inviting:
    """Alice's running node, for newcomers in threads; `earlier` makes it one that knows no `look`."""

    def __init__(self, root, earlier=False):
        self.folder = folders(root, "alice", "carol")["alice"]
        self.bob = root / "bob"
        config.create(self.bob, "bob", "127.0.0.1:0", task="concept-shift")
        self._earlier = earlier

    def serve(self, work):
        """Run `work(token)` in a thread while alice answers."""

        async def main():
            async with honest(self.folder) as alice:
                answer = alice.service.answer
                if self._earlier:

                    async def of_earlier_version(key, frame, host):
                        if isinstance(decode_join(frame), Look):
                            return JoinReply(encode_join(JoinRefused("malformed: not a request to join")), "malformed")
                        return await answer(key, frame, host)

                    alice.service.answer = of_earlier_version
                token = invite(self.folder, "bob", [alice.transport.address], now=alice.now, booted=alice.now)
                return await asyncio.to_thread(work, token.encode())

        return asyncio.run(main())

    def members(self):
        return [*load_federation(self.folder).members]


def refuse(own, agreement):
    raise ConfigurationError("the data do not fit")


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [False, True])
def test_newcomer_that_refuses_the_federation_can_use_its_token_again(tmp_path, earlier):
    inviting = Inviting(tmp_path, earlier)

    def work(token):
        with pytest.raises(ConfigurationError, match="the data do not fit"):
            joining.join(inviting.bob, token, refuse)
        assert load_federation(inviting.bob) is None
        members = inviting.members()
        joining.join(inviting.bob, token)
        return members

    # An inviter that knows no `look` has admitted the newcomer before it could refuse.
    assert inviting.serve(work) == (["alice", "bob", "carol"] if earlier else ["alice", "carol"])
    assert [*load_federation(inviting.bob).members] == ["alice", "bob", "carol"]


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [False, True])
def test_newcomer_receives_log_that_is_longer_than_an_answer(tmp_path, monkeypatch, earlier):
    for module in (joining, invitations):
        monkeypatch.setattr(module, "LIMIT", 800)  # four entries
    inviting = Inviting(tmp_path, earlier)
    log, key = load_federation(inviting.folder), Identity.load(inviting.folder / membership_file.ADMISSION)
    for k in range(17):
        log.append(key, "add", f"node-{k}", Identity.from_seed(bytes([k + 50]) * 32).public)
    membership_file.MembershipFile(inviting.folder).save(log)
    inviting.serve(lambda token: joining.join(inviting.bob, token))
    assert load_federation(inviting.bob).encode() == load_federation(inviting.folder).encode()
    assert len(load_federation(inviting.bob).members) == 20


@pytest.mark.slow
def test_newcomer_begins_with_checkpoint_and_receives_the_log_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(m.MissingEntries, "LIMIT", 9000)
    monkeypatch.setattr(control_messages, "COMPARING", 0.05)
    monkeypatch.setattr(control_messages, "NEWS_RATE", 1000.0)
    inviting = Inviting(tmp_path)
    log, key = load_federation(inviting.folder), Identity.load(inviting.folder / membership_file.ADMISSION)
    for k in range(150):
        log.append(key, "add", f"node-{k}", Identity.from_seed(k.to_bytes(32, "big")).public)
    membership_file.MembershipFile(inviting.folder).save(log)
    inviting.serve(lambda token: joining.join(inviting.bob, token))
    files = {path.name: path.stat().st_size for path in inviting.bob.iterdir()}
    assert "membership" not in files
    assert files["membership.begin"] + files["federation.toml"] < 64 << 10
    begun = load_federation(inviting.bob)
    assert (begun.membership_version, begun.stored, len(begun.members)) == (153, 0, 64)
    assert {"alice", "bob"} <= begun.members.keys()
    with pytest.raises(ConfigurationError, match="can change nothing before it has all"):
        shutil.copy(inviting.folder / "admission.pem", inviting.bob)
        membership_changes.revoke(inviting.bob, "alice")

    async def main():
        async with honest(inviting.folder) as alice:
            there = {"alice": alice.transport.address}
            async with honest(inviting.bob, addresses=there) as bob:
                bob.peering.gossip.fetching = True
                bob.peering.begin(bob.peering.gossip.run(), "comparison of logs")
                await until(lambda: bob.log.stored > 0)
                assert bob.log.stored < 153
            assert load_federation(inviting.bob).membership_version == 153  # interrupted, and continued
            async with honest(inviting.bob, addresses=there) as bob:
                bob.peering.gossip.fetching = True
                bob.peering.begin(bob.peering.gossip.run(), "comparison of logs")
                await until(lambda: bob.log.is_complete)
                assert bob.log.encode() == alice.log.encode()
                await until(lambda: not (inviting.bob / "membership.begin").exists())
                assert not {*alice.rejected, *bob.rejected} - {"link lost"}

    asyncio.run(main())
    assert load_federation(inviting.bob).members == load_federation(inviting.folder).members


def test_rest_of_log_is_for_the_member_that_has_joined(home, inviter):
    token = home.token()
    rest = encode_join(Rest(token.secret, "bob", 1))
    assert inviter.send(BOB, rest).reason == "malformed: asks for the rest of the log before it has joined"
    assert [*home.log().members] == ["alice"]
    inviter.ask(BOB, token.secret)
    assert inviter.send(BOB, rest) == Joined(home.file.data, inviter.log.after(1, 4096))
    assert inviter.send(BOB, encode_join(Rest(token.secret, "bob", 2))) == Joined(home.file.data, b"\x90")
    assert inviter.send(CAROL, rest).reason.startswith("invitation used")


@pytest.mark.slow
def test_newcomer_approves_the_federation_once(tmp_path):
    inviting, asked = Inviting(tmp_path), []
    inviting.serve(lambda token: joining.join(inviting.bob, token, lambda own, agreement: asked.append(agreement.rounds)))
    assert asked == [load_federation(inviting.folder).rounds]


def test_inviter_marks_a_token_as_expired_when_a_newcomer_looks(home):
    inviter, token = Inviter(home), home.token()
    look = encode_join(Look(token.secret, "bob"))
    shown = inviter.send(BOB, look)
    assert (shown.file, shown.rounds) == (home.file.data, home.log().rounds)
    inviter.clock.now += 16 * 60
    assert isinstance(inviter.send(BOB, look), JoinRefused)
    inviter.clock.now -= 16 * 60
    assert isinstance(inviter.ask(BOB, token.secret), JoinRefused)
    assert inviter.causes[-1] == "invitation expired"
    assert [*home.log().members] == ["alice"]


def test_newcomer_that_has_not_read_the_federation_is_refused_with_versions_and_remedy(home):
    inviter, token = Inviter(home, must_look=True), home.token()
    refused = inviter.ask(BOB, token.secret)  # as an earlier version does, which knows no look
    assert refused.reason.startswith(f"earlier version: this node has p2pfl {__version__}")
    assert refused.reason.endswith("upgrade the newcomer, and repeat join with the same token")
    assert [*home.log().members] == ["alice"]
    assert isinstance(inviter.send(BOB, encode_join(Look(token.secret, "bob"))), Offered)
    inviter = Inviter(home, must_look=True)  # it was restarted between look and join
    assert inviter.ask(CAROL, token.secret).reason.startswith("earlier version")  # another newcomer has looked
    for _ in range(2):  # the second time it has lost the answer
        assert isinstance(inviter.ask(BOB, token.secret), Joined)
    assert [*home.log().members] == ["alice", "bob"]


@pytest.mark.slow
def test_newcomer_that_the_federation_does_not_fit_does_not_ask_to_join(tmp_path):
    inviting = Inviting(tmp_path)
    config.create(tmp_path / "eve" / "bob", "bob", "127.0.0.1:0", task="digits")

    def work(token):
        with pytest.raises(ConfigurationError, match=r"task\.name is 'digits' in this node's"):
            joining.join(tmp_path / "eve" / "bob", token)
        return inviting.members()

    assert inviting.serve(work) == ["alice", "carol"]


# Answers that a newcomer accepts


class Newcomer:
    """Bob, after he has used a token and received the answer."""

    def __init__(self, home, **options):
        self.folder = home.node("bob", **options)
        self.key = Identity.load(self.folder / config.KEY)
        self.token = home.token()
        self.answer = Inviter(home).ask(self.key, self.token.secret)

    def accept(self, **changes):
        given = {"joined": self.answer, "invitation": self.token, "own": config.load(self.folder), "key": self.key.public}
        return membership_changes.accept(self.folder, **{**given, **changes})

    def refuses(self, **changes):
        """Check that the answer is refused and nothing is saved; return the error message."""
        with pytest.raises(ConfigurationError) as caught:
            self.accept(**changes)
        assert load_federation(self.folder) is None
        assert not (self.folder / MEMBERSHIP).exists()
        assert "\n" not in str(caught.value)
        return str(caught.value)


def test_accept_saves_federation_and_log(home):
    bob = Newcomer(home)
    assert bob.accept() == "home"
    kept = load_federation(bob.folder)
    assert kept.file == home.file
    assert kept.encode() == home.log().encode()
    assert not (bob.folder / membership_file.ADMISSION).exists()


def checkpoints(folder):
    return {path.name: path.read_text() for path in folder.glob("checkpoint*")}


def test_join_sets_earlier_checkpoints_aside(home):
    bob, said = home.node("bob"), []
    for name in ("checkpoint", "checkpoint.1", "checkpoint.2"):
        (bob / name).write_text(name)
    joining.join(bob, home.bundle(bob), notify=said.append)
    assert checkpoints(bob) == {"checkpoint.earlier": "checkpoint"}
    assert ["starts the federation with round 1" in text for text in said] == [True]


def test_status_after_joining_names_earlier_rounds(home, capsys):
    bob = home.node("bob")
    alone = {"state": "finished", "pid": 1, "round": 9, "rounds": 9, "metric": "accuracy"}
    (bob / config.STATUS).write_text(json.dumps(alone | {"history": [{"round": 9, "test": 0.5}], "name": "bob"}))
    (bob / "checkpoint").write_text("round 9")
    joining.join(bob, home.bundle(bob))
    assert main(["status", str(bob)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"bob: joined, round 0 of {home.file.tables['rounds']}",
        "  earlier     9 rounds before it joined, which do not count; p2pfl-node run starts with round 1",
        f"  federation  {federation_title('home', home.file.id.hex())}",
    ]
    write_state(bob / config.STATUS, "failed", "no data")  # keeps the rounds from before
    status = reader.current(bob)
    assert (status["state"], status["reason"], status["round"], status["history"]) == ("failed", "no data", 0, [])


def test_status_of_node_that_returned_after_revocation_is_joined(home, capsys):
    bob = home.node("bob")
    joining.join(bob, home.bundle(bob))
    status = {"state": "finished", "pid": 1, "round": 3, "rounds": 3, "history": [], "name": "bob"}
    status |= {"federation": "home", "federation_id": home.file.id.hex(), "peers": [], "updated": 0.0}
    (bob / config.STATUS).write_text(json.dumps(status))
    membership_changes.revoke(home.alice, "bob")
    (bob / MEMBERSHIP).write_bytes((home.alice / MEMBERSHIP).read_bytes())
    revoked = reader.current(bob)
    assert revoked["state"] == "revoked"
    (bob / config.STATUS).write_text(json.dumps(status | {"state": "revoked", "reason": revoked["reason"]}))

    assert main(["request", str(bob)]) == 0
    said = capsys.readouterr()
    assert said.err == "note: this key is that of a former member of home, which cannot admit it again; add --new-key\n"
    with pytest.raises(ConfigurationError, match=r"the key of bob is that of a former member.* request FOLDER --new-key"):
        membership_changes.admit(home.alice, said.out.strip(), "participant", home.root / "bundle", reuse_name=True)

    bundle = home.bundle(bob, new_key=True, reuse_name=True)
    reason = reader.current(bob)["reason"]
    assert reason == describe_pending("home", bob)
    (bob / "checkpoint").write_text("round 3")
    joining.join(bob, bundle)
    rounds = home.file.tables["rounds"]
    assert main(["status", str(bob)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"bob: joined, round 3 of {rounds}",
        "  next        p2pfl-node run resumes after round 3",
        f"  federation  {federation_title('home', home.file.id.hex())}",
    ]


@pytest.mark.parametrize(
    ("state", "kept"), [("finished", {"state": "joined"}), ("failed", {"state": "failed", "reason": "x"})]
)
def test_status_of_returned_node_keeps_rounds_trained_alone(home, state, kept):
    bob = home.node("bob")
    joining.join(bob, home.bundle(bob))
    (bob / "checkpoint").write_text("round 5")
    membership_changes.revoke(home.alice, "bob")
    bundle = home.bundle(bob, new_key=True, reuse_name=True)
    alone = {"state": state, "reason": "x" * (state == "failed"), "pid": 1, "round": 5, "rounds": 10, "history": []}
    (bob / config.STATUS).write_text(json.dumps(alone))
    assert reader.current(bob)["reason"] == ("x" if state == "failed" else describe_pending("home", bob))
    joining.join(bob, bundle)
    assert (bob / "checkpoint").exists()  # the next run resumes from it
    status = reader.current(bob)
    assert {key: status[key] for key in kept} == kept
    assert (status["round"], status["rounds"], status["federation"]) == (5, home.file.tables["rounds"], "home")
    assert "earlier_rounds" not in status


def test_running_node_cannot_change_its_federation(home, tmp_path):
    bob, backup = home.node("bob"), tmp_path / "bob-key.backup"
    bundle = home.bundle(bob)
    with lock_folder(bob):
        for change in (lambda: joining.join(bob, bundle), lambda: membership_changes.create_federation(bob, {}, backup)):
            with pytest.raises(ConfigurationError) as refused:
                change()
            assert str(refused.value) == f"{bob} is in use: another process runs this node; stop it first"
    assert not backup.exists()
    assert joining.join(bob, bundle) == "home"


def test_join_with_new_key_keeps_checkpoints(home):
    bob, said = home.node("bob"), []
    joining.join(bob, home.bundle(bob))
    (bob / "checkpoint").write_text("round 7")
    joining.join(bob, home.bundle(bob, new_key=True), notify=said.append)
    assert checkpoints(bob) == {"checkpoint": "round 7"}
    assert not said


def test_accept_refuses_other_federation_than_that_of_token(home, tmp_path, digits):
    bob = Newcomer(home)
    other = Federation.sign(home.tables, home.admission_key())
    log = Membership(other)
    log.append(home.admission_key(), "add", "bob", bob.key.public)
    assert "another federation than the token" in bob.refuses(joined=Joined(other.data, log.encode()))
    token = dataclasses.replace(bob.token, admission=EVE.public)
    assert "admission key of the federation is not the one in the token" in bob.refuses(invitation=token)


def test_accept_refuses_log_without_own_key(home):
    bob = Newcomer(home)
    log = home.log()
    without = Membership(home.file, log.after(0, 250))
    assert without.membership_version == 1
    assert "with the key of this node" in bob.refuses(joined=Joined(home.file.data, without.encode()))
    assert "with the key of this node" in bob.refuses(key=EVE.public)
    membership_changes.revoke(home.alice, "bob")
    assert "with the key of this node" in bob.refuses(joined=Joined(home.file.data, home.log().encode()))


def test_accept_refuses_altered_file_or_log(home):
    bob = Newcomer(home)
    file, log = bob.answer.file, bob.answer.log
    assert "damaged or forged" in bob.refuses(joined=Joined(file.replace(b"rounds = 10", b"rounds = 99"), log))
    assert "membership" in bob.refuses(joined=Joined(file, log[:-1] + bytes([log[-1] ^ 1])))
    assert "membership" in bob.refuses(joined=Joined(file, b"nonsense"))


def test_accept_works_after_rotation_of_admission_key(home):
    bob = Newcomer(home)
    membership_changes.rotate(home.alice, home.root / "second.pem")
    membership_changes.rotate(home.alice, home.root / "third.pem")
    assert bob.accept(joined=Joined(home.file.data, home.log().encode())) == "home"


def federation_with(home, **changes):
    """Create a federation like home with changed settings; return its folder and its file."""
    folder = home.node("mallory")
    return folder, membership_changes.create_federation(folder, home.tables | changes, home.root / "mallory.pem")


@pytest.mark.parametrize("kind", ["task", "policy"])
def test_accept_imports_no_module_that_owner_did_not_name(home, tmp_path, monkeypatch, kind):
    folder, _ = federation_with(home, **{kind: {"name": "evil:make"}})
    bob = home.node("bob")
    for place in (bob, tmp_path / "modules"):
        place.mkdir(exist_ok=True)
        (place / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.chdir(bob)
    membership_changes.admit(folder, membership_changes.request(bob), "participant", home.root / "bundle")
    with pytest.raises(ConfigurationError) as caught:
        home.accept(bob, (home.root / "bundle").read_text())
    own = {"task": "digits", "policy": "dac"}[kind]
    assert str(caught.value) == (
        f"{kind}.name is {own!r} in this node's node.toml, but 'evil:make' in the federation home; change it in node.toml,"
        " and run the command again"
    )
    assert "evil" not in sys.modules
    assert load_federation(bob) is None


def test_accept_refuses_federation_with_invalid_settings(home):
    folder, _ = federation_with(home, rounds=-1)
    bob = home.node("bob")
    membership_changes.admit(folder, membership_changes.request(bob), "participant", home.root / "bundle")
    with pytest.raises(ConfigurationError, match="rounds"):
        home.accept(bob, (home.root / "bundle").read_text())
    assert load_federation(bob) is None


# By hand


def test_admit_by_bundle_adds_member_with_role(home):
    bob = home.node("bob")
    assert home.accept(bob, home.bundle(bob, role="coordinator-eligible")) == "home"
    assert load_federation(bob).members["bob"].role == "coordinator-eligible"


def test_admit_same_request_twice_returns_same_bundle(home):
    bob = home.node("bob")
    assert home.bundle(bob) == home.bundle(bob)
    assert home.log().membership_version == 2


def test_admit_keeps_the_role_of_a_member(home):
    bob = home.node("bob")
    home.bundle(bob, role="observer")
    assert membership_changes.admit(home.alice, membership_changes.request(bob), None, home.root / "bundle") == (
        "bob",
        "observer",
    )
    with pytest.raises(ConfigurationError, match="bob is a member with the role observer, which cannot be changed"):
        home.bundle(bob, role="participant")


def test_admit_refuses_taken_name_for_another_key(home, tmp_path):
    home.bundle(home.node("bob"))
    config.create(tmp_path / "impostor", "bob")
    with pytest.raises(ConfigurationError, match="there is a member named bob already"):
        home.bundle(tmp_path / "impostor")


def test_bundle_is_valid_only_for_requesting_node(home):
    bob, carol = home.node("bob"), home.node("carol")
    with pytest.raises(ConfigurationError, match="no member carol with the key of this node"):
        home.accept(carol, home.bundle(bob))


@pytest.mark.parametrize("line", ["", "nonsense", "p2pfl-request-AAAA"])
def test_admit_refuses_malformed_request(home, line):
    with pytest.raises(ConfigurationError, match="a request"):
        membership_changes.admit(home.alice, line, "participant", home.root / "bundle")
    assert not (home.root / "bundle").exists()


def test_admit_revoke_and_rotate_require_admission_key(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    line = membership_changes.request(home.node("carol"))
    for act in (
        lambda: membership_changes.admit(bob, line, "participant", home.root / "bundle"),
        lambda: membership_changes.revoke(bob, "alice"),
        lambda: membership_changes.rotate(bob, home.root / "second.pem"),
    ):
        with pytest.raises(ConfigurationError, match=r"has no admission\.pem"):
            act()


def test_revoked_key_is_never_admitted_again(home):
    bob = home.node("bob")
    line = membership_changes.request(bob)
    home.accept(bob, home.bundle(bob))
    membership_changes.revoke(home.alice, "bob")
    key = Identity.load(bob / config.KEY).public
    assert home.log().refusal(key) == "revoked"
    with pytest.raises(ConfigurationError, match="cannot be admitted again"):
        membership_changes.admit(home.alice, line, "participant", home.root / "bundle")
    with pytest.raises(ConfigurationError, match="there is no member named bob; the members are alice"):
        membership_changes.revoke(home.alice, "bob")


def test_new_key_keeps_name_and_role_of_node(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob, role="observer"))
    old = Identity.load(bob / config.KEY).public
    home.accept(bob, home.bundle(bob, new_key=True))
    new = Identity.load(bob / config.KEY).public
    log = load_federation(bob)
    assert (log.members["bob"].key, log.members["bob"].role) == (new, "observer")
    assert (log.refusal(old), log.refusal(new)) == ("revoked", "")
    assert Identity.load(bob / "key.pem.old").public == old


def test_revoked_node_returns_with_new_key(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    membership_changes.revoke(home.alice, "bob")
    remedy = describe_refusal(home.log(), Identity.load(bob / config.KEY).public, bob).partition("; ")[2]
    assert f"`p2pfl-node request {bob} --new-key`" in remedy
    assert remedy.endswith("who admits it with --reuse-name")
    shutil.copy(home.alice / MEMBERSHIP, bob / MEMBERSHIP)
    with pytest.raises(ConfigurationError, match=f"was revoked .*{re.escape(remedy)}$"):
        joining.join(bob, "a token")
    with pytest.raises(ConfigurationError, match="bob was the name of a former member; add --reuse-name"):
        home.bundle(bob, new_key=True)
    home.accept(bob, home.bundle(bob, new_key=True, reuse_name=True))
    assert load_federation(bob).refusal(Identity.load(bob / config.KEY).public) == ""


def test_request_new_key_while_running_is_refused(home):
    bob = home.node("bob")
    before = (bob / config.KEY).read_bytes()
    with lock_folder(bob), pytest.raises(ConfigurationError, match="stop the node"):
        membership_changes.request(bob, new_key=True)
    assert (bob / config.KEY).read_bytes() == before


@pytest.mark.slow
def test_repeated_request_is_the_same_until_node_joins(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    line = membership_changes.request(bob, new_key=True)
    assert [membership_changes.request(bob, new_key=True), membership_changes.request(bob)] == [line, line]
    home.accept(bob, home.bundle(bob))  # without the option, too, the request replaces the old key
    assert load_federation(bob).refusal(Identity.load(bob / config.KEY).public) == ""


@pytest.mark.slow
def test_key_is_replaced_a_second_time(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    keys = [Identity.load(bob / config.KEY).public]
    for _ in range(2):
        home.accept(bob, home.bundle(bob, new_key=True))
        keys.append(Identity.load(bob / config.KEY).public)
    assert [load_federation(bob).refusal(key) for key in keys] == ["revoked", "revoked", ""]
    assert Identity.load(bob / "key.pem.old").public == keys[1]


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_interrupted_request_can_be_repeated(home, moved):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    old = Identity.load(bob / config.KEY).public
    shutil.copy2(bob / config.KEY, bob / "key.pem.old")
    for name in ("federation.toml", "membership")[:moved]:
        (bob / name).rename(bob / f"{name}.old")
    home.accept(bob, home.bundle(bob, new_key=True))
    log = load_federation(bob)
    assert (log.refusal(old), log.refusal(Identity.load(bob / config.KEY).public)) == ("revoked", "")


# Rotation of the admission key


def test_rotate_makes_new_admission_key_decide(home):
    old = home.admission_key()
    membership_changes.rotate(home.alice, home.root / "second.pem")
    new = home.admission_key()
    assert home.log().admission == new.public == Identity.load(home.root / "second.pem").public != old.public
    assert Identity.load(home.alice / "admission.pem.old").public == old.public
    assert mode(home.alice / "admission.pem.old") == mode(home.root / "second.pem") == 0o600
    home.bundle(home.node("bob"))
    shutil.copy(home.backup, home.alice / membership_file.ADMISSION)
    with pytest.raises(ConfigurationError, match="no longer the admission key"):
        home.bundle(home.node("carol"))


def test_rotate_without_backup_changes_nothing(home):
    with pytest.raises(ConfigurationError, match="exists"):
        membership_changes.rotate(home.alice, home.backup)
    assert home.log().membership_version == 1
    assert not (home.alice / "admission.pem.new").exists()
    home.bundle(home.node("bob"))


def test_rotation_interrupted_after_signing_is_completed(home):
    old = (home.alice / membership_file.ADMISSION).read_bytes()
    membership_changes.rotate(home.alice, home.root / "second.pem")
    (home.alice / membership_file.ADMISSION).replace(home.alice / "admission.pem.new")
    (home.alice / "admission.pem.old").unlink()
    (home.alice / membership_file.ADMISSION).write_bytes(old)
    (home.alice / membership_file.ADMISSION).chmod(0o600)
    home.bundle(home.node("bob"))
    assert home.admission_key().public == home.log().admission
    assert (home.alice / "admission.pem.old").read_bytes() == old
    assert not (home.alice / "admission.pem.new").exists()


def test_rotation_interrupted_before_signing_is_repeated(home):
    stray = Identity.create(home.alice / "admission.pem.new").public
    membership_changes.rotate(home.alice, home.root / "second.pem")
    assert home.log().admission == home.admission_key().public != stray


def test_private_keys_appear_only_in_their_files(home):
    """They are not in anything that is printed, sent or written for others."""
    bob = home.node("bob")
    text = home.bundle(bob)
    shown = "\n".join(
        [membership_changes.request(bob), text, str(membership_changes.describe(home.alice)), home.token("carol").encode()]
    )
    for path in (home.alice / membership_file.ADMISSION, home.alice / config.KEY, bob / config.KEY):
        lines = path.read_text().splitlines()
        secret = lines[lines.index("-----BEGIN PRIVATE KEY-----") + 1]
        seed = base64.b64decode(secret)[-32:]
        for form in (secret.encode(), *encodings_of(seed)):
            assert form not in shown.encode()


# More rounds


def test_extend_raises_rounds_of_every_member(home):
    bob = home.node("bob")
    membership_changes.extend(home.alice, 25)
    shown = []
    home.accept(bob, home.bundle(bob), approve=lambda own, agreed: shown.append(agreed.rounds))
    assert shown == [25]
    for folder in (home.alice, bob):
        ready = loading.load(folder)
        assert (ready.config.rounds, ready.agreement.rounds) == (25, 10)
        assert membership_changes.describe(folder)["agreed"]["rounds"] == 25


def test_extend_refuses_lower_number_and_keeps_log(home):
    membership_changes.extend(home.alice, 25)
    before = home.log().encode()
    with pytest.raises(
        ConfigurationError, match="has 25 rounds; the new number must be greater, and at most 1,000,000, got 20"
    ):
        membership_changes.extend(home.alice, 20)
    assert home.log().encode() == before


def test_extend_requires_current_admission_key(home):
    bob = home.node("bob")
    home.accept(bob, home.bundle(bob))
    with pytest.raises(ConfigurationError, match="run this command at the node with the admission key"):
        membership_changes.extend(bob, 25)
    membership_changes.rotate(home.alice, home.root / "next.pem")
    membership_changes.extend(home.alice, 25)
    (home.alice / "admission.pem.old").replace(home.alice / membership_file.ADMISSION)
    with pytest.raises(ConfigurationError, match="no longer the admission key"):
        membership_changes.extend(home.alice, 30)
    assert home.log().rounds == 25
