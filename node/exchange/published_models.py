"""Published models of a node, from its last two rounds and its preparation."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from p2pfl.parameters import detached
from p2pfl.policy import Stage, Update


class Published(msgspec.Struct, frozen=True, gc=False):
    """Published model as peers receive it.

    Attributes:
        time: time of publication, in seconds on the node's own clock.
        tag: identifies the model if differences from it are sent; see p2pfl.node.exchange.model_encoding.
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
    """Models that answer requests.

    Synchronous nodes serve the requested round, asynchronous nodes the newest model.

    Attributes:
        models: published models by round and stage.
        round: round of the newest model.
        final: whether nothing more will be published.
    """

    def __init__(self, synchronous: bool) -> None:
        self._synchronous = synchronous
        self.models: dict[tuple[int, Stage], Published] = {}
        self.round = -1
        self.final = False

    def add(self, model: Published) -> None:
        """Publish a model, and remove models that are two or more rounds older."""
        update = model.update
        if update.round > self.round:
            self.round = update.round
            self._forget()
        self.models[update.round, update.stage] = model

    def _forget(self) -> None:
        oldest = self.round - 1
        for key in [key for key in self.models if 0 < key[0] < oldest]:
            del self.models[key]

    def detach(self) -> None:
        """Copy the models that are views of larger arrays; see `p2pfl.parameters.detached`."""
        for key, kept in self.models.items():
            update = kept.update
            self.models[key] = replace(kept, update=replace(update, model=detached(update.params)))

    def skip(self, round: int) -> None:
        """Report that no model of a round before `round` will be published, because the node skipped forward to it."""
        self.round = round
        self._forget()

    def rewind(self, round: int) -> None:
        """Remove the models of later rounds, because the node went back to `round`."""
        self.models = {key: kept for key, kept in self.models.items() if key[0] <= round}
        self.round = round if any(key[0] == round for key in self.models) else round - 1

    def find(self, round: int, stage: Stage) -> Published | Missing:
        """Return the model that answers a request for (round, stage).

        If there is none, return "wait" for a model that will be published and "gone" for a removed one. Return "nothing
        yet" if an asynchronous node has not published anything.
        """
        model = self.models.get((round, stage))
        if model is not None and (self._synchronous or stage == "prepared"):
            return model
        if self.final or not (self._synchronous or stage == "prepared"):
            rounds = [key[0] for key in self.models if key[1] == stage]
            return self.models[max(rounds), stage] if rounds else "gone" if self.final else "nothing yet"
        return "wait" if round >= self.round else "gone"

    def as_sent(self, update: Update, age: float) -> Update:
        """Return an update as this node sends it, with its age in seconds and whether it is final."""
        return replace(update, age=age, final=self.final) if age or self.final else update
