"""Scalarisation of several objectives: equal in all ways to train, with a preference that stays on its node."""

import asyncio
import struct
from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.kernels.dense_kernel import DenseKernel
from p2pfl.learning.kernels.kernel import VmapKernel
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import TorchTask, classification, multi_objective
from p2pfl.multiobjective.scalarisation import Objectives, SmoothTchebycheff, linear, scalarisation
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.settings import Settings
from p2pfl.node.status import endpoints as metrics
from p2pfl.node.status.observer import StatusObserver
from p2pfl.pareto_metrics import to_maximisation
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.queries import Evaluate, Loss, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.api import simulate
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import Part, group_of, make_task
from p2pfl.tasks.teachers import favourites, squared_errors
from tests.support.federation import play
from tests.support.logs import log_to

NODES = 6
CREWS = ("one by one", "dense", "vmap")
SCALARISATIONS = {
    "linear": {"name": "linear"},
    "tchebycheff": {"name": "tchebycheff", "gamma": 3.0},
    "divided": {"name": "tchebycheff", "divide": True},
}


def tensor(*values):
    return torch.tensor(values)


# Scalarisations


def test_linear_is_the_weighted_sum():
    assert linear(tensor(1.0, 2.0, 4.0), tensor(0.5, 0.25, 0.25)).item() == 2
    assert linear(torch.ones(5, 3), torch.full((5, 3), 1 / 3)).shape == (5,)


def test_smooth_tchebycheff_by_hand():
    losses, weights = tensor(1.0, 2.0), tensor(0.8, 0.2)
    product, quotient = SmoothTchebycheff(2.0), SmoothTchebycheff(1.0, divide=True)
    assert product(losses, weights).item() == pytest.approx(np.log(np.exp(1.6) + np.exp(0.8)) / 2)
    assert quotient(losses, weights).item() == pytest.approx(np.log(np.exp(1.25) + np.exp(10)), rel=1e-6)


def test_smooth_tchebycheff_approaches_the_maximum():
    losses, weights = tensor(3.0, 1.0, 2.0), tensor(0.2, 0.5, 0.3)
    for gamma in (1.0, 10.0, 1000.0):
        excess = SmoothTchebycheff(gamma)(losses, weights).item() - 0.6
        assert -1e-6 <= excess <= np.log(3) / gamma + 1e-6


def test_divided_tchebycheff_with_zero_weight_is_finite():
    losses = torch.tensor([0.5, 0.0], requires_grad=True)
    SmoothTchebycheff(1.0, divide=True)(losses, tensor(1.0, 0.0)).backward()
    assert losses.grad.isfinite().all()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "chebyshev"}, "unknown task.scalarisation 'chebyshev'; did you mean 'tchebycheff'"),
        ({"name": "tchebycheff", "gamma": 0.0}, "task.scalarisation.gamma must be more than 0"),
        ({"name": "linear", "gamma": 1.0}, "unknown key 'task.scalarisation.gamma'"),
    ],
)
def test_invalid_scalarisations_are_refused(table, words):
    with pytest.raises(ConfigurationError, match=words):
        scalarisation(table)


# Training


def gap(outputs, targets):
    """An objective that couples the samples of a batch: the squared difference of two groups' means."""
    first = (targets[:, 0] > 0).float().unsqueeze(1)
    means = [(outputs * group).sum() / group.sum().clamp_min(1) for group in (first, 1 - first)]
    return torch.stack([(outputs - targets[:, :1]).square().mean(), (means[0] - means[1]).square()])


def teachers(k, **options):
    return make_task("teachers", {"samples": 20 + k % 2, "validation": 5, "test": 30} | options, Part(k, NODES), 0)


def backend(kind, tasks):
    learners = [task.learner(RandomStreams(0, f"node-{k}")) for k, task in enumerate(tasks)]
    return SequentialLearner(learners) if kind == "one by one" else BatchedLearner(learners, by_hand=kind == "dense")


def jobs(tasks, **options):
    rng = np.random.default_rng(0)
    size = tasks[0].layout.size
    return [NodeQuery(k, Train(rng.normal(0, 0.3, size).astype(np.float32), 1, 2, **options)) for k in range(len(tasks))]


def difference(some, others):
    return max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("kind", CREWS[1:])
