"""Figures of a finished run for its summary.

They are the traffic, the collaboration of nodes, the quality of each snapshot, the test metric of the mean of the honest
nodes' models (key `mean_model` of a scenario), the cost until the run reached the target of its scenario, the metric at
equal time, bytes and trainings, and the development of the clusters of a coordinated policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isnan, nan
from typing import Any

import numpy as np

from p2pfl.data.partition.splits import parts_of
from p2pfl.parameters import Parameters, plain_sum
from p2pfl.policy import BestBy, SupportsPreselection
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.formatting import number
from p2pfl.sim.results.learning_curves import AXES, Columns, Timeline, incomplete, mean
from p2pfl.sim.simulation.final_state import LIMITS, FinalState
from p2pfl.sim.simulation.simulation import Run
from p2pfl.task import group_of

SAME_CLUSTERS = 0.95  # the adjusted Rand index from which clusters count as equal to the true groups
COSTS = ("round", "virtual_s", "bytes")


def traffic(run: Run) -> dict[str, Any]:
    """Return the traffic of all rounds and, separately, of the preparation, and the use of budgets."""
    total = {name: int(column.sum()) for name, column in run.state.counts.items()}
    figures: dict[str, Any] = {
        "bytes": total["sent"],
        "models": total["received"] - total["prepared"],
        "max_models_in_round": run.recorder.most_models,
        "max_models_held": _most_held(run),
        "control_bytes": total["control"],
        "preparation": {"models": total["prepared"], "bytes": total["prepared_bytes"]},
    }
    budget = _budget(run.state)
    if budget:
        figures["budget"] = budget
    return figures


def pooled_r2(run: Run) -> dict[str, Any]:
    """Return the coefficient of determination over the test rows of all nodes together, as `r2_pooled`.

    The r2 of a node compares its errors with the spread of its own targets, which a few rows estimate badly: the mean over
    nodes may be far below 0 although the errors are small. The pooled one compares the errors of all nodes with the spread
    of all targets. It follows from the nodes' mean squared errors; nothing if a node has no test targets or no such error.
    """
    errors, targets = [], []
    for task, mse in zip(run.tasks, run.recorder.result("test_mse").filled(nan).tolist(), strict=True):
        parts = parts_of(task)
        if parts is None or parts.test is None or isnan(mse):
            return {}
        y = np.asarray(parts.test[1], np.float64).reshape(len(parts.test[1]), -1)
        errors.append(mse * y.size)
        targets.append(y)
    spread = float(np.square((rows := np.concatenate(targets)) - rows.mean(axis=0)).sum())
    return {"r2_pooled": {"mean": 1 - plain_sum(errors) / spread, "nodes": []}} if spread else {}


def waits(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line on the rounds in which nodes waited for a deadline, if there are any; `runs` is of summary.json."""
    late = [run for run in runs if run.get("waits", {}).get("rounds")]
    if not late:
        return []
    rounds, of = (sum(run["waits"][key] for run in late) for key in ("rounds", "of"))
    most = max(late, key=lambda run: run["waits"]["rounds"] / run["waits"]["of"])
    name = f"{most['name']}, seed {most['seed']}"
    where = name if len(late) == 1 else f"{len(late)} runs"
    share = "" if len(late) == 1 else f" (most in {name}: {most['waits']['rounds']:,} of {most['waits']['of']:,})"
    return [
        f"{rounds:,} of {of:,} rounds of nodes waited for a deadline, in {where}{share}: virtual time includes these waits,"
        " and a lower `deadline` shortens them"
    ]


def describe_test(run: Mapping[str, Any]) -> str:
    """Return the test metric of a run in words, with the reason if it was not computed.

    Args:
        run: its entry in summary.json.
    """
    metric, test = run["metric"], run["test"]
    if "without_data" not in test:
        return f"{metric} {number(test['mean']) or 'not computed'}"
    lacking = len(test["without_data"])
    return (
        f"{metric} not computed, because {lacking} of {run['nodes']} nodes {'has' if lacking == 1 else 'have'} no test data"
    )


