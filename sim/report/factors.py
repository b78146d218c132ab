"""Factors of a report's runs: the settings in which they differ, such as topology and budget, with their levels.

They determine the heat maps, the colours and the short labels of runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pfl.sim.formatting import LIMITS, setting
from p2pfl.sim.report.series import Series, folder_names
from p2pfl.sim.scenario.named_tables import NAMED
from p2pfl.sim.scenario.sweep import split

LABELS = ("name", "paper", "pool", "varied")  # keys of a run without an effect on its results
WORDS = {
    "budget.models": "budget (models a round)",
    "budget.held": "budget (models held)",
    "budget.bytes": "budget (bytes a round)",
}
MOST_HUES, TINTS, MOST_DASHES = 8, 7, 4  # of the drawings; see p2pfl/web/assets/style.css


@dataclass(frozen=True)
class Factor:
    """A setting in which runs differ.

    Attributes:
        key: dotted key such as "policy.tau"; "topology" if the names of the topologies differ; "folder".
        texts: text of each level, in the order in which the levels are drawn.
        level: number of the level of each run, by the name of the run in the report.
    """

    key: str
    texts: tuple[str, ...]
    level: Mapping[str, int]

    @property
    def title(self) -> str:
        return title_of(self.key)


def title_of(key: str) -> str:
    """Return the words for a varied key, such as "topology" for "topology.name"."""
    return WORDS.get(key, key.removesuffix(".name"))


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table's values by dotted keys such as "policy.tau"."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if not prefix and key in LABELS:
            continue
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def factors(series: Sequence[Series]) -> list[Factor]:
    """Return the factors of runs: tables with a name, other settings, the varied keys of a sweep, and the folder.

    A setting that another one determines, such as the number of nodes by the topology, is no factor.
    """
    if len(series) < 2 or not all(one.settings for one in series):
        return []
    names = folder_names(list(dict.fromkeys(one.folder.path for one in series)))
    folders = dict(zip(dict.fromkeys(one.folder.path for one in series), names, strict=True))
    values = _settings(series)
    for key in dict.fromkeys(key for one in series for key in one.shown.varied):
        values[key] = {one.name: one.shown.varied.get(key) for one in series}
    values["folder"] = {one.name: folders[one.folder.path] for one in series}
    found = [factor for key, each in values.items() if len((factor := _factor(key, each)).texts) > 1]
    return [each for k, each in enumerate(found) if not any(_determined(each, found[j], j < k) for j in range(len(found)))]


def _settings(series: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """Return the settings of runs except the varied ones, by key and run."""
    tables = {one.name: {key: value for key, value in one.settings.items() if key != "seed"} for one in series}
    whole = {kind for kind in NAMED if len({_name(table.get(kind)) for table in tables.values()}) > 1}
    found: dict[str, dict[str, Any]] = {}
    for one in series:
        varied = one.shown.varied
        for key, value in tables[one.name].items():
            named = {key, f"{key}.name", f"{key}.file"} & {*varied}
            given = {key: value} if key in whole else flat({key: value})
            for each, own in ({} if named else given).items():
                if each not in varied:
                    found.setdefault(each, {})[one.name] = own
    order = sorted(found, key=lambda key: key not in NAMED)
    return {key: {one.name: found[key].get(one.name) for one in series} for key in order}


def _name(table: Any) -> str:
    """Return the name of a task, policy, topology or codec; for a file, its name without the suffix."""
    if not isinstance(table, Mapping):
        return ""
    return Path(str(table["file"])).stem if "file" in table else str(table.get("name", ""))


def _factor(key: str, values: Mapping[str, Any]) -> Factor:
    written = {run: json.dumps(value, sort_keys=True, default=str) for run, value in values.items()}
    levels = {written[run]: value for run, value in values.items()}
    order = list(levels)
    if all(isinstance(value, int | float) for value in levels.values()):
        last = {level for level, value in levels.items() if key in LIMITS and value == 0}
        order = sorted(levels, key=lambda level: (level in last, levels[level]))
    return Factor(key, tuple(_texts(key, [levels[each] for each in order])), {r: order.index(w) for r, w in written.items()})


def _texts(key: str, values: Sequence[Any]) -> list[str]:
    """Return a unique text for each level: the name of a table, with the options in which equal names differ."""
    texts = ["not set" if value is None else setting(key, value) for value in values]
    if key not in NAMED:
        return texts
    tables = [value if isinstance(value, Mapping) else {} for value in values]
    names = [_name(table) or "not set" for table in tables]
    for k, name in enumerate(names):
        alike = [flat(table) for table, other in zip(tables, names, strict=True) if other == name]
        options = [option for option, value in flat(tables[k]).items() if any(each.get(option) != value for each in alike)]
        texts[k] = ", ".join([name, *(setting(option, flat(tables[k])[option]) for option in options)])
    return texts


def _determined(factor: Factor, other: Factor, before: bool) -> bool:
    """Return whether each level of another factor has one level of this one; of two equal factors, `before` decides."""
    if factor is other:
        return False
    pairs = {(other.level[run], level) for run, level in factor.level.items()}
    return len(pairs) == len(other.texts) and (len(other.texts) > len(factor.texts) or before)


def grid(found: Sequence[Factor]) -> tuple[Factor, Factor] | None:
    """Return the two factors whose levels the runs combine; None if there are more or fewer, or if a third is missing."""
    if len(found) != 2 or not _combined(*found):
        return None
    rows, columns = found
    return (rows, columns) if len(set(_cells(rows, columns))) == len(rows.level) else None


def _cells(rows: Factor, columns: Factor) -> list[tuple[int, int]]:
    return [(level, columns.level[run]) for run, level in rows.level.items()]


def _combined(rows: Factor, columns: Factor) -> bool:
    """Return whether runs have more than two thirds of the combinations of two factors' levels."""
    sizes, cells = (len(rows.texts), len(columns.texts)), len(set(_cells(rows, columns)))
    return cells > max(sizes) and 3 * cells > 2 * sizes[0] * sizes[1]


