"""Observers of a node: one logs its events and keeps its status, the other gives its figures to trackers.

`StatusObserver` holds the state that files, pages and commands show, and writes one line for each round.
`PeerChanges` logs peers that disappear and come back: each change at once, and summaries for a peer that keeps changing,
so that a flapping link fills no log. `TrackingObserver` feeds p2pfl.tracking. The functions at the end are the texts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from p2pfl._util.event_log import EventLogger
from p2pfl._util.printable import byte_size, plural, printable
from p2pfl.node.conduct import Conduct
from p2pfl.node.coordination.election_runner import UNKNOWN, Elected
from p2pfl.node.exchange.message_exchange import MessageExchange
from p2pfl.node.exchange.rounds import Waiting
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.log import LOG
from p2pfl.node.node import Node, Observer
from p2pfl.node.peering.peers import NEW, is_only_behind
from p2pfl.node.status import reader, snapshot
from p2pfl.node.status.reader import RUNNING, StatusFile, encode, read_earlier
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Fragment, Merge, Stage, Update
from p2pfl.protocols.addresses import split_address
from p2pfl.task import does_not_count
from p2pfl.tracking.tracker import RunLog, TrackedRun, Tracking, plain_settings

MOST_START_LINES = 1000  # maximum number of lines in the log about the wait for members
ROUNDS_APART, PEERS_APART = 0.1, 1.0  # seconds between two writes of the file after rounds, and after changes of peers
MOST_ROUNDS = 1000  # maximum number of rounds that are kept
PAUSE, LONGEST = 1.0, 60.0  # seconds between two lines about a peer: at first, and at most if it keeps changing
SHARED = (
    "part",
    "seed",
    "mode",
    "deadline",
    "robust",
    "task",
    "policy",
    "codec",
    "budget",
    "privacy",
)  # settings that are no secrets


class StatusObserver(Observer):
    """Logs each round, and keeps the status of a node in its file.

    Args:
        path: path of the file to keep up to date.
        log: receives an event for each round, and for changes of the node and its peers.
        clock: returns seconds of a monotonic clock, for durations.
        wall: returns seconds since 1970, for displayed times.
        faults: errors that the node has survived, by part; see p2pfl.node.connectivity.
    """

    def __init__(
        self,
        path: Path,
        exchange: MessageExchange,
        log: EventLogger = LOG,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        faults: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._file = StatusFile(path, log, clock, self.fresh)
        self._clock = clock
        self._wall = wall
        self._faults = faults
        self._changes = PeerChanges(log)
        self._exchange = exchange
        self._log = log
        self._start_lines = 0
        self._logged = 0  # the newest round with a line in the log
        self._refused = 0
        self._used_up = False  # whether the end of the budget of trainings is logged
        self._private_spent = False  # whether the end of the privacy budget is logged
        self._assignments: Counter[str] = Counter()  # refused ones that are logged, by coordinator
        self._discarded: Counter[str] = Counter()
        self._missing: Mapping[str, str] = {}
        self._links: Mapping[str, str] = {}
        self._revoked_by: set[str] = set()
        self._earlier = read_earlier(path)
        self._node: Node | None = None
        self._meter = snapshot.RoundMeter(clock)
        self.state: dict[str, Any] = {"state": "starting", "pid": os.getpid(), "history": []}
        exchange.view.on_change.append(self._peers_changed)
        exchange.start_wait.on_change.append(self._start_changed)
        exchange.conduct.on_penalty.append(partial(log_penalty, log, exchange.conduct))

    def begin(self, node: Node, about: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Show a node from now on.

        Args:
            about: names of its task, its policy and similar facts, by key; until it listens, also `configured_network`,
                which is how it will be reached.
        """
        self._node = node
        self._meter.start()
        self.state |= {
            **about,
            **snapshot.node_facts(node),
            "state": "running",
            "started": self._wall(),
            "round": node.round,
        }
        self.write()

    def restored(self, node: Node) -> None:
        """Continue the history of the node's last run, up to the stored round."""
        rows = [row for row in self._earlier.rows if row["round"] <= node.round]
        self._logged = node.round  # by the last run
        last = max((row["round"] for row in self._earlier.rows), default=0)
        if last > node.round:
            self._log.warning(
                f"the checkpoint is from round {node.round}, and the last run has finished round {last}: it was not written,"
                " or an older one has replaced it; repeating the rounds after it",
                kind="rounds-lost",
                round=node.round,
            )
        best = [row for row in (self._earlier.best, *rows) if row.get("round") == node.early_stopping.round]
        self.state |= {"round": node.round, "history": rows, "best": snapshot.best_row(best[0]) if best else None}
        self.state["by_stage"] = snapshot.best_by_stage(node, rows, self._earlier.by_stage)
        if node.round:
            self._log.info(f"resuming after round {node.round}", kind="resuming", round=node.round)
        self.write()

    def listening(self, network: Mapping[str, Any]) -> None:
        """Report that peers can connect to this node.

        Args:
            network: see p2pfl.node.connectivity.Connectivity.describe.
        """
        self.state["network"] = dict(network)
        self.state.pop("configured_network", None)
        self._log.info(describe_network(network), kind="listening", address=network["listen"], broker=network["broker"])
        self.write()

    def skipped(self, node: Node, finished: int, following: int) -> None:
        """Report that the node skips forward or goes back to the round of most participants."""
        where = f"round {following} of most members"
        if following > finished:
            self._log.info(f"skipped from round {finished} to {where}", kind="round-changed", round=following)
        else:
            self._log.warning(f"went back from round {finished} to {where}", kind="round-changed", round=following)
            self.state["history"] = [row for row in self.state["history"] if row["round"] < following]
            self.state["round"] = following - 1
        self.write()

    def discarded(self, id: str, round: int, reason: str, senders: Sequence[str]) -> None:
        """Report a discarded model, and count the peers whose models it contains."""
        self._discarded.update(senders or [id])
        self._log.warning(f"round {round}: {reason}; the previous model is kept", kind="model-discarded", round=round)

    def published(self, id: str, round: int, stage: Stage, params: Parameters) -> None:
        self._log.debug(f"published the {stage} model of round {round}", kind="published", round=round, stage=stage)

    def received(self, id: str, round: int, updates: Sequence[Update]) -> None:
        for update in updates:
            self._log.debug(
                f"received the {update.stage} model of {update.sender}, round {update.round}, {byte_size(update.size)}",
                kind="received",
                peer=update.sender,
                round=update.round,
                stage=update.stage,
                bytes=update.size,
            )

    def received_fragments(self, id: str, round: int, fragments: Sequence[Fragment]) -> None:
        for each in fragments:
            self._log.debug(
                f"received fragment {each.name} of the {each.stage} model of {each.sender}, round {each.round},"
                f" {byte_size(each.size)}",
                kind="received",
                peer=each.sender,
                round=each.round,
                stage=each.stage,
                bytes=each.size,
            )

    def assigned(self, id: str, round: int, assignment: Assignment) -> None:
        self._log.debug(f"the coordinator assigned a model in round {round}", kind="assigned", round=round)

    def elected(self, node: Node, elected: Elected) -> None:
        """Log the coordinator's name, or the reason for its loss."""
        if elected.coordinator is not None:
            event = f"coordinator: {elected.coordinator}, term {elected.term}"
            self._log.info(event, kind="coordinator", coordinator=elected.coordinator, term=str(elected.term))
        elif elected.problem != UNKNOWN and not node.done:
            self._log.warning(elected.problem, kind="no-coordinator", term=str(elected.term))
        self.write()

    def merged(self, node: Node, merge: Merge) -> None:
        if node.me.rule is not None:
            node.exchange.conduct.record_weights(node.peers.senders, merge.weights)
        row = snapshot.round_row(node, merge, at=self._wall(), cost=self._meter.measure(node.exchange.traffic))
        weights = ", ".join(f"{id} {weight:.3f}" for id, weight in merge.weights.items())
        self._log.debug(f"merged models with the weights {weights}", kind="merged", round=node.round, weights=weights)
        self._log_refused(node)
        self._log_assignments(node)
        self.state["round"] = node.round
        self.state["history"] = [*self.state["history"], row][-MOST_ROUNDS:]
        if not node.settings.evaluate_every:
            self._log_round(node, row)
        self._file.write(ROUNDS_APART)

    def _log_round(self, node: Node, row: Mapping[str, Any]) -> None:
        metric, self._logged = node.task.metric, row["round"]
        self._log.info(describe_round(row, node.settings.rounds, metric), kind="round", metric=metric, **round_fields(row))

    def _log_refused(self, node: Node) -> None:
        """Log the number of this round's models that the budget refused, and the reason."""
        tracker = node.peers.budget_tracker
        if tracker.refused > self._refused:
            count = tracker.refused - self._refused
            self._log.info(
                f"budget: left out {plural(count, 'model')}: {tracker.refusal}",
                kind="budget",
                round=node.round,
                left_out=count,
            )
        self._refused = tracker.refused
        training = node.me.training
        if training.refused and not self._used_up:
            text = f"budget: {training.refusal}; the node goes on without training"
            self._log.info(text, kind="training-budget", round=node.round, trainings=training.trainings)
        self._used_up = bool(training.refused)
        self._log_privacy(node)

    def _log_privacy(self, node: Node) -> None:
        """Log once that the privacy budget is spent."""
        privacy = node.me.privacy
        if privacy is None or not privacy.refused or self._private_spent:
            return
        self._private_spent = True
        then = "ends its rounds" if privacy.ended else "goes on without training"
        self._log.info(
            f"{privacy.refusal}, epsilon {privacy.epsilon:.3g} of {privacy.plan.privacy.epsilon:g}; the node {then}",
            kind="privacy-budget",
            round=node.round,
            epsilon=privacy.epsilon,
        )

    def _log_assignments(self, node: Node) -> None:
        """Log that the node has refused this round's assignment."""
        for name in node.peers.refused - self._assignments:
            self._log.warning(
                f"round {node.round}: the model that {name} assigned is far worse on the validation data; the trained model"
                " is kept",
                kind="assignment-refused",
                peer=name,
                round=node.round,
            )
        self._assignments = Counter(node.peers.refused)

    def evaluated(self, node: Node, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        shown = (row for row in reversed(self.state["history"]) if row["round"] == round)
        row: dict[str, Any] = next(shown, {"round": round})
        row |= snapshot.evaluation(node, stages)
        if node.early_stopping.round == round:
            self.state["best"] = snapshot.best_row(row)
        self.state["by_stage"] = snapshot.best_by_stage(node, self.state["history"], self.state.get("by_stage", {}))
        if round <= node.round:  # otherwise the node has gone back since then
            self._log_round(node, row)
        self._file.write(ROUNDS_APART)

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        state = "finished" if node.done else "running"  # an extension may arrive while the result is computed
        if node.why_early:
            text = f"ending after round {describe_progress(node.round, node.settings.rounds)}: {node.why_early}"
            self._log.info(text, kind="ended-early", round=node.round, reason=node.why_early)
        best = node.early_stopping
        self.state |= {"state": state, "result": dict(result), "best_round": best.round, "best_stage": best.stage}
        text = describe_result(result, best.round, best.stage if len(set(best.by_stage.values())) > 1 else "")
        self._log.bind(**result).info(text, kind="finished", best_round=best.round, best_stage=best.stage)
        if does_not_count(node.task, result):
            self._log.warning(
                "the model decides alike for almost all samples, so its fairness says nothing: give the first objective more"
                " weight in preference, or train for more rounds",
                kind="constant-model",
            )
        self.write()

    def extended(self, node: Node) -> None:
        """Report that the federation has more rounds than before."""
        rounds = node.settings.rounds
        self.state |= {"rounds": rounds}
        if node.done:
            event = f"the federation has {rounds} rounds now; this node does not continue: {node.why_early}"
        else:
            self.state |= {"state": "running"}
            event = f"the federation has {rounds} rounds now; continuing after round {node.round}"
        self._log.info(event, kind="extended", rounds=rounds, round=node.round)
        self.write()

    def serving(self) -> None:
        """Record that all rounds are done and that the node only serves its peers until it is stopped."""
        self.state |= {"state": "serving"}
        done = "the rounds have ended early" if self._node is not None and self._node.why_early else "all rounds are done"
        self._log.info(f"{done}; serving peers until you press Ctrl-C", kind="serving")
        self.write()

    def ended(self, state: str, reason: str = "") -> None:
        """Record the end of the node, and its reason."""
        history = self.state["history"]
        if state == "stopped" and self._node is not None and history and history[-1]["round"] > self._logged:
            self._log_round(self._node, history[-1])  # its evaluation has not ended, and is done after the next start
        self.state |= {"state": state, "reason": reason}
        self.write()

    def write(self) -> None:
        self._file.write()

    async def answer(self, folder: Path) -> None:
        """Answer requests for the status in the node's folder, until cancelled; see p2pfl.node.status.reader."""
        await reader.answer(folder, lambda: encode(self.fresh()))

    def fresh(self) -> dict[str, Any]:
        """Return the current status."""
        self.refresh()
        return self.state

    def refresh(self) -> None:
        """Update the entries that change between rounds."""
        if (node := self._node) is not None:
            self.state |= {"disk": node.disk or self._file.problem, "stored": node.stored}
            self.state |= snapshot.budget_state(node.peers.budget_tracker, node.me.training)
            self.state |= snapshot.cost_state(node)
            self.state |= snapshot.end_state(node)
            self.state |= snapshot.privacy_state(node)
            self.state |= snapshot.suspicious_state(self._exchange, node.peers, self._discarded)
        self.state |= {"updated": self._wall(), **snapshot.exchange_state(self._exchange), "faults": dict(self._faults)}
        if self.state["state"] in ("waiting", "running"):
            self.state["state"] = "waiting" if self.state["waiting"] else "running"
        if self.state["state"] not in RUNNING:
            for peer in self.state["peers"]:
                if peer["state"] == "connecting":
                    peer["state"] = "not connected"
            counts = self.state["peer_counts"]["states"]
            if connecting := counts.pop("connecting", 0):
                counts["not connected"] = counts.get("not connected", 0) + connecting

    def _start_changed(self) -> None:
        """Log the number of members for which the node waits at its start, and the end of the wait."""
        wait, node = self._exchange.start_wait, self._node
        self._file.write(PEERS_APART)
        self._log_links()
        if wait.waiting is not None:
            self._start_lines += 1
            if self._start_lines > MOST_START_LINES:  # a member that comes and goes must not fill the log
                return
            present, needed = wait.waiting.present, wait.waiting.needed
            self._log.info(describe_wait(wait.waiting), kind="waiting", present=present, needed=needed)
        elif self._exchange.peers and node is not None and not (node.done or self._exchange.pacer.leaving):
            peers = self._exchange.peering.introduced_peers()
            text = f"connected members: {1 + len(peers)} of {1 + len(self._exchange.peers)}"
            if all(peer.stopped or peer.round in (node.round, node.round + 1) for peer in peers):
                text += f"; starting round {describe_progress(node.round + 1, node.settings.rounds)}"
            self._log.info(text, kind="connected")

    def _peers_changed(self) -> None:
        """Log the peers that have disappeared or are connected, except peers that leave after their last round.

        A peer that is only behind, such as a new member of a federation that has finished, is connected.
        """
        peers = self._exchange.peers
        gone = {
            name: reason for name, reason in self._exchange.view.suspected.items() if not is_only_behind(peers[name], reason)
        }
        missing = {name: reason for name, reason in gone.items() if not peers[name].stopped}
        for name in missing.keys() - self._missing.keys():
            met = peers[name].known
            if missing[name] == NEW and not met:
                self._changes.expect(name)
            else:
                self._changes.left(name, missing[name], met)
        for name in self._missing.keys() - gone.keys():
            if name in peers:  # otherwise it is no longer a member
                self._changes.back(name)
        self._missing = missing
        self._log_links()
        for name, peer in peers.items():
            if peer.revoked and name not in self._revoked_by:
                self._revoked_by.add(name)
                mend = "ask the owner of the admission key, and see p2pfl-node doctor"
                self._log.warning(
                    f"{name} refuses this node, because its membership was revoked; {mend}", kind="revoked", peer=name
                )
        self._file.write(PEERS_APART)

    def _log_links(self) -> None:
        """Log the links that were made or lost since the last call."""
        links = {name: snapshot.link_kind(peer) for name, peer in self._exchange.peers.items()}
        for name, link in links.items():
            if link != self._links.get(name, ""):
                remote = snapshot.remote_of(self._exchange.peers[name])
                way = f"{link}, {remote}" if remote else link
                text = f"connected to {name} ({way})" if link else f"lost the link to {name}"
                self._log.debug(text, kind="link", peer=name, link=link, remote=remote)
        self._links = links


@dataclass
class _Lately:
    """State of a peer about which an event was logged recently.

    Attributes:
        reason: why it is missing; None if it is connected.
        changes: number of changes since the last event.
        pause: seconds until the next event.
    """

    reason: str | None
    changes: int = 0
    pause: float = PAUSE


class PeerChanges:
    """Log of the changes of peers.

    Args:
        log: receives the events.
        later: calls a function after a number of seconds; by default on the running event loop.
    """

    def __init__(
        self,
        log: EventLogger,
        later: Callable[[float, Callable[[], None]], Any] = lambda seconds, do: asyncio.get_running_loop().call_later(
            seconds, do
        ),
    ) -> None:
        self._log = log
        self._later = later
        self._lately: dict[str, _Lately] = {}
        self._unmet: set[str] = set()

    def expect(self, name: str) -> None:
        """Note a new member, which is neither missing nor connected yet. Its connection will be logged."""
        self._unmet.add(name)

    def left(self, name: str, reason: str, met: bool = True) -> None:
        """Report that a peer is missing.

        Args:
            met: whether it has been connected before.
        """
        if not met:
            self._unmet.add(name)
        self._note_change(name, reason)

    def back(self, name: str) -> None:
        """Report that a missing peer is connected."""
        self._note_change(name, None)

    def _note_change(self, name: str, reason: str | None) -> None:
        if (lately := self._lately.get(name)) is not None:
            lately.reason = reason
            lately.changes += 1
            return
        self._report(name, reason)
        self._lately[name] = _Lately(reason)
        self._later(PAUSE, lambda: self._look(name))

    def _look(self, name: str) -> None:
        """Log the changes of a peer since the last event about it."""
        lately = self._lately[name]
        if not lately.changes:
            del self._lately[name]
            return
        if lately.changes == 1:
            self._report(name, lately.reason)
        else:
            now = "connected" if lately.reason is None else f"missing: {lately.reason}"
            times = plural(lately.changes // 2, "time")
            log = self._log.info if lately.reason is None else self._log.warning
            log(f"{name} left and came back {times} in {lately.pause:.0f} s; now {now}", kind="peer-flaps", peer=name)
        lately.changes = 0
        lately.pause = min(2 * lately.pause, LONGEST)
        self._later(lately.pause, lambda: self._look(name))

    def _report(self, name: str, reason: str | None) -> None:
        unmet = name in self._unmet
        if reason is None:
            self._unmet.discard(name)
            self._log.info(f"{name} is {'connected' if unmet else 'back'}", kind="peer-back", peer=name)
        elif unmet:
            self._log.warning(f"{name} is not connected: {reason}", kind="peer-missing", peer=name, reason=reason)
        else:
            self._log.warning(f"{name} is missing: {reason}", kind="peer-missing", peer=name, reason=reason)


def log_penalty(log: EventLogger, conduct: Conduct, name: str, kind: str, detail: str) -> None:
    """Log the first penalty of each kind of a peer, and the first one after which it is left out.

    Args:
        detail: describes the penalty; may come from the peer.
    """
    if conduct.penalties[name][kind] == 1:
        text = f"{name} has a penalty: {kind}" + (f" ({printable(detail)})" if detail else "")
        log.warning(text, kind="penalty", peer=name, penalty=kind, score=conduct.score(name))
    if conduct.is_distrusted(name) and name not in conduct.left_out:
        log.warning(f"{name} is left out: its score is {conduct.score(name)}", kind="left-out", peer=name)


class TrackingObserver(Observer):
    """Gives the figures of each round to trackers.

    Args:
        tracking: the trackers. The owner of the observer closes them.
        config: the node's configuration. Neither its files nor its preference are given to a tracker.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, tracking: Tracking, config: NodeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tracking = tracking
        self._config = config
        self._meter = snapshot.RoundMeter(clock)
        self._run: RunLog | None = None
        self._result: dict[str, float] = {}

    def begin(self, node: Node, federation: str = "") -> None:
        """Begin a run of the trackers, in the group of the node's federation, or in one of its own."""
        self._meter.start()
        settings = {key: getattr(self._config, key) for key in SHARED} | {"rounds": node.settings.rounds}
        plain = plain_settings(msgspec.to_builtins(settings))
        self._run = self._tracking.begin(TrackedRun(node.name, federation or node.name, self._config.track.project, plain))

    def merged(self, node: Node, merge: Merge) -> None:
        cost = self._meter.measure(node.exchange.traffic)
        figures = {
            "time/round_s": cost.seconds,
            "traffic/models": node.peers.models_in,
            "traffic/bytes_in": cost.bytes_in,
            "traffic/bytes_out": cost.bytes_out,
        }
        self._log(node.round, figures)

    def evaluated(self, node: Node, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        self._log(round, {f"{stage}/{name}": value for stage, found in stages.items() for name, value in found.items()})

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        self._result = {f"result/{name}": value for name, value in result.items()}
        self._log(node.round, self._result)  # the run ends with the node, which may get more rounds

    def _log(self, round: int, figures: Mapping[str, float]) -> None:
        if self._run is not None:
            self._run.log(round, figures)

    def end(self) -> None:
        """End the run with the figures of the last result."""
        if self._run is not None:
            self._run.finish(self._result)


def describe_start(name: str, folder: Path, federation: str, broker: str = "") -> str:
    """Return one line about a node that starts.

    Args:
        federation: name and short id of its federation; "" if it belongs to none.
        broker: its configured broker, which a node without a federation does not use; "" for none.
    """
    alone = "it belongs to no federation and trains alone" + (f", without its broker {broker}" if broker else "")
    about = f"federation {federation}" if federation else alone
    return f"node {name}, folder {folder}: {about}"


def federation_title(name: str, id: str) -> str:
    """Return a federation's name with the beginning of its id, in hexadecimal."""
    return f"{name} ({id[:8]})"


def describe_network(network: Mapping[str, Any]) -> str:
    """Return one line about how peers can connect to a node.

    Args:
        network: see p2pfl.node.connectivity.Connectivity.describe.
    """
    listen, broker = network["listen"], network["broker"].partition("#")[0]  # without a fingerprint
    parts = [f"listening on {describe_address(listen)}"] if listen else []
    if broker:
        parts.append(f"using the broker {broker}" + ("" if listen else " only"))
    return ", ".join(parts)


def describe_address(address: str) -> str:
    """Return an address to listen on, in words if it has no host."""
    host, port = split_address(address)
    return address if host else f"port {port} of all addresses"


def describe_wait(waiting: Waiting) -> str:
    """Return one line about the members for which a node waits at its start."""
    limit = f" (for at most {waiting.seconds:g} s)" if isfinite(waiting.seconds) else ""
    return f"waiting for members: {waiting.present} of {waiting.needed}{limit}"


def describe_progress(round: int, rounds: int) -> str:
    """Return a round and the total. A round beyond it, of an earlier federation, is shown without the total."""
    return f"{round} of {rounds}" if round <= rounds else str(round)


def describe_round(row: Mapping[str, Any], rounds: int, metric: str) -> str:
    """Return one line about a finished round.

    Args:
        row: row of the status's history.
        rounds: total number of rounds.
    """
    parts = [f"round {describe_progress(row['round'], rounds)}"]
    if row.get("validation") is not None:
        parts.append(f"validation {metric} {row['validation']:.3f}")
    if "models" in row:
        models = plural(row["models"], "model")
        parts.append(f"{models}, {byte_size(row['bytes_in'])} in, {byte_size(row['bytes_out'])} out")
    return ", ".join(parts)


def round_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `describe_round` shows, by name."""
    return {
        name: row[name] for name in ("round", "validation", "models", "bytes_in", "bytes_out") if row.get(name) is not None
    }


def describe_result(result: Mapping[str, float], best_round: int, stage: str) -> str:
    """Return one line about a node's result.

    Args:
        result: metrics of the best model, by name.
        best_round: round of that model.
        stage: its stage; "" if rounds have only one.
    """
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.items())
    best = (
        "was best on validation"
        if "validation_loss" in result
        else "is the result, because no validation data are looked at"
    )
    return f"finished; the {f'{stage} ' if stage else ''}model of round {best_round} {best}: {figures or 'not evaluated'}"
