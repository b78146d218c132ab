"""Commands for membership: federation, invite, join, request, admit, revoke."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation.passphrases import VARIABLE

if TYPE_CHECKING:
    from p2pfl.node.federation.agreement import Agreement
    from p2pfl.node.folder.config import NodeConfig

ROLES = ("participant", "observer", "coordinator-eligible")
ROLE_HELP = (
    "of the new member (default: participant). No node learns from an observer, and it does not vote. Once some members are"
    " coordinator-eligible, only these may be elected as the coordinator"
)
Folder = Callable[[argparse.ArgumentParser], None]


def add(commands: Any, folder: Folder) -> None:
    """Add the commands to a parser."""
    federation = commands.add_parser("federation", help="make a federation, or look at it")
    federations = federation.add_subparsers(dest="federation", required=True, metavar="COMMAND")
    _add_create(federations, folder)
    _add_show(federations, folder)
    _add_rotate(federations, folder)
    _add_invite(commands, folder)
    _add_join(commands, folder)
    _add_request(commands, folder)
    _add_admit(commands, folder)
    _add_revoke(commands, folder)


def _add_create(federations: Any, folder: Folder) -> None:
    create = federations.add_parser("create", help="make a federation that does what this node's node.toml says")
    folder(create)
    create.add_argument("--name", default="home", help="of the federation (default: home)")
    create.add_argument(
        "--backup", type=Path, required=True, metavar="FILE",
        help="file to write a backup of the admission key to; keep it off this machine",
    )  # fmt: skip
    _new_passphrase(create)
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


def _add_show(federations: Any, folder: Folder) -> None:
    show = federations.add_parser("show", help="show what was agreed on, and who the members are")
    folder(show)
    show.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    show.set_defaults(do=_show)


def _add_rotate(federations: Any, folder: Folder) -> None:
    rotate = federations.add_parser("rotate", help="hand over to a new admission key")
    folder(rotate)
    rotate.add_argument(
        "--backup", type=Path, required=True, metavar="FILE",
        help="file to write a backup of the new key to; keep it off this machine",
    )  # fmt: skip
    _new_passphrase(rotate)
    rotate.add_argument(
        "--no-passphrase", action="store_true", help="do not encrypt the new key, though the old one is encrypted"
    )
    _passphrase(rotate, "--old-passphrase-file", "of the old admission key")
    rotate.set_defaults(do=_rotate)


def _add_invite(commands: Any, folder: Folder) -> None:
    invite = commands.add_parser("invite", help="print a token with which one node may join; this node must be running then")
    folder(invite)
    invite.add_argument("name", help="of the node that the token is for, as its node.toml has it")
    _reuse_name(invite)
    _passphrase(invite)
    invite.add_argument("--role", choices=ROLES, default="participant", help=ROLE_HELP)
    invite.add_argument("--minutes", type=float, default=15.0, help="for which the token is good (default: 15)")
    invite.add_argument(
        "--address", dest="addresses", action="append", default=[], metavar="HOST:PORT",
        help="where this node is reached; by default what node.toml and this machine say",
    )  # fmt: skip
    invite.set_defaults(do=_invite)


def _add_join(commands: Any, folder: Folder) -> None:
    join = commands.add_parser("join", help="become a member, with a token or what admit has written")
    folder(join)
    join.add_argument(
        "token", nargs="?", default="-",
        help="a file with it; by default it is read from standard input, where no other user can see it",
    )  # fmt: skip
    join.add_argument(
        "--yes", action="store_true", help="take the federation's options of task and policy, whatever node.toml has"
    )
    join.set_defaults(do=_join)


def _add_request(commands: Any, folder: Folder) -> None:
    request = commands.add_parser("request", help="print a line with which this node can be admitted by hand")
    folder(request)
    request.add_argument("--new-key", action="store_true", help="make a new key, and ask that it replaces the present one")
    request.set_defaults(do=_request)


def _add_admit(commands: Any, folder: Folder) -> None:
    admit = commands.add_parser("admit", help="admit the node that has printed a request, and write what it joins with")
    folder(admit)
    admit.add_argument("request", help="the line")
    admit.add_argument("--role", choices=ROLES, default="participant", help=ROLE_HELP)
    admit.add_argument("--out", type=Path, required=True, metavar="FILE", help="to be written; it holds no secret")
    _reuse_name(admit)
    _passphrase(admit)
    admit.set_defaults(do=_admit)


def _add_revoke(commands: Any, folder: Folder) -> None:
    revoke = commands.add_parser("revoke", help="end a membership; running nodes hear of it from each other")
    folder(revoke)
    revoke.add_argument("name", help="of the member")
    _passphrase(revoke)
    revoke.set_defaults(do=_revoke)


def _reuse_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reuse-name", action="store_true",
        help="give the name of a former member again; peers may remember things under it",
    )  # fmt: skip


def _new_passphrase(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--passphrase", action="store_true", help="encrypt the admission key, with a passphrase that is asked for"
    )
    one.add_argument(
        "--passphrase-file", type=Path, metavar="FILE", help="encrypt the admission key, with the first line of this file"
    )


def _passphrase(
    parser: argparse.ArgumentParser, option: str = "--passphrase-file", what: str = "of the admission key"
) -> None:
    parser.add_argument(
        option, dest="unlock", type=Path, metavar="FILE",
        help=f"a file with the passphrase {what}, if it is encrypted (default: {VARIABLE}, or asked for)",
    )  # fmt: skip


def _unlock(options: argparse.Namespace) -> bytes | None:
    """Return the passphrase of the current admission key, if it needs one."""
    from p2pfl.node.federation import admission_key, passphrases
    from p2pfl.node.folder import config

    if not admission_key.is_encrypted(options.folder):
        return None
    file = options.unlock or config.load(options.folder).passphrase_file
    return passphrases.present(options.folder / admission_key.ADMISSION, file)


def _create(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import admission, agreement, loading, passphrases
    from p2pfl.node.folder import config

    own = config.load(options.folder, options.changes)
    passphrase = passphrases.choose(options.passphrase_file, options.passphrase)
    pairs = [edge.split("-", 1) if edge.count("-") == 1 else edge.split(" - ", 1) for edge in options.edges]
    if options.edge_list is not None:
        pairs += agreement.read_edges(options.edge_list)
        if not pairs:
            raise ConfigurationError(f"{options.edge_list} holds no edge")
    edges = agreement.check_edges(pairs) if pairs else "all"
    config.check_name(options.name)
    ready = loading.LoadedNode(options.folder, own, None, None)
    task = loading.task_of(ready)
    loading.policy_of(ready)
    tables = agreement.draft(options.name, own, task, edges)
    federation = admission.create_federation(options.folder, tables, options.backup, passphrase)
    print(f"made the federation {federation.name} ({federation.id.hex()}), of which {own.name} is the first member")
    print(
        f"the admission key{'' if passphrase is None else ', encrypted,'} decides who is a member: it is in {options.folder}"
        f" and, as a backup, {options.backup}"
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import admission

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
    from p2pfl.node.federation import admission, passphrases

    old = _unlock(options)
    new = passphrases.choose(options.passphrase_file, options.passphrase)
    if new is None and not options.no_passphrase:
        new = old
    admission.rotate(options.folder, options.backup, old, new)
    print(f"the admission key is a new one; its backup is in {options.backup}, and the old one decides nothing any more")
    return 0


def _invite(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import invitations
    from p2pfl.node.runtime import join as joining

    if not options.minutes > 0:
        raise ConfigurationError(f"--minutes must be more than 0, got {options.minutes:g}")
    addresses = joining.addresses(options.folder, options.addresses)
    invitation = invitations.invite(
        options.folder,
        options.name,
        addresses,
        options.role,
        options.minutes,
        now=time.time(),
        passphrase=_unlock(options),
        reuse_name=options.reuse_name,
    )
    print(
        f"a token for one node named {options.name}, good for {options.minutes:g} minutes while this node runs at"
        f" {', '.join(addresses)}; anyone who sees it can use it",
        file=sys.stderr,
    )
    print(invitation.encode())
    return 0


def _join(options: argparse.Namespace) -> int:
    from p2pfl.node.runtime import join as joining

    name = joining.join(options.folder, _read(options.token), partial(_approve, options))
    print(f"joined the federation {name}; next: p2pfl-node run {options.folder}")
    return 0


def _approve(options: argparse.Namespace, own: NodeConfig, agreement: Agreement) -> None:
    """Show a federation's settings and ask whether to join; without a terminal, join only if node.toml has the same."""
    from p2pfl.node.federation import approval

    different = approval.differences(own, agreement, options.folder)
    lines = approval.summary(agreement)
    lines += [f"  {each.key} is {each.theirs} there; this node's is {each.ours}" for each in different]
    print("\n".join(lines), file=sys.stderr)
    if options.yes:
        return
    again = "what it joins with stays good for this node; to take the options: p2pfl-node join --yes"
    if sys.stdin.isatty():
        print("join with these options? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigurationError(f"not joined; {again}")
    elif different:
        words = ", ".join(f"{each.key} = {each.theirs}" for each in different)
        raise ConfigurationError(f"not joined: the federation has other options than node.toml ({words}); {again}")


def _read(token: str) -> str:
    """Read a token or an admission from the argument, standard input or a file."""
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


_MOST = 16 << 20  # maximum characters of an admission


def _request(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import admission

    print(admission.request(options.folder, options.new_key))
    return 0


def _admit(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import admission

    name = admission.admit(
        options.folder,
        options.request,
        options.role,
        options.out,
        passphrase=_unlock(options),
        reuse_name=options.reuse_name,
    )
    print(f"{name} is a member; it joins with: p2pfl-node join FOLDER {options.out}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import admission

    admission.revoke(options.folder, options.name, _unlock(options))
    print(f"{options.name} is no member any more; a running node hears of it within seconds")
    return 0
