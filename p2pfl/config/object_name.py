"""Names of factories that a Python program gives as objects, in place of a "package.module:factory"."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from p2pfl.errors import ConfigurationError, MissingRequirementError

PREFIX = "object:"


class ObjectName(str):
    """Name that carries the factory it stands for, so that tables with names can hold objects.

    In a file only the text remains, and nothing resolves it. Worker processes of this program get a copy of the factory.

    Args:
        text: name of the factory, for messages.
        factory: object that is called to make a task or a policy.
    """

    factory: Callable[..., Any]

    def __new__(cls, text: str, factory: Callable[..., Any]) -> ObjectName:
        name = super().__new__(cls, PREFIX + text)
        name.factory = factory
        return name

    def __copy__(self) -> ObjectName:
        return self

    def __deepcopy__(self, memo: object) -> ObjectName:
        return self  # a factory may hold large data

    def __reduce__(self) -> Any:
        text = self.removeprefix(PREFIX)
        try:
            import cloudpickle
        except ImportError as error:
            raise MissingRequirementError(
                f"worker processes need cloudpickle for {text}: pip install 'p2pfl-node[notebook]', or leave out workers"
            ) from error
        try:
            return _unpack, (text, cloudpickle.dumps(self.factory))
        except Exception as error:  # of the object's own parts
            reason = f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"{text} cannot be copied to worker processes ({reason}); leave out workers") from error


def _unpack(text: str, factory: bytes) -> ObjectName:
    return ObjectName(text, pickle.loads(factory))
