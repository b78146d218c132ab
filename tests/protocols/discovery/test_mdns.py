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

from p2pfl.protocols.addresses import split_address
from p2pfl.protocols.discovery import mdns
from p2pfl.protocols.discovery.mdns import (
    LOOPBACK,
    MdnsFinder,
    addresses_to_announce,
    dialable,
    interface_networks,
    read_text,
    service_name,
)

FEDERATION = os.urandom(16)  # others may be testing on this machine
HERE = ["127.0.0.1"]
EVERYWHERE = [ip_network("0.0.0.0/0"), ip_network("::/0")]
GROUP = ("224.0.0.251", 5353)
SERVICE = (b"_p2pfl", b"_tcp", b"local")
PTR, TXT, SRV, A = 12, 16, 33, 1


def key(number):
    return bytes([number]) * 32


class Node:
    """A finder and what it has found."""

    def __init__(self, number, federation=FEDERATION, port=None, interfaces=HERE, **options):
        self.finder = MdnsFinder(key(number), federation, port or 4000 + number, HERE, interfaces=interfaces, **options)
        self.found = set()
        self.news = asyncio.Event()

    def hear(self, key, address):
        self.found.add((key[0], address))
        self.news.set()

    async def until(self, *addresses):
        """Wait until these have been found, each as (number, port)."""
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
    kind_and_class = kind, 0x0001 if kind == PTR else 0x8001  # what replaces what was said before (RFC 6762, section 10.2)
    return labels(*name) + struct.pack(">HHIH", *kind_and_class, 4500, len(data)) + data


def strings(*texts):
    return b"".join(bytes([len(text)]) + text for text in texts)


def of_node(number, federation=FEDERATION):
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


def name_of(number, federation=FEDERATION):
    """Return the label of the service of a node."""
    return service_name(key(number), federation).partition(".")[0].encode()


@contextlib.contextmanager
def stranger():
    """Somebody on the network who announces what it likes."""
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
def test_nodes_of_a_federation_find_each_other_and_nobody_else(on_loop):
    async def main():
        async with Node(1) as a, Node(2) as b, Node(3) as c, Node(4, federation=os.urandom(16)) as other:
            await asyncio.gather(a.until((2, 4002), (3, 4003)), b.until((1, 4001), (3, 4003)), c.until((1, 4001), (2, 4002)))
            assert [len(node.found) for node in (a, b, c, other)] == [2, 2, 2, 0]
            assert a.finder.problem == ""

    on_loop(main())


@pytest.mark.slow
def test_one_who_starts_late_is_told_at_once_and_one_who_comes_back_elsewhere_is_found_there(on_loop):
    async def main():
        async with Node(1) as a:
            async with Node(2) as b:
                await asyncio.gather(a.until((2, 4002)), b.until((1, 4001)))
            found = set(a.found)
            async with Node(3) as c:
                await asyncio.gather(a.until((3, 4003)), c.until((1, 4001)))
                assert a.found == found | {(3, "tcp://127.0.0.1:4003")}  # a goodbye is no news
            async with Node(2, port=4022) as b:
                await asyncio.gather(a.until((2, 4022)), b.until((1, 4001)))

    on_loop(main())


@pytest.mark.slow
def test_nodes_that_started_apart_find_each_other_when_the_network_heals(monkeypatch, on_loop):
    sent, cut = [], True
    send = Zeroconf.async_send

    def send_if_connected(self, out, *args, **kwargs):
        sent.append(out.is_query())
        if not cut:
            send(self, out, *args, **kwargs)

    monkeypatch.setattr(Zeroconf, "async_send", send_if_connected)
    monkeypatch.setattr(mdns, "AGAIN", 0.2)

    async def main():
        nonlocal cut
        async with Node(1) as a, Node(2) as b:
            # Both have announced themselves three times, and browsed as often as one browser does, four times each.
            await until(lambda: sent.count(False) >= 6 and sent.count(True) > 8)  # more, if others on this machine ask
            assert a.found == b.found == set()
            cut = False
            await asyncio.gather(a.until((2, 4002)), b.until((1, 4001)))

    on_loop(main())


