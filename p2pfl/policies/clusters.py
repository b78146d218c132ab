"""Membership in clusters, for policies that split clusters in two. The coordinator and each participant keep it.

The name of a cluster is its path of splits: "" contains all nodes, "0" and "1" are its parts, "01" is the second part
of the first. Names are therefore unique, whichever coordinator assigns them. Each assignment contains its receiver's
cluster and that cluster's figures, and the next submission repeats them. A coordinator without a state rebuilds it from
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from p2pfl.algorithms.clustering import Layer, similarity
from p2pfl.parameters import Parameters
from p2pfl.policies.coordinated import sender
from p2pfl.policy import Extras, Submission

MOST_SPLITS = 1024  # in the path of a cluster; each split removes at least one member


class Figures(NamedTuple):
    """Record of a step about a cluster, from which the next steps decide whether it splits.

    Attributes:
        round: the round of the step that recorded them.
        streak: number of consecutive steps in which the mean has hardly moved.
        change: the greatest norm of a change of the mean so far, in this cluster or in those it was split from.
        update: the same for the update of a member.
    """

    round: int = 0
    streak: int = 0
    change: float = 0.0
    update: float = 0.0


class Member(NamedTuple):
    """A participant as the coordinator knows it: its cluster, and the model from which it continued, float32 [P]."""

    cluster: str
    start: Parameters


@dataclass
class Cluster:
    """Members of a cluster that submit in this step, in the order of their ids; `starts` are their initial models."""

    name: str
    figures: Figures
    submissions: list[Submission]
    starts: list[Parameters]

    @property
    def reference(self) -> np.ndarray:
        """Mean of the models with which the members began the round (line 7 of algorithm 5); float64, shape [P]."""
        return mean(self.starts)

    @property
    def divisible(self) -> bool:
        """True if the cluster has at least two members, and its parts would have valid names."""
        return len(self.submissions) > 1 and len(self.name) < MOST_SPLITS

    def part(self, members: Sequence[int], name: str) -> Cluster:
        """Return some of the members as a new cluster, whose mean has not converged yet."""
        figures = self.figures._replace(streak=0)
        return Cluster(name, figures, [self.submissions[k] for k in members], [self.starts[k] for k in members])


def mean(models: Sequence[Parameters]) -> np.ndarray:
    """Return the plain mean of n vectors of shape [P]; float64."""
    total = np.zeros(models[0].shape)
    for model in models:
        total += model
    return total / len(models)


def extras_of(cluster: Cluster) -> Extras:
    """Return the cluster and its figures as extras of an assignment."""
    figures = cluster.figures
    return {
        "cluster": np.array([int(part) for part in cluster.name], np.int64),
        "figures": np.array([figures.round, figures.streak, figures.change, figures.update], np.float64),
    }


def read(previous: Extras) -> tuple[str, Figures] | None:
    """Parse the extras of `extras_of`; return None for a participant without an assignment.

    Raises:
        ValueError: the extras are invalid.
    """
    if not previous:
        return None
    path, figures = previous.get("cluster"), previous.get("figures")
    if path is None or figures is None or path.ndim != 1 or figures.shape != (4,) or not np.isfinite(figures).all():
        raise ValueError("a submission has no cluster")
    if path.size > MOST_SPLITS or not np.isin(path, (0, 1)).all():
        raise ValueError(f"the name of a cluster must have at most {MOST_SPLITS} zeros and ones")
    if figures.min() < 0:
        raise ValueError("the figures of a cluster must be 0 or more")
    return "".join(str(int(part)) for part in path), Figures(int(figures[0]), int(figures[1]), *map(float, figures[2:]))


def credible(extras: Extras, round: int) -> bool:
    """Return whether a step of this round can have assigned these extras."""
    try:
        known = read(extras)
    except ValueError:
        return False
    return known is None or (known[1].round <= round and len(extras) == 2)


def gather(
    submissions: Sequence[Submission], state: Mapping[str, Any], parts: Sequence[slice | Layer], ratio: float
) -> list[Cluster]:
    """Return the clusters of the submitting participants, by name.

    A participant belongs to the cluster that the state records, otherwise to the one that its submission names. If it
    names no cluster, or one that was split without it, it joins the sub-cluster whose members' updates are most similar
    to its own on average. This also completes a split that some participants missed because the coordinator was lost.

    Args:
        state: "members" (Member by id) and "clusters" (Figures by name), as `remember` returns them; or empty.
        parts, ratio: parameters of the similarity; see p2pfl.algorithms.clustering.similarity.

    Raises:
        ValueError: a submission has no `start` and the state does not contain it, or its cluster is invalid.
    """
    known: Mapping[str, Member] = state.get("members", {})
    figures: dict[str, Figures] = dict(state.get("clusters", {}))
    claims: dict[str, str] = {}
    starts: dict[str, Parameters] = {}
    there = sorted(submissions, key=sender)
    for s in there:
        said = read(s.previous)
        if s.sender in known:
            claims[s.sender] = known[s.sender].cluster
        else:
            claims[s.sender], claimed = said or ("", Figures())
            if claimed.round >= s.round:
                raise ValueError(f"the submission of {s.sender} in round {s.round} has figures of round {claimed.round}")
            figures[claims[s.sender]] = max(claimed, figures.get(claims[s.sender], claimed))
        if s.start is None and s.sender not in known:
            raise ValueError(f"the submission of {s.sender} lacks the model that the round began with")
        starts[s.sender] = known[s.sender].start if s.start is None else s.start
    names = {*claims.values(), *(member.cluster for member in known.values())}
    split = {name for name in names if any(other != name and other.startswith(name) for other in names)}
    clusters = {
        name: Cluster(name, figures[name], [s for s in there if claims[s.sender] == name], [])
        for name in sorted(set(claims.values()) - split)
    }
    settled = {name: list(cluster.submissions) for name, cluster in clusters.items()}
    for s in there:
        if claims[s.sender] in split:
            below = [name for name in settled if name.startswith(claims[s.sender])]
            home = _most_alike(s, {name: settled[name] for name in below}, starts, parts, ratio)
            if home is None:  # no member of those clusters has submitted
                home = claims[s.sender]
                clusters.setdefault(home, Cluster(home, figures[home], [], []))
            clusters[home].submissions.append(s)
    for cluster in clusters.values():
        cluster.submissions.sort(key=sender)
        cluster.starts = [starts[s.sender] for s in cluster.submissions]
    return [clusters[name] for name in sorted(clusters)]


def _most_alike(
    submission: Submission,
    clusters: Mapping[str, Sequence[Submission]],
    starts: Mapping[str, Parameters],
    parts: Sequence[slice | Layer],
    ratio: float,
) -> str | None:
    """Return the name of the cluster whose members' updates are most similar to a submission's; ties to the first."""
    likeness = {}
    for name, members in sorted(clusters.items()):
        reference = mean([starts[s.sender] for s in members])
        models = [submission.params, *(s.params for s in members)]
        likeness[name] = float(similarity(models, reference, parts, ratio)[0, 1:].mean())
    return max(likeness, key=likeness.__getitem__, default=None)


def remember(state: Mapping[str, Any], clusters: Sequence[Cluster], assigned: Mapping[str, Parameters]) -> dict[str, Any]:
    """Return the state after a step. Participants that did not submit keep their previous entries.

    Args:
        clusters: the clusters after the step.
        assigned: the model assigned to each of their members.
    """
    members = dict(state.get("members", {}))
    figures = dict(state.get("clusters", {}))
    for cluster in clusters:
        figures[cluster.name] = cluster.figures
        members |= {s.sender: Member(cluster.name, assigned[s.sender]) for s in cluster.submissions}
    inhabited = {member.cluster for member in members.values()}
    return {
        "members": dict(sorted(members.items())),
        "clusters": {name: figures[name] for name in sorted(inhabited)},
    }
