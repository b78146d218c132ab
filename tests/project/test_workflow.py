"""Workflow for continuous integration, against the project: versions of Python, extras, scripts, rights."""

import re
import tomllib

import yaml
from packaging.version import Version

from scripts.tools import ROOT

TEXT = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(TEXT)
JOBS = WORKFLOW["jobs"]
MATRIX = JOBS["quick"]["strategy"]["matrix"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def commands(job):
    return [" ".join(step["run"].split()) for step in JOBS[job]["steps"] if "run" in step]


def test_matrix_has_the_python_versions_of_the_project():
    prefix = "Programming Language :: Python :: "
    stated = [text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)]
    assert MATRIX["python"] == stated
    assert PROJECT["requires-python"] == f">={stated[0]}"
    assert [Version(text).minor for text in stated] == list(range(Version(stated[0]).minor, Version(stated[-1]).minor + 1))


def test_matrix_has_linux_on_two_processors_macos_and_windows():
    assert {re.sub(r"-[\d.]+", "", system) for system in MATRIX["system"]} == {"ubuntu", "ubuntu-arm", "macos", "windows"}
    assert JOBS["quick"]["strategy"]["fail-fast"] is False


def test_failures_are_allowed_on_systems_of_the_matrix_only():
    conditions = {name: job["continue-on-error"] for name, job in JOBS.items() if "continue-on-error" in job}
    assert conditions.keys() == {"quick"}
    compared = re.findall(r"matrix\.(\w+) != '([^']+)'", conditions["quick"])
    assert [name for name, _ in compared] == ["system", "python"]
    assert all(value in MATRIX[name] for name, value in compared)


def test_git_is_configured_before_the_checkout_on_windows():
    first, second, *_ = JOBS["quick"]["steps"]
    assert first["if"] == "runner.os == 'Windows'"
    assert "core.symlinks true" in first["run"]
    assert second["uses"].startswith("actions/checkout@")


def test_workflow_has_no_more_rights_than_it_needs():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in JOBS.values())
    assert "secrets." not in TEXT
    steps = [step for job in JOBS.values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(JOBS)
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_actions_are_pinned_by_hash_with_their_version():
    used = re.findall(r"uses: (.*)", TEXT)
    assert used
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in used)
    assert len({each.partition("@")[0] for each in used}) == len(set(used))


def test_workflow_runs_scripts_that_exist():
    used = {name for job in JOBS for line in commands(job) for name in re.findall(r"\./scripts/([\w-]+)", line)}
    assert used == {"check", "test", "docs", "lowest", "judges"}
    assert used <= {path.name for path in (ROOT / "scripts").iterdir()}


def test_quick_tests_are_those_of_the_script():
    (tests,) = [line for line in commands("quick") if "-m pytest" in line]
    text = (ROOT / "scripts/test").read_text(encoding="utf-8")
    (quick,) = re.findall(r'set -- (.*) "\$@"', text)
    (options,) = re.findall(r'-n "\S+" (.*) "\$@"', text)
    assert tests.endswith(f"{options} {quick}")


def test_quick_tests_have_all_extras_but_one():
    (install,) = [line for line in commands("quick") if "pip install" in line]
    (extras,) = re.findall(r'--editable "\.\[(.*)\]"', install)
    every, *_ = re.findall(r"\[(.*)\]", PROJECT["optional-dependencies"]["test-all"][0])
    assert set(every.split(",")) - set(extras.split(",")) == {"morl"}
    assert set(extras.split(",")) <= set(every.split(","))
    assert "-c constraints.txt" in install


def test_contributors_need_no_torch_and_a_job_runs_their_tests():
    extras, held, waiting = PROJECT["optional-dependencies"], set(), ["dev"]
    while waiting:
        held.add(extra := waiting.pop())
        waiting += [
            name for text in extras[extra] for found in re.findall(r"^p2pfl-node\[(.*)\]", text) for name in found.split(",")
        ]
    assert "sim-without-torch" in held
    assert "torch" not in held
    assert commands("light") == ["./scripts/test --quick"]
    assert ". scripts/environment dev\n" in (ROOT / "scripts/test").read_text(encoding="utf-8")
