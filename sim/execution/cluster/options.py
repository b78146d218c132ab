"""Options of the engine `ray`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the engine `ray`.

    Attributes:
        address: of the cluster, host:port or `auto`; "" starts Ray on this machine.
        allow_different_bits: use machines whose CPU or torch computes other last bits than this machine.
    """

    address: str = ""
    allow_different_bits: bool = False


ON_THIS_MACHINE = ClusterOptions()
