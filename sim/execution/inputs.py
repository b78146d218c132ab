"""Inputs of the runs of a scenario, and their comparison: what a result was computed from, and what has changed since.

The content of a run consists of three mappings from a name to a digest or a value:

- settings: the keys of the run, and the version of p2pfl;
- files: data, schemas, folders, initial weights, graphs, and the files of modules (see p2pfl.content);
- versions: of Python and of the libraries that compute the numbers, and the digest of training steps on this machine
  (see p2pfl.sim.execution.probe). These change the last bits only.

Files count by their content. Their places and times do not matter.
"""

from __future__ import annotations

import contextlib
import pkgutil
import platform
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import msgspec

from p2pfl._util.registry import ObjectName, UsedModules, locate, resolve, root_of, used_modules
from p2pfl._version import __version__
from p2pfl.content import Declared, Input, digest_file, digest_folder, inputs_of
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.sim.execution.probe import probe
from p2pfl.sim.scenario.names import KINDS
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile
from p2pfl.sim.scenario.topology import COMPLETE, FILE
from p2pfl.task_specs import TASKS

MISSING = "missing"  # in place of the digest of a file that does not exist
MOST_NAMED = 5  # changes in one line
_LONGEST = 40  # characters of a value in a line
_MACHINE = "this machine"