def _most_held(run: Run) -> int:
    """Return the most models that a node held at once, including its own.

    Without a budget this is not counted. The most models received in one round, or in one step of the preparation, then
    take its place.
    """
    limited = np.any([run.state.limits[kind] for kind in LIMITS], axis=0)
    received = max(run.recorder.most_models, run.recorder.most_prepared)
    return 1 + int(np.where(limited, run.state.counts["most_held"], received).max())


def _budget(state: FinalState) -> dict[str, Any]:
    """Return for each kind of limit the least and the greatest limit of a node, and the average share that was used.

    For models and bytes, it is the share received in a round; for models held, the share of the greatest number; for
    trainings and joules, the share of the whole run.
    """
    figures: dict[str, Any] = {}
    rounds = np.maximum(state.counts["rounds"], 1)
    used = {name: state.counts[f"round_{name}"] / rounds for name in ("models", "bytes")} | {
        "held": state.counts["most_held"],
        "trainings": state.trained["trainings"],
        "joules": state.trained["joules"],
    }
    for kind, limits in state.limits.items():
        limited = limits > 0
        if limited.any():
            shares, given = used[kind][limited] / limits[limited], limits[limited]
            figures[kind] = {"least": given.min().item(), "greatest": given.max().item(), "used": float(np.mean(shares))}
    return figures


def by_snapshot(rounds: Columns, metric: str, by: BestBy = "loss", higher_is_better: bool = True) -> dict[str, float]:
    """Return for each snapshot the mean over the nodes of the test metric in the round that is best on validation.

    This is the figure that a policy would report if it judged this snapshot; only evaluated rounds count.

    Args:
        by: the figure on the validation data that decides; see p2pfl.node.early_stopping.EarlyStopping.
        higher_is_better: whether a higher metric is better.
    """
    found: dict[str, float] = {}
    for stage in ("trained", "merged"):
        names = f"{stage}_validation_{'loss' if by == 'loss' else metric}", f"{stage}_test_{metric}"
        if not all(name in rounds for name in names):
            continue
        loss, test = (rounds[name] for name in names)
        if by == "metric" and higher_is_better:
            loss = -loss
        known = np.flatnonzero(~np.isnan(loss))
        order = known[np.lexsort((known if by == "loss" else -known, loss[known], rounds["node"][known]))]
        _, best = np.unique(rounds["node"][order], return_index=True)  # the first of each node's rows
        if len(best):
            found[stage] = float(np.mean(test[order[best]]))
    return found


def late_figures(rounds: Columns, metric: str, count: int) -> dict[str, dict[str, Any]]:
    """Return the test metric after local training in each node's last evaluated round, and means over its last ones.

    `trained` is the metric of the model after the last local training, before the merge. With `ft = "replace-last"` the
    result of a run is this model. `late` and `late_trained` are means over the last `count` evaluated rounds of each
    node, of its model and of its model after local training. Nodes without evaluations do not count.

    Args:
        rounds: see p2pfl.sim.simulation.recorder.Recorder.rounds_table.
    """
    merged = rounds.get(f"merged_test_{metric}", np.full(len(rounds["round"]), nan))
    trained = rounds.get(f"trained_test_{metric}", merged)
    trained = np.where(np.isnan(trained), merged, trained)  # without a merge the trained model is the node's
    found = {}
    for name, values, length in (("late", merged, count), ("trained", trained, 1), ("late_trained", trained, count)):
        known = ~np.isnan(values)
        each = [values[known & (rounds["node"] == node)][-length:] for node in np.unique(rounds["node"])]
        means = [float(of.mean()) for of in each if len(of)]
        found[name] = {"mean": float(np.mean(means)) if means else nan, "nodes": means}
    return found


