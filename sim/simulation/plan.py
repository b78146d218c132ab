"""Plan of a run: the values that a scenario describes, checked before the simulation starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import networkx as nx
import numpy as np

from p2pfl._util.binding import split_name
from p2pfl._util.shared_work import sharing
from p2pfl.central_noise import centralise, check_central, enough
from p2pfl.cohort import IdsOfEach
from p2pfl.compression.codecs import Codec, make_codec
from p2pfl.correlated_noise import NO_USE, check_correlated, correlate
from p2pfl.data.partition.splits import FEW, check_separation, parts_of
from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import check_schedule
from p2pfl.learning.task_stack import TaskStack, different, each, samples_of, tasks_of
from p2pfl.learning.torch_learner import choose_device
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.settings import check_policy
from p2pfl.parameters import Parameters
from p2pfl.policies import make_policy
from p2pfl.policy import Policy, check_topology
from p2pfl.privacy import PrivacyPlan, check_private_policy, check_private_settings, plan_privacy
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.secure_sums import hides_from, threshold_of
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.formatting import count
from p2pfl.sim.scenario.availability import Presence
from p2pfl.sim.scenario.devices import NodeFacts, Speed
from p2pfl.sim.scenario.network import Budgets, Links, LinkValues, Nodes, draw, link_values
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.scenario.topology import (
    COMPLETE,
    locate_nodes,
    measure,
    placement_graph,
    schedule_of,
    topology,
    topology_rows,
)
from p2pfl.sim.simulation.modelled_coordinator import election_notes, refuse
from p2pfl.sim.simulation.sharding import task_of
from p2pfl.task import POINT, Part, Task, batch_size_of, group_of, make_task, task_factory
from p2pfl.task_specs import TASKS
from p2pfl.topologies import complete_properties, labels, neighbours
from p2pfl.topologies.geography import Point
from p2pfl.topologies.graph_facts import ROUND, GraphFacts, facts_of
from p2pfl.topologies.rows import properties as properties_of_rows
from p2pfl.topologies.schedules import NamedSchedule, all_sources

MOST_NOTES = 3  # different notes on the samples of single nodes
READS_ROWS = ("classification", "regression")  # built-in tasks whose nodes may have the same samples


class Neighbours(Sequence[tuple[str, ...]]):
    """Names of the neighbours of each node, sorted. A row is made when it is asked for.

    Args:
        names: of all nodes, sorted.
        ids: the numbers of the neighbours; None if all others are.
    """

    def __init__(self, names: tuple[str, ...], ids: IdsOfEach | None) -> None:
        self.names, self._ids = names, ids

    @cached_property
    def ids(self) -> IdsOfEach:
        """The numbers of the neighbours of each node."""
        if self._ids is not None:
            return self._ids
        n = len(self.names)
        others = np.broadcast_to(np.arange(n - 1), (n, n - 1))
        return IdsOfEach.of_counts(np.full(n, n - 1), (others + (others >= np.arange(n)[:, None])).ravel())

    def count(self, node: int) -> int:
        """Return the number of neighbours of a node."""
        return len(self.names) - 1 if self._ids is None else int(self._ids.counts[node])

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, node: Any) -> Any:
        if isinstance(node, slice):
            return [self[k] for k in range(len(self))[node]]
        names = self.names
        if not 0 <= node < len(names):
            raise IndexError(node)
        return (
            names[:node] + names[node + 1 :] if self._ids is None else tuple([names[j] for j in self._ids.of(node).tolist()])
        )


@dataclass(frozen=True)
class TopologyPlan:
    """Topology of a run.

    Attributes:
        properties: see p2pfl.topologies.properties.
        labels: label of each node, or else of its place, or else of its data; empty if every label is the node's number.
        neighbours: for each node, the names of the nodes that it may fetch from, in any of the run's rounds; sorted.
        facts: what the readers of the topology's file and of that of the places understood.
        rounds: the graph of each round; None for a graph that does not change.
    """

    name: str
    properties: dict[str, Any]
    labels: list[str]
    neighbours: Neighbours
    notes: tuple[str, ...]
    facts: tuple[GraphFacts, ...]
    rounds: NamedSchedule | None = None

    def requesters(self, node: int, sources: Sequence[str]) -> Sequence[str]:
        """Return the names of the nodes that may fetch from a node, sorted; `sources` are its neighbours."""
        return self._requesters[node] if self.properties["directed"] else sources

    @cached_property
    def _requesters(self) -> Neighbours:
        ids = self.neighbours.ids
        order = np.argsort(ids.peers, kind="stable")
        counts = np.bincount(ids.peers, minlength=len(ids.counts))
        return Neighbours(self.neighbours.names, IdsOfEach.of_counts(counts, ids.rows[order]))


@dataclass(frozen=True)
class RunPlan:
    """Values that a run starts from.

    Attributes:
        names: of the nodes. One tuple is shared, because one copy per node would need n² names.
        tasks: one for each node.
        initial: the model that all nodes start from.
        positions: coordinates by name, if latency depends on them.
        link_values: values of single links and nodes of the network.
        speeds: speed and power of each node.
        privacy: the plan of each node's privacy budget, None for a node without one; empty if no node has one.
    """

    scenario: Scenario
    names: tuple[str, ...]
    topology: TopologyPlan
    tasks: Sequence[Task]
    initial: Parameters
    codec: Codec
    positions: dict[str, Point | None]
    link_values: LinkValues
    speeds: Sequence[Speed]
    notes: tuple[str, ...]
    privacy: Sequence[PrivacyPlan | None] = ()

    def links(self, seed: int) -> Links:
        """Return the network of a run with a seed."""
        return Links(self.scenario.network, seed, self.positions, self.link_values, self.presence(seed))

    def presence(self, seed: int) -> Presence | None:
        """Return when nodes are present; None if they always are."""
        if not self.scenario.availability.varies:
            return None
        nodes = Nodes(self.names, self.topology.labels)
        return self.scenario.availability.presence(self.names, seed, nodes.number)

    def encoder(self, node: int) -> ModelEncoder:
        """Return a new model encoder of a node."""
        first = self.tasks[0].layout
        return ModelEncoder(self.codec, self.tasks[node].layout.shared, first.shared_of(self.initial))

    def sparse(self, node: int) -> bool:
        """Return whether a node has fewer neighbours than the number of all other nodes."""
        return self.topology.neighbours.count(node) < len(self.names) - 1

    def policy(self, node: int) -> Policy:
        """Return a new policy for a node.

        Raises:
            ConfigurationError: it cannot run with the scenario's settings.
        """
        found = policy_of(self.scenario, self.tasks[node])
        refuse(self.scenario, found)
        check_policy(self.scenario, found)
        check_topology(found, self.topology.rounds is not None)
        return found


def plan(
    scenario: Scenario,
    graph: nx.Graph | None = None,
    initial: Parameters | None = None,
    change: Callable[[Sequence[Task]], Sequence[Task]] | None = None,
) -> RunPlan:
    """Return the plan of a run.

    Args:
        graph: the topology, in place of the scenario's; its number of nodes must be the scenario's.
        initial: the model that all nodes start from, in place of the task's.
        change: returns tasks with other samples in place of the scenario's, with the same layout and as many samples.

    Raises:
        ConfigurationError: the scenario asks for something that does not exist, or its parts do not fit together.
    """
    scenario.check()
    known_as = names(scenario.nodes)
    around, graph, places = plan_topology(scenario, graph, known_as)
    with sharing():
        tasks = plan_tasks(scenario)
        check_layouts(tasks, known_as)
    if not around.labels:
        around = replace(around, labels=data_labels(tasks))
    scarcity = [*scarcity_notes(scenario, tasks), *data_notes(scenario, tasks, around.labels or known_as)]
    check_groups(scenario, tasks)
    tasks = tasks if change is None else change(tasks)
    start = tasks[0].initial(scenario.seed) if initial is None else initial
    check_starts(tasks, known_as, start, scenario.seed)
    codec = make_codec(*split_name("codec", scenario.codec))
    positions, notes = locate_nodes(places, known_as) if scenario.network.latency == "geography" else ({}, [])
    encoder = ModelEncoder(codec, tasks[0].layout.shared, tasks[0].layout.shared_of(start))
    values = link_values(scenario.network, graph, Nodes(known_as, around.labels), around.neighbours)
    notes += values.notes
    notes += election_notes(scenario, known_as, encoder, Links(scenario.network, scenario.seed, positions, values))
    privacy, spoken = plan_of_privacy(scenario, tasks, around)
    notes = [*around.notes, *scarcity, *notes, *spoken]
    return RunPlan(
        scenario,
        known_as,
        around,
        tasks,
        start,
        codec,
        positions,
        values,
        speeds_of(scenario, known_as, tasks),
        tuple(notes),
        privacy,
    )


def policy_of(scenario: Scenario, task: Task) -> Policy:
    """Return a new policy for the node of a task."""
    return make_policy(*split_name("policy", scenario.policy_of(task.public_info.get("group"))))


def plan_of_privacy(
    scenario: Scenario, tasks: Sequence[Task], around: TopologyPlan
) -> tuple[Sequence[PrivacyPlan | None], list[str]]:
    """Return the plan of each node's privacy budget, [] if no node has one, and notes.

    Raises:
        ConfigurationError: a node cannot have its budget with its task, its policy, or the settings of the run.
    """
    if not scenario.privacy.wanted:
        return [], []
    groups = [group_of(task) for task in tasks]
    scenario.privacy.check_groups(groups)
    budgets = [scenario.privacy.of(k, group) for k, group in enumerate(groups)]
    if not any(budgets):
        return [], ["no node has a privacy budget: privacy.epsilon is 0 for all"]
    plans: list[PrivacyPlan | None] = []
    mixing = []
    for task, privacy in zip(tasks, budgets, strict=True):
        # of all nodes: one without a budget could ask another one for what its budget does not cover
        planned = check_private_policy(privacy, policy_of(scenario, task), scenario.rounds)
        mixing.append(planned.mixing)
        if privacy is not None:
            check_private_settings(privacy, scenario.patience, scenario.robust)
            task.check_private()
        plans.append(None if privacy is None else plan_privacy(privacy, planned, task.n_samples, batch_size_of(task)))
    pairs = zip(plans, tasks, strict=True)
    loose = sum(found is not None and found.privacy.delta >= 1 / task.n_samples for found, task in pairs)
    notes = [
        f"privacy.delta of {count(loose, 'node')} is 1 / samples or more: the bound may fail for a whole sample; lower it"
    ]
    notes = notes if loose else []
    if any(plan is not None and plan.privacy.central for plan in plans):
        return _central(scenario, tasks, plans), notes
    if not any(plan is not None and plan.privacy.correlated for plan in plans):
        return plans, notes
    own = [found for found in plans if found is not None]
    if scenario.privacy.by_group or scenario.privacy.by_node:
        raise ConfigurationError(
            "correlated noise (privacy.correlated) needs one budget for all nodes; remove by_group and by_node",
            "privacy.correlated",
            "privacy",
        )
    check_correlated(
        mixing,
        tasks,
        fixed=around.rounds is None and not around.properties["directed"],
        nodes=len(tasks),
        mode=scenario.mode,
        robust=scenario.robust,
        codec=scenario.codec["name"],
        limited=scenario.budget != Budgets(),
    )
    expected = [min(batch_size_of(task), task.n_samples) for task in tasks]
    ids = around.neighbours.ids
    correlated = correlate(
        own, expected, around.neighbours.names, [ids.of(k).tolist() for k in range(len(tasks))], mixing[0]
    )
    if correlated[0].mechanism.edges is None:
        notes.append(NO_USE)
    return correlated, notes


def _central(scenario: Scenario, tasks: Sequence[Task], plans: Sequence[PrivacyPlan | None]) -> Sequence[PrivacyPlan | None]:
    """Return the plans of nodes whose noise adds up in secure sums, in place of plans with noise in each step.

    Raises:
        ConfigurationError: the sums do not hide single models, or the noise of others does not suffice for a node.
    """
    nodes, colluding = len(tasks), scenario.privacy.colluding
    threshold = threshold_of(scenario.secure_threshold, nodes) if scenario.secure_sums else 0
    found: list[PrivacyPlan] = []
    for task, plan in zip(tasks, plans, strict=True):
        if plan is None or not plan.privacy.central or plan.privacy.colluding != colluding:
            raise ConfigurationError(
                "noise that adds up in sums (privacy.central) needs the same members to collude, and the same key central,"
                " for all nodes; remove them from by_group and by_node",
                "privacy.central",
                "privacy",
            )
        policy = policy_of(scenario, task)
        planned = check_private_policy(plan.privacy, policy, scenario.rounds)
        check_central(
            plan.privacy,
            policy,
            planned,
            task,
            rounds=scenario.rounds,
            threshold=threshold,
            batch_size=batch_size_of(task),
        )
        found.append(centralise(plan, threshold))
    if not hides_from(colluding, threshold, nodes):
        raise ConfigurationError(
            f"a sum of {threshold} of {nodes} nodes does not hide models from {colluding} that collude (privacy.colluding);"
            " raise secure_threshold",
            "privacy.colluding",
            "secure_threshold",
        )
    claims = {str(k): plan.share * plan.privacy.clip for k, plan in enumerate(found)}
    for k in {plan.share * plan.privacy.clip: k for k, plan in enumerate(found)}.values():  # one of each kind
        if not enough(found[k], {name: each for name, each in claims.items() if name != str(k)}):
            raise ConfigurationError(
                f"the noise of the other nodes would not suffice for the privacy budget of node {k}, because theirs are"
                " larger; give all nodes the same budget, without by_group and by_node",
                "privacy.central",
                "privacy",
            )
    return found


def speeds_of(scenario: Scenario, known_as: Sequence[str], tasks: Sequence[Task]) -> list[Speed]:
    """Return the speed and the power of each node."""
    compute, seed = scenario.compute, scenario.seed
    if not (compute.measured or isinstance(compute.slowdown, Sequence)):
        return [Speed(compute.seconds * compute.slowdown)] * len(tasks)
    slowdowns = [draw(compute.slowdown, seed, name, "slowdown") for name in known_as]
    nodes = [NodeFacts(group_of(task), task.layout.size, task.n_samples, batch_size_of(task)) for task in tasks]
    groups = {str(node.group) for node in nodes if node.group is not None}
    for group in compute.by_group:
        if group not in groups:
            known = ", ".join(sorted(groups)) or "none"
            raise ConfigurationError(
                f"compute.by_group: unknown group {group!r}; the groups are: {known}", "compute.by_group"
            )
    found = compute.speeds(nodes, slowdowns, seed)
    if compute.measured and (without := [node.group for node, speed in zip(nodes, found, strict=True) if not speed.device]):
        raise ConfigurationError(
            f"compute.by_group names no device for the group {without[0]!r}; add it, or set compute.device for the others",
            "compute.by_group",
        )
    return found


def names(count: int) -> tuple[str, ...]:
    """Return the names of simulated nodes; they sort by number."""
    width = len(str(count - 1))
    return tuple(f"node-{k:0{width}d}" for k in range(count))


def identity_of(seed: int, name: str) -> Identity:
    """Return the key of a simulated node."""
    return Identity.from_seed(RandomStreams(seed, name).digest(0, "key of a simulation"))


def plan_tasks(scenario: Scenario) -> Sequence[Task]:
    """Return the task of each node."""
    name, options = split_name("task", scenario.task)
    of_all = getattr(task_factory(name), "of_all", None)
    if of_all is not None and scenario.attack is None:
        stack: Sequence[Task] | None = of_all(task_of(scenario, 0), scenario.nodes, scenario.seed, **options)
        if stack is not None:
            return stack
    return tasks_of(partial(task_of, scenario), scenario.nodes)


def plan_topology(
    scenario: Scenario, graph: nx.Graph | None, known_as: tuple[str, ...]
) -> tuple[TopologyPlan, nx.Graph, nx.Graph]:
    """Return the topology of a scenario, or `graph` in its place; the graph itself, and that with the coordinates.

    A complete graph has no edges; a large one that is made as rows has no nodes either.

    Raises:
        ConfigurationError: it has another number of nodes than the scenario, or a value in it is invalid.
    """
    name = "a graph of one's own"
    notes: tuple[str, ...] = ()
    complete = graph is None and scenario.topology.get("name") == COMPLETE
    schedule = None
    rows = topology_rows(scenario.topology, scenario.nodes, scenario.seed, scenario.network) if graph is None else None
    if rows is not None and (measured := properties_of_rows(rows)) is not None:
        near, nothing = Neighbours(known_as, IdsOfEach(*rows)), nx.Graph()
        return TopologyPlan(str(scenario.topology["name"]), measured, [], near, (), ()), nothing, nothing
    if graph is None:
        graph = topology(scenario.topology, scenario.nodes, scenario.seed, dense=False)
        name, notes = str(graph.graph["name"]), tuple(graph.graph.get("notes", []))
        schedule = schedule_of(graph)
    elif schedule_of(graph) is not None:
        raise ConfigurationError(
            "a graph by round must be the scenario's: topology = { file = ... }, not an argument", "topology"
        )
    elif any(given is not None for *_, given in graph.edges(data=ROUND)):
        notes = ("the edges of the graph have a round, which is not used; write the graph to a GraphML file to use it",)
    if len(graph) != scenario.nodes:
        raise ConfigurationError(f"nodes must be {len(graph)}, the size of the topology, got {scenario.nodes}")
    properties = complete_properties(len(graph)) if complete else measure(graph)
    places = placement_graph(scenario.network, graph)
    numbers = [str(k) for k in range(len(graph))]
    labelled = next((found for found in (labels(graph), labels(places)) if found != numbers), [])
    if schedule is not None:
        ids: IdsOfEach | None = IdsOfEach(*all_sources(schedule, scenario.rounds))
    else:
        ids = None if complete else IdsOfEach.of_lists(neighbours(graph))
    around = Neighbours(known_as, ids)
    read = [found for each in dict.fromkeys((graph, places)) if (found := facts_of(each)) is not None]
    rounds = None if schedule is None else NamedSchedule(lambda count: schedule, known_as)
    return TopologyPlan(name, properties, labelled, around, notes, tuple(read), rounds), graph, places


def data_labels(tasks: Sequence[Task]) -> list[str]:
    """Return what the data call each node, such as its site; [] if nodes have no or equal labels, or the nodes' numbers."""
    found = each(tasks, "data_label")
    return found if all(found) and len({*found}) == len(found) and found != [str(k) for k in range(len(found))] else []


