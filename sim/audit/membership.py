"""Membership: whether a sample was among the training samples of a node, by likelihood ratio (Carlini et al. 2022).

The pool of a node are its training samples, and as many others of the same kind as there are, up to the same number. A
shadow is a run of the scenario in which each node trains on as many samples as in the scenario, drawn from its pool. In
each shadow, about half of a pool are members. The attacker knows the pool, and has the models of all shadows but one. For
each sample it computes from the released models of a node how certain the model is of the target, as log(p / (1 - p)), in
some rounds; over the other shadows, these have one distribution if the sample is a member and one if it is not. With few
shadows the distributions are taken as normal with one covariance for all samples; the means differ by sample, and their
difference is drawn towards the mean difference as far as it is noise (James and Stein 1961). The score of a sample is the
logarithm of the ratio of the two likelihoods. Each shadow is attacked once with the others; so each sample of each node
is judged as often as there are shadows.

Intervals are percentiles of a bootstrap that draws shadows and nodes anew, both at once (Owen 2007): samples of one shadow
share their federation, and those of one node their pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from p2pfl.learning.losses import cross_entropy
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.audit.inversion import strangers
from p2pfl.sim.audit.releases import Attacked, Release, Watch, observe, with_samples
from p2pfl.sim.audit.statistics import CONFIDENCE, auc
from p2pfl.sim.scenario.scenario import Scenario

MOST_NODES = 64  # that are attacked
MOMENTS = 6  # rounds whose models are judged
RATES = (0.01, 0.001)  # false-positive rates
REPEATS = 200  # of the bootstrap
FEWEST = 4  # shadows: with fewer there are no distributions
SEEDS = 7_919  # distance of the seeds of shadows
EDGE = 1e-7  # from 0 and 1, of the probability of a target


def attack_membership(
    scenario: Scenario, graph: Any, tasks: Sequence[TorchTask], shadows: int, progress: Callable[[], object]
) -> dict[str, Any]:
    """Return how well members are told from others, for audit.json.

    Args:
        tasks: of each node, in the scenario.
        progress: called after each shadow.
    """
    attacked = range(min(len(tasks), MOST_NODES))
    pools = [_pool(tasks, node) for node in attacked]
    initial = tasks[0].initial(scenario.seed)
    moments = sorted({round(part) for part in np.linspace(1, max(scenario.rounds, 1), MOMENTS)})
    each = []
    for number in range(shadows):
        seed = scenario.seed + SEEDS * (number + 1)
        shadow = _Shadow(tasks, pools, moments, scenario.seed, seed)
        job = replace(scenario, seed=seed)
        observe(job, graph, Watch(job.nodes, shadow.see, shadow.change), initial)  # the others have their own samples
        each.append(shadow)
        progress()
    scores: list[list[np.ndarray]] = [[] for _ in each]  # by shadow and node, [pool]
    known = [shadow.table() for shadow in each]  # by shadow, of nodes: [moments, pool]
    for node in attacked:
        features = np.array([table[node] for table in known])  # [shadows, moments, pool]
        members = np.array([shadow.members[node] for shadow in each])
        for number, score in enumerate(likelihood_ratios(features, members)):
            scores[number].append(score)
    return {"nodes": len(attacked)} | figures(scores, [shadow.members for shadow in each])


def _pool(tasks: Sequence[TorchTask], node: int) -> Samples:
    """Return the samples of which the attacker asks: those of the node, and at most as many others."""
    own, others = tasks[node].data["train"], strangers(tasks, node)
    draws = RandomStreams(0, f"audit {node}").generator(0, "pool")
    some = torch.from_numpy(np.sort(draws.permutation(len(others.x))[: len(own.x)]))
    return Samples(torch.cat([own.x, others.x[some]]), torch.cat([own.y, others.y[some]]))


class _Shadow:
    """One shadow: the members of each node's pool, and how certain its released models are of the pool.

    Attributes:
        members: for each node, bool [pool].
    """

    def __init__(
        self, tasks: Sequence[TorchTask], pools: Sequence[Samples], moments: Sequence[int], first: int, seed: int
    ) -> None:
        self._pools, self._moments, self._seed = pools, moments, seed
        self._tasks = tasks
        self._attacked = Attacked(tasks[0], first)
        self._classes = tasks[0].loss is cross_entropy
        self.members: list[np.ndarray] = []
        self._certain: list[dict[int, np.ndarray]] = [{} for _ in pools]

    def change(self, node: int, task: TorchTask) -> TorchTask:
        """Return the task of a node in the scenario; of an attacked one with a draw from its pool."""
        task = self._tasks[node]
        if node >= len(self._pools):
            return task
        pool = self._pools[node]
        draws = RandomStreams(self._seed, f"audit {node}").generator(0, "members")
        drawn = np.sort(draws.permutation(len(pool.x))[: task.n_samples])
        there = np.zeros(len(pool.x), bool)
        there[drawn] = True
        self.members.append(there)
        picked = torch.from_numpy(drawn)
        return with_samples(task, Samples(pool.x[picked], pool.y[picked]), evaluated=False)

    def see(self, release: Release) -> None:
        """Judge the pool of a node by a released model."""
        if release.round not in self._moments or release.node >= len(self._pools):
            return
        losses = self._attacked.losses(release.model, self._pools[release.node]).astype(np.float64)
        if self._classes:
            p = np.clip(np.exp(-losses), EDGE, 1 - EDGE)
            losses = np.log1p(-p) - np.log(p)
        self._certain[release.node][release.round] = -losses

    def table(self) -> list[np.ndarray]:
        """Return for each node how certain its models are, [moments, pool]; NaN where it released none."""
        pairs = zip(self._certain, self._pools, strict=True)
        nothing = [np.full(len(pool.x), np.nan) for pool in self._pools]
        return [
            np.array([known.get(moment, nothing[node]) for moment in self._moments]) for node, (known, _) in enumerate(pairs)
        ]


def likelihood_ratios(features: np.ndarray, members: np.ndarray) -> list[np.ndarray]:
    """Return for each shadow the scores of the samples of a pool, [p], from all other shadows.

    Args:
        features: [N, moments, p]; NaN is unknown.
        members: bool [N, p].
    """
    unknown = np.isnan(features)
    known = features[:, ~unknown.all((0, 2))]
    if unknown.any():
        known = np.where(np.isnan(known), np.nanmean(known, axis=0, keepdims=True), known)
    return [_ratio(known, members, target) for target in range(len(known))]


def _ratio(features: np.ndarray, members: np.ndarray, target: int) -> np.ndarray:
    others = np.arange(len(features)) != target
    seen, inside = features[others], members[others]
    size, samples = seen.shape[1:]
    if not size:
        return np.zeros(samples)
    counts = np.array([(~inside).sum(0), inside.sum(0)])  # of others and of members, [2, p]
    sums = np.array([np.einsum("ntp,np->tp", seen, ~inside), np.einsum("ntp,np->tp", seen, inside)])
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums / counts[:, None]
    both = (counts > 0).all(0)
    if not both.any():
        return np.zeros(samples)
    difference = np.where(both, means[1] - means[0], 0.0)
    overall = difference[:, both].mean(1, keepdims=True)
    means[0] = np.where(counts[0] > 0, means[0], means[1] - overall)
    means[1] = np.where(counts[1] > 0, means[1], means[0] + overall)
    away = seen - np.where(inside[:, None], means[1], means[0])
    freedom = max(1, int(np.maximum(counts - 1, 0).sum()))
    covariance = np.einsum("ntp,nup->tu", away, away) / freedom
    covariance += np.eye(size) * (1e-6 * np.trace(covariance) / size + 1e-12)
    noise = float(np.trace(covariance)) * float((1 / counts[:, both]).sum(0).mean())
    spread = float(difference[:, both].var(1).sum())
    kept = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    drawn = overall + kept * np.where(both, difference - overall, 0.0)
    score: np.ndarray = ((features[target] - means.mean(0)) * np.linalg.solve(covariance, drawn)).sum(0)
    return score


def figures(scores: Sequence[Sequence[np.ndarray]], members: Sequence[Sequence[np.ndarray]]) -> dict[str, Any]:
    """Return the area under the curve, and the rates of true positives at some rates of false ones, with intervals.

    Args:
        scores, members: by shadow and node, [pool].
    """
    shadows, nodes = len(scores), len(scores[0])
    areas = np.array([[auc(s[m], s[~m]) for s, m in zip(*each, strict=True)] for each in zip(scores, members, strict=True)])
    inside = [[s[m] for s, m in zip(*each, strict=True)] for each in zip(scores, members, strict=True)]
    outside = [[s[~m] for s, m in zip(*each, strict=True)] for each in zip(scores, members, strict=True)]
    draws = RandomStreams(0, "audit").generator(0, "bootstrap")
    repeats: dict[str, list[float]] = {}
    for number in range(REPEATS + 1):
        rows = draws.integers(0, shadows, shadows) if number else np.arange(shadows)
        columns = draws.integers(0, nodes, nodes) if number else np.arange(nodes)
        picked = [(row, column) for row in rows for column in columns]
        repeats.setdefault("auc", []).append(float(areas[np.ix_(rows, columns)].mean()))
        others = np.concatenate([outside[row][column] for row, column in picked])
        own = np.concatenate([inside[row][column] for row, column in picked])
        for rate in RATES:
            allowed = int(rate * len(others))
            limit = np.partition(others, len(others) - 1 - allowed)[len(others) - 1 - allowed]
            repeats.setdefault(f"tpr_at_{rate:g}", []).append(float(np.mean(own > limit)))
    found: dict[str, Any] = {
        "shadows": shadows,
        "members": int(sum(len(each) for of in inside for each in of)),
        "others": int(sum(len(each) for of in outside for each in of)),
    }
    ends = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
    for name, values in repeats.items():
        low, high = np.percentile(values[1:], ends) if shadows > 1 else (-inf, inf)
        found[name] = values[0]
        found[f"{name}_interval"] = [float(low), float(high)]
    return found
