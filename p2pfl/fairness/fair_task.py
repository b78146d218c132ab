"""Tasks that train a relaxed fairness between groups and report the exact one, and the plain classifier of PraFFL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.algorithms.group_statistics import GroupCounts
from p2pfl.fairness import metrics
from p2pfl.fairness.praffl import ALSO
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.multiobjective.preferences import validate_preference
from p2pfl.multiobjective.scalarisation import Objectives
from p2pfl.parameters import Parameters
from p2pfl.pareto_metrics import Points, Solutions
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams

Measure = Literal["demographic-parity", "equal-opportunity", "equalised-odds"]
Kind = Literal["tanh", "covariance"]
Output = Literal["logit", "sigmoid"]
SHORT = {"demographic-parity": "parity", "equal-opportunity": "opportunity", "equalised-odds": "odds"}  # column names
COUNTED = {"demographic-parity": (), "equal-opportunity": (1,), "equalised-odds": (1, 0)}  # labels of each measure
Reported = Literal["model", "constant", "both"]


@dataclass(frozen=True)
class FairLosses:
    """The accuracy loss, and one loss for each attribute: (logits [n, 1], targets [n, 1 + A]) -> [1 + A].

    Targets are the label, and the number of the group by each attribute. They may have one more column: the weight of
    each sample in the accuracy loss (see p2pfl.update_rules.Weighted).

    Attributes:
        counts: number of groups of each attribute.
        measure: the relaxed measure, if `kind` is "tanh".
        kind: "tanh" (see p2pfl.fairness.metrics.relax), or PraFFL's "covariance".
        sharpness: c of the relaxation.
        share: factor of the accuracy loss that is added to the other losses.
        initial: divisors of the losses, [1 + A]; none if empty.
        output: "sigmoid" if the model's outputs are probabilities. The accuracy loss uses them like logits, as the
            dissertation states for its experiments.
    """

    counts: tuple[int, ...]
    measure: Measure
    kind: Kind
    sharpness: float
    share: float
    initial: tuple[float, ...] = ()
    output: Output = "logit"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, labels = outputs[:, 0], targets[:, 0]
        own = targets[:, -1] if targets.shape[1] > 1 + len(self.counts) else None
        accuracy = functional.binary_cross_entropy_with_logits(logits, labels, own)
        probabilities = probabilities_of(logits, self.output)
        losses = [accuracy]
        for column, count in enumerate(self.counts, 1):
            losses.append(self._unfairness(probabilities, labels, targets[:, column], count) + self.share * accuracy)
        found = torch.stack(losses)
        return found / torch.tensor(self.initial, device=found.device) if self.initial else found

    def _unfairness(self, probabilities: Tensor, labels: Tensor, groups: Tensor, count: int) -> Tensor:
        if self.kind == "covariance":
            return metrics.covariance_loss(probabilities, groups, count)
        return metrics.MEASURES[self.measure](metrics.relax(probabilities, self.sharpness), labels, groups, count, "groups")


def probabilities_of(outputs: Tensor, output: Output) -> Tensor:
    """Return the probabilities of the positive class for a model's outputs."""
    return torch.sigmoid(outputs) if output == "logit" else outputs


def lacking_notes(measure: Measure, attributes: Sequence[str], targets: Tensor) -> tuple[str, ...]:
    """Return a note on each figure that leaves out groups because they lack a label that counts.

    Args:
        attributes: names of the sensitive attributes.
        targets: of the test samples: label and groups, [n, 1 + A].
    """
    notes = []
    for column, name in enumerate(attributes, 1):
        groups = {label: set(targets[targets[:, 0] == label, column].tolist()) for label in (0, 1)}
        every = groups[0] | groups[1]
        for label in COUNTED[measure]:
            if lacking := len(every - groups[label]):
                notes.append(
                    f"{SHORT[measure]}_{name} leaves out {lacking} of {len(every)} groups, which have no test sample of"
                    f" label {label}; fairlearn would count their rate as 0"
                )
    return tuple(notes)


@dataclass
class FairTask(TorchTask):
    """A TorchTask that trains relaxed losses and reports accuracy and fairness of decisions: 1 minus the difference.

    Fairness is reported by measure and attribute: `parity_sex`, `opportunity_race`, `odds_sex`.

    Attributes:
        attributes: names of the sensitive attributes.
        counts: number of groups of each attribute.
        measured: the reported measure.
        against: the reference of a group; see p2pfl.fairness.metrics.
        output: see FairLosses.
    """

    attributes: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    measured: Measure = "demographic-parity"
    against: metrics.Against = "groups"
    output: Output = "logit"

    @property
    def goals(self) -> Mapping[str, bool]:
        return {"accuracy": True} | {f"{SHORT[self.measured]}_{name}": True for name in self.attributes}

    @property
    def reference(self) -> tuple[float, ...]:
        """Reference point of the hypervolume: accuracy 0, and the greatest possible difference between groups."""
        return (0.0,) * (1 + len(self.attributes))

    @property
    def constant(self) -> tuple[float, ...]:
        """Accuracy and fairness of the classifier that gives all test samples the more frequent label, [1 + A]."""
        labels = self.data["test"].y[:, 0] if "test" in self.data else torch.empty(0)
        if not len(labels):
            return ()
        positive = float(labels.double().mean())
        return (max(positive, 1 - positive), *(1.0 for _ in self.attributes))

    def counts_for_front(self, points: Points) -> NDArray[np.bool_]:
        """Return which solutions count, [n]: those with a fairness that a trained model can have."""
        return metrics.has_converged(points[:, 1:])

    def tally(self, outputs: Tensor, targets: Tensor) -> GroupCounts:
        """Return the statistics of a model with these outputs by label and group of the first attribute."""
        logits = outputs if self.output == "logit" else torch.logit(outputs, 1e-7)
        return metrics.tally_of(logits[:, 0], targets[:, 0], targets[:, 1], self.counts[0])

    def mix_logits(self, outputs: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
        """Return the outputs of several models combined; see p2pfl.fairness.metrics."""
        if self.output == "sigmoid":
            return torch.stack([share * each for each, share in zip(outputs, shares, strict=True)]).sum(0)
        return metrics.mix_logits(outputs, shares)

    def figures(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        loss = self.batch_loss(outputs, targets, weights)
        decisions, labels = metrics.decide(probabilities_of(outputs[:, 0], self.output)), targets[:, 0]
        found = {"loss": loss, self.metric: -loss, "accuracy": (decisions == labels).to(loss.dtype).mean()}
        for column, (name, count) in enumerate(zip(self.attributes, self.counts, strict=True), 1):
            difference = metrics.MEASURES[self.measured](decisions, labels, targets[:, column], count, self.against)
            found[f"{SHORT[self.measured]}_{name}"] = 1 - difference
        return found


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
            loss = loss + self.penalty * metrics.covariance_loss(torch.sigmoid(logits), groups, self.groups)
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
        decisions, labels = metrics.decide(torch.sigmoid(outputs[:, 0])), targets[:, 0]
        error = (decisions != labels).to(outputs.dtype).mean()
        disparity = metrics.demographic_parity(decisions, labels, targets[:, 1], self.groups, "mean")
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
        return metrics.tally_of(outputs[:, 0], targets[:, 0], targets[:, 1], self.groups)

    def mix_logits(self, outputs: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
        """Return the logits of several models combined; see p2pfl.fairness.metrics."""
        return metrics.mix_logits(outputs, shares)


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
