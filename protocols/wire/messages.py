"""Messages between nodes. Every field has a type and a limit, both checked before an object is built.

A message is msgpack inside the header of its frame; large data is in the frame's payload.
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
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Tag = Annotated[bytes, Meta(max_length=8)]
Division = Literal["contiguous", "strided", "random", "layers"]
Parts = Annotated[int, Meta(ge=1, le=128)]
SumStep = Literal["roster", "shares", "survivors", "open"]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """First message of the dialler; its `HelloParameters` are the payload."""


class Welcome(_Message, frozen=True, tag="welcome"):
    """Answer to a hello; the answering side's `HelloParameters` are the payload."""


class Get(_Message, frozen=True, tag="get"):
    """Request for the model of (round, stage), answered by `ModelUpdate` or `NotAvailable` with the same number.

    `known` is the tag of a recipient's model that the sender has a copy of: eight bytes, or none.
    """

    request: UInt32
    round: UInt32
    stage: Stage
    known: Tag = b""


class ModelUpdate(_Message, frozen=True, tag="model_update"):
    """Model, with its parameters, or their difference from the model `base`, and its extras in the payload."""

    request: UInt32
    round: UInt32
    stage: Stage
    n_samples: UInt32
    final: bool
    age: Seconds
    base: Tag = b""


class NotAvailable(_Message, frozen=True, tag="not_available"):
    """Answer to a request for a model that does not exist and never will. `round` is the sender's current round."""

    request: UInt32
    round: UInt32
    reason: Literal["gone", "not allowed", "busy", "nothing yet"]


class GetFragments(_Message, frozen=True, tag="get_fragments"):
    """Request for parts of the model of (round, stage).

    It is answered by a `FragmentUpdate` for each part, or by `NotAvailable`, with the same number. Bit k of `wanted` is
    that of part k, the lowest bit of the first byte that of part 0.
    """

    request: UInt32
    round: UInt32
    stage: Stage
    division: Division
    parts: Parts
    wanted: Annotated[bytes, Meta(min_length=1, max_length=16)]


class FragmentUpdate(_Message, frozen=True, tag="fragment_update"):
    """Part of a model, with its values in the payload: part `part` of a division into `parts`."""

    request: UInt32
    round: UInt32
    stage: Stage
    n_samples: UInt32
    final: bool
    age: Seconds
    division: Division
    parts: Parts
    part: Annotated[int, Meta(ge=0, le=127)]


class Score(_Message, frozen=True, tag="score"):
    """Request for the mean loss of the model in the payload on the recipient's training data."""

    request: UInt32
    round: UInt32


class Scored(_Message, frozen=True, tag="scored"):
    """Answer to `Score`."""

    request: UInt32
    loss: float


class RoundReached(_Message, frozen=True, tag="round_reached"):
    """Announcement that the sender has reached `round`, or has gone back to it."""

    round: UInt32


class Ping(_Message, frozen=True, tag="ping"):
    request: UInt32


class Pong(_Message, frozen=True, tag="pong"):
    request: UInt32
    round: UInt32


class PingRequest(_Message, frozen=True, tag="ping_request"):
    """Request to ping the member `subject`, which does not answer the sender."""

    request: UInt32
    subject: Key


class IndirectAck(_Message, frozen=True, tag="indirect_ack"):
    """Report that the subject of a `PingRequest` has answered. Without an answer no message is sent."""

    request: UInt32
    subject: Key


class Entries(_Message, frozen=True, tag="entries"):
    """Entries of the membership log, in the payload, after the version that the recipient is known to have."""

    membership_version: UInt32

    LIMIT = 1 << 20  # maximum bytes of entries in one message


class MissingEntries(_Message, frozen=True, tag="missing_entries"):
    """Question for the entries after the first `known` ones, which is answered by `Entries`; only in version 7.

    A newcomer that has begun with a checkpoint asks for those before the checkpoint.
    """

    known: UInt32

    LIMIT = 256 << 10  # maximum bytes of entries in the answer


class Bye(_Message, frozen=True, tag="bye"):
    """Announcement that the sender's model is final: do not wait for it. With `leaving` it will not answer either."""

    round: UInt32
    leaving: bool


class Conflict(_Message, frozen=True, tag="conflict"):
    """Refusal of a replayed frame.

    The payload is the header and the signature of the newest frame of the recipient's key that the sender knows, of its
    newest model, or of both. The recipient learns that its folder was restored from an older copy, or that another
    process has its key.
    """


class Receipts(_Message, frozen=True, tag="receipts"):
    """Report of received models: the payload has the header and the signature of each of their frames."""

    MOST = 8


class Carried(_Message, frozen=True, tag="carried"):
    """Report for a member that is no peer of its author, which others carry: only in wire version 7.

    The payload begins with the rest of the way, `route` bytes of msgpack: the names of those who carry it from the recipient
    on, the last of them that of the witness; none at the witness. The rest is that of `Receipts`.
    """

    route: UInt32

    MOST = 16  # names


class Equivocation(_Message, frozen=True, tag="equivocation"):
    """Proof that a member has signed two different models of one round; see p2pfl.protocols.wire.envelope."""


