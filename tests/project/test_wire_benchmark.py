"""Wire benchmark: it runs and writes its figures."""

import json
import os
import subprocess
from math import isfinite
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.depth import deep

ROOT = Path(__file__).parents[2]
SYSTEMS = {"p2pfl", "p2pfl-new", "tls-loop", "tls-blocking", "grpc", "grpc-tls", "pickle"}


@deep
@pytest.mark.slow
def test_wire_benchmark_writes_figures(tmp_path):
    pytest.importorskip("grpc", reason="grpcio is not installed")
    done = subprocess.run(
        [forked.executable(), str(ROOT / "benchmarks" / "wire.py"), "--quick", "--json", "figures.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert list(figures["GB/s"]) == ["4 MB", "40 MB"]
    for speeds in (*figures["GB/s"].values(), *figures["both ends, CPU s/GB"].values()):
        assert set(speeds) >= SYSTEMS
        assert all(speed > 0 and isfinite(speed) for speed in speeds.values())
    assert {"memcpy", "BLAKE3", "BLAKE3 and Ed25519 sign", "BLAKE3 and Ed25519 verify"} < set(figures["CPU s/GB"])
    assert figures["handshakes/s"] > 0
    assert figures["idle"]["bytes/s"] > 0
    for name in (*SYSTEMS, *figures["CPU s/GB"]):
        assert f"  {name} " in done.stdout
