"""Privacy budgets of nodes on machines: the ledger on the disk, secret draws, kills at any moment, claims and demands."""

import asyncio
import errno
import re
import shutil
import signal
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2pfl._util import failpoints
from p2pfl._util.disk import SystemDisk
from p2pfl.budget import Effort
from p2pfl.errors import ConfigurationError
from p2pfl.node.checkpoint import Checkpoint, FileStore, same_privacy
from p2pfl.node.cli.main import main
from p2pfl.node.doctor import check_ledger
from p2pfl.node.federation.agreement import Agreement, check_spent
from p2pfl.node.federation.membership_changes import create_federation, leave
from p2pfl.node.policy_api import Me
from p2pfl.node.privacy_ledger import LEDGER, PrivacyLedger, Steps, _write, note_older_copy, read_ledger
from p2pfl.node.settings import SharedSettings
from p2pfl.node.status import endpoints, text
from p2pfl.node.status.reader import current
from p2pfl.parameters import Layout
from p2pfl.policy import Budget, PlannedTraining
from p2pfl.privacy import (
    Part,
    Privacy,
    PrivacyPlan,
    PrivacyState,
    PrivacyTracker,
    StepDraws,
    claim_of,
    claimed,
    epsilon_of,
    epsilon_together,
)
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Mechanism
from tests.support.logs import log_to
from tests.support.processes import processes

BUDGET = Privacy(epsilon=2)
START = np.zeros(3, np.float32)
ROUNDS, EACH = 5, 4  # rounds, and steps of each: 60 samples in batches of 16


def ledger(folder, privacy=BUDGET, rounds=ROUNDS, n_samples=60, **options):
    secret = options.pop("secret", lambda size: bytes(size))
    found = read_ledger(folder)
    return PrivacyLedger(
        folder, privacy, PlannedTraining(rounds), n_samples=n_samples, batch_size=16, secret=secret, found=found, **options
    )


# The file


def test_ledger_keeps_its_steps_its_noise_and_its_mode(tmp_path):
    first = ledger(tmp_path)
    assert (first.steps, first.plan.steps) == (0, ROUNDS * EACH)
    assert first.record(EACH)
    assert stat.S_IMODE((tmp_path / LEDGER).stat().st_mode) == 0o600
    assert read_ledger(tmp_path).parts == (Part(16 / 60, first.plan.mechanism.noise, EACH),)
    again = ledger(tmp_path)
    assert (again.steps, again.plan) == (EACH, first.plan)
    assert again.record(EACH)  # as of a training at the same time, which has written both
    assert read_ledger(tmp_path).made == EACH
    assert [(finding.ok, finding.result) for finding in check_ledger(tmp_path)] == [(True, "4 private steps")]


@pytest.mark.parametrize("wrong", ["damaged", "older"])
def test_ledger_that_cannot_be_right_is_refused(tmp_path, wrong):
    ledger(tmp_path).record(EACH)
    if wrong == "damaged":
        content = bytearray((tmp_path / LEDGER).read_bytes())
        content[-1] ^= 1
        (tmp_path / LEDGER).write_bytes(content)
    else:
        with pytest.raises(ConfigurationError, match="is an older copy: peers have messages"):
            note_older_copy(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"ledger.* {wrong}.*; restore its newest copy"):
        read_ledger(tmp_path)
    (finding,) = check_ledger(tmp_path)
    assert (finding.ok, finding.remedy.partition(";")[0]) == (False, "restore its newest copy")


def test_folder_without_ledger_has_no_older_copy(tmp_path):
    note_older_copy(tmp_path)
    assert read_ledger(tmp_path) is None
    assert check_ledger(tmp_path) == []


class FullDisk(SystemDisk):
    full = False

    def create(self, path, parts, durable, mode):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().create(path, parts, durable, mode)