def collaboration(edges: Columns, rounds: Columns, groups: Sequence[Any]) -> dict[str, Any]:
    """Return statistics of the links between nodes.

    edges: models aggregated in the last round that a node did. The other values cover the last half of the rounds,
        except rounds that a node did not do because it had stopped.
    links_per_node: peers that a node aggregated with in a round, on average.
    sparsity: the share of all pairs without a link.
    asymmetry: the share of links without the reverse link in that round; None without links, like the next value.
    within_group: the share of links from the node's own group.
    weight_within_group: the same share by the weights of the links: of the weight that nodes gave to models of others.
    late_share: by the group of the node that aggregated, the share of its links from each other group.

    Args:
        edges, rounds: see p2pfl.sim.simulation.recorder.Recorder.edges_table and rounds_table.
        groups: of each node; None for a node without a group.
    """
    if not len(edges["round"]):
        return {"edges": 0, "within_group": None, "weight_within_group": None}
    last, n = int(rounds["round"].max()), len(groups)
    done = int((rounds["round"] > last / 2).sum())  # total over all nodes in these rounds
    late = edges["round"] > last / 2
    src, dst = edges["src"][late], edges["dst"][late]
    links = np.unique((edges["round"][late].astype(np.int64) * n + src) * n + dst)  # a model that was fetched twice is one
    pairs, dst = np.divmod(links, n)
    when, src = np.divmod(pairs, n)
    reverse = (when * n + dst) * n + src
    reversed_too = links[np.minimum(np.searchsorted(links, reverse), len(links) - 1)] == reverse
    figures: dict[str, Any] = {
        "edges": int((edges["round"] == last).sum()),
        "within_group": None,
        "weight_within_group": None,
        "links_per_node": len(links) / done,
        "sparsity": 1 - len(links) / (done * (n - 1)),
        "asymmetry": float(1 - reversed_too.mean()) if len(links) else None,
    }
    if len(links) and all(group is not None for group in groups):
        words = np.array([str(group) for group in groups])
        figures["within_group"] = float((words[src] == words[dst]).mean())
        figures["late_share"] = _late_share(words[src], words[dst], np.unique(words))
        own, weight = words[edges["src"][late]] == words[edges["dst"][late]], edges["weight"][late].astype(np.float64)
        figures["weight_within_group"] = float(weight[own].sum() / weight.sum()) if weight.sum() else None
    return figures


def preselections(run: Run) -> list[str]:
    """Return each node's selection in the preparation, as numbers separated by spaces; [] if no policy selects then."""
    place = {name: str(k) for k, name in enumerate(run.plan.names)}
    chosen = [each.preselection() if isinstance(each, SupportsPreselection) else () for each in run.state.policies]
    return [" ".join(place[id] for id in ids) for ids in chosen] if any(chosen) else []


def _late_share(source: np.ndarray, target: np.ndarray, groups: np.ndarray) -> dict[str, dict[str, float]]:
    shares: dict[str, dict[str, float]] = {}
    for group in np.unique(target):
        others = source[target == group]
        shares[str(group)] = {str(other): float((others == other).mean()) for other in groups if other != group}
    return shares


def of_mean_model(run: Run, metric: str) -> dict[str, dict[str, Any]]:
    """Return additional metrics: `mean_model`, of the mean of all honest nodes' models, and `mean_model_G` of each group G.

    A mean model is evaluated on the test data of the nodes in the mean; the figure is the mean over these nodes. No
    single node has it: `nodes` is empty. Private parts are not averaged: each node keeps its own.
    """
    attackers = () if run.recorder.view is None else run.recorder.view.attackers
    honest = [k for k, name in enumerate(run.plan.names) if name not in attackers]
    groups: dict[str, list[int]] = {"mean_model": honest}
    for k in honest:
        if (group := group_of(run.tasks[k])) is not None:
            groups.setdefault(f"mean_model_{group}", []).append(k)
    return {name: {"mean": _metric(run, nodes, metric), "nodes": []} for name, nodes in groups.items()}


