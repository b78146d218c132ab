"""Glossary: alphabetical order, at least one module for each term, and modules that exist."""

import re

import pytest

from scripts.tools import ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^## (.+)\n\n((?:.+\n)+)", TEXT, re.M))
MODULES = sorted(set(re.findall(r"`(p2pfl(?:\.\w+)+)`", TEXT)))


def test_terms_are_in_alphabetical_order():
    assert list(ENTRIES) == sorted(ENTRIES, key=str.lower)
    assert len(ENTRIES) == TEXT.count("\n## ")


def test_every_term_has_a_short_explanation_and_a_module():
    for term, entry in ENTRIES.items():
        explanation, found, _ = entry.partition("Module: `p2pfl.")
        assert found, term
        assert 1 <= len(re.findall(r"[.](?=\s)", explanation)) <= 3, term


@pytest.mark.skipif(not (ROOT / "p2pfl" / "node").exists(), reason="modules still have other places")
def test_modules_of_terms_exist():
    assert MODULES
    for module in MODULES:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module
