"""Version of p2pfl; `pyproject.toml` reads it from here."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"
_PATIENCE = 5.0  # seconds for git


def describe_version(root: Path | None = None) -> str:
    """Return the version, with the commit in brackets where the code runs from a clone, such as "0.1.0 (2ec952d1+changes)".

    Args:
        root: folder of the clone; by default the one that contains the package.
    """
    root = Path(__file__).resolve().parents[1] if root is None else root
    commit = _find_commit(root) if (root / ".git").exists() else ""  # a worktree has a file of this name
    return f"{__version__} ({commit})" if commit else __version__


def _find_commit(root: Path) -> str:
    """Return the short hash of a clone's commit, with "+changes" if tracked files differ; "" if git does not tell."""
    import os
    import subprocess

    # A hook of git sets variables such as GIT_DIR, which name another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=+changes"]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, env=environment | {"GIT_OPTIONAL_LOCKS": "0"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
