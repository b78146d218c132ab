"""Factory of message exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from math import nan

from p2pfl.compression.codecs import Differential, make_codec
from p2pfl.config.binding import split_name
from p2pfl.node.coordination.factory import Coordination
from p2pfl.node.exchange.exchange_config import ExchangeConfig, NeighbourRoles
from p2pfl.node.exchange.losses import LossFunction
from p2pfl.node.exchange.message_exchange import MessageExchange, payload_limit
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.federation.agreement import Edges, terms
from p2pfl.node.folder.settings import Settings
from p2pfl.node.peering.peering_config import PeeringConfig, PeeringOptions
from p2pfl.node.trainer import Trainer
from p2pfl.parameters import Parameters
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import Transport
from p2pfl.protocols.wire.envelope import OVERHEAD, FrameSigner, FrameVerifier
from p2pfl.queries import Loss
from p2pfl.task import Task, goals_of


def message_exchange(
    name: str,
    roles: NeighbourRoles,
    *,
    identity: Identity,
    transport: Transport,
    incarnation: int,
    generation: int = 0,
    federation: bytes,
    task: Task,
    trainer: Trainer,
    settings: Settings,
    agreed: Mapping[str, str],
    initial: str = "made by the task from the seed",
    coding: ModelEncoder | None = None,
    edges: Edges = "all",
    options: PeeringOptions = PeeringOptions(),  # noqa: B008 (it is frozen)
    coordination: Coordination | None = None,
    scores: bool = False,
) -> MessageExchange:
    """Return the exchange of a node that reaches its neighbours over `transport`.

    Args:
        incarnation: number of the node's starts; it must be on disk before this call.
        generation: random on machines; see p2pfl.protocols.wire.envelope.FrameSigner.
        federation: 16 bytes; see `federation_id` if there is no signed file.
        agreed: settings that must be equal on all nodes, in addition to `p2pfl.node.federation.agreement.terms`.
        initial: the hash of the initial model.
        coding: encoder of models, if it exists already.
        edges: pairs of nodes that may exchange models.
        scores: whether the policy asks for losses.
    """
    layout, electing = task.layout.shared, None if coordination is None else coordination.electing
    keys = {id: member.key for id, member in roles.members.items()}
    peering = PeeringConfig(
        name=name,
        key=identity.public,
        neighbours=roles.members,
        transport=transport,
        signer=FrameSigner(identity, federation, layout.fingerprint, incarnation, generation=generation),
        verifier=FrameVerifier(keys, identity.public, federation, payload_limit(layout.size, electing is not None)),
        agreed={**terms(layout, settings, initial, edges, None if electing is None else electing.timing), **agreed},
        public_info=dict(task.public_info) | {"n_samples": task.n_samples},
        seed=settings.seed,
        asynchronous=settings.mode == "asynchronous",
        sources=roles.sources,
        options=options,
    )
    config = ExchangeConfig(
        peering=peering,
        settings=settings,
        n_samples=task.n_samples,
        askers=roles.askers,
        observer=roles.observer,
        sparse=roles.sparse,
    )
    loss = _loss(task, trainer) if scores else None
    return MessageExchange(config, coding or coding_of(task, settings), loss, coordination)


def coding_of(task: Task, settings: Settings) -> ModelEncoder:
    """Return the model encoder that the settings select."""
    codec = make_codec(*split_name("codec", settings.codec))
    initial = task.layout.shared_of(task.initial(settings.seed)) if isinstance(codec, Differential) else None
    return ModelEncoder(codec, task.layout.shared, initial)


def _loss(task: Task, trainer: Trainer) -> LossFunction:
    """Return a function that computes the loss of a peer's model on this node's training data.

    The function returns NaN for a task with a preference, because the losses would reveal the preference.
    """
    private = bool(goals_of(task))

    async def loss(params: Parameters) -> float:
        if private:
            return nan
        return float((await trainer.submit(Loss([params], "train")))[0])

    return loss


def max_frame(size: int, coordinated: bool = False) -> int:
    """Return the maximum size in bytes of a frame between nodes with P parameters.

    Args:
        coordinated: see p2pfl.node.exchange.message_exchange.payload_limit.
    """
    return OVERHEAD + payload_limit(size, coordinated)


def federation_id(name: str) -> bytes:
    """Return the 16 bytes that identify the federation in its frames."""
    return sha256(b"p2pfl federation 1\0" + name.encode()).digest()[:16]
