"""Texts that admit a node: tokens, requests and admissions, as a user passes them to a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from p2pfl.errors import ConfigurationError
from p2pfl.protocols.membership.invitation import ADMISSION, INVITATION, REQUEST

STANDARD_INPUT = "-"
LONGEST = 16 << 20  # maximum characters of an admission
_KINDS = {
    INVITATION: "a token of `p2pfl-node invite`",
    REQUEST: "a request of `p2pfl-node request`",
    ADMISSION: "an admission of `p2pfl-node admit`",
}


def read(word: str, kinds: Sequence[str]) -> str:
    """Return the text that an argument holds or names: the text itself, a file, or "-" for standard input.

    Args:
        kinds: accepted kinds of text, by their prefixes.

    Raises:
        ConfigurationError: the file cannot be read; the text is empty, of another kind, or not of p2pfl. The error does
            not quote the text, because it may be a secret.
    """
    if kind_of(word):
        source, text = "the argument", word
    else:
        source, text = _read_file(word)
    kind = kind_of(text)
    if kind in kinds:
        return text
    needed = " or ".join(_KINDS[each] for each in kinds)
    if not text.strip():
        raise ConfigurationError(f"{source} is empty; expected {needed}")
    found = f"has {_KINDS[kind]}" if kind else "contains nothing that p2pfl-node has written"
    raise ConfigurationError(f"{source} {found}; expected {needed}")


def is_source(word: str) -> bool:
    """Return whether an argument is the text of a credential, or the name of a file."""
    try:
        return bool(kind_of(word)) or Path(word).is_file()
    except OSError:  # too long for a file name
        return True


def kind_of(text: str) -> str:
    """Return the prefix of the kind of a text; "" if p2pfl did not write it."""
    start = "".join(text[:200].split())  # a mail program may have broken the line
    return next((prefix for prefix in _KINDS if start.startswith(prefix)), "")


def _read_file(word: str) -> tuple[str, str]:
    """Return the name of a source for errors, and its text."""
    if word == STANDARD_INPUT:
        if sys.stdin.isatty():
            print("paste the text, then press Enter: ", end="", file=sys.stderr, flush=True)
            return "standard input", sys.stdin.readline()
        try:
            return "standard input", sys.stdin.read(LONGEST)
        except UnicodeDecodeError as error:
            raise ConfigurationError("the standard input is not UTF-8 text") from error
    try:
        with Path(word).open(encoding="utf-8") as file:
            return word, file.read(LONGEST)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{word} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {word}: {error.strerror}") from error
