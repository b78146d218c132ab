"""GGC and BGGC: their selections, number of evaluations, and number of models held."""

import tracemalloc
import weakref
from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.algorithms.ggc import DecideGreedily, acceptance, bggc, decide_together, gain, ggc
from p2pfl.parameters import Layout, PrivateParameters
from p2pfl.policy import Update


def play(coroutine):
    """Run a coroutine that never waits."""
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    return done.value.value


def model(name, params, samples=10):
    return Update(name, 0, "prepared", np.asarray(params, np.float32), samples)


def some_models(rng, count, size=7, alike=False):
    """The own model and models of peers, at different distances from a common optimum; all equal if `alike`."""
    first = rng.normal(size=size)
    rows = [first if alike else first + rng.normal(size=size) * rng.uniform(0, 2) for _ in range(count + 1)]
    own, *others = [model(f"n{k:02d}", row, int(rng.integers(1, 200))) for k, row in enumerate(rows)]
    return own, others


def on(loss):
    """Return the function that computes decisions with a loss; the loss is called with the models of each evaluation."""

    async def compute(query):
        (decisions,) = decide_together([query], lambda _, models: loss(list(models)))
        return decisions

    return compute


class Validation:
    """Loss of a linear model on a few points, and the number of its calls.

    Attributes:
        losses: one value for each evaluation, in order.
    """

    def __init__(self, rng, size=7, points=5):
        self.x = rng.normal(size=(points, size)).astype(np.float32)
        self.y = (self.x @ rng.normal(size=size)).astype(np.float32)
        self.calls, self.losses = 0, []

    def __call__(self, stack):
        self.calls += 1
        losses = np.array([((self.x @ params - self.y) ** 2).mean() for params in stack], np.float64)
        self.losses.extend(losses.tolist())
        return losses


def fetching(models, watch=lambda ids, models: None):
    async def fetch(ids):
        found = [Update(m.sender, 0, "prepared", m.params.copy(), m.n_samples) for m in models if m.sender in ids]
        watch(ids, found)
        return found  # sorted by id, in any order of the request

    return fetch


cases = {
    "seed": st.integers(0, 2**32),
    "count": st.integers(0, 14),
    "limit": st.none() | st.integers(1, 6),
    "batch": st.integers(0, 6),
    "alike": st.booleans(),
}


@given(**cases)
def test_bggc_equals_ggc_bit_for_bit(seed, count, limit, batch, alike):
    rng = np.random.default_rng(seed)
    own, others = some_models(rng, count, alike=alike)
    loss = Validation(rng)
    ids = [other.sender for other in others]
    at_once = play(ggc(own, others, compute=on(loss), rng=np.random.default_rng(seed), limit=limit))
    first, loss.losses = loss.losses, []
    in_one = play(bggc(own, ids, fetching(others), compute=on(loss), rng=np.random.default_rng(seed), limit=limit))
    loss.losses = []
    again = bggc(own, ids, fetching(others), compute=on(loss), rng=np.random.default_rng(seed), limit=limit, batch=batch)
    in_batches = play(again)
    assert in_batches.ids == in_one.ids == at_once
    assert in_batches.mean.tobytes() == in_one.mean.tobytes()
    assert in_batches.weights == in_one.weights
    assert loss.losses == first


@given(**cases)
def test_bggc_stays_within_evaluation_fetch_and_selection_limits(seed, count, limit, batch, alike):
    rng = np.random.default_rng(seed)
    own, others = some_models(rng, count, alike=alike)
    loss, fetched = Validation(rng), []
    fetch = fetching(others, lambda ids, found: fetched.append(len(ids)))
    ids = [other.sender for other in others]
    selection = play(bggc(own, ids, fetch, compute=on(loss), rng=rng, limit=limit, batch=batch))
    assert len(loss.losses) <= 2 + 2 * count
    assert loss.calls <= 1 + count
    assert len(selection.ids) <= (count if limit is None else limit)
    assert sum(fetched) <= 2 * count
    assert all(size <= (batch or count) for size in fetched)
    assert sum(selection.weights.values()) == pytest.approx(1)
    kept = [own, *(other for other in others if other.sender in selection.ids)]
    mean = np.average([m.params for m in kept], axis=0, weights=[m.n_samples for m in kept])
    assert selection.mean == pytest.approx(mean, rel=1e-3, abs=1e-4)


