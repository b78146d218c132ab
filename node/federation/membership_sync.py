"""Synchronisation of a node's peers with its membership log, and of the log with its file.

While a node runs, commands add entries to the log on its disk, and peers send entries of theirs. `MembershipSync` merges
both, and applies the result to peers, links and elections. `Neighbourhood` derives from the log and the topology what
each other member is to this node: a peer, a source of models, an asker, a voter.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256

from p2pfl._util.atomic_files import DiskErrorReporter
from p2pfl._util.event_log import EventLogger
from p2pfl.node.coordination.election_runner import ElectionRunner, committee_electorate
from p2pfl.node.federation.agreement import graphs_of, neighbours, ring_rule
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.membership_file import MEMBERSHIP, MembershipFile, check_member, describe_fork
from p2pfl.node.federation.rule_links import RuleLinks
from p2pfl.node.log import LOG
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peering_config import Member
from p2pfl.protocols.election import Electorate
from p2pfl.topologies.rings import RingRule
from p2pfl.topologies.schedules import NamedSchedule

LOOKING = 5.0  # seconds between checks of the file, which commands may change, and between attempts to write


class MembershipSync:
    """Synchronisation of a node's membership log with its file, its peers and its elections.

    Args:
        key: this node's public key.
        neighbourhood: derives the peers and the voters from the log.
        peering: the peers.
        election: this node's part in elections, if its policy is coordinated.
        file: file of the log; by default the one in the node's folder.
        log: receives an event about each member that is added or removed.
    """

    def __init__(
        self,
        ready: LoadedNode,
        key: bytes,
        neighbourhood: Neighbourhood,
        peering: PeerManager,
        election: ElectionRunner | None = None,
        *,
        file: MembershipFile | None = None,
        log: EventLogger = LOG,
    ) -> None:
        assert ready.membership is not None
        self._key = key
        self._membership = ready.membership
        self._neighbourhood = neighbourhood
        self._peering = peering
        self._election = election
        self._folder = ready.folder
        self._file = file or MembershipFile(ready.folder, log=log)
        self._tries = DiskErrorReporter(ready.folder / MEMBERSHIP, "the membership log", log)
        self._grown = asyncio.Event()
        self._was_complete = self._membership.is_complete
        self._log = log
        self._seen = self._membership.membership_version  # the newest entry that was processed
        self._ended = self._membership.ended
        self._fork_kept = self._membership.fork is not None
        self._membership.on_change.append(self._process_entries)

    async def run(self) -> None:
        """Synchronise the log and its file without end: commands write to the file, and peers send entries.

        Entries that cannot be written are kept in memory and written as soon as possible.

        Raises:
            RevokedError: this node is no longer a member.
            ConfigurationError: it never was a member.
        """
        while True:
            self._grown.clear()
            if self._file.has_changed() or self._file.lacks(self._membership):
                await self._synchronise()
            if self._membership.accepted_revocation is not None:
                with self._tries.tolerate():
                    await asyncio.to_thread(self._file.save_revocation, *self._membership.accepted_revocation)
            if self._membership.fork is not None and not self._fork_kept:
                await self._keep_fork(self._membership.fork)
            check_member(self._membership, self._key, self._folder)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKING):
                    await self._grown.wait()

    async def _synchronise(self) -> None:
        """Read new entries from the file, and write missing ones, without blocking the node."""
        whole = self._membership.copy()
        await asyncio.to_thread(self._file.merge, whole)
        if self._file.lacks(whole):
            with self._tries.tolerate():
                await asyncio.to_thread(self._file.save, whole)
        self._membership.catch_up(whole)

    async def _keep_fork(self, proof: tuple[bytes, bytes]) -> None:
        """Write the proof of a fork, and tell people about it once."""
        with self._tries.tolerate():
            await asyncio.to_thread(self._file.save_fork, proof)
            self._fork_kept = True
            self._log.error(describe_fork(self._membership), kind="membership-fork")

    def _process_entries(self) -> None:
        """Apply new entries of the log, pass them on to the peers, and schedule their writing.

        The cost is that of the entries, not of the members: most entries are about members that do not concern this node.
        """
        self._grown.set()
        arrived = self._membership.is_complete and not self._was_complete
        changed = None if arrived else self._membership.names_after(self._seen)
        if arrived:
            self._was_complete = True
            self._log.info(
                f"the membership log is complete: {len(self._membership.members):,} members",
                kind="log-complete",
                membership_version=self._membership.membership_version,
            )
        self._seen = self._membership.membership_version
        self._neighbourhood.update(changed)
        self.follow(changed or ())
        self._peering.forget_released()
        if self._election is not None:
            self._election.change(self._neighbourhood.electorate())
        before, self._ended = self._ended, self._membership.ended
        self._peering.gossip.spread(urgent=self._ended > before)
        if arrived:
            self._peering.notify()  # the node may wait for it

    def follow(self, changed: Collection[str] = ()) -> None:
        """Make the peers those members that concern this node now.

        Args:
            changed: names of members that new entries are about. Others are new neighbours because a rule or a change of
                the committee has made them so.
        """
        peering, membership_version = self._peering, self._membership.membership_version
        now, links = self._neighbourhood.members(), self._neighbourhood.links
        dialled, sources = links.dialled() if links is not None else set(), self._neighbourhood.sources(now)
        for name, peer in list(peering.peers.items()):
            if name not in now and self._membership.member(name) is not None and not self._membership.refusal(peer.key):
                peering.release(name)
            elif name not in now or now[name].key != peer.key:
                peering.remove(name, "revoked")
                self._log.info(
                    f"{name} is no longer a member (membership version {membership_version})",
                    kind="member-removed",
                    peer=name,
                    membership_version=membership_version,
                )
        for name, member in now.items():
            if name not in peering.peers:
                if name in changed:
                    self._log.info(
                        f"{name} is a new member (membership version {membership_version})",
                        kind="member-added",
                        peer=name,
                        membership_version=membership_version,
                    )
                peering.add(name, member, name in sources)
            if links is not None:
                peering.set_way(name, dialled=name in dialled, source=name in sources)


class Neighbourhood:
    """Members that concern a node: its peers, the peers from which it learns, and the voters.

    Args:
        addresses: addresses that are the same for every member, such as the broker's.
        coordinated: whether the policy has a coordinator. It may be any member, so this node connects to all of them,
            whatever the topology is. In a federation with a committee the members of the committee do so. The others connect
            to those, and to the next two members in the ring of names, so that the log reaches them without a committee.
        rule: of the rings, such as one that shares its places with other nodes in this process; by default a new one.

    Attributes:
        rounds: the graph of each round, if the federation has a topology with one for each. Its nodes are the members
            that are no observers. This node connects to all of them: with each member that comes or goes, nearly all
            graphs change, and links that are there need not be made for a round.
        links: the links by the rule, if the federation has rings. Observers have places, too; nobody fetches from them.
    """

    def __init__(
        self, ready: LoadedNode, addresses: Sequence[str], coordinated: bool = False, rule: RingRule | None = None
    ) -> None:
        assert ready.membership is not None
        assert ready.agreement is not None
        self._name = ready.config.name
        self._log = ready.membership
        self._edges = ready.agreement.edges
        self._links: dict[str, set[str]] | None = None  # of each member, once they are needed
        self._configured = ready.config.addresses
        self._addresses = tuple(addresses)
        self._coordinated = coordinated
        agreed = ready.agreement
        self.rounds: NamedSchedule | None = None
        self.links: RuleLinks | None = None
        if (rule := rule or ring_rule(agreed.topology, agreed.seed)) is not None:
            rule.change(self._log.added)
            self.links = RuleLinks(rule, self._name)
        elif agreed.topology:
            self.rounds = NamedSchedule(partial(graphs_of, agreed.topology, agreed.seed), self._learning())

    def update(self, changed: Collection[str] | None = None) -> None:
        """Compute the neighbours by a rule from the members that the log has now.

        Args:
            changed: names of the members that new entries are about; None to compare all.
        """
        if self.links is not None:
            self.links.rule.change(self._log.added, changed)
        if self.rounds is not None:
            self.rounds.change(self._learning())

    def _learning(self) -> list[str]:
        """Return the names of the members that are no observers."""
        return [name for name, member in self._log.members.items() if member.role != "observer"]

    def members(self) -> dict[str, Member]:
        """Return the members with which this node may exchange messages, by name."""
        found = {}
        for name in sorted(self._near()):
            known = (self._configured[name],) if name in self._configured else ()
            if (member := self._log.member(name)) is not None:
                found[name] = Member(member.key, (*known, *self._addresses))
        return found

    def _near(self) -> set[str]:
        """Return the names of the members with which this node may exchange messages."""
        if self.links is not None:  # without a list of everyone, which each entry would sort again
            return self.links.names(asyncio.get_running_loop().time())
        everyone, epochs = self._log.members, self._log.committees.epochs
        if not self._coordinated:
            return neighbours(self._edges, self._name, everyone)
        leaders = {name for epoch in epochs for name in epoch.members if name in everyone}
        if not epochs or self._name in leaders:
            return neighbours("all", self._name, everyone)
        ring = list(everyone)
        at = bisect_left(ring, self._name)
        return (leaders | {ring[at - 1], ring[(at + 1) % len(ring)]}) - {self._name}

    def told(self, newcomer: str) -> list[str] | None:
        """Return the members that a newcomer must know to begin, the most important ones first; None if it must know all.

        It must know all if they elect a coordinator, or if each round has a graph of all of them. Otherwise these are this
        node, which admits it, and its neighbours. Of very many neighbours, or with rings that change, the next ones are
        others for each newcomer. By a rule the newcomer computes the same neighbours from them as from all members, because
        no other member has a place between those that are next to each other. With rings that change this holds for the
        round of this node only, and the newcomer waits for the log before it learns (`has_log`).
        """
        if self._coordinated or self.rounds is not None:
            return None
        everyone = self._log.members.keys() - {self._name, newcomer}
        first: set[str] = set()
        if self.links is not None:
            first = self.links.rule.neighbours(newcomer, self.links.round) & everyone
            rest = everyone - first if self.links.rule.changing else set()
        else:
            rest = neighbours(self._edges, newcomer, everyone)
        drawn = sorted(rest, key=lambda name: sha256(f"{newcomer}\0{name}".encode()).digest())
        return [self._name, *sorted(first), *drawn]

    @property
    def needs_log(self) -> bool:
        """Whether a newcomer needs all members in its first round, because each of them may be its neighbour."""
        return self._coordinated or not self.sparse or (self.links is not None and self.links.rule.changing)

    def has_log(self) -> bool:
        """Return whether the neighbours of each round follow from the log as far as it is here.

        With rings that change, any member may be a neighbour in a later round. A newcomer therefore needs the whole log.
        """
        return self.links is None or not self.links.rule.changing or self._log.is_complete

    @property
    def outside_committee(self) -> bool:
        """Whether this node has links with some members only, because a committee elects the coordinator."""
        epochs = self._log.committees.epochs
        return self._coordinated and bool(epochs) and all(self._name not in epoch.members for epoch in epochs)

    def known(self) -> int:
        """Return the number of members of the federation."""
        return self._log.size

    def sources(self, names: Iterable[str]) -> set[str]:
        """Return those of `names` whose models this node may learn from."""
        if self.links is not None:
            near = self.links.sources().intersection(names)
        elif self._edges == "all":
            near = set(names) - {self._name}
        else:
            near = self._linked(self._name).intersection(names)
        found = {name: self._log.member(name) for name in near}
        return {name for name, member in found.items() if member is not None and member.role != "observer"}

    @property
    def sparse(self) -> bool:
        """Whether the graph of the members that exchange models is incomplete."""
        return self._edges != "all" or self.links is not None

    @property
    def knows_graph(self) -> bool:
        """Whether all members know with whom each has links, in all rounds."""
        return self._edges != "all" or (self.links is not None and not self.links.rule.changing)

    def askers(self) -> set[str] | None:
        """Return the names of the nodes that may fetch from this node, members or not; None for all."""
        if self._edges == "all":
            return None
        return neighbours(self._edges, self._name, {name for pair in self._edges for name in pair})

    def around(self, name: str) -> set[str]:
        """Return the members with which a member exchanges models, and so has links."""
        if self._edges == "all" and self.links is None:
            return set(self._log.members) - {name}
        near = self._linked(name) if self.links is None else self.links.rule.neighbours(name, self.links.round)
        return {other for other in near if self._log.member(other) is not None}

    def _linked(self, name: str) -> set[str]:
        """Return the nodes, members or not, to which edges of a list lead from a member."""
        assert self._edges != "all"
        if self._links is None:
            self._links = {}
            for one, other in self._edges:
                self._links.setdefault(one, set()).add(other)
                self._links.setdefault(other, set()).add(one)
        return self._links.get(name, set())

    def electorate(self) -> Electorate:
        """Return the members that vote for a coordinator."""
        return committee_electorate(self._log)
