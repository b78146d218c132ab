"""Metrics of a whole split."""

import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score, f1_score, r2_score, roc_auc_score
from torch import nn

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.losses import CLASSIFICATION, accuracy, auc, cross_entropy, of_each, r2
from p2pfl.queries import Evaluate, NodeQuery
from p2pfl.random_streams import RandomStreams

RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(40, 3)).astype(np.float32), RNG.integers(0, 3, 40)


def figure(name, logits=LOGITS, labels=LABELS):
    return float(CLASSIFICATION[name].of(torch.from_numpy(logits), torch.from_numpy(labels)))


def test_metrics_equal_those_of_scikit_learn():
    predicted = LOGITS.argmax(1)
    assert figure("f1") == pytest.approx(f1_score(LABELS, predicted, average="macro"))
    assert figure("balanced_accuracy") == pytest.approx(balanced_accuracy_score(LABELS, predicted))
    scores = torch.from_numpy(LOGITS).double().softmax(1).numpy()
    assert figure("auc") == pytest.approx(roc_auc_score(LABELS, scores, multi_class="ovr"))
    two = LABELS.clip(max=1)
    assert figure("auc", LOGITS[:, :2], two) == pytest.approx(roc_auc_score(two, LOGITS[:, 1] - LOGITS[:, 0]))


def test_auc_counts_only_classes_that_occur():
    labels = LABELS.clip(max=1)
    scores = torch.from_numpy(LOGITS).double().softmax(1).numpy()
    expected = np.mean([roc_auc_score(labels == label, scores[:, label]) for label in (0, 1)])
    assert auc(LOGITS, labels) == pytest.approx(expected)
    assert np.isnan(auc(LOGITS, np.zeros(40, int)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_auc_of_diverged_model_is_undefined(value):
    assert np.isnan(auc(np.full((2, 2), value, np.float32), np.array([0, 1])))


def test_r2_equals_scikit_learn():
    targets = RNG.normal(size=(40, 1)).astype(np.float32)
    outputs = targets + RNG.normal(size=(40, 1)).astype(np.float32)
    assert r2(outputs, targets) == pytest.approx(r2_score(targets, outputs))
    assert np.isnan(r2(outputs, np.ones((40, 1), np.float32)))


def kappa(logits, targets):
    return cohen_kappa_score(targets, logits.argmax(1))


def network():
    return nn.Linear(3, 3)


def learners(count=4, **options):
    tasks = []
    for k in range(count):
        rng = np.random.default_rng(k)
        data = rng.normal(size=(9 + k, 3)), rng.integers(0, 3, 9 + k)
        tasks.append(p2pfl.classification(network, data, test=data, **options))
    return [task.learner(RandomStreams(0, str(k))) for k, task in enumerate(tasks)]


@pytest.mark.slow
def test_stacked_metrics_equal_one_by_one():
    options = {"metric": "f1", "metrics": ["auc", "accuracy", p2pfl.Metric("kappa", kappa)]}
    team = learners(**options)
    model = team[0].task.initial(0)
    asked = [NodeQuery(k, Evaluate([model, model * 2], ("test",))) for k in range(len(team))]
    stacked = BatchedLearner(team).compute(asked)
    assert list(stacked[0][0]) == ["test_loss", "test_f1", "test_auc", "test_accuracy", "test_kappa"]
    for job, found in zip(asked, stacked, strict=True):
        assert found == [pytest.approx(one, rel=1e-6) for one in team[job.node].compute(job.query)]


@pytest.mark.parametrize("function", [accuracy, cross_entropy], ids=["accuracy", "cross-entropy"])
@pytest.mark.parametrize("case", ["distinct", "ties", "nan"])
def test_values_of_each_model_equal_those_of_one_model(function, case):
    rng = np.random.default_rng(0)
    outputs = torch.from_numpy(rng.normal(size=(4, 5, 30)).astype(np.float32))
    if case == "ties":
        outputs[1] = 0.0
    if case == "nan":
        outputs[2, 3] = torch.nan
    targets = torch.from_numpy(rng.integers(0, 5, (4, 30)))
    for rows in (outputs.mT, outputs.mT.contiguous()):
        found = of_each(function, rows, targets)
        alone = torch.stack([function(*pair) for pair in zip(rows, targets, strict=True)])
        torch.testing.assert_close(found, alone, equal_nan=True)


def test_task_names_its_metrics():
    task = learners(1, metric="f1", metrics=["auc"])[0].task
    assert (task.metric, task.higher_is_better, task.extra_metrics) == ("f1", True, ("auc",))
    numbers = (np.zeros((3, 3)), np.zeros((3, 3)))
    task = p2pfl.regression(network, numbers, metric="mae", metrics=["r2"])
    assert (task.metric, task.higher_is_better, task.extra_metrics) == ("mae", False, ("r2",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "F1"}, "unknown metric 'F1'"),
        ({"metrics": ["f1", "f1"]}, "metric 'f1' is reported twice"),
        ({"metrics": "accuracy"}, "metric 'accuracy' is reported twice"),
        ({"metrics": [p2pfl.Metric("loss", kappa)]}, "metric 'loss' is reported twice"),
    ],
)
def test_unknown_metric_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        learners(1, **options)


def test_metric_that_returns_no_number_is_refused():
    (learner,) = learners(1, metrics=[p2pfl.Metric("odd", lambda logits, targets: "much")])
    with pytest.raises(ConfigurationError, match="metric 'odd' must return a number, got 'much'"):
        learner.evaluate([learner.task.initial(0)], ("test",))


def test_metric_without_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ConfigurationError, match=r"need scikit-learn: pip install 'p2pfl-node\[metrics\]'"):
        learners(1, metrics=["f1"])
