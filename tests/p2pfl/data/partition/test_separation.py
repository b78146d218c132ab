"""Training and test samples of all nodes never meet, or the run stops, or a note counts them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, Subset

import p2pfl
from p2pfl.data.partition.splits import Parts, check_separation, overlap
from p2pfl.errors import ConfigurationError
from p2pfl.task import Part

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
Y = RNG.integers(0, 2, 60)
SAME = "all nodes have the same rows; set partition"


class Rows(Dataset):
    """Samples as a data set."""

    def __len__(self):
        return 60

    def __getitem__(self, k):
        return X[k], int(Y[k])


ROWS = Rows()


def simulate(of_node, nodes=4, **options):
    """Return the notes of a run whose nodes have the samples that `of_node` returns."""

    def task(part, seed):
        return p2pfl.classification(lambda: nn.Linear(5, 2), part=part, seed=seed, **of_node(part), **options)

    return simulate_task(task, nodes)


def simulate_task(task, nodes=4):
    (run,) = p2pfl.simulate({"nodes": nodes, "rounds": 1, "task": task, "policy": "local"}, progress=False)
    return [note for note in run.notes if "one of them changes" not in note]  # of few test samples


def held(task):
    return {tuple(row) for row in task.data["test"].x.tolist()}


def trained(task):
    return {tuple(row) for row in task.data["train"].x.tolist()}


@pytest.mark.parametrize(
    "train", [lambda: (X, Y), lambda: (X.tolist(), Y.tolist()), lambda: ROWS, lambda: [*zip(X, Y, strict=True)]]
)
@pytest.mark.parametrize("sizes", [{"test": 0.2}, {"test": 7, "validation": 0.1}, {"validation": 3, "test": 0.25}])
def test_nodes_with_the_same_samples_hold_out_the_same_ones(train, sizes):
    tasks = [p2pfl.classification(lambda: nn.Linear(5, 2), train(), part=Part(k, 3), seed=4, **sizes) for k in range(3)]
    assert all(held(task) == held(tasks[0]) for task in tasks)
    assert not {row for task in tasks for row in trained(task)} & {row for task in tasks for row in held(task)}
    other = p2pfl.classification(lambda: nn.Linear(5, 2), train(), part=Part(0, 3), seed=5, **sizes)
    assert held(other) != held(tasks[0])


@pytest.mark.slow
def test_nodes_with_the_same_samples_are_noted():
    assert simulate(lambda part: {"train": (X, Y), "test": 0.2}) == [SAME]
    assert simulate(lambda part: {"train": (X, Y), "test": 0.2}, partition=p2pfl.partition("iid")) == []
    assert simulate(lambda part: {"train": (X[part.index :: 4], Y[part.index :: 4]), "test": 0.2}) == []


def windows(part):
    return range(10 * part.index, 10 * part.index + 30)


@pytest.mark.slow
@pytest.mark.parametrize(
    "of_node",
    [
        lambda part: (X[windows(part)], Y[windows(part)]),
        lambda part: (X[10 * part.index :][:30], Y[10 * part.index :][:30]),
        lambda part: Subset(ROWS, windows(part)),
        lambda part: (X[: 60 - part.index], Y[: 60 - part.index]),
    ],
    ids=["copies", "views", "subsets", "sizes"],
)
def test_overlapping_samples_that_are_held_out_stop_the_run(of_node):
    with pytest.raises(
        ConfigurationError, match=r"test samples of all nodes are training samples of other nodes; node-\d trai"
    ):
        simulate(lambda part: {"train": of_node(part), "test": 0.3})


@pytest.mark.slow
def test_same_rows_with_different_sizes_of_the_test_stop_the_run():
    def task(part, seed):
        return p2pfl.classification(
            lambda: nn.Linear(5, 2), (X, Y), validation=0.1 * part.index, test=0.2, part=part, seed=seed
        )

    with pytest.raises(
        ConfigurationError, match="samples that node-1 has held out for its test; give each node other samples"
    ):
        simulate_task(task, 2)


@pytest.mark.slow
def test_duplicates_in_the_data_are_noted_with_their_number():
    twice = np.concatenate([X[:20], X[:20]]), np.concatenate([Y[:20], Y[:20]])
    others, own = simulate(lambda part: {"train": twice, "test": 0.2}, partition=p2pfl.partition("iid"))
    assert " of the 8 test samples of all nodes are training samples of other nodes; for example, node-" in others
    assert others.endswith("remove duplicates from the data to keep them apart")
    assert own.endswith(" of the 8 test samples of all nodes are training samples of the same node")


@pytest.mark.slow
def test_given_test_samples_among_the_training_samples_are_noted():
    rule = p2pfl.partition("iid", judged_on="all")
    others, same = simulate(lambda part: {"train": (X, Y), "test": (X[50:], Y[50:])}, partition=rule)
    assert others.startswith(
        "30 of the 40 test samples of all nodes are training samples of other nodes; for example, node-"
    )
    assert same == "10 of the 40 test samples of all nodes are training samples of the same node"
    own = simulate(lambda part: {"train": (X[:30], Y[:30]), "test": (X[25:35], Y[25:35])}, nodes=1)
    assert own == ["5 of the 10 test samples of all nodes are training samples of the same node"]


@pytest.mark.slow
def test_test_samples_of_a_users_own_task_are_compared():
    class Own(p2pfl.Task):
        """A task of a user around another one."""

        def __init__(self, task):
            self.layout, self.n_samples, self.metric = task.layout, task.n_samples, task.metric
            self.initial, self.learner = task.initial, task.learner
            self.data = {"train": task.data["train"], "test": (X[:5], Y[:5])}

    def task(part, seed):
        return Own(p2pfl.classification(lambda: nn.Linear(5, 2), (X[5 * part.index :], Y[5 * part.index :]), part=part))

    notes = simulate_task(task, 2)
    assert notes[0].startswith(
        "5 of the 10 test samples of all nodes are training samples of other nodes; for example, node-0"
    )
    assert notes[1] == "5 of the 10 test samples of all nodes are training samples of the same node"


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 12), max_size=6), st.lists(st.integers(0, 12), max_size=6) | st.none()),
        min_size=1,
        max_size=5,
    )
)
def test_overlap_counts_as_a_comparison_of_all_pairs(nodes):
    train = [np.array(own, np.int64) for own, _ in nodes]
    test = [None if tested is None else np.array(tested, np.int64) for _, tested in nodes]
    found = overlap(train, test)
    of_others = own = 0
    for k, (mine, tested) in enumerate(nodes):
        elsewhere = {key for other, (keys, _) in enumerate(nodes) if other != k for key in keys}
        of_others += sum(key in elsewhere for key in tested or ())
        own += 0 if tested == mine else sum(key in mine and key not in elsewhere for key in tested or ())
    assert (found.of_others, found.own) == (of_others, own)
    assert (found.example is None) == (of_others == 0)
    assert found.tested == sum(len(tested or ()) for _, tested in nodes)


def test_many_nodes_share_the_work():
    rows = [np.arange(8.0).reshape(4, 2) + 8 * k for k in range(3)]
    labels = np.zeros(4, np.int64)
    parts = [Parts((rows[k % 2], labels), (rows[2], labels)) for k in range(2000)]
    assert check_separation(parts, [True] * 2000, [f"node-{k}" for k in range(2000)]) == []
