"""The command `p2pfl-sim audit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from p2pfl._util.console import FAILED
from p2pfl._util.printable import to_json
from p2pfl.errors import ConfigurationError, require
from p2pfl.sim.audit.audit import SHADOWS, Attacks, Audited, Audits, attacks_of, audit_job, runs_of, summarise, write
from p2pfl.sim.audit.page import columns, contradictions, meaning
from p2pfl.sim.cli.console import print_whole
from p2pfl.sim.cli.options import folder_of, interrupt_on_sigterm, scenario_of, words_of_end
from p2pfl.sim.execution.inputs import RunInputs
from p2pfl.sim.execution.resume import explain_resume
from p2pfl.sim.execution.runner import check_all
from p2pfl.sim.monitor.monitor import progress_bar
from p2pfl.sim.scenario.scenario import ScenarioFile, jobs_of
from p2pfl.sim.simulation.workers import prepare_process


def prepare_audit(options: argparse.Namespace) -> Callable[[], int]:
    """Read and check a scenario; return the function that audits its unfinished rows, and returns the exit code."""
    file = scenario_of(options)
    if options.resume is None:
        attacks = Attacks(SHADOWS if options.shadows is None else options.shadows, not options.no_canaries)
        attacks.check()
        if options.seeds is None:
            file = replace(file, seeds=file.seeds[:1])
    elif options.shadows is not None or options.no_canaries:
        raise ConfigurationError("--resume continues an audit with its own attacks; leave out --shadows and --no-canaries")
    else:
        attacks = attacks_of(options.resume)
    interrupt_on_sigterm()
    require("scipy", "p2pfl-sim")  # before the runs, not after them
    out = folder_of(options, f"{file.name}-audit")
    prepare_process(file.path)
    inputs = RunInputs(file, out)
    check_all(file, 1, not options.ignore_memory)
    inputs.settle()
    return partial(_carry_out, options, file, out, inputs, attacks)


def _carry_out(options: argparse.Namespace, file: ScenarioFile, out: Path, inputs: RunInputs, attacks: Attacks) -> int:
    """Audit all unfinished rows, and print the results."""
    audits = Audits(out, file, attacks, inputs, different_bits=options.allow_different_bits)
    jobs = jobs_of(file)
    with explain_resume(audits, len(jobs), "audit", "rows"):
        found, recomputed = audits.load()
        total = runs_of(attacks) * sum(job.nodes * job.rounds for job in jobs)
        with progress_bar(total, options.json or options.quiet, _line) as (advance, show):
            for number, job in enumerate(jobs):
                if number in found:
                    advance(runs_of(attacks) * job.nodes * job.rounds)
                    continue
                found[number] = audit_job(job, file.graph, attacks, advance)
                audits.save(number, found[number])
                show(found[number])
        results = [found[number] for number in range(len(jobs))]
        summary = summarise(file, results, attacks, [*file.notes, *inputs.notes, *recomputed])
        page = write(out, summary, results)
        audits.remove()
    faults = contradictions(summary)
    code = FAILED if faults else 0
    if options.json:
        print(to_json(summary, indent=1))
        return code
    _print(file, columns(summary), meaning(summary))
    for fault in faults:
        print(f"contradicted: {fault}")
    for note in summary["notes"]:
        print(f"note: {note}")
    print(words_of_end(out, page))
    return code


def _line(audited: Audited) -> str:
    return f"audited: {audited.entry['name']}, seed {audited.entry['seed']}"


def _print(file: ScenarioFile, cells: dict[str, list[str]], said: Sequence[str]) -> None:
    from rich.table import Table

    table = Table()
    for head in cells:
        table.add_column(head, justify="left" if head == "run" else "right", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    print(f"{file.name}: attacks on what the nodes release")
    print_whole(table)
    for sentence in said:
        print(sentence)