class Vote(_Message, frozen=True, tag="vote"):
    """Request for the recipient's vote in a term; with `trial` only a question, which commits no member."""

    membership_version: UInt32
    term: UInt32
    trial: bool


class Voted(_Message, frozen=True, tag="voted"):
    """Answer to `Vote`: `term` is the requested one if the vote is granted, otherwise the sender's own."""

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
    """Answer to `Leading` of the same term; a later term with beat 0 reports that the recipient's term is over."""

    membership_version: UInt32
    term: UInt32
    beat: UInt32


class SignedVote(_Message, frozen=True, tag="signed_vote"):
    """Granted vote of a federation with a committee, in place of `Voted`. The payload is its signature.

    See p2pfl.protocols.term_certificates.
    """

    membership_version: UInt32
    term: UInt32


class TermCertificate(_Message, frozen=True, tag="term_certificate"):
    """Proof that a term has a coordinator: the payload is a p2pfl.protocols.term_certificates.Certificate."""

    membership_version: UInt32
    term: UInt32


class WhichTerm(_Message, frozen=True, tag="which_term"):
    """Question of a member outside the committee for the certificate of this or a later term."""

    membership_version: UInt32
    term: UInt32


class TermOver(_Message, frozen=True, tag="term_over"):
    """Report of the sender that it does not coordinate this term, or does so no more."""

    membership_version: UInt32
    term: UInt32


class Submit(_Message, frozen=True, tag="submit"):
    """Trained model of a round for the coordinator of a term, which answers with `Assigned`.

    The payload is the model; then the model at the start of the round, if `start` is set; then the rest of a submission
    (see p2pfl.protocols.wire.payload).
    """

    request: UInt32
    round: UInt32
    membership_version: UInt32
    term: UInt32
    n_samples: UInt32
    start: bool


class GroupMean(_Message, frozen=True, tag="group_mean"):
    """Mean of the models of a group for the coordinator of a term, which answers with `Assigned`.

    The payload is the mean, and the samples of each member by name (see p2pfl.node.coordination.groups).
    """

    request: UInt32
    round: UInt32
    membership_version: UInt32
    term: UInt32


class Assigned(_Message, frozen=True, tag="assigned"):
    """Answer of the coordinator of a term to `Submit`.

    With `given`, the payload is a model and the rest of an assignment. Without `given` there is no payload, and the
    submission has no result.
    """

    request: UInt32
    round: UInt32
    membership_version: UInt32
    term: UInt32
    given: bool


class SumRequest(_Message, frozen=True, tag="sum_request"):
    """Step of a secure sum, to one of its members, which answers with `SumAnswer` (see p2pfl.protocols.secure_sums).

    `request` is the number of the member's announcement.
    """

    request: UInt32
    round: UInt32
    membership_version: UInt32
    term: UInt32
    step: SumStep


class SumAnswer(_Message, frozen=True, tag="sum_answer"):
    """Announcement for a secure sum to the coordinator of a term, or the answer to a step of it.

    The last answer is followed by `Assigned` with the number of the announcement, as any other one may be.
    """

    request: UInt32
    round: UInt32
    membership_version: UInt32
    term: UInt32
    step: Literal["announce", SumStep]


ElectionMessage = Vote | Voted | Leading | Following
CommitteeMessage = SignedVote | TermCertificate | WhichTerm | TermOver
Coordinating = Submit | Assigned | GroupMean | SumRequest | SumAnswer
Learning = Get | ModelUpdate | GetFragments | FragmentUpdate | Score | Scored | Coordinating
Presence = (
    Hello
    | Welcome
    | NotAvailable
    | RoundReached
    | Ping
    | Pong
    | PingRequest
    | IndirectAck
    | Entries
    | MissingEntries
    | Bye
    | Conflict
)
Report = Receipts | Carried | Equivocation
Message = Presence | Report | Learning | ElectionMessage | CommitteeMessage
WithPayload = (
    Hello
    | Welcome
    | ModelUpdate
    | FragmentUpdate
    | Score
    | Entries
    | Coordinating
    | SignedVote
    | TermCertificate
    | Conflict
    | Report
)
# The kinds whose frames are signed in wire version 7; in version 6 all are. They are those whose frames, or headers, serve
# as evidence for others: a model (receipts, proofs of equivocation, conflicts), and an introduction, which shows each start
# of a node. And they are those that decide a coordinated round or an election, so that its messages can be judged later.
# Nobody shows the frames of other kinds to a third party: the link proves their author (see
# p2pfl.protocols.wire.envelope). The headers within receipts, proofs and conflicts are those of signed frames.
Signed = Hello | Welcome | ModelUpdate | FragmentUpdate | Coordinating | Vote | Voted

Scalar = Annotated[int, Meta(ge=-(2**53), le=2**53)] | Finite | bool | Text


class HelloParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Payload of hello and welcome.

    Attributes:
        agreed: the settings that must be equal on both sides, as text, by key ("layout", "policy.tau").
        public_info: public information about the sender's task.
        round: the sender's current round.
        stopped: whether its model is final.
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
        ProtocolError: the payload is not one.
    """
    if len(payload) > HelloParameters.LIMIT:
        raise ProtocolError("malformed", f"hello parameters of {len(payload)} bytes")
    try:
        return _hello_parameters.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", str(error)) from error
