"""Order in which the nodes of a round exchange models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from p2pfl.policy import Me, Peers, Stage

Schedule = Literal["synchronous", "sequential"]
"""`synchronous`: all nodes exchange their trained models. `sequential`: one node after another, in an order drawn in
each round from (federation seed, round) and common to all; later nodes receive the merged models of earlier ones."""


def stages(schedule: Schedule, me: Me, peers: Peers, ids: Sequence[str]) -> Stage | Mapping[str, Stage]:
    """Return the stage at which to request the model of each of `ids` in this round."""
    if schedule == "synchronous":
        return "trained"
    place = peers.round_order(me.round)
    return {id: "merged" if place[id] < place[me.id] else "trained" for id in ids}
