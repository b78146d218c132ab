"""Findings of p2pfl-node doctor, and the repairs that it proposes."""

import shutil
import socket
import ssl
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.installation import Finding, report
from p2pfl.node import doctor as doctor
from p2pfl.node import doctor as network
from p2pfl.node.doctor import (
    check_broker,
    check_clock,
    check_disk,
    check_federation,
    check_key,
    check_layout,
    check_multicast,
    check_node,
    check_peers,
    check_port,
    with_user_name,
)
from p2pfl.node.federation import membership_changes
from p2pfl.node.folder import config, config_edit
from p2pfl.parameters import Layout
from p2pfl.protocols.identity import Identity
from tests.support import brokers
from tests.support.brokers import make_certificate
from tests.support.loopback_nodes import folders
from tests.support.mosquitto import mosquitto
from tests.support.ports import free_port


def test_report_prints_one_line_per_finding_with_remedy():
    findings = [
        Finding("key", True, "whole"),
        Finding("clock", None, "not synchronised yet", "set it"),
        Finding("port", False, "in use", "choose another"),
    ]
    assert report(findings) == [
        "ok     key: whole",
        "note   clock: not synchronised yet; set it",
        "wrong  port: in use; choose another",
    ]


def test_check_key_shows_public_key_of_valid_file(tmp_path):
    identity = Identity.create(tmp_path / "key.pem")
    found = check_key(tmp_path)
    assert found.ok
    assert identity.public.hex() in found.result


def test_check_key_distinguishes_missing_damaged_and_open_key(tmp_path):
    missing = check_key(tmp_path)
    assert (missing.ok, "No such file" in missing.result) == (False, True)
    assert "p2pfl-node init" in missing.remedy
    path = tmp_path / "key.pem"
    Identity.create(path)
    path.chmod(0o644)
    assert f"run: chmod 600 {path}" in report([check_key(tmp_path)])[0]
    path.chmod(0o600)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    broken = check_key(tmp_path)
    assert not broken.ok
    assert "backup" in broken.remedy
    assert content.splitlines()[1].decode() not in report([broken])[0]


def test_check_disk_fails_without_room_for_checkpoints(tmp_path):
    assert check_disk(tmp_path).ok
    full = check_disk(tmp_path, needed=10**18)
    assert not full.ok
    assert "may need 1,000,000,000,000 MB" in full.result
    assert not list(tmp_path.iterdir())


def test_check_disk_needs_more_room_for_large_checkpoint(tmp_path):
    size = shutil.disk_usage(tmp_path).free // 2
    with (tmp_path / "checkpoint").open("wb") as file:
        file.truncate(size)  # a sparse file, which uses no disk space
    assert not check_disk(tmp_path).ok


def test_check_disk_reports_folder_that_cannot_be_written(tmp_path):
    found = check_disk(tmp_path / "none")
    assert not found.ok
    assert "none: No such file" in found.result


LAYOUT = Layout((("weight", (2, 3)),), 6)


def test_check_layout_compares_task_with_federation():
    assert check_layout(lambda: LAYOUT, LAYOUT.fingerprint.hex()).ok
    other = check_layout(lambda: LAYOUT, "00" * 16)
    assert not other.ok
    assert LAYOUT.fingerprint.hex() in other.result
    assert "00" * 16 in other.result


def test_check_layout_reports_task_that_cannot_be_created():
    def make():
        raise ConfigurationError("rows.csv, line 3: b must be a number, got 'x'")

    found = check_layout(make, "")
    assert (found.ok, found.result) == (False, "rows.csv, line 3: b must be a number, got 'x'")
    assert found.remedy == "correct it in node.toml"


def test_doctor_checks_data_of_node_without_federation(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "check_clock", lambda: Finding("clock", True, ""))
    (tmp_path / "rows.csv").write_text("a,b,label\n1,2,0\n1,x,1\n")
    config.create(tmp_path / "bob", "bob", "127.0.0.1:0", task="classification", data=str(tmp_path / "rows.csv"))
    *_, task = doctor.run_checks(tmp_path / "bob")
    assert (task.check, task.ok) == ("task", False)
    assert "line 3: b must be a number, got 'x'" in task.result
    assert task.remedy == "put the right file there, or name another one in node.toml"
    assert check_layout(lambda: LAYOUT, None) == Finding("task", True, "6 values in 1 tensor")


