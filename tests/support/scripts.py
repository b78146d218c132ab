"""Tests written as text: events, and indented below each what follows from it.

A script is compared with what its events lead to today. `P2PFL_REWRITE=1` writes that into the script instead, for a
reviewer to read in the diff.
"""

import os
from pathlib import Path


class World:
    """World of one script. The event "start a 3" calls `do_start("a", "3")`, which calls `say` with each consequence."""

    def __init__(self):
        self.said = []

    def say(self, line):
        self.said.append(line)

    def follow(self, text):
        """Return a script with the consequences of its events; blank lines and comments stay."""
        lines = []
        for line in text.splitlines():
            if not line.startswith(" "):
                lines.append(line)
                if line and not line.startswith("#"):
                    self.said = []
                    event, *words = line.split()
                    getattr(self, f"do_{event}")(*words)
                    lines += [f"  {said}" for said in self.said]
        return "\n".join(lines) + "\n"


def scripts_in(folder):
    """Return the scripts of a folder."""
    found = sorted(Path(folder).glob("*.txt"))
    assert found, f"no scripts in {folder}"
    return found


def check(script, world):
    """Compare a script with what follows from its events in a world, or rewrite it."""
    expected = script.read_text()
    followed = world.follow(expected)
    if os.environ.get("P2PFL_REWRITE"):
        script.write_text(followed)
    assert followed == expected
