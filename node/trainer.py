"""Execution of a node's computations. On a machine they run in a thread, so that the node can serve its peers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

import numpy as np

from p2pfl.budget import Effort
from p2pfl.learner import Learner
from p2pfl.node.energy import EnergyCounters, Meter
from p2pfl.queries import Query, R, Train
from p2pfl.task import StatefulLearner


class Trainer(Protocol):
    """Runner of a node's learner."""

    def submit(self, query: Query[R]) -> Awaitable[R]:
        """Return an awaitable of the learner's answer to a query.

        An answer that is not urgent may be awaited after the next round has begun.

        Raises:
            ConfigurationError: the learner does not support this query.
        """

    def used(self) -> Effort:
        """Return what the trainings so far have cost."""

    def joules(self, samples: int) -> float | None:
        """Return the joules that a training on a number of samples will use; None if unknown."""

    def learner_state(self) -> Mapping[str, np.ndarray]:
        """Return the learner's state (see p2pfl.task.StatefulLearner) while it is not training."""

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Restore the learner's state, before its first training."""


class ThreadTrainer:
    """Trainer that runs a learner in its own thread, with one thread for torch, so that equal seeds give equal bits.

    Args:
        meter: measures what trainings cost; by default with the clock and the energy counters of this machine.
        samples: returns the number of samples that a training takes.

    Attributes:
        meter: see above.
    """

    def __init__(
        self, learner: Learner, meter: Meter | None = None, samples: Callable[[Train], int] = lambda query: query.epochs
    ) -> None:
        self._learner = learner
        self.meter = Meter(time.monotonic, EnergyCounters()) if meter is None else meter
        self._samples = samples
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="train", initializer=_one_torch_thread)

    def submit(self, query: Query[R]) -> Awaitable[R]:
        compute = self._learner.compute
        run = partial(self._measure, query) if isinstance(query, Train) else partial(compute, query)
        return cast("Awaitable[R]", asyncio.get_running_loop().run_in_executor(self._thread, run))

    def _measure(self, query: Train) -> object:
        return self.meter.run(partial(self._learner.compute, query), self._samples(query))

    def used(self) -> Effort:
        return self.meter.used

    def joules(self, samples: int) -> float | None:
        return self.meter.joules(samples)

    def learner_state(self) -> Mapping[str, np.ndarray]:
        return self._learner.state() if isinstance(self._learner, StatefulLearner) else {}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        if isinstance(self._learner, StatefulLearner):
            self._learner.restore(kept)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _one_torch_thread() -> None:
    with suppress(ModuleNotFoundError):  # a node without torch
        import torch

        torch.set_num_threads(1)
