"""IFCA, DFedPGP, gradient tracking and FedBN: rules by hand, limit cases, restarts, and live nodes."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import classification, regression
from p2pfl.policies.ad_psgd import AdPsgd
from p2pfl.policies.dfedpgp import DFedPgp
from p2pfl.policies.dsgd import Dsgd
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policies.fedbn import FedBn
from p2pfl.policies.fedrep import FedRep
from p2pfl.policies.gradient_tracking import GradientTracking
from p2pfl.policies.ifca import Ifca, permuted
from p2pfl.policies.sgp import Sgp
from p2pfl.policy import Budget
from p2pfl.sim.api import simulate
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory
from tests.support.restarted import Restarted

LR = 0.1
NAMES = [f"node-{k}" for k in range(6)]
SHIFTED = {name: make_task("concept-shift", {}, Part(k, 6), 0) for k, name in enumerate(NAMES)}
HEADED = {name: replace(task, private=["bias"]) for name, task in SHIFTED.items()}


def number(*targets):
    """Task with one weight w and the loss mean (w - y)^2: its gradient is 2 (w - mean of y)."""
    y = np.array(targets, np.float32)[:, None]
    return regression(lambda: nn.Linear(1, 1, bias=False), (np.ones_like(y), y), optimizer=SGD(LR))


def play(make, tasks=SHIFTED, rounds=3, **options):
    policies = {name: make() for name in tasks}
    return policies, *run_in_memory(policies, tasks, rounds, **options)


# IFCA


def test_ifca_finds_groups_with_opposite_targets():
    """Two groups of nodes need weights of opposite signs. A third of the tensor's values decides which model is nearer."""

    def sided(sign, seed):
        x = np.random.default_rng(seed).normal(size=(40, 4)).astype(np.float32)
        return regression(lambda: nn.Linear(4, 1), (x, sign * x[:, :1] + 2 * sign * x[:, 1:2]), optimizer=SGD(LR))

    tasks = {name: sided(1 if k % 2 else -1, k) for k, name in enumerate(NAMES)}
    policies, cast, history = play(lambda: Ifca(clusters=2), tasks, rounds=8)
    for k, name in enumerate(NAMES):
        assert history[-1][name].weights.keys() == {other for j, other in enumerate(NAMES) if j % 2 == k % 2}
        assert cast[name].params[:2] == pytest.approx(np.array([1, 2]) * (1 if k % 2 else -1), abs=0.05)
        assert [m.tobytes() for m in policies[name].models] == [m.tobytes() for m in policies[NAMES[0]].models]
    _, together, _ = play(FedAvg, tasks, rounds=8)
    assert abs(together["node-0"].params[:2]).max() < 0.5  # one model for both groups learns nothing


def test_ifca_keeps_models_that_nobody_trains():
    policies, cast, _ = play(lambda: Ifca(clusters=3), dict.fromkeys("ab", SHIFTED["node-0"]))  # of one group
    start, layout = cast["a"].initial, cast["a"].layout
    assert sorted(permuted(start, layout, np.random.default_rng(0))) == sorted(start)
    kept = [model for model in policies["a"].models if np.isin(model, start).all()]
    assert len(kept) == 2
    assert [model.tobytes() for model in policies["a"].models].count(cast["a"].params.tobytes()) == 1


def test_ifca_refuses_models_that_do_not_differ():
    """With one value in each tensor, all nodes would choose model 0 in every round, which is plain averaging."""
    with pytest.raises(ConfigurationError, match=r"the 3 models .* have the same loss"):
        play(lambda: Ifca(clusters=3), {"a": number(5.0), "b": number(-5.0)})


def test_ifca_ignores_cluster_numbers_that_are_not_valid():
    class Lying(Ifca):
        async def round(self, me, peers):
            trained = await me.train()
            await peers.publish(trained, {"cluster": np.array([-1.5])})
            return await super().round(me, _Silent(peers))

    class _Silent:
        def __init__(self, peers):
            self._peers = peers

        def __getattr__(self, name):
            return getattr(self._peers, name)

        async def publish(self, *_, **__):
            """The round has published already."""

    policies = {name: Lying() if name == "node-5" else Ifca() for name in NAMES}
    _, history = run_in_memory(policies, SHIFTED, 2)
    assert not any("node-5" in history[-1][name].weights for name in NAMES[:5])


# DFedPGP


