"""Judges of the mathematics: libraries of each field compute the same figures as p2pfl.

Cases are drawn from seeds, and hold what goes wrong easily: ties, a single sample, equal points, values of float16 and
float64, and values far out. Where two answers are right, such as the choice between models of one score, a judge accepts
both and counts them as excepted.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.algorithms.selection import probabilities, sample, uniform
from p2pfl.attacks.attack import HonestView, Scene, as_accepted
from p2pfl.attacks.registry import make_attack
from p2pfl.data.partition.label_partition import PARTITIONS
from p2pfl.fairness.metrics import MEASURES
from p2pfl.learning import losses, measures
from p2pfl.learning.optimizers import SGD, Adam, AdamW
from p2pfl.learning.schedules import schedule
from p2pfl.pareto_metrics import hypervolume, inverted_generational_distance, non_dominated
from p2pfl.robust.candidates import combine
from p2pfl.robust.registry import make_rule
from p2pfl.topologies.builders import build
from p2pfl.topologies.graph_properties import mixing_matrix, properties
from scripts.tools import ROOT
from scripts.tools.judges import CannotRunError, Judge, Verdict, distribution

Array = NDArray[np.float64]
APART = ROOT / ".venv/judges"
UNLIKELY = 1e-4  # below this probability a draw from the right distribution counts as a violation; seeds are fixed


class Found:
    """Collected results of a judge: cases that agree, violations, and exceptions by their reason."""

    def __init__(self) -> None:
        self.cases = 0
        self.violations: list[str] = []
        self.excepted: dict[str, int] = {}

    def expect(self, right: object, text: str) -> None:
        """Count one case; a wrong one is a violation."""
        self.cases += 1
        if not right:
            self.violations.append(text)

    def close(self, ours: Any, theirs: Any, text: str, tolerance: float = 1e-9) -> None:
        """Count one case: two figures agree, relative to the greatest of theirs, or both are undefined."""
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        scale = np.max(np.abs(theirs), initial=0.0, where=np.isfinite(theirs)) or 1.0
        same = ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=0, atol=tolerance * scale, equal_nan=True)
        self.expect(same, f"{text}: {brief(ours)}, the judge has {brief(theirs)}")

    def excuse(self, reason: str) -> None:
        """Count one exception."""
        self.excepted[reason] = self.excepted.get(reason, 0) + 1

    def verdict(self, seen: str) -> Verdict:
        """Return the verdict; `seen` names the cases."""
        return Verdict(
            self.violations, f"{self.cases:,} {seen}", [f"{count} x {reason}" for reason, count in self.excepted.items()]
        )


def brief(values: Array) -> str:
    """Return the first values as text."""
    flat = values.ravel()
    return ", ".join(f"{value:.7g}" for value in flat[:3].tolist()) + (", ..." if flat.size > 3 else "")


def apart(package: str) -> Callable[[], str]:
    """Return a `Judge.version` of a package that scripts/judges installs apart, without its requirements."""

    def version() -> str:
        folders = sorted(APART.glob(f"{package}-*.dist-info"))
        if not folders:
            raise CannotRunError(f"{package} is not installed: scripts/judges does that")
        return f"{package} {folders[-1].name.removesuffix('.dist-info').rpartition('-')[2]}"

    return version


def module_apart(name: str) -> Any:
    """Return a module of a package in .venv/judges, whose own top imports what is not needed here.

    Raises:
        CannotRunError: it is not installed.
    """
    package = name.partition(".")[0]
    if not (APART / package).is_dir():
        raise CannotRunError(f"{package} is not installed: scripts/judges does that")
    if package not in sys.modules:
        top = types.ModuleType(package)
        top.__path__ = [str(APART / package)]
        sys.modules[package] = top
    return importlib.import_module(name)


# Robust rules and attacks: ByzFL


class Crowd(NamedTuple):
    """Models of one merge, float64 [n, P], and the number of attackers among them."""

    kind: str
    models: Array
    attackers: int

    @property
    def where(self) -> str:
        """The case in words."""
        n, size = self.models.shape
        return f"{n} models of {size} values, {self.attackers} attackers, {self.kind}"


def crowds() -> Iterator[Crowd]:
    """Yield models of merges that float32 holds exactly, so that both sides begin with the same values."""
    rng = np.random.default_rng(7)
    for n, f, size in product((2, 3, 5, 8, 11, 20), (0, 1, 3, 5), (1, 6, 300)):
        if 2 * f >= n:
            continue
        plain = rng.normal(1.0, 0.5, (n, size))
        plain[n - f :] = rng.normal(-3.0, 2.0, (f, size))
        yield Crowd("float64", plain.astype(np.float32).astype(np.float64), f)
        yield Crowd("float16", plain.astype(np.float16).astype(np.float64), f)
        yield Crowd("ties", rng.integers(-1, 2, (n, size)).astype(np.float64), f)
        yield Crowd("equal points", np.repeat(plain[:1].astype(np.float32).astype(np.float64), n, axis=0), f)
        twins = plain.astype(np.float32).astype(np.float64)
        twins[n // 2 :] = twins[0]
        yield Crowd("half equal", twins, f)
        far = plain.astype(np.float32).astype(np.float64)
        far[n - max(f, 1) :] *= float(np.float32(1e15))
        yield Crowd("far out", far, f)
        if f:
            far = plain.astype(np.float32).astype(np.float64)
            far[n - f :] = float(np.float32(1e30))
            yield Crowd("farthest", far, f)


def merged(name: str, crowd: Crowd, **options: Any) -> tuple[Array, Array]:
    """Return the merge of equal weights under a rule, and the models' weights."""
    models = [row.astype(np.float32) for row in crowd.models]
    rule = make_rule({"name": name, **options})
    assert rule is not None
    found = combine(rule, models, [1 / len(models)] * len(models))
    return found.params.astype(np.float64), np.array(found.weights)


