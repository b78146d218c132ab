"""Privacy as a budget: how much the models that a node releases may tell about its training samples.

Theory of operation
-------------------

What is promised. Two data sets of a node are neighbours if they are equal except that one sample of the first is replaced
in the second by one that changes nothing (the zero-out relation of Kairouz et al. 2021; the number of samples is therefore
public). Whatever a node releases in a run, all together, has a probability under one data set of at most exp(epsilon) times
that under the other one, plus delta: differential privacy (Dwork et al. 2006) for single samples of a node, against
everybody who sees its models, members included.

How. A node touches its training data in the steps of its trainings alone, and these are DP-SGD (Abadi et al. 2016,
algorithm 1):

1. Each sample enters a step with probability q = min(1, batch_size / n), independently of all others (Poisson sampling). The
   number of samples of a step varies, and may be 0.
2. The gradient of each sample, over all trained values, is scaled down to a norm of at most `clip`.
3. Normal noise with the standard deviation `noise * clip` is added to each value of their sum, and the sum is divided by
   the expected number of samples, q n. The optimiser takes this as the gradient: momentum, Adam's moments, weight decay and
   a proximal term read nothing else of the data.

An epoch has ceil(n / batch_size) steps. A step without any sample is made nevertheless, because its absence would tell.

All else that a node computes is a function of these noisy sums and of what others send: it costs no privacy
(post-processing). A policy therefore does not see the data. `Me.compute` refuses each query that reads them in another way
(losses on training data, counts by group), and a policy must say in `under_privacy` that nothing else leaves its nodes
(`planned_training`); without this it is refused. Validation samples are not protected. Unless their owner declares them
public (`validation = "public"`), nothing looks at them: neither a policy, nor early stopping, nor the choice of the best
model.

How much noise. Steps compose adaptively. Before the first round the number of steps that the policy plans is known, and the
noise is the smallest with which all of them together spend `epsilon` at `delta` (`noise_for`). The accountant is the library
dp-accounting of Google: the distribution of the privacy loss (PLD; Koskela et al. 2020, Doroshenko et al. 2022), rounded to
the safe side. The bound by Renyi divergences (Mironov 2017), which is looser, checks it.

Enforcement. `PrivacyTracker` counts the steps, before a training begins: a training that fails, or whose model is never
released, counts. One that would exceed the planned steps is refused as a whole. The node then serves and merges without
training, or ends its rounds (`when_spent`). On a machine the count is in a file before a training begins, and covers all
that the node has trained in its life: see p2pfl.node.privacy_ledger. Steps of other rates and other noise, from before its
data or its budget changed, are then parts of their own (`Part`), which the accountant composes.

Whose draws. A simulation draws samples and noise from (seed, node, round, purpose), as everything, so that a run can be
repeated: whoever knows the seed can remove the noise. A run shows what the mechanism costs; its files protect nobody. On
machines all members know the seed. There each training has a key of its own, 32 bytes from the system's source of secrets,
which are kept nowhere (`Mechanism.key`):

- The noise of a training that was interrupted and is repeated, from another start or with other data, is new. With the
  same noise, the difference of the two models would have none.
- Neither a copy of the node's folder nor an older one that is restored can compute noise that was ever used, or repeat it.
- The draws are the keystream of ChaCha20, and not those of NumPy's PCG64. Where the gradient of a value is known, such as
  0 at a pixel that is always black, a released model shows the noise of this value; with enough of it the state of PCG64,
  and so all other noise, can be computed (Bouillaguet, Martinez and Sauvage 2020).

What must never be:

- A learner that does not know `Mechanism` trains: a query with one is another operation (`Train.operation`).
- A node evaluates on, or is asked for, anything that reads its samples, and the answer leaves the node.
- A node on a machine trains with draws that others can compute, or without its steps on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from hashlib import blake2b
from itertools import pairwise
from math import exp, inf, log, pi, prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from p2pfl.errors import ConfigurationError, RunError, must_be, needs_extra
from p2pfl.policy import PlannedTraining, Policy, asks_scores, planned_training
from p2pfl.queries import Query, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.robust.registry import Robust, make_rule, split_robust
from p2pfl.task import MOST_FACTS
from p2pfl.update_rules import EdgeNoise, Mechanism, Rule, Steps, TrainSubset

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

RULES = (Steps, TrainSubset)  # whose steps are along the gradient at the node's own model
LEAST_NOISE, MOST_NOISE = 0.3, 1e6  # less noise than the least costs the accountant much memory, and protects little
FINE, COARSE = 1e-4, 1e-3  # width of the cells of a privacy loss; a wider one gives a greater epsilon
FEW_STEPS = 1000  # up to which coarse cells raise epsilon by less than a thousandth
LEAST_DELTA = 1e-12  # the accountant cuts 1e-15 off the tail of each part, and finds no finite epsilon for so small a delta
CLOSE = 2e-3  # share of a planned epsilon that may stay unused
TRIES = 60
DRAWN = 2**11  # draws of samples that are made at once
_ANGLE, _ANGLES = np.uint64(24), np.uint64(2**24 - 1)  # bits of a word, and the numbers that they make
ORDERS = (*range(2, 64), 80, 128, 256, 512)  # of Renyi divergences
SECRET = 32  # bytes of the key of a training's draws
BLOCK = 2**17  # values of noise of several nodes that are made at once, in the cache
AT_ONCE = 2**16  # values of noise that are made at once from a keystream


class Privacy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Privacy budget of a node.

    Attributes:
        epsilon: the budget for all that the node releases in a run; 0 is no privacy.
        delta: probability with which the bound may fail; it should be less than 1 / samples.
        clip: greatest norm of a sample's gradient.
        validation: whether the owner declares the validation samples `public`. If they are `private`, nothing looks at
            them.
        when_spent: what a node does that may not train any more: `merge`, go on without training, or `stop`, end its
            rounds and serve its last model.
        correlated: whether neighbours add noise that cancels in the average of all models, next to less noise of their
            own; see p2pfl.correlated_noise.
        central: whether the noise of all members adds up in secure sums, so that each adds less; see p2pfl.central_noise.
            The budget then holds against observers of the sums, the coordinator included, and not for a single model.
        colluding: with `correlated` or `central`, the number of members who may put together what they know, and against
            whom the budget holds nevertheless. With 0 it holds against observers alone who are no members.
    """

    epsilon: float = 0.0
    delta: float = 1e-5
    clip: float = 1.0
    validation: Literal["private", "public"] = "private"
    when_spent: Literal["merge", "stop"] = "merge"
    correlated: bool = False
    central: bool = False
    colluding: int = 1

    def check(self, key: str = "privacy") -> None:
        """Raise ConfigurationError for an invalid value; `key` names the table."""
        if not 0 <= self.epsilon < inf:
            raise must_be(f"{key}.epsilon", "0 (no privacy) or more, and finite", self.epsilon)
        if not 0 < self.delta < 1:
            raise must_be(f"{key}.delta", "above 0 and below 1", self.delta)
        if self.delta < LEAST_DELTA:
            raise must_be(f"{key}.delta", f"{LEAST_DELTA:g} or more, because the accountant resolves no less", self.delta)
        if not 0 < self.clip < inf:
            raise must_be(f"{key}.clip", "above 0, and finite", self.clip)
        if self.colluding < 0:
            raise must_be(f"{key}.colluding", "0 or more", self.colluding)
        if self.colluding != 1 and not (self.correlated or self.central):
            raise ConfigurationError(
                f"{key}.colluding has an effect with correlated noise and with noise that adds up in sums only; set"
                f" {key}.correlated or {key}.central to true, or remove it",
                f"{key}.colluding",
                f"{key}.correlated",
            )
        if self.correlated and self.central:
            raise ConfigurationError(
                f"{key}.correlated is for averages of neighbours, and {key}.central for secure sums; remove one of them",
                f"{key}.correlated",
                f"{key}.central",
            )


