"""Files for contributors: links, names of files and scripts, checklists, and the changelog."""

import re

import pytest
from packaging.version import Version

from p2pfl._version import __version__
from scripts.tools.findings import ROOT

PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / ".github").rglob("*.md")))
SCRIPTS = {path.name for path in (ROOT / "scripts").iterdir() if path.is_file()}


def anchors(path):
    """Return the anchors of a page's headings, as hosting services make them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if not re.match(r"\w+:", target):
            assert (page.parent / path).exists(), target
            assert not anchor or anchor in anchors(page.parent / path), target


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", ".github/PULL_REQUEST_TEMPLATE.md", "docs/release.md"])
def test_page_names_scripts_and_files_that_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert set(re.findall(r"\./scripts/([\w-]+)", text)) <= SCRIPTS
    folders = "p2pfl|protocols|topologies|node|sim|tests|docs|scripts|benchmarks|results|deploy|examples|\\.github"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)", text):
        assert path.startswith("docs/_build") or (ROOT / path).exists(), path


def test_contributing_lists_every_check():
    (every,) = re.findall(r"all\) exec scripts/check (.*) ;;", (ROOT / "scripts/check").read_text(encoding="utf-8"))
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| check | content |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == every.split()


def test_checklists_of_contributing_and_pull_requests_agree():
    def entries(name):
        found = re.findall(r"^- \[ \] (.*(?:\n  .*)*)", (ROOT / name).read_text(encoding="utf-8"), re.M)
        return [" ".join(entry.split()) for entry in found]

    assert entries("CONTRIBUTING.md") == entries(".github/PULL_REQUEST_TEMPLATE.md") != []


def test_changelog_begins_with_unreleased_and_is_in_order():
    sections = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    released = [Version(text) for text in sections[1:]]
    assert sections[0] == "Unreleased"
    assert released == sorted(set(released), reverse=True)
    assert all(version <= Version(__version__) for version in released)
