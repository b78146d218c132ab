"""Addresses in a token, and the ways that a newcomer tries."""

import asyncio
import gc
import json
import os
import ssl
import threading
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from socket import create_server

import pytest

from p2pfl._util.atomic_files import lock_folder
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import invitations, loading
from p2pfl.node.federation.join import InviterClient, ways_to
from p2pfl.node.folder import config
from p2pfl.node.runtime.invite import addresses, check_can_run, describe_addresses
from p2pfl.node.runtime.run import run
from p2pfl.node.status.text import describe
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.membership.invitation import Invitation
from p2pfl.protocols.transports import tls
from tests.support.brokers import make_certificate
from tests.support.loopback_nodes import folders, honest, somebody
from tests.support.ports import free_port
from tests.support.processes import federate

PIN = "ab" * 32


@pytest.fixture
def alice(tmp_path, monkeypatch):
    """Return a function that makes alice's folder with changes of node.toml."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)

    def make(broker="", listen="10.0.0.1:4100", direct=True):
        folder = tmp_path / "alice"
        config.create(folder, "alice", listen, broker=broker)
        path = folder / config.CONFIG
        path.write_text(path.read_text().replace("direct = true", f"direct = {str(direct).lower()}"))
        return folder

    return make


@contextmanager
def tls_server(folder):
    """Run a server that shows a certificate of its own; yield its port and the fingerprint."""
    files = make_certificate()
    for name, text in files.items():
        (folder / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    with create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield server.getsockname()[1], sha256(ssl.PEM_cert_to_DER_cert(files["cert.pem"])).hexdigest()


def test_addresses_of_running_node_are_those_where_it_listens(alice):
    folder = alice(listen="10.0.0.1:4100")
    network = {"listen": "10.0.0.1:4731", "broker": "", "mdns": False}
    status = {"state": "running", "pid": os.getpid(), "history": [], "network": network}
    (folder / config.STATUS).write_text(json.dumps(status))
    with lock_folder(folder):
        assert addresses(folder, ()) == ["10.0.0.1:4731"]
    assert addresses(folder, ()) == ["10.0.0.1:4100"]  # the next run listens there


def test_addresses_of_running_node_follow_the_options_of_run(alice):
    folder = alice(listen="10.0.0.1:4100")
    network = {"listen": "", "broker": "mqtt://alice@broker.example", "mdns": False}  # --set direct=false --set broker=...
    status = {"state": "running", "pid": os.getpid(), "history": [], "network": network}
    (folder / config.STATUS).write_text(json.dumps(status))
    with lock_folder(folder):
        assert addresses(folder, ()) == ["mqtt://broker.example:1883"]


def test_addresses_of_starting_node_follow_the_options_of_run(alice, monkeypatch):
    folder, found = alice(listen="10.0.0.1:4100"), []

    def load_task(ready):
        found.extend(addresses(folder, ()))
        raise ConfigurationError("not needed")

    federate(folder.parent, ["alice"])
    monkeypatch.setattr(loading, "task_of", load_task)  # a task takes seconds to load
    with pytest.raises(ConfigurationError, match="not needed"):
        run(folder, ['listen="10.0.0.1:4731"', "mdns=false"])
    assert found == ["10.0.0.1:4731"]


def test_node_that_runs_without_passphrase_makes_no_token(alice):
    folder = alice(listen="10.0.0.1:4100")
    status = {"state": "running", "pid": os.getpid(), "history": [], "tokens_unanswered": "admission.pem is encrypted"}
    (folder / config.STATUS).write_text(json.dumps(status))
    with lock_folder(folder):
        with pytest.raises(
            ConfigurationError, match=r"no token was made, .*admission.pem is encrypted\); start it again with"
        ):
            check_can_run(folder)
        (folder / config.STATUS).write_text(json.dumps(status | {"tokens_unanswered": ""}))
        check_can_run(folder)
    assert [line.strip() for line in describe(status) if "tokens" in line] == [
        "tokens  not answered: admission.pem is encrypted"
    ]


def test_addresses_include_broker_without_account(alice):
    assert addresses(alice("mqtt://alice:geheim@broker.example"), ()) == ["10.0.0.1:4100", "mqtt://broker.example:1883"]


@pytest.mark.parametrize("options", [{"direct": False}, {"listen": "10.0.0.1:0"}], ids=str)
def test_addresses_of_node_behind_broker_are_only_the_broker(alice, options):
    assert addresses(alice("mqtt://broker.example", **options), ()) == ["mqtt://broker.example:1883"]


def test_given_addresses_replace_others_and_lose_account(alice):
    folder = alice("mqtt://broker.example")
    given = ["192.168.1.5:4100", "mqtt://bob:geheim@other.example:1884"]
    assert addresses(folder, given) == ["192.168.1.5:4100", "mqtt://other.example:1884"]
    with pytest.raises(ConfigurationError, match="the address of a broker must be of the form"):
        addresses(folder, ["mqtt://bob@"])


@pytest.mark.parametrize(
    ("named", "text"),
    [
        (["10.0.0.1:4100", "[::1]:4100"], "at 10.0.0.1:4100, [::1]:4100"),
        (["mqtt://broker.example:1883"], "through the broker at mqtt://broker.example:1883"),
        (["h:1", "mqtts://b:8883"], "at h:1 or through the broker at mqtts://b:8883"),
    ],
)
def test_token_names_the_ways_to_the_node(named, text):
    assert describe_addresses(named) == text


def test_configured_fingerprint_is_passed_on(alice):
    folder = alice(f"mqtts://alice@broker.example#sha256={PIN}", direct=False)
    assert addresses(folder, ()) == [f"mqtts://broker.example:8883#sha256={PIN}"]
    assert addresses(folder, ["mqtts://broker.example"]) == [f"mqtts://broker.example:8883#sha256={PIN}"]


def test_fingerprint_of_private_authority_is_added(alice, tmp_path, monkeypatch):
    with tls_server(tmp_path) as (port, fingerprint):
        folder = alice(f"mqtts://127.0.0.1:{port}", direct=False)
        with pytest.raises(ConfigurationError, match=r"cannot verify the certificate of the broker .* SSL_CERT_FILE"):
            addresses(folder, ())
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert addresses(folder, ()) == [f"mqtts://127.0.0.1:{port}#sha256={fingerprint}"]


def test_addresses_refuse_broker_that_does_not_answer(alice):
    port = free_port()
    folder = alice(f"mqtts://127.0.0.1:{port}", direct=False)
    with pytest.raises(
        ConfigurationError, match=rf"cannot invite through the broker at 127.0.0.1:{port}: Connection refused"
    ):
        addresses(folder, ())


# Ways of a newcomer


def ways(*named, own="", **options):
    token = Invitation(bytes(16), "home", bytes(32), bytes(32), named, bytes(16), 0, "bob")
    direct, brokers = ways_to(token, own, **options)
    assert all(way.broker is None for way in direct)
    return [way.address for way in direct], [way.broker.url for way in brokers]


def test_newcomer_tries_direct_addresses_first():
    assert ways("mqtt://h:1883", "10.0.0.1:4100") == (["10.0.0.1:4100"], ["mqtt://h:1883"])
    assert ways("10.0.0.1:4100", own="mqtt://a@h") == (["10.0.0.1:4100"], [])


def test_newcomer_without_account_uses_fingerprint_of_token():
    pinned = f"mqtts://h:8883#sha256={PIN}"
    assert ways(pinned) == ([], [pinned])
    assert ways(pinned, own="mqtts://h", environment={}) == ([], [pinned])


@pytest.mark.parametrize(
    ("own", "environment"),
    [("mqtts://bob:geheim@h:8883", {}), ("mqtts://bob@h:8883", {}), ("mqtts://h:8883", {"P2PFL_MQTT_PASSWORD": "geheim"})],
)
def test_newcomer_with_account_ignores_fingerprint_of_token(own, environment):
    """A token with the fingerprint of an attacker would direct the password to it."""
    said = []
    assert ways(f"mqtts://h:8883#sha256={PIN}", own=own, environment=environment, notify=said.append) == ([], [own])
    assert said == [
        f"ignored the broker's fingerprint in the token; if it is right, add #sha256={PIN} to broker in node.toml"
    ]


def test_newcomer_keeps_own_settings_of_broker():
    pinned = f"mqtts://h:8883#sha256={PIN}"
    mine = f"mqtts://bob@h:8883#sha256={'cd' * 32}"
    assert ways(pinned, own=mine) == ([], [mine])
    assert ways(pinned, own="mqtt://bob@h:8883") == ([], ["mqtt://bob@h:8883"])


def test_token_directs_no_account_to_another_broker():
    assert ways("mqtt://bob:x@evil:1883") == ([], ["mqtt://evil:1883"])
    own = "mqtts://bob:geheim@h:8883"
    assert ways("mqtt://bob@evil:1883", own=own) == ([], [own, "mqtt://evil:1883"])


def waiting_client(token, pauses, listen):
    """Return a client whose pauses call a function instead of taking time, and what it tells the user."""
    said, slept = [], []

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            await listen()

    return InviterClient(token, somebody(), "eve", notify=said.append, pauses=pauses, sleep=sleep), said, slept


def test_client_waits_for_inviter_that_does_not_listen_yet(tmp_path):
    alice_folder = folders(tmp_path, "alice", "carol")["alice"]

    async def main():
        async with AsyncExitStack() as running:
            address = config.load(alice_folder).listen
            token = invitations.invite(alice_folder, "eve", [address], "participant", 10, now=1e9, booted=1e9)

            async def listen():
                await running.enter_async_context(honest(alice_folder))

            client, said, slept = waiting_client(token, (1, 2, 4), listen)
            _, way = await client.ask(*ways_to(token, ""))
            assert way.address == address
            assert said == [f"waiting for the inviting node to listen at {address}, at most 7 s"]
            assert slept == [1, 2]

    asyncio.run(main())


def test_client_gives_up_after_its_pauses(tmp_path):
    alice_folder = folders(tmp_path, "alice", "carol")["alice"]
    address = config.load(alice_folder).listen
    token = invitations.invite(alice_folder, "eve", [address], "participant", 10, now=1e9, booted=1e9)
    client, _, slept = waiting_client(token, (1, 2, 4), lambda: asyncio.sleep(0))
    with pytest.raises(TransportError, match=r"it must run when you join .*: connection refused\)$"):
        asyncio.run(client.ask(*ways_to(token, "")))
    assert slept == [1, 2, 4]


def test_client_names_refusal_of_inviter_that_answers_no_tokens(tmp_path):
    home = folders(tmp_path, "alice", "carol")
    address = config.load(home["carol"]).listen
    token = invitations.invite(home["alice"], "eve", [address], "participant", 10, now=1e9, booted=1e9)
    other = replace(token, inviter=config.own_key(home["carol"]))

    async def main():
        async with honest(home["carol"]):
            client, said, _ = waiting_client(other, (), lambda: asyncio.sleep(0))
            with pytest.raises(
                TransportError, match=r"does not answer this token \(.*: not inviting: it has no admission key"
            ):
                await client.ask(*ways_to(other, ""))
            assert said == []

    asyncio.run(main())


def test_client_sanitises_addresses_of_token(monkeypatch):
    token = Invitation(bytes(16), "home", bytes(32), bytes(32), ("\x1b[2Jhost:1",), bytes(16), 0, "eve")

    async def refuse(*args, **options):
        raise TransportError("\x1b[2Jhost:1: connection refused") from ConnectionRefusedError()

    monkeypatch.setattr(tls.TlsTransport, "dial", refuse)
    client, said, _ = waiting_client(token, (1,), lambda: asyncio.sleep(0))
    with pytest.raises(TransportError, match=r"\(\?\[2Jhost:1: connection refused\)"):
        asyncio.run(client.ask(*ways_to(token, "")))
    assert said == ["waiting for the inviting node to listen at ?[2Jhost:1, at most 1 s"]


@pytest.mark.parametrize("address", ["no-such-host.invalid:1", "silent"])
def test_client_does_not_wait_for_wrong_address(tmp_path, monkeypatch, address):
    """A host without a name, and a port that accepts connections and does not answer."""
    monkeypatch.setattr(tls, "DIALLING", 0.1)
    monkeypatch.setattr(tls, "ANSWERING", 0.1)
    alice_folder = folders(tmp_path, "alice", "carol")["alice"]
    with create_server(("127.0.0.1", 0)) as server:
        named = f"127.0.0.1:{server.getsockname()[1]}" if address == "silent" else address
        token = invitations.invite(alice_folder, "eve", [named], "participant", 10, now=1e9, booted=1e9)
        client, said, slept = waiting_client(token, (1, 2, 4), lambda: asyncio.sleep(0))
        with pytest.raises(TransportError, match="it must run when you join"):
            asyncio.run(client.ask(*ways_to(token, "")))
    assert said == slept == []


@pytest.mark.slow
def test_client_uses_first_address_that_answers(tmp_path, caplog):
    """Another address accepts connections and says nothing; its attempt ends without an error in the log."""
    members = folders(tmp_path, "alice", "carol")

    async def main():
        with create_server(("127.0.0.1", 0)) as silent:
            async with honest(members["alice"]) as alice:
                nowhere = f"127.0.0.1:{silent.getsockname()[1]}"
                named = [nowhere, "127.0.0.1:1", alice.transport.address]
                clock = {"now": alice.now, "booted": alice.now}
                token = invitations.invite(alice.folder, "eve", named, "participant", 10, **clock)
                client = InviterClient(token, somebody(), "eve")
                joined, way = await client.ask(*ways_to(token, ""))
                assert way.address == alice.transport.address
                assert joined.log == alice.log.encode()

    asyncio.run(main())
    gc.collect()  # reports errors of tasks that nobody awaited
    assert caplog.records == []
