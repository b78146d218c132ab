"""What all tests have in common."""

import os
import signal

import pytest
import torch
from loops import LOOPS, run_on

try:
    import fcntl
except ImportError:  # Windows: run them with one worker
    fcntl = None


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """A job in the background of a shell ignores SIGINT, and so would all processes that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread():
    """Equal bits need equal threads; and two cores are shared by much else."""
    torch.set_num_threads(1)


@pytest.fixture(params=LOOPS)
def on_loop(request):
    """Runs a coroutine; the test is repeated for each event loop that a node may run on."""
    return lambda work: run_on(request.param, work)


def pytest_collection_modifyitems(items):
    """Those that must run alone come last: then workers wait for each other as seldom as can be."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test that is marked `alone` while no other worker runs any."""
    if fcntl is None or not hasattr(item.config, "workerinput"):
        return (yield)
    folder = os.open(item.config.rootpath, os.O_RDONLY)  # what all workers can lock without leaving a file behind
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)
    finally:
        os.close(folder)