def exactness(crowd: Crowd) -> float:
    """Return the greatest error of means in float32, relative to the greatest value of the honest models."""
    return 4e-7 * float(np.sqrt(len(crowd.models)))


def judge_rules() -> Verdict:
    """Compare each rule that ByzFL has, too, on the same models."""
    rules = module_apart("byzfl.aggregators")
    found = Found()
    for crowd in crowds():
        n, f = len(crowd.models), crowd.attackers
        counted = {"attackers": f}
        where = crowd.where
        ours, _ = merged("median", crowd)
        found.close(ours, rules.Median()(crowd.models), f"median: {where}", exactness(crowd))
        ours, _ = merged("trimmed", crowd, **counted)
        found.close(ours, rules.TrMean(f)(crowd.models), f"trimmed: {where}", exactness(crowd))
        _judge_median_of_models(rules, crowd, where, found)
        _judge_choice({"name": "krum"}, rules.Krum(f), 1, crowd, found)
        _judge_choice({"name": "krum", "selected": 0}, rules.MultiKrum(f), n - f, crowd, found)
        _judge_choice({"name": "nna"}, rules.MoNNA(f), n - f, crowd, found)
        with_zero = Crowd(crowd.kind, np.concatenate([np.zeros_like(crowd.models[:1]), crowd.models]), f)
        rule = make_rule({"name": "scclip", "tau": 2.0})
        assert rule is not None
        weights = [0.0] + [1 / n] * n  # ByzFL clips towards zero, which is no model of its own
        clipped = combine(rule, [row.astype(np.float32) for row in with_zero.models], weights).params
        with np.errstate(divide="ignore"):
            theirs = rules.CenteredClipping(tau=2.0)(crowd.models)
        if np.isfinite(theirs).all():
            found.close(clipped, theirs, f"scclip: {where}", exactness(crowd))
        else:
            found.excuse("scclip of a model at the centre itself: ByzFL divides by the distance 0, and returns no number")
    return found.verdict("merges")


def _judge_median_of_models(rules: Any, crowd: Crowd, where: str, found: Found) -> None:
    """Compare geometric medians by the sum of distances, which they minimise: equal points make them slow or ambiguous."""
    _, weights = merged("rfa", crowd, nu=0.1, steps=300)
    ours = weights @ crowd.models
    theirs = rules.GeometricMedian(nu=0.1, T=300)(crowd.models)

    def cost(centre: Array) -> float:
        far = np.linalg.norm(crowd.models - centre, axis=1)
        return float(np.where(far < 0.1, far**2 / 0.2 + 0.05, far).sum())  # what the smoothed method minimises

    least = cost(theirs)
    found.expect(
        cost(ours) <= least * (1 + 1e-6), f"rfa: {where}: sum of distances {cost(ours):.9g}, the judge's {least:.9g}"
    )


def _judge_choice(options: Mapping[str, Any], judge: Any, chosen: int, crowd: Crowd, found: Found) -> None:
    """Compare rules that choose models by a score. On a tie each choice is right that has the judge's scores."""
    ours, weights = merged(crowd=crowd, attackers=crowd.attackers, **options)
    theirs = judge(crowd.models)
    text = f"{dict(options)}: {crowd.where}"
    scale = max(1.0, float(np.abs(theirs).max()))
    if np.abs(ours - theirs).max() <= exactness(crowd) * scale:
        found.expect(True, text)
        return
    picked = np.flatnonzero(weights)
    squares = np.square(crowd.models[:, None] - crowd.models[None]).sum(2)
    if options["name"] == "nna":
        scores = np.sqrt(squares[0])
    else:
        scores = np.sort(squares, axis=1)[:, 1 : len(squares) - crowd.attackers].mean(1)
    best = np.sort(scores)[:chosen]
    error = 1e-6 * max(1.0, float(best.max()))
    right = len(picked) == chosen and np.abs(np.sort(scores[picked]) - best).max() <= error
    found.expect(right, f"{text}: {brief(ours)}, the judge has {brief(theirs)}")
    if right:
        found.excuse("models of one score, between which both choices are right")


