"""Permissions of a node's folder: for its owner only."""

import os
import stat
import time

import pytest

from p2pfl._util.atomic_files import replace_file
from p2pfl._util.disk import exclusive
from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.doctor import check_folder
from p2pfl.node.federation import invitations, membership_changes
from p2pfl.node.federation.membership_file import MembershipFile, load_federation
from p2pfl.node.folder import config
from tests.support.processes import federate

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
    """Run with a umask of 0, which restricts no file."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def alice(tmp_path, open_umask):
    config.create(tmp_path / "deep" / "alice", "alice")
    federate(tmp_path / "deep", ["alice"])
    return tmp_path / "deep" / "alice"


@pytest.mark.slow
def test_node_folder_and_files_are_private(alice, capsys):
    invitations.invite(alice, "bob", ["x:1"], "participant", 15, now=time.time())
    membership_changes.request(alice, new_key=True)  # afterwards it belongs to no federation and runs alone
    assert main(["run", str(alice), "--set", "rounds=2"]) == 0
    assert (mode(alice), mode(alice / "invitations")) == (0o700, 0o700)
    files = {path.name: mode(path) for path in alice.rglob("*") if path.is_file()}
    assert {
        "node.toml",
        "status.json",
        "lock",
        "checkpoint",
        "incarnation",
        "membership.lock",
        "federation.toml.old",
    } <= files.keys()
    assert set(files.values()) == {0o600}
    err = capsys.readouterr().err
    assert err.count("warning: ") == 1
    assert "warning: this node has left the federation" in err


def test_create_keeps_mode_of_existing_folder(tmp_path, open_umask):
    (tmp_path / "alice").mkdir(mode=0o755)
    config.create(tmp_path / "alice", "alice")
    assert mode(tmp_path / "alice") == 0o755
    assert mode(tmp_path / "alice" / "node.toml") == 0o600


@pytest.mark.slow
def test_run_warns_of_folder_open_to_others(alice, capsys):
    config.create(alice.parent / "bob", "bob")
    bob = alice.parent / "bob"
    bob.chmod(0o755)
    assert main(["run", str(bob), "--set", "rounds=1"]) == 0
    warning = f"other users of this machine can enter {bob} (mode 0755); run: chmod -R go= {bob}"
    assert capsys.readouterr().err == f"warning: {warning}\n"
    os.system(warning.rpartition("run: ")[2])
    assert config.open_to_others(bob) == ""


def test_check_folder_warns_of_locks_in_open_folder(alice):
    assert check_folder(alice).ok
    assert "accessible to its owner only" in check_folder(alice).result
    alice.chmod(0o711)
    found = check_folder(alice)
    assert found.ok is None
    assert "stop the node by locking them" in found.result
    assert found.remedy == f"run: chmod -R go= {alice}"


def test_save_fails_while_another_process_holds_lock(alice):
    log = load_federation(alice)
    held = pytest.raises(OSError, match=r"another process has locked it for 0\.05 s")
    with exclusive(alice / "membership.lock"), held:
        MembershipFile(alice, patience=0.05).save(log)
    MembershipFile(alice, patience=0.05).save(log)


def test_revoke_fails_while_another_process_holds_lock(alice, monkeypatch):
    monkeypatch.setattr(MembershipFile.__init__, "__defaults__", (0.05,))
    with exclusive(alice / "membership.lock"), pytest.raises(ConfigurationError, match="another process has locked it"):
        membership_changes.revoke(alice, "bob")


def test_replace_file_applies_given_mode(tmp_path, open_umask):
    replace_file(tmp_path / "shown", [b"x"])
    replace_file(tmp_path / "own", [b"x"], mode=0o600)
    assert (mode(tmp_path / "shown"), mode(tmp_path / "own")) == (0o666, 0o600)
