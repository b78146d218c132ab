"""Models that a node has published: those of its last two rounds, and those of its preparation."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from p2pfl.policy import Stage, Update


class Published(msgspec.Struct, frozen=True, gc=False):
    """A model as peers get it.

    Attributes:
        time: of publication, in seconds on the node's own clock.
        tag: names the model where differences from it are sent; see p2pfl.node.exchange.model_encoding.
    """

    update: Update
    time: float
    tag: bytes = b""

    def age(self, now: float) -> float:
        """Return the seconds since the model was published."""
        return max(0.0, now - self.time)


Absence = Literal["gone", "nothing yet"]
Missing = Literal["wait"] | Absence


class Outbox:
    """Models that requests are answered with. Synchronous nodes serve the round that is asked for, others the newest.

    Attributes:
        models: by round and stage.
        round: of the newest model.
        final: nothing more will be published.
    """

    def __init__(self, synchronous: bool) -> None:
        self._synchronous = synchronous
        self.models: dict[tuple[int, Stage], Published] = {}
        self.round = -1
        self.final = False

    def add(self, model: Published) -> None:
        """Publish a model, and forget those that are two rounds older."""
        update = model.update
        if update.round > self.round:
            self.round = update.round
            self._forget()
        self.models[update.round, update.stage] = model

    def _forget(self) -> None:
        self.models = {key: kept for key, kept in self.models.items() if not 0 < key[0] < self.round - 1}

    def skip(self, round: int) -> None:
        """Expect no model of an earlier round any more: the node went forward to do this one."""
        self.round = round
        self._forget()

    def rewind(self, round: int) -> None:
        """Forget the models of the rounds after this one: the node went back to do it."""
        self.models = {key: kept for key, kept in self.models.items() if key[0] <= round}
        self.round = round if any(key[0] == round for key in self.models) else round - 1

    def find(self, round: int, stage: Stage) -> Published | Missing:
        """Return the model that answers a request for (round, stage).

        Without one: "wait" if it will be published, "gone" if it was forgotten, "nothing yet" if an asynchronous node has
        published nothing.
        """
        model = self.models.get((round, stage))
        if model is not None and (self._synchronous or stage == "prepared"):
            return model
        if self.final or not (self._synchronous or stage == "prepared"):
            rounds = [key[0] for key in self.models if key[1] == stage]
            return self.models[max(rounds), stage] if rounds else "gone" if self.final else "nothing yet"
        return "wait" if round >= self.round else "gone"

    def as_sent(self, update: Update, age: float) -> Update:
        """Return an update as it leaves this node: with its age in seconds, and whether it is final."""
        return replace(update, age=age, final=self.final) if age or self.final else update
