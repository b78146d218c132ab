"""Sentences about a summary: the first run to reach the target, and the cost of a budget.

Every figure comes from summary.json, and the sentences claim nothing beyond the figures. They mention when the seeds of
a run disagree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import floor, isclose, isfinite, log10
from typing import Any, NamedTuple

import numpy as np

from p2pfl.sim.formatting import number, size
from p2pfl.sim.report.attack_findings import attack_findings
from p2pfl.sim.report.recommendations import recommendations
from p2pfl.sim.results.learning_curves import total_sent
from p2pfl.sim.scenario.sweep import label, split

Runs = Sequence[Mapping[str, Any]]
Summary = Mapping[str, Any]
MOST_PAIRS = 7  # pairs of runs; with more, only the one with the greatest cost is mentioned, and none of several budgets
SHOWN = 5  # names in a list; a longer one ends with the number of the others


def findings(summary: Summary, scenario_runs: Runs) -> list[str]:
    """Return the findings of a finished scenario, one or two sentences each; [] if there are none.

    Args:
        summary: contents of summary.json.
        scenario_runs: the tables [[run]] of the resolved scenario (see p2pfl.sim.scenario.scenario.ScenarioFile.raw).
    """
    words = [*recommendations(summary), *_of_target(summary), *_of_budgets(summary, scenario_runs)]
    return [*words, *attack_findings(summary, scenario_runs)]


# The target


class _Cost(NamedTuple):
    """Cost of reaching the target: its key in `reached`, the words for the lowest cost, and the words for a value."""

    key: str
    words: str
    unit: Callable[[float], str]


def _of_target(summary: Summary) -> list[str]:
    if summary.get("target") is None:
        return []
    rows, seeds = summary["table"], len(summary["seeds"])
    goal = f"a mean test {_metric(summary)} of {number(summary['target'])}"
    there = [row for row in rows if row["reached"] and row["reached"]["seeds"] == row["seeds"]]
    partly = [row for row in rows if row["reached"] and row["reached"]["seeds"] < row["seeds"]]
    never = [row for row in rows if not row["reached"]]
    found = []
    if len(rows) == 1 and there:
        costs = there[0]["reached"]
        spent = f"{_rounds(costs['round'])}, {_seconds(costs['virtual_s'])} and {size(costs['bytes'])} sent"
        return [f"{rows[0]['name']} reaches {goal} after {spent}{_over(seeds)}."]
    if there:
        found = [_first(there, goal, cost, seeds) for cost in _COSTS if not summary.get("varied")]
    if len(partly) > SHOWN:
        found.append(f"{_list(_labels(partly))} reach it with some seeds only.")
    else:
        for row, name in zip(partly, _labels(partly), strict=True):
            found.append(f"{name} reaches it with {row['reached']['seeds']} of {_count(row['seeds'], 'seed')} only.")
    if never and len(never) == len(rows):
        return [f"{'The run never reaches' if len(rows) == 1 else f'None of the {len(rows)} runs reaches'} {goal}."]
    if never:
        rounds = {run["rounds"] for run in summary["runs"] if run["name"] in [row["name"] for row in never]}
        least = f"{min(rounds):,} to " if len(rounds) > 1 else ""
        names = _labels(never)
        found.append(f"{_list(names)} never {_verb(names, 'reaches', 'reach')} it in {least}{_count(max(rounds), 'round')}.")
    if partly and not there:
        found.insert(0, f"No run reaches {goal} with every seed.")
    return found


def _labels(rows: Runs) -> list[str]:
    """Return the names of rows; those of a sweep with the values in words."""
    return [label(row["name"], row.get("varied", {})) for row in rows]


def _first(rows: Runs, goal: str, cost: _Cost, seeds: int) -> str:
    """Return the run that reaches the target at the lowest cost of one kind, and the next and the last one."""
    unit = cost.unit
    values = {row["name"]: row["reached"][cost.key] for row in rows}
    least = min(values.values())
    best = _with(values, least)
    sentence = f"{_list(best)} {_verb(best, 'reaches', 'reach')} {goal} {cost.words}: {unit(least)}{_over(seeds)}"
    others = {name: value for name, value in values.items() if name not in best}
    if others:
        nearest, farthest = _with(others, min(others.values())), _with(others, max(others.values()))
        sentence += f"; {_list(nearest)} {_verb(nearest, 'follows', 'follow')} with {unit(others[nearest[0]])}"
        if len(nearest) < len(others):
            sentence += f", and {_list(farthest)} {_verb(farthest, 'is', 'are')} last with {unit(others[farthest[0]])}"
    return sentence + "."


def _with(values: Mapping[str, float], value: float) -> list[str]:
    return [name for name, each in values.items() if isclose(each, value)]


# Budgets


def _of_budgets(summary: Summary, scenario_runs: Runs) -> list[str]:
    """Return the cost of each budget, from pairs of runs that differ only in having a budget."""
    found = []
    by_budget: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for free, bound in budget_pairs(scenario_runs):
        pair = _compare(summary, free["name"], bound["name"])
        if pair is not None:
            pair["for"] = _without_budget_in_name(free)
            pair["sooner"] = _target_with_budget(summary, free["name"], bound["name"])
            words = _budget(bound["budget"], bound.get("nodes", 10))
            by_budget.setdefault((words, pair["metric"]), []).append(pair)
    many = sum(not pair["same"] for pairs in by_budget.values() for pair in pairs) > MOST_PAIRS
    for (words, _), pairs in by_budget.items():
        moved = [pair for pair in pairs if not pair["same"]]
        if many:
            moved = [max(moved, key=lambda pair: pair["cost"])] if moved and len(by_budget) == 1 else []
        found += [_cost_of_budget(pair, words) for pair in moved]
        unmoved = [pair["for"] for pair in pairs if pair["same"]]
        if unmoved:
            runs = f" on {_list(unmoved)}" if all(unmoved) else ""
            found.append(f"A budget of {words} has no effect{runs}: no node requests more.")
        if len(pairs) > 1 and len(unmoved) < len(pairs):
            found.append(_together(pairs, words, not many))
    return found


def budget_pairs(scenario_runs: Runs) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return pairs of a run without a budget and a run that differs only in having one, in the order of the latter."""
    free = {_without_budget(run): run for run in reversed(scenario_runs) if not _limits(run)}
    bound = [(_without_budget(run), run) for run in scenario_runs if _limits(run)]
    return [(free[key], run) for key, run in bound if key in free]