def judge_attacks() -> Verdict:
    """Compare each attack that ByzFL has, too; attackers and honest nodes began the round with zeros."""
    attacks, rules = module_apart("byzfl.attacks"), module_apart("byzfl.aggregators")
    found = Found()
    for crowd in crowds():
        n, f = len(crowd.models), crowd.attackers
        honest = crowd.models[: n - f]
        where = f"{n - f} honest models of {honest.shape[1]} values, {f} attackers, {crowd.kind}"
        if not f or crowd.kind in ("far out", "farthest"):  # there, the far ones are the attackers that are left out
            continue
        trimmed = {"name": "trimmed", "attackers": f}
        pairs = [
            ("sign-flip", {}, attacks.SignFlipping()),
            ("ipm", {}, attacks.InnerProductManipulation(tau=2.0)),
            ("mimic", {"node": 1}, attacks.Mimic(epsilon=1)),
            ("alie", {}, attacks.ALittleIsEnough(tau=1.5)),
        ]
        for name, options, judge in pairs:
            if name == "alie" and len(honest) == 1:
                found.excuse("alie of a single honest model: ByzFL's standard deviation is no number, ours is 0")
                continue
            ours = forged(name, options, honest, f, honest.mean(0))
            found.close(ours, judge(honest), f"{name}: {where}", exactness(crowd))
        searches: list[tuple[str, Any, Any, dict[str, Any]]] = [
            ("opt-ipm", attacks.Optimal_InnerProductManipulation, rules.Average(), {}),
            ("opt-ipm", attacks.Optimal_InnerProductManipulation, rules.TrMean(f), {"against": trimmed}),
            ("opt-alie", attacks.Optimal_ALittleIsEnough, rules.Average(), {}),
            ("opt-alie", attacks.Optimal_ALittleIsEnough, rules.TrMean(f), {"against": trimmed}),
        ]
        for name, kind, rule, options in searches:
            if name == "opt-alie" and len(honest) == 1:
                continue
            theirs = kind(agg=rule, pre_agg_list=[], f=f)(honest)
            ours = forged(name, options, honest, f, honest.mean(0))

            def harm(lie: Array, rule: Any = rule, honest: Array = honest, f: int = f) -> float:
                return float(np.linalg.norm(rule(np.concatenate([honest, [lie] * f])) - honest.mean(0)))

            scale = max(1.0, float(np.abs(theirs).max()))
            if np.abs(ours - theirs).max() <= 1e-5 * scale:
                found.expect(True, "")
                continue
            right = abs(harm(ours) - harm(theirs)) <= 1e-5 * max(1.0, harm(theirs))
            found.expect(right, f"{name} {options}: {where}: harm {harm(ours):.7g}, the judge's {harm(theirs):.7g}")
            if right:
                found.excuse("searches with steps of equal harm, of which rounding chooses another one")
    honest = np.ones((3, 4))
    refused = as_accepted(attacks.Inf()(honest).astype(np.float32), honest[0].astype(np.float32))
    found.expect((refused == 1).all(), "a model of infinite values, ByzFL's Inf, is not refused")
    _judge_noise(attacks, found)
    return found.verdict("forged models")


def forged(name: str, options: Mapping[str, Any], honest: Array, attackers: int, own: Array) -> Array:
    """Return the model that an attack publishes if the round began with zeros; `own` is the attacker's trained model."""
    names = [f"n{k:02}" for k in range(len(honest) + attackers)]
    view = HonestView(names[len(honest) :], {one: [other for other in names if other != one] for one in names})
    for one, model in zip(names, honest.astype(np.float32), strict=False):
        view.published(one, model)
    zeros = np.zeros(honest.shape[1], np.float32)
    me: Any = SimpleNamespace(params=zeros, initial=zeros, round=1, rng=lambda purpose: np.random.default_rng(3))
    return asyncio.run(make_attack(name, options).forge(Scene(me, own.astype(np.float32), view))).astype(np.float64)


def _judge_noise(attacks: Any, found: Found) -> None:
    """Compare the distributions of the attack `gaussian`."""
    from scipy import stats

    honest = np.zeros((2, 20_000))
    np.random.seed(5)  # ByzFL draws from NumPy's global generator
    theirs = attacks.Gaussian(sigma=2.0)(honest)
    chance = stats.ks_2samp(forged("gaussian", {"sigma": 2.0}, honest, 1, honest[0]), theirs).pvalue
    found.expect(chance > UNLIKELY, f"gaussian: draws of another distribution, p = {chance:.2g}")


# Fronts: pymoo and moocore


def fronts() -> Iterator[tuple[str, Array]]:
    """Yield sets of solutions, [n, m]; higher is better."""
    rng = np.random.default_rng(11)
    for size, m in product((1, 2, 7, 40, 200), (2, 3, 4)):
        yield f"{size} of {m} objectives", rng.uniform(0.05, 1.0, (size, m))
        sphere = np.abs(rng.normal(size=(size, m)))
        yield f"{size} on a sphere of {m} objectives", sphere / np.linalg.norm(sphere, axis=1, keepdims=True)
        yield f"{size} with ties of {m} objectives", rng.integers(1, 5, (size, m)) / 4
        yield f"{size} equal of {m} objectives", np.repeat(rng.uniform(0.1, 1.0, (1, m)), size, axis=0)
        yield f"{size} partly below the reference, of {m} objectives", rng.uniform(-0.5, 1.0, (size, m))
        yield f"{size} from 1e-3 to 1e6 of {m} objectives", 10 ** rng.uniform(-3, 6, (size, m))


