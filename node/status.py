"""What a node shows of itself: a line for each round, and a file that `p2pfl-node status` reads."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

from node import config, status_socket
from node.electing import UNKNOWN, Elected
from node.messaging import MessageExchange
from node.node import SPLITS, Node
from node.peer_changes import PeerChanges
from node.peers import NodePeers
from node.status_file import StatusFile
from node.traffic import KINDS
from p2pfl._version import __version__
from p2pfl.errors import ConfigurationError
from p2pfl.ledger import Ledger
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Merge, Stage, Update
from protocols.printable import printable

ROUNDS_APART, PEERS_APART = 0.1, 1.0  # seconds between two writes of the file for rounds, or for peers that come and go
MOST_ROUNDS = 1000  # that are kept
RUNNING = ("starting", "running", "serving")
STALE = 30.0  # seconds after which a node that runs should have written its status again (see node.runtime.FRESH)


class StatusBoard:
    """Watches a node (see node.node.Observer).

    Args:
        path: the file to keep up to date.
        say: prints a line.
        clock: seconds of a monotonic clock, for durations.
        wall: seconds since 1970, for moments that are shown.
        faults: errors that the node has survived, by part; see node.supervisor.
    """

    def __init__(
        self,
        path: Path,
        exchange: MessageExchange,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        faults: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._file = StatusFile(path, say, clock, self.fresh)
        self._clock = clock
        self._wall = wall
        self._faults = faults
        self._changes = PeerChanges(say)
        self._exchange = exchange
        self._say = say
        self._before = (0, 0)
        self._refused = 0
        self._discarded: Counter[str] = Counter()
        self._missing: Mapping[str, str] = {}
        self._earlier = _history(path)
        self._node: Node | None = None
        self._ended = clock()  # the last round
        self.state: dict[str, Any] = {"state": "starting", "pid": os.getpid(), "history": []}
        exchange.roster.on_change = self._peers_changed

    def begin(self, node: Node, about: Mapping[str, str] = MappingProxyType({})) -> None:
        """Show a node from now on; `about` says what it is, by key: its task, its policy and the like."""
        self._node = node
        self._ended = self._clock()
        self.state |= {
            **about,
            "version": __version__,
            "name": node.name,
            "state": "running",
            "started": self._wall(),
            "round": node.round,
            "rounds": node.settings.rounds,
            "metric": node.task.metric,
            "higher_is_better": node.task.higher_is_better,
            "judged": node.policy.judged,
        }
        self.write()

    def restored(self, node: Node) -> None:
        """Go on with what the node's last run has shown, up to the round that was stored."""
        rows = [row for row in self._earlier if row["round"] <= node.round]
        self.state |= {"round": node.round, "history": rows}
        self.write()

    def skipped(self, node: Node, finished: int, following: int) -> None:
        """Report that the node goes forward or back to the round of most participants."""
        where = f"round {following}, where most members are"
        if following > finished:
            self._say(f"skips from round {finished} to {where}")
        else:
            self._say(f"goes back from round {finished} to {where}")
            self.state["history"] = [row for row in self.state["history"] if row["round"] < following]
            self.state["round"] = following - 1
        self.write()

    def discarded(self, id: str, round: int, reason: str, senders: Sequence[str]) -> None:
        """Report a model that was not taken over, and count the peers whose models it was made of."""
        self._discarded.update(senders or [id])
        self._say(f"round {round}: {reason}; the model of before is kept")

    def published(self, id: str, round: int, stage: Stage, params: Parameters) -> None: ...

    def received(self, id: str, round: int, updates: Sequence[Update]) -> None: ...

    def assigned(self, id: str, round: int, assignment: Assignment) -> None: ...

    def elected(self, node: Node, elected: Elected) -> None:
        """Say who coordinates; or why nobody does, where somebody has."""
        if elected.coordinator is not None:
            self._say(f"{elected.coordinator} coordinates, in term {elected.term}")
        elif elected.problem != UNKNOWN and not node.done:
            self._say(elected.problem)
        self.write()

    def merged(self, node: Node, merge: Merge) -> None:
        traffic, begun = node.exchange.traffic, self._ended
        now = traffic.received_in_rounds, traffic.sent_in_rounds
        self._ended = self._clock()
        row = {
            "round": node.round,
            "at": round(self._wall(), 3),
            "seconds": round(self._ended - begun, 3),
            "models": node.peers.models_in,
            "bytes_in": now[0] - self._before[0],
            "bytes_out": now[1] - self._before[1],
            "weights": {id: round(weight, 4) for id, weight in merge.weights.items()},
        }
        if node.me.budget.bytes:
            row["budget_bytes"] = node.peers.ledger.bytes
        self._before = now
        self._say_refused(node)
        self.state["round"] = node.round
        self.state["history"] = [*self.state["history"], row][-MOST_ROUNDS:]
        if not node.settings.evaluate_every:
            self._say(_line(row, node.settings.rounds, node.task.metric))
        self._file.write(ROUNDS_APART)

    def _say_refused(self, node: Node) -> None:
        """Say how many models of this round the budget has kept out, and why."""
        ledger = node.peers.ledger
        if ledger.refused > self._refused:
            self._say(f"{ledger.refused - self._refused} models left out by the budget: {ledger.refusal}")
        self._refused = ledger.refused

    def evaluated(self, node: Node, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        shown = (row for row in reversed(self.state["history"]) if row["round"] == round)
        row: dict[str, Any] = next(shown, {"round": round})
        judged = stages.get(node.policy.judged, stages["merged"])
        row["validation"] = judged.get(f"validation_{node.task.metric}")
        row["test"] = judged.get(f"test_{node.task.metric}")
        row["stages"] = {
            stage: {split: metrics.get(f"{split}_{node.task.metric}") for split in SPLITS}
            for stage, metrics in stages.items()
        }
        self._say(_line(row, node.settings.rounds, node.task.metric))
        self._file.write(ROUNDS_APART)

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        self.state |= {"state": "finished", "result": dict(result), "best_round": node.judge.round}
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.items())
        best = "was best on validation" if "validation_loss" in result else "is the result, as there is no validation data"
        self._say(f"finished; the model of round {node.judge.round} {best}: {shown or 'not evaluated'}")
        self.write()

    def serving(self) -> None:
        """Note that all rounds are done, and the node answers its peers until it is told to stop."""
        self.state |= {"state": "serving"}
        self._say("all rounds are done; serving until stopped (Ctrl-C)")
        self.write()

    def ended(self, state: str, reason: str = "") -> None:
        """Note how the node has ended."""
        self.state |= {"state": state, "reason": reason}
        self.write()

    def write(self) -> None:
        self._file.write()

    async def answer(self, folder: Path) -> None:
        """Tell the status to who asks in the node's folder, until cancelled; see node.status_socket."""
        await status_socket.answer(folder, lambda: json.dumps(self.fresh()).encode())

    def fresh(self) -> dict[str, Any]:
        """Return the status as it is now."""
        self.refresh()
        return self.state

    def refresh(self) -> None:
        """Bring up to date what changes between rounds."""
        exchange = self._exchange
        if self._node is not None:
            disk = self._node.disk or self._file.problem
            self.state |= {"disk": disk, "stored": self._node.stored}
            self.state |= _budget(self._node.peers.ledger) | self._suspicious(self._node.peers)
        self.state |= {
            "updated": self._wall(),
            "peers": [self._peer(name) for name in exchange.peers],
            "traffic": exchange.traffic.as_dict(),
            "rejected": dict(exchange.rejected),
            "broker": exchange.contacts.broker,
            "deadlines_expired": exchange.expired,
            "faults": dict(self._faults),
        }
        if exchange.electing is not None:
            seen = exchange.electing.seen
            self.state["election"] = {"coordinator": seen.coordinator, "term": str(seen.term), "problem": seen.problem}

    def _suspicious(self, peers: NodePeers) -> dict[str, Any]:
        """Return what members did that may be a lie: how often, by what and by name."""
        counts = {
            "outliers": peers.clip.outliers if peers.clip is not None else {},
            "capped samples": peers.capped,
            "over the budget": peers.ledger.oversized,
            "not finite": self._discarded,
            "losses told": self._exchange.losses_given,
            "far ahead": self._exchange.far_ahead,
        }
        return {"suspicious": {what: dict(by_name) for what, by_name in counts.items() if by_name}}

    def _peers_changed(self) -> None:
        """Say which peers are missing, and which are back. One that has done its rounds may leave without a word."""
        missing = {
            name: reason
            for name, reason in self._exchange.roster.suspected.items()
            if not self._exchange.peers[name].stopped
        }
        for name in missing.keys() - self._missing.keys():
            self._changes.left(name, missing[name])
        for name in self._missing.keys() - self._exchange.roster.suspected.keys():
            if name in self._exchange.peers:  # else it is no member any more
                self._changes.back(name)
        self._missing = missing
        self._file.write(PEERS_APART)

    def _peer(self, name: str) -> dict[str, Any]:
        peer, reason = self._exchange.peers[name], self._exchange.roster.suspected.get(name, "")
        if reason:
            known = peer.introduced or peer.known
            state = "done" if peer.stopped else "suspected" if known else "not connected"
        else:
            state = "connected" if peer.introduced else "connecting"
        return {
            "name": name,
            "state": state,
            "reason": reason,
            "round": peer.round,
            "link": "" if peer.link is None else "direct" if peer.link.direct else "broker",
            "addresses": dict(peer.addresses),
            "staleness": peer.age,
            "offences": dict(peer.offences),
            "bytes_in": peer.bytes_in,
            "bytes_out": peer.bytes_out,
        }


