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
from p2pfl.system.console import add_command

if TYPE_CHECKING:
    from p2pfl.node.federation.agreement import Agreement
    from p2pfl.node.folder.config import NodeConfig

ROLES = ("participant", "observer", "coordinator-eligible")
ROLE_HELP = (
    "role of the new member: an observer does not vote, and no node learns from it; for coordinator-eligible see"
    " docs/explanation/elections.md (default: participant)"
)
DEFAULT_PASSPHRASE = f"default: the environment variable {VARIABLE}, or a prompt"
Folder = Callable[[argparse.ArgumentParser], None]


def add(commands: Any, folder: Folder) -> None:
    """Add the commands to a parser."""
    federation = add_command(
        commands,
        "federation",
        "create a federation, show it, or replace its admission key",
        "p2pfl-node federation create alice --backup admission-key.backup",
        "p2pfl-node federation show alice",
    )
    federations = federation.add_subparsers(dest="federation", required=True, title="commands", metavar="COMMAND")
    _add_create(federations, folder)
    _add_show(federations, folder)
    _add_rotate(federations, folder)
    _add_invite(commands, folder)
    _add_join(commands, folder)
    _add_request(commands, folder)
    _add_admit(commands, folder)
    _add_revoke(commands, folder)


def _add_create(federations: Any, folder: Folder) -> None:
    create = add_command(
        federations,
        "create",
        "create a federation with the settings in this node's node.toml",
        "p2pfl-node federation create alice --backup admission-key.backup",
        "p2pfl-node federation create alice --backup key.backup --set members=3",
    )
    folder(create)
    settings = create.add_argument_group("settings")
    settings.add_argument("--name", default="home", help="name of the federation (default: home)")
    settings.add_argument(
        "--edge", dest="edges", action="append", default=[], metavar="A-B",
        help="pair of members that may exchange models; can be repeated (default: all pairs)",
    )  # fmt: skip
    settings.add_argument(
        "--edges", dest="edge_list", type=Path, metavar="FILE", help="file with more pairs, two names on each line"
    )
    settings.add_argument(
        "--set", dest="changes", metavar="KEY=VALUE", action="append", default=[],
        help="override a key of node.toml for the federation, such as members=3; can be repeated",
    )  # fmt: skip
    key = create.add_argument_group("admission key")
    key.add_argument(
        "--backup", type=Path, required=True, metavar="FILE",
        help="file to write a backup of the admission key to; keep it off this machine",
    )  # fmt: skip
    _new_passphrase(key, "not encrypted")
    create.set_defaults(do=_create)


def _add_show(federations: Any, folder: Folder) -> None:
    show = add_command(
        federations,
        "show",
        "show the settings and the members of a federation",
        "p2pfl-node federation show alice",
    )
    folder(show)
    output = show.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    show.set_defaults(do=_show)


def _add_rotate(federations: Any, folder: Folder) -> None:
    rotate = add_command(
        federations,
        "rotate",
        "replace the admission key by a new one",
        "p2pfl-node federation rotate alice --backup new-admission-key.backup",
    )
    folder(rotate)
    new = rotate.add_argument_group("new key")
    new.add_argument(
        "--backup", type=Path, required=True, metavar="FILE",
        help="file to write a backup of the new key to; keep it off this machine",
    )  # fmt: skip
    _new_passphrase(new, "as the old key, with the same passphrase")
    new.add_argument("--no-passphrase", action="store_true", help="do not encrypt the new key, even if the old key is")
    old = rotate.add_argument_group("old key")
    _passphrase(old, "--old-passphrase-file", "the old admission key")
    rotate.set_defaults(do=_rotate)


def _add_invite(commands: Any, folder: Folder) -> None:
    invite = add_command(
        commands,
        "invite",
        "print a token with which one node can join while this node runs",
        "p2pfl-node invite alice bob >bob.token",
        "p2pfl-node invite alice bob --minutes 60 --role observer >bob.token",
    )
    folder(invite)
    invite.add_argument("name", metavar="NAME", help="name of the new node, as in its node.toml")
    member = invite.add_argument_group("new member")
    member.add_argument("--role", choices=ROLES, default="participant", help=ROLE_HELP)
    _reuse_name(member)
    token = invite.add_argument_group("token")
    token.add_argument("--minutes", type=float, default=15.0, help="minutes until the token expires (default: 15)")
    token.add_argument(
        "--address", dest="addresses", action="append", default=[], metavar="HOST:PORT",
        help="address at which the new node can reach this node; can be repeated (default: the addresses in node.toml, or"
        " those of this machine)",
    )  # fmt: skip
    _passphrase(invite.add_argument_group("admission key"))
    invite.set_defaults(do=_invite)


def _add_join(commands: Any, folder: Folder) -> None:
    join = add_command(
        commands,
        "join",
        "join a federation with a token or an admission file",
        "p2pfl-node join bob <bob.token",
        "p2pfl-node join bob bob.admission --yes",
    )
    folder(join)
    join.add_argument(
        "token", nargs="?", default="-", metavar="TOKEN",
        help="file with the token of invite, or the admission file of admit (default: standard input)",
    )  # fmt: skip
    approval = join.add_argument_group("approval")
    approval.add_argument(
        "--yes", action="store_true",
        help="accept the federation's options of task and policy without a question, even if node.toml has others",
    )  # fmt: skip
    join.set_defaults(do=_join)


