"""Early stopping and best-on-validation (Listo Zec et al., section 3.2), which select a node's resulting model."""

from __future__ import annotations

from math import inf, isnan
from typing import Any, Literal

from p2pfl.node.checkpoint import unpack
from p2pfl.parameters import Parameters, detached
from p2pfl.policy import BestBy, Stage


class EarlyStopping:
    """Early stopping that keeps the best model on the validation data and its round.

    Args:
        patience: rounds without a better model after which a node stops; 0 never stops.
        by: what makes a model the best: the lowest validation `loss`, the first of equal ones, or the best validation
            `metric`, the last of equal ones (as in the program of DPFL's authors, Kharrat et al. 2024).

    Attributes:
        best: that model, or None before the first one; without validation data, the newest model.
        round: its round.
        stage: its stage; "" before the first one.
        loss: its validation loss or, by the metric, the negative of a metric whose higher values are better.
        by_stage: by stage, the lowest validation loss so far and its round.
        stopped: whether the node has stopped early. It stays stopped even if the last evaluation is the best.
    """

    def __init__(self, patience: int, by: BestBy = "loss") -> None:
        self.patience = patience
        self.by: BestBy = by
        self.best: Parameters | None = None
        self.round = 0
        self.stage: Stage | Literal[""] = ""
        self.loss = inf
        self.by_stage: dict[Stage, tuple[float, int]] = {}
        self.stopped = False
        self._newest = 0
        self._improved = 0  # the last round with a better model; an equal one uses up patience

    def note(self, round: int, stage: Stage, loss: float | None) -> None:
        """Record the validation loss of a round's model of one stage, whether or not it counts."""
        if loss is not None and loss < self.by_stage.get(stage, (inf, 0))[0]:
            self.by_stage[stage] = loss, round

    def see(self, round: int, params: Parameters, loss: float | None, stage: Stage = "merged") -> bool:
        """Record a round's model and its validation loss (None: no validation data). Return True if it is the best.

        Args:
            loss: the smaller, the better: see the attribute.
        """
        self._newest = round
        if loss is None:
            better = True
        else:
            better = loss < self.loss or (self.best is None and not isnan(loss))
        if better or self.best is None:
            self._improved = round
        better = better or (self.by == "metric" and loss == self.loss)
        if better or self.best is None:
            self.best, self.round = detached(params), round
            self.stage = stage
            self.loss = inf if loss is None or isnan(loss) else loss
        return better

    @property
    def stop(self) -> bool:
        """Return whether patience has run out."""
        return self.stopped or (self.patience > 0 and self._newest - self._improved >= self.patience)

    def state(self) -> dict[str, Any]:
        best = b"" if self.best is None else self.best.tobytes()
        return {
            "best": best,
            "round": self.round,
            "stage": self.stage,
            "loss": self.loss,
            "by_stage": {stage: list(least) for stage, least in self.by_stage.items()},
            "newest": self._newest,
            "improved": self._improved,
            "stopped": self.stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.best = unpack(state["best"]) if state["best"] else None
        self.round, self.loss, self._newest = state["round"], state["loss"], state["newest"]
        # Checkpoints of earlier versions lack the following keys.
        self._improved = state.get("improved", self.round)
        self.stage, self.stopped = state.get("stage", ""), state.get("stopped", False)
        self.by_stage = {stage: (loss, round) for stage, (loss, round) in state.get("by_stage", {}).items()}
