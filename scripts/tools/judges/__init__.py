"""Judges from outside: programs and libraries that others keep, each asked about the part that is its business.

Each module of this package is a field and has a list `JUDGES`. A judge runs an outside tool on what this project makes,
or computes the same figures with it, and returns what it found. `python -m scripts.tools.judges` runs them; scripts/judges
makes the environment first. The page docs/judged-by.md lists judges, results and exceptions.

A tool that is missing is no success: its judge raises `CannotRunError` with the reason, and the summary counts it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from scripts.tools import ROOT

FIELDS = "mathematics", "packaging", "pages", "wire"
"""Modules of this package that have judges, in the order in which they run."""


class CannotRunError(Exception):
    """The judge cannot run on this machine; the text says why."""


@dataclass(frozen=True)
class Verdict:
    """Result of a judge.

    Attributes:
        violations: one line for each; none if all is well.
        seen: what was judged, with its number: "412 merges".
        excepted: known differences that are no violation, each with its number and reason.
    """

    violations: Sequence[str] = ()
    seen: str = ""
    excepted: Sequence[str] = ()


@dataclass(frozen=True)
class Judge:
    """One judge.

    Attributes:
        name: its name within its field.
        version: returns the outside tool and its version as found; raises CannotRunError if the tool is missing.
        checks: what it checks, in one line.
        judge: returns the verdict; raises CannotRunError.
        long: whether it takes minutes, so that it runs with --long only.
    """

    name: str
    version: Callable[[], str]
    checks: str
    judge: Callable[[], Verdict]
    long: bool = False


def distribution(*names: str) -> Callable[[], str]:
    """Return a `Judge.version` that names installed Python packages."""

    def version() -> str:
        try:
            return ", ".join(f"{name} {metadata.version(name)}" for name in names)
        except metadata.PackageNotFoundError as error:
            raise CannotRunError(f"{error.name} is not installed") from error

    return version


def program(name: str, *arguments: str) -> Callable[[], str]:
    """Return a `Judge.version` that asks a program; its first line that has a digit counts."""

    def version() -> str:
        done = run(name, *arguments)
        lines = [line.strip() for line in done.stdout.splitlines() if any(map(str.isdigit, line))]
        found = lines[0] if lines else "(unknown version)"
        return found if found.lower().startswith(name) else f"{name} {found}"

    return version


def find_program(name: str) -> str:
    """Return the path of a program, first of this environment and then of PATH.

    Raises:
        CannotRunError: it is not installed.
    """
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise CannotRunError(f"{name} is not installed")
    return found


COLOURED = "CI", "GITHUB_ACTIONS", "FORCE_COLOR", "CLICOLOR_FORCE"
"""Variables of the environment at which tools write colours or other codes, also into a pipe."""


def run(name: str, *arguments: str, cwd: Path = ROOT, apart: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its status and what it wrote, without colours.

    Args:
        name: the program.
        arguments: its arguments.
        cwd: the folder that it runs in.
        apart: whether `stdout` has standard output alone, for what a program reads; else it has both streams.

    Raises:
        CannotRunError: it is not installed.
    """
    command = [find_program(name), *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in COLOURED} | {"NO_COLOR": "1"}
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if apart else subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
