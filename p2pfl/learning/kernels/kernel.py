"""Choice of a kernel for a task.

Chains of linear layers, and of convolutions before them, have hand-written gradients. Any other module that torch can
`vmap` uses `torch.func`.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import torch
from torch import nn

from p2pfl.errors import ConfigurationError
from p2pfl.learning.kernels.batched_gradient import BatchedGradient
from p2pfl.learning.kernels.chain import convolution_chain, dense_chain
from p2pfl.learning.kernels.convolution_kernel import LARGEST, ConvolutionKernel, largest_input
from p2pfl.learning.kernels.dense_kernel import DenseKernel
from p2pfl.learning.kernels.graphed_kernel import GraphedKernel
from p2pfl.learning.kernels.vmap_kernel import VmapKernel
from p2pfl.learning.seeding import seeded
from p2pfl.learning.torch_problem import TorchProblem

MOST_CONVOLUTION = 500_000  # FLOP per sample above which torch's grouped convolutions are slower than a loop over nodes
FEWEST_MODELS = 4  # that must fit into the cache for their convolutions to be faster together than one after another
FEWEST_SAMPLES = 8  # whose convolutions must fit into the memory of a kernel
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def kernel_for(task: TorchProblem, device: torch.device, by_hand: bool = True, seed: int = 0) -> BatchedGradient:
    """Return the fastest kernel for a task's module.

    Args:
        by_hand: whether chains of layers may use the hand-written gradients.
        seed: the federation's; a module may draw constants from it.

    Raises:
        ConfigurationError: the module cannot be stacked (it couples the samples of a batch, or torch cannot stack it), or
            would be slower when stacked.
    """
    if not getattr(task.template, "stackable", True):
        raise ConfigurationError(f"module {type(task.template).__name__} shares parameters with the modules of other nodes")
    kernel = kernel_by_hand(task, device) if by_hand else None
    if device.type == "cpu" and _is_slower_together(task, kernel):
        raise ConfigurationError("large convolutions are computed one by one on a CPU")
    if kernel is None:
        return VmapKernel(task, device, seed)
    if _is_current_gpu(device) and not kernel.random and task.objectives is None:
        return GraphedKernel(kernel, partial(kernel_by_hand, task, device))
    return kernel


def _is_current_gpu(device: torch.device) -> bool:
    """Return whether a device is the GPU on which torch records graphs."""
    return device.type == "cuda" and (device.index is None or device.index == torch.cuda.current_device())


def kernel_by_hand(task: TorchProblem, device: torch.device) -> DenseKernel | ConvolutionKernel | None:
    """Return the kernel with a hand-written gradient for a task's module; None if there is none."""
    layers = dense_chain(task)
    return convolution_kernel(task, device) if layers is None else DenseKernel(task, layers)


def convolution_kernel(task: TorchProblem, device: torch.device) -> ConvolutionKernel | None:
    """Return the kernel for a task whose module is a chain of convolutions; None for any other.

    Convolutions of very large images are left to torch, because the copies of their inputs would take much memory.
    """
    network = convolution_chain(task)
    if network is None or device.type not in ("cpu", "cuda") or FEWEST_SAMPLES * largest_input(network[0]) > LARGEST:
        return None
    return ConvolutionKernel(task, *network, device)


def _is_slower_together(task: TorchProblem, kernel: BatchedGradient | None) -> bool:
    """Return whether a CPU computes the models of a task faster one by one."""
    if isinstance(kernel, ConvolutionKernel):
        return kernel.models_at_once(task.batch_size) < FEWEST_MODELS
    return kernel is None and convolution_flops(task) > MOST_CONVOLUTION


def convolution_flops(task: TorchProblem) -> int:
    """Return the FLOP of a task's module in convolutions for one sample."""
    if not any(isinstance(part, CONVOLUTIONS) for part in task.template.modules()):
        return 0
    from torch.utils.flop_counter import FlopCounterMode

    module, x = deepcopy(task.template).eval(), task.data["train"].x
    with FlopCounterMode(display=False) as counter, torch.no_grad(), seeded(0):
        module(x[:2])  # two, because batch norm without running statistics does not take one
    return int(counter.get_flop_counts()["Global"].get(torch.ops.aten.convolution, 0)) // len(x[:2])
