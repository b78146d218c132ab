"""Print a page of docs/reference with its parts from the code, for readers who do not build the site."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.tools.reference.pages import render

PAGES = Path("docs/reference")


def main(names: list[str]) -> int:
    """Print the page that is named, or say which pages there are; return the status of the command."""
    known = sorted(path.stem for path in PAGES.glob("*.md"))
    if len(names) != 1 or names[0] not in known:
        print(f"usage: scripts/reference PAGE, where PAGE is one of: {', '.join(known)}", file=sys.stderr)
        return 2
    print(render((PAGES / f"{names[0]}.md").read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
