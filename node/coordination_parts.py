"""Construction of a node's part in coordinated rounds, as a participant and as the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from node.contact import PeerManager
from node.coordination_messages import CheckModel
from node.coordination_server import CoordinationServer
from node.coordinator_backend import MessageCoordinatorBackend
from node.desk import Desk
from node.electing import Electing
from node.submitting import Submitting
from p2pfl.parameters import Layout
from p2pfl.policy import Robust, Step


class CoordinationRoles(NamedTuple):
    """A node's roles in coordinated rounds.

    Attributes:
        client: submits to the coordinator.
        server: takes the submissions of others while this node is the coordinator.
        coordinator: gathers the submissions of a round and has its step run.
    """

    client: Submitting
    server: CoordinationServer
    coordinator: Desk


def make_coordination_roles(
    contacts: PeerManager,
    electing: Electing,
    layout: Layout,
    *,
    deadline: float,
    newest: Callable[[], int],
    check: CheckModel,
    step: Step,
    robust: Robust,
) -> CoordinationRoles:
    """Return a node's roles in coordinated rounds.

    Args:
        deadline: seconds for which participants wait for an assignment, elections included.
        newest: returns the latest round that is credible: enough of the other nodes are in it.
        step: of the node's policy.
        robust: protection against members that lie; see p2pfl.robust.
    """
    backend = MessageCoordinatorBackend(contacts, electing, layout, newest=newest, step=step, robust=robust)
    coordinator = Desk(backend, deadline)
    client = Submitting(contacts, electing, coordinator, size=layout.size, deadline=deadline, check=check)
    server = CoordinationServer(contacts, electing, coordinator, size=layout.size, check=check)
    return CoordinationRoles(client, server, coordinator)
