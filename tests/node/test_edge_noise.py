"""Noise that nodes on machines and their neighbours add with opposite signs: secrets, claims, own noise beside it."""

import numpy as np
import pytest

from p2pfl.correlated_noise import offer_of
from p2pfl.node.edge_noise import EDGE, KEY, OWN, EdgeSecrets, Neighbour
from p2pfl.privacy import EDGE_CLAIMS, Privacy, StepDraws
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Mechanism, Steps

NEEDED = 0.25
NOISE = 4.0  # of a step without neighbours, in clips; so that a step has 16 samples
HOME = b"home" * 4
NAMES = ("alice", "bob", "carol", "dave")
PLAIN = Mechanism(1.0, NOISE, bytes(32))
LOW_ORDER = (bytes(32), b"\1" + bytes(31))


def complete(n):
    return [[j for j in range(n) if j != k] for k in range(n)]


def node(name, start=0, *, federation=HOME, colluding=1, needed=NEEDED):
    secret = (f"{name} {start}".encode() * 32)[:32]
    offer = offer_of(needed, complete(len(NAMES)), colluding, 1.0)
    return EdgeSecrets(
        name,
        name.encode().ljust(32, b"."),
        federation,
        privacy=Privacy(epsilon=8, correlated=True, colluding=colluding),
        needed=needed,
        offer=offer,
        secret=lambda size: secret[:size],
    )


def seen(name, found, **changes):
    return Neighbour(name, name.encode().ljust(32, b"."), {"n_samples": 60, **found.claim, **changes})


def acquainted(names=NAMES, **options):
    """Return nodes that have each other's introductions."""
    found = {name: node(name, **options) for name in names}
    for name, each in found.items():
        each.neighbours = lambda name=name: [seen(other, found[other]) for other in names if other != name]
    return found


def keys(mechanism):
    return {edge.key for edge in mechanism.edges or ()}


def drawn(mechanism, values=2000):
    """Return the noise of a step in gradients of the mean loss, [values]."""
    query = Train(np.zeros(3, np.float32), 1, rule=Steps(1), mechanism=mechanism)
    found = np.empty(values, np.float32)
    StepDraws(RandomStreams(0, "any"), query, 60, 16).noise(found, mechanism.noise * mechanism.clip)
    return found / 16


def test_noise_of_edges_cancels_in_the_mean_and_own_noise_is_small():
    found = acquainted()
    mechanisms = {name: each.add_to(PLAIN, 1) for name, each in found.items()}
    secrets = [keys(each) for each in mechanisms.values()]
    assert len(set.union(*secrets)) == 6  # one of each pair
    assert sum(len(each) for each in secrets) == 12
    noise = {name: each.noise for name, each in mechanisms.items()}
    assert set(noise.values()) == {found["alice"].noise}
    assert found["alice"].noise < 0.65 * NOISE  # three honest nodes: 1 / sqrt(3) with much noise of edges
    assert found["alice"].joined == 3
    rows = np.array([drawn(each) for each in mechanisms.values()])
    own = np.array([drawn(Mechanism(1.0, each.noise, PLAIN.key)) for each in mechanisms.values()])
    assert np.abs(rows.mean(0) - own.mean(0)).max() < 1e-6 * rows.std()
    offer = found["alice"].claim
    assert rows.std(1) == pytest.approx(np.hypot(offer[OWN], 3**0.5 * offer[EDGE]), rel=0.1)


def test_key_of_an_edge_is_new_in_each_round_federation_and_start():
    usual = acquainted()["alice"]
    first = keys(usual.add_to(PLAIN, 1))
    later = keys(usual.add_to(PLAIN, 2))
    elsewhere = keys(acquainted(federation=b"work" * 4)["alice"].add_to(PLAIN, 1))
    restarted = acquainted(start=1)["alice"]
    again = keys(restarted.add_to(PLAIN, 1))
    assert len(first | later | elsewhere | again) == 12
    assert first == keys(acquainted()["alice"].add_to(PLAIN, 1))


def test_neighbours_share_noise_again_after_one_of_them_has_started_again():
    found = acquainted(NAMES[:2])
    before = keys(found["alice"].add_to(PLAIN, 1))
    found["bob"] = node("bob", start=1)
    found["bob"].neighbours = lambda: [seen("alice", found["alice"])]
    after = [keys(found[name].add_to(PLAIN, round)) for name, round in (("bob", 1), ("bob", 2), ("alice", 2))]
    assert after[1] == after[2]
    assert len(before | after[0] | after[1]) == 3


