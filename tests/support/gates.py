"""Keys and access control for tests of transports."""

import os

from p2pfl.protocols.identity import Identity

FEDERATION = bytes(range(16))


class Club:
    """Access control whose members are a set of keys."""

    def __init__(self, *members, federation=FEDERATION, invites=False):
        self.members = {identity.public for identity in members}
        self.gone = set()
        self.federation, self.invites, self.membership_version = federation, invites, 0

    def refusal(self, key):
        return "revoked" if key in self.gone else "" if key in self.members else "stranger"

    def after(self, membership_version, limit):
        return b""

    def extend(self, entries):
        return 0

    def revocation(self, key):
        return b""


def identities(count):
    return [Identity.from_seed(os.urandom(32)) for _ in range(count)]
