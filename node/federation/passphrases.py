"""Passphrases of admission keys: from a file, from the environment, or typed."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from p2pfl.errors import ConfigurationError

VARIABLE = "P2PFL_ADMISSION_PASSPHRASE"
_MOST = 4096  # maximum bytes


def present(key: Path, file: str | Path = "") -> bytes:
    """Return the passphrase of an encrypted key: from `file`, else from the environment, else from the terminal.

    Raises:
        ConfigurationError: there is none, or the file cannot be read.
    """
    if file:
        return read(Path(file).expanduser())
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE].encode()
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{key} is encrypted and needs its passphrase: use --passphrase-file, passphrase_file in node.toml, the"
            f" environment variable {VARIABLE}, or a terminal"
        )
    return getpass.getpass(f"passphrase of {key}: ").encode()


def choose(file: Path | None, asked: bool) -> bytes | None:
    """Return the passphrase for a new key: from a file, or typed twice; None if neither is requested.

    Raises:
        ConfigurationError: the file cannot be read, there is no terminal, or the two entries differ.
    """
    if file is not None:
        return read(file)
    if not asked:
        return None
    if not sys.stdin.isatty():
        raise ConfigurationError("--passphrase needs a terminal; use --passphrase-file instead")
    first = getpass.getpass("passphrase of the new admission key: ")
    if getpass.getpass("repeat the passphrase: ") != first:
        raise ConfigurationError("the two passphrases differ")
    return first.encode()


def read(path: Path) -> bytes:
    """Return the passphrase in the first line of a file.

    Raises:
        ConfigurationError: the file cannot be read, or contains no passphrase.
    """
    try:
        with path.open("rb") as file:
            line = file.read(_MOST).partition(b"\n")[0].rstrip(b"\r")
    except OSError as error:
        raise ConfigurationError(f"cannot read the passphrase from {path}: {error.strerror}") from error
    if not line:
        raise ConfigurationError(f"{path} has no passphrase: its first line is empty")
    return line