@pytest.mark.parametrize("claim", [OWN, EDGE])
def test_nodes_that_believe_different_claims_share_no_noise(claim):
    found = acquainted(NAMES[:2])
    usual = keys(found["alice"].add_to(PLAIN, 1))
    found["alice"].neighbours = lambda: [seen("bob", found["bob"], **{claim: found["bob"].claim[claim] * 2})]
    assert keys(found["bob"].add_to(PLAIN, 1)) == usual
    assert not keys(found["alice"].add_to(PLAIN, 1)) & usual
    found = acquainted(NAMES[:2])
    found["alice"].neighbours = lambda: [seen("bob", found["bob"], **{claim: found["bob"].claim[claim] * 2})]
    assert not keys(found["alice"].add_to(PLAIN, 1)) & usual


def test_member_with_the_key_of_another_one_gets_no_secret_of_it():
    found = acquainted(NAMES[:3])
    found["alice"].neighbours = lambda: [seen("bob", found["bob"]), seen("carol", found["bob"])]
    assert len(keys(found["alice"].add_to(PLAIN, 1)) & keys(found["bob"].add_to(PLAIN, 1))) == 1
    assert not keys(found["carol"].add_to(PLAIN, 1)) & keys(found["alice"].add_to(PLAIN, 2))


def test_round_that_is_repeated_has_own_noise_alone():
    alice = acquainted()["alice"]
    assert len(keys(alice.add_to(PLAIN, 7))) == 3
    for repeated in (7, 6, 1):
        assert alice.add_to(PLAIN, repeated) == PLAIN
        assert (alice.joined, alice.noise) == (0, NOISE)
    assert len(keys(alice.add_to(PLAIN, 8))) == 3


def test_own_noise_grows_with_each_neighbour_that_is_away():
    found = acquainted()
    noise = []
    for round, present in enumerate((3, 2, 1, 0), 1):
        found["alice"].neighbours = lambda present=present: [seen(name, found[name]) for name in NAMES[1 : 1 + present]]
        mechanism = found["alice"].add_to(PLAIN, round)
        assert len(keys(mechanism)) == present
        noise.append(mechanism.noise)
    assert noise[0] < noise[1] < noise[2]
    assert noise[2:] == pytest.approx([NOISE] * 2, rel=1e-8)  # of one neighbour, which may collude; and of none


def test_more_noise_is_needed_against_more_that_collude():
    noise = [acquainted(colluding=colluding)["alice"].add_to(PLAIN, 1).noise for colluding in (0, 1, 2)]
    assert noise[0] < noise[1] < noise[2] < NOISE


def test_neighbours_with_other_needs_join_and_use_the_smaller_noise():
    alice, bob = node("alice"), node("bob", needed=4 * NEEDED)
    alice.neighbours, bob.neighbours = (lambda: [seen("bob", bob)]), (lambda: [seen("alice", alice)])
    (one,), (other,) = (each.add_to(PLAIN, 1).edges for each in (alice, bob))
    assert one.key == other.key
    assert (one.adds, other.adds) == (True, False)
    # bob's own noise is 4 times as large in the same unit, so that the same noise of the edge is a quarter of it
    assert one.scale / other.scale == pytest.approx(4, rel=1e-6)
    assert one.scale * alice.noise / NOISE * NEEDED == pytest.approx(alice.claim[EDGE])


@pytest.mark.parametrize(
    "changes",
    [
        {KEY: 5},
        {KEY: "00"},
        {KEY: "zz" * 32},
        {KEY: "AB" * 32},
        {OWN: 0.0},
        {OWN: -1.0},
        {OWN: float("inf")},
        {OWN: float("nan")},
        {OWN: True},
        {EDGE: "1.0"},
        {EDGE: 0.0},
        *({KEY: key.hex()} for key in LOW_ORDER),
    ],
)
def test_neighbour_with_a_wrong_claim_takes_no_part(changes):
    alice, bob = node("alice"), node("bob")
    alice.neighbours = lambda: [seen("bob", bob, **changes)]
    assert alice.add_to(PLAIN, 1) == PLAIN


@pytest.mark.parametrize("missing", EDGE_CLAIMS)
def test_neighbour_without_a_claim_takes_no_part(missing):
    alice, bob = node("alice"), node("bob")
    told = seen("bob", bob)
    alice.neighbours = lambda: [
        told._replace(public_info={key: each for key, each in told.public_info.items() if key != missing})
    ]
    assert alice.add_to(PLAIN, 1) == PLAIN


def test_secrets_are_in_no_text():
    alice = acquainted()["alice"]
    mechanism = alice.add_to(PLAIN, 1)
    assert not any(repr(edge.key) in repr((mechanism, mechanism.edges)) for edge in mechanism.edges)
    assert alice.claim[KEY] != (b"alice 0" * 32)[:32].hex()
