"""Attacks by name, as the key `attack` of a scenario names them, and the wrong labels of `label-flip`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from p2pfl._util.binding import build
from p2pfl.attacks import model_attacks, targeted_attacks
from p2pfl.attacks.attack import Attack
from p2pfl.errors import ConfigurationError, unknown

ATTACKS: dict[str, Callable[..., Attack]] = {
    "sign-flip": model_attacks.SignFlip,
    "scale": model_attacks.Scale,
    "gaussian": model_attacks.Gaussian,
    "label-flip": model_attacks.LabelFlip,
    "alie": model_attacks.Alie,
    "opt-alie": model_attacks.OptAlie,
    "ipm": model_attacks.Ipm,
    "opt-ipm": model_attacks.OptIpm,
    "mimic": model_attacks.Mimic,
    "dissensus": targeted_attacks.Dissensus,
    "negated-mean": targeted_attacks.NegatedMean,
    "local-alie": targeted_attacks.LocalAlie,
    "spectral": targeted_attacks.Spectral,
    "opt-dissensus": targeted_attacks.OptDissensus,
    "opt-spectral": targeted_attacks.OptSpectral,
    "stale": model_attacks.Stale,
    "equivocation": targeted_attacks.Equivocation,
    "dac-similarity": targeted_attacks.DacSimilarity,
    "reward-bait": model_attacks.RewardBait,
    "budget-flood": model_attacks.BudgetFlood,
    "free-ride": model_attacks.FreeRide,
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
