"""What is learned, and with whom: parameters, tasks, training, similarity, aggregation, policies.

This package is what a researcher writes against. It knows no socket, no clock and no event loop, and imports neither
`protocols` nor `topologies`; torch is imported where tensors are trained. `Node` and `simulate` are reachable from here too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from p2pfl.errors import ConfigurationError, P2pflError
from p2pfl.parameters import Layout, Parameters, weighted_mean
from p2pfl.policy import Assignment, Budget, Coordinated, Me, Merge, Peers, Policy, Submission, Update, merge, samples
from p2pfl.randomness import Draws
from p2pfl.task import Learner, Part, Task

if TYPE_CHECKING:
    from node.node import Node
    from p2pfl.objectives import Objectives
    from p2pfl.optimizers import SGD, Adam
    from p2pfl.rehearsal import rehearse
    from p2pfl.torch_task import TorchTask, classification, multi_objective, regression
    from sim.api import simulate

__version__ = "0.1.0"

# Imported when first asked for: torch takes over a second, and `node` and `sim` import this package.
_LAZY = {
    "SGD": "p2pfl.optimizers",
    "Adam": "p2pfl.optimizers",
    "Objectives": "p2pfl.objectives",
    "TorchTask": "p2pfl.torch_task",
    "classification": "p2pfl.torch_task",
    "multi_objective": "p2pfl.torch_task",
    "regression": "p2pfl.torch_task",
    "rehearse": "p2pfl.rehearsal",
    "Node": "node.node",
    "simulate": "sim.api",
}

__all__ = [
    "SGD",
    "Adam",
    "Assignment",
    "Budget",
    "ConfigurationError",
    "Coordinated",
    "Draws",
    "Layout",
    "Learner",
    "Me",
    "Merge",
    "Node",
    "Objectives",
    "P2pflError",
    "Parameters",
    "Part",
    "Peers",
    "Policy",
    "Submission",
    "Task",
    "TorchTask",
    "Update",
    "classification",
    "merge",
    "multi_objective",
    "regression",
    "rehearse",
    "samples",
    "simulate",
    "weighted_mean",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'p2pfl' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
