"""Witnesses: peers to which receipts of a sender and a round go, and the rounds until they find an equivocator."""

from functools import cache
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from p2pfl.node.conduct import WITNESSES, Conduct, EquivocationWatch, reports, witnesses
from p2pfl.node.peering.peering_config import PeeringOptions
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import (
    OVERHEAD,
    VERSION,
    FrameSigner,
    FrameVerifier,
    Opened,
    Payload,
    parse_signed_model,
    read_proof,
)
from p2pfl.sim.simulation.clock import run

FEDERATION = bytes(range(16))
MALLORY = "mallory"


@cache
def key_of(name):
    return Identity.from_seed(name.encode().ljust(32, b"."))


class Link:
    version = VERSION


class Watcher:
    """Comparison of one member, whose receipts reach its peers at once. Proofs are not passed on: the first one counts."""

    def __init__(self, world, name, around):
        self.world, self.name, self.round = world, name, 1
        self.key = key_of(name).public
        self.view = SimpleNamespace(leave_out=None)
        self.peers = {other: SimpleNamespace(name=other, key=key_of(other).public, link=Link()) for other in sorted(around)}
        keys = {other: peer.key for other, peer in self.peers.items()}
        self.verifier = FrameVerifier(keys, self.key, FEDERATION, 1000)
        access = SimpleNamespace(refusal=lambda key: "")
        config = SimpleNamespace(
            name=name, key=self.key, asynchronous=False, verifier=self.verifier, options=PeeringOptions(access=access)
        )
        self.with_key = {peer.key: peer for peer in self.peers.values()}.get
        self.watch = EquivocationWatch(config, self, Conduct(enabled=True))
        self.sent = 0

    def introduced_peers(self):
        return list(self.peers.values())

    def send(self, peer, message, payload):
        self.sent += isinstance(message, m.Receipts)
        if isinstance(message, m.Receipts) and peer.name not in {MALLORY, *self.world.silent}:
            other = self.world.watchers[peer.name]
            opened = Opened(self.name, message, memoryview(b"".join(payload.parts)), 1)
            other.watch.receive(other.peers[self.name], opened)

    def fetch(self, envelope):
        model = parse_signed_model(envelope, FEDERATION)
        self.watch.take(Opened(MALLORY, None, memoryview(b""), 1, model))


class Watchers(dict):
    """Watchers by name, each made when it is needed."""

    def __init__(self, world, graph):
        self.world, self.graph = world, graph

    def __missing__(self, name):
        self[name] = Watcher(self.world, name, list(self.graph.neighbors(name)))
        return self[name]


class World:
    """Members that fetch models of mallory, who signs two models in each round.

    Args:
        victims: names of those who get the second model.
        silent: names of hostile members, who compare nothing and pass nothing on.
    """

    def __init__(self, graph, victims, silent=()):
        self.silent, self.victims = frozenset(silent), frozenset(victims)
        self.watchers = Watchers(self, graph)
        self.signer = FrameSigner(key_of(MALLORY), FEDERATION, bytes(16), 1)

    def model(self, round, content):
        update = m.ModelUpdate(1, round, "trained", 5, False, 0.0)
        parts = self.signer.seal(update, bytes(32), Payload.of(content), version=VERSION)
        return b"".join(map(bytes, parts))[:OVERHEAD]

    def round_of_proof(self, fetchers, most=30):
        """Return the first round in which an honest member has a proof; `fetchers` are drawn from mallory's neighbours."""
        for round in range(1, most + 1):
            both = self.model(round, b"1"), self.model(round, b"2")
            chosen = fetchers(round)
            for name in chosen:
                self.watchers[name].round = round
                self.watchers[name].fetch(both[name in self.victims])
            for name in chosen:
                if name not in self.silent:
                    self.watchers[name].watch.report()
            for name, watcher in self.watchers.items():
                if watcher.watch.conduct.proofs and name not in self.silent:
                    (proof,) = watcher.watch.conduct.proofs.values()
                    assert read_proof(proof, FEDERATION)[0].sender == key_of(MALLORY).public
                    return round
        raise AssertionError(f"no proof in {most} rounds")


def play(test):
    async def main():
        return test()

    return run(main())


def complete(count):
    graph = nx.complete_graph(count)
    return nx.relabel_nodes(graph, {k: f"n{k:03}" for k in range(1, count)} | {0: MALLORY})


