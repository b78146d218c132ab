"""Page of the reliability tests: every row names tests that exist, or a reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "reliability-tests.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", TEXT, re.M)
LINK = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")


def test_page_numbers_its_situations():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 39))
    assert f"lists {len(ROWS)} situations" in TEXT


def test_every_row_names_tests_or_gives_a_reason():
    for number, _, tests in ROWS:
        reason = LINK.sub("", tests).strip(", ")
        assert reason.endswith(".") or (not reason and LINK.search(tests)), number


def test_named_tests_exist_in_their_files():
    for name, file in LINK.findall(TEXT):
        found = (PAGE.parent / file).resolve().read_text(encoding="utf-8")
        assert re.search(rf"^ *(async )?def {name}\(", found, re.M), name
