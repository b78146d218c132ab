"""Sizes of a node's batches.

Some modules need several samples in a batch. With one sample, batch norm has no variance: torch refuses it, and a
module's own code divides by 0. A last batch that is too small for the module therefore joins the batch before.
"""

from __future__ import annotations

import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.learning.torch_problem import TorchProblem
from p2pfl.update_rules import Lookahead, Rule


def batch_sizes(counts: np.ndarray, batch_size: int, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of full batches of some nodes, and the sizes of the last batches after them, which may be 0.

    Args:
        counts: number of samples of each node.
        least: fewest samples of a batch; a smaller last one joins the batch before.
    """
    full, last = np.divmod(counts, batch_size)
    joined = (full > 0) & (last > 0) & (last < least)
    return full - joined, last + batch_size * joined


def least_batch(task: TorchProblem, rule: Rule | None) -> int:
    """Return the fewest samples of a batch that a task's module needs in a training."""
    least = task.conduct.least
    return 2 * least - 1 if isinstance(rule, Lookahead) else least  # which takes two gradients, on half a batch each


def check_sizes(task: TorchProblem, node: str) -> None:
    """Raise ConfigurationError if a node has too few samples, or too small batches, for its module."""
    conduct, name = task.conduct, type(task.template).__name__
    check_batches(task, node, task.n_samples, task.batch_size, conduct.least)
    for split, (x, _) in task.data.items():
        if 0 < len(x) < conduct.least_evaluated:
            raise ConfigurationError(
                f"{node} has {len(x)} sample in its {split} data, but module {name} evaluates at least"
                f" {conduct.least_evaluated} together; give the node more samples, or use GroupNorm, LayerNorm, or batch"
                " norm with running statistics"
            )


def check_batches(task: TorchProblem, node: str, n: int, batch_size: int, least: int) -> None:
    """Raise ConfigurationError if batches of n samples of a node are smaller than `least`."""
    if least > 1 and min(n, batch_size) < least:
        name = type(task.template).__name__
        few, remedy = (
            (f"{n} training sample{'s' * (n > 1)}", "give the node more samples")
            if n < least
            else (f"batch_size = {batch_size}", f"set batch_size to at least {least}")
        )
        raise ConfigurationError(
            f"{node} has {few}, but module {name} needs batches of at least {least}, as batch norm does; {remedy}, or use"
            " GroupNorm or LayerNorm"
        )