def of_paper(own, others, loss, rng, limit):
    """Algorithm 2 as it is written, on sets of models: the selected ids, and the losses of X and Y at each step."""
    ids = sorted(other.sender for other in others)
    order = [next(o for o in others if o.sender == ids[k]) for k in rng.permutation(len(ids))]
    draws = rng.random(len(order))

    def loss_of(some):
        (found,) = loss([np.average([m.params for m in some], axis=0, weights=[m.n_samples for m in some])])
        return found

    x, y, steps = [own], [own, *order], []
    for j, draw in zip(order, draws, strict=True):
        losses = [loss_of(some) for some in (x, y, [*x, j], [m for m in y if m is not j])]
        a, b = max(losses[0] - losses[2], 0), max(losses[1] - losses[3], 0)
        steps.append(losses)
        if b == 0 or draw < a / (a + b):
            x.append(j)
        else:
            y.remove(j)
        if len(x) - 1 == limit:
            break
    return tuple(sorted(m.sender for m in x[1:])), steps


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_ggc_follows_algorithm_of_the_paper(limit):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        own, others = some_models(rng, 1 + seed % 6)
        loss, exact = Validation(rng), Validation(np.random.default_rng(0))
        exact.x, exact.y = loss.x, loss.y
        ids, steps = of_paper(own, others, exact, np.random.default_rng(seed), limit)
        assert play(ggc(own, others, compute=on(loss), rng=np.random.default_rng(seed), limit=limit)) == ids
        first, *pairs = np.reshape(loss.losses, (-1, 2))
        assert first == pytest.approx(steps[0][:2], rel=1e-3)
        assert np.array(pairs) == pytest.approx(np.array(steps)[:, 2:], rel=1e-3)


def test_bggc_fetches_all_models_at_once_by_default():
    own, others = some_models(np.random.default_rng(0), 3)
    fetched = []
    fetch = fetching(others, lambda ids, found: fetched.append(len(found)))
    rng = np.random.default_rng(0)
    play(bggc(own, [other.sender for other in others], fetch, compute=on(Validation(rng)), rng=rng))
    assert fetched == [3, 3]


def test_bggc_skips_silent_peers_in_the_second_pass():
    rng = np.random.default_rng(0)
    own, others = some_models(rng, 8)
    silent, asked = {"n02", "n05", "n06"}, []
    fetch = fetching([other for other in others if other.sender not in silent], lambda ids, found: asked.extend(ids))
    ids = [other.sender for other in others]
    play(bggc(own, ids, fetch, compute=on(Validation(rng)), rng=rng, batch=2))
    assert {id: asked.count(id) for id in ids} == {id: 1 if id in silent else 2 for id in ids}


@pytest.mark.slow
def test_ggc_without_limit_is_no_worse_than_mean_of_all():
    for seed in range(500):
        rng = np.random.default_rng(seed)
        own, others = some_models(rng, int(rng.integers(1, 12)))
        loss = Validation(rng)
        selection = play(bggc(own, [other.sender for other in others], fetching(others), compute=on(loss), rng=rng))
        everyone = loss.losses[1]  # the second of the first pair: the loss of Y, which starts with all models
        (found,) = loss([selection.mean])
        assert found <= everyone * (1 + 1e-4) + 1e-6, seed


@pytest.mark.slow
def test_ggc_result_may_be_worse_than_own_model():
    """The paper claims the contrary, but GGC accepts a candidate that helps neither X nor, by its removal, Y."""
    worse = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        own, others = some_models(rng, 6)
        loss = Validation(rng)
        selection = play(bggc(own, [other.sender for other in others], fetching(others), compute=on(loss), rng=rng))
        (found,) = loss([selection.mean])
        worse += found > loss.losses[0] * 1.001
    assert worse


