"""p2pfl-node list: the nodes below a folder, and their states."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2pfl._util.console import add_command, add_output, print_answer
from p2pfl._util.printable import printable
from p2pfl.errors import ConfigurationError

DEEPEST = 3  # levels of folders below the given one
HEADS = ("node", "state", "round", "federation", "address", "folder")
NEVER_RAN, INVALID = "new", "invalid"  # states of folders whose node has no status


def add_commands(commands: Any) -> None:
    """Add `list` to the commands of p2pfl-node."""
    listing = add_command(
        commands,
        "list",
        "list the nodes below a folder, with their states",
        "p2pfl-node list",
        "p2pfl-node list /var/lib/p2pfl --json",
    )
    listing.add_argument(
        "parent", nargs="?", type=Path, default=Path(), metavar="DIR", help="folder to search (default: the current folder)"
    )
    add_output(listing)
    listing.set_defaults(do=_list)


def _list(options: argparse.Namespace) -> int:
    if not options.parent.is_dir():
        raise ConfigurationError(f"{options.parent} is not a folder")
    nodes = [state_of(folder) for folder in folders_of_nodes(options.parent)]
    text = "\n".join(lines(nodes)) if nodes else f"no nodes below {options.parent}; create one with p2pfl-node init FOLDER"
    print_answer(options, text, {"nodes": nodes})
    return 0


def folders_of_nodes(parent: Path, levels: int = DEEPEST) -> Iterator[Path]:
    """Yield the folders of nodes in a folder and below it, sorted. Hidden folders and links are left out."""
    from p2pfl.node.folder.config import CONFIG

    if (parent / CONFIG).is_file():
        yield parent
        return
    if not levels:
        return
    try:
        inner = sorted(path for path in parent.iterdir() if not path.name.startswith("."))
    except OSError:  # a folder of another user
        return
    for path in inner:
        if path.is_dir() and not path.is_symlink():
            yield from folders_of_nodes(path, levels - 1)


def state_of(folder: Path) -> dict[str, Any]:
    """Return the facts about a node that the list shows; a damaged folder has the state "invalid" and a `problem`."""
    from p2pfl.node.federation.membership_file import load_federation
    from p2pfl.node.folder import config
    from p2pfl.node.status import reader

    state: dict[str, Any] = {"folder": str(folder), "node": folder.resolve().name, "state": INVALID}
    try:
        own, membership, status = config.load(folder), load_federation(folder), reader.current(folder)
    except ConfigurationError as error:
        return {**state, "problem": str(error)}
    status = status or {"state": NEVER_RAN}
    agreed = {} if membership is None else membership.file.tables
    network = status.get("network", {}) if status["state"] in reader.RUNNING else {}
    waiting = status.get("waiting")
    return (state | {"waiting": waiting} if waiting else state) | {
        "node": own.name,
        "state": status["state"],
        "round": status.get("round", 0),
        "rounds": status.get("rounds", agreed.get("rounds", own.rounds)),
        "federation": agreed.get("name"),
        "listen": network.get("listen", own.listen if own.direct else ""),
        "broker": _broker(network.get("broker", own.broker)),
    }


def _broker(url: str) -> str:
    """Return the URL of a broker without its account and its fingerprint; "" if it is malformed."""
    from p2pfl.protocols.addresses import BrokerAddress
    from p2pfl.protocols.errors import AddressError

    try:
        return BrokerAddress.parse(url).short_url if url else ""
    except AddressError:  # doctor reports it
        return ""


def lines(nodes: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of nodes."""
    from p2pfl.node.status.observer import describe_progress
    from p2pfl.node.status.text import columns, describe_state

    rows = [HEADS]
    for node in nodes:
        rounds = describe_progress(node["round"], node["rounds"]) if "round" in node else "-"
        reached = [node.get("listen"), node.get("broker")]
        address = ", ".join(each for each in reached if each) or "-"
        rows.append((node["node"], describe_state(node), rounds, node.get("federation") or "-", address, node["folder"]))
    problems = [f"{node['folder']}: {node['problem']}" for node in nodes if "problem" in node]
    return [printable(line) for line in (*columns(rows), *problems)]
