"""Check of the prose: docstrings, names of tests, and Markdown."""

import pytest

from scripts.tools.findings import ROOT, Finding, find_files, report
from scripts.tools.prose import (
    TEST_NAME_LIMIT,
    apply_exceptions,
    check_docstrings,
    check_file,
    check_test_names,
    check_tree,
    read_exceptions,
)

WORDS = " ".join(["we"] * 40)
LONG = "Words. " * 20


def markdown(text):
    return [(finding.line, finding.text.split(",")[0]) for finding in check_file("page.md", text)]


def docstrings(text, path="node/a.py"):
    return [finding.line for finding in check_docstrings(path, text)]


@pytest.mark.slow
def test_this_tree_is_clean_except_listed_files():
    assert [str(finding) for finding in apply_exceptions(check_tree(ROOT), read_exceptions())] == []


def test_list_of_exceptions_is_sorted_and_names_files():
    listed = read_exceptions()
    assert listed == sorted(set(listed))
    assert set(listed) <= set(find_files(ROOT))


@pytest.mark.parametrize(
    "first",
    [
        "What it is.",
        "Who asks.",
        "Whom to ask.",
        "Whoever asks.",
        "How it is done.",
        "Where it is.",
        "When it is.",
        "That it is.",
        "Which it is.",
        "Whether it is.",
        "With what it is mixed.",
        "Those that are.",
        "Whose it is.",
        "With a budget.",
        "Of a node, its peers.",
    ],
)
def test_docstring_that_begins_with_a_clause_is_found(first):
    assert docstrings(f'"""{first}\n\nMore.\n"""') == [1]
    assert docstrings(f'class _A:\n    """{first}"""\n\n    async def b(self):\n        """{first}"""') == [2, 5]


@pytest.mark.parametrize(
    "first",
    [
        "Return what is left.",
        "Budget of a node.",
        "Whatsoever.",
        "Wholesale trade.",
        "Thatch.",
        "Without one.",
        "Offset.",
        "",
    ],
)
def test_imperative_or_noun_phrase_is_no_fault(first):
    assert docstrings(f'"""{first}"""') == []


def test_docstrings_of_private_functions_and_tests_are_checked():
    assert docstrings('def _a():\n    """What it is."""\n    def b():\n        """What it is."""') == [2, 4]
    assert docstrings('"""What is tested."""\ndef a():\n    """What it is."""', "tests/test_a.py") == [1, 3]


@pytest.mark.parametrize("code", ["def {}(): ...", "async def {}(): ...", "class TestA:\n    def {}(self): ..."])
def test_long_name_of_a_test_is_found(code):
    longest = "test_".ljust(TEST_NAME_LIMIT, "a")
    assert list(check_test_names("tests/test_a.py", code.format(longest))) == []
    (finding,) = check_test_names("tests/a/test_a.py", code.format(longest + "b"))
    assert finding.line == code.count("\n") + 1
    assert finding.text == f"name of a test of 61 characters, at most 60: {longest}b"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("tests/test_a.py", "def {}(): ..."),
        ("tests/test_a.py", "class {}: ..."),
        ("node/a.py", "def test_{}(): ..."),
    ],
)
def test_other_long_name_is_no_fault(path, code):
    assert list(check_test_names(path, code.format("a" * 100))) == []


def test_long_line_is_found():
    assert markdown(f"A line.\n\n{LONG}") == [(3, "line of 140 columns")]


@pytest.mark.parametrize("text", [f"# {LONG}", f"- {LONG}", f"A paragraph.\n{LONG}", f"<b>{LONG}</b>"])
def test_long_line_of_any_kind_is_found(text):
    assert any(about.startswith("line of ") for _, about in markdown(text))


@pytest.mark.parametrize(
    "text",
    [
        f"A [page](https://example.org/{'a' * 200}).",
        f"See https://example.org/{'b' * 200}.",
        f"![A picture](pictures/{'c' * 200}.svg)",
        f"[page]: https://example.org/{'d' * 200}",
        f"| {LONG} |",
        f"```text\n{LONG}\n```",
    ],
)
def test_line_that_cannot_be_broken_is_no_fault(text):
    assert markdown(text) == []


def test_second_link_of_a_long_line_counts():
    assert markdown(f"A [page](https://example.org/{'a' * 200}) and https://example.org/{'b' * 200}.") == [
        (1, "line of 232 columns")
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"| {WORDS} | {WORDS} |",
        f"```text\n{WORDS} {WORDS}\n```",
        f"- An item:\n\n  ```sh\n  {WORDS} {WORDS}\n  ```",
        f"````\n```\n{WORDS} {WORDS}\n```\n````",
        f"<!-- {WORDS}\n{WORDS} -->",
        f"---\ntitle: {WORDS}\n---\n\nText.",
        f"# {WORDS[:90]}",
        f"Use `{WORDS[:60]}\n{WORDS[:60]}` here.",
        f"- {WORDS[:95]}\n- {WORDS[:95]}",
        f"{WORDS[:95]}.\n{WORDS[:95].capitalize()}.",
        f"As Smith et al. (2021) say, e.g. {WORDS[:50]}. The next.",
    ],
)
def test_code_and_tables_and_short_sentences_are_no_fault(text):
    assert markdown(text) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"Short.\n\nA {WORDS[:60]}\n{WORDS[:60]}.", 3),
        (f"- {WORDS[:95]}\n  {WORDS[:95]}", 1),
        (f"```\ncode\n```\n\n{WORDS[:60]}\n{WORDS[:60]}", 5),
    ],
)
def test_long_sentence_is_found(text, line):
    ((found, about),) = markdown(text)
    assert found == line
    assert about.startswith("sentence of ")


def test_long_average_is_found():
    sentence = f"{' '.join(['We'] * 10)}\n{' '.join(['we'] * 10)}."
    assert markdown("\n".join([sentence] * 5)) == [(0, "sentences of 20.0 words on average")]
    assert markdown("\n".join([sentence] * 5 + ["Short."])) == []
    assert markdown("\n".join([sentence] * 4)) == []


def test_exceptions_ignore_listed_files_and_must_be_needed():
    findings = [Finding("a.py", 1, "wrong"), Finding("b.md", 2, "wrong")]
    assert apply_exceptions(findings, ["a.py", "c.md"]) == [
        Finding("b.md", 2, "wrong"),
        Finding("prose-exceptions.txt", 0, "c.md is clean: remove it from the list"),
    ]


def test_tree_is_searched_once_and_without_build_outputs(tmp_path):
    found = [".github/f.md", "README.md", "docs/a.md", "node/a.py", "tests/e.py"]
    for name in (*found, "docs/_build/b.md", ".venv/c.md", ".ci/g.md", "other/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""What."""')
    (tmp_path / "p2pfl").mkdir()
    (tmp_path / "p2pfl/node").symlink_to("../node")
    assert sorted(find_files(tmp_path)) == found
    assert [finding.path for finding in check_tree(tmp_path)] == ["node/a.py", "tests/e.py"]


def test_findings_are_printed_in_order_and_set_exit_code(capsys):
    assert report([Finding("b.md", 2, "wrong"), Finding("a.py", 0, "wrong")]) == 1
    assert capsys.readouterr().out == "a.py: wrong\nb.md:2: wrong\n"
    assert report([]) == 0
