"""The command `p2pfl-sim new`: a folder with a project to begin with.

It has a task, a policy, a scenario and a test to change; or with `--from`, a scenario for the user's own data or model.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from p2pfl._util.console import add_command, add_output, print_answer
from p2pfl._util.registry import find_module
from p2pfl.data.inspection import inspect
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli import own_project

TEMPLATES = Path(__file__).parent / "new_project"
MODULES = ("task", "policy")
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def add_commands(commands: Any, run: Callable[[Sequence[str]], int]) -> None:
    """Add `new` to the commands of p2pfl-sim.

    Args:
        run: runs p2pfl-sim with other arguments, for --run.
    """
    making = add_command(
        commands,
        "new",
        "create a project: from your data or model, or with a task, a policy, a scenario and a test to change",
        "p2pfl-sim new --from patients.csv --run",
        "p2pfl-sim new photos_study --from photos/ --nodes 8",
        "p2pfl-sim new net_study --from my_module:Net --data patients.csv",
        "p2pfl-sim new my_study",
    )
    making.add_argument(
        "name", nargs="?", metavar="NAME", help="name of the project, and of the folder to create (default: that of DATA)"
    )
    own = making.add_argument_group("your data or model")
    own.add_argument(
        "--from", dest="source", metavar="DATA",
        help="a .csv or .npz file, a folder of images, a saved Hugging Face dataset, or package.module:Name of a torch"
        " module: look at it, and write a scenario for it, with a reason for each choice",
    )  # fmt: skip
    own.add_argument("--data", metavar="FILE", help="with a torch module, the data (default: the only data of this folder)")
    own.add_argument("--label", default="", metavar="COLUMN", help="column of the labels (default: it is proposed)")
    own.add_argument(
        "--by", default="", metavar="COLUMN", help="column whose values are the nodes, such as a site (default: proposed)"
    )
    own.add_argument("--task", choices=("classification", "regression"), help="kind of the task (default: it is proposed)")
    own.add_argument("--nodes", type=int, default=0, metavar="N", help="number of nodes (default: it is proposed)")
    own.add_argument("--run", action="store_true", help="run the scenario at once, with the results in NAME/results")
    add_output(making)
    making.set_defaults(do=partial(_new, run))


def _new(run: Callable[[Sequence[str]], int], options: argparse.Namespace) -> int:
    if options.source is not None:
        return _new_from(run, options)
    given = [key for key in ("data", "label", "by", "task", "nodes", "run") if getattr(options, key)]
    if given or options.name is None:
        what = f"--{given[0]} needs --from DATA" if given else "name the project, or its data with --from DATA"
        raise ConfigurationError(what)
    folder = Path(options.name)
    files = make_project(folder)
    text = f"created {folder}: {', '.join(files)}\nnext: p2pfl-sim run {folder}/scenario.toml, and read {folder}/README.md"
    print_answer(options, text, {"folder": str(folder), "files": files})
    return 0


def _new_from(run: Callable[[Sequence[str]], int], options: argparse.Namespace) -> int:
    """Make a project for the user's data or model."""
    model = options.source if _MODULE.fullmatch(options.source) and not Path(options.source).exists() else ""
    if options.data and not model:
        raise ConfigurationError("--data belongs to a torch module: --from package.module:Name --data FILE")
    data = Path(options.source if not model else options.data or ".")
    proposal = inspect(data, label=options.label, task=options.task or "", by=options.by, nodes=options.nodes)
    folder = Path(options.name or _name_for(proposal.data, model))
    _check_new(folder)
    module = None
    if model:
        _check_not_installed(folder, "task")
        module = own_project.look_at_module(model, proposal)
    own_project.check(proposal, module)
    scenario, files = folder / "scenario.toml", own_project.files_of(folder, proposal, module)
    lines = proposal.lines(simulation=True) + ([] if module is None else [f"  {module.line}"])
    _write(folder, files)
    written = [*files, *(module.copy(folder) if module is not None else ())]
    if options.run:
        print(
            "\n".join([*lines, f"created {folder}: {', '.join(written)}"]), file=sys.stderr if options.json else sys.stdout
        )
        return run(["run", str(scenario), "--out", str(folder / "results"), *(["--json"] if options.json else [])])
    lines += [f"created {folder}: {', '.join(written)}", f"next: p2pfl-sim run {scenario} --out {folder / 'results'}"]
    reasons = [each._asdict() for each in proposal.reasons]
    print_answer(options, "\n".join(lines), {"folder": str(folder), "files": written, "proposal": reasons})
    return 0


def _name_for(data: Path, model: str) -> str:
    """Return a name for the project of some data, or a model, that can be that of a folder."""
    stem = model.rpartition(":")[2].lower() if model else data.resolve().name.partition(".")[0]
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_") or "own"
    return f"{name if name[0].isalpha() else f'data_{name}'}_study"


def make_project(folder: Path) -> list[str]:
    """Write the files of a new project, and return their names.

    Raises:
        ConfigurationError: the name is invalid, or that of an installed module; the folder is not empty; an installed
            module would be imported instead of the project's; or a file cannot be written.
    """
    name = folder.name
    _check_new(folder)
    for module in MODULES:
        _check_not_installed(folder, module)
    files = {
        path.stem.replace("NAME", name): Template(path.read_text(encoding="utf-8")).substitute(name=name)
        for path in sorted(TEMPLATES.glob("*.txt"))
    }
    _write(folder, files)
    return list(files)


def _check_not_installed(folder: Path, module: str) -> None:
    if other := find_module(str(folder.resolve()), module).elsewhere:
        raise ConfigurationError(
            f"the module {module} is installed in {other}: Python would import it instead of the {module}.py of the"
            " project; remove it, or use another environment"
        )


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a new project, by name."""
    try:
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot create {folder}: {error.strerror}") from error


def _check_new(folder: Path) -> None:
    """Raise ConfigurationError unless a folder can be that of a new project."""
    _check_name(folder.name, folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not an empty folder; choose another name")


def _check_name(name: str, folder: Path) -> None:
    """Raise ConfigurationError unless a name can be that of a folder with Python modules."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        near = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        hint = f", such as {near}" if _NAME.fullmatch(near) and not keyword.iskeyword(near) else ""
        raise ConfigurationError(
            f"the name {name!r} must begin with a letter, have only letters, digits and '_',"
            f" and not be a Python keyword{hint}"
        )
    if name in sys.stdlib_module_names:
        raise ConfigurationError(f"{name} is a module of Python's standard library; choose another name")
    found = find_spec(name)
    if found is not None and list(found.submodule_search_locations or []) != [str(folder.resolve())]:
        raise ConfigurationError(f"a module {name} is installed, in {found.origin or 'another folder'}; choose another name")