def _without_budget(run: Mapping[str, Any]) -> str:
    labels = ("name", "paper", "pool", "varied", "budget")
    return json.dumps({key: value for key, value in run.items() if key not in labels}, sort_keys=True, default=str)


def _without_budget_in_name(run: Mapping[str, Any]) -> str:
    """Return the name of a run without a budget; in a sweep, in words without the part that names the missing budget."""
    if not run.get("varied"):
        return str(run["name"])
    others = (word for word in split(str(run["name"])) if not word.startswith(("budget.", "budget=")))
    return label(", ".join(others), run["varied"])


def _target_with_budget(summary: Summary, free: str, bound: str) -> str:
    """Return the cost of the target with a budget, if both runs reach it with every seed; else ""."""
    rows = {row["name"]: row for row in summary["table"] if row["name"] in (free, bound)}
    costs = [row.get("reached") for row in (rows.get(bound), rows.get(free)) if row]
    if len(costs) < 2 or any(cost is None or cost["seeds"] < rows[free]["seeds"] for cost in costs):
        return ""
    rounds, seconds = ([cost[key] for cost in costs] for key in ("round", "virtual_s"))
    in_rounds = _instead(_number(rounds[0]), _number(rounds[1]), "as many rounds", _rounds(rounds[1]))
    in_seconds = _instead(
        _format_figure(seconds[0]), _format_figure(seconds[1]), "as many virtual seconds", _seconds(seconds[1])
    )
    return f" With it, the target takes {in_rounds}, and {in_seconds}."


def _instead(now: str, before: str, same: str, whole: str) -> str:
    return f"{same} ({now})" if now == before else f"{now} instead of {whole}"


def _limits(run: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: limit for kind, limit in run.get("budget", {}).items() if limit}


def _compare(summary: Summary, free: str, bound: str) -> dict[str, Any] | None:
    """Compare a run with a budget to one without, seed by seed: metric and bytes; None if no seed has both."""
    by_seed: dict[str, dict[int, Any]] = {free: {}, bound: {}}
    for run in summary["runs"]:
        mean = run["test"]["mean"]
        if run["name"] in by_seed and mean is not None and isfinite(mean):
            by_seed[run["name"]][run["seed"]] = run
    seeds = [seed for seed in by_seed[free] if seed in by_seed[bound]]
    if not seeds:
        return None
    runs = [(by_seed[free][seed], by_seed[bound][seed]) for seed in seeds]
    higher = bool(runs[0][0].get("higher_is_better", True))
    sign = 1 if higher else -1
    costs = [sign * (one["test"]["mean"] - other["test"]["mean"]) for one, other in runs]
    sent = [(total_sent(one["traffic"]), total_sent(other["traffic"])) for one, other in runs]
    # traces of seeds with identical events
    traces = [one for one, other in runs if one.get("trace") == other.get("trace")]
    return {
        "seeds": len(seeds),
        "metric": str(runs[0][0]["metric"]),
        "higher": higher,
        "cost": float(np.mean(costs)),
        "std": float(np.std(costs, ddof=1)) if len(seeds) > 1 else 0.0,
        "means": tuple(float(np.mean([run["test"]["mean"] for run in each])) for each in zip(*runs, strict=True)),
        "saved": 1 - sum(other for _, other in sent) / total if (total := sum(one for one, _ in sent)) else 0.0,
        "same": not any(costs) and all(one == other for one, other in sent) and len(traces) == len(runs),
    }


