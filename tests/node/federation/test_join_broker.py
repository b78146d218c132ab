"""Joining with a token through a real broker, for nodes that share nothing else."""

import io
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from p2pfl.node.cli.main import main
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.node.folder.config_edit import set_text
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import Invitation
from tests.support import brokers, forked
from tests.support.processes import PATIENCE, federate

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
ONLY_BROKER = {"direct = true": "direct = false", "mdns = true": "mdns = false"}


def create(root, name, part, **changes):
    """Make the folder of a node that uses no direct link and trains for two rounds with one other member."""
    config.create(root / name, name, "127.0.0.1:0", part)
    path, text = root / name / config.CONFIG, (root / name / config.CONFIG).read_text()
    for before, after in {**ONLY_BROKER, "members = 1 ": "members = 2 ", "rounds = 10": "rounds = 2"}.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    return root / name


@contextmanager
def running(folder, **environment):
    """Run a node until it has finished, and no peer needs it; its `output` is known afterwards."""
    process = forked.python(
        [sys.executable, "-m", "p2pfl.node", "run", str(folder), "--until-done"],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.output = process.communicate()[0]


def status(folder):
    path = folder / config.STATUS
    return json.loads(path.read_text()) if path.exists() else {}


def wait_until(condition, process):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)  # of real time: this is a real process


def invite(folder, capsys):
    assert main(["invite", str(folder), "bob"]) == 0
    token, said = capsys.readouterr()
    assert "this node must run and be reachable through the broker at mqtt" in said
    return token.strip()


def join(folder, token, monkeypatch, capsys):
    """Join; return the exit code and the text on standard error."""
    monkeypatch.setattr("sys.stdin", io.StringIO(token))
    code = main(["join", str(folder)])
    return code, capsys.readouterr().err


def test_nodes_with_only_a_broker_in_common_join_and_learn(tmp_path, monkeypatch, capsys):
    """Bob has no broker in his node.toml: the token names it, and join saves it."""
    alice, bob = create(tmp_path, "alice", "0/20"), create(tmp_path, "bob", "1/20")
    federate(tmp_path, ["alice"])
    with brokers.mosquitto() as broker:
        set_text(alice, "broker", broker.url)
        set_text(bob, "broker", "")
        with running(alice) as first:
            wait_until(lambda: status(alice).get("network"), first)
            token = invite(alice, capsys)
            assert Invitation.parse(token).addresses == (broker.url,)
            code, err = join(bob, token, monkeypatch, capsys)
            assert (code, err.splitlines()[-1]) == (0, f"saved the broker {broker.url} in {bob / config.CONFIG}")
            assert config.load(bob).broker == broker.url
            with running(bob) as second:
                assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)
    for folder, other, process in ((alice, "bob", first), (bob, "alice", second)):
        assert "warning" not in process.output
        assert status(folder)["round"] == 2
        assert set(status(folder)["history"][-1]["weights"]) == {"alice", "bob"}
        assert [peer["name"] for peer in status(folder)["peers"]] == [other]


def test_node_returns_with_new_key_without_warnings(tmp_path, monkeypatch, capsys):
    """The broker still has the announcement of bob's former key."""
    alice, bob = create(tmp_path, "alice", "0/20"), create(tmp_path, "bob", "1/20")
    federate(tmp_path, ["alice", "bob"])
    with brokers.mosquitto() as broker:
        for folder in (alice, bob):
            set_text(folder, "broker", broker.url)
        for rounds in (2, 4):
            with running(alice) as first, running(bob) as second:
                assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)
            assert "warning" not in first.output + second.output
            assert [status(folder)["round"] for folder in (alice, bob)] == [rounds, rounds]
            if rounds == 2:
                assert main(["federation", "extend", str(alice), "--rounds", "4"]) == 0
                capsys.readouterr()
                assert main(["request", str(bob), "--new-key"]) == 0
                monkeypatch.setattr("sys.stdin", io.StringIO(capsys.readouterr().out))
                bundle = tmp_path / "bundle"
                assert main(["admit", str(alice), "-", "--out", str(bundle)]) == 0
                assert main(["join", str(bob), str(bundle)]) == 0


