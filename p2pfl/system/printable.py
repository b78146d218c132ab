"""Text of others, made fit for a terminal, a log and a page."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with "?" for every character that a terminal does not show but obeys.

    These are control characters, line and paragraph separators, marks that change the direction of what follows, other
    invisible characters, and those that Unicode does not know.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def key_name(key: bytes) -> str:
    """Return the first digits of a key, short enough for a message to people."""
    return key.hex()[:16]
