"""Command line of the reference pages."""

import argparse
import sys

from scripts.tools import ROOT
from scripts.tools.reference.pages import find_pages, render


def main() -> int:
    """Write the pages, or name the pages that differ from the code."""
    parser = argparse.ArgumentParser(prog="scripts/reference", description="Write docs/reference from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page differs from the code")
    check = parser.parse_args().check
    changed = 0
    for path in find_pages():
        before = path.read_text(encoding="utf-8")
        if (after := render(before, path.name)) != before:
            changed += 1
            if not check:
                path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} {'differs from the code: run scripts/reference' if check else 'is written'}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
