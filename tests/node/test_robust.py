"""Clipping and capping of numbers, and federations with malicious members on virtual time."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.node.checkpoint import FileStore
from p2pfl.node.coordination.coordinator import protect_submissions
from p2pfl.node.settings import Settings, check_coordinated
from p2pfl.parameters import weighted_mean
from p2pfl.policies.cfl import Cfl
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.dac import Dac, similarity_extras
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policies.local import Local
from p2pfl.policies.random import Random
from p2pfl.policy import Merge, Submission, Update
from p2pfl.protocols.wire import messages as m
from p2pfl.robust.candidates import cap_samples, coarse, combine, distances_from
from p2pfl.robust.clipping import ClippedModel, MedianClip, clip_models, factor_of, without_clipping
from p2pfl.robust.registry import make_rule
from tests.support.depth import many, spread
from tests.support.federation import play
from tests.support.liars import Liar

NAMES = ("a", "b", "c", "d", "e")
ZERO = np.zeros(4, np.float32)


def distance(one, other):
    return distances_from(other, [one])[0]


def at(far, direction=0):
    params = np.zeros(4, np.float32)
    params[direction] = far
    return params


# Clipping


def test_clip_moves_far_models_to_the_median_distance():
    models = [at(1.0), at(2.0, 1), at(6.0, 2)]
    kept = MedianClip().clip(ZERO, ZERO, "bcd", models)
    assert kept[0] is models[0]
    assert kept[1] is models[1]
    assert kept[2].tolist() == pytest.approx(at(2.0, 2).tolist())
    assert kept[2].dtype == np.float32


def test_clip_shrinks_outliers_by_their_distance():
    kept = MedianClip().clip(ZERO, ZERO, "bcdef", [at(1.0), at(1.0), at(1.0), at(6.0), at(1000.0)])
    assert [distance(model, ZERO) for model in kept] == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.003])


def test_clip_limits_pull_of_peer_with_many_samples():
    kept = MedianClip().clip(ZERO, ZERO, "bcd", [at(1.0), at(1.0), at(1.0)], [50, 50, 100])
    assert [distance(model, ZERO) for model in kept] == pytest.approx([1.0, 1.0, 0.5])


def test_clip_of_two_takes_the_lower_distance():
    kept = MedianClip().clip(ZERO, ZERO, "bc", [at(1.0), at(2.5, 1)])
    assert distance(kept[1], ZERO) == pytest.approx(1.0)


def test_clip_of_one_is_bounded_by_own_movement():
    kept = MedianClip().clip(at(3.0), ZERO, "b", [at(5.0, 1)])
    assert distance(kept[0], at(3.0)) == pytest.approx(3.0, rel=1e-5)


@pytest.mark.parametrize(("round", "kept"), [(9, 8.0), (10, 0.375)])
def test_old_distances_of_most_peers_do_not_enlarge_the_radius(round, kept):
    """Six peers were far away in round 1, and two of them are fetched since; one of these becomes patiently hostile."""
    clip = MedianClip()

    def fetched(senders, models, now):
        clipped = clip_models([ZERO, *models], ZERO, clip.distances_of_others(senders, now))
        clip.record(senders, clipped, now)
        return [far * factor for far, factor in zip(clipped.distances, clipped.factors, strict=True)]

    fetched("bcdefg", [at(10.0)] * 6, 1)
    for now in range(2, round):
        assert fetched("bc", [at(1.0), at(1.0)], now) == [1.0, 1.0]
    assert fetched("bc", [at(1.0), at(8.0)], round) == pytest.approx([1.0, kept])


def test_recent_distances_of_most_peers_count_as_they_are():
    clip = MedianClip()
    clip.record("bcdefg", clip_models([ZERO, *[at(10.0)] * 6], ZERO, []), 1)
    clip.record("bcd", clip_models([ZERO, *[at(1.0)] * 3], ZERO, []), 20)
    assert clip.distances_of_others("b", 20) == [1.0, 1.0, 10.0, 10.0, 10.0]
    assert clip.distances_of_others("b", 28) == [1.0, 1.0, 10.0, 10.0, 10.0]
    assert clip.distances_of_others("b", 29) == [1.0, 1.0, 10.0, 10.0, 10.0]  # no distance is recent


def test_clip_of_one_remembers_the_distances_of_others():
    clip = MedianClip()
    for sender in "bcd":
        clip.clip(ZERO, ZERO, sender, [at(1.0)])
    (kept,) = clip.clip(ZERO, ZERO, "e", [at(2.0)])
    assert distance(kept, ZERO) == pytest.approx(1.0)
    clip.forget("e")
    (kept,) = clip.clip(ZERO, ZERO, "e", [at(2.0)])
    assert distance(kept, ZERO) == pytest.approx(2.0)


@pytest.mark.parametrize("lie", [1e9, 2.9])
def test_patient_liar_does_not_enlarge_the_radius(lie):
    """Fewer than half of five peers lie for many rounds, each time alone or with others, far or just below an outlier."""
    rng = np.random.default_rng(1)
    clip = MedianClip()
    for round in range(200):
        honest = rng.uniform(0.9, 1.1, 3)
        lies = [lie, lie] if round % 2 else [lie]
        senders = ["b", "c", "d", "e", "f"][: 3 + len(lies)]
        kept = clip.clip(ZERO, ZERO, senders, [at(far) for far in [*honest, *lies]])
        assert max(distance(model, ZERO) for model in kept) <= 1.1 + 1e-6


def test_clip_counts_outliers_by_sender():
    clip = MedianClip()
    clip.clip(ZERO, ZERO, "bcd", [at(1.0), at(2.0), at(6.1)])
    assert clip.outliers == {"d": 1}


def test_mean_without_clipping_equals_mean_of_clipped_models():
    rng = np.random.default_rng(5)
    owns = rng.normal(3.0, 1.0, (2, 50)).astype(np.float32)
    received = [(rng.normal(3.0, 1.0, 50) * scale).astype(np.float32) for scale in (1.0, 3.0, 1e3, 1e30)]
    clipped = [ClippedModel(model, owns[0], factor_of(distance(model, owns[0]), 8.0)) for model in received]
    models = [owns[0], *clipped, ClippedModel(received[1], owns[1], 0.25), received[0]]
    weights = [0.3, 0.2, 0.1, 0.1, 0.1, 0.15, 0.05]
    expected = weighted_mean([owns[0], *(model.values for model in models[1:-1]), received[0]], weights)
    found = weighted_mean(*without_clipping(models, weights))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Remembering(FedAvg):
    """FedAvg that remembers the updates that it has received."""

    def __post_init__(self):
        super().__post_init__()
        self.updates = []

    async def round(self, me, peers):
        fetch = peers.models

        async def remember(ids, stage="trained"):
            updates = await fetch(ids, stage)
            self.updates += updates
            return updates

        peers.models = remember
        try:
            return await super().round(me, peers)
        finally:
            del peers.models


@pytest.mark.slow
def test_merge_does_not_read_values_of_clipped_models():
    federation = play(
        to_the_end, ("a", "b", "c", "d"), Settings(rounds=2, deadline=10.0, robust="median-clip"), policy=Remembering
    )
    models = [update.model for update in federation.nodes["a"].policy.updates]
    clipped = [model for model in models if isinstance(model, ClippedModel)]
    assert len(models) == 6
    assert len(clipped) == 2  # the furthest of three in each round
    assert not any("values" in vars(model) for model in clipped)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8), st.lists(st.floats(-1e30, 1e30), max_size=7))
def test_clip_bounds_fewer_liars_than_honest(honest, lies):
    lies = lies[: len(honest) - 1]
    models = [at(far) for far in honest] + [at(far, 1) for far in lies]
    senders = [f"n{k}" for k in range(len(models))]
    kept = MedianClip().clip(ZERO, ZERO, senders, models)
    assert all(distance(model, ZERO) <= max(honest) * 1.001 for model in kept)


# Capping


def test_cap_samples_keeps_honest_claims():
    assert cap_samples(100, {"b": 100, "c": 120, "d": 80}) == {"b": 100, "c": 120, "d": 80}


def test_cap_samples_limits_one_peer_to_a_share():
    capped = cap_samples(100, {"b": 100, "c": 100, "d": 100, "e": 2**32 - 1})
    assert capped == {"b": 100, "c": 100, "d": 100, "e": 266}
    assert 266 / (400 + 266) <= 2 / 5


def test_cap_samples_limits_only_peer_to_half():
    assert cap_samples(50, {"b": 2**32 - 1}) == {"b": 50}


@given(st.integers(0, 10**6), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12))
def test_cap_samples_never_exceeds_the_share(own, claimed):
    capped = cap_samples(own, {f"n{k}": n for k, n in enumerate(claimed)})
    whole = own + sum(capped.values())
    share = min(0.5, 2 / (len(claimed) + 1))
    for (_, kept), said in zip(capped.items(), claimed, strict=True):
        assert kept <= said or said == 0
        assert kept <= 1 or kept <= share * whole * 1.000001


# Submissions to a coordinator


def submission(sender, params, n_samples=50):
    return Submission(sender, 1, params, n_samples)


def test_protect_submissions_clips_towards_central_model():
    kept = protect_submissions([submission("a", ZERO), submission("b", at(1.0)), submission("c", at(3.0, 1), 2**32 - 1)])
    assert [distance(s.params, ZERO) for s in kept] == pytest.approx([0.0, 1.0, 0.25])
    assert kept[2].n_samples == 100


def test_protect_submissions_bounds_a_far_model():
    models = [at(1.0), at(1.1), at(1.2), at(900.0, 1)]
    kept = protect_submissions([submission(sender, model) for sender, model in zip("bcde", models, strict=True)])
    assert max(distance(s.params, at(1.1)) for s in kept) < 0.2


def test_coarse_keeps_three_significant_digits():
    assert coarse(2.302585) == 2.3
    assert coarse(0.000123456) == 0.000123


# Lent similarities


def lending(similarity):
    """Return an update of a's that lends a similarity to b."""
    return Update("a", 1, "trained", ZERO, 1, similarity_extras({"b": similarity}))