def _cost_of_budget(pair: Mapping[str, Any], words: str) -> str:
    before, after = pair["means"]
    way = "more" if pair["saved"] < 0 else "fewer"
    sent = "as many bytes are sent" if abs(pair["saved"]) < 0.005 else f"{_percent(abs(pair['saved']))} {way} bytes are sent"
    figures = f"{number(after)} instead of {number(before)}"
    if pair["seeds"] > 1:
        figures += (
            f"; standard deviation of the difference {_small(pair['std'], before)} over {_count(pair['seeds'], 'seed')}"
        )
    doubt = ", which is within its standard deviation" if pair["seeds"] > 1 and abs(pair["cost"]) <= pair["std"] else ""
    moved = f"{_moves(pair, pair['cost'], _small(abs(pair['cost']), before))}{doubt}"
    start = f"For {pair['for']}, a" if pair["for"] else "A"
    return f"{start} budget of {words} {moved} ({figures}), and {sent}.{pair['sooner']}"


def _moves(pair: Mapping[str, Any], cost: float, figure: str) -> str:
    """Return the effect of a budget on the metric, in words."""
    return f"{'raises' if (cost < 0) == pair['higher'] else 'lowers'} the {pair['metric']} by {figure}"


def _together(pairs: Sequence[Mapping[str, Any]], words: str, listed: bool) -> str:
    """Summarise the same budget over several pairs; `listed` if there is a sentence for each."""
    mean, scale = float(np.mean([pair["cost"] for pair in pairs])), pairs[0]["means"][0]
    sign = -1 if mean < 0 else 1
    costs, saved = [sign * pair["cost"] for pair in pairs], [_percent(pair["saved"]) for pair in _by_saved(pairs)]
    less = saved[0] if saved[0] == saved[-1] else f"{saved[0]} to {saved[-1]}"
    moved = _moves(pairs[0], mean, _format_signed(sign * mean, scale))
    return (
        f"Over {'these ' if listed else ''}{len(pairs)} pairs, a budget of {words} {moved} on average"
        f" (from {_format_signed(min(costs), scale)} to {_format_signed(max(costs), scale)}), and saves {less} of the bytes."
    )


def _by_saved(pairs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(pairs, key=lambda pair: float(pair["saved"]))


def _budget(budget: Mapping[str, Any], nodes: int) -> str:
    """Return the limits of a table `budget` in words."""
    words = []
    for kind, unit in (("models", "model a round"), ("held", "model held at once"), ("bytes", "byte a round")):
        limit = budget.get(kind, 0)
        if isinstance(limit, float):
            share = "a tenth" if isclose(limit, 0.1) else f"{100 * limit:.4g} %"
            words.append(f"{share} of the nodes ({_count(max(1, round(limit * nodes)), unit)})")
        elif isinstance(limit, Sequence):
            words.append(f"{limit[0]:,} to {_count(limit[1], unit)}")
        elif limit:
            words.append(_count(limit, unit))
    return " and ".join(words)


# Words and figures


def _metric(summary: Summary) -> str:
    return str(summary["runs"][0]["metric"])


def _over(seeds: int) -> str:
    return f" (mean over {seeds} seeds)" if seeds > 1 else ""


def _count(count: int, unit: str) -> str:
    """Return a phrase like "1 model a round" or "4 models a round"."""
    first, _, rest = unit.partition(" ")
    return f"{count:,} {first}{'s' * (count != 1)}{' ' * bool(rest)}{rest}"


def _verb(names: Sequence[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def _list(names: Sequence[str]) -> str:
    """Return a list like "a", "a and b" or "a, b and c"."""
    shown = [*names] if len(names) <= SHOWN + 1 else [*names[:SHOWN], f"{len(names) - SHOWN} more"]
    between = "; " if any(", " in name for name in shown) else ", "  # names of a sweep's runs contain commas
    return shown[0] if len(shown) == 1 else f"{between.join(shown[:-1])} and {shown[-1]}"


def _format_figure(value: float) -> str:
    """Format a number with three digits: 0.123, 12.3, 1,230."""
    if not value:
        return "0"
    places = 2 - floor(log10(abs(value)))
    return f"{round(value, places):,.{max(0, places)}f}"


def _number(value: float) -> str:
    return f"{value:.0f}" if isclose(value, round(value)) else f"{value:.1f}"


def _rounds(value: float) -> str:
    return f"{_number(value)} round{'s' * (_number(value) != '1')}"


def _seconds(value: float) -> str:
    return f"{_format_figure(value)} virtual seconds"


def _percent(share: float) -> str:
    return "more than 99 %" if 0.995 <= share < 1 else f"{round(100 * share)} %"


def _small(value: float, scale: float) -> str:
    """Format a difference with as many decimals as figures of the size `scale` have."""
    places = 3 if abs(scale) < 2 else 2
    return f"{value:.{places}f}" if value >= 0.5 * 10**-places else f"less than {10**-places:.{places}f}"


def _format_signed(value: float, scale: float) -> str:
    places = 3 if abs(scale) < 2 else 2
    return f"{round(value, places) + 0.0:.{places}f}"


_COSTS = (
    _Cost("round", "in the fewest rounds", _rounds),
    _Cost("virtual_s", "in the shortest time", _seconds),
    _Cost("bytes", "with the fewest bytes sent", size),
)
