"""Python commands as real processes, forked from one process that has already imported torch and this project.

A fork takes milliseconds, an import of torch takes seconds, and one of the project's modules a third of a second of each
of a thousand processes. Only p2pfl._util.failpoints reads the environment when it is imported: with its variable, a process
imports the project itself. A process is in the namespaces of its client, and is killed when its client ends. It is not in
the process group of its client.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

if __name__ != "__main__":
    from tests.support import forked_client

POSSIBLE = sys.platform == "linux"  # elsewhere a copy of a process with these libraries may not work
LARGEST = 1 << 17  # bytes of a request
MOST = 64  # files of a request
OWN = "p2pfl.node.runtime.run", "p2pfl.node.cli.main", "p2pfl.sim.cli.main", "p2pfl.sim.execution.runner", "p2pfl.sim.api"


class ForkedProcess:
    """A running command, with the part of subprocess.Popen's interface that the tests use."""

    def __init__(self, command, stdout, talk):
        self.args, self.stdout, self._talk, self.returncode = command, stdout, talk, None
        self.pid = int(talk.recv(32))

    def poll(self):
        return self._status(0)

    def wait(self, timeout=None):
        if self._status(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self):
        """Read the rest of the output; return it when the command has ended."""
        with self.stdout:
            output = self.stdout.read()
        self.wait()
        return output, None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout):
        if self.returncode is None and select.select([self._talk], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(self._talk.recv(32)))
            self._talk.close()
        return self.returncode


def python(command, *, stdout, stderr, cwd=None, env=None, text=False):
    """Start `[sys.executable, "-m", module, ...]` as subprocess.Popen does.

    Args:
        stdout: a file, or subprocess.PIPE.
        stderr: a file, or subprocess.STDOUT.
    """
    assert command[:2] == [sys.executable, "-m"]
    if not POSSIBLE:
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=cwd, env=env, text=text)
    reading = None
    with contextlib.ExitStack() as stack:
        if stdout == subprocess.PIPE:
            end, out = os.pipe()
            stack.callback(os.close, out)
            reading = open(end) if text else open(end, "rb")  # noqa: SIM115, PTH123 (the caller closes it)
        else:
            out = stdout.fileno()
        err = out if stderr == subprocess.STDOUT else stderr.fileno()
        null = stack.enter_context(open(os.devnull, "rb"))  # noqa: PTH123 (not a path)
        environment = os.environ if env is None else env
        files = {0: null.fileno(), 1: out, 2: err}
        return ForkedProcess(
            command, reading, forked_client.ask(_address(), command[1:], cwd or Path.cwd(), environment, files, [])
        )


def executable():
    """Return a program that takes the place of `sys.executable`: it forks the commands that would import torch."""
    return str(commands() / "python") if POSSIBLE else sys.executable


@cache
def commands():
    """Return a folder with `p2pfl-node`, `p2pfl-sim` and `python` as forked commands, for PATH."""
    folder = Path(_address()).parent
    fixed = {"python": [], **{f"p2pfl-{name}": ["-P", "-m", f"p2pfl.{name}"] for name in ("node", "sim")}}
    for name, arguments in fixed.items():
        client = [sys.executable, "-I", "-S", forked_client.__file__, _address(), sys.executable, *arguments]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@cache
def _address():
    """Start the process that is copied; return the path of the socket for requests. It ends with this process."""
    folder = tempfile.mkdtemp(prefix="forked")
    path = f"{folder}/socket"
    left_out = "PYTHONPATH", "P2PFL_FAILPOINT"  # otherwise each copy without a failpoint would have that of the first start
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno()), folder],
            stdin=subprocess.PIPE,
            env=environment,
            pass_fds=[listener.fileno()],
        )

    def end():
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return path


def _serve(listener):
    """Copy this process for each request. Return in a copy, with its command; None when standard input is closed."""
    while listener in select.select([0, listener], [], [])[0]:
        talk, _ = listener.accept()
        message, fds, _, _ = socket.recv_fds(talk, LARGEST, MOST)
        if message and os.fork() == 0:
            listener.close()
            client, _, _ = struct.unpack("3i", talk.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return *json.loads(message), fds, client, talk.detach()
        for fd in fds:
            os.close(fd)
        talk.close()
    return None


def _place(fds, numbers, talk):
    """Give file descriptors the numbers that they have in the client; return the new one of `talk`."""
    came, free = [*fds, talk], max(numbers) + 1
    *moved, talk = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for fd in came]  # out of the way
    for fd in came:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    return talk


def _join_namespaces(client):
    """Enter the namespaces of the client."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = [Path(f"/proc/{client}/ns/{kind}") for kind in ("user", "mnt", "net")]
    opened = [
        os.open(path, os.O_RDONLY) for path in paths if path.readlink() != Path(f"/proc/self/ns/{path.name}").readlink()
    ]
    for fd in opened:
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)


def _hand_over(talk):
    """Continue in another copy; this one reports its exit status, and kills it when the client ends."""
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # the other copy receives them, too
        os.closerange(0, talk)
        os.write(talk, b"%d" % pid)
        if talk in select.select([talk, os.pidfd_open(pid)], [], [])[0]:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(OSError):  # the client has ended
            os.write(talk, b"%d" % status)
        os._exit(0)
    os.close(talk)


def _run(arguments, safe):
    """Do what `python` with these arguments does; `safe` is its option -P."""
    if arguments[0] == "-P":
        del arguments[0]
        safe = True
    if (kind := arguments[0]).startswith("-"):
        del arguments[0]
    if not safe:
        folder = {"-m": str(Path.cwd()), "-c": ""}.get(kind, str(Path(kind).resolve().parent))
        sys.path.insert(0, folder)
    sys.argv = arguments if kind != "-c" else ["-c", *arguments[1:]]
    if kind == "-m":
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(arguments[0], {"__name__": "__main__"})
    else:
        runpy.run_path(kind, run_name="__main__")


def _main():
    import aiohttp  # noqa: F401
    import aiomqtt  # noqa: F401
    import cryptography.x509  # noqa: F401
    import networkx  # noqa: F401
    import rich.live  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import torch  # noqa: F401
    import uvloop  # noqa: F401
    import zeroconf.asyncio  # noqa: F401

    with contextlib.suppress(ImportError):
        import sklearn.datasets  # noqa: F401
    for module in OWN:
        importlib.import_module(module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no copy remains as a zombie
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    if (wanted := _serve(socket.socket(fileno=int(sys.argv[1])))) is None:
        return
    arguments, cwd, environment, numbers, mask, fds, client, talk = wanted
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    talk = _place(fds, numbers, talk)
    _join_namespaces(client)
    _hand_over(talk)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("P2PFL_FAILPOINT"):
        for module in [name for name in sys.modules if name.partition(".")[0] == "p2pfl"]:
            del sys.modules[module]
    sys.executable = str(Path(sys.argv[2], "python"))
    multiprocessing.set_executable(sys.executable)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    _run(arguments, bool(environment.get("PYTHONSAFEPATH")))


if __name__ == "__main__":
    _main()
