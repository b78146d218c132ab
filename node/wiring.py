"""Puts a message exchange together: who the node is, what it agrees on, how it is reached."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from math import inf, nan

from node import tables
from node.agreement import Edges, terms
from node.coding import Coding
from node.electing import Electing
from node.messaging import MessageExchange, payload_limit
from node.peer import Member
from node.settings import Settings
from node.trainer import Trainer
from p2pfl.codecs import TopK, make_codec
from p2pfl.parameters import Parameters
from p2pfl.task import Task, goals_of
from protocols.envelope import OVERHEAD, Door, Sealer
from protocols.identity import Identity
from protocols.transport import Gate, Transport


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
    gate: Gate | None = None,
    period: float = inf,
    electing: Electing | None = None,
    scores: bool = False,
    observer: bool = False,
    sparse: bool = False,
) -> MessageExchange:
    """Return the exchange of a node that reaches its neighbours over `transport`.

    Args:
        boot: how often the node has started; durable before this is called.
        federation: 16 bytes; see `federation_id` where there is no signed file.
        agreed: what all nodes must have alike beyond what `node.agreement.terms` says; see `node.agreement.describe`.
        initial: the hash of the initial model.
        coding: how models travel, if it was made already.
        scores: whether the policy asks for losses.
        edges: who may exchange models.
        sources, askers, gate, period, electing, observer, sparse: see MessageExchange.
    """
    layout = task.layout.shared
    codec = make_codec(*tables.named("codec", settings.codec))

    private = bool(goals_of(task))  # what peers' models are worth to this node would tell its preference

    async def loss(params: Parameters) -> float:
        if private:
            return nan
        return float((await trainer.loss([params], split="train"))[0])

    return MessageExchange(
        name,
        identity.public,
        neighbours,
        transport=transport,
        sealer=Sealer(identity, federation, layout.fingerprint, boot),
        door=Door(
            {id: member.key for id, member in neighbours.items()},
            identity.public,
            federation,
            payload_limit(layout.size, electing is not None),
        ),
        settings=settings,
        agreed=terms(layout, settings, initial, edges, None if electing is None else electing.timing) | dict(agreed),
        about=task.about,
        coding=coding
        or Coding(codec, layout, task.layout.cut(task.initial(settings.seed)) if isinstance(codec, TopK) else None),
        n_samples=task.n_samples,
        loss=loss if scores else None,
        sources=sources,
        askers=askers,
        gate=gate,
        period=period,
        electing=electing,
        observer=observer,
        sparse=sparse or edges != "all",
    )


def max_frame(size: int, coordinated: bool = False) -> int:
    """Return the most bytes that a frame may have between nodes with P parameters.

    Args:
        coordinated: see node.messaging.payload_limit.
    """
    return OVERHEAD + payload_limit(size, coordinated)


def federation_id(name: str) -> bytes:
    """Return the 16 bytes by which frames of a federation are known."""
    return sha256(b"p2pfl federation 1\0" + name.encode()).digest()[:16]
