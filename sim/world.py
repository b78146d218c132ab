"""Who has published what, and when it reaches whom: the exchange of simulated nodes (see node.exchange.Exchange).

No message is made. A fetch is one event, at the time at which the last of its models would have arrived; sizes are computed.
A model is handed over by reference. What a node would do on each message stands in node/messaging.py, and a test holds the
two equal.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TaskGroup
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from math import inf, isfinite, nan
from typing import Any

from msgspec.structs import replace

from node.coding import Coding
from node.electing import Elected
from node.outbox import Missing, Outbox, Published
from node.pacing import Pacing
from node.roster import Roster
from node.settings import Settings
from node.traffic import Traffic
from p2pfl.differences import Copy
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Extras, Stage, Step, Submission, Update
from p2pfl.robust import coarse
from protocols.envelope import OVERHEAD
from protocols.payload import encode_extras
from protocols.terms import Term
from sim.batching import BatchedTrainer
from sim.clock import VirtualLoop
from sim.coordination import Leader, ModelledOffice, size_of
from sim.network import Links


class World:
    """All nodes of a simulation, and what goes on between them."""

    def __init__(self, loop: VirtualLoop, links: Links, settings: Settings) -> None:
        self.loop = loop
        self.links = links
        self.settings = settings
        self.synchronous = settings.mode == "synchronous"
        self.nodes: dict[str, ModelledExchange] = {}
        self._lowest = ""  # the name of a node
        self._at_round: dict[float, int] = {0: 0}  # how many nodes are at a round
        self.slowest = 0  # no node is behind this round
        self.fastest = 0
        self._settled = -inf  # when the slowest node has last reached a round
        self.waiting: list[Future[None]] = []  # of nodes that wait for others to come up
        self._open: deque[_Gathering] = deque()  # by the time of their deadline
        self._alarm = False

    def join(self, exchange: ModelledExchange) -> None:
        self.nodes[exchange.name] = exchange
        self._lowest = min(self._lowest or exchange.name, exchange.name)
        self._at_round[0] += 1

    def leader(self) -> Leader | None:
        """Return who coordinates now, or None where nobody does: as long as none is elected, the lowest name."""
        return Leader(Term(1, 1), self._lowest)

    def moved(self, before: float, after: float) -> None:
        """A node has gone from one round to another (inf: it has stopped)."""
        at = self._at_round
        at[before] -= 1
        at[after] = at.get(after, 0) + 1
        if after < inf:
            self.fastest = max(self.fastest, int(after))
        self.slowest = int(min(self.slowest, after))
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            self.loop.call_later(self.links.longest if self.links.longest < inf else 1.0, _wake, waiter)
        while self.slowest <= self.fastest and not at.get(self.slowest):
            at.pop(self.slowest, None)
            self.slowest += 1
            self._settled = self.loop.now

    def all_know(self, round: int) -> bool:
        """Whether every node knows that every other has reached a round."""
        return self.slowest >= round and self._settled + self.links.longest <= self.loop.now

    def open(self, gathering: _Gathering) -> None:
        """Close a gathering at its deadline, if it has not ended before. One timer serves all."""
        while self._open and self._open[0].future.done():
            self._open.popleft()
        self._open.append(gathering)
        if not self._alarm:
            self._alarm = True
            self.loop.call_at(gathering.expires, self._expire)

    def _expire(self) -> None:
        queue, now = self._open, self.loop.now
        while queue and (queue[0].future.done() or queue[0].expires <= now):
            queue.popleft().close()
        self._alarm = bool(queue)
        if queue:
            self.loop.call_at(queue[0].expires, self._expire)


def _wake(waiter: Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Gathering:
    """Something that several nodes contribute to: it is complete at the latest of their times, or at the deadline."""

    __slots__ = ("expires", "future", "items", "latest", "left", "loop")

    def __init__(self, loop: VirtualLoop, count: int, seconds: float) -> None:
        self.loop = loop
        self.future: Future[bool] = Future(loop=loop)
        self.left = count
        self.latest = loop.now
        self.expires = self.latest + seconds
        self.items: dict[str, Any] = {}

    def add(self, name: str, item: Any, when: float | None) -> bool:
        """Take a contribution that arrives at `when` (None: never). Return False if that is too late."""
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
        if not self.future.done():
            self.future.set_result(complete)

    def close(self) -> None:
        """The deadline has come."""
        self.expire()


class _Fetch(_Gathering):
    """One node's requests to several peers for models of a round."""

    __slots__ = ("asker", "known", "links", "pending", "round", "stages")

    def __init__(
        self,
        asker: ModelledExchange,
        ids: Sequence[str],
        round: int,
        stages: Stage | Mapping[str, Stage],
        known: Mapping[str, Copy],
    ) -> None:
        world = asker.world
        super().__init__(world.loop, len(ids), world.settings.deadline)
        self.asker = asker
        self.round = round
        self.stages = stages
        self.known = known  # of whom the asking node has what
        self.links = links = world.links
        nodes, now = world.nodes, self.latest
        arrivals = [(nodes[id], links.arrival(asker.name, id, OVERHEAD, now)) for id in ids]
        self.pending = [(peer, when) for peer, when in arrivals if when is not None]
        if world.synchronous and links.steady:
            self.advance()
            return
        for peer, when in self.pending:  # what is served depends on what happens until the request arrives
            self.loop.call_at(when, self.serve, peer, when)

    def advance(self) -> None:
        """Serve the requests, the last first, until one must wait for a model to be published.

        That one keeps the others waiting, which changes nothing before the deadline, since the fetch needs all of them. So
        it waits about once, for the node that is likely to publish last, and not once for each peer.
        """
        pending, round, stages = self.pending, self.round, self.stages
        while pending:
            peer, asked = pending[-1]
            stage = stages if isinstance(stages, str) else stages[peer.name]
            found = peer.outbox.find(round, stage)
            if found == "wait":
                peer.waiting.append((round, stage, self.advance))
                return
            pending.pop()
            self.take(peer, found, asked)

    def close(self) -> None:
        """Serve those who were kept waiting by another one, and go on without the rest."""
        waiting, self.pending = self.pending, []
        for peer, asked in waiting:
            stage = self.stages if isinstance(self.stages, str) else self.stages[peer.name]
            found = peer.outbox.find(self.round, stage)
            if found == "wait":
                self.pending.append((peer, asked))
            else:
                self.take(peer, found, asked)
        self.expire()

    def serve(self, peer: ModelledExchange, asked: float) -> None:
        """Serve one request, now or when its model is published."""
        stage = self.stages if isinstance(self.stages, str) else self.stages[peer.name]
        found = peer.outbox.find(self.round, stage)
        if found == "wait":
            peer.waiting.append((self.round, stage, partial(self.serve, peer, asked)))
        else:
            self.take(peer, found, asked)

    def take(self, peer: ModelledExchange, found: Published | Missing, asked: float) -> None:
        """Have `peer` answer a request that reached it at `asked`."""
        asker, links = self.asker, self.links
        sent, received = peer.traffic, asker.traffic
        sent.received_get += OVERHEAD
        if not self.round:
            sent.received_preparation += OVERHEAD
        peer.heard(asker, asker.round)
        if not isinstance(found, Published):
            sent.sent_control += OVERHEAD
            received.received_control += OVERHEAD
            when = max(asked, self.loop.now)
            self.add(peer.name, None, links.arrival(peer.name, asker.name, OVERHEAD, when))
            return
        update, published = found.update, found.time
        if peer.name in self.known:
            saved = peer.coding.whole - peer.coding.size(found, self.known[peer.name].tag)
            update = replace(update, size=update.size - saved)
        size = update.size
        sent.sent_models += 1
        sent.sent_update += size
        if not self.round:
            sent.sent_preparation += size
        when = asked if asked > published else published
        arrives = when if links.instant else links.arrival(peer.name, asker.name, size, when)
        if arrives is None:
            return
        received.received_models += 1
        received.received_update += size
        if not self.round:
            received.received_preparation += size
        if when > published or peer.outbox.final:  # else the update is handed over as it is
            update = replace(update, age=when - published, final=peer.outbox.final)
        if not self.add(peer.name, update, arrives):  # too late to be used, but it shows that the peer is there
            self.loop.call_at(arrives, asker.heard, peer, peer.round)
        elif peer.name in self.known:
            asker.coding.keep(peer.name, update.round, update.params, found.tag)


