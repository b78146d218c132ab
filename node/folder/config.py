"""Folder of a node, readable by its owner only: configuration, keys and state.

node.toml        configuration, written by `init` and edited by the owner
key.pem          private key, mode 0600
federation.toml  agreement of the members, signed (see p2pfl.node.federation.agreement)
membership       log of the members, signed
checkpoint       state after the last round; `checkpoint.1` and `checkpoint.2` are the two previous ones
incarnation      number of the node's starts; `incarnation.1` is the previous one
vote             newest term and this node's vote in it (see p2pfl.node.coordination.election_runner)
ledger           private steps of all trainings (see p2pfl.node.privacy_ledger)
status.json      state that `status` shows

`render` makes the text of a new node.toml: all keys with their defaults and a comment each.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import tomli_w

from p2pfl._util import toml_tables
from p2pfl._util.atomic_files import PRIVATE_FOLDER, replace_file
from p2pfl._util.binding import bind, split_name
from p2pfl._util.disk import PRIVATE, SYSTEM
from p2pfl._util.event_log import EventLogger
from p2pfl._util.registry import locate
from p2pfl._util.toml_tables import options_text
from p2pfl.errors import ConfigurationError, about, must_be, name_source
from p2pfl.node.folder import incarnation
from p2pfl.node.log import LOG
from p2pfl.node.settings import DEFAULT_POLICY, DEFAULT_TASK, End, Settings
from p2pfl.policies import POLICIES
from p2pfl.policy import Budget
from p2pfl.privacy import Privacy
from p2pfl.protocols.addresses import BrokerAddress, split_address
from p2pfl.protocols.errors import AddressError, IdentityError
from p2pfl.protocols.identity import Identity
from p2pfl.robust.registry import CLIP_LOSS, Robust
from p2pfl.task import Part
from p2pfl.task_specs import FACTORIES
from p2pfl.tracking.tracker import GROUP, TRACKERS

PUBLISHED = "published"
CONFIG, KEY, CHECKPOINT, INCARNATION, STATUS = "node.toml", "key.pem", "checkpoint", "incarnation", "status.json"
CHECKPOINT_MAGIC = b"p2pfl checkpoint 1\n"
VOTE = "vote"
CONFIG_REMEDY = "correct it, or restore it from a backup"
KEY_REMEDY = "restore it from a backup, or create a new node with p2pfl-node init"
BROKERS = re.compile(r"mqtts?://[^/\s]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LONGEST_PROBE_PERIOD = 3600  # seconds
COMMENTS = 27  # column at which the comments begin
_HEADING = re.compile(r"\[(\w+)\].*")
_KEY = re.compile(r"(\w+) = .*? +(# .*)")
TEMPLATE = """\
# Configuration of a p2pfl node.

name = ""                  # name of this node in the federation
listen = ":4100"           # host:port to listen on; without a host, at all addresses of this machine
advertise = []             # addresses at which others reach this node, if they differ from those of this machine
part = "0/1"               # part of a built-in data set for this node
data = ""                  # own data: a .csv or .npz file, or a folder; a .toml schema for "fairness" or "praffl"
root = ""                  # folder with the published data sets; by default the environment variable P2PFL_DATA
initial = ""               # safetensors file to start from, for tasks that take one; the same content at all nodes
preference = []            # weights of the task's objectives, if it has several; they stay on this node
passphrase_file = ""       # file with the passphrase of the admission key, if that is here and encrypted
device = "cpu"             # cpu, cuda, mps, or auto
mdns = true                # find members on the local network, and announce this node there
direct = true              # listen, and connect to members without the broker where possible
broker = ""                # MQTT broker for members that cannot connect to each other, such as mqtt://host:1883
probe_period = 30          # seconds between probes of silent members while no round is under way; from 1 to 3600
status_port = -1           # port of the status page and of Prometheus metrics, such as 4180; 0: a free port, -1: none
status_host = "127.0.0.1"  # address of the status page; other machines can read the page if this is not loopback
coordinator_memory = 0     # MiB of models that this node holds at most as the coordinator, or for a group; 0: no limit
distrust = 0               # score from which a peer is left out, from 1 to 100; 0: none is (see p2pfl-node status)
evaluate_every = 1         # rounds between evaluations, besides that of the last round; 0: evaluate the last model only
best_by = "loss"           # the model that counts has the lowest validation "loss", or the best validation "metric"

# All members share the settings from here to the codec. `federation create` reads them from this file. For a node that has
# joined, those of the federation replace them. The names of task and policy must be the same here.

