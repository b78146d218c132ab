"""Status of a node, from the node, from its file and as text, under faults of disk, clock and peers."""

import asyncio
import json
import os
import re
import socket
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from p2pfl._util.atomic_files import lock_folder
from p2pfl.errors import ConfigurationError
from p2pfl.node.checkpoint import FileStore
from p2pfl.node.early_stopping import EarlyStopping
from p2pfl.node.folder import config
from p2pfl.node.log import LOG
from p2pfl.node.peering.peering_config import Member
from p2pfl.node.peering.peers import KINDS, Peer
from p2pfl.node.settings import Settings
from p2pfl.node.status import reader
from p2pfl.node.status.observer import PeerChanges, StatusObserver
from p2pfl.node.status.reader import SHOWN, StatusFile, current, write_state
from p2pfl.node.status.snapshot import best_by_stage, peer_state
from p2pfl.node.status.text import describe, duration
from p2pfl.policies.random import Random
from p2pfl.sim.simulation.clock import run
from tests.support.federation import play
from tests.support.limits import limited
from tests.support.logs import log_records_to, log_to
from tests.support.loops import LOOPS, run_on

NAMES = ("a", "b", "c")
SETTINGS = Settings(rounds=6, deadline=10.0)


def start_watched(federation, name, path, said, **clocks):
    """Start a node with a status observer; return the observer."""
    exchange = federation.exchange(name)
    status_observer = StatusObserver(path, exchange, log_to(said), clock=asyncio.get_running_loop().time, **clocks)
    node = federation.make(name, exchange=exchange, observer=status_observer)
    status_observer.begin(node)
    federation.nodes[name], federation.running[name] = node, asyncio.create_task(node.run(node.exchange.others_done))
    return status_observer


# Peers that leave and return


