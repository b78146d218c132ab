"""Check of the noise of edges, with the code that nodes run."""

import numpy as np
from msgspec.structs import replace

from p2pfl.correlated_noise import Offer
from p2pfl.node.edge_noise import EdgeSecrets, Neighbour
from p2pfl.privacy import Privacy, StepDraws
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Mechanism, Steps

NEEDED = 1.0


def normals(edge, values):
    """Return the noise of an edge in the first step of a training without own noise, as normal numbers."""
    edges = (replace(edge, scale=1e12),)  # beside which own noise does not count
    query = Train(np.zeros(1, np.float32), 1, rule=Steps(1), mechanism=Mechanism(1.0, NEEDED, bytes(32), edges))
    found = np.empty(values, np.float32)
    StepDraws(RandomStreams(0, "me"), query, 1, 1).noise(found, 1e-12)
    return (found if edge.adds else -found).tolist()


def check_edge(given):
    secrets = EdgeSecrets(
        given["me"],
        bytes.fromhex(given["key"]),
        bytes.fromhex(given["federation"]),
        privacy=Privacy(epsilon=1.0, correlated=True),
        needed=NEEDED,
        offer=Offer(given["own_noise"], given["edge_noise"]),
        secret=lambda size: bytes.fromhex(given["private"]),
    )
    secrets.neighbours = lambda: [Neighbour(given["peer"], bytes.fromhex(given["peer_key"]), given["public_info"])]
    found = secrets.add_to(Mechanism(1.0, NEEDED, bytes(32)), given["round"])
    if found.edges is None:
        return None
    (edge,) = found.edges
    return {
        "key": edge.key.hex(),
        "adds": edge.adds,
        "deviation": round(edge.scale * found.noise, 9),
        "normals": [round(value, 5) for value in normals(edge, given["values"])],
    }


CHECKS = {"noise of an edge": check_edge}
