"""End of a membership as the former member sees it: in its run, its status, and the commands."""

import asyncio
import io
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from p2pfl.errors import ConfigurationError, first_error
from p2pfl.node.cli.main import main
from p2pfl.node.federation import membership_changes
from p2pfl.node.federation.membership_file import RevokedError, check_member, check_name, describe_refusal, load_federation
from p2pfl.node.folder import config
from p2pfl.node.status.observer import StatusObserver
from p2pfl.node.status.text import describe
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Signed
from tests.support.brokers import MemoryBroker
from tests.support.extras import needs_torch
from tests.support.logs import log_to
from tests.support.loopback_nodes import SOON, folders, honest, until


@pytest.fixture
def members(tmp_path):
    """Folders of alice, who has the admission key, and bob."""
    return folders(tmp_path, "alice", "bob")


def revoked(name, members):
    """Return the beginning of the error of a revoked node."""
    key = Identity.load(members["alice"] / "admission.pem").public.hex()[:16]
    owner = f"the owner of the admission key {key}"
    return f"the membership of this node, {name}, in test was revoked by {owner} (entry 3 of the membership log); "


def forged_proof(key):
    """Return what a member that does not have the admission key could make."""
    return msgspec.msgpack.encode([Signed(b"entry", bytes(64))])


def revoke_online(alice, name):
    alice.log.append(Identity.load(alice.folder / "admission.pem"), "remove", name, alice.log.members[name].key)


@pytest.mark.alone
def test_connected_node_receives_its_revocation(members):
    async def main():
        async with honest(members["alice"]) as alice, honest(members["bob"]) as bob:
            await until(lambda: alice.exchange.peers["bob"].introduced and bob.exchange.peers["alice"].introduced)
            revoke_online(alice, "bob")
            await asyncio.sleep(SOON)

    with pytest.raises(ExceptionGroup) as ended:
        asyncio.run(main())
    error = first_error(ended.value)
    assert isinstance(error, RevokedError)
    assert str(error).startswith(revoked("bob", members))
    assert list(load_federation(members["bob"]).members) == ["alice"]


@pytest.fixture(params=["direct", "broker"])
def bus(request):
    """Function that makes a client of a broker; None for direct links."""
    return MemoryBroker().bus if request.param == "broker" else None


@pytest.mark.slow
def test_node_revoked_while_offline_ends_with_proof(members, bus, capsys):
    membership_changes.revoke(members["alice"], "bob")

    async def main():
        addresses = None if bus is None else {"alice": "mqtt:"}
        async with honest(members["alice"], bus=bus), honest(members["bob"], addresses=addresses, bus=bus):
            await asyncio.sleep(SOON)

    with pytest.raises(ExceptionGroup) as ended:
        asyncio.run(main())
    error = first_error(ended.value)
    assert isinstance(error, RevokedError)
    assert str(error).startswith(revoked("bob", members))
    code, _, err = command(capsys, "run", members["bob"])
    assert (code, err) == (2, f"{error}\n")
    assert revoked("bob", members) in command(capsys, "status", members["bob"])[1]
    assert f"wrong  federation: {revoked('bob', members)}" in command(capsys, "doctor", members["bob"])[1]


def test_unproven_refusal_of_peer_changes_nothing(members, tmp_path, monkeypatch):
    said, shown = [], []
    membership_changes.revoke(members["alice"], "bob")

    async def main():
        async with honest(members["alice"]) as alice, honest(members["bob"]) as bob:
            monkeypatch.setattr(alice.log, "revocation", forged_proof)
            status_observer = StatusObserver(tmp_path / "status.json", bob.exchange, log_to(said))
            peer = bob.exchange.peers["alice"]
            await until(lambda: peer.revoked and said)
            for _ in range(3):  # further refusals change nothing
                before = peer.link, peer.dial_problem
                await asyncio.sleep(0.05)
                assert (peer.link, peer.dial_problem) == before
            shown.append(status_observer.fresh())

    asyncio.run(main())
    mend = "ask the owner of the admission key, and see p2pfl-node doctor"
    assert said == [f"alice refuses this node, because its membership was revoked; {mend}"]
    lines = describe(shown[0])
    assert "  revoked  the membership of this node was revoked, according to alice" in lines
    assert " ".join(lines[-1].split()) == (
        "alice not connected 0 none none 0 B 0 B refuses this node, because its membership was revoked"
    )


def test_refusal_names_entry_and_remedy(members):
    alice, bob = (load_federation(members["alice"]), Identity.load(members["bob"] / "key.pem"))
    folder = members["bob"]
    assert describe_refusal(alice, bob.public, folder) == ""
    check_member(alice, bob.public, folder)
    alice.append(Identity.load(members["alice"] / "admission.pem"), "replace", "bob", Identity.from_seed(bytes(32)).public)
    assert " has replaced the key of this node, bob, in test (entry 3 of" in describe_refusal(alice, bob.public, folder)
    with pytest.raises(RevokedError):
        check_member(alice, bob.public, folder)
    stranger = Identity.from_seed(bytes([1]) * 32).public
    with pytest.raises(ConfigurationError, match="this node is not a member of test; ask the owner") as refused:
        check_member(alice, stranger, folder)
    assert not isinstance(refused.value, RevokedError)


