"""Deep reinforcement learning: shared and private parameters, determinism, and learnability of each environment."""

import random
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from p2pfl.algorithms.clustering import layers
from p2pfl.errors import ConfigurationError
from p2pfl.node.settings import Settings
from p2pfl.node.trainer import ThreadTrainer
from p2pfl.policies.local import Local
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.api import simulate
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.scenario.scenario import load
from p2pfl.task import Part, StatefulLearner, make_task
from p2pfl.tasks.morl import ENVIRONMENTS
from tests.support.depth import spread
from tests.support.federation import Federation, run

pytest.importorskip("mo_gymnasium", reason="needs the extra morl")

SMALL = {"learning_starts": 32, "net_arch": [16], "batch_size": 16, "buffer_size": 200}
UP, DOWN, LEFT, RIGHT = range(4)


def make(index=0, count=3, seed=0, settings=SMALL, **options):
    options = {"steps": 64, "rounds": 4, "settings": settings} | options
    return make_task("morl", options, Part(index, count), seed)


def learner(task, name="node"):
    return task.learner(RandomStreams(0, name))


def always(task, action):
    """The parameters of a Q-network that prefers one action everywhere."""
    tensors = task.layout.unflatten(np.zeros(task.layout.size, np.float32))
    bias = list(tensors)[-1]
    tensors[bias] = np.eye(4, dtype=np.float32)[action]
    return task.layout.flatten(tensors)


# Shared parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "networks", "size"),
    [
        ("deep-sea-treasure", {"q"}, 2 * 256 + 256 + 256 * 256 + 256 + 256 * 4 + 4),
        ("minecart", {"q"}, 7 * 256 + 256 + 256 * 256 + 256 + 256 * 6 + 6),
    ],
)
def test_q_network_has_the_sizes_of_the_paper(environment, networks, size):
    task = make_task("morl", {"environment": environment}, Part(0, 20), 0)
    assert task.layout.size == task.layout.n_trained == size
    assert {name.split(".")[0] for name, _ in task.layout.shapes} == networks
    assert len(layers(task.layout)) == 3


def test_ddpg_layout_has_actor_and_critic_but_no_target():
    task = make_task("morl", {"environment": "lunar-lander-continuous"}, Part(0, 20), 0)
    actor = 8 * 400 + 400 + 400 * 300 + 300 + 300 * 2 + 2
    critic = 10 * 400 + 400 + 400 * 300 + 300 + 300 + 1
    assert task.layout.size == actor + critic
    assert {name.split(".")[0] for name, _ in task.layout.shapes} == {"actor", "critic"}


def test_initial_model_depends_only_on_seed():
    first, other, another_seed = make(0).initial(7), make(1).initial(7), make(0).initial(8)
    assert first.dtype == np.float32
    assert (first == other).all()
    assert (first != another_seed).any()


def test_training_without_learning_returns_same_parameters():
    task = make()
    given = np.random.default_rng(0).normal(size=task.layout.size).astype(np.float32)
    idle = make(settings=SMALL | {"learning_starts": 10**6})  # it acts, but does not learn
    assert (learner(idle).train(given, round=1) == given).all()


# Equal bits


@pytest.mark.slow
def test_training_depends_on_seed_round_and_purpose_only():
    task = make()
    start = task.initial(0)
    trained = learner(task).train(start, round=1)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    again = learner(task).train(start, round=1)
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected  # the global generators are unaffected
    assert (again == trained).all()
    assert (trained != start).any()
    assert (learner(task).train(start, round=1, purpose="fine tuning") != trained).any()
    assert (learner(task, "other").train(start, round=1) != trained).any()


@pytest.mark.slow
def test_evaluation_does_not_affect_training():
    task = make()
    start = task.initial(0)
    one, other = learner(task), learner(task)
    trained = one.train(start, round=1)
    other.evaluate([start], ("test",))
    other.train(start, round=1)
    before = other.evaluate([start, trained], ("test",))
    assert other.evaluate([start, trained], ("test",)) == before
    assert (one.train(trained, round=2) == other.train(trained, round=2)).all()


# Private state


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", ["deep-sea-treasure", pytest.param("lunar-lander-continuous", marks=pytest.mark.slow)]
)
def test_learner_restored_from_state_trains_identically(environment):
    task = make(environment=environment)
    one, other, without = learner(task), learner(task), learner(task)
    assert isinstance(one, StatefulLearner)
    trained = task.initial(0)
    for round in range(1, 5):  # until old transitions are overwritten
        trained = one.train(trained, round=round)
    kept = one.state()
    other.restore({name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for name, array in kept.items()})
    after = one.train(trained, round=5)
    assert (other.train(trained, round=5) == after).all()
    assert (without.train(trained, round=5) != after).any()
    assert len(kept["buffer/rewards"]) == 200
    assert all(array.dtype.kind in "fiu" for array in kept.values())


