"""Interface for publishing models and obtaining peers' models, and what its two implementations share.

Machines exchange messages (p2pfl.node.exchange.message_exchange). The simulator computes what these messages would have
done (p2pfl.sim.simulation.modelled_exchange). The names of suspicions and the precision of losses are here, so that both
give equal results.
"""

from __future__ import annotations

from asyncio import TaskGroup
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from p2pfl.fragments import Fragments
from p2pfl.node.conduct import Conduct
from p2pfl.node.coordination.election_runner import Elected
from p2pfl.node.exchange.model_encoding import ModelEncoder, Outbox, Published
from p2pfl.node.peering.peering_config import Member, PeeringConfig
from p2pfl.node.peering.peers import PeerView, Traffic
from p2pfl.node.settings import Settings
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Extras, Fragment, Stage, Submission, Update
from p2pfl.robust.candidates import coarse
from p2pfl.robust.registry import NONE, Robust


class ExchangeHost(Protocol):
    """Node that an exchange serves."""

    def complete(self, params: Parameters) -> Parameters:
        """Return a peer's model, float32 [S], with the private part of this node added, [P]."""

    async def save_model(self, model: Published) -> None:
        """Write a model to disk. No peer can fetch it before this method returns."""

    def elected(self, elected: Elected) -> None:
        """Report a change of the coordinator, including its loss."""


class Detached:
    """Host of an exchange without a node. No values are private, and nothing is saved."""

    def complete(self, params: Parameters) -> Parameters:
        return params

    async def save_model(self, model: Published) -> None:
        """Do nothing."""

    def elected(self, elected: Elected) -> None:
        """Do nothing."""


class Exchange(Protocol):
    """Interface for publishing models and obtaining peers' models.

    A peer that misses the deadline is omitted from the answer and suspected. It does not cause an exception.
    """

    outbox: Outbox
    encoder: ModelEncoder
    conduct: Conduct

    @property
    def expired(self) -> int:
        """Number of missed deadlines."""

    @property
    def view(self) -> PeerView: ...

    @property
    def askers(self) -> Collection[str]:
        """Names of the nodes that may fetch from this one."""

    @property
    def traffic(self) -> Traffic: ...

    async def start(self, tasks: TaskGroup, host: ExchangeHost, extended: bool = False) -> None:
        """Accept connections, and wait for the neighbours.

        Args:
            extended: whether the next round is the first additional one of a node that had finished.
        """

    async def gather(self) -> None:
        """Wait until as many members are present as before the first round, or until one of them is ahead."""

    async def next_round(self, finished: int) -> int:
        """Return the round that follows `finished`; see p2pfl.node.exchange.rounds.

        The result is lower than `finished` if most participants are behind and do not catch up within a deadline. The
        node then stops serving models that it published in later rounds.
        """

    def public_info(self, id: str) -> Mapping[str, Any]:
        """Return the public information that a peer has announced about itself."""

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        """Publish a model so that neighbours can fetch it.

        A synchronous node first waits for slower nodes, for at most half a deadline.
        """

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        """Return the models of (round, stage) from the peers `ids`, sorted by id."""

    async def fetch_fragments(
        self, wanted: Mapping[str, Sequence[int]], round: int, fragments: Fragments, stage: Stage
    ) -> list[Fragment]:
        """Return parts of the models of (round, stage), sorted by peer and then by part.

        Args:
            wanted: numbers of parts by peer, sorted; at least one of each peer.
        """

    def ask_on_probation(self, wanted: Collection[str], round: int, fragments: Fragments, stage: Stage) -> None:
        """Request one part from each peer on probation, except those of `wanted`, without waiting for the answers."""

    def expected_bytes(self, id: str, round: int) -> int:
        """Return the expected size in bytes of a peer's model of a round.

        See p2pfl.node.exchange.model_encoding.ModelEncoder.expected_bytes.
        """

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        """Return the mean loss of `params`, always sent as float32, on the training data of each of `ids`."""

    def resume(self, round: int, params: Parameters) -> None:
        """Restore the last finished round of a node with a coordinated policy, and its model. Call this before `start`.

        Raises:
            ConfigurationError: the exchange takes no part in elections.
        """

    async def submit(self, submission: Submission) -> Assignment | None:
        """Return the coordinator's assignment; None if there is no coordinator or no answer by the deadline.

        Raises:
            ConfigurationError: the node's policy is not coordinated.
        """

    def set_aside(self) -> str:
        """Note that the node continues from another model than the last assignment; return its coordinator's name.

        The next submission then contains the model from which the node has started.
        """

    def finish(self) -> None:
        """Mark the published models as final. The node continues to serve them."""

    def leave(self) -> None:
        """Stop waiting for peers to connect, because this node is about to stop."""

    async def close(self) -> None:
        """Leave the federation and close all links."""


def late_answer(round: int) -> str:
    """Return the reason for the suspicion of a peer that did not answer a request in time."""
    return f"missed the deadline of round {round}"


def late_round(round: int) -> str:
    """Return the reason for the suspicion of a peer that did not reach a round in time."""
    return f"did not reach round {round} in time"


def disclosed_loss(loss: float, robust: Robust) -> float:
    """Return the loss that a peer receives for its model. It is less precise if members may be malicious.

    See p2pfl.robust.candidates.
    """
    return loss if robust == NONE else coarse(loss)


@dataclass(frozen=True, kw_only=True)
class NeighbourRoles:
    """Neighbours of a node, and the direction in which models may flow.

    Attributes:
        members: the members with which the node may exchange messages, by name.
        sources: names of the members from which the node may fetch; None for all.
        askers: names of the members that may fetch from the node; None for all.
        observer: whether the node is an observer; its round then does not count for any node.
        sparse: whether the topology is incomplete; see p2pfl.node.exchange.rounds.
        known: returns the number of members in the log, if the node has links with some of them only.
        has_log: returns whether the neighbours of each round follow from the log as far as it is here.
        around: returns the names of the members with which a member has links, if the topology is incomplete and all know
            it; None otherwise. See p2pfl.node.conduct.
    """

    members: Mapping[str, Member]
    sources: Collection[str] | None = None
    askers: Collection[str] | None = None
    observer: bool = False
    sparse: bool = False
    known: Callable[[], int] | None = None
    has_log: Callable[[], bool] = lambda: True
    around: Callable[[str], Collection[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig:
    """Configuration of a message exchange.

    Attributes:
        peering: configuration of the node's peering. A period of inf is for nodes in one process: the exchange then
            treats all nodes as honest and always waits for the full deadline of the settings.
        n_samples: number of the node's training samples.
        askers, observer, sparse, known, has_log, around: see NeighbourRoles.
        fragments: whether the policy fetches parts of models.
    """

    peering: PeeringConfig
    settings: Settings
    n_samples: int
    askers: Collection[str] | None = None
    observer: bool = False
    sparse: bool = False
    known: Callable[[], int] | None = None
    has_log: Callable[[], bool] = lambda: True
    around: Callable[[str], Collection[str]] | None = None
    fragments: bool = False

    @property
    def strict(self) -> bool:
        """Return whether peers that miss deadlines are put on probation."""
        return self.peering.options.period < inf
