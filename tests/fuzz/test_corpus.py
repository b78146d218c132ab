"""Targets of the fuzzer, repeated with its seeds and with the inputs that it has kept."""

import pytest

from tests.fuzz.corpus import read_corpus
from tests.fuzz.targets import CHECKS, REPAIRED, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_read_as_documented(name):
    kept = read_corpus(name)
    assert kept
    for data in kept:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", ["membership", "joining", "broker", "envelopes", "handshake"])
def test_repaired_vectors_are_read_as_documented(name):
    assert name in CHECKS
    for data in TARGETS[name].seeds()[::9]:
        TARGETS[name].run(data[:1] + bytes([REPAIRED]) + data[2:])


def test_target_notices_a_difference_between_the_readers(monkeypatch):
    """Show that an agreement is not that both refuse everything, or that nothing is compared."""
    from p2pfl.protocols import discovery

    data = TARGETS["discovery"].seeds()[0]
    TARGETS["discovery"].run(data)
    monkeypatch.setattr(discovery, "MAX_TEXT", 1)
    with pytest.raises(AssertionError, match="independent reader"):
        TARGETS["discovery"].run(data)
