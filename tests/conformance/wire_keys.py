"""Keys of the golden vectors, each derived from a published seed."""

from p2pfl.protocols.identity import Identity

SEEDS = {
    name: bytes([k]) * 32
    for k, name in enumerate(("admission", "successor", "alice", "bob", "carol", "dave", "mallory"), start=1)
}
KEYS = {name: Identity.from_seed(seed) for name, seed in SEEDS.items()}
BY_KEY = {identity.public: identity for identity in KEYS.values()}
