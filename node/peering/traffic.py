"""Counters of a node's traffic: bytes of whole envelopes by kind, without the overhead of a transport."""

from __future__ import annotations

KINDS = ("get", "update", "score", "scored", "submit", "assigned")  # the kinds that carry learning


class Traffic:
    """Frames and bytes of one node, by kind and direction.

    Attributes:
        sent_models, received_models: number of frames that are updates, submissions or assignments.
        sent_get, ..., received_assigned: bytes of the kinds that carry learning.
        sent_control, received_control: bytes of all other kinds.
        sent_preparation, received_preparation: bytes of requests and models that belong to the preparation instead of a
            round; the counts of their kinds include them.
    """

    __slots__ = (
        "received_assigned",
        "received_control",
        "received_get",
        "received_models",
        "received_preparation",
        "received_score",
        "received_scored",
        "received_submit",
        "received_update",
        "sent_assigned",
        "sent_control",
        "sent_get",
        "sent_models",
        "sent_preparation",
        "sent_score",
        "sent_scored",
        "sent_submit",
        "sent_update",
    )

    def __init__(self) -> None:
        self.sent_models = self.sent_get = self.sent_update = self.sent_score = self.sent_scored = self.sent_control = 0
        self.received_models = self.received_get = self.received_update = 0
        self.received_score = self.received_scored = self.received_control = 0
        self.sent_submit = self.sent_assigned = self.received_submit = self.received_assigned = 0
        self.sent_preparation = self.received_preparation = 0

    @property
    def sent(self) -> int:
        """Bytes sent of the kinds that carry learning."""
        sent = self.sent_get + self.sent_update + self.sent_score + self.sent_scored
        return sent + self.sent_submit + self.sent_assigned

    @property
    def received(self) -> int:
        """Bytes received of the kinds that carry learning."""
        received = self.received_get + self.received_update + self.received_score + self.received_scored
        return received + self.received_submit + self.received_assigned

    @property
    def sent_in_rounds(self) -> int:
        """Bytes sent of the kinds that carry learning, without the preparation."""
        return self.sent - self.sent_preparation

    @property
    def received_in_rounds(self) -> int:
        """Bytes received of the kinds that carry learning, without the preparation."""
        return self.received - self.received_preparation

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return all counts, by direction."""
        names = ("models", *KINDS, "control")
        return {way: {name: getattr(self, f"{way}_{name}") for name in names} for way in ("sent", "received")}
