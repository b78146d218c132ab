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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from node import tables
from node.checkpoint import replace_file
from node.messaging import Member
from node.settings import Settings
from p2pfl.errors import ConfigurationError
from p2pfl.names import locate
from p2pfl.policies import POLICIES
from p2pfl.task import TASKS, Part
from protocols.errors import AddressError, IdentityError
from protocols.identity import Identity, read_public
from protocols.tcp import check_loopback

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
        Part.parse(self.part)
        locate("task", tables.named("task", self.task)[0], TASKS, "p2pfl.tasks")
        locate("policy", tables.named("policy", self.policy)[0], POLICIES, "p2pfl.policies")
        owners: dict[bytes, str] = {}
        for name, member in self.members().items():
            if member.key in owners:
                raise ConfigurationError(f"{owners[member.key]} and {name} have the same key; every node has its own")
            owners[member.key] = name

    def members(self) -> dict[str, Member]:
        """Return the peers by name.

        Raises:
            ConfigurationError: a key or an address is malformed, or an address is not on this machine.
        """
        try:
            for address in (self.listen, *(peer.address for peer in self.peer)):
                check_loopback(address)
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
    with said_of(path):
        config.check()
        _check_own_key(folder, config)
    return config


@contextmanager
def said_of(path: Path) -> Iterator[None]:
    """Name the file of which a ConfigurationError speaks."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _check_own_key(folder: Path, config: NodeConfig) -> None:
    with suppress(IdentityError):  # `run` says what is wrong with the key file; `status` does without
        own = Identity.load(folder / KEY).public
        for name, member in config.members().items():
            if member.key == own:
                raise ConfigurationError(f"{name} has this node's own key; every node has its own")


def create(folder: Path, name: str, port: int, part: str = "0/1", task: str = "digits", policy: str = "dac") -> Identity:
    """Make a node's folder with a key and a configuration to be completed.

    Raises:
        ConfigurationError: the folder holds a node already, or cannot be made, or the configuration would be wrong; then
            nothing is written. (A "package.module:factory" need not exist yet.)
    """
    if not 0 <= port < 65536:
        raise ConfigurationError(f"port must be from 0 to 65535, got {port}")
    NodeConfig(name=name, listen=f"127.0.0.1:{port}", part=part, task={"name": task}, policy={"name": policy}).check()
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


def locked(folder: Path) -> bool:
    """Return whether a process runs the node of a folder. (Where there are no locks: whether one may.)"""
    if os.name != "posix":
        return True
    import fcntl

    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: not to be taken for a node by another who looks
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def entry(name: str, identity: Identity, address: str) -> str:
    """Return the lines by which others add a node to their configuration."""
    return f'[[peer]]\nname = "{name}"\nkey = "{identity.public.hex()}"\naddress = "{address}"\n'


_TEMPLATE = """\
# A p2pfl node. All members of a federation need the same values, but for `name`, `listen`, `part` and `device`.

name = "{name}"               # by which the others know this node
federation = "home"        # nodes of another one are not talked to
listen = "127.0.0.1:{port}"   # connections are not encrypted yet: loopback only
part = "{part}"               # which part of a built-in data set is this node's

rounds = 10                # how often the node trains and learns with peers
seed = 0                   # with the name, the round and the purpose it makes every random draw
mode = "synchronous"       # wait for models of the same round; "asynchronous" takes the newest that there is
deadline = 30.0            # seconds to wait for a peer before going on without it
max_staleness = inf        # seconds; an asynchronous node leaves out models that are older
patience = 0               # rounds without a better validation loss before learning stops; 0 never
evaluate_every = 1         # rounds between evaluations on validation and test data; 0 evaluates the last model only
device = "cpu"             # cpu, cuda, mps, or auto

[task]
name = "{task}"            # digits, concept-shift, or your own "package.module:factory"

[policy]
name = "{policy}"          # local, random, dac, or your own "package.module:factory"

[budget]                   # what a node may receive in a round; 0 is no limit
models = 0                 # how many models
bytes = 0                  # how many bytes of models

# The other members: each prints these lines when it is made.
# [[peer]]
# name = "bob"
# key = "..."
# address = "127.0.0.1:4102"
"""
