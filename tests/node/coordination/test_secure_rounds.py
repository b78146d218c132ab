"""Secure sums between nodes: models as without them, and nothing but sums with the threshold, whoever is lost when."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.settings import Settings, check_policy
from p2pfl.policies import POLICIES, make_policy
from p2pfl.policies.apfl import Apfl
from p2pfl.policies.coordinated import CoordinatedFedAvg, CoordinatedFedProx
from p2pfl.policies.ditto import Ditto
from p2pfl.policies.fedpref import FedPref
from p2pfl.policies.fedrep import FedRep
from p2pfl.policies.per_fedavg import PerFedAvg
from p2pfl.policy import needs_only_mean
from p2pfl.protocols.wire.envelope import OVERHEAD
from tests.support.federation import LATENCY, play

NAMES = ("alice", "bob", "carol", "dave", "erin")
ROUNDS = 4


def settings(**changes):
    return Settings(**{"rounds": ROUNDS, "deadline": 16.0, "secure_sums": True} | changes)


async def to_the_end(federation):
    federation.start()
    await federation.done()


def models(federation):
    return {name: node.me.params for name, node in federation.nodes.items()}


@pytest.mark.parametrize("policy", [CoordinatedFedAvg, Ditto])
def test_models_equal_those_without_secure_sums(policy):
    secure, plain = (play(to_the_end, NAMES, settings(secure_sums=on), policy=policy) for on in (True, False))
    for name in NAMES:
        assert secure.watch[name].weights == plain.watch[name].weights
        assert len(secure.watch[name].weights[ROUNDS]) == len(NAMES)
        np.testing.assert_allclose(models(secure)[name], models(plain)[name], rtol=0, atol=2e-6)
    assert not any(node.exchange.rejected for node in secure.nodes.values())


def test_coordinator_receives_no_model():
    """Every frame of a model's size is twice as large as a model, and no two rounds or members show the same bytes."""
    federation = play(to_the_end, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    for node in federation.nodes.values():
        sent = node.exchange.traffic.as_dict()["sent"]
        assert sent["update"] == 0
        assert sent["submit"] == 0 or sent["submit"] > ROUNDS * 8 * node.me.layout.size


def lose(federation, name, arrives, round):
    """Cut off a member when its masked model of a round is under way, before or after it arrives."""
    cable, size = federation.cable, OVERHEAD + 8 * federation.tasks[name].layout.shared.size
    usual, sent = cable.arrival, []

    def arrival(source, target, bytes, now):
        if (source, bytes) != (name, size):
            return usual(source, target, bytes, now)
        sent.append(now)
        if len(sent) != round:
            return usual(source, target, bytes, now)
        cable.cut.add(name)
        return now + LATENCY if arrives else None

    cable.arrival = arrival


@pytest.mark.parametrize("arrives", [False, True])
def test_member_lost_with_its_masked_model(arrives):
    """Before its masked model arrives it is not in the sum; afterwards it is, without its help."""

    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        (coordinator,) = {node.exchange.election.coordinator for node in federation.nodes.values()}
        lost.append(next(name for name in NAMES if name != coordinator))
        lose(federation, lost[0], arrives, 1)
        await federation.done(*(name for name in NAMES if name not in lost))
        federation.running[lost[0]].cancel()

    lost = []
    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    others = set(NAMES) - set(lost)
    for name in others:
        weights = federation.watch[name].weights
        assert weights[1].keys() == set(NAMES)
        assert weights[2].keys() == (set(NAMES) if arrives else others)
        assert weights[ROUNDS].keys() == others


def test_sum_below_threshold_is_not_opened():
    """With two of five members gone, three are fewer than the four that are needed: all keep their models."""

    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        for name in ("dave", "erin"):
            federation.cable.cut.add(name)
        await federation.done("alice", "bob", "carol")
        for name in ("dave", "erin"):
            federation.running[name].cancel()

    federation = play(test, NAMES, settings(), policy=CoordinatedFedAvg, period=1.0)
    for name in ("alice", "bob", "carol"):
        assert federation.watch[name].weights[ROUNDS] == {name: 1.0}


def test_lower_threshold_opens_with_fewer():
    async def test(federation):
        federation.start()
        await federation.round("alice", 1)
        for name in ("e", "f"):
            federation.cable.cut.add(name)
        await federation.done("alice", "b", "c", "d")
        for name in ("e", "f"):
            federation.running[name].cancel()

    federation = play(test, ["alice", *"bcdef"], settings(secure_threshold=4), policy=CoordinatedFedAvg, period=1.0)
    assert federation.watch["alice"].weights[ROUNDS].keys() == {"alice", "b", "c", "d"}


# Settings


def test_policies_that_need_only_the_mean():
    found = {name for name in POLICIES if needs_only_mean(make_policy(name, {}))}
    assert found == {"coordinated-fedavg", "coordinated-fedprox", "ditto", "apfl", "per-fedavg", "fedrep"}


@pytest.mark.parametrize("policy", [CoordinatedFedAvg, CoordinatedFedProx, Ditto, Apfl, PerFedAvg, FedRep])
def test_policy_that_needs_only_the_mean_has_secure_sums(policy):
    check_policy(settings(), policy())


def test_policy_that_compares_models_refuses_secure_sums():
    with pytest.raises(
        ConfigurationError, match="the policy FedPref compares the models that are submitted; secure sums are"
    ):
        check_policy(settings(), FedPref())
    with pytest.raises(ConfigurationError, match="the policy FedAvg has no coordinator; secure sums are"):
        check_policy(settings(), make_policy("fedavg", {}))


def test_subclass_does_not_inherit_the_mean():
    class Own(CoordinatedFedAvg):
        pass

    with pytest.raises(ConfigurationError, match="the policy Own compares the models"):
        check_policy(settings(), Own())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"robust": "clip-loss"}, 'secure sums hide the models that a robust rule compares; set robust = "none"'),
        ({"secure_sums": False, "secure_threshold": 3}, "secure_threshold needs secure_sums = true"),
        ({"secure_threshold": -1}, "secure_threshold must be 0 or more"),
    ],
)
def test_settings_that_contradict_secure_sums_are_refused(changes, said):
    with pytest.raises(ConfigurationError, match=said):
        settings(**changes).check()
