"""Golden vectors against this project: it reads them as expected, and generates the same files."""

import re

import pytest

from p2pfl.node.exchange import message_exchange, model_transfer
from p2pfl.protocols.membership import federation_file, invitation
from p2pfl.protocols.membership import log as membership
from p2pfl.protocols.mqtt import link, reliable_stream, transport
from p2pfl.protocols.transports import frames, handshake, tls, tls_link
from p2pfl.protocols.transports import tls as listener
from p2pfl.protocols.wire import envelope, payload
from p2pfl.protocols.wire import messages as m
from tests.conformance import wire_project, wire_reader, wire_vectors
from tests.conformance.test_golden import GROUPS, VECTORS, check_vectors

DOCUMENT = (VECTORS.parent / "wire-protocol.md").read_text()


def section(title):
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("group", GROUPS)
def test_project_agrees_with_vectors(group):
    check_vectors(group, wire_project.run)


def test_project_has_all_checks():
    assert set(wire_project.CHECKS) == set(wire_reader.CHECKS)


@pytest.mark.slow
def test_vector_files_are_current():
    made = wire_vectors.make()
    assert {path.name for path in VECTORS.iterdir()} == set(made)
    for name, text in made.items():
        assert (VECTORS / name).read_text() == text, f"{name} differs; run scripts/vectors and look at what has changed"


def test_document_lists_every_message_with_its_fields():
    rows = [row.split("|") for row in section("Messages").splitlines() if row.startswith("| `")]
    fields = {row[1].strip(" `"): re.findall(r"(?:^|; |optional )`(\w+)`", row[2].strip()) for row in rows}
    payloads = {row[1].strip(" `") for row in rows if row[3].strip()}
    known = {kind.__struct_config__.tag: list(kind.__struct_fields__) for kind in m.Message.__args__}
    assert fields == known
    assert payloads == {kind.__struct_config__.tag for kind in m.WithPayload.__args__}


def test_limits_in_documents_match_code():
    limits = section("Limits")
    for figure in (
        *(
            payload.EXTRAS_LIMIT,
            m.HelloParameters.LIMIT,
            m.Entries.LIMIT,
            tls_link.GREETING,
            handshake.LIMIT,
            handshake.ENTRIES_LIMIT,
        ),
        *(
            invitation.ANSWER_LIMIT,
            membership.LIMIT,
            federation_file.LIMIT,
            transport.LARGEST,
            transport.LARGEST_PRESENCE,
            link.LIMIT,
        ),
        reliable_stream.CHUNK,
    ):
        assert f"{figure:,}" in limits, figure
    security = (VECTORS.parent / "security.md").read_text(encoding="utf-8")
    for figure in (
        f"{frames.RATE:.0f} a second, {frames.BURST:,.0f} at once",
        f"{frames.GRACE:.0f} s, and 1 s for every",
    ):
        assert figure in limits
        assert figure in security
    for rate, burst in ((listener.HOST_RATE, listener.HOST_BURST), (listener.CONNECTION_RATE, listener.CONNECTION_BURST)):
        assert f"{rate:.0f} a second, {burst} at once" in security
    assert message_exchange.payload_limit(10_000_000) == 4 * 10_000_000 + payload.EXTRAS_LIMIT
    assert message_exchange.payload_limit(1) == 4 + payload.EXTRAS_LIMIT > m.HelloParameters.LIMIT
    assert f"{reliable_stream.WINDOW} on their way" in limits
    assert f"{tls.STRANGERS}, of a key {tls.LINKS_PER_KEY} (through a broker: {link.LINKS_PER_KEY} links)" in limits
    for what, number in (
        ("requests of one peer that wait", model_transfer.WAITING_REQUESTS),
        ("losses computed", model_transfer.SCORES_AT_ONCE),
        ("models on their way", model_transfer.MODELS_IN_FLIGHT),
    ):
        assert re.search(rf"\| {what}.*\| {number} \|", limits), what
    assert f"| envelope and messages | {envelope.VERSION} |" in section("Versions")
