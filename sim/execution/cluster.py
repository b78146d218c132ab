"""Engine `ray`: dispatch of runs to the workers of a Ray cluster, or of a Ray that is started on this machine.

A job is a task of Ray, whose messages arrive as a stream. A run whose worker is lost starts again on another one, at most
MOST_LOSSES times in all, because a run that needs too much memory would end one worker after another. See
p2pfl.sim.execution.cluster_worker for the other side.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from p2pfl._util.machine import usable_cores
from p2pfl.data.image_sets import ROOT
from p2pfl.errors import ConfigurationError, DivergenceError, MissingRequirementError, RunError
from p2pfl.sim.execution.cluster_worker import Job, WorkerSettings, decode, encode, resources_of, run_job
from p2pfl.sim.execution.probe import ProbeResult, probe
from p2pfl.sim.execution.run_order import Listener, Outcomes, RunOrder, divide_processes
from p2pfl.sim.execution.snapshots import Snapshot
from p2pfl.sim.results.results import Result
from p2pfl.sim.simulation.workers import WorkerLostError

MOST_LOSSES = 3  # of one run; its own code may be what ends its workers
# Ray reads these when it is imported or started. The second one silences a warning about GPUs; without the third one workers
# yield to all other programs of the machine.
_DEFAULTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}
PATIENCE = 10.0  # seconds for the first connection to a cluster


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the engine `ray`.

    Attributes:
        address: of the cluster, host:port or `auto`; "" starts Ray on this machine.
        allow_different_bits: use machines whose CPU or torch computes other last bits than this machine.
    """

    address: str = ""
    allow_different_bits: bool = False


ON_THIS_MACHINE = ClusterOptions()


def run_in_cluster(
    orders: Mapping[int, RunOrder],
    path: Sequence[str],
    most: int | None,
    listener: Listener,
    options: ClusterOptions,
    *,
    finish_others: bool = False,
) -> dict[int, Result]:
    """Run jobs on the machines of a cluster.

    Args:
        path: folders to search for modules of the scenario, on every machine.
        most: maximum number of runs in progress; by default as many as the cluster has processors for.
        finish_others: see p2pfl.sim.execution.runner.run_all.

    Returns:
        The results by the numbers of their jobs.

    Raises:
        ConfigurationError: Ray is not installed, or a job cannot be sent to other machines.
        RunError: the cluster or one of its machines cannot be used, or a run cannot continue.
    """
    with connect(options.address, most) as ray:
        processors = int(ray.cluster_resources().get("CPU", 0))
        divided = divide_processes(orders, min(processors, most or processors), explain=most is not None)
        dispatcher = _Dispatcher(ray, divided, listener, options, path=tuple(path), most=most, finish_others=finish_others)
        return dispatcher.run()


@dataclass
class _Attempt:
    """A job in a worker.

    Attributes:
        done: node-rounds that this attempt has reported.
        machine: the probe of the worker's machine; None until the run begins.
    """

    number: int
    done: int = 0
    machine: ProbeResult | None = None


class _Dispatcher:
    """Jobs that wait, and the streams of those in progress."""

    def __init__(
        self,
        ray: Any,
        orders: Mapping[int, RunOrder],
        listener: Listener,
        options: ClusterOptions,
        *,
        path: tuple[str, ...],
        most: int | None,
        finish_others: bool,
    ) -> None:
        self._ray = ray
        self._orders = orders
        self._path = path
        self._most = most or len(orders)
        self._listener = listener
        self._options = options
        self._waiting = deque(orders)
        self._active: dict[Any, _Attempt] = {}
        self._reported = Counter[int]()  # node-rounds by job
        self._losses = Counter[int]()
        self._outcomes = Outcomes(listener, finish_others)

    def run(self) -> dict[int, Result]:
        """Return the results by the numbers of their jobs, in order."""
        while self._waiting or self._active:
            while self._waiting and len(self._active) < self._most:
                self._submit(self._waiting.popleft())
            ready, _ = self._ray.wait(list(self._active), num_returns=1)
            for stream in ready:
                self._follow(stream, self._active[stream])
        found = self._outcomes.all()
        return {number: found[number] for number in self._orders}

    def _submit(self, number: int) -> None:
        order = self._orders[number]
        device = order.job.device
        settings = WorkerSettings(self._path, os.environ.get(ROOT, ""), probe(device), self._options.allow_different_bits)
        options = {**resources_of(device), "num_returns": "streaming", "max_retries": 0, "scheduling_strategy": "SPREAD"}
        task = self._ray.remote(**options)(run_job)
        self._active[task.remote(encode(Job(order, settings)))] = _Attempt(number)

    def _follow(self, stream: Any, attempt: _Attempt) -> None:
        """Handle the next message of a stream."""
        try:
            message = decode(self._ray.get(next(stream)))
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"Ray cannot run a task: {str(error).strip().splitlines()[-1]}") from error
        except (StopIteration, self._ray.exceptions.RayError) as error:
            self._lost(stream, attempt, type(error).__name__)
            return
        if isinstance(message, WorkerLostError):
            self._lost(stream, attempt, message.reason())
        elif isinstance(message, DivergenceError):
            del self._active[stream]
            self._outcomes.add(attempt.number, message)
        elif isinstance(message, Exception):
            raise message
        else:
            self._received(stream, attempt, message)

    def _received(self, stream: Any, attempt: _Attempt, message: ProbeResult | int | Snapshot | Result) -> None:
        number = attempt.number
        if isinstance(message, ProbeResult):
            attempt.machine = message
            if not self._losses[number]:
                self._listener.begun(number)
        elif isinstance(message, int):
            attempt.done += message
            if (new := attempt.done - self._reported[number]) > 0:  # otherwise a lost worker has already reported them
                self._reported[number] = attempt.done
                self._listener.progress(new)
        elif isinstance(message, Snapshot):
            self._listener.tell(number, message)
        else:
            del self._active[stream]
            message.notes.extend(self._notes(attempt))
            self._outcomes.add(number, message)

    def _lost(self, stream: Any, attempt: _Attempt, reason: str) -> None:
        """Let the job wait for another worker.

        Raises:
            WorkerLostError: it has lost too many.
        """
        del self._active[stream]
        self._losses[attempt.number] += 1
        if self._losses[attempt.number] == MOST_LOSSES:
            job = self._orders[attempt.number].job
            lost = WorkerLostError(f"its worker was lost {MOST_LOSSES} times ({reason}); it may need more memory")
            lost.run = f"run {job.name!r}, seed {job.seed}"
            raise lost
        self._waiting.append(attempt.number)

    def _notes(self, attempt: _Attempt) -> list[str]:
        """Return notes about the worker of a finished job."""
        job, notes = self._orders[attempt.number].job, []
        if losses := self._losses[attempt.number]:
            times = "once" if losses == 1 else f"{losses} times"
            notes.append(f"{job.name}, seed {job.seed} started again {times}, because its worker was lost")
        here = probe(job.device)
        if attempt.machine is not None and attempt.machine.digest != here.digest:
            notes.append(f"{attempt.machine} computed runs whose last bits differ from those of {here}")
        return notes


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