@pytest.mark.slow
def test_bggc_holds_one_batch_and_few_sums():
    size, batch, count = 250_000, 4, 17
    rng = np.random.default_rng(0)
    own, others = some_models(rng, count, size)
    alive, most = [], []

    async def fetch(ids):
        assert all(reference() is None for reference in alive)  # the previous batch was released
        alive.clear()
        found = []
        for other in others:
            if other.sender in ids:
                params = other.params.copy()
                alive.append(weakref.ref(params))
                found.append(Update(other.sender, 0, "prepared", params, other.n_samples))
        most.append(len(alive))
        return found

    def loss(stack):
        return rng.random(len(stack))

    async def measure():
        tracemalloc.start()
        await bggc(own, [other.sender for other in others], fetch, compute=on(loss), rng=rng, limit=batch, batch=batch)
        return tracemalloc.get_traced_memory()[1]

    peak = play(measure()) / own.params.nbytes
    tracemalloc.stop()
    assert max(most) == batch
    # The own model existed before. Two sums before the batch, two in it, two of a candidate, and the means and an input.
    assert batch + 2 < peak < batch + 6 + 3.5


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [(1, 3, 0.25), (2, 0, 1), (0, 2, 0), (0, 0, 1), (inf, 3, 1), (3, inf, 0), (inf, inf, 0.5), (inf, 0, 1), (0, inf, 0)],
)
def test_acceptance_probability_of_each_case(a, b, p):
    assert acceptance(a, b) == p


