"""Canaries in one run: a lower bound of the epsilon that the released models spend.

The data of each node with a budget are replaced by canaries, crafted samples of which each is there with probability 1/2,
by a fair coin; in place of the others, and of the rest of the node's samples, are samples that count for nothing (see
p2pfl.sim.audit.mechanism). The promise of p2pfl.privacy is for every data set, so that what is refuted with these is
refuted. The scenario runs with them as it is: its policy, its rounds, its optimiser, its noise. The attacker knows all
canaries, the start of each training, and the released models, and guesses of the canaries of which it is most certain
whether they were there. Under (epsilon, delta)-differential privacy, the number of its right guesses is at most that of
biased coins, whatever it does (Steinke, Nasr, Jagielski 2023): so many right guesses that coins give them with a
probability below 5 % refute epsilon. The bound is loose: with m canaries it cannot exceed log(m) by much, even if all
guesses are right. Where all nodes have the same plan, a second bound assumes that only the noise is in doubt, and compares
the guesses with the whole trade-off between errors that a noise gives (Mahloujifar, Melis, Chaudhuri 2025).

The strongest canary is one whose clipped gradient has the whole norm of the clip in a direction of its own (Nasr et al.
2023). For a chain of linear layers a canary has a single input that is not 0, which no other canary has: it moves a
column of the first matrix that nobody else moves. For other modules the inputs are random signs.

The score of a canary in a training is its share in the released sum of steps: the linear estimate with the least squared
error of how often each canary has entered, from the gradients at the start of the training, the noise and the rate; scores
add up over trainings. If the noise of one tensor is missing, the canaries show in this tensor alone; therefore the attack is
repeated on some tensors alone, and its error divided among all attacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.parameters import Parameters
from p2pfl.privacy import LEAST_NOISE, PrivacyPlan, deltas_of, epsilon_of
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.audit.mechanism import filled
from p2pfl.sim.audit.releases import Attacked, Release, Watch, observe, with_samples
from p2pfl.sim.audit.statistics import CONFIDENCE, Curve, epsilon_of_guesses, refutes_curve
from p2pfl.sim.scenario.scenario import Scenario

ENOUGH = 1000  # canaries of all nodes and runs
MOST_RUNS = 8
MOST_OF_NODE = 128
MOST_NODES = 64  # that have canaries
ALONE = 3  # tensors that are attacked alone
SHARES = (1.0, 0.5, 0.125, 0.03)  # of the canaries, of which the attacker guesses the most certain ones
AMPLE = 2.0  # times the clip: norm of a canary's gradient before it is clipped
RIDGE = 1e-4  # of the least squares for a tensor alone
EPSILONS = np.concatenate([np.linspace(0, 4, 41), np.linspace(4.25, 16, 48)])  # points of a trade-off
WIDEST, HALVINGS = 8.0, 8  # times the planned noise, up to which a refuted noise is sought, and steps of the search
SEEDS = 1_000_003  # distance of the seeds of several runs


def attack_by_canaries(
    scenario: Scenario, graph: Any, plans: Sequence[PrivacyPlan | None], tasks: Sequence[TorchTask]
) -> dict[str, Any]:
    """Return the epsilon that guesses about canaries refute, beside the promised one, for audit.json.

    Args:
        plans: the plan of each node, None for a node without a budget; at least one has one.
        tasks: of each node.
    """
    budgets = [plan for plan in plans if plan is not None]
    with_budget = [node for node, plan in enumerate(plans) if plan is not None][:MOST_NODES]
    plans = [plan if node in with_budget else None for node, plan in enumerate(plans)]
    each = [_count(task, plan) for task, plan in zip(tasks, plans, strict=True)]
    runs = min(MOST_RUNS, -(-ENOUGH // max(1, sum(each))))
    trials = [_Trial(scenario, SEEDS * run, tasks, plans) for run in range(runs)]
    for trial in trials:
        trial.run(graph)
    there = np.concatenate([trial.there for trial in trials])
    scores = {name: np.concatenate([trial.scores[name] for trial in trials]) for name in trials[0].scores}
    delta = max(plan.privacy.delta for plan in budgets)
    error = (1 - CONFIDENCE) / (len(scores) * len(SHARES))
    best: dict[str, Any] = {"epsilon": 0.0, "guesses": 0, "right": 0, "tensor": "all"}
    tried: list[tuple[int, int]] = []
    for name, score in scores.items():
        order = np.argsort(score, kind="stable")
        for share in SHARES:
            half = max(1, int(share * len(order) / 2))
            right = int(there[order[-half:]].sum() + (~there[order[:half]]).sum())
            tried.append((2 * half, right))
            found = epsilon_of_guesses(len(order), 2 * half, right, delta, error)
            if found > best["epsilon"]:
                best = {"epsilon": found, "guesses": 2 * half, "right": right, "tensor": name}
    promised = max(plan.epsilon(plan.steps) for plan in budgets)
    alike = len({(plan.rate, plan.steps, _hidden(plan), plan.privacy.delta) for plan in budgets}) == 1
    return {
        "nodes": len(with_budget),
        "canaries": len(there),
        "runs": runs,
        "promised": promised,
        "delta": delta,
        "at_least": best.pop("epsilon"),
        **({"by_curve": _by_curve(budgets[0], len(there), tried, error)} if alike else {}),
    } | best


def _hidden(plan: PrivacyPlan) -> float:
    """Return the standard deviation of the noise that protects a sample, divided by the clip."""
    return plan.hidden or plan.mechanism.noise


def _by_curve(plan: PrivacyPlan, canaries: int, tried: Sequence[tuple[int, int]], error: float) -> float:
    """Return the epsilon of the least noise that guesses refute; 0 if they refute none.

    A pair of epsilon and delta is one point of the trade-off that a noise gives. The whole curve is refuted sooner, if all
    that is in doubt is the noise: the rate and the number of steps are those of the plan.

    Args:
        tried: pairs of the number of guesses and of the right ones.
    """

    def refuted(noise: float) -> bool:
        curve = Curve(EPSILONS, np.array(deltas_of(plan.rate, noise, plan.steps, EPSILONS.tolist())))
        return any(refutes_curve(curve, canaries, guesses, right, error) for guesses, right in tried)

    low, high = max(LEAST_NOISE, _hidden(plan) / WIDEST), WIDEST * _hidden(plan)
    if not refuted(high):
        return 0.0
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return epsilon_of(plan.rate, high, plan.steps, plan.privacy.delta)


def _count(task: TorchTask, plan: PrivacyPlan | None) -> int:
    """Return the number of canaries of a node."""
    if plan is None:
        return 0
    return min(task.n_samples, MOST_OF_NODE, int(np.prod(task.data["train"].x.shape[1:])))


class _Trial:
    """One run with canaries.

    Args:
        shift: what is added to the seed of the scenario for all draws but those of the first model.

    Attributes:
        there: whether each canary of each node was there, bool [m].
        scores: the score of each canary, [m], by what was attacked: all values, or a tensor.
    """

    def __init__(
        self, scenario: Scenario, shift: int, tasks: Sequence[TorchTask], plans: Sequence[PrivacyPlan | None]
    ) -> None:
        self._scenario, self._seed = scenario, scenario.seed + shift
        self._tasks, self._plans = tasks, plans
        self._attacked = Attacked(tasks[0], scenario.seed)
        self._initial = tasks[0].initial(scenario.seed)
        self._most = max(_count(task, plan) for task, plan in zip(tasks, plans, strict=True))
        self._canaries: dict[int, Samples] = {}
        self._there: dict[int, np.ndarray] = {}
        self._scores: dict[str, dict[int, np.ndarray]] = defaultdict(dict)

    def run(self, graph: Any) -> None:
        job = replace(self._scenario, seed=self._seed)
        observe(job, graph, Watch(job.nodes, self._see, self._change), self._initial)
        nodes = sorted(self._there)
        self.there = np.concatenate([self._there[node] for node in nodes])
        self.scores = {name: np.concatenate([of[node] for node in nodes]) for name, of in self._scores.items()}

    def _change(self, node: int, task: TorchTask) -> TorchTask:
        plan, task = self._plans[node], self._tasks[node]  # of the scenario's seed, with as many samples
        if plan is None:
            return task
        draws = RandomStreams(self._seed, f"audit {node}").generator(0, "canaries")
        made = canaries(self._attacked, self._initial, _count(task, plan), plan.mechanism.clip, draws)
        there = draws.random(len(made.x)) < 0.5
        self._canaries[node], self._there[node] = made, there
        for name in self._parts():
            self._scores[name][node] = np.zeros(len(made.x))
        kept = torch.from_numpy(np.flatnonzero(there))
        return with_samples(task, filled(task, Samples(made.x[kept], made.y[kept]), task.n_samples), evaluated=False)

    def _parts(self) -> dict[str, slice]:
        """Return the places of what is attacked: all values, and the last tensors that can tell the canaries apart."""
        tensors = {name: place for name, place in self._attacked.tensors() if place.stop - place.start >= 2 * self._most}
        last = list(tensors)[-ALONE:]
        return {"all": slice(0, self._attacked.task.layout.n_trained)} | {name: tensors[name] for name in last}

    def _see(self, release: Release) -> None:
        node, plan = release.node, self._plans[release.node]
        if plan is None or release.start is None:
            return
        gradients = self._attacked.gradients(release.start, self._canaries[node], plan.mechanism.clip).astype(np.float64)
        change = release.start.astype(np.float64) - release.model
        noise = (plan.mechanism.noise or plan.hidden) ** 2 / plan.rate  # of all submissions, if the steps have none
        for name, place in self._parts().items():
            part = gradients[:, place] / plan.mechanism.clip
            products = part @ part.T
            ridge = noise if name == "all" else RIDGE * float(np.trace(products)) / len(products)
            estimate = np.linalg.solve(products + ridge * np.eye(len(products)), part @ change[place])
            self._scores[name][node] += estimate


def canaries(attacked: Attacked, start: Parameters, count: int, clip: float, draws: np.random.Generator) -> Samples:
    """Return crafted samples whose gradients at a model are longer than the clip, if a scale of the inputs does that."""
    x, y = attacked.task.data["train"]
    size = int(np.prod(x.shape[1:]))
    if attacked.chain:
        places = draws.permutation(size)[:count]
        shapes = np.zeros((count, size), np.float32)
        shapes[np.arange(count), places] = 1
    else:
        shapes = draws.choice(np.array([-1, 1], np.float32), (count, size))
    classes = not y.is_floating_point()
    if classes:
        outputs = attacked.outputs(torch.from_numpy(start), x[:1]).shape[1]
        targets = torch.from_numpy(draws.integers(0, outputs, (count, *y.shape[1:]))).to(y.dtype)
    else:
        signs = draws.choice(np.array([-1, 1], np.float32), (count, *y.shape[1:]))
        targets = torch.from_numpy(signs * np.float32(1e4)).to(y.dtype)
    inputs = torch.from_numpy(shapes).reshape(count, *x.shape[1:]).to(x.dtype)
    for scale in 2.0 ** np.arange(12):
        made = Samples(inputs * float(scale), targets)
        norms = np.linalg.norm(attacked.gradients(start, made, 1e30), axis=1)
        if np.median(norms) >= AMPLE * clip:
            break
    return made