def test_dfedpgp_on_complete_graph_is_the_plain_mean_of_fedrep():
    """All nodes have equally many samples, so that the weights of both are equal."""
    _, pushed, _ = play(lambda: DFedPgp(epochs=2, head_epochs=3), HEADED)
    _, averaged, _ = play(lambda: FedRep(epochs=2, head_epochs=3), HEADED)
    for name in NAMES:
        assert pushed[name].params == pytest.approx(averaged[name].params, rel=1e-4, abs=1e-5)
        kept, same = (cast[name].private_parameters.latest for cast in (pushed, averaged))
        assert kept == pytest.approx(same, rel=1e-4, abs=1e-5)


def test_dfedpgp_needs_a_private_head():
    with pytest.raises(ConfigurationError, match=r'set task\.private = "head"'):
        play(DFedPgp)


# Gradient tracking


def test_gradient_tracking_two_rounds_by_hand():
    targets = {"a": 0.0, "b": 3.0, "c": 7.0}
    policies, cast, _ = play(lambda: GradientTracking(steps=1), {id: number(y) for id, y in targets.items()}, rounds=2)
    x = dict.fromkeys(targets, float(cast["a"].initial[0]))
    tracked, before = dict.fromkeys(targets, 0.0), dict.fromkeys(targets, 0.0)
    for _ in range(2):
        step = {id: LR * 2 * (x[id] - y) for id, y in targets.items()}
        y = {id: tracked[id] + step[id] - before[id] for id in targets}
        mean = {id: np.mean([x[j] - y[j] for j in targets]) for id in targets}  # Metropolis: a third each
        tracked, before, x = dict.fromkeys(targets, np.mean(list(y.values()))), step, mean
    for id, policy in policies.items():
        assert cast[id].params[0] == pytest.approx(x[id], rel=1e-4)
        assert policy.tracked[0] == pytest.approx(tracked[id], rel=1e-4)


def test_gradient_tracking_agrees_where_decentralised_sgd_does_not():
    """Each node has its own minimum. At a constant step, the nodes of DSGD keep apart; those of gradient tracking meet."""
    targets = {name: number(float(k)) for k, name in enumerate(NAMES)}
    spread = {}
    for make in (lambda: Dsgd(steps=1, mixing=0.2), lambda: GradientTracking(steps=1, mixing=0.2)):
        policies, cast, _ = play(make, targets, rounds=150)
        found = np.array([float(cast[name].params[0]) for name in NAMES])
        spread[type(policies["node-0"])] = np.ptp(found)
        assert found.mean() == pytest.approx(2.5, abs=1e-3)
    assert spread[Dsgd] > 1
    assert spread[GradientTracking] < 1e-3


def test_gradient_tracking_refuses_what_changes_its_sums():
    with pytest.raises(ValueError, match="neither `momentum`"):
        GradientTracking(momentum=0.5)
    with pytest.raises(ValueError, match="never changes"):
        GradientTracking(weights="graph")
    targets = {name: number(float(k)) for k, name in enumerate(NAMES)}
    for budget in (Budget(models=9), Budget(held=9), Budget(bytes=9 * 4)):
        with pytest.raises(ConfigurationError, match="needs room for 10 models of 4 bytes, two of each neighbour"):
            play(GradientTracking, targets, budget=budget)
    options = {"nodes": 3, "rounds": 1, "task": {"name": "concept-shift"}, "policy": {"name": "gradient-tracking"}}
    with pytest.raises(ConfigurationError, match=r'GradientTracking needs mode = "synchronous"'):
        simulate({**options, "mode": "asynchronous"})


def test_gradient_tracking_within_a_budget_is_that_without_one():
    targets = {name: number(float(k)) for k, name in enumerate(NAMES)}
    found = [play(lambda: GradientTracking(steps=1), targets, budget=budget)[1] for budget in (None, Budget(models=10))]
    assert [me.params.tobytes() for me in found[0].values()] == [me.params.tobytes() for me in found[1].values()]


# FedBN


def normed(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 24)
    x = ((seed + 1) * rng.normal(size=(24, 4)) + 10 * seed + np.eye(3, 4)[y]).astype(np.float32)
    module = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))  # noqa: E731
    return classification(module, (x, y), optimizer=SGD(0.05), batch_size=8, private=["1"])


def test_fedbn_shares_all_layers_but_the_normalisation():
    tasks = {f"node-{k}": normed(k) for k in range(3)}
    _, cast, _ = play(FedBn, tasks)
    assert len({actor.params.tobytes() for actor in cast.values()}) == 1
    kept = [actor.private_parameters.layout.unflatten(actor.private_parameters.latest) for actor in cast.values()]
    for name in ("1.weight", "1.running_mean", "1.running_var"):
        assert len({tensors[name].tobytes() for tensors in kept}) == 3


