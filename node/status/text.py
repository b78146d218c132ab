"""Text form of a node's status, for terminals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from p2pfl._util.printable import byte_size, plural, printable
from p2pfl.node.peering.peers import KINDS
from p2pfl.node.status.observer import describe_address, describe_progress, federation_title
from p2pfl.node.status.reader import RUNNING

STALE = 30.0  # seconds after which the status of a running node is overdue (see p2pfl.node.runtime.run.FRESH)
PEER_COLUMNS = ("peer", "state", "round", "link", "last model", "received", "sent", "claims", "score", "reason")
LINKS = {"direct": "direct", "broker": "through the broker", "": "none"}
Row = tuple[str, str]  # a label and its text


def describe(state: Mapping[str, Any]) -> list[str]:
    """Return a node's status as lines: its state, facts with labels, and a table of its peers."""
    parts = (_age, _problems, _earlier, _end, _federation, _election, _sums, _figures, _traffic, _cost, _privacy, _counts)
    rows = [row for part in parts for row in part(state)]
    width = max((len(label) for label, _ in rows), default=0)
    lines = [f"{state.get('name') or 'this node'}: {headline(state)}"]
    lines += (f"  {label:{width}}  {text}" for label, text in rows)
    lines += (f"  {line}" for line in _peers(state))
    return [printable(line).rstrip() for line in lines]


def describe_state(state: Mapping[str, Any]) -> str:
    """Return a node's state, with the reason why it does not learn with peers yet."""
    now = str(state["state"])
    if now == "waiting":
        return f"waiting for members: {state['waiting']['present']} of {state['waiting']['needed']}"
    return "training alone" if now == "running" and not state.get("federation") else now


def headline(state: Mapping[str, Any]) -> str:
    """Return a node's state and its round."""
    now, round = describe_state(state), state.get("round", 0)
    return f"{now}, round {describe_progress(round, state['rounds']) if 'rounds' in state else round}"


