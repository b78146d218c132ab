"""Suspicion of peers, on a simulated clock."""

from dataclasses import dataclass, field
from math import inf, log10

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.node.peering.failure_detector import MAX_HEALTH, AskOthers, Dead, FailureDetector, Ping, Suspect


@dataclass
class Peer:
    """Peer that answers `latency` seconds after a ping, from `wakes` until `dies`; if cut off, it answers only others."""

    latency: float = 0.1
    wakes: float = -inf
    dies: float = inf
    cut_off: bool = False

    def answers(self, now):
        return self.wakes <= now < self.dies


@dataclass
class DisturbedWorld:
    """Detector and its peers on simulated time. Ticks can be late; the detector reads messages of the delay afterwards."""

    peers: dict[str, Peer]
    seed: int = 0
    now: float = 0.0
    arrivals: list = field(default_factory=list)  # (time, method of the detector, name)
    log: list = field(default_factory=list)  # (time, step)
    back: list = field(default_factory=list)  # (time, name) of suspected or dead peers that were heard again
    rest: float = 0.0  # period of a detector that rests
    ticks: int = 0

    def __post_init__(self):
        self.detector = FailureDetector(np.random.default_rng(self.seed), rest=self.rest)
        self.detector.resting = self.rest > 0
        for name in self.peers:
            self.detector.watch(name, self.now)

    def tick(self, lag=0.0):
        due = self.detector.next_tick(self.now)
        self.read(due)
        self.now = due + lag
        self.ticks += 1
        steps = self.detector.tick(self.now)
        for step in steps:
            self.log.append((self.now, step))
            self.do(step)
        self.read(self.now)
        return steps

    def do(self, step):
        match step:
            case Ping(name):
                peer = self.peers[name]
                if peer.answers(self.now) and not peer.cut_off:
                    self.arrivals.append((self.now + peer.latency, self.detector.heard, name))
            case AskOthers(helpers, about):
                assert 1 <= len(helpers) <= 3
                assert about not in helpers
                if self.peers[about].answers(self.now):
                    delays = [self.peers[name].latency for name in helpers if self.peers[name].answers(self.now)]
                    self.arrivals += [(self.now + delay, self.detector.record_indirect_ack, about) for delay in delays]

    def read(self, until):
        come = sorted((a for a in self.arrivals if a[0] <= until), key=lambda a: a[0])
        self.arrivals = [a for a in self.arrivals if a[0] > until]
        for time, method, name in come:
            if method(name, time):
                self.back.append((time, name))

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.tick()

    def time_of(self, kind, name):
        return next((time for time, step in self.log if isinstance(step, kind) and step.name == name), None)

    def steps_of(self, *kinds):
        return [step for _, step in self.log if isinstance(step, kinds)]


def peers(n, **others):
    return {f"peer-{i}": Peer(**others) for i in range(n)}


def suspicion_time(n):
    return max(3.0, 4 * log10(n + 1))


def test_detector_does_not_probe_recently_heard_peer():
    world = DisturbedWorld(peers(5))
    for _ in range(50):
        for name in world.peers:
            world.detector.heard(name, world.now + 0.5)
        assert world.tick() == []


def test_detector_of_fifty_idle_peers_sends_one_ping_per_period():
    world = DisturbedWorld(peers(50))
    world.run(500)
    pings = world.steps_of(Ping)
    assert len(pings) == len(world.log)
    assert 490 <= len(pings) <= 500
    counts = [sum(step.name == name for step in pings) for name in world.peers]
    assert max(counts) - min(counts) <= 2  # each peer in turn


def test_detector_pings_single_idle_peer_every_second_period():
    world = DisturbedWorld(peers(1))
    world.run(100)
    assert 45 <= len(world.steps_of(Ping)) <= 50


def test_detector_at_rest_pings_idle_peers_together_and_seldom():
    world = DisturbedWorld(peers(8), rest=30.0)
    world.run(600)
    pings = [time for time, step in world.log if isinstance(step, Ping)]
    assert len(pings) == len(world.log)
    assert 600 / 60 * 8 - 8 <= len(pings) <= 600 / 30 * 8  # between one and two rest periods for each peer
    assert all(pings.count(time) == 8 for time in pings)
    assert world.ticks <= 1 + 600 / 30 + len({*pings})  # once more after each ping, for its answer


