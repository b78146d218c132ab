"""Mutation testing of the algorithm modules: mutmut changes their code in one place, and their tests should notice.

mutmut does not follow the links from p2pfl/ to the other folders. So it works on a copy, in which p2pfl is one folder as in
an installation. Of a module with many mutants a sample is taken, spread evenly over its functions.

Some mutants behave as the original does, and are explained: some as a class (`EXPLAINED`), others one by one in
tests/mutants.toml, which also has the results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from scripts.tools import ROOT

FOLDER = ROOT / ".mutants"
REMARKS = ROOT / "tests" / "mutants.toml"
LEAST = 0.9  # share of the mutants that must be killed or explained
KILLED, SURVIVED, UNTESTED = (1, 3, 36, 24, 152, 255, -24), (0, 2), (5, 33)  # exit codes of mutmut; 36 and 24: too slow


class Module(NamedTuple):
    """Module to mutate.

    Attributes:
        files: its files, in p2pfl.
        tests: its tests, of which those that are not marked `slow` run.
        sample: last digits of the numbers of the mutants of each function that are tried.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    sample: str


MODULES: Mapping[str, Module] = {
    "dac": Module(("policies/dac.py",), ("p2pfl/policies/test_policies.py",), "147"),
    "ggc": Module(("algorithms/ggc.py",), ("p2pfl/algorithms/test_ggc.py", "p2pfl/policies/test_policies_dpfl.py"), "1357"),
    "dpfl": Module(("policies/dpfl.py",), ("p2pfl/policies/test_policies_dpfl.py",), "147"),
    "similarity": Module(
        ("algorithms/similarity.py", "algorithms/selection.py"),
        ("p2pfl/algorithms/test_similarity.py", "p2pfl/algorithms/test_selection.py", "p2pfl/policies/test_policies.py"),
        "147",
    ),
    "robust": Module(
        ("robust/coordinate_wise.py", "robust/selection.py", "robust/clipping.py", "robust/candidates.py"),
        ("p2pfl/robust", "node/test_robust.py", "node/coordination/test_hostile_assignments.py"),
        "3",
    ),
    "budget": Module(("budget.py",), ("p2pfl/test_budget.py",), "147"),
    "membership": Module(
        ("protocols/membership/log.py",), ("protocols/membership", "conformance/test_golden_project.py"), "16"
    ),
    "election": Module(("protocols/election.py",), ("protocols/election", "conformance/test_golden_project.py"), "16"),
    "pareto": Module(("pareto_metrics.py",), ("p2pfl/test_pareto_metrics.py",), "1357"),
}
# Differences that are none of behaviour: a pattern of all that is left out before the original and the mutant are compared.
LENGTHS = r",?\s*strict\s*=\s*\w+|,\s*(?=\))"  # of zip: an assertion
# The words of an error, of which tests compare the part that matters; but not its cause, which peers and logs depend on.
WORDS = r"""(ProtocolError\((?:"[^"]*"|None))|f?"[^"]*"|f?'[^']*'|str\((?:error|None)\)|\bNone\b"""
_ERROR = re.compile(r"Error\(|raise |must_be\(|refuse|^\s*f?\"[^\"]* [^\"]*\",?$")


