"""Wrong labels for the training data of an attacker."""

from __future__ import annotations

from copy import copy
from typing import Any

from p2pfl.errors import ConfigurationError


def flip_labels(task: Any) -> Any:
    """Return a copy of a torch task whose training labels are wrong; see p2pfl.attacks.model_attacks.LabelFlip.

    Raises:
        ConfigurationError: the task has no labelled data.
    """
    if "train" not in getattr(task, "data", {}) or not hasattr(task, "template"):
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
