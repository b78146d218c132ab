"""The p2pfl-node command: its parser, the subcommands of a running node, and the modules of the others."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from p2pfl._util import console
from p2pfl._util.event_log import print_events
from p2pfl._util.printable import printable, to_json
from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.options import add_folder, add_listen, add_policy, default_folder, listen_of
from p2pfl.policies import POLICIES
from p2pfl.task_specs import TASKS
from p2pfl.tracking.tracker import TRACKERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    return console.run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    if getattr(options, "folder", "") is None:
        options.folder = default_folder(options)
    do: Callable[[argparse.Namespace], int] = options.do
    return do(options)


def parser() -> console.Parser:
    """Return the parser of the command line; the documentation is also generated from it."""
    from p2pfl.node.cli import federation, init, membership, node_list

    parser = console.Parser(
        prog="p2pfl-node",
        description="Run a node that learns with its peers, without a server.",
        epilog=console.format_examples("p2pfl-node demo --rounds 3", "p2pfl-node init alice", "p2pfl-node run alice"),
    )
    console.add_version(parser)
    commands = parser.add_subparsers()

    init.add_commands(commands)
    federation.add_commands(commands)
    membership.add_commands(commands)
    _add_run(commands)
    _add_status(commands)
    _add_doctor(commands)
    _add_export(commands)
    _add_predict(commands)
    _add_demo(commands)
    node_list.add_commands(commands)
    console.add_completion(commands, parser, {"POLICY": lambda: POLICIES, "TASK": lambda: TASKS})
    return parser


def _add_run(commands: Any) -> None:
    parser = console.add_command(
        commands,
        "run",
        "run a node until you stop it; it continues from its last checkpoint",
        "p2pfl-node run alice",
        "p2pfl-node run alice --until-done --set mdns=false",
        "p2pfl-node run alice --status-port 4180",
    )
    add_folder(parser)
    configuration = parser.add_argument_group("configuration")
    console.add_changes(configuration, "override a key of node.toml for this run, such as mdns=false")
    add_listen(configuration, "listen in node.toml")
    configuration.add_argument("--data", metavar="FILE", help="the node's own data (default: data in node.toml)")
    configuration.add_argument(
        "--root", metavar="DIR", help="folder with the published data sets (default: root in node.toml)"
    )
    configuration.add_argument(
        "--passphrase-file", metavar="FILE",
        help="file with the passphrase of the admission key in its first line; a node with an encrypted admission key needs"
        " it to answer tokens (default: passphrase_file in node.toml)",
    )  # fmt: skip
    configuration.add_argument(
        "--until-done", action="store_true", help="exit when all rounds are done and no peer needs this node"
    )
    page = parser.add_argument_group("status page")
    page.add_argument(
        "--status-port", type=console.port, metavar="N",
        help="port of the status page; 0 selects a free port (default: status_port in node.toml)",
    )  # fmt: skip
    page.add_argument(
        "--status-host", metavar="HOST",
        help="address of the status page; other machines can read the page if this is not a loopback address (default:"
        " status_host in node.toml)",
    )  # fmt: skip
    parser.add_argument_group("trackers").add_argument(
        "--track", metavar="TRACKER", action="append",
        help=f"give the figures of each round to {', '.join(TRACKERS)}, or your own package.module:factory; can be repeated"
        " (default: tools of [track] in node.toml)",
    )  # fmt: skip
    output = console.add_output(parser, "print the final status as one JSON object, and no log")
    output.add_argument(
        "--log-format", choices=("text", "json"), default="text",
        help="format of the log: lines of text, or one JSON object a line (default: text)",
    )  # fmt: skip
    amount = output.add_mutually_exclusive_group()
    amount.add_argument("-v", "--verbose", action="store_true", help="also log each model, each weight and each link")
    amount.add_argument("-q", "--quiet", action="store_true", help="log warnings and errors only")
    parser.set_defaults(do=_run)


def _add_status(commands: Any) -> None:
    parser = console.add_command(
        commands,
        "status",
        "show the state, the peers and the traffic of a node",
        "p2pfl-node status alice",
        "p2pfl-node status alice --watch",
    )
    add_folder(parser)
    output = console.add_output(parser, f"{console.JSON_HELP}; with --watch, one every second")
    output.add_argument("--watch", action="store_true", help="refresh every second, until you press Ctrl-C")
    parser.set_defaults(do=_status)


def _add_doctor(commands: Any) -> None:
    parser = console.add_command(
        commands,
        "doctor",
        "check a node for problems and print a remedy for each",
        "p2pfl-node doctor alice",
    )
    add_folder(parser)
    console.add_output(parser)
    parser.set_defaults(do=_doctor)


def _add_export(commands: Any) -> None:
    parser = console.add_command(
        commands,
        "export",
        "write a node's best model to a safetensors or ONNX file",
        "p2pfl-node export alice model.safetensors",
        "p2pfl-node export alice model.onnx --force",
        "p2pfl-node export alice model.safetensors --preference 0.3,0.7",
    )
    add_folder(parser)
    parser.add_argument("target", type=Path, metavar="TARGET", help="file to write, such as model.safetensors")
    _add_preference(parser, "the model to export", " (default: all parameters)")
    output = console.add_output(parser)
    output.add_argument(
        "--format",
        choices=("safetensors", "onnx"),
        default="",
        help="file format; onnx needs the extra onnx (default: by the extension of TARGET; without one, safetensors)",
    )
    output.add_argument("--force", action="store_true", help="overwrite TARGET if it exists")
    parser.set_defaults(do=_export)


def _add_preference(parser: argparse.ArgumentParser, what: str, default: str = "") -> None:
    parser.add_argument_group("model").add_argument(
        "--preference",
        metavar="WEIGHTS",
        help=f"weights of the objectives, such as 0.3,0.7, that select {what}; only for tasks with a model for each"
        f" preference, such as praffl{default}",
    )


def _add_predict(commands: Any) -> None:
    parser = console.add_command(
        commands,
        "predict",
        "apply a node's best model to the rows of a CSV file",
        "p2pfl-node predict alice new.csv >predictions.csv",
        "p2pfl-node predict alice new.csv --out predictions.csv --force",
    )
    add_folder(parser)
    parser.add_argument("rows", type=Path, metavar="FILE", help="CSV file with the columns of the node's data")
    _add_preference(parser, "the model to apply")
    output = console.add_output(parser)
    output.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write (default: standard output)")
    output.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    parser.set_defaults(do=_predict)


def _add_demo(commands: Any) -> None:
    parser = console.add_command(
        commands,
        "demo",
        "run a temporary federation on this machine and compare it with learning alone",
        "p2pfl-node demo",
        "p2pfl-node demo --nodes 5 --rounds 3 --policy coordinated-fedavg",
    )
    federation = parser.add_argument_group("federation")
    federation.add_argument("--nodes", type=int, default=3, help="number of nodes, from 2 to 10 (default: 3)")
    federation.add_argument("--rounds", type=int, default=10, help="number of rounds (default: 10)")
    add_policy(federation)
    federation.add_argument(
        "--broker",
        action="store_true",
        help="connect the nodes through a local MQTT broker, Mosquitto or amqtt (default: directly)",
    )
    console.add_output(parser)
    parser.set_defaults(do=_demo)


def _run(options: argparse.Namespace) -> int:
    from p2pfl.node.federation.membership_file import awaited_federation
    from p2pfl.node.folder.config import STATUS, load, open_to_others
    from p2pfl.node.log import LOG
    from p2pfl.node.runtime import run as runtime
    from p2pfl.node.status import reader

    given = {
        "data": options.data,
        "root": options.root,
        "passphrase_file": options.passphrase_file,
        "status_port": options.status_port,
        "status_host": options.status_host,
        "listen": listen_of(options, load(options.folder, options.changes).listen),
    }
    if options.track:
        given["track.tools"] = options.track
    changes = [*options.changes, *(f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None)]
    if warning := open_to_others(options.folder):
        print(f"warning: {warning}", file=sys.stderr)
    if name := awaited_federation(options.folder):
        print(
            f"warning: this node has left the federation {name}, and trains alone; to return, wait for the admission"
            f" file, and run p2pfl-node join {options.folder} FILE",
            file=sys.stderr,
        )
    level = logging.DEBUG if options.verbose else logging.WARNING if options.quiet else logging.INFO
    with nullcontext() if options.json else print_events(LOG, options.log_format, sys.stdout, level):
        code = runtime.run(options.folder, changes, LOG, options.until_done)
    if options.json:
        print(to_json(reader.read(options.folder / STATUS)))
    return code


def _status(options: argparse.Namespace) -> int:
    from p2pfl.node.folder import config
    from p2pfl.node.status import reader
    from p2pfl.node.status import text as status_text

    own = config.load(options.folder)
    waiting = False
    while True:
        state = reader.current(options.folder)
        if state is None and not waiting:
            print(
                f"{options.folder}: this node has never run; run it with p2pfl-node run {options.folder}",
                file=sys.stderr,
                flush=True,
            )
            if not options.watch:
                return console.FAILED
            waiting = True  # logged once
        if state is not None:
            state = {"name": own.name, **state}
            text = to_json(state) if options.json else "\n".join(status_text.describe(state))
            print(_CLEAR + text if options.watch and sys.stdout.isatty() else text, flush=True)
        if not options.watch:
            return 0
        time.sleep(1.0)


_CLEAR = "\033[2J\033[H"


def _doctor(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from p2pfl.installation import report
    from p2pfl.node.doctor import run_checks

    findings = run_checks(options.folder)
    text = "\n".join(map(printable, report(findings)))
    console.print_answer(options, text, {"findings": [asdict(finding) for finding in findings]})
    return console.FAILED if any(finding.ok is False for finding in findings) else 0


def _export(options: argparse.Namespace) -> int:
    from p2pfl.node.cli.export import export

    model = export(options.folder, options.target, options.force, options.format, _preference_of(options))
    answer = {"file": str(options.target), **model._asdict()}
    console.print_answer(options, f"wrote {model.describe()} to {options.target}", answer)
    return 0


def _preference_of(options: argparse.Namespace) -> list[float]:
    try:
        return [float(weight) for weight in options.preference.split(",")] if options.preference is not None else []
    except ValueError as error:
        raise ConfigurationError(f"--preference must be numbers such as 0.3,0.7, got {options.preference!r}") from error


def _predict(options: argparse.Namespace) -> int:
    from p2pfl.node.cli.export import check_target, write_target
    from p2pfl.node.cli.predict import predict

    if options.out is not None:
        check_target(options.out, options.force)
    found = predict(options.folder, options.rows, _preference_of(options))
    for note in found.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    if options.out is not None:
        write_target(options.out, found.csv().encode())
    if options.json or options.out is None:
        answer = {"predictions": found.rows(), "notes": found.notes}
        console.print_answer(options, found.csv().removesuffix("\n"), answer)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from p2pfl.node.cli.demo import demo

    return demo(options.nodes, options.rounds, options.policy, options.json, options.broker)
