"""Client of the process in tests/support/forked.py; as a script, a command that is run as a copy of that process.

It imports little, because it starts once for each command of a shell block.
"""

import json
import os
import signal
import socket
import sys


def ask(path, arguments, cwd, environment, files):
    """Ask for a copy that runs `python -m` with some arguments.

    Args:
        arguments: the module and its arguments, after "-P" if the current folder is not to be searched for modules.
        path: socket of the process to copy.
        files: file descriptors of standard input, output and error.

    Returns:
        A socket that yields the process ID of the copy, and its exit status when it has ended.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    socket.send_fds(connection, [json.dumps([arguments, os.fspath(cwd), dict(environment)]).encode()], files)
    return connection


def main():
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    connection = ask(sys.argv[1], sys.argv[2:], os.getcwd(), os.environ, [0, 1, 2])  # noqa: PTH109 (pathlib is slow)
    copy = int(connection.recv(32))
    for number in signals:
        signal.signal(number, lambda number, _: os.kill(copy, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    code = os.waitstatus_to_exitcode(int(connection.recv(32)))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
