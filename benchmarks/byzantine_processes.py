"""Measure the accuracy of four honest processes among two attackers, over TLS on loopback, by robust rule.

All six are ordinary nodes that train digits with FedAvg. The attackers have a policy of their own, which sees the
honest models of a round before it publishes a harmful one (see byzantine_member.py). In the clean run they are honest.
Prints the mean test accuracy of the four honest nodes in the last rounds, its mean over the seeds, and the difference
from the clean run of the same rule.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from byzantine_member import ATTACKS
from processes import Federation

HONEST = ("honest-1", "honest-2", "honest-3", "honest-4")
ATTACKERS = ("attacker-1", "attacker-2")
MEMBER = Path(__file__).with_name("byzantine_member.py")
LAST = 3  # rounds whose mean accuracy counts
RULES = {  # with the true number of attackers, where a rule assumes one
    "none": '"none"',
    "clip-loss": '"clip-loss"',
    "median-clip": '"median-clip"',
    "scclip": '{name = "scclip", rank = 3}',
    "cs+": '{name = "cs+", share = 0.4}',
    "ios": '{name = "ios", attackers = 2}',
}
TOML = """rounds = {rounds}
deadline = 30.0
members = 6
seed = {seed}
robust = {robust}
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "byzantine_member:Member"}}
"""


def accuracy(rule: str, attack: str, rounds: int, seed: int) -> float:
    """Return the mean test accuracy of the honest nodes in the last rounds.

    Raises:
        RuntimeError: a process has ended by itself.
    """
    with tempfile.TemporaryDirectory(prefix="p2pfl-byzantine-") as root:
        toml = TOML.format(rounds=rounds, seed=seed, robust=RULES[rule])
        federation = Federation(Path(root), (*HONEST, *ATTACKERS), toml)
        for name, folder in federation.folders.items():
            shutil.copy(MEMBER, folder)
            if attack != "clean" and name in ATTACKERS:
                (folder / "attack").write_text(attack)
        with federation.running():
            try:
                federation.wait(
                    lambda: all(federation.state(name)["state"] in ("serving", "finished") for name in HONEST),
                    "all honest nodes have finished",
                )
            except RuntimeError as error:
                said = "\n".join(f"{name}:\n{federation.output(name, 5)}" for name in federation.folders)
                raise RuntimeError(f"{error}; {said}") from None
            if ended := federation.ended():
                raise RuntimeError(f"processes have ended: {ended}")
            tests = [[row.get("test") for row in federation.state(name)["history"]][-LAST:] for name in HONEST]
        return statistics.mean(value for row in tests for value in row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", action="append", choices=RULES, help="rule to measure; can be repeated (default: all)")
    parser.add_argument("--attack", action="append", choices=ATTACKS, help="attack; can be repeated (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each run (default: 15)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    options = parser.parse_args()
    figures: dict[str, dict[str, list[float]]] = {}
    for rule in options.rule or RULES:
        figures[rule] = found = {}
        for attack in ("clean", *(options.attack or ATTACKS)):
            found[attack] = [accuracy(rule, attack, options.rounds, seed) for seed in range(options.seeds)]
            mean, clean = statistics.mean(found[attack]), statistics.mean(found["clean"])
            runs = ", ".join(f"{value:.3f}" for value in found[attack])
            print(f"{rule} {attack}: {mean:.3f} ({mean - clean:+.3f}); seeds {runs}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