class Part(NamedTuple):
    """Steps of one rate and one noise; see `epsilon_of`."""

    rate: float
    noise: float
    steps: int


class PrivacyPlan(NamedTuple):
    """Mechanism of the trainings of one node, and the number of steps that they may make.

    Attributes:
        rate: q, probability with which a sample enters a step.
        steps: the planned steps of the whole run, which spend the budget.
        mechanism: the clip, and the noise.
        earlier: steps of other rates and other noise that the node has made before, which count too.
        hidden: standard deviation of the noise that protects a sample, divided by the clip. It is greater than that of the
            node's own noise if neighbours add noise together; see p2pfl.correlated_noise. 0 stands for the own noise.
        outside: the same against observers who are no members.
        share: standard deviation of the noise that the node adds to what it submits to a secure sum, in clips; 0 without
            `Privacy.central`. See p2pfl.central_noise.
        threshold: the least number of members of a sum for which `share` is planned.
    """

    privacy: Privacy
    rate: float
    steps: int
    mechanism: Mechanism
    earlier: tuple[Part, ...] = ()
    hidden: float = 0.0
    outside: float = 0.0
    share: float = 0.0
    threshold: int = 0

    def epsilon(self, steps: int) -> float:
        """Return what some steps spend, together with the earlier ones."""
        return epsilon_together(self.parts(steps), self.privacy.delta)

    def parts(self, steps: int) -> tuple[Part, ...]:
        """Return the earlier steps, and some steps of this plan."""
        return *self.earlier, Part(self.rate, self.hidden or self.mechanism.noise, steps)

    def epsilon_outside(self, steps: int) -> float:
        """Return what some steps of this plan tell observers who are no members."""
        return epsilon_of(self.rate, self.outside or self.mechanism.noise, steps, self.privacy.delta)


