"""Parts of the reference that come from the code."""

import argparse
import re

import msgspec
import pytest

from scripts.tools.reference import commands, docstrings, keys, objects, pages
from scripts.tools.reference.__main__ import PAGES, main
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


def test_blocks_with_a_kind_are_replaced_by_markdown():
    text = pages.render(
        "A.\n\n```{keys} p2pfl.policy:Budget\nBuilt.\n```\n\n```{objects}\np2pfl.merge\n```\n\n```sh\nls\n```\n"
    )
    assert text.startswith("A.\n\n| key | meaning |\n")
    assert "Built." not in text
    assert text.endswith("\n\n```{eval-rst}\n.. autofunction:: p2pfl.merge\n```\n\n```sh\nls\n```\n")


def test_objects_are_named_by_their_kinds():
    text = objects.objects("p2pfl.policy.Stage\np2pfl.P2pflError\np2pfl.Budget: at_once cap")
    assert text.split("\n\n") == [
        "```{eval-rst}\n.. autodata:: p2pfl.policy.Stage",
        ".. autoexception:: p2pfl.P2pflError",
        ".. autoclass:: p2pfl.Budget\n   :members: at_once, cap\n```",
    ]


def test_docstring_becomes_paragraphs_lists_and_code():
    text = docstrings.markdown(DOCSTRING)
    assert text.split("\n\n") == [
        "Return a mean.",
        "Text with \\<angles> and `code <of>` of two lines:",
        "```text\ncode = 1",
        "more = 2\n```",
        "- One item on two lines.\n- Another.",
    ]
    assert docstrings.described(DOCSTRING, "Args") == dict.fromkeys("ab", "two numbers; the first counts more.") | {
        "c": "a third."
    }


def test_section_with_an_entry_of_another_form_is_refused():
    with pytest.raises(ValueError, match="no entry of the form"):
        docstrings.described("A.\n\nArgs:\n    words only\n", "Args")


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


def test_cells_are_escaped_and_symbols_stay_lower_case():
    assert table(("a",), [("x | y\nz",)]).splitlines()[-1] == "| x \\| y z |"
    assert escape("a < b, <c>, `<d>`") == "a < b, \\<c>, `<d>`"
    assert sentence("the number") == "The number."
    assert sentence("m, the number.") == "m, the number."


@pytest.mark.slow
def test_every_page_of_the_reference_can_be_printed_without_building_the_site(capsys):
    for path in sorted(PAGES.glob("*.md")):
        assert main([path.stem]) == 0
        assert "Built by ./scripts/docs" not in capsys.readouterr().out
        for line in re.findall(r"^Built by .*$", path.read_text(encoding="utf-8"), re.M):
            assert f"./scripts/reference {path.stem}:" in line
    assert main(["no-such-page"]) == 2
    assert "scenarios" in capsys.readouterr().err
