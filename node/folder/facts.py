"""Facts of a node's last start, kept in a sealed file: they show what the folder has lost since then.

An older copy of a single file is intact, and so is a folder without a file that not every node has. Each start compares the
folder with these facts:

- the number of starts: an older `incarnation` would use numbers of messages twice;
- the newest term of a vote: with an older `vote` the node could vote twice in a term;
- the newest secure sum that the node has agreed to open: it submits in later rounds only;
- the membership log: an older one would trust former members;
- the federation, and the admission key: without their files the node would train alone, or answer no tokens;
- the private steps: an older ledger would spend a privacy budget twice;
- the limits in node.toml.

A folder that is replaced as a whole by an older copy has older facts. Only peers can notice that; see
p2pfl.node.runtime.run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from p2pfl._util.atomic_files import DamagedFileError, explain, read_sealed, write_sealed
from p2pfl._util.disk import SYSTEM, Disk
from p2pfl._util.event_log import EventLogger
from p2pfl.errors import ConfigurationError
from p2pfl.node.log import LOG
from p2pfl.protocols.election import Term

FACTS = "facts"  # name of the file
_MAGIC = b"p2pfl facts 1\n"


class Facts(msgspec.Struct, frozen=True):
    """Facts that a node remembers apart from the files that have them.

    Attributes:
        starts: the number of starts.
        term: the newest term in which the node has voted.
        federation: the name of its federation; "" for none.
        entries: the number of entries of the membership log.
        admission: the public key of the admission key in the folder; b"" for none.
        limits: values of node.toml that limit what the node receives, trains and tells, by dotted key.
        private_steps: the number of private steps in the ledger; see p2pfl.node.privacy_ledger.
        opened: the newest round whose secure sum the node has agreed to open.
        opened_in: the federation of that round, 16 bytes; b"" for none.
    """

    starts: int = 0
    term: Term = Term(0, 0)
    federation: str = ""
    entries: int = 0
    admission: bytes = b""
    limits: dict[str, bool | int | float | str] = {}
    private_steps: int = 0
    opened: int = 0
    opened_in: bytes = b""


def read_facts(folder: Path, disk: Disk = SYSTEM, log: EventLogger | None = None) -> Facts:
    """Return the facts in a folder; those of a new node if there are none, or if they are damaged.

    Args:
        log: receives an event if they are damaged.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    path = folder / FACTS
    try:
        return msgspec.msgpack.decode(read_sealed(path, _MAGIC, disk), type=Facts)
    except FileNotFoundError:
        return Facts()
    except (DamagedFileError, msgspec.MsgspecError):
        if log is not None:
            log.warning(
                f"{path} is damaged: this start cannot notice whether other files are older than the last one",
                kind="file-damaged",
                path=str(path),
            )
        return Facts()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {explain(error)}") from error


def update_facts(folder: Path, disk: Disk = SYSTEM, **changes: Any) -> None:
    """Change some facts. They are on disk when this returns.

    Raises:
        OSError: they cannot be written.
        ConfigurationError: they cannot be read.
    """
    before = read_facts(folder, disk)
    after = msgspec.structs.replace(before, **changes)
    if after != before:
        write_sealed(folder / FACTS, _MAGIC, msgspec.msgpack.encode(after), disk=disk)


def describe_limits(before: Mapping[str, float | str], now: Mapping[str, float | str]) -> str:
    """Return how the limits of a node differ from those of its last start; "" if they do not."""
    return ", ".join(f"{key} is {now[key]} instead of {value}" for key, value in before.items() if now.get(key) != value)


def report_losses(before: Facts, now: Facts, folder: Path, *, config: str, admission: str, log: EventLogger = LOG) -> None:
    """Report what a folder has lost or changed since the last start.

    Args:
        config, admission: names of the files of the limits and of the admission key.
    """
    if changed := describe_limits(before.limits, now.limits):
        log.warning(f"{folder / config} differs from the last start: {changed}", kind="limits-changed")
    if before.admission and not now.admission:
        path = folder / admission
        log.warning(
            f"{path} was here at the last start, and is missing; restore it from its backup, unless you have moved it to"
            " another member",
            kind="admission-missing",
            path=str(path),
        )
