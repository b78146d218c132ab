"""What a node has received, charged to its budget: models and bytes of a round, and models held at once.

- A model is charged when it has come, with the bytes of its frame; until then its place is kept.
- In the preparation each call of `Peers.models` is one step, which may bring as many models as a round. It is counted apart.
- A model is held for as long as the policy keeps its array, wherever it keeps it. This is counted where there is a budget.
- `Peers.scores` sends a model out and brings none: its bytes count as sent, and the budget does not limit it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple
from weakref import ref

import numpy as np
from msgspec.structs import replace

from p2pfl.algorithms.selection import fitting
from p2pfl.errors import BudgetExceededError
from p2pfl.policy import Budget, Update


class Reservation(NamedTuple):
    """Room that is kept for models that were asked for.

    Attributes:
        ids: whose.
        bytes: what they are expected to take; 0 where bytes are not limited.
    """

    ids: Sequence[str]
    bytes: int


class BudgetTracker:
    """
    Args:
        refuse: let in what fits, instead of raising BudgetExceededError where a policy asks for too much.

    Attributes:
        models, bytes: of the round so far. (`bytes` only where there is a budget.)
        round_models, round_bytes: of all rounds so far.
        preparing: whether no round has begun yet.
        preparation_models: of the preparation.
        most_held: the most models that were held at once; only counted where there is a budget.
        refused: how many models were asked for beyond the budget.
        refusal: why, the last time.
        oversized: how often a peer's model took more bytes than were left, by name.
        refuses: whether it leaves out what does not fit.
    """

    def __init__(self, budget: Budget, refuse: bool = False) -> None:
        self.budget = budget
        self.limited = budget != Budget()
        self.models = self.bytes = 0
        self.round_models = self.round_bytes = 0
        self.preparation_models = 0
        self.most_held = 0
        self.refused = 0
        self.refusal = ""
        self.refuses = refuse
        self.oversized: Counter[str] = Counter()
        self.preparing = True
        self._places = self._place_bytes = 0  # kept for what was asked for and has not come yet
        self._held: dict[int, ref[np.ndarray]] = {}

    def begin_round(self) -> None:
        self.preparing = False
        self.models = self.bytes = 0

    def reserve(self, ids: Sequence[str], size: Callable[[str], int]) -> Reservation:
        """Keep places for models of `ids` that are about to be asked for, as far as the budget lets them in.

        Args:
            size: bytes that a peer's model is expected to take.

        Raises:
            BudgetExceededError: they are not all let in, and the ledger does not refuse.
        """
        if not self.limited:
            return Reservation(ids, 0)
        admitted = sorted(ids)
        sizes = [size(id) for id in admitted] if self.budget.bytes else []
        room, reason = self._room(len(admitted), sizes)
        if room < len(admitted):
            if not self.refuses:
                raise BudgetExceededError(reason)
            self.refused += len(admitted) - room
            self.refusal = reason
            admitted = admitted[:room]
        places = Reservation(admitted, sum(sizes[: len(admitted)]))
        self._places += len(places.ids)
        self._place_bytes += places.bytes
        return places

    def within_budget(
        self, rng: Callable[[str], np.random.Generator], ids: Sequence[str], size: Callable[[str], int]
    ) -> Sequence[str]:
        """Return those of `ids` for whose models there is room in what is left of the budget; which ones, is drawn.

        Args:
            rng: the node's generators by purpose.
            size: see `reserve`.
        """
        budget = self.budget
        if not self.limited:
            return ids
        places = [limit - used for limit, used in ((budget.models, self.models), (budget.held, self.held)) if limit]
        most = max(0, min([len(ids), *(left - self._places for left in places)]))
        sizes = [size(id) if budget.bytes else 0 for id in ids]
        left = budget.bytes - self.bytes - self._place_bytes if budget.bytes else 0
        if most == len(ids) and sum(sizes) <= left:
            return ids
        return fitting(rng("budget"), ids, sizes, left, most)

    def release(self, places: Reservation) -> None:
        """Give up places: the models have come, or will not."""
        if self.limited:
            self._places -= len(places.ids)
            self._place_bytes -= places.bytes

    def take(self, updates: list[Update]) -> list[Update]:
        """Charge models that have come; return them so that it is known for how long they are held."""
        if self.preparing:
            self.preparation_models += len(updates)
        else:
            self.models += len(updates)
            self.round_models += len(updates)
        if not self.limited:
            return updates
        if self.refuses and self.budget.bytes:
            updates = self._fitting(updates)
        if not self.preparing:
            size = sum(update.size for update in updates)
            self.bytes += size
            self.round_bytes += size
        return [self._lease(update) for update in updates]

    def _fitting(self, updates: list[Update]) -> list[Update]:
        """Return those updates, the small ones first, whose bytes are within the budget: they may be more than expected."""
        kept, left = set(), self.budget.bytes - self.bytes - self._place_bytes
        for update in sorted(updates, key=lambda update: update.size):
            if update.size <= left:
                kept.add(update.sender)
                left -= update.size
            else:
                self.refused += 1
                self.oversized[update.sender] += 1
                self.refusal = f"a model of {update.sender} of {update.size} bytes, where {left} were left"
        return [update for update in updates if update.sender in kept]

    def admits(self, size: int) -> bool:
        """Return whether there is room for one model more, of so many bytes; if not, it counts as refused."""
        room, reason = self._room(1, [size] if self.budget.bytes else [])
        if not room:
            self.refused += 1
            self.refusal = reason
        return bool(room)

    def charge(self, size: int) -> None:
        """Charge a model of so many bytes that a coordinator has assigned; 0 bytes are none, as it is that node itself.

        It takes the place of the node's own, so it is not held beside it.
        """
        if size:
            self.models += 1
            self.round_models += 1
        if self.limited:
            self.bytes += size
            self.round_bytes += size

    @property
    def held(self) -> int:
        return len(self._held)

    def _room(self, count: int, sizes: Sequence[int]) -> tuple[int, str]:
        """Return how many of `count` models, in their order, there is room for, and what is in the way of the rest."""
        budget, span = self.budget, "step of the preparation" if self.preparing else "round"
        models, used, held = self.models + self._places, self.bytes + self._place_bytes, self.held + self._places
        room, reason = count, ""
        if budget.models and models + room > budget.models:
            room = max(0, budget.models - models)
            reason = f"{models + count} models in a {span}, the budget is {budget.models}"
        if budget.held and held + room > budget.held:
            room = max(0, budget.held - held)
            reason = f"{held + count} models held at once, the budget is {budget.held}"
        fits = sum(used + total <= budget.bytes for total in accumulate(sizes))
        if budget.bytes and fits < room:
            room = fits
            reason = f"{count} more models after {used} bytes, the budget is {budget.bytes} bytes a {span}"
        return room, reason

    def _lease(self, update: Update) -> Update:
        """Return an update with an array of its own, as others may hold the same one: the lease ends with this array."""
        params = update.params.view()
        lease = ref(params, self._release)
        self._held[id(lease)] = lease
        self.most_held = max(self.most_held, len(self._held))
        return replace(update, params=params)

    def _release(self, lease: ref[np.ndarray]) -> None:
        del self._held[id(lease)]
