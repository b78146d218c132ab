"""What nodes say to each other. Every field has a type and a limit that hold before anything is built from it.

A message travels as msgpack inside the header of its frame; what is large travels as the frame's payload.
"""

from __future__ import annotations

from sys import float_info
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from p2pfl.protocols.errors import ProtocolError

UInt32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
UInt63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
Seconds = Annotated[float, Meta(ge=0, le=float_info.max)]
Stage = Literal["prepared", "trained", "merged"]
Text = Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Tag = Annotated[bytes, Meta(max_length=8)]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """The dialler's first message; its `HelloParameters` are the payload."""


class Welcome(_Message, frozen=True, tag="welcome"):
    """The answer to a hello; the answering side's `HelloParameters` are the payload."""


class Get(_Message, frozen=True, tag="get"):
    """Asks for the model of (round, stage); a `ModelUpdate` or `NotAvailable` answers it with the same request number.

    `known` names a model of the recipient's that the sender has: eight bytes, or none.
    """

    request: UInt32
    round: UInt32
    stage: Stage
    known: Tag = b""


class ModelUpdate(_Message, frozen=True, tag="model_update"):
    """A model: the payload is its parameters and extras; or, in place of the parameters, what has changed since `base`."""

    request: UInt32
    round: UInt32
    stage: Stage
    n_samples: UInt32
    final: bool
    age: Seconds
    base: Tag = b""


class NotAvailable(_Message, frozen=True, tag="not_available"):
    """There is no such model and there will be none. `round` is where the answering node is."""

    request: UInt32
    round: UInt32
    reason: Literal["gone", "not allowed", "busy", "nothing yet"]


class Score(_Message, frozen=True, tag="score"):
    """Asks for the mean loss of the model in the payload on the recipient's training data."""

    request: UInt32
    round: UInt32


class Scored(_Message, frozen=True, tag="scored"):
    """The answer to a score."""

    request: UInt32
    loss: float


class RoundReached(_Message, frozen=True, tag="round_reached"):
    """Announces that the sender has reached `round`, or has gone back to it."""

    round: UInt32


class Ping(_Message, frozen=True, tag="ping"):
    request: UInt32


class Pong(_Message, frozen=True, tag="pong"):
    request: UInt32
    round: UInt32


class PingRequest(_Message, frozen=True, tag="ping_request"):
    """Asks the recipient to ping the member `subject`, which does not answer the sender."""

    request: UInt32
    subject: Key


class IndirectAck(_Message, frozen=True, tag="indirect_ack"):
    """The answer to a probe: the subject has answered. Without an answer nothing is said."""

    request: UInt32
    subject: Key


class Entries(_Message, frozen=True, tag="entries"):
    """Entries of the membership log, in the payload: those that follow the version that the recipient is known to have."""

    membership_version: UInt32

    LIMIT = 1 << 20  # bytes of entries in one message


class Bye(_Message, frozen=True, tag="bye"):
    """The sender's model is final: it is not waited for any more. With `leaving`, it will not answer either."""

    round: UInt32
    leaving: bool


class Conflict(_Message, frozen=True, tag="conflict"):
    """Refuses a frame as said before; the payload, a header and its signature, is a later frame of the recipient's key.

    So a node learns that its folder was restored from an older copy, or that another process has its key.
    """

    SIZE = 320


class Vote(_Message, frozen=True, tag="vote"):
    """Request for the recipient's vote in a term; with `trial`, only whether it would give it, which binds nobody."""

    membership_version: UInt32
    term: UInt32
    trial: bool


class Voted(_Message, frozen=True, tag="voted"):
    """The answer to a vote: `term` is the one that was asked for if it is granted, the sender's own if not."""

    membership_version: UInt32
    term: UInt32
    trial: bool
    granted: bool


class Leading(_Message, frozen=True, tag="leading"):
    """Beat of the coordinator of a term. Beats are counted from 1 in every term."""

    membership_version: UInt32
    term: UInt32
    beat: UInt32


class Following(_Message, frozen=True, tag="following"):
    """The answer to a leading of the same term; of a later term, with beat 0, it says that the recipient's is over."""

    membership_version: UInt32
    term: UInt32
    beat: UInt32


class Submit(_Message, frozen=True, tag="submit"):
    """Trained model of a round for the coordinator of a term, which answers with `Assigned`.

    The payload is the model, the model from which the round began if `start` says so, and what follows them in a submission
    (see p2pfl.protocols.wire.submission).
    """

    request: UInt32
    round: UInt32
    membership_version: UInt32
    term: UInt32
    n_samples: UInt32
    start: bool


class Assigned(_Message, frozen=True, tag="assigned"):
    """Answer of the coordinator of a term to `Submit`; with `given`, the payload is a model and what follows it.

    Without it there is no payload, and nothing will come of the submission.
    """

    request: UInt32
    round: UInt32
    membership_version: UInt32
    term: UInt32
    given: bool


ElectionMessage = Vote | Voted | Leading | Following
Learning = Get | ModelUpdate | Score | Scored | Submit | Assigned
Presence = Hello | Welcome | NotAvailable | RoundReached | Ping | Pong | PingRequest | IndirectAck | Entries | Bye | Conflict
Message = Presence | Learning | ElectionMessage
WithPayload = Hello | Welcome | ModelUpdate | Score | Entries | Submit | Assigned | Conflict

Scalar = Annotated[int, Meta(ge=-(2**53), le=2**53)] | Finite | bool | Text


class HelloParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of hello and welcome.

    Attributes:
        agreed: what both sides must have alike, in words, by key ("layout", "policy.tau").
        public_info: public facts of the sender's task.
        round: where the sender is.
        stopped: its model is final.
        membership_version: the newest entry of the membership log that the sender knows.
    """

    agreed: Annotated[dict[Name, Text], Meta(max_length=128)]
    public_info: Annotated[dict[Name, Scalar], Meta(max_length=32)]
    round: UInt32
    stopped: bool
    membership_version: UInt32 = 0

    LIMIT = 65_536

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_hello_parameters = msgspec.msgpack.Decoder(HelloParameters)


def decode_hello_parameters(payload: bytes | memoryview) -> HelloParameters:
    """Read the payload of a hello or welcome.

    Raises:
        ProtocolError: it is not one.
    """
    if len(payload) > HelloParameters.LIMIT:
        raise ProtocolError("malformed", f"hello parameters of {len(payload)} bytes")
    try:
        return _hello_parameters.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error
