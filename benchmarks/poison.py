"""Measure the loss of four honest node processes to members that publish harmful models, over TLS on loopback.

One member that ignores the protocol poisons what it answers to each victim:

    huge         noise with 900 times the norm of the victim's model
    own-scaled   the victim's own model, times 900
    own-flipped  the victim's own model, negated
    echo         the victim's own model
    noise        noise with the norm of the victim's model
    samples      noise, and it claims 2^32 - 1 samples

Or two ordinary nodes have a policy of their own, which sees the honest models of a round before it publishes a harmful
one (see byzantine_member.py): sign-flip, scale, alie or ipm, of p2pfl.attacks. The others then train by FedAvg.

Prints the mean test accuracy of the honest nodes in the last rounds, and its difference from a run of the same policy and
rule without attack, in which the member answers with nothing, or the two nodes are honest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.attackers import POISONS, attacking
from benchmarks.processes import Federation

HONEST = ("honest-1", "honest-2", "honest-3", "honest-4")
HOSTILE = "mallory"  # the member that ignores the protocol
ATTACKERS = ("attacker-1", "attacker-2")  # the nodes with a policy of their own
COLLUSIONS = ("sign-flip", "scale", "alie", "ipm")
MEMBER = Path(__file__).with_name("byzantine_member.py")
LAST = 3  # rounds whose mean accuracy counts
RULES = {  # with the true number of two attackers, where a rule assumes one
    "scclip": '{name = "scclip", rank = 3}',
    "cs+": '{name = "cs+", share = 0.4}',
    "ios": '{name = "ios", attackers = 2}',
}
OPTIONS = dict.fromkeys(("random", "dac"), ', reported_stage = "trained"')  # the model of the recorded figures
TOML = """rounds = {rounds}
deadline = 30.0
members = {members}
seed = {seed}
robust = {robust}
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "{policy}"{options}}}
"""


def accuracy(policy: str, rule: str, attack: str, rounds: int, seed: int) -> float:
    """Return the mean test accuracy of the honest nodes in the last rounds.

    Args:
        policy: of the honest nodes; "" for the federation with two nodes that collude.
        attack: of POISONS or COLLUSIONS; "clean" for none.

    Raises:
        RuntimeError: a process has ended by itself.
    """
    names, hostile = (HONEST, {HOSTILE: "participant"}) if policy else ((*HONEST, *ATTACKERS), {})
    toml = TOML.format(
        rounds=rounds,
        members=len(names) + len(hostile),
        seed=seed,
        robust=RULES.get(rule, f'"{rule}"'),
        policy=policy or "byzantine_member:Member",
        options=OPTIONS.get(policy, ""),
    )
    with tempfile.TemporaryDirectory(prefix="p2pfl-poison-") as root:
        federation = Federation(Path(root), names, toml, hostile=hostile, modules=() if policy else (MEMBER,))
        nodes = {name: federation.addresses[name] for name in HONEST}
        member: AbstractContextManager[Any] = nullcontext()
        if policy:
            kinds = [] if attack == "clean" else [attack]
            member = attacking("poison", kinds=kinds, folder=str(federation.folders[HOSTILE]), nodes=nodes)
        elif attack != "clean":
            for name in ATTACKERS:
                (federation.folders[name] / "attack").write_text(attack)
        with federation.running(), member:
            federation.wait(
                lambda: all(federation.state(name)["state"] in ("serving", "finished") for name in HONEST),
                "all honest nodes have finished",
            )
            if ended := federation.ended():
                raise RuntimeError(f"processes have ended: {ended}")
            tests = [[row.get("test") for row in federation.state(name)["history"]][-LAST:] for name in HONEST]
    return statistics.mean(value for row in tests for value in row if value is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--attack",
        action="append",
        choices=(*POISONS, *COLLUSIONS),
        help="attack to measure; can be repeated (default: all)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        help="policy that is poisoned; can be repeated (default: random, fedavg, dac and coordinated-fedavg)",
    )
    parser.add_argument("--robust", action="append", help="robust rule; can be repeated (default: clip-loss)")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of each federation (default: 15)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="number of federations of each kind (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    options = parser.parse_args()
    attacks = options.attack or (*POISONS, *COLLUSIONS)
    figures: dict[str, dict[str, list[float]]] = {}
    for rule in options.robust or ["clip-loss"]:
        for policy in (*(options.policy or ("random", "fedavg", "dac", "coordinated-fedavg")), ""):
            chosen = [attack for attack in attacks if attack in (POISONS if policy else COLLUSIONS)]
            rows = figures[f"{rule} {policy or 'fedavg of six'}"] = {}
            for attack in ("clean", *chosen) if chosen else ():
                rows[attack] = [accuracy(policy, rule, attack, options.rounds, seed) for seed in range(options.seeds)]
                mean, clean = statistics.mean(rows[attack]), statistics.mean(rows["clean"])
                runs = ", ".join(f"{value:.3f}" for value in rows[attack])
                print(f"{rule}, {policy or 'fedavg of six'}, {attack}: {mean:.3f} ({mean - clean:+.3f}); {runs}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
