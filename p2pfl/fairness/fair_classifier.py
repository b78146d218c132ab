"""Plain classifier without a preference, reported with the measures of PraFFL as its baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.algorithms.group_statistics import GroupCounts
from p2pfl.fairness.metrics import covariance_loss, decide, demographic_parity, mix_logits, tally_of
from p2pfl.fairness.praffl_model import ALSO
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.multiobjective.preferences import validate_preference
from p2pfl.multiobjective.scalarisation import Objectives
from p2pfl.parameters import Parameters
from p2pfl.pareto_metrics import Solutions
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams

Reported = Literal["model", "constant", "both"]


@dataclass(frozen=True)
class Loss:
    """Mean binary cross-entropy plus a penalty of unfairness: (logits [n, 1], label and group [n, 2]) -> [1].

    Targets may have one more column: the weight of each sample in the cross-entropy (see p2pfl.update_rules.Weighted).

    Attributes:
        groups: number of groups.
        penalty: factor of PraFFL's fairness loss (eq. 3).
    """

    groups: int
    penalty: float = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, labels, groups = outputs[:, 0], targets[:, 0], targets[:, 1]
        own = targets[:, 2] if targets.shape[1] > 2 else None
        loss = functional.binary_cross_entropy_with_logits(logits, labels, own)
        if self.penalty:
            loss = loss + self.penalty * covariance_loss(torch.sigmoid(logits), groups, self.groups)
        return loss.unsqueeze(0)


@dataclass
class FairClassifier(TorchTask):
    """A TorchTask whose targets are label and group, float32 [n, 2].

    It reports `hypervolume`, `smallest_error` and `smallest_disparity`. The hypervolume is that of the single point of
    its error and its disparity (eq. 2), with the reference point (1, 1): (1 - error) (1 - disparity).

    The constant classifier gives all samples of a split their more frequent label; its disparity is 0.

    Attributes:
        groups: number of groups.
        reported: the measured points: the "model", the "constant" classifier instead, or "both" together.
        kept: criterion for the resulting model of a run: the lowest validation "loss", or the greatest validation
            "hypervolume", for models that are trained to be fair.
    """

    groups: int = 2
    reported: Reported = "model"
    kept: Literal["loss", "hypervolume"] = "loss"
    extra_metrics: tuple[str, ...] = ALSO

    @property
    def goals(self) -> Mapping[str, bool]:
        return {}

    def figures(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        decisions, labels = decide(torch.sigmoid(outputs[:, 0])), targets[:, 0]
        error = (decisions != labels).to(outputs.dtype).mean()
        disparity = demographic_parity(decisions, labels, targets[:, 1], self.groups, "mean")
        volume = (1 - error) * (1 - disparity)
        if self.reported != "model":
            positive = labels.mean()
            constant = torch.minimum(positive, 1 - positive)  # its error
            own = self.reported == "both"
            volume = 1 - constant + (own * (constant - error).clamp_min(0) * (1 - disparity))
            error, disparity = torch.minimum(error, constant) if own else constant, torch.zeros_like(disparity)
        loss = self.batch_loss(outputs, targets, weights) if self.kept == "loss" else 1 - volume
        return {"loss": loss, self.metric: volume, "smallest_error": error, "smallest_disparity": disparity}

    def solutions(self, params: Parameters) -> Solutions | None:
        """Return error and disparity on the test data, without a preference; None for several points."""
        if "test" not in self.data or not len(self.data["test"].x) or self.reported == "both":
            return None
        (found,) = self.learner(RandomStreams(0, "")).evaluate([params], ["test"])
        point = np.array([[found["test_smallest_error"], found["test_smallest_disparity"]]])
        return Solutions({"error": False, "disparity": False}, np.empty((1, 0)), point)

    def tally(self, outputs: Tensor, targets: Tensor) -> GroupCounts:
        """Return the statistics of a model with these outputs by label and group."""
        return tally_of(outputs[:, 0], targets[:, 0], targets[:, 1], self.groups)

    def mix_logits(self, outputs: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
        """Return the logits of several models combined; see p2pfl.fairness.metrics."""
        return mix_logits(outputs, shares)


def classifier(
    module: Callable[[], nn.Module], data: Mapping[Split, Samples], groups: int, penalty: float = 0.0, **options: Any
) -> FairClassifier:
    """Make a FairClassifier.

    Args:
        module: makes the torch module.
        data: samples by split.
        groups: number of groups.
        penalty: see `Loss`.
        options: further attributes of FairClassifier.
    """
    objectives = Objectives(("loss",), Loss(groups, penalty))
    return FairClassifier(
        module,
        data,
        metric="hypervolume",
        objectives=objectives,
        preference=validate_preference("preference", [1.0], 1),
        groups=groups,
        **options,
    )