def test_ledger_that_cannot_be_written_says_so_and_tries_again(tmp_path):
    said, disk = [], FullDisk()
    found = ledger(tmp_path, log=log_to(said), disk=disk)
    disk.full = True
    assert not found.record(EACH)
    assert not found.record(EACH)
    assert (found.problem, found.steps) == ("No space left on device", 0)
    disk.full = False
    assert found.record(EACH)
    assert (found.problem, read_ledger(tmp_path).made) == ("", EACH)
    assert [line.partition(": ")[2] or line for line in said] == [
        "No space left on device; this node does not train until it can",
        "can write the ledger again",
    ]


def collusion(**changes):
    return msgspec.structs.replace(BUDGET, correlated=True, **changes)


def test_ledger_keeps_the_least_number_of_colluding_members_of_all_steps(tmp_path):
    for privacy, found in ((BUDGET, None), (collusion(colluding=2), 2), (collusion(), 1), (collusion(colluding=3), 1)):
        each = ledger(tmp_path, privacy)
        before = each.colluding
        assert each.record(each.steps + EACH)
        assert read_ledger(tmp_path).colluding == each.colluding == found
        assert before in (None, found, 2)  # of a start alone nothing is said
    assert ledger(tmp_path).colluding == 1
    central = Privacy(epsilon=2, central=True, colluding=0)
    assert ledger(tmp_path, central, threshold=3).record(5 * EACH)
    assert read_ledger(tmp_path).colluding == 0


def test_noise_without_neighbours_protects_against_any_number(tmp_path):
    found = ledger(tmp_path, collusion())
    found.with_others = False
    assert found.record(EACH)
    assert read_ledger(tmp_path).colluding is None


def test_steps_that_are_not_on_the_disk_say_nothing_of_colluding_members(tmp_path):
    disk = FullDisk()
    found = ledger(tmp_path, collusion(), log=log_to([]), disk=disk)
    disk.full = True
    assert not found.record(EACH)
    assert (found.colluding, read_ledger(tmp_path).colluding) == (None, None)
    disk.full = False
    assert found.record(EACH)
    assert read_ledger(tmp_path).colluding == 1


# Plans of later starts


def test_extension_keeps_the_noise_and_the_budget(tmp_path):
    first = ledger(tmp_path)
    first.record(2 * EACH)
    longer = ledger(tmp_path, rounds=10 * ROUNDS)
    assert longer.plan.mechanism == first.plan.mechanism
    assert first.plan.steps <= longer.plan.steps < first.plan.steps + EACH
    assert 1.9 < longer.plan.epsilon(longer.plan.steps) <= 2


def test_other_budget_changes_how_many_steps_fit(tmp_path):
    first = ledger(tmp_path)
    first.record(2 * EACH)
    smaller, greater = (ledger(tmp_path, Privacy(epsilon=epsilon), rounds=100) for epsilon in (0.5, 3.0))
    assert smaller.plan.steps == smaller.steps == 2 * EACH
    assert smaller.plan.epsilon(smaller.steps) > 0.5  # what is spent is said as it is
    assert greater.plan.steps > first.plan.steps
    assert greater.plan.epsilon(greater.plan.steps) <= 3 < greater.plan.epsilon(greater.plan.steps + 1)
    assert {found.plan.mechanism.noise for found in (first, smaller, greater)} == {first.plan.mechanism.noise}


def test_steps_on_data_of_another_size_are_composed(tmp_path):
    first = ledger(tmp_path)
    first.record(2 * EACH)
    noise = first.plan.mechanism.noise
    more = ledger(tmp_path, n_samples=120)
    assert (more.steps, more.plan.rate) == (0, 16 / 120)
    assert more.plan.earlier == (Part(16 / 60, noise, 2 * EACH),)
    more.record(8)
    parts = (Part(16 / 60, noise, 8), Part(16 / 120, noise, 8))
    assert read_ledger(tmp_path).parts == parts
    together = epsilon_together(parts, 1e-5)
    assert more.plan.epsilon(8) == together
    assert max(epsilon_of(*part, 1e-5) for part in parts) < together < epsilon_of(16 / 60, noise, 16, 1e-5)
    assert more.plan.epsilon(more.plan.steps) <= 2
    back = ledger(tmp_path)  # the steps of each rate are found again
    assert (back.steps, back.plan.earlier) == (8, parts[1:])


