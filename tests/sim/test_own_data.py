"""Own data and an own module in a simulation, from Python."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

import p2pfl


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = rng.normal(size=(240, 2)) + 3 * np.array([[0, 1], [1, 0], [-1, -1]])[y]
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


@pytest.mark.slow
def test_simulation_takes_dataset_module_and_partition(dataset):
    train, test = random_split(dataset, [180, 60], torch.Generator().manual_seed(0))

    def task(part, seed):
        return p2pfl.classification(
            lambda: nn.Linear(2, 3),
            train=train,
            validation=0.2,
            test=test,
            partition=p2pfl.partition("dirichlet", alpha=0.3, judged_on="all"),
            part=part,
            seed=seed,
            optimizer=p2pfl.AdamW(0.05, schedule=p2pfl.schedule("cosine", rounds=6)),
            metrics=["f1", "auc"],
        )

    (run,) = p2pfl.simulate({"nodes": 4, "rounds": 6, "task": task, "policy": "random"})
    assert run.summary["test"]["mean"] > 0.8
    assert {name: figures["mean"] > 0.8 for name, figures in run.summary["extra_metrics"].items()} == {
        "f1": True,
        "auc": True,
    }
    assert run.summary["batches"]["train"]["mean_jobs"] == 4  # all nodes are trained in one batch


@pytest.mark.slow
def test_undefined_figure_of_a_node_is_left_out_of_the_mean(dataset):
    def task(part, seed):
        rule = p2pfl.partition("pathological", classes=1 + part.index // 3)  # the first nodes have one class
        return p2pfl.classification(
            lambda: nn.Linear(2, 3),
            train=dataset,
            test=dataset,
            partition=rule,
            part=part,
            seed=seed,
            metrics=["auc"],
        )

    (run,) = p2pfl.simulate({"nodes": 4, "rounds": 2, "task": task, "policy": "local"})
    *undefined, known = run.summary["extra_metrics"]["auc"]["nodes"]
    assert np.isnan(undefined).all()
    assert run.summary["extra_metrics"]["auc"]["mean"] == known