@pytest.mark.slow
def test_without_a_network_the_problem_is_told_and_it_is_tried_again(monkeypatch, on_loop):
    monkeypatch.setattr(mdns, "RETRY", 0.05)
    interfaces = ["203.0.113.1"]

    async def main():
        async with Node(1) as a, Node(2, interfaces=interfaces) as b:
            await until(lambda: b.finder.problem)
            assert b.finder.problem == (
                "cannot look for nodes on the local network: no network interface has the address 203.0.113.1"
            )
            interfaces[:] = HERE
            await asyncio.gather(a.until((2, 4002)), b.until((1, 4001)))
            assert b.finder.problem == ""

    on_loop(main())


def test_errors_of_the_operating_system_are_told_in_one_line(monkeypatch, on_loop):
    def no_route(*_, **__):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(mdns, "AsyncZeroconf", no_route)

    async def main():
        async with Node(1) as a:
            await until(lambda: a.finder.problem)
            assert a.finder.problem == "cannot look for nodes on the local network: Network is unreachable"

    on_loop(main())


def test_closing_twice_or_before_the_start_does_nothing(on_loop):
    async def main():
        finder = MdnsFinder(key(1), FEDERATION, 4001, HERE)
        await finder.close()
        await finder.start(lambda key, address: None)
        await finder.close()
        await finder.close()

    on_loop(main())


