"""A node's models as its peers receive them, and its peers' models as it has received them.

With most codecs, all peers receive the same bytes. With `top-k` and `sparse`, a request names the earlier model of which
the requesting node still has a copy. The answer is the difference from that model if it is smaller than the whole model.

The Publisher encodes a model once, and the Outbox keeps the models of the last two rounds and of the preparation, which
answer requests. In the other direction, ModelEncoder.receive makes all checks of the content of an incoming model;
its length was limited before, by FrameVerifier.open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from p2pfl.compression.codecs import Codec, Decoded, DecodeError, Differential, Float32, Sparse, decoded
from p2pfl.compression.sparse_updates import (
    PeerCopies,
    PeerCopy,
    PlainPublicCopy,
    Publication,
    PublicCopy,
    QuantisedPublicCopy,
    tag,
)
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.fragments import Fragments, Places, size_of
from p2pfl.parameters import Layout, Parameters, detached, norm
from p2pfl.policy import Extras, Stage, Update
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.protocols.wire.payload import decode_extras, encode_extras

LARGEST_RATIO = 1000.0  # maximum ratio of the norm of a peer's model to that of this node's models
WHOLE = b""  # used in place of a model's tag: no earlier model is known
Absence = Literal["gone", "nothing yet"]
Missing = Literal["wait"] | Absence


class ModelEncoder:
    """The codec of the federation, with the earlier models that peers know of this node, and it of them.

    Args:
        initial: the model with which all nodes start; only `top-k` and `sparse` need it.
    """

    def __init__(self, codec: Codec, layout: Layout, initial: Parameters | None = None) -> None:
        self.codec = codec
        self.layout = layout
        self.whole = codec.size(layout)
        self._public: PublicCopy | None = None
        self._copies: PeerCopies | None = None
        if isinstance(codec, Differential):
            if initial is None:
                raise ConfigurationError("a codec that sends differences needs a common initial model")
            k = codec.count(layout)
            if isinstance(codec, Sparse):
                self._public = QuantisedPublicCopy(codec, k, initial)
            else:
                self._public = PlainPublicCopy(k, initial)
            self._copies = PeerCopies(codec.copies, initial)

    @property
    def differences(self) -> bool:
        """Return whether the bytes of a model depend on the receiver."""
        return self._public is not None

    # Models that peers have of this node

    def publish(self, params: Parameters) -> tuple[Parameters, bytes]:
        """Return a model as peers receive it, float32 [P], and its tag; WHOLE if no differences from it are sent.

        Raises:
            RunError: the codec cannot encode the model, because some of its values are not finite.
        """
        if self._public is None and isinstance(self.codec, Float32):
            return params, WHOLE
        if not np.isfinite(params).all():
            raise RunError("cannot publish the model: some of its values are not finite")
        if self._public is not None:
            publication = self._public.publish(params)
            return self._public.params, publication.tag
        return self.codec.decode(self.codec.encode(params, self.layout), self.layout).params, WHOLE

    def base(self, model: Published, known: bytes) -> bytes:
        """Return the tag of the model to send the difference from to a peer that knows `known`; WHOLE to send all."""
        return known if self.size(model, known) < self.whole else WHOLE

    def size(self, model: Published, known: bytes) -> int:
        """Return the encoded size in bytes of the parameters of `model` for a peer that knows `known`."""
        size = None if self._public is None else self._public.size(known, model.tag)
        return self.whole if size is None else min(self.whole, size)

    def encode(self, model: Published, base: bytes) -> bytes | memoryview:
        """Return the encoded parameters, as a difference from `base`, which `base` has returned; or whole."""
        params = model.update.params
        if self._public is None or self._public.size(base, model.tag) is None:
            return self.codec.encode(params, self.layout)
        return self._public.encode(params, base, model.tag)

    def state(self) -> list[Publication]:
        return [] if self._public is None else self._public.publications

    def restore(self, publications: Sequence[Publication], models: Collection[Published]) -> None:
        """Restore the state from before a restart, with the models that were published."""
        if self._public is not None and publications:
            last = publications[-1].tag
            params = next((model.update.params for model in models if model.tag == last), self._public.params)
            if tag(params) == last:
                self._public.restore(publications, params)

    # Models that this node has of its peers

    def ask(self, ids: Sequence[str]) -> dict[str, PeerCopy]:
        """Return the copies of the models of peers to ask now, and drop old copies in favour of their answers."""
        if self._copies is None:
            return {}
        self._copies.ask(ids)
        return {id: self._copies.of(id) for id in ids}

    def decode(self, payload: memoryview, base: bytes, copy: PeerCopy | None) -> tuple[Decoded, memoryview]:
        """Return the model at the start of a payload, and the bytes after it.

        Args:
            base: the tag of the model from which the payload is a difference, or WHOLE.
            copy: the copy that the request named.

        Raises:
            ProtocolError: there is no model, or it is a difference from another model.
        """
        try:
            if base == WHOLE:
                return self.codec.decode(payload[: self.whole], self.layout), payload[self.whole :]
            if self._public is None or copy is None or base != copy.tag:
                raise ProtocolError("not asked for", "a difference from an unknown model")
            params, end = self._public.decode(payload, copy.params)
            return decoded(params), payload[end:]
        except DecodeError as error:
            raise ProtocolError(error.cause, str(error)) from error

    def receive(
        self, payload: memoryview, base: bytes, copy: PeerCopy | None, limit: NormLimit
    ) -> tuple[Parameters, dict[str, np.ndarray]]:
        """Return the model and the extras in a peer's answer, after all checks of its content.

        The bytes must be those of the codec for P finite values, or of a difference from `copy`; at most EXTRAS_LIMIT
        bytes may follow, and they must be valid extras; the norm must be within `limit`. The frame around them was
        checked before: its signature, its sender and the length of its payload (FrameVerifier).

        Raises:
            ProtocolError: one of these does not hold.
        """
        (params, size), rest = self.decode(payload, base, copy)
        extras = decode_extras(rest)
        limit.check_norm(size)
        return params, extras

    def receive_fragment(self, payload: memoryview, places: Places, limit: NormLimit) -> Parameters:
        """Return the values of a part of a model, float32 [p], after all checks of the content of an answer.

        Raises:
            ProtocolError: the payload is not p finite values, or their norm is not within `limit`.
        """
        if len(payload) != 4 * size_of(places):
            raise ProtocolError("wrong length", f"{len(payload)} bytes for a fragment of {size_of(places)} values")
        try:
            values, size = decoded(np.frombuffer(payload, "<f4"))
        except DecodeError as error:
            raise ProtocolError(error.cause, str(error)) from error
        limit.check_norm(size)
        return values

    def keep(self, id: str, round: int, params: Parameters, known: bytes = WHOLE) -> None:
        """Keep a copy of a peer's model; `known` is its tag, if it has been computed already."""
        if self._copies is not None:
            self._copies.keep(id, PeerCopy(known or tag(params), params, round))

    def expected_bytes(self, id: str, round: int) -> int:
        """Return the size in bytes of the frame that will contain a peer's model of a round, without extras.

        With `top-k` and `sparse` this is an upper bound if peers publish once per round, and usually correct otherwise.
        """
        if self._public is None or self._copies is None:
            return OVERHEAD + self.whole
        size = self._public.bound(max(1, round - self._copies.of(id).round))
        return OVERHEAD + (self.whole if size is None else min(self.whole, size))


