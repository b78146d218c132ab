"""HTTP endpoints of a node's status: a live page, the same data as JSON, and metrics for Prometheus.

All three show what `p2pfl-node status` shows; none changes the node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl._util.http_server import ASSETS, EXTRA, PageServer, Resource, asset
from p2pfl.errors import ConfigurationError
from p2pfl.node.status.observer import StatusObserver
from p2pfl.node.status.reader import encode
from p2pfl.protocols.addresses import is_loopback

if TYPE_CHECKING:
    from prometheus_client.core import Metric


NEWEST = 50  # rounds that a live page requests repeatedly
OWN = Path(__file__).parent / "web"
FILES = {
    "/": OWN / "status.html",
    "/status.js": OWN / "status.js",
    **{f"/{name}": ASSETS / name for name in ("live.js", "charts.js", "style.css", "status.css", "icon.svg")},
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PEER_STATES = (
    "connecting",
    "connected",
    "behind",
    "suspected",
    "not connected",
    "done",
    "left out",
)  # shown even if no peer is in them
NODE_STATES = ("starting", "waiting", "running", "serving", "finished", "stopped", "failed", "revoked")
_Rows = Iterable[tuple[tuple[str, ...], float]]


def status_page(status_observer: StatusObserver, host: str, port: int) -> PageServer:
    """Return the page of a node; the caller starts it.

    It has / (for people), /status.json (the current output of `p2pfl-node status --json`), /status.json?newest (the
    same with the newest rounds only) and /metrics.

    Raises:
        ConfigurationError: prometheus-client is missing.
    """
    try:
        text({})
    except ImportError as error:
        raise ConfigurationError(EXTRA) from error

    shown = {path: asset(file) for path, file in FILES.items()}
    shown["/status.json"] = Resource("application/json", lambda: encode(status_observer.fresh()))
    shown["/status.json?newest"] = Resource("application/json", lambda: encode(_newest(status_observer.fresh())))
    shown["/metrics"] = Resource(CONTENT_TYPE, lambda: text(status_observer.fresh()))
    return PageServer(shown, host, port)


def open_to_others(host: str) -> bool:
    """Return whether other machines can read a page at this host."""
    return not is_loopback(host)


def _newest(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"history": state["history"][-NEWEST:]}


def text(state: Mapping[str, Any]) -> bytes:
    """Return a status (see p2pfl.node.status.observer) in the text format of Prometheus.

    Raises:
        ImportError: prometheus-client is missing.
    """
    from prometheus_client import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    class Once(Collector):
        def collect(self) -> Iterable[Metric]:
            return _metrics(state)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry)


def _metrics(state: Mapping[str, Any]) -> Iterator[Metric]:
    yield from _of_node(state)
    yield from _of_traffic(state)
    yield from _of_peers(state.get("peers", ()), state.get("peer_counts", {}).get("states"))
    yield from _of_last_round(state.get("history", ()))
    yield from _of_budget(state)
    yield from _of_cost(state.get("cost", {}))
    yield from _of_privacy(state.get("privacy", {}))
    yield from _scores(state)


def _of_node(state: Mapping[str, Any]) -> Iterator[Metric]:
    about = {key: str(state.get(key, "")) for key in ("name", "federation", "task", "policy", "version")}
    yield _gauge("p2pfl_info", "Always 1; the labels describe the node.", tuple(about), [(tuple(about.values()), 1)])
    now = state.get("state")
    names = dict.fromkeys((*NODE_STATES, *([now] if now else [])))
    yield _gauge(
        "p2pfl_state",
        "1 for the current state of the node, 0 for the others.",
        ("state",),
        [((name,), name == now) for name in names],
    )
    yield _value("p2pfl_round", "Current or last finished round.", state.get("round", 0))
    yield _value("p2pfl_stored_round", "Round of the checkpoint on disk.", state.get("stored", 0))
    yield _value("p2pfl_rounds", "Total number of rounds.", state.get("rounds", 0))
    yield _value("p2pfl_distrust", "Score from which a peer is left out; 0 if none is.", state.get("distrust", 0))
    yield _value("p2pfl_disk_problem", "1 while the node cannot write its checkpoint or status.", bool(state.get("disk")))
    yield _value("p2pfl_broker_problem", "1 while the broker does not deliver messages.", bool(state.get("broker")))
    if election := state.get("election"):
        there = [((str(election["coordinator"]),), 1)] if election["coordinator"] else []
        yield _gauge("p2pfl_coordinator", "1 for the member that is the coordinator.", ("name",), there)
        alone = bool(election["problem"]) and now in ("waiting", "running")  # a finished node needs no coordinator
        yield _value("p2pfl_coordinator_problem", "1 while there is no coordinator.", alone)
        yield _value(
            "p2pfl_election_term",
            "Number of the newest term in its membership version.",
            int(election["term"].partition(".")[2]),
        )


def _of_traffic(state: Mapping[str, Any]) -> Iterator[Metric]:
    sent, models = [], []
    for direction, counts in state.get("traffic", {}).items():
        for kind, count in counts.items():
            if kind == "models":
                models.append(((direction,), count))
            else:
                sent.append(((direction, kind), count))
    yield _counter("p2pfl_traffic_bytes", "Bytes of envelopes, by direction and kind.", ("direction", "kind"), sent)
    yield _counter("p2pfl_models", "Models sent and received.", ("direction",), models)
    rejected = [((cause,), count) for cause, count in state.get("rejected", {}).items()]
    yield _counter("p2pfl_rejected", "Refused messages, by cause.", ("cause",), rejected)
    suspicious = [
        ((name, what), count) for what, names in state.get("suspicious", {}).items() for name, count in names.items()
    ]
    about = "Suspicious claims and models of a peer that were limited or ignored, by kind."
    yield _counter("p2pfl_suspicious", about, ("peer", "kind"), suspicious)
    faults = [((part,), count) for part, count in state.get("faults", {}).items()]
    yield _counter("p2pfl_faults", "Errors in parts of the node after which it continued, by part.", ("part",), faults)
    expired = [((), state.get("deadlines_expired", 0))]
    yield _counter("p2pfl_deadlines_expired", "Number of waits for a peer that ended at the deadline.", (), expired)


def _of_peers(peers: Iterable[Mapping[str, Any]], counted: Mapping[str, int] | None) -> Iterator[Metric]:
    """Yield the number of all peers by state, and the figures of those that the status lists."""
    peers = list(peers)
    found = Counter(peer["state"] for peer in peers) if counted is None else Counter(counted)
    states = dict.fromkeys((*PEER_STATES, *found))
    counts = [((name,), found[name]) for name in states]
    yield _gauge("p2pfl_peers", "Number of peers, by state.", ("state",), counts)
    each = [((peer["name"], name), name == peer["state"]) for peer in peers for name in states]
    yield _gauge("p2pfl_peer_state", "1 for the current state of a peer, 0 for the others.", ("peer", "state"), each)
    rounds = [((peer["name"],), peer["round"]) for peer in peers if "round" in peer]
    yield _gauge("p2pfl_peer_round", "Last known round of a peer.", ("peer",), rounds)
    ages = [((peer["name"],), peer["staleness"]) for peer in peers if peer.get("staleness") is not None]
    yield _gauge("p2pfl_peer_staleness_seconds", "Age of the last model received from a peer.", ("peer",), ages)
    for name, key in (("p2pfl_peer_received_bytes", "bytes_in"), ("p2pfl_peer_sent_bytes", "bytes_out")):
        sizes = [((peer["name"],), peer[key]) for peer in peers if key in peer]
        yield _counter(name, "Bytes of all envelopes, by peer.", ("peer",), sizes)
    scores = [((peer["name"],), peer["score"]) for peer in peers if "score" in peer]
    yield _gauge("p2pfl_peer_score", "Points of a peer for penalties; 100 for a proven equivocation.", ("peer",), scores)
    claims = [((peer["name"],), peer["claims"]["epsilon"]) for peer in peers if peer.get("claims")]
    yield _gauge("p2pfl_peer_claimed_epsilon", "Privacy budget that a peer claims; nobody can check it.", ("peer",), claims)
    penalties = [((peer["name"], kind), n) for peer in peers for kind, n in peer.get("penalties", {}).items()]
    yield _counter("p2pfl_peer_penalties", "Penalties of a peer, by kind.", ("peer", "kind"), penalties)
    refused = [((peer["name"], cause), n) for peer in peers for cause, n in peer.get("offences", {}).items()]
    yield _counter("p2pfl_peer_offences", "Refused messages of a peer, by cause.", ("peer", "cause"), refused)


def _of_last_round(history: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of the newest finished round."""
    last: Mapping[str, Any] = max(history, key=lambda row: int(row["round"]), default={})
    weights = [((name,), weight) for name, weight in last.get("weights", {}).items()]
    about = "Weight of each model in the average of the last round, this node's included."
    yield _gauge("p2pfl_chosen_weight", about, ("peer",), weights)
    if "seconds" in last:
        yield _value("p2pfl_round_seconds", "Duration of the last round in seconds.", last["seconds"])
    if "models" in last:
        yield _value("p2pfl_round_models", "Models received in the last round.", last["models"])
    sizes = [((way,), last[key]) for way, key in (("received", "bytes_in"), ("sent", "bytes_out")) if key in last]
    about = "Bytes of models and requests in the last round, by direction."
    yield _gauge("p2pfl_round_bytes", about, ("direction",), sizes)


