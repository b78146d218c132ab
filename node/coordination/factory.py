"""Construction of a node's part in coordinated rounds, as a participant and as the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from p2pfl.node.coordination.backend import MessageCoordinatorBackend
from p2pfl.node.coordination.coordinator import Coordinator
from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.coordination.messages import CheckModel
from p2pfl.node.coordination.participant import CoordinationClient
from p2pfl.node.coordination.submission_server import CoordinationServer
from p2pfl.node.folder.settings import Settings
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.parameters import Layout
from p2pfl.policy import Step


class Coordination(NamedTuple):
    """Node's part in a coordinated policy.

    Attributes:
        electing: its part in the election of a coordinator.
        step: step of the policy, which runs while this node is the coordinator.
    """

    electing: ElectionRunner
    step: Step


class CoordinationRoles(NamedTuple):
    """Roles of a node in coordinated rounds.

    Attributes:
        client: submits to the coordinator.
        server: accepts the submissions of others while this node is the coordinator.
        coordinator: collects the submissions of a round and runs its step.
    """

    client: CoordinationClient
    server: CoordinationServer
    coordinator: Coordinator


def make_coordination_roles(
    contacts: PeerManager,
    coordination: Coordination,
    layout: Layout,
    *,
    settings: Settings,
    newest: Callable[[], int],
    check: CheckModel,
) -> CoordinationRoles:
    """Return a node's roles in coordinated rounds.

    Args:
        newest: returns the latest credible round, which enough of the other nodes have reached.
    """
    electing, deadline = coordination.electing, settings.deadline
    backend = MessageCoordinatorBackend(
        contacts, electing, layout, newest=newest, step=coordination.step, robust=settings.robust
    )
    coordinator = Coordinator(backend, deadline)
    client = CoordinationClient(contacts, electing, coordinator, size=layout.size, deadline=deadline, check=check)
    server = CoordinationServer(contacts, electing, coordinator, size=layout.size, check=check)
    return CoordinationRoles(client, server, coordinator)