def plan_privacy(privacy: Privacy, planned: PlannedTraining, n_samples: int, batch_size: int) -> PrivacyPlan:
    """Return the plan of a node.

    Raises:
        ConfigurationError: no step is planned, or no noise suffices.
        MissingRequirementError: dp-accounting is not installed.
    """
    steps = _planned_steps(planned, n_samples, batch_size)
    rate = rate_of(n_samples, batch_size)
    noise = noise_for(privacy.epsilon, privacy.delta, rate, steps)
    return PrivacyPlan(privacy, rate, steps, Mechanism(privacy.clip, noise))


def continue_plan(
    privacy: Privacy, planned: PlannedTraining, n_samples: int, batch_size: int, made: Sequence[Part]
) -> PrivacyPlan:
    """Return the plan of a node that has made private steps before: with the noise of the last ones, for as many steps as
    the budget still has room for, and at most the planned ones more.

    The planned steps are those of all rounds of the present run, of which some may be made already. They only bound the
    search for what fits; the budget is what limits the steps.

    Args:
        made: its steps so far, the last ones last; at least one part.
    """
    rate, noise = rate_of(n_samples, batch_size), made[-1].noise
    earlier = tuple(part for part in made if (part.rate, part.noise) != (rate, noise))
    before = sum(part.steps for part in made if part not in earlier)
    most = before + _planned_steps(planned, n_samples, batch_size)
    plan = PrivacyPlan(privacy, rate, before, Mechanism(privacy.clip, noise), earlier)
    low, high = before, max(1, before)  # doubled up to the planned steps: many more than fit cost the accountant much memory
    while high < most and plan.epsilon(high) <= privacy.epsilon:
        low, high = high, min(most, 2 * high)
    if plan.epsilon(high) <= privacy.epsilon:
        return plan._replace(steps=max(before, high))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if plan.epsilon(middle) <= privacy.epsilon else (low, middle)
    return plan._replace(steps=low)


