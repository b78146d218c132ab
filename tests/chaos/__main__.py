"""Run a federation of real processes under faults drawn from a seed, and check invariants from outside.

An episode has one to three faults: processes that are killed, ended or stopped, a network that is divided, cut in one
direction, flapping or lossy, a broker that restarts or halts, a full disk, a damaged file, a folder from a backup, a
wrong wall clock; a guest that is admitted and revoked, a member that is revoked and admitted again, a new admission key.
After each episode all nodes must learn together again, and know the same members. The seed of a run is printed, and gives
the same episodes again. After a violation, the faults of its episode are in a file, to be changed and replayed.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.sim.chaos.schedule import Schedule, read_schedule, shrink, write_schedule
from tests.chaos.faults import KINDS, Faults, draw_episode
from tests.chaos.federation import FAKETIME, GUEST, run_federation
from tests.chaos.invariants import Healing, Incarnations, Violated, check, check_models, check_output
from tests.support.namespaces import PATH, why_not

PATIENCE, ROUNDS = 180.0, 100  # seconds and rounds in which a federation must start, or heal
LATEST = 900.0  # seconds after which it must have finished these rounds
LINES = 20  # of the output of each node, after a violation
LOOK = 0.5  # seconds between two checks
INTERRUPTED = 130  # exit code of a node after SIGTERM
FOUND = Path("runs/chaos-processes")  # folder of the schedules of violations
SHRINKING = 20  # runs of a search for a short schedule


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
            text = f"do not {what} in {seconds:.0f} s and {together.rounds()} rounds: {together}"
            raise Violated("no progress", "the nodes", text)
        time.sleep(LOOK)
    return time.monotonic() - begun


def run_episode(federation, schedule):
    """Let each fault begin and end."""
    faults = Faults(federation, schedule)
    begun = time.monotonic() - min((fault.at for fault in schedule), default=0.0)  # without the calm before the first
    while not faults.over:
        faults.step(time.monotonic() - begun)
        check(federation)
        time.sleep(LOOK / 5)


def run(federation, episodes, seconds, say):
    """Run episodes until the time is over, one at least."""
    until = time.monotonic() + seconds
    wait(federation, "learn together at the start")
    incarnations = Incarnations(federation)
    for number, faults in episodes:
        say(number, faults)
        federation.back_up()
        run_episode(federation, faults)
        rounds = sorted(federation.status(name)["round"] for name in federation.names)
        healed = wait(federation, "learn together again")
        incarnations.check()
        check_output(federation)
        print(f"  all learn together after {healed:.1f} s, from the rounds {rounds}", flush=True)
        if time.monotonic() > until:
            break
    for name, code in federation.end().items():
        if code != INTERRUPTED:
            raise Violated("error", name, f"ended with {code} when it was told to end")
    check_models(federation)
    check_output(federation)


def attempt(names, episodes, seconds=0.0):
    """Run a federation; return the violation or None, and the number and the faults of the last episode."""
    last, begun = [], time.monotonic()

    def say(number, faults):
        last[:] = number, faults
        print(f"episode {number}: {'; '.join(f'{fault} at {fault.at:g} s' for fault in faults)}", flush=True)

    with tempfile.TemporaryDirectory(prefix="p2pfl-chaos-") as root, run_federation(Path(root), names) as federation:
        try:
            run(federation, episodes, seconds, say)
        except Violated as error:
            report(federation)
            return replace(error.violation, at=round(time.monotonic() - begun, 3)), *(last or (0, ()))
    return None, *last


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
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the episode in FILE only")
    parser.add_argument("--shrink", action="store_true", help="find a short schedule for a violation, in up to 20 runs")
    options = parser.parse_args()
    if options.nodes < 3:
        parser.error("--nodes must be 3 or more")
    names = [f"node-{k + 1}" for k in range(options.nodes)]
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    episodes = ((number, draw_episode(seed, number, names)) for number in count(options.first))
    if options.replay is not None:
        try:
            schedule = read_schedule(options.replay, KINDS)
        except ConfigurationError as error:
            parser.error(str(error))
        seed, episodes = schedule.seed, [(0, schedule.fault)]
        named = {name for fault in schedule.fault for name in (fault.node, *fault.others)}
        if unknown := sorted(named - {"", GUEST, *names}):
            parser.error(f"{options.replay} names {', '.join(unknown)}; the nodes are {', '.join(names)} and {GUEST}")
    missing = [program for program in ("mosquitto", "nft") if shutil.which(program, path=PATH) is None]
    if reason := why_not() or (f"{missing[0]} is not installed" if missing else ""):
        print(f"scripts/chaos cannot run: {reason}")
        return 2
    print(f"seed {seed}", flush=True)
    if FAKETIME is None:
        print("without wrong clocks: libfaketime is not installed", flush=True)
    replay = f"scripts/chaos --seed {seed} --minutes {options.minutes:g} --nodes {options.nodes}"
    begun = time.monotonic()
    violation, number, faults = attempt(names, episodes, 60 * options.minutes)
    if violation is None:
        print(f"{number + 1 - options.first} episodes, no violation; replay: {replay}")
        return 0
    print(f"violation after {time.monotonic() - begun:.0f} s: {violation}\nreplay: {replay}", flush=True)
    if options.shrink:

        def breaks(part):
            found = attempt(names, [(number, part)])[0]
            return found is not None and found.invariant == violation.invariant

        if not breaks(faults):
            print(f"the faults of episode {number} alone do not lead to it")
        else:
            faults = shrink(faults, breaks, SHRINKING)
    path = FOUND / f"seed-{seed}-episode-{number}.toml"
    write_schedule(path, Schedule("processes", seed, faults, str(violation)), "scripts/chaos --replay")
    print(f"faults of episode {number}: {path}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
