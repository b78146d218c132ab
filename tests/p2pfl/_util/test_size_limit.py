"""Models that are too large for the machine: refused before memory is allocated."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from p2pfl._util import machine
from p2pfl.errors import ConfigurationError
from p2pfl.learning.modules import make_module
from p2pfl.node.federation import loading
from p2pfl.node.folder import config
from p2pfl.task import Part, make_task
from tests.support.processes import federate

GB = 10**9


def test_check_size_refuses_model_beyond_memory():
    machine.check_size("the model", 1000, 4 * machine.TRAINING * 1000)
    with pytest.raises(ConfigurationError, match=r"the model has 1,001 values: a node needs about 0\.0 MiB of memory"):
        machine.check_size("the model", 1001, 4 * machine.TRAINING * 1000)


def test_check_size_for_reading_allows_larger_model():
    memory = 4 * machine.READING * 1000
    machine.check_size("the model", 1000, memory, machine.READING)
    with pytest.raises(ConfigurationError):
        machine.check_size("the model", 1000, memory)


def test_check_size_with_unknown_memory_allows_all():
    machine.check_size("the model", 10**15, None)


def test_free_memory_of_this_machine_is_plausible():
    free = machine.free_memory()
    assert free is None or 0 < free < 10**15


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("digits", {"hidden": 10**9}),
        ("images", {"model": {"name": "mlp", "hidden": [10**9]}}),
        ("fairness", {"data": "synthetic", "hidden": [10**8]}),
        ("fairness", {"data": "synthetic", "hidden": [10**8], "normalise": False}),
        ("teachers", {"hidden": 10**9}),
    ],
)
def test_task_with_huge_model_is_refused_before_allocation(task, options):
    """The model would take up to 256 GB."""
    with machine.within(GB), pytest.raises(ConfigurationError, match=r"the task's model has .* values: a node needs"):
        made = make_task(task, options, Part(0, 3), 0)
        made.layout  # noqa: B018


def test_make_module_with_limit_keeps_initial_values():
    def factory():
        return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))

    torch.manual_seed(1)
    plain = factory()
    torch.manual_seed(1)
    with machine.within(GB):
        counted = make_module(factory)
    for one, other in zip(plain.state_dict().values(), counted.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_make_module_falls_back_to_real_memory():
    def factory():
        module = nn.Linear(2, 2)
        module.scale = module.weight.sum().item()  # a tensor without memory has no value
        return module

    with machine.within(GB):
        assert isinstance(make_module(factory).scale, float)


@pytest.fixture
def folder(tmp_path):
    config.create(tmp_path / "alice", "alice")
    federate(tmp_path, ["alice"])
    return tmp_path / "alice"


def test_node_refuses_federation_with_too_large_model(folder):
    ready = loading.load(folder)
    stated = msgspec.structs.replace(ready.agreement.model, values=10**11)
    ready = ready._replace(agreement=msgspec.structs.replace(ready.agreement, model=stated))
    with pytest.raises(ConfigurationError, match="the model of the federation test has 100,000,000,000 values"):
        loading.task_of(ready, memory=GB)
    assert loading.task_of(loading.load(folder), memory=GB).layout.size == 4810


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_node_out_of_memory_reports_configuration_error(tmp_path):
    """A data set whose size is not limited in advance."""
    config.create(tmp_path / "alice", "alice", task="teachers")
    code = (
        "import resource, sys; from pathlib import Path; from p2pfl.node.federation import loading\n"
        "ready = loading.load(Path(sys.argv[1]), ['task.test=1000000000'])\n"
        "import p2pfl.tasks.teachers\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))\n"
        "try: loading.task_of(ready, 10**9)\n"
        "except loading.ConfigurationError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "alice")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3])
    assert done.stdout == "command line: not enough memory for the task\n", done.stderr
