"""Federations of real node processes on loopback, for benchmarks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from p2pfl.node.folder import config
from p2pfl.node.status import reader
from tests.support.processes import federate, free_ports
from tests.support.without_torch import PYTHONPATH

PATIENCE = 180.0  # maximum seconds to wait for an event


class Federation:
    """Folders of a federation whose honest members run as processes.

    Args:
        toml: contents of node.toml in addition to name, listen, part and addresses.
        hostile: names of members that do not run here, with their roles.
        modules: modules of the user's own, which every folder gets a copy of.
        addresses: of each node; by default free ports of loopback. Those without are no members yet.
        edges: pairs of honest members that exchange models; "all" for all pairs.
        torch: whether the processes may import PyTorch.

    Attributes:
        names: names of the honest members.
        folders, addresses: by name, of all members.
        processes: running processes, by name.
    """

    def __init__(
        self,
        root: Path,
        honest: Sequence[str],
        toml: str | Callable[[str], str],
        *,
        hostile: Mapping[str, str] = MappingProxyType({}),
        modules: Sequence[Path] = (),
        addresses: Mapping[str, str] | None = None,
        edges: Any = "all",
        torch: bool = True,
    ) -> None:
        members = [*honest, *hostile]
        if addresses is None:
            addresses = {name: f"127.0.0.1:{port}" for name, port in zip(members, free_ports(len(members)), strict=True)}
        self.root = root
        self.torch = torch
        self.names = list(honest)
        self.addresses = addresses
        self.folders = {name: root / name for name in addresses}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        table = "".join(f'{name} = "{address}"\n' for name, address in addresses.items() if name in self.dialled())
        for k, (name, folder) in enumerate(self.folders.items()):
            config.create(folder, name, addresses[name])
            part = f"{k % len(members)}/{len(members)}"
            head = f'name = "{name}"\nlisten = "{addresses[name]}"\npart = "{part}"\nmdns = false\n'
            more = toml if isinstance(toml, str) else toml(name)
            (folder / config.CONFIG).write_text(f"{head}{more}\n[addresses]\n{table}")
            for module in modules:
                shutil.copy(module, folder)
                sys.path.append(str(module.parent))
        federate(root, members, edges, roles=hostile)

    def dialled(self) -> Sequence[str]:
        """Return the names of the nodes whose addresses the others know."""
        return self.names

    @staticmethod
    def port() -> int:
        """Return a free port."""
        return free_ports(1)[0]

    def start(self, *names: str) -> None:
        """Start nodes that do not run, by default all."""
        for name in names or self.names:
            if name not in self.processes:
                with self.log(name).open("ab") as log:
                    command = [sys.executable, "-m", "p2pfl.node", "run", str(self.folders[name])]
                    self.processes[name] = self.launch(name, command, stdout=log, stderr=log)

    def launch(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Begin the process of a node."""
        path = {} if self.torch else {"PYTHONPATH": PYTHONPATH}
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"} | path, **options)

    def log(self, name: str) -> Path:
        """Return the file with the output of a node."""
        return self.root / f"{name}.log"

    @contextmanager
    def running(self, start: bool = True) -> Iterator[None]:
        """Run the honest members, and end all processes afterwards.

        Args:
            start: start them now; otherwise the caller does.
        """
        try:
            if start:
                self.start()
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
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])

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

    def send(self, name: str, number: int) -> None:
        """Send a signal to a node, if it runs."""
        if name in self.processes:
            self.processes[name].send_signal(number)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a node by a signal, if it runs."""
        if (process := self.processes.pop(name, None)) is not None:
            process.send_signal(number)
            process.wait()

    def stop(self, name: str) -> None:
        """End a node as its owner does, if it runs."""
        self.kill(name, signal.SIGTERM)


def memory(pid: int) -> float:
    """Return the resident memory of a process, in MiB; 0 if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return float(psutil.Process(pid).memory_info().rss / 2**20)
    return 0.0


def open_files(pid: int) -> int:
    """Return the number of open files and connections of a process; 0 if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).num_fds())
    return 0
