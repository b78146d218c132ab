"""Keeps a node's contacts as the membership log says, and the log in memory and its file alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from node.agreement import neighbours
from node.contact import Contacts
from node.electing import Electing, electorate
from node.files import Tries
from node.membership_file import MEMBERSHIP, MembershipFile
from node.peer import Member
from node.setup import Setup
from p2pfl.errors import ConfigurationError
from protocols.membership import LIMIT
from protocols.terms import Electorate

LOOKING = 1.0  # seconds between looks at the file, which commands change while the node runs, and between attempts to write


class RevokedError(ConfigurationError):
    """This node is no member any more."""


class Members:
    """
    Args:
        key: this node's public one.
        reach: addresses that are the same for every member, such as the broker's.
        say: is told who comes and goes.
        coordinated: the policy has a coordinator, who may be any member: this node gets in touch with all of them, whatever
            the topology is.
    """

    def __init__(
        self, ready: Setup, key: bytes, reach: Sequence[str], say: Callable[[str], None], coordinated: bool = False
    ) -> None:
        assert ready.membership is not None
        assert ready.agreement is not None
        self._name = ready.config.name
        self._key = key
        self._log = ready.membership
        self._edges = ready.agreement.edges
        self._addresses = ready.config.addresses
        self._reach = tuple(reach)
        self._file = MembershipFile(ready.folder)
        self._tries = Tries(ready.folder / MEMBERSHIP, "the membership log", say)
        self._grown = asyncio.Event()
        self._say = say
        self._coordinated = coordinated
        self._contacts: Contacts | None = None
        self._electing: Electing | None = None

    def around(self) -> dict[str, Member]:
        """Return the members with which this node may exchange anything, by name."""
        found = {}
        for name in sorted(neighbours("all" if self._coordinated else self._edges, self._name, self._log.members)):
            known = (self._addresses[name],) if name in self._addresses else ()
            found[name] = Member(self._log.members[name].key, (*known, *self._reach))
        return found

    def learned_from(self, name: str) -> bool:
        """Return whether this node may learn from a member's models; not from those of an observer."""
        near = name in neighbours(self._edges, self._name, self._log.members)
        return near and self._log.members[name].role != "observer"

    def askers(self) -> set[str] | None:
        """Return who may fetch from this node, members or not; None for everyone."""
        return (
            None if self._edges == "all" else neighbours(self._edges, self._name, {n for pair in self._edges for n in pair})
        )

    def electorate(self) -> Electorate:
        """Return who elects a coordinator."""
        return electorate(self._log.epoch, self._log.members.values())

    def keep(self, contacts: Contacts, electing: Electing | None = None) -> None:
        """Have the contacts, and the elections, follow the log from now on."""
        self._contacts = contacts
        self._electing = electing
        self._log.on_change.append(self._changed)

    async def run(self) -> None:
        """Keep the log and its file alike, for ever: commands write to the file, and peers tell of entries.

        What cannot be written is kept in memory, and written as soon as that is possible.

        Raises:
            RevokedError: this node is no member any more.
        """
        while True:
            self._grown.clear()
            if self._file.changed() or self._file.epoch != self._log.epoch:
                await self._synchronise()
            if self._log.refusal(self._key):
                raise RevokedError("this node was revoked: it is no member of its federation any more")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKING):
                    await self._grown.wait()

    async def _synchronise(self) -> None:
        """Take in what is in the file, and write what is not. The node does other things in the meantime."""
        whole = self._log.copy()
        await asyncio.to_thread(self._file.merge, whole)
        if whole.epoch != self._file.epoch:
            with self._tries.go_on():
                await asyncio.to_thread(self._file.save, whole)
        self._log.extend(whole.after(self._log.epoch, LIMIT))

    def _changed(self) -> None:
        """The log has grown: act on it, tell the neighbours, and have it written."""
        contacts = self._contacts
        assert contacts is not None
        self._grown.set()
        now = self.around()
        for name, peer in list(contacts.peers.items()):
            if name not in now or now[name].key != peer.key:
                contacts.expel(name, "revoked")
                self._say(f"{name} is no member any more, since epoch {self._log.epoch} at the latest")
        for name, member in now.items():
            if name not in contacts.peers:
                contacts.admit(name, member, self.learned_from(name))
                self._say(f"{name} is a member, since epoch {self._log.epoch} at the latest")
        if self._electing is not None:
            self._electing.change(self.electorate())
        contacts.spread()
