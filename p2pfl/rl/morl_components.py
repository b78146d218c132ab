"""Components of p2pfl.rl.morl_learner: environments, and stable-baselines3's algorithms with their networks."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import mo_gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import Env
from mo_gymnasium.wrappers import LinearReward
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor, nn

from p2pfl.learning.modules import layout_of
from p2pfl.parameters import Layout, Parameters
from p2pfl.random_streams import federation_draws
from p2pfl.rl.morl_settings import DDPG, DQN


@lru_cache(maxsize=16)
def layout(id: str, settings: DQN | DDPG) -> Layout:
    """Return the layout of the networks that are sent to peers, for an environment's id."""
    return layout_of(online_networks(_fresh(id, settings, 0)))


def initial(id: str, settings: DQN | DDPG, seed: int) -> Parameters:
    """Return the initial networks of a federation with this seed."""
    online = online_networks(_fresh(id, settings, federation_draws(seed).torch_seed(0, "initial model")))
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
