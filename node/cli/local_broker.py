"""Local broker for trials: Mosquitto if it is installed, otherwise amqtt, which is written in Python."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from p2pfl.errors import ConfigurationError

STARTING = 30.0  # seconds for the broker to answer
_MOSQUITTO = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"


@contextmanager
def local_broker() -> Iterator[str]:
    """Run a broker without access rules on a free port of loopback; yield its URL.

    Raises:
        ConfigurationError: neither broker is installed, or it does not start.
    """
    with ExitStack() as stack:
        port = _free_port()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2pfl-broker-")))
        folder.chmod(0o755)  # Mosquitto drops root privileges before it reads its file
        mosquitto = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
        if mosquitto is not None:
            (folder / "mosquitto.conf").write_text(_MOSQUITTO.format(port=port))
            command = [mosquitto, "-c", str(folder / "mosquitto.conf")]
        elif find_spec("amqtt") is not None:
            command = [sys.executable, "-m", "p2pfl.node.cli.local_broker", str(port)]
        else:
            raise ConfigurationError(
                "no MQTT broker is installed: apt install mosquitto, or pip install 'p2pfl-node[broker]'"
            )
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(process.kill)
        deadline = time.monotonic() + STARTING
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ConfigurationError(f"the broker did not start within {STARTING:g} s: {' '.join(command)}")
            time.sleep(0.05)
        yield f"mqtt://127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


async def _serve(port: int) -> None:
    from amqtt.broker import Broker

    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)  # until the parent process has ended
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