def _budget(ledger: Ledger) -> dict[str, Any]:
    """Return the limits that there are, and what was used of them in the round in progress, or in the last one."""
    used = {"models": ledger.models, "held": ledger.held, "bytes": ledger.bytes}
    limits = {what: getattr(ledger.budget, what) for what in used}
    budget = {what: {"limit": limit, "used": used[what]} for what, limit in limits.items() if limit}
    return {"budget": budget, "refused_by_budget": ledger.refused}


def describe(state: Mapping[str, Any]) -> list[str]:
    """Return a node's status in words."""
    lines = [f"{state.get('name', '?')}: {state['state']}, round {state.get('round', 0)} of {state.get('rounds', '?')}"]
    lines += _describe_age(state)
    if state.get("reason"):
        lines.append(f"  reason: {state['reason']}")
    if state.get("disk"):
        lines.append(f"  disk: cannot write: {state['disk']}")
    if state.get("stored", state.get("round", 0)) < state.get("round", 0):
        lines.append(f"  round {state['round']} is in memory, round {state['stored']} is on the disk")
    if state.get("broker"):
        lines.append(f"  broker: {state['broker']}")
    if (election := state.get("election")) and state["state"] in RUNNING:
        if election["coordinator"] is not None:
            lines.append(f"  coordinator: {election['coordinator']}, in term {election['term']}")
        elif state["state"] != "serving":  # it learns no more, and needs none
            lines.append(f"  degraded: {election['problem']}; it learns alone, as long as that lasts")
    for row in state["history"][-1:]:
        for split in ("validation", "test"):
            if row.get(split) is not None:
                lines.append(f"  {split} {state['metric']}: {row[split]:.3f}")
    for name, value in state.get("result", {}).items():  # of several objectives, each
        split, _, figure = name.partition("_")
        if split == "test" and figure not in ("loss", state["metric"]) and value is not None:
            lines.append(f"  test {figure.replace('_', ' ')} of the result: {value:.3f}")
    for peer in state.get("peers", []):
        lines.append(f"  {peer['name']}: {_describe_peer(peer)}")
    for direction, counts in state.get("traffic", {}).items():
        learning = sum(counts[kind] for kind in KINDS)
        lines.append(f"  {direction}: {counts['models']} models, {learning} bytes, {counts['control']} bytes of control")
    if state.get("refused_by_budget"):
        lines.append(f"  left out by the budget: {state['refused_by_budget']} models")
    for what, counts in state.get("suspicious", {}).items():
        lines.append(f"  {what}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    for cause, count in sorted(state.get("rejected", {}).items()):
        lines.append(f"  rejected, {cause}: {count}")
    for part, count in sorted(state.get("faults", {}).items()):
        lines.append(f"  faults survived, {part}: {count}")
    return [printable(line) for line in lines]


def _describe_age(state: Mapping[str, Any]) -> list[str]:
    """Return how old a status is, where it comes from the file."""
    if "age" not in state:
        return []
    if state["state"] == "gone":
        return [f"  as of {duration(state['age'])} ago: the node has ended without a word since"]
    if state["state"] in RUNNING and state["age"] > STALE:
        return [
            f"  as of {duration(state['age'])} ago: the node runs, but does not answer or write its status;"
            " the disk may be full, or the node may hang"
        ]
    return [f"  as of {duration(state['age'])} ago"]


def duration(seconds: float) -> str:
    """ "8 s", "3 min", "2 h", "5 days"."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _describe_peer(peer: Mapping[str, Any]) -> str:
    parts = [peer["state"] + (f" ({peer['reason']})" if peer["reason"] else ""), f"round {peer['round']}"]
    if peer["link"]:
        parts.append("through the broker" if peer["link"] == "broker" else "directly")
    if peer["staleness"] is not None:
        parts.append(f"its last model was {peer['staleness']:.1f} s old")
    return ", ".join([*parts, f"{peer['bytes_in']} bytes in, {peer['bytes_out']} out"])


def _line(row: Mapping[str, Any], rounds: int, metric: str) -> str:
    parts = [f"round {row['round']} of {rounds}"]
    if row.get("validation") is not None:
        parts.append(f"validation {metric} {row['validation']:.3f}")
    if "models" in row:
        parts.append(f"{row['models']} models, {row['bytes_in'] / 1000:.1f} kB in, {row['bytes_out'] / 1000:.1f} kB out")
    return ", ".join(parts)


def current(folder: Path, wall: Callable[[], float] = time.time) -> dict[str, Any] | None:
    """Return the status of a folder's node as it is now, from the node itself if it runs and answers; else from the file.

    Returns:
        The status, with its `age` in seconds if it comes from the file; None if the node never ran.

    Raises:
        ConfigurationError: the file cannot be read, or is damaged.
    """
    if config.locked(folder) and (told := status_socket.ask(folder)) is not None and _is_status(told):
        return told
    status = read(folder / config.STATUS)
    if status is not None and isinstance(status.get("updated"), int | float):
        status["age"] = max(0.0, wall() - status["updated"])  # the clock may have been set back
    return status


def read(path: Path) -> dict[str, Any] | None:
    """Return what a status file says, or None if there is none. The state of a node that has ended unnoticed is "gone".

    Raises:
        ConfigurationError: the file cannot be read, or is damaged.
    """
    status = None
    try:
        with suppress(ValueError, RecursionError):
            status = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    if not _is_status(status):
        raise ConfigurationError(f"{path} is damaged; it is only for show, and the node's next run writes it anew")
    # The number alone says little: since a restart of the machine it may be another process. A node holds its folder's lock.
    if status["state"] in RUNNING and not (_alive(status["pid"]) and config.locked(path.parent)):
        status["state"] = "gone"
    return status


def _is_status(found: Any) -> TypeGuard[dict[str, Any]]:
    kinds = {"state": str, "pid": int, "history": list}
    return isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in kinds.items())


def _history(path: Path) -> list[dict[str, Any]]:
    """Return the rounds that a status file shows; none if there is no file that can be read."""
    try:
        status = read(path)
    except ConfigurationError:
        return []
    rows = [] if status is None else status["history"]
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("round"), int)]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
