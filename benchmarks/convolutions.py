"""Gradients of small convolutional networks on one core: p2pfl's kernel against the programs that torch offers.

For the mean loss of one batch, for each of several models, in one process, interleaved, with one torch thread:

    kernel                  p2pfl.learning.kernels: hand-written, samples as the last dimension
    loop                    torch, one model after another
    loop, channels last     the same with weights and images in the memory format that oneDNN computes in
    grouped                 one convolution for all models, each a group of its channels
    grouped, channels last  the same in that format
    vmap                    torch.func.grad under torch.func.vmap

All must give the same gradients. Each line has the milliseconds a model, the fastest and the median of the repetitions, and
the share of the core's peak: the FLOP/s of the fastest, relative to those of a product of two matrices of 1,024 x 1,024
that is measured beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sim_speed import network
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from p2pfl.learning.image_models import Shape, cnn
from p2pfl.learning.kernels.kernel import kernel_by_hand
from p2pfl.learning.torch_task import classification

CHANNELS_LAST = torch.channels_last
SIZE = 1024  # of the matrices whose product shows the peak
LARGEST_ERROR = 1e-2  # of a gradient's norm: of two nearly equal pixels, programs may round either to be the maximum
Program = Callable[[], Tensor]
"""Returns the gradients of all models, float32 [k, P]."""

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Shape, int]] = {
    "LeNet-5 of DPFL, 3 x 32 x 32, batch 16": (partial(cnn, (3, 32, 32), 10, dense=(120, 84)), (3, 32, 32), 16),
    "CNN of sim_speed.py, 28 x 28, batch 16": (network, (1, 28, 28), 16),
    "CNN of sim_speed.py, 28 x 28, batch 32": (network, (1, 28, 28), 32),
}


def programs(make: Callable[[], Any], x: Tensor, y: Tensor) -> dict[str, Program]:
    """Return all programs for the networks that `make` draws, with inputs [k, b, channels, h, w] and labels [k, b]."""
    modules = [make() for _ in x]
    copies = [make().to(memory_format=CHANNELS_LAST) for _ in x]
    for module, copy in zip(modules, copies, strict=True):
        copy.load_state_dict(module.state_dict())
    tensors = {
        name: torch.stack([m.get_parameter(name).detach() for m in modules]) for name, _ in modules[0].named_parameters()
    }
    flat = torch.cat([tensor.flatten(1) for tensor in tensors.values()], 1)
    task = classification(make, (x[0].numpy(), y[0].numpy()), batch_size=x.shape[1])
    kernel = kernel_by_hand(task, torch.device("cpu"))
    assert kernel is not None
    gradients = vmap(grad(lambda values, x, y: _loss(functional_call(modules[0], values, (x,)), y)))

    def stacked() -> Tensor:
        return torch.cat([found.flatten(1) for found in gradients(tensors, x, y).values()], 1)

    return {
        "kernel": lambda: kernel.gradient(flat, x, y),
        "loop": lambda: one_by_one(modules, x, y),
        "loop, channels last": lambda: one_by_one(copies, [batch.contiguous(memory_format=CHANNELS_LAST) for batch in x], y),
        "grouped": lambda: grouped(modules[0], tensors, _channels(x), y),
        "grouped, channels last": lambda: grouped(
            modules[0], tensors, _channels(x).contiguous(memory_format=CHANNELS_LAST), y
        ),
        "vmap": stacked,
    }


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, y)


def _channels(x: Tensor) -> Tensor:
    """Return inputs with the channels of all models beside each other, [b, k * channels, h, w]."""
    return x.transpose(0, 1).flatten(1, 2)


def one_by_one(modules: Iterable[nn.Module], x: Iterable[Tensor], y: Iterable[Tensor]) -> Tensor:
    found = []
    for module, inputs, labels in zip(modules, x, y, strict=True):
        parts = torch.autograd.grad(_loss(module(inputs), labels), [*module.parameters()])
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


def grouped(module: nn.Module, tensors: dict[str, Tensor], values: Tensor, y: Tensor) -> Tensor:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    k = len(y)
    for name, part in module.named_children():
        if isinstance(part, nn.Conv2d):
            weight, bias = leaves[f"{name}.weight"].flatten(0, 1), leaves[f"{name}.bias"].flatten()
            values = functional.conv2d(values, weight, bias, padding=part.padding, groups=k)
        elif isinstance(part, nn.Flatten):
            values = values.reshape(len(values), k, -1).transpose(0, 1)
        elif isinstance(part, nn.Linear):
            values = torch.baddbmm(leaves[f"{name}.bias"][:, None], values, leaves[f"{name}.weight"].mT)
        else:
            values = part(values)
    total = functional.cross_entropy(values.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
    return torch.cat([part.flatten(1) for part in torch.autograd.grad(total, [*leaves.values()])], 1)


def seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def flop(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return the FLOP of the gradient of one model."""
    with FlopCounterMode(display=False) as counter:
        _loss(module(x), y).backward()
    return int(counter.get_total_flops())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=25)
    parser.add_argument("--json", type=Path, help="file for the seconds a model, by network and program")
    args = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    square = torch.randn(SIZE, SIZE)
    for title, (make, shape, batch) in NETWORKS.items():
        x = torch.randn(args.models, batch, *shape)
        y = torch.from_numpy(np.random.default_rng(0).integers(0, 10, (args.models, batch)))
        runs = programs(make, x, y)
        expected = runs["loop"]()
        for name, run in runs.items():
            if ((run() - expected).norm(dim=1) > LARGEST_ERROR * expected.norm(dim=1)).any():
                raise SystemExit(f"{title}: {name} gives other gradients")
        times: dict[str, list[float]] = {name: [] for name in [*runs, "peak"]}
        for _ in range(args.repeat):
            times["peak"].append(seconds(lambda: square @ square))
            for name, run in runs.items():
                times[name].append(seconds(run))
        peak = 2 * SIZE**3 / min(times.pop("peak"))
        work = flop(make(), x[0], y[0])
        print(f"{title}: {work / 1e6:.0f} MFLOP a gradient, peak {peak / 1e9:.0f} GFLOP/s")
        for name, found in sorted(times.items(), key=lambda item: min(item[1])):
            fastest, median = (value / args.models for value in (min(found), statistics.median(found)))
            share = work / fastest / peak
            figures.setdefault(title, {})[name] = fastest
            print(f"  {name:24s}{fastest * 1e3:7.2f} ms  median {median * 1e3:6.2f} ms  {share:5.0%} of the peak")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
