"""Measure the loss of four honest nodes if a fifth member poisons its models, on loopback, with real processes.

    clean      it answers requests with nothing
    huge       noise with 900 times the norm of the victim's model
    scale      the victim's own model, times 900
    flip       the victim's own model, negated
    echo       the victim's own model
    noise      noise with the norm of the victim's model
    samples    noise, and it claims 2^32 - 1 samples

Prints the mean test accuracy of the honest nodes' newest models in the last rounds, and its difference from clean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from adversary import Adversary
from processes import Federation

from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m

HONEST = ("alice", "bob", "carol", "dave")
MEMBER = "mallory"
VALUES = 4810
LAST = 5  # rounds whose mean accuracy counts
MOST = 2**32 - 1
TOML = """rounds = {rounds}
deadline = 10.0
members = 5
seed = {seed}
robust = "{robust}"
task = {{name = "digits", judged_on = "all"}}
policy = {{name = "{policy}"{options}}}
"""
OPTIONS = dict.fromkeys(("random", "dac"), ', reported_stage = "trained"')  # the model of the recorded figures
KINDS = ("clean", "huge", "scale", "flip", "echo", "noise", "samples")


def poison(kind: str, theirs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the vector to send instead of a model; float32, [P]."""
    norm = float(np.linalg.norm(theirs))
    noise = rng.standard_normal(theirs.size)
    noise *= norm / np.linalg.norm(noise)
    made = {"scale": theirs * 900, "flip": -theirs, "echo": theirs, "huge": noise * 900}.get(kind, noise)
    return np.ascontiguousarray(made, "<f4")


async def serve(kind: str, folder: Path, nodes: dict[str, str]) -> None:
    """Run the member that poisons."""
    adversary = Adversary(folder, MOST if kind == "samples" else 287)

    async def answer(name: str, link: Link, get: m.Get) -> None:
        payload = None if kind == "clean" else await adversary.ask(link, get.round, get.stage)
        if payload is None:
            adversary.send(link, m.NotAvailable(get.request, adversary.round, "gone"))
            return
        theirs = np.frombuffer(payload[: 4 * VALUES], "<f4")
        params = poison(kind, theirs, np.random.default_rng(get.round))
        said = m.ModelUpdate(get.request, get.round, get.stage, adversary.n_samples, False, 0.0)
        adversary.send(link, said, params.tobytes())

    async def submit() -> None:
        """Submit once per round, if the policy has a coordinator: the last assignment, poisoned."""
        done = 0
        while True:
            await asyncio.sleep(0.05)
            if kind != "clean" and adversary.coordinator in adversary.links and adversary.round > done:
                done = adversary.round
                theirs = (
                    np.frombuffer(adversary.assigned[: 4 * VALUES], "<f4") if adversary.assigned else np.ones(VALUES, "<f4")
                )
                with suppress(TransportError):
                    adversary.submit(poison(kind, theirs, np.random.default_rng(done)).tobytes())

    adversary.serve = answer
    await asyncio.gather(submit(), *(adversary.stay(name, address) for name, address in nodes.items()))


def accuracy(policy: str, kind: str, robust: str, rounds: int, seed: int) -> float:
    """Return the mean test accuracy of the honest nodes in the last rounds; nan if one of them has ended."""
    with tempfile.TemporaryDirectory(prefix="p2pfl-poison-") as root:
        toml = TOML.format(rounds=rounds, seed=seed, robust=robust, policy=policy, options=OPTIONS.get(policy, ""))
        federation = Federation(Path(root), HONEST, toml, {MEMBER: "participant"})
        nodes = {name: federation.addresses[name] for name in HONEST}
        orders = json.dumps({"kind": kind, "folder": str(federation.folders[MEMBER]), "nodes": nodes})
        with federation.running():
            member = subprocess.Popen([sys.executable, __file__, "--act", orders], stderr=subprocess.DEVNULL)
            try:
                federation.wait(
                    lambda: all(federation.state(name)["state"] in ("serving", "finished") for name in HONEST),
                    "all honest nodes have finished",
                )
            except RuntimeError as error:
                print(f"  {error}")
                return float("nan")
            finally:
                member.kill()
                member.wait()
            tests = [[row.get("test") for row in federation.state(name)["history"]][-LAST:] for name in HONEST]
        return statistics.mean(value for row in tests for value in row if value is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--policy",
        action="append",
        help="policy to measure; can be repeated (default: random, fedavg, dac and coordinated-fedavg)",
    )
    parser.add_argument(
        "--kind", action="append", choices=KINDS, help="kind of poisoned model; can be repeated (default: all)"
    )
    parser.add_argument("--robust", default="clip-loss", help="protection of the federation (default: clip-loss)")
    parser.add_argument("--rounds", type=int, default=24, metavar="N", help="rounds of each federation (default: 24)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="number of federations of each kind (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument("--act", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.act is not None:
        asyncio.run(serve(options.act["kind"], Path(options.act["folder"]), options.act["nodes"]))
        return
    figures: dict[str, dict[str, list[float]]] = {}
    for policy in options.policy or ["random", "fedavg", "dac", "coordinated-fedavg"]:
        rows = figures[policy] = {}
        for kind in dict.fromkeys(("clean", *(options.kind or KINDS))):
            rows[kind] = [accuracy(policy, kind, options.robust, options.rounds, seed) for seed in range(options.seeds)]
            mean = statistics.mean(rows[kind])
            apart = mean - statistics.mean(rows["clean"])
            print(f"{policy}, {kind}: accuracy {mean:.3f} ({', '.join(f'{one:.3f}' for one in rows[kind])}), {apart:+.3f}")
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
