"""Membership by likelihood ratio: on drawn features, and on the digits."""

import os

import numpy as np
import pytest

from p2pfl.sim.audit.membership import attack_membership, figures, likelihood_ratios
from p2pfl.sim.audit.releases import Watch, observe
from p2pfl.sim.scenario.scenario import resolve
from tests.support.depth import deep

SHADOWS, NODES, POOL = 8, 6, 60


def drawn(effect):
    """Return scores and members for features whose mean is greater for members by some standard deviations."""
    rng = np.random.default_rng(0)
    scores, members = [[] for _ in range(SHADOWS)], [[] for _ in range(SHADOWS)]
    for _ in range(NODES):
        inside = rng.permuted(np.tile(np.arange(POOL) < POOL // 2, (SHADOWS, 1)), axis=1)
        easy = rng.normal(0, 5, (1, 3, POOL))  # some samples are easier than others, by far more than the effect
        features = easy + rng.normal(0, 1, (SHADOWS, 3, POOL)) + effect * inside[:, None]
        for shadow, score in enumerate(likelihood_ratios(features, inside)):
            scores[shadow].append(score)
            members[shadow].append(inside[shadow])
    return figures(scores, members)


def test_scores_of_what_membership_does_not_change_are_a_guess():
    found = drawn(0.0)
    low, high = found["auc_interval"]
    assert low < 0.5 < high
    assert found["members"] == found["others"] == SHADOWS * NODES * POOL // 2


def test_members_are_found_by_what_membership_changes_although_samples_differ():
    found = drawn(1.0)
    assert found["auc"] > 0.8
    assert found["auc_interval"][0] > 0.75
    assert found["tpr_at_0.01"] > 0.05
    assert found["tpr_at_0.001"] <= found["tpr_at_0.01"]


def test_unknown_models_are_left_out():
    features = np.random.default_rng(1).normal(size=(4, 2, 20))
    inside = np.tile(np.arange(20) < 10, (4, 1)) ^ (np.arange(4) % 2 == 0)[:, None]
    features[:, 1] = np.nan
    features[0, 0] = np.nan
    assert np.isfinite(likelihood_ratios(features, inside)).all()


@deep
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_budget_weakens_membership_inference_on_images():
    if "P2PFL_DATA" not in os.environ:
        pytest.skip("P2PFL_DATA names no folder with data sets")
    task = {"name": "images", "data": "fashion-mnist", "samples": 300, "test": 400}
    task["optimizer"] = {"name": "sgd", "lr": 0.1}
    table = {"nodes": 20, "rounds": 5, "task": task, "policy": {"name": "random", "neighbours": 3}}
    found = []
    for more in ({}, {"privacy": {"epsilon": 8}}):
        job = resolve(table | more, [], "test", ".").runs[0]
        watch = Watch(job.nodes)
        observe(job, None, watch)
        found.append(attack_membership(job, None, watch.tasks, 4, lambda: None))
    none, budget = found
    assert none["auc_interval"][0] > 0.55
    assert budget["auc_interval"][1] < none["auc_interval"][0]
    assert none["tpr_at_0.001"] > 0.002


def test_members_of_small_nodes_are_told_from_others():
    task = {"name": "digits", "shared": True, "samples": 20, "judged_on": "all"}
    table = {"nodes": 8, "rounds": 2, "task": task, "policy": {"name": "random", "neighbours": 3}}
    job = resolve(table, [], "test", ".").runs[0]
    watch = Watch(job.nodes)
    observe(job, None, watch)
    shadows = []
    found = attack_membership(job, None, watch.tasks, 4, lambda: shadows.append(1))
    assert len(shadows) == 4
    assert found["auc_interval"][0] > 0.5
    again = attack_membership(job, None, watch.tasks, 4, lambda: None)
    assert again == found
