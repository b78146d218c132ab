"""Runs of real nodes under random faults: the shipped scenario holds, and planted bugs are found, shrunk and replayed."""

import pytest

from p2pfl._util.atomic_files import write_sealed
from p2pfl.budget import TrainingTracker
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.node import checkpoint
from p2pfl.node.exchange.model_transfer import ModelServer
from p2pfl.node.federation import membership_file
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import Guard
from p2pfl.protocols.election import Term
from p2pfl.sim.chaos import machine
from p2pfl.sim.chaos.invariants import Invariants
from p2pfl.sim.chaos.run import Trials, search
from p2pfl.sim.chaos.schedule import KINDS, Fault, Schedule, draw_schedule, read_schedule, write_schedule
from p2pfl.sim.scenario.scenario import load
from tests.support.depth import deep, many, spread

MEMBERS = ["node-0", "node-1", "node-2", "node-3"]


class Unflushed:
    """A disk of which nothing is flushed."""

    def __init__(self, disk):
        self.disk = disk

    def __getattr__(self, name):
        return getattr(self.disk, name)

    def create(self, path, parts, durable, mode):
        self.disk.create(path, parts, False, mode)

    def sync(self, folder): ...


def skip_flush(monkeypatch):
    """Write checkpoints without flushing them to the disk."""
    monkeypatch.setattr(
        checkpoint, "write_sealed", lambda *given, disk, **options: write_sealed(*given, disk=Unflushed(disk), **options)
    )


def repeat_start(monkeypatch):
    """Count no starts, so that the numbers of frames begin again."""
    monkeypatch.setattr(machine, "count_start", lambda path, log, disk: 1)


def keep_revoked(monkeypatch):
    """Treat a revoked member as a member."""
    monkeypatch.setattr(PeerManager, "remove", lambda self, name, reason: None)
    monkeypatch.setattr(Guard, "refusal", lambda self, key: "")


def keep_first_log(monkeypatch):
    """Report new entries of the membership log as written, but write only the log of a new member."""

    def write(path, *given, disk, **options):
        if not disk.exists(path):
            write_sealed(path, *given, disk=disk, **options)

    monkeypatch.setattr(membership_file, "write_sealed", write)


def serve_again(monkeypatch):
    """Keep each request for a model, so that it is answered once more when the next model is published."""
    serve = ModelServer.serve

    def serve_and_keep(self, peer, get):
        serve(self, peer, get)
        peer.waiting[get.round, get.stage, False] = get

    monkeypatch.setattr(ModelServer, "serve", serve_and_keep)


@pytest.fixture(scope="module")
def trials():
    return Trials(load("chaos"))


# Schedules


def test_schedule_depends_on_seed_only():
    first = draw_schedule(5, MEMBERS, ["node-4"], 6.0)
    assert first == draw_schedule(5, MEMBERS, ["node-4"], 6.0)
    assert first != draw_schedule(6, MEMBERS, ["node-4"], 6.0)


def test_schedules_have_every_kind_and_end_in_time():
    drawn = [fault for seed in range(200) for fault in draw_schedule(seed, MEMBERS, ["node-4"], 6.0)]
    assert len({fault.kind for fault in drawn}) == 16
    assert max(fault.end for fault in drawn) <= 54.0
    assert {name for fault in drawn for name in (fault.node, *fault.others)} <= {"", *MEMBERS, "node-4"}


def test_schedule_file_round_trips(tmp_path):
    schedule = Schedule("gossip", 3, draw_schedule(3, MEMBERS, ["node-4"], 6.0))
    write_schedule(tmp_path / "new" / "seed-3.toml", schedule, "p2pfl-sim chaos chaos --replay")
    assert read_schedule(tmp_path / "new" / "seed-3.toml") == schedule


def test_schedule_file_names_unknown_key(tmp_path):
    path = tmp_path / "faults.toml"
    path.write_text('run = "gossip"\nseed = 1\n[[fault]]\nat = 1.0\nkind = "flood"\n')
    with pytest.raises(ConfigurationError, match=r"faults\.toml.*flood"):
        read_schedule(path)


