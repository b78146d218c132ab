"""Check of the files for hosting services and containers against published JSON schemas.

`python -m scripts.tools.schemas` checks this tree. The schemas come with check-jsonschema, so that no network is
necessary.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts.tools import ROOT

# Schema of check-jsonschema: pattern of the files that must follow it, relative to the root.
SCHEMAS: Mapping[str, str] = {
    "custom.github-workflows-require-timeout": ".github/workflows/*.yml",
    "vendor.citation-file-format": "CITATION.cff",
    "vendor.compose-spec": "deploy/compose*.yaml",
    "vendor.dependabot": ".github/dependabot.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*_*.yml",
    "vendor.github-workflows": ".github/workflows/*.yml",
}


def check_files(schema: str, root: Path) -> int:
    """Check the files of one schema below a root, print the faults, and return the exit status."""
    files = sorted(str(path) for path in root.glob(SCHEMAS[schema]))
    if not files:
        print(f"{SCHEMAS[schema]}: no file for {schema}")
        return 1
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    if done.returncode:
        print(done.stdout, end="")
    return done.returncode


def main() -> int:
    """Check this tree and return the greatest exit status: 0 if all files follow their schemas."""
    return max(check_files(schema, ROOT) for schema in SCHEMAS)


if __name__ == "__main__":
    sys.exit(main())
