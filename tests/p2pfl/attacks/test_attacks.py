"""Attacks: golden vectors of ByzFL, and the formulas of the papers."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from p2pfl.attacks import targeted_attacks
from p2pfl.attacks.attack import HonestView, Scene, as_accepted
from p2pfl.attacks.registry import flip_labels, make_attack
from p2pfl.attacks.targeted_attacks import fiedler_vector
from p2pfl.errors import ConfigurationError
from p2pfl.policies.dsgd import Dsgd, mixing_weights
from p2pfl.policy import Update
from p2pfl.task import Part, make_task

CASES = json.loads((Path(__file__).parents[1] / "robust/byzfl.json").read_text())["cases"]
NAMES = {
    "ipm": ("ipm", {}),
    "opt-ipm": ("opt-ipm", {}),
    "opt-ipm trimmed": ("opt-ipm", {"against": "trimmed"}),
    "alie": ("alie", {}),
    "opt-alie": ("opt-alie", {}),
    "opt-alie trimmed": ("opt-alie", {"against": "trimmed"}),
    "mimic": ("mimic", {"node": 1}),
}


def view_of(models, attackers, neighbours=None):
    names = [f"n{k}" for k in range(len(models) + attackers)]
    lying = names[len(models) :]
    around = {name: [other for other in names if other != name] for name in names} if neighbours is None else neighbours
    view = HonestView(lying, around)
    for name, model in zip(names, models, strict=False):
        view.published(name, np.array(model, np.float32))
    return view


def forged(name, options, view, own=None, start=0.0, round=1):
    """Return the model that an attack publishes; the attacker and the honest nodes began the round with zeros."""
    zeros = np.zeros(6, np.float32)
    me = SimpleNamespace(params=zeros + np.float32(start), initial=zeros, round=round)
    return asyncio.run(make_attack(name, options).forge(Scene(me, zeros if own is None else own, view)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['attackers']}-attackers")
def test_attack_equals_byzfl(name, case):
    honest = case["models"][: len(case["models"]) - case["attackers"]]
    attack, options = NAMES[name]
    if "against" in options:
        options = {"against": {"name": "trimmed", "attackers": case["attackers"]}}
    found = forged(attack, options, view_of(honest, case["attackers"]))
    expected = np.array(case["attacks"][name])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("rule", ["median-clip", "clip-loss"])
def test_opt_alie_adapts_to_clipping(rule):
    honest = np.random.default_rng(2).normal(size=(8, 6))
    models = {name: forged("opt-alie", {"against": name}, view_of(honest, 3)) for name in ("none", rule)}
    far = {name: np.linalg.norm(model - honest.mean(axis=0)) for name, model in models.items()}
    assert far[rule] * 10 < far["none"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['attackers']}-attackers")
def test_sign_flip_of_the_mean_equals_byzfl(case):
    honest = np.array(case["models"][: len(case["models"]) - case["attackers"]], np.float32)
    found = forged("sign-flip", {}, view_of(honest, 1), own=honest.mean(axis=0))
    np.testing.assert_allclose(found, case["attacks"]["sign-flip"], rtol=1e-6, atol=1e-6)


def test_opt_alie_of_equal_models_is_their_mean():
    honest = np.repeat(np.random.default_rng(3).normal(size=(1, 6)).astype(np.float32), 7, axis=0)
    np.testing.assert_allclose(forged("opt-alie", {}, view_of(honest, 1)), honest[0], rtol=1e-6)


def test_dissensus_cancels_honest_neighbours():
    view = view_of([[0.0], [1.0], [5.0]], 2)
    lie = make_attack("dissensus", {}).forge_for("n0", np.zeros(1, np.float32), view)
    assert lie * 2 + 1.0 + 5.0 == pytest.approx(0.0)


def test_dissensus_cancels_neighbours_with_metropolis_weights():
    around = {"n0": ["n1", "n2", "n3"], "n1": ["n0", "n2", "n3", "n4"], "n2": ["n0", "n1"], "n3": ["n0", "n1"], "n4": ["n1"]}
    view = view_of([[2.0], [3.0], [8.0]], 2, around)
    lie = make_attack("dissensus", {"weights": "metropolis"}).forge_for("n0", np.zeros(1, np.float32), view)
    policy = Dsgd()
    known = [Update(id, 1, "trained", view.models[id], 1, degree(len(around[id]))) for id in ("n1", "n2")]
    weights = mixing_weights([*known, Update("n3", 1, "trained", lie, 1, degree(2))], "n0", around["n0"], policy)
    merged = weights["n0"] * 2.0 + weights["n1"] * 3.0 + weights["n2"] * 8.0 + weights["n3"] * float(lie[0])
    assert weights["n1"] == 0.2
    assert merged == pytest.approx(2.0)


def degree(neighbours):
    return {"degree": np.array([neighbours], np.uint64)}


def test_local_attacks_use_the_models_around_a_victim():
    around = {"n0": ["n1", "n3"], "n1": ["n0", "n2", "n3"], "n2": ["n1"], "n3": ["n0", "n1"]}
    view = view_of([[1.0], [3.0], [8.0]], 1, around)
    sent = np.zeros(1, np.float32)
    negated, alie = make_attack("negated-mean", {"factor": 0.5}), make_attack("local-alie", {"z": 2.0})
    assert [float(negated.forge_for(name, sent, view)[0]) for name in ("n0", "n1")] == [-1.0, -2.0]
    assert alie.forge_for("n0", sent, view) == pytest.approx(2.0 - 2 * np.sqrt(2))


def test_spectral_pushes_sides_of_a_cut_apart():
    pairs = [(0, 1), (2, 3), (1, 2)]
    around = {f"n{k}": [f"n{b if a == k else a}" for a, b in pairs if k in (a, b)] + ["n4"] for k in range(4)}
    view = view_of([[-1.0], [-1.0], [1.0], [1.0]], 1, {**around, "n4": ["n0", "n1", "n2", "n3"]})
    attack = make_attack("spectral", {})
    left, right = (float(attack.forge_for(name, np.zeros(1, np.float32), view)[0]) for name in ("n0", "n3"))
    assert left < -1.0
    assert right > 1.0


@pytest.mark.slow
def test_fiedler_vector_of_a_large_graph_is_approximated(monkeypatch):
    length = 60
    around = {f"n{k:02}": [f"n{j:02}" for j in (k - 1, k + 1) if 0 <= j < length] for k in range(length)}
    exact = fiedler_vector(HonestView([], around))
    monkeypatch.setattr(targeted_attacks, "LARGEST_GRAPH", 50)
    found = fiedler_vector(HonestView([], around))
    assert np.array([*found.values()]) * np.sign(found["n00"] * exact["n00"]) == pytest.approx([*exact.values()], abs=0.01)


@pytest.mark.parametrize("name", ["opt-dissensus", "opt-spectral"])
def test_targeted_search_stays_within_reach_of_the_rule(name):
    ends, middle = ["n1", "n2", "n4"], ["n0", "n3", "n4"]  # a complete graph has no unique Fiedler vector
    around = {"n0": ends, "n1": ["n2", *middle], "n2": ["n1", *middle], "n3": ends, "n4": ["n1", "n2", "n0", "n3"]}

    def lie(**options):
        view = view_of([[0.0], [2.0], [-1.0], [2.0]], 1, around)
        return make_attack(name, {"delta": 1.0, **options}).forge_for("n0", np.zeros(1, np.float32), view)

    free, bound = lie(), lie(against={"name": "gts", "share": 0.25})
    assert abs(free[0]) > 100.0  # a mean has no limit
    assert 0.5 < abs(bound[0]) <= 2.0  # a model farther than all honest ones would be left out


def test_equivocation_sends_different_models():
    view = view_of([[0.0], [1.0], [2.0]], 1)
    attack = make_attack("equivocation", {"z": 1.0})
    lies = {float(attack.forge_for(name, np.zeros(1, np.float32), view)[0]) for name in ("n0", "n1")}
    assert lies == {0.0, 2.0}


def test_dac_similarity_sends_the_victims_direction():
    view = view_of([[1.0, 2.0], [3.0, -1.0]], 1)
    attack = make_attack("dac-similarity", {"factor": 4.0})
    assert attack.forge_for("n1", np.zeros(2, np.float32), view).tolist() == [12.0, -4.0]
    extras = attack.forge_extras({}, Scene(None, None, view))
    assert sorted(extras["similarities"].tolist()) == [-1.0, -1.0, 1.0]


def test_reward_bait_keeps_the_loss_low():
    view = view_of([[1.0] * 6, [1.0] * 6], 1)
    zeros = np.zeros(6, np.float32)

    async def loss(models):
        return np.array([abs(float(model[0]) - 1.0) + 1.0 for model in models])

    me = SimpleNamespace(params=zeros, initial=zeros, round=1, loss=loss)
    attack = make_attack("reward-bait", {"factor": 7.0, "worse": 2.5})
    assert asyncio.run(attack.forge(Scene(me, zeros, view)))[0] == pytest.approx(0.0)


def test_forged_model_is_limited_like_on_machines():
    honest = np.array([3.0, 4.0], np.float32)
    assert np.linalg.norm(as_accepted(np.float32(1e9) * honest, honest)) == pytest.approx(6000.0)
    assert as_accepted(np.array([np.nan, 0.0], np.float32), honest) is honest


def test_flip_labels_changes_training_labels_only():
    task = make_task("digits", {}, Part(0, 10), 0)
    wrong = flip_labels(task)
    assert torch.equal(wrong.data["train"].y, 9 - task.data["train"].y)
    assert torch.equal(wrong.data["test"].y, task.data["test"].y)


def test_flip_labels_refuses_task_without_data():
    with pytest.raises(ConfigurationError, match="label-flip needs a task with labelled data"):
        flip_labels(make_task("deep-sea-treasure", {"preference": [0.5, 0.5]}, Part(0, 2), 0))


def test_make_attack_refuses_unknown_name_and_value():
    with pytest.raises(ConfigurationError, match="unknown attack 'aly'"):
        make_attack("aly", {})
    with pytest.raises(ConfigurationError, match="factor must be 0 or more"):
        make_attack("scale", {"factor": -1.0})
    with pytest.raises(ConfigurationError, match="unknown robust rule 'mean'"):
        make_attack("opt-alie", {"against": "mean"})