@pytest.mark.slow
def test_an_error_of_who_is_told_is_not_swallowed(on_loop):
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
def test_what_strangers_announce_is_left_out_and_does_not_hide_the_nodes(on_loop):
    hostile = [
        b"",
        b"\xff",
        b"\0" * 300,
        of_node(9, os.urandom(16)),
        of_node(1),  # the node's own key
        of_node(9)[:-1],
        of_node(9) + strings(b"x" * 200, b"y" * 200, b"z" * 200),
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
                    await announce(service(name_of(20 + i), text))
                await announce(service(name_of(9), of_node(9), host="224.0.0.1"))
                await announce(service(name_of(10), of_node(10), port=0))
                await announce(service(name_of(11), of_node(11), host="192.0.2.1"))  # on no network of this machine
                for name in (b"\xff" * 63, b"somebody", b"a.b\0c", *(b"%d" % i for i in range(500))):
                    await announce([record(SERVICE, PTR, labels(name, *SERVICE))])
                name = name_of(12), *SERVICE  # its host has a name that cannot be asked for
                await announce([record(SERVICE, PTR, labels(*name)), record(name, SRV, b"\0" * 6 + labels(b"\xff" * 63))])
                await announce([record(SERVICE, PTR, labels(b"elsewhere", b"_http", b"_tcp", b"local"))])
                await announce(service(name_of(8), of_node(8)))
                await a.until((8, 4000))  # all that was announced before has been read
                async with Node(3) as c:
                    await asyncio.gather(a.until((3, 4003)), c.until((1, 4001)))
                assert {number for number, _ in a.found} == {2, 3, 8}

    on_loop(main())


@pytest.mark.slow
def test_a_name_that_cannot_be_sent_again_does_not_silence_a_node(monkeypatch, on_loop):
    """zeroconf repeats what it has cached in its questions, and fails at a name of 63 bytes that are not UTF-8."""
    monkeypatch.setattr(mdns, "AGAIN", 0.3)
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
                await announce(service(name_of(8), of_node(8)))
                await a.until((8, 4000))
                before = len(asked)
                await until(lambda: len(asked) > before + 3)
        assert errors == []

    on_loop(main())


@pytest.mark.slow
def test_so_many_services_are_kept_and_no_more(monkeypatch, on_loop):
    monkeypatch.setattr(mdns, "MAX_SERVICES", 20)

    async def main():
        with stranger() as announce:
            async with Node(1) as a:
                while len(a.found) < 20:  # datagrams may be lost
                    for number in range(10, 60):
                        await announce(service(name_of(number), of_node(number)))
                known = min(a.found)[0]
                await announce(service(name_of(known), of_node(known), port=5000))
                await a.until((known, 5000))  # those that are known are still listened to
                assert len({number for number, _ in a.found}) == 20

    on_loop(main())


@pytest.mark.slow
def test_services_of_other_federations_and_of_those_who_are_no_members_take_no_place(monkeypatch, on_loop):
    monkeypatch.setattr(mdns, "MAX_SERVICES", 1)

    async def main():
        with stranger() as announce:
            async with Node(1, expected=lambda beginning: beginning == key(8)[:16]) as a:
                for number in range(20, 60):
                    federation = os.urandom(16)
                    await announce(service(name_of(number, federation), of_node(number, federation)))
                    await announce(service(name_of(number), of_node(number)))
                await announce(service(name_of(8), of_node(8)))
                await a.until((8, 4000))
                assert a.found == {(8, "tcp://127.0.0.1:4000")}

    on_loop(main())


@pytest.mark.slow
def test_a_node_is_believed_under_its_own_name_only(on_loop):
    async def main():
        with stranger() as announce:
            async with Node(1) as a:
                for number in range(20, 60):
                    await announce(service(name_of(number), of_node(8), port=5000 + number))
                await announce(service(name_of(8), of_node(8)))
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
def test_a_hostile_text_is_a_nodes_or_nothing(text):
    node = read_text(text)
    assert node is None or (len(node[0]), len(node[1])) == (32, 16)


@given(KEYS, FEDERATIONS, st.lists(st.binary(max_size=40), max_size=4))
def test_the_text_of_a_node_is_read_whatever_else_it_says(key, federation, others):
    own = [b"Id=" + key.hex().encode(), b"fed=" + federation.hex().upper().encode()]
    others = [other for other in others if other.partition(b"=")[0].lower() not in (b"id", b"fed")]
    assert read_text(strings(*own, *others)) == (key, federation)
    assert read_text(strings(*others, *own, b"id=later", b"fed")) == (key, federation)


def test_a_text_of_more_than_512_bytes_is_not_looked_at():
    text = of_node(1)
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
        ("fe80::1", None),  # of which link?
        ("0.0.0.0", None),
        ("::", None),
        ("224.0.0.251", None),
        ("ff02::fb%2", None),
        ("255.255.255.255", None),
        ("::ffff:127.0.0.1", None),
    ],
)
def test_addresses_are_as_they_are_dialled(host, address):
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
def test_what_is_listened_on_is_announced_and_loopback_only_alone(listening, hosts):
    assert addresses_to_announce(listening, ["10.0.0.7", "127.0.0.1", "192.168.1.5", "::1", "fe80::1"]) == hosts


def test_nodes_on_loopback_are_told_of_others_there():
    assert dialable(["127.0.0.1", "::1"], 4100, LOOPBACK) == ["tcp://127.0.0.1:4100", "tcp://[::1]:4100"]


def test_addresses_on_other_networks_are_not_dialled():
    networks = [ip_network("192.168.1.0/24"), ip_network("fe80::/64")]
    here = ["192.168.1.5", "fe80::1%2"]
    others = ["192.168.2.5", "10.0.0.7", "127.0.0.1", "::1", "169.254.169.254", "2001:db8::1", "fe80::1"]
    assert dialable([*others, *here], 4100, networks) == ["tcp://192.168.1.5:4100", "tcp://[fe80::1%2]:4100"]


def test_the_networks_of_this_machine_are_those_of_its_addresses_without_loopback():
    networks = interface_networks()
    for host in mdns.interface_hosts():
        assert any(ip_address(host) in network for network in networks) != ip_address(host).is_loopback


@pytest.mark.slow
@given(st.lists(st.ip_addresses().map(str), max_size=30), st.integers(0, 65535))
def test_any_announced_address_can_be_split_again_and_they_are_few(hosts, port):
    addresses = dialable(hosts, port, EVERYWHERE)
    assert len(addresses) <= 8
    for address in addresses:
        host, again = split_address(address)
        assert str(ip_address(host)) in hosts
        assert again == port > 0
