"""Secure sums: a coordinator learns the weighted mean of its members' models, and no single model.

Theory of operation
===================

The method is that of Bonawitz et al. (2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning"), with
the check against a coordinator that lies, and for many members the sparse graph of Bell et al. (2020, "Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead"). This module has no clock, disk or network: `SumMember` and `SumCollector`
turn payloads into payloads. p2pfl.node.coordination.secure_rounds sends them, and docs/wire-protocol.md has their bytes.

**Masks.** A model is added up as integers modulo 2^64. Every two members u and v share a key, and from it a stream of
integers; u adds the stream to its model and v subtracts it. In the sum of all masked models these masks cancel, and each
masked model alone is uniformly random. A member that drops out leaves its pairwise masks in the others' models. Therefore
every member also gives shares of its secrets to others, its *helpers*, so that enough of them can open what is needed:

- of a member that has dropped out, the private masking key, from which the coordinator computes the masks that the others
  have shared with it;
- of a member whose masked model has arrived, the seed of a second mask, its *self mask*. It hides the model of a member that
  is believed to have dropped out, but whose masked model arrives late.

With both secrets of one member its model is open. So a helper gives one of them, never both.

**Steps.** The coordinator leads each member through these, and a member that misses one has dropped out:

    member       announcement   two public keys, a commitment to the self seed, and the number of samples, signed
    coordinator  roster         all announcements
    member                      shares of its secrets, sealed for each helper, and a hash of each share, its *check*
    coordinator  shares         the shares sealed for this member, and who has given shares (the *included*)
    member                      its masked model
    coordinator  survivors      the members whose masked models have arrived
    member                      its signature of the included and the survivors
    coordinator  open           the signatures
    member                      of each included member one share: of the self seed of a survivor, or of the masking key

**Threshold.** At least `threshold` members must be on the roster, be included, survive, sign, and open. So many shares
recover a secret where every member helps every other. Let n be the number of members with a vote and c the number of those
that collude with the coordinator, itself included. Two different lists of survivors cannot both be signed by `threshold`
members, of whom the honest ones sign one list, if

    2 threshold > n + c.

Then all honest helpers open the same list, c colluding members hold fewer than `threshold` shares of any other secret, and
the sum has at least threshold - c models of honest members. A member that was shown other included members than those who
have signed has an honest survivor among them, by the same count, so that its model is hidden in the same sum. The default is
more than two thirds of n, for c below a third. `threshold_of` allows no threshold that c = 1 breaks, the coordinator alone.

A model of the weight 0 is a sum of masks alone: it hides no other model. So on the roster, among the included and among the
survivors only members with samples count for the threshold, unless no member of the roster has any. A sum is not more
private than its weights: where one member has nearly all samples, the mean is nearly its model.

A member's signature is the point of no return: with it the coordinator may open the sum. A member that has signed makes no
other announcement in this round, whether it has opened or not. On the sparse graph this matters: few helpers open one model
there, so that a second sum of the same models might be opened by members that have only signed the first one.

**Sparse graph.** Above COMPLETE members a member has only `helpers_of(n)` helpers, and shares masks with its helpers and
with the members that it helps. It draws its helpers after it knows the roster, from its own secret: if the graph followed
from the roster, a coordinator could try rosters until a victim has only colluding helpers. But the coordinator, who passes
on the shares, knows the graph, and may claim that the honest helpers of a victim have dropped out. So a member goes on only
while at most a twentieth of the roster is missing from each list, and has more helpers than these and colluding ones could
be. For n members, of whom c = n / 5 collude, and lists from which the coordinator leaves out d = n / 20, each of these has a
probability of at most 2^-40 (exact hypergeometric tails, and for the last one a bound over all sets):

- colluding helpers of some member have enough shares to recover its secrets;
- of the helpers of some member, all but 2 d collude: d may be missing from its list of the included, and d from the list of
  survivors that is signed;
- the same of the members of some set together, whose sum would then be open.

With n / 5 members that are lost at random after they have given shares, a secret is lost with a probability below 2^-20.

**Binding.** All keys follow from the hash of the roster with the federation, the term and the round. Members that were
shown different rosters have different masks, which do not cancel. A member makes new keys for every submission, and opens
once.

The key of a pairwise mask also follows from the places and the public keys of both members, the lower place first, and that
of a seal from those of the owner and the helper. So no two pairs have the same key, also if their shared secrets are equal,
or related. They are where a colluding member z announces the key of an honest member h, the same point in other bytes, or a
multiple of it. Without this binding a victim v would add the mask of (v, z) and subtract the equal one of (v, h), and its
model would be open. Nobody has to prove that it has the private key to what it announces. Let v and h be honest. Whatever
is computed from shared secrets of other pairs goes through HKDF with other inputs. So under the oracle Diffie-Hellman
assumption (Abdalla et al. 2001, "DHIES") the stream of (v, h) is uniform for all who have neither private key, whatever z
announces. If z has no private key, its mask with v only stays in the sum, which is then spoilt, as by any wrong mask. As a
second line, members refuse rosters with equal keys, compared after the part of small order is removed.

**Wrong shares.** The coordinator leaves out a share that does not have the check that its owner has given. So a secret is
recovered at the first attempt if as many helpers as are needed give right shares, however many give wrong ones. A check
tells nothing: fewer shares than are needed are uniformly random numbers of 256 bits. Of a share without its check, either
the helper or the owner has lied. An owner that has given checks of shares that are of no secret spoils the sum, as with
wrong masks.

**Fixed point.** A value x of a member with the weight w is the integer nearest to x w / W 2^42, where W is the weight of the
roster. The range of x is |x| <= 2^20, so that the sum stays below 2^63; a member with a value beyond it, or not finite,
does not submit. With the weight W' of the n' survivors, the mean differs from that of exact numbers by at most
n' 2^-43 W / W' and the rounding of products of 53 bits, before it is rounded to float32.

**Not protected.** The members' weights (numbers of samples) and names are public. The sum itself tells something about its
models, more the fewer they are; the sums of two rounds in which one member more took part tell about its model. A member can
submit any model, also one that harms, and nothing can compare it with others. A member that shares its secrets, or masks
wrongly, spoils the sum; only wrong shares of helpers are left out where the others suffice, and wrong masks are not noticed.

Shamir's scheme is 20 lines here: the one in PyCryptodome shares secrets of 16 bytes, and that library would be the second
one for cryptography.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from threading import Lock
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, get_args

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from p2pfl.errors import ConfigurationError
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity, verify
from p2pfl.protocols.wire.messages import Name, SumStep, UInt32

Secret = Callable[[int], bytes]
"""Source of secret bytes: os.urandom on machines."""

STEPS: tuple[SumStep, ...] = get_args(SumStep)
"""Steps that a coordinator asks for, in their order; the answers are sealed shares, a masked model, a signature, shares."""

FRACTION = 2.0**42  # integers per unit of a value
RANGE = 2.0**20  # greatest magnitude of a value
LEAST = 3  # members of a sum: of two, each would know the other's model
COMPLETE = 128  # members up to which every member helps every other
COLLUDING = LOST = 5  # a fifth of the members at most, where the graph is sparse,
DROPPED = 20  # and a twentieth that is missing from each list
PRIVATE, RECOVERED = 2.0**-40, 2.0**-20  # probabilities of a failure, where the graph is sparse
PRIME = 2**256 + 297  # the least prime above all secrets of 32 bytes
SHARE_SIZE = 33  # bytes of a number below PRIME
KEY_SIZE = 32
SEALED_SIZE = 2 * SHARE_SIZE + 16  # two shares, and the tag of the seal
CHECK_SIZE = 16  # bytes of the hash of a share
ANNOUNCEMENT_SIZE = 3 * KEY_SIZE + 64
BLOCK = 2**16  # values that are masked at once

T = TypeVar("T")
_Key = Annotated[bytes, Meta(min_length=KEY_SIZE, max_length=KEY_SIZE)]
_Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
_Share = Annotated[bytes, Meta(min_length=SHARE_SIZE, max_length=SHARE_SIZE)]
_Sealed = Annotated[bytes, Meta(min_length=SEALED_SIZE, max_length=SEALED_SIZE)]
_Checks = Annotated[bytes, Meta(min_length=2 * CHECK_SIZE, max_length=2 * CHECK_SIZE)]
_Set = Annotated[bytes, Meta(max_length=2**13)]  # bit k mod 8 (the lowest is 0) of byte k div 8: member k of the roster
MOST = 2**16  # members of a roster


def hides_from(colluding: int, threshold: int, voters: int) -> bool:
    """Return whether so many colluding members, the coordinator included, learn no more than one sum of each round.

    Args:
        threshold: the least number of members whose sum is opened.
        voters: number of members with a vote.
    """
    sparse = voters > COMPLETE
    return 2 * threshold > voters + colluding and not (sparse and colluding > voters // COLLUDING)


def threshold_of(wanted: int, voters: int) -> int:
    """Return the least number of members whose sum is opened.

    Args:
        wanted: setting of the federation; 0 is more than two thirds of the voters. A number at which the coordinator alone
            could open two lists of survivors has no effect; see the head of the module.
        voters: number of members with a vote.
    """
    return max(wanted or 2 * voters // 3 + 1, (voters + 1) // 2 + 1, LEAST)


@lru_cache(maxsize=256)
def helpers_of(members: int) -> int:
    """Return the number of other members that help a member of a roster; see the head of the module."""
    others, colluding, dropped = members - 1, members // COLLUDING, members // DROPPED
    if members > COMPLETE:
        subsets = _Subsets(members)
        for helpers in range(2 * dropped + 1, others):
            needed = _needed(helpers)
            private = sum(subsets.tail(others, colluding, helpers, least) for least in (needed, helpers - 2 * dropped))
            lost = subsets.tail(others, members // LOST, helpers, helpers - needed + 1)
            if members * private > PRIVATE or members * lost > RECOVERED:
                continue
            if subsets.cut(members - colluding, colluding, dropped, helpers) <= PRIVATE:
                return helpers
    return others


def remaining_of(members: int, threshold: int) -> int:
    """Return the least number of members of a roster that must be included, and survive."""
    sparse = helpers_of(members) < members - 1
    return max(threshold, members - members // DROPPED) if sparse else threshold


def _needed(helpers: int) -> int:
    """Return the number of shares of a secret that are needed on a sparse graph: most of those of helpers and owner."""
    return (helpers + 1) // 2 + 1


class _Subsets:
    """Numbers of subsets, and probabilities of draws without replacement, of up to so many members."""

    def __init__(self, members: int) -> None:
        self._factorials = np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, members + 1)))])

    def bits(self, members: Any, drawn: Any) -> Any:
        """Return the binary logarithm of the number of subsets of `drawn` of some members; integers or their arrays."""
        table = self._factorials
        return table[members] - table[drawn] - table[members - drawn]

    def tail(self, members: int, marked: int, drawn: int, least: int) -> float:
        """Return the probability of at least so many marked members among those drawn."""
        hits = np.arange(max(least, drawn - (members - marked)), min(marked, drawn) + 1)
        bits = self.bits(marked, hits) + self.bits(members - marked, drawn - hits) - self.bits(members, drawn)
        return float(np.exp2(bits).sum())

    def cut(self, honest: int, colluding: int, dropped: int, helpers: int) -> float:
        """Return a bound of the probability that some honest members share masks with no honest survivor but themselves.

        It is a sum over all sets of two to half of the honest members, and over all sets missing from the survivors.
        """
        total = 0.0
        for inside in range(2, honest // 2 + 1):
            each = self.tail(honest + colluding - 1, inside + colluding + dropped, helpers, helpers - dropped)
            if each > 0:
                bits = self.bits(honest, inside) + self.bits(honest, dropped) + inside * np.log2(each)
                total += float(np.exp2(min(bits, 0.0)))
        return total


# Fixed point


def check_range(params: np.ndarray, more: float = 0.0) -> None:
    """Raise ConfigurationError if a model cannot be added up; float32 [P].

    Args:
        more: magnitude by which noise may raise its values.
    """
    greatest = float(np.abs(params).max(initial=0.0)) + more
    if not greatest <= RANGE:  # also if it is not a number
        raise ConfigurationError(
            f"the model has a value of magnitude {greatest:g}, and secure sums take values up to {RANGE:,.0f}; it is not"
            " submitted: use a lower learning rate, or no secure sums",
            "secure_sums",
        )


def to_fixed_point(params: np.ndarray, share: float) -> np.ndarray:
    """Return the integers of a model, modulo 2^64.

    Args:
        params: float32 [P], within RANGE.
        share: weight of the model in the roster, from 0 to 1.

    Returns:
        uint64 [P], a new array.
    """
    scaled: np.ndarray = np.rint(params.astype(np.float64) * (share * FRACTION)).astype(np.int64).view(np.uint64)
    return scaled


def from_fixed_point(total: np.ndarray, share: float) -> np.ndarray:
    """Return the mean of the models in a sum, float32 [P]; `share` is their weight in the roster, above 0."""
    mean: np.ndarray = (total.view(np.int64).astype(np.float64) * (1 / (share * FRACTION))).astype(np.float32)
    return mean


def shares_of(samples: Mapping[str, int]) -> dict[str, float]:
    """Return each member's weight in a roster, by its samples; they are equal if no member has samples."""
    total = sum(samples.values())
    return {name: n / total if total else 1 / len(samples) for name, n in samples.items()}