@pytest.mark.parametrize("name", SCALARISATIONS)
def test_stacked_nodes_with_own_preferences_equal_one_by_one(kind, name):
    tasks = [
        teachers(k, scalarisation=SCALARISATIONS[name], preferences={"name": "gaussian"}, lr=0.01) for k in range(NODES)
    ]
    alone, together = backend("one by one", tasks), backend(kind, tasks)
    assert isinstance(together.kernel, DenseKernel if kind == "dense" else VmapKernel)
    models = alone.compute(jobs(tasks))
    assert difference(models, together.compute(jobs(tasks))) < 1e-5
    some = [jobs(tasks)[k] for k in (4, 1)]
    assert difference([models[4], models[1]], together.compute(some)) < 1e-5
    asked = [NodeQuery(k, Evaluate([models[k], models[0]], ("validation", "test"))) for k in range(NODES)]
    for a, b in zip(alone.compute(asked), together.compute(asked), strict=True):
        assert a == [pytest.approx(row, rel=1e-4) for row in b]
    losses = [NodeQuery(k, Loss(models, "train")) for k in range(NODES)]
    assert difference(alone.compute(losses), together.compute(losses)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREWS)
def test_objectives_may_couple_samples_of_a_batch(kind):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 1))
    goals = Objectives(("error", "gap"), gap)
    tasks = [
        multi_objective(lambda: nn.Linear(3, 1), (x, y), None, (x, y), objectives=goals, preference=np.array([1 - w, w]))
        for w in (0.0, 0.5, 1.0)
    ]
    team, start = backend(kind, tasks), [np.array([1, 1, 1, 0], np.float32)] * 3
    models = start
    for round in range(1, 60):
        models = team.compute([NodeQuery(k, Train(model, round)) for k, model in enumerate(models)])
    found = [team.compute([NodeQuery(k, Evaluate([models[k]], ("test",)))])[0][0] for k in range(3)]
    assert found[0]["test_error"] < found[1]["test_error"] < found[2]["test_error"]
    assert found[0]["test_gap"] > found[1]["test_gap"] > found[2]["test_gap"]


@pytest.mark.parametrize("kind", CREWS)
def test_training_step_follows_weighted_sum_of_gradients(kind):
    task = teachers(0, lr=0.1, batch_size=100)
    start = jobs([task])[0].query.params
    (found,) = backend(kind, [task, teachers(2, lr=0.1, batch_size=100)]).compute([NodeQuery(0, Train(start, 1))])
    module = task.module()
    nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), module.parameters())
    x, y = task.data["train"]
    for j, weight in enumerate(task.preference):
        (weight * (module(x)[:, 0] - y[:, j]).square().mean()).backward()
    step = torch.cat([p.grad.flatten() for p in module.parameters()])
    assert np.abs(found - (start - 0.1 * step.numpy())).max() < 1e-6


@pytest.mark.parametrize("kind", CREWS)
def test_metrics_contain_objectives_and_weighted_reward(kind):
    tasks = [teachers(k) for k in range(NODES)]
    model = jobs(tasks)[0].query.params
    found = [
        row[0] for row in backend(kind, tasks).compute([NodeQuery(k, Evaluate([model], ("test",))) for k in range(NODES)])
    ]
    names = ["mse_0", "mse_1", "mse_2", "mse_3"]
    assert list(found[0]) == ["test_loss", "test_reward", *(f"test_{name}" for name in names)]
    for task, row in zip(tasks, found, strict=True):
        assert row["test_reward"] == -row["test_loss"]
        assert -row["test_reward"] == pytest.approx(task.preference @ [row[f"test_{name}"] for name in names])
    assert (
        to_maximisation(found, tasks[0].goals) == -np.array([[row[f"test_{name}"] for name in names] for row in found])
    ).all()


def test_single_objective_task_has_no_goals_and_weights():
    task = classification(lambda: nn.Linear(2, 2), (np.ones((4, 2)), np.zeros(4)))
    assert task.goals == {}
    assert task.weights(torch.device("cpu")) is None


def test_stacking_of_different_objectives_is_refused():
    tasks = [teachers(0), teachers(1, scalarisation=SCALARISATIONS["tchebycheff"])]
    with pytest.raises(ConfigurationError, match="differ in objectives"):
        backend("dense", tasks)