def volume_of_cells(points: Array, reference: Sequence[float]) -> float:
    """Return the hypervolume as the sum of all cells of the grid through the points: slow, and plain."""
    edges = [np.unique([low, *np.maximum(column, low)]) for low, column in zip(reference, points.T, strict=True)]
    total = 0.0
    for cell in product(*(pairwise(values.tolist()) for values in edges)):
        if (points >= [high for _, high in cell]).all(1).any():
            total += float(np.prod([high - low for low, high in cell]))
    return total


def judge_fronts() -> Verdict:
    """Compare fronts with pymoo's and moocore's, hypervolumes with moocore's and a sum of cells, and IGD with both."""
    import moocore
    from pymoo.indicators.igd import IGD
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    found = Found()
    true = np.abs(np.random.default_rng(12).normal(size=(60, 4)))
    for name, points in fronts():
        m = points.shape[1]
        ours = non_dominated(points)
        first = NonDominatedSorting().do(-points, only_non_dominated_front=True)
        found.close(ours, np.unique(points[first], axis=0), f"front of pymoo: {name}", 0)
        kept = moocore.is_nondominated(points, maximise=True, keep_weakly=True)
        found.close(ours, np.unique(points[kept], axis=0), f"front of moocore: {name}", 0)
        reference = [0.02 * (k + 1) for k in range(m)]
        volume = hypervolume(points, reference)
        found.close(volume, moocore.hypervolume(points, ref=reference, maximise=True), f"hypervolume: {name}")
        if len(points) <= 7:
            found.close(volume, volume_of_cells(points, reference), f"hypervolume by cells: {name}")
        goal = true[:, :m] / np.linalg.norm(true[:, :m], axis=1, keepdims=True)
        distance = inverted_generational_distance(points, goal)
        found.close(distance, IGD(-goal)(-points), f"IGD of pymoo: {name}")
        found.close(distance, moocore.igd(points, ref=goal, maximise=True), f"IGD of moocore: {name}")
    return found.verdict("figures of fronts")


# Fairness of groups: fairlearn


LACKING = "a group has no sample of a label: fairlearn counts its rate as 0, p2pfl leaves the group out; judged without it"


class Decisions(NamedTuple):
    """Labels, decisions and groups of n samples, int [n] each."""

    labels: NDArray[np.int64]
    decisions: NDArray[np.int64]
    groups: NDArray[np.int64]

    def of_groups_with(self, label: int) -> Decisions:
        """Return the samples of groups that have a label."""
        kept = np.isin(self.groups, self.groups[self.labels == label])
        return Decisions(self.labels[kept], self.decisions[kept], self.groups[kept])

    def difference(self, name: str, groups: int, against: Any) -> float:
        """Return p2pfl's difference between groups."""
        labels, decisions, members = (torch.tensor(each, dtype=torch.float64) for each in self)
        return MEASURES[name](decisions, labels, members, groups, against).item()

    def judged(self, function: Any, method: str) -> float:
        """Return fairlearn's difference between groups; it refuses a table without samples."""
        if len(np.unique(self.groups)) < 2:
            return 0.0
        return float(function(self.labels, self.decisions, sensitive_features=self.groups, method=method))


def judge_fairness() -> Verdict:
    """Compare the differences between groups with fairlearn's, on tables with groups that lack a label as well."""
    import fairlearn.metrics as judge

    rates = {1: judge.true_positive_rate_difference, 0: judge.false_positive_rate_difference}
    whole = {"equal-opportunity": judge.equal_opportunity_difference, "equalised-odds": judge.equalized_odds_difference}
    counted = {"equal-opportunity": (1,), "equalised-odds": (1, 0)}
    found = Found()
    rng = np.random.default_rng(13)
    for case, (count, n) in enumerate([*product((1, 2, 3, 5), (2, 3, 10, 30, 500))] * 3):
        labels, decisions = ((rng.random(n) < rng.random()).astype(np.int64) for _ in range(2))
        table = Decisions(labels, decisions, rng.integers(0, count, n))
        for against, method in (("groups", "between_groups"), ("mean", "to_overall")):
            text = f"case {case}, {n} samples of {count} groups, {method}"
            theirs = table.judged(judge.demographic_parity_difference, method)
            found.close(table.difference("demographic-parity", count, against), theirs, f"demographic-parity: {text}")
            for name, function in whole.items():
                ours = table.difference(name, count, against)
                parts = {label: table.of_groups_with(label) for label in counted[name]}
                if all(len(part.labels) == n for part in parts.values()):
                    found.close(ours, table.judged(function, method), f"{name}: {text}")
                else:
                    theirs = max(part.judged(rates[label], method) for label, part in parts.items())
                    found.close(ours, theirs, f"{name}: {text}, groups lack a label")
                    found.excuse(LACKING)
    return found.verdict("differences")


