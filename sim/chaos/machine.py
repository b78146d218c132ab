"""One simulated machine: its disk, its clock, and the process of its node."""

from __future__ import annotations

import asyncio
from asyncio import Task
from contextvars import copy_context
from pathlib import Path
from random import Random

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation.membership_file import MembershipFile, write_federation
from p2pfl.node.federation.revocation import RevokedError
from p2pfl.node.node import first_error
from p2pfl.node.peering.links.incarnations import IncarnationConflictError
from p2pfl.node.runtime.renumber import renumber
from p2pfl.protocols.membership.log import Membership
from p2pfl.sim.chaos.clock import LIFE, Life, MachineLoop, ProcessEnd
from p2pfl.sim.chaos.disk import Mount, SimulatedDisk
from p2pfl.sim.chaos.invariants import Invariants, ProcessWatch
from p2pfl.sim.chaos.network import FaultyNetwork, Host
from p2pfl.sim.chaos.plan import ChaosPlan, address
from p2pfl.sim.chaos.process import FOLDER, Process, Surroundings
from p2pfl.sim.chaos.schedule import Fault
from p2pfl.system.event_log import EventLogger

RESTART = 1.0  # seconds after which a process that has failed is started again


class Machine:
    """Machine of one node.

    Args:
        number: number of the node in the plan.
        seed: decides what a power failure leaves on the disk.
        log: receives the events of its node.

    Attributes:
        process: the running process; None while there is none.
        watch: observer of the last process.
        ended: whether the node has ended for good, because its membership was revoked.
        last_error: reason why the last process could not start.
    """

    def __init__(
        self,
        plan: ChaosPlan,
        number: int,
        *,
        loop: MachineLoop,
        network: FaultyNetwork,
        invariants: Invariants,
        seed: int,
        log: EventLogger,
    ) -> None:
        self.name = plan.names[number]
        self.key = plan.keys[number].public
        self.process: Process | None = None
        self.watch: ProcessWatch | None = None
        self.ended = False
        self.last_error = ""
        self.clock_offset = 0.0
        self.disk = SimulatedDisk(Random(f"{seed} {self.name}"))
        self._faults: list[Fault] = []
        self._generations = Random(f"{seed} {self.name} generation")
        self._plan = plan
        self._number = number
        self._loop = loop
        self._network = network
        self._invariants = invariants
        self._log = log
        self._life = Life(self.name)
        self._task: Task[None] | None = None
        self._backups: list[tuple[float, dict[Path, bytes]]] = []

    def note(self, text: str) -> None:
        """Write a line to the trace."""
        self._log.info(text)

    # The folder of the node

    def install(self, membership: Membership) -> None:
        """Make the node a member, as p2pfl-node join does."""
        write_federation(FOLDER, membership.copy(), self._tools())

    def write_membership(self, membership: Membership) -> None:
        """Write new entries of the membership log to the folder, as p2pfl-node revoke does.

        Raises:
            OSError: the disk is full.
        """
        MembershipFile(FOLDER, disk=self._tools()).save(membership.copy())

    def _tools(self) -> Mount:
        """Return the disk for the commands of an administrator."""
        return Mount(self.disk, Life(self.name))

    def back_up(self) -> None:
        """Keep a copy of the folder."""
        self._backups.append((self._loop.time(), self.disk.copy()))

    def restore(self, before: float) -> None:
        """Replace the folder by the last copy that was made before a time, or by the first one."""
        self.kill(silently=False)
        older = [files for at, files in self._backups if at <= before] or [self._backups[0][1]]
        self.disk.restore(older[-1])
        self._invariants.memories[self.name].forget(self._loop.time())

    # Processes

    def start(self) -> None:
        """Start the node, if it does not run."""
        if self._task is None and not self.ended and self.disk.copy():
            self._life = life = Life(self.name)
            context = copy_context()
            context.run(LIFE.set, life)
            host = Host(self.name, address(self._number), self.key, context)
            self._task = self._loop.create_task(self._live(host, life), name=self.name, context=context)

    def kill(self, silently: bool) -> None:
        """End the process at once.

        Args:
            silently: the machine ends, too, so that no other machine learns of it.
        """
        self._life.end = self._loop.time()
        task, process = self._task, self.process
        self._task = self.process = None
        if process is not None:
            process.transport.crash(silently)
        if task is not None:
            self.note("killed")
            task.cancel()
        self._loop.thaw(self.name)

    def lose_power(self) -> None:
        """End the machine: it loses what was not flushed."""
        self.kill(silently=True)
        self.disk.lose_power()

    def lose_power_on_write(self, changes: int, seconds: float) -> None:
        """End the machine during one of the next changes of its disk, and start it again after some seconds."""

        def fail() -> None:
            self.lose_power()
            self._loop.call_later(seconds, self.start)

        self.disk.fails_at = self.disk.operations + changes
        self.disk.on_failure = fail

    # Faults

    def begin(self, fault: Fault) -> None:
        """Begin a fault of the machine."""
        self._faults.append(fault)
        self._note_full()

    def end(self, fault: Fault) -> None:
        """End a fault of the machine."""
        if fault in self._faults:
            self._faults.remove(fault)
        self._note_full()

    def heal(self) -> None:
        """End all faults of the machine."""
        self._faults.clear()
        self.disk.fails_at = 0
        self._note_full()

    def _note_full(self) -> None:
        self.disk.full = any(fault.kind == "disk-full" for fault in self._faults)

    @property
    def slowdown(self) -> float:
        """The factor by which the machine is slower now."""
        return max([1.0, *(fault.amount for fault in self._faults if fault.kind == "slow")])

    def _clock(self) -> float:
        return self._loop.time() + self.clock_offset

    async def _live(self, host: Host, life: Life) -> None:
        """Run a process to its end."""
        mount = Mount(self.disk, life)
        around = Surroundings(
            number=self._number,
            identity=self._plan.keys[self._number],
            host=host,
            network=self._network,
            mount=mount,
            generation=self._generations.getrandbits(31),
            clock=self._clock,
            slowdown=lambda: self.slowdown,
            log=self._log,
        )
        budget = self._plan.configs[self._number].budget
        watch = ProcessWatch(self._invariants, self.name, budget, self.note)
        error: BaseException | None = None
        try:
            process = Process(self._plan, around, watch)
            self.process, self.watch, self.last_error = process, watch, ""
            self._invariants.starts(self.name, process.membership)
            self.note(f"start {process.incarnation}")
            await process.run()
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as failure:
            error = first_error(failure)
        if not (life.over or isinstance(error, ProcessEnd)):
            self._end(error, mount)
            life.end = self._loop.time()

    def _end(self, error: BaseException | None, mount: Mount) -> None:
        """Handle the end of a process that was not killed."""
        self.note(f"ends: {error}")
        if self.process is not None:
            self.process.transport.crash(silently=False)
        self._task = self.process = None
        pause = RESTART
        try:
            match error:
                case IncarnationConflictError():
                    renumber(FOLDER, error.incarnation, self._log, mount, error.round)
                    pause = 0.0
                case RevokedError():
                    self.ended = True
                case ConfigurationError() if self.disk.full:
                    pass
                case _:
                    self._invariants.fail("error", self.name, f"ended: {type(error).__name__}: {error}")
        except ConfigurationError as failure:
            error = failure
        self.last_error = str(error)
        self._loop.call_later(pause, self.start)
