"""Question of a scenario, and what answers it: `question`, and [[answer]] in its file.

question = "Do nodes find the group whose labels agree with theirs?"

[[answer]]
run = ["dpfl", "dpfl/{budget}"]    # rows that answer it
against = "random graph/.2N"       # row, rows or a number to compare them with; without it the rows are ranked
figure = "weight_within_group"     # of a row in summary.json; by default the scenario's `figure`
yes = "above"                      # side of `against` that means yes; without it the answer is a number

A name in braces stands for any text. It has the same text in `run` and in `against`, so that "{data}/dpfl" is compared
with "{data}/local" of the same data. A name that only `against` has stands for each row. `by = "data"` collects the
comparisons of each text of that name.

[[answer]]
run = "{schedule}, {devices}"      # rows that are ranked within each budget, in a table and a drawing of the report
within = { bytes = [250_000, 1_000_000], seconds = [10, 20] }
by = "devices"                     # a column of the table, and a panel of the drawing, for each text of this name

In a sweep, a pattern may also follow the name of a row before the sweep, such as "dpfl" for "dpfl, budget.models=4". Such
rows are compared only where the keys that both vary have the same values, and ranked within these values.

Here are the comparisons that a file asks for. `p2pfl.sim.report.answers` makes sentences of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from p2pfl.errors import ConfigurationError, unknown
from p2pfl.sim.formatting import setting

NAME = re.compile(r"\{(\w+)\}")
PROBLEM = (
    "task",
    "attack",
    "nodes",
    "network",
    "compute",
    "availability",
)  # keys of a run that a federation does not choose
TRAINING = (  # keys of a task that say how a node trains, not what it learns
    *("lr", "momentum", "optimizer", "model", "batch_size", "private", "hidden", "output", "initial", "head", "sharpness"),
    *("penalty", "kept", "communicated", "personal", "steps", "rounds", "explore_rounds", "explore_least"),
    *("settings", "targets"),  # of deep reinforcement learning
)
BUDGETS = ("models", "bytes", "seconds", "trainings", "joules")  # kinds of limits in `within`
TUNED = "against"  # option of an attack that searches: the rule that it assumes, which rows of different rules choose


class Answer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Comparison that answers the question of a scenario.

    Attributes:
        run: rows, by their names or by patterns with names in braces.
        against: rows to compare each with, or a number; None ranks the rows.
        figure: the compared figure of a row in summary.json; by default the scenario's `figure`.
        yes: side of `against` on which a row answers the question with yes; "" if it asks for a number. Without `against`,
            "below" ranks the least figure first.
        by: name in braces; its texts separate comparisons and rankings.
        within: budgets, by kind, each a list of whole numbers. The rows are ranked within each of them by the mean test
            metric of the nodes' current models when the budget was spent, or at the end if it never was. `bytes` are those
            that a node has sent, `trainings` and `joules` those of a node, means over the nodes; `seconds` are virtual.
            `models` a round rank at the end the rows in which no node received more models in a round.
    """

    run: str | list[str]
    against: str | list[str] | float | None = None
    figure: str = ""
    yes: Literal["", "above", "below"] = ""
    by: str = ""
    within: dict[str, list[int]] = {}

    @property
    def figures(self) -> list[str]:
        """Return the figures of a row in summary.json that it compares; [] for the scenario's `figure`."""
        budgets = [f"within.{kind}.{most}" for kind, limits in self.within.items() for most in limits]
        return budgets or ([self.figure] if self.figure else [])

    @property
    def runs(self) -> list[str]:
        return [self.run] if isinstance(self.run, str) else self.run

    @property
    def others(self) -> list[str]:
        """Return the patterns of `against`; [] for a number, and for a ranking."""
        return [self.against] if isinstance(self.against, str) else self.against if isinstance(self.against, list) else []


class Pair(NamedTuple):
    """A row, and the row or the number that it is compared with; None in a ranking.

    `place` is the text of `by`, and `level` the common values of the rows of a sweep that are ranked together.
    """

    row: str
    other: str | float | None
    place: str
    level: str = ""


Varied = Mapping[str, Any]  # the varied keys of a row of a sweep with its values; empty for other rows