def key_of(folder):
    return Identity.load(folder / config.KEY).public.hex()


def accounts(folder, passwords):
    """Return the password file of a broker."""
    program = shutil.which("mosquitto_passwd")
    if program is None:
        pytest.skip("mosquitto_passwd is not installed")
    path = folder / "passwords"
    path.touch(mode=0o600)
    for user, password in passwords.items():
        subprocess.run([program, "-b", str(path), user, password], check=True, capture_output=True)
    return path.read_text()


def rules(federation, keys):
    """Return the access rules of deploy/acl for members and newcomers with these keys."""
    text = (ROOT / "deploy" / "acl").read_text().replace("FEDERATION", federation)
    return text + "".join(f"pattern write p2pfl/{federation}/{key}/%u\n" for key in keys)


def test_newcomer_joins_with_own_account_over_private_tls(tmp_path, monkeypatch, capsys):
    """The token has the fingerprint of the broker's certificate, and nobody's password."""
    alice, bob = create(tmp_path, "alice", "0/20"), create(tmp_path, "bob", "1/20")
    federate(tmp_path, ["alice"])
    federation = load_federation(alice).federation.hex()
    keys = [key_of(alice), key_of(bob)]
    files = brokers.make_certificate() | {
        "passwords": accounts(tmp_path, dict(zip(keys, ("secret of alice", "secret of bob"), strict=True))),
        "acl": rules(federation, keys),
    }
    (tmp_path / "cert.pem").write_text(files["cert.pem"])
    lines = ["certfile", "keyfile", "password_file", "acl_file"]
    names = ["cert.pem", "key.pem", "passwords", "acl"]
    settings = [f"{line} {{folder}}/{name}" for line, name in zip(lines, names, strict=True)]
    fingerprint = sha256(ssl.PEM_cert_to_DER_cert(files["cert.pem"])).hexdigest()
    with brokers.mosquitto(["allow_anonymous false", *settings], files) as broker:
        address = f"mqtts://127.0.0.1:{broker.port}"
        set_text(alice, "broker", address.replace("://", f"://{keys[0]}@"))
        trust = {"SSL_CERT_FILE": str(tmp_path / "cert.pem"), "P2PFL_MQTT_PASSWORD": "secret of alice"}
        with running(alice, **trust) as first:
            wait_until(lambda: status(alice).get("network"), first)
            with monkeypatch.context() as own:
                own.setenv("SSL_CERT_FILE", trust["SSL_CERT_FILE"])
                token = invite(alice, capsys)
            assert Invitation.parse(token).addresses == (f"{address}#sha256={fingerprint}",)

            code, err = join(bob, token, monkeypatch, capsys)
            assert code == 1
            assert "refuses this node: " in err
            assert "check the user name in mqtts://USER@HOST:PORT and P2PFL_MQTT_PASSWORD" in err
            assert load_federation(bob) is None

            set_text(bob, "broker", f"{address.replace('://', f'://{keys[1]}@')}#sha256={fingerprint}")
            monkeypatch.setenv("P2PFL_MQTT_PASSWORD", "secret of bob")
            code, err = join(bob, token, monkeypatch, capsys)
            assert code == 0, err
            assert config.load(bob).broker == f"mqtts://{keys[1]}@127.0.0.1:{broker.port}#sha256={fingerprint}"
            with running(bob) as second:
                assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)
    assert set(status(bob)["history"][-1]["weights"]) == {"alice", "bob"}


def test_join_names_reason_if_inviter_is_not_at_the_broker(tmp_path, monkeypatch, capsys):
    alice, bob = create(tmp_path, "alice", "0/20"), create(tmp_path, "bob", "1/20")
    federate(tmp_path, ["alice"])
    with brokers.mosquitto() as broker:
        set_text(alice, "broker", broker.url)
        code, err = join(bob, invite(alice, capsys), monkeypatch, capsys)
    assert code == 1
    assert err.count("\n") == 1
    assert "the inviting node is not reachable; it must run when you join" in err
    assert f"is not present at the broker at 127.0.0.1:{broker.port}" in err
    assert config.load(bob).broker == ""
