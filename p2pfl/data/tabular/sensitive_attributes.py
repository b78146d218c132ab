"""Sensitive attributes: the group of each row of a table.

In a schema file:

    [groups]                                     # in a column that is not listed, each value is a group, of numbers two
    race = { values = ["White"] }                # group 1; all others are group 0
    age = { between = [25, 60] }                 # group 1, both ends included; all others are group 0
    generation = { column = "age", bounds = [30, 50] }      # groups 0, 1 and 2: below 30, from 30 to below 50, from 50

Several attributes joined by a plus sign, for example "sex+race", are one attribute with a group for each combination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from p2pfl.data.class_labels import Rows
from p2pfl.errors import ConfigurationError, unknown

MOST_GROUPS = 64  # of one attribute


class Grouping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rule that derives groups from a column; see the module."""

    column: str = ""  # by default the attribute's own name
    values: tuple[str, ...] = ()
    between: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()

    def check(self, name: str, kinds: Mapping[str, str]) -> None:
        """Raise ConfigurationError if the rule is invalid for columns of these kinds."""
        column = self.column or name
        kind = kinds.get(column, "none")
        given = [rule for rule in ("values", "between", "bounds") if getattr(self, rule)]
        reason = None
        if kind not in ("numeric", "categorical"):
            reason = f"{column!r} must be a numeric or a categorical column"
        elif len(given) > 1 or (kind == "numeric" and given not in (["between"], ["bounds"])):
            reason = f"a numeric column needs `between` or `bounds`, a categorical one `values` or nothing, got {given}"
            if kind == "numeric":
                reason += f'; a column of codes such as 0 and 1 is categorical: set columns.{column} = "categorical"'
        elif kind == "categorical" and given not in ([], ["values"]):
            reason = f"{column!r} is categorical: it is divided by `values`, or into one group for each value"
        elif self.between and (len(self.between) != 2 or not self.between[0] <= self.between[1]):
            reason = "between must be two numbers, the smaller one first"
        elif not all(a < b for a, b in pairwise(self.bounds)):
            reason = "bounds must ascend"
        if reason:
            raise ConfigurationError(f"groups.{name}: {reason}")


class Groups(NamedTuple):
    """Rows by one attribute: group numbers, int64 [n], and the name of each group."""

    numbers: np.ndarray
    names: tuple[str, ...]


def groups_of(name: str, parts: Sequence[Rows], groupings: Mapping[str, Grouping]) -> list[Groups]:
    """Return the groups of each part of a table (for example training and test), with common numbers.

    Args:
        name: an attribute: a key of `groupings`, a categorical column, or several joined by plus signs.

    Raises:
        ConfigurationError: the attribute does not exist, a row has no number for it, or it has only one or over 64
            groups.
    """
    single = [_single(each.strip(), parts, groupings) for each in name.split("+")]
    size = prod(len(groups[0].names) for groups in single)
    if not 2 <= size <= MOST_GROUPS:
        raise ConfigurationError(
            f"the sensitive attribute {name!r} has {size:,} group{'s' * (size != 1)}; it must have 2 to {MOST_GROUPS}"
        )
    joined = single[0]
    for others in single[1:]:
        joined = [_combine(first, second) for first, second in zip(joined, others, strict=True)]
    return joined


def _combine(first: Groups, second: Groups) -> Groups:
    names = tuple(f"{a}, {b}" for a in first.names for b in second.names)
    return Groups(first.numbers * len(second.names) + second.numbers, names)


def _single(name: str, parts: Sequence[Rows], groupings: Mapping[str, Grouping]) -> list[Groups]:
    rule = groupings.get(name, Grouping())
    column = rule.column or name
    if column in parts[0].numbers:
        values = [part.numbers[column] for part in parts]
        if any(np.isnan(each).any() for each in values):
            raise ConfigurationError(f"the sensitive attribute {name!r}: some rows have no value of {column!r}")
        if not rule.between and not rule.bounds:
            codes = np.unique(np.concatenate(values))
            if len(codes) > 2:
                raise ConfigurationError(
                    f"the sensitive attribute {name!r} is numeric: set groups.{name} in the schema file, or"
                    f' columns.{column} = "categorical" if its numbers are codes'
                )
            return [Groups(np.searchsorted(codes, each), tuple(f"{code:g}" for code in codes)) for each in values]
        return [_by_number(each, rule) for each in values]
    if column in parts[0].categories:
        return _by_category([part.categories[column] for part in parts], rule)
    known = {*groupings, *parts[0].categories}
    raise unknown("sensitive attribute", name, known)


def _by_number(values: np.ndarray, rule: Grouping) -> Groups:
    if rule.between:
        low, high = rule.between
        inside: np.ndarray = (values >= low) & (values <= high)
        return Groups(inside.astype(np.int64), (f"not {low:g} to {high:g}", f"{low:g} to {high:g}"))
    ends = [f"from {bound:g}" for bound in rule.bounds]
    return Groups(np.searchsorted(rule.bounds, values, side="right"), (f"below {rule.bounds[0]:g}", *ends))


def _by_category(parts: Sequence[np.ndarray], rule: Grouping) -> list[Groups]:
    known = np.unique(np.concatenate(parts))
    if rule.values:
        lacking = [value for value in rule.values if value not in known]
        if lacking:
            raise ConfigurationError(
                f"no row has the value {lacking[0]!r} of a sensitive attribute; known: {', '.join(known)}"
            )
        named = "/".join(rule.values)
        return [Groups(np.isin(part, rule.values).astype(np.int64), (f"not {named}", named)) for part in parts]
    return [Groups(np.searchsorted(known, part), tuple(str(value) for value in known)) for part in parts]
