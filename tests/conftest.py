"""Shared fixtures and options of all tests."""

import gc
import os
import signal

import pytest
from hypothesis import settings

from tests.support.depth import many
from tests.support.extras import skip_without_extras
from tests.support.loops import LOOPS, run_on

try:
    import fcntl
except ImportError:  # Windows: run them with one worker
    fcntl = None

# One thread of torch and of linear algebra, also in processes that tests start: equal bits need equal threads, the cores are
# shared, and threads that wait for work cost as much as those that do it.
os.environ["OMP_NUM_THREADS"] = "1"

LONG = 1.0  # seconds after which a test must be marked `slow`

FIRST, *OTHERS = LOOPS

# An example has no deadline: on a busy machine a process may stand still for longer than any that would help.
settings.register_profile("whole", deadline=None, max_examples=many(25, 300))
settings.register_profile("quick", deadline=None, max_examples=8)  # for tests that do not set a number of examples
settings.load_profile("whole")


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """Restore SIGINT, which background jobs of a shell ignore: tests interrupt the processes that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=[FIRST, *(pytest.param(loop, marks=pytest.mark.slow) for loop in OTHERS)])
def on_loop(request):
    """Function that runs a coroutine; the test is repeated for each event loop that a node supports."""
    return lambda work: run_on(request.param, work)


def pytest_addoption(parser):
    parser.addoption("--strict-slow", action="store_true", help="name the tests that take long and are not marked `slow`")


def pytest_terminal_summary(terminalreporter, config):
    """Report slow tests without failing: their times depend on the load of the machine."""
    if not config.getoption("--strict-slow"):
        return
    reports = {id(report): report for some in terminalreporter.stats.values() for report in some}.values()
    calls = [report for report in reports if getattr(report, "when", None) == "call" and "slow" not in report.keywords]
    if unmarked := sorted(((report.duration, report.nodeid) for report in calls if report.duration > LONG), reverse=True):
        terminalreporter.section(f"longer than {LONG:g} s and not marked `slow`")
        for seconds, name in unmarked:
            terminalreporter.line(f"{seconds:.2f}s {name}")


def pytest_collection_modifyitems(items):
    """Sort tests that must run alone to the end, so that workers rarely wait for each other."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def pytest_collection_finish():
    """Keep modules and tests out of later searches for garbage: nothing in them is ever released."""
    gc.collect()
    gc.freeze()


class Module(pytest.Module):
    """Module of tests, skipped if it imports a library of an extra that is not installed."""

    def collect(self):
        with skip_without_extras():
            return super().collect()


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    with skip_without_extras():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    with skip_without_extras():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test that is marked `alone` while no other worker runs any."""
    if fcntl is None or not hasattr(item.config, "workerinput"):
        return (yield)
    folder = os.open(item.config.rootpath, os.O_RDONLY)  # all workers can lock it, and no file remains
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)
    finally:
        os.close(folder)
