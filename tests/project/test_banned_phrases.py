"""Banned phrases: the search finds them in prose, and only there."""

import pytest

from scripts.tools.banned_phrases import check_document, check_strings, load_phrases

LISTED = load_phrases()


def document(text):
    return [(finding.line, finding.text.partition(": write")[0]) for finding in check_document("page.md", text)]


def python(text, path="node/a.py"):
    return [finding.line for finding in check_strings(path, text)]


def test_every_phrase_is_found():
    for phrase in {**LISTED.everywhere, **LISTED.documents}:
        assert (1, f"banned phrase {phrase.lower()!r}") in document(phrase)
    for phrase in LISTED.everywhere:
        assert python(repr(phrase))


def test_plain_words_have_no_banned_phrase():
    for plain in {**LISTED.everywhere, **LISTED.documents}.values():
        assert document(plain) == []


def test_phrase_is_found_in_any_case_and_across_lines():
    assert document("# A key\n\nIt belongs on a Stick\nin a  drawer.") == [(3, "banned phrase 'stick in a drawer'")]


@pytest.mark.parametrize("text", ["# Without a thought", "- Without a thought", "| a |\n|---|\n| without a thought |"])
def test_headings_lists_and_tables_are_searched(text):
    assert [about for _, about in document(text)] == ["banned phrase 'without a thought'"]


@pytest.mark.parametrize(
    "text",
    ["`without a thought`", "```text\nwithout a thought\n```", "without a thoughtful word", "<!-- without a thought -->"],
)
def test_code_comments_and_longer_words_are_no_fault(text):
    assert document(text) == []


def test_finding_names_plain_words():
    (finding,) = check_document("page.md", "It waits meanwhile.")
    assert str(finding) == "page.md:1: banned phrase 'meanwhile': write 'at the same time' or similar"


@pytest.mark.parametrize(
    "code",
    [
        '"""It is told."""',
        'def a():\n    """First.\n\n    It is told.\n    """',
        'raise ValueError("it is told " "what")',
        'print(f"{name} is told {what}")',
    ],
)
def test_docstrings_and_messages_are_searched(code):
    assert len(python(code)) == 1


def test_line_in_a_docstring_is_named():
    assert python('def a():\n    """First.\n\n    It is told.\n    """') == [4]


def test_strings_of_tests_are_data():
    code = '"""It is told."""\nname = "it is told"'
    assert python(code) == [1, 2]
    assert python(code, "tests/test_a.py") == [1]


def test_names_and_comments_are_no_fault():
    assert python("anew = 1  # it is told") == []
