"""A federation of real processes on machines of their own, with a broker, and folders on disks that can be full.

Machine k has the node `node-k`; the last two machines have the broker, and a guest that is a member only for a time. The
first node has no direct links, and the admission key. The folder of each node is a file system of its own. The caller
must be in a mount namespace of its own, which removes them at its end.

Each node takes its wall clock from libfaketime, if that is installed; its other clocks are those of the machine.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks import processes
from p2pfl.errors import ConfigurationError
from p2pfl.node.folder import config
from p2pfl.node.status import reader
from tests.support.mosquitto import program
from tests.support.namespaces import machines, until

ROOT = Path(__file__).parents[2]
GUEST = "guest"
DISK = 16  # MiB of a node's file system
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
TRUE_TIME = "+0"
PORT, BROKER_PORT = 4100, 1883
PACED = ROOT / "benchmarks" / "paced.py"
TOML = """rounds = 1000000
deadline = 5.0
members = {members}
broker = "mqtt://{broker}"
direct = {direct}
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "paced:Paced", seconds = 0.3}}
"""


class Federation(processes.Federation):
    """
    Attributes:
        names: of the members; without the guest.
        folders: by the name of the node; that of the guest, too.
        processes: the process of each node that is meant to run, by name.
        leaving: processes of revoked nodes, which must end by themselves, by name.
        starts: number of starts, by name.
        broker: its process.
        copies: copies of each folder with the times at which they were made, by name.
    """

    def __init__(self, net, root, names):
        self.net, self.root, self.names = net, root, list(names)
        self.leaving, self.broker, self.starts = {}, None, dict.fromkeys((*names, GUEST), 0)
        self.copies = {name: [] for name in names}
        for name in self.starts:
            self.set_clock(name, TRUE_TIME)

    def create(self):
        """Make the folders of the nodes, and their federation."""
        addresses = {name: f"10.77.0.{self.machine(name)}:{PORT}" for name in self.starts}
        super().__init__(self.root, self.names, self.toml, modules=(PACED,), addresses=addresses)

    def machine(self, name):
        return len(self.names) + 2 if name == GUEST else self.names.index(name) + 1

    def dialled(self):
        return self.names[1:]

    def toml(self, name):
        direct = str(name != self.names[0]).lower()
        return TOML.format(members=len(self.names), broker=f"10.77.0.{len(self.names) + 1}:{BROKER_PORT}", direct=direct)

    def set_clock(self, name, offset):
        """Let a node see a wall clock that is wrong by an offset, such as "+1d"."""
        path = self.root / f"{name}.clock"
        path.with_suffix(".new").write_text(f"{offset}\n")
        path.with_suffix(".new").replace(path)

    def environment(self, name):
        """Return the variables of a node's process, with which it sees its own wall clock."""
        own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
        if FAKETIME is None:
            return own
        names = ("FAKETIME_DONT_FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC", "NO_FAKE_STAT", "FAKETIME_CACHE_DURATION")
        file = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.root / f"{name}.clock")}
        return own | dict.fromkeys(names, "1") | file

    def back_up(self, *names):
        """Copy the folders of nodes, by default of all."""
        for name in names or self.names:
            made = time.monotonic()
            self.copies[name].append((made, copy(self.folders[name], self.root / "copies" / name / str(made))))

    def forget_copies(self, name):
        """Expect that no older folder of a node returns."""
        self.copies[name].clear()
        self.back_up(name)

    def restore(self, name, before):
        """Replace the folder of a node by the last copy that was made before a time, or by the first one."""
        older = [path for made, path in self.copies[name] if made <= before] or [self.copies[name][0][1]]
        for path in self.folders[name].iterdir():  # a file system, which cannot be removed itself
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        copy(older[-1], self.folders[name])

    def launch(self, name, command, **options):
        self.starts[name] += 1
        return self.net.start(self.machine(name), command, env=self.environment(name), **options)

    def stop(self, name):
        """End the process of a node as its owner does, if it runs still."""
        super().stop(name)
        if (process := self.leaving.pop(name, None)) is not None:
            process.terminate()
            process.wait(60)

    def expect_end(self, name):
        """Expect that the process of a revoked node ends by itself."""
        self.leaving[name] = self.processes.pop(name)

    def start_broker(self):
        path = self.root / "mosquitto.conf"
        path.write_text(f"listener {BROKER_PORT} 0.0.0.0\npersistence false\nallow_anonymous true\nuser root\n")
        with (self.root / "broker.log").open("ab") as log:
            command = [program(), "-c", str(path)]
            self.broker = self.net.start(len(self.names) + 1, command, stdout=log, stderr=log)

    def status(self, name):
        """Return the content of a node's status file, without what a fault has damaged."""
        try:
            status = reader.read(self.folders[name] / config.STATUS)
        except ConfigurationError:
            status = None
        if status is None or not isinstance(status.get("round"), int):
            return {"round": 0, "state": "starting", "history": []}
        rows = [row for row in status.get("history", ()) if isinstance(row.get("round"), int) and "weights" in row]
        return status | {"history": rows}

    def output(self, name):
        return self.log(name).read_text(errors="replace")

    def end(self):
        """End all processes; return the exit codes of the nodes after SIGTERM, by name."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        try:
            return {name: process.wait(60) for name, process in self.processes.items()}
        finally:
            self.kill_all()

    def kill_all(self):
        for process in (*self.processes.values(), *self.leaving.values(), *([self.broker] if self.broker else ())):
            process.kill()
            process.wait()


def copy(source, target):
    """Copy the files of a folder, as a backup does: one after the other, while the node may run. Return the target."""
    target.mkdir(mode=0o700, exist_ok=True, parents=True)
    for path in source.iterdir():
        if path.is_file():
            with suppress(FileNotFoundError):  # replaced meanwhile
                shutil.copy2(path, target / path.name)
    return target


@contextmanager
def disk(folder):
    """Let a new folder be a small file system."""
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m,mode=0700", "p2pfl", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def run_federation(root, names):
    """Run a federation and its broker until the end of the block."""
    with ExitStack() as stack:
        for name in (*names, GUEST):
            stack.enter_context(disk(root / name))
        net = stack.enter_context(machines(len(names) + 2, rules=True))
        made = Federation(net, root, names)
        made.create()
        try:
            made.start_broker()
            until(lambda: net.listens(len(names) + 1, BROKER_PORT), "the broker listens")
            for name in names:
                made.start(name)
            yield made
        finally:
            made.kill_all()
