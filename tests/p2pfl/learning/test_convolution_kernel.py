"""Hand-written gradients of convolutions: the same as torch's, for every supported form of a layer."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.kernels import convolution_kernel
from p2pfl.learning.kernels import convolution_kernel as blocks
from p2pfl.learning.kernels import kernel as kernel_module
from p2pfl.learning.kernels.convolution_kernel import ConvolutionKernel
from p2pfl.learning.kernels.dense_kernel import DenseKernel
from p2pfl.learning.kernels.kernel import VmapKernel, convolution_chain, kernel_for
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import classification
from p2pfl.queries import Evaluate, Loss, NodeQuery, Train
from p2pfl.random_streams import RandomStreams

CHANNELS, SIZE, CLASSES = 2, 11, 3
CPU = torch.device("cpu")


def network(*parts):
    """Return a chain that ends in a linear layer with CLASSES outputs."""
    features = nn.Sequential(*parts, nn.Flatten())
    width = features(torch.zeros(1, CHANNELS, SIZE, SIZE)).shape[1]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def conv(before=CHANNELS, after=4, kernel=3, **options):
    return nn.Conv2d(before, after, kernel, **options)


NETWORKS = {
    "LeNet": [conv(), nn.ReLU(), nn.MaxPool2d(2), conv(4, 5), nn.ReLU(), nn.MaxPool2d(2)],
    "pooling before tanh": [conv(), nn.MaxPool2d(2), nn.Tanh(), conv(4, 5), nn.Tanh()],
    "padding": [conv(padding=1), nn.ReLU(), conv(4, 3, padding=(2, 1)), nn.ReLU(), nn.MaxPool2d(3)],
    "stride": [conv(stride=2, padding=1), nn.ReLU(), conv(4, 3, stride=(1, 2))],
    "stride longer than the kernel": [conv(kernel=2, stride=3), nn.ReLU()],
    "without bias and activation": [conv(bias=False), conv(4, 3, bias=False)],
    "rectangular": [conv(kernel=(4, 2)), nn.ReLU(), nn.MaxPool2d((2, 3)), conv(4, 5, kernel=(1, 3))],
    "pixel by pixel": [conv(kernel=1), nn.ReLU(), nn.MaxPool2d(4)],
    "nested": [nn.Sequential(conv(), nn.ReLU()), nn.Sequential(nn.Sequential(nn.MaxPool2d(2)), conv(4, 2))],
    "valid": [conv(padding="valid"), nn.ReLU()],
}


def images(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, CHANNELS, SIZE, SIZE)).astype(np.float32), rng.integers(0, CLASSES, n)


def task(module, n=20, seed=0, **options):
    options = {"optimizer": SGD(0.05, momentum=0.9), "batch_size": 8} | options
    return classification(lambda: deepcopy(module), images(n, seed), images(7, seed + 50), images(9, seed + 99), **options)


def stack(module, count, samples, seed=1):
    """Return models, and a batch for each, as tensors."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(count, task(module).layout.size, generator=generator) * 0.3
    x = torch.randn(count, samples, CHANNELS, SIZE, SIZE, generator=generator)
    return flat, x, torch.randint(CLASSES, (count, samples), generator=generator)


