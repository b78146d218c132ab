"""Refused connections: all are counted, and faults are logged."""

import pytest

from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import PeeringConfig, PeeringOptions
from p2pfl.protocols.transports.in_process import InProcessNetwork


class Log:
    def __init__(self):
        self.warnings = []

    def warning(self, text, **fields):
        self.warnings.append((text, fields["cause"]))


@pytest.mark.parametrize(
    ("cause", "warnings"),
    [("stranger", [("refused a connection: of dave", "stranger")]), ("unknown session", [])],
)
def test_refused_warns_once_of_each_fault(cause, warnings):
    log = Log()
    config = PeeringConfig(
        name="alice",
        key=bytes(32),
        neighbours={},
        transport=InProcessNetwork().transport("alice"),
        signer=None,
        verifier=None,
        agreed={},
        public_info={},
        options=PeeringOptions(log=log),
    )
    peering = PeerManager(config, None)
    for _ in range(2):
        peering.refused(cause, "of dave")
    assert log.warnings == warnings
    assert peering.rejected == {cause: 2}
