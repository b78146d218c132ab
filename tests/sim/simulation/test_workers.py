import os
import time

import pytest

from p2pfl.sim.simulation.workers import Worker, answer, end_all, processor_seconds


def compute(pipe):
    answer(pipe, spend)


def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return time.process_time()


@pytest.mark.slow
def test_time_of_ended_worker_is_counted():
    before, own = processor_seconds(), sum(os.times()[:2])
    worker = Worker(compute)
    try:
        worker.give(0.5)
        spent = worker.take()
    finally:
        end_all([worker])
    assert spent >= 0.5
    assert processor_seconds() - before >= 0.5
    assert sum(os.times()[:2]) - own < 0.5  # the time is not this process's own


def look(pipe):
    answer(pipe, os.environ.get)


@pytest.mark.slow
def test_worker_has_the_environment_of_its_start(monkeypatch):
    found = []
    for value in ("first", "second", None):
        if value is None:
            monkeypatch.delenv("P2PFL_DATA")
        else:
            monkeypatch.setenv("P2PFL_DATA", value)
        worker = Worker(look)
        try:
            worker.give("P2PFL_DATA")
            found.append(worker.take())
        finally:
            end_all([worker])
    assert found == ["first", "second", None]
