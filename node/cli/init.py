"""p2pfl-node init: create the folder of a node."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl.config.local_options import check_shared
from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.options import PORT, add_listen, add_policy, listen_of
from p2pfl.system.console import add_command
from p2pfl.system.shared_options import add_output, print_answer
from p2pfl.task import TASKS

if TYPE_CHECKING:
    from p2pfl.node.folder.project import Project


def add_commands(commands: Any) -> None:
    """Add `init` to the commands of p2pfl-node."""
    parser = add_command(
        commands,
        "init",
        "create a node's folder with a key and a configuration",
        "p2pfl-node init alice --port 4101 --part 0/20",
        "p2pfl-node init bob --data bob.csv",
        "p2pfl-node init carol --broker mqtt://broker.example:1883 --policy fedpref",
        "p2pfl-node init dave --from my_project --part 3/20",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to create")
    network = parser.add_argument_group("name and network")
    network.add_argument("--name", help="name of the node in the federation (default: the name of FOLDER)")
    add_listen(network, str(PORT))
    network.add_argument(
        "--broker",
        default="",
        metavar="URL",
        help="MQTT broker that all members can reach, such as mqtt://host:1883 (default: none)",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--part",
        default="0/1",
        metavar="I/N",
        help="part of a built-in data set for this node: part I of N, counted from 0 (default: 0/1)",
    )
    data.add_argument(
        "--data",
        default="",
        metavar="FILE",
        help="the node's own data: an .npz or .csv file for the task classification, a .toml schema for fairness and"
        " praffl (default: none)",
    )
    data.add_argument(
        "--root",
        default="",
        metavar="DIR",
        help="folder with the published data sets (default: the environment variable P2PFL_DATA)",
    )
    learning = parser.add_argument_group("learning")
    learning.add_argument(
        "--task",
        metavar="TASK",
        help=f"learning problem: {', '.join(TASKS)}, or package.module:factory (default: digits; with --data"
        " classification)",
    )
    add_policy(learning, None)
    learning.add_argument(
        "--from", dest="project", type=Path, metavar="PROJECT",
        help="take the task, the policy and the round settings from a scenario file, or from scenario.toml in a folder,"
        " and copy the modules that they need",
    )  # fmt: skip
    learning.add_argument(
        "--run", metavar="NAME", help="with --from, use this run of the scenario (default: the keys that all runs share)"
    )
    add_output(parser)
    parser.set_defaults(do=_init)


def _check_folder_name(name: str) -> None:
    """Raise ConfigurationError if the name of the folder is unsuitable for the node."""
    from p2pfl.node.folder.config import check_name

    try:
        check_name(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; choose another one with --name") from error


def _init(options: argparse.Namespace) -> int:
    from p2pfl.node.folder.config import create

    name = options.name or options.folder.resolve().name
    if not options.name:
        _check_folder_name(name)
    listen = listen_of(options, ":0") or f":{PORT}"
    project = _project(options)
    task = options.task or ("classification" if options.data else "digits")
    own = options.data
    if project is not None:
        project, own = project.with_own_data(own)
    _check_data(task if project is None else project.settings["task"].get("name", task), own)
    data, root = (_from_anywhere(path) for path in (own, options.root))
    identity = create(
        options.folder,
        name,
        listen,
        options.part,
        task=task,
        policy=options.policy or "dac",
        data=data,
        broker=options.broker,
        root=root,
        settings={} if project is None else project.settings,
    )
    notes = []
    if project is not None:
        project.copy_modules(options.folder)
        notes = list(project.describe())
    text = (
        f"created {options.folder}; next: p2pfl-node federation create {options.folder} --backup FILE, or with a token"
        f" p2pfl-node join {options.folder}"
    )
    answer = {"folder": str(options.folder), "name": name, "listen": listen, "key": identity.public.hex()}
    print_answer(options, "\n".join([*notes, text]), answer)
    return 0


def _check_data(task: str, data: str) -> None:
    """Raise ConfigurationError if a file does not exist; `data` may also be the name of a published data set."""
    if not data or Path(data).expanduser().exists():
        return
    try:
        check_shared("task", task, {"data": data})
    except ConfigurationError:  # a file of this machine
        raise ConfigurationError(f"--data: the file {data} does not exist") from None


def _project(options: argparse.Namespace) -> Project | None:
    """Return the project that `init` takes the task and the policy from, if it takes them from one."""
    from p2pfl.node.folder.project import read_project

    if options.project is None:
        if options.run is not None:
            raise ConfigurationError("--run chooses a run of the scenario of --from; add --from PROJECT, or leave it out")
        return None
    if options.task or options.policy:
        raise ConfigurationError("--from takes the task and the policy from the project; leave out --task and --policy")
    return read_project(options.project, options.run)


def _from_anywhere(path: str) -> str:
    """Return an existing path as an absolute one, for a node that starts in another folder; keep other words."""
    return str(Path(path).resolve()) if path and Path(path).exists() else path
