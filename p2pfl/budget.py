"""Charge received models and trainings to a node's budget.

Received models: models and bytes of a round, and models held at the same time.

- A model is charged when it arrives, with the bytes of its frame. Until then its place is reserved.
- A fragment is charged with its frame's bytes, and with its values: in a round, fragments with v values together are
  ceil(v / P) models. So a budget of one model admits fragments with as many values as a model has.
- In the preparation each call of `Peers.models` is one step, with the limits of a round. It is counted separately.
- A model counts as held as long as the policy keeps its array anywhere. This is only counted if there is a budget.
- `Peers.remote_losses` sends a model and receives none: its bytes count as sent, and the budget does not limit it.

Trainings: their number and their joules in the whole run, the preparation and all rounds. A node trains only if what is
left admits one more training. When a training is refused, the node goes on with its round: it serves, fetches and merges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import floor, inf
from weakref import ref

import msgspec
import numpy as np
from msgspec.structs import replace

from p2pfl._util.printable import plural
from p2pfl.algorithms.selection import fitting
from p2pfl.errors import BudgetExceededError
from p2pfl.fragments import WantedPart
from p2pfl.policy import Budget, Fragment, Update

ROUNDING = 1e-12  # share of a sum of joules that its rounding may be off


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """Part of a budget that is set aside for requested models.

    Attributes:
        ids: the peers whose models were requested.
        bytes: the expected size of the models, or fragments; 0 if bytes are not limited.
        values: number of values of the requested fragments.
    """

    ids: Sequence[str]
    bytes: int
    values: int = 0


class Effort(msgspec.Struct, frozen=True, gc=False):
    """Cost of trainings.

    Attributes:
        seconds: seconds of computing.
        joules: energy; None if nothing measures it.
    """

    seconds: float = 0.0
    joules: float | None = None


class TrainingState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node has trained so far, for its checkpoint.

    Attributes:
        trainings, samples: numbers of trainings, and of samples in them, repeated ones included.
        seconds, joules: see `Effort`.
    """

    trainings: int = 0
    samples: int = 0
    seconds: float = 0.0
    joules: float | None = None


class TrainingTracker:
    """Tracker of one node's trainings, and of the part of its budget that they use.

    Args:
        used: returns what the trainings of this process have cost.
        expected: returns the joules that a training on a number of samples will use; None if unknown.

    Attributes:
        trainings, samples: numbers of trainings, and of samples in them, repeated ones included.
        refused: number of trainings that the budget has refused.
        refusal: reason of the last one; "" if the budget has refused none.
    """

    def __init__(
        self, budget: Budget, used: Callable[[], Effort] = Effort, expected: Callable[[int], float | None] = lambda _: None
    ) -> None:
        self.budget = budget
        self.trainings = self.samples = 0
        self.refused = 0
        self.refusal = ""
        self._used, self._expected = used, expected
        self._before = Effort()  # of earlier processes of the node

    @property
    def effort(self) -> Effort:
        """Cost of all trainings."""
        now, before = self._used(), self._before
        joules = now.joules if before.joules is None else before.joules + (now.joules or 0.0)
        return Effort(before.seconds + now.seconds, joules)

    def admits(self, samples: int) -> bool:
        """Return whether the budget has room for a training on a number of samples. If not, it counts as refused."""
        if not (self.budget.trainings or self.budget.joules) or self.left(samples) >= 1:
            return True
        self.refused += 1
        used = f"{self.trainings} of {self.budget.trainings} trainings"
        if not (self.budget.trainings and self.trainings >= self.budget.trainings):
            used = f"{self.effort.joules or 0.0:.6g} of {self.budget.joules:.6g} joules, too few are left for a training"
        self.refusal = f"the budget of trainings is used up: {used}"
        return False

    def left(self, samples: int) -> float:
        """Return how many trainings on a number of samples the budget still admits; inf without a limit."""
        left = float(self.budget.trainings - self.trainings) if self.budget.trainings else inf
        if self.budget.joules:
            used, each = self.effort.joules or 0.0, self._expected(samples)
            if used >= self.budget.joules:
                return 0.0
            if each:
                # the tolerance admits the last of n trainings whose rounded sum is the budget
                left = min(left, floor((self.budget.joules - used) / each * (1 + ROUNDING)))
        return left

    @property
    def mean_seconds(self) -> float:
        """Mean seconds of a training; 1 before the first one."""
        return self.effort.seconds / self.trainings if self.trainings else 1.0

    def charge(self, samples: int) -> None:
        """Count a training."""
        self.trainings += 1
        self.samples += samples

    def refund(self, samples: int) -> None:
        """Take back the charge of a training that has not begun."""
        self.trainings -= 1
        self.samples -= samples

    def state(self) -> TrainingState:
        effort = self.effort
        return TrainingState(self.trainings, self.samples, effort.seconds, effort.joules)

    def restore(self, state: TrainingState) -> None:
        self.trainings, self.samples = state.trainings, state.samples
        self._before = Effort(state.seconds, state.joules)


