"""Interface for obtaining peers' models. What differs between machines and the simulator is behind it."""

from __future__ import annotations

from asyncio import TaskGroup
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from p2pfl.node.coordination.election_runner import Elected
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.exchange.published_models import Outbox, Published
from p2pfl.node.peering.peer_view import PeerView
from p2pfl.node.peering.traffic import Traffic
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Extras, Stage, Submission, Update


class ExchangeHost(Protocol):
    """Node that an exchange works for."""

    def complete(self, params: Parameters) -> Parameters:
        """Return a peer's model, float32 [S], with the private part of this node, [P]."""

    async def save_model(self, model: Published) -> None:
        """Make a model durable. No peer can get it before this returns."""

    def elected(self, elected: Elected) -> None:
        """Take note that there is another coordinator, or none any more."""


class Detached:
    """Host of an exchange that works for no node: nothing is private, nothing is saved."""

    def complete(self, params: Parameters) -> Parameters:
        return params

    async def save_model(self, model: Published) -> None:
        """Do nothing."""

    def elected(self, elected: Elected) -> None:
        """Do nothing."""


class Exchange(Protocol):
    """A peer that does not answer by the deadline is left out of the answer and suspected; nothing is raised for it."""

    outbox: Outbox
    coding: ModelEncoder

    @property
    def expired(self) -> int:
        """Number of deadlines that have passed."""

    @property
    def roster(self) -> PeerView: ...

    @property
    def traffic(self) -> Traffic: ...

    async def start(self, tasks: TaskGroup, host: ExchangeHost) -> None:
        """Be reachable, and wait for the neighbours, at most one deadline."""

    async def next_round(self, finished: int) -> int:
        """Return the round that follows `finished`; see p2pfl.node.exchange.rounds.pacing.

        It is lower than that where most participants are behind, and have not come up within a deadline. Then nothing that
        was published in later rounds is served any more.
        """

    def public_info(self, id: str) -> Mapping[str, Any]:
        """Return the public facts that a peer has given of itself."""

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        """Let neighbours fetch a model. A synchronous node first waits for slower ones, at most half a deadline."""

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        """Return the models of (round, stage) at `ids`, sorted by id."""

    def expected_bytes(self, id: str, round: int) -> int:
        """Return the bytes that a peer's model of a round is expected to take.

        See p2pfl.node.exchange.model_encoding.ModelEncoder.expected_bytes.
        """

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        """Return the mean loss of `params`, which travel as float32 always, on the training data of each of `ids`."""

    def resume(self, round: int, params: Parameters) -> None:
        """Take note, before the start, of the last round that a node with a coordinated policy has done, and of its model.

        Raises:
            ConfigurationError: the exchange takes no part in elections.
        """

    async def submit(self, submission: Submission) -> Assignment | None:
        """Return what the coordinator assigns; None without a coordinator, or if nothing has come by the deadline.

        Raises:
            ConfigurationError: the node's policy is not coordinated.
        """

    def finish(self) -> None:
        """Say that what was published is final. Serving goes on."""

    def leave(self) -> None:
        """Do not wait for peers to appear any more: this node is about to stop."""

    async def close(self) -> None:
        """Leave."""