def test_gain_is_the_decrease_of_the_loss():
    assert (gain(3.0, 1.0), gain(1.0, 3.0), gain(inf, inf), gain(inf, 1.0), gain(1.0, inf)) == (2.0, 0.0, 0.0, inf, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b", "share"), [(1.0, 3.0, 0.25), (2.0, 0.0, 1.0), (0.0, 2.0, 0.0), (0.0, 0.0, 1.0)])
def test_ggc_accepts_candidate_with_expected_frequency(a, b, share):
    def loss(stack):  # losses of X and Y at the start, then of X with the candidate and Y without it
        return next(answers)

    taken = 0
    for seed in range(2000):
        answers = iter([np.array([10.0, 10.0]), np.array([10 - a, 10 - b])])
        rng = np.random.default_rng(seed)
        taken += len(play(ggc(model("a", [1.0]), [model("b", [2.0])], compute=on(loss), rng=rng)))
    assert taken / 2000 == pytest.approx(share, abs=0.04)


def test_ggc_finds_pair_that_helps_only_together():
    """Find a pair that pairwise comparisons miss (appendix A of the paper): each alone is worse, both together are best."""
    own, others = model("a", [0.0, 0.0]), [model("b", [9.0, 0.0]), model("c", [-9.0, 3.0])]

    def loss(stack):
        return np.array([np.square(params - [0.0, 1.0]).sum() for params in stack])

    selection = play(bggc(own, ["b", "c"], fetching(others), compute=on(loss), rng=np.random.default_rng(0)))
    assert selection.ids == ("b", "c")
    assert selection.mean == pytest.approx([0.0, 1.0])
    assert loss([own.params]) < min(loss([(own.params + other.params) / 2])[0] for other in others)


def test_ggc_without_validation_data_takes_first_drawn():
    def loss(stack):
        return np.full(len(stack), nan)

    own, others = some_models(np.random.default_rng(0), 9)
    chosen = {play(ggc(own, others, compute=on(loss), rng=np.random.default_rng(s), limit=2)) for s in range(30)}
    assert all(len(ids) == 2 for ids in chosen)
    assert len(chosen) > 10


def test_ggc_rejects_model_with_nan_loss():
    def loss(stack):
        return np.array([nan if abs(params[0]) > 100 else 1.0 for params in stack])

    own, others = model("a", [0.0]), [model("b", [1.0]), model("c", [1e30]), model("d", [2.0])]
    for seed in range(20):
        assert play(ggc(own, others, compute=on(loss), rng=np.random.default_rng(seed))) == ("b", "d")


def test_bggc_rejects_peer_that_leaves_between_passes():
    rng = np.random.default_rng(1)
    own, others = some_models(rng, 6, alike=True)
    available = list(others)

    async def fetch(ids):
        found = [other for other in available if other.sender in ids]
        if len(asked := [*seen, *ids]) >= len(others):
            available[:] = [other for other in available if other.sender != "n03"]
        seen[:] = asked
        return found

    seen = []
    loss = Validation(rng)
    selection = play(bggc(own, [o.sender for o in others], fetch, compute=on(loss), rng=rng, batch=2))
    assert "n03" not in selection.ids


def test_bggc_with_limit_zero_fetches_nothing():
    async def fetch(ids):
        raise AssertionError("nothing is to be fetched")

    own = model("a", [1.0, 2.0])
    selection = play(bggc(own, ["b", "c"], fetch, compute=None, rng=np.random.default_rng(0), limit=0))
    assert selection.ids == ()
    assert selection.mean is own.params
    assert selection.weights == {"a": 1.0}


def test_ggc_counts_node_without_samples_as_one_sample():
    def loss(stack):
        return np.zeros(len(stack))

    own, fetch = model("a", [0.0], 0), fetching([model("b", [4.0], 3)])
    selection = play(bggc(own, ["b"], fetch, compute=on(loss), rng=np.random.default_rng(0)))
    assert selection.mean == pytest.approx([3.0])
    assert selection.weights == {"a": 0.25, "b": 0.75}


def test_searches_computed_together_equal_single_ones():
    rng = np.random.default_rng(3)
    data = [Validation(rng) for _ in range(5)]
    queries = []

    async def keep(query):
        queries.append(query)
        return decide_together([query], None)[0]

    for k in range(5):  # of different lengths, so that some end before others
        own, others = some_models(rng, 3 + 2 * k)
        play(ggc(own, others, compute=keep, rng=rng, limit=1 + k))

    def losses(places, models):
        return [data[k]([model])[0] for k, model in zip(places, models, strict=True)]

    together = decide_together(queries, losses)
    alone = [play(on(data[k])(query)) for k, query in enumerate(queries)]
    assert together == alone
    assert len({len(decisions.accepted) for decisions in together}) > 1
    assert {accept for decisions in together for accept in decisions.accepted} == {True, False}


def queries_of(count, rng):
    """Return the query of a search of each of some nodes."""
    queries = []

    async def keep(query):
        queries.append(query)
        return decide_together([query], None)[0]

    for _ in range(count):
        play(ggc(*some_models(rng, 4), compute=keep, rng=rng))
    return queries


def test_search_evaluates_models_completed_with_private_values():
    (query,), seen = queries_of(1, np.random.default_rng(0)), []
    layout = Layout((("shared", (7,)), ("own", (2,))), 9, private=("own",))
    private = query.complete(PrivateParameters(layout, np.arange(9, dtype=np.float32)))

    def losses(places, models):
        seen.extend(models)
        return [0.0] * len(models)

    decide_together([private], losses)
    plain = list(seen)
    assert query.complete(PrivateParameters(layout.shared, np.zeros(7, np.float32))) is query
    seen.clear()
    decide_together([query], losses)
    assert [model[-2:].tolist() for model in plain] == [[7.0, 8.0]] * len(seen)
    assert [model[:7].tolist() for model in plain] == [model.tolist() for model in seen]


def test_search_is_answered_by_a_learner_or_by_the_learners_of_many_nodes():
    rng = np.random.default_rng(3)
    queries, data = queries_of(3, rng), [Validation(rng) for _ in range(3)]

    def losses_of(places):
        return lambda asked, models: [data[places[k]]([model])[0] for k, model in zip(asked, models, strict=True)]

    nodes = SimpleNamespace(parts=lambda: [(places, losses_of(places)) for places in ([2, 0], [1])])
    together = DecideGreedily.answer_together(queries, nodes)
    learners = [SimpleNamespace(compute=lambda query, k=k: data[k](query.stack)) for k in range(3)]
    assert together == [query.answer(learner) for query, learner in zip(queries, learners, strict=True)]
    assert {accept for decisions in together for accept in decisions.accepted} == {True, False}


def test_search_without_data_equals_search_with_nan_losses():
    own, others = some_models(np.random.default_rng(0), 9)

    async def without_data(query):
        return decide_together([query], None)[0]

    for limit in (None, 1, 4, 20):
        found = [
            play(ggc(own, others, compute=compute, rng=np.random.default_rng(1), limit=limit))
            for compute in (without_data, on(lambda stack: np.full(len(stack), nan)))
        ]
        assert found[0] == found[1]
