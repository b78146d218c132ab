"""The p2pfl-node command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node.commands import FAILED, Parser, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    return guarded(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog="p2pfl-node", description="Learn with peers, without a server.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    init = commands.add_parser("init", help="make a node's folder with a key and a configuration")
    init.add_argument("folder", type=Path, help="the node's folder, to be made")
    init.add_argument("--name", help="by which the others know the node (default: the folder's name)")
    init.add_argument("--port", type=int, default=4100, help="to listen on, on loopback (default: 4100)")
    init.add_argument(
        "--part", default="0/1", metavar="I/N", help="which part of a built-in data set, such as 0/3 (default: 0/1)"
    )
    init.add_argument("--task", default="digits", help="digits, concept-shift, or package.module:factory (default: digits)")
    init.add_argument("--policy", default="dac", help="dac, random, local, or package.module:factory (default: dac)")
    init.set_defaults(do=_init)

    run = commands.add_parser("run", help="run a node; run again, it goes on where it was")
    run.add_argument("folder", type=Path, help="the node's folder, made by init")
    run.add_argument(
        "--set", dest="changes", metavar="KEY=VALUE", action="append", default=[], help="change a key of node.toml"
    )
    run.add_argument("--json", action="store_true", help="print the final status and nothing else")
    run.set_defaults(do=_run)

    status = commands.add_parser("status", help="show what a node does, its peers, and what it has rejected")
    status.add_argument("folder", type=Path, help="the node's folder, made by init")
    status.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    status.set_defaults(do=_status)

    demo = commands.add_parser("demo", help="run a throw-away federation of processes on this machine")
    demo.add_argument("--nodes", type=int, default=3, help="how many (default: 3)")
    demo.add_argument("--rounds", type=int, default=10, help="how many (default: 10)")
    demo.add_argument("--policy", default="dac", help="dac, random, or package.module:factory (default: dac)")
    demo.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    demo.set_defaults(do=_demo)

    options = parser.parse_args(arguments)
    do: Callable[[argparse.Namespace], int] = options.do
    return do(options)


def _init(options: argparse.Namespace) -> int:
    from node.config import CONFIG, create, entry

    name = options.name or options.folder.resolve().name
    identity = create(options.folder, name, options.port, options.part, options.task, options.policy)
    said = f"made {options.folder}; the other members add the lines below to their {CONFIG}, and theirs come into this one"
    print(said, file=sys.stderr)
    print(entry(name, identity, f"127.0.0.1:{options.port}"))
    return 0


def _run(options: argparse.Namespace) -> int:
    from node import runtime
    from node.config import STATUS

    say: Callable[[str], None] = (lambda line: None) if options.json else (lambda line: print(line, flush=True))
    code = runtime.run(options.folder, options.changes, say)
    if options.json:
        print((options.folder / STATUS).read_text())
    return code


def _status(options: argparse.Namespace) -> int:
    from node import config, status

    config.load(options.folder)
    state = status.read(options.folder / config.STATUS)
    if state is None:
        print("this node has never run", file=sys.stderr)
        return FAILED
    print(json.dumps(state) if options.json else "\n".join(_describe(state)))
    return 0


def _describe(state: dict[str, Any]) -> list[str]:
    lines = [f"{state.get('name', '?')}: {state['state']}, round {state.get('round', 0)} of {state.get('rounds', '?')}"]
    if state.get("reason"):
        lines.append(f"  reason: {state['reason']}")
    for row in state["history"][-1:]:
        for split in ("validation", "test"):
            if row.get(split) is not None:
                lines.append(f"  {split} {state['metric']}: {row[split]:.3f}")
    for peer in state.get("peers", []):
        reason = f" ({peer['reason']})" if peer["reason"] else ""
        lines.append(f"  {peer['name']}: {peer['state']}{reason}, round {peer['round']}")
    for direction, counts in state.get("traffic", {}).items():
        learning = sum(counts[kind] for kind in ("get", "update", "score", "scored"))
        lines.append(f"  {direction}: {counts['models']} models, {learning} bytes, {counts['control']} bytes of control")
    for cause, count in sorted(state.get("rejected", {}).items()):
        lines.append(f"  rejected, {cause}: {count}")
    return lines


def _demo(options: argparse.Namespace) -> int:
    from node.demo import demo

    return demo(options.nodes, options.rounds, options.policy, options.json)
