"""Protection of a coordinator's step: submissions are changed before the policy's step sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from p2pfl.parameters import weighted_mean
from p2pfl.policy import Submission
from p2pfl.robust.candidates import Candidates, MergeRule, Reweighting, distances_from
from p2pfl.robust.guards import cap_samples
from p2pfl.robust.median_clip import factor_of, lower_median, move_towards, radii_of

BLOCK = 2**22  # values of models that are compared at once


def protect_submissions(submissions: Sequence[Submission], rule: MergeRule | None = None) -> list[Submission]:
    """Return submissions for a coordinator's step, with changed models and capped numbers of samples.

    Without a rule, models are clipped towards one of them, as p2pfl.robust.median_clip does. With a rule that changes
    weights, x_j becomes z + s_j (x_j - z): z is the merge of the rule, and s_j = w'_j / w_j divided by the largest such
    ratio. With a coordinate-wise rule, x_j is limited to the values that the rule lets through, and all are moved by
    the same vector. In both cases the mean of the changed models by samples is the merge of the rule.

    The own model of the rule is the submission nearest to the coordinate-wise median of all. It does not depend on the
    coordinator, so that a successor makes the same step.

    Args:
        rule: see `p2pfl.robust.registry.coordinator_rule`.
    """
    if len(submissions) < 2:
        return list(submissions)
    centre = _nearest_to_median(submissions)
    capped = cap_samples(0, {s.sender: s.n_samples for s in submissions})
    if rule is None:
        return _clip(submissions, centre, capped)
    centred = [centre, *(s for s in sorted(submissions, key=lambda s: s.sender) if s is not centre)]
    total = sum(capped.values())
    weights = [capped[s.sender] / total if total else 1 / len(centred) for s in centred]
    changed = _change([s.params for s in centred], weights, rule)
    return [replace(s, params=model, n_samples=capped[s.sender]) for s, model in zip(centred, changed, strict=True)]


def _nearest_to_median(submissions: Sequence[Submission]) -> Submission:
    ordered = sorted(submissions, key=lambda s: s.sender)
    models = [s.params for s in ordered]
    step = max(1, BLOCK // len(models))
    parts = range(0, len(models[0]), step)
    with np.errstate(over="ignore"):
        middle = np.concatenate([np.median(np.array([m[k : k + step] for m in models]), axis=0) for k in parts])
    return ordered[int(np.argmin(distances_from(middle.astype(np.float32), models)))]


def _distances(one: Submission, submissions: Sequence[Submission]) -> dict[str, float]:
    """Return the distances of the other submissions from one of them."""
    far = zip(submissions, distances_from(one.params, [s.params for s in submissions]), strict=True)
    return {s.sender: d for s, d in far if s is not one}


def _clip(submissions: Sequence[Submission], centre: Submission, capped: dict[str, int]) -> list[Submission]:
    others = {**_distances(centre, submissions), centre.sender: 0.0}
    radius = lower_median([far for id, far in others.items() if id != centre.sender])
    radii = radii_of(radius, [capped[s.sender] for s in submissions])
    factors = [factor_of(others[s.sender], most) for s, most in zip(submissions, radii, strict=True)]
    return [
        replace(s, params=move_towards(s.params, centre.params, factor), n_samples=capped[s.sender])
        for s, factor in zip(submissions, factors, strict=True)
    ]


def _change(models: Sequence[np.ndarray], weights: list[float], rule: MergeRule) -> list[np.ndarray]:
    """Return the models, the centre first, changed so that their weighted mean is the merge of the rule."""
    candidates = Candidates(models, weights)
    if isinstance(rule, Reweighting):
        after = rule.reweight(candidates)
        merged = weighted_mean(models, after.tolist())
        ratios = np.divide(after, candidates.weights, out=np.zeros_like(after), where=candidates.weights > 0)
        shares = ratios / ratios.max()
        return [
            merged + np.float32(share) * (model - merged) if share else merged
            for model, share in zip(models, shares.tolist(), strict=True)
        ]
    lowest, highest = rule.bounds(np.array(models))
    limited = [np.clip(model, lowest, highest) for model in models]
    moved = rule.combine(candidates).params - weighted_mean(limited, weights)
    return [model + moved for model in limited]
