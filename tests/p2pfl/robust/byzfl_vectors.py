"""Writes golden vectors with ByzFL's modules `aggregators` and `attacks`; see scripts/byzfl-vectors.

Usage: python -m tests.p2pfl.robust.byzfl_vectors FOLDER, the folder in which ByzFL 0.0.11 is unpacked.

The package's own top imports torchvision, so an empty package takes its place.
"""

import importlib
import json
import sys
import types
from pathlib import Path

import numpy as np

VECTORS = Path(__file__).with_name("byzfl.json")
SIZE = 6
CASES = ((5, 1), (8, 2), (11, 3))  # models, attackers


def load(folder):
    top = types.ModuleType("byzfl")
    top.__path__ = [str(Path(folder) / "byzfl")]
    sys.modules["byzfl"] = top
    return importlib.import_module("byzfl.aggregators"), importlib.import_module("byzfl.attacks")


def made_by_rules(rules, f):
    return {
        "median": rules.Median(),
        "trimmed": rules.TrMean(f),
        "rfa": rules.GeometricMedian(nu=0.1, T=2000),
        "krum": rules.Krum(f),
        "multi-krum": rules.MultiKrum(f),
        "scclip": rules.CenteredClipping(tau=2.0),
        "nna": rules.MoNNA(f),
    }


def made_by_attacks(attacks, rules, f):
    return {
        "sign-flip": attacks.SignFlipping(),
        "ipm": attacks.InnerProductManipulation(tau=2.0),
        "opt-ipm": attacks.Optimal_InnerProductManipulation(agg=rules.Average(), pre_agg_list=[], f=f),
        "opt-ipm trimmed": attacks.Optimal_InnerProductManipulation(agg=rules.TrMean(f), pre_agg_list=[], f=f),
        "alie": attacks.ALittleIsEnough(tau=1.5),
        "opt-alie": attacks.Optimal_ALittleIsEnough(agg=rules.Average(), pre_agg_list=[], f=f),
        "opt-alie trimmed": attacks.Optimal_ALittleIsEnough(agg=rules.TrMean(f), pre_agg_list=[], f=f),
        "mimic": attacks.Mimic(epsilon=1),
    }


def main(folder):
    rules, attacks = load(folder)
    rng = np.random.default_rng(7)
    cases = []
    for n, f in CASES:
        honest = rng.normal(1.0, 0.5, (n - f, SIZE)).astype(np.float32).astype(np.float64)
        lying = rng.normal(-3.0, 2.0, (f, SIZE)).astype(np.float32).astype(np.float64)
        models = np.concatenate([honest, lying])
        found = {name: rule(models).tolist() for name, rule in made_by_rules(rules, f).items()}
        forged = {name: attack(honest).tolist() for name, attack in made_by_attacks(attacks, rules, f).items()}
        cases.append({"attackers": f, "models": models.tolist(), "rules": found, "attacks": forged})
    VECTORS.write_text(json.dumps({"source": "ByzFL 0.0.11", "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
