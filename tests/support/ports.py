"""Ports of the loopback for the listeners of tests."""

import itertools
import os
import socket
from contextlib import suppress

PORTS = range(10_000, 32_000)  # below those that a system gives to outgoing connections: none takes one before its listener
NEXT_PORT = itertools.count(os.getpid() * 7919)  # tests that run at the same time begin at different ports


def free_ports(count):
    """Return ports on which nothing listens; none is returned twice in a process."""
    found = []
    while len(found) < count:
        port = PORTS[next(NEXT_PORT) % len(PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def free_port():
    return free_ports(1)[0]
