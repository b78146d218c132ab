"""End of a node's membership, as its copy of the membership log or a peer's proof shows it."""

from __future__ import annotations

from pathlib import Path

from p2pfl.errors import ConfigurationError
from p2pfl.node.federation.admission_key import ADMISSION, may_admit
from p2pfl.node.folder.config import CONFIG, KEY
from p2pfl.protocols.membership.log import Membership
from p2pfl.system.printable import key_name


class RevokedError(ConfigurationError):
    """Error: this node is no longer a member of its federation."""


def way_back(folder: Path) -> str:
    """Return how a node whose membership was revoked returns."""
    if may_admit(folder):  # no other node can admit it
        return (
            f"to return, copy {folder / ADMISSION} to the folder of another member, and admit the output of"
            f" `p2pfl-node request {folder} --new-key` there with --reuse-name"
        )
    return (
        f"to return, send the output of `p2pfl-node request {folder} --new-key` to the owner of the admission key,"
        " who admits it with --reuse-name"
    )


def describe_pending(federation: str, folder: Path) -> str:
    """Return that a node with a new key waits for its admission, and how it joins, after a semicolon."""
    return (
        f"it has left the federation {federation} and has a new key, which is not admitted yet; to return, send the output"
        f" of `p2pfl-node request {folder}` to the owner of the admission key, and join with the admission file:"
        f" p2pfl-node join {folder} FILE"
    )


def describe_refusal(membership: Membership, key: bytes, folder: Path) -> str:
    """Return why the owner of a key is not a member, and the remedy after a semicolon; "" if it is a member.

    Args:
        folder: folder of its node, for commands in the remedy.
    """
    federation = membership.file.name
    if not membership.refusal(key):
        return ""
    ending = membership.end_of(key)
    if ending is None:
        mend = "ask the owner of the admission key for an invitation, and join again"
        return f"this node is not a member of {federation}; {mend}"
    entry = ending.entry
    where = f"entry {entry.membership_version} of the membership log"
    owner = f"the owner of the admission key {key_name(ending.admission)}"
    if entry.action == "replace":
        mend = "run the node from the folder with the new key"
        return f"{owner} has replaced the key of this node, {entry.name}, in {federation} ({where}); {mend}"
    return f"the membership of this node, {entry.name}, in {federation} was revoked by {owner} ({where}); {way_back(folder)}"


def check_member(membership: Membership, key: bytes, folder: Path) -> None:
    """Check that the owner of a key, the node of a folder, is a member.

    Raises:
        RevokedError: its membership was revoked, or its key replaced.
        ConfigurationError: it never was a member.
    """
    if text := describe_refusal(membership, key, folder):
        raise (ConfigurationError if membership.end_of(key) is None else RevokedError)(text)


def check_name(membership: Membership, key: bytes, name: str, folder: Path) -> None:
    """Check that the key of a folder is that of the member which node.toml names.

    Args:
        name: the name in node.toml.

    Raises:
        ConfigurationError: it is the key of another member.
    """
    owner = next((member.name for member in membership.members.values() if member.key == key), name)
    if owner != name:
        raise ConfigurationError(
            f"{folder / KEY} is the key of the member {owner} of {membership.file.name}, but name in {folder / CONFIG} is"
            f" {name}; restore the key of {name} from a backup, or run the folder of {owner}"
        )
