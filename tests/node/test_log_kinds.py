"""Kinds of events: every event that a node logs has one, and the reference lists them."""

import ast
import re
from pathlib import Path

import pytest

import p2pfl
from tests.support.pages import DOCS

LEVELS = ("debug", "info", "warning", "error", "exception")
ROOT = Path(p2pfl.__file__).resolve().parents[1]


def events():
    """Yield the place of each call that logs an event of a node, and the keywords of the call."""
    for path in (*sorted((ROOT / "node").rglob("*.py")), ROOT / "p2pfl/_util/atomic_files.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS):
                continue
            if "log" in ast.unparse(call.func.value).lower():
                yield f"{path.name}:{call.lineno}", {keyword.arg: keyword.value for keyword in call.keywords}


@pytest.mark.slow
def test_every_event_has_a_kind():
    assert len(list(events())) > 20
    assert [place for place, keywords in events() if "kind" not in keywords] == []


def test_reference_lists_every_kind_of_event():
    section = (DOCS / "reference/files.md").read_text(encoding="utf-8").partition("## Events of the log\n")[2]
    listed = {kind for row in re.findall(r"^\| (`[^|]*) \|", section, re.M) for kind in re.findall(r"`([\w-]+)`", row)}
    used = set(re.findall(r'kind="([\w-]+)"', "".join(path.read_text("utf-8") for path in (ROOT / "node").rglob("*.py"))))
    used |= {"disk-failed", "disk-works"}  # events of p2pfl._util.atomic_files
    assert listed == used
