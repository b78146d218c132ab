"""Attacks by name, as the key `attack` of a scenario names them, and the wrong labels of `label-flip`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from p2pfl._util.binding import build
from p2pfl.attacks.attack import Attack
from p2pfl.attacks.model_attacks import (
    Alie,
    BudgetFlood,
    FreeRide,
    Gaussian,
    Ipm,
    LabelFlip,
    Mimic,
    OptAlie,
    OptIpm,
    RewardBait,
    Scale,
    SignFlip,
    Stale,
)
from p2pfl.attacks.targeted_attacks import (
    DacSimilarity,
    Dissensus,
    Equivocation,
    LocalAlie,
    NegatedMean,
    OptDissensus,
    OptSpectral,
    Spectral,
)
from p2pfl.errors import ConfigurationError, unknown

ATTACKS: dict[str, Callable[..., Attack]] = {
    "sign-flip": SignFlip,
    "scale": Scale,
    "gaussian": Gaussian,
    "label-flip": LabelFlip,
    "alie": Alie,
    "opt-alie": OptAlie,
    "ipm": Ipm,
    "opt-ipm": OptIpm,
    "mimic": Mimic,
    "dissensus": Dissensus,
    "negated-mean": NegatedMean,
    "local-alie": LocalAlie,
    "spectral": Spectral,
    "opt-dissensus": OptDissensus,
    "opt-spectral": OptSpectral,
    "stale": Stale,
    "equivocation": Equivocation,
    "dac-similarity": DacSimilarity,
    "reward-bait": RewardBait,
    "budget-flood": BudgetFlood,
    "free-ride": FreeRide,
}


def make_attack(name: str, options: Mapping[str, Any]) -> Attack:
    """Return the attack called `name`.

    Raises:
        ConfigurationError: the name is unknown, or the attack does not take an option.
    """
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    attack: Attack = build("attack", ATTACKS[name], options)
    return attack


def flip_labels(task: Any) -> Any:
    """Return a copy of a torch task whose training labels are wrong; see p2pfl.attacks.model_attacks.LabelFlip.

    Raises:
        ConfigurationError: the task has no labelled data.
    """
    if "train" not in task.data or not hasattr(task, "template"):
        raise ConfigurationError("the attack label-flip needs a task with labelled data, such as a TorchTask")
    samples = task.data["train"]
    if samples.y.is_floating_point():
        wrong = -samples.y
    else:
        classes = task.template(samples.x[:2]).shape[-1]
        wrong = classes - 1 - samples.y
    flipped = copy(task)
    flipped.data = {**task.data, "train": samples._replace(y=wrong)}
    return flipped
