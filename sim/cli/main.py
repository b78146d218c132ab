"""The p2pfl-sim command: its parser, and the modules of its subcommands, which are imported when they run."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from p2pfl._util import console
from p2pfl._util.printable import printable
from p2pfl.errors import needs_extra
from p2pfl.sim.cli import chaos, data, new, reproduce, scenario_list
from p2pfl.sim.cli.options import add_choice, add_output_folder, add_results, add_run_options, before_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    return console.run_command(partial(_main, arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    do: Callable[[argparse.Namespace], int] = options.do
    with _data_in(getattr(options, "root", None)), needs_extra("p2pfl-sim", "sim"):
        return do(options)


@contextmanager
def _data_in(root: str | None) -> Iterator[None]:
    """Let tasks read data sets from a folder, also in worker processes; None leaves it to the variable P2PFL_DATA."""
    if not root:
        yield
        return
    from p2pfl.data.image_sets import ROOT, data_root

    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(data_root(root, "--root").resolve())
    try:
        yield
    finally:
        os.environ.pop(ROOT)
        if before is not None:
            os.environ[ROOT] = before


def parser() -> console.Parser:
    """Return the parser of the command line; docs/ is also made from it."""
    parser = console.Parser(
        prog="p2pfl-sim",
        description="Simulate many p2pfl nodes in one process, on a virtual clock.",
        epilog=console.format_examples(
            "p2pfl-sim list",
            "p2pfl-sim run digits-gossip --set form=smoke --out runs/gossip",
            "p2pfl-sim report runs/gossip --open",
        ),
    )
    console.add_version(parser)
    commands = parser.add_subparsers(dest="command")
    scenario_list.add_commands(commands)
    new.add_commands(commands, _main)
    _add_run(commands)
    _add_sweep(commands)
    _add_pareto(commands)
    _add_audit(commands)
    chaos.add_commands(commands)
    _add_report(commands)
    _add_plot(commands)
    _add_topology(commands)
    data.add_commands(commands)
    _add_doctor(commands)
    reproduce.add_commands(commands, _main)
    console.add_completion(commands, parser, {"SCENARIO": _names})
    return parser


def _names() -> list[str]:
    from p2pfl.sim.scenario.scenario import shipped_scenarios

    return list(shipped_scenarios())


def _add_run(commands: Any) -> None:
    running = console.add_command(
        commands,
        "run",
        "run a scenario, print its table, and write a report",
        "p2pfl-sim run digits-gossip --set form=smoke",
        "p2pfl-sim run study.toml --seeds 0:5 --set policy.neighbours=2 --out runs/study",
        "p2pfl-sim run --resume runs/study",
    )
    add_run_options(running)
    recording = running.add_argument_group("measured figures")
    recording.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write the figures of each finished row of a shipped scenario to this file at once, for p2pfl-sim reproduce",
    )
    recording.add_argument(
        "--skip-recorded",
        action="store_true",
        help="leave out rows whose figures that file holds, with the same seeds; needs --record",
    )
    running.set_defaults(do=partial(_compute, "run:prepare_run"))


def _add_sweep(commands: Any) -> None:
    sweeping = console.add_command(
        commands,
        "sweep",
        "run a scenario with every combination of the values of some keys",
        "p2pfl-sim sweep study.toml --vary policy.tau=1,10,100 --vary budget.models=2,4 --dry-run",
        "p2pfl-sim sweep digits-gossip --set form=smoke --vary policy.name=local,random,dac",
    )
    sweep = sweeping.add_argument_group("sweep")
    sweep.add_argument(
        "--vary",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="values of a key, separated by commas, such as policy.tau=1,10,100; a pair such as [2,10] is one value; runs"
        " that do not take the key run once; can be repeated",
    )
    sweep.add_argument(
        "--dry-run",
        action="store_true",
        help="print the rows, and an estimate of time and memory from a few rounds, and run nothing else",
    )
    add_run_options(sweeping)
    sweeping.set_defaults(do=partial(_compute, "run:prepare_sweep"))


def _add_pareto(commands: Any) -> None:
    searching = console.add_command(
        commands,
        "pareto",
        "search for the Pareto front of a scenario with several objectives and a table [search]",
        "p2pfl-sim pareto mofld-dst --set form=smoke",
        "p2pfl-sim pareto mofld-dst --set form=short --seeds 5 --workers 2",
    )
    execution = add_choice(searching)
    execution.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="number of processes, each with one candidate at a time; 1 is this process (default: one for each core)",
    )
    add_results(searching)
    searching.set_defaults(do=partial(_compute, "pareto:prepare_pareto"))


def _add_audit(commands: Any) -> None:
    auditing = console.add_command(
        commands,
        "audit",
        "attack what nodes release, by membership, canaries and inversion, and test privacy budgets",
        "p2pfl-sim audit digits-gossip --set form=smoke --shadows 4",
        "p2pfl-sim audit budgets.toml --out runs/audit",
    )
    execution = add_choice(auditing)
    execution.add_argument(
        "--shadows",
        type=int,
        metavar="N",
        help="runs for the attack on membership; 0 leaves it out (default: 16)",
    )
    execution.add_argument(
        "--no-canaries",
        action="store_true",
        help="leave out the attack on the promised epsilon, and the tests of the mechanism",
    )
    add_output_folder(auditing, "print the contents of audit.json and nothing else")
    auditing.set_defaults(do=partial(_compute, "audit:prepare_audit"))


def _add_report(commands: Any) -> None:
    reporting = console.add_command(
        commands,
        "report",
        "write the report of a finished run again, or one report that compares several runs",
        "p2pfl-sim report runs/study --open",
        "p2pfl-sim report runs/study runs/other --out comparison.html",
    )
    reporting.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder of a finished run")
    page = reporting.add_argument_group("report")
    page.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write (default: report.html, in DIR, or for several folders in the current folder)",
    )
    page.add_argument(
        "--seed", type=int, metavar="N", help="seed to use in figures that show a single seed (default: the first)"
    )
    page.add_argument("--open", action="store_true", help="open the report in a browser")
    console.add_output(reporting)
    reporting.set_defaults(do=_report)


def _add_plot(commands: Any) -> None:
    plotting = console.add_command(
        commands,
        "plot",
        "draw a figure of a finished run into a file, for a paper",
        "p2pfl-sim plot runs/study",
        "p2pfl-sim plot runs/study --figure cost --only dac --out cost.pdf",
    )
    plotting.add_argument("folder", type=Path, metavar="DIR", help="folder of a finished run")
    figure = plotting.add_argument_group("figure")
    figure.add_argument("--figure", metavar="NAME", default="", help="name of the figure (default: list the names)")
    figure.add_argument("--out", type=Path, metavar="FILE", help="file to write: .pdf, .svg or .png (default: NAME.pdf)")
    figure.add_argument(
        "--only",
        metavar="TEXT",
        action="append",
        default=[],
        help="only runs whose name contains TEXT, or is NAME with =NAME; can be repeated (default: all runs)",
    )
    figure.add_argument(
        "--view", metavar="LABEL", default="", help='horizontal axis, such as "bytes sent" (default: the first)'
    )
    console.add_output(plotting)
    plotting.set_defaults(do=_plot)


def _plot(options: argparse.Namespace) -> int:
    from p2pfl.sim.report.drawing import figures, plot

    if not options.figure:
        found = figures(options.folder)
        console.print_answer(options, "\n".join(f"{name}: {title}" for name, title in found.items()), {"figures": found})
        return 0
    out = options.out or Path(f"{options.figure}.pdf")
    plot(options.folder, options.figure, out, options.only, options.view)
    console.print_answer(options, f"figure: {out}", {"figure": str(out)})
    return 0


def _add_topology(commands: Any) -> None:
    graph = console.add_command(
        commands,
        "topology",
        "print the properties of a topology, built in or from a file, and how fast nodes agree on it",
        "p2pfl-sim topology small-world --nodes 100 --set degree=6",
        "p2pfl-sim topology base-k --nodes 100 --set degree=2 --error 0.01",
        "p2pfl-sim topology network.graphml",
    )
    graph.add_argument(
        "topology", metavar="TOPOLOGY", help="name of a topology or of a shipped graph, or a file with a graph"
    )
    options = graph.add_argument_group("topology")
    options.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: 10, or the nodes of the file)")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="seed of a random topology (default: 0)")
    console.add_changes(options, "option of the topology, such as degree=4")
    speed = graph.add_argument_group("agreement of the nodes")
    speed.add_argument(
        "--error", type=float, metavar="E",
        help="count the rounds and bytes until the nodes' averages differ by this share of their first difference"
        " (default: 0.001 for a topology with a graph for each round, none for others)",
    )  # fmt: skip
    speed.add_argument("--model-bytes", type=int, default=1_000_000, metavar="N", help="bytes of a model (default: 1000000)")
    drawing = graph.add_argument_group("drawing")
    drawing.add_argument(
        "--svg", type=Path, metavar="FILE",
        help="draw the graph, or that of each round, and how fast nodes agree on it, into this file (needs matplotlib)",
    )  # fmt: skip
    console.add_output(graph)
    graph.set_defaults(do=_topology)


def _add_doctor(commands: Any) -> None:
    checking = console.add_command(
        commands,
        "doctor",
        "check the installation and a scenario for what would stop a run, and print a remedy for each problem",
        "p2pfl-sim doctor my_study/scenario.toml",
    )
    checking.add_argument(
        "scenario",
        nargs="?",
        metavar="SCENARIO",
        help="name of a shipped scenario, or a TOML file (default: scenario.toml of the current folder, if it is there)",
    )
    console.add_output(checking)
    checking.set_defaults(do=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from p2pfl.installation import report
    from p2pfl.sim.doctor import run_checks

    findings = run_checks(options.scenario, Path.cwd())
    text = "\n".join(map(printable, report(findings)))
    console.print_answer(options, text, {"findings": [asdict(finding) for finding in findings]})
    return console.FAILED if any(finding.ok is False for finding in findings) else 0


def _topology(options: argparse.Namespace) -> int:
    from p2pfl.sim.cli.topology import show

    show(options)
    return 0


def _compute(prepare: str, options: argparse.Namespace) -> int:
    """Do the runs that a function prepares; it is named, because the import of its module already takes seconds."""
    with before_runs(options):
        compute: Callable[[], int] = resolve_name(f"p2pfl.sim.cli.{prepare}")(options)
    return compute()


def _report(options: argparse.Namespace) -> int:
    from p2pfl.sim.report.findings import compare
    from p2pfl.sim.report.write import write_report

    page = write_report(options.folders, options.out, options.seed)
    found = compare(options.folders)
    answer = {"report": str(page), "folders": list(map(str, options.folders)), "comparison": found}
    console.print_answer(options, "\n".join([*found, f"report: {page}"]), answer)
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print(f"no browser found; open {page} in a browser", file=sys.stderr)
    return 0