class BudgetTracker:
    """Tracker of one node's use of its budget.

    Args:
        refuse: admit only the models that fit, instead of raising BudgetExceededError when a policy requests too much.
        size: P, the number of values of a model, of which fragments are charged their share.

    Attributes:
        models, bytes: received in this round so far, with fragments as their share (`bytes` only if there is a budget).
        round_models, round_bytes: received in all rounds so far.
        preparing: whether no round has begun yet.
        preparation_models: models received in the preparation.
        most_held: the most models held at the same time; only counted if there is a budget.
        refused: number of models requested beyond the budget.
        refusal: reason of the last refusal.
        oversized: number of models of each peer that took more bytes than were left.
        refuses: whether it leaves out models that do not fit.
    """

    def __init__(self, budget: Budget, refuse: bool = False, size: int = 1) -> None:
        self.budget = budget
        self.limited = budget.receiving
        self.models = self.bytes = 0
        self.round_models = self.round_bytes = 0
        self.preparation_models = 0
        self.most_held = 0
        self.refused = 0
        self.refusal = ""
        self.refuses = refuse
        self.oversized: Counter[str] = Counter()
        self.preparing = True
        self._places = self._place_bytes = 0  # reserved for requested models that have not arrived
        self._held: dict[int, ref[np.ndarray]] = {}
        self._size = size
        self._values = self._place_values = 0  # of fragments: received in this round, and requested
        self._held_values: dict[int, int] = {}  # of the leases that are fragments

    def begin_round(self) -> None:
        self.preparing = False
        self.models = self.bytes = self._values = 0

    def reserve(self, ids: Sequence[str], size: Callable[[str], int]) -> Reservation:
        """Reserve places for models of `ids` that are about to be requested, as far as the budget admits them.

        Args:
            size: expected bytes of a peer's model.

        Raises:
            BudgetExceededError: the budget does not admit all of them, and the tracker does not refuse.
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
        """Return a random selection of `ids` whose models fit into the rest of the budget, or all of them if they fit.

        Args:
            rng: the node's generators by purpose.
            size: see `reserve`.
        """
        budget = self.budget
        if not self.limited:
            return ids
        places = [limit - used for limit, used in ((budget.models, self.models), (budget.held, self.held)) if limit]
        most = max(0, min([len(ids), *(left - self._requested for left in places)]))
        sizes = [size(id) if budget.bytes else 0 for id in ids]
        left = budget.bytes - self.bytes - self._place_bytes if budget.bytes else 0
        if most == len(ids) and sum(sizes) <= left:
            return ids
        return fitting(rng("budget"), ids, sizes, left, most)

    def release(self, places: Reservation) -> None:
        """Release places: the models have arrived, or will not arrive."""
        if self.limited:
            self._places -= len(places.ids)
            self._place_values -= places.values
            self._place_bytes -= places.bytes

    def take(self, updates: list[Update]) -> list[Update]:
        """Charge models that have arrived. Return them so that the tracker sees how long they are held."""
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
        return self._lease(updates)

    def _fitting(self, updates: list[Update]) -> list[Update]:
        """Return the updates, smallest first, whose bytes fit the budget: models can be larger than expected."""
        kept, left = set(), self.budget.bytes - self.bytes - self._place_bytes
        for update in sorted(updates, key=lambda update: update.size):
            if update.size <= left:
                kept.add(update.sender)
                left -= update.size
            else:
                self.refused += 1
                self.oversized[update.sender] += 1
                self.refusal = f"a model of {update.size} bytes from {update.sender}, but only {left} bytes were left"
        return [update for update in updates if update.sender in kept]

    # Fragments

    def reserve_fragments(self, parts: Sequence[WantedPart]) -> tuple[Sequence[WantedPart], Reservation]:
        """Reserve places for parts that are about to be requested; return those that the budget admits, the first ones.

        Raises:
            BudgetExceededError: see `reserve`.
        """
        if not self.limited:
            return parts, Reservation((), 0)
        values, size = self._left()
        sums = zip(accumulate(part.values for part in parts), accumulate(part.bytes for part in parts), strict=True)
        admitted = parts[: sum(v <= values and b <= size for v, b in sums)]
        if len(admitted) < len(parts):
            limits = ", ".join(f"{limit} {key}" for key, limit in msgspec.to_builtins(self.budget).items() if limit)
            reason = (
                f"{plural(len(parts), 'fragment')} with the values of {sum(part.values for part in parts) / self._size:.3g}"
                f" models and {sum(part.bytes for part in parts)} bytes, but the budget ({limits}) has no room for all"
            )
            if not self.refuses:
                raise BudgetExceededError(reason)
            self.refused += len(parts) - len(admitted)
            self.refusal = reason
        places = Reservation((), sum(part.bytes for part in admitted), sum(part.values for part in admitted))
        self._place_values += places.values
        self._place_bytes += places.bytes
        return admitted, places

    def fragments_within_budget(
        self, rng: Callable[[str], np.random.Generator], parts: Sequence[WantedPart]
    ) -> Sequence[WantedPart]:
        """Return a random selection of parts that fits into the rest of the budget, or all of them if they fit."""
        values, size = self._left()
        if sum(part.values for part in parts) <= values and sum(part.bytes for part in parts) <= size:
            return parts
        taken = set()
        for place in rng("budget").permutation(len(parts)).tolist():
            if parts[place].values <= values and parts[place].bytes <= size:
                values, size = values - parts[place].values, size - parts[place].bytes
                taken.add(place)
        return [part for place, part in enumerate(parts) if place in taken]

    def take_fragments(self, fragments: list[Fragment]) -> list[Fragment]:
        """Charge fragments that have arrived; return them as `take` returns models."""
        values = sum(len(fragment.values) for fragment in fragments)
        if self.preparing:
            self.preparation_models += self._models_of(values)
        else:
            more = self._models_of(self._values + values) - self._models_of(self._values)
            self._values += values
            self.models += more
            self.round_models += more
        if not self.limited:
            return fragments
        if not self.preparing:
            size = sum(fragment.size for fragment in fragments)
            self.bytes += size
            self.round_bytes += size
        leased = []
        for fragment in fragments:
            own = fragment.values.view()
            lease = ref(own, self._release)
            self._held[id(lease)], self._held_values[id(lease)] = lease, len(own)
            leased.append(replace(fragment, values=own))
        self.most_held = max(self.most_held, self.held)
        return leased

    def _left(self) -> tuple[float, float]:
        """Return how many values and how many bytes of fragments the budget still admits; inf without a limit."""
        budget, size = self.budget, self._size
        whole = self.models - self._models_of(self._values)
        used = size * (whole + self._places) + self._values + self._place_values
        held = size * (len(self._held) - len(self._held_values) + self._places)
        held += sum(self._held_values.values()) + self._place_values
        limits = [limit * size - taken for limit, taken in ((budget.models, used), (budget.held, held)) if limit]
        return min(limits, default=inf), budget.bytes - self.bytes - self._place_bytes if budget.bytes else inf

    @property
    def _requested(self) -> int:
        """Number of models that are requested, with fragments as their share, rounded up."""
        return self._places + self._models_of(self._values + self._place_values) - self._models_of(self._values)

    def _models_of(self, values: int) -> int:
        """Return as how many models fragments count that have some values together: v / P, rounded up."""
        return -(-values // self._size)

    def admits(self, size: int) -> bool:
        """Return whether there is room for one more model of `size` bytes. If not, it counts as refused."""
        room, reason = self._room(1, [size] if self.budget.bytes else [])
        if not room:
            self.refused += 1
            self.refusal = reason
        return bool(room)

    def charge(self, size: int) -> None:
        """Charge an assigned model of `size` bytes. 0 bytes mean this node is the coordinator: nothing is charged.

        It replaces the node's own model, so it does not count as held.
        """
        if size:
            self.models += 1
            self.round_models += 1
        if self.limited:
            self.bytes += size
            self.round_bytes += size

    @property
    def held(self) -> int:
        """Number of models that are held, with fragments as their share, rounded up."""
        return len(self._held) - len(self._held_values) + self._models_of(sum(self._held_values.values()))

    def _room(self, count: int, sizes: Sequence[int]) -> tuple[int, str]:
        """Return how many of `count` models fit, in their order, and the limit that excludes the rest."""
        budget, span = self.budget, "preparation step" if self.preparing else "round"
        models, held = self.models + self._requested, self.held + self._requested
        used = self.bytes + self._place_bytes
        room, reason = count, ""
        if budget.models and models + room > budget.models:
            room = max(0, budget.models - models)
            reason = f"{models + count} models in a {span}, but the budget is {budget.models}"
        if budget.held and held + room > budget.held:
            room = max(0, budget.held - held)
            reason = f"{held + count} models held at once, but the budget is {budget.held}"
        fits = sum(used + total <= budget.bytes for total in accumulate(sizes))
        if budget.bytes and fits < room:
            room = fits
            reason = f"{plural(count, 'more model')} after {used} bytes, but the budget is {budget.bytes} bytes in a {span}"
        return room, reason

    def _lease(self, updates: Sequence[Update]) -> list[Update]:
        """Return updates with their own arrays, because others may hold the same ones. A lease ends with its array."""
        leased, held, release = [], self._held, self._release
        for update in updates:
            params = update.params.view()
            lease = ref(params, release)
            held[id(lease)] = lease
            leased.append(replace(update, model=params))
        self.most_held = max(self.most_held, self.held)
        return leased

    def _release(self, lease: ref[np.ndarray]) -> None:
        del self._held[id(lease)]
        self._held_values.pop(id(lease), None)
