"""Writes golden vectors of torch's initial values and gradients of dense networks; see scripts/gradient-vectors."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

VECTORS = Path(__file__).with_name("dense.json")
CASES = {  # sizes of the network, and samples in the batch
    "logistic": ((5, 3), 6, "cross-entropy"),
    "MLP": ((4, 6, 5, 3), 7, "cross-entropy"),
    "binary MLP, one sample": ((3, 4, 2), 1, "cross-entropy"),
    "linear": ((5, 1), 6, "squared-error"),
    "MLP with two outputs": ((3, 6, 2), 5, "squared-error"),
}


def network(sizes):
    layers = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def flat(tensors):
    return [float(value) for tensor in tensors for value in tensor.detach().flatten()]


def vector(seed, sizes, n, loss):
    torch.manual_seed(seed)
    module = network(sizes)
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.normal(0, 2, (n, sizes[0])), dtype=torch.float32)
    if loss == "cross-entropy":
        y = torch.tensor(rng.integers(sizes[-1], size=n))
        losses = functional.cross_entropy(module(x), y, reduction="none")
    else:
        y = torch.tensor(rng.normal(0, 2, (n, sizes[-1])), dtype=torch.float32)
        losses = (module(x) - y).square().mean(1)
    gradient = torch.autograd.grad(losses.mean(), list(module.parameters()))
    return {
        "seed": seed,
        "sizes": sizes,
        "loss": loss,
        "x": x.tolist(),
        "y": y.tolist(),
        "params": flat(module.parameters()),
        "losses": flat([losses]),
        "gradient": flat(gradient),
    }


if __name__ == "__main__":
    found = {name: vector(2**40 + k, *case) for k, (name, case) in enumerate(CASES.items())}
    VECTORS.write_text(json.dumps({"torch": torch.__version__.partition("+")[0], "cases": found}, indent=1) + "\n")
