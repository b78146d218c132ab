"""Factory of the exchanges of simulated nodes: by signed messages, or modelled."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from p2pfl.attacks.attack import HonestView, as_accepted
from p2pfl.node.coordination.election_runner import ElectionRunner, MemoryVotes, timing_of
from p2pfl.node.coordination.factory import Coordination
from p2pfl.node.exchange.base import Exchange
from p2pfl.node.exchange.exchange_config import NeighbourRoles
from p2pfl.node.exchange.factory import federation_id, message_exchange
from p2pfl.node.peering.peer import Member
from p2pfl.parameters import Parameters
from p2pfl.policy import Policy, Step, Update, asks_scores
from p2pfl.protocols.election.types import Electorate
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.queries import Loss
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.network import Links
from p2pfl.sim.scenario.scenario import AttackPlan
from p2pfl.sim.simulation.batching import BatchedTrainer
from p2pfl.sim.simulation.clock import VirtualLoop
from p2pfl.sim.simulation.modelled_coordinator import ModelledCoordination
from p2pfl.sim.simulation.modelled_exchange import ModelledExchange, connect
from p2pfl.sim.simulation.modelled_network import ModelledConfig, ModelledNetwork
from p2pfl.sim.simulation.plan import RunPlan
from p2pfl.task import goals_of


class Parts(NamedTuple):
    """Parts of a run that its exchanges need.

    Attributes:
        links: shared by all nodes.
        trainers: of each node; they compute the losses that peers request.
        policies: of each node.
        steps: joint step of each node's policy; None if the policy is not coordinated.
    """

    plan: RunPlan
    loop: VirtualLoop
    links: Links
    trainers: Sequence[BatchedTrainer]
    policies: Sequence[Policy]
    steps: Sequence[Step | None]


def make_exchanges(parts: Parts) -> Sequence[Exchange]:
    """Return the exchange of each node, with the fidelity of the scenario."""
    return message_exchanges(parts) if parts.plan.scenario.fidelity == "wire" else modelled_exchanges(parts)


def modelled_exchanges(parts: Parts) -> Sequence[Exchange]:
    """Return exchanges that share a network and send no messages."""
    plan = parts.plan
    network = ModelledNetwork(parts.loop, parts.links, plan.scenario)
    coordination = ModelledCoordination(network)
    attack = plan.scenario.attack_plan()
    detects = plan.scenario.distrust > 0 or (attack is not None and attack.attack.targeted)
    exchanges = []
    for k, (name, task, step) in enumerate(zip(plan.names, plan.tasks, parts.steps, strict=True)):
        config = ModelledConfig(
            name=name,
            neighbours=plan.topology.neighbours[k],
            n_samples=task.n_samples,
            public_info=task.public_info,
            coding=plan.encoder(k),
            private=bool(goals_of(task)),
            sparse=plan.sparse(k),
            detects=detects,
        )
        loss = partial(_loss, parts.trainers[k])
        exchanges.append(ModelledExchange(network, config, loss, None if step is None else (coordination, step)))
    connect(network, directed=plan.topology.properties["directed"])
    return exchanges


def message_exchanges(parts: Parts) -> Sequence[Exchange]:
    """Return exchanges that sign, send and verify real messages over simulated links."""
    plan = parts.plan
    network = InProcessNetwork(parts.links)
    scenario, names = plan.scenario, plan.names
    keys = {name: Identity.from_seed(RandomStreams(scenario.seed, name).digest(0, "key of a simulation")) for name in names}
    askers = _askers(plan)
    scores = any(map(asks_scores, parts.policies))
    exchanges: list[Exchange] = []
    for k, (name, sources, step) in enumerate(zip(names, plan.topology.neighbours, parts.steps, strict=True)):
        coordination = None if step is None else Coordination(_electing(plan, parts.loop, name), step)
        known = {*sources, *askers[name]} if coordination is None else {*names} - {name}
        roles = NeighbourRoles(
            members={id: Member(keys[id].public, (f"memory:{id}",)) for id in known},
            sources=sources,
            askers=askers[name],
            sparse=plan.sparse(k),
        )
        exchange = message_exchange(
            name,
            roles,
            identity=keys[name],
            transport=network.transport(name),
            incarnation=1,
            federation=federation_id("simulation"),
            task=plan.tasks[k],
            trainer=parts.trainers[k],
            settings=scenario,
            agreed={},
            coding=plan.encoder(k),
            coordination=coordination,
            scores=scores,
        )
        exchanges.append(exchange)
    return exchanges


def view_of(attack: AttackPlan, plan: RunPlan) -> HonestView:
    """Return the view that the attackers of a run share."""
    return HonestView([plan.names[k] for k in attack.nodes], dict(zip(plan.names, plan.topology.neighbours, strict=True)))


def forge_for_victims(attack: AttackPlan, view: HonestView, exchanges: Sequence[Exchange]) -> None:
    """Make the attackers send each honest node the model that the attack forges for it."""

    def forge(victim: str, update: Update) -> Update:
        if victim in view.attackers:
            return update
        with np.errstate(over="ignore", invalid="ignore"):
            forged = attack.attack.forge_for(victim, update.params, view)
        return replace(update, model=as_accepted(forged, update.params))

    for k in attack.nodes:
        exchange = exchanges[k]
        assert isinstance(exchange, ModelledExchange)
        exchange.peer.forge = forge


def _loss(trainer: BatchedTrainer, params: Parameters) -> Future[np.ndarray]:
    """Request the loss of a model on a node's training data; the result is float [1]."""
    return trainer.submit(Loss([params], "train"))


def _askers(plan: RunPlan) -> dict[str, list[str]]:
    """Return, by the name of a node, the nodes that may fetch from it."""
    askers: dict[str, list[str]] = {name: [] for name in plan.names}
    for name, sources in zip(plan.names, plan.topology.neighbours, strict=True):
        for id in sources:
            askers[id].append(name)
    return askers


def _electing(plan: RunPlan, loop: VirtualLoop, name: str) -> ElectionRunner:
    """Return a node's election runner: all nodes vote, and any node may be elected."""
    return ElectionRunner(
        name,
        Electorate(1, frozenset(plan.names), plan.names),
        MemoryVotes(),
        incarnation=1,
        seed=plan.scenario.seed,
        clock=loop.time,
        timing=timing_of(plan.tasks[0].layout.shared.size, plan.scenario.deadline),
    )