def _metric(run: Run, nodes: Sequence[int], metric: str) -> float:
    tasks, names = [run.tasks[k] for k in nodes], run.plan.names
    shared = [task.layout.shared_of(run.state.models[k]) for k, task in zip(nodes, tasks, strict=True)]
    mean: Parameters = np.array(shared).mean(axis=0)
    known: dict[Any, float] = {}  # nodes with the same test data have the same figure
    values = []
    for k, task in zip(nodes, tasks, strict=True):
        data = task.data.get("test")
        key = k if data is None or task.layout.unshared else (id(data.x), id(data.y))
        if key not in known:
            learner = task.learner(RandomStreams(run.scenario.seed, names[k]), run.scenario.device)
            whole = task.layout.with_private(mean, run.state.models[k])
            known[key] = learner.evaluate([whole], ["test"])[0].get(f"test_{metric}", np.nan)
        values.append(known[key])
    return float(np.mean(values))


def time_to_target(rounds: Columns, run: Mapping[str, Any], target: float) -> dict[str, Any] | None:
    """Return the cost until the mean over the nodes reached the target; None if it never did.

    A synchronous run reaches it at the end of a round, an asynchronous one at a moment; see
    p2pfl.sim.results.learning_curves.

    round: the first such round; of an asynchronous run, the rounds that a node had ended by then, mean over the nodes.
    virtual_s: the time at which the last node ended it, or that moment, in virtual seconds.
    bytes: total sent by all nodes until then, including the preparation.

    Args:
        rounds: see p2pfl.sim.simulation.recorder.Recorder.rounds_table.
        run: an entry of `runs` in summary.json.
    """
    timeline = timeline_of(rounds, run)
    curve = mean(timeline.reported(run["reported_stage"], f"test_{run['metric']}"))
    good = curve >= target if run["higher_is_better"] else curve <= target
    if not good.any():
        return None
    first = int(np.argmax(good))
    ended = float(timeline.rounds[first]) if timeline.asynchronous else first + 1
    return {"round": ended, "virtual_s": float(timeline.seconds[first]), "bytes": int(timeline.bytes[first])}


def equal_measures(runs: Sequence[tuple[Columns, Mapping[str, Any]]]) -> dict[str, float]:
    """Return what all of several runs have spent: the measures at which a table compares them; {} without runs.

    seconds: virtual seconds of the run that ended first.
    bytes: sent by all nodes, of the run that sent least; runs that send nothing do not count.
    trainings: of a node, mean over the nodes, of the run with the fewest.

    Args:
        runs: for each run, its table of rounds, and its entry in summary.json.
    """
    totals: dict[str, list[float]] = {axis: [] for axis in AXES}
    for rounds, run in runs:
        timeline = timeline_of(rounds, run)
        if not len(timeline.seconds):
            return {}
        totals["seconds"].append(run["time"]["virtual_s"])
        totals["bytes"].append(float(timeline.bytes[-1]))
        totals["trainings"].append(float(timeline.trainings[-1]))
    return {axis: min(spent) for axis, found in totals.items() if (spent := [each for each in found if each > 0])}


def at_equal_measures(rounds: Columns, run: Mapping[str, Any], measures: Mapping[str, float]) -> dict[str, float]:
    """Return the mean test metric of the nodes' current models when the run had spent each of some measures.

    It is NaN if some node had not ended its first round by then.
    """
    timeline = timeline_of(rounds, run)
    curve = mean(timeline.reported(run["reported_stage"], f"test_{run['metric']}"))
    return {axis: timeline.value_at(curve, axis, most) for axis, most in measures.items()}


def within_budgets(
    rounds: Columns, run: Mapping[str, Any], budgets: Mapping[str, Collection[int]]
) -> dict[str, dict[str, float]]:
    """Return the mean test metric of the nodes' current models within each budget; see p2pfl.sim.scenario.questions.Answer.

    It is NaN if some node had not ended its first round by then, if a node received more `models` in a round, and within
    `joules` if the nodes have no devices.
    """
    timeline = timeline_of(rounds, run)
    curve = mean(timeline.reported(run["reported_stage"], f"test_{run['metric']}"))

    def value(kind: str, most: int) -> float:
        if kind == "models":
            return float(curve[-1]) if len(curve) and run["traffic"]["max_models_in_round"] <= most else nan
        if kind == "joules" and "joules" not in rounds:
            return nan
        return timeline.value_at(curve, kind, most * run["nodes"] if kind == "bytes" else most)

    return {kind: {str(most): value(kind, most) for most in limits} for kind, limits in budgets.items()}