@pytest.mark.parametrize("weights", [[0.5, 0.4], [1.0], [2.0, -1.0]])
def test_multi_objective_task_refuses_invalid_preference(weights):
    with pytest.raises(ConfigurationError, match="preference must"):
        multi_objective(
            lambda: nn.Linear(1, 1),
            ([[0.0]], [[0.0, 1.0]]),
            objectives=Objectives(("a", "b"), squared_errors),
            preference=np.array(weights),
        )


def test_objectives_without_preference_are_refused():
    data = classification(lambda: nn.Linear(1, 2), ([[0.0]], [0])).data
    with pytest.raises(ConfigurationError, match="objectives and a preference, or neither"):
        TorchTask(lambda: nn.Linear(1, 2), data, objectives=Objectives(("a",), squared_errors))


# Teachers


def test_teacher_depends_on_its_own_inputs_only():
    task = teachers(0, noise=0.0, samples=400)
    x, y = (part.numpy() for part in task.data["train"])
    for j in range(4):
        own = np.linalg.norm(np.cov(np.sign(x).T, y[:, j])[-1, :-1][3 * j : 3 * j + 3])
        assert own > 0
    # Samples with similar inputs of a teacher have similar targets of this teacher.
    for j in range(4):
        part = x[:, 3 * j : 3 * j + 3]
        distances = np.linalg.norm(part[:, None] - part[None], axis=2) + 100 * np.eye(len(x))
        near = distances.argmin(1)
        assert np.corrcoef(y[:, j], y[near, j])[0, 1] > 0.5
        assert abs(np.corrcoef(y[:, j], y[near, (j + 1) % 4])[0, 1]) < 0.35


def test_teachers_nodes_share_only_teachers_and_test_set():
    first, second, other = teachers(0), teachers(1), make_task("teachers", {"test": 30}, Part(0, NODES), 1)
    assert first.data["test"].x is second.data["test"].x
    assert not torch.equal(first.data["train"].x[:20], second.data["train"].x[:20])
    assert not torch.equal(first.data["test"].y, other.data["test"].y)
    assert first.layout == second.layout


def test_teachers_noise_changes_only_targets():
    quiet, loud = teachers(0, noise=0.0, samples=2000), teachers(0, noise=0.3, samples=2000)
    assert torch.equal(quiet.data["train"].x, loud.data["train"].x)
    assert (quiet.data["train"].y - loud.data["train"].y).std().item() == pytest.approx(0.3, abs=0.01)


def test_teachers_default_preferences_favour_one_per_group():
    tasks = [teachers(k) for k in range(NODES)]
    assert favourites(4)[1] == pytest.approx([0.05, 0.85, 0.05, 0.05])
    assert [group_of(task) for task in tasks] == [0, 0, 1, 2, 2, 3]
    assert [int(task.preference.argmax()) for task in tasks] == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"teachers": 1}, "task.teachers must be 2 or more"),
        ({"samples": 0}, "task.samples must be 1 or more"),
        ({"noise": -1.0}, "task.noise must be 0 or more"),
        ({"preference": [1.0]}, "task.preference must have 4 weights"),
        ({"preference": [0.25, 0.25, 0.25, "x"]}, "task.preference is"),
    ],
)
def test_teachers_task_refuses_invalid_options(options, words):
    with pytest.raises(ConfigurationError, match=words):
        teachers(0, **options)


