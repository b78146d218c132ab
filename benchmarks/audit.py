"""Findings of attacks with and without a privacy budget: inversion of digits, membership on Fashion-MNIST, faults, bounds.

Prints a table for each part, and writes all figures to a file with --json. `membership` needs Fashion-MNIST in the folder of
P2PFL_DATA, and takes most of the time: minutes for each row on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from p2pfl.sim.audit.canaries import attack_by_canaries
from p2pfl.sim.audit.inversion import invert
from p2pfl.sim.audit.membership import attack_membership
from p2pfl.sim.audit.releases import Attacked, Release, Watch, observe
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.scenario import Scenario, resolve

DIGITS = {
    "nodes": 20,
    "rounds": 1,
    "task": {"name": "digits", "shared": True},
    "policy": {"name": "random", "neighbours": 3},
}
SUMS = {"policy": {"name": "coordinated-fedavg"}, "secure_sums": True}
IMAGES = {
    "nodes": 20,
    "rounds": 5,
    "task": {
        "name": "images",
        "data": "fashion-mnist",
        "samples": 300,
        "test": 400,
        "optimizer": {"name": "sgd", "lr": 0.1},
    },
    "policy": {"name": "random", "neighbours": 3},
}
SMALL = {"name": "digits", "samples": 64, "shared": True, "batch_size": 16, "lr": 0.5, "momentum": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "64 digits in batches of 16, complete graph, 2 rounds": {},
    "128 digits, momentum": {"task": SMALL | {"samples": 128, "lr": 0.1, "momentum": 0.9}},
    "ring, 6 rounds, clip 0.2": {
        "policy": {"name": "random", "neighbours": 2}, "topology": {"name": "ring"}, "rounds": 6, "clip": 0.2
    },
    "48 digits in one batch, coordinated, 4 rounds": {
        "policy": {"name": "coordinated-fedavg"},
        "rounds": 4,
        "task": SMALL | {"samples": 48, "batch_size": 48, "lr": 1.0, "hidden": 16},
    },
}  # fmt: skip


def scenario(table: dict[str, Any]) -> Scenario:
    return resolve(table, [], "audit", ".").runs[0]


def inversion() -> list[dict[str, Any]]:
    """Attack the first models of 20 nodes with few digits."""
    found = []
    for name, more in (("no budget", {}), ("secure sums", SUMS), ("epsilon 8", {"privacy": {"epsilon": 8}})):
        for samples in (1, 4, 8, 20, 60):
            releases: list[Release] = []
            job = scenario(DIGITS | {"task": {"name": "digits", "shared": True, "samples": samples}} | more)
            watch = Watch(job.nodes, releases.append)
            observe(job, None, watch)
            attacked = invert(Attacked(watch.tasks[0], job.seed), watch.tasks, releases, job.seed)[0]
            for how, row in attacked.items():
                found.append({"protection": name, "samples": samples, "by": how} | row)
                print(
                    f"{name:12} {samples:3} images, {how:12}: {100 * row['found']:5.1f} % found,"
                    f" {100 * row['found_by_chance']:.1f} % by chance; correlation {row['correlation']:.2f},"
                    f" by chance {row['correlation_by_chance']:.2f}; AUC {row['auc']:.3f}"
                    f" ({row['auc_interval'][0]:.3f}-{row['auc_interval'][1]:.3f})",
                    flush=True,
                )
    return found


def bounds() -> list[dict[str, Any]]:
    """Attack the promised epsilon in twenty settings."""
    found = []
    for name, more in SETTINGS.items():
        for epsilon in (0.5, 1, 2, 4, 8):
            budget = {"epsilon": epsilon, "clip": more.get("clip", 1.0)}
            changes = {key: value for key, value in more.items() if key != "clip"}
            base = {"nodes": 4, "rounds": 2, "task": SMALL, "policy": {"name": "fedavg"}}
            job = scenario(base | changes | {"privacy": budget})
            watch = Watch(job.nodes)
            made = observe(job, None, watch)
            row = attack_by_canaries(job, None, made.plan.privacy, watch.tasks)
            found.append({"setting": name, "epsilon": epsilon} | row)
            print(
                f"{name}: epsilon {row['promised']:.2f}, at least {row['at_least']:.2f}, by curve {row['by_curve']:.2f}",
                flush=True,
            )
    return found


def membership(shadows: int) -> list[dict[str, Any]]:
    """Attack membership on Fashion-MNIST, 20 nodes with 300 images each."""
    found = []
    for epsilon in (0, 8, 4, 2, 1):
        job = scenario(IMAGES | ({"privacy": {"epsilon": epsilon}} if epsilon else {}))
        watch = Watch(job.nodes)
        accuracy = result_of(observe(job, None, watch)).summary["test"]["mean"]
        row = attack_membership(job, None, watch.tasks, shadows, lambda: None)
        found.append({"epsilon": epsilon or None, "accuracy": accuracy} | row)
        shown = "; ".join(
            f"{key} {row[key]:.4f} ({row[f'{key}_interval'][0]:.4f}-{row[f'{key}_interval'][1]:.4f})"
            for key in ("auc", "tpr_at_0.01", "tpr_at_0.001")
        )
        print(f"epsilon {epsilon or 'none'}: accuracy {accuracy:.3f}; {shown}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="inversion, bounds, membership (default: all)")
    parser.add_argument("--shadows", type=int, default=16, metavar="N", help="for membership (default: 16)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    parts = {"inversion": inversion, "bounds": bounds, "membership": lambda: membership(options.shadows)}
    if unknown := set(options.parts) - set(parts):
        parser.error(f"unknown part {unknown.pop()}; the parts are {', '.join(parts)}")
    found = {name: measure() for name, measure in parts.items() if not options.parts or name in options.parts}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
