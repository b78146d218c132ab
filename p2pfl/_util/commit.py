"""Commit of the clone that the code runs from, for `--version`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PATIENCE = 5.0  # seconds for git


def describe_version(version: str, root: Path | None = None) -> str:
    """Return a version, with the commit in brackets where the code runs from a clone, such as "0.1.0 (2ec952d1+changes)".

    Args:
        root: folder of the clone; by default the one that contains the package.
    """
    root = Path(__file__).resolve().parents[2] if root is None else root
    commit = find_commit(root) if (root / ".git").exists() else ""  # a worktree has a file of this name
    return f"{version} ({commit})" if commit else version


def find_commit(root: Path) -> str:
    """Return the short hash of a clone's commit, with "+changes" if tracked files differ; "" if git does not tell."""
    # A hook of git sets variables such as GIT_DIR, which name another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=+changes"]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=environment | {"GIT_OPTIONAL_LOCKS": "0"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
