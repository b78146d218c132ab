"""Encrypted admission key: the folder without the passphrase does not allow admissions."""

import asyncio
import getpass
import io
import os
import sys
import time

import msgspec
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.federation import agreement, invitations, loading, membership_changes, membership_file
from p2pfl.node.federation.invitations import InvitationService, TokenRedeemer, open_service
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.protocols import key_files
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Join, Joined, Look, decode_answer, encode_join
from tests.support.logs import log_to
from tests.support.processes import processes

WORDS, MORE = "correct horse battery staple", "another one of four words"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def fast_key_derivation(monkeypatch):
    monkeypatch.setattr(key_files, "ROUNDS", 1)  # fewer, for speed; the file states their number
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.delenv(membership_changes.PASSPHRASE_VARIABLE, raising=False)


@pytest.fixture
def typed(monkeypatch):
    """Lines that a user types at prompts, in order, on a terminal."""
    lines = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: lines.pop(0))
    return lines


class Home:
    def __init__(self, root, *options):
        self.root, self.alice = root, root / "alice"
        config.create(self.alice, "alice")
        (root / "words").write_text(f"{WORDS}\nthis line is not looked at\n")
        (root / "more").write_text(MORE)
        backup = str(root / "backup.pem")
        assert main(["federation", "create", str(self.alice), "--backup", backup, *options]) == 0

    @property
    def file(self):
        return str(self.root / "words")

    def request(self, name):
        config.create(self.root / name, name)
        return membership_changes.request(self.root / name)

    def admit(self, name, *options):
        return main(["admit", str(self.alice), self.request(name), "--out", str(self.root / "bundle"), *options])

    def members(self):
        return list(load_federation(self.alice).members)


@pytest.fixture
def home(tmp_path):
    (tmp_path / "words").write_text(WORDS)
    return Home(tmp_path, "--passphrase-file", str(tmp_path / "words"))


def test_create_encrypts_admission_key_and_backup(home):
    for path in (home.alice / "admission.pem", home.root / "backup.pem"):
        assert key_files.is_encrypted(path)
        assert Identity.load(path, WORDS.encode()).public == load_federation(home.alice).admission
    assert not key_files.is_encrypted(home.alice / "key.pem")  # the node must start unattended


def test_create_asks_twice_for_passphrase(tmp_path, typed, capsys):
    typed += [WORDS, WORDS]
    home = Home(tmp_path, "--passphrase")
    assert "the encrypted admission key is in" in capsys.readouterr().out
    assert Identity.load(home.alice / "admission.pem", WORDS.encode())


@pytest.mark.parametrize(
    ("lines", "said"), [([WORDS, MORE], "the two passphrases differ"), (["short", "short"], "at least 8 characters")]
)
def test_create_with_bad_passphrase_writes_nothing(tmp_path, typed, capsys, lines, said):
    typed += lines
    config.create(tmp_path / "alice", "alice")
    command = ["federation", "create", str(tmp_path / "alice"), "--backup", str(tmp_path / "backup.pem"), "--passphrase"]
    assert main(command) == 2
    assert said in capsys.readouterr().err
    assert not membership_file.may_admit(tmp_path / "alice")
    assert not (tmp_path / "backup.pem").exists()


@pytest.mark.slow
def test_admit_reads_passphrase_from_every_source(home, monkeypatch, typed):
    assert home.admit("bob", "--passphrase-file", home.file) == 0
    typed.append(WORDS)
    assert home.admit("carol") == 0
    monkeypatch.setenv(membership_changes.PASSPHRASE_VARIABLE, WORDS)
    assert home.admit("dave") == 0
    monkeypatch.delenv(membership_changes.PASSPHRASE_VARIABLE)
    path = home.alice / config.CONFIG
    path.write_text(path.read_text().replace('passphrase_file = ""', f'passphrase_file = "{home.file}"'))
    assert home.admit("erin") == 0
    assert home.members() == ["alice", "bob", "carol", "dave", "erin"]


def test_commands_without_passphrase_change_nothing(home, capsys):
    backup = str(home.root / "second.pem")
    for command in (
        ["invite", str(home.alice), "bob", "--address", "x:1"],
        ["admit", str(home.alice), home.request("bob"), "--out", str(home.root / "bundle")],
        ["revoke", str(home.alice), "alice", "--yes"],
        ["federation", "rotate", str(home.alice), "--backup", backup],
    ):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert f"{home.alice / 'admission.pem'} is encrypted and needs its passphrase" in said
        assert said.count("\n") == 1
    assert home.members() == ["alice"]
    assert not (home.alice / "invitations").exists()


def test_commands_with_wrong_passphrase_change_nothing(home, capsys, monkeypatch):
    monkeypatch.setenv(membership_changes.PASSPHRASE_VARIABLE, MORE)
    assert home.admit("bob") == 2
    said = capsys.readouterr().err
    assert f"the passphrase of {home.alice / 'admission.pem'} is wrong" in said
    assert MORE not in said
    assert home.members() == ["alice"]


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("", "its first line is empty"), ("\nx", "is empty")])
def test_admit_reports_missing_or_empty_passphrase_file(home, capsys, content, said):
    path = home.root / "none"
    if content is not None:
        path.write_text(content)
    assert home.admit("bob", "--passphrase-file", str(path)) == 2
    assert said in capsys.readouterr().err