def test_schedule_file_with_unknown_kind_names_the_known_ones(tmp_path):
    path = tmp_path / "faults.toml"
    path.write_text('run = "gossip"\nseed = 1\n[[fault]]\nat = 1.0\nkind = "crsh"\n')
    with pytest.raises(ConfigurationError) as caught:
        read_schedule(path)
    assert str(caught.value) == (
        f"{path}: fault 1: kind must be one of {', '.join(KINDS)}, got 'crsh'; did you mean 'crash'?"
    )


@pytest.mark.parametrize(("restored", "found"), [(MEMBERS[:1], ["two coordinators"]), (MEMBERS[:2], [])])
def test_second_coordinator_violates_unless_votes_are_lost(restored, found):
    violations = []
    invariants = Invariants(dict.fromkeys(MEMBERS, b""), lambda: 5.0, violations.append, lambda name: None)
    invariants.leads("node-0", Term(4, 2))
    for name in restored:
        invariants.memories[name].forget(5.0)
    invariants.leads("node-3", Term(4, 2))
    assert [violation.invariant for violation in violations] == found


def test_replay_rejects_unknown_run_and_node(trials):
    with pytest.raises(ConfigurationError, match=r"the run 'x'; the scenario chaos has gossip, coordinated$"):
        trials.replay(Schedule("x", 0, []))
    with pytest.raises(RunError, match="the schedule names node-9"):
        trials.replay(Schedule("gossip", 0, [Fault(at=1.0, kind="crash", node="node-9")]))


def test_replay_rejects_crash_without_node(trials):
    with pytest.raises(RunError, match=r"the schedule has a crash at 1 s without a node$"):
        trials.replay(Schedule("gossip", 0, (Fault(at=1.0, kind="crash"),)))


