"""Deep-sea treasure and its learner: the environment by its definition, and Q-learning by hand."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.pareto_metrics import hypervolume, non_dominated
from p2pfl.random_streams import RandomStreams
from p2pfl.rl.tabular_q_learning import Environment, TabularTask, random_actions
from p2pfl.sim.api import simulate
from p2pfl.task import Part, group_of, make_task
from p2pfl.tasks.deep_sea_treasure import DEPTHS, FRONT, ROWS, TREASURES, environment

UP, DOWN, LEFT, RIGHT = range(4)
COLUMNS = len(DEPTHS)


def walk(*actions):
    """Return the rewards of a walk from the start, whether it ended, and its last state; it must not end early."""
    sea, state, total = environment(), 0, np.zeros(2)
    for k, action in enumerate(actions):
        total += sea.rewards[state, action]
        assert not sea.ends[state, action] or k == len(actions) - 1
        ended, state = sea.ends[state, action], sea.next[state, action]
    return total.tolist(), bool(ended), int(state)


def make(index=0, count=4, **options):
    return make_task("deep-sea-treasure", options, Part(index, count), 0)


def learner(task, name="node"):
    return task.learner(RandomStreams(0, name))


# The environment


@pytest.mark.parametrize("column", range(COLUMNS))
def test_treasure_ends_the_episode_and_is_on_the_front(column):
    returns, ended, _ = walk(*[RIGHT] * column, *[DOWN] * DEPTHS[column])
    assert ended
    assert returns == [TREASURES[column], -(column + DEPTHS[column])]
    assert tuple(returns) == FRONT[column]


def test_treasures_match_the_published_map():
    assert TREASURES == (0.7, 8.2, 11.5, 14.0, 15.1, 16.1, 19.6, 20.3, 22.4, 23.7)
    assert [-time for _, time in FRONT] == [1, 3, 5, 7, 8, 9, 13, 14, 17, 19]
    assert environment().next.shape == (ROWS * COLUMNS, 4)
    assert len(non_dominated(np.array(FRONT))) == 10


def test_map_edge_and_rock_stop_submarine_but_not_time():
    assert walk(UP, LEFT, UP) == ([0, -3], False, 0)
    assert walk(*[RIGHT] * 12)[2] == 9
    returns, ended, state = walk(*[RIGHT] * 6, *[DOWN] * 6, LEFT)  # rock to the left, in row 6 of column 5
    assert (returns, ended, state) == ([0, -13], False, 6 * COLUMNS + 6)


def test_treasure_can_be_reached_from_the_side():
    returns, ended, _ = walk(*[RIGHT] * 5, *[DOWN] * 3, LEFT, DOWN)
    assert (returns, ended) == ([15.1, -10], True)


def test_reachable_cells_lie_above_treasures():
    sea = environment()
    reached, new = {0}, [0]
    while new:
        state = new.pop()
        for action in range(4):
            after = int(sea.next[state, action])
            if not sea.ends[state, action] and after not in reached:
                reached.add(after)
                new.append(after)
    assert reached == {COLUMNS * r + c for c, depth in enumerate(DEPTHS) for r in range(depth)}


# The learner


def corridor(**options):
    """Two states: action 1 advances, the second time to the end with (4, 1); action 0 stays. A step gives (0, -1)."""
    rewards = np.zeros((2, 2, 2))
    rewards[..., 1] = -1
    rewards[1, 1] = [4, 1]
    ends = np.array([[False, False], [False, True]])
    sea = Environment(np.array([[0, 1], [1, 1]]), rewards, ends, ("gain", "cost"))
    options = {"steps": 400, "explore_rounds": 1e9, "discount": 0.5} | options
    return TabularTask(sea, np.array([0.75, 0.25]), **options)


def test_q_values_converge_to_the_optimal_policy():
    task = corridor(lr=0.5)
    q = learner(task).train(task.initial(0), round=1).reshape(2, 2)
    # 0.75 * 4 + 0.25 = 3.25 at the end; -0.25 + 3.25 / 2 = 1.375 before it; waiting gives half of each, less 0.25.
    assert q == pytest.approx(np.array([[0.4375, 1.375], [1.375, 3.25]]), abs=1e-3)


def test_q_learning_step_by_hand():
    task = corridor(steps=1, lr=0.5, explore_rounds=1e-9, explore_least=0.0)
    start = np.array([0, 1, 8, 2], np.float32)  # the best is action 1, then worth 8
    assert learner(task).train(start, round=2).tolist() == [0, 1 + 0.5 * (-0.25 + 0.5 * 8 - 1), 8, 2]
    anchor = np.full(4, 3, np.float32)
    pulled = learner(task).train(start, round=2, proximal=(0.1, anchor))
    assert pulled == pytest.approx([0, 1 + 0.5 * (-0.25 + 4 - 1 - 0.1 * (1 - 3)), 8, 2])


def test_q_learning_epoch_has_given_number_of_steps():
    task = corridor(steps=3, lr=0.5, explore_rounds=1e-9, explore_least=0.0, longest=1)  # always from the start
    start = np.array([0, 1, 0, 0], np.float32)
    assert learner(task).train(start, round=2).tolist() == [0, -0.09375, 0, 0]  # 1, .375, .0625: until waiting is better
    assert learner(task).train(start, round=2, epochs=2).tolist() == [-0.21875, -0.171875, 0, 0]


def test_exploration_falls_from_one_to_the_minimum():
    task = corridor(steps=1000, explore_rounds=10.0, explore_least=0.1)

    def share(round):
        rng = RandomStreams(0, "a").generator(round, "train")
        return np.mean([action >= 0 for action in random_actions(task, rng, round, 1000)])

    assert share(1) == pytest.approx(1 - 0.9 * 0.05, abs=0.03)
    assert share(6) == pytest.approx(1 - 0.9 * 0.55, abs=0.05)
    assert share(12) == pytest.approx(0.1, abs=0.04)


def test_q_learning_is_pure_and_seeded_by_round_and_purpose():
    task = make(2)
    start = task.initial(5)
    some = [learner(task).train(start, round=r, purpose=p) for r, p in [(1, "train"), (1, "train"), (2, "train"), (1, "b")]]
    assert (start == 0).all()
    assert some[0].dtype == np.float32
    assert some[0].shape == (440,) == (task.layout.size,)
    assert (some[0] == some[1]).all()
    assert (some[0] != some[2]).any()
    assert (some[0] != some[3]).any()
    assert (learner(task, "other").train(start, round=1) != some[0]).any()


def test_q_learning_evaluation_reports_the_greedy_policy():
    task = make(1)
    table = np.zeros((ROWS * COLUMNS, 4), np.float32)
    table[0, RIGHT] = table[1, DOWN] = table[COLUMNS + 1, DOWN] = 1
    (found,) = learner(task).evaluate([table.reshape(-1)], ("validation", "test"))
    assert found == {
        "test_loss": pytest.approx(-2.6),
        "test_reward": pytest.approx(2.6),
        "test_treasure": 8.2,
        "test_time": -3,
    }
    assert task.goals == {"treasure": True, "time": True}
    assert learner(task).loss([table.reshape(-1)], split="train") == pytest.approx([-2.6])
    assert np.isnan(learner(task).loss([table.reshape(-1)])).all()


def test_evaluation_ends_after_longest_episode():
    task = make(0, longest=30)  # the first of equal actions: always up
    (found,) = learner(task).evaluate([task.initial(0)], ("test",))
    assert (found["test_treasure"], found["test_time"]) == (0, -30)


def test_default_preferences_form_four_private_groups():
    tasks = [make(k, 20) for k in range(20)]
    assert [task.preference[0] for task in tasks[::5]] == pytest.approx([0.9, 0.5, 0.25, 0.05])
    assert [group_of(task) for task in tasks] == [k // 5 for k in range(20)]
    assert all(task.public_info == {} for task in tasks)


def test_training_with_infinite_values_reports_divergence():
    task = make(0)
    with pytest.raises(DivergenceError, match="node diverged in round 3"):
        learner(task).train(np.full(440, 3e38, np.float32), round=3, proximal=(1e10, task.initial(0)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "task.steps must be 1 or more"),
        ({"lr": 1.5}, "task.lr must be from 0 to 1"),
        ({"discount": -0.1}, "task.discount must be from 0 to 1"),
        ({"explore_rounds": 0.0}, "task.explore_rounds must be more than 0"),
        ({"preference": [0.5, 0.4]}, "task.preference must be weights"),
        ({"columns": 11}, "unknown key 'task.columns'"),
    ],
)
def test_deep_sea_treasure_refuses_invalid_options(options, words):
    with pytest.raises(ConfigurationError, match=words):
        make(**options)


# Several nodes


@pytest.mark.slow
def test_local_nodes_find_more_treasures_than_common_table():
    scenario = {"nodes": 20, "rounds": 28, "task": {"name": "deep-sea-treasure"}, "policy": {"name": "local"}}
    (alone,) = simulate(scenario)
    (together,) = simulate(scenario | {"policy": {"name": "fedavg"}})
    assert alone.summary["test"]["mean"] > together.summary["test"]["mean"] + 0.6
    assert alone.summary["objectives"]["cardinality"] > together.summary["objectives"]["cardinality"] == 1
    points = np.array(alone.summary["objectives"]["nodes"])
    assert 0 < hypervolume(points, [0, -50]) <= hypervolume(np.array(FRONT), [0, -50])
    assert all(any((point <= best).all() for best in np.array(FRONT)) for point in points)
    weights = np.repeat([0.9, 0.5, 0.25, 0.05], 5)
    rewards = weights * points[:, 0] + (1 - weights) * points[:, 1]
    assert alone.summary["test"]["nodes"] == pytest.approx(rewards.tolist())


@pytest.mark.slow
def test_q_learning_modelled_equals_wire():
    scenario = {"nodes": 4, "rounds": 3, "task": {"name": "deep-sea-treasure", "steps": 100}, "policy": {"name": "fedavg"}}
    modelled, wire = (simulate(scenario | {"fidelity": fidelity})[0] for fidelity in ("modelled", "wire"))
    assert modelled.summary["test"] == wire.summary["test"]