def test_equal_parts_spend_what_their_sum_spends():
    parts = (Part(0.25, 1.2, 4), Part(0.25, 1.2, 6))
    assert epsilon_together(parts, 1e-5) == pytest.approx(epsilon_of(0.25, 1.2, 10, 1e-5), rel=1e-3)
    assert epsilon_together((), 1e-5) == epsilon_together((Part(0.25, 1.2, 0),), 1e-5) == 0


@pytest.mark.parametrize("before", [0, EACH])
def test_public_validation_data_stay_public_without_a_training(tmp_path, before):
    if before:
        _write(tmp_path / LEDGER, Steps((Part(16 / 60, 4.0, before),)), SystemDisk())
    assert ledger(tmp_path, Privacy(epsilon=2, validation="public")).steps == before
    assert (read_ledger(tmp_path).made, read_ledger(tmp_path).public) == (before, True)
    with pytest.raises(ConfigurationError, match=r"has started with its .* declared public, and they cannot become private"):
        ledger(tmp_path)


def test_second_federation_of_as_many_rounds_has_room_for_a_greater_epsilon(tmp_path):
    _write(tmp_path / LEDGER, Steps((Part(16 / 60, 4.0, ROUNDS * EACH),)), SystemDisk())
    plan = ledger(tmp_path, Privacy(epsilon=20)).plan
    assert (plan.steps, plan.mechanism.noise) == (2 * ROUNDS * EACH, 4.0)


def test_node_claims_no_less_than_it_has_spent_and_is_refused_where_less_is_demanded():
    smaller = Privacy(epsilon=0.5)
    assert claimed(claim_of(smaller, 2.0)) == (2.0, 1e-5)
    assert claimed(claim_of(smaller, 0.2)) == (0.5, 1e-5)
    for demand, spent in ((0.0, 2.0), (2.0, 2.0), (0.5, 0.0)):
        check_spent(smaller, spent, demanding(demand))
    with pytest.raises(ConfigurationError, match=r"at most epsilon 0\.5, and this node has spent 2 at delta 1e-05 already"):
        check_spent(smaller, 2.0, demanding(0.5))


def demanding(epsilon):
    common = msgspec.to_builtins(SharedSettings())
    return msgspec.convert(
        common
        | {"name": "home", "edges": "all", "task": {}, "policy": {}, "greatest_epsilon": epsilon}
        | {"model": {"layout": "", "values": 1, "initial": ""}},
        Agreement,
    )


def test_delta_that_the_accountant_cannot_resolve_is_refused():
    Privacy(epsilon=2, delta=1e-12).check()
    with pytest.raises(ConfigurationError, match=r"privacy.delta must be 1e-12 or more, .* got 1e-20"):
        Privacy(epsilon=2, delta=1e-20).check()


def checkpoint(round, privacy):
    return Checkpoint("alice", 0, b"", round, b"", {}, {}, 0, "", b"", [], False, privacy=privacy)


