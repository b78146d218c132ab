"""Options that several commands of p2pfl-node share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from p2pfl._util.console import port
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import membership_changes
from p2pfl.policies import POLICIES
from p2pfl.protocols.addresses import join_address, split_address

ROLES = ("participant", "observer", "coordinator-eligible")
VARIABLE = "P2PFL_NODE"  # environment variable with the folder of a node
PORT = 4100  # TCP port of a new node
_ROLE_HELP = (
    "role of the new member: an observer does not vote, and no node learns from it; for coordinator-eligible see"
    " docs/explanation/elections.md"
)
_POLICY_HELP = (
    f"policy that selects peers and averages models: {', '.join(POLICIES)}, or package.module:factory (default: dac); for"
    " policies with a coordinator, such as fedpref, see docs/explanation/elections.md"
)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the argument FOLDER, None if it is missing; see `default_folder`."""
    help = f"folder of the node (default: the environment variable {VARIABLE}, or the current folder)"
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=help)


def default_folder(options: argparse.Namespace | None = None) -> Path:
    """Return the folder of the node for a command without FOLDER.

    Args:
        options: options of the command. A folder may stand where it needs another argument, which the error then names.

    Raises:
        ConfigurationError: the variable is not set, and the current folder is not that of a node.
    """
    from p2pfl.node.folder.config import CONFIG

    if named := os.environ.get(VARIABLE):
        return Path(named)
    if Path(CONFIG).is_file():
        return Path()
    for argument in ("name", "target"):
        word = getattr(options, argument, None)
        if word is not None and (Path(word) / CONFIG).is_file():
            raise ConfigurationError(f"{argument.upper()} is missing: give it after the folder {word}")
    raise ConfigurationError(
        f"no node named: give its folder, go to its folder, or set {VARIABLE}; p2pfl-node list prints the nodes here"
    )


def add_listen(network: argparse._ActionsContainer, default: str) -> None:
    """Add --port and --listen, of which a command takes one.

    Args:
        default: port without these options, for the help.
    """
    address = network.add_mutually_exclusive_group()
    address.add_argument("--port", type=port, help=f"TCP port to listen on, at all addresses (default: {default})")
    address.add_argument("--listen", metavar="HOST:PORT", help="listen at this address only, instead of --port")


def listen_of(options: argparse.Namespace, before: str) -> str | None:
    """Return the address to listen on that the options name; None if they name none.

    Args:
        before: address whose host --port keeps.
    """
    if options.port is None:
        listen: str | None = options.listen
        return listen
    return join_address(split_address(before)[0], options.port)


def add_policy(group: argparse._ActionsContainer, default: str | None = "dac") -> None:
    """Add --policy.

    Args:
        default: value without the option; None lets the command tell whether it was given.
    """
    group.add_argument("--policy", metavar="POLICY", default=default, help=_POLICY_HELP)


def add_role(member: argparse._ActionsContainer, default: str | None = "participant") -> None:
    """Add the options for the role and the name of a new member."""
    usual = default or "the role of a member, and participant for a new one"
    member.add_argument("--role", choices=ROLES, default=default, help=f"{_ROLE_HELP} (default: {usual})")
    member.add_argument(
        "--reuse-name",
        action="store_true",
        help="allow the name of a former member; peers may still have its data under this name",
    )


def add_unlock(
    group: argparse._ActionsContainer, option: str = "--passphrase-file", what: str = "the admission key"
) -> None:
    """Add an option for the passphrase of an admission key; see `unlock`."""
    group.add_argument(
        option, dest="unlock", type=Path, metavar="FILE",
        help=f"file with the passphrase of {what} in its first line, if it is encrypted (default: the environment variable"
        f" {membership_changes.PASSPHRASE_VARIABLE}, or a prompt)",
    )  # fmt: skip


def unlock(options: argparse.Namespace) -> bytes | None:
    """Return the passphrase of the current admission key, if it needs one."""
    from p2pfl.node.federation import membership_file
    from p2pfl.node.folder import config

    if not membership_file.is_encrypted(options.folder):
        return None
    file = options.unlock or config.load(options.folder).passphrase_file
    return membership_changes.ask_passphrase(options.folder / membership_file.ADMISSION, file)


def agrees(question: str) -> bool:
    """Ask a question on the terminal; return whether the answer is yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def confirm(question: str, refusal: str, command: str) -> None:
    """Ask a question; raise ConfigurationError if the answer is not yes, or if there is no terminal."""
    if not (sys.stdin.isatty() and agrees(question)):
        raise ConfigurationError(f"{refusal}; to do it without a question: {command}")
