"""Proofs that a member has sent different models of one round, in federations that exchange real messages."""

from itertools import count
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.node.conduct import UNKNOWN, Conduct, EquivocationWatch
from p2pfl.node.exchange.model_encoding import Published
from p2pfl.node.peering.peering_config import PeeringOptions
from p2pfl.node.settings import Settings
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import (
    OVERHEAD,
    FrameSigner,
    FrameVerifier,
    Opened,
    Payload,
    make_proof,
    parse_signed_model,
    read_proof,
)
from p2pfl.sim.simulation.clock import run
from tests.support.federation import federation_id, play
from tests.support.logs import log_to

NAMES = ("a", "b", "c", "d", "e")
FEDERATION = bytes(range(16))
ALICE, BOB = Identity.from_seed(bytes([1]) * 32), Identity.from_seed(bytes([2]) * 32)


def settings(**changes):
    return Settings(**{"rounds": 6, "deadline": 10.0, "robust": "median-clip"} | changes)


def equivocate(exchange):
    """Make a node answer every request with another model."""
    honest, numbers = exchange.outbox.find, count(1)

    def find(round, stage):
        found = honest(round, stage)
        if not isinstance(found, Published):
            return found
        exchange.models.payloads.clear()
        params = found.update.params + np.float32(1e-3 * next(numbers))
        return replace(found, update=replace(found.update, model=params))

    exchange.outbox.find = find


def run_with_liar(**changes):
    async def test(federation):
        federation.start()
        equivocate(federation.nodes["e"].exchange)
        await federation.done()

    return play(test, NAMES, settings(**changes))


@pytest.mark.slow
def test_honest_nodes_hold_verifiable_proof():
    federation = run_with_liar()
    for name in NAMES[:-1]:
        conduct = federation.nodes[name].exchange.conduct
        (proof,) = conduct.proofs.values()
        one, other = read_proof(proof, federation_id("test"))
        assert one.sender == other.sender == federation.keys["e"].public
        assert conduct.penalties == {"e": {"equivocation": 1}}
        assert conduct.score("e") == 100
        assert "e" in federation.partners(name, 6)  # it is not left out


@pytest.mark.slow
def test_distrusting_nodes_leave_the_equivocator_out():
    federation = run_with_liar(distrust=3)
    for name in NAMES[:-1]:
        assert "e" not in federation.partners(name, 6)
        assert federation.nodes[name].exchange.view.left_out == {"e": "distrusted: equivocation"}
    assert not federation.partners("e", 6)


@pytest.mark.slow
def test_equivocator_in_sparse_graph_is_left_out():
    """Twelve members with four neighbours each; receipts reach the witnesses over other members."""
    names = tuple(f"n{k:02}" for k in range(12))
    edges = [(names[a], names[b]) for a, b in nx.random_regular_graph(4, 12, seed=1).edges]
    liar, carried = names[3], []

    async def test(federation):
        federation.start()
        equivocate(federation.nodes[liar].exchange)
        for name, node in federation.nodes.items():
            receive = node.exchange.equivocation.receive

            def received(peer, opened, name=name, receive=receive):
                if isinstance(opened.message, m.Carried):
                    carried.append(name)
                receive(peer, opened)

            node.exchange.equivocation.receive = received
        await federation.done()

    federation = play(test, names, settings(rounds=8, distrust=1), edges=edges, proven=True)
    assert len(set(carried)) > 3
    for name in federation.neighbours(liar):  # here the others have no membership log, so they do not know its key
        assert list(federation.nodes[name].exchange.conduct.proofs) == [federation.keys[liar].public]
        assert federation.nodes[name].exchange.view.left_out == {liar: "distrusted: equivocation"}
    assert not any(node.exchange.rejected for node in federation.nodes.values())


@pytest.mark.slow
def test_proof_and_exclusion_last_over_restart(tmp_path):
    async def test(federation):
        federation.start()
        equivocate(federation.nodes["e"].exchange)
        await federation.round("a", 4)
        await federation.kill("e")
        await federation.kill("a")
        federation.start("a")
        await federation.done("a", "b", "c", "d")

    federation = play(test, NAMES, settings(rounds=8, distrust=1), folder=tmp_path, period=1.0)
    exchange = federation.nodes["a"].exchange
    assert exchange.view.left_out == {"e": "distrusted: equivocation"}
    assert list(exchange.conduct.proofs) == [federation.keys["e"].public]


@pytest.mark.slow
def test_honest_federation_holds_no_proof():
    async def test(federation):
        federation.start()
        await federation.done()

    federation = play(test, NAMES, settings(distrust=1))
    for node in federation.nodes.values():
        conduct = node.exchange.conduct
        assert (conduct.proofs, conduct.penalties, node.exchange.view.left_out) == ({}, {}, {})


# Reports


@pytest.mark.parametrize(
    ("reported", "newest"),
    [({"round": 6}, 7), ({"round": 8}, 8), ({"round": 9, "incarnation": 2}, 7), ({"round": 1, "incarnation": 4}, 1)],
)
def test_report_replaces_only_older_newest_model(reported, newest):
    verifier = FrameVerifier({"alice": ALICE.public}, BOB.public, FEDERATION, 100)
    verifier.note_model(ALICE.public, frame(round=7))
    receive_of_alice(m.Receipts(), frame(**reported), verifier)
    assert parse_signed_model(verifier.newest_model(ALICE.public), FEDERATION).round == newest


