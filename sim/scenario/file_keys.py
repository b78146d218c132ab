"""Keys that a scenario file has in addition to those of a run, and the form of the file that they select."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import msgspec

from p2pfl.errors import ConfigurationError, unknown
from p2pfl.sim.scenario.claims import MEAN
from p2pfl.sim.scenario.topology import with_files

Changes = Sequence[tuple[str, Any]]  # keys such as "policy.tau", and their values


class FileKeys(msgspec.Struct):
    """Keys that a scenario file has in addition to those of a run, as read; `check` verifies their types.

    Attributes:
        name: name of the scenario; by default the name of the file.
        title: what the scenario shows, in about ten words; `p2pfl-sim list` prints it.
        description: the question, the setting and the paper, in a few sentences.
        needs: data set, extra or file that the user provides, such as "CIFAR-10"; by default nothing.
        duration: rough run time in seconds on two cores; a form can have its own.
        differences: differences from the paper, one sentence or more each.
        modules: the folder of the modules that the scenario names, relative to the file; without `--trust` it must be
            the file's own folder, or inside it.
        against: the run with which the table compares the others.
        target: a value of the test metric; for each run, the table shows the cost until the mean over the nodes after a
            round reached it.
        seeds: seeds with which every run is repeated.
        form: the form to use if no `--set form=NAME` is given; `full` is the file as it stands.
        forms: by name, changes that make a shorter or different version: keys of a run, `seeds`, and `runs`, which
            names the runs of the form, each with changes.
        varied: the varied keys of a sweep with their values; a sweep writes this key itself.
        source: the paper with the figures in `paper` of the rows.
        table: the table or section of the paper, such as "table 3".
        figure: the figure of a row in summary.json that is compared with the paper's, such as `objectives.hypervolume`.
        printed: further figures in summary.json that are recorded, each with the printed values of rows, if any.
        claim: claims about the rows that `p2pfl-sim reproduce --short` checks.
        run: the rows of the table; each overrides keys of the base for itself.
    """

    name: str | None = None
    title: str = ""
    description: str = ""
    needs: str = ""
    duration: float | None = None
    differences: list[str] = []
    modules: str = "."
    against: str = ""
    target: float | None = None
    varied: dict[str, list[Any]] = {}
    source: str = ""
    table: str = ""
    figure: str = MEAN
    printed: dict[str, dict[str, float]] = {}
    claim: list[dict[str, Any]] = []
    seeds: list[int] | None = None
    form: str = "full"
    forms: dict[str, dict[str, Any]] = {}
    run: list[dict[str, Any]] = []

    def check(self, where: str) -> None:
        """Raise ConfigurationError for a value of the wrong type."""
        for key in ("name", "title", "description", "needs", "modules", "against", "form", "source", "table", "figure"):
            value = getattr(self, key)
            if value is not None and not isinstance(value, str):
                raise ConfigurationError(f"{where}: {key} must be a string, got {value!r}")
        if not isinstance(self.differences, list) or not all(isinstance(each, str) for each in self.differences):
            raise ConfigurationError(f"{where}: differences must be a list of strings, got {self.differences!r}")
        if not isinstance(self.varied, dict) or not all(isinstance(values, list) for values in self.varied.values()):
            raise ConfigurationError(f"{where}: varied must be a table of lists, got {self.varied!r}")
        if not isinstance(self.printed, dict) or not all(
            isinstance(rows, dict) and all(isinstance(value, int | float) for value in rows.values())
            for rows in self.printed.values()
        ):
            raise ConfigurationError(f"{where}: printed must be tables of numbers, got {self.printed!r}")
        if not isinstance(self.forms, dict) or not all(isinstance(form, dict) for form in self.forms.values()):
            raise ConfigurationError(f"{where}: forms must be tables such as [forms.smoke], got {self.forms!r}")
        for key in ("run", "claim"):
            entries = getattr(self, key)
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise ConfigurationError(f"{where}: [[{key}]] must be a list of tables, got {entries!r}")


@dataclass(frozen=True)
class Form:
    """Values of one form of a scenario file.

    Attributes:
        name: "full" for the file as it stands.
        duration: rough run time in seconds; None if the form does not state it.
        seeds: seeds with which every run is repeated; None leaves them to the runs.
        target: of the test metric.
        runs: changes by the name of a `[[run]]` entry; None keeps all entries unchanged.
        base: changes to all runs.
    """

    name: str
    duration: float | None
    seeds: list[int] | None
    target: float | None
    runs: Any
    base: Mapping[str, Any]

    def describe(self, description: str) -> str:
        """Return the description of the scenario, with a sentence if its figures are not those of this form."""
        if self.name == "full" or not description:
            return description
        return f"{description.rstrip()}\nThis is the form `{self.name}`: its settings differ from those of the description."


def select_form(where: str, keys: FileKeys, changes: Changes, folder: str) -> Form:
    """Return the form that the changes name, or else the one that the file names.

    Args:
        where: name of the file, for errors.
        folder: see p2pfl.sim.scenario.topology.with_files.

    Raises:
        ConfigurationError: the form does not exist, or its duration, its seeds or its target are invalid.
    """
    name = last(changes, "form", keys.form)
    if name != "full" and name not in list(keys.forms):
        raise ConfigurationError(f"{where}: {unknown('form', str(name), {'full', *keys.forms})}")
    base = with_files(keys.forms.get(name, {}), folder)
    duration = base.pop("duration", keys.duration if name == "full" else None)
    if duration is not None and (type(duration) not in (int, float) or not 0 < duration < inf):
        raise ConfigurationError(f"{where}: duration must be a positive number of seconds, got {duration!r}")
    seeds = base.pop("seeds", keys.seeds)
    target = last(changes, "target", base.pop("target", keys.target))
    if seeds is not None:
        check_seeds(f"{where}: seeds", seeds)
    if target is not None and (type(target) not in (int, float) or not isfinite(target)):
        raise ConfigurationError(f"{where}: target must be a number, got {target!r}")
    return Form(str(name), duration, seeds, target, base.pop("runs", None), base)


def last(changes: Changes, key: str, default: Any) -> Any:
    """Return the last value that the changes give a key."""
    return next((value for name, value in reversed(changes) if name == key), default)


def check_seeds(where: str, seeds: Any) -> None:
    """Raise ConfigurationError unless the value is a list of different integers from 0."""
    if not isinstance(seeds, list):
        raise ConfigurationError(f"{where} must be a list of whole numbers of 0 or more, got {seeds!r}")
    if not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ConfigurationError(f"{where} must be a list of whole numbers of 0 or more, got {seeds}")
    twice = sorted(seed for seed, count in Counter(seeds).items() if count > 1)
    if twice:
        raise ConfigurationError(f"{where} must not repeat a seed, got {', '.join(map(str, twice))} more than once")
