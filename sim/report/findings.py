"""Sentences on what finished runs answer, for the head of a report and below the table in a terminal.

There are two kinds of questions. Which run is best by some figure, such as accuracy or bytes to the target: `best` ranks
the runs of one learning problem and names the best one. References, such as local learning and oracles, are not ranked.
What does a change do, such as a budget, or a second folder of the same scenario: `changes` compares pairs of runs. Both say
"not decided" unless the margin is greater than its spread. A margin is the mean over the seeds of the differences of two
runs, and its spread is the standard deviation of these differences; a single seed has no spread. Rankings that are not
decided are collected at the end. In a sweep, runs are also ranked within each combination of the varied values that they
share, and compared with the run `against` of the same values. Varied keys of the learning problem, such as network.loss,
always separate runs. The other sentences list runs: those that are better than learning alone, those that miss the target,
robust rules within limits, and clusterings. `p2pfl.sim.report.answers` answers the scenario's own question before them.

Every figure comes from summary.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import isclose
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from p2pfl.sim.formatting import MOST_DECIMALS, ROUNDING, count, decimals, difference, number, size
from p2pfl.sim.report.attacks import (
    FIGURES,
    MEAN,
    NO_ATTACK,
    NO_RULE,
    AttackRow,
    AttackStudy,
    attack_rows,
    attack_studies,
    labels_of,
    title,
)
from p2pfl.sim.report.comparison import Comparison, compared, comparisons
from p2pfl.sim.report.folder import Clusters, Entry, Folder, Reached, Summary
from p2pfl.sim.report.series import Run, Series, by_key, folder_names, gather, places_of, runs_of
from p2pfl.sim.scenario.questions import common_keys, counterpart, matches, of_problem, values
from p2pfl.sim.scenario.sweep import MODELS

MOST_PROBLEMS = 4  # learning problems of the runs; with more, a sentence for each would hide the others
MOST_SIGNS = 60  # of the words for a problem
MOST_LEVELS = 6  # rankings within values of the varied keys; more are counted
MOST_PAIRS = 7  # sentences on pairs of runs; more pairs are summarised
MOST_IN_ORDER = 3  # names in an order of runs
MOST_NAMED = 5  # names in a list; a longer one ends with the number of the others
LEAST_KEPT, MOST_LOST = 0.95, 0.02  # of a robust rule that is suitable as a default
KEPT = ("the mean accuracy", "the accuracy of the worst tenth")  # words for FIGURES
SAME = 1 - 1e-9  # an adjusted Rand index above this is 1
Value = Callable[[Entry], float | None]
Ranked = tuple[str, Mapping[int, float]]  # a run, or a rule, in words, and its figure by seed


def findings_of_runs(runs: Sequence[Run], summary: Summary) -> list[str]:
    """Return all sentences on the runs of one folder, for its report and for a terminal."""
    ranked, found = most_accurate(runs, summary.references)
    found += _unranked(runs, [*ranked, *found], summary)
    more, said = _of_one_folder(runs, summary)
    return [*decided([*ranked, *more]), *found, *said, *undecided([*ranked, *more])]


def findings_of_folders(folders: Sequence[Folder], series: Sequence[Series]) -> list[str]:
    """Return the sentences for the head of a report."""
    if len(folders) == 1:
        return findings_of_runs(series, folders[0].summary)
    names = folder_names([folder.path for folder in folders])
    references = [pattern for folder in folders for pattern in folder.summary.references]
    ranked, named = most_accurate(series, references)
    found = [*changes(comparisons(series), names[1]), *decided(ranked), *named]
    for folder, name in zip(folders, names, strict=True):
        runs = runs_of(folder.summary, folder.runs)
        own, said = _of_one_folder(runs, folder.summary)
        said = [*_unranked(runs, [*ranked, *named], folder.summary), *said]
        found += [f"{name}: {sentence}" for sentence in (*decided(own), *said, *undecided(own))]
    return [*found, *undecided(ranked)]


def compare(paths: Sequence[Path]) -> list[str]:
    """Return the comparison of two folders; [] for other numbers of folders.

    Raises:
        ConfigurationError: a folder has no finished run, or a file of it is damaged.
    """
    if len(paths) != 2:
        return []
    with ExitStack() as stack:
        folders = [stack.enter_context(Folder(path)) for path in paths]
        return changes(comparisons(gather(folders)), folder_names(paths)[1])


def _of_one_folder(runs: Sequence[Run], summary: Summary) -> tuple[list[Best], list[str]]:
    ranked, missed = [], []
    if summary.target is not None:
        ranked = _cheapest(runs, summary)
        missed = unreached(runs, summary.target)
    robust, rules = _robust(runs)
    changed = [*_orders(runs, summary), *_instead(runs, summary), *_budgets(runs)]
    said = [*_together(runs, summary), *missed, *_problems_varied(runs, summary), *changed]
    return [*ranked, *robust], [*said, *rules, *_clusters(runs)]


def problems(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each metric and learning problem by words for it; "" if there is only one.

    A problem that takes many words, such as one with a list of links, is called by its first run.
    """
    found = list(by_key(runs, lambda run: (run.metric, run.problem)).values())
    words = labels_of([alike[0].given() for alike in found])
    words = [
        label if len(label) <= MOST_SIGNS else f"problem of {alike[0].words}"
        for label, alike in zip(words, found, strict=True)
    ]
    if len({alike[0].metric for alike in found}) > 1:
        words = [", ".join(filter(None, (label, alike[0].metric))) for label, alike in zip(words, found, strict=True)]
    return dict(zip(words, found, strict=True))


