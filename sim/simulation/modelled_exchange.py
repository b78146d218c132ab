"""The exchange of simulated nodes (see p2pfl.node.exchange.base.Exchange): events and sizes instead of messages.

An exchange acts for its own node; `ModelledPeer` is the same node as others reach it. Most of the work is to fetch. A
`Fetch` is one event, at the arrival time of its last model. Over steady links its requests wait for one another
(`advance`), because a model's time follows from the time at which it is published. Over others each request is served on
its own (`serve`): what the peer answers depends on what it has received before the request arrives.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TaskGroup
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf, isfinite
from typing import Any

import numpy as np
from msgspec.structs import replace

from p2pfl.compression.sparse_updates import PeerCopy
from p2pfl.errors import ConfigurationError
from p2pfl.fragments import Fragments
from p2pfl.node.exchange.base import Detached, ExchangeHost, late_answer, late_round
from p2pfl.node.exchange.model_encoding import Missing, Published, Publisher
from p2pfl.node.exchange.rounds import PACING_SHARE, SILENT_AFTER, Pacing, common_round, is_awaited
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Extras, Fragment, PolicyStep, Stage, Submission, Update
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.simulation.modelled_coordinator import ModelledCoordination
from p2pfl.sim.simulation.modelled_network import Gather, ModelledConfig, ModelledNetwork, ModelledPeer, Waiting

Losses = Callable[[Parameters], Future[np.ndarray]]


class ModelledExchange:
    """Exchange of one simulated node.

    Args:
        loss: computes the loss of a whole model on the node's training data; the result is float [1].
        coordination: that of the network, with the step of the node's policy, if the policy is coordinated.

    Attributes:
        peer: the node as the others reach it.
        participant: the node's part in a coordinated policy, if it has one.
    """

    def __init__(
        self,
        network: ModelledNetwork,
        config: ModelledConfig,
        loss: Losses,
        coordination: tuple[ModelledCoordination, PolicyStep] | None = None,
    ) -> None:
        self.network = network
        self.name = config.name
        self.peer = ModelledPeer(network, config, self._loss_of)
        self.view = self.peer.view
        self.outbox = self.peer.outbox
        self.traffic = self.peer.traffic
        self.encoder = config.encoder
        self.conduct = self.peer.conduct
        self._host: ExchangeHost = Detached()
        self._compute = loss
        self._expired = 0
        self._pacing = Pacing(network.settings.rounds, sparse=config.sparse)
        self._publisher = Publisher(self.name, config.n_samples, self.encoder, network.loop.time)
        self.participant = None if coordination is None else coordination[0].join(self.peer, coordination[1])

    @property
    def askers(self) -> Sequence[str]:
        """Names of the nodes that may fetch from this one."""
        return self.peer.requesters

    @property
    def expired(self) -> int:
        """Number of deadlines that have passed."""
        return self._expired + (0 if self.participant is None else self.participant.expired)

    async def start(self, tasks: TaskGroup, host: ExchangeHost, extended: bool = False) -> None:
        """Begin; all nodes of a network are present from the start."""
        self._host = host

    async def gather(self) -> None:
        """Do nothing; all nodes of a network are present from the start."""

    def leave(self) -> None:
        """Do nothing: no node waits for others to join."""

    async def close(self) -> None:
        """Do nothing: a node serves until the simulation ends."""

    def public_info(self, id: str) -> Mapping[str, Any]:
        return self.network.peers[id].public_info

    async def next_round(self, finished: int) -> int:
        network, loop = self.network, self.network.loop
        # the usual case, which needs no check of the neighbours
        if network.steady and network.fastest <= finished + 1 and network.slowest >= finished - 1 and not self._pacing.late:
            return finished + 1
        ends = loop.now + network.settings.deadline
        round = self._following(finished)
        if round == finished - 1 and not network.steady:
            loop.call_at(ends, self.peer.wake)
        while round == finished - 1 and loop.now < ends:
            await (network.move(ends) if network.steady else self.peer.change())
            round = self._following(finished)
        self.peer.generation += round <= finished
        announced = self._pacing.enter(round, finished, int(self.peer.round), self.outbox)
        if announced is not None:
            self.peer.reach(announced)
        return round

    def _following(self, finished: int) -> int:
        """Return the next round, as far as this node knows its neighbours' rounds."""
        return self._pacing.following(finished, int(self.peer.round), self._known_rounds())

    def _known_rounds(self) -> list[int]:
        """Return the rounds of the neighbours that have not stopped and are not silent, as far as this node knows them."""
        peers, now, unanswered = self.network.peers, self.network.loop.now, self.peer.unanswered
        silent = {id for id in self.view.suspected if unanswered.get(id, 0) >= SILENT_AFTER} if unanswered else ()
        rounds = [peers[id].known_round(self.peer, now) for id in self.view.neighbours if id not in silent]
        return [int(round) for round in rounds if round < inf]

    # Publishing

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        network, peer = self.network, self.peer
        if round > peer.round:
            if network.synchronous and not network.all_know(round - 1):
                await self._pace(round)
            peer.reach(round)
        peer.generation += (round, stage) in self.outbox.models
        model = self._publisher.make(round, stage, params, extras)
        await self._host.save_model(model)
        self.outbox.add(model)
        if peer.waiting:
            peer.serve_waiting()

    def finish(self) -> None:
        self.outbox.final = True
        self.peer.serve_waiting()
        self.peer.reach(inf)
        if self.participant is not None:
            self.participant.leave()

    async def _pace(self, round: int) -> None:
        """Wait until every node that may fetch from this one, and keeps up, has reached the previous round."""
        peer, network, loop = self.peer, self.network, self.network.loop
        behind = self._behind(round)
        if not behind:
            return
        seconds = network.settings.deadline * PACING_SHARE
        if network.steady:
            gather = Gather(loop, len(behind), seconds)
            for other in behind:
                other.announce_to(peer, round - 1, gather)
            if not gather.future.done():
                loop.call_at(gather.expires, gather.expire)
                await gather.future
            behind = [other for other in behind if other.name not in gather.items]
        else:
            ends = loop.now + seconds
            loop.call_at(ends, peer.wake)
            while behind and loop.now < ends:
                await peer.change()
                while behind and not is_awaited(peer.last_heard(behind[-1].name), round):
                    behind.pop()
                if not behind or loop.now >= ends:
                    behind = self._behind(round)
        if behind:
            self._miss([other.name for other in behind], late_round(round - 1))

    def _behind(self, round: int) -> list[ModelledPeer]:
        """Return the nodes for which this one waits before it publishes in a round, as far as it knows their rounds."""
        peer, peers = self.peer, self.network.peers
        now, suspected, left_out = self.network.loop.now, self.view.suspected, self.view.left_out
        return [
            other
            for other in map(peers.__getitem__, peer.requesters)
            if other.name not in suspected and other.name not in left_out and is_awaited(other.known_round(peer, now), round)
        ]

    def _miss(self, ids: Sequence[str], reason: str) -> None:
        """Suspect the peers that have missed a deadline."""
        self._expired += 1
        for id in ids:
            self.peer.suspect(self.network.peers[id], reason)

    # Fetching

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        network = self.network
        ids = sorted(self._reachable(ids))
        if not ids:
            return []
        self.traffic.count("sent", "get", OVERHEAD * len(ids), preparation=not round)
        known = self.encoder.ask(ids)
        if network.synchronous and network.links.instant:
            # nodes with the same training time have then published too, so there is usually nothing to wait for
            await asyncio.sleep(0)
        fetch = Fetch(self.peer, ids, round, stages, known)
        await self._complete(fetch, ids)
        items = fetch.items
        fetch.items = {}  # peers that serve the fetch late may keep it for long
        updates = [items[id] for id in sorted(items) if items[id] is not None]
        if updates:
            self._pacing.record_exchange()
        return updates

    async def fetch_fragments(
        self, wanted: Mapping[str, Sequence[int]], round: int, fragments: Fragments, stage: Stage
    ) -> list[Fragment]:
        ids = sorted(self._reachable(list(wanted)))
        if not ids:
            return []
        self.traffic.count("sent", "get", OVERHEAD * len(ids), preparation=not round)
        fetch = FragmentFetch(self.peer, ids, round, stage, (wanted, fragments))
        await self._complete(fetch, ids)
        found = [each for each, arrives in fetch.parts if arrives <= self.network.loop.now]
        fetch.parts = []
        if found:
            self._pacing.record_exchange()
        order = {name: k for k, name in enumerate(fragments.names(self.encoder.layout))}
        return sorted(found, key=lambda each: (each.sender, order[each.name]))

    async def _complete(self, fetch: Fetch, ids: Sequence[str]) -> None:
        """Wait for a fetch, and suspect the peers whose answers are late."""
        if not fetch.future.done():
            self.network.open(fetch)
            await fetch.future
        if self.peer.receipts is not None:
            self.peer.receipts.report()
        if fetch.left:
            self._miss([id for id in ids if id not in fetch.items], late_answer(fetch.round))

    def ask_on_probation(self, wanted: Collection[str], round: int, fragments: Fragments, stage: Stage) -> None:
        """Do nothing: no peer is on probation."""

    def _reachable(self, ids: Sequence[str]) -> Sequence[str]:
        """Return the ids of neighbours: a policy may request any node, but others do not answer."""
        if ids is self.view.ids:
            return ids
        around = self.view.neighbours
        places = [(id, bisect_left(around, id)) for id in ids]
        return [id for id, place in places if place < len(around) and around[place] == id]

    def expected_bytes(self, id: str, round: int) -> int:
        return self.encoder.expected_bytes(id, round)

    # Losses

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        network, peer = self.network, self.peer
        ids = self._reachable(ids)
        if not ids:
            return {}
        gather = Gather(network.loop, len(ids), network.settings.deadline)
        for id in ids:
            other = network.peers[id]
            self.traffic.count("sent", "score", peer.score_size)
            arrives = peer.arrival(other, peer.score_size)
            if arrives is not None:
                network.loop.call_at(arrives, other.score, peer, gather, params)
        network.open(gather)
        if not await gather.future:
            self._miss([id for id in ids if id not in gather.items], late_answer(round))
        return {id: loss for id, loss in sorted(gather.items.items()) if isfinite(loss)}

    def _loss_of(self, params: Parameters) -> Future[np.ndarray]:
        """Start to compute the loss of a peer's model."""
        return asyncio.ensure_future(self._compute(self._host.complete(params)), loop=self.network.loop)

    # Submitting: see p2pfl.sim.simulation.modelled_coordinator

    def resume(self, round: int, params: Parameters) -> None:
        """Do nothing: every node begins with the first round."""

    async def submit(self, submission: Submission) -> Assignment | None:
        if self.participant is None:
            raise ConfigurationError("`peers.submit` needs a coordinated policy: one with a method `step`")
        rounds = self._known_rounds()
        behind = bool(rounds) and common_round(rounds) > submission.round
        assignment = await self.participant.submit(submission)
        self._pacing.late = behind and assignment is None
        return assignment

    def set_aside(self) -> str:
        return "" if self.participant is None else self.participant.set_aside()


