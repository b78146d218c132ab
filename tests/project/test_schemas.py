"""Schemas: files of this tree follow them, and faults are found."""

import pytest

from scripts.tools import ROOT
from scripts.tools.schemas import SCHEMAS, check_files


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_schema(schema):
    assert check_files(schema, ROOT) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("vendor.github-workflows", "runs-on: ubuntu-24.04", "run-on: ubuntu-24.04"),
        ("custom.github-workflows-require-timeout", "timeout-minutes: 30", "env: {}"),
        ("vendor.github-issue-forms", "type: textarea", "type: text"),
        ("vendor.github-issue-config", "blank_issues_enabled: false", "blank_issues_enabled: maybe"),
        ("vendor.dependabot", "interval: monthly", "interval: often"),
        ("vendor.compose-spec", "read_only: true", "read_only: [often]"),
        ("vendor.citation-file-format", "type: software", "type: poem"),
    ],
)
def test_file_with_a_fault_is_found(schema, good, bad, tmp_path):
    for source in ROOT.glob(SCHEMAS[schema]):
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        assert good in text
        copy.write_text(text.replace(good, bad), encoding="utf-8")
    assert check_files(schema, tmp_path) == 1


def test_schema_without_a_file_is_found(tmp_path, capsys):
    assert check_files("vendor.dependabot", tmp_path) == 1
    assert capsys.readouterr().out == ".github/dependabot.yml: no file for vendor.dependabot\n"


def test_every_yaml_file_of_the_hosting_service_has_a_schema():
    checked = {path for pattern in SCHEMAS.values() for path in ROOT.glob(pattern)}
    assert {path for path in (ROOT / ".github").rglob("*") if path.suffix in (".yml", ".yaml")} <= checked
