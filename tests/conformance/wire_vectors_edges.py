"""Maker of the golden vectors of the noise of edges."""

from p2pfl.node.edge_noise import EDGE, KEY, OWN
from p2pfl.protocols.secure_sums import public_key
from tests.conformance.wire_keys import KEYS
from tests.conformance.wire_making import ID

SECRETS = {"alice": bytes([21]) * 32, "bob": bytes([22]) * 32}
SIZES = {"alice": (0.25, 2.0), "bob": (0.5, 1.5)}


def edge_vectors_of_members(v):
    def given(me, peer, round=1, values=5, **changes):
        told = {KEY: public_key(SECRETS[peer]).hex(), OWN: SIZES[peer][0], EDGE: SIZES[peer][1], "n_samples": 60}
        own = {"me": me, "key": KEYS[me].public.hex(), "private": SECRETS[me].hex()}
        own |= dict(zip(("own_noise", "edge_noise"), SIZES[me], strict=True))
        return own | {
            "federation": ID.hex(),
            "round": round,
            "peer": peer,
            "peer_key": KEYS[peer].public.hex(),
            "public_info": {key: value for key, value in (told | changes).items() if value is not None},
            "values": values,
        }

    def good(name, *args, **options):
        v.good(name, "noise of an edge", **given(*args, **options))

    good("alice adds it", "alice", "bob")
    good("bob subtracts it", "bob", "alice")
    good("another round", "alice", "bob", round=70_000)
    good("one value", "alice", "bob", values=1)
    good("the peer offers less", "alice", "bob", **{EDGE: 0.125})
    good("the peer has another key, as after a start", "alice", "bob", **{KEY: public_key(bytes([23]) * 32).hex()})
    for key in (KEY, OWN, EDGE):
        good(f"no part without {key}", "alice", "bob", **{key: None})
    good("no part with an integer", "alice", "bob", **{OWN: 1})
    good("no part with 0", "alice", "bob", **{EDGE: 0.0})
    good("no part with capital letters", "alice", "bob", **{KEY: public_key(SECRETS["bob"]).hex().upper()})
    good("no part with a short key", "alice", "bob", **{KEY: "00" * 31})
    good("no part with a key of small order", "alice", "bob", **{KEY: "00" * 32})