def _planned_steps(planned: PlannedTraining, n_samples: int, batch_size: int) -> int:
    steps = planned.passes * _steps_of_pass(n_samples, batch_size) + planned.steps
    if steps < 1:
        raise ConfigurationError(
            "a privacy budget is planned for a number of rounds with trainings, but none is planned; set rounds", "privacy"
        )
    return steps


def check_private_policy(privacy: Privacy | None, policy: Policy, rounds: int) -> PlannedTraining:
    """Return what a policy plans to train.

    Args:
        privacy: the budget of its node; None if only other nodes have one.

    Raises:
        ConfigurationError: the policy may release more than models that were trained privately.
    """
    planned, name = planned_training(policy, rounds), type(policy).__name__
    if isinstance(planned, str):
        raise ConfigurationError(f"the policy {name} is refused under a privacy budget: {planned}", "privacy", "policy")
    if asks_scores(policy):
        raise ConfigurationError(
            f"the policy {name} is refused under a privacy budget: with asks_scores = True nodes answer peers with losses on"
            " training data",
            "privacy",
            "policy",
        )
    if planned.validates and privacy is not None and privacy.validation != "public":
        raise ConfigurationError(
            f"the policy {name} selects by validation data, which a privacy budget does not protect; declare them with"
            ' privacy.validation = "public" if they are, or take another policy',
            "privacy",
            "policy",
        )
    return planned


def check_private_settings(privacy: Privacy, patience: int, robust: Robust) -> None:
    """Raise ConfigurationError for settings that look at the validation data of a node with a privacy budget."""
    if privacy.validation == "public":
        return
    remedy = 'declare the validation data with privacy.validation = "public" if they are'
    if patience:
        raise ConfigurationError(
            f"early stopping (patience) looks at validation data, which a privacy budget does not protect; {remedy}, or set"
            " patience = 0",
            "patience",
            "privacy",
        )
    rule = make_rule(robust)
    if rule is not None and rule.needs_losses:
        name, _ = split_robust(robust)
        raise ConfigurationError(
            f"the robust rule {name} takes losses on validation data, which a privacy budget does not protect; {remedy}, or"
            " take another rule",
            "robust",
            "privacy",
        )


# The claim of a node

CLAIMS = "privacy.epsilon", "privacy.delta"  # keys of public information
MOST_PUBLIC = MOST_FACTS - len(CLAIMS)  # entries of a task, so that its claim fits in a message, too
SUM_NOISE = "privacy.sum_noise"  # another key, of a node whose noise adds up in sums; see p2pfl.central_noise
# More keys, of a node whose neighbours add noise with it; see p2pfl.node.edge_noise
EDGE_CLAIMS = "privacy.noise_key", "privacy.own_noise", "privacy.edge_noise"


def claim_of(privacy: Privacy, spent: float = 0.0, share: float = 0.0) -> dict[str, float]:
    """Return what a node with a budget tells its peers: public information, which they can only believe.

    Args:
        spent: epsilon that its steps so far have spent at this delta. It is claimed if the budget is smaller now.
        share: see PrivacyPlan.
    """
    noise = {SUM_NOISE: share * privacy.clip} if share else {}
    return dict(zip(CLAIMS, (max(privacy.epsilon, spent), privacy.delta), strict=True)) | noise