def test_learner_refuses_state_of_other_settings():
    kept = learner(make())
    kept.train(make().initial(0), round=1)
    with pytest.raises(ConfigurationError, match="the checkpoint belongs to another environment or to other settings"):
        learner(make(settings=SMALL | {"net_arch": [8]})).restore(kept.state())


def played(folder, *rounds):
    """Run a node alone to each of these rounds, each time from its checkpoint as in a new process."""

    async def main(last):
        task = make()
        federation = Federation(("a",), Settings(rounds=last), folder=folder, policy=Local)
        federation.tasks["a"], federation.trainers["a"] = task, ThreadTrainer(learner(task))
        federation.start("a")
        await federation.done("a")
        return federation.nodes["a"].me.params

    folder.mkdir()
    for last in rounds:
        params = run(main(last))
    return params


@pytest.mark.slow
def test_node_restarted_from_checkpoint_learns_the_same(tmp_path):
    assert (played(tmp_path / "stopped", 2, 4) == played(tmp_path / "whole", 4)).all()


# Target networks


def targets_of(learner):
    """The target networks, flat, as a checkpoint contains them."""
    return np.concatenate([array.ravel() for name, array in learner.state().items() if name.startswith("target/")])


@pytest.mark.parametrize("environment", spread(["deep-sea-treasure", "lunar-lander-continuous"], 1))
def test_training_begins_with_targets_equal_to_the_received_model(environment):
    idle = SMALL | {"learning_starts": 10**6}  # it acts, but does not learn, so that the targets stay as they begin
    first = make(environment=environment, settings=idle).initial(0)
    received = first + np.float32(0.1)
    found = {}
    for targets in ("received", "kept"):
        one = learner(make(environment=environment, settings=idle, targets=targets))
        one.train(first, round=1)
        before = targets_of(one)
        one.train(received, round=2)
        found[targets] = targets_of(one) - before
    np.testing.assert_allclose(found["received"], 0.1, atol=1e-6)
    assert (found["kept"] == 0).all()


# Preferences and rewards


def test_morl_evaluation_reports_the_greedy_policy():
    task = make(preference=[0.75, 0.25])
    down, up = learner(task).evaluate([always(task, DOWN), always(task, UP)], ("validation", "test"))
    assert down == {
        "test_loss": pytest.approx(-0.275),
        "test_reward": pytest.approx(0.275),
        "test_treasure": pytest.approx(0.7),
        "test_time": -1.0,
    }
    assert (up["test_treasure"], up["test_time"]) == (0.0, -100.0)
    assert learner(task).loss([always(task, DOWN)], split="test") == pytest.approx([-0.275])
    assert np.isnan(learner(task).loss([always(task, DOWN)])).all()
    assert task.goals == {"treasure": True, "time": True}


@pytest.mark.slow
def test_preference_stays_private_and_determines_learning():
    options = {"steps": 1500, "rounds": 1, "settings": SMALL | {"net_arch": [32], "exploration_fraction": 1.0}}
    found = {}
    for weight in (0.0, 0.9):
        task = make(preference=[weight, 1 - weight], **options)
        it = learner(task)
        found[weight] = it.returns(it.train(task.initial(0), round=1)).tolist()
        assert task.public_info == {}
        assert "preference" not in repr(task)
    assert found[0.0] == pytest.approx([0.7, -1])  # a preference for time takes the nearest treasure
    assert found[0.9][0] > 5


def test_proximal_term_limits_the_change_of_the_model():
    task = make()
    start = task.initial(0)
    free = learner(task).train(start, round=1)
    held = learner(task).train(start, round=1, proximal=(1000.0, start))
    assert np.linalg.norm(held - start) < 0.5 * np.linalg.norm(free - start)