@pytest.mark.slow
def test_common_model_serves_preferences_worse_than_local():
    scenario = {
        "nodes": 8,
        "rounds": 15,
        "task": {"name": "teachers", "test": 200},
        "policy": {"name": "local", "epochs": 5},
    }
    (alone,) = simulate(scenario)
    (together,) = simulate(scenario | {"policy": {"name": "fedavg", "epochs": 5}})
    assert alone.summary["test"]["mean"] > together.summary["test"]["mean"] + 0.1
    shown = alone.summary["objectives"]
    assert shown["higher_is_better"] == dict.fromkeys(("mse_0", "mse_1", "mse_2", "mse_3"), False)
    assert np.array(shown["nodes"]).shape == (8, 4)
    assert together.summary["objectives"]["cardinality"] == 1  # one common model
    assert alone.summary["objectives"]["cardinality"] > 1
    assert alone.summary["groups"] == [str(k) for k in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert not alone.notes  # all nodes were trained as one stack


# Preferences stay on their nodes

SCORED = {"name": "dac", "neighbours": 2, "similarity": "inverse-loss", "score_on": "peer", "tau": 1.0}
COORDINATED = [
    {"name": "fedpref", "epsilon": 100.0, "patience": 1},
    {"name": "cfl", "epsilon_1": 100.0, "epsilon_2": 0.0},
    {"name": "matfl", "neighbours": 2},
    {"name": "coordinated-fedavg"},
]
POLICIES = [{"name": "random", "neighbours": 2}, SCORED, {"name": "fedavg"}, *COORDINATED]
TASKS = [{"name": "teachers", "test": 30, "samples": 20}, {"name": "deep-sea-treasure", "steps": 50}]


def frames_of(monkeypatch, task, policy):
    """Return every frame that nodes send each other in a run, in order, and the simulation."""
    frames, deliver = [], InProcessNetwork.deliver

    def record(network, link, frame):
        if frame is not None:
            frames.append(bytes(frame))
        return deliver(network, link, frame)

    monkeypatch.setattr(InProcessNetwork, "deliver", record)
    scenario = {"nodes": 4, "rounds": 3, "task": task, "policy": policy, "fidelity": "wire", "trainer": "one-by-one"}
    simulation = Simulation(resolve(scenario, [], name="private", folder=".").runs[0])
    simulation.run()
    monkeypatch.undo()
    assert len(frames) > 40
    return frames, simulation


def forms(number):
    """Return the forms of a number: as in msgpack and payloads, or in digits."""
    packed = [struct.pack(kind, number) for kind in ("<d", ">d", "<f", ">f")]
    return [*packed, repr(number).encode(), f"{number:.6f}".encode(), f"{number:.4e}".encode()]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["name"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["name"])
def test_messages_contain_no_preference(monkeypatch, task, policy):
    """Nor a loss or reward that reveals it. The test reads messages before a transport encrypts them."""
    frames, simulation = frames_of(monkeypatch, task | {"preferences": {"name": "dirichlet"}}, policy)
    sent = b"\0".join(frames)
    for task in simulation.plan.tasks:
        assert task.public_info == {}
        for weight in task.preference.tolist():
            assert not any(form in sent for form in forms(weight))
    table = simulation.recorder.rounds_table()
    figures = {figure for name in table if name.endswith(("_loss", "_reward")) for figure in table[name].tolist()}
    assert len(figures) > 4
    assert not any(form in sent for figure in figures for form in forms(figure))
    node = simulation.nodes["node-0"]
    models = [node.me.params, *(made.update.params for made in node.exchange.outbox.models.values())]
    assert any(model.tobytes() in sent for model in models)  # payloads are not encrypted here


def blind(part, seed, *, base, preferences, told=False, **options):
    """Make a task whose losses, reward and evaluation depend on the node's preference, but not its training.

    Args:
        told: whether the task tells its peers the losses of their models, as a task of a single objective does.
    """
    task = make_task(base, options | {"preferences": preferences}, part, seed)
    trained, reported = make_task(base, options, part, seed), copy(task)

    def learner(streams, device="cpu"):
        training, reporting = trained.learner(streams, device), reported.learner(streams, device)

        def compute(query):
            return (training if isinstance(query, Train) else reporting).compute(query)

        return SimpleNamespace(compute=compute, streams=streams)

    task.learner = learner
    if told:
        task.__class__ = type("Telling", (type(task),), {"goals": {}})
    return task


def blindly(monkeypatch, task, policy):
    """Return the frames and simulations of two runs with equal models and different preferences."""
    task = task | {"name": "tests.p2pfl.multiobjective.test_scalarisation:blind", "base": task["name"]}
    return [
        frames_of(monkeypatch, task | {"preferences": {"name": distribution}}, policy)
        for distribution in ("dirichlet", "equidistant")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["name"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["name"])
def test_messages_do_not_depend_on_preferences(monkeypatch, task, policy):
    (some, one), (others, other) = blindly(monkeypatch, task, policy)
    assert some == others
    for a, b in zip(one.nodes.values(), other.nodes.values(), strict=True):
        assert a.task.preference.tolist() != b.task.preference.tolist()
        assert a.me.params.tobytes() == b.me.params.tobytes() != a.me.initial.tobytes()
    rewards = [simulation.recorder.rounds_table()["merged_test_reward"].tolist() for simulation in (one, other)]
    assert rewards[0] != rewards[1]  # there is something to hide
    if policy["name"] in ("fedpref", "cfl"):
        assert len(set(one.recorder.clusters.tables()["clusters"]["cluster"])) > 1


@pytest.mark.slow
def test_messages_with_losses_would_depend_on_preferences(monkeypatch):
    """Control of the test above: if losses were sent, the messages would differ."""
    task = TASKS[0] | {"name": "tests.p2pfl.multiobjective.test_scalarisation:blind", "base": "teachers", "told": True}
    sent = []
    for distribution in ("dirichlet", "equidistant"):
        sent.append(frames_of(monkeypatch, task | {"preferences": {"name": distribution}}, SCORED)[0])
    assert sent[0] != sent[1]


class Forwarded:
    """Observer that forwards everything to another one, which is set later."""

    to = None

    def elected(self, node, elected): ...

    def __getattr__(self, name):
        return lambda *given: getattr(self.to, name)(*given)


def test_status_and_log_contain_no_preference(tmp_path):
    logged, shown, names = [], [], [f"n{k}" for k in range(4)]

    async def watched(federation):
        for name in names:
            federation.watch[name] = Forwarded()
            federation.nodes[name] = made = federation.make(name)
            status_observer = federation.watch[name].to = StatusObserver(tmp_path / name, made.exchange, log_to(logged))
            status_observer.begin(made)
            federation.running[name] = asyncio.create_task(made.run(made.exchange.others_done))
        await federation.done()
        shown.extend((tmp_path / name).read_bytes() for name in names)
        shown.extend(metrics.text(federation.watch[name].to.state) for name in names)

    federation = play(
        watched, names, Settings(rounds=3, deadline=10.0), task="tests.p2pfl.multiobjective.test_scalarisation:draw"
    )
    everything = b"\n".join([*shown, *(line.encode() for line in logged)])
    assert b"finished" in everything
    for task in federation.tasks.values():
        for weight in task.preference.tolist():
            assert not any(form in everything for form in [*forms(weight), repr(weight)[:6].encode()])


def draw(part, seed):
    return make_task("teachers", {"preferences": {"name": "dirichlet"}, "test": 30, "samples": 20}, part, seed)


@pytest.mark.slow
def test_peer_without_loss_is_left_out_in_both_fidelities():
    scenario = {"nodes": 4, "rounds": 3, "task": TASKS[0], "policy": SCORED, "trainer": "one-by-one"}
    results = [simulate(scenario | {"fidelity": fidelity})[0] for fidelity in ("modelled", "wire")]
    assert results[0].summary["test"] == results[1].summary["test"]
    assert results[0].summary["deadlines_expired"] == results[1].summary["deadlines_expired"] == 0


def test_repr_of_task_contains_no_preference():
    for task in (teachers(0), make_task("deep-sea-treasure", {}, Part(0, 4), 0)):
        assert "preference=" not in repr(task)
        assert "group=" not in repr(task)


def test_preference_is_not_part_of_the_shared_task():
    config = NodeConfig(name="a", listen=":0", task={"name": "teachers"}, preference=(0.7, 0.1, 0.1, 0.1))
    config.check()
    assert config.task == {"name": "teachers"}
    task = make_task("teachers", config.task_options(), Part(0, 2), 0)
    assert task.preference == pytest.approx([0.7, 0.1, 0.1, 0.1])
    shared = NodeConfig(name="a", listen=":0", task={"name": "teachers", "preference": [0.7, 0.1, 0.1, 0.1]})
    with pytest.raises(ConfigurationError, match=r"task.preference would be sent to the other members"):
        shared.check()


def test_sgd_with_zero_rate_leaves_models_unchanged():
    """The tests of messages above assume this."""
    task = teachers(0, lr=0.0)
    assert task.optimizer == SGD(0.0)
    (trained,) = backend("one by one", [task]).compute(jobs([task]))
    assert (trained == jobs([task])[0].query.params).all()