def _add_request(commands: Any, folder: Folder) -> None:
    request = add_command(
        commands,
        "request",
        "print a line with which the owner of the admission key can admit this node",
        "p2pfl-node request bob >bob.request",
        "p2pfl-node request bob --new-key >bob.request",
    )
    folder(request)
    key = request.add_argument_group("key")
    key.add_argument("--new-key", action="store_true", help="create a new key, and request that it replaces the present one")
    request.set_defaults(do=_request)


def _add_admit(commands: Any, folder: Folder) -> None:
    admit = add_command(
        commands,
        "admit",
        "admit the node that printed a request, and write its admission file",
        'p2pfl-node admit alice "$(cat bob.request)" --out bob.admission',
    )
    folder(admit)
    admit.add_argument("request", metavar="REQUEST", help="line that the command request printed")
    member = admit.add_argument_group("new member")
    member.add_argument("--role", choices=ROLES, default="participant", help=ROLE_HELP)
    _reuse_name(member)
    output = admit.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, required=True, metavar="FILE",
        help="admission file to write, with which the new member joins; it contains no secret",
    )  # fmt: skip
    _passphrase(admit.add_argument_group("admission key"))
    admit.set_defaults(do=_admit)


def _add_revoke(commands: Any, folder: Folder) -> None:
    revoke = add_command(
        commands,
        "revoke",
        "end the membership of a node; running nodes learn of it within seconds",
        "p2pfl-node revoke alice bob",
    )
    folder(revoke)
    revoke.add_argument("name", metavar="NAME", help="name of the member")
    _passphrase(revoke.add_argument_group("admission key"))
    revoke.set_defaults(do=_revoke)


def _reuse_name(group: Any) -> None:
    group.add_argument(
        "--reuse-name", action="store_true",
        help="allow the name of a former member; peers may still have its data under this name",
    )  # fmt: skip


def _new_passphrase(group: Any, default: str) -> None:
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--passphrase", action="store_true", help=f"encrypt the key with a passphrase that you type (default: {default})"
    )
    one.add_argument(
        "--passphrase-file", type=Path, metavar="FILE", help="encrypt the key with the passphrase in the first line of FILE"
    )


def _passphrase(group: Any, option: str = "--passphrase-file", what: str = "the admission key") -> None:
    group.add_argument(
        option, dest="unlock", type=Path, metavar="FILE",
        help=f"file with the passphrase of {what} in its first line, if it is encrypted ({DEFAULT_PASSPHRASE})",
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
            raise ConfigurationError(
                f"{options.edge_list} has no pair of names; write two names on each line, such as alice bob"
            )
    edges = agreement.check_edges(pairs) if pairs else "all"
    config.check_name(options.name)
    ready = loading.LoadedNode(options.folder, own, None, None)
    task = loading.task_of(ready)
    loading.policy_of(ready)
    tables = agreement.draft(options.name, own, task, edges)
    federation = admission.create_federation(options.folder, tables, options.backup, passphrase)
    print(f"created the federation {federation.name} ({federation.id.hex()}) with {own.name} as its first member")
    print(
        f"the {'' if passphrase is None else 'encrypted '}admission key is in {options.folder}, and its backup is"
        f" {options.backup}: keep the backup off this machine"
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
    print(f"replaced the admission key; the backup of the new key is {options.backup}, and the old key is no longer valid")
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
        f"token for one node named {options.name}: it expires in {options.minutes:g} minutes, and this node must run at"
        f" {', '.join(addresses)}; keep it secret, because anyone who has it can join",
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
    lines += [
        f"  {each.key} is {each.theirs} in the federation, and {each.ours} in this node's node.toml" for each in different
    ]
    print("\n".join(lines), file=sys.stderr)
    if options.yes:
        return
    again = "the token or admission remains valid for this node; to accept the options: p2pfl-node join --yes"
    if sys.stdin.isatty():
        print("join with these options? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigurationError(f"not joined; {again}")
    elif different:
        words = ", ".join(f"{each.key} = {each.theirs}" for each in different)
        raise ConfigurationError(f"not joined: the federation's options differ from node.toml ({words}); {again}")


def _read(token: str) -> str:
    """Read a token or an admission from the argument, standard input or a file."""
    if token.startswith("p2pfl-invite-"):
        print("warning: other users of this machine can see arguments; pass the token on standard input", file=sys.stderr)
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
        raise ConfigurationError(
            f"cannot read {token}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
        ) from error


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
    print(f"admitted {name}; on its machine, run: p2pfl-node join FOLDER {options.out}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import admission

    admission.revoke(options.folder, options.name, _unlock(options))
    print(f"revoked the membership of {options.name}; running nodes learn of it within seconds")
    return 0