def test_interrupt_within_a_process_ends_the_search(trials, monkeypatch):
    async def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(machine.Process, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trials.replay(Schedule("gossip", 1, []))


# Runs


@pytest.mark.slow
def test_restored_folder_is_renumbered_and_learns_again(trials):
    faults = [
        Fault(at=10.0, kind="crash", node="node-1", seconds=1.0),
        Fault(at=20.0, kind="restore", node="node-1", amount=12.0, seconds=2.0),
        Fault(at=30.0, kind="partition", others=("node-0", "node-2"), seconds=6.0),
    ]
    first, again = (trials.replay(Schedule("gossip", 1, faults)) for _ in range(2))
    assert first.violation is None
    assert any("starting again with new message numbers" in line for line in first.trace)
    assert (first.trace, first.digest) == (again.trace, again.digest)


def restored(seconds):
    """Return faults that restore folders of coordinated nodes, one of them for some seconds."""
    return [
        Fault(at=15.504, kind="restore", node="node-2", seconds=7.112, amount=10.244),
        Fault(at=20.63, kind="restore", node="node-1", seconds=seconds, amount=28.676),
        Fault(at=23.207, kind="power-failure", node="node-0", seconds=14.502),
        Fault(at=25.11, kind="restore", node="node-3", seconds=0.024, amount=18.207),
    ]


FOUND = {  # schedules that have led to violations
    "a coordinated node that is one round behind catches up": (
        "coordinated",
        2595,
        [
            Fault(at=20.399, kind="crash", node="node-0", seconds=0.618),
            Fault(at=25.941, kind="power-failure-on-write", node="node-0", seconds=0.019, amount=9),
        ],
    ),
    "a node restored to before its first vote does not vote": ("coordinated", 7717, restored(2.337)),
    "lost votes of half of the members are no violation": ("coordinated", 7717, restored(11.685)),
    "a dialled machine that loses power at the entry that the dialler brings ends no other process": (
        "coordinated",
        1733,
        [
            Fault(at=31.347, kind="restore", node="node-3", amount=6.571, seconds=4.846),
            Fault(at=36.347, kind="power-failure-on-write", node="node-3", amount=13, seconds=0.225),
            Fault(at=47.42, kind="admit", node="node-4"),
        ],
    ),
    "a process killed before its first step leaves no task": (
        "gossip",
        1,
        [
            Fault(at=10.0, kind="crash", node="node-3", seconds=1.0),
            Fault(at=10.5, kind="freeze", node="node-3", seconds=5.0),
            Fault(at=12.0, kind="power-failure", node="node-3", seconds=1.0),
        ],
    ),
    "the administrator repeats an entry at whose write the power failed": (
        "gossip",
        0,
        [
            Fault(at=10.0, kind="disk-full", node="node-3", seconds=9.0),
            Fault(at=18.0, kind="revoke", node="node-0", others=("node-3",)),
            Fault(at=18.99, kind="power-failure-on-write", node="node-3", seconds=1.5, amount=1),
        ],
    ),
    "the administrator repeats an entry that no process read before the folder was replaced": (
        "gossip",
        0,
        [
            Fault(at=35.0, kind="crash", node="node-1", seconds=5.0),
            Fault(at=37.0, kind="revoke", node="node-2", others=("node-1",)),
            Fault(at=38.0, kind="restore", node="node-1", amount=3.0, seconds=1.0),
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("run", "seed", "faults"), spread(FOUND.values(), 2), ids=spread(FOUND, 2))
def test_schedules_that_led_to_violations_hold(trials, run, seed, faults):
    assert trials.replay(Schedule(run, seed, faults)).violation is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "invariants"),
    [
        (skip_flush, {"round lost", "error"}),  # an error: no checkpoint is intact
        pytest.param(repeat_start, {"number reused"}, marks=deep),
        pytest.param(keep_revoked, {"revoked member served"}, marks=deep),
    ],
)
def test_planted_bug_is_found_shrunk_and_replayed(trials, tmp_path, monkeypatch, plant, invariants):
    plant(monkeypatch)
    found = next(found for seed in range(200) if (found := trials.try_seed(seed)).violation is not None)
    assert found.violation.invariant in invariants
    assert 1 <= len(found.faults) <= 2
    schedule = Schedule(found.run, found.seed, found.faults, str(found.violation))
    write_schedule(tmp_path / "found.toml", schedule, "p2pfl-sim chaos chaos --replay")
    first, again = (trials.replay(read_schedule(tmp_path / "found.toml")) for _ in range(2))
    assert first.violation == again.violation == found.violation
    assert (first.trace, first.digest) == (again.trace, again.digest)


@pytest.mark.slow
def test_second_answer_to_a_request_is_found_without_faults(trials, monkeypatch):
    assert trials.replay(Schedule("gossip", 0, [])).violation is None
    serve_again(monkeypatch)
    violation = trials.replay(Schedule("gossip", 0, [])).violation
    assert violation.invariant == "model not requested"
    assert "more models for request" in violation.text


@deep
@pytest.mark.slow
def test_training_beyond_the_budget_is_found(monkeypatch):
    limited = Trials(load("chaos", ["budget.trainings=3"]))
    crash = (Fault(at=6.0, kind="crash", node="node-1", seconds=1.0),)
    assert limited.replay(Schedule("gossip", 0, crash)).violation is None
    monkeypatch.setattr(TrainingTracker, "admits", lambda self, samples: True)
    violation = limited.replay(Schedule("gossip", 0, [])).violation
    assert violation.invariant == "budget exceeded"
    assert violation.text == "begins training 4; its budget is 3"


@pytest.mark.slow
def test_entries_that_are_not_on_disk_after_all_are_found(trials, monkeypatch):
    faults = (Fault(at=10.0, kind="admit", node="node-4"), Fault(at=14.0, kind="crash", node="node-1", seconds=1.0))
    assert trials.replay(Schedule("gossip", 0, faults)).violation is None
    keep_first_log(monkeypatch)
    violation = trials.replay(Schedule("gossip", 0, faults)).violation
    assert (violation.invariant, violation.node) == ("membership lost", "node-1")


@pytest.mark.slow
def test_invariants_hold_for_many_seeds():
    results, seeds = [], many(10, 60)
    search(load("chaos"), range(seeds), workers=2, received=results.append)
    assert [str(found.violation) for found in results if found.violation is not None] == []
    assert len(results) == seeds