class Fetch(Gather):
    """One node's requests to several peers for models of a round.

    Each request is served once, when its model is published. The fetch may have ended by then; the peer sends the model
    nevertheless, as with messages.

    Args:
        stages: stage of the models, or one for each peer.
        known: models of peers that the requesting node has, by peer; peers send differences from them.

    Attributes:
        pending: requests that wait for one another, with the times at which they arrive; see `advance`.
    """

    __slots__ = ("asker", "known", "links", "pending", "round", "stages")

    def __init__(
        self,
        asker: ModelledPeer,
        ids: Sequence[str],
        round: int,
        stages: Stage | Mapping[str, Stage],
        known: Mapping[str, PeerCopy],
    ) -> None:
        network = asker.network
        super().__init__(network.loop, len(ids), network.settings.deadline)
        self.asker = asker
        self.round = round
        self.stages = stages
        self.known = known
        self.links = links = network.links
        peers, now = network.peers, self.latest
        arrivals = [(peers[id], links.arrival(asker.name, id, OVERHEAD, now)) for id in ids]
        requests = [(peer, when) for peer, when in arrivals if when is not None]
        self.pending: list[tuple[ModelledPeer, float]] = []
        if network.synchronous and links.steady:
            self.pending = requests
            self.advance()
            return
        for peer, when in requests:  # the served model depends on events before the request arrives
            self.loop.call_at(when, self.arrive, peer, when)

    def advance(self) -> None:
        """Serve the requests, the last first, until one must wait for a model to be published.

        The others wait with it. Before the deadline this changes nothing, because the fetch needs all of them. So the
        fetch waits about once, for the node that is likely to publish last, and not once for each peer.
        """
        pending = self.pending
        while pending:
            peer, asked = pending[-1]
            found = self._find(peer, self.advance)
            if found is None:
                return
            pending.pop()
            self._count(peer)
            self.take(peer, found, asked)

    def close(self) -> None:
        """Let no request wait for another one any longer, and end without the missing models."""
        pending, self.pending = self.pending, []
        for peer, asked in pending:
            self.arrive(peer, asked)
        self.expire()

    def arrive(self, peer: ModelledPeer, asked: float) -> None:
        """Have a request arrive at a peer."""
        self._count(peer)
        self.serve(peer, asked)

    def serve(self, peer: ModelledPeer, asked: float) -> None:
        """Serve one request, now or when its model is published."""
        found = self._find(peer, partial(self.serve, peer, asked))
        if found is not None:
            self.take(peer, found, asked)

    def _find(self, peer: ModelledPeer, again: Callable[[], None]) -> Published | Missing | None:
        """Return what a peer answers; None if its model is still to be published, after which it calls `again`."""
        stage = self.stages if isinstance(self.stages, str) else self.stages[peer.name]
        found = peer.outbox.find(self.round, stage)
        if found == "wait":
            peer.waiting.append(Waiting(self.asker.name, self.round, stage, again))
            return None
        return found

    def take(self, peer: ModelledPeer, found: Published | Missing, asked: float) -> None:
        """Have `peer` answer a request that arrived at `asked`."""
        if not isinstance(found, Published) or self.asker.name in peer.view.left_out:
            self._refuse(peer, max(asked, self.loop.now))
        else:
            self._send(peer, found, asked if asked > found.time else found.time)

    def _send(self, peer: ModelledPeer, found: Published, when: float) -> None:
        """Have `peer` send a model at `when`."""
        asker, update = self.asker, found.update
        if peer.name in self.known:
            saved = peer.encoder.whole - peer.encoder.size(found, self.known[peer.name].tag)
            update = replace(update, size=update.size - saved)
        arrives = when if self.links.instant else self.links.arrival(peer.name, asker.name, update.size, when)
        peer.traffic.count("sent", "update", update.size, models=1, preparation=not self.round)
        if arrives is None:
            return
        asker.traffic.count("received", "update", update.size, models=1, preparation=not self.round)
        update = peer.as_received(update, found.age(when), asker)
        if not self.add(peer.name, update, arrives):  # too late to be used, but it shows that the peer is alive
            self.loop.call_at(arrives, asker.heard, peer, peer.round if asker.network.steady else 0)
        elif peer.name in self.known:
            asker.encoder.keep(peer.name, update.round, update.params, found.tag)

    def _count(self, peer: ModelledPeer) -> None:
        """Count a request that `peer` receives."""
        peer.traffic.count("received", "get", OVERHEAD, preparation=not self.round)
        peer.heard(self.asker, self.round)

    def _refuse(self, peer: ModelledPeer, when: float) -> None:
        """Count the answer of a peer that it has no model; it names the peer's round."""
        asker = self.asker
        peer.traffic.count("sent", "control", OVERHEAD)
        asker.traffic.count("received", "control", OVERHEAD)
        arrives = self.links.arrival(peer.name, asker.name, OVERHEAD, when)
        self.add(peer.name, None, arrives)
        if arrives is not None and not asker.network.steady:
            self.loop.call_at(arrives, asker.heard, peer, peer.round)


