"""The p2pfl-node command."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from p2pfl._version import __version__
from p2pfl.errors import ConfigurationError
from p2pfl.policies import POLICIES
from p2pfl.system.console import FAILED, Parser, run_command
from p2pfl.system.event_log import print_events
from p2pfl.system.printable import printable
from p2pfl.task import TASKS

COORDINATED = (
    "Coordinated policies, such as fedpref, elect a coordinator: with n members, more than n/2 must be online. So 2 members"
    " tolerate none offline, 3 or 4 tolerate one, 5 tolerate two. Without a majority each node learns alone."
)
POLICY_HELP = (
    f"policy that chooses peers and averages models: {', '.join(POLICIES)}, or package.module:factory (default: dac)."
    f" {COORDINATED}"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    do: Callable[[argparse.Namespace], int] = options.do
    return do(options)


def parser() -> Parser:
    """Return the parser of the command line; the documentation is also generated from it."""
    from p2pfl.node.cli import membership as cli_members

    parser = Parser(prog="p2pfl-node", description="Learn with peers, without a server.")
    parser.add_argument("--version", action="version", version=f"p2pfl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    _add_init(commands)
    cli_members.add(commands, _folder)
    _add_run(commands)
    _add_status(commands)
    _add_doctor(commands)
    _add_export(commands)
    _add_demo(commands)
    return parser


def _add_init(commands: Any) -> None:
    parser = commands.add_parser("init", help="make a node's folder with a key and a configuration")
    _folder(parser, "the node's folder, to be made")
    parser.add_argument("--name", help="by which the others know the node (default: the folder's name)")
    parser.add_argument("--port", type=int, default=4100, help="to listen on, on all addresses (default: 4100)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="to listen on one address only")
    parser.add_argument(
        "--part", default="0/1", metavar="I/N", help="which part of a built-in data set, such as 0/3 (default: 0/1)"
    )
    parser.add_argument(
        "--data",
        default="",
        metavar="FILE",
        help="the node's own data: npz or csv for --task classification, a table's schema file, .toml, for --task fairness",
    )
    parser.add_argument(
        "--root", default="", metavar="DIR", help="the folder of data sets (default: the variable P2PFL_DATA)"
    )
    parser.add_argument(
        "--broker", default="", metavar="URL", help="an MQTT broker that all members reach, mqtt://host:1883"
    )
    parser.add_argument(
        "--task",
        help=f"what is learned: {', '.join(TASKS)}, or package.module:factory (default: digits)",
    )
    parser.add_argument("--policy", default="dac", help=POLICY_HELP)
    parser.set_defaults(do=_init)


def _add_run(commands: Any) -> None:
    parser = commands.add_parser("run", help="run a node until you stop it; it continues with its last checkpoint")
    _folder(parser)
    parser.add_argument(
        "--set", dest="changes", metavar="KEY=VALUE", action="append", default=[], help="change a key of node.toml"
    )
    parser.add_argument("--data", metavar="FILE", help="the node's own data, instead of the file that node.toml names")
    parser.add_argument("--root", metavar="DIR", help="the folder of data sets, instead of the one that node.toml names")
    parser.add_argument(
        "--passphrase-file", metavar="FILE",
        help="the passphrase of the admission key, if that is here and encrypted: tokens are answered only with it",
    )  # fmt: skip
    parser.add_argument("--until-done", action="store_true", help="end when all rounds are done and no peer needs this node")
    parser.add_argument(
        "--status-port", type=int, metavar="N", help="show what the node does at http://127.0.0.1:N; 0 takes a free port"
    )
    parser.add_argument("--status-host", metavar="HOST", help="show it there, to others too if that is not on loopback")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="json: one object a line")
    parser.add_argument("--json", action="store_true", help="print the final status and nothing else")
    parser.set_defaults(do=_run)


def _add_status(commands: Any) -> None:
    parser = commands.add_parser("status", help="show what a node does, its peers, and what it has rejected")
    _folder(parser)
    parser.add_argument("--watch", action="store_true", help="show it again every second, until interrupted")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else, every second if watched"
    )
    parser.set_defaults(do=_status)


def _add_doctor(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="look for problems of a node, and print a remedy for each")
    _folder(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.set_defaults(do=_doctor)


def _add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="write a node's best model, as a safetensors or ONNX file")
    _folder(parser)
    parser.add_argument("target", type=Path, help="the file to be written, such as model.safetensors")
    parser.add_argument(
        "--format",
        choices=("safetensors", "onnx"),
        default="",
        help="default: what the file's name ends with, or else safetensors; onnx needs the extra of that name",
    )
    parser.add_argument(
        "--preference",
        metavar="WEIGHTS",
        help="of a task that has a model for each preference, such as praffl: whose model, such as 0.3,0.7",
    )
    parser.add_argument("--force", action="store_true", help="overwrite it")
    parser.set_defaults(do=_export)


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser("demo", help="run a throw-away federation of processes on this machine")
    parser.add_argument("--nodes", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--rounds", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--policy", default="dac", help=POLICY_HELP)
    parser.add_argument("--broker", action="store_true", help="let them meet at an MQTT broker, Mosquitto or else amqtt")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.set_defaults(do=_demo)


def _folder(parser: argparse.ArgumentParser, help: str = "the node's folder, made by init") -> None:
    parser.add_argument("folder", type=Path, help=help)


def _from_anywhere(path: str) -> str:
    """Return an existing path as an absolute one, for a node that starts in another folder; keep other words."""
    return str(Path(path).resolve()) if path and Path(path).exists() else path


def _init(options: argparse.Namespace) -> int:
    from p2pfl.node.folder.config import create

    name = options.name or options.folder.resolve().name
    task = options.task or ("classification" if options.data else "digits")
    if not 0 <= options.port < 65536:
        raise ConfigurationError(f"--port must be from 0 to 65535, got {options.port}")
    listen = options.listen or f":{options.port}"
    data, root = (_from_anywhere(path) for path in (options.data, options.root))
    create(
        options.folder,
        name,
        listen,
        options.part,
        task=task,
        policy=options.policy,
        data=data,
        broker=options.broker,
        root=root,
    )
    print(f"made {options.folder}; next: p2pfl-node federation create, or p2pfl-node join with an invitation")
    return 0


def _run(options: argparse.Namespace) -> int:
    from p2pfl.node.folder.config import STATUS, open_to_others
    from p2pfl.node.log import LOG
    from p2pfl.node.runtime import run as runtime

    given = {
        "data": options.data,
        "root": options.root,
        "passphrase_file": options.passphrase_file,
        "status_port": options.status_port,
        "status_host": options.status_host,
    }
    changes = [*options.changes, *(f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None)]
    if warning := open_to_others(options.folder):
        print(f"warning: {warning}", file=sys.stderr)
    with nullcontext() if options.json else print_events(LOG, options.log_format, sys.stdout):
        code = runtime.run(options.folder, changes, LOG, options.until_done)
    if options.json:
        print((options.folder / STATUS).read_text())
    return code


def _status(options: argparse.Namespace) -> int:
    from p2pfl.node.folder import config
    from p2pfl.node.status import reader
    from p2pfl.node.status import text as status_text

    config.load(options.folder)
    waiting = False
    while True:
        state = reader.current(options.folder)
        if state is None and not waiting:
            print("this node has never run", file=sys.stderr, flush=True)
            if not options.watch:
                return FAILED
            waiting = True  # logged once
        if state is not None:
            text = json.dumps(state) if options.json else "\n".join(status_text.describe(state))
            print(_CLEAR + text if options.watch and sys.stdout.isatty() else text, flush=True)
        if not options.watch:
            return 0
        time.sleep(1.0)


_CLEAR = "\033[2J\033[H"


def _doctor(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from p2pfl.node.doctor.checks import report
    from p2pfl.node.doctor.run import run_checks

    findings = run_checks(options.folder)
    if options.json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        print("\n".join(map(printable, report(findings))))
    return FAILED if any(finding.ok is False for finding in findings) else 0


def _export(options: argparse.Namespace) -> int:
    from p2pfl.node.cli.export import export

    try:
        preference = [float(weight) for weight in options.preference.split(",")] if options.preference is not None else []
    except ValueError as error:
        raise ConfigurationError(f"--preference must be weights such as 0.3,0.7, got {options.preference!r}") from error
    round = export(options.folder, options.target, options.force, options.format, preference)
    print(f"wrote the model of round {round} to {options.target}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from p2pfl.node.cli.demo import demo

    return demo(options.nodes, options.rounds, options.policy, options.json, options.broker)