def _age(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the age of a status that comes from the file."""
    if "age" not in state:
        return
    ago = f"{duration(state['age'])} ago"
    if state["state"] == "gone":
        yield "as of", f"{ago}: the node has ended unexpectedly since then"
    elif state["state"] == "starting":
        yield "started", ago
    elif state["state"] in RUNNING and state["age"] > STALE:
        yield (
            "as of",
            f"{ago}: the node runs, but it neither answers nor writes its status; the disk may be full, or the node may"
            " hang",
        )
    else:
        yield "as of", ago


def _problems(state: Mapping[str, Any]) -> Iterator[Row]:
    if state.get("reason"):
        yield "reason", state["reason"]
    if state.get("revoked_by") and state["state"] != "revoked":
        yield "revoked", f"the membership of this node was revoked, according to {', '.join(state['revoked_by'])}"
    if state.get("fork"):
        yield "fork", state["fork"]
    if state.get("disk"):
        yield "disk", f"cannot write: {state['disk']}"
    if state.get("stored", state.get("round", 0)) < state.get("round", 0):
        yield "saved", f"round {state['round']} is in memory, round {state['stored']} is on the disk"
    if state.get("broker"):
        yield "broker", state["broker"]
    if state.get("tokens_unanswered") and state["state"] in RUNNING:
        yield "tokens", f"not answered: {state['tokens_unanswered']}"


def _earlier(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rounds of a node that has not run since it entered its federation, and with which round it starts."""
    if state.get("earlier_rounds"):
        number = plural(state["earlier_rounds"], "round")
        yield "earlier", f"{number} before it joined, which do not count; p2pfl-node run starts with round 1"
    elif state["state"] == "joined" and state.get("round"):
        yield "next", f"p2pfl-node run resumes after round {state['round']}"


def _end(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield why a node has ended before all rounds, or what is used of the limits after which it will."""
    if state.get("ended_early"):
        yield "ended", f"before all rounds: {state['ended_early']}"
    else:
        for what, row in state.get("end", {}).items():
            if what == "bytes":
                yield "end", f"{byte_size(row['used'])} of {byte_size(row['limit'])} received"
            else:
                yield "end", f"{row['used']:,.1f} of {row['limit']:,.10g} s of rounds used"


def _federation(state: Mapping[str, Any]) -> Iterator[Row]:
    if "federation" not in state:
        return
    yield "federation", federation_title(state["federation"], state.get("federation_id", ""))
    network = state.get("network") or {}
    if state["state"] in RUNNING and network.get("listen"):
        yield "listening", describe_address(network["listen"])
    if state["state"] in RUNNING and network.get("broker") and not state.get("broker"):  # otherwise it is a problem
        yield "broker", network["broker"].partition("#")[0]
    if state["state"] not in RUNNING or state["state"] == "starting":
        return
    peers = state.get("peers", [])
    counts = state.get("peer_counts") or {"total": len(peers), "linked": sum(bool(peer["link"]) for peer in peers)}
    connected = 1 + counts["linked"]
    label = "neighbours" if state.get("topology") == "sparse" else "members"
    expected = max(1 + counts["total"], (state.get("waiting") or {}).get("needed", 0))
    yield label, f"{connected} of {expected} connected, this node included"


def _election(state: Mapping[str, Any]) -> Iterator[Row]:
    election = state.get("election")
    if not election or state["state"] not in RUNNING:
        return
    if election["coordinator"] is not None:
        yield "coordinator", f"{election['coordinator']}, in term {election['term']}"
    elif state["state"] != "serving":  # it has stopped learning, and needs no coordinator
        yield "degraded", f"{election['problem']}; until there is one, this node learns alone"


def _sums(state: Mapping[str, Any]) -> Iterator[Row]:
    if sums := state.get("secure_sums"):
        missed = f", {sums['missed']} rounds without one" if sums["missed"] else ""
        yield "secure sums", f"{sums['assigned']} assigned{missed}{f'; {problem}' if (problem := sums['problem']) else ''}"
        if latest := sums.get("latest"):
            yield f"sum of round {latest['round']}", _sum(latest, sums["threshold"], state["state"])


def _sum(latest: Mapping[str, Any], threshold: int, now: str) -> str:
    """Return the state of the newest secure sum."""
    counts = f"{latest['submitted']} of {latest['announced']} submitted, {threshold} needed"
    if latest["opened"]:
        return f"{counts}: opened"
    if not latest["announced"]:
        counts = f"announced, {threshold} members needed"
    return f"{counts}: not opened{' yet' if now in RUNNING else ''}"


def _figures(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the metrics of the last evaluated model and of the model that was best on validation."""
    metric = state.get("metric", "").replace("_", " ")
    evaluated = [row for row in state["history"] if _metrics(row)]
    if evaluated:
        yield metric, f"{_metrics(evaluated[-1])}, in round {evaluated[-1]['round']}"
    best = state.get("best")
    stages = {stage: each for stage, each in state.get("by_stage", {}).items() if _metrics(each)}
    if all(each == next(iter(stages.values())) for each in stages.values()):
        stages = {}  # a node that trains alone merges nothing
    if best and _metrics(best):
        stage = f", {best['stage']}" if best.get("stage") and stages else ""
        yield "best model", f"{_metrics(best)}, in round {best['round']}{stage}"
    yield from ((f"best {stage}", f"{_metrics(each)}, in round {each['round']}") for stage, each in stages.items())
    result = state.get("result", {})
    others = [name for name in result if name.startswith("test_") and name not in ("test_loss", f"test_{state['metric']}")]
    if others:  # a result for each of several objectives
        texts = [f"{name.replace('_', ' ')} {result[name]:.3f}" for name in others if result[name] is not None]
        yield "result", ", ".join(texts)


def _metrics(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{split} {row[split]:.3f}" for split in ("validation", "test") if row.get(split) is not None)


def _traffic(state: Mapping[str, Any]) -> Iterator[Row]:
    for direction, counts in state.get("traffic", {}).items():
        if not any(counts.values()):
            continue
        learning = byte_size(sum(counts[kind] for kind in KINDS))
        models, control = plural(counts["models"], "model"), byte_size(counts["control"])
        yield direction, f"{models}, {learning} of models and requests, {control} of control messages"


def _cost(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield what the trainings have cost, with the reason if nothing counts their energy."""
    cost = state.get("cost", {})
    if not cost.get("trainings"):
        return
    energy = f"{cost['joules']:,.0f} J of the machine ({cost['energy_from']})" if cost["joules"] is not None else ""
    parts = [plural(cost["trainings"], "training"), f"{cost['samples']:,} samples", f"{cost['train_s']:,.1f} s", energy]
    yield "trained", ", ".join(filter(None, parts))
    if cost["joules"] is None and cost["no_energy"]:
        yield "energy", f"not known: {cost['no_energy']}"
    for what, unit in (("trainings", "trainings"), ("joules", "J")):
        if row := state.get("budget", {}).get(what):
            yield "budget", f"{row['used']:,.6g} of {row['limit']:,.6g} {unit} used"


def _privacy(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield what is spent of the privacy budget, and what the federation demands."""
    if state.get("greatest_epsilon"):
        yield "privacy", f"each member must claim epsilon {state['greatest_epsilon']:g} or less"
    if not (row := state.get("privacy")):
        return
    yield "privacy", f"epsilon {row['epsilon']:.4g} of {row['budget']:g} spent, at delta {row['delta']:g}"
    if central := row.get("central"):
        yield (
            "privacy",
            (
                f"holds for sums of at least {central['threshold']} members, with {central['colluding']} that collude, the"
                " coordinator included; no single model leaves this node"
            ),
        )
    if correlated := row.get("correlated"):
        yield (
            "privacy",
            f"noise that cancels, with {plural(correlated['neighbours'], 'neighbour')} in the last training; own noise"
            f" {correlated['noise']:.4g} in place of {row['noise']:.4g}",
        )
    if row.get("colluding") is not None and not row.get("central"):
        yield "privacy", f"what is spent holds against {plural(row['colluding'], 'member')} who may collude"
    seen = "nothing looks at them" if row["validation"] == "private" else "not protected"
    yield "privacy", f"validation data {row['validation']}: {seen}"
    if row["refused"]:
        then = "the node ends its rounds" if row["then"] == "stop" else "the node goes on without training"
        yield "privacy", f"budget spent: {plural(row['refused'], 'training')} left out; {then}"


def _counts(state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield counts of refused models and messages, of suspicious peers, and of faults."""
    if state.get("refused_by_budget"):
        yield "budget", f"{plural(state['refused_by_budget'], 'model')} left out"
    if state.get("refused_trainings"):
        yield "budget", f"used up: {plural(state['refused_trainings'], 'training')} left out"
    if state.get("distrust"):
        out = [peer["name"] for peer in state.get("peers", []) if peer["state"] == "left out"]
        yield "distrust", f"a peer with a score of {state['distrust']} is left out; now: {', '.join(out) or 'none'}"
    elif any(peer.get("score") for peer in state.get("peers", [])):
        yield "distrust", "off: no peer is left out for its score"
    for what, counts in state.get("suspicious", {}).items():
        yield what, _format_counts(counts)
    if state.get("rejected"):
        counts = _format_counts(state["rejected"])
        harmless = "; unknown session: packets of an ended link through the broker, harmless"
        yield "rejected", counts + (harmless if "unknown session" in state["rejected"] else "")
    if state.get("faults"):
        yield "errors", _format_counts(state["faults"])


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _peers(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the peers, after an empty line; nothing for a node that has ended, unless it was killed."""
    peers = state.get("peers", [])
    if peers and state["state"] in (*RUNNING, "gone"):
        yield ""
        yield from columns([PEER_COLUMNS, *map(_peer, peers)])
        if more := describe_omitted(state):
            yield more


def describe_omitted(state: Mapping[str, Any]) -> str:
    """Return how many peers a status does not list, and their states; "" if it lists all."""
    counts, peers = state.get("peer_counts", {}), state.get("peers", [])
    omitted = Counter(counts.get("states", {})) - Counter(peer["state"] for peer in peers)
    if counts.get("total", 0) <= len(peers):
        return ""
    return f"{plural(counts['total'] - len(peers), 'more peer')} not shown: {_format_counts(omitted)}"


def _peer(peer: Mapping[str, Any]) -> Sequence[str]:
    age = peer["staleness"]
    return (
        peer["name"],
        peer["state"],
        str(peer["round"]),
        LINKS.get(peer["link"], peer["link"]),
        "none" if age is None else f"{age:.1f} s old" if age < 10 else f"{duration(age)} old",
        byte_size(peer["bytes_in"]),
        byte_size(peer["bytes_out"]),
        _claim(peer),
        _score(peer),
        peer["reason"],
    )


def _claim(peer: Mapping[str, Any]) -> str:
    claim = peer.get("claims")
    return "" if claim is None else f"epsilon {claim['epsilon']:g}, delta {claim['delta']:g}"


def _score(peer: Mapping[str, Any]) -> str:
    """Return the score of a peer with its reasons; "" if it is 0."""
    reasons = ", ".join(kind if n == 1 else f"{kind} {n}" for kind, n in sorted(peer.get("penalties", {}).items()))
    return f"{peer['score']}: {reasons}" if peer.get("score") else ""


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns, without columns that are empty below their title."""
    shown = [k for k in range(len(rows[0])) if any(row[k] for row in rows[1:])]
    widths = {k: max(len(row[k]) for row in rows) for k in shown}
    return ["  ".join(f"{row[k]:{widths[k]}}" for k in shown).rstrip() for row in rows]


def duration(seconds: float) -> str:
    """Return a duration in its largest unit with a value of two or more: "8 s", "3 min", "2 h", "5 days"."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