class _Turn:
    """Lets everything that can run at this instant run first."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class ModelledExchange:
    """One node's side of the world.

    Args:
        neighbours: whom it may fetch from; who may fetch from it is the reverse of that over all nodes.
        trainer: computes the losses that peers ask for.
        about: what it says of itself.
        coding: how models travel.
        private: whether it does not tell peers the losses of their models.
        sparse: whether the topology is not complete; see node.pacing.
    """

    def __init__(
        self,
        world: World,
        name: str,
        neighbours: Sequence[str],
        trainer: BatchedTrainer,
        n_samples: int,
        about: Mapping[str, Any],
        coding: Coding,
        private: bool = False,
        sparse: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.roster = Roster(neighbours)
        self.outbox = Outbox(world.synchronous)
        self.traffic = Traffic()
        self.expired = 0
        self.durable: Callable[[Published], Awaitable[None]] | None = None
        self.round: float = 0
        self._pacing = Pacing(world.settings.rounds, sparse=sparse)
        self.requesters: list[ModelledExchange] = []  # whoever may fetch from this node
        self.suspected_by: set[ModelledExchange] = set()
        self.trainer = trainer
        self.n_samples = n_samples
        self._about = {**about, "n_samples": n_samples}
        self.coding = coding
        self._private = private
        self._whole = OVERHEAD + coding.whole
        self._score_size = OVERHEAD + 4 * coding.layout.size  # float32, whatever the codec
        self.waiting: list[tuple[int, Stage, Callable[[], None]]] = []  # whom to call when a model is published
        self._paces: dict[int, list[tuple[ModelledExchange, _Gathering]]] = {}
        self._announced: dict[float, float] = {0: -inf}  # when the last rounds were reached
        self.step: Step | None = None
        self.whole: Callable[[Parameters], Parameters] = lambda params: params
        self.elected: Callable[[Elected], None] = lambda elected: None
        self.office = ModelledOffice(self)
        self._assigned_in: Term | None = None  # of the last assignment, if the last submission was answered by one
        world.join(self)

    async def start(self, tasks: TaskGroup) -> None:
        """There is nobody to wait for: all nodes of a world are there from the start."""

    def leave(self) -> None:
        """There is nobody to wait for."""

    async def close(self) -> None:
        """Nodes of a world go on serving until it ends."""

    def about(self, id: str) -> Mapping[str, Any]:
        return self.world.nodes[id]._about

    async def next_round(self, finished: int) -> int:
        world, loop = self.world, self.world.loop
        if world.fastest <= finished + 1 and world.slowest >= finished - 1:  # the usual case, without looking at neighbours
            return finished + 1
        ends = loop.now + world.settings.deadline
        while (round := self._following(finished)) == finished - 1 and loop.now < ends:
            waiter = loop.create_future()
            world.waiting.append(waiter)
            if ends < inf:
                loop.call_at(ends, _wake, waiter)
            await waiter
        if round <= finished:
            self._go_back(round)
        elif round > finished + 1 and round > self.round:
            self.outbox.skip(round)
            self._reach(round - 1)
        return round

    def _following(self, finished: int) -> int:
        """Return the round that follows, as far as this node knows of its neighbours."""
        nodes, now = self.world.nodes, self.world.loop.now
        rounds = [nodes[id]._known_round(self, now) for id in self.roster.neighbours]
        return self._pacing.following(finished, int(self.round), [int(round) for round in rounds if round < inf])

    def _go_back(self, round: int) -> None:
        self._pacing.went_back(round)
        self.outbox.rewind(round)
        self._reach(self.outbox.round)

    # Publishing

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        world = self.world
        if round > self.round:
            if world.synchronous and not world.all_know(round - 1):
                await self._pace(round)
            self._reach(round)
        public, tag = self.coding.publish(params)
        size = self._whole + (len(encode_extras(extras)) if extras else 0)
        update = Update(self.name, round, stage, public, self.n_samples, extras, False, 0.0, size)
        model = Published(update, world.loop.now, tag)
        if self.durable is not None:
            await self.durable(model)
        self.outbox.add(model)
        if self.waiting:
            self._answer()

    def finish(self) -> None:
        self.outbox.final = True
        self._reach(inf)
        self._answer()
        world = self.world
        if self.step is not None and (leader := world.leader()) is not None:  # who coordinates expects nothing more
            when = world.links.arrival(self.name, leader.id, OVERHEAD, world.loop.now)
            if when is not None:
                world.loop.call_at(when, world.nodes[leader.id].office.leave, self.name)

    def _reach(self, round: float) -> None:
        """Announce a round to those who wait for this node."""
        world = self.world
        world.moved(self.round, round)
        before, self.round = self.round, round
        if not world.links.instant:
            if round < before:
                self._announced = {r: when for r, when in self._announced.items() if r < round}
            self._announced[round] = world.loop.now
            if len(self._announced) > 4:
                del self._announced[min(self._announced)]
        for other in list(self.suspected_by):
            when = world.links.arrival(self.name, other.name, OVERHEAD, world.loop.now)
            if when is not None:
                world.loop.call_at(when, other.heard, self, round)
        if self._paces:
            for waited in [r for r in self._paces if r <= round]:
                for other, gathering in self._paces.pop(waited):
                    when = world.links.arrival(self.name, other.name, OVERHEAD, world.loop.now)
                    gathering.add(self.name, None, when)

    async def _pace(self, round: int) -> None:
        """Wait until whoever may ask for my models has reached the round before, at most half a deadline.

        Half, so that those who wait for this node do not lose it while it waits for another.
        """
        world, now = self.world, self.world.loop.now
        # Peers that are further behind than one round will catch up by going on where the others are.
        behind = [
            node
            for node in self.requesters
            if node.name not in self.roster.suspected and node._known_round(self, now) == round - 2
        ]
        if not behind:
            return
        gathering = _Gathering(world.loop, len(behind), world.settings.deadline / 2)
        for node in behind:
            if node.round >= round - 1:  # announced, but the news is still on its way
                reached = min(r for r in node._announced if r >= round - 1)
                gathering.add(node.name, None, node._announced[reached] + world.links.latency(node.name, self.name))
            else:
                node._paces.setdefault(round - 1, []).append((self, gathering))
        if not gathering.future.done():
            world.loop.call_at(gathering.expires, gathering.expire)
            if not await gathering.future:
                self.expired += 1
                for node in behind:
                    if node.name not in gathering.items:
                        self._suspect(node, f"did not reach round {round - 1} in time")

    def _known_round(self, other: ModelledExchange, now: float) -> float:
        """The round that `other` knows this node to have reached."""
        if self.world.links.instant:
            return self.round
        latency = self.world.links.latency(self.name, other.name)
        return max((r for r, when in self._announced.items() if when + latency <= now), default=self.round)

    def _answer(self) -> None:
        """Serve whoever waited for what was just published."""
        waiting, self.waiting = self.waiting, []
        for entry in waiting:
            if self.outbox.find(entry[0], entry[1]) == "wait":
                self.waiting.append(entry)
            else:
                entry[2]()

    # Fetching

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        world = self.world
        ids = sorted(self._reachable(ids))
        if not ids:
            return []
        self.traffic.sent_get += OVERHEAD * len(ids)
        if not round:
            self.traffic.sent_preparation += OVERHEAD * len(ids)
        known = self.coding.ask(ids)
        if world.synchronous and world.links.instant:
            await _Turn()  # then whoever trained as long has published too, and there is usually nothing to wait for
            at_once = None if known else self._take_at_once(ids, round, stages)
            if at_once is not None:
                return at_once
        fetch = _Fetch(self, ids, round, stages, known)
        if not fetch.future.done():
            world.open(fetch)
            await fetch.future
        items = fetch.items
        if fetch.left:
            self.expired += 1
            for id in ids:
                if id not in items:
                    self._suspect(world.nodes[id], f"missed the deadline of round {round}")
        fetch.items = {}  # those who serve it late may keep it for long
        updates = [items[id] for id in sorted(items) if items[id] is not None]
        if updates:
            self._pacing.exchanged()
        if not world.synchronous:
            updates = [u for u in updates if u.age <= world.settings.max_staleness]
        return updates

    def _take_at_once(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update] | None:
        """Do what _Fetch does where links cost nothing and every model is there, or return None where one is not."""
        nodes, now = self.world.nodes, self.world.loop.now
        found: list[tuple[ModelledExchange, Published]] = []
        for id in ids:
            peer = nodes[id]
            model = peer.outbox.models.get((round, stages if isinstance(stages, str) else stages[id]))
            if model is None:
                return None
            found.append((peer, model))
        updates, size = [], 0
        for peer, model in found:
            update, sent = model.update, peer.traffic
            sent.received_get += OVERHEAD
            sent.sent_models += 1
            sent.sent_update += update.size
            size += update.size
            if not round:
                sent.received_preparation += OVERHEAD
                sent.sent_preparation += update.size
            if peer.roster.suspected:
                peer.heard(self, self.round)
            if model.time < now or peer.outbox.final:
                update = replace(update, age=now - model.time, final=peer.outbox.final)
            updates.append(update)
        self.traffic.received_models += len(updates)
        self.traffic.received_update += size
        if not round:
            self.traffic.received_preparation += size
        return updates

    def _reachable(self, ids: Sequence[str]) -> Sequence[str]:
        """Leave out whom the topology does not let this node fetch from: a policy may ask for anyone, no peer heeds it."""
        if ids is self.roster.ids:
            return ids
        around = self.roster.neighbours
        places = [(id, bisect_left(around, id)) for id in ids]
        return [id for id, place in places if place < len(around) and around[place] == id]

    def expected(self, id: str, round: int) -> int:
        return self.coding.expected(id, round)

    # Scoring

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        loop, links = self.world.loop, self.world.links
        ids = self._reachable(ids)
        if not ids:
            return {}
        gathering = _Gathering(loop, len(ids), self.world.settings.deadline)
        for id in ids:
            self.traffic.sent_score += self._score_size
            arrives = links.arrival(self.name, id, self._score_size, loop.now)
            if arrives is not None:
                loop.call_at(arrives, self.world.nodes[id]._score, self, gathering, params)
        self.world.open(gathering)
        if not await gathering.future:
            self.expired += 1
            for id in ids:
                if id not in gathering.items:
                    self._suspect(self.world.nodes[id], f"missed the deadline of round {round}")
        return {id: loss for id, loss in sorted(gathering.items.items()) if isfinite(loss)}

    def _score(self, other: ModelledExchange, gathering: _Gathering, params: Parameters) -> None:
        self.traffic.received_score += self._score_size
        future = asyncio.ensure_future(self.trainer.loss([self.whole(params)], split="train"), loop=self.world.loop)

        def reply(done: Future[Any]) -> None:
            self.traffic.sent_scored += OVERHEAD
            when = self.world.links.arrival(self.name, other.name, OVERHEAD, self.world.loop.now)
            if when is not None:
                other.traffic.received_scored += OVERHEAD
                gathering.add(self.name, nan if self._private else self._loss_told(float(done.result()[0])), when)

        future.add_done_callback(reply)

    def _loss_told(self, loss: float) -> float:
        return loss if self.world.settings.robust == "none" else coarse(loss)

    # Submitting: see sim.coordination

    def resume(self, round: int, params: Parameters) -> None:
        """Every node begins with the first round."""

    async def submit(self, submission: Submission) -> Assignment | None:
        world = self.world
        loop, links = world.loop, world.links
        if submission.round > self.round:
            self._reach(submission.round)
        leader = world.leader()
        known, self._assigned_in = self._assigned_in, None
        if leader is None:
            return None
        if known == leader.term:
            submission = replace(submission, start=None)
        answer = _Gathering(loop, 1, world.settings.deadline)
        coordinator, arrives = world.nodes[leader.id], loop.now
        if coordinator is not self:
            size = size_of(submission, self.coding.whole)
            self.traffic.sent_models += 1
            self.traffic.sent_submit += size
            sent = links.arrival(self.name, leader.id, size, loop.now)
            if sent is None:
                arrives = inf
            else:
                arrives = sent
                coordinator.traffic.received_models += 1
                coordinator.traffic.received_submit += size
        if arrives < inf:
            loop.call_at(arrives, coordinator.office.take, leader.term, submission, self, answer)
        world.open(answer)
        if not await answer.future:
            self.expired += 1
            return None
        assignment: Assignment | None = answer.items[leader.id]
        if assignment is not None:
            self._assigned_in = leader.term
        return assignment

    # Suspicion: see node.messaging.MessageExchange._heard

    def heard(self, peer: ModelledExchange, round: float) -> None:
        """A message of a peer has come that says that it is at a round."""
        if peer.name in self.roster.suspected and (not self.world.synchronous or round >= self.round - 1):
            self.roster.heard(peer.name)
            peer.suspected_by.discard(self)

    def _suspect(self, peer: ModelledExchange, reason: str) -> None:
        """Leave a peer out, and probe it."""
        self.roster.suspect(peer.name, reason)
        peer.suspected_by.add(self)
        self._probe(peer)

    def _probe(self, peer: ModelledExchange) -> None:
        there = self.world.links.arrival(self.name, peer.name, OVERHEAD, self.world.loop.now)
        if there is None:
            self.world.loop.call_later(1.0, self._probe_again, peer)
        else:
            self.world.loop.call_at(there, self._probed, peer)

    def _probed(self, peer: ModelledExchange) -> None:
        back = self.world.links.arrival(peer.name, self.name, OVERHEAD, self.world.loop.now)
        if back is None:
            self.world.loop.call_later(1.0, self._probe_again, peer)
        else:
            self.world.loop.call_at(back, self.heard, peer, peer.round)

    def _probe_again(self, peer: ModelledExchange) -> None:
        if peer.name in self.roster.suspected:
            self._probe(peer)
