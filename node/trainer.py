"""Execution of a node's computations. On a machine they run in a thread, so that the node can serve its peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

import numpy as np

from p2pfl.learner import Learner
from p2pfl.queries import Query, R
from p2pfl.task import StatefulLearner


class Trainer(Protocol):
    """Runner of a node's learner."""

    def submit(self, query: Query[R]) -> Awaitable[R]:
        """Return an awaitable of the learner's answer to a query.

        An answer that is not urgent may be awaited after the next round has begun.

        Raises:
            ConfigurationError: the learner does not support this query.
        """

    def learner_state(self) -> Mapping[str, np.ndarray]:
        """Return the learner's state (see p2pfl.task.StatefulLearner) while it is not training."""

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Restore the learner's state, before its first training."""


class ThreadTrainer:
    """Trainer that runs a learner in its own thread, with one thread for torch, so that equal seeds give equal bits."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="train", initializer=_one_torch_thread)

    def submit(self, query: Query[R]) -> Awaitable[R]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._learner.compute, query)

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
