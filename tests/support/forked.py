"""Python commands as real processes, forked from one process that has already imported torch.

A fork takes milliseconds, an import of torch takes seconds. Only third-party packages are imported beforehand. Each
process imports the project's own packages itself, with its own environment, as `python -m` does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

POSSIBLE = sys.platform == "linux"  # elsewhere a copy of a process with these libraries may not work
LATEST = 1 << 16  # bytes of a request


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
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(there.close)
        request = json.dumps([command[2:], os.fspath(cwd or Path.cwd()), dict(os.environ if env is None else env)])
        socket.send_fds(_original(), [request.encode()], [out, err, there.fileno()])
        return ForkedProcess(command, reading, here)


@cache
def _original():
    """Start the process that is copied; return the socket for requests. It ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with there:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(there.fileno())],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=[there.fileno()],
        )

    def end():
        here.close()
        process.wait()

    atexit.register(end)
    return here


def _serve(asked):
    """Copy this process for each request. Return in a copy, with its command; None when the socket is closed."""
    while True:
        message, fds, _, _ = socket.recv_fds(asked, LATEST, 3)
        if not message:
            return None
        if os.fork() == 0:
            asked.close()
            return *json.loads(message), *fds
        for fd in fds:
            os.close(fd)


def _hand_over(talk):
    """Continue in another copy; this one reports its exit status."""
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # the other copy receives them, too
        os.closerange(0, 3)
        os.write(talk, b"%d" % pid)
        os.write(talk, b"%d" % os.waitpid(pid, 0)[1])
        os._exit(0)
    os.close(talk)


def _main():
    import aiohttp  # noqa: F401
    import aiomqtt  # noqa: F401
    import cryptography.x509  # noqa: F401
    import networkx  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import torch  # noqa: F401
    import uvloop  # noqa: F401
    import zeroconf.asyncio  # noqa: F401

    with contextlib.suppress(ImportError):
        import sklearn.datasets  # noqa: F401
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no copy remains as a zombie
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    if (wanted := _serve(socket.socket(fileno=int(sys.argv[1])))) is None:
        return
    (module, *arguments), cwd, environment, out, err, talk = wanted
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in {out, err} - {0, 1, 2}:
        os.close(fd)
    _hand_over(talk)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [cwd, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