def counted_of(samples: Mapping[str, int]) -> set[str]:
    """Return the members of a roster that count for the threshold: with a weight of 0 no model is hidden by another."""
    return {name for name, share in shares_of(samples).items() if share}


# Shamir (1979, "How to share a secret"), over the numbers modulo PRIME


def share_secret(secret: bytes, points: Sequence[int], needed: int, source: Secret) -> list[bytes]:
    """Return a share of a secret of 32 bytes for each point; so many of them are needed to recover it.

    Args:
        points: different numbers above 0.
    """
    # 16 bytes more than the prime has, so that the remainder is uniform but for 2^-128
    higher = [int.from_bytes(source(SHARE_SIZE + 16), "big") % PRIME for _ in range(needed - 1)]
    coefficients = [int.from_bytes(secret, "big"), *higher]
    values = []
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        values.append(value.to_bytes(SHARE_SIZE, "big"))
    return values


def recover_secret(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret from as many shares as are needed, by point; None if they are not shares of 32 bytes."""
    factors = _lagrange(tuple(shares))
    secret = sum(int.from_bytes(share, "big") * factor for share, factor in zip(shares.values(), factors, strict=True))
    secret %= PRIME
    return secret.to_bytes(KEY_SIZE, "big") if secret < 2**256 else None


@lru_cache(maxsize=16)  # where every member helps every other, many secrets are recovered from the same points
def _lagrange(points: tuple[int, ...]) -> list[int]:
    """Return the factors with which values at some points give the value at 0."""
    factors = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return factors


# Keys, masks and seals


def pairwise_secret(private: bytes, public: bytes) -> bytes:
    """Return the secret that two members share, 32 bytes, from the private key of one and the public key of the other.

    Raises:
        ProtocolError: the public key is of small order.
    """
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise ProtocolError("malformed", "a public key of small order") from error


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive_key(secret: bytes, sum_id: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose within one sum (HKDF-SHA256, RFC 5869)."""
    return HKDF(SHA256(), KEY_SIZE, salt=sum_id, info=purpose).derive(secret)


def add_mask(total: np.ndarray, key: bytes, *, subtract: bool = False) -> None:
    """Add a mask, the ChaCha20 stream of a key as little-endian integers, modulo 2^64; uint64 [P], in place."""
    stream, zeros = Cipher(ChaCha20(key, bytes(16)), None).encryptor(), bytes(8 * min(BLOCK, len(total)))
    for at in range(0, len(total), BLOCK):
        part = total[at : at + BLOCK]
        mask = np.frombuffer(stream.update(zeros[: 8 * len(part)]), "<u8")
        if subtract:
            part -= mask
        else:
            part += mask


_MASK, _SELF, _SEAL = b"p2pfl secure sum mask 2\0", b"p2pfl secure sum self mask 1\0", b"p2pfl secure sum share 2\0"
_SUM, _ANNOUNCED = b"p2pfl secure sum 1\0", b"p2pfl secure sum announcement 1\0"
_COMMITTED, _SURVIVED = b"p2pfl secure sum commitment 1\0", b"p2pfl secure sum survivors 1\0"
_CHECKED = b"p2pfl secure sum check 1\0"


def self_key(seed: bytes, sum_id: bytes) -> bytes:
    return derive_key(seed, sum_id, _SELF)


def _check(share: bytes) -> bytes:
    return sha256(_CHECKED + share).digest()[:CHECK_SIZE]


def _commitment(seed: bytes) -> bytes:
    return sha256(_COMMITTED + seed).digest()


@lru_cache(maxsize=2**14)
def _subgroup_part(public: bytes) -> bytes:
    """Return the same bytes for all public keys that give the same shared secrets.

    A private key is a multiple of 8, which removes the part of small order, and the result has one encoding.

    Raises:
        ProtocolError: the public key is of small order.
    """
    return pairwise_secret(bytes(KEY_SIZE), public)


_NONCE = bytes(12)  # each key seals one message


# Payloads


class SumContext(NamedTuple):
    """Round of a federation to which a sum belongs.

    Attributes:
        federation: 16 bytes.
        membership_version, term: of the coordinator.
    """

    federation: bytes
    membership_version: int
    term: int
    round: int

    def encode(self) -> bytes:
        return self.federation + b"".join(number.to_bytes(4, "big") for number in self[1:])


class Announcement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Member's part of a roster.

    Attributes:
        n_samples: weight of its model.
        sealing: public key with which shares are sealed for it.
        masking: public key of its pairwise masks.
        commitment: hash of its self seed.
        signature: of all of these and of the context, by its identity.
    """

    name: Name
    n_samples: UInt32
    sealing: _Key
    masking: _Key
    commitment: _Key
    signature: _Signature

    def content(self, context: SumContext) -> bytes:
        """Return what the member signs."""
        samples = self.n_samples.to_bytes(4, "big")
        return _ANNOUNCED + context.encode() + samples + self.sealing + self.masking + self.commitment

    def check(self, context: SumContext, key: bytes) -> None:
        """Raise ProtocolError unless the owner of an identity's key has made the announcement for this round."""
        if not verify(key, self.signature, self.content(context)):
            raise ProtocolError("wrong signature", f"an announcement that {self.name} has not signed")

    def comparable_keys(self) -> tuple[bytes, bytes]:
        """Return what the public keys are compared by: two that give the same shared secrets are equal.

        Raises:
            ProtocolError: one of them is of small order.
        """
        return _subgroup_part(self.sealing), _subgroup_part(self.masking)

    def check_keys(self) -> None:
        """Raise ProtocolError for a public key of small order, and for equal ones, with which no member would go on."""
        sealing, masking = self.comparable_keys()
        if sealing == masking:
            raise ProtocolError("malformed", "an announcement with equal keys")

    def encode(self) -> bytes:
        """Return the payload of a submission; the frame has the name and the number of samples."""
        return self.sealing + self.masking + self.commitment + self.signature


def read_announcement(name: str, n_samples: object, payload: bytes | memoryview) -> Announcement:
    """Return the announcement in a submission. Its signature is not verified.

    Args:
        n_samples: what the member has introduced itself with, unchecked.

    Raises:
        ProtocolError: the payload has another length, or the number of samples is none.
    """
    if len(payload) != ANNOUNCEMENT_SIZE:
        raise ProtocolError("wrong length", f"an announcement of {len(payload)} bytes")
    if type(n_samples) is not int or not 0 <= n_samples < 2**32:  # True is an int, too
        raise ProtocolError("malformed", f"an announcement of {name} with n_samples that are no number below 2^32")
    data = bytes(payload)
    return Announcement(name, n_samples, data[:32], data[32:64], data[64:96], data[96:])


class SealedShares(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Shares of a member's two secrets, sealed. `member` is the place in the roster of the other one: helper or owner."""

    member: UInt32
    sealed: _Sealed


class GivenShares(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The same with the checks of both shares, for the coordinator; `member` is the place of the helper."""

    member: UInt32
    sealed: _Sealed
    checks: _Checks


class SignedBy(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Signature of the list of survivors by the member at a place of the roster."""

    member: UInt32
    signature: _Signature


class OpenedShare(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Share of one secret of the member at a place of the roster: the self seed of a survivor, else the masking key."""

    owner: UInt32
    share: _Share


_Many = Meta(max_length=MOST)
_roster = msgspec.msgpack.Decoder(Annotated[list[Announcement], _Many])
_given = msgspec.msgpack.Decoder(Annotated[list[GivenShares], _Many])
_shares = msgspec.msgpack.Decoder(tuple[_Set, Annotated[list[SealedShares], _Many]])
_survivors = msgspec.msgpack.Decoder(_Set)
_signatures = msgspec.msgpack.Decoder(Annotated[list[SignedBy], _Many])
_opened = msgspec.msgpack.Decoder(Annotated[list[OpenedShare], _Many])
_encode = msgspec.msgpack.encode


def _decode(payload: bytes | memoryview, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", f"a step of a secure sum: {error}") from error


def _to_set(places: Sequence[int], members: int) -> bytes:
    """Return a set of places of a roster as bits."""
    bits = sum(1 << place for place in places)
    return bits.to_bytes(-(-members // 8), "little")


def _from_set(data: bytes, members: int) -> list[int]:
    """Return the places of a set, ascending.

    Raises:
        ProtocolError: it is not a set of places of this roster.
    """
    bits = int.from_bytes(data, "little")
    if len(data) != -(-members // 8) or bits >> members:
        raise ProtocolError("malformed", "a set of members that does not fit the roster")
    return [place for place in range(members) if bits >> place & 1]


def _survivors_content(sum_id: bytes, included: bytes, survivors: bytes) -> bytes:
    return _SURVIVED + sum_id + included + survivors


class Roster:
    """Roster of a sum.

    Attributes:
        members: in the order of their names.
        helpers: number of helpers of each member.
        needed: number of shares that recover a secret.
        remaining: least number of members that must be included, and survive.
        counted: places of the members that count for the threshold of models.
    """

    def __init__(self, context: SumContext, members: Sequence[Announcement], payload: bytes, threshold: int) -> None:
        self.members = members
        self.sum_id = sha256(_SUM + context.encode() + payload).digest()
        self.places = {member.name: place for place, member in enumerate(members)}
        self.helpers = helpers_of(len(members))
        self.needed = _needed(self.helpers) if self.helpers < len(members) - 1 else threshold
        self.remaining = remaining_of(len(members), threshold)
        samples = {member.name: member.n_samples for member in members}
        self.weights = shares_of(samples)
        self.counted = {self.places[name] for name in counted_of(samples)}
        self._threshold = threshold

    def lacks(self, places: Collection[int]) -> str:
        """Return what is needed if so few members may not be on the roster, be included, or survive; else ""."""
        if len(places) < self.remaining:
            return f"{self.remaining} members"
        if len(self.counted.intersection(places)) < self._threshold:
            return f"{self._threshold} members with samples"
        return ""

    def mask_key(self, private: bytes, owner: int, other: int) -> bytes:
        """Return the key of the mask of two members, from the private key of one of them.

        It is bound to both; see the head of the module.
        """
        secret = pairwise_secret(private, self.members[other].masking)
        low, high = sorted((owner, other))
        places = low.to_bytes(4, "big") + high.to_bytes(4, "big")
        return derive_key(secret, self.sum_id, _MASK + places + self.members[low].masking + self.members[high].masking)

    def seal(self, private: bytes, own: int, owner: int, helper: int) -> ChaCha20Poly1305:
        """Return the seal of the shares from an owner to a helper, whose key seals one message.

        Args:
            private: private key of the member at the place `own`, which is one of the two.
        """
        secret = pairwise_secret(private, self.members[helper if own == owner else owner].sealing)
        places = owner.to_bytes(4, "big") + helper.to_bytes(4, "big")
        use = _SEAL + places + self.members[owner].sealing + self.members[helper].sealing
        return ChaCha20Poly1305(derive_key(secret, self.sum_id, use))


class SumNoise(Protocol):
    """Noise that a member adds to its model in a sum, where the noise of all adds up; see p2pfl.central_noise."""

    def check(self, members: Sequence[str]) -> None:
        """Raise ConfigurationError if the noise of the members with samples of a roster does not suffice for this one."""

    def add(self, total: np.ndarray, unit: float) -> None:
        """Add noise to a model in integers; uint64 [P], in place.

        Args:
            unit: integers per unit of a value.

        Raises:
            ConfigurationError: the integers do not suit the noise.
        """


class SumMember:
    """One member of one sum: its secrets, and its answers to the coordinator, each of them given once.

    Args:
        params: the member's model; float32 [P].
        n_samples: number of its samples.
        keys: returns the identity's public key of a member with a vote; None for any other name.
        threshold: see `threshold_of`.
        noise: what it adds to its model before it masks it; None for nothing.

    Attributes:
        announcement: what it submits in place of its model.
        round: the round of the sum.
        signed: whether it has agreed to open the sum, by its signature of the survivors.
        announced, submitted: numbers of the members that have announced themselves, and whose masked models have arrived;
            0 until the coordinator has said so.

    Raises:
        ConfigurationError: the model has values beyond the range.
    """

    def __init__(
        self,
        name: str,
        identity: Identity,
        context: SumContext,
        params: np.ndarray,
        n_samples: int,
        *,
        keys: Callable[[str], bytes | None],
        threshold: int,
        source: Secret,
        noise: SumNoise | None = None,
    ) -> None:
        check_range(params)
        self._name = name
        self._identity = identity
        self._context = context
        self._params = params
        self._keys = keys
        self._threshold = threshold
        self._source = source
        self._noise = noise
        self._sealing, self._masking, self._seed = source(KEY_SIZE), source(KEY_SIZE), source(KEY_SIZE)
        public = (public_key(self._sealing), public_key(self._masking), _commitment(self._seed))
        unsigned = Announcement(name, n_samples, *public, bytes(64))
        self.announcement = msgspec.structs.replace(unsigned, signature=identity.sign(unsigned.content(context)))
        self.round = context.round
        self.signed = False
        self.announced = self.submitted = 0
        self._busy = Lock()
        self._next = 0  # the step that may follow
        self._roster: Roster
        self._helpers: list[int] = []  # places of its helpers
        self._held: dict[int, tuple[bytes, bytes]] = {}  # by owner: shares of the masking key, and of the self seed
        self._included: list[int] = []
        self._survivors: list[int] = []
        self._content = b""  # what it has signed

    def answer(self, step: SumStep, payload: bytes | memoryview) -> bytes:
        """Return the answer to a step of the coordinator.

        Raises:
            ProtocolError: the step is not the next one, is malformed, or would reveal more than the sum; the member then
                takes no further part.
            ConfigurationError: the noise does not suffice; it takes no further part either.
        """
        with self._busy:  # another thread may come with the same step
            if self._next != STEPS.index(step):
                raise ProtocolError("not asked for", f"the step {step!r} of a secure sum out of order")
            self._next = len(STEPS)  # nothing follows an error
        answer = {
            "roster": self._share,
            "shares": self._mask,
            "survivors": self._sign,
            "open": self._open,
        }[step](payload)
        self._next = STEPS.index(step) + 1
        return answer

    def _enough(self, places: Collection[int], what: str) -> None:
        """Raise ProtocolError unless so many members may be on the roster, be included, or survive."""
        self._at_least(places, what, self._roster.remaining)
        self._at_least(self._roster.counted.intersection(places), f"{what} with samples", self._threshold)

    def _at_least(self, some: Collection[object], what: str, needed: int) -> None:
        if len(some) < needed:
            raise ProtocolError("malformed", f"a sum of {len(some)} {what}, and {needed} are needed")

    def _share(self, payload: bytes | memoryview) -> bytes:
        """Check the roster, and return the own secrets' shares, sealed for each helper."""
        members = _decode(payload, _roster)
        names = [member.name for member in members]
        if names != sorted(set(names)):
            raise ProtocolError("malformed", "a roster that is not in the order of names")
        self._at_least(members, "announcements", self._threshold)
        for member in members:
            if member.name == self._name:
                continue
            key = self._keys(member.name)
            if key is None:
                raise ProtocolError("malformed", f"a roster with {member.name}, which has no vote")
            member.check(self._context, key)
        self._roster = roster = Roster(self._context, members, bytes(payload), self._threshold)
        if self.announcement not in members:
            raise ProtocolError("malformed", "a roster without this member")
        self._enough(range(len(members)), "announcements")
        if len({key for member in members for key in member.comparable_keys()}) < 2 * len(members):
            raise ProtocolError("malformed", "a roster with equal keys")
        if self._noise is not None:  # whoever is left of the roster later
            self._noise.check([members[place].name for place in sorted(roster.counted)])
        self.announced = len(members)
        own = roster.places[self._name]
        others = [place for place in range(len(members)) if place != own]
        if roster.helpers < len(others):
            draw = self._source(KEY_SIZE)
            others.sort(key=lambda place: sha256(draw + place.to_bytes(4, "big")).digest())
        self._helpers = sorted(others[: roster.helpers])
        points = [place + 1 for place in (*self._helpers, own)]
        keys, seeds = (share_secret(s, points, roster.needed, self._source) for s in (self._masking, self._seed))
        self._held[own] = keys[-1], seeds[-1]
        sealed = []
        for place, key_share, seed_share in zip(self._helpers, keys, seeds, strict=False):
            seal = roster.seal(self._sealing, own, own, place)
            sealed.append(
                GivenShares(
                    place, seal.encrypt(_NONCE, key_share + seed_share, None), _check(key_share) + _check(seed_share)
                )
            )
        return _encode(sealed)

    def _mask(self, payload: bytes | memoryview) -> bytes:
        """Keep the shares of others, and return the masked model."""
        roster = self._roster
        data, given = _decode(payload, _shares)
        included = _from_set(data, len(roster.members))
        self._enough(included, "members that have given shares")
        own = roster.places[self._name]
        owners = [shares.member for shares in given]
        if own not in included or len(set(owners)) < len(owners) or not set(owners) <= set(included) - {own}:
            raise ProtocolError("malformed", "shares of members that are not included")
        for shares in given:
            seal = roster.seal(self._sealing, own, shares.member, own)
            try:
                both = seal.decrypt(_NONCE, shares.sealed, None)
            except InvalidTag:  # its owner, or the coordinator, has spoilt it: the other helpers must suffice
                continue
            self._held[shares.member] = both[:SHARE_SIZE], both[SHARE_SIZE:]
        self._included = included
        total = to_fixed_point(self._params, roster.weights[self._name])
        if self._noise is not None:
            self._noise.add(total, roster.weights[self._name] * FRACTION)
        add_mask(total, self_key(self._seed, roster.sum_id))
        for place in sorted(set(included) & set(self._helpers) | set(owners)):
            add_mask(total, roster.mask_key(self._masking, own, place), subtract=place < own)
        return total.astype("<u8", copy=False).tobytes()

    def _sign(self, payload: bytes | memoryview) -> bytes:
        """Return the signature of the included and the survivors, which it signs once."""
        members = self._roster.members
        data = _decode(payload, _survivors)
        survivors = _from_set(data, len(members))
        self._enough(survivors, "masked models")
        if not set(survivors) <= set(self._included) or self._roster.places[self._name] not in survivors:
            raise ProtocolError("malformed", "survivors that are not included, or a list without this member")
        self._survivors = survivors
        self.submitted = len(survivors)
        self._content = _survivors_content(self._roster.sum_id, _to_set(self._included, len(members)), data)
        self.signed = True
        return self._identity.sign(self._content)

    def _open(self, payload: bytes | memoryview) -> bytes:
        """Check that enough members have signed the same, and return one share of each included member."""
        members = self._roster.members
        signed = _decode(payload, _signatures)
        signers = {each.member for each in signed}
        if len(signers) < len(signed) or not signers <= set(self._survivors):
            raise ProtocolError("malformed", "signatures of members that are not survivors")
        self._at_least(signed, "signatures", self._threshold)
        for each in signed:
            name = members[each.member].name
            key = self._identity.public if name == self._name else self._keys(name)
            if key is None or not verify(key, each.signature, self._content):
                raise ProtocolError("wrong signature", f"survivors that {name} has not signed")
        survivors = set(self._survivors)
        opened = [
            OpenedShare(owner, seed if owner in survivors else key) for owner, (key, seed) in sorted(self._held.items())
        ]
        self._held = {}
        return _encode(opened)


class SumCollector:
    """The coordinator's side of one sum. Members that miss a step, or answer it wrongly, have dropped out.

    Args:
        announcements: of the members, with valid signatures.
        threshold: see `threshold_of`.
        size: P, the number of values of a model.

    Two members with equal keys do not get on the roster, because no member would go on.

    Attributes:
        wrong: by place of the helper and of the owner: shares that were left out, because they are not what the owner has
            given the helper, or because the owner has given shares of no secret (helper and owner are the same then).
        lack: the members that the last step needs, if fewer have come to it; else "".
    """

    def __init__(self, context: SumContext, announcements: Sequence[Announcement], threshold: int, size: int) -> None:
        keys = Counter(key for member in announcements for key in member.comparable_keys())
        unique = (member for member in announcements if all(keys[key] == 1 for key in member.comparable_keys()))
        members = sorted(unique, key=lambda member: member.name)
        self._payload = _encode(members)
        self._roster = Roster(context, members, self._payload, threshold)
        self._threshold = threshold
        self._given: dict[int, dict[int, bytes]] = {}  # by owner: by helper: the checks of both shares
        self._sealed_for: dict[int, list[SealedShares]] = {}  # by helper
        self._total = np.zeros(size, np.uint64)
        self._arrived: list[int] = []  # members whose masked models are in the total
        self._included = self._survivors = b""
        self._signatures: dict[int, bytes] = {}
        self._opened: dict[int, dict[int, bytes]] = {}  # by owner: by helper: a share of one secret
        self._openers: list[int] = []
        self.wrong: set[tuple[int, int]] = set()
        self.lack = ""

    def begin(self, step: SumStep) -> Sequence[str] | None:
        """End the step before, and return the members that are asked this one; None if they are too few."""
        members = self._roster.members
        asked: Sequence[int] = range(len(members))
        if step == "shares":
            asked = sorted(self._given)
            self._included = _to_set(asked, len(members))
        elif step == "survivors":
            asked = sorted(self._arrived)
            self._survivors = _to_set(asked, len(members))
        elif step == "open":
            asked = sorted(self._signatures)
        if step != "open":
            self.lack = self._roster.lacks(asked)
        elif len(asked) < self._threshold:
            self.lack = f"{self._threshold} members"
        return None if self.lack else [members[place].name for place in asked]

    def request(self, step: SumStep, name: str) -> bytes:
        """Return the payload of a step for one of the members that are asked."""
        if step == "roster":
            return self._payload
        if step == "shares":
            sealed = self._sealed_for.get(self._roster.places[name], [])
            return _encode((self._included, sorted(sealed, key=lambda shares: shares.member)))
        if step == "survivors":
            return _encode(self._survivors)
        return _encode([SignedBy(place, signature) for place, signature in sorted(self._signatures.items())])

    def take(self, step: SumStep, name: str, key: bytes, payload: bytes | memoryview) -> None:
        """Take the answer of a member that was asked, once.

        Args:
            key: public key of its identity.

        Raises:
            ProtocolError: it is not an answer to this step.
        """
        place, members = self._roster.places[name], self._roster.members
        if step == "roster":
            given = {each.member: each for each in _decode(payload, _given)}
            if len(given) != self._roster.helpers or place in given or max(given, default=0) >= len(members):
                raise ProtocolError("malformed", "shares for other members than its helpers")
            self._given[place] = {helper: each.checks for helper, each in given.items()}
            for helper, each in given.items():
                self._sealed_for.setdefault(helper, []).append(SealedShares(place, each.sealed))
        elif step == "shares":
            if len(payload) != 8 * len(self._total):
                raise ProtocolError("wrong length", f"a masked model of {len(payload)} bytes")
            self._total += np.frombuffer(payload, "<u8")
            self._arrived.append(place)
        elif step == "survivors":
            signature = bytes(payload)
            if not verify(key, signature, _survivors_content(self._roster.sum_id, self._included, self._survivors)):
                raise ProtocolError("wrong signature", f"survivors that {name} has not signed")
            self._signatures[place] = signature
        else:
            self._openers.append(place)
            for each in _decode(payload, _opened):
                if each.owner < len(members) and (each.owner == place or place in self._given.get(each.owner, ())):
                    self._opened.setdefault(each.owner, {})[place] = each.share

    def result(self) -> tuple[np.ndarray, dict[str, int]] | None:
        """Return the mean of the survivors' models, float32 [P], and their numbers of samples.

        Returns:
            None if too few members have opened, a secret cannot be recovered, or the survivors have no weight.
        """
        roster, members = self._roster, self._roster.members
        survivors = sorted(self._arrived)
        weight = sum(roster.weights[members[place].name] for place in survivors)
        if len(self._openers) < self._threshold or not weight:
            return None
        for place in sorted(self._given):
            seed_or_key = self._recover(place, place in survivors)
            if seed_or_key is None:
                return None
            if place in survivors:
                add_mask(self._total, self_key(seed_or_key, roster.sum_id), subtract=True)
                continue
            for other in survivors:
                if other in self._given[place] or place in self._given[other]:
                    # what `other` has added, or subtracted
                    add_mask(self._total, roster.mask_key(seed_or_key, place, other), subtract=other < place)
        mean = from_fixed_point(self._total, weight)
        return mean, {members[place].name: members[place].n_samples for place in survivors}

    def _recover(self, owner: int, survived: bool) -> bytes | None:
        """Return a secret of a member, if enough right shares are known."""
        opened, given, needed = self._opened.get(owner, {}), self._given[owner], self._roster.needed
        at = CHECK_SIZE if survived else 0
        right = {}
        for place, share in sorted(opened.items()):
            if place == owner:
                continue
            if _check(share) == given[place][at : at + CHECK_SIZE]:
                right[place + 1] = share
            else:
                self.wrong.add((place, owner))
        if len(right) < needed and owner in opened:  # its own share has no check: it is used where it alone is missing
            right[owner + 1] = opened[owner]
        if len(right) < needed:
            return None
        secret = recover_secret(dict(list(right.items())[:needed]))
        announced = self._roster.members[owner]
        if secret is not None and (
            _commitment(secret) == announced.commitment if survived else public_key(secret) == announced.masking
        ):
            return secret
        self.wrong.add((owner, owner))
        return None

    def suspects(self) -> list[str]:
        """Return the names of members that have probably given wrong shares.

        Either the helper or the owner of a wrong share has lied: the one with more of them, or both if there is no such.
        """
        count = Counter(place for pair in self.wrong for place in set(pair))
        found = {place for pair in self.wrong for place in pair if count[place] == max(count[each] for each in pair)}
        return [self._roster.members[place].name for place in sorted(found)]


class SumSizes:
    """Bytes of the payloads of a sum, for simulations without messages.

    On a sparse graph the helpers are not drawn: every member is helped by, and helps, as many as its mean.

    Args:
        samples: number of samples of each member of the roster.
        size: P, the number of values of a model.
    """

    def __init__(self, samples: Mapping[str, int], size: int) -> None:
        self._names = sorted(samples)
        self._helpers = helpers_of(len(samples))
        self._size = size
        parts = [_encode(Announcement(name, samples[name], *_EMPTY)) for name in self._names]
        self._roster = len(_list_of(len(parts))) + sum(map(len, parts))

    def of(self, step: SumStep, asked: int, included: int) -> tuple[int, int]:
        """Return the bytes of a member's request and answer.

        Args:
            asked: number of members that are asked this step.
            included: number of those that have given shares.
        """
        members = len(self._names)
        places, helpers = np.arange(members), min(self._helpers, included - 1)
        integers = 1 + (places > 127).astype(int) + (places > 255)  # bytes of a place
        each = float(integers.mean()) + 3  # with the headers of the pair and of its bytes
        bits = len(_encode(bytes(-(-members // 8))))

        def listed(count: int, content: int) -> int:
            return len(_list_of(count)) + round(count * (each + content))

        if step == "roster":
            return self._roster, listed(self._helpers, SEALED_SIZE + 2 + 2 * CHECK_SIZE)
        if step == "shares":
            return 1 + bits + listed(helpers, SEALED_SIZE), 8 * self._size
        if step == "survivors":
            return bits, 64
        return listed(asked, 64), listed(helpers + 1, SHARE_SIZE)


_EMPTY = (bytes(KEY_SIZE), bytes(KEY_SIZE), bytes(KEY_SIZE), bytes(64))


def _list_of(count: int) -> bytes:
    """Return the header of an array."""
    return _encode([0] * count)[: -count or None]