def command(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_commands_of_revoked_node_name_the_revocation(members, capsys):
    folder = members["alice"]
    membership_changes.revoke(folder, "alice")
    code, out, err = command(capsys, "run", folder)
    said = revoked("alice", members)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1
    code, out, _ = command(capsys, "status", folder)
    assert code == 0
    first, second = out.splitlines()
    assert first == "alice: revoked, round 0"
    assert second.startswith(f"  reason  {said}")
    code, out, _ = command(capsys, "doctor", folder)
    assert code == 1
    assert f"wrong  federation: {said}" in out
    code, _, err = command(capsys, "invite", folder, "carol")
    assert code == 2
    assert err.startswith(f"no token was made, because this node could not run to answer it: {said}")


def test_doctor_reports_peers_that_refuse_a_former_member(members, capsys):
    federation = load_federation(members["bob"]).federation.hex()
    status = {"state": "stopped", "pid": 1, "history": [], "revoked_by": ["alice"], "federation_id": federation}
    (members["bob"] / config.STATUS).write_text(json.dumps(status))
    code, out, _ = command(capsys, "doctor", members["bob"])
    assert code == 1
    assert "wrong  federation: the membership of this node in test was revoked, according to alice; " in out


def test_revoking_own_node_needs_consent(members, capsys, monkeypatch):
    alice = members["alice"]
    code, out, err = command(capsys, "revoke", alice, "alice")
    assert (code, out) == (2, "")
    loss = "alice is this node, which has the admission key: the federation test could then neither admit nor revoke members"
    assert err == f"not revoked: {loss}; to do it without a question: p2pfl-node revoke {alice} alice --yes\n"
    for typed, left in (("\n", ["alice", "bob"]), ("y\n", ["bob"])):
        terminal = io.StringIO(typed)
        terminal.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", terminal)
        code, _, err = command(capsys, "revoke", alice, "alice")
        assert err.startswith(f"{loss}; revoke it? [y/N] ")
        assert list(load_federation(alice).members) == left


def test_former_member_with_the_admission_key_can_change_nothing(members, capsys):
    alice, bob = members["alice"], members["bob"]
    membership_changes.revoke(alice, "alice")
    for line in (("revoke", alice, "bob"), ("federation", "extend", alice, "--rounds", "99")):
        code, out, err = command(capsys, *line)
        assert (code, out) == (2, "")
        assert f"to return, copy {alice / 'admission.pem'} to the folder of another member, and admit the output of" in err
    assert list(load_federation(alice).members) == ["bob"]
    for name in ("membership", "admission.pem"):
        shutil.copy(alice / name, bob / name)
    _, line, _ = command(capsys, "request", alice, "--new-key")
    assert command(capsys, "admit", bob, line.strip(), "--out", alice / "back", "--reuse-name")[0] == 0
    assert command(capsys, "join", alice, alice / "back", "--yes")[0] == 0
    assert set(load_federation(alice).members) == {"alice", "bob"}


def test_revoking_the_last_member_needs_consent(members, capsys, monkeypatch):
    alice = members["alice"]
    assert command(capsys, "revoke", alice, "bob")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = command(capsys, "revoke", alice, "alice")
    assert code == 2
    assert err.startswith("not revoked: alice is the last member of the federation test; ")
    assert command(capsys, "revoke", alice, "alice", "--yes")[0] == 0
    assert list(load_federation(alice).members) == []


def test_revoking_another_member_needs_no_consent(members, capsys):
    assert command(capsys, "revoke", members["alice"], "bob")[0] == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("direct = false\n", "direct = false needs a broker"),
        pytest.param('device = "tpu"\n', "unknown device 'tpu'", marks=needs_torch),
        ("rounds = -1\n", "rounds must be 0 or more, got -1"),
    ],
)
def test_invitation_from_node_that_cannot_run_is_refused(members, capsys, line, said):
    path: Path = members["alice"] / config.CONFIG
    path.write_text(line + path.read_text())
    code, out, err = command(capsys, "invite", members["alice"], "carol", "--address", "127.0.0.1:4100")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (members["alice"] / "invitations").exists()


def test_key_of_another_member_is_refused(members):
    alice, bob = members["alice"], members["bob"]
    membership, key = load_federation(alice), config.own_key(bob)
    check_name(membership, key, "bob", bob)
    with pytest.raises(
        ConfigurationError, match=r"is the key of the member bob of .*, but name in .* is alice; set name = \"bob\""
    ):
        check_name(membership, key, "alice", alice)
