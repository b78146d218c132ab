"""Private parameters, which stay on their node: exchange, training, storage and refusals."""

import asyncio

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.modules import layout_of
from p2pfl.node.federation import agreement
from p2pfl.node.folder import config as folders
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout, weighted_mean
from p2pfl.policies import make_policy
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.queries import NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory
from p2pfl.update_rules import Aligned, Between, Descent, Envelope, Lookahead, Mixture, TrainSubset
from tests.node.test_node import to_the_end
from tests.sim.simulation.test_simulation import bytes_by_kind, trace
from tests.support.depth import spread
from tests.support.federation import play
from tests.support.simulated import run

NAMES = ("a", "b", "c", "d")
INPUTS, HIDDEN, CLASSES = 6, 5, 3
SHARED = INPUTS * HIDDEN + HIDDEN
ALL = SHARED + HIDDEN * CLASSES + CLASSES


def module(classes=CLASSES):
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))


def headed(part, seed, private=("2",), classes=CLASSES, **options):
    """Samples with labels permuted by each node, for a shared body and a private head."""
    rng = RandomStreams(seed, f"headed {part.index}").generator(0, "data")
    names = rng.permutation(CLASSES)

    def data(n):
        x = rng.normal(size=(n, INPUTS)).astype(np.float32)
        return x, names[x[:, :CLASSES].argmax(1)]

    train, validation, test = data(20 + part.index), data(11), data(12)
    make = lambda: module(classes)  # noqa: E731
    options = {"optimizer": p2pfl.SGD(0.1, momentum=0.9)} | options
    return p2pfl.classification(make, train, validation, test, private=private, batch_size=8, **options)


def wide(part, seed):
    """The same body, and heads of different sizes."""
    return headed(part, seed, classes=CLASSES + part.index)


HEADED = {"name": "tests.p2pfl.test_private_parameters:headed"}


def scenario(**changes):
    small = {"nodes": 6, "rounds": 3, "task": HEADED, "policy": {"name": "dac", "neighbours": 3}, "trainer": "one-by-one"}
    return resolve(small | changes, [], "test", ".").runs[0]


def sent(done):
    """Return the bytes that all nodes have sent, by kind. With messages, any node may be elected."""
    kinds = ("get", "update", "score", "scored", "submit", "assigned")
    ways = [node.exchange.traffic.as_dict()["sent"] for node in done.nodes.values()]
    return {kind: sum(way[kind] for way in ways) for kind in kinds}


def heads(nodes):
    """Return each node's private values."""
    return [node.me.whole[SHARED:] for _, node in sorted(nodes.items())]


def wholes(nodes):
    return {name: node.me.whole.tobytes() for name, node in nodes.items()}


# Layouts

SHAPES = (("first", (2, 3)), ("scale", ()), ("second", (3,)), ("head", (4, 2)), ("mean", (3,)), ("last", (2,)))


@given(st.sets(st.sampled_from([name for name, _ in SHAPES]), max_size=len(SHAPES) - 1))
def test_layout_splits_and_joins_private_part(private):
    layout = Layout(SHAPES, 18, tuple(sorted(private)))
    params, others = np.arange(layout.size, dtype=np.float32), -np.arange(layout.size, dtype=np.float32)
    shared = layout.shared_of(params)
    assert layout.with_private(shared, params).tolist() == params.tolist()
    mixed = layout.unflatten(layout.with_private(shared, others))
    for name, part in layout.unflatten(params).items():
        assert mixed[name].tolist() == (-part if name in private else part).tolist()
        if name not in private:
            assert layout.shared.unflatten(shared)[name].tolist() == part.tolist()
    assert layout.shared == Layout(
        tuple((name, shape) for name, shape in SHAPES if name not in private),
        sum(
            part.size
            for name, part in layout.unflatten(params).items()
            if name not in private and name not in ("mean", "last")
        ),
    )
    if not private:
        assert shared is params
        assert layout.with_private(shared, others) is shared


def test_shared_layout_does_not_depend_on_private_part():
    tasks = [wide(Part(k, 3), 0) for k in range(3)]
    assert len({task.layout.fingerprint for task in tasks}) == 3
    assert len({task.layout.shared.fingerprint for task in tasks}) == 1
    all_shared = headed(Part(0, 3), 0, private=())
    assert tasks[0].layout.fingerprint != all_shared.layout.fingerprint
    assert all_shared.layout.shared is all_shared.layout
    assert all_shared.layout == layout_of(module())


