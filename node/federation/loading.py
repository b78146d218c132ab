"""Loading of a node before it runs: its configuration, its federation, and their task and policy."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from p2pfl._util import toml_tables
from p2pfl._util.binding import split_name
from p2pfl._util.event_log import EventLogger
from p2pfl._util.machine import TRAINING, check_size, free_memory, within
from p2pfl.errors import COMMAND_LINE, ConfigurationError, name_source
from p2pfl.learning.optimizers import check_schedule
from p2pfl.node.federation import agreement
from p2pfl.node.federation.agreement import AGREED, Agreement
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.settings import check_coordinated, check_policy
from p2pfl.policies import make_policy
from p2pfl.policy import Coordinated, Policy, check_topology, needs_only_mean
from p2pfl.protocols.membership.log import Membership
from p2pfl.task import Part, Task, make_task

TASK_KEYS = ("task", "part", "data", "root", "initial", "preference")  # keys from which a task is made


class LoadedNode(NamedTuple):
    """Node as its folder describes it: the input of p2pfl.node.runtime.assembly.

    Attributes:
        config: configuration with the values on which the federation has agreed; `rounds` includes its extensions.
        membership: the membership log; None if the node belongs to no federation.
        agreement: the agreement in the federation's file, without extensions.
        changes: the "key=value" changes of node.toml that were applied.
    """

    folder: Path
    config: NodeConfig
    membership: Membership | None
    agreement: Agreement | None
    changes: Sequence[str] = ()

    def source(self, keys: Collection[str]) -> str:
        """Return the source of keys for errors: the command line if it sets one of them, otherwise node.toml."""
        changed = {toml_tables.parse_change(change)[0].partition(".")[0] for change in self.changes}
        return COMMAND_LINE if changed & set(keys) else str(self.folder / config.CONFIG)


def load(folder: Path, changes: Sequence[str] = (), log: EventLogger | None = None) -> LoadedNode:
    """Load a node's folder, with "key=value" changes of node.toml applied.

    Args:
        log: receives an event if the membership log is damaged or older than its copy.

    Raises:
        ConfigurationError: a file or value is missing, damaged or wrong; or the federation names another task or
            policy, or sets an option that each node sets for itself.
    """
    own = config.load(folder, changes)
    membership = load_federation(folder, log=log)
    if membership is None:
        return LoadedNode(folder, own, None, None, changes)
    agreed = agreement.read(membership.file)
    for change in changes:
        key = toml_tables.parse_change(change)[0].partition(".")[0]
        if key in (*AGREED, "task", "policy"):
            raise ConfigurationError(
                f"--set {key}: this setting belongs to the federation {agreed.name}, and a node cannot change it"
            )
    with name_source(str(folder / config.CONFIG)):
        shared = agreement.apply_agreement(own, agreed)
    return LoadedNode(folder, replace(shared, rounds=membership.rounds), membership, agreed, changes)


def policy_of(setup: LoadedNode) -> Policy:
    """Create a node's policy.

    Raises:
        ConfigurationError: the policy cannot be created, or not with these settings.
    """
    own = setup.config
    find_own_modules(setup.folder, own)
    with _reading(setup), name_source(setup.source(["policy"])):
        policy = make_policy(*split_name("policy", own.policy))
        if isinstance(policy, Coordinated):
            check_coordinated(own)
        check_policy(own, policy)
        if setup.agreement is not None:
            check_topology(policy, agreement.changes(setup.agreement.topology))
            agreement.check_rings(setup.agreement.topology, isinstance(policy, Coordinated))
            agreement.check_committee(setup.agreement, isinstance(policy, Coordinated))
            agreement.check_groups(setup.agreement, needs_only_mean(policy))
    return policy


def task_of(setup: LoadedNode, memory: int | None = None, copies: int = TRAINING) -> Task:
    """Create a node's task, if there is enough memory for its model.

    Args:
        memory: bytes that this node may use; by default the machine's available memory.
        copies: number of copies of the model that must fit; see p2pfl._util.machine.

    Raises:
        ConfigurationError: the task cannot be created, or its model or the federation's is too large for this machine.
    """
    own = setup.config
    memory = free_memory() if memory is None else memory
    if setup.agreement is not None:
        check_size(f"the model of the federation {setup.agreement.name}", setup.agreement.model.values, memory, copies)
    find_own_modules(setup.folder, own)
    with _reading(setup), name_source(setup.source(TASK_KEYS)), within(memory, copies):
        try:
            task = make_task(own.task["name"], own.task_options(), Part.parse(own.part), own.seed)
            task.layout  # noqa: B018  made here, where its size is looked at first
            check_schedule(task.optimizer, own.rounds)
        except MemoryError as error:
            raise ConfigurationError("not enough memory for the task") from error
    return task


def _reading(setup: LoadedNode) -> AbstractContextManager[None]:
    """Return the context in which the options of a federation's task and policy are read."""
    own = [f"task.{key}" for key in TASK_KEYS]
    return nullcontext() if setup.agreement is None else agreement.reading_keys_of(setup.agreement.name, own)


def find_own_modules(folder: Path, own: NodeConfig) -> None:
    """Add a node's folder to the end of the module path if its owner has named a module as "package.module:factory"."""
    named = (own.task["name"], own.policy["name"], *own.track.tools)
    if any(":" in name for name in named) and (path := str(folder.resolve())) not in sys.path:
        sys.path.append(path)
