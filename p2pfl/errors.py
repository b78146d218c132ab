"""Exceptions of the project. Each text is one line for the user.

P2pflError
  + ConfigurationError
    + MissingRequirementError
    + RevokedError                p2pfl.node.federation.membership_file
    + UnknownKeyError
    + CommandLineError
  + RunError
    + BudgetExceededError
    + DivergenceError
    + DeadlockError               p2pfl.sim.simulation.clock
    + WorkerLostError             p2pfl.sim.simulation.workers
  + DecodeError (a ValueError)    p2pfl.compression.codecs
  + DamagedFileError              p2pfl._util.atomic_files
  + UnusableFileError             p2pfl.sim.execution.resume
  + UnknownContentError           p2pfl.content
  + IncarnationConflictError      p2pfl.node.peering.control_messages
  + ProtocolError                 p2pfl.protocols.errors
    + DamageError                 p2pfl.protocols.mqtt.link
  + TransportError                p2pfl.protocols.errors
    + AddressInUseError           p2pfl.protocols.errors
    + RefusedError                p2pfl.protocols.errors
  + IdentityError                 p2pfl.protocols.errors
    + PassphraseError             p2pfl.protocols.errors
  + AddressError                  p2pfl.protocols.errors
  + FederationError               p2pfl.protocols.errors
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class P2pflError(Exception):
    """Base of all exceptions of this project."""


class ConfigurationError(P2pflError):
    """Mistake in the user's input. The text says what is wrong, where, and what is expected.

    A configuration can come from a file and, key by key, from a command line. The code that finds a mistake knows its
    keys, but not where their values came from; `name_source` adds that.

    Attributes:
        keys: dotted keys of the wrong value, such as "policy.tau", or of the values that contradict each other.
    """

    def __init__(self, text: str = "", *keys: str) -> None:
        super().__init__(text)
        self.keys = keys


class UnknownKeyError(ConfigurationError):
    """Key of a configuration that this version does not have."""


class CommandLineError(ConfigurationError):
    """Mistake in an option of the command line, not in a file."""


class MissingRequirementError(ConfigurationError):
    """Missing requirement that the user must provide or install: a data set, an extra."""


COMMAND_LINE = "command line"  # source of a value, in errors


@contextmanager
def about(*keys: str) -> Iterator[None]:
    """Give a ConfigurationError of the block these keys, unless it has its own."""
    try:
        yield
    except ConfigurationError as error:
        error.keys = error.keys or keys
        raise


@contextmanager
def name_source(source: str, changed: Collection[str] = (), changer: str = COMMAND_LINE) -> Iterator[None]:
    """Begin a ConfigurationError of the block with the source of the wrong value.

    Args:
        source: the file of the configuration.
        changed: keys whose values have another source; `policy` includes all keys of its table.
        changer: that other source.
    """
    try:
        yield
    except ConfigurationError as error:
        wrong = [f"{key}." for key in error.keys]
        others = [f"{key}." for key in changed]
        where = changer if any(a.startswith(b) or b.startswith(a) for a in wrong for b in others) else source
        kind = CommandLineError if where == COMMAND_LINE else type(error)
        raise kind(f"{where}: {error}", *error.keys) from error


IN_EXTRAS = {
    "torch": ("PyTorch", "torch"),
    "dp_accounting": ("dp-accounting", "privacy"),
    "duckdb": ("DuckDB", "sim"),
    "networkx": ("NetworkX", "sim"),
    "PIL": ("Pillow", "images"),
    "peft": ("PEFT", "adapters"),
    "pyarrow": ("pyarrow", "arrow"),
    "transformers": ("Transformers", "adapters"),
    "xxhash": ("xxhash", "sim"),
}
"""Modules of libraries that a node without extras lacks: the name of the library, and the extra with it."""


@contextmanager
def needs_extra(what: str, extra: str = "") -> Iterator[None]:
    """Raise MissingRequirementError if the block imports a module of IN_EXTRAS that is not installed.

    Args:
        what: the part of p2pfl, or of a user's configuration, that needs the library, for the error.
        extra: the extra to name; by default that of the library.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        root = (error.name or "").partition(".")[0]
        if root not in IN_EXTRAS:
            raise
        library, usual = IN_EXTRAS[root]
        raise MissingRequirementError(f"{what} needs {library}: pip install 'p2pfl-node[{extra or usual}]'") from error


def require(module: str, what: str) -> None:
    """Raise MissingRequirementError if a module of IN_EXTRAS is not installed; do not import it."""
    with needs_extra(what):
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)


class RunError(P2pflError):
    """Failure of a run or a command for a reason other than the configuration.

    Attributes:
        run: the name of the run if there are several; otherwise "".
    """

    run = ""

    def __str__(self) -> str:
        return f"{self.run}: {self.reason()}" if self.run else self.reason()

    def reason(self) -> str:
        """Return the reason without the name of the run."""
        return super().__str__()


class BudgetExceededError(RunError):
    """Policy request that exceeds its node's budget."""


class DivergenceError(RunError):
    """Training that produced a parameter that is not finite."""

    def __init__(self, name: str, round: int) -> None:
        super().__init__(name, round)  # pickle rebuilds the error from these when it comes from another process

    def reason(self) -> str:
        name, round = self.args
        return f"the training of {name} diverged in round {round}; a lower learning rate may help"


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """Return the error for an unknown `name`, with the nearest `known` one."""
    names, keys = sorted(known), [name] if what == "key" else []
    parent, dot, key = name.rpartition(".")
    siblings = [each.removeprefix(parent + dot) for each in names if each.startswith(parent + dot)]
    begun = [each for each in siblings if key and each.startswith(key)]
    alike = begun if len(begun) == 1 else difflib.get_close_matches(key, siblings, n=1)
    near = [parent + dot + each for each in alike]  # a common parent is no likeness
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return (UnknownKeyError if keys else ConfigurationError)(f"unknown {what} {name!r}; {hint}", *keys)


def none_of(where: str, value: object, allowed: Iterable[object]) -> ConfigurationError:
    """Return the error for a `value` that is not `allowed`, with all allowed values and the nearest one."""
    words = [str(word) or '""' for word in allowed]
    near = difflib.get_close_matches(str(value), words, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ConfigurationError(f"{where} must be one of {', '.join(words)}, got {value!r}{hint}", where)


def must_be(where: str, expected: str, value: object) -> ConfigurationError:
    """Return the error for the `value` of a key that is not as `expected`, such as "0 or more"."""
    return ConfigurationError(f"{where} must be {expected}, got {value!r}", where)


def first_error(error: BaseException) -> BaseException:
    """Return the first error that is not a group, from a group nested to any depth; return any other error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