class Noting:
    """A node that keeps the model of its last training."""

    def __init__(self, me):
        self._me = me

    def __getattr__(self, name):
        return getattr(self._me, name)

    async def train(self, *args, **options):
        self.last = await self._me.train(*args, **options)
        return self.last


def noting(policy):
    class Policy(policy):
        async def round(self, me, peers):
            own = Noting(me)
            merged = await super().round(own, peers)
            self.last = own.last
            return merged

    return Policy


UNKEPT = {name: replace(normed(k), private=[]) for k, name in enumerate("ab")}


@pytest.mark.parametrize(
    ("policy", "options", "shares"),
    [
        (GradientTracking, {"mixing": 0.5}, [0.25, 0.75]),
        (Dsgd, {"momentum": 0.5}, [0.5, 0.5]),
        (AdPsgd, {}, [0.5, 0.5]),
        (Sgp, {}, [0.8, 0.2]),
    ],
)
def test_running_variances_are_averaged_and_not_pushed(policy, options, shares):
    """A sum with factors of either sign would take a variance below 0, and the model's outputs would be NaN."""
    make = noting(policy)
    policies = {name: make(**options) for name in UNKEPT}
    n = UNKEPT["a"].layout.n_trained
    if policy is Sgp:
        policies["b"].weight = 0.25
    found, _ = run_in_memory(policies, UNKEPT, 1 if policy is Sgp else 4)
    ends = [policies["a"].last, policies["b"].last]
    if policy is AdPsgd:  # b has trained last, and averaged with the model that a has published
        ends[0] = found["a"].params
    mean = np.average(ends, 0, shares)
    assert found["b"].params[n:] == pytest.approx(mean[n:], rel=1e-4, abs=1e-5)
    assert found["b"].params[:n] != pytest.approx(mean[:n], rel=1e-3)


@pytest.mark.parametrize(
    ("private", "what"),
    [
        ([], "shares 1.weight"),
        (["3"], "shares 1.weight"),
        (["1.running_mean", "1.running_var"], "shares 1.weight"),
        (["1.weight", "1.bias"], "shares 1.running_mean"),
    ],
)
def test_fedbn_needs_private_normalisation(private, what):
    with pytest.raises(ConfigurationError, match=rf'this one {what}: set task\.private = "norm"'):
        play(FedBn, {name: replace(normed(0), private=private) for name in "ab"})
    with pytest.raises(ConfigurationError, match="keeps no batch normalisation"):
        play(FedBn, HEADED)


@pytest.mark.parametrize("norm", ["batch", ""])
def test_images_keep_normalisation_layers_private(norm):
    options = {"data": "digits", "model": {"name": "cnn", "channels": [4], "kernel": 3, "norm": norm}, "private": "norm"}
    if not norm:
        with pytest.raises(ConfigurationError, match="no normalisation layer to keep private"):
            make_task("images", options, Part(0, 3), 0)
        return
    layout = make_task("images", options, Part(0, 3), 0).layout
    assert layout.private == ("1.weight", "1.bias", "1.running_mean", "1.running_var")


# All


MADE = {
    "ifca": (lambda: Ifca(clusters=2), SHIFTED),
    "dfedpgp": (DFedPgp, HEADED),
    "gradient-tracking": (lambda: GradientTracking(steps=2), SHIFTED),
    "fedbn": (FedBn, {f"node-{k}": normed(k) for k in range(3)}),
}


@pytest.mark.parametrize("name", MADE)
def test_run_after_restart_is_identical(name):
    make, tasks = MADE[name]
    _, through, _ = play(make, tasks, rounds=4)
    _, again, _ = play(lambda: Restarted(make), tasks, rounds=4)
    assert all(through[id].params.tobytes() == again[id].params.tobytes() for id in tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ifca", "gradient-tracking"])
def test_modelled_equals_wire_bit_for_bit(name):
    scenario = {
        "nodes": 4,
        "rounds": 4,
        "task": {"name": "concept-shift"},
        "policy": {"name": name},
        "trainer": "one-by-one",
    }
    traces = []
    for kind in ("modelled", "wire"):
        (result,) = simulate({**scenario, "fidelity": kind})
        traces.append(result.summary["test"])
    assert traces[0] == traces[1]
