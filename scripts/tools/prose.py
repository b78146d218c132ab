"""Checks of the prose: docstrings, names of tests, lines and sentences of Markdown, and banned phrases.

`python -m scripts.tools.prose` prints findings; `--all` includes files on the list of exceptions.
`prose-exceptions.txt` lists files that are not clean yet. The list only shrinks: a listed file that is clean is a
fault.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.tools import retired_names
from scripts.tools.banned_phrases import check_document, check_strings
from scripts.tools.findings import ROOT, TESTS, Finding, find_files, report
from scripts.tools.markdown import count_columns, count_words, sentences, text_lines

EXCEPTIONS = Path(__file__).with_name("prose-exceptions.txt")
LINE_LIMIT = 100  # columns
SENTENCE_LIMIT = 35  # words
MEAN_LIMIT = 18  # words a sentence, on average over a document
TEST_NAME_LIMIT = 60  # characters, without the name of a class
FEW = 5  # sentences; a document with fewer has no average

_CLAUSE = re.compile(r"(What(ever)?|Who(m|se|ever)?|How|Where|When(ever)?|Which(ever)?|Whether|With|Of|That|Those)\b")


def check_docstrings(path: str, text: str) -> Iterator[Finding]:
    """Find docstrings whose first line is a clause instead of an imperative or a noun phrase."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for element in (each for each in ast.walk(ast.parse(text)) if isinstance(each, documented)):
        first, _, _ = (ast.get_docstring(element) or "").partition("\n")
        if clause := _CLAUSE.match(first):
            line = element.body[0].lineno
            yield Finding(path, line, f"docstring begins with {clause[0]!r}, not with an imperative or a noun phrase")


def check_test_names(path: str, text: str) -> Iterator[Finding]:
    """Find test functions with names that are too long, in the folder of the tests."""
    if not path.startswith(f"{TESTS}/"):
        return
    for element in ast.walk(ast.parse(text)):
        if not isinstance(element, ast.FunctionDef | ast.AsyncFunctionDef) or not element.name.startswith("test_"):
            continue
        if (length := len(element.name)) > TEST_NAME_LIMIT:
            limit = f"at most {TEST_NAME_LIMIT}"
            yield Finding(path, element.lineno, f"name of a test of {length} characters, {limit}: {element.name}")


def check_lines(path: str, text: str) -> Iterator[Finding]:
    """Find lines of Markdown that are too long, headings included, except in code and tables."""
    for line, content in text_lines(text):
        if not content.lstrip().startswith("|") and (columns := count_columns(content)) > LINE_LIMIT:
            yield Finding(path, line, f"line of {columns} columns, at most {LINE_LIMIT}: break it after a clause")


def check_sentences(path: str, text: str) -> Iterator[Finding]:
    """Find sentences of Markdown that are too long, each by itself and on average over the document."""
    found = [(line, sentence, count_words(sentence)) for line, sentence in sentences(text)]
    for line, sentence, words in found:
        if words > SENTENCE_LIMIT:
            yield Finding(path, line, f"sentence of {words} words, at most {SENTENCE_LIMIT}: {sentence[:60].strip()}...")
    if len(found) >= FEW and (mean := sum(words for _, _, words in found) / len(found)) > MEAN_LIMIT:
        yield Finding(path, 0, f"sentences of {mean:.1f} words on average, at most {MEAN_LIMIT}")


Check = Callable[[str, str], Iterator[Finding]]
CHECKS: Mapping[str, Sequence[Check]] = {
    ".py": (check_docstrings, check_test_names, check_strings),
    ".md": (check_lines, check_sentences, check_document),
}


def check_file(name: str, text: str) -> Iterator[Finding]:
    """Run the checks of a file's kind."""
    for check in CHECKS[Path(name).suffix]:
        yield from check(name, text)


def check_tree(root: Path) -> list[Finding]:
    """Check every file below a root."""
    return [finding for name in find_files(root) for finding in check_file(name, (root / name).read_text(encoding="utf-8"))]


def apply_exceptions(findings: Iterable[Finding], listed: Collection[str]) -> list[Finding]:
    """Remove the findings of listed files, and add one for each listed file without findings."""
    findings = list(findings)
    clean = set(listed) - {finding.path for finding in findings}
    stale = [Finding(EXCEPTIONS.name, 0, f"{path} is clean: remove it from the list") for path in clean]
    return sorted([finding for finding in findings if finding.path not in listed] + stale)


def read_exceptions(path: Path = EXCEPTIONS) -> list[str]:
    """Return the files of the list; lines that begin with # are comments."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def main() -> int:
    """Check this tree and print the findings."""
    parser = argparse.ArgumentParser(prog="scripts/prose", description="Check docstrings, names of tests, and Markdown.")
    parser.add_argument("--all", action="store_true", help="print the findings of listed files, too")
    findings = check_tree(ROOT)
    if not parser.parse_args().all:
        findings = apply_exceptions(findings, read_exceptions())
    return report([*findings, *retired_names.enforced_findings()])


if __name__ == "__main__":
    sys.exit(main())