class Content(msgspec.Struct, frozen=True):
    """Content of the inputs of a run; see the module."""

    settings: dict[str, str]
    files: dict[str, str]
    versions: dict[str, str]

    def changes(self, now: Content, *, different_bits: bool = False) -> str:
        """Return the inputs that differ from those of a result, in one line; "" if none does.

        Args:
            now: the present content.
            different_bits: accept other versions.
        """
        found = [*changed_files(self.files, now.files), *_changed_values(self.settings, now.settings)]
        if not different_bits:
            found += _changed_values(self.versions, now.versions)
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        return ", ".join(found[:MOST_NAMED]) + more


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield a phrase for each file whose digest differs."""
    for name in {**before, **now}:
        if name not in now or now[name] == MISSING != before.get(name):
            yield f"{name} is missing"
        elif name not in before:
            yield f"{name} is new"
        elif before[name] != now[name]:
            yield f"{name} has changed"


def _changed_values(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**before, **now}:
        old, new = before.get(name, "none"), now.get(name, "none")
        if old == new:
            continue
        if name == _MACHINE:
            yield f"{name} computes other last bits ({old} -> {new})"
        elif max(len(old), len(new)) > _LONGEST:
            yield f"{name} has changed"
        else:
            yield f"{name} {old} -> {new}"


class RunInputs:
    """Inputs of the runs of a scenario, with their content at the time when this object was made.

    Make it before the first run reads its data, with the folders of the scenario's modules on Python's path.

    Args:
        without: folder whose files do not count, because the runs write them.

    Attributes:
        notes: lines about modules that are imported again, because their files have changed.
    """

    def __init__(self, file: ScenarioFile, without: Path | None = None) -> None:
        self.notes: list[str] = []
        self._without = without
        self._folders = [Path.cwd(), Path(file.folder)]
        self._inputs: dict[bytes, dict[str, Input]] = {}
        self._modules: dict[frozenset[str], UsedModules] = {}
        self._versions: dict[tuple[object, ...], dict[str, str]] = {}
        self._digests: dict[Path, str] = {}
        for run in file.runs:
            try:
                self.files(run)
            except ConfigurationError:  # the check of the runs reports it, with the name of the run
                continue

    def files(self, job: Scenario) -> dict[str, str]:
        """Return the digests of the files of a job, by name."""
        found = self._inputs_of(job)
        for each in found.values():
            if each.path not in self._digests:
                self._digests[each.path] = self._digest(each.path)
        return {name: self._digests[each.path] for name, each in found.items()}

    def settle(self) -> None:
        """Take the present content of folders that are only guessed from an option.

        Call it when each task was made once: a task may download data or keep files in its folder.
        """
        for found in self._inputs.values():
            for each in found.values():
                if not each.declared and each.path.is_dir():
                    self._digests[each.path] = self._digest(each.path)

    def content(self, job: Scenario) -> Content:
        """Return the content of all inputs of a job."""
        found = self._inputs_of(job)
        named = {each.key for each in found.values() if each.key}
        return Content(settings_of(job, named), self.files(job), self._versions_of(job))

    def confirm(self, job: Scenario) -> None:
        """Raise RunError if a file of a job has changed since this object was made, so that its result is of no use.

        The content of a folder that is only guessed from an option may change, because the run may write it.
        """
        self.files(job)
        for name, each in self._inputs_of(job).items():
            if not each.declared and each.path.is_dir():
                continue
            if self._digest(each.path) != self._digests[each.path]:
                error = RunError(f"{name} has changed while this command ran, so the result of the run was not kept")
                error.run = f"run {job.name!r}, seed {job.seed}"
                raise error

    def _digest(self, path: Path) -> str:
        try:
            return (digest_folder(path, self._without) if path.is_dir() else digest_file(path)).hex()
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror or error}") from error

    def _inputs_of(self, job: Scenario) -> dict[str, Input]:
        """Return the inputs of a job by their names in messages."""
        tables = [job.task, job.policy, job.policy_by_group, job.topology, job.network.places, job.availability.file]
        key = msgspec.json.encode(tables, enc_hook=repr, order="deterministic")
        if key not in self._inputs:
            self._inputs[key] = _with_names(self._find(job))
        return self._inputs[key]

    def _find(self, job: Scenario) -> Iterator[tuple[str, Input]]:
        used = self._used(job)
        digests = {name: digest_file(path) for name, path in used.files.items()}
        if changed := _forget_changed(used, digests):
            self.notes.append(f"{', '.join(changed)} changed after the import, and was imported again")
        for name, path in used.files.items():
            yield f"module {name}", Input(path)
        of_groups = {"name": job.policy["name"], **job.policy_by_group}
        for what, key, table in (("task", "task", job.task), ("policy", "policy", job.policy), ("policy", "", of_groups)):
            options = {option: value for option, value in table.items() if option != "name"}
            factory = resolve(what, table["name"], *KINDS[what])
            for each in inputs_of(key or "policy_by_group", factory, options, self._folders, _declared(what, table["name"])):
                yield f"{each.key or what} {each.path.name}", each
        _remember(digests)
        if file := job.topology.get(FILE):
            yield f"topology {Path(file).name}", Input(Path(file), "topology.file")
        if job.availability.file:
            yield (
                f"availability.file {Path(job.availability.file).name}",
                Input(Path(job.availability.file), "availability.file"),
            )
        if job.network.places:
            yield f"network.places {Path(job.network.places).name}", Input(Path(job.network.places), "network.places")

    def _used(self, job: Scenario) -> UsedModules:
        named = _modules_of(job)
        if named not in self._modules:
            self._modules[named] = used_modules(sorted(named))
        return self._modules[named]

    def _versions_of(self, job: Scenario) -> dict[str, str]:
        """Return the versions that can change the last bits of a job's figures."""
        spec = TASKS.get(job.task["name"])
        libraries = ["numpy", "torch", *(spec.libraries if spec else ())]
        if job.topology.get("name") != COMPLETE:
            libraries.append("networkx")
        if job.task.get("metrics"):
            libraries.append("scikit-learn")
        key = *libraries, _modules_of(job), job.device
        if key not in self._versions:
            of_modules = {name for module in self._used(job).installed for name in _distributions(module)}
            libraries += sorted(of_modules - {*libraries})
            here = probe(job.device)
            self._versions[key] = {
                "Python": ".".join(platform.python_version_tuple()[:2]),
                **{name: text for name in libraries if (text := _version(name))},
                "BLAS threads": _blas_threads(),
                _MACHINE: f"{here.processor}, {here.digest[:8]}",
            }
        return self._versions[key]


def files_of(job: Scenario, path: Sequence[str]) -> dict[str, str]:
    """Return the digests of the files of a job on this machine, by name.

    Args:
        path: folders of the modules of its scenario.
    """
    folder = path[0] if path else str(Path.cwd())
    file = ScenarioFile(name=job.name, runs=(job,), seeds=(job.seed,), folder=folder, path=tuple(path))
    return RunInputs(file).files(job)


