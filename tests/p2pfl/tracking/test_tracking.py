"""Tracking in a thread: order of the calls, failing and slow trackers, names."""

import os
import signal
import threading
from math import inf, nan
from pathlib import Path

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.tracking import tracker as background
from p2pfl.tracking.tracker import NamedFactory, TrackedRun, Tracking, factories, file_name, plain_settings
from tests.support.trackers import FailingTracker, MemoryTracker, broken

RUN = TrackedRun("alice", "home")


@pytest.fixture
def trackers(monkeypatch):
    found = []
    monkeypatch.setattr(MemoryTracker, "made", found)
    return found


def track(folder, warnings, *wanted):
    return Tracking(factories(wanted), folder, warnings.append)


def test_tracker_receives_finite_figures_in_order(tmp_path, trackers):
    warnings = []
    tracking = track(tmp_path, warnings, MemoryTracker)
    log = tracking.begin(RUN)
    log.log(1, {"a": 0.5, "b": nan})
    log.log(1, {"c": inf})
    log.log(2, {"a": 1})
    log.finish({"best": 1.0, "none": nan})
    tracking.close()
    (tracker,) = trackers
    assert (tracker.run, tracker.folder) == (RUN, tmp_path / "MemoryTracker")
    assert tracker.steps == [(1, {"a": 0.5}), (2, {"a": 1.0})]
    assert tracker.result == {"best": 1.0}
    assert warnings == []


def test_runs_without_a_result_are_ended(tmp_path, trackers):
    tracking = track(tmp_path, [], MemoryTracker)
    tracking.begin(RUN)
    tracking.begin(TrackedRun("bob", "home")).finish({"x": 1})
    tracking.close()
    assert [tracker.result for tracker in trackers] == [{}, {"x": 1.0}]


@pytest.mark.parametrize(
    ("tracker", "warning"),
    [
        (FailingTracker, "the tracker FailingTracker has failed: server refuses; the run continues without it"),
        (broken, "the tracker broken has failed: no API key; the run continues without it"),
        (lambda run, folder: object(), "the tracker <lambda> has failed: 'object' object has no attribute 'log'"),
    ],
)
def test_failing_tracker_gives_one_warning(tmp_path, trackers, tracker, warning):
    warnings = []
    tracking = track(tmp_path, warnings, tracker, MemoryTracker)
    for name in ("alice", "bob"):
        log = tracking.begin(TrackedRun(name, "home"))
        log.log(1, {"a": 1})
        log.log(2, {"a": 1})
        log.finish({})
    tracking.close()
    (found,) = warnings
    assert found.startswith(warning)
    others = [each for each in trackers if type(each) is MemoryTracker]
    assert [each.curve("a") for each in others] == [{1: 1.0, 2: 1.0}] * 2


def test_interrupt_ends_the_wait_for_a_hanging_tracker(tmp_path, monkeypatch):
    """The first Ctrl-C ends the node, whose event loop then handles signals in its own way."""
    monkeypatch.setattr(background, "SILENT", 0.0)
    begun, leave, warnings = threading.Event(), threading.Event(), []

    def hang(run, folder):
        begun.set()
        leave.wait()

    def warn(text):
        warnings.append(text)
        if text.startswith("waiting"):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        tracking = Tracking([NamedFactory("hang", hang)], tmp_path, warn)
        tracking.begin(RUN)
        assert begun.wait(10)
        tracking.close(3600)
        assert signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGINT, before)
        leave.set()
    assert warnings == [
        "waiting for the tracker hang, at most 3600 s; press Ctrl-C to end at once",
        "the tracker hang was interrupted; its last figures may be missing",
    ]


def test_hanging_tracker_delays_the_end_for_a_limited_time(tmp_path, trackers, monkeypatch):
    monkeypatch.setattr(background, "MOST_WAITING", 3)
    begun, leave = threading.Event(), threading.Event()

    def hang(run, folder):
        begun.set()
        leave.wait()
        return MemoryTracker(run, folder)

    warnings = []
    tracking = Tracking([NamedFactory("hang", hang)], tmp_path, warnings.append)
    log = tracking.begin(RUN)
    assert begun.wait(10)
    for step in range(5):
        log.log(step, {"a": step})
    tracking.close(0)
    assert warnings == [
        "the tracker hang is too slow; it does not get all figures",
        "the tracker hang has not finished 0 s after the end; its last figures may be missing",
    ]
    leave.set()
    tracking.close()
    assert len(warnings) == 2


def test_factories_find_names_and_objects(monkeypatch):
    found = factories(["tests.support.trackers:MemoryTracker", MemoryTracker])
    assert [each.make for each in found] == [MemoryTracker, MemoryTracker]
    assert factories(()) == []
    monkeypatch.setattr("p2pfl.tracking.tracker.find_spec", lambda name: True)
    assert factories("tensorboard")[0].name == "tensorboard"


def test_unknown_tracker_is_refused():
    with pytest.raises(ConfigurationError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        factories("tensorbord")


@pytest.mark.parametrize(("name", "package"), [("wandb", "'p2pfl-node[wandb]'"), ("trackio", "trackio")])
def test_tracker_that_is_not_installed_names_its_package(monkeypatch, name, package):
    monkeypatch.setattr("p2pfl.tracking.tracker.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as caught:
        factories(name)
    assert str(caught.value) == f"the tracker {name} is not installed: pip install {package}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dac/seed-0", "dac/seed-0"),
        ("tau = 1, lr=.1/seed-0", "tau_=_1,_lr=.1/seed-0"),
        ("/etc/../passwd", "etc/passwd"),
        ("a\\b", "a_b"),
    ],
)
def test_file_name_stays_in_its_folder(name, expected, tmp_path):
    assert file_name(name) == expected
    assert (tmp_path / file_name(name)).resolve().is_relative_to(tmp_path)


def test_plain_settings_have_dotted_names():
    table = {"policy": {"name": "dac", "tau": 3.0}, "seeds": [1, 2], "mdns": True, "path": Path("x")}
    assert plain_settings(table) == {
        "policy.name": "dac",
        "policy.tau": 3.0,
        "seeds": "[1, 2]",
        "mdns": True,
        "path": "x",
    }
