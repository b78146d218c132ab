"""Run a federation of real processes under faults drawn from a seed, and check invariants from outside.

An episode has one to three faults: processes that are killed or stopped, a network that is divided, cut in one
direction, flapping or lossy, a broker that restarts or halts, a full disk, a damaged file, a folder from a backup, a
wrong wall clock; a guest that is admitted and revoked, a member that is revoked and admitted again, a new admission key.
After each episode all nodes must learn together again, and know the same members. The seed of a run is printed, and gives
the same episodes again.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import ActiveFault, copy
from tests.chaos.federation import FAKETIME, ROOT, run_federation
from tests.chaos.invariants import Healing, Incarnations, Violation, check, check_models, check_output
from tests.chaos.schedule import draw_episode
from tests.support.namespaces import PATH, why_not

PATIENCE, ROUNDS = 180.0, 100  # seconds and rounds in which a federation must start, or heal
LATEST = 900.0  # seconds after which it must have finished these rounds
LINES = 20  # of the output of each node, after a violation
LOOK = 0.5  # seconds between two checks
INTERRUPTED = 130  # exit code of a node after SIGTERM


def wait(federation, what):
    """Check the invariants until all nodes learn together; return the seconds that it took.

    A peer that has missed many deadlines must answer for tens of rounds before the others wait for it again, and rounds
    are slow on a busy machine. So both time and rounds are limited.
    """
    begun, together = time.monotonic(), Healing(federation)
    while not together.done():
        check(federation)
        seconds = time.monotonic() - begun
        if seconds > (PATIENCE if together.rounds() >= ROUNDS else LATEST):
            raise Violation(f"in {seconds:.0f} s and {together.rounds()} rounds the nodes did not {what}: {together}")
        time.sleep(LOOK)
    return time.monotonic() - begun


def run_episode(federation, faults):
    """Let each fault begin and end."""
    begun, waiting, active = time.monotonic(), list(faults), []
    while waiting or active:
        now = time.monotonic() - begun
        for fault in [fault for fault in waiting if fault.begins <= now]:
            waiting.remove(fault)
            active.append(ActiveFault(federation, fault))
            active[-1].begin()
        for each in list(active):
            each.step()
            if each.fault.ends <= now:
                each.end()
                active.remove(each)
        check(federation)
        time.sleep(LOOK / 5)


def run(federation, seed, minutes, first):
    """Run episodes until the time is over, one at least; return their number."""
    until, number = time.monotonic() + 60 * minutes, first
    wait(federation, "learn together at the start")
    federation.backups.mkdir()
    for name in federation.names:
        copy(federation.folders[name], federation.backups / name)
    incarnations = Incarnations(federation)
    while number == first or time.monotonic() < until:
        faults = draw_episode(seed, number, federation.names)
        print(f"episode {number}: {'; '.join(map(str, faults))}", flush=True)
        run_episode(federation, faults)
        rounds = sorted(federation.status(name)["round"] for name in federation.names)
        seconds = wait(federation, "learn together again")
        incarnations.check()
        check_output(federation)
        print(f"  all learn together after {seconds:.1f} s, from the rounds {rounds}", flush=True)
        number += 1
    if codes := {name: code for name, code in federation.end().items() if code != INTERRUPTED}:
        raise Violation(f"nodes ended with {codes} when they were told to end")
    check_models(federation)
    check_output(federation)
    return number - first


def report(federation):
    """Print the peers of each node as it sees them, and its last lines."""
    for name in (name for name, starts in federation.starts.items() if starts):
        status = federation.status(name)
        peers = ", ".join(f"{peer['name']} {peer['state']} {peer['reason']}".strip() for peer in status.get("peers", ()))
        print(f"{name}, {status['state']}, round {status['round']}: {peers}")
        print("\n".join(f"    {line}" for line in federation.output(name).splitlines()[-LINES:]))


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="time after which no episode begins (default: 5)")
    parser.add_argument("--seed", type=int, help="seed of the faults (default: a new one)")
    parser.add_argument("--first", type=int, default=0, help="number of the first episode, to replay it (default: 0)")
    parser.add_argument("--nodes", type=int, default=4, help="number of nodes, 3 or more (default: 4)")
    options = parser.parse_args()
    if options.nodes < 3:
        parser.error("--nodes must be 3 or more")
    missing = [program for program in ("mosquitto", "nft") if shutil.which(program, path=PATH) is None]
    if reason := why_not() or (f"{missing[0]} is not installed" if missing else ""):
        print(f"scripts/chaos cannot run: {reason}")
        return 2
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    replay = f"scripts/chaos --seed {seed} --minutes {options.minutes:g} --nodes {options.nodes}"
    print(f"seed {seed}", flush=True)
    if FAKETIME is None:
        print("without wrong clocks: libfaketime is not installed", flush=True)
    sys.path.insert(0, str(ROOT / "benchmarks"))  # with the policy of the nodes
    names = [f"node-{k + 1}" for k in range(options.nodes)]
    with tempfile.TemporaryDirectory(prefix="p2pfl-chaos-") as root:
        begun = time.monotonic()
        try:
            with run_federation(Path(root), names) as federation:
                try:
                    number = run(federation, seed, options.minutes, options.first)
                except Violation:
                    report(federation)
                    raise
        except Violation as error:
            print(f"violation after {time.monotonic() - begun:.0f} s: {error}\nreplay: {replay}")
            return 1
    print(f"{number} episodes, no violation; replay: {replay}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