def read_division(message: m.GetFragments | m.FragmentUpdate, layout: Layout) -> Fragments:
    """Return the division of models that a message names.

    Raises:
        ProtocolError: a model of this layout cannot be divided so.
    """
    try:
        fragments = Fragments(message.division, 0 if message.division == "layers" else message.parts)
        count = fragments.count(layout)
    except ConfigurationError as error:
        raise ProtocolError("malformed", str(error)) from error
    if count != message.parts:
        raise ProtocolError("malformed", f"{message.parts} parts by layers of a model with {count}")
    return fragments


def encode_values(values: Parameters) -> memoryview:
    """Return the bytes of some values of a model, float32 [p], little-endian."""
    return np.ascontiguousarray(values, "<f4").data.cast("B")


def pack_parts(parts: Iterable[int]) -> bytes:
    """Return the numbers of parts as bits, in as few bytes as possible."""
    bits = sum(1 << part for part in parts)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def read_parts(get: m.GetFragments) -> list[int]:
    """Return the numbers of the wanted parts, sorted.

    Raises:
        ProtocolError: there is none, or one is beyond the number of parts.
    """
    bits = int.from_bytes(get.wanted, "little")
    if not 0 < bits < 1 << get.parts:
        raise ProtocolError("malformed", f"wanted parts beyond {get.parts}, or none")
    return [part for part in range(get.parts) if bits >> part & 1]


class NormLimit:
    """Limit of the norm of peers' models: averaging with a much larger one would make this node's model useless.

    Attributes:
        own: greatest norm of this node's models.
    """

    def __init__(self) -> None:
        self.own = 0.0

    def note(self, params: Parameters) -> None:
        """Record the norm of one of this node's models."""
        self.own = max(self.own, norm(params))

    def check(self, params: Parameters) -> None:
        """Raise ProtocolError for a peer's model that is too large."""
        self.check_norm(norm(params))

    def check_norm(self, found: float) -> None:
        """Raise ProtocolError for a peer's model with a norm that is too large."""
        if found > LARGEST_RATIO * (1.0 + self.own):
            raise ProtocolError("too large", f"a model with the norm {found:.3g}; this node's has {self.own:.3g}")


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


class Publisher:
    """Encoder of a node's own models.

    Args:
        name: name of the node.
        clock: returns the time in seconds.
    """

    def __init__(self, name: str, n_samples: int, encoder: ModelEncoder, clock: Callable[[], float]) -> None:
        self._name = name
        self._n_samples = n_samples
        self._encoder = encoder
        self._clock = clock
        self._size = OVERHEAD + encoder.whole

    def make(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> Published:
        """Return a model, float32 [P], as peers receive it, with the bytes of its whole frame and the current time.

        Raises:
            RunError: the codec cannot encode the model, because some of its values are not finite.
        """
        public, tag = self._encoder.publish(params)
        size = self._size + (len(encode_extras(extras)) if extras else 0)
        update = Update(self._name, round, stage, public, self._n_samples, extras, False, 0.0, size)
        return Published(update, self._clock(), tag)