class FragmentFetch(Fetch):
    """Fetch of parts of models: one request to each peer, and one frame from it for each part.

    Args:
        wanted: numbers of parts by peer, and how models are divided.

    Attributes:
        parts: those that have been sent and are not lost, with the time at which each arrives.
    """

    __slots__ = ("_names", "_places", "_rule", "_wanted", "parts")

    def __init__(
        self,
        asker: ModelledPeer,
        ids: Sequence[str],
        round: int,
        stage: Stage,
        wanted: tuple[Mapping[str, Sequence[int]], Fragments],
    ) -> None:
        self._wanted, fragments = wanted
        layout = asker.encoder.layout
        self._rule, self._names = fragments.rule, fragments.names(layout)
        self._places = fragments.places(layout, asker.network.settings.seed)
        self.parts: list[tuple[Fragment, float]] = []
        super().__init__(asker, ids, round, stage, {})

    def _send(self, peer: ModelledPeer, found: Published, when: float) -> None:
        asker = self.asker
        model = peer.as_sent(found.update, found.age(when), asker)
        names, places = self._names, self._places
        last: float | None = when
        for number in self._wanted[peer.name]:
            values = model.params[places[number]]
            size = OVERHEAD + 4 * len(values)
            arrives = when if self.links.instant else self.links.arrival(peer.name, asker.name, size, when)
            peer.traffic.count("sent", "update", size, preparation=not self.round)
            last = None if last is None or arrives is None else max(last, arrives)
            if arrives is None:
                continue
            asker.traffic.count("received", "update", size, preparation=not self.round)
            fragment = Fragment(
                *(peer.name, model.round, model.stage, names[number], values, places[number]),
                *(model.n_samples, model.final, model.age, size),
            )
            if asker.receipts is not None:
                asker.receipts.take_fragment(peer, fragment, (self._rule, len(names), number))
            if not self.future.done() and arrives <= self.expires:
                self.parts.append((fragment, arrives))
            else:  # too late to be used, but it shows that the peer is alive
                self.loop.call_at(arrives, asker.heard, peer, peer.round if asker.network.steady else 0)
        self.add(peer.name, None, last)