def test_detector_at_rest_pings_nobody_who_was_heard():
    world = DisturbedWorld(peers(8), rest=30.0)
    for _ in range(50):
        world.tick()
        for name in world.peers:
            world.detector.heard(name, world.now + 29.0)
    assert world.log == []


def test_detector_at_rest_pings_no_more_of_many_peers_than_in_a_round():
    world = DisturbedWorld(peers(100), rest=30.0)
    world.run(600)
    times = [time for time, _ in world.log]
    assert max(times.count(time) for time in times) == 30
    assert len(times) <= 600
    assert {step.name for step in world.steps_of(Ping)} == set(world.peers)


def test_end_of_rest_makes_the_next_tick_earlier():
    world = DisturbedWorld(peers(3), rest=300.0)
    for _ in range(4):
        world.tick()
    assert world.detector.next_tick(world.now) > world.now + 200
    world.detector.resting = False
    assert world.detector.next_tick(world.now) == world.now + 1.0
    world.log.clear()
    world.run(10)
    assert 9 <= len(world.steps_of(Ping)) <= 10
    assert world.detector.health == 1


def test_probe_order_is_random_and_reproducible_from_seed():
    orders = []
    for seed in (1, 1, 2):
        world = DisturbedWorld(peers(20), seed)
        world.run(21)
        orders.append([step.name for step in world.steps_of(Ping)])
    assert orders[0] == orders[1] != orders[2]
    assert set(orders[0]) == set(world.peers)


def test_silent_peer_is_probed_then_suspected_then_dead():
    world = DisturbedWorld(peers(4) | {"gone": Peer(dies=0.0)})
    world.run(30)
    about = [(time, step) for time, step in world.log if "gone" in (getattr(step, "name", ""), getattr(step, "about", ""))]
    assert [type(step) for _, step in about] == [Ping, AskOthers, Suspect, Ping, Dead]
    times = [time for time, _ in about]
    assert times[1] - times[0] == times[2] - times[1] == 1.0
    assert suspicion_time(5) <= times[4] - times[2] <= suspicion_time(5) + 1.0
    assert "silent for" in about[2][1].reason


def test_dead_peer_is_not_probed_and_returns_when_heard():
    world = DisturbedWorld(peers(3) | {"gone": Peer(dies=0.0)})
    world.run(30)
    death = world.time_of(Dead, "gone")
    world.run(50)
    assert [time for time, step in world.log if step == Ping("gone") and time > death] == []
    assert world.detector.record_indirect_ack("gone", world.now) is False  # this node itself cannot reach it
    assert world.detector.heard("gone", world.now) is True
    assert world.detector.heard("gone", world.now) is False
    world.run(30)
    assert [step.name for step in world.steps_of(Dead)] == ["gone", "gone"]


def test_peer_reachable_only_by_others_is_not_suspected():
    world = DisturbedWorld(peers(4) | {"far": Peer(cut_off=True)})
    world.run(100)
    assert [step for step in world.steps_of(AskOthers) if step.about == "far"]
    assert world.steps_of(Suspect, Dead) == []


def test_helpers_are_last_heard_peers_without_doubtful_ones():
    detector = FailureDetector(np.random.default_rng(0))
    for name in ("a", "b", "c", "d", "e", "mute", "also mute"):
        detector.watch(name, 0.0)
    asked = []
    for second in range(1, 8):
        for place, name in enumerate("edcba"):
            detector.heard(name, second - 0.5 + place / 100)
        asked += [step for step in detector.tick(float(second)) if isinstance(step, AskOthers)]
    assert {step.about for step in asked} == {"mute", "also mute"}
    assert {step.helpers for step in asked} == {("a", "b", "c")}


def test_detector_without_helpers_pings_peer_again():
    world = DisturbedWorld({"only": Peer(dies=0.0)})
    world.run(12)
    assert [type(step) for step in world.steps_of(Ping, AskOthers, Suspect, Dead)] == [Ping, Ping, Suspect, Ping, Dead]