class Agenda:
    """Scheduled calls on a simulated clock."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def later(self, seconds, do):
        self.calls.append((self.now + seconds, do))

    def until(self, end):
        while due := [call for call in self.calls if call[0] <= end]:
            first = min(due, key=lambda call: call[0])
            self.calls.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end


@pytest.fixture
def agenda():
    return Agenda()


def test_missing_peer_is_warning_and_return_is_info(agenda):
    records = []
    changes = PeerChanges(log_records_to(records), agenda.later)
    changes.left("bob", "no answer")
    agenda.until(5.0)
    changes.back("bob")
    assert records == [
        ("WARNING", {"kind": "peer-missing", "peer": "bob", "reason": "no answer"}),
        ("INFO", {"kind": "peer-back", "peer": "bob"}),
    ]


def flap(changes, agenda, name, seconds, per_second):
    for _ in range(seconds * per_second):
        changes.left(name, "closed by the other side")
        changes.back(name)
        agenda.until(agenda.now + 1 / per_second)


def test_peer_leaving_and_returning_is_logged_at_once(agenda):
    said = []
    changes = PeerChanges(log_to(said), agenda.later)
    changes.left("bob", "no answer")
    assert said == ["bob is missing: no answer"]
    agenda.until(5)
    changes.back("bob")
    assert said[1:] == ["bob is back"]


def test_peer_returning_within_a_second_is_logged_after_it(agenda):
    said = []
    changes = PeerChanges(log_to(said), agenda.later)
    changes.left("bob", "no answer")
    changes.back("bob")
    assert len(said) == 1
    agenda.until(1)
    assert said[1:] == ["bob is back"]


def test_flapping_peer_is_summarised_ever_less_often(agenda):
    said = []
    changes = PeerChanges(log_to(said), agenda.later)
    flap(changes, agenda, "bob", 300, 100)
    assert said[0] == "bob is missing: closed by the other side"
    assert said[1] == "bob left and came back 99 times in 1 s; now connected"
    assert re.fullmatch(r"bob left and came back \d{4} times in 60 s; now connected", said[-1])
    assert len(said) <= 1 + 6 + 300 / 60
    agenda.until(agenda.now + 120)
    before = len(said)
    changes.left("bob", "no answer")  # logged at once, as the peer was quiet before
    assert said[before:] == ["bob is missing: no answer"]
    agenda.until(agenda.now + 120)
    assert agenda.calls == []


def test_peer_missing_after_flapping_is_logged(agenda):
    said = []
    changes = PeerChanges(log_to(said), agenda.later)
    flap(changes, agenda, "bob", 1, 2)
    changes.left("bob", "no answer")
    agenda.until(100)
    assert said[-1] == "bob left and came back 1 time in 2 s; now missing: no answer" or "bob is missing" in said[-1]
    assert "no answer" in said[-1]


def test_flapping_peer_does_not_mute_others(agenda):
    said = []
    changes = PeerChanges(log_to(said), agenda.later)
    flap(changes, agenda, "bob", 5, 100)
    changes.left("carol", "no answer")
    assert said[-1] == "carol is missing: no answer"


def test_flapping_peer_costs_few_lines_and_writes(tmp_path):
    said, written, path = [], [], tmp_path / "status.json"

    def version():
        found = path.stat()
        return found.st_ino, found.st_mtime_ns

    async def test(federation):
        federation.start("b")
        start_watched(federation, "a", path, said)
        await federation.done()
        view, last = federation.nodes["a"].exchange.view, version()
        for _ in range(1000):  # ten seconds
            view.suspect("b", "closed by the other side")
            view.heard("b")
            await asyncio.sleep(0.01)
            if last != version():
                last = version()
                written.append(last)

    before = len(said)
    play(test, ("a", "b"), Settings(rounds=1, deadline=10.0))
    assert len([line for line in said[before:] if " b" in line or "b left" in line]) <= 5
    assert 10 <= len(written) <= 12


def test_member_removed_while_missing_is_not_logged_as_back(tmp_path):
    said = []

    async def test(federation):
        start_watched(federation, "a", tmp_path / "status.json", said)
        await asyncio.sleep(0.1)
        exchange = federation.nodes["a"].exchange
        view = exchange.view
        view.suspect("c", "no answer")
        await asyncio.sleep(5)
        exchange.peering.peers.pop("c")
        view.remove("c")
        await asyncio.sleep(5)
        federation.running.pop("a").cancel()

    play(test, NAMES, SETTINGS)
    assert [line for line in said if line.startswith("c ")] == ["c is not connected: no answer"]


# The start


def test_start_logs_each_change_of_the_wait_for_members(tmp_path):
    said, shown, states = [], [], []

    async def test(federation):
        status_observer = start_watched(federation, "a", tmp_path / "status.json", said)
        await asyncio.sleep(1)
        shown.append(describe(status_observer.fresh()))
        states.append(status_observer.fresh()["state"])
        federation.start("b")
        await asyncio.sleep(1)
        shown.append(describe(status_observer.fresh()))
        federation.start("c")
        await federation.round("b", 1)
        states.append(status_observer.fresh()["state"])
        await federation.done()

    play(test, NAMES, Settings(rounds=2, members=3, deadline=10.0))
    assert said[:3] == [
        "waiting for members: 1 of 3",
        "waiting for members: 2 of 3",
        "connected members: 3 of 3; starting round 1 of 2",
    ]
    assert [lines[0] for lines in shown] == [
        "a: waiting for members: 1 of 3, round 0 of 2",
        "a: waiting for members: 2 of 3, round 0 of 2",
    ]
    assert states == ["waiting", "running"]


def test_start_logs_the_limited_wait_for_neighbours(tmp_path):
    said = []

    async def test(federation):
        federation.start("b")
        start_watched(federation, "a", tmp_path / "status.json", said)
        await federation.done()

    play(test, NAMES, Settings(rounds=1, deadline=10.0))
    assert "waiting for members: 2 of 3 (for at most 10 s)" in said
    assert "connected members: 2 of 3; starting round 1 of 1" in said
    (missing,) = [line for line in said if line.startswith("c ")]
    assert missing.startswith("c is not connected: ")


@pytest.mark.slow
def test_age_of_last_model_increases_while_node_only_serves(tmp_path):
    ages = []

    async def test(federation):
        federation.start("b", "c")
        status_observer = start_watched(federation, "a", tmp_path / "status.json", [])
        while not federation.nodes["a"].done:
            await asyncio.sleep(0.01)
        for seconds in (50, 100):  # the first pause is for models that are on their way
            await asyncio.sleep(seconds)
            ages.append({peer["name"]: peer["staleness"] for peer in status_observer.fresh()["peers"]})

    play(test, NAMES, SETTINGS, folder=tmp_path)
    before, after = ages
    assert sorted(before) == ["b", "c"]
    assert {name: after[name] - before[name] for name in before} == pytest.approx({"b": 100, "c": 100}, abs=0.01)


@pytest.mark.slow
def test_restarted_node_logs_its_last_round(tmp_path):
    said, shown = [], []

    async def test(federation):
        federation.start("b", "c")
        start_watched(federation, "a", tmp_path / "status.json", said)
        while federation.nodes["a"].round < 3:
            await asyncio.sleep(0.01)
        await federation.kill("a")
        said.clear()
        status_observer = start_watched(federation, "a", tmp_path / "status.json", said)
        await asyncio.sleep(0.05)
        shown.append(dict(status_observer.fresh()))
        await federation.done()

    play(test, NAMES, SETTINGS, folder=tmp_path)
    (state,) = shown
    assert f"resuming after round {state['round']}" == said[0]
    best = state["best"]
    assert best == {"round": best["round"], **{key: best[key] for key in ("stage", "validation", "test")}}
    assert 1 <= best["round"] <= state["round"]


@pytest.mark.slow
def test_stopped_node_logs_its_last_round_once_and_no_round_of_the_run_before(tmp_path):
    said, again = [], []

    async def test(federation):
        federation.start("b", "c")
        status_observer = start_watched(federation, "a", tmp_path / "status.json", said)
        while federation.nodes["a"].round < 3:
            await asyncio.sleep(0.01)
        await federation.kill("a")
        status_observer.ended("stopped")  # the evaluation of its last round has not ended
        status_observer = start_watched(federation, "a", tmp_path / "status.json", again)
        await asyncio.sleep(0)
        status_observer.ended("stopped")
        await federation.done()

    play(test, NAMES, SETTINGS, folder=tmp_path)
    rounds = [line.split(",")[0].split(" of ")[0] for line in said if line.startswith("round ")]
    assert rounds == [f"round {k}" for k in range(1, len(rounds) + 1)]
    assert len(rounds) >= 2
    assert not [line for line in again if line.startswith("round 1 ")]


def test_best_models_of_stages_outlast_the_history():
    node = SimpleNamespace(early_stopping=EarlyStopping(patience=0))
    node.early_stopping.note(1, "merged", 0.5)
    stages = {"merged": {"validation": 0.8, "test": 0.7}}
    first = best_by_stage(node, [{"round": 1, "stages": stages}], {})
    assert first == {"merged": {"round": 1, "validation_loss": 0.5, "validation": 0.8, "test": 0.7}}
    assert best_by_stage(node, [{"round": 9}], first) == first
    node.early_stopping.note(10, "merged", 0.4)
    assert best_by_stage(node, [{"round": 9}], first) == {"merged": {"round": 10, "validation_loss": 0.4}}


@pytest.mark.slow
def test_node_that_goes_back_logs_no_later_round_after_it(tmp_path):
    said = []

    async def test(federation):
        start_watched(federation, "a", tmp_path / "status.json", said)
        while federation.nodes["a"].round < 20:
            await asyncio.sleep(0.01)
        federation.start("b", "c")
        await federation.done()

    play(test, NAMES, Settings(rounds=60, deadline=10.0))
    (back,) = [k for k, line in enumerate(said) if line.startswith("went back from round ")]
    target = re.fullmatch(r"went back from round \d+ to round (\d+) of most members", said[back])[1]
    following = next(line for line in said[back:] if line.startswith("round "))
    assert following.startswith(f"round {target} of 60")


@pytest.mark.slow
def test_restarted_node_logs_no_start_of_a_round_that_it_skips(tmp_path):
    said = []

    async def test(federation):
        federation.start("b", "c")
        await federation.round("b", 10)
        start_watched(federation, "a", tmp_path / "status.json", said)
        await federation.done()

    play(test, NAMES, Settings(rounds=60, deadline=10.0))
    assert "connected members: 3 of 3" in said
    assert any(line.startswith("skipped from round 0 to round ") for line in said)


def test_new_member_is_not_logged_as_missing(tmp_path):
    said = []

    async def test(federation):
        federation.start("b")
        start_watched(federation, "a", tmp_path / "status.json", said)
        await federation.done()
        peering = federation.nodes["a"].exchange.peering
        peering.view.add("d")
        peering.peers["d"] = Peer("d", Member(bytes(32)))
        peering.view.suspect("d", "not connected yet")
        peering.peers["d"].known = True
        peering.view.heard("d")

    play(test, ("a", "b"), Settings(rounds=1, deadline=10.0))
    assert [line for line in said if line.startswith("d ")] == ["d is connected"]


@pytest.mark.parametrize("known", [False, True], ids=["new", "unreached"])
def test_serving_node_logs_peer_once_its_link_is_up(tmp_path, known):
    lines, logged = [], []

    async def test(federation):
        exchange = federation.exchange("a")
        observer = StatusObserver(tmp_path / "status.json", exchange, log_to(lines))
        federation.nodes["a"] = node = federation.make("a", exchange=exchange, observer=observer)
        observer.begin(node)
        peering = exchange.peering
        served = peering.until(lambda: not peering.final, inf)
        federation.running["a"] = asyncio.create_task(node.run(lambda: served))
        while not exchange.outbox.final:
            await asyncio.sleep(0.05)  # virtual seconds
        if known:
            peering.view.suspect("b", "connection lost")
        else:
            peering.remove("b", "not a member yet")
            peering.add("b", Member(federation.keys["b"].public, ("memory:b",)))
        lines.clear()
        federation.start("b")
        await asyncio.sleep(1)
        assert federation.nodes["b"].round == 1
        logged.extend(lines)
        for name in federation.names:
            await federation.kill(name)

    play(test, ("a", "b"), Settings(rounds=6, deadline=10.0), speeds={"b": 20.0})
    assert [line for line in logged if line.startswith("b ")] == ["b is connected"]


# The file


def test_status_file_is_written_at_once_then_after_pauses(tmp_path):
    times = []

    async def main():
        loop = asyncio.get_running_loop()
        file = StatusFile(tmp_path / "status.json", LOG, loop.time, lambda: times.append(loop.time()) or {"history": []})
        file.write(1.0)
        for _ in range(25):
            file.write(1.0)
            await asyncio.sleep(0.1)
        file.write(0.1)  # sooner than the scheduled write
        await asyncio.sleep(5)
        file.write()
        file.write()

    run(main())
    assert times == pytest.approx([0.0, 1.0, 2.0, 2.5, 7.5, 7.5])


def test_status_file_holds_newest_rounds(tmp_path):
    history = [{"round": k} for k in range(1, 2 * SHOWN)]
    StatusFile(tmp_path / "status.json", LOG, lambda: 0.0, lambda: {"state": "running", "history": history}).write(1.0)
    kept = json.loads((tmp_path / "status.json").read_text())["history"]
    assert kept == history[-SHOWN:]


def test_status_file_is_valid_json_for_any_metric(tmp_path):
    rows = [{"round": 1, "test": nan}, {"round": 2, "test": np.float32(0.5)}]
    StatusFile(tmp_path / "status.json", LOG, lambda: 0.0, lambda: {"state": "running", "history": rows}).write()
    found = msgspec.json.decode((tmp_path / "status.json").read_bytes())["history"]
    assert [row["test"] for row in found] == [None, 0.5]


@pytest.mark.slow
def test_status_file_holds_final_state(tmp_path):
    async def test(federation):
        status_observer = start_watched(federation, "a", tmp_path / "status.json", [])
        federation.start("b", "c")
        await federation.done()
        federation.nodes["a"].exchange.view.suspect("b", "gone")
        status_observer.ended("finished")

    play(test, NAMES, SETTINGS)
    state = json.loads((tmp_path / "status.json").read_text())
    assert (state["state"], state["round"]) == ("finished", 6)


def test_failed_node_connects_to_no_peer(tmp_path):
    async def test(federation):
        status_observer = start_watched(federation, "a", tmp_path / "status.json", [])
        status_observer.ended("failed", "cannot listen")
        federation.running["a"].cancel()

    play(test, NAMES, SETTINGS)
    state = json.loads((tmp_path / "status.json").read_text())
    assert [peer["state"] for peer in state["peers"]] == ["not connected", "not connected"]
    assert describe(state) == ["a: failed, round 0 of 6", "  reason  cannot listen"]


def test_status_counts_secure_sums(tmp_path):
    async def test(federation):
        start_watched(federation, "a", tmp_path / "status.json", [])
        federation.running["a"].cancel()

    play(test, NAMES, SETTINGS)
    state = json.loads((tmp_path / "status.json").read_text())
    sums = {"assigned": 3, "missed": 0, "problem": ""}
    assert "  secure sums  3 assigned" in describe(state | {"secure_sums": sums})
    missed = sums | {"missed": 2, "problem": "round 5: the secure sum is not opened"}
    line = "  secure sums  3 assigned, 2 rounds without one; round 5: the secure sum is not opened"
    assert line in describe(state | {"secure_sums": missed})


# Clocks


@pytest.mark.slow
def test_durations_ignore_jumps_of_wall_clock(tmp_path):
    moments = iter([1e9, *[1e9 + jump for jump in (86_400.0, -7200.0, 3e8, -1e9) for _ in range(50)]] * 50)

    async def test(federation):
        federation.start("b", "c")
        status_observer = start_watched(federation, "a", tmp_path / "status.json", [], wall=lambda: next(moments))
        await federation.done()
        rows = status_observer.state["history"]
        assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert all(0 <= row["seconds"] < 10 for row in rows)

    play(test, NAMES, SETTINGS)


def test_status_of_locked_folder_without_file_is_starting(tmp_path):
    with lock_folder(tmp_path):
        assert describe(current(tmp_path)) == ["this node: starting, round 0"]
    assert current(tmp_path) is None


def test_status_of_node_that_left_has_no_traffic(tmp_path):
    config.create(tmp_path / "bob", "bob")
    counts = dict.fromkeys([*KINDS, "models", "control"], 9)
    state = {"name": "bob", "state": "finished", "pid": 0, "round": 3, "rounds": 3, "metric": "accuracy", "history": []}
    state |= {"federation": "home", "federation_id": "ab" * 32, "peers": [], "traffic": {"sent": counts}}
    (tmp_path / "bob" / config.STATUS).write_text(json.dumps(state))
    lines = ["bob: finished, round 3 of 10", "  reason  left the federation home"]  # the rounds of node.toml, as in `list`
    assert describe(current(tmp_path / "bob")) == lines


def test_connected_peer_in_earlier_round_is_behind_not_suspected():
    bob = Peer("bob", Member(bytes(32)))
    bob.link = SimpleNamespace(direct=True, dialled=True, remote="10.0.0.2:4100")
    assert peer_state(bob, "behind, in round 3")["state"] == "behind"
    assert peer_state(bob, "no answer")["state"] == "suspected"
    bob.stopped = True
    done = peer_state(bob, "the broker at 10.0.0.9:1883 does not answer")
    assert (done["state"], done["reason"]) == ("done", "")
    assert peer_state(bob, "")["state"] == "connected"
    bob.link = None
    done = peer_state(bob, "10.0.0.2:4100: connection refused")
    assert (done["state"], done["reason"]) == ("done", "has finished and left")
    assert peer_state(bob, "the broker at 10.0.0.9:1883 does not answer")["reason"].startswith("the broker at")
    bob.stopped = False
    assert peer_state(bob, "behind, in round 3")["state"] == "not connected"


def test_written_state_keeps_rounds_and_drops_peers(tmp_path):
    path, row = tmp_path / config.STATUS, {"round": 3, "validation": 0.5}
    stopped = {"name": "alice", "state": "stopped", "pid": 1, "round": 3, "history": [row], "peers": [{"name": "bob"}]}
    path.write_text(json.dumps(stopped))
    write_state(path, "starting", wall=lambda: 100.0)
    with lock_folder(tmp_path):
        state = current(tmp_path, wall=lambda: 103.0)
    assert describe(state | {"metric": "accuracy"}) == [
        "alice: starting, round 3",
        "  started   3 s ago",
        "  accuracy  validation 0.500, in round 3",
    ]
    path.write_text("{")
    write_state(path, "failed", "no data", wall=lambda: 100.0)
    assert describe(current(tmp_path, wall=lambda: 101.0))[1:] == ["  as of   1 s ago", "  reason  no data"]


def test_status_age_is_never_negative(tmp_path):
    folder = tmp_path
    (folder / config.STATUS).write_text(json.dumps({"state": "stopped", "pid": 1, "history": [], "updated": 5000.0}))
    assert current(folder, wall=lambda: 5010.0)["age"] == 10
    assert current(folder, wall=lambda: 4000.0)["age"] == 0


# Rounds in memory and on disk


class Fast(Random):
    """Policy with a large state, so that its checkpoints are larger than its status."""

    def state(self):
        return {"much": bytes(50_000)}

    def restore(self, state): ...


@pytest.mark.slow
@pytest.mark.parametrize("size", [2**14, 50])  # enough for the status; too small even for that
def test_unsaved_round_is_shown_as_in_memory(tmp_path, size):
    said, shown = [], []

    async def test(federation):
        federation.start("b", "c")
        status_observer = start_watched(federation, "a", tmp_path / "status.json", said)
        while status_observer.state["round"] < 2:
            await asyncio.sleep(0.01)
        with limited(size):
            while status_observer.state["round"] < 4:
                await asyncio.sleep(0.01)
            shown.append(status_observer.fresh() | {"history": []})
            kept = FileStore(tmp_path / "a").load().round
            assert shown[0]["stored"] == kept < 4
            if size > 50:
                assert json.loads((tmp_path / "status.json").read_text())["stored"] == kept
        await federation.done()
        assert status_observer.fresh()["stored"] == status_observer.state["round"] == 6

    play(test, NAMES, SETTINGS, policy=Fast, folder=tmp_path)
    (state,) = shown
    lines = [" ".join(line.split()) for line in describe(state)]
    assert "disk cannot write: File too large" in lines
    assert f"saved round 4 is in memory, round {state['stored']} is on the disk" in lines


@pytest.mark.slow
def test_shown_round_is_always_on_disk(tmp_path):
    """A round that the status shows as done and stored is in the checkpoint, whenever the node ends."""
    seen = []

    async def test(federation):
        federation.start("b", "c")
        status_observer = start_watched(federation, "a", tmp_path / "status.json", [])
        while not federation.running["a"].done():
            state = status_observer.fresh()
            stored = FileStore(tmp_path / "a").load()
            seen.append((min(state["round"], state["stored"]), 0 if stored is None else stored.round))
            await asyncio.sleep(0.003)
        await federation.done()

    play(test, NAMES, SETTINGS, folder=tmp_path)
    assert all(shown <= stored for shown, stored in seen)
    assert {shown for shown, _ in seen} >= {1, 3, 5}


@pytest.mark.slow
def test_concurrently_saved_checkpoints_are_intact(tmp_path):
    async def main(federation):
        federation.start()
        await federation.done()

    play(main, NAMES, SETTINGS, folder=tmp_path)
    store = FileStore(tmp_path / "a")
    last = store.load()
    assert store.round == last.round == 6
    problems = []

    def save(round):
        for _ in range(10):
            store.save(msgspec.structs.replace(last, round=round))
            problems.append(store.problem)

    threads = [threading.Thread(target=save, args=(round,)) for round in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(problems) == {""}
    assert store.round == FileStore(store.path).load().round
    assert list(tmp_path.glob("*.damaged")) == list(tmp_path.glob("*.new")) == []


# Status from the running node


@pytest.fixture
def folder():
    """A node's folder with a short path, as a socket needs it."""
    with tempfile.TemporaryDirectory(prefix="p2pfl", dir="/tmp") as name:
        yield Path(name)


