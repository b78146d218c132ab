"""Coordinator's side of coordinated rounds: it accepts submissions and answers them by messages."""

from __future__ import annotations

from functools import partial

from p2pfl.node.coordination.coordinator import Coordinator, PendingSubmission
from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.coordination.messages import CheckModel, assignment_payload, read_submission
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.policy import Assignment, Submission
from p2pfl.protocols.election.types import Term
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, OVERHEAD, Opened


class CoordinationServer:
    """Server of the submissions to this node.

    Args:
        coordinator: collects the submissions of a round and runs its step.
        size: P, the number of shared parameters.
    """

    def __init__(
        self, contacts: PeerManager, electing: ElectionRunner, coordinator: Coordinator, *, size: int, check: CheckModel
    ) -> None:
        self._contacts = contacts
        self._electing = electing
        self._coordinator = coordinator
        self._size = size
        self._check = check

    def take_submit(self, peer: Peer, opened: Opened, message: m.Submit) -> None:
        """Handle a member's submission.

        Raises:
            ProtocolError: the submission is for another coordinator, or unusable for a step.
        """
        traffic = self._contacts.traffic
        traffic.received_submit += OVERHEAD + len(opened.payload)
        traffic.received_models += 1
        term = Term(message.membership_version, message.term)
        if term < self._electing.term:
            raise ProtocolError("lower term", f"a submission in the ended term {term}")
        if not self._electing.coordinates(term):
            raise ProtocolError("not the coordinator", f"a submission in term {term}")
        if not self._electing.votes(peer.name):  # the model of an observer counts for no node
            self._reply(peer, message, None)
            return
        try:
            submission = self._read(peer, opened, message)
        except ProtocolError:
            self._coordinator.refuse(term, peer.name)
            self._reply(peer, message, None)
            raise
        self._coordinator.take(term, PendingSubmission(submission, partial(self._reply, peer, message)))

    def _read(self, peer: Peer, opened: Opened, message: m.Submit) -> Submission:
        samples = peer.public_info.get("n_samples")
        if message.n_samples != samples:
            raise ProtocolError("differs", f"a submission of {message.n_samples} samples, but {samples} in the introduction")
        return read_submission(peer.name, opened, message, self._size, self._check)

    def _reply(self, peer: Peer, submit: m.Submit, assignment: Assignment | None) -> None:
        """Send an assignment, or, for None, the message that there will be none."""
        if not self._electing.leads(Term(submit.membership_version, submit.term)):
            return  # the participant submits again to the successor
        given = assignment is not None
        message = m.Assigned(submit.request, submit.round, submit.membership_version, submit.term, given)
        payload = EMPTY if assignment is None else assignment_payload(assignment)
        try:
            self._contacts.send(peer, message, payload)
        except TransportError:
            self._contacts.rejected["link lost"] += 1
            return
        self._contacts.traffic.sent_models += given
        self._contacts.traffic.sent_assigned += OVERHEAD + payload.size
