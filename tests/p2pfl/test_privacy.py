"""Privacy budgets: the accountant against published values, the draws of steps, the ledger, and what policies release."""

import re
from math import log, log1p

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from scipy.stats import kstest, norm

from p2pfl.algorithms.ggc import DecideGreedily, Sets
from p2pfl.algorithms.group_statistics import CountGroups
from p2pfl.errors import ConfigurationError
from p2pfl.policies import POLICIES, make_policy
from p2pfl.policies.random import Random
from p2pfl.policy import PlannedTraining, planned_training
from p2pfl.privacy import (
    BLOCK,
    ORDERS,
    Privacy,
    PrivacyTracker,
    StepDraws,
    check_private_policy,
    draw_noise,
    draw_normals,
    epsilon_by_renyi,
    epsilon_of,
    noise_for,
    plan_privacy,
    steps_of,
)
from p2pfl.queries import Evaluate, Loss, Mean, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Lookahead, Steps
from tests.support.pages import DOCS

START = np.zeros(3, np.float32)
PLANNED = {
    **{"ditto": 20, "fedrep": 110, "skiptrain": 6, "dpfl": 60},
    **dict.fromkeys(("random", "dac", "fedavg", "cfl", "sgp"), 10),
}


# The accountant


def by_moments(rate, noise, steps, delta):
    """Return epsilon by Renyi divergences with the conversion of 2017, which the moments accountant of Abadi et al. has."""
    found = []
    for order in ORDERS:
        accountant = RdpAccountant([order])
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
        divergence = accountant.get_epsilon(delta) - log1p(-1 / order) + log(delta * order) / (order - 1)
        found.append(divergence + log(1 / delta) / (order - 1))
    return min(found)


MNIST = 60_000


@pytest.mark.parametrize(
    ("bound", "published", "rate", "noise", "steps"),
    [
        (by_moments, 1.26, 0.01, 4.0, 10_000),  # Abadi et al. 2016, section 3.2
        (by_moments, 1.18, 250 / MNIST, 1.3, 3600),  # TensorFlow Privacy, tutorial on classification
        (epsilon_by_renyi, 7.32911117143, 0.04, 1.5, 2250),  # Opacus, test of RDPAccountant
        (epsilon_of, 6.777395712150674, 0.04, 1.5, 2250),  # Opacus, test of PRVAccountant
    ],
)
def test_accountant_agrees_with_published_values(bound, published, rate, noise, steps):
    assert bound(rate, noise, steps, 1e-5) == pytest.approx(published, rel=0.01)


def test_epsilon_is_below_the_looser_bound_and_grows_with_the_steps():
    assert epsilon_of(0.1, 1.0, 0, 1e-5) == 0
    spent = [epsilon_of(0.1, 1.0, steps, 1e-5) for steps in (1, 10, 100)]
    assert spent == sorted(spent)
    assert all(found < epsilon_by_renyi(0.1, 1.0, steps, 1e-5) for found, steps in zip(spent, (1, 10, 100), strict=True))


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(8.0, 0.25, 40), (2.0, 0.01, 300), (1.0, 1.0, 10)])
def test_noise_is_the_least_that_keeps_the_budget(epsilon, rate, steps):
    noise = noise_for(epsilon, 1e-5, rate, steps)
    assert 0.99 * epsilon < epsilon_of(rate, noise, steps, 1e-5) <= epsilon


def test_plan_without_steps_or_without_enough_noise_is_refused():
    with pytest.raises(ConfigurationError, match="planned for a number of rounds with trainings, but none is planned"):
        plan_privacy(Privacy(epsilon=8), PlannedTraining(0), 60, 16)
    with pytest.raises(ConfigurationError, match=r"raise privacy\.epsilon, or plan fewer rounds"):
        plan_privacy(Privacy(epsilon=1e-9, delta=1e-14), PlannedTraining(5), 60, 16)
    for wrong, message in (({"delta": 1.0}, "delta"), ({"clip": 0.0}, "clip"), ({"epsilon": -1.0}, "epsilon")):
        with pytest.raises(ConfigurationError, match=rf"privacy\.{message} must be"):
            Privacy(**wrong).check()


