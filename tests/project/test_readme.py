"""README: its length, its figures against the repository, and a test for every code block."""

import ast
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from p2pfl.compression.codecs import CODECS
from p2pfl.policies import POLICIES
from p2pfl.sim import reproduction
from p2pfl.task_specs import TASKS
from p2pfl.topologies.builders import BUILDERS
from p2pfl.topologies.schedules import SCHEDULES
from tests.support import forked
from tests.support.browser import needs_chromium
from tests.support.extras import needs_torch
from tests.support.pages import DOCS
from tests.support.pages import blocks as page_blocks
from tests.support.readme import BLOCKS, COMMANDS, FILES, ROOT, TEXT, bash, block


def section(title):
    """Return the lines below a heading."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0].splitlines()


def rows(title):
    """Return the cells of the table of a section, without its heading."""
    lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in section(title) if line.startswith("|")]
    return lines[2:]


def test_every_block_of_the_readme_is_run_by_a_test():
    assert [kind for kind, _ in BLOCKS] == ["sh", "sh", "text", "sh", "sh", "python", "sh"]
    assert list(FILES) == ["mine.py"]
    by = {
        "./scripts": "test_readme_demo_and_test_scripts_run",
        "p2pfl-sim run": "test_readme_simulation_runs",
        "federation create": "test_namespaces.py",
        "join pi": "test_namespaces.py",
        "p2pfl-sim sweep": "test_readme_policy_runs_in_sweep",
    }
    assert [block(word) for word in by] == COMMANDS


def test_readme_is_short():
    lines = TEXT.splitlines()
    assert len(lines) <= 160
    assert max(map(len, lines)) <= 160
    long = [line for line in lines if len(line) > 100 and "](" not in line and not line.startswith("|")]
    assert long == []


def test_readme_links_have_targets():
    for path, anchor in re.findall(r"\]\(([^)#]+)#?([^)]*)\)", TEXT):
        assert (ROOT / path).is_file(), path
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text("utf-8"), re.M) if anchor else []
        assert anchor in ["", *(heading.lower().replace(" ", "-") for heading in headings)]


def test_readme_names_built_in_parts_once():
    found = re.findall(r"`([^`]+)`", " ".join(names for _, names in rows("Built in")))
    assert len(found) > 40  # the reference, which is built from the code, lists all
    assert {*found} <= {*POLICIES, *TASKS, *BUILDERS, *SCHEDULES, *CODECS}
    assert len({*found}) == len(found)


def test_headline_rows_equal_recorded_figures():
    shown = rows("Reproduced results")
    assert len(shown) == 6
    book = reproduction.load_measured(reproduction.FILE)
    everything = reproduction.entries([], book)
    for _, place, _, printed, here, held in shown:
        name, row = re.fullmatch(r"`([\w-]+)`, (.*)", place).groups()
        (entry,) = reproduction.entries([name], book)
        assert printed == f"{entry.rows[row]:.2f}", place
        assert here == f"{next(iter(entry.figures(row).values())):.2f}", place  # of the longest form
        claims = [
            each.verdict(claim)
            for each in everything
            for claim in each.file.claims
            if each.source == entry.source and claim.paper
        ]
        assert held == (f"{claims.count('held')} of {len(claims)}" if claims else "none made"), place


def test_speeds_equal_the_measurements():
    page = (DOCS / "measurements.md").read_text(encoding="utf-8")
    figures = [figure for line in section("Speed") if line.startswith("- ") for figure in re.findall(r"\d[\d,.]*\d", line)]
    assert len(figures) > 8
    assert [figure for figure in figures if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d,]|\.\d)", page)] == []


def statements(text, kind):
    """Count the lines of the first function or class that are neither empty nor a comment, with its decorators."""
    found = next(each for each in ast.parse(text).body if isinstance(each, kind))
    first = min([found.lineno, *(each.lineno for each in found.decorator_list)])
    lines = [line.strip() for line in text.splitlines()[first - 1 : found.end_lineno]]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def test_example_line_counts_are_correct():
    example = {text.splitlines()[0]: text for kind, text in page_blocks("tutorials/own-policy.md") if kind == "python"}
    policy = statements(example["# mine.py"], ast.ClassDef)
    task = statements(example["# rings.py"], ast.FunctionDef)
    assert f"has a policy of {policy} lines and a task of {task} lines" in " ".join(section("Comparison"))


def test_readme_policy_has_at_most_fifteen_lines():
    assert sum(bool(line) for line in FILES["mine.py"].splitlines()) <= 15


def locally(command):
    """Disable worker processes: they change no result, and each would import torch for a few seconds of work."""
    return re.sub(r"p2pfl-sim (run|sweep) ", r"p2pfl-sim \1 --engine local ", command)


def cells(line):
    return re.sub("[│┃]", " ", line).split()


@pytest.mark.slow
def test_readme_simulation_runs(tmp_path):
    printed = [cells(line) for line in bash(locally(block("p2pfl-sim run")), tmp_path).splitlines()]
    (shown,) = [text.splitlines() for kind, text in BLOCKS if kind == "text"]
    assert [line for line in printed if line == cells(shown[0])] == [cells(shown[0])]
    for name, accuracy, *_ in map(cells, shown[1:]):  # other machines may differ in the last digit of a mean
        (found,) = [line for line in printed if line[:1] == [name]]
        assert float(found[1]) == pytest.approx(float(accuracy), abs=0.01)
    left = {path.name for path in (tmp_path / "runs" / "two-groups").iterdir()}
    assert left == {"summary.json", "rounds.parquet", "edges.parquet", "scenario.toml", "report.html"}


@pytest.mark.slow
def test_readme_policy_runs_in_sweep(tmp_path):
    (tmp_path / "mine.py").write_text(FILES["mine.py"])
    bash(locally(block("p2pfl-sim sweep").rstrip()) + " --out runs/mine", tmp_path)
    table = json.loads((tmp_path / "runs/mine/summary.json").read_text())["table"]
    random, similar = map(float, re.search(r"from (0\.\d+) to (0\.\d+)", " ".join(section("Write a policy"))).groups())
    assert [row["mean"] for row in table] == pytest.approx([random, similar], abs=0.02)


@pytest.mark.slow
def test_readme_policy_runs_on_a_node(tmp_path):
    (command,) = re.findall(r"`(p2pfl-node init [^`]*)`", " ".join(section("Write a policy")))
    (tmp_path / "mine.py").write_text(FILES["mine.py"])
    bash(f"{command.replace('NODE', 'node')}\ncp mine.py node/\np2pfl-node run node", tmp_path)


@needs_chromium
def test_picture_of_the_status_page_can_be_made(tmp_path, monkeypatch):
    from scripts.tools import status_picture

    monkeypatch.setattr(status_picture, "_command", lambda *words: [forked.executable(), "-m", "p2pfl.node", *words])
    status_picture.take(tmp_path / "status.png")
    assert (tmp_path / "status.png").read_bytes()[:4] == b"\x89PNG"
    assert (ROOT / "docs" / "status.png").stat().st_size < 150_000


@needs_torch  # scripts/demo would install it
@pytest.mark.slow
@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="only in the environment that the scripts make")
def test_readme_demo_and_test_scripts_run():
    assert block("./scripts") == "./scripts/demo\n./scripts/test\n"
    text = (ROOT / "scripts/demo").read_text()
    for long, short in (("--rounds 10", "--rounds 2"), ("--seeds 0:1", "--set form=smoke --engine local")):
        assert text.count(long) == 1
        text = text.replace(long, short)
    printed = bash(f"bash -c {shlex.quote(text)} scripts/demo", ROOT)
    assert "installing" not in printed  # the environment exists already
    assert "together" in printed
    rows = [line.strip("│ ").partition(" ")[0] for line in printed.splitlines()]
    assert rows.count("inverse-loss/fedsim") == 1  # the answer to the scenario's question names it as well
    assert "answer:" in rows
    assert bash("./scripts/test --version", ROOT).startswith("pytest")
