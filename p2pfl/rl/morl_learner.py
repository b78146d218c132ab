"""Learner of a MorlTask, based on stable-baselines3: environments, algorithms, and the conversion of networks to a vector.

Where possible it uses only the public interface. It never uses stable-baselines3's own files, which are pickles. If an
environment has few observations, networks compute the values of all observations at once.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import mo_gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import Env, spaces
from mo_gymnasium.wrappers import LinearReward
from numpy.typing import NDArray
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor, nn

from p2pfl.errors import ConfigurationError, DivergenceError
from p2pfl.learner import answers
from p2pfl.learning.modules import layout_of
from p2pfl.learning.torch_learner import choose_device
from p2pfl.parameters import Layout, Parameters
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams, federation_streams
from p2pfl.rl.evaluation import JudgedByReturns
from p2pfl.rl.morl_settings import DDPG, DQN, MorlProblem

TRANSITIONS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_COUNTERS = ("num_timesteps", "_n_updates", "_n_calls")  # `_n_calls` determines when the target network is updated
MOST_OBSERVATIONS = 1024  # above it, observations are not enumerated
Indices = NDArray[np.intp]


class MorlLearner(JudgedByReturns):
    """Learner of a MorlTask (see p2pfl.learner).

    A training also depends on earlier rounds, because it uses their transitions. `state` contains everything that a
    training depends on, and `restore` continues from it. p2pfl.rl.batched_dqn trains several of these learners together.

    Attributes:
        environment: one that learning acts in; its reward is the scalarised one.
        buffer: the transitions, as stable-baselines3 keeps them.
        layout: that of the networks which are trained by gradients.
    """

    def __init__(self, task: MorlProblem, streams: RandomStreams, device: str = "cpu") -> None:
        super().__init__(task.environment.names, task.preference, task.metric)
        self.task = task
        self.streams = streams
        self.environment = LinearReward(make_environment(task.environment.id), task.preference)
        with own_randomness():
            self._algorithm = make_algorithm(self.environment, task.settings, str(choose_device(device)))
        self._tensors = dict(online_networks(self._algorithm).named_parameters())
        self.layout = layout(task.environment.id, task.settings)
        buffer = self._algorithm.replay_buffer
        assert buffer is not None
        self.buffer = buffer
        self._stopping = make_environment(task.environment.id)
        self._grid = grid_of(self._stopping.observation_space)

    @answers(Train)
    def _train(self, query: Train) -> Parameters:
        """Return the networks after `epochs` times the task's steps.

        Args:
            query: its `proximal`, (mu, anchor), adds mu (w - anchor) to every clipped gradient.
        """
        algorithm, steps = self._algorithm, query.epochs * self.task.steps
        with own_randomness(), self._add_proximal_term(query.proximal):
            self._load(query.params)
            # Before the first training, a kept target is the one that stable-baselines3 made from its own initial values.
            if self.task.targets == "received" or not algorithm.num_timesteps:
                target_networks(algorithm).load_state_dict(online_networks(algorithm).state_dict())
            env = algorithm.get_env()
            assert env is not None
            algorithm.set_env(env)  # discards the unfinished episode: the next one is seeded
            algorithm.set_random_seed(self.streams.torch_seed(query.round, query.purpose) % 2**32)
            if isinstance(algorithm, stable_baselines3.DQN):
                algorithm.exploration_schedule = self._exploration(query.round, steps)
                algorithm.exploration_rate = algorithm.exploration_schedule(1.0)
            algorithm.learn(steps, reset_num_timesteps=False)
        trained = flatten_tensors(self._tensors, self.layout)
        if not np.isfinite(trained).all():
            raise DivergenceError(self.streams.name, query.round)
        return trained

    def returns(self, params: Parameters) -> NDArray[np.float64]:
        """Return the undiscounted sums of the rewards of the greedy policy, [m]: a mean of seeded episodes."""
        total = np.zeros(len(self.task.environment.names))
        seeds = self.streams.generator(0, "evaluation").integers(2**31, size=self.task.episodes).tolist()
        with own_randomness():
            self._load(params)
            greedy = self._greedy()
            for seed in seeds:
                seen, _ = self._stopping.reset(seed=seed)
                over = False
                while not over:
                    seen, rewards, ended, cut, _ = self._stopping.step(greedy(seen))
                    total += np.asarray(rewards)
                    over = ended or cut
        return total / self.task.episodes

    def _greedy(self) -> Callable[[np.ndarray], Any]:
        """Return the function from an observation to the best action of the loaded networks."""
        algorithm, grid = self._algorithm, self._grid
        discrete = isinstance(self._stopping.action_space, spaces.Discrete)
        if grid is not None and isinstance(algorithm, stable_baselines3.DQN):
            with torch.no_grad():
                best = algorithm.q_net(torch.from_numpy(grid.all).to(algorithm.device)).argmax(1).tolist()
            return lambda seen: best[int(grid.indices(seen))]

        def predict(seen: np.ndarray) -> Any:
            action = algorithm.predict(seen, deterministic=True)[0]
            return action.item() if discrete else action

        return predict

    @property
    def counters(self) -> tuple[int, ...]:
        """Steps in the environment, gradient steps, and steps that count for the target network, over all rounds."""
        return tuple(int(getattr(self._algorithm, name, 0)) for name in _COUNTERS)

    @property
    def device(self) -> torch.device:
        return torch.device(self._algorithm.device)

    @property
    def max_grad_norm(self) -> float:
        """Norm to which the gradient of a DQN is clipped."""
        algorithm: Any = self._algorithm  # a DQN, for which alone this is read
        return float(algorithm.max_grad_norm)

    def target(self) -> Parameters:
        """Return the target networks, [P]."""
        return flatten_tensors(dict(target_networks(self._algorithm).named_parameters()), self.layout)

    def moments(self, number: int) -> dict[str, Tensor]:
        """Return Adam's state of one tensor of the networks, by name; empty before the first gradient step."""
        (optimizer,) = optimizers_of(self._algorithm).values()
        tensor = self._tensors[self.layout.shapes[number][0]]
        return dict(optimizer.state.get(tensor, {}))

    def adopt(self, counters: Sequence[int], target: Parameters, moments: Sequence[Mapping[str, Tensor]]) -> None:
        """Take over the state after a training that was computed elsewhere.

        Args:
            counters: see `counters`.
            target: the target networks, [P].
            moments: Adam's state of each tensor, in the order of the layout.
        """
        algorithm = self._algorithm
        for name, value in zip(_COUNTERS, counters, strict=True):
            setattr(algorithm, name, value)
        own = dict(target_networks(algorithm).named_parameters())
        with torch.no_grad():
            for name, array in self.layout.unflatten(target).items():
                own[name].copy_(torch.from_numpy(np.array(array)))
        (optimizer,) = optimizers_of(algorithm).values()
        for (name, _), state in zip(self.layout.shapes, moments, strict=True):
            if state:
                optimizer.state[self._tensors[name]] = dict(state)

    def state(self) -> dict[str, np.ndarray]:
        """Return the state that stays on the node between rounds: plain arrays, copied."""
        algorithm, buffer = self._algorithm, self.buffer
        filled = buffer.buffer_size if buffer.full else buffer.pos
        arrays = {f"buffer/{name}": getattr(buffer, name)[:filled].copy() for name in TRANSITIONS}
        arrays["buffer/place"] = np.array([buffer.pos, buffer.full], np.int64)
        arrays["counters"] = np.array([getattr(algorithm, name, 0) for name in _COUNTERS], np.int64)
        for name, tensor in target_networks(algorithm).named_parameters():
            arrays[f"target/{name}"] = tensor.detach().cpu().numpy().copy()
        for which, optimizer in optimizers_of(algorithm).items():
            for number, moments in optimizer.state_dict()["state"].items():
                for name, tensor in moments.items():
                    arrays[f"optimizer/{which}/{number}/{name}"] = tensor.cpu().numpy().copy()
        return arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state that `state` returned.

        Raises:
            ConfigurationError: the state has other settings, or another environment.
        """
        try:
            self._restore(state)
        except (KeyError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                "the checkpoint belongs to another environment or to other settings; restore them, or move the checkpoint"
                " away to start from round 0"
            ) from error

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        algorithm, buffer = self._algorithm, self.buffer
        for name in TRANSITIONS:
            filled = state[f"buffer/{name}"]
            getattr(buffer, name)[: len(filled)] = filled
        buffer.pos, buffer.full = int(state["buffer/place"][0]), bool(state["buffer/place"][1])
        for name, value in zip(_COUNTERS, state["counters"].tolist(), strict=True):
            setattr(algorithm, name, value)
        with torch.no_grad():
            for name, tensor in target_networks(algorithm).named_parameters():
                tensor.copy_(torch.from_numpy(np.array(state[f"target/{name}"])))
        for which, optimizer in optimizers_of(algorithm).items():
            moments: dict[int, dict[str, Tensor]] = {}
            for key, array in state.items():
                if key.startswith(f"optimizer/{which}/"):
                    number, name = key.removeprefix(f"optimizer/{which}/").split("/")
                    moments.setdefault(int(number), {})[name] = torch.from_numpy(array.copy())
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})

    def _load(self, params: Parameters) -> None:
        with torch.no_grad():
            for name, array in self.layout.unflatten(params).items():
                self._tensors[name].copy_(torch.from_numpy(np.array(array)))

    def _exploration(self, round: int, steps: int) -> Callable[[float], float]:
        """Return the schedule of random actions in a round of `steps` steps."""
        settings, begun = self.task.settings, self._algorithm.num_timesteps
        assert isinstance(settings, DQN)

        def chance(_: float) -> float:  # it ignores stable-baselines3's progress, which restarts at each `learn`
            within = min((self._algorithm.num_timesteps - begun) / steps, 1.0)
            return exploration_rate(settings, self.task.rounds, round, within)

        return chance

    @contextmanager
    def _add_proximal_term(self, proximal: tuple[float, Parameters] | None) -> Iterator[None]:
        """Add FedProx's term to the gradients in this block."""
        with ExitStack() as close:
            if proximal is not None:
                mu, anchor = proximal
                anchors = {
                    self._tensors[name]: torch.from_numpy(np.array(array)).to(self._algorithm.device)
                    for name, array in self.layout.unflatten(anchor).items()
                }

                def pull(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
                    for group in optimizer.param_groups:
                        for tensor in group["params"]:
                            if tensor.grad is not None:
                                tensor.grad.add_(tensor.detach() - anchors[tensor], alpha=mu)

                for optimizer in optimizers_of(self._algorithm).values():
                    close.callback(optimizer.register_step_pre_hook(pull).remove)
            yield


def exploration_rate(settings: DQN, rounds: int, round: int, within: float) -> float:
    """Return the probability of a random action in a round, after a fraction `within` of its steps.

    Args:
        rounds: total number of rounds.
    """
    done = (max(round - 1, 0) + within) / rounds
    least = settings.exploration_final_eps
    return max(1 - (1 - least) * done / settings.exploration_fraction, least)


@lru_cache(maxsize=16)
def layout(id: str, settings: DQN | DDPG) -> Layout:
    """Return the layout of the networks that are sent to peers, for an environment's id."""
    return layout_of(online_networks(_fresh(id, settings, 0)))


def initial(id: str, settings: DQN | DDPG, seed: int) -> Parameters:
    """Return the initial networks of a federation with this seed."""
    online = online_networks(_fresh(id, settings, federation_streams(seed).torch_seed(0, "initial model")))
    return flatten_tensors(dict(online.named_parameters()), layout(id, settings))


def _fresh(id: str, settings: DQN | DDPG, seed: int) -> OffPolicyAlgorithm:
    environment: Any = make_environment(id)
    weighted = LinearReward(environment, np.ones(environment.unwrapped.reward_space.shape))
    with own_randomness():
        return make_algorithm(weighted, settings, "cpu", seed=seed % 2**32, buffer_size=1)


def make_environment(id: str) -> Env[Any, Any]:
    """Make an environment of mo-gymnasium without warnings that concern only its authors."""
    with warnings.catch_warnings(), _no_word_of_total_mass(id):
        warnings.filterwarnings("ignore", ".*precision lowered by casting to float32", UserWarning)
        warnings.filterwarnings("ignore", "builtin type .* has no __module__ attribute", DeprecationWarning)
        made: Env[Any, Any] = mo_gymnasium.make(id)
        return made


@contextmanager
def _no_word_of_total_mass(id: str) -> Iterator[None]:
    """Suppress a deprecation warning of MuJoCo, which would be printed and written to a file in the working folder."""
    if "halfcheetah" not in id:
        yield
        return
    import mujoco

    def hear(text: str) -> None:
        if "'settotalmass' is deprecated" not in text:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(hear)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def make_algorithm(environment: Env[Any, Any], settings: DQN | DDPG, device: str, **options: Any) -> OffPolicyAlgorithm:
    """Make stable-baselines3's algorithm for an environment with a single reward."""
    given = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    given |= {"policy_kwargs": {"net_arch": list(given.pop("net_arch"))}, "device": device, **options}
    made: OffPolicyAlgorithm
    if isinstance(settings, DQN):
        made = stable_baselines3.DQN("MlpPolicy", environment, **given)
    else:
        shape = environment.action_space.shape
        assert shape is not None
        deviation = np.full(shape, given.pop("noise_std"))
        noise = NormalActionNoise(np.zeros_like(deviation), deviation)
        made = stable_baselines3.DDPG("MlpPolicy", environment, action_noise=noise, **given)
    made.set_logger(Logger(None, []))  # the default logger leaves an empty temporary folder at each training
    return made


def online_networks(algorithm: Any) -> nn.ModuleDict:
    """Return the networks that are trained by gradients."""
    if isinstance(algorithm, stable_baselines3.DQN):
        return nn.ModuleDict({"q": algorithm.q_net})
    return nn.ModuleDict({"actor": algorithm.actor, "critic": algorithm.critic})


def target_networks(algorithm: Any) -> nn.ModuleDict:
    if isinstance(algorithm, stable_baselines3.DQN):
        return nn.ModuleDict({"q": algorithm.q_net_target})
    return nn.ModuleDict({"actor": algorithm.actor_target, "critic": algorithm.critic_target})


def optimizers_of(algorithm: Any) -> dict[str, torch.optim.Optimizer]:
    if isinstance(algorithm, stable_baselines3.DQN):
        return {"q": algorithm.policy.optimizer}
    return {"actor": algorithm.actor.optimizer, "critic": algorithm.critic.optimizer}


def flatten_tensors(tensors: Mapping[str, Tensor], layout: Layout) -> Parameters:
    """Return named tensors as one flat vector."""
    return layout.flatten({name: tensors[name].detach().cpu().numpy() for name, _ in layout.shapes})


@contextmanager
def own_randomness() -> Iterator[None]:
    """Restore the random generators of the process after the block; stable-baselines3 seeds and uses them."""
    python, numpy_ = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_)


class ObservationGrid:
    """All observations of d whole numbers.

    Args:
        low, high: the lowest and the highest value of each number; int64 [d].

    Attributes:
        all: the observations in the order of their indices, float32 [count, d].
    """

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        extent = high - low + 1
        self._low = low
        self._strides = np.append(np.cumprod(extent[:0:-1])[::-1], 1)
        self.all = (np.indices(extent).reshape(len(low), -1).T + low).astype(np.float32)

    def indices(self, seen: np.ndarray) -> Indices:
        """Return the index of each observation [..., d], [...]."""
        found: Indices = (seen - self._low) @ self._strides
        return found


def grid_of(space: spaces.Space[Any]) -> ObservationGrid | None:
    """Return all observations of a space; None if they are not whole numbers, or too many."""
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind not in "iu" or len(space.shape) != 1:
        return None
    low, high = space.low.astype(np.int64), space.high.astype(np.int64)
    few = np.prod((high - low + 1).astype(np.float64)) <= MOST_OBSERVATIONS
    return ObservationGrid(low, high) if few else None
