"""Commands for a federation: create, show, extend, committee, rotate, leave, proofs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from p2pfl._util import toml_tables
from p2pfl._util.console import add_changes, add_command, add_output, print_answer
from p2pfl.errors import ConfigurationError, name_source
from p2pfl.node.cli.options import add_folder, add_unlock, confirm, unlock


def add_commands(commands: Any) -> None:
    """Add `federation` to the commands of p2pfl-node."""
    federation = add_command(
        commands,
        "federation",
        "create a federation, show it, extend it by more rounds, name its committee, replace its admission key, or leave it",
        "p2pfl-node federation create alice --backup admission-key.backup",
        "p2pfl-node federation show alice",
    )
    federations = federation.add_subparsers()
    _add_create(federations)
    _add_show(federations)
    add_proofs(federations)
    _add_extend(federations)
    _add_committee(federations)
    _add_rotate(federations)
    _add_leave(federations)


def _add_create(federations: Any) -> None:
    create = add_command(
        federations,
        "create",
        "create a federation with the settings in this node's node.toml",
        "p2pfl-node federation create alice --backup admission-key.backup",
        "p2pfl-node federation create alice --backup key.backup --set members=3",
        "p2pfl-node federation create alice --backup key.backup --topology base-k",
    )
    add_folder(create)
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
        "--topology", metavar="NAME",
        help="rule by which members compute from whom they fetch: rings or changing-rings for many members, or one with"
        " another graph in each round, such as base-k; --set topology.degree=2 sets an option of it (default: every member"
        " fetches from every other, for up to about 50 members)",
    )  # fmt: skip
    add_changes(
        settings,
        "override a key of node.toml for the federation, such as members=3; greatest_epsilon=8 demands a privacy budget of"
        " every member (greatest_delta, default 1e-5), and committee=7 lets a committee of that many elect the coordinator",
    )
    key = create.add_argument_group("admission key")
    key.add_argument(
        "--backup", type=Path, required=True, metavar="FILE",
        help="file to write a backup of the admission key to; keep it off this machine",
    )  # fmt: skip
    _new_passphrase(key, "not encrypted")
    add_output(create)
    create.set_defaults(do=_create)


def _add_show(federations: Any) -> None:
    show = add_command(
        federations,
        "show",
        "show the settings and the members of a federation",
        "p2pfl-node federation show alice",
    )
    add_folder(show)
    add_output(show)
    show.set_defaults(do=_show)


def _add_extend(federations: Any) -> None:
    extend = add_command(
        federations,
        "extend",
        "raise the number of rounds; running and finished members continue as soon as they learn of it",
        "p2pfl-node federation extend alice --rounds 20",
    )
    add_folder(extend)
    settings = extend.add_argument_group("settings")
    settings.add_argument(
        "--rounds", type=int, required=True, metavar="N",
        help="new number of rounds, counted from the first one; it cannot be lowered again",
    )  # fmt: skip
    add_unlock(extend.add_argument_group("admission key"))
    add_output(extend)
    extend.set_defaults(do=_extend)


def _add_committee(federations: Any) -> None:
    committee = add_command(
        federations,
        "committee",
        "show the committee that elects the coordinator, or name another one, for example without a member that is gone",
        "p2pfl-node federation committee alice",
        "p2pfl-node federation committee alice --members alice bob carol dave frank",
    )
    add_folder(committee)
    settings = committee.add_argument_group("settings")
    settings.add_argument(
        "--members", nargs="+", default=[], metavar="NAME",
        help="names of the members of the committee, as many as the federation's committee has",
    )  # fmt: skip
    settings.add_argument(
        "--lost", action="store_true",
        help="do not wait for earlier committees; only if more than half of one has stopped for good, because otherwise two"
        " coordinators may act at the same time",
    )  # fmt: skip
    add_unlock(committee.add_argument_group("admission key"))
    add_output(committee)
    committee.set_defaults(do=_committee)


def _add_rotate(federations: Any) -> None:
    rotate = add_command(
        federations,
        "rotate",
        "replace the admission key with a new one",
        "p2pfl-node federation rotate alice --backup new-admission-key.backup",
    )
    add_folder(rotate)
    new = rotate.add_argument_group("new key")
    new.add_argument(
        "--backup", type=Path, required=True, metavar="FILE",
        help="file to write a backup of the new key to; keep it off this machine",
    )  # fmt: skip
    _new_passphrase(new, "the passphrase of the old key, if it is encrypted")
    new.add_argument("--no-passphrase", action="store_true", help="do not encrypt the new key, even if the old key is")
    old = rotate.add_argument_group("old key")
    add_unlock(old, "--old-passphrase-file", "the old admission key")
    add_output(rotate)
    rotate.set_defaults(do=_rotate)


def _add_leave(federations: Any) -> None:
    leave = add_command(
        federations,
        "leave",
        "set the files of a federation aside, so that the node can create it again or join another one",
        "p2pfl-node federation leave alice",
    )
    add_folder(leave)
    approval = leave.add_argument_group("approval")
    approval.add_argument(
        "--yes",
        action="store_true",
        help="leave without a question, even if the other members then have no admission key",
    )
    add_output(leave)
    leave.set_defaults(do=_leave)


def _new_passphrase(group: Any, default: str) -> None:
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--passphrase", action="store_true", help=f"encrypt the key with a passphrase that you type (default: {default})"
    )
    one.add_argument(
        "--passphrase-file", type=Path, metavar="FILE", help="encrypt the key with the passphrase in the first line of FILE"
    )


def _create(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import agreement, loading, membership_changes
    from p2pfl.node.federation.membership_changes import watch_checkpoints
    from p2pfl.node.folder import config
    from p2pfl.policy import Coordinated, needs_only_mean
    from p2pfl.policy import check_topology as check_policy
    from p2pfl.privacy import check_private_policy

    if any(change.partition("=")[0].strip() in ("edge", "edges") for change in options.changes):
        raise ConfigurationError("command line: list the pairs of members with --edge A-B or --edges FILE, not with --set")
    given = [change for change in options.changes if change.strip().startswith("topology")]
    demands = [change for change in options.changes if change.partition("=")[0].strip() in agreement.DEMAND]
    changes = [change for change in options.changes if change not in (*given, *demands)]
    own = config.load(options.folder, changes)  # first: it names unknown keys
    for change in changes:
        key = change.partition("=")[0].strip()
        if key.partition(".")[0] not in (*agreement.AGREED, "task", "policy"):
            raise ConfigurationError(
                f"command line: {key} is a setting of each node, not of the federation; set it in"
                f" {options.folder / config.CONFIG}, or with run --set"
            )
    passphrase = membership_changes.choose_passphrase(options.passphrase_file, options.passphrase)
    pairs = [edge.split("-", 1) if edge.count("-") == 1 else edge.split(" - ", 1) for edge in options.edges]
    if options.edge_list is not None:
        pairs += agreement.read_edges(options.edge_list)
        if not pairs:
            raise ConfigurationError(
                f"{options.edge_list} has no pair of names; write two names on each line, such as alice bob"
            )
    edges = agreement.check_edges(pairs) if pairs else "all"
    topology = _topology(options.topology, given)
    with name_source("command line"):
        agreement.check_topology(topology, edges)
    config.check_name(options.name)
    ready = loading.LoadedNode(options.folder, own, None, None, changes)
    task = loading.task_of(ready)
    policy = loading.policy_of(ready)
    check_policy(policy, agreement.changes(topology))
    agreement.check_rings(topology, isinstance(policy, Coordinated))
    if own.privacy.epsilon:
        check_private_policy(own.privacy, policy, own.rounds)
        task.check_private()
    tables = agreement.draft(options.name, own, task, edges, topology, demand=toml_tables.with_changes({}, demands))
    with name_source("command line"):
        agreement.check_tables(own, tables, isinstance(policy, Coordinated), needs_only_mean(policy))
    say_earlier = watch_checkpoints(options.folder, partial(print, file=sys.stderr))
    federation = membership_changes.create_federation(options.folder, tables, options.backup, passphrase)
    say_earlier()
    text = (
        f"created the federation {federation.name} ({federation.id.hex()}) with {own.name} as its first member\n"
        f"the {'' if passphrase is None else 'encrypted '}admission key is in {options.folder}, and its backup is"
        f" {options.backup}: keep the backup off this machine"
    )
    if note := agreement.many_note(tables, own.members):
        text += f"\nnote: {note}"
    if own.members == 1:
        text += "\nmembers is 1: a node begins to learn without the others; created with --set members=N, it waits for N"
    answer = {"federation": federation.name, "id": federation.id.hex(), "member": own.name, "backup": str(options.backup)}
    print_answer(options, text, answer)
    return 0


def _topology(name: str | None, changes: Sequence[str]) -> dict[str, Any]:
    """Return the table of a federation's topology, empty without one."""
    if not name:
        if changes:
            raise ConfigurationError(f"command line: {changes[0]} is an option of a topology; name it with --topology NAME")
        return {}
    options = [change.strip().removeprefix("topology.") for change in changes]
    if any(change.strip().partition("=")[0].strip() in ("topology", "topology.name") for change in changes):
        raise ConfigurationError("command line: name the topology with --topology NAME, not with --set")
    return toml_tables.with_changes({"name": name}, options)


