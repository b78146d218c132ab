"""Tests that need a library of an extra: where it is not installed, they skip with the extra's name.

`tests/conftest.py` runs every module and test in `skip_without_extras`. A test that would see only the message or the exit
code of a command is marked `needs_torch`.
"""

import re
from contextlib import contextmanager
from importlib import metadata
from importlib.machinery import PathFinder

import pytest
from packaging.requirements import Requirement

from p2pfl.errors import IN_EXTRAS, MissingRequirementError


def is_missing(module):
    return PathFinder.find_spec(module) is None


needs_torch = pytest.mark.skipif(is_missing("torch"), reason="needs the extra torch")


@contextmanager
def skip_without_extras():
    """Skip the test or the module in the block if it fails for the want of a library that is not installed."""
    try:
        yield
    except Exception as error:
        errors = list(chain(error))
        for module, (_, extra) in IN_EXTRAS.items():
            if is_missing(module) and any(wants(each, module) for each in errors):
                pytest.skip(f"needs the extra {extra}", allow_module_level=True)
        skip_if_wanted("\n".join(map(str, errors)))
        raise


def skip_if_wanted(output):
    """Skip the test if the output of a failed command asks for a library of an extra, and the library is not installed."""
    extras = re.findall(r"pip install 'p2pfl-node\[([\w-]+)\]'", output)
    modules = re.findall(r"No module named '?(\w+)", output)
    if not extras and not modules:
        return
    for requirement in map(Requirement, metadata.requires("p2pfl-node") or ()):
        for extra in metadata.metadata("p2pfl-node").get_all("Provides-Extra"):
            asked = extra in extras or requirement.name in modules
            if asked and in_extra(requirement, extra) and is_absent(requirement.name):
                pytest.skip(f"needs the extra {extra}", allow_module_level=True)


def in_extra(requirement, extra):
    marker = requirement.marker
    return marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra})


def is_absent(name):
    """Return whether a distribution is not installed."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return True
    return False


def wants(error, module):
    """Return whether an error says that this module of an extra is missing."""
    if isinstance(error, MissingRequirementError):
        return f"needs {IN_EXTRAS[module][0]}: " in str(error)
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == module


def chain(error):
    """Yield an error, its parts, and the errors that led to them."""
    waiting = [error]
    while waiting:
        error = waiting.pop()
        yield error
        waiting += [
            each for each in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())) if each is not None
        ]