rounds = 10                # number of rounds
seed = 0                   # seed of all random draws
members = 1                # members, this node included, that must be present before the first round
mode = "synchronous"       # "synchronous": wait for models of the same round; "asynchronous": use the newest models
deadline = 30.0            # seconds to wait for a peer before continuing without it
adaptive = true            # wait only a few times as long as a peer usually takes
max_staleness = inf        # maximum age in seconds of the models that an asynchronous node uses
robust = "clip-loss"       # protection against malicious members: clip and weigh their models, or "cs+", ...; or "none"
patience = 0               # rounds without a better model on validation before learning stops; 0: never
secure_sums = false        # the coordinator sees sums of models only; for policies that need no more, with robust = "none"
secure_threshold = 0       # least number of models in such a sum; 0: more than two thirds of the members with a vote

[task]
name = "digits"            # digits, images, ... (see p2pfl-node init --help), or your own "package.module:factory"

[policy]
name = "dac"               # dac, dpfl, fedpref, ... (see p2pfl-node init --help), or your own "package.module:factory"

[codec]                    # format of the models on the network
name = "float32"           # float32, float16, bfloat16, int8, top-k, or sparse

# The rest is not shared.

[budget]                   # limits of what this node receives, and of its trainings; 0: no limit
models = 0                 # models in a round
held = 0                   # received models in memory at once
bytes = 0                  # bytes of models in a round
trainings = 0              # trainings in all rounds together; the node then only serves and merges
joules = 0                 # joules of these trainings, where the machine counts them

[privacy]                  # limits of what released models tell about a training sample; needs the extra "privacy"
epsilon = 0.0              # epsilon of all models that this node ever releases, such as 8; 0: no budget
delta = 1e-5               # probability with which the bound may fail; below 1 / samples
clip = 1.0                 # greatest norm of a sample's gradient
validation = "private"     # "public": everybody may see what validation data tell; "private": nothing looks at them
when_spent = "merge"       # "merge": go on without training when the budget is spent; "stop": end the rounds
correlated = false         # neighbours add noise that cancels in the mean of all models, so that each adds less of its own
central = false            # with secure_sums: the noise of all members adds up, so that each adds less
colluding = 1              # with correlated or central: members who may put together what they know

[end]                      # limits of all rounds together, after which this node ends before the last one; 0: no limit
seconds = 0                # seconds of its rounds; waits for members at the start, and serving, do not count
bytes = 0                  # bytes that it receives in rounds

[track]                    # trackers that receive the figures of each round
tools = []                 # "tensorboard", "mlflow", "wandb", "trackio"
project = "p2pfl"          # project of the tracker in which the node appears
folder = ""                # folder for their files; by default `track` in this folder

[addresses]                # known addresses of members
# bob = "192.168.1.6:4100"
"""


class Track(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trackers of the figures of a node; see p2pfl.tracking.

    Attributes:
        tools: "tensorboard", "mlflow", "wandb", "trackio", or "package.module:factory".
        project: project in which the node appears.
        folder: folder for the trackers' files; by default `track` in the node's folder.
    """

    tools: tuple[str, ...] = ()
    project: str = "p2pfl"
    folder: str = ""

    def check(self) -> None:
        """Raise ConfigurationError for an unknown tracker; nothing is imported."""
        for tool in self.tools:
            locate("tracker", tool, TRACKERS, GROUP)


class NodeConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of node.toml. For a member, the federation's agreement replaces the settings that all nodes share.

    Attributes:
        name: name of this node in the federation.
        listen: host:port to listen on; without a host, all addresses.
        advertise: addresses at which others reach this node, if they differ from this machine's own addresses.
        part: this node's part of a task's built-in data, such as "0/3".
        data: path of the node's own data file, for tasks that take one.
        root: folder of the data sets, for tasks that read them; by default the environment variable P2PFL_DATA.
        initial: path of a safetensors file to start from, for tasks that take one; all nodes of a federation need the
            same content.
        preference: this node's weights of a task's objectives, for tasks with several; they stay on the node.
        passphrase_file: path of a file with the passphrase of the admission key, if that is here and encrypted.
        mdns: whether to search for members on the local network, and to announce this node there.
        direct: whether to listen, and to dial members that can be reached without the broker.
        broker: URL of an MQTT broker through which members can be reached, "mqtt://host:1883" or "mqtts://host:8883";
            `#sha256=` and the fingerprint of its certificate at the end accept only this certificate.
        probe_period: seconds between probes of silent members while no round is under way: before the first one, and
            after the last one. From 1 to 3600; a longer period saves a battery, but it takes up to twice as long until
            the node knows that a member is gone. In a round one second counts.
        status_port: port of the status page for browsers and Prometheus (see p2pfl.node.status.endpoints); 0 selects a
            free port, -1 disables the page.
        status_host: address of this machine for the status page; other machines can read it if the address is not on
            loopback.
        coordinator_memory: MiB of the members' models, two of each, with which this node stands for election as the
            coordinator at most, and which it holds at most, also as the summer of a group; 0 sets no limit.
        task: the learning problem: a table with a `name`, and the options of that task; by default `digits`.
        policy: the rule by which this node chooses peers and averages: a table with a `name`, and the options of that
            policy; by default `dac`.
        budget: limits of what this node may receive, and of its trainings; what is beyond them is left out.
        privacy: limits of what all models that this node ever releases tell about a training sample; see p2pfl.privacy.
        end: seconds and received bytes of this node's rounds after which it ends before all of them, and serves its model.
        track: trackers that receive the figures of this node.
        addresses: known addresses of members, by name. The node also finds others; `join` saves that of the inviting node.
    """

    name: str
    listen: str
    advertise: tuple[str, ...] = ()
    part: str = "0/1"
    data: str = ""
    root: str = ""
    initial: str = ""
    preference: tuple[float, ...] = ()
    passphrase_file: str = ""
    mdns: bool = True
    direct: bool = True
    broker: str = ""
    adaptive: bool = True
    robust: Robust = CLIP_LOSS
    probe_period: float = 30.0
    status_port: int = -1
    status_host: str = "127.0.0.1"
    coordinator_memory: int = 0
    task: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": DEFAULT_TASK})
    policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": DEFAULT_POLICY})
    budget: Budget = Budget()
    privacy: Privacy = Privacy()
    end: End = End()
    track: Track = Track()
    addresses: dict[str, str] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        super().check()
        check_name(self.name)
        for name in self.addresses:
            check_name(name, "addresses")
        with about("part"):
            Part.parse(self.part)
        with about("task"):
            locate("task", split_name("task", self.task)[0], FACTORIES, "p2pfl.tasks")
            if "preference" in self.task:
                raise ConfigurationError(
                    "task.preference would be sent to the other members, like all options of the task; write"
                    " preference = [...] above the tables instead"
                )
            if "root" in self.task:
                raise ConfigurationError(
                    "task.root is a folder of this machine, but all members share the options of the task; write"
                    ' root = "..." above the tables instead'
                )
        with about("policy"):
            locate("policy", split_name("policy", self.policy)[0], POLICIES, "p2pfl.policies")
        self.privacy.check()
        self.end.check()
        with about("track"):
            self.track.check()
        own = [("listen", self.listen), *(("advertise", address) for address in self.advertise)]
        for key, address in (*own, *(("addresses", address) for address in self.addresses.values())):
            try:
                split_address(address)
            except AddressError as error:
                raise ConfigurationError(str(error), key) from error
        self._check_numbers()
        if not self.status_host:
            raise ConfigurationError("status_host must be an address of this machine, such as 127.0.0.1", "status_host")
        if self.status_port < 0 and self.status_host != "127.0.0.1":
            raise ConfigurationError(
                "status_host needs status_port, such as --status-port 4180", "status_host", "status_port"
            )
        with about("broker"):
            if self.broker and not BROKERS.fullmatch(self.broker):
                raise ConfigurationError("broker must be of the form mqtt://host:1883 or mqtts://host:8883")
            try:
                if self.broker:
                    BrokerAddress.parse(self.broker)
            except AddressError as error:
                raise ConfigurationError(f"broker: {error}") from error

    def _check_numbers(self) -> None:
        if not 1 <= self.probe_period <= LONGEST_PROBE_PERIOD:
            raise must_be("probe_period", f"from 1 to {LONGEST_PROBE_PERIOD} seconds", self.probe_period)
        if not -1 <= self.status_port < 65536:
            raise must_be("status_port", "from 0 to 65535, or -1 for none", self.status_port)
        if self.coordinator_memory < 0:
            raise must_be("coordinator_memory", "0 (no limit) or more, in MiB", self.coordinator_memory)

    def task_options(self) -> dict[str, Any]:
        """Return the options of the task, with the node's own files and preference if it has them."""
        _, options = split_name("task", self.task)
        own = {"data": self.data, "root": self.root, "initial": self.initial, "preference": self.preference}
        return options | {key: value for key, value in own.items() if value}