def scarcity_notes(scenario: Scenario, tasks: Sequence[Task]) -> list[str]:
    """Return a note if nodes have fewer training samples than the scenario requests."""
    asked = scenario.task.get("samples", 0)
    samples = samples_of(tasks)
    least = int(samples.min())
    if not isinstance(asked, int) or least >= asked:
        return []
    few = int((samples < asked).sum())
    return [f"{few} of {len(tasks)} nodes have fewer than {asked} training samples; the minimum is {least}"]


def data_notes(scenario: Scenario, tasks: Sequence[Task], known_as: Sequence[str]) -> list[str]:
    """Return notes on the samples of the nodes, and on the separation of training and test samples.

    Raises:
        ConfigurationError: nodes train on samples that others have held out for their test.
    """
    nodes_of: dict[str, list[str]] = {}
    for name, said in zip(known_as, each(tasks, "data_notes"), strict=True):
        for note in said:
            nodes_of.setdefault(note, []).append(name)
    notes = [f"{_describe(nodes, len(tasks))}: {note}" for note, nodes in [*nodes_of.items()][:MOST_NOTES]]
    if more := len({name for nodes in [*nodes_of.values()][MOST_NOTES:] for name in nodes}):
        notes.append(f"{more:,} more nodes have notes of these kinds; p2pfl-sim data check lists the samples of each node")
    notes += few_tested("the node with the fewest", tasks)
    name = scenario.task["name"]
    if name in TASKS and name not in READS_ROWS:
        return notes
    parts = [part for task in tasks if (part := parts_of(task)) is not None]
    if len(parts) < len(tasks):
        return notes
    held_out = ["test" in said for said in each(tasks, "held_out")]
    return [*notes, *check_separation(parts, held_out, known_as)]


