"""Checks of elections and coordinated rounds, with the code that nodes run."""

from math import prod
from types import SimpleNamespace

import msgspec
import numpy as np

from p2pfl.compression.codecs import Float32
from p2pfl.node.coordination.election_runner import ElectionRunner, MemoryVotes
from p2pfl.node.coordination.submissions import Coordination, UnansweredSubmission
from p2pfl.node.exchange.base import ExchangeConfig
from p2pfl.node.exchange.message_exchange import MessageExchange
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.peering.peering_config import Member, PeeringConfig
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.protocols.election import Ballot, Election, Electorate, Term
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Opened
from p2pfl.protocols.wire.payload import decode_assignment, decode_submission
from tests.conformance.wire_keys import KEYS
from tests.conformance.wire_models import more_text

DTYPES = {np.dtype("<f4"): "f4", np.dtype("<f8"): "f8", np.dtype("<i8"): "i8", np.dtype("<u8"): "u8"}


def arrays(extras):
    return more_text({name: [DTYPES[a.dtype], list(a.shape), a.reshape(-1).tolist()] for name, a in extras.items()})


def check_election(given):
    membership_version, members, eligible = (
        given["electorate"][key] for key in ("membership_version", "members", "eligible")
    )
    electorate = Electorate(membership_version, frozenset(members), tuple(eligible))
    ballot = Ballot(Term(membership_version, given["term"]), given["vote"])
    voter = Election(given["me"], electorate, ballot, lambda: 0.0, given["started"])
    answers = []
    for now, sender, said in given["heard"]:
        step = voter.receive(sender, msgspec.convert(said, m.ElectionMessage), now)
        assert {name for name, _ in step.send} <= {sender}
        answers.append(msgspec.to_builtins(step.send[0][1]) if step.send else None)
    coordinator = next((name for name in members if voter.obeys(name, voter.term)), "")
    return {"answers": answers, "term": voter.term.number, "vote": voter.ballot.vote, "coordinator": coordinator}


def size_of(given):
    return sum(prod(shape) for shape in given["tensors"])


def check_submission(given):
    found = decode_submission(bytes.fromhex(given["bytes"]), size_of(given), given["start"])
    start = None if found.start is None else found.start.tolist()
    said = {"extras": arrays(found.extras), "previous": arrays(found.previous)}
    return {"params": found.params.tolist(), "start": start, **said}


def check_assignment(given):
    found = decode_assignment(bytes.fromhex(given["bytes"]), size_of(given))
    return {"params": found.params.tolist(), "weights": found.weights, "extras": arrays(found.extras)}


def exchange_of(given):
    """Return bob's exchange after alice's introduction, with the given term and coordinator."""
    layout = Layout((("model", (size_of(given),)),), size_of(given))
    alice, bob = KEYS["alice"], KEYS["bob"]
    term = Term(*given["term"])
    voters = Electorate(term.membership_version, frozenset(given["voters"]), ("bob",))
    election = ElectionRunner("bob", voters, MemoryVotes(), incarnation=1, seed=0)
    config = ExchangeConfig(
        peering=PeeringConfig(
            name="bob",
            key=bob.public,
            neighbours={"alice": Member(alice.public)},
            transport=InProcessNetwork().transport("bob"),
            signer=FrameSigner(bob, bytes(16), bytes(16), 1),
            verifier=FrameVerifier({"alice": alice.public}, bob.public, bytes(16), 1 << 20),
            agreed={},
            public_info={},
        ),
        settings=Settings(),
        n_samples=1,
    )
    coordination = Coordination(election, CoordinatedFedAvg().step)
    exchange = MessageExchange(config, ModelEncoder(Float32(), layout), coordination=coordination)
    exchange.limit.own = given["norm"]
    names = ("alice", "bob", "carol")
    everyone = Electorate(term.membership_version, frozenset(names), names)
    election.election = Election("bob", everyone, Ballot(term), lambda: 0.0, 0.0)
    return exchange, election.election


def check_submit(given):
    """Pass a submission of alice to bob, who may be the coordinator."""
    exchange, election = exchange_of(given)
    if given["coordinates"]:
        election.role = "coordinator"
    exchange.peers["alice"].public_info = given["public_info"]
    taken = []
    exchange.coordination.coordinator.take = lambda term, entry: taken.append(entry.submission)
    handle(exchange, m.Submit(**given["message"]), given)
    return {"taken": bool(taken)}


def check_assigned(given):
    """Pass an assignment of alice to bob, who waits for one."""
    asked, answers = given["asked"], []
    exchange, election = exchange_of(given)
    if given["follows"]:
        election.receive(given["follows"], m.Leading(*given["term"], 1), 0.0)
    waiting = SimpleNamespace(done=lambda: bool(answers), set_result=answers.append)
    exchange.coordination.client.pending = UnansweredSubmission(
        asked["request"], asked["round"], asked["of"], Term(*asked["term"]), waiting
    )
    try:
        handle(exchange, m.Assigned(**given["message"]), given)
    except ProtocolError as error:
        unusable = error.cause in ("wrong length", "malformed", "not finite", "too large", "differs")
        if answers != [None] * unusable:  # an invalid assignment ends the wait; a message of another member does not
            raise AssertionError(answers) from error
        raise
    if not answers:
        return {"answered": False}
    return {"answered": True, "params": None if answers[0] is None else answers[0].params.tolist()}


def handle(exchange, message, given):
    exchange.handle(exchange.peers["alice"], Opened("alice", message, memoryview(bytes.fromhex(given["payload"])), 1))


CHECKS = {
    "election": check_election,
    "submission": check_submission,
    "assignment": check_assignment,
    "submit": check_submit,
    "assigned": check_assigned,
}
