"""Checks before a commit: the same as in scripts/check."""

import re
import subprocess

import yaml

from scripts.tools import ROOT

CHECK = (ROOT / "scripts" / "check").read_text(encoding="utf-8")
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))


def test_hooks_run_exactly_the_checks():
    (repository,) = HOOKS["repos"]
    assert repository["repo"] == "local"
    (every,) = re.findall(r"all\) exec scripts/check (.*) ;;", CHECK)
    assert [hook["entry"] for hook in repository["hooks"]] == [f"scripts/check {name}" for name in every.split()]
    assert not any(hook["pass_filenames"] for hook in repository["hooks"])


def test_every_check_is_known_to_the_script():
    (every,) = re.findall(r"all\) exec scripts/check (.*) ;;", CHECK)
    assert set(every.split()) | {"platforms", "all", "*"} == set(re.findall(r"^ +(\S+)\) ", CHECK, re.M))


def test_scripts_are_valid_shell():
    for script in (path for path in (ROOT / "scripts").iterdir() if path.is_file()):
        assert subprocess.run(["bash", "-n", script]).returncode == 0, script