def check_name(name: str, key: str = "name") -> None:
    """Raise ConfigurationError for a name that is unsuitable for files, logs and tables.

    Args:
        key: the key that has the name, for the error.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"name {name!r} must have at most 64 letters, digits, '.', '_' and '-', and begin with a letter or digit",
            key,
        )


def check_folder_of_node(folder: Path) -> None:
    """Raise ConfigurationError if a folder is not that of a node, or does not exist."""
    if not SYSTEM.exists(folder / CONFIG):
        if folder.is_file():
            raise ConfigurationError(f"{folder} is a file; name the folder of the node, such as {folder.parent}")
        if not SYSTEM.exists(folder):
            raise ConfigurationError(
                f"{folder} does not exist; if the node was moved, name its folder there (p2pfl-node list DIR finds it), or"
                f" create a new node with p2pfl-node init {folder}"
            )
        if SYSTEM.exists(folder / KEY):
            raise ConfigurationError(f"{folder} has the key of a node, but no {CONFIG}; restore that from a backup")
        raise ConfigurationError(
            f"{folder} is not a node's folder: it has no {CONFIG}; create one with p2pfl-node init {folder}"
        )


def load(folder: Path, changes: Sequence[str] = ()) -> NodeConfig:
    """Read the configuration in a node's folder, with "key=value" changes from the command line applied.

    Raises:
        ConfigurationError: the configuration is missing or wrong; the text names its source, the file or the command line.
    """
    check_folder_of_node(folder)
    path = folder / CONFIG
    try:
        table = toml_tables.read(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; {CONFIG_REMEDY}") from error
    if missing := [key for key in ("name", "listen") if key not in table]:
        raise ConfigurationError(f"{path}: {missing[0]} is missing; {CONFIG_REMEDY}")
    with name_source(str(path), [toml_tables.parse_change(change)[0] for change in changes]):
        whole = toml_tables.with_changes(table, changes)
        config = bind(whole, NodeConfig)
        config.check()
        return config


def create(
    folder: Path,
    name: str,
    listen: str = ":4100",
    part: str = "0/1",
    *,
    task: str = DEFAULT_TASK,
    policy: str = DEFAULT_POLICY,
    data: str = "",
    broker: str = "",
    root: str = "",
    settings: Mapping[str, Any] = MappingProxyType({}),
    comments: Mapping[str, str] = MappingProxyType({}),
) -> Identity:
    """Create a node's folder, for its owner only, with a key and a configuration for the owner to complete.

    Args:
        settings: keys of rounds, task, policy, codec and budget that differ from those of a new configuration; tables
            of the task and the policy replace the names `task` and `policy`.
        comments: a line above an option of the task, by its name.

    Raises:
        ConfigurationError: the folder holds a node already, or cannot be created, or the configuration would be wrong;
            then nothing is written. (A "package.module:factory" need not exist yet.)
    """
    values = {"name": name, "listen": listen, "part": part, "data": data, "root": root, "broker": broker}
    values |= {"task": {"name": task}, "policy": {"name": policy}} | dict(settings)
    with name_source("the configuration of the node"):
        config = bind(values, NodeConfig)
    config.check()
    if (folder / CONFIG).exists():
        raise ConfigurationError(f"{folder} contains a node already; choose another folder")
    text = render(values, comments)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        identity = Identity.create(folder / KEY)
        replace_file(folder / CONFIG, [text.encode()], mode=PRIVATE)
    except OSError as error:
        raise ConfigurationError(f"cannot create {folder}: {error.strerror}") from error
    except IdentityError as error:
        raise ConfigurationError(str(error)) from error
    return identity


def own_identity(folder: Path) -> Identity:
    """Return the key of the node in a folder.

    Raises:
        ConfigurationError: the key file is missing, damaged, or readable by others; the text has the remedy.
    """
    try:
        return Identity.load(folder / KEY)
    except IdentityError as error:
        remedy = "" if "; " in str(error) else f"; {KEY_REMEDY}"
        raise ConfigurationError(f"{error}{remedy}") from error


def own_key(folder: Path) -> bytes:
    """Return the public key of the node in a folder.

    Raises:
        ConfigurationError: see `own_identity`.
    """
    return own_identity(folder).public


def open_to_others(folder: Path) -> str:
    """Return the access of other users to a node's folder, and the command that removes it; or "".

    Other users can neither read nor lock a file in a folder of mode 0700, whatever the mode of the file.
    """
    if os.name != "posix":
        return ""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return ""
    if not mode & 0o077:
        return ""
    return f"other users of this machine can enter {folder} (mode {mode:04o}); run: chmod -R go= {folder}"


def next_incarnation(folder: Path, log: EventLogger = LOG) -> int:
    """Count a start of this node (see p2pfl.node.folder.incarnation.count_start)."""
    return incarnation.count_start(folder / INCARNATION, log)


def render(values: Mapping[str, Any], comments: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text of a node.toml with these values; keys that are not given keep their defaults.

    Args:
        values: keys and tables of node.toml. Keys of a table that the template lacks, such as options of a task, are
            added at the end of the table.
        comments: a line above an option of the task that the template lacks, by its name.
    """
    lines, table, left = [], "", dict(values)
    for line in TEMPLATE.splitlines():
        if found := _HEADING.fullmatch(line):
            table, left = found[1], dict(values.get(found[1], {}))
        elif not line and table:
            lines += options_text(left, comments if table == "task" else {})
            left = {}
        if (found := _KEY.fullmatch(line)) and found[1] in left:
            text = tomli_w.dumps({found[1]: left.pop(found[1])}).strip()
            line = f"{text.ljust(COMMENTS - 1)} {found[2]}"
        lines.append(line)
    return "\n".join(lines) + "\n"
