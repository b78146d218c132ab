"""Studies of robust rules: the rows of a table by rule and attack, for each combination of the other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from p2pfl.sim.formatting import setting

NO_ATTACK, NO_RULE = "no attack", "none"
LABELS = ("name", "paper", "pool", "varied", "seed", "robust", "attack")  # keys that do not belong to the other settings
MEAN, WORST_TENTH = "mean", "worst_tenth"
FIGURES = (MEAN, WORST_TENTH)


class AttackRow(NamedTuple):
    """A row of a table.

    Attributes:
        settings: its table in the resolved scenario.
        mean, worst_tenth: test metric of the honest nodes, and of their worst tenth; None if there is no number.
        nodes: test metric of each node, by seed; None for an attacker.
        attackers: numbers of the attackers, by seed.
    """

    name: str
    settings: Mapping[str, Any]
    mean: float | None
    worst_tenth: float | None
    nodes: Mapping[int, Sequence[float | None]] = {}
    attackers: Mapping[int, Sequence[int]] = {}

    def of_nodes(self, other: AttackRow, figure: str, higher_is_better: bool) -> float | None:
        """Return a figure of the nodes that are honest in another row, mean over seeds; None without figures of nodes."""
        found = []
        for seed, values in self.nodes.items():
            attackers = set(other.attackers.get(seed, ()))
            honest = [value for k, value in enumerate(values) if k not in attackers and value is not None]
            honest.sort(reverse=not higher_is_better)
            counted = honest[: max(1, len(honest) // 10)] if figure == WORST_TENTH else honest
            if counted:
                found.append(sum(counted) / len(counted))
        return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class AttackStudy:
    """Rows that differ only in their robust rule and their attack.

    Attributes:
        label: the settings in which the study differs from others; "" if there is only one study.
        attackers: text of the share or the number of attackers, such as "30 %".
        rules, attacks: texts of the levels; NO_ATTACK is the first of the attacks if there is a row without attack.
        cells: rows by rule and attack.
    """

    label: str
    attackers: str
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    cells: Mapping[tuple[str, str], AttackRow]

    def clean(self, rule: str, figure: str) -> float | None:
        """Return a figure of a rule without attack."""
        row = self.cells.get((rule, NO_ATTACK))
        return None if row is None else getattr(row, figure)

    def worst(self, rule: str, figure: str, higher_is_better: bool) -> tuple[float, str] | None:
        """Return the worst value of a rule over the attacks, and the attack."""
        found = [
            (value, attack)
            for attack in self.attacks
            if attack != NO_ATTACK and (row := self.cells.get((rule, attack))) is not None
            if (value := getattr(row, figure)) is not None
        ]
        return (min if higher_is_better else max)(found, key=lambda each: each[0], default=None)


def attack_studies(rows: Sequence[AttackRow]) -> list[AttackStudy]:
    """Return the studies among rows; [] unless the rows differ both in their rule and in their attack."""
    rules = _texts([row.settings.get("robust", NO_RULE) for row in rows])
    attacks = _texts([_without_count(row.settings.get("attack")) for row in rows])
    if len(set(rules)) < 2 or len(set(attacks)) < 2:
        return []
    grouped: dict[str, list[int]] = {}
    for k, row in enumerate(rows):
        grouped.setdefault(_key({key: value for key, value in row.settings.items() if key not in LABELS}), []).append(k)
    labels = _labels([rows[members[0]].settings for members in grouped.values()])
    found = []
    for label, members in zip(labels, grouped.values(), strict=True):
        counts = dict.fromkeys(count for k in members if (count := _attackers(rows[k].settings.get("attack"))))
        for count in counts:
            mine = [k for k in members if _attackers(rows[k].settings.get("attack")) in ("", count)]
            cells = {(rules[k], attacks[k]): rows[k] for k in mine}
            columns = dict.fromkeys(sorted((attacks[k] for k in mine), key=lambda attack: attack != NO_ATTACK))
            found.append(AttackStudy(label, count, tuple(dict.fromkeys(rules[k] for k in mine)), tuple(columns), cells))
    return [study for study in found if len(study.rules) > 1]


def title(study: AttackStudy, studies: Sequence[AttackStudy]) -> str:
    """Return the settings of a study in which it differs from others."""
    several = len({each.attackers for each in studies}) > 1
    return ", ".join(part for part in (study.label, f"{study.attackers} attackers" if several else "") if part)


def _without_count(attack: Mapping[str, Any] | None) -> dict[str, Any] | str:
    if attack is None:
        return NO_ATTACK
    return {key: value for key, value in attack.items() if key not in ("share", "nodes")}


def _attackers(attack: Mapping[str, Any] | None) -> str:
    """Return the share or the number of attackers as text; "" without an attack."""
    if attack is None:
        return ""
    return str(len(attack["nodes"])) if attack.get("nodes") else f"{100 * attack.get('share', 0.2):g} %"


def _texts(values: Sequence[Any]) -> list[str]:
    """Return the name of each value, with its options if values with the same name differ."""
    names = [str(value.get("name")) if isinstance(value, Mapping) else str(value) for value in values]
    unique = len(set(names)) == len({_key(value) for value in values})
    return names if unique else [setting("", value) for value in values]


def _labels(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a unique text for each table of settings: the names and values in which they differ."""
    words: list[list[str]] = [[] for _ in tables]
    keys = dict.fromkeys(key for table in tables for key in table if key not in LABELS)
    for key in keys:
        for word, of in zip(_differences([table.get(key) for table in tables], key), words, strict=True):
            if word:
                of.append(word)
    return [", ".join(of) for of in words]


def _differences(values: Sequence[Any], key: str) -> list[str]:
    """Return for each value of a key the part in which it differs from the others; "" if all are equal."""
    if len({_key(value) for value in values}) == 1:
        return [""] * len(values)
    if not all(isinstance(value, Mapping) for value in values):
        return ["" if value is None else f"{key} {setting(key, value)}" for value in values]
    names = [value.get("name") for value in values]
    if len(set(names)) == len({_key(value) for value in values}):
        return [str(name) for name in names]
    parts = [
        _differences([value.get(inner) for value in values], inner) for inner in dict.fromkeys(k for v in values for k in v)
    ]
    found = [", ".join(part for part in each if part) for each in zip(*parts, strict=True)]
    return [text.removeprefix("name ") for text in found]


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