# The federation


def create_node(root, name="alice"):
    folder = root / name
    config.create(folder, name)
    return folder


def test_check_federation_notes_node_without_federation(tmp_path):
    found = check_federation(create_node(tmp_path))
    assert (found.ok, found.result) == (None, "this node belongs to no federation")
    assert "federation create" in found.remedy


def test_check_federation_distinguishes_member_and_stranger(tmp_path):
    folder = create_node(tmp_path)
    membership_changes.create_federation(folder, {"name": "home"}, tmp_path / "backup.pem")
    assert check_federation(folder) == Finding("federation", True, "home, members: 1, membership version: 1")
    stranger = create_node(tmp_path, "mallory")
    for name in ("federation.toml", "membership"):
        shutil.copy(folder / name, stranger / name)
    found = check_federation(stranger)
    assert (found.ok, found.result) == (False, "this node is not a member of home")
    membership_changes.revoke(folder, "alice")
    found = check_federation(folder)
    assert found.ok is False
    assert found.result.startswith(
        "the membership of this node, alice, in home was revoked by the owner of the admission key "
    )
    assert found.result.endswith("(entry 2 of the membership log)")
    assert "p2pfl-node request" in found.remedy


def test_check_federation_tells_how_a_revoked_node_returns(tmp_path):
    folder = create_node(tmp_path)
    membership_changes.create_federation(folder, {"name": "home"}, tmp_path / "backup.pem")
    assert check_federation(folder, ["bob"]).remedy.endswith(" there with --reuse-name")


def test_doctor_of_revoked_node_proposes_its_return_only(tmp_path, monkeypatch):
    members = folders(tmp_path, "alice", "bob")
    membership_changes.revoke(members["alice"], "bob")
    shutil.copy(members["alice"] / "membership", members["bob"] / "membership")
    monkeypatch.setattr(doctor, "check_clock", lambda: Finding("clock", True, ""))
    found = {finding.check: finding for finding in doctor.run_checks(members["bob"])}
    assert "peers" not in found
    assert f"`p2pfl-node request {members['bob']} --new-key`" in found["federation"].remedy


def test_check_federation_mentions_pending_request(tmp_path):
    folder = create_node(tmp_path)
    membership_changes.create_federation(folder, {"name": "home"}, tmp_path / "backup.pem")
    membership_changes.request(folder, new_key=True)
    found = check_federation(folder)
    assert found.ok is None
    assert found.result == "it has left the federation home and has a new key, which is not admitted yet"
    assert f"`p2pfl-node request {folder}`" in found.remedy
    assert found.remedy.endswith(f"p2pfl-node join {folder} FILE")


def test_check_federation_handles_damaged_file_and_missing_key(tmp_path):
    folder = create_node(tmp_path)
    membership_changes.create_federation(folder, {"name": "home"}, tmp_path / "backup.pem")
    path = folder / "federation.toml"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"home", b"hose"))
    found = check_federation(folder)
    assert found.ok is False
    assert str(path) in found.result
    path.write_bytes(whole)
    (folder / "key.pem").unlink()
    assert check_federation(folder).ok is None


# The clock


class Clocks:
    """Two simulated clocks; the wall clock jumps by `jump` seconds during a pause."""

    def __init__(self, year=2030, jump=0.0):
        self.now, self.passed, self.jump = datetime(year, 5, 1, 12, tzinfo=UTC).timestamp(), 1000.0, jump

    def pause(self, seconds):
        self.passed += seconds
        self.now += seconds + self.jump

    def check(self, timesync):
        return check_clock(lambda: self.now, lambda: self.passed, self.pause, timesync)


