"""Change of one key of a node's node.toml that keeps the rest of the file."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from p2pfl._util.atomic_files import reason, replace_file
from p2pfl._util.disk import PRIVATE
from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.config import CONFIG


def set_text(folder: Path, key: str, value: str, table: str = "") -> None:
    """Set a key of node.toml that has text as its value. Comments, order and line breaks stay.

    Args:
        table: the table of the key, which is added if it is missing; by default the key is above the tables.

    Raises:
        ConfigurationError: the file cannot be read or written, is not TOML, or has a value in place of the table.
    """
    path = folder / CONFIG
    line = tomlkit.dumps({key: value}).strip()
    instead = f"write {line} {f'below [{table}]' if table else 'above the first table'} of {path}"
    try:
        document = tomlkit.parse(path.read_bytes().decode())
        target = document.setdefault(table, tomlkit.table()) if table else document
        if not isinstance(target, MutableMapping):
            raise ConfigurationError(f"{table} is not a table; {instead}")
        target[key] = value
        replace_file(path, [tomlkit.dumps(document).encode()], mode=PRIVATE)
    except OSError as error:
        raise ConfigurationError(f"cannot set {key}: {reason(error)}; {instead}") from error
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot set {key}: {error}; {instead}") from error