def test_answer_to_ping_of_suspicion_ends_suspicion():
    world = DisturbedWorld(peers(3) | {"asleep": Peer(wakes=inf)})
    world.run(30)
    suspected = world.time_of(Suspect, "asleep")
    world = DisturbedWorld(peers(3) | {"asleep": Peer(wakes=suspected)})
    world.run(100)
    assert [step.name for step in world.steps_of(Suspect)] == ["asleep"]
    assert world.back == [(suspected + 0.1, "asleep")]
    assert world.steps_of(Dead) == []


def test_detector_ignores_unwatched_and_unknown_peers():
    world = DisturbedWorld(peers(3) | {"gone": Peer(dies=0.0)})
    while not world.steps_of(Suspect):
        world.tick()
    world.detector.unwatch("gone")
    world.detector.unwatch("gone")
    world.log.clear()
    world.run(30)
    assert "gone" not in {step.name for step in world.steps_of(Ping, Dead)}
    assert world.steps_of(Dead, AskOthers) == []
    assert world.detector.heard("nobody", world.now) is False
    assert world.detector.record_indirect_ack("nobody", world.now) is False


def test_watching_again_does_not_count_as_heard():
    detector = FailureDetector(np.random.default_rng(0))
    detector.watch("a", 0.0)
    detector.watch("a", 5.0)
    assert detector.tick(5.1) == [Ping("a")]


def test_detector_without_peers_does_nothing():
    world = DisturbedWorld({})
    world.run(10)
    assert world.log == []
    assert world.now == 10


def test_late_tick_suspects_no_peer_and_extends_waits():
    world = DisturbedWorld({"gone": Peer(dies=0.0)})
    while not world.steps_of(Ping):
        world.tick()
    assert world.tick(lag=30.0) == []
    assert world.detector.health == 2
    assert world.tick() == []  # it now waits two periods
    assert world.detector.health == 1
    assert [type(step) for step in world.tick()] == [Ping]
    assert [type(step) for step in world.tick()] == [Suspect, Ping]


def test_local_health_is_bounded_and_recovers():
    world = DisturbedWorld(peers(3))
    for _ in range(20):
        world.tick(lag=0.5)
    assert world.detector.health == MAX_HEALTH
    for _ in range(20):
        world.tick(lag=0.1)
    assert world.detector.health == 1


def test_detector_on_lagging_event_loop_suspects_no_peer():
    world = DisturbedWorld(peers(5, dies=0.0))
    for _ in range(500):
        world.tick(lag=0.3)
    assert world.steps_of(Suspect, Dead) == []


def test_detector_waits_as_long_as_answers_take_lately():
    world = DisturbedWorld(peers(30, latency=3.0))
    world.run(60)
    begun = len(world.log)
    world.run(60)
    assert {type(step) for _, step in world.log[begun:]} == {Ping}  # no false alarm any more
    for peer in world.peers.values():
        peer.latency = 0.1
    world.run(60)
    world.peers["peer-7"].dies = world.now
    world.run(2 * 30 + 5)
    assert world.time_of(Suspect, "peer-7") is not None
    assert world.time_of(Suspect, "peer-7") <= world.peers["peer-7"].dies + 2 * 30 + 4


def test_report_of_other_peers_tells_nothing_about_the_time_of_answers():
    world = DisturbedWorld(peers(3) | {"cut off": Peer(latency=0.5, cut_off=True)})
    world.run(200)
    assert world.steps_of(AskOthers)
    world.peers["peer-1"].dies = world.now
    world.run(13)
    assert world.time_of(Suspect, "peer-1") <= world.peers["peer-1"].dies + 2 * 4 + 4