def test_checkpoint_and_ledger_must_agree(tmp_path):
    found = ledger(tmp_path)
    tracker = PrivacyTracker(found.plan, 16, EACH)
    same_privacy(checkpoint(1, PrivacyState(EACH)), tracker, counted=True)
    same_privacy(checkpoint(0, None), tracker, counted=True)
    same_privacy(checkpoint(3, None), None, counted=False)
    for state, now, message in (
        (PrivacyState(2 * EACH), tracker, "has 4 steps, and the checkpoint has 8: it is an older copy; restore the newest"),
        (PrivacyState(EACH), None, r"would break the promise of that; restore the table \[privacy\]"),
        (None, tracker, r"has trained 2 rounds without a privacy budget.*; remove the table \[privacy\]"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            same_privacy(checkpoint(2, state), now, counted=True)


@pytest.mark.parametrize(
    ("before", "refused"),
    [(None, False), (checkpoint(0, None), False), (checkpoint(2, PrivacyState(EACH)), False), (checkpoint(2, None), True)],
)
def test_trainings_without_a_budget_are_remembered_in_later_federations(alice, before, refused):
    store = FileStore(alice / "checkpoint")
    if before is not None:
        store.save(before)
    for name in ("home", "lab"):
        create_federation(alice, {"name": name}, Path(f"{name}.backup"))
        assert store.peek() is None
        if name == "home":
            store.save(checkpoint(0, None))  # which takes the place of the one that was set aside
        leave(alice)
    if refused:
        with pytest.raises(ConfigurationError, match=r"without a privacy budget before.*; remove the table \[privacy\]"):
            ledger(alice)
        assert "trained without a privacy budget" in check_ledger(alice)[0].result
    else:
        assert ledger(alice).steps == 0


def test_spent_budget_stays_spent_after_a_restart_until_it_is_raised():
    plan = PrivacyPlan(Privacy(epsilon=8, when_spent="stop"), 0.25, EACH, Mechanism(1.0, 1.0))
    tracker = PrivacyTracker(plan, 16)
    assert tracker.admit(Train(START, 1), 60)
    assert tracker.admit(Train(START, 2), 60) is None
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(tracker.state()), type=PrivacyState)
    again = PrivacyTracker(plan, 16, EACH)
    again.restore(state)
    assert (again.ended, again.refusal) == (True, "the privacy budget is spent: 4 of 4 steps")
    raised = PrivacyTracker(plan._replace(steps=2 * EACH), 16, EACH)
    raised.restore(state)
    assert not raised.ended


# Draws


def drawn(key, count=1001, epochs=1):
    query = Train(START, 1, epochs, mechanism=Mechanism(1.0, 1.0, key))
    draws, noise = StepDraws(RandomStreams(0, "a"), query, 1000, 100), np.empty((2, count), np.float32)
    for row in noise:
        draws.noise(row, 1.0)
    return draws.batch(), noise


def test_secret_draws_follow_from_their_key_alone():
    one, same, other = drawn(b"a" * 32), drawn(b"a" * 32), drawn(b"b" * 32)
    assert all(np.array_equal(*pair) for pair in zip(one, same, strict=True))
    assert not any(np.array_equal(*pair) for pair in zip(one, other, strict=True))
    assert not np.array_equal(*one[1])  # each step has its own
    assert "aaa" not in repr(Mechanism(1.0, 1.0, b"a" * 32))


def test_secret_noise_is_normal_and_samples_are_drawn_independently():
    _, noise = drawn(bytes(32), 200_001)
    flat = noise.ravel().astype(float)
    assert abs(flat.mean()) < 5 / np.sqrt(flat.size)
    assert flat.var() == pytest.approx(1, abs=5 * np.sqrt(2 / flat.size))
    for bound, share in ((0.5, 0.38292), (1, 0.68269), (2, 0.95450), (3, 0.99730)):
        assert np.mean(np.abs(flat) < bound) == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / flat.size))
    assert 4 < np.abs(flat).max() < 6.5
    for lag in (1, 2**15, 2**16):  # of neighbours, and of both halves of what is made at once
        assert abs(np.mean(flat[lag:] * flat[:-lag])) < 5 / np.sqrt(flat.size - lag)
    query = Train(START, 1, 40, mechanism=Mechanism(1.0, 1.0, bytes(32)))
    draws = StepDraws(RandomStreams(0, "a"), query, 1000, 100)
    counts = np.array([len(draws.batch()) for _ in range(400)])
    assert counts.mean() == pytest.approx(100, abs=5 * np.sqrt(90 / 400))
    assert counts.var() == pytest.approx(90, rel=0.4)


# Trainings on record


class Recorder:
    """Trainer that notes what the ledger on the disk counts when a training begins."""

    def __init__(self, folder):
        self.folder, self.seen, self.keys = folder, [], []

    async def submit(self, query):
        self.seen.append(read_ledger(self.folder).made)
        self.keys.append(query.mechanism.key)
        return query.params + 1

    def used(self):
        return Effort()

    def joules(self, samples):
        return None


