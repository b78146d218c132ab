"""FedCMOO with preferences: one model for several objectives, whose weights are computed in each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from p2pfl.algorithms.selection import fedavg
from p2pfl.multiobjective.mgda import sketch, weigh
from p2pfl.multiobjective.scalarisation import DifferentiateObjectives, ObjectiveGradients
from p2pfl.parameters import Layout, Parameters, weighted_mean
from p2pfl.policies.coordinated import CoordinatedFedAvg, sender
from p2pfl.policy import Assignment, Extras, Me, Merge, Peers, Submission, built_in, refused_under_privacy
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Rule, Scalarised

MOST_OBJECTIVES = 64
MOST_SIZE = 2**13
MOST = 1e60  # of a loss, or a value of a sketch: far from where inner products overflow


@built_in("fedcmoo")
@dataclass
class FedCmoo(CoordinatedFedAvg):
    """FedCMOO-Pref (Askin et al., "Federated communication-efficient multi-objective optimization", 2024). Hartmann
    compares with it in the fairness benchmarks of "Multi-objective learning in federation" (chapter 5). The elected
    coordinator makes the step. The task must be a TorchTask with several objectives.

    All nodes train one model with a linear combination of the objectives. In each round, the weights follow from the
    mean losses of all nodes and the inner products of their mean gradients. They reduce the objectives whose loss is
    too high. If loss times preference is equal for all objectives, they reduce all together (MGDA). The coordinator
    moves `global_lr` times the distance to the mean of the nodes' models.

    With its model a node submits its losses and its compressed gradients. Its preference does not leave the node: the
    coordinator returns the sums, and each node computes its own weights. (In the paper the server knows the common
    preference and computes them; if all nodes have the same preference, the result is the same.)

    Simplified: weights are computed from the losses and gradients at the model with which the last round began. A round
    therefore needs one exchange instead of two, and all objectives have equal weights in the first round. Gradients are
    those of all training samples, compressed by a count sketch instead of a randomised singular value decomposition.
    EPO search finds the weights by a linear programme. Here the combined gradient is the one nearest to the direction
    that equalises the losses.

    Attributes:
        epochs, ft: see `fedavg`; the fine-tuning uses the last weights.
        global_lr: step size of the coordinator towards the mean; 1 is FedAvg.
        size: number of values of a compressed gradient.
        tolerance: tolerated inequality of losses times preference; see p2pfl.multiobjective.mgda.
        floor: fraction of the weight that is divided equally among all objectives (0.2 in the authors' program).
    """

    needs_start: ClassVar[bool] = True
    global_lr: float = 1.0
    size: int = 1024
    tolerance: float = 0.01
    floor: float = 0.2

    seen: ObjectiveGradients | None = field(default=None, init=False, repr=False)
    now: int = field(default=0, init=False, repr=False)  # the round

    under_privacy = refused_under_privacy("it submits gradients by objective on training data")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.global_lr < inf:
            raise ValueError(f"global_lr must be more than 0, and finite, got {self.global_lr}")
        if not 1 <= self.size <= MOST_SIZE:
            raise ValueError(f"size must be from 1 to {MOST_SIZE}, got {self.size}")
        if not 0 <= self.tolerance < inf:
            raise ValueError(f"tolerance must be 0 or more, and finite, got {self.tolerance}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be from 0 to 1, got {self.floor}")

    async def round(self, me: Me, peers: Peers) -> Merge:
        self.seen, self.now = await me.compute(DifferentiateObjectives(me.params)), me.round
        return await super().round(me, peers)

    def _rule(self, me: Me) -> Rule | None:
        assert self.seen is not None
        count = len(self.seen.losses)
        if "losses" not in self.previous:
            return Scalarised(np.full(count, 1 / count))
        losses, gram = read(self.previous, count)
        return Scalarised(weigh(losses, gram, self.seen.preference, self.tolerance, self.floor))

    def _tuning_rule(self, me: Me) -> Rule | None:
        return self._rule(me)

    def _extras(self) -> Extras:
        """Return losses and gradients at the round's initial model. All nodes use the same sketch."""
        assert self.seen is not None
        common = RandomStreams(0, "fedcmoo").generator(self.now, "sketch")
        return {"losses": self.seen.losses, "gradients": sketch(self.seen.gradients, self.size, common)}

    def _credible(self, extras: Extras, round: int) -> bool:
        assert self.seen is not None
        try:
            read(extras, len(self.seen.losses))
        except ValueError:
            return False
        return len(extras) == 2

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Assign the same model to all, with the mean losses and the inner products of the mean gradients.

        The state is that model; the next step continues from it.

        Raises:
            ValueError: a submission lacks its losses or gradients, or has other objectives; or no submission contains
                the model with which the round began.
        """
        there = sorted(submissions, key=sender)
        weights = fedavg({s.sender: s.n_samples for s in there})
        shares = np.array(list(weights.values()))
        mean = weighted_mean([s.params for s in there], list(weights.values()))
        losses, gradients = _stack_submissions(there)
        summed = np.einsum("n,nmk->mk", shares, gradients)
        extras = {"losses": shares @ losses, "gram": summed @ summed.T}
        model = mean if self.global_lr == 1 else self._further(there, state, mean)
        return {id: Assignment(model, weights, extras) for id in weights}, {"model": model}

    def _further(self, there: Sequence[Submission], state: Mapping[str, Any], mean: Parameters) -> Parameters:
        start = state.get("model")
        if start is None:
            starts = [(s.start, s.n_samples) for s in there if s.start is not None]
            if not starts:
                raise ValueError("no submission has the model that the round began with")
            total = sum(count for _, count in starts)
            start = weighted_mean([model for model, _ in starts], [count / total for _, count in starts])
        further: Parameters = (start + self.global_lr * (mean - start)).astype(np.float32)
        return further


def _within(values: np.ndarray, least: float, most: float) -> bool:
    return bool(((values >= least) & (values <= most)).all())


def _stack_submissions(there: Sequence[Submission]) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of all submissions, [n, m], and their compressed gradients, [n, m, size]."""
    for s in there:
        losses, gradients = s.extras.get("losses"), s.extras.get("gradients")
        if losses is None or gradients is None or losses.ndim != 1 or gradients.ndim != 2:
            raise ValueError(f"the submission of {s.sender} lacks its losses and gradients")
        first = there[0].extras["losses"], there[0].extras["gradients"]
        if losses.shape != first[0].shape or gradients.shape != first[1].shape or len(losses) != len(gradients):
            raise ValueError(f"the submission of {s.sender} has other objectives, or gradients of another size")
        if not 1 <= len(losses) <= MOST_OBJECTIVES or not _within(losses, 0.0, MOST) or not _within(gradients, -MOST, MOST):
            raise ValueError(f"the submission of {s.sender} has losses or gradients out of range")
    stacked = [np.array([s.extras[name] for s in there], np.float64) for name in ("losses", "gradients")]
    return stacked[0], stacked[1]


def read(extras: Extras, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Parse an assignment's extras: the losses of `count` objectives, and the inner products of their gradients.

    Raises:
        ValueError: the extras are invalid.
    """
    losses, gram = extras.get("losses"), extras.get("gram")
    if losses is None or gram is None or losses.shape != (count,) or gram.shape != (count, count):
        raise ValueError(f"an assignment of FedCMOO does not have the {count} objectives of this node")
    most = MOST**2 * MOST_SIZE
    if not _within(losses, 0.0, MOST) or not _within(gram, -most, most):
        raise ValueError("an assignment of FedCMOO has losses or inner products out of range")
    gram = (gram + gram.T) / 2
    lengths = np.linalg.eigvalsh(gram)
    if lengths[0] < -1e-6 * abs(lengths[-1]):
        raise ValueError("an assignment of FedCMOO has inner products that no gradients can have")
    return losses, gram
