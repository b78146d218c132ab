"""Runs under faults: one schedule in one run, and the search for violations over many seeds.

A run has four phases. The members start on empty disks with the first membership log. From then on the faults begin and
end at their times, while an administrator (the admission key) writes changes of the membership to the folder of a member.
After nine deadlines everything is healed: all faults end, and every machine has a process. Then the run ends as soon as
all members have finished two rounds with others and are in nearly the same round; that they do not within 30 deadlines is
the violation `no progress`. The first violation ends a run at once.

A run is a function of the plan, the seed and the faults. The seed decides more than the draw of the faults: it also
decides the fate of single frames and what a power failure leaves. A schedule in a file therefore has a seed of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from p2pfl._util.event_log import EventLogger
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.policy import Coordinated
from p2pfl.protocols.membership.log import Membership
from p2pfl.sim.chaos.hardware import MachineLoop
from p2pfl.sim.chaos.invariants import Invariants, Violation
from p2pfl.sim.chaos.machine import FEWEST, ChaosPlan, Machine, Process, chaos_plan
from p2pfl.sim.chaos.network import FaultyNetwork
from p2pfl.sim.chaos.schedule import ANYWHERE, LINKS, Fault, Schedule, draw_schedule, shrink, span
from p2pfl.sim.execution.run_order import Assignment, compute_side_by_side
from p2pfl.sim.scenario.scenario import ScenarioFile
from p2pfl.sim.simulation import clock
from p2pfl.sim.simulation.workers import Pipe, Worker, answer, prepare_process, prepared_process

PATIENCE = 30  # deadlines after the last fault within which all members must learn together again
TOGETHER = 2  # rounds that each member must then finish with others
APART = 2  # rounds between the first and the last member then
BACKUPS = 0.5  # deadlines between copies of the folders
LOOKING = 0.5  # seconds between checks of the progress
AGAIN = 1.0  # seconds between attempts of an administrator


class Outcome(msgspec.Struct, frozen=True):
    """Result of a run.

    Attributes:
        violation: the first invariant that did not hold; None if all held.
        seconds: virtual seconds of the run.
        healed_in: virtual seconds from the last fault until all members learned together again.
        rounds, frames: finished rounds of all nodes, and frames that they sent.
        trace: a line for each event, with the virtual time and the node.
        digest: hash of all frames, in hexadecimal; equal runs have equal digests.
    """

    violation: Violation | None
    seconds: float
    healed_in: float
    rounds: int
    frames: int
    trace: tuple[str, ...]
    digest: str


def run_chaos(plan: ChaosPlan, seed: int, faults: Sequence[Fault]) -> Outcome:
    """Run a scenario under faults, until an invariant does not hold, or all members learn together after the last fault.

    Args:
        seed: decides the fate of single frames, and what a power failure leaves on a disk.

    Raises:
        RunError: a fault names a node that does not exist, or no node although its kind needs one.
    """
    for fault in faults:
        if not fault.node and fault.kind not in ("partition", *ANYWHERE):
            raise RunError(f"the schedule has a {fault.kind} at {fault.at:g} s without a node")
        for name in (fault.node, *fault.others):
            if name and name not in plan.names:
                raise RunError(f"the schedule names {name}; the nodes are {', '.join(plan.names)}")
    loop = MachineLoop()  # type: ignore[abstract]  # sockets, signals and subprocesses have no place in it
    chaos = ChaosRun(plan, seed, faults, loop)
    clock.run(chaos.run(), loop)
    return chaos.outcome()


class ChaosRun:
    """All machines of a run, their network, and the faults.

    Attributes:
        machines: by name.
    """

    def __init__(self, plan: ChaosPlan, seed: int, faults: Sequence[Fault], loop: MachineLoop) -> None:
        self._plan = plan
        self._faults = faults
        self._loop = loop
        self._deadline = plan.scenario.deadline
        self._trace: list[str] = []
        self._violation: Violation | None = None
        self._done = asyncio.Event()
        self._healed_at = self._healed_in = 0.0
        self._administrator = plan.membership.copy()
        keys = {name: key.public for name, key in zip(plan.names, plan.keys, strict=True)}
        self._invariants = Invariants(keys, loop.time, self._report, self._membership_of)
        self._network = FaultyNetwork(loop, plan.run.links(seed), seed, self._invariants.sent)
        make = partial(Machine, plan, loop=loop, network=self._network, invariants=self._invariants, seed=seed)
        self.machines = {name: make(k, log=self._log(name)) for k, name in enumerate(plan.names)}
        loop.on_error = lambda machine, text: self._invariants.fail("error", machine, f"unhandled: {text}")

    async def run(self) -> None:
        """Run until an invariant does not hold, or all members have learned together after the last fault."""
        for name in self._plan.members:
            self.machines[name].install(self._administrator)
        self._back_up()
        for name in self._plan.members:
            self.machines[name].start()
        for fault in self._faults:
            self._loop.call_at(fault.at, self._apply, fault)
        self._loop.call_at(span(self._deadline), self._heal)
        await self._done.wait()
        for machine in self.machines.values():
            machine.kill(silently=True)

    def outcome(self) -> Outcome:
        """Return the result of a finished run."""
        figures = self._invariants.figures
        return Outcome(
            violation=self._violation,
            seconds=self._loop.time(),
            healed_in=self._healed_in,
            rounds=figures["rounds"],
            frames=figures["frames"],
            trace=tuple(self._trace),
            digest=self._invariants.hash.hexdigest(),
        )

    def _log(self, name: str) -> EventLogger:
        """Return the log of a machine, which writes to the trace."""
        handler = logging.Handler()
        handler.emit = lambda record: self._note(name, record.getMessage())  # type: ignore[method-assign]
        logger = logging.Logger(name, logging.INFO)
        logger.addHandler(handler)
        return EventLogger(logger)

    def _note(self, name: str, text: str) -> None:
        self._trace.append(f"{self._loop.time():.3f} {name}: {text}")

    def _report(self, violation: Violation) -> None:
        if self._violation is None:
            self._violation = violation
            self._note(violation.node, f"VIOLATION {violation.invariant}: {violation.text}")
            self._done.set()

    def _membership_of(self, name: str) -> Membership | None:
        process = self.machines[name].process
        return None if process is None else process.membership

    def _back_up(self) -> None:
        for machine in self.machines.values():
            machine.back_up()
        self._loop.call_later(BACKUPS * self._deadline, self._back_up)

    # Faults

    def _apply(self, fault: Fault) -> None:
        """Begin a fault, and set the time of its end."""
        self._note(fault.node or "network", f"FAULT {fault}")
        later, machine = self._loop.call_later, self.machines.get(fault.node)
        match fault.kind:
            case "admit":
                self._admit(fault)
            case "revoke":
                self._revoke(fault)
            case _ if machine is None or fault.kind in (*LINKS, "slow", "disk-full"):
                self._network.faults.append(fault)
                later(fault.seconds, self._end, fault)
            case "crash":
                machine.kill(silently=False)
                later(fault.seconds, machine.start)
            case "power-failure":
                machine.lose_power()
                later(fault.seconds, machine.start)
            case "power-failure-on-write":
                machine.lose_power_on_write(int(fault.amount), fault.seconds)
            case "restore":
                machine.restore(fault.at - fault.amount)
                later(fault.seconds, machine.start)
            case "freeze":
                self._loop.freeze(fault.node, fault.end)
            case "clock-jump":
                machine.clock_offset += fault.amount

    def _end(self, fault: Fault) -> None:
        if fault in self._network.faults:
            self._network.faults.remove(fault)

    def _admit(self, fault: Fault) -> None:
        log, machine = self._administrator, self.machines[fault.node]
        if not log.had(fault.node):
            log.append(self._plan.admission, "add", fault.node, machine.key)
            machine.install(log)
            machine.back_up()
            self._publish(self._plan.members[0])
            machine.start()

    def _revoke(self, fault: Fault) -> None:
        log, machine = self._administrator, self.machines[fault.node]
        if fault.node in log.members and len(log.members) > FEWEST:
            log.append(self._plan.admission, "remove", fault.node, machine.key)
            self._publish(next(iter(fault.others), ""))

    def _publish(self, name: str) -> None:
        """Write the membership log to the folder of a member, and again until most members know all entries.

        A disk may be full, lose a write, or be restored from an older copy before its member has passed an entry on.
        """
        members = self._administrator.members
        if 2 * sum(self._knows_all(member) for member in members) > len(members):
            return
        place = self.machines[name if name in members else next(iter(members))]
        self._loop.call_later(AGAIN, self._publish, name)
        with suppress(OSError, ConfigurationError):
            place.write_membership(self._administrator)

    def _knows_all(self, name: str) -> bool:
        membership = self._membership_of(name)
        return membership is not None and membership.membership_version >= self._administrator.membership_version

    # Healing

    def _heal(self) -> None:
        """End all faults, and start all nodes."""
        self._note("network", "all faults end")
        self._network.faults.clear()
        self._healed_at = self._loop.time()
        for machine in self.machines.values():
            machine.disk.fails_at = 0
            self._loop.thaw(machine.name)
            machine.start()
        self._look()

    def _look(self) -> None:
        """End the run if all members learn together again, or should do so by now."""
        passed = self._loop.time() - self._healed_at
        late = self._late()
        if not late:
            self._healed_in = passed
            self._done.set()
        elif passed > PATIENCE * self._deadline:
            name, why = next(iter(late.items()))
            self._invariants.fail("no progress", name, f"{why}, {passed:g} s after the last fault")
        else:
            self._loop.call_later(LOOKING, self._look)

    def _late(self) -> dict[str, str]:
        """Return the members that do not learn together with others yet, each with the reason."""
        machines = [self.machines[name] for name in self._administrator.members]
        late = {machine.name: why for machine in machines if (why := self._lateness(machine))}
        rounds = {machine.name: machine.process.node.round for machine in machines if machine.process is not None}
        if not late and max(rounds.values()) - min(rounds.values()) > APART:
            last = min(rounds, key=rounds.__getitem__)
            late[last] = f"is in round {rounds[last]}, and others are in round {max(rounds.values())}"
        return late

    def _lateness(self, machine: Machine) -> str:
        process, watch = machine.process, machine.watch
        if process is None or watch is None:
            return f"does not run: {machine.last_error}"
        if process.membership.membership_version < self._administrator.membership_version:
            return f"knows membership version {process.membership.membership_version} only"
        merges = [merged for merged in watch.merges if merged.at >= self._healed_at]
        together = sum(merged.others > 0 or not self._learns_with_others(process) for merged in merges)
        if together >= TOGETHER or process.node.done:
            return ""
        return f"has finished {len(merges)} rounds, {together} of them with others, and is in round {process.node.round}"

    def _learns_with_others(self, process: Process) -> bool:
        """Return whether a node can learn with others.

        With a coordinator it must take part in the elections, and a majority with it. A node does not while its vote may
        be older than its messages.
        """
        processes: list[Process] = [
            each for name in self._administrator.members if (each := self.machines[name].process) is not None
        ]
        if not isinstance(self._plan.run.policy(0), Coordinated):
            return bool(self._plan.scenario.policy["name"] != "local")
        voting = sum(each.votes for each in processes)
        return process.votes and 2 * voting > len(self._administrator.members)


# Many seeds


class Found(msgspec.Struct, frozen=True):
    """Result of one seed.

    Attributes:
        run: name of the run of the scenario.
        violation: the violation of the short schedule; None if all invariants held.
        drawn: number of faults in the schedule of the seed.
        faults: with a violation, the short schedule.
        cpu: processor seconds, without those of the search for a short schedule.
        healed_in: virtual seconds from the last fault until all members learned together again.
    """

    seed: int
    run: str
    violation: Violation | None
    drawn: int
    faults: tuple[Fault, ...]
    cpu: float
    healed_in: float


class Trials:
    """Runs of a scenario under the faults of seeds. The runs of the scenario take turns: each seed uses one of them.

    Args:
        shrinks: whether to find a short schedule for each violation.
    """

    def __init__(self, file: ScenarioFile, shrinks: bool = True) -> None:
        self._file = file
        self._shrinks = shrinks
        self._plans: dict[str, ChaosPlan] = {}

    def try_seed(self, seed: int) -> Found:
        """Run the scenario under the faults of a seed."""
        plan = self._plan(self._file.runs[seed % len(self._file.runs)].name)
        begun = time.process_time()
        faults = draw_schedule(seed, plan.members, plan.newcomers, plan.scenario.deadline)
        outcome = run_chaos(plan, seed, faults)
        cpu, drawn = time.process_time() - begun, len(faults)
        if outcome.violation is not None and self._shrinks:
            faults = shrink(faults, partial(_breaks, plan, seed, outcome.violation.invariant))
            outcome = run_chaos(plan, seed, faults)
        return Found(
            seed=seed,
            run=plan.scenario.name,
            violation=outcome.violation,
            drawn=drawn,
            faults=() if outcome.violation is None else faults,
            cpu=cpu,
            healed_in=outcome.healed_in,
        )

    def replay(self, schedule: Schedule) -> Outcome:
        """Run a schedule.

        Raises:
            ConfigurationError: the scenario has no run of its name.
            RunError: see run_chaos.
        """
        return run_chaos(self._plan(schedule.run), schedule.seed, schedule.fault)

    def _plan(self, name: str) -> ChaosPlan:
        """Return the plan of a run, which is made once for all seeds."""
        if name not in self._plans:
            scenario = next((each for each in self._file.runs if each.name == name), None)
            if scenario is None:
                known = ", ".join(each.name for each in self._file.runs)
                raise ConfigurationError(f"the schedule is for the run {name!r}; the scenario {self._file.name} has {known}")
            self._plans[name] = chaos_plan(scenario)
        return self._plans[name]


def _breaks(plan: ChaosPlan, seed: int, invariant: str, faults: Sequence[Fault]) -> bool:
    violation = run_chaos(plan, seed, faults).violation
    return violation is not None and violation.invariant == invariant


def search(
    file: ScenarioFile, seeds: Sequence[int], workers: int, received: Callable[[Found], None], shrinks: bool = True
) -> None:
    """Try seeds, and pass on each result as soon as it is there.

    Args:
        workers: number of processes; with 1 the seeds are tried in this process.
        shrinks: see Trials.

    Raises:
        ConfigurationError: the scenario cannot run in this way.
    """
    if workers == 1:
        with prepared_process(file.path):
            trials = Trials(file, shrinks)
            for seed in seeds:
                received(trials.try_seed(seed))
        return

    def take(seed: int, found: Found) -> bool:
        received(found)
        return True

    jobs = (Assignment(seed, file.runs[seed % len(file.runs)], seed) for seed in seeds)
    compute_side_by_side(jobs, workers, lambda: Worker(_work, file, shrinks), take)


def _work(pipe: Pipe, file: ScenarioFile, shrinks: bool) -> None:
    prepare_process(file.path)
    answer(pipe, Trials(file, shrinks).try_seed)
