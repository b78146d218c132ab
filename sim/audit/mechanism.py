"""Tests of the mechanism of a privacy budget by what it computes: the noise, the clip, and the sampling.

Attacks by guesses need thousands of canaries before they refute a large epsilon, and say nothing about the cause. These
tests see small faults, and name them. They train with the learner of the scenario, on crafted samples, and read from the
change of the model the sum of clipped gradients and noise that its steps were made of. The optimiser is replaced by
gradient descent, because what it makes of that sum is post-processing.

A sample whose gradient is not finite counts for nothing (p2pfl.privacy.clip_factors): the tests fill up with such samples.

- Noise. Without any sample that counts, the sum is noise alone. Its mean square in each tensor is compared with what the
  plan says: a tensor with less is protected less. The noise of two trainings must not be alike. Noise that adds up in
  secure sums (p2pfl.central_noise) is in no training, and is not tested here.
- Sensitivity. Two data sets differ in a sample whose gradient is far greater than the clip, everything else equal and
  without noise: the sums may differ by the clip, and by no more.
- Sampling. Without noise, and with steps so short that the model stays where it is, the sum is a combination of the known
  gradients of known samples. Least squares return how often each sample has entered the steps. These counts must be those
  of independent draws with the rate of the plan: the mean, the spread over samples and trainings, the spread of the
  totals of trainings and of steps, and the spread of the sums over trainings. A training that takes each sample once has
  no spread over samples, batches of a fixed size have no spread of totals, and the same batch in each step or training
  has too much.

Each test has a score: the deviation from what is expected, in standard deviations. Beyond LIMIT the plan is contradicted,
which happens by chance less than once in a million tests.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import msgspec
import numpy as np
import torch
from scipy import stats

from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.parameters import Parameters
from p2pfl.privacy import PrivacyPlan
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.audit.releases import Attacked
from p2pfl.update_rules import Mechanism, Steps

LIMIT = 5.0  # standard deviations
MOST_SCORE = 40.0  # that is written, in place of inf
NOISY, READ, SINGLE = 8, 40, 60  # trainings that a test makes: of noise, of counts, of one step
MOST_STEPS = 4000  # of the trainings of counts
VALUES = 2**24  # of the gradients of the samples whose counts are read
MOST_COUNTED = 512  # samples whose counts are read
FAR = 0.25  # from a whole number, from which a count cannot be read
FEWEST_COUNTED = 4
UNREAD = "the counts of samples could not be read from the sums of their gradients"
FIRM = 1.001  # times the clip: rounding in sums of float32
SHORT = 1e-3  # share of the model's norm by which it may move while counts are read
CROWD = 16  # samples beside the one of the test of sensitivity


class Contradicted(msgspec.Struct, frozen=True):
    """Contradiction of a plan by a test.

    Attributes:
        test: name of the test: noise, sensitivity or sampling.
        text: what it has found, in words.
    """

    test: str
    text: str


def examine(task: TorchTask, plan: PrivacyPlan, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Return the figures of all tests of a node's mechanism, and what they contradict, for audit.json."""
    probe = _Probe(task, plan, seed, device)
    if not probe.fills():
        return {"untested": "no input of this task has a gradient that counts for nothing", "contradictions": []}
    found: dict[str, Any] = {}
    wrong: list[Contradicted] = []
    for name, test in (("noise", _noise), ("sensitivity", _sensitivity), ("sampling", _sampling)):
        if name == "noise" and plan.share:  # the steps have none, and a learner cannot show that of the sums
            continue
        found[name], texts = test(probe)
        wrong += [Contradicted(name, text) for text in texts]
    return found | {"contradictions": msgspec.to_builtins(wrong)}


