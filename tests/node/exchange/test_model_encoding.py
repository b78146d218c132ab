"""Model encoding of nodes with an agreed codec, also after restarts and with malicious peers."""

import asyncio
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from p2pfl.algorithms.selection import fitting
from p2pfl.compression.codecs import CODECS, Differential, Sparse, TopK, make_codec
from p2pfl.compression.sparse_updates import PeerCopy, Publication, encode_entries, tag
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.node.exchange.model_encoding import WHOLE, ModelEncoder, Published
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.policies.dac import Dac
from p2pfl.policies.random import Random
from p2pfl.policy import Update
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Payload
from p2pfl.sim.cli.main import main
from p2pfl.sim.scenario.scenario import resolve
from tests.support.federation import play
from tests.support.simulated import run as simulate

NAMES = ("a", "b", "c", "d")
P = 11  # values of the concept-shift task's model
TOP_K = {"name": "top-k", "share": 0.2}  # 3 of them
SPARSE = {"name": "sparse", "share": 0.2, "bits": 4}
DIFFERENTIAL = [TOP_K, SPARSE]
DENSE = [name for name, make in CODECS.items() if not issubclass(make, Differential)]
CODEC_TABLES = [{"name": name} for name in DENSE] + DIFFERENTIAL


def settings(codec, **options):
    return Settings(**({"rounds": 6, "deadline": 10.0, "codec": codec} | options))


async def to_the_end(federation):
    federation.start()
    await federation.done()


class RecordingPeers:
    """Record of a policy's calls to its peers."""

    def __init__(self, peers, own, given):
        self.peers, self.own, self.given = peers, own, given
        self.ids, self.round_order = peers.ids, peers.round_order

    def within_budget(self, ids):
        return self.peers.within_budget(ids)

    async def publish(self, params, extras=None, stage="trained"):
        self.own.append(params)
        await self.peers.publish(params, extras, stage)

    async def models(self, ids, stage="trained"):
        updates = await self.peers.models(ids, stage)
        self.given.append({update.sender: update.params for update in updates})
        return updates


class RecordingRandom(Random):
    def __init__(self):
        super().__init__()
        self.own, self.given = [], []

    async def round(self, me, peers):
        return await super().round(me, RecordingPeers(peers, self.own, self.given))


@pytest.mark.slow
@pytest.mark.parametrize("table", CODEC_TABLES, ids=lambda table: table["name"])
def test_peers_receive_encoded_model_and_node_keeps_its_own(table):
    federation = play(to_the_end, NAMES, settings(table), policy=RecordingRandom)
    layout, start = federation.tasks["a"].layout, federation.tasks["a"].initial(0)
    witness = {name: node.policy for name, node in federation.nodes.items()}
    for name in NAMES:
        encoder = ModelEncoder(make_codec(table["name"], {k: v for k, v in table.items() if k != "name"}), layout, start)
        for round in range(6):
            public, _ = encoder.publish(witness[name].own[round])
            for other in set(NAMES) - {name}:
                assert witness[other].given[round][name].tobytes() == public.tobytes()
        assert federation.nodes[name].exchange.rejected == {}
        assert (public == witness[name].own[5]).all() == (table["name"] == "float32")


@pytest.mark.slow
def test_traffic_of_differences_and_whole_models_is_exact():
    exchange = play(to_the_end, NAMES, settings(TOP_K)).nodes["a"].exchange
    # Each of 3 peers sends 3 entries 6 times: the count, a bit for each of 11 values, and the values.
    assert exchange.traffic.received["update"] == 3 * 6 * (OVERHEAD + 4 + 2 + 4 * 3)
    whole = play(to_the_end, NAMES, settings(TOP_K | {"share": 1.0})).nodes["a"].exchange
    assert whole.traffic.received["update"] == 3 * 6 * (OVERHEAD + 4 * P)


@pytest.mark.slow
def test_stopped_and_resumed_run_equals_uninterrupted_run(tmp_path):
    async def in_two(federation):
        federation.start()
        await asyncio.gather(*(federation.round(name, 3) for name in NAMES))
        for node in federation.nodes.values():
            node.stop()
        await federation.done()
        federation.start()
        await federation.done()

    for table in CODEC_TABLES:
        whole = play(to_the_end, NAMES, settings(table, rounds=8), policy=Dac)
        halves = play(in_two, NAMES, settings(table, rounds=8), policy=Dac, folder=tmp_path / table["name"])
        for name in NAMES:
            assert (whole.nodes[name].me.params == halves.nodes[name].me.params).all(), table
            assert whole.watch[name].result == halves.watch[name].result