def test_dac_bounds_lent_similarity_by_own_similarity():
    for lent, borrowed in ((3e38, 0.7), (-3e38, 0.0), (0.5, 0.5)):
        policy = Dac()
        policy.known.measure({"a": 0.7})
        policy.estimate(("a", "b"), [lending(lent)], "median-clip")
        assert policy.known.of(("a", "b")).tolist() == [0.7, pytest.approx(borrowed)]


@pytest.mark.parametrize(("measure", "most"), [("cosine-weights", 1.0), ("l2", 1e6), ("inverse-loss", 1e6)])
def test_dac_bounds_lent_similarity_by_range_of_measure(measure, most):
    policy = Dac(similarity=measure)
    policy.known.measure({"a": 0.7})
    policy.estimate(("a", "b"), [lending(3e38)], "none")
    assert policy.known.borrowed == {"b": most}


# Federations with a malicious member


def answer_with(make):
    """Return the handler of a liar that answers requests for models with `make(liar, victim)`."""

    def on(liar, peer, message, payload):
        if isinstance(message, m.Get):
            params = make(liar, liar.federation.nodes[peer.name])
            answer = m.ModelUpdate(message.request, message.round, message.stage, liar.n_samples, False, 0.0)
            liar.send(peer, answer, params.tobytes())

    return on


