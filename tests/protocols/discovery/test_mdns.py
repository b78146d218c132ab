"""Discovery of nodes on the local network, here loopback, with announcements of strangers."""

import asyncio
import contextlib
import os
import socket
import struct
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from zeroconf import Zeroconf

from p2pfl.protocols import discovery
from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.discovery import (
    LOOPBACK,
    MdnsFinder,
    addresses_to_announce,
    dialable,
    interface_networks,
    read_text,
    service_name,
)

FEDERATION = os.urandom(16)  # other test runs may use this machine
HERE = ["127.0.0.1"]
EVERYWHERE = [ip_network("0.0.0.0/0"), ip_network("::/0")]
GROUP = ("224.0.0.251", 5353)
SERVICE = (b"_p2pfl", b"_tcp", b"local")
PTR, TXT, SRV, A = 12, 16, 33, 1


def key(number):
    return bytes([number]) * 32


class Node:
    """Finder with its results."""

    def __init__(self, number, federation=FEDERATION, port=None, interfaces=HERE, **options):
        self.finder = MdnsFinder(key(number), federation, port or 4000 + number, HERE, interfaces=interfaces, **options)
        self.found = set()
        self.news = asyncio.Event()

    def hear(self, key, address):
        self.found.add((key[0], address))
        self.news.set()

    async def until(self, *addresses):
        """Wait until these nodes, each as (number, port), have been found."""
        wanted = {(number, f"tcp://127.0.0.1:{port}") for number, port in addresses}
        async with asyncio.timeout(30):
            while not wanted <= self.found:
                self.news.clear()
                await self.news.wait()

    async def __aenter__(self):
        await self.finder.start(self.hear)
        return self

    async def __aexit__(self, *_):
        await self.finder.close()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def labels(*names):
    return b"".join(bytes([len(name)]) + name for name in names) + b"\0"


def record(name, kind, data):
    kind_and_class = kind, 0x0001 if kind == PTR else 0x8001  # the cache-flush bit (RFC 6762, section 10.2)
    return labels(*name) + struct.pack(">HHIH", *kind_and_class, 4500, len(data)) + data


def strings(*texts):
    return b"".join(bytes([len(text)]) + text for text in texts)


def node_text(number, federation=FEDERATION):
    return strings(b"id=" + key(number).hex().encode(), b"fed=" + federation.hex().encode())


def service(name, text, port=4000, host="127.0.0.1"):
    """Return all the records of a service."""
    owner = (name, b"local")
    name = (name, *SERVICE)
    return [
        record(SERVICE, PTR, labels(*name)),
        record(name, SRV, struct.pack(">HHH", 0, 0, port) + labels(*owner)),
        record(name, TXT, text),
        record(owner, A, socket.inet_aton(host)),
    ]


def service_label(number, federation=FEDERATION):
    """Return the label of the service of a node."""
    return service_name(key(number), federation).partition(".")[0].encode()


