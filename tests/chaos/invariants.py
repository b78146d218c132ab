"""Invariants of a federation of processes, checked from outside: by the processes, their files and their output."""

from math import isfinite
from pathlib import Path

import numpy as np

from benchmarks.processes import memory, open_files
from p2pfl._util.atomic_files import read_sealed
from p2pfl.node.checkpoint import FileStore
from p2pfl.node.federation.membership_file import member_of
from p2pfl.node.folder import config
from p2pfl.node.folder.incarnation import MAGIC
from p2pfl.sim.chaos.invariants import Violation
from tests.chaos.faults import FILL

MEMORY, FILES = 600.0, 150  # MiB and open files of a node
LOG = 500_000  # bytes of a node's output in five minutes
FOLDER = 4_000_000  # bytes of a node's folder
NEW_ROUNDS = 3  # rounds with all members in which a federation shows that it has healed
LONGEST = 900.0  # seconds of a round at most, whatever the wall clock shows


class Violated(Exception):  # noqa: N818
    """An invariant does not hold.

    Attributes:
        violation: which one; its time is left to the caller.
    """

    def __init__(self, invariant, node, text):
        super().__init__(f"{invariant}: {node} {text}")
        self.violation = Violation(invariant, 0.0, node, text)


def check(federation):
    """Raise Violated if an invariant does not hold now."""
    for name, process in federation.processes.items():
        if (code := process.poll()) is not None:
            raise Violated("error", name, f"ended with {code}")
        for what, found, most in (
            ("MiB of memory", memory(process.pid), MEMORY),
            ("open files", open_files(process.pid), FILES),
            ("bytes of output", federation.log(name).stat().st_size, LOG),
            ("bytes in its folder", size(federation.folders[name]), FOLDER),
        ):
            if found > most:
                raise Violated("resources exceeded", name, f"has {found:.0f} {what}, at most {most}")
    for name in (*federation.processes, *federation.leaving):
        check_status(name, federation.status(name), federation.output(name))


def check_status(name, status, output=""):
    """Raise Violated if a status shows an error, a proof against a member, or a figure that is not finite.

    Args:
        output: what the node has printed, with the first error of each kind.
    """
    if status.get("faults"):
        errors = [line for line in output.splitlines() if "error in " in line]
        raise Violated("error", name, "; ".join([f"counts faults: {status['faults']}", *errors]))
    if status.get("proofs"):
        raise Violated("error", name, f"holds {status['proofs']} proofs of two models of one round, but all are honest")
    for row in status["history"]:
        if any(isinstance(value, float) and not isfinite(value) for value in row.values()):
            raise Violated("not finite", name, f"has figures that are not finite: {row}")
        if not 0 <= row.get("seconds", 0) <= LONGEST:
            raise Violated("error", name, f"has a round of {row['seconds']} s: {row}")


def check_output(federation):
    """Raise Violated if a node has printed a traceback."""
    for name in federation.starts:
        if federation.starts[name] and "Traceback (most recent call last)" in (text := federation.output(name)):
            raise Violated("error", name, f"printed an error: {text[-3000:]}")


def check_models(federation):
    """Raise Violated if the checkpoint of an ended node cannot be read, or is not finite."""
    for name in federation.names:
        stored = FileStore(federation.folders[name] / config.CHECKPOINT).load()
        if stored is None or not np.isfinite(np.frombuffer(stored.params, np.float32)).all():
            raise Violated("not finite", name, "has no finite model on its disk")


def size(folder):
    """Return the bytes of a folder, without the file that fills its disk."""
    total = 0
    for path in Path(folder).iterdir():
        try:
            total += path.stat().st_size if path.is_file() and path.name != FILL else 0
        except FileNotFoundError:  # replaced meanwhile
            continue
    return total


class Incarnations:
    """The largest incarnation that each node has used: no later start may use it again, whatever its folder says."""

    def __init__(self, federation):
        self.federation, self.starts = federation, dict(federation.starts)
        self.used = self._current()

    def _current(self):
        return {name: incarnation(self.federation.folders[name]) for name in self.federation.names}

    def check(self):
        """Raise Violated if a node that was started has not gone past the incarnations that it has used."""
        current = self._current()
        for name, now in current.items():
            started = self.federation.starts[name] > self.starts[name]
            if now < self.used[name] + started:
                raise Violated("number reused", name, f"is in incarnation {now} after {self.used[name]}")
        self.starts = dict(self.federation.starts)
        self.used = current


def incarnation(folder):
    return int(read_sealed(folder / config.INCARNATION, MAGIC))


class Healing:
    """Numbers of rounds that nodes have finished with all others since a moment."""

    def __init__(self, federation):
        self.federation = federation
        self.since = {name: federation.status(name)["round"] for name in federation.names}
        self.together = dict.fromkeys(federation.names, 0)
        self.apart = ""

    def done(self):
        for name in self.federation.names:
            rows = self.federation.status(name)["history"]
            self.together[name] = sum(
                row["round"] > self.since[name] and set(row["weights"]) == set(self.federation.names) for row in rows
            )
        self.apart = membership_problem(self.federation)
        return min(self.together.values()) >= NEW_ROUNDS and not self.apart

    def rounds(self):
        """Return the smallest number of rounds by which a node is further."""
        return min(self.federation.status(name)["round"] - self.since[name] for name in self.federation.names)

    def __str__(self):
        rounds = ", ".join(f"{name} {self.together[name]}" for name in self.federation.names)
        return f"{rounds}; {self.apart}" if self.apart else rounds


def membership_problem(federation):
    """Return what the members do not know yet of the membership, or a revoked node of its end; "" if they know all."""
    logs = {name: member_of(federation.folders[name]) for name in federation.names}
    newest = max(log.membership_version for log in logs.values())
    for name, log in logs.items():
        if log.membership_version < newest:
            return f"{name} knows membership version {log.membership_version} of {newest}"
        peers = sorted(peer["name"] for peer in federation.status(name).get("peers", ()))
        if sorted([name, *peers]) != sorted(federation.names):
            return f"{name} has the peers {', '.join(peers)}"
    for name, process in federation.leaving.items():
        if process.poll() is None or federation.status(name)["state"] != "revoked":
            return f"{name} is {federation.status(name)['state']} after its revocation"
    return ""
