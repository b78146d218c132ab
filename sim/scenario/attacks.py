"""Attackers of a scenario: the key `attack`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from p2pfl.attacks.attack import Attack
from p2pfl.attacks.registry import make_attack
from p2pfl.config.binding import convert, split_name
from p2pfl.errors import ConfigurationError
from p2pfl.random_streams import federation_draws


class AttackPlan(NamedTuple):
    """Attack of a run, and the numbers of the attackers, sorted."""

    attack: Attack
    nodes: tuple[int, ...]


def plan_attack(table: Mapping[str, Any] | None, nodes: int, seed: int) -> AttackPlan | None:
    """Return the attack that a table such as { name = "alie", share = 0.2 } describes; None without a table.

    The keys of the table:

    - `name`: of the attack;
    - `share`: share of the nodes that attack, drawn from the seed; 0.2 by default, rounded;
    - `nodes`: the numbers of the attackers, in place of the share;
    - options of the attack.

    Raises:
        ConfigurationError: a key is invalid, or no node would be honest.
    """
    return None if table is None else _plan(msgspec.json.encode(table), nodes, seed)


@lru_cache(maxsize=16)
def _plan(table: bytes, nodes: int, seed: int) -> AttackPlan:
    name, options = split_name("attack", msgspec.json.decode(table))
    share = convert("attack.share", options.pop("share", 0.2), float)
    chosen = convert("attack.nodes", options.pop("nodes", []), list[int])
    attack = make_attack(name, options)
    if chosen:
        if not all(0 <= k < nodes for k in chosen):
            raise ConfigurationError(f"attack.nodes must be numbers from 0 to {nodes - 1}, got {chosen}")
        picked = sorted(set(chosen))
    else:
        if not 0 <= share < 1:
            raise ConfigurationError(f"attack.share must be at least 0 and less than 1, got {share}")
        order = federation_draws(seed).generator(0, "attackers").permutation(nodes)
        picked = np.sort(order[: int(share * nodes + 0.5)]).tolist()
    if len(picked) >= nodes:
        raise ConfigurationError(f"attack: at least one of the {nodes} nodes must be honest")
    return AttackPlan(attack, tuple(picked))
