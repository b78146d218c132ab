"""Penalties, scores, and the exclusion of peers by their score."""

import asyncio

import numpy as np
import pytest

from p2pfl.node.conduct import UNSERVED, Conduct, ConductState
from p2pfl.node.settings import Settings
from p2pfl.policy import Update
from p2pfl.protocols.wire import messages as m
from tests.support.federation import play
from tests.support.liars import Liar

NAMES = tuple("abcde")
OWN = np.full(3, 9, np.float32)


def update(sender, round, value, **changes):
    return Update(sender, round, "trained", np.full(3, value, np.float32), 5, {}, **changes)


def enabled(distrust=0):
    conduct = Conduct(distrust, enabled=True)
    conduct.reasons = {}
    conduct.leave_out = conduct.reasons.__setitem__
    return conduct


def fetch(conduct, *updates, asked=(), own=OWN):
    conduct.record_fetch(asked or [u.sender for u in updates], updates, own)


def test_new_models_cost_no_points():
    conduct = enabled(1)
    for round in range(1, 20):
        fetch(conduct, update("b", round, 100 + round), update("c", round, -round))
    assert conduct.score("b") == conduct.score("c") == 0
    assert not conduct.reasons


@pytest.mark.parametrize(
    "repeated",
    [update("c", 3, 2.0), update("c", 1, 2.0), update("c", 3, 9.0), update("c", 3, 8.0)],
    ids=["its own", "its own of an earlier round", "of the node", "an earlier one of the node"],
)
def test_repeated_model_costs_a_point(repeated):
    conduct = enabled()
    fetch(conduct, update("b", 2, 1.0), update("c", 2, 2.0), own=np.full(3, 8, np.float32))
    fetch(conduct, update("b", 3, 3.0), repeated)
    assert conduct.penalties == {"c": {"repeated models": 1}}


@pytest.mark.parametrize("first", [1, 2, 3], ids=["as an earlier one", "as one of the round", "as a later one"])
@pytest.mark.parametrize("fetches", [1, 2])
def test_model_that_another_peer_has_shown_costs_no_points(first, fetches):
    """The thief of a model can show it to this node before its author does, as a model of any round."""
    conduct = enabled(1)
    stolen, true = update("thief", first, 1.0), update("author", 2, 1.0)
    for updates in [[stolen, true]] if fetches == 1 else [[stolen], [true]]:
        fetch(conduct, *updates)
    assert not conduct.penalties
    assert conduct.shared == {"author": 1, "thief": 1}


def test_model_of_nodes_without_training_costs_no_points():
    conduct = enabled(1)
    fetch(conduct, update("b", 1, 1.0), own=None)
    fetch(conduct, update("c", 1, 1.0), own=None)
    assert not conduct.penalties


def test_final_model_may_be_repeated():
    conduct = enabled()
    fetch(conduct, update("b", 2, 1.0))
    fetch(conduct, update("b", 3, 1.0, final=True))
    assert not conduct.penalties


def test_peer_that_fetches_and_sends_nothing_gets_points():
    conduct = enabled(2)
    for _ in range(2 * UNSERVED):
        conduct.record_gift("b")
        fetch(conduct, asked=["b", "c"])
    assert conduct.penalties == {"b": {"free riding": 2}}  # c fetches nothing either
    assert conduct.reasons == {"b": "distrusted: free riding: 2"}


def test_rare_or_late_model_shows_that_peer_serves():
    conduct = enabled()
    for number in range(4 * UNSERVED):
        conduct.record_gift("b")
        fetch(conduct, asked=["b"])
        if number % 5 == 4:
            conduct.record_answer("b")
    assert not conduct.penalties


def test_disabled_conduct_compares_no_models():
    conduct = Conduct()
    fetch(conduct, update("b", 2, 1.0))
    fetch(conduct, update("b", 3, 1.0))
    assert not conduct.penalties


def test_peer_is_left_out_once_its_score_suffices():
    conduct = enabled(3)
    for points in range(1, 5):
        conduct.penalise("b", "refused models")
        assert ("b" in conduct.reasons) is (points >= 3)
    assert conduct.score("b") == 4
    assert not enabled(0).is_distrusted("b")


def test_equivocation_counts_once_and_suffices_for_every_limit():
    conduct = enabled(100)
    conduct.penalise("b", "equivocation")
    conduct.penalise("b", "equivocation")
    assert conduct.score("b") == 100
    assert conduct.reasons == {"b": "distrusted: equivocation"}


def test_restored_state_leaves_the_same_peers_out():
    before, proofs = enabled(2), []
    for name, points in {"b": 2, "c": 1}.items():
        for _ in range(points):
            before.penalise(name, "refused models")
    before.penalise("d", "equivocation")
    before.proofs[b"key of d"] = b"proof"
    after = enabled(2)
    after.accept_proof = proofs.append
    after.restore(before.state())
    assert set(after.reasons) == {"b"}  # d follows when its proof is verified
    assert after.score("c") == 1
    assert proofs == [b"proof"]
    assert ConductState() == Conduct().state()


def test_former_member_is_forgotten():
    conduct = enabled(1)
    conduct.penalise("b", "refused models")
    conduct.forget("b")
    assert conduct.score("b") == 0
    assert conduct.state().penalties == {}


