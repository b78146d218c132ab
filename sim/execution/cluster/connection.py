"""Connection to a Ray cluster, or a start of Ray on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from p2pfl.errors import ConfigurationError, MissingRequirementError, RunError
from p2pfl.system.usable_cores import usable_cores

# Ray reads these when it is imported or started. The second one silences a warning about GPUs; without the third one workers
# yield to all other programs of the machine.
_DEFAULTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}

PATIENCE = 10.0  # seconds for the first connection to a cluster


@contextmanager
def connect(address: str, processors: int | None) -> Iterator[Any]:
    """Connect this program to a cluster, and yield the module `ray`.

    Args:
        address: host:port or `auto`; "" starts Ray on this machine until the block ends.
        processors: number of processes that a start on this machine may use; by default one for each core that this process
            may use.

    Raises:
        ConfigurationError: Ray is not installed, or the address is not supported.
        RunError: the cluster cannot be reached, or does not accept this program.
    """
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"the engine ray does not support Ray Client ({address}); run p2pfl-sim on a machine of the cluster, or"
            " submit it with `ray job submit`"
        )
    if address and address != "auto":
        _check_address(address)
    os.environ.update({key: value for key, value in _DEFAULTS.items() if key not in os.environ})
    main = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM) if main else None
    try:
        import ray
    except ImportError as error:
        raise MissingRequirementError("--engine ray needs Ray: pip install 'p2pfl-node[sim,ray]'") from error
    local = {"num_cpus": processors or usable_cores(), "include_dashboard": False}
    try:
        ray.init(address=address or "local", logging_level=logging.ERROR, **({} if address else local))
    except Exception as error:  # Ray raises this class itself if its processes do not start in time
        reason = str(error).strip().partition("\n")[0]
        raise RunError(f"cannot use the Ray cluster {address or 'of this machine'}: {reason}") from error
    if main:
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray has replaced it
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise an error if no program listens at the address; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"the address of a Ray cluster is host:port or auto, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise RunError(f"cannot use the Ray cluster {address}: {error.strerror or error}") from error
