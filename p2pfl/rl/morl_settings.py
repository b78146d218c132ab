"""Settings of learning in mo-gymnasium's environments: environment, algorithm, preference.

Where each parameter of FedPref's experiments (Hartmann et al. 2024) comes from:

- Learning rate, buffer, batch, gamma, frequency of training, gradient steps, exploration, layers: tables 11 and 12.
- All others of DQN and DDPG (Adam, Huber loss, `max_grad_norm`, `tau`): the defaults of stable-baselines3, as appendix
  A.0.2 states.
- Steps of a round (`steps` times the policy's `epochs`): table 10.
- Rounds: the captions of figures 4.11, A.4, A.6, A.8 and A.10 of Hartmann's dissertation.
- Reference point of the hypervolume on deep-sea treasure, (-1, -101): computed. With (0, -100) the whole front has less
  than table 3 prints.
- Evaluation by one greedy episode of the last model: computed. The rows of table 3 whose nodes share a model are sums of
  such episodes.
- Target networks at the start of a round: not stated. "received" gives the printed order (see `MorlProblem`).
- Moments of Adam and transitions: not stated; kept by the node. Exploration over rounds: not stated; it decreases over the
  whole run. Initial networks: not stated; equal on all nodes.
- Share R of the similarity: not stated for table 1 (table 14 varies it); 0.5. Second threshold of CFL: not stated; 12
  splits rarely on deep-sea treasure, as the paper reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from p2pfl.errors import ConfigurationError
from p2pfl.multiobjective.preferences import Preference
from p2pfl.task import Task

LARGEST_BUFFER = 10_000_000  # transitions
WIDEST = 4096  # units of a hidden layer
MOST_LAYERS = 16

Targets = Literal["received", "kept"]


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"task.settings.{name} must be 1 or more, got {value}")


@dataclass(frozen=True)
class Settings:
    """Common settings of DQN and DDPG. The names are those of stable-baselines3, which documents them.

    Attributes:
        buffer_size: number of transitions that are kept, over all rounds.
        learning_starts: random steps, over all rounds, before the first training.
        train_freq: steps of the environment between two trainings; a round's steps are rounded up to a multiple of it.
        gradient_steps: gradient steps of a training; -1 is the number of steps taken.
        net_arch: widths of the hidden layers.
    """

    learning_rate: float
    buffer_size: int
    learning_starts: int
    gamma: float
    train_freq: int
    gradient_steps: int
    net_arch: tuple[int, ...]
    batch_size: int

    def __post_init__(self) -> None:
        _at_least_one("batch_size", self.batch_size)
        _at_least_one("train_freq", self.train_freq)
        if not 1 <= self.buffer_size <= LARGEST_BUFFER:
            raise ConfigurationError(f"task.settings.buffer_size must be from 1 to {LARGEST_BUFFER}, got {self.buffer_size}")
        if not 0 < self.learning_rate < inf:
            raise ConfigurationError(f"task.settings.learning_rate must be more than 0, got {self.learning_rate}")
        if not 0 <= self.gamma <= 1:
            raise ConfigurationError(f"task.settings.gamma must be from 0 to 1, got {self.gamma}")
        if self.learning_starts < 0:
            raise ConfigurationError(f"task.settings.learning_starts must be 0 or more, got {self.learning_starts}")
        if self.gradient_steps < 1 and self.gradient_steps != -1:
            raise ConfigurationError(f"task.settings.gradient_steps must be 1 or more, or -1, got {self.gradient_steps}")
        if not (1 <= len(self.net_arch) <= MOST_LAYERS and all(1 <= width <= WIDEST for width in self.net_arch)):
            raise ConfigurationError(f"task.settings.net_arch must be 1 to {MOST_LAYERS} widths from 1 to {WIDEST}")


@dataclass(frozen=True)
class DQN(Settings):
    """Deep Q-learning (Mnih et al. 2015), for discrete actions.

    Attributes:
        target_update_interval: steps, over all rounds, between two updates of the target network to the Q-network.
        exploration_fraction: fraction of the run in which the probability of a random action decreases linearly from 1.
        exploration_final_eps: final probability of a random action.
    """

    target_update_interval: int
    exploration_fraction: float
    exploration_final_eps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("target_update_interval", self.target_update_interval)
        if not 0 < self.exploration_fraction <= 1:
            raise ConfigurationError("task.settings.exploration_fraction must be above 0 and at most 1")
        if not 0 <= self.exploration_final_eps <= 1:
            raise ConfigurationError("task.settings.exploration_final_eps must be from 0 to 1")


@dataclass(frozen=True)
class DDPG(Settings):
    """Deep deterministic policy gradients (Lillicrap et al. 2016), for continuous actions.

    Attributes:
        noise_std: standard deviation of the normal noise that is added to an action in training.
    """

    noise_std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise_std < inf:
            raise ConfigurationError(f"task.settings.noise_std must be 0 or more, got {self.noise_std}")


@dataclass(frozen=True)
class Environment:
    """An environment with the training settings of FedPref.

    Attributes:
        id: mo-gymnasium's id.
        names: names of its rewards.
        steps: steps of the environment between two aggregations (tables 8 to 10).
        rounds: number of rounds (captions of the figures on clustering in Hartmann's dissertation).
        episodes: number of episodes whose mean return is reported; one is enough in a deterministic environment.
        settings: those of tables 11 and 12; all others are stable-baselines3's defaults.
        reference, front: see p2pfl.task.Task.
    """

    id: str
    names: tuple[str, ...]
    steps: int
    rounds: int
    episodes: int
    settings: DQN | DDPG
    reference: tuple[float, ...] = ()
    front: tuple[tuple[float, ...], ...] = ()


@dataclass
class MorlProblem(Task):
    """DQN or DDPG on the linearly scalarised reward: a MorlTask without its learner.

    The model consists of the networks that act and are trained by gradients: the Q-network of DQN, the `actor` and the
    critic of DDPG. The optimiser's moments and the transitions stay on the node between rounds. Without the transitions
    of earlier rounds, nothing would be learned in environments where learning starts late.

    Each training begins with target networks that equal the networks it begins with, if `targets` is "received". A target
    that a node kept from the round before belongs to its own last model and not to the one received: the temporal
    difference then measures the change that the aggregation made, and the training undoes it in part. The paper does not
    say which it uses; its figures follow from "received" only (see the scenario fedpref-morl-dst), as with a program that
    loads stable-baselines3's whole `policy.state_dict()`.

    Attributes:
        preference: the node's weights of the rewards, [m]; they stay on this node.
        group: the number of the node's group if preferences are given by groups; it stays on this node too.
        steps: steps of the environment in an epoch; an unfinished episode is discarded at the end.
        rounds: rounds of the run; exploration decreases over a fraction of them.
        episodes: number of episodes whose mean return is reported.
        targets: "received" makes the target networks equal to the received networks at the start of each training; "kept"
            continues with those of the node's last training.
    """

    environment: Environment
    settings: DQN | DDPG
    preference: Preference = field(repr=False)
    group: int | None = field(default=None, repr=False)
    steps: int = 500
    rounds: int = 28
    episodes: int = 1
    targets: Targets = "received"
    metric: str = "reward"
    higher_is_better: bool = True
    public_info: Mapping[str, Any] = field(default_factory=dict)