def me_of(found, trainer):
    return Me(
        "a",
        RandomStreams(0, "a"),
        trainer=trainer,
        initial=START,
        layout=Layout((("w", (3,)),), 3),
        n_samples=60,
        budget=Budget(),
        rounds=ROUNDS,
        batch_size=16,
        privacy=PrivacyTracker(found.plan, 16, found.steps),
        ledger=found,
    )


def test_training_begins_after_it_is_counted_and_draws_a_new_secret(tmp_path):
    trainer, given = Recorder(tmp_path), iter(range(256))
    me = me_of(ledger(tmp_path, secret=lambda size: bytes([next(given)]) * size), trainer)

    async def train():
        one = await me.compute(Train(START, 1))
        two, three = await asyncio.gather(me.compute(Train(START, 1)), me.compute(Train(START, 1)))
        return one, two, three

    assert all(np.array_equal(trained, START + 1) for trained in asyncio.run(train()))
    assert [seen >= made for seen, made in zip(trainer.seen, (4, 8, 12), strict=True)] == [True] * 3
    assert sorted(trainer.keys) == [bytes([k]) * 32 for k in range(3)]
    assert (me.privacy.steps, me.trainings) == (12, 3)


def test_node_that_cannot_write_its_ledger_does_not_train(tmp_path):
    trainer, disk = Recorder(tmp_path), FullDisk()
    me = me_of(ledger(tmp_path, disk=disk, log=log_to([])), trainer)
    disk.full = True
    assert np.array_equal(asyncio.run(me.compute(Train(START, 1))), START)
    assert (me.privacy.steps, me.privacy.refused, me.trainings, trainer.seen) == (0, 0, 0, [])
    disk.full = False
    asyncio.run(me.compute(Train(START, 1)))
    assert (me.privacy.steps, me.trainings, trainer.seen) == (4, 1, [4])


# A node alone, by its commands

ALONE = """
rounds = 3
deadline = 10.0
robust = "none"
[task]
name = "concept-shift"
[policy]
name = "random"
[privacy]
epsilon = 1
delta = 1e-3
"""
TRAINING = 7  # steps of a round: 50 samples in batches of 8


@pytest.fixture
def alice(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "alice"]) == 0
    Path("alice/node.toml").write_text(f'name = "alice"\nlisten = ":4100"\nmdns = false\n{ALONE}')
    capsys.readouterr()
    return Path("alice")


def ran(capsys, *changes):
    """Return the exit code and the output of a run."""
    options = [part for change in changes for part in ("--set", change)]
    code = main(["run", "alice", "--until-done", *options])
    found = capsys.readouterr()
    return code, found.out + found.err


@pytest.mark.slow
def test_status_pages_and_metrics_show_what_the_accountant_says(alice, capsys):
    code, printed = ran(capsys)
    assert code == 0
    assert re.search(r"privacy budget: epsilon 0 of 1 spent at delta 0.001; 0 of 21 steps, noise [\d.]+", printed)
    state = current(alice)
    found, part = state["privacy"], read_ledger(alice).parts[0]
    assert part == Part(8 / 50, found["noise"], 3 * TRAINING)
    assert found["epsilon"] == round(epsilon_of(*part, 1e-3), 4) <= 1
    assert (found["budget"], found["delta"], found["validation"], found["refused"]) == (1, 1e-3, "private", 0)
    shown = "\n".join(text.describe(state))
    assert f"epsilon {found['epsilon']:.4g} of 1 spent, at delta 0.001" in shown
    assert "validation data private: nothing looks at them" in shown
    assert not any(row.get("validation") for row in state["history"])
    metrics = endpoints.text(state).decode()
    assert f"p2pfl_privacy_epsilon {found['epsilon']}" in metrics
    assert "p2pfl_privacy_validation_public 0.0" in metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "says", "rounds"), [("merge", "the node goes on without training", 6), ("stop", "the node ends its rounds", 4)]
)
def test_spent_budget_ends_trainings_and_is_said_once(alice, capsys, then, says, rounds):
    assert ran(capsys)[0] == 0
    for again in range(2):  # the extension, as the owner of a node alone makes it; and one more start
        code, printed = ran(capsys, "rounds=6", f'privacy.when_spent="{then}"')
        assert code == 0
        assert printed.count(f" of 1; {says}") == (again == 0)
        state = current(alice)
        assert (state["round"], read_ledger(alice).made) == (rounds, 3 * TRAINING)
    if then == "stop":
        assert "the privacy budget is spent: 21 of 21 steps" in state["ended_early"]
        assert ran(capsys, "rounds=6", 'privacy.when_spent="stop"', "privacy.epsilon=2")[0] == 0
        assert (current(alice)["round"], read_ledger(alice).made > 3 * TRAINING) == (6, True)


