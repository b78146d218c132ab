"""Exchanges of the nodes of a run: modelled ones, and those that make real messages."""

from __future__ import annotations

from collections.abc import Sequence

from node import tables
from node.electing import Electing, MemoryVotes, timing_of
from node.exchange import Exchange
from node.peer import Member
from node.wiring import federation_id, message_exchange
from p2pfl.policies import make_policy
from p2pfl.policy import Coordinated, asks_scores
from p2pfl.randomness import Draws
from p2pfl.task import goals_of
from protocols.identity import Identity
from protocols.memory import MemoryNetwork
from protocols.terms import Electorate
from sim.batching import BatchedTrainer
from sim.clock import VirtualLoop
from sim.network import Links
from sim.plan import RunPlan
from sim.world import ModelledExchange, World


def make_exchanges(plan: RunPlan, loop: VirtualLoop, links: Links, trainers: Sequence[BatchedTrainer]) -> Sequence[Exchange]:
    """Return the exchange of each node, of the fidelity that the scenario asks for.

    Args:
        links: shared by all nodes.
        trainers: of each node; they compute the losses that peers ask for.
    """
    make = message_exchanges if plan.scenario.fidelity == "wire" else modelled_exchanges
    return make(plan, loop, links, trainers)


def modelled_exchanges(
    plan: RunPlan, loop: VirtualLoop, links: Links, trainers: Sequence[BatchedTrainer]
) -> Sequence[Exchange]:
    """Return exchanges that share a world and make no messages."""
    world = World(loop, links, plan.scenario)
    exchanges = [
        ModelledExchange(
            world,
            name,
            plan.topology.neighbours[k],
            trainers[k],
            task.n_samples,
            task.about,
            plan.encoder(k),
            bool(goals_of(task)),
            sparse=plan.sparse(k),
        )
        for k, (name, task) in enumerate(zip(plan.names, plan.tasks, strict=True))
    ]
    for exchange in exchanges:
        for id in exchange.roster.neighbours:
            world.nodes[id].requesters.append(exchange)
    return exchanges


def message_exchanges(
    plan: RunPlan, loop: VirtualLoop, links: Links, trainers: Sequence[BatchedTrainer]
) -> Sequence[Exchange]:
    """Return exchanges that sign, send and verify real messages over simulated links."""
    network = MemoryNetwork(links)
    scenario, names, neighbours = plan.scenario, plan.names, plan.topology.neighbours
    keys = {name: Identity.from_seed(Draws(scenario.seed, name).digest(0, "key of a simulation")) for name in names}
    askers = _askers(plan)
    changes = [{}, *scenario.policy_by_group.values()]
    policies = [make_policy(*tables.named("policy", scenario.policy | change)) for change in changes]
    coordinated = isinstance(policies[0], Coordinated)
    scores = any(map(asks_scores, policies))
    exchanges: list[Exchange] = []
    for k, name in enumerate(names):
        known = {*names} - {name} if coordinated else {*neighbours[k], *askers[name]}
        exchange = message_exchange(
            name,
            {id: Member(keys[id].public, (f"memory:{id}",)) for id in known},
            identity=keys[name],
            transport=network.transport(name),
            boot=1,
            federation=federation_id("simulation"),
            task=plan.tasks[k],
            trainer=trainers[k],
            settings=scenario,
            agreed={},
            sources=neighbours[k],
            askers=askers[name],
            coding=plan.encoder(k),
            electing=_electing(plan, loop, name) if coordinated else None,
            scores=scores,
            sparse=plan.sparse(k),
        )
        exchanges.append(exchange)
    return exchanges


def _askers(plan: RunPlan) -> dict[str, list[str]]:
    """Return by name the nodes that may fetch from a node."""
    askers: dict[str, list[str]] = {name: [] for name in plan.names}
    for name, sources in zip(plan.names, plan.topology.neighbours, strict=True):
        for id in sources:
            askers[id].append(name)
    return askers


def _electing(plan: RunPlan, loop: VirtualLoop, name: str) -> Electing:
    """Return a node's part in electing a coordinator: all vote, and any may be elected."""
    return Electing(
        name,
        Electorate(1, frozenset(plan.names), plan.names),
        MemoryVotes(),
        boot=1,
        seed=plan.scenario.seed,
        clock=loop.time,
        timing=timing_of(plan.tasks[0].layout.shared.size, plan.scenario.deadline),
    )
