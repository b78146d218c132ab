"""FedPref's environments with several rewards: deep-sea treasure, minecart, two lunar landers, and half cheetah.

The environments are mo-gymnasium's; stable-baselines3's DQN and DDPG learn them. p2pfl.rl.morl_settings defines
environments and settings. p2pfl.rl.morl_learner contains the learner, and imports those packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import isfinite
from typing import TYPE_CHECKING, Any

from p2pfl._util.binding import build
from p2pfl.errors import ConfigurationError, MissingRequirementError, unknown
from p2pfl.multiobjective.preferences import preference_of
from p2pfl.parameters import Layout, Parameters
from p2pfl.random_streams import RandomStreams
from p2pfl.rl.morl_settings import DDPG, DQN, Environment, MorlProblem, Targets
from p2pfl.task import Part
from p2pfl.tasks.deep_sea_treasure import FRONT, REFERENCE

if TYPE_CHECKING:
    from p2pfl.rl.batched_dqn import BatchedDqn
    from p2pfl.rl.morl_learner import MorlLearner


NEEDED = ("gymnasium", "mo_gymnasium", "stable_baselines3")
# The paper uses version 2 of the landers and version 4 of the cheetah; mo-gymnasium 1.3 has only later ones. References
# are those of table A.1 of Hartmann's dissertation.
ENVIRONMENTS: Mapping[str, Environment] = {
    "deep-sea-treasure": Environment(
        "deep-sea-treasure-v0",
        ("treasure", "time"),
        steps=500,
        rounds=28,
        episodes=1,
        settings=DQN(
            learning_rate=0.004,
            buffer_size=10_000,
            learning_starts=1000,
            gamma=0.98,
            train_freq=16,
            gradient_steps=8,
            net_arch=(256, 256),
            batch_size=128,
            target_update_interval=600,
            exploration_fraction=0.2,
            exploration_final_eps=0.07,
        ),
        reference=REFERENCE,
        front=FRONT,
    ),
    "minecart": Environment(
        "minecart-deterministic-v0",
        ("first ore", "second ore", "fuel"),
        steps=5000,
        rounds=38,
        episodes=1,
        settings=DQN(
            learning_rate=0.0002,
            buffer_size=50_000,
            learning_starts=50_000,
            gamma=0.99,
            train_freq=32,
            gradient_steps=32,
            net_arch=(256, 256),
            batch_size=64,
            target_update_interval=750,
            exploration_fraction=0.8,
            exploration_final_eps=0.05,
        ),
        reference=(-1.0, -1.0, -200.0),
    ),
    "lunar-lander": Environment(
        "mo-lunar-lander-v3",
        ("landing", "shaping", "main engine", "side engine"),
        steps=5000,
        rounds=28,
        episodes=5,
        settings=DQN(
            learning_rate=0.00063,
            buffer_size=50_000,
            learning_starts=0,
            gamma=0.99,
            train_freq=4,
            gradient_steps=-1,
            net_arch=(256, 256),
            batch_size=64,
            target_update_interval=250,
            exploration_fraction=0.12,
            exploration_final_eps=0.1,
        ),
        reference=(-200.0,) * 4,
    ),
    "lunar-lander-continuous": Environment(
        "mo-lunar-lander-continuous-v3",
        ("landing", "shaping", "main engine", "side engine"),
        steps=10_000,
        rounds=30,
        episodes=5,
        settings=DDPG(
            learning_rate=0.001,
            buffer_size=200_000,
            learning_starts=10_000,
            gamma=0.98,
            train_freq=1,
            gradient_steps=1,
            net_arch=(400, 300),
            batch_size=256,
            noise_std=0.1,
        ),
        reference=(-200.0,) * 4,
    ),
    "halfcheetah": Environment(
        "mo-halfcheetah-v5",
        ("speed", "energy"),
        steps=25_000,
        rounds=30,
        episodes=5,
        settings=DDPG(
            learning_rate=0.001,
            buffer_size=200_000,
            learning_starts=100,
            gamma=0.98,
            train_freq=1,
            gradient_steps=1,
            net_arch=(400, 300),
            batch_size=256,
            noise_std=0.1,
        ),
    ),
}


def morl(
    part: Part,
    seed: int,
    *,
    environment: str = "deep-sea-treasure",
    steps: int | None = None,
    rounds: int | None = None,
    episodes: int | None = None,
    settings: Mapping[str, Any] | None = None,
    preference: Sequence[float] = (),
    preferences: Mapping[str, Any] | None = None,
    reference: Sequence[float] = (),
    targets: Targets = "received",
) -> MorlTask:
    """Deep reinforcement learning of an environment of mo-gymnasium, with several objectives.

    Options that are not given are as in FedPref (Hartmann et al. 2024, appendix A). The reported reward is the
    undiscounted scalarised return of the greedy policy. The task needs the extra `morl`.

    Args:
        environment: DQN learns `deep-sea-treasure` (objectives treasure and time), `minecart` (first ore, second ore,
            fuel) and `lunar-lander` (landing, shaping, main engine, side engine). DDPG learns `lunar-lander-continuous`
            (the same objectives) and `halfcheetah` (speed, energy), whose actions are continuous.
        steps: steps of the environment in an epoch; an unfinished episode is discarded at the end.
        rounds: rounds of the run; exploration decreases over a fraction of them.
        episodes: number of episodes whose mean return is reported.
        settings: changes to the settings of the algorithm (see p2pfl.tasks.morl.DQN and p2pfl.tasks.morl.DDPG).
        preference: this node's own weights of the objectives.
        preferences: distribution of the nodes' weights if none are given (see p2pfl.multiobjective.preferences);
            uniform by default.
        reference: worst return of interest of each objective, for the hypervolume of a run; by default that of table A.1
            of Hartmann's dissertation.
        targets: "received" makes the target networks equal to the received networks at the start of each training; "kept"
            continues with those of the node's last training, as a node does that never receives a model. On deep-sea
            treasure "received" learns better in every row that averages models by similarity, and its rows of FedAvg
            lose some seeds, as in the paper.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MissingRequirementError(f"the task morl needs {', '.join(missing)}: pip install 'p2pfl-node[morl]'")
    if environment not in ENVIRONMENTS:
        raise unknown("task.environment", environment, ENVIRONMENTS)
    if environment.startswith("lunar-lander") and find_spec("Box2D") is None:  # it has no wheel for Python 3.14
        raise MissingRequirementError(f"the environment {environment} needs Box2D: pip install swig box2d")
    known = ENVIRONMENTS[environment]
    given = {"steps": steps, "rounds": rounds, "episodes": episodes}
    counts: dict[str, int] = {name: getattr(known, name) if value is None else value for name, value in given.items()}
    for name, value in counts.items():
        if value < 1:
            raise ConfigurationError(f"task.{name} must be 1 or more, got {value}")
    if len(reference) not in (0, len(known.names)) or not all(isfinite(value) for value in reference):
        raise ConfigurationError(f"task.reference must be {len(known.names)} finite numbers, got {list(reference)}")
    known = replace(known, reference=tuple(map(float, reference)) or known.reference)
    made = build("task.settings", type(known.settings), asdict(known.settings) | dict(settings or {}))
    drawn = {"name": "dirichlet"} if preferences is None else preferences
    point, group = preference_of(part, seed, len(known.names), preference, drawn)
    return MorlTask(known, made, point, group, counts["steps"], counts["rounds"], counts["episodes"], targets)


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
