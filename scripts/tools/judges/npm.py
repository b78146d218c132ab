"""Judges that npm keeps: packages of a fixed version in .venv/judges-npm; nothing of theirs runs at the installation."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from scripts.tools import ROOT
from scripts.tools.judges import CannotRunError, find_program, run

FOLDER = ROOT / ".venv" / "judges-npm"
VERSIONS = {"aedes": "1.2.0", "csp_evaluator": "1.1.8", "vnu-jar": "26.9.27"}


@functools.cache
def package(name: str) -> Path:
    """Return the folder of an installed package; install it if it is not there.

    Raises:
        CannotRunError: npm is not installed, or could not install the package.
    """
    folder = FOLDER / "node_modules" / name
    if not _is_installed(folder, VERSIONS[name]):
        FOLDER.mkdir(parents=True, exist_ok=True)
        wanted = f"{name}@{VERSIONS[name]}"
        find_program("node")
        done = run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(FOLDER), wanted)
        if done.returncode:
            raise CannotRunError(f"npm could not install {wanted}: {done.stdout.strip().splitlines()[-1]}")
    return folder


def _is_installed(folder: Path, version: str) -> bool:
    about = folder / "package.json"
    return about.is_file() and json.loads(about.read_text())["version"] == version


def version(name: str) -> str:
    """Return a package and its version; see package."""
    package(name)
    return f"{name} {VERSIONS[name]}"
