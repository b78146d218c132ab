"""Cost of unresponsive peers to the others, on virtual time."""

import pytest

from p2pfl.node.exchange import message_exchange
from p2pfl.node.exchange.rounds import GOOD, Probation
from p2pfl.node.settings import Settings
from p2pfl.protocols.wire import messages as m
from tests.support.federation import play
from tests.support.liars import Liar

NAMES = ("a", "b", "c", "d")


def test_probation_doubles_owed_answers_with_each_miss():
    probation, owed = Probation(), []
    for _ in range(8):
        probation.record_timeout("a", 3)
        owed.append(0)
        while probation.owes("a"):
            probation.record_answer("a")
            owed[-1] += 1
    assert owed == [1, 3, 7, 15, 31, 63, 63, 63]
    assert not probation.owes("b")


def test_probation_forgives_after_many_answers():
    probation = Probation()
    probation.record_timeout("a", 3)
    for _ in range(1 + GOOD):
        probation.record_answer("a")
    probation.record_timeout("a", 3)
    probation.record_answer("a")
    assert not probation.owes("a")


def test_probation_owes_more_in_large_federations():
    probation = Probation()
    probation.record_timeout("a", 24)
    for _ in range(5):
        assert probation.owes("a")
        probation.record_answer("a")
    assert probation.owes("a")
    probation.forget("a")
    assert not probation.owes("a")


ROUNDS, DEADLINE = 60, 5.0  # of a second each, without liars
SLOWEST = ROUNDS * 1.1 + 3 * 4 * DEADLINE  # four misses at each of three nodes; then it owes many answers


def play_with(liar, on, rounds=ROUNDS):
    """Run three honest nodes and a liar for all rounds; return the federation."""

    async def test(federation):
        federation.start("a", "b", "c")
        async with liar(federation, "d", on):
            for name in "abc":
                await federation.round(name, rounds)
        await federation.done()

    return play(test, NAMES, Settings(rounds=rounds, deadline=DEADLINE, adaptive=True), period=1.0)


def duration(federation):
    times = federation.watch["a"].times
    return times[max(times)] - times[min(times)]


def answer(liar, peer, message, payload):
    if isinstance(message, m.Get):
        liar.send(peer, m.NotAvailable(message.request, message.round, "gone"))


@pytest.mark.slow
def test_member_that_answers_pings_only_costs_one_deadline():
    federation = play_with(Liar, lambda *said: None)
    assert duration(federation) < ROUNDS * 1.1 + DEADLINE
    assert all(federation.nodes[name].exchange.expired <= 2 for name in "abc")


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 10])
def test_member_that_answers_sometimes_costs_little(every):
    asked = []

    def on(*said):
        asked.append(said)
        if len(asked) % every:
            answer(*said)

    assert duration(play_with(Liar, on)) < SLOWEST


@pytest.mark.slow
def test_member_that_answers_again_is_asked_again():
    asked = []

    def on(liar, peer, message, payload):
        if peer.name == "a" and isinstance(message, m.Get):
            asked.append(message.round)
        if not isinstance(message, m.Get) or message.round > 20:
            answer(liar, peer, message, payload)

    play_with(Liar, on)
    assert sum(round > 25 for round in asked) > 30


@pytest.mark.slow
def test_member_that_lags_a_round_costs_little():
    class Lagging(Liar):
        def claim(self, round):
            self.peering.round = round
            for peer in self.exchange.peers.values():
                for said in (round - 2, round - 1):
                    self.peering.tell(peer, m.RoundReached(max(0, said)))

    assert duration(play_with(Lagging, answer)) < SLOWEST


@pytest.mark.slow
def test_node_without_other_peers_forgives_one_that_answers(monkeypatch):
    made = []

    class Kept(Probation):
        def __init__(self, strict=True):
            super().__init__(strict)
            made.append(self)

    monkeypatch.setattr(message_exchange, "Probation", Kept)

    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        for _ in range(4):
            made[0].record_timeout("b", 1)  # 15 answers
        peering = federation.nodes["a"].exchange.peering
        peering.suspect(peering.peers["b"], "missed deadlines")
        await federation.done()
        assert federation.partners("a", 4) == set()
        assert federation.partners("a", 10) == {"b"}

    play(test, ["a", "b"], Settings(rounds=10, deadline=6.0, adaptive=True, evaluate_every=0), period=1.0)
