"""Classes of devices: how fast a simulated node trains, and how many watts it takes; the key `compute` of a scenario.

compute = { device = "raspberry-pi-4" }                                    # all nodes
compute = { device = ["xiaomi-12-pro", "xiaomi-poco-x3"] }                 # node k has the k-th, from the start again
compute = { device = { "raspberry-pi-4" = 0.75, "my-board" = 0.25 } }      # shares of the nodes, drawn from the seed
compute = { by_group = { "0" = "raspberry-pi-4", "1" = "my-board" } }      # by the group that the task assigns

[compute.devices]                                                          # own classes, and changes of shipped ones
my-board = { watts = 4.0, samples = 120 }

Where the shipped figures come from
-----------------------------------

Phones: the energy traces of SkipTrain (Dhasade et al., "Energy-Aware Decentralized Learning with Intermittent Model
Training", arXiv 2407.01283), in the authors' repository sacs-epfl/SkipTrain, tutorial/Energy_traces_CIFAR-10.csv: "Max
Power consumption (W)", which they take from Burnout Benchmark, and "Training time LeNet (ms)" of a sample. The authors
infer that time from AI Benchmark's inference time of MobileNet v2: a training takes three times as long as an inference,
and both are proportional to the number of parameters. Their LeNet has 89,834 and MobileNet v2 3,504,872. They name no idle
power, and none is counted.

Raspberry Pi 4 B: MobileNet v2 takes 44 ms with all cores (README of google/XNNPACK, February 2020), from which the time of
a training sample follows by the same rule. 5.0 W under `stress-ng --matrix 0` and 1.6 W idle, both at the wall (J.
Geerling, github.com/geerlingguy/sbc-reviews, issue 4).

These figures are rough: a time from a rule for convolutional networks says little of another model, and a maximum of power
is more than its mean. Measure your own devices where a result depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from p2pfl.errors import ConfigurationError, must_be, unknown
from p2pfl.parameters import plain_sum
from p2pfl.queries import Train
from p2pfl.random_streams import federation_streams

LENET = 89_834  # parameters of the reference model


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Class of devices.

    Attributes:
        samples: samples a second in a training.
        watts: power of the device while it trains.
        idle: power at all other times at which the node is present; 0 counts none.
        values: values of the model to which `samples` belongs: a model of twice as many takes twice as long. 0 is the
            model of the scenario.
    """

    samples: float
    watts: float
    idle: float = 0.0
    values: int = 0

    def check(self, key: str) -> None:
        """Raise ConfigurationError for an invalid value; `key` names the device."""
        if not 0 < self.samples < inf:
            raise must_be(f"{key}.samples", "a positive number of samples a second", self.samples)
        for name in ("watts", "idle", "values"):
            if not 0 <= getattr(self, name) < inf:
                raise must_be(f"{key}.{name}", "0 or more, and finite", getattr(self, name))


SHIPPED = {
    "oneplus-nord-2-5g": Device(samples=1000 / 1.307190106, watts=11.0, values=LENET),
    "raspberry-pi-4": Device(samples=1000 / (3 * 44), watts=5.0, idle=1.6, values=3_504_872),
    "samsung-galaxy-s22-ultra": Device(samples=1000 / 2.229912533, watts=15.1, values=LENET),
    "xiaomi-12-pro": Device(samples=1000 / 2.076125462, watts=17.7, values=LENET),
    "xiaomi-poco-x3": Device(samples=1000 / 5.843908708, watts=8.2, values=LENET),
}


class Speed(NamedTuple):
    """Speed and power of one node, for its own model.

    Attributes:
        pass_s: virtual seconds of a pass over the training data, without a device; see `Compute.seconds`.
        sample_s: virtual seconds of a training sample; 0 without a device.
        watts, idle: see `Device`; 0 without a device.
        device: name of the class; "" without one.
        n_samples, batch_size: of the node's task.
    """

    pass_s: float
    sample_s: float = 0.0
    watts: float = 0.0
    idle: float = 0.0
    device: str = ""
    n_samples: int = 0
    batch_size: int = 0

    def seconds(self, query: Any) -> float:
        """Return the virtual seconds that a query takes."""
        if not self.device or not isinstance(query, Train):
            return float(query.passes * self.pass_s)
        return float(query.samples(self.n_samples, self.batch_size) * self.sample_s)


class NodeFacts(NamedTuple):
    """What the speed of a node depends on: the group of its task, the values of its model, and its samples."""

    group: Any
    values: int
    n_samples: int
    batch_size: int


def check_devices(
    device: str | Sequence[str] | Mapping[str, float], by_group: Mapping[str, str], devices: Mapping[str, Device]
) -> None:
    """Raise ConfigurationError if a device is unknown or has an invalid value; see `Compute` for the arguments."""
    for name, own in devices.items():
        own.check(f"compute.devices.{name}")
    known = {*SHIPPED, *devices}
    names = [device] if isinstance(device, str) else list(device)
    for key, found in (("compute.device", [name for name in names if name]), ("compute.by_group", [*by_group.values()])):
        for name in found:
            if name not in known:
                raise ConfigurationError(
                    f"{key}: {unknown('device', name, known)}; compute.devices.{name} may describe it", key
                )
    if not isinstance(device, str) and not (names and all(names)):
        raise ConfigurationError("compute.device must name one device or more", "compute.device")
    if isinstance(device, Mapping) and not all(0 < share < inf for share in device.values()):
        raise must_be("compute.device", "a table of positive shares of the nodes", dict(device))


def assign(device: str | Sequence[str] | Mapping[str, float], nodes: int, seed: int) -> list[str]:
    """Return the name of each node's device, without those of groups."""
    if isinstance(device, str):
        return [device] * nodes
    if not isinstance(device, Mapping):
        return [device[k % len(device)] for k in range(nodes)]
    exact = np.array([*device.values()]) / plain_sum(device.values()) * nodes
    counts = np.floor(exact).astype(int)
    for k in np.argsort(counts - exact, kind="stable")[: nodes - counts.sum()]:  # the greatest remainders
        counts[k] += 1
    each = np.repeat(np.arange(len(counts)), counts)
    order = federation_streams(seed).generator(0, "devices").permutation(nodes)
    names = list(device)
    found = [""] * nodes
    for node, k in zip(order.tolist(), each.tolist(), strict=True):
        found[node] = names[k]
    return found
