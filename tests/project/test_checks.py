"""Checks before a commit: the same as in scripts/check."""

import re
import subprocess

import yaml

from scripts.tools import ROOT

CHECK = (ROOT / "scripts" / "check").read_text(encoding="utf-8")
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))


CHECKS = set(re.findall(r"^ +(\w+)\)", CHECK, re.M)) - {"all", "platforms"}


def test_hooks_run_exactly_the_checks():
    (repository,) = HOOKS["repos"]
    assert repository["repo"] == "local"
    assert sorted(hook["entry"] for hook in repository["hooks"]) == [f"scripts/check {name}" for name in sorted(CHECKS)]
    assert not any(hook["pass_filenames"] for hook in repository["hooks"])


def test_all_runs_every_check():
    branch = CHECK[CHECK.index("all)") : CHECK.index("*)")]
    calls = re.findall(r"^ +(?:if has_torch; then )?scripts/check ([a-z ]+)", branch, re.M)
    assert sorted(name for call in calls for name in call.split()) == sorted(CHECKS)


def test_scripts_are_valid_shell():
    for script in (path for path in (ROOT / "scripts").iterdir() if path.is_file()):
        assert subprocess.run(["bash", "-n", script]).returncode == 0, script