# Division of samples: Flower's partitioners


def shares_of(name: str, labels: NDArray[np.int64], nodes: int, seed: int, **options: Any) -> Array:
    """Return how many samples of each class p2pfl gives each node, [nodes, classes]."""
    divide: Any = PARTITIONS[name]
    shares = divide(labels, nodes, np.random.default_rng(seed), **options)
    return np.array([np.bincount(labels[share], minlength=labels.max() + 1) for share in shares], np.float64)


def shares_of_flower(partitioner: Any, labels: NDArray[np.int64], nodes: int) -> Array:
    """Return how many samples of each class one of Flower's partitioners gives each node, [nodes, classes]."""
    import datasets

    partitioner.dataset = datasets.Dataset.from_dict({"label": labels.tolist()})
    parts = [np.array(partitioner.load_partition(node)["label"], np.int64) for node in range(nodes)]
    return np.array([np.bincount(part, minlength=labels.max() + 1) for part in parts], np.float64)


def judge_divisions() -> Verdict:
    """Compare the distributions of divisions with those of Flower, and of Dirichlet's with their exact marginals."""
    from scipy import stats

    judge = module_apart("flwr_datasets.partitioner")
    found = Found()
    nodes, classes, each, draws = 5, 4, 200, 20
    labels = np.repeat(np.arange(classes), each)
    for alpha in (0.1, 0.5, 1.0, 5.0, 100.0):
        ours = np.array([shares_of("dirichlet", labels, nodes, seed, alpha=alpha) for seed in range(draws)])
        options = {"partition_by": "label", "alpha": alpha, "min_partition_size": 0, "self_balancing": False}
        theirs = np.array(
            [
                shares_of_flower(judge.DirichletPartitioner(nodes, seed=seed, **options), labels, nodes)
                for seed in range(draws)
            ]
        )
        found.expect((ours.sum(1) == each).all(), f"dirichlet {alpha}: a sample is lost or given twice")
        text = f"dirichlet, alpha = {alpha}: shares of a class"
        # One node, all classes: the shares of different classes are independent, those of different nodes are not.
        chance = stats.ks_2samp(ours[:, 0].ravel() / each, theirs[:, 0].ravel() / each).pvalue
        found.expect(chance > UNLIKELY, f"{text} are distributed otherwise than Flower's, p = {chance:.2g}")
        many = np.array([shares_of("dirichlet", labels, nodes, seed, alpha=alpha)[0] for seed in range(1000, 1500)])
        jitter = np.random.default_rng(1).uniform(-0.5, 0.5, many.shape)  # whole samples: the steps are spread evenly
        exact = stats.beta(alpha, alpha * (nodes - 1))
        if alpha >= 1:  # below, most of the distribution lies within the first sample
            chance = stats.kstest(((many + jitter) / each).clip(0, 1).ravel(), exact.cdf).pvalue
            found.expect(chance > UNLIKELY, f"{text} do not follow their Beta distribution, p = {chance:.2g}")
        error = np.sqrt(exact.var() / many.size)
        found.expect(abs(many.mean() / each - 1 / nodes) < 4 * error, f"{text} have the mean {many.mean() / each:.4f}")
        spread = np.sqrt(stats.moment(many.ravel() / each, 4) / many.size)
        found.expect(abs(many.var() / each**2 - exact.var()) < 5 * spread, f"{text}: variance {many.var() / each**2:.4g}")
    for held in (1, 2, 3, 4):
        options = {"partition_by": "label", "num_classes_per_partition": held, "class_assignment_mode": "deterministic"}
        theirs = shares_of_flower(judge.PathologicalPartitioner(8, seed=1, **options), labels, 8)
        for seed in range(20):
            ours = shares_of("pathological", labels, 8, seed, classes=held)
            text = f"pathological, {held} classes, seed {seed}"
            found.expect(
                ((ours > 0).sum(1) == (theirs > 0).sum(1)).all(), f"{text}: numbers of classes differ from Flower's"
            )
            sizes, flowers = ours.sum(1), theirs.sum(1)
            found.expect(np.ptp(sizes) <= np.ptp(flowers), f"{text}: sizes of nodes differ more than Flower's")
            if not np.array_equal(np.sort(sizes), np.sort(flowers)):
                found.excuse(
                    "pathological: the remainder of a class goes to the smallest nodes, and with Flower to the first"
                )
            found.close(ours.sum(0), theirs.sum(0), f"{text}: samples of a class")
    theirs = shares_of_flower(judge.IidPartitioner(7), labels, 7)
    found.close(shares_of("iid", labels, 7, 0).sum(1), theirs.sum(1), "iid: sizes of nodes")
    tables = np.array([shares_of("iid", labels, 7, seed) for seed in range(200)])
    expected = tables.sum(2, keepdims=True) * tables.sum(1, keepdims=True) / labels.size
    statistic = float((np.square(tables - expected) / expected).sum())
    free = 200 * 6 * (classes - 1)
    chance = float(stats.chi2.sf(statistic, free))
    found.expect(UNLIKELY < chance < 1 - UNLIKELY, f"iid: classes and nodes are not independent, p = {chance:.2g}")
    return found.verdict("divisions and distributions")


