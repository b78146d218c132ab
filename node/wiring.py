"""Puts a message exchange together: who the node is, what it agrees on, how it is reached."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

from node.messaging import Member, MessageExchange, payload_limit
from node.settings import Settings
from node.trainer import Trainer
from p2pfl.parameters import Layout, Parameters
from p2pfl.task import Task
from protocols.envelope import OVERHEAD, Door, Sealer
from protocols.identity import Identity
from protocols.transport import Transport

LONGEST_TERM = 200


def message_exchange(
    name: str,
    neighbours: Mapping[str, Member],
    *,
    identity: Identity,
    transport: Transport,
    boot: int,
    federation: str,
    task: Task,
    trainer: Trainer,
    settings: Settings,
    agreed: Mapping[str, str],
    sources: Collection[str] | None = None,
    askers: Collection[str] | None = None,
) -> MessageExchange:
    """Return the exchange of a node that reaches its neighbours over `transport`.

    Args:
        boot: how often the node has started; durable before this is called.
        agreed: what all nodes must have alike beyond settings and layout; see `describe`.
        sources, askers: see MessageExchange.
    """
    layout = task.layout
    code = federation_id(federation)

    async def loss(params: Parameters) -> float:
        return float((await trainer.loss([params], split="train"))[0])

    return MessageExchange(
        name,
        neighbours,
        transport=transport,
        sealer=Sealer(identity, code, layout.fingerprint, boot),
        door=Door({id: member.key for id, member in neighbours.items()}, identity.public, code, payload_limit(layout.size)),
        settings=settings,
        agreed=terms(layout, settings) | dict(agreed),
        about=task.about,
        size=layout.size,
        n_samples=task.n_samples,
        loss=loss,
        sources=sources,
        askers=askers,
    )


def max_frame(size: int) -> int:
    """Return the most bytes that a frame may have between nodes with P parameters."""
    return OVERHEAD + payload_limit(size)


def federation_id(name: str) -> bytes:
    """Return the 16 bytes by which frames of a federation are known."""
    return sha256(b"p2pfl federation 1\0" + name.encode()).digest()[:16]


def terms(layout: Layout, settings: Settings) -> dict[str, str]:
    """Return what all nodes must have alike of their settings and their model, in words."""
    return {
        "layout": f"{layout.size} values in {len(layout.shapes)} tensors ({layout.fingerprint.hex()})",
        "seed": str(settings.seed),
        "mode": settings.mode,
        "rounds": str(settings.rounds),
        "deadline": f"{settings.deadline:g}",
    }


def describe(prefix: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration table in words, such as {"policy.tau": "30.0"}; a long value by its hash."""
    words = {}
    for key, value in options.items():
        text = repr(value)
        if len(text) > LONGEST_TERM:
            text = f"{text[:40]}... ({sha256(text.encode()).hexdigest()[:16]})"
        words[f"{prefix}.{key}"[:64]] = text
    return words
