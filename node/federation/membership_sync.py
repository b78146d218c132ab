"""Synchronisation of a node's peers with its membership log, and of the log with its file."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.membership_file import MEMBERSHIP, MembershipFile
from p2pfl.node.federation.neighbourhood import Neighbourhood
from p2pfl.node.federation.revocation import check_member
from p2pfl.node.log import LOG
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.protocols.membership.log import LIMIT
from p2pfl.system.atomic_files import DiskErrorReporter
from p2pfl.system.event_log import EventLogger

LOOKING = 1.0  # seconds between checks of the file, which commands may change, and between attempts to write


class MembershipSync:
    """Synchronisation of a node's membership log with its file, its peers and its elections.

    Args:
        key: this node's public key.
        neighbourhood: derives the peers and the voters from the log.
        contacts: the peers.
        electing: this node's part in elections, if its policy is coordinated.
        file: file of the log; by default the one in the node's folder.
        log: receives an event about each member that is added or removed.
    """

    def __init__(
        self,
        ready: LoadedNode,
        key: bytes,
        neighbourhood: Neighbourhood,
        contacts: PeerManager,
        electing: ElectionRunner | None = None,
        *,
        file: MembershipFile | None = None,
        log: EventLogger = LOG,
    ) -> None:
        assert ready.membership is not None
        self._key = key
        self._membership = ready.membership
        self._neighbourhood = neighbourhood
        self._contacts = contacts
        self._electing = electing
        self._folder = ready.folder
        self._file = file or MembershipFile(ready.folder)
        self._tries = DiskErrorReporter(ready.folder / MEMBERSHIP, "the membership log", log)
        self._grown = asyncio.Event()
        self._log = log
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
            if self._file.has_changed() or self._file.membership_version != self._membership.membership_version:
                await self._synchronise()
            if self._membership.accepted_revocation is not None:
                with self._tries.tolerate():
                    await asyncio.to_thread(self._file.save_revocation, *self._membership.accepted_revocation)
            check_member(self._membership, self._key, self._folder)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKING):
                    await self._grown.wait()

    async def _synchronise(self) -> None:
        """Read new entries from the file, and write missing ones, without blocking the node."""
        whole = self._membership.copy()
        await asyncio.to_thread(self._file.merge, whole)
        if whole.membership_version != self._file.membership_version:
            with self._tries.tolerate():
                await asyncio.to_thread(self._file.save, whole)
        self._membership.extend(whole.after(self._membership.membership_version, LIMIT))

    def _process_entries(self) -> None:
        """Apply new entries of the log, pass them on to the peers, and schedule their writing."""
        contacts, membership_version = self._contacts, self._membership.membership_version
        self._grown.set()
        now = self._neighbourhood.members()
        for name, peer in list(contacts.peers.items()):
            if name not in now or now[name].key != peer.key:
                contacts.remove(name, "revoked")
                self._log.info(
                    f"{name} is no longer a member (membership version {membership_version})",
                    kind="member-removed",
                    peer=name,
                    membership_version=membership_version,
                )
        for name, member in now.items():
            if name not in contacts.peers:
                self._log.info(
                    f"{name} is a new member (membership version {membership_version})",
                    kind="member-added",
                    peer=name,
                    membership_version=membership_version,
                )
                contacts.add(name, member, self._neighbourhood.may_learn_from(name))
        if self._electing is not None:
            self._electing.change(self._neighbourhood.electorate())
        contacts.gossip_membership()
