"""Server of a node's models: preparation before publication, and real messages on virtual time."""

import asyncio
import threading

import numpy as np
import pytest

from p2pfl.compression.codecs import Float32, TopK
from p2pfl.errors import ConfigurationError
from p2pfl.node.exchange.base import Detached
from p2pfl.node.exchange.message_exchange import payload_limit
from p2pfl.node.exchange.model_encoding import WHOLE, ModelEncoder, Outbox, Publisher
from p2pfl.node.exchange.model_transfer import LARGE, ModelServer
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.protocols.wire.envelope import OVERHEAD, Payload
from p2pfl.protocols.wire.payload import EXTRAS_LIMIT
from tests.support.federation import play


class RecordingCodec(Float32):
    """Codec that records the threads that encode."""

    def encode(self, params, layout):
        self.threads.append(threading.current_thread())
        return super().encode(params, layout)

    @property
    def threads(self):
        return self.__dict__.setdefault("recorded", [])


def prepare(codec, size):
    """Return a model with `size` parameters, and the payloads of its server after its preparation."""
    params = np.arange(size, dtype=np.float32)
    encoder = ModelEncoder(codec, Layout((("model", (size,)),), size), np.zeros(size, np.float32))
    model = Publisher("a", 1, encoder, lambda: 0.0).make(1, "trained", params, {})
    server = ModelServer(None, None, Outbox(True), encoder, None)
    asyncio.run(server.prepare(model))
    return params, server.payloads


@pytest.mark.parametrize("size", [10, LARGE // 4])
def test_model_is_hashed_before_any_request(size):
    params, payloads = prepare(RecordingCodec(), size)
    assert payloads[1, "trained", WHOLE][1].digest == Payload.of(params.tobytes()).digest


@pytest.mark.parametrize(("size", "threaded"), [(10, False), (LARGE // 4 - 1, False), (LARGE // 4, True)])
def test_large_model_is_encoded_in_another_thread(size, threaded):
    prepare(codec := RecordingCodec(), size)
    assert [thread is not threading.main_thread() for thread in codec.threads] == [threaded]


def test_model_with_differences_is_not_prepared():
    assert prepare(TopK(), 10)[1] == {}


def test_model_of_repeated_round_replaces_the_encoded_one():
    received = []

    async def test(federation):
        async with asyncio.TaskGroup() as tasks:
            a, b = federation.exchange("a"), federation.exchange("b")
            await asyncio.gather(a.start(tasks, Detached()), b.start(tasks, Detached()))
            size = a.encoder.layout.size
            for round in (1, 2, 3):
                await a.publish(round, "trained", np.full(size, round, np.float32), {})
                received.extend(await b.fetch(["a"], round, "trained"))
            a.outbox.rewind(2)  # the round of the others
            received.extend(await b.fetch(["a"], 2, "trained"))
            await a.publish(3, "trained", np.full(size, 30, np.float32), {})
            received.extend(await b.fetch(["a"], 3, "trained"))
            await asyncio.gather(a.close(), b.close())

    play(test, ("a", "b"), Settings(rounds=5, deadline=10.0))
    assert [(update.round, update.params[0]) for update in received] == [(1, 1), (2, 2), (3, 3), (2, 2), (3, 30)]


@pytest.mark.parametrize("coordinated", [False, True])
def test_model_beyond_a_message_of_4_gib_is_refused(coordinated):
    most = (2**32 - 1 - OVERHEAD - EXTRAS_LIMIT) // (8 if coordinated else 4)
    assert OVERHEAD + payload_limit(most, coordinated) < 2**32
    with pytest.raises(ConfigurationError, match=f"at most 4 GiB \\({most:,} values"):
        payload_limit(most + 1, coordinated)
