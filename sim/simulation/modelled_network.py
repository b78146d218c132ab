"""Modelled network: the round of each simulated node, the time at which its peers know it, and their requests.

No message is created. A sending node computes the arrival time, and its peer is called at that time. Two kinds of links
(see p2pfl.sim.scenario.network.Links) need different bookkeeping:

- Over steady links, the time at which a peer learns of a round follows from the time at which it was reached. So nodes
  announce nothing: `known_round` computes what a peer knows, and `ModelledNetwork` keeps the slowest and the fastest
  round, so that the usual question, whether all know that all have reached a round, needs no look at single nodes.
- Over links that lose or delay frames, nodes announce each round to each peer, and know of their peers what has arrived.

A `Gather` waits for contributions of several nodes as one event, with one timer of the network for all deadlines.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from p2pfl.compression.sparse_updates import tag
from p2pfl.node.conduct import Conduct, ReceiptBook, carried_reports, reports
from p2pfl.node.exchange.base import disclosed_loss
from p2pfl.node.exchange.model_encoding import ModelEncoder, Outbox
from p2pfl.node.exchange.rounds import keeps_up
from p2pfl.node.peering.dialler import FIRST_PAUSE, LONGEST_PAUSE, jitter
from p2pfl.node.peering.peers import PeerView, Traffic
from p2pfl.node.settings import Settings
from p2pfl.parameters import Parameters
from p2pfl.policy import Fragment, Stage, Update
from p2pfl.protocols.wire.envelope import OVERHEAD, VERSION, SignedModel
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.network import Links
from p2pfl.sim.simulation.clock import Handle, VirtualLoop


class ModelledNetwork:
    """Links and clock that all nodes of a simulation share, and the rounds that they have reached.

    Attributes:
        steady: see p2pfl.sim.scenario.network.Links.
        peers: all nodes by name.
        slowest: round that every node has reached.
        fastest: latest round that a node has reached.
    """

    def __init__(self, loop: VirtualLoop, links: Links, settings: Settings) -> None:
        self.loop = loop
        self.links = links
        self.settings = settings
        self.synchronous = settings.mode == "synchronous"
        self.steady = links.steady
        self.peers: dict[str, ModelledPeer] = {}
        self.slowest = 0
        self.fastest = 0
        self._at_round: dict[float, int] = {0: 0}  # number of nodes at each round
        self._settled = -inf  # time at which the slowest node last reached a round
        self._waiting: list[Future[None]] = []  # of nodes that wait for slower nodes
        self._open: deque[Gather] = deque()  # by the time of their deadline
        self._alarm = False

    def join(self, peer: ModelledPeer) -> None:
        self.peers[peer.name] = peer
        self._at_round[0] += 1

    def round_changed(self, before: float, after: float) -> None:
        """Record that a node has moved from one round to another (inf: it has stopped)."""
        at = self._at_round
        at[before] -= 1
        at[after] = at.get(after, 0) + 1
        if self.fastest < after < inf:
            self.fastest = int(after)
        if after < self.slowest:
            self.slowest = int(after)
        if self._waiting:
            self._wake_waiting()
        while self.slowest <= self.fastest and not at.get(self.slowest):
            at.pop(self.slowest, None)
            self.slowest += 1
            self._settled = self.loop.now

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            self.loop.call_later(self.links.longest, _wake, waiter)

    async def move(self, until: float) -> None:
        """Wait until some node moves to another round and all can know it, at most until a given time.

        The links are steady.
        """
        waiter = self.loop.create_future()
        self._waiting.append(waiter)
        if until < inf:
            self.loop.call_at(until, _wake, waiter)
        await waiter

    def all_know(self, round: int) -> bool:
        """Return whether every node knows that every other has reached a round."""
        return self.slowest >= round and self._settled + self.links.longest <= self.loop.now

    def open(self, gather: Gather) -> None:
        """Close a gather at its deadline, if it has not ended earlier. One timer serves all."""
        while self._open and self._open[0].future.done():
            self._open.popleft()
        self._open.append(gather)
        if not self._alarm:
            self._alarm = True
            self.loop.call_at(gather.expires, self._expire)

    def _expire(self) -> None:
        queue, now = self._open, self.loop.now
        while queue and (queue[0].future.done() or queue[0].expires <= now):
            gather = queue.popleft()
            if not gather.future.done():
                gather.close()
        self._alarm = bool(queue)
        if queue:
            self.loop.call_at(queue[0].expires, self._expire)


def _wake(waiter: Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(frozen=True, kw_only=True)
class ModelledConfig:
    """Facts about one node of a modelled network.

    Attributes:
        neighbours: names of the nodes that it may fetch from.
        requesters: names of the nodes that may fetch from it; the same object as `neighbours` if these are the same.
        private: the node answers nan to peers that request the losses of their models.
        sparse: the topology is not complete; see p2pfl.node.exchange.rounds.
        detects: whether nodes compare the models that they have received; see ModelledReceipts.
    """

    name: str
    neighbours: tuple[str, ...]
    requesters: Sequence[str]
    n_samples: int
    public_info: Mapping[str, Any]
    encoder: ModelEncoder
    private: bool = False
    sparse: bool = False
    detects: bool = False


class ModelledReceipts:
    """Comparison of the models that a node has received with those of its peers, as in p2pfl.node.conduct.

    No message is sent: reports and proofs arrive at once and have no size.
    """

    def __init__(self, peer: ModelledPeer, sparse: bool) -> None:
        self._peer = peer
        self._sparse = sparse
        self._book = ReceiptBook()
        self._fresh: list[SignedModel] = []

    def take(self, sender: ModelledPeer, update: Update) -> None:
        """Note a model that a peer has sent."""
        shown = tag(update.params) + b"".join(array.tobytes() for array in update.extras.values())
        self._note(sender, update, shown, None)

    def take_fragment(self, sender: ModelledPeer, fragment: Fragment, part: tuple[str, int, int]) -> None:
        """Note a part of a model that a peer has sent."""
        self._note(sender, fragment, tag(fragment.values), part)

    def _note(
        self, sender: ModelledPeer, update: Update | Fragment, shown: bytes, part: tuple[str, int, int] | None
    ) -> None:
        start, name, content = (1, sender.generation), sender.name.encode(), (shown, update.n_samples)
        model = SignedModel(VERSION, name, start, update.round, update.stage, content, name, part)
        self.compare(model)
        self._book.add(model, fetched=True)
        self._fresh.append(model)

    def report(self) -> None:
        """Show their witnesses the models that were received since the last report."""
        models, self._fresh = self._fresh, []
        if not models:
            return
        fetched = [(model.sender.decode(), model) for model in models]
        if self._sparse:
            everyone, own = self._peer.network.peers, self._peer.name
            shown = carried_reports(
                fetched,
                own,
                lambda name: [each.name for each in everyone[name].around()],
                lambda content: sha256(own.encode() + content).digest(),  # a node draws with its private key
            )
        else:
            shown = reports(fetched, [peer.name for peer in self._peer.around()])
        for name, found in shown.items():
            if (receipts := self._peer.network.peers[name].receipts) is not None:
                for model in found:
                    receipts.compare(model)

    def compare(self, model: SignedModel) -> None:
        """Compare a model with the known one of the same round; keep it if there is none."""
        known = self._book.find(model)
        if known is None:
            self._book.add(model, fetched=False)
        elif known.contradicts(model):
            self.accept(model)

    def accept(self, model: SignedModel) -> None:
        """Keep a proof, and pass it on to all neighbours."""
        conduct, name = self._peer.conduct, model.envelope.decode()
        if model.sender in conduct.proofs or name == self._peer.name:
            return
        conduct.proofs[model.sender] = b"modelled"
        around = self._peer.around()
        if name in {peer.name for peer in around}:
            conduct.penalise(name, "equivocation", f"round {model.round}: two different models")
        for peer in around:
            if peer.receipts is not None:
                peer.receipts.accept(model)


class Waiting(NamedTuple):
    """Request of a peer for a model that is not published yet."""

    asker: str
    round: int
    stage: Stage
    serve: Callable[[], None]


class ModelledPeer:
    """One node as the others reach it: its models, its announced round, and the losses it computes for others.

    Args:
        loss: computes the loss of a model, without its private part, on the node's training data; the result is [1].

    Attributes:
        round: newest announced round; inf: the node has stopped.
        requesters: names of the nodes that may fetch from this one.
        suspected_by: nodes that suspect this one, by name.
        neighbours: nodes from which this one may fetch, also those that it leaves out.
        generation: number of times that it has replaced a published model of a round, or gone back to an earlier round.
        conduct: penalties of its peers.
        receipts: comparison of the received models; None if nodes do not compare them.
        forge: returns the update that a peer receives in place of another one; None for an honest node.
        waiting: requests for models that are not published yet.
        unanswered: number of probes since the last message of a peer, by name.
    """

    def __init__(
        self, network: ModelledNetwork, config: ModelledConfig, loss: Callable[[Parameters], Future[np.ndarray]]
    ) -> None:
        self.network = network
        self.name = config.name
        self.public_info = {**config.public_info, "n_samples": config.n_samples}
        self.encoder = config.encoder
        self.view = PeerView(config.neighbours)
        self.neighbours = config.neighbours
        self.generation = 0
        self.conduct = Conduct(network.settings.distrust, config.detects)
        self.conduct.leave_out = self.view.leave_out
        self.receipts = ModelledReceipts(self, config.sparse) if config.detects else None
        self.outbox = Outbox(network.synchronous)
        self.traffic = Traffic()
        self.round: float = 0
        self.requesters = config.requesters
        self.forge: Callable[[str, Update], Update] | None = None
        self.suspected_by: dict[str, ModelledPeer] = {}
        self.waiting: list[Waiting] = []
        self.unanswered: dict[str, int] = {}
        self._loss = loss
        self._private = config.private
        self._announced: dict[float, float] = {0: -inf}  # times at which the last rounds were reached
        self._awaited: dict[int, list[tuple[ModelledPeer, Gather]]] = {}  # by the round that others wait for
        self._rounds: dict[str, float] = {}  # of its peers, as far as it knows, unless links are steady
        self._changed: Future[None] = network.loop.create_future()
        self._probing: dict[str, Handle] = {}  # the next probe of each suspected peer, unless links are steady
        self._probes: dict[str, int] = {}  # number of probes of each peer
        self._streams = RandomStreams(network.settings.seed, config.name)
        network.join(self)

    def arrival(self, to: ModelledPeer, size: int) -> float | None:
        """Return the arrival time of a frame that this node sends now, or None if it is lost."""
        return self.network.links.arrival(self.name, to.name, size, self.network.loop.now)

    # Rounds

    def reach(self, round: float) -> None:
        """Announce a round."""
        network = self.network
        network.round_changed(self.round, round)
        before, self.round = self.round, round
        if not network.steady:
            self._tell(self.around(), round, announced=True)
            return
        if not network.links.instant:
            if round < before:
                self._announced = {r: when for r, when in self._announced.items() if r < round}
            self._announced[round] = network.loop.now
            if len(self._announced) > 4:
                del self._announced[min(self._announced)]
        if self.suspected_by:
            self._tell(list(self.suspected_by.values()), round)  # a message ends their suspicion
        if self._awaited:
            for awaited in [r for r in self._awaited if r <= round]:
                for other, gather in self._awaited.pop(awaited):
                    gather.add(self.name, None, self.arrival(other, OVERHEAD))

    def _tell(self, others: Sequence[ModelledPeer], round: float, announced: bool = False) -> None:
        """Send a round to other nodes."""
        for other in others:
            when = self.arrival(other, OVERHEAD)
            if when is not None:
                self.network.loop.call_at(when, other.heard, self, round, announced)

    def around(self) -> list[ModelledPeer]:
        """Return the nodes that this one may fetch from, and those that may fetch from it, by name."""
        both = self.neighbours
        if self.requesters is not both:
            both = tuple(sorted({*both, *self.requesters}))
        return [self.network.peers[id] for id in both]

    def known_round(self, other: ModelledPeer, now: float) -> float:
        """Return the round that `other` knows this node to have reached."""
        if not self.network.steady:
            return other.last_heard(self.name)
        if self.network.links.instant:
            return self.round
        latency = self.network.links.latency(self.name, other.name)
        return max((r for r, when in self._announced.items() if when + latency <= now), default=self.round)

    def last_heard(self, name: str) -> float:
        """Return the newest round of a peer that this node has received, over links that are not steady."""
        return self._rounds.get(name, 0)

    async def change(self) -> None:
        """Wait until a message of a peer arrives or is missed, or until `wake` is called. The links are not steady."""
        self._changed = self.network.loop.create_future()
        await self._changed

    def wake(self) -> None:
        """End the wait for a change."""
        _wake(self._changed)

    def announce_to(self, other: ModelledPeer, round: int, gather: Gather) -> None:
        """Contribute to a gather of `other` at the time at which it learns that this node has reached a round.

        The links are steady.
        """
        if self.round >= round:  # announced, but the message is still on its way
            reached = min(r for r in self._announced if r >= round)
            gather.add(self.name, None, self._announced[reached] + self.network.links.latency(self.name, other.name))
        else:
            self._awaited.setdefault(round, []).append((other, gather))

    # Serving

    def serve_waiting(self) -> None:
        """Serve the requests that waited for the model just published."""
        waiting, self.waiting = self.waiting, []
        if not self.network.steady:
            waiting.sort(key=lambda request: request.asker)
        for request in waiting:
            if self.outbox.find(request.round, request.stage) == "wait":
                self.waiting.append(request)
            else:
                request.serve()

    def as_received(self, update: Update, age: float, asker: ModelledPeer) -> Update:
        """Return a model of this node as `asker` receives it, `age` seconds after its publication."""
        update = self.as_sent(update, age, asker)
        if asker.receipts is not None:
            asker.receipts.take(self, update)
        return update

    def as_sent(self, update: Update, age: float, asker: ModelledPeer) -> Update:
        """Return the model of which `asker` receives parts, `age` seconds after its publication."""
        update = self.outbox.as_sent(update, age)
        return update if self.forge is None else self.forge(asker.name, update)

    @property
    def score_size(self) -> int:
        """Return the bytes of a request for a loss: the model is sent as float32 with every codec."""
        return OVERHEAD + 4 * self.encoder.layout.size

    def score(self, asker: ModelledPeer, gather: Gather, params: Parameters) -> None:
        """Compute a loss for a peer, and send it."""
        self.traffic.count("received", "score", self.score_size)

        def reply(done: Future[np.ndarray]) -> None:
            self.traffic.count("sent", "scored", OVERHEAD)
            when = self.arrival(asker, OVERHEAD)
            if when is not None:
                asker.traffic.count("received", "scored", OVERHEAD)
                loss = nan if self._private else float(done.result()[0])
                gather.add(self.name, disclosed_loss(loss, self.network.settings.robust), when)

        self._loss(params).add_done_callback(reply)

    # Suspicion: see p2pfl.node.peering.peer_manager

    def heard(self, peer: ModelledPeer, round: float, announced: bool = False) -> None:
        """Record a message of a peer.

        Args:
            round: the peer's round, as the message names it; 0 if it does not.
            announced: whether the message is an announcement, which alone may name an earlier round than before.
        """
        if not self.network.steady:
            if not announced:
                round = max(round, self.last_heard(peer.name))
            self._rounds[peer.name] = round
            self.unanswered.pop(peer.name, None)
            self.wake()
        if peer.name in self.view.suspected and keeps_up(round, self.round, self.network.synchronous):
            self.view.heard(peer.name)
            peer.suspected_by.pop(self.name, None)
            if (probing := self._probing.pop(peer.name, None)) is not None:
                probing.cancel()

    def suspect(self, peer: ModelledPeer, reason: str) -> None:
        """Suspect a peer, and probe it."""
        self.view.suspect(peer.name, reason)
        peer.suspected_by[self.name] = self
        if self.network.steady:
            self._probe(peer)
        elif peer.name not in self._probing:
            self._keep_probing(peer, FIRST_PAUSE)

    def _keep_probing(self, peer: ModelledPeer, pause: float) -> None:
        """Probe a peer until its suspicion ends, less and less often; see p2pfl.node.peering.dialler."""
        name = peer.name
        self.unanswered[name] = self.unanswered.get(name, 0) + 1
        self._probes[name] = number = self._probes.get(name, 0) + 1
        seconds = pause * jitter(self._streams, name, number)
        self._probe(peer)
        self.wake()
        next_pause = min(2 * pause, LONGEST_PAUSE)
        self._probing[name] = self.network.loop.call_later(seconds, self._keep_probing, peer, next_pause)

    def _probe(self, peer: ModelledPeer) -> None:
        there = self.arrival(peer, OVERHEAD)
        if there is not None:
            self.network.loop.call_at(there, self._on_probe, peer)

    def _on_probe(self, peer: ModelledPeer) -> None:
        if not self.network.steady:
            peer.heard(self, 0)
        back = peer.arrival(self, OVERHEAD)
        if back is not None:
            self.network.loop.call_at(back, self.heard, peer, peer.round)


class Gather:
    """Contributions that are complete at their latest arrival time, or at a deadline.

    Args:
        seconds: time until the deadline.

    Attributes:
        future: True once all contributions have arrived, False if the deadline passed first.
        latest: time of the latest arrival so far.
        expires: time of the deadline.
        items: contributions by sender.
        left: number of outstanding contributions.
    """

    __slots__ = ("expires", "future", "items", "latest", "left", "loop")

    def __init__(self, loop: VirtualLoop, count: int, seconds: float) -> None:
        self.loop = loop
        self.future: Future[bool] = Future(loop=loop)
        self.left = count
        self.latest = loop.now
        self.expires = self.latest + seconds
        self.items: dict[str, Any] = {}

    def add(self, name: str, item: Any, when: float | None) -> bool:
        """Add a contribution that arrives at `when` (None: never). Return False if that is too late."""
        if when is None or when > self.expires or self.future.done():
            return False
        self.items[name] = item
        if when > self.latest:
            self.latest = when
        self.left -= 1
        if not self.left:
            if self.latest <= self.loop.now:
                self.future.set_result(True)
            else:
                self.loop.call_at(self.latest, self.expire, True)
        return True

    def expire(self, complete: bool = False) -> None:
        """End the waiting, if it has not ended."""
        if not self.future.done():
            self.future.set_result(complete)

    def close(self) -> None:
        """End the waiting at the deadline. It is not called if the waiting has ended."""
        self.expire()