def test_exploration_rate_falls_over_share_of_rounds():
    from p2pfl.rl.morl_learner import exploration_rate  # imports the extra morl

    settings = make(settings={"exploration_fraction": 0.5, "exploration_final_eps": 0.1}).settings
    chances = [exploration_rate(settings, 10, round, within=0.0) for round in (1, 2, 4, 6, 10)]
    assert chances == pytest.approx([1.0, 0.82, 0.46, 0.1, 0.1])
    assert exploration_rate(settings, 10, 1, within=0.5) == pytest.approx(0.91)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"environment": "minecraft"}, "unknown task.environment 'minecraft'; did you mean 'minecart'"),
        ({"steps": 0}, "task.steps must be 1 or more"),
        ({"episodes": 0}, "task.episodes must be 1 or more"),
        ({"preference": [0.5, 0.4]}, "task.preference must be weights"),
        ({"settings": {"noise_std": 0.1}}, "unknown key 'task.settings.noise_std'"),
        ({"settings": {"buffer_size": 10**9}}, "task.settings.buffer_size must be from 1 to 10000000"),
        ({"settings": {"batch_size": 0}}, "task.settings.batch_size must be 1 or more"),
        ({"settings": {"gamma": 1.5}}, "task.settings.gamma must be from 0 to 1"),
        ({"settings": {"learning_rate": 0.0}}, "task.settings.learning_rate must be more than 0"),
        ({"settings": {"learning_starts": -1}}, "task.settings.learning_starts must be 0 or more"),
        ({"settings": {"gradient_steps": 0}}, "task.settings.gradient_steps must be 1 or more, or -1"),
        ({"settings": {"net_arch": []}}, "task.settings.net_arch must be 1 to 16 widths"),
        ({"settings": {"net_arch": [10**6]}}, "task.settings.net_arch must be 1 to 16 widths"),
        ({"settings": {"exploration_fraction": 0.0}}, "task.settings.exploration_fraction must be above 0"),
        ({"settings": {"exploration_final_eps": 2.0}}, "task.settings.exploration_final_eps must be from 0 to 1"),
        ({"environment": "halfcheetah", "settings": {"noise_std": -1.0}}, "task.settings.noise_std must be 0 or more"),
    ],
)
def test_morl_task_refuses_invalid_options(options, words):
    with pytest.raises(ConfigurationError, match=words):
        make(**options)


def test_morl_without_the_extra_names_the_extra(monkeypatch):
    monkeypatch.setattr("p2pfl.tasks.morl.NEEDED", ("gymnasium", "no_such_gymnasium"))
    with pytest.raises(ConfigurationError, match=r"the task morl needs no_such_gymnasium: pip install 'p2pfl-node\[morl\]'"):
        make()


def test_lander_without_box2d_names_the_library(monkeypatch):
    monkeypatch.setattr("p2pfl.tasks.morl.find_spec", lambda name: None if name == "Box2D" else find_spec(name))
    with pytest.raises(ConfigurationError, match="lunar-lander needs Box2D: pip install swig box2d"):
        make(environment="lunar-lander")


def test_training_leaves_no_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one = learner(task := make())
    one.train(task.initial(0), round=1)
    assert list(tmp_path.glob("SB3-*")) == []


# Several nodes


@pytest.mark.slow
@pytest.mark.parametrize("environment", spread([name for name in ENVIRONMENTS if name != "deep-sea-treasure"], 2))
def test_each_environment_trains_and_is_evaluated(environment, capfd):
    scenario = {
        "nodes": 2,
        "rounds": 2,
        "task": {
            "name": "morl",
            "environment": environment,
            "steps": 96,
            "episodes": 1,
            "settings": {"learning_starts": 64, "buffer_size": 1000, "batch_size": 16},
        },
        "policy": {"name": "fedpref", "min_similarity": -1.0},
    }
    (result,) = simulate(scenario)
    names = ENVIRONMENTS[environment].names
    points = np.array(result.summary["objectives"]["nodes"])
    assert points.shape == (2, len(names))
    assert np.isfinite(points).all()
    assert np.isfinite(result.summary["test"]["mean"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_nodes_of_a_run_in_processes_give_same_result():
    file = load("fedpref-morl-dst", ["form=smoke"]).only("fedpref")
    (here,), (shared,) = run_all(file, "local"), run_all(file, "process", workers=2)
    assert shared.summary["test"] == here.summary["test"]
    assert shared.summary["trace"] == here.summary["trace"]


@pytest.mark.slow
def test_returns_on_few_observations_equal_predictions(monkeypatch):
    from p2pfl.rl import morl_learner

    task = make(settings=SMALL)
    rng = np.random.default_rng(0)
    models = [rng.normal(0, 0.5, task.layout.size).astype(np.float32) for _ in range(20)]
    enumerated = [learner(task).returns(model).tolist() for model in models]
    monkeypatch.setattr(morl_learner, "grid_of", lambda _: None)
    assert [learner(task).returns(model).tolist() for model in models] == enumerated
    assert len({tuple(found) for found in enumerated}) > 1
