"""Built-in policies, by name.

A module contains one policy, or variants of one, and follows its paper; `built_in` gives a class its name. `clusters` and
`personal` are parts that several policies share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2pfl._util.binding import build
from p2pfl._util.registry import resolve
from p2pfl.errors import ConfigurationError
from p2pfl.policy import Policy

_MARK = re.compile(r'^@built_in\("([^"]+)"\)\n(?:@.*\n)*class (\w+)', re.MULTILINE)


def _marked(folder: Path) -> dict[str, str]:
    """Return the policies that the modules of a folder mark with `built_in`, by name, each as "package.module:class".

    The sources are read, because an import of all modules takes longer than most commands.
    """
    found = {}
    for file in folder.glob("*.py"):
        for name, policy in _MARK.findall(file.read_text(encoding="utf-8")):
            found[name] = f"{__name__}.{file.stem}:{policy}"
    return dict(sorted(found.items()))


POLICIES = _marked(Path(__file__).parent)
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