def test_check_clock_tests_year_jumps_and_synchronisation(tmp_path):
    nowhere = tmp_path / "none"
    assert Clocks().check(nowhere) == Finding("clock", True, "plausible: 2030-05-01 12:00 UTC")
    for year in (1970, 2025, 2099):
        found = Clocks(year).check(nowhere)
        assert (found.ok, f"the year {year}" in found.result) == (False, True)
    moved = Clocks(jump=-7200).check(nowhere)
    assert (moved.ok, "just moved by -7200.0 s" in moved.result) == (None, True)
    assert Clocks().check(tmp_path).ok is None
    (tmp_path / "synchronized").touch()
    assert Clocks().check(tmp_path) == Finding("clock", True, "synchronised")


@pytest.mark.slow
def test_check_clock_passes_on_this_machine():
    assert check_clock().ok is not False


# The port


def test_check_port_on_loopback_notes_local_access_only():
    port = free_port()
    found = check_port(f"127.0.0.1:{port}")
    assert found.ok is None
    assert "this machine only" in found.result
    assert f'listen = ":{port}"' in found.remedy


def test_check_port_free_on_all_interfaces_passes():
    port = free_port()
    assert check_port(f"0.0.0.0:{port}") == Finding("port", True, f"0.0.0.0:{port} is free")
    assert check_port(f"tcp://:{port}").ok


def test_check_port_in_use_fails_unless_this_node_uses_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        taken = check_port(listen)
        assert (taken.ok, taken.result) == (False, f"cannot listen at {listen}: Address already in use")
        assert check_port(listen, running=True).ok is None


@pytest.mark.parametrize(
    ("listen", "result", "remedy"),
    [
        ("203.0.113.9:4100", "Cannot assign requested address", "use one that `ip addr` shows"),
        ("4100", "is not of the form", "change listen"),
        ("[::1:4100", "is not of the form", "change listen"),
    ],
)
def test_check_port_rejects_unusable_address(listen, result, remedy):
    found = check_port(listen)
    assert found.ok is False
    assert result in found.result
    assert remedy in found.remedy


def test_check_port_names_the_address_of_the_running_node():
    found = check_port("0.0.0.0:4101", running=True, configured=":4100")
    assert found == Finding("port", True, "0.0.0.0:4101 is used by this node (node.toml has :4100)")
    assert check_port(":4101", running=True, configured=":4101").result == ":4101 is used by this node"


# The running node and its peers

NETWORK = {"listen": ":4101", "broker": "", "mdns": False}


def peer(name="bob", **values):
    return {"name": name, "state": "connected", "reason": "", "link": "direct", "remote": "10.0.0.2:4100"} | {
        "addresses": {"10.0.0.2:4100": "mdns"},
        **values,
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (True, "connected directly, at 10.0.0.2:4100")),
        ({"link": "broker", "remote": ""}, (True, "connected through the broker")),
        ({"state": "suspected", "reason": "no answer"}, (None, "connected directly, at 10.0.0.2:4100, but it is suspected")),
        (
            {"state": "behind", "reason": "behind, in round 3"},
            (None, "connected directly, at 10.0.0.2:4100, but it is behind, in"),
        ),
        ({"link": "", "state": "done"}, (True, "not connected, because it has finished its rounds and left")),
        (
            {"link": "", "state": "connecting", "reason": "10.0.0.2:4100: connection refused"},
            (None, "not connected (10.0.0.2:4100: connection refused), known addresses: 10.0.0.2:4100 from mdns"),
        ),
        (
            {"link": "", "state": "connecting", "addresses": {"mqtt:": "node.toml"}, "reason": ""},
            (None, "not connected (no address known yet)"),
        ),
        (
            {"link": "", "state": "suspected", "reason": "size differs: this node has 1, the peer has 2"},
            (False, "not connected (size differs"),
        ),
    ],
)
def test_check_peers_names_the_way_or_the_reason(values, expected):
    (found,) = check_peers({"peers": [peer(**values)]})
    ok, result = expected
    assert (found.check, found.ok) == ("peer bob", ok)
    assert found.result.startswith(result)
    assert bool(found.remedy) == ("not connected (" in found.result)


