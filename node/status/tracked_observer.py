"""Observer that also gives the figures of a node to trackers; see p2pfl.tracking."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.node import Node
from p2pfl.node.status.observer import StatusObserver
from p2pfl.policy import Merge, Stage
from p2pfl.tracking.background import RunLog, Tracking
from p2pfl.tracking.tracker import TrackedRun, plain_settings

SHARED = ("part", "seed", "mode", "deadline", "robust", "task", "policy", "codec", "budget")  # settings that are no secrets
COUNTS = {"seconds": "time/round_s", "models": "traffic/models", "bytes_in": "traffic/bytes_in"}
COUNTS |= {"bytes_out": "traffic/bytes_out"}


class TrackedObserver(StatusObserver):
    """StatusObserver that also gives the figures of each round to trackers.

    Args:
        tracking: the trackers. The owner of the observer closes them.
        config: the node's configuration. Neither its files nor its preference are given to a tracker.
    """

    def __init__(self, *args: Any, tracking: Tracking, config: NodeConfig, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tracking = tracking
        self._config = config
        self._tracked: RunLog | None = None
        self._result: dict[str, float] = {}

    def begin(self, node: Node, about: Mapping[str, str] = MappingProxyType({})) -> None:
        super().begin(node, about)
        settings = {key: getattr(self._config, key) for key in SHARED} | {"rounds": node.settings.rounds}
        group = about.get("federation", "") or node.name
        run = TrackedRun(node.name, group, self._config.track.project, plain_settings(msgspec.to_builtins(settings)))
        self._tracked = self._tracking.begin(run)

    def merged(self, node: Node, merge: Merge) -> None:
        super().merged(node, merge)
        if self._tracked is not None:
            row = self.state["history"][-1]
            self._tracked.log(node.round, {name: row[key] for key, name in COUNTS.items()})

    def evaluated(self, node: Node, round: int, stages: Mapping[Stage, Mapping[str, float]]) -> None:
        super().evaluated(node, round, stages)
        if self._tracked is not None:
            figures = {f"{stage}/{name}": value for stage, found in stages.items() for name, value in found.items()}
            self._tracked.log(round, figures)

    def finished(self, node: Node, result: Mapping[str, float]) -> None:
        super().finished(node, result)
        if self._tracked is not None:
            self._result = {f"result/{name}": value for name, value in result.items()}
            self._tracked.log(node.round, self._result)  # the run ends with the node, which may get more rounds

    def ended(self, state: str, reason: str = "") -> None:
        super().ended(state, reason)
        if self._tracked is not None:
            self._tracked.finish(self._result)
