"""Progress of runs on a terminal."""

import re
import sys
from io import StringIO

from p2pfl.sim.monitor.monitor import line, line_of, progress_bar
from p2pfl.sim.monitor.run_monitor import RunMonitor
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.scenario.sweep import parse, sweep
from tests.support.simulated import run


class Terminal(StringIO):
    """Stream that says that it is a terminal."""

    def isatty(self):
        return True


def test_line_names_run_of_a_sweep_in_words():
    scenario = {"nodes": 3, "rounds": 1, "task": "concept-shift"}
    file = sweep(resolve(scenario, [], "study", "."), parse(["topology.name=ring"]))
    assert re.fullmatch(r"topology=ring, seed 0: [\d.]+ \(.* s\)", line_of(file)(result_of(run(file.runs[0]))))
    assert line(RunMonitor(file), RunMonitor(file).rows[0]).startswith("topology=ring, seed 0: round 0 of 1")


def test_bar_shows_words_with_brackets(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(2, False, str) as (advance, show):
        show("[red] a [/b]")
        advance(2)
    assert "[red] a [/b]" in sys.stderr.getvalue()