def _show(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes

    shown = membership_changes.describe(options.folder)
    lines = _lines(shown)
    if not shown["complete"]:
        lines.append("this node has not received the whole membership log yet: there are more members than these")
    print_answer(options, "\n".join(lines), shown)
    return 0


def _lines(shown: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in shown.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{key}:")
            lines += [indent + "  " + ", ".join(f"{k} {_text(v)}" for k, v in row.items()) for row in value]
        else:
            lines.append(f"{indent}{key}: {_text(value)}")
    return lines


def _text(value: Any) -> str:
    """Return a value as text; pairs of names are written as with `--edge`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join("-".join(each) if isinstance(each, list) else str(each) for each in value)
    return str(value)


def _extend(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes

    membership_changes.extend(options.folder, options.rounds, unlock(options))
    text = (
        f"the federation has {options.rounds} rounds now; running members learn of it within seconds, the others when they"
        " run again"
    )
    print_answer(options, text, {"rounds": options.rounds})
    return 0


def _committee(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes

    if options.lost and not options.members:
        raise ConfigurationError("command line: --lost needs --members")
    unlocked = unlock(options) if options.members else None
    names = membership_changes.appoint(options.folder, options.members, options.lost, unlocked)
    text = f"the committee: {', '.join(names)}"
    if options.members:
        text += "; running members learn of it within seconds, the others when they run again"
    print_answer(options, text, {"committee": list(names)})
    return 0


def _rotate(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes

    old = unlock(options)
    new = membership_changes.choose_passphrase(options.passphrase_file, options.passphrase)
    if new is None and not options.no_passphrase:
        new = old
    membership_changes.rotate(options.folder, options.backup, old, new)
    text = f"replaced the admission key; the backup of the new key is {options.backup}, and the old key is no longer valid"
    print_answer(options, text, {"backup": str(options.backup)})
    return 0


def _leave(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes

    loss = membership_changes.describe_leaving(options.folder)
    if loss and not options.yes:
        confirm(f"{loss}; leave it?", f"not left: {loss}", f"p2pfl-node federation leave {options.folder} --yes")
    left = membership_changes.leave(options.folder)
    text = (
        f"left the federation {left.name}; its files{', the admission key among them,' if left.admission else ''} are in"
        f" {left.aside}, and node.toml and the key of the node are as before\n"
        f"next: p2pfl-node federation create {options.folder} --backup FILE, or p2pfl-node join {options.folder}"
    )
    if left.others:
        text += f"\n{', '.join(left.others)} still count this node as a member, until it is revoked or they leave, too"
    answer = {"federation": left.name, "aside": str(left.aside), "others": list(left.others)}
    print_answer(options, text, answer)
    return 0


def add_proofs(federations: Any) -> None:
    """Add `proofs` to the commands of `federation`."""
    proofs = add_command(
        federations,
        "proofs",
        "verify and show the proofs that members have sent different models of one round",
        "p2pfl-node federation proofs alice",
        "p2pfl-node federation proofs alice --json",
    )
    add_folder(proofs)
    add_output(proofs)
    proofs.set_defaults(do=_proofs)


def _proofs(options: argparse.Namespace) -> int:
    found = stored_proofs(options.folder)
    lines = [f"{row['name']} has signed two models of round {row['round']} ({row['stage']})" for row in found]
    print_answer(options, "\n".join(lines) or "no member is known to have signed two models of one round", {"proofs": found})
    return 0


def stored_proofs(folder: Path) -> list[dict[str, Any]]:
    """Return the proofs in the checkpoint of a node that hold with the keys of its membership log; no network is needed.

    Raises:
        ConfigurationError: the node belongs to no federation, or its checkpoint cannot be read.
    """
    from p2pfl.node.checkpoint import FileStore
    from p2pfl.node.federation.membership_file import member_of
    from p2pfl.node.folder import config as folders
    from p2pfl.protocols.wire.envelope import read_proof

    membership = member_of(folder)
    names = {member.key: name for name, member in membership.members.items()}
    checkpoint = FileStore(folder / folders.CHECKPOINT).peek()
    found = []
    for proof in [] if checkpoint is None else checkpoint.conduct.proofs:
        one, _ = read_proof(proof, membership.federation)
        if one.sender in names:
            row = {"name": names[one.sender], "key": one.sender.hex(), "round": one.round, "stage": one.stage}
            found.append(row | {"proof": proof.hex()})
    return found
