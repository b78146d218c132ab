"""Built-in policies, by name.

A module contains one policy, or variants of one, and follows its paper. `clusters`, `personal` and `schedule` are parts
that several policies share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2pfl._util.binding import build
from p2pfl._util.registry import resolve
from p2pfl.errors import ConfigurationError
from p2pfl.policy import Policy

POLICIES = {
    "local": "p2pfl.policies.local:Local",
    "random": "p2pfl.policies.random:Random",
    "oracle": "p2pfl.policies.random:Oracle",
    "dac": "p2pfl.policies.dac:Dac",
    "dpfl": "p2pfl.policies.dpfl:Dpfl",
    "dsgd": "p2pfl.policies.dsgd:Dsgd",
    "fedavg": "p2pfl.policies.fedavg:FedAvg",
    "fedprox": "p2pfl.policies.coordinated:FedProx",
    "coordinated-fedavg": "p2pfl.policies.coordinated:CoordinatedFedAvg",
    "coordinated-fedprox": "p2pfl.policies.coordinated:CoordinatedFedProx",
    "cfl": "p2pfl.policies.cfl:Cfl",
    "matfl": "p2pfl.policies.matfl:MaTfl",
    "fedcmoo": "p2pfl.policies.fedcmoo:FedCmoo",
    "fedpref": "p2pfl.policies.fedpref:FedPref",
    "ditto": "p2pfl.policies.ditto:Ditto",
    "apfl": "p2pfl.policies.apfl:Apfl",
    "per-fedavg": "p2pfl.policies.per_fedavg:PerFedAvg",
    "fedrep": "p2pfl.policies.fedrep:FedRep",
    "pfedgraph": "p2pfl.policies.pfedgraph:PFedGraph",
    "knn-per": "p2pfl.policies.knn_per:KnnPer",
    "lft-fedavg": "p2pfl.policies.lft:LftFedAvg",
    "lft-ensemble": "p2pfl.policies.lft:LftEnsemble",
    "agnostic-fair": "p2pfl.policies.fedfb:AgnosticFair",
    "fairfed": "p2pfl.policies.fairfed:FairFed",
    "fedfb": "p2pfl.policies.fedfb:FedFB",
}

METHODS = ("prepare", "round", "state", "restore")  # required of every policy


def make_policy(name: str, options: Mapping[str, Any]) -> Policy:
    """Make the policy called `name`: one of POLICIES, an entry point of `p2pfl.policies`, or "package.module:factory".

    Raises:
        ConfigurationError: the name is unknown, or the policy does not take an option.
    """
    factory = resolve("policy", name, POLICIES, "p2pfl.policies", METHODS)
    policy = build("policy", factory, options)
    if missing := [member for member in ("reported_stage", *METHODS) if not hasattr(policy, member)]:
        raise ConfigurationError(f"policy {name!r} is not a valid policy: it lacks {', '.join(missing)}")
    made: Policy = policy
    return made
