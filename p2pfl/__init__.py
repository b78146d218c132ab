"""Public API of p2pfl: parameters, tasks, training, similarity, aggregation and policies.

Researchers write policies and tasks against this package. It does not use sockets, clocks or event loops, and imports
neither `protocols` nor `topologies`. Names that need torch, `Node` and `simulate` are loaded at their first use, so
that `import p2pfl` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from p2pfl._version import __version__ as __version__
from p2pfl.errors import ConfigurationError, P2pflError, needs_extra
from p2pfl.learner import Learner
from p2pfl.parameters import Layout, Parameters, weighted_mean
from p2pfl.policy import Assignment, Budget, Coordinated, Me, Merge, Peers, Policy, Submission, Update, merge, samples
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, Task

if TYPE_CHECKING:
    from p2pfl.data.partition.partitioner import partition
    from p2pfl.learning.losses import Metric
    from p2pfl.learning.optimizers import SGD, Adam, AdamW
    from p2pfl.learning.schedules import schedule
    from p2pfl.learning.torch_task import TorchTask, classification, multi_objective, regression
    from p2pfl.multiobjective.scalarisation import Objectives
    from p2pfl.node.node import Node
    from p2pfl.sim.api import load, simulate
    from p2pfl.testing import run_in_memory

# Loaded at the first use: torch takes over a second, and `node` and `sim` are layers above this package.
_LAZY = {
    "SGD": "p2pfl.learning.optimizers",
    "Adam": "p2pfl.learning.optimizers",
    "AdamW": "p2pfl.learning.optimizers",
    "Metric": "p2pfl.learning.losses",
    "Objectives": "p2pfl.multiobjective.scalarisation",
    "TorchTask": "p2pfl.learning.torch_task",
    "classification": "p2pfl.learning.torch_task",
    "multi_objective": "p2pfl.learning.torch_task",
    "partition": "p2pfl.data.partition.partitioner",
    "regression": "p2pfl.learning.torch_task",
    "run_in_memory": "p2pfl.testing",
    "schedule": "p2pfl.learning.schedules",
    "Node": "p2pfl.node.node",
    "load": "p2pfl.sim.api",
    "simulate": "p2pfl.sim.api",
}

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Assignment",
    "Budget",
    "ConfigurationError",
    "Coordinated",
    "Layout",
    "Learner",
    "Me",
    "Merge",
    "Metric",
    "Node",
    "Objectives",
    "P2pflError",
    "Parameters",
    "Part",
    "Peers",
    "Policy",
    "RandomStreams",
    "Submission",
    "Task",
    "TorchTask",
    "Update",
    "classification",
    "load",
    "merge",
    "multi_objective",
    "partition",
    "regression",
    "run_in_memory",
    "samples",
    "schedule",
    "simulate",
    "weighted_mean",
]


if not TYPE_CHECKING:  # a type checker uses the imports above, and reports unknown names

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'p2pfl' has no attribute {name!r}")
        with needs_extra(f"p2pfl.{name}"):
            return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names and the dunders."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))})
