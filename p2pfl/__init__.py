"""The stable API of p2pfl, for policies, tasks, attacks, codecs and results; docs/reference/stable-api.md explains it.

All names of `__all__` are imported as `from p2pfl import NAME`. Those that need torch, `Node` and the simulator are loaded
at their first use, so that `import p2pfl` stays fast. Names that are not listed here or on that page are private: they may
change with any commit.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from p2pfl._version import __version__ as __version__
from p2pfl.errors import (
    BudgetExceededError,
    ConfigurationError,
    DivergenceError,
    P2pflError,
    RunError,
    needs_extra,
)
from p2pfl.fragments import Fragments
from p2pfl.learner import Learner, answers
from p2pfl.parameters import Layout, Parameters, weighted_mean
from p2pfl.policy import (
    Assignment,
    Budget,
    Coordinated,
    Fragment,
    Me,
    Merge,
    Peers,
    Policy,
    ReportedStage,
    Stage,
    Submission,
    Update,
    merge,
    merge_fragments,
    samples,
)
from p2pfl.queries import Evaluate, Loss, Query, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, StatefulLearner, Task, make_task

if TYPE_CHECKING:
    from p2pfl.algorithms.selection import drawn_fragments, uniform
    from p2pfl.attacks.attack import Attack
    from p2pfl.compression.codecs import Codec
    from p2pfl.data.partition.partitioner import partition
    from p2pfl.learning.adapters import with_adapters
    from p2pfl.learning.dense import DenseNetwork, DenseTask
    from p2pfl.learning.losses import Metric
    from p2pfl.learning.optimizers import SGD, Adam, AdamW
    from p2pfl.learning.schedules import schedule
    from p2pfl.learning.torch_task import TorchTask, classification, multi_objective, regression
    from p2pfl.multiobjective.scalarisation import Objectives
    from p2pfl.node.node import Node
    from p2pfl.policies import make_policy
    from p2pfl.policies.local import Local
    from p2pfl.policies.random import Random
    from p2pfl.sim.api import load, simulate
    from p2pfl.sim.results.results import Result, Results
    from p2pfl.testing import run_in_memory
    from p2pfl.tracking.tracker import TrackedRun, Tracker

# A clone without symbolic links, as Git for Windows makes it by default, has text files in place of p2pfl/node and the
# three other links. The folders themselves are beside this one. An installed package needs no links.
if not (_HERE := Path(__file__).parent).joinpath("node").is_dir():
    __path__.append(str(_HERE.parent))

# Loaded at the first use: torch takes over a second, and `node` and `sim` are layers above this package.
_LAZY = {
    "Adam": "p2pfl.learning.optimizers",
    "AdamW": "p2pfl.learning.optimizers",
    "Attack": "p2pfl.attacks.attack",
    "Codec": "p2pfl.compression.codecs",
    "DenseNetwork": "p2pfl.learning.dense",
    "DenseTask": "p2pfl.learning.dense",
    "Local": "p2pfl.policies.local",
    "Metric": "p2pfl.learning.losses",
    "Node": "p2pfl.node.node",
    "Objectives": "p2pfl.multiobjective.scalarisation",
    "Random": "p2pfl.policies.random",
    "Result": "p2pfl.sim.results.results",
    "Results": "p2pfl.sim.results.results",
    "SGD": "p2pfl.learning.optimizers",
    "TorchTask": "p2pfl.learning.torch_task",
    "TrackedRun": "p2pfl.tracking.tracker",
    "Tracker": "p2pfl.tracking.tracker",
    "classification": "p2pfl.learning.torch_task",
    "drawn_fragments": "p2pfl.algorithms.selection",
    "load": "p2pfl.sim.api",
    "make_policy": "p2pfl.policies",
    "multi_objective": "p2pfl.learning.torch_task",
    "partition": "p2pfl.data.partition.partitioner",
    "regression": "p2pfl.learning.torch_task",
    "run_in_memory": "p2pfl.testing",
    "schedule": "p2pfl.learning.schedules",
    "simulate": "p2pfl.sim.api",
    "uniform": "p2pfl.algorithms.selection",
    "with_adapters": "p2pfl.learning.adapters",
}

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Assignment",
    "Attack",
    "Budget",
    "BudgetExceededError",
    "Codec",
    "ConfigurationError",
    "Coordinated",
    "DenseNetwork",
    "DenseTask",
    "DivergenceError",
    "Evaluate",
    "Fragment",
    "Fragments",
    "Layout",
    "Learner",
    "Local",
    "Loss",
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
    "Query",
    "Random",
    "RandomStreams",
    "ReportedStage",
    "Result",
    "Results",
    "RunError",
    "Stage",
    "StatefulLearner",
    "Submission",
    "Task",
    "TorchTask",
    "TrackedRun",
    "Tracker",
    "Train",
    "Update",
    "answers",
    "classification",
    "drawn_fragments",
    "load",
    "make_policy",
    "make_task",
    "merge",
    "merge_fragments",
    "multi_objective",
    "partition",
    "regression",
    "run_in_memory",
    "samples",
    "schedule",
    "simulate",
    "uniform",
    "weighted_mean",
    "with_adapters",
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
