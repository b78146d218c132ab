"""The commands about who is a member: federation, invite, join, request, admit, revoke."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p2pfl.errors import ConfigurationError

ROLES = ("participant", "observer", "coordinator-eligible")
ROLE_HELP = (
    "of the new member (default: participant). Nobody learns from an observer, and it elects nobody. Once some members are"
    " coordinator-eligible, only these may be elected as the coordinator"
)
Folder = Callable[[argparse.ArgumentParser], None]


def add(commands: Any, folder: Folder) -> None:
    """Add the commands to a parser."""
    federation = commands.add_parser("federation", help="make a federation, or look at it")
    federations = federation.add_subparsers(dest="federation", required=True, metavar="COMMAND")

    create = federations.add_parser("create", help="make a federation that does what this node's node.toml says")
    folder(create)
    create.add_argument("--name", default="home", help="of the federation (default: home)")
    create.add_argument(
        "--backup", type=Path, required=True, metavar="FILE", help="where to keep a copy of the admission key: not here"
    )
    create.add_argument(
        "--edge", dest="edges", action="append", default=[], metavar="A-B",
        help="a pair that may exchange models; by default everyone with everyone",
    )  # fmt: skip
    create.add_argument(
        "--edges", dest="edge_list", type=Path, metavar="FILE", help="a file with such pairs, two names on each line"
    )
    create.add_argument(
        "--set", dest="changes", metavar="KEY=VALUE", action="append", default=[],
        help="agree on another value than node.toml has, such as members=3",
    )  # fmt: skip
    create.set_defaults(do=_create)

    show = federations.add_parser("show", help="show what was agreed on, and who the members are")
    folder(show)
    show.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    show.set_defaults(do=_show)

    rotate = federations.add_parser("rotate", help="hand over to a new admission key")
    folder(rotate)
    rotate.add_argument("--backup", type=Path, required=True, metavar="FILE", help="where to keep a copy of the new key")
    rotate.set_defaults(do=_rotate)

    invite = commands.add_parser("invite", help="print a token with which one node may join; this node must be running then")
    folder(invite)
    invite.add_argument("--role", choices=ROLES, default="participant", help=ROLE_HELP)
    invite.add_argument("--minutes", type=float, default=15.0, help="for which the token is good (default: 15)")
    invite.add_argument(
        "--address", dest="addresses", action="append", default=[], metavar="HOST:PORT",
        help="where this node is reached; by default what node.toml and this machine say",
    )  # fmt: skip
    invite.set_defaults(do=_invite)

    join = commands.add_parser("join", help="become a member, with a token or what admit has written")
    folder(join)
    join.add_argument(
        "token", nargs="?", default="-",
        help="a file with it; by default it is read from standard input, where no other user can see it",
    )  # fmt: skip
    join.set_defaults(do=_join)

    request = commands.add_parser("request", help="print a line with which this node can be admitted by hand")
    folder(request)
    request.add_argument("--new-key", action="store_true", help="make a new key, and ask that it replaces the present one")
    request.set_defaults(do=_request)

    admit = commands.add_parser("admit", help="admit the node that has printed a request, and write what it joins with")
    folder(admit)
    admit.add_argument("request", help="the line")
    admit.add_argument("--role", choices=ROLES, default="participant", help=ROLE_HELP)
    admit.add_argument("--out", type=Path, required=True, metavar="FILE", help="to be written; it holds no secret")
    admit.set_defaults(do=_admit)

    revoke = commands.add_parser("revoke", help="end a membership; running nodes hear of it from each other")
    folder(revoke)
    revoke.add_argument("name", help="of the member")
    revoke.set_defaults(do=_revoke)


def _create(options: argparse.Namespace) -> int:
    from node import admission, agreement, config, setup

    own = config.load(options.folder, options.changes)
    pairs = [edge.split("-", 1) if edge.count("-") == 1 else edge.split(" - ", 1) for edge in options.edges]
    if options.edge_list is not None:
        pairs += agreement.read_edges(options.edge_list)
        if not pairs:
            raise ConfigurationError(f"{options.edge_list} holds no edge")
    edges = agreement.check_edges(pairs) if pairs else "all"
    config.check_name(options.name)
    ready = setup.Setup(options.folder, own, None, None)
    task = setup.task_of(ready)
    setup.policy_of(ready)
    tables = agreement.draft(options.name, own, task, edges)
    federation = admission.create_federation(options.folder, tables, options.backup)
    print(f"made the federation {federation.name} ({federation.id.hex()}), of which {own.name} is the first member")
    print(
        f"whoever has the admission key decides who is a member: it is in {options.folder} and, as a copy, {options.backup}"
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    from node import admission

    shown = admission.describe(options.folder)
    print(json.dumps(shown) if options.json else "\n".join(_lines(shown)))
    return 0


def _lines(shown: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in shown.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{key}:")
            lines += [indent + "  " + ", ".join(f"{k} {v}" for k, v in row.items()) for row in value]
        else:
            lines.append(f"{indent}{key}: {value}")
    return lines


def _rotate(options: argparse.Namespace) -> int:
    from node import admission

    admission.rotate(options.folder, options.backup)
    print(f"the admission key is a new one; its copy is in {options.backup}, and the old one decides nothing any more")
    return 0


def _invite(options: argparse.Namespace) -> int:
    from node import admission, joining

    if not options.minutes > 0:
        raise ConfigurationError(f"--minutes must be more than 0, got {options.minutes:g}")
    addresses = joining.addresses(options.folder, options.addresses)
    invitation = admission.invite(options.folder, addresses, options.role, options.minutes, time.time())
    print(
        f"a token for one node, good for {options.minutes:g} minutes while this node runs at {', '.join(addresses)};"
        " whoever sees it can use it",
        file=sys.stderr,
    )
    print(invitation.encode())
    return 0


def _join(options: argparse.Namespace) -> int:
    from node import joining

    name = joining.join(options.folder, _read(options.token))
    print(f"joined the federation {name}; next: p2pfl-node run {options.folder}")
    return 0


def _read(token: str) -> str:
    """Return a token or an admission from where it is."""
    if token.startswith("p2pfl-invite-"):
        print("note: an argument is seen by every user of this machine; standard input is not", file=sys.stderr)
        return token
    try:
        if token == "-":
            if sys.stdin.isatty():
                print("token: ", end="", file=sys.stderr, flush=True)
                return sys.stdin.readline()
            return sys.stdin.read(_MOST)
        with Path(token).open(encoding="utf-8") as file:
            return file.read(_MOST)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {token}: {getattr(error, 'strerror', None) or 'it is no text'}") from error


_MOST = 16 << 20  # characters of an admission


def _request(options: argparse.Namespace) -> int:
    from node import admission

    print(admission.request(options.folder, options.new_key))
    return 0


def _admit(options: argparse.Namespace) -> int:
    from node import admission

    name = admission.admit(options.folder, options.request, options.role, options.out)
    print(f"{name} is a member; it joins with: p2pfl-node join FOLDER {options.out}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from node import admission

    admission.revoke(options.folder, options.name)
    print(f"{options.name} is no member any more; a running node hears of it within seconds")
    return 0
