"""Mosquitto broker for one test, if it is installed."""

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

PATIENCE = 60  # seconds of real time after which something has gone wrong


def program():
    found = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
    if found is None:
        pytest.skip("Mosquitto is not installed")
    return found


@contextmanager
def mosquitto(folder, port, *lines):
    """Run a broker on a port of loopback; yield its process. Without `lines` everything is allowed."""
    config = folder / "mosquitto.conf"
    own = [f"listener {port} 127.0.0.1", "max_qos 0", "persistence false"]
    own.append("user root")  # it matters only if root starts the broker
    config.write_text("\n".join([*own, *(lines or ["allow_anonymous true"])]) + "\n")
    with (folder / "mosquitto.log").open("wb") as log:
        broker = subprocess.Popen([program(), "-c", str(config)], stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + PATIENCE
        while not answers(port):
            assert broker.poll() is None, (folder / "mosquitto.log").read_text()
            assert time.monotonic() < deadline, "the broker does not come up"
            time.sleep(0.02)  # real time: this is a real process
        yield broker
    finally:
        broker.terminate()
        broker.wait(PATIENCE)


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