@pytest.mark.parametrize(
    ("state", "ok", "result"),
    [
        ({}, None, "it has never run"),
        ({"state": "running", "federation": "home", "round": 3, "rounds": 9}, True, "running, round 3 of 9"),
        ({"state": "running", "age": 95.0}, False, "it runs, but has not answered or written its status for 95 s"),
        ({"state": "starting", "age": 95.0}, True, "starting, round 0"),
        ({"state": "failed", "reason": "no data", "age": 4.0}, False, "failed, round 0, 4 s ago: no data"),
        ({"state": "stopped", "age": 7200.0}, None, "it does not run (stopped, round 0, 2 h ago)"),
    ],
)
def test_check_node_names_its_state(state, ok, result):
    found = check_node(state)
    assert (found.ok, found.result) == (ok, result)


@pytest.fixture
def alice(tmp_path):
    return folders(tmp_path, "alice", "bob")["alice"]


def network_findings(folder, state, monkeypatch):
    monkeypatch.setattr(doctor, "check_clock", lambda: Finding("clock", True, ""))
    monkeypatch.setattr(doctor.reader, "current", lambda folder: state)
    names = ("port", "multicast", "broker", "peers", "peer bob")
    return {found.check: (found.ok, found.result) for found in doctor.run_checks(folder) if found.check in names}


def test_doctor_checks_options_of_the_running_node(alice, monkeypatch):
    running = {"state": "running", "pid": 1, "history": [], "federation": "test", "network": NETWORK, "peers": [peer()]}
    found = network_findings(alice, running, monkeypatch)
    assert set(found) == {"port", "peer bob"}
    ok, result = found["port"]
    assert ok
    assert result.startswith(":4101 is used by this node (node.toml has 127.0.0.1:")
    assert found["peer bob"] == (True, "connected directly, at 10.0.0.2:4100")
    problem = {"network": NETWORK | {"listen": "", "broker": "mqtt://host"}, "broker": "the broker at host does not answer"}
    found = network_findings(alice, running | problem, monkeypatch)
    assert found["port"] == (True, "not used: this node connects through the broker only")
    assert found["broker"] == (False, "host does not answer")


def test_doctor_reports_that_tokens_are_not_answered(alice, monkeypatch):
    state = {"state": "running", "pid": 1, "history": [], "network": NETWORK, "peers": [], "tokens_unanswered": "encrypted"}
    monkeypatch.setattr(doctor.reader, "current", lambda folder: state)
    (found,) = [each for each in doctor.run_checks(alice) if each.check == "tokens"]
    assert (found.ok, found.result) == (False, "invitation tokens are not answered: encrypted")
    assert found.remedy.endswith(f"p2pfl-node run {alice} --passphrase-file FILE")


@pytest.mark.parametrize(
    ("round", "ok", "result"),
    [
        (20, True, "not connected, because it has finished its rounds and left"),
        (10, None, "not connected, because it has finished and left, in round 10 of 20"),
    ],
)
def test_peer_that_left_before_an_extension_has_a_remedy(round, ok, result):
    (found,) = check_peers({"rounds": 20, "peers": [peer(link="", state="done", round=round)]})
    assert (found.ok, found.result, bool(found.remedy)) == (ok, result, ok is None)


def test_peer_behind_failing_broker_is_not_reported_as_connected():
    peer = {"name": "bob", "state": "connected", "reason": "", "link": "broker", "remote": "", "addresses": {}}
    (found,) = check_peers({"peers": [peer], "broker": "the broker at host does not answer"})
    assert (found.ok, found.result) == (None, "was connected through the broker, which does not work now")


@pytest.mark.parametrize("state", ["suspected", "done"])
def test_peer_lost_with_the_broker_has_no_remedy_of_its_own(state):
    problem = "the broker at 10.0.0.9:1883 does not answer: connection refused"
    (found,) = check_peers({"peers": [peer(link="", state=state, reason=problem)], "broker": problem})
    assert found.remedy == "correct the problem of the broker first"


