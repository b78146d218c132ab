"""Contributions of several simulated nodes, awaited as one event, and models that nodes exchange at one time."""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from types import coroutine
from typing import Any

from p2pfl.node.peering.traffic import Traffic
from p2pfl.policy import Stage, Update
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.simulation.clock import VirtualLoop


class Gather:
    """Contributions that are complete at their latest arrival time, or at a deadline.

    Args:
        count: number of contributions.
        seconds: time until the deadline.

    Attributes:
        future: True once all contributions have arrived, False if the deadline passed first.
        latest: time of the latest arrival so far.
        expires: time of the deadline.
        items: contributions by sender.
        left: number of outstanding contributions.
    """

    __slots__ = ("expires", "future", "items", "latest", "left", "loop")

    def __init__(self, loop: VirtualLoop, count: int, seconds: float) -> None:
        self.loop = loop
        self.future: Future[bool] = Future(loop=loop)
        self.left = count
        self.latest = loop.now
        self.expires = self.latest + seconds
        self.items: dict[str, Any] = {}

    def add(self, name: str, item: Any, when: float | None) -> bool:
        """Add a contribution that arrives at `when` (None: never). Return False if that is too late."""
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
        """End the waiting, if it has not ended."""
        if not self.future.done():
            self.future.set_result(complete)

    def close(self) -> None:
        """End the waiting at the deadline. It is not called if the waiting has ended."""
        self.expire()


@coroutine
def yield_once() -> Generator[None, None, None]:
    """Let everything else run first that can run at this time."""
    yield


class Board:
    """Models published at the current time, for fetches at the same time over links without delay.

    A fetch of several models is one lookup. The counts of the senders are added later, for many fetches together.

    Args:
        traffic_of: returns the traffic of the node with a given name.

    Attributes:
        open: whether fetches may use the board. A node that answers some requests differently closes it for good.
    """

    def __init__(self, traffic_of: Callable[[str], Traffic]) -> None:
        self.open = True
        self._traffic_of = traffic_of
        self._time = 0.0
        self._models: dict[tuple[int, Stage], dict[str, Update]] = {}
        self._served: dict[tuple[int, Stage], list[str]] = {}  # senders of the fetched models that are not counted yet

    def add(self, update: Update, now: float) -> None:
        """Add a model that is published at time `now`."""
        if now != self._time:
            self.count()
            self._models.clear()
            self._time = now
        key = update.round, update.stage
        models = self._models.get(key)
        if models is None:
            self._models[key] = {update.sender: update}
            return
        if update.sender in models:
            self.count()  # earlier fetches received the model that this one replaces
        models[update.sender] = update

    def find(self, ids: Sequence[str], round: int, stage: Stage, now: float) -> list[Update] | None:
        """Return the models of `ids`; None if one of them was not published at time `now`."""
        key = round, stage
        models = self._models.get(key) if self.open and now == self._time else None
        if models is None:
            return None
        try:
            updates = [models[id] for id in ids]
        except KeyError:
            return None
        served = self._served.get(key)
        if served is None:
            self._served[key] = list(ids)
        else:
            served += ids
        return updates

    def count(self) -> None:
        """Add the fetched models to the traffic of their senders."""
        if not self._served:
            return
        for key, senders in self._served.items():
            models = self._models[key]
            for id, times in Counter(senders).items():
                sent = self._traffic_of(id)
                sent.received_get += OVERHEAD * times
                sent.sent_models += times
                sent.sent_update += models[id].size * times
        self._served.clear()