def test_layout_refuses_unknown_or_complete_private_part():
    with pytest.raises(
        ConfigurationError, match=r"no tensor '3' to keep private; the tensors are: 0.weight, 0.bias, 2.weight"
    ):
        _ = headed(Part(0, 1), 0, private=("3",)).layout
    with pytest.raises(ConfigurationError, match="at least one must be shared"):
        _ = headed(Part(0, 1), 0, private=("0", "2")).layout
    with pytest.raises(ConfigurationError, match="no tensor 'b' to keep private; the tensors are: a"):
        Layout((("a", (1,)),), 1, ("b",))


@pytest.mark.parametrize("name", ["digits", "images"])
def test_tasks_with_private_head_keep_last_layer_private(name):
    task, whole = (make_task(name, options, Part(0, 5), 0) for options in ({"private": "head"}, {}))
    assert task.layout.private == tuple(key for key, _ in whole.layout.shapes[-2:])
    assert task.initial(3).tobytes() == whole.initial(3).tobytes()


def test_invalid_private_option_lists_valid_values():
    with pytest.raises(ConfigurationError, match=r'task.private must be one of "", head, got \'body\''):
        make_task("digits", {"private": "body"}, Part(0, 5), 0)


# Training

NODES = 5
ANCHOR = np.linspace(-1, 1, ALL).astype(np.float32)
TRAININGS = {
    "plain": {},
    "proximal": {"proximal": (0.5, ANCHOR)},
    "mixture": {"rule": Mixture(0.3, ANCHOR), "epochs": 2},
    "aligned": {"rule": Aligned(0.5, ANCHOR)},
    "lookahead": {"rule": Lookahead(0.05)},
    "envelope": {"rule": Envelope(2.0, 0.05, 3)},
    "between": {"rule": Between(ANCHOR, ANCHOR[::-1].copy(), 0.5)},
    "descent": {"rule": Descent(0.05)},
    "only private": {"rule": TrainSubset("private"), "epochs": 2},
    "only shared": {"rule": TrainSubset("shared"), "proximal": (0.5, ANCHOR)},
}
DECAYING = p2pfl.SGD(0.1, momentum=0.9, weight_decay=0.1)  # weight decay would also move values without gradients


def trained(kind, options, **task):
    tasks = [headed(Part(k, NODES), 0, optimizer=DECAYING, **task) for k in range(NODES)]
    learners = [task.learner(RandomStreams(0, f"node-{k}")) for k, task in enumerate(tasks)]
    backend = SequentialLearner(learners) if kind == "one by one" else BatchedLearner(learners, by_hand=kind == "dense")
    return np.array(backend.compute([NodeQuery(k, Train(tasks[k].initial(k), 1, **options)) for k in range(NODES)]))


@pytest.mark.parametrize("options", TRAININGS.values(), ids=TRAININGS)
def test_private_part_stacked_equals_one_by_one(options):
    expected = trained("one by one", options)
    for kind in ("dense", "vmap"):
        assert np.abs(trained(kind, options) - expected).max() < 1e-5 * np.abs(expected).max(), kind


@pytest.mark.parametrize("kind", ["one by one", "dense"])
@pytest.mark.parametrize("part", ["private", "shared"])
def test_train_subset_trains_one_part_only(kind, part):
    before = np.array([headed(Part(k, NODES), 0).initial(k) for k in range(NODES)])
    after = trained(kind, {"rule": TrainSubset(part), "epochs": 2})
    moved = np.split(after != before, [SHARED], axis=1)
    assert [half.mean() > 0.7 for half in moved] == [part == "shared", part == "private"]
    assert [half.any() for half in moved] == [part == "shared", part == "private"]


@pytest.mark.parametrize(
    "options", [{"proximal": (0.5, ANCHOR)}, {"rule": Aligned(0.5, ANCHOR)}], ids=["proximal", "aligned"]
)
def test_proximal_and_aligned_terms_ignore_private_part(options):
    elsewhere = ANCHOR + np.where(np.arange(ALL) < SHARED, 0, 7).astype(np.float32)
    changed = {"proximal": (0.5, elsewhere)} if "proximal" in options else {"rule": Aligned(0.5, elsewhere)}
    assert (trained("one by one", options) == trained("one by one", changed)).all()
    assert (trained("one by one", options) != trained("one by one", {})).any()


