"""A node's folder: its configuration, its key, and what it has learnt.

node.toml     written by `init`, edited by its owner
key.pem       the private key, mode 0600
checkpoint    the state after the last round; beside it the two before
boot          how often the node has started
status.json   what `status` shows
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from node import tables
from node.checkpoint import replace_file
from node.messaging import Member
from node.settings import Settings
from p2pfl.errors import ConfigurationError
from protocols.errors import AddressError, IdentityError
from protocols.identity import Identity, read_public
from protocols.tcp import split_address

CONFIG, KEY, CHECKPOINT, BOOT, STATUS, LOCK = "node.toml", "key.pem", "checkpoint", "boot", "status.json", "lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Neighbour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[peer]]` entry: a peer's name, its public key in hexadecimal, and where it listens."""

    name: str
    key: str
    address: str


class NodeConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What node.toml holds, beside the settings.

    Attributes:
        name: by which the federation knows this node.
        federation: its name; nodes of another one are not talked to.
        listen: host:port.
        part: which part of a task's built-in data is this node's, such as "0/3".
        task, policy: each a table with a `name`, and options.
        peer: the other members.
    """

    name: str
    listen: str
    federation: str = "home"
    part: str = "0/1"
    task: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "digits"})
    policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "dac"})
    peer: tuple[Neighbour, ...] = ()

    def check(self) -> None:
        super().check()
        names = [self.name, *(peer.name for peer in self.peer)]
        for name in names:
            check_name(name)
        if len(set(names)) < len(names):
            raise ConfigurationError(f"two members have the same name: {', '.join(sorted(names))}")
        tables.named("task", self.task)
        tables.named("policy", self.policy)
        self.members()

    def members(self) -> dict[str, Member]:
        """Return the peers by name.

        Raises:
            ConfigurationError: a key or an address is malformed.
        """
        try:
            for address in (self.listen, *(peer.address for peer in self.peer)):
                split_address(address)
            return {peer.name: Member(read_public(peer.key), peer.address) for peer in self.peer}
        except (AddressError, IdentityError) as error:
            raise ConfigurationError(str(error)) from error


def check_name(name: str) -> None:
    """Raise ConfigurationError for a name that is not fit for files, logs and tables."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"name {name!r} may have letters, digits, '.', '_' and '-' only, 64 at most")


def load(folder: Path, changes: Sequence[str] = ()) -> NodeConfig:
    """Read the configuration in a node's folder, with "key=value" changes applied.

    Raises:
        ConfigurationError: it is missing or wrong.
    """
    path = folder / CONFIG
    if not path.exists():
        raise ConfigurationError(f"{folder} is not a node's folder: it has no {CONFIG}; make one with p2pfl-node init")
    config = tables.typed(str(path), tables.changed(tables.read(path), changes), NodeConfig)
    try:
        config.check()
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return config


def create(folder: Path, name: str, port: int, part: str = "0/1", task: str = "digits", policy: str = "dac") -> Identity:
    """Make a node's folder with a key and a configuration to be completed.

    Raises:
        ConfigurationError: the folder holds a node already, or cannot be made.
    """
    check_name(name)
    if (folder / CONFIG).exists():
        raise ConfigurationError(f"{folder} holds a node already")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        identity = Identity.create(folder / KEY)
        (folder / CONFIG).write_text(
            _TEMPLATE.format(name=name, port=port, part=part, task=task, policy=policy), encoding="utf-8"
        )
    except OSError as error:
        raise ConfigurationError(f"cannot make {folder}: {error.strerror}") from error
    except IdentityError as error:
        raise ConfigurationError(str(error)) from error
    return identity


def next_boot(folder: Path) -> int:
    """Count a start of this node; the count is on the disk when this returns, so no frame is ever numbered twice."""
    path = folder / BOOT
    try:
        boot = int(path.read_text()) + 1 if path.exists() else 1
    except ValueError as error:
        raise ConfigurationError(f"{path} is damaged: it must hold a number, greater than any before") from error
    replace_file(path, [f"{boot}\n".encode()])
    return boot


def lock(folder: Path) -> IO[bytes]:
    """Keep a second process out of a node's folder for as long as the returned file is open.

    Raises:
        ConfigurationError: another process runs this node.
    """
    file = (folder / LOCK).open("ab")
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise ConfigurationError(f"{folder} is in use: another process runs this node") from error
    return file


def entry(name: str, identity: Identity, address: str) -> str:
    """Return the lines by which others add a node to their configuration."""
    return f'[[peer]]\nname = "{name}"\nkey = "{identity.public.hex()}"\naddress = "{address}"\n'


_TEMPLATE = """\
# A p2pfl node. All members of a federation need the same values, but for `name`, `listen`, `part` and `device`.

name = "{name}"
federation = "home"
listen = "127.0.0.1:{port}"   # connections are not encrypted yet: loopback only
part = "{part}"               # which part of a built-in data set is this node's

rounds = 10
seed = 0                   # with the name, the round and the purpose it makes every random draw
deadline = 30.0            # seconds to wait for a peer before going on without it
patience = 0               # rounds without a better validation loss before learning stops; 0 never
device = "cpu"             # cpu, cuda, mps, or auto

[task]
name = "{task}"            # digits, concept-shift, or your own "package.module:factory"

[policy]
name = "{policy}"          # local, random, dac, or your own "package.module:factory"

# The other members: each prints these lines when it is made.
# [[peer]]
# name = "bob"
# key = "..."
# address = "127.0.0.1:4102"
"""
