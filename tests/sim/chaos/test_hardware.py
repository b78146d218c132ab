"""The simulated disk: what a power failure keeps, and a full disk."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from p2pfl._util.atomic_files import replace_file
from p2pfl.node.folder.incarnation import count_start
from p2pfl.sim.chaos.hardware import Life, Mount, ProcessEnd, SimulatedDisk

FILE = Path("node/file")


def disks(count=40):
    """Return disks with a flushed old content and a new one that was not flushed."""
    for seed in range(count):
        disk = SimulatedDisk(Random(seed))
        replace_file(FILE, [b"old"], disk=Mount(disk, Life("")))
        yield disk, Mount(disk, Life(""))


def test_power_failure_keeps_flushed_content():
    for disk, mount in disks():
        replace_file(FILE, [b"new" * 1000], disk=mount)
        disk.lose_power()
        assert mount.read(FILE) == b"new" * 1000


def test_power_failure_loses_or_tears_unflushed_content():
    left = set()
    for disk, mount in disks():
        replace_file(FILE, [b"new" * 1000], durable=False, disk=mount)
        assert mount.read(FILE) == b"new" * 1000
        disk.lose_power()
        left.add(mount.read(FILE))
    assert b"old" in left
    assert any(content.startswith(b"new") and content != b"new" * 1000 for content in left)


def test_power_failure_on_write_ends_process_at_every_operation():
    for operation in range(1, 20):
        disk = SimulatedDisk(Random(operation))
        path, life = Path("node/incarnation"), Life("")
        started = [count_start(path, disk=Mount(disk, life)) for _ in range(2)]
        disk.fails_at = disk.operations + operation

        def fail(disk=disk, life=life):
            disk.lose_power()
            life.end = 0.0

        disk.on_failure = fail
        with suppress(ProcessEnd):
            started.append(count_start(path, disk=Mount(disk, life)))
        disk.fails_at = 0
        assert count_start(path, disk=Mount(disk, Life(""))) > max(started)


def test_full_disk_refuses_files_and_keeps_old_content():
    disk, mount = next(disks())
    disk.is_full = lambda: True
    with pytest.raises(OSError, match="No space left"):
        replace_file(FILE, [b"new"], disk=mount)
    assert disk.copy() == {FILE: b"old"}


def test_killed_process_cannot_use_its_disk():
    disk, life = SimulatedDisk(Random(0)), Life("")
    life.end = 1.0
    with pytest.raises(ProcessEnd):
        replace_file(FILE, [b"new"], disk=Mount(disk, life))
    assert disk.copy() == {}