# Training: torch


def judge_optimisers() -> Verdict:
    """Compare models after steps of each optimiser with torch's, alone and stacked, in float32 and float64."""
    found = Found()
    torch.set_num_threads(1)
    for kind, options, reference in (
        (SGD, {"lr": 0.1}, torch.optim.SGD),
        (SGD, {"lr": 0.1, "momentum": 0.9}, torch.optim.SGD),
        (SGD, {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.01}, torch.optim.SGD),
        (SGD, {"lr": 0.05, "weight_decay": 0.1}, torch.optim.SGD),
        (Adam, {}, torch.optim.Adam),
        (Adam, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}, torch.optim.Adam),
        (AdamW, {}, torch.optim.AdamW),
        (AdamW, {"lr": 0.01, "betas": (0.5, 0.9), "weight_decay": 0.3}, torch.optim.AdamW),
    ):
        for size, dtype, steps in product((1, 17, 70_000), (torch.float32, torch.float64), (1, 10)):
            generator = torch.Generator().manual_seed(1)
            start = torch.randn(2, size, generator=generator, dtype=dtype)
            gradients = torch.randn(steps, 2, size, generator=generator, dtype=dtype)
            gradients[:, 1] *= 1e-4
            optimiser: Any = kind(**options)
            ours, state = start.clone(), optimiser.start(start, steps)
            theirs = [torch.nn.Parameter(row.clone()) for row in start]
            judges: list[Any] = [reference([row], **options) for row in theirs]
            for gradient in gradients:
                optimiser.step(ours, gradient.clone(), state, ours)
                for judge, row, own in zip(judges, theirs, gradient, strict=True):
                    row.grad = own.clone()
                    judge.step()
            expected = torch.stack([row.detach() for row in theirs])
            exact = 2e-6 if dtype == torch.float32 else 1e-12
            text = f"{kind.__name__} {options}, {size} values of {dtype}, {steps} steps"
            worst = float(((ours - expected).abs() / expected.abs().clamp_min(1)).max())
            found.expect(worst <= exact, f"{text}: differs from torch's by {worst:.2g}")
    return found.verdict("trainings")


def judge_schedules() -> Verdict:
    """Compare the rate of each round with torch's schedulers."""
    module = torch.optim.lr_scheduler
    found = Found()
    pairs: list[tuple[str, dict[str, Any], Callable[[Any], Any], int]] = [
        ("step", {"every": 3, "factor": 0.5}, lambda of: module.StepLR(of, 3, 0.5), 40),
        ("step", {"every": 1, "factor": 0.9}, lambda of: module.StepLR(of, 1, 0.9), 40),
        ("exponential", {"factor": 0.97}, lambda of: module.ExponentialLR(of, 0.97), 40),
        ("inverse", {"half": 5}, lambda of: module.LambdaLR(of, lambda past: 1 / (1 + past / 5)), 40),
        ("linear", {"rounds": 10, "least": 0.2}, lambda of: module.LinearLR(of, 1.0, 0.2, 10), 40),
        ("linear", {"rounds": 7}, lambda of: module.LinearLR(of, 1.0, 0.0, 7), 40),
        ("cosine", {"rounds": 10, "least": 0.1}, lambda of: module.CosineAnnealingLR(of, 10, 0.1), 10),
        ("cosine", {"rounds": 25}, lambda of: module.CosineAnnealingLR(of, 25), 25),
    ]
    for name, options, make, rounds in pairs:
        for warmup in (0, 4):
            optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            judge = make(optimiser)
            if warmup:
                optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
                rising = module.LinearLR(optimiser, 1 / (warmup + 1), 1.0, warmup)
                judge = module.SequentialLR(optimiser, [rising, make(optimiser)], [warmup])
            ours = schedule(name, warmup=warmup, **options)
            for round in range(1, rounds + warmup + 2):
                text = f"{name} {options}, warmup {warmup}, round {round}"
                found.close(ours(round), optimiser.param_groups[0]["lr"], text, 1e-9)
                optimiser.step()
                judge.step()
    return found.verdict("rates")


