"""How a node's computations are run: in a thread on a real machine, so that it goes on serving meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np

from p2pfl.memory import Company
from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.policy import Split
from p2pfl.rules import Rule
from p2pfl.slopes import Slopes
from p2pfl.tally import Tally
from p2pfl.task import Keeper, Learner, evaluate, slopes, tally, train

T = TypeVar("T")


class Trainer(Protocol):
    """The methods of p2pfl's Learner and `weighted_mean`, to be awaited."""

    def train(
        self,
        params: Parameters,
        *,
        round: int,
        epochs: int = 1,
        proximal: tuple[float, Parameters] | None = None,
        purpose: str = "train",
        rule: Rule | None = None,
    ) -> Awaitable[Parameters]: ...

    def mean(self, models: Sequence[Parameters], weights: Sequence[float]) -> Awaitable[Parameters]: ...

    def loss(self, stack: Sequence[Parameters], *, split: Split) -> Awaitable[np.ndarray]: ...

    def evaluate(
        self, stack: Sequence[Parameters], splits: Sequence[Split], memory: Company | None = None
    ) -> Awaitable[list[dict[str, float]]]:
        """Begin at once or when it suits; the result need not be awaited before the next round."""

    def tally(self, params: Parameters) -> Awaitable[Tally]: ...

    def slopes(self, params: Parameters) -> Awaitable[Slopes]: ...

    def compute(self, work: Callable[[], T]) -> Awaitable[T]:
        """Do other work with models, and return what it returns."""

    def kept(self) -> Mapping[str, np.ndarray]:
        """Return what the learner keeps from round to round (see p2pfl.task.Keeper), while it is not training."""

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Give the learner back what it kept, before its first training."""


class ThreadTrainer:
    """Runs a learner in one thread of its own, with one thread for torch (so that equal seeds give equal bits)."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="train", initializer=_one_torch_thread)

    def train(
        self,
        params: Parameters,
        *,
        round: int,
        epochs: int = 1,
        proximal: tuple[float, Parameters] | None = None,
        purpose: str = "train",
        rule: Rule | None = None,
    ) -> Awaitable[Parameters]:
        return self._run(
            lambda: train(self._learner, params, round=round, epochs=epochs, proximal=proximal, purpose=purpose, rule=rule)
        )

    def mean(self, models: Sequence[Parameters], weights: Sequence[float]) -> Awaitable[Parameters]:
        return self._run(lambda: weighted_mean(models, weights))

    def loss(self, stack: Sequence[Parameters], *, split: Split) -> Awaitable[np.ndarray]:
        return self._run(lambda: self._learner.loss(stack, split=split))

    def evaluate(
        self, stack: Sequence[Parameters], splits: Sequence[Split], memory: Company | None = None
    ) -> Awaitable[list[dict[str, float]]]:
        return self._run(lambda: evaluate(self._learner, stack, splits, memory))

    def tally(self, params: Parameters) -> Awaitable[Tally]:
        return self._run(lambda: tally(self._learner, params))

    def slopes(self, params: Parameters) -> Awaitable[Slopes]:
        return self._run(lambda: slopes(self._learner, params))

    def compute(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._run(work)

    def kept(self) -> Mapping[str, np.ndarray]:
        return self._learner.state() if isinstance(self._learner, Keeper) else {}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        if isinstance(self._learner, Keeper):
            self._learner.restore(kept)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)


def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)
