"""Random gossip: each round, average with m random peers, or with the neighbours in a fixed random graph.

`oracle` does so among the peers of the own group, which a real node does not know. A `Schedule` is the order in which the
nodes of a round exchange models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from p2pfl.algorithms.selection import fedavg, present, uniform
from p2pfl.cohort import IdsOfEach, of_each
from p2pfl.errors import ConfigurationError
from p2pfl.policy import Me, Merge, Peers, PlannedTraining, ReportedStage, Stage, built_in, check_epochs, merge, samples

Schedule = Literal["synchronous", "sequential"]
"""`synchronous`: all nodes exchange their trained models. `sequential`: one node after another, in an order drawn in
each round from (federation seed, round) and common to all; later nodes receive the merged models of earlier ones."""


@built_in("random")
@dataclass
class Random:
    """Average with peers drawn uniformly (gossip learning; the "Random" row of Listo Zec et al.).

    Attributes:
        neighbours: m, the number of peers drawn; a node with fewer peers takes all.
        graph: draw peers in `each-round` (default), or once before the first round (`fixed`). Kharrat et al. 2024
            compare with a fixed graph (section 4.4; there `reported_stage` is "merged").
        schedule: `synchronous` (default) or `sequential` (reproduces the paper's table); see `Schedule`.
        epochs: epochs of training in each round.
        reported_stage: the model that drives early stopping and is reported.
    """

    neighbours: int = 5
    graph: Literal["each-round", "fixed"] = "each-round"
    schedule: Schedule = "synchronous"
    epochs: int = 1
    reported_stage: ReportedStage = "auto"

    drawn: Sequence[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.neighbours < 0:
            raise ValueError(f"neighbours must be 0 or more, got {self.neighbours}")
        check_epochs(self.epochs)

    @property
    def cohort(self) -> bool:
        return self.schedule == "synchronous"

    @property
    def selects_once(self) -> bool:
        return self.graph == "fixed"

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(rounds * self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        if self.graph == "fixed":
            self.drawn = self._draw(me, peers)
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.epochs)
        await peers.publish(trained)
        drawn = present(self.drawn, peers.ids) if self.graph == "fixed" else self._draw(me, peers)
        chosen = peers.within_budget(drawn)
        updates = await peers.models(chosen, stages(self.schedule, me, peers, chosen))
        merged = await merge(me, trained, updates, fedavg(samples(me, updates)))
        if self.schedule == "sequential":
            await peers.publish(merged.params, stage="merged")
        return merged

    def candidates(self, me: Me, peers: Peers) -> Sequence[str]:
        """Return the ids from which to draw."""
        return peers.ids

    def _draw(self, me: Me, peers: Peers) -> list[str]:
        return uniform(me.rng("peers"), self.candidates(me, peers), me.budget.cap(self.neighbours))

    def state(self) -> dict[str, Any]:
        return {"drawn": list(self.drawn)}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = list(state["drawn"])


@built_in("oracle")
@dataclass
class Oracle(Random):
    """Average with peers drawn uniformly from those whose task reports the own group.

    The upper bound of peer selection ("Oracle" of Listo Zec et al.). Raises ConfigurationError if the task has no
    groups, because the policy would then be plain random gossip.
    """

    @property
    def cohort(self) -> bool:
        return self.schedule == "synchronous"

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(rounds * self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        if "group" not in peers.public_info(me.id):
            raise ConfigurationError("the policy oracle needs a task with groups of nodes, but this task has none")
        return await super().prepare(me, peers)

    def candidates(self, me: Me, peers: Peers) -> Sequence[str]:
        return same_group(peers.ids, me, peers)


def _same_group_of_each(ids: IdsOfEach, me: Me, peers: Peers) -> IdsOfEach:
    groups = peers.public_info(me.id)["group"]  # its number, int64 [N]
    return ids.where(groups[ids.peers] == groups[ids.rows])


@of_each(_same_group_of_each)
def same_group(ids: Sequence[str], me: Me, peers: Peers) -> list[str]:
    """Return those of `ids` whose task reports the own group."""
    group = peers.public_info(me.id).get("group")
    return [id for id in ids if peers.public_info(id).get("group") == group]


def stages(schedule: Schedule, me: Me, peers: Peers, ids: Sequence[str]) -> Stage | Mapping[str, Stage]:
    """Return the stage at which to request the model of each of `ids` in this round."""
    if schedule == "synchronous":
        return "trained"
    place = peers.round_order(me.round)
    return {id: "merged" if place[id] < place[me.id] else "trained" for id in ids}