def few_tested(which: str, tasks: Sequence[Task]) -> list[str]:
    """Return a note if a node has so few test samples that its test accuracy is noise; [] otherwise.

    Args:
        which: the node that has the fewest of these tasks, in words.
    """
    if isinstance(tasks, TaskStack):
        tested = tasks.data["test"].counts.tolist() if tasks.first.metric == "accuracy" and "test" in tasks.data else []
    else:
        accurate = [task for task in tasks if task.metric == "accuracy"]
        tested = [len(part.test[1]) for task in accurate if (part := parts_of(task)) is not None and part.test]
    least = min(tested, default=0)
    if not 0 < least < FEW:
        return []
    return [f"{which} has only {count(least, 'test sample')}: one of them changes its test accuracy by {1 / least:.2g}"]


def _describe(nodes: Sequence[str], count: int) -> str:
    if len(nodes) == count:
        return "all nodes" if count > 1 else nodes[0]
    return ", ".join(nodes[:2]) + (f" and {len(nodes) - 2:,} more" if len(nodes) > 2 else "")


def check_layouts(tasks: Sequence[Task], known_as: Sequence[str]) -> None:
    """Raise ConfigurationError if the shared parameters of two nodes differ in layout."""
    first = tasks[0].layout.shared
    for name, task in zip(known_as, different(tasks), strict=False):
        layout = task.layout.shared
        if layout.fingerprint != first.fingerprint:
            raise ConfigurationError(
                f"the models of {name} and {known_as[0]} differ in their layout: {layout.size} values"
                f" in {len(layout.shapes)} tensors, and {first.size} in {len(first.shapes)}"
            )