# The best run


class Best(NamedTuple):
    """A ranking: its question, the answer in words, the reason if it is not decided, else "", and the first run."""

    question: str
    answer: str
    undecided: str = ""
    name: str = ""

    def __str__(self) -> str:
        doubt = f"not decided, because {self.undecided}; " if self.undecided else ""
        return f"{self.question}: {doubt}{self.answer}."


ONE_SEED = "a single seed has no spread"
WITHIN = "the margin is within its standard deviation over seeds"


class Ranking(NamedTuple):
    """Runs in the order of a figure, and whether the first of them is the best.

    Attributes:
        name, value: the first run in words, and the mean of its figure over the seeds.
        rivals: others from which the first is not decided to be better; if there are none, the second.
        decided: whether the margin over each other run is greater than its standard deviation over the seeds.
        margins: of the first over the first of the rivals, by seed; empty without others.
    """

    name: str
    value: float
    rivals: list[tuple[str, float]]
    decided: bool
    margins: list[float]


def ranking(ranked: Sequence[Ranked], higher: bool = False) -> Ranking:
    """Rank one or more runs by a figure over their seeds.

    Args:
        higher: more is better.
    """
    sign = -1 if higher else 1
    (name, values), *others = sorted(ranked, key=lambda each: sign * _mean(each[1].values()))
    rivals = []
    for other, theirs in others:
        margins = [sign * (theirs[seed] - values[seed]) for seed in values if seed in theirs]
        rivals.append(((other, _mean(theirs.values())), margins))
    close = [each for each in rivals if len(each[1]) < 2 or _mean(each[1]) <= _deviation(each[1])]
    shown = close or rivals[:1]
    margins = shown[0][1] if shown else []
    return Ranking(name, _mean(values.values()), [rival for rival, _ in shown], not close, margins)


def best(
    question: str,
    ranked: Sequence[Ranked],
    unit: Callable[..., str] = number,
    higher: bool = False,
    *,
    places: int | None = None,
    alone: str = "the only result",
) -> Best | None:
    """Rank runs by a figure over their seeds, and name the best one, or those among which it is not decided.

    Args:
        question: the answer without the run, such as "Fastest to a mean test accuracy of 0.850".
        ranked: the runs in question; if there are none, there is no answer.
        unit: format of the figure; with `places` it takes the number of decimals as well.
        higher: more is better.
        places: decimals of the figures; by default those of a column of numbers.
        alone: what is said of the only run.
    """
    if not ranked:
        return None
    if unit is number and places is None:
        each = [list(values.values()) for _, values in ranked]
        places = decimals((v for values in each for v in values), (_deviation(v) for v in each if len(v) > 1))
    write = unit if places is None else partial(unit, places=places)
    name, value, rivals, is_decided, margins = ranking(ranked, higher)
    first = f"{name} ({write(value)})"
    if not rivals:
        return Best(question, f"{first}, {alone}", "", name)
    rival = f"{rivals[0][0]} ({write(rivals[0][1])})"
    if len(margins) < 2:
        return Best(question, f"first {first}, next {rival}", ONE_SEED, name)
    margin, spread = apart(unit, places, _mean(margins), _deviation(margins))
    if is_decided:
        answer = f"{first}; the margin of {margin} over {rival} exceeds its standard deviation over seeds, {spread}"
        return Best(question, answer, "", name)
    more = f" and {len(rivals) - 1} more" if len(rivals) > 1 else ""
    answer = f"first {first}, next {rival}{more}; the margin is {margin}, its standard deviation {spread}"
    return Best(question, answer, WITHIN, name)


