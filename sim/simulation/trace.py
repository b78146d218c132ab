"""Trace of a run: every event in order, as one hash. Equal traces mean equal runs."""

from __future__ import annotations

from hashlib import sha256
from operator import itemgetter

import xxhash

from p2pfl.parameters import Parameters


class Trace:
    """Hash of the lines "time node kind peer round parameters", ordered by time and then by node.

    Events of the same time are held until time moves on. The hash therefore does not depend on the order in which nodes
    run at one time.
    """

    def __init__(self) -> None:
        self._hash = sha256()
        self._instant = 0.0
        self._lines: list[tuple[str, str]] = []

    def published(self, now: float, node: str, stage: str, round: int, params: Parameters) -> None:
        if now != self._instant:
            self._flush(now)
        self._lines.append((node, f"{node} {stage} - {round} {xxhash.xxh3_128_hexdigest(params.data)}"))

    def received(self, now: float, node: str, round: int, senders: str) -> None:
        if now != self._instant:
            self._flush(now)
        self._lines.append((node, f"{node} received {senders} {round} -"))

    def digest(self) -> str:
        """Return the SHA-256 of all events so far, in hexadecimal."""
        whole = self._hash.copy()
        whole.update(self._held())
        return whole.hexdigest()

    def _flush(self, now: float) -> None:
        """Hash the held events, and begin the next time."""
        self._hash.update(self._held())
        self._lines.clear()
        self._instant = now

    def _held(self) -> bytes:
        """Return the events of this time in order of nodes; each node's events keep their own order."""
        if not self._lines:
            return b""
        lines = [line for _, line in sorted(self._lines, key=itemgetter(0))]
        return f"{self._instant!r}\n{chr(10).join(lines)}\n".encode()
