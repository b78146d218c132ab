"""Page docs/reproduced.md: its tables are generated, and its commands are tested."""

import json
import os

import pytest

from p2pfl.sim.cli.main import main
from tests.support.pages import DOCS, block, blocks
from tests.support.readme import bash

PAGE = "reproduced.md"
MARK = "<!-- The rest of this page is generated: p2pfl-sim reproduce --markdown -->\n"


@pytest.mark.slow
def test_reproduced_page_equals_output_of_the_command(capsys):
    assert main(["reproduce", "--markdown"]) == 0
    assert (DOCS / PAGE).read_text(encoding="utf-8").partition(MARK)[2].strip() == capsys.readouterr().out.strip()


def test_every_command_of_reproduced_is_run_by_a_test():
    by = {
        "p2pfl-sim reproduce": "test_reproduce.py",
        "p2pfl-sim reproduce codecs-one-byte-budget --smoke": "test_reproduce.py",
        "p2pfl-sim reproduce dac-synthetic dac-synthetic-default --short --out runs/table": "test_tables.py",
        "p2pfl-sim reproduce dpfl-two-groups dpfl-budgets --short --out runs/dpfl": "test_scenarios.py",
        "p2pfl-sim reproduce fedpref-dst fedpref-teachers --short --out runs/preferences": "test_scenarios.py",
        "p2pfl-sim reproduce topology-study --short --out runs/topology": "test_scenarios.py",
        "p2pfl-sim list": "test_data_commands_of_reproduced_run",
        "p2pfl-sim data check": "test_data_commands_of_reproduced_run",
        "p2pfl-sim run dac-fmnist-covariate --set form=smoke --out runs/smoke": "test_data_commands_of_reproduced_run",
    }
    assert [each for kind, text in blocks(PAGE) if kind == "sh" for each in text.splitlines()] == list(by)


@pytest.mark.slow
def test_data_commands_of_reproduced_run(tmp_path):
    if "P2PFL_DATA" not in os.environ:
        pytest.skip("P2PFL_DATA names no folder with data sets")
    said = bash(block(PAGE, "data check").replace(" --out", " --engine local --set rounds=1 --out"), tmp_path)
    assert "fashion-mnist" in said
    assert "dpfl-table1 " in said
    assert json.loads((tmp_path / "runs" / "smoke" / "summary.json").read_text())["scenario"] == "dac-fmnist-covariate"
