"""Code blocks of the README, for tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import forked
from tests.support.extras import skip_if_wanted

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S)
FILES = {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCKS if kind in ("python", "toml")}
COMMANDS = [text for kind, text in BLOCKS if kind == "sh"]


def block(word):
    """Return the one block of commands with this word in it."""
    (found,) = [text for text in COMMANDS if word in text]
    return found


def bash(command, folder, timeout=280):
    """Run shell commands in a folder; return their output. Commands of p2pfl are forked where that is possible."""
    folders = [*([forked.commands()] if forked.POSSIBLE else []), Path(sys.executable).parent, os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )
    if done.returncode:
        skip_if_wanted(done.stdout + done.stderr)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