def huge(liar, victim):
    noise = np.random.default_rng(victim.round).standard_normal(victim.me.params.size).astype(np.float32)
    return noise * np.float32(900 * np.linalg.norm(victim.me.params) / np.linalg.norm(noise))


ATTACKS = {
    "huge": huge,
    "scale": lambda liar, victim: victim.me.params * np.float32(900),
    "flip": lambda liar, victim: -victim.me.params,
    "echo": lambda liar, victim: victim.me.params,
}


def mse(attack, policy, robust, rounds=8):
    """Return the mean test error of four honest nodes in a federation with a liar, and the federation."""

    async def test(federation):
        federation.start(*"abcd")
        async with Liar(federation, "e", answer_with(ATTACKS[attack])):
            for name in "abcd":
                await federation.round(name, rounds)
        await federation.done()

    settings = Settings(rounds=rounds, deadline=10.0, robust=robust)
    federation = play(test, NAMES, settings, policy=policy)
    errors = [federation.watch[name].metrics[rounds]["trained"]["test_mse"] for name in "abcd"]
    return np.mean(errors), federation


@cache
def clean_mse(policy):
    return mse("echo", policy, "none")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "attacks", "robust"),
    [
        (Random, ATTACKS, "median-clip"),
        (FedAvg, ("huge", "flip"), "clip-loss"),
        *many([], [(Random, ATTACKS, "clip-loss"), (FedAvg, ("huge", "flip"), "median-clip")]),
        *((Dac, ("huge", "flip"), rule) for rule in many(["median-clip"], ["median-clip", "clip-loss"])),
    ],
)
def test_poison_costs_little_with_clipping(policy, attacks, robust):
    clean = clean_mse(policy)
    for attack in attacks:
        error, federation = mse(attack, policy, robust)
        assert error < 1.5 * clean + 1, attack
        if attack in ("huge", "scale"):
            assert federation.nodes["a"].peers.clip.outliers["e"] > 0