class _Probe:
    """Trainings of a task's learner on crafted samples, as sums of their noisy gradients."""

    def __init__(self, task: TorchTask, plan: PrivacyPlan, seed: int, device: str) -> None:
        self.task, self.plan = task, plan
        self.start: Parameters = task.initial(seed)
        self.attacked = Attacked(task, seed)
        self.draws = RandomStreams(seed, "audit of the mechanism").generator(0, "samples")
        self._seed, self._device = seed, device
        self.n = task.n_samples
        self.size = task.layout.n_trained

    @property
    def clip(self) -> float:
        return self.plan.privacy.clip

    def steps_of_pass(self) -> int:
        return -(-self.n // self.task.batch_size)

    def fills(self) -> bool:
        """Return whether a sample exists that counts for nothing."""
        return not self.attacked.gradients(self.start, absent(self.task, 2), self.clip).any()

    def sums(
        self, samples: Samples, noise: float, round: int, *, one: bool = False, rate: float = 1.0, batch: int = 0
    ) -> Any:
        """Return the sum of a training's noisy gradients, over the expected samples of a step; float64 [n_trained].

        Args:
            noise: in place of the plan's.
            round: selects the draws.
            one: make one step, not all of a pass.
            rate: learning rate.
            batch: in place of the task's batch size.
        """
        size = batch or self.task.batch_size
        task = replace(self.task, data={"train": samples}, optimizer=SGD(rate), batch_size=size, held_out=())
        learner = task.learner(RandomStreams(self._seed, "audit of the mechanism"), self._device)
        rule = Steps(1) if one else None
        query = Train(self.start, round, rule=rule, purpose="audit", mechanism=Mechanism(self.clip, noise))
        change = (self.start.astype(np.float64) - learner.compute(query))[: self.size]
        return change / rate

    def samples(self, count: int) -> Samples:
        """Return samples with inputs like the node's in size, and targets drawn from the node's."""
        x, y = self.task.data["train"]
        shape = (count, *x.shape[1:])
        if x.is_floating_point():
            spread = float(x.std()) or 1.0
            drawn = torch.from_numpy(self.draws.standard_normal(shape, np.float32) * np.float32(spread)).to(x.dtype)
        else:
            drawn = x[torch.from_numpy(self.draws.integers(0, len(x), count))]
        return Samples(drawn, y[torch.from_numpy(self.draws.integers(0, len(y), count))])


def absent(task: TorchTask, count: int) -> Samples:
    """Return samples whose gradients are not finite, so that they count for nothing."""
    x, y = task.data["train"]
    if not x.is_floating_point():
        return Samples(x[:1].expand(count, *x.shape[1:]), y[:1].expand(count, *y.shape[1:]))
    full = torch.full((count, *x.shape[1:]), torch.finfo(x.dtype).max, dtype=x.dtype)
    return Samples(full, torch.zeros((count, *y.shape[1:]), dtype=y.dtype))


def filled(task: TorchTask, samples: Samples, count: int) -> Samples:
    """Return samples, filled up to `count` with such that count for nothing."""
    rest = absent(task, count - len(samples.x))
    return Samples(torch.cat([samples.x, rest.x]), torch.cat([samples.y, rest.y]))


def _noise(probe: _Probe) -> tuple[dict[str, Any], list[str]]:
    plan, samples = probe.plan, absent(probe.task, probe.n)
    expected = min(probe.task.batch_size, probe.n)
    deviation = sqrt(probe.steps_of_pass()) * plan.mechanism.noise * plan.mechanism.clip / expected
    drawn = np.array([probe.sums(samples, plan.mechanism.noise, r + 1) for r in range(NOISY)]) / deviation
    tensors = {}
    for name, place in probe.attacked.tensors():
        part = drawn[:, place]
        square = float(np.sum(part**2))
        score = float(stats.norm.ppf(stats.chi2.cdf(square, part.size)))  # exact: a bias may have few values
        tensors[name] = (square / part.size, min(MOST_SCORE, max(-MOST_SCORE, score)))
    alike = float(np.sum(drawn[:-1] * drawn[1:])) / sqrt(drawn[1:].size)
    wrong = [
        f"tensor {name} has {ratio:.3g} of the planned variance of the noise"
        for name, (ratio, score) in tensors.items()
        if score < -LIMIT
    ]
    if abs(alike) > LIMIT:
        wrong.append("the noise of one training repeats in the next")
    least = min(tensors, key=lambda name: tensors[name][1])
    return {"least": tensors[least][0], "tensor": least, "score": tensors[least][1], "repeats": alike}, wrong


def _sensitivity(probe: _Probe) -> tuple[dict[str, Any], list[str]]:
    crowd = probe.samples(min(CROWD, max(1, probe.n - 1)))
    great = [Samples(x * factor, y) for factor in (1, 10, 100, 1000) for x, y in [probe.samples(4)]]
    tried = Samples(torch.cat([each.x for each in great]), torch.cat([each.y for each in great]))
    norms = np.linalg.norm(probe.attacked.gradients(probe.start, tried, 1e30), axis=1)
    if not np.isfinite(norms).any() or np.nanmax(norms) <= 0:
        return {"unread": "no sample has a gradient that is finite and not 0"}, []
    far = int(np.nanargmax(np.where(np.isfinite(norms), norms, -1)))
    with_it = Samples(torch.cat([crowd.x, tried.x[far : far + 1]]), torch.cat([crowd.y, tried.y[far : far + 1]]))
    count = len(with_it.x)
    pair = [probe.sums(filled(probe.task, each, count), 0.0, 1, one=True, batch=count) for each in (with_it, crowd)]
    times = float(np.linalg.norm(pair[0] - pair[1])) * count / probe.clip
    wrong = []
    if times > FIRM:
        wrong.append(f"one sample changes the sum of clipped gradients by {times:.3g} times the clip")
    return {"norm": float(norms[far]), "times_clip": times}, wrong


def _sampling(probe: _Probe) -> tuple[dict[str, Any], list[str]]:
    counted = min(probe.n, MOST_COUNTED, max(1, VALUES // probe.size), max(1, probe.size // 4))
    while True:  # fewer samples have gradients that are easier to tell apart
        found, wrong = _sampling_of(probe, counted)
        if "unread" not in found or counted <= FEWEST_COUNTED:
            return found, wrong
        counted = max(FEWEST_COUNTED, counted // 4)


def _sampling_of(probe: _Probe, counted: int) -> tuple[dict[str, Any], list[str]]:
    """Test the sampling by the counts of some samples."""
    rate, steps = probe.plan.rate, probe.steps_of_pass()
    samples = probe.samples(counted)
    gradients = probe.attacked.gradients(probe.start, samples, probe.clip).astype(np.float64)
    inverse = np.linalg.pinv(gradients @ gradients.T, rcond=1e-9, hermitian=True) @ gradients
    whole = filled(probe.task, samples, probe.n)
    expected = min(probe.task.batch_size, probe.n)
    short = SHORT * float(np.linalg.norm(probe.start)) / (steps * probe.clip)

    def counts(round: int, one: bool) -> np.ndarray:
        read: np.ndarray = inverse @ probe.sums(whole, 0.0, round, one=one, rate=short) * expected
        return read

    off = max(_off(counts(r + 1, False)) for r in range(2))
    if off > FAR:
        return {"samples": counted, "farthest": off, "unread": UNREAD}, []
    many = np.array([counts(r + 1, False) for r in range(max(2, min(READ, MOST_STEPS // steps)))])
    single = np.array([counts(10_000 + r, True) for r in range(SINGLE)])
    off = max(_off(many), _off(single))
    found: dict[str, Any] = {"samples": counted, "trainings": len(many), "farthest": off}
    if off > FAR:
        return found | {"unread": UNREAD}, []
    many, single = np.rint(many), np.rint(single)
    scores = {
        "mean": _mean_score(many, steps, rate),
        "samples": _spread_score(many, steps, rate),
        "trainings": _spread_score(many.sum(1), steps * counted, rate),
        "steps": _spread_score(single.sum(1), counted, rate),
        "repeats": _spread_score(many.sum(0), steps * len(many), rate),
        "repeated steps": _spread_score(single.sum(0), SINGLE, rate),
    }
    words = {
        "mean": "samples enter steps {more} often than with the planned rate",
        "samples": "the number of steps of a training that a sample enters varies {more} than with independent draws",
        "trainings": "the number of samples of a training varies {more} than with independent draws",
        "steps": "the number of samples of a step varies {more} than with independent draws",
        "repeats": "the samples of one training repeat in others {more} than with independent draws",
        "repeated steps": "the samples of first steps repeat {more} than with independent draws",
    }
    wrong = [
        words[name].format(more="more" if score > 0 else "less") for name, score in scores.items() if abs(score) > LIMIT
    ]
    return found | {"rate": float(many.mean() / steps), "planned_rate": rate, "scores": scores}, wrong


def _off(counts: np.ndarray) -> float:
    """Return the greatest distance of counts from whole numbers."""
    return float(np.abs(counts - np.rint(counts)).max())


def _mean_score(counts: np.ndarray, draws: int, rate: float) -> float:
    deviation = sqrt(draws * rate * (1 - rate) / counts.size)
    away = float(counts.mean() - draws * rate)
    return away / deviation if deviation else away * 1e9


def _spread_score(counts: np.ndarray, draws: int, rate: float) -> float:
    """Return the deviation of the variance of binomial counts from the expected one, in standard deviations."""
    variance = draws * rate * (1 - rate)
    if not variance:
        return 0.0
    kurtosis = 2 + (1 - 6 * rate * (1 - rate)) / variance
    return float((np.mean((counts - draws * rate) ** 2) / variance - 1) * sqrt(counts.size / kurtosis))
