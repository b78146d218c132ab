"""Checks of the installation, which both commands `doctor` begin with; and the findings of all their checks.

What stops the next command often has nothing to do with the command: an extra is missing, the command belongs to another
environment, another package called p2pfl is in the way, or pip has replaced an editable installation by a copy, so that a
`git pull` has no effect. Each check takes what it looks at as arguments, and changes nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import p2pfl
from p2pfl._version import __version__
from p2pfl.task_specs import TASKS

NAME = "p2pfl-node"  # of the distribution
OTHER = "p2pfl"  # a distribution of another project
CLONE = re.compile(rf'^name = "{NAME}"', re.MULTILINE)
TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}  # extras of trackers, and their modules
WITHOUT_TORCH = ("classification", "concept-shift", "deep-sea-treasure", "digits", "regression")  # tasks
NUMPY_OPTIMISERS = ("", "sgd")


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        check: the subject of the check, in one word.
        ok: True, False, or None if it may be intended.
        result: the result.
        remedy: the remedy; "" if none is needed.
    """

    check: str
    ok: bool | None
    result: str
    remedy: str = ""


def report(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each finding."""
    marks = {True: "ok   ", False: "wrong", None: "note "}
    return [f"{marks[f.ok]}  {f.check}: {f.result}" + (f"; {f.remedy}" if f.remedy else "") for f in findings]


def check_installation(here: Path | None = None, command: str = NAME) -> list[Finding]:
    """Check which p2pfl runs, and whether another one is in the way.

    Args:
        here: the current folder.
        command: the command that runs, to look for it on PATH.
    """
    here = Path.cwd() if here is None else here
    package = Path(str(p2pfl.__file__)).resolve().parent
    found = [check_package(package, here, _distribution(NAME), _distribution(OTHER))]
    return [*found, *check_path(command, shutil.which(command), Path(sys.executable)), *check_shadow(here, package)]


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def check_package(package: Path, here: Path, own: Distribution | None, other: Distribution | None) -> Finding:
    """Check where the package comes from.

    Args:
        package: the folder of the imported package p2pfl.
        here: the current folder; in a clone of the repository, that clone should run.
        own, other: the installed distributions of this project, and of the other one with this package name.
    """
    if other is not None:
        both = "the distribution p2pfl, another project, is installed too, and its files replace some of this one"
        return Finding(
            "installation", False, both, "pip uninstall -y p2pfl p2pfl-node, and install again; see fix-an-import-conflict"
        )
    version = f"p2pfl {__version__} in {package}"
    source, editable = source_of(own)
    if editable:
        return Finding("installation", True, f"{version}, editable")
    clone = next((folder for folder in (here, *here.parents) if _is_clone(folder)), source)
    remedy = f"run pip install -c constraints.txt -e '.[EXTRAS]' in {clone} to run its files"
    if clone is None or not _is_clone(clone) or (package.is_relative_to(clone) and source is None):
        return Finding("installation", True, version)
    if package == (clone / "p2pfl").resolve():
        return Finding("installation", True, f"{version}, the clone itself")
    if changed := differing(clone, package):
        result = f"{version} is a copy, and {changed} in {clone} differs: changes there have no effect"
        return Finding("installation", False, result, remedy)
    return Finding("installation", None, f"{version} is a copy of {clone}: later changes there have no effect", remedy)


def source_of(own: Distribution | None) -> tuple[Path | None, bool]:
    """Return the folder from which pip has installed this project, None if it is not known; and whether it is editable."""
    text = None if own is None else own.read_text("direct_url.json")
    try:
        about: Any = json.loads(text) if text else {}
    except ValueError:
        about = {}
    url = urlsplit(str(about.get("url", ""))) if isinstance(about, dict) else urlsplit("")
    if url.scheme != "file":
        return None, False
    folder = Path(url2pathname(url.path))
    info = about.get("dir_info")
    return folder, isinstance(info, dict) and bool(info.get("editable"))


def differing(clone: Path, package: Path) -> str:
    """Return the first Python file in which a clone and a copy of it differ; "" if there is none."""
    for inside in ("p2pfl", "node", "protocols", "topologies", "sim"):
        target = package if inside == "p2pfl" else package / inside
        for path in sorted((clone / inside).rglob("*.py")):
            place = path.relative_to(clone / inside)
            if inside == "p2pfl" and place.parts[0] in ("node", "protocols", "topologies", "sim"):
                continue  # links in a clone
            copy = target / place
            if not copy.is_file() or copy.read_bytes() != path.read_bytes():
                return str(path.relative_to(clone))
    return ""


def _is_clone(folder: Path) -> bool:
    try:
        return CLONE.search((folder / "pyproject.toml").read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def check_path(command: str, on_path: str | None, python: Path) -> list[Finding]:
    """Check whether a shell runs the command of this environment.

    Args:
        on_path: what the shell finds; None if it finds none.
        python: the interpreter that runs now.
    """
    bin = python.parent
    if on_path is None:
        return [Finding("path", None, f"{command} is not on PATH", f"activate the environment: . {bin / 'activate'}")]
    if Path(on_path).parent.resolve() == bin.resolve():
        return []
    result = f"{command} on PATH is {on_path}, of another environment than {python}"
    return [Finding("path", None, result, f"activate the environment: . {bin / 'activate'}")]


def check_shadow(here: Path, package: Path) -> list[Finding]:
    """Check whether the current folder, or one of PYTHONPATH, has another p2pfl, which Python scripts would import."""
    others = [str(here), *(each for each in sys.path if each)]
    for folder in dict.fromkeys(others):
        spec = PathFinder.find_spec("p2pfl", [folder])
        origin = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if origin is None:
            continue
        found = Path(origin).resolve()
        if package in (found, found.parent):
            return []
        return [Finding("import", False, f"{found} hides this p2pfl from scripts in {folder}", "rename or move it")]
    return []


@dataclass(frozen=True)
class Need:
    """Library that something in a folder needs.

    Attributes:
        what: what needs it.
        module: its module.
        extra: the extra that installs it.
    """

    what: str
    module: str
    extra: str


def check_extras(needs: Sequence[Need]) -> list[Finding]:
    """Return a finding for each extra that is missing; one if all are there."""
    missing: dict[str, list[str]] = {}
    for need in needs:
        if find_spec(need.module) is None and need.what not in missing.setdefault(need.extra, []):
            missing[need.extra].append(need.what)
    lacking = {extra: whats for extra, whats in missing.items() if whats}
    found = [
        Finding("extra", False, f"{' and '.join(whats)} need{'s' * (len(whats) == 1)} the extra {extra}", remedy(extra))
        for extra, whats in lacking.items()
    ]
    return found or [Finding("extras", True, "all that is used here is installed")]


def remedy(extra: str) -> str:
    """Return the command that installs an extra, in the way in which p2pfl is installed."""
    source, editable = source_of(_distribution(NAME))
    if source is not None and _is_clone(source):
        return f"in {source}: pip install -c constraints.txt {'-e ' if editable else ''}'.[{extra}]'"
    return f"pip install '{NAME}[{extra}]'"


def needs_of_task(task: Mapping[str, Any], data: str = "") -> list[Need]:
    """Return the libraries that a task needs.

    Args:
        task: its table, with a name and options.
        data: the node's own data; by default that in the table.
    """
    name, found = str(task.get("name", "")), list[Need]()
    own = Path(str(data or task.get("data") or "")).expanduser()
    optimizer = task.get("optimizer")
    steps = str(optimizer.get("name", "")) if isinstance(optimizer, Mapping) else ""
    if name in TASKS and (name not in WITHOUT_TORCH or "model" in task or steps not in NUMPY_OPTIMISERS):
        found.append(Need(f"the task {name}", "torch", "torch"))
    if name == "digits":
        found.append(Need("the task digits", "sklearn", "metrics"))
    metrics = task.get("metrics", ())
    if isinstance(metrics, list | tuple):
        found += [Need(f"the metric {each}", "sklearn", "metrics") for each in metrics if each in ("f1", "auc")]
    if name == "morl":
        found.append(Need("the task morl", "mo_gymnasium", "morl"))
    if name in ("classification", "regression") and data_is_folder(own):
        from p2pfl.data import own_folders

        if own_folders.is_dataset(own):
            found.append(Need("the dataset", "pyarrow", "arrow"))
        if not own_folders.is_dataset(own) or "size" in task:
            found.append(Need("the images", "PIL", "images"))
    return found


def data_is_folder(data: Path) -> bool:
    """Return whether own data is a folder, and not the current one, as which an empty path would count."""
    return data != Path() and data.is_dir()


def needs_of_trackers(tools: Iterable[str]) -> list[Need]:
    """Return the libraries that trackers need."""
    return [Need(f"the tracker {tool}", TRACKERS[tool], tool) for tool in tools if tool in TRACKERS]
