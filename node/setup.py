"""What a node is before it runs: its configuration, its federation, and the task that they name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from node import admission, agreement, config, tables
from node.agreement import AGREED, Agreement
from node.config import NodeConfig
from node.settings import check_coordinated
from p2pfl.errors import ConfigurationError
from p2pfl.policies import make_policy
from p2pfl.policy import Coordinated, Policy
from p2pfl.task import Part, Task, make_task
from protocols.membership import Membership


class Setup(NamedTuple):
    """
    Attributes:
        config: with what the federation has agreed on.
        membership: who is a member; None if the node belongs to no federation.
    """

    folder: Path
    config: NodeConfig
    membership: Membership | None
    agreement: Agreement | None


def load(folder: Path, changes: Sequence[str] = ()) -> Setup:
    """Read what is in a node's folder, with "key=value" changes of node.toml applied.

    Raises:
        ConfigurationError: something is missing, damaged or wrong, or the federation names another task or policy.
    """
    own = config.load(folder, changes)
    membership = admission.load_federation(folder)
    if membership is None:
        return Setup(folder, own, None, None)
    agreed = agreement.read(membership.file)
    for change in changes:
        key = tables.parse_change(change)[0].partition(".")[0]
        if key in (*AGREED, "task", "policy"):
            raise ConfigurationError(f"{key} is what the federation {agreed.name} has agreed on; it cannot be changed here")
    with config.said_of(folder / config.CONFIG):
        return Setup(folder, agreement.applied(own, agreed), membership, agreed)


def policy_of(setup: Setup) -> Policy:
    """Make a node's policy.

    Raises:
        ConfigurationError: it cannot be made, or not with these settings.
    """
    own = setup.config
    with config.said_of(setup.folder / config.CONFIG):
        policy = make_policy(*tables.named("policy", own.policy))
        if isinstance(policy, Coordinated):
            check_coordinated(own)
    return policy


def task_of(setup: Setup) -> Task:
    """Make a node's task.

    Raises:
        ConfigurationError: it cannot be made, or makes another model than the federation's.
    """
    for path in (str(setup.folder), str(Path.cwd())):  # where a user's own policy and task may lie
        if path not in sys.path:
            sys.path.insert(0, path)
    own = setup.config
    with config.said_of(setup.folder / config.CONFIG):
        return make_task(own.task["name"], own.task_options(), Part.parse(own.part), own.seed)