def gradients(module, flat, x, y):
    """Return the gradients and the outputs by autograd."""
    found = []
    for one, samples, targets in zip(flat, x, y, strict=True):
        own = deepcopy(module)
        nn.utils.vector_to_parameters(one.clone(), own.parameters())
        outputs = own(samples)
        functional.cross_entropy(outputs, targets).backward()
        found.append((torch.cat([p.grad.flatten() for p in own.parameters()]), outputs.detach()))
    return [torch.stack(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_outputs_equal_those_of_torch(name):
    module = network(*NETWORKS[name])
    kernel = kernel_for(task(module), CPU)
    assert isinstance(kernel, ConvolutionKernel)
    for count, samples in [(5, 6), (2, 1), (5, 6), (1, 40)]:  # one of them again, in the same memory
        flat, x, y = stack(module, count, samples, seed=count)
        expected, outputs = gradients(module, flat, x, y)
        found = kernel.gradient(flat, x, y)
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
        assert torch.allclose(kernel.outputs(flat, x), outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_as_sums_over_lines_equal_those_of_torch(monkeypatch, name):
    monkeypatch.setattr(blocks, "sums_by_line", lambda _: True)
    module = network(*NETWORKS[name])
    flat, x, y = stack(module, 3, 6)
    expected, _ = gradients(module, flat, x, y)
    found = kernel_for(task(module), CPU).gradient(flat, x, y)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_first_of_equal_pixels_has_the_gradient():
    module = network(*NETWORKS["LeNet"])
    flat, x, y = stack(module, 3, 4)
    x[:, :, :, :, 4:] = 0.0  # as the margin of handwriting, where all pixels of a window are equal
    expected, _ = gradients(module, flat, x, y)
    found = kernel_for(task(module), CPU).gradient(flat, x, y)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_gradient_of_a_model_does_not_depend_on_its_stack(monkeypatch):
    module = network(*NETWORKS["LeNet"])
    flat, x, y = stack(module, 7, 5)
    kernel = kernel_for(task(module), CPU)
    alone = [kernel.gradient(*(values[k : k + 1] for values in (flat, x, y))) for k in range(7)]
    outputs = [kernel.outputs(flat[k : k + 1], x[k : k + 1]) for k in range(7)]
    monkeypatch.setattr(ConvolutionKernel, "models_at_once", lambda *_: 3)
    for one, together in ((alone, kernel.gradient(flat, x, y)), (outputs, kernel.outputs(flat, x))):
        assert (torch.cat(one) - together).abs().max() < 1e-6 * together.abs().max()


def test_large_batches_are_computed_in_parts(monkeypatch):
    module = network(*NETWORKS["padding"])
    flat, x, y = stack(module, 2, 11)
    expected, outputs = gradients(module, flat, x, y)
    whole = kernel_for(task(module), CPU).gradient(flat, x, y)
    monkeypatch.setattr(convolution_kernel, "LARGEST", 4 * 4 * 3 * 17 * 12)  # four samples of the second block
    kernel = ConvolutionKernel(task(module), *convolution_chain(task(module)), CPU)
    found = kernel.gradient(flat, x, y)
    assert not torch.equal(found, whole)  # another order of sums
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert torch.allclose(kernel.outputs(flat, x), outputs, rtol=1e-4, atol=1e-5)


def test_convolutions_of_very_large_images_are_left_to_torch():
    large = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 196**2, 2))
    x, y = np.zeros((2, 3, 200, 200), np.float32), np.array([0, 1])
    assert kernel_module.convolution_kernel(classification(lambda: deepcopy(large), (x, y)), CPU) is None


def test_outputs_on_common_samples_equal_those_on_copies():
    module = network(*NETWORKS["LeNet"])
    flat, x, _ = stack(module, 3, 21)
    kernel = kernel_for(task(module), CPU)
    assert torch.equal(
        kernel.outputs(flat, x[:1].expand(3, -1, -1, -1, -1)), kernel.outputs(flat, x[:1].repeat(3, 1, 1, 1, 1))
    )


@pytest.mark.parametrize(
    "parts",
    [
        [conv(dilation=2)],
        [conv(groups=2)],
        [conv(padding=1, padding_mode="circular")],
        [conv(padding="same")],
        [conv(), nn.MaxPool2d(3, stride=2)],
        [conv(), nn.MaxPool2d(2, padding=1)],
        [conv(), nn.MaxPool2d(2, ceil_mode=True)],
        [conv(), nn.AvgPool2d(2)],
        [conv(), nn.GELU()],
        [conv(), nn.Dropout(0.5)],
        [nn.MaxPool2d(2), conv()],
        [conv(), nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2)],
    ],
)
def test_other_chains_use_the_kernel_of_torch(parts):
    assert isinstance(kernel_for(task(network(*parts)), CPU), VmapKernel)


def test_frozen_convolutions_use_the_kernel_of_torch():
    module = network(*NETWORKS["LeNet"])
    module[0].requires_grad_(False)
    assert isinstance(kernel_for(task(module), CPU), VmapKernel)


def test_large_convolutions_outside_of_chains_are_not_stacked():
    large = network(conv(after=40), nn.GELU(), conv(40, 40))
    with pytest.raises(ConfigurationError, match="large convolutions are computed one by one on a CPU"):
        kernel_for(task(large), CPU)


def test_module_that_flattens_at_once_uses_the_dense_kernel():
    module = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * SIZE**2, CLASSES))
    assert isinstance(kernel_for(task(module), CPU), DenseKernel)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(24, 24, 24, 24), (20, 9, 31, 8)])
@pytest.mark.parametrize("options", [{}, {"proximal": 0.5}, {"epochs": 2}])
def test_training_and_evaluation_equal_those_of_single_nodes(counts, options):
    module = network(*NETWORKS["LeNet"])
    learners = [task(module, n, k).learner(RandomStreams(0, f"node-{k}")) for k, n in enumerate(counts)]
    flat = stack(module, len(counts), 1)[0].numpy()
    options = {name: (value, flat[0]) if name == "proximal" else value for name, value in options.items()}
    one, all_ = SequentialLearner(learners), BatchedLearner(learners)
    trainings = [NodeQuery(k, Train(model, 1, **options)) for k, model in enumerate(flat)]
    for expected, found in zip(one.compute(trainings), all_.compute(trainings), strict=True):
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    evaluations = [NodeQuery(k, Evaluate(list(flat), ("validation", "test"))) for k in range(len(counts))]
    for expected, found in zip(one.compute(evaluations), all_.compute(evaluations), strict=True):
        assert found == [pytest.approx(figures, rel=1e-4) for figures in expected]
    losses = [NodeQuery(k, Loss(list(flat))) for k in range(len(counts))]
    for expected, found in zip(one.compute(losses), all_.compute(losses), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