def claimed(public_info: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return epsilon and delta that a peer claims; None if it claims no budget."""
    told = (public_info.get(key) for key in CLAIMS)
    numbers = [float(each) for each in told if isinstance(each, int | float) and not isinstance(each, bool)]
    return (numbers[0], numbers[1]) if len(numbers) == len(CLAIMS) and min(numbers) > 0 else None


def claimed_noise(public_info: Mapping[str, Any]) -> float:
    """Return the noise that a peer claims to add to what it submits to sums; 0 if it claims none."""
    told = public_info.get(SUM_NOISE)
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) and 0 < told < inf else 0.0


# Steps and draws, alike for all learners


def rate_of(n_samples: int, batch_size: int) -> float:
    """Return the probability with which a sample enters a step."""
    return min(1.0, batch_size / n_samples)


def steps_of(query: Train, n_samples: int, batch_size: int) -> int:
    """Return the number of steps of a training under a privacy budget."""
    each = _steps_of_pass(n_samples, batch_size)
    return min(query.rule.steps, each) if isinstance(query.rule, Steps) else query.epochs * each


def _steps_of_pass(n_samples: int, batch_size: int) -> int:
    return -(-n_samples // batch_size)


def check_rule(rule: Rule | None) -> None:
    """Raise ConfigurationError for an update rule whose steps are not private."""
    if rule is not None and not isinstance(rule, RULES):
        raise ConfigurationError(
            f"the update rule {type(rule).__name__} reads the data in more than clipped gradients at the node's model, and"
            " is refused under a privacy budget",
            "privacy",
            "policy",
        )


class StepDraws:
    """Draws of one private training: the samples of each step, and the noise, each from a generator of its own.

    Both come from the key of the mechanism if it has one, on a machine, otherwise from (seed, node, round, purpose). The
    noise of an edge comes from its own key there, otherwise from the names of both ends in place of that of the node, so
    that both draw the same.
    """

    def __init__(self, streams: RandomStreams, query: Train, n_samples: int, batch_size: int) -> None:
        self.steps = steps_of(query, n_samples, batch_size)
        self.expected = float(min(batch_size, n_samples))
        self._n, self._rate = n_samples, rate_of(n_samples, batch_size)
        key = b"" if query.mechanism is None else query.mechanism.key
        self._samples, self._noise = (
            SecretDraws(key, purpose) if key else streams.generator(query.round, f"{query.purpose} {purpose}")
            for purpose in ("samples", "noise")
        )
        self._drawn: Iterator[np.ndarray] = iter(())
        self._left = self.steps  # of which no samples are drawn
        edges = None if query.mechanism is None else query.mechanism.edges
        self._edges: list[tuple[np.random.Generator | SecretDraws, bool, float]] = []  # draws, sign, scale
        if isinstance(edges, EdgeNoise):
            own = streams.name
            for other in edges.others:
                low, high = sorted((own, other))
                edge = RandomStreams(streams.seed, f"noise of\0{low}\0{high}").generator(query.round, query.purpose)
                self._edges.append((edge, own == low, edges.scale))
        elif edges is not None:
            self._edges = [(SecretDraws(edge.key, "noise"), edge.adds, edge.scale) for edge in edges]

    @property
    def generator(self) -> np.random.Generator | None:
        """The generator of the noise, if all of it comes from this one."""
        return None if isinstance(self._noise, SecretDraws) or self._edges else self._noise

    def batch(self) -> np.ndarray:
        """Return the samples of the next step, ascending; int64 [b], b >= 0."""
        found = next(self._drawn, None)
        if found is None:  # some steps at once, which takes less time, to the same draws
            size = max(1, min(self._left, DRAWN // self._n))
            self._left -= size
            steps, samples = np.nonzero(self._samples.random((size, self._n)) < self._rate)
            ends = np.searchsorted(steps, np.arange(size + 1)).tolist()
            self._drawn = iter([samples[first:end] for first, end in pairwise(ends)])
            found = next(self._drawn)
        return found

    def noise(self, out: np.ndarray, scale: float) -> None:
        """Write the noise of the next step.

        Args:
            out: float32 [P].
            scale: standard deviation of the node's own noise.
        """
        _draw(self._noise, out, scale)
        part = np.empty_like(out) if self._edges else out
        for edge, adds, each in self._edges:
            _draw(edge, part, scale * each)
            (np.add if adds else np.subtract)(out, part, out=out)


def _draw(draws: np.random.Generator | SecretDraws, out: np.ndarray, scale: float) -> None:
    """Write normal numbers with the standard deviation `scale`; float32 [P]."""
    if isinstance(draws, SecretDraws):
        draws.standard_normal(dtype=np.float32, out=out)
        out *= np.float32(scale)
    else:
        draw_normals(draws, out, scale)


def draw_noise(draws: Sequence[StepDraws], out: np.ndarray, scales: Sequence[float]) -> None:
    """Write the noise of the next step of some nodes, with the same bits as `StepDraws.noise` of each.

    Args:
        out: float32 [K, P].
        scales: standard deviations of the nodes' own noise, [K].
    """
    generators = [each.generator for each in draws]
    known = [each for each in generators if each is not None]
    if len(known) < len(generators):
        for each, row, scale in zip(draws, out, scales, strict=True):
            each.noise(row, scale)
        return
    size = max(1, BLOCK // out.shape[1])
    for start in range(0, len(known), size):
        part = slice(start, start + size)
        _normals(known[part], out[part], np.array(scales[part]))


def draw_normals(generator: np.random.Generator, out: np.ndarray, scale: float) -> None:
    """Write normal numbers by the transform of Box and Muller (1958).

    It takes half the time of NumPy's method, which would be most of a step. A word of 64 bits gives two numbers: 40 bits
    decide the radius, which ends at 7.5 standard deviations, and 24 bits the angle. The last bits of NumPy's logarithms and
    sines differ between kinds of processors.

    Args:
        out: float32 [P].
        scale: standard deviation of the numbers.
    """
    _normals([generator], out[None], np.array([scale]))


def _normals(generators: Sequence[np.random.Generator], out: np.ndarray, scales: np.ndarray) -> None:
    """Write normal numbers of some generators, float32 [K, P], with the standard deviations [K]."""
    half = -(-out.shape[1] // 2)
    words = np.empty((len(generators), half), np.uint64)
    for generator, row in zip(generators, words, strict=True):
        row[:] = generator.bit_generator.random_raw(half)
    radii = (words >> _ANGLE).view(np.int64).astype(np.float32)
    radii += np.float32(0.5)
    radii *= np.float32(2**-40)
    np.log(radii, out=radii)
    radii *= (-2 * scales**2).astype(np.float32)[:, None]
    np.sqrt(radii, out=radii)
    words &= _ANGLES
    angles = words.view(np.int64).astype(np.float32)
    angles *= np.float32(2 * pi / 2**24)
    first, second = out[:, :half], out[:, half:]
    np.cos(angles, out=first)
    first *= radii
    np.sin(angles, out=angles)
    np.multiply(angles[:, : second.shape[1]], radii[:, : second.shape[1]], out=second)


class SecretDraws:
    """Draws from keystreams of ChaCha20 (RFC 8439): whoever knows some of them can compute no others.

    Args:
        key: SECRET bytes.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = blake2b(purpose.encode(), key=key, digest_size=SECRET).digest()
        self._streams = 0

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return uniform draws from [0, 1), float64."""
        return self._uniform(self._keystream(), prod(shape)).reshape(shape)

    def standard_normal(self, *, dtype: Any, out: np.ndarray) -> None:
        """Write normal draws to `out`, [P], by the method of Box and Muller (1958)."""
        stream = self._keystream()
        for start in range(0, out.size, AT_ONCE):
            part = out[start : start + AT_ONCE]
            half = -(-part.size // 2)
            first, second = self._uniform(stream, 2 * half).reshape(2, half)
            radius, angle = np.sqrt(-2 * np.log1p(-first)), 2 * pi * second
            part[:half] = radius * np.cos(angle)
            part[half:] = (radius * np.sin(angle))[: part.size - half]

    def normals(self, count: int) -> np.ndarray:
        """Return normal draws, float64 [count]."""
        found = np.empty(count)
        self.standard_normal(dtype=np.float64, out=found)
        return found

    def _keystream(self) -> Any:
        """Return a keystream that was not used before; each ends long before its counter of blocks."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        self._streams += 1
        nonce = bytes(8) + self._streams.to_bytes(8, "little")  # the counter of blocks, then the number of the stream
        return Cipher(ChaCha20(self._key, nonce), mode=None).encryptor()

    def _uniform(self, stream: Any, count: int) -> np.ndarray:
        words = np.frombuffer(stream.update(bytes(8 * count)), "<u8")
        found: np.ndarray = (words >> np.uint64(11)) * 2.0**-53
        return found


def clip_factors(norms: Any, clip: float) -> Any:
    """Return the factors of gradients of these norms, an array of NumPy: at most 1, and 0 for a norm that is not finite."""
    return np.where(np.isfinite(norms), clip / np.maximum(norms, clip), 0.0).astype(np.float32)


# The ledger of a node


class PrivacyState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of a node's privacy budget, for its checkpoint.

    Attributes:
        made: number of all private steps of the node.
        refused: steps of the training that the budget has refused last; 0 if it has refused none.
    """

    made: int = 0
    refused: int = 0


class PrivacyTracker:
    """Ledger of the steps of one node's trainings.

    Attributes:
        plan: the plan, and with it the budget.
        steps: number of steps so far; it counts a training before it begins.
        refused: number of trainings that the budget has refused.
        refusal: reason of the last one; "" if the budget has refused none.
    """

    def __init__(self, plan: PrivacyPlan, batch_size: int, steps: int = 0) -> None:
        self.plan = plan
        self.steps = steps
        self.refused = 0
        self.refusal = ""
        self._batch_size = batch_size
        self._needed = 0  # steps of the training that was refused last

    @property
    def epsilon(self) -> float:
        """Epsilon that the steps so far have spent."""
        return self.plan.epsilon(self.steps)

    @property
    def made(self) -> int:
        """Number of all private steps of the node, the earlier ones of the plan included."""
        return self.steps + sum(part.steps for part in self.plan.earlier)

    @property
    def ended(self) -> bool:
        """Whether the node ends its rounds, because its budget has refused a training."""
        return self.refused > 0 and self.plan.privacy.when_spent == "stop"

    def check(self, query: Query[Any]) -> None:
        """Raise ConfigurationError if an answer to a policy's query would tell more than the budget accounts for."""
        if isinstance(query, Train):
            check_rule(query.rule)
            return
        public = self.plan.privacy.validation == "public"
        reads = query.reads
        if reads and not (reads == "validation" and public):
            what = f"the policy's query {type(query).__name__} reads the {reads} data"
            remedy = '; declare them with privacy.validation = "public" if they are' if reads == "validation" else ""
            raise ConfigurationError(f"{what} and is refused under a privacy budget{remedy}", "privacy", "policy")

    def admit(self, query: Train, n_samples: int) -> Train | None:
        """Charge a training and return it with the mechanism; None if its steps are more than the budget has left."""
        steps = steps_of(query, n_samples, self._batch_size)
        if self.steps + steps > self.plan.steps:
            self._refuse(steps)
            return None
        self.steps += steps
        return msgspec.structs.replace(query, mechanism=self.plan.mechanism)

    def withdraw(self, query: Train, n_samples: int) -> None:
        """Take back the charge of an admitted training that has not begun."""
        self.steps -= steps_of(query, n_samples, self._batch_size)

    def state(self) -> PrivacyState:
        return PrivacyState(self.made, self._needed)

    def restore(self, state: PrivacyState) -> None:
        """Continue from a checkpoint: a training that was refused is refused again, unless the budget is greater now."""
        self.steps = max(self.steps, self.steps + state.made - self.made)
        if state.refused and self.steps + state.refused > self.plan.steps:
            self._refuse(state.refused)

    def _refuse(self, steps: int) -> None:
        self.refused += 1
        self._needed = steps
        self.refusal = f"the privacy budget is spent: {self.steps} of {self.plan.steps} steps"


# The accountant


@lru_cache(maxsize=4096)
def epsilon_together(parts: tuple[Part, ...], delta: float) -> float:
    """Return the epsilon of all steps of some parts together; see `epsilon_of`."""
    parts = tuple(part for part in parts if part.steps)
    if len(parts) < 2:
        return epsilon_of(*parts[0], delta) if parts else 0.0
    width = COARSE if sum(part.steps for part in parts) <= FEW_STEPS else FINE
    each = [_losses(part.rate, part.noise, width).self_compose(part.steps) for part in parts]
    return float(reduce(lambda one, other: one.compose(other), each).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4096)
def epsilon_of(rate: float, noise: float, steps: int, delta: float) -> float:
    """Return the epsilon of steps of the subsampled Gaussian mechanism: an upper bound, close to the exact value.

    Args:
        rate: probability with which a sample enters a step; see `rate_of`.
        noise: standard deviation of the noise, divided by the clip.

    Raises:
        MissingRequirementError: dp-accounting is not installed.
    """
    if not steps:
        return 0.0
    losses = _losses(rate, noise, COARSE if steps <= FEW_STEPS else FINE)
    return float(losses.self_compose(steps).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _losses(rate: float, noise: float, width: float) -> PrivacyLossDistribution:
    """Return the distribution of the privacy loss of one step."""
    with needs_extra("a privacy budget"):
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=width
        )


def deltas_of(rate: float, noise: float, steps: int, epsilons: Sequence[float]) -> list[float]:
    """Return the least delta of each epsilon, which together describe how private the steps are; see `epsilon_of`."""
    losses = _losses(rate, noise, COARSE if steps <= FEW_STEPS else FINE)
    return [float(delta) for delta in losses.self_compose(steps).get_delta_for_epsilon(epsilons)]


def epsilon_by_renyi(rate: float, noise: float, steps: int, delta: float) -> float:
    """Return the epsilon of the same steps by Renyi divergences (Mironov 2017): a looser bound; see `epsilon_of`."""
    with needs_extra("a privacy budget"):
        import dp_accounting
        from dp_accounting.rdp import rdp_privacy_accountant

        accountant = rdp_privacy_accountant.RdpAccountant(ORDERS)
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
        return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=4096)
