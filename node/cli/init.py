"""p2pfl-node init: create the folder of a node, from options or from a scenario file with the modules that it names."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from p2pfl._util import toml_tables
from p2pfl._util.binding import split_name
from p2pfl._util.console import add_command, add_output, print_answer
from p2pfl._util.registry import find_module, module_files, root_of
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.node.cli.options import PORT, add_listen, add_policy, listen_of
from p2pfl.node.settings import Settings
from p2pfl.privacy import Privacy
from p2pfl.robust.registry import CLIP_LOSS
from p2pfl.task_specs import TASKS, check_shared

if TYPE_CHECKING:
    from p2pfl.data.inspection import Proposal

SCENARIO = "scenario.toml"
KINDS = ("task", "policy")
OWN_FILES = [name for name, spec in TASKS.items() if spec.local.get("data") == "own"]  # tasks whose data is a file
# Keys that only describe a scenario, its table and its repetitions: they have no meaning for a node.
DESCRIPTIVE = {
    "name", "title", "description", "needs", "duration", "differences", "modules", "against", "target", "source", "table",
    "figure", "claim", "forms", "form", "run", "paper", "seeds", "varied", "pool",
}  # fmt: skip


def add_commands(commands: Any) -> None:
    """Add `init` to the commands of p2pfl-node."""
    parser = add_command(
        commands,
        "init",
        "create a node's folder with a key and a configuration",
        "p2pfl-node init alice --port 4101 --part 0/20",
        "p2pfl-node init bob --data bob.csv --label diagnosis",
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
        help="the node's own data: a .csv or .npz file, a folder of images, or a saved Hugging Face dataset; or a .toml"
        " schema for fairness and praffl (default: none)",
    )
    data.add_argument(
        "--label", default="", metavar="COLUMN", help="with --data, the column of the labels (default: it is proposed)"
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
        " what the data needs)",
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
    proposal = _proposal(options, task) if project is None else None
    settings: dict[str, Any] = {} if project is None else project.settings
    if proposal is not None:
        own, settings = str(proposal.data), {"task": proposal.task}
    _check_own_file(settings.get("task", {}), own)
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
        settings=settings,
        comments={} if proposal is None else {key: _first(why) for key, why in proposal.comments.items()},
    )
    notes = []
    if proposal is not None:
        file = options.folder / "node.toml"
        notes = [*proposal.lines(simulation=False), f"these are in {file}", *_what_to_add(file, proposal.task)]
    if project is not None:
        project.copy_modules(options.folder)
        notes = list(project.describe())
    text = (
        f"created {options.folder}; next: p2pfl-node federation create {options.folder} --backup FILE, or with a token"
        f" p2pfl-node join {options.folder}"
    )
    answer = {"folder": str(options.folder), "name": name, "listen": listen, "key": identity.public.hex()}
    if proposal is not None:
        answer |= {"proposal": [each._asdict() for each in proposal.reasons if each.subject != "division"]}
    print_answer(options, "\n".join([*notes, text]), answer)
    return 0


def _first(why: str) -> str:
    """Return the reason of an option, with the time until which the labels and texts of other nodes can be added."""
    from p2pfl.data.inspection import OF_OTHERS

    return why.replace(OF_OTHERS, f"{OF_OTHERS}, before p2pfl-node federation create")


def _what_to_add(file: Path, task: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on what the first node of a federation must list of the other nodes' data, with the lines of the file."""
    lines = {line.partition(" = ")[0]: number for number, line in enumerate(file.read_text().splitlines(), 1)}
    lists = [f"{key} (line {lines[key]})" for key in ("labels", "categories") if key in task]
    if lists:
        left_out = f"; ignore (line {lines['ignore']}) names the columns that are left out" if task.get("ignore") else ""
        yield (
            f"before federation create, add to {' and '.join(lists)} of {file} what only other nodes have, because a node"
            f" with a label or a text that is not listed cannot join{left_out}"
        )


def _check_data(task: str, data: str) -> None:
    """Raise ConfigurationError if a file does not exist; `data` may also be the name of a published data set."""
    if not data or Path(data).expanduser().exists():
        return
    try:
        check_shared("task", task, {"data": data})
    except ConfigurationError:  # a file of this machine
        raise ConfigurationError(f"--data: the file {data} does not exist") from None


def _proposal(options: argparse.Namespace, task: str) -> Proposal | None:
    """Return what is proposed for the node's own file; None without one, or if its task does not take such files."""
    if not options.data or task not in OWN_FILES or not Path(options.data).expanduser().exists():
        if options.label:
            raise ConfigurationError(
                "--label names a column of the file of --data, for the tasks classification and regression"
            )
        return None
    from p2pfl.data.inspection import inspect
    from p2pfl.tasks.mlp import has_torch

    return inspect(Path(options.data), label=options.label, task=options.task or "", has_torch=has_torch())


def _check_own_file(task: Mapping[str, Any], data: str) -> None:
    """Raise ConfigurationError if a node's own file cannot be read with the options of its task."""
    if task.get("name") in OWN_FILES and data and Path(data).expanduser().exists():
        from p2pfl.task import Part, make_task

        make_task(task["name"], {**{k: v for k, v in task.items() if k != "name"}, "data": data}, Part(0, 1), 0)


def _project(options: argparse.Namespace) -> Project | None:
    """Return the project that `init` takes the task and the policy from, if it takes them from one."""

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