def test_mixture_uses_private_part_of_trained_model():
    """At alpha 0 the shared part of the mixture is the other model's, so the own one has no gradient there."""
    task = headed(Part(0, 1), 0, optimizer=p2pfl.SGD(0.1))
    before = task.initial(0)
    after = task.learner(RandomStreams(0, "a")).train(before, round=1, rule=Mixture(0.0, ANCHOR))
    assert (after != before).tolist() == [False] * SHARED + [True] * (ALL - SHARED)


def test_train_subset_without_private_part_is_refused():
    task = headed(Part(0, 1), 0, private=())
    with pytest.raises(ConfigurationError, match="needs a model with a private and a shared part"):
        task.learner(RandomStreams(0, "a")).train(task.initial(0), round=1, rule=TrainSubset("private"))


# Policies

POLICIES = {
    "random": {"neighbours": 3},
    "dac": {"neighbours": 3},
    "dac, scored by peers": {"neighbours": 3, "similarity": "inverse-loss", "score_on": "peer"},
    "dpfl": {"initial_epochs": 2, "period": 2},
    "dsgd": {"steps": 1, "momentum": 0.5},
    "fedavg": {"ft": "from-best"},
    "sgp": {},
    "fedasync": {"neighbours": 2},
    "ad-psgd": {"steps": 1},
    "fedprox": {},
    "coordinated-fedavg": {},
    "cfl": {},
    "matfl": {},
    "fedpref": {},
    "ditto": {},
    "apfl": {},
    "per-fedavg": {},
    "fedrep": {"head_epochs": 2},
    "pfedgraph": {},
    "knn-per": {},
    "pfedme": {"inner_steps": 2},
    "fedala": {"lr": 0.1, "first_epochs": 2},
    "ifca": {},
    "dfedpgp": {},
    "gradient-tracking": {"steps": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", spread(POLICIES, 2))
def test_policies_exchange_only_the_shared_part(policy):
    options = {"policy": {"name": policy.partition(",")[0]} | POLICIES[policy]}
    options |= {"mode": "asynchronous", "network": {"latency": 0.1}} if policy == "ad-psgd" else {}
    modelled, wire = (run(scenario(fidelity=fidelity, **options)) for fidelity in ("modelled", "wire"))
    assert wholes(modelled.nodes) == wholes(wire.nodes)
    assert sent(modelled) == sent(wire)
    assert not any(node.exchange.rejected for node in wire.nodes.values())
    for name, node in wire.nodes.items():
        assert node.me.params.shape == node.me.initial.shape == (SHARED,)
        assert node.early_stopping.best.shape == (ALL,)
        assert all(model.update.params.shape == (SHARED,) for model in node.exchange.outbox.models.values())
        assert wire.recorder.results[name] == modelled.recorder.results[name]
    private = [head.tobytes() for head in heads(wire.nodes)]
    assert len(set(private)) == len(private)


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_model_on_the_wire_has_size_of_shared_values(fidelity):
    """Four bytes for each shared value, and the envelope."""
    done = run(scenario(fidelity=fidelity, policy={"name": "random", "neighbours": 3}))
    edges = done.recorder.edges_table()
    assert set(edges["bytes"].tolist()) == {OVERHEAD + 4 * SHARED}
    for node in done.nodes.values():
        traffic = node.exchange.traffic
        assert traffic.received["update"] == traffic.received["models"] * (OVERHEAD + 4 * SHARED)


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_coordinator_exchanges_only_shared_values(fidelity):
    size = {}
    for private in (["2"], []):
        task = {**HEADED, "private": private}
        done = run(scenario(fidelity=fidelity, task=task, nodes=3, rounds=2, policy={"name": "coordinated-fedavg"}))
        size[len(private)] = sent(done)["submit"] + sent(done)["assigned"]
    assert size[0] - size[1] == 2 * 2 * 2 * 4 * (ALL - SHARED)  # two nodes, two rounds, both directions


@pytest.mark.slow
@pytest.mark.parametrize("codec", [{"name": "int8"}, {"name": "top-k", "share": 0.2}])
def test_codecs_encode_only_the_shared_part(codec):
    modelled, wire = (run(scenario(fidelity=fidelity, codec=codec)) for fidelity in ("modelled", "wire"))
    assert wholes(modelled.nodes) == wholes(wire.nodes)
    assert bytes_by_kind(modelled) == bytes_by_kind(wire)


@pytest.mark.slow
def test_fedavg_ends_with_equal_bodies_and_own_heads():
    done = run(scenario(policy={"name": "fedavg"}))
    assert len({node.me.params.tobytes() for node in done.nodes.values()}) == 1
    assert len({head.tobytes() for head in heads(done.nodes)}) == 6


@pytest.mark.slow
def test_private_heads_improve_accuracy():
    """Each node permutes the classes, so one head for all is no better than a guess."""
    options = {"rounds": 15, "policy": {"name": "fedavg"}, "trainer": "stacked"}
    shared, private = (
        np.mean([result["test_accuracy"] for result in done.recorder.results.values()])
        for done in (run(scenario(task={**HEADED, "private": part}, **options)) for part in ([], ["2"]))
    )
    assert private > shared + 0.15


@pytest.mark.slow
def test_private_heads_may_have_different_sizes():
    options = {
        "task": {"name": "tests.p2pfl.test_private_parameters:wide"},
        "trainer": "stacked",
        "policy": {"name": "dac", "neighbours": 3},
    }
    modelled, wire = (run(scenario(fidelity=fidelity, **options)) for fidelity in ("modelled", "wire"))
    assert [head.size for head in heads(wire.nodes)] == [(HIDDEN + 1) * (CLASSES + k) for k in range(6)]
    assert wholes(modelled.nodes) == wholes(wire.nodes)
    assert not any(node.exchange.rejected for node in wire.nodes.values())
    assert [note for note in modelled.notes if "test sample" not in note] == [
        "trained one by one: nodes cannot be stacked: their tasks differ in layout"
    ]


def other_bodies(part, seed):
    return headed(part, seed, private=["2"] if part.index else ["0"])


def test_simulation_refuses_different_shared_layouts():
    with pytest.raises(ConfigurationError, match=r"node-1 and node-0 differ in their layout: 35 values .* and 18"):
        Simulation(scenario(task={"name": "tests.p2pfl.test_private_parameters:other_bodies"}))


class HeadFirst(nn.Module):
    """Module that draws its head first, so that the size of the head changes the draws of the body."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(HIDDEN, classes)
        self.body = nn.Linear(INPUTS, HIDDEN)

    def forward(self, x):
        return self.head(self.body(x))


def other_starts(part, seed):
    x, y = np.zeros((4, INPUTS), np.float32), np.zeros(4, int)
    return p2pfl.classification(lambda: HeadFirst(CLASSES + part.index), (x, y), private=["head"])


def test_simulation_refuses_different_shared_start():
    with pytest.raises(ConfigurationError, match="shared parts of node-1 and node-0 have different initial values"):
        Simulation(scenario(task={"name": "tests.p2pfl.test_private_parameters:other_starts"}))


@pytest.mark.slow
def test_stacked_trace_ignores_order_of_nodes():
    made = [Simulation(scenario(trainer="stacked"), order=order).run() for order in (None, [3, 1, 5, 0, 2, 4])]
    assert trace(made[0]) == trace(made[1])
    assert wholes(made[0].nodes) == wholes(made[1].nodes)


@pytest.mark.slow
def test_run_in_memory_equals_simulation():
    tasks = {name: headed(Part(k, 6), 0) for k, name in enumerate(f"node-{k}" for k in range(6))}
    policies = {name: make_policy("coordinated-fedavg", {}) for name in tasks}
    cast, _ = run_in_memory(policies, tasks, rounds=3)
    done = run(scenario(policy={"name": "coordinated-fedavg"}))
    assert {id: actor.private_parameters.whole(actor.params).tobytes() for id, actor in cast.items()} == wholes(done.nodes)


# FedRep


@pytest.mark.slow
def test_fedrep_trains_head_then_body_and_averages_bodies():
    tasks = {name: headed(Part(k, 4), 0) for k, name in enumerate(NAMES)}
    policies = {name: make_policy("fedrep", {"head_epochs": 3, "epochs": 2}) for name in NAMES}
    cast, history = run_in_memory(policies, tasks, rounds=2)
    models = {name: task.initial(0) for name, task in tasks.items()}
    for round in (1, 2):
        for name, task in tasks.items():
            learner = task.learner(RandomStreams(0, name))
            after = learner.train(models[name], round=round, epochs=3, purpose="head", rule=TrainSubset("private"))
            assert (after[:SHARED] == models[name][:SHARED]).all()
            models[name] = learner.train(after, round=round, epochs=2, rule=TrainSubset("shared"))
            assert (models[name][SHARED:] == after[SHARED:]).all()
        n = np.array([task.n_samples for task in tasks.values()])
        mean = weighted_mean([models[name][:SHARED] for name in NAMES], (n / n.sum()).tolist())
        for name, task in tasks.items():
            models[name] = task.layout.with_private(mean, models[name])
    for name in NAMES:
        assert np.allclose(cast[name].private_parameters.whole(cast[name].params), models[name], rtol=1e-5, atol=1e-6)
        assert set(history[1][name].weights) == set(NAMES)


def test_fedrep_absent_node_keeps_its_body():
    tasks = {name: headed(Part(k, 4), 0) for k, name in enumerate(NAMES)}
    policies = {name: make_policy("fedrep", {"head_epochs": 1}) for name in NAMES}
    cast, history = run_in_memory(policies, tasks, rounds=1, absent={1: ["b"]})
    assert history[0]["b"].weights == {"b": 1.0}
    assert cast["b"].params.tobytes() != cast["a"].params.tobytes() == cast["c"].params.tobytes()


def test_fedrep_needs_a_private_part():
    with pytest.raises(ConfigurationError, match='private = "head" to keep the last layer private'):
        run(scenario(task={**HEADED, "private": []}, policy={"name": "fedrep"}, trainer="stacked"))
    with pytest.raises(ConfigurationError, match="head_epochs must be 1 or more, got 0"):
        make_policy("fedrep", {"head_epochs": 0})


# Restarted nodes


def settings(**options):
    return Settings(**({"rounds": 5, "deadline": 10.0} | options))


@pytest.mark.slow
def test_killed_node_restarts_with_its_private_part(tmp_path):
    async def killed(federation):
        federation.start()
        await federation.round("d", 3)
        await asyncio.sleep(0.5)  # the node trains in round 4
        await federation.kill("d")
        federation.start("d")
        await federation.done()

    options = {"task": "tests.p2pfl.test_private_parameters:headed", "policy": lambda: make_policy("fedavg", {})}
    whole = play(to_the_end, NAMES, settings(), **options)
    restarted = play(killed, NAMES, settings(), folder=tmp_path, **options)
    assert wholes(restarted.nodes) == wholes(whole.nodes)
    for name in NAMES:
        assert restarted.watch[name].result == whole.watch[name].result
        assert restarted.watch[name].metrics[4] == whole.watch[name].metrics[4]


@pytest.mark.slow
def test_checkpoint_of_other_private_part_is_refused(tmp_path):
    async def test(federation):
        federation.start()
        await federation.done()
        again = federation.make("a", task=headed(Part(0, 4), 0, private=()))
        with pytest.raises(ConfigurationError, match="the checkpoint does not fit this task: the model has another layout"):
            await again.run()

    play(test, NAMES, settings(rounds=2), folder=tmp_path, task="tests.p2pfl.test_private_parameters:headed")


# The handshake


def test_handshake_refuses_different_shared_layouts():
    tasks = headed(Part(0, 2), 0), headed(Part(1, 2), 0, private=["2.bias"])
    ours, theirs = (task.layout.shared.fingerprint.hex() for task in tasks)

    async def test(federation):
        federation.start("a", task=tasks[0])
        federation.start("b", task=tasks[1])
        await federation.done()

    with pytest.raises(ConfigurationError, match=r"layout differs: this node has .*, the peer has") as refused:
        play(test, ("a", "b"), settings())
    assert ours in str(refused.value)
    assert theirs in str(refused.value)


def test_agreement_covers_only_the_shared_part(tmp_path):
    folders.create(tmp_path / "a", "a", "127.0.0.1:0")
    mine, wider, other = wide(Part(0, 3), 0), wide(Part(1, 3), 0), headed(Part(0, 3), 0, private=["2.bias"])
    tables = agreement.draft("home", folders.load(tmp_path / "a"), mine)
    agreed = msgspec.convert(tables, agreement.Agreement)
    assert (agreed.model.values, agreed.model.layout) == (SHARED, mine.layout.shared.fingerprint.hex())
    agreement.same_model(agreed, wider, wider.initial(0))
    with pytest.raises(ConfigurationError, match="the number of parameters differs") as refused:
        agreement.same_model(agreed, other, other.initial(0))
    assert f"(layouts {other.layout.shared.fingerprint.hex()} and {agreed.model.layout})" in str(refused.value)


@pytest.mark.slow
def test_nodes_with_different_private_parts_learn_together():
    federation = play(to_the_end, NAMES, settings(), task="tests.p2pfl.test_private_parameters:wide")
    assert all(federation.partners(name, 5) for name in NAMES)
    assert len({node.task.layout.fingerprint for node in federation.nodes.values()}) == 4
    assert not any(node.exchange.rejected for node in federation.nodes.values())