def judge_losses() -> Verdict:
    """Compare losses and metrics with torch's and scikit-learn's."""
    import sklearn.metrics as judge
    from torch.nn import functional

    found = Found()
    for n, classes in product((1, 2, 30, 400), (2, 3, 10, 40)):
        generator = torch.Generator().manual_seed(n * classes)
        logits = torch.randn(n, classes, generator=generator, dtype=torch.float64) * 3
        targets = torch.randint(classes, (n,), generator=generator)
        text = f"{n} samples of {classes} classes"
        for given, exact in ((logits, 1e-12), (logits.float(), 2e-6), (logits * 1e3, 1e-12)):
            ours = losses.cross_entropy(given, targets)
            theirs = torch.stack(
                [functional.cross_entropy(row[None], y[None]) for row, y in zip(given, targets, strict=True)]
            )
            found.close(ours, theirs, f"cross-entropy: {text}", exact)
        scores, labels = logits.numpy(), targets.numpy()
        guess = scores.argmax(1)
        found.close(measures.accuracy(scores, labels), judge.accuracy_score(labels, guess), f"accuracy: {text}")
        with np.errstate(all="ignore"):
            theirs = judge.recall_score(labels, guess, average=None, labels=np.unique(labels), zero_division=0).mean()
        found.close(measures.balanced_accuracy(scores, labels), theirs, f"balanced accuracy: {text}")
        theirs = judge.f1_score(labels, guess, average="macro", zero_division=0)
        found.close(measures.f1(scores, labels), theirs, f"f1: {text}")
        if len(np.unique(labels)) == classes:
            chances = torch.softmax(logits, 1).numpy()
            theirs = judge.roc_auc_score(labels, chances[:, 1] if classes == 2 else chances, multi_class="ovr")
            found.close(measures.auc(scores, labels), theirs, f"auc: {text}")
        outputs = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        goals = outputs + torch.randn(n, 3, generator=generator, dtype=torch.float64)
        found.close(
            losses.squared_error(outputs, goals).mean(), functional.mse_loss(outputs, goals), f"squared error: {text}"
        )
        found.close(
            losses.absolute_error(outputs, goals).mean(), functional.l1_loss(outputs, goals), f"absolute error: {text}"
        )
        if n > 1:
            theirs = judge.r2_score(goals.numpy(), outputs.numpy(), multioutput="variance_weighted")
            found.close(measures.r2(outputs.numpy(), goals.numpy()), theirs, f"r2: {text}")
    return found.verdict("figures")


# Graphs: NetworkX


def graphs() -> Iterator[tuple[str, nx.Graph]]:
    """Yield graphs of each kind of p2pfl, and directed, weighted, divided and lonely ones."""
    for name, n in product(("complete", "ring", "star", "torus", "erdos-renyi", "clusters"), (9, 16, 30)):
        yield f"{name} of {n}", build(name, n, 3)
    for n in (6, 30):
        yield f"k-regular of {n}", build("k-regular", n, 3, degree=4)
        yield f"watts-strogatz of {n}", build("watts-strogatz", n, 3, degree=4, rewire=0.3)
        yield f"barabasi-albert of {n}", build("barabasi-albert", n, 3, edges=2)
    yield "one node", nx.empty_graph(1)
    yield "five lonely nodes", nx.empty_graph(5)
    for seed in range(12):
        yield f"random graph {seed}", nx.gnp_random_graph(12, 0.2, seed=seed)
        yield f"directed graph {seed}", nx.gnp_random_graph(12, 0.3, seed=seed, directed=True)
        weighted = nx.gnp_random_graph(12, 0.4, seed=seed)
        rng = np.random.default_rng(seed)
        for one, other in weighted.edges:
            weighted.edges[one, other]["weight"] = float(rng.uniform(0.5, 3.0))
        yield f"weighted graph {seed}", weighted


def judge_graphs() -> Verdict:
    """Compare the properties of graphs with NetworkX's, and spectral gaps with the eigenvalues that SciPy finds."""
    from scipy import linalg

    found = Found()
    for name, graph in graphs():
        ours = properties(graph)
        directed = graph.is_directed()
        parts = list(nx.strongly_connected_components(graph) if directed else nx.connected_components(graph))
        largest = graph.subgraph(max(parts, key=len))
        degrees = [degree for _, degree in (graph.in_degree() if directed else graph.degree())]
        found.close(ours["nodes"], graph.number_of_nodes(), f"{name}: nodes")
        found.close(ours["edges"], graph.number_of_edges(), f"{name}: edges")
        found.close(ours["components"], len(parts), f"{name}: components")
        expected = [min(degrees), np.mean(degrees), max(degrees)]
        found.close(list(ours["degree"].values()), expected, f"{name}: degrees")
        found.close(ours["largest_component"]["nodes"], len(largest), f"{name}: nodes of the largest component")
        if sum(len(part) == len(largest) for part in parts) == 1:
            found.close(ours["largest_component"]["diameter"], nx.diameter(largest), f"{name}: diameter")
        clustering = nx.average_clustering(nx.Graph(graph.edges) if directed else graph)
        if not directed or not list(nx.isolates(graph)):
            found.close(ours["clustering"], clustering, f"{name}: clustering")
        matrix = mixing_matrix(graph)
        found.close(matrix.sum(1), np.ones(len(graph)), f"{name}: sums of weights")
        if len(parts) == 1 and len(graph) > 1:
            values = np.sort(np.abs(linalg.eigvals(matrix)))
            found.close(ours["spectral_gap"], 1 - values[-2], f"{name}: spectral gap", 1e-7)
        if not directed and not ours["weighted"]:
            theirs = np.zeros((len(graph), len(graph)))
            for one, other in graph.edges:
                theirs[one, other] = theirs[other, one] = 1 / (1 + max(graph.degree[one], graph.degree[other]))
            laplacian = theirs - np.diag(theirs.sum(1))
            found.close(matrix, np.eye(len(graph)) + laplacian, f"{name}: Metropolis weights")
    return found.verdict("figures of graphs")


