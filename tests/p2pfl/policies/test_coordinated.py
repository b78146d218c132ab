"""Coordinated policies: their steps by hand, and their runs on plain dictionaries."""

import json

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Layout
from p2pfl.policies import make_policy
from p2pfl.policies.cfl import Cfl
from p2pfl.policies.clusters import credible, extras_of, gather, read
from p2pfl.policies.coordinated import CoordinatedFedAvg, CoordinatedFedProx, FedProx
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policies.fedpref import FedPref
from p2pfl.policies.local import Local
from p2pfl.policies.matfl import MaTfl, votes
from p2pfl.policies.pfedgraph import PFedGraph
from p2pfl.policy import Assignment, Budget, Coordinated, Merge, Submission
from p2pfl.task import Part, make_task
from p2pfl.testing import run_in_memory

FLAT = Layout((("w", (2,)),), 2)
NAMES = [f"node-{k}" for k in range(6)]  # three clusters of concept-shift: 0 and 1, 2 and 3, 4 and 5
TASKS = {name: make_task("concept-shift", {}, Part(k, 6), 0) for k, name in enumerate(NAMES)}
COORDINATED = {
    "coordinated-fedavg": CoordinatedFedAvg,
    "coordinated-fedprox": CoordinatedFedProx,
    "cfl": lambda **options: Cfl(epsilon_1=0.7, epsilon_2=0.3, relative=True, **options),
    "matfl": lambda **options: MaTfl(neighbours=2, **options),
    "fedpref": lambda **options: FedPref(epsilon=0.7, relative=True, patience=1, **options),
}


def params(*values):
    return np.array(values, np.float32)


def submission(id, trained, start=(0, 0), n=1, round=1, previous=None):
    return Submission(id, round, params(*trained), n, {}, previous or {}, params(*start))


def play(make, rounds=6, **options):
    policies = {name: make() for name in NAMES}
    return policies, *run_in_memory(policies, TASKS, rounds, **options)


def bits(assignments):
    return {
        id: (a.params.tobytes(), dict(a.weights), {name: array.tobytes() for name, array in a.extras.items()})
        for id, a in assignments.items()
    }


def as_text(state):
    """Return a state in a comparable form."""
    return {
        "members": {id: (member.cluster, member.start.tobytes()) for id, member in state["members"].items()},
        "clusters": state["clusters"],
    }


def clusters(state):
    found = {}
    for id, member in state["members"].items():
        found.setdefault(member.cluster, []).append(id)
    return found


# FedAvg and FedProx


def test_fedavg_step_weights_by_samples_in_order_of_ids():
    there = [submission("b", [3, 0], n=3), submission("a", [1, 4], n=1)]
    assignments, state = CoordinatedFedAvg().step(there, {}, FLAT)
    assert list(assignments) == ["a", "b"]
    for assignment in assignments.values():
        assert assignment.params.tolist() == [2.5, 1.0]
        assert assignment.weights == {"a": 0.25, "b": 0.75}
    assert state == {}


@pytest.mark.slow
@pytest.mark.parametrize("ft", ["", "replace-last", "from-best"])
@pytest.mark.parametrize(("gossip", "coordinated"), [(FedAvg, CoordinatedFedAvg), (FedProx, CoordinatedFedProx)])
def test_coordinated_fedavg_equals_gossip_bit_for_bit(gossip, coordinated, ft):
    _, one, history = play(lambda: gossip(ft=ft))
    _, other, others = play(lambda: coordinated(ft=ft))
    for name in NAMES:
        assert one[name].params.tobytes() == other[name].params.tobytes()
        assert [merges[name].weights for merges in history] == [merges[name].weights for merges in others]


@pytest.mark.slow
def test_cfl_without_splits_equals_fedavg_bit_for_bit():
    _, one, _ = play(CoordinatedFedAvg)
    _, other, _ = play(lambda: Cfl(epsilon_1=0.0))
    assert all(one[name].params.tobytes() == other[name].params.tobytes() for name in NAMES)


# All policies