@pytest.mark.slow
def test_budget_that_comes_or_goes_is_never_silent(alice, capsys):
    shutil.copytree(alice, "other")
    assert ran(capsys)[0] == 0
    kept = (alice / LEDGER).read_bytes()
    code, printed = ran(capsys, "privacy.epsilon=0")
    assert (code, "has no privacy budget any more" in printed) == (2, True)
    code, printed = ran(capsys, "privacy.clip=0.5", "privacy.epsilon=2", "rounds=4")
    assert (
        code,
        "node.toml differs from the last start: privacy.epsilon is 2 instead of 0, privacy.clip is 0.5 instead of 1"
        in printed,
    ) == (0, True)
    for wrong, message in ((kept, "the checkpoint has 28"), (None, "ledger is missing, and the last start knew of 21")):
        (alice / LEDGER).unlink() if wrong is None else (alice / LEDGER).write_bytes(wrong)
        code, printed = ran(capsys)
        assert (code, message in printed) == (2, True), printed
    shutil.rmtree(alice)
    shutil.copytree("other", alice)
    assert ran(capsys, "privacy.epsilon=0")[0] == 0
    code, printed = ran(capsys)
    assert (code, "has trained 3 rounds without a privacy budget" in printed) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rounds=0", "none is planned; set rounds"),
        ('robust="clip-loss"', "the robust rule clip-loss takes losses on validation data"),
        ("patience=2", r"early stopping (patience) looks at validation data"),
        ('policy={name="apfl"}', "the policy Apfl is refused under a privacy budget"),
        ('policy={name="dac", similarity="inverse-loss", score_on="peer"}', "is refused under a privacy budget"),
        ("privacy.delta=2", "privacy.delta must be above 0 and below 1"),
        (
            "privacy.correlated=true",
            "correlated noise (privacy.correlated) needs a policy that averages with all neighbours",
        ),
        ("privacy.by_node={}", "unknown key 'privacy.by_node'"),
    ],
)
def test_node_refuses_a_budget_that_it_cannot_keep(alice, capsys, change, message):
    code, printed = ran(capsys, change)
    assert (code, message in printed) == (2, True), printed
    assert not (alice / LEDGER).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('robust="median"', 'needs robust = "none"'),
        ('mode="asynchronous"', 'needs mode = "synchronous"'),
        ('codec.name="int8"', "needs models that are sent without loss"),
        ("budget.models=2", "needs nodes that train in every round and average with all neighbours"),
        ("members=2001", "needs the eigenvectors of the graph, and has at most 2000 nodes"),
    ],
)
def test_noise_that_would_not_cancel_is_refused(alice, capsys, change, message):
    code, printed = ran(capsys, 'policy={name="dsgd", steps=1}', "privacy.correlated=true", change)
    assert (code, message in printed) == (2, True), printed


@pytest.mark.slow
def test_noise_that_cancels_has_no_use_for_a_node_alone(alice, capsys):
    code, printed = ran(capsys, 'policy={name="dsgd", steps=1}', "privacy.correlated=true")
    assert (code, "noise of edges has no use here" in printed) == (0, True), printed
    assert (read_ledger(alice).made, read_ledger(alice).colluding) == (3, None)
    assert "correlated" not in current(alice)["privacy"]


