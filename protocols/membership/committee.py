"""Committee of a federation: the few members that elect the coordinator, as the membership log names them.

Theory of operation. With `committee = K` in the federation's file (five to nine), K members vote and lead, and all others
follow (p2pfl.protocols.election). Who they are is a function of the log's beginning up to an entry, so members that know
the same entries know the same committee. It is the first K of

1. the members that the newest entry of the kind `committee` names,
2. the members with the role `coordinator-eligible`, in the order of their admission,
3. the other members that are no observers, in the order of their admission.

The first rule is for people: they replace a member that is offline for ever. The others need nobody, and give a new
federation its committee while it grows. With at most K members all of them are the committee.

A *committee version* is the number of the entry that made the present committee. It begins with an entry that changes
one of its keys, and with each entry of the kind `committee`. Other entries, such as the admission of the thousandth
member, change nothing, and disturb no election.

Two committees that follow one another may have majorities without a common member. What then keeps two coordinators from
leading at the same time is told in p2pfl.protocols.election; it needs the earlier committees, so they are kept here:
`epochs` has them, the present one last, from the first that was complete. An entry with `lost` forgets them. It is the
word of the admission key that a majority of them has stopped for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

LEAST, MOST = 5, 9  # members of a committee


class Epoch(NamedTuple):
    """Committee from one entry of the log on.

    Attributes:
        membership_version: the number of that entry.
        members: the members' keys by name.
    """

    membership_version: int
    members: Mapping[str, bytes]


class Committees:
    """Committees of a federation, from the entries of its log in their order.

    Args:
        size: K, members of a complete committee; 0 for a federation without one.

    Attributes:
        epochs: the present committee is the last one; empty without one.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.epochs: list[Epoch] = []
        self._keys: dict[str, bytes] = {}  # of all members that may be in it, in the order of their admission
        self._eligible: dict[str, None] = {}  # names with the role coordinator-eligible, in the same order
        self._named: tuple[str, ...] = ()  # by the newest entry of the kind `committee`

    def copy(self) -> Committees:
        same = Committees(self.size)
        same.epochs, same._keys, same._eligible = list(self.epochs), dict(self._keys), dict(self._eligible)
        same._named = self._named
        return same

    @property
    def complete(self) -> int:
        """Number of members of a committee now: K, or fewer if there are not as many members."""
        return min(self.size, len(self._keys))

    def set_member(self, version: int, name: str, key: bytes, role: str) -> None:
        """Follow an entry that adds a member, or replaces its key."""
        if not self.size or role == "observer":
            return
        self._keys[name] = key
        if role == "coordinator-eligible":
            self._eligible[name] = None
        self._update(version)

    def remove(self, version: int, name: str) -> None:
        """Follow an entry that removes a member."""
        if self._keys.pop(name, None) is None:
            return
        self._eligible.pop(name, None)
        self._named = tuple(other for other in self._named if other != name)
        self._update(version)

    def appoint(self, version: int, keys: Sequence[bytes], lost: bool) -> str:
        """Follow an entry of the kind `committee`. Return what is wrong with it; "" if nothing is, and then it counts."""
        names = {key: name for name, key in self._keys.items()}
        if not self.size:
            return "the federation has no committee"
        if len(set(keys)) != len(keys) or not names.keys() >= set(keys):
            return "a committee needs different members, and no observers"
        if len(keys) != self.complete:
            return f"a committee of {len(keys)}, where {self.complete} are needed"
        self._named = tuple(names[key] for key in keys)
        if lost:
            self.epochs.clear()
        self._begin(version)
        return ""

    def _update(self, version: int) -> None:
        if not self.epochs or self._first() != self.epochs[-1].members:
            self._begin(version)

    def _first(self) -> dict[str, bytes]:
        chosen: dict[str, bytes] = {}
        for name in chain(self._named, self._eligible, self._keys):
            if len(chosen) == self.size:
                break
            chosen[name] = self._keys[name]
        return chosen

    def _begin(self, version: int) -> None:
        """Begin an epoch. One before the committee was complete differs by one member from the next, and is not kept."""
        if self.epochs and len(self.epochs[0].members) < self.size:
            self.epochs.clear()
        self.epochs.append(Epoch(version, self._first()))
