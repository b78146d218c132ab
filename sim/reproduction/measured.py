"""Last measured figures of the shipped scenarios, in a file that `p2pfl-sim reproduce --record` writes.

The file is part of the repository, but not of the installed packages.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2pfl.errors import ConfigurationError
from p2pfl.sim.execution.inputs import Content
from p2pfl.sim.scenario.scenario import SHIPPED
from p2pfl.system.atomic_files import reason, replace_file

FILE = SHIPPED.resolve().parents[1] / "results" / "measured.json"  # in a checkout; missing if p2pfl is installed


class Measured(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Figures of a form of a scenario.

    Attributes:
        seconds: duration on `cores` otherwise idle cores; None if unknown.
        figures: for each row, the figure that the scenario compares with the paper's; {} if only the time was
            estimated.
        seeds: seeds over which the figures are means.
        version: version of p2pfl that produced them.
        by_seed: for each figure that claims compare and each row, its values by seed; {} in older entries.
        inputs: for each row, the content that its figures were computed from (see p2pfl.sim.execution.inputs); rows that
            earlier versions have recorded have none.
    """

    seconds: float | None = None
    cores: int = 2
    seeds: list[int] = []
    version: str = ""
    figures: dict[str, float] = {}
    by_seed: dict[str, dict[str, list[float]]] = {}
    inputs: dict[str, Content] = {}


Book = dict[str, dict[str, Measured]]
"""By scenario and form."""


def load(path: Path) -> Book:
    """Read measured figures; {} if the file does not exist.

    Raises:
        ConfigurationError: the file cannot be read, or is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Book)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error


def record(path: Path, scenario: str, form: str, measured: Measured) -> None:
    """Write the figures of a form in place of earlier ones, with four digits.

    Raises:
        ConfigurationError: the file cannot be read or written.
    """
    book = load(path)
    figures = {row: _rounded(figure) for row, figure in measured.figures.items()}
    by_seed = {
        figure: {row: [_rounded(value) for value in values] for row, values in rows.items()}
        for figure, rows in measured.by_seed.items()
    }
    book.setdefault(scenario, {})[form] = msgspec.structs.replace(measured, figures=figures, by_seed=by_seed)
    ordered = {name: dict(sorted(book[name].items())) for name in sorted(book)}
    try:
        replace_file(path, [msgspec.json.format(msgspec.json.encode(ordered), indent=1), b"\n"])
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {reason(error)}") from error


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")