@pytest.mark.slow
def test_poison_destroys_mean_without_robust_rule():
    clean, _ = mse("echo", Random, "none")
    destroyed, _ = mse("huge", Random, "none")
    assert destroyed > 100 * clean


@pytest.mark.slow
@pytest.mark.parametrize("rule", spread(["nna", "cs+", "trimmed"], 3))
def test_poison_costs_little_with_rule(rule):
    clean, _ = mse("echo", FedAvg, "none")
    for attack in ATTACKS:
        error, federation = mse(attack, FedAvg, {"name": rule, "share": 0.25})
        assert error < 1.5 * clean + 1, attack
    if rule == "nna":
        assert federation.watch["a"].weights[8]["b"] > 0


def test_rule_changes_weights_of_a_federation():
    async def test(federation):
        federation.start(*"abc")
        await federation.done()

    federation = play(test, ("a", "b", "c"), Settings(rounds=2, deadline=10.0, robust="krum"), policy=FedAvg)
    assert sorted(federation.watch["a"].weights[2].values()) == [0.0, 0.0, 1.0]


class Evaluating(Remembering):
    """FedAvg that computes the losses of the models of its merge, and of the initial model."""

    async def round(self, me, peers):
        merge = await super().round(me, peers)
        models = [peers.published["trained"], *(update.params for update in self.updates)]
        self.losses = (await me.loss([*models, me.initial])).tolist()
        return merge


def test_clip_loss_weighs_by_losses_relative_to_initial():
    async def test(federation):
        federation.start(*"abc")
        await federation.done()

    settings = Settings(rounds=1, deadline=10.0, robust={"name": "clip-loss", "temperature": 0.5})
    federation = play(test, ("a", "b", "c"), settings, policy=Evaluating)
    node = federation.nodes["a"]
    *losses, initial = node.policy.losses
    assert initial > 1
    samples = [node.me.n_samples, *(update.n_samples for update in node.policy.updates)]
    scores = np.array(samples) * np.exp(-np.array(losses) / initial / 0.5)
    weights = federation.watch["a"].weights[1]
    found = [weights[id] for id in ("a", *(update.sender for update in node.policy.updates))]
    np.testing.assert_allclose(found, scores / scores.sum(), rtol=1e-6)


@pytest.mark.slow
def test_claimed_samples_give_at_most_a_share():
    def claim(liar, victim):
        return victim.me.params

    async def test(federation):
        federation.start(*"abcd")
        async with Liar(federation, "e", answer_with(claim), n_samples=2**32 - 1):
            await federation.round("a", 3)
        await federation.done()

    federation = play(test, NAMES, Settings(rounds=3, deadline=10.0, robust="median-clip"), policy=FedAvg)
    weights = federation.watch["a"].weights[3]
    assert weights["e"] <= 2 / 5
    assert federation.nodes["a"].peers.capped["e"] == 3


# Rules at the coordinator


@pytest.mark.parametrize("name", ["scclip", "cs+", "nna", "ios", "rfa", "krum", "median", "trimmed"])
def test_protect_submissions_makes_the_mean_that_of_the_rule(name):
    rng = np.random.default_rng(3)
    models = [*rng.normal(1.0, 0.1, (4, 6)), np.full(6, -50.0)]
    given = [submission(sender, model.astype(np.float32), 50) for sender, model in zip("abcde", models, strict=True)]
    rule = make_rule(name)
    kept = protect_submissions(given, rule)
    own = int(np.argmin(np.linalg.norm(np.array(models) - np.median(models, axis=0), axis=1)))
    expected = combine(rule, [s.params for s in given], [0.2] * 5, own=own).params
    np.testing.assert_allclose(np.mean([s.params for s in kept], axis=0), expected, atol=1e-4)


