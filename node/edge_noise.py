"""Noise that a node on a machine and its neighbours add with opposite signs: their secrets, and its size in each training.

p2pfl.correlated_noise proves why this protects a node and how much own noise it needs. This module makes sure of what the
proof asks for.

**Secrets.** At each start a node draws a new X25519 key. The public key is in its introduction, with what it offers, so that
the peer's TLS link proves whose they are. Two nodes that have each other's introduction share a secret without another
message. The key of one edge in one round follows from it by HKDF-SHA256 (RFC 5869), bound to the federation, the round, and,
of both members, the name, the identity, the X25519 key and the offer. The noise is the keystream of ChaCha20 under this key
(`p2pfl.privacy.SecretDraws`). docs/wire-protocol.md has the bytes. The member with the lower name adds it, and the other one
subtracts it.

- Nothing of this is on the disk. Who gets hold of a node's folder later, or of its identity, cannot compute noise that was
  used, and a restored copy cannot repeat it.
- Nodes that do not see the same, because one of them has started again and the other does not know yet, draw different
  noise, which does not cancel. It protects both no less.
- A member that announces the key of another one shares no secret with anybody: the names are in the derivation.

**Once.** Noise of an edge that is in two models of a node would cancel in their difference. So a node takes keys of edges
once for each round, and only of rounds after the last one: a training of a round that it repeats has own noise alone, as
much as it needs without neighbours. A process that starts again has other keys.

**With whom.** Before each training a node takes the neighbours from which it would fetch now, because it believes that they
are present. It does not ask them: an agreement in each round would cost a round trip, and a neighbour can die after it as
well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec.structs import replace

from p2pfl.correlated_noise import Offer, own_beside
from p2pfl.privacy import EDGE_CLAIMS, SECRET, Privacy
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.secure_sums import KEY_SIZE, pairwise_secret, public_key
from p2pfl.update_rules import Mechanism, SecretEdge

KEY, OWN, EDGE = EDGE_CLAIMS
_PURPOSE = "p2pfl noise of edge 1"


class Neighbour(NamedTuple):
    """Peer with which a node may add noise.

    Attributes:
        key: public key of its identity.
        public_info: what it has told in its introduction; {} before that.
    """

    name: str
    key: bytes
    public_info: Mapping[str, Any]


class EdgeSecrets:
    """Noise of a running node's edges.

    Args:
        name: the node's name.
        key: public key of its identity.
        federation: 16 bytes.
        privacy: its budget.
        needed: see `p2pfl.correlated_noise.needed_of`.
        offer: what it offers, to all neighbours alike.
        secret: returns secret bytes from the system.

    Attributes:
        privacy: its budget.
        claim: public information for its introductions.
        neighbours: returns the peers that it believes to be present.
        joined: number of neighbours with which it has added noise in the last training.
        noise: standard deviation of its own noise there, divided by the clip; 0 before the first one.
    """

    def __init__(
        self,
        name: str,
        key: bytes,
        federation: bytes,
        *,
        privacy: Privacy,
        needed: float,
        offer: Offer,
        secret: Callable[[int], bytes],
    ) -> None:
        self.privacy = privacy
        self.neighbours: Callable[[], Iterable[Neighbour]] = tuple
        self.joined = 0
        self.noise = 0.0
        self._federation, self._needed, self._offer = federation, needed, offer
        self._private = secret(KEY_SIZE)
        self._own = (name, key, public_key(self._private), *offer)
        self._shared: dict[str, tuple[bytes, bytes]] = {}  # by name: the key of the peer, and the secret with it
        self._round = 0  # the newest for which keys were taken
        self.claim: Mapping[str, float | str] = {KEY: self._own[2].hex(), OWN: offer.own, EDGE: offer.edge}

    def add_to(self, mechanism: Mechanism, round: int) -> Mechanism:
        """Return the mechanism of one training, with the noise of edges and as much own noise as it needs beside that.

        Args:
            mechanism: with the own noise that the node needs without neighbours.
        """
        near: Iterable[Neighbour] = () if round <= self._round else self.neighbours()
        self._round = max(self._round, round)
        offers, keys = [], []
        for peer in near:
            claimed = _claimed(peer.public_info)
            secret = None if claimed is None else self._secret_with(peer.name, claimed[0])
            if claimed is None or secret is None:
                continue
            announced, offer = claimed
            low, high = sorted((self._own, (peer.name, peer.key, announced, *offer)))
            info = msgspec.msgpack.encode((_PURPOSE, self._federation, round, low, high))
            offers.append(offer)
            keys.append((HKDF(SHA256(), SECRET, None, info).derive(secret), low is self._own))
        own = own_beside(self._needed, self._offer, offers, self.privacy.colluding) if offers else self._needed
        self.joined, self.noise = len(offers), mechanism.noise * own / self._needed
        edges = tuple(
            SecretEdge(key, min(self._offer.edge, offer.edge) / own, adds)
            for offer, (key, adds) in zip(offers, keys, strict=True)
        )
        return replace(mechanism, noise=self.noise, edges=edges or None)

    def _secret_with(self, name: str, announced: bytes) -> bytes | None:
        """Return the secret shared with a peer; None if its key is one with which all would share the same."""
        known = self._shared.get(name)
        if known is None or known[0] != announced:
            try:
                known = self._shared[name] = announced, pairwise_secret(self._private, announced)
            except ProtocolError:
                return None
        return known[1]


def _claimed(public_info: Mapping[str, Any]) -> tuple[bytes, Offer] | None:
    """Return the X25519 key and the offer of a peer; None if it makes none, or a wrong one."""
    key, own, edge = (public_info.get(each) for each in EDGE_CLAIMS)
    if not isinstance(key, str) or len(key) != 2 * KEY_SIZE or not set(key) <= set("0123456789abcdef"):
        return None
    if not (isinstance(own, float) and isinstance(edge, float) and 0 < own < inf and 0 < edge < inf):
        return None
    return bytes.fromhex(key), Offer(own, edge)
