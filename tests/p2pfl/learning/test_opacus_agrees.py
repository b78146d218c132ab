"""One private step against Opacus, the reference implementation of DP-SGD for PyTorch (Yousefpour et al. 2021).

No extra has Opacus: it installs a package `benchmarks`, which hides the folder of this repository.
"""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import nn

from p2pfl import SGD, classification
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Mechanism, Steps

pytest.importorskip("opacus", reason="needs Opacus: pip install opacus==1.6.0 into an environment of its own")
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

MODULES = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    ),
}
LR = 0.5


def learner(name, n=12):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((n, 6)).astype(np.float32), rng.integers(0, 3, n)
    return classification(MODULES[name], data, optimizer=SGD(LR), batch_size=n).learner(RandomStreams(0, "a"), "cpu")


pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # of Opacus' own hooks


def step_of_opacus(found, clip, noise, seed=0):
    """Return the model after a step of Opacus on all samples, from the initial model; float32 [P]."""
    (x, y), start = found.data["train"], found.task.initial(0)
    module = GradSampleModule(found.task.loaded(start, 0).train())
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), LR),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=len(x),
        generator=torch.Generator().manual_seed(seed),
    )
    nn.functional.cross_entropy(module(x), y).backward()
    optimizer.step()
    return np.concatenate([each.detach().numpy().ravel() for each in module.parameters()])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("clip", [0.05, 0.8, 1000.0])
def test_clipped_step_is_that_of_opacus(name, clip):
    found = learner(name)
    start = found.task.initial(0)
    ours = found.compute(Train(start, 1, rule=Steps(1), mechanism=Mechanism(clip, 0.0)))
    assert np.abs(ours - start).max() > 1e-4
    assert np.allclose(ours, step_of_opacus(found, clip, 0.0), atol=2e-7)


@pytest.mark.parametrize("name", MODULES)
def test_noise_is_distributed_as_that_of_opacus(name):
    found, clip, noise, steps = learner(name), 0.8, 1.7, 40
    start = found.task.initial(0)
    without = step_of_opacus(found, clip, 0.0)
    mechanism = Mechanism(clip, noise)
    ours = np.array([found.compute(Train(start, k, rule=Steps(1), mechanism=mechanism)) - without for k in range(steps)])
    theirs = np.array([step_of_opacus(found, clip, noise, seed=k) - without for k in range(steps)])
    scale = LR * noise * clip / 12
    for each in (ours, theirs):
        assert each.mean() == pytest.approx(0, abs=5 * scale / np.sqrt(each.size))
        assert each.std() == pytest.approx(scale, rel=5 / np.sqrt(2 * each.size))
        assert each.std(0) == pytest.approx(scale, rel=5 / np.sqrt(2 * steps))  # of each value, in all layers
        between = np.corrcoef(each)[np.triu_indices(steps, 1)]  # steps are independent
        assert np.abs(between).max() < 5 / np.sqrt(each.shape[1])
    assert ks_2samp(ours.ravel(), theirs.ravel()).pvalue > 0.01
