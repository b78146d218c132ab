"""Private names of other objects: the search finds them in strings, and ruff elsewhere."""

import json
import subprocess
import sys

import pytest

from scripts.tools.findings import ROOT
from scripts.tools.private_names import check_strings, check_tree


@pytest.mark.slow
def test_strings_of_this_tree_contain_no_private_name():
    assert [str(finding) for finding in check_tree(ROOT)] == []


@pytest.mark.parametrize(
    "statement",
    [
        'monkeypatch.setattr(module, "_name", 1)',
        'monkeypatch.setattr("package.module._name", 1)',
        'mock.patch("package.module._Name")',
        'mock.patch.object(module, "_name")',
        'getattr(node, "_round")',
        'operator.attrgetter("node._round")',
    ],
)
def test_private_name_in_a_string_is_found(statement):
    (finding,) = check_strings("tests/a.py", f"\n{statement}\n")
    assert (finding.path, finding.line) == ("tests/a.py", 2)
    assert "names something private" in finding.text


@pytest.mark.parametrize(
    "statement",
    [
        'monkeypatch.setattr(module, "LIMIT", 1)',
        'mock.patch("package._module.Name")',
        'getattr(node, "__dict__")',
        'getattr(self, "_own")',
        'setattr(node, "name", "_value")',
        'print("_name")',
        'tables["_rounds"]',
    ],
)
def test_other_string_is_not_found(statement):
    assert list(check_strings("tests/a.py", statement)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("node._round()", "SLF001"),
        ("from p2pfl.node.node import _round", "PLC2701"),
    ],
)
def test_private_name_in_a_test_is_found_by_ruff(statement, rule):
    command = [sys.executable, "-m", "ruff", "check", "--output-format=json", "--stdin-filename=tests/a.py", "-"]
    done = subprocess.run(command, input=statement, capture_output=True, text=True, cwd=ROOT)
    assert rule in {found["code"] for found in json.loads(done.stdout)}
