"""Encoding of a node's models for publication."""

from __future__ import annotations

from collections.abc import Callable

from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.exchange.published_models import Published
from p2pfl.parameters import Parameters
from p2pfl.policy import Extras, Stage, Update
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.protocols.wire.payload import encode_extras


class Publisher:
    """Encoder of a node's own models.

    Args:
        name: name of the node.
        clock: returns the time in seconds.
    """

    def __init__(self, name: str, n_samples: int, coding: ModelEncoder, clock: Callable[[], float]) -> None:
        self._name = name
        self._n_samples = n_samples
        self._coding = coding
        self._clock = clock
        self._size = OVERHEAD + coding.whole

    def make(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> Published:
        """Return a model, float32 [P], as peers receive it, with the bytes of its whole frame and the current time.

        Raises:
            RunError: the codec cannot encode the model, because some of its values are not finite.
        """
        public, tag = self._coding.publish(params)
        size = self._size + (len(encode_extras(extras)) if extras else 0)
        update = Update(self._name, round, stage, public, self._n_samples, extras, False, 0.0, size)
        return Published(update, self._clock(), tag)
