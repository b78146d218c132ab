"""Faults of real processes, networks, disks and clocks, and changes of the membership: each begins, and ends.

They are drawn by p2pfl.sim.chaos.schedule. A folder is restored from a copy that was made at the beginning of an episode.
"""

import signal
import time
from contextlib import suppress
from itertools import count
from random import Random

from msgspec.structs import replace

from p2pfl.node.federation import join as joining
from p2pfl.node.federation import membership_changes
from p2pfl.node.federation.membership_file import member_of
from p2pfl.node.folder import config
from p2pfl.sim.chaos.schedule import LINKS, draw_schedule
from tests.chaos.federation import GUEST, TRUE_TIME

NODE = ("crash", "restart", "freeze", "disk-full", "damaged-file", "restore", "wall-clock")
NETWORK = ("partition", "one-way", "flap", "loss")
BROKER = ("broker-restart", "broker-halt")
MEMBERSHIP = ("guest", "readmission", "new-admission-key")
KINDS = (*NODE, *NETWORK, *BROKER, *MEMBERSHIP)
UNIT = 3.0  # seconds for which the schedule has a deadline: an episode takes up to 27 s
OLDER = 20  # times that copies are older than a schedule has them, which are several episodes
FLAP = 1.0  # seconds of a flapping link between two changes
DAMAGED = (config.CHECKPOINT, f"{config.CHECKPOINT}.1", config.INCARNATION, config.STATUS)
FILL = "fill"  # file that takes the room of a disk
KEY_BEFORE = f"{config.KEY}.old"  # file that a request for a new key leaves


def draw_episode(seed, number, names):
    """Return the faults of an episode: one to three, of different nodes, and one of the network or the broker at most.

    The first node has the admission key. While the membership changes, it has no fault of its own.
    """
    faults, busy = [], set()
    for fault in draw_schedule(f"{seed} {number}", names, [GUEST], UNIT, kinds=KINDS, count=(1, 3)):
        if fault.kind == "new-admission-key":
            fault = replace(fault, node=names[0])
        elif fault.kind == "readmission" and fault.node == names[0]:
            fault = replace(fault, node=names[1])
        elif fault.kind == "restore":
            fault = replace(fault, amount=OLDER * fault.amount)
        needs = next((kinds for kinds in (NETWORK, BROKER) if fault.kind in kinds), (fault.node,))
        needs += (MEMBERSHIP, names[0]) if fault.kind in MEMBERSHIP else ()
        if busy.isdisjoint(needs):
            faults.append(fault)
            busy.update(needs)
    return tuple(faults)


class Faults:
    """The faults of a schedule, as time goes on.

    Attributes:
        waiting, active: faults that have not begun, and those in force.
    """

    def __init__(self, federation, schedule):
        self.federation = federation
        self.waiting, self.active = list(schedule), []
        self.cut = False  # whether a flapping link is cut
        self.changed = 0.0

    @property
    def over(self):
        return not (self.waiting or self.active)

    def step(self, now):
        """Do what is due at a time of the schedule."""
        for fault in [fault for fault in self.waiting if fault.at <= now]:
            self.waiting.remove(fault)
            self.begin(fault)
        if any(fault.kind == "flap" for fault in self.active) and time.monotonic() > self.changed + FLAP:
            self.cut, self.changed = not self.cut, time.monotonic()
            self._disturb()
        for fault in [fault for fault in self.active if fault.end <= now]:
            self.end(fault)

    def begin(self, fault):
        federation, name = self.federation, fault.node
        self.active.append(fault)
        match fault.kind:
            case "crash" | "damaged-file" | "restore":
                federation.kill(name)
                self._change_files(fault)
            case "restart":
                federation.stop(name)
            case "freeze":
                federation.send(name, signal.SIGSTOP)
            case "disk-full":
                fill(federation.folders[name])
            case "wall-clock":
                federation.set_clock(name, f"{fault.amount:+.0f}")
            case "broker-restart":
                federation.broker.kill()
                federation.broker.wait()
            case "broker-halt":
                federation.broker.send_signal(signal.SIGSTOP)
            case "guest":
                enter(federation, name)
            case "readmission":
                leave(federation, name)
            case "new-admission-key":
                rotate(federation)
            case _:
                self.cut, self.changed = True, time.monotonic()
                self._disturb()

    def _change_files(self, fault):
        if fault.kind == "damaged-file":
            rng = Random(fault.amount)
            flip_a_bit(self.federation.folders[fault.node] / rng.choice(DAMAGED), rng)
        elif fault.kind == "restore":
            self.federation.restore(fault.node, time.monotonic() - fault.amount)

    def end(self, fault):
        federation, name = self.federation, fault.node
        self.active.remove(fault)
        match fault.kind:
            case "crash" | "restart" | "damaged-file" | "restore":
                federation.start(name)
            case "freeze":
                federation.send(name, signal.SIGCONT)
            case "disk-full":
                (federation.folders[name] / FILL).unlink(missing_ok=True)
            case "wall-clock":
                federation.set_clock(name, TRUE_TIME)
            case "broker-restart":
                federation.start_broker()
            case "broker-halt":
                federation.broker.send_signal(signal.SIGCONT)
            case "guest":
                leave(federation, name)
            case "readmission":
                federation.stop(name)
                enter(federation, name)
                federation.forget_copies(name)  # with the earlier key, which has no use
            case "new-admission-key":
                federation.forget_copies(name)
            case _:
                self._disturb()

    def _disturb(self):
        """Drop frames by the faults in force, and no others."""
        net, rules = self.federation.net, []
        for fault in (fault for fault in self.active if fault.kind in LINKS):
            own, *others = (f'"v{self.federation.machine(name)}"' for name in (fault.node or GUEST, *fault.others))
            match fault.kind:
                case "partition":
                    side = "{ " + ", ".join(others) + " }"
                    rules += [f"iifname {side} oifname != {side}", f"iifname != {side} oifname {side}"]
                case "one-way":  # not ARP, which would cut the other direction, too
                    rules += [f"iifname {own} oifname {other} ip protocol tcp" for other in others]
                case "flap":
                    rules += [f"iifname {own}", f"oifname {own}"] if self.cut else []
                case "loss":
                    where = f"iifname {own} " if fault.node else ""
                    rules.append(f"{where}numgen random mod 100 < {round(100 * fault.amount)}")
        net.heal()
        if rules:
            net.drop(*rules)


def enter(federation, name):
    """Let the first node admit a node, with a new key if it has been a member before, and start it."""
    holder, folder = federation.folders[federation.names[0]], federation.folders[name]
    returns = member_of(holder).had(name)
    (folder / KEY_BEFORE).unlink(missing_ok=True)
    line, bundle = membership_changes.request(folder, new_key=returns), federation.root / f"{name}.admission"
    membership_changes.admit(holder, line, "participant", bundle, reuse_name=returns)
    joining.join(folder, bundle.read_text())
    federation.start(name)


def leave(federation, name):
    """Let the first node revoke a node, whose process must then end by itself."""
    membership_changes.revoke(federation.folders[federation.names[0]], name)
    federation.expect_end(name)


def rotate(federation):
    """Let the first node hand over to a new admission key."""
    backup = next(path for k in count() if not (path := federation.root / f"admission-{k}.backup").exists())
    membership_changes.rotate(federation.folders[federation.names[0]], backup)


def fill(folder):
    """Write a file until the disk is full."""
    with suppress(OSError), (folder / FILL).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def flip_a_bit(path, rng):
    """Change one bit of a file, if there is one."""
    if path.exists() and (content := bytearray(path.read_bytes())):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