@pytest.mark.slow
@pytest.mark.parametrize("table", CODEC_TABLES, ids=lambda table: table["name"])
def test_node_serves_same_bytes_after_crash(tmp_path, table):
    def served(node, known):
        encoder, outbox = node.exchange.encoder, node.exchange.outbox
        return {
            (key, base): bytes(encoder.encode(model, encoder.base(model, base)))
            for key, model in outbox.models.items()
            for base in known
        }

    async def test(federation):
        federation.start()
        await federation.round("a", 3)
        d = federation.nodes["d"]
        while (4, "trained") not in d.exchange.outbox.models:
            await asyncio.sleep(0.01)
        known = [WHOLE, b"12345678", *(step.tag for step in d.exchange.encoder.state())]
        before = served(d, known)
        assert (len(set(map(len, before.values()))) > 1) == (table in DIFFERENTIAL)
        await federation.kill("d")
        federation.start("d")
        await asyncio.sleep(0.5)  # it has started round 4 again and trains
        assert served(federation.nodes["d"], known) == before
        await federation.done()
        assert not any(node.exchange.rejected for node in federation.nodes.values())

    play(test, NAMES, settings(table, rounds=8), folder=tmp_path, policy=Dac)


@pytest.mark.slow
@pytest.mark.parametrize("table", DIFFERENTIAL, ids=lambda table: table["name"])
def test_node_that_lost_its_disk_exchanges_valid_models(tmp_path, table):
    async def test(federation):
        federation.start()
        await federation.round("a", 4)
        await federation.kill("d")
        for path in tmp_path.glob("d*"):
            path.unlink()
        federation.start("d")
        await federation.done()

    federation = play(test, NAMES, settings(table, rounds=30), folder=tmp_path)
    assert "d" in federation.partners("a", 29)
    assert not any(node.exchange.rejected for node in federation.nodes.values())


def test_nodes_with_different_codecs_refuse_each_other():
    async def test(federation):
        federation.start("a")
        federation.settings = replace(federation.settings, codec={"name": "float16"})
        federation.start("b")
        await federation.done()

    words = r"format differs: this node has all parameters, (int8 with a scale for each tensor|float16), the peer has all "
    with pytest.raises(ConfigurationError, match=words):
        play(test, ("a", "b"), settings({"name": "int8"}))


@pytest.mark.slow
def test_node_refuses_checkpoint_of_another_codec(tmp_path):
    play(to_the_end, ("a",), settings(TOP_K), folder=tmp_path)
    with pytest.raises(ConfigurationError, match=r"^the checkpoint has codec .*top-k.*, the configuration .*int8"):
        play(to_the_end, ("a",), settings({"name": "int8"}), folder=tmp_path)


# A malicious member


def hostile(answer, table=TOP_K):
    """Run nodes a and c, and b, which answers a's requests with `answer(request)`; return the federation."""

    async def test(federation):
        federation.start("a", "c")
        peer, key = federation.make("b").exchange.peering, federation.keys["a"].public
        transport = federation.network.transport("b")

        class Listener:
            def received(self, link, frame):
                opened = peer.verifier.open(frame)
                message = opened.message
                if opened.sender != "a":
                    return
                if isinstance(message, m.Get):
                    base, payload = answer(message)
                    said = m.ModelUpdate(message.request, message.round, message.stage, 50, False, 0.0, base)
                    say(link, said, payload)
                if isinstance(message, m.RoundReached):  # keep up, so that a does not drop b as slow
                    say(link, message)

            def lost(self, link, reason): ...

        def say(link, message, payload=b""):
            link.send(peer.signer.seal(message, key, Payload.of(payload)))

        await transport.listen(Listener())
        await asyncio.sleep(0.01)
        link = await transport.dial("memory:a", key)
        say(link, m.Hello(), peer.introducer.parameters().parts[0])
        while federation.watch["a"].result is None:
            await asyncio.sleep(0.1)
        for name in ("a", "c"):  # they would serve b forever
            await federation.kill(name)

    return play(test, ("a", "b", "c"), settings(table))


ONES = np.ones(P, np.float32)
ENTRIES = encode_entries(ONES, np.array([1, 4], np.uint32))


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda get: (b"12345678", ENTRIES), "not asked for"),
        (lambda get: (b"1", ENTRIES), "not asked for"),
        (lambda get: (WHOLE, ENTRIES), "wrong length"),
        (lambda get: (get.known, ENTRIES[:-1]), "wrong length"),
        (lambda get: (get.known, ENTRIES + b"more"), "wrong length"),
        (lambda get: (get.known, b"\xff\xff\xff\xff" + ENTRIES), "wrong length"),
        (lambda get: (get.known, ENTRIES[:4] + b"\0\0" + ENTRIES[6:]), "malformed"),
        (lambda get: (get.known, ENTRIES[:-4] + np.array([np.nan], np.float32).tobytes()), "not finite"),
        (lambda get: (get.known, ENTRIES[:-4] + np.array([1e38], np.float32).tobytes()), "too large"),
    ],
)
def test_invalid_differences_are_counted_and_dropped(answer, cause):
    federation = hostile(answer)
    exchange = federation.nodes["a"].exchange
    assert exchange.rejected == {cause: exchange.rejected[cause]}
    assert exchange.rejected[cause] >= 4
    assert all(federation.partners("a", round) == {"c"} for round in range(1, 7))