# Draws


def draws(round=1, n=1000, batch_size=100, epochs=40, name="a"):
    return StepDraws(RandomStreams(0, name), Train(START, round, epochs), n, batch_size)


def test_samples_enter_each_step_independently():
    taken = np.zeros((400, 1000), bool)
    drawn = draws()
    for row in taken:
        row[drawn.batch()] = True
    counts = taken.sum(axis=1)  # binomial: fixed batches would have no variance, a shuffled epoch none over its steps
    assert counts.mean() == pytest.approx(100, abs=5 * np.sqrt(90 / 400))
    assert counts.var() == pytest.approx(90, rel=0.4)
    of_each = taken.sum(axis=0)
    assert of_each.var() == pytest.approx(400 * 0.1 * 0.9, rel=0.25)
    assert abs(np.corrcoef(taken[:-1].ravel(), taken[1:].ravel())[0, 1]) < 5 / np.sqrt(taken.size)


def test_draws_depend_on_node_round_and_purpose_alone():
    same = draws().batch()
    assert np.array_equal(same, draws().batch())
    assert not any(np.array_equal(same, other.batch()) for other in (draws(round=2), draws(name="b")))
    assert draws(n=5).expected == 5
    assert np.array_equal(draws(n=5).batch(), np.arange(5))


@pytest.mark.parametrize(("nodes", "size"), [(1, 4810), (7, 4810), (60, 4811), (3, BLOCK + 1)])
def test_noise_of_many_nodes_has_the_bits_of_each(nodes, size):
    together, alone = np.empty((2, nodes, size), np.float32)
    scales = [0.1 + k for k in range(nodes)]
    many, each = ([draws(name=str(k)) for k in range(nodes)] for _ in range(2))
    for _ in range(2):
        draw_noise(many, together, scales)
        for one, row, scale in zip(each, alone, scales, strict=True):
            one.noise(row, scale)
        assert np.array_equal(together, alone)


def test_number_of_steps_follows_from_the_query():
    assert steps_of(Train(START, 1, 3), 60, 16) == 12
    assert steps_of(Train(START, 1, 1, rule=Steps(2)), 60, 16) == 2
    assert steps_of(Train(START, 1, 1, rule=Steps(9)), 60, 16) == 4
    assert steps_of(Train(START, 1, 2), 5, 16) == 2


