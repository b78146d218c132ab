"""Default logger of nodes: `p2pfl.node` of the standard library's loggers."""

from __future__ import annotations

from p2pfl._util.event_log import package_logger

LOG = package_logger("p2pfl.node")