def styles(series: Sequence[Series], found: Sequence[Factor]) -> list[tuple[int, int, int, int]] | None:
    """Return the hue, the tint, the dash and the mark of each run, by its levels of the first factors.

    Returns:
        None if there are fewer than two factors, if the runs do not combine the first two, or if these have more levels
        than the drawings have colours.
    """
    if len(found) < 2 or not _combined(found[0], found[1]):
        return None
    first, second, *others = found
    if len(first.texts) > MOST_HUES >= len(second.texts):
        first, second = second, first
    rest = {one.name: tuple(other.level[one.name] for other in others) for one in series}
    dashes = sorted(set(rest.values()))
    if len(first.texts) > MOST_HUES or len(second.texts) > TINTS or len(dashes) > MOST_DASHES:
        return None
    tints = [round(k * (TINTS - 1) / (len(second.texts) - 1)) for k in range(len(second.texts))]
    return [
        (first.level[one.name], tints[second.level[one.name]], dashes.index(rest[one.name]), second.level[one.name])
        for one in series
    ]


def labels(series: Sequence[Series]) -> dict[str, str]:
    """Return short labels of the runs of a sweep, with values instead of `key=value`; {} if they are not unique."""
    found = {one.name: one.name.removesuffix(one.row) + ", ".join(label_words(one)) for one in series}
    return found if len(set(found.values())) == len(found) and any(name != found[name] for name in found) else {}


def caption(series: Sequence[Series]) -> str:
    """Return the meaning of the parts of short labels, such as "run, budget (models a round)"; "" without labels."""
    if not labels(series):
        return ""
    varied = dict.fromkeys(key for one in series for key in one.shown.varied)
    run = ["run"] if any(label_words(one, one.shown.varied) for one in series) else []
    return ", ".join([*run, *map(title_of, varied)])


def label_words(one: Series, without: Iterable[str] = ()) -> list[str]:
    """Return the parts of a run's name, with the values of its varied keys; keys in `without` are left out."""
    return words_of(one.row, one.shown.varied, without)


def words_of(name: str, varied: Mapping[str, Any], without: Iterable[str] = ()) -> list[str]:
    """Return the parts of the name of a run in a sweep, with values in place of `key=value`."""
    words = []
    for word in split(name):
        key = word.partition("=")[0]
        if key not in varied:
            words.append(word)
        elif key not in without:
            words.append(setting(key, varied[key]))
    return words
