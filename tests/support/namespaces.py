"""Machines for one test: network namespaces at one switch, on Linux only.

Everything is inside a mount and a network namespace that one process of the test holds. Nothing is visible outside:
names cannot clash, and no frame can leave. Everything disappears with that process, even if the tests are killed.
Without root, a surrounding user namespace provides the necessary rights.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

PATIENCE = 60  # seconds of real time after which something has gone wrong
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
RUN = "mount -t tmpfs p2pfl /run && mkdir /run/netns"  # the folder in which ip keeps the names of namespaces
TRIAL = " && ".join(
    (
        RUN,
        "ip netns add a",
        "ip link add br0 type bridge",
        "ip link add v0 type veth peer name eth0 netns a",
        "ip netns exec a true",
    )
)


@cache
def why_not():
    """Return the reason why namespaces do not work here, or "" if they work."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    for program in ("unshare", "nsenter", "setpriv", "ip"):
        if shutil.which(program, path=PATH) is None:
            return f"{program} is not installed"
    try:
        tried = subprocess.run(
            [*_unshare(), "sh", "-c", TRIAL], capture_output=True, text=True, env=_env(), timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"network namespaces do not work here: {error}"
    lines = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
    return f"network namespaces do not work here: {lines[-1]}" if tried.returncode else ""


def _unshare():
    """Return the start of a command that makes namespaces; a user namespace provides missing rights."""
    return ["unshare", "-nm"] if os.geteuid() == 0 else ["unshare", "-Urnm"]


def _env():
    return os.environ | {"PATH": PATH}


class Machines:
    """Machines 1 to N, at 10.77.0.1 to 10.77.0.N, and the switch between them."""

    def __init__(self, count, holder, rules):
        self.numbers = range(1, count + 1)
        self._rules = rules
        self._enter = ["nsenter", "-t", str(holder.pid), "-n", "-m", "--wd=."]
        if os.geteuid():
            self._enter += ["-U", "--preserve-credentials"]
        self._switch("ip link set lo up")
        for name in ("br0", *(f"br{i}" for i in self.numbers if not rules)):
            self._switch(f"ip link add {name} type bridge mcast_snooping 0")
            self._switch(f"ip link set {name} up")
        for i in self.numbers:
            self._switch(f"ip netns add m{i}")
            self._switch(f"ip link add v{i} type veth peer name eth0 netns m{i}")
            self._switch(f"ip link set v{i} master br0 up")
            self._switch(f"ip -n m{i} link set lo up")
            self._switch(f"ip -n m{i} link set eth0 up")
            self._give(i, f"10.77.0.{i}")
        until(lambda: not any(self._tentative(i) for i in self.numbers), "the addresses may be used")

    def move(self, i, address):
        """Give a machine this address instead of all that it has."""
        self._switch(f"ip -n m{i} addr flush dev eth0")  # this removes the routes, too
        self._give(i, address)

    def _give(self, i, address):
        self._switch(f"ip -n m{i} addr add {address}/24 dev eth0")
        self._switch(f"ip -n m{i} route add default dev eth0")  # the route for multicast

    def _tentative(self, i):
        """Return whether a machine still checks that its IPv6 address is unique."""
        printed = self._switch(f"ip -n m{i} -json -6 addr show dev eth0").stdout
        return any(address.get("tentative") for link in json.loads(printed) for address in link.get("addr_info", []))

    def partition(self, *groups):
        """Block frames between machines of different groups. Frames on their way are lost silently."""
        if not self._rules:
            for group in groups:
                for i in group:
                    self._switch(f"ip link set v{i} master br{group[0]}")
            return
        sets = ["{ " + ", ".join(f'"v{i}"' for i in group) + " }" for group in groups]
        self.drop(*(f"iifname {a} oifname {b}" for a, b in permutations(sets, 2)))

    def drop(self, *conditions):
        """Drop the frames to which one of these conditions of nftables applies, until `heal`."""
        rules = [f"add rule bridge cut f {condition} drop" for condition in conditions]
        chain = "add chain bridge cut f { type filter hook forward priority 0; }"
        self._switch("nft", "; ".join(["add table bridge cut", chain, *rules]))

    def heal(self):
        """Let all frames through again."""
        if self._rules:
            self._switch("nft", "add table bridge cut; delete table bridge cut")
            return
        for i in self.numbers:
            self._switch(f"ip link set v{i} master br0")

    def run(self, i, command, **options):
        """Run a command on a machine and return its result."""
        options = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": True, "env": _env()} | options
        return _check_all(self._on(i, command), **options)

    def listens(self, i, port):
        """Return whether a process on a machine listens on a port, without connecting to it."""
        lines = self.run(i, ["cat", "/proc/net/tcp"]).stdout.splitlines()
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines[1:])

    def start(self, i, command, **options):
        """Begin a command on a machine; return its process, which is the command's own."""
        return subprocess.Popen(self._on(i, command), **({"env": _env()} | options))

    @contextmanager
    def captured(self, path):
        """Write all frames that reach the switch in this block to a file, one after the other."""
        with ExitStack() as stack:
            process = subprocess.Popen(
                [*self._enter, sys.executable, __file__, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_env(),
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout.readline() == "listening\n"
            yield
            output, _ = process.communicate("\n", PATIENCE)
            assert output == "missed 0\n"

    def _on(self, i, command):
        """Return a command on a machine that ends with the tests."""
        return [*self._enter, "ip", "netns", "exec", f"m{i}", "setpriv", "--pdeathsig", "KILL", *command]

    def _switch(self, command, *more):
        """Run a command in the namespace of the switch."""
        words = [*self._enter, *command.split(), *more]
        return _check_all(words, capture_output=True, text=True, timeout=PATIENCE, check=True, env=_env())


def _check_all(words, **options):
    try:
        return subprocess.run(words, **options)
    except subprocess.CalledProcessError as error:
        raise AssertionError(f"{' '.join(words)}: {error.stdout}{error.stderr}") from None


@contextmanager
def machines(count, rules=None):
    """Make N machines; skip the test with a reason if namespaces do not work.

    Args:
        rules: partition them by rules of nftables; by default if it is installed, else by several switches.
    """
    if why_not():
        pytest.skip(why_not())
    rules = shutil.which("nft", path=PATH) is not None if rules is None else rules
    holder = subprocess.Popen(
        [*_unshare(), "sh", "-c", f"{RUN} && echo ready && exec cat"],  # cat ends with its input
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_env(),
    )
    with holder:
        try:
            assert holder.stdout.readline() == b"ready\n"
            yield Machines(count, holder, rules)
        finally:
            holder.stdin.close()


def until(condition, what, patience=PATIENCE):
    """Wait for a condition that a process fulfils; return the seconds that it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + patience, f"waited in vain until {what() if callable(what) else what}"
        time.sleep(0.02)  # real time: these are real processes
    return time.monotonic() - begun


def _capture(path):
    """Write the frames that this namespace's interfaces receive to a file, until there is a line of input."""
    import select
    import socket

    everything = 3  # ETH_P_ALL, of linux/if_ether.h; and of linux/if_packet.h:
    level, statistics = 263, 6  # SOL_PACKET, PACKET_STATISTICS
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(everything)) as frames, Path(path).open("wb") as file:
        frames.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        print("listening", flush=True)
        while True:
            ready, _, _ = select.select([frames, sys.stdin], [], [])
            if frames in ready:
                file.write(frames.recv(1 << 17))
            elif sys.stdin in ready:
                break
        print("missed", int.from_bytes(frames.getsockopt(level, statistics, 8)[4:], sys.byteorder))


if __name__ == "__main__":
    _capture(sys.argv[1])