@contextlib.contextmanager
def stranger():
    """Send arbitrary announcements to the network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        udp.bind(("127.0.0.1", 5353))
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))

        async def announce(records):
            udp.sendto(struct.pack(">HHHHHH", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records), GROUP)
            await asyncio.sleep(0)  # let it be read

        yield announce


@pytest.mark.slow
def test_mdns_finds_nodes_of_own_federation_only(on_loop):
    async def main():
        async with Node(1) as a, Node(2) as b, Node(3) as c, Node(4, federation=os.urandom(16)) as other:
            await asyncio.gather(a.until((2, 4002), (3, 4003)), b.until((1, 4001), (3, 4003)), c.until((1, 4001), (2, 4002)))
            assert [len(node.found) for node in (a, b, c, other)] == [2, 2, 2, 0]
            assert a.finder.problem == ""

    on_loop(main())


@pytest.mark.slow
def test_mdns_finds_late_and_moved_nodes(on_loop):
    async def main():
        async with Node(1) as a:
            async with Node(2) as b:
                await asyncio.gather(a.until((2, 4002)), b.until((1, 4001)))
            found = set(a.found)
            async with Node(3) as c:
                await asyncio.gather(a.until((3, 4003)), c.until((1, 4001)))
                assert a.found == found | {(3, "tcp://127.0.0.1:4003")}  # a goodbye is not reported
            async with Node(2, port=4022) as b:
                await asyncio.gather(a.until((2, 4022)), b.until((1, 4001)))

    on_loop(main())


@pytest.mark.slow
def test_mdns_finds_nodes_after_network_heals(monkeypatch, on_loop):
    sent, cut = [], True
    send = Zeroconf.async_send

    def send_if_connected(self, out, *args, **kwargs):
        sent.append(out.is_query())
        if not cut:
            send(self, out, *args, **kwargs)

    monkeypatch.setattr(Zeroconf, "async_send", send_if_connected)
    monkeypatch.setattr(discovery, "AGAIN", 0.2)

    async def main():
        nonlocal cut
        async with Node(1) as a, Node(2) as b:
            # Each has announced itself three times and sent the four queries of one browser.
            await until(lambda: sent.count(False) >= 6 and sent.count(True) > 8)  # others on this machine may ask
            assert a.found == b.found == set()
            cut = False
            await asyncio.gather(a.until((2, 4002)), b.until((1, 4001)))

    on_loop(main())


@pytest.mark.slow
def test_mdns_without_network_reports_problem_and_retries(monkeypatch, on_loop):
    monkeypatch.setattr(discovery, "RETRY", 0.05)
    interfaces = ["203.0.113.1"]

    async def main():
        async with Node(1) as a, Node(2, interfaces=interfaces) as b:
            await until(lambda: b.finder.problem)
            assert b.finder.problem == ("cannot search for nodes: no network interface has the address 203.0.113.1")
            interfaces[:] = HERE
            await asyncio.gather(a.until((2, 4002)), b.until((1, 4001)))
            assert b.finder.problem == ""

    on_loop(main())


def test_mdns_reports_errors_of_operating_system(monkeypatch, on_loop):
    def no_route(*_, **__):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(discovery, "AsyncZeroconf", no_route)

    async def main():
        async with Node(1) as a:
            await until(lambda: a.finder.problem)
            assert a.finder.problem == "cannot search for nodes: Network is unreachable"

    on_loop(main())


def test_mdns_close_twice_or_before_start_does_nothing(on_loop):
    async def main():
        finder = MdnsFinder(key(1), FEDERATION, 4001, HERE)
        await finder.close()
        await finder.start(lambda key, address: None)
        await finder.close()
        await finder.close()

    on_loop(main())


@pytest.mark.slow
def test_mdns_raises_error_of_callback_at_close(on_loop):
    def fail(key, address):
        failed.append(key)
        raise KeyError("a bug")

    failed = []

    async def main():
        finder = MdnsFinder(key(1), FEDERATION, 4001, HERE)
        await finder.start(fail)
        async with Node(2):
            await until(lambda: failed)
        with pytest.raises(ExceptionGroup) as caught:
            await finder.close()
        assert caught.group_contains(KeyError, match="a bug")

    on_loop(main())


@pytest.mark.slow
def test_mdns_ignores_hostile_announcements(on_loop):
    hostile = [
        b"",
        b"\xff",
        b"\0" * 300,
        node_text(9, os.urandom(16)),
        node_text(1),  # the node's own key
        node_text(9)[:-1],
        node_text(9) + strings(b"x" * 200, b"y" * 200, b"z" * 200),
        strings(b"id=", b"fed="),
        strings(b"id=" + b"zz" * 32, b"fed=" + FEDERATION.hex().encode()),
        strings(b"id=" + b"\xff" * 64, b"fed=" + FEDERATION.hex().encode()),
        strings(b"fed=" + FEDERATION.hex().encode()),
    ]
    hostile += [bytes([i]) * i for i in range(100)]

    async def main():
        with stranger() as announce:
            async with Node(1) as a:
                async with Node(2) as b:
                    await asyncio.gather(a.until((2, 4002)), b.until((1, 4001)))
                for i, text in enumerate(hostile):
                    await announce(service(b"%032x-%s" % (i, FEDERATION.hex()[:16].encode()), text))
                    await announce(service(service_label(20 + i), text))
                await announce(service(service_label(9), node_text(9), host="224.0.0.1"))
                await announce(service(service_label(10), node_text(10), port=0))
                await announce(service(service_label(11), node_text(11), host="192.0.2.1"))  # on no network of this machine
                for name in (b"\xff" * 63, b"somebody", b"a.b\0c", *(b"%d" % i for i in range(500))):
                    await announce([record(SERVICE, PTR, labels(name, *SERVICE))])
                name = service_label(12), *SERVICE  # its host has a name that cannot be queried
                await announce([record(SERVICE, PTR, labels(*name)), record(name, SRV, b"\0" * 6 + labels(b"\xff" * 63))])
                await announce([record(SERVICE, PTR, labels(b"elsewhere", b"_http", b"_tcp", b"local"))])
                await announce(service(service_label(8), node_text(8)))
                await a.until((8, 4000))  # all earlier announcements have been read
                async with Node(3) as c:
                    await asyncio.gather(a.until((3, 4003)), c.until((1, 4001)))
                assert {number for number, _ in a.found} == {2, 3, 8}

    on_loop(main())


@pytest.mark.slow
def test_mdns_survives_name_that_cannot_be_repeated(monkeypatch, on_loop):
    """zeroconf repeats cached names in its queries, and fails at a name of 63 bytes that are not UTF-8."""
    monkeypatch.setattr(discovery, "AGAIN", 0.3)
    poison = record(SERVICE, PTR, labels(b"\xff" * 63, *SERVICE))

    async def main():
        errors, asked = [], []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        send = Zeroconf.async_send

        def count(self, out, *args, **kwargs):
            if out.is_query():
                asked.append(out)
            send(self, out, *args, **kwargs)

        monkeypatch.setattr(Zeroconf, "async_send", count)
        with stranger() as announce:
            async with Node(1) as a:
                await until(lambda: asked)
                await announce([poison])
                await announce(service(service_label(8), node_text(8)))
                await a.until((8, 4000))
                before = len(asked)
                await until(lambda: len(asked) > before + 3)
        assert errors == []

    on_loop(main())


@pytest.mark.slow
def test_mdns_limits_number_of_services(monkeypatch, on_loop):
    monkeypatch.setattr(discovery, "MAX_SERVICES", 20)

    async def main():
        with stranger() as announce:
            async with Node(1) as a:
                while len(a.found) < 20:  # datagrams may be lost
                    for number in range(10, 60):
                        await announce(service(service_label(number), node_text(number)))
                known = min(a.found)[0]
                await announce(service(service_label(known), node_text(known), port=5000))
                await a.until((known, 5000))  # updates of known services are still accepted
                assert len({number for number, _ in a.found}) == 20

    on_loop(main())


@pytest.mark.slow
def test_mdns_foreign_services_do_not_count_towards_limit(monkeypatch, on_loop):
    monkeypatch.setattr(discovery, "MAX_SERVICES", 1)

    async def main():
        with stranger() as announce:
            async with Node(1, expected=lambda beginning: beginning == key(8)[:16]) as a:
                for number in range(20, 60):
                    federation = os.urandom(16)
                    await announce(service(service_label(number, federation), node_text(number, federation)))
                    await announce(service(service_label(number), node_text(number)))
                await announce(service(service_label(8), node_text(8)))
                await a.until((8, 4000))
                assert a.found == {(8, "tcp://127.0.0.1:4000")}

    on_loop(main())


@pytest.mark.slow
def test_mdns_accepts_node_only_under_its_own_name(on_loop):
    async def main():
        with stranger() as announce:
            async with Node(1) as a:
                for number in range(20, 60):
                    await announce(service(service_label(number), node_text(8), port=5000 + number))
                await announce(service(service_label(8), node_text(8)))
                await a.until((8, 4000))
                assert a.found == {(8, "tcp://127.0.0.1:4000")}

    on_loop(main())


KEYS, FEDERATIONS = st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16)
ITEMS = st.binary(max_size=80) | st.sampled_from(
    [b"id=", b"ID=aa", b"fed", b"fed=" + b"6" * 32, b"id=" + b" " * 64, b"=", b""]
)


@given(st.binary(max_size=600) | st.lists(ITEMS, max_size=12).map(lambda items: strings(*items)))
@example(b"\xff" * 600)
@example(strings(b"id=" + b"0 " * 32, b"fed=" + b"66" * 16))
@example(strings(b"id=" + b"\xc2\xb2" * 32, b"fed=" + b"66" * 16))
def test_read_text_of_any_bytes_returns_node_or_none(text):
    node = read_text(text)
    assert node is None or (len(node[0]), len(node[1])) == (32, 16)


@given(KEYS, FEDERATIONS, st.lists(st.binary(max_size=40), max_size=4))
def test_read_text_ignores_other_entries(key, federation, others):
    own = [b"Id=" + key.hex().encode(), b"fed=" + federation.hex().upper().encode()]
    others = [other for other in others if other.partition(b"=")[0].lower() not in (b"id", b"fed")]
    assert read_text(strings(*own, *others)) == (key, federation)
    assert read_text(strings(*others, *own, b"id=later", b"fed")) == (key, federation)


def test_read_text_rejects_more_than_512_bytes():
    text = node_text(1)
    padding = strings(b"x" * 200, b"x" * (512 - len(text) - 202))
    assert read_text(text + padding) == (key(1), FEDERATION)
    assert read_text(text + padding + b"\0") is None


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.168.1.5", "tcp://192.168.1.5:4100"),
        ("169.254.3.4", "tcp://169.254.3.4:4100"),
        ("2001:db8::1", "tcp://[2001:db8::1]:4100"),
        ("fe80::1%2", "tcp://[fe80::1%2]:4100"),
        ("fe80::1", None),  # without a scope
        ("0.0.0.0", None),
        ("::", None),
        ("224.0.0.251", None),
        ("ff02::fb%2", None),
        ("255.255.255.255", None),
        ("::ffff:127.0.0.1", None),
    ],
)
def test_dialable_formats_addresses_and_drops_unusable_hosts(host, address):
    assert dialable([host], 4100, EVERYWHERE) == ([address] if address else [])
    if address:
        assert split_address(address) == (host, 4100)


@pytest.mark.parametrize(
    ("listening", "hosts"),
    [
        (["0.0.0.0", "::"], ["10.0.0.7", "192.168.1.5", "fe80::1"]),
        (["0.0.0.0"], ["10.0.0.7", "192.168.1.5"]),
        (["::"], ["fe80::1"]),
        (["192.168.1.5"], ["192.168.1.5"]),
        (["fe80::1%eth0"], ["fe80::1"]),
        (["127.0.0.1"], ["127.0.0.1"]),
        ([], []),
    ],
)
def test_addresses_to_announce_follow_listening_hosts(listening, hosts):
    assert addresses_to_announce(listening, ["10.0.0.7", "127.0.0.1", "192.168.1.5", "::1", "fe80::1"]) == hosts


def test_dialable_on_loopback_keeps_loopback_addresses():
    assert dialable(["127.0.0.1", "::1"], 4100, LOOPBACK) == ["tcp://127.0.0.1:4100", "tcp://[::1]:4100"]


def test_dialable_drops_addresses_of_other_networks():
    networks = [ip_network("192.168.1.0/24"), ip_network("fe80::/64")]
    here = ["192.168.1.5", "fe80::1%2"]
    others = ["192.168.2.5", "10.0.0.7", "127.0.0.1", "::1", "169.254.169.254", "2001:db8::1", "fe80::1"]
    assert dialable([*others, *here], 4100, networks) == ["tcp://192.168.1.5:4100", "tcp://[fe80::1%2]:4100"]


def test_interface_networks_cover_all_hosts_but_loopback():
    networks = interface_networks()
    for host in discovery.interface_hosts():
        assert any(ip_address(host) in network for network in networks) != ip_address(host).is_loopback


@pytest.mark.slow
@given(st.lists(st.ip_addresses().map(str), max_size=30), st.integers(0, 65535))
def test_dialable_addresses_can_be_split_and_are_limited(hosts, port):
    addresses = dialable(hosts, port, EVERYWHERE)
    assert len(addresses) <= 8
    for address in addresses:
        host, again = split_address(address)
        assert str(ip_address(host)) in hosts
        assert again == port > 0
