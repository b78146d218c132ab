"""Refused connections: all are counted, and faults are logged."""

from collections import Counter
from types import SimpleNamespace

import pytest

from p2pfl.node.peering.links import LinkHandler
from p2pfl.node.peering.peering_config import PeeringOptions


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
    log, rejected = Log(), Counter()
    config = SimpleNamespace(name="alice", verifier=None, transport=None, options=PeeringOptions(log=log))
    handler = LinkHandler(
        config,
        None,
        table=None,
        messenger=SimpleNamespace(rejected=rejected),
        tasks=None,
        incarnations=None,
        router=None,
    )
    for _ in range(2):
        handler.refused(cause, "of dave")
    assert log.warnings == warnings
    assert rejected == {cause: 2}
