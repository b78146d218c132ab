"""Federation of a run under faults: its nodes, their keys, its signed file and its first membership log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import agreement
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.folder.settings import Settings
from p2pfl.parameters import Parameters
from p2pfl.policy import Policy
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.plan import RunPlan, names, plan
from p2pfl.sim.simulation.simulation import slowdowns
from p2pfl.task import Task

FEWEST = 3  # nodes
WITH_NEWCOMER = 4  # nodes from which on the last one is a newcomer


@dataclass(frozen=True)
class ChaosPlan:
    """Values that every run of a scenario under faults starts from.

    Attributes:
        tasks, configs, keys: of each node.
        initial: the model that all nodes start from.
        admission: the admission key.
        membership: the membership log at the start.
        newcomers: names of the nodes that are no members at the start.
    """

    scenario: Scenario
    names: tuple[str, ...]
    tasks: Sequence[Task]
    configs: Sequence[NodeConfig]
    keys: Sequence[Identity]
    initial: Parameters
    admission: Identity
    membership: Membership
    newcomers: tuple[str, ...]
    run: RunPlan
    paces: Sequence[float]

    @property
    def members(self) -> list[str]:
        """The names of the members at the start."""
        return list(self.membership.members)

    def policy(self, node: int) -> Policy:
        """Return a new policy for a node."""
        return self.run.policy(node)

    def seconds(self, node: int) -> float:
        """Return the virtual seconds that a node needs for a pass over its training data."""
        return self.paces[node]


def chaos_plan(scenario: Scenario) -> ChaosPlan:
    """Return the plan of runs of a scenario under faults.

    Raises:
        ConfigurationError: the scenario cannot run in this way, or asks for something that does not exist.
    """
    if scenario.nodes < FEWEST:
        raise ConfigurationError(f"run {scenario.name!r}: chaos needs at least {FEWEST} nodes, got {scenario.nodes}")
    if scenario.attack is not None:
        raise ConfigurationError(f"run {scenario.name!r}: chaos has faults but no attackers; leave out attack")
    run = plan(scenario)
    keys = [_identity(scenario.seed, name) for name in run.names]
    admission = _identity(scenario.seed, "admission")
    configs = [_config(scenario, k, name) for k, name in enumerate(run.names)]
    tables = agreement.draft("chaos", configs[0], run.tasks[0], _edges(run))
    membership = Membership(Federation.sign({**tables, "nonce": "0" * 32}, admission))
    newcomers = run.names[-1:] if scenario.nodes >= WITH_NEWCOMER else ()
    for name, key in zip(run.names, keys, strict=True):
        if name not in newcomers:
            membership.append(admission, "add", name, key.public)
    paces = [scenario.compute.seconds * slowdown for slowdown in slowdowns(run)]
    return ChaosPlan(
        scenario=scenario,
        names=run.names,
        tasks=run.tasks,
        configs=configs,
        keys=keys,
        initial=run.initial,
        admission=admission,
        membership=membership,
        newcomers=newcomers,
        run=run,
        paces=paces,
    )


def address(node: int) -> str:
    """Return the address of a node's machine."""
    return f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}:4100"


def _identity(seed: int, name: str) -> Identity:
    return Identity.from_seed(RandomStreams(seed, name).digest(0, "key of a simulation"))


def _config(scenario: Scenario, node: int, name: str) -> NodeConfig:
    settings = {key: getattr(scenario, key) for key in Settings.__struct_fields__}
    return NodeConfig(
        name=name,
        listen="127.0.0.1:0",
        part=f"{node}/{scenario.nodes}",
        task=scenario.task,
        policy=scenario.policy,
        budget=scenario.budget.of(scenario.seed, name, scenario.nodes),
        addresses={other: address(k) for k, other in enumerate(names(scenario.nodes)) if other != name},
        **settings,
    )


def _edges(run: RunPlan) -> agreement.Edges:
    """Return the pairs of nodes that may exchange models."""
    pairs = {tuple(sorted((name, other))) for k, name in enumerate(run.names) for other in run.topology.neighbours[k]}
    count = len(run.names)
    return "all" if len(pairs) == count * (count - 1) // 2 else tuple(sorted((a, b) for a, b in pairs))