@pytest.mark.parametrize(("policy", "moved"), [(CoordinatedFedAvg, True), (Cfl, False)])
def test_clip_loss_moves_an_assigned_model_if_the_policy_permits(policy, moved):
    """The coordinator of CFL expects its members to start from the models that it assigned."""
    assigned, taken = [], []

    class Watched(policy):
        async def aggregate(self, me, peers, trained):
            merge = await super().aggregate(me, peers, trained)
            taken.append(merge.params)
            return merge

        def step(self, submissions, state, layout):
            assignments, after = super().step(submissions, state, layout)
            assigned.extend(assignment.params for assignment in assignments.values())
            return assignments, after

    settings = Settings(rounds=1, deadline=10.0, robust={"name": "clip-loss", "temperature": 1e-3})
    play(to_the_end, ("a", "b", "c"), settings, policy=Watched)
    assert len(taken) == 3
    equal = [any(np.allclose(one, other, atol=1e-6) for other in assigned) for one in taken]
    assert all(equal) != moved


def test_coordinated_policy_refuses_rule_that_needs_losses():
    with pytest.raises(ConfigurationError, match="coordinated policy cannot use the robust rule 'ubar'"):
        check_coordinated(Settings(robust="ubar"))


# The own model


class Poisoned(Local):
    """Policy that returns a non-finite model in round 2."""

    async def round(self, me, peers):
        trained = await me.train()
        await peers.publish(trained)
        updates = await peers.models(peers.ids)
        weights = {me.id: 0.5} | {u.sender: 0.5 / len(updates) for u in updates}
        return Merge(trained * np.float32(np.nan) if me.round == 2 else trained, weights)


async def to_the_end(federation):
    federation.start()
    await federation.done()


def test_non_finite_merge_is_dropped_and_its_senders_counted():
    federation = play(to_the_end, ("a", "b"), Settings(rounds=4, deadline=10.0), policy=Poisoned, lenient=True)
    for name, other in (("a", "b"), ("b", "a")):
        assert np.isfinite(federation.nodes[name].me.params).all()
        ((round, reason, senders),) = federation.watch[name].discards
        assert (round, senders) == (2, [other])
        assert f"the average with the models of {other}" in reason
        assert federation.watch[name].weights[2] == {name: 1.0}


class Failing(Local):
    """Policy whose training diverges in some rounds."""

    rounds = (2, 3)

    async def round(self, me, peers):
        submit = me.trainer.submit

        async def diverge(query):
            raise DivergenceError(me.id, me.round)

        me.trainer.submit = diverge if me.round in self.rounds else submit
        try:
            return Merge(await me.train(), {me.id: 1.0})
        finally:
            me.trainer.submit = submit


def test_diverged_training_keeps_previous_model():
    federation = play(to_the_end, ("a",), Settings(rounds=4, deadline=10.0), policy=Failing, lenient=True)
    assert [round for round, _, _ in federation.watch["a"].discards] == [2, 3]
    assert sorted(federation.watch["a"].weights) == [1, 2, 3, 4]


def test_repeated_divergence_ends_node():
    class Hopeless(Failing):
        rounds = range(1, 20)

    with pytest.raises(DivergenceError, match="a diverged in round 4"):
        play(to_the_end, ("a",), Settings(rounds=9, deadline=10.0), policy=Hopeless, lenient=True)


def test_divergence_ends_simulation():
    with pytest.raises(DivergenceError, match="a diverged in round 2"):
        play(to_the_end, ("a",), Settings(rounds=9, deadline=10.0), policy=Failing)


def test_non_finite_checkpoint_is_not_restored(tmp_path):
    restored = []

    async def test(federation):
        federation.start("a")
        await federation.done()
        store = FileStore(tmp_path / "a")
        checkpoint = store.load()
        store.save(replace(checkpoint, params=(federation.nodes["a"].me.params * np.float32(np.nan)).tobytes()))
        federation.watch["a"].restored = lambda node: restored.append(node.me.params)
        federation.start("a")
        await federation.done()
        (params,) = restored
        assert np.isfinite(params).all()
        assert "not finite" in federation.watch["a"].discards[0][1]

    play(test, ("a",), Settings(rounds=2, deadline=10.0), folder=tmp_path)