def config_of_bob(verifier=None, access=None):
    return SimpleNamespace(
        name="bob",
        key=BOB.public,
        seed=0,
        asynchronous=True,
        signer=FrameSigner(BOB, FEDERATION, bytes(16), 1),
        verifier=verifier or FrameVerifier({"alice": ALICE.public}, BOB.public, FEDERATION, 100),
        options=PeeringOptions(access=access, log=log_to([])),
    )


def receive_of_alice(message, payload, verifier=None):
    """Let BOB handle a message of ALICE, its only peer; return what it knows of its peers' conduct."""
    peer = SimpleNamespace(name="alice", key=ALICE.public)
    peering = SimpleNamespace(peers={"alice": peer}, round=7, view=SimpleNamespace(leave_out=None))
    conduct = Conduct(enabled=True)

    async def main():
        watch = EquivocationWatch(config_of_bob(verifier), peering, conduct)
        watch.receive(peer, Opened("alice", message, memoryview(payload), 1))

    run(main())
    return conduct


# Proofs


def frame(identity=ALICE, content=b"1", *, incarnation=3, generation=0, round=7, stage="trained", base=b"", of=FEDERATION):
    signer = FrameSigner(identity, of, bytes(16), incarnation, generation=generation)
    update = m.ModelUpdate(1, round, stage, 5, False, 0.0, base)
    return b"".join(bytes(part) for part in signer.seal(update, BOB.public, Payload.of(content)))[:OVERHEAD]


def test_two_models_of_one_round_are_a_proof():
    proof = make_proof(*(parse_signed_model(frame(content=c), FEDERATION) for c in (b"1", b"2")))
    one, other = read_proof(proof, FEDERATION)
    assert (one.sender, one.round, other.round) == (ALICE.public, 7, 7)


@pytest.mark.parametrize(
    ("other", "cause"),
    {
        "the same model": (frame(), "malformed"),
        "another round": (frame(content=b"2", round=8), "malformed"),
        "another stage": (frame(content=b"2", stage="merged"), "malformed"),
        "another start": (frame(content=b"2", incarnation=4), "malformed"),
        "a repeated round": (frame(content=b"2", generation=1), "malformed"),
        "another sender": (frame(BOB, b"2"), "malformed"),
        "a difference": (frame(content=b"2", base=b"12345678"), "malformed"),
        "another federation": (frame(content=b"2", of=bytes(16)), "other federation"),
        "a forged signature": (frame(content=b"2")[:-1] + b"\0", "wrong signature"),
        "a longer one": (frame(content=b"2") + b"\0", "wrong length"),
    }.values(),
)
def test_other_pairs_of_frames_are_no_proof(other, cause):
    with pytest.raises(ProtocolError) as error:
        read_proof(frame() + other, FEDERATION)
    assert error.value.cause == cause


def proof_against(identity):
    return b"".join((frame(identity), frame(identity, b"2")))


def test_proof_against_a_member_that_the_log_does_not_have_yet_counts_when_it_has():
    """A newcomer that has begun with a checkpoint of the log knows few members, and a proof comes once over a link."""
    strangers = [Identity.from_seed(bytes([k]) * 32) for k in range(10, 10 + 2 * UNKNOWN)]
    present = set()
    log = SimpleNamespace(
        refusal=lambda key: "" if key in present else "revoked" if key == BOB.public else "stranger",
        membership_version=9,
        stored=0,
    )
    peering, watch = watch_of(log)
    alice = peering.peers["alice"]

    async def main():
        for each in (BOB, *strangers):
            watch.receive(alice, Opened("alice", m.Equivocation(), memoryview(proof_against(each)), 1))
        late = strangers[UNKNOWN]  # no peer lets this node keep many
        forged = frame(strangers[0])[:-1] + b"\0" + frame(strangers[0], b"2")
        carol = SimpleNamespace(name="carol", key=Identity.from_seed(bytes([4]) * 32).public, link=None)
        peering.peers["carol"] = carol
        watch.receive(carol, Opened("carol", m.Equivocation(), memoryview(forged), 1))
        watch.report()
        assert not watch.conduct.proofs
        present.update(each.public for each in (*strangers[:3], late, BOB))
        watch.report()
        assert not watch.conduct.proofs  # nothing is looked at before the log has changed
        log.stored = 9
        watch.report()
        assert set(watch.conduct.proofs) == {each.public for each in strangers[:3]}
        del peering.peers["alice"]
        present.update(each.public for each in strangers)
        log.stored = 10
        watch.spread()
        assert len(watch.conduct.proofs) == UNKNOWN

    run(main())


def watch_of(access):
    """Return BOB's comparison of models with ALICE as its peer, and these."""
    peering = SimpleNamespace(
        peers={"alice": SimpleNamespace(name="alice", key=ALICE.public, link=None)},
        released={},
        round=7,
        view=SimpleNamespace(leave_out=None),
        introduced_peers=list,
    )
    peering.with_key = lambda key: next((peer for peer in peering.peers.values() if peer.key == key), None)
    return peering, EquivocationWatch(config_of_bob(access=access), peering, Conduct(enabled=True))


def test_proof_against_stranger_is_dropped_unverified():
    carol = Identity.from_seed(bytes([3]) * 32)
    forged = frame(carol)[:-1] + b"\0", frame(carol, b"2")[:-1] + b"\0"
    conduct = receive_of_alice(m.Equivocation(), b"".join(forged))  # a verified one would raise an error
    assert not conduct.proofs
    with pytest.raises(ProtocolError, match="wrong signature"):
        receive_of_alice(m.Equivocation(), b"".join((frame()[:-1] + b"\0", frame(content=b"2")[:-1] + b"\0")))