def check_answers(answers: Sequence[Answer]) -> None:
    """Raise ConfigurationError for an answer that compares nothing, whatever the rows are."""
    for answer in answers:
        if not answer.runs or answer.against == []:
            raise ConfigurationError(f"the answer of {answer.run!r} must name one or more rows", "answer")
        names = {name for pattern in answer.runs for name in NAME.findall(pattern)}
        if answer.by and not all(answer.by in NAME.findall(pattern) for pattern in answer.runs):
            known = f"its names in braces are {', '.join(sorted(names))}" if names else "it has no name in braces"
            raise ConfigurationError(f"answer: by = {answer.by!r} is not in every pattern of `run`; {known}", "answer")
        if unknown_kinds := [kind for kind in answer.within if kind not in BUDGETS]:
            raise unknown("answer.within", unknown_kinds[0], BUDGETS)
        if any(most < 1 for limits in answer.within.values() for most in limits) or not all(answer.within.values()):
            raise ConfigurationError("answer.within: each kind of budget must list whole numbers of 1 or more", "answer")
        if answer.within and (answer.against is not None or answer.figure or answer.yes):
            raise ConfigurationError(
                "an answer with `within` ranks rows by the test metric; leave out `against`, `figure` and `yes`", "answer"
            )


def pairs_of(answer: Answer, rows: Mapping[str, Varied]) -> list[Pair]:
    """Return the comparisons of an answer among these rows, in the order of the rows."""
    patterns = [compiled(pattern) for pattern in answer.runs]
    matched = {row: match for row, varied in rows.items() if (match := _match(patterns, row, varied))}
    level = levels({row: rows[row] for row in matched}) if answer.against is None else {}
    found = dict[Pair, None]()
    for row, match in matched.items():
        texts = match.groupdict()
        others = [other for pattern in answer.others for other in _rows_of(pattern, texts, rows, rows[row])]
        for other in others if answer.others else [answer.against]:
            if other != row:
                found[Pair(row, other, texts.get(answer.by, ""), level.get(row, ""))] = None  # type: ignore[arg-type]
    return list(found)


def brief_names(answer: Answer, rows: Mapping[str, Varied]) -> dict[str, str]:
    """Return names of rows that are ranked together, without what they share.

    For the pattern "{schedule}, {devices}" by devices, it is "torus" for the row "torus, equal"; in a sweep, it is the name
    before the sweep if that tells the rows apart.
    """
    patterns, found = [compiled(pattern) for pattern in answer.runs], {}
    for row, varied in rows.items():
        base = base_of(row, varied)
        match = _match(patterns, base, {})
        texts = {} if match is None else match.groupdict()
        found[row] = ", ".join(text for name, text in texts.items() if name != answer.by) or base
    unique = len(set(found.values())) == len(found)
    return found if unique else {row: label(row, varied) for row, varied in rows.items()}


def missing_rows(answer: Answer, rows: Mapping[str, Varied]) -> list[str]:
    """Return the patterns of an answer that no row has."""
    patterns = (*answer.runs, *answer.others)
    return [pattern for pattern in patterns if not any(matches(pattern, row, varied) for row, varied in rows.items())]


def matches(pattern: str, row: str, varied: Varied = MappingProxyType({})) -> bool:
    """Return whether the name of a row, or its name before a sweep, follows a pattern."""
    return _match([compiled(pattern)], row, varied) is not None


def _match(patterns: Sequence[re.Pattern[str]], row: str, varied: Varied) -> re.Match[str] | None:
    names = (row, base_of(row, varied)) if varied else (row,)
    return next((match for name in names for pattern in patterns if (match := pattern.fullmatch(name))), None)


def _rows_of(pattern: str, texts: Mapping[str, str], rows: Mapping[str, Varied], varied: Varied) -> list[str]:
    """Return the rows that follow a pattern, with these texts for its names, for a row with these varied values."""
    given = NAME.sub(lambda name: texts.get(name[1], name[0]), pattern)
    if given in rows:
        return [given]  # the pattern names the values that it compares with
    return [row for row, own in rows.items() if alike(own, varied) and matches(given, row, own)]


# Names and values of the rows of a sweep


def split(listed: str) -> list[str]:
    """Split at the commas outside brackets and quotes: a list of values, or the parts of a run's name."""
    parts, depth, quote = [""], 0, ""
    for sign in listed:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and not depth:
            parts.append("")
            continue
        parts[-1] += sign
    return [part.strip() for part in parts]


