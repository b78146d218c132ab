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
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

if __name__ != "__main__":
    from tests.support import forked_client

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
        null = stack.enter_context(open(os.devnull, "rb"))  # noqa: PTH123 (not a path)
        environment = os.environ if env is None else env
        files = [null.fileno(), out, err]
        return ForkedProcess(
            command, reading, forked_client.ask(_address(), command[2:], cwd or Path.cwd(), environment, files)
        )


@cache
def commands():
    """Return a folder with `p2pfl-node` and `p2pfl-sim` as forked commands, for PATH."""
    folder = Path(_address()).parent
    for name in ("node", "sim"):
        script = folder / f"p2pfl-{name}"
        client = [sys.executable, "-I", "-S", forked_client.__file__, _address(), "-P", f"p2pfl.{name}"]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        script.chmod(0o755)
    return folder


@cache
def _address():
    """Start the process that is copied; return the path of the socket for requests. It ends with this process."""
    folder = tempfile.mkdtemp(prefix="forked")
    path = f"{folder}/socket"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
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
        message, fds, _, _ = socket.recv_fds(talk, LATEST, 3)
        if message and os.fork() == 0:
            listener.close()
            return *json.loads(message), fds, talk.detach()
        for fd in fds:
            os.close(fd)
        talk.close()
    return None


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
    import rich.live  # noqa: F401
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
    arguments, cwd, environment, files, talk = wanted
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(files):
        os.dup2(fd, number)
        os.close(fd)
    _hand_over(talk)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if arguments[0] == "-P":
        del arguments[0]
    else:
        sys.path.insert(0, cwd)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