def test_status_of_a_killed_node_shows_what_its_ledger_has_spent(alice):
    parts = (Part(0.25, 4.0, 12),)
    spent = epsilon_of(*parts[0], 1e-3)
    _write(alice / LEDGER, Steps(parts, colluding=1), SystemDisk())
    row = {"epsilon": 0.1, "budget": 1.0, "delta": 1e-3, "validation": "private", "refused": 0, "then": "merge"}
    row |= {"steps": 6, "earlier": 2}
    for extra, steps in (({"privacy": row}, 10), ({}, 12)):  # the file of a run, and one from before the first training
        (alice / "status.json").write_bytes(msgspec.json.encode({"state": "running", "pid": 0, "history": []} | extra))
        found = current(alice)
        assert (found["state"], found["privacy"]["epsilon"], found["privacy"]["steps"]) == ("gone", round(spent, 4), steps)
        shown = "\n".join(text.describe(found))
        assert f"epsilon {spent:.4g} of 1 spent, at delta 0.001" in shown
        assert "what is spent holds against 1 member who may collude" in shown


# Claims and demands


def test_claim_is_two_positive_numbers_or_none():
    assert claimed({"n_samples": 5} | claim_of(BUDGET)) == (2, 1e-5)
    for wrong in (
        {},
        {"privacy.epsilon": 8.0},
        {"privacy.epsilon": "8"},
        {"privacy.epsilon": True},
        {"privacy.epsilon": -1},
    ):
        assert (
            claimed(wrong | ({"privacy.delta": 1e-5} if len(wrong) == 1 and wrong != {"privacy.epsilon": 8.0} else {}))
            is None
        )


@pytest.mark.slow
def test_federation_demands_a_budget_of_its_members(alice, capsys):
    create = ["federation", "create", "alice", "--backup", "key.backup"]

    def said(*arguments):
        code = main(list(arguments))
        found = capsys.readouterr()
        return code, found.out + found.err

    for demand, message in (
        (
            "greatest_epsilon=0.5",
            "demands of each member a privacy budget of at most epsilon 0.5 at delta 1e-05",
        ),
        ("greatest_epsilon=8", "this node has epsilon 1 at delta 0.001; set privacy.epsilon and privacy.delta"),
        ("greatest_epsilon=-1", "greatest_epsilon must be 0 (no demand) or more, and finite, got -1.0"),
        ("greatest_delta=2", "greatest_delta must be above 0 and below 1, got 2.0"),
        ('robust="clip-loss"', "the robust rule clip-loss takes losses on validation data"),
        ('policy.name="apfl"', "the policy Apfl is refused under a privacy budget"),
    ):
        code, printed = said(*create, "--set", demand)
        assert (code, message in printed) == (2, True), printed
        assert not Path("key.backup").exists()
    assert said(*create, "--set", "greatest_epsilon=8", "--set", "greatest_delta=0.001")[0] == 0
    assert "greatest_epsilon: 8" in said("federation", "show", "alice")[1]
    code, printed = ran(capsys, "privacy.epsilon=0")
    assert (code, "at most epsilon 8 at delta 0.001, and this node has none" in printed) == (2, True), printed


KILLED = {  # failpoint of a member, and by then: trainings in its ledger, and rounds whose models peers may have
    "bob": ("ledger-saved:2", 2, 1),
    "carol": ("trained:2", 2, 1),
    "dave": ("published:2", 2, 2),
}


