"""Cores that a process may use, by its affinity and by the quotas of its control groups."""

import os
import subprocess
import sys

import pytest

from p2pfl._util import machine
from p2pfl._util.machine import usable_cores
from p2pfl.sim.execution.runner import processes_of
from tests.support.system_files import SystemFiles

AFFINITY = hasattr(os, "sched_setaffinity")


@pytest.fixture
def files(monkeypatch, tmp_path):
    """The system's files, on a machine whose cores this process may all use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "ROOT", tmp_path / "system")
    return SystemFiles(tmp_path / "system")


def test_without_control_groups_affinity_counts(files):
    assert usable_cores() == 8


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("1600000 100000", 8), ("", 8)],
)
def test_quota_of_version_2_limits_cores(files, quota, cores):
    files |= {"/proc/self/cgroup": ["0::/"], "/sys/fs/cgroup/cpu.max": [quota]}
    assert usable_cores() == cores


def test_quotas_of_parent_groups_limit_cores(files):
    files |= {
        "/proc/self/cgroup": ["0::/jobs.slice/job-7/step-0"],
        "/sys/fs/cgroup/jobs.slice/job-7/step-0/cpu.max": ["max 100000"],
        "/sys/fs/cgroup/jobs.slice/job-7/cpu.max": ["300000 100000"],
        "/sys/fs/cgroup/jobs.slice/cpu.max": ["600000 100000"],
    }
    assert usable_cores() == 3


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("250000", 5), ("20000", 1)])
def test_quota_of_version_1_limits_cores(files, quota, cores):
    group = "/sys/fs/cgroup/cpu/docker/1a2b"
    files |= {
        "/proc/self/cgroup": ["5:memory:/other", "4:cpu,cpuacct:/docker/1a2b", "1:name=systemd:/docker/1a2b"],
        f"{group}/cpu.cfs_quota_us": [quota],
        f"{group}/cpu.cfs_period_us": ["50000"],
    }
    assert usable_cores() == cores


def test_container_sees_only_its_root_group(files):
    files |= {"/proc/self/cgroup": ["0::/docker/1a2b"], "/sys/fs/cgroup/cpu.max": ["400000 100000"]}
    assert usable_cores() == 4


def test_engine_starts_a_process_for_each_usable_core(files):
    files |= {"/proc/self/cgroup": ["0::/"], "/sys/fs/cgroup/cpu.max": ["300000 100000"]}
    assert processes_of("process", None) == 3
    assert processes_of("process", 5) == 5


def test_without_affinity_the_machine_counts(files, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.mark.slow
@pytest.mark.skipif(not AFFINITY, reason="this system has no CPU affinity")
def test_process_on_one_core_counts_one():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from p2pfl._util.machine import usable_cores; print(usable_cores())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
