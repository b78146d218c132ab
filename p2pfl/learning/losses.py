"""Losses and metrics of torch modules: one value for each sample."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

FEW_CLASSES, MANY_SAMPLES = 16, 256  # with fewer classes and this many samples, cross-entropy is faster across samples

PerSample = Callable[[Tensor, Tensor], Tensor]
"""(outputs [n, ...], targets [n, ...]) -> [n]: one value for each sample, so that nodes' samples can be stacked."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of logits [n, classes] with class numbers [n]; shape [n]."""
    if outputs.dim() == 2 and outputs.shape[1] < FEW_CLASSES and len(outputs) >= MANY_SAMPLES:
        # torch's softmax processes a row shorter than a vector register one value at a time.
        return functional.cross_entropy(outputs.t().unsqueeze(0), targets.unsqueeze(0), reduction="none").squeeze(0)
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error, averaged over the outputs of a sample; shape [n]."""
    return (outputs - targets).square().flatten(1).mean(1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 where the greatest logit is the target's, else 0; shape [n]."""
    return (outputs.argmax(1) == targets).float()


def of_each(function: PerSample, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss or metric of K models on n samples each.

    Args:
        function: its form for one model.
        outputs, targets: [K, n, ...].

    Returns:
        [K, n], equal to the values of `function` except for the order of sums.
    """
    if outputs.dim() == 3 and function is cross_entropy:
        return functional.cross_entropy(outputs.mT, targets, reduction="none")
    if outputs.dim() == 3 and function is accuracy:
        greatest = outputs == outputs.amax(2, keepdim=True)
        if greatest.count_nonzero() == targets.numel():  # neither ties nor NaN: a lookup replaces the slower argmax
            return greatest.gather(2, targets.unsqueeze(2)).squeeze(2).float()
    return function(outputs.flatten(0, 1), targets.flatten(0, 1)).view(targets.shape[:2])