STATE = {"name": "alice", "state": "running", "pid": os.getpid(), "round": 7, "rounds": 9, "history": []}


def gets_answer(folder):
    """Read an answer completely, so that the node waits for the next client."""
    with socket.socket(socket.AF_UNIX) as link, suppress(OSError):
        link.connect(str(folder / reader.NAME))
        while link.recv(2**20):
            pass
        return True
    return False


@contextmanager
def answering(folder, make):
    """Run the status socket of a node in its own thread."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(reader.answer(folder, make))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        while not gets_answer(folder) and thread.is_alive():
            time.sleep(0.001)
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


posix = pytest.mark.skipif(os.name != "posix", reason="there are no Unix sockets")


@posix
def test_status_of_running_node_comes_from_its_socket(folder):
    (folder / config.STATUS).write_text(json.dumps(STATE | {"round": 2, "updated": 0.0}))
    with lock_folder(folder), answering(folder, lambda: json.dumps(STATE).encode()):
        assert current(folder) == STATE
        assert (folder / reader.NAME).stat().st_mode & 0o777 == 0o600
    assert not (folder / reader.NAME).exists()
    assert current(folder)["state"] == "gone"


@posix
@pytest.mark.parametrize("said", [b"", b"{", b"[" * 100_000, b'{"state": 3}', bytes(10)])
def test_invalid_socket_answer_falls_back_to_file(folder, said):
    (folder / config.STATUS).write_text(json.dumps(STATE | {"updated": 100.0}))
    with lock_folder(folder), answering(folder, lambda: said):
        assert current(folder, wall=lambda: 130.0) == STATE | {"updated": 100.0, "age": 30.0}


@posix
def test_stale_socket_of_crash_is_replaced(folder):
    with answering(folder, lambda: b"{}"):
        (folder / "kept").hardlink_to(folder / reader.NAME)
    (folder / "kept").rename(folder / reader.NAME)
    assert reader.ask(folder) is None
    with answering(folder, lambda: json.dumps(STATE).encode()):
        assert reader.ask(folder) == STATE


@posix
def test_folder_path_too_long_for_socket_falls_back_to_file(tmp_path):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    (long / config.STATUS).write_text(json.dumps(STATE | {"updated": 100.0}))
    with lock_folder(long):
        asyncio.run(reader.answer(long, lambda: b""))  # returns
        assert current(long, wall=lambda: 101.0)["age"] == 1.0


@posix
@pytest.mark.parametrize("loop", LOOPS)
def test_socket_closes_without_error_as_client_connects(folder, loop):
    async def main():
        here, errors = asyncio.get_running_loop(), []
        here.set_exception_handler(lambda _, context: errors.append(context))
        task = asyncio.create_task(reader.answer(folder, lambda: b"{}"))
        await asyncio.sleep(0)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(folder / reader.NAME))
            here.call_soon(task.cancel)  # the loop then finds the client in the same turn
            await asyncio.wait([task])
        assert errors == []

    run_on(loop, main())


@pytest.mark.slow
@posix
def test_socket_drops_client_that_does_not_read(folder):
    state = STATE | {"reason": "x" * 2**22}
    with answering(folder, lambda: json.dumps(state).encode()), socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(folder / reader.NAME))
        assert reader.ask(folder) == state
    assert not (folder / reader.NAME).exists()


# As text


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ({"state": "running", "age": 4.2}, "  as of  4 s ago"),
        (
            {"state": "running", "age": 95.0},
            "  as of  95 s ago: the node runs, but it neither answers nor writes its status; the disk may be full, or"
            " the node may hang",
        ),
        ({"state": "gone", "age": 7500.0}, "  as of  2 h ago: the node has ended unexpectedly since then"),
        ({"state": "finished", "age": 400_000.0}, "  as of  5 days ago"),
    ],
)
def test_status_from_file_shows_its_age(state, line):
    assert describe(STATE | state)[1] == line


def test_status_from_node_shows_no_age():
    assert not any(re.search("as of|in memory", line) for line in describe(STATE | {"stored": 7}))


FULL = STATE | {
    "federation": "home",
    "federation_id": "3f9a1c20" + 24 * "0",
    "network": {"listen": ":4101", "broker": ""},
    "metric": "accuracy",
    "best": {"round": 5, "validation": 0.85, "test": 0.84},
    "history": [{"round": 6, "validation": 0.8333, "test": 0.8278}, {"round": 7}],
    "traffic": {"sent": dict.fromkeys(KINDS, 0) | {"update": 2**20, "models": 12, "control": 2048}},
    "peers": [
        {"name": "bob", "state": "connected", "reason": "", "round": 7, "link": "direct", "staleness": 0.31}
        | {"bytes_in": 123_456, "bytes_out": 999},
        {"name": "carol", "state": "not connected", "reason": "10.0.0.2:4100: connection refused", "round": 0, "link": ""}
        | {"staleness": None, "bytes_in": 0, "bytes_out": 0},
    ],
}


def test_members_count_those_that_a_new_federation_waits_for():
    state = FULL | {"peers": [], "state": "waiting", "waiting": {"present": 1, "needed": 3, "seconds": None}}
    assert "  members     1 of 3 connected, this node included" in describe(state)


def test_status_text_has_aligned_columns_and_units():
    assert describe(FULL) == [
        "alice: running, round 7 of 9",
        "  federation  home (3f9a1c20)",
        "  listening   port 4101 of all addresses",
        "  members     2 of 3 connected, this node included",
        "  accuracy    validation 0.833, test 0.828, in round 6",
        "  best model  validation 0.850, test 0.840, in round 5",
        "  sent        12 models, 1.0 MB of models and requests, 2.0 kB of control messages",
        "",
        "  peer   state          round  link    last model  received  sent   reason",
        "  bob    connected      7      direct  0.3 s old   123.5 kB  999 B",
        "  carol  not connected  0      none    none        0 B       0 B    10.0.0.2:4100: connection refused",
    ]


def test_status_shows_scores_with_reasons_and_distrust():
    bob, carol = FULL["peers"]
    bob = bob | {"score": 103, "penalties": {"refused models": 3, "equivocation": 1}}
    carol = carol | {"score": 0, "penalties": {}}
    lines = describe(FULL | {"peers": [bob, carol], "distrust": 0})
    assert next(line for line in lines if "bob" in line).endswith("103: equivocation, refused models 3")
    assert "  distrust    off: no peer is left out for its score" in lines
    bob |= {"state": "left out", "reason": "distrusted: equivocation"}
    lines = describe(FULL | {"peers": [bob, carol], "distrust": 10})
    assert "  distrust    a peer with a score of 10 is left out; now: bob" in lines
    assert not any("distrust" in line for line in describe(FULL))


def test_status_shows_broker_or_its_problem():
    url, problem = "mqtt://host:1883", "the broker at host does not answer"
    state = FULL | {"network": {"listen": "", "broker": url}, "broker": ""}
    assert describe(state)[2] == f"  broker      {url}"
    assert [line for line in describe(state | {"broker": problem}) if "broker" in line] == [f"  broker      {problem}"]


def test_status_says_that_packets_of_an_ended_link_are_harmless():
    (line,) = [line for line in describe(FULL | {"rejected": {"unknown session": 2}}) if "rejected" in line]
    assert "unknown session" in line
    assert line.endswith("packets of an ended link through the broker, harmless")
    (line,) = [line for line in describe(FULL | {"rejected": {"stranger": 2}}) if "rejected" in line]
    assert "harmless" not in line


def test_status_text_shows_best_model_of_each_stage():
    trained = {"round": 4, "validation_loss": 0.9, "validation": 0.7, "test": 0.69}
    merged = {"round": 5, "validation_loss": 0.5, "validation": 0.85, "test": 0.84}
    state = FULL | {"best": FULL["best"] | {"stage": "merged"}, "by_stage": {"trained": trained, "merged": merged}}
    assert [line.strip() for line in describe(state) if "best" in line] == [
        "best model    validation 0.850, test 0.840, in round 5, merged",
        "best trained  validation 0.700, test 0.690, in round 4",
        "best merged   validation 0.850, test 0.840, in round 5",
    ]
    alone = describe(state | {"by_stage": {"trained": merged, "merged": merged}})
    assert [line.strip() for line in alone if "best" in line] == ["best model  validation 0.850, test 0.840, in round 5"]


def test_status_of_node_without_federation_says_alone():
    assert describe(STATE)[0] == "alice: training alone, round 7 of 9"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 days")]
)
def test_duration_is_formatted_in_words(seconds, words):
    assert duration(seconds) == words


def test_deeply_nested_status_file_is_damaged(tmp_path):
    (tmp_path / config.STATUS).write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match="is damaged"):
        current(tmp_path)
