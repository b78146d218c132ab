"""Cost of the protection against malicious models, relative to the mean that it protects.

Prints the time that `median-clip` takes to clip the models of a round, as a multiple of the time of their weighted
mean, for several model sizes. In one case no model is too far away, in the other half of them are. Then it prints the
time of each robust rule in the same unit: of the weights, or of the whole merge for the coordinate-wise rules. All are
measured in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.robust.candidates import Candidates, MergeRule, Reweighting
from p2pfl.robust.median_clip import MedianClip
from p2pfl.robust.registry import RULES

PEERS = 9
CALLS = 5  # in one measurement


def seconds(work: Callable[[], object], times: int) -> float:
    """Return the median time of one call."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        for _ in range(CALLS):
            work()
        taken.append((time.perf_counter() - begun) / CALLS)
    return statistics.median(taken)


def measure(size: int, times: int) -> dict[str, float]:
    """Return the times of clipping as multiples of the time of the mean, for models with `size` values."""
    rng = np.random.default_rng(0)
    initial = np.zeros(size, np.float32)
    own = rng.standard_normal(size).astype(np.float32)
    models = [own + rng.standard_normal(size).astype(np.float32) * np.float32(0.1) for _ in range(PEERS)]
    far = [*models[: PEERS // 2 + 1], *(model * np.float32(900) for model in models[PEERS // 2 + 1 :])]
    senders = [f"peer-{k}" for k in range(PEERS)]
    weights = [1 / (PEERS + 1)] * (PEERS + 1)

    def clip(received: list[Parameters]) -> Callable[[], object]:
        rule = MedianClip()
        return lambda: rule.clip(own, initial, senders, received)

    mean = seconds(lambda: weighted_mean([own, *models], weights), times)
    return {"honest": seconds(clip(models), times) / mean, "half of them far": seconds(clip(far), times) / mean}


def measure_rules(size: int, times: int) -> dict[str, float]:
    """Return the time of each rule as a multiple of the time of the mean, for models with `size` values."""
    rng = np.random.default_rng(0)
    models = [rng.standard_normal(size).astype(np.float32) for _ in range(PEERS + 1)]
    weights = [1 / (PEERS + 1)] * (PEERS + 1)
    losses = rng.random(PEERS + 1).tolist()

    def work(rule: MergeRule) -> Callable[[], object]:
        if isinstance(rule, Reweighting):
            return lambda: rule.reweight(Candidates(models, weights, losses))
        return lambda: rule.combine(Candidates(models, weights))

    mean = seconds(lambda: weighted_mean(models, weights), times)
    return {name: seconds(work(factory()), times) / mean for name, factory in RULES.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="small models and few repetitions, to check that the benchmark works"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    options = parser.parse_args()
    sizes = [4_810, 100_000] if options.quick else [4_810, 100_000, 2_500_000]
    figures: dict[str, dict[str, float]] = {}
    for size in sizes:
        times = 5 if options.quick else 21
        figures[str(size)] = measured = measure(size, times)
        shown = ", ".join(f"{name} {ratio:.2f} x the mean" for name, ratio in measured.items())
        print(f"{size:,} values, {PEERS} peers: {shown}")
        figures[f"{size} rules"] = rules = measure_rules(size, times)
        print("  " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in rules.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
