"""Screenshot of a report: the sections on learning and on collaboration of dpfl-two-groups, in Chromium.

`python -m scripts.tools.report_picture` writes docs/report.png. It needs the extra `test-all` and Chromium.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.tools import ROOT
from scripts.tools.screenshots import open_page

PICTURE = ROOT / "docs" / "report.png"

SCENARIO, SEEDS = "dpfl-two-groups", "0:3"
RUNS = ("local", "fedavg+ft", "random graph", "dpfl")
FIGURES = ("Test accuracy", "Test accuracy of the worst tenth of the nodes", "Sources of each node in the whole run")
SECTIONS = ("section#learning-curves", "section#collaboration")
HIDE = """([sections, titles]) => sections.forEach(section => {
    for (const figure of document.querySelectorAll(`${section} figure`))
        if (!titles.includes(figure.querySelector("h3").innerText)) figure.remove();
})"""
WIDTH, HEIGHT, MARGIN = 1240, 900, 12  # CSS pixels of the window, and around the figures


def take(path: Path, folder: Path | None = None) -> None:
    """Write a PNG of a report.

    Args:
        folder: folder of a finished run; by default the scenario is run first.
    """
    with tempfile.TemporaryDirectory(prefix="p2pfl-picture-") as temporary:
        if folder is None:
            folder = Path(temporary, "run")
            only = [option for run in RUNS for option in ("--only", run)]
            _call("run", SCENARIO, "--seeds", SEEDS, *only, "--no-report", "--out", str(folder))
        _call("report", str(folder), "--out", f"{temporary}/report.html")
        path.write_bytes(_screenshot(Path(temporary, "report.html").as_uri()))


def _call(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "p2pfl.sim", *arguments], check=True)


def _screenshot(address: str) -> bytes:
    """Return a PNG of the sections with the chosen figures only."""
    with open_page(address, WIDTH, HEIGHT) as page:
        page.evaluate(HIDE, [SECTIONS, FIGURES])
        boxes = [box for section in SECTIONS if (box := page.locator(section).bounding_box()) is not None]
        left, top = boxes[0]["x"] - MARGIN, boxes[0]["y"]
        width, height = boxes[0]["width"] + 2 * MARGIN, boxes[-1]["y"] + boxes[-1]["height"] - top
        return bytes(page.screenshot(full_page=True, clip={"x": left, "y": top, "width": width, "height": height}))


def main() -> int:
    """Write the screenshot."""
    parser = argparse.ArgumentParser(prog="scripts/report-picture", description="Make docs/report.png.")
    parser.add_argument("--out", type=Path, default=PICTURE, help="file to write (default: docs/report.png)")
    parser.add_argument("--folder", type=Path, help="folder of a finished run (default: run the scenario)")
    options = parser.parse_args()
    take(options.out, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