def timeline_of(rounds: Columns, run: Mapping[str, Any]) -> Timeline:
    """Return the moments of a run; see `time_to_target` for the arguments."""
    lacking = incomplete(rounds, run.get("nodes", 0), run.get("attackers", ()))
    return Timeline(rounds, run.get("mode") == "asynchronous", run["traffic"]["preparation"]["bytes"], incomplete=lacking)


def mean_reached(each: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the means over the seeds that reached the target, and the number of these seeds; None if none did."""
    there = [one for one in each if one is not None]
    if not there:
        return None
    return {**{cost: float(np.mean([one[cost] for one in there])) for cost in COSTS}, "seeds": len(there)}


def adjusted_rand(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the agreement of two partitions of n members: 1 if they are equal, about 0 for agreement by chance.

    It is the index of Hubert and Arabie 1985, as in scikit-learn: 1 if both have one part, or both have n.

    Args:
        one, other: the part of each member.
    """
    first, second = (np.unique([str(part) for part in parts], return_inverse=True)[1] for parts in (one, other))
    if not len(first):
        return 1.0
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1)
    together = _count_pairs(table)
    rows, columns, everyone = _count_pairs(table.sum(1)), _count_pairs(table.sum(0)), _count_pairs(table.sum(keepdims=True))
    chance = rows * columns / everyone if everyone else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == chance else float((together - chance) / (most - chance))


def _count_pairs(counts: np.ndarray) -> float:
    return float((counts * (counts - 1) / 2).sum())


def clusters_by_round(table: Columns, groups: Sequence[Any]) -> dict[str, Any]:
    """Return the development of a run's clusters.

    rounds, count: the rounds in which clusters were assigned, and their number of clusters. A node without an
        assignment in a round stays in its last cluster; a node that was never assigned one is in the cluster of all
        nodes.
    adjusted_rand: in the same rounds, against the true groups; None if a node has no group. With it `best`, the
        greatest value, `best_round`, its first round, and `final`.
    nodes: the final cluster of each node.

    Args:
        table: see p2pfl.sim.simulation.recorder.ClusterNotes.tables.
        groups: of each node.
    """
    current = [""] * len(groups)
    known = all(group is not None for group in groups)
    figures: dict[str, Any] = {"rounds": [], "count": [], "adjusted_rand": [] if known else None}
    for round in np.unique(table["round"]).tolist():
        rows = table["round"] == round
        for node, cluster in zip(table["node"][rows].tolist(), table["cluster"][rows].tolist(), strict=True):
            current[node] = cluster
        figures["rounds"].append(round)
        figures["count"].append(len(set(current)))
        if known:
            figures["adjusted_rand"].append(adjusted_rand(current, groups))
    if known:
        index = figures["adjusted_rand"]
        figures |= {"best": max(index), "best_round": figures["rounds"][index.index(max(index))], "final": index[-1]}
    return figures | {"nodes": current}


def clusters_over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the summary of the clusters for a row of the table, or None without clusters and true groups.

    best, best_round, final: as for a run (see `clusters_by_round`), averaged over seeds.
    reached: number of seeds that reached the true groups in some round, by an adjusted Rand index of SAME_CLUSTERS or more.
    """
    found = [run["clusters"] for run in runs if run.get("clusters", {}).get("adjusted_rand")]
    if not found:
        return None
    row: dict[str, Any] = {key: float(np.mean([f[key] for f in found])) for key in ("best", "best_round", "final")}
    return row | {"reached": sum(f["best"] >= SAME_CLUSTERS for f in found)}
