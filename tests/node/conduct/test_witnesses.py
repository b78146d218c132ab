"""Witnesses: peers to which receipts of a sender and a round go, and the rounds until they find an equivocator."""

from functools import cache
from hashlib import sha256
from itertools import pairwise
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from p2pfl.node.conduct import CARRY_BURST, WITNESSES, Conduct, EquivocationWatch, Ways, reports, witnesses
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
    make_route,
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
        self.released = {}
        self.peers = {other: SimpleNamespace(name=other, key=key_of(other).public, link=Link()) for other in sorted(around)}
        keys = {other: peer.key for other, peer in self.peers.items()}
        self.verifier = FrameVerifier(keys, self.key, FEDERATION, 1000)
        access = world.access
        config = SimpleNamespace(
            name=name,
            key=self.key,
            asynchronous=False,
            signer=FrameSigner(key_of(name), FEDERATION, bytes(16), 1),
            verifier=self.verifier,
            options=PeeringOptions(access=access),
        )
        self.with_key = {peer.key: peer for peer in self.peers.values()}.get
        self.watch = EquivocationWatch(config, self, Conduct(enabled=True), world.around)
        self.sent = 0

    def introduced_peers(self):
        return list(self.peers.values())

    def send(self, peer, message, payload):
        reports = isinstance(message, m.Receipts | m.Carried)
        self.sent += reports
        self.world.frames += reports
        if reports and peer.name not in {MALLORY, *self.world.silent}:
            other = self.world.watchers[peer.name]
            opened = Opened(self.name, message, memoryview(b"".join(payload.parts)), 1)
            other.watch.receive(other.peers[self.name], opened)

    def fetch(self, envelope, sender=MALLORY):
        model = parse_signed_model(envelope, FEDERATION)
        self.watch.take(Opened(sender, None, memoryview(b""), 1, model))


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
        known: whether all members know the graph.
    """

    def __init__(self, graph, victims, silent=(), known=False):
        self.around = (lambda name: list(graph.neighbors(name))) if known else None
        self.access = SimpleNamespace(refusal=lambda key: "", membership_version=1, stored=1)
        self.frames = 0
        self.silent, self.victims = frozenset(silent), frozenset(victims)
        self.watchers = Watchers(self, graph)

    def model(self, round, content, sender=MALLORY):
        update = m.ModelUpdate(1, round, "trained", 5, False, 0.0)
        signer = FrameSigner(key_of(sender), FEDERATION, bytes(16), 1)
        parts = signer.seal(update, bytes(32), Payload.of(content), version=VERSION)
        return b"".join(map(bytes, parts))[:OVERHEAD]

    def round_of_proof(self, fetchers, most=30, others=lambda name, _: ()):
        """Return the first round in which an honest member has a proof.

        Args:
            fetchers: returns who fetches mallory's model in a round.
            others: returns whose models one of them fetches as well.
        """
        for round in range(1, most + 1):
            both = self.model(round, b"1"), self.model(round, b"2")
            chosen = fetchers(round)
            for name in chosen:
                self.watchers[name].round = round
                for other in others(name, round):
                    self.watchers[name].fetch(self.model(round, f"{other} {round}".encode(), other), other)
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


@pytest.mark.parametrize("count", [12, 60, 300])
@pytest.mark.parametrize("hostile", [0, 1])
def test_forks_in_sparse_graph_are_found_in_rounds_independent_of_members(count, hostile):
    """Each member has six neighbours, and fetches from three of them in each round. Mallory's six get two models in turn."""
    found, frames = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        graph = nx.random_regular_graph(6, count, seed=seed)
        graph = nx.relabel_nodes(graph, {k: f"n{k:03}" for k in range(1, count)} | {0: MALLORY})
        near = sorted(graph.neighbors(MALLORY))
        # A neighbour that compares and carries nothing, or one that others would need on their ways.
        silent = [near[seed % 6] if seed % 2 else sorted(set(graph.neighbors(near[0])) - {MALLORY})[0]][:hostile]
        world = World(graph, near[::2], silent, known=True)

        def fetchers(_, rng=rng, near=near):
            return [name for name in near if rng.random() < 0.5]

        def others(name, _, rng=rng, graph=graph):
            return rng.choice(sorted(set(graph.neighbors(name)) - {MALLORY}), 2, replace=False).tolist()

        number = play(lambda world=world, fetchers=fetchers, others=others: world.round_of_proof(fetchers, 30, others))
        found.append(number)
        frames.append(world.frames / number)
    assert max(found) <= 12
    assert np.mean(found) <= 4
    assert max(frames) <= 6 * WITNESSES * 6  # of at most six reporters, three reports each, over six links at most


