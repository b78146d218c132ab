import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.random_streams import (
    RandomStreams,
    StreamsOfEach,
    common_order,
    digests,
    federation_streams,
    permutations,
    uniform_draws,
)


def first(streams, round, purpose):
    return streams.generator(round, purpose).random()


def test_draw_depends_on_seed_name_round_and_purpose_only():
    streams = RandomStreams(1, "a")
    one = first(streams, 3, "peers")
    first(streams, 4, "other")  # earlier draws have no effect
    assert first(streams, 3, "peers") == one == first(RandomStreams(1, "a"), 3, "peers")
    others = [
        (RandomStreams(2, "a"), 3, "peers"),
        (RandomStreams(1, "b"), 3, "peers"),
        (streams, 4, "peers"),
        (streams, 3, "order"),
    ]
    assert len({one, *(first(*other) for other in others)}) == 5


def test_streams_separate_names_rounds_and_purposes():
    assert first(RandomStreams(1, "a1"), 1, "x") != first(RandomStreams(1, "a"), 11, "x")
    assert first(RandomStreams(1, "a"), 1, "1x") != first(RandomStreams(1, "a"), 11, "x")


def test_draws_are_the_same_on_every_machine():
    assert RandomStreams(0, "node-0").generator(1, "peers").integers(0, 2**32, 3).tolist() == [
        4278889669,
        2390723505,
        647381073,
    ]
    assert federation_streams(0).torch_seed(0, "initial model") == 4893943522404294236


def test_generators_are_uniform():
    values = np.array([first(RandomStreams(seed, "a"), 1, "x") for seed in range(2000)])
    counts = np.histogram(values, bins=10, range=(0, 1))[0]
    assert counts.min() > 150
    assert counts.max() < 250


def test_torch_seed_is_within_range():
    assert 0 <= federation_streams(5).torch_seed(7, "x") < 2**63


def test_common_order_ignores_other_known_nodes():
    everyone = tuple(f"node-{k}" for k in range(9))
    for round in range(20):
        order = common_order(3, round, everyone)
        assert sorted(order.values()) == list(range(9))
        some = common_order(3, round, everyone[2:5])
        assert sorted(some, key=some.get) == sorted(everyone[2:5], key=order.get)
    assert len({tuple(common_order(0, round, everyone)) for round in range(50)}) > 40


def test_common_order_puts_each_node_first_equally_often():
    names = ("a", "b", "c")
    firsts = [min(order, key=order.get) for order in (common_order(0, round, names) for round in range(3000))]
    assert all(900 < firsts.count(name) < 1100 for name in names)


@given(st.integers(0, 2**64), st.integers(1, 20), st.integers(0, 40))
def test_draws_of_many_streams_are_those_of_each(seed, count, draws):
    streams = [RandomStreams(seed, f"node-{k}") for k in range(count)]
    found = uniform_draws(digests(streams, 3, "peers"), draws)
    assert found.tolist() == [stream.generator(3, "peers").random(draws).tolist() for stream in streams]


def test_streams_of_many_names_have_the_digests_of_single_ones():
    names = ["", "node-1", "kn\u00f6ten"]
    for digest, name in zip(StreamsOfEach(3, names).digests(2, "train"), names, strict=True):
        assert digest == RandomStreams(3, name).digest(2, "train")


@given(st.integers(0, 2**64), st.integers(0, 5), st.integers(0, 300), st.integers(1, 3))
def test_permutations_of_many_streams_are_those_of_each(seed, count, n, epochs):
    streams = [RandomStreams(seed, f"node-{k}") for k in range(count)]
    found = permutations(streams, 3, "train", n, epochs)
    for stream, rows in zip(streams, found, strict=True):
        rng = stream.generator(3, "train")
        assert rows.tolist() == [rng.permutation(n).tolist() for _ in range(epochs)]
