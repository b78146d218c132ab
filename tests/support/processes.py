"""Real node processes on loopback, for tests."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from p2pfl._util.failpoints import VARIABLE
from p2pfl.node.checkpoint import FileStore
from p2pfl.node.federation import agreement, loading, membership_changes
from p2pfl.node.federation import join as joining
from p2pfl.node.folder import config
from tests.support import forked, without_torch
from tests.support.logs import messages
from tests.support.ports import free_ports

PATIENCE = 120  # seconds of real time after which something has gone wrong


def federate(root, names, edges="all", roles=MappingProxyType({}), topology=None, **demand):
    """Make one federation of nodes' folders, without commands; members without a role are participants."""
    first = root / names[0]
    ready = loading.load(first)
    tables = agreement.draft("test", ready.config, loading.task_of(ready), edges, topology, demand=demand)
    membership_changes.create_federation(first, tables, root / "backup.pem")
    for name in names[1:]:
        membership_changes.admit(
            first, membership_changes.request(root / name), roles.get(name, "participant"), root / f"{name}.admission"
        )
        joining.join(root / name, (root / f"{name}.admission").read_text())
    # Earlier members have the log of their admission; here all start with the newest one.
    newest = (root / names[0] / "membership").read_bytes()
    for name in names[1:]:
        (root / name / "membership").write_bytes(newest)


class Printed:
    """The lines that a process prints, without the times and levels of a log, read at once: a full pipe would stop it.

    Attributes:
        looked_at: the number of lines that a test has read.
    """

    def __init__(self, pipe):
        self.lines, self.looked_at = [], 0
        self.reading = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self.reading.start()

    def _read(self, pipe):
        with pipe:
            self.lines.extend(map(messages, pipe))


class Processes:
    """A federation of folders, and the processes that run them.

    Args:
        toml: content of every node.toml in addition to name, listen, part and addresses.
        path: folder of a custom task.
        topology: rule of the federation with a graph for each round.
        edges: pairs of names that exchange models.
        demand: keys of the federation that are in no node.toml, such as `committee`.
    """

    def __init__(self, root: Path, names, toml, cwd=None, path=None, topology=None, edges="all", **demand):
        self.names, self.cwd = list(names), cwd
        self.folders = {name: root / name for name in self.names}
        self.running, self._printed = {}, {}
        ports = dict(zip(self.names, free_ports(len(self.names)), strict=True))
        for k, name in enumerate(self.names):
            config.create(self.folders[name], name, f"127.0.0.1:{ports[name]}")
            addresses = "".join(f'{other} = "127.0.0.1:{ports[other]}"\n' for other in self.names if other != name)
            head = f'name = "{name}"\nlisten = "127.0.0.1:{ports[name]}"\npart = "{k}/{len(self.names)}"\nmdns = false\n'
            (self.folders[name] / config.CONFIG).write_text(f"{head}{toml}\n[addresses]\n{addresses}")
        if path is not None:
            sys.path.insert(0, str(path))
        if len(self.names) > 1:
            federate(root, self.names, edges, topology=topology, **demand)
        if path is not None:
            sys.path.remove(str(path))

    def start(self, *names, changes=(), until_done=True, torch=True, failpoint=""):
        """Start nodes, by default all; without `torch` every import of it fails in them.

        Args:
            failpoint: where they end as if they were killed; see p2pfl._util.failpoints.
        """
        for name in names or self.names:
            options = ["--until-done"] * until_done + [part for change in changes for part in ("--set", change)]
            launch = forked.python if torch else subprocess.Popen
            process = launch(
                [sys.executable, "-m", "p2pfl.node", "run", str(self.folders[name]), *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.cwd,
                env=os.environ
                | {"PYTHONPATH": str(without_torch.ROOT) if torch else without_torch.PYTHONPATH}
                | ({VARIABLE: failpoint} if failpoint else {}),
            )
            self.running[name], self._printed[name] = process, Printed(process.stdout)

    def printed(self, name):
        """Return the output of a node since its last start."""
        if self.running[name].poll() is not None:
            self._printed[name].reading.join(PATIENCE)
        return "".join(self._printed[name].lines)

    def line_with(self, name, text):
        """Return the next line with `text` that a node prints."""
        lines, ended = self._printed[name].lines, False
        deadline = time.monotonic() + PATIENCE
        while True:
            while self._printed[name].looked_at < len(lines):
                self._printed[name].looked_at += 1
                if text in (line := lines[self._printed[name].looked_at - 1]):
                    return line.rstrip()
            assert not ended, f"{name} ended without a word of {text!r}"
            assert time.monotonic() < deadline, f"waited in vain for {text!r} of {name}"
            ended = not self._printed[name].reading.is_alive()
            time.sleep(0.02)  # real time: these are real processes

    def status(self, name):
        try:
            return json.loads((self.folders[name] / config.STATUS).read_text())
        except FileNotFoundError:
            return {"round": 0, "state": "starting", "history": [], "peers": []}

    def checkpoint(self, name):
        return FileStore(self.folders[name] / config.CHECKPOINT).load()

    def until(self, condition, what):
        """Wait for a condition that a process fulfils."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain until {what}"
            for name, process in self.running.items():
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    raise AssertionError(f"{name} ended with {process.returncode}: {self.printed(name)}")
            time.sleep(0.02)  # real time: these are real processes

    def until_round(self, name, round):
        self.until(lambda: self.status(name)["round"] >= round, f"{name} is in round {round}")

    def wait(self, *names):
        """Wait for processes to end; return their outputs."""
        names = names or tuple(self.running)
        for name in names:
            self.running[name].wait(PATIENCE)
        return {name: self.printed(name) for name in names}

    def signal(self, name, number):
        self.running[name].send_signal(number)


@contextmanager
def processes(*args, **options):
    federation = Processes(*args, **options)
    try:
        yield federation
    finally:
        for process in federation.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
