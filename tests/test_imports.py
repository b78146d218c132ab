"""Imports run one way: p2pfl, then protocols and topologies, then node, then sim."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "p2pfl": set(),
    "protocols": {"p2pfl"},
    "topologies": set(),
    "node": {"p2pfl", "protocols"},
    "sim": {"p2pfl", "protocols", "topologies", "node"},
}
# p2pfl.Node and p2pfl.simulate are looked up by name when first asked for; type checkers see the import.
FOR_TYPE_CHECKERS = {("p2pfl/__init__.py", "node"), ("p2pfl/__init__.py", "sim")}


def imports(path):
    for element in ast.walk(ast.parse(path.read_text())):
        if isinstance(element, ast.Import):
            yield from (name.name.partition(".")[0] for name in element.names)
        elif isinstance(element, ast.ImportFrom) and element.level == 0:
            yield element.module.partition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_lies_below_them(package):
    for path in (ROOT / package).rglob("*.py"):
        name = str(path.relative_to(ROOT))
        ours = {other for other in imports(path) if other in MAY_IMPORT} - {package}
        ours -= {other for file, other in FOR_TYPE_CHECKERS if file == name}
        assert ours <= MAY_IMPORT[package], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("p2pfl", "torch"),
        ("p2pfl", "asyncio"),
        ("protocols.envelope", "torch"),
        ("protocols.tls", "torch"),
        ("node.cli", "zeroconf"),
        ("node.cli", "aiomqtt"),
        ("node.runtime", "aiomqtt"),
        ("node.runtime", "prometheus_client"),
        ("protocols.payload", "torch"),
        ("node.cli", "torch"),
        ("sim.cli", "torch"),
        ("sim.report.write", "torch"),
        ("node.runtime", "networkx"),
        ("node.runtime", "duckdb"),
        ("node.export", "onnx"),
    ],
)
def test_heavy_modules_are_imported_where_they_are_needed(module, absent):
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
def test_nothing_unpickles_or_loads_with_torch():
    for package in MAY_IMPORT:
        for path in (ROOT / package).rglob("*.py"):
            assert not {"pickle", "shelve", "marshal", "dill", "cloudpickle"} & set(imports(path)), path
            assert "torch.load" not in path.read_text(), path
