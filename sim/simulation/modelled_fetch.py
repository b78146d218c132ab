"""Fetches of simulated nodes: one event each, at the arrival time of the last model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from p2pfl.compression.sparse_updates import Copy
from p2pfl.node.exchange.published_models import Missing, Published
from p2pfl.policy import Stage, Update
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.simulation.gather import Gather
from p2pfl.sim.simulation.modelled_network import ModelledPeer, Waiting


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
        known: Mapping[str, Copy],
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
            stage = self.stage_of(peer)
            found = peer.outbox.find(self.round, stage)
            if found == "wait":
                peer.waiting.append(Waiting(self.asker.name, self.round, stage, self.advance))
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
        stage = self.stage_of(peer)
        found = peer.outbox.find(self.round, stage)
        if found == "wait":
            peer.waiting.append(Waiting(self.asker.name, self.round, stage, partial(self.serve, peer, asked)))
        else:
            self.take(peer, found, asked)

    def stage_of(self, peer: ModelledPeer) -> Stage:
        """Return the stage of the model that is requested from a peer."""
        return self.stages if isinstance(self.stages, str) else self.stages[peer.name]

    def take(self, peer: ModelledPeer, found: Published | Missing, asked: float) -> None:
        """Have `peer` answer a request that arrived at `asked`."""
        asker = self.asker
        if not isinstance(found, Published) or asker.name in peer.roster.left_out:
            self._refuse(peer, max(asked, self.loop.now))
            return
        update = found.update
        if peer.name in self.known:
            saved = peer.coding.whole - peer.coding.size(found, self.known[peer.name].tag)
            update = replace(update, size=update.size - saved)
        when = asked if asked > found.time else found.time
        arrives = self._carry(peer, update.size, when)
        if arrives is None:
            return
        update = peer.outbox.as_sent(update, found.age(when))
        if peer.forge is not None:
            update = peer.forge(asker.name, update)
        if asker.receipts is not None:
            asker.receipts.take(peer, update)
        if not self.add(peer.name, update, arrives):  # too late to be used, but it shows that the peer is alive
            self.loop.call_at(arrives, asker.heard, peer, peer.round if asker.network.steady else 0)
        elif peer.name in self.known:
            asker.coding.keep(peer.name, update.round, update.params, found.tag)

    def _count(self, peer: ModelledPeer) -> None:
        """Count a request that `peer` receives."""
        peer.traffic.received_get += OVERHEAD
        if not self.round:
            peer.traffic.received_preparation += OVERHEAD
        peer.heard(self.asker, self.round)

    def _refuse(self, peer: ModelledPeer, when: float) -> None:
        """Count the answer of a peer that it has no model; it names the peer's round."""
        asker = self.asker
        peer.traffic.sent_control += OVERHEAD
        asker.traffic.received_control += OVERHEAD
        arrives = self.links.arrival(peer.name, asker.name, OVERHEAD, when)
        self.add(peer.name, None, arrives)
        if arrives is not None and not asker.network.steady:
            self.loop.call_at(arrives, asker.heard, peer, peer.round)

    def _carry(self, peer: ModelledPeer, size: int, when: float) -> float | None:
        """Count a model that `peer` sends at `when`; return its time of arrival, or None if it is lost."""
        sent, received = peer.traffic, self.asker.traffic
        sent.sent_models += 1
        sent.sent_update += size
        if not self.round:
            sent.sent_preparation += size
        arrives = when if self.links.instant else self.links.arrival(peer.name, self.asker.name, size, when)
        if arrives is not None:
            received.received_models += 1
            received.received_update += size
            if not self.round:
                received.received_preparation += size
        return arrives


def fetch_at_once(
    asker: ModelledPeer, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]
) -> list[Update] | None:
    """Do the work of a Fetch if links cost nothing and every model is published; return None if one is not."""
    peers, now = asker.network.peers, asker.network.loop.now
    found: list[tuple[ModelledPeer, Published]] = []
    for id in ids:
        peer = peers[id]
        if asker.name in peer.roster.left_out:
            return None
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
            peer.heard(asker, asker.round)
        if model.time < now or peer.outbox.final:
            update = peer.outbox.as_sent(update, model.age(now))
        if peer.forge is not None:
            update = peer.forge(asker.name, update)
        if asker.receipts is not None:
            asker.receipts.take(peer, update)
        updates.append(update)
    received = asker.traffic
    received.received_models += len(updates)
    received.received_update += size
    if not round:
        received.received_preparation += size
    return updates
