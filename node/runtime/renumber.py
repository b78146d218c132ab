"""New message numbers for a node whose folder is older than its last messages."""

from __future__ import annotations

from pathlib import Path

from p2pfl.node.coordination.election_runner import FileVotes
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.folder import config as folders
from p2pfl.node.folder import incarnation
from p2pfl.system.disk import SYSTEM, Disk
from p2pfl.system.event_log import EventLogger


def renumber(folder: Path, known: int, log: EventLogger, disk: Disk = SYSTEM, round: int = 0) -> None:
    """Let the next start of a node use message numbers that no frame of its key has used.

    Args:
        known: the incarnation in a frame of its key that a peer has shown.
        log: receives an event.
        disk: the disk of the folder.
        round: the newest round whose model of this node a peer holds. The node continues after it.

    Raises:
        ConfigurationError: a file cannot be read or written.
    """
    incarnation.note_published(folder / folders.PUBLISHED, round, disk)
    incarnation.count_past(folder / folders.INCARNATION, known, disk)
    membership = load_federation(folder, disk)
    if membership is not None:  # also without a vote file: the copy may be older than the first vote
        FileVotes(folder / folders.VOTE, log, disk).distrust(membership.membership_version)
    log.warning(
        f"peers have newer messages of this node than {folder}: it was restored from an older copy, or another process uses"
        " its key; starting again with new message numbers",
        kind="renumbered",
    )