@given(
    seed=st.integers(0, 2**32),
    latencies=st.lists(st.floats(0, 0.99), min_size=1, max_size=20),
    lags=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.19, 0.3, 1.5, 60.0]), min_size=1, max_size=30),
)
def test_peer_that_answers_in_time_is_never_suspected(seed, latencies, lags):
    world = DisturbedWorld({f"peer-{i}": Peer(latency) for i, latency in enumerate(latencies)}, seed)
    for i in range(150):
        world.tick(lags[i % len(lags)])
    assert world.steps_of(AskOthers, Suspect, Dead) == []


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 20),
    silent=st.sets(st.integers(0, 19), min_size=1),
    when=st.floats(0, 30),
    busy=st.sets(st.integers(0, 19)),
)
def test_silent_peer_is_suspected_and_dead_within_bounds(seed, n, silent, when, busy):
    gone = {f"peer-{i % n}" for i in silent}
    talking = {f"peer-{i % n}" for i in busy} - gone
    world = DisturbedWorld(peers(n), seed)
    for name in gone:
        world.peers[name].dies = when
    while world.now < when + 2 * n + 20:
        world.tick()
        for name in talking:
            world.detector.heard(name, world.now)
    for name in gone:
        suspected, dead = world.time_of(Suspect, name), world.time_of(Dead, name)
        assert when <= suspected <= when + 2 * n + 4  # its turn in the next cycle, and two periods of probing
        assert suspicion_time(n) <= dead - suspected <= suspicion_time(n) + 1
    assert {step.name for step in world.steps_of(Suspect)} == gone


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 20),
    silent=st.sets(st.integers(0, 19), min_size=1),
    when=st.floats(0, 300),
    rest=st.floats(20, 600),
)
def test_silent_peer_is_suspected_and_dead_within_bounds_at_rest(seed, n, silent, when, rest):
    gone = {f"peer-{i % n}" for i in silent}
    world = DisturbedWorld(peers(n), seed, rest=rest)
    for name in gone:
        world.peers[name].dies = when
    world.run(when + 2 * rest + 20)
    for name in gone:
        suspected, dead = world.time_of(Suspect, name), world.time_of(Dead, name)
        assert when <= suspected <= when + 2 * rest + 4
        assert suspicion_time(n) <= dead - suspected <= suspicion_time(n) + 1
    assert {step.name for step in world.steps_of(Suspect)} == gone


@given(
    seed=st.integers(0, 2**32),
    events=st.lists(
        st.tuples(
            st.sampled_from(["tick", "heard", "record_indirect_ack", "watch", "unwatch"]), st.integers(0, 5), st.floats(0, 9)
        ),
        max_size=200,
    ),
)
def test_steps_come_in_order_and_only_for_watched_peers(seed, events):
    detector, now = FailureDetector(np.random.default_rng(seed)), 0.0
    stage, heard = {}, {}
    before = {Ping: None, AskOthers: Ping, Suspect: AskOthers, Dead: Suspect}
    for kind, number, pause in events:
        name = f"peer-{number}"
        if kind == "tick":
            late = now + pause > detector.next_tick(now) + 0.2
            now = max(now, detector.next_tick(now)) + (pause if late else 0.0)
            for step in detector.tick(now):
                about = step.about if isinstance(step, AskOthers) else step.name
                assert about in stage
                match step:
                    case Ping() if stage[about] is Suspect:
                        continue  # the ping that accompanies the suspicion
                    case Ping() if stage[about] is Ping:
                        stage[about] = AskOthers  # there is no other peer to ask
                    case _:
                        assert stage[about] is before[type(step)]
                        assert not isinstance(step, AskOthers) or {*step.helpers} <= {*stage} - {about}
                        stage[about] = type(step)
                assert now - heard[about] >= detector.period
        elif kind == "watch":
            detector.watch(name, now)
            stage.setdefault(name, None)
            heard.setdefault(name, now)
        elif kind == "unwatch":
            detector.unwatch(name)
            stage.pop(name, None)
            heard.pop(name, None)
        elif name in stage and not (kind == "record_indirect_ack" and stage[name] in (None, Dead)):
            assert getattr(detector, kind)(name, now) is (stage[name] in (Suspect, Dead))
            stage[name], heard[name] = None, now
        else:
            assert getattr(detector, kind)(name, now) is False


@pytest.mark.parametrize("period", [0.25, 5.0])
def test_all_waits_scale_with_period(period):
    detector, now, log = FailureDetector(np.random.default_rng(0), period), 0.0, []
    detector.watch("gone", now)
    while not any(isinstance(step, Dead) for _, step in log):
        now = detector.next_tick(now)
        log += [(now / period, step) for step in detector.tick(now)]
    assert [time for time, _ in log] == [1, 2, 3, 3, 6]
