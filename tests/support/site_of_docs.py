"""Site that scripts/docs makes of docs/, and its links, for tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def build(folder: Path) -> str:
    """Build the whole site, as scripts/docs does; return the output of Sphinx."""
    (line,) = re.findall(r"^python -m sphinx (.*) -b html ", (ROOT / "scripts" / "docs").read_text(), re.M)
    strict = line.split()
    assert {"--fail-on-warning", "--nitpicky"} <= set(strict)
    command = [sys.executable, "-m", "sphinx", *strict, "-E", "-d", f"{folder}.cache", "-b", "html", str(DOCS), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env=os.environ | {"NO_COLOR": "1"})
    return done.stdout + done.stderr


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors = {""}
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.anchors.add(values.get("id") or "")
        self.links += [value for key in ("href", "src", "srcset", "poster", "action") if (value := values.get(key))]


def broken(folder: Path) -> Iterator[str]:
    """Yield each link of a built site without a target."""
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    for page in pages.values():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path.resolve()
            where = f"{page.path.name}: {link}"
            if not target.exists():
                yield f"{where} does not exist"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where} has no such anchor"