# Losses on a node's data


def ask_losses(policy, robust="median-clip", role="participant"):
    """Run node a while member b asks three times in a round for the loss of a model; return the federation."""
    answers = []

    def on(liar, peer, message, payload):
        answers.append(message)

    async def test(federation):
        federation.start("a")
        node = federation.nodes["a"]
        if role == "observer":
            node.exchange.view.remove("b")
        async with Liar(federation, "b", on) as liar:
            peer = liar.exchange.peers["a"]
            for number in range(3):
                liar.send(peer, m.Score(number, node.round), node.me.params.tobytes())
                await liar.peering.until(lambda number=number: len(answers) > number, 5.0)
            federation.answers = list(answers)
            await federation.kill("a")

    federation = play(test, ("a", "b"), Settings(rounds=1000, deadline=10.0, robust=robust), policy=policy)
    return federation


def dac_asking_peers():
    return Dac(similarity="inverse-loss", score_on="peer")


@pytest.mark.parametrize(("policy", "role"), [(Random, "participant"), (Dac, "participant"), (dac_asking_peers, "observer")])
def test_losses_are_answered_only_if_policy_asks_for_them(policy, role):
    federation = ask_losses(policy, role=role)
    exchange = federation.nodes["a"].exchange
    assert exchange.rejected["not allowed"] == 3
    assert exchange.losses.given == {}


def test_requests_for_losses_of_many_rounds_use_no_memory():
    async def test(federation):
        federation.start("a")
        node, answers = federation.nodes["a"], []

        def on(liar, peer, message, payload):
            if isinstance(message, m.Scored):
                answers.append(message)

        async with Liar(federation, "b", on) as liar:
            for number in range(10):
                liar.send(liar.exchange.peers["a"], m.Score(number, 100 + number), node.me.params.tobytes())
                await liar.peering.until(lambda number=number: len(answers) > number, 5.0)
            assert len(answers) == 10
            assert not node.exchange.peers["b"].scored
            await federation.kill("a")

    play(test, ("a", "b"), Settings(rounds=1000, deadline=10.0, robust="none"), policy=dac_asking_peers)


def test_policy_that_asks_for_losses_must_declare_it():
    class Asking(Local):
        async def round(self, me, peers):
            await peers.remote_losses(peers.ids, me.params)

    with pytest.raises(ConfigurationError, match="asks_scores = True"):
        play(to_the_end, ("a", "b"), Settings(rounds=1, deadline=10.0), policy=Asking)


def test_losses_are_answered_once_per_round():
    exchange = ask_losses(dac_asking_peers).nodes["a"].exchange
    assert exchange.losses.given["b"] <= 2  # the round may have ended in between
    assert exchange.rejected["not allowed"] >= 1


@pytest.mark.slow
def test_coordinator_clips_submissions():
    def poison(liar, peer, message, payload):
        pass

    class Poisoner(CoordinatedFedAvg):
        async def aggregate(self, me, peers, trained):
            return await super().aggregate(me, peers, trained * np.float32(100) if me.id == "e" else trained)

    def error(robust):
        settings = Settings(rounds=6, deadline=10.0, robust=robust)
        federation = play(to_the_end, NAMES, settings, policy=Poisoner)
        return np.mean([federation.watch[name].result["test_mse"] for name in "abcd"])

    assert error("median-clip") * 10 < error("none")


@pytest.mark.slow
def test_participants_clip_assigned_models():
    class Lying(CoordinatedFedAvg):
        def step(self, submissions, state, layout):
            assignments, state = super().step(submissions, state, layout)
            return {id: replace(given, params=given.params * np.float32(50)) for id, given in assignments.items()}, state

    def error(robust):
        federation = play(to_the_end, NAMES, Settings(rounds=6, deadline=10.0, robust=robust), policy=Lying)
        return np.mean([federation.watch[name].metrics[6]["trained"]["test_mse"] for name in NAMES])

    assert error("median-clip") * 10 < error("none")