def check_groups(scenario: Scenario, tasks: Sequence[Task]) -> None:
    """Raise ConfigurationError if `policy_by_group` names a group without nodes."""
    groups = {str(facts["group"]) for facts in each(tasks, "public_info") if "group" in facts}
    for group in scenario.policy_by_group:
        if group not in groups:
            known = ", ".join(sorted(groups)) or "none"
            raise ConfigurationError(f"policy_by_group: unknown group {group!r}; the groups are: {known}")


def check_starts(tasks: Sequence[Task], known_as: Sequence[str], initial: Parameters, seed: int) -> None:
    """Raise ConfigurationError if the shared part of two nodes' initial models differs.

    Nodes on machines start from the same shared values before they exchange anything.
    """
    first = tasks[0].layout
    shared = first.shared_of(initial)
    for name, task in zip(known_as, different(tasks), strict=False):
        if task.layout != first and (task.layout.shared_of(task.initial(seed)) != shared).any():
            raise ConfigurationError(
                f"the shared parts of {name} and {known_as[0]} have different initial values; if private parts"
                " differ in size, the module must create the shared part first"
            )


def check(scenario: Scenario, graph: nx.Graph | None = None) -> Task:
    """Make one object of each kind that a scenario names, to report errors before anything runs.

    Args:
        graph: the topology, in place of the scenario's.

    Returns:
        The task of its first node.

    Raises:
        ConfigurationError: the scenario is invalid; the error names the run.
    """
    try:
        if graph is None and topology_rows(scenario.topology, scenario.nodes, scenario.seed, scenario.network) is None:
            graph = topology(scenario.topology, scenario.nodes, scenario.seed, dense=False)
        scheduled = graph is not None and schedule_of(graph) is not None
        if scenario.network.latency == "geography":
            locate_nodes(placement_graph(scenario.network, graph), names(scenario.nodes))
        for group in (None, *scenario.policy_by_group):
            policy = make_policy(*split_name("policy", scenario.policy_of(group)))
            refuse(scenario, policy)
            check_policy(scenario, policy)
            check_topology(policy, scheduled)
        attack = scenario.attack_plan()
        if scheduled and attack is not None and attack.attack.targeted:
            raise ConfigurationError(
                f"the attack {type(attack.attack).__name__} forges a model for the neighbours of each node, and needs a"
                " topology that never changes",
                "attack",
                "topology",
            )
        task = make_task(*split_name("task", scenario.task), Part(0, scenario.nodes), scenario.seed)
        check_schedule(task.optimizer, scenario.rounds)
        _check_pool(scenario, task)
        choose_device(scenario.device)
    except ConfigurationError as error:
        raise ConfigurationError(f"run {scenario.name!r}: {error}") from error
    return task


def _check_pool(scenario: Scenario, task: Task) -> None:
    if scenario.pool is None:
        return
    if scenario.pool.of == "fronts":
        if not {*task.extra_metrics} >= POINT:
            raise ConfigurationError("pool of fronts: the task must report error and disparity, such as `praffl`")
    elif not task.goals:
        raise ConfigurationError("pool: the task must have several objectives")