def apart(unit: Callable[..., str], places: int | None, margin: float, spread: float) -> tuple[str, str]:
    """Return a margin and its spread with as many decimals as it takes to read both: a column's may make one of them 0.

    Args:
        places: decimals of the column; None for a unit that chooses its own.
    """
    if places is None:
        return unit(margin), unit(spread)
    least = ROUNDING * max(abs(margin), spread)
    shown = [abs(value) for value in (margin, spread) if abs(value) > least]
    while places < MOST_DECIMALS and any(unit(value, places) == unit(0.0, places) for value in shown):
        places += 1
    while places < MOST_DECIMALS and abs(abs(margin) - spread) > least and unit(abs(margin), places) == unit(spread, places):
        places += 1
    return unit(margin, places), unit(spread, places)


def decided(found: Sequence[Best]) -> list[str]:
    return [str(each) for each in found if not each.undecided]


def undecided(found: Sequence[Best]) -> list[str]:
    """Return one sentence for each reason, with all rankings that are not decided for it."""
    said = []
    for reason, alike in by_key([each for each in found if each.undecided], lambda each: each.undecided).items():
        each = [f"{one.question}: {one.answer}" for one in alike]
        said.append(str(alike[0]) if len(alike) == 1 else f"Not decided, because {reason}: {'. '.join(each)}.")
    return said


def most_accurate(runs: Sequence[Run], references: Sequence[str] = ()) -> tuple[list[Best], list[str]]:
    """Rank the runs of each problem by the test metric: all, those of each level of a sweep, and those within each varied
    budget of models a round.

    Args:
        references: patterns of rows that are not ranked, besides local learning and oracles.

    Returns:
        The rankings, and sentences with the figures of the references.
    """
    found: list[Best | None] = []
    named = []
    separate = problems(runs)
    places = places_of(runs)
    for words, alike in separate.items() if len(separate) <= MOST_PROBLEMS else ():
        ranked, others = _candidates(alike, references)
        digits = places[alike[0].metric]
        among = f", {words}" if words else ""
        if others and len(alike) > 1:
            figures = (f"{name} ({number(_mean(values.values()), digits)})" for name, values in _figures(others, _test_mean))
            named.append(f"References, which are not ranked{among}: {_list(list(figures), len(others))}.")
        if len(ranked) < 2:
            continue
        higher = alike[0].shown.higher_is_better
        found.append(best(_question(alike[0]) + among, _figures(ranked, _test_mean), higher=higher, places=digits))
        limits = [run.shown.varied.get(MODELS) for run in ranked]  # a range such as [1, 2] is no limit for all nodes
        for most in sorted({limit for limit in limits if type(limit) is int and limit > 0}):
            question = f"Best with at most {count(most, 'model')} a round{among}"
            found.append(best(question, _figures(ranked, _mean_within(most)), higher=higher, places=digits))
    levels = [
        (f"{_question(mine[0])}{f', {words}' if words else ''}, {level}", mine)
        for words, alike in separate.items()
        for level, mine in _levels(_candidates(alike, references)[0]).items()
    ]
    if len(levels) <= MOST_LEVELS:
        found += [
            best(question, _figures(mine, _test_mean), higher=_higher(mine), places=places[mine[0].metric])
            for question, mine in levels
        ]
    else:
        named += _counted([mine for _, mine in levels])
    return [each for each in found if each is not None], named


def _unranked(runs: Sequence[Run], ranked: Sequence[Best | str], summary: Summary) -> list[str]:
    """Return why no run is ranked: the runs have too many problems, and neither the values of a sweep nor an answer do."""
    separate = problems(runs)
    several = any(len(_candidates(alike, summary.references)[0]) > 1 for alike in separate.values())
    if len(separate) <= MOST_PROBLEMS or not several or ranked or summary.answers:
        return []
    return [
        f"The rows are not ranked, because they have {len(separate)} learning problems, more than {MOST_PROBLEMS};"
        " run those of one problem with `--only TEXT`, or write an [[answer]] that ranks them."
    ]


def _question(run: Run) -> str:
    return "Most accurate" if run.metric == "accuracy" else f"Best test {run.metric}"


def _higher(runs: Sequence[Run]) -> bool:
    return runs[0].shown.higher_is_better