class Thief(Liar):
    """A member that serves models of an author as its own, and shows them to others before the author does.

    It answers a request only when it has fetched a model that the author has published since. It gives an asynchronous
    node that model as one of the round before, and a synchronous one as a model of the requested round.
    """

    def __init__(self, federation, name, author):
        super().__init__(federation, name, self._act)
        self._author, self._newest, self._held = author, (0, b""), []

    async def __aenter__(self):
        await super().__aenter__()
        self.peering.begin(self._fetch(), "fetches")
        return self

    async def _fetch(self):
        while True:
            author = self.exchange.peers[self._author]
            for ahead in (0, 1):
                self.send(author, m.Get(next(self.peering.numbers), author.round + ahead, "trained"))
            await asyncio.sleep(0.1)

    def _act(self, liar, peer, message, payload):
        if isinstance(message, m.Get):
            self._held.append((peer, message, self._newest[0]))
        elif isinstance(message, m.ModelUpdate) and message.round > self._newest[0]:
            self._newest = message.round, bytes(payload)
            self._held = [held for held in self._held if not self._answer(*held)]

    def _answer(self, peer, get, known):
        """Answer a request if the newest model is later than the one at the time of the request, and than its round."""
        asynchronous = self.federation.settings.mode == "asynchronous"
        round, payload = self._newest
        if peer.name != self._author and round > (known if asynchronous else max(known, get.round)):
            claimed = max(1, round - 1) if asynchronous else get.round
            self.send(peer, m.ModelUpdate(get.request, claimed, get.stage, self.n_samples, False, 0.0), payload)
            return True
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "speeds"), [("synchronous", {"c": 4.0}), ("asynchronous", {"a": 3.0})], ids=["synchronous", "asynchronous"]
)
def test_thief_of_models_costs_their_author_no_points(mode, speeds):
    async def test(federation):
        federation.start(*"abcd")
        async with Thief(federation, "e", "a"):
            await federation.round("c", 10)
        await federation.done(*"abcd")

    settings = Settings(rounds=12, deadline=6.0, mode=mode, distrust=1)
    federation = play(test, NAMES, settings, speeds=speeds)
    conducts = [federation.nodes[name].exchange.conduct for name in "bcd"]
    assert sum(conduct.shared["a"] for conduct in conducts) > 0
    assert [conduct.penalties for conduct in conducts if "a" in conduct.penalties] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_author_of_copied_models_gives_the_copier_points(mode):
    newest = {}

    def copy(liar, peer, message, payload):
        if isinstance(message, m.ModelUpdate):
            newest["a"] = message.round, bytes(payload)
        elif isinstance(message, m.Get):
            author = liar.exchange.peers["a"]
            liar.send(author, m.Get(next(liar.peering.numbers), author.round, "trained"))
            if newest:
                round = message.round if mode == "synchronous" else newest["a"][0]
                answer = m.ModelUpdate(message.request, round, message.stage, liar.n_samples, False, 0.0)
                liar.send(peer, answer, newest["a"][1])

    async def test(federation):
        federation.start(*"abcd")
        async with Liar(federation, "e", copy):
            await federation.round("a", 10)
        await federation.done(*"abcd")

    federation = play(test, NAMES, Settings(rounds=12, deadline=6.0, mode=mode, distrust=2))
    conduct = federation.nodes["a"].exchange.conduct
    assert conduct.penalties["e"]["repeated models"] >= 2
    assert conduct.left_out == {"e"}
    for name in "abcd":
        assert set(federation.nodes[name].exchange.conduct.penalties) <= {"e"}


@pytest.mark.slow
def test_models_too_old_to_be_used_are_no_free_riding():
    """Peers that train at other speeds seldom send a model that has just been published."""

    async def test(federation):
        federation.start()
        await federation.done()

    settings = Settings(rounds=40, deadline=6.0, mode="asynchronous", max_staleness=0.1, distrust=2)
    federation = play(test, tuple("abcd"), settings, speeds={"b": 1.1, "c": 1.2, "d": 1.3})
    for node in federation.nodes.values():
        assert (node.exchange.conduct.penalties, node.exchange.conduct.left_out) == ({}, set())
    assert sum(len(federation.partners(name, round)) for name in "abcd" for round in range(1, 41)) < 160


@pytest.mark.slow
def test_models_that_nobody_requested_hide_no_free_rider():
    def ride(liar, peer, message, payload):
        if isinstance(message, m.Get):
            liar.send(peer, m.NotAvailable(message.request, message.round, "gone"))
            liar.send(peer, m.ModelUpdate(0, message.round, "trained", 1, False, 0.0))
            liar.send(peer, m.Get(next(liar.peering.numbers), message.round, "trained"))

    async def test(federation):
        federation.start("a", "b")
        async with Liar(federation, "e", ride):
            await federation.round("a", 12)
        await federation.done("a", "b")

    settings = Settings(rounds=13, deadline=10.0, robust="median-clip")
    federation = play(test, ("a", "b", "e"), settings)
    assert federation.nodes["a"].exchange.conduct.penalties == {"e": {"free riding": 1}}