@pytest.mark.slow
def test_six_members_go_on_while_three_are_killed_and_see_claims(tmp_path, monkeypatch):
    names = ("alice", *KILLED, "eve", "frank")
    toml = ALONE.replace("deadline = 10.0", "deadline = 5.0\nmembers = 6")
    with processes(tmp_path, names, toml) as federation:
        bob = federation.folders["bob"] / "node.toml"
        bob.write_text(bob.read_text().replace("epsilon = 1", "epsilon = 0.5"))
        for name in names:
            point = KILLED.get(name, ("",))[0]
            monkeypatch.setenv(failpoints.VARIABLE, point)
            federation.start(name)
        monkeypatch.delenv(failpoints.VARIABLE)
        for name, (_, counted, released) in KILLED.items():
            federation.wait(name)
            assert federation.running[name].returncode == -signal.SIGKILL
            assert (read_ledger(federation.folders[name]).made, published(federation, name)) == (
                counted * TRAINING,
                released,
            )
        federation.start(*KILLED)
        federation.wait()
        assert {process.returncode for process in federation.running.values()} == {0}
        for name in names:
            assert (federation.status(name)["round"], read_ledger(federation.folders[name]).made) == (3, 3 * TRAINING)
        for name in ("alice", "eve", "frank"):
            claims = {peer["name"]: peer["claims"] for peer in federation.status(name)["peers"]}
            assert claims == {
                other: {"epsilon": 0.5 if other == "bob" else 1.0, "delta": 1e-3} for other in names if other != name
            }


@pytest.mark.slow
def test_restored_folder_does_not_spend_its_budget_again(tmp_path):
    with processes(tmp_path, ("alice", "bob"), ALONE.replace("deadline = 10.0", "deadline = 5.0")) as federation:
        bob, old = federation.folders["bob"], tmp_path / "backup"

        def with_bob():
            return any(peer["state"] == "connected" for peer in federation.status("alice")["peers"])

        federation.start("alice", until_done=False)
        for _ in range(2):
            shutil.copytree(bob, old, dirs_exist_ok=True)
            federation.start("bob", until_done=False)
            federation.until(with_bob, "bob is connected")
            federation.until(lambda: federation.status("bob")["state"] == "serving", "bob has finished")
            federation.signal("bob", signal.SIGTERM)
            federation.wait("bob")
            federation.until(lambda: not with_bob(), "bob is gone")
        assert read_ledger(bob).made == 3 * TRAINING
        shutil.rmtree(bob)
        shutil.copytree(old, bob)  # as it was between the two starts
        federation.start("bob")
        printed = federation.wait("bob")["bob"]
        assert federation.running["bob"].returncode == 2
        assert "ledger is an older copy: peers have messages that this node has sent after it was made" in printed
        with pytest.raises(ConfigurationError, match="is an older copy"):  # as the next start does
            read_ledger(bob)
        federation.signal("alice", signal.SIGTERM)
        federation.wait("alice")


# Kills of real processes


KILLS = (  # failpoint, and by then: trainings in the ledger, and rounds whose models peers may have
    ("ledger-written:2", 0, 0),  # the first one is that of the start
    ("ledger-saved", 1, 0),
    ("trained", 2, 0),
    ("published", 3, 1),
    ("round-saved", 4, 1),  # of the same round, which was repeated
)


@pytest.mark.slow
def test_killed_node_has_released_no_more_than_its_ledger_says(tmp_path, monkeypatch):
    with processes(tmp_path, ("alice",), ALONE.replace("rounds = 3", "rounds = 6")) as federation:
        folder = federation.folders["alice"]
        for point, counted, released in KILLS:
            monkeypatch.setenv(failpoints.VARIABLE, point)
            federation.start()
            federation.wait()
            assert federation.running["alice"].returncode == -signal.SIGKILL
            assert (read_ledger(folder).made, published(federation)) == (counted * TRAINING, released)
        monkeypatch.delenv(failpoints.VARIABLE)
        federation.start()
        printed = federation.wait()["alice"]
        assert federation.running["alice"].returncode == 0, printed
        # each repeated training counts, so that the last three rounds find the budget spent
        assert read_ledger(folder).made == 6 * TRAINING
        state = federation.status("alice")
        assert (state["round"], state["privacy"]["refused"]) == (6, 3)
        assert state["privacy"]["epsilon"] == round(epsilon_of(*read_ledger(folder).parts[0], 1e-3), 4) <= 1


def published(federation, name="alice"):
    """Return the last round whose trained model is in a node's checkpoint, where peers may get it."""
    found = federation.checkpoint(name)
    return max((model.round for model in found.outbox if model.stage == "trained"), default=0) if found else 0
