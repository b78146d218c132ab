"""Environment of the coordinator on a machine: an event loop, peers, an election, and a thread for the policy's step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from math import inf
from typing import Any

from p2pfl.node.coordination.aggregation_step import StepResult, run_protected_step
from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.parameters import Layout
from p2pfl.policy import Step, Submission
from p2pfl.protocols.election.types import Term
from p2pfl.robust.registry import Robust


class MessageCoordinatorBackend:
    """Backend of the coordinator; see p2pfl.node.coordination.coordinator.CoordinatorBackend.

    Args:
        newest: returns the latest credible round, which enough of the other nodes have reached.
        step: step of the node's policy.
        robust: protection against malicious members; see p2pfl.robust.registry.
    """

    def __init__(
        self,
        contacts: PeerManager,
        electing: ElectionRunner,
        layout: Layout,
        *,
        newest: Callable[[], int],
        step: Step,
        robust: Robust,
    ) -> None:
        self._contacts = contacts
        self._electing = electing
        self._layout = layout
        self._newest = newest
        self._step = step
        self._robust = robust

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        if seconds < inf:
            asyncio.get_running_loop().call_later(seconds, callback)

    def known_participants(self) -> AbstractSet[str]:
        contacts = self._contacts
        there = {
            peer.name
            for peer in contacts.introduced_peers()
            if not peer.stopped and peer.name not in contacts.roster.suspected and self._electing.votes(peer.name)
        }
        return there if contacts.final else there | {contacts.name}

    def credible_round(self) -> int:
        return max(self._contacts.round, self._newest())

    def coordinates(self, term: Term) -> bool:
        return self._electing.coordinates(term)

    def leads(self, term: Term) -> bool:
        return self._electing.leads(term)

    def compute(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[StepResult], None]
    ) -> None:
        own = self._contacts.name
        run = partial(run_protected_step, self._step, submissions, state, self._layout, coordinator=own, robust=self._robust)

        async def work() -> None:
            result: StepResult = await asyncio.get_running_loop().run_in_executor(None, run)
            if result.dropped:
                self._contacts.rejected["submission"] += len(result.dropped)
            then(result)

        self._contacts.begin(work(), f"{own}: step of round {submissions[0].round}")
