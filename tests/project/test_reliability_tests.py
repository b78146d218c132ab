"""Page of the reliability tests: every row names tests that exist, or a reason."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "reliability-tests.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", TEXT, re.M)
LINK = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")


def test_page_has_thirty_situations():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 31))


@pytest.mark.parametrize(("number", "tests"), [(number, tests) for number, _, tests in ROWS])
def test_row_names_tests_or_gives_a_reason(number, tests):
    reason = LINK.sub("", tests).strip(", ")
    assert reason.endswith(".") or (not reason and LINK.search(tests))


@pytest.mark.parametrize(("name", "file"), LINK.findall(TEXT))
def test_named_test_exists_in_its_file(name, file):
    found = (PAGE.parent / file).resolve().read_text(encoding="utf-8")
    assert re.search(rf"^ *(async )?def {name}\(", found, re.M)