def _of_budget(state: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the limits that are set, and their use in the current or the last round."""
    budget = state.get("budget", {})
    limits = [((what,), row["limit"]) for what, row in budget.items()]
    used = [((what,), row["used"]) for what, row in budget.items()]
    about = (
        "Limits of what the node may receive in a round, or hold at once, and of trainings and their joules in all rounds."
    )
    yield _gauge("p2pfl_budget_limit", about, ("what",), limits)
    yield _gauge(
        "p2pfl_budget_used", "Use of these limits: in this round; of trainings and joules, so far.", ("what",), used
    )
    refused = [((), state.get("refused_by_budget", 0))]
    yield _counter("p2pfl_budget_refused", "Models that were left out because of the budget.", (), refused)
    refused = [((), state.get("refused_trainings", 0))]
    about = "Trainings that were left out because the budget was used up, since the node started."
    yield _counter("p2pfl_trainings_refused", about, (), refused)


def _of_cost(cost: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what trainings have cost; joules only where the machine counts them."""
    for name, key, about in (
        ("p2pfl_trainings", "trainings", "Trainings in all rounds so far."),
        ("p2pfl_training_samples", "samples", "Samples in these trainings, repeated ones included."),
        ("p2pfl_training_seconds", "train_s", "Seconds of these trainings."),
        ("p2pfl_training_joules", "joules", "Joules that the machine used during these trainings."),
    ):
        if cost.get(key) is not None:
            yield _counter(name, about, (), [((), cost[key])])


def _of_privacy(row: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what is spent of the privacy budget, if there is one."""
    if not row:
        return
    yield _value("p2pfl_privacy_epsilon", "Epsilon that all trainings of the node have spent.", row["epsilon"])
    yield _value("p2pfl_privacy_budget", "Epsilon of the privacy budget.", row["budget"])
    yield _value("p2pfl_privacy_delta", "Delta of the privacy budget.", row["delta"])
    public = row["validation"] == "public"
    yield _value("p2pfl_privacy_validation_public", "1 if the validation data are declared public.", public)
    about = "Trainings that were left out because the privacy budget was spent, since the node started."
    yield _counter("p2pfl_privacy_refused", about, (), [((), row["refused"])])


def _scores(state: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the newest evaluation; the task names its metric."""
    metric = re.sub(r"\W", "_", str(state.get("metric", "")), flags=re.ASCII)
    for split in ("validation", "test"):
        values = [row[split] for row in state.get("history", ()) if row.get(split) is not None]
        if values:
            about = f"{metric} of the last evaluated model on {split} data."
            yield _value(f"p2pfl_{split}_{metric}", about, values[-1])


def _value(name: str, about: str, value: float) -> Metric:
    return _gauge(name, about, (), [((), value)])


def _gauge(name: str, about: str, labels: tuple[str, ...], rows: _Rows) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, about, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family


def _counter(name: str, about: str, labels: tuple[str, ...], rows: _Rows) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, about, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family
