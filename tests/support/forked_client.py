"""Client of the process in tests/support/forked.py; as a script, a command that is run as a copy of that process.

It imports little, because it starts once for each command of a shell block.
"""

import json
import os
import signal
import socket
import sys


def ask(path, arguments, cwd, environment, files, mask):
    """Ask for a copy that runs `python` with some arguments.

    Args:
        path: socket of the process to copy.
        files: file descriptors, by their numbers in the copy.
        mask: numbers of the signals that the copy blocks.

    Returns:
        A socket that yields the process ID of the copy, and its exit status when it has ended. The copy is killed when
        the socket is closed.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    request = [arguments, os.fspath(cwd), dict(environment), list(files), mask]
    socket.send_fds(connection, [json.dumps(request).encode()], list(files.values()))
    return connection


def imports_torch(arguments):
    """Return whether this is a command that a copy can run, and that would import torch."""
    match [each for each in arguments if each != "-P"][:2]:
        case ["-m", module]:
            return module.startswith("p2pfl.") or module == "pytest"
        case ["-c", code]:
            return code.startswith("from multiprocessing.forkserver import main")
        case [script, *_]:
            return script.endswith(".py")
    return False


def opened():
    """Return the numbers of the files of this process."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 (pathlib is slow)
        try:
            os.fstat(number)
        except OSError:  # that of the folder itself
            continue
        found.append(number)
    return found


def main():
    path, python, *arguments = sys.argv[1:]
    if not imports_torch(arguments):
        os.execv(python, [python, *arguments])
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    files = {number: number for number in opened()}
    connection = ask(path, arguments, os.getcwd(), os.environ, files, [int(each) for each in mask])  # noqa: PTH109 (as above)
    copy = int(connection.recv(32))
    for number in signals:
        signal.signal(number, lambda number, _: os.kill(copy, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = connection.recv(32)
    code = os.waitstatus_to_exitcode(int(status)) if status else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
