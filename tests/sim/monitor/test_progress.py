"""Progress of runs on a terminal."""

import sys
from io import StringIO

from p2pfl.sim.monitor.progress import progress_bar


class Terminal(StringIO):
    """Stream that says that it is a terminal."""

    def isatty(self):
        return True


def test_bar_shows_words_with_brackets(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(2, False, str) as (advance, show):
        show("[red] a [/b]")
        advance(2)
    assert "[red] a [/b]" in sys.stderr.getvalue()
