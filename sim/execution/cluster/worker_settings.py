"""Settings of the workers of a cluster, and the preparation of their processes."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from p2pfl.data.images.registry import ROOT
from p2pfl.errors import RunError
from p2pfl.sim.execution.inputs import changed_files, files_of
from p2pfl.sim.execution.probe import ProbeResult
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.workers import prepare_process


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of all workers of a program.

    Attributes:
        path: folders to search for modules of the scenario.
        data: folder of the data sets, where the machine does not name its own; "" is none.
        probe: that of the program's own machine, for the device of the run.
        allow_different_bits: run even if this machine's probe differs.
    """

    path: tuple[str, ...]
    data: str
    probe: ProbeResult
    allow_different_bits: bool

    def check(self, found: ProbeResult) -> None:
        """Raise RunError if a machine with this probe must not be used."""
        if found.program != self.probe.program:
            raise RunError(
                f"{found.machine} has version {found.program} of p2pfl-node, and this machine has {self.probe.program};"
                " install the same version on all machines"
            )
        if found.digest != self.probe.digest and not self.allow_different_bits:
            raise RunError(
                f"{found} computes other last bits than {self.probe}, so results would depend on the machine;"
                " leave this machine out, or accept it with --allow-different-bits"
            )

    def check_files(self, job: Scenario, files: Mapping[str, str] | None) -> None:
        """Raise RunError if this machine's files differ from those of the program's own machine.

        Args:
            files: digests of the files that the job reads, by name; None is unknown.
        """
        if files is None:
            return
        there = files_of(job, self.path)
        if changes := ", ".join(changed_files(files, there)):
            raise RunError(
                f"{platform.node()} has other inputs than {self.probe.machine}: {changes}; copy the files to all machines"
            )


def prepare_worker(settings: WorkerSettings) -> None:
    """Prepare this process once; Ray uses it for several runs."""
    _prepare(settings.path, settings.data)


@cache
def _prepare(path: tuple[str, ...], data: str) -> None:
    if data:
        os.environ.setdefault(ROOT, data)
    prepare_process(path)
