"""Joining a running node with a one-time token, with interruptions at any point."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from p2pfl._util.failpoints import VARIABLE
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.node.cli.main import main
from p2pfl.node.federation import join
from p2pfl.node.federation import join as joining
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.protocols.membership.invitation import Invitation
from tests.support import forked
from tests.support.ports import free_ports
from tests.support.processes import PATIENCE, federate

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


class Inviter:
    """Alice's node, which can be killed at a failpoint and started again."""

    def __init__(self, root):
        self.folder = root / "alice"
        (self.port,) = free_ports(1)
        config.create(self.folder, "alice", f"127.0.0.1:{self.port}")
        path = self.folder / config.CONFIG
        path.write_text(path.read_text().replace("members = 1 ", "members = 2 ").replace("mdns = true", "mdns = false"))
        federate(root, ["alice"])
        self.process = None

    def start(self, crash=""):
        self.stop()
        self.process = forked.python(
            [sys.executable, "-m", "p2pfl.node", "run", str(self.folder), "--until-done"],
            env=os.environ | {"PYTHONPATH": str(ROOT), VARIABLE: crash},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + PATIENCE
        while not self.is_listening():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)  # of real time: this is a real process

    def is_listening(self):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def status(self):
        path = self.folder / config.STATUS
        return json.loads(path.read_text()) if path.exists() else {}

    def token(self, capsys, name="bob"):
        assert main(["invite", str(self.folder), name]) == 0
        return capsys.readouterr().out

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.communicate()


@pytest.fixture
def alice(tmp_path):
    inviter = Inviter(tmp_path)
    yield inviter
    inviter.stop()


def create_bob(root):
    config.create(root / "bob", "bob", "127.0.0.1:0")
    return root / "bob"


@pytest.mark.parametrize(("point", "member"), [("invitation-used", False), ("membership-saved", True)])
def test_join_succeeds_after_inviter_was_killed(tmp_path, capsys, alice, point, member):
    folder, token = create_bob(tmp_path), alice.token(capsys)
    alice.start(crash=point)
    with pytest.raises(RunError, match="cannot join: the inviting node is not reachable"):
        joining.join(folder, token)
    alice.process.wait(PATIENCE)
    assert alice.process.returncode == -signal.SIGKILL
    assert ("bob" in load_federation(alice.folder).members) == member
    assert load_federation(folder) is None
    alice.start()
    assert joining.join(folder, token) == "test"  # the node that used the token may complete its admission
    with pytest.raises(ConfigurationError, match="belongs to the federation test already"):
        joining.join(folder, token)
    config.create(tmp_path / "other", "bob", "127.0.0.1:0")
    with pytest.raises(ConfigurationError, match="another node has used this token"):
        joining.join(tmp_path / "other", token)
    log = load_federation(folder)
    assert (log.membership_version, set(log.members)) == (2, {"alice", "bob"})


def test_join_reads_token_from_stdin_and_needs_running_inviter(tmp_path, capsys, monkeypatch, alice):
    folder, token = create_bob(tmp_path), alice.token(capsys)
    monkeypatch.setattr(join, "PAUSES", ())
    monkeypatch.setattr("sys.stdin", io.StringIO(token))
    assert main(["join", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "the inviting node is not reachable" in said
    assert said.count("\n") == 1
    assert token.strip()[-20:] not in said
    alice.start()
    monkeypatch.setattr("sys.stdin", io.StringIO(token))
    assert main(["join", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(
        "settings of the federation test:\n  task digits\n  policy dac\n  model of 4,810 values (0.02 MB), 10"
    )
    assert out == f"joined the federation test; next: p2pfl-node run {folder}\n"
    assert list(config.load(folder).addresses) == ["alice"]
    assert config.load(folder).addresses["alice"] in Invitation.parse(token).addresses
    assert main(["revoke", str(alice.folder), "bob"]) == 0
    deadline = time.monotonic() + PATIENCE
    while alice.status()["peers"]:  # the running node detects the entry that the command has written
        assert time.monotonic() < deadline
        time.sleep(0.05)
    capsys.readouterr()
    assert main(["federation", "show", str(alice.folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in shown["members"]] == ["alice"]
    assert shown["membership_version"] == 3