def test_sender_that_knows_all_other_models_of_its_neighbours_cannot_choose_when_it_is_reported():
    """Mallory draws as a reporter would from the models alone, and changes her own one until another sender is drawn."""

    def ground(world, name, round, others):
        near = [world.model(round, f"{other} {round}".encode(), other) for other in others]
        senders = sorted([*others, MALLORY])
        for attempt in range(100):
            envelope = world.model(round, f"{name} {attempt}".encode())
            digests = sorted(parse_signed_model(each, FEDERATION).content[0][:8] for each in [*near, envelope])
            drawn = sha256(b"".join(digests)).digest()
            if senders[int.from_bytes(drawn[:8], "big") % len(senders)] != MALLORY:
                return near, envelope
        raise AssertionError("nothing to choose from")

    found = []
    for seed in range(6):
        graph = nx.random_regular_graph(6, 60, seed=seed)
        graph = nx.relabel_nodes(graph, {k: f"n{k:03}" for k in range(1, 60)} | {0: MALLORY})
        world = World(graph, [], known=True)

        def rounds(world=world, graph=graph):
            for round in range(1, 13):
                names = sorted(graph.neighbors(MALLORY))
                for name in names:
                    others = sorted(set(graph.neighbors(name)) - {MALLORY})[:2]
                    world.watchers[name].round = round
                    near, envelope = ground(world, name, round, others)
                    for other, model in zip(others, near, strict=True):
                        world.watchers[name].fetch(model, other)
                    world.watchers[name].fetch(envelope)
                for name in names:
                    world.watchers[name].watch.report()
                if any(watcher.watch.conduct.proofs for watcher in world.watchers.values()):
                    return round
            raise AssertionError("no proof in 12 rounds")

        found.append(play(rounds))
    assert np.mean(found) <= 3


def test_way_avoids_the_sender_and_is_shortest():
    for seed in range(5):
        graph = nx.random_regular_graph(4, 40, seed=seed)
        names = nx.relabel_nodes(graph, str)
        ways = Ways(lambda name, names=names: list(names.neighbors(name)))
        without = names.subgraph(set(names) - {"0"})
        for end in map(str, range(2, 40)):
            way = ways.find("1", end, without="0")
            assert len(way) == nx.shortest_path_length(without, "1", end)
            assert way[-1] == end
            assert all(without.has_edge(*pair) for pair in pairwise(("1", *way)))
    chain = {"a": ["b"], "b": ["a", "c"], "c": ["b"], "x": []}
    assert Ways(chain.__getitem__).find("a", "c", without="b") == ()
    assert Ways(chain.__getitem__).find("a", "x", without="y") == ()
    long = Ways(lambda name: [str(int(name) - 1), str(int(name) + 1)])
    assert len(long.find("0", str(m.Carried.MOST), without="-1")) == m.Carried.MOST
    assert long.find("0", str(m.Carried.MOST + 1), without="-1") == ()


@pytest.mark.parametrize("grown", ["membership_version", "stored"])  # by an entry, or by the log of a newcomer that arrives
def test_report_takes_another_way_when_a_member_on_it_is_revoked(grown):
    graph = nx.Graph(["ab", "bc", "ad", "de", "ec", *((MALLORY, name) for name in "ac")])  # the way over b is shorter
    world = World(graph, victims=(), known=True)

    def test():
        one, witness = world.watchers["a"], world.watchers["c"]
        for round in (1, 2):
            one.round = witness.round = round
            witness.fetch(world.model(round, b"1"))
            if round == 2:
                graph.remove_node("b")
                del one.peers["b"]
                setattr(world.access, grown, 2)
                one.fetch(world.model(round, b"2"))
            else:
                one.fetch(world.model(round, b"1"))
            one.watch.report()
        assert witness.watch.conduct.proofs

    play(test)


def test_carried_report_is_bounded_and_blames_no_carrier():
    graph = nx.relabel_nodes(nx.path_graph(4), dict(enumerate("abcd")))
    world = World(graph, [], known=True)
    receipt = world.model(1, b"1")

    def carried(names, receipts=receipt):
        route = make_route(names)
        return m.Carried(len(route)), route + receipts

    def test():
        b = world.watchers["b"]

        def take(message, payload):
            b.watch.receive(b.peers["a"], Opened("a", message, memoryview(payload), 1))

        take(*carried(["c", "d"]))
        assert world.frames == 2  # b to c, c to d
        take(*carried(["nobody", "d"]))
        assert world.frames == 2
        take(*carried(["c", "d"], receipt[:-1] + b"\0"))  # d ignores it, and c is not to blame
        assert world.frames == 4
        for bad, cause in {
            carried(["c"] * (m.Carried.MOST + 1)): "malformed",
            carried(["c"], b""): "wrong length",
            carried(["c"], receipt * 9): "wrong length",
            (m.Carried(3), b"\x91\xa1c"): "wrong length",
            (m.Carried(4), b"\x91\xa1c" + receipt): "malformed",
            (m.Carried(0), receipt): "malformed",
            carried(["c"], bytes(OVERHEAD)): "malformed",
        }.items():
            with pytest.raises(ProtocolError) as refused:
                take(*bad)
            assert refused.value.cause == cause
        assert world.frames == 4
        for _ in range(200):
            take(*carried(["c", "d"]))
        assert world.frames <= 2 * CARRY_BURST

    play(test)


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