# Statistics of findings: SciPy and statsmodels


def judge_findings() -> Verdict:
    """Compare the differences of paired runs with SciPy's and statsmodels' paired tests."""
    from scipy import stats
    from statsmodels.stats.weightstats import DescrStatsW

    from p2pfl.sim.report.comparison import Comparison

    found = Found()
    rng = np.random.default_rng(17)
    for seeds in (2, 3, 5, 10, 30):
        for case in range(20):
            before = rng.normal(0.8, 0.05, seeds)
            after = before + rng.normal(0.02, 0.03, seeds)
            run: Any = SimpleNamespace(shown=SimpleNamespace(higher_is_better=True))
            ours = Comparison("a", run, run, tuple(range(seeds)), before, after)
            judge = DescrStatsW(after - before)
            text = f"{seeds} seeds, case {case}"
            found.close(ours.mean, judge.mean, f"mean of differences: {text}")
            found.close(ours.spread, np.sqrt(judge.var_ddof(1)), f"standard deviation of differences: {text}")
            # |mean| > s says the same as |t| > sqrt(n): the size of the effect (Cohen's d) is above 1.
            statistic = stats.ttest_rel(after, before).statistic
            found.expect(ours.decided == (abs(statistic) > np.sqrt(seeds)), f"decided: {text}")
    return found.verdict("figures of comparisons")


# Draws: chi-square tests

DRAWS = 1_000_000


def judge_draws() -> Verdict:
    """Test a million draws of peers by similarity, and of uniform sets, against the exact probabilities."""
    from scipy import special, stats

    found = Found()
    rng = np.random.default_rng(19)
    ids = [f"n{k}" for k in range(6)]
    similarities = np.array([0.5, 1.0, 0.25, 0.8, 0.9, 0.1])
    for tau in (0.0, 1.0, 5.0):
        chances = probabilities(similarities, tau)
        found.close(chances, special.softmax(tau * similarities), f"softmax, tau = {tau}", 1e-5)
        for m in (1, 2):
            seen: dict[tuple[str, ...], int] = {}
            for _ in range(DRAWS // 6):
                key = tuple(sample(rng, ids, chances, m))
                seen[key] = seen.get(key, 0) + 1
            expected: dict[tuple[str, ...], float] = {}
            for one, other in product(range(6), repeat=2):
                if m == 1:
                    expected[(ids[one],)] = chances[one]
                elif one < other:
                    a, b = chances[one], chances[other]
                    expected[ids[one], ids[other]] = a * b / (1 - a) + b * a / (1 - b)
            _judge_counts(stats, seen, expected, f"sample, {m} of 6, tau = {tau}", found)
    seen = {}
    for _ in range(DRAWS // 6):
        key = tuple(uniform(rng, ids, 2))
        seen[key] = seen.get(key, 0) + 1
    pairs = {(one, other): 1 / 15 for one, other in product(ids, ids) if one < other}
    _judge_counts(stats, seen, pairs, "uniform, 2 of 6", found)
    return found.verdict(f"distributions, {7 * (DRAWS // 6):,} draws")


def _judge_counts(stats: Any, seen: Mapping[Any, int], expected: Mapping[Any, float], text: str, found: Found) -> None:
    """Compare how often each outcome was drawn with its probability."""
    total = sum(seen.values())
    impossible = sorted(seen.keys() - expected.keys())
    found.expect(not impossible, f"{text}: the impossible outcome {impossible[:1]}")
    if impossible:
        return
    counts = [seen.get(key, 0) for key in expected]
    chance = float(stats.chisquare(counts, [total * share for share in expected.values()]).pvalue)
    found.expect(chance > UNLIKELY, f"{text}: {total:,} draws have another distribution, p = {chance:.2g}")


JUDGES = [
    Judge("rules", apart("byzfl"), "robust rules merge as ByzFL's", judge_rules),
    Judge("attacks", apart("byzfl"), "attacks forge what ByzFL's forge", judge_attacks),
    Judge("fronts", distribution("pymoo", "moocore"), "fronts, hypervolumes and IGD are theirs", judge_fronts),
    Judge("fairness", distribution("fairlearn"), "differences between groups are fairlearn's", judge_fairness),
    Judge("divisions", apart("flwr_datasets"), "divisions of samples are distributed as Flower's", judge_divisions),
    Judge("optimisers", distribution("torch"), "steps of optimisers are torch's", judge_optimisers),
    Judge("schedules", distribution("torch"), "learning rates by round are those of torch's schedulers", judge_schedules),
    Judge("losses", distribution("torch", "scikit-learn"), "losses and metrics are theirs", judge_losses),
    Judge("graphs", distribution("networkx", "scipy"), "properties and mixing weights of graphs are theirs", judge_graphs),
    Judge("findings", distribution("scipy", "statsmodels"), "comparisons of runs have their statistics", judge_findings),
    Judge("draws", distribution("scipy"), "draws by softmax and uniform ones pass a chi-square test", judge_draws),
]