def rotate(home, *options):
    backup = home.root / f"backup-{time.monotonic_ns()}.pem"
    code = main(["federation", "rotate", str(home.alice), "--backup", str(backup), *options])
    return code, home.alice / "admission.pem", backup


@pytest.mark.slow
def test_rotate_keeps_passphrase_by_default(home):
    code, key, backup = rotate(home, "--old-passphrase-file", home.file)
    assert code == 0
    assert Identity.load(key, WORDS.encode()).public == Identity.load(backup, WORDS.encode()).public
    more = str(home.root / "more")
    assert rotate(home, "--old-passphrase-file", home.file, "--passphrase-file", more)[0] == 0
    assert Identity.load(key, MORE.encode())
    assert rotate(home, "--old-passphrase-file", more, "--no-passphrase")[0] == 0
    assert not key_files.is_encrypted(key)
    assert load_federation(home.alice).admission == Identity.load(key).public
    assert home.admit("bob") == 0


@pytest.mark.slow
def test_rotate_encrypts_plain_admission_key(tmp_path):
    home = Home(tmp_path)
    assert rotate(home, "--passphrase-file", home.file)[0] == 0
    assert key_files.is_encrypted(home.alice / "admission.pem")


@pytest.mark.slow
def test_interrupted_rotation_completes_with_new_passphrase(home):
    old = (home.alice / "admission.pem").read_bytes()
    assert rotate(home, "--old-passphrase-file", home.file, "--passphrase-file", str(home.root / "more"))[0] == 0
    (home.alice / "admission.pem").replace(home.alice / "admission.pem.new")
    key_files.write_new(home.alice / "admission.pem", old)
    assert home.admit("bob", "--passphrase-file", home.file) == 2
    assert home.admit("carol", "--passphrase-file", str(home.root / "more")) == 0
    assert not (home.alice / "admission.pem.new").exists()


# A running node


def serve(home, **changes):
    """Open the invitation service of alice's node; return its log lines and the service, if there is one."""
    said = []
    own = msgspec.structs.replace(config.load(home.alice), **changes)
    log = load_federation(home.alice)
    service, problem = open_service(home.alice, log, own.passphrase_file, log_to(said))
    assert log.invites == (service is not None) == (not problem)
    assert all(problem in line for line in said)
    return said, service


async def answer(service, key, frame):
    """Return the answer to a newcomer that looks first, like one of this version."""
    join = msgspec.msgpack.decode(frame, type=Join)
    await service.answer(key, encode_join(Look(join.secret, join.name)), "10.0.0.1")
    reply = await service.answer(key, frame, "10.0.0.1")
    assert reply.cause == ""
    return decode_answer(reply.frame)


def token(home, name):
    now = time.time()
    return invitations.invite(home.alice, name, [], "participant", 15, now=now, passphrase=WORDS.encode()).secret


def test_node_with_passphrase_answers_tokens(home):
    said, service = serve(home, passphrase_file=home.file)
    assert said == []
    frame = encode_join(Join(token(home, "bob"), "bob"))
    key = Identity.from_seed(os.urandom(32)).public
    assert isinstance(asyncio.run(answer(service, key, frame)), Joined)
    assert home.members() == ["alice", "bob"]


@pytest.mark.parametrize(("words", "why"), [("", "is encrypted and needs its passphrase"), (MORE, "the passphrase of")])
def test_node_without_passphrase_reports_it_answers_no_tokens(home, monkeypatch, words, why):
    monkeypatch.setenv(membership_changes.PASSPHRASE_VARIABLE, words)
    ((line,), service) = serve(home)
    assert line.startswith("cannot answer invitation tokens: ")
    assert why in line
    assert line.endswith("; p2pfl-node admit still works")
    assert service is None


@pytest.mark.slow
def test_running_node_uses_rotated_admission_key(home):
    log = load_federation(home.alice)
    service = InvitationService(TokenRedeemer(home.alice, WORDS.encode()), log)
    for name in ("bob", "carol"):
        key, frame = Identity.from_seed(os.urandom(32)).public, encode_join(Join(token(home, name), name))
        assert isinstance(asyncio.run(answer(service, key, frame)), Joined)
        assert rotate(home, "--old-passphrase-file", home.file)[0] == 0
    assert home.members() == ["alice", "bob", "carol"]


@pytest.mark.slow
def test_run_with_encrypted_key_reports_if_tokens_unanswered(tmp_path):
    with processes(tmp_path, ["alice"], "rounds = 1\n") as federation:
        ready = loading.load(federation.folders["alice"])
        tables = agreement.draft("test", ready.config, loading.task_of(ready))
        membership_changes.create_federation(ready.folder, tables, tmp_path / "backup.pem", WORDS.encode())
        (tmp_path / "words").write_text(WORDS)
        federation.start("alice")
        assert "cannot answer invitation tokens" in federation.wait()["alice"]
        federation.start("alice", changes=[f"passphrase_file={tmp_path / 'words'}"])
        assert "tokens" not in federation.wait()["alice"]


def test_choose_passphrase_without_terminal_is_refused():
    with pytest.raises(ConfigurationError, match="needs a terminal"):
        membership_changes.choose_passphrase(None, asked=True)
