"""Checks of a node. Each returns its finding and the remedy in one line.

Checks receive all input as plain arguments and change nothing. They raise no error that the user could correct. The
checks of the network are in p2pfl.node.doctor.network_checks.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from p2pfl.errors import ConfigurationError
from p2pfl.node.folder import config as folders
from p2pfl.parameters import Layout
from p2pfl.protocols.errors import IdentityError
from p2pfl.protocols.identity import Identity
from p2pfl.system.atomic_files import reason
from p2pfl.system.printable import plural

OLDEST = 2026  # a clock that shows an earlier year is wrong
TIMESYNC = Path("/run/systemd/timesync")
LEAST_FREE = 100_000_000  # bytes


@dataclass(frozen=True)
class Finding:
    """Finding of a check.

    Attributes:
        check: the subject of the check, in one word.
        ok: True, False, or None if it may be intended.
        result: the result.
        remedy: the remedy; "" if none is needed.
    """

    check: str
    ok: bool | None
    result: str
    remedy: str = ""


def report(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each finding."""
    marks = {True: "ok   ", False: "wrong", None: "note "}
    return [f"{marks[f.ok]}  {f.check}: {f.result}" + (f"; {f.remedy}" if f.remedy else "") for f in findings]


# Folder


def check_key(folder: Path) -> Finding:
    """Check the node's private key."""
    path = folder / folders.KEY
    try:
        identity = Identity.load(path)
    except IdentityError as error:
        again = "restore it from a backup, or create a new node with p2pfl-node init"
        return Finding("key", False, str(error), "" if "chmod" in str(error) else again)
    return Finding("key", True, f"intact, and readable by its owner only: {identity.public.hex()}")


def check_folder(folder: Path) -> Finding:
    """Check whether other users of the machine can enter the node's folder."""
    open_to = folders.open_to_others(folder)
    if open_to:
        result, _, remedy = open_to.partition("; ")
        return Finding("folder", None, f"{result}: they can read its files, or stop the node by locking them", remedy)
    return Finding("folder", True, "accessible to its owner only")


def check_disk(folder: Path, needed: int = 0) -> Finding:
    """Check whether checkpoints can be written.

    Args:
        needed: bytes that the node will write. The check requires at least four times its newest checkpoint, and 100
            MB.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
        free = shutil.disk_usage(folder).free
        checkpoint = folder / folders.CHECKPOINT
        needed = max(needed, LEAST_FREE, 4 * (checkpoint.stat().st_size if checkpoint.exists() else 0))
    except OSError as error:
        return Finding("disk", False, f"cannot write to {folder}: {reason(error)}", "free some space, or check its owner")
    if free < needed:
        result = f"{free / 1e6:,.0f} MB are free in {folder}, but the node may need {needed / 1e6:,.0f} MB"
        return Finding("disk", False, result, "free some space, or move the folder to another disk")
    return Finding("disk", True, f"{free / 1e9:,.1f} GB are free")


def check_federation(folder: Path, revoked_by: Sequence[str] = ()) -> Finding:
    """Check the federation file, the membership, and whether this node is a member, or has requested to be one.

    Args:
        revoked_by: members that have refused this node as a former member.
    """
    from p2pfl.node.federation.membership_file import awaited_federation, load_federation
    from p2pfl.node.federation.revocation import describe_pending, describe_refusal, way_back

    try:
        membership = load_federation(folder)
        own = Identity.load(folder / folders.KEY).public
    except ConfigurationError as error:
        return Finding("federation", False, str(error), "restore the file from a backup, or join again")
    except IdentityError:
        return Finding("federation", None, "not checked, because the key of the node is missing or damaged")
    if membership is None and (awaited := awaited_federation(folder)):
        result, _, remedy = describe_pending(awaited, folder).partition("; ")
        return Finding("federation", None, result, remedy)
    if membership is None:
        remedy = f"run p2pfl-node federation create {folder} --backup FILE, or p2pfl-node join {folder}"
        return Finding("federation", None, "this node belongs to no federation", remedy)
    name = membership.file.name
    if refusal := describe_refusal(membership, own, folder):
        result, _, remedy = refusal.partition("; ")
        return Finding("federation", False, result, remedy)
    if revoked_by:
        result = f"the membership of this node in {name} was revoked, according to {', '.join(revoked_by)}"
        return Finding("federation", False, result, way_back(folder))
    return Finding(
        "federation",
        True,
        f"{name}, members: {len(membership.members)}, membership version: {membership.membership_version}",
    )


def check_layout(make: Callable[[], Layout], agreed: str | None, data: str = "") -> Finding:
    """Check whether the node's task can be made, with the model that the federation has agreed on.

    Args:
        make: creates the task and returns its layout; may raise ConfigurationError.
        agreed: the fingerprint of the federation's layout, in hexadecimal; None if the node belongs to no federation.
        data: path of the node's own data file; "" for none. An error that names this file is one of its content.
    """
    try:
        layout = make()
    except ConfigurationError as error:
        of_file = data and str(Path(data).expanduser()) in str(error)
        remedy = "put the right file there, or name another one in node.toml" if of_file else "correct it in node.toml"
        return Finding("task", False, str(error), remedy)
    size, own = f"{plural(layout.size, 'value')} in {plural(len(layout.shapes), 'tensor')}", layout.fingerprint.hex()
    if agreed is None:
        return Finding("task", True, size)
    if own != agreed:
        result = f"the task has a model of the layout {own}, the federation one of {agreed}"
        return Finding("task", False, result, "use the same version and the same options of the task as the other members")
    return Finding("task", True, f"{size}, as in the federation")


def check_clock(
    wall: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    timesync: Path = TIMESYNC,
) -> Finding:
    """Check the clock, on which the expiry of invitations depends. Nothing else of a node depends on it.

    Args:
        wall, monotonic: return seconds.
        pause: waits for a number of seconds.
        timesync: the folder of systemd's time synchronisation.
    """
    remedy = "set the clock, or synchronise it: timedatectl set-ntp true"
    year = datetime.fromtimestamp(wall(), UTC).year
    if not OLDEST <= year < OLDEST + 50:
        return Finding("clock", False, f"it shows the year {year}, so invitations expire at the wrong time", remedy)
    before = wall() - monotonic()
    pause(0.2)
    moved = wall() - monotonic() - before
    if abs(moved) > 0.1:
        return Finding("clock", None, f"it was just moved by {moved:+.1f} s; invitations expire by this clock", remedy)
    if (timesync / "synchronized").exists():
        return Finding("clock", True, "synchronised")
    if timesync.exists():
        return Finding("clock", None, "not synchronised yet; invitations expire by this clock", remedy)
    return Finding("clock", True, f"plausible: {datetime.fromtimestamp(wall(), UTC):%Y-%m-%d %H:%M} UTC")
