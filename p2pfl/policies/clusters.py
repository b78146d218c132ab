"""Who is in which cluster, for policies that split clusters in two: kept by the coordinator, and known by each participant.

A cluster is named by its splits: "" is that of all, "0" and "1" are its parts, "01" is the second part of the first. So
names never clash, whoever gives them. Each assignment says its receiver's cluster and that cluster's figures, and the next
submission says them again, so that a coordinator that knows nothing rebuilds the state from what the participants hold.
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

MOST_SPLITS = 1024  # that made a cluster: each takes a member away at least


class Figures(NamedTuple):
    """What is remembered of a cluster.

    Attributes:
        round: of the step that noted it.
        streak: for how many steps in a row its mean has hardly moved.
        change: the greatest norm of a change of its mean so far, or of that of a cluster that it was split from.
        update: the same, of the update of a member.
    """

    round: int = 0
    streak: int = 0
    change: float = 0.0
    update: float = 0.0


class Member(NamedTuple):
    """A participant as the coordinator knows it: its cluster, and the model that it went on from, float32 [P]."""

    cluster: str
    start: Parameters


@dataclass
class Cluster:
    """Those of a cluster who are there in this step, in the order of their ids; `starts` are the models they began from."""

    name: str
    figures: Figures
    submissions: list[Submission]
    starts: list[Parameters]

    @property
    def reference(self) -> np.ndarray:
        """The mean of the models that they began the round from (line 7 of algorithm 5); float64, shape [P]."""
        return mean(self.starts)

    @property
    def divisible(self) -> bool:
        """Whether it has two parts at least, whose names a submission may say."""
        return len(self.submissions) > 1 and len(self.name) < MOST_SPLITS

    def part(self, members: Sequence[int], name: str) -> Cluster:
        """Return some of its members as a cluster of their own, whose mean has still to settle."""
        figures = self.figures._replace(streak=0)
        return Cluster(name, figures, [self.submissions[k] for k in members], [self.starts[k] for k in members])


def mean(models: Sequence[Parameters]) -> np.ndarray:
    """Return the plain mean of n vectors of shape [P]; float64."""
    total = np.zeros(models[0].shape)
    for model in models:
        total += model
    return total / len(models)


def extras_of(cluster: Cluster) -> Extras:
    """Return what an assignment says of its receiver's cluster."""
    figures = cluster.figures
    return {
        "cluster": np.array([int(part) for part in cluster.name], np.int64),
        "figures": np.array([figures.round, figures.streak, figures.change, figures.update], np.float64),
    }


def read(previous: Extras) -> tuple[str, Figures] | None:
    """Return what `extras_of` has said, or None for a participant that was assigned nothing yet.

    Raises:
        ValueError: it is something else.
    """
    if not previous:
        return None
    path, figures = previous.get("cluster"), previous.get("figures")
    if path is None or figures is None or path.ndim != 1 or figures.shape != (4,) or not np.isfinite(figures).all():
        raise ValueError("a submission says no cluster")
    if path.size > MOST_SPLITS or not np.isin(path, (0, 1)).all():
        raise ValueError(f"a cluster is named by zeros and ones, at most {MOST_SPLITS}")
    if figures.min() < 0:
        raise ValueError("a cluster's figures are not negative")
    return "".join(str(int(part)) for part in path), Figures(int(figures[0]), int(figures[1]), *map(float, figures[2:]))


def credible(extras: Extras, round: int) -> bool:
    """Return whether a step of a round assigns such extras."""
    try:
        told = read(extras)
    except ValueError:
        return False
    return told is None or told[1].round <= round


def gather(
    submissions: Sequence[Submission], state: Mapping[str, Any], parts: Sequence[slice | Layer], ratio: float
) -> list[Cluster]:
    """Return the clusters of those who are there, by name.

    A participant is in the cluster that the state knows it in, or else in the one that it names itself. One that knows of no
    cluster, or of one that was split without it, joins the one below whose members its update is most like on average. That
    is also how a split ends which not all have heard of when a coordinator is lost.

    Args:
        state: "members" (Member by id) and "clusters" (Figures by name), as `remember` returns them; or empty.
        parts, ratio: of the similarity; see p2pfl.algorithms.clustering.similarity.

    Raises:
        ValueError: a submission lacks its `start`, and the state does not know it; or what it says of its cluster cannot be.
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
            claims[s.sender], told = said or ("", Figures())
            if told.round >= s.round:
                raise ValueError(f"{s.sender} tells of a step of round {told.round} in round {s.round}")
            figures[claims[s.sender]] = max(told, figures.get(claims[s.sender], told))
        if s.start is None and s.sender not in known:
            raise ValueError(f"the submission of {s.sender} lacks the model that it began from")
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
            if home is None:  # nobody of those clusters is there
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
    """Return the name of the cluster whose members' updates are most like that of a submission; the first of equals."""
    likeness = {}
    for name, members in sorted(clusters.items()):
        reference = mean([starts[s.sender] for s in members])
        models = [submission.params, *(s.params for s in members)]
        likeness[name] = float(similarity(models, reference, parts, ratio)[0, 1:].mean())
    return max(likeness, key=likeness.__getitem__, default=None)


def remember(state: Mapping[str, Any], clusters: Sequence[Cluster], assigned: Mapping[str, Parameters]) -> dict[str, Any]:
    """Return the state after a step. Those who were not there are remembered as they were.

    Args:
        clusters: as the step has left them.
        assigned: the model of each of their members.
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