@pytest.mark.parametrize("count", [12, 60, 200])
@pytest.mark.parametrize("hostile", [0, 1])
def test_two_forks_are_found_in_the_round_of_their_fetch(count, hostile):
    """In each round three others fetch the first model, and one victim fetches the second, whoever they are."""
    graph = complete(count)
    names = sorted(set(graph.nodes) - {MALLORY})
    for seed in range(4):
        rng = np.random.default_rng(seed)
        order = [names[k] for k in rng.permutation(len(names))]
        victim, others = order[0], order[1:4]
        # The worst hostile member: the first witness of the round for both sides.
        silent = witnesses(MALLORY, 1, set(names) - {victim, *others})[:hostile]
        world = World(graph, [victim], silent)
        assert play(lambda world=world, order=order: world.round_of_proof(lambda _: order[:4])) == 1


@pytest.mark.parametrize("count", [12, 60])
def test_lone_victim_is_found_within_three_rounds_of_its_fetches(count):
    """Members fetch from three of all at random; mallory shows the second model to one member only."""
    graph = complete(count)
    names = sorted(set(graph.nodes) - {MALLORY})
    found = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        victim = names[0]
        world = World(graph, [victim], [names[1]])

        def fetchers(round, rng=rng, victim=victim):
            return [victim, *(name for name in names[2:] if rng.random() < 3 / (count - 1))]

        found.append(play(lambda world=world, fetchers=fetchers: world.round_of_proof(fetchers)))
    assert max(found) <= 3
    assert np.mean(found) <= 1.5


def test_ranks_depend_on_sender_and_round_and_hardly_on_other_peers():
    peers = [f"n{k:03}" for k in range(60)]
    chosen = {(sender, round): witnesses(sender, round, peers) for sender in ("a", "b") for round in range(200)}
    assert all(len(set(found)) == WITNESSES for found in chosen.values())
    assert len({tuple(found) for found in chosen.values()}) > 390
    counts = np.bincount([peers.index(name) for found in chosen.values() for name in found], minlength=60)
    assert counts.min() > 5  # 20 on average
    assert counts.max() < 45
    for (sender, round), found in chosen.items():
        without = witnesses(sender, round, set(peers) - {found[0], "n000"})
        assert len(set(without) & set(found)) >= WITNESSES - 2
    assert witnesses("n001", 1, ["n001", "n002"]) == ["n002"]


def test_message_has_the_same_eight_models_of_many_at_both_fetchers():
    def part(k, content):
        update = m.FragmentUpdate(1, 1, "trained", 5, False, 0.0, "strided", 128, k)
        signer = FrameSigner(key_of(MALLORY), FEDERATION, bytes(16), 1)
        frame = b"".join(map(bytes, signer.seal(update, bytes(32), Payload.of(content), version=VERSION)))
        return MALLORY, parse_signed_model(frame[:OVERHEAD], FEDERATION)

    one = reports([part(k, b"1") for k in range(20)], ["a", "b", "c"])
    other = reports([part(k, b"2") for k in reversed(range(20))], ["a", "b", "c", "d"])
    assert [len(models) for models in one.values()] == [m.Receipts.MOST] * 3
    (common, *_) = set(one) & set(other)
    assert [model.part for model in one[common]] == [model.part for model in other[common]]


def test_receipts_of_a_fetched_model_cost_three_frames_at_most():
    graph = complete(60)
    world = World(graph, [])
    names = sorted(set(graph.nodes) - {MALLORY})

    def test():
        for name in names:
            world.watchers[name].fetch(world.model(1, b"1"))
            world.watchers[name].watch.report()

    play(test)
    assert max(watcher.sent for watcher in world.watchers.values()) == WITNESSES
    assert not any(watcher.watch.conduct.proofs for watcher in world.watchers.values())


def test_forged_receipt_convicts_nobody():
    graph = complete(12)
    world = World(graph, [])
    name = sorted(set(graph.nodes) - {MALLORY})[0]
    forged = world.model(1, b"2")[:-1] + b"\0"

    def test():
        watcher = world.watchers[name]
        watcher.fetch(world.model(1, b"1"))
        peer = next(iter(watcher.peers.values()))
        with pytest.raises(ProtocolError, match="wrong signature"):
            watcher.watch.receive(peer, Opened(peer.name, m.Receipts(), memoryview(forged), 1))
        assert not watcher.watch.conduct.proofs

    play(test)
