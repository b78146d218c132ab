"""Programs and scripts as on a machine without the extra `torch`: every import of torch fails.

Usage: python -m tests.support.without_torch MODULE ARGUMENT ...
"""

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command(module, *arguments):
    return [sys.executable, "-m", "tests.support.without_torch", module, *map(str, arguments)]


def call(module, *arguments, cwd=ROOT):
    """Run a module, and return its exit code and its output."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command(module, *arguments), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.modules["torch"] = None  # the import system then raises ModuleNotFoundError
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