@pytest.mark.slow
def test_difference_with_dense_codec_is_counted_and_dropped():
    federation = hostile(lambda get: (b"12345678", ENTRIES), {"name": "int8"})
    assert federation.nodes["a"].exchange.rejected["not asked for"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        (b"", "wrong length"),
        (b"\1\0" + bytes(7), "wrong length"),
        (b"\0\0more", "wrong length"),
        (b"\xff\xff" + bytes(50), "malformed"),
        (b"\1\0\1\0\0\0" + np.array([np.inf], np.float32).tobytes() + b"\1\0\0", "not finite"),
        (b"\1\0\1\0\0\0" + np.array([1e38], np.float32).tobytes() + b"\1\0\0", "too large"),
        (b"\1\0\1\0\0\0" + np.array([1], np.float32).tobytes() + b"\0\x80\0", "malformed"),
    ],
)
def test_invalid_sparse_differences_are_counted_and_dropped(payload, cause):
    federation = hostile(lambda get: (get.known, payload), SPARSE)
    exchange = federation.nodes["a"].exchange
    assert exchange.rejected == {cause: exchange.rejected[cause]}
    assert exchange.rejected[cause] >= 4


@pytest.mark.slow
def test_next_difference_starts_from_last_received_model():
    known, expected = [], []

    def answer(get):
        known.append(get.known)
        return get.known, encode_entries(ONES, np.array([len(known)], np.uint32))

    federation = hostile(answer)
    model = federation.tasks["a"].initial(0).copy()
    for place in range(1, 7):
        expected.append(tag(model))
        model[place] = 1.0
    assert known == expected
    assert federation.partners("a", 6) == {"b", "c"}


# Encoder alone

LAYOUT = Layout((("model", (100,)),), 100)
START = np.zeros(100, np.float32)


def published(encoder, params):
    public, name = encoder.publish(params)
    return Published(Update("me", 1, "trained", public, 10), 0.0, name)


def test_expected_bytes_follow_codec_and_missed_rounds():
    dense = {name: ModelEncoder(make_codec(name, {}), LAYOUT).expected_bytes("x", 7) - OVERHEAD for name in DENSE}
    assert dense == {"float32": 400, "float16": 200, "bfloat16": 200, "int8": 104}
    encoder = ModelEncoder(TopK(0.1), LAYOUT, START)
    # The count, then per round 13 bytes of bitmap and 4 for each of 10 values; the whole model after 8 rounds.
    assert [encoder.expected_bytes("x", round) - OVERHEAD for round in (1, 2, 8, 9)] == [57, 97, 337, 400]
    encoder.ask(["x"])
    encoder.keep("x", 9, START, b"12345678")
    assert [encoder.expected_bytes("x", round) - OVERHEAD for round in (9, 10, 12)] == [57, 57, 137]
    assert ModelEncoder(TopK(1.0), LAYOUT, START).expected_bytes("x", 1) - OVERHEAD == 400


@pytest.mark.parametrize("codec", [TopK(0.1), Sparse(0.1), Sparse(0.02, bits=8)], ids=str)
def test_expected_bytes_bound_received_bytes(codec):
    rng = np.random.default_rng(0)
    sender, receiver = ModelEncoder(codec, LAYOUT, START), ModelEncoder(codec, LAYOUT, START)
    for round in range(1, 40):
        model = published(sender, rng.standard_normal(100).astype(np.float32))
        if rng.random() < 0.4:
            expected = receiver.expected_bytes("me", round)
            copy = receiver.ask(["me"])["me"]
            base = sender.base(model, copy.tag)
            payload = memoryview(bytes(sender.encode(model, base)))
            assert len(payload) == sender.size(model, copy.tag) <= expected - OVERHEAD
            (params, _), rest = receiver.decode(payload, base, copy)
            assert params.tobytes() == model.update.params.tobytes()
            assert not len(rest)
            receiver.keep("me", round, params)


@pytest.mark.parametrize("codec", [TopK(0.1), Sparse(0.1)], ids=str)
def test_peer_with_unknown_model_receives_whole_model(codec):
    sender, receiver = ModelEncoder(codec, LAYOUT, START), ModelEncoder(codec, LAYOUT, START + 1)
    model = published(sender, np.linspace(0, 1, 100, dtype=np.float32))
    copy = receiver.ask(["me"])["me"]
    base = sender.base(model, copy.tag)
    assert base == WHOLE
    (params, _), _ = receiver.decode(memoryview(bytes(sender.encode(model, base))), base, copy)
    assert params.tobytes() == model.update.params.tobytes()
    receiver.keep("me", 1, params)
    later = published(sender, np.linspace(0, 2, 100, dtype=np.float32))
    copy = receiver.ask(["me"])["me"]
    base = sender.base(later, copy.tag)
    assert base == copy.tag
    (params, _), _ = receiver.decode(memoryview(bytes(sender.encode(later, base))), base, copy)
    assert params.tobytes() == later.update.params.tobytes()


@pytest.mark.parametrize("codec", [TopK(0.1), Sparse(0.1)], ids=str)
def test_decode_rejects_difference_from_unknown_model(codec):
    encoder = ModelEncoder(codec, LAYOUT, START)
    for copy in (None, PeerCopy(b"87654321", START, 0)):
        with pytest.raises(ProtocolError, match="a difference from an unknown model"):
            encoder.decode(memoryview(bytes(4)), b"12345678", copy)


def test_restore_ignores_steps_without_their_model():
    encoder = ModelEncoder(TopK(0.1), LAYOUT, START)
    before = encoder.state()
    encoder.restore([Publication(b"12345678", b"")], [])
    assert encoder.state() == before
    assert published(encoder, START + 1).tag == tag(np.repeat(np.float32([1, 0]), [10, 90]))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "top-k", "sparse"])
def test_publish_refuses_model_that_is_not_finite(name):
    encoder = ModelEncoder(make_codec(name, {}), LAYOUT, START)
    with pytest.raises(RunError, match="values are not finite"):
        encoder.publish(START * np.nan)


def test_top_k_requires_common_initial_model():
    with pytest.raises(ConfigurationError, match="needs a common initial model"):
        ModelEncoder(TopK(), LAYOUT)


# A budget of bytes


@pytest.mark.slow
def test_smaller_models_allow_more_peers_within_byte_budget():
    models = {}
    for table in (*CODEC_TABLES, {"name": "top-k", "share": 1.0}):
        budget = {"bytes": 3 * (OVERHEAD + 2 * P)}
        options = {"nodes": 12, "rounds": 3, "codec": table, "budget": budget, "task": {"name": "concept-shift"}}
        scenario = resolve(options | {"policy": {"name": "random", "neighbours": 11}}, [], "test", ".").runs[0]
        for fidelity in ("modelled", "wire"):
            edges = simulate(replace(scenario, fidelity=fidelity, trainer="one-by-one")).recorder.edges_table()
            received = np.zeros((4, 12))
            np.add.at(received, (edges["round"], edges["dst"]), edges["bytes"])
            assert received.max() <= budget["bytes"]
            models.setdefault(str(table), []).append(len(edges["bytes"]) / 36)
    assert all(modelled == wire for modelled, wire in models.values())
    heard = {name: wire for name, (_, wire) in models.items()}
    assert list(heard.values())[:4] == [2, 3, 3, 3]
    assert 2 < heard[str(TOP_K)] <= 3
    assert 2 < heard[str(SPARSE)] <= 3
    assert list(heard.values())[-1] == 2


@pytest.mark.slow
def test_table_shows_bytes_only_where_codecs_are_compared(tmp_path, capsys):
    command = ["run", "codecs-one-byte-budget", "--set", "form=smoke", "--engine", "local", "--no-report"]

    def table(*options):
        assert main([*command, "--out", str(tmp_path / str(options)), *options]) == 0
        printed = capsys.readouterr().out
        return printed, json.loads((tmp_path / str(options) / "summary.json").read_text())

    printed, summary = table()
    assert "MB sent" in printed
    assert [row["bytes"] for row in summary["table"]] == [run["traffic"]["bytes"] for run in summary["runs"]]
    assert {run["name"]: run["codec"]["name"] for run in summary["runs"]}["top-k/0.01"] == "top-k"
    printed, summary = table("--only", "float32")
    assert "MB sent" not in printed
    assert all("bytes" not in row for row in summary["table"])


def test_fitting_draws_peers_uniformly():
    rng = np.random.default_rng(0)
    counts = Counter(id for _ in range(3000) for id in fitting(rng, list("abcde"), [1, 1, 1, 1, 1], 2, 5))
    assert sum(counts.values()) == 6000
    assert all(abs(count - 1200) < 150 for count in counts.values())


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(-1, 30), st.integers(0, 9))
def test_fitting_leaves_no_room_for_another_peer(sizes, limit, most):
    ids = list(range(len(sizes)))
    taken = fitting(np.random.default_rng(1), ids, sizes, limit, most)
    assert taken == sorted(set(taken))
    used = sum(sizes[k] for k in taken)
    assert used <= max(limit, 0)
    assert len(taken) <= most
    assert len(taken) == most or all(used + sizes[k] > limit for k in ids if k not in taken)