@pytest.mark.parametrize("size", [1, 2, 7, 100_001])
def test_normal_numbers_are_those_of_the_distribution(size):
    values = np.empty(size, np.float32)
    draw_normals(np.random.default_rng(1), values, 3.0)
    assert np.isfinite(values).all()
    if size < 100:
        return
    values /= 3
    assert kstest(values, "norm").pvalue > 0.01
    assert (np.abs(values) > 3).mean() == pytest.approx(2 * norm.sf(3), rel=0.2)
    assert (np.abs(values) > 4).sum() in range(1, 16)  # 6.3 are expected
    pairs = values[: size // 2], values[-(size // 2) :]  # radius and angle give one number of each half
    assert abs(np.corrcoef(*pairs)[0, 1]) < 5 / np.sqrt(size / 2)
    assert abs(np.corrcoef(*np.square(pairs))[0, 1]) < 5 / np.sqrt(size / 2)


def test_smallest_and_greatest_words_give_finite_numbers():
    class Words:
        def __init__(self, word):
            self.bit_generator = self
            self._word = word

        def random_raw(self, size):
            return np.full(size, self._word, np.uint64)

    for word, greatest in ((0, 7.54), (2**64 - 1, 0.01)):
        values = np.empty(4, np.float32)
        draw_normals(Words(word), values, 1.0)
        assert np.isfinite(values).all()
        assert np.abs(values).max() == pytest.approx(greatest, abs=0.01)


# The ledger


def tracker(**options):
    return PrivacyTracker(plan_privacy(Privacy(epsilon=8, **options), PlannedTraining(3), 60, 16), 16)


def test_tracker_charges_before_a_training_and_refuses_what_is_beyond():
    found = tracker()
    assert found.epsilon == 0
    for steps in (4, 8, 12):
        assert found.admit(Train(START, 1), 60).mechanism == found.plan.mechanism
        assert found.steps == steps
    assert 7.9 < found.epsilon <= 8
    assert found.admit(Train(START, 1, rule=Steps(1)), 60) is None
    assert (found.steps, found.refused, found.ended) == (12, 1, False)
    assert found.refusal == "the privacy budget is spent: 12 of 12 steps"
    stopping = tracker(when_spent="stop")
    assert stopping.admit(Train(START, 1, 4), 60) is None
    assert (stopping.steps, stopping.ended) == (0, True)


def test_queries_that_read_data_are_refused():
    greedy = DecideGreedily(Sets(START, 1, START, 1), [], [], np.empty(0), 1)
    for query in (Loss([START], "train"), Loss([START], "test"), CountGroups(START), Evaluate([START], ["validation"])):
        for validation in ("private", "public"):
            with pytest.raises(ConfigurationError, match=r"reads the .* data and is refused under a privacy budget"):
                tracker(validation=validation).check(query)
    for query in (Loss([START]), greedy):
        with pytest.raises(ConfigurationError, match=r'declare them with privacy.validation = "public" if they are'):
            tracker().check(query)
        tracker(validation="public").check(query)
    with pytest.raises(ConfigurationError, match="the update rule Lookahead"):
        tracker().check(Train(START, 1, rule=Lookahead(0.1)))
    tracker().check(Mean([START], [1.0]))


# Policies


def test_table_of_the_documentation_is_that_of_the_policies():
    text = (DOCS / "explanation" / "privacy.md").read_text(encoding="utf-8")
    said = {
        name: (decision, reason)
        for names, decision, reason in re.findall(
            r"^\| (`[^|]+) \| (private|with public validation data|refused) \| ([^|]*) \|", text, re.M
        )
        for name in re.findall(r"`([a-z-]+)`", names)
    }
    found = {}
    for name in POLICIES:
        planned = planned_training(make_policy(name, {}), 10)
        if isinstance(planned, str):
            found[name] = ("refused", planned)
        else:
            found[name] = ("with public validation data" if planned.validates else "private", said[name][1])
    assert said == found


@pytest.mark.parametrize(("name", "passes"), PLANNED.items())
def test_policies_plan_their_trainings(name, passes):
    assert planned_training(make_policy(name, {}), 10).passes == passes


def test_options_change_what_a_policy_plans():
    assert planned_training(make_policy("dsgd", {"steps": 3}), 10) == PlannedTraining(0, 30)
    assert planned_training(make_policy("fedavg", {"ft": "from-best"}), 10) == PlannedTraining(12, validates=True)
    assert "set policy.similarity to another measure" in planned_training(
        make_policy("dac", {"similarity": "inverse-loss"}), 1
    )


def test_policy_that_does_not_say_what_leaves_a_node_is_refused():
    class Similar(Random):  # as in README.md: it looks at losses, and does not say so
        pass

    with pytest.raises(ConfigurationError, match=r"the policy Similar is refused .* does not say what leaves a node"):
        check_private_policy(Privacy(epsilon=8), Similar(), 10)
    with pytest.raises(ConfigurationError, match="the policy Dpfl selects by validation data"):
        check_private_policy(Privacy(epsilon=8), make_policy("dpfl", {}), 10)
    assert check_private_policy(Privacy(epsilon=8, validation="public"), make_policy("dpfl", {}), 10).validates
