"""Federations of real node processes on loopback, for benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from p2pfl.node.federation import admission, agreement, loading
from p2pfl.node.federation.membership_file import MEMBERSHIP
from p2pfl.node.folder import config
from p2pfl.node.runtime import join as joining
from p2pfl.node.status import reader

PATIENCE = 180.0  # maximum seconds to wait for an event


def free_ports(names: Sequence[str]) -> dict[str, int]:
    """Return a free port for each name."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}


class Federation:
    """Folders of a federation whose honest members run as processes.

    Args:
        toml: contents of node.toml in addition to name, listen, part and addresses.
        hostile: names of members that do not run here, with their roles.

    Attributes:
        folders, addresses: by name, of all members.
        processes: running processes, by name.
    """

    def __init__(
        self, root: Path, honest: Sequence[str], toml: str, hostile: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        names = [*honest, *hostile]
        ports = free_ports(names)
        self.honest = list(honest)
        self.folders = {name: root / name for name in names}
        self.addresses = {name: f"127.0.0.1:{ports[name]}" for name in names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        table = "".join(f'{name} = "{address}"\n' for name, address in self.addresses.items() if name in honest)
        for k, (name, folder) in enumerate(self.folders.items()):
            config.create(folder, name, self.addresses[name])
            head = f'name = "{name}"\nlisten = "{self.addresses[name]}"\npart = "{k}/{len(names)}"\nmdns = false\n'
            (folder / config.CONFIG).write_text(f"{head}{toml}\n[addresses]\n{table}")
        first = self.folders[names[0]]
        ready = loading.load(first)
        tables = agreement.draft("benchmark", ready.config, loading.task_of(ready))
        admission.create_federation(first, tables, root / "backup.pem")
        for name in names[1:]:
            token = root / f"{name}.admission"
            admission.admit(first, admission.request(self.folders[name]), hostile.get(name, "participant"), token)
            joining.join(self.folders[name], token.read_text())
        for name in names[1:]:
            (self.folders[name] / MEMBERSHIP).write_bytes((first / MEMBERSHIP).read_bytes())

    @staticmethod
    def port() -> int:
        """Return a free port."""
        return free_ports(["one"])["one"]

    def start(self, *names: str, options: Sequence[str] = ()) -> None:
        for name in names or self.honest:
            command = [sys.executable, "-m", "p2pfl.node", "run", str(self.folders[name]), *options]
            with (self.folders[name] / "output").open("ab") as output:
                self.processes[name] = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"}
                )

    @contextmanager
    def running(self, options: Sequence[str] = ()) -> Iterator[None]:
        """Run the honest members."""
        try:
            self.start(options=options)
            yield
        finally:
            for process in self.processes.values():
                process.kill()
            for process in self.processes.values():
                process.wait()

    def ended(self) -> dict[str, int]:
        """Return the exit codes of processes that have ended, by name."""
        return {name: code for name, process in self.processes.items() if (code := process.poll()) is not None}

    def state(self, name: str) -> dict[str, Any]:
        """Return the contents of a node's status file.

        Raises:
            RuntimeError: the node has failed.
        """
        state = reader.read(self.folders[name] / config.STATUS) or {"round": 0, "state": "starting", "history": []}
        if state.get("state") in ("failed", "gone"):
            raise RuntimeError(f"{name} {state['state']}: {self.output(name)}")
        return state

    def output(self, name: str, lines: int = 20) -> str:
        return "\n".join((self.folders[name] / "output").read_text(errors="replace").splitlines()[-lines:])

    def round(self, name: str) -> int:
        return int(self.state(name)["round"])

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"timeout while waiting until {what}")
            time.sleep(0.02)

    def rounds_per_second(self, name: str, seconds: float) -> float:
        """Return the speed over at least `seconds`, measured between the ends of two rounds."""
        first, began = self._next_round(name)
        time.sleep(seconds)
        last, ended = self._next_round(name)
        return (last - first) / (ended - began)

    def _next_round(self, name: str) -> tuple[int, float]:
        before, until = self.round(name), time.monotonic() + PATIENCE
        while (now := self.round(name)) == before:
            if time.monotonic() > until:
                raise RuntimeError(f"{name} makes no progress after round {before}")
            time.sleep(0.002)
        return now, time.perf_counter()

    def stop(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGTERM)
        self.processes[name].wait()


def memory(pid: int) -> float:
    """Return the resident memory of a process, in MiB; 0 if unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def open_files(pid: int) -> int:
    """Return the number of open files and connections of a process; 0 if unknown."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0