def label(name: str, varied: Mapping[str, Any], without: Collection[str] = ()) -> str:
    """Return the label of a run of a sweep, the same everywhere: its name with the last part of each varied key.

    It is such as "ring, models=4" for "ring, budget.models=4". Varied keys with the same last part stay whole.

    Args:
        varied: the varied keys with the values of this run.
        without: varied keys that are left out.
    """
    times = Counter(map(_short, varied))
    words = []
    for word in split(name):
        key = word.partition("=")[0]
        if key not in varied:
            words.append(word)
        elif key not in without:
            short = _short(key)
            words.append(f"{short if times[short] == 1 else key}={setting(key, varied[key])}")
    return ", ".join(words)


def _short(key: str) -> str:
    """Return the last part of a key, and of the key of a name or a file the part before it."""
    return key.removesuffix(".name").removesuffix(".file").rpartition(".")[2]


def base_of(row: str, varied: Varied) -> str:
    """Return the name of a row before a sweep: "ring" for "ring, budget.models=4"; "" if nothing is left."""
    return ", ".join(word for word in split(row) if word.partition("=")[0] not in varied) if varied else row


def alike(one: Varied, other: Varied) -> bool:
    """Return whether two rows have the same value of each key that both vary."""
    return all(other[key] == value for key, value in one.items() if key in other)


def counterpart(against: str, rows: Mapping[str, Varied], varied: Varied) -> str | None:
    """Return the only row of this name, or of this name before a sweep and alike; None if there is no or more than one."""
    if against in rows:
        return against
    found = [row for row, own in rows.items() if own and base_of(row, own) == against and alike(own, varied)]
    return found[0] if len(found) == 1 else None


def levels(rows: Mapping[str, Varied]) -> dict[str, str]:
    """Return the level of each row of a sweep in words, such as "budget.models=4": rows of a level can be ranked.

    A level has the values of the keys that all rows vary. Rows that were one row before the sweep differ in these keys
    only, and have the level "", except that keys of the learning problem always separate.
    """
    several = len({base_of(row, varied) for row, varied in rows.items()}) > 1
    keys = [key for key in common_keys(list(rows.values())) if several or of_problem(key)]
    return {row: values(varied, keys) for row, varied in rows.items()}


def values(varied: Varied, keys: Sequence[str]) -> str:
    """Return the values of varied keys as a label has them, such as "models=4, loss=0.1"."""
    return label(", ".join(f"{key}=" for key in keys), varied)


def common_keys(rows: Sequence[Varied]) -> list[str]:
    """Return the keys that all of these rows vary."""
    return [key for key in (rows[0] if rows else ()) if all(key in varied for varied in rows)]


def of_problem(key: str) -> bool:
    """Return whether a varied key changes the learning problem, so that results for different values are not comparable.

    Data, attack, number of nodes, network, speed and presence of nodes are given to a federation. Policy, topology, budget,
    codec and the settings of training are its choice. An attack that is tuned to the rule of each row is one attack.
    """
    first, _, rest = key.partition(".")
    chosen = {"task": TRAINING, "attack": (TUNED,)}.get(first, ())
    return first in PROBLEM and rest.partition(".")[0] not in chosen


def problem_of(settings: Mapping[str, Any], varied: Varied) -> dict[str, Any]:
    """Return the settings of a run's learning problem; results for different problems are not comparable.

    They are data, task, attack, nodes, network, speed and presence, without the settings of training. The topology is a
    choice, as the policy is.

    Args:
        settings: the table of the run in a resolved scenario; {} if unknown.
        varied: its varied values, for tables that `settings` lacks.
    """
    found = {key: settings[key] for key in PROBLEM if key in settings}
    found |= {key: value for key, value in varied.items() if of_problem(key) and key.partition(".")[0] not in found}
    found.setdefault("attack", "none")
    if isinstance(network := found.get("network"), Mapping):
        found["network"] = {"links": "none", **network}
    for name in ("task", "attack"):
        if isinstance(table := found.get(name), Mapping):
            found[name] = {key: value for key, value in table.items() if of_problem(f"{name}.{key}")}
    return found


def surroundings(varied: Varied) -> str:
    """Return the varied values of the learning problem outside the task, such as "loss=0.1"; "" without any.

    Models with several objectives share a front only where these are equal. Keys of the task do not separate them: models
    for different preferences are what a front consists of.
    """
    return values(varied, [key for key in varied if of_problem(key) and key.partition(".")[0] != "task"])


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression."""
    parts, seen = [], set[str]()
    for k, part in enumerate(NAME.split(pattern)):
        if k % 2 == 0:
            parts.append(re.escape(part))
        else:
            parts.append(f"(?P={part})" if part in seen else f"(?P<{part}>.+?)")
            seen.add(part)
    return re.compile("".join(parts))