def prepare(name: str, module: Module) -> Path:
    """Return a folder with a copy of the project and the settings of mutmut for a module."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in ("p2pfl", "tests", "docs", "scripts", "examples", "deploy"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    settings = {
        "source_paths": ["p2pfl"],
        "only_mutate": [f"p2pfl/{file}" for file in module.files],
        "also_copy": ["docs", "scripts", "examples", "deploy"],
        "pytest_add_cli_args": ["-m", "not slow", "--hypothesis-profile=quick", "--hypothesis-seed=0", "-p", "no:xdist"],
        "pytest_add_cli_args_test_selection": [f"tests/{tests}" for tests in module.tests],
        "use_git_change_detection": False,
    }
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(f"{project}\n[tool.mutmut]\n{table}\n", encoding="utf-8")
    return folder


def mutmut(folder: Path, *arguments: str) -> str:
    """Run mutmut, and return what it prints."""
    found = subprocess.run(["mutmut", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"mutmut has failed:\n{found.stdout[-3000:]}{found.stderr[-3000:]}")
    return found.stdout


def results(folder: Path) -> dict[str, int]:
    """Return mutmut's exit codes of the mutants that were tried, by name."""
    files = sorted((folder / "mutants" / "p2pfl").rglob("*.py.meta"))
    codes: dict[str, Any] = {}
    for file in files:
        codes |= json.loads(file.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {mutant: code for mutant, code in codes.items() if code is not None}


def change(mutant: str) -> tuple[str, str]:
    """Return the lines that a mutant replaces, and its own. The current folder must be that of the module."""
    differences = import_module("mutmut.mutation.diff_apply")
    lines = differences.get_diff_for_mutant(mutant, path=differences.find_mutant(mutant).path).splitlines()
    removed, added = (
        "\n".join(line[1:] for line in lines if line.startswith(sign) and not line.startswith(3 * sign)) for sign in "-+"
    )
    return removed, added


def is_explained(removed: str, added: str, by_hand: Collection[tuple[str, str]]) -> bool:
    """Return whether a mutant behaves as the original does."""
    if (removed.strip(), added.strip()) in by_hand or re.sub(LENGTHS, "", removed) == re.sub(LENGTHS, "", added):
        return True
    original, mutant = (re.sub(WORDS, r"\1", lines) for lines in (removed, added))
    return _ERROR.search(removed) is not None and original == mutant


def explained_by_hand(name: str) -> set[tuple[str, str]]:
    """Return the changes of a module that were looked at and explained: the original lines and those of the mutant."""
    remarks = tomllib.loads(REMARKS.read_text(encoding="utf-8"))
    return {(each["line"], mutant) for each in remarks[name].get("equal", ()) for mutant in each["mutants"]}


def survivors(name: str, folder: Path, codes: Mapping[str, int]) -> tuple[list[tuple[str, str, str]], int]:
    """Return the mutants that should have been noticed, each with its change, and the number of the explained ones."""
    left, explained, by_hand = [], 0, explained_by_hand(name)
    with chdir(folder):
        import_module("mutmut.configuration").reset_config()
        changes = {mutant: change(mutant) for mutant, code in codes.items() if code not in KILLED}
    for mutant, (removed, added) in changes.items():
        if is_explained(removed, added, by_hand):
            explained += 1
        else:
            left.append((f"{mutant} (no test reaches it)" if codes[mutant] in UNTESTED else mutant, removed, added))
    return left, explained


def report(name: str, folder: Path) -> bool:
    """Print the result of a module, and return whether enough mutants were noticed."""
    codes = results(folder)
    left, explained = survivors(name, folder, codes)
    killed, total = sum(code in KILLED for code in codes.values()), len(codes)
    share = killed / max(1, total - explained)
    print(f"{name:10} {killed} of {total} killed, {explained} explained, {len(left)} left: {share:.1%}", flush=True)
    return share >= LEAST


def show(name: str) -> None:
    """Print the changes that a module's tests did not notice in the last run."""
    folder = FOLDER / name
    for mutant, removed, added in survivors(name, folder, results(folder))[0]:
        print(f"{mutant}\n- {removed.strip()}\n+ {added.strip()}")


def run(names: Iterable[str], every: bool) -> bool:
    """Try the mutants of modules; return whether enough of each were noticed."""
    enough = True
    for name in names:
        module = MODULES[name]
        folder = prepare(name, module)
        mutmut(folder, "run", "--max-children", "1", *([] if every else [f"*mutmut_*[{module.sample}]"]))
        enough &= report(name, folder)
    return enough


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="those to mutate (all)")
    parser.add_argument("--list", action="store_true", help="only list the modules")
    parser.add_argument("--all", action="store_true", help="every mutant, not only a sample")
    parser.add_argument("--show", metavar="MODULE", help="print the changes that its tests did not notice in the last run")
    given = parser.parse_args()
    if unknown := {*given.modules, *filter(None, [given.show])} - set(MODULES):
        parser.error(f"unknown module {min(unknown)!r}: {', '.join(MODULES)}")
    if given.list:
        print("\n".join(f"{name:10} {', '.join(module.files)}" for name, module in MODULES.items()))
        return 0
    if given.show:
        show(given.show)
        return 0
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return 0 if run(given.modules or MODULES, given.all) else 1


if __name__ == "__main__":
    sys.exit(main())
