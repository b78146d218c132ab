"""Files for contributors: links, names of files and scripts, checklists, and the changelog."""

import re
import tomllib

import pytest
from packaging.version import Version

from p2pfl._version import __version__
from scripts.tools import ROOT

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
    cases = re.findall(r"^        (\w+)\)", (ROOT / "scripts/check").read_text(encoding="utf-8"), re.M)
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| check | content |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [name for name in cases if name not in ("platforms", "all")]


def test_checklists_of_contributing_and_pull_requests_agree():
    def entries(name):
        found = re.findall(r"^- \[ \] (.*(?:\n  .*)*)", (ROOT / name).read_text(encoding="utf-8"), re.M)
        return [" ".join(entry.split()) for entry in found]

    assert entries("CONTRIBUTING.md") == entries(".github/PULL_REQUEST_TEMPLATE.md") != []


def table(name, heading):
    """Return the rows of the first table of a page's section, as lists of cells."""
    text = (ROOT / name).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].lstrip().split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[0] == "|"][2:]


def test_architecture_gives_a_reason_for_each_dependency():
    def names(requirements):
        return {re.match(r"[\w-]+(\[torch\])?", text)[0].replace("p2pfl-node[torch]", "torch") for text in requirements}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    plain = table("docs/architecture.md", "A plain install has the libraries that every node needs:")
    assert {name for name, reason in plain if reason} == names(project["dependencies"])
    extras = table("docs/architecture.md", "Every other library is in an extra:")
    listed = {name.strip("`"): set(libraries.split(", ")) for name, libraries, reason in extras if reason}
    assert listed.pop("dev")
    needed = {name: names(texts) - {project["name"]} for name, texts in project["optional-dependencies"].items()}
    assert listed == {name: libraries for name, libraries in needed.items() if name != "dev"}


def test_package_names_the_authors_of_the_citation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert [author["name"] for author in project["authors"]] == re.findall(r"^  - name: (.*)$", citation, re.M)
    assert f"license: {project['license']}\n" in citation
    assert project["keywords"] == sorted(project["keywords"]) != []


def test_changelog_has_this_version_and_is_in_order():
    sections = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    versions = [Version(text) for text in sections if text != "Unreleased"]
    assert "Unreleased" not in sections[1:]
    assert versions == sorted(set(versions), reverse=True)
    assert versions[0] == Version(__version__)
