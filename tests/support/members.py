"""Members of a federation, and an access control whose log is only their keys."""

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity

FEDERATION = bytes(range(16))
ALICE, BOB, CAROL, EVE = (Identity.from_seed(bytes([k]) * 32) for k in range(4))


class KnownMembers:
    def __init__(self, *identities, federation=FEDERATION, membership_version=1, invites=False):
        self.federation, self.membership_version, self.invites = federation, membership_version, invites
        self.keys, self.revoked = {identity.public for identity in identities}, set()

    def refusal(self, key):
        return "" if key in self.keys else "revoked" if key in self.revoked else "stranger"

    def revoke(self, key):
        self.keys.discard(key)
        self.revoked.add(key)

    def after(self, membership_version, limit):
        return b"".join(sorted(self.keys))[:limit] if membership_version < self.membership_version else b""

    def revocation(self, key):
        return b""

    def extend(self, entries):
        if len(entries) % 32:
            raise ProtocolError("membership", "nonsense")
        new = {entries[k : k + 32] for k in range(0, len(entries), 32)} - self.keys - self.revoked
        self.keys |= new
        self.membership_version += len(new)
        return len(new)