def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the least noise, to four digits, with which steps spend at most `epsilon`; see `epsilon_of`.

    Raises:
        ConfigurationError: no noise suffices.
        RunError: the two bounds contradict each other.
    """
    low, high = LEAST_NOISE, 1.0
    if epsilon_of(rate, high, steps, delta) <= epsilon and epsilon_of(rate, low, steps, delta) <= epsilon:
        return low  # the second of these takes the accountant longest
    while (spent := epsilon_of(rate, high, steps, delta)) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise ConfigurationError(
                f"no noise keeps {steps} steps within epsilon = {epsilon:g} at delta = {delta:g}; raise privacy.epsilon, or"
                " plan fewer rounds",
                "privacy",
            )
    below = epsilon_of(rate, low, steps, delta)
    for _ in range(TRIES):  # epsilon is nearly a power of the noise: a secant of the logarithms, kept within the bracket
        if spent >= epsilon * (1 - CLOSE) or high / low < 1 + CLOSE / 10:
            break
        share = log(max(below, 1e-300) / epsilon) / log(max(below, 1e-300) / max(spent, 1e-300))
        tried = _rounded(exp(log(low) + min(0.9, max(0.1, share * (1 + CLOSE))) * log(high / low)))
        if not low < tried < high:
            break
        found = epsilon_of(rate, tried, steps, delta)
        if found > epsilon:
            low, below = tried, found
        else:
            high, spent = tried, found
    looser = epsilon_by_renyi(rate, high, steps, delta)
    if spent > looser * (1 + CLOSE) + COARSE:
        raise RunError(f"the bounds of the privacy loss contradict each other: {spent:.6g} by PLD, {looser:.6g} by RDP")
    return high


def _rounded(noise: float) -> float:
    """Return a number of four digits: the last ones of a search differ between machines."""
    return float(f"{noise:.4g}")
