"""Studies of robust rules, and the report's section on attacks.

A study has one row for each robust rule under each attack, with all other settings equal: `attack_studies` finds the
studies among the rows of a table. The commands print the worst attack on each rule, and the report's section draws heat
maps of rule by attack, and the weight that honest nodes gave to attackers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from p2pfl.sim.formatting import setting
from p2pfl.sim.report.figures import clipped, distribution, lines
from p2pfl.sim.report.folder import Entry
from p2pfl.sim.report.series import Figure, Run, Section, Series, places_of, reported_model

NO_ATTACK, NO_RULE = "no attack", "none"
LABELS = ("name", "paper", "pool", "varied", "seed", "robust", "attack")  # keys that do not belong to the other settings
MEAN, WORST_TENTH = "mean", "worst_tenth"
FIGURES = (MEAN, WORST_TENTH)
UNCHANGED = (
    "The rule median-clip, and all rules of a coordinator, move models and leave the weights of the policy unchanged."
    " Coordinate-wise rules have the mean weight over coordinates."
)


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


def attack_rows(runs: Sequence[Run]) -> list[AttackRow]:
    """Return the rows of a study of robust rules; [] for pools, and for runs with unknown settings."""
    return [
        AttackRow(
            run.name,
            run.settings,
            run.mean(entry.test.mean for entry in run.entries),
            run.mean(entry.test.worst_decile for entry in run.entries),
            {entry.seed: entry.test.nodes for entry in run.entries},
            {entry.seed: entry.attackers for entry in run.entries},
        )
        for run in runs
        if run.settings and not run.shown.pool
    ]


def attack_studies(rows: Sequence[AttackRow]) -> list[AttackStudy]:
    """Return the studies among rows; [] unless the rows differ both in their rule and in their attack."""
    rules = _texts([row.settings.get("robust", NO_RULE) for row in rows])
    attacks = _texts([_without_count(row.settings.get("attack")) for row in rows])
    if len(set(rules)) < 2 or len(set(attacks)) < 2:
        return []
    grouped: dict[str, list[int]] = {}
    for k, row in enumerate(rows):
        grouped.setdefault(_key({key: value for key, value in row.settings.items() if key not in LABELS}), []).append(k)
    others = [rows[members[0]].settings for members in grouped.values()]
    labels = labels_of([{key: value for key, value in each.items() if key not in LABELS} for each in others])
    found = []
    for label, members in zip(labels, grouped.values(), strict=True):
        counts = dict.fromkeys(count for k in members if (count := _share_of(rows[k].settings.get("attack"))))
        for count in counts:
            mine = [k for k in members if _share_of(rows[k].settings.get("attack")) in ("", count)]
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


def _share_of(attack: Mapping[str, Any] | None) -> str:
    """Return the share or the number of attackers as text; "" without an attack."""
    if attack is None:
        return ""
    return str(len(attack["nodes"])) if attack.get("nodes") else f"{100 * attack.get('share', 0.2):g} %"


def _texts(values: Sequence[Any]) -> list[str]:
    """Return the name of each value, with its options if values with the same name differ."""
    names = [str(value.get("name")) if isinstance(value, Mapping) else str(value) for value in values]
    unique = len(set(names)) == len({_key(value) for value in values})
    return names if unique else [setting("", value) for value in values]


def labels_of(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a unique text for each table of settings: the names and values in which they differ."""
    words: list[list[str]] = [[] for _ in tables]
    for key in dict.fromkeys(key for table in tables for key in table):
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


# The section


class Quantity(NamedTuple):
    """A quantity of the cells of a heat map; `higher` states whether more is better, and `what` which mean it is."""

    id: str
    title: str
    label: str
    unit: str
    value: Callable[[AttackRow], float | None]
    higher: bool
    what: str
    decimals: int | None = None


