"""In which order the nodes of a round exchange models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from p2pfl.policy import Me, Peers, Stage

Schedule = Literal["synchronous", "sequential"]
"""`synchronous`: all exchange what they have trained. `sequential`: one after another, in an order that is drawn each round
from (federation seed, round) and is common to all; whoever comes later reads the merged models of those before."""


def stages(schedule: Schedule, me: Me, peers: Peers, ids: Sequence[str]) -> Stage | Mapping[str, Stage]:
    """Return which model of this round to ask each of `ids` for."""
    if schedule == "synchronous":
        return "trained"
    place = peers.round_order(me.round)
    return {id: "merged" if place[id] < place[me.id] else "trained" for id in ids}
