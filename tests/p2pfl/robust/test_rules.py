"""Robust rules: golden vectors of ByzFL, the formulas of the papers, and their effect on a merge."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import ConfigurationError
from p2pfl.parameters import weighted_mean
from p2pfl.policies.fedavg import FedAvg
from p2pfl.robust.candidates import Candidates, Reweighting
from p2pfl.robust.registry import RULES, describe_robust, make_rule
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory

CASES = json.loads(Path(__file__).with_name("byzfl.json").read_text())["cases"]
OPTIONS = {
    "median": {"name": "median"},
    "trimmed": {"name": "trimmed"},
    "rfa": {"name": "rfa", "nu": 0.1, "steps": 2000},
    "krum": {"name": "krum"},
    "multi-krum": {"name": "krum", "selected": 0},
    "nna": {"name": "nna"},
}


def apply_rule(rule, models, weights=None, losses=None):
    """Return the merge of a rule, and the weights."""
    models = [np.asarray(model, np.float32) for model in models]
    weights = [1 / len(models)] * len(models) if weights is None else weights
    candidates = Candidates(models, weights, losses)
    if isinstance(rule, Reweighting):
        after = rule.reweight(candidates)
        return weighted_mean(models, after), after
    return rule.combine(candidates)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['models'])}-models")
def test_rule_equals_byzfl(name, case):
    counted = {"attackers": case["attackers"]} if name not in ("median", "rfa") else {}
    merged, weights = apply_rule(make_rule(OPTIONS[name] | counted), case["models"])
    np.testing.assert_allclose(merged, case["rules"][name], rtol=1e-6, atol=1e-6)
    assert sum(weights) == pytest.approx(1.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['models'])}-models")
def test_scclip_equals_byzfl_centred_clipping(case):
    models = [np.zeros(6), *case["models"]]  # ByzFL clips towards zero, which is no model of its own
    merged, _ = apply_rule(
        make_rule({"name": "scclip", "tau": 2.0}), models, [0.0] + [1 / (len(models) - 1)] * (len(models) - 1)
    )
    np.testing.assert_allclose(merged, case["rules"]["scclip"], rtol=1e-6, atol=1e-6)


def line(*values):
    return [np.array([value], np.float32) for value in values]


def test_scclip_takes_second_largest_distance():
    _, weights = apply_rule(make_rule("scclip"), line(0, 1, -2, 4), [0.25] * 4)
    assert weights == pytest.approx([0.375, 0.25, 0.25, 0.125])


def test_cs_plus_clips_twice_the_share_of_weight():
    _, weights = apply_rule(make_rule("cs+"), line(0, 1, 2, 4, 8, 16), [1 / 6] * 6)  # 0.4 of 5 peers: the farthest two
    assert weights[1:] * 6 == pytest.approx([1, 1, 1, 1, 1 / 2])
    _, weights = apply_rule(make_rule({"name": "cs+", "share": 0.4}), line(0, 1, 2, 4, 8, 16), [1 / 6] * 6)
    assert weights[1:] * 6 == pytest.approx([1, 1, 1 / 2, 1 / 4, 1 / 8])


def test_cs_plus_moves_towards_a_single_peer():
    _, weights = apply_rule(make_rule("cs+"), line(0, 5))
    assert weights == pytest.approx([0.5, 0.5])


def test_cs_he_takes_its_radius_from_the_nearer_weight():
    rule = make_rule({"name": "cs-he", "share": 0.25})  # of 4 peers: the farthest one
    _, weights = apply_rule(rule, line(0, 3, 3, -3, 100), [0.2] * 5)
    assert weights == pytest.approx([0.4 - 0.2 * np.sqrt(27) / 100, 0.2, 0.2, 0.2, 0.2 * np.sqrt(27) / 100])
    assert apply_rule(make_rule({"name": "cs-he", "share": 0}), line(0, 9), [0.5, 0.5])[1] == pytest.approx([0.5, 0.5])


def test_gts_gives_the_farthest_weight_to_the_own_model():
    rule = make_rule({"name": "gts", "share": 0.375})  # of 4 peers: the farthest one and a half
    _, weights = apply_rule(rule, line(0, 1, 2, 3, 100), [0.2] * 5)
    assert weights == pytest.approx([0.5, 0.2, 0.2, 0.1, 0.0])


@pytest.mark.parametrize(("honest", "deviations", "removed"), [(4, 1.4, 2), (4, 1.8, 0), (5, 1.3, 2), (5, 1.6, 0)])
def test_ios_removes_honest_models_below_its_limit(honest, deviations, removed):
    models = np.random.default_rng(7).standard_normal((honest, 20_000)).astype(np.float32)
    near = models.mean(0) + np.float32(deviations) * models.std(0, ddof=1)
    _, weights = apply_rule(make_rule({"name": "ios", "attackers": 2}), [*models, near, near])
    limit = np.sqrt((1 - 1 / honest) / (1 - 2 * 2 / (honest + 2)))
    assert (deviations < limit) == (removed > 0)
    assert np.count_nonzero(weights[:honest] == 0) == removed


def test_ios_drops_the_farthest_from_the_mean():
    _, weights = apply_rule(make_rule({"name": "ios", "attackers": 1}), line(0, 1, 2, -9), [0.4, 0.2, 0.2, 0.2])
    assert weights == pytest.approx([0.5, 0.25, 0.25, 0.0])


def test_ubar_accepts_near_models_with_lower_loss():
    rule = make_rule({"name": "ubar", "rho": 0.75, "alpha": 0.5})
    _, weights = apply_rule(rule, line(0, 1, 2, 3, 9), losses=[1.0, 0.5, 2.0, 0.9, 0.1])
    assert weights == pytest.approx([0.5, 0.25, 0.0, 0.25, 0.0])
    _, weights = apply_rule(rule, line(0, 1, 2, 3, 9), losses=[0.1, 0.5, 2.0, np.nan, 0.1])
    assert weights == pytest.approx([0.5, 0.5, 0.0, 0.0, 0.0])


def test_loss_rule_weights_by_softmax_of_losses():
    rule = make_rule({"name": "loss", "temperature": 1.0})
    _, weights = apply_rule(rule, line(0, 1, 2), [0.5, 0.25, 0.25], [1.0, 1.0 - np.log(2), np.inf])
    assert weights == pytest.approx([0.5, 0.5, 0.0])


def test_clip_loss_keeps_weights_without_validation_data():
    _, weights = apply_rule(make_rule("clip-loss"), line(0, 1, 2), [0.5, 0.25, 0.25], [np.nan] * 3)
    assert weights == pytest.approx([0.5, 0.25, 0.25])


def test_clip_loss_keeps_part_of_the_way_to_an_assigned_model():
    rule = make_rule({"name": "clip-loss", "temperature": 0.5})
    assert rule.part_kept(1.0, 0.2) == 1.0
    assert rule.part_kept(1.0, 1.0 + 0.5 * np.log(4)) == pytest.approx(0.25)
    assert rule.part_kept(1.0, np.nan) == 0.0
    assert rule.part_kept(np.nan, np.nan) == 1.0


@pytest.mark.parametrize("name", RULES)
@given(
    models=st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=2, max_size=7),
    far=st.booleans(),
)
def test_rule_returns_weights_of_sum_one(name, models, far):
    models = np.array(models, np.float32)
    if far:
        models[-1] = 1e30
    merged, weights = apply_rule(make_rule(name), models, losses=np.arange(len(models), dtype=float))
    assert np.isfinite(merged).all()
    assert min(weights) >= 0
    assert sum(weights) == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"scclip"}))
def test_rule_bounds_two_attackers_of_ten(name):
    rng = np.random.default_rng(1)
    honest = rng.normal(1.0, 0.1, (8, 20)).astype(np.float32)
    attackers = np.full((2, 20), -1000.0, np.float32)
    losses = [*rng.uniform(0.1, 0.2, 8), 50.0, 50.0]
    weighed = {"share": 0.25} if name in ("cs-he", "gts") else {}  # their share is not rounded to whole models
    merged, _ = apply_rule(make_rule({"name": name, **weighed}), [*honest, *attackers], losses=losses)
    assert np.abs(merged - 1.0).max() < 0.5


def test_bounds_of_a_coordinate_wise_rule_hold_its_merge():
    models = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    ordered = np.sort(models, axis=0)
    for rule, expected in (
        (make_rule("median"), (ordered[3], ordered[3])),
        (make_rule({"name": "trimmed", "attackers": 2}), (ordered[2], ordered[4])),
    ):
        low, high = rule.bounds(models)
        assert (low.tolist(), high.tolist()) == tuple(limit.tolist() for limit in expected)
        merged, _ = apply_rule(rule, models)
        assert (low - 1e-6 <= merged).all()
        assert (merged <= high + 1e-6).all()


def test_selected_models_without_weight_count_alike():
    merged, weights = apply_rule(make_rule({"name": "krum", "selected": 2, "attackers": 1}), line(5, 0, 0, 9), [1, 0, 0, 0])
    assert weights.tolist() == [0.0, 0.5, 0.5, 0.0]
    assert merged.tolist() == [0.0]


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("nna", {"attackers": -2}, {"attackers": 0}),
        ("scclip", {"tau": -1.0}, {"tau": 0.0}),
        ("ubar", {"rho": 1.5}, {"rho": 1.0}),
        ("ubar", {"alpha": -0.5}, {"alpha": 0.0}),
        ("ubar", {"alpha": 1.5}, {"alpha": 1.0}),
        ("loss", {"temperature": 0.0}, {"temperature": 1e-3}),
    ],
)
def test_options_of_a_rule_have_limits(name, refused, accepted):
    make_rule({"name": name, **accepted})
    with pytest.raises(ConfigurationError, match=next(iter(refused))):
        make_rule({"name": name, **refused})


def test_merge_of_a_policy_applies_the_rule():
    names = ("a", "b", "c", "d", "e")
    tasks = {name: make_task("concept-shift", {}, Part(k, 5), 0) for k, name in enumerate(names)}

    def merges(rule):
        class WithRule(FedAvg):
            async def round(self, me, peers):
                me.rule = rule
                return await super().round(me, peers)

        _, history = run_in_memory({name: WithRule() for name in names}, tasks, 1)
        return history[0]

    plain, krum, median = merges(None)["a"], merges(make_rule("krum"))["a"], merges(make_rule("median"))["a"]
    assert sorted(krum.weights.values()) == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert sum(median.weights.values()) == pytest.approx(1.0)
    assert (plain.params != krum.params).any()
    assert (plain.params != median.params).any()


def test_make_rule_refuses_unknown_names_and_options():
    with pytest.raises(ConfigurationError, match="unknown robust rule 'krumm'; did you mean 'krum'"):
        make_rule("krumm")
    with pytest.raises(ConfigurationError, match=r"unknown key 'robust.shares'; did you mean"):
        make_rule({"name": "cs+", "shares": 0.1})
    with pytest.raises(ConfigurationError, match=r"share must be at least 0 and less than 0.5, got 0.5"):
        make_rule({"name": "nna", "share": 0.5})
    with pytest.raises(ConfigurationError, match="median-clip has no options"):
        make_rule({"name": "median-clip", "share": 0.1})


def test_describe_robust_names_rule_and_options():
    assert describe_robust("median-clip") == "median-clip"
    assert describe_robust({"name": "cs+", "share": 0.3}) == 'cs+ {"share": 0.3}'
