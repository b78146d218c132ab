"""Tests that need a library of an extra: where it is not installed, they skip with the extra's name.

`tests/conftest.py` runs every module and test in `skip_without_extras`. A test that would see only the message or the exit
code of a command is marked `needs_torch`.
"""

from contextlib import contextmanager
from importlib.machinery import PathFinder

import pytest

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
        for module, (_, extra) in IN_EXTRAS.items():
            if is_missing(module) and any(wants(each, module) for each in chain(error)):
                pytest.skip(f"needs the extra {extra}", allow_module_level=True)
        raise


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
