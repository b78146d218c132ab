"""Factory of message exchanges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from hashlib import sha256
from math import nan

from node import tables
from node.agreement import Edges, terms
from node.coding import Coding
from node.electing import Electing
from node.messaging import MessageExchange, payload_limit
from node.peer import Member
from node.peering_config import PeeringConfig, PeeringOptions
from node.settings import Settings
from node.trainer import Trainer
from p2pfl.codecs import TopK, make_codec
from p2pfl.parameters import Parameters
from p2pfl.task import Task, goals_of
from protocols.envelope import OVERHEAD, Door, Sealer
from protocols.identity import Identity
from protocols.transport import Transport


def message_exchange(
    name: str,
    neighbours: Mapping[str, Member],
    *,
    identity: Identity,
    transport: Transport,
    boot: int,
    federation: bytes,
    task: Task,
    trainer: Trainer,
    settings: Settings,
    agreed: Mapping[str, str],
    initial: str = "made by the task from the seed",
    coding: Coding | None = None,
    edges: Edges = "all",
    sources: Collection[str] | None = None,
    askers: Collection[str] | None = None,
    options: PeeringOptions = PeeringOptions(),  # noqa: B008 (it is frozen)
    electing: Electing | None = None,
    scores: bool = False,
    observer: bool = False,
    sparse: bool = False,
) -> MessageExchange:
    """Return the exchange of a node that reaches its neighbours over `transport`.

    Args:
        boot: how often the node has started; durable before this is called.
        federation: 16 bytes (see `federation_id`).
        agreed: settings that must be equal on all nodes beyond those of `node.agreement.terms`.
        initial: the hash of the initial model.
        scores: whether the policy asks for losses.
        coding, edges, sources, askers, electing, observer, sparse: see PeeringConfig and MessageExchange.
    """
    layout, timing = task.layout.shared, None if electing is None else electing.timing
    keys = {id: member.key for id, member in neighbours.items()}
    peering = PeeringConfig(
        name=name,
        key=identity.public,
        neighbours=neighbours,
        transport=transport,
        sealer=Sealer(identity, federation, layout.fingerprint, boot),
        door=Door(keys, identity.public, federation, payload_limit(layout.size, electing is not None)),
        agreed={**terms(layout, settings, initial, edges, timing), **agreed},
        about=dict(task.about) | {"n_samples": task.n_samples},
        seed=settings.seed,
        asynchronous=settings.mode == "asynchronous",
        sources=sources,
        options=options,
    )
    return MessageExchange(
        peering,
        settings=settings,
        coding=coding or _coding(task, settings),
        n_samples=task.n_samples,
        loss=_loss(task, trainer) if scores else None,
        askers=askers,
        electing=electing,
        observer=observer,
        sparse=sparse or edges != "all",
    )


def _coding(task: Task, settings: Settings) -> Coding:
    codec, layout = make_codec(*tables.named("codec", settings.codec)), task.layout
    return Coding(codec, layout.shared, layout.cut(task.initial(settings.seed)) if isinstance(codec, TopK) else None)


def _loss(task: Task, trainer: Trainer) -> Callable[[Parameters], Awaitable[float]]:
    """Return a function that computes the loss of a peer's model on the own training data.

    It returns NaN for a task with a preference, which the losses would tell.
    """
    private = bool(goals_of(task))

    async def loss(params: Parameters) -> float:
        if private:
            return nan
        return float((await trainer.loss([params], split="train"))[0])

    return loss


def max_frame(size: int, coordinated: bool = False) -> int:
    """Return the most bytes that a frame may have between nodes with P parameters.

    Args:
        coordinated: see node.messaging.payload_limit.
    """
    return OVERHEAD + payload_limit(size, coordinated)


def federation_id(name: str) -> bytes:
    """Return the 16 bytes by which frames of a federation are known."""
    return sha256(b"p2pfl federation 1\0" + name.encode()).digest()[:16]
