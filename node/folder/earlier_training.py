"""Checkpoints of a node from before it entered a federation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2pfl.node.folder.config import CHECKPOINT
from p2pfl.system.atomic_files import sync_folder

EARLIER = f"{CHECKPOINT}.earlier"
STOP_FIRST = "runs this node; stop it first"  # what holds the lock of a folder whose federation is to change


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, from which the next run resumes; the newest is first."""
    return [path for path in (folder / CHECKPOINT, *(folder / f"{CHECKPOINT}.{k}" for k in (1, 2))) if path.exists()]


def set_checkpoints_aside(folder: Path) -> bool:
    """Rename the last checkpoint, so that the next run starts with round 1; return whether there was one.

    The members of a federation start with the same model. A node that has trained before would otherwise count its own
    rounds as those of the federation, and could finish at once.
    """
    found = checkpoints(folder)
    for older in found[1:]:  # first: after an interruption they would replace the newest one
        older.unlink()
    if found:
        found[0].replace(folder / EARLIER)
        sync_folder(folder)
    return bool(found)


def watch_checkpoints(folder: Path, notify: Callable[[str], None]) -> Callable[[], None]:
    """Return a function that tells the user if the checkpoints of a folder have been set aside since this call."""
    before = (folder / CHECKPOINT).exists()

    def say() -> None:
        if before and not (folder / CHECKPOINT).exists():
            notify(f"this node has trained before: it starts the federation with round 1, and keeps {folder / EARLIER}")

    return say