def test_doctor_of_stopped_or_starting_node_checks_no_peer(alice, monkeypatch):
    found = network_findings(alice, None, monkeypatch)
    assert set(found) == {"port", "peers"}
    assert found["peers"] == (None, "not checked, because this node does not run")
    found = network_findings(alice, {"state": "starting", "pid": 1, "history": []}, monkeypatch)
    assert found == {"port": (None, "not checked, because this node is starting")}


# Multicast


def test_check_multicast_on_loopback_notes_local_access_only():
    found = check_multicast(["127.0.0.1"])
    assert found.ok is None
    assert "works on loopback only" in found.result


def test_check_multicast_reports_address_of_no_interface():
    found = check_multicast(["203.0.113.9"])
    assert found.ok is False
    assert "203.0.113.9: " in found.result
    assert "UDP port 5353" in found.remedy
    assert check_multicast([]).ok is False
    both = check_multicast(["127.0.0.1", "203.0.113.9"])
    assert both.ok is None
    assert "203.0.113.9: " in both.result


def test_check_multicast_tries_own_interfaces_by_default():
    assert "127.0.0.1" in network.own_addresses()
    assert check_multicast().check == "multicast"


# The broker


@pytest.mark.parametrize("url", ["127.0.0.1:1883", "http://host", "mqtt://", "mqtt://host:port", "mqtt://[::1", ""])
def test_check_broker_rejects_malformed_url(url):
    found = check_broker(url)
    assert found.ok is False
    assert "mqtt://host:1883" in found.remedy


def test_check_broker_reports_unreachable_without_password():
    found = check_broker(f"mqtt://alice:secret@127.0.0.1:{free_port()}")
    assert found.ok is False
    assert "does not answer: Connection refused" in found.result
    assert "secret" not in report([found])[0]


def test_check_broker_without_client_tests_connection_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiomqtt", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = check_broker(f"mqtt://127.0.0.1:{server.getsockname()[1]}")
    assert found.ok is None
    assert "pip install 'p2pfl-node[mqtt]'" in found.remedy


def test_check_broker_that_delivers_passes(tmp_path):
    port = free_port()
    with mosquitto(tmp_path, port):
        assert check_broker(f"mqtt://127.0.0.1:{port}") == Finding("broker", True, f"127.0.0.1:{port} delivers messages")


def test_check_broker_reports_refused_password(tmp_path):
    port = free_port()
    with mosquitto(tmp_path, port, "allow_anonymous false"):
        found = check_broker(f"mqtt://alice:secret@127.0.0.1:{port}")
    assert found.ok is False
    assert "refuses this node: not authorized" in found.result
    assert "P2PFL_MQTT_PASSWORD" in found.remedy
    assert "secret" not in report([found])[0]


def test_user_name_of_a_former_key_is_named_as_the_cause(tmp_path):
    port, old, new = free_port(), "ab" * 32, "cd" * 32
    with mosquitto(tmp_path, port, "allow_anonymous false"):
        url = f"mqtt://{old}:secret@127.0.0.1:{port}"
        refused = check_broker(url)
    found = with_user_name(refused, url, new)
    assert found.ok is False
    assert found.result.endswith("; the user name is not this node's key")
    assert new in found.remedy
    assert with_user_name(refused, url, old) == refused
    assert with_user_name(refused, f"mqtt://alice@127.0.0.1:{port}", new) == refused  # brokers may have other accounts


@pytest.mark.slow
def test_missing_password_in_this_terminal_is_no_fault_of_a_running_node(tmp_path, alice, monkeypatch):
    monkeypatch.delenv("P2PFL_MQTT_PASSWORD", raising=False)
    port = free_port()
    running = {"state": "running", "pid": 1, "history": [], "federation": "test", "peers": []}
    running["network"] = NETWORK | {"listen": "", "broker": f"mqtt://alice@127.0.0.1:{port}"}
    with mosquitto(tmp_path, port, "allow_anonymous false"):
        ok, result = network_findings(alice, running, monkeypatch)["broker"]
        assert ok
        assert result == (
            f"the running node is connected to 127.0.0.1:{port}; not tried from here, because P2PFL_MQTT_PASSWORD is not set"
            " in this terminal"
        )
        config_edit.set_text(alice, "broker", running["network"]["broker"])
        ok, result = network_findings(alice, {**running, "state": "stopped"}, monkeypatch)["broker"]
        assert ok is False
        assert result.endswith("P2PFL_MQTT_PASSWORD is not set in this terminal")