def attacks_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None without attackers."""
    attacked = [one for one in series if one.shown.attackers]
    if not attacked:
        return None
    figures = [*heat_maps(series), *_trust(attacked)]
    return {"id": "attacks", "title": "Attacks", "text": [_attackers(attacked)], "figures": figures}


def _attackers(series: Sequence[Series]) -> str:
    counts = sorted({len(one.shown.attackers) for one in series})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    nodes = max(one.shown.nodes for one in series)
    return f"{span} of {nodes:,} nodes attack. All figures of this section are of the honest nodes."


# Rule by attack


def heat_maps(series: Sequence[Series]) -> list[Figure]:
    """Return heat maps of rule by attack: mean and worst tenth of the honest nodes, and the weight of attackers.

    Returns:
        [] if the runs do not differ both in their rule and in their attack, or differ in their metric.
    """
    if len({one.metric for one in series}) > 1:
        return []
    studies = attack_studies(attack_rows(series))
    if not studies:
        return []
    higher, label = series[0].shown.higher_is_better, f"test {series[0].metric}"
    given = {one.name: trust for one in series if one.shown.attackers and (trust := mean_weight(one)) is not None}
    places = places_of(series)[series[0].metric]

    def mean_of(nodes: str) -> str:
        return f"Mean over the {nodes}, then over the seeds, of {reported_model(series)}."

    quantities = (
        Quantity(
            "attacks-mean",
            "Mean of the honest nodes",
            label,
            "",
            lambda row: row.mean,
            higher,
            mean_of("honest nodes"),
            places,
        ),
        Quantity(
            "attacks-worst-tenth",
            "Worst tenth of the honest nodes",
            label,
            "",
            lambda row: row.worst_tenth,
            higher,
            mean_of("worst tenth of the honest nodes"),
            places,
        ),
        Quantity(
            "attacks-trust",
            "Weight that honest nodes gave to attackers",
            "weight of attackers",
            "%",
            lambda row: given.get(row.name),
            False,
            "Mean over the honest nodes, all rounds and the seeds.",
        ),
    )
    return [_heat_map(quantity, studies) for quantity in quantities]


def _heat_map(quantity: Quantity, studies: Sequence[AttackStudy]) -> Figure:
    """Return a heat map with a view for each study, and before them one of the worst values over all settings."""
    of_all = []
    shares = list(dict.fromkeys(study.attackers for study in studies))
    for attackers in shares:
        alike = [study for study in studies if study.attackers == attackers]
        if len(alike) > 1 and not quantity.unit:  # a policy with fixed weights would hide all others
            share = f", {attackers} attackers" if len(shares) > 1 else ""
            of_all.append(_view(f"worst of {len(alike)} settings{share}", alike, quantity))
    return {
        "id": quantity.id,
        "kind": "heatmap",
        "title": quantity.title,
        "note": f"{quantity.what} The worst attack on each rule is in bold." + (f" {UNCHANGED}" if quantity.unit else ""),
        "y_label": "rule",
        "x_label": "attack",
        "label": quantity.label,
        "unit": quantity.unit,
        **({} if quantity.decimals is None else {"decimals": quantity.decimals}),
        "log": False,
        "missing": "none" if quantity.unit else "no value",
        "views": [*of_all, *(_view(title(study, studies), [study], quantity) for study in studies)],
        "unfiltered": True,
    }


def _view(label: str, studies: Sequence[AttackStudy], quantity: Quantity) -> dict[str, Any]:
    """Return the cells of studies; of several values for a rule and an attack the worst."""
    rules = list(dict.fromkeys(rule for study in studies for rule in study.rules))
    attacks = list(dict.fromkeys(attack for study in studies for attack in study.attacks))
    if quantity.unit:  # without attack nobody trusts an attacker
        attacks = [attack for attack in attacks if attack != NO_ATTACK]
    worst_of = min if quantity.higher else max
    cells = {}
    for k, rule in enumerate(rules):
        attacked: list[tuple[float, str]] = []
        for j, attack in enumerate(attacks):
            rows = [row for study in studies if (row := study.cells.get((rule, attack))) is not None]
            known = [(value, row.name) for row in rows if (value := quantity.value(row)) is not None]
            if rows:
                value, name = worst_of(known) if known else (None, rows[0].name)
                cells[name] = {"row": k, "column": j, "value": value}
            attacked += known if attack != NO_ATTACK else []
        if attacked:
            cells[worst_of(attacked)[1]]["bold"] = True
    return {"label": label or "all", "rows": rules, "columns": attacks, "cells": cells}


# Trust in attackers
def _trust(series: Sequence[Series]) -> list[Figure]:
    """Return the share of the merges that attackers' models had, by round and by node."""
    figures = [
        lines(
            series,
            weight_by_round,
            by_round=True,
            id="attackers-weight",
            title="Weight of attackers by round",
            y_label="weight of attackers",
            note=f"Share of the weights in the merges of honest nodes that models of attackers had, by round. {UNCHANGED}",
            y_unit="%",
        ),
        lines(
            series,
            models_by_round,
            by_round=True,
            id="attackers-models",
            title="Models of attackers by round",
            y_label="models of attackers",
            note="Share of the models of other nodes in the merges of honest nodes that came from attackers, in each round.",
            y_unit="%",
        ),
    ]
    figures = [clipped(figure) for figure in figures if figure["y"]]
    return [*figures, _by_node(series)] if figures else []


