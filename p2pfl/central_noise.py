"""Noise that adds up in secure sums: how much of it each member adds to what it submits.

Theory of operation
-------------------

Behind a secure sum (p2pfl.protocols.secure_sums) nobody sees a single model. The noise of all members adds up in the sum, so
that each of them needs only a part of the noise that it would need alone (distributed differential privacy: Kairouz, Liu and
Steinke, The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021).

What is released. In a round each member makes one step with all its samples, at the model that it was assigned last: the sum
of the clipped gradients of its samples (p2pfl.privacy), divided by their number n_j. It has no noise, and does not leave the
node. The member submits n_j times its new model, as integers, and adds normal noise with the standard deviation

    share * clip * rate of the step,      share = z / sqrt(threshold - colluding)

to each value, drawn when it is masked. `z` is what one node would need alone for the planned rounds (`noise_for`, with the
rate 1). With S the survivors of a round and H the members that do not collude, the opened sum is

    a function of earlier sums  -  rate * (sum of the clipped gradients of all samples of S  +  noise of S).

The theorem. Let an attacker be the coordinator with, itself included, `colluding` members: it knows their samples and their
noise, decides who drops out, and sees each opened sum. No sum opens with fewer than `threshold` members with samples, and no
submission is in two opened sums, as long as 2 threshold > n + colluding. Then all opened sums together are (epsilon, delta)
private for each sample of each member of H, where (epsilon, delta) are those of `rounds` steps of DP-SGD with the noise z
and all samples in each step.

Proof. Take a sample of node i of H. A sum without node i does not depend on it given earlier sums, because node i has begun
its step at a model that follows from them. A sum with node i has at least threshold - colluding members of H. Given all that
the attacker saw before, who survives does not depend on their noise of this round, because until the sum opens the masked
models are uniformly random to all who have no secret of H. So after the attacker has subtracted what it knows, the sum is
the clipped gradients of H plus normal noise with a standard deviation of at least z * clip, and the sample moves it by at
most the clip: a Gaussian mechanism with the noise z; more noise is post-processing. Rounds compose adaptively, and the
accountant composes the same mechanism. The masks are secure against attackers of bounded computing power, and so is this
promise (computational differential privacy; Mironov et al. 2009). An observer who is no member sees the means alone: it
meets the noise of all members of a sum, at least share * sqrt(threshold).

Rounding. A sum of rounded values does not follow from the sum of the exact ones, so rounding counts. The noise is drawn
with 53 bits and rounded to the integers of the sum, where its standard deviation is LEAST or more. The sum of k rounded
normal numbers of variance v is distributed as one of variance k v + (k - 1) / 12 that is rounded once: both densities are
smooth, their first three cumulants agree, and the fourth ones differ by (k - 1) / 120. Within u standard deviations their
ratio differs from 1 by about (u^4 - 6 u^2 + 3) (k - 1) / (2880 k^2 v^2). The rest of a model is an integer to which this is
added, so that the rounded sum follows from the exact one with a little more noise. With 12 standard deviations, 100 members,
a million values and a thousand rounds this adds less than 1e-6 to epsilon, and 1e-20 to delta.

Noise that is added before the step, to values of 32 bits, would not do: the last bits of a float tell its exponent, and a
sum of 64 bits keeps them, so that they tell of single models what the noise of others does not hide. As everywhere in p2pfl,
gradients are computed with 32 bits, and their rounding is not counted in the clip.

Why one step. With several steps between two sums, a later gradient depends on what the step before made of the samples, and
no clip bounds by how much: the noise of others is added to the result, and not between the steps. So only the last step
would gain. This is why a policy must submit after each training (`PlannedTraining.submits`), why a training is one step, why
momentum, Adam and private parts of models are refused, and why a node that is assigned nothing drops its step and keeps the
model with which the round began (p2pfl.node.policy_api): the next step would otherwise be the second one.

Why all samples. Then all members with the same budget need the same noise, whatever their numbers of samples: in the sum
each sample has the weight 1.

What must never be:

- A model that was trained with no noise leaves the node in another way than masked, with the noise of this submission.
- A member submits without a new step: others count on its noise, and it would show the same step twice.
- A member sends a masked model although the noise of the others does not suffice. It cannot know what they add. It believes
  what they claim (`privacy.sum_noise`), and assumes that the members with the least noise are those that do not collude
  (`enough`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import SGD, at_round
from p2pfl.policy import PlannedTraining, Policy
from p2pfl.privacy import Privacy, PrivacyPlan
from p2pfl.task import Task

LEAST, MOST = 2.0**14, 2.0**48  # standard deviation of the noise in integers of a sum
UP = 1 + 1e-9  # so that the squares of all shares together are not less than that of the whole, as floats
FARTHEST = 9  # standard deviations of the greatest draw: no uniform number of 53 bits gives one beyond 8.6


def check_central(
    privacy: Privacy, policy: Policy, planned: PlannedTraining, task: Task, *, rounds: int, threshold: int, batch_size: int
) -> None:
    """Raise ConfigurationError unless the noise of all members adds up in the sums of a run.

    Args:
        planned: what the policy plans to train in all rounds.
        threshold: the least number of members whose sum is opened; 0 if there are no secure sums, or it is not known.
        batch_size: samples of a step.
    """
    optimizer = getattr(task, "optimizer", None)
    for fits, key, reason in (
        (
            planned.submits and policy.reported_stage != "trained",
            "policy",
            "a policy that submits each training to a secure sum: coordinated-fedavg or coordinated-fedprox, without ft and"
            ' with reported_stage = "merged"',
        ),
        (
            planned.passes == rounds and not planned.steps,
            "policy",
            "one step in each round, because the noise of others hides only the last one; set epochs = 1",
        ),
        (
            batch_size >= task.n_samples,
            "task",
            f"steps with all samples of a member: set batch_size to {task.n_samples:,} or more for this one, got"
            f" {batch_size:,}",
        ),
        (
            isinstance(optimizer, SGD) and not optimizer.momentum,
            "task",
            "the optimiser sgd without momentum: steps of others are no multiples of the gradient",
        ),
        (not task.layout.unshared, "task", "a task without private parameters, which no sum releases"),
        (threshold > 0, "secure_threshold", "secure_sums = true, and a secure_threshold for which the noise is planned"),
        (
            threshold > privacy.colluding,
            "privacy.colluding",
            f"more members in a sum than collude: raise secure_threshold above {privacy.colluding}",
        ),
    ):
        if not fits:
            raise ConfigurationError(f"noise that adds up in sums (privacy.central) needs {reason}", "privacy.central", key)


def centralise(plan: PrivacyPlan, threshold: int) -> PrivacyPlan:
    """Return the plan of a member that adds a share of the noise to what it submits, in place of one with noise in steps.

    Args:
        threshold: the least number of members whose sum is opened; more than may collude.
    """
    alone = plan.mechanism.noise
    share = alone / sqrt(threshold - plan.privacy.colluding) * UP
    return plan._replace(
        mechanism=replace(plan.mechanism, noise=0.0),
        hidden=alone,
        outside=share * sqrt(threshold),
        share=share,
        threshold=threshold,
    )


def enough(plan: PrivacyPlan, others: Mapping[str, float]) -> bool:
    """Return whether the noise of the other members of a sum suffices for a node, whoever of them colludes or drops out.

    Args:
        others: the noise that each claims to add, `privacy.sum_noise`; only of members with samples.
    """
    needed = plan.threshold - plan.privacy.colluding
    least = sorted(others.values())[: needed - 1]
    if len(least) < needed - 1:
        return False
    own = plan.share * plan.privacy.clip
    return own**2 + sum(each**2 for each in least) >= (plan.hidden * plan.privacy.clip) ** 2


def deviation(plan: PrivacyPlan, task: Task, round: int) -> float:
    """Return the standard deviation of the noise in each value of a submitted model."""
    step = at_round(task.optimizer, round)
    assert isinstance(step, SGD)
    return step.lr * plan.share * plan.privacy.clip / task.n_samples


def integers(normals: Callable[[int], NDArray[np.float64]], values: int, sigma: float) -> NDArray[np.int64]:
    """Return the noise of a submission in integers of the sum, int64 [values].

    Args:
        normals: returns so many standard normal numbers.
        sigma: its standard deviation, in integers.

    Raises:
        ConfigurationError: the integers are too coarse for it, or too fine.
    """
    if not LEAST <= sigma <= MOST:
        raise ConfigurationError(
            f"the noise of a submission has a standard deviation of {sigma:.3g} integers of the secure sum, and privacy is"
            f" proved from {LEAST:.3g} to {MOST:.3g}; use another learning rate, or no privacy.central",
            "privacy.central",
            "task",
        )
    found: NDArray[np.int64] = np.rint(normals(values) * sigma).astype(np.int64)
    return found
