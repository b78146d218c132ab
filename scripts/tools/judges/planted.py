"""Planted faults: each is put into a copy of this tree, where its judge must find a violation.

A judge that cannot fail says nothing. `scripts/judges --planted` plants one fault for each judge below, after it has seen
that the judge finds none in the copy without the fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from scripts.tools import ROOT

SKIPPED = ".git", "__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "_build"


class Fault(NamedTuple):
    """A change of one place of a file.

    Attributes:
        judge: full name of the judge that must find it.
        what: the fault in words.
        file: relative to the root.
        text: occurs in the file once.
        fault: in its place.
    """

    judge: str
    what: str
    file: str
    text: str
    fault: str


FAULTS = (
    Fault(
        "mathematics.rules",
        "a trimmed mean cuts one rank less",
        "p2pfl/robust/coordinate_wise.py",
        "weights, self.attackers_among(index.shape[1] - 1))",
        "weights, max(0, self.attackers_among(index.shape[1] - 1) - 1))",
    ),
    Fault(
        "mathematics.attacks",
        "an attack takes the deviation of a population",
        "p2pfl/attacks/attack.py",
        "ddof=1 if len(stack) > 1 else 0",
        "ddof=0",
    ),
    Fault(
        "mathematics.fronts",
        "the reference of the hypervolume has the wrong sign",
        "p2pfl/pareto_metrics.py",
        "sides = front - worst",
        "sides = front + worst",
    ),
    Fault(
        "mathematics.fairness",
        "a group that lacks a label counts with the rate 0",
        "p2pfl/fairness/metrics.py",
        "there = sizes > 0",
        "there = sizes >= 0",
    ),
    Fault(
        "mathematics.divisions",
        "proportions are drawn with another concentration",
        "p2pfl/data/partition/label_partition.py",
        "rng.dirichlet(np.full(n, alpha))",
        "rng.dirichlet(np.full(n, 1.5 * alpha))",
    ),
    Fault(
        "mathematics.optimisers",
        "Adam corrects the second moment by the first beta",
        "p2pfl/learning/optimizers.py",
        "1 - beta2**steps",
        "1 - beta1**steps",
    ),
    Fault(
        "mathematics.schedules",
        "a warm-up is one round late",
        "p2pfl/learning/schedules.py",
        "(past + 1) / (self.warmup + 1)",
        "past / (self.warmup + 1)",
    ),
    Fault(
        "mathematics.losses",
        "balanced accuracy weights classes by their samples",
        "p2pfl/learning/measures.py",
        "return float(np.mean([right[targets == label].mean() for label in np.unique(targets)]))",
        "return float(right.mean())",
    ),
    Fault(
        "mathematics.graphs",
        "mixing weights take the lower degree",
        "topologies/graph_properties.py",
        "np.maximum(sums[:, None], sums[None, :])",
        "np.minimum(sums[:, None], sums[None, :])",
    ),
    Fault(
        "mathematics.findings",
        "the spread is that of a population",
        "sim/report/comparison.py",
        "self.differences.std(ddof=1)",
        "self.differences.std(ddof=0)",
    ),
    Fault(
        "mathematics.draws",
        "a peer that is drawn can be drawn again",
        "p2pfl/algorithms/selection.py",
        "left[picks] = 0.0",
        "left[picks] *= 0.9",
    ),
    Fault("packaging.scripts", "a variable without quotes", "scripts/docs", '"$@" docs', "$@ docs"),
    Fault(
        "packaging.workflow-security",
        "an action that is not pinned by hash",
        ".github/workflows/ci.yml",
        "@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2",
        "@v4",
    ),
    Fault(
        "packaging.unit",
        "a unit without its sandbox",
        "deploy/p2pfl-node.service",
        "CapabilityBoundingSet=\nProtectSystem=strict\n",
        "",
    ),
    Fault("packaging.image", "a change of folder inside a command", "deploy/Containerfile", "\nRUN ", "\nRUN cd /tmp && "),
    Fault(
        "packaging.playbook",
        "a command that always reports a change",
        "deploy/ansible/site.yaml",
        "          register: request\n          changed_when: false\n",
        "          register: request\n",
    ),
    Fault(
        "packaging.links",
        "a link to a section that is not there",
        "docs/index.md",
        "how-to/install.md#a-light-node",
        "how-to/install.md#a-heavy-node",
    ),
)


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy of this tree, whose environment is that of this tree."""
    with tempfile.TemporaryDirectory(prefix="p2pfl-planted-") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".venv*", *SKIPPED))
        (copy / ".venv").symlink_to(ROOT / ".venv")
        yield copy


def judged(name: str, tree: Path) -> tuple[int, str]:
    """Run one judge in a tree, and return its exit status and what it wrote."""
    command = [sys.executable, "-m", "scripts.tools.judges", name]
    done = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    return done.returncode, done.stdout + done.stderr


def found(fault: Fault, tree: Path) -> str:
    """Plant a fault, ask its judge, and take the fault back; return "" if the judge found it, else what is wrong."""
    path = tree / fault.file
    text = path.read_text(encoding="utf-8")
    if fault.text not in text:
        return f"{fault.file} has no {fault.text!r}: the fault must be planted elsewhere"
    before, told = judged(fault.judge, tree)
    if before or "\ncannot run here" in f"\n{told}":
        return f"the judge does not pass without the fault: {told[:400]}"
    path.write_text(text.replace(fault.text, fault.fault, 1), encoding="utf-8")
    try:
        after, told = judged(fault.judge, tree)
    finally:
        path.write_text(text, encoding="utf-8")
    if after != 1 or "the judge failed with" in told:
        return f"the judge does not find it: {told[:400]}"
    return ""


def main(names: list[str]) -> int:
    """Plant the faults of the named judges or fields, all without a name; return 1 if a judge misses one."""
    missed = 0
    with copied() as tree:
        for fault in FAULTS:
            if names and fault.judge not in names and not {*fault.judge.split(".")} & {*names}:
                continue
            wrong = found(fault, tree)
            missed += bool(wrong)
            print(
                f"{'missed' if wrong else 'found':<8} {fault.judge:<28} {fault.what}{': ' + wrong if wrong else ''}",
                flush=True,
            )
    return 1 if missed else 0