@pytest.mark.parametrize("name", COORDINATED)
def test_step_ignores_order_of_submissions(name):
    policy, rng = COORDINATED[name](), np.random.default_rng(1)
    there = [submission(f"n{k}", rng.normal(size=2), rng.normal(size=2), n=k + 1) for k in range(7)]
    first, state = policy.step(there, {}, FLAT)
    for _ in range(5):
        again, other = policy.step([there[k] for k in rng.permutation(7)], {}, FLAT)
        assert list(again) == list(first)
        assert bits(again) == bits(first)
        assert not state or as_text(other) == as_text(state)


@pytest.mark.parametrize("name", COORDINATED)
def test_step_is_pure(name):
    policy, rng = COORDINATED[name](), np.random.default_rng(2)
    there = [submission(f"n{k}", rng.normal(size=2)) for k in range(5)]
    _, state = policy.step(there, {}, FLAT)
    before = repr(state), [s.params.tobytes() for s in there], repr(policy)
    first, _ = policy.step(there, state, FLAT)
    again, _ = policy.step(there, state, FLAT)
    assert bits(first) == bits(again)
    assert (repr(state), [s.params.tobytes() for s in there], repr(policy)) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", COORDINATED)
def test_absent_participant_is_left_out_and_keeps_own_model(name):
    _, cast, history = play(COORDINATED[name], absent={1: ["node-3"], 2: ["node-0", "node-3"]})
    assert history[0]["node-3"].weights == {"node-3": 1.0}
    assert history[1]["node-0"].weights == {"node-0": 1.0}
    for round, gone in ((0, {"node-3"}), (1, {"node-0", "node-3"})):
        for id in set(NAMES) - gone:
            assert not gone & {other for other, weight in history[round][id].weights.items() if weight}
            assert sum(history[round][id].weights.values()) == pytest.approx(1)
    assert any("node-3" in history[2][id].weights for id in NAMES if id != "node-3")  # present again in the next round
    assert all(np.isfinite(actor.params).all() for actor in cast.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", COORDINATED)
def test_fine_tuning_replaces_the_last_aggregation(name):
    _, plain, _ = play(COORDINATED[name], rounds=3)
    _, tuned, history = play(lambda: COORDINATED[name](ft="replace-last"), rounds=3)
    assert all(merge.weights == {id: 1.0} for id, merge in history[-1].items())
    assert all(len(merge.weights) > 1 for merge in history[0].values())
    assert any(plain[id].params.tobytes() != tuned[id].params.tobytes() for id in NAMES)


@pytest.mark.parametrize("name", COORDINATED)
def test_restored_policy_has_same_previous_extras(name):
    policies, *_ = play(COORDINATED[name], rounds=4)
    restored = COORDINATED[name]()
    restored.restore(json.loads(json.dumps(policies["node-2"].state() | {"best": ""})) | {"best": b""})
    assert restored.previous.keys() == policies["node-2"].previous.keys()
    for key, array in policies["node-2"].previous.items():
        assert restored.previous[key].dtype == array.dtype
        assert restored.previous[key].tobytes() == array.tobytes()


@pytest.mark.parametrize("name", COORDINATED)
def test_assignment_counts_as_one_model_in_the_budget(name):
    _, cast, _ = play(COORDINATED[name], rounds=3, budget=Budget(models=1))
    assert [cast[id].budget_tracker.round_models for id in NAMES] == [0, 3, 3, 3, 3, 3]  # the first one coordinates


def test_make_policy_returns_coordinated_policies():
    for name in COORDINATED:
        assert isinstance(make_policy(name, {}), Coordinated)
    assert not isinstance(Local(), Coordinated)
    assert not isinstance(FedAvg(), Coordinated)


def test_extras_of_a_submission_reach_the_step():
    class ByWish(CoordinatedFedAvg):
        """Every node gets the model of the node that it asks for."""

        async def aggregate(self, me, peers, trained):
            wish = (NAMES.index(me.id) + me.round) % len(NAMES)
            assignment = await peers.submit(trained, extras={"wish": np.array([wish])})
            return Merge(assignment.params, assignment.weights)

        def step(self, submissions, state, layout):
            models = {s.sender: s.params for s in submissions}
            wishes = {s.sender: NAMES[int(s.extras["wish"][0])] for s in submissions}
            return {id: Assignment(models[wish], {wish: 1.0}) for id, wish in wishes.items()}, {}

    _, _, history = play(ByWish, rounds=2)
    assert [history[1][name].weights for name in NAMES] == [{NAMES[(k + 2) % 6]: 1.0} for k in range(6)]


# FedPref


def test_fedpref_step_by_hand():
    """Updates from the mean of the starts, 0: a and b have similarity 0.6, c has none."""
    there = [submission("a", [1, 0]), submission("b", [1.2, 1.6]), submission("c", [-5, 0])]
    assignments, state = FedPref(ratio=1.0, epsilon=0.0).step(there, {}, FLAT)
    assert assignments["a"].weights == pytest.approx({"a": 1 / 1.6, "b": 0.6 / 1.6, "c": 0.0})
    assert assignments["a"].params == pytest.approx([(1 + 0.6 * 1.2) / 1.6, 0.6 * 1.6 / 1.6])
    assert assignments["c"].params.tolist() == [-5, 0]
    assert clusters(state) == {"": ["a", "b", "c"]}
    figures = state["clusters"][""]
    assert (figures.round, figures.streak) == (1, 0)
    assert figures.change == pytest.approx(np.hypot(2.8, 1.6) / 3)  # the mean moves from (0, 0) to (-2.8, 1.6) / 3
    assert figures.update == pytest.approx(5)


def test_fedpref_compares_bias_with_its_weights():
    """(1, 0 | .1) and (0, 1 | .1) have 0.01 / 1.01; a separate layer for the bias would give (0 + 1) / 2."""
    layout = Layout((("a.weight", (1, 2)), ("a.bias", (1,))), 3)
    there = [submission("a", [1, 0, 0.1], [0, 0, 0]), submission("b", [0, 1, 0.1], [0, 0, 0])]
    assignments, _ = FedPref(ratio=1.0, epsilon=0.0).step(there, {}, layout)
    alike = 0.01 / 1.01
    assert assignments["a"].weights == pytest.approx({"a": 1 / (1 + alike), "b": alike / (1 + alike)})


def test_fedpref_zero_updates_keep_models_and_affect_no_others():
    there = [submission("a", [0, 0]), submission("b", [0, 0]), submission("c", [1, 0]), submission("d", [2, 0])]
    assignments, _ = FedPref(ratio=1.0, epsilon=0.0).step(there, {}, FLAT)
    assert assignments["a"].weights == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    assert assignments["c"].weights == assignments["d"].weights == {"a": 0.0, "b": 0.0, "c": 0.5, "d": 0.5}
    assert assignments["d"].params.tolist() == [1.5, 0]


def test_fedpref_with_all_weights_clipped_keeps_own_models():
    there = [submission("a", [1, 0]), submission("b", [1.2, 1.6]), submission("c", [-5, 0])]
    assignments, _ = FedPref(ratio=1.0, epsilon=0.0, min_similarity=0.6001).step(there, {}, FLAT)
    for s in there:
        assert assignments[s.sender].weights == {other.sender: float(other is s) for other in there}
        assert assignments[s.sender].params.tolist() == s.params.tolist()


def test_fedpref_splits_two_members_but_never_one():
    policy = FedPref(ratio=1.0, epsilon=100.0, patience=1)
    there = [submission("a", [1, 0]), submission("b", [1, 0])]  # even if they are equal
    assignments, state = policy.step(there, {}, FLAT)
    assert clusters(state) == {"0": ["a"], "1": ["b"]}
    assert assignments["a"].weights == {"a": 1.0}
    for _ in range(3):
        assignments, state = policy.step([submission("a", [2, 2])], state, FLAT)
        assert clusters(state) == {"0": ["a"], "1": ["b"]}  # an absent member keeps its cluster
        assert assignments["a"].params.tolist() == [2, 2]
    alone, state = policy.step([submission("a", [3, 4])], {}, FLAT)
    assert (alone["a"].params.tolist(), alone["a"].weights, clusters(state)) == ([3, 4], {"a": 1.0}, {"": ["a"]})


def test_fedpref_measures_updates_from_mean_start():
    there = [submission("a", [1, 1], start=(0, 2)), submission("b", [3, 1], start=(4, 0))]
    assignments, _ = FedPref(ratio=1.0, epsilon=0.0).step(there, {}, FLAT)  # the mean is (2, 1): opposite directions
    assert assignments["a"].weights == {"a": 1.0, "b": 0.0}
    together, _ = FedPref(ratio=1.0, epsilon=0.0, min_similarity=-1.0, weighting=False).step(there, {}, FLAT)
    assert together["a"].params.tolist() == together["b"].params.tolist() == [2, 1]


def rest(policy, rounds, state=None):
    """Steps in which a, b and c, d pull equally in opposite directions, so that the mean stays at 0."""
    states, state = [], state or {}
    for round in range(1, rounds + 1):
        there = [
            submission(id, np.add(start, pull), start, round=round)
            for id, start, pull in zip("abcd", [[0, 0]] * 4, [[1, 0.1], [1, -0.1], [-1, 0.1], [-1, -0.1]], strict=True)
        ]
        assignments, state = policy.step(there, state, FLAT)
        states.append(state)
    return assignments, states


def test_fedpref_splits_cluster_after_patience_rounds():
    for patience in (1, 2, 3):
        _, states = rest(FedPref(epsilon=0.01, patience=patience), 4)
        assert [len(clusters(state)) for state in states[:patience]] == [1] * (patience - 1) + [2]
        assert clusters(states[patience - 1]) == {"0": ["a", "b"], "1": ["c", "d"]}


def test_fedpref_large_change_resets_patience():
    policy = FedPref(epsilon=0.01, patience=2)
    _, (quiet,) = rest(policy, 1)
    assert quiet["clusters"][""].streak == 1
    _, loud = policy.step([submission(id, [1, 1], round=2) for id in "abcd"], quiet, FLAT)
    assert loud["clusters"][""].streak == 0
    _, states = rest(policy, 2, loud)
    assert [len(clusters(state)) for state in states] == [1, 2]


def test_fedpref_split_separates_aggregation():
    assignments, _ = rest(FedPref(epsilon=0.01, patience=1, min_similarity=-1.0), 1)
    assert set(assignments["a"].weights) == {"a", "b"}
    assert assignments["a"].params[0] == pytest.approx(1)


@pytest.mark.parametrize("patience", [1, 2])
def test_fedpref_splits_down_to_single_members(patience):
    policy, state = FedPref(epsilon=100.0, patience=patience), {}
    sizes_by_round = [[4]] * (patience - 1) + [[2, 2]] * patience + [[1, 1, 1, 1]] * 3
    for sizes in sizes_by_round:
        there = [submission(id, pull) for id, pull in zip("abcd", [[1, 0.1], [1, -0.1], [-1, 0.1], [-1, -0.1]], strict=True)]
        assignments, state = policy.step(there, state, FLAT)
        assert sorted(len(members) for members in clusters(state).values()) == sizes
    assert all(assignments[s.sender].params.tolist() == s.params.tolist() for s in there)


def test_fedpref_min_progress_keeps_converged_clusters():
    policy, state = FedPref(epsilon=100.0, patience=2, min_progress=0.5), {}
    for round, far in ((1, 1.0), (2, 0.4), (3, 0.4), (4, 0.6)):
        there = [submission(id, [far * pull, 0], round=round) for id, pull in zip("abcd", [1, 1, -1, -1], strict=True)]
        _, state = policy.step(there, state, FLAT)
        assert len(clusters(state)) == (2 if round == 4 else 1), round


@pytest.mark.parametrize(("ramp_up", "streaks"), [(False, [1, 2, 0, 1]), (True, [0, 0, 0, 1])])
def test_fedpref_ramp_up_ignores_rounds_before_learning(ramp_up, streaks):
    policy, state, found = FedPref(epsilon=1.0, patience=9, ramp_up=ramp_up), {}, []
    for round, change in enumerate((0.0, 0.5, 3.0, 0.9), 1):
        _, state = policy.step([submission(id, [change, 0], round=round) for id in "ab"], state, FLAT)
        found.append(state["clusters"][""].streak)
    assert found == streaks


def test_fedpref_min_members_keeps_small_clusters():
    for least, sizes in ((4, [2, 2]), (5, [4])):
        _, states = rest(FedPref(epsilon=0.01, patience=1, min_members=least), 3)
        assert sorted(len(members) for members in clusters(states[-1]).values()) == sizes


def test_fedpref_relative_epsilon_scales_with_greatest_change():
    policy, state, streaks = FedPref(epsilon=0.5, relative=True, patience=9), {}, []
    for round, change in enumerate((1.0, 4.0, 2.1, 2.0, 0.1, 3.0), 1):
        _, state = policy.step([submission(id, [change, 0], round=round) for id in "ab"], state, FLAT)
        streaks.append(state["clusters"][""].streak)
    assert streaks == [0, 0, 0, 1, 2, 0]


def test_fedpref_components_can_be_switched_off():
    pulls = dict(zip("abcd", [[1, 0.1], [1, -0.1], [-1, 0.1], [-1, -0.1]], strict=True))
    there = [submission(id, pull) for id, pull in pulls.items()]
    weighted, state = FedPref(ratio=1.0, epsilon=100.0, patience=1, clustering=False).step(there, {}, FLAT)
    assert clusters(state) == {"": list("abcd")}
    assert weighted["a"].weights["a"] > weighted["a"].weights["b"] > weighted["a"].weights["c"] == 0
    clustered, state = FedPref(epsilon=100.0, patience=1, weighting=False).step(there, {}, FLAT)
    assert clusters(state) == {"0": ["a", "b"], "1": ["c", "d"]}
    assert clustered["a"].weights == {"a": 0.5, "b": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_fedpref_recovers_the_groups_of_concept_shift(seed):
    names = [f"node-{k}" for k in range(9)]
    tasks = {name: make_task("concept-shift", {}, Part(k, 9), seed) for k, name in enumerate(names)}
    policies = {name: FedPref(epsilon=0.5, relative=True, patience=2, min_progress=0.3) for name in names}
    run_in_memory(policies, tasks, 25, seed=seed)
    found = {name: read(policy.previous)[0] for name, policy in policies.items()}
    groups = {name: tasks[name].public_info["group"] for name in names}
    pairs = [(a, b) for a in names for b in names if a < b]
    assert all((found[a] == found[b]) == (groups[a] == groups[b]) for a, b in pairs), found


# The state, kept and rebuilt


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedpref", "cfl"])
@pytest.mark.parametrize("absent", [{}, {3: ["node-1"], 4: ["node-1", "node-4"], 6: ["node-0"]}])
def test_state_rebuilt_from_submissions_equals_kept_state(name, absent):
    """A run whose coordinators forget their state after every step is the same, bit for bit."""

    class Forgetful:
        def __init__(self):
            self.policy = COORDINATED[name]()
            self.steps = []

        def __getattr__(self, attribute):
            return getattr(self.policy, attribute)

        def step(self, submissions, state, layout):
            assignments, kept = self.policy.step(submissions, {}, layout)
            self.steps.append(kept)
            return assignments, {}

    policies, forgetful, history = play(Forgetful, rounds=8, absent=absent)
    _, remembering, others = play(COORDINATED[name], rounds=8, absent=absent)
    for id in NAMES:
        assert forgetful[id].params.tobytes() == remembering[id].params.tobytes()
        assert [merges[id].weights for merges in history] == [merges[id].weights for merges in others]
    rebuilt, handed_on = policies["node-0"].steps[-1], remembering["node-0"].coordinator.state
    assert as_text(rebuilt) == as_text(handed_on)
    assert len(clusters(rebuilt)) > 1  # there was something to rebuild


def test_fedpref_needs_start_only_without_state():
    there = [submission("a", [1, 0]), submission("b", [0, 1])]
    policy = FedPref(ratio=1.0)
    first, state = policy.step(there, {}, FLAT)
    again = [Submission(id, 2, params(2, 2), 1, {}, first[id].extras, None) for id in "ab"]
    complete = [replace(s, start=first[s.sender].params) for s in again]
    assert bits(policy.step(again, state, FLAT)[0]) == bits(policy.step(complete, {}, FLAT)[0])
    with pytest.raises(ValueError, match="the submission of a lacks the model that the round began with"):
        policy.step(again, {}, FLAT)


def split_without(missing):
    """The policy and the submissions after a split into a, b and c, d that some members have missed."""
    policy = FedPref(epsilon=0.01, patience=1)
    before = {"cluster": np.zeros(0, np.int64), "figures": np.array([0, 0, 0, 0], np.float64)}
    assignments, _ = rest(policy, 1)
    pulls = dict(zip("abcd", [[1, 0.1], [1, -0.1], [-1, 0.1], [-1, -0.1]], strict=True))
    return policy, [
        Submission(
            id, 2, params(*np.add(pulls[id], pulls[id])), 1, {}, before if id in missing else assignments[id].extras,
            params(*pulls[id]) if id in missing else assignments[id].params,
        )
        for id in "abcd"
    ]  # fmt: skip


@pytest.mark.parametrize("missing", ["b", "bd", "ad", "c"])
def test_successor_completes_split_that_some_members_missed(missing):
    policy, there = split_without(missing)
    _, state = policy.step(there, {}, FLAT)
    assert {name[:1]: members for name, members in clusters(state).items()} == {"0": ["a", "b"], "1": ["c", "d"]}


def test_newcomer_joins_the_most_similar_cluster():
    policy, there = split_without("")
    assignments, state = policy.step([*there, submission("e", [-1, 0], round=2)], {}, FLAT)
    assert clusters(state) == {"0": ["a", "b"], "1": ["c", "d", "e"]}
    assert set(assignments["e"].weights) == {"c", "d", "e"}


def test_cluster_extras_of_participants_are_validated():
    good = {"cluster": np.array([0, 1]), "figures": np.array([3.0, 1.0, 0.5, 2.0])}
    assert read(good)[0] == "01"
    (cluster,) = gather([submission("a", [1, 1], previous=good, round=4)], {}, [slice(None)], 1.0)
    assert {name: array.tolist() for name, array in extras_of(cluster).items()} == {k: v.tolist() for k, v in good.items()}
    bad = [{"cluster": np.array([2])}, {"cluster": np.zeros(1025, np.int64)}]
    bad += [{"figures": np.array(figures)} for figures in ([1, 1, 1], [1, 1, np.nan, 1], [1, -1, 1, 1])]
    for wrong in [good | other for other in bad] + [{"cluster": good["cluster"]}]:
        with pytest.raises(ValueError, match=r"has no cluster|zeros and ones|must be 0 or more"):
            read(wrong)
        assert not credible(wrong, 3)
    assert [credible(good, round) for round in (2, 3)] == [False, True]
    with pytest.raises(ValueError, match="the submission of a in round 3 has figures of round 3"):
        gather([submission("a", [1, 1], previous=good, round=3)], {}, [slice(None)], 1.0)


@pytest.mark.parametrize("policy", [Cfl, FedPref])
def test_participant_ignores_invalid_assigned_extras(policy):
    """A lying coordinator can assign anything. Invalid extras sent back would end the node of its successor."""

    def lying():
        made = policy()
        honest = made.step
        made.step = lambda *given: (
            {id: replace(each, extras={"cluster": np.array([2])}) for id, each in honest(*given)[0].items()},
            {},
        )
        return made

    policies = play(lying, rounds=2)[0]
    assert all(made.previous == {} for made in policies.values())


@pytest.mark.parametrize("policy", [Cfl, FedPref])
def test_participants_that_go_back_forget_later_clusters(policy):
    policies, *_ = play(policy, rounds=4)
    run_in_memory(policies, TASKS, 2)
    assert {read(each.previous)[1].round for each in policies.values()} <= {0, 1, 2}


@pytest.mark.parametrize("policy", [CoordinatedFedAvg, MaTfl, PFedGraph, Cfl])
def test_participant_ignores_extras_with_other_names(policy):
    def lying():
        made = policy()
        honest = made.step

        def step(*given):
            assignments, state = honest(*given)
            return {id: replace(a, extras=a.extras | {"junk": np.zeros(4)}) for id, a in assignments.items()}, state

        made.step = step
        return made

    assert all(made.previous == {} for made in play(lying, rounds=2)[0].values())


def test_gather_uses_the_newest_cluster_figures():
    extras = [{"cluster": np.zeros(0, np.int64), "figures": np.array([round, round, 0.0, 0.0])} for round in (1, 3, 2)]
    there = [submission(id, [1, 1], previous=previous, round=4) for id, previous in zip("abc", extras, strict=True)]
    (cluster,) = gather(there, {}, [slice(None)], 1.0)
    assert (cluster.figures.round, cluster.figures.streak) == (3, 3)


def test_assigned_extras_survive_a_restart():
    assigned = {
        "floats": np.array([[0.5, np.nan]], np.float32),
        "numbers": np.array([2**64 - 1], np.uint64),
        "none": np.zeros((0, 2), np.int64),
        "one": np.array(3.0),
    }
    policy, again = CoordinatedFedAvg(), CoordinatedFedAvg()
    policy.previous = assigned
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(policy.state())))
    for name, array in assigned.items():
        assert (again.previous[name].dtype, again.previous[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(again.previous[name], array)


# CFL


def test_cfl_splits_when_mean_is_small_and_members_are_not():
    pulls = dict(zip("abcd", [[1, 0.1], [1, -0.1], [-1, 0.1], [-1, -0.1]], strict=True))
    there = [submission(id, pull) for id, pull in pulls.items()]
    assignments, state = Cfl(epsilon_1=0.1, epsilon_2=0.5).step(there, {}, FLAT)
    assert clusters(state) == {"0": ["a", "b"], "1": ["c", "d"]}
    assert assignments["a"].params.tolist() == assignments["b"].params.tolist() == [1, 0]
    for policy in (Cfl(epsilon_1=0.1, epsilon_2=2.0), Cfl(epsilon_1=0.0, epsilon_2=0.5), Cfl(epsilon_1=0.1, warm_up=1)):
        assert clusters(policy.step(there, {}, FLAT)[1]) == {"": list("abcd")}


def test_cfl_splits_cluster_after_patience_rounds():
    for patience in (1, 2, 3):
        _, states = rest(Cfl(epsilon_1=0.1, epsilon_2=0.5, patience=patience), patience)
        assert [len(clusters(state)) for state in states] == [1] * (patience - 1) + [2]


# MaTFL


def test_matfl_votes_by_hand():
    layer_1 = np.array([[1, 0.9, 0.1, 0.0], [0.9, 1, 0.2, 0.3], [0.1, 0.2, 1, 0.8], [0.0, 0.3, 0.8, 1]])
    layer_2 = np.array([[1, 0.5, 0.6, 0.1], [0.5, 1, 0.4, -0.9], [0.6, 0.4, 1, 0.2], [0.1, -0.9, 0.2, 1]])
    weights = votes([layer_1, layer_2], 1)
    assert weights[0] == pytest.approx(np.array([1, 0.7, 0, 0]) / 1.7)  # one vote each for 1 and 2; 1 is more similar
    assert weights[2] == pytest.approx(np.array([0, 0, 1, 0.5]) / 1.5)  # one each for 3 and 0
    assert votes([-layer_1], 3)[0].tolist() == [1, 0, 0, 0]  # a node without similar nodes keeps its own model
    assert votes([np.eye(1)], 5).tolist() == [[1]]


# Refusals


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedpref", {"ratio": 0.0}, "ratio must be above 0 and at most 1"),
        ("fedpref", {"min_similarity": 1.0}, "min_similarity must be from -1 to below 1"),
        ("fedpref", {"epsilon": -1.0}, "epsilon must be 0 or more"),
        ("fedpref", {"patience": 0}, "patience must be 1 or more"),
        ("fedpref", {"min_progress": 1.5}, "min_progress must be from 0 to 1"),
        ("fedpref", {"affinity": "x"}, "policy.affinity must be one of clipped, shifted"),
        ("cfl", {"epsilon_2": -1.0}, "epsilon_2 must be 0 or more"),
        ("cfl", {"patience": 0}, "patience must be 1 or more"),
        ("fedpref", {"min_members": 1}, "min_members must be 2 or more"),
        ("matfl", {"neighbours": 0}, "neighbours must be 1 or more"),
    ],
)
def test_coordinated_policies_refuse_invalid_options(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_policy(name, options)