def _levels(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each combination of the varied values that all share, in words, if several rows have it.

    Keys of the learning problem are left out, because the runs have the same. So are budgets of models, because runs with
    fewer models are within a greater budget, and are ranked in it. Rows that were one row before the sweep have no levels.
    """
    keys = [key for key in common_keys([run.shown.varied for run in runs]) if key != MODELS and not of_problem(key)]
    found = by_key(runs, lambda run: values(run.shown.varied, keys))
    several = {level: mine for level, mine in found.items() if len({run.base for run in mine}) > 1}
    return several if len(found) > 1 else {}


def _counted(levels: Sequence[Sequence[Run]]) -> list[str]:
    """Return in how many of many levels each row is the best."""
    keys = list(dict.fromkeys(key for mine in levels for key in common_keys([run.shown.varied for run in mine])))
    said = []
    for alike in by_key(levels, lambda mine: mine[0].metric).values():
        firsts = []
        for mine in alike:
            names = {run.words: run.words_without(keys) for run in mine}
            ranked = [(names[words], values) for words, values in _figures(mine, _test_mean)]
            if (first := best("", ranked, higher=_higher(mine))) is not None:
                firsts.append(first)
        order = sorted(by_key(firsts, lambda each: each.name).items(), key=lambda item: -len(item[1]))
        parts = [f"{name} in {len(own)} ({sum(not one.undecided for one in own)} decided)" for name, own in order]
        where = f"{len(firsts)} combinations of {', '.join(keys)}"
        said.append(f"{_question(alike[0][0])} within each of {where}: {_list(parts)}.")
    return said


def _candidates(runs: Sequence[Run], references: Sequence[str]) -> tuple[list[Run], list[Run]]:
    """Return the runs to rank, and the references."""
    others = [
        run for run in runs if run.reference or any(matches(pattern, run.row, run.shown.varied) for pattern in references)
    ]
    return [run for run in runs if run not in others], others


def _test_mean(entry: Entry) -> float | None:
    return entry.test.mean


def _mean_within(most: int) -> Value:
    """Return a function for the mean of a run if no node received more models in a round."""
    return lambda entry: entry.test.mean if entry.traffic.max_models_in_round <= most else None


def _cheapest(runs: Sequence[Run], summary: Summary) -> list[Best]:
    """Return the runs that reach the target first, in rounds, in time, and in bytes."""
    costs = (("Fewest rounds", "round", _rounds), ("Fastest", "virtual_s", _seconds), ("Fewest bytes", "bytes", size))
    separate = problems(runs)
    found = []
    for problem, alike in separate.items() if len(separate) <= MOST_PROBLEMS else ():
        ranked, _ = _candidates(alike, summary.references)
        goal = _goal(alike, summary.target or 0.0) + (f", {problem}" if problem else "")
        found += [
            best(f"{words} to {goal}", _figures(ranked, methodcaller("cost", key)), unit, alone=_alone(ranked))
            for words, key, unit in costs
        ]
    return [each for each in found if each is not None]


def _alone(runs: Sequence[Run]) -> str:
    """Return what is said of the only run that reaches the target with every seed."""
    partly = [
        f"{run.words} with {there} of {len(run.entries)}" for run, there in _reaching(runs) if there < len(run.entries)
    ]
    return "the only row that reaches it" + (f" with every seed ({_list(partly)})" if partly else "")


def _reaching(runs: Sequence[Run]) -> list[tuple[Run, int]]:
    """Return the runs that reach the target, and with how many seeds."""
    times = ((run, sum(isinstance(entry.reached, Reached) for entry in run.entries)) for run in runs)
    return [(run, there) for run, there in times if there]


def _goal(runs: Sequence[Run], target: float) -> str:
    return f"a mean test {runs[0].metric} of {number(target)}"


def unreached(runs: Sequence[Run], target: float) -> list[str]:
    """Return the runs that never reach the target, or with some seeds only."""
    goal = _goal(runs, target)
    times = _reaching(runs)
    never = [run.words for run in runs if run not in [reaching for reaching, _ in times]]
    if len(never) == len(runs):
        return [f"No run reaches {goal}."]
    found = [f"Runs that never reach {goal}: {_list(never)}."] if never else []
    partly = [f"{run.words} ({there} of {len(run.entries)})" for run, there in times if there < len(run.entries)]
    return [*found, *([f"Runs that reach {goal} with some seeds only: {_list(partly)}."] if partly else [])]


def _figures(runs: Sequence[Run], value: Value) -> list[Ranked]:
    """Return the figure of each run that has it with every seed; of equal runs with equal events, only the first."""
    found: dict[Any, Ranked] = {}
    for run in runs:
        values = {entry.seed: [value(each) for each in run.entries if each.seed == entry.seed] for entry in run.entries}
        if any(each is None or not np.isfinite(each) for own in values.values() for each in own):
            continue
        means = {seed: _mean(own) for seed, own in values.items()}
        events = tuple(entry.trace or entry.name for entry in run.entries)
        found.setdefault((events, tuple(means.items())), (run.words, means))
    return list(found.values())


# The effect of a change


def changes(found: Sequence[Comparison], cause: str, most: int = MOST_PAIRS) -> list[str]:
    """Return the effect of a change on each pair of runs; of more than `most` pairs with the same metric, a summary.

    Args:
        cause: what differs in the second runs, such as "a budget of 4 models a round".
    """
    said = []
    for pairs in by_key(found, lambda each: each.first.metric).values():
        said += [_summary(pairs, cause)] if len(pairs) > most else [_change(each, cause) for each in pairs]
    return said


def _change(each: Comparison, cause: str) -> str:
    start = f"{each.label}: {cause}" if each.label else cause[0].upper() + cause[1:]
    if each.same:
        return f"{start} changes nothing: both runs have the same events."
    places = places_of([each.first, each.second])[each.first.metric]
    before, after = (number(_mean(values), places) for values in (each.before, each.after))
    metric, margin = f"the test {each.first.metric}", number(abs(each.mean), places)
    doubt = "not decided, because a single seed has no spread"
    if each.spread is not None:
        spread = number(each.spread, places)
        if each.decided:  # by digits that the means may not have
            margin, spread = apart(number, places, abs(each.mean), each.spread)
        spread = f"the spread of {spread} over {count(len(each.seeds), 'seed')}"
        doubt = f"more than {spread}" if each.decided else f"not decided: within {spread}"
    if before == after and not each.decided:
        effect = f"leaves {metric} at {after}"
    else:
        way = "raises" if each.mean > 0 else "lowers"
        effect = f"{way} {metric} by {margin} ({after} instead of {before})"
    return f"{start} {effect}, {doubt}{_bytes([each])}{_sooner(each)}."


def _summary(pairs: Sequence[Comparison], cause: str) -> str:
    better, worse = (sum(each.decided and way * each.gain > 0 for each in pairs) for way in (1, -1))
    equal = sum(not each.differences.any() for each in pairs)
    said = f"Of {count(len(pairs), 'run')}, {cause} improves {better} and worsens {worse}"
    for runs, state in ((equal, "equal"), (len(pairs) - better - worse - equal, "not decided")):
        said += f"; {runs} {'is' if runs == 1 else 'are'} {state}" if runs else ""
    least, *_, most = sorted(pairs, key=lambda each: each.mean)
    places = decimals((each.mean for each in pairs), (each.spread for each in pairs))
    ends = f"from {difference(least.mean, places)} ({least.label}) to {difference(most.mean, places)} ({most.label})"
    mean = difference(_mean([each.mean for each in pairs]), places)
    return f"{said}. The mean change of the test {least.first.metric} is {mean}, {ends}{_bytes(pairs)}."


def _bytes(pairs: Sequence[Comparison]) -> str:
    """Return the change of the bytes sent; "" if it is below 0.5 %, or if nothing was sent."""
    before, after = (sum(each.sent[k] for each in pairs) for k in (0, 1))
    saved = 1 - after / before if before else 0.0
    if abs(saved) < 0.005:
        return ""
    share = "more than 99 %" if 0.995 <= saved < 1 else f"{abs(100 * saved):.0f} %"
    return f"; {share} {'fewer' if saved > 0 else 'more'} bytes are sent"


def _sooner(each: Comparison) -> str:
    """Return the cost of the target in both runs, if they reach it with every seed; else ""."""
    runs = (each.first, each.second)
    rounds, seconds = ([_figures([run], methodcaller("cost", key)) for run in runs] for key in ("round", "virtual_s"))
    if not all(rounds):
        return ""
    ((before, after), (start, end)) = ([_mean(values.values()) for ((_, values),) in own] for own in (rounds, seconds))
    return (
        f"; the target takes {_rounds(after)} instead of {_rounds(before)}, and {_seconds(end)} instead of {_seconds(start)}"
    )


def _together(runs: Sequence[Run], summary: Summary) -> list[str]:
    """Return for each problem which runs are better than learning alone, and which are not; none where it is said already.

    An answer says it, or a sentence on rows in place of local learning.
    """
    answered = [pattern for answer in summary.answers for pattern in answer.others]
    separate = problems(runs)
    said = []
    for words, alike in separate.items() if len(separate) <= MOST_PROBLEMS else ():
        alone = [run for run in alike if run.alone and not any(matches(p, run.row, run.shown.varied) for p in answered)]
        pairs = []
        for run in _candidates(alike, summary.references)[0]:
            varied = run.shown.varied
            near = [one for one in alone if all(varied.get(key, own) == own for key, own in one.shown.varied.items())]
            found = [pair for one in near if (pair := compared(run.words, one, run)) is not None]
            pairs += [min(found, key=lambda pair: pair.gain)] if found else []  # with the best row that learns alone
        instead = any(run.base == _reference(summary) for run in alone) and _instead(alike, summary)
        if pairs and not instead:
            said.append(_better(pairs, f", {words}" if words else ""))
    return said


def _better(pairs: Sequence[Comparison], among: str) -> str:
    """Return which second runs of pairs are better than learning alone, the first run of each."""
    means = [_mean(values) for each in pairs for values in (each.before, each.after)]
    places = decimals(means, (each.spread for each in pairs))
    names = {each.first.words: number(_mean(each.before), places) for each in pairs}
    alone = f"learning alone ({', '.join(*names.items())})" if len(names) == 1 else "learning alone"
    sides: dict[str, list[str]] = {side: [] for side in ("Better", "Not decided", "Ahead", "Equal", "Behind", "Worse")}
    for each in sorted(pairs, key=lambda each: -each.gain):
        spread = "" if each.spread is None else f" ± {number(each.spread, places)}"
        words = f"{each.label} {number(_mean(each.after), places)} ({difference(each.mean, places)}{spread})"
        if not each.differences.any():
            side = "Equal"
        elif each.spread is None:
            side = "Ahead" if each.gain > 0 else "Behind"
        else:
            side = ("Better" if each.gain > 0 else "Worse") if each.decided else "Not decided"
        sides[side].append(words)
    if better := sides.pop("Better"):
        head = f"Better than {alone}{among}: {_list(better)}"
    elif sides["Not decided"]:
        head = f"Not decided whether any row is better than {alone}{among}: {_list(sides.pop('Not decided'))}"
    elif sides["Ahead"] or sides["Behind"]:
        head = f"Not decided whether any row is better than {alone}{among}, because {ONE_SEED}"
    else:
        head = f"No row is better than {alone}{among}"
    parts = [head, *(f"{side}: {_list(listed)}" for side, listed in sides.items() if listed)]
    seeds = max(len(each.seeds) for each in pairs)
    return f"{'. '.join(parts)}.{f' {parentheses(seeds)}' if seeds > 1 else ''}"


def parentheses(seeds: int) -> str:
    return f"In parentheses: margin ± standard deviation over {count(seeds, 'seed')}; a margin within it is not decided."


def _problems_varied(runs: Sequence[Run], summary: Summary) -> list[str]:
    """Return which varied keys change the learning problem, and the network, speed or presence of named rows."""
    values = by_key([(key, value) for run in runs for key, value in run.shown.varied.items()], lambda pair: pair[0])
    keys = [key for key, pairs in values.items() if of_problem(key) and any(pair != pairs[0] for pair in pairs)]
    tables = [run.given() for run in runs if run.settings]
    for name in ("network", "compute", "availability"):
        known = any(key.partition(".")[0] == name for key in keys)
        if not known and any(table.get(name) != tables[0].get(name) for table in tables):
            keys.append(name)
    if not keys:
        return []
    verb = "changes" if len(keys) == 1 else "change"
    said = f"{', '.join(keys)} {verb} the learning problem, so rows with different values are not ranked with each other"
    against = _reference(summary)
    across = any(run.row == against for run in runs)  # one row is the reference of all, whatever their problem
    return [f"{said}{f'; the column vs {against} shows differences only' if across else ''}."]


def _orders(runs: Sequence[Run], summary: Summary) -> list[str]:
    """Return both orders of the runs of each problem, where that of each node's best round is not that of the last round."""
    separate = problems(runs)
    said = []
    for words, alike in separate.items() if len(separate) <= MOST_PROBLEMS else ():
        write = partial(number, places=places_of(alike)[alike[0].metric])
        ends = [
            {name: write(_mean(values.values())) for name, values in _figures(_candidates(alike, summary.references)[0], of)}
            for of in (_test_mean, _last_mean)
        ]
        both = [name for name in ends[0] if name in ends[1]]
        orders = [sorted(both, key=lambda name: _value(own[name]), reverse=_higher(alike)) for own in ends]
        if orders[0] != orders[1]:
            each = [[f"{name} ({own[name]})" for name in order] for own, order in zip(ends, orders, strict=True)]
            first, last = (_list(names, MOST_IN_ORDER) for names in each)
            among = f", {words}" if words else ""
            said.append(f"The order depends on the round{among}. Each node's best round: {first}. Last round: {last}.")
    return said


def _last_mean(entry: Entry) -> float | None:
    return entry.test.last_round


def _value(written: str) -> float:
    return float(written.replace(",", ""))


def _reference(summary: Summary) -> str:
    """Return the name of the row that the table compares with; "" without one."""
    return next((row.against.name for row in summary.table if row.against is not None), "")


def _instead(runs: Sequence[Run], summary: Summary) -> list[str]:
    """Return the effect of each row of a sweep in place of the row `against`, from the pairs with the same values."""
    against = _reference(summary)
    rows = {run.row: run.shown.varied for run in runs}
    if not against or against in rows or not any(rows.values()):
        return []  # the table compares all rows with one, and without a sweep the scenario asks its own question
    found: dict[str, list[Comparison]] = {}
    for run in runs:
        other = counterpart(against, rows, run.shown.varied)
        reference = next((one for one in runs if one.row == other), None)
        if reference is None or reference.base == run.base:
            continue
        if (pair := compared(run.words.removeprefix(f"{run.base}, "), reference, run)) is not None:
            found.setdefault(f"{run.base} instead of {against}", []).append(pair)
    most = MOST_PAIRS if sum(map(len, found.values())) <= MOST_PAIRS else 1
    return [sentence for cause, pairs in found.items() for sentence in changes(pairs, cause, most)]


def _budgets(runs: Sequence[Run]) -> list[str]:
    """Return the effect of each budget, from pairs of runs that differ only in having one."""
    found: dict[str, list[Comparison]] = {}
    for free, bound in budget_pairs(runs):
        varied = free.shown.varied
        label = free.words_without([key for key in varied if key.partition(".")[0] == "budget"])
        if (pair := compared(label if varied else free.row, free, bound)) is not None:
            cause = f"a budget of {_limits_in_words(bound.settings['budget'], bound.shown.nodes)}"
            found.setdefault(cause, []).append(pair)
    most = MOST_PAIRS if sum(map(len, found.values())) <= MOST_PAIRS else 1
    return [sentence for cause, pairs in found.items() for sentence in changes(pairs, cause, most)]


def budget_pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return pairs of a run without a budget and a run that differs only in having one, in the order of the latter."""
    known = [run for run in runs if run.settings and not run.shown.pool]
    free = {_without_budget(run): run for run in reversed(known) if not _limited(run)}
    bound = [(_without_budget(run), run) for run in known if _limited(run)]
    return [(free[key], run) for key, run in bound if key in free]


def _limited(run: Run) -> bool:
    return any(run.settings.get("budget", {}).values())


def _without_budget(run: Run) -> str:
    labels = ("name", "paper", "pool", "varied", "budget")
    return json.dumps({key: value for key, value in run.settings.items() if key not in labels}, sort_keys=True, default=str)


def _limits_in_words(budget: Mapping[str, Any], nodes: int) -> str:
    words = []
    for kind, noun, unit in (
        ("models", "model", "a round"),
        ("held", "model", "held at once"),
        ("bytes", "byte", "a round"),
        ("trainings", "training", "in the run"),
        ("joules", "joule", "in the run"),
    ):
        limit = budget.get(kind, 0)
        if isinstance(limit, float) and kind == "models":
            share = "a tenth" if isclose(limit, 0.1) else f"{100 * limit:.4g} %"
            words.append(f"{share} of the nodes ({count(max(1, round(limit * nodes)), noun)} {unit})")
        elif isinstance(limit, Sequence):
            words.append(f"{limit[0]:,} to {count(limit[1], noun)} {unit}")
        elif limit:
            words.append(f"{limit:,g} {noun}s {unit}" if isinstance(limit, float) else f"{count(limit, noun)} {unit}")
    return " and ".join(words)


# Robust rules


def _robust(runs: Sequence[Run]) -> tuple[list[Best], list[str]]:
    """Return which rule keeps most under its worst attack, and costs least without one; none if rules are not compared.

    Shares of a metric compare rules only if more of it is better.
    """
    if not runs[0].shown.higher_is_better:
        return [], []
    studies = attack_studies(attack_rows(runs))
    rules = list(dict.fromkeys(rule for study in studies for rule in study.rules))
    kept = {figure: [each for rule in rules if (each := _kept(rule, studies, figure))] for figure in FIGURES}
    lost = [each for rule in rules if (each := _lost(rule, studies))]
    ranked = [
        best(
            f"Most of {words} left by the worst attack", [each for _, each in kept[figure]], _percent, higher=True, places=1
        )
        for figure, words in zip(FIGURES, KEPT, strict=True)
    ]
    ranked.append(best("Least mean accuracy lost without attack", [each for _, each in lost]))
    found = []
    cheap = [rule for rule, (_, values) in lost if _mean(values.values()) <= MOST_LOST]
    for figure, words in zip(FIGURES, KEPT, strict=True) if lost else ():
        good = [rule for rule, (_, values) in kept[figure] if rule in cheap and _mean(values.values()) >= LEAST_KEPT]
        limits = f"{_percent(LEAST_KEPT)} of {words} under attack, and lose at most {MOST_LOST:g} without"
        found.append(f"Rules that keep {limits}: {_list(good) if good else 'none'}.")
    return [each for each in ranked if each is not None], found


def _kept(rule: str, studies: Sequence[AttackStudy], figure: str) -> tuple[str, Ranked] | None:
    """Return the share of a figure that the worst attack leaves, by seed; that without attack is of the same nodes."""
    found: dict[str, dict[int, float]] = {}
    for study in studies:
        clean = study.cells.get((rule, NO_ATTACK))
        for attack in study.attacks:
            row = study.cells.get((rule, attack))
            if clean is None or row is None or attack == NO_ATTACK:
                continue
            with_attack, without = _by_seed(row, row, figure), _by_seed(clean, row, figure)
            shares = {seed: value / without[seed] for seed, value in with_attack.items() if without.get(seed)}
            if shares:
                found[", ".join(part for part in (title(study, studies), attack) if part)] = shares
    return _worst(rule, found, "against", -1)


def _lost(rule: str, studies: Sequence[AttackStudy]) -> tuple[str, Ranked] | None:
    """Return how much of the mean a rule loses without attack, by seed, where it loses most."""
    found: dict[str, dict[int, float]] = {}
    for study in studies:
        rows = [study.cells.get((each, NO_ATTACK)) for each in (NO_RULE, rule)]
        if rule != NO_RULE and rows[0] is not None and rows[1] is not None:
            without, with_rule = (_by_seed(row, row, MEAN) for row in rows if row is not None)
            if lost := {seed: value - with_rule[seed] for seed, value in without.items() if seed in with_rule}:
                found[title(study, studies)] = lost
    return _worst(rule, found, "with", 1)


def _worst(rule: str, found: Mapping[str, Mapping[int, float]], where: str, sign: int) -> tuple[str, Ranked] | None:
    """Return a rule with its greatest values by the mean over seeds, or its least if `sign` is -1, and their place."""
    if not found:
        return None
    place = max(found, key=lambda each: sign * _mean(found[each].values()))
    return rule, (f"{rule} {where} {place}" if place else rule, found[place])


def _by_seed(row: AttackRow, attacked: AttackRow, figure: str) -> dict[int, float]:
    """Return a figure of the nodes that are honest in an attacked row, by seed."""
    each = {seed: row._replace(nodes={seed: nodes}) for seed, nodes in row.nodes.items()}
    found = {seed: one.of_nodes(attacked, figure, higher_is_better=True) for seed, one in each.items()}
    return {seed: value for seed, value in found.items() if value is not None}


# Clusters


def _clusters(runs: Sequence[Run]) -> list[str]:
    """Return the runs whose clusters equalled the true groups, with the rounds; those that missed them; and the rest."""
    equal, missed, split, whole = [], [], [], []
    for run in runs:
        clusterings = [entry.clusters for entry in run.entries if entry.clusters is not None and entry.clusters.count]
        if not clusterings:
            continue
        if all(max(each.count) == 1 for each in clusterings):
            whole.append(run.words)
            continue
        ends = f"at the end {_range([each.count[-1] for each in clusterings])} clusters of {run.shown.nodes} nodes"
        indices = [each.adjusted_rand for each in clusterings if each.adjusted_rand]
        if len(indices) < len(clusterings):
            split.append(f"{run.words} ({ends})")
            continue
        end = f"{ends}, index {_mean([index[-1] for index in indices]):.2f}"
        if exact := [round for each in clusterings if (round := _first_exact(each))]:
            seeds = f"in {len(exact)} of {len(indices)} seeds, " if len(indices) > 1 else ""
            rounds = f"{seeds}first in round{'s' * (min(exact) < max(exact))} {_range(exact)}"
            equal.append(f"{run.words} ({rounds}; {end})")
        else:
            missed.append(f"{run.words} (index {_mean([max(index) for index in indices]):.2f} at best; {end})")
    said = (
        ("Clusters equalled the true groups (adjusted Rand index 1.00) in", equal),
        ("Clusters never equalled the true groups in", missed),
        ("Clusters without known groups in", split),
        ("No cluster was split in", whole),
    )
    return [f"{words}: {_list(names)}." for words, names in said if names]


def _first_exact(clusters: Clusters) -> int:
    """Return the first round in which the clusters equalled the true groups; 0 if they never did."""
    pairs = zip(clusters.rounds, clusters.adjusted_rand or [], strict=True)
    return next((round for round, index in pairs if index > SAME), 0)


# Words and figures


def _list(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """List names, which may contain commas, such as those of a sweep."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def _range(values: Sequence[int]) -> str:
    return f"{min(values)}" + (f" to {max(values)}" if max(values) > min(values) else "")


def _mean(values: Iterable[Any]) -> float:
    return float(np.mean([*values]))


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1))


def _rounds(value: float) -> str:
    return f"{round(value, 1):,g} round{'s' * (round(value, 1) != 1)}"


def _seconds(value: float) -> str:
    return f"{value:,.3g} virtual s" if value < 1000 else f"{value:,.0f} virtual s"


def _percent(share: float, places: int = 1) -> str:
    return f"{100 * share:.{places}f} %"
