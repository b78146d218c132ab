"""Keeps a node's contacts as the membership log says, and the log on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from node.admission import MembershipFile
from node.agreement import neighbours
from node.contact import Contacts
from node.crashpoints import reached
from node.files import Tries
from node.peer import Member
from node.setup import Setup
from p2pfl.errors import ConfigurationError

LOOKING = 1.0  # seconds between looks at the file, which commands change while the node runs


class Revoked(ConfigurationError):
    """This node is no member any more."""


class Members:
    """
    Args:
        key: this node's public one.
        reach: addresses that are the same for every member, such as the broker's.
        say: is told who comes and goes.
    """

    def __init__(self, ready: Setup, key: bytes, reach: Sequence[str], say: Callable[[str], None]) -> None:
        assert ready.membership is not None
        assert ready.agreement is not None
        self._name = ready.config.name
        self._key = key
        self._log = ready.membership
        self._edges = ready.agreement.edges
        self._addresses = ready.config.addresses
        self._reach = tuple(reach)
        self._file = MembershipFile(ready.folder)
        self._tries = Tries(ready.folder / "membership", "the membership log", say)
        self._say = say
        self._contacts: Contacts | None = None

    def around(self) -> dict[str, Member]:
        """Return the members with which this node may exchange anything, by name."""
        found = {}
        for name in sorted(neighbours(self._edges, self._name, self._log.members)):
            known = (self._addresses[name],) if name in self._addresses else ()
            found[name] = Member(self._log.members[name].key, (*known, *self._reach))
        return found

    def learned_from(self, name: str) -> bool:
        """Return whether a member's models are of use to others; an observer's are not."""
        return self._log.members[name].role != "observer"

    def keep(self, contacts: Contacts) -> None:
        """Have the contacts follow the log from now on."""
        self._contacts = contacts
        self._log.on_change.append(self._changed)

    async def run(self) -> None:
        """Look for what commands have changed, for ever.

        Raises:
            Revoked: this node is no member any more.
        """
        while True:
            if self._log.refusal(self._key):
                raise Revoked("this node was revoked: it is no member of its federation any more")
            await asyncio.sleep(LOOKING)
            if self._file.changed():
                self._file.merge(self._log)

    def _changed(self) -> None:
        """The log has grown: first it is written down, then acted on, then told."""
        contacts = self._contacts
        assert contacts is not None
        with self._tries.go_on():
            self._file.save(self._log)
            reached("membership-saved")
        now = self.around()
        for name, peer in list(contacts.peers.items()):
            if name not in now or now[name].key != peer.key:
                contacts.expel(name, "revoked")
                self._say(f"{name} is no member any more, since epoch {self._log.epoch} at the latest")
        for name, member in now.items():
            if name not in contacts.peers:
                contacts.admit(name, member, self.learned_from(name))
                self._say(f"{name} is a member, since epoch {self._log.epoch} at the latest")
        contacts.spread()
