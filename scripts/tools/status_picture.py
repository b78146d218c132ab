"""Screenshot of a node's status page: a federation of four processes on this machine, in Chromium.

`python -m scripts.tools.status_picture` writes docs/status.png. It needs the extra `test-all` and Chromium.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

from p2pfl.node.cli.demo import free_ports
from scripts.tools import ROOT
from scripts.tools.screenshots import open_page

PICTURE = ROOT / "docs" / "status.png"

NAMES = ("alice", "bob", "carol", "dave")
ROUNDS = 20
SIZE = (1240, 1090)  # CSS pixels: down to the peers and their weights
PATIENCE = 180.0  # seconds


def take(path: Path) -> None:
    """Run a federation, open the page of its first node after its rounds, and write a PNG.

    Raises:
        TimeoutError: the rounds took longer than PATIENCE.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2pfl-picture-")))
        page, *ports = free_ports(len(NAMES) + 1)
        _federate(folder, ports)
        for name in NAMES:
            options = ["--status-port", str(page)] if name == NAMES[0] else []
            stack.callback(_stop, subprocess.Popen(_command("run", name, *options), cwd=folder, stdout=subprocess.DEVNULL))
        address = f"http://127.0.0.1:{page}/"
        _wait(address)
        path.write_bytes(_screenshot(address))


def _federate(folder: Path, ports: list[int]) -> None:
    first, *others = NAMES
    for k, (name, port) in enumerate(zip(NAMES, ports, strict=True)):
        _run(folder, "init", name, "--listen", f"127.0.0.1:{port}", "--part", f"{k}/20")
    members = [f"members={len(NAMES)}", f"rounds={ROUNDS}", "policy.neighbours=2"]
    changes = [option for member in members for option in ("--set", member)]
    _run(folder, "federation", "create", first, "--backup", "admission-key.backup", *changes)
    for name in others:
        line = _run(folder, "request", name).strip()
        _run(folder, "admit", first, line, "--out", f"{name}.admission")
        _run(folder, "join", name, f"{name}.admission", "--yes")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "p2pfl.node", *arguments]


def _run(folder: Path, *arguments: str) -> str:
    return subprocess.run(_command(*arguments), cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _wait(address: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(OSError), urlopen(f"{address}status.json") as answer:
            if json.load(answer)["state"] == "serving":
                return
        time.sleep(0.2)
    raise TimeoutError(f"{NAMES[0]} did not finish {ROUNDS} rounds in {PATIENCE:.0f} s")


def _screenshot(address: str) -> bytes:
    with open_page(address, *SIZE) as page:
        page.locator('tr[data-peer][data-state="connected"]').nth(len(NAMES) - 2).wait_for()
        return bytes(page.screenshot())


def main() -> int:
    """Write the screenshot."""
    parser = argparse.ArgumentParser(prog="scripts/status-picture", description="Make docs/status.png.")
    parser.add_argument("--out", type=Path, default=PICTURE, help="file to write (default: docs/status.png)")
    take(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
