"""Deferred and forbidden imports. (`scripts/check imports` checks their directions.)"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("p2pfl", "protocols", "topologies", "node", "sim")


def imports(path):
    for element in ast.walk(ast.parse(path.read_text())):
        if isinstance(element, ast.Import):
            yield from (name.name.partition(".")[0] for name in element.names)
        elif isinstance(element, ast.ImportFrom) and element.level == 0:
            yield element.module.partition(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("p2pfl", ("torch", "asyncio")),
        ("p2pfl.protocols.wire.envelope", ("torch",)),
        ("p2pfl.protocols.transports.tls", ("torch",)),
        ("p2pfl.node.cli.main", ("zeroconf", "aiomqtt", "torch")),
        ("p2pfl.node.runtime.run", ("aiomqtt", "prometheus_client", "torch", "networkx", "duckdb", "zeroconf", "ifaddr")),
        ("p2pfl.protocols.wire.payload", ("torch",)),
        ("p2pfl.tasks.digits", ("torch",)),
        ("p2pfl.tasks.table", ("torch",)),
        ("p2pfl.sim.cli.main", ("torch",)),
        ("p2pfl.sim.report.write", ("torch",)),
        ("p2pfl.node.cli.export", ("onnx",)),
    ],
)
def test_import_does_not_load_heavy_modules(module, absent):
    code = f"import sys, {module}; print(*set({absent!r}) & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.slow
def test_packages_do_not_use_pickle_or_torch_load():
    own_workers = ROOT / "sim" / "simulation" / "workers.py"  # copies a program's own objects to its own processes
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            allowed = {"cloudpickle"} if path == own_workers else set()
            assert not {"pickle", "shelve", "marshal", "dill", "cloudpickle"} & set(imports(path)) - allowed, path
            assert "torch.load" not in path.read_text(), path
