"""Shards of one run as actors of a cluster. They count the bytes that travel."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from typing import Any

from p2pfl.sim.execution.cluster.messages import decode, encode
from p2pfl.sim.execution.cluster.worker_settings import WorkerSettings, prepare_worker
from p2pfl.sim.execution.probe import ProbeResult, probe
from p2pfl.sim.formatting import size
from p2pfl.sim.simulation.sharding import Shard, ShardServer
from p2pfl.sim.simulation.workers import WorkerLostError

PATIENCE = 60.0  # seconds until a run continues with the shards that have started


def resources_of(device: str) -> dict[str, Any]:
    """Return the resources of Ray that a run or a shard on a device of torch needs."""
    return {"num_cpus": 1, "num_gpus": 0 if device == "cpu" else 1}


class ShardActor:
    """The class of an actor of Ray: a shard that takes and returns bytes.

    Args:
        settings: WorkerSettings, encoded.
    """

    def __init__(self, settings: bytes) -> None:
        prepare_worker(decode(settings))
        self._server = ShardServer()

    def probe(self, device: str) -> bytes:
        """Return the probe of its machine."""
        return encode(probe(device))

    def answer(self, message: bytes) -> bytes:
        """Return the seconds of a computation, and its result or its exception; see ShardServer."""
        job, begun = decode(message), time.perf_counter()
        try:
            found = self._server.answer(job)
        except Exception as error:
            error.add_note(traceback.format_exc())  # a traceback does not travel
            found = error
        return encode((time.perf_counter() - begun, found))


class RayShard:
    """A shard, as seen from the run.

    Attributes:
        actor: handle of Ray.
        bytes: sent to and received from the actor.
        computed: seconds of its computations.
        elapsed: seconds from messages to their answers.
    """

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self._answer: Any = None
        self.bytes = 0
        self.computed = self.elapsed = 0.0

    def give(self, message: Any) -> None:
        self._begun = time.perf_counter()
        data = encode(message)
        self.bytes += len(data)
        self._answer = self.actor.answer.remote(data)

    def take(self) -> Any:
        import ray

        try:
            data = ray.get(self._answer)
        except ray.exceptions.RayError as error:
            raise WorkerLostError(f"a shard of the run was lost: {type(error).__name__}") from error
        seconds, result = decode(data)
        self.bytes += len(data)
        self.computed += seconds
        self.elapsed += time.perf_counter() - self._begun
        return result


class RayShards:
    """Actors on the machines of the cluster; see p2pfl.sim.simulation.sharding.ShardSource.

    Args:
        device: of the run.
    """

    def __init__(self, settings: WorkerSettings, device: str) -> None:
        self._settings = settings
        self._device = device
        self._shards: list[RayShard] = []
        self._actors: list[Any] = []

    def start(self, most: int) -> Sequence[Shard]:
        """Return the shards that start in time; the cluster may have lost machines since the run was planned.

        Raises:
            RunError: a machine must not be used; see WorkerSettings.check.
        """
        import ray

        make = ray.remote(**resources_of(self._device), max_restarts=0, scheduling_strategy="SPREAD")(ShardActor)
        settings = encode(self._settings)
        self._actors = [make.remote(settings) for _ in range(most)]
        probes = {actor.probe.remote(self._device): actor for actor in self._actors}
        ready, _ = ray.wait(list(probes), num_returns=most, timeout=PATIENCE)
        for answer in ready:
            try:
                found = decode(ray.get(answer))
            except ray.exceptions.RayActorError:  # lost with its machine
                continue
            assert isinstance(found, ProbeResult)
            self._settings.check(found)
            self.add(RayShard(probes[answer]))
        used = {id(shard.actor) for shard in self._shards}
        for actor in self._actors:
            if id(actor) not in used:
                ray.kill(actor)
        return self._shards

    def add(self, shard: RayShard) -> None:
        """Count a shard in the notes."""
        self._shards.append(shard)

    def end(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def notes(self) -> list[str]:
        """Return a note if sending models took longer than the shards computed."""
        computed = sum(shard.computed for shard in self._shards)
        sending = sum(shard.elapsed for shard in self._shards) - computed
        if sending <= computed:
            return []
        travelled = size(sum(shard.bytes for shard in self._shards))
        return [
            f"dividing this run did not pay: {travelled} of models went to other workers and back, which took"
            f" {sending:.1f} s for {computed:.1f} s of computation; give --workers the number of runs"
        ]
