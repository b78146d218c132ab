"""The p2pfl-sim command."""

from __future__ import annotations

import argparse
import json
import os
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl._version import __version__
from p2pfl.sim.cli import data, reproduce
from p2pfl.sim.cli.options import add_choice, add_results, add_run_options
from p2pfl.system.console import Parser, run_command

if TYPE_CHECKING:
    from p2pfl.sim.scenario.scenario import Scenario


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    do: Callable[[argparse.Namespace], int] = options.do
    with _data_in(getattr(options, "root", None)):
        return do(options)


@contextmanager
def _data_in(root: str | None) -> Iterator[None]:
    """Let tasks read data sets from a folder, also in worker processes; None leaves it to the variable P2PFL_DATA."""
    if not root:
        yield
        return
    from p2pfl.data.images.registry import ROOT, data_root

    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(data_root(root, "--root").resolve())
    try:
        yield
    finally:
        os.environ.pop(ROOT)
        if before is not None:
            os.environ[ROOT] = before


def parser() -> Parser:
    """Return the parser of the command line; docs/ is also made from it."""
    parser = Parser(prog="p2pfl-sim", description="Simulate many p2pfl nodes in one process, on a virtual clock.")
    parser.add_argument("--version", action="version", version=f"p2pfl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_list(commands)
    _add_run(commands)
    _add_sweep(commands)
    _add_pareto(commands)
    _add_report(commands)
    _add_topology(commands)
    data.add_commands(commands)
    reproduce.add_commands(commands, _main)
    return parser


def _add_list(commands: argparse._SubParsersAction[Any]) -> None:
    listing = commands.add_parser("list", help="list the scenarios that come with p2pfl-sim")
    listing.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    listing.set_defaults(do=_list)


def _add_run(commands: argparse._SubParsersAction[Any]) -> None:
    running = commands.add_parser("run", help="run a scenario and print its table")
    running.add_argument("scenario", nargs="?", help="the name of a shipped scenario, or a TOML file")
    add_run_options(running)
    running.set_defaults(do=_run)


def _add_sweep(commands: argparse._SubParsersAction[Any]) -> None:
    sweeping = commands.add_parser(
        "sweep",
        help="run a scenario with every combination of the values of some keys",
        description="Every run of the scenario is run with every combination of the values that --vary lists. A key that a"
        " run does not take, such as policy.tau for the policy local, is left out for that run, which is then run once.",
    )
    sweeping.add_argument("scenario", nargs="?", help="the name of a shipped scenario, or a TOML file")
    sweeping.add_argument(
        "--vary",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="the values of a key, such as policy.tau=1,10,100; a pair such as [2,10] is one value",
    )
    add_run_options(sweeping)
    sweeping.add_argument("--dry-run", action="store_true", help="print what it would take, and stop")
    sweeping.set_defaults(do=_sweep)


def _add_pareto(commands: argparse._SubParsersAction[Any]) -> None:
    searching = commands.add_parser(
        "pareto",
        help="search for the front of a task with several objectives: one training for each of many preferences",
        description="Pareto simulated annealing proposes preferences, with each of which all nodes are trained; models"
        " that no other is better than are kept (MOFL/D). For scenarios with a table [search].",
    )
    searching.add_argument("scenario", nargs="?", help="the name of a shipped scenario, or a TOML file")
    add_choice(searching)
    searching.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="how many processes train a candidate each (default: one for each core); with 1 it is this process",
    )
    add_results(searching)
    searching.set_defaults(do=_pareto)


def _add_report(commands: argparse._SubParsersAction[Any]) -> None:
    reporting = commands.add_parser(
        "report", help="write a page with the figures of a finished run, or compare several runs"
    )
    reporting.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="the folder of a finished run")
    reporting.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write (default: report.html in DIR, or for several folders in the current one)",
    )
    reporting.add_argument(
        "--seed", type=int, metavar="N", help="which seed the pictures show that can show only one (default: the first)"
    )
    reporting.add_argument("--open", action="store_true", help="open the page in the browser")
    reporting.set_defaults(do=_report)


def _add_topology(commands: argparse._SubParsersAction[Any]) -> None:
    graph = commands.add_parser("topology", help="print what a named topology, or one from a file, is like")
    graph.add_argument("topology", help="the name of a topology, or a file (GraphML, or a list of edges)")
    graph.add_argument("--nodes", type=int, metavar="N", help="how many (default: 10; a file has its own)")
    graph.add_argument("--seed", type=int, default=0, metavar="N", help="for a random topology (default: 0)")
    graph.add_argument(
        "--set", dest="changes", metavar="KEY=VALUE", action="append", default=[], help="an option of it, such as degree=4"
    )
    graph.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    graph.set_defaults(do=_topology)


def _list(options: argparse.Namespace) -> int:
    from p2pfl.sim.scenario.scenario import load, shipped_scenarios

    files = [load(name) for name in shipped_scenarios()]
    if options.json:
        print(json.dumps({file.name: {"description": file.description, "runs": len(file.runs)} for file in files}))
        return 0
    for file in files:
        first = file.runs[0]
        print(f"{file.name}: {len(file.runs)} runs of {first.nodes} nodes, {first.rounds} rounds{_describe_search(first)}")
        print(f"    {' '.join(file.description.split())}")
    return 0


def _describe_search(run: Scenario) -> str:
    """Return a note for a run that is meant for the command `pareto`; "" for other runs."""
    return "" if run.search is None else f" for each of {run.search.iterations * run.search.samples} candidates (pareto)"


def _topology(options: argparse.Namespace) -> int:
    from p2pfl.sim.scenario.topology import show

    show(options.topology, options.nodes, options.seed, options.changes, options.json)
    return 0


def _run(options: argparse.Namespace) -> int:
    from p2pfl.sim.cli.run import run_command

    return run_command(options)


def _sweep(options: argparse.Namespace) -> int:
    from p2pfl.sim.cli.run import sweep_command

    return sweep_command(options)


def _pareto(options: argparse.Namespace) -> int:
    from p2pfl.sim.cli.pareto import pareto_command

    return pareto_command(options)


def _report(options: argparse.Namespace) -> int:
    from p2pfl.sim.report.write import write_report

    page = write_report(options.folders, options.out, options.seed)
    print(f"written to {page}")
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print("no browser was found; open the file by hand", file=sys.stderr)
    return 0