def _declared(what: str, name: str) -> Declared | None:
    """Return the function that lists the inputs of a built-in task or policy; None for one of a user's own."""
    if name not in KINDS[what][0]:
        return None
    if what != "task" or not TASKS[name].inputs:
        return lambda options: ()
    declared: Declared = pkgutil.resolve_name(TASKS[name].inputs)
    return declared


def _with_names(inputs: Iterator[tuple[str, Input]]) -> dict[str, Input]:
    """Return inputs by name; equal names get numbers."""
    found: dict[str, Input] = {}
    for name, each in inputs:
        if all(each.path != other.path for other in found.values()):
            count = sum(other.partition(" (")[0] == name for other in found)
            found[name if not count else f"{name} ({count + 1})"] = each
    return found


def _modules_of(job: Scenario) -> frozenset[str]:
    """Return the top-level modules of the task and the policy of a job that do not belong to p2pfl."""
    named = [(what, table["name"]) for what, table in (("task", job.task), ("policy", job.policy))]
    places = [locate(what, name, *KINDS[what]) for what, name in named if not isinstance(name, ObjectName)]
    return frozenset(map(root_of, places)) - {root_of(__name__)}


_imported: dict[str, tuple[object, bytes]] = {}  # by file of a module: the spec of its import, and the digest of the file


def _spec_of(file: str) -> object:
    """Return the spec of the module that a file such as "mine.py" or "mine/nets.py" belongs to; None if not imported."""
    return getattr(sys.modules.get(file.partition("/")[0].partition(".")[0]), "__spec__", None)


def _forget_changed(used: UsedModules, digests: Mapping[str, bytes]) -> list[str]:
    """Let Python import modules again if a file has changed since, as worker processes do; return such files.

    Their bytecode goes too: Python keeps it while the size and the whole seconds of the time of the source are equal,
    so an edit of the same length in the same second would have no effect, here and in worker processes.
    """
    changed = []
    for name, digest in digests.items():
        spec, before = _imported.get(name, (None, b""))
        if spec is not None and spec is _spec_of(name) and before != digest:
            changed.append(name)
            with contextlib.suppress(OSError):  # a folder of somebody else: its bytecode is not written here either
                Path(cache_from_source(used.files[name])).unlink(missing_ok=True)
    if changed:
        for module in [module for module in sys.modules if root_of(module) in used.own]:
            del sys.modules[module]
    return changed


def _remember(digests: Mapping[str, bytes]) -> None:
    """Note the digests of files whose modules are imported; those of an earlier import stay."""
    for name, digest in digests.items():
        if (spec := _spec_of(name)) is not None and _imported.get(name, (None, b""))[0] is not spec:
            _imported[name] = spec, digest


def settings_of(job: Scenario, without: Collection[str]) -> dict[str, str]:
    """Return the keys of a job with their values as text, and the version of p2pfl.

    Args:
        without: keys that do not count, for example because their values are paths of inputs.
    """
    table = msgspec.to_builtins(job, enc_hook=str)
    if not job.privacy.wanted:  # figures that were recorded before there was this key stay valid
        del table["privacy"]
    elif not job.privacy.central:
        del table["privacy"]["central"]
    found = dict(_flatten("", table))
    return {key: value for key, value in {"p2pfl": __version__, **found}.items() if key not in {"paper", *without}}


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), part)
    else:
        yield prefix, msgspec.json.encode(value).decode() if not isinstance(value, float | str) else str(value)


def _blas_threads() -> str:
    """Return the number of threads that NumPy's linear algebra uses: it sets the order of sums; "" if unknown."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:  # it comes with scikit-learn
        return ""
    return ", ".join(sorted({str(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"}))


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


@cache
def _distributions(module: str) -> Sequence[str]:
    """Return the distributions that provide a top-level module."""
    if _version(module):  # most have the name of their module, and the search takes half a second
        return [module]
    return packages_distributions().get(module, [])
