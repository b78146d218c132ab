"""Free memory, as read from the system's files."""

import psutil
import pytest

from p2pfl._util import machine
from p2pfl.errors import ConfigurationError
from tests.support.system_files import SystemFiles

UNUSED = ("MemFree", "Buffers", "Cached", "Shmem", "Active", "Inactive")  # psutil warns without them
MEMINFO = ["MemTotal: 9000 kB", "MemAvailable: 8000 kB", *(f"{name}: 1 kB" for name in UNUSED)]


@pytest.fixture
def files(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(machine, "ROOT", tmp_path / "system")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "system/proc"))
    found = SystemFiles(tmp_path / "system")
    found["/proc/meminfo"] = MEMINFO
    return found


def test_free_memory_counts_file_caches_as_free(files):
    files |= {
        "/proc/self/cgroup": ["0::/"],
        "/sys/fs/cgroup/memory.max": ["4096000"],
        "/sys/fs/cgroup/memory.current": ["3000000"],
        "/sys/fs/cgroup/memory.stat": ["active_file 7", "inactive_file 2000000"],
    }
    assert machine.free_memory() == 3_096_000
    files["/sys/fs/cgroup/memory.max"] = ["max"]
    assert machine.free_memory() == 8000 * 1024


def test_free_memory_respects_limits_of_parent_groups(files):
    group = "/sys/fs/cgroup/machine.slice"
    files |= {
        "/proc/self/cgroup": ["0::/machine.slice/one.service"],
        f"{group}/one.service/memory.max": ["max"],
        f"{group}/one.service/memory.current": ["5"],
        f"{group}/memory.max": ["4000"],
        f"{group}/memory.current": ["1000"],
    }
    assert machine.free_memory() == 3000


def test_free_memory_supports_control_groups_version_1(files):
    files |= {
        "/proc/self/cgroup": ["12:cpu,cpuacct:/docker/1f", "4:memory:/docker/1f", "1:name=systemd:/"],
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": ["5000"],  # the only files in a container
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": ["2000"],
        "/sys/fs/cgroup/memory/memory.stat": ["inactive_file 1", "total_inactive_file 500"],
    }
    assert machine.free_memory() == 3500


def test_free_memory_without_system_files_is_unknown(files):
    files.clear()
    assert machine.free_memory() is None
    machine.check_memory("all of it", 2**70)


def test_check_memory_beyond_free_reports_one_line(files):
    machine.check_memory("little", 8000 * 1024)
    with pytest.raises(ConfigurationError, match=r"^much needs 1\.0 GiB of memory, but only 7\.8 MiB is free$"):
        machine.check_memory("much", 2**30)