@pytest.mark.slow
def test_check_broker_compares_fingerprint(tmp_path):
    port, files = free_port(), make_certificate()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    lines = ["allow_anonymous true", *(f"{name}file {tmp_path / name}.pem" for name in ("cert", "key"))]
    right = sha256(ssl.PEM_cert_to_DER_cert(files["cert.pem"])).hexdigest()
    with mosquitto(tmp_path, port, *lines):
        assert check_broker(f"mqtts://127.0.0.1:{port}#sha256={right}").ok
        found = check_broker(f"mqtts://127.0.0.1:{port}#sha256={'ab' * 32}")
    assert found.ok is False
    assert right in found.result


@pytest.mark.slow
def test_check_broker_reports_denied_publishing(tmp_path):
    port, rules = free_port(), tmp_path / "acl"
    rules.write_text("topic read #\n")
    rules.chmod(0o700)
    with mosquitto(tmp_path, port, "allow_anonymous true", f"acl_file {rules}"):
        found = check_broker(f"mqtt://127.0.0.1:{port}", topic="p2pfl/own/own", seconds=1.0)
    assert found.ok is False
    assert found.result == f"127.0.0.1:{port} does not deliver to topic p2pfl/own/own"
    assert "access rules" in found.remedy


CERTIFICATE = ("certfile {folder}/cert.pem", "keyfile {folder}/key.pem")
ASKING = ("cafile {folder}/cert.pem", "require_certificate true")
OTHER_BROKERS = {  # scheme, lines of Mosquitto, result and remedy of the finding
    "discards": ("mqtt", ["message_size_limit 1000"], "it passes 256 bytes, and drops 1 KiB or more", "message_size_limit"),
    "closes": ("mqtt", ["max_packet_size 2000"], "it passes 1 KiB, and closes the connection at 4 KiB", "max_packet_size"),
    "retains nothing": ("mqtt", ["retain_available false"], "does not retain messages", "retain_available true"),
    "expects TLS": ("mqtt", CERTIFICATE, "expects TLS at this port", "write mqtts:// instead of mqtt://"),
    "without TLS": ("mqtts", [], "does not use TLS at this port", "usually 8883, or use mqtt://127.0.0.1"),
    "unknown authority": ("mqtts", CERTIFICATE, "does not have a trusted certificate", "SSL_CERT_FILE"),
    "client certificate": ("mqtts", [*CERTIFICATE, *ASKING], "requires a certificate of its clients", "use accounts"),
    "no connection left": ("mqtt", ["max_connections 1"], "closes new connections before it answers", "max_connections"),
}


def fill(port, stack):
    """Connect until the broker closes a new connection at once, or accepts many."""
    accepted = 0
    while accepted < 5:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        connection.settimeout(0.3)
        try:
            if not connection.recv(1) and accepted:
                return
        except TimeoutError:
            accepted += 1
        except OSError:
            if accepted:
                return


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the MQTT library leaves sockets to the garbage collector
@pytest.mark.parametrize("kind", OTHER_BROKERS)
def test_check_broker_names_cause_and_remedy(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("p2pfl.protocols.mqtt.broker_client.CONNECTING", 1.0)
    scheme, lines, result, remedy = OTHER_BROKERS[kind]
    files = make_certificate()
    if kind == "client certificate":
        (tmp_path / "cert.pem").write_text(files["cert.pem"])
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with brokers.mosquitto(lines, files) as broker, ExitStack() as stack:
        if kind == "no connection left":
            fill(broker.port, stack)
        found = check_broker(f"{scheme}://127.0.0.1:{broker.port}")
    assert found.ok is False
    assert result in found.result
    assert remedy in found.remedy
