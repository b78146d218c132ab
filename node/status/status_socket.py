"""Status of a running node over a Unix socket in its folder, for its owner only.

The status is therefore available even if the file cannot be written, for example on a full disk. If the system has no
Unix sockets, or the folder's path is too long for one, only the file is available.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from p2pfl.protocols.transports.listener import accept_from
from p2pfl.system.disk import PRIVATE

NAME = "status.sock"
PATIENCE = 2.0  # seconds for an answer
LARGEST = 2**24  # maximum bytes of an answer


async def answer(folder: Path, make: Callable[[], bytes]) -> None:
    """Send the value of `make` to each client in turn until cancelled; return if there can be no socket."""
    listening = _listening(folder / NAME)
    if listening is None:
        return
    loop = asyncio.get_running_loop()
    try:
        with listening:
            while True:
                try:
                    link, _ = await accept_from(listening)
                    with link:
                        async with asyncio.timeout(PATIENCE / 2):  # so that a client that does not read blocks no other
                            await loop.sock_sendall(link, make())
                except TimeoutError:
                    continue
                except OSError:  # the client has gone, or there are no free descriptors
                    await asyncio.sleep(0.1)
    finally:
        with suppress(OSError):
            (folder / NAME).unlink()


def ask(folder: Path) -> dict[str, Any] | None:
    """Return the status of the node that runs in a folder; None if it does not answer."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    end = time.monotonic() + PATIENCE
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(PATIENCE)
            link.connect(str(folder / NAME))
            content = bytearray()
            while len(content) <= LARGEST and (part := link.recv(2**16)):
                content += part
                link.settimeout(max(0.001, end - time.monotonic()))
        found = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _listening(path: Path) -> socket.socket | None:
    """Return a socket that listens in a new file; None if that is not possible."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:  # a service that may not open sockets
        return None
    try:
        path.unlink(missing_ok=True)  # a file left by a crash; no other process runs this node
        listening.bind(str(path))
        path.chmod(PRIVATE)  # no client can connect before it listens
        listening.listen()
        listening.setblocking(False)
    except OSError:
        listening.close()
        return None
    return listening