def mean_weight(series: Series) -> float | None:
    """Return the mean weight of attackers in the merges of honest nodes, over nodes, rounds and seeds, in percent."""
    values = [
        float(np.nanmean(found)) for entry in series.entries if np.isfinite(found := weight_by_node(series, entry)).any()
    ]
    return round(float(np.mean(values)), 1) if values else None


def weight_by_round(series: Series, entry: Entry) -> np.ndarray | None:
    """Return the mean over the honest nodes of the weight of attackers in each round, in percent."""
    if not entry.attackers:
        return None
    rounds, edges = series.rounds(entry), series.weights(entry)
    last = int(rounds["round"].max(initial=1))
    merges = np.bincount(rounds["round"][~_of(rounds["node"], entry)] - 1, minlength=last)
    trusted = _of(edges["src"], entry) & ~_of(edges["dst"], entry)
    given = np.bincount(edges["round"][trusted] - 1, edges["weight"][trusted], minlength=last)
    return _percent(given, merges)


def models_by_round(series: Series, entry: Entry) -> np.ndarray | None:
    """Return the share of models from attackers among those that honest nodes merged in each round, in percent."""
    if not entry.attackers:
        return None
    links = series.links(entry)
    last = max(series.done(links), 1)
    honest = ~_of(links["dst"], entry)
    total = np.bincount(links["round"][honest] - 1, minlength=last)
    taken = np.bincount(links["round"][honest & _of(links["src"], entry)] - 1, minlength=last)
    return _percent(taken, total)


def weight_by_node(series: Series, entry: Entry) -> np.ndarray:
    """Return the mean weight of attackers in the merges of each node, in percent; NaN for attackers."""
    rounds, edges = series.rounds(entry), series.weights(entry)
    merges = np.bincount(rounds["node"], minlength=entry.nodes)
    trusted = _of(edges["src"], entry)
    given = np.bincount(edges["dst"][trusted], edges["weight"][trusted], minlength=entry.nodes)
    return np.where(_of(np.arange(entry.nodes), entry), np.nan, _percent(given, merges))


def _by_node(series: Sequence[Series]) -> Figure:
    return distribution(
        series,
        {one.name: weight_by_node(one, one.shown) for one in series},
        higher_is_better=False,
        id="attackers-trusted",
        title="Weight of attackers by honest node",
        note="One mark per honest node: the mean weight of attackers in all of its merges, of one seed. The tenth that"
        " trusted attackers most is highlighted.",
        x_label="weight of attackers",
        unit="%",
    )


def _of(nodes: np.ndarray, entry: Entry) -> np.ndarray:
    return np.isin(nodes, entry.attackers)


def _percent(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    share = np.full(len(total), np.nan)
    np.divide(100 * part, total, out=share, where=total > 0)
    return share
