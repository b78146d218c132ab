"""How a node has models of its peers. What differs between machines and the simulator is behind this interface."""

from __future__ import annotations

from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from node.coding import Coding
from node.electing import Elected
from node.outbox import Outbox, Published
from node.roster import Roster
from node.traffic import Traffic
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Extras, Stage, Step, Submission, Update


class Exchange(Protocol):
    """A peer that does not answer by the deadline is left out of the answer and suspected; nothing is raised for it."""

    outbox: Outbox
    durable: Callable[[Published], Awaitable[None]] | None  # awaited with a model before anyone can get it
    coding: Coding
    step: Step | None  # of the node's policy, if that is coordinated
    whole: Callable[[Parameters], Parameters]  # completes a peer's model with what this node keeps private
    elected: Callable[[Elected], None]  # called when another one coordinates, or nobody does any more

    @property
    def expired(self) -> int:
        """Number of deadlines that have passed."""

    @property
    def roster(self) -> Roster: ...

    @property
    def traffic(self) -> Traffic: ...

    async def start(self, tasks: TaskGroup) -> None:
        """Be reachable, and wait for the neighbours, at most one deadline."""

    async def next_round(self, finished: int) -> int:
        """Return the round that follows `finished`; see node.pacing.

        It is lower than that where most participants are behind, and have not come up within a deadline. Then nothing that
        was published in later rounds is served any more.
        """

    def about(self, id: str) -> Mapping[str, Any]:
        """Return what a peer says of itself."""

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        """Let neighbours fetch a model. A synchronous node first waits for slower ones, at most half a deadline."""

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        """Return the models of (round, stage) at `ids`, sorted by id."""

    def expected(self, id: str, round: int) -> int:
        """Return the bytes that a peer's model of a round is expected to take; see node.coding.Coding.expected."""

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        """Return the mean loss of `params`, which travel as float32 always, on the training data of each of `ids`."""

    def resume(self, round: int, params: Parameters) -> None:
        """Take note of where a node with a coordinated policy is before it starts: which round is done, and its parameters.

        Raises:
            ConfigurationError: nobody is elected here.
        """

    async def submit(self, submission: Submission) -> Assignment | None:
        """Return what the coordinator assigns; None if there is none, or nothing came of it by the deadline."""

    def finish(self) -> None:
        """Say that what was published is final. Serving goes on."""

    def leave(self) -> None:
        """Do not wait for peers to appear any more: this node is about to stop."""

    async def close(self) -> None:
        """Leave."""
