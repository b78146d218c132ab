"""The command `p2pfl-sim new`: a folder with a task, a policy, a scenario and a test to begin with."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from p2pfl._util.console import add_command, add_output, print_answer
from p2pfl._util.registry import find_module
from p2pfl.errors import ConfigurationError

TEMPLATES = Path(__file__).parent / "new_project"
MODULES = ("task", "policy")
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def add_commands(commands: Any) -> None:
    """Add `new` to the commands of p2pfl-sim."""
    making = add_command(
        commands,
        "new",
        "create a folder with a task, a policy, a scenario and a test of your own",
        "p2pfl-sim new my_study",
    )
    making.add_argument("name", metavar="NAME", help="name of the project, and of the folder to create")
    add_output(making)
    making.set_defaults(do=_new)


def _new(options: argparse.Namespace) -> int:
    folder = Path(options.name)
    files = make_project(folder)
    text = f"created {folder}: {', '.join(files)}\nnext: p2pfl-sim run {folder}/scenario.toml, and read {folder}/README.md"
    print_answer(options, text, {"folder": str(folder), "files": files})
    return 0


def make_project(folder: Path) -> list[str]:
    """Write the files of a new project, and return their names.

    Raises:
        ConfigurationError: the name is invalid, or that of an installed module; the folder is not empty; an installed
            module would be imported instead of the project's; or a file cannot be written.
    """
    name = folder.name
    _check_name(name, folder)
    for module in MODULES:
        if other := find_module(str(folder.resolve()), module).elsewhere:
            raise ConfigurationError(
                f"the module {module} is installed in {other}: Python would import it instead of the {module}.py of the"
                " project; remove it, or use another environment"
            )
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not an empty folder; choose another name")
    written = []
    try:
        folder.mkdir(exist_ok=True)
        for path in sorted(TEMPLATES.glob("*.txt")):
            target = folder / path.stem.replace("NAME", name)
            target.write_text(Template(path.read_text(encoding="utf-8")).substitute(name=name), encoding="utf-8")
            written.append(target.name)
    except OSError as error:
        raise ConfigurationError(f"cannot create {folder}: {error.strerror}") from error
    return written


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