class Project(NamedTuple):
    """Part of a project that a node uses.

    Attributes:
        scenario: path of its scenario file.
        settings: keys of node.toml that the scenario sets; `task` and `policy` are always among them.
        files: files and packages of the modules that the task and the policy need.
        unused: keys of the scenario that affect a simulation only.
    """

    scenario: Path
    settings: dict[str, Any]
    files: list[Path]
    unused: list[str]

    def describe(self) -> Iterator[str]:
        """Yield lines that state the origin of the settings, the copied modules, and the keys that are not used."""
        task, policy = (self.settings[kind]["name"] for kind in KINDS)
        yield f"task {task} and policy {policy} from {self.scenario}"
        if self.files:
            yield f"copied {', '.join(path.name for path in self.files)}; copy them again after a change"
        if "robust" not in self.settings:
            yield (
                f"the scenario sets no robust rule for all runs, and the node uses {CLIP_LOSS}; see"
                " docs/reference/configuration.md"
            )
        if self.unused:
            yield f"for simulations only, not used by the node: {', '.join(self.unused)}"

    def with_own_data(self, given: str) -> tuple[Project, str]:
        """Return the project for a node with a file of its own, and that file.

        A task with such a file has neither `data` nor a partition of it: both are for simulations.

        Args:
            given: the node's file; "" takes that of the task, if it has one.
        """
        task = dict(self.settings["task"])
        data = str(task.get("data", ""))
        if task["name"] not in TASKS or not _is_file_of_machine(task["name"], given or data):
            return self, given
        removed = [key for key in ("data", "partition") if task.pop(key, None)]
        unused = [f"task.{key}" for key in removed if given or key != "data"]
        in_project = self.scenario.parent / data
        own = given or str(in_project if in_project.exists() else data)
        return self._replace(settings=self.settings | {"task": task}, unused=[*self.unused, *unused]), own

    def copy_modules(self, folder: Path) -> None:
        """Copy the modules to a node's folder, unless that is the project's folder.

        Raises:
            ConfigurationError: a file cannot be copied.
        """
        if folder.resolve() == self.scenario.resolve().parent:
            return
        try:
            for path in self.files:
                if path.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(path, folder / path.name, ignore=ignored, dirs_exist_ok=True)
                else:
                    shutil.copy(path, folder / path.name)
        except (OSError, shutil.Error) as error:
            raise ConfigurationError(f"cannot copy the modules of {self.scenario} to {folder}: {error}") from error


def read_project(source: Path, run: str | None = None) -> Project:
    """Read a project. No module of it is imported.

    Args:
        source: the scenario file, or the folder of the project.
        run: name of the `[[run]]` entry to use; by default the keys that all runs share.

    Raises:
        ConfigurationError: the scenario is missing or broken, has no such run, or names no task or no policy; or a
            module is missing, or an installed module of the same name would be imported instead.
    """
    path = source / SCENARIO if source.is_dir() else source
    if not path.is_file():
        raise ConfigurationError(
            f"{source} has no {SCENARIO}; make a project with p2pfl-sim new, or name a scenario file"
            if source.is_dir()
            else f"the scenario file {source} does not exist"
        )
    raw = toml_tables.read(path)
    table = _select_run(path, raw, run)
    for kind in KINDS:
        if not isinstance(table.get(kind), Mapping):
            choose = f", or choose a run with --run: {', '.join(_runs(raw))}" if _runs(raw) and run is None else ""
            raise ConfigurationError(
                f'{path} has no {kind} for all runs; add {kind} = {{ name = "..." }} above the runs{choose}'
            )
    if "seed" not in table and (seeds := raw.get("seeds")) and isinstance(seeds, list):
        table["seed"] = seeds[0]
    known = (*Settings.__struct_fields__, *KINDS, "budget", "privacy")
    settings = {key: table[key] for key in known if key in table}
    unused = sorted(table.keys() - {*known, *DESCRIPTIVE})
    if isinstance(settings.get("privacy"), Mapping):  # of all nodes; others are of nodes of the simulation
        settings["privacy"] = {key: value for key, value in table["privacy"].items() if key in Privacy.__struct_fields__}
        unused += [f"privacy.{key}" for key in table["privacy"] if key not in settings["privacy"]]
    return Project(path, settings, _own_files(path, table), unused)


def _is_file_of_machine(task: str, data: str) -> bool:
    """Return whether the option `data` of a task names a file, and not a published data set or nothing."""
    if not data:
        return False
    try:
        check_shared("task", task, {"data": data})
    except ConfigurationError:
        return True
    return False


def _runs(raw: Mapping[str, Any]) -> list[str]:
    entries = raw.get("run", [])
    return [str(entry.get("name")) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _select_run(path: Path, raw: Mapping[str, Any], run: str | None) -> dict[str, Any]:
    """Return the keys of one run, or those of all runs."""
    base = {key: value for key, value in raw.items() if key != "run"}
    if run is None:
        return base
    names = _runs(raw)
    if run not in names:
        raise ConfigurationError(f"{path}: {unknown('run', run, names)}")
    entry = raw["run"][names.index(run)]
    if "each" in entry:
        raise ConfigurationError(f"{path}: the run {run!r} has the key `each`, so it is many runs; choose another one")
    return toml_tables.merge(base, entry)


def _own_files(path: Path, table: Mapping[str, Any]) -> list[Path]:
    """Return the files of the modules that a scenario names and its folder contains."""
    folder = path.resolve().parent
    roots = []
    for kind in KINDS:
        name, _ = split_name(f"{path}: {kind}", table[kind])
        if ":" not in name:
            continue
        root = root_of(name)
        places = find_module(str(folder), root)
        if places.in_folder and places.elsewhere:
            raise ConfigurationError(
                f"{path}: a node would import the module {root} from {places.elsewhere}, not from {folder}; rename the"
                f" project's module"
            )
        if not places.in_folder and not places.elsewhere:
            raise ConfigurationError(f"{path}: the {kind} {name!r} needs the module {root}, which is not in {folder}")
        roots.append(root)
    return module_files(folder, roots)
