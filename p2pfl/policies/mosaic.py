"""Epidemic learning with fragments: each part of a model goes to other random receivers than the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from p2pfl.algorithms.selection import drawn_fragments
from p2pfl.fragments import Division, Fragments
from p2pfl.policy import Me, Merge, Peers, PlannedTraining, ReportedStage, built_in, check_epochs, merge_fragments


@built_in("mosaic")
@dataclass
class Mosaic:
    """Mosaic Learning (Biswas et al., "Mosaic Learning: A Framework for Decentralized Learning with Model Fragmentation",
    arXiv 2602.04352, 2026): a model is cut into K fragments, and each is spread by a gossip of its own.

    In each round a node trains, sends each fragment to J random receivers, and averages each fragment with those that it
    receives. It sends as many values as epidemic learning (de Vos et al., NeurIPS 2023) does with J receivers of whole
    models, which is K = 1, but each value is averaged with those of other nodes. Each fragment has a frame of its own.

    Receivers fetch what a sender has drawn for them: all nodes draw alike from the federation's seed, the round and the
    fragment; see p2pfl.algorithms.selection.drawn_fragments. In a topology that is not complete, a node draws among its
    neighbours.

    Attributes:
        fragments: K, the number of fragments, at most 128.
        receivers: J, the number of nodes that receive each fragment of a node.
        division: how models are cut; see p2pfl.fragments.Division. With `layers`, `fragments` is not used.
        epochs: epochs of training in each round.
        reported_stage: the model that drives early stopping and is reported.
    """

    fetches_fragments: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    fragments: int = 16
    receivers: int = 5
    division: Division = "random"
    epochs: int = 1
    reported_stage: ReportedStage = "merged"

    def __post_init__(self) -> None:
        self.cut = Fragments(self.division, 0 if self.division == "layers" else self.fragments)
        if self.receivers < 0:
            raise ValueError(f"receivers must be 0 or more, got {self.receivers}")
        check_epochs(self.epochs)

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(rounds * self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        self.cut.count(me.layout)  # refuses a model with too few values or too many tensors before any training
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.epochs)
        await peers.publish(trained)
        wanted = drawn_fragments(peers.common_rng, me.id, peers.ids, self.cut.names(me.layout), self.receivers)
        received = await peers.fragments(peers.fragments_within_budget(wanted, self.cut), self.cut, wait=self.waits)
        return await merge_fragments(me, trained, received)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


@built_in("divshare")
@dataclass
class DivShare(Mosaic):
    """DivShare (Biswas, Kermarrec, Marouani, Pires, Sharma and de Vos, "Boosting Asynchronous Decentralized Learning with
    Model Fragmentation", WWW 2025): each node cuts its model into fragments and sends each to J random nodes, which do not
    wait for them: after its training, a node averages every parameter with those that have arrived since its last one,
    x = (x_i + sum of the received) / (1 + their number). Of several fragments of one sender and part, the last counts.

    It is meant for asynchronous federations, where nodes fetch the newest fragments; in a synchronous one a node averages
    with fragments of the round before. As in `mosaic`, receivers fetch what senders have drawn for them. A request goes out
    at the end of a round, so that a slow link delays the fragments on it and nothing else. A node that has not answered the
    last request is not asked again, as the paper's nodes drop what they have not sent by the next round; an answer that
    takes longer than the deadline is lost. A budget has to have room for what arrives in a round and for what is then on
    its way.

    Parameters are divided at random, once and alike on all nodes, as in the authors' program; theirs permutes each tensor
    alone.

    Attributes:
        fragments: 1 / Omega of the paper.
        receivers, division, epochs, reported_stage: see Mosaic.
    """

    waits: ClassVar[bool] = False

    fragments: int = 10

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return PlannedTraining(rounds * self.epochs)
