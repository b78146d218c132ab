"""Reference pages: the committed Markdown matches the code."""

import argparse

import msgspec
import pytest

import p2pfl
from scripts.tools.reference import commands, docstrings, keys, objects, pages
from scripts.tools.reference.markdown import escape, sentence, table

DOCSTRING = """Return a mean.

Text with <angles> and `code <of>` of two
lines:

    code = 1

    more = 2

- One item
  on two lines.
- Another.

Args:
    a, b: two numbers; the first
        counts more.
    c: a third.

Returns:
    The mean, shape [P].

Raises:
    ValueError: there is none.
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", pages.find_pages(), ids=lambda path: path.stem)
def test_committed_page_equals_the_code(path):
    text = path.read_text(encoding="utf-8")
    assert text == pages.render(text, path.name), "run scripts/reference"


def test_api_page_has_every_public_name():
    text = (pages.FOLDER / "api.md").read_text(encoding="utf-8")
    described = [name for name in p2pfl.__all__ if f"#### `p2pfl.{name}`\n" in text]
    assert sorted(set(p2pfl.__all__) - set(described)) == ["Parameters"]
    assert "#### `p2pfl.parameters.Parameters`" in text


@pytest.mark.parametrize("text", ["<!-- begin keys a:b -->\n", "Text.\n<!-- end keys -->\n"])
def test_part_with_one_marker_is_refused(text):
    with pytest.raises(ValueError, match="no beginning or no end"):
        pages.render(text)


def test_part_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown kind 'tables'"):
        pages.render("<!-- begin tables a -->\n<!-- end tables -->\n")


def test_rendering_twice_changes_nothing(monkeypatch):
    monkeypatch.setattr(pages, "KINDS", {"keys": lambda what: f"| {what} |"})
    once = pages.render(
        "A.\n\n<!-- begin keys x:y -->\n<!-- end keys -->\n\nB.\n\n<!-- begin keys z -->\nold\n<!-- end keys -->\n"
    )
    assert "| x:y |" in once
    assert "old" not in once
    assert pages.render(once) == once


def test_docstring_becomes_paragraphs_lists_code_and_tables():
    text = docstrings.markdown(DOCSTRING, {"a": "`int`; default `1`", "b": "`int`; default `2`"})
    assert text.split("\n\n") == [
        "Return a mean.",
        "Text with \\<angles> and `code <of>` of two lines:",
        "```text\ncode = 1",
        "more = 2\n```",
        "- One item on two lines.\n- Another.",
        "| argument | meaning |\n| --- | --- |\n"
        "| `a`, `b` | Two numbers; the first counts more.<br>*`int`; defaults `1`, `2`* |\n"
        "| `c` | A third. |",
        "Returns: The mean, shape [P].",
        "| error | meaning |\n| --- | --- |\n| `ValueError` | There is none. |",
    ]


def test_section_with_an_entry_of_another_form_is_refused():
    with pytest.raises(ValueError, match="no entry of the form"):
        docstrings.markdown("A.\n\nArgs:\n    words only\n")


def test_option_without_help_is_refused(monkeypatch):
    parser = argparse.ArgumentParser(prog="p")
    parser.add_argument("--silent")
    monkeypatch.setattr(commands, "import_module", lambda name: argparse.Namespace(parser=lambda: parser))
    with pytest.raises(ValueError, match="--silent SILENT` has no help"):
        commands.commands("any")


def test_key_without_explanation_is_refused(monkeypatch):
    class Table(msgspec.Struct):
        """A table."""

        size: int = 1

    monkeypatch.setattr(keys, "resolve_name", lambda path: Table)
    with pytest.raises(ValueError, match="does not explain size"):
        keys.keys("any")


def test_signature_has_no_modules_and_breaks_when_long():
    def short(a: "p2pfl.Part", *, b: "dict[str, p2pfl.Part] | None" = None) -> "bool": ...

    def long(first_argument: "dict[str, float]", second_argument: "dict[str, float]", third: int = 3) -> None: ...

    assert objects.signature(short) == "def short(a: Part, *, b: dict[str, Part] | None = None) -> bool"
    assert objects.signature(long).splitlines()[1] == "    first_argument: dict[str, float],"


def test_cells_are_escaped_and_symbols_stay_lower_case():
    assert table(("a",), [("x | y\nz",)]).splitlines()[-1] == "| x \\| y z |"
    assert escape("a < b, <c>, `<d>`") == "a < b, \\<c>, `<d>`"
    assert sentence("the number") == "The number."
    assert sentence("m, the number.") == "m, the number."
