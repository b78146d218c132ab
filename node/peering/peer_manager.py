"""Manager of a node's peers, and of the messages to and from them.

A peer is silent until it has been introduced: both sides send the settings that must be equal
(p2pfl.node.peering.links). Each frame is verified in one place (p2pfl.node.peering.links) and
routed to the part that handles it (p2pfl.node.peering.links). Disconnected peers are dialled
(p2pfl.node.peering.dialler), and silent ones are probed (p2pfl.node.peering.peer_table). Messages about learning go
to the exchange.
"""

from __future__ import annotations

import asyncio
from asyncio import Task, TaskGroup
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from p2pfl.node.peering.dialler import Dialler
from p2pfl.node.peering.links import IncarnationCheck, Introducer, LinkHandler, MembershipGossip, MessageRouter
from p2pfl.node.peering.peer import BackgroundTasks, Member, Messenger, Peer, Traffic
from p2pfl.node.peering.peer_table import PeerEvents, PeerTable, Prober
from p2pfl.node.peering.peering_config import LocalState, PeeringConfig
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, Payload


class PeerManager:
    """Manager that keeps a node connected to its peers.

    Args:
        events: receives the peers' messages about learning.

    Attributes:
        public_info: public information about this node.
        view: the peers with which it may learn.
        traffic: counts sent and received frames and bytes.
        rejected: counts refused or lost frames by cause.
        numbers: generates the numbers of requests.
        broker: the current problem of the broker; "" if there is none.
        listening: set once peers can dial this node.
        on_listening: called then.
        introducer: introduces this node over new links.
        gossip: exchanges entries of the membership log.
        links: handles the frames of its transport.
    """

    def __init__(self, config: PeeringConfig, events: PeerEvents) -> None:
        self.name = config.name
        self.transport, self.signer, self.verifier = config.transport, config.signer, config.verifier
        self.traffic = Traffic()
        self.broker = ""
        self.listening = asyncio.Event()
        self.on_listening: list[Callable[[], None]] = []
        self._local = local = LocalState(config.name, config.public_info)
        self._table = table = PeerTable(config, local, events)
        self._tasks = tasks = BackgroundTasks()
        self._messenger = messenger = Messenger(config.signer, table.view, self.traffic)
        self.gossip = gossip = MembershipGossip(config.options.access, messenger)
        self._prober = prober = Prober(local, table, messenger)
        self.introducer = introducer = Introducer(config, local, table, messenger, gossip)
        self._dialler = Dialler(config, table, messenger, introducer, tasks)
        incarnations = IncarnationCheck(config, messenger, tasks)
        router = MessageRouter(
            events,
            table,
            self.traffic,
            introducer=introducer,
            incarnations=incarnations,
            prober=prober,
            gossip=gossip,
        )
        self.links = LinkHandler(
            config,
            events,
            table=table,
            messenger=messenger,
            tasks=tasks,
            incarnations=incarnations,
            router=router,
        )
        self.public_info, self.view = local.public_info, table.view
        self.rejected, self.numbers = messenger.rejected, messenger.numbers
        self._probes = config.options.period < inf
        if config.options.discovery is not None:
            config.options.discovery.subscribe(self)

    # Lifecycle

    async def start(self, tasks: TaskGroup) -> None:
        """Listen for connections, and connect to all peers.

        Raises:
            TransportError: the address cannot be bound.
        """
        self._tasks.start(tasks)
        await self.transport.listen(self.links)
        self.listening.set()
        for report in self.on_listening:
            report()
        for peer in self.peers.values():
            self._dialler.keep(peer)
        if self._probes:
            self.begin(self._prober.run(), f"{self.name}: failure detector")

    async def close(self) -> None:
        """Tell all peers that this node leaves, and close their links."""
        for peer in self.introduced_peers():
            self.tell(peer, m.Bye(self.round, leaving=True))
        self._tasks.cancel()
        await self.transport.close()

    @property
    def round(self) -> int:
        """The newest round that this node has reached."""
        return self._local.round

    @round.setter  # noqa: A003 (a word of the field)
    def round(self, round: int) -> None:
        self._local.round = round

    @property
    def final(self) -> bool:
        """Return whether the model of this node is final."""
        return self._local.final

    @final.setter
    def final(self, final: bool) -> None:
        self._local.final = final

    # Peers

    @property
    def peers(self) -> dict[str, Peer]:
        """The neighbours by name, sorted."""
        return self._table.peers

    def introduced_peers(self) -> list[Peer]:
        """Return the peers that are connected and introduced."""
        return self._table.introduced_peers()

    def add(self, name: str, member: Member, source: bool = True) -> None:
        """Add a member as a peer and start to connect to it. Do nothing if it is a peer already.

        Args:
            source: whether this node may learn from it.
        """
        if name in self.peers and self.peers[name].key == member.key:
            return
        if name in self.peers:
            self.remove(name, "has another key now")
        self.verifier.admit(name, member.key)
        self._dialler.keep(self._table.add(name, member, source))

    def remove(self, name: str, reason: str) -> None:
        """Disconnect a former member, and drop its pending messages. It first receives the entry that removes it."""
        if self.peers[name].introduced:
            self.gossip.send(self.peers[name])
        peer = self._table.remove(name)
        self.verifier.expel(peer.key)
        self._dialler.forget(peer)
        if peer.link is not None:
            self.rejected[reason] += 1
            peer.link.close()
            peer.link = None
        self.transport.expel(peer.key)  # it may have other links than the one in use
        peer.problem = reason
        peer.repetition.cancel()
        peer.give_up()
        self.notify()

    def gossip_membership(self) -> None:
        """Send the peers the entries of the membership log that they lack."""
        for peer in self.introduced_peers():
            self.gossip.send(peer)

    # Reports about members (see p2pfl.node.peering.peering_config.DiscoveryEvents)

    def knows(self, beginning: bytes) -> bool:
        """Return whether a neighbour's key begins with these bytes."""
        return self._table.knows(beginning)

    def found(self, key: bytes, address: str, source: str) -> None:
        """Record an address at which a member may be reachable."""
        if (peer := self._table.with_key(key)) is not None:
            self._dialler.found(peer, address, source)

    def hinted(self, key: bytes) -> None:
        """Probe a member that may be gone."""
        if (peer := self._table.with_key(key)) is not None and peer.introduced:
            self._messenger.ping(peer)

    def broker_changed(self, problem: str) -> None:
        """Record the current problem of the broker, and update the status."""
        self.broker = problem
        self.view.notify()

    # Suspicion

    def suspect(self, peer: Peer, reason: str) -> None:
        """Stop waiting for a peer until its next message."""
        self._table.suspect(peer, reason)

    def check(self, peer: Peer) -> None:
        """Ask a peer for its current round. A frame with a long transit time may have named an older one."""
        self._prober.check(peer)

    # Messages

    def resolve(self, peer: Peer, number: int, answer: Any) -> None:
        """Resolve a request with its answer, or with None if there will be none, even if no task waits for it."""
        self._table.resolve(peer, number, answer)

    def send(self, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        """Send a message to an introduced peer.

        Raises:
            TransportError: the peer is not connected.
        """
        self._messenger.send(peer, message, payload)

    def tell(self, peer: Peer, message: m.Message) -> None:
        """Send a message; ignore its loss."""
        self._messenger.try_send(peer, message)

    # Waiting

    def notify(self) -> None:
        """Report a change for which a task may wait."""
        self._table.changes.notify()

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a change makes `condition` true. Return False if that took longer than `seconds`."""
        return await self._table.changes.until(condition, seconds)

    def begin(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task[None]:
        """Run a coroutine until the node ends. An error in it ends the node."""
        return self._tasks.spawn(coroutine, name)

    def serve(self, link: Link | None, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run the work that a frame of a link requested. An error in it ends only that link."""
        self.links.serve(link, work, name)
