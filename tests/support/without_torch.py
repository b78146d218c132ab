"""Programs and scripts as on a machine without the extra `torch`: every import of torch fails, in their own processes too.

Most tests with processes need no torch: without it, a process starts in a fifth of the time.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(map(str, (ROOT / "tests/support/no_torch", ROOT)))


def call(module, *arguments, cwd=ROOT):
    """Run a module, and return its exit code and its output."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {"PYTHONPATH": PYTHONPATH, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr
