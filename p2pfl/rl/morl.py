"""Reinforcement learning for several rewards: mo-gymnasium's environments with stable-baselines3's DQN and DDPG.

p2pfl.rl.morl_settings defines environments and settings. p2pfl.rl.morl_learner contains the learner, and imports those
packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2pfl.parameters import Layout, Parameters
from p2pfl.random_streams import RandomStreams
from p2pfl.rl.morl_settings import MorlProblem

if TYPE_CHECKING:
    from p2pfl.rl.batched_dqn import BatchedDqn
    from p2pfl.rl.morl_learner import MorlLearner


@dataclass
class MorlTask(MorlProblem):
    """DQN or DDPG on the linearly scalarised reward; for its attributes see MorlProblem."""

    @property
    def layout(self) -> Layout:
        from p2pfl.rl.morl_learner import layout

        return layout(self.environment.id, self.settings)

    @property
    def n_samples(self) -> int:
        return self.steps

    @property
    def goals(self) -> Mapping[str, bool]:
        return dict.fromkeys(self.environment.names, True)

    @property
    def reference(self) -> tuple[float, ...]:
        return self.environment.reference

    @property
    def front(self) -> tuple[tuple[float, ...], ...]:
        return self.environment.front

    def initial(self, seed: int) -> Parameters:
        """Return the networks as stable-baselines3 initialises them."""
        from p2pfl.rl.morl_learner import initial

        return initial(self.environment.id, self.settings, seed)

    def learner(self, streams: RandomStreams, device: str = "cpu") -> MorlLearner:
        from p2pfl.rl.morl_learner import MorlLearner

        return MorlLearner(self, streams, device)

    @staticmethod
    def stacked(learners: Sequence[MorlLearner]) -> BatchedDqn:
        """Return a backend that trains these learners together.

        Raises:
            ConfigurationError: they do not learn by DQN, or their environments or settings differ.
        """
        from p2pfl.rl.batched_dqn import BatchedDqn

        return BatchedDqn(learners)
